"""Product-key memory: a large table of values in the parameters, read at the slots whose keys match best.

Lample et al. 2019, "Large Memory Layers with Product Keys", https://arxiv.org/abs/1907.05242. Beside a feed-forward
network as in Kim & Jung 2020, "Large Product Key Memory for Pretrained Language Models",
https://arxiv.org/abs/2010.03881.
"""

import math
from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.axes import MODEL, named
from memjax.functional.named_operations import operation
from memjax.functional.product_keys import lookup_spread, select_product_keys
from memjax.functional.table_rows import Split, sum_rows
from memjax.memory.interface import StatelessMemory, broadcast_mask
from memjax.memory.layer_parts import project
from memjax.settings.checks import require
from memjax.settings.ranges import Count
from memjax.typing import Activations, Aux, Mask, WeightedSum

__all__ = ["ProductKeyMemory"]


@operation
def masked_moments(
    x: Float[Array, "batch length *features"], mask: Mask
) -> tuple[Float[Array, "*features"], Float[Array, "*features"], Float[Array, ""]]:
    """Returns mean and biased variance of every feature over the real tokens of all rows, and the number of these
    tokens.

    Rows of all devices count, since under `jax.jit` an array is one array however it is split. The variance is computed
    in a second pass. Without a real token the mean is 0 and the variance 1.
    """
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    real = mask.reshape(*mask.shape, *(1,) * (x.ndim - 2))
    count = mask.sum().astype(x.dtype)
    divisor = jnp.maximum(count, 1)
    mean = jnp.where(real, x, 0).sum(axis=(0, 1)) / divisor
    variance = jnp.where(real, (x - mean[None, None]) ** 2, 0).sum(axis=(0, 1)) / divisor
    return mean, jnp.where(count > 0, variance, 1), count


