"""Attention by the age of what is read: what each token gets, whichever memory holds it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inspection.attention_ages import AttentionAges, attention_by_age, read_with_attention
from memjax.memory.compressive import CompressiveAttention
from memjax.memory.layer_parts import (
    AGES,
    COMPRESSED,
    RETRIEVED,
    ROW,
    SEGMENT,
    SHORT,
    SOURCES,
    VISIBLE,
    WEIGHTS,
    TrackedKeys,
)
from memjax.models.factory import make_language_model
from memjax.typing import Batch
from tests.memory.memorizing_parts import memorizing_part
from tests.reference.parameters import params_of

ROWS, LENGTH, VOCAB, SEGMENTS, MEMORY = 2, 4, 7, 4, 3


def segments():
    tokens = np.random.default_rng(0).integers(0, VOCAB, (SEGMENTS, ROWS, LENGTH)).astype(np.int32)
    real = np.ones((ROWS, LENGTH), bool)
    starts = np.zeros((SEGMENTS, ROWS), bool)
    starts[0] = starts[2, 1] = True
    made = [Batch(ids, ids, real, real.astype(np.float32), begin) for ids, begin in zip(tokens, starts, strict=True)]
    return jax.tree.map(jnp.asarray, made)


def started(**fields):
    described = config.Model(dim=8, num_layers=1, num_heads=2, scan_layers=False, **fields)
    model = make_language_model(described, VOCAB, segment_length=LENGTH)
    given = segments()[0].inputs, model.init_state(ROWS)
    params = params_of(model, *given, start_of_document=jnp.ones(ROWS, bool), dtype=np.float32)
    return model, {"params": jax.tree.map(jnp.asarray, params)}


@pytest.fixture(scope="module")
def short():
    return started(attention=config.TransformerXL(memory_length=MEMORY))


def test_mass_by_age_sums_to_the_share_that_the_memory_reports(short):
    model, variables = short
    found = attention_by_age(model, variables, segments(), skip=1)
    assert found.layers == (0,) and found.tokens == (SEGMENTS - 1) * ROWS * LENGTH
    np.testing.assert_allclose(found.mass.sum(), 1, atol=1e-6)
    state, shares, apply = model.init_state(ROWS), [], jax.jit(model.apply)
    for batch in segments():
        given = {"start_of_document": jnp.asarray(batch.start_of_document)}
        _, state, aux = apply(variables, jnp.asarray(batch.inputs), state, **given)
        shares.append(aux.metrics["layer_00/transformer_xl/memory_share"].mean())
    np.testing.assert_allclose(found.memory_share(), np.mean(shares[1:]), rtol=1e-5)
    used = found.mass[0] > 0
    assert np.flatnonzero(used[SHORT]).tolist() == [1, 2, 3, 4, 5, 6]  # a slot of age 1 to 3, and 0 to 3 tokens
    assert np.flatnonzero(used[SEGMENT]).tolist() == [0, 1, 2, 3] and not used[[ROW, COMPRESSED, RETRIEVED]].any()


def test_ages_by_hand(short):
    model, variables = short
    _, (batch, layers) = list(read_with_attention(model, variables, segments()))[:2]
    weights, expected = layers[0][WEIGHTS], np.zeros((5, 7))
    for token in range(LENGTH):
        for slot in range(MEMORY):
            expected[SHORT, token + MEMORY - slot] += weights[:, :, token, slot].sum()
        for key in range(token + 1):
            expected[SEGMENT, token - key] += weights[:, :, token, MEMORY + key].sum()
    found = attention_by_age(model, variables, segments()[:2], skip=1)
    np.testing.assert_allclose(found.mass[0], expected / (2 * ROWS * LENGTH), atol=1e-6)
    assert batch.mask.all()


def test_ages_in_bins():
    mass = np.zeros((1, 5, 6))
    mass[0, SHORT, 1:] = [0.25, 0.25, 0.125, 0.0, 0.125]
    mass[0, SEGMENT, 0] = 0.25
    found = AttentionAges((3,), mass, 8)
    np.testing.assert_allclose(found.binned([1, 2, 4, 8]), [[0.25, 0.375, 0.125]])
    np.testing.assert_allclose(found.binned([0, 8], [SEGMENT]), [[0.25]])
    assert found.memory_share().tolist() == [0.75]


def test_a_slot_of_several_tokens_shares_what_it_gets(short, monkeypatch):
    keys = TrackedKeys.of_slots(jnp.array([[3, 1]]), jnp.full(2, 2), jnp.full(2, COMPRESSED), 2)
    np.testing.assert_array_equal(keys.ages[0, 0], [[3, 1, 0, -1], [4, 2, 1, 0]])
    weights = np.zeros((1, 1, 2, 4), np.float32)
    weights[0, 0, :, 0] = 1  # exactly one slot is read: the older one
    arrays = {WEIGHTS: weights, AGES: keys.ages, "attention/spans": keys.spans, SOURCES: keys.sources}
    batch = Batch(np.zeros((1, 2), int), None, np.ones((1, 2), bool), None, np.ones(1, bool))
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    monkeypatch.setattr("memjax.inspection.attention_ages.read_with_attention", lambda *_: [(batch, {0: arrays})])
    found = attention_by_age(*short, [batch])
    np.testing.assert_allclose(found.mass[0, COMPRESSED], [0, 0, 0, 0.25, 0.5, 0.25])


def test_what_cannot_be_told_is_refused(short):
    with pytest.raises(ValueError, match="skip: given 4 of 4 segments"):
        attention_by_age(*short, segments(), skip=4)
    with pytest.raises(ValueError, match="attention maps: given LinearTransformerAttention"):
        attention_by_age(*started(attention=config.LinearTransformer()), segments())


@pytest.mark.parametrize(("length", "memory"), [(4, 4), (4, 3), (3, 4), (3, 5)])
def test_compressed_slots_are_as_old_as_what_they_hold(length, memory):
    part = CompressiveAttention(
        8, 2, 4, memory, compressed_memory_length=4, compression_rate=2, compression="mean", compression_loss="none"
    )
    x = np.broadcast_to(np.arange(24, dtype=np.float32)[None, :, None], (1, 24, 8))  # a token's place in its document
    state, start = part.init_state(1), jnp.ones(1, bool)
    params = params_of(part, jnp.asarray(x[:, :length]), state, start_of_document=start, dtype=np.float32)
    params = jax.tree.map(jnp.asarray, params)
    step = jax.jit(lambda x, state, start: part.apply({"params": params}, x, state, start_of_document=start)[1])
    for first in range(0, 24, length):
        ages = np.asarray(part._known_keys(state, length).ages)[0, 0, 0, : 4 + memory]
        held = np.concatenate([state.compressed[0, :, 0], state.hidden[0, :, 0]])
        real = np.concatenate([state.compressed_valid[0], state.valid[0]])
        middle = ages + np.repeat([0.5, 0.0], [4, memory])  # of the two tokens of a compressed slot
        np.testing.assert_allclose((first - middle)[real], held[real], atol=1e-4)
        state = step(jnp.asarray(x[:, first : first + length]), state, jnp.array([first == 0]))
    assert real.all()


MERGES = {
    "gate": {},
    "joint": {"merge": "joint"},
    "threshold": {"merge": "joint", "retrieval": "threshold"},
    "code": {"compatibility": "meliad"},
    "add": {"merge": "add"},
    "forward": {"merge": "stop_forward"},
}


@pytest.mark.parametrize("name", MERGES)
def test_a_tracked_memorizing_part_computes_the_same_and_says_of_what(name):
    sizes = {"dim": 8, "num_heads": 2, "head_dim": 4, "memory_length": 6, "num_neighbors": 2, "cache_length": 3}
    part = memorizing_part(**sizes, **MERGES[name])
    x, start = np.random.default_rng(1).normal(size=(3, ROWS, LENGTH, 8)).astype(np.float32), jnp.ones(ROWS, bool)
    params = params_of(part, jnp.asarray(x[0]), part.init_state(ROWS), start_of_document=start, dtype=np.float32)
    params = jax.tree.map(jnp.asarray, params)
    outputs = []
    for one in (part, part.with_attention_tracking()):
        apply = jax.jit(
            lambda x, state, start, one=one: one.apply({"params": params}, x, state, start_of_document=start)
        )
        state, ys = one.init_state(ROWS), []
        for index in range(3):
            y, state, aux = apply(jnp.asarray(x[index]), state, start & (index == 0))
            ys.append(y)
        outputs.append(ys)
    np.testing.assert_allclose(*outputs, atol=1e-5)
    weights, seen = np.asarray(aux.arrays[WEIGHTS]), np.asarray(aux.arrays[VISIBLE])
    assert weights.shape == (ROWS, 2, LENGTH, 2 + 3 + LENGTH) and not weights[~seen].any()
    if name != "code":  # there a token does not read itself, and empty slots take part
        np.testing.assert_allclose(weights.sum(axis=-1), 2 if name == "add" else 1, atol=1e-5)
    ages, near = np.asarray(aux.arrays[AGES]), np.asarray(aux.arrays[SOURCES]) == RETRIEVED
    places = 2 * LENGTH + np.arange(LENGTH)[None, None, :, None]
    np.testing.assert_array_equal(places - ages[..., near], aux.arrays["neighbor_positions"])
    if name == "gate":
        share = weights[..., near].sum(axis=-1).mean()
        np.testing.assert_allclose(share, aux.metrics["memorizing/memory_share"].mean(), rtol=1e-5)
    if name == "forward":
        np.testing.assert_allclose(weights[..., near].sum(axis=-1), 1, atol=1e-5)


def test_learned_rows_in_front_have_no_age():
    tokens = config.MemoryTokens(num_tokens=2)
    model, variables = started(attention=config.TransformerXL(memory_length=MEMORY), memory_tokens=tokens)
    found = attention_by_age(model, variables, segments())
    np.testing.assert_allclose(found.mass.sum(), 1, atol=1e-6)
    assert found.mass[0, ROW, 0] > 0 and not found.mass[0, ROW, 1:].any() and found.memory_share()[0] < 1


def test_a_compressed_slot_of_gpt2_stands_for_its_window():
    slots = config.GPT2(num_positions=LENGTH, compressed_memory_length=2, compression_rate=2)
    found = attention_by_age(*started(attention=slots), segments(), skip=1)
    np.testing.assert_allclose(found.mass.sum(), 1, atol=1e-6)
    assert np.flatnonzero(found.mass[0, COMPRESSED]).tolist() == [*range(1, 8)]  # windows of 1, 2 and 3, 4 tokens ago
