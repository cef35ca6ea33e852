"""Finite labelled examples as rows of batches: each is read in one segment and asks for targets of its own."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from memjax.data.documents import Documents
from memjax.data.rows import Row, RowStream
from memjax.typing import Batch

__all__ = ["EXAMPLE", "Example", "ExampleStream", "Examples"]

EXAMPLE = "example"
"""The name in `Batch.extras` under which every row says its example: int32 `[batch]`, -1 = none."""


@dataclasses.dataclass(frozen=True)
class Example:
    """What is read, and what is asked.

    Attributes:
      inputs: int32 `[length]`.
      targets: int32 `[targets]`; every example of a set has as many.
      weights: float32 `[targets]`, 0 = not scored.
      annotations: name -> one entry per token read; 0 at padding.
      context: name -> array of one shape for every example; 0 where a row has none.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    annotations: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    context: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Examples:
    """Random access to examples.

    Attributes:
      fingerprint: what they are; a position of others is then refused.
      skipped: of the source that were left out.
      every_token: False, targets are others than the tokens read.
    """

    fingerprint: str | None = None
    skipped = 0
    every_token = False

    def __len__(self) -> int:
        raise NotImplementedError

    def example(self, index: int, /, epoch: int = 0) -> Example:
        """One of them; `epoch` says how often it has been read before, where it asks for something else each time."""
        raise NotImplementedError

    def num_tokens(self, index: int, /) -> int:
        """Tokens that are read."""
        return len(self.example(index).inputs)

    def num_bytes(self, index: int, /) -> int:
        """UTF-8 bytes of the text."""
        raise NotImplementedError


Split = Documents | Examples
"""What a run reads of one split."""


class ExampleStream(RowStream):
    """An iterator over the updates of one host: `Batch` with inputs `[segments, batch, length]`.

    Targets and weights are `[segments, batch, targets]`, and `extras[EXAMPLE]` is the number of each row's example.
    Every example stands alone: it has a row of one segment, which begins anew.
    """

    what = "examples"

    def __init__(
        self,
        examples: Examples,
        *,
        rows: int,
        segment_length: int,
        segments_per_update: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        begin_token: int | None = None,
        host_rows: tuple[int, int] | None = None,
        epochs: int | None = None,
        position: Mapping[str, Any] | None = None,
        in_step: bool = True,
    ):
        """Opens the stream at its beginning or at `position`.

        Args:
          examples: of a split.
          rows: batch rows of the whole run, over all hosts.
          segment_length: tokens of the longest example, at least.
          segments_per_update: segments in one batch.
          seed: of the order of examples.
          shuffle: a new order each epoch; False keeps theirs.
          begin_token: of the vocabulary; stands in the position, and is in the examples where they want it.
          host_rows: `(start, stop)`, the rows of this host; all of them if None.
          epochs: how often each example is read; None = for ever.
          position: of this stream, from `position` or `merge_positions`.
          in_step: as in `Streams`.

        Raises:
          ValueError: no examples, or arguments that do not fit each other.
        """
        super().__init__(
            examples,
            rows=rows,
            segment_length=segment_length,
            segments_per_update=segments_per_update,
            seed=seed,
            protocol="separate",
            shuffle=shuffle,
            begin_token=begin_token,
            host_rows=host_rows,
            epochs=epochs,
        )
        self._examples, self._like = examples, examples.example(0)
        self._go_to(position, in_step)

    def _empty(self, segments: int, rows: int) -> Batch:
        like, shape = self._like, (segments, rows)
        read = {name: np.zeros((*shape, self.segment_length), a.dtype) for name, a in like.annotations.items()}
        whole = {name: np.zeros((*shape, *a.shape), a.dtype) for name, a in like.context.items()}
        return Batch(
            inputs=np.zeros((*shape, self.segment_length), np.int32),
            targets=np.zeros((*shape, len(like.targets)), np.int32),
            mask=np.zeros((*shape, self.segment_length), bool),
            weights=np.zeros((*shape, len(like.targets)), np.float32),
            start_of_document=np.zeros(shape, bool),
            extras={**read, **whole, EXAMPLE: np.full(shape, -1, np.int32)},
        )

    def _fill(self, batch: Batch, place: tuple[int, int], row: Row) -> None:
        number = self._number(row)
        found = self._examples.example(number, row.epoch)
        size = len(found.inputs)
        if size > self.segment_length:
            raise ValueError(
                f"segment_length: given {self.segment_length}, allowed: {size} and more (example {number})"
            )
        batch.inputs[place][:size], batch.mask[place][:size] = found.inputs, True
        batch.targets[place], batch.weights[place] = found.targets, found.weights
        batch.start_of_document[place] = True
        for name, array in found.annotations.items():
            batch.extras[name][place][:size] = array
        for name, array in found.context.items():
            batch.extras[name][place] = array
        batch.extras[EXAMPLE][place] = number
        self._advance(row)

    def _row_segments(self, row: int, epoch: int, index: int, offset: int) -> int:
        assert self._epochs is not None
        share = len(range(row, len(self._examples), self.rows))
        return max((self._epochs - epoch) * share - index, 0)
