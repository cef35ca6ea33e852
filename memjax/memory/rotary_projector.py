"""Projections and rotary positions of Llama and its kin.

Su et al. 2021 (rotary positions), https://arxiv.org/abs/2104.09864; Ainslie et al. 2023 (grouped keys and values),
https://arxiv.org/abs/2305.13245; Touvron et al. 2023 (Llama), https://arxiv.org/abs/2302.13971.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from memjax.axes import named
from memjax.functional.precision import at_least_float32
from memjax.functional.rotary import rotary_frequencies, rotary_waves, rotate
from memjax.memory.layer_parts import matrix_init
from memjax.memory.projector import Projector, Runs, Weights, key_places
from memjax.settings.checks import require
from memjax.typing import Activations

__all__ = ["RotaryProjector"]


@dataclasses.dataclass(frozen=True)
class RotaryProjector(Projector):
    """Projections and rotary positions of Llama, Qwen 2, Qwen 3 and their kin: grouped keys and values, biases and
    norms of queries and keys where a model has them.

    Keys are stored before their rotation. Positions are counted inside the slots and the segment, since scores depend
    on distances only. Further runs of slots end where the last one does (`Runs`).

    Attributes:
      key_heads: Number of heads of keys and values, a divisor of the heads of queries. 0 for as many.
      frequencies: Frequencies of the rotated pairs in radians for each token (`memjax.functional.rotary`), at most
        `head_dim / 2` of them. The other entries of a head are not rotated. () for no positions, None for those of all
        pairs with theta 10,000.
      attention_factor: Factor of rotated entries of queries and keys, as some kinds of interpolation have one.
      bias: Whether queries, keys and values have biases.
      output_bias: Whether the output has a bias.
      query_key_norm: Norm of root mean squares of queries and keys: 'none', 'head' for each head with the same weights,
        or 'all' over all heads together.
      norm_epsilon: Number added to the mean square in that norm.
      norm_offset: Whether the factors of that norm are 1 plus their parameters.
      score_scale: Factor of the scores. None for `head_dim ** -0.5`.
      score_cap: Limit of the scores (`memjax.functional.attention.attention_with_weights`). 0 for none.

    Example:
      >>> RotaryProjector(key_heads=2).num_key_heads(num_heads=4)
      2
    """

    key_heads: int = 0
    frequencies: tuple[float, ...] | None = None
    attention_factor: float = 1.0
    bias: bool = False
    output_bias: bool = False
    query_key_norm: Literal["none", "head", "all"] = "none"
    norm_epsilon: float = 1e-6
    norm_offset: bool = False
    score_scale: float | None = None
    score_cap: float = 0.0

    def declare(self, part: nn.Module, prefixes: tuple[str, ...] = ()) -> dict[str, Array]:
        """Declares the matrices `query`, `key_value` and `output` in the attention module `part`, and biases and the
        scales of norms where it has them. Returns these arrays by name. `prefixes` is not used.
        """
        heads, key_heads = (part.num_heads, part.head_dim), (self.num_key_heads(part.num_heads), part.head_dim)
        init, zeros = matrix_init(part.init_stddev), nn.initializers.zeros
        key_value = named(init, "embed", None, "heads", None)
        weights = {
            "query": part.param("query", named(init, "embed", "heads", None), (part.dim, *heads)),
            "key_value": part.param("key_value", key_value, (part.dim, 2, *key_heads)),
            "output": part.param("output", named(init, "heads", None, "embed"), (*heads, part.dim)),
        }
        if self.bias:
            bias = named(zeros, None, "heads", None)
            weights["query_bias"] = part.param("query_bias", named(zeros, "heads", None), heads)
            weights["key_value_bias"] = part.param("key_value_bias", bias, (2, *key_heads))
        if self.output_bias:
            weights["output_bias"] = part.param("output_bias", named(zeros, "embed"), (part.dim,))
        if self.query_key_norm != "none":
            by_head, start = self.query_key_norm == "all", zeros if self.norm_offset else nn.initializers.ones
            for name, shape in {"query_norm": heads, "key_norm": key_heads}.items():
                scale = named(start, "heads", None) if by_head else named(start, None)
                weights[name] = part.param(name, scale, shape if by_head else shape[1:])
        return weights

    def num_key_heads(self, num_heads: int) -> int:
        """Returns the number of heads of keys and values, `key_heads`, or for 0 `num_heads`, that of the queries.

        Raises:
          ValueError: `key_heads` is not a divisor of `num_heads`.
        """
        fits = self.key_heads >= 0 and num_heads % (self.key_heads or num_heads) == 0
        require(fits, "key_heads", self.key_heads, f"a divisor of num_heads = {num_heads}, or 0 for as many")
        return self.key_heads or num_heads

    def queries(self, weights: Weights, hidden: Activations) -> Float[Array, "batch length heads head_dim"]:
        """Projects hidden states to queries before their rotation, `[batch, length, heads, head_dim]`, and normalises
        them where the host does.
        """
        return self._normalize(super().queries(weights, hidden), weights.get("query_norm"))

    def keys_values(self, weights: Weights, hidden: Activations) -> tuple[Array, Array]:
        """Projects hidden states to keys before their rotation, normalised where the host does, and to values. Returns
        both, each `[batch, length, key_heads, head_dim]`.
        """
        keys, values = super().keys_values(weights, hidden)
        return self._normalize(keys, weights.get("key_norm")), values

    def scale(self, weights: Weights) -> float | None:
        """Returns the factor of the scores, `score_scale`. None for `head_dim ** -0.5`."""
        return self.score_scale

    def place(
        self,
        weights: Weights,
        queries: Array,
        keys: Array,
        runs: Runs,
        *,
        position: Array | None = None,
        drop: Callable[[Array], Array] | None = None,
    ) -> tuple[Array, Array, None]:
        """Rotates queries and keys, and returns both and None. `runs` lists prefix and length of each run of memory
        slots, `position` is the index of a decoded token. `weights` and `drop` are not used.
        """
        places = key_places(runs, keys.shape[1])
        rotated_keys = rotate(keys, *self.waves(keys.shape[-1], places[None]))
        if position is None:
            return rotate(queries, *self.waves(keys.shape[-1], places[None, -queries.shape[1] :])), rotated_keys, None
        by_place = self.waves(keys.shape[-1], np.arange(places.max() + 1))
        here = (jnp.take(wave, position + runs[-1][1], axis=0, mode="clip")[:, None] for wave in by_place)
        return rotate(queries, *here), rotated_keys, None

    def attend(self, *arguments: Any, **options: Any) -> tuple[Array, Array]:
        """Attends to rotated keys, with scores limited by `score_cap`. See `Projector.attend`."""
        return super().attend(*arguments, cap=self.score_cap, **options)

    def waves(self, head_dim: int, places: np.ndarray) -> tuple[Array, Array]:
        """Computes cosines and sines of the angles at `places`, NumPy int `[*places]`, for heads of `head_dim` entries.
        Both are `[*places, pairs]`.
        """
        frequencies = rotary_frequencies(head_dim) if self.frequencies is None else np.array(self.frequencies)
        return rotary_waves(places, frequencies, self.attention_factor)

    def _normalize(self, x: Array, scale: Array | None) -> Array:
        """Divides `x`, `[batch, length, heads, head_dim]`, by its root mean square, and multiplies it by `scale`, of
        one head or of all. `x` itself for None.
        """
        if scale is None:
            return x
        wide, axes = x.astype(at_least_float32(x.dtype)), (-1,) if scale.ndim == 1 else (-2, -1)
        mean_square = jnp.square(wide).mean(axis=axes, keepdims=True)
        scale = scale.astype(wide.dtype).reshape((1,) * (4 - scale.ndim) + scale.shape)
        scale = 1 + scale if self.norm_offset else scale
        return (wide * jax.lax.rsqrt(mean_square + self.norm_epsilon) * scale).astype(x.dtype)
