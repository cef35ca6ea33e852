"""Rows that read what is numbered (documents, or examples) in a seeded order, with a position that resumes exactly.

Everything here is NumPy on the host.
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

__all__ = ["RowStream", "epoch_order", "merge_positions"]


def epoch_order(num_documents: int, *, seed: int, epoch: int, lap: int = 0, shuffle: bool = True) -> np.ndarray:
    """The order of the documents in one epoch, int64 `[num_documents]`.

    Documents are sorted by a 64-bit hash of (seed, epoch, lap, document): unlike NumPy's generators, whose streams may
    change between versions, the order is the same for ever.

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
    """The splitmix64 hash of each uint64 value."""
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def merge_positions(positions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The position of a run from the positions of its hosts (each holds its own rows).

    The result may be given to any other split of the rows over hosts.

    Raises:
      ValueError: the positions belong to different streams.
    """
    merged: dict[str, Any] = {}
    for position in positions:
        if merged and position["stream"] != merged["stream"]:
            raise ValueError(f"positions: different streams, {_difference(merged['stream'], position['stream'])}")
        rows = {**merged.get("rows", {}), **position["rows"]}
        merged = {**position, "stream": dict(position["stream"]), "rows": rows}
    return merged


def position_of_rows(position: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A position for another number of rows: the epoch after the latest that a row has reached, from its beginning.

    Rows share the documents of an epoch among them, so that the rest of one cannot be handed to other rows.
    """
    epoch = 1 + max(int(place[0]) for place in position["rows"].values())
    places = {str(row): [epoch, 0, 0] for row in range(rows)}
    return {"stream": {**position["stream"], "rows": rows}, "rows": places}


@dataclasses.dataclass
class Row:
    """Where a row is: the next target is `offset` in the `index`-th thing (or the stream) of the row's `epoch`."""

    row: int
    epoch: int = 0
    index: int = 0
    offset: int = 0


def empty_batch(like: Example, shape: tuple[int, ...], length: int) -> Batch:
    """A batch of padding `[*shape, length]` that has room for examples with the targets and the extras of `like`.

    What is read is int32, tokens, unless `like` reads other numbers than integers.
    """
    numbers = like.inputs.dtype if like.inputs.dtype.kind == "f" else np.dtype(np.int32)
    asked = (*shape, len(like.targets))
    read = {name: np.zeros((*shape, length, *a.shape[1:]), a.dtype) for name, a in like.annotations.items()}
    return Batch(
        inputs=np.zeros((*shape, length), numbers),
        targets=np.zeros(asked, np.int32),
        mask=np.zeros((*shape, length), bool),
        weights=np.zeros(asked, np.float32),
        start_of_document=np.zeros(shape, bool),
        extras=read | {name: np.zeros((*shape, *a.shape), a.dtype) for name, a in like.context.items()},
    )


def put(batch: Batch, place: Any, example: Example, start: bool) -> None:
    """Writes what one row reads in one segment, and what it is asked, at its place in a batch."""
    size, asked = len(example.inputs), len(example.targets)
    batch.inputs[place][:size], batch.mask[place][:size] = example.inputs, True
    batch.targets[place][:asked], batch.weights[place][:asked] = example.targets, example.weights
    batch.start_of_document[place] = start
    for name, array in example.annotations.items():
        batch.extras[name][place][:size] = array
    for name, array in example.context.items():
        batch.extras[name][place] = array


class RowStream(abc.ABC):
    """An iterator over the updates of one host: `Batch` of NumPy arrays that lead with `[segments, batch]`.

    Row r of `rows` takes the things r, r + rows, ... of the seeded permutation of each epoch, whatever host it lives
    on, so the rows of a run are the same for any split over hosts. Rows do not wait for each other: a row that is
    through with its share of an epoch begins the next. When `epochs` is finite a row that has nothing left gives
    all-padding segments until all rows (of all hosts) are through; otherwise rows beyond the number of things take
    thing `row % len` first, in permutations of their own.

    Subclasses say how a row looks (`_open`), give the next segment of a row (`_next`), and count the segments that a
    row still has to give (`_row_segments`).

    Attributes:
      position: JSON-able; give it to a new stream to continue with the batch that would have come next. It holds
        (epoch, index, offset) of this host's rows and what must match; `merge_positions` joins those of several
        hosts. `segment_length`, `segments_per_update` and `epochs` may differ when it is restored.
    """

    what = "documents"
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
        """Opens the streams at their beginning or at `position`.

        Args:
          documents: the tokenised documents, or the examples of a split.
          rows: batch rows of the whole run, over all hosts.
          segment_length: tokens of one segment; of the longest example, at least.
          segments_per_update: consecutive segments in one batch.
          seed: of the order of documents.
          protocol: `separate` or `contiguous`.
          shuffle: a new order of documents each epoch; False keeps theirs.
          begin_token: id that is read before the first token of a document (`separate`) or of the corpus.
          host_rows: `(start, stop)`, the rows of this host; all of them if None.
          epochs: how often each document is read; None = for ever.
          position: of this stream, from `position` or `merge_positions`.
          score_first: score the first token (needs `begin_token`).
          in_step: give all-padding segments until the rows of all hosts are through; False ends with this host's own,
            and `position` need not have the others.

        Raises:
          ValueError: no documents, a document without tokens, or arguments that do not fit each other.
        """
        start, stop = (0, rows) if host_rows is None else host_rows
        if protocol not in self.protocols:
            raise ValueError(f"protocol: {protocol!r}; allowed are {', '.join(self.protocols)}")
        if len(documents) == 0:
            raise ValueError(f"{self.what}: none; give at least one {self.what[:-1]}")
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
        self._host = [Row(row) for row in range(start, stop)]
        self._like = self._open()
        if position is not None:
            self._restore(position)
        # Hosts must take the same number of steps, so a host that does not see all rows counts the others' segments.
        others = [*range(start), *range(stop, rows)] if in_step and epochs is not None else []
        places = dict.fromkeys(others, (0, 0, 0)) if position is None else _places(position, others)
        self._others_need = max((self._row_segments(row, *place) for row, place in places.items()), default=0)

    @property
    def position(self) -> dict[str, Any]:
        """Where the next batch begins (see the class docstring)."""
        return {
            "stream": self._identity(),
            "rows": {str(row.row): [row.epoch, row.index, row.offset] for row in self._host},
        }

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._others_need <= 0 and not any(self._has_more(row) for row in self._host):
            raise StopIteration
        batch = self.empty()
        for segment in range(self.segments_per_update):
            for slot, row in enumerate(self._host):
                if self._has_more(row):
                    put(batch, (segment, slot), *self._next(row))
        self._others_need -= self.segments_per_update
        return batch

    def empty(self) -> Batch:
        """A batch of padding."""
        return empty_batch(self._like, (self.segments_per_update, len(self._host)), self.segment_length)

    @abc.abstractmethod
    def _open(self) -> Example:
        """Checks what is read; an example has the targets of a row, and the names and types of what stands beside."""

    @abc.abstractmethod
    def _next(self, row: Row) -> tuple[Example, bool]:
        """The next segment of a row, and whether it begins anew; moves the row on."""

    @abc.abstractmethod
    def _row_segments(self, row: int, epoch: int, index: int, offset: int) -> int:
        """Segments that a row has to give from there on; only where `epochs` is finite."""

    def _identity(self) -> dict[str, Any]:
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
        given, ours = json.loads(json.dumps(dict(position["stream"]))), self._identity()
        if given != ours:
            content = {name for name in {**ours, **given} if ours.get(name) != given.get(name)}
            remedy = "use the run's own data settings"
            if content <= {"fingerprint", "documents"}:
                remedy = "the data has changed: give back the data as it was, or train a new run under another name"
            raise ValueError(f"position: of another stream, {_difference(ours, given)}; {remedy}")
        places = _places(position, [row.row for row in self._host])
        self._host = [Row(row, *map(int, place)) for row, place in places.items()]

    def _first(self, row: int) -> tuple[int, int]:
        """The row's first place in the permutation, and which permutation of an epoch it follows."""
        return (row, 0) if self._epochs is not None else (row % len(self._documents), row // len(self._documents))

    def _order(self, epoch: int, lap: int) -> np.ndarray:
        if (epoch, lap) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] >= epoch - 2}
            self._orders[epoch, lap] = epoch_order(
                len(self._documents), seed=self._seed, epoch=epoch, lap=lap, shuffle=self._shuffle
            )
        return self._orders[epoch, lap]

    def _has_more(self, row: Row) -> bool:
        if self._epochs is not None and row.epoch >= self._epochs:
            return False
        return self._protocol == "contiguous" or self._first(row.row)[0] < len(self._documents)

    def _number(self, row: Row) -> int:
        """What the row is in."""
        first, lap = self._first(row.row)
        return int(self._order(row.epoch, lap)[first + row.index * self.rows])

    def _advance(self, row: Row) -> None:
        """To the next thing of the row, in the next epoch where there is none."""
        row.offset, row.index = 0, row.index + 1
        if self._first(row.row)[0] + row.index * self.rows >= len(self._documents):
            row.index, row.epoch = 0, row.epoch + 1


def _places(position: Mapping[str, Any], rows: Sequence[int]) -> dict[int, Sequence[int]]:
    """(epoch, index, offset) of rows in a position."""
    missing = [row for row in rows if str(row) not in position["rows"]]
    if missing:
        raise ValueError(f"position: has no rows {missing}; join the hosts' positions with merge_positions")
    return {row: position["rows"][str(row)] for row in rows}


def _difference(ours: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    names = [name for name in {**ours, **given} if ours.get(name) != given.get(name)]
    return ", ".join(f"{name} is {ours.get(name)!r} but the position has {given.get(name)!r}" for name in names)
