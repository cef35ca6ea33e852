"""What the inputs of readers are made of: a row of a reader, sentences, and the formats of files."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

SENTENCES = [f"The {kind} {number} saw the {other} of Paris." for number in range(8) for kind, other in
             (("cat", "town"), ("dog", "river"))]  # fmt: skip
"""Lines of texts"""


class Reader(NamedTuple):
    """A reader with a small valid input.

    Attributes:
      files: Function that returns the input: name of a file in a folder -> content.
      read: `read(folder)` reads all of it, and returns what the reader has returned.
    """

    files: Callable[[], Mapping[str, bytes]]
    read: Callable[[Path], Any]


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def to_lines(values: list[Any]) -> bytes:
    return b"".join(to_json(value) + b"\n" for value in values)


def to_npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def to_npz(**arrays: np.ndarray) -> bytes:
    buffer, save = io.BytesIO(), cast(Any, np.savez)
    save(buffer, **arrays)
    return buffer.getvalue()


def to_idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 2048 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def to_zip(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def to_tar(files: Mapping[str, bytes], mode: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
