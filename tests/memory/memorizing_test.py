"""The Memorizing Transformer against float64 loops, and the invariants M1 to M13 of its specification."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.functional.neighbors import select_neighbors
from memjax.memory.bucket_projector import BucketProjector
from memjax.memory.cross_attention import CrossAttention
from memjax.memory.interface import restore_state, save_state
from memjax.memory.memorizing import MemorizingAttention, MemorizingState
from memjax.models import make_language_model
from memjax.typing import EmptyState
from tests.memory.memorizing_parts import memorizing_part
from tests.reference import memorizing as reference
from tests.reference.parameters import params_of

DIM, HEADS, HEAD_DIM, ROWS, SEGMENT, SEGMENTS = 8, 2, 4, 2, 4, 4
TOKENS = SEGMENT * SEGMENTS
PAPER = {"memory_length": 6, "num_neighbors": 3, "cache_length": 3, "num_buckets": 4, "max_distance": 6}
LOCAL = PAPER | {"memory_length": 0}
MELIAD = PAPER | {"compatibility": "meliad", "retrieval": "exact", "local_window": 0}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**fields) -> MemorizingAttention:
    return memorizing_part(dim=DIM, num_heads=HEADS, head_dim=HEAD_DIM, **{"dtype": jnp.float64, **fields})


def document(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, TOKENS, DIM))


def parameters(**fields) -> dict:
    """Random ones, the same for all options that have them; the scale of one head is negative."""
    part = make(**PAPER | {"track_positions": False})
    params = params_of(part, jnp.zeros((1, 1, DIM)), part.init_state(1), start_of_document=jnp.ones(1, bool))
    params |= {"scale": np.array([2.5, -1.5]), "gate": np.array([0.4, -0.7])}
    meliad = fields.get("compatibility") == "meliad"
    unused = {
        "gate": not fields.get("memory_length") or fields.get("merge", "gate") != "gate",
        "scale": not fields.get("query_key_norm", True),
        "position_bias": not fields.get("num_buckets", 32) or (meliad and fields.get("memory_length", 0) > 0),
    }
    return {name: value for name, value in params.items() if not unused.get(name)}


@functools.cache
def compiled(**fields):
    """A whole document, segment by segment: outputs, the states after each segment, and the arrays of `Aux`."""
    part = make(**fields)

    @jax.jit
    def run(params, x, starts, mask):
        cut = lambda a: jnp.moveaxis(a.reshape(ROWS, SEGMENTS, SEGMENT, *a.shape[2:]), 1, 0)

        def step(state, batch):
            x, start, mask = batch
            y, state, aux = part.apply({"params": params}, x, state, start_of_document=start, mask=mask)
            return state, (y, state, aux)

        _, (y, states, aux) = jax.lax.scan(step, part.init_state(ROWS, x.dtype), (cut(x), starts.T, cut(mask)))
        return jnp.moveaxis(y, 0, 1).reshape(x.shape), states, aux

    return run


def run(x: np.ndarray, params: dict | None = None, *, starts=None, mask=None, **fields):
    starts = np.arange(SEGMENTS)[None, :] == np.zeros((ROWS, 1)) if starts is None else starts
    mask = np.ones(x.shape[:2], bool) if mask is None else mask
    out = compiled(**fields)(parameters(**fields) if params is None else params, x, starts, mask)
    return jax.tree.map(np.asarray, out)


def expect(x: np.ndarray, params: dict | None = None, *, starts=None, mask=None, **fields):
    """Outputs and what was retrieved, by the reference."""
    rows = [expected_row(x, row, params, starts, mask, fields) for row in range(ROWS)]
    return np.stack([y for y, _, _ in rows]), [found for _, found, _ in rows], [state for _, _, state in rows]


def expected_row(x, row: int, params, starts, mask, fields):
    fields = dict(fields)
    params = parameters(**fields) if params is None else params
    fields["meliad"] = fields.pop("compatibility", "paper") == "meliad"
    fields["write"] = fields.pop("write_policy", "current")
    for name in ("num_buckets", "track_positions", "recall_target"):
        fields.pop(name, None)
    if fields.get("retrieval") in ("threshold", "approximate"):
        fields["retrieval"] = "exact"
    if fields["meliad"]:
        fields = {"retrieval": "bucket", "local_window": fields["cache_length"]} | fields
    state, outputs, retrieved = reference.Row(params, **fields), [], []
    for index in range(SEGMENTS):
        if starts is not None and starts[row, index]:
            state.start()
        place = slice(index * SEGMENT, (index + 1) * SEGMENT)
        y, found = state.read(x[row, place], None if mask is None else mask[row, place])
        outputs.append(y)
        retrieved += found
    return np.concatenate(outputs), retrieved, state


VARIANTS = {
    "paper": PAPER,
    "local only": LOCAL,
    "joint, evicted, window": PAPER
    | {"merge": "joint", "write_policy": "evicted", "local_window": 3, "memory_length": 7, "track_positions": True},
    "add, buckets, no norm of keys": PAPER | {"merge": "add", "retrieval": "bucket", "query_key_norm": False},
    "bias scaled without norm of keys": LOCAL | {"query_key_norm": False, "bias_scaling": "always"},
    "stop forward, long memory": PAPER | {"merge": "stop_forward", "memory_length": 11, "num_buckets": 0},
    "gate by threshold": PAPER | {"retrieval": "threshold"},
    "joint by threshold": PAPER | {"merge": "joint", "retrieval": "threshold", "write_policy": "evicted"},
    "all of the memory": PAPER | {"memory_length": 9, "num_neighbors": 9},
    "meliad": MELIAD,
    "meliad, buckets, window": PAPER | {"compatibility": "meliad"},
    "meliad, layer without memory": LOCAL | {"compatibility": "meliad", "local_window": 0},
    "meliad, stop forward": MELIAD | {"merge": "stop_forward"},
    "meliad, gate by threshold": MELIAD | {"retrieval": "threshold"},
    "meliad, joint by threshold": MELIAD | {"retrieval": "threshold", "merge": "joint", "memory_length": 7},
}


FAST = (
    "paper",
    "joint, evicted, window",
    "add, buckets, no norm of keys",
    "all of the memory",
    "meliad, buckets, window",
    "meliad, joint by threshold",
)
"""Each option at least once; `make test-laws` runs all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.laws) for name in VARIANTS]
)
def test_equals_the_float64_reference(name):
    x, fields = document(), VARIANTS[name]
    expected, _, _ = expect(x, **fields)
    np.testing.assert_allclose(run(x, **fields)[0], expected, atol=1e-10)


