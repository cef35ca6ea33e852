import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.inference.sampling import Sampling, greedy, keep_top_k, keep_top_p, row_keys, sample


def numpy_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Token by token, in order of probability, until `p` is reached."""
    out = np.full_like(logits, -np.inf)
    for row, values in enumerate(logits):
        probabilities = np.exp(values - values.max())
        probabilities /= probabilities.sum()
        total = 0.0
        for token in np.argsort(-values, kind="stable"):
            out[row, token] = values[token]
            total += probabilities[token]
            if total >= p:
                break
    return out


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_equals_numpy(p):
    logits = np.random.default_rng(0).normal(size=(5, 17)).astype(np.float32) * 2
    np.testing.assert_array_equal(keep_top_p(jnp.asarray(logits), p), numpy_top_p(logits, p))


def test_top_p_keeps_the_first_of_equals():
    kept = np.isfinite(keep_top_p(jnp.zeros((1, 4)), 0.5))
    np.testing.assert_array_equal(kept, [[True, True, False, False]])


@pytest.mark.parametrize("k", [1, 3, 17, 40, 0])
def test_top_k_equals_numpy(k):
    logits = np.random.default_rng(1).normal(size=(5, 17)).astype(np.float32)
    logits[1:] = logits[1:].round()  # with equals
    expected = logits.copy()
    if 0 < k < 17:
        np.put_along_axis(expected, np.argsort(-logits, axis=1, kind="stable")[:, k:], -np.inf, axis=1)
    np.testing.assert_array_equal(keep_top_k(jnp.asarray(logits), k), expected)


def test_no_more_than_k_tokens_are_drawn_of_equals():
    logits = jnp.array([0.0, 2.0, 1.0, 1.0, -jnp.inf, 1.0])
    kept = keep_top_k(jnp.stack([logits, jnp.zeros(6)]), 3)
    np.testing.assert_array_equal(jnp.isfinite(kept), [[0, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
    keys = jax.random.split(jax.random.key(4), 500)
    drawn = lambda row: {*np.asarray(sample(keys, jnp.broadcast_to(row, (500, 6)), Sampling(top_k=3))).tolist()}
    assert drawn(logits) == {1, 2, 3} and drawn(jnp.zeros(6)) == {0, 1, 2}


def test_greedy_takes_the_first_of_equals():
    np.testing.assert_array_equal(greedy(jnp.array([[0.0, 1.0, 1.0], [2.0, 1.0, 0.0]])), [1, 0])
    keys = jax.random.split(jax.random.key(0), 2)
    settings = Sampling(temperature=0)
    np.testing.assert_array_equal(sample(keys, jnp.array([[0.0, 1.0, 1.0], [2.0, 1.0, 0.0]]), settings), [1, 0])


@pytest.mark.parametrize(
    "settings",
    [Sampling(), Sampling(temperature=0.5), Sampling(top_k=3), Sampling(top_p=0.7), Sampling(forbidden=(0, 4))],
    ids=["plain", "temperature", "top_k", "top_p", "forbidden"],
)
def test_frequencies_follow_the_distribution(settings):
    logits = np.log(np.array([0.35, 0.3, 0.15, 0.12, 0.08], np.float32))
    expected = logits / settings.temperature
    expected = np.asarray(keep_top_p(keep_top_k(jnp.asarray(expected)[None], settings.top_k), settings.top_p))[0]
    expected = np.exp(np.where(np.isin(np.arange(5), settings.forbidden), -np.inf, expected))
    expected /= expected.sum()
    draws = 20000
    keys = jax.random.split(jax.random.key(3), draws)
    tokens = jax.jit(sample, static_argnums=2)(keys, jnp.broadcast_to(jnp.asarray(logits), (draws, 5)), settings)
    counts = np.bincount(np.asarray(tokens), minlength=5)
    assert (counts[expected == 0] == 0).all()
    # four standard deviations of a binomial count
    np.testing.assert_array_less(np.abs(counts / draws - expected), 4 * np.sqrt(0.25 / draws))


def test_row_keys_depend_on_the_prompt_and_its_copy_only():
    def data(keys):
        return np.asarray(jax.random.key_data(keys))

    a, b = [1, 2], [3]
    alone = data(row_keys(7, [a]))[0]
    mixed = data(row_keys(7, [b, a, a]))
    np.testing.assert_array_equal(alone, mixed[1])
    assert (mixed[1] != mixed[2]).any()
    assert (alone != data(row_keys(8, [a]))[0]).any()


@pytest.mark.parametrize("field, value", [("temperature", -0.1), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.5)])
def test_bad_settings_name_the_field(field, value):
    with pytest.raises(ValueError, match=f"^{field}: given {value}, allowed: "):
        Sampling(**{field: value})
