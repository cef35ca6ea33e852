"""Every memory under the contract: one `Case` each. A new memory is one more entry of `CASES`."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from memjax import config
from memjax.memory.compressive import CompressiveAttention
from memjax.memory.continuous_cache import ContinuousCacheMemory
from memjax.memory.cross_attention import CrossAttention
from memjax.memory.gpt2 import CompressedSegmentsAttention, GPT2Projector
from memjax.memory.grafted_memories import GraftedCompression, GraftedNeighbors, GraftedSignal
from memjax.memory.infinity_former import InfinityFormerAttention, LongTermMemory
from memjax.memory.knn_lm import KNNMemory
from memjax.memory.linear_transformer import LinearCrossAttention, LinearTransformerAttention
from memjax.memory.lstm import LSTMLayer
from memjax.memory.memformer import HeadAttention, MemformerEncoder, MemformerLayer
from memjax.memory.memorizing import MemorizingAttention
from memjax.memory.memory_tokens import EncoderLayer, MemoryTokenEncoder
from memjax.memory.memsizer import MemSizerAttention
from memjax.memory.product_key import ProductKeyMemory
from memjax.memory.rfa import RFAAttention
from memjax.memory.rotary import RotaryAttention
from memjax.memory.rotary_projector import RotaryProjector
from memjax.memory.spalm import SpalmMemory
from memjax.memory.t2r import T2RAttention
from memjax.memory.transformer_xl import TransformerXLAttention, TransformerXLProjector
from memjax.models.factory import make_language_model
from memjax.models.feed_forward import FeedForwardLayer
from memjax.models.transformer import Layer, Stack
from tests.contract.harness import DIM, LENGTH, SOURCE, Case, Fifo
from tests.contract.outputs import AtOutput
from tests.contract.toys import (
    CrossMemory,
    LinearMemory,
    MeanMemory,
    OutputMemory,
    SlotMemory,
    SoftVocabulary,
    TableFeedForward,
)
from tests.memory.memorizing_parts import memorizing_part

HEADS = {"dim": DIM, "num_heads": 2, "head_dim": 4}
NOISE = {"dropout": 0.2, "attention_dropout": 0.2}
XL_SLOTS = {"hidden": 1}
COMPRESSED_SLOTS = {"hidden": 1, "compressed": 1}
MEMORY_SLOTS = {"memory/keys": 2, "memory/values": 2}
LEFT_IN_RING = dict.fromkeys(MEMORY_SLOTS, "a restart would copy all of a long ring; what is not valid is never read")
SIGNAL = {"coefficients": 1, "previous": 1}
LINEAR_SLOTS = {"products": 2, "normalizer": 2}
CACHE_SLOTS = {"cache/keys": 1, "cache/values": 1}
ROTARY_SLOTS = {"keys": 1, "values": 1}
HOST_SLOTS = {"host/keys": 1, "host/values": 1}


def relative(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of an attention with those of Transformer-XL's projector among them."""
    own = {name: fields.pop(name) for name in ("tied_biases", "clamp_length") if name in fields}
    return {"projector": TransformerXLProjector(**own), **fields}


def transformer_xl(**fields: Any) -> Callable[[Any], TransformerXLAttention]:
    fields = {**HEADS, **NOISE, "memory_length": 8, **relative(fields)}
    return lambda dtype: TransformerXLAttention(**fields, dtype=dtype)


def compressive(**fields: Any) -> Callable[[Any], CompressiveAttention]:
    sizes = {**HEADS, **NOISE, "memory_length": 8, "compressed_memory_length": 4, "compression_rate": 2}
    fields = sizes | relative(fields)
    return lambda dtype: CompressiveAttention(**fields, dtype=dtype)


def memorizing(**fields: Any) -> Callable[[Any], MemorizingAttention]:
    fields = {**HEADS, **NOISE, "memory_length": 8, "num_neighbors": 3, **fields}
    return lambda dtype: memorizing_part(**fields, dtype=dtype)


