"""Reading of GGUF files, the format of llama.cpp, with the package `gguf`: metadata, and dequantised tensors."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from memjax.settings.checks import require

MAGIC = b"GGUF"
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
"""names of the types of tensors that are read"""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class GgufFile(NamedTuple):
    """The content of a GGUF file, or of all parts of one that was split.

    Attributes:
      path: Path of the file, for messages.
      metadata: Key -> value. A number of 32 bits is the shortest decimal number that rounds to it.
      tensors: Name -> tensor. Those that were quantised are float32. Outputs of a matrix are its first axis.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, np.ndarray]


def is_gguf(path: Path) -> bool:
    """Whether a file exists at `path` and begins as a GGUF file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> GgufFile:
    """Reads a GGUF file. Of one that was split into parts, all parts are read, whichever is given.

    Args:
      path: Path of the file.

    Raises:
      ValueError: The package is missing, the file is no GGUF file or is not whole, a part is missing, or a tensor has a
        type that is not read.
    """
    readers = [_open(part) for part in _parts(path)]
    metadata = {name: _value(field) for name, field in readers[0].fields.items()}
    count = metadata.get("split.count") or 1
    allowed = f"the names of {count} parts as llama.cpp gives them, NAME-00001-of-{count:05d}.gguf"
    require(count == len(readers), "weights", str(path), allowed)
    return GgufFile(path, metadata, {name: array for reader in readers for name, array in _tensors(reader)})


def _parts(path: Path) -> list[Path]:
    """Returns the paths of all parts of a file that was split, by their names. Only `path` for a file that was not."""
    match = _PART.search(path.name)
    if match is None:
        return [path]
    count, stem = int(match[2]), path.name[: match.start()]
    parts = [path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    for part in parts:
        if not part.is_file():
            raise ValueError(f"weights: {part} is missing, allowed: all {count} parts of {path.name}")
    return parts


def _open(path: Path) -> Any:
    """Opens a file with the package `gguf`, which maps its tensors."""
    require(is_gguf(path), "weights", str(path), "a GGUF file, which begins with the letters GGUF")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ValueError("weights: GGUF files need the package gguf: pip install 'memjax[gguf]'") from error
    try:
        return GGUFReader(path)
    except Exception as error:  # NumPy's errors about places behind the end, and the package's
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"weights: given {path}, which is damaged or cut ({reason}), allowed: a whole file") from error


def _value(field: Any) -> Any:
    """Returns the value of a field of the metadata."""
    value = field.contents()
    is_single = [kind.name for kind in field.types] == ["FLOAT32"]
    return float(str(np.float32(value))) if is_single else value


def _tensors(reader: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and the values of each tensor."""
    from gguf import dequantize

    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        require(kind in TYPES, f"weights[{tensor.name!r}]", f"type {kind}", ", ".join(TYPES))
        if kind in ("F32", "F16"):
            yield tensor.name, tensor.data
        elif kind == "BF16":
            yield tensor.name, tensor.data.view(jnp.dtype("bfloat16"))
        else:
            yield tensor.name, dequantize(tensor.data, tensor.tensor_type)
