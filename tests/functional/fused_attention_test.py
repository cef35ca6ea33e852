"""The kernel, interpreted, beside plain attention: outputs and gradients, with masks that are not aligned to tiles."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.attention import attention_with_weights, visibility
from memjax.functional.fused_attention import _block, fused_attention

CASES = {
    "causal, grouped heads": {"length": 5, "total": 17, "heads": 4, "key_heads": 2, "head_dim": 8},
    "a window over two tiles": {"length": 130, "total": 300, "window": 40},
    "a cap and a scale": {"length": 20, "total": 150, "cap": 5.0, "scale": 0.3},
    "no memory": {"length": 12, "total": 12},
}


@pytest.mark.parametrize("name", CASES)
def test_equals_attention_with_gradients_and_queries_without_keys(name):
    sizes: dict[str, Any] = {"heads": 2, "key_heads": 1, "head_dim": 16, "window": None, **CASES[name]}
    length, total = sizes["length"], sizes["total"]
    random = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
    queries = draw(2, length, sizes["heads"], sizes["head_dim"])
    keys, values = (draw(2, total, sizes["key_heads"], sizes["head_dim"]) for _ in range(2))
    signs = draw(*queries.shape)
    valid = jnp.asarray(random.random((2, total)) < 0.7)
    valid = valid.at[0, : total - length + 2].set(False)  # the first queries of this row see no key
    options = {name: sizes[name] for name in ("cap", "scale") if name in sizes}
    seen = visibility(length, valid[:, : total - length], valid[:, total - length :], window=sizes["window"])
    assert not bool(seen[0, 0, 0].any())

    def plain(queries, keys, values):
        output, _ = attention_with_weights(queries, keys, values, mask=seen, **options)
        return (output * signs).sum(), output

    def fused(queries, keys, values):
        output = fused_attention(queries, keys, values, valid, window=sizes["window"], interpret=True, **options)
        return (output * signs).sum(), output

    run = lambda function: jax.jit(jax.value_and_grad(function, (0, 1, 2), has_aux=True))(queries, keys, values)
    (_, expected), expected_gradients = run(plain)
    (_, output), gradients = run(fused)
    assert not np.any(np.asarray(output)[0, 0])
    for one, other in zip((expected, *expected_gradients), (output, *gradients), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5 * float(jnp.abs(one).max()))


@pytest.mark.parametrize(
    "change, line",
    [
        ({}, "a program for 'cpu', allowed: for 'tpu'"),
        (
            {"platform": "tpu", "dtype": jnp.float16},
            "queries of float16 and keys of float16, allowed: float32 or bfloat16",
        ),
        (
            {"platform": "tpu", "mesh": 4},
            "2 heads and 1 key heads, allowed: multiples of the 4 devices of the mesh axis",
        ),
        ({"platform": "tpu", "rows": 3}, "1 rows, allowed: a multiple of the devices of a mesh"),
    ],
)
def test_what_the_kernel_cannot_do_is_said(change, line, monkeypatch):
    module = importlib.import_module("memjax.functional.fused_attention")
    monkeypatch.setattr(module, "platform", lambda: change.get("platform", "cpu"))
    zeros = lambda heads: jnp.zeros((1, 4, heads, 8), change.get("dtype", jnp.float32))
    sizes = (change.get("rows", 1), change.get("mesh", 1))
    mesh = jax.sharding.AbstractMesh(sizes, ("data", "model"))
    with jax.sharding.use_abstract_mesh(mesh), pytest.raises(ValueError, match=f"fused_attention: given {line}"):
        fused_attention(zeros(2), zeros(1), zeros(1), jnp.ones((1, 4), bool), head_axis="model")


def test_tiles_are_whole_registers():
    assert [_block(number) for number in (1, 128, 129, 512, 5000)] == [128, 128, 256, 512, 512]
