"""Builds models from settings. Only this module knows which class implements each kind of output."""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp

from memjax import config as settings
from memjax import memory
from memjax.config import Config
from memjax.memory.memformer import HeadAttention, MemformerLayer
from memjax.models.adapters import add_adapters
from memjax.models.bilstm import BiLSTM
from memjax.models.encoder_decoder import DecoderLayer, EncoderDecoder
from memjax.models.gate import Gate
from memjax.models.heads import INIT_STDDEV, TaskHead
from memjax.models.interface import Model
from memjax.models.language_model import LanguageModel
from memjax.models.layer_factory import (
    LINEAR,
    build_from_settings,
    head_options,
    make_attention,
    make_dense_feed_forward,
    make_stack,
    stack_options,
    unknown_kind_error,
)
from memjax.models.memformer import Memformer, MemformerDecoderLayer
from memjax.models.perceptron import Perceptron
from memjax.models.progressive_network import Columns
from memjax.models.text_encoder import TextEncoder
from memjax.models.token_bag import TokenBag
from memjax.models.vocabulary import AdaptiveVocabulary, EmptyVocabulary, Vocabulary

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
    """Builds a `LanguageModel` from its settings `model`. `features` names inner tensors that it also returns,
    `vocab_multiple` pads tables to a multiple of so many rows, and remat and sharding are names such as 'per_layer' or
    'heads'.

    Args:
      model: Configuration of the model.
      vocab_size: Number of entries of the tokenizer.
      segment_length: Number of tokens in a segment, for memories that are made for one length (InfinityFormer). 0 =
        unknown.
      features: Inner tensors to return, `layer_<index>/<tap>` or `output`, `output_normed`.
      rematerialize: Kind of recomputation. 'per_layer' and 'segment_nested' recompute each layer in the backward pass,
        others none here.
      memory_sharding: Axis of a long memory that is split over the mesh axis `model`, 'heads' or 'slots'.
      table_sharding: Axis of a value table that is split over the mesh axis `model`, 'rows' or 'columns'.
      vocab_multiple: Number that the rows of the vocabulary's tables are a multiple of, to divide over `model`. 1 = no
        padding, as in published models.
    """
    if not isinstance(model.attention, settings.Attention):
        raise unknown_kind_error("attention", model.attention)
    if not isinstance(model.output, settings.OutputKind):
        raise unknown_kind_error("output", model.output)
    if not model.memory_facts.is_causal:
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
    final_norm: Any = attention.norm_kind if attention.norm_place != "post" and attention.final_norm else ""
    vocabulary = make_vocabulary(model, vocab_size, vocab_multiple)
    return LanguageModel(
        stack=stack,
        vocabulary=vocabulary,
        output_memory=_make_output_memory(model, dtype),
        final_norm=final_norm,
        weighted_norms=model.weighted_norms,
        norm_epsilon=model.norm_epsilon,
        num_positions=attention.learned_positions,
        positions=model.positions,
        markers=tuple(range(vocab_size - model.num_speaker_markers, vocab_size)),
        **memory_fields(model.memory_tokens, _input_stddev(model, vocabulary)),
        dropout=model.dropout if attention.embedding_dropout else 0.0,
        features=tuple(name for name in features if name not in inner),
        dtype=dtype,
        memory_dtype=jnp.dtype(model.memory_dtype),
    )


def make_mixtures(evaluation: settings.Evaluation, model: settings.ModelKind) -> tuple[memory.OutputMemory, ...]:
    """Makes the output memories that the settings `evaluation` add to a model with the settings `model`: a tuple with
    one `ContinuousCacheMemory`, or an empty tuple if `evaluation.cache.memory_length` is 0.
    """
    cache = evaluation.cache
    if not cache.memory_length:
        return ()
    return (build_from_settings(memory.ContinuousCacheMemory, cache, model, dtype=jnp.dtype(model.compute_dtype)),)


def make_vocabulary(model: settings.TransformerBase, vocab_size: int, multiple: int) -> Vocabulary | AdaptiveVocabulary:
    """Builds the embeddings and softmax, a `Vocabulary` or `AdaptiveVocabulary`, from the settings `model`. Its tables
    are padded to a multiple of `multiple` rows.
    """
    common = {
        "vocab_size": vocab_size,
        "dim": model.dim,
        "scale": model.embedding_scale or (model.dim**0.5 if model.scale_embeddings else 1.0),
        # With tied weights scaled by sqrt(dim) at the input, dim ** -0.5 gives embeddings and logits of size about 1.
        "init_stddev": model.memory_facts.init_stddev or model.dim**-0.5,
        "multiple": multiple,
        "dtype": jnp.dtype(model.compute_dtype),
    }
    match model.output.softmax:
        case settings.Softmax() as part:
            return build_from_settings(
                Vocabulary, part, **common, logit_divisor=model.logit_divisor, logit_cap=model.logit_cap
            )
        case settings.AdaptiveSoftmax() as part:
            return build_from_settings(AdaptiveVocabulary, part, **common)
    raise unknown_kind_error("output", model.output)


