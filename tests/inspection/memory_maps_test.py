"""Maps of memories: what they say is what the memory did."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.functional.gaussian_basis import bin_masses, token_positions
from memjax.inspection.memory_maps import (
    attend_places,
    long_term_layers,
    signal_map,
    slot_map,
    token_space,
    with_long_term_fields,
)
from memjax.models.factory import make_language_model, make_memformer
from tests.reference.parameters import params_of

ROWS, LENGTH, VOCAB, SEGMENTS, SLOTS = 2, 4, 7, 3, 3
STARTS = jnp.zeros((SEGMENTS, ROWS), bool).at[0].set(True).at[2, 1].set(True)


def tokens():
    return jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (SEGMENTS, ROWS, LENGTH)), jnp.int32)


def initial(model):
    arrays = params_of(model, tokens()[0], model.init_state(ROWS), start_of_document=STARTS[0], dtype=np.float32)
    return jax.tree.map(jnp.asarray, arrays)


@functools.cache
def memformer():
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "encoder_layers": 2, "num_slots": SLOTS}
    described = config.Memformer(**sizes, scan_layers=False, feed_forward=config.Dense(dim=12))
    model = make_memformer(described, VOCAB, segment_length=LENGTH)
    return model, initial(model)


def infinity_former(**fields):
    sizes = {"num_basis": 8, "widths": (0.1, 0.2), "num_samples": 6, "num_bins": 5}
    part = config.InfinityFormer(**{**sizes, "sticky": "quantile", **fields})
    described = config.Model(dim=8, num_layers=2, num_heads=2, attention=part)
    model = make_language_model(described, VOCAB, segment_length=LENGTH)
    return model, initial(model)


@functools.cache
def mapped():
    model, params = infinity_former()
    return signal_map(model, params, tokens(), start_of_document=STARTS)


def test_a_slot_map_is_what_the_memory_did():
    model, params = memformer()
    found = slot_map(model, params, tokens(), start_of_document=STARTS)
    assert found.writer.shape == (SEGMENTS, ROWS, 2, SLOTS, 1 + LENGTH + 1)
    assert found.reader.shape == (SEGMENTS, 2, ROWS, 2, LENGTH + 1, SLOTS)
    np.testing.assert_allclose(found.writer.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(found.reader.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(found.bias_norms, np.linalg.norm(params["encoder"]["forgetting"], axis=1), rtol=1e-6)
    counts = found.type_counts()
    assert (counts.sum(axis=-1) == SLOTS).all()
    assert (counts[0] == [SLOTS, 0, 0]).all()  # the begin token is not written
    state, apply = model.init_state(ROWS), jax.jit(model.apply)
    for segment in range(2):
        given = {"start_of_document": STARTS[segment]}
        _, state, aux = apply({"params": params}, tokens()[segment], state, **given)
    for name, count in zip(("retaining", "aggregating", "rewriting"), counts[1].sum(axis=0), strict=True):
        assert float(aux.metrics[f"memformer/{name}"].total) == count


def test_what_a_segment_encodes_to_depends_on_what_its_reader_sees():
    model, params = memformer()
    other = tokens().at[0, 0, 0].set((tokens()[0, 0, 0] + 1) % VOCAB)
    found, changed = (slot_map(model, params, t, start_of_document=STARTS) for t in (tokens(), other))
    moved = np.abs(changed.reader - found.reader).max(axis=(1, 3, 4, 5))  # [segments, batch]
    assert moved[0].max() == 0 and moved[1, 0] > 1e-4 and moved[2, 0] > 1e-5 and moved[:, 1].max() == 0


def test_a_model_without_a_memory_has_no_map():
    model, params = memformer()
    with pytest.raises(ValueError, match="num_slots of 1 or more"):
        slot_map(model.clone(encoder=None), params, tokens(), start_of_document=STARTS)
    plain = make_language_model(config.Model(dim=8, num_layers=1, num_heads=2), VOCAB)
    with pytest.raises(ValueError, match="given a model without infinity-former"):
        signal_map(plain, {}, tokens(), start_of_document=STARTS)
    short, _ = infinity_former(reset_after_tokens=8)
    with pytest.raises(ValueError, match="reset_after_tokens: given 8"):
        signal_map(short, {}, tokens(), start_of_document=STARTS)


@pytest.mark.laws
def test_the_histogram_is_that_of_the_state():
    model, params = infinity_former()
    apply = jax.jit(lambda ids, state, start: model.apply({"params": params}, ids, state, start_of_document=start)[1])
    state = model.init_state(ROWS)
    for ids, start in zip(tokens()[:2], STARTS, strict=False):
        state = apply(ids, state, start)
    seen = [group.attention.long.histogram for group in state.stack.groups]  # two layers, scanned or not
    arrays = {name: array[:, 1:2] for name, array in vars(mapped()).items() if isinstance(array, np.ndarray)}
    last = dataclasses.replace(mapped(), **arrays)
    expected = np.stack(seen).reshape(2, ROWS, 5).sum(axis=1) / (ROWS * 2 * LENGTH)
    np.testing.assert_allclose(last.histogram(5), expected, atol=1e-5)


def test_only_rows_with_a_signal_count():
    assert mapped().counted[:, 0].sum() == 0  # nothing is remembered in the first segment
    assert mapped().counted[:, 1].all() and mapped().counted[:, 2, 0].all() and not mapped().counted[:, 2, 1].any()


def test_attention_goes_to_the_tokens_that_are_remembered():
    found = mapped()
    assert found.token_places(0, 0).size == 0 and found.token_attention(0, 0, 1).shape == (2, 0, LENGTH)
    places = found.token_places(1, 2)
    assert places.shape == (2, LENGTH) and (np.diff(places.ravel()) >= 0).all()
    seen = found.token_attention(1, 2, 3)
    assert seen.shape == (2, 2, LENGTH)
    inside = bin_masses(jnp.asarray(found.mean[1, 2, 0, :, 3]), jnp.asarray(found.variance[1, 2, 0, :, 3]), 1)
    np.testing.assert_allclose(seen.sum(axis=(1, 2)), inside[:, 0], atol=1e-5)


def test_even_updates_leave_tokens_elsewhere_than_sticky_ones():
    found = mapped()
    even = found.token_places(0, 2, even=True)
    np.testing.assert_allclose(even, token_positions(2, LENGTH, found.contraction))
    assert np.abs(even - found.token_places(0, 2)).max() > 0.01
    model, _ = infinity_former(sticky="none")
    assert long_term_layers(with_long_term_fields(model, sticky="quantile"))[1].sticky == "quantile"


def test_space_is_shared_by_nearness():
    np.testing.assert_allclose(token_space(np.array([0.7, 0.1, 0.5, 0.7])), [0.2, 0.3, 0.3, 0.2])
    places = np.random.default_rng(0).random(20)
    np.testing.assert_allclose(token_space(places).sum(), 1)
    draws = np.random.default_rng(1).normal(0.4, 0.2, 200_000)
    nearest = np.abs(draws[(draws >= 0) & (draws <= 1), None] - places).argmin(axis=1)
    expected = np.bincount(nearest, minlength=20) / len(draws)
    np.testing.assert_allclose(attend_places(np.array(0.4), np.array(0.04), places), expected, atol=4e-3)