# M1, M2


def test_all_neighbors_are_full_attention_over_the_memory():
    # "all of the memory" above retrieves 9 of 9 slots; the reference without a search is attention over all of them.
    x, fields = document(), VARIANTS["all of the memory"]
    expected, _, _ = expect(x, **fields | {"num_neighbors": None})
    np.testing.assert_allclose(run(x, **fields)[0], expected, atol=1e-10)


def test_the_threshold_form_equals_the_search():
    x = document()
    np.testing.assert_allclose(run(x, **VARIANTS["gate by threshold"])[0], run(x, **PAPER)[0], atol=1e-12)


def test_the_approximate_search_is_exact_off_a_tpu():
    rng = np.random.default_rng(0)
    queries, keys = (jnp.asarray(rng.normal(size=(1, 2, length, 4)), jnp.float32) for length in (3, 20))
    valid = jnp.asarray(rng.random((1, 20)) < 0.5)
    exact = select_neighbors(queries, keys, valid, 4)
    for found, wanted in zip(select_neighbors(queries, keys, valid, 4, method="approximate"), exact, strict=True):
        np.testing.assert_array_equal(found, wanted)


# M3


def test_a_closed_gate_is_local_attention_and_an_open_one_is_memory_alone():
    x, params = document(), parameters(**PAPER)
    closed = run(x, params | {"gate": np.full(HEADS, -1e9)}, **PAPER)[0]
    np.testing.assert_allclose(closed, run(x, **LOCAL)[0], atol=1e-12)
    opened = run(x, params | {"gate": np.full(HEADS, 1e9)}, **PAPER)[0]
    expected, _, _ = expect(x, **PAPER | {"merge": "stop_forward"})
    np.testing.assert_allclose(opened, expected, atol=1e-10)


