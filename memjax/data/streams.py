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

import functools
from collections.abc import Mapping

import numpy as np

from memjax.data.documents import Example
from memjax.data.rows import Row, RowStream

__all__ = ["Streams"]


class Streams(RowStream):
    """An iterator over the updates of one host: `Batch` of NumPy arrays `[segments, batch, length]`.

    Which documents a row takes, and what `position` holds, is said in `RowStream`.

    Scoring. `separate`: inputs are `[begin] + tokens[:-1]` and targets `tokens`, so every token is scored once and
    targets cross segment borders. `contiguous`: row r owns tokens `[a, b)` of the joined corpus, lengths differing by
    at most one, and reads `tokens[a - 1 : b - 1]`: its first input is the token before its first target, the begin
    token for row 0. Nothing is trimmed: the shorter rows end in padding. With `score_first=False` the begin token is
    not used and the first token of a document (of the corpus, in `contiguous`) is read but not scored.

    Example:
      >>> from memjax.data.documents import ArrayDocuments
      >>> stream = Streams(ArrayDocuments([[5, 6, 7]]), rows=1, segment_length=2, begin_token=1, epochs=1)
      >>> first, second = stream
      >>> first.inputs.tolist(), first.targets.tolist(), first.start_of_document.tolist()
      ([[[1, 5]]], [[[5, 6]]], [[True]])
      >>> second.inputs.tolist(), second.mask.tolist(), second.start_of_document.tolist()
      ([[[6, 0]]], [[[True, False]]], [[False]])
    """

    def _open(self) -> Example:
        if self._score_first and self._begin is None:
            raise ValueError("begin_token: None; give the tokenizer's begin id, or score_first=False")
        self._ends: dict[int, np.ndarray] = {}
        self._kept: dict[int, tuple[int, np.ndarray, dict[str, np.ndarray]]] = {}
        if self._protocol == "separate":
            self._require_tokens()
        context = self._documents.context(0)
        if self._protocol == "contiguous":
            if context:
                raise ValueError("protocol: 'contiguous' given; documents with a context allow 'separate'")
            if (tokens := int(self._lengths.sum())) < self.rows + (self._begin is None):
                raise ValueError(
                    f"rows: {self.rows} streams of a corpus of {tokens} tokens; give at most as many rows as tokens"
                )
        nothing, annotations = self._documents.window(0, 0, 0)
        names = {name: array for name, array in annotations.items() if name != "weights"}
        return Example(nothing, np.zeros(self.segment_length, np.int32), np.zeros(0, np.float32), names, context)

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([self._documents.num_tokens(i) for i in range(len(self._documents))], np.int64)

    def _require_tokens(self) -> None:
        """Raises where a document has nothing to score, however late a row would come to it."""
        first = int(self._begin is None)
        if not (short := np.flatnonzero(self._lengths <= first)).size:
            return
        name, tokens = self._documents.name(int(short[0])), int(self._lengths[short[0]])
        needed = "two (score_first=False does not score the first)" if first else "one"
        more = f", and so {len(short) - 1:,} more" if len(short) > 1 else ""
        raise ValueError(
            f"documents: document {name} has {tokens} tokens{more}; needs at least {needed}; set a minimum document "
            "length"
        )

    # Segments

    def _next(self, row: Row) -> tuple[Example, bool]:
        if self._protocol == "separate":
            document = self._number(row)
            first, last = int(self._begin is None), int(self._lengths[document])
            read, context = functools.partial(self._read, row, document), self._documents.context(document)
        else:
            first, last = self._bounds(row.row)
            read, context = functools.partial(self._read_corpus, row), {}
        begin, start = first + row.offset, row.offset == 0
        end = min(begin + self.segment_length, last)
        example = self._example(*read(max(begin - 1, 0), end), context, end - begin)
        row.offset += end - begin
        if end == last and self._protocol == "separate":
            self._advance(row)
        elif end == last:
            row.offset, row.epoch = 0, row.epoch + 1
        return example, start

    def _bounds(self, row: int) -> tuple[int, int]:
        """The targets `[begin, end)` of a row in the joined corpus."""
        unscored = int(self._begin is None)
        scored = int(self._lengths.sum()) - unscored
        return unscored + row * scored // self.rows, unscored + (row + 1) * scored // self.rows

    def _example(
        self, tokens: np.ndarray, annotations: Mapping[str, np.ndarray], context: Mapping[str, np.ndarray], size: int
    ) -> Example:
        """Splits tokens (the targets, and the token before them where there is one) into inputs and targets."""
        first, inputs = len(tokens) - size, tokens[:-1]
        if not first:  # Nothing stands before the first target.
            inputs = np.concatenate([np.array([self._begin], np.int32), inputs])
        notes = {name: array[first:] for name, array in annotations.items()}
        weights = notes.pop("weights", np.ones(size, np.float32))
        return Example(inputs, tokens[first:], weights, notes, context)

    def _read(self, row: Row, document: int, begin: int, end: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if self._documents.sliced:
            return self._documents.window(document, begin, end)
        # The whole document is read once while the row is in it.
        if row.row not in self._kept or self._kept[row.row][0] != document:
            self._kept[row.row] = (document, self._documents[document], self._documents.annotate(document))
        _, tokens, annotations = self._kept[row.row]
        return tokens[begin:end], {name: array[begin:end] for name, array in annotations.items()}

    def _read_corpus(self, row: Row, begin: int, end: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        order = self._order(row.epoch, 0)
        if row.epoch not in self._ends:
            self._ends = {epoch: ends for epoch, ends in self._ends.items() if epoch >= row.epoch - 1}
            self._ends[row.epoch] = np.cumsum(self._lengths[order])
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

    def _row_segments(self, row: int, epoch: int, index: int, offset: int) -> int:
        assert self._epochs is not None
        total = 0
        for current in range(epoch, self._epochs):
            if self._protocol == "contiguous":
                begin, end = self._bounds(row)
                sizes = np.array([end - begin])
            else:
                sizes = self._lengths[self._order(current, 0)[row :: self.rows]] - int(self._begin is None)
            if current == epoch and len(sizes):
                sizes = sizes[index:] - np.eye(1, len(sizes) - index, dtype=np.int64)[0] * offset
            total += int((-(-sizes // self.segment_length)).sum())
        return total
