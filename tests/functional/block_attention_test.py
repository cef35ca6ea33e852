"""Attention by blocks beside plain attention, in float64: outputs, sums of weights and gradients of all arguments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.attention import attention_with_weights
from memjax.functional.block_attention import block_attention
from memjax.functional.positions import relative_distances, relative_shift

BATCH, LENGTH, TOTAL, HEADS, WIDTH = 2, 5, 17, 4, 3
SEEN = np.arange(TOTAL)[None] <= np.arange(LENGTH)[:, None] + TOTAL - LENGTH
CASES = {
    "plain": set(),
    "a bias of one row": {"bias"},
    "a bias of every row": {"bias", "rows"},
    "relative positions": {"positions"},
    "relative positions and a bias": {"positions", "bias"},
    "a bias of distances": {"distances"},
    "biases of distances and of every row": {"distances", "bias", "rows"},
    "a bias of more distances than there are": {"distances", "long"},
    "a cap, grouped heads": {"cap"},
}


def arrays(parts: set[str]) -> dict[str, jax.Array]:
    random = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape))
    key_heads = 2 if "cap" in parts else HEADS
    given = {
        "queries": draw(BATCH, LENGTH, HEADS, WIDTH),
        "keys": draw(BATCH, TOTAL, key_heads, WIDTH),
        "values": draw(BATCH, TOTAL, key_heads, 6),
    }
    if "bias" in parts:
        given["bias"] = draw(BATCH if "rows" in parts else 1, HEADS, LENGTH, TOTAL)
    if "distances" in parts:
        given["distance_bias"] = draw(HEADS, 2 * TOTAL if "long" in parts else 6)
    if "positions" in parts:
        given |= {"position_queries": draw(BATCH, LENGTH, HEADS, WIDTH), "relative_keys": draw(TOTAL, HEADS, WIDTH)}
    return given


def mask() -> jax.Array:
    visible = np.random.default_rng(1).random((BATCH, 1, LENGTH, TOTAL)) < 0.6
    visible[0, 0, 2] = False  # a query that sees no key
    return jnp.asarray(visible & SEEN)


def plain(given: dict[str, jax.Array], **options: Any) -> tuple[jax.Array, jax.Array]:
    given = dict(given)
    if "relative_keys" in given:
        by_distance = jnp.einsum("blhd,mhd->bhlm", given.pop("position_queries"), given.pop("relative_keys"))
        given["bias"] = given.get("bias", 0.0) + relative_shift(by_distance)
    if "distance_bias" in given:
        by_distance = given.pop("distance_bias")
        distances = np.clip(relative_distances(LENGTH, TOTAL), 0, by_distance.shape[1] - 1)
        given["bias"] = given.get("bias", 0.0) + by_distance[None, :, distances]
    output, weights = attention_with_weights(**given, mask=mask(), **options)
    return output, jnp.stack([weights[..., :number].sum(-1) for number in (3, TOTAL)], -1)


@pytest.mark.parametrize("length, rows", [(1, 1), (4, 5), (4, 2), (2, 2), (TOTAL, 3), (40, 40)])
@pytest.mark.parametrize("name", CASES)
def test_equals_attention_with_gradients(name, length, rows):
    options: dict[str, Any] = {"cap": 2.0, "scale": 0.7} if "cap" in CASES[name] else {}
    with jax.enable_x64(True):
        given, signs = arrays(CASES[name]), np.random.default_rng(2).normal(size=(BATCH, LENGTH, HEADS, 6))
        total = lambda function: lambda given: (lambda result: ((result[0] * signs).sum(), result))(function(given))
        run = lambda function: jax.jit(jax.value_and_grad(total(function), has_aux=True))(given)
        by_blocks = lambda given: block_attention(
            **given, mask=mask(), counted=(3, TOTAL), block_length=length, query_block_length=rows, **options
        )
        (_, expected), expected_gradients = run(lambda given: plain(given, **options))
        (_, results), gradients = run(by_blocks)
        for one, other in zip((*expected, *expected_gradients.values()), (*results, *gradients.values()), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-12)
        assert not np.any(np.asarray(results[0])[0, 2])


def test_what_no_query_sees_may_not_be_finite():
    given = arrays(set())
    visible = jnp.ones((1, 1, LENGTH, TOTAL), bool).at[..., 5].set(False)
    total = lambda keys: block_attention(**{**given, "keys": keys}, mask=visible, block_length=4)[0].sum()
    poisoned = given["keys"].at[:, 5].set(jnp.inf)
    value, gradient = jax.value_and_grad(total)(poisoned)
    assert np.isfinite(value) and np.all(np.isfinite(np.delete(np.asarray(gradient), 5, axis=1)))
    np.testing.assert_allclose(value, total(given["keys"]), rtol=1e-6)


def test_gradients_of_bfloat16_are_summed_in_float32():
    # 64 blocks whose gradients to the queries are equal: in bfloat16 the sum would stop growing.
    queries = jnp.zeros((1, 1, 1, 1), jnp.bfloat16)
    keys = jnp.ones((1, 1024, 1, 1), jnp.bfloat16).at[:, ::2].set(-1)
    total = lambda queries: block_attention(queries, keys, keys, scale=1.0, block_length=2)[0].sum()
    np.testing.assert_allclose(jax.grad(total)(queries).astype(jnp.float32).ravel(), 1.0, atol=0.01)


def test_positions_come_in_pairs_and_blocks_have_keys():
    given = arrays({"positions"})
    with pytest.raises(ValueError, match="relative_keys: given alone, allowed: together with the other"):
        block_attention(**{**given, "position_queries": None})
    with pytest.raises(ValueError, match="query_block_length: given 0, allowed: 1 or more"):
        block_attention(**given, query_block_length=0)
