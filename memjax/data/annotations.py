"""Documents with more to each token: numbers, neighbours, whatever was worked out for a whole split beforehand."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax.data.documents import Documents, Examples, Split

__all__ = ["AnnotatedDocuments", "open_neighbors", "target_shares", "unlike_neighbors", "write_neighbors"]

NUMBER = "target_number"
"""The annotation that says which token of the split a target is: int64, counted in the order of the documents."""
NEIGHBORS = "neighbor_values"
"""The annotation with the tokens after the contexts that are similar to that before a target: int32 `[neighbors]`,
nearest first, -1 = none."""
MOST_APART = 0.01
"""difference in the share of targets among neighbours, of training and validation, that is not worth a word"""


class AnnotatedDocuments(Documents):
    """Documents with annotations from arrays over all tokens of a split, in the order of the documents.

    Example:
      >>> from memjax.data.documents import ArrayDocuments
      >>> texts, scores = ArrayDocuments([[5, 6], [7]]), np.array([0.1, 0.2, 0.3])
      >>> documents = AnnotatedDocuments(texts, {"score": scores}, numbers=True)
      >>> documents.annotate(1)
      {'score': array([0.3]), 'target_number': array([2])}
    """

    def __init__(
        self, documents: Split, arrays: Mapping[str, Any] | None = None, *, numbers: bool = False, version: str = ""
    ):
        """Reads nothing yet but the lengths of the documents.

        Args:
          documents: tokens, and annotations of their own, which stay.
          arrays: name -> array with one entry per token of the split (a memory-mapped one is read in pieces).
          numbers: also annotate each token with its number, under `NUMBER`.
          version: of the arrays; documents of another one have another fingerprint.

        Raises:
          ValueError: examples, an array of another length, or a name that the documents have already.
        """
        if isinstance(documents, Examples):
            kind = type(documents).__name__
            raise ValueError(f"neighbours: given {kind}, allowed: documents, of which every token is a target")
        self.documents, self._arrays, self._numbers = documents, dict(arrays or {}), numbers
        self.sliced = documents.sliced
        sizes = [documents.num_tokens(index) for index in range(len(documents))]
        self.offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        for name, array in self._arrays.items():
            if len(array) != self.offsets[-1]:
                raise ValueError(f"{name}: given {len(array)} entries, allowed: {self.offsets[-1]}, one for each token")
        added = [*sorted(self._arrays), *([NUMBER] if numbers else [])]
        if taken := set(documents.annotate(0)) & set(added) if len(documents) else set():
            raise ValueError(f"arrays: given {sorted(taken)[0]!r}, which the documents have; give it another name")
        own, names = documents.fingerprint, "/".join(added)
        self.fingerprint = own and hashlib.sha256(f"{own}/{names}{version}".encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self.documents[index]

    def num_bytes(self, index: int, /) -> int:
        return self.documents.num_bytes(index)

    def num_tokens(self, index: int, /) -> int:
        return int(self.offsets[index + 1] - self.offsets[index])

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        return {**self.documents.annotate(index), **self._more(int(self.offsets[index]), int(self.offsets[index + 1]))}

    def window(self, index: int, start: int, stop: int, /) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Tokens `[start, stop)` of a document with their annotations."""
        tokens, own = self.documents.window(index, start, stop)
        begin = int(self.offsets[index]) + start
        return tokens, {**own, **self._more(begin, begin + len(tokens))}

    def context(self, index: int, /) -> dict[str, np.ndarray]:
        return self.documents.context(index)

    def name(self, index: int, /) -> str:
        return self.documents.name(index)

    def tokens(self, begin: int, end: int) -> np.ndarray:
        """Tokens `[begin, end)` of the split, from one document into the next.

        Example:
          >>> from memjax.data.documents import ArrayDocuments
          >>> AnnotatedDocuments(ArrayDocuments([[5, 6], [7, 8, 9]])).tokens(1, 4)
          array([6, 7, 8], dtype=int32)
        """
        parts = [np.zeros(0, np.int32)]
        while begin < end:
            index = int(np.searchsorted(self.offsets, begin, side="right")) - 1
            first, stop = int(self.offsets[index]), min(end, int(self.offsets[index + 1]))
            parts.append(self.documents.window(index, begin - first, stop - first)[0])
            begin = stop
        return np.concatenate(parts)

    def before(self, number: int, length: int) -> np.ndarray:
        """The up to `length` tokens that stand before token `number` in its document.

        Example:
          >>> from memjax.data.documents import ArrayDocuments
          >>> AnnotatedDocuments(ArrayDocuments([[5, 6], [7, 8, 9]])).before(4, 3)
          array([7, 8], dtype=int32)
        """
        if not 0 <= number < self.offsets[-1]:
            raise ValueError(
                f"number: given {number}, allowed: 0 to {self.offsets[-1] - 1}, the tokens of the documents"
            )
        index = int(np.searchsorted(self.offsets, number, side="right")) - 1
        place = int(number - self.offsets[index])
        return self.window(index, max(place - length, 0), place)[0]

    def _more(self, begin: int, end: int) -> dict[str, np.ndarray]:
        arrays = {name: np.asarray(array[begin:end]) for name, array in self._arrays.items()}
        return {**arrays, **({NUMBER: np.arange(begin, end)} if self._numbers else {})}


