"""Documents with precomputed annotations of every token, such as retrieved neighbours, and the files that hold them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax.data.array_files import read_array
from memjax.data.documents import Documents, Examples, Split
from memjax.data.reader_errors import expect, reading
from memjax.durable_files import read_json, write_json

__all__ = ["AnnotatedDocuments", "open_neighbors", "target_shares", "compare_target_shares", "write_neighbors"]

NUMBER = "target_number"
"""Name of the annotation with the position of each target in the split: int64, counted over all documents in order."""
NEIGHBORS = "neighbor_values"
"""Name of the annotation with the neighbours of each target: the tokens that followed the most similar contexts, int32
`[neighbors]`, nearest first, -1 for none."""
_AGAIN = "find them again by `memjax datastore neighbors`"
"""Advice about damaged files"""
MOST_APART = 0.01
"""Largest difference between the shares of targets among neighbours in training and validation without a warning."""


class AnnotatedDocuments(Documents):
    """Documents with additional annotations from arrays by name, each with one entry per token of the whole split.

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
        """Checks the arrays against the lengths of the documents. Tokens are read later.

        Args:
          documents: Documents to annotate. Their own annotations are preserved.
          arrays: Mapping from name to array with one entry per token of the split, in the order of the documents. A
            memory-mapped array is read in pieces.
          numbers: Whether to annotate each token also with its position in the split, under `NUMBER`.
          version: Version of the arrays, such as a hash. It enters the fingerprint of the documents.

        Raises:
          ValueError: Examples instead of documents, an array of another length, or a name that the documents already
            have.
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
        if conflicts := set(documents.annotate(0)) & set(added) if len(documents) else set():
            raise ValueError(f"arrays: given {sorted(conflicts)[0]!r}, which the documents have; give it another name")
        original, names = documents.fingerprint, "/".join(added)
        self.fingerprint = original and hashlib.sha256(f"{original}/{names}{version}".encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self.documents[index]

    def num_bytes(self, index: int, /) -> int:
        return self.documents.num_bytes(index)

    def num_tokens(self, index: int, /) -> int:
        return int(self.offsets[index + 1] - self.offsets[index])

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        return {
            **self.documents.annotate(index),
            **self._added_annotations(int(self.offsets[index]), int(self.offsets[index + 1])),
        }

    def window(self, index: int, start: int, stop: int, /) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the int32 tokens `[start, stop)` of document `index`, and their annotations by name."""
        tokens, annotations = self.documents.window(index, start, stop)
        begin = int(self.offsets[index]) + start
        return tokens, {**annotations, **self._added_annotations(begin, begin + len(tokens))}

    def context(self, index: int, /) -> dict[str, np.ndarray]:
        return self.documents.context(index)

    def name(self, index: int, /) -> str:
        return self.documents.name(index)

    def tokens(self, begin: int, end: int) -> np.ndarray:
        """Returns the int32 tokens `[begin, end)` of the split, all documents being counted as one sequence.

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
        """Returns the `length` tokens before a token, fewer at the start of its document. `number` is the position of
        that token in the split, counted over all documents.

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

    def _added_annotations(self, begin: int, end: int) -> dict[str, np.ndarray]:
        """Returns the added annotations of the tokens `[begin, end)` of the split."""
        arrays = {name: np.asarray(array[begin:end]) for name, array in self._arrays.items()}
        return {**arrays, **({NUMBER: np.arange(begin, end)} if self._numbers else {})}


def write_neighbors(folder: Path | str, split: str, values: Any, documents: Documents, *, store: str = "") -> None:
    """Writes `values`, the tokens that followed the neighbours of every token of a split, int `[tokens, neighbors]`, to
    a folder for `open_neighbors`. `store` is the fingerprint of the datastore that was searched.

    See `memjax.retrieval.precomputation`, which computes them.

    Args:
      folder: Folder of the files. It is created if it does not exist.
      split: 'train', 'validation' or 'test'.
      values: Tokens that followed similar contexts, nearest first, int `[tokens, neighbors]`. -1 for none.
      documents: Documents of the split. Their tokens, in this order, have the rows of `values`.
      store: Fingerprint of the datastore that was searched (`Store.fingerprint`). All splits of a folder must have the
        same.

    Raises:
      ValueError: An array of another shape or with other values, or a folder with neighbours from another datastore.
    """
    # A datastore has one key, so that neighbours for another key come from another datastore.
    values = np.asarray(values)
    total = sum(documents.num_tokens(index) for index in range(len(documents)))
    if values.ndim != 2 or len(values) != total or values.dtype.kind != "i":
        description = f"{values.dtype} {list(values.shape)}"
        raise ValueError(
            f"values: given {description}, allowed: integers [{total}, neighbours], one row for each token"
        )
    if values.size and values.min() < -1:
        raise ValueError(f"values: given {values.min()}, allowed: tokens, and -1 where there is none")
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for other, content in _read_descriptions(folder).items():
        if other != split and content["store"] != store:
            raise ValueError(f"store: given {store!r}, allowed: {content['store']!r}, the one of {folder / other}.json")
    values = np.ascontiguousarray(values, np.int32)
    (folder / f"{split}.json").unlink(missing_ok=True)  # written last: without it the file is not finished
    np.save(folder / f"{split}.npy", values)
    content = {
        "documents": documents.fingerprint,
        "neighbors": values.shape[1],
        "store": store,
        "target_among": _compute_target_shares(values, documents),
        "sha256": hashlib.sha256(values.data).hexdigest(),
    }
    write_json(folder / f"{split}.json", content, indent=None)


