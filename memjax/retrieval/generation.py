"""Generation with a datastore: between two tokens the host searches for what the rows have read."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.inference.decoding import Prefix, Recall, prefill, read_tokens
from memjax.memory.contract import DecodeState
from memjax.memory.knn_lm import KNNMemory, Search, ValuesOf, search_neighbors
from memjax.memory.mixtures import Prediction
from memjax.models.features import add_mixtures, regroup
from memjax.programs import jit_by_model
from memjax.retrieval.keys import SPALM_TAP
from memjax.typing import EmptyState

__all__ = ["knn_recall", "spalm_recall"]


def knn_recall(model: Any, search: Search, values: ValuesOf, *, metric: str = "squared_l2") -> Recall:
    """The `recall` of `stream_tokens` for kNN-LM: searches with what the model itself has just computed.

    Args:
      model: a language model with a `KNNMemory` among its mixtures (`memjax.models.add_mixtures`).
      search: as in `search_neighbors`, like `values` and `metric`.
      values: ids to tokens.
      metric: of the scores.

    Raises:
      ValueError: a model without such a memory.
    """
    places = [place for place, memory in enumerate(model.mixtures) if isinstance(memory, KNNMemory)]
    if len(places) != 1:
        raise ValueError(f"model: given {len(places)} KNNMemory among its mixtures, allowed: 1; see add_mixtures")
    place, memory = places[0], model.mixtures[places[0]]
    read = jax.jit(memory.recall)

    def recall(prefix: Prefix, _: Sequence[Sequence[int]]) -> Prefix:
        prediction: Prediction = prefix.hidden
        before = prediction.recalled[place]
        there = search_neighbors(np.asarray(before.query), search, values, memory.num_neighbors, metric=metric)
        found = read(jnp.asarray(there.distances)[:, None], jnp.asarray(there.values)[:, None])
        found = jax.tree.map(lambda leaf: leaf[:, 0], found)
        found = dataclasses.replace(found, query=before.query)
        recalled = (*prediction.recalled[:place], found, *prediction.recalled[place + 1 :])
        return Prefix(dataclasses.replace(prediction, recalled=recalled), prefix.state)

    return recall


def spalm_recall(
    model: Any,
    variables: Any,
    key_model: Any,
    key_variables: Any,
    search: Search,
    values: ValuesOf,
    *,
    segment_length: int,
    feature: str = SPALM_TAP,
    metric: str = "squared_l2",
) -> Recall:
    """The `recall` of `stream_tokens` for SPALM: a frozen model reads along, and searches with what it computes.

    For one call of `stream_tokens`: it holds what the frozen model has read.

    Args:
      model: a language model with `Spalm`.
      variables: its variables.
      key_model: the frozen model, with the same vocabulary.
      key_variables: its variables.
      search: as in `search_neighbors`, like `values` and `metric`.
      values: ids to tokens.
      segment_length: of the frozen model's segments.
      feature: its inner tensor that the keys of the store are.
      metric: of the scores.

    Raises:
      ValueError: a model without `Spalm`, or with mixtures, which would have read hidden states without neighbours.
    """
    memory = model.output_memory
    if memory is None or not memory.needs or model.mixtures:
        kind, more = type(memory).__name__, len(model.mixtures)
        raise ValueError(f"model: given one with {kind} and {more} mixtures, allowed: with Spalm and none")
    reader = add_mixtures(key_model, KNNMemory(num_neighbors=1, feature=feature))
    key_variables = regroup(key_variables, key_model, reader)
    held: Prefix | None = None

    def recall(prefix: Prefix, new: Sequence[Sequence[int]]) -> Prefix:
        nonlocal held
        if held is None:
            keys = prefill(reader, key_variables, new, segment_length=segment_length)
        else:
            tokens = jnp.asarray([list(row) or [0] for row in new], jnp.int32)
            keys = read_tokens(reader, key_variables, tokens, jnp.asarray([len(row) for row in new]), held)
        held, query = keys, keys.hidden.recalled[-1].query
        found = search_neighbors(np.asarray(query), search, values, model.output_memory.num_neighbors, metric=metric)
        return Prefix(_refine(model, variables, prefix.hidden, jnp.asarray(found.values)), prefix.state)

    return recall


@jit_by_model()
def _refine(model: Any, variables: Any, hidden: Any, values: Any) -> Any:
    """The last hidden states with their neighbours, which decoding alone leaves out."""
    nothing = DecodeState(EmptyState(), EmptyState(), jnp.zeros(len(hidden), jnp.int32))
    active = jnp.ones(len(hidden), bool)

    def read(module: Any) -> Any:
        named = {"active": active, "embed_output": module.embed_output, "neighbor_values": values[:, None]}
        return module.output_memory.decode(hidden[:, None], nothing, **named)[0][:, 0]

    return model.apply(variables, method=read)