# M4 is "joint" above; M5


def test_joint_merge_over_everything_is_plain_causal_attention():
    fields = {"memory_length": TOKENS, "num_neighbors": TOKENS, "merge": "joint", "num_buckets": 0}
    x, params = document(), parameters(**fields)
    found = run(x, params, **fields)[0]
    normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * params["layer_norm"]["scale"]
    queries, keys, values = (np.einsum("btd,dhf->bhtf", normed, params[name]) for name in ("query", "key", "value"))
    queries, keys = (a / np.sqrt((a**2).sum(axis=-1, keepdims=True) + 1e-6) for a in (queries, keys))
    scores = np.abs(params["scale"])[None, :, None, None] * np.einsum("bhtf,bhsf->bhts", queries, keys)
    weights = np.exp(scores) * np.tri(TOKENS)
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = x + np.einsum("bhts,bhsf,hfd->btd", weights, values, params["output"])
    np.testing.assert_allclose(found, expected, atol=1e-10)


# M6


@pytest.mark.parametrize(
    "name", ("paper", "joint, evicted, window", pytest.param("stop forward, long memory", marks=pytest.mark.laws))
)
def test_the_memory_is_the_last_keys_and_values(name):
    x, fields = document(), VARIANTS[name]
    mask = np.ones((ROWS, TOKENS), bool)
    mask[1, -2:] = False  # a document that ends inside the last segment
    states = run(x, mask=mask, **fields)[1]
    for row, expected in enumerate(expect(x, mask=mask, **fields)[2]):
        memory = jax.tree.map(lambda leaf, row=row: leaf[-1, row], states.memory)
        assert memory.cursor == TOKENS % fields["memory_length"]
        # Compared from the oldest on: what leaves an empty cache takes a slot here, and none in the reference.
        order = [slot % len(memory.valid) for slot in range(memory.cursor, memory.cursor + len(memory.valid))]
        order = [slot for slot in order if memory.valid[slot]]
        oldest = [expected.slots[(expected.cursor + i) % len(expected.slots)] for i in range(len(expected.slots))]
        entries = [entry for entry in oldest if entry is not None and entry.valid]
        assert len(order) == len(entries)
        for slot, entry in zip(order, entries, strict=True):
            np.testing.assert_allclose(memory.keys[:, slot], entry.key, atol=1e-12)
            np.testing.assert_allclose(memory.values[:, slot], entry.value, atol=1e-12)


# M7


def test_a_document_start_clears_its_row_only():
    x = document()
    starts = np.zeros((ROWS, SEGMENTS), bool)
    starts[:, 0] = starts[1, 2] = True
    y, states, _ = run(x, starts=starts, **PAPER)
    carried, carried_states, _ = run(x, **PAPER)
    np.testing.assert_array_equal(y[0], carried[0])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:, 0], b[:, 0]), states, carried_states)
    np.testing.assert_allclose(y, expect(x, starts=starts, **PAPER)[0], atol=1e-10)
    assert np.abs(y[1, 8:] - carried[1, 8:]).max() > 1e-3
    # Nothing in memory: the gate does not dilute what is local.
    first = slice(2 * SEGMENT, 3 * SEGMENT)
    np.testing.assert_allclose(y[1, first], run(x, starts=starts, **LOCAL)[0][1, first], atol=1e-12)


# M8


@pytest.mark.parametrize(
    "name", ("paper", "joint, evicted, window", "gate by threshold", pytest.param("meliad", marks=pytest.mark.laws))
)
def test_outputs_do_not_depend_on_later_tokens(name):
    x, fields = document(), VARIANTS[name]
    y = run(x, **fields)[0]
    for token in (0, 5, 7, 10):
        changed = x.copy()
        changed[:, token + 1 :] = document(seed=1)[:, token + 1 :]
        np.testing.assert_array_equal(run(changed, **fields)[0][:, : token + 1], y[:, : token + 1])
    assert (np.abs(run(changed, **fields)[0][:, 11:] - y[:, 11:]).max(axis=-1) > 1e-3).all()


