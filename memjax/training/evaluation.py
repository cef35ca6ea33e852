"""Scores of a split: every token once, with a memory that is evaluation's own."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.data.documents import Split
from memjax.data.examples import EXAMPLE
from memjax.data.reading import Reading
from memjax.programs import free_programs
from memjax.tasks.contract import Answers, Measure, Read, ReadBatch, Subset
from memjax.training.metrics import LN2, count_bytes, perplexity
from memjax.training.objective import model_collections
from memjax.training.sharding import Layout, check_rows, put
from memjax.typing import Batch, tree_dataclass

__all__ = ["DocumentScores", "EvaluationResult", "Evaluator", "Score", "evaluate"]

READING = ("protocol", "rows", "segment_length", "stride", "score_first")
"""What a result says of its reading."""


class PerRowAdaptation(NamedTuple):
    """How every row is scored with parameters of its own; for models without a state.

    Rows are a `Batch` whose weights are 1 where a row has tokens.

    Attributes:
      retrieve_support: `find(variables, rows) -> support`, what the rows are adapted to.
      score_adapted: `score_adapted(variables, rows, support, predict)` returns `predict(params, row)` of all rows.
      runs_outside_jit: `find` is called outside of compiled programs.
      examples: `examples(support)`, int `[rows, number]`, the numbers of the examples in it, -1 = none.
      weights: `weights(support)`, float `[rows, number]`, how much each of them counts.
    """

    retrieve_support: Callable[[Mapping[str, Any], Batch], Any]
    score_adapted: Callable[[Mapping[str, Any], Batch, Any, Callable[[Any, Batch], Any]], Any]
    runs_outside_jit: bool = False
    examples: Callable[[Any], Any] = lambda support: None
    weights: Callable[[Any], Any] = lambda support: None


class EvaluationInterrupted(Exception):  # noqa: N818 (a request, not an error)
    """An evaluation was asked to stop."""


@tree_dataclass
class BatchScore:
    """What was worked out for one batch.

    Attributes:
      nats: `[batch, length]`, of each target.
      correct: bool `[batch, length]`, or None where it was not counted.
      parts: `[1 + mixtures, batch, length]`, log-probability of each target under the model alone and under the
        candidates of each memory laid over it, or None where it was not asked for.
      features: name -> `[batch, length, dim]`, the inner tensors that were asked for.
      output: what the model gave (the scores of a task's head), or None where it was not asked for.
    """

    nats: Any
    correct: Any = None
    parts: Any = None
    features: dict[str, Any] = dataclasses.field(default_factory=dict)
    output: Any = None

    def score(self, where: np.ndarray, extras: Mapping[str, Any]) -> Score:
        """The sums over some of the targets, in float64; `extras` are those of the batch."""
        return Score(
            nats=float(np.sum(self.nats, where=where, dtype=np.float64)),
            targets=int(np.sum(where)),
            bytes=int(np.sum(extras["target_bytes"], where=where, dtype=np.int64)) if "target_bytes" in extras else 0,
            correct=None if self.correct is None else int(np.sum(self.correct, where=where)),
        )


Observe = Callable[[Batch, BatchScore], None]
"""Called with every batch and what was worked out for it, on the host, in the order of the batches."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Sums over scored targets; scores of hosts or parts add.

    Attributes:
      nats: negative log likelihood of the targets.
      targets: how many were scored.
      bytes: UTF-8 bytes of their text; 0 = not known.
      correct: how many the model would have chosen itself; None = not counted.
    """

    nats: float = 0.0
    targets: int = 0
    bytes: int = 0
    correct: int | None = None

    def plus(self, other: Score) -> Score:
        """The score of both together."""
        correct = None if self.correct is None or other.correct is None else self.correct + other.correct
        return Score(
            nats=self.nats + other.nats,
            targets=self.targets + other.targets,
            bytes=self.bytes + other.bytes,
            correct=correct,
        )

    @property
    def nats_per_token(self) -> float | None:
        return self.nats / self.targets if self.targets else None

    @property
    def bits_per_token(self) -> float | None:
        return self.nats / LN2 / self.targets if self.targets else None

    @property
    def bits_per_byte(self) -> float | None:
        return self.nats / LN2 / self.bytes if self.bytes else None

    @property
    def perplexity(self) -> float | None:
        return perplexity(self.nats / self.targets) if self.targets else None

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.targets if self.correct is not None and self.targets else None

    def as_dict(self) -> dict[str, Any]:
        """Sums and means as JSON values."""
        means = ("nats_per_token", "bits_per_token", "bits_per_byte", "perplexity", "accuracy")
        values = {"nats": self.nats, "targets": self.targets, "bytes": self.bytes, "correct": self.correct}
        values |= {name: getattr(self, name) for name in means}
        return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult(Score):
    """The score of a split, and how it was measured.

    Attributes:
      protocol: `separate`, `contiguous`, or `sliding_window`.
      rows: streams side by side; part of the protocol where it is `contiguous`.
      segment_length: tokens of a segment or window.
      stride: tokens scored per window; 0 where the protocol has none.
      score_first: the first token of each document was scored, from a begin token.
      complete: the whole split was scored.
      words: of the text, where the corpus is counted in words and every token was scored; 0 = not known.
      subsets: name -> score of the targets in that subset.
      metrics: name -> mean of what the model reports.
      measures: name -> number, by the measure of the task, where it has one.
      notes: on measures, a line each.
      tokens_per_second: tokens read (for `sliding_window` tokens scored), without the first batch, which compiles; 0
        for a single batch.
      examples_per_second: likewise, where examples are read: with all that is done for them, an adaptation too.
      memory_bytes: of the memory state of one row.
    """

    protocol: str
    rows: int
    segment_length: int
    stride: int = 0
    score_first: bool = True
    complete: bool = True
    words: int = 0
    subsets: Mapping[str, Score] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    measures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tokens_per_second: float = 0.0
    examples_per_second: float = 0.0
    memory_bytes: int = 0

    @property
    def word_perplexity(self) -> float | None:
        """Perplexity of a word, whatever tokens it was read as; comparable with that of a vocabulary of words."""
        return perplexity(self.nats / self.words) if self.words else None

    def merge(self, other: EvaluationResult) -> EvaluationResult:
        """The result of two hosts that have scored different rows of one split.

        Rates add, metrics and measures are this host's.
        """
        both = self.plus(other)
        return dataclasses.replace(
            self,
            **vars(both),
            subsets={name: score.plus(other.subsets[name]) for name, score in self.subsets.items()},
            tokens_per_second=self.tokens_per_second + other.tokens_per_second,
            examples_per_second=self.examples_per_second + other.examples_per_second,
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values; subsets under `subsets`, measures beside the sums, rates if they were measured."""
        rates = {"tokens_per_second": self.tokens_per_second, "examples_per_second": self.examples_per_second}
        apart = {"words", "subsets", "metrics", "measures", "notes", *rates}
        names = vars(self).keys() - vars(Score()).keys() - apart
        values = {name: getattr(self, name) for name in sorted(names)}
        subsets = {name: score.as_dict() for name, score in self.subsets.items()}
        values |= {"metrics": dict(self.metrics), "subsets": subsets, **({"notes": self.notes} if self.notes else {})}
        words = {"words": self.words, "word_perplexity": self.word_perplexity} if self.words else {}
        measured = {name: rate for name, rate in rates.items() if rate}
        return {**super().as_dict(), **words, **self.measures, **values, **measured}


class DocumentScores:
    """Sums of each document that an evaluation reads; `observe` is an argument of a call of `Evaluator`.

    A document is whatever begins with a fresh memory: a document (`separate`), a row of the whole split (`contiguous`),
    a window (`sliding_window`) or an example. Two evaluations of one reading have the same documents in the same order.

    Example:
      >>> batch = Batch(np.zeros((1, 2)), np.zeros((1, 2)), np.ones((1, 2), bool), np.ones((1, 2)), np.array([True]))
      >>> scores = DocumentScores()
      >>> for nats in ([[1.0, 2.0]], [[3.0, 3.0]]):
      ...     scores.observe(batch, Scored(np.array(nats)))
      >>> scores.nats.tolist(), scores.targets.tolist()
      ([3.0, 6.0], [2.0, 2.0])
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], np.ndarray] = {}
        self._numbers: dict[int, int] = {}

    def observe(self, batch: Batch, scored: BatchScore) -> None:
        """Adds the targets of a batch to their documents."""
        read = np.flatnonzero(np.any(np.asarray(batch.mask), axis=1))
        where = np.asarray(batch.weights) > 0
        for row in read.tolist():
            self._numbers[row] = self._numbers.get(row, 0) + bool(batch.start_of_document[row])
            nats = np.sum(scored.nats[row], where=where[row], dtype=np.float64)
            sums = self._sums.setdefault((row, self._numbers[row]), np.zeros(2))
            sums += nats, np.sum(where[row])

    @property
    def nats(self) -> np.ndarray:
        """`[documents]`, negative log likelihood of the targets of each; documents without any are left out."""
        return self._columns()[0]

    @property
    def targets(self) -> np.ndarray:
        """`[documents]`, number of scored targets of each."""
        return self._columns()[1]

    def _columns(self) -> np.ndarray:
        columns = np.array([self._sums[place] for place in sorted(self._sums)]).reshape(-1, 2).T
        return columns[:, columns[1] > 0]


def evaluate(
    model: Any, variables: Mapping[str, Any], documents: Split, reading: Reading, **arguments: Any
) -> EvaluationResult:
    """Scores `documents` once; see `Evaluator` for the arguments, and use it to score more than once."""
    return Evaluator(model, documents, reading, **arguments)(variables)


class Evaluator:
    """Scores one set of documents as often as wanted, compiled once.

    Every call begins with a fresh state and threads it through the whole set. Sums are kept in float64 on the host, so
    totals do not depend on rows or hosts where documents are independent (`separate`, `sliding_window`).
    """

    def __init__(
        self,
        model: Any,
        documents: Split,
        reading: Reading,
        *,
        max_segments: int = 0,
        subsets: Sequence[str] | Mapping[str, Subset] | None = None,
        accuracy: bool = False,
        parts: bool = False,
        features: Sequence[str] = (),
        make_measure: Callable[[], Measure] | None = None,
        host_rows: tuple[int, int] | None = None,
        layout: Layout | None = None,
        fit: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda variables: variables,
        change: Callable[[Any], Any] | None = None,
        num_words: Callable[[], int] | None = None,
        adapt_rows: PerRowAdaptation | None = None,
        answer: Callable[[Mapping[str, Any]], Answers] | None = None,
    ):
        """Prepares an evaluation.

        Args:
          model: a `memjax.models.contract.Model`.
          documents: the split.
          reading: how it is read.
          max_segments: stop after so many segments of every row; 0 = the whole split.
          subsets: targets that are scored apart too: names of boolean annotations of the documents, or name ->
            function of `Batch.extras`; None = all boolean annotations.
          accuracy: also count the targets that the model finds most probable (builds all logits).
          parts: show observers the log-probabilities under the model alone and under each memory laid over it.
          features: inner tensors of the model (`memjax.models.add_features`) to show observers.
          make_measure: of the answers of a whole split; asked anew for every call.
          host_rows: `(start, stop)`, the rows of this host; all of them if None.
          layout: of memory and batches on several devices. Every process then reads all rows, and has all totals.
          fit: from the variables that it is called with to those of `model` (`memjax.training.variables.fitting`).
          change: of the memory that a segment finds (`memjax.training.interventions`).
          num_words: counts the words of the text of the documents; None = they are not counted in words.
          adapt_rows: every row is scored with parameters of its own (`make_score`).
          answer: what the model with some variables writes, measured, for tasks whose score that is.

        Raises:
          ValueError: arguments that do not fit each other, the documents or the mesh.
        """
        self.model, self.documents, self.reading = model, documents, reading
        self.subsets, self.max_segments, self._make_measure = subsets, max_segments, make_measure
        self.host_rows, self._num_words = host_rows or (0, reading.rows), num_words
        self._accuracy, self._layout, self._held, self.fit = accuracy, layout, None, fit
        self._answer = answer
        self._find = adapt_rows.retrieve_support if adapt_rows and adapt_rows.runs_outside_jit else None
        shown = {"parts": parts, "features": tuple(features), "output": make_measure is not None}
        options = {"accuracy": accuracy, "change": change, "adapt_rows": adapt_rows, **shown}
        score, self._kind = make_score(model, **options), (options, reading.rows, layout)
        if layout is None:
            self._score = jax.jit(score, donate_argnums=1)
            return
        check_rows(reading.rows, layout.mesh, what="evaluation.rows")
        memory, row = layout.memory(jax.eval_shape(lambda: model.init_state(reading.rows))), layout.rows()
        self._held = memory
        support = (None,) if adapt_rows and adapt_rows.runs_outside_jit else ()
        self._score = jax.jit(
            score,
            donate_argnums=1,
            in_shardings=(None, memory, row, row, row, row, row, *support),
            out_shardings=(memory, layout.replicated, layout.replicated),
        )

    def share(self, other: Evaluator) -> None:
        """Takes the compiled score of another evaluator of the same model, options and rows."""
        if other.model == self.model and other._kind == self._kind:
            self._score = other._score

    def release(self) -> None:
        """Frees the compiled score, also where an exception that is kept still holds this object."""
        free_programs([self._score])

    def _start(self, num_rows: int) -> Any:
        """A fresh memory where it belongs."""
        if self._held is None:
            return self.model.init_state(num_rows)
        return jax.jit(lambda: self.model.init_state(num_rows), out_shardings=self._held)()

    def _place(self, batch: Batch) -> tuple[Any, ...]:
        """What is scored of a batch, where it belongs."""
        extras = self.model.choose_extras(batch.extras)
        arrays = (batch.inputs, batch.targets, batch.mask, batch.start_of_document, extras)
        return arrays if self._layout is None else put(arrays, self._layout.batch(arrays, segments=False))

    def _support(self, variables: Mapping[str, Any], batch: Batch) -> tuple[Any, ...]:
        """What the rows of a batch are adapted to, where it is not found in the compiled score."""
        if self._find is None:
            return ()
        extras = self.model.choose_extras(batch.extras)
        rows = _rows_of(batch.inputs, batch.targets, batch.mask, batch.start_of_document, extras)
        return (self._find(variables, rows),)

    def __call__(
        self,
        variables: Mapping[str, Any],
        *,
        stop: Callable[[], bool] = lambda: False,
        observe: Observe = lambda batch, scored: None,
    ) -> EvaluationResult:
        """Scores the documents with these variables (collections as the model has them).

        Args:
          variables: params, and the other collections of the model.
          stop: asked before every segment; True ends the evaluation with `EvaluationInterrupted`.
          observe: is shown every batch with what was worked out for it.
        """
        variables, split = self.fit(variables), self.documents
        num_rows = self.host_rows[1] - self.host_rows[0]
        memory = self._start(num_rows)
        memory_bytes = count_bytes(memory) // num_rows
        nothing = Score(correct=0 if self._accuracy else None)
        total, subsets, chosen = nothing, {}, {}
        measure = self._make_measure() if self._make_measure else None
        sums: Any = {}
        pending: tuple[Batch, Any] | None = None
        complete, seconds, timed, examples, started = True, 0.0, 0, 0, 0.0

        def take(batch: Batch, scored: BatchScore) -> None:
            nonlocal total
            scored, where = jax.device_get(scored), batch.weights > 0
            total = total.plus(scored.score(where, batch.extras))
            for name, subset in chosen.items():
                part = scored.score(where & subset(batch.extras), batch.extras)
                subsets[name] = subsets.get(name, nothing).plus(part)
            if measure is not None:
                measure.observe(batch, scored.output)
            observe(batch, scored)

        for number, batch in enumerate(self.reading.batches(split, self.host_rows)):
            if self.max_segments and number == self.max_segments:
                complete = False
                break
            if stop():
                raise EvaluationInterrupted
            if number == 0:
                chosen = self._subsets_of(batch)
            with self._layout.active() if self._layout else contextlib.nullcontext():
                memory, scored, more = self._score(
                    variables, memory, *self._place(batch), *self._support(variables, batch)
                )
            sums = jax.tree.map(jnp.add, sums, more) if sums else more
            if pending is not None:  # The last batch is read back while this one runs.
                take(*pending)
            pending = (batch, scored)
            if number == 0:
                jax.block_until_ready(scored)
                started = time.perf_counter()
            else:
                timed += int((batch.weights > 0).sum() if self.reading.stride else batch.mask.sum())
                examples += int((batch.extras[EXAMPLE] >= 0).sum()) if EXAMPLE in batch.extras else 0
        if pending is not None:
            take(*pending)
            seconds = time.perf_counter() - started
        words, numbers = 0, range(len(split))
        if complete and split.every_token and (self._num_words or not total.bytes):
            if total.targets == sum(split.num_tokens(i) for i in numbers):
                num_bytes = total.bytes or sum(split.num_bytes(i) for i in numbers)
                total, words = dataclasses.replace(total, bytes=num_bytes), self._num_words() if self._num_words else 0
        measures = {} if measure is None or pending is None else measure.result()
        answered = self._answer(variables) if self._answer and complete else Answers({})
        return EvaluationResult(
            **dataclasses.asdict(total),
            **{name: getattr(self.reading, name) for name in READING},
            complete=complete,
            words=words,
            subsets=subsets,
            metrics={name: float(jax.device_get(value.mean())) for name, value in sums.items()},
            measures={**measures, **answered.measures},
            notes=answered.notes,
            tokens_per_second=timed / seconds if timed else 0.0,
            examples_per_second=examples / seconds if examples else 0.0,
            memory_bytes=memory_bytes,
        )

    def _subsets_of(self, batch: Batch) -> dict[str, Subset]:
        if isinstance(self.subsets, Mapping):
            return dict(self.subsets)
        names = self.subsets
        if names is None:
            shape = batch.mask.shape  # what is not of the targets, such as a source, is no subset of them
            names = sorted(n for n, array in batch.extras.items() if array.dtype == bool and array.shape == shape)
        unknown = [name for name in names if name not in batch.extras]
        if unknown:
            raise ValueError(
                f"subsets: given {unknown[0]!r}, allowed: annotations of the documents, {sorted(batch.extras)}"
            )
        return {name: lambda extras, name=name: extras[name].astype(bool) for name in names}


def make_score(
    model: Any,
    *,
    accuracy: bool = False,
    parts: bool = False,
    features: Sequence[str] = (),
    output: bool = False,
    change: Callable[[Any], Any] | None = None,
    adapt_rows: PerRowAdaptation | None = None,
) -> Callable[..., Any]:
    """`score(variables, memory, inputs, targets, mask, start_of_document, extras) -> (memory, BatchScore, metrics)`.

    `extras` is what the model takes of the batch's extras; `metrics` are name -> `Sum`. Where rows are adapted to what
    is found outside, that is a last argument.

    Args:
      model: a language model.
      accuracy: with `BatchScore.correct`.
      parts: with `BatchScore.parts`.
      features: with these inner tensors.
      output: with `BatchScore.output`.
      change: of the memory before the segment reads it.
      adapt_rows: every row is scored with parameters of its own.

    Raises:
      ValueError: rows of their own for a model with a state.
    """

    def score(variables: Any, memory: Any, inputs: Any, targets: Any, mask: Any, start: Any, extras: Any = None) -> Any:
        named = {"start_of_document": start, "mask": mask, "deterministic": True}
        named |= {"extras": extras} if extras else {}
        memory = change(memory) if change else memory
        hidden, memory, aux = model.apply(variables, inputs, memory, **named)
        correct = None
        if accuracy:
            log_probs = model.apply(variables, hidden, method="log_probs")
            nats = -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
            correct = jnp.argmax(log_probs, axis=-1) == targets
        else:
            nats = model.apply(variables, hidden, targets, method="token_nll")
        each = model.apply(variables, hidden, targets, method="token_log_probs") if parts else None
        named_features = {name: aux.arrays[name] for name in features}
        return memory, BatchScore(nats, correct, each, named_features, hidden if output else None), aux.metrics

    if adapt_rows is None:
        return score
    if jax.tree.leaves(jax.eval_shape(lambda: model.init_state(1))):
        raise ValueError(f"adaptation: given {type(model).__name__}, allowed: a model without a state of its rows")

    def adapted(
        variables: Any, memory: Any, inputs: Any, targets: Any, mask: Any, start: Any, extras: Any, *found: Any
    ) -> Any:
        own = model_collections(variables)

        def predict(params: Any, row: Batch) -> Any:
            one = jax.tree.map(lambda leaf: leaf[None], row)
            read = (one.inputs, one.targets, one.mask, one.start_of_document, one.extras)
            _, scored, metrics = score({**own, "params": params}, memory, *read)
            return jax.tree.map(lambda leaf: leaf[0], scored), metrics

        rows = _rows_of(inputs, targets, mask, start, extras)
        support = found[0] if adapt_rows.runs_outside_jit else adapt_rows.retrieve_support(variables, rows)
        scored, metrics = adapt_rows.score_adapted(variables, rows, support, predict)
        return memory, scored, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), metrics)

    return adapted


def make_read(model: Any, adapt_rows: PerRowAdaptation) -> ReadBatch:
    """What a model says to a user, each row with parameters of its own (see `memjax.tasks.contract.read_examples`).

    Args:
      model: without a state.
      adapt_rows: how.
    """

    def say(variables: Mapping[str, Any], rows: Batch, support: Any) -> Any:
        own = model_collections(variables)

        def predict(params: Any, row: Batch) -> Any:
            adapted, one = {**own, "params": params}, jax.tree.map(lambda leaf: leaf[None], row)
            named = {"start_of_document": one.start_of_document, "mask": one.mask, "extras": one.extras}
            output = model.apply(adapted, one.inputs, model.init_state(1), **named)[0]
            return output[0], model.apply(adapted, output, method="log_probs")[0]

        return *adapt_rows.score_adapted(variables, rows, support, predict), adapt_rows.examples(support)

    find = adapt_rows.retrieve_support if adapt_rows.runs_outside_jit else jax.jit(adapt_rows.retrieve_support)
    said = jax.jit(say)

    def read(variables: Mapping[str, Any], batch: Batch) -> Read:
        arrays = (batch.inputs, batch.targets, batch.mask, batch.start_of_document, model.choose_extras(batch.extras))
        rows = _rows_of(*arrays)
        return Read(batch, *jax.device_get(said(variables, rows, find(variables, rows))))

    return read


def _rows_of(inputs: Any, targets: Any, mask: Any, start: Any, extras: Any) -> Batch:
    """What is scored of a batch, as rows that are adapted."""
    weights = jnp.broadcast_to(jnp.any(mask, axis=1, keepdims=True), targets.shape).astype(jnp.float32)
    return Batch(inputs, targets, mask, weights, start, extras or {})
