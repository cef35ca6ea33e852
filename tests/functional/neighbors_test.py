"""Retrieval against sorting, its equivalence with full attention, and where gradients go."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import functional
from memjax.functional import attention, neighbor_attention
from memjax.functional.attention import masked_softmax, scale_queries
from tests.reference import neighbors as reference

# One program per test instead of one per operation.
select_neighbors = jax.jit(
    functional.select_neighbors, static_argnums=3, static_argnames=("method", "head_chunks", "query_chunks")
)
gather_slots = jax.jit(functional.gather_slots)
threshold_mask = jax.jit(functional.threshold_mask, static_argnums=2)

ROWS, HEADS, LENGTH, MEMORY, DIM = 2, 2, 3, 7, 4
METHODS = ("exact", "approximate", "bucket")


@pytest.fixture
def case():
    """Row 0 has 5 valid slots of 7, row 1 none."""
    rng = np.random.default_rng(0)
    return {
        "queries": rng.normal(size=(ROWS, HEADS, LENGTH, DIM)),
        "keys": rng.normal(size=(ROWS, HEADS, MEMORY, DIM)),
        "values": rng.normal(size=(ROWS, HEADS, MEMORY, 3)),
        "valid": np.array([[1, 1, 0, 1, 1, 0, 1], [0] * 7], bool),
    }


def arrays(case, dtype=jnp.float32):
    return {name: jnp.asarray(x, dtype if x.dtype == np.float64 else None) for name, x in case.items()}


@pytest.mark.parametrize("method", ["exact", "approximate"])
@pytest.mark.parametrize("num_neighbors", [1, 3, 6])
def test_neighbors_equal_sorting(case, method, num_neighbors):
    """M11: on CPUs the approximate form is exact. Invalid slots come only after all valid ones, and are marked."""
    x = arrays(case)
    ids, real = select_neighbors(x["queries"], x["keys"], x["valid"], num_neighbors, method=method)
    assert ids.shape == real.shape == (ROWS, HEADS, LENGTH, num_neighbors)
    assert ids.dtype == jnp.int32 and real.dtype == bool
    expected = reference.neighbors(case["queries"], case["keys"], case["valid"], num_neighbors)
    for index in np.ndindex(ROWS, HEADS, LENGTH):
        assert list(np.asarray(ids)[index][np.asarray(real)[index]]) == expected[index]
        assert len(set(np.asarray(ids)[index])) == num_neighbors


@pytest.mark.parametrize("num_neighbors", [1, 2, 3, 7])
def test_buckets_have_one_winner_each(case, num_neighbors):
    x = arrays(case)
    ids, real = select_neighbors(x["queries"], x["keys"], x["valid"], num_neighbors, method="bucket")
    expected = reference.bucket_winners(case["queries"], case["keys"], case["valid"], num_neighbors)
    for index in np.ndindex(ROWS, HEADS, LENGTH):
        found = [int(i) if r else None for i, r in zip(np.asarray(ids)[index], np.asarray(real)[index], strict=True)]
        assert found == expected[index]
        assert np.all(np.asarray(ids)[index] < MEMORY)


@hypothesis.given(st.integers(0, 999), st.sampled_from([1, 4, 7]), st.integers(0, 7))
@hypothesis.settings(max_examples=15, deadline=None)
def test_invalid_slots_are_never_taken_for_real(seed, num_neighbors, filled):
    rng = np.random.default_rng(seed)
    queries, keys = rng.normal(size=(1, 1, 2, 3)), rng.normal(size=(1, 1, 7, 3))
    valid = np.isin(np.arange(7), rng.permutation(7)[:filled])[None]
    for method in METHODS:
        ids, real = select_neighbors(*map(jnp.asarray, (queries, keys, valid)), num_neighbors, method=method)
        assert np.all(valid[0, np.asarray(ids)[np.asarray(real)]])
        if method != "bucket":
            assert np.all(np.asarray(real).sum(axis=-1) == min(num_neighbors, filled))


def test_recall_of_buckets():
    """M11: with as many buckets as neighbours, the winners contain 1 - (1 - 1/k)^k of the true neighbours."""
    rng = np.random.default_rng(0)
    num_neighbors, memory = 16, 1024
    queries, keys = (jnp.asarray(rng.normal(size=(1, 1, n, 16)), jnp.float32) for n in (512, memory))
    valid = jnp.ones((1, memory), bool)
    exact = np.asarray(select_neighbors(queries, keys, valid, num_neighbors)[0])
    found = np.asarray(select_neighbors(queries, keys, valid, num_neighbors, method="bucket")[0])
    recall = np.mean([np.isin(e, f).mean() for e, f in zip(exact[0, 0], found[0, 0], strict=True)])
    expected = 1 - (1 - 1 / num_neighbors) ** num_neighbors  # 0.644; the standard error of 512 queries is about 0.003
    assert abs(recall - expected) < 0.025


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("head_chunks, query_chunks", [(1, 3), (2, 3)])
def test_chunks_change_nothing(case, method, head_chunks, query_chunks):
    x = arrays(case)
    inputs = x["queries"], x["keys"], x["valid"], 3
    whole = select_neighbors(*inputs, method=method)
    parts = select_neighbors(*inputs, method=method, head_chunks=head_chunks, query_chunks=query_chunks)
    assert all(np.array_equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_a_mesh_changes_nothing(case):
    """Under a mesh the search is one product; without one a CPU goes through rows and heads."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = arrays(case)
    queries, keys, valid = x["queries"], x["keys"], x["valid"]
    alone = select_neighbors(queries, keys, valid, 3)
    with jax.set_mesh(mesh):
        under = select_neighbors(queries, keys, valid, 3)
    assert np.array_equal(alone[0], under[0]) and np.array_equal(alone[1], under[1])


