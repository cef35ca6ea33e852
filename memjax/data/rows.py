"""Rows that read what is numbered (documents, or examples) in a seeded order, with a position that resumes exactly.

Everything here is NumPy on the host.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

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
        merged = {"stream": dict(position["stream"]), "rows": {**merged.get("rows", {}), **position["rows"]}}
    return merged


def position_of_rows(position: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A position for another number of rows: the epoch after the latest that a row has reached, from its beginning.

    Rows share the documents of an epoch among them, so that the rest of one cannot be handed to other rows.
    """
    epoch = 1 + max(int(place[0]) for place in position["rows"].values())
    places = {str(row): [epoch, 0, 0] for row in range(rows)}
    return {"stream": {**position["stream"], "rows": rows}, "rows": places}


@runtime_checkable
class Numbered(Protocol):
    """What rows read: so many things, and what they are."""

    fingerprint: str | None

    def __len__(self) -> int: ...


@dataclasses.dataclass
class Row:
    """Where a row is: the next target is `offset` in the `index`-th thing (or the stream) of the row's `epoch`."""

    row: int
    epoch: int = 0
    index: int = 0
    offset: int = 0


class RowStream:
    """An iterator over the updates of one host: `Batch` of NumPy arrays that lead with `[segments, batch]`.

    Row r of `rows` takes the things r, r + rows, ... of the seeded permutation of each epoch, whatever host it lives
    on, so the rows of a run are the same for any split over hosts. Rows do not wait for each other: a row that is
    through with its share of an epoch begins the next. When `epochs` is finite a row that has nothing left gives
    all-padding segments until all rows (of all hosts) are through; otherwise rows beyond the number of things take
    thing `row % len` first, in permutations of their own.

    Subclasses say what an empty batch is (`_empty`), put the next segment of a row into one (`_fill`), and count the
    segments that a row still has to give (`_row_segments`).

    Attributes:
      position: JSON-able; give it to a new stream to continue with the batch that would have come next. It holds
        (epoch, index, offset) of this host's rows and what must match; `merge_positions` joins those of several
        hosts. `segment_length`, `segments_per_update` and `epochs` may differ when it is restored.
    """

    what = "documents"

    def __init__(
        self,
        things: Numbered,
        *,
        rows: int,
        segment_length: int,
        segments_per_update: int,
        seed: int,
        protocol: str,
        shuffle: bool,
        begin_token: int | None,
        host_rows: tuple[int, int] | None,
        epochs: int | None,
    ):
        start, stop = (0, rows) if host_rows is None else host_rows
        if len(things) == 0:
            raise ValueError(f"{self.what}: none; give at least one {self.what[:-1]}")
        sizes = {"rows": rows, "segment_length": segment_length, "segments_per_update": segments_per_update}
        for name, value in {**sizes, "epochs": 1 if epochs is None else epochs}.items():
            if value < 1:
                raise ValueError(f"{name}: {value}; give at least 1")
        if not 0 <= start < stop <= rows:
            raise ValueError(f"host_rows: {host_rows}; give (start, stop) with 0 <= start < stop <= rows = {rows}")
        self.rows, self.segment_length, self.segments_per_update = rows, segment_length, segments_per_update
        self._things, self._begin = things, begin_token
        self._seed, self._protocol, self._shuffle, self._epochs = seed, protocol, shuffle, epochs
        self._orders: dict[tuple[int, int], np.ndarray] = {}
        self._host = [Row(row) for row in range(start, stop)]
        self._others_need = 0

    def _go_to(self, position: Mapping[str, Any] | None, in_step: bool) -> None:
        """Goes to a position, and counts what other hosts have to give, where hosts must take as many steps."""
        if position is not None:
            self._restore(position)
        start, stop = self._host[0].row, self._host[-1].row + 1
        # Hosts must take the same number of steps, so a host that does not see all rows counts the others' segments.
        if in_step and self._epochs is not None and (start, stop) != (0, self.rows):
            self._others_need = self._segments_left([*range(start), *range(stop, self.rows)], position)

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
        batch = self._empty(self.segments_per_update, len(self._host))
        for segment in range(self.segments_per_update):
            for slot, row in enumerate(self._host):
                if self._has_more(row):
                    self._fill(batch, (segment, slot), row)
        self._others_need -= self.segments_per_update
        return batch

    def _empty(self, segments: int, rows: int) -> Batch:
        """A batch of padding."""
        raise NotImplementedError

    def _fill(self, batch: Batch, place: tuple[int, int], row: Row) -> None:
        """Puts the next segment of a row at (segment, row of this host), and moves the row on."""
        raise NotImplementedError

    def _row_segments(self, row: int, epoch: int, index: int, offset: int) -> int:
        """Segments that a row has to give from there on; only where `epochs` is finite."""
        raise NotImplementedError

    def _identity(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "protocol": self._protocol,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "begin_token": self._begin,
            "documents": len(self._things),
            "fingerprint": self._things.fingerprint,
        }

    def _restore(self, position: Mapping[str, Any]) -> None:
        given, ours = json.loads(json.dumps(dict(position["stream"]))), self._identity()
        if given != ours:
            raise ValueError(
                f"position: of another stream, {_difference(ours, given)}; use the run's own data settings"
            )
        missing = [row.row for row in self._host if str(row.row) not in position["rows"]]
        if missing:
            raise ValueError(f"position: has no rows {missing}; join the hosts' positions with merge_positions")
        for row in self._host:
            row.epoch, row.index, row.offset = (int(value) for value in position["rows"][str(row.row)])

    def _first(self, row: int) -> tuple[int, int]:
        """The row's first place in the permutation, and which permutation of an epoch it follows."""
        return (row, 0) if self._epochs is not None else (row % len(self._things), row // len(self._things))

    def _order(self, epoch: int, lap: int) -> np.ndarray:
        if (epoch, lap) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] >= epoch - 2}
            self._orders[epoch, lap] = epoch_order(
                len(self._things), seed=self._seed, epoch=epoch, lap=lap, shuffle=self._shuffle
            )
        return self._orders[epoch, lap]

    def _has_more(self, row: Row) -> bool:
        if self._epochs is not None and row.epoch >= self._epochs:
            return False
        return self._protocol == "contiguous" or self._first(row.row)[0] < len(self._things)

    def _number(self, row: Row) -> int:
        """What the row is in."""
        first, lap = self._first(row.row)
        return int(self._order(row.epoch, lap)[first + row.index * self.rows])

    def _advance(self, row: Row) -> None:
        """To the next thing of the row, in the next epoch where there is none."""
        row.offset, row.index = 0, row.index + 1
        if self._first(row.row)[0] + row.index * self.rows >= len(self._things):
            row.index, row.epoch = 0, row.epoch + 1

    def _segments_left(self, rows: Sequence[int], position: Mapping[str, Any] | None) -> int:
        """The largest number of segments that any of `rows` (of other hosts) still has to give."""
        held = {} if position is None else position["rows"]
        missing = [row for row in rows if position is not None and str(row) not in held]
        if missing:
            raise ValueError(f"position: has no rows {missing}; join the hosts' positions with merge_positions")
        return max((self._row_segments(row, *held.get(str(row), (0, 0, 0))) for row in rows), default=0)


def _difference(ours: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    names = [name for name in {**ours, **given} if ours.get(name) != given.get(name)]
    return ", ".join(f"{name} is {ours.get(name)!r} but the position has {given.get(name)!r}" for name in names)
