"""Neighbours of a whole corpus, found before training: SPALM's step then needs no search.

    found = precompute_neighbors(store_keys, index.search, values, 4, own=np.arange(len(store_keys)))
    write_neighbors(folder, "train", found.values, train_documents)

A position of the training split is itself an entry of the store, at distance 0 and with the very token that is to be
predicted: `own` says which entry that is, and it is never among a position's neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int

from memjax.memory.knn_lm import Neighbors, Search, ValuesOf, search_neighbors

Exclude = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(own entry `[queries, 1]`, found entries `[queries, neighbors]`) -> bool `[queries, neighbors]`, which must not be
used. An entry's own is excluded anyway."""
MOST = 1 << 12
"""neighbours that are asked for at most, to have enough that may be used"""


def near(distance: int) -> Exclude:
    """Excludes the entries that stand up to `distance` before or after one's own.

    Example:
      >>> near(2)(np.array([[7]]), np.array([[4, 5, 7, 9, 10]]))
      array([[False,  True,  True,  True, False]])
    """
    return lambda own, ids: np.abs(ids - own) <= distance


def same_document(offsets: Int[np.ndarray, " ends"]) -> Exclude:
    """Excludes the entries of one's own document.

    Args:
      offsets: first entry of each document, and their number (`AnnotatedDocuments.offsets`).

    Example:
      >>> same_document(np.array([0, 3, 5]))(np.array([[1]]), np.array([[0, 2, 3]]))
      array([[ True,  True, False]])
    """
    document = lambda ids: np.searchsorted(offsets, ids, side="right")
    return lambda own, ids: document(own) == document(ids)


def precompute_neighbors(
    keys: Any,
    search: Search,
    values: ValuesOf,
    num_neighbors: int,
    *,
    own: Int[np.ndarray, " queries"] | None = None,
    exclude: Exclude | None = None,
    metric: str = "squared_l2",
    queries_at_once: int = 1024,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Neighbors:
    """The neighbours of every position of a corpus.

    Args:
      keys: `[queries, dim]`, the frozen model's state at each position: anything that can be sliced, also on disk.
      search: as in `search_neighbors`, like `values` and `metric`.
      values: ids to tokens.
      num_neighbors: of each position.
      own: the entry of the store that each position is; None = the corpus is not in the store.
      exclude: more entries that must not be used, from `near` or `same_document`; needs `own`.
      metric: of the scores.
      queries_at_once: searched together.
      progress: told what is done, how much, and of how much.

    Returns:
      Neighbours of all positions, in their order; -1 where fewer may be used.

    Raises:
      ValueError: `own` of another length, or `exclude` without it.
    """
    total = len(keys)
    if own is not None and len(own) != total:
        raise ValueError(f"own: given {len(own)} entries, allowed: {total}, one for each position")
    if own is None and exclude is not None:
        raise ValueError("exclude: given without own, allowed: with the entry that each position is")
    parts = []
    for begin in range(0, total, queries_at_once):
        rows = slice(begin, min(begin + queries_at_once, total))
        ask = lambda queries, count: search_neighbors(queries, search, values, count, metric=metric)
        queries = np.asarray(keys[rows])
        if own is None:
            parts.append(ask(queries, num_neighbors))
        else:
            parts.append(_search_others(queries, np.asarray(own[rows], np.int64), ask, num_neighbors, exclude))
        if progress is not None:
            progress("neighbours", rows.stop, total)
    return Neighbors(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _search_others(
    queries: np.ndarray,
    own: np.ndarray,
    ask: Callable[[np.ndarray, int], Neighbors],
    num_neighbors: int,
    exclude: Exclude | None,
) -> Neighbors:
    """Asks for one more than is needed, and for twice as many where that was not enough."""
    count = num_neighbors + 1
    found = Neighbors(
        np.zeros((len(queries), num_neighbors), np.float32),
        np.full((len(queries), num_neighbors), -1, np.int32),
        np.full((len(queries), num_neighbors), -1, np.int64),
    )
    waiting = np.arange(len(queries))
    while len(waiting):
        there = ask(queries[waiting], count)
        mine = own[waiting][:, None]
        usable = (there.ids >= 0) & (there.ids != mine)
        if exclude is not None:
            usable &= ~exclude(mine, there.ids)
        order = np.argsort(~usable, axis=1, kind="stable")[:, :num_neighbors]
        chosen = np.take_along_axis(usable, order, axis=1)
        for into, array, nothing in zip(found, there, (0, -1, -1), strict=True):
            into[waiting] = np.where(chosen, np.take_along_axis(array, order, axis=1), nothing)
        exhausted = (there.ids < 0).any(axis=1)
        waiting = waiting[~chosen.all(axis=1) & ~exhausted]
        if count >= MOST:
            break
        count = min(2 * count, MOST)
    return found
