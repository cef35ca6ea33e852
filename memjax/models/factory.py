"""From settings to modules: the one place that knows the class of a kind of attention, feed-forward part, output."""

import dataclasses
from typing import Any, Literal, cast

import flax.linen as nn
import jax.numpy as jnp

from memjax import config as settings
from memjax.axes import MODEL
from memjax.config import Config
from memjax.memory.bidirectional import BidirectionalAttention
from memjax.memory.compressive import CompressiveAttention
from memjax.memory.continuous_cache import ContinuousCache
from memjax.memory.contract import CrossMemory, LayerMemory, OutputMemory, Stateless
from memjax.memory.cross_attention import CrossAttention
from memjax.memory.gpt2 import GPT2Attention, GPT2CompressiveAttention, GPT2InfinityFormerAttention
from memjax.memory.infinity_former import InfinityFormerAttention, LongTermMemory
from memjax.memory.linear_transformer import LinearCrossAttention, LinearTransformerAttention
from memjax.memory.lstm import LSTM
from memjax.memory.memformer import HeadAttention, MemformerEncoder, MemformerLayer
from memjax.memory.memorizing import MemorizingAttention
from memjax.memory.memory_tokens import EncoderLayer, MemoryTokens
from memjax.memory.memory_tokens_xl import MemoryTokenXLAttention
from memjax.memory.memsizer import MemSizerAttention
from memjax.memory.product_key import ProductKeyMemory
from memjax.memory.rfa import RFAAttention
from memjax.memory.spalm import Spalm
from memjax.memory.t2r import T2RAttention
from memjax.memory.transformer_xl import TransformerXLAttention
from memjax.models.contract import Model
from memjax.models.encoder_decoder import DecoderLayer, EncoderDecoder
from memjax.models.heads import INIT_STDDEV, TaskHead
from memjax.models.language_model import LanguageModel
from memjax.models.memformer import Memformer, MemformerDecoderLayer
from memjax.models.text_encoder import TextEncoder
from memjax.models.transformer import FeedForward, Layer, NoFeedForward, Stack
from memjax.models.vocabulary import AdaptiveVocabulary, Vocabulary

__all__ = [
    "make_encoder_decoder",
    "make_language_model",
    "make_memformer",
    "make_mixtures",
    "make_model",
    "make_text_encoder",
]


