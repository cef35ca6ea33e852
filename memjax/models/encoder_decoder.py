"""Encoder-decoder Transformers for translation.

A target sentence is a document, which the decoder reads as a language model, segment by segment. Its source is in the
batch's extras, `source` and `source_mask`, with every segment of it. So training, data streams and evaluation of
language models handle this model too.
"""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import constrain
from memjax.functional.positions import sinusoids
from memjax.memory.interface import CrossMemory, LayerMemory, StatelessMemory, broadcast_mask, count_positions
from memjax.memory.layer_parts import NormKind, make_norm
from memjax.memory.memory_tokens import MemoryTokenEncoder, memory_aux
from memjax.models.heads import SmoothedVocabularyScorer
from memjax.models.interface import Model
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows, tree_dataclass

__all__ = ["EncoderDecoder"]

SOURCE = ("source", "source_mask")
"""Keys of a batch's extras for the source: int32 token ids `[batch, source]` and bool mask `[batch, source]`."""


@tree_dataclass
class DecoderState:
    """The state of the decoder of an `EncoderDecoder` between segments, or between tokens: the states of its
    attentions, and the number of tokens read.

    Attributes:
      attention: States of the layers' causal attentions. Between tokens these are `DecodeState`s.
      cross: States of the layers' attentions to the source, between tokens. () between segments, which bring their
        source.
      position: int32 `[batch]`, number of tokens of the target read so far.
    """

    attention: tuple[Any, ...]
    cross: tuple[Any, ...]
    position: Any


class DecoderLayer(nn.Module):
    """A decoder layer of an `EncoderDecoder`: causal attention, attention to the source, and a feed-forward part.

    Attributes:
      attention: Memory of the layer site, the causal attention.
      cross: Memory of the cross site, the attention to the source.
      feed_forward: Feed-forward part without state.
    """

    attention: LayerMemory
    cross: CrossMemory
    feed_forward: StatelessMemory

    def __call__(
        self, x: Array, state: Any, source: Array, source_mask: Array, **named: Any
    ) -> tuple[Activations, Any, Aux]:
        """Reads one segment.

        Args:
          x: `[batch, length, dim]`, residual stream.
          state: State before the segment.
          source: `[batch, rows, dim]`, encoded source.
          source_mask: `[batch, rows]`, real rows of the source.
          **named: `start_of_document`, `mask` and `deterministic`, as for every memory.
        """
        x, new, aux = self.attention(x, state, **named)
        x = self.cross.attend_source(x, source, source_mask, named["deterministic"])
        x, _, more = self.feed_forward(x, EmptyState(), **named)
        return x, new, aux + more

    def decode(self, x: Array, state: Any, cross: Any, *, active: Array) -> tuple[Array, Any, Any]:
        """Reads one token of every active row, `x` of shape `[batch, 1, dim]`. Returns the new `x`, and the new states
        of the causal attention and of the attention to the source (`cross`).
        """
        x, state = self.attention.decode(x, state, active=active)
        x, cross = self.cross.decode(x, cross, active=active)
        return self.feed_forward.decode(x, EmptyState(), active=active)[0], state, cross


