"""Batches of documents: each row reads its documents segment by segment, with a position that resumes exactly.

There are two protocols. Reported numbers name theirs.

- `separate`: A row reads whole documents one after the other. A segment never contains tokens of two documents.
  `start_of_document` marks the first segment of each document, and the end of its last segment is padding.
- `contiguous`: The documents are joined and cut into as many contiguous streams as there are rows. Memory is never
  reset (the published protocol of Transformer-XL, Compressive Transformer, kNN-LM and enwik8). `start_of_document`
  marks only the first segment of a row in an epoch.

Everything here is NumPy on the host. The arrays of a `Batch` **always** have the leading axes
`[segments, batch, length]`, also when `segments_per_update` is 1.
"""

import functools
from collections.abc import Mapping

import numpy as np

from memjax.data.batch_iterator import BatchIterator, RowPosition
from memjax.data.documents import Example

__all__ = ["DocumentBatches"]


class DocumentBatches(BatchIterator):
    """Iterates over the batches of documents that one host reads, one `Batch` per step, from the start or `position`.

    The arrays of a batch are NumPy arrays `[segments, batch, length]`. Without `epochs` the batches do not end. See
    `BatchIterator` for the documents that each row reads, and for `position`.

    Every token is a target once:

    - `separate`: Inputs are `[begin] + tokens[:-1]` and targets `tokens`. The target of the last input of a segment is
      the first input of the next segment.
    - `contiguous`: Row r has the targets `tokens[a:b]` of the joined corpus and the inputs `tokens[a - 1 : b - 1]`. Its
      first input is the token before its first target, for row 0 the begin token. The lengths of the rows differ by at
      most one. Nothing is trimmed: the shorter rows end in padding.

    With `score_first=False` the begin token is not used, and the first token of each document (of the corpus, in
    `contiguous`) is read but not scored.

    Example:
      >>> from memjax.data.documents import ArrayDocuments
      >>> stream = DocumentBatches(ArrayDocuments([[5, 6, 7]]), rows=1, segment_length=2, begin_token=1, epochs=1)
      >>> first, second = stream
      >>> first.inputs.tolist(), first.targets.tolist(), first.start_of_document.tolist()
      ([[[1, 5]]], [[[5, 6]]], [[True]])
      >>> second.inputs.tolist(), second.mask.tolist(), second.start_of_document.tolist()
      ([[[6, 0]]], [[[True, False]]], [[False]])
    """

    def _make_template(self) -> Example:
        if self._score_first and self._begin is None:
            raise ValueError("begin_token: None; give the tokenizer's begin id, or score_first=False")
        self._document_ends: dict[int, np.ndarray] = {}
        self._open_documents: dict[int, tuple[int, np.ndarray, dict[str, np.ndarray]]] = {}
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
        """Number of tokens of each document, int64 `[documents]`."""
        return np.array([self._documents.num_tokens(i) for i in range(len(self._documents))], np.int64)

    def _require_tokens(self) -> None:
        """Raises if any document has no token to score, before the first batch is read."""
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

    def _next_segment(self, row: RowPosition) -> tuple[Example, bool]:
        if self._protocol == "separate":
            document = self._item_number(row)
            first, last = int(self._begin is None), int(self._lengths[document])
            read, context = functools.partial(self._read, row, document), self._documents.context(document)
        else:
            first, last = self._target_range(row.row)
            read, context = functools.partial(self._read_corpus, row), {}
        begin, start = first + row.offset, row.offset == 0
        end = min(begin + self.segment_length, last)
        example = self._example(*read(max(begin - 1, 0), end), context, end - begin)
        row.offset += end - begin
        if end == last and self._protocol == "separate":
            self._advance_row(row)
        elif end == last:
            row.offset, row.epoch = 0, row.epoch + 1
        return example, start

    def _target_range(self, row: int) -> tuple[int, int]:
        """Returns the range `[begin, end)` of a row's targets in the joined corpus."""
        unscored = int(self._begin is None)
        scored = int(self._lengths.sum()) - unscored
        return unscored + row * scored // self.rows, unscored + (row + 1) * scored // self.rows

    def _example(
        self, tokens: np.ndarray, annotations: Mapping[str, np.ndarray], context: Mapping[str, np.ndarray], size: int
    ) -> Example:
        """Splits tokens (`size` targets, and the token before them if there is one) into inputs and targets."""
        first, inputs = len(tokens) - size, tokens[:-1]
        if not first:  # Nothing stands before the first target.
            inputs = np.concatenate([np.array([self._begin], np.int32), inputs])
        notes = {name: array[first:] for name, array in annotations.items()}
        weights = notes.pop("weights", np.ones(size, np.float32))
        return Example(inputs, tokens[first:], weights, notes, context)

    def _read(self, row: RowPosition, document: int, begin: int, end: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the tokens `[begin, end)` of a document and their annotations."""
        if self._documents.sliced:
            return self._documents.window(document, begin, end)
        # The whole document is read once while the row is in it.
        if row.row not in self._open_documents or self._open_documents[row.row][0] != document:
            self._open_documents[row.row] = (document, self._documents[document], self._documents.annotate(document))
        _, tokens, annotations = self._open_documents[row.row]
        return tokens[begin:end], {name: array[begin:end] for name, array in annotations.items()}

    def _read_corpus(self, row: RowPosition, begin: int, end: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the tokens `[begin, end)` of the joined corpus and their annotations."""
        order = self._order(row.epoch, 0)
        if row.epoch not in self._document_ends:
            self._document_ends = {epoch: ends for epoch, ends in self._document_ends.items() if epoch >= row.epoch - 1}
            self._document_ends[row.epoch] = np.cumsum(self._lengths[order])
        ends = self._document_ends[row.epoch]
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
                begin, end = self._target_range(row)
                sizes = np.array([end - begin])
            else:
                sizes = self._lengths[self._order(current, 0)[row :: self.rows]] - int(self._begin is None)
            if current == epoch and len(sizes):
                sizes = sizes[index:] - np.eye(1, len(sizes) - index, dtype=np.int64)[0] * offset
            total += int((-(-sizes // self.segment_length)).sum())
        return total