def make_language_model(
    model: settings.ModelSettings,
    vocab_size: int,
    *,
    segment_length: int = 0,
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
      segment_length: tokens of a segment, where a memory is made for one length (InfinityFormer).
      features: inner tensors to return, `layer_<index>/<tap>` or `output`, `output_normed`.
      rematerialize: 'per_layer' and 'segment_nested' recompute each layer in the backward pass.
      memory_sharding: what the mesh axis `model` splits of a long memory, 'heads' or 'slots'.
      table_sharding: what it splits of a value table, 'rows' or 'columns'.
      vocab_multiple: of which the tables of the vocabulary have rows, to divide over `model`; 1 = no padding, as in
        published models.
    """
    if not isinstance(model.attention, settings.AttentionKind):
        raise _unknown("attention", model.attention)
    if not isinstance(model.output, settings.OutputKind):
        raise _unknown("output", model.output)
    if not model.carrier.is_causal:
        raise ValueError("model.attention: given Bidirectional, allowed: a decoder's; see make_text_encoder")
    if model.translates:
        raise ValueError("model: given EncoderDecoder, allowed: Model; see make_encoder_decoder")
    inner = tuple(name for name in features if name.startswith("layer_"))
    stack = make_stack(
        model,
        segment_length=segment_length,
        features=inner,
        rematerialize=rematerialize,
        memory_sharding=memory_sharding,
        table_sharding=table_sharding,
    )
    dtype = jnp.dtype(model.compute_dtype)
    attention = model.attention
    has_final_norm = attention.norm_place == "pre" and attention.final_norm
    return LanguageModel(
        stack=stack,
        vocabulary=make_vocabulary(model, vocab_size, vocab_multiple, dtype),
        output_memory=_make_output_memory(model, dtype),
        final_norm=attention.norm_kind if has_final_norm else "",
        num_positions=attention.learned_positions,
        positions=model.positions,
        markers=tuple(range(vocab_size - model.markers, vocab_size)),
        **memory_fields(model.memory_tokens),
        dropout=model.dropout,
        features=tuple(name for name in features if name not in inner),
        dtype=dtype,
        memory_dtype=jnp.dtype(model.memory_dtype),
    )


def make_stack(
    model: settings.ModelSettings,
    *,
    segment_length: int = 0,
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
            make_attention(model, index, dtype, memory_sharding, segment_length=segment_length),
            _make_feed_forward(model, index, dtype, table_sharding),
        )
        for index in range(model.num_layers)
    )
    per_layer = rematerialize in ("per_layer", "segment_nested")
    return Stack(layers, scan_layers=scan, rematerialize=per_layer, features=features)


def make_mixtures(
    evaluation: settings.Evaluation, model: settings.ModelSettings | settings.Memformer
) -> tuple[OutputMemory, ...]:
    """The memories that an evaluation lays over a model, for its field `mixtures`; () for none."""
    cache = evaluation.cache
    if not cache.memory_length:
        return ()
    return (ContinuousCache(dim=model.dim, **_fields(cache), dtype=jnp.dtype(model.compute_dtype)),)


def make_attention(
    model: settings.ModelSettings, index: int, dtype: Any, memory_sharding: str = "heads", *, segment_length: int = 0
) -> LayerMemory:
    """The attention part of one layer."""
    heads = {"dim": model.dim, "num_heads": model.num_heads, "head_dim": model.head_dim or model.dim // model.num_heads}
    common = {**heads, "dropout": model.dropout, "attention_dropout": model.attention_dropout, "dtype": dtype}
    match model.attention:
        case settings.TransformerXL() as part:
            fields = {**common, **_fields(part, but=("final_norm",))}
            if model.memory_tokens and not model.translates:
                return MemoryTokenXLAttention(**fields, num_tokens=model.memory_tokens.num_tokens)
            return TransformerXLAttention(**fields)
        case settings.Compressive() as part:
            return CompressiveAttention(**common, **_fields(part, but=("final_norm", "loss_weight")))
        case settings.Memorizing() as part:
            fields = _fields(part, but=("layers", "write"))
            chosen = _is_chosen(index, part.layers, model.num_layers)
            if not chosen or not part.memory_length:  # equal fields let neighbours share one scanned group
                fields |= {"memory_length": 0, "num_neighbors": 1, "track_positions": False}
                return MemorizingAttention(**common, **fields)
            slot_axis = MODEL if memory_sharding == "slots" else ""
            return MemorizingAttention(**common, **fields, write_policy=part.write, slot_axis=slot_axis)
        case settings.InfinityFormer() as part:
            return _make_infinity_former(model, part, index, segment_length, common)
        case settings.GPT2() as part:
            common["init_stddev"] = 0.02
            if not part.compressed_memory_length:
                return GPT2Attention(**common)
            return GPT2CompressiveAttention(
                **common, compressed_memory_length=part.compressed_memory_length, compression_rate=part.compression_rate
            )
        case settings.FullAttention() as part:
            return MemorizingAttention(**common, **_fields(part))
        case settings.Bidirectional():
            return BidirectionalAttention(**common)
        case settings.LinearTransformer() as part:
            return make_linear_attention(part, **common)
        case settings.LSTM():
            last = index == model.num_layers - 1  # whose output the model itself drops
            return LSTM(model.dim, dropout=0.0 if last else model.dropout, dtype=dtype)
    raise _unknown("attention", model.attention)


def _unknown(site: str, part: object) -> ValueError:
    """For a part of a model that is none of the kinds of its site."""
    allowed = f"one of memjax.config.{site.title()}Kind"
    return ValueError(f"model.{site}: given {type(part).__name__}, allowed: {allowed}")


def _make_infinity_former(
    model: settings.ModelSettings, part: settings.InfinityFormer, index: int, segment_length: int, common: Any
) -> LayerMemory:
    """The part of one layer: with the long-term memory, or its host alone."""
    host: dict[str, Any] = {**common}
    if part.host == "transformer_xl":
        names = ("norm", "tied_biases", "clamp_length")
        host |= {"memory_length": part.memory_length, **{name: getattr(part, name) for name in names}}
    if not _is_chosen(index, part.layers, model.num_layers) or not part.num_basis:
        return (TransformerXLAttention if part.host == "transformer_xl" else GPT2Attention)(**host)
    if not segment_length:
        raise ValueError("segment_length: given none, allowed: tokens of a segment, for which InfinityFormer is made")
    names = ("num_basis", "widths", "num_samples", "contraction", "ridge", "sticky", "num_bins")
    names += ("jitter", "prior_stddev", "min_variance")
    memory = LongTermMemory(
        **{name: common[name] for name in ("dim", "num_heads", "head_dim", "dtype")},
        **{name: getattr(part, name) for name in names},
        segment_length=segment_length,
        reset_after=part.reset_after or None,
        init_stddev=0.02,
    )
    kind = InfinityFormerAttention if part.host == "transformer_xl" else GPT2InfinityFormerAttention
    return kind(**host, long_term=memory)


def make_linear_attention(part: settings.LinearTransformer, **common: Any) -> LinearTransformerAttention:
    """The attention part of a linear attention's configuration; only MemSizer has weights to drop."""
    match part:
        case settings.MemSizer():
            return MemSizerAttention(**common, **_fields(part))
    common.pop("attention_dropout", None)
    match part:
        case settings.RFA():
            return RFAAttention(**common, **_fields(part))
        case settings.T2R():
            return T2RAttention(**common, **_fields(part))
    return LinearTransformerAttention(**common, **_fields(part))


def _make_feed_forward(
    model: settings.ModelSettings, index: int, dtype: Any, table_sharding: Literal["rows", "columns"]
) -> Stateless:
    attention, part = model.attention, model.feed_forward
    if not attention.has_feed_forward:
        return NoFeedForward()
    memory: dict[str, Any] = {}
    if isinstance(part, settings.ProductKey) and _is_chosen(index, part.layers, model.num_layers):
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
        norm=attention.norm_place,
        norm_kind=attention.norm_kind,
        bias=part.bias,
        dropout=model.dropout,
        hidden_dropout=attention.hidden_dropout,
        init_stddev=attention.init_stddev,
        dtype=dtype,
        **memory,
    )


