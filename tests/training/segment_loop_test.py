from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax import config
from memjax.models.factory import make_language_model
from memjax.training.objective import Objective, model_loss
from memjax.training.segment_loop import Rematerialize, loss_over_segments, segment_keys
from memjax.training.step import make_train_step
from memjax.training.train_state import init_train_state, init_variables
from memjax.typing import Aux, Batch, WeightedSum


def step(weights, memory, segment):
    """A recurrent step whose gradient crosses segments."""
    x, key = segment
    memory = jnp.tanh(memory @ weights + x + 0.1 * jax.random.normal(key, x.shape, x.dtype))
    aux = Aux(
        losses={"size": WeightedSum(jnp.sum(memory**2), jnp.ones(()))}, arrays={"ids": jnp.argmax(memory, axis=1)}
    )
    return memory, (WeightedSum(jnp.sum(memory), jnp.asarray(2.0)), aux)


def inputs(num_segments):
    x = jax.random.normal(jax.random.key(0), (num_segments, 2, 3))
    weights = jax.random.normal(jax.random.key(1), (3, 3))
    return weights, jnp.zeros((2, 3)), (x, segment_keys(jax.random.key(2), 5, num_segments))


def layered_step(rematerialize):
    """Layers with dropout in a scan, whose gradient crosses segments; they are recomputed where the policy says so."""

    def step(weights, memory, segment):
        x, key = segment

        def layer(x, inputs):
            w, key = inputs
            x = jnp.tanh((x + memory) @ w)
            return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0), None

        if rematerialize in ("per_layer", "segment_nested"):
            layer = jax.checkpoint(layer, prevent_cse=False)
        x, _ = jax.lax.scan(layer, x, (weights, jax.random.split(key, weights.shape[0])))
        return memory + x, WeightedSum(jnp.sum(x**2), jnp.asarray(1.0))

    return step


def gradient(rematerialize, segments_per_checkpoint, num_segments):
    """Of the weights and of the first memory."""
    x, weights = (
        jax.random.normal(jax.random.key(0), (num_segments, 2, 3)),
        jax.random.normal(jax.random.key(1), (4, 3, 3)),
    )
    keys = segment_keys(jax.random.key(2), 5, num_segments)

    def loss(weights, memory):
        _, total = loss_over_segments(
            layered_step(rematerialize),
            weights,
            memory,
            (x, keys),
            rematerialize=rematerialize,
            segments_per_checkpoint=segments_per_checkpoint,
        )
        return total.total

    return jax.jit(jax.grad(loss, (0, 1)))(weights, jnp.ones((2, 3)))


@pytest.mark.parametrize(
    "segments_per_checkpoint", [2, *(pytest.param(number, marks=pytest.mark.laws) for number in (0, 4))]
)
def test_recomputation_changes_no_gradient(segments_per_checkpoint):
    with jax.enable_x64(True):
        plain = gradient("none", 0, 8)
        assert all(leaf.dtype == jnp.float64 and np.abs(leaf).max() > 0.05 for leaf in plain)
        for how in get_args(Rematerialize):
            again = gradient(how, segments_per_checkpoint, 8)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), plain, again)


@pytest.mark.laws
def test_recomputing_one_segment_changes_no_gradient():
    with jax.enable_x64(True):
        plain = gradient("none", 0, 1)
        for how in get_args(Rematerialize):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), plain, gradient(how, 0, 1))


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


def kept(**options):
    """Numbers that the forward pass over 16 segments keeps for the backward pass."""
    weights, memory, segments = inputs(16)
    run = lambda w, memory: loss_over_segments(step, w, memory, segments, **options)[1][0].total
    _, backward = jax.vjp(run, weights, memory)
    return sum(leaf.size for leaf in jax.tree.leaves(backward) if hasattr(leaf, "size"))


def test_only_the_carry_is_saved():
    memories = 16 * 2 * 3
    assert memories <= kept(rematerialize="segment") < kept(rematerialize="none")
    saved = kept(rematerialize="segment") - kept(rematerialize="segment", segments_per_checkpoint=4)
    assert saved == memories - memories // 4


