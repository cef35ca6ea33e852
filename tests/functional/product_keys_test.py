"""The search among product keys, sums of rows and updates of rows, against loops that write everything out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.functional.product_keys import candidate_pairs, lookup_spread, select_product_keys, top_slots
from memjax.functional.table_rows import gradient_of_rows, lookup_rows, sum_rows, update_rows
from tests.reference import product_keys as reference

HALF = 3
select = jax.jit(select_product_keys, static_argnums=2)


def random_inputs(num_keys, heads, tokens=5, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(tokens, heads, 2, HALF)), generator.normal(size=(heads, 2, num_keys, HALF))


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


# The search


@pytest.mark.parametrize("num_neighbors, kept", [(1, 1), (4, 8), (8, 20), (16, 50), (32, 119), (64, 280)])
def test_the_number_of_candidates(num_neighbors, kept):
    first, second = candidate_pairs(num_neighbors)
    assert len(first) == len(second) == kept


@pytest.mark.parametrize("num_keys, heads, num_neighbors", [(8, 1, 8), (8, 3, 1), (8, 2, 5), (32, 2, 7), (64, 4, 32)])
def test_the_best_of_all_slots_are_found(num_keys, heads, num_neighbors, float64):
    queries, keys = random_inputs(num_keys, heads)
    ids, scores = select(jnp.asarray(queries), jnp.asarray(keys), num_neighbors)
    expected_ids, expected_scores = reference.best_slots(queries, keys, num_neighbors)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=1e-12)
    assert ids.dtype == jnp.int32


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**31))
def test_pruned_candidates_lose_nothing(num_neighbors, seed):
    generator = np.random.default_rng(seed)
    # Small integers: many ties.
    lists = np.sort(generator.integers(0, 6, (2, num_neighbors)), axis=1)[:, ::-1]
    every = np.sort((lists[0][:, None] + lists[1][None]).ravel())[::-1][:num_neighbors]
    first, second = candidate_pairs(num_neighbors)
    pruned = np.sort(lists[0][first] + lists[1][second])[::-1][:num_neighbors]
    np.testing.assert_array_equal(pruned, every)


def test_ties_have_the_scores_of_the_best():
    # All sub-keys alike: any choice is right, but each slot must be chosen once.
    ids, scores = select(jnp.ones((1, 1, 2, HALF)), jnp.ones((1, 2, 4, HALF)), 4)
    assert len(set(np.asarray(ids).ravel().tolist())) == 4
    np.testing.assert_array_equal(scores, np.full((1, 1, 4), 2 * HALF))


def test_permuted_sub_keys_permute_slots_and_a_constant_moves_no_weight(float64):
    queries, keys = random_inputs(6, 2)
    best = lambda queries, keys: select(jnp.asarray(queries), jnp.asarray(keys), 4)
    ids, scores = best(queries, keys)
    order = np.array([3, 0, 5, 1, 4, 2])
    permuted, same = best(queries, keys[:, :, order])
    renamed = order[np.asarray(permuted) // 6] * 6 + order[np.asarray(permuted) % 6]
    np.testing.assert_array_equal(renamed, ids)
    np.testing.assert_allclose(same, scores, rtol=0, atol=1e-12)
    # A constant on all scores of one half: one more dimension of the query, equal in all its sub-keys.
    longer = np.concatenate([queries, np.ones((*queries.shape[:-1], 1))], axis=-1)
    constant = np.concatenate([keys, np.zeros((*keys.shape[:-1], 1))], axis=-1)
    constant[:, 0, :, -1] = 2.5
    shifted_ids, shifted = best(longer, constant)
    np.testing.assert_array_equal(shifted_ids, ids)
    np.testing.assert_allclose(jax.nn.softmax(shifted), jax.nn.softmax(scores), rtol=0, atol=1e-12)


def test_bfloat16_queries_mostly_find_the_same_slots():
    generator = np.random.default_rng(0)
    queries = generator.normal(size=(64, 4, 2, 16)).astype(np.float32)
    keys = jnp.asarray(generator.normal(size=(4, 2, 16, 16)), jnp.float32)
    rounded = jnp.asarray(queries, jnp.bfloat16)
    ids, scores = select(rounded, keys, 2)
    # What rounding alone does to queries and keys, without any rounding in between.
    exact, _ = reference.best_slots(
        np.asarray(rounded, np.float64), np.asarray(keys.astype(jnp.bfloat16), np.float64), 2
    )
    assert scores.dtype == jnp.float32
    pairs = zip(np.asarray(ids).reshape(-1, 2), exact.reshape(-1, 2), strict=True)
    assert np.mean([len(set(a) & set(b)) for a, b in pairs]) / 2 > 0.99


def test_more_neighbors_than_sub_keys_are_refused():
    queries, keys = random_inputs(4, 1)
    with pytest.raises(ValueError, match="num_neighbors: given 5, allowed: 1 to 4, the sub-keys of each half"):
        select_product_keys(jnp.asarray(queries), jnp.asarray(keys), 5)


# The whole read


def read(queries, keys, table, sink=None, num_neighbors=3, lookups_at_once=8):
    ids, scores = select_product_keys(queries, keys, num_neighbors)
    flat = lambda x: x.reshape(len(queries), -1)
    weights = flat(jax.nn.softmax(scores))
    return sum_rows(table, flat(ids), weights, sink, lookups_at_once=lookups_at_once), flat(ids), weights


def dense_read(queries, keys, table, num_neighbors=3):
    """Softmax over the best of a matrix of all scores, differentiated as it stands."""
    first, second = (jnp.einsum("nhd,hkd->nhk", queries[:, :, p], keys[:, p]) for p in (0, 1))
    every = (first[..., :, None] + second[..., None, :]).reshape(*first.shape[:2], -1)
    edge = jnp.sort(every, axis=-1)[..., -num_neighbors, None]
    weights = jax.nn.softmax(jnp.where(every >= edge, every, -jnp.inf), axis=-1)
    return jnp.einsum("nhs,sd->nd", weights, table)


@pytest.mark.parametrize("heads, num_neighbors", [(1, 1), (2, 3)])
def test_output_and_gradients_equal_the_dense_ones(heads, num_neighbors, float64):
    queries, keys = (jnp.asarray(x) for x in random_inputs(4, heads, tokens=6))
    generator = np.random.default_rng(1)
    table, direction = jnp.asarray(generator.normal(size=(16, 5))), jnp.asarray(generator.normal(size=(6, 5)))

    def loss(queries, keys, sink):
        y, ids, weights = read(queries, keys, table, sink, num_neighbors)
        return (y**2 * direction).sum(), (y, ids, weights)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
    (to_queries, to_keys, to_sink), (y, ids, weights) = gradient(queries, keys, jnp.zeros((6, 5)))
    np.testing.assert_allclose(y, reference.memory(queries, keys, np.asarray(table), num_neighbors), rtol=0, atol=1e-12)
    dense = lambda *args: (dense_read(*args, num_neighbors) ** 2 * direction).sum()
    expected = jax.jit(jax.grad(dense, argnums=(0, 1, 2)))(queries, keys, table)
    np.testing.assert_allclose(to_queries, expected[0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(to_keys, expected[1], rtol=0, atol=1e-11)
    to_table = jax.jit(functools.partial(gradient_of_rows, lookups_at_once=7))(table, ids, weights, to_sink)
    np.testing.assert_allclose(to_table, expected[2], rtol=0, atol=1e-11)
    # Only rows that were read have a gradient.
    assert set(np.flatnonzero(np.any(np.asarray(to_table) != 0, axis=1))) == set(np.asarray(ids).ravel())


def test_one_neighbor_gives_the_sum_of_the_best_values_of_all_heads():
    queries, keys = random_inputs(5, 3)
    table = np.random.default_rng(2).normal(size=(25, 4))
    run = jax.jit(functools.partial(read, num_neighbors=1))
    y, ids, _ = run(*(jnp.asarray(x, jnp.float32) for x in (queries, keys, table)))
    np.testing.assert_allclose(y, table[np.asarray(ids)].sum(axis=1), rtol=0, atol=1e-5)


def test_the_table_has_the_gradient_where_no_sink_takes_it():
    queries, keys = (jnp.asarray(x, jnp.float32) for x in random_inputs(4, 2))
    table = jnp.asarray(np.random.default_rng(2).normal(size=(16, 3)), jnp.float32)
    y, ids, weights = jax.jit(read)(queries, keys, table)
    loss = lambda queries, table, sink: (read(queries, keys, table, sink)[0] ** 2).sum()
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))
    to_queries, to_table = gradients(queries, table, None)
    by_hand = jax.jit(jax.grad(lambda table: (jnp.einsum("nl,nld->nd", weights, table[ids]) ** 2).sum()))(table)
    np.testing.assert_allclose(to_table, by_hand, rtol=1e-5, atol=1e-5)
    with_sink = gradients(queries, table, jnp.zeros_like(y))
    assert not np.asarray(with_sink[1]).any()
    np.testing.assert_array_equal(to_queries, with_sink[0])
    to_rows = jax.jit(jax.grad(lambda table, sink: lookup_rows(table, jnp.array([2, 2]), sink).sum(), argnums=0))
    assert to_rows(table, None)[:, 0].tolist() == [0, 0, 2, *[0] * 13]
    assert not to_rows(table, jnp.zeros((2, 3))).any()


@pytest.mark.parametrize("lookups_at_once", [1, 8])
def test_the_size_of_chunks_changes_nothing(lookups_at_once, float64):
    generator = np.random.default_rng(3)
    table, ids = jnp.asarray(generator.normal(size=(9, 2))), jnp.asarray(generator.integers(0, 9, (2, 5, 3)))
    weights, direction = jnp.asarray(generator.normal(size=(2, 5, 3))), jnp.asarray(generator.normal(size=(2, 5, 2)))

    def run(n):
        loss = lambda weights: (sum_rows(table, ids, weights, lookups_at_once=n) * direction).sum()
        return jax.jit(jax.value_and_grad(loss))(weights)

    (value, gradient), (whole, expected) = run(lookups_at_once), run(1000)
    np.testing.assert_allclose(value, whole, rtol=0, atol=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-12)


def test_a_sink_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"sink: given shape \(2, 3\), allowed: the result's, \(2, 4\)"):
        sum_rows(jnp.ones((5, 4)), jnp.zeros((2, 3), int), jnp.ones((2, 3)), jnp.ones((2, 3)))


def test_the_slot_of_a_token_merges_its_heads():
    ids = jnp.array([[5, 2, 5], [1, 2, 3], [9, 9, 9]])
    weights = jnp.array([[0.3, 0.5, 0.3], [0.2, 0.2, 0.1], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(top_slots(ids, weights), [5, 1, 9])


# Updates of rows


def lookups_of(case, rows=11, bags=7, dim=3):
    generator = np.random.default_rng(4)
    ids = generator.integers(0, rows, (bags, 4))
    weights, gradients = generator.normal(size=(bags, 4)), generator.normal(size=(bags, dim))
    if case == "one row":
        ids[:] = 6
    if case == "nothing":
        weights[:] = 0
    if case == "partly":
        ids[1], weights[2], gradients[3] = rows, 0, 0  # beyond the table, without weight, without gradient
    return ids, weights, gradients


@pytest.fixture(scope="module")
def update():
    """A rule that is not linear in the gradient: two updates of a row with halves of it would differ."""
    rule = lambda old, gradient: (old[0] - gradient**3, old[1] + gradient**2 + 1)

    @functools.partial(jax.jit, static_argnums=4)
    def run(arrays, ids, weights, gradients, lookups_at_once):
        return update_rows(arrays, ids, weights, gradients, rule, lookups_at_once=lookups_at_once)

    return run


@pytest.mark.parametrize("lookups_at_once", [1, 5, 7, 1000])
@pytest.mark.parametrize("case", ["all", "one row", "nothing", "partly"])
def test_every_touched_row_is_updated_once_with_its_whole_gradient(case, lookups_at_once, update, float64):
    rows = 11
    ids, weights, gradients = lookups_of(case)
    table, kept = (np.random.default_rng(5).normal(size=(rows, 3)) for _ in range(2))
    arrays = (jnp.asarray(table), jnp.asarray(kept))
    new = update(arrays, *(jnp.asarray(x) for x in (ids, weights, gradients)), lookups_at_once)
    gradient = reference.table_gradient(rows, ids, weights, gradients)
    touched = gradient.any(axis=1, keepdims=True)
    np.testing.assert_allclose(new[0], np.where(touched, table - gradient**3, table), rtol=0, atol=1e-12)
    np.testing.assert_allclose(new[1], np.where(touched, kept + gradient**2 + 1, kept), rtol=0, atol=1e-12)
    untouched = ~touched[:, 0]
    assert np.asarray(new[0])[untouched].tobytes() == table[untouched].tobytes()


@pytest.mark.parametrize("lookups_at_once", [5, 1000])
def test_the_dense_gradient(lookups_at_once, float64):
    ids, weights, gradients = lookups_of("partly")
    read = (jnp.asarray(ids), jnp.asarray(weights), jnp.asarray(gradients))
    run = jax.jit(functools.partial(gradient_of_rows, lookups_at_once=lookups_at_once))
    found = run(jnp.zeros((11, 3)), *read)
    expected = reference.table_gradient(11, ids, weights, gradients)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_neither_time_nor_temporaries_grow_with_the_table():
    ids = jax.ShapeDtypeStruct((16, 8), jnp.int32)
    sums, weights = jax.ShapeDtypeStruct((16, 4), jnp.float32), jax.ShapeDtypeStruct((16, 8), jnp.float32)
    rule = lambda rows, gradient: (rows[0] - gradient, rows[1] + gradient)

    def step(arrays, ids, weights, gradients):
        y = sum_rows(arrays[0], ids, weights)
        return update_rows(arrays, ids, weights, gradients + y, rule, lookups_at_once=32)

    def analyse(rows):
        table = jax.ShapeDtypeStruct((rows, 4), jnp.float32)
        compiled = jax.jit(step, donate_argnums=0).lower((table, table), ids, weights, sums).compile()
        memory = compiled.memory_analysis()
        assert memory.alias_size_in_bytes >= 2 * rows * 4 * 4
        return memory.temp_size_in_bytes, compiled.cost_analysis()["flops"]

    small, large = analyse(2**10), analyse(2**16)
    assert large == small


@pytest.mark.parametrize("tokens", [9, 5000])
def test_the_spread_of_slots_is_that_of_the_tokens_looked_at(tokens):
    random, keys = np.random.default_rng(0), 6
    ids = random.choice(keys**2, size=(tokens, 8), p=random.dirichlet(np.full(keys**2, 0.1))).astype(np.int32)
    weights = random.random((tokens, 8)).astype(np.float32)
    ids[-2:] = keys**2  # padding
    found = jax.jit(lookup_spread, static_argnums=2)(ids, weights, keys)
    step = max(1, -(-ids.size // 2**14))
    ids, weights = ids[::step], weights[::step]
    real = ids < keys**2
    used = len(np.unique(ids[real])) / min(real.sum(), keys**2)
    table = np.bincount(ids[real], weights[real], keys**2).reshape(keys, keys)
    divergence = lambda shares: np.log(shares.size) + sum(p * np.log(p) for p in shares.ravel() / shares.sum() if p)
    halves = sum(divergence(table.sum(axis=axis)) for axis in (0, 1)) / np.log(keys**2)
    np.testing.assert_allclose(found, [used, halves], rtol=1e-5)
    assert 0 < halves <= divergence(table) / np.log(keys**2)
    assert [float(number) for number in lookup_spread(jnp.full((2, 3), keys**2), jnp.zeros((2, 3)), keys)] == [0, 0]
