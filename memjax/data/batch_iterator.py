"""Iterates over numbered items (documents or examples) in a seeded order, with a position that resumes exactly.

The items are distributed over the rows of the batches. Everything here is NumPy on the host.
"""

import abc
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.data.documents import Example
from memjax.typing import Batch

__all__ = ["BatchIterator", "epoch_order", "merge_positions"]


def epoch_order(num_documents: int, *, seed: int, epoch: int, lap: int = 0, shuffle: bool = True) -> np.ndarray:
    """Returns the numbers of the documents in the order in which one epoch reads them, int64 `[num_documents]`. `lap`
    is the number of a permutation within the epoch. Without `shuffle` the order is 0, 1, 2, ...

    Documents are sorted by a 64-bit hash of (seed, epoch, lap, document). The order stays the same with every version
    of NumPy, whose random generators may change.

    Args:
      num_documents: Number of documents.
      seed: Seed of the order.
      epoch: Number of the epoch, from 0. Every epoch has another order.
      lap: Number of the permutation within the epoch, from 0. Rows beyond the number of documents use 1 and more.
      shuffle: Whether to shuffle. False returns `0, 1, 2, ...`.

    Example:
      >>> epoch_order(4, seed=0, epoch=0).tolist() == epoch_order(4, seed=0, epoch=0).tolist()
      True
      >>> epoch_order(3, seed=0, epoch=0, shuffle=False)
      array([0, 1, 2])
    """
    indices = np.arange(num_documents, dtype=np.int64)
    if not shuffle:
        return indices
    key = hashlib.sha256(f"{seed}/{epoch}/{lap}".encode()).digest()[:8]
    return np.argsort(_mix(indices.astype(np.uint64) + np.frombuffer(key, "<u8")), kind="stable")