# M9


@functools.cache
def gradients(merge: str):
    """By parameters, first and second segment, of a loss on the second."""
    part, start = make(**PAPER | {"merge": merge}), jnp.zeros(ROWS, bool)
    x, goal = document()[:, :SEGMENT], document(seed=3)[:, :SEGMENT]
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[1]), run(document(seed=2), **PAPER)[1])

    def loss(params, first, second):
        _, between, _ = part.apply({"params": params}, first, state, start_of_document=start)
        y, _, _ = part.apply({"params": params}, second, between, start_of_document=start)
        return (y * goal).sum()

    found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    return lambda params: found(params, x, jnp.cos(x))


def test_gradients_reach_queries_through_the_memory_and_nothing_that_is_stored():
    opened = parameters(**PAPER) | {"gate": np.full(HEADS, 1e9)}
    by_params, by_first, by_second = gradients("gate")(opened)
    assert not np.asarray(by_first).any()
    assert np.abs(by_second).max() > 1e-3
    for name in ("query", "scale", "output"):
        assert np.abs(by_params[name]).max() > 1e-4, name
    for name in ("key", "value"):  # with an open gate only local attention could teach them
        assert not np.asarray(by_params[name]).any(), name


@pytest.mark.parametrize("merge", ("gate", "stop_forward"))
def test_the_gate_learns_and_stop_forward_trains_the_local_path(merge):
    by_params, by_first, _ = gradients(merge)(parameters(**PAPER | {"merge": merge}))
    assert not np.asarray(by_first).any()
    assert ("gate" in by_params) == (merge == "gate")
    for name, gradient in jax.tree_util.tree_leaves_with_path(by_params):
        assert np.abs(gradient).max() > 1e-4, name


# M10


def test_the_last_token_reads_a_segment_with_biases_as_attention_over_a_source_does():
    fields = {"bias": True, "norm_kind": "layer", "dtype": jnp.float64}
    causal = make(query_key_norm=False, num_buckets=0, **fields)
    whole, x = CrossAttention(DIM, HEADS, HEAD_DIM, **fields), jnp.asarray(document())
    first = {"start_of_document": jnp.ones(ROWS, bool)}
    params = params_of(causal, x, causal.init_state(ROWS), **first)
    assert {name for name in params if name.endswith("bias")} == {
        f"{n}_bias" for n in ("query", "key", "value", "output")
    }
    read = jax.jit(lambda params: causal.apply({"params": params}, x, causal.init_state(ROWS), **first)[0][:, -1])
    expected = jax.jit(lambda params: whole.apply({"params": params}, x, x, None, method="attend")[:, -1])
    np.testing.assert_allclose(read(params), expected(params), atol=1e-12)


def test_the_size_of_keys_does_not_matter_with_query_key_norm():
    x, params = document(), parameters(**PAPER)
    y = run(x, params, **PAPER)[0]
    for factor in (0.5, 7.0):
        scaled = run(x, params | {"key": factor * params["key"]}, **PAPER)[0]
        np.testing.assert_allclose(scaled, y, atol=2e-5)  # the epsilon under the root is 1e-6


# M11


def test_buckets_find_63_percent():
    heads, length, memory, neighbors = 4, 16, 512, 16
    rng = np.random.default_rng(0)
    queries, keys = (jnp.asarray(rng.normal(size=(1, heads, n, 8)), jnp.float32) for n in (length, memory))
    valid = jnp.ones((1, memory), bool)
    exact, _ = select_neighbors(queries, keys, valid, neighbors)
    bucket, real = select_neighbors(queries, keys, valid, neighbors, method="bucket")
    assert real.all()
    found = (np.asarray(exact)[..., :, None] == np.asarray(bucket)[..., None, :]).any(axis=-1)
    assert abs(found.mean() - (1 - (1 - 1 / neighbors) ** neighbors)) < 0.04


# M12, M13


