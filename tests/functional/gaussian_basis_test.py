"""Basis functions, their regression and their expectations: golden numbers, identities and thresholds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.gaussian_basis import (
    GaussianBasis,
    bin_masses,
    evaluate_basis,
    expected_basis,
    fit_matrix,
    gaussian_basis,
    kl_to_prior,
    quantile_positions,
    sample_positions,
    token_positions,
    update_matrices,
)

SMALL = gaussian_basis(8, (0.1, 0.2))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


# Golden numbers: computed in float64 with the positions and the padding of the published code.


def test_golden_regression():
    first = fit_matrix(SMALL, 6, ridge=0.5)
    row = [0.13015744, -0.01767508, -0.17480961, 0.29417847, -0.03871797, -0.03034808, -0.01262521, 0.02980196]
    np.testing.assert_allclose(first.sum(), 1.0249423178786867, atol=1e-13)
    np.testing.assert_allclose(first[0], row, atol=1e-8)
    later = update_matrices(SMALL, 6, 4, contraction=0.5, ridge=0.5)
    row = [-0.0188994, 0.09055683, -0.18663746, 0.33709572, -0.00510538, -0.09972522, -0.01118317, 0.04740472]
    np.testing.assert_allclose(later.past.sum() + later.new.sum(), 0.9961820363713608, atol=1e-13)
    np.testing.assert_allclose(later.past[0], row, atol=1e-8)


def test_golden_memory_of_two_segments():
    matrices, tokens = update_matrices(SMALL, 6, 4, contraction=0.5, ridge=0.5), np.arange(1.0, 7.0)
    first = fit_matrix(SMALL, 6, ridge=0.5).T @ tokens
    expected = [0.04652121, 0.13421406, 0.29852397, 0.1093086, 0.00696539, 2.35647295, 0.4582469, 0.17704503]
    np.testing.assert_allclose(first, expected, atol=1e-8)
    past = matrices.samples @ first
    np.testing.assert_allclose(past, [1.70914191, 3.80684429, 4.59663878, 3.35432168], atol=1e-8)
    second = matrices.past.T @ past - matrices.new.T @ tokens
    expected = [-0.0783098, -0.28050097, 0.34249086, 2.23605374, -0.11197269, -1.41526469, -0.70618804, -0.12867876]
    np.testing.assert_allclose(second, expected, atol=1e-8)
    read = np.asarray(expected_basis(SMALL, jnp.array(0.3), jnp.array(0.02)))
    expected = [
        0.513934433,
        0.769331614,
        2.26103325,
        1.61366432,
        0.245023703,
        0.531206978,
        0.000654050331,
        0.0274451309,
    ]
    np.testing.assert_allclose(read, expected, atol=1e-8)
    np.testing.assert_allclose(read @ second, 3.34335107, atol=1e-8)


def test_golden_expectation_and_its_gradient():
    one = GaussianBasis((0.45,), (0.01,))
    np.testing.assert_allclose(expected_basis(one, jnp.array(0.4), jnp.array(0.02))[0], 2.644257067564778, atol=1e-13)

    def of_parameters(theta):  # mean / variance and -1 / (2 variance)
        variance = -0.5 / theta[1]
        return expected_basis(one, theta[0] * variance, variance)[0]

    gradient = jax.grad(of_parameters)(jnp.array([0.4 / 0.02, -0.5 / 0.02]))
    np.testing.assert_allclose(gradient, [0.13155508, 0.05916706], atol=1e-8)


def test_expectation_equals_quadrature_and_its_gradient_the_covariance():
    mean, variance, t = 0.3, 0.02, np.linspace(-3, 4, 200_001)
    density = np.exp(-0.5 * (t - mean) ** 2 / variance) / np.sqrt(2 * np.pi * variance)
    psi = evaluate_basis(SMALL, t)
    integral = lambda f: (f * (t[1] - t[0])).sum(axis=0)
    expected = integral(density[:, None] * psi)
    np.testing.assert_allclose(expected_basis(SMALL, jnp.array(mean), jnp.array(variance)), expected, rtol=1e-12)
    covariance = integral((density * t)[:, None] * psi) - mean * expected
    to_mean = jax.jacobian(lambda m: expected_basis(SMALL, m, jnp.array(variance)))(jnp.array(mean))
    np.testing.assert_allclose(to_mean, covariance / variance, atol=1e-10)


def test_regression_solves_the_normal_equations_and_is_linear():
    length, ridge = 12, 0.7
    positions = np.linspace(-0.5 + 1 / 24, 1.5 - 1 / 24, 24)
    functions, tokens = evaluate_basis(SMALL, positions).T, np.random.default_rng(0).normal(size=(12, 3))
    matrix = fit_matrix(SMALL, length, ridge)
    padded = np.concatenate([np.zeros((6, 3)), tokens, np.zeros((6, 3))])
    residual = (functions @ functions.T + ridge * np.eye(8)) @ (matrix.T @ tokens) - functions @ padded
    assert np.abs(residual).max() < 1e-10
    np.testing.assert_allclose(matrix.T @ (2 * tokens[:, :1] - tokens[:, 1:2]).ravel(),
                               2 * matrix.T @ tokens[:, 0] - matrix.T @ tokens[:, 1], atol=1e-12)  # fmt: skip


@pytest.mark.parametrize(
    "num_basis, length, widths, errors",
    [
        (512, 512, (0.005, 0.01), (1.7e-4, 1.4e-3, 2.0e-2, 0.74)),
        (150, 150, (0.01, 0.05), (3.8e-4, 3.5e-3, 4.5e-2, 0.67)),
    ],
)
def test_smooth_signals_are_reconstructed_and_noise_is_not(num_basis, length, widths, errors):
    basis = gaussian_basis(num_basis, widths)
    positions = (np.arange(length) + 0.5) / length
    noise = np.random.default_rng(0).normal(size=length)
    signals = np.stack([np.sin(2 * np.pi * positions), np.sin(16 * np.pi * positions), np.ones(length), noise], axis=1)
    read = evaluate_basis(basis, positions) @ (fit_matrix(basis, length, ridge=0.5).T @ signals)
    relative = np.sqrt(((read - signals) ** 2).mean(axis=0) / (signals**2).mean(axis=0))
    assert (relative[:3] < 1.5 * np.array(errors[:3])).all()
    assert 0.5 < relative[3] < 0.9


def test_an_update_contracts_the_past_and_appends_the_new():
    basis, length = gaussian_basis(128, (0.01, 0.05)), 64
    matrices = update_matrices(basis, length, 64, contraction=0.5, ridge=0.5)
    old_signal, new_signal = (lambda t: np.sin(2 * np.pi * t)), (lambda t: np.sin(2 * np.pi * t) * 0.5)
    old = fit_matrix(basis, length, ridge=0.5).T @ old_signal((np.arange(length) + 0.5) / length)
    tokens = new_signal(np.arange(1, length + 1) / length)
    coefficients = matrices.past.T @ (matrices.samples @ old) + matrices.new.T @ tokens
    t = np.linspace(0.05, 0.95, 50)
    np.testing.assert_allclose(evaluate_basis(basis, 0.5 * t) @ coefficients, old_signal(t), atol=0.02)
    np.testing.assert_allclose(evaluate_basis(basis, 0.5 + 0.5 * t) @ coefficients, new_signal(t), atol=0.02)


def test_a_slow_signal_survives_four_contractions():
    basis, length = gaussian_basis(512, (0.005, 0.01)), 512
    matrices = update_matrices(basis, length, 512, contraction=0.5, ridge=0.5)
    signal = np.sin(4 * np.pi * (np.arange(length) + 0.5) / length)
    coefficients = fit_matrix(basis, length, ridge=0.5).T @ signal
    for _ in range(4):
        coefficients = matrices.past.T @ (matrices.samples @ coefficients)
    read = evaluate_basis(basis, 0.5**4 * (np.arange(length) + 0.5) / length) @ coefficients
    assert np.corrcoef(read, signal)[0, 1] > 0.999


@pytest.mark.parametrize("length, samples", [(1, 1), (1, 5), (7, 4), (513, 512), (512, 511), (128, 64), (100, 50)])
def test_any_number_of_tokens_and_samples(length, samples):
    matrices = update_matrices(SMALL, length, samples)
    assert (matrices.past.shape, matrices.new.shape) == ((samples, 8), (length, 8))
    assert np.isfinite(np.concatenate([matrices.past, matrices.new, fit_matrix(SMALL, length)])).all()


# Sticky memories


def test_bin_masses_by_sampling():
    mean, variance = jnp.array([0.2, 0.9]), jnp.array([0.01, 0.3])
    draws = np.random.default_rng(0).normal(size=(400_000, 2)) * np.sqrt(variance) + np.asarray(mean)
    shares = np.stack([np.histogram(column, 8, (0, 1))[0] for column in draws.T]) / len(draws)
    np.testing.assert_allclose(bin_masses(mean, variance, 8), shares, atol=3e-3)


def test_quantiles_of_an_even_histogram_are_even():
    expected = (np.arange(6) + 0.5) / 6
    for masses in (jnp.full((1, 16), 0.3), jnp.zeros((1, 16))):
        np.testing.assert_allclose(quantile_positions(masses, 6)[0], expected, atol=1e-12)


def test_more_mass_more_samples():
    masses = jnp.array([[1.0, 1.0, 6.0, 0.0], [4.0, 0.0, 0.0, 4.0]])
    for positions in (quantile_positions(masses, 800), sample_positions(jax.random.key(0), masses, 800, jitter=True)):
        assert (np.diff(positions, axis=1) >= 0).all()
        counts = np.stack([np.histogram(row, 4, (0, 1))[0] for row in np.asarray(positions)])
        np.testing.assert_allclose(counts / 800, masses / 8, atol=0.05)


def test_samples_repeat_with_their_key_and_stand_on_left_edges():
    masses = jnp.array([[1.0, 2.0, 3.0, 4.0]])
    first = sample_positions(jax.random.key(1), masses, 9)
    np.testing.assert_array_equal(first, sample_positions(jax.random.key(1), masses, 9))
    assert not np.array_equal(first, sample_positions(jax.random.key(2), masses, 9))
    assert set(np.asarray(first).ravel().tolist()) <= {0.0, 0.25, 0.5, 0.75}


def test_positions_have_no_gradient():
    total = lambda m: quantile_positions(m, 3).sum() + sample_positions(jax.random.key(0), m, 3).sum()
    assert not np.asarray(jax.grad(total)(jnp.ones((1, 4)))).any()


def test_tokens_move_with_the_contractions():
    places = token_positions(3, 4, contraction=0.75)
    assert places.shape == (3, 4) and (np.diff(places.ravel()) > 0).all()
    np.testing.assert_allclose(places[0], 0.75**2 * (np.arange(4) + 0.5) / 4)
    np.testing.assert_allclose(places[2], 0.75 + 0.25 * np.arange(1, 5) / 4)


def test_a_sticky_update_gives_space_to_what_is_read():
    sampled = np.asarray(quantile_positions(jnp.array([[0.05, 0.9, 0.05, 0.0]]), 400))
    places, even = token_positions(2, 8, sampled=sampled), token_positions(2, 8)
    space = np.diff(places[0])
    assert space[2] > 2 * np.diff(even[0])[2] and space[2] > 4 * space[5]


# The regulariser


def test_divergence_is_zero_at_the_prior_and_positive_elsewhere():
    variance = jnp.linspace(0.001, 0.02, 200)
    values = np.asarray(kl_to_prior(variance, 0.05))
    assert (values >= 0).all() and float(kl_to_prior(jnp.array(0.05**2), 0.05)) == 0
    slope = jax.grad(lambda v: kl_to_prior(v, 0.05))
    assert slope(jnp.array(0.04**2)) < 0 < slope(jnp.array(0.06**2))
    printed = lambda s: 0.5 * (s**2 / 0.05**2 - np.log(s / 0.05) - 1)  # as the paper prints it: not a divergence
    np.testing.assert_allclose(printed(0.05 / np.sqrt(2)), -0.0767132, atol=1e-6)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: gaussian_basis(5, (0.1, 0.2)), "num_basis: given 5, allowed: a multiple of the 2 widths"),
        (lambda: gaussian_basis(2, ()), "widths: given .* allowed: one or more standard deviations above 0"),
        (lambda: fit_matrix(SMALL, 0), "length: given 0, allowed: at least 1 token"),
        (lambda: fit_matrix(SMALL, 4, ridge=0.0), "ridge: given 0.0, allowed: above 0"),
        (lambda: update_matrices(SMALL, 4, 0), "num_samples: given 0, allowed: at least 1"),
        (lambda: update_matrices(SMALL, 4, 4, contraction=1.0), "contraction: given 1.0, allowed: between 0 and 1"),
        (lambda: token_positions(3, 2, sampled=np.zeros((3, 2))), "sampled: given 3 updates, allowed: 2"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