def infinity_former(host: dict[str, Any] | None = None, **fields: Any) -> Callable[[Any], InfinityFormerAttention]:
    attention = {**HEADS, **NOISE, "memory_length": fields.pop("memory_length", 0), **(host or {})}
    sizes = {"segment_length": LENGTH, "num_basis": 6, "widths": (0.1, 0.2), "num_samples": 5, "num_bins": 4}
    fields = {**HEADS, **sizes, **fields}
    make = lambda dtype: LongTermMemory(**fields, dtype=dtype)
    return lambda dtype: InfinityFormerAttention(**attention, long_term=make(dtype), dtype=dtype)


def memformer(num_layers: int = 2, **fields: Any) -> Callable[[Any], MemformerEncoder]:
    def make(dtype: Any) -> MemformerEncoder:
        heads = lambda: HeadAttention(**HEADS, attention_dropout=0.2, dtype=dtype)
        feed_forward = lambda: FeedForwardLayer(DIM, 12, norm_kind="layer", dropout=0.2, dtype=dtype)
        layer = lambda: MemformerLayer(heads(), feed_forward(), heads(), dropout=0.2, dtype=dtype)
        sizes = {"dim": DIM, "num_slots": 3, "num_heads": 2, "writer_heads": 2, "num_buckets": 8, "max_distance": 6}
        return MemformerEncoder(tuple(layer() for _ in range(num_layers)), **{**sizes, **fields}, dtype=dtype)

    return make


def linear(kind: type = LinearTransformerAttention, **fields: Any) -> Callable[[Any], Any]:
    return lambda dtype: kind(**HEADS, dropout=0.2, **fields, dtype=dtype)


def linear_cross(kind: type = LinearTransformerAttention, **fields: Any) -> Callable[[Any], LinearCrossAttention]:
    return lambda dtype: LinearCrossAttention(linear(kind, **fields)(dtype))


def cross_attention(**fields: Any) -> Callable[[Any], CrossAttention]:
    return lambda dtype: CrossAttention(**HEADS, **NOISE, source_length=SOURCE, **fields, dtype=dtype)


def memory_tokens(own_layers: int = 0, **fields: Any) -> Callable[[Any], MemoryTokenEncoder]:
    """Two layers, and as many of the memory's own."""

    def make(dtype: Any) -> MemoryTokenEncoder:
        layer = lambda: EncoderLayer(
            CrossAttention(**HEADS, **NOISE, norm="post", dtype=dtype),
            FeedForwardLayer(DIM, 12, dropout=0.2, norm="post", norm_kind="layer", dtype=dtype),
        )
        own = tuple(layer() for _ in range(own_layers))
        return MemoryTokenEncoder((layer(), layer()), DIM, own, num_tokens=3, **fields, dtype=dtype)

    return make


def rotary(projector: dict[str, Any] | None = None, **fields: Any) -> Callable[[Any], RotaryAttention]:
    """With one key head for both query heads."""
    host = RotaryProjector(**{"key_heads": 1, **(projector or {})})
    fields = {**HEADS, **NOISE, "memory_length": 8, "projector": host, **fields}
    return lambda dtype: RotaryAttention(**fields, dtype=dtype)


def grafted(graft: Callable[[Any], Any], **fields: Any) -> Callable[[Any], RotaryAttention]:
    """A rotary attention with a memory beside it."""
    return lambda dtype: rotary(**fields)(dtype).clone(graft=graft(dtype))


GRAFT_HEADS = {"num_heads": 2, "key_heads": 1, "head_dim": 4}


def grafted_signal(**fields: Any) -> Callable[[Any], GraftedSignal]:
    sizes = {"segment_length": LENGTH, "num_basis": 6, "widths": (0.1, 0.2), "num_samples": 5, "num_bins": 4}
    return lambda dtype: GraftedSignal(signal=LongTermMemory(**HEADS, **{**sizes, **fields}, dtype=dtype))


GPT2_HOST = {"projector": GPT2Projector(), "norm": "pre"}


def compressed_segments(**fields: Any) -> Callable[[Any], CompressedSegmentsAttention]:
    fields = {**HEADS, **NOISE, "compressed_memory_length": 3, "compression_rate": 2, **fields}
    return lambda dtype: CompressedSegmentsAttention(**fields, dtype=dtype)