def test_the_memory_of_evaluation_may_be_longer_than_that_of_training():
    x, params = document(), parameters(**PAPER)
    before = run(x, params, **PAPER)
    longer = VARIANTS["all of the memory"]
    y = run(x, params, **longer)[0]
    np.testing.assert_allclose(y, expect(x, params, **longer)[0], atol=1e-10)
    assert np.abs(y - before[0]).max() > 1e-3
    jax.tree.map(np.testing.assert_array_equal, run(x, params, **PAPER), before)  # states share nothing
    shapes = lambda fields: jax.tree.map(np.shape, init_shapes(**fields))
    assert shapes(PAPER) == shapes(longer)


def init_shapes(**fields):
    return jax.eval_shape(functools.partial(init, **fields))


def init(**fields):
    part = make(**fields)
    given = {"start_of_document": jnp.ones(1, bool)}
    return part.init({"params": jax.random.key(0)}, jnp.zeros((1, 1, DIM)), part.init_state(1), **given)


# Positions of retrieved tokens


TRACKED = PAPER | {"track_positions": True}


@pytest.mark.parametrize("fields", (TRACKED, VARIANTS["joint, evicted, window"]))
def test_retrieved_positions_are_those_of_the_document(fields):
    x = document()
    starts = np.zeros((ROWS, SEGMENTS), bool)
    starts[:, 0] = starts[1, 1] = True  # row 1 reads a second document, that counts from 0
    y, states, aux = run(x, starts=starts, **fields)
    expected, retrieved, rows = expect(x, starts=starts, **fields)
    np.testing.assert_allclose(y, expected, atol=1e-10)
    arrays = {name: np.moveaxis(value, 0, 1) for name, value in aux.arrays.items()}  # [row, segment, head, l, k]
    for row in range(ROWS):
        for token in range(TOKENS):
            for head in range(HEADS):
                place = (row, token // SEGMENT, head, token % SEGMENT)
                want = retrieved[row][token][head]
                count = len(want.positions)
                positions, weights = arrays["neighbor_positions"][place], arrays["neighbor_weights"][place]
                assert positions.dtype == np.int32
                np.testing.assert_array_equal(positions[:count], want.positions)
                np.testing.assert_allclose(weights[:count], want.weights, atol=1e-10)
                assert (positions[count:] == -1).all() and (weights[count:] == 0).all()
    np.testing.assert_array_equal(states.document_position[-1], [state.tokens for state in rows])


def test_without_tracking_there_are_no_arrays():
    _, states, aux = run(document(), **PAPER)
    assert aux.arrays == {} and states.document_position == EmptyState() and states.memory.positions == EmptyState()


# Decoding


@pytest.mark.parametrize(
    "fields",
    (
        TRACKED,
        # Of these, the laws have a case each: decoding in float32.
        *(
            pytest.param(VARIANTS[name], marks=pytest.mark.laws)
            for name in ("joint, evicted, window", "meliad, buckets, window")
        ),
    ),
)
def test_decoding_equals_segments(fields):
    part, x, params = make(**fields), document(), parameters(**fields)
    expected, states, _ = run(x, params, **fields)

    @jax.jit
    def decode(params, x):
        start = part.init_decode_state(part.init_state(ROWS, x.dtype), SEGMENT, ROWS)

        def token(carry, tokens):
            # row 1 pauses at every third step: rows are out of phase
            active = jnp.stack([jnp.ones((), bool), carry[1] % 3 != 2])
            x = jnp.take_along_axis(tokens, carry[2][:, None, None], axis=1)
            y, state = part.apply({"params": params}, x, carry[0], active=active, method="decode")
            places = jnp.minimum(carry[2] + active, TOKENS - 1)
            return (state, carry[1] + 1, places), (y[:, 0], active, carry[2])

        steps = jnp.zeros((), jnp.int32), jnp.zeros(ROWS, jnp.int32)
        carry, outputs = jax.lax.scan(lambda c, _: token(c, x), (start, *steps), None, length=TOKENS)
        return carry[0], outputs

    end, (y, active, places) = decode(params, x)
    for step in range(TOKENS):
        for row in range(ROWS):
            if active[step, row]:
                place = places[step, row]
                np.testing.assert_allclose(y[step, row], expected[row, place], atol=1e-10)
    after = jax.tree.map(lambda leaf: leaf[-1][0], states)  # row 0 has read everything
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), jax.tree.map(lambda leaf: leaf[0], end.memory), after
    )
    assert int(end.position[0]) == 0 and int(end.position[1]) == int(active[:, 1].sum()) % SEGMENT