NO_MEMORY_TOKENS = settings.MemoryTokens(num_tokens=0)


def memory_fields(tokens: settings.MemoryTokens | None, input_stddev: float) -> dict[str, Any]:
    """Returns two fields of a model as a dict: `memory_tokens`, the number of learned memory tokens in the settings
    `tokens` (0 for None), and `memory_stddev`, their initial standard deviation, by default `input_stddev`.

    Args:
      tokens: Settings of the memory tokens. None = no memory tokens.
      input_stddev: Standard deviation of the other inputs of the layers, the default for memory tokens.
    """
    tokens = tokens or NO_MEMORY_TOKENS
    return {"memory_tokens": tokens.num_tokens, "memory_stddev": _memory_token_stddev(tokens, input_stddev)}


def _memory_token_stddev(tokens: settings.MemoryTokens, input_stddev: float) -> float:
    """Returns the initial standard deviation of memory tokens: as set, or that of the other inputs."""
    return input_stddev if tokens.init_stddev is None else tokens.init_stddev


def _input_stddev(model: settings.ModelSettings, vocabulary: Vocabulary | AdaptiveVocabulary) -> float:
    """Computes the standard deviation of embeddings before training, with the positions that are added to them."""
    sines = 0.5 if model.positions == "sinusoids" else 0.0
    return (vocabulary.input_stddev**2 + sines) ** 0.5


def _make_output_memory(model: settings.ModelSettings, dtype: Any) -> memory.OutputMemory | None:
    """Builds the memory at the output site. None where the settings have none."""
    match model.output:
        case settings.Spalm() as part:
            return build_from_settings(memory.SpalmMemory, part, model, dtype=dtype)
    return None


