"""Memorizing Transformer: attention to the k nearest (key, value) pairs of a long first-in-first-out memory.

Wu, Rabe, Hutchins, Szegedy 2022, "Memorizing Transformers", https://arxiv.org/abs/2203.08913. With `memory_length=0`
this attention is the paper's local attention with its short cache. With `cache_length=0` as well it has no memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import axes_of, named
from memjax.functional.attention import attention, joint_attention, masked_softmax, neighbor_attention, visibility
from memjax.functional.fifo import advance_cursor, order_after, reset_rows, ring_append, shift_append
from memjax.functional.mixing import head_gate, stop_forward
from memjax.functional.named_operations import operation
from memjax.functional.neighbors import gather_slots, select_neighbors, threshold_mask
from memjax.functional.positions import bucket_bias, relative_distances
from memjax.functional.sharded import (
    merge_partials,
    num_shards,
    partial_attention,
    sharded_append,
    sharded_neighbors,
    sharded_restore,
    sharded_save,
)
from memjax.memory.checks import refuse_padding_in_front
from memjax.memory.interface import DecodeState, LayerMemory, broadcast_mask, count_positions, next_position, where_rows
from memjax.memory.layer_parts import (
    RETRIEVED,
    SEGMENT,
    SHORT,
    Residual,
    TrackedKeys,
    matrix_init,
    project,
    project_biased,
    tracked_weights,
    weight_dropout,
)
from memjax.settings.checks import require
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, WeightedSum, tree_dataclass

__all__ = ["KeyValueMemory", "MemorizingAttention", "MemorizingState", "TokenProjections"]


@tree_dataclass
class TokenProjections:
    """Keys and values of consecutive tokens, oldest first: the local cache, or one segment.

    Attributes:
      keys: `[batch, tokens, heads, head_dim]`, normalised where the part normalises keys.
      values: `[batch, tokens, heads, head_dim]`.
      valid: bool `[batch, tokens]`, real tokens of the running document.
      positions: int32 `[batch, tokens]`, position of each token in its document. `EmptyState` if not tracked.
    """

    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    valid: Leaf
    positions: Leaf


@tree_dataclass
class KeyValueMemory:
    """Long memory of (key, value) pairs, stored as a ring, from which queries retrieve their neighbours.

    Attributes:
      keys: `[batch, heads, memory, head_dim]`.
      values: `[batch, heads, memory, head_dim]`.
      valid: bool `[batch, memory]`, slots that hold a token of the running document.
      positions: int32 `[batch, memory]`, document position of each slot's token. `EmptyState` if not tracked.
      cursor: int32 `[batch]`, slot that is written next. It holds the oldest pair.
      slot_axis: Name of the mesh axis over which the slots are split. Empty if they are not split (static).
    """

    keys: Leaf = dataclasses.field(metadata=axes_of("batch", "memory_heads", "memory", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", "memory_heads", "memory", None))
    valid: Leaf = dataclasses.field(metadata=axes_of("batch", "memory"))
    positions: Leaf = dataclasses.field(metadata=axes_of("batch", "memory"))
    cursor: Leaf
    slot_axis: str = dataclasses.field(default="", metadata={"static": True})

    def save(self, start_of_document: Rows, length: int) -> tuple[KeyValueMemory, SavedWindow]:
        """Returns this memory, to write to from now on, and the slots that a segment of `length` tokens will overwrite.

        See `memjax.memory.interface.save_state`.
        """
        slots = self.valid.shape[1]
        window = min(length, slots)
        start = (jnp.where(start_of_document, 0, self.cursor) + length - window) % slots
        take = lambda ring: sharded_save(ring, start, window, slot_axis=self.slot_axis, axis=2)
        saved = SavedWindow(take(self.keys), take(self.values), start, self.valid, self.positions, self.cursor)
        # The write depends on this cursor: it comes after these reads, and so needs no copy of the ring.
        return dataclasses.replace(self, cursor=order_after(self.cursor, saved.keys, saved.values)), saved

    def restore(self, ok: Bool[Array, ""], saved: SavedWindow) -> KeyValueMemory:
        """Returns this memory if `ok`, else the memory before the segment. Only saved slots are written back."""
        rows = jnp.broadcast_to(~ok, saved.start.shape)
        put = lambda ring, window: sharded_restore(ring, window, saved.start, rows, slot_axis=self.slot_axis, axis=2)
        valid, positions, cursor = jax.tree.map(
            lambda new, old: jnp.where(ok, new, old),
            (self.valid, self.positions, self.cursor),
            (saved.valid, saved.positions, saved.cursor),
        )
        keys, values = put(self.keys, saved.keys), put(self.values, saved.values)
        return KeyValueMemory(keys, values, valid, positions, cursor, self.slot_axis)


@tree_dataclass
class SavedWindow:
    """Keys and values of the slots that a segment overwrites, and the validity of all slots, saved beforehand.

    `KeyValueMemory.restore` undoes a segment with them, after a skipped step.

    Attributes:
      keys: `[batch, heads, length, head_dim]`, keys of the overwritten slots. If the slots are split over devices,
        every device has `length` keys (see `sharded_save`).
      values: `[batch, heads, length, head_dim]`, values of the overwritten slots.
      start: int32 `[batch]`, first slot that is overwritten.
      valid: bool `[batch, memory]`, validity of all slots.
      positions: int32 `[batch, memory]`, document positions of all slots.
      cursor: int32 `[batch]`, slot that is written next.
    """

    keys: Leaf
    values: Leaf
    start: Leaf
    valid: Leaf
    positions: Leaf
    cursor: Leaf


@tree_dataclass
class MemorizingState:
    """State of the attention of one layer of a Memorizing Transformer.

    Attributes:
      cache: `TokenProjections` of the last `cache_length` positions. `EmptyState` for none.
      memory: `KeyValueMemory`. `EmptyState` for none.
      document_position: int32 `[batch]`, number of tokens of the document read so far. `EmptyState` if not tracked.
    """

    cache: Any
    memory: Any
    document_position: Any


@operation
def reset(state: MemorizingState, start_of_document: Rows) -> MemorizingState:
    """Empties cache and long memory of rows that start a document, and sets their counters to 0.

    The keys and values of the long memory stay in place and are marked as not valid. Emptying them would copy the whole
    memory in every segment, while only a few slots are read. These are masked when they are read.
    """
    empty, memory = jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state), state.memory
    if isinstance(memory, KeyValueMemory):
        memory = dataclasses.replace(memory, valid=empty.memory.valid, cursor=empty.memory.cursor)
    return dataclasses.replace(empty, memory=memory)


@operation
def write(state: MemorizingState, segment: TokenProjections, *, policy: str = "current") -> MemorizingState:
    """Appends a segment to the cache and to the long memory. Rows without a real token keep their state.

    Args:
      state: State that the segment read.
      segment: Keys and values of the segment. Padding (`valid` False) takes slots that are marked invalid.
      policy: Tokens to write to the long memory. 'current' writes the segment, so that cache and memory both hold the
        latest tokens. 'evicted' writes the tokens that leave the cache.
    """
    segment = jax.lax.stop_gradient(segment)
    active, length = segment.valid.any(axis=1), segment.valid.shape[1]
    cache, memory, position = state.cache, state.memory, state.document_position
    entries = segment
    if isinstance(cache, TokenProjections):
        if policy == "evicted":
            entries = jax.tree.map(
                lambda c, s: jnp.concatenate([c, s.astype(c.dtype)], axis=1)[:, :length], cache, segment
            )
        cache = where_rows(active, jax.tree.map(shift_append, cache, segment), cache)
    if isinstance(memory, KeyValueMemory):
        append = lambda ring, new, axis: sharded_append(
            ring, new.astype(ring.dtype), memory.cursor, active, slot_axis=memory.slot_axis, axis=axis
        )
        memory = KeyValueMemory(
            append(memory.keys, jnp.swapaxes(entries.keys, 1, 2), 2),
            append(memory.values, jnp.swapaxes(entries.values, 1, 2), 2),
            append(memory.valid, entries.valid, 1),
            jax.tree.map(lambda ring, new: append(ring, new, 1), memory.positions, entries.positions),
            advance_cursor(memory.cursor, jnp.where(active, length, 0), memory.valid.shape[1]),
            memory.slot_axis,
        )
    if not isinstance(position, EmptyState):
        position = position + segment.valid.sum(axis=1, dtype=position.dtype)
    return MemorizingState(cache, memory, position)


@operation
def retrieve(
    queries: Float[Array, "batch length heads head_dim"],
    memory: KeyValueMemory,
    num_neighbors: int,
    *,
    method: str = "exact",
    recall_target: float = 0.95,
) -> tuple[Int[Array, "batch heads length neighbors"], Bool[Array, "batch heads length neighbors"]]:
    """Finds the slots of the nearest keys of the same row and head, and which of them are real. No gradient."""
    by_head = jnp.swapaxes(queries, 1, 2)
    keys = memory.keys.astype(queries.dtype)
    return select_neighbors(by_head, keys, memory.valid, num_neighbors, method=method, recall_target=recall_target)  # type: ignore[arg-type]


class MemorizingAttention(Residual, LayerMemory):
    """Attention of a Memorizing Transformer layer, which retrieves the nearest keys of a long memory for every query.

    Wu et al. 2022, https://arxiv.org/abs/2203.08913.

    What is stored: keys and values, as the part computed them, of the last `memory_length` (ring) and `cache_length`
    (cache) positions. When written: after each segment, so that a segment retrieves from earlier segments only. What is
    differentiable: nothing stored. Queries and the scale learn through retrieved keys, and the choice of neighbours has
    no gradient. When reset: at `start_of_document`.

    Symbols: `k~, v~ -> state.memory.keys, values`, `s_h -> scale`, `b_h -> gate`, `b^{T5} -> position_bias`,
    `V_m, V_c -> ` output of memory and of local attention, `V_a = g V_m + (1 - g) V_c`.

    Differs from the paper or its code. `compatibility="meliad"` takes the code's side in the first three points, and in
    the last four if their fields are None:

    * Empty slots are masked, and a row with an empty memory uses local attention alone. The code lets zero keys take
      part and multiplies by `1 - g` all the same.
    * Memory layers have the T5 bias on local attention as the paper says. The code switches it off.
    * A token attends to itself. The code attends to strictly earlier tokens.
    * The scale of query-key norm starts at sqrt(head_dim). The code has 1.0.
    * Local attention sees cache and segment. The code sees as many keys as the cache has.
    * The search is exact. The code takes the best of each bucket.
    * Dropout falls on outputs. The code drops inputs.

    The T5 bias is added to the scores as in T5, unscaled. A learned scale multiplies the bias too, as in the code. One
    difference to the code remains: it averages the keys of a bucket whose scores are within about 1e-6 of the best, and
    here the first is taken. These are 1.3 to 1.6 % of the buckets in bfloat16 and hardly any in float32.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head.
      memory_length: Number of slots of the long memory. 0 for none.
      num_neighbors: Number of retrieved slots per query and head.
      cache_length: Number of tokens of the local cache. 0 for none.
      local_window: Number of keys of local attention including the query's own (for 'meliad': earlier keys). 0 for all
      keys.
        None for all keys, or for `cache_length` with 'meliad'.
      merge: Merge of memory and local attention: 'gate' (a learned gate per head), 'joint' (one softmax), 'add', or
        'stop_forward' (the memory's output forward, the gradient of both).
      write_policy: Tokens that are written to the long memory: 'current' for the segment, 'evicted' for what leaves the
        cache.
      retrieval: Search for neighbours: 'exact', 'approximate', 'bucket' or 'threshold'. None for 'exact', or for
        'bucket' with 'meliad'.
      recall_target: Expected share of true neighbours that the retrieval 'approximate' finds.
      query_key_norm: Whether to normalise queries and keys and to learn a scale per head. False scales scores by
        1 / sqrt(head_dim).
      scale_init: Initial scale. None for sqrt(head_dim), or for 1 with 'meliad'.
      gate_init: Initial gate logit.
      bias: Whether all projections have biases.
      num_buckets: Number of T5 buckets of local attention. 0 for no positions.
      max_distance: Distance in tokens from which on all distances share the last bucket.
      bias_scaling: Scaling of the T5 bias with the factor of the scores: 'learned' only with the scale of query-key
        norm, 'always' also with 1 / sqrt(head_dim) where there is no such norm.
      track_positions: Whether slots carry the document position of their token, and `Aux.arrays` has the retrieved
        positions `neighbor_positions` int32 and weights `neighbor_weights`, both `[batch, heads, length, neighbors]`
        (-1 and 0 for none).
      compatibility: Side to take where paper and code differ: 'paper', or 'meliad' for the authors' code.
      slot_axis: Name of the mesh axis over which to split the slots of a long memory that is too large for one device.
        Empty for no split. Works with the retrievals 'exact' and 'approximate', every merge, without `track_positions`,
        and with the compatibility 'paper'.
      norm: Place of the norm: 'pre' or 'post'.
      norm_kind: Kind of norm: 'rms' or 'layer'.
      dropout: Dropout rate of the output or the input.
      attention_dropout: Dropout rate of the attention weights.
      dropout_on: Place of the dropout. 'outputs' drops from the output of the part and from all attention weights.
        'inputs' drops from the normed input of queries, keys and values, and from the weights of local attention.
        None for 'outputs', or for 'inputs' with 'meliad'.
      init_stddev: Standard deviation of initial matrices. None for a truncated normal scaled by fan-in.
      dtype: Dtype of the computation.
      track_attention: Whether `Aux.arrays` has the arrays for `memjax.inspection.attention_by_age`, for the neighbours
        followed by cache and segment. A long memory then needs `track_positions`, and a retrieval other than
        'threshold'.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory = MemorizingAttention(dim=8, num_heads=2, head_dim=4, memory_length=8, num_neighbors=2)
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.memory.keys.shape  # slots are stored by heads
      ((1, 4, 8), (1, 2, 8, 4))
    """

    dim: int
    num_heads: int
    head_dim: int
    memory_length: int = 0
    num_neighbors: int = 32
    cache_length: int = 0
    local_window: int | None = None
    merge: str = "gate"
    write_policy: str = "current"
    retrieval: str | None = None
    recall_target: float = 0.95
    query_key_norm: bool = True
    scale_init: float | None = None
    gate_init: float = 0.0
    bias: bool = False
    num_buckets: int = 32
    max_distance: int = 128
    bias_scaling: str = "learned"
    track_positions: bool = False
    compatibility: str = "paper"
    slot_axis: str = ""
    norm: str = "pre"
    norm_kind: str = "rms"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    dropout_on: str | None = None
    init_stddev: float | None = None
    dtype: Any = jnp.float32
    track_attention: bool = False

    def setup(self) -> None:
        super().setup()
        heads, init = (self.num_heads, self.head_dim), matrix_init(self.init_stddev, out_axis=(1, 2))
        inner, outer = named(init, "embed", "heads", None), matrix_init(self.init_stddev, (0, 1))
        zeros = nn.initializers.zeros
        bias = lambda name: self.param(f"{name}_bias", named(zeros, "heads", None), heads) if self.bias else None
        self.query, self.query_bias = self.param("query", inner, (self.dim, *heads)), bias("query")
        self.key, self.key_bias = self.param("key", inner, (self.dim, *heads)), bias("key")
        self.value, self.value_bias = self.param("value", inner, (self.dim, *heads)), bias("value")
        self.output = self.param("output", named(outer, "heads", None, "embed"), (*heads, self.dim))
        self.output_bias = self.param("output_bias", named(zeros, "embed"), (self.dim,)) if self.bias else None
        if self.query_key_norm:
            scale = (1.0 if self._meliad else self.head_dim**0.5) if self.scale_init is None else self.scale_init
            self.scale = self.param("scale", named(nn.initializers.constant(scale), "heads"), (self.num_heads,))
        if self._has_bias:
            shape = (self.num_heads, self.num_buckets)
            self.position_bias = self.param("position_bias", named(nn.initializers.normal(0.02), "heads", None), shape)
        if self.memory_length and self.merge == "gate":
            gate = named(nn.initializers.constant(self.gate_init), "heads")
            self.gate = self.param("gate", gate, (self.num_heads,))

    @property
    def gate_description(self) -> str:
        """Description of what the learned gate lets through."""
        return "the long memory" if self.memory_length and self.merge == "gate" else ""

    def gate_values(self, hidden: Activations) -> Float[Array, "#batch #length heads"]:
        """Returns the gate of every head, which is the same at all positions."""
        return jax.nn.sigmoid(self.gate.astype(jnp.float32))[None, None]

    @nn.nowrap
    def with_attention_tracking(self) -> MemorizingAttention:
        """Returns a copy that also outputs attention weights and retrieved positions. No mesh axis splits its slots."""
        retrieval = "exact" if self._retrieval == "threshold" else self.retrieval  # equal neighbours except for ties
        positions = self.memory_length > 0
        return self.clone(track_attention=True, track_positions=positions, retrieval=retrieval, slot_axis="")

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> MemorizingState:
        """Makes a memory in which a document starts, with keys and values of `dtype`."""
        self._check()
        cache, memory = EmptyState(), EmptyState()
        if self.cache_length:
            cache = self._tokens(batch_size, self.cache_length, dtype)
        if self.memory_length:
            shape = (batch_size, self.num_heads, self.memory_length, self.head_dim)
            valid = jnp.zeros((batch_size, self.memory_length), bool)
            cursor = jnp.zeros((batch_size,), jnp.int32)
            positions = self._no_positions(batch_size, self.memory_length)
            keys, values = jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)
            memory = KeyValueMemory(keys, values, valid, positions, cursor, self.slot_axis)
        position = jnp.zeros((batch_size,), jnp.int32) if self.track_positions else EmptyState()
        return MemorizingState(cache, memory, position)

    @nn.nowrap
    def init_decode_state(self, state: MemorizingState, segment_length: int, batch_size: int) -> DecodeState:
        """Starts decoding at the start of a segment, with `state` as the memory."""
        # Not in the dtype of the memory: keys and values of the segment are rounded only when they are written.
        segment = self._tokens(batch_size, segment_length, self.dtype)
        return DecodeState(state, segment, jnp.zeros((batch_size,), jnp.int32))

    def __call__(
        self,
        x: Activations,
        state: MemorizingState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[Activations, MemorizingState, Aux]:
        """Attends to cache, segment and long memory, then writes the segment."""
        batch, length, _ = x.shape
        read_mask, mask = mask, broadcast_mask(mask, batch, length)
        state = reset(state, start_of_document)
        queries, segment = self._project(x, mask, state.document_position, deterministic)
        local, cache_valid = self._with_cache(state.cache, segment)
        distances = relative_distances(length, self.cache_length + length)
        visible = visibility(length, cache_valid, mask, window=self._reach)
        if self._meliad:
            visible = visible & jnp.asarray(distances > 0)[None, None]
        y, aux = self._read(queries, local, visible, distances, state.memory, mask, deterministic)
        if self.track_attention:
            aux = aux + self._attention_shares(queries, local, visible, distances, state.memory)
        if isinstance(state.memory, KeyValueMemory):  # written after it was read: in place where the state is donated
            memory = dataclasses.replace(state.memory, cursor=order_after(state.memory.cursor, y))
            state = dataclasses.replace(state, memory=memory)
        y = self._finish(x, y, deterministic)
        if self._meliad:  # padding in front would change the keys that a first token attends to
            y = refuse_padding_in_front(y, read_mask)
        return y, write(state, segment, policy=self.write_policy), aux

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """Reads one token of every active row, and writes every segment that is full."""
        memory, segment, position = decode_state.memory, decode_state.segment, decode_state.position
        batch, segment_length = segment.valid.shape
        document_position = memory.document_position
        if self.track_positions:
            document_position = document_position + position
        queries, token = self._project(x, active[:, None], document_position, deterministic=True)
        segment = jax.tree.map(lambda b, t: ring_append(b, t.astype(b.dtype), position, active), segment, token)

        local, cache_valid = self._with_cache(memory.cache, segment)
        here = (position + self.cache_length)[:, None, None]
        distances = here - jnp.arange(self.cache_length + segment_length)[None, None, :]  # [b, 1, m]
        visible = (distances >= int(self._meliad))[:, None]
        if cache_valid is not None:
            valid = jnp.pad(cache_valid, [(0, 0), (0, segment_length)], constant_values=True)
            visible = visible & valid[:, None, None, :]
        if self._reach:
            visible = visible & (distances < self._reach)[:, None]
        y, _ = self._read(queries, local, visible, distances, memory.memory, active[:, None], deterministic=True)
        y = self._finish(x, y, deterministic=True)

        full = active & (position + 1 == segment_length)
        finished = dataclasses.replace(segment, valid=jnp.broadcast_to(full[:, None], segment.valid.shape))
        memory = jax.lax.cond(full.any(), lambda m: write(m, finished, policy=self.write_policy), lambda m: m, memory)
        return y, DecodeState(memory, segment, next_position(position, active, segment_length))

    def _read(
        self,
        queries: Array,
        local: TokenProjections,
        visible: Array,
        distances: np.ndarray | Array,
        memory: KeyValueMemory | EmptyState,
        mask: Array,
        deterministic: bool,
    ) -> tuple[Array, Aux]:
        """Merges local attention and attention to the retrieved neighbours."""
        # In the dtype of the parameter: rounded to bfloat16, different scales would become equal.
        scale = jnp.abs(self.scale) if self.query_key_norm else self.head_dim**-0.5
        options: dict[str, Any] = {"scale": scale, **weight_dropout(self, deterministic)}
        neighbor_options: dict[str, Any] = {"scale": scale} if self._drops_inputs else options
        keys, values = local.keys.astype(queries.dtype), local.values.astype(queries.dtype)
        bias = self._bias(distances)
        if isinstance(memory, EmptyState):
            return attention(queries, keys, values, mask=visible, bias=bias, **options), Aux()
        if num_shards(memory.slot_axis, memory.valid.shape[1]) > 1:
            near = sharded_neighbors(
                queries,
                memory.keys,
                memory.values,
                memory.valid,
                self.num_neighbors,
                slot_axis=memory.slot_axis,
                method=self._retrieval,  # type: ignore[arg-type]
                recall_target=self.recall_target,
                **neighbor_options,
            )
            if self.merge == "joint":
                here = partial_attention(queries, keys, values, mask=visible, bias=bias, **options)
                return merge_partials(near, here).astype(queries.dtype), Aux()
            from_local = attention(queries, keys, values, mask=visible, bias=bias, **options)
            from_memory = merge_partials(near).astype(queries.dtype)
            return self._merge(from_memory, from_local, memory.valid.any(axis=1), mask, {})
        near_keys, near_values, real, arrays = self._neighbors(queries, memory)
        if self.merge == "joint":
            if self._retrieval == "threshold":
                keys, values = jnp.concatenate([near_keys, keys], 1), jnp.concatenate([near_values, values], 1)
                visible = jnp.concatenate([real, jnp.broadcast_to(visible, (*real.shape[:3], visible.shape[-1]))], -1)
                bias = None if bias is None else jnp.pad(bias, [(0, 0)] * 3 + [(real.shape[-1], 0)])
                return attention(queries, keys, values, mask=visible, bias=bias, **options), Aux(arrays=arrays)
            y = joint_attention(
                queries, keys, values, near_keys, near_values, mask=visible, neighbor_valid=real, bias=bias, **options
            )
            return y, Aux(arrays=arrays)
        if self._retrieval == "threshold":
            from_memory = attention(queries, near_keys, near_values, mask=real, **neighbor_options)
        else:
            from_memory = neighbor_attention(queries, near_keys, near_values, real, **neighbor_options)
        from_local = attention(queries, keys, values, mask=visible, bias=bias, **options)
        return self._merge(from_memory, from_local, memory.valid.any(axis=1), mask, arrays)

    def _merge(
        self, from_memory: Array, from_local: Array, has_memory: Array, mask: Array, arrays: dict[str, Array]
    ) -> tuple[Array, Aux]:
        if self.merge == "add":
            return from_memory + from_local, Aux(arrays=arrays)
        if self.merge == "stop_forward":
            return stop_forward(from_memory, from_local, None if self._meliad else has_memory), Aux(arrays=arrays)
        y = head_gate(self.gate, from_memory, from_local, has_memory, dilute_empty=self._meliad)
        opening = jax.lax.stop_gradient(jax.nn.sigmoid(self.gate.astype(jnp.float32)).mean())
        share = lambda of: WeightedSum(opening * of.sum().astype(jnp.float32), of.sum().astype(jnp.float32))
        metrics = {"gate": share(mask), "memorizing/memory_share": share(mask & has_memory[:, None])}
        return y, Aux(metrics=metrics, arrays=arrays)

    def _neighbors(self, queries: Array, memory: KeyValueMemory) -> tuple[Array, Array, Array, dict[str, Array]]:
        """Returns keys, values and validity of the neighbours. 'threshold' gives all slots with a threshold mask."""
        dtype = queries.dtype
        if self._retrieval == "threshold":
            # Every slot is read here, and slots that are not valid may hold NaN.
            valid_only = lambda slots: jnp.where(memory.valid[:, None, :, None], slots.astype(dtype), 0)
            keys, values = valid_only(memory.keys), valid_only(memory.values)
            score_dtype = jnp.promote_types(dtype, jnp.float32)
            scores = jnp.einsum("blhd,bhmd->bhlm", queries, keys, preferred_element_type=score_dtype)
            real = threshold_mask(jax.lax.stop_gradient(scores), memory.valid, self.num_neighbors)
            if self._meliad:  # as many empty slots as neighbours are missing take part as zero keys and values
                empty = ~memory.valid
                missing = self.num_neighbors - memory.valid.sum(axis=1, keepdims=True)
                real = real | (empty & (jnp.cumsum(empty, axis=1) <= missing))[:, None, None]
            return jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2), real, {}
        ids, real = retrieve(
            queries, memory, self.num_neighbors, method=self._retrieval, recall_target=self.recall_target
        )
        keys = gather_slots(memory.keys, ids).astype(dtype)
        values = gather_slots(memory.values, ids).astype(dtype)
        arrays = self._retrieval_arrays(queries, keys, ids, real, memory) if self.track_positions else {}
        if self._meliad:  # empty slots take part as zero keys and values
            keys, values = jnp.where(real[..., None], keys, 0), jnp.where(real[..., None], values, 0)
            real = jnp.ones_like(real)
        return keys, values, real, arrays

    def _retrieval_arrays(
        self, queries: Array, keys: Array, ids: Array, real: Array, memory: KeyValueMemory
    ) -> dict[str, Array]:
        """Returns the document positions of the neighbours and their softmax weights, for analysis."""
        scale = jnp.abs(self.scale)[None, :, None, None] if self.query_key_norm else self.head_dim**-0.5
        weights = masked_softmax(jnp.einsum("blhd,bhlkd->bhlk", queries, keys) * scale, real)
        positions = jax.vmap(lambda row, slots: row[slots])(memory.positions, ids)
        return {"neighbor_positions": jnp.where(real, positions, -1), "neighbor_weights": weights}

    def _attention_shares(
        self,
        queries: Array,
        local: TokenProjections,
        visible: Array,
        distances: np.ndarray,
        memory: KeyValueMemory | EmptyState,
    ) -> Aux:
        """Returns the share of every key in the output: of the neighbours, then of cache and segment."""
        scale, bias = (jnp.abs(self.scale) if self.query_key_norm else self.head_dim**-0.5), self._bias(distances)
        wide = jnp.promote_types(queries.dtype, jnp.float32)
        scaled = queries.astype(wide) * jnp.reshape(scale, (1, 1, -1, 1))
        scores = jnp.einsum("blhd,bmhd->bhlm", scaled, local.keys.astype(wide))
        scores = scores if bias is None else scores + bias
        local_visible, length = jnp.broadcast_to(visible, scores.shape), queries.shape[1]
        ages = jnp.broadcast_to(jnp.asarray(distances, jnp.int32), scores.shape)
        sources = jnp.where(jnp.arange(scores.shape[-1]) < self.cache_length, SHORT, SEGMENT)
        if isinstance(memory, EmptyState):
            key_facts = TrackedKeys(ages, jnp.ones_like(sources), sources)
            return tracked_weights(self, masked_softmax(scores, local_visible), local_visible, key_facts)
        keys, _, real, arrays = self._neighbors(queries, memory)
        positions = arrays["neighbor_positions"]
        near = jnp.einsum("blhd,bhlkd->bhlk", scaled, keys.astype(wide))
        visible_keys = jnp.concatenate([real & (positions >= 0), local_visible], axis=-1)
        if self.merge == "joint":
            weights = masked_softmax(
                jnp.concatenate([near, scores], axis=-1), jnp.concatenate([real, local_visible], axis=-1)
            )
        else:
            parts = masked_softmax(near, real), masked_softmax(scores, local_visible)
            shares = self._merge_shares(memory.valid.any(axis=1))
            weights = jnp.concatenate([share * part for share, part in zip(shares, parts, strict=True)], axis=-1)
        here = local.positions[:, None, -length:, None]
        ages = jnp.concatenate([jnp.where(positions >= 0, here - positions, 0), ages], axis=-1)
        sources = jnp.pad(sources, (self.num_neighbors, 0), constant_values=RETRIEVED)
        return tracked_weights(
            self, jnp.where(visible_keys, weights, 0), visible_keys, TrackedKeys(ages, jnp.ones_like(sources), sources)
        )

    def _merge_shares(self, has_memory: Array) -> tuple[Array, Array]:
        """Returns the shares of memory and of local attention in the merged output, each `[#batch, #heads, 1, 1]`."""
        ones, present = jnp.ones((1, 1, 1, 1)), has_memory[:, None, None, None]
        if self.merge == "add":
            return ones, ones
        present = present | self._meliad
        if self.merge == "stop_forward":
            return jnp.where(present, ones, 0), jnp.where(present, 0, ones)
        gate = jax.nn.sigmoid(self.gate.astype(jnp.float32))[None, :, None, None]
        return jnp.where(present, gate, 0), jnp.where(present, 1 - gate, ones)

    def _project(
        self, x: Array, mask: Array, document_position: Any, deterministic: bool
    ) -> tuple[Array, TokenProjections]:
        y = self.apply_norm(x).astype(self.dtype)
        if self._drops_inputs:
            y = self.drop(y, deterministic=deterministic)
        queries = project_biased(y, self.query, self.query_bias)
        keys, values = project_biased(y, self.key, self.key_bias), project_biased(y, self.value, self.value_bias)
        if self.query_key_norm:
            queries, keys = _unit(queries), _unit(keys)
        positions = EmptyState()
        if self.track_positions:
            positions = document_position[:, None] + count_positions(mask)
        return queries, TokenProjections(keys, values, mask, positions)

    def _with_cache(
        self, cache: TokenProjections | EmptyState, segment: TokenProjections
    ) -> tuple[TokenProjections, Array | None]:
        """Concatenates cache and segment, and returns which cached tokens may be seen."""
        if isinstance(cache, EmptyState):
            return segment, None
        valid = cache.valid
        if self._meliad:  # never-written slots are attended to as zero vectors
            hide = lambda stored: jnp.where(valid[:, :, None, None], stored, 0)
            cache = dataclasses.replace(cache, keys=hide(cache.keys), values=hide(cache.values))
            valid = jnp.ones_like(valid)
        joined = jax.tree.map(lambda c, s: jnp.concatenate([c.astype(s.dtype), s], axis=1), cache, segment)
        return joined, valid

    def _bias(self, distances: np.ndarray | Array) -> Array | None:
        if not self._has_bias:
            return None
        bias = bucket_bias(self.position_bias, distances, max_distance=self.max_distance)
        bias = bias if bias.ndim == 4 else bias[None]
        if self.query_key_norm:
            return bias * jnp.abs(self.scale)[None, :, None, None]
        return bias * self.head_dim**-0.5 if self.bias_scaling == "always" else bias

    def _finish(self, x: Array, y: Array, deterministic: bool) -> Array:
        y = project(y, self.output, axes=2)
        y = y if self.output_bias is None else y + self.output_bias.astype(y.dtype)[None, None]
        return self.add_residual(x, y, deterministic or self._drops_inputs)

    @nn.nowrap
    def _tokens(self, batch: int, tokens: int, dtype: Any) -> TokenProjections:
        shape = (batch, tokens, self.num_heads, self.head_dim)
        valid = jnp.zeros((batch, tokens), bool)
        return TokenProjections(
            jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), valid, self._no_positions(batch, tokens)
        )

    @nn.nowrap
    def _no_positions(self, batch: int, slots: int) -> Array | EmptyState:
        return jnp.zeros((batch, slots), jnp.int32) if self.track_positions else EmptyState()

    @nn.nowrap
    def _check(self) -> None:
        if not self.memory_length:
            return
        fits = 1 <= self.num_neighbors <= self.memory_length
        require(fits, "num_neighbors", self.num_neighbors, f"1 to memory_length = {self.memory_length}")
        if self.write_policy == "evicted" and not self.cache_length:
            raise ValueError("write_policy: given 'evicted' with cache_length = 0, allowed: 'current'; or set a cache")
        if self.slot_axis:
            for name, allowed in _SPLIT_SLOT_OPTIONS.items():
                if getattr(self, name) not in allowed:
                    raise ValueError(
                        f"{name}: given {getattr(self, name)!r} for a memory whose slots are split over the mesh axis "
                        f"{self.slot_axis!r}, allowed: {' or '.join(map(repr, allowed))}; or split heads"
                    )

    @property
    def _meliad(self) -> bool:
        return self.compatibility == "meliad"

    @property
    def _retrieval(self) -> str:
        return self.retrieval or ("bucket" if self._meliad else "exact")

    @property
    def _reach(self) -> int | None:
        """Number of keys, the query's own included, that local attention reaches. None for all."""
        window = self.local_window
        if window is None:
            window = self.cache_length if self._meliad else 0
        # A window counts the query's own key. The authors' code counts earlier keys only.
        return window + int(self._meliad) if window else None

    @property
    def _drops_inputs(self) -> bool:
        return self.dropout_on == "inputs" or (self.dropout_on is None and self._meliad)

    @property
    def _has_bias(self) -> bool:
        return self.num_buckets > 0 and not (self._meliad and self.memory_length > 0)


_SPLIT_SLOT_OPTIONS: dict[str, tuple[Any, ...]] = {
    "retrieval": (None, "exact", "approximate"),
    "compatibility": ("paper",),
    "track_positions": (False,),
}
"""Field -> values that a memory with split slots supports."""


def _unit(x: Array) -> Array:
    """Divides `x` by its length along the last axis, with the sum of squares in at least float32."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * jax.lax.rsqrt(jnp.square(wide).sum(axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)
