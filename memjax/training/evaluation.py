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
    """An evaluation ended early because its `stop` function returned True."""


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

        rows = rows_to_adapt(inputs, targets, mask, start, extras)
        support = supports[0] if adapt_rows.runs_outside_jit else adapt_rows.retrieve_support(variables, rows)
        scored, metrics = adapt_rows.score_adapted(variables, rows, support, predict)
        return memory, scored, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), metrics)

    return score_with_adaptation
