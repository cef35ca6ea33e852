"""Evaluation: scores every token of a split once, with a memory that is separate from that of training."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from memjax.data.documents import Split
from memjax.data.example_batches import EXAMPLE
from memjax.data.reading_plan import ReadingPlan
from memjax.models.compiled_programs import free_programs
from memjax.tasks.interface import GeneratedAnswers, TargetSelector, TaskMetric
from memjax.training.metrics import count_bytes
from memjax.training.objective import model_collections
from memjax.training.row_adaptation import PerRowAdaptation, rows_to_adapt
from memjax.training.scores import BatchScore, EvaluationResult, Observe, Score
from memjax.training.sharding import Layout, check_rows, put
from memjax.typing import Batch

__all__ = ["Evaluator", "evaluate"]

READING = ("protocol", "rows", "segment_length", "stride", "score_first")
"""Fields of the reading plan that an evaluation result records."""


class EvaluationInterrupted(Exception):  # noqa: N818 (a request, not an error)
    """A request to end an evaluation, or a phase before or after a stage of a run, early. An evaluation raises it if
    its `stop` function returns True.
    """


def evaluate(
    model: Any, variables: Mapping[str, Any], documents: Split, reading: ReadingPlan, **arguments: Any
) -> EvaluationResult:
    """Scores the documents of a split once, cut into rows and segments by a reading plan (`reading`), and returns the
    `EvaluationResult`. Further arguments are those of `Evaluator`.

    `Evaluator` scores a split more than once without compiling again.
    """
    return Evaluator(model, documents, reading, **arguments)(variables)


class Evaluator:
    """Scores the documents of a split: a function from the variables of a model to an `EvaluationResult`. It is
    compiled once and can be called with any number of variables.

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
        compute_accuracy: bool = False,
        compute_parts: bool = False,
        feature_names: Sequence[str] = (),
        make_measure: Callable[[], TaskMetric] | None = None,
        host_rows: tuple[int, int] | None = None,
        layout: Layout | None = None,
        convert_variables: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda variables: variables,
        change_memory: Callable[[Any], Any] | None = None,
        num_words: Callable[[], int] | None = None,
        adapt_rows: PerRowAdaptation | None = None,
        generate_answers: Callable[[Mapping[str, Any]], GeneratedAnswers] | None = None,
    ):
        """Prepares an evaluation.

        Args:
          model: Model to evaluate, a `memjax.models.interface.Model`.
          documents: Split to score.
          reading: Reading plan, which cuts the split into rows and segments.
          max_segments: Number of segments of every row to read. 0 for the whole split.
          subsets: Subsets of the targets to score separately as well. Names of boolean annotations of the documents, or
            functions of `Batch.extras` by name. None for all boolean annotations.
          compute_accuracy: Whether to count the targets that the model finds most probable. This computes all logits.
          compute_parts: Whether to compute `BatchScore.parts`, the log-probabilities under the model alone and under
            each output memory that is mixed with it.
          feature_names: Names of inner tensors of the model for `BatchScore.features` (see
            `memjax.models.add_features`).
          make_measure: Function that makes the task's own measure of a whole split, called once per evaluation. None
            for a task without one.
          host_rows: Rows of this host, `(start, stop)`. None for all rows.
          layout: Shardings of the memory and the batches over several devices. Every process then reads all rows and
            has all totals. None on a single device.
          convert_variables: Function that converts the variables of a call to those of `model`. See
            `memjax.training.variables.fitting`.
          change_memory: Function that changes the memory before each segment. None leaves it unchanged. See
            `memjax.training.memory_interventions`.
          num_words: Function that counts the words of the documents. None if the corpus is not measured per word.
          adapt_rows: Test-time adaptation of the parameters to each row. None scores all rows with the same parameters.
          generate_answers: Function `generate_answers(variables)` that generates and measures answers. None for tasks
            that are not scored by them.

        Raises:
          ValueError: The arguments do not fit each other, the documents or the mesh.
        """
        self.model, self.documents, self.reading = model, documents, reading
        self.subsets, self.max_segments, self._make_measure = subsets, max_segments, make_measure
        self.host_rows, self._num_words = host_rows or (0, reading.rows), num_words
        self._compute_accuracy, self._layout, self._memory_sharding = compute_accuracy, layout, None
        self.convert_variables, self._generate_answers = convert_variables, generate_answers
        self._retrieve = adapt_rows.retrieve_support if adapt_rows and adapt_rows.runs_outside_jit else None
        options: dict[str, Any] = {
            "compute_accuracy": compute_accuracy,
            "compute_parts": compute_parts,
            "feature_names": tuple(feature_names),
            "return_output": make_measure is not None,
            "change_memory": change_memory,
            "adapt_rows": adapt_rows,
        }
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
        """Takes over the compiled score of another evaluator if it has the same model, options, rows and layout.
        Otherwise it does nothing.
        """
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
        rows = rows_to_adapt(batch.inputs, batch.targets, batch.mask, batch.start_of_document, extras)
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
        variables, num_rows = self.convert_variables(variables), self.host_rows[1] - self.host_rows[0]
        memory = self._new_memory(num_rows)
        memory_bytes = count_bytes(memory) // num_rows
        totals = _Totals(Score(correct=0 if self._compute_accuracy else None), self._make_measure, observe)
        rates, complete = _Rates(is_strided=bool(self.reading.stride)), True
        pending: tuple[Batch, Any] | None = None
        for number, batch in enumerate(self.reading.batches(self.documents, self.host_rows)):
            if self.max_segments and number == self.max_segments:
                complete = False
                break
            if stop():
                raise EvaluationInterrupted
            if number == 0:
                totals.selectors = self._subsets_of(batch)
            with self._layout.active() if self._layout else contextlib.nullcontext():
                memory, scored, metrics = self._score(
                    variables, memory, *self._place_batch(batch), *self._retrieve_support(variables, batch)
                )
            totals.add_metrics(metrics)
            if pending is not None:  # The last batch is read back while this one runs.
                totals.add(*pending)
            pending = (batch, scored)
            if number == 0:
                jax.block_until_ready(scored)
                rates.start()
            else:
                rates.count(batch)
        if pending is not None:
            totals.add(*pending)
            rates.stop()
        measures = totals.measures()
        total, words = self._with_text_counts(totals.total) if complete else (totals.total, 0)
        answered = self._generate_answers(variables) if self._generate_answers and complete else GeneratedAnswers({})
        return EvaluationResult(
            **dataclasses.asdict(total),
            **{name: getattr(self.reading, name) for name in READING},
            complete=complete,
            words=words,
            subsets=totals.subsets,
            metrics=totals.mean_metrics(),
            measures={**measures, **answered.measures},
            notes=answered.notes,
            tokens_per_second=rates.tokens_per_second,
            examples_per_second=rates.examples_per_second,
            memory_bytes=memory_bytes,
        )

    def _with_text_counts(self, total: Score) -> tuple[Score, int]:
        """Adds the bytes of the text to the score of a whole split, and counts its words.

        Both are known only if every token of the documents was scored. The number of words is 0 if the corpus is not
        measured per word.
        """
        split, words = self.documents, 0
        if split.every_token and (self._num_words or not total.bytes):
            numbers = range(len(split))
            if total.targets == sum(split.num_tokens(i) for i in numbers):
                num_bytes = total.bytes or sum(split.num_bytes(i) for i in numbers)
                total, words = dataclasses.replace(total, bytes=num_bytes), self._num_words() if self._num_words else 0
        return total, words

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


