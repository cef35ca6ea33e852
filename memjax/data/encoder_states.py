"""Stores the outputs of frozen encoder layers for every token of a data set, so that they are computed once.

The states are read from a memory-mapped file:

    DIR/<fingerprint of the examples>-layer<first>.npy     float32 [tokens of all examples, dim]
    DIR/<fingerprint of the examples>-layer<first>.json    encoder, layer, sizes and SHA-256; written last

`memjax.lifelong.text_features` computes the states.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from memjax.data.content import file_sha256
from memjax.data.documents import Example, Examples
from memjax.data.tokenizers import write_then_rename
from memjax.durable_files import DamagedError, read_json, write_json

__all__ = ["has_states", "attach_encoder_states", "write_states"]

STATES = "states"
"""Name of the entry of `Batch.extras` with the states of every row: float32 `[batch, length, dim]`."""


class ExamplesWithEncoderStates(Examples):
    """Examples with stored outputs of frozen encoder layers as the annotation `states`, float32 `[tokens, dim]`."""

    def __init__(self, examples: Examples, states: np.ndarray, about: str):
        """Adds states to examples.

        Args:
          examples: The examples.
          states: States of the tokens of all examples, one example after the other, float32 `[tokens, dim]`.
          about: Fingerprint of the encoder that computed the states.
        """
        self._examples, self._states = examples, states
        self._ends = np.cumsum([examples.num_tokens(index) for index in range(len(examples))])
        self.fingerprint, self.skipped = f"{examples.fingerprint}-{about}", examples.skipped

    @property
    def without_states(self) -> Examples:
        return self._examples.without_states

    def __len__(self) -> int:
        return len(self._examples)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        example, end = self._examples.example(index, epoch), self._ends[index]
        states = np.asarray(self._states[end - len(example.inputs) : end])
        return dataclasses.replace(example, annotations={**example.annotations, STATES: states})

    def num_tokens(self, index: int, /) -> int:
        return self._examples.num_tokens(index)

    def num_bytes(self, index: int, /) -> int:
        return self._examples.num_bytes(index)


def attach_encoder_states(examples: Examples, folder: str | Path, first: int) -> Examples:
    """Returns examples with the annotation `states`, the outputs of the layers below `first` that `write_states` has
    written to a folder. `first` is the number of the first layer that is not frozen.

    Args:
      examples: The examples.
      folder: Folder that `write_states` has filled.
      first: Number of the first layer that is not frozen, which reads the states.

    Raises:
      ValueError: The folder has no states of these examples, or their file has changed since it was written.
    """
    file = _file(examples, folder, first)
    if not has_states(examples, folder, first):
        allowed = "a folder that training has filled, with the encoder of training.init_from"
        raise ValueError(f"data.encoder_states_dir: given {str(folder)!r} without {file.name}, allowed: {allowed}")
    description = read_json(file.with_suffix(".json"))
    if description.get("sha256") not in (None, file_sha256(file)):  # earlier versions wrote none
        raise ValueError(
            f"data.encoder_states_dir: {file} has changed since it was written; remove it, so that it is made again"
        )
    return ExamplesWithEncoderStates(examples, np.load(file, mmap_mode="r"), description["encoder"])


def has_states(examples: Examples, folder: str | Path, first: int, encoder: str = "") -> bool:
    """Returns whether a folder has the states of these examples for layer `first`, which reads them. `encoder` is the
    fingerprint that their encoder must have, '' for any. States of another encoder are an error.

    Args:
      examples: The examples.
      folder: Folder that `write_states` may have filled.
      first: Number of the layer that reads the states.
      encoder: Fingerprint of the encoder that the states must come from. Empty for any encoder.

    Raises:
      ValueError: The states come from another encoder than `encoder`.
    """
    description_file = _file(examples, folder, first).with_suffix(".json")
    if not description_file.is_file():
        return False
    description = read_json(description_file)
    if not isinstance(description, dict) or "encoder" not in description:
        raise DamagedError(
            f"{description_file}: damaged (it names no encoder), allowed: the file written there; remove it"
        )
    stored_encoder = description["encoder"]
    if encoder not in ("", stored_encoder):
        raise ValueError(
            f"data.encoder_states_dir: given {str(folder)!r} with states of {stored_encoder}, allowed: those of "
            f"{encoder}"
        )
    return True


def write_states(
    examples: Examples, folder: str | Path, first: int, encoder: str, dim: int, fill: Callable[[np.ndarray], None]
) -> None:
    """Writes the states that `fill(array)` computes for examples, float32 `[tokens, dim]`, to a file in `folder`,
    completely or not at all. `first` is the layer that reads them, `encoder` the fingerprint of the encoder.

    Args:
      examples: Examples, in the order in which their states are written.
      folder: Folder of the file. It is created if it does not exist.
      first: Number of the layer that reads the states.
      encoder: Fingerprint of the encoder that computes the states.
      dim: Width of a state.
      fill: `fill(array)`, a function that writes the states into a memory-mapped float32 array `[tokens, dim]`.
    """
    file = _file(examples, folder, first)
    file.parent.mkdir(parents=True, exist_ok=True)
    tokens = sum(examples.num_tokens(index) for index in range(len(examples)))
    with write_then_rename(file) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=(tokens, dim))
        with partial.open("r+b") as mapped:  # A full disk would end the process where the array is written.
            os.posix_fallocate(mapped.fileno(), 0, partial.stat().st_size)
        fill(array)
        array.flush()
    description = {"encoder": encoder, "first_layer": first, "examples": len(examples), "tokens": tokens}
    description["sha256"] = file_sha256(file)
    write_json(file.with_suffix(".json"), description)


def _file(examples: Examples, folder: str | Path, first: int) -> Path:
    """Returns the path of the states of examples."""
    return Path(folder).expanduser() / f"{examples.fingerprint}-layer{first}.npy"