class EncoderDecoder(Model):
    """An encoder-decoder Transformer for translation (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

    Any of its parts may be a linear attention or have memory tokens.

    Attributes:
      encoder: Encoder with or without memory tokens. The decoder attends to the rows of the memory tokens too.
      decoder: Layers of the decoder.
      vocabulary: Embeddings and softmax of both languages.
      final_norm: Norm after both stacks: 'layer', 'rms' or '' for none (post-norm layers end with one).
      norm_epsilon: Number added to the variance in norms. None = the default of `make_norm`.
      positions: Positions added to the embeddings: 'sinusoids' or 'none'. Memory tokens have none.
      decoder_reads: Part of the source that the decoder reads: 'all', the memory tokens and the tokens, or 'memory',
        the memory tokens alone.
      label_smoothing: Label smoothing of the training loss `nll`. `token_nll` scores without smoothing.
      dropout: Dropout rate on embeddings.
      dtype: Dtype of the computation.
      memory_dtype: Dtype of the activations that memories store.
    """

    encoder: MemoryTokenEncoder
    decoder: tuple[DecoderLayer, ...]
    vocabulary: nn.Module
    final_norm: Literal[NormKind, ""] = ""
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
        """Returns the `DecoderState` with which every row starts a target. Needs no parameters. `dtype` is that of
        stored activations, by default `memory_dtype`.
        """
        dtype = dtype or self.memory_dtype
        attention = tuple(layer.attention.init_state(batch_size, dtype) for layer in self.decoder)
        return DecoderState(attention, (), jnp.zeros((batch_size,), jnp.int32))

    @property
    def num_memory_tokens(self) -> int:
        """The number of learned memory tokens before the source."""
        return self.encoder.num_tokens

    @nn.nowrap
    def scorer(self) -> SmoothedVocabularyScorer:
        """Returns a `SmoothedVocabularyScorer`, the object that scores targets given the output. Only its training loss
        smooths the targets.
        """
        return SmoothedVocabularyScorer(self.vocabulary, self.label_smoothing)

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of the extras `source` and `source_mask`, for a source of `length` tokens, as
        long as the segment.
        """
        shape = (batch_size, length)
        return {SOURCE[0]: jax.ShapeDtypeStruct(shape, jnp.int32), SOURCE[1]: jax.ShapeDtypeStruct(shape, bool)}

    @nn.nowrap
    def example_decode_state(self, variables: Any, batch_size: int, length: int) -> Any:
        """Returns the state from `start_decoding` with shapes and dtypes instead of arrays, for planning and for
        compiling ahead. `length` is the number of tokens of the source, as many as in a segment.
        """
        source = self.example_extras(batch_size, length)
        start = lambda *arrays: self.apply(*arrays, length, method="start_decoding")
        return jax.eval_shape(start, variables, *source.values())

    @nn.nowrap
    def select_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the source of a batch: the entries `source` and `source_mask` of its extras.

        Raises:
          ValueError: The batch has none.
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
          tokens: `[batch, length]`, token ids of the targets.
          state: State before the segment.
          start_of_document: `[batch]`, rows that start a new target.
          mask: Real tokens. None = all.
          deterministic: Whether to run without dropout and sampling.
          extras: `source` and `source_mask` of every row, from `select_extras`.

        Returns:
          The last hidden states for `nll` and `log_probs`, the new state, and an `Aux` with the memory tokens
          as `encoder/memory`.
        """
        if extras is None and self.is_initializing():
            extras = {"source": tokens, "source_mask": jnp.ones(tokens.shape, bool)}
        source_extras = self.select_extras(extras or {})
        source, source_mask, aux = self.encode(source_extras["source"], source_extras["source_mask"], deterministic)
        position, real = jnp.where(start_of_document, 0, state.position), broadcast_mask(mask, *tokens.shape)
        x, states = self.drop(self._embed(tokens, position, real), deterministic=deterministic), []
        x = constrain(x, "batch", None, None)
        options = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        for index, (layer, before) in enumerate(zip(self.decoder, state.attention, strict=True)):
            x, after, more = layer(x, before, source, source_mask, **options)
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
        """Encodes the source. Returns an encoded row for each memory token and then for each token of the source, a
        mask of the real rows, and an `Aux`. If `decoder_reads` is 'memory', only the memory tokens have rows.
        """
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
        """Returns the attention weights of every layer of the encoder, `[batch, heads, rows, rows]` each. The rows are
        the memory tokens, then the tokens of the source.

        See `MemoryTokenEncoder.attention_maps`.
        """
        x = self._embed(source, jnp.zeros(source.shape[0], jnp.int32), source_mask)
        return self.encoder.attention_maps(x, source_mask)

    def start_decoding(
        self, source: Int[Array, "batch source"], source_mask: Bool[Array, "batch source"], segment_length: int
    ) -> DecoderState:
        """Encodes the source, and returns the `DecoderState` before the first token of a target. Decoding does not read
        the source again. `segment_length` counts tokens of the target.

        Args:
          source: `[batch, source]`, token ids.
          source_mask: Real tokens of the source.
          segment_length: Number of tokens in a segment of the target, as in training.
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
        """Reads one token of every active row, `tokens` of shape `[batch, 1]`, and returns the last hidden states and
        the new state. Inactive rows keep their state.
        """
        x, attention, cross = self._embed(tokens, state.position, active[:, None]), [], []
        for layer, before, source in zip(self.decoder, state.attention, state.cross, strict=True):
            x, after, source = layer.decode(x, before, source, active=active)
            attention.append(after)
            cross.append(source)
        hidden = self.decoder_norm(x) if self.final_norm else x
        return hidden, DecoderState(tuple(attention), tuple(cross), state.position + active.astype(jnp.int32))

    def _embed(self, tokens: Array, position: Array, mask: Array) -> Array:
        """Embeds tokens, and adds their positions where the model has any."""
        x = self.vocabulary.embed(tokens)
        if self.positions == "none":
            return x
        return x + sinusoids(position[:, None] + count_positions(mask), x.shape[-1]).astype(x.dtype)
