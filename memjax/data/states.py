"""What frozen layers give of each token of examples: written once, read from a file in the address space.

    DIR/<fingerprint of the examples>-layer<first>.npy     float32 [tokens of all examples, dim]
    DIR/<the same>.json                                    what they are; written last

`memjax.lifelong.features` computes them.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from memjax.data.content import file_sha256
from memjax.data.documents import Example, Examples
from memjax.data.tokenizers import replaced

__all__ = ["has_states", "with_states", "write_states"]

STATES = "states"
"""The name in `Batch.extras` under which every row has them: float32 `[batch, length, dim]`."""


class ExamplesWithStates(Examples):
    """Examples with the annotation `states`, float32 `[tokens, dim]`."""

    def __init__(self, examples: Examples, states: np.ndarray, about: str):
        """The states of all tokens, one example after the other; `about` says what made them."""
        self._examples, self._states = examples, states
        self._ends = np.cumsum([examples.num_tokens(index) for index in range(len(examples))])
        self.fingerprint, self.skipped = f"{examples.fingerprint}-{about}", examples.skipped

    @property
    def plain(self) -> Examples:
        return self._examples.plain

    def __len__(self) -> int:
        return len(self._examples)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        found, end = self._examples.example(index, epoch), self._ends[index]
        states = np.asarray(self._states[end - len(found.inputs) : end])
        return dataclasses.replace(found, annotations={**found.annotations, STATES: states})

    def num_tokens(self, index: int, /) -> int:
        return self._examples.num_tokens(index)

    def num_bytes(self, index: int, /) -> int:
        return self._examples.num_bytes(index)


def with_states(examples: Examples, folder: str | Path, first: int) -> Examples:
    """The examples with what the layers below `first` give of them.

    Raises:
      ValueError: the folder has no states of these examples, or others than were written.
    """
    file = _file(examples, folder, first)
    if not has_states(examples, folder, first):
        allowed = "a folder that training has filled, with the encoder of training.init_from"
        raise ValueError(f"data.states: given {str(folder)!r} without {file.name}, allowed: {allowed}")
    about = json.loads(file.with_suffix(".json").read_text("utf-8"))
    if about.get("sha256") not in (None, file_sha256(file)):  # earlier versions wrote none
        raise ValueError(f"data.states: {file} has changed since it was written; remove it, so that it is made again")
    return ExamplesWithStates(examples, np.load(file, mmap_mode="r"), about["encoder"])


def has_states(examples: Examples, folder: str | Path, first: int, encoder: str = "") -> bool:
    """Whether the folder has the states of these examples.

    Raises:
      ValueError: it has those of another encoder than the one that is named.
    """
    about = _file(examples, folder, first).with_suffix(".json")
    if not about.is_file():
        return False
    there = json.loads(about.read_text("utf-8"))["encoder"]
    if encoder not in ("", there):
        raise ValueError(f"data.states: given {str(folder)!r} with states of {there}, allowed: those of {encoder}")
    return True


def write_states(
    examples: Examples, folder: str | Path, first: int, encoder: str, dim: int, fill: Callable[[np.ndarray], None]
) -> None:
    """Writes the states of examples whole or not at all.

    Args:
      examples: in the order of the file.
      folder: made where it is not there.
      first: the layer that reads them.
      encoder: fingerprint of what makes them.
      dim: width of a state.
      fill: `fill(array)`, writes them into float32 `[tokens, dim]`, in the address space.
    """
    file = _file(examples, folder, first)
    file.parent.mkdir(parents=True, exist_ok=True)
    tokens = sum(examples.num_tokens(index) for index in range(len(examples)))
    with replaced(file) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=(tokens, dim))
        fill(array)
        array.flush()
    about = {"encoder": encoder, "first_layer": first, "examples": len(examples), "tokens": tokens}
    about["sha256"] = file_sha256(file)
    with replaced(file.with_suffix(".json")) as partial:
        partial.write_text(json.dumps(about, indent=2) + "\n", "utf-8")


def _file(examples: Examples, folder: str | Path, first: int) -> Path:
    return Path(folder).expanduser() / f"{examples.fingerprint}-layer{first}.npy"
