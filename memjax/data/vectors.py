"""Labelled vectors for classification: images of digits, cached features, and synthetic clouds and bags of words.

Everything here is NumPy on the host. Random numbers are the same with every version of NumPy: the streams of
`RandomState` never change, and its seeds are hashes of names.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax import config as configs
from memjax.data.array_files import read_array
from memjax.data.batch_iterator import epoch_order
from memjax.data.documents import Example, Examples
from memjax.data.images import FILES, VALIDATION_IMAGES, read_idx, read_labels
from memjax.data.paths import find_packed
from memjax.data.sources import SPLITS, assign_split
from memjax.durable_files import write_json

__all__ = [
    "LabelledVectors",
    "VectorArrays",
    "make_blobs",
    "open_cached_features",
    "read_digits",
    "make_permuted_bags",
    "write_features",
]

CLASSES = "classes"
"""Name of the entry of `Batch.extras` with the classes that each row may be assigned to: bool `[batch, classes]`."""
HELD_OUT = 0.1
"""Share of the training vectors that is held out for validation if cached features have no validation split."""
CHUNK = 4096
"""Number of vectors that are hashed at a time."""


class VectorArrays(NamedTuple):
    """The labelled vectors of one split: their classes, and their rows in an array of all vectors of the source, which
    is not copied.

    Attributes:
      values: All vectors of the source, `[entries, width]`, uint8 or float32. It may be a memory-mapped file.
      labels: Class of each example, int32 `[examples]`.
      rows: Row of each example in `values`, int `[examples]`.
      classes: All classes of the task, including classes that this split lacks.
      columns: Order in which the numbers of a vector are read, int `[width]`. None for the order of the source.
      divisor: Number by which every number of a vector is divided.
      groups: Group of each example, int `[examples]`. See `memjax.data.documents.Examples`. None for no groups.
    """

    values: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    classes: tuple[int, ...]
    columns: np.ndarray | None = None
    divisor: float = 1.0
    groups: np.ndarray | None = None

    def read(self, rows: Any) -> np.ndarray:
        """Reads the vectors in some rows of `values`, by number, in the order of `columns`, divided by `divisor`:
        float32 `[..., width]`.
        """
        values = self.values[rows]
        values = values if self.columns is None else values[..., self.columns]
        values = values.astype(np.float32)
        return values if self.divisor == 1 else values / np.float32(self.divisor)


class LabelledVectors(Examples):
    """Classification examples from labelled vectors: inputs float32 `[width]`, and the class as the only target.

    Example:
      >>> pixels, labels = np.array([[0, 255], [51, 0]], np.uint8), np.array([3, 1])
      >>> vectors = VectorArrays(pixels, labels, np.arange(2), classes=(1, 3), divisor=255)
      >>> example = LabelledVectors(vectors, length=2, num_classes=4, masked=True).example(1)
      >>> example.inputs.tolist(), example.targets.tolist(), example.context["classes"].tolist()
      ([0.20000000298023224, 0.0], [1], [False, True, False, True])
    """

    def __init__(self, vectors: VectorArrays, *, length: int, num_classes: int, masked: bool = False):
        """Checks and hashes all vectors.

        Args:
          vectors: Labelled vectors of a split.
          length: Width of a vector, as the configuration says.
          num_classes: Number of classes of the model.
          masked: Whether every example states, in its context, that only the classes of the task are possible answers.

        Raises:
          ValueError: No examples, vectors of another width, a class that the model does not have, or a number that is
            not finite.
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
        is_task_class = np.isin(np.arange(num_classes), vectors.classes)
        self._context: Mapping[str, np.ndarray] = {CLASSES: is_task_class} if masked else {}
        self.fingerprint = f"vectors-{self._hash_content(is_task_class if masked else b'')}"

    def _hash_content(self, asked: Any) -> str:
        """Returns a hash of the vectors and labels, and of `asked`, the mask of the classes of the task."""
        parts = self._vectors
        order = b"" if parts.columns is None else parts.columns.astype("<i8").tobytes()
        digest = hashlib.sha256(np.asarray(parts.values.shape[1:]).astype("<i8").tobytes() + order)
        for begin in range(0, len(self), CHUNK):
            chunk = parts.values[parts.rows[begin : begin + CHUNK]]
            if chunk.dtype.kind == "f" and not np.isfinite(chunk).all():
                number = begin + int(np.argmin(np.isfinite(chunk).all(axis=1)))
                raise ValueError(f"examples: example {number} has a number that is not finite, allowed: finite ones")
            digest.update(chunk.tobytes())
        digest.update(self._labels.astype("<i4").tobytes() + f"/{parts.divisor}/".encode() + bytes(asked))
        return digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._labels)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del epoch
        inputs = self._vectors.read(self._vectors.rows[index])
        return Example(inputs, self._labels[index : index + 1], self._weights, context=self._context)

    def num_tokens(self, index: int, /) -> int:
        """Returns the width of a vector."""
        del index
        return self._vectors.values.shape[1]

    def num_bytes(self, index: int, /) -> int:
        """Returns the number of bytes of a vector as it is stored."""
        return self.num_tokens(index) * self._vectors.values.dtype.itemsize


