"""Evaluation: scores every token of a split once, with a memory that is separate from that of training."""

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
from memjax.data.example_batches import EXAMPLE
from memjax.data.reading_plan import ReadingPlan
from memjax.models.compiled_programs import free_programs
from memjax.tasks.interface import GeneratedAnswers, ReadBatch, ScoredBatch, TargetSelector, TaskMetric
from memjax.training.metrics import LN2, count_bytes, perplexity
from memjax.training.objective import model_collections
from memjax.training.sharding import Layout, check_rows, put
from memjax.typing import Batch, tree_dataclass

__all__ = ["DocumentScores", "EvaluationResult", "Evaluator", "Score", "evaluate"]

READING = ("protocol", "rows", "segment_length", "stride", "score_first")
"""Fields of the reading plan that an evaluation result records."""


class PerRowAdaptation(NamedTuple):
    """Functions that adapt the parameters of a model to every row and score the row with them (test-time adaptation).

    It is for models without a state. `rows` is a `Batch` without a segment axis. Its weights are 1 for all targets of a
    row that has tokens, and 0 for empty rows.

    Attributes:
      retrieve_support: Function `retrieve_support(variables, rows) -> support`, which finds the examples that each
        row is adapted to.
      score_adapted: Function `score_adapted(variables, rows, support, predict)`, which adapts the parameters to each
        row and returns the results of `predict(params, row)`, stacked over the rows.
      runs_outside_jit: Whether `retrieve_support` must be called outside of compiled programs.
      examples: Function `examples(support)`, which returns the ids of the support examples, int `[rows, number]`, -1
        for none.
      weights: Function `weights(support)`, which returns the weights of the support examples, float `[rows, number]`.
      width: Name of the setting with the number of rows that a device adapts and scores side by side, each with a copy
        of parameters. '' if rows share the adapted parameters.
      copied: Function `copied(params)`, which returns the parameters that are copied for each of these rows.
    """

    retrieve_support: Callable[[Mapping[str, Any], Batch], Any]
    score_adapted: Callable[[Mapping[str, Any], Batch, Any, Callable[[Any, Batch], Any]], Any]
    runs_outside_jit: bool = False
    examples: Callable[[Any], Any] = lambda support: None
    weights: Callable[[Any], Any] = lambda support: None
    width: str = ""
    copied: Callable[[Any], Any] = lambda params: {}


class EvaluationInterrupted(Exception):  # noqa: N818 (a request, not an error)
    """An evaluation ended early because its `stop` function returned True."""


@tree_dataclass
class BatchScore:
    """Scores of the targets of one batch, and the tensors of the model that were requested.

    Attributes:
      nats: Negative log-likelihood of each target, `[batch, length]`.
      correct: Whether each target is the most probable choice of the model, bool `[batch, length]`. None if accuracy
        was not requested.
      parts: Log-probability of each target under the model alone and under the candidates of each output memory that is
        mixed with it, `[1 + mixtures, batch, length]`. None if it was not requested.
      features: Requested inner tensors of the model by name, `[batch, length, dim]`.
      output: Output of the model, such as the scores of a task's head. None if it was not requested.
    """

    nats: Any
    correct: Any = None
    parts: Any = None
    features: dict[str, Any] = dataclasses.field(default_factory=dict)
    output: Any = None

    def score(self, where: np.ndarray, extras: Mapping[str, Any]) -> Score:
        """Sums the scores of some targets in float64.

        Args:
          where: Targets to include, bool `[batch, length]`.
          extras: `Batch.extras` of the batch, for the bytes of the targets.
        """
        return Score(
            nats=float(np.sum(self.nats, where=where, dtype=np.float64)),
            targets=int(np.sum(where)),
            bytes=int(np.sum(extras["target_bytes"], where=where, dtype=np.int64)) if "target_bytes" in extras else 0,
            correct=None if self.correct is None else int(np.sum(self.correct, where=where)),
        )


