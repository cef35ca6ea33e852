"""The error of infinity-former's regression, beside a reference in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inspection.memory_maps import signal_map
from memjax.inspection.regression import regression_errors
from memjax.models.factory import make_language_model
from tests.reference.parameters import params_of

ROWS, LENGTH, VOCAB, SEGMENTS, DIM = 2, 4, 7, 5, 8
WIDTHS, SAMPLES, TAU, RIDGE = (0.1, 0.2), 6, 0.6, 0.5
STARTS = jnp.zeros((SEGMENTS, ROWS), bool).at[0].set(True)
MASK = np.ones((SEGMENTS, ROWS, LENGTH), bool)
MASK[3, 1, 2:] = MASK[4, 1] = False  # the second document ends in the fourth segment
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (SEGMENTS, ROWS, LENGTH)), jnp.int32)


@functools.cache
def made(sticky="none", memory_length=0):
    part = config.InfinityFormer(
        num_basis=8, widths=WIDTHS, num_samples=SAMPLES, contraction=TAU, ridge=RIDGE,
        num_bins=5, sticky=sticky, memory_length=memory_length,
    )  # fmt: skip
    model = make_language_model(
        config.Model(dim=DIM, num_layers=2, num_heads=2, attention=part), VOCAB, segment_length=LENGTH
    )
    arrays = params_of(model, TOKENS[0], model.init_state(ROWS), start_of_document=STARTS[0], dtype=np.float32)
    return model, jax.tree.map(jnp.asarray, arrays)


def functions(places, num_basis):
    """psi_j(t), by its formula."""
    centers = np.repeat(np.linspace(0, 1, num_basis // 2), 2)
    widths = np.tile(WIDTHS, num_basis // 2)
    return np.exp(-0.5 * ((places[..., None] - centers) / widths) ** 2) / (widths * np.sqrt(2 * np.pi))


def regress(places, values, around, num_basis):
    """Ridge regression of values at places, and of zeros at the places around."""
    design = functions(np.concatenate([places, around]), num_basis)
    target = np.concatenate([values, np.zeros((len(around), DIM))])
    return np.linalg.solve(design.T @ design + RIDGE * np.eye(num_basis), design.T @ target)


def outside(points):
    return points[(points < 0) | (points > 1)]


def reference(written, positions, num_basis):
    """Squares, and those of the mean, of each segment of a row; `written` `[updates, length, dim]`, all tokens real."""
    places = (np.arange(LENGTH) + 0.5) / LENGTH
    grid = np.linspace(-0.5 + 1 / (2 * LENGTH), 1.5 - 1 / (2 * LENGTH), 2 * LENGTH)
    signal, where = regress(places, written[0], outside(grid), num_basis), [places]
    total = LENGTH + SAMPLES
    for number, tokens in enumerate(written[1:]):
        read = np.arange(1, SAMPLES + 1) / SAMPLES if positions is None else positions[number]
        put = TAU * np.arange(1, SAMPLES + 1) / SAMPLES
        new = TAU + (1 - TAU) * np.arange(1, LENGTH + 1) / LENGTH
        values = np.concatenate([functions(read, num_basis) @ signal, tokens])
        shift = 1 / (LENGTH + total)  # as in the published code
        around = outside(np.linspace(-0.5 + shift, 1.5 - shift, 2 * total))
        signal = regress(np.concatenate([put, new]), values, around, num_basis)
        where = [TAU * t if positions is None else put[np.abs(t[:, None] - read).argmin(axis=1)] for t in where]
        where.append(new)
    found = [functions(t, num_basis) @ signal for t in where]
    return np.stack([(one - tokens) ** 2 for one, tokens in zip(found, written, strict=True)][::-1])


@pytest.mark.parametrize("sticky", ["none", pytest.param("quantile", marks=pytest.mark.laws)])
def test_errors_are_those_of_the_reference(sticky):
    model, params = made(sticky)
    tokens = TOKENS[:, :1]
    errors = regression_errors(model, params, tokens, num_basis=(4, 8, 12))
    seen = signal_map(model, params, tokens, start_of_document=STARTS[:, :1])
    assert errors.layers == (0, 1) and errors.num_basis == (4, 8, 12) and errors.squares.shape == (2, 3, SEGMENTS - 1)
    assert (errors.tokens == LENGTH).all()
    for layer in range(2):
        written = np.asarray(seen.tokens[layer, 1:, 0], np.float64)
        positions = None if seen.positions is None else np.asarray(seen.positions[layer, 2:, 0], np.float64)
        for index, size in enumerate(errors.num_basis):
            expected = reference(written, positions, size)
            np.testing.assert_allclose(errors.squares[layer, index], expected.mean(axis=(1, 2)), rtol=2e-4, atol=1e-6)
        spread = ((written - written.mean(axis=(0, 1))) ** 2).mean(axis=(1, 2))
        np.testing.assert_allclose(errors.variance[layer], spread[::-1], rtol=1e-5)
        np.testing.assert_allclose(
            errors.overall()[layer], errors.squares[layer].mean(axis=1) / spread.mean(), rtol=1e-6
        )
    np.testing.assert_allclose(errors.relative()[1, 2], errors.squares[1, 2] / errors.variance[1])
    if sticky == "none":
        assert (np.diff(errors.squares.mean(axis=2), axis=1) < 0).all()  # more functions, smaller error


@pytest.mark.laws
@pytest.mark.parametrize("sticky, memory_length", [("none", 0), ("none", LENGTH), ("quantile", 0)])
def test_the_signal_is_that_of_the_model(sticky, memory_length):
    """The error of the coefficients in the state that the model itself ends with."""
    model, params = made(sticky, memory_length)
    mask = jnp.asarray(MASK)
    apply = jax.jit(
        lambda ids, state, start, real: model.apply({"params": params}, ids, state, start_of_document=start, mask=real)
    )
    state = model.init_state(ROWS)
    for ids, start, real in zip(TOKENS, STARTS, mask, strict=True):
        _, state, _ = apply(ids, state, start, real)
    coefficients = np.stack([group.attention.long.coefficients for group in state.stack.groups])
    coefficients = np.asarray(coefficients, np.float64).reshape(2, ROWS, 8, DIM)
    seen = signal_map(model, params, TOKENS, start_of_document=STARTS, mask=mask)
    errors = regression_errors(model, params, TOKENS, mask=mask)
    waiting = 1 + memory_length // LENGTH
    assert seen.updated[0].sum(axis=0).tolist() == [SEGMENTS - waiting, SEGMENTS - 1 - waiting]
    for layer in range(2):
        newest = []
        for row in range(ROWS):
            updates = np.flatnonzero(seen.updated[layer, :, row])
            places, entered = seen.token_places(layer, SEGMENTS - 1, row)[-1], seen.entered[layer, updates[-1], row]
            found = functions(places, 8) @ coefficients[layer, row]
            newest.append(((found - seen.tokens[layer, updates[-1], row]) ** 2)[entered])
        np.testing.assert_allclose(errors.squares[layer, 0, 0], np.concatenate(newest).mean(), rtol=1e-3)
    assert errors.tokens[:, 0].tolist() == [ROWS * LENGTH] * 2
    assert errors.tokens[:, -1].tolist() == [LENGTH] * 2  # the shorter document has one update less


def test_what_nothing_was_written_to_is_refused():
    model, params = made()
    with pytest.raises(ValueError, match="tokens: given 1 segments"):
        regression_errors(model, params, TOKENS[:1])
    with pytest.raises(ValueError, match="num_basis: given 7"):
        regression_errors(model, params, TOKENS, num_basis=(7,))
    plain = make_language_model(config.Model(dim=8, num_layers=1, num_heads=2), VOCAB)
    with pytest.raises(ValueError, match="given a model without infinity-former"):
        regression_errors(plain, {}, TOKENS)