def test_gather(case):
    slots = np.asarray(case["values"], np.float32)
    ids = np.random.default_rng(1).integers(0, MEMORY, (ROWS, HEADS, LENGTH, 4))
    got = np.asarray(gather_slots(jnp.asarray(slots), jnp.asarray(ids)))
    for b, h, i, k in np.ndindex(*ids.shape):
        assert np.array_equal(got[b, h, i, k], slots[b, h, ids[b, h, i, k]])


def by_retrieval(x, num_neighbors, scale=None, **options):
    """Attention over retrieved neighbours, as a memory layer computes it."""
    ids, real = select_neighbors(jnp.swapaxes(x["queries"], 1, 2), x["keys"], x["valid"], num_neighbors, **options)
    return neighbor_attention(
        x["queries"], gather_slots(x["keys"], ids), gather_slots(x["values"], ids), real, scale=scale
    )


def by_threshold(x, num_neighbors, scale=None):
    """Attention over the same slots, computed densely with `threshold_mask`."""
    scores = jnp.einsum("blhd,bhmd->bhlm", scale_queries(x["queries"], scale), x["keys"])
    weights = masked_softmax(scores, threshold_mask(scores, x["valid"], num_neighbors))
    return jnp.einsum("bhlm,bhme->blhe", weights, x["values"])


def token_major(case):
    return {**case, "queries": np.swapaxes(case["queries"], 1, 2)}


@pytest.mark.parametrize("method", METHODS)
def test_all_slots_is_full_attention(case, method):
    """M1, law 10: as many neighbours as slots (or at least as valid ones) is attention over the whole memory."""
    with jax.enable_x64(True):
        x = arrays(token_major(case), jnp.float64)
        keys, values = (jnp.swapaxes(x[n], 1, 2) for n in ("keys", "values"))
        mask = np.broadcast_to(case["valid"][:, None, None, :], (ROWS, 1, LENGTH, MEMORY))
        full = jax.jit(attention)(x["queries"], keys, values, mask=jnp.asarray(mask))
        retrieve = jax.jit(by_retrieval, static_argnums=1, static_argnames="method")
        np.testing.assert_allclose(retrieve(x, MEMORY, method=method), full, atol=1e-12)
        if method == "exact":
            np.testing.assert_allclose(by_threshold(x, MEMORY), full, atol=1e-12)
            np.testing.assert_allclose(retrieve(x, 5, method=method), full, atol=1e-12)
    assert np.all(np.asarray(full)[1] == 0)


@pytest.mark.parametrize("num_neighbors", [1, 6])
def test_threshold_form_equals_retrieval(case, num_neighbors):
    """M2, forward and backward."""
    with jax.enable_x64(True):
        x = arrays(token_major(case), jnp.float64)
        scale = jnp.array([0.5, 2.0])

        def loss(form, queries, keys, values, scale):
            inputs = {"queries": queries, "keys": keys, "values": values, "valid": x["valid"]}
            return jnp.sum(form(inputs, num_neighbors, scale) ** 2)

        inputs = x["queries"], x["keys"], x["values"], scale
        run = jax.jit(jax.value_and_grad(loss, (1, 2, 3, 4)), static_argnums=0)
        results = [run(form, *inputs) for form in (by_threshold, by_retrieval)]
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_threshold_mask_with_ties_and_few_valid_slots():
    scores = jnp.array([3.0, 1.0, 3.0, 3.0, jnp.nan]).reshape(1, 1, 1, 5)
    valid = jnp.array([[True, True, True, True, False]])
    assert np.array_equal(threshold_mask(scores, valid, 2).ravel(), [True, False, True, True, False])
    assert np.array_equal(threshold_mask(scores, valid, 5).ravel(), [True, True, True, True, False])
    assert not threshold_mask(scores, jnp.zeros((1, 5), bool), 2).any()