def write_neighbors(folder: Path | str, split: str, values: Any, documents: Documents, *, store: str = "") -> None:
    """Keeps the neighbours of every token of a split, for `open_neighbors`; see `memjax.retrieval.precomputation`.

    Args:
      folder: is made where it is missing.
      split: 'train', 'validation' or 'test'.
      values: int `[tokens, neighbors]`, tokens after similar contexts, nearest first; -1 = none.
      documents: whose tokens they belong to, in their order.
      store: which one they were found in (`Store.fingerprint`); a folder holds those of one.

    Raises:
      ValueError: another number of tokens, what are no tokens, or a folder with neighbours from another store (a store
        has one key, so that those of another key are of another store).
    """
    values = np.asarray(values)
    total = sum(documents.num_tokens(index) for index in range(len(documents)))
    if values.ndim != 2 or len(values) != total or values.dtype.kind != "i":
        given = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"values: given {given}, allowed: integers [{total}, neighbours], one row for each token")
    if values.size and values.min() < -1:
        raise ValueError(f"values: given {values.min()}, allowed: tokens, and -1 where there is none")
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for other, about in _read_neighbors(folder).items():
        if other != split and about["store"] != store:
            raise ValueError(f"store: given {store!r}, allowed: {about['store']!r}, the one of {folder / other}.json")
    values = np.ascontiguousarray(values, np.int32)
    (folder / f"{split}.json").unlink(missing_ok=True)  # written last: without it the file is not finished
    np.save(folder / f"{split}.npy", values)
    about = {
        "documents": documents.fingerprint,
        "neighbors": values.shape[1],
        "store": store,
        "target_among": _target_among(values, documents),
        "sha256": hashlib.sha256(values.data).hexdigest(),
    }
    (folder / f"{split}.json").write_text(json.dumps(about) + "\n", encoding="utf-8")


def open_neighbors(folder: Path | str, split: str, documents: Documents) -> AnnotatedDocuments:
    """The documents of a split with their neighbours, which stay on disk and are compared with their checksum once.

    Raises:
      ValueError: the folder has none for this split, those of other documents, of two stores, or damaged ones.
    """
    path, found = Path(folder).expanduser() / f"{split}.json", _read_neighbors(folder)
    if split not in found:
        raise ValueError(
            f"neighbors: {folder} has none for the split {split}, allowed: a folder from `memjax datastore neighbors`"
        )
    about, own = found[split], documents.fingerprint
    if about["documents"] != own:
        raise ValueError(f"neighbors: {path} is of other documents ({about['documents']}, not {own})")
    if stores := sorted({one["store"] for one in found.values()} - {about["store"]}):
        raise ValueError(f"neighbors: {path} is of store {about['store']}, allowed: {stores[0]}, as the other splits")
    try:
        values = np.load(path.with_suffix(".npy"), mmap_mode="r")
        whole = hashlib.sha256(values.data).hexdigest() == about["sha256"]
    except (OSError, EOFError, ValueError):  # not there, or not of the length that it begins with
        whole = False
    if not whole:
        raise ValueError(
            f"neighbors: {path.with_suffix('.npy')} is damaged; find them again by `memjax datastore neighbors`"
        )
    return AnnotatedDocuments(documents, {NEIGHBORS: values}, version=about["sha256"])


def target_shares(folder: Path | str) -> dict[str, list[float]]:
    """Split -> share of its tokens, of those with neighbours, that are among the nearest 1, 2, ... of them."""
    return {split: about["target_among"] for split, about in _read_neighbors(folder).items() if "target_among" in about}


def unlike_neighbors(folder: Path | str, num_neighbors: int) -> str:
    """A line where training finds its targets among the neighbours more often, or less, than validation; else ''.

    Args:
      folder: of the neighbours.
      num_neighbors: that are read of each token.
    """
    shares = target_shares(folder)
    if not {"train", "validation"} <= shares.keys():
        return ""
    train, validation = (shares[split][:num_neighbors][-1] for split in ("train", "validation"))
    if abs(train - validation) <= MOST_APART:
        return ""
    found = (
        f"data.neighbors: the target is among the neighbours of {train:.1%} of the training tokens and of "
        f"{validation:.1%} of those of validation: a model learns to trust them"
    )
    if train < validation:
        return f"{found} less than it could; rather search the training split in as large a store"
    return (
        f"{found} more than it should; rather without the own article, by halves (`memjax datastore neighbors "
        "--other`), or with model.output.neighbor_dropout"
    )


def _target_among(values: np.ndarray, documents: Documents) -> list[float]:
    """Share of the tokens with neighbours that are among the nearest 1, 2, ... of them."""
    hits, counted, begin = np.zeros(values.shape[1], np.int64), 0, 0
    for index in range(len(documents)):
        tokens = np.asarray(documents[index])
        there = values[begin : begin + len(tokens)]
        hits += np.logical_or.accumulate(there == tokens[:, None], axis=1).sum(axis=0)
        counted, begin = counted + int((there >= 0).any(axis=1).sum()), begin + len(tokens)
    return (hits / max(counted, 1)).tolist()


def _read_neighbors(folder: Path | str) -> dict[str, Any]:
    """Split -> what is said of its neighbours."""
    files = sorted(Path(folder).expanduser().glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
