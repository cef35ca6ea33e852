"""The kernels beside plain attention: outputs and gradients, with masks that are not aligned to tiles. That of a TPU is
interpreted; in the place of cuDNN's stands the same function of JAX with another implementation.
"""

import importlib
import importlib.util
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.attention import attention_with_weights, visibility
from memjax.functional.fused_attention import _block, fused_attention

fused_module = importlib.import_module("memjax.functional.fused_attention")
CASES = {
    "causal, grouped heads": {"length": 5, "total": 17, "heads": 4, "key_heads": 2, "head_dim": 8},
    "a window over two tiles": {"length": 130, "total": 300, "window": 40},
    "a cap and a scale": {"length": 20, "total": 150, "cap": 5.0, "scale": 0.3},
    "no memory": {"length": 12, "total": 12},
}


@pytest.mark.parametrize("name", CASES)
def test_equals_attention_with_gradients_and_queries_without_keys(name):
    compare_with_attention(CASES[name], interpret=True)


@pytest.mark.parametrize("name", [name for name, sizes in CASES.items() if "cap" not in sizes])
@pytest.mark.parametrize("mesh", ["no mesh", "mesh"])
def test_what_cudnn_is_asked_equals_attention(name, mesh, monkeypatch):
    attend, asked = jax.nn.dot_product_attention, []

    def attend_by_xla(*arrays, implementation, **options):
        asked.append(implementation)
        assert not any(array.shape[1] % 2 for array in arrays)  # gradients of cuDNN need even numbers
        return attend(*arrays, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attend_by_xla)
    monkeypatch.setattr(fused_module, "platform", lambda: "gpu")
    monkeypatch.setitem(fused_module.DTYPES, "gpu", ("float32",))
    if mesh == "mesh":
        sizes = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        with jax.set_mesh(sizes):
            compare_with_attention(CASES[name], head_axis="model")
    else:
        compare_with_attention(CASES[name])
    assert set(asked) == {"cudnn"}


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_a_program_for_a_gpu_calls_cudnn_forward_and_backward(key_heads, monkeypatch):
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        pytest.skip("JAX's plugin for CUDA is not installed")
    monkeypatch.setattr(fused_module, "platform", lambda: "gpu")
    queries = jax.ShapeDtypeStruct((2, 5, 4, 64), jnp.bfloat16)
    keys = jax.ShapeDtypeStruct((2, 37, key_heads, 64), jnp.bfloat16)
    valid = jax.ShapeDtypeStruct((2, 37), bool)
    total = lambda *arrays: fused_attention(*arrays, window=9).astype(jnp.float32).sum()
    lowered = jax.jit(jax.grad(total, (0, 1, 2))).trace(queries, keys, keys, valid)
    program = lowered.lower(lowering_platforms=("cuda",)).as_text()
    assert {f"__cudnn$fmhaScaleBiasSoftmax{part}" for part in ("", "Backward")} == set(
        re.findall(r"custom_call @(__cudnn[$\w]+)", program)
    )


def compare_with_attention(case, **further):
    """Compares outputs and gradients of the kernel with those of plain attention."""
    sizes: dict[str, Any] = {"heads": 2, "key_heads": 1, "head_dim": 16, "window": None, **case}
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
        output = fused_attention(queries, keys, values, valid, window=sizes["window"], **options, **further)
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
        ({}, "a program for 'cpu', allowed: for 'tpu' or 'gpu'"),
        ({"platform": "gpu"}, "queries of float32 and keys of float32, allowed: bfloat16 or float16"),
        ({"platform": "gpu", "dtype": jnp.bfloat16, "cap": 2.0}, "score_cap 2 on a GPU, allowed: 0"),
        ({"platform": "gpu", "dtype": jnp.bfloat16, "width": 12}, "heads of width 12, allowed: multiples of 8"),
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
    monkeypatch.setattr(fused_module, "platform", lambda: change.get("platform", "cpu"))
    zeros = lambda heads: jnp.zeros((1, 4, heads, change.get("width", 8)), change.get("dtype", jnp.float32))
    options = {"cap": change.get("cap", 0.0), "head_axis": "model"}
    sizes = (change.get("rows", 1), change.get("mesh", 1))
    mesh = jax.sharding.AbstractMesh(sizes, ("data", "model"))
    with jax.sharding.use_abstract_mesh(mesh), pytest.raises(ValueError, match=f"fused_attention: given {line}"):
        fused_attention(zeros(2), zeros(1), zeros(1), jnp.ones((1, 4), bool), **options)


def test_tiles_are_whole_registers():
    assert [_block(number) for number in (1, 128, 129, 512, 5000)] == [128, 128, 256, 512, 512]
