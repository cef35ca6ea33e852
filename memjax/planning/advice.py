"""What to change about a step that does not fit into the memory of its devices."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from memjax.config import Config


@dataclasses.dataclass(frozen=True)
class Tip:
    """A change that would make room.

    Attributes:
      change: what to add to the command line.
      why: in a few words.
      saves: bytes per device, roughly.
      enough: that would do.
    """

    change: str
    why: str
    saves: int
    enough: bool = False


@dataclasses.dataclass(frozen=True)
class _Situation:
    """A step that does not fit; bytes are per device.

    Attributes:
      config: the configuration.
      training: an update, not evaluation or generation.
      rows: batch rows of all devices.
      mesh: axis -> devices.
      weights: parameters, optimizer state and gradients.
      memory: states of memories.
      activations: everything temporary but gradients.
      missing: how much too much it is.
    """

    config: Config
    training: bool
    rows: int
    mesh: Mapping[str, int]
    weights: int
    memory: int
    activations: int
    missing: int

    @property
    def parts(self) -> int:
        """Devices that share the rows."""
        return self.mesh["data"] * self.mesh["fsdp"]

    @property
    def own_rows(self) -> int:
        """Rows of a device."""
        return self.rows // self.parts

    @property
    def rows_field(self) -> str:
        return "data.rows" if self.training else "evaluation.rows"

    def divisor(self, part: int, number: int, most: int = 8) -> int:
        """A power of two that divides `number`, from 2 to `most`: the smallest that makes `part` small enough, or the
        largest.
        """
        divisor = 2
        while part - part // divisor < self.missing and number % (2 * divisor) == 0 and 2 * divisor <= most:
            divisor *= 2
        return divisor


def bytes_needed(facts: Mapping[str, Any]) -> int:
    """Bytes of HBM per device: what the compiler took where it fits, what it asked for where it does not."""
    return max(facts["memory"]["total"] if facts["memory"] else 0, facts["required"])


def advise(config: Config, facts: Mapping[str, Any]) -> list[Tip]:
    """What would make room, with what it saves roughly; the largest first.

    Args:
      config: the configuration that does not fit.
      facts: what was found out about it (`memjax.planning.aot.Measurement`), and `what`.
    """
    parts, training = facts["parts"], facts["what"] == "train"
    parameters = parts.get("parameters", 0)
    gradients = parameters if training else 0
    now = _Situation(
        config=config,
        training=training,
        rows=config.data.rows if training else config.evaluation.rows,
        mesh=facts["mesh"],
        weights=parameters + parts.get("optimizer", 0) + parts.get("tables", 0) + gradients,
        memory=parts.get("memory", 0),
        activations=max(bytes_needed(facts) - sum(parts.values()) - gradients, 0),
        missing=bytes_needed(facts) - facts["limit"],
    )
    tips = [*_search_tips(now), *_memory_tips(now), *_weight_tips(now), *_row_tips(now)]
    if training:
        tips += _activation_tips(now)
    tips = [dataclasses.replace(tip, enough=tip.saves >= now.missing) for tip in tips if tip.saves > 0]
    return sorted(tips, key=lambda tip: -tip.saves)


def _search_tips(now: _Situation) -> Iterator[Tip]:
    model = now.config.model
    if model.carrier.sorts_all_scores:
        # A full sort of all scores: float32 scores and int32 slots, before and after.
        heads = max(model.num_heads // now.mesh["model"], 1)
        scores = now.own_rows * heads * now.config.data.segment_length * (model.carrier.memory_length or 0)
        saved = min(16 * scores, now.activations)
        yield Tip("--model.attention.retrieval approximate", "'exact' sorts all scores on a TPU", saved)


def _memory_tips(now: _Situation) -> Iterator[Tip]:
    if not now.memory:
        return
    if now.config.model.memory_dtype == "float32":
        yield Tip("--model.memory-dtype bfloat16", "every memory in half the bytes", now.memory // 2)
    name, length = "model.attention.memory-length", now.config.model.carrier.memory_length or 0
    if not now.training and now.config.evaluation.memory_length is not None:
        name, length = "evaluation.memory-length", now.config.evaluation.memory_length
    if length > 1:
        divisor = now.divisor(now.memory, length)
        yield Tip(f"--{name} {length // divisor}", "fewer slots", now.memory - now.memory // divisor)
    # More rows per device and fewer heads of each are as much memory; it helps where a device has a single row.
    if now.own_rows == 1 and now.parts % 2 == 0:
        model = 2 * now.mesh["model"]
        by_heads = now.config.model.num_heads % model == 0 and now.config.sharding.memory == "heads"
        axis = "data" if now.mesh["data"] % 2 == 0 else "fsdp"
        change = [f"--sharding.model {model}", f"--sharding.{axis} {now.mesh[axis] // 2}"]
        change += [] if by_heads else ["--sharding.memory slots"]
        change.append(f"--{now.rows_field} {now.rows // 2}")
        why = f"two devices share the {'heads' if by_heads else 'slots'} of a row"
        yield Tip(" ".join(change), why, (now.memory + now.activations) // 2)


def _weight_tips(now: _Situation) -> Iterator[Tip]:
    data, fsdp = now.mesh["data"], now.mesh["fsdp"]
    if data > 1:
        saved = int(now.weights * (1 - 1 / data))
        why = "parameters, optimizer state and gradients split over all devices that share rows"
        yield Tip(f"--sharding.fsdp {data * fsdp} --sharding.data 1", why, saved)


def _row_tips(now: _Situation) -> Iterator[Tip]:
    if now.own_rows % 2 == 0:
        both = now.memory + now.activations
        divisor = now.divisor(both, now.own_rows)
        yield Tip(
            f"--{now.rows_field} {now.rows // divisor}", "fewer rows to remember and compute", both - both // divisor
        )


def _activation_tips(now: _Situation) -> Iterator[Tip]:
    training, model = now.config.training, now.config.model
    if training.rematerialize in ("none", "segment", "offload") and model.num_layers > 1:
        policy = "per_layer" if training.segments_per_update == 1 else "segment_nested"
        kept = now.own_rows * now.config.data.segment_length * model.dim * model.num_layers
        kept *= 2 if model.compute_dtype == "bfloat16" else 4
        saved = int(now.activations * (1 - 1 / model.num_layers)) - kept
        why = "keep the inputs of layers, compute the rest again"
        yield Tip(f"--training.rematerialize {policy}", why, saved)
    if now.own_rows % (2 * training.accumulate) == 0:
        divisor = now.divisor(now.activations, now.own_rows // training.accumulate)
        saved = now.activations - now.activations // divisor
        yield Tip(f"--training.accumulate {divisor * training.accumulate}", "row groups one after the other", saved)
    if training.segments_per_update > 1:
        divisor = now.divisor(now.activations, training.segments_per_update)
        change = f"--training.segments-per-update {max(training.segments_per_update // divisor, 1)}"
        yield Tip(change, "a shorter time horizon", now.activations - now.activations // divisor)
