"""Generation with a datastore: before each token the host searches for neighbours of what the rows have read."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.inference.decoding import Prefix, Recall, prefill, read_tokens
from memjax.memory.interface import DecodeState
from memjax.memory.knn_lm import KNNMemory, Search, ValuesOf, search_neighbors
from memjax.memory.next_token_candidates import Prediction
from memjax.models.compiled_programs import jit_by_model
from memjax.models.feature_taps import add_mixtures, regroup_layers
from memjax.retrieval.keys import SPALM_TAP
from memjax.typing import EmptyState

__all__ = ["knn_retriever", "spalm_retriever"]


def knn_retriever(model: Any, search: Search, values: ValuesOf, *, metric: str = "squared_l2") -> Recall:
    """Makes the function `recall` of `stream_tokens` for kNN-LM, which searches with tensors of the model itself.
    `search` searches an index, `values` gives the tokens after its entries.

    Args:
      model: Language model with exactly one `KNNMemory` among its mixtures. See `memjax.models.add_mixtures`.
      search: Function that searches an index. See `search_neighbors`.
      values: Function from ids of entries to their tokens.
      metric: Metric of the scores that `search` returns, 'squared_l2' or 'inner_product'.

    Raises:
      ValueError: The model has no `KNNMemory`, or more than one.
    """
    positions = [position for position, memory in enumerate(model.mixtures) if isinstance(memory, KNNMemory)]
    if len(positions) != 1:
        raise ValueError(f"model: given {len(positions)} KNNMemory among its mixtures, allowed: 1; see add_mixtures")
    position, memory = positions[0], model.mixtures[positions[0]]
    read = jax.jit(memory.recall)

    def recall(prefix: Prefix, _: Sequence[Sequence[int]]) -> Prefix:
        prediction: Prediction = prefix.hidden
        before = prediction.recalled[position]
        neighbors = search_neighbors(np.asarray(before.query), search, values, memory.num_neighbors, metric=metric)
        candidates = read(jnp.asarray(neighbors.distances)[:, None], jnp.asarray(neighbors.values)[:, None])
        candidates = jax.tree.map(lambda leaf: leaf[:, 0], candidates)
        candidates = dataclasses.replace(candidates, query=before.query)
        recalled = (*prediction.recalled[:position], candidates, *prediction.recalled[position + 1 :])
        return Prefix(dataclasses.replace(prediction, recalled=recalled), prefix.state)

    return recall


def spalm_retriever(
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
    """Makes the function `recall` of `stream_tokens` for SPALM, which searches with the tensor `feature` of a frozen
    `key_model`. `search` searches an index, `values` gives the tokens after its entries.

    The frozen model reads along, and the function holds the state of its memories. So use it for one call of
    `stream_tokens` only.

    Args:
      model: Language model with `Spalm`.
      variables: Variables of the model.
      key_model: Frozen model, with the same vocabulary.
      key_variables: Variables of the frozen model.
      search: Function that searches an index. See `search_neighbors`.
      values: Function from ids of entries to their tokens.
      segment_length: Number of tokens in a segment of the frozen model.
      feature: Name of the frozen model's inner tensor that the keys of the store are.
      metric: Metric of the scores that `search` returns, 'squared_l2' or 'inner_product'.

    Raises:
      ValueError: The model has no `Spalm`, or it has mixtures, which would read hidden states without neighbours.
    """
    memory = model.output_memory
    if memory is None or not memory.required_extras or model.mixtures:
        kind, more = type(memory).__name__, len(model.mixtures)
        raise ValueError(f"model: given one with {kind} and {more} mixtures, allowed: with Spalm and none")
    reader = add_mixtures(key_model, KNNMemory(num_neighbors=1, query_feature=feature))
    key_variables = regroup_layers(key_variables, key_model, reader)
    frozen_prefix: Prefix | None = None

    def recall(prefix: Prefix, new: Sequence[Sequence[int]]) -> Prefix:
        nonlocal frozen_prefix
        if frozen_prefix is None:
            keys = prefill(reader, key_variables, new, segment_length=segment_length)
        else:
            tokens = jnp.asarray([list(row) or [0] for row in new], jnp.int32)
            keys = read_tokens(reader, key_variables, tokens, jnp.asarray([len(row) for row in new]), frozen_prefix)
        frozen_prefix, query = keys, keys.hidden.recalled[-1].query
        neighbors = search_neighbors(
            np.asarray(query), search, values, model.output_memory.num_neighbors, metric=metric
        )
        return Prefix(_refine(model, variables, prefix.hidden, jnp.asarray(neighbors.values)), prefix.state)

    return recall


@jit_by_model()
def _refine(model: Any, variables: Any, hidden: Any, values: Any) -> Any:
    """Adds neighbours to the last hidden states, which decoding computes without them."""
    no_state = DecodeState(EmptyState(), EmptyState(), jnp.zeros(len(hidden), jnp.int32))
    active = jnp.ones(len(hidden), bool)

    def read(module: Any) -> Any:
        options = {"active": active, "embed_output": module.embed_output, "neighbor_values": values[:, None]}
        return module.output_memory.decode(hidden[:, None], no_state, **options)[0][:, 0]

    return model.apply(variables, method=read)
