"""The product-key memory as a module, and beside or instead of a feed-forward network."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.table_rows import gradient_of_rows
from memjax.memory.product_key import BatchNorm, ProductKeyMemory
from memjax.models.feed_forward import FeedForwardLayer
from memjax.training.metrics import count_parameters
from memjax.typing import EmptyState
from tests.reference import product_keys as reference

GOLDEN = Path(__file__).parent.parent / "golden" / "pkm_default.npz"
DIM, ROWS, LENGTH = 8, 3, 4
SMALL = {"dim": DIM, "num_keys": 5, "num_heads": 2, "num_neighbors": 3, "key_dim": 6}


def variables_of(module, *, dtype=np.float64, seed=0):
    """Random variables, nowhere zero; variances are positive."""
    generator = np.random.default_rng(seed)
    x = jnp.zeros((1, 1, module.dim))
    shapes = jax.eval_shape(lambda: module.init({"params": jax.random.key(0)}, x, EmptyState()))

    def draw(path, leaf):
        value = generator.normal(size=leaf.shape)
        return jnp.asarray(np.exp(value) if path[-1].key in ("variance", "scale") else value, dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def inputs(seed=1, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(ROWS, LENGTH, DIM)), dtype)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


# The read


def test_golden_output_and_gradients():
    golden = np.load(GOLDEN)
    memory = ProductKeyMemory(
        dim=16, num_keys=8, num_heads=2, num_neighbors=4, key_dim=12, query_norm="layer", lookups_at_once=24
    )
    # torch: [(half, head, feature), dim]
    to_query = lambda a: jnp.asarray(a.T.reshape(16, 2, 2, 6).swapaxes(1, 2).reshape(16, 2, 12))
    to_keys = lambda a: jnp.asarray(a.swapaxes(1, 2))  # [heads, half, keys, features]
    params = {
        "query": to_query(golden["param/to_queries.weight"]),
        "query_bias": jnp.zeros((2, 12)),
        "keys": to_keys(golden["param/keys"]),
        "layer_norm": {"scale": golden["param/norm.weight"], "bias": golden["param/norm.bias"]},
    }
    table = jnp.asarray(golden["param/values.weight"])

    @jax.jit
    def run(x, params, sink):
        def loss(x, params, sink):
            variables = {"params": params, "tables": {"values": table}, "sinks": {"values": sink}}
            y, _, aux = memory.apply(variables, x, EmptyState())
            return (y**2).sum(), (y, aux)

        return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(x, params, sink)

    (to_x, to_params, to_sink), (y, aux) = run(golden["x"], params, jnp.zeros((2, 5, 16)))
    lookups = (aux.arrays[f"values/{name}"].reshape(10, 8) for name in ("ids", "weights"))
    to_table = gradient_of_rows(table, *lookups, to_sink.reshape(10, 16))
    for found, expected in [
        (y, golden["y"]),
        (to_x, golden["grad_x"]),
        (to_params["query"], to_query(golden["grad/to_queries.weight"])),
        (to_params["keys"], to_keys(golden["grad/keys"])),
        (to_params["layer_norm"]["scale"], golden["grad/norm.weight"]),
        (to_params["layer_norm"]["bias"], golden["grad/norm.bias"]),
        (to_table, golden["grad/values.weight"]),
    ]:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("query_norm, hidden", [("none", ()), ("layer", (7,)), ("batch", (7, 9))])
def test_the_module_is_the_equations(query_norm, hidden, float64):
    memory = ProductKeyMemory(**SMALL, query_norm=query_norm, query_hidden=hidden)
    variables, x = variables_of(memory), inputs()
    y, state, aux = jax.jit(memory.apply)(variables, x, EmptyState())
    assert state == EmptyState()

    params = jax.tree.map(np.asarray, variables["params"])
    q = np.asarray(x).reshape(-1, DIM)
    for index in range(len(hidden)):
        layer = params[f"hidden_{index}"]
        q = np.maximum(q @ layer["kernel"] + layer["bias"], 0)
    q = np.einsum("nd,dhk->nhk", q, params["query"]) + params["query_bias"]
    if query_norm == "batch":
        norm, running = params["batch_norm"], jax.tree.map(np.asarray, variables["batch_stats"]["batch_norm"])
        q = (q - running["mean"]) / np.sqrt(running["variance"] + 1e-5) * norm["scale"] + norm["bias"]
    q = q.reshape(*q.shape[:2], 2, 3)
    if query_norm == "layer":
        q = (q - q.mean(axis=-1, keepdims=True)) / np.sqrt(q.var(axis=-1, keepdims=True) + 1e-5)
        q = q * params["layer_norm"]["scale"] + params["layer_norm"]["bias"]
    expected = reference.memory(np.asarray(q), params["keys"], np.asarray(variables["tables"]["values"]), 3)
    np.testing.assert_allclose(y.reshape(-1, DIM), expected, rtol=0, atol=1e-10)
    ids, scores = reference.best_slots(np.asarray(q), params["keys"], 3)
    np.testing.assert_array_equal(aux.arrays["values/ids"].reshape(ids.shape), ids)
    weights = aux.arrays["values/weights"].reshape(ids.shape)
    np.testing.assert_allclose(weights, reference.softmax(scores), rtol=0, atol=1e-12)


def test_padding_reads_nothing_that_is_counted():
    memory = ProductKeyMemory(**SMALL, query_norm="none")
    mask = jnp.arange(LENGTH)[None, :] < jnp.array([4, 2, 0])[:, None]
    variables = variables_of(memory, dtype=np.float32)
    _, _, aux = jax.jit(memory.apply)(variables, inputs(dtype=np.float32), EmptyState(), mask=mask)
    beyond = np.asarray(aux.arrays["values/ids"]) == 25
    np.testing.assert_array_equal(beyond, np.repeat(~np.asarray(mask)[..., None], 6, axis=-1))
    assert not np.asarray(aux.arrays["values/weights"])[beyond].any()


def test_initial_values():
    memory = ProductKeyMemory(dim=32, num_keys=32, key_dim=16, num_neighbors=4)
    variables = jax.jit(lambda key: memory.init({"params": key}, jnp.zeros((1, 1, 32)), EmptyState()))(
        jax.random.key(0)
    )
    params, values = variables["params"], np.asarray(variables["tables"]["values"])
    for name, bound in (("keys", 8**-0.5), ("query", 32**-0.5), ("query_bias", 32**-0.5)):
        largest = np.abs(params[name]).max()
        assert 0.9 * bound < largest <= bound and abs(params[name].mean()) < 0.1 * bound
    assert values.std() == pytest.approx(32**-0.5, rel=0.02)


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"num_neighbors": 6}, "num_neighbors: given 6, allowed: 1 to 5, the sub-keys of each half"),
        ({"key_dim": 5}, r"key_dim: given 5, allowed: an even number \(two halves\)"),
    ],
)
def test_mistakes_are_named(fields, line):
    with pytest.raises(ValueError, match=line):
        variables_of(ProductKeyMemory(**SMALL | fields))


# Batch normalisation


def normalise(x, mask, variables=None, **kwargs):
    norm = BatchNorm()
    variables = variables or norm.init(jax.random.key(0), x, mask, deterministic=True)
    return norm.apply(variables, x, mask, mutable=["batch_stats"], **kwargs)


def test_statistics_are_those_of_real_tokens(float64):
    x = np.random.default_rng(0).normal(2.0, 3.0, (4, 5, 2, 3))
    mask = np.arange(5)[None, :] < np.array([5, 3, 0, 1])[:, None]
    real = x[mask]  # [9, 2, 3]
    y, written = normalise(jnp.asarray(x), jnp.asarray(mask), deterministic=False)
    np.testing.assert_allclose(y[mask], (real - real.mean(0)) / np.sqrt(real.var(0) + 1e-5), rtol=0, atol=1e-12)
    stats = written["batch_stats"]
    np.testing.assert_allclose(stats["mean"], 0.1 * real.mean(0), rtol=1e-6)
    np.testing.assert_allclose(stats["variance"], 0.9 + 0.1 * real.var(0, ddof=1), rtol=1e-6)
    # What stands at padding changes nothing, and more of it neither.
    longer = np.concatenate([np.where(mask[..., None, None], x, 1e6), np.full((4, 2, 2, 3), -1e6)], axis=1)
    other, again = normalise(jnp.asarray(longer), jnp.asarray(np.pad(mask, [(0, 0), (0, 2)])), deterministic=False)
    np.testing.assert_allclose(other[:, :5][mask], y[mask], rtol=0, atol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), stats, again["batch_stats"])


def test_running_statistics_are_used_outside_training_and_kept_without_tokens():
    x, mask = inputs(dtype=np.float32), jnp.ones((ROWS, LENGTH), bool)
    variables = {
        "params": {"scale": jnp.full(DIM, 2.0), "bias": jnp.ones(DIM)},
        "batch_stats": {"mean": jnp.full(DIM, 0.5), "variance": jnp.full(DIM, 4.0)},
    }
    y, written = normalise(x, mask, variables, deterministic=True)
    np.testing.assert_allclose(y, (x - 0.5) / np.sqrt(4 + 1e-5) * 2 + 1, rtol=0, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, written["batch_stats"], variables["batch_stats"])
    y, written = normalise(x, ~mask, variables, deterministic=False)
    assert np.isfinite(y).all()
    jax.tree.map(np.testing.assert_array_equal, written["batch_stats"], variables["batch_stats"])


# Feed-forward, memory, or both


def parts(norm, **scales):
    memory = ProductKeyMemory(**SMALL, query_norm="none")
    return FeedForwardLayer(DIM, 6, norm=norm, norm_kind="layer", dtype=jnp.float64, memory=memory, **scales)


@pytest.mark.parametrize(
    "norm, dense_scale, memory_scale",
    [
        ("pre", 0.5, 2.0),
        ("post", 1.0, 1.0),
        ("post", 0.0, 1.0),
        ("pre", 1.0, 0.0),
        *(
            pytest.param(*case, marks=pytest.mark.laws)
            for case in (("pre", 1.0, 1.0), ("pre", 0.0, 1.0), ("post", 0.5, 2.0), ("post", 1.0, 0.0))
        ),
    ],
)
def test_both_branches_read_the_same_input_under_one_norm(norm, dense_scale, memory_scale, float64):
    part = parts(norm, dense_scale=dense_scale, memory_scale=memory_scale)
    variables, x = variables_of(part), inputs()
    assert ("wide" in variables["params"]) == bool(dense_scale)
    assert ("tables" in variables) == bool(memory_scale)
    y, _, aux = jax.jit(part.apply)(variables, x, EmptyState())
    assert bool(aux.arrays) == bool(memory_scale)

    scale, bias = (np.asarray(variables["params"]["layer_norm"][name]) for name in ("scale", "bias"))

    def layer_norm(a):
        return (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5) * scale + bias

    read = jnp.asarray(layer_norm(np.asarray(x))) if norm == "pre" else x
    expected = np.asarray(x)
    if dense_scale:
        wide, narrow = (jax.tree.map(np.asarray, variables["params"][name]) for name in ("wide", "narrow"))
        hidden = np.maximum(np.asarray(read) @ wide["kernel"] + wide["bias"], 0)
        expected = expected + dense_scale * (hidden @ narrow["kernel"] + narrow["bias"])
    if memory_scale:
        own = {"params": variables["params"]["memory"], "tables": variables["tables"]["memory"]}
        expected = expected + memory_scale * np.asarray(jax.jit(part.memory.apply)(own, read, EmptyState())[0])
    np.testing.assert_allclose(y, layer_norm(expected) if norm == "post" else expected, rtol=0, atol=1e-11)


def test_without_weight_of_the_memory_the_part_is_the_ordinary_one_bit_for_bit():
    fields = {"norm": "post", "norm_kind": "layer", "dropout": 0.3}
    plain = FeedForwardLayer(DIM, 6, **fields)
    part = FeedForwardLayer(DIM, 6, **fields, memory=ProductKeyMemory(**SMALL), memory_scale=0.0)
    variables, x = variables_of(plain, dtype=np.float32), inputs(dtype=np.float32)
    noise = {"deterministic": False, "rngs": {"dropout": jax.random.key(3)}}
    y, expected = (p.apply(variables, x, EmptyState(), **noise)[0] for p in (part, plain))
    assert np.asarray(y).tobytes() == np.asarray(expected).tobytes()


# Published sizes


def shapes_of(part):
    x = jnp.zeros((1, 1, part.dim))
    return jax.eval_shape(lambda: part.init({"params": jax.random.key(0)}, x, EmptyState()))


def size(part):
    variables = shapes_of(part)
    return count_parameters((variables["params"], variables.get("tables", {})))


@pytest.mark.parametrize("dim, memory, dense", [(768, 202_640_384, 4_722_432), (1024, 270_011_392, 8_393_728)])
def test_published_sizes(dim, memory, dense):
    fields = {"dim": dim, "hidden_dim": 4 * dim, "norm": "post", "norm_kind": "layer"}
    plain = size(FeedForwardLayer(**fields))
    replaced = size(FeedForwardLayer(**fields, memory=ProductKeyMemory(dim=dim), dense_scale=0.0))
    both = size(FeedForwardLayer(**fields, memory=ProductKeyMemory(dim=dim)))
    assert size(ProductKeyMemory(dim=dim)) == both - plain == memory
    assert both - replaced == dense
    if dim == 768:  # BERT-base for masked language modelling with two memories: 506M and 515M
        assert 110_104_890 + 2 * (replaced - plain) == 505_940_794
        assert round((110_104_890 + 2 * (both - plain)) / 1e6) == 515
    else:  # BERT-large: 860M and 876M, up to 0.07 %
        assert 336_224_058 + 2 * (replaced - plain) == pytest.approx(860e6, rel=1e-3)
        assert 336_224_058 + 2 * (both - plain) == pytest.approx(876e6, rel=1e-3)
