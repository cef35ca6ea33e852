"""Searches the mesh, the rows and the rematerialisation with which a training step reads most tokens a second.

A compilation takes minutes, so few are made. The first one is of the configuration as it is. Its facts give the bytes,
FLOPs and traffic of a row and of the parameters, and `predict` scales them to every other candidate. What is compiled
next is the candidate with the best prediction that should fit. Each result corrects the predictions of the others, and
one that does not fit rules out all candidates that need at least as much memory.

Times are those of the roofline model of `memjax.planning.plan_cases`, with its assumptions.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memjax.config import Config
from memjax.planning.advice import bytes_needed
from memjax.planning.mesh_candidates import RECOMPUTED, Candidate, candidates_of, describe, needs_at_least
from memjax.planning.topologies import GIB, Topology

SAVED = {"none": 1.0, "per_layer": 0.25, "segment": 0.5, "segment_nested": 0.2}
"""Setting of `training.remat` -> guessed share of the activations that are saved, until one is compiled."""

GAIN = 0.01
"""Relative gain of tokens a second that another candidate must promise, or the search ends."""

UNCERTAINTY = 0.05
"""Relative difference of predictions below which the smaller axis `model` and then fewer rows are preferred."""

HIDDEN_ACCESSES = 10
"""Guessed number of times that a pass through a layer reads or writes its hidden states: norms and residual sums, which
the axis `model` does not split."""

TERMS = ("compute", "hbm", "ici", "bytes")
"""Fields of a `Prediction`, which compiled candidates correct one by one."""


@dataclasses.dataclass(frozen=True)
class StepSizes:
    """Sizes of a training step over all devices, from which other candidates are predicted. Rows are without
    recomputation.

    Attributes:
      parameters: Bytes of the parameters.
      state: Bytes of parameters, optimizer state and tables.
      row_memory: Bytes of a row's memory.
      row_activations: Bytes of a row's activations.
      row_flops: FLOPs of a row.
      row_traffic: Bytes of HBM traffic of a row, without that of parameters, optimizer state and hidden states.
      row_hidden: Bytes of a row's hidden states at the inputs of all layers.
      row_tokens: Number of tokens of a row.
      weight_width: Bytes of a parameter in computations, as a share of its bytes.
    """

    parameters: float
    state: float
    row_memory: float
    row_activations: float
    row_flops: float
    row_traffic: float
    row_hidden: float
    row_tokens: int
    weight_width: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predicted seconds and bytes of a candidate on each device.

    Attributes:
      compute: Seconds of matrix products.
      hbm: Seconds of memory traffic.
      ici: Seconds of collectives.
      bytes: Bytes of HBM that the step needs.
      tokens: Number of tokens that all devices together read in a step.
    """

    compute: float
    hbm: float
    ici: float
    bytes: float
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.compute, self.hbm, self.ici)


@dataclasses.dataclass(frozen=True)
class CompiledCandidate:
    """A candidate with the facts about its compiled step, as `memjax.planning.plan_cases.plan` returns them.

    Attributes:
      candidate: The candidate.
      facts: Facts about its step.
    """

    candidate: Candidate
    facts: Mapping[str, Any]

    @property
    def tokens_per_second(self) -> float:
        """Estimated number of tokens that all devices together read per second. 0 if the step does not fit."""
        return self.facts["estimate"]["tokens_per_second"] if self.facts["fits"] else 0.0


def read_sizes(config: Config, compiled: CompiledCandidate, topology: Topology) -> StepSizes:
    """Computes the sizes of a training step from the facts about one compiled candidate. Where the compiler gave up
    before its HBM traffic could be counted, the traffic is guessed to take as long as the matrix products.

    Args:
      config: Configuration of the step.
      compiled: The compiled candidate.
      topology: TPU slice.
    """
    candidate, facts = compiled.candidate, compiled.facts
    parts, split, batch = facts["parts"], candidate.fsdp * candidate.model, candidate.batch_size
    parameters = parts.get("parameters", 0) * split
    state = split * sum(parts.get(name, 0) for name in ("parameters", "optimizer", "tables"))
    own_rows = candidate.rows / candidate.model
    model = config.model
    width = 2 if model.compute_dtype == "bfloat16" else 4
    hidden = model.residual_entries
    sizes = StepSizes(
        parameters=parameters,
        state=state,
        row_memory=parts.get("memory", 0) / own_rows,
        row_activations=0.0,
        row_flops=facts["model_flops"] / batch,
        row_traffic=0.0,
        row_hidden=facts["tokens"] / batch * hidden * width,
        row_tokens=facts["tokens"] // batch,
        weight_width=width / 4,
    )
    activations = bytes_needed(facts) - _fixed_bytes(candidate, sizes) - parts.get("memory", 0)
    passes = _passes(candidate.remat) / 3
    traffic = facts["hbm_bytes"] - _fixed_traffic(candidate, sizes) - _hidden_traffic(candidate, sizes)
    least = (
        0.1 * facts["hbm_bytes"] or own_rows * passes * sizes.row_flops * topology.hbm_bandwidth / topology.peak_flops
    )
    return dataclasses.replace(
        sizes,
        row_activations=max(activations, 0) / own_rows / SAVED.get(candidate.remat, 1.0),
        row_traffic=max(traffic, least) / own_rows / passes,
    )


