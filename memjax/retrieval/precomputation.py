"""Neighbours of a whole corpus, found before training: SPALM's step then needs no search.

    values = neighbors_of_split(source, "train", store, index, 4)
    write_neighbors(folder, "train", values, source.run.experiment.documents("train"))

A position of the training split is itself an entry of the store, at distance 0 and with the very token that is to be
predicted: `own` says which entry that is, and it is never among a position's neighbours. Nor is, unless that is asked
for, anything else of its article: no position of another split has that in the store. What is left is that the model
that makes the keys has learned the training split; keys by halves (`neighbors_by_halves`) are of models that have not.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from memjax.data.annotations import AnnotatedDocuments
from memjax.data.documents import Documents
from memjax.datastore.index import Index
from memjax.datastore.store import Progress, Store
from memjax.memory.knn_lm import Neighbors, Search, ValuesOf, search_neighbors
from memjax.retrieval.building import check_store, check_unread, make_header
from memjax.retrieval.keys import KeySource, same_tokens
from memjax.settings.relations import require

__all__ = ["Half", "near", "neighbors_by_halves", "precompute_neighbors", "same_document"]

Exclude = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(own token `[queries, 1]`, found tokens `[queries, neighbors]`, as numbers in the corpus) -> bool
`[queries, neighbors]`, which must not be used. The own one never is."""
PIECE = 1 << 14
"""stored keys that are read together"""
MOST = 1 << 12
"""neighbours that are asked for at most, to have enough that may be used"""


def near(distance: int) -> Exclude:
    """Excludes the tokens that stand up to `distance` before or after one's own.

    Example:
      >>> near(2)(np.array([[7]]), np.array([[4, 5, 7, 9, 10]]))
      array([[False,  True,  True,  True, False]])
    """
    return lambda own, ids: np.abs(ids - own) <= distance


def same_document(offsets: Int[np.ndarray, " ends"]) -> Exclude:
    """Excludes the tokens of one's own document.

    Args:
      offsets: first token of each document, and the number of all (`AnnotatedDocuments.offsets`).

    Example:
      >>> same_document(np.array([0, 3, 5]))(np.array([[1]]), np.array([[0, 2, 3]]))
      array([[ True,  True, False]])
    """
    document = lambda ids: np.searchsorted(offsets, ids, side="right")
    return lambda own, ids: document(own) == document(ids)