# The rest of the state


def test_padding_is_not_read_and_an_idle_row_keeps_its_state():
    x = document()
    mask = np.ones((ROWS, TOKENS), bool)
    mask[0, 6:8] = False
    mask[1, 4:8] = False
    y, states, aux = run(x, mask=mask, **PAPER)
    expected, _, _ = expect(x, mask=mask, **PAPER)
    np.testing.assert_allclose(y[mask], expected[mask], atol=1e-10)
    before, idle = (jax.tree.map(lambda leaf, i=i: leaf[i, 1], states) for i in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, before, idle)
    np.testing.assert_array_equal(aux.metrics["gate"].weight, [8, 2, 8, 8])
    opening = (1 / (1 + np.exp(-parameters(**PAPER)["gate"]))).mean()
    np.testing.assert_allclose(aux.metrics["gate"].total, opening * np.array([8, 2, 8, 8]), rtol=1e-6)


def test_a_rejected_step_restores_the_window_that_was_written():
    _, states, _ = run(document(), **TRACKED)
    at = lambda index: jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), states)
    starts = jnp.zeros((ROWS,), bool)
    select = jax.jit(lambda ok, new, old: restore_state(ok, new, save_state(old, starts, SEGMENT)[1]))
    for old, new in ((at(0), at(1)), (at(1), at(2))):  # the second one wraps around
        jax.tree.map(np.testing.assert_array_equal, select(False, new, old), old)
        jax.tree.map(np.testing.assert_array_equal, select(True, new, old), new)


def test_a_bfloat16_memory_keeps_its_dtype_and_stays_close():
    x, params = document().astype(np.float32)[:, :SEGMENT], parameters(**PAPER)
    part = make(**PAPER | {"dtype": jnp.float32})
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
    exact = jax.tree.map(lambda leaf: jnp.asarray(leaf[1]), run(document(seed=2), **PAPER)[1])
    stored = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == np.float64 else leaf, exact)
    made = part.init_state(ROWS, jnp.bfloat16)
    assert jax.tree.map(lambda leaf: leaf.dtype, stored) == jax.tree.map(lambda leaf: leaf.dtype, made)
    call = jax.jit(lambda p, x, s: part.apply({"params": p}, x, s, start_of_document=jnp.zeros(ROWS, bool)))
    y, new, _ = call(params, x, stored)
    assert y.dtype == np.float32
    assert jax.tree.map(lambda leaf: leaf.dtype, new) == jax.tree.map(lambda leaf: leaf.dtype, stored)
    rows = [reference_from(exact, row) for row in range(ROWS)]
    expected = np.stack([state.read(x[row].astype(np.float64))[0] for row, state in enumerate(rows)])
    np.testing.assert_allclose(y, expected, atol=0.05)


def reference_from(state: MemorizingState, row: int) -> reference.Row:
    """The reference with the contents of a state."""
    fields = {name: value for name, value in PAPER.items() if name != "num_buckets"}
    found = reference.Row(parameters(**PAPER), **fields)
    cache, memory = state.cache, state.memory
    entry = lambda keys, values, valid: reference.Entry(np.asarray(keys), np.asarray(values), -1, bool(valid))
    found.cache.extend(entry(cache.keys[row, i], cache.values[row, i], cache.valid[row, i]) for i in range(3))
    found.slots = [entry(memory.keys[row, :, i], memory.values[row, :, i], memory.valid[row, i]) for i in range(6)]
    return found


# Numerics and dropout


