"""Vectors of numbers with classes: pixels, cached features, and clouds and bags of words that are drawn.

Everything here is NumPy on the host. What is drawn is the same for ever: `RandomState` is frozen, and seeded by names.
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax.data.documents import Example, Examples
from memjax.data.images import FILES, VALIDATION_IMAGES, read_idx, read_labels
from memjax.data.paths import find_packed
from memjax.data.rows import epoch_order
from memjax.data.sources import SPLITS, split_of

__all__ = ["LabelledVectors", "Vectors", "blobs", "cached_features", "digits", "permuted_bags", "write_features"]

CLASSES = "classes"
"""The name in `Batch.extras` under which every row says which classes may be answered: bool `[batch, classes]`."""
HELD_OUT = 0.1
"""share of cached features without a validation split that is held out"""
CHUNK = 4096
"""vectors that are read at a time"""


class Vectors(NamedTuple):
    """What a reader gives for a split; nothing of `values` is copied.

    Attributes:
      values: `[entries, width]`, uint8 or float32, perhaps a file in the address space.
      labels: int32 `[examples]`, the class of each.
      rows: int `[examples]`, which entry of `values` each is.
      classes: all that the examples of the task may have, whatever this split has.
      columns: int `[width]`, the order in which the numbers of a vector are read; None = theirs.
      divisor: of every number.
      groups: as in `memjax.data.documents.Examples`.
    """

    values: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    classes: tuple[int, ...]
    columns: np.ndarray | None = None
    divisor: float = 1.0
    groups: np.ndarray | None = None

    def read(self, rows: Any) -> np.ndarray:
        """The numbers of some entries, float32 `[..., width]`."""
        values = self.values[rows]
        values = values if self.columns is None else values[..., self.columns]
        values = values.astype(np.float32)
        return values if self.divisor == 1 else values / np.float32(self.divisor)


class LabelledVectors(Examples):
    """Vectors as examples that ask for their class: inputs float32 `[width]`, one target.

    Example:
      >>> pixels, labels = np.array([[0, 255], [51, 0]], np.uint8), np.array([3, 1])
      >>> vectors = Vectors(pixels, labels, np.arange(2), classes=(1, 3), divisor=255)
      >>> example = LabelledVectors(vectors, length=2, num_classes=4, masked=True).example(1)
      >>> example.inputs.tolist(), example.targets.tolist(), example.context["classes"].tolist()
      ([0.20000000298023224, 0.0], [1], [False, True, False, True])
    """

    def __init__(self, vectors: Vectors, *, length: int, num_classes: int, masked: bool = False):
        """Keeps what was read, and goes through all of it once.

        Args:
          vectors: the split.
          length: numbers of a vector, as the configuration says.
          num_classes: classes of the model.
          masked: every example says that only the classes of its task may be answered.

        Raises:
          ValueError: no examples, vectors of another width, a class that the model does not have, a number that is not
            finite.
        """
        if not len(vectors.rows):
            raise ValueError("examples: none in this split; give more, or other classes")
        if (width := vectors.values.shape[1]) != length:
            raise ValueError(f"data.segment_length: given {length}, allowed: {width}, the numbers of a vector")
        if (largest := max(vectors.classes)) >= num_classes:
            raise ValueError(
                f"task.num_classes: given {num_classes}, allowed: at least {largest + 1}, as the data have"
            )
        self._vectors, self._labels = vectors, vectors.labels.astype(np.int32)
        self._weights, self.groups = np.ones(1, np.float32), vectors.groups
        own = np.isin(np.arange(num_classes), vectors.classes)
        self._context: Mapping[str, np.ndarray] = {CLASSES: own} if masked else {}
        self.fingerprint = f"vectors-{self._digest(own if masked else b'')}"

    def _digest(self, asked: Any) -> str:
        """Of what is read and what is asked."""
        parts = self._vectors
        order = b"" if parts.columns is None else parts.columns.astype("<i8").tobytes()
        digest = hashlib.sha256(np.asarray(parts.values.shape[1:]).astype("<i8").tobytes() + order)
        for begin in range(0, len(self), CHUNK):
            some = parts.values[parts.rows[begin : begin + CHUNK]]
            if some.dtype.kind == "f" and not np.isfinite(some).all():
                number = begin + int(np.argmin(np.isfinite(some).all(axis=1)))
                raise ValueError(f"examples: example {number} has a number that is not finite, allowed: finite ones")
            digest.update(some.tobytes())
        digest.update(self._labels.astype("<i4").tobytes() + f"/{parts.divisor}/".encode() + bytes(asked))
        return digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._labels)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del epoch
        inputs = self._vectors.read(self._vectors.rows[index])
        return Example(inputs, self._labels[index : index + 1], self._weights, context=self._context)

    def num_tokens(self, index: int, /) -> int:
        """Numbers of a vector."""
        del index
        return self._vectors.values.shape[1]

    def num_bytes(self, index: int, /) -> int:
        """Of the numbers as they are stored."""
        return self.num_tokens(index) * self._vectors.values.dtype.itemsize


def digits(
    folder: str | Path, split: str, *, classes: Sequence[int] = (), permutation: int = 0, count: int = 0
) -> Vectors:
    """A split of MNIST, or of a data set in its format, as vectors of pixels from 0 to 1 with the digits as classes.

    The last 5,000 images of the training file are the validation split.

    Args:
      folder: of the four files (also .gz).
      split: 'train', 'validation' or 'test'.
      classes: that are read; () = all.
      permutation: seed of an order of the pixels, the same in all splits; 0 = theirs.
      count: the first ones of these classes; 0 = all.

    Raises:
      ValueError: no such file, one of another format, or a class that the training file does not have.
    """
    images, labels = _digit_files(folder, split)
    known = labels if split != "test" else _digit_files(folder, "train")[1]
    own = _check_classes(classes, known)
    held_out = 0 if split == "test" else min(VALIDATION_IMAGES, len(images) // 2)
    cut = len(images) - held_out
    begin, end = (cut, len(images)) if split == "validation" else (0, cut)
    rows = begin + np.flatnonzero(np.isin(labels[begin:end], own))
    rows = rows[:count] if count else rows
    columns = random_of(f"pixels/{permutation}").permutation(images.shape[1]) if permutation else None
    return Vectors(images, labels[rows].astype(np.int32), rows, own, columns, 255.0)


def blobs(
    split: str,
    count: int,
    *,
    classes: Sequence[int] = (),
    num_classes: int = 10,
    dim: int = 16,
    spread: float = 1.0,
    seed: int = 0,
) -> Vectors:
    """Gaussian clouds, one a class; centres, and the examples of a class, are those of every task of the seed.

    Args:
      split: 'train', 'validation' or 'test': others are drawn for each, around the same centres.
      count: examples, one of each class in turn.
      classes: that are read; () = all.
      num_classes: that there are.
      dim: numbers of a vector.
      spread: standard deviation of a cloud; centres are standard normal.
      seed: of all that is drawn.
    """

    def cloud(label: int, size: int) -> np.ndarray:
        centre = random_of(f"blobs/{seed}/{label}").standard_normal(dim)
        return centre + spread * random_of(f"blobs/{seed}/{label}/{split}").standard_normal((size, dim))

    return _in_turn(cloud, count, _check_classes(classes, np.arange(num_classes)))


def permuted_bags(
    split: str,
    count: int,
    *,
    classes: Sequence[int] = (),
    num_classes: int = 4,
    num_words: int = 64,
    length: int = 32,
    concentration: float = 0.2,
    permutation: int = 0,
    seed: int = 0,
) -> Vectors:
    """Bags of words: the shares of each word among `length`, times `sqrt(num_words)`.

    Args:
      split: as in `blobs`, like `count`, `classes`, `num_classes` and `seed`.
      count: as there.
      classes: as there.
      num_classes: as there.
      num_words: of the vocabulary.
      length: words of a bag.
      concentration: of the Dirichlet distribution that the distribution of a class is drawn from.
      permutation: seed of an order of the vocabulary; 0 = as it is.
      seed: as there.
    """

    def bags(label: int, size: int) -> np.ndarray:
        shares = random_of(f"bags/{seed}/{label}").standard_gamma(concentration, num_words) + 1e-30  # never all 0
        draw = random_of(f"bags/{seed}/{label}/{split}")
        return draw.multinomial(length, shares / shares.sum(), size) * (num_words**0.5 / length)

    found = _in_turn(bags, count, _check_classes(classes, np.arange(num_classes)))
    return found._replace(columns=random_of(f"words/{permutation}").permutation(num_words) if permutation else None)


def cached_features(
    folder: str | Path, split: str, *, classes: Sequence[int] = (), count: int = 0, seed: int = 0
) -> Vectors:
    """A split of vectors that a model made before, left where they are (see `write_features`).

    Args:
      folder: with `SPLIT.npy` and `SPLIT_labels.npy`; without those of validation a tenth of train is held out.
      split: 'train', 'validation' or 'test'.
      classes: that are read; () = all of train.
      count: examples of them, drawn by the seed; 0 = all.
      seed: of what is drawn.

    Raises:
      ValueError: a file that is missing or holds something else.
    """
    folder = Path(folder).expanduser()
    holds_out = split != "test" and not (folder / "validation.npy").is_file()
    values, labels = feature_files(folder, "train" if holds_out else split)
    own = _check_classes(classes, labels if split == "train" or holds_out else feature_files(folder, "train")[1])
    rows = np.flatnonzero(np.isin(labels, own))
    if holds_out:
        rows = np.array([r for r in rows if split_of(str(r), validation=HELD_OUT, test=0) == split], np.int64)
    if count and count < len(rows):
        rows = np.sort(rows[epoch_order(len(rows), seed=seed, epoch=0)[:count]])
    return Vectors(values, np.asarray(labels[rows], np.int32), rows, own)


def write_features(
    folder: str | Path, splits: Mapping[str, tuple[np.ndarray, np.ndarray]], about: Mapping[str, Any]
) -> None:
    """Writes what `cached_features` reads.

    Args:
      folder: made where it is not there.
      splits: 'train', 'test' and perhaps 'validation' -> vectors `[examples, width]`, classes `[examples]`.
      about: what they are, for people: JSON.
    """
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for split, (values, labels) in splits.items():
        if split not in SPLITS:
            raise ValueError(f"splits: given {split!r}, allowed: {', '.join(SPLITS)}")
        np.save(folder / f"{split}.npy", np.asarray(values, np.float32))
        np.save(folder / f"{split}_labels.npy", np.asarray(labels, np.int32))
    (folder / "about.json").write_text(json.dumps(dict(about), indent=1) + "\n", encoding="utf-8")


def random_of(name: str) -> np.random.RandomState:
    """What draws whatever has this name; `RandomState`, and not a `Generator`, because its stream is frozen."""
    return np.random.RandomState(np.frombuffer(hashlib.sha256(name.encode()).digest(), "<u4"))


def _in_turn(draw: Any, count: int, classes: tuple[int, ...]) -> Vectors:
    """`count` vectors, one of each class in turn; `draw(label, number)` gives those of a class."""
    each = -(-count // len(classes))
    values = np.stack([draw(label, each) for label in classes], axis=1).astype(np.float32)
    labels = np.tile(np.array(classes, np.int32), each)[:count]
    return Vectors(values.reshape(-1, values.shape[-1])[:count], labels, np.arange(count), classes)


def _check_classes(classes: Sequence[int], labels: np.ndarray) -> tuple[int, ...]:
    """The classes of a task: those that are asked for, or all."""
    known = tuple(int(label) for label in np.unique(labels))
    if missing := [label for label in classes if label not in known]:
        raise ValueError(f"data.source.classes: given {missing[0]}, allowed: {', '.join(map(str, known))}")
    return tuple(classes) or known


def _digit_files(folder: str | Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images `[images, pixels]` and labels of the file that a split is in."""
    if split not in FILES:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(FILES)}")
    found = []
    for name in (FILES[split], FILES[split].replace("images-idx3", "labels-idx1")):
        path = find_packed(Path(folder).expanduser(), name)
        if path is None:
            raise ValueError(f"data.source.path: given {str(folder)!r}, allowed: a folder with {name}, also .gz")
        found.append((str(path.resolve()), path.stat().st_mtime_ns))
    return _read_digits(*found)


