"""Test-time adaptation of the parameters of a model to each row that it scores or answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from memjax.tasks.interface import ReadBatch, ScoredBatch
from memjax.training.objective import model_collections
from memjax.typing import Batch


class PerRowAdaptation(NamedTuple):
    """Functions that adapt parameters of a model to rows and score the rows with them (test-time adaptation). Every row
    has adapted parameters of its own, unless `width` is ''.

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


def make_read(model: Any, adapt_rows: PerRowAdaptation) -> ReadBatch:
    """Makes a function `read(variables, batch) -> ScoredBatch` that applies a model to a batch after adapting its
    parameters to each row.

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
        rows = rows_to_adapt(*arrays)
        return ScoredBatch(batch, *jax.device_get(compiled_answer(variables, rows, find(variables, rows))))

    return read


def rows_to_adapt(inputs: Any, targets: Any, mask: Any, start: Any, extras: Any) -> Batch:
    """Makes the batch of one segment that `PerRowAdaptation` takes. `start` is its `start_of_document`. Its weights are
    1 for rows with tokens and 0 for empty rows.
    """
    weights = jnp.broadcast_to(jnp.any(mask, axis=1, keepdims=True), targets.shape).astype(jnp.float32)
    return Batch(inputs, targets, mask, weights, start, extras or {})