Observe = Callable[[Batch, BatchScore], None]
"""Function `observe(batch, scores)`, called on the host with every batch and its scores, in order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Sums over the scored targets. The scores of several hosts or parts of a split can be added.

    Attributes:
      nats: Negative log-likelihood of the targets.
      targets: Number of scored targets.
      bytes: UTF-8 bytes of the text of the targets. 0 if not known.
      correct: Number of targets that are the most probable choice of the model. None if not counted.
    """

    nats: float = 0.0
    targets: int = 0
    bytes: int = 0
    correct: int | None = None

    def plus(self, other: Score) -> Score:
        """Returns the sum of this score and another one."""
        correct = None if self.correct is None or other.correct is None else self.correct + other.correct
        return Score(
            nats=self.nats + other.nats,
            targets=self.targets + other.targets,
            bytes=self.bytes + other.bytes,
            correct=correct,
        )

    @property
    def nats_per_token(self) -> float | None:
        """Mean negative log-likelihood of a target in nats. None without targets."""
        return self.nats / self.targets if self.targets else None

    @property
    def bits_per_token(self) -> float | None:
        """Mean negative log-likelihood of a target in bits. None without targets."""
        return self.nats / LN2 / self.targets if self.targets else None

    @property
    def bits_per_byte(self) -> float | None:
        """Negative log-likelihood in bits per UTF-8 byte of the text. None if the number of bytes is not known."""
        return self.nats / LN2 / self.bytes if self.bytes else None

    @property
    def perplexity(self) -> float | None:
        """Perplexity per target. None without targets."""
        return perplexity(self.nats / self.targets) if self.targets else None

    @property
    def accuracy(self) -> float | None:
        """Fraction of targets that are the most probable choice of the model. None if they were not counted."""
        return self.correct / self.targets if self.correct is not None and self.targets else None

    def as_dict(self) -> dict[str, Any]:
        """Returns the sums and means as JSON values by name, without those that are None."""
        means = ("nats_per_token", "bits_per_token", "bits_per_byte", "perplexity", "accuracy")
        values = {"nats": self.nats, "targets": self.targets, "bytes": self.bytes, "correct": self.correct}
        values |= {name: getattr(self, name) for name in means}
        return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult(Score):
    """The score of a split, and a record of how it was measured.

    Attributes:
      protocol: Protocol of the evaluation: `separate`, `contiguous`, or `sliding_window`.
      rows: Number of rows that are read side by side. With `contiguous` the score depends on it.
      segment_length: Tokens per segment or window.
      stride: Tokens scored per window. 0 for protocols without windows.
      score_first: Whether the first token of each document was scored, from a begin token.
      complete: Whether the whole split was scored.
      words: Words of the text, if the corpus is measured per word and every token was scored. 0 if not known.
      subsets: Score of the targets in each subset, by name.
      metrics: Mean of each metric that the model reports, by name.
      measures: Numbers of the task's own measure by name. Empty if the task has none.
      notes: Lines on how the measures were computed.
      tokens_per_second: Tokens read per second, or tokens scored with `sliding_window`. The first batch, which
        compiles, is not included. 0 if there was a single batch.
      examples_per_second: Examples scored per second, including test-time adaptation, without the first batch. 0 if no
        examples were read or there was a single batch.
      memory_bytes: Bytes of the memory state of one row.
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
        """Perplexity per word, comparable between tokenizers. None if the number of words is not known."""
        return perplexity(self.nats / self.words) if self.words else None

    def merge(self, other: EvaluationResult) -> EvaluationResult:
        """Merges the results of two hosts that have scored different rows of one split.

        Sums and rates are added. Metrics and measures are those of this host.
        """
        total = self.plus(other)
        return dataclasses.replace(
            self,
            **vars(total),
            subsets={name: score.plus(other.subsets[name]) for name, score in self.subsets.items()},
            tokens_per_second=self.tokens_per_second + other.tokens_per_second,
            examples_per_second=self.examples_per_second + other.examples_per_second,
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the result as JSON values by name.

        Measures stand beside the sums, subsets under `subsets`. Rates are included if they were measured.
        """
        rates = {"tokens_per_second": self.tokens_per_second, "examples_per_second": self.examples_per_second}
        added_below = {"words", "subsets", "metrics", "measures", "notes", *rates}
        names = vars(self).keys() - vars(Score()).keys() - added_below
        values = {name: getattr(self, name) for name in sorted(names)}
        subsets = {name: score.as_dict() for name, score in self.subsets.items()}
        values |= {"metrics": dict(self.metrics), "subsets": subsets, **({"notes": self.notes} if self.notes else {})}
        words = {"words": self.words, "word_perplexity": self.word_perplexity} if self.words else {}
        measured_rates = {name: rate for name, rate in rates.items() if rate}
        return {**super().as_dict(), **words, **self.measures, **values, **measured_rates}