def _passes(remat: str) -> int:
    """Number of forward passes whose time a step takes. The backward pass counts twice."""
    return 3 + RECOMPUTED.get(remat, 1)


def _gathered(candidate: Candidate, sizes: StepSizes) -> float:
    """Bytes of the parameters as a device computes with them."""
    return sizes.parameters * sizes.weight_width / candidate.model


def _fixed_bytes(candidate: Candidate, sizes: StepSizes) -> float:
    """Bytes of parameters, optimizer state and gradients on a device."""
    return (sizes.state + sizes.parameters) / (candidate.fsdp * candidate.model)


def _fixed_traffic(candidate: Candidate, sizes: StepSizes) -> float:
    """HBM bytes that do not grow with rows: parameters in every pass, gradients, and the update of the state."""
    passes = _passes(candidate.remat) - 1
    return passes * _gathered(candidate, sizes) + 2 * _fixed_bytes(candidate, sizes)


def _hidden_traffic(candidate: Candidate, sizes: StepSizes) -> float:
    """HBM bytes of hidden states, which every device along the axis `model` has whole."""
    return HIDDEN_ACCESSES * _passes(candidate.remat) * candidate.rows * sizes.row_hidden


def _fixed_sent(candidate: Candidate, sizes: StepSizes) -> float:
    """Bytes sent by a device that do not grow with rows: gathered parameters and summed gradients."""
    passes = _passes(candidate.remat) - 1
    gathered = (1 - 1 / candidate.fsdp) * (passes * _gathered(candidate, sizes) + sizes.parameters / candidate.model)
    return gathered + 2 * (1 - 1 / candidate.data) * sizes.parameters / (candidate.fsdp * candidate.model)


def predict(candidate: Candidate, sizes: StepSizes, topology: Topology) -> Prediction:
    """Predicts the times and the memory of a candidate from the sizes of its step, without compilation.

    Args:
      candidate: The candidate.
      sizes: Sizes of the step.
      topology: TPU slice.
    """
    own_rows, passes = candidate.rows / candidate.model, _passes(candidate.remat)
    # Two sums of hidden states over the axis `model` for each layer and pass.
    exchanged = 4 * (1 - 1 / candidate.model) * candidate.rows * sizes.row_hidden * (passes - 1)
    saved = SAVED.get(candidate.remat, 1.0) * sizes.row_activations
    traffic = own_rows * sizes.row_traffic * passes / 3 + _hidden_traffic(candidate, sizes)
    return Prediction(
        compute=own_rows * sizes.row_flops * passes / 3 / topology.peak_flops,
        hbm=(_fixed_traffic(candidate, sizes) + traffic) / topology.hbm_bandwidth,
        ici=(_fixed_sent(candidate, sizes) + exchanged) / topology.ici_bandwidth,
        bytes=_fixed_bytes(candidate, sizes) + own_rows * (sizes.row_memory + saved),
        tokens=candidate.batch_size * sizes.row_tokens,
    )


def correct(
    prediction: Prediction,
    candidate: Candidate,
    compiled: Sequence[CompiledCandidate],
    sizes: StepSizes,
    topology: Topology,
) -> Prediction:
    """Corrects a prediction by the compiled candidates that are most like the candidate: each time and the memory are
    multiplied by the mean ratio of what the compiler said to what was predicted for those.

    Args:
      prediction: Prediction of the candidate.
      candidate: The candidate.
      compiled: Compiled candidates.
      sizes: Sizes of the step.
      topology: TPU slice.
    """
    likeness = [_likeness(candidate, other.candidate) for other in compiled]
    likest = [other for other, like in zip(compiled, likeness, strict=True) if like == max(likeness)]
    ratios: dict[str, list[float]] = {name: [] for name in TERMS}
    for other in likest:
        expected = dataclasses.asdict(predict(other.candidate, sizes, topology))
        known = {"bytes": bytes_needed(other.facts), **(other.facts["estimate"] or {})}
        for name in TERMS:
            if known.get(name) and expected[name]:
                ratios[name].append(math.log(known[name] / expected[name]))
    factors = {name: math.exp(sum(logs) / len(logs)) if logs else 1.0 for name, logs in ratios.items()}
    terms = dataclasses.asdict(prediction)
    return dataclasses.replace(prediction, **{name: terms[name] * factors[name] for name in TERMS})


