"""Compressive Transformer: a Transformer-XL that compresses its oldest memories instead of discarding them.

Rae, Potapenko, Jayakumar, Lillicrap 2019, "Compressive Transformers for Long-Range Sequence Modelling",
https://arxiv.org/abs/1911.05507. Without a compressed memory this attention is that of Transformer-XL.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import named
from memjax.functional.compression import (
    attention_reconstruction,
    auto_encoding,
    dilated_convolutions,
    keep_most_used,
    max_pool,
    mean_pool,
    strided_convolution,
    transposed_convolution,
    window_validity,
)
from memjax.functional.fifo import reset_rows, shift_append
from memjax.functional.named_operations import operation
from memjax.functional.precision import at_least_float32
from memjax.memory.attention_implementations import AttentionWeights, attention_shares
from memjax.memory.checks import MUST_BE_GIVEN
from memjax.memory.compressive_state import AttentionUsage, CompressedSlots, CompressiveState, EvictedSlots, take_slots
from memjax.memory.hidden_state_attention import SegmentAttention
from memjax.memory.interface import where_rows
from memjax.memory.layer_parts import COMPRESSED, SHORT, TrackedKeys, matrix_init
from memjax.memory.projector import Runs
from memjax.memory.transformer_xl import EmptyMemory, TransformerXLAttention
from memjax.settings.checks import require
from memjax.settings.ranges import Slots
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows

__all__ = ["CompressiveAttention"]


LOSSES = {"attention": "compressive/attention_reconstruction", "auto_encoding": "compressive/auto_encoding"}
"""Value of the field `loss` -> name of the loss in `Aux.losses`."""
PREFIX = "compressed_"
"""Prefix of the parameters of a projector for the positions of compressed slots."""


@operation
def reset(state: CompressiveState, start_of_document: Rows, *, empty_memory: EmptyMemory = "mask") -> CompressiveState:
    """Empties both memories of rows that start a document, and sets their counters to 0. `empty_memory='zeros'` marks
    the zero slots as valid, 'mask' as invalid.

    With `empty_memory='zeros'` both memories are full of zeros that queries attend to.
    """
    state = jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)
    if empty_memory != "zeros":
        return state
    valid, compressed_valid = (v | start_of_document[:, None] for v in (state.valid, state.compressed_valid))
    return dataclasses.replace(state, valid=valid, compressed_valid=compressed_valid)


@operation
def add_usage(
    state: CompressiveState, attended: Float[Array, "batch memory"], queries: Int[Array, " batch"]
) -> CompressiveState:
    """Returns the state with the attention that the slots got from one segment added to the sums over earlier segments,
    and the number `queries` of each row's real queries to theirs. Rows without a query keep their state.

    Args:
      state: State with `usage`.
      attended: `[batch, memory]`, attention to each slot, summed over real queries and averaged over heads.
      queries: int32 `[batch]`, number of real queries of each row.
    """
    old = state.usage
    attention = old.attention + jnp.where(queries[:, None] > 0, attended, 0).astype(old.attention.dtype)
    return dataclasses.replace(state, usage=AttentionUsage(attention, old.queries + queries[:, None].astype(jnp.int32)))


@operation
def evict(state: CompressiveState, hidden: Activations, mask: Mask, rate: int) -> EvictedSlots:
    """Selects the slots that are to be compressed when the segment `hidden` is appended, in windows of `rate` slots.
    Returns them as `EvictedSlots`, without a gradient.

    If the segment is whole windows, these are the oldest `length` slots of memory and segment, which the segment
    displaces. Otherwise windows begin at every `rate`-th token of the document, wherever segments begin. A window is
    compressed as soon as its oldest token leaves, and its other tokens follow. Both ways give the same windows. A
    document must be read in one of the two ways.

    Args:
      state: State before the segment.
      hidden: `[batch, length, dim]`, hidden states of the segment to store.
      mask: bool `[batch, length]`, real tokens.
      rate: Number of slots of a window.

    Raises:
      ValueError: The segment is not whole windows, and the memory cannot hold the rest of one.
    """
    memory, length = state.valid.shape[1], hidden.shape[1]
    # In the dtype of the state: of a segment longer than the memory, a part is compressed at once.
    slots = lax.stop_gradient(jnp.concatenate([state.hidden, hidden.astype(state.hidden.dtype)], axis=1))
    valid, usage = jnp.concatenate([state.valid, mask], axis=1), None
    if isinstance(state.usage, AttentionUsage):
        mean = state.usage.attention / jnp.maximum(state.usage.queries, 1).astype(state.usage.attention.dtype)
        usage = jnp.pad(mean, [(0, 0), (0, length)])
    start, last, amount = None, None, length
    if length % rate:
        allowed = (
            f"at least compression_rate - 1 = {rate - 1} for segments of {length} tokens, which are not whole windows"
        )
        require(memory >= rate - 1, "memory_length", memory, allowed)
        amount = -(-length // rate) * rate
        start = -state.phase % rate
        last = start + amount - rate < length
    valid, usage = take_slots(valid, start, amount), None if usage is None else take_slots(usage, start, amount)
    # An invalid slot may hold another document's state, and convolutions look across windows.
    return EvictedSlots(jnp.where(valid[..., None], take_slots(slots, start, amount), 0), valid, usage, start, last)


@operation
def write(
    state: CompressiveState,
    hidden: Activations,
    mask: Mask,
    compressed: Float[Array, "batch windows dim"],
    compressed_valid: Bool[Array, "batch windows"],
    *,
    last: Rows | None = None,
    rate: int,
) -> CompressiveState:
    """Returns the state with a segment appended, `m' = SG([m; h])[-memory:]`, and compressed slots, `cm' = [cm;
    f_c(old)][-compressed:]`. Rows where `last` is False leave out the last compressed slot.

    Rows without a real token keep their state.

    Args:
      state: State that the segment read.
      hidden: `[batch, length, dim]`, hidden states of the segment to store.
      mask: bool `[batch, length]`, real tokens. Padding takes slots that are marked invalid.
      compressed: `[batch, windows, dim]`, new slots of the compressed memory. A gradient goes through them unless the
        caller stops it.
      compressed_valid: bool `[batch, windows]`, validity of the new slots.
      last: bool `[batch]`, rows that also append the last of the new slots. None for all rows.
      rate: Compression rate.
    """
    length, windows = hidden.shape[1], compressed.shape[1]

    def append(old: Array, new: Array) -> Array:
        whole = shift_append(old, new)
        return whole if last is None else where_rows(last, whole, shift_append(old, new[:, : windows - 1]))

    new = CompressiveState(
        shift_append(state.hidden, lax.stop_gradient(hidden)),
        shift_append(state.valid, mask),
        append(state.compressed, compressed),
        append(state.compressed_valid, compressed_valid),
        (state.phase + length) % rate,
        jax.tree.map(lambda sums: shift_append(sums, jnp.zeros((sums.shape[0], length), sums.dtype)), state.usage),
    )
    return where_rows(mask.any(axis=1), new, state)


class CompressiveAttention(TransformerXLAttention):
    """Attention of a Compressive Transformer layer, which reads a memory and compressed older hidden states.

    Rae et al. 2019, https://arxiv.org/abs/1911.05507.

    What is stored: the part's input of the last `memory_length` positions, and slots that each stand for
    `compression_rate` older ones. When written: after each segment. The hidden states that it displaces are compressed.
    What is differentiable: the compression learns from its own loss (`attention`, `auto_encoding`). This loss reaches
    nothing else, and the loss of the model does not reach the compression. With `compression_loss="none"` the
    compression learns from the loss of the model, through the compressed slots that later segments of the same update
    read (plain BPTT). No gradient goes through the ordinary memory. When reset: at `start_of_document`.

    Symbols: `m -> state.hidden`, `cm -> state.compressed`, `f_c -> compression`, `g -> decompression_kernel`,
    `n_m -> memory_length`, `n_cm -> compressed_memory_length`, `c -> compression_rate`, `n_s ->` length of the segment,
    `old_mem -> EvictedSlots.hidden`, `Q, K, V -> query, key_value`. The others are those of `TransformerXLAttention`.

    Differs from the paper or its code:

    * An empty memory is masked, and a window with an empty slot gives no compressed slot. The code attends to zeros
      (`empty_memory="zeros"`).
    * Documents are separate streams.
    * If segments are not whole windows, windows begin at every `compression_rate`-th token. The code begins one token
      earlier.
    * Dilated convolutions are padded on the left.
    * Most-used memories are ranked by their mean attention since they were written. The paper leaves the ranking open.
    * The paper does not say how compressed slots are placed. `compressed_positions="separate"` is the code's way.
    * With a memory shorter than the segment, which the paper never has, the attention-reconstruction loss leaves out
      the queries that come before a token that is compressed.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      compressed_memory_length: Number of slots of the compressed memory. 0 for Transformer-XL. Without `memory_length`
        there is no memory at all.
      compression_rate: Number of slots that one compressed slot stands for.
      compression: Compression function f_c: 'convolution' (width and stride are the rate), 'dilated' (causal
        convolutions before it), 'max' and 'mean' (pooling) or 'most_used'. The last three have no parameters.
      dilations: Dilation, in slots, of each layer of the compression 'dilated'.
      compression_loss: Loss of the compression: 'attention', 'auto_encoding' or 'none'. In `Aux.losses` as
        `compressive/attention_reconstruction` and `compressive/auto_encoding`.
      loss_reduction: Reduction of the loss 'attention': 'mean_square' as the authors' code or 'norm' as the paper.
      compressed_positions: Positions of compressed slots: 'separate' (relative keys and a bias v of their own,
        distances as if the compressed memory ended at the segment) or 'contiguous' (those of the ordinary memory, one
        for each slot).
      norm: Place of the norm: 'post', 'pre', or 'pre_sonnet', as the authors' code: pre-norm whose memories hold the
        normed input.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = {"dim": 8, "num_heads": 2, "head_dim": 4}
      >>> memory = CompressiveAttention(**sizes, memory_length=4, compressed_memory_length=2, compression_rate=2)
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.hidden.shape, state.compressed.shape
      ((1, 4, 8), (1, 4, 8), (1, 2, 8))
    """

    norm: Literal["post", "pre", "pre_sonnet"] = "post"
    compressed_memory_length: Slots = MUST_BE_GIVEN
    compression_rate: int = 4
    compression: Literal["convolution", "dilated", "max", "mean", "most_used"] = "convolution"
    dilations: tuple[int, ...] = (1, 2, 4)
    compression_loss: Literal["attention", "auto_encoding", "none"] = "attention"
    loss_reduction: Literal["mean_square", "norm"] = "mean_square"
    compressed_positions: Literal["separate", "contiguous"] = "separate"

    def setup(self) -> None:
        super().setup()
        if not self.compressed_memory_length:
            return
        rate, dim = self.compression_rate, self.dim
        # Always by fan-in: a compressed slot is then as large as the slots that it stands for.
        kernel = named(matrix_init(None, in_axis=(0, 1)), None, "embed", None)
        if self.compression == "dilated":
            layers = named(matrix_init(None, in_axis=(1, 2)), None, None, "embed", None)
            self.dilated_kernels = self.param("dilated_kernels", layers, (len(self.dilations), 2, dim, dim))
        if self.compression in ("convolution", "dilated"):
            self.compression_kernel = self.param("compression_kernel", kernel, (rate, dim, dim))
        if self.compression_loss == "auto_encoding":
            kernel = named(matrix_init(None, in_axis=1, out_axis=(0, 2)), None, "embed", None)
            self.decompression_kernel = self.param("decompression_kernel", kernel, (rate, dim, dim))

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> Any:
        """Makes the state in which a document starts, with hidden states of `dtype`. Without a compressed memory it is
        that of Transformer-XL.
        """
        if not self._compresses:
            return super().init_state(batch_size, dtype)
        self._check()
        zeros = lambda slots: jnp.zeros((batch_size, slots, self.dim), dtype)
        valid = lambda slots: jnp.full((batch_size, slots), self.empty_memory == "zeros")
        usage, shape = EmptyState(), (batch_size, self.memory_length)
        if self.compression == "most_used":
            usage = AttentionUsage(jnp.zeros(shape, at_least_float32(dtype)), jnp.zeros(shape, jnp.int32))
        m, cm = self.memory_length, self.compressed_memory_length
        return CompressiveState(zeros(m), valid(m), zeros(cm), valid(cm), jnp.zeros(batch_size, jnp.int32), usage)

    @property
    def _compresses(self) -> bool:
        return self.memory_length > 0 and self.compressed_memory_length > 0

    @nn.nowrap
    def _check(self) -> None:
        if self.same_length:
            raise ValueError("same_length: given True with a compressed memory, allowed: False; its slots are older")

    @property
    def _num_slots(self) -> int:
        return self.memory_length + (self.compressed_memory_length if self._compresses else 0)

    @property
    def _why_reference(self) -> str:
        return f"{type(self).__name__}, allowed: 'reference'" if self._compresses else super()._why_reference

    def _reset(self, state: Any, start_of_document: Array) -> Any:
        if not isinstance(state, CompressiveState):
            return super()._reset(state, start_of_document)
        return reset(state, start_of_document, empty_memory=self.empty_memory)

    @nn.nowrap
    def _slots(self, state: Any) -> tuple[tuple[Array, ...], Array | None]:
        if not isinstance(state, CompressiveState):
            return super()._slots(state)
        return (state.compressed, state.hidden), jnp.concatenate([state.compressed_valid, state.valid], axis=1)

    def _stored(self, x: Array, normed: Array) -> Array:
        return normed if self.norm == "pre_sonnet" else x

    def _recall(self, stored: Array) -> Array:
        return stored if self.norm == "pre_sonnet" else super()._recall(stored)

    @property
    def _run_prefixes(self) -> tuple[str, ...]:
        separate = self.compressed_memory_length > 0 and self.compressed_positions == "separate"
        return (PREFIX,) if separate else ()

    @property
    def _runs(self) -> Runs:
        if not self._compresses or self.compressed_positions == "contiguous":
            return super()._runs
        return (PREFIX, self.compressed_memory_length), ("", self.memory_length)

    def _attended(self, attention: AttentionWeights, mask: Array) -> Any:
        if not self._compresses or self.compression != "most_used":
            return EmptyState()
        before = self.compressed_memory_length
        assert attention.weights is not None  # `_why_reference` says so
        weights = lax.stop_gradient(attention.weights[..., before : before + self.memory_length])
        return jnp.where(mask[:, None, :, None], weights, 0).mean(axis=1).sum(axis=1)  # [b, m]

    @nn.nowrap
    def _no_attention(self, state: Any) -> Any:
        usage = state.usage if isinstance(state, CompressiveState) else EmptyState()
        return jnp.zeros_like(usage.attention) if isinstance(usage, AttentionUsage) else EmptyState()

    def _known_keys(self, state: Any, length: int) -> TrackedKeys:
        if not self._compresses:
            return super()._known_keys(state, length)
        older, memory, rate = self.compressed_memory_length, self.memory_length, self.compression_rate
        # A window is compressed as soon as its oldest token has left. If segments are not whole windows, its other
        # tokens are still in the memory.
        newest = memory + 1 - (-state.phase[:, None] % rate)
        later = jnp.arange(older - 1, -1, -1, dtype=jnp.int32)[None]
        near = jnp.broadcast_to(jnp.arange(memory, 0, -1, dtype=jnp.int32), (newest.shape[0], memory))
        places = jnp.concatenate([newest + rate * later, near], axis=1)
        each = lambda first, second: jnp.repeat(
            jnp.array([first, second]), jnp.array([older, memory]), total_repeat_length=older + memory
        )
        return TrackedKeys.of_slots(places, each(rate, 1), each(COMPRESSED, SHORT), length)

    def _figures(self, attention: AttentionWeights, mask: Array) -> Aux:
        if not self._compresses:
            return super()._figures(attention, mask)
        ends = {"memory_share": self._num_slots, "compressed_share": self.compressed_memory_length}
        return attention_shares(attention, mask, {f"compressive/{name}": (0, stop) for name, stop in ends.items()})

    def _write(
        self, state: Any, stored: Array, mask: Array, attended: Any, reading: SegmentAttention | None = None
    ) -> tuple[Any, Aux]:
        if not isinstance(state, CompressiveState):
            return super()._write(state, stored, mask, attended, reading)
        if isinstance(state.usage, AttentionUsage):
            state = add_usage(state, attended, mask.sum(axis=1))
        old = evict(state, stored, mask, self.compression_rate)
        new = self._compress(old)
        slots = new.slots if self.compression_loss == "none" else lax.stop_gradient(new.slots)
        aux = Aux() if reading is None else self._losses(old, new, mask, reading)
        return write(state, stored, mask, slots, new.valid, last=old.last, rate=self.compression_rate), aux

    def _compress(self, old: EvictedSlots) -> CompressedSlots:
        """Compresses the evicted slots (f_c). Windows that do not fill the segment are compressed one by one."""
        batch, amount, _ = old.hidden.shape
        windows = amount // self.compression_rate
        if old.last is None:
            return self._compress_windows(old.hidden, old.valid, old.usage)
        apart = lambda leaf: leaf.reshape(batch * windows, self.compression_rate, *leaf.shape[2:])
        together = lambda leaf: leaf.reshape(batch, -1, *leaf.shape[2:])
        parts = jax.tree.map(apart, (old.hidden, old.valid, old.usage))
        new = jax.tree.map(together, self._compress_windows(*parts))
        now = old.last[:, None] | (jnp.arange(windows) < windows - 1)[None, :]
        stands_for = new.stands_for & jnp.repeat(now, self.compression_rate, axis=1)
        return CompressedSlots(new.slots, new.valid & now, stands_for)

    def _compress_windows(self, hidden: Array, valid: Array, usage: Array | None) -> CompressedSlots:
        rate, x = self.compression_rate, hidden.astype(self.dtype)
        if self.compression == "most_used":
            assert usage is not None
            used_slots, used_valid = keep_most_used(hidden, usage, valid, rate)
            return CompressedSlots(used_slots, used_valid, valid)
        match self.compression:
            case "max":
                slots = max_pool(hidden, rate)
            case "mean":
                slots = mean_pool(hidden, rate)
            case "convolution":
                slots = strided_convolution(x, self.compression_kernel)
            case _:
                deep = dilated_convolutions(x, self.dilated_kernels, self.dilations)
                slots = strided_convolution(deep, self.compression_kernel)
        whole = window_validity(valid, rate)
        return CompressedSlots(slots, whole, jnp.repeat(whole, rate, axis=1))

    def _losses(self, old: EvictedSlots, new: CompressedSlots, mask: Array, reading: SegmentAttention) -> Aux:
        """Returns the loss of the compression. Rows without a real token and empty slots have no weight."""
        if self.compression_loss == "none":
            return Aux()
        if self.compression_loss == "auto_encoding":
            decoded = transposed_convolution(new.slots.astype(self.dtype), self.decompression_kernel)
            loss = auto_encoding(decoded, old.hidden, new.stands_for & mask.any(axis=1)[:, None])
            return Aux(losses={LOSSES["auto_encoding"]: loss})
        before = self.compressed_memory_length
        new_keys, new_values = self._detached_keys_values(new.slots.astype(self.dtype))
        loss = attention_reconstruction(
            reading.queries,
            old.places(reading.keys[:, before:]),
            old.places(reading.values[:, before:]),
            new_keys,
            new_values,
            query_mask=mask & old.precedes(new.stands_for, mask.shape[1], self.memory_length),
            old_mask=new.stands_for,
            new_mask=new.valid,
            reduction=self.loss_reduction,
        )
        return Aux(losses={LOSSES[self.compression_loss]: loss})
