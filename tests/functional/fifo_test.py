"""Rings and shifting memories against a deque; what a write touches, and what XLA makes of it."""

import re
import subprocess
import sys
import textwrap

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import functional
from memjax.functional import order_after, reset_rows, ring_ages
from tests.reference import fifo as reference

ROWS, DIM = 3, 2

# One program per test instead of one per operation.
advance = jax.jit(functional.advance_cursor, static_argnums=2)
shift_append = jax.jit(functional.shift_append)
ring_append = jax.jit(functional.ring_append, static_argnames=("axis", "aligned"))
read_window = jax.jit(functional.read_window, static_argnums=2, static_argnames="axis")
write_window = jax.jit(functional.write_window, static_argnames=("axis", "aligned"))


def ring_order(cursor, memory):
    """Slots of each row from the oldest entry to the newest."""
    return (np.asarray(cursor)[:, None] + np.arange(memory)) % memory


def stream(rng, steps: int, length: int) -> list[np.ndarray]:
    return [rng.normal(size=(ROWS, length, DIM)).astype(np.float32) for _ in range(steps)]


@pytest.mark.parametrize(
    "memory, length, aligned",
    [
        (8, 4, True),
        (8, 4, False),
        (6, 4, False),
        (5, 3, False),
        (4, 4, True),
        (3, 5, False),
        (4, 8, True),
        (7, 1, False),
    ],
)
def test_ring_equals_a_deque(memory, length, aligned):
    """M6, law 7: before, at and after the wrap-around, with rows that idle at different times."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(ROWS, memory, DIM)).astype(np.float32)
    slots, cursor = jnp.asarray(start), jnp.zeros(ROWS, jnp.int32)
    rows = [reference.Row(memory) for _ in range(ROWS)]
    for step, new in enumerate(stream(rng, 2 * memory // length + 4, length)):
        active = np.array([True, step % 3 != 1, step % 2 == 0])
        before = np.asarray(slots)
        slots = ring_append(slots, jnp.asarray(new), cursor, jnp.asarray(active), aligned=aligned)
        cursor = advance(cursor, jnp.where(active, length, 0), memory)
        for b, row in enumerate(rows):
            if active[b]:
                row.append(new[b])
            else:
                assert np.asarray(slots)[b].tobytes() == before[b].tobytes()
            assert np.array_equal(np.asarray(slots)[b], row.ring(start[b]))
            assert int(cursor[b]) == row.written % memory
    newest = ring_order(cursor, memory)[:, -1]
    for b, row in enumerate(rows):
        assert np.array_equal(np.asarray(slots)[b, newest[b]], row.entries[-1][1])


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=20, deadline=None)
def test_ring_of_any_history(data):
    """Rows written by segments of different lengths, padding taking slots that are marked invalid."""
    memory = data.draw(st.sampled_from([3, 5]))
    lengths = data.draw(st.lists(st.sampled_from([1, 2, 7]), min_size=1, max_size=6))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    slots, valid = np.zeros((ROWS, memory, DIM), np.float32), np.zeros((ROWS, memory), bool)
    cursor = jnp.zeros(ROWS, jnp.int32)
    rows = [reference.Row(memory) for _ in range(ROWS)]
    for length in lengths:
        new = rng.normal(size=(ROWS, length, DIM)).astype(np.float32)
        mask = np.arange(length)[None] < rng.integers(0, length + 1, (ROWS, 1))
        active = mask.any(axis=1)
        slots = ring_append(jnp.asarray(slots), jnp.asarray(new), cursor, jnp.asarray(active))
        valid = ring_append(jnp.asarray(valid), jnp.asarray(mask), cursor, jnp.asarray(active))
        cursor = advance(cursor, jnp.where(active, length, 0), memory)
        for b in np.flatnonzero(active):
            rows[b].append([np.append(x, real) for x, real in zip(new[b], mask[b], strict=True)])
    both = np.concatenate([np.asarray(slots), np.asarray(valid)[..., None]], axis=-1)
    for b, row in enumerate(rows):
        assert np.array_equal(both[b], row.ring(np.zeros((memory, DIM + 1))))


@pytest.mark.parametrize("length", [2, 4, 7])
def test_shift_equals_a_deque(length):
    rng = np.random.default_rng(0)
    slots = jnp.zeros((ROWS, 4, DIM))
    row = reference.Row(4)
    for new in stream(rng, 4, length):
        slots = shift_append(slots, jnp.asarray(new))
        row.append(new[1])
        assert np.array_equal(np.asarray(slots)[1], row.aligned(np.zeros((4, DIM))))
    low = jax.ShapeDtypeStruct(slots.shape, jnp.bfloat16)
    assert jax.eval_shape(shift_append, low, jnp.asarray(new)).dtype == jnp.bfloat16


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("aligned", [True, False])
def test_slots_may_be_on_any_axis(axis, aligned):
    rng = np.random.default_rng(0)
    slots, new = rng.normal(size=(ROWS, 6, 2, 4)), rng.normal(size=(ROWS, 3, 2, 4))
    cursor, active = jnp.array([0, 3, 3]), jnp.array([True, True, False])
    expected = ring_append(jnp.asarray(slots), jnp.asarray(new), cursor, active)
    moved = (jnp.asarray(np.moveaxis(x, 1, axis)) for x in (slots, new))
    got = ring_append(*moved, cursor, active, axis=axis, aligned=aligned)
    assert np.array_equal(np.moveaxis(np.asarray(got), axis, 1), expected)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int32, jnp.bool_])
def test_ring_keeps_its_dtype(dtype):
    got = ring_append(jnp.zeros((1, 4), dtype), jnp.ones((1, 2)), jnp.array([2]), jnp.array([True]))
    assert got.dtype == dtype and np.array_equal(got, jnp.array([[0, 0, 1, 1]], dtype))


def test_order_and_ages_are_inverse():
    cursor, memory = jnp.array([0, 2, 4]), 5
    order, ages = ring_order(cursor, memory), np.asarray(ring_ages(cursor, memory))
    assert np.array_equal(order, [[0, 1, 2, 3, 4], [2, 3, 4, 0, 1], [4, 0, 1, 2, 3]])
    for b in range(3):
        assert np.array_equal(ages[b, order[b]], [4, 3, 2, 1, 0])


def test_read_is_the_inverse_of_write():
    rng = np.random.default_rng(0)
    slots, new = jnp.asarray(rng.normal(size=(ROWS, 5, DIM))), jnp.asarray(rng.normal(size=(ROWS, 3, DIM)))
    for start in range(5):
        cursor = jnp.asarray(np.full(ROWS, start, np.int32))
        assert np.array_equal(read_window(write_window(slots, new, cursor), cursor, 3), new)


def test_reset_touches_only_its_rows():
    valid = jnp.array([[True, False], [True, True], [False, True]])
    got = reset_rows(valid, jnp.array([False, True, False]))
    assert np.array_equal(got, [[True, False], [False, False], [False, True]])
    contents = jnp.array([[1.0, 2.0], [np.nan, np.inf], [3.0, 4.0]], jnp.bfloat16)
    got = reset_rows(contents, jnp.array([False, True, False]))
    assert got.dtype == jnp.bfloat16 and np.array_equal(got, [[1, 2], [0, 0], [3, 4]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_])
def test_order_after_changes_nothing(dtype):
    cursor = jnp.array([0, 7, 2**30 - 1], jnp.int32)
    values = [0, 1, -1, 3] + ([np.nan, np.inf, -np.inf, 1e-40] if jnp.issubdtype(dtype, jnp.floating) else [])
    for value in values:
        after = jax.jit(order_after)(cursor, jnp.full((3, 2, 2), value, dtype), jnp.zeros(3))
        assert np.array_equal(after, cursor) and after.dtype == jnp.int32


def test_gradients_pass_through_a_write():
    """Overwritten slots pass no gradient, the others do; entries of idle rows get none."""
    slots, new = jnp.ones((2, 4)), jnp.ones((2, 2))
    cursor, active = jnp.array([3, 1]), jnp.array([True, False])
    weights = jnp.arange(8.0).reshape(2, 4)
    for aligned, start in ((False, cursor), (True, jnp.array([2, 0]))):
        total = lambda s, n, c=start, a=aligned: jnp.sum(weights * ring_append(s, n, c, active, aligned=a))  # noqa: E731
        slopes = jax.jit(jax.grad(total, (0, 1)))(slots, new)
        places = (int(start[0]) + np.arange(2)) % 4
        assert np.array_equal(slopes[1], [np.asarray(weights)[0, places], [0, 0]])
        expected = np.asarray(weights).copy()
        expected[0, places] = 0
        assert np.array_equal(slopes[0], expected)


def test_errors_name_the_argument():
    slots, cursor = jnp.zeros((1, 6)), jnp.zeros(1, jnp.int32)
    with pytest.raises(ValueError, match="aligned: given True for 4 entries"):
        ring_append(slots, jnp.zeros((1, 4)), cursor, aligned=True)
    with pytest.raises(ValueError, match="length: given 7 entries, allowed: up to 6"):
        read_window(slots, cursor, 7)
    with pytest.raises(ValueError, match="length: given 7 entries, allowed: up to 6"):
        write_window(slots, jnp.zeros((1, 7)), cursor)


def copies_of(shape: str, compiled) -> list[str]:
    """Lines of a compiled program that copy a whole array of the shape."""
    return [line for line in compiled.as_text().splitlines() if re.search(rf"{re.escape(shape)}\S* copy\(", line)]


@pytest.mark.parametrize("aligned", [True, False])
def test_a_donated_ring_is_written_in_place(aligned):
    """Even when it is read first, and when the write is undone because the step is rejected."""
    memory, length = 64, 8

    def step(slots, new, cursor, active, ok):
        saved = read_window(slots, cursor, length, axis=2)
        scores = jnp.einsum("bhmd,bhld->bhlm", slots, new)
        written = ring_append(slots, new, order_after(cursor, saved, scores), active, axis=2, aligned=aligned)
        undo = jnp.broadcast_to(~ok, cursor.shape)
        return write_window(written, saved, cursor, undo, axis=2, aligned=aligned), scores.sum()

    rng = np.random.default_rng(0)
    old = rng.normal(size=(2, 3, memory, 4)).astype(np.float32)
    new = jnp.asarray(rng.normal(size=(2, 3, length, 4)), jnp.float32)
    arguments = new, jnp.array([8, 56], jnp.int32), jnp.array([True, False])
    compiled = jax.jit(step, donate_argnums=0).lower(jnp.asarray(old), *arguments, jnp.array(True)).compile()
    assert not copies_of("f32[2,3,64,4]", compiled)
    assert compiled.memory_analysis().alias_size_in_bytes >= old.nbytes
    for ok in (True, False):
        expected = ring_append(jnp.asarray(old), *arguments, axis=2) if ok else old
        assert np.array_equal(compiled(jnp.asarray(old), *arguments, jnp.array(ok))[0], expected)


SHARDED = """
    import re
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    from memjax.functional import read_window, ring_append, write_window

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    put = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, P(*axes)))
    rng = np.random.default_rng(0)
    ring, new = rng.normal(size=(8, 2, 12, 4)).astype("f"), rng.normal(size=(8, 2, 4, 4)).astype("f")
    cursor, active = np.arange(8, dtype="i") % 3 * 4, np.arange(8) % 4 != 1
    sharded = put(ring, "data", "model"), put(new, "data", "model"), put(cursor, "data"), put(active, "data")
    for aligned in (True, False):
        def step(slots, new, cursor, active):
            saved = read_window(slots, cursor, 4, axis=2)
            written = ring_append(slots, new, cursor, active, axis=2, aligned=aligned)
            return write_window(written, saved, cursor, ~active, axis=2, aligned=aligned)
        compiled = jax.jit(step).lower(*sharded).compile()
        assert not re.findall(r"all-gather|all-reduce|collective-permute|all-to-all", compiled.as_text())
        got = compiled(*sharded)
        assert got.sharding.is_equivalent_to(sharded[0].sharding, 4), got.sharding
        assert np.array_equal(got, step(ring, new, cursor, active))
    print("done")
"""


@pytest.mark.slow
def test_sharded_rings_are_written_where_they_are():
    """Rows over one mesh axis and heads over another: no communication, same values, same sharding."""
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHARDED)], env=environment, capture_output=True, text=True
    )
    assert run.stdout.strip() == "done", run.stderr
