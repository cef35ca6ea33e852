"""The linear attentions against loops written from their papers, and what is particular to each.

Their laws (recurrent equals parallel, causality, padding, prefixes) are in `tests/contract_test.py`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inference import generate
from memjax.memory.linear_transformer import LinearCrossAttention, LinearTransformerAttention
from memjax.memory.memsizer import MemSizerAttention
from memjax.memory.rfa import RFAAttention
from memjax.memory.t2r import T2RAttention, fold
from memjax.models.factory import make_language_model
from tests.reference import linear_attention as reference
from tests.reference.parameters import params_of, random_params

DIM, HEADS, HEAD_DIM, ROWS, LENGTH, SOURCE = 8, 2, 4, 2, 5, 7
SIZES = {"dim": DIM, "num_heads": HEADS, "head_dim": HEAD_DIM, "dtype": jnp.float64}
START = jnp.ones(ROWS, bool)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def variables_of(module, x, **named):
    keys = {"params": jax.random.key(0), "features": jax.random.key(1)}
    init = lambda: module.init(keys, x, module.init_state(ROWS, jnp.float64), start_of_document=START, **named)
    shapes = jax.eval_shape(init)
    drawn = {name: random_params(tree, seed=int(name != "params")) for name, tree in shapes.items()}
    return jax.tree.map(jnp.asarray, drawn)


def run(module, x, **named):
    """(attention's output without residual, variables as NumPy arrays), a document of one segment."""
    variables = variables_of(module, x, **named)
    apply = jax.jit(
        lambda v, x: module.apply(v, x, module.init_state(ROWS, jnp.float64), start_of_document=START, **named)
    )
    return np.asarray(apply(variables, x)[0] - x), jax.tree.map(np.asarray, variables)


def projected(x: np.ndarray, params, name: str, head: int) -> np.ndarray:
    return x @ params[name][:, head] + params[f"{name}_bias"][head]


def normed(x, params) -> np.ndarray:
    return np.stack([reference.layer_norm(row, params["scale"], params["bias"]) for row in np.asarray(x)])


def expected_of(x, params, features, divide, decay=None) -> np.ndarray:
    """Rows by loops: `features(vectors, head, is_query)`."""
    rows = []
    for row in range(ROWS):
        y, out = normed(x[row], params["layer_norm"]), np.zeros((LENGTH, DIM)) + params["output_bias"]
        for head in range(HEADS):
            queries = features(projected(y, params, "query", head), head, True)
            keys = features(projected(y, params, "key", head), head, False)
            gates = None if decay is None else decay(y, head)
            if gates is not None:
                keys = keys * (1 - gates)[:, None]
            values = projected(y, params, "value", head)
            out = out + reference.attend(queries, keys, values, divide=divide, decay=gates) @ params["output"][head]
        rows.append(out)
    return np.stack(rows)


def test_linear_transformer_equals_a_loop():
    x = random(0, ROWS, LENGTH, DIM)
    y, variables = run(LinearTransformerAttention(**SIZES, chunk_length=2), x)
    features = lambda vectors, head, is_query: reference.elu_plus_one(vectors)
    expected = expected_of(x, variables["params"], features, lambda q, z, n: q @ z + 1e-6)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("gate", [pytest.param(False, marks=pytest.mark.laws), True])
def test_rfa_equals_a_loop(gate):
    x = random(0, ROWS, LENGTH, DIM)
    y, variables = run(RFAAttention(**SIZES, num_directions=6, temperature=0.8, gate=gate), x)
    params, directions = variables["params"], variables["constants"]["directions"]

    def features(vectors, head, is_query):
        return reference.random_features(vectors, params["scale"][head] * directions[head] / 0.8)

    def decay(y, head):
        return 1 / (1 + np.exp(-(y @ params["gate"][:, head] + params["gate_bias"][head])))

    divide = lambda q, z, n: max(abs(q @ z), 1e-3)
    expected = expected_of(x, params, features, divide, decay if gate else None)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-10)


def test_t2r_equals_a_loop():
    x = random(0, ROWS, LENGTH, DIM)
    y, variables = run(T2RAttention(**SIZES, num_features=6), x)
    params = variables["params"]

    def features(vectors, head, is_query):
        vectors = vectors * HEAD_DIM**-0.5 if is_query else vectors
        return np.maximum(vectors @ params["feature_kernel"][head] + params["feature_bias"][head], 0)

    expected = expected_of(x, params, features, lambda q, z, n: max(q @ z, 1e-2))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-10)


