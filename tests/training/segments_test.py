import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.training.segments import loss_over_segments, segment_keys
from memjax.typing import Aux, Sum


def step(weights, memory, segment):
    """A recurrent step whose gradient crosses segments."""
    x, key = segment
    memory = jnp.tanh(memory @ weights + x + 0.1 * jax.random.normal(key, x.shape, x.dtype))
    aux = Aux(losses={"size": Sum(jnp.sum(memory**2), jnp.ones(()))}, arrays={"ids": jnp.argmax(memory, axis=1)})
    return memory, (Sum(jnp.sum(memory), jnp.asarray(2.0)), aux)


def inputs(num_segments):
    x = jax.random.normal(jax.random.key(0), (num_segments, 2, 3))
    weights = jax.random.normal(jax.random.key(1), (3, 3))
    return weights, jnp.zeros((2, 3)), (x, segment_keys(jax.random.key(2), 5, num_segments))


@pytest.mark.parametrize("num_segments", [1, 3])
def test_recomputation_changes_no_gradient(num_segments):
    with jax.enable_x64(True):
        weights, memory, (x, keys) = jax.tree.map(
            lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.astype(jnp.float64),
            inputs(num_segments),
        )

        def loss(weights, rematerialize):
            _, (total, aux) = loss_over_segments(step, weights, memory, (x, keys), rematerialize=rematerialize)
            return total.total + aux.losses["size"].total

        plain, again = (jax.jit(jax.grad(loss), static_argnums=1)(weights, how) for how in ("none", "segment"))
        np.testing.assert_allclose(plain, again, rtol=1e-12)
        assert num_segments == 1 or np.abs(plain).max() > 0


@pytest.mark.parametrize("num_segments", [1, 3])
def test_equals_a_python_loop(num_segments):
    weights, memory, segments = inputs(num_segments)
    final, (total, aux) = jax.jit(lambda *a: loss_over_segments(step, *a))(weights, memory, segments)
    expected, ids = 0.0, []
    for i in range(num_segments):
        memory, (one, more) = step(weights, memory, jax.tree.map(lambda leaf, i=i: leaf[i], segments))
        expected += one.total
        ids.append(more.arrays["ids"])
    np.testing.assert_allclose(final, memory, rtol=1e-5)
    np.testing.assert_allclose(total.total, expected, rtol=1e-5)
    assert total.weight == 2 * num_segments and aux.losses["size"].weight == num_segments
    np.testing.assert_array_equal(aux.arrays["ids"], np.stack(ids))


def test_one_segment_is_not_scanned():
    counts = [
        str(jax.make_jaxpr(lambda *a: loss_over_segments(step, *a))(*inputs(number))).count("scan[")
        for number in (1, 2)
    ]
    assert counts == [0, 1]


def test_only_the_carry_is_saved():
    weights, memory, segments = inputs(4)

    def saved(rematerialize):
        run = lambda w: loss_over_segments(step, w, memory, segments, rematerialize=rematerialize)[1][0].total
        _, backward = jax.vjp(run, weights)
        return sum(leaf.size for leaf in jax.tree.leaves(backward) if hasattr(leaf, "size"))

    assert saved("segment") < saved("none")


def test_keys_differ_by_step_and_segment():
    keys = [jax.random.key_data(segment_keys(jax.random.key(0), step, 2)) for step in (0, 1)]
    assert len({tuple(row.tolist()) for row in np.concatenate(keys)}) == 4
    expected = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), 1)
    np.testing.assert_array_equal(keys[1][1], jax.random.key_data(expected))


def test_segments_of_different_number_are_refused():
    with pytest.raises(ValueError, match=r"segments: given leaves of \[2, 3\] segments"):
        loss_over_segments(step, 1.0, jnp.zeros(1), (jnp.zeros((2, 1)), jnp.zeros((3, 1))))