def test_threshold_needs_no_sort():
    """XLA turns `top_k(...)[..., -1]` into a sort of the whole memory, 60 times slower on a CPU."""
    compiled = threshold_mask.lower(jnp.zeros((1, 1, 2, 64)), jnp.ones((1, 64), bool), 4).compile()
    sorts = [line for line in compiled.as_text().splitlines() if " sort(" in line]
    assert all("[1,1,2,4]" in line for line in sorts), "more is sorted than the numbers of 4 groups"


def test_selection_carries_no_gradient_but_scores_do(case):
    """Spec 6.4: ids are chosen on stopped gradients; queries and scale learn through the scores of what was chosen."""
    x = arrays(token_major(case))

    def loss(queries, scale):
        return jnp.sum(by_retrieval({**x, "queries": queries}, 2, scale) ** 2)

    queries, scale = jax.jit(jax.grad(loss, (0, 1)))(x["queries"], jnp.ones(HEADS))
    assert np.all(np.isfinite(queries)) and np.any(np.asarray(queries)[0] != 0) and np.all(np.asarray(scale) != 0)
    assert np.all(np.asarray(queries)[1] == 0)  # the row without memory

    q = jnp.asarray(case["queries"], jnp.float32)
    for method in METHODS:
        ids = lambda q, k, method=method: select_neighbors(q, k, x["valid"], 2, method=method)  # noqa: E731
        program = jax.make_jaxpr(lambda q, k, ids=ids: jax.jvp(ids, (q, k), (q, k))[0])(q, x["keys"])
        alone = jax.make_jaxpr(ids)(q, x["keys"])
        products = [str(jaxpr).count("dot_general[") for jaxpr in (program, alone)]
        assert products[0] == products[1] > 0  # the derivative of the scores is not even computed


def test_scores_of_low_precision_keys_are_float32():
    """Keys that differ in the last bit of bfloat16 are told apart in a sum that bfloat16 would round away."""
    keys = jnp.ones((1, 1, 3, 300), jnp.bfloat16).at[0, 0, 1, 0].set(1 + 2**-7)
    ids, _ = select_neighbors(jnp.ones((1, 1, 1, 300), jnp.bfloat16), keys, jnp.ones((1, 3), bool), 1)
    assert int(ids[0, 0, 0, 0]) == 1


def test_errors_name_both_numbers(case):
    x = arrays(case)
    inputs = x["queries"], x["keys"], x["valid"]
    for call in (
        lambda k: select_neighbors(*inputs, k),
        lambda k: threshold_mask(jnp.zeros((1, 1, 1, MEMORY)), jnp.ones((1, MEMORY), bool), k),
    ):
        with pytest.raises(ValueError, match="num_neighbors: given 8, allowed: 1 to 7"):
            call(8)
        with pytest.raises(ValueError, match="num_neighbors: given 0, allowed: 1 to 7"):
            call(0)
    with pytest.raises(ValueError, match="head_chunks: given 3, allowed: a divisor of the 2 heads"):
        select_neighbors(*inputs, 2, head_chunks=3)
    with pytest.raises(ValueError, match="query_chunks: given 2, allowed: a divisor of the 3 queries"):
        select_neighbors(*inputs, 2, query_chunks=2)


@pytest.mark.parametrize("method", ["exact", "bucket"])
def test_scores_of_the_search_read_as_scores_made_again(method):
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        draw = lambda *shape: jnp.asarray(random.normal(size=shape))
        queries, keys, values, signs = draw(2, 3, 5, 4), draw(2, 3, 9, 4), draw(2, 3, 9, 6), draw(2, 5, 3, 6)
        valid = jnp.asarray(random.random((2, 9)) < 0.7).at[1].set(jnp.arange(9) < 2)  # fewer than neighbours
        keys, values = (jnp.where(valid[:, None, :, None], slots, jnp.nan) for slots in (keys, values))

        def again(queries, scale):
            ids, real = select_neighbors(queries, keys, valid, 4, method=method)
            near = (gather_slots(slots, ids) for slots in (keys, values))
            output = neighbor_attention(jnp.swapaxes(queries, 1, 2), *near, real, scale=scale)
            return (output * signs).sum(), output

        def found(queries, scale):
            ids, real, scores = functional.select_scored_neighbors(queries, keys, valid, 4, method=method)
            scores = functional.neighbor_scores(queries, keys, ids, real, scores)
            output = functional.scored_neighbor_attention(scores, gather_slots(values, ids), real, scale=scale)
            return (output * signs).sum(), output

        results = [jax.value_and_grad(f, (0, 1), has_aux=True)(queries, jnp.arange(1.0, 4.0)) for f in (again, found)]
        for one, other in zip(*map(jax.tree.leaves, results), strict=True):
            assert np.all(np.isfinite(one))
            np.testing.assert_allclose(other, one, atol=1e-12)