def reference_params(params) -> dict:
    names = {"slot_scale": ("slot_norm", "scale"), "slot_shift": ("slot_norm", "bias")}
    names |= {"value_scale": ("value_norm", "scale"), "value_shift": ("value_norm", "bias")}
    return {**params, **{name: params[module][leaf] for name, (module, leaf) in names.items()}}


@pytest.mark.parametrize("heads", [pytest.param(1, marks=pytest.mark.laws), 3])
def test_memsizer_equals_a_loop_over_heads(heads):
    # One vector of weights per token, whatever the number of heads: the mean over heads commutes with reading.
    x = random(0, ROWS, LENGTH, DIM)
    y, variables = run(MemSizerAttention(**{**SIZES, "num_heads": heads}, num_slots=3), x)
    params = reference_params(variables["params"])
    for row in range(ROWS):
        expected = reference.memsizer(normed(x[row], params["layer_norm"]), params)
        np.testing.assert_allclose(y[row], expected, rtol=0, atol=1e-10)


def test_memsizer_over_a_source_equals_a_loop():
    x, source = random(0, ROWS, LENGTH, DIM), random(1, ROWS, SOURCE, DIM)
    lengths = (SOURCE, 3)
    mask = jnp.arange(SOURCE)[None, :] < jnp.array(lengths)[:, None]
    module = LinearCrossAttention(MemSizerAttention(**SIZES, num_slots=3))
    y, variables = run(module, x, source=source, source_mask=mask)
    params = reference_params(variables["params"]["attention"])
    for row, length in enumerate(lengths):
        given = np.asarray(source[row, :length])
        expected = reference.memsizer(normed(x[row], params["layer_norm"]), params, given)
        np.testing.assert_allclose(y[row], expected, rtol=0, atol=1e-10)


def test_memsizer_norms_slots_and_values_of_each_token():
    module, y = MemSizerAttention(**SIZES, num_slots=3), random(2, ROWS, LENGTH, DIM)
    params = dict(variables_of(module, y)["params"])
    for name in ("slot_norm", "value_norm"):  # as they are initially
        params[name] = {"scale": jnp.ones_like(params[name]["scale"]), "bias": jnp.zeros_like(params[name]["bias"])}
    slots, values = jax.jit(lambda p, y: module.apply({"params": p}, y, None, method="_keys_values"))(params, y)
    assert slots.shape == (ROWS, LENGTH, 1, 3) and values.shape == (ROWS, LENGTH, 1, DIM)
    np.testing.assert_allclose(slots.sum(axis=-1), 0, atol=1e-10)
    np.testing.assert_allclose((values**2).mean(axis=-1), 1, atol=1e-2)


def test_frozen_queries_are_constants():
    x = random(0, ROWS, LENGTH, DIM)
    learned, frozen = (
        variables_of(MemSizerAttention(**SIZES, num_slots=3, freeze_slot_keys=frozen), x) for frozen in (False, True)
    )
    assert frozen["constants"]["query"].shape == learned["params"]["query"].shape == (DIM, HEADS, 3)
    assert set(learned["params"]) - set(frozen["params"]) == {"query", "query_bias"}


def test_published_initial_sizes():
    module = MemSizerAttention(**{**SIZES, "dim": 64, "dtype": jnp.float32}, num_slots=32)
    x, state = jnp.zeros((1, 1, 64), jnp.float32), module.init_state(1)
    init = jax.jit(lambda key: module.init({"params": key}, x, state, start_of_document=jnp.ones(1, bool)))
    params = init(jax.random.key(0))["params"]
    xavier = lambda rows, columns: (2 / (rows + columns)) ** 0.5
    for name, columns, gain in (("query", HEADS * 32, 32**-0.5), ("slot_kernel", 32, 1), ("value_kernel", 64, 1)):
        np.testing.assert_allclose(np.std(params[name]), gain * xavier(64, columns), rtol=0.05, err_msg=name)


