"""LAMOL: a language model that learns tasks as text, generates examples of earlier tasks, and replays them.

Sun, Ho and Lee, "LAMOL: LAnguage MOdeling for Lifelong Language Learning", ICLR 2020, https://arxiv.org/abs/1909.03329.

An update reads a row twice: once to learn its answer, and once after a mark to learn all of its tokens as a text.
Before a task the model generates examples after this mark. Those with exactly one ANS (the mark in front of an answer)
are written to the episodic memory. Rows of the memory are replayed beside the batches of the task.

Differs from the paper: rows of the memory are drawn with replacement, so each is read only about as often as an example
of the task. If rows of the stream and of the memory are learned together, their weights in both losses are the numbers
of tokens of their answers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.data.batch_iterator import make_padding_batch, write_row
from memjax.data.documents import Examples
from memjax.data.instruction_readers import is_answer_of_task
from memjax.data.instructions import InstructionTokenizer, Marks, PromptExamples
from memjax.data.prompts import prompt_room
from memjax.data.source_readers import class_names
from memjax.inference.decoding import generate
from memjax.inference.sampling import Sampling
from memjax.lifelong import episodic_memory as episodic
from memjax.lifelong import policies
from memjax.lifelong.components import Component, ObjectiveWrapper, ReplayOptions, identity_wrapper
from memjax.lifelong.composition import chain_components
from memjax.lifelong.memory_backends import EPISODES, MemoryOptions, WriteRule, fill_memory, key_for
from memjax.lifelong.method_interface import Method, Phase, TaskInfo
from memjax.lifelong.update_streams import TASK, ExampleSubset, JoinedExamples, TaskSlice
from memjax.lifelong.updates import make_joint_update
from memjax.training.experiment import Experiment
from memjax.training.objective import Objective, model_loss
from memjax.training.sharding import Layout
from memjax.training.stages import Learner, PhaseContext, PhaseResult, Requirements, do_nothing
from memjax.training.train_state import TrainState, model_variables
from memjax.training.update_functions import MakeObjective
from memjax.typing import Aux, Batch, SegmentLoss

LANGUAGE = "language"
"""Name of the loss of whole texts in `Aux.losses`."""
GENERATED = "generated"
"""Kind of the metrics lines about examples that were generated before a task."""


def lamol(settings: configs.LAMOL) -> Method:
    """Makes the `Method` LAMOL: before a task the model generates examples of all earlier tasks, which are replayed
    beside those of the task.
    """
    needs = Requirements(boundaries=True, tasks_in_training=settings.generation_token == "task")
    options: dict[str, Any] = {}
    if settings.sample_ratio:
        # No rows of the stream are stored: the memory is filled with generated examples before a task.
        memory = MemoryOptions(
            settings.capacity, WriteRule(policies.random_policy(0.0)), setting="lifelong.method.capacity"
        )
        options = {
            "memory": memory,
            "replay": ReplayOptions(settings.replay_batch_size, make_joint_update, settings.interval),
        }
    composed = lambda wrap: chain_components(
        Component("lamol", wrap_stream_loss=wrap, wrap_replay_loss=wrap, requirements=needs), **options
    )

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        task: Any = experiment.config.task
        marks = Marks.of(experiment.model.vocabulary.vocab_size, task.max_tasks)
        wrap = _add_language_modeling_loss(settings, marks) if settings.lm_loss_weight else identity_wrapper
        return composed(wrap).learner(experiment, layout, objective)

    def before(task: TaskInfo) -> Phase:
        if not task.index or not settings.sample_ratio:
            return do_nothing
        size = num_samples(settings.sample_ratio, len(task.parts[task.index].examples), task.index)
        if size > settings.capacity:
            rows = f"the rows that {settings.sample_ratio:g} of task {task.index} are"
            what = f"given {settings.capacity}, allowed: at least {size}, {rows}"
            raise ValueError(f"lifelong.method.capacity: {what}")
        return lambda state, context: PhaseResult(_refill_memory(settings, task, size, state, context), context.lineage)

    return composed(identity_wrapper)._replace(learner=learner, before=before)


def num_samples(share: float, examples: int, earlier: int) -> int:
    """Returns the number of examples to generate before a task, for all `earlier` tasks together: `share` times its
    number of `examples`, rounded so that each earlier task gets equally many.

    Args:
      share: Ratio of generated examples to examples of the task (gamma).
      examples: Number of examples of the task.
      earlier: Number of earlier tasks, at least 1.

    Returns:
      `ceil(share * examples)`, rounded down to a multiple of `earlier`.

    Example:
      >>> [num_samples(0.2, 6414, earlier) for earlier in (1, 2, 3, 4)], num_samples(0.0, 100, 1)
      ([1283, 1282, 1281, 1280], 0)
    """
    wanted = math.ceil(share * examples)
    return wanted - wanted % earlier


# The loss of whole texts


def _add_language_modeling_loss(settings: configs.LAMOL, marks: Marks) -> ObjectiveWrapper:
    """Makes a wrapper that adds the loss of whole texts to the objective of answers.

    Args:
      settings: Settings of LAMOL.
      marks: Token ids of the marks.
    """

    def wrap(objective: Objective, model: Any) -> Objective:
        def mark(batch: Batch) -> Any:
            if settings.generation_token == "task":
                return marks.first_task_id + batch.extras[TASK]
            return jnp.full(batch.inputs.shape[0], marks.generate_id)

        fields = {"answer_id": marks.answer_id, "answer_weight": settings.answer_weight}
        rows = lambda batch: language_rows(batch, mark(batch), **fields)
        loss = with_language_modeling(objective.loss, model, rows)
        return objective._replace(loss=loss, coefficients={**objective.coefficients, LANGUAGE: settings.lm_loss_weight})

    return wrap


def with_language_modeling(loss: SegmentLoss, model: Any, rows: Callable[[Batch], Batch]) -> SegmentLoss:
    """Returns a loss function that adds to `loss` the loss of the same rows as whole texts, as the auxiliary loss
    `LANGUAGE`. `rows(batch)` makes the batch of whole texts.

    Args:
      loss: Loss of a segment.
      model: The Linen model.
      rows: `rows(batch)` returns the batch that is read a second time, as whole texts (`language_rows`).
    """
    read = model_loss(model)

    def loss_with_language(variables: Any, memory: Any, segment: Batch, key: Any) -> tuple[Any, Any, Any, Aux]:
        memory, batch_stats, nll, aux = loss(variables, memory, segment, key)
        start = model.init_state(segment.inputs.shape[0])
        _, _, language_nll, _ = read(variables, start, rows(segment), key_for(key, "language", 0))
        return memory, batch_stats, nll, aux + Aux({LANGUAGE: language_nll})

    return loss_with_language


def language_rows(batch: Batch, marks: Any, *, answer_id: int, answer_weight: float = 1.0) -> Batch:
    """Turns a batch of instructions into one of whole texts, in which every token and the end are targets. `marks` has
    the token id in front of each row. Targets that are `answer_id` get the weight `answer_weight`.

    Args:
      batch: Rows of instructions `[batch, length]`, each with at least one free position at its end.
      marks: Token id to put in front of each row, int `[batch]`.
      answer_id: Token id of ANS.
      answer_weight: Weight of ANS as a target: 1 in the paper, 5 in the published code.

    Example:
      >>> row = lambda *values: jnp.array([values])
      >>> mask = row(True, True, True, False)
      >>> batch = Batch(row(5, 9, 6, 0), row(0, 6, 1, 0), mask, row(0.0, 1.0, 1.0, 0.0), jnp.array([True]))
      >>> texts = language_rows(batch, jnp.array([7]), answer_id=9, answer_weight=5.0)
      >>> texts.inputs.tolist(), texts.targets.tolist(), texts.weights.tolist()
      ([[7, 5, 9, 6]], [[5, 9, 6, 1]], [[1.0, 5.0, 1.0, 1.0]])
    """
    has_targets = jnp.any(batch.weights > 0, axis=1, keepdims=True)
    mask = batch.mask & has_targets
    size = jnp.sum(mask, axis=1, keepdims=True)
    read = jnp.concatenate([has_targets, mask[:, :-1]], axis=1)
    inputs = jnp.concatenate([marks[:, None].astype(batch.inputs.dtype), batch.inputs[:, :-1]], axis=1)
    ends = jnp.arange(batch.inputs.shape[1])[None] == size
    end = jnp.take_along_axis(batch.targets, jnp.maximum(size - 1, 0), axis=1)  # The last target of the row.
    targets = jnp.where(ends, end, jnp.where(mask, batch.inputs, 0))
    weights = (mask | (ends & has_targets)).astype(batch.weights.dtype)
    weights = jnp.where(targets == answer_id, answer_weight * weights, weights)
    return dataclasses.replace(batch, inputs=jnp.where(read, inputs, 0), mask=read, targets=targets, weights=weights)


# Generated examples


class GeneratedSamples(NamedTuple):
    """Texts that a model has generated as examples of a task: token ids of prompt and answer for those of the right
    form, and all of them decoded.

    Attributes:
      rows: Token ids of the prompt, which ends with ANS, and of the answer, for all texts with exactly one ANS
        and a prompt that is not too long.
      texts: All generated texts, decoded.
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
    room: int,
    seed: int,
    top_k: int = 20,
    temperature: float = 1.0,
    at_once: int = 32,
    stop: Callable[[], None] = lambda: None,
) -> GeneratedSamples:
    """Generates `number` texts of at most `length` tokens with a language model, each by continuing the token id
    `mark`, and returns them as `GeneratedSamples`. `stop()` is called before each block of `at_once` texts.

    Texts with exactly one ANS become rows, unless their prompt is longer than those of tasks can be (`room`). A text
    that has not ended when its row is full is used as it is, as in the published code.

    Args:
      model: Language model.
      variables: Variables of the model.
      tokenizer: Tokenizer with marks.
      mark: Token id to continue: GEN, or the mark of a task.
      number: Number of texts to generate.
      length: Maximum number of tokens of a text, with its mark.
      room: Largest number of tokens of a prompt. See `memjax.data.prompts.prompt_room`.
      seed: Seed of all random choices.
      top_k: Number of most probable tokens that a token is drawn from.
      temperature: Divisor of the logits.
      at_once: Number of texts that are generated side by side. It is the same for all blocks of texts.
      stop: `stop()` is called before every block, and may raise to end the generation.
    """
    others = [mark_id for mark_id in tokenizer.reserved if mark_id != tokenizer.answer_id]
    sampling = Sampling(top_k=top_k, temperature=temperature, forbidden=tuple(others))
    samples = GeneratedSamples([], [])
    for block, first in enumerate(range(0, number, at_once)):
        stop()
        options: dict[str, Any] = {
            "segment_length": length,
            "max_tokens": length - 1,
            "sampling": sampling,
            "seed": (seed + block) % 2**32,
        }
        rows = generate(model, variables, [[mark]] * at_once, stop_tokens=[tokenizer.end_id], **options)
        for ids in rows[: number - first]:
            row = split_at_answer_mark(ids, tokenizer.answer_id)
            samples.texts.append(
                " ANS ".join(tokenizer.decode(part) for part in _split_at_marks(ids, tokenizer.answer_id))
            )
            if row is not None and len(row[0]) <= room:
                samples.rows.append(row)
    return samples