def read_digits(
    folder: str | Path, split: str, *, classes: Sequence[int] = (), permutation: int = 0, count: int = 0
) -> VectorArrays:
    """Reads a split of MNIST, or of a data set in its format, as `VectorArrays` of pixels in [0, 1] with digits as
    classes. `permutation` is the seed of a permutation of the pixels. 0 or empty arguments permute and limit nothing.

    The last 5,000 images of the training file are the validation split.

    Args:
      folder: Folder of the four files (also .gz).
      split: 'train', 'validation' or 'test'.
      classes: Classes to read. Empty for all classes of the training file.
      permutation: Seed of a permutation of the pixels, which is the same in all splits. 0 for no permutation.
      count: Number of examples, the first ones of these classes. 0 for all.

    Raises:
      ValueError: No such file, a file of another format, or a class that the training file does not have.
    """
    images, labels = _digit_files(folder, split)
    known = labels if split != "test" else _digit_files(folder, "train")[1]
    task_classes = _check_classes(classes, known)
    held_out = 0 if split == "test" else min(VALIDATION_IMAGES, len(images) // 2)
    cut = len(images) - held_out
    begin, end = (cut, len(images)) if split == "validation" else (0, cut)
    rows = begin + np.flatnonzero(np.isin(labels[begin:end], task_classes))
    rows = rows[:count] if count else rows
    columns = make_random_state(f"pixels/{permutation}").permutation(images.shape[1]) if permutation else None
    return VectorArrays(images, labels[rows].astype(np.int32), rows, task_classes, columns, 255.0)


def make_blobs(
    split: str,
    count: int,
    *,
    classes: Sequence[int] = (),
    num_classes: int = 10,
    dim: int = 16,
    spread: float = 1.0,
    seed: int = 0,
) -> VectorArrays:
    """Generates `count` synthetic vectors: for each class a Gaussian cloud with the standard deviation `spread`.
    `classes` selects some of the `num_classes`, empty for all.

    The centre of a class depends on the seed and the class alone, and its examples also on the split, so that all tasks
    share them.

    Args:
      split: 'train', 'validation' or 'test'. Splits have different examples around the same centres.
      count: Number of examples, one of each class in turn.
      classes: Classes to generate. Empty for all classes.
      num_classes: Number of classes that exist.
      dim: Width of a vector.
      spread: Standard deviation of a cloud. Centres are drawn from a standard normal distribution.
      seed: Seed of all random choices.
    """

    def cloud(label: int, size: int) -> np.ndarray:
        centre = make_random_state(f"blobs/{seed}/{label}").standard_normal(dim)
        return centre + spread * make_random_state(f"blobs/{seed}/{label}/{split}").standard_normal((size, dim))

    return _alternate_classes(cloud, count, _check_classes(classes, np.arange(num_classes)))


def make_permuted_bags(
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
) -> VectorArrays:
    """Generates `count` synthetic bags of words as vectors: relative word frequencies of random texts of `length`
    words, times `sqrt(num_words)`. `permutation` is the seed of a permutation of the words, 0 for none.

    Args:
      split: 'train', 'validation' or 'test'. Splits have different examples of the same class distributions.
      count: Number of examples, one of each class in turn.
      classes: Classes to generate. Empty for all classes.
      num_classes: Number of classes that exist.
      num_words: Number of words of the vocabulary, the width of a vector.
      length: Number of words of a text.
      concentration: Parameter of the symmetric Dirichlet distribution from which the word distribution of each class
        is drawn.
      permutation: Seed of a permutation of the vocabulary. 0 for no permutation.
      seed: Seed of all other random choices.
    """

    def bags(label: int, size: int) -> np.ndarray:
        shares = (
            make_random_state(f"bags/{seed}/{label}").standard_gamma(concentration, num_words) + 1e-30
        )  # never all 0
        draw = make_random_state(f"bags/{seed}/{label}/{split}")
        return draw.multinomial(length, shares / shares.sum(), size) * (num_words**0.5 / length)

    vectors = _alternate_classes(bags, count, _check_classes(classes, np.arange(num_classes)))
    return vectors._replace(
        columns=make_random_state(f"words/{permutation}").permutation(num_words) if permutation else None
    )


def open_cached_features(
    folder: str | Path, split: str, *, classes: Sequence[int] = (), count: int = 0, seed: int = 0
) -> VectorArrays:
    """Opens a split of features that a model has computed earlier, memory-mapped, as `VectorArrays` (see
    `write_features`): `count` examples of `classes`, chosen at random by `seed`. 0 or empty for all.

    Args:
      folder: Folder with `SPLIT.npy` and `SPLIT_labels.npy` for each split. Without a validation split, a tenth of the
        training split is held out.
      split: 'train', 'validation' or 'test'.
      classes: Classes to read. Empty for all classes of the training split.
      count: Number of examples, chosen at random. 0 for all.
      seed: Seed of the random choice.

    Raises:
      ValueError: A file that is missing or has the wrong content.
    """
    folder = Path(folder).expanduser()
    holds_out = split != "test" and not (folder / "validation.npy").is_file()
    values, labels = open_feature_files(folder, "train" if holds_out else split)
    task_classes = _check_classes(
        classes, labels if split == "train" or holds_out else open_feature_files(folder, "train")[1]
    )
    rows = np.flatnonzero(np.isin(labels, task_classes))
    if holds_out:
        rows = np.array([r for r in rows if assign_split(str(r), validation=HELD_OUT, test=0) == split], np.int64)
    if count and count < len(rows):
        rows = np.sort(rows[epoch_order(len(rows), seed=seed, epoch=0)[:count]])
    return VectorArrays(values, np.asarray(labels[rows], np.int32), rows, task_classes)


def open_digits(data: configs.Data, split: str) -> VectorArrays:
    """Returns one split of the images of MNIST, from the folder `data.source.path`, as `VectorArrays` of pixels."""
    source: Any = data.source
    count = source.num_train if split == "train" else source.num_test
    return read_digits(source.path, split, classes=source.classes, permutation=source.permutation, count=count)


def open_blobs(data: configs.Data, split: str) -> VectorArrays:
    """Generates one split of Gaussian clouds as `VectorArrays`, with the sizes in `data.source`."""
    return make_blobs(split, **_synthetic_options(data.source, split))


def open_permuted_bags(data: configs.Data, split: str) -> VectorArrays:
    """Generates one split of bags of words as `VectorArrays`, with the sizes in `data.source`."""
    return make_permuted_bags(split, **_synthetic_options(data.source, split))


def _synthetic_options(source: Any, split: str) -> dict[str, Any]:
    """Returns the arguments of `make_blobs` or `make_permuted_bags`, whose names are those of the settings."""
    options = dataclasses.asdict(source)
    sizes = {name: options.pop(name) for name in ("num_train", "num_test", "mask_classes")}
    return options | {"count": sizes["num_train" if split == "train" else "num_test"]}


def open_feature_vectors(data: configs.Data, split: str) -> VectorArrays:
    """Returns one split of features that a model has computed earlier, from the folder `data.source.path`, as
    `VectorArrays`.
    """
    source: Any = data.source
    count = source.train if split == "train" else source.test
    return open_cached_features(source.path, split, classes=source.classes, count=count, seed=source.seed)


def write_features(
    folder: str | Path, splits: Mapping[str, tuple[np.ndarray, np.ndarray]], about: Mapping[str, Any]
) -> None:
    """Writes labelled features to a folder, from which `open_cached_features` reads them. `splits` maps the name of a
    split to its vectors and classes. `about` describes the features for people.

    Args:
      folder: Folder of the files. It is created if it does not exist.
      splits: Mapping from 'train', 'test' and optionally 'validation' to vectors `[examples, width]` and classes
        `[examples]`.
      about: Description of the features for people, written to `about.json`.
    """
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for split, (values, labels) in splits.items():
        if split not in SPLITS:
            raise ValueError(f"splits: given {split!r}, allowed: {', '.join(SPLITS)}")
        np.save(folder / f"{split}.npy", np.asarray(values, np.float32))
        np.save(folder / f"{split}_labels.npy", np.asarray(labels, np.int32))
    write_json(folder / "about.json", dict(about), indent=1)


def make_random_state(name: str) -> np.random.RandomState:
    """Returns a NumPy `RandomState` whose seed is the hash of a name."""
    # RandomState, and not a Generator, because its stream is frozen.
    return np.random.RandomState(np.frombuffer(hashlib.sha256(name.encode()).digest(), "<u4"))


def _alternate_classes(draw: Any, count: int, classes: tuple[int, ...]) -> VectorArrays:
    """Generates `count` vectors, one of each class in turn. `draw(label, number)` returns vectors of one class."""
    each = -(-count // len(classes))
    values = np.stack([draw(label, each) for label in classes], axis=1).astype(np.float32)
    labels = np.tile(np.array(classes, np.int32), each)[:count]
    return VectorArrays(values.reshape(-1, values.shape[-1])[:count], labels, np.arange(count), classes)


def _check_classes(classes: Sequence[int], labels: np.ndarray) -> tuple[int, ...]:
    """Returns the classes of a task: `classes`, or all classes of `labels` if it is empty.

    Raises:
      ValueError: A class that `labels` does not contain.
    """
    known = tuple(int(label) for label in np.unique(labels))
    if missing := [label for label in classes if label not in known]:
        raise ValueError(f"data.source.classes: given {missing[0]}, allowed: {', '.join(map(str, known))}")
    return tuple(classes) or known


def _digit_files(folder: str | Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images `[images, pixels]` and the labels of the files that contain a split."""
    if split not in FILES:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(FILES)}")
    files = []
    for name in (FILES[split], FILES[split].replace("images-idx3", "labels-idx1")):
        path = find_packed(Path(folder).expanduser(), name)
        if path is None:
            raise ValueError(f"data.source.path: given {str(folder)!r}, allowed: a folder with {name}, also .gz")
        files.append((str(path.resolve()), path.stat().st_mtime_ns))
    return _read_digits(*files)


@functools.lru_cache(maxsize=2)  # the tasks of one run read the same two pairs of files
def _read_digits(images: tuple[str, int], labels: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Reads the files of images and labels, each given by its path and its time of change."""
    pixels, classes = read_idx(images[0]), read_labels(labels[0])
    if len(pixels) != len(classes):
        raise ValueError(f"{labels[0]}: {len(classes)} labels, allowed: {len(pixels)}, one for each image")
    return pixels.reshape(len(pixels), -1), classes


def open_feature_files(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Opens a split of cached features, memory-mapped: vectors, float32 `[examples, width]`, and classes, int32
    `[examples]`.

    Args:
      folder: Folder with `SPLIT.npy` and `SPLIT_labels.npy`.
      split: Name of the split.

    Returns:
      Vectors, float32 `[examples, width]`, and classes, int32 `[examples]`.

    Raises:
      ValueError: A file that is missing or has the wrong content.
    """
    arrays = []
    for name, axes, kind, what in (
        (f"{split}.npy", 2, "f", "float32 [examples, width]"),
        (f"{split}_labels.npy", 1, "i", "int32 [examples]"),
    ):
        if not (folder / name).is_file():
            raise ValueError(f"data.source.path: given {str(folder)!r}, allowed: a folder with {name}")
        array = read_array(folder / name, what, mapped=True)
        if array.ndim != axes or array.dtype.kind != kind or array.dtype.itemsize != 4:
            raise ValueError(f"{folder / name}: given {array.dtype} {list(array.shape)}, allowed: {what}")
        arrays.append(array)
    if len(arrays[0]) != len(arrays[1]):
        raise ValueError(
            f"{folder}: {len(arrays[1])} labels of {split}, allowed: {len(arrays[0])}, one for each vector"
        )
    return arrays[0], arrays[1]