def test_redrawn_directions_leave_nothing_of_the_segment_before():
    module = RFAAttention(**SIZES, num_directions=6, redraw_each_segment=True)
    x = random(0, ROWS, LENGTH, DIM)
    variables = variables_of(module, x)

    @functools.partial(jax.jit, static_argnames="deterministic")
    def step(state, key, deterministic):
        named = {"start_of_document": jnp.zeros(ROWS, bool), "deterministic": deterministic}
        return module.apply(variables, x, state, **named, rngs={"features": key})[:2]

    empty = module.init_state(ROWS, jnp.float64)
    used = step(empty, jax.random.key(0), True)[1]
    for state in (empty, used):
        training = step(state, jax.random.key(1), False)
        np.testing.assert_array_equal(training[0], step(empty, jax.random.key(1), False)[0])
        np.testing.assert_array_equal(training[1].products, step(empty, jax.random.key(1), False)[1].products)
    assert not np.array_equal(training[0], step(empty, jax.random.key(2), False)[0])
    assert not np.array_equal(step(used, jax.random.key(1), True)[0], step(empty, jax.random.key(1), True)[0])


def test_directions_are_drawn_from_the_seed_and_saved():
    model = make_language_model(config.Model(dim=8, num_layers=2, num_heads=2, attention=config.RFA()), 11)
    init = jax.jit(
        lambda key: model.init(
            {"params": jax.random.key(0), "features": key},
            jnp.zeros((1, 2), jnp.int32),
            model.init_state(1),
            start_of_document=jnp.ones(1, bool),
        )["constants"]["stack"]
    )
    first, again, other = (jax.tree.leaves(init(jax.random.key(seed))) for seed in (1, 1, 2))
    assert len(first) == 2 and not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("bias", [True, False])
def test_folded_features_are_the_same_model(bias):
    x = random(0, ROWS, LENGTH, DIM)
    module = T2RAttention(**SIZES, num_features=6, bias=bias)
    y, variables = run(module, x)
    folded = fold(variables["params"])
    other = module.clone(fold_features=True)
    assert jax.tree.structure(folded) == jax.tree.structure(dict(variables_of(other, x)["params"]))
    state = other.init_state(ROWS, jnp.float64)
    z = jax.jit(lambda p: other.apply({"params": p}, x, state, start_of_document=START)[0] - x)(folded)
    np.testing.assert_allclose(z, y, rtol=0, atol=1e-10)


def softmax_and_t2r(**fields):
    common = {"dim": 8, "num_layers": 2, "num_heads": 2, "positions": "sinusoids", "scan_layers": True}
    both = {"bias": True, "norm_kind": "layer", "final_norm": False}
    plain = config.FullAttention(query_key_norm=False, num_buckets=0, **both)
    learned = config.T2R(num_features=4, **both, **fields)
    return (make_language_model(config.Model(**common, attention=part), 11) for part in (plain, learned))


def test_t2r_takes_the_parameters_of_softmax_attention():
    def params(model):
        tokens = jnp.zeros((1, 2), jnp.int32)
        return params_of(model, tokens, model.init_state(1), start_of_document=jnp.ones(1, bool))

    plain, learned = softmax_and_t2r()
    shapes = lambda tree: {
        jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    before, after = shapes(params(plain)), shapes(params(learned))
    assert before.items() <= after.items()
    assert {name.split("'")[-2] for name in set(after) - set(before)} == {"feature_kernel", "feature_bias"}
    # All of a model at once, also in scanned groups
    folded = next(iter([model for model in softmax_and_t2r(fold_features=True)][1:]))
    assert shapes(fold(params(learned))) == shapes(params(folded))


def test_a_language_model_of_linear_states_generates_as_it_reads():
    with jax.enable_x64(False):
        check_generation()


def check_generation():
    part = config.MemSizer(num_slots=3)
    model = make_language_model(
        config.Model(dim=8, num_layers=2, num_heads=2, attention=part, positions="sinusoids"), vocab_size=11
    )
    tokens, start = jnp.asarray([[3, 1, 4, 1, 5, 9, 2, 6]], jnp.int32), jnp.ones(1, bool)
    params = params_of(model, tokens, model.init_state(1), start_of_document=start, dtype=np.float32)
    variables = {"params": jax.tree.map(jnp.asarray, params)}
    new = generate(model, variables, [tokens[0].tolist()], segment_length=4, max_tokens=1)[0]
    read = jax.jit(lambda v: model.apply(v, tokens, model.init_state(1), start_of_document=start))
    hidden, state, _ = read(variables)
    assert state.position.tolist() == [8] and len(new) == 1
    # The place in the document matters: the same token twice does not give the same hidden state.
    assert not np.allclose(hidden[0, 1], hidden[0, 3], atol=1e-3)
