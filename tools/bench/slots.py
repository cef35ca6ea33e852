"""A language model with a small slot memory, as Memformer has it: what `tools.bench.rematerialization` compiles.

Every layer reads the slots by cross attention, the slots read the last hidden states once per segment, and nothing
stops the gradient between segments. It is here to be compiled and differentiated, not to be trained: no dropout.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from memjax.functional.attention import attention, visibility
from memjax.functional.losses import cross_entropy_sum
from memjax.typing import Batch, WeightedSum


@dataclass(frozen=True)
class SlotModel:
    """Sizes of the model; parameters are dictionaries of arrays, those of layers with the layers at axis 0."""

    dim: int
    num_layers: int
    num_heads: int
    num_slots: int
    vocab_size: int
    dtype: Any = jnp.bfloat16
    rematerialize_layers: bool = False

    def init(self, key: jax.Array) -> dict[str, Any]:
        """The parameters, float32."""
        dim, keys = self.dim, iter(jax.random.split(key, 10))
        matrix = lambda *shape: jax.random.normal(next(keys), shape) * shape[-2] ** -0.5
        layers = {
            "self": matrix(self.num_layers, 3, dim, dim),
            "self_output": matrix(self.num_layers, dim, dim),
            "slot_queries": matrix(self.num_layers, dim, dim),
            "slot_keys_values": matrix(self.num_layers, 2, dim, dim),
            "slot_output": matrix(self.num_layers, dim, dim),
            "wide": matrix(self.num_layers, dim, 4 * dim),
            "narrow": matrix(self.num_layers, 4 * dim, dim),
        }
        writer, initial = matrix(4, dim, dim), matrix(self.num_slots, dim)
        return {"layers": layers, "writer": writer, "initial": initial, "embeddings": matrix(self.vocab_size, dim)}

    def init_state(self, batch_size: int) -> jax.Array:
        """Slots; those of a row that starts a document are replaced by the learned ones."""
        return jnp.zeros((batch_size, self.num_slots, self.dim))

    def __call__(self, params: dict[str, Any], slots: jax.Array, segment: Batch) -> tuple[jax.Array, WeightedSum]:
        """One segment: the new slots, and the negative log likelihood of the targets."""
        fresh = segment.start_of_document[:, None, None]
        slots = jnp.where(fresh, params["initial"][None].astype(slots.dtype), slots)
        embeddings = params["embeddings"].astype(self.dtype)

        def layer(x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array, None]:
            return self._layer(x, slots, weights, segment.mask), None

        if self.rematerialize_layers:
            layer = jax.checkpoint(layer, prevent_cse=False)
        x = jax.lax.scan(layer, embeddings[segment.inputs], params["layers"])[0]
        hidden = _norm(x)
        logits = jnp.einsum("bld,vd->blv", hidden, embeddings, preferred_element_type=jnp.float32)
        nll = cross_entropy_sum(logits, segment.targets, segment.weights)
        return self._write(slots, hidden, params["writer"], segment.mask), nll

    def _layer(self, x: jax.Array, slots: jax.Array, weights: dict[str, jax.Array], mask: jax.Array) -> jax.Array:
        weights = jax.tree.map(lambda leaf: leaf.astype(self.dtype), weights)
        queries, keys, values = jnp.einsum("bld,nde->nble", _norm(x), weights["self"])
        x += self._attend(queries, keys, values, visibility(x.shape[1], None, mask)) @ weights["self_output"]
        keys, values = jnp.einsum("bmd,nde->nbme", slots.astype(self.dtype), weights["slot_keys_values"])
        x += self._attend(_norm(x) @ weights["slot_queries"], keys, values) @ weights["slot_output"]
        return x + jax.nn.relu(_norm(x) @ weights["wide"]) @ weights["narrow"]

    def _write(self, slots: jax.Array, hidden: jax.Array, weights: jax.Array, mask: jax.Array) -> jax.Array:
        queries, keys, values, output = weights.astype(self.dtype)
        seen = jnp.broadcast_to(mask[:, None, None, :], (*mask.shape[:1], 1, self.num_slots, mask.shape[1]))
        read = self._attend(_norm(slots).astype(self.dtype) @ queries, hidden @ keys, hidden @ values, seen) @ output
        return _norm(slots + read.astype(slots.dtype))

    def _attend(self, queries: jax.Array, keys: jax.Array, values: jax.Array, mask: Any = None) -> jax.Array:
        split = lambda x: x.reshape(*x.shape[:2], self.num_heads, -1)
        return attention(split(queries), split(keys), split(values), mask=mask).reshape(queries.shape)


def _norm(x: jax.Array) -> jax.Array:
    """To a mean square of 1, in at least float32."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)