def test_offloaded_memories_go_to_the_host():
    """A CPU's program holds no trace of it: there it is the same memory."""
    weights, memory, segments = inputs(4)

    def mentions_host(rematerialize):
        run = lambda w: loss_over_segments(step, w, memory, segments, rematerialize=rematerialize)[1][0].total
        return "host" in str(jax.make_jaxpr(jax.grad(run))(weights)).lower()

    assert mentions_host("offload") and not mentions_host("segment")


def instructions(attention, num_segments, num_layers, **options):
    """Lines of the lowered train step of a language model."""
    described = config.Model(
        dim=8, num_layers=num_layers, num_heads=2, dropout=0.1, scan_layers=True, attention=attention
    )
    rows = (num_segments, 2, 4)
    tokens, ones, starts = jnp.zeros(rows, jnp.int32), jnp.ones(rows), jnp.zeros(rows[:2], bool)
    batch = Batch(tokens, tokens, ones.astype(bool), ones, starts)
    model = make_language_model(described, 11, rematerialize=options["rematerialize"])
    objective, optimizer = Objective(model_loss(model)), optax.adam(1e-3)

    def init():
        variables = init_variables(model, jax.random.key(0), 4)
        return init_train_state(objective, optimizer, variables, model.init_state(2), batch, jax.random.key(1))

    step = make_train_step(objective, optimizer, **options)
    return len(step.lower(jax.eval_shape(init), batch).as_text().splitlines())


TRANSFORMER_XL = config.TransformerXL(memory_length=4)
MEMORIZING = config.Memorizing(layers_with_memory=(-2,), memory_length=8, num_neighbors=2, cache_length=4)


@pytest.mark.parametrize(
    "attention, numbers, options",
    [
        pytest.param(TRANSFORMER_XL, (4, 16), {"rematerialize": "none"}, marks=pytest.mark.laws),
        (TRANSFORMER_XL, (4, 16), {"rematerialize": "segment_nested"}),
        # Inner functions of equal shapes are written once, so no size here equals another one.
        pytest.param(
            TRANSFORMER_XL,
            (10, 30),
            {"rematerialize": "segment_nested", "segments_per_checkpoint": 2},
            marks=pytest.mark.laws,
        ),
        pytest.param(MEMORIZING, (5, 17), {"rematerialize": "segment_nested"}, marks=pytest.mark.slow),
    ],
    ids=["plain", "nested", "chunks", "memorizing"],
)
def test_the_program_does_not_grow_with_segments_or_layers(attention, numbers, options):
    few, many = numbers
    eight, more_segments, sixteen = (
        instructions(attention, *sizes, **options) for sizes in [(few, 8), (many, 8), (few, 16)]
    )
    assert eight == more_segments > 1000
    # A layer has its own name for what it reports: its number is sliced, added up and gated, and nothing else of it.
    assert 0 <= sixteen - eight <= 8 * 28


def test_keys_differ_by_step_and_segment():
    keys = [jax.random.key_data(segment_keys(jax.random.key(0), step, 2)) for step in (0, 1)]
    assert len({tuple(row.tolist()) for row in np.concatenate(keys)}) == 4
    expected = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), 1)
    np.testing.assert_array_equal(keys[1][1], jax.random.key_data(expected))


def test_segments_of_different_number_are_refused():
    with pytest.raises(ValueError, match=r"segments: given leaves of \[2, 3\] segments"):
        loss_over_segments(step, 1.0, jnp.zeros(1), (jnp.zeros((2, 1)), jnp.zeros((3, 1))))


@pytest.mark.parametrize("given", [3, 8])
def test_segments_per_checkpoint_divide_the_segments(given):
    weights, memory, segments = inputs(4)
    with pytest.raises(
        ValueError, match=f"segments_per_checkpoint: given {given}, allowed: 0 or a divisor of 4 segments"
    ):
        loss_over_segments(step, weights, memory, segments, segments_per_checkpoint=given)
