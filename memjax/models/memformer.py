"""Memformer as a language model: an encoder with a memory reads the past, and a decoder predicts the next segment.

Wu et al. 2020, "Memformer: A Memory-Augmented Transformer for Sequence Modeling", https://arxiv.org/abs/2010.06891. The
model has the methods of a `LanguageModel`, so training, evaluation and generation handle it too.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import axes_of, constrain, named
from memjax.functional.attention import visibility
from memjax.functional.fifo import ring_append
from memjax.functional.positions import bucket_bias, relative_distances, sinusoids
from memjax.memory.interface import StackState, StatelessMemory, broadcast_mask, next_position, where_rows
from memjax.memory.layer_parts import NormKind, make_norm
from memjax.memory.memformer import Encoded, HeadAttention, MemformerEncoder, run_layers
from memjax.models.interface import Model
from memjax.settings.checks import require
from memjax.typing import Activations, Aux, Batch, EmptyState, Leaf, Mask, Rows, WeightedSum, tree_dataclass

__all__ = ["Memformer", "replay_parts"]


@tree_dataclass
class MemformerModelState:
    """The state of a Memformer between segments: its memory, and the previous segment with its mask.

    Attributes:
      memory: Memory of the encoder, before `tokens` were encoded.
      tokens: int32 `[batch, segment_length]`, the previous segment. `EmptyState` without an encoder.
      mask: bool `[batch, segment_length]`, real tokens of the previous segment. False everywhere = a document starts.
    """

    memory: Any
    tokens: Leaf
    mask: Leaf


@tree_dataclass
class DecoderBuffers:
    """Keys and values that one decoder layer stores while a segment is decoded: of the segment so far, and of the
    encoded previous segment.

    Attributes:
      keys: `[batch, segment_length, heads, head_dim]`, keys of the segment so far.
      values: `[batch, segment_length, heads, head_dim]`, values of the segment so far.
      source_keys: `[batch, encoded, heads, head_dim]`, keys of the encoded previous segment. `EmptyState` without an
        encoder.
      source_values: `[batch, encoded, heads, head_dim]`, values of the encoded previous segment. `EmptyState` without
        an encoder.
    """

    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    source_keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    source_values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))


@tree_dataclass
class MemformerDecodeState:
    """The state of a Memformer between two decoded tokens.

    Attributes:
      state: `MemformerModelState` at the start of the current segment. `EmptyState` without an encoder.
      written: Memory after the previous segment was encoded for the current one.
      layers: `DecoderBuffers` of all layers, a `StackState` of one group.
      source_mask: bool `[batch, encoded]`, real positions of the encoded previous segment.
      tokens: int32 `[batch, segment_length]`, tokens of the current segment.
      position: int32 `[batch]`, number of tokens of the current segment already read.
    """

    state: Any
    written: Any
    layers: StackState
    source_mask: Leaf
    tokens: Leaf
    position: Leaf


class MemformerDecoderLayer(nn.Module):
    """A decoder layer of a Memformer: causal self-attention in the segment, attention to the encoded previous segment,
    and a feed-forward part.

    Attributes:
      attention: Self-attention over the segment.
      feed_forward: Feed-forward part that owns its norm and residual.
      cross: Attention to the encoded previous segment. None = there is no encoder.
      dropout: Dropout rate after each attention.
      norm_kind: Kind of the norms, 'layer' or 'rms'.
      dtype: Dtype of the computation.
    """

    attention: HeadAttention
    feed_forward: StatelessMemory
    cross: HeadAttention | None = None
    dropout: float = 0.0
    norm_kind: NormKind = "layer"
    dtype: Any = jnp.float32

    def setup(self) -> None:
        self.attention_norm = make_norm(self.norm_kind, self.dtype)
        if self.cross is not None:
            self.cross_norm = make_norm(self.norm_kind, self.dtype)
        self.drop = nn.Dropout(self.dropout)

    def __call__(
        self,
        x: Activations,
        encoded: Encoded | None,
        *,
        visible: Bool[Array, "#batch 1 length length"],
        bias: Float[Array, "#batch heads length length"] | None,
        deterministic: bool,
    ) -> Activations:
        """Reads one segment."""
        y = self.attention_norm(x)
        keys, values = self.attention.keys_values(y)
        y = self.attention(y, keys, values, mask=visible, bias=bias, deterministic=deterministic)
        x = x + self.drop(y, deterministic=deterministic)
        if self.cross is not None and encoded is not None:
            source = self.cross.keys_values(encoded.hidden)
            x = self._read_source(x, *source, encoded.mask, deterministic)
        return self.feed_forward(x, EmptyState(), deterministic=deterministic)[0]

    def decode(
        self,
        x: Float[Array, "batch 1 dim"],
        buffers: DecoderBuffers,
        *,
        source_mask: Array,
        visible: Array,
        bias: Array | None,
        position: Array,
        active: Array,
    ) -> tuple[Float[Array, "batch 1 dim"], DecoderBuffers]:
        """Reads one token of every active row, at its `position` in the segment, and returns the new `x` and buffers.
        `visible` masks stored tokens, `bias` is their position bias, and `source_mask` masks the encoded segment.
        """
        y = self.attention_norm(x)
        new = zip((buffers.keys, buffers.values), self.attention.keys_values(y), strict=True)
        keys, values = (ring_append(old, entry.astype(old.dtype), position, active) for old, entry in new)
        x = x + self.attention(y, keys, values, mask=visible, bias=bias)
        if self.cross is not None:
            x = self._read_source(x, buffers.source_keys, buffers.source_values, source_mask, True)
        x = self.feed_forward.decode(x, EmptyState(), active=active)[0]
        return x, dataclasses.replace(buffers, keys=keys, values=values)

    def _read_source(self, x: Array, keys: Array, values: Array, mask: Array, deterministic: bool) -> Array:
        """Adds attention to the encoded previous segment."""
        assert self.cross is not None
        y = self.cross(self.cross_norm(x), keys, values, mask=mask[:, None, None, :], deterministic=deterministic)
        return x + self.drop(y, deterministic=deterministic)


class Memformer(Model):
    """A Memformer language model (Wu et al. 2020, https://arxiv.org/abs/2010.06891): an encoder with a memory reads the
    previous segment, and a decoder predicts this one.

    Segment t is predicted from the encoding of segment t - 1, which has read the memory of all segments before it. The
    memory reaches the decoder in no other way. The first segment of a document is predicted from the encoding of a
    learned begin token, so that every token is scored. Gradients cross segments through the slots. So train with
    `training.segments_per_update` of 2 or more (the paper's time horizon), with `rematerialize="segment"`, or with
    `replay_parts` and `memjax.functional.mrbp_value_and_grad`.

    Differs from the paper or its code (which is not public): see `MemformerEncoder`. The decoder's positions are T5's
    relative buckets too. The position in the segment is added to the embeddings of encoder and decoder
    (`segment_positions`), since memory readers and cross-attention have no buckets, and large distances share one. The
    encoding of the begin token, which has no content, is not written (`write_begin_token`), so that the first text of a
    document reads the learned memory.

    Attributes:
      encoder: Encoder with the memory. None = a decoder alone, without any memory.
      decoder: Equal layers, with `cross` where there is an encoder.
      vocabulary: Embeddings and softmax of encoder and decoder.
      segment_length: Number of tokens in a segment.
      num_buckets: Number of relative-position buckets of the decoder. 0 = no relative positions.
      max_distance: Distance in tokens from which on all distances share the last bucket.
      segment_positions: Positions in the segment that are added to the embeddings: 'sinusoids' or 'none'.
      write_begin_token: Whether the encoding of the begin token is written into the slots.
      scan_layers: Whether to run the decoder's layers by one `nn.scan`. False unrolls them.
      rematerialize: Whether to recompute each decoder layer in the backward pass.
      norm_kind: Kind of the norm of the last hidden state, 'layer' or 'rms'.
      dropout: Dropout rate on embeddings and on the last hidden state.
      dtype: Dtype of the computation.
    """

    encoder: MemformerEncoder | None
    decoder: tuple[MemformerDecoderLayer, ...]
    vocabulary: nn.Module
    segment_length: int
    num_buckets: int = 32
    max_distance: int = 128
    segment_positions: str = "sinusoids"
    write_begin_token: bool = False
    scan_layers: bool = False
    rematerialize: bool = False
    norm_kind: NormKind = "layer"
    dropout: float = 0.0
    dtype: Any = jnp.float32

    decodes = True

    @property
    def has_slots(self) -> bool:
        """Whether the encoder has memory slots."""
        return self.encoder is not None and self.encoder.num_slots > 0

    def setup(self) -> None:
        self.layer_norm = make_norm(self.norm_kind, self.dtype)
        heads = self.decoder[0].attention.num_heads
        if self.num_buckets:
            bias = named(nn.initializers.normal(0.02), "heads", None)
            self.position_bias = self.param("position_bias", bias, (heads, self.num_buckets))
        if self.encoder is not None:
            begin = named(nn.initializers.normal(0.02), "embed")
            self.begin = self.param("begin", begin, (self.decoder[0].attention.dim,))
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> MemformerModelState | EmptyState:
        """Returns the state with which every row starts a document. It is empty without an encoder."""
        if self.encoder is None:
            return EmptyState()
        memory = self.encoder.init_state(batch_size, dtype or jnp.float32)
        shape = (batch_size, self.segment_length)
        return MemformerModelState(memory, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool))

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> MemformerDecodeState:
        """Returns the decode state at the start of a segment, from the state between segments. `segment_length` must be
        that of the model.
        """
        fits = segment_length == self.segment_length
        require(fits, "segment_length", segment_length, f"{self.segment_length}")
        part, source = self.decoder[0].attention, self.segment_length
        buffer = lambda length: jnp.zeros(
            (len(self.decoder), batch_size, length, part.num_heads, part.head_dim), self.dtype
        )
        keys, values, others = buffer(segment_length), buffer(segment_length), (EmptyState(), EmptyState())
        if self.encoder is not None:
            source += self.encoder.num_classification_tokens
            others = (buffer(source), buffer(source))
        memory = state.memory if isinstance(state, MemformerModelState) else EmptyState()
        return MemformerDecodeState(
            state,
            jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), memory),
            StackState((DecoderBuffers(keys, values, *others),), (len(self.decoder),)),
            jnp.zeros((batch_size, source), bool),
            jnp.zeros((batch_size, segment_length), jnp.int32),
            jnp.zeros((batch_size,), jnp.int32),
        )

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        state: Any,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[Activations, Any, Aux]:
        """Encodes the previous segment, and reads this one.

        Returns the last hidden states for `nll` and `log_probs`, the new state, and an `Aux`.
        """
        options = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        encoded, state, aux = self.encode(tokens, state, **options)
        return self.read(tokens, encoded, mask=mask, deterministic=deterministic), state, aux

    def encode(
        self,
        tokens: Int[Array, "batch length"],
        state: Any,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[Encoded | None, Any, Aux]:
        """Encodes the previous segment, which `state` holds. Returns three values: the encoding (None without an
        encoder), the state after the segment `tokens`, and an `Aux`.

        The decoder adds nothing to the state, so this is all that the next segment depends on.
        """
        length, allowed = tokens.shape[1], f"segment_length = {self.segment_length}; mask the rest"
        require(length == self.segment_length, "tokens", length, allowed)
        if self.encoder is None:
            return None, state, Aux()
        mask = broadcast_mask(mask, *tokens.shape)
        rows = mask.any(axis=1)
        encoded, memory, aux = self._encode_before(state, start_of_document, rows, deterministic)
        new = MemformerModelState(memory, tokens.astype(jnp.int32), mask)
        return encoded, where_rows(rows, new, state), aux

    def read(
        self,
        tokens: Int[Array, "batch length"],
        encoded: Encoded | None,
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> Activations:
        """Runs the decoder over one segment, given `encoded`, the encoding of the previous one. Returns the last hidden
        states.
        """
        x = self.drop(self._embed(tokens), deterministic=deterministic)
        x, length = constrain(x.astype(self.dtype), "batch", None, None), tokens.shape[1]
        settings = {
            "visible": visibility(length, None, mask),
            "bias": self._bias(relative_distances(length, length)),
            "deterministic": deterministic,
        }

        def body(layer: MemformerDecoderLayer, y: Array, _: None) -> tuple[Array, None]:
            return layer(y, encoded, **settings), None

        scan = {"scan_layers": self.scan_layers, "rematerialize": self.rematerialize}
        hidden = self.layer_norm(run_layers(body, self.decoder, x, None, **scan)[0])
        if self.is_initializing():
            self.vocabulary.log_probs(hidden[:, :1])
        return self.drop(hidden, deterministic=deterministic)

    def decode(
        self,
        tokens: Int[Array, "batch 1"],
        state: MemformerDecodeState,
        *,
        active: Rows,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[Float[Array, "batch 1 dim"], MemformerDecodeState]:
        """Reads one token of every active row, `tokens` of shape `[batch, 1]`, and returns the last hidden states and
        the new state. `extras` are ignored.

        In rows that start a segment, the encoder and the memory writer run first.
        """
        if self.encoder is not None:
            entering = active & (state.position == 0)
            enter = lambda model, s, rows: model._enter_segment(s, rows)
            state = nn.cond(entering.any(), enter, lambda model, s, rows: s, self, state, entering)
        position, length = state.position, self.segment_length
        distances = position[:, None, None] - jnp.arange(length)[None, None, :]  # [b, 1, m]
        settings = {
            "source_mask": state.source_mask,
            "visible": (distances >= 0)[:, None],
            "bias": self._bias(distances),
            "position": position,
            "active": active,
        }

        def body(layer: MemformerDecoderLayer, y: Array, buffers: DecoderBuffers) -> tuple[Array, DecoderBuffers]:
            return layer.decode(y, buffers, **settings)

        x = self._embed(tokens, position).astype(self.dtype)
        x, buffers = run_layers(body, self.decoder, x, state.layers.groups[0], scan_layers=self.scan_layers)
        read = ring_append(state.tokens, tokens.astype(jnp.int32), position, active)
        full = active & (position + 1 == length)
        before = state.state
        if isinstance(before, MemformerModelState):
            after = MemformerModelState(state.written, read, jnp.ones_like(before.mask))
            before = where_rows(full, after, before)
        layers, position = StackState((buffers,), state.layers.sizes), next_position(position, active, length)
        new = dataclasses.replace(state, state=before, layers=layers, tokens=read, position=position)
        return self.layer_norm(x), new

    def _encode_before(
        self, state: MemformerModelState, start: Array, rows: Array, deterministic: bool
    ) -> tuple[Encoded, Any, Aux]:
        """Encodes the previous segment of `rows`, or the begin token where a row starts a document."""
        assert self.encoder is not None
        fresh = start | ~state.mask.any(axis=1)
        first = jnp.arange(self.segment_length) == 0
        x = self.drop(self._embed(state.tokens), deterministic=deterministic)
        begin = jnp.broadcast_to(self.begin.astype(x.dtype)[None, None], x.shape)
        x = jnp.where(fresh[:, None, None], begin, x)
        mask = jnp.where(fresh[:, None], first[None], state.mask) & rows[:, None]
        writes = None if self.write_begin_token else ~fresh
        options = {"start_of_document": fresh, "mask": mask, "writes": writes, "deterministic": deterministic}
        return self.encoder.encode(x, state.memory, **options)

    def _enter_segment(self, state: MemformerDecodeState, entering: Array) -> MemformerDecodeState:
        """Encodes the previous segment in rows at the first token of a segment."""
        no_rows = jnp.zeros_like(entering)
        encoded, written, _ = self._encode_before(state.state, no_rows, entering, deterministic=True)

        def body(layer: MemformerDecoderLayer, y: Array, buffers: DecoderBuffers) -> tuple[Array, DecoderBuffers]:
            assert layer.cross is not None
            keys, values = layer.cross.keys_values(encoded.hidden)
            return y, dataclasses.replace(
                buffers,
                source_keys=keys.astype(buffers.source_keys.dtype),
                source_values=values.astype(buffers.source_values.dtype),
            )

        _, buffers = run_layers(
            body, self.decoder, encoded.hidden, state.layers.groups[0], scan_layers=self.scan_layers
        )
        new = dataclasses.replace(
            state, written=written, layers=StackState((buffers,), state.layers.sizes), source_mask=encoded.mask
        )
        return where_rows(entering, new, state)

    def _embed(self, tokens: Array, position: Array | None = None) -> Array:
        """Embeds a whole segment, or one token of every row at `position`, and adds positions in the segment."""
        x = self.vocabulary.embed(tokens)
        if self.segment_positions == "none":
            return x
        places = np.arange(tokens.shape[1])[None] if position is None else position[:, None]
        return x + sinusoids(places, x.shape[-1]).astype(x.dtype)

    def _bias(self, distances: Any) -> Array | None:
        """Computes the relative-position bias of the decoder's self-attention. None without buckets."""
        if not self.num_buckets:
            return None
        bias = bucket_bias(self.position_bias, distances, max_distance=self.max_distance)
        return bias if bias.ndim == 4 else bias[None]


def replay_parts(model: Memformer, *, deterministic: bool = False) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Makes the two functions, an encoder and a head that computes the loss, that
    `memjax.functional.mrbp_value_and_grad` needs for a Memformer. `deterministic` turns dropout off.

    A segment is a pair of a `Batch` and a key, both with segments at axis 0. The loss is the sum of the nats. The aux
    of the head is their `WeightedSum`, so that gradients are divided by its weight at the end.

    Args:
      model: Model to train.
      deterministic: Whether to run without dropout. The keys are then not used.
    """

    def noise(key: Any, part: int) -> dict[str, Any]:
        rngs = {} if deterministic else {"rngs": {"dropout": jax.random.fold_in(key, part)}}
        return {"deterministic": deterministic, **rngs}

    def encode(params: Any, state: Any, segment: tuple[Batch, Any]) -> tuple[Any, Any]:
        batch, key = segment
        settings = {"start_of_document": batch.start_of_document, "mask": batch.mask, **noise(key, 0)}
        result: Any = model.apply({"params": params}, batch.inputs, state, **settings, method="encode")
        encoded, state, _ = result
        return state, encoded

    def head(params: Any, encoded: Any, segment: tuple[Batch, Any]) -> tuple[Any, WeightedSum]:
        batch, key = segment
        settings = {"mask": batch.mask, **noise(key, 1)}
        hidden = model.apply({"params": params}, batch.inputs, encoded, **settings, method="read")
        nll: Any = model.apply({"params": params}, hidden, batch.targets, batch.weights, method="nll")
        return nll.total, nll

    return encode, head
