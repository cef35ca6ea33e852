"""Memorizing Transformer: attention to the k nearest (key, value) pairs of a long first-in-first-out memory.

Wu, Rabe, Hutchins, Szegedy 2022, "Memorizing Transformers", https://arxiv.org/abs/2203.08913. With `memory_length=0`
this attention is the paper's local attention with its short cache. With `cache_length=0` as well it has no memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.axes import named
from memjax.functional.attention import attention, neighbor_attention, visibility
from memjax.functional.fifo import advance_cursor, order_after, reset_rows, ring_append, shift_append
from memjax.functional.mixing import head_gate, stop_forward
from memjax.functional.named_operations import operation
from memjax.functional.positions import relative_distances
from memjax.functional.sharded import merge_partials, num_shards, partial_attention, sharded_append
from memjax.memory.attention_implementations import read_segment
from memjax.memory.bucket_projector import BucketProjector
from memjax.memory.checks import MUST_BE_GIVEN, refuse_padding_in_front
from memjax.memory.interface import DecodeState, broadcast_mask, count_positions, next_position, where_rows
from memjax.memory.layer_parts import NormKind, weight_dropout
from memjax.memory.memorizing_reading import (
    LocalAttention,
    Neighbors,
    attention_shares,
    gather_neighbors,
    read_jointly,
    read_neighbors,
    read_shards,
    retrieval_arrays,
    threshold_neighbors,
)
from memjax.memory.memorizing_state import KeyValueMemory, MemorizingState, TokenProjections
from memjax.memory.projector import ProjectedAttention, Projector, Weights, repeat_heads
from memjax.memory.transformer_xl import EmptyMemory
from memjax.settings.checks import require
from memjax.settings.ranges import Count, HeadDim, Slots
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows, WeightedSum

__all__ = ["KeyValueMemory", "MemorizingAttention", "MemorizingState", "TokenProjections"]


WritePolicy = Literal["current", "evicted"]
"""Tokens that are written to the memory: those of the segment, or those that leave the cache."""


@operation
def reset(state: MemorizingState, start_of_document: Rows) -> MemorizingState:
    """Empties the cache of rows that start a document, marks all slots of their long memory as invalid, and sets their
    counters to 0.

    The keys and values of the long memory stay in place and are marked as not valid. Emptying them would copy the whole
    memory in every segment, while only a few slots are read. These are masked when they are read.
    """
    empty, memory = jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state), state.memory
    if isinstance(memory, KeyValueMemory):
        memory = dataclasses.replace(memory, valid=empty.memory.valid, cursor=empty.memory.cursor)
    return dataclasses.replace(empty, memory=memory)


@operation
def write(state: MemorizingState, segment: TokenProjections, *, policy: WritePolicy = "current") -> MemorizingState:
    """Returns the state with a segment appended to the cache and to the long memory. With the policy 'evicted' the long
    memory gets what leaves the cache instead. Rows without a real token keep their state.

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
        append = lambda ring, new, axis, **axes: sharded_append(
            ring, new.astype(ring.dtype), memory.cursor, active, axis=axis, **axes
        )
        by_row, by_head = {"slot_axis": memory.slot_axis}, memory.mesh_axes
        memory = KeyValueMemory(
            append(memory.keys, jnp.swapaxes(entries.keys, 1, 2), 2, **by_head),
            append(memory.values, jnp.swapaxes(entries.values, 1, 2), 2, **by_head),
            append(memory.valid, entries.valid, 1, **by_row),
            jax.tree.map(lambda ring, new: append(ring, new, 1, **by_row), memory.positions, entries.positions),
            advance_cursor(memory.cursor, jnp.where(active, length, 0), memory.valid.shape[1]),
            memory.slot_axis,
        )
    if not isinstance(position, EmptyState):
        position = position + segment.valid.sum(axis=1, dtype=position.dtype)
    return MemorizingState(cache, memory, position)


