"""Projections with T5's position buckets, and with queries and keys of unit length where that is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.axes import named
from memjax.functional.positions import bucket_bias, relative_distances
from memjax.memory.adapters import AdaptableMatrix
from memjax.memory.layer_parts import matrix_init, project_biased
from memjax.memory.projector import Projector, Runs, Weights, key_places

__all__ = ["BucketProjector"]


@dataclasses.dataclass(frozen=True)
class BucketProjector(Projector):
    """The projections of the Memorizing Transformer, with queries and keys of unit length unless `query_key_norm` is
    False, and the position buckets of T5.

    Wu et al. 2022, https://arxiv.org/abs/2203.08913. The bias of a bucket is added to the scores as in T5. A learned
    scale multiplies the bias too, as in the authors' code.

    Attributes:
      bias: Whether all projections have biases.
      query_key_norm: Whether to normalise queries and keys and to learn a scale per head. False scales scores by
        1 / sqrt(head_dim).
      scale_init: Initial scale. None for sqrt(head_dim).
      num_buckets: Number of T5 buckets. 0 for no positions.
      max_distance: Distance in tokens from which on all distances share the last bucket.
      bias_scaling: Scaling of the T5 bias with the factor of the scores: 'learned' only with the scale of query-key
        norm, 'always' also with 1 / sqrt(head_dim) where there is no such norm.

    Example:
      >>> BucketProjector(num_buckets=0, query_key_norm=False) == BucketProjector()  # without positions
      False
    """

    bias: bool = False
    query_key_norm: bool = True
    scale_init: float | None = None
    num_buckets: int = 32
    max_distance: int = 128
    bias_scaling: Literal["learned", "always"] = "learned"

    def declare(self, part: nn.Module, prefixes: tuple[str, ...] = ()) -> dict[str, Array]:
        """Declares `query`, `key`, `value` and `output`, and biases, `scale` and `position_bias` where it has them, in
        the attention module `part`. Returns these arrays by name. `prefixes` is not used.
        """
        heads, init = (part.num_heads, part.head_dim), matrix_init(part.init_stddev, out_axis=(1, 2))
        inner, outer = named(init, "embed", "heads", None), matrix_init(part.init_stddev, (0, 1))
        zeros, weights = nn.initializers.zeros, {}
        for name in ("query", "key", "value"):
            weights[name] = part.param(name, inner, (part.dim, *heads))
            if self.bias:
                weights[f"{name}_bias"] = part.param(f"{name}_bias", named(zeros, "heads", None), heads)
        weights["output"] = part.param("output", named(outer, "heads", None, "embed"), (*heads, part.dim))
        if self.bias:
            weights["output_bias"] = part.param("output_bias", named(zeros, "embed"), (part.dim,))
        if self.query_key_norm:
            scale = part.head_dim**0.5 if self.scale_init is None else self.scale_init
            scale_init = named(nn.initializers.constant(scale), "heads")
            weights["scale"] = part.param("scale", scale_init, (part.num_heads,))
        if self.num_buckets:
            table = named(nn.initializers.normal(0.02), "heads", None)
            weights["position_bias"] = part.param("position_bias", table, (part.num_heads, self.num_buckets))
        return weights

    def adaptable_matrices(self, dim: int, num_heads: int, head_dim: int) -> tuple[AdaptableMatrix, ...]:
        """Returns the parameters whose matrices can have adapters: `query`, `key`, `value` and `output`."""
        embed, heads = ((dim, "embed"),), ((num_heads, "heads"), (head_dim, None))
        inner = (AdaptableMatrix(name, (name,), embed, heads) for name in ("query", "key", "value"))
        return (*inner, AdaptableMatrix("output", ("output",), heads, embed))

    def queries(self, weights: Weights, hidden: Array) -> Array:
        """Projects hidden states to queries, `[batch, length, heads, head_dim]`, of unit length with query-key norm."""
        return self._normalize(project_biased(hidden, weights["query"], weights.get("query_bias")))

    def keys_values(self, weights: Weights, hidden: Array) -> tuple[Array, Array]:
        """Projects hidden states to keys, of unit length with query-key norm, and values. Returns both."""
        keys = project_biased(hidden, weights["key"], weights.get("key_bias"))
        values = project_biased(hidden, weights["value"], weights.get("value_bias"))
        return self._normalize(keys), values

    def scale(self, weights: Weights) -> Float[Array, " heads"] | None:
        """Returns the absolute value of the learned scale of every head, `[heads]`. None without query-key norm."""
        # In the dtype of the parameter: rounded to bfloat16, different scales would become equal.
        return jnp.abs(weights["scale"]) if self.query_key_norm else None

    def place(
        self,
        weights: Weights,
        queries: Array,
        keys: Array,
        runs: Runs,
        *,
        position: Array | None = None,
        drop: Callable[[Array], Array] | None = None,
    ) -> tuple[Array, Array, Array | None]:
        """Returns queries and keys as they are, and T5's biases of their distances, None without buckets. `runs` lists
        prefix and length of each run of memory slots, `position` is the index of a decoded token. `drop` is not used.
        """
        if not self.num_buckets:
            return queries, keys, None
        length, total = queries.shape[1], keys.shape[1]
        if position is not None:
            places = jnp.arange(total) if len(runs) == 1 else jnp.asarray(key_places(runs, total))
            distances = (position + runs[-1][1])[:, None, None] - places[None, None, :]
        elif len(runs) == 1:
            distances = relative_distances(length, total)
        else:
            distances = key_places(runs, total)[total - length :, None] - key_places(runs, total)[None, :]
        bias: Any = bucket_bias(weights["position_bias"], distances, max_distance=self.max_distance)
        bias = bias if bias.ndim == 4 else bias[None]
        return queries, keys, self._scale_bias(weights, bias, queries.shape[-1])

    def distance_bias(self, weights: Weights, head_dim: int) -> Float[Array, "heads distances"] | None:
        """Returns T5's biases of the distances up to `max_distance`. None without buckets."""
        if not self.num_buckets:
            return None
        longest_first = relative_distances(1, self.max_distance + 1)
        bias = bucket_bias(weights["position_bias"], longest_first, max_distance=self.max_distance)[:, :, ::-1]
        return self._scale_bias(weights, bias[None], head_dim)[0, :, 0]

    def _scale_bias(self, weights: Weights, bias: Array, head_dim: int) -> Array:
        """Multiplies biases, `[#batch, heads, length, total]`, by the factor of the scores where that is asked for."""
        if self.query_key_norm:
            return bias * jnp.abs(weights["scale"])[None, :, None, None]
        return bias * head_dim**-0.5 if self.bias_scaling == "always" else bias

    def _normalize(self, x: Array) -> Array:
        """Divides `x` by its length along the last axis, with the sum of squares in at least float32."""
        if not self.query_key_norm:
            return x
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return (wide * jax.lax.rsqrt(jnp.square(wide).sum(axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)
