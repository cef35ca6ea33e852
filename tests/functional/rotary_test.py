"""Rotary positions against the papers, and frequencies against those of transformers."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional import (
    interpolate_linearly,
    interpolate_llama3,
    interpolate_longrope,
    interpolate_yarn,
    longrope_attention_factor,
    rotary_frequencies,
    rotary_waves,
    rotate,
    yarn_attention_factor,
)
from tests.reference import rotary as reference

GOLDEN = Path(__file__).parent.parent / "golden" / "rotary.json"


@pytest.mark.parametrize("width, theta", [(2, 10_000.0), (8, 500_000.0), (64, 1e6)])
def test_frequencies_fall_from_one(width, theta):
    expected = [reference.frequency(pair, width, theta) for pair in range(width // 2)]
    np.testing.assert_allclose(rotary_frequencies(width, theta), expected, rtol=1e-14)


@pytest.mark.parametrize("length", [64, 8192])
@pytest.mark.parametrize("low, high", [(1.0, 4.0), (0.5, 9.0)])
def test_llama3_keeps_short_waves_and_divides_long_ones(length, low, high):
    frequencies = rotary_frequencies(64, 500_000.0)
    options = {"low_frequency_factor": low, "high_frequency_factor": high, "original_length": length}
    found = interpolate_llama3(frequencies, factor=8.0, **options)
    expected = [reference.llama3(radians, 8.0, low, high, length) for radians in frequencies]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert found[0] == frequencies[0] and found[-1] == frequencies[-1] / 8
    assert ((found < frequencies) & (found > frequencies / 8)).any()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("length, fast", [(32, 32.0), (4096, 32.0), (4096, 8.0), (100_000, 1.0)])
def test_yarn_keeps_the_first_pairs_and_divides_the_last(length, fast, whole):
    frequencies = rotary_frequencies(32, 1e5)
    options = {"theta": 1e5, "fast_periods": fast, "whole_pairs": whole}
    found = interpolate_yarn(frequencies, factor=4.0, original_length=length, **options)
    expected = [reference.yarn(pair, 32, 1e5, 4.0, length, fast, 1.0, whole) for pair in range(16)]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_all_kinds_are_those_of_transformers():
    for name, golden in json.loads(GOLDEN.read_text()).items():
        frequencies, factor = make(golden["width"], golden["theta"], golden["rope"])
        np.testing.assert_allclose(frequencies, golden["frequencies"], rtol=2e-6, err_msg=name)
        assert factor == pytest.approx(golden["attention_factor"], rel=1e-12), name


def make(width: int, theta: float, rope: dict) -> tuple[np.ndarray, float]:
    """Frequencies and factor of a kind by its keys in transformers."""
    plain, length = rotary_frequencies(width, theta), rope.get("original_max_position_embeddings", 0)
    match rope["rope_type"]:
        case "default":
            return plain, 1.0
        case "linear":
            return interpolate_linearly(plain, rope["factor"]), 1.0
        case "llama3":
            limits = {f"{name}_frequency_factor": rope[f"{name}_freq_factor"] for name in ("low", "high")}
            return interpolate_llama3(plain, factor=rope["factor"], **limits, original_length=length), 1.0
        case "yarn":
            options = {"fast_periods": rope.get("beta_fast", 32.0), "slow_periods": rope.get("beta_slow", 1.0)}
            options |= {"theta": theta, "whole_pairs": rope.get("truncate", True), "original_length": length}
            factor = yarn_attention_factor(rope["factor"], rope.get("mscale"), rope.get("mscale_all_dim"))
            return interpolate_yarn(plain, factor=rope["factor"], **options), factor
        case "longrope":
            factor = longrope_attention_factor(rope["factor"], length)
            return interpolate_longrope(plain, rope["long_factor"]), factor
    raise AssertionError(rope)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pairs", [3, 2, 0])
def test_a_rotation_is_that_of_complex_numbers(dtype, pairs):
    random, places = np.random.default_rng(0), np.array([[0, 1, 7, 300], [2, 2, 5000, 3]])
    frequencies = rotary_frequencies(2 * pairs, 100.0)
    with jax.enable_x64(dtype == "float64"):
        x = random.normal(size=(2, 4, 3, 6)).astype(dtype)
        found = rotate(jnp.asarray(x), *rotary_waves(places, frequencies))
        assert found.dtype == dtype
        expected = np.empty_like(x, np.float64)
        for b, t, h in np.ndindex(2, 4, 3):
            expected[b, t, h] = reference.rotated(x[b, t, h], places[b, t], frequencies)
        np.testing.assert_allclose(found, expected, atol=1e-6 if dtype == "float32" else 1e-12)
        traced = rotary_waves(jnp.asarray(places), frequencies)  # float32 angles of position 5000
        np.testing.assert_allclose(rotate(jnp.asarray(x), *traced), expected, atol=2e-3 if dtype == "float32" else 1e-9)


def test_products_depend_on_distances_only():
    random, frequencies = np.random.default_rng(1), rotary_frequencies(8)
    with jax.enable_x64(True):
        query, key = (jnp.asarray(random.normal(size=(1, 1, 1, 8))) for _ in range(2))
        at = lambda x, place: rotate(x, *rotary_waves(np.array([[place]]), frequencies))
        products = [float((at(query, place + 5) * at(key, place)).sum()) for place in (0, 9, 123_456)]
        assert products[1:] == pytest.approx(products[:1] * 2, abs=1e-9)
        assert float((at(query, 4) * at(key, 0)).sum()) != pytest.approx(products[0], abs=1e-3)


def test_the_attention_factor_is_in_queries_and_keys():
    waves = rotary_waves(np.array([[3]]), rotary_frequencies(4), 1.5)
    plain = rotary_waves(np.array([[3]]), rotary_frequencies(4))
    x = jnp.ones((1, 1, 2, 6))
    np.testing.assert_allclose(rotate(x, *waves)[..., :4], 1.5 * rotate(x, *plain)[..., :4], rtol=1e-6)
    assert (rotate(x, *waves)[..., 4:] == 1).all()


def test_low_precision_is_rotated_in_float32():
    x, waves = jnp.ones((1, 1, 1, 8), jnp.bfloat16), rotary_waves(np.array([[77]]), rotary_frequencies(8))
    wide = rotate(x.astype(jnp.float32), *waves)
    assert (rotate(x, *waves) == wide.astype(jnp.bfloat16)).all()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: rotary_frequencies(3), "width: given 3, allowed: an even number"),
        (lambda: rotary_frequencies(4, 0.0), "theta: given 0.0, allowed: above 0"),
        (lambda: interpolate_linearly(np.ones(2), 0.0), "factor: given 0.0, allowed: above 0"),
        (
            lambda: interpolate_llama3(
                np.ones(2), factor=2.0, low_frequency_factor=4.0, high_frequency_factor=1.0, original_length=9
            ),
            "high_frequency_factor: given 1.0, allowed: above low_frequency_factor = 4.0",
        ),
        (lambda: interpolate_longrope(np.ones(2), [1.0]), "divisors: given 1, allowed: 2, one for each pair"),
        (lambda: interpolate_longrope(np.ones(2), [1.0, 0.0]), "divisors: given 0.0, allowed: above 0"),
        (
            lambda: rotate(jnp.ones((1, 1, 1, 4)), *rotary_waves(np.array([[1]]), np.ones(3))),
            "cosines: given 3 pairs, allowed: up to 2, half of head_dim = 4",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
