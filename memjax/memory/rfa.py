"""Random feature attention: linear attention whose features estimate the kernel of a softmax.

Peng et al. 2021, "Random Feature Attention", https://arxiv.org/abs/2103.02143.
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.axes import named
from memjax.functional.linear_attention import Normalizer, draw_directions, random_features
from memjax.memory.layer_parts import project, project_biased
from memjax.memory.linear_transformer import LinearTransformerAttention
from memjax.settings.ranges import Count
from memjax.typing import Activations

__all__ = ["RFAAttention"]


class RFAAttention(LinearTransformerAttention):
    """Linear attention with random features, which estimate the kernel of a softmax.

    Peng et al. 2021, https://arxiv.org/abs/2103.02143.

    What is stored: the sums of `phi(k) v^T` and `phi(k)`, or their decaying averages with `gate`. The state has a fixed
    size. When written: every token. What is differentiable: all of it. When reset: at `start_of_document`, and with
    `redraw_each_segment` in every training segment.

    Symbols: `w_i -> constants/directions`, `sigma -> scale`, `tau -> temperature`, `S_t, z_t -> state.products,
    state.normalizer`, `g_t = sigmoid(w_g x_t + b_g) -> gate, gate_bias`.

    Differs from the paper or its code:

    * The random directions are drawn once, for every layer, and stored with the parameters. The code draws from a pool
      of 500 anew in every step. `redraw_each_segment` does so, and then no state crosses a segment in training.
    * Both forms have one rule against small denominators, `max(|phi(q) z|, 1e-3)`. The code's recurrent form has 1.0,
      so that its first tokens have other outputs.
    * The gate is the paper's. The released code has none. Its bias starts at 3, our choice, which keeps a share of
      0.95.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      num_directions: Number of random directions of a head. It has twice as many features.
      temperature: Divisor of the directions.
      gate: Whether the sums decay by a gate per head and token.
      gate_bias_init: Initial bias of the gate.
      orthogonal: Whether the directions are orthogonal in blocks of `head_dim`.
      redraw_each_segment: Whether to draw new directions in every training segment, from the stream `features`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = RFAAttention(dim=8, num_heads=2, head_dim=4, num_directions=3), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.products.shape
      ((1, 4, 8), (1, 2, 6, 4))
    """

    normalizer: ClassVar[Normalizer] = "clamp"
    eps: ClassVar[float] = 1e-3

    init_gain: float | None = 2**-0.5
    num_directions: Count = 64
    temperature: float = 1.0
    gate: bool = False
    gate_bias_init: float = 3.0
    orthogonal: bool = False
    redraw_each_segment: bool = False

    def setup(self) -> None:
        super().setup()
        shape = (self.num_heads, self.head_dim)
        self.scale = self.param("scale", named(nn.initializers.ones, "heads", None), shape)
        draw = named(lambda key, _: self._draw(key), "heads", None, None)
        self.directions = self.variable("constants", "directions", lambda: draw(self.make_rng("features"), None))
        if self.gate:
            matrix = named(self._matrix(), "embed", "heads")
            self.gate_kernel = self.param("gate", matrix, (self.dim, self.num_heads))
            bias = named(nn.initializers.constant(self.gate_bias_init), "heads")
            self.gate_bias = self.param("gate_bias", bias, (self.num_heads,))

    @property
    def gate_description(self) -> str:
        """Text that says what the learned gate lets through: the sums so far. Empty without a gate."""
        return "the sums so far" if self.gate else ""

    def gate_values(self, hidden: Activations) -> Float[Array, "batch length heads"]:
        """Returns the share of its sums that every head keeps at each position, `[batch, length, heads]`. It needs
        `gate=True`.
        """
        decay = self._log_decay(hidden)
        assert decay is not None, "asked of a part without a gate"
        return jnp.exp(decay)

    @property
    def _state_sizes(self) -> tuple[int, int, int]:
        return self.num_heads, 2 * self.num_directions, self.head_dim

    def _maps(self, deterministic: bool) -> Array:
        """Scales the random directions by the learned scale of every head."""
        renewed = self._renews(deterministic)
        directions = self._draw(self.make_rng("features")) if renewed else self.directions.value
        return directions * (self.scale[:, None] / self.temperature).astype(directions.dtype)

    @nn.nowrap
    def _renews(self, deterministic: bool) -> bool:
        return self.redraw_each_segment and not deterministic

    def _queries(self, y: Array, maps: Array, deterministic: bool) -> Array:
        return random_features(project_biased(y, self.query, self.query_bias), maps)

    def _keys_values(self, y: Array, maps: Array) -> tuple[Array, Array]:
        keys = random_features(project_biased(y, self.key, self.key_bias), maps)
        return keys, project_biased(y, self.value, self.value_bias)

    def _log_decay(self, y: Array) -> Array | None:
        if not self.gate:
            return None
        wide: Any = jnp.promote_types(y.dtype, jnp.float32)
        return jax.nn.log_sigmoid(project(y, self.gate_kernel).astype(wide) + self.gate_bias.astype(wide)[None, None])

    @nn.nowrap
    def _draw(self, key: Any) -> Array:
        sizes = (self.num_heads, self.num_directions, self.head_dim)
        return draw_directions(key, *sizes, orthogonal=self.orthogonal)
