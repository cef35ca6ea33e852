import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec

from memjax.training.costs import count_flops, jaxpr_flops


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_products_of_matrices():
    assert count_flops(jnp.matmul, shape(3, 5), shape(5, 7)) == 2 * 3 * 5 * 7
    assert count_flops(jnp.matmul, shape(4, 3, 5), shape(4, 5, 7)) == 2 * 4 * 3 * 5 * 7
    assert count_flops(jnp.dot, shape(6), shape(6)) == 2 * 6
    assert (
        count_flops(lambda x, y: jnp.einsum("bld,bmd->blm", x, y), shape(2, 3, 5), shape(2, 4, 5)) == 2 * 2 * 3 * 4 * 5
    )


@pytest.mark.parametrize(
    "lhs, rhs, options, expected",
    [
        ((1, 3, 8, 8), (4, 3, 3, 3), {}, 2 * 4 * 6 * 6 * 3 * 3 * 3),
        ((1, 6, 8, 8), (4, 3, 3, 3), {"feature_group_count": 2}, 2 * 4 * 6 * 6 * 3 * 3 * 3),
        ((4, 3, 8, 8), (4, 3, 3, 3), {"batch_group_count": 2}, 2 * 2 * 4 * 6 * 6 * 3 * 3 * 3),
        ((1, 8, 8, 3), (3, 3, 3, 4), {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}, 2 * 4 * 6 * 6 * 3 * 3 * 3),
    ],
)
def test_convolutions(lhs, rhs, options, expected):
    convolve = lambda x, y: lax.conv_general_dilated(x, y, (1, 1), "VALID", **options)
    assert count_flops(convolve, shape(*lhs), shape(*rhs)) == expected


def layers(x, weights, wrap=lambda body: body):
    body = wrap(lambda x, w: (jnp.tanh(x @ w), None))
    return lax.scan(body, x, weights)[0].sum()


def test_loops_count_as_often_as_they_run():
    x, weights = shape(3, 4), shape(5, 4, 4)
    once = 2 * 3 * 4 * 4
    assert count_flops(layers, x, weights) == 5 * once
    twice = lambda x, weights: lax.scan(lambda s, _: (s + layers(x, weights), None), 0.0, length=7)
    assert count_flops(twice, x, weights) == 7 * 5 * once
    assert count_flops(lambda x: lax.fori_loop(0, 6, lambda _, y: y @ y, x), shape(4, 4)) == 6 * 2 * 4**3
    assert count_flops(lambda x: lax.map(lambda row: row @ row, x), shape(6, 4)) == 6 * 2 * 4


def test_a_loop_of_unknown_length_counts_once():
    loop = lambda x: lax.while_loop(lambda y: (y @ y)[0, 0] < 9, lambda y: y @ y @ y, x)
    assert count_flops(loop, shape(4, 4)) == 3 * 2 * 4**3


def test_a_conditional_is_its_costliest_branch():
    def choose(i, x):
        return lax.switch(i, [lambda x: x, lambda x: x @ x @ x, lambda x: x @ x], x)

    assert count_flops(choose, shape(dtype=jnp.int32), shape(4, 4)) == 2 * 2 * 4**3


def test_gradients_cost_twice_the_forward_pass_and_recomputation_once_more():
    x, weights = shape(3, 4), shape(5, 4, 4)
    plain = count_flops(jax.value_and_grad(layers, (0, 1)), x, weights)
    assert plain == 3 * count_flops(layers, x, weights)
    again = lambda x, weights: layers(x, weights, lambda body: jax.checkpoint(body, prevent_cse=False))
    assert 3 * count_flops(jax.value_and_grad(again, (0, 1)), x, weights) == 4 * plain
    assert 3 * count_flops(jax.value_and_grad(jax.checkpoint(layers), (0, 1)), x, weights) == 4 * plain


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, jax.named_call])
def test_calls_count_as_what_they_call(wrap):
    assert count_flops(wrap(lambda x: x @ x), shape(4, 4)) == 2 * 4**3


def test_custom_derivatives():
    jvp = jax.custom_jvp(lambda x: x @ x)
    jvp.defjvp(lambda primals, tangents: (jvp(*primals), tangents[0] @ primals[0] @ primals[0]))
    vjp = jax.custom_vjp(lambda x: x @ x)
    vjp.defvjp(lambda x: (vjp(x), x), lambda x, cotangent: (cotangent @ x @ x @ x,))
    once = 2 * 4**3
    assert [count_flops(f, shape(4, 4)) for f in (jvp, vjp)] == [once, once]
    assert count_flops(jax.grad(lambda x: jvp(x).sum()), shape(4, 4)) == 3 * once
    assert count_flops(jax.grad(lambda x: vjp(x).sum()), shape(4, 4)) == 4 * once


def test_vmap_multiplies():
    x, weights = shape(6, 3, 4), shape(5, 4, 4)
    assert count_flops(jax.vmap(layers, (0, None)), x, weights) == 6 * 5 * 2 * 3 * 4 * 4


@pytest.mark.parametrize("axes, shards", [({"data"}, 2), ({"data", "model"}, 6)])
def test_a_shard_map_counts_all_shards(axes, shards):
    spec, mesh = PartitionSpec("data"), AbstractMesh((2, 3), ("data", "model"))
    product = jax.shard_map(
        lambda x, y: x @ y, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, axis_names=axes
    )
    assert count_flops(product, shape(8, 4), shape(4, 4)) == shards * 2 * (8 // 2) * 4 * 4


def test_a_kernel_counts_once_per_point_of_its_grid():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(x, y):
        y[...] = x[...] @ x[...]

    call = pallas.pallas_call(kernel, out_shape=shape(4, 4), grid=(3, 2))
    assert count_flops(call, shape(4, 4)) == 3 * 2 * 2 * 4**3


def test_elementwise_operations_count_on_request():
    def work(x, ids):
        y = jnp.exp(x * x).sum(axis=1)  # 12 + 12 + 12
        y = y.at[ids + 1].add(1.0)  # integers and scatters are 0
        return jnp.where(y > 0, y, 0.0)

    arguments = shape(3, 4), shape(2, dtype=jnp.int32)
    assert count_flops(work, *arguments) == 0
    assert count_flops(work, *arguments, elementwise=True) == 3 * 12
    loop = lambda x: lax.scan(lambda x, _: (jnp.tanh(x), None), x, length=5)[0]
    assert count_flops(loop, shape(3, 4), elementwise=True) == 5 * 12


def test_jaxprs_and_keywords():
    function = lambda x, *, y: x @ y
    jaxpr = jax.make_jaxpr(function)(np.ones((2, 3)), y=np.ones((3, 4)))
    assert jaxpr_flops(jaxpr) == jaxpr_flops(jaxpr.jaxpr) == count_flops(function, shape(2, 3), y=shape(3, 4)) == 48