def test_a_learned_scale_is_not_rounded_to_bfloat16():
    part = make(**LOCAL | {"dtype": jnp.bfloat16, "num_buckets": 0})
    params = jax.tree.map(np.float32, parameters(**LOCAL | {"num_buckets": 0}))
    x, call = jnp.asarray(document()[:, :SEGMENT], jnp.float32), {"start_of_document": jnp.ones(ROWS, bool)}
    read = jax.jit(lambda params: part.apply({"params": params}, x, part.init_state(ROWS), **call)[0])
    near = [np.asarray(read(params | {"scale": np.full(HEADS, scale, np.float32)})) for scale in (11.31, 11.33, 11.34)]
    assert len({array.tobytes() for array in near}) == 3


@pytest.mark.parametrize("place", ("outputs", pytest.param("inputs", marks=pytest.mark.laws)))
def test_where_dropout_falls(place):
    part, x = (
        make(**PAPER | {"dropout": 0.5, "attention_dropout": 0.5, "dropout_on": place}),
        jnp.asarray(document()),
    )
    # What was retrieved, alone.
    params = jax.tree.map(jnp.asarray, parameters(**PAPER) | {"gate": np.full(HEADS, 1e9)})
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[1]), run(document(seed=2), **PAPER)[1])

    @functools.partial(jax.jit, static_argnames="rates")
    def read(seed, rates):
        noisy, key = part.clone(**dict(rates)), {"dropout": jax.random.key(seed)}
        call = {"start_of_document": jnp.zeros(ROWS, bool), "deterministic": False, "rngs": key}
        y, after, _ = noisy.apply({"params": params}, x[:, :SEGMENT], state, **call)
        return y, after.cache.keys

    varies = lambda rates: [np.any(np.asarray(a) != b) for a, b in zip(read(0, rates), read(1, rates), strict=True)]
    drops_inputs = place == "inputs"
    # Of outputs, the stored keys are whole; of inputs, the weights of retrieved keys are.
    assert varies((("attention_dropout", 0.0),)) == [True, drops_inputs]
    assert varies((("dropout", 0.0),)) == [not drops_inputs, False]


def test_what_the_compatibility_implies():
    paper, meliad = (config.Memorizing(cache_length=6, compatibility=side) for side in ("paper", "meliad"))
    assert [part.attention_span(4) for part in (paper, meliad)] == [10, 6]
    assert [part.sorts_all_scores for part in (paper, meliad)] == [True, False]
    for part, dropped in ((paper, 0.3), (meliad, 0.0), (dataclasses.replace(meliad, dropout_on="outputs"), 0.3)):
        model = make_language_model(config.Model(attention=part, dropout=0.3), 10)
        assert model.dropout == dropped and model.stack.layers[0].attention.dropout == 0.3
        assert model.stack.layers[0].feed_forward.hidden_dropout == (dropped > 0)
    scales = [
        jax.jit(functools.partial(init, compatibility=side))()["params"]["scale"].tolist()
        for side in ("paper", "meliad")
    ]
    assert scales == [[2.0, 2.0], [1.0, 1.0]]


def test_the_gate_of_rows_that_retrieved_something():
    starts = np.arange(SEGMENTS)[None, :] == np.array([[0], [1]])  # in the second segment row 1 has nothing yet
    _, _, aux = run(document(), starts=starts, **PAPER)
    share = aux.metrics["memorizing/memory_share"]
    np.testing.assert_array_equal(share.weight, [0, 4, 8, 8])
    np.testing.assert_allclose(share.total[1:], (aux.metrics["gate"].total * [0, 0.5, 1, 1])[1:], rtol=1e-6)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"memory_length": 4, "num_neighbors": 5}, "num_neighbors: given 5, allowed: 1 to memory_length = 4"),
        ({"memory_length": 4, "num_neighbors": 2, "write_policy": "evicted"}, "write_policy: given 'evicted'"),
    ],
)
def test_impossible_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        make(**fields).init_state(1)


def test_fields_are_the_ones_of_the_configuration():
    fields = {field.name for kind in (MemorizingAttention, BucketProjector) for field in dataclasses.fields(kind)}
    wanted = {field.name for field in dataclasses.fields(config.Memorizing)} - {"layers_with_memory", "compatibility"}
    assert wanted <= fields
