"""MemSizer: linear attention over a memory of few slots, whose keys are parameters.

Zhang & Cai 2022, "Linearizing Transformer with Key-Value Memory", https://arxiv.org/abs/2203.12644.
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.axes import named
from memjax.functional.linear_attention import Normalizer
from memjax.memory.layer_parts import Residual, make_norm, project_biased, xavier_init
from memjax.memory.linear_transformer import LinearTransformerAttention
from memjax.settings.ranges import Count

__all__ = ["MemSizerAttention"]


class MemSizerAttention(LinearTransformerAttention):
    """Linear attention over a memory of few slots, whose keys are parameters.

    Zhang & Cai 2022, https://arxiv.org/abs/2203.12644.

    What is stored: the sum of `u_s v_s^T`, one matrix of `num_slots` by `dim` for any number of heads, and the number
    of tokens. When written: every token. What is differentiable: all of it. When reset: at `start_of_document`.

    Every head weighs the slots by `softmax(Phi_h x + b)`, without a scale. The output is the mean over heads. The mean
    commutes with reading, so that only one vector of slot weights per token is computed. There is no output projection.

    Symbols: `Phi -> query`, `W_l -> slot_kernel`, `W_r -> value_kernel`, `u_s = LN(W_l x_s) -> ` keys,
    `v_s = LN(W_r x_s) -> ` values, `k -> num_slots`, `r -> num_heads`, `V_t -> state.products / sqrt(state.count)`.

    `Aux.metrics` has `memsizer/effective_rank`: the number of directions in which the memory lies after the segment, as
    a share of its slots.

    Differs from the paper or its code: all three maps have biases and there is no scale, as in the code and against the
    paper's text. The code's quantisation noise is left out. The code also materialises the memory of every token.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      num_slots: Number of slots of the memory.
      freeze_slot_keys: Whether the keys of the slots keep their random initial values, as constants.
      query_init_scale: Number whose square root divides the Xavier size of the initial query matrix (the published
        language model: 32, translation: 8).
      source_init_scale: Number whose square root divides the Xavier size of the two initial adaptors (1 and 8).
      attention_dropout: Dropout rate of the weights of the slots.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = MemSizerAttention(dim=8, num_heads=2, head_dim=4, num_slots=3), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.products.shape
      ((1, 4, 8), (1, 1, 3, 8))
    """

    normalizer: ClassVar[Normalizer] = "count"
    figure: ClassVar[str] = "memsizer/effective_rank"

    num_slots: Count = 32
    freeze_slot_keys: bool = False
    query_init_scale: float = 32.0
    source_init_scale: float = 1.0
    attention_dropout: float = 0.0

    def setup(self) -> None:
        Residual.setup(self)
        heads = (self.num_heads, self.num_slots)
        init = named(xavier_init(self.query_init_scale**-0.5, 0, (1, 2)), "embed", "heads", None)
        zeros = named(nn.initializers.zeros, "heads", None)
        if self.freeze_slot_keys:
            draw = lambda: init(self.make_rng("features"), (self.dim, *heads), jnp.float32)
            self.query = self.variable("constants", "query", draw).value
            self.query_bias = None
        else:
            self.query = self.param("query", init, (self.dim, *heads))
            self.query_bias = self.param("query_bias", zeros, heads)
        adaptor = xavier_init(self.source_init_scale**-0.5)
        self.slot_kernel = self.param("slot_kernel", named(adaptor, "embed", None), (self.dim, self.num_slots))
        self.slot_bias = self.param("slot_bias", named(nn.initializers.zeros, None), (self.num_slots,))
        self.value_kernel = self.param("value_kernel", named(adaptor, "embed", None), (self.dim, self.dim))
        self.value_bias = self.param("value_bias", named(nn.initializers.zeros, None), (self.dim,))
        # Slots and values add up over a document, and so would the errors of a variance that cancels.
        self.slot_norm = make_norm("layer", self.dtype, exact_variance=True)
        self.value_norm = make_norm("layer", self.dtype, exact_variance=True)
        self.attention_drop = nn.Dropout(self.attention_dropout)

    @property
    def _state_sizes(self) -> tuple[int, int, int]:
        return 1, self.num_slots, self.dim

    def _queries(self, y: Array, maps: Any, deterministic: bool) -> Array:
        scores = project_biased(y, self.query, self.query_bias)  # [b, l, heads, slots]
        weights = jax.nn.softmax(scores.astype(jnp.promote_types(scores.dtype, jnp.float32)), axis=-1)
        weights = self.attention_drop(weights, deterministic=deterministic)
        return weights.mean(axis=2, keepdims=True).astype(y.dtype)

    def _keys_values(self, y: Array, maps: Any) -> tuple[Array, Array]:
        slots = self.slot_norm(project_biased(y, self.slot_kernel, self.slot_bias))
        values = self.value_norm(project_biased(y, self.value_kernel, self.value_bias))
        return slots[:, :, None], values[:, :, None]

    def _combine(self, z: Array) -> Array:
        return z[:, :, 0]
