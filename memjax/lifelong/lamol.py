"""LAMOL: a language model that learns tasks as text, writes examples of earlier ones, and learns those again.

Sun, Ho and Lee, "LAMOL: LAnguage MOdeling for Lifelong Language Learning", ICLR 2020, https://arxiv.org/abs/1909.03329.

A row is read twice in an update: for its answer, and, after a mark, as a text of which every token is asked for. Before
a task the model writes examples after that mark. Those that have exactly one ANS are written into the episodic memory,
from which rows are drawn beside the batches of the task: replay is that of every method.

Differs from the paper: rows of the memory are drawn with replacement, so that each is read about as often as an example
of the task and not exactly so; in a batch with rows of both, their share in both losses is that of the tokens of their
answers.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.data.instructions import InstructionTokenizer, Marks, WrittenExamples
from memjax.inference.decoding import generate
from memjax.inference.sampling import Sampling
from memjax.lifelong import memory as episodic
from memjax.lifelong import policies
from memjax.lifelong.compose import Component, ObjectiveWrapper, ReplayOptions, chain_components, identity_wrapper
from memjax.lifelong.contract import Method, Phase, TaskInfo
from memjax.lifelong.episodes import EPISODES, MemoryOptions, fill_memory, key_for
from memjax.lifelong.streams import TASK, ExampleSubset, JoinedExamples, TaskSlice
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeObjective
from memjax.training.objective import Objective, model_loss
from memjax.training.sharding import Layout
from memjax.training.stages import Learner, PhaseContext, PhaseResult, Requirements, do_nothing
from memjax.training.step import TrainState, model_variables
from memjax.typing import Aux, Batch, SegmentLoss

__all__ = [
    "GeneratedSamples",
    "lamol",
    "language_rows",
    "num_samples",
    "split_at_answer_mark",
    "with_language_modeling",
    "write_samples",
]

LANGUAGE = "language"
"""the loss of whole texts, in `Aux.losses`"""
GENERATED = "generated"
"""kind of the lines of metrics about what was written before a task"""


class How(NamedTuple):
    """The fields of `memjax.config.LAMOL`, which says what they mean."""

    share: float
    samples: Literal["generated", "real"]
    tokens: Literal["task", "shared"]
    language_weight: float
    answer_weight: float
    top_k: int
    temperature: float
    capacity: int
    rows: int
    written_at_once: int
    every: int


def lamol(**fields: Any) -> Method:
    """The method; `fields` are those of `How`."""
    how = How(**fields)
    needs = Requirements(boundaries=True, tasks_in_training=how.tokens == "task")
    kept: dict[str, Any] = {}
    if how.share:
        # Nothing of the stream is kept: what is written comes before a task.
        memory = MemoryOptions(how.capacity, policies.random_policy(0.0), setting="lifelong.method.capacity")
        kept = {"memory": memory, "replay": ReplayOptions(how.rows, "mixed", how.every)}
    composed = lambda lay: chain_components(
        Component("lamol", wrap_stream_loss=lay, wrap_replay_loss=lay, requirements=needs), **kept
    )

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        task: Any = experiment.config.task
        marks = Marks.of(experiment.model.vocabulary.vocab_size, task.max_tasks)
        lay = add_language_modeling_loss(how, marks) if how.language_weight else identity_wrapper
        return composed(lay).learner(experiment, layout, objective)

    def before(task: TaskInfo) -> Phase:
        if not task.index or not how.share:
            return do_nothing
        size = num_samples(how.share, len(task.parts[task.index].examples), task.index)
        if size > how.capacity:
            what = (
                f"given {how.capacity}, allowed: at least {size}, the rows that {how.share:g} of task {task.index} are"
            )
            raise ValueError(f"lifelong.method.capacity: {what}")
        return lambda state, context: PhaseResult(refill_memory(how, task, size, state, context), context.lineage)

    return composed(identity_wrapper)._replace(learner=learner, before=before)


def num_samples(share: float, examples: int, earlier: int) -> int:
    """Examples that are written before a task: a share of its own, rounded up, equally many of each earlier task.

    Args:
      share: of the examples of the task (gamma).
      examples: of the task.
      earlier: tasks before it.

    Example:
      >>> [num_samples(0.2, 6414, earlier) for earlier in (1, 2, 3, 4)], num_samples(0.0, 100, 1)
      ([1283, 1282, 1281, 1280], 0)
    """
    wanted = math.ceil(share * examples)
    return wanted - wanted % earlier


# The loss of whole texts


def add_language_modeling_loss(how: How, marks: Marks) -> ObjectiveWrapper:
    """Over the objective of answers that of the whole text."""

    def lay(objective: Objective, model: Any) -> Objective:
        def first(batch: Batch) -> Any:
            if how.tokens == "task":
                return marks.first_task_id + batch.extras[TASK]
            return jnp.full(batch.inputs.shape[0], marks.generate_id)

        fields = {"answer_id": marks.answer_id, "answer_weight": how.answer_weight}
        rows = lambda batch: language_rows(batch, first(batch), **fields)
        loss = with_language_modeling(objective.loss, model, rows)
        return objective._replace(loss=loss, coefficients={**objective.coefficients, LANGUAGE: how.language_weight})

    return lay


def with_language_modeling(loss: SegmentLoss, model: Any, rows: Callable[[Batch], Batch]) -> SegmentLoss:
    """A loss with that of the same rows as whole texts beside it, as the auxiliary loss `LANGUAGE`.

    Args:
      loss: of one segment.
      model: the Linen model.
      rows: `rows(batch)`, the batch that is read a second time (`language_rows`).
    """
    read = model_loss(model)

    def both(variables: Any, memory: Any, segment: Batch, key: Any) -> tuple[Any, Any, Any, Aux]:
        memory, batch_stats, nll, aux = loss(variables, memory, segment, key)
        start = model.init_state(segment.inputs.shape[0])
        _, _, found, _ = read(variables, start, rows(segment), key_for(key, "language", 0))
        return memory, batch_stats, nll, aux + Aux({LANGUAGE: found})

    return both


def language_rows(batch: Batch, marks: Any, *, answer_id: int, answer_weight: float = 1.0) -> Batch:
    """Rows of instructions as texts of which every token is asked for, and the end, after a mark.

    Args:
      batch: rows that leave one place free; `[batch, length]`.
      marks: int `[batch]`, what stands in front.
      answer_id: ANS.
      answer_weight: of ANS as a target; 1 in the paper, 5 in the published code.

    Example:
      >>> row = lambda *values: jnp.array([values])
      >>> mask = row(True, True, True, False)
      >>> batch = Batch(row(5, 9, 6, 0), row(0, 6, 1, 0), mask, row(0.0, 1.0, 1.0, 0.0), jnp.array([True]))
      >>> found = language_rows(batch, jnp.array([7]), answer_id=9, answer_weight=5.0)
      >>> found.inputs.tolist(), found.targets.tolist(), found.weights.tolist()
      ([[7, 5, 9, 6]], [[5, 9, 6, 1]], [[1.0, 5.0, 1.0, 1.0]])
    """
    there = jnp.any(batch.weights > 0, axis=1, keepdims=True)
    mask = batch.mask & there
    size = jnp.sum(mask, axis=1, keepdims=True)
    read = jnp.concatenate([there, mask[:, :-1]], axis=1)
    inputs = jnp.concatenate([marks[:, None].astype(batch.inputs.dtype), batch.inputs[:, :-1]], axis=1)
    ends = jnp.arange(batch.inputs.shape[1])[None] == size
    end = jnp.take_along_axis(batch.targets, jnp.maximum(size - 1, 0), axis=1)  # the last that is asked for
    targets = jnp.where(ends, end, jnp.where(mask, batch.inputs, 0))
    weights = (mask | (ends & there)).astype(batch.weights.dtype)
    weights = jnp.where(targets == answer_id, answer_weight * weights, weights)
    return dataclasses.replace(batch, inputs=jnp.where(read, inputs, 0), mask=read, targets=targets, weights=weights)


# What is written before a task


class GeneratedSamples(NamedTuple):
    """What a model has written of a task.

    Attributes:
      rows: prompt, which ends with ANS, and answer, of texts with exactly one ANS.
      texts: all of them, in words.
    """

    rows: list[tuple[list[int], list[int]]]
    texts: list[str]


def write_samples(
    model: Any,
    variables: Any,
    tokenizer: InstructionTokenizer,
    mark: int,
    number: int,
    *,
    length: int,
    seed: int,
    top_k: int = 20,
    temperature: float = 1.0,
    at_once: int = 32,
    stop: Callable[[], None] = lambda: None,
) -> GeneratedSamples:
    """Texts that a model writes after a mark, of which those with exactly one ANS are rows.

    A text that has not ended when its row is full is kept as it is, as in the published code.

    Args:
      model: a language model.
      variables: its variables.
      tokenizer: with marks.
      mark: GEN, or that of a task.
      number: of texts.
      length: of a row.
      seed: of what is drawn.
      top_k: only so many most probable tokens are drawn.
      temperature: divides the scores.
      at_once: written side by side; one shape for all.
      stop: called before every block.
    """
    others = [one for one in tokenizer.reserved if one != tokenizer.answer_id]
    sampling = Sampling(top_k=top_k, temperature=temperature, forbidden=tuple(others))
    found = GeneratedSamples([], [])
    for block, first in enumerate(range(0, number, at_once)):
        stop()
        drawn = (seed + block) % 2**32
        named: dict[str, Any] = {
            "segment_length": length,
            "max_tokens": length - 1,
            "sampling": sampling,
            "seed": drawn,
        }
        rows = generate(model, variables, [[mark]] * at_once, stop_tokens=[tokenizer.end_id], **named)
        for ids in rows[: number - first]:
            row = split_at_answer_mark(ids, tokenizer.answer_id)
            found.texts.append(" ANS ".join(tokenizer.decode(part) for part in _parts(ids, tokenizer.answer_id)))
            if row is not None:
                found.rows.append(row)
    return found


def split_at_answer_mark(ids: Sequence[int], answer_id: int) -> tuple[list[int], list[int]] | None:
    """What stands up to ANS, and behind it; None where there is not exactly one.

    Example:
      >>> split_at_mark([5, 9, 6], 9), split_at_mark([5, 6], 9), split_at_mark([9, 5, 9], 9), split_at_mark([9], 9)
      (([5, 9], [6]), None, None, ([9], []))
    """
    parts = _parts(ids, answer_id)
    return ([*parts[0], answer_id], parts[1]) if len(parts) == 2 else None


def _parts(ids: Sequence[int], answer_id: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for one in ids:
        if one == answer_id:
            parts.append([])
        else:
            parts[-1].append(int(one))
    return parts


def refill_memory(how: How, task: TaskInfo, size: int, state: TrainState, context: PhaseContext) -> TrainState:
    """The state with rows of earlier tasks in its memory, and no others."""
    experiment, each = task.experiment, size // task.index
    begun, named = time.perf_counter(), {}
    tokenizer, length = experiment.tokenizer, experiment.config.data.segment_length
    seed = int(jax.random.bits(key_for(context.key, "generate", 0)))
    parts: list[TaskSlice] = []
    first = sum(len(part.examples) for part in task.parts)
    for earlier in range(task.index):
        if how.samples == "real":
            own = task.parts[earlier].examples
            numbers = np.random.default_rng([seed, earlier]).integers(len(own), size=each)
            parts.append(TaskSlice(ExampleSubset(own, numbers), earlier, first))
        else:
            mark = tokenizer.generate_id if how.tokens == "shared" else tokenizer.first_task_id + earlier
            found = write_samples(
                experiment.model,
                model_variables(state),
                tokenizer,
                mark,
                each,
                length=length,
                seed=seed + 1_000_003 * earlier,
                top_k=how.top_k,
                temperature=how.temperature,
                at_once=how.written_at_once,
                stop=context.stop,
            )
            kept, texts = len(found.rows), found.texts[:10]
            named[f"kept_{earlier}"], named[f"texts_{earlier}"] = kept / max(each, 1), texts
            context.report(f"task {earlier}: {kept} of {each} texts that were written have one answer mark")
            parts.append(
                TaskSlice(WrittenExamples(found.rows, tokenizer, length=length, name="written"), earlier, first)
            )
        first += each
    seconds = time.perf_counter() - begun
    if how.samples == "generated":
        context.measure(GENERATED, {"samples": size, "seconds": seconds, **named})
    parts = [part for part in parts if len(part.examples)]
    memory = state.method[EPISODES]
    memory = episodic.delete(memory, jnp.ones(memory.capacity, bool))
    if parts:
        rows = JoinedExamples(parts, tells_task=how.tokens == "task")
        memory = fill_memory(memory, experiment, rows, context.key)
    return dataclasses.replace(state, method={**state.method, EPISODES: memory})
