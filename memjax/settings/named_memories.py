"""Memories of language models by name: what each keeps, and settings of it that fit the sizes of a config.

config = with_memory_kind(config, "memorizing")  # memjax train --memory-kind memorizing
config.model.attention = make_memory_settings("compressive", memory_length=32, compressed_memory_length=32)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memjax.settings.attention import GPT2, LSTM, RFA, T2R, LinearTransformer, MemSizer, TransformerXL
from memjax.settings.attention_bases import Attention
from memjax.settings.evaluation import ContinuousCache
from memjax.settings.feed_forward import Dense, ProductKey, ProductKeyGraft
from memjax.settings.grafts import CompressiveGraft, InfinityFormerGraft, MemorizingGraft
from memjax.settings.long_memory import Compressive, InfinityFormer, Memorizing
from memjax.settings.model import Memformer, MemoryTokens, ModelSettings
from memjax.settings.named_kinds import NamedKind, NamedKinds, Values
from memjax.settings.output import Spalm
from memjax.settings.overrides import UsageError
from memjax.settings.rotary import Rotary

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["MEMORIES", "NamedMemory", "make_memory_settings", "with_memory_kind"]

PRE_NORM: Values = {"norm": "pre"}  # trains at a higher rate than the published place of the norms
NO_MEMORY: Values = {**PRE_NORM, "memory_length": 0}


def _put_attention(config: Config, attention: Any) -> Config:
    """Returns the config with another attention of its model."""
    return replace(config, model=replace(config.model, attention=attention))


def _put_graft(config: Config, graft: Any) -> Config:
    """Returns the config with a further memory beside the rotary attention of its model."""
    return _put_attention(config, replace(config.model.attention, graft=graft))


def _put_short_memory(config: Config, rotary: Any) -> Config:
    """Returns the config with the length of the memory of `rotary` in its own rotary attention."""
    return _put_attention(config, config.model.attention.with_memory(rotary.memory_length))


def _put_memory_tokens(config: Config, tokens: Any) -> Config:
    """Returns the config with memory tokens before every segment of a Transformer-XL."""
    slots = 2 * (config.data.segment_length + tokens.num_tokens)
    attention = make_memory_settings("transformer_xl", memory_length=slots)
    return replace(config, model=replace(config.model, attention=attention, memory_tokens=tokens))


def _put_feed_forward(config: Config, feed_forward: Any) -> Config:
    """Returns the config with another feed-forward part of its model."""
    return replace(config, model=replace(config.model, feed_forward=feed_forward))


def _put_output(config: Config, output: Any) -> Config:
    """Returns the config with a memory at the output of its model."""
    return replace(config, model=replace(config.model, output=replace(output, softmax=config.model.output)))


def _put_cache(config: Config, cache: Any) -> Config:
    """Returns the config with a continuous cache in its evaluations."""
    add = lambda evaluation: replace(evaluation, cache=cache)
    return replace(config, evaluation=add(config.evaluation), evaluations=tuple(map(add, config.evaluations)))


def _put_model(config: Config, model: Any) -> Config:
    """Returns the config with another model, whose segments are computed again for their gradients."""
    return replace(config, model=model, training=replace(config.training, remat="segment"))


def _learn_across_segments(config: Config) -> Config:
    """Returns the config with updates of up to four segments, and as many tokens as before, for a memory through whose
    state gradients flow.
    """
    data, training = config.data, config.training
    segments = max(training.segments_per_update, min(4, data.batch_size))
    rows = max(1, data.batch_size * training.segments_per_update // segments)
    training = replace(training, segments_per_update=segments)
    return replace(config, training=training, data=replace(data, batch_size=rows))


def _learn_sums(config: Config) -> Config:
    """Returns the config for a linear attention, which has no positions of its own."""
    config = _learn_across_segments(config)
    return replace(config, model=replace(config.model, positions="sinusoids"))


def _memformer_sizes(config: Config) -> Values:
    """Returns the sizes of a Memformer whose encoder and decoder have the layers of the model together."""
    model = config.model
    names = ("dim", "num_heads", "dropout", "attention_dropout", "scan_layers", "compute_dtype", "output")
    values = {name: getattr(model, name) for name in (*names, "feed_forward")}
    return {**values, "encoder_layers": 1, "num_layers": max(model.num_layers - 1, 1)}


def _segments(**lengths: int) -> Callable[[Config], Values]:
    """Returns a function from a config to values that are multiples of its segment length."""
    return lambda config: {name: count * config.data.segment_length for name, count in lengths.items()}


def _feed_forward_values(*names: str) -> Callable[[Config], Values]:
    """Returns a function from a config to fields of the feed-forward part of its model."""
    return lambda config: {name: getattr(config.model.feed_forward, name) for name in names}


def _memorizing_graft_sizes(config: Config) -> Values:
    slots = 16 * config.data.segment_length
    return {"memory_length": slots, "num_neighbors": min(32, slots)}


def _compressive_graft_sizes(config: Config) -> Values:
    length, slots = config.data.segment_length, config.model.attention.memory_length
    rate = next(rate for rate in (4, 3, 2, 1) if length % rate == slots % rate == 0)
    return {"compressed_memory_length": length, "compression_rate": rate}


def _signal_graft_sizes(config: Config) -> Values:
    return dict.fromkeys(("num_basis", "num_samples"), min(512, 2 * config.data.segment_length))


def _gpt2_sizes(config: Config) -> Values:
    length = config.data.segment_length
    rate = next(rate for rate in (4, 3, 2, 1) if length % rate == 0)
    return {**_gpt2_positions(config), "compressed_memory_length": length, "compression_rate": rate}


def _gpt2_positions(config: Config) -> Values:
    return {"num_positions": max(config.data.segment_length, config.evaluation.segment_length)}


@dataclass(frozen=True)
class NamedMemory(NamedKind):
    """A memory of a language model that has a name.

    Attributes:
      forgets: Whether old contents fade or are overwritten. Other memories should begin anew with every document.
      commands: Commands before or after the training that the memory needs. '' for none.
      of_rotary: Memory of the same name for a model with rotary attention, which keeps that attention. None for the
        same memory.
    """

    put: Callable[[Config, Any], Config] = field(default=_put_attention, kw_only=True)
    forgets: bool = True
    commands: str = ""
    of_rotary: NamedMemory | None = field(default=None, kw_only=True)

    def for_config(self, config: Config | None) -> NamedMemory:
        """Returns the memory that the name stands for with a config: `of_rotary` with a model of rotary attention."""
        is_rotary = config is not None and _has_rotary_attention(config)
        return self.of_rotary if is_rotary and self.of_rotary else self

    @property
    def keeps_rotary_attention(self) -> bool:
        """Whether a model with rotary attention keeps it and gets the memory besides."""
        return self.of_rotary is not None or self.put in (_put_feed_forward, _put_cache, _put_output)


def _has_rotary_attention(config: Config) -> bool:
    model = config.model
    return isinstance(model, ModelSettings) and isinstance(model.attention, Rotary)


def _without_memory(config: Config, name: str) -> Config:
    """Returns a copy of the config of a language model without any memory, with the same width, layers and rows. Where
    the memory `name` stands beside rotary attention, the model keeps that attention with its own short memory.

    Raises:
      UsageError: The task has no documents, or the memory would replace the attention of a trained model.
    """
    model, task = config.model, config.task
    reads_documents = model.reads == "tokens" and not model.translates and model.memory_facts.is_causal
    if not reads_documents or task.is_generative or task.fixed_length_examples:
        reads = type(config.task).__name__
        raise UsageError(
            f"--memory-kind: given {name} with {config.name}, whose task {reads} has no documents of several segments, "
            "allowed: a config of a language model, such as own_text"
        )
    training, batches = config.training, config.data
    if isinstance(model, Memformer):
        names = ("dim", "num_heads", "dropout", "attention_dropout", "scan_layers", "compute_dtype", "output")
        values = {name: getattr(model, name) for name in (*names, "feed_forward")}
        rows, layers = batches.batch_size * training.segments_per_update, model.encoder_layers + model.num_layers
        model, batches = ModelSettings(**values, num_layers=layers), replace(batches, batch_size=rows)
        training = replace(training, segments_per_update=1, remat="none")
    dense = model.feed_forward
    if dense.has_memory:
        dense = Dense(dim=dense.dim, activation=dense.activation, bias=dense.bias)
    attention, output = TransformerXL(**NO_MEMORY), model.output.softmax
    if _has_rotary_attention(config):
        beside = [other for other, entry in _ENTRIES.items() if entry.keeps_rotary_attention]
        if MEMORIES.find(name).keeps_rotary_attention:
            attention = replace(model.attention, graft=None)
        elif training.init_from:
            where = f"{training.init_from}, whose model has rotary attention"
            raise UsageError(f"--memory-kind: given {name} with {where}, allowed: {', '.join(beside)}")
    model = replace(model, attention=attention, positions="none", memory_tokens=None, feed_forward=dense, output=output)
    return _put_cache(replace(config, model=model, training=training, data=batches), ContinuousCache())


_ENTRIES = {
    "none": NamedMemory(
        "every segment alone, without a memory",
        TransformerXL,
        NO_MEMORY,
        of_rotary=NamedMemory("", Rotary, {"memory_length": 0}, put=_put_short_memory),
    ),
    "transformer_xl": NamedMemory(
        "hidden states of the last tokens, in every layer", TransformerXL, PRE_NORM, _segments(memory_length=2)
    ),
    "rotary": NamedMemory(
        "keys and values of the last tokens, with the rotary positions of Llama, in every layer",
        Rotary,
        {},
        _segments(memory_length=2),
        of_rotary=NamedMemory("", Rotary, {}, _segments(memory_length=2), put=_put_short_memory),
    ),
    "compressive": NamedMemory(
        "hidden states of the last tokens, and older ones compressed, in every layer",
        Compressive,
        PRE_NORM,
        _segments(memory_length=1, compressed_memory_length=1),
        of_rotary=NamedMemory("", CompressiveGraft, {}, _compressive_graft_sizes, put=_put_graft),
    ),
    "memorizing": NamedMemory(
        "keys and values of many tokens, of which the last layer retrieves the nearest",
        Memorizing,
        {"layers_with_memory": (-1,), "num_neighbors": 16, "scale_init": 10.0},
        _segments(memory_length=16, cache_length=1),
        of_rotary=NamedMemory("", MemorizingGraft, {}, _memorizing_graft_sizes, put=_put_graft),
    ),
    "infinity_former": NamedMemory(
        "a continuous signal of the whole past beside the hidden states of the last tokens, in every layer",
        InfinityFormer,
        {**PRE_NORM, "kl_weight": 1e-5},
        _segments(memory_length=1, num_basis=2, num_samples=2),
        of_rotary=NamedMemory("", InfinityFormerGraft, {}, _signal_graft_sizes, put=_put_graft),
    ),
    "memformer": NamedMemory(
        "slots that an encoder reads and rewrites after every segment",
        Memformer,
        {"num_slots": 64},
        _memformer_sizes,
        _learn_across_segments,
        put=_put_model,
    ),
    "memory_tokens": NamedMemory(
        "learned rows before every segment, which all layers read and write, in a Transformer-XL",
        MemoryTokens,
        {},
        lambda config: {"num_tokens": max(2, config.data.segment_length // 8)},
        put=_put_memory_tokens,
    ),
    "linear_transformer": NamedMemory(
        "sums of linear attention over all earlier tokens", LinearTransformer, {}, prepare=_learn_sums, forgets=False
    ),
    "rfa": NamedMemory(
        "sums of random features of all earlier tokens, with a gate that lets them decay",
        RFA,
        {"num_directions": 32, "gate": True},
        prepare=_learn_sums,
    ),
    "t2r": NamedMemory("sums of learned features of all earlier tokens", T2R, {}, prepare=_learn_sums, forgets=False),
    "memsizer": NamedMemory(
        "sums in a few slots that all heads share", MemSizer, {"num_slots": 32}, prepare=_learn_sums, forgets=False
    ),
    "lstm": NamedMemory("cells of LSTM layers in place of attention", LSTM, {}, prepare=_learn_across_segments),
    "gpt2_compressive": NamedMemory("a compressed memory of earlier segments in a GPT-2", GPT2, {}, _gpt2_sizes),
    "gpt2_infinity_former": NamedMemory(
        "a continuous signal of the whole past in a GPT-2",
        InfinityFormer,
        {"base_attention": "gpt2", "kl_weight": 1e-5},
        lambda config: {**_gpt2_positions(config), **_segments(num_basis=2, num_samples=2)(config)},
    ),
    "product_key": NamedMemory(
        "a large table of learned values in a layer, of which every token reads a few; parameters, not a state",
        ProductKey,
        {"num_keys": 128, "num_neighbors": 16, "key_dim": 64},
        _feed_forward_values("activation"),
        put=_put_feed_forward,
        of_rotary=NamedMemory(
            "",
            ProductKeyGraft,
            {"num_keys": 128, "num_neighbors": 16, "key_dim": 64},
            _feed_forward_values("dim", "activation", "bias"),
            put=_put_feed_forward,
        ),
    ),
    "continuous_cache": NamedMemory(
        "a model without memory; evaluation and generation add a cache of the last tokens and their hidden states",
        ContinuousCache,
        {},
        _segments(memory_length=16),
        put=_put_cache,
    ),
    "knn_lm": NamedMemory(
        "a model without memory; a datastore of its training text is added afterwards",
        TransformerXL,
        NO_MEMORY,
        commands="the datastore is made afterwards by memjax datastore build --run RUN --path STORE, and read by "
        "memjax eval and generate --run RUN --datastore STORE",
        of_rotary=NamedMemory("", Rotary, {}, put=lambda config, _: config),
    ),
    "spalm": NamedMemory(
        "the tokens that followed similar contexts of the training text, found before the training",
        Spalm,
        {"num_neighbors": 4, "gate_bias": 2.0},
        put=_put_output,
        commands="its neighbours are found before by memjax train --text PATH --memory-kind none; memjax datastore "
        "build --run RUN --path STORE --key output_normed; memjax datastore neighbors --run RUN --path STORE "
        "--backend exact --to DIR --split train, and the same for validation and test",
    ),
}
MEMORIES = NamedKinds(
    _ENTRIES,
    option="--memory-kind",
    about="Memories of a language model, by name.",
    usage="name of the memory that takes the place of the config's",
    without=_without_memory,
    make_entry=NamedMemory,
    base=Attention,
    aliases={"linear": "linear_transformer"},
)
"""name of a memory, as `--memory-kind` takes it -> the memory"""
make_memory_settings, with_memory_kind = MEMORIES.make_settings, MEMORIES.replace_in
