"""The long memory of a Memorizing Transformer, the compressed memory of a Compressive Transformer and the signal of
infinity-former as grafts of a rotary attention (`memjax.memory.grafts`).

Wu et al. 2022, https://arxiv.org/abs/2203.08913; Rae et al. 2019, https://arxiv.org/abs/1911.05507; Martins et al.
2022, https://arxiv.org/abs/2109.00301.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.axes import axes_of, named
from memjax.functional.attention import attention
from memjax.functional.compression import (
    attention_reconstruction,
    max_pool,
    mean_pool,
    strided_convolution,
    window_validity,
)
from memjax.functional.fifo import order_after, ring_append, shift_append
from memjax.functional.sharded import merge_partials, num_shards
from memjax.memory import long_term_signal, memorizing
from memjax.memory.checks import MUST_BE_GIVEN
from memjax.memory.compressive import LOSSES
from memjax.memory.grafts import GatedGraft, GraftedMemory, GraftReading, HostQueries, HostTokens
from memjax.memory.infinity_former import LongTermMemory, LongTermSegment
from memjax.memory.interface import where_rows
from memjax.memory.long_term_signal import LongTermState
from memjax.memory.memorizing_reading import read_neighbors, read_shards, threshold_neighbors
from memjax.memory.memorizing_state import KeyValueMemory, MemorizingState, TokenProjections
from memjax.memory.projector import repeat_heads
from memjax.settings.checks import require
from memjax.settings.ranges import Count, Slots
from memjax.typing import Aux, EmptyState, Leaf, Mask, Rows, tree_dataclass

__all__ = ["GraftedCompression", "GraftedNeighbors", "GraftedSignal"]


class GraftedNeighbors(GatedGraft):
    """The long memory of a Memorizing Transformer as a graft: every query reads the nearest of many stored keys.

    Wu et al. 2022, https://arxiv.org/abs/2203.08913.

    What is stored: keys before their rotation, and values, of the last `memory_length` tokens (ring). When written:
    after each segment. What is differentiable: nothing stored. When reset: at `start_of_document`.

    Symbols: `k~, v~ -> state.memory.keys, values`, `b_h -> gate`.

    Differs from the paper or its code: the gate is a tanh (`gate_kind`), so that an added memory changes nothing at
    first. Keys and queries are those of the host, with its scale and norms and without its positions.

    Attributes:
      memory_length: Number of slots.
      num_neighbors: Number of slots that are read for each query and head.
      retrieval: Search for neighbours: 'exact', 'approximate', 'bucket' or 'threshold' (`MemorizingAttention`).
      recall_target: Expected share of true neighbours that the retrieval 'approximate' finds.
      slot_axis: Name of the mesh axis over which to split the slots. Empty for no split.
    """

    memory_length: Slots = MUST_BE_GIVEN
    num_neighbors: int = 32
    retrieval: Literal["exact", "approximate", "bucket", "threshold"] = "exact"
    recall_target: float = 0.95
    slot_axis: str = ""

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> MemorizingState:
        """Makes an empty memory, with keys and values of `dtype`."""
        fits = 1 <= self.num_neighbors <= self.memory_length
        require(fits, "num_neighbors", self.num_neighbors, f"1 to memory_length = {self.memory_length}")
        split = not self.slot_axis or self.retrieval in ("exact", "approximate")
        allowed = "'exact' or 'approximate' for a memory whose slots are split over a mesh axis; or split heads"
        require(split, "retrieval", self.retrieval, allowed)
        shape = (batch_size, self.key_heads, self.memory_length, self.head_dim)
        valid, cursor = jnp.zeros((batch_size, self.memory_length), bool), jnp.zeros((batch_size,), jnp.int32)
        keys, values = jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)
        memory = KeyValueMemory(keys, values, valid, EmptyState(), cursor, self.slot_axis)
        return MemorizingState(EmptyState(), memory, EmptyState())

    @nn.nowrap
    def reset(self, state: MemorizingState, start_of_document: Rows) -> MemorizingState:
        """Marks the slots of rows that start a document as empty."""
        return memorizing.reset(state, start_of_document)

    @property
    def gate_description(self) -> str:
        """Text that says what the gate lets through."""
        return "the long memory"

    def _read(self, queries: Array, state: MemorizingState, options: Mapping[str, Any]) -> tuple[Array, Array]:
        memory, number = state.memory, self.num_neighbors
        present = memory.valid.any(axis=1)
        if self.retrieval == "threshold":
            near = threshold_neighbors(queries, memory, number, reads_empty_slots=False)
            return attention(queries, near.keys, near.values, mask=near.real, **options), present
        search: dict[str, Any] = {"method": self.retrieval, "recall_target": self.recall_target}
        if num_shards(memory.slot_axis, memory.valid.shape[1]) > 1:
            partial = read_shards(queries, memory, number, **search, **options)
            return merge_partials(partial).astype(queries.dtype), present
        return read_neighbors(queries, memory, number, **search, **options), present

    def _write(
        self,
        state: MemorizingState,
        host: HostTokens,
        after: Any = EmptyState(),
        reading: tuple[Any, ...] | None = None,
    ) -> tuple[MemorizingState, Aux]:
        if not isinstance(after, EmptyState):  # written after it was read: in place where the state is donated
            memory = dataclasses.replace(state.memory, cursor=order_after(state.memory.cursor, after))
            state = dataclasses.replace(state, memory=memory)
        return memorizing.write(state, TokenProjections(*host.segment(), EmptyState())), Aux()


class GraftedCompression(GatedGraft):
    """The compressed memory of a Compressive Transformer as a graft: tokens that leave the memory of the host are
    compressed, several to a slot.

    Rae et al. 2019, https://arxiv.org/abs/1911.05507.

    What is stored: compressed keys before their rotation and values, slots that each stand for `compression_rate`
    tokens. When written: after each segment, with what it displaces from the memory of the host. What is
    differentiable: the compression learns from its attention-reconstruction loss only. When reset: at
    `start_of_document`.

    Symbols: `cm -> state.keys, values`, `f_c -> compression`, `n_cm -> compressed_memory_length`,
    `c -> compression_rate`.

    Differs from the paper or its code:

    * Keys and values are compressed, by head, instead of hidden states. The convolution begins as the mean.
    * Compressed slots have a softmax of their own, and a gate.
    * If the memory of the host is shorter than the segment, the loss also counts queries before a token that is
      compressed.

    Attributes:
      compressed_memory_length: Number of slots.
      compression_rate: Number of tokens of a slot, a divisor of the segment's length and of the host's memory.
      compression: Compression function f_c: 'convolution' (width and stride are the rate), 'max' or 'mean'.
    """

    compressed_memory_length: Count = MUST_BE_GIVEN
    compression_rate: Count = 4
    compression: Literal["convolution", "max", "mean"] = "convolution"

    def setup(self) -> None:
        super().setup()
        if self.compression == "convolution":
            shape = (2, self.key_heads, self.compression_rate, self.head_dim, self.head_dim)
            mean = lambda key, shape, dtype: jnp.broadcast_to(jnp.eye(shape[-1], dtype=dtype) / shape[2], shape)
            kernel = named(mean, None, "heads", None, None, None)
            self.compression_kernel = self.param("compression_kernel", kernel, shape, jnp.float32)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> TokenProjections:
        """Makes an empty memory, with keys and values of `dtype`."""
        shape = (batch_size, self.compressed_memory_length, self.key_heads, self.head_dim)
        valid = jnp.zeros(shape[:2], bool)
        return TokenProjections(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), valid, EmptyState())

    @property
    def gate_description(self) -> str:
        """Text that says what the gate lets through."""
        return "the compressed memory"

    def _read(self, queries: Array, state: TokenProjections, options: Mapping[str, Any]) -> tuple[Array, Array]:
        keys, values = state.keys.astype(queries.dtype), state.values.astype(queries.dtype)
        mask = jnp.broadcast_to(state.valid[:, None, None], (len(queries), 1, queries.shape[1], keys.shape[1]))
        return attention(queries, keys, values, mask=mask, **options), state.valid.any(axis=1)

    def _write(
        self,
        state: TokenProjections,
        host: HostTokens,
        after: Any = EmptyState(),
        reading: tuple[Any, ...] | None = None,
    ) -> tuple[TokenProjections, Aux]:
        rate, slots = self.compression_rate, host.keys.shape[1] - host.length
        allowed = f"a divisor of the segment's {host.length} tokens and of the host's {slots} slots"
        require(host.length % rate == slots % rate == 0, "compression_rate", rate, allowed)
        *pair, valid = jax.lax.stop_gradient(host.leaving())
        # The compression must not see padding.
        old = [jnp.where(valid[..., None, None], leaf, 0) for leaf in pair]
        new, whole = self._compress(*old), window_validity(valid, rate)
        new = [jnp.where(whole[..., None, None], leaf, 0) for leaf in new]
        append = lambda slots, added: shift_append(slots, jax.lax.stop_gradient(added))
        written = jax.tree.map(append, state, TokenProjections(new[0], new[1], whole, EmptyState()))
        aux = Aux() if reading is None else self._reconstruction(old, new, whole, *reading)
        return where_rows(host.segment()[2].any(axis=1), written, state), aux

    def _compress(self, keys: Array, values: Array) -> list[Array]:
        """Compresses windows of keys and of values, `[batch, length, key_heads, head_dim]`."""
        by_head = functools.partial(jax.vmap, in_axes=2, out_axes=2)
        if self.compression == "convolution":
            convolve = jax.vmap(strided_convolution, in_axes=(2, 0), out_axes=2)
            return [convolve(x, kernel) for x, kernel in zip((keys, values), self.compression_kernel, strict=True)]
        pool = mean_pool if self.compression == "mean" else max_pool
        return [by_head(lambda x: pool(x, self.compression_rate))(x) for x in (keys, values)]

    def _reconstruction(
        self, old: list[Array], new: list[Array], whole: Array, queries: Array, mask: Array, scale: Any
    ) -> Aux:
        """Computes the loss of the compression, with the scale of the scores of the host."""
        queries = queries if scale is None else queries * jnp.asarray(scale * self.head_dim**0.5, queries.dtype)
        every_head = [repeat_heads(leaf, self.num_heads) for leaf in (*old, *new)]
        stands_for = jnp.repeat(whole, self.compression_rate, axis=1)
        masks = {"query_mask": mask, "old_mask": stands_for, "new_mask": whole}
        return Aux(losses={LOSSES["attention"]: attention_reconstruction(queries, *every_head, **masks)})


@tree_dataclass
class GraftedSignalSegment:
    """Buffers of a `GraftedSignal` during the decoding of one segment.

    Attributes:
      signal: Buffers of the signal.
      hidden: `[batch, segment_length, dim]`, tokens of the segment, which enter the signal after it.
    """

    signal: LongTermSegment
    hidden: Leaf = dataclasses.field(metadata=axes_of("batch", None, None))


class GraftedSignal(GraftedMemory):
    """The long-term memory of infinity-former as a graft: all older tokens as a continuous signal of constant size.

    Martins et al. 2022, https://arxiv.org/abs/2109.00301.

    What is stored: coefficients of the signal, and the inputs of the attention in the last segment. When written: these
    enter the signal at the start of the next segment, also those that the memory of the host still has. What is
    differentiable: nothing stored. When reset: at `start_of_document`, and every `reset_after_tokens` tokens.

    Symbols: those of `InfinityFormerAttention`.

    Differs from the paper or its code: the output matrix begins with zeros, so that an added memory changes nothing at
    first. Inputs are normed where the host norms them.

    Attributes:
      signal: The long-term memory, with `zero_output` for a graft that is closed at first.
    """

    signal: LongTermMemory = MUST_BE_GIVEN

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> LongTermState:
        """Makes the state of rows without a signal. See `LongTermMemory`."""
        return self.signal.init_state(batch_size, dtype)

    @nn.nowrap
    def init_segment(self, state: LongTermState, segment_length: int) -> GraftedSignalSegment:
        """Makes the buffers for decoding a segment."""
        return GraftedSignalSegment(self.signal.init_segment(state), jnp.zeros_like(state.previous))

    @nn.nowrap
    def reset(self, state: LongTermState, start_of_document: Rows) -> LongTermState:
        """Empties the signal of rows that start a document."""
        return long_term_signal.reset(state, start_of_document)

    def __call__(
        self, asked: HostQueries, host: HostTokens, state: LongTermState, *, mask: Mask, deterministic: bool
    ) -> tuple[GraftReading, LongTermState, Aux]:
        """Lets the waiting tokens enter the signal, reads it, and keeps the segment waiting. See `GraftedMemory`."""
        further, new, aux = self.signal(asked.queries, state, mask=mask, deterministic=deterministic)
        return GraftReading(asked.local, further), self._wait(new, host.hidden, mask), aux

    def decode(
        self, asked: HostQueries, hidden: Array, state: Any, segment: Any, *, at: tuple[Array, Rows]
    ) -> tuple[GraftReading, GraftedSignalSegment]:
        """Reads the signal with one token of every active row. See `GraftedMemory`."""
        position, active = at
        signal = self.signal.enter_segment(state, segment.signal, active & (position == 0))
        further, signal = self.signal.read_token(asked.queries, signal, active)
        tokens = ring_append(segment.hidden, hidden.astype(segment.hidden.dtype), position, active)
        return GraftReading(asked.local, further), GraftedSignalSegment(signal, tokens)

    def finish(self, state: LongTermState, segment: GraftedSignalSegment, host: HostTokens) -> LongTermState:
        """Keeps the segment waiting. See `GraftedMemory`."""
        written = host.segment()[2]
        state = self.signal.finish_segment(state, segment.signal, written.any(axis=1))
        return self._wait(state, segment.hidden, written)

    @nn.nowrap
    def _wait(self, state: LongTermState, hidden: Array, mask: Array) -> LongTermState:
        """Returns the state in which the tokens of a segment wait to enter the signal."""
        previous = jax.lax.stop_gradient(hidden).astype(state.previous.dtype)
        waiting = dataclasses.replace(state, previous=previous, previous_valid=mask)
        return where_rows(mask.any(axis=1), waiting, state)