def _likeness(candidate: Candidate, other: Candidate) -> tuple[bool, bool, bool]:
    return candidate.remat == other.remat, candidate.model == other.model, candidate.fsdp == other.fsdp


def choose_next(
    candidates: Sequence[Candidate],
    compiled: Sequence[CompiledCandidate],
    sizes: StepSizes,
    topology: Topology,
) -> tuple[Candidate, Prediction] | None:
    """Returns the candidate to compile next and its prediction: the one with most tokens a second of those that should
    fit. If none has fitted yet and none should, it is the one that needs least memory. None if no candidate promises
    more than the best compiled one.

    Args:
      candidates: All candidates.
      compiled: Compiled candidates, of which those that do not fit rule out others.
      sizes: Sizes of the step.
      topology: TPU slice.
    """
    done = {other.candidate for other in compiled}
    too_large = [other.candidate for other in compiled if not other.facts["fits"]]
    left = [
        (candidate, correct(predict(candidate, sizes, topology), candidate, compiled, sizes, topology))
        for candidate in candidates
        if candidate not in done and not any(needs_at_least(candidate, other) for other in too_large)
    ]
    best = max((other.tokens_per_second for other in compiled), default=0.0)
    fitting = [pair for pair in left if pair[1].bytes <= topology.hbm_limit]
    promising = [pair for pair in fitting if pair[1].tokens_per_second > best * (1 + GAIN)]
    if not promising:
        return min(left, key=lambda pair: pair[1].bytes, default=None) if best == 0 else None
    most = max(expected.tokens_per_second for _, expected in promising)
    equal = [pair for pair in promising if pair[1].tokens_per_second >= most / (1 + UNCERTAINTY)]
    return min(equal, key=lambda pair: (pair[0].model, pair[0].batch_size, -pair[1].tokens_per_second))


def search_meshes(
    config: Config,
    topology: Topology,
    compile_candidate: Callable[[Candidate], Mapping[str, Any]],
    *,
    most: int,
    tell: Callable[[str], None],
) -> list[CompiledCandidate]:
    """Compiles the candidates that promise most, one after the other, and returns them, the best first: those that fit
    by their tokens a second, then those that do not.

    Args:
      config: Configuration to train.
      topology: TPU slice.
      compile_candidate: `compile_candidate(candidate)` returns the facts about its step.
      most: Largest number of candidates to compile.
      tell: `tell(line)` shows a line about the progress.

    Raises:
      UsageError: A configuration over tasks.
      ValueError: The sizes of its mesh do not fit the number of devices.
    """
    candidates = candidates_of(config, topology)
    compiled: list[CompiledCandidate] = []
    following, reason = candidates[0], "as configured"
    for number in range(1, most + 1):
        tell(f"compiling {number} of at most {most}: {describe(following)} ({reason})")
        compiled.append(CompiledCandidate(following, compile_candidate(following)))
        tell(f"  {_describe_result(compiled[-1])}")
        reference = next((other for other in compiled if other.facts["fits"]), compiled[0])
        chosen = choose_next(candidates, compiled, read_sizes(config, reference, topology), topology)
        if chosen is None:
            tell("no other candidate promises more")
            break
        following, expected = chosen
        reason = f"expected {expected.tokens_per_second:,.0f} tokens a second, {expected.bytes / GIB:.1f} GiB"
    return sorted(compiled, key=lambda other: -other.tokens_per_second)


def _describe_result(compiled: CompiledCandidate) -> str:
    facts = compiled.facts
    size = f"{bytes_needed(facts) / GIB:.1f} of {facts['limit'] / GIB:.1f} GiB"
    if not facts["fits"]:
        return f"does not fit: {size}"
    return f"{compiled.tokens_per_second:,.0f} tokens a second, bound by {facts['estimate']['bound']}, {size}"
