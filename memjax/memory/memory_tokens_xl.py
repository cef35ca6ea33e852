"""Memory tokens before every segment of a Transformer-XL.

Burtsev et al. 2020, "Memory Transformer", https://arxiv.org/abs/2006.11527.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from memjax.functional.attention import visibility
from memjax.functional.fifo import ring_append
from memjax.memory.contract import DecodeState, broadcast_mask, next_position
from memjax.memory.projections import project
from memjax.memory.transformer_xl import TransformerXLAttention, TransformerXLSegment, read
from memjax.typing import Aux, Rows

__all__ = ["MemoryTokenXLAttention"]


class MemoryTokenXLAttention(TransformerXLAttention):
    """Transformer-XL's attention with `num_tokens` memory rows in front (Burtsev et al. 2020,
    https://arxiv.org/abs/2006.11527).

    The first `num_tokens` rows of its input are memory rows, in a segment as in front of a token that is decoded. They
    read each other, and every token reads them. What is stored, written, differentiable and reset: as in
    Transformer-XL, of the tokens.

    Differs from the paper or its code: the paper does not say what its memory rows see, and no code of the authors is
    published. Here they see neither the segment (they stand before it) nor the memory of earlier segments, so that they
    are the same in every segment: learned keys and values of every layer. They have no positions: the score of a memory
    row is `(q + u) k`. They are not written to the memory, where they would take slots (a later code of others, of the
    recurrent memory Transformer, writes them).

    Attributes:
      num_tokens: memory rows.
    """

    num_tokens: int = 0

    def __call__(
        self,
        x: Float[Array, "batch rows dim"],
        state: Any,
        *,
        start_of_document: Rows,
        mask: Bool[Array, "batch rows"] | None = None,
        deterministic: bool = True,
        shared: Any = None,
    ) -> tuple[Float[Array, "batch rows dim"], Any, Aux]:
        """Memory rows and one segment; `mask` is True on memory rows."""
        batch, rows, _ = x.shape
        own, length = self.num_tokens, rows - self.num_tokens
        mask = broadcast_mask(mask, batch, rows)[:, own:]
        state = self._reset(state, start_of_document)
        y, u_v = self.normed(x), self._biases(shared)
        queries, (keys, values) = project(y, self.query), self._keys_values(y)
        parts, valid = self._slots(state)
        if parts:  # keys are in the order memory rows, slots, segment
            remembered = self._keys_values(self._recalled(parts, x.dtype))
            keys, values = (
                jnp.concatenate([new[:, :own], old, new[:, own:]], axis=1)
                for old, new in zip(remembered, (keys, values), strict=True)
            )
        scores = self._position_scores(queries[:, own:], u_v[1], deterministic)
        scores = jnp.pad(scores, [(0, 0), (0, 0), (own, 0), (own, 0)])
        window = self.memory_length if self.same_length else None
        seen = visibility(length, valid, mask, window=window)
        seen = jnp.pad(seen, [(0, 0), (0, 0), (own, 0), (0, 0)])
        memory = jnp.ones((*seen.shape[:3], own), bool)
        visible = jnp.concatenate([memory, seen], axis=3)
        z, _ = read(queries, keys, values, scores, u_v[0], visible, **self._attention_dropout(deterministic))
        z = self._finish(x, z, deterministic)
        state, aux = self._write(state, self._stored(x, y)[:, own:], mask, self._attended(z, mask))
        return z, state, aux

    def decode(
        self, x: Float[Array, "batch rows dim"], decode_state: DecodeState, *, active: Rows, shared: Any = None
    ) -> tuple[Float[Array, "batch rows dim"], DecodeState]:
        """One token of every active row, behind the memory rows."""
        memory, segment, position = decode_state.memory, decode_state.segment, decode_state.position
        batch, segment_length, _ = segment.hidden.shape
        own, u_v = self.num_tokens, self._biases(shared)
        segment = self._enter_segment(memory, segment, active & (position == 0))
        y = self.normed(x)
        queries, (keys, values) = project(y, self.query), self._keys_values(y)
        token = x[:, own:]
        segment = TransformerXLSegment(
            ring_append(segment.hidden, self._stored(token, y[:, own:]).astype(segment.hidden.dtype), position, active),
            ring_append(segment.keys, keys[:, own:], position + self._num_slots, active),
            ring_append(segment.values, values[:, own:], position + self._num_slots, active),
            segment.attended,
        )
        scores, visible = self._token_scores(queries[:, own:], segment, memory, position, u_v)
        scores = jnp.pad(scores, [(0, 0), (0, 0), (own, 0), (own, 0)])
        visible = jnp.pad(visible, [(0, 0), (0, 0), (own, 0), (0, 0)])
        visible = jnp.concatenate([jnp.ones((batch, 1, own + 1, own), bool), visible], axis=3)
        both = lambda new, old: jnp.concatenate([new[:, :own], old.astype(new.dtype)], axis=1)
        z, _ = read(queries, both(keys, segment.keys), both(values, segment.values), scores, u_v[0], visible)
        z = self._finish(x, z, deterministic=True)

        full = active & (position + 1 == segment_length)
        written = jnp.broadcast_to(full[:, None], (batch, segment_length))
        write_full = lambda m: self._write(m, segment.hidden, written, segment.attended)[0]
        memory = jax.lax.cond(full.any(), write_full, lambda m: m, memory)
        return z, DecodeState(memory, segment, next_position(position, active, segment_length))
