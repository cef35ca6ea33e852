"""Settings of how a split is read: rows, segments, protocol and scored tokens, with iterators that follow them.

Training, evaluation and every other use of a model on a whole split read through this module.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import jax

from memjax.data.batch_iterator import BatchIterator
from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import Documents, Examples, Split
from memjax.data.example_batches import ExampleBatches
from memjax.data.windows import SlidingWindowBatches, sliding_windows
from memjax.typing import Batch

__all__ = ["ReadingPlan"]

PROTOCOLS = ("separate", "contiguous", "sliding_window")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingPlan:
    """The way to read a split: number of rows, segment length, protocol and scored tokens.

    Labelled examples are read in one segment each, whatever the protocol.

    Attributes:
      rows: Number of rows of a batch, over all hosts.
      segment_length: Number of tokens of a segment or window.
      protocol: `separate` (memory is reset at the start of each document), `contiguous` (the joined documents are cut
        into `rows` streams, and memory is never reset) or `sliding_window` (memory is reset at the start of each
        window, and only its last `stride` tokens are scored).
      stride: Number of scored tokens of a window. 0 for half a window with `sliding_window`, and the only value with
        the other protocols.
      begin_token: Id that is read before the first token of a document. None for no such id.
      score_first: Whether to score the first token of each document, predicted from `begin_token`.

    Raises:
      ValueError: An unknown protocol, or a stride that the protocol does not allow.
    """

    rows: int
    segment_length: int
    protocol: str = "separate"
    stride: int = 0
    begin_token: int | None = None
    score_first: bool = True

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol: given {self.protocol!r}, allowed: {', '.join(PROTOCOLS)}")
        if self.protocol != "sliding_window":
            if self.stride:
                raise ValueError(f"stride: given {self.stride}, allowed: 0 with protocol {self.protocol!r}")
            return
        object.__setattr__(self, "stride", self.stride or max(self.segment_length // 2, 1))
        if not 1 <= self.stride <= self.segment_length:
            raise ValueError(f"stride: given {self.stride}, allowed: 1 to segment_length = {self.segment_length}")

    def stream(self, split: Split, **arguments: Any) -> BatchIterator:
        """Returns an iterator over batches `[segments, batch, ...]` of `split`, which is documents or examples, with a
        position from which reading can continue. It has no end unless `epochs` is passed.

        Args:
          split: Documents or examples to read.
          **arguments: Any of the arguments `seed`, `shuffle`, `epochs`, `position`, `host_rows`, `segments_per_update`
            and `in_step` of `DocumentBatches`.
        """
        alone = isinstance(split, Examples)
        return (ExampleBatches if alone else DocumentBatches)(
            split,
            rows=self.rows,
            segment_length=self.segment_length,
            protocol="separate" if alone else self.protocol,
            begin_token=self.begin_token,
            score_first=self.score_first,
            **arguments,
        )

    def once(
        self,
        split: Split,
        *,
        host_rows: tuple[int, int] | None = None,
        position: Mapping[str, Any] | None = None,
        in_step: bool = True,
    ) -> BatchIterator | SlidingWindowBatches:
        """Returns an iterator over batches `[1, batch, ...]` of one pass of `split`, documents or examples, in their
        own order. `host_rows` is the range `(start, stop)` of this host. `in_step` pads until all hosts are done.

        Args:
          split: Documents or examples to read.
          host_rows: `(start, stop)`, the rows of this host. None for all rows.
          position: Position of an earlier pass to continue from. None to start at the beginning.
          in_step: Whether to yield padding until the rows of all hosts have finished. No effect on sliding windows.
        """
        if self._uses_windows(split):
            return SlidingWindowBatches(split, position=position, host_rows=host_rows, **self._window_options())
        return self.stream(split, shuffle=False, epochs=1, host_rows=host_rows, position=position, in_step=in_step)

    def batches(self, split: Split, host_rows: tuple[int, int] | None = None) -> Iterable[Batch]:
        """Returns an iterable of the batches of one pass of `split`, documents or examples, in their own order:
        `[batch, length]`, without an axis of segments. `host_rows` is the range `(start, stop)` of this host.
        """
        if self._uses_windows(split):
            return sliding_windows(split, host_rows=host_rows, **self._window_options())
        return (jax.tree.map(lambda leaf: leaf[0], batch) for batch in self.once(split, host_rows=host_rows))

    def _uses_windows(self, split: Split) -> TypeGuard[Documents]:
        return self.protocol == "sliding_window" and not isinstance(split, Examples)

    def _window_options(self) -> dict[str, Any]:
        begin = self.begin_token if self.score_first else None
        return {"rows": self.rows, "length": self.segment_length, "stride": self.stride, "begin_token": begin}
