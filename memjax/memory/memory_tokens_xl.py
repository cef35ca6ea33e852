"""Transformer-XL with memory tokens in front of every segment.

Burtsev et al. 2020, "Memory Transformer", https://arxiv.org/abs/2006.11527.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from memjax.memory.checks import MUST_BE_GIVEN
from memjax.memory.layer_parts import ROW, TrackedKeys
from memjax.memory.transformer_xl import TransformerXLAttention
from memjax.settings.ranges import Slots

__all__ = ["MemoryTokenXLAttention"]


class MemoryTokenXLAttention(TransformerXLAttention):
    """Transformer-XL's attention with memory tokens, learned rows in front of every segment.

    Burtsev et al. 2020, https://arxiv.org/abs/2006.11527.

    The first `num_tokens` rows of the input are memory rows, in front of a segment and in front of a token that is
    decoded. They read each other, and every token reads them. What is stored, written, differentiable and reset is as
    in Transformer-XL, for the tokens.

    Differs from the paper or its code:

    * The paper does not say what its memory rows see, and no code of the authors is published. Here they see neither
      the segment behind them nor the memory of earlier segments, so that they are equal in every segment: learned keys
      and values of every layer.
    * Memory rows have no positions: the score of a memory row is `(q + u) k`. With a projector that turns queries by
      their positions, memory rows stand at the start of the segment.
    * Memory rows are not written to the memory, where they would take slots. A later code of others, of the recurrent
      memory Transformer, writes them.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      num_tokens: Number of memory rows.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory = MemoryTokenXLAttention(dim=8, num_heads=2, head_dim=4, memory_length=4, num_tokens=2)
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.hidden.shape  # the first two rows of x are memory rows
      ((1, 4, 8), (1, 4, 8))
    """

    num_tokens: Slots = MUST_BE_GIVEN

    @property
    def decodes_segments(self) -> bool:
        """False: the memory rows stand before every single token."""
        return False

    @property
    def _why_reference(self) -> str:
        return f"{type(self).__name__}, allowed: 'reference'"

    def _tokens(self, rows: Array) -> Array:
        return rows[:, self.num_tokens :]

    def _behind(self, rows: Array, others: Array) -> Array:
        return jnp.concatenate([rows[:, : self.num_tokens], others.astype(rows.dtype)], axis=1)

    def _seen(self, scores: Array | None, visible: Array) -> tuple[Array | None, Array]:
        in_front = [(0, 0), (0, 0), (self.num_tokens, 0), (self.num_tokens, 0)]
        visible = jnp.pad(visible, in_front).at[..., : self.num_tokens].set(True)
        return None if scores is None else jnp.pad(scores, in_front), visible

    def _known_keys(self, state: Any, length: int) -> TrackedKeys:
        ages, spans, sources = super()._known_keys(state, length)
        front = (self.num_tokens, 0)
        ages = jnp.pad(ages, [(0, 0), (0, 0), (0, 0), front])
        return TrackedKeys(ages, jnp.pad(spans, front, constant_values=1), jnp.pad(sources, front, constant_values=ROW))
