"""Law *alive*: with its initial parameters, at a real width, a memory is able to speak.

The laws of the contract ask whether a memory computes the right thing; this one whether a model could learn to use it.
Six segments of random tokens go through a small model with the initialisers of the library; the figures that its memory
reports of the last one lie within the ranges of `memjax.inspection.figures`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inspection import FIGURES, find_figures
from memjax.memory.continuous_cache import ContinuousCacheMemory
from memjax.memory.knn_lm import KNNMemory
from memjax.models import add_mixtures, make_language_model, make_memformer
from memjax.models.factory import make_encoder_decoder, make_text_encoder

DIM, LENGTH, ROWS, SEGMENTS, VOCAB = 64, 32, 4, 6, 100


@dataclasses.dataclass(frozen=True)
class Alive:
    """A model and what its memory has to show.

    Attributes:
      figures: names in `FIGURES`.
      make: the model, with initialisers as shipped.
      extras: of a batch, drawn by the generator.
      inputs: of a segment, drawn by the generator; random tokens unless given.
      is_variant: its memory has another row, in another model: left to `make test-laws`.
    """

    figures: tuple[str, ...]
    make: Callable[[], Any]
    extras: Callable[[np.random.Generator], Mapping[str, Any]] = lambda random: {}
    inputs: Callable[[np.random.Generator], Any] = lambda random: random.integers(VOCAB, size=(ROWS, LENGTH))
    is_variant: bool = False


def decoder(attention: Any, **fields: Any) -> Callable[[], Any]:
    """A language model of two layers."""
    model = config.Model(dim=DIM, num_layers=2, num_heads=4, attention=attention, **fields)
    return lambda: make_language_model(model, VOCAB, segment_length=LENGTH)


def translator(**fields: Any) -> Callable[[], Any]:
    """A translation model of two layers each."""
    return lambda: make_encoder_decoder(config.EncoderDecoder(dim=DIM, num_layers=2, num_heads=4, **fields), VOCAB)


def text_encoder(**fields: Any) -> Callable[[], Any]:
    """A text encoder of two layers, without a head."""
    model = config.Model(dim=DIM, num_layers=2, num_heads=4, attention=config.Bidirectional(), **fields)
    return lambda: make_text_encoder(model, None, VOCAB)


def memformer(**fields: Any) -> Callable[[], Any]:
    """An encoder of two layers with 64 slots, and a decoder of one."""
    model = config.Memformer(dim=DIM, num_layers=1, num_heads=4, encoder_layers=2, num_slots=64, **fields)
    return lambda: make_memformer(model, VOCAB, segment_length=LENGTH)


def mixed(memory: Any) -> Callable[[], Any]:
    """A language model with a memory laid over it."""
    plain = decoder(config.TransformerXL(memory_length=64))
    return lambda: add_mixtures(plain(), memory)


def distances_of_normed_keys(random: np.random.Generator) -> Mapping[str, Any]:
    """The nearest 32 of 10,000 keys as long as last hidden states are, of each position."""
    cosines = np.sort(random.normal(size=(ROWS * LENGTH, 10_000)) * DIM**-0.5)[:, :-33:-1]
    values = random.integers(VOCAB, size=(ROWS, LENGTH, 32))
    return {"knn_distances": (2 * DIM * (1 - cosines)).reshape(values.shape).astype(np.float32), "knn_values": values}


DENSITIES = ("infinity_former/stddev", "infinity_former/inside")
SIGNAL = {"num_basis": 64, "num_samples": 64}
USED = ("product_key/used", "product_key/divergence")
ALIVE = {
    "infinity_former": Alive(
        (*DENSITIES, "infinity_former/sticky_evenness"),
        decoder(config.InfinityFormer(**SIGNAL, memory_length=32, sticky="quantile")),
    ),
    "gpt2_infinity_former": Alive(
        DENSITIES, decoder(config.InfinityFormer(**SIGNAL, base_attention="gpt2")), is_variant=True
    ),
    "memory_tokens_encoder_decoder": Alive(
        ("memory_tokens/cosine",),
        translator(memory_tokens=config.MemoryTokens(num_tokens=10, kind="bottleneck")),
        lambda random: {
            "source": random.integers(VOCAB, size=(ROWS, LENGTH)),
            "source_mask": np.ones((ROWS, LENGTH), bool),
        },
        is_variant=True,
    ),
    "memory_tokens_text_encoder": Alive(("memory_tokens/cosine",), text_encoder(memory_tokens=config.MemoryTokens())),
    "memory_tokens_transformer_xl": Alive(
        ("memory_tokens/cosine",),
        decoder(config.TransformerXL(memory_length=32), memory_tokens=config.MemoryTokens()),
        is_variant=True,
    ),
    "transformer_xl": Alive(("transformer_xl/memory_share",), decoder(config.TransformerXL(memory_length=64))),
    "rotary": Alive(("rotary/memory_share",), decoder(config.Rotary(memory_length=64))),
    "spalm": Alive(
        ("spalm/added_length", "output_memory/gate", "spalm/target_among"),
        decoder(config.TransformerXL(memory_length=64), output=config.Spalm(softmax=config.Softmax())),
        lambda random: {"neighbor_values": random.integers(VOCAB, size=(ROWS, LENGTH, 4))},
    ),
    "knn_lm": Alive(
        ("knn_lm/effective_neighbors",),
        mixed(KNNMemory(num_neighbors=32, temperature=8.0, query_feature="output_normed")),
        distances_of_normed_keys,
    ),
    "continuous_cache": Alive(
        ("continuous_cache/effective_pairs",), mixed(ContinuousCacheMemory(dim=DIM, memory_length=64))
    ),
    "compressive": Alive(
        ("compressive/memory_share", "compressive/compressed_share"),
        decoder(config.Compressive(memory_length=32, compressed_memory_length=32)),
    ),
    "gpt2_compressive": Alive(
        ("compressive/compressed_share",),
        decoder(config.GPT2(compressed_memory_length=32), scale_embeddings=False),
        is_variant=True,
    ),
    "memformer": Alive(
        tuple(
            f"memformer/{name}" for name in ("retaining", "aggregating", "rewriting", "slot_cosine", "effective_slots")
        ),
        memformer(),
    ),
    "memorizing": Alive(
        ("memorizing/memory_share",),
        decoder(config.Memorizing(layers_with_memory=(), memory_length=128, num_neighbors=8, cache_length=32)),
    ),
    "linear_transformer": Alive(("linear_state/effective_rank",), decoder(config.LinearTransformer())),
    "rfa": Alive(("linear_state/effective_rank",), decoder(config.RFA())),
    "t2r": Alive(("linear_state/effective_rank",), decoder(config.T2R())),
    "memsizer": Alive(("memsizer/effective_rank",), decoder(config.MemSizer())),
    "product_keys": Alive(USED, decoder(config.FullAttention(), feed_forward=config.ProductKey(num_keys=128))),
    "resm": Alive(
        USED,
        decoder(config.FullAttention(), feed_forward=config.ProductKey(num_keys=128, dense_scale=1.0, layers=())),
        is_variant=True,
    ),
}


def figures_of(row: Alive) -> dict[str, Any]:
    """What the memory reports of the last segment."""
    model, random = row.make(), np.random.default_rng(0)
    segment = lambda: (row.inputs(random), dict(row.extras(random)))
    inputs, extras = segment()
    named = {"start_of_document": jnp.zeros(ROWS, bool)} | ({"extras": extras} if extras else {})
    variables = jax.jit(model.init)(jax.random.key(0), inputs, model.init_state(ROWS), **named)

    @jax.jit
    def step(state: Any, inputs: Any, extras: Any) -> Any:
        given = named | ({"extras": extras} if extras else {})
        _, state, aux = model.apply(variables, inputs, state, **given)
        return state, {name: value.mean() for name, value in aux.metrics.items()}

    state, metrics = model.init_state(ROWS), {}
    for _ in range(SEGMENTS):
        state, metrics = step(state, *segment())
    return find_figures(jax.tree.map(float, metrics))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.laws] if row.is_variant else []) for name, row in ALIVE.items()]
)
def test_a_memory_is_alive_at_initialisation(name):
    row = ALIVE[name]
    found = figures_of(row)
    assert set(row.figures) <= set(found)
    for figure in row.figures:
        low, high = FIGURES[figure].low, FIGURES[figure].high
        assert low <= found[figure].least and found[figure].most <= high, (figure, found[figure], (low, high))


def test_every_figure_has_a_memory_that_shows_it():
    assert {figure for row in ALIVE.values() for figure in row.figures} == set(FIGURES)