class BatchNorm(nn.Module):
    """Batch normalisation over the real tokens of all rows.

    `deterministic` uses the running statistics. Unlike `nn.BatchNorm` it leaves them as they are in a batch without a
    real token, stores the unbiased variance (as PyTorch), names its axes, and may be applied in training mode when
    `batch_stats` is not mutable.

    Attributes:
      momentum: Share of the running statistics that one segment keeps.
      epsilon: Number added to the variance.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch length *features"], mask: Mask, *, deterministic: bool
    ) -> Float[Array, "batch length *features"]:
        """Normalises every feature. The result has the dtype of `x`."""
        shape = x.shape[2:]
        names = ("heads",) + (None,) * (len(shape) - 1)
        make = lambda init: named(init, *names)(self.make_rng("params"), shape, jnp.float32)
        scale = self.param("scale", named(nn.initializers.ones, *names), shape)
        bias = self.param("bias", named(nn.initializers.zeros, *names), shape)
        running_mean = self.variable("batch_stats", "mean", make, nn.initializers.zeros)
        running_variance = self.variable("batch_stats", "variance", make, nn.initializers.ones)
        mean, variance = running_mean.value, running_variance.value
        if not deterministic and not self.is_initializing():
            mean, variance, count = masked_moments(x, mask)
            if self.is_mutable_collection("batch_stats"):
                unbiased = variance * count / jnp.maximum(count - 1, 1)
                for running, new in ((running_mean, mean), (running_variance, unbiased)):
                    old = running.value
                    moved = self.momentum * old + (1 - self.momentum) * new.astype(old.dtype)
                    running.value = jnp.where(count > 1, moved, old)
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        factor = scale * jax.lax.rsqrt(variance + self.epsilon)
        y = (x.astype(dtype) - mean[None, None]) * factor[None, None] + bias[None, None]
        return y.astype(x.dtype)


class ProductKeyMemory(StatelessMemory):
    """Large table of learned values, of which every token reads the few whose product keys match its query best.

    Lample et al. 2019, https://arxiv.org/abs/1907.05242. It replaces the two matrices of a feed-forward network, or is
    added to them (`memjax.models.transformer` has the norm, the residual and the sum).

    What is stored: `num_keys ** 2` values, in the collection `tables`. When written: by training only. What is
    differentiable: queries and sub-keys through the weights of the chosen slots, and the values. When reset: never, it
    belongs to the parameters.

    The gradient of the values is an array of their size, as any gradient. The collection `sinks` (the path of the
    values, zeros of the shape of `y`) avoids it: the values then have no gradient, and the gradient of the sinks, with
    the slots and weights in `Aux.arrays`, updates only the rows that were read. `memjax train` does so.

    Symbols: `q(x) -> query, hidden_0..`, `K_1, K_2 -> keys`, `v_i -> values`, `H -> num_heads`, `k -> num_neighbors`,
    `|K| -> num_keys ** 2`, `d_q -> key_dim`.

    Differs from the paper or its code:

    * In training with `query_norm="batch"` the statistics are those of real tokens of all rows. The published code
      leaves batch normalisation off because of padding. The statistics mix tokens of a segment, so that a causal model
      is only strictly causal with running statistics, that is, outside training.
    * Candidates that cannot win are left out of the second search, which changes no result.

    `Aux.arrays` has `values/ids` and `values/weights`, `[batch, length, heads * neighbors]`: the slots that every token
    has read (`num_keys ** 2` for padding) and their weights. `Aux.metrics` has `product_key/used` and
    `product_key/divergence`, how evenly the tokens of the segment use the slots (`memjax.functional.lookup_spread`).

    `y` is the weighted sum of the chosen values alone, without the residual and without a norm.

    Attributes:
      dim: Width of the values and of the residual stream.
      num_keys: Number of sub-keys of each half. Its square is the number of slots.
      num_heads: Number of heads. Each has its own sub-keys, and all share the values.
      num_neighbors: Number of slots that each head reads.
      key_dim: Width of one head's query, an even number for its two halves.
      query_hidden: Widths of the hidden layers of the query network, with ReLU. Empty for a linear one.
      query_norm: Norm of the queries: 'batch' (of every feature over tokens), 'layer' (of each half, one scale for all)
        or 'none'.
      key_dropout: Dropout rate of sub-keys in training, the same for all tokens of a segment.
      zero_values: Whether the values begin as zeros, so that a memory that is added to a trained model changes nothing
        before it is trained.
      split: Axis of the values that the mesh axis `model` splits: 'rows' or 'columns'.
      lookups_at_once: Number of rows gathered at a time.

    Example:
      >>> from memjax.functional import update_rows
      >>> memory = ProductKeyMemory(dim=8, num_keys=4, num_heads=2, num_neighbors=2, key_dim=4, query_norm="none")
      >>> x, target = jax.random.normal(jax.random.key(1), (2, 1, 3, 8))
      >>> variables = jax.jit(memory.init)(jax.random.key(0), x, memory.init_state(1))
      >>> params, table = variables["params"], variables["tables"]["values"]
      >>> def loss(params, table, sinks):
      ...     collections = {"params": params, "tables": {"values": table}, **sinks}
      ...     y, _, aux = memory.apply(collections, x, memory.init_state(1))
      ...     return jnp.sum((y - target) ** 2), aux.arrays

      By a dense gradient, all of `optax` at hand:

      >>> gradient = jax.jit(jax.grad(loss, argnums=1, has_aux=True))(params, table, {})[0]
      >>> dense = table - 0.1 * gradient

      Row by row, however large the table:

      >>> sinks = {"sinks": {"values": jnp.zeros_like(x)}}
      >>> sparse_gradient = jax.jit(jax.grad(loss, argnums=(0, 2), has_aux=True))
      >>> (to_params, to_sinks), read = sparse_gradient(params, table, sinks)
      >>> rule = lambda rows, gradient: (rows[0] - 0.1 * gradient,)
      >>> bags = [array.reshape(3, -1) for array in (read["values/ids"], read["values/weights"])]
      >>> (sparse,) = update_rows((table,), *bags, to_sinks["sinks"]["values"].reshape(3, -1), rule)
      >>> bool(jnp.any(gradient)), bool(jnp.allclose(dense, sparse, atol=1e-6))
      (True, True)
    """

    dim: Count
    num_keys: Count = 512
    num_heads: Count = 4
    num_neighbors: int = 32
    key_dim: int = 256
    query_hidden: tuple[int, ...] = ()
    query_norm: Literal["batch", "layer", "none"] = "batch"
    key_dropout: float = 0.0
    zero_values: bool = False
    split: Split = "rows"
    lookups_at_once: int = 1 << 14

    def setup(self) -> None:
        require(self.key_dim % 2 == 0, "key_dim", self.key_dim, "an even number (two halves)")
        heads, half = self.num_heads, self.key_dim // 2
        widths = (self.dim, *self.query_hidden)
        self.hidden = [
            nn.Dense(wide, kernel_init=named(_uniform(width), "embed", "mlp"), bias_init=named(_uniform(width), "mlp"))
            for width, wide in zip(widths, self.query_hidden, strict=False)
        ]
        init = _uniform(widths[-1])
        self.query = self.param("query", named(init, "embed", "heads", None), (widths[-1], heads, self.key_dim))
        self.query_bias = self.param("query_bias", named(init, "heads", None), (heads, self.key_dim))
        self.keys = self.param(
            "keys", named(_uniform(half), "heads", None, None, None), (heads, 2, self.num_keys, half)
        )
        names = ("table_rows", None) if self.split == "rows" else (None, "table_columns")
        values_init = nn.initializers.zeros if self.zero_values else nn.initializers.normal(self.dim**-0.5)
        draw = named(values_init, *names)
        shape = (self.num_keys**2, self.dim)
        self.values = self.variable("tables", "values", lambda: draw(self.make_rng("params"), shape, jnp.float32))
        if self.query_norm == "batch":
            self.batch_norm = BatchNorm()
        elif self.query_norm == "layer":
            self.layer_norm = nn.LayerNorm(
                epsilon=1e-5, scale_init=named(nn.initializers.ones, None), bias_init=named(nn.initializers.zeros, None)
            )
        self.drop_keys = nn.Dropout(self.key_dropout)

    @nn.nowrap
    def excluded_from_scan(self) -> bool:
        """Returns True, since a scan over layers would copy the table of each layer."""
        return True

    def read(self, x: Activations, mask: Mask | None, deterministic: bool) -> tuple[Activations, Aux]:
        """Returns the weighted sum of the values that every token has chosen, in the dtype of `x`, and an `Aux` with
        the chosen slots, their weights and how evenly slots are used.
        """
        mask = broadcast_mask(mask, *x.shape[:2])
        queries = self._queries(x, mask, deterministic)
        keys = self.drop_keys(self.keys, deterministic=deterministic)
        ids, scores = select_product_keys(queries, keys, self.num_neighbors)
        flat = lambda lookups: lookups.reshape(*x.shape[:2], -1)
        ids, weights = flat(ids), flat(jax.nn.softmax(scores, axis=-1))
        sink = self.get_variable("sinks", "values") if self.has_variable("sinks", "values") else None
        options = {"axis": MODEL, "split": self.split, "lookups_at_once": self.lookups_at_once}
        y = sum_rows(self.values.value, ids, weights, sink, **options)
        read = {
            "values/ids": jnp.where(mask[..., None], ids, self.num_keys**2),
            "values/weights": jnp.where(mask[..., None], jax.lax.stop_gradient(weights), 0),
        }
        return y.astype(x.dtype), Aux(metrics=self._spread(read, mask), arrays=read)

    @nn.nowrap
    def _spread(self, read: dict[str, Array], mask: Array) -> dict[str, WeightedSum]:
        """Measures how evenly a segment with a real token uses the slots."""
        ids, weights = (array.reshape(-1, array.shape[-1]) for array in read.values())
        used, divergence = lookup_spread(ids, weights, self.num_keys)
        count = mask.any().astype(used.dtype)
        return {"product_key/used": WeightedSum(used, count), "product_key/divergence": WeightedSum(divergence, count)}

    def _queries(self, x: Array, mask: Array, deterministic: bool) -> Float[Array, "batch length heads 2 half"]:
        for layer in self.hidden:
            x = nn.relu(layer(x).astype(x.dtype))
        queries = project(x, self.query) + self.query_bias.astype(x.dtype)[None, None]
        if self.query_norm == "batch":
            queries = self.batch_norm(queries, mask, deterministic=deterministic)
        halves = queries.reshape(*queries.shape[:3], 2, self.key_dim // 2)
        return self.layer_norm(halves).astype(x.dtype) if self.query_norm == "layer" else halves


def _uniform(fan_in: int) -> Callable[..., Array]:
    """Makes an initialiser: uniform within `1 / sqrt(fan_in)`."""
    bound = math.sqrt(1 / fan_in)
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)
