"""Batches of overlapping windows for sliding-window evaluation, which scores only the end of each window."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from memjax.data.batch_iterator import make_padding_batch, write_row
from memjax.data.documents import Documents, Example
from memjax.typing import Batch


def sliding_windows(
    documents: Documents,
    *,
    rows: int,
    length: int,
    stride: int,
    begin_token: int | None,
    host_rows: tuple[int, int] | None = None,
) -> Iterator[Batch]:
    """Cuts documents into overlapping windows of `length` tokens and yields batches with one window per row. All
    targets of the first window of a document are scored, and the last `stride` of every further one.

    Memory is reset at the start of each window. In the first window of a document all targets are scored, in every
    further window the last `stride` targets. Each target is therefore scored once, with at least `length - stride`
    tokens before it if the document has them.

    Args:
      documents: Documents of the split.
      rows: Number of windows in a batch, over all hosts.
      length: Number of tokens of a window.
      stride: Number of scored targets of a window.
      begin_token: Id that is read before the first token of a document. None to leave the first token unscored.
      host_rows: `(start, stop)`, the rows of this host. None for all rows.

    Yields:
      Batches `[batch, length]`. Rows without a window are padding.
    """
    start, stop = host_rows or (0, rows)
    waiting: list[Example] = []
    for window in _cut_windows(documents, length, stride, begin_token):
        waiting.append(window)
        if len(waiting) == rows:
            yield _stack_windows(waiting, start, stop, length)
            waiting = []
    if waiting:
        yield _stack_windows(waiting, start, stop, length)


class SlidingWindowBatches:
    """Iterates once over batches of sliding windows, `[1, batch, length]`, with a position from which it can resume.

    The axis of length 1 is that of segments, as in the batches of `DocumentBatches`.

    Attributes:
      position: JSON value with the number of batches that were yielded, and the data and settings that must match.
    """

    def __init__(self, documents: Documents, *, position: Mapping[str, Any] | None = None, **layout: Any):
        """Checks the position and reads nothing yet.

        Args:
          documents: Documents of the split.
          position: Position of an earlier pass over the same windows to continue from. Its batches are computed again
            and skipped. None to start at the beginning.
          **layout: Arguments of `sliding_windows` except `documents`.

        Raises:
          ValueError: A position of other windows.
        """
        settings = {name: value for name, value in layout.items() if name != "host_rows"}
        stream = {"fingerprint": documents.fingerprint, "protocol": "sliding_window", **settings}
        if position is not None and position["stream"] != stream:
            raise ValueError(f"position: given one in {position['stream']}, allowed: in {stream}")
        self.position = {"stream": stream, "batches": 0 if position is None else position["batches"]}
        self._documents, self._layout = documents, layout

    def __iter__(self) -> Iterator[Batch]:
        num_done = self.position["batches"]
        for number, batch in enumerate(sliding_windows(self._documents, **self._layout)):
            if number >= num_done:
                self.position = {**self.position, "batches": number + 1}
                yield jax.tree.map(lambda leaf: leaf[None], batch)


def _cut_windows(documents: Documents, length: int, stride: int, begin_token: int | None) -> Iterator[Example]:
    """Yields the windows of all documents, one after the other, with weight 0 for targets that are not scored."""
    for index in range(len(documents)):
        tokens = np.asarray(documents[index], np.int32)
        annotations = dict(documents.annotate(index))
        if begin_token is None:
            inputs, targets = tokens[:-1], tokens[1:]
            annotations = {name: array[1:] for name, array in annotations.items()}
        else:
            inputs, targets = np.concatenate([np.array([begin_token], np.int32), tokens[:-1]]), tokens
        weights = np.asarray(annotations.pop("weights", np.ones(len(targets))), np.float32)
        num_scored = 0
        while num_scored < len(targets):
            end = min(len(targets), num_scored + (stride if num_scored else length))
            begin = max(0, end - length)
            yield Example(
                inputs[begin:end],
                targets[begin:end],
                np.where(np.arange(begin, end) >= num_scored, weights[begin:end], 0),
                {name: array[begin:end] for name, array in annotations.items()},
            )
            num_scored = end


def _stack_windows(windows: Sequence[Example], start: int, stop: int, length: int) -> Batch:
    """Makes a batch from the windows numbered `[start, stop)`. Missing windows become padding."""
    # Hosts take the same number of steps: names and types come from the window that every host has seen.
    like = dataclasses.replace(windows[0], targets=np.zeros(length, np.int32))
    batch = make_padding_batch(like, (stop - start,), length)
    batch.start_of_document[:] = True
    for row, window in enumerate(windows[start:stop]):
        write_row(batch, row, window, True)
    return batch
