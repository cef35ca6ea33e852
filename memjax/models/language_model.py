"""The decoder-only language model, and the factory that unpacks its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax import config
from memjax.axes import MODEL, constrain, named
from memjax.functional.positions import sinusoids
from memjax.memory.compressive import CompressiveAttention
from memjax.memory.continuous_cache import ContinuousCache
from memjax.memory.contract import StackState, broadcast_mask
from memjax.memory.infinity_former import InfinityFormerAttention, LongTermMemory
from memjax.memory.linear_transformer import LinearTransformerAttention
from memjax.memory.memorizing import MemorizingAttention
from memjax.memory.memory_tokens import MEMORY, prepend_memory
from memjax.memory.memory_tokens_xl import MemoryTokenXLAttention
from memjax.memory.memsizer import MemSizerAttention
from memjax.memory.mixtures import Prediction, Recalled, mix_log_prob, mix_log_probs, recalled_log_prob
from memjax.memory.product_key import ProductKeyMemory
from memjax.memory.projections import make_norm
from memjax.memory.rfa import RFAAttention
from memjax.memory.spalm import Spalm
from memjax.memory.t2r import T2RAttention
from memjax.memory.transformer_xl import TransformerXLAttention
from memjax.models.bidirectional import BidirectionalAttention
from memjax.models.gpt2 import GPT2Attention, GPT2CompressiveAttention, GPT2InfinityFormerAttention
from memjax.models.recurrent import LSTM
from memjax.models.transformer import FeedForward, Layer, NoFeedForward, Stack
from memjax.models.vocabulary import AdaptiveVocabulary, Vocabulary
from memjax.typing import Aux, EmptyState, Sum

GIVEN = ("tokens", "features", "embed_output")
"""What a model gives to a memory at the output site that asks for it (`inputs`): the tokens read, its features by name,
and the function from ids to output weights. Everything else comes with the batch (`Batch.extras`)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LanguageModelState:
    """State of a language model.

    Attributes:
      stack: that of its layers.
      output: that of a memory at the output site, or `EmptyState`.
      mixtures: of each memory whose candidates are mixed in.
      position: int32 `[batch]`, tokens of the document read so far, or `EmptyState` where nothing depends on it.
      marker: int32 `[batch]`, 1 + the number of the last mark read, 0 = none yet; `EmptyState` without marks.
    """

    stack: StackState
    output: Any
    mixtures: tuple[Any, ...] = ()
    position: Any = EmptyState()
    marker: Any = EmptyState()


_RELATIVE = (config.TransformerXL, config.Compressive, config.InfinityFormer, config.GPT2)
"""what is made of Transformer-XL's attention, with its norms and initial values"""