class _Totals:
    """Sums over the scores of the batches of one evaluation.

    Attributes:
      total: Score of all targets so far.
      subsets: Score of the targets of each subset so far, by name.
      selectors: Functions that select the targets of each subset, by name.
    """

    def __init__(self, zero: Score, make_measure: Callable[[], TaskMetric] | None, observe: Observe):
        self.total, self._zero, self._observe = zero, zero, observe
        self.subsets: dict[str, Score] = {}
        self.selectors: Mapping[str, TargetSelector] = {}
        self._measure = make_measure() if make_measure else None
        self._metrics: Any = {}
        self._is_empty = True

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Adds the metrics that the model reports for a batch, without waiting for the device."""
        self._metrics = jax.tree.map(jnp.add, self._metrics, metrics) if self._metrics else metrics

    def add(self, batch: Batch, scored: BatchScore) -> None:
        """Reads the scores of a batch from the device and adds them."""
        scored, where = jax.device_get(scored), batch.weights > 0
        self._is_empty = False
        self.total = self.total.plus(scored.score(where, batch.extras))
        for name, select in self.selectors.items():
            part = scored.score(where & select(batch.extras), batch.extras)
            self.subsets[name] = self.subsets.get(name, self._zero).plus(part)
        if self._measure is not None:
            self._measure.observe(batch, scored.output)
        self._observe(batch, scored)

    def mean_metrics(self) -> dict[str, float]:
        """Returns the mean of each metric that the model reports, by name."""
        return {name: float(jax.device_get(value.mean())) for name, value in self._metrics.items()}

    def measures(self) -> Mapping[str, float]:
        """Returns the numbers of the task's own measure by name. Empty if it has none or no batch was read."""
        return {} if self._measure is None or self._is_empty else self._measure.result()