def make_encoder_decoder(
    model: settings.EncoderDecoder, vocab_size: int, *, segment_length: int = 0, vocab_multiple: int = 1
) -> EncoderDecoder:
    """Builds an `EncoderDecoder` from its settings `model`. Both languages share the `vocab_size` entries of one
    vocabulary, whose tables are padded to a multiple of `vocab_multiple` rows.

    Args:
      model: Configuration of the model.
      vocab_size: Number of entries of the tokenizer of both languages.
      segment_length: Number of tokens in a segment. See `make_language_model`.
      vocab_multiple: Number that the rows of the vocabulary's tables are a multiple of. See `make_language_model`.
    """
    norms: dict[str, Any] = {"norm": model.norm, "norm_kind": "layer", "norm_epsilon": model.norm_epsilon}
    common, feed_forward = head_options(model), lambda: make_dense_feed_forward(model, **norms)

    def cross() -> memory.CrossMemory:
        part = model.cross_attention
        if isinstance(part, settings.LinearTransformer):
            return memory.LinearCrossAttention(build_from_settings(LINEAR[type(part)], part, model, **common | norms))
        return build_from_settings(memory.CrossAttention, model, **common, bias=part.bias)

    def encoder_layer() -> memory.EncoderLayer:
        return memory.EncoderLayer(
            build_from_settings(memory.CrossAttention, model, **common, bias=model.encoder_bias), feed_forward()
        )

    depth, tokens = model.encoder_layers or model.num_layers, model.memory_tokens or NO_MEMORY_TOKENS
    vocabulary = make_vocabulary(model, vocab_size, vocab_multiple)
    num_memory_layers = 0 if tokens.kind == "transformer" else 1 if tokens.share_memory_layer else depth
    attention = lambda index: make_attention(model, index, segment_length=segment_length).clone(**norms)
    return build_from_settings(
        EncoderDecoder,
        model,
        encoder=build_from_settings(
            memory.MemoryTokenEncoder,
            tokens,
            layers=tuple(encoder_layer() for _ in range(depth)),
            memory_layers=tuple(encoder_layer() for _ in range(num_memory_layers)),
            dim=model.dim,
            init_stddev=_memory_token_stddev(tokens, _input_stddev(model, vocabulary)),
            dtype=common["dtype"],
        ),
        decoder=tuple(DecoderLayer(attention(index), cross(), feed_forward()) for index in range(model.num_layers)),
        vocabulary=vocabulary,
        decoder_reads=tokens.decoder_reads,
        final_norm="layer" if model.norm == "pre" else "",
        dtype=common["dtype"],
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
    """Builds a `TextEncoder` with the given head, or with none, from the settings `model`, whose attention must be
    `Bidirectional`. `features` names inner tensors that it also returns.

    Args:
      model: Configuration of the model, whose attention is `Bidirectional`.
      head: Head of the task (`memjax.tasks`). None = no head.
      vocab_size: Number of entries of the tokenizer.
      features: Inner tensors to return, `layer_<index>/<tap>` or `output`.
      rematerialize: Kind of recomputation. See `make_language_model`.
      table_sharding: Axis of a value table that is split over the mesh axis `model`, 'rows' or 'columns'.
      vocab_multiple: Number that the rows of the vocabulary's tables are a multiple of. See `make_language_model`.

    Raises:
      ValueError: The configuration describes a decoder.
    """
    part = model.attention
    if not isinstance(part, settings.Bidirectional):
        raise ValueError(f"model.attention: given {type(part).__name__}, allowed: Bidirectional in a text encoder")
    dtype = jnp.dtype(model.compute_dtype)
    inner = tuple(name for name in features if name.startswith("layer_"))
    scores = head is not None and head.scores_vocabulary
    vocabulary = Vocabulary(
        vocab_size=vocab_size,
        dim=model.dim,
        tied=not scores or model.output.softmax.tied,
        bias=scores,
        init_stddev=INIT_STDDEV,
        multiple=vocab_multiple,
        dtype=dtype,
    )
    gate = None
    if head is not None and part.gate_dim:
        plain = dataclasses.replace(model, attention=dataclasses.replace(part, gate_dim=0), dropout=0.0)
        options: dict[str, Any] = {"rematerialize": rematerialize, "vocab_multiple": vocab_multiple}
        gate = Gate(model.dim, part.gate_dim, make_text_encoder(plain, None, vocab_size, **options), dtype=dtype)
    return TextEncoder(
        stack=make_stack(model, features=inner, rematerialize=rematerialize, table_sharding=table_sharding),
        vocabulary=vocabulary,
        head=head,
        max_length=part.num_positions,
        num_token_types=part.num_token_types,
        pooler=part.pooler,
        pooling=part.pooling,
        gate=gate,
        weighted_norms=model.weighted_norms,
        norm_epsilon=model.norm_epsilon,
        dropout=model.dropout,
        **memory_fields(model.memory_tokens, input_stddev=1.0),  # the scale of embeddings after a layer norm
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
    """Builds a `Memformer` from its settings `model`, which may also describe one of the paper's ablations, such as no
    memory slots or no encoder.

    Args:
      model: Configuration of the model.
      vocab_size: Number of entries of the tokenizer.
      segment_length: Number of tokens in a segment.
      rematerialize: Kind of recomputation. See `make_language_model`.
      vocab_multiple: Number that the rows of the vocabulary's tables are a multiple of. See `make_language_model`.

    Raises:
      ValueError: The number of heads does not divide the width, or there is no decoder layer.
    """
    dim, num_heads = model.dim, model.num_heads
    settings.require(dim % num_heads == 0, "num_heads", num_heads, f"a divisor of dim = {dim}")
    settings.require(model.num_layers >= 1, "num_layers", model.num_layers, "at least 1")
    dtype, stacked = jnp.dtype(model.compute_dtype), stack_options(model, rematerialize)
    common: dict[str, Any] = {"dropout": model.dropout, "dtype": dtype}
    heads = lambda number: build_from_settings(
        HeadAttention, model, num_heads=number, head_dim=dim // number, dtype=dtype
    )
    feed_forward = lambda: make_dense_feed_forward(model, norm="pre", norm_kind="layer")
    encoder, memory_heads = None, 1 if model.single_memory_head else num_heads
    if model.encoder_layers:
        reader = lambda: heads(memory_heads) if model.num_slots else None
        layer = lambda: MemformerLayer(heads(num_heads), feed_forward(), reader(), **common)
        layers = tuple(layer() for _ in range(model.encoder_layers))
        encoder_options = {"layers": layers, "writer_heads": memory_heads, "dtype": dtype}
        encoder = build_from_settings(memory.MemformerEncoder, model, **encoder_options, **stacked)
    cross = lambda: heads(num_heads) if model.encoder_layers else None
    layer = lambda: MemformerDecoderLayer(heads(num_heads), feed_forward(), cross(), **common)
    return build_from_settings(
        Memformer,
        model,
        encoder=encoder,
        decoder=tuple(layer() for _ in range(model.num_layers)),
        vocabulary=make_vocabulary(model, vocab_size, vocab_multiple),
        segment_length=segment_length,
        **stacked,
        **common,
    )


def make_model(
    config: Config, vocab_size: int, head: TaskHead | None = None, *, vocab_multiple: int | None = None
) -> Model:
    """Builds the Linen model that a run's configuration describes, with the adapters of `training.lora`, or, if it has
    several columns, a progressive network (`Columns`). `head` is the module of a task's head, None for a model whose
    answers are tokens.

    See `make_column` for the arguments.
    """
    number = config.num_columns
    options: dict[str, Any] = {"vocab_multiple": vocab_multiple}
    if number == 1:
        model, lora = make_column(config, vocab_size, head, **options), config.training.lora
        return add_adapters(model, lora, earlier=config.num_earlier_adapters)
    model = config.model
    layers = len(model.widths) if model.reads in ("vectors", "bags") else model.num_layers
    options["features"] = tuple(f"layer_{index:02d}/output" for index in range(layers))
    # Each column gets its own copy of the head: one module used twice would share its parameters.
    copy_head = lambda: head and head.clone()
    columns = tuple(make_column(config, vocab_size, copy_head(), **options) for _ in range(number))
    return Columns(columns, dtype=jnp.dtype(model.compute_dtype))


def make_column(
    config: Config,
    vocab_size: int,
    head: TaskHead | None = None,
    *,
    vocab_multiple: int | None = None,
    features: tuple[str, ...] = (),
) -> Model:
    """Builds one Linen model that a run's configuration describes, never a progressive network. `head` is the module of
    a task's head, None for a model whose answers are tokens.

    This is a language model, a Memformer, an encoder-decoder, or a text encoder, perceptron or BiLSTM with a head.
    `memjax.tasks.Task.model` calls this with the head of the task.

    Args:
      config: Configuration of the run.
      vocab_size: Number of entries of the tokenizer.
      head: Head of a text encoder, a perceptron or a BiLSTM. None = a model whose answers are tokens.
      vocab_multiple: Number that the rows of the vocabulary's tables are a multiple of, instead of the one in the
        configuration. 1 = no padding.
      features: Inner tensors to return. Ignored for an encoder-decoder, a Memformer and a BiLSTM.
    """
    common: Any = {
        "rematerialize": config.training.remat,
        "vocab_multiple": vocab_multiple or config.sharding.pad_vocab_to_multiple,
    }
    tables: Any = {"table_sharding": config.sharding.split_tables_by}
    length = {"segment_length": config.data.segment_length}
    match config.model:
        case settings.EncoderDecoder() as model:
            return make_encoder_decoder(model, vocab_size, **length, vocab_multiple=common["vocab_multiple"])
        case settings.Memformer() as model:
            return make_memformer(model, vocab_size, **length, **common)
        case settings.Perceptron() as model:
            dtype, width = jnp.dtype(model.compute_dtype), (config.data.segment_length, *model.widths)[-1]
            gate = Gate(width, model.gate_dim, initializer=model.initializer, dtype=dtype) if model.gate_dim else None
            return build_from_settings(Perceptron, model, head=head, gate=gate, features=features, dtype=dtype)
        case settings.TokenBag() as model:
            dtype, width = jnp.dtype(model.compute_dtype), (model.buckets, *model.widths)[-1]
            gate = Gate(width, model.gate_dim, initializer=model.initializer, dtype=dtype) if model.gate_dim else None
            options = {"vocabulary": EmptyVocabulary(vocab_size), "gate": gate, "dtype": dtype}
            return build_from_settings(TokenBag, model, head=head, features=features, **options)
        case settings.BiLSTM() as model:
            options = {"vocabulary": EmptyVocabulary(vocab_size), "dtype": jnp.dtype(model.compute_dtype)}
            return build_from_settings(BiLSTM, model, head=head, **options)
        case model if head is not None and model.memory_facts.is_causal:
            options = {"features": features, **length, **tables, **common}
            return make_language_model(model.without_memory(), vocab_size, **options).as_encoder(head)
        case model if head is not None:
            return make_text_encoder(model, head, vocab_size, features=features, **tables, **common)
        case model:
            sharding = config.sharding.split_memory_by
            options = {"features": features, "memory_sharding": sharding}
            return make_language_model(model, vocab_size, **options, **length, **tables, **common)
