"""Memformer: an encoder whose layers all read the same few memory slots, which are written once per segment.

Wu et al. 2020, "Memformer: A Memory-Augmented Transformer for Sequence Modeling", https://arxiv.org/abs/2010.06891.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from memjax.axes import named
from memjax.functional.attention import attention, attention_with_weights
from memjax.functional.named_operations import operation
from memjax.functional.positions import bidirectional_bias
from memjax.functional.precision import at_least_float32
from memjax.functional.slot_attention import count_slot_types, normalize_slots, slot_attention, slot_shares, slot_spread
from memjax.memory.checks import CheckedModule, refuse_padding_in_front
from memjax.memory.interface import StackMemory, broadcast_mask, where_rows
from memjax.memory.layer_parts import NormKind, make_norm, matrix_init, project, weight_dropout
from memjax.settings.checks import require
from memjax.settings.ranges import Count, HeadDim
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, WeightedSum, tree_dataclass

__all__ = ["Encoded", "MemformerEncoder", "MemformerState"]


@tree_dataclass
class MemformerState:
    """Memory of a Memformer: slots that all layers share, and which rows have begun.

    Attributes:
      slots: `[batch, slots, dim]`, slots of unit length, at least float32.
      started: bool `[batch]`, rows that have a memory. The others begin with the learned one.
    """

    slots: Leaf
    started: Leaf


class Encoded(NamedTuple):
    """Output of a Memformer encoder for one segment: hidden states of its tokens, followed by those of the
    classification tokens, and their mask.

    Attributes:
      hidden: `[batch, length + classification, dim]`, hidden states.
      mask: bool `[batch, length + classification]`, real tokens.
    """

    hidden: Array
    mask: Array


@operation
def start(state: MemformerState, bias: Float[Array, "slots dim"], start_of_document: Rows) -> MemformerState:
    """Returns the state in which rows that begin a document, or have no memory yet, have the learned slots `m_0 = v /
    |v|`. `bias` is v, which has a gradient.
    """
    fresh = start_of_document | ~state.started
    initial = normalize_slots(bias.astype(state.slots.dtype))
    slots = jnp.where(fresh[:, None, None], initial[None], state.slots)
    return MemformerState(slots, jnp.ones_like(state.started))


@operation
def write(
    state: MemformerState, written: Float[Array, "batch slots dim"], bias: Float[Array, "slots dim"] | None, rows: Rows
) -> MemformerState:
    """Returns the state with the new slots `(m' + v) / |m' + v|`. `written` is m', `bias` is v or None for no v. Rows
    where `rows` is False keep their slots.

    Args:
      state: State that the segment read.
      written: `[batch, slots, dim]`, output M' of the writer.
      bias: `[slots, dim]`, the bias v. None for no forgetting.
      rows: bool `[batch]`, rows to write, which have a real token and text to write.
    """
    written = written.astype(state.slots.dtype)
    if bias is not None:
        written = written + bias.astype(written.dtype)[None]
    return where_rows(rows, MemformerState(normalize_slots(written), state.started), state)


class HeadAttention(CheckedModule):
    """Multi-head attention without biases. The caller makes its keys and values by its method `keys_values`.

    Attributes:
      dim: Width of queries, keys and output.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      attention_dropout: Dropout rate of the attention weights.
      dtype: Dtype of the computation.
    """

    dim: Count
    num_heads: Count
    head_dim: HeadDim = 0
    attention_dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self) -> None:
        heads = (self.num_heads, self.head_dim)
        inner = named(matrix_init(None, out_axis=(1, 2)), "embed", "heads", None)
        self.query = self.param("query", inner, (self.dim, *heads))
        self.key = self.param("key", inner, (self.dim, *heads))
        self.value = self.param("value", inner, (self.dim, *heads))
        outer = named(matrix_init(None, (0, 1)), "heads", None, "embed")
        self.output = self.param("output", outer, (*heads, self.dim))

    def keys_values(self, source: Float[Array, "batch source dim"]) -> tuple[Array, Array]:
        """Projects a source to its keys and values, each `[batch, source, heads, head_dim]`."""
        return project(source, self.key), project(source, self.value)

    def __call__(
        self,
        x: Activations,
        keys: Float[Array, "batch source heads head_dim"],
        values: Float[Array, "batch source heads head_dim"],
        *,
        mask: Bool[Array, "#batch 1 #length source"] | None = None,
        bias: Float[Array, "#batch heads length source"] | None = None,
        deterministic: bool = True,
    ) -> Activations:
        """Attends from `x` to keys and values and projects the output back, without residual."""
        if mask is not None:
            mask = jnp.broadcast_to(mask, (*mask.shape[:2], x.shape[1], mask.shape[3]))
        y = attention(project(x, self.query), keys, values, mask=mask, bias=bias, **weight_dropout(self, deterministic))
        return project(y, self.output, axes=2)

    def weights(
        self, x: Activations, keys: Float[Array, "batch source heads head_dim"]
    ) -> Float[Array, "batch heads length source"]:
        """Returns the attention weights of `x` on all keys, `[batch, heads, length, source]`, without mask, bias and
        dropout.
        """
        return attention_with_weights(project(x, self.query), keys, keys)[1]


class MemformerLayer(CheckedModule):
    """One Memformer layer: self-attention, memory reader and feed-forward, each with a pre-norm and a residual.

    Attributes:
      attention: Self-attention over the segment, in both directions.
      feed_forward: Feed-forward part, which owns its norm and residual (`memjax.models.feed_forward.FeedForwardLayer`).
      reader: Attention over the slots. None for a layer without memory.
      dropout: Dropout rate after each attention.
      norm_kind: Kind of norm: 'layer' or 'rms'.
      dtype: Dtype of the computation.
    """

    attention: HeadAttention
    feed_forward: nn.Module
    reader: HeadAttention | None = None
    dropout: float = 0.0
    norm_kind: NormKind = "layer"
    dtype: Any = jnp.float32

    def setup(self) -> None:
        self.attention_norm = make_norm(self.norm_kind, self.dtype)
        if self.reader is not None:
            self.reader_norm = make_norm(self.norm_kind, self.dtype)
        self.drop = nn.Dropout(self.dropout)

    def __call__(
        self,
        x: Activations,
        slots: Float[Array, "batch slots dim"] | None,
        *,
        mask: Mask,
        bias: Float[Array, "1 heads length length"] | None,
        deterministic: bool,
        track: bool = False,
    ) -> tuple[Activations, Float[Array, "batch heads length slots"] | None]:
        """Applies the layer to one segment. `slots` have the size of activations, not unit length.

        `track` returns the weights of the reader as well.
        """
        weights = None
        y = self.attention_norm(x)
        visible = mask[:, None, None, :]
        y = self.attention(y, *self.attention.keys_values(y), mask=visible, bias=bias, deterministic=deterministic)
        x = x + self.drop(y, deterministic=deterministic)
        if self.reader is not None and slots is not None:
            y, (keys, values) = self.reader_norm(x), self.reader.keys_values(slots)
            weights = self.reader.weights(y, keys) if track else None
            y = self.reader(y, keys, values, deterministic=deterministic)
            x = x + self.drop(y, deterministic=deterministic)
        return self.feed_forward(x, EmptyState(), deterministic=deterministic)[0], weights


class MemformerEncoder(StackMemory):
    """Encoder of Memformer, whose layers read a memory of few slots that is written once per segment.

    Wu et al. 2020, https://arxiv.org/abs/2010.06891.

    What is stored: slots, one memory for all layers. When written: once a segment, after the last layer. What is
    differentiable: all of it, through as many segments as one update has. When reset: at `start_of_document`, to the
    learned `v / |v|`.

    Symbols: `M_t -> state.slots`, `m^i ->` one slot, `v -> forgetting` (parameter), `tau -> temperature`,
    `W_q, W_k, W_v` of the writer `-> writer_query, writer_key, writer_value`, `x^enc -> Encoded.hidden`.

    Differs from the paper or its code (which is not public):

    * Every part has a pre-norm.
    * Positions are T5's relative buckets, one table for all layers, and none on the memory.
    * The slot's own value in the writer is the slot itself, without a projection before or after, so that a slot which
      attends to itself alone does not change.
    * Slots have unit length as printed. The reader, and queries and keys of the writer, see them times sqrt(dim).
    * Token values in the writer are multiplied by dim**-0.5 (`unit_length_updates`). They are projections of normed
      hidden states of length sqrt(dim), beside which a slot of unit length would be gone in one write.
    * A learned number of each head is added to the score of a slot on itself (`retain_bias`), as the bias of a forget
      gate. Without it a new writer gives a slot no more than any token, and after six segments all slots are equal.
    * v begins with a length of `forget_norm`. The lengths reported after training would erase a slot of unit length in
      a segment or two.

    `Aux.metrics` has the shares of slots that retain, aggregate and rewrite in written rows (`slot_types` of
    `slot_shares`), the mean cosine between two slots, `slot_cosine`, and the effective number of slots as a share of
    `num_slots`, `effective_slots` (`slot_spread`), of every row with a real token.

    `y` is the output of the stack, with the residual of every layer and with the norm after the last layer. It replaces
    `x` and is not added to it.

    Attributes:
      layers: Equal layers, unbound, with a `reader` where there is a memory.
      dim: Width of the residual stream.
      num_slots: Number of slots. 0 for no memory.
      writer_heads: Number of heads of the writer.
      temperature: Temperature of the writer's attention.
      unit_length_updates: Whether the writer's token values have the length of a slot, times dim**-0.5. False gives
        them the length of hidden states, which leaves next to nothing of a slot.
      retain_bias: Advantage of a slot over tokens in the writer's scores at the start of training, a learned number of
        each head. 0 for none.
      use_forgetting: Whether to add v at every update. False uses v as the initial memory only.
      forget_norm: Length of each v at the start of training.
      num_classification_tokens: Number of learned tokens after the segment, which writer and decoder see too.
      num_heads: Number of heads of the layers' attention, for the position bias.
      num_buckets: Number of relative-position buckets. 0 for no positions.
      max_distance: Distance in tokens from which on all distances share the last bucket.
      write_chunk_size: Number of slots to write at a time. 0 for all at once. The writer's weights, `[batch, heads,
        slots, 1 + encoded]`, are the largest array of many slots. Chunks compute them again in the backward pass.
      scan_layers: Whether to run all layers as one scan. False unrolls them.
      rematerialize: Whether to recompute each layer in the backward pass.
      track_attention: Whether `Aux.arrays` has the writer's weights of each slot on itself and on the encoded tokens,
        `memformer/writer` `[batch, writer_heads, slots, 1 + encoded]`, the share of each slot that is left after the
        write, `memformer/shares` `[batch, slots]`, and the readers' weights, `memformer/reader` `[layers, batch, heads,
        encoded, slots]`. All slots are then written at once.
      norm_kind: Kind of norm: 'layer' or 'rms'.
      dtype: Dtype of the computation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from memjax.models.feed_forward import FeedForwardLayer
      >>> heads = [HeadAttention(dim=8, num_heads=2, head_dim=4) for _ in range(2)]
      >>> layer = MemformerLayer(heads[0], FeedForwardLayer(8, 16), heads[1])
      >>> memory, x = MemformerEncoder((layer,), dim=8, num_slots=3, num_heads=2), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.slots.shape
      ((1, 4, 8), (1, 3, 8))
    """

    layers: tuple[MemformerLayer, ...]
    dim: Count
    num_slots: int
    num_heads: Count
    writer_heads: Count = 1
    temperature: float = 0.25
    unit_length_updates: bool = True
    retain_bias: float = 8.0
    use_forgetting: bool = True
    forget_norm: float = 0.05
    num_classification_tokens: int = 1
    num_buckets: int = 32
    max_distance: int = 128
    write_chunk_size: int = 256
    scan_layers: bool = False
    rematerialize: bool = False
    track_attention: bool = False
    norm_kind: NormKind = "layer"
    dtype: Any = jnp.float32

    def setup(self) -> None:
        self.layer_norm = make_norm(self.norm_kind, self.dtype)
        if self.num_buckets:
            bias, shape = named(nn.initializers.normal(0.02), "heads", None), (self.num_heads, self.num_buckets)
            self.position_bias = self.param("position_bias", bias, shape)
        if self.num_classification_tokens:
            tokens, shape = nn.initializers.normal(0.02), (self.num_classification_tokens, self.dim)
            self.classification = self.param("classification", named(tokens, None, "embed"), shape)
        if not self.num_slots:
            return
        heads = (self.writer_heads, self.dim // self.writer_heads)
        inner = named(matrix_init(None, out_axis=(1, 2)), "embed", "heads", None)
        self.writer_query = self.param("writer_query", inner, (self.dim, *heads))
        self.writer_key = self.param("writer_key", inner, (self.dim, *heads))
        self.writer_value = self.param("writer_value", inner, (self.dim, *heads))
        if self.retain_bias:
            bias = named(nn.initializers.constant(self.retain_bias), "heads")
            self.writer_bias = self.param("writer_bias", bias, (self.writer_heads,))
        towards = named(nn.initializers.normal(self.forget_norm * self.dim**-0.5), None, "embed")
        self.forget = self.param("forgetting", towards, (self.num_slots, self.dim))

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> MemformerState | EmptyState:
        """Makes the state of rows that begin a document, with slots of at least float32. `EmptyState` for an encoder
        without slots.
        """
        if not self.num_slots:
            return EmptyState()
        require(self.dim % self.writer_heads == 0, "writer_heads", self.writer_heads, f"a divisor of dim = {self.dim}")
        slots = jnp.zeros((batch_size, self.num_slots, self.dim), at_least_float32(dtype))
        return MemformerState(slots, jnp.zeros((batch_size,), bool))

    def __call__(
        self,
        x: Activations,
        state: MemformerState | EmptyState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[Activations, Any, Aux]:
        """Runs all layers over one segment, then the writer. Returns the segment without classification tokens."""
        options = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        encoded, state, aux = self.encode(x, state, **options)
        return encoded.hidden[:, : x.shape[1]], state, aux

    def encode(
        self,
        x: Activations,
        state: MemformerState | EmptyState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        writes: Rows | None = None,
        deterministic: bool = True,
    ) -> tuple[Encoded, Any, Aux]:
        """Encodes a segment, with classification tokens behind it, for a decoder. Returns `Encoded`, the new state and
        `Aux`. Rows where `writes` is False keep their slots.
        """
        mask = broadcast_mask(mask, *x.shape[:2])
        rows, slots, read = mask.any(axis=1), None, state
        writes = rows if writes is None else rows & writes
        if isinstance(state, MemformerState):
            read = start(state, self.forget, start_of_document)
            slots = self._scale_slots(read.slots)
        read_mask = mask
        x, mask = self._with_classification(x, mask)
        bias = None
        if self.num_buckets:
            bias = bidirectional_bias(self.position_bias, x.shape[1], max_distance=self.max_distance)[None]
        settings = {"mask": mask, "bias": bias, "deterministic": deterministic, "track": self.track_attention}
        x, reader = self._run_layers(x, slots, **settings)
        hidden = self.layer_norm(x)
        output = Encoded(refuse_padding_in_front(hidden, read_mask), mask)  # classification tokens come after padding
        if not isinstance(read, MemformerState):
            return output, state, Aux()
        written, writer_weights = self._run_writer(read.slots, hidden, mask)
        new = write(read, written, self.forget if self.use_forgetting else None, writes)
        moved = written + self.forget.astype(written.dtype)[None] if self.use_forgetting else written
        old, moved = (self._split_heads(jax.lax.stop_gradient(each)) for each in (read.slots, moved))
        shares = jnp.where(writes[:, None], slot_shares(old, jax.lax.stop_gradient(writer_weights[..., 0]), moved), 1)
        arrays = {"memformer/writer": writer_weights, "memformer/shares": shares, "memformer/reader": reader}
        metrics = self._report(shares, jax.lax.stop_gradient(new.slots), rows, writes)
        aux = Aux(metrics=metrics, arrays=arrays if self.track_attention else {})
        return output, where_rows(rows, new, state), aux

    def _with_classification(self, x: Array, mask: Array) -> tuple[Array, Array]:
        """Appends the classification tokens to the segment. Rows of padding only do not have them."""
        count = self.num_classification_tokens
        if not count:
            return x.astype(self.dtype), mask
        tokens = jnp.broadcast_to(self.classification.astype(self.dtype)[None], (x.shape[0], count, self.dim))
        real = jnp.broadcast_to(mask.any(axis=1)[:, None], (x.shape[0], count))
        return jnp.concatenate([x.astype(self.dtype), tokens], axis=1), jnp.concatenate([mask, real], axis=1)

    def _run_layers(self, x: Array, slots: Array | None, **options: Any) -> tuple[Array, Array | None]:
        """Runs all layers, and returns the output of the last one and, if tracked, the weights of all readers."""

        def body(layer: MemformerLayer, y: Array, _: None) -> tuple[Array, Array | None]:
            return layer(y, slots, **options)

        return run_layers(body, self.layers, x, None, scan_layers=self.scan_layers, rematerialize=self.rematerialize)

    def _run_writer(self, unit: Array, hidden: Array, mask: Array) -> tuple[Array, Array]:
        """Computes M' of every slot, and its weights, of which the first is on itself. Chunks return that one only."""
        keys, values = project(hidden, self.writer_key), project(hidden, self.writer_value)
        if self.unit_length_updates:
            values = values * self.dim**-0.5

        def attend(unit: Array) -> tuple[Array, Array]:
            slots = self._scale_slots(unit)
            queries, own_keys = project(slots, self.writer_query), project(slots, self.writer_key)
            by_head = self._split_heads(unit)  # the slot itself
            bias = self.writer_bias if self.retain_bias else None
            scaled = {"own_bias": bias, "temperature": self.temperature}
            new, weights = slot_attention(queries, own_keys, keys, by_head, values, mask, **scaled)
            return new.reshape(unit.shape), weights

        if self.track_attention or not 0 < self.write_chunk_size < unit.shape[1]:
            return attend(unit)

        @jax.checkpoint
        def attend_one(unit: Array) -> tuple[Array, Array]:
            written, weights = attend(unit[:, None])
            return written[:, 0], weights[:, :, 0, :1]

        written, weights = jax.lax.map(attend_one, jnp.moveaxis(unit, 1, 0), batch_size=self.write_chunk_size)
        return jnp.moveaxis(written, 0, 1), jnp.moveaxis(weights, 0, 2)

    def _split_heads(self, slots: Array) -> Array:
        """Splits slots into the writer's heads, `[batch, slots, heads, head_dim]`."""
        return slots.reshape(*slots.shape[:2], self.writer_heads, -1)

    def _scale_slots(self, unit: Array) -> Array:
        """Scales slots of unit length to the size of activations, as readers and the writer see them."""
        return (unit * self.dim**0.5).astype(self.dtype)

    def _report(self, shares: Array, slots: Array, rows: Array, writes: Array) -> dict[str, WeightedSum]:
        """Measures the share of the slots that a write leaves, and how different the slots are after it."""
        dtype, number = slots.dtype, self.num_slots
        written = (writes.sum() * number).astype(dtype)
        names = ("retaining", "aggregating", "rewriting")
        counts = zip(names, count_slot_types(shares, writes), strict=True)
        metrics = {f"memformer/{name}": WeightedSum(count.astype(dtype), written) for name, count in counts}
        if number > 1:
            cosine, effective = (jnp.where(rows, each, 0).sum() for each in slot_spread(slots))
            weight = rows.sum().astype(dtype)
            metrics["memformer/slot_cosine"] = WeightedSum(cosine, weight)
            metrics["memformer/effective_slots"] = WeightedSum(effective / number, weight)
        return metrics


def run_layers(
    body: Any, layers: tuple[Any, ...], x: Array, states: Any, *, scan_layers: bool, rematerialize: bool = False
) -> tuple[Array, Any]:
    """Runs `body(layer, x, state) -> (x, out)` over equal layers, one after the other or as one scan. Returns the last
    `x`, and every `out` with layers at axis 0, as `states` has them.

    Args:
      body: Function of one layer, `body(layer, x, state) -> (x, out)`.
      layers: Equal layers, unbound, or bound one by one.
      x: Array that every layer receives from the layer before it.
      states: States of all layers, leaves with layers at axis 0. None for none.
      scan_layers: Whether to run one scan, with the parameters of all layers in one array.
      rematerialize: Whether to recompute each layer in the backward pass.

    Returns:
      The output x of the last layer, and the `out` of all layers with layers at axis 0.
    """
    if rematerialize:
        body = nn.remat(body, prevent_cse=not scan_layers)
    if scan_layers:
        scan = nn.scan(
            body,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            metadata_params={nn.PARTITION_NAME: None},
            length=len(layers),
        )
        return scan(layers[0], x, states)
    outs = []
    for index, layer in enumerate(layers):
        x, out = body(layer, x, jax.tree.map(lambda leaf, i=index: leaf[i], states))
        outs.append(out)
    return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)
