"""Documents with more to each token: numbers, neighbours, whatever was worked out for a whole split beforehand."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax.data.documents import Documents

__all__ = ["AnnotatedDocuments", "open_neighbors", "write_neighbors"]

NUMBER = "target_number"
"""The annotation that says which token of the split a target is: int64, counted in the order of the documents."""
NEIGHBORS = "neighbor_values"
"""The annotation with the tokens after the contexts that are similar to that before a target: int32 `[neighbors]`,
nearest first, -1 = none."""


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
        self, documents: Documents, arrays: Mapping[str, Any] | None = None, *, numbers: bool = False, version: str = ""
    ):
        """Reads nothing yet but the lengths of the documents.

        Args:
          documents: tokens, and annotations of their own, which stay.
          arrays: name -> array with one entry per token of the split (a memory-mapped one is read in pieces).
          numbers: also annotate each token with its number, under `NUMBER`.
          version: of the arrays; documents of another one have another fingerprint.

        Raises:
          ValueError: an array of another length, or a name that the documents have already.
        """
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
      ValueError: another number of tokens, what are no tokens, or a folder with neighbours from another store.
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
    for other in sorted(folder.glob("*.json")):
        if other.stem != split and (theirs := json.loads(other.read_text(encoding="utf-8"))["store"]) != store:
            raise ValueError(f"store: given {store!r}, allowed: {theirs!r}, the one of {other}")
    values = np.ascontiguousarray(values, np.int32)
    (folder / f"{split}.json").unlink(missing_ok=True)  # written last: without it the file is not finished
    np.save(folder / f"{split}.npy", values)
    about = {
        "documents": documents.fingerprint,
        "neighbors": values.shape[1],
        "store": store,
        "sha256": hashlib.sha256(values.data).hexdigest(),
    }
    (folder / f"{split}.json").write_text(json.dumps(about) + "\n", encoding="utf-8")


def open_neighbors(folder: Path | str, split: str, documents: Documents) -> AnnotatedDocuments:
    """The documents of a split with their neighbours, which stay on disk and are compared with their checksum once.

    Raises:
      ValueError: the folder has none for this split, those of other documents, or damaged ones.
    """
    path = Path(folder).expanduser() / f"{split}.json"
    if not path.is_file():
        raise ValueError(
            f"neighbors: {folder} has none for the split {split}, allowed: a folder from `memjax datastore neighbors`"
        )
    about = json.loads(path.read_text(encoding="utf-8"))
    own = documents.fingerprint
    if about["documents"] != own:
        raise ValueError(f"neighbors: {path} is of other documents ({about['documents']}, not {own})")
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
