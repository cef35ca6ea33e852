"""A small memory of every site: what later memories need of the contract, and faults that the laws must notice."""

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from memjax.functional.attention import attention, visibility
from memjax.functional.fifo import reset_rows, ring_append, shift_append
from memjax.functional.precision import at_least_float32
from memjax.functional.table_rows import lookup_rows
from memjax.memory import interface as contract
from memjax.memory.checks import refuse_padding_in_front
from memjax.memory.interface import DecodeState, broadcast_mask, next_position, token_decode_state, where_rows
from memjax.typing import Aux, EmptyState, Leaf, WeightedSum, tree_dataclass

FAULTS = {
    "no_reset": "reset",
    "forgets_validity": "reset",
    "starts_full": "reset",
    "leaves_contents": "not_finite",
    "shared_buffer": "shape",
    "state_dtype": "shape",
    "mixes_rows": "rows",
    "sees_future": "causality",
    "counts_traces": "scan",
    "keeps_gradient": "gradient_policy",
    "off_by_one": "capacity",
    "keeps_padding": "padding",
    "unread_slot": "use",
    "writes_idle_rows": "idle",
    "weighs_padding": "idle",
    "blind_decode": "decode",
    "writes_every_token": "decode",
    "moves_idle_rows": "decode",
    "own_noise": "replay",
    "float32_literal": "float64",
}
"""Fault of `OutputMemory` -> the law that must notice it."""

COUNTER = itertools.count()


@tree_dataclass
class FifoState:
    hidden: Leaf
    valid: Leaf
    copy: Leaf = EmptyState()


class OutputMemory(contract.OutputMemory):
    """The output site: attention of the last hidden states over those of earlier tokens, first in, first out."""

    dim: int = 8
    memory_length: int = 8
    dropout: float = 0.2
    fault: str = ""
    dtype: Any = jnp.float32

    def setup(self):
        init = nn.initializers.normal(0.5)
        self.query = self.param("query", init, (self.dim, self.dim))
        self.output = self.param("output", init, (self.dim, self.dim))
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        hidden = jnp.zeros((batch_size, self.memory_length, self.dim), dtype)
        valid = jnp.full((batch_size, self.memory_length), self.fault == "starts_full")
        return FifoState(hidden, valid, hidden if self.fault == "shared_buffer" else EmptyState())

    @nn.nowrap
    def init_decode_state(self, state, segment_length, batch_size):
        buffer = jnp.zeros((batch_size, segment_length, self.dim), self.dtype)
        return DecodeState(state, buffer, jnp.zeros((batch_size,), jnp.int32))

    def __call__(self, x, state, *, start_of_document, mask=None, deterministic=True):
        batch, length, _ = x.shape
        mask = broadcast_mask(mask, batch, length)
        hidden, valid = (reset_rows(leaf, start_of_document) for leaf in (state.hidden, state.valid))
        hidden = state.hidden if self.fault in ("no_reset", "leaves_contents") else hidden
        visible = visibility(length, state.valid if self.fault == "no_reset" else valid, mask)
        if self.fault == "sees_future":
            visible = visible.at[..., -1].set(True)
        y = self._read(x, jnp.concatenate([hidden.astype(x.dtype), x], axis=1), visible, deterministic)
        if self.fault == "mixes_rows":
            y = y + 1e-3 * y.mean(axis=0, keepdims=True)
        if self.fault == "counts_traces":
            y = y + 1e-3 * next(COUNTER)
        kept = FifoState(hidden, state.valid if self.fault == "forgets_validity" else valid, state.copy)
        weights = jnp.ones_like(mask) if self.fault == "weighs_padding" else mask
        tokens = weights.sum().astype(y.dtype)
        aux = Aux(
            losses={"size": WeightedSum(jnp.where(weights[..., None], y**2, 0).sum(), tokens)},
            metrics={
                "filled": WeightedSum(
                    jnp.where(weights.any(axis=1), valid.sum(axis=1), 0).sum().astype(y.dtype), tokens
                )
            },
        )
        return y, self._write(kept, x, mask), aux

    def decode(self, x, decode_state, *, active):
        memory, position = decode_state.memory, decode_state.position
        batch, length, _ = decode_state.segment.shape
        written = jnp.ones_like(active) if self.fault == "moves_idle_rows" else active
        segment = ring_append(decode_state.segment, x, position, written)
        seen = jnp.arange(length)[None, :] <= position[:, None] - int(self.fault == "blind_decode")
        visible = jnp.concatenate([memory.valid, seen], axis=1)[:, None, None, :]
        y = self._read(x, jnp.concatenate([memory.hidden.astype(x.dtype), segment], axis=1), visible, True)
        full = active & (position + 1 == length)
        if self.fault == "writes_every_token":
            memory = self._write(memory, x, active[:, None])
        else:
            memory = self._write(memory, segment, jnp.broadcast_to(full[:, None], (batch, length)))
        return y, DecodeState(memory, segment, next_position(position, active, length))

    def _read(self, x, keys, visible, deterministic):
        if self.fault == "unread_slot":
            visible = visible & (jnp.arange(keys.shape[1]) != 2)[None, None, None, :]
        queries = jnp.einsum("bld,de->ble", x, self.query.astype(x.dtype))
        y = attention(queries[:, :, None], keys[:, :, None], keys[:, :, None], mask=visible)[:, :, 0]
        y = jnp.einsum("bld,de->ble", y, self.output.astype(x.dtype))
        if self.fault == "float32_literal":
            y = y.astype(jnp.float32).astype(x.dtype)
        if self.fault == "own_noise" and not deterministic:
            y = y * jax.random.normal(jax.random.key(next(COUNTER)), y.shape, y.dtype)
        return x + self.drop(y, deterministic=deterministic)

    def _write(self, state, x, mask):
        new = x if self.fault == "keeps_gradient" else jax.lax.stop_gradient(x)
        if self.fault == "keeps_padding":
            mask = mask | mask[:, :1]
        valid = shift_append(state.valid, mask)
        hidden = shift_append(state.hidden, new[:, :-1] if self.fault == "off_by_one" else new)
        hidden = hidden.astype(x.dtype) if self.fault == "state_dtype" else hidden
        written = FifoState(hidden, valid, state.copy)
        return written if self.fault == "writes_idle_rows" else where_rows(mask.any(axis=1), written, state)