def split_at_answer_mark(ids: Sequence[int], answer_id: int) -> tuple[list[int], list[int]] | None:
    """Splits token ids into two lists: the prompt, which ends with the token id ANS (`answer_id`), and the answer. None
    unless there is exactly one ANS.

    Args:
      ids: Token ids of an example.
      answer_id: Token id of ANS.

    Example:
      >>> [split_at_answer_mark(ids, 9) for ids in ([5, 9, 6], [5, 6], [9, 5, 9], [9])]
      [([5, 9], [6]), None, None, ([9], [])]
    """
    parts = _split_at_marks(ids, answer_id)
    return ([*parts[0], answer_id], parts[1]) if len(parts) == 2 else None


def _split_at_marks(ids: Sequence[int], answer_id: int) -> list[list[int]]:
    """Splits token ids at every ANS, which is left out."""
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == answer_id:
            parts.append([])
        else:
            parts[-1].append(int(token))
    return parts


def _refill_memory(
    settings: configs.LAMOL, task: TaskInfo, size: int, state: TrainState, context: PhaseContext
) -> TrainState:
    """Replaces the contents of the memory with examples of earlier tasks, generated or real.

    Args:
      settings: Settings of LAMOL.
      task: The task that is about to be learned.
      size: Number of examples in all.
      state: Train state.
      context: Context of the phase before the task.
    """
    experiment, each = task.experiment, size // task.index
    began, measures = time.perf_counter(), {}
    seed = int(jax.random.bits(key_for(context.key, "generate", 0)))
    parts: list[TaskSlice] = []
    first = sum(len(part.examples) for part in task.parts)
    for earlier in range(task.index):
        if settings.sample_source == "real":
            examples = task.parts[earlier].examples
            numbers = np.random.default_rng([seed, earlier]).integers(len(examples), size=each)
            parts.append(TaskSlice(ExampleSubset(examples, numbers), earlier, first))
        else:
            examples, measured = _write_examples(settings, task, earlier, each, seed, state, context.stop)
            measures |= {f"{name}_{earlier}": measure for name, measure in measured.items()}
            context.report(
                f"task {earlier}: {len(examples)} of {each} texts that were written have the form of an example"
            )
            parts.append(TaskSlice(examples, earlier, first))
        first += each
    seconds = time.perf_counter() - began
    if settings.sample_source == "generated":
        context.measure(GENERATED, {"samples": size, "seconds": seconds, **measures})
    parts = [part for part in parts if len(part.examples)]
    memory = state.method[EPISODES]
    memory = episodic.delete(memory, jnp.ones(memory.capacity, bool))
    if parts:
        rows = JoinedExamples(parts, tells_task=settings.generation_token == "task")
        memory = fill_memory(memory, experiment, rows, context.key)
    return dataclasses.replace(state, method={**state.method, EPISODES: memory})