def _is_chosen(index: int, layers: tuple[int, ...], num_layers: int) -> bool:
    """Whether a layer is among `layers`, of which negative ones count from the end; () = all are."""
    return not layers or index in {layer % num_layers for layer in layers}


def make_vocabulary(model: settings.ModelSettings, vocab_size: int, multiple: int, dtype: Any) -> nn.Module:
    """Embeddings and softmax of a model."""
    common = {
        "vocab_size": vocab_size,
        "dim": model.dim,
        "scale": model.dim**0.5 if model.scale_embeddings else 1.0,
        # With tied weights scaled by sqrt(dim) at the input, dim ** -0.5 gives embeddings and logits of size about 1.
        "init_stddev": model.attention.init_stddev or model.dim**-0.5,
        "multiple": multiple,
        "dtype": dtype,
    }
    match model.output.softmax:
        case settings.Softmax() as part:
            return Vocabulary(**common, tied=part.tied, bias=part.bias)
        case settings.AdaptiveSoftmax() as part:
            return AdaptiveVocabulary(**common, **_fields(part))
    raise _unknown("output", model.output)


def memory_fields(tokens: settings.MemoryTokens | None) -> dict[str, Any]:
    """Fields of a model with memory tokens before its segments or texts."""
    return {"memory_tokens": tokens.num_tokens, "memory_stddev": tokens.init_stddev} if tokens else {}


def _make_output_memory(model: settings.ModelSettings, dtype: Any) -> OutputMemory | None:
    match model.output:
        case settings.Spalm() as part:
            return Spalm(dim=model.dim, **_fields(part, but=("softmax",)), dtype=dtype)
    return None