def _mix(values: np.ndarray) -> np.ndarray:
    """Returns the splitmix64 hash of each uint64 value."""
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def merge_positions(positions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the reading positions of all hosts, JSON objects with the rows of one host each, into the position of the
    run.

    The result can be restored with any other split of the rows over hosts.

    Raises:
      ValueError: The positions belong to different streams.
    """
    merged: dict[str, Any] = {}
    for position in positions:
        if merged and position["stream"] != merged["stream"]:
            raise ValueError(
                f"positions: different streams, {_describe_stream_difference(merged['stream'], position['stream'])}"
            )
        rows = {**merged.get("rows", {}), **position["rows"]}
        merged = {**position, "stream": dict(position["stream"]), "rows": rows}
    return merged


def restart_with_rows(position: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Converts a reading position, a JSON object, to `rows` rows, which all start at the epoch after the latest one
    reached.

    The rest of the current epoch is not read, because it is divided among the old rows.
    """
    epoch = 1 + max(int(place[0]) for place in position["rows"].values())
    places = {str(row): [epoch, 0, 0] for row in range(rows)}
    return {"stream": {**position["stream"], "rows": rows}, "rows": places}


@dataclasses.dataclass
class RowPosition:
    """The reading position of one row of the batch: its epoch, the number of items finished in it, and the number of
    targets read of the current item.

    Attributes:
      row: Number of the row, over all hosts.
      epoch: Number of the epoch that the row reads.
      index: Number of items that the row has finished in this epoch.
      offset: Number of targets that the row has read of its current item (of its stream, in protocol `contiguous`).
    """

    row: int
    epoch: int = 0
    index: int = 0
    offset: int = 0


def make_padding_batch(like: Example, shape: tuple[int, ...], length: int) -> Batch:
    """Makes a `Batch` of padding, NumPy arrays `[*shape, length]`, that `write_row` fills. The example `like` sets the
    number of targets, and the names, types and shapes of the extras.

    Args:
      like: Example that sets the number of targets and the names, types and shapes of the extras. Inputs have its
        dtype if that is a float, otherwise int32.
      shape: Leading axes, such as `(segments, batch)`.
      length: Number of tokens of a segment.
    """
    numbers = like.inputs.dtype if like.inputs.dtype.kind == "f" else np.dtype(np.int32)
    target_shape = (*shape, len(like.targets))
    read = {name: np.zeros((*shape, length, *a.shape[1:]), a.dtype) for name, a in like.annotations.items()}
    return Batch(
        inputs=np.zeros((*shape, length), numbers),
        targets=np.zeros(target_shape, np.int32),
        mask=np.zeros((*shape, length), bool),
        weights=np.zeros(target_shape, np.float32),
        start_of_document=np.zeros(shape, bool),
        extras=read | {name: np.zeros((*shape, *a.shape), a.dtype) for name, a in like.context.items()},
    )


def write_row(batch: Batch, place: Any, example: Example, start: bool) -> None:
    """Writes one segment (inputs, targets, weights and extras of `example`) into a batch, in place. `place` is the
    index of the row, such as `(segment, row)`. `start` says whether the segment starts a document.

    Args:
      batch: The batch, changed in place.
      place: Index of the row in the leading axes of the batch, such as `(segment, row)`.
      example: Inputs, targets, weights, annotations and context of the segment.
      start: Whether the segment starts a document, so that the row's memory is reset.
    """
    size, num_targets = len(example.inputs), len(example.targets)
    batch.inputs[place][:size], batch.mask[place][:size] = example.inputs, True
    batch.targets[place][:num_targets], batch.weights[place][:num_targets] = example.targets, example.weights
    batch.start_of_document[place] = start
    for name, array in example.annotations.items():
        batch.extras[name][place][:size] = array
    for name, array in example.context.items():
        batch.extras[name][place] = array


class BatchIterator(abc.ABC):
    """Base class of iterators over the batches of one host, one `Batch` of NumPy arrays `[segments, batch, ...]` each.

    The items are documents or examples. Row r of `rows` reads the items at places r, r + rows, ... of a seeded
    permutation of all items, a new one for each epoch. This does not depend on the host that holds the row, so the
    rows of a run are the same for any split over hosts. Rows do not wait for each other: a row that has finished its
    items of an epoch begins the next epoch.

    With a finite number of `epochs`, a row that has nothing left yields padding until all rows of all hosts have
    finished. Without an end, rows may outnumber the items: such a row starts at place `row % num_items` of another
    permutation.

    A subclass checks the items and describes a row (`_make_template`), reads the next segment of a row
    (`_next_segment`), and counts the segments that a row has left (`_row_segments`).

    Attributes:
      position: JSON object. Pass it to a new iterator to continue with the batch that would have come next. It holds
        (epoch, index, offset) of this host's rows, and the settings and data that must match. `merge_positions` joins
        the positions of several hosts. `segment_length`, `segments_per_update` and `epochs` may differ when it is
        restored.
    """

    item_name = "documents"
    protocols = ("separate", "contiguous")

    def __init__(
        self,
        documents: Any,
        *,
        rows: int,
        segment_length: int,
        segments_per_update: int = 1,
        seed: int = 0,
        protocol: str = "separate",
        shuffle: bool = True,
        begin_token: int | None = None,
        host_rows: tuple[int, int] | None = None,
        epochs: int | None = None,
        position: Mapping[str, Any] | None = None,
        score_first: bool = True,
        in_step: bool = True,
    ):
        """Starts at the beginning of the first epoch, or at `position`.

        Args:
          documents: Tokenised documents, or the examples of a split.
          rows: Number of batch rows of the whole run, over all hosts.
          segment_length: Number of tokens of one segment. Examples must not be longer.
          segments_per_update: Number of consecutive segments in one batch.
          seed: Seed of the order of documents.
          protocol: `separate` (one document after the other in each row) or `contiguous` (rows are parts of the joined
            corpus). Examples allow `separate` alone.
          shuffle: Whether each epoch has a new random order. False keeps the order of the documents.
          begin_token: Id that is read before the first token of each document (`separate`) or of the corpus
            (`contiguous`).
          host_rows: `(start, stop)`, the rows of this host. None for all rows.
          epochs: Number of times that each document is read. None for no end.
          position: Position to continue from, from `position` or `merge_positions`. None to start at the beginning.
          score_first: Whether the first token is scored, which needs `begin_token`.
          in_step: Whether to yield padding until the rows of all hosts have finished. False stops when the rows of this
            host have finished, and `position` need not contain other rows.

        Raises:
          ValueError: No documents, a document without tokens, or arguments that do not fit each other.
        """
        start, stop = (0, rows) if host_rows is None else host_rows
        if protocol not in self.protocols:
            raise ValueError(f"protocol: {protocol!r}; allowed are {', '.join(self.protocols)}")
        if len(documents) == 0:
            raise ValueError(f"{self.item_name}: none; give at least one {self.item_name[:-1]}")
        sizes = {"rows": rows, "segment_length": segment_length, "segments_per_update": segments_per_update}
        for name, value in {**sizes, "epochs": 1 if epochs is None else epochs}.items():
            if value < 1:
                raise ValueError(f"{name}: {value}; give at least 1")
        if not 0 <= start < stop <= rows:
            raise ValueError(f"host_rows: {host_rows}; give (start, stop) with 0 <= start < stop <= rows = {rows}")
        self.rows, self.segment_length, self.segments_per_update = rows, segment_length, segments_per_update
        self._documents, self._score_first = documents, score_first
        self._begin = int(begin_token) if score_first and begin_token is not None else None
        self._seed, self._protocol, self._shuffle, self._epochs = seed, protocol, shuffle, epochs
        self._orders: dict[tuple[int, int], np.ndarray] = {}
        self._host_rows = [RowPosition(row) for row in range(start, stop)]
        self._template = self._make_template()
        if position is not None:
            self._restore(position)
        # Hosts must take the same number of steps, so a host that does not see all rows counts the others' segments.
        others = [*range(start), *range(stop, rows)] if in_step and epochs is not None else []
        places = dict.fromkeys(others, (0, 0, 0)) if position is None else _row_positions(position, others)
        self._other_segments = max((self._row_segments(row, *place) for row, place in places.items()), default=0)

    @property
    def position(self) -> dict[str, Any]:
        """Reading position before the next batch, a JSON object. A new iterator that is given it continues there (see
        the class docstring).
        """
        return {
            "stream": self._identity(),
            "rows": {str(row.row): [row.epoch, row.index, row.offset] for row in self._host_rows},
        }

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._other_segments <= 0 and not any(self._has_more(row) for row in self._host_rows):
            raise StopIteration
        batch = self.make_padding_batch()
        for segment in range(self.segments_per_update):
            for slot, row in enumerate(self._host_rows):
                if self._has_more(row):
                    write_row(batch, (segment, slot), *self._next_segment(row))
        self._other_segments -= self.segments_per_update
        return batch

    def make_padding_batch(self) -> Batch:
        """Makes a batch of padding alone, in the shape of the batches that this iterator yields."""
        return make_padding_batch(self._template, (self.segments_per_update, len(self._host_rows)), self.segment_length)

    @abc.abstractmethod
    def _make_template(self) -> Example:
        """Checks the items and returns an example with the number of targets and the extras that every row has."""

    @abc.abstractmethod
    def _next_segment(self, row: RowPosition) -> tuple[Example, bool]:
        """Reads the next segment of a row and advances the row.

        Returns:
          The segment, and whether it starts a document, so that the memory is reset.
        """

    @abc.abstractmethod
    def _row_segments(self, row: int, epoch: int, index: int, offset: int) -> int:
        """Counts the segments that a row has left from a position on. Only called with a finite number of `epochs`."""

    def _identity(self) -> dict[str, Any]:
        """Returns the settings and data that a position must agree with to be restored."""
        return {
            "rows": self.rows,
            "protocol": self._protocol,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "begin_token": self._begin,
            "documents": len(self._documents),
            "fingerprint": self._documents.fingerprint,
        }

    def _restore(self, position: Mapping[str, Any]) -> None:
        """Moves the rows of this host to a position.

        Raises:
          ValueError: The position belongs to other data or settings, or lacks a row of this host.
        """
        restored, ours = json.loads(json.dumps(dict(position["stream"]))), self._identity()
        if restored != ours:
            content = {name for name in {**ours, **restored} if ours.get(name) != restored.get(name)}
            remedy = "use the run's own data settings"
            if content <= {"fingerprint", "documents"}:
                remedy = "the data has changed: give back the data as it was, or train a new run under another name"
            raise ValueError(f"position: of another stream, {_describe_stream_difference(ours, restored)}; {remedy}")
        places = _row_positions(position, [row.row for row in self._host_rows])
        self._host_rows = [RowPosition(row, *map(int, place)) for row, place in places.items()]

    def _first_place(self, row: int) -> tuple[int, int]:
        """Returns the row's first place in the permutation, and the number of the permutation that it follows."""
        return (row, 0) if self._epochs is not None else (row % len(self._documents), row // len(self._documents))

    def _order(self, epoch: int, lap: int) -> np.ndarray:
        """Returns a permutation of the items in an epoch. Those of earlier epochs are removed from the cache."""
        if (epoch, lap) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] >= epoch - 2}
            self._orders[epoch, lap] = epoch_order(
                len(self._documents), seed=self._seed, epoch=epoch, lap=lap, shuffle=self._shuffle
            )
        return self._orders[epoch, lap]

    def _has_more(self, row: RowPosition) -> bool:
        """Returns whether a row has a segment left to read."""
        if self._epochs is not None and row.epoch >= self._epochs:
            return False
        return self._protocol == "contiguous" or self._first_place(row.row)[0] < len(self._documents)

    def _item_number(self, row: RowPosition) -> int:
        """Returns the number of the item that the row reads."""
        first, lap = self._first_place(row.row)
        return int(self._order(row.epoch, lap)[first + row.index * self.rows])

    def _advance_row(self, row: RowPosition) -> None:
        """Moves a row to its next item, in the next epoch if this one has none left for the row."""
        row.offset, row.index = 0, row.index + 1
        if self._first_place(row.row)[0] + row.index * self.rows >= len(self._documents):
            row.index, row.epoch = 0, row.epoch + 1


def _row_positions(position: Mapping[str, Any], rows: Sequence[int]) -> dict[int, Sequence[int]]:
    """Returns row number -> (epoch, index, offset) from a position.

    Raises:
      ValueError: The position lacks one of the rows.
    """
    missing = [row for row in rows if str(row) not in position["rows"]]
    if missing:
        raise ValueError(f"position: has no rows {missing}; join the hosts' positions with merge_positions")
    return {row: position["rows"][str(row)] for row in rows}


def _describe_stream_difference(ours: Mapping[str, Any], restored: Mapping[str, Any]) -> str:
    """Describes the entries that differ between the identity of a stream and that of a position."""
    names = [name for name in {**ours, **restored} if ours.get(name) != restored.get(name)]
    return ", ".join(f"{name} is {ours.get(name)!r} but the position has {restored.get(name)!r}" for name in names)