def _write_examples(
    settings: configs.LAMOL,
    task: TaskInfo,
    earlier: int,
    number: int,
    seed: int,
    state: TrainState,
    stop: Callable[[], None],
) -> tuple[PromptExamples, dict[str, Any]]:
    """Generates `number` texts of one earlier task, and returns those with the form of an example, and measures of
    them by name: shares of all texts, nats a token of the texts that are kept and of real ones, and the first texts.
    """
    experiment, config = task.experiment, task.experiment.config
    assert config.lifelong is not None
    tokenizer, length, model = experiment.tokenizer, config.data.segment_length, experiment.model
    instructions: Any = config.task
    mark = tokenizer.generate_id if settings.generation_token == "shared" else tokenizer.first_task_id + earlier
    variables = model_variables(state)
    samples = write_samples(
        model,
        variables,
        tokenizer,
        mark,
        number,
        length=length,
        room=prompt_room(length, instructions.max_answer_length),
        seed=seed + 1_000_003 * earlier,
        top_k=settings.top_k,
        temperature=settings.temperature,
        at_once=settings.generation_batch_size,
        stop=stop,
    )
    examples = PromptExamples(samples.rows, tokenizer, length=length, name="written")
    source, real = config.lifelong.ordered_tasks[earlier].source, task.parts[earlier].examples
    nats = lambda texts: nats_of_texts(model, variables, texts, mark, length=length, answer_id=tokenizer.answer_id)
    measures = {
        "kept": len(samples.rows) / max(number, 1),
        "of_task": sum(_is_of_task(row, tokenizer, source, real) for row in samples.rows) / max(number, 1),
        "real_nats": nats(real),
        "texts": samples.texts[:10],
    }
    return examples, measures | ({"written_nats": nats(examples)} if samples.rows else {})


