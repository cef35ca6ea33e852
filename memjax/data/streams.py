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

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from memjax.data.documents import ArrayDocuments, Documents
from memjax.data.rows import Row, RowStream
from memjax.typing import Batch

__all__ = ["PROTOCOLS", "ArrayDocuments", "Documents", "Streams"]

PROTOCOLS = ("separate", "contiguous")


@dataclasses.dataclass(frozen=True)
class _Piece:
    """One segment of one row before padding."""

    inputs: np.ndarray
    targets: np.ndarray
    annotations: dict[str, np.ndarray]
    start: bool
    context: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Streams(RowStream):
    """An iterator over the updates of one host: `Batch` of NumPy arrays `[segments, batch, length]`.

    Which documents a row takes, and what `position` holds, is said in `RowStream`.

    Scoring. `separate`: inputs are `[begin] + tokens[:-1]` and targets `tokens`, so every token is scored once and
    targets cross segment borders. `contiguous`: row r owns tokens `[a, b)` of the joined corpus, lengths differing by
    at most one, and reads `tokens[a - 1 : b - 1]`: its first input is the token before its first target, the begin
    token for row 0. Nothing is trimmed: the shorter rows end in padding. With `score_first=False` the begin token is
    not used and the first token of a document (of the corpus, in `contiguous`) is read but not scored.

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
        if protocol not in PROTOCOLS:
            raise ValueError(f"protocol: {protocol!r}; allowed are {', '.join(PROTOCOLS)}")
        if score_first and begin_token is None:
            raise ValueError("begin_token: None; give the tokenizer's begin id, or score_first=False")
        super().__init__(
            documents,
            rows=rows,
            segment_length=segment_length,
            segments_per_update=segments_per_update,
            seed=seed,
            protocol=protocol,
            shuffle=shuffle,
            begin_token=int(begin_token) if score_first and begin_token is not None else None,
            host_rows=host_rows,
            epochs=epochs,
        )
        self._documents = documents
        self._extras = {name: like for name, like in _annotation_types(documents).items() if name != "weights"}
        self._context = {name: np.zeros_like(array) for name, array in documents.context(0).items()}
        if self._context and protocol == "contiguous":
            raise ValueError("protocol: 'contiguous' given; documents with a context allow 'separate'")
        self._ends: dict[int, np.ndarray] = {}
        self._lengths: np.ndarray | None = None
        self._open: dict[int, tuple[int, np.ndarray, dict[str, np.ndarray]]] = {}
        if protocol == "contiguous" and (tokens := int(self._document_lengths().sum())) < rows + (not score_first):
            raise ValueError(
                f"rows: {rows} streams of a corpus of {tokens} tokens; give at most as many rows as tokens"
            )
        self._go_to(position, in_step)

    def _empty(self, segments: int, rows: int) -> Batch:
        shape = (segments, rows, self.segment_length)
        return Batch(
            inputs=np.zeros(shape, np.int32),
            targets=np.zeros(shape, np.int32),
            mask=np.zeros(shape, bool),
            weights=np.zeros(shape, np.float32),
            start_of_document=np.zeros(shape[:2], bool),
            extras={name: np.zeros((*shape, *like.shape), like.dtype) for name, like in self._extras.items()}
            | {name: np.zeros((*shape[:2], *like.shape), like.dtype) for name, like in self._context.items()},
        )

    def _fill(self, batch: Batch, place: tuple[int, int], row: Row) -> None:
        self._write(batch, *place, self._next_piece(row))

    def _document_lengths(self) -> np.ndarray:
        if self._lengths is None:
            self._lengths = np.array([self._documents.num_tokens(i) for i in range(len(self._documents))], np.int64)
        return self._lengths

    # Segments

    def _next_piece(self, row: Row) -> _Piece:
        return self._next_separate(row) if self._protocol == "separate" else self._next_contiguous(row)

    def _next_separate(self, row: Row) -> _Piece:
        document = self._number(row)
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
            self._advance(row)
        return piece

    def _next_contiguous(self, row: Row) -> _Piece:
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
        self, row: Row, tokens: np.ndarray, annotations: dict[str, np.ndarray], size: int, *, start: bool
    ) -> _Piece:
        """Splits tokens (the targets, and the token before them where there is one) into inputs and targets."""
        targets = tokens[len(tokens) - size :]
        inputs = tokens[: len(tokens) - 1]
        if len(tokens) == size:  # Nothing stands before the first target.
            inputs = np.concatenate([np.array([self._begin], np.int32), inputs])
        return _Piece(inputs, targets, {k: v[len(tokens) - size :] for k, v in annotations.items()}, start)

    def _read(self, row: Row, document: int, begin: int, end: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if self._documents.sliced:
            return self._documents.window(document, begin, end)
        tokens, annotations = self._opened(row, document)
        return tokens[begin:end], {name: array[begin:end] for name, array in annotations.items()}

    def _opened(self, row: Row, document: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The whole document, read once while the row is in it."""
        if row.row not in self._open or self._open[row.row][0] != document:
            self._open[row.row] = (document, self._documents[document], self._documents.annotate(document))
        return self._open[row.row][1:]

    def _read_corpus(self, row: Row, begin: int, end: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
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


def _annotation_types(documents: Documents) -> dict[str, np.ndarray]:
    """Name -> zeros of the shape and type that an annotation has at one token."""
    annotations = documents.window(0, 0, 0)[1]
    return {name: np.zeros(array.shape[1:], array.dtype) for name, array in annotations.items()}


def _too_short(documents: Documents, index: int, tokens: int, unscored: int) -> str:
    needed = "one" if not unscored else "two (score_first=False does not score the first)"
    name = documents.name(index)
    return f"documents: document {name} has {tokens} tokens; needs at least {needed}; set a minimum document length"
