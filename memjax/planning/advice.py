"""Suggests changes to a configuration whose step does not fit into the memory of its devices."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from memjax.config import Config


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A change of the configuration that would save memory: options of the command line, the reason, and how many bytes
    it saves.

    Attributes:
      change: Options to add to the command line.
      why: Reason for the saving in a few words.
      saves: Approximate number of bytes that each device saves.
      enough: Whether this change alone makes the step fit.
    """

    change: str
    why: str
    saves: int
    enough: bool = False


@dataclasses.dataclass(frozen=True)
class _StepSizes:
    """Sizes of a step that does not fit, in bytes per device.

    Attributes:
      config: Configuration of the step.
      training: Whether the step is an update. False for evaluation and generation.
      rows: Number of rows of a batch on all devices together.
      mesh: Axis of the mesh -> number of devices along it.
      weights: Bytes of parameters, optimizer state, tables and gradients.
      memory: Bytes of the states of memories.
      activations: Bytes of all temporary arrays other than gradients.
      missing: Bytes that the step needs beyond those of the device.
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
        """Number of devices over which the rows are split."""
        return self.mesh["data"] * self.mesh["fsdp"]

    @property
    def own_rows(self) -> int:
        """Number of rows on one device."""
        return self.rows // self.parts

    @property
    def rows_field(self) -> str:
        return "data.batch-size" if self.training else "evaluation.batch-size"

    def divisor(self, part: int, number: int, most: int = 8) -> int:
        """Finds a power of two that divides `number`: the smallest that shrinks `part` enough, or else the largest.

        Args:
          part: Bytes that are divided.
          number: Setting that is divided, such as a number of rows.
          most: Largest power of two.
        """
        divisor = 2
        while part - part // divisor < self.missing and number % (2 * divisor) == 0 and 2 * divisor <= most:
            divisor *= 2
        return divisor


def bytes_needed(facts: Mapping[str, Any]) -> int:
    """Returns the bytes of HBM that a step needs on each device, whether or not it fits. `facts` are the fields of its
    `Measurement`.

    Args:
      facts: Facts about the step (`memjax.planning.compile_ahead.Measurement`).
    """
    return max(facts["memory"]["total"] if facts["memory"] else 0, facts["required"])


def advise(config: Config, facts: Mapping[str, Any]) -> list[Suggestion]:
    """Returns a list of changes of the configuration that would save memory in a step (`Suggestion`), the largest
    saving first. `facts` are the fields of the step's `Measurement`, and `what` it is.

    Args:
      config: Configuration whose step does not fit.
      facts: Facts about the step (`memjax.planning.compile_ahead.Measurement`), and `what` it is: 'train', 'eval' or
        'decode'.
    """
    parts, training = facts["parts"], facts["what"] == "train"
    parameters = parts.get("parameters", 0)
    gradients = parameters * facts["trained"] // facts["parameters"] if training else 0
    now = _StepSizes(
        config=config,
        training=training,
        rows=config.data.batch_size if training else config.evaluation.batch_size,
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


def _search_tips(now: _StepSizes) -> Iterator[Suggestion]:
    model = now.config.model
    if model.memory_facts.sorts_all_scores:
        # A full sort holds float32 scores and int32 slots, before and after.
        heads = max(model.num_heads // now.mesh["model"], 1)
        scores = now.own_rows * heads * now.config.data.segment_length * (model.memory_facts.memory_length or 0)
        saved = min(16 * scores, now.activations)
        yield Suggestion("--model.attention.retrieval approximate", "'exact' sorts all scores on a TPU", saved)


def _memory_tips(now: _StepSizes) -> Iterator[Suggestion]:
    if not now.memory:
        return
    if now.config.model.memory_dtype == "float32":
        yield Suggestion("--model.memory-dtype bfloat16", "every memory in half the bytes", now.memory // 2)
    name, length = "model.attention.memory-length", now.config.model.memory_facts.memory_length or 0
    if not now.training and now.config.evaluation.memory_length is not None:
        name, length = "evaluation.memory-length", now.config.evaluation.memory_length
    if length > 1:
        divisor = now.divisor(now.memory, length)
        yield Suggestion(f"--{name} {length // divisor}", "fewer slots", now.memory - now.memory // divisor)
    # Splitting heads helps only if a device has a single row: more rows with fewer heads each need as much memory.
    if now.own_rows == 1 and now.parts % 2 == 0:
        model = 2 * now.mesh["model"]
        by_heads = now.config.model.num_heads % model == 0 and now.config.sharding.split_memory_by == "heads"
        axis = "data" if now.mesh["data"] % 2 == 0 else "fsdp"
        change = [f"--sharding.model {model}", f"--sharding.{axis} {now.mesh[axis] // 2}"]
        change += [] if by_heads else ["--sharding.split-memory-by slots"]
        change.append(f"--{now.rows_field} {now.rows // 2}")
        why = f"two devices share the {'heads' if by_heads else 'slots'} of a row"
        yield Suggestion(" ".join(change), why, (now.memory + now.activations) // 2)


def _weight_tips(now: _StepSizes) -> Iterator[Suggestion]:
    data, fsdp = now.mesh["data"], now.mesh["fsdp"]
    if data > 1:
        saved = int(now.weights * (1 - 1 / data))
        why = "parameters, optimizer state and gradients split over all devices that share rows"
        yield Suggestion(f"--sharding.fsdp {data * fsdp} --sharding.data 1", why, saved)


def _row_tips(now: _StepSizes) -> Iterator[Suggestion]:
    if now.own_rows % 2 == 0:
        variable_bytes = now.memory + now.activations
        divisor = now.divisor(variable_bytes, now.own_rows)
        yield Suggestion(
            f"--{now.rows_field} {now.rows // divisor}",
            "fewer rows to remember and compute",
            variable_bytes - variable_bytes // divisor,
        )


def _activation_tips(now: _StepSizes) -> Iterator[Suggestion]:
    training, model = now.config.training, now.config.model
    if training.remat in ("none", "segment", "offload") and model.num_layers > 1:
        policy = "per_layer" if training.segments_per_update == 1 else "segment_nested"
        saved_inputs = now.own_rows * now.config.data.segment_length * model.dim * model.num_layers
        saved_inputs *= 2 if model.compute_dtype == "bfloat16" else 4
        saved = int(now.activations * (1 - 1 / model.num_layers)) - saved_inputs
        why = "keep the inputs of layers, compute the rest again"
        yield Suggestion(f"--training.remat {policy}", why, saved)
    if now.own_rows % (2 * training.num_microbatches) == 0:
        divisor = now.divisor(now.activations, now.own_rows // training.num_microbatches)
        saved = now.activations - now.activations // divisor
        yield Suggestion(
            f"--training.num-microbatches {divisor * training.num_microbatches}",
            "row groups one after the other",
            saved,
        )
    if training.segments_per_update > 1:
        divisor = now.divisor(now.activations, training.segments_per_update)
        change = f"--training.segments-per-update {max(training.segments_per_update // divisor, 1)}"
        yield Suggestion(change, "a shorter time horizon", now.activations - now.activations // divisor)
