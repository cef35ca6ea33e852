"""Memories at the output site as the laws take them: from hidden states to hidden states."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from memjax.functional.mixing import candidate_log_weights
from memjax.memory.interface import Memory
from memjax.memory.next_token_candidates import NextTokenCandidates

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
        "neighbor_values": jnp.where(tokens[..., None] % 5 == 0, -1, values),
        "neighbor_mask": values % 3 > 0,
    }
    return {name: inputs[name] for name in memory.input_names if name in inputs}


class AtOutput(Memory):
    """A memory that is given what a model has; the output of one that proposes tokens is their mean embedding.

    With dropout, so that law 13 is not empty.
    """

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
        y, state, aux = self.memory(x, state, **self._inputs(x), **named)
        return x + self.drop(self._mean(x, y), deterministic=deterministic), state, aux

    def decode(self, x, decode_state, *, active):
        y, decode_state = self.memory.decode(x, decode_state, active=active, **self._inputs(x))
        return x + self._mean(x, y), decode_state

    def _inputs(self, x):
        embed = {"embed_output": lambda ids: self.table[ids]} if "embed_output" in self.memory.input_names else {}
        return inputs_of(self.memory, x) | embed

    def _mean(self, x, recalled):
        if not isinstance(recalled, NextTokenCandidates):
            return recalled
        weights = jnp.exp(candidate_log_weights(recalled.scores))
        embedded = self.table.astype(weights.dtype)[recalled.tokens]
        embedded = jnp.broadcast_to(embedded, (*weights.shape, self.dim))
        return jnp.einsum("blc,blcd->bld", weights, embedded).astype(x.dtype)