def open_neighbors(folder: Path | str, split: str, documents: Documents) -> AnnotatedDocuments:
    """Returns the documents of a split with the annotation `neighbor_values`, which `write_neighbors` has written to a
    folder for the same documents.

    The neighbours are memory-mapped, after one comparison with their checksum.

    Args:
      folder: Folder of the neighbours.
      split: 'train', 'validation' or 'test'.
      documents: Documents of the split.

    Raises:
      ValueError: The folder has no neighbours of this split, or has those of other documents, those of two datastores,
        or a damaged file.
    """
    path, description_of = Path(folder).expanduser() / f"{split}.json", _read_descriptions(folder)
    if split not in description_of:
        raise ValueError(
            f"neighbors: {folder} has none for the split {split}, allowed: a folder from `memjax datastore neighbors`"
        )
    about, fingerprint = description_of[split], documents.fingerprint
    if about["documents"] != fingerprint:
        raise ValueError(f"neighbors: {path} is of other documents ({about['documents']}, not {fingerprint})")
    if stores := sorted({description["store"] for description in description_of.values()} - {about["store"]}):
        raise ValueError(f"neighbors: {path} is of store {about['store']}, allowed: {stores[0]}, as the other splits")
    file = path.with_suffix(".npy")
    values = read_array(file, f"int32 [tokens, {about['neighbors']}]; {_AGAIN}", mapped=True)
    is_array = values.dtype == np.int32 and values.shape[1:] == (about["neighbors"],) and values.flags.c_contiguous
    if not is_array or hashlib.sha256(values.data).hexdigest() != about["sha256"]:
        raise ValueError(f"neighbors: {file} is damaged; {_AGAIN}")
    return AnnotatedDocuments(documents, {NEIGHBORS: values}, version=about["sha256"])


def target_shares(folder: Path | str) -> dict[str, list[float]]:
    """Returns, for each split in a folder of neighbours, a list of shares: how often a token itself is among its
    nearest 1, 2, ... neighbours, of the tokens that have any.

    Returns:
      Mapping from split to shares of the tokens that have neighbours, one share for each number of neighbours.
    """
    return {
        split: about["target_among"] for split, about in _read_descriptions(folder).items() if "target_among" in about
    }


def compare_target_shares(folder: Path | str, num_neighbors: int) -> str:
    """Returns a warning if the nearest `num_neighbors` neighbours contain the target more or less often in training
    than in validation, by over `MOST_APART` (0.01). Otherwise ''.

    Args:
      folder: Folder of the neighbours.
      num_neighbors: Number of neighbours of each token that the model reads.

    Returns:
      A line of text. Empty if the shares differ by at most `MOST_APART`, or if a split is missing.
    """
    shares = target_shares(folder)
    if not {"train", "validation"} <= shares.keys():
        return ""
    train, validation = (shares[split][:num_neighbors][-1] for split in ("train", "validation"))
    if abs(train - validation) <= MOST_APART:
        return ""
    message = (
        f"data.neighbors_dir: the target is among the neighbours of {train:.1%} of the training tokens and of "
        f"{validation:.1%} of those of validation: a model learns to trust them"
    )
    if train < validation:
        return f"{message} less than it could; rather search the training split in as large a store"
    return (
        f"{message} more than it should; rather without the own article, by halves (`memjax datastore neighbors "
        "--other`), or with model.output.neighbor_dropout"
    )


def _compute_target_shares(values: np.ndarray, documents: Documents) -> list[float]:
    """Returns the shares of tokens that are among their own nearest 1, 2, ... neighbours, of tokens with neighbours."""
    hits, counted, begin = np.zeros(values.shape[1], np.int64), 0, 0
    for index in range(len(documents)):
        tokens = np.asarray(documents[index])
        neighbors = values[begin : begin + len(tokens)]
        hits += np.logical_or.accumulate(neighbors == tokens[:, None], axis=1).sum(axis=0)
        counted, begin = counted + int((neighbors >= 0).any(axis=1).sum()), begin + len(tokens)
    return (hits / max(counted, 1)).tolist()


def _read_descriptions(folder: Path | str) -> dict[str, Any]:
    """Reads the descriptions of the neighbours in a folder: split -> description."""
    descriptions = {}
    for file in sorted(Path(folder).expanduser().glob("*.json")):
        with reading(file, f"the description of neighbours; {_AGAIN}"):
            about = expect(read_json(file, advice=_AGAIN), dict)
            for name, kind in (("documents", str), ("store", str), ("sha256", str), ("neighbors", int)):
                expect(about[name], kind)
            [expect(share, float) for share in expect(about.get("target_among", []), list)]
        descriptions[file.stem] = about
    return descriptions