class DocumentScores:
    """Collects the scores of each document of an evaluation. Pass its `observe` to a call of an `Evaluator`.

    A document is anything that begins with a new memory: a document (`separate`), a row of the whole split
    (`contiguous`), a window (`sliding_window`) or an example. Two evaluations with the same reading plan have the same
    documents in the same order.

    Example:
      >>> batch = Batch(np.zeros((1, 2)), np.zeros((1, 2)), np.ones((1, 2), bool), np.ones((1, 2)), np.array([True]))
      >>> scores = DocumentScores()
      >>> for nats in ([[1.0, 2.0]], [[3.0, 3.0]]):
      ...     scores.observe(batch, BatchScore(np.array(nats)))
      >>> scores.nats.tolist(), scores.targets.tolist()
      ([3.0, 6.0], [2.0, 2.0])
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], np.ndarray] = {}
        self._numbers: dict[int, int] = {}

    def observe(self, batch: Batch, scored: BatchScore) -> None:
        """Adds the scores of a batch to the documents that its targets belong to."""
        read = np.flatnonzero(np.any(np.asarray(batch.mask), axis=1))
        where = np.asarray(batch.weights) > 0
        for row in read.tolist():
            self._numbers[row] = self._numbers.get(row, 0) + bool(batch.start_of_document[row])
            nats = np.sum(scored.nats[row], where=where[row], dtype=np.float64)
            sums = self._sums.setdefault((row, self._numbers[row]), np.zeros(2))
            sums += nats, np.sum(where[row])

    @property
    def nats(self) -> np.ndarray:
        """Negative log-likelihood of each document, `[documents]`, without documents that have no scored target."""
        return self._columns()[0]

    @property
    def targets(self) -> np.ndarray:
        """Number of scored targets of each document, `[documents]`, without documents that have none."""
        return self._columns()[1]

    def _columns(self) -> np.ndarray:
        """Returns nats and number of targets of each document that has targets, `[2, documents]`."""
        columns = np.array([self._sums[place] for place in sorted(self._sums)]).reshape(-1, 2).T
        return columns[:, columns[1] > 0]


def evaluate(
    model: Any, variables: Mapping[str, Any], documents: Split, reading: ReadingPlan, **arguments: Any
) -> EvaluationResult:
    """Scores the documents of a split once.

    The arguments are those of `Evaluator`, which scores a split more than once without compiling again.
    """
    return Evaluator(model, documents, reading, **arguments)(variables)


class Evaluator:
    """Scores the documents of a split for any number of variables. It is compiled once.

    Every call begins with a new memory and passes it through the whole split. Sums are computed in float64 on the host,
    so that with independent documents (`separate`, `sliding_window`) totals do not depend on the number of rows or
    hosts.
    """

    def __init__(
        self,
        model: Any,
        documents: Split,
        reading: ReadingPlan,
        *,
        max_segments: int = 0,
        subsets: Sequence[str] | Mapping[str, TargetSelector] | None = None,
        accuracy: bool = False,
        parts: bool = False,
        features: Sequence[str] = (),
        make_measure: Callable[[], TaskMetric] | None = None,
        host_rows: tuple[int, int] | None = None,
        layout: Layout | None = None,
        fit: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda variables: variables,
        change: Callable[[Any], Any] | None = None,
        num_words: Callable[[], int] | None = None,
        adapt_rows: PerRowAdaptation | None = None,
        answer: Callable[[Mapping[str, Any]], GeneratedAnswers] | None = None,
    ):
        """Prepares an evaluation.

        Args:
          model: Model to evaluate, a `memjax.models.interface.Model`.
          documents: Split to score.
          reading: Reading plan, which cuts the split into rows and segments.
          max_segments: Number of segments of every row to read. 0 for the whole split.
          subsets: Subsets of the targets to score separately as well. Names of boolean annotations of the documents, or
            functions of `Batch.extras` by name. None for all boolean annotations.
          accuracy: Whether to count the targets that the model finds most probable. This computes all logits.
          parts: Whether `BatchScore.parts` is computed: the log-probabilities under the model alone and under each
            output memory that is mixed with it.
          features: Names of inner tensors of the model for `BatchScore.features` (see `memjax.models.add_features`).
          make_measure: Function that makes the task's own measure of a whole split, called once per evaluation. None
            for a task without one.
          host_rows: Rows of this host, `(start, stop)`. None for all rows.
          layout: Shardings of the memory and the batches over several devices. Every process then reads all rows and
            has all totals. None on a single device.
          fit: Function that converts the variables of a call to those of `model`. See
            `memjax.training.variables.fitting`.
          change: Function that changes the memory before each segment. See `memjax.training.memory_interventions`.
          num_words: Function that counts the words of the documents. None if the corpus is not measured per word.
          adapt_rows: Test-time adaptation of the parameters to each row. None scores all rows with the same parameters.
          answer: Function `answer(variables)` that generates and measures answers, for tasks that are scored by them.

        Raises:
          ValueError: The arguments do not fit each other, the documents or the mesh.
        """
        self.model, self.documents, self.reading = model, documents, reading
        self.subsets, self.max_segments, self._make_measure = subsets, max_segments, make_measure
        self.host_rows, self._num_words = host_rows or (0, reading.rows), num_words
        self._accuracy, self._layout, self._memory_sharding, self.fit = accuracy, layout, None, fit
        self._answer = answer
        self._retrieve = adapt_rows.retrieve_support if adapt_rows and adapt_rows.runs_outside_jit else None
        shown = {"parts": parts, "features": tuple(features), "output": make_measure is not None}
        options = {"accuracy": accuracy, "change": change, "adapt_rows": adapt_rows, **shown}
        score, self._sharing_key = make_score(model, **options), (options, reading.rows, layout)
        if layout is None:
            self._score = jax.jit(score, donate_argnums=1)
            return
        check_rows(reading.rows, layout.mesh, what="evaluation.batch_size")
        memory, row = layout.memory(jax.eval_shape(lambda: model.init_state(reading.rows))), layout.rows()
        self._memory_sharding = memory
        support = (None,) if adapt_rows and adapt_rows.runs_outside_jit else ()
        self._score = jax.jit(
            score,
            donate_argnums=1,
            in_shardings=(None, memory, row, row, row, row, row, *support),
            out_shardings=(memory, layout.replicated, layout.replicated),
        )

    def share(self, other: Evaluator) -> None:
        """Shares the compiled score of another evaluator if it has the same model, options, rows and layout."""
        if other.model == self.model and other._sharing_key == self._sharing_key:
            self._score = other._score

    def release(self) -> None:
        """Frees the compiled score, even if a stored exception still refers to this object."""
        free_programs([self._score])

    def _new_memory(self, num_rows: int) -> Any:
        """Makes a new memory, placed on the devices of the layout."""
        if self._memory_sharding is None:
            return self.model.init_state(num_rows)
        return jax.jit(lambda: self.model.init_state(num_rows), out_shardings=self._memory_sharding)()

    def _place_batch(self, batch: Batch) -> tuple[Any, ...]:
        """Returns the arrays of a batch that the compiled score takes, placed on the devices of the layout."""
        extras = self.model.select_extras(batch.extras)
        arrays = (batch.inputs, batch.targets, batch.mask, batch.start_of_document, extras)
        return arrays if self._layout is None else put(arrays, self._layout.batch(arrays, segments=False))

    def _retrieve_support(self, variables: Mapping[str, Any], batch: Batch) -> tuple[Any, ...]:
        """Retrieves the support of the rows of a batch, as one further argument of the compiled score.

        Returns an empty tuple without adaptation, or if the compiled score retrieves the support.
        """
        if self._retrieve is None:
            return ()
        extras = self.model.select_extras(batch.extras)
        rows = _rows_of(batch.inputs, batch.targets, batch.mask, batch.start_of_document, extras)
        return (self._retrieve(variables, rows),)

    def __call__(
        self,
        variables: Mapping[str, Any],
        *,
        stop: Callable[[], bool] = lambda: False,
        observe: Observe = lambda batch, scored: None,
    ) -> EvaluationResult:
        """Scores the documents with the given variables.

        Args:
          variables: Variables of the model: `params` and its other collections.
          stop: Function that is called before every segment. True ends the evaluation with `EvaluationInterrupted`.
          observe: Function that is called with every batch and its scores.

        Raises:
          EvaluationInterrupted: `stop` returned True.
        """
        variables, split = self.fit(variables), self.documents
        num_rows = self.host_rows[1] - self.host_rows[0]
        memory = self._new_memory(num_rows)
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
                    variables, memory, *self._place_batch(batch), *self._retrieve_support(variables, batch)
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
        answered = self._answer(variables) if self._answer and complete else GeneratedAnswers({})
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

    def _subsets_of(self, batch: Batch) -> dict[str, TargetSelector]:
        """Returns the functions that select the subsets, by name. Unknown annotations raise `ValueError`."""
        if isinstance(self.subsets, Mapping):
            return dict(self.subsets)
        names = self.subsets
        if names is None:
            shape = batch.mask.shape  # an annotation of something else, such as a source text, selects no targets
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
    """Makes the function that scores one segment of all rows.

    The function is
    `score(variables, memory, inputs, targets, mask, start_of_document, extras) -> (memory, BatchScore, metrics)`.
    `extras` are the extras of the batch that the model takes, and `metrics` has a `WeightedSum` by name. If the
    support of an adaptation is retrieved outside of compiled programs, it is a last argument.

    Args:
      model: Model to evaluate.
      accuracy: Whether to compute `BatchScore.correct`.
      parts: Whether to compute `BatchScore.parts`.
      features: Names of inner tensors of the model for `BatchScore.features`.
      output: Whether to return the output of the model as `BatchScore.output`.
      change: Function that changes the memory before the segment reads it. None leaves it unchanged.
      adapt_rows: Test-time adaptation of the parameters to each row. None scores all rows with the same parameters.

    Raises:
      ValueError: `adapt_rows` for a model with a state.
    """

    def score(variables: Any, memory: Any, inputs: Any, targets: Any, mask: Any, start: Any, extras: Any = None) -> Any:
        options = {"start_of_document": start, "mask": mask, "deterministic": True}
        options |= {"extras": extras} if extras else {}
        memory = change(memory) if change else memory
        hidden, memory, aux = model.apply(variables, inputs, memory, **options)
        correct = None
        if accuracy:
            log_probs = model.apply(variables, hidden, method="log_probs")
            nats = -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
            correct = jnp.argmax(log_probs, axis=-1) == targets
        else:
            nats = model.apply(variables, hidden, targets, method="token_nll")
        log_prob_parts = model.apply(variables, hidden, targets, method="token_log_probs") if parts else None
        named_features = {name: aux.arrays[name] for name in features}
        return (
            memory,
            BatchScore(nats, correct, log_prob_parts, named_features, hidden if output else None),
            aux.metrics,
        )

    if adapt_rows is None:
        return score
    if jax.tree.leaves(jax.eval_shape(lambda: model.init_state(1))):
        raise ValueError(f"adaptation: given {type(model).__name__}, allowed: a model without a state of its rows")

    def score_with_adaptation(
        variables: Any, memory: Any, inputs: Any, targets: Any, mask: Any, start: Any, extras: Any, *supports: Any
    ) -> Any:
        collections = model_collections(variables)

        def predict(params: Any, row: Batch) -> Any:
            batch = jax.tree.map(lambda leaf: leaf[None], row)
            arrays = (batch.inputs, batch.targets, batch.mask, batch.start_of_document, batch.extras)
            _, scored, metrics = score({**collections, "params": params}, memory, *arrays)
            return jax.tree.map(lambda leaf: leaf[0], scored), metrics

        rows = _rows_of(inputs, targets, mask, start, extras)
        support = supports[0] if adapt_rows.runs_outside_jit else adapt_rows.retrieve_support(variables, rows)
        scored, metrics = adapt_rows.score_adapted(variables, rows, support, predict)
        return memory, scored, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), metrics)

    return score_with_adaptation


def make_read(model: Any, adapt_rows: PerRowAdaptation) -> ReadBatch:
    """Makes a function that applies a model to a batch after adapting its parameters to each row.

    It answers the questions of users. See `memjax.tasks.interface.read_examples`.

    Args:
      model: Model without a state.
      adapt_rows: Test-time adaptation of the parameters to each row.
    """

    def answer(variables: Mapping[str, Any], rows: Batch, support: Any) -> Any:
        collections = model_collections(variables)

        def predict(params: Any, row: Batch) -> Any:
            adapted, batch = {**collections, "params": params}, jax.tree.map(lambda leaf: leaf[None], row)
            options = {"start_of_document": batch.start_of_document, "mask": batch.mask, "extras": batch.extras}
            output = model.apply(adapted, batch.inputs, model.init_state(1), **options)[0]
            return output[0], model.apply(adapted, output, method="log_probs")[0]

        return *adapt_rows.score_adapted(variables, rows, support, predict), adapt_rows.examples(support)

    find = adapt_rows.retrieve_support if adapt_rows.runs_outside_jit else jax.jit(adapt_rows.retrieve_support)
    compiled_answer = jax.jit(answer)

    def read(variables: Mapping[str, Any], batch: Batch) -> ScoredBatch:
        arrays = (batch.inputs, batch.targets, batch.mask, batch.start_of_document, model.select_extras(batch.extras))
        rows = _rows_of(*arrays)
        return ScoredBatch(batch, *jax.device_get(compiled_answer(variables, rows, find(variables, rows))))

    return read


def _rows_of(inputs: Any, targets: Any, mask: Any, start: Any, extras: Any) -> Batch:
    """Makes the batch that `PerRowAdaptation` takes. Its weights are 1 for rows with tokens and 0 for empty rows."""
    weights = jnp.broadcast_to(jnp.any(mask, axis=1, keepdims=True), targets.shape).astype(jnp.float32)
    return Batch(inputs, targets, mask, weights, start, extras or {})
