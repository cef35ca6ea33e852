"""How a split is read: by training, by evaluation, and by whatever takes what a model makes of every token."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import jax

from memjax.data.documents import Documents, Examples, Split
from memjax.data.examples import ExampleStream
from memjax.data.rows import RowStream
from memjax.data.streams import Streams
from memjax.data.windows import Windows, sliding_windows
from memjax.typing import Batch

__all__ = ["Reading"]

PROTOCOLS = ("separate", "contiguous", "sliding_window")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """Rows, segments and what is scored; examples are one segment each, whatever the protocol.

    Attributes:
      rows: streams side by side, over all hosts.
      segment_length: tokens of a segment or window.
      protocol: `separate` (memory starts anew with each document), `contiguous` (`rows` streams, never reset) or
        `sliding_window` (each window starts anew and only its last `stride` tokens are scored).
      stride: tokens scored per window; given as 0 it is half a window; 0 where the protocol has none.
      begin_token: read before a document's first token.
      score_first: score each document's first token from `begin_token`.

    Raises:
      ValueError: a protocol that does not exist, or a stride that it does not have.
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

    def stream(self, split: Split, **arguments: Any) -> RowStream:
        """The updates that training reads.

        Args:
          split: what is read.
          **arguments: `seed`, `shuffle`, `epochs`, `position`, `host_rows`, `segments_per_update` and `in_step` of
            `Streams`.
        """
        alone = isinstance(split, Examples)
        return (ExampleStream if alone else Streams)(
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
    ) -> RowStream | Windows:
        """One pass in the order of the split, from its beginning or from the position of an earlier one."""
        if self._slides(split):
            return Windows(split, position=position, host_rows=host_rows, **self._windows())
        return self.stream(split, shuffle=False, epochs=1, host_rows=host_rows, position=position, in_step=in_step)

    def batches(self, split: Split, host_rows: tuple[int, int] | None = None) -> Iterable[Batch]:
        """One pass in the order of the split: batches of one segment, without the axis of segments."""
        if self._slides(split):
            return sliding_windows(split, host_rows=host_rows, **self._windows())
        return (jax.tree.map(lambda leaf: leaf[0], batch) for batch in self.once(split, host_rows=host_rows))

    def _slides(self, split: Split) -> TypeGuard[Documents]:
        return self.protocol == "sliding_window" and not isinstance(split, Examples)

    def _windows(self) -> dict[str, Any]:
        begin = self.begin_token if self.score_first else None
        return {"rows": self.rows, "length": self.segment_length, "stride": self.stride, "begin_token": begin}