def product_key(*, norm: str = "pre", **scales: float) -> Callable[[Any], FeedForwardLayer]:
    # Running statistics of the harness are random, and no variance is negative: queries are normalised by layer.
    memory = ProductKeyMemory(dim=DIM, num_keys=4, num_heads=2, num_neighbors=3, key_dim=8, query_norm="layer")
    return lambda dtype: FeedForwardLayer(DIM, 6, norm=norm, dropout=0.2, dtype=dtype, memory=memory, **scales)


def continuous_cache(**fields: Any) -> Callable[[Any], Any]:
    return lambda dtype: AtOutput(ContinuousCacheMemory(dim=DIM, **{"memory_length": 8, **fields}, dtype=dtype))


def toy(kind: type, **fields: Any) -> Callable[[Any], Any]:
    return lambda dtype: kind(dim=DIM, **fields, dtype=dtype)


def language_model(
    attention: Any, *, num_layers: int, output_memory: Any = None, **fields: Any
) -> Callable[[Any], Any]:
    """The whole model; its vocabulary takes embeddings from outside."""

    def make(dtype: Any) -> Any:
        model = config.Model(
            dim=DIM, num_layers=num_layers, num_heads=2, attention=attention, **{**NOISE, "scan_layers": True, **fields}
        )
        model.compute_dtype = np.dtype(dtype).name  # type: ignore[assignment]
        memory = None if output_memory is None else output_memory(dtype)
        return make_language_model(model, vocab_size=5).clone(
            vocabulary=SoftVocabulary(DIM, dtype), output_memory=memory
        )

    return make


def table_stack(dtype: Any) -> Stack:
    """Two equal layers, one scanned group, with a feed-forward part that reads a row-sparse table."""
    layer = Layer(transformer_xl()(dtype), TableFeedForward(DIM, dtype=dtype))
    return Stack((layer, layer))


def hidden_fifo(state: Any) -> list[Fifo]:
    return [Fifo(np.asarray(state.hidden), np.asarray(state.valid))]


def ring(state: Any) -> Fifo:
    """The ring of a Memorizing Transformer, oldest slot first."""
    memory = state.memory
    keys, values = (np.moveaxis(np.asarray(leaf), 1, 2) for leaf in (memory.keys, memory.values))  # [b, m, h, d]
    contents = np.concatenate([keys, values], axis=-1).reshape(*keys.shape[:2], -1)
    order = (np.asarray(memory.cursor)[:, None] + np.arange(contents.shape[1])[None]) % contents.shape[1]
    positions = np.asarray(memory.positions) if hasattr(memory.positions, "shape") else None
    take = lambda leaf: np.stack([one[slots] for one, slots in zip(np.asarray(leaf), order, strict=True)])
    return Fifo(take(contents), take(memory.valid), None if positions is None else take(positions))


def cache(state: Any) -> Fifo:
    tokens = state.cache
    contents = np.concatenate([np.asarray(tokens.keys), np.asarray(tokens.values)], axis=-1)
    positions = np.asarray(tokens.positions) if hasattr(tokens.positions, "shape") else None
    return Fifo(contents.reshape(*contents.shape[:2], -1), np.asarray(tokens.valid), positions)


def recent_keys(sinks: int = 0) -> Callable[[Any], list[Fifo]]:
    """The keys and values of a rotary attention, without those of sinks."""

    def fifos(state: Any) -> list[Fifo]:
        keys, values, valid = (np.asarray(leaf)[:, sinks:] for leaf in (state.keys, state.values, state.valid))
        return [Fifo(np.concatenate([keys, values], axis=-1).reshape(*valid.shape, -1), valid)]

    return fifos


def ring_after_cache(state: Any) -> list[Fifo]:
    """Where the ring takes what leaves the cache, both together are one long memory."""
    parts = (ring(state), cache(state))
    return [Fifo(*(np.concatenate(leaves, axis=1) for leaves in zip(*(part[:2] for part in parts), strict=True)))]


def layer_of(state: Any, group: int, offset: int | None = None) -> Any:
    """The attention state of one layer of a stack."""
    state = state.groups[group].attention
    return state if offset is None else jax.tree.map(lambda leaf: leaf[offset], state)