class MemorizingAttention(ProjectedAttention):
    """Attention of a Memorizing Transformer layer, which retrieves the nearest keys of a long memory for every query.

    Wu et al. 2022, https://arxiv.org/abs/2203.08913.

    What is stored: keys and values, as the part computed them, of the last `memory_length` (ring) and `cache_length`
    (cache) positions. When written: after each segment, so that a segment retrieves from earlier segments only. What is
    differentiable: nothing stored. Queries and the scale learn through retrieved keys, and the choice of neighbours has
    no gradient. When reset: at `start_of_document`.

    Symbols: `k~, v~ -> state.memory.keys, values`, `b_h -> gate`, `s_h, b^{T5} -> scale, position_bias` of
    `BucketProjector`, `V_m, V_c -> ` output of memory and of local attention, `V_a = g V_m + (1 - g) V_c`.

    Differs from the paper or its code. The code's values of the fields are those of the settings with
    `compatibility="meliad"`:

    * Empty slots are masked, and a row with an empty memory uses local attention alone. The code lets zero keys take
      part and multiplies by `1 - g` all the same (`empty_memory="zeros"`).
    * Memory layers have the T5 bias on local attention as the paper says. The code switches it off (`num_buckets`).
    * A token attends to itself. The code attends to strictly earlier tokens (`sees_itself=False`).
    * The scale of query-key norm starts at sqrt(head_dim). The code has 1.0 (`scale_init`).
    * Local attention sees cache and segment. The code sees as many keys as the cache has (`local_window`).
    * The search is exact. The code takes the best of each bucket (`retrieval="bucket"`).
    * Dropout falls on outputs. The code drops inputs (`dropout_on="inputs"`).

    One difference to the code remains: it averages the keys of a bucket whose scores are within about 1e-6 of the best,
    and here the first is taken. These are 1.3 to 1.6 % of the buckets in bfloat16 and hardly any in float32.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      memory_length: Number of slots of the long memory. 0 for none.
      num_neighbors: Number of retrieved slots per query and head.
      cache_length: Number of tokens of the local cache. 0 for none.
      projector: Projections and positions. By default those of the paper. Retrieved keys have no positions.
      local_window: Number of keys of local attention, including the query's own where it sees itself. 0 for all keys.
      merge: Merge of memory and local attention: 'gate' (a learned gate per head), 'joint' (one softmax), 'add', or
        'stop_forward' (the memory's output forward, the gradient of both).
      write_policy: Tokens that are written to the long memory: 'current' for the segment, 'evicted' for what leaves the
        cache.
      retrieval: Search for neighbours: 'exact', 'approximate', 'bucket' or 'threshold'.
      recall_target: Expected share of true neighbours that the retrieval 'approximate' finds.
      gate_init: Initial gate logit.
      sees_itself: Whether local attention of a token includes the token itself.
      empty_memory: Effect of slots that were never written: 'mask' hides them, 'zeros' lets zero keys take part.
      track_positions: Whether slots carry the document position of their token, and `Aux.arrays` has the retrieved
        positions `neighbor_positions` int32 and weights `neighbor_weights`, both `[batch, heads, length, neighbors]`
        (-1 and 0 for none).
      slot_axis: Name of the mesh axis over which to split the slots of a long memory that is too large for one device.
        Empty for no split. Works with the retrievals 'exact' and 'approximate', every merge, without `track_positions`,
        and with masked empty slots.
      norm: Place of the norm: 'pre' or 'post'.
      norm_kind: Kind of norm: 'rms' or 'layer'.
      dropout: Dropout rate of the output or the input.
      attention_dropout: Dropout rate of the attention weights.
      dropout_on: Place of the dropout. 'outputs' drops from the output of the part and from all attention weights.
        'inputs' drops from the normed input of queries, keys and values, and from the weights of local attention.
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

    dim: Count
    num_heads: Count
    head_dim: HeadDim = 0
    memory_length: Slots = MUST_BE_GIVEN
    num_neighbors: int = 32
    cache_length: int = 0
    projector: Projector = BucketProjector()
    local_window: int = 0
    merge: Literal["gate", "joint", "add", "stop_forward"] = "gate"
    write_policy: WritePolicy = "current"
    retrieval: Literal["exact", "approximate", "bucket", "threshold"] = "exact"
    recall_target: float = 0.95
    gate_init: float = 0.0
    sees_itself: bool = True
    empty_memory: EmptyMemory = "mask"
    track_positions: bool = False
    slot_axis: str = ""
    norm: Literal["post", "pre"] = "pre"
    norm_kind: NormKind = "rms"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    dropout_on: Literal["outputs", "inputs"] = "outputs"
    init_stddev: float | None = None
    dtype: Any = jnp.float32
    track_attention: bool = False

    def setup(self) -> None:
        super().setup()
        if self.memory_length and self.merge == "gate":
            gate = named(nn.initializers.constant(self.gate_init), "heads")
            self.gate = self.param("gate", gate, (self.num_heads,))

    @property
    def gate_description(self) -> str:
        """Text that says what the learned gate lets through: the long memory. Empty without such a gate."""
        return "the long memory" if self.memory_length and self.merge == "gate" else ""

    def gate_values(self, hidden: Activations) -> Float[Array, "#batch #length heads"]:
        """Returns the gate of every head, `[1, 1, heads]`. It is the same at all positions, whatever `hidden` is."""
        return jax.nn.sigmoid(self.gate.astype(jnp.float32))[None, None]

    @nn.nowrap
    def with_attention_tracking(self) -> MemorizingAttention:
        """Returns a copy that also outputs attention weights and retrieved positions. Its slots are not split over
        devices, and it searches exactly instead of by threshold.
        """
        retrieval = "exact" if self.retrieval == "threshold" else self.retrieval  # equal neighbours except for ties
        positions = self.memory_length > 0
        return self.clone(track_attention=True, track_positions=positions, retrieval=retrieval, slot_axis="")

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> MemorizingState:
        """Makes an empty cache and an empty long memory, with keys and values of `dtype`."""
        self._check()
        cache, memory = EmptyState(), EmptyState()
        if self.cache_length:
            cache = self._tokens(batch_size, self.cache_length, dtype)
        if self.memory_length:
            shape = (batch_size, self._num_key_heads, self.memory_length, self.head_dim)
            valid = jnp.zeros((batch_size, self.memory_length), bool)
            cursor = jnp.zeros((batch_size,), jnp.int32)
            positions = self._no_positions(batch_size, self.memory_length)
            keys, values = jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)
            memory = KeyValueMemory(keys, values, valid, positions, cursor, self.slot_axis)
        position = jnp.zeros((batch_size,), jnp.int32) if self.track_positions else EmptyState()
        return MemorizingState(cache, memory, position)

    @nn.nowrap
    def init_decode_state(self, state: MemorizingState, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state at the start of a segment of `segment_length` tokens, with `state` as the memory and
        empty buffers.
        """
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
        shared: Any = None,
    ) -> tuple[Activations, MemorizingState, Aux]:
        """Attends to cache, segment and long memory, then writes the segment."""
        batch, length, _ = x.shape
        read_mask, mask = mask, broadcast_mask(mask, batch, length)
        state, weights = reset(state, start_of_document), self._weights(shared, deterministic)
        queries, segment = self._project(weights, x, mask, state.document_position, deterministic)
        tokens, cache_valid = self._with_cache(state.cache, segment)
        visible = self._visible(cache_valid, mask)
        drop = lambda positions: self.drop(positions, deterministic=deterministic)
        local = self._place(weights, queries, tokens, visible, None, drop)
        y, aux = self._read(weights, queries, local, state.memory, mask, deterministic)
        if self.track_attention:
            aux = aux + self._track(weights, queries, local, segment, state.memory)
        if isinstance(state.memory, KeyValueMemory):  # written after it was read: in place where the state is donated
            memory = dataclasses.replace(state.memory, cursor=order_after(state.memory.cursor, y))
            state = dataclasses.replace(state, memory=memory)
        y = self._add_output(weights, x, y, deterministic or self._drops_inputs, None)
        if self.empty_memory == "zeros":  # padding in front would change the keys that a first token attends to
            y = refuse_padding_in_front(y, read_mask)
        return y, write(state, segment, policy=self.write_policy), aux

    def _visible(self, cache_valid: Array | None, mask: Array) -> Array:
        """Returns which keys of cache and segment each token of a segment reads, `[batch, 1, length, total]`."""
        length = mask.shape[1]
        visible = visibility(length, cache_valid, mask, window=self._reach)
        if self.sees_itself:
            return visible
        return visible & jnp.asarray(relative_distances(length, self.cache_length + length) > 0)[None, None]

    @property
    def decodes_segments(self) -> bool:
        """True: a segment is read as by `__call__`, and its keys and values are kept."""
        return True

    def decode_segment(
        self, x: Activations, decode_state: DecodeState, *, lengths: Int[Array, " batch"], shared: Any = None
    ) -> tuple[Activations, DecodeState]:
        """Reads the first `lengths` tokens of a segment in every row at once. See `LayerMemory.decode_segment`."""
        memory, weights, length = decode_state.memory, self._weights(shared), x.shape[1]
        mask = jnp.arange(length)[None] < lengths[:, None]
        queries, segment = self._project(weights, x, mask, memory.document_position, deterministic=True)
        tokens, cache_valid = self._with_cache(memory.cache, segment)
        local = self._place(weights, queries, tokens, self._visible(cache_valid, mask), None, None)
        y, _ = self._read(weights, queries, local, memory.memory, mask, deterministic=True)
        y = self._add_output(weights, x, y, True, None)
        segment = jax.tree.map(lambda buffer, new: new.astype(buffer.dtype), decode_state.segment, segment)
        memory = self._write_full(memory, segment, lengths == length)
        return y, DecodeState(memory, segment, next_position(decode_state.position, lengths, length))

    def _write_full(self, memory: MemorizingState, segment: TokenProjections, full: Rows) -> MemorizingState:
        """Returns the memory after the segments of the rows in `full` are written to it."""
        finished = dataclasses.replace(segment, valid=jnp.broadcast_to(full[:, None], segment.valid.shape))
        write_full = lambda memory: write(memory, finished, policy=self.write_policy)
        return jax.lax.cond(full.any(), write_full, lambda memory: memory, memory)

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows, shared: Any = None
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """Reads one token of every active row, and writes every segment that is full. `shared` are the biases that all
        layers share. Returns the new residual stream and the decode state.
        """
        memory, segment, position = decode_state.memory, decode_state.segment, decode_state.position
        batch, segment_length = segment.valid.shape
        document_position, weights = memory.document_position, self._weights(shared)
        if self.track_positions:
            document_position = document_position + position
        queries, token = self._project(weights, x, active[:, None], document_position, deterministic=True)
        segment = jax.tree.map(lambda b, t: ring_append(b, t.astype(b.dtype), position, active), segment, token)

        tokens, cache_valid = self._with_cache(memory.cache, segment)
        here = (position + self.cache_length)[:, None, None]
        distances = here - jnp.arange(self.cache_length + segment_length)[None, None, :]  # [b, 1, m]
        visible = (distances >= int(not self.sees_itself))[:, None]
        if cache_valid is not None:
            valid = jnp.pad(cache_valid, [(0, 0), (0, segment_length)], constant_values=True)
            visible = visible & valid[:, None, None, :]
        if self._reach:
            visible = visible & (distances < self._reach)[:, None]
        local = self._place(weights, queries, tokens, visible, position, None)
        y, _ = self._read(weights, queries, local, memory.memory, active[:, None], deterministic=True)
        y = self._add_output(weights, x, y, True, None)

        memory = self._write_full(memory, segment, active & (position + 1 == segment_length))
        return y, DecodeState(memory, segment, next_position(position, active, segment_length))

    def _place(
        self, weights: Weights, queries: Array, tokens: TokenProjections, visible: Array, position: Any, drop: Any
    ) -> LocalAttention:
        """Places queries and the keys of cache and segment, with as many heads of keys as of queries."""
        keys, runs = tokens.keys.astype(queries.dtype), (("", self.cache_length),)
        placed, keys, scores = self.projector.place(weights, queries, keys, runs, position=position, drop=drop)
        keys, values = (repeat_heads(leaf, self.num_heads) for leaf in (keys, tokens.values.astype(queries.dtype)))
        return LocalAttention(self.projector.add_content_bias(weights, placed), keys, values, scores, visible)

    def _read(
        self,
        weights: Weights,
        queries: Array,
        local: LocalAttention,
        memory: KeyValueMemory | EmptyState,
        mask: Array,
        deterministic: bool,
    ) -> tuple[Array, Aux]:
        """Merges local attention and attention to the retrieved neighbours."""
        scale = self.projector.scale(weights)
        options: dict[str, Any] = {"scale": scale, **weight_dropout(self, deterministic)}
        neighbor_options: dict[str, Any] = {"scale": scale} if self._drops_inputs else options
        here = {"mask": local.visible, "bias": local.scores, **options}
        if isinstance(memory, EmptyState):
            return self._read_local(weights, local, options, deterministic), Aux()
        queries = self.projector.add_content_bias(weights, queries)
        near, has_all_slots = None, self.retrieval == "threshold"
        if num_shards(memory.slot_axis, memory.valid.shape[1]) > 1:
            search = {"method": self.retrieval, "recall_target": self.recall_target, **neighbor_options}
            partial = read_shards(queries, memory, self.num_neighbors, **search)
            if self.merge == "joint":
                return merge_partials(partial, partial_attention(*local[:3], **here)).astype(queries.dtype), Aux()
            from_memory = merge_partials(partial).astype(queries.dtype)
        elif self.merge == "joint" or has_all_slots or self.track_positions:
            near = self._neighbors(weights, queries, memory)
            if self.merge == "joint":
                return read_jointly(local, near, has_all_slots=has_all_slots, options=options), Aux(arrays=near.arrays)
            if has_all_slots:
                from_memory = attention(queries, near.keys, near.values, mask=near.real, **neighbor_options)
            else:
                from_memory = neighbor_attention(queries, near.keys, near.values, near.real, **neighbor_options)
        else:
            search = {"method": self.retrieval, "recall_target": self.recall_target, **neighbor_options}
            search["reads_empty_slots"] = self._reads_empty_slots
            from_memory = read_neighbors(queries, memory, self.num_neighbors, **search)
        arrays = {} if near is None else near.arrays
        from_local = self._read_local(weights, local, options, deterministic)
        return self._merge(from_memory, from_local, memory.valid.any(axis=1), mask, arrays)

    @property
    def _why_reference(self) -> str:
        return "merge 'joint', allowed: 'reference'" if self.merge == "joint" else ""

    def _read_local(
        self, weights: Weights, local: LocalAttention, options: dict[str, Any], deterministic: bool
    ) -> Array:
        """Reads cache and segment."""
        not_fused = f"{type(self).__name__}, allowed: 'reference' or 'blocks'"
        implementation = self._choose_implementation(local.queries, local.keys, deterministic, not_fused)
        seen: dict[str, Any] = {"visible": local.visible, "bias": local.scores, **options}
        seen["distance_bias"] = self.projector.distance_bias(weights, self.head_dim)
        return read_segment(implementation, *local[:3], **seen)[0]

    def _merge(
        self, from_memory: Array, from_local: Array, has_memory: Array, mask: Array, arrays: dict[str, Array]
    ) -> tuple[Array, Aux]:
        if self.merge == "add":
            return from_memory + from_local, Aux(arrays=arrays)
        if self.merge == "stop_forward":
            where = None if self._reads_empty_slots else has_memory
            return stop_forward(from_memory, from_local, where), Aux(arrays=arrays)
        y = head_gate(self.gate, from_memory, from_local, has_memory, dilute_empty=self._reads_empty_slots)
        opening = jax.lax.stop_gradient(jax.nn.sigmoid(self.gate.astype(jnp.float32)).mean())
        share = lambda of: WeightedSum(opening * of.sum().astype(jnp.float32), of.sum().astype(jnp.float32))
        metrics = {"gate": share(mask), "memorizing/memory_share": share(mask & has_memory[:, None])}
        return y, Aux(metrics=metrics, arrays=arrays)

    def _neighbors(self, weights: Weights, queries: Array, memory: KeyValueMemory) -> Neighbors:
        """Returns the neighbours of all queries. With the retrieval 'threshold' these are all slots."""
        number, reads_empty_slots = self.num_neighbors, self._reads_empty_slots
        if self.retrieval == "threshold":
            return threshold_neighbors(queries, memory, number, reads_empty_slots=reads_empty_slots)
        search: dict[str, Any] = {"method": self.retrieval, "recall_target": self.recall_target}
        keys, values, ids, real = gather_neighbors(queries, memory, number, **search)
        arrays = {}
        if self.track_positions:
            arrays = retrieval_arrays(queries, keys, ids, real, self.projector.scale(weights), memory)
        if reads_empty_slots:  # empty slots take part as zero keys and values
            keys, values = jnp.where(real[..., None], keys, 0), jnp.where(real[..., None], values, 0)
            real = jnp.ones_like(real)
        return Neighbors(keys, values, real, arrays)

    def _track(
        self,
        weights: Weights,
        queries: Array,
        local: LocalAttention,
        segment: TokenProjections,
        memory: KeyValueMemory | EmptyState,
    ) -> Aux:
        """Returns the share of every key in the output, with its age and source."""
        near, merged, scale = None, None, self.projector.scale(weights)
        if isinstance(memory, KeyValueMemory):
            queries = self.projector.add_content_bias(weights, queries)
            near = self._neighbors(weights, queries, memory)
            merged = None if self.merge == "joint" else self._merge_shares(memory.valid.any(axis=1))
        return attention_shares(self, queries, local, segment, near, scale, merged)

    def _merge_shares(self, has_memory: Array) -> tuple[Array, Array]:
        """Returns the shares of memory and of local attention in the merged output, each `[#batch, #heads, 1, 1]`."""
        ones, present = jnp.ones((1, 1, 1, 1)), has_memory[:, None, None, None]
        if self.merge == "add":
            return ones, ones
        present = present | self._reads_empty_slots
        if self.merge == "stop_forward":
            return jnp.where(present, ones, 0), jnp.where(present, 0, ones)
        gate = jax.nn.sigmoid(self.gate.astype(jnp.float32))[None, :, None, None]
        return jnp.where(present, gate, 0), jnp.where(present, 1 - gate, ones)

    def _project(
        self, weights: Weights, x: Array, mask: Array, document_position: Any, deterministic: bool
    ) -> tuple[Array, TokenProjections]:
        y = self.apply_norm(x).astype(self.dtype)
        if self._drops_inputs:
            y = self.drop(y, deterministic=deterministic)
        queries, (keys, values) = self.projector.queries(weights, y), self.projector.keys_values(weights, y)
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
        if self._reads_empty_slots:  # never-written slots are attended to as zero vectors
            hide = lambda stored: jnp.where(valid[:, :, None, None], stored, 0)
            cache = dataclasses.replace(cache, keys=hide(cache.keys), values=hide(cache.values))
            valid = jnp.ones_like(valid)
        joined = jax.tree.map(lambda c, s: jnp.concatenate([c.astype(s.dtype), s], axis=1), cache, segment)
        return joined, valid

    @nn.nowrap
    def _tokens(self, batch: int, tokens: int, dtype: Any) -> TokenProjections:
        shape = (batch, tokens, self._num_key_heads, self.head_dim)
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
    def _reads_empty_slots(self) -> bool:
        return self.empty_memory == "zeros"

    @property
    def _reach(self) -> int | None:
        """Number of keys, the query's own included, that local attention reaches. None for all."""
        return self.local_window + int(not self.sees_itself) if self.local_window else None

    @property
    def _drops_inputs(self) -> bool:
        return self.dropout_on == "inputs"


_SPLIT_SLOT_OPTIONS: dict[str, tuple[Any, ...]] = {
    "retrieval": ("exact", "approximate"),
    "empty_memory": ("mask",),
    "track_positions": (False,),
}
"""Field -> values that a memory with split slots supports."""