class LanguageModel(nn.Module):
    """A decoder-only language model whose layers may carry memories.

    With `mixtures` the output is a `Prediction` instead of hidden states; mixtures have no parameters, so that any
    trained model takes them: `model.clone(mixtures=(ContinuousCache(dim=model.dim, memory_length=2000),))`.

    Attributes:
      stack: the layers.
      vocabulary: embeddings and softmax.
      output_memory: a memory at the output site (last hidden state in, hidden state out), or None.
      mixtures: memories at the output site that propose tokens (`Recalled`); their distributions are mixed in one after
        the other.
      final_norm: norm of the last hidden state: 'layer', 'rms' or '' for none (post-norm layers end with one).
      num_positions: learned positions of the tokens in their segment, added to the embeddings; 0 = none.
      positions: 'sinusoids' of the place in the document are added to the embeddings, or 'none'.
      markers: ids that mark what follows them in the document, such as the speakers of a dialogue: every token gets a
        learned embedding of the last of them, itself included, and another one before the first.
      memory_tokens: learned rows before every segment, which come out as `memory` in `Aux.arrays`; for layers that know
        of them (`MemoryTokenXLAttention`).
      memory_stddev: of their initial values.
      dropout: rate on embeddings and on the last hidden state.
      features: inner tensors to return in `Aux.arrays`: `output` (before the final norm), `output_normed`; those of
        layers are named in the stack.
      dtype: of the computation.
      memory_dtype: of the activations that memories store, unless `init_state` is given another.
    """

    stack: Stack
    vocabulary: nn.Module
    output_memory: nn.Module | None = None
    mixtures: tuple[nn.Module, ...] = ()
    final_norm: str = "rms"
    num_positions: int = 0
    positions: str = "none"
    markers: tuple[int, ...] = ()
    memory_tokens: int = 0
    memory_stddev: float = 0.02
    dropout: float = 0.0
    features: tuple[str, ...] = ()
    dtype: Any = jnp.float32
    memory_dtype: Any = jnp.float32

    def setup(self) -> None:
        if self.final_norm:
            self.layer_norm = make_norm(self.final_norm, self.dtype)
        self.drop = nn.Dropout(self.dropout)
        if self.num_positions:
            init, dim = named(nn.initializers.normal(0.02), None, "embed"), self.stack.layers[0].attention.dim  # type: ignore[attr-defined]
            self.positions_table = self.param("positions", init, (self.num_positions, dim))
        if self.markers:
            init = named(nn.initializers.normal(0.02), None, "embed")
            self.marker_table = self.param("markers", init, (len(self.markers) + 1, self.vocabulary.dim))  # type: ignore[attr-defined]
        if self.memory_tokens:
            if self.features or self.stack.features:
                raise ValueError("features: given with memory_tokens, allowed: none (they have rows of their own)")
            init = named(nn.initializers.normal(self.memory_stddev), None, "embed")
            self.memory_rows = self.param("memory_tokens", init, (self.memory_tokens, self.vocabulary.dim))  # type: ignore[attr-defined]

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> LanguageModelState:
        """The state in which a document starts in every row; needs no parameters."""
        dtype = dtype or self.memory_dtype
        output = self.output_memory.init_state(batch_size, dtype) if self.output_memory else EmptyState()  # type: ignore[attr-defined]
        mixtures = tuple(memory.init_state(batch_size, dtype) for memory in self.mixtures)  # type: ignore[attr-defined]
        count = lambda counts: jnp.zeros((batch_size,), jnp.int32) if counts else EmptyState()
        counters = count(self.positions != "none"), count(self.markers)
        return LanguageModelState(self.stack.init_state(batch_size, dtype), output, mixtures, *counters)

    @nn.nowrap
    def init_decode_state(self, state: LanguageModelState, segment_length: int, batch_size: int) -> LanguageModelState:
        """The decode state at the start of a segment, one `DecodeState` per memory."""
        output = EmptyState()
        if self.output_memory:
            output = self.output_memory.init_decode_state(state.output, segment_length, batch_size)  # type: ignore[attr-defined]
        mixtures = tuple(
            memory.init_decode_state(one, segment_length, batch_size)  # type: ignore[attr-defined]
            for memory, one in zip(self.mixtures, state.mixtures, strict=True)
        )
        stack = self.stack.init_decode_state(state.stack, segment_length, batch_size)
        return LanguageModelState(stack, output, mixtures, state.position, state.marker)

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, Any]:
        """Shapes of what a batch must have for the memories at the output site."""
        asking = [memory for memory in self._output_memories() if hasattr(type(memory), "example_extras")]
        shapes = [memory.example_extras(batch_size, length) for memory in asking]  # type: ignore[attr-defined]
        return {name: shape for one in shapes for name, shape in one.items()}

    @nn.nowrap
    def choose_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a batch's extras that the memories at the output site take.

        Raises:
          ValueError: the batch lacks one.
        """
        chosen = {}
        for memory in self._output_memories():
            missing = [name for name in getattr(type(memory), "needs", ()) if name not in extras]
            if missing:
                raise ValueError(
                    f"extras: given {sorted(extras)}, {type(memory).__name__} needs {', '.join(missing)}: documents "
                    "annotated with neighbours"
                )
            names = [name for name in getattr(type(memory), "inputs", ()) if name not in GIVEN]
            chosen |= {name: extras[name] for name in names if name in extras}
        return chosen

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        state: LanguageModelState,
        *,
        start_of_document: Bool[Array, " batch"],
        mask: Bool[Array, "batch length"] | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[Float[Array, "batch length dim"] | Prediction, LanguageModelState, Aux]:
        """Reads one segment.

        Args:
          tokens: of the segment.
          state: before it.
          start_of_document: as the contract says, as `mask` and `deterministic`.
          mask: real tokens.
          deterministic: without dropout and sampling.
          extras: what memories at the output site take of the batch, from `choose_extras`.

        Returns:
          The last hidden states (or a `Prediction`), for `nll` and `log_probs`; the new state; sums and requested
          features.
        """
        named = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        fresh = lambda count: jnp.where(start_of_document, 0, count)
        position, marker = jax.tree.map(fresh, (state.position, state.marker))
        real = broadcast_mask(mask, *tokens.shape)
        x, marker = self._mark(self._embed(tokens, position), jnp.where(real, tokens, -1), marker)
        x = self.drop(x, deterministic=deterministic)
        x = constrain(x, "batch", None, None)
        x, stack, aux = self._run_stack(x, state.stack, **named)
        hidden, output = self._normed(x), EmptyState()
        aux = aux + Aux(arrays=self._own_features(x, hidden))
        inputs = {"tokens": tokens, "features": aux.arrays, "embed_output": self.embed_output, **(extras or {})}
        if self.output_memory is not None:
            hidden, output, more = self.output_memory(
                hidden, state.output, **named, **_asked(self.output_memory, inputs)
            )
            aux = aux + more.prefixed("output_memory")
        hidden = self.drop(hidden, deterministic=deterministic)
        if self.is_initializing():
            self.vocabulary.log_probs(hidden[:, :1])  # type: ignore[attr-defined]
        recalled, mixtures = [], []
        for memory, before in zip(self.mixtures, state.mixtures, strict=True):
            part, after, more = memory(hidden, before, **named, **_asked(memory, inputs))
            recalled.append(part)
            mixtures.append(after)
            aux = aux + more
        count = real.sum(axis=1, dtype=jnp.int32)
        position = jax.tree.map(lambda new, old: jnp.where(count > 0, new + count, old), position, state.position)
        marker = jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), marker, state.marker)
        return _predict(hidden, recalled), LanguageModelState(stack, output, tuple(mixtures), position, marker), aux

    def decode(
        self,
        tokens: Int[Array, "batch 1"],
        state: LanguageModelState,
        *,
        active: Bool[Array, " batch"],
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[Float[Array, "batch 1 dim"] | Prediction, LanguageModelState]:
        """Reads one token of every active row; inactive rows keep their state."""
        x = self._embed(tokens, state.position, state.stack)
        x, marker = self._mark(x, jnp.where(active[:, None], tokens, -1), state.marker)
        if self.memory_tokens:
            x, _ = prepend_memory(self.memory_rows, x)
        x, stack, features = self.stack.decode_features(x, state.stack, active=active)
        x = x[:, self.memory_tokens :] if self.memory_tokens else x
        hidden, output = self._normed(x), EmptyState()
        features |= self._own_features(x, hidden)
        inputs = {"tokens": tokens, "features": features, "embed_output": self.embed_output, **(extras or {})}
        if self.output_memory is not None:
            named = _asked(self.output_memory, inputs)
            hidden, output = self.output_memory.decode(hidden, state.output, active=active, **named)  # type: ignore[attr-defined]
        recalled, mixtures = [], []
        for memory, before in zip(self.mixtures, state.mixtures, strict=True):
            part, after = memory.decode(hidden, before, active=active, **_asked(memory, inputs))  # type: ignore[attr-defined]
            recalled.append(part)
            mixtures.append(after)
        position = jax.tree.map(lambda read: read + active.astype(read.dtype), state.position)
        return _predict(hidden, recalled), LanguageModelState(stack, output, tuple(mixtures), position, marker)

    def token_nll(
        self, hidden: Float[Array, "batch length dim"] | Prediction, targets: Int[Array, "batch length"]
    ) -> Float[Array, "batch length"]:
        """Nats of each target, at least float32."""
        if not isinstance(hidden, Prediction):
            return self.vocabulary.token_nll(hidden, targets)  # type: ignore[attr-defined]
        own = -self.vocabulary.token_nll(hidden.hidden, targets)  # type: ignore[attr-defined]
        return -mix_log_prob(own, targets, hidden.recalled, lambda: self._log_normalizer(hidden.hidden))

    def token_log_probs(
        self, hidden: Float[Array, "batch length dim"] | Prediction, targets: Int[Array, "batch length"]
    ) -> Float[Array, "parts batch length"]:
        """Log-probability of each target under the model alone, and under the candidates of each mixture alone.

        Where a mixture has no candidates it is that of the model, so that mixing them changes nothing.
        """
        recalled = hidden.recalled if isinstance(hidden, Prediction) else ()
        own = hidden.hidden if isinstance(hidden, Prediction) else hidden
        alone = -self.vocabulary.token_nll(own, targets)  # type: ignore[attr-defined]
        some = [(part.scores > -jnp.inf).any(axis=-1) for part in recalled]
        others = [jnp.where(s, recalled_log_prob(part, targets), alone) for s, part in zip(some, recalled, strict=True)]
        return jnp.stack([alone, *others])

    def nll(
        self,
        hidden: Float[Array, "batch length dim"] | Prediction,
        targets: Int[Array, "batch length"],
        weights: Float[Array, "batch length"],
    ) -> Sum:
        """Nats of the targets with their weights, and the sum of the weights; nothing else reaches a gradient."""
        scored = weights != 0
        keep = lambda hidden: jnp.where(scored[..., None], hidden, 0)
        if isinstance(hidden, Prediction):
            hidden = dataclasses.replace(hidden, hidden=keep(hidden.hidden))
        else:
            hidden = keep(hidden)
        nats = self.token_nll(hidden, jnp.where(scored, targets, 0))
        weights = weights.astype(nats.dtype)
        return Sum((nats * weights).sum(), weights.sum())

    def log_probs(self, hidden: Float[Array, "batch length dim"] | Prediction) -> Float[Array, "batch length vocab"]:
        """Log-probabilities of the whole vocabulary, at least float32."""
        if not isinstance(hidden, Prediction):
            return self.vocabulary.log_probs(hidden)  # type: ignore[attr-defined]
        own = self.vocabulary.log_probs(hidden.hidden)  # type: ignore[attr-defined]
        return mix_log_probs(own, hidden.recalled, lambda: self._log_normalizer(hidden.hidden))

    def embed_output(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Output weights of the ids."""
        return self.vocabulary.embed_output(ids)  # type: ignore[attr-defined]

    def _embed(self, tokens: Array, position: Any, decode_state: Any = None) -> Array:
        """Embeddings with the positions there are: in the document, and in the running segment.

        In decoding (`decode_state`) each row stands at a place of its own in its segment.
        """
        x, length = self.vocabulary.embed(tokens), tokens.shape[1]  # type: ignore[attr-defined]
        if self.positions == "sinusoids":
            x = x + sinusoids(position[:, None] + jnp.arange(length)[None], x.shape[-1]).astype(x.dtype)
        if not self.num_positions:
            return x
        if length > self.num_positions:
            raise ValueError(
                f"tokens: given {length} in a segment, allowed: up to num_positions = {self.num_positions}"
            )
        if decode_state is None:
            return x + self.positions_table[:length].astype(x.dtype)[None]
        # Every layer counts the tokens of the running segment; the first of a scanned group does for all.
        place = decode_state.groups[0].attention.position
        place = place[0] if decode_state.sizes[0] else place
        return x + jnp.take(self.positions_table, place, axis=0, mode="clip").astype(x.dtype)[:, None]

    def _mark(self, x: Array, tokens: Array, marker: Any) -> tuple[Array, Any]:
        """Adds to every token the embedding of the last mark; also which mark that is at the end."""
        if not self.markers:
            return x, marker
        marks = last_marks(tokens, marker, self.markers)
        return x + jnp.take(self.marker_table, marks, axis=0).astype(x.dtype), marks[:, -1]

    def _run_stack(self, x: Array, state: StackState, *, mask: Array | None, **named: Any) -> tuple[Array, Any, Aux]:
        """All layers over one segment, behind the memory tokens where there are any."""
        own = self.memory_tokens
        if not own:
            return self.stack(x, state, mask=mask, **named)
        both, mask = prepend_memory(self.memory_rows, x, mask)
        rows, state, aux = self.stack(both, state, mask=mask, **named)
        return rows[:, own:], state, aux + Aux(arrays={MEMORY: rows[:, :own]})

    def _normed(self, x: Array) -> Array:
        return self.layer_norm(x) if self.final_norm else x

    def _own_features(self, x: Array, normed: Array) -> dict[str, Array]:
        tensors = {"output": x, "output_normed": normed}
        return {name: tensors[name] for name in self.features}

    def _log_normalizer(self, hidden: Array) -> Array:
        if not hasattr(type(self.vocabulary), "log_normalizer"):
            kind = type(self.vocabulary).__name__
            raise ValueError(f"mixing: given 'global' with {kind}, allowed: 'linear' (it has no single softmax)")
        return self.vocabulary.log_normalizer(hidden)  # type: ignore[attr-defined]

    @nn.nowrap
    def _output_memories(self) -> tuple[nn.Module, ...]:
        return (() if self.output_memory is None else (self.output_memory,)) + self.mixtures