def neighbors_of_split(
    source: KeySource,
    split: str,
    store: Store,
    index: Index,
    num_neighbors: int,
    *,
    exclude: Exclude | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """The tokens after the nearest contexts of every token of a split, for `memjax.data.write_neighbors`.

    Args:
      source: the frozen model that made the store, and how it reads.
      split: of its data. One that the store was built from is recognised: no token is its own neighbour then.
      store: keys and values.
      index: of the store.
      num_neighbors: of each token.
      exclude: what must not be used of the store's own split; None = the own article, `near(n)` = the tokens up to n
        before and after, `near(0)` = the own one only.
      progress: told what is done, how much, and of how much.

    Returns:
      int32 `[tokens, num_neighbors]` in the order of the documents, nearest first; -1 where there are none, and for
      tokens that are not scored.

    Raises:
      ValueError: a store of another model, tokenizer or protocol, or of a split to be evaluated; `exclude` for a split
        that is not the store's own; an own split of one article.
    """
    check_store(source, store)
    if split != "train":
        check_unread(source, store, split)
    stored = store.header.data == make_header(source, split, num_shards=1).data
    if stored and exclude is None:
        articles = source.articles(split)
        if len(articles) == 2:
            raise ValueError(f"apart: the {split} split is one article, allowed: the tokens to leave out around each")
        exclude = same_document(articles)
    layout = {"rows": store.header.rows, "num_shards": store.header.num_shards} if stored else {}
    numbers = source.numbers(split, **layout)
    total = int(AnnotatedDocuments(source.run.experiment.documents(split)).offsets[-1])
    values, done = np.full((total, num_neighbors), -1, np.int32), 0
    named = {"numbers": numbers, "exclude": exclude, "metric": index.metric}
    for keys, own in _stored_pieces(store) if stored else ((part.keys, None) for part in source.reader(split)):
        found = precompute_neighbors(keys, index.search, store.values, num_neighbors, own=own, **named)
        values[numbers[done : done + len(keys)]] = found.values
        done += len(keys)
        if progress is not None:
            progress("neighbours", done, len(numbers))
    return values


class Half(NamedTuple):
    """A model that was trained on one half of the training split, and that half as its store.

    Attributes:
      source: the run, with `data.half`.
      store: of its training split, with its keys.
      index: of the store.
    """

    source: KeySource
    store: Store
    index: Index


def neighbors_by_halves(
    first: Half, second: Half, num_neighbors: int, *, progress: Progress | None = None
) -> tuple[np.ndarray, Documents]:
    """Neighbours of a training split by keys of models that have not learned it (cross-fitting).

    Each half is read by the model of the other, which searches its own half, as it does for a split to be evaluated. So
    the text that is asked for is new to the model, what is found is not, and no article is among its own neighbours.

    Args:
      first: with `data.half` 'first'.
      second: with `data.half` 'second'.
      num_neighbors: of each token.
      progress: told what is done, how much, and of how much.

    Returns:
      As `neighbors_of_split` of the whole training split, and its documents.

    Raises:
      ValueError: other halves, stores of other texts than their models were trained on, or texts that do not join.
    """
    for half, wanted in ((first, "first"), (second, "second")):
        given = half.source.run.experiment.config.data.half
        require(given == wanted, "data.half", given, f"{wanted!r} in the run of the {wanted} half")
        if half.store.header.data != make_header(half.source, "train", num_shards=1).data:
            raise ValueError(f"datastore: {half.store.path} is not of what its run was trained on, allowed: its half")
    texts = [half.source.run.experiment.documents("train") for half in (first, second)]
    whole = first.source.run.experiment.reopened("train", half="")
    if not same_tokens(texts, whole):
        raise ValueError("data.half: the two halves are not the training split, allowed: runs of the same data")
    parts = []
    for text, reader in zip(texts, (second, first), strict=True):
        source = reader.source.with_documents({"train": text})
        found = neighbors_of_split(source, "train", reader.store, reader.index, num_neighbors, progress=progress)
        parts.append(found)
    return np.concatenate(parts), whole


def _stored_pieces(store: Store) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The keys of a store, and which entries they are."""
    for begin in range(0, store.entries, PIECE):
        own = np.arange(begin, min(begin + PIECE, store.entries))
        yield store.keys(own), own


def precompute_neighbors(
    keys: np.ndarray,
    search: Search,
    values: ValuesOf,
    num_neighbors: int,
    *,
    own: Int[np.ndarray, " queries"] | None = None,
    numbers: Int[np.ndarray, " entries"] | None = None,
    exclude: Exclude | None = None,
    metric: str = "squared_l2",
    queries_at_once: int = 1024,
) -> Neighbors:
    """The neighbours of every position of a corpus.

    Args:
      keys: `[queries, dim]`, the frozen model's state at each position.
      search: as in `search_neighbors`, like `values` and `metric`.
      values: ids to tokens.
      num_neighbors: of each position.
      own: the entry of the store that each position is; None = the corpus is not in the store.
      numbers: the token that each entry is, which `exclude` is asked about; None = entries are in the order of tokens.
      exclude: more tokens that must not be used, from `near` or `same_document`; needs `own`.
      metric: of the scores.
      queries_at_once: searched together.

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
    number = (lambda ids: ids) if numbers is None else lambda ids: numbers[ids]
    more = None if exclude is None else lambda own, ids: exclude(number(own), number(ids))
    for begin in range(0, total, queries_at_once):
        rows = slice(begin, min(begin + queries_at_once, total))
        ask = lambda queries, count: search_neighbors(queries, search, values, count, metric=metric)
        queries = np.asarray(keys[rows])
        if own is None:
            parts.append(ask(queries, num_neighbors))
        else:
            parts.append(_search_others(queries, np.asarray(own[rows], np.int64), ask, num_neighbors, more))
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
    shape = (len(queries), num_neighbors)
    found = Neighbors(np.zeros(shape, np.float32), np.full(shape, -1, np.int32), np.full(shape, -1, np.int64))
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
