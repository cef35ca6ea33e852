"""Memories at the output site as the laws take them: from hidden states to hidden states."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from memjax.functional.mixing import candidate_log_weights

VOCAB, NEIGHBORS = 16, 3


def inputs_of(memory: nn.Module, x: Any) -> dict[str, Any]:
    """What a model would give, all of it from the hidden states: whatever changes a row changes its tokens too."""
    tokens = jnp.floor(8 * jnp.abs(x[..., 0])).astype(jnp.int32) % VOCAB
    values = (tokens[..., None] + jnp.arange(NEIGHBORS)[None, None]) % VOCAB
    inputs = {
        "tokens": tokens,
        "features": {"key": x},
        "knn_distances": jnp.abs(x[..., 1 : 1 + NEIGHBORS]),
        "knn_values": jnp.where(tokens[..., None] % 5 == 0, -1, values),
    }
    return {name: inputs[name] for name in memory.inputs}


class Recalls(nn.Module):
    """A memory that proposes tokens; its output is the mean embedding of what it proposes, with dropout."""

    memory: nn.Module
    dim: int = 8
    dropout: float = 0.2

    def setup(self):
        self.table = self.param("table", nn.initializers.normal(1.0), (VOCAB, self.dim))
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        return self.memory.init_state(batch_size, dtype)

    @nn.nowrap
    def init_decode_state(self, state, segment_length, batch_size):
        return self.memory.init_decode_state(state, segment_length, batch_size)

    def __call__(self, x, state, *, start_of_document, mask=None, deterministic=True):
        named = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        recalled, state, aux = self.memory(x, state, **inputs_of(self.memory, x), **named)
        return x + self.drop(self._mean(x, recalled), deterministic=deterministic), state, aux

    def decode(self, x, decode_state, *, active):
        recalled, decode_state = self.memory.decode(x, decode_state, active=active, **inputs_of(self.memory, x))
        return x + self._mean(x, recalled), decode_state

    def _mean(self, x, recalled):
        weights = jnp.exp(candidate_log_weights(recalled.scores))
        embedded = self.table.astype(weights.dtype)[recalled.tokens]
        embedded = jnp.broadcast_to(embedded, (*weights.shape, self.dim))
        return jnp.einsum("blc,blcd->bld", weights, embedded).astype(x.dtype)
