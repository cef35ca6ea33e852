"""Search for the neighbours of a whole corpus before training, so that SPALM's update needs no search.

    values = neighbors_of_split(source, "train", store, index, 4)
    write_neighbors(folder, "train", values, source.run.experiment.documents("train"))

A position of the training split is itself an entry of the store, at distance 0 and with the very token that is to be
predicted. The argument `own` says which entry that is. It is never among the neighbours of its position. By default no
other entry of its article is either, because positions of other splits have no such entries in the store. One
difference remains: the model that makes the keys has learned the training split. Keys of models that have not come from
cross-fitting, see `cross_fitted_neighbors`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from memjax.data.annotations import AnnotatedDocuments
from memjax.data.documents import Documents
from memjax.datastore.index import Index
from memjax.datastore.store import Progress, Store
from memjax.memory.knn_lm import BatchNeighbors, Search, ValuesOf, search_neighbors
from memjax.retrieval.building import check_not_in_store, check_store, make_header
from memjax.retrieval.keys import KeyExtractor, same_tokens
from memjax.settings.checks import require

__all__ = [
    "CrossFittingHalf",
    "exclude_nearby",
    "cross_fitted_neighbors",
    "precompute_neighbors",
    "exclude_same_document",
]

Exclude = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""A function that selects neighbours that must not be used, besides the position itself, which never is. It maps the
own token `[queries, 1]` and found tokens `[queries, neighbors]`, as numbers in the corpus, to bool `[queries,
neighbors]`."""
PIECE = 1 << 14
"""Number of stored keys that are read at once."""
MOST = 1 << 12
"""Largest number of neighbours that a search asks for in order to find enough that may be used."""


def exclude_nearby(distance: int) -> Exclude:
    """Makes an `Exclude` function from own tokens `[queries, 1]` and found tokens `[queries, neighbors]` to a mask of
    neighbours not to use: those up to `distance` tokens before or after the own token.

    Example:
      >>> exclude_nearby(2)(np.array([[7]]), np.array([[4, 5, 7, 9, 10]]))
      array([[False,  True,  True,  True, False]])
    """
    return lambda own, ids: np.abs(ids - own) <= distance


def exclude_same_document(offsets: Int[np.ndarray, " ends"]) -> Exclude:
    """Makes an `Exclude` function `(own, ids) -> mask`, which marks neighbours not to use: all of the query's own
    document. `offsets` has the first token of each document, and last the number of all tokens.

    Args:
      offsets: First token of each document, and the number of all tokens (`AnnotatedDocuments.offsets`).

    Example:
      >>> exclude_same_document(np.array([0, 3, 5]))(np.array([[1]]), np.array([[0, 2, 3]]))
      array([[ True,  True, False]])
    """
    document = lambda ids: np.searchsorted(offsets, ids, side="right")
    return lambda own, ids: document(own) == document(ids)