def make_encoder_decoder(
    model: settings.EncoderDecoder, vocab_size: int, *, segment_length: int = 0, vocab_multiple: int = 1
) -> EncoderDecoder:
    """Builds the model that a configuration describes.

    Args:
      model: the configuration.
      vocab_size: entries of the tokenizer of both languages.
      segment_length: as in `make_language_model`.
      vocab_multiple: as in `make_language_model`.
    """
    dtype = jnp.dtype(model.compute_dtype)
    norms: dict[str, Any] = {"norm": model.norm, "norm_kind": "layer"}
    heads = {"num_heads": model.num_heads, "head_dim": model.head_dim or model.dim // model.num_heads}
    rates = {"dropout": model.dropout, "attention_dropout": model.attention_dropout}
    common: dict[str, Any] = {"dim": model.dim, **heads, **rates, "dtype": dtype}

    def feed_forward() -> FeedForward:
        part = model.feed_forward
        hidden = part.dim or 4 * model.dim
        settings: dict[str, Any] = {
            "activation": part.activation,
            "bias": part.bias,
            "dropout": model.dropout,
            "dtype": dtype,
        }
        return FeedForward(model.dim, hidden, **settings, **norms)

    def cross() -> CrossMemory:
        if isinstance(model.cross_attention, settings.LinearTransformer):
            return LinearCrossAttention(make_linear_attention(model.cross_attention, **common).clone(**norms))
        return CrossAttention(**common, **norms)

    encoder_layer = lambda: EncoderLayer(CrossAttention(**common, **norms), feed_forward())
    depth, tokens = model.encoder_layers or model.num_layers, model.memory_tokens
    memory: dict[str, Any] = {}
    if tokens is not None:
        own = 0 if tokens.kind == "transformer" else 1 if tokens.shared else depth
        memory = {"num_tokens": tokens.num_tokens, "kind": tokens.kind, "init_stddev": tokens.init_stddev}
        memory |= {"memory_layers": tuple(encoder_layer() for _ in range(own))}
    decoder = tuple(
        DecoderLayer(
            make_attention(model, index, dtype, segment_length=segment_length).clone(**norms), cross(), feed_forward()
        )
        for index in range(model.num_layers)
    )
    return EncoderDecoder(
        encoder=MemoryTokens(tuple(encoder_layer() for _ in range(depth)), model.dim, **memory, dtype=dtype),
        decoder=decoder,
        vocabulary=make_vocabulary(model, vocab_size, vocab_multiple, dtype),
        final_norm="layer" if model.norm == "pre" else "",
        positions=model.positions,
        label_smoothing=model.label_smoothing,
        dropout=model.dropout,
        dtype=dtype,
        memory_dtype=jnp.dtype(model.memory_dtype),
    )


def make_text_encoder(
    model: settings.ModelSettings,
    head: TaskHead | None,
    vocab_size: int,
    *,
    features: tuple[str, ...] = (),
    rematerialize: str = "none",
    table_sharding: Literal["rows", "columns"] = "rows",
    vocab_multiple: int = 1,
) -> TextEncoder:
    """Builds the encoder that a configuration describes.

    Args:
      model: the configuration; its attention is `Bidirectional`.
      head: of its task (`memjax.tasks`); None = no head.
      vocab_size: entries of the tokenizer.
      features: inner tensors to return, `layer_<index>/<tap>` or `output`.
      rematerialize: as in `make_language_model`, and so the other arguments.
      table_sharding: as there.
      vocab_multiple: as there.

    Raises:
      ValueError: a configuration of a decoder.
    """
    part = model.attention
    if not isinstance(part, settings.Bidirectional):
        raise ValueError(f"model.attention: given {type(part).__name__}, allowed: Bidirectional in a text encoder")
    dtype = jnp.dtype(model.compute_dtype)
    inner = tuple(name for name in features if name.startswith("layer_"))
    vocabulary = Vocabulary(
        vocab_size=vocab_size,
        dim=model.dim,
        bias=head is not None and head.scores_vocabulary,
        init_stddev=INIT_STDDEV,
        multiple=vocab_multiple,
        dtype=dtype,
    )
    return TextEncoder(
        stack=make_stack(model, features=inner, rematerialize=rematerialize, table_sharding=table_sharding),
        vocabulary=vocabulary,
        head=head,
        max_length=part.positions,
        token_types=part.token_types,
        pooler=part.pooler,
        dropout=model.dropout,
        **memory_fields(model.memory_tokens),
        features=tuple(name for name in features if name not in inner),
        dtype=dtype,
    )


def make_memformer(
    model: settings.Memformer,
    vocab_size: int,
    *,
    segment_length: int,
    rematerialize: str = "none",
    vocab_multiple: int = 1,
) -> Memformer:
    """Builds the model that a configuration describes, and the paper's ablations of it.

    Args:
      model: the configuration.
      vocab_size: entries of the tokenizer.
      segment_length: tokens of a segment.
      rematerialize: as in `make_language_model`.
      vocab_multiple: as in `make_language_model`.

    Raises:
      ValueError: heads that do not divide the width, or no decoder.
    """
    dim, num_heads = model.dim, model.num_heads
    if dim % num_heads:
        raise ValueError(f"num_heads: given {num_heads}, allowed: a divisor of dim = {dim}")
    if model.num_layers < 1:
        raise ValueError(f"num_layers: given {model.num_layers}, allowed: at least 1")
    dtype, softmax = jnp.dtype(model.compute_dtype), cast(settings.Softmax, model.output)
    common: dict[str, Any] = {"dropout": model.dropout, "dtype": dtype}
    scan = model.num_layers >= 6 if model.scan_layers is None else model.scan_layers
    stacked: dict[str, Any] = {"scan_layers": scan, "rematerialize": rematerialize in ("per_layer", "segment_nested")}
    part, memory_heads = model.feed_forward, 1 if model.single_head else num_heads
    heads = lambda number: HeadAttention(
        dim, number, dim // number, attention_dropout=model.attention_dropout, dtype=dtype
    )
    feed_forward = lambda: FeedForward(
        dim, part.dim or 4 * dim, activation=part.activation, norm="pre", norm_kind="layer", **common
    )
    encoder = None
    if model.encoder_layers:
        reader = lambda: heads(memory_heads) if model.num_slots else None
        layer = lambda: MemformerLayer(heads(num_heads), feed_forward(), reader(), **common)
        names = ("num_slots", "temperature", "forgetting", "slots_per_chunk", "num_classification_tokens")
        encoder = MemformerEncoder(
            layers=tuple(layer() for _ in range(model.encoder_layers)),
            dim=dim,
            num_heads=num_heads,
            writer_heads=memory_heads,
            **{name: getattr(model, name) for name in names},
            **stacked,
            dtype=dtype,
        )
    cross = lambda: heads(num_heads) if model.encoder_layers else None
    layer = lambda: MemformerDecoderLayer(heads(num_heads), feed_forward(), cross(), **common)
    return Memformer(
        encoder=encoder,
        decoder=tuple(layer() for _ in range(model.num_layers)),
        vocabulary=Vocabulary(
            vocab_size,
            dim,
            softmax.tied,
            softmax.bias,
            scale=dim**0.5,
            init_stddev=dim**-0.5,
            multiple=vocab_multiple,
            dtype=dtype,
        ),
        segment_length=segment_length,
        **stacked,
        **common,
    )


def _fields(part: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name not in but}


def make_model(
    config: Config, vocab_size: int, head: TaskHead | None = None, *, vocab_multiple: int | None = None
) -> Model:
    """The Linen model that a configuration describes: a language model, a Memformer, an encoder-decoder, or a text
    encoder with a head (`memjax.tasks.Task.model` knows the one of the task).

    Args:
      config: the configuration.
      vocab_size: entries of the tokenizer.
      head: of a text encoder.
      vocab_multiple: instead of that of the configuration; 1 = no padding.
    """
    common: Any = {
        "rematerialize": config.training.rematerialize,
        "vocab_multiple": vocab_multiple or config.sharding.vocab_multiple,
    }
    tables: Any = {"table_sharding": config.sharding.tables}
    length = {"segment_length": config.data.segment_length}
    match config.model:
        case settings.EncoderDecoder() as model:
            return make_encoder_decoder(model, vocab_size, **length, vocab_multiple=common["vocab_multiple"])
        case settings.Memformer() as model:
            return make_memformer(model, vocab_size, **length, **common)
        case model if head is not None:
            return make_text_encoder(model, head, vocab_size, **tables, **common)
        case model:
            sharding = config.sharding.memory
            return make_language_model(model, vocab_size, memory_sharding=sharding, **length, **tables, **common)
