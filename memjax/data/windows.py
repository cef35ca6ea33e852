"""Sliding-window evaluation: overlapping windows, of which only the end is scored."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from memjax.data.documents import Documents, Example
from memjax.data.rows import empty_batch, put
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
    """Windows of every document, each in a row of its own that starts anew.

    The first window of a document scores all its targets, every further one the last `stride` of them, so each target
    is scored once with at least `length - stride` tokens before it where the document has them.

    Args:
      documents: the split.
      rows: windows side by side, over all hosts.
      length: tokens of a window.
      stride: targets scored per window.
      begin_token: read before the first token; None = the first token is not scored.
      host_rows: `(start, stop)`, the rows of this host.

    Yields:
      Batches `[batch, length]`; rows without a window are padding.
    """
    start, stop = host_rows or (0, rows)
    waiting: list[Example] = []
    for window in _windows(documents, length, stride, begin_token):
        waiting.append(window)
        if len(waiting) == rows:
            yield _stack_windows(waiting, start, stop, length)
            waiting = []
    if waiting:
        yield _stack_windows(waiting, start, stop, length)


class Windows:
    """One pass of sliding windows that can go on: `Batch`es `[1, batch, length]`, as streams give them.

    Attributes:
      position: JSON value, where the next batch begins.
    """

    def __init__(self, documents: Documents, *, position: Mapping[str, Any] | None = None, **layout: Any):
        """Reads nothing yet.

        Args:
          documents: the split.
          position: of an earlier pass over the same windows; what it has given is cut again, and left out.
          **layout: arguments of `sliding_windows`.

        Raises:
          ValueError: a position in other windows.
        """
        whole = {name: value for name, value in layout.items() if name != "host_rows"}
        stream = {"fingerprint": documents.fingerprint, "protocol": "sliding_window", **whole}
        if position is not None and position["stream"] != stream:
            raise ValueError(f"position: given one in {position['stream']}, allowed: in {stream}")
        self.position = {"stream": stream, "batches": 0 if position is None else position["batches"]}
        self._documents, self._layout = documents, layout

    def __iter__(self) -> Iterator[Batch]:
        given = self.position["batches"]
        for number, batch in enumerate(sliding_windows(self._documents, **self._layout)):
            if number >= given:
                self.position = {**self.position, "batches": number + 1}
                yield jax.tree.map(lambda leaf: leaf[None], batch)


def _windows(documents: Documents, length: int, stride: int, begin_token: int | None) -> Iterator[Example]:
    for index in range(len(documents)):
        tokens = np.asarray(documents[index], np.int32)
        annotations = dict(documents.annotate(index))
        if begin_token is None:
            inputs, targets = tokens[:-1], tokens[1:]
            annotations = {name: array[1:] for name, array in annotations.items()}
        else:
            inputs, targets = np.concatenate([np.array([begin_token], np.int32), tokens[:-1]]), tokens
        weights = np.asarray(annotations.pop("weights", np.ones(len(targets))), np.float32)
        scored = 0
        while scored < len(targets):
            end = min(len(targets), scored + (stride if scored else length))
            begin = max(0, end - length)
            yield Example(
                inputs[begin:end],
                targets[begin:end],
                np.where(np.arange(begin, end) >= scored, weights[begin:end], 0),
                {name: array[begin:end] for name, array in annotations.items()},
            )
            scored = end


def _stack_windows(windows: Sequence[Example], start: int, stop: int, length: int) -> Batch:
    # Hosts take the same number of steps: names and types come from the window that every host has seen.
    like = dataclasses.replace(windows[0], targets=np.zeros(length, np.int32))
    batch = empty_batch(like, (stop - start,), length)
    batch.start_of_document[:] = True
    for row, window in enumerate(windows[start:stop]):
        put(batch, row, window, True)
    return batch
