"""Builds the layers of a model from settings: attention with its memory, and the feed-forward part.

Only this module knows which class implements each kind of attention.
"""

import dataclasses
from typing import Any, Literal, TypeVar

import flax.linen as nn
import jax.numpy as jnp

from memjax import config as settings
from memjax import memory
from memjax.axes import MODEL
from memjax.functional import rotary
from memjax.models.feed_forward import FeedForwardLayer, NoFeedForward
from memjax.models.transformer import Layer, Stack


def make_stack(
    model: settings.ModelSettings,
    *,
    segment_length: int = 0,
    features: tuple[str, ...] = (),
    rematerialize: str = "none",
    memory_sharding: str = "heads",
    table_sharding: Literal["rows", "columns"] = "rows",
) -> Stack:
    """Builds the layers of a decoder or a text encoder, a `Stack`, from the settings `model` of the whole model.
    `features` names inner tensors to return. The last three options are names, such as 'per_layer', 'heads' and 'rows'.

    Args:
      model: Configuration of the model.
      segment_length: Number of tokens in a segment. See `make_language_model`.
      features: Inner tensors to return, `layer_<index>/<tap>`.
      rematerialize: Kind of recomputation. See `make_language_model`.
      memory_sharding: Axis of a long memory that is split over the mesh axis `model`, 'heads' or 'slots'.
      table_sharding: Axis of a value table that is split over the mesh axis `model`, 'rows' or 'columns'.
    """
    settings.require(memory_sharding in ("heads", "slots"), "memory_sharding", memory_sharding, "'heads' or 'slots'")
    layers = tuple(
        Layer(
            make_attention(model, index, memory_sharding, segment_length=segment_length),
            _make_feed_forward(model, index, table_sharding),
        )
        for index in range(model.num_layers)
    )
    return Stack(layers, **stack_options(model, rematerialize), features=features, first=model.first_trained_layer)


def stack_options(model: settings.TransformerBase, rematerialize: str) -> dict[str, Any]:
    """Returns the options that scan and rematerialise the layers of a stack."""
    return {"scan_layers": model.scans, "rematerialize": rematerialize in ("per_layer", "segment_nested")}


Built = TypeVar("Built", bound=nn.Module | memory.Projector)


def build_from_settings(kind: type[Built], *parts: settings.Settings, **others: Any) -> Built:
    """Builds an instance of `kind`, the class of a module or a projector, from settings that have fields of the same
    names, and from other fields.

    If several settings have a field, the first one counts.
    """
    names = {field.name for field in dataclasses.fields(kind)}
    for part in parts:
        others = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name in names} | others
    return kind(**others)


def make_attention(
    model: settings.ModelSettings, index: int, memory_sharding: str = "heads", *, segment_length: int = 0
) -> memory.LayerMemory:
    """Builds the attention part, a `LayerMemory`, of the layer with the number `index` from the settings `model`. Only
    Memorizing needs `memory_sharding` ('heads' or 'slots'), only InfinityFormer `segment_length`, and the grafts like
    them.
    """
    common = head_options(model)
    match model.attention:
        case settings.TransformerXL() as part:
            if model.memory_tokens and not model.translates:
                num_tokens = model.memory_tokens.num_tokens
                common |= {"num_tokens": num_tokens}
                return build_from_settings(
                    memory.MemoryTokenXLAttention, part, model, **common, **_relative_projector(part)
                )
            return build_from_settings(
                memory.TransformerXLAttention, part, model, **common, **_relative_projector(part)
            )
        case settings.Compressive() as part:
            return build_from_settings(memory.CompressiveAttention, part, model, **common, **_relative_projector(part))
        case settings.Memorizing() as part:
            return _make_memorizing(model, part, index, memory_sharding)
        case settings.InfinityFormer() as part:
            return _make_infinity_former(model, part, index, segment_length)
        case settings.GPT2() as part:
            if part.compressed_memory_length:
                return build_from_settings(memory.CompressedSegmentsAttention, part, model, **common, **GPT2)
            return build_from_settings(memory.TransformerXLAttention, model, **common, **GPT2, memory_length=0)
        case settings.Rotary() as part:
            return _make_rotary(model, part, index, memory_sharding, segment_length)
        case settings.FullAttention() as part:
            common |= {"projector": build_from_settings(memory.BucketProjector, part), "memory_length": 0}
            return build_from_settings(memory.MemorizingAttention, part, model, **common)
        case settings.Bidirectional():
            return build_from_settings(memory.BidirectionalAttention, model, **common)
        case settings.LinearTransformer() as part:
            return build_from_settings(LINEAR[type(part)], part, model, **common)
        case settings.LSTM():
            last = index == model.num_layers - 1  # the model applies dropout to its output
            return memory.LSTMLayer(model.dim, dropout=0.0 if last else model.dropout, dtype=common["dtype"])
        case settings.Attention() as part:
            return _make_own_attention(model, part, index)
    raise unknown_kind_error("attention", model.attention)