@tree_dataclass
class SlotState:
    slots: Leaf
    started: Leaf


class SlotMemory(contract.Memory):
    """The stack site: every layer reads the slots, the stack writes them once; nothing stops the gradient.

    The memory of a new document is a parameter, applied on rows that start one; `init_state` knows no parameters.
    """

    dim: int = 8
    num_layers: int = 2
    num_slots: int = 3
    segment_length: int = 4
    dropout: float = 0.2
    dtype: Any = jnp.float32

    def setup(self):
        init = nn.initializers.normal(0.5)
        self.matrices = self.param("matrices", init, (self.num_layers, 3, self.dim, self.dim))
        self.positions = self.param("positions", init, (self.segment_length, self.dim))
        self.initial = self.param("initial", init, (self.num_slots, self.dim))
        self.writer = self.param("writer", init, (self.dim, self.dim))
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        slots = jnp.zeros((batch_size, self.num_slots, self.dim), jnp.promote_types(dtype, jnp.float32))
        return SlotState(slots, jnp.zeros((batch_size,), bool))

    def __call__(self, x, state, *, start_of_document, mask=None, deterministic=True):
        batch, length, _ = x.shape
        if length != self.segment_length:
            raise ValueError(f"x: given {length} tokens, allowed: segment_length = {self.segment_length}; use a mask")
        mask = broadcast_mask(mask, batch, length)
        fresh = start_of_document | ~state.started
        slots = jnp.where(fresh[:, None, None], self.initial.astype(state.slots.dtype)[None], state.slots)
        y = x + self.positions.astype(x.dtype)[None]
        read = slots.astype(x.dtype)
        for query, key, value in self.matrices.astype(x.dtype):
            seen = jnp.concatenate([read, y], axis=1)
            visible = jnp.pad(mask, [(0, 0), (self.num_slots, 0)], constant_values=True)[:, None, None, :]
            new = self._attend(y @ query, seen @ key, seen @ value, visible)
            y = y + self.drop(new, deterministic=deterministic)
        tokens = y.astype(slots.dtype)
        new = slots + self._attend(slots @ self.writer.astype(slots.dtype), tokens, tokens, mask[:, None, None, :])
        new = new / jnp.linalg.norm(new, axis=-1, keepdims=True)
        new = where_rows(mask.any(axis=1), SlotState(new, jnp.ones_like(state.started)), state)
        return refuse_padding_in_front(y, mask), new, Aux()

    def _attend(self, queries, keys, values, visible):
        visible = jnp.broadcast_to(visible, (*visible.shape[:2], queries.shape[1], visible.shape[3]))
        return attention(queries[:, :, None], keys[:, :, None], values[:, :, None], mask=visible)[:, :, 0]


