"""The encoder-decoder for translation.

A target sentence is a document: its tokens are read as a language model reads them, segment by segment, and its source
stands in the batch's extras, `source` and `source_mask`, with every segment of it. So the trainer, the streams and the
evaluation of language models take this model too.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import constrain
from memjax.functional.positions import sinusoids
from memjax.memory.contract import CrossMemory, LayerMemory, Stateless, broadcast_mask, count_positions
from memjax.memory.memory_tokens import MemoryTokens, memory_aux
from memjax.memory.projections import make_norm
from memjax.models.contract import Model
from memjax.models.heads import SmoothedScores
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows, tree_dataclass

__all__ = ["EncoderDecoder"]

SOURCE = ("source", "source_mask")
"""extras of a batch: int32 ids `[batch, source]` and bool `[batch, source]`"""


@tree_dataclass
class DecoderState:
    """State of the decoder between segments, or between tokens.

    Attributes:
      attention: of each layer's causal attention (between tokens a `DecodeState`).
      cross: of each layer's attention to the source, between tokens; () between segments, which bring their source.
      position: int32 `[batch]`, tokens of the target read so far.
    """

    attention: tuple[Any, ...]
    cross: tuple[Any, ...]
    position: Any


class DecoderLayer(nn.Module):
    """Causal attention, attention to the source, feed-forward.

    Attributes:
      attention: a layer-site memory.
      cross: a cross-site memory.
      feed_forward: a part without state.
    """

    attention: LayerMemory
    cross: CrossMemory
    feed_forward: Stateless

    def __call__(
        self, x: Array, state: Any, source: Array, source_mask: Array, **named: Any
    ) -> tuple[Activations, Any, Aux]:
        """One segment; `named` as the contract says."""
        x, new, aux = self.attention(x, state, **named)
        x = self.cross.attend_source(x, source, source_mask, named["deterministic"])
        x, _, more = self.feed_forward(x, EmptyState(), **named)
        return x, new, aux + more

    def decode(self, x: Array, state: Any, cross: Any, *, active: Array) -> tuple[Array, Any, Any]:
        """One token of every active row."""
        x, state = self.attention.decode(x, state, active=active)
        x, cross = self.cross.decode(x, cross, active=active)
        return self.feed_forward.decode(x, EmptyState(), active=active)[0], state, cross


class EncoderDecoder(Model):
    """A Transformer for translation (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), any of whose parts may be
    a linear attention or have memory tokens.

    Attributes:
      encoder: the encoder, with or without memory tokens; the decoder attends to its memory rows too.
      decoder: the decoder's layers.
      vocabulary: embeddings and softmax of both languages.
      final_norm: norm after both stacks: 'layer', 'rms' or '' for none (post-norm layers end with one).
      norm_epsilon: as in `make_norm`.
      positions: 'sinusoids' or 'none'; memory tokens have none.
      decoder_reads: what the decoder sees of the source: 'all', memory rows and tokens, or 'memory', those rows alone.
      label_smoothing: of `nll`, the training loss; `token_nll` scores without.
      dropout: rate on embeddings.
      dtype: of the computation.
      memory_dtype: of the activations that memories store.
    """

    encoder: MemoryTokens
    decoder: tuple[DecoderLayer, ...]
    vocabulary: nn.Module
    final_norm: str = ""
    norm_epsilon: float | None = None
    positions: str = "sinusoids"
    decoder_reads: str = "all"
    label_smoothing: float = 0.0
    dropout: float = 0.0
    dtype: Any = jnp.float32
    memory_dtype: Any = jnp.float32

    translates = resizes = True

    def setup(self) -> None:
        if self.final_norm:
            self.encoder_norm = make_norm(self.final_norm, self.dtype, epsilon=self.norm_epsilon)
            self.decoder_norm = make_norm(self.final_norm, self.dtype, epsilon=self.norm_epsilon)
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> DecoderState:
        """The state in which a target begins in every row; needs no parameters."""
        dtype = dtype or self.memory_dtype
        attention = tuple(layer.attention.init_state(batch_size, dtype) for layer in self.decoder)
        return DecoderState(attention, (), jnp.zeros((batch_size,), jnp.int32))

    @property
    def num_memory_tokens(self) -> int:
        """Learned rows in front of the source."""
        return self.encoder.num_tokens

    @nn.nowrap
    def scores(self) -> SmoothedScores:
        """The vocabulary's; targets of the training loss are smoothed."""
        return SmoothedScores(self.vocabulary, self.label_smoothing)

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """A source as long as the segment."""
        shape = (batch_size, length)
        return {SOURCE[0]: jax.ShapeDtypeStruct(shape, jnp.int32), SOURCE[1]: jax.ShapeDtypeStruct(shape, bool)}

    @nn.nowrap
    def example_decode_state(self, variables: Any, batch_size: int, length: int) -> Any:
        """Shapes of the state that `start_decoding` gives for a source as long as a segment."""
        source = self.example_extras(batch_size, length)
        start = lambda *arrays: self.apply(*arrays, length, method="start_decoding")
        return jax.eval_shape(start, variables, *source.values())

    @nn.nowrap
    def choose_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """The source of a batch.

        Raises:
          ValueError: the batch has none.
        """
        if missing := [name for name in SOURCE if name not in extras]:
            raise ValueError(f"extras: given {sorted(extras)}, {', '.join(missing)} missing: use sentence pairs")
        return {name: extras[name] for name in SOURCE}

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        state: DecoderState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[Activations, DecoderState, Aux]:
        """Reads one segment of the targets.

        Args:
          tokens: of the targets.
          state: before the segment.
          start_of_document: rows where a new target begins; also `mask` and `deterministic` as the contract says.
          mask: real tokens.
          deterministic: without dropout and sampling.
          extras: `source` and `source_mask` of every row, from `choose_extras`.

        Returns:
          The last hidden states, for `nll` and `log_probs`; the new state; sums, and the memory rows as
          `encoder/memory`.
        """
        if extras is None and self.is_initializing():
            extras = {"source": tokens, "source_mask": jnp.ones(tokens.shape, bool)}
        given = self.choose_extras(extras or {})
        source, source_mask, aux = self.encode(given["source"], given["source_mask"], deterministic)
        position, real = jnp.where(start_of_document, 0, state.position), broadcast_mask(mask, *tokens.shape)
        x, states = self.drop(self._embed(tokens, position, real), deterministic=deterministic), []
        x = constrain(x, "batch", None, None)
        named = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        for index, (layer, before) in enumerate(zip(self.decoder, state.attention, strict=True)):
            x, after, more = layer(x, before, source, source_mask, **named)
            states.append(after)
            aux = aux + more.prefixed(f"layer_{index:02d}")
        hidden = self.decoder_norm(x) if self.final_norm else x
        if self.is_initializing():
            self.vocabulary.log_probs(hidden[:, :1])
        count = real.sum(axis=1, dtype=jnp.int32)
        position = jnp.where(count > 0, position + count, state.position)
        return hidden, DecoderState(tuple(states), (), position), aux

    def encode(
        self, source: Int[Array, "batch source"], source_mask: Bool[Array, "batch source"], deterministic: bool = True
    ) -> tuple[Float[Array, "batch rows dim"], Bool[Array, "batch rows"], Aux]:
        """What the decoder attends to: memory rows, then tokens; and which of them are real."""
        start = jnp.zeros(source.shape[0], jnp.int32)
        x = self.drop(self._embed(source, start, source_mask), deterministic=deterministic)
        x = constrain(x, "batch", None, None)
        memory, x = self.encoder.encode(x, source_mask, deterministic=deterministic)
        rows = jnp.concatenate([memory, x], axis=1) if memory.shape[1] else x
        rows = self.encoder_norm(rows) if self.final_norm else rows
        counted = source_mask.any(axis=1)
        aux = memory_aux(rows[:, : memory.shape[1]], counted).prefixed("encoder") if memory.shape[1] else Aux()
        if self.decoder_reads == "memory":
            rows = rows[:, : memory.shape[1]]
            return rows, jnp.ones(rows.shape[:2], bool), aux
        return rows, jnp.pad(source_mask, [(0, 0), (memory.shape[1], 0)], constant_values=True), aux

    def source_maps(
        self, source: Int[Array, "batch source"], source_mask: Bool[Array, "batch source"]
    ) -> tuple[Float[Array, "batch heads rows rows"], ...]:
        """What memory rows and tokens of the source read in every layer (`MemoryTokens.attention_maps`)."""
        x = self._embed(source, jnp.zeros(source.shape[0], jnp.int32), source_mask)
        return self.encoder.attention_maps(x, source_mask)

    def start_decoding(
        self, source: Int[Array, "batch source"], source_mask: Bool[Array, "batch source"], segment_length: int
    ) -> DecoderState:
        """The state before the first token of a target; the source is read here and never again.

        Args:
          source: ids.
          source_mask: real tokens.
          segment_length: tokens of a segment of the target, as in training.
        """
        batch = source.shape[0]
        rows, mask, _ = self.encode(source, source_mask)
        attention, cross = [], []
        for layer, state in zip(self.decoder, self.init_state(batch).attention, strict=True):
            attention.append(layer.attention.init_decode_state(state, segment_length, batch))
            seen = layer.cross.read_source(rows, mask)
            cross.append(layer.cross.init_decode_state(seen, segment_length, batch))
        return DecoderState(tuple(attention), tuple(cross), jnp.zeros((batch,), jnp.int32))

    def decode(
        self, tokens: Int[Array, "batch 1"], state: DecoderState, *, active: Rows
    ) -> tuple[Float[Array, "batch 1 dim"], DecoderState]:
        """Reads one token of every active row; inactive rows keep their state."""
        x, attention, cross = self._embed(tokens, state.position, active[:, None]), [], []
        for layer, before, source in zip(self.decoder, state.attention, state.cross, strict=True):
            x, after, source = layer.decode(x, before, source, active=active)
            attention.append(after)
            cross.append(source)
        hidden = self.decoder_norm(x) if self.final_norm else x
        return hidden, DecoderState(tuple(attention), tuple(cross), state.position + active.astype(jnp.int32))

    def _embed(self, tokens: Array, position: Array, mask: Array) -> Array:
        x = self.vocabulary.embed(tokens)
        if self.positions == "none":
            return x
        return x + sinusoids(position[:, None] + count_positions(mask), x.shape[-1]).astype(x.dtype)
