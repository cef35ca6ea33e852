"""Documents to rows: token streams in segments, with a position that resumes exactly.

Two protocols, named beside every reported number:

- `separate`: a row streams whole documents one after the other. A segment never straddles two documents,
  `start_of_document` marks the first segment of each, its tail is padding.
- `contiguous`: the documents are joined and cut into as many contiguous streams as there are rows; memory is never
  reset (the published protocol of Transformer-XL, Compressive Transformer, kNN-LM and enwik8). `start_of_document`
  marks only the first segment of a row in an epoch.

Everything here is NumPy on the host. A stream yields `Batch`es whose arrays **always** lead with
`[segments, batch, length]`, also when `segments_per_update` is 1.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.data.documents import ArrayDocuments, Documents
from memjax.typing import Batch

__all__ = ["PROTOCOLS", "ArrayDocuments", "Documents", "Streams", "epoch_order", "merge_positions", "position_of_rows"]

PROTOCOLS = ("separate", "contiguous")


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


@dataclasses.dataclass
class _Row:
    """Where a row is: the next target is `offset` in the `index`-th document (or the stream) of the row's `epoch`."""

    row: int
    epoch: int = 0
    index: int = 0
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class _Piece:
    """One segment of one row before padding."""

    inputs: np.ndarray
    targets: np.ndarray
    annotations: dict[str, np.ndarray]
    start: bool
    context: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Streams:
    """An iterator over the updates of one host: `Batch` of NumPy arrays `[segments, batch, length]`.

    Row r of `rows` takes documents r, r + rows, ... of the seeded permutation of each epoch, whatever host it lives
    on, so the rows of a run are the same for any split over hosts. Rows do not wait for each other: a row that is
    through with its share of an epoch begins the next. When `epochs` is finite a row without documents gives
    all-padding segments until all rows (of all hosts) are through; otherwise rows beyond the number of documents take
    document `row % len(documents)` first, in permutations of their own.

    Scoring. `separate`: inputs are `[begin] + tokens[:-1]` and targets `tokens`, so every token is scored once and
    targets cross segment borders. `contiguous`: row r owns tokens `[a, b)` of the joined corpus, lengths differing by
    at most one, and reads `tokens[a - 1 : b - 1]`: its first input is the token before its first target, the begin
    token for row 0. Nothing is trimmed: the shorter rows end in padding. With `score_first=False` the begin token is
    not used and the first token of a document (of the corpus, in `contiguous`) is read but not scored.

    Attributes:
      position: JSON-able; give it to a new `Streams` to continue with the batch that would have come next. It holds
        (epoch, index, offset) of this host's rows and what must match; `merge_positions` joins those of several
        hosts. `segment_length`, `segments_per_update` and `epochs` may differ when it is restored.

    Example:
      >>> stream = Streams(ArrayDocuments([[5, 6, 7]]), rows=1, segment_length=2, begin_token=1, epochs=1)
      >>> first, second = stream
      >>> first.inputs.tolist(), first.targets.tolist(), first.start_of_document.tolist()
      ([[[1, 5]]], [[[5, 6]]], [[True]])
      >>> second.inputs.tolist(), second.mask.tolist(), second.start_of_document.tolist()
      ([[[6, 0]]], [[[True, False]]], [[False]])
    """

    def __init__(
        self,
        documents: Documents,
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
          documents: the tokenised documents.
          rows: batch rows of the whole run, over all hosts.
          segment_length: tokens of one segment.
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
        _check_arguments(documents, rows, segment_length, segments_per_update, protocol, (start, stop), epochs)
        if score_first and begin_token is None:
            raise ValueError("begin_token: None; give the tokenizer's begin id, or score_first=False")
        self.rows, self.segment_length, self.segments_per_update = rows, segment_length, segments_per_update
        self._documents = documents
        self._seed, self._protocol, self._shuffle, self._epochs = seed, protocol, shuffle, epochs
        self._begin = int(begin_token) if score_first and begin_token is not None else None
        self._extras = {name: like for name, like in _annotation_types(documents).items() if name != "weights"}
        self._context = {name: np.zeros_like(array) for name, array in documents.context(0).items()}
        if self._context and protocol == "contiguous":
            raise ValueError("protocol: 'contiguous' given; documents with a context allow 'separate'")
        self._orders: dict[tuple[int, int], np.ndarray] = {}
        self._ends: dict[int, np.ndarray] = {}
        self._lengths: np.ndarray | None = None
        self._open: dict[int, tuple[int, np.ndarray, dict[str, np.ndarray]]] = {}
        self._host = [_Row(row) for row in range(start, stop)]
        if protocol == "contiguous" and (tokens := int(self._document_lengths().sum())) < rows + (not score_first):
            raise ValueError(
                f"rows: {rows} streams of a corpus of {tokens} tokens; give at most as many rows as tokens"
            )
        if position is not None:
            self._restore(position)
        # Hosts must take the same number of steps, so a host that does not see all rows counts the others' segments.
        self._others_need = 0
        if in_step and epochs is not None and (start, stop) != (0, rows):
            self._others_need = self._segments_left([*range(start), *range(stop, rows)], position)

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
        shape = (self.segments_per_update, len(self._host), self.segment_length)
        if self._others_need <= 0 and not any(self._has_more(row) for row in self._host):
            raise StopIteration
        batch = Batch(
            inputs=np.zeros(shape, np.int32),
            targets=np.zeros(shape, np.int32),
            mask=np.zeros(shape, bool),
            weights=np.zeros(shape, np.float32),
            start_of_document=np.zeros(shape[:2], bool),
            extras={name: np.zeros((*shape, *like.shape), like.dtype) for name, like in self._extras.items()}
            | {name: np.zeros((*shape[:2], *like.shape), like.dtype) for name, like in self._context.items()},
        )
        epochs = np.zeros(shape[:2], np.int64)
        for segment in range(self.segments_per_update):
            for slot, row in enumerate(self._host):
                epochs[segment, slot] = row.epoch
                if self._has_more(row):
                    self._write(batch, segment, slot, self._next_piece(row))
        self._others_need -= self.segments_per_update
        return self._documents.ask(batch, epochs) if hasattr(self._documents, "ask") else batch  # type: ignore[attr-defined]

    # Documents of a row

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
        return (row, 0) if self._epochs is not None else (row % len(self._documents), row // len(self._documents))

    def _order(self, epoch: int, lap: int) -> np.ndarray:
        if (epoch, lap) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] >= epoch - 2}
            self._orders[epoch, lap] = epoch_order(
                len(self._documents), seed=self._seed, epoch=epoch, lap=lap, shuffle=self._shuffle
            )
        return self._orders[epoch, lap]

    def _has_more(self, row: _Row) -> bool:
        if self._epochs is not None and row.epoch >= self._epochs:
            return False
        return self._protocol == "contiguous" or self._first(row.row)[0] < len(self._documents)

    def _document_lengths(self) -> np.ndarray:
        if self._lengths is None:
            self._lengths = np.array([self._documents.num_tokens(i) for i in range(len(self._documents))], np.int64)
        return self._lengths

    # Segments

    def _next_piece(self, row: _Row) -> _Piece:
        return self._next_separate(row) if self._protocol == "separate" else self._next_contiguous(row)

    def _next_separate(self, row: _Row) -> _Piece:
        first, lap = self._first(row.row)
        document = int(self._order(row.epoch, lap)[first + row.index * self.rows])
        unscored = int(self._begin is None)
        total = self._documents.num_tokens(document)
        if total <= unscored:
            raise ValueError(_too_short(self._documents, document, total, unscored))
        begin = unscored + row.offset
        end = min(begin + self.segment_length, total)
        piece = self._piece(row, *self._read(row, document, max(begin - 1, 0), end), end - begin, start=row.offset == 0)
        piece = dataclasses.replace(piece, context=self._documents.context(document))
        row.offset += end - begin
        if end == total:
            row.offset, row.index = 0, row.index + 1
            if first + row.index * self.rows >= len(self._documents):
                row.index, row.epoch = 0, row.epoch + 1
        return piece

    def _next_contiguous(self, row: _Row) -> _Piece:
        stream_begin, stream_end = self._bounds(row.row)
        begin = stream_begin + row.offset
        end = min(begin + self.segment_length, stream_end)
        piece = self._piece(row, *self._read_corpus(row, max(begin - 1, 0), end), end - begin, start=row.offset == 0)
        row.offset += end - begin
        if end == stream_end:
            row.offset, row.epoch = 0, row.epoch + 1
        return piece

    def _bounds(self, row: int) -> tuple[int, int]:
        """The targets `[begin, end)` of a row in the joined corpus."""
        unscored = int(self._begin is None)
        scored = int(self._document_lengths().sum()) - unscored
        return unscored + row * scored // self.rows, unscored + (row + 1) * scored // self.rows

    def _piece(
        self, row: _Row, tokens: np.ndarray, annotations: dict[str, np.ndarray], size: int, *, start: bool
    ) -> _Piece:
        """Splits tokens (the targets, and the token before them where there is one) into inputs and targets."""
        targets = tokens[len(tokens) - size :]
        inputs = tokens[: len(tokens) - 1]
        if len(tokens) == size:  # Nothing stands before the first target.
            inputs = np.concatenate([np.array([self._begin], np.int32), inputs])
        return _Piece(inputs, targets, {k: v[len(tokens) - size :] for k, v in annotations.items()}, start)

    def _read(self, row: _Row, document: int, begin: int, end: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if self._documents.sliced:
            return self._documents.window(document, begin, end)
        tokens, annotations = self._opened(row, document)
        return tokens[begin:end], {name: array[begin:end] for name, array in annotations.items()}

    def _opened(self, row: _Row, document: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The whole document, read once while the row is in it."""
        if row.row not in self._open or self._open[row.row][0] != document:
            self._open[row.row] = (document, self._documents[document], self._documents.annotate(document))
        return self._open[row.row][1:]

    def _read_corpus(self, row: _Row, begin: int, end: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        order = self._order(row.epoch, 0)
        if row.epoch not in self._ends:
            self._ends = {epoch: ends for epoch, ends in self._ends.items() if epoch >= row.epoch - 1}
            self._ends[row.epoch] = np.cumsum(self._document_lengths()[order])
        ends = self._ends[row.epoch]
        parts = []
        place = int(np.searchsorted(ends, begin, side="right"))
        while begin < end:
            until = min(end, int(ends[place]))
            document_begin = int(ends[place - 1]) if place else 0
            if until > begin:
                parts.append(self._read(row, int(order[place]), begin - document_begin, until - document_begin))
            begin, place = until, place + 1
        tokens = np.concatenate([tokens for tokens, _ in parts])
        names = parts[0][1]
        return tokens, {name: np.concatenate([annotations[name] for _, annotations in parts]) for name in names}

    def _write(self, batch: Batch, segment: int, slot: int, piece: _Piece) -> None:
        size = len(piece.targets)
        batch.inputs[segment, slot, :size] = piece.inputs
        batch.targets[segment, slot, :size] = piece.targets
        batch.mask[segment, slot, :size] = True
        batch.weights[segment, slot, :size] = piece.annotations.get("weights", 1)
        batch.start_of_document[segment, slot] = piece.start
        for name in self._extras:
            batch.extras[name][segment, slot, :size] = piece.annotations[name]
        for name, array in piece.context.items():
            batch.extras[name][segment, slot] = array

    def _segments_left(self, rows: Sequence[int], position: Mapping[str, Any] | None) -> int:
        """The largest number of segments that any of `rows` (of other hosts) still has to give."""
        held = {} if position is None else position["rows"]
        missing = [row for row in rows if position is not None and str(row) not in held]
        if missing:
            raise ValueError(f"position: has no rows {missing}; join the hosts' positions with merge_positions")
        return max((self._row_segments(row, *held.get(str(row), (0, 0, 0))) for row in rows), default=0)

    def _row_segments(self, row: int, epoch: int, index: int, offset: int) -> int:
        assert self._epochs is not None
        total = 0
        for current in range(epoch, self._epochs):
            if self._protocol == "contiguous":
                begin, end = self._bounds(row)
                sizes = np.array([end - begin])
            else:
                sizes = self._document_lengths()[self._order(current, 0)[row :: self.rows]] - int(self._begin is None)
            if current == epoch and len(sizes):
                sizes = sizes[index:] - np.eye(1, len(sizes) - index, dtype=np.int64)[0] * offset
            total += int((-(-sizes // self.segment_length)).sum())
        return total


def _check_arguments(
    documents: Documents,
    rows: int,
    segment_length: int,
    segments_per_update: int,
    protocol: str,
    host_rows: tuple[int, int],
    epochs: int | None,
) -> None:
    if len(documents) == 0:
        raise ValueError("documents: none; give at least one document")
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol: {protocol!r}; allowed are {', '.join(PROTOCOLS)}")
    sizes = {"rows": rows, "segment_length": segment_length, "segments_per_update": segments_per_update}
    for name, value in {**sizes, "epochs": 1 if epochs is None else epochs}.items():
        if value < 1:
            raise ValueError(f"{name}: {value}; give at least 1")
    if not 0 <= host_rows[0] < host_rows[1] <= rows:
        raise ValueError(f"host_rows: {host_rows}; give (start, stop) with 0 <= start < stop <= rows = {rows}")


def _annotation_types(documents: Documents) -> dict[str, np.ndarray]:
    """Name -> zeros of the shape and type that an annotation has at one token."""
    annotations = documents.window(0, 0, 0)[1]
    return {name: np.zeros(array.shape[1:], array.dtype) for name, array in annotations.items()}


def _too_short(documents: Documents, index: int, tokens: int, unscored: int) -> str:
    needed = "one" if not unscored else "two (score_first=False does not score the first)"
    name = documents.name(index)
    return f"documents: document {name} has {tokens} tokens; needs at least {needed}; set a minimum document length"


def _difference(ours: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    names = [name for name in {**ours, **given} if ours.get(name) != given.get(name)]
    return ", ".join(f"{name} is {ours.get(name)!r} but the position has {given.get(name)!r}" for name in names)