MODELS = {
    "transformer_xl": language_model(config.TransformerXL(memory_length=8, tied_biases=True), num_layers=3),
    "rotary": language_model(config.Rotary(memory_length=8, key_heads=1), num_layers=3, scale_embeddings=False),
    "compressive": language_model(
        config.Compressive(memory_length=4, compressed_memory_length=2, compression_rate=2, tied_biases=True),
        num_layers=3,
    ),
    "gpt2": language_model(config.GPT2(num_positions=16), num_layers=2, scale_embeddings=False),
    "memorizing": language_model(
        config.Memorizing(layers_with_memory=(-1,), memory_length=8, num_neighbors=3, cache_length=4),
        num_layers=3,
        output_memory=toy(OutputMemory),
    ),
    "memory_tokens": language_model(
        config.TransformerXL(memory_length=8, tied_biases=True),
        num_layers=2,
        memory_tokens=config.MemoryTokens(num_tokens=2),
    ),
    "memsizer": language_model(config.MemSizer(num_slots=3), num_layers=3, positions="sinusoids"),
    "lstm": language_model(config.LSTM(), num_layers=3),
}

LINEAR = {"stops_gradient": False, "granularity": "token"}

CASES = [
    Case(name="transformer_xl", make=transformer_xl(), capacity=8, fifos=hidden_fifo, slots=XL_SLOTS),
    Case(
        name="transformer_xl_pre_norm",
        is_variant=True,
        make=transformer_xl(norm="pre", memory_length=3, clamp_length=5),
        capacity=3,
        fifos=hidden_fifo,
        slots=XL_SLOTS,
    ),
    Case(
        name="transformer_xl_same_length",
        is_variant=True,
        make=transformer_xl(same_length=True),
        capacity=8,
        fifos=hidden_fifo,
        slots=XL_SLOTS,
        unread={"hidden": {0: "as published, a query sees memory_length keys of which one is its own"}},
    ),
    Case(
        name="transformer_xl_zeros",
        is_variant=True,
        make=transformer_xl(empty_memory="zeros"),
        slots=XL_SLOTS,
        exempt={"capacity": "compatibility: a new document finds a memory full of zeros"},
    ),
    Case(name="compressive", make=compressive(), capacity=8, fifos=hidden_fifo, slots=COMPRESSED_SLOTS),
    Case(
        name="compressive_dilated_auto_encoding",
        is_variant=True,
        make=compressive(
            memory_length=3,
            compressed_memory_length=5,
            compression="dilated",
            dilations=(1, 2),
            compression_loss="auto_encoding",
            compressed_positions="contiguous",
            norm="pre",
            clamp_length=6,
        ),
        capacity=3,
        fifos=hidden_fifo,
        slots=COMPRESSED_SLOTS,
    ),
    Case(
        name="compressive_most_used",
        is_variant=True,
        make=compressive(compression="most_used", norm="pre_sonnet"),
        capacity=8,
        fifos=hidden_fifo,
        slots=COMPRESSED_SLOTS,
    ),
    Case(
        name="compressive_bptt_not_whole_windows",
        is_variant=True,
        make=compressive(compression_rate=3, compression_loss="none"),
        capacity=8,
        fifos=hidden_fifo,
        slots=COMPRESSED_SLOTS,
    ),
    Case(
        name="compressive_zeros",
        is_variant=True,
        make=compressive(compression="mean", loss_reduction="norm", empty_memory="zeros"),
        slots=COMPRESSED_SLOTS,
        exempt={"capacity": "compatibility: a new document finds memories full of zeros"},
    ),
    Case(
        name="memorizing",
        make=memorizing(),
        capacity=8,
        fifos=lambda state: [ring(state)],
        slots=MEMORY_SLOTS,
        left=LEFT_IN_RING,
    ),
    Case(
        name="memorizing_joint_evicted",
        is_variant=True,
        make=memorizing(merge="joint", write_policy="evicted", cache_length=4, query_key_norm=False),
        capacity=12,
        fifos=ring_after_cache,
        slots=MEMORY_SLOTS | CACHE_SLOTS,
        left=LEFT_IN_RING,
    ),
    Case(
        name="memorizing_threshold",
        is_variant=True,
        make=memorizing(retrieval="threshold", memory_length=10, cache_length=6),
        capacity=10,
        fifos=lambda state: [ring(state), cache(state)],
        slots=MEMORY_SLOTS | CACHE_SLOTS,
        left=LEFT_IN_RING,
    ),
    Case(
        name="memorizing_approximate",
        is_variant=True,
        make=memorizing(retrieval="approximate", cache_length=4, track_positions=True, merge="add"),
        capacity=8,
        fifos=lambda state: [ring(state), cache(state)],
        slots=MEMORY_SLOTS | CACHE_SLOTS,
        left=LEFT_IN_RING,
    ),
    Case(
        name="memorizing_window",
        is_variant=True,
        make=memorizing(
            memory_length=3, num_neighbors=2, cache_length=4, local_window=5, merge="joint", retrieval="threshold"
        ),
        capacity=3,
        fifos=lambda state: [ring(state), cache(state)],
        slots=MEMORY_SLOTS | CACHE_SLOTS,
        left=LEFT_IN_RING,
    ),
    Case(
        name="memorizing_meliad",
        is_variant=True,
        make=memorizing(compatibility="meliad", retrieval="bucket", cache_length=4, local_window=4),
        capacity=8,
        fifos=lambda state: [ring(state), cache(state)],
        slots=MEMORY_SLOTS | CACHE_SLOTS,
        left=LEFT_IN_RING,
    ),
    Case(name="full_attention", make=memorizing(memory_length=0)),
    Case(name="rotary", make=rotary(), capacity=8, fifos=recent_keys(), slots=ROTARY_SLOTS),
    Case(
        name="rotary_sinks",
        is_variant=True,
        make=rotary(
            {"key_heads": 2, "frequencies": (1.0,), "bias": True, "query_key_norm": "head"},
            memory_length=5,
            sinks=2,
            same_length=True,
        ),
        capacity=5,
        fifos=recent_keys(sinks=2),
        slots=ROTARY_SLOTS,
        unread={name: {2: "a query sees memory_length keys of which one is its own"} for name in ROTARY_SLOTS},
    ),
    Case(
        name="rotary_norm_of_all_heads",
        is_variant=True,
        make=rotary({"query_key_norm": "all", "output_bias": True}, memory_length=3, sinks=1, norm="post"),
        capacity=3,
        fifos=recent_keys(sinks=1),
        slots=ROTARY_SLOTS,
    ),
    Case(
        name="rotary_memorizing",
        is_variant=True,
        make=grafted(lambda dtype: GraftedNeighbors(**GRAFT_HEADS, memory_length=8, num_neighbors=3), memory_length=5),
        capacity=8,
        fifos=lambda state: [ring(state.graft), *recent_keys()(state.host)],
        slots=HOST_SLOTS | MEMORY_SLOTS,
        left=LEFT_IN_RING,
    ),
    Case(
        name="rotary_memorizing_threshold",
        is_variant=True,
        make=grafted(
            lambda dtype: GraftedNeighbors(
                **GRAFT_HEADS, memory_length=6, num_neighbors=2, retrieval="threshold", gate_kind="sigmoid"
            ),
            memory_length=4,
            sinks=2,
            norm="both",
        ),
        capacity=6,
        fifos=lambda state: [ring(state.graft), *recent_keys(sinks=2)(state.host)],
        slots=HOST_SLOTS | MEMORY_SLOTS,
        left=LEFT_IN_RING,
    ),
    Case(
        name="rotary_compressive",
        is_variant=True,
        make=grafted(
            lambda dtype: GraftedCompression(**GRAFT_HEADS, compressed_memory_length=3, compression_rate=2),
            memory_length=6,
            sinks=1,
        ),
        fixed_length=True,
        capacity=6,
        fifos=lambda state: recent_keys(sinks=1)(state.host),
        slots=HOST_SLOTS | {"graft/keys": 1, "graft/values": 1},
    ),
    Case(
        name="rotary_compressive_without_memory",
        is_variant=True,
        make=grafted(
            lambda dtype: GraftedCompression(
                **GRAFT_HEADS, compressed_memory_length=4, compression_rate=2, compression="max"
            ),
            memory_length=0,
        ),
        fixed_length=True,
        slots={"graft/keys": 1, "graft/values": 1},
    ),
    Case(
        name="rotary_infinity_former",
        is_variant=True,
        make=grafted(grafted_signal(), memory_length=3),
        fixed_length=True,
        capacity=3,
        fifos=lambda state: recent_keys()(state.host),
        slots=HOST_SLOTS | SIGNAL,
    ),
    Case(
        name="rotary_infinity_former_sticky",
        is_variant=True,
        make=grafted(grafted_signal(sticky="sample", reset_after_tokens=20), memory_length=4),
        fixed_length=True,
        capacity=4,
        fifos=lambda state: recent_keys()(state.host),
        slots=HOST_SLOTS | SIGNAL | {"histogram": 1},
    ),
    Case(name="rotary_without_memory", is_variant=True, make=rotary(memory_length=0)),
    Case(name="infinity_former", make=infinity_former(), fixed_length=True, slots=SIGNAL),
    Case(
        name="infinity_former_sticky",
        is_variant=True,
        make=infinity_former(memory_length=4, sticky="sample", jitter_samples=True, reset_after_tokens=20),
        fixed_length=True,
        capacity=4,
        fifos=lambda state: hidden_fifo(state.short),
        slots=SIGNAL | XL_SLOTS | {"histogram": 1},
    ),
    Case(name="gpt2", make=transformer_xl(memory_length=0, **GPT2_HOST)),
    Case(
        name="gpt2_infinity_former",
        is_variant=True,
        make=infinity_former(GPT2_HOST),
        fixed_length=True,
        slots=SIGNAL,
    ),
    Case(
        name="gpt2_compressive",
        is_variant=True,
        make=compressed_segments(),
        fixed_length=True,
        slots={"slots": 1},
    ),
    Case(
        name="memformer",
        make=memformer(scan_layers=True),
        site="stack",
        causal=False,
        stops_gradient=False,
        slots={"slots": 1},
    ),
    Case(
        name="memformer_one_slot",
        is_variant=True,
        make=memformer(
            num_layers=1,
            num_slots=1,
            writer_heads=1,
            temperature=1.0,
            use_forgetting=False,
            num_classification_tokens=0,
        ),
        site="stack",
        causal=False,
        stops_gradient=False,
        slots={"slots": 1},
    ),
    Case(name="linear_transformer", make=linear(chunk_length=3), slots=LINEAR_SLOTS, **LINEAR),
    Case(name="rfa", make=linear(RFAAttention, num_directions=5), slots=LINEAR_SLOTS, **LINEAR),
    Case(
        name="rfa_gate_post_norm",
        is_variant=True,
        make=linear(RFAAttention, num_directions=4, gate=True, norm="post", chunk_length=3),
        slots=LINEAR_SLOTS,
        **LINEAR,
    ),
    Case(name="t2r", make=linear(T2RAttention, num_features=6), slots=LINEAR_SLOTS, **LINEAR),
    Case(
        name="memsizer",
        make=linear(MemSizerAttention, num_slots=3, attention_dropout=0.2),
        slots={"products": 2},
        **LINEAR,
    ),
    Case(
        name="lstm",
        make=lambda dtype: LSTMLayer(DIM, dropout=0.2, dtype=dtype),
        slots={"cell": 1, "hidden": 1},
        **LINEAR,
    ),
    Case(
        name="linear_transformer_cross",
        make=linear_cross(bias=False, norm_kind="rms"),
        site="cross",
        granularity="token",
        slots=LINEAR_SLOTS,
    ),
    Case(
        name="memsizer_cross",
        is_variant=True,
        make=linear_cross(MemSizerAttention, num_slots=3, freeze_slot_keys=True),
        site="cross",
        granularity="token",
        slots={"products": 2},
    ),
    Case(
        name="cross_attention",
        make=cross_attention(),
        site="cross",
        granularity="token",
        slots={"keys": 1, "values": 1},
    ),
    Case(name="memory_tokens", make=memory_tokens(), site="stack", causal=False),
    Case(
        name="memory_bottleneck", is_variant=True, make=memory_tokens(1, kind="bottleneck"), site="stack", causal=False
    ),
    Case(name="product_key", make=product_key(dense_scale=0.0)),
    Case(name="product_key_residual", is_variant=True, make=product_key(norm="post")),
    Case(
        name="continuous_cache",
        make=continuous_cache(),
        site="output",
        granularity="token",
        slots={"hidden": 1},
        unread={"hidden": {3: "the oldest pair goes when the first token completes the pending one"}},
        exempt={"capacity": "padding takes no slot; tests/memory/continuous_cache_test.py has a deque without it"},
        capacity=8,
    ),
    Case(
        name="knn_lm",
        make=lambda dtype: AtOutput(KNNMemory(query_feature="key", dtype=dtype)),
        site="output",
        granularity="token",
    ),
    Case(
        name="spalm",
        make=lambda dtype: AtOutput(
            SpalmMemory(dim=DIM, num_neighbors=3, gate_bias=0.5, neighbor_dropout=0.3, dtype=dtype)
        ),
        site="output",
        granularity="token",
    ),
    Case(
        name="model_transformer_xl",
        is_variant=True,
        make=MODELS["transformer_xl"],
        site="model",
        capacity=8,
        fifos=lambda state: hidden_fifo(layer_of(state.stack, 0, 0)),
        slots=XL_SLOTS,
    ),
    Case(
        name="model_rotary",
        is_variant=True,
        make=MODELS["rotary"],
        site="model",
        capacity=8,
        fifos=lambda state: recent_keys()(layer_of(state.stack, 0, 0)),
        slots=ROTARY_SLOTS,
    ),
    Case(
        name="model_compressive",
        is_variant=True,
        make=MODELS["compressive"],
        site="model",
        capacity=4,
        fifos=lambda state: hidden_fifo(layer_of(state.stack, 0, 0)),
        slots=COMPRESSED_SLOTS,
    ),
    Case(name="model_gpt2", is_variant=True, make=MODELS["gpt2"], site="model"),
    Case(
        name="model_memorizing",
        is_variant=True,
        make=MODELS["memorizing"],
        site="model",
        capacity=4,
        fifos=lambda state: [cache(layer_of(state.stack, 0, 0))],
        slots=MEMORY_SLOTS | CACHE_SLOTS | {"output/hidden": 1},
        left=LEFT_IN_RING,
    ),
    Case(
        name="model_memory_tokens",
        is_variant=True,
        make=MODELS["memory_tokens"],
        site="model",
        capacity=8,
        fifos=lambda state: hidden_fifo(layer_of(state.stack, 0, 0)),
        slots=XL_SLOTS,
    ),
    Case(
        name="model_memsizer", is_variant=True, make=MODELS["memsizer"], site="model", slots={"products": 2}, **LINEAR
    ),
    Case(
        name="model_lstm",
        is_variant=True,
        make=MODELS["lstm"],
        site="model",
        slots={"cell": 1, "hidden": 1},
        **LINEAR,
    ),
    Case(
        name="toy_slots",
        is_variant=True,
        make=toy(SlotMemory),
        site="stack",
        causal=False,
        stops_gradient=False,
        fixed_length=True,
        slots={"slots": 1},
    ),
    Case(
        name="toy_linear",
        is_variant=True,
        make=toy(LinearMemory),
        stops_gradient=False,
        granularity="token",
        slots={"products": 1, "normalizer": 1},
    ),
    Case(name="toy_mean", is_variant=True, make=toy(MeanMemory), stops_gradient=False, slots={"mean": 1}),
    Case(
        name="toy_cross", is_variant=True, make=toy(CrossMemory), site="cross", granularity="token", slots={"slots": 1}
    ),
    Case(
        name="toy_output",
        is_variant=True,
        make=toy(OutputMemory),
        site="output",
        capacity=8,
        fifos=hidden_fifo,
        slots=XL_SLOTS,
    ),
    Case(
        name="toy_tables",
        is_variant=True,
        make=table_stack,
        site="stack",
        capacity=8,
        fifos=lambda state: hidden_fifo(layer_of(state, 0, 0)),
        slots=XL_SLOTS,
    ),
]