def _make_own_attention(model: settings.ModelSettings, part: settings.Attention, index: int) -> memory.LayerMemory:
    """Makes the attention part of one layer from settings of a user's own.

    Raises:
      ValueError: The settings make something else.
    """
    layer = part.make(model, index)
    if not isinstance(layer, memory.LayerMemory):
        kinds = f"{type(part).__name__}, whose make() returns a {type(layer).__name__}"
        raise ValueError(f"model.attention: given {kinds}, allowed: a memjax.memory.LayerMemory")
    return layer


LINEAR: dict[type[settings.LinearTransformer], type[memory.LinearTransformerAttention]] = {
    settings.LinearTransformer: memory.LinearTransformerAttention,
    settings.RFA: memory.RFAAttention,
    settings.T2R: memory.T2RAttention,
    settings.MemSizer: memory.MemSizerAttention,
}


def head_options(model: settings.ModelSettings) -> dict[str, Any]:
    """Returns the fields of an attention whose values are computed from the model's settings."""
    return {"head_dim": model.head_dim or model.dim // model.num_heads, "dtype": jnp.dtype(model.compute_dtype)}


GPT2: dict[str, Any] = {"projector": memory.GPT2Projector(), "norm": "pre"}
"""Fields of an attention with GPT-2 as its host."""


def _relative_projector(
    part: settings.TransformerXL | settings.Compressive | settings.InfinityFormer,
) -> dict[str, Any]:
    """Returns the field of an attention with Transformer-XL as its host."""
    return {"projector": build_from_settings(memory.TransformerXLProjector, part)}


def _make_rotary(
    model: settings.ModelSettings, part: settings.Rotary, index: int, memory_sharding: str, segment_length: int
) -> memory.LayerMemory:
    """Builds the rotary attention of one layer, with the window and the positions of its kind, and its graft."""
    common = head_options(model)
    window, positions = part.layer_kind(index, model.num_layers)
    frequencies, factor = rotary_frequencies_of(positions, common["head_dim"])
    options: dict[str, Any] = {"frequencies": frequencies, "attention_factor": factor}
    options["norm_offset"] = part.norm_kind == "rms_offset"
    if model.norm_epsilon is not None:
        options["norm_epsilon"] = model.norm_epsilon
    projector = build_from_settings(memory.RotaryProjector, part, **options)
    common |= {"projector": projector, "window": window}
    common["graft"] = None
    if part.graft is not None and _is_chosen(index, part.graft.chosen_layers(model.num_layers), model.num_layers):
        common["graft"] = _make_graft(model, part.graft, projector, memory_sharding, segment_length)
    return build_from_settings(memory.RotaryAttention, part, model, **common)


def _make_graft(
    model: settings.ModelSettings,
    part: settings.Graft,
    projector: memory.Projector,
    memory_sharding: str,
    segment_length: int,
) -> memory.GraftedMemory:
    """Builds the memory that a layer reads beside its rotary attention."""
    common, kind = head_options(model), type(part)
    heads = {"num_heads": model.num_heads, "head_dim": common["head_dim"]}
    gated = {**heads, "key_heads": projector.num_key_heads(model.num_heads)}
    match part:
        case settings.MemorizingGraft():
            slot_axis = MODEL if memory_sharding == "slots" else ""
            return build_from_settings(memory.GraftedNeighbors, part, **gated, slot_axis=slot_axis)
        case settings.CompressiveGraft():
            return build_from_settings(memory.GraftedCompression, part, **gated)
        case settings.InfinityFormerGraft():
            if not segment_length:
                raise ValueError(
                    f"segment_length: given none, allowed: tokens of a segment, for which {kind.__name__} is made"
                )
            common |= {"reset_after_tokens": part.reset_after_tokens or None, "zero_output": True, "init_stddev": 0.02}
            signal = {**heads, **common, "dim": model.dim, "segment_length": segment_length}
            return memory.GraftedSignal(build_from_settings(memory.LongTermMemory, part, **signal))
    allowed = "one of memjax.config.GraftKind"
    raise ValueError(f"model.attention.graft: given {kind.__name__}, allowed: {allowed}")


def rotary_frequencies_of(positions: settings.RotaryPositions | None, head_dim: int) -> tuple[tuple[float, ...], float]:
    """Returns the frequencies of rotary positions for heads of `head_dim` entries, in radians for each token, and the
    factor of rotated queries and keys. No frequencies for None.

    Raises:
      ValueError: The settings are of another class.
    """
    if positions is None:
        return (), 1.0
    plain, factor = rotary.rotary_frequencies(positions.width(head_dim), positions.theta), 1.0
    match positions:
        case settings.LinearPositions() as part:
            plain = rotary.interpolate_linearly(plain, part.factor)
        case settings.Llama3Positions() as part:
            plain = rotary.interpolate_llama3(
                plain,
                factor=part.factor,
                low_frequency_factor=part.low_frequency_factor,
                high_frequency_factor=part.high_frequency_factor,
                original_length=part.original_length,
            )
        case settings.YarnPositions() as part:
            plain = rotary.interpolate_yarn(
                plain,
                factor=part.factor,
                original_length=part.original_length,
                theta=part.theta,
                fast_periods=part.fast_periods,
                slow_periods=part.slow_periods,
                whole_pairs=part.whole_pairs,
            )
            factor = (
                rotary.yarn_attention_factor(part.factor) if part.attention_factor is None else part.attention_factor
            )
        case settings.LongRopePositions() as part:
            plain, factor = rotary.interpolate_longrope(plain, part.divisors), part.attention_factor
        case _ if type(positions) is not settings.RotaryPositions:
            allowed = "one of memjax.config.RotaryPositionsKind"
            raise ValueError(f"model.attention.rotary: given {type(positions).__name__}, allowed: {allowed}")
    return tuple(map(float, plain)), factor


def unknown_kind_error(site: str, part: object) -> ValueError:
    """Returns the error for settings that are none of the kinds allowed at a site of the model."""
    allowed = f"one of memjax.config.{site.title()}Kind"
    return ValueError(f"model.{site}: given {type(part).__name__}, allowed: {allowed}")


def _make_memorizing(
    model: settings.ModelSettings, part: settings.Memorizing, index: int, memory_sharding: str
) -> memory.LayerMemory:
    """Builds the attention part of one layer of a Memorizing Transformer, with or without the long memory."""
    chosen = _is_chosen(index, part.chosen_layers(model.num_layers), model.num_layers)
    has_memory = chosen and part.memory_length > 0
    part = part.resolve(has_memory=has_memory)
    options = head_options(model) | {"projector": build_from_settings(memory.BucketProjector, part)}
    options |= {"sees_itself": part.sees_itself, "empty_memory": part.empty_memory}
    if not has_memory:  # with equal fields, neighbouring layers share one scanned group
        options |= {"memory_length": 0, "num_neighbors": 1, "track_positions": False}
    elif memory_sharding == "slots":
        options |= {"slot_axis": MODEL}
    return build_from_settings(memory.MemorizingAttention, part, model, **options)


def _make_infinity_former(
    model: settings.ModelSettings, part: settings.InfinityFormer, index: int, segment_length: int
) -> memory.LayerMemory:
    """Builds the attention part of one InfinityFormer layer, with or without the long-term memory."""
    common, is_xl = head_options(model), part.base_attention == "transformer_xl"
    host = _relative_projector(part) if is_xl else {**GPT2, "memory_length": 0}
    if not _is_chosen(index, part.layers_with_memory, model.num_layers) or not part.num_basis:
        return build_from_settings(memory.TransformerXLAttention, part, model, **common, **host)
    if not segment_length:
        raise ValueError("segment_length: given none, allowed: tokens of a segment, for which InfinityFormer is made")
    long_term_options = {"reset_after_tokens": part.reset_after_tokens or None, "init_stddev": part.init_stddev}
    long_term = build_from_settings(
        memory.LongTermMemory, part, model, **common, **long_term_options, segment_length=segment_length
    )
    return build_from_settings(memory.InfinityFormerAttention, part, model, **common, **host, long_term=long_term)


def make_dense_feed_forward(model: settings.TransformerBase, **fields: Any) -> FeedForwardLayer:
    """Builds a feed-forward part with the width, activation and dropout of the settings."""
    part, dtype = model.feed_forward, jnp.dtype(model.compute_dtype)
    common = {"activation": part.activation, "bias": part.bias, "dropout": model.dropout, "dtype": dtype}
    return FeedForwardLayer(model.dim, part.dim or 4 * model.dim, **common, **fields)


def _make_feed_forward(
    model: settings.ModelSettings, index: int, table_sharding: Literal["rows", "columns"]
) -> memory.StatelessMemory:
    """Builds the feed-forward part of one layer, with a product-key memory where the settings ask for it."""
    attention, part = model.attention, model.feed_forward
    if not attention.has_feed_forward:
        return NoFeedForward()
    fields: dict[str, Any] = {"norm": attention.norm_place, "norm_kind": attention.norm_kind}
    fields |= {"hidden_dropout": attention.hidden_dropout, "init_stddev": attention.init_stddev}
    fields |= {name: getattr(model, name) for name in ("weighted_norms", "norm_epsilon", "residual_scale")}
    if isinstance(part, settings.ProductKey) and _is_chosen(
        index, part.chosen_layers(model.num_layers), model.num_layers
    ):
        fields["dense_scale"] = part.dense_scale
        if part.memory_scale:
            memory_options = {"dim": model.dim, "num_heads": part.memory_heads, "split": table_sharding}
            memory_options["zero_values"] = part.zero_values
            fields |= {
                "memory_scale": part.memory_scale,
                "memory": build_from_settings(memory.ProductKeyMemory, part, **memory_options),
            }
    return make_dense_feed_forward(model, **fields)


def _is_chosen(index: int, layers: tuple[int, ...], num_layers: int) -> bool:
    """Returns whether a layer is among `layers`. Negative numbers count from the end. () = all layers."""
    return not layers or index in {layer % num_layers for layer in layers}