def last_marks(
    tokens: Int[Array, "batch length"], before: Int[Array, " batch"], markers: Sequence[int]
) -> Int[Array, "batch length"]:
    """1 + the number of the last mark up to each token, itself included; `before` where there is none.

    Example:
      >>> last_marks(jnp.array([[7, 3, 8, 3]]), jnp.array([2]), markers=(7, 8)).tolist()
      [[1, 1, 2, 2]]
      >>> last_marks(jnp.array([[3, 3, 8, 3]]), jnp.array([0]), markers=(7, 8)).tolist()
      [[0, 0, 2, 2]]
    """
    equal = tokens[..., None] == jnp.array(markers, tokens.dtype)[None, None]
    numbers = jnp.where(equal.any(axis=-1), 1 + equal.argmax(axis=-1), 0).astype(before.dtype)  # [b, l]
    places = jnp.where(numbers > 0, 1 + jnp.arange(tokens.shape[1])[None], 0)
    known = jnp.concatenate([before[:, None], numbers], axis=1)
    return jnp.take_along_axis(known, jax.lax.cummax(places, axis=1), axis=1)


def _asked(memory: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a memory takes, of what there is."""
    return {name: inputs[name] for name in getattr(type(memory), "inputs", ()) if name in inputs}


def _predict(hidden: Array, recalled: list[Recalled]) -> Array | Prediction:
    return Prediction(hidden, tuple(recalled)) if recalled else hidden


def make_language_model(
    model: config.Model,
    vocab_size: int,
    *,
    features: tuple[str, ...] = (),
    rematerialize: str = "none",
    memory_sharding: str = "heads",
    table_sharding: Literal["rows", "columns"] = "rows",
    vocab_multiple: int = 1,
) -> LanguageModel:
    """Builds the model that a configuration describes.

    Args:
      model: the configuration.
      vocab_size: entries of the tokenizer.
      features: inner tensors to return, `layer_<index>/<tap>` or `output`, `output_normed`.
      rematerialize: 'per_layer' and 'segment_nested' recompute each layer in the backward pass.
      memory_sharding: what the mesh axis `model` splits of a long memory, 'heads' or 'slots'.
      table_sharding: what it splits of a value table, 'rows' or 'columns'.
      vocab_multiple: of which the tables of the vocabulary have rows, to divide over `model`; 1 = no padding, as in
        published models.
    """
    if isinstance(model.attention, config.Bidirectional):
        raise ValueError("model.attention: given Bidirectional, allowed: a decoder's; see make_text_encoder")
    if isinstance(model, config.EncoderDecoder):
        raise ValueError("model: given EncoderDecoder, allowed: Model; see make_encoder_decoder")
    inner = tuple(name for name in features if name.startswith("layer_"))
    stack = make_stack(
        model,
        features=inner,
        rematerialize=rematerialize,
        memory_sharding=memory_sharding,
        table_sharding=table_sharding,
    )
    dtype = jnp.dtype(model.compute_dtype)
    norm, kind = _norms(model.attention)
    final_norm = norm == "pre" and getattr(model.attention, "final_norm", True)
    return LanguageModel(
        stack=stack,
        vocabulary=make_vocabulary(model, vocab_size, vocab_multiple, dtype),
        output_memory=_make_output_memory(model, dtype),
        final_norm=kind if final_norm else "",
        num_positions=_num_positions(model.attention),
        positions=model.positions,
        markers=tuple(range(vocab_size - model.markers, vocab_size)),
        **memory_fields(model.memory_tokens),
        dropout=model.dropout,
        features=tuple(name for name in features if name not in inner),
        dtype=dtype,
        memory_dtype=jnp.dtype(model.memory_dtype),
    )


def make_stack(
    model: config.Model,
    *,
    features: tuple[str, ...] = (),
    rematerialize: str = "none",
    memory_sharding: str = "heads",
    table_sharding: Literal["rows", "columns"] = "rows",
) -> Stack:
    """The layers that a configuration describes, of a decoder or of a text encoder; arguments as there."""
    if memory_sharding not in ("heads", "slots"):
        raise ValueError(f"memory_sharding: given {memory_sharding!r}, allowed: 'heads' or 'slots'")
    dtype = jnp.dtype(model.compute_dtype)
    scan = model.num_layers >= 6 if model.scan_layers is None else model.scan_layers
    layers = tuple(
        Layer(
            make_attention(model, index, dtype, memory_sharding),
            _make_feed_forward(model, index, dtype, table_sharding),
        )
        for index in range(model.num_layers)
    )
    per_layer = rematerialize in ("per_layer", "segment_nested")
    return Stack(layers, scan_layers=scan, rematerialize=per_layer, features=features)


def make_mixtures(evaluation: config.Evaluation, model: config.Model) -> tuple[nn.Module, ...]:
    """The memories that an evaluation lays over a model, for its field `mixtures`; () for none."""
    cache = evaluation.cache
    if not cache.memory_length:
        return ()
    return (ContinuousCache(dim=model.dim, **_fields(cache), dtype=jnp.dtype(model.compute_dtype)),)


def make_attention(model: config.Model, index: int, dtype: Any, memory_sharding: str = "heads") -> nn.Module:
    """The attention part of one layer."""
    heads = {"dim": model.dim, "num_heads": model.num_heads, "head_dim": model.head_dim or model.dim // model.num_heads}
    common = {**heads, "dropout": model.dropout, "attention_dropout": model.attention_dropout, "dtype": dtype}
    match model.attention:
        case config.TransformerXL() as part:
            fields = {**common, **_fields(part, but=("final_norm",))}
            if model.memory_tokens and not isinstance(model, config.EncoderDecoder):
                return MemoryTokenXLAttention(**fields, num_tokens=model.memory_tokens.num_tokens)
            return TransformerXLAttention(**fields)
        case config.Compressive() as part:
            return CompressiveAttention(**common, **_fields(part, but=("final_norm", "loss_weight")))
        case config.Memorizing() as part:
            fields = _fields(part, but=("layers", "write"))
            chosen = _is_chosen(index, part.layers, model.num_layers)
            if not chosen or not part.memory_length:  # equal fields let neighbours share one scanned group
                fields |= {"memory_length": 0, "num_neighbors": 1, "track_positions": False}
                return MemorizingAttention(**common, **fields)
            slot_axis = MODEL if memory_sharding == "slots" else ""
            return MemorizingAttention(**common, **fields, write_policy=part.write, slot_axis=slot_axis)
        case config.InfinityFormer() as part:
            return _make_infinity_former(model, part, index, common)
        case config.GPT2() as part:
            common["init_stddev"] = 0.02
            if not part.compressed_memory_length:
                return GPT2Attention(**common)
            return GPT2CompressiveAttention(
                **common,
                compressed_memory_length=part.compressed_memory_length,
                compression_rate=part.compression_rate,
            )
        case config.FullAttention() as part:
            return MemorizingAttention(**common, **_fields(part))
        case config.Bidirectional():
            return BidirectionalAttention(**common)
        case config.LinearTransformer() as part:
            return make_linear_attention(part, **common)
        case config.LSTM():
            last = index == model.num_layers - 1  # whose output the model itself drops
            return LSTM(model.dim, dropout=0.0 if last else model.dropout, dtype=dtype)
    raise ValueError(
        f"model.attention: given {type(model.attention).__name__}, allowed: one of memjax.config.Attention"
    )


def _make_infinity_former(model: config.Model, part: config.InfinityFormer, index: int, common: Any) -> nn.Module:
    """The part of one layer: with the long-term memory, or its host alone."""
    host: dict[str, Any] = {**common}
    if part.host == "transformer_xl":
        names = ("norm", "tied_biases", "clamp_length")
        host |= {"memory_length": part.memory_length, **{name: getattr(part, name) for name in names}}
    if not _is_chosen(index, part.layers, model.num_layers) or not part.num_basis:
        return (TransformerXLAttention if part.host == "transformer_xl" else GPT2Attention)(**host)
    names = ("segment_length", "num_basis", "widths", "num_samples", "contraction", "ridge", "sticky", "num_bins")
    names += ("jitter", "prior_stddev", "min_variance")
    memory = LongTermMemory(
        **{name: common[name] for name in ("dim", "num_heads", "head_dim", "dtype")},
        **{name: getattr(part, name) for name in names},
        reset_after=part.reset_after or None,
        init_stddev=0.02,
    )
    kind = InfinityFormerAttention if part.host == "transformer_xl" else GPT2InfinityFormerAttention
    return kind(**host, long_term=memory)


def _num_positions(attention: config.Attention) -> int:
    """Learned positions of the model."""
    if isinstance(attention, config.InfinityFormer):
        return attention.num_positions if attention.host == "gpt2" else 0
    return attention.num_positions if isinstance(attention, config.GPT2) else 0


def make_linear_attention(part: config.LinearTransformer, **common: Any) -> LinearTransformerAttention:
    """The attention part of a linear attention's configuration; only MemSizer has weights to drop."""
    match part:
        case config.MemSizer():
            return MemSizerAttention(**common, **_fields(part))
    common.pop("attention_dropout", None)
    match part:
        case config.RFA():
            return RFAAttention(**common, **_fields(part))
        case config.T2R():
            return T2RAttention(**common, **_fields(part))
    return LinearTransformerAttention(**common, **_fields(part))


def _make_feed_forward(
    model: config.Model, index: int, dtype: Any, table_sharding: Literal["rows", "columns"]
) -> nn.Module:
    if isinstance(model.attention, config.LSTM):
        return NoFeedForward()
    norm, kind = _norms(model.attention)
    part = model.feed_forward
    memory: dict[str, Any] = {}
    if isinstance(part, config.ProductKey) and _is_chosen(index, part.layers, model.num_layers):
        memory["dense_scale"] = part.dense_scale
        if part.memory_scale:
            memory["memory_scale"] = part.memory_scale
            memory["memory"] = ProductKeyMemory(
                dim=model.dim,
                num_keys=part.num_keys,
                num_heads=part.memory_heads,
                num_neighbors=part.num_neighbors,
                key_dim=part.key_dim,
                query_hidden=part.query_hidden,
                query_norm=part.query_norm,
                key_dropout=part.key_dropout,
                split=table_sharding,
            )
    return FeedForward(
        dim=model.dim,
        hidden_dim=part.dim or 4 * model.dim,
        activation=part.activation,
        norm=norm,
        norm_kind=kind,
        bias=part.bias,
        dropout=model.dropout,
        hidden_dropout=not isinstance(model.attention, config.Bidirectional),
        init_stddev=0.02 if isinstance(model.attention, (*_RELATIVE, config.Bidirectional)) else None,
        dtype=dtype,
        **memory,
    )


def _is_chosen(index: int, layers: tuple[int, ...], num_layers: int) -> bool:
    """Whether a layer is among `layers`, of which negative ones count from the end; () = all are."""
    return not layers or index in {layer % num_layers for layer in layers}


def make_vocabulary(model: config.Model, vocab_size: int, multiple: int, dtype: Any) -> nn.Module:
    """Embeddings and softmax of a model."""
    published = isinstance(model.attention, _RELATIVE)
    common = {
        "vocab_size": vocab_size,
        "dim": model.dim,
        "scale": model.dim**0.5 if model.scale_embeddings else 1.0,
        # With tied weights scaled by sqrt(dim) at the input, dim ** -0.5 gives embeddings and logits of size about 1.
        "init_stddev": 0.02 if published else model.dim**-0.5,
        "multiple": multiple,
        "dtype": dtype,
    }
    match config.softmax_of(model.output):
        case config.Softmax() as part:
            return Vocabulary(**common, tied=part.tied, bias=part.bias)
        case config.AdaptiveSoftmax() as part:
            return AdaptiveVocabulary(**common, **_fields(part))
    raise ValueError(f"model.output: given {type(model.output).__name__}, allowed: one of memjax.config.Output")


def memory_fields(tokens: config.MemoryTokens | None) -> dict[str, Any]:
    """Fields of a model with memory tokens before its segments or texts."""
    return {"memory_tokens": tokens.num_tokens, "memory_stddev": tokens.init_stddev} if tokens else {}


def _make_output_memory(model: config.Model, dtype: Any) -> nn.Module | None:
    match model.output:
        case config.Spalm() as part:
            return Spalm(dim=model.dim, **_fields(part, but=("softmax",)), dtype=dtype)
    return None


def _norms(attention: config.Attention) -> tuple[str, str]:
    if isinstance(attention, config.GPT2) or getattr(attention, "host", "") == "gpt2":
        return "pre", "layer"
    if isinstance(attention, _RELATIVE):
        return "post" if attention.norm == "post" else "pre", "layer"
    if isinstance(attention, config.Bidirectional):
        return "post", "layer_exact"
    if isinstance(attention, config.LinearTransformer):
        return attention.norm, attention.norm_kind
    if isinstance(attention, config.LSTM):
        return "none", ""
    return "pre", "rms"


def _fields(part: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name not in but}