@functools.lru_cache(maxsize=2)  # the tasks of one run read the same two pairs of files
def _read_digits(images: tuple[str, int], labels: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
    pixels, classes = read_idx(images[0]), read_labels(labels[0])
    if len(pixels) != len(classes):
        raise ValueError(f"{labels[0]}: {len(classes)} labels, allowed: {len(pixels)}, one for each image")
    return pixels.reshape(len(pixels), -1), classes


def feature_files(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The vectors and classes of a split, as they are in their files."""
    found = []
    for name, axes, kind, what in (
        (f"{split}.npy", 2, "f", "float32 [examples, width]"),
        (f"{split}_labels.npy", 1, "i", "int32 [examples]"),
    ):
        if not (folder / name).is_file():
            raise ValueError(f"data.source.path: given {str(folder)!r}, allowed: a folder with {name}")
        array = np.load(folder / name, mmap_mode="r")
        if array.ndim != axes or array.dtype.kind != kind or array.dtype.itemsize != 4:
            raise ValueError(f"{folder / name}: given {array.dtype} {list(array.shape)}, allowed: {what}")
        found.append(array)
    if len(found[0]) != len(found[1]):
        raise ValueError(f"{folder}: {len(found[1])} labels of {split}, allowed: {len(found[0])}, one for each vector")
    return found[0], found[1]