@tree_dataclass
class MeanState:
    mean: Leaf


class MeanMemory(contract.LayerMemory):
    """The layer site without a decode of its own: attention to a running mean of the segments before, and to the
    segment.
    """

    dim: int = 8
    dropout: float = 0.2
    dtype: Any = jnp.float32

    def setup(self):
        self.matrices = self.param("matrices", nn.initializers.normal(0.5), (2, self.dim, self.dim))
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        return MeanState(jnp.zeros((batch_size, 1, self.dim), at_least_float32(dtype)))

    def __call__(self, x, state, *, start_of_document, mask=None, deterministic=True):
        batch, length, _ = x.shape
        mask, mean = broadcast_mask(mask, batch, length), reset_rows(state.mean, start_of_document)
        query, output = self.matrices.astype(x.dtype)
        keys = jnp.concatenate([mean.astype(x.dtype), x], axis=1)
        visible = visibility(length, jnp.ones((batch, 1), bool), mask)
        y = attention((x @ query)[:, :, None], keys[:, :, None], keys[:, :, None], mask=visible)[:, :, 0] @ output
        tokens = jnp.where(mask[..., None], x, 0).astype(mean.dtype).sum(axis=1, keepdims=True)
        new = 0.5 * mean + 0.5 * tokens / jnp.maximum(mask.sum(axis=1), 1).astype(mean.dtype)[:, None, None]
        return x + self.drop(y, deterministic=deterministic), where_rows(mask.any(axis=1), MeanState(new), state), Aux()


@tree_dataclass
class LinearState:
    products: Leaf
    normalizer: Leaf


class LinearMemory(contract.LayerMemory):
    """The layer site, token by token: a sum over all tokens so far that is never cut off from the gradient."""

    dim: int = 8
    dropout: float = 0.2
    dtype: Any = jnp.float32

    def setup(self):
        self.matrices = self.param("matrices", nn.initializers.normal(0.5), (3, self.dim, self.dim))
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        dtype = at_least_float32(dtype)
        return LinearState(jnp.zeros((batch_size, self.dim, self.dim), dtype), jnp.zeros((batch_size, self.dim), dtype))

    @nn.nowrap
    def init_decode_state(self, state, segment_length, batch_size):
        return token_decode_state(state, batch_size)

    def __call__(self, x, state, *, start_of_document, mask=None, deterministic=True):
        mask = broadcast_mask(mask, *x.shape[:2])
        fresh = LinearState(jnp.zeros_like(state.products), jnp.zeros_like(state.normalizer))
        old = where_rows(start_of_document, fresh, state)
        y, new = self._read_write(x, old, mask)
        return x + self.drop(y, deterministic=deterministic), where_rows(mask.any(axis=1), new, state), Aux()

    def decode(self, x, decode_state, *, active):
        y, new = self._read_write(x, decode_state.memory, active[:, None])
        position = decode_state.position + active.astype(jnp.int32)
        return x + y, DecodeState(where_rows(active, new, decode_state.memory), EmptyState(), position)

    def _read_write(self, x, state, mask):
        dtype = state.products.dtype
        queries, keys, values = (x.astype(dtype) @ matrix.astype(dtype) for matrix in self.matrices)
        queries, keys = nn.elu(queries) + 1, jnp.where(mask[..., None], nn.elu(keys) + 1, 0)
        scores = jnp.tril(jnp.einsum("bld,bmd->blm", queries, keys))
        above = jnp.einsum("blm,bme->ble", scores, values) + jnp.einsum("bld,bde->ble", queries, state.products)
        below = scores.sum(axis=-1) + jnp.einsum("bld,bd->bl", queries, state.normalizer)
        products = state.products + jnp.einsum("bld,ble->bde", keys, values)
        return (above / (1 + jnp.abs(below))[..., None]).astype(x.dtype), LinearState(
            products, state.normalizer + keys.sum(axis=1)
        )


