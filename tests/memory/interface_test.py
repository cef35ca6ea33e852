"""The helpers that know where the batch axis of a state is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.memory.interface import (
    DecodeState,
    LayerState,
    StackState,
    next_position,
    num_rows,
    restore_state,
    save_state,
    select_state,
    state_axes,
    take_rows,
    where_rows,
)
from memjax.memory.memorizing import MemorizingAttention, TokenProjections, reset, write
from memjax.typing import EmptyState

ROWS, LAYERS, MEMORY = 3, 2, 8


def stack_state():
    """A scanned group of two layers, one layer alone, one without a memory; all numbers differ."""
    values = iter(range(1000))
    draw = lambda *shape: jnp.asarray([next(values) for _ in range(int(np.prod(shape)))], jnp.float32).reshape(shape)
    return StackState(
        (
            LayerState({"hidden": draw(LAYERS, ROWS, 4), "count": draw(LAYERS, ROWS)}, EmptyState()),
            LayerState(draw(ROWS, 5), EmptyState()),
            LayerState(EmptyState(), EmptyState()),
        ),
        sizes=(LAYERS, 0, 0),
    )


def ring_state(rows=ROWS):
    return MemorizingAttention(
        dim=8, num_heads=2, head_dim=4, memory_length=MEMORY, num_neighbors=3, cache_length=4, track_positions=True
    ).init_state(rows)


def segment(length, seed, rows=ROWS):
    generator = np.random.default_rng(seed)
    keys, values = (jnp.asarray(generator.normal(size=(rows, length, 2, 4)), jnp.float32) for _ in range(2))
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], (rows, length))
    return TokenProjections(keys, values, jnp.ones((rows, length), bool), positions)


def test_state_axes_and_num_rows():
    state = {"model": stack_state(), "counter": jnp.zeros(ROWS)}
    axes = state_axes(state)
    assert jax.tree.structure(axes) == jax.tree.structure(state)
    assert jax.tree.leaves(axes["model"].groups[0]) == [1, 1]
    assert jax.tree.leaves((axes["model"].groups[1:], axes["counter"])) == [0, 0]
    assert num_rows(state) == ROWS
    assert num_rows(StackState((EmptyState(),), sizes=(4,))) is None


def test_state_axes_of_shapes_and_decode_states():
    shapes = jax.eval_shape(lambda: DecodeState(stack_state(), jnp.zeros((ROWS, 4, 2)), jnp.zeros(ROWS, jnp.int32)))
    axes = state_axes(shapes)
    assert (axes.segment, axes.position) == (0, 0)
    assert jax.tree.leaves(axes.memory) == [1, 1, 0]


@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [0, 0, 2, 2, 1]])
def test_take_rows(rows):
    state = stack_state()
    taken = take_rows(state, jnp.array(rows))
    assert taken.sizes == state.sizes
    np.testing.assert_array_equal(taken.groups[0].attention["hidden"], state.groups[0].attention["hidden"][:, rows])
    np.testing.assert_array_equal(taken.groups[0].attention["count"], state.groups[0].attention["count"][:, rows])
    np.testing.assert_array_equal(taken.groups[1].attention, state.groups[1].attention[jnp.array(rows)])


def test_where_rows():
    a, b = stack_state(), jax.tree.map(lambda leaf: -leaf, stack_state())
    chosen = where_rows(jnp.array([True, False, True]), a, b)
    for row, source in enumerate((a, b, a)):
        one = jnp.array([row])
        for x, y in zip(jax.tree.leaves(take_rows(chosen, one)), jax.tree.leaves(take_rows(source, one)), strict=True):
            np.testing.assert_array_equal(x, y)
    # where there are as many layers as rows, too
    square = StackState((jnp.arange(4.0).reshape(2, 2),), sizes=(2,))
    chosen = where_rows(jnp.array([True, False]), square, jax.tree.map(jnp.zeros_like, square))
    np.testing.assert_array_equal(chosen.groups[0], [[0.0, 0.0], [2.0, 0.0]])


def test_where_rows_keeps_states_without_leaves():
    assert where_rows(jnp.array([True]), EmptyState(), EmptyState()) == EmptyState()


def test_next_position_starts_again_where_a_segment_is_full():
    position = next_position(jnp.array([0, 3, 3]), jnp.array([True, True, False]), 4)
    assert position.tolist() == [1, 0, 3]


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_array_equal(x, y)


def step_and_restore(ok, state, start, tokens):
    """The state before (as it was saved), after one segment, and after keeping or taking back that segment."""
    state, saved = save_state(state, start, tokens.valid.shape[1])
    new = write(reset(state, start), tokens)
    return state, new, restore_state(ok, new, saved)


@pytest.mark.parametrize("length", [4, 3, MEMORY, 11])
def test_a_segment_can_be_taken_back_from_a_ring(length):
    """Before, at and after wrap-around; then one row starts a document and one is idle."""
    step, state = jax.jit(step_and_restore), ring_state()
    for number in range(4):
        last = number == 3
        tokens = segment(length, seed=number)
        tokens = dataclasses.replace(tokens, valid=tokens.valid & jnp.array([True, not last, True])[:, None])
        start = jnp.array([False, False, last])
        same, new, rejected = step(jnp.array(False), state, start, tokens)
        assert_equal(same, state)
        assert_equal(rejected, state)
        assert_equal(step(jnp.array(True), state, start, tokens)[2], new)
        assert not np.array_equal(new.memory.keys, state.memory.keys)
        state = new


def test_a_segment_can_be_taken_back_in_scanned_groups():
    rings = [jax.jit(write)(ring_state(), segment(7, seed)) for seed in range(LAYERS)]
    scanned = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rings)
    state = StackState((LayerState(scanned, EmptyState()), LayerState(rings[0], EmptyState())), sizes=(LAYERS, 0))
    start, tokens = jnp.array([False, True, False]), segment(4, 9)

    @jax.jit
    def step(ok, state):
        same, saved = save_state(state, start, 4)
        one = lambda layer: LayerState(write(reset(layer.attention, start), tokens), layer.feed_forward)
        new = StackState((jax.vmap(one)(same.groups[0]), one(same.groups[1])), same.sizes)
        return same, new, restore_state(ok, new, saved)

    same, new, rejected = step(jnp.array(False), state)
    assert_equal(same, state)
    assert_equal(rejected, state)
    assert_equal(step(jnp.array(True), state)[2], new)
    assert not np.array_equal(new.groups[0].attention.memory.keys, scanned.memory.keys)


def test_scanned_groups_without_arrays_can_be_taken_back():
    state = StackState((LayerState(EmptyState(), EmptyState()),), sizes=(LAYERS,))
    same, saved = save_state(state, jnp.array([False, True]), 4)
    assert same == state and restore_state(jnp.array(False), state, saved) == state


def test_taking_back_copies_no_ring():
    """With the state donated, the program needs less room than one ring beside its arguments."""
    memory = 4096
    state = MemorizingAttention(dim=8, num_heads=2, head_dim=4, memory_length=memory, num_neighbors=3).init_state(1)
    arguments = (jnp.array(False), state, jnp.array([False]), segment(4, 0, rows=1))
    arguments = (*arguments[:3], dataclasses.replace(arguments[3], positions=EmptyState()))
    step = lambda *args: step_and_restore(*args)[2]
    room = jax.jit(step, donate_argnums=1).lower(*arguments).compile().memory_analysis().temp_size_in_bytes
    assert room < state.memory.keys.nbytes / 2

    def copy(ok, state, start, tokens):
        return select_state(ok, write(reset(state, start), tokens), state)

    room = jax.jit(copy, donate_argnums=1).lower(*arguments).compile().memory_analysis().temp_size_in_bytes
    assert room > state.memory.keys.nbytes


def test_select_state():
    old, new = stack_state(), jax.tree.map(lambda leaf: leaf + 1, stack_state())
    assert_equal(select_state(jnp.array(True), new, old), new)
    assert_equal(select_state(jnp.array(False), new, old), old)