def _is_of_task(row: tuple[list[int], list[int]], tokenizer: InstructionTokenizer, source: Any, real: Any) -> bool:
    """Returns whether the answer of a written row has the form of the answers of the task of some real examples."""
    prompt, answer = map(tokenizer.decode, row)
    classes = {*class_names(source).values()} or {
        text for instruction in real.instructions for text in instruction.answers
    }
    return is_answer_of_task(answer, prompt, classes, source.answer_metric)


def nats_of_texts(
    model: Any, variables: Any, examples: Examples, mark: int, *, length: int, answer_id: int, most: int = 64
) -> float:
    """Returns the nats a token of examples as whole texts, each after the token id `mark`, under a language model.

    Args:
      model: Language model.
      variables: Variables of the model.
      examples: Rows of instructions. At most `most` are read, spread evenly over all.
      mark: Token id in front of each row.
      length: Number of tokens of a row.
      answer_id: Token id of ANS.
      most: Largest number of examples to read.
    """
    numbers = np.linspace(0, len(examples) - 1, min(len(examples), most)).round().astype(int)
    rows = [examples.example(int(number)) for number in numbers]
    batch = make_padding_batch(rows[0], (most,), length)
    for place, row in enumerate(rows):
        write_row(batch, place, row, True)
    return float(_compile_nats(model, answer_id)(variables, batch, jnp.full(most, mark)))


@functools.lru_cache(maxsize=8)
def _compile_nats(model: Any, answer_id: int) -> Callable[..., Any]:
    """Compiles the mean nats of a batch of instructions as whole texts, once for each model."""
    read = model_loss(model, deterministic=True)

    def mean_nats(variables: Any, batch: Batch, marks: Any) -> Any:
        texts = language_rows(batch, marks, answer_id=answer_id)
        _, _, nats, _ = read(variables, model.init_state(len(marks)), texts, jax.random.key(0))
        return nats.mean()

    return jax.jit(mean_nats)