class _Rates:
    """Counts the tokens and examples of the batches after the first one, which compiles, and takes their time."""

    def __init__(self, *, is_strided: bool):
        self._is_strided, self._tokens, self._examples = is_strided, 0, 0
        self._begin, self._seconds = 0.0, 0.0

    def start(self) -> None:
        """Starts the clock."""
        self._begin = time.perf_counter()

    def count(self, batch: Batch) -> None:
        """Counts the examples of a batch and the tokens that it reads, or scores if windows overlap."""
        self._tokens += int((batch.weights > 0).sum() if self._is_strided else batch.mask.sum())
        self._examples += int((batch.extras[EXAMPLE] >= 0).sum()) if EXAMPLE in batch.extras else 0

    def stop(self) -> None:
        """Stops the clock."""
        self._seconds = time.perf_counter() - self._begin

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second. 0 if no tokens were counted."""
        return self._tokens / self._seconds if self._tokens else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples per second. 0 if no examples were counted."""
        return self._examples / self._seconds if self._examples else 0.0


def make_score(
    model: Any,
    *,
    compute_accuracy: bool = False,
    compute_parts: bool = False,
    feature_names: Sequence[str] = (),
    return_output: bool = False,
    change_memory: Callable[[Any], Any] | None = None,
    adapt_rows: PerRowAdaptation | None = None,
) -> Callable[..., Any]:
    """Makes the function that scores one segment of all rows:
    `score(variables, memory, inputs, targets, mask, start_of_document, extras) -> (memory, BatchScore, metrics)`.
    `compute_parts` adds log-probabilities by output memory.

    `extras` are the extras of the batch that the model takes, and `metrics` has a `WeightedSum` by name. If the support
    of an adaptation is retrieved outside of compiled programs, it is a last argument.

    Args:
      model: Model to evaluate.
      compute_accuracy: Whether to compute `BatchScore.correct`.
      compute_parts: Whether to compute `BatchScore.parts`.
      feature_names: Names of inner tensors of the model for `BatchScore.features`.
      return_output: Whether to return the output of the model as `BatchScore.output`.
      change_memory: Function that changes the memory before the segment reads it. None leaves it unchanged.
      adapt_rows: Test-time adaptation of the parameters to each row. None scores all rows with the same parameters.

    Raises:
      ValueError: `adapt_rows` for a model with a state.
    """

    def score(variables: Any, memory: Any, inputs: Any, targets: Any, mask: Any, start: Any, extras: Any = None) -> Any:
        options = {"start_of_document": start, "mask": mask, "deterministic": True}
        options |= {"extras": extras} if extras else {}
        memory = change_memory(memory) if change_memory else memory
        hidden, memory, aux = model.apply(variables, inputs, memory, **options)
        correct = None
        if compute_accuracy:
            log_probs = model.apply(variables, hidden, method="log_probs")
            nats = -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
            correct = jnp.argmax(log_probs, axis=-1) == targets
        else:
            nats = model.apply(variables, hidden, targets, method="token_nll")
        log_prob_parts = model.apply(variables, hidden, targets, method="token_log_probs") if compute_parts else None
        features = {name: aux.arrays[name] for name in feature_names}
        return (
            memory,
            BatchScore(nats, correct, log_prob_parts, features, hidden if return_output else None),
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

        rows = rows_to_adapt(inputs, targets, mask, start, extras)
        support = supports[0] if adapt_rows.runs_outside_jit else adapt_rows.retrieve_support(variables, rows)
        scored, metrics = adapt_rows.score_adapted(variables, rows, support, predict)
        return memory, scored, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), metrics)

    return score_with_adaptation