@tree_dataclass
class SourceState:
    slots: Leaf
    ready: Leaf


class CrossMemory(contract.CrossMemory):
    """The cross site: slots that summarise the source once, at the start of a document."""

    dim: int = 8
    num_slots: int = 3
    dropout: float = 0.2
    dtype: Any = jnp.float32

    def setup(self):
        self.summary = self.param("summary", nn.initializers.normal(0.5), (self.num_slots, self.dim))
        self.query = self.param("query", nn.initializers.normal(0.5), (self.dim, self.dim))
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        slots = jnp.zeros((batch_size, self.num_slots, self.dim), jnp.promote_types(dtype, jnp.float32))
        return SourceState(slots, jnp.zeros((batch_size,), bool))

    def _read_source(self, source, source_mask, state, maps):
        source = source.astype(state.slots.dtype)
        queries = jnp.broadcast_to(self.summary.astype(source.dtype)[None], (source.shape[0], *self.summary.shape))
        visible = broadcast_mask(source_mask, *source.shape[:2])[:, None, None, :]
        visible = jnp.broadcast_to(visible, (source.shape[0], 1, self.num_slots, source.shape[1]))
        slots = attention(queries[:, :, None], source[:, :, None], source[:, :, None], mask=visible)[:, :, 0]
        return SourceState(slots, jnp.ones_like(state.ready))

    def _read(self, x, state, maps, deterministic):
        slots = state.slots.astype(x.dtype)[:, :, None]
        y = attention((x @ self.query.astype(x.dtype))[:, :, None], slots, slots)[:, :, 0]
        return x + self.drop(y, deterministic=deterministic)


class TableFeedForward(contract.StatelessMemory):
    """A feed-forward part whose values stand in a row-sparse table; the memory is in parameters, the state empty."""

    dim: int = 8
    rows: int = 6
    dropout: float = 0.2
    dtype: Any = jnp.float32

    def setup(self):
        self.keys = self.param("keys", nn.initializers.normal(1.0), (self.dim, self.rows))
        draw = lambda: jax.random.normal(self.make_rng("params"), (self.rows, self.dim))
        self.values = self.variable("tables", "values", draw)
        self.drop = nn.Dropout(self.dropout)

    def read(self, x, mask, deterministic):
        ids = jnp.argmax(x @ self.keys.astype(x.dtype), axis=-1).astype(jnp.int32)
        sink = self.get_variable("sinks", "values") if self.has_variable("sinks", "values") else None
        y = lookup_rows(self.values.value, ids, sink).astype(x.dtype)
        return x + self.drop(y, deterministic=deterministic), Aux(arrays={"values/ids": ids})


class SoftVocabulary(nn.Module):
    """A vocabulary whose embeddings are given from outside, so that a language model has a gradient to its input.

    The collection `offsets` holds `x`, the embeddings of the tokens whatever their ids.
    """

    dim: int = 8
    dtype: Any = jnp.float32

    def embed(self, ids):
        if not self.has_variable("offsets", "x"):
            return jnp.zeros((*ids.shape, self.dim), self.dtype)
        return self.get_variable("offsets", "x")

    def log_probs(self, hidden):
        return hidden
