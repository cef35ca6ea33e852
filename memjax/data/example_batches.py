"""Batches of labelled examples: each example fills one row for one segment and brings its own targets."""

import dataclasses

import numpy as np

from memjax.data.batch_iterator import BatchIterator, RowPosition
from memjax.data.documents import Example
from memjax.typing import Batch

__all__ = ["EXAMPLE", "ExampleBatches"]

EXAMPLE = "example"
"""Name of the entry of `Batch.extras` with the example number of every row: int32 `[batch]`, -1 for an empty row."""


class ExampleBatches(BatchIterator):
    """Iterates over batches of examples for one host, one `Batch` per step, with one example in a row.

    Inputs are `[segments, batch, length]`, targets and weights `[segments, batch, targets]`. Every example is read
    alone, in one segment of one row, and starts with an empty memory. `extras[EXAMPLE]` is the number of each row's
    example: the entry `EXAMPLE` of the example's own context if it has one, otherwise its position in the split.
    `begin_token` is only stored in the position: examples contain a begin token themselves where they need one.
    """

    item_name = "examples"
    protocols = ("separate",)

    def _make_template(self) -> Example:
        return self._documents.example(0)

    def make_padding_batch(self) -> Batch:
        batch = super().make_padding_batch()
        batch.extras[EXAMPLE] = np.full(batch.start_of_document.shape, -1, np.int32)
        return batch

    def _next_segment(self, row: RowPosition) -> tuple[Example, bool]:
        number = self._item_number(row)
        example = self._documents.example(number, row.epoch)
        size = len(example.inputs)
        if size > self.segment_length:
            raise ValueError(
                f"segment_length: given {self.segment_length}, allowed: {size} and more (example {number})"
            )
        self._advance_row(row)
        return dataclasses.replace(example, context={EXAMPLE: np.array(number, np.int32), **example.context}), True

    def _row_segments(self, row: int, epoch: int, index: int, offset: int) -> int:
        assert self._epochs is not None
        share = len(range(row, len(self._documents), self.rows))
        return max((self._epochs - epoch) * share - index, 0)