def neighbors_of_split(
    source: KeyExtractor,
    split: str,
    store: Store,
    index: Index,
    num_neighbors: int,
    *,
    exclude: Exclude | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Returns the tokens after the nearest contexts of every token of a split, int32 `[tokens, num_neighbors]`, for
    `memjax.data.write_neighbors`. -1 for none. A store of the split itself leaves out a token's own article.

    Args:
      source: Frozen model that made the store, with its way of reading texts.
      split: Split of the run's data. If the store was built from it, this is recognised, and no token is its own
        neighbour.
      store: Store with keys and values.
      index: Index of the store.
      num_neighbors: Number of neighbours of each token.
      exclude: Neighbours that must not be used if the store was built from this split. None = all of the own article.
        `exclude_nearby(n)` = the n tokens before and after. `exclude_nearby(0)` = the token itself only.
      progress: Function called with 'neighbours', the number of entries searched so far, and the number of all.

    Returns:
      int32 `[tokens, num_neighbors]` in the order of the documents, nearest first. -1 where there are no more
      neighbours, and for tokens that are not scored.

    Raises:
      ValueError: The store belongs to another model, tokenizer or protocol, or holds the split to be evaluated. Or
        `exclude` is given for a split that the store was not built from, or is needed because that split is one
        article.
    """
    check_store(source, store)
    if split != "train":
        check_not_in_store(source, store, split)
    stored = store.header.data == make_header(source, split, num_shards=1).data
    if stored and exclude is None:
        articles = source.articles(split)
        if len(articles) == 2:
            allowed = "exclude_nearby(TOKENS), or `--apart TOKENS` of the command, to leave out those around each token"
            raise ValueError(f"exclude: given None for the {split} split, which is one article, allowed: {allowed}")
        exclude = exclude_same_document(articles)
    layout = {"rows": store.header.rows, "num_shards": store.header.num_shards} if stored else {}
    numbers = source.numbers(split, **layout)
    total = int(AnnotatedDocuments(source.run.experiment.documents(split)).offsets[-1])
    values, done = np.full((total, num_neighbors), -1, np.int32), 0
    options = {"numbers": numbers, "exclude": exclude, "metric": index.metric}
    for keys, entries in _stored_pieces(store) if stored else ((part.keys, None) for part in source.reader(split)):
        result = precompute_neighbors(keys, index.search, store.values, num_neighbors, own=entries, **options)
        values[numbers[done : done + len(keys)]] = result.values
        done += len(keys)
        if progress is not None:
            progress("neighbours", done, len(numbers))
    return values


class CrossFittingHalf(NamedTuple):
    """A model trained on one half of the training split, with a store of that half and its index.

    Attributes:
      source: Run that was trained with `data.train_half`.
      store: Store of the run's training split, with keys of its model.
      index: Index of the store.
    """

    source: KeyExtractor
    store: Store
    index: Index


def cross_fitted_neighbors(
    first: CrossFittingHalf, second: CrossFittingHalf, num_neighbors: int, *, progress: Progress | None = None
) -> tuple[np.ndarray, Documents]:
    """Finds the tokens that follow the neighbours of a training split, each half with the model of the other half.
    Returns them as `neighbors_of_split` does, and the split's documents.

    Each half is read by the model that was trained on the other half, which searches the store of that other half. So
    the queries come from text that is new to the model, as they do for a split to be evaluated. The neighbours come
    from text that the model has learned, and no article is among its own neighbours.

    Args:
      first: Model and store with `data.train_half` 'first'.
      second: Model and store with `data.train_half` 'second'.
      num_neighbors: Number of neighbours of each token.
      progress: Function called with 'neighbours', the number of entries searched so far, and the number of all.

    Returns:
      The result of `neighbors_of_split` for the whole training split, and its documents.

    Raises:
      ValueError: The runs have other halves, a store holds other texts than its run was trained on, or the halves
        together are not the training split.
    """
    for half, name in ((first, "first"), (second, "second")):
        half_setting = half.source.run.experiment.config.data.train_half
        require(half_setting == name, "data.train_half", half_setting, f"{name!r} in the run of the {name} half")
        if half.store.header.data != make_header(half.source, "train", num_shards=1).data:
            raise ValueError(f"datastore: {half.store.path} is not of what its run was trained on, allowed: its half")
    texts = [half.source.run.experiment.documents("train") for half in (first, second)]
    whole = first.source.run.experiment.reopen("train", train_half="")
    if not same_tokens(texts, whole):
        raise ValueError("data.train_half: the two halves are not the training split, allowed: runs of the same data")
    parts = []
    for text, reader in zip(texts, (second, first), strict=True):
        source = reader.source.with_documents({"train": text})
        neighbors = neighbors_of_split(source, "train", reader.store, reader.index, num_neighbors, progress=progress)
        parts.append(neighbors)
    return np.concatenate(parts), whole


def _stored_pieces(store: Store) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the keys of a store piece by piece, with the numbers of their entries."""
    for begin in range(0, store.entries, PIECE):
        entries = np.arange(begin, min(begin + PIECE, store.entries))
        yield store.keys(entries), entries


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
) -> BatchNeighbors:
    """Finds the neighbours of every position of a corpus from its `keys`, and returns `BatchNeighbors`. `own` are the
    positions' entries in the store, `numbers` the token numbers of entries, for `exclude`.

    Args:
      keys: `[queries, dim]`, the key of the frozen model at each position.
      search: Function that searches an index. See `search_neighbors`.
      values: Function from ids of entries to their tokens.
      num_neighbors: Number of neighbours of each position.
      own: `[queries]`, the entry of the store that each position is. None = the corpus is not in the store.
      numbers: `[entries]`, the token number of each entry, which `exclude` gets. None = entries are in the order of
        tokens.
      exclude: Further neighbours that must not be used, from `exclude_nearby` or `exclude_same_document`. Needs `own`.
      metric: Metric of the scores that `search` returns, 'squared_l2' or 'inner_product'.
      queries_at_once: Number of queries searched at once.

    Returns:
      Neighbours of all positions, in their order. Missing ones have id and value -1.

    Raises:
      ValueError: `own` has another length than `keys`, or `exclude` is given without it.
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
            parts.append(_search_without_self(queries, np.asarray(own[rows], np.int64), ask, num_neighbors, more))
    return BatchNeighbors(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _search_without_self(
    queries: np.ndarray,
    own: np.ndarray,
    ask: Callable[[np.ndarray, int], BatchNeighbors],
    num_neighbors: int,
    exclude: Exclude | None,
) -> BatchNeighbors:
    """Searches for neighbours other than the query itself.

    Asks for one neighbour more than is needed, and for twice as many again where too few of them may be used.
    """
    count = num_neighbors + 1
    shape = (len(queries), num_neighbors)
    result = BatchNeighbors(np.zeros(shape, np.float32), np.full(shape, -1, np.int32), np.full(shape, -1, np.int64))
    waiting = np.arange(len(queries))
    while len(waiting):
        batch = ask(queries[waiting], count)
        own_entries = own[waiting][:, None]
        usable = (batch.ids >= 0) & (batch.ids != own_entries)
        if exclude is not None:
            usable &= ~exclude(own_entries, batch.ids)
        order = np.argsort(~usable, axis=1, kind="stable")[:, :num_neighbors]
        chosen = np.take_along_axis(usable, order, axis=1)
        for target, array, missing in zip(result, batch, (0, -1, -1), strict=True):
            target[waiting] = np.where(chosen, np.take_along_axis(array, order, axis=1), missing)
        exhausted = (batch.ids < 0).any(axis=1)
        waiting = waiting[~chosen.all(axis=1) & ~exhausted]
        if count >= MOST:
            break
        count = min(2 * count, MOST)
    return result
