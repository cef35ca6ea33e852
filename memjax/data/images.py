"""Grey images as documents with one token per pixel, row by row: reads MNIST, and converts tokens back to images."""

import hashlib
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from memjax import config as configs
from memjax.data.documents import FixedLengthDocuments
from memjax.data.file_contents import open_unpacked
from memjax.data.paths import find_packed
from memjax.data.reader_errors import reading

__all__ = ["ImageDocuments", "images_from_tokens", "mnist", "png_grid"]

VALIDATION_IMAGES = 5000
"""Number of images at the end of the training file that are the validation split."""
FILES = {"train": "train-images-idx3-ubyte", "validation": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}


class ImageDocuments(FixedLengthDocuments):
    """Documents that are grey images, one token per pixel, row by row.

    Pixel value v has the id 3 + v. Id 0 is padding, 1 begins a document, and 2 is not used: 259 ids in all.

    Example:
      >>> documents = ImageDocuments(np.array([[[0, 255], [7, 8]]], np.uint8))
      >>> documents[0].tolist(), documents.shape
      ([3, 258, 10, 11], (2, 2))
    """

    begin_id = 1
    pad_id = 0
    first_pixel = 3
    vocab_size = 259

    def __init__(self, images: np.ndarray):
        """Takes images, uint8 `[images, height, width]`."""
        if images.ndim != 3 or images.dtype != np.uint8 or not images.size:
            raise ValueError(f"images: given {images.dtype} {images.shape}, allowed: uint8 [images, height, width]")
        super().__init__(len(images), images[0].size)
        self._images = images
        self.shape: tuple[int, int] = images.shape[1:]
        self.fingerprint = "images-" + hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest()[:16]

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self.first_pixel + self._images[index].reshape(-1).astype(np.int32)


def mnist(folder: str | Path, split: str) -> ImageDocuments:
    """Reads a split of MNIST, or of a data set in its format, from a folder as `ImageDocuments`, documents of pixels.

    The last 5,000 images of the training file are the validation split (at most half of them).

    Args:
      folder: Folder of the files (also .gz).
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: No such split or file, or a file of another format.
    """
    if split not in FILES:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(FILES)}")
    path = find_packed(Path(folder).expanduser(), FILES[split])
    if path is None:
        raise ValueError(f"data.source.path: given {str(folder)!r}, allowed: a folder with {FILES[split]}, also .gz")
    images = read_idx(path)
    if split != "test":
        cut = len(images) - min(VALIDATION_IMAGES, len(images) // 2)
        images = images[:cut] if split == "train" else images[cut:]
    with reading(path, "an idx file of images"):
        return ImageDocuments(images)


def open_mnist(data: configs.Data, split: str) -> ImageDocuments:
    """Returns one split of the images of MNIST, from the folder `data.source.path`, as `ImageDocuments`."""
    return mnist(data.source.path, split)


def read_idx(path: str | Path) -> np.ndarray:
    """Reads the images of an idx file (magic number 2051), uint8 `[images, height, width]`.

    Raises:
      ValueError: A file of another format, or one that is cut off.
    """
    return _read_idx(path, 2051, "images")


def read_labels(path: str | Path) -> np.ndarray:
    """Reads the labels of an idx file (magic number 2049), uint8 `[labels]`.

    Raises:
      ValueError: A file of another format, or one that is cut off.
    """
    return _read_idx(path, 2049, "labels")


def _read_idx(path: str | Path, magic: int, what: str) -> np.ndarray:
    """Reads an idx file of bytes. The last byte of its magic number is the number of axes."""
    axes = magic % 256
    begin = 4 + 4 * axes
    with open_unpacked(path) as file:
        content = file.read()
    if len(content) < begin or struct.unpack(">I", content[:4])[0] != magic:
        raise ValueError(f"{path}: not an idx file of {what} (magic number {magic})")
    shape = struct.unpack(f">{axes}I", content[4:begin])
    if len(content) != (size := begin + math.prod(shape)):
        raise ValueError(f"{path}: {len(content)} bytes, {size} expected for {shape} {what}")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def images_from_tokens(ids: np.ndarray, height: int, width: int) -> np.ndarray:
    """Converts generated ids `[images, height * width]` to images, uint8 `[images, height, width]`. Special ids become
    black.
    """
    pixels = np.clip(np.asarray(ids, np.int64) - ImageDocuments.first_pixel, 0, 255)
    return pixels.astype(np.uint8).reshape(-1, height, width)


def png_grid(images: np.ndarray, columns: int = 8) -> bytes:
    """Draws grey images, uint8 `[images, height, width]`, in a grid of `columns` columns, one pixel apart, and returns
    the content of a PNG file.

    Args:
      images: Images, uint8 `[images, height, width]`.
      columns: Number of images in a row of the grid.

    Example:
      >>> png_grid(np.zeros((3, 4, 5), np.uint8), columns=2)[:8]
      b'\\x89PNG\\r\\n\\x1a\\n'
    """
    count, height, width = images.shape
    rows = -(-count // columns)
    grid = np.zeros((rows * (height + 1) - 1, columns * (width + 1) - 1), np.uint8)
    for index, image in enumerate(images):
        top, left = (index // columns) * (height + 1), (index % columns) * (width + 1)
        grid[top : top + height, left : left + width] = image
    lines = np.concatenate([np.zeros((len(grid), 1), np.uint8), grid], axis=1).tobytes()  # filter 0 before every line
    header = struct.pack(">IIBBBBB", grid.shape[1], grid.shape[0], 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
