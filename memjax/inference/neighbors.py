"""Generation with a datastore: between two tokens the host searches with what the model has just computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.inference.decoding import Prefix
from memjax.memory.knn_lm import KNNMemory, Search, ValuesOf, search_neighbors
from memjax.memory.mixtures import Prediction


def knn_recall(
    model: Any, search: Search, values: ValuesOf, *, metric: str = "squared_l2"
) -> Callable[[Prefix], Prefix]:
    """What `stream_tokens` calls before every token (`recall`): it searches a store for each row's neighbours.

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

    def recall(prefix: Prefix) -> Prefix:
        prediction: Prediction = prefix.hidden
        before = prediction.recalled[place]
        there = search_neighbors(np.asarray(before.query), search, values, memory.num_neighbors, metric=metric)
        found = read(jnp.asarray(there.distances)[:, None], jnp.asarray(there.values)[:, None])
        found = jax.tree.map(lambda leaf: leaf[:, 0], found)
        found = dataclasses.replace(found, query=before.query)
        recalled = (*prediction.recalled[:place], found, *prediction.recalled[place + 1 :])
        return Prefix(dataclasses.replace(prediction, recalled=recalled), prefix.state)

    return recall
