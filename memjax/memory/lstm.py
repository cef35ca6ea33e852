"""Recurrent layer: an LSTM in place of the attention of a layer.

Hochreiter and Schmidhuber 1997, "Long Short-Term Memory", https://doi.org/10.1162/neco.1997.9.8.1735. With the forget
gate of Gers, Schmidhuber and Cummins 2000, "Learning to Forget", https://doi.org/10.1162/089976600300015015.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.axes import named
from memjax.functional.precision import at_least_float32
from memjax.memory.interface import DecodeState, LayerMemory, broadcast_mask, token_decode_state, where_rows
from memjax.settings.ranges import Count
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, tree_dataclass

__all__ = ["LSTMLayer", "LSTMState"]


@tree_dataclass
class LSTMState:
    """State of an LSTM layer: cell and output of the last token.

    Attributes:
      cell: `[batch, dim]`, cell state, at least float32.
      hidden: `[batch, dim]`, last output, at least float32.
    """

    cell: Leaf
    hidden: Leaf


class LSTMLayer(LayerMemory):
    """LSTM layer in place of the attention of a layer, without residual and norm.

    Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735.

    What is stored: cell and output of the last token, in at least float32. The state has a fixed size. When written:
    every token. What is differentiable: all of it, from segment to segment. When reset: at `start_of_document`.

    Symbols: `c_t -> state.cell`, `h_t -> state.hidden`.

    Differs from the papers: the cell is flax's. It has no peepholes, one bias per gate, which starts at 0 (that of the
    forget gate too), orthogonal recurrent matrices, and an output as wide as its input.

    `y` is the output of the cell, without the residual and without a norm.

    Attributes:
      dim: Width of input, cell and output.
      dropout: Dropout rate of the output, not of the state.
      dtype: Dtype of the computation. The state is at least float32.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = LSTMLayer(dim=8), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.cell.shape
      ((1, 4, 8), (1, 8))
    """

    dim: Count
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self) -> None:
        # The gates of a token need the whole state: splitting them over devices would move it at every token.
        self.cell = nn.OptimizedLSTMCell(
            self.dim,
            kernel_init=named(nn.initializers.lecun_normal(), "embed", None),
            recurrent_kernel_init=named(nn.initializers.orthogonal(), "embed", None),
            bias_init=named(nn.initializers.zeros, None),
            dtype=self.dtype,
        )
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> LSTMState:
        """Makes a state of zeros, in at least float32."""
        wide: Any = at_least_float32(dtype)
        return LSTMState(jnp.zeros((batch_size, self.dim), wide), jnp.zeros((batch_size, self.dim), wide))

    @nn.nowrap
    def init_decode_state(self, state: LSTMState, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state after `state`. Every token is written at once, so there is no buffer, and
        `segment_length` is not used.
        """
        return token_decode_state(state, batch_size)

    def __call__(
        self,
        x: Activations,
        state: LSTMState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[Activations, LSTMState, Aux]:
        """Reads the tokens one after the other. The output at padding has no meaning."""
        mask = broadcast_mask(mask, *x.shape[:2])
        fresh = where_rows(start_of_document, jax.tree.map(jnp.zeros_like, state), state)
        y, new = self._read(x, fresh, mask)
        return self.drop(y, deterministic=deterministic), where_rows(mask.any(axis=1), new, state), Aux()

    @property
    def decodes_segments(self) -> bool:
        """True: every token is written at once."""
        return True

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """Reads one token of every active row and updates cell and output. Returns the output of the cell and the
        decode state.
        """
        y, new = self._read(x, decode_state.memory, active[:, None])
        return y, DecodeState(new, EmptyState(), decode_state.position + active.astype(jnp.int32))

    def apply_norm(self, x: Activations) -> Activations:
        """Returns the input `x` of the gates unchanged, because an LSTM has no norm."""
        return x

    def _read(self, x: Array, state: LSTMState, mask: Array) -> tuple[Array, LSTMState]:
        """Returns the outputs of all tokens, and the state after the last real token of each row."""

        def step(cell: nn.Module, state: LSTMState, token: tuple[Array, Array]) -> tuple[LSTMState, Array]:
            x, real = token
            carry, y = cell((state.cell, state.hidden), x)
            new = jax.tree.map(lambda new, old: new.astype(old.dtype), LSTMState(*carry), state)
            return where_rows(real, new, state), y.astype(x.dtype)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1)
        state, y = scan(self.cell, state, (x, mask))
        return y, state
