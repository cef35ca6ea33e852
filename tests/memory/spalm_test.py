"""SPALM against loops: S1 to S8, its gate, and a language model that carries it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax import config
from memjax.data.annotations import NEIGHBORS
from memjax.memory.knn_lm import KNNMemory
from memjax.memory.spalm import MASK, VALUES, SpalmMemory
from memjax.models import add_mixtures, make_language_model
from memjax.training.metrics import count_parameters
from memjax.training.objective import Objective, model_loss
from memjax.training.step import make_train_step
from memjax.training.train_state import init_train_state
from memjax.typing import Batch, EmptyState
from tests.reference import knn_lm as knn_reference
from tests.reference import spalm as reference
from tests.reference.parameters import params_of, random_params

DIM, VOCAB, ROWS, LENGTH, K = 6, 9, 2, 3, 4
RNG = np.random.default_rng(0)
HIDDEN, TABLE = RNG.normal(size=(ROWS, LENGTH, DIM)), RNG.normal(size=(VOCAB, DIM))
FOUND = RNG.integers(0, VOCAB, (ROWS, LENGTH, K)).astype(np.int32)
FOUND[0, 1, 1:], FOUND[1, 2] = -1, -1


@functools.partial(jax.jit, static_argnums=0)
def apply(module, params, hidden, table, values, mask=None, tokens=None, read=None):
    y, state, aux = module.apply(
        {"params": params},
        hidden,
        module.init_state(ROWS),
        start_of_document=jnp.zeros(ROWS, bool),
        embed_output=lambda ids: table[ids],
        mask=tokens,
        tokens=read,
        neighbor_values=values,
        neighbor_mask=mask,
    )
    assert state == EmptyState()
    return y, aux


def random(module, seed=0):
    init = lambda: module.init(
        jax.random.key(0),
        jnp.zeros((ROWS, LENGTH, DIM)),
        EmptyState(),
        start_of_document=jnp.zeros(ROWS, bool),
        embed_output=lambda ids: jnp.zeros((*ids.shape, DIM)),
    )
    return random_params(jax.eval_shape(init)["params"], seed)


def run(module, params, hidden=HIDDEN, table=TABLE, values=FOUND, **more):
    with jax.enable_x64(True):
        arguments = [None if array is None else jnp.asarray(array) for array in (hidden, table, values)]
        params = jax.tree.map(jnp.asarray, params)
        more = {name: jnp.asarray(array) for name, array in more.items()}
        return jax.tree.map(np.asarray, apply(module, params, *arguments, **more))


def expected(params, values=FOUND, scale=DIM**0.5):
    z = np.zeros(HIDDEN.shape)
    for b, t in np.ndindex(ROWS, LENGTH):
        z[b, t] = reference.mix(HIDDEN[b, t], TABLE, values[b, t], params["weight"], params.get("bias", 0.0), scale)
    return z


GATES = [{}, {"gate_bias": 2.0}, {"gate": "vector"}, {"gate": "vector", "gate_bias": -1.0}]


@pytest.mark.parametrize(
    "fields, scaled",
    [
        (GATES[1], False),
        (GATES[3], True),
        *(
            pytest.param(fields, scaled, marks=pytest.mark.laws)
            for number, fields in enumerate(GATES)
            for scaled in (False, True)
            if (number, scaled) not in ((1, False), (3, True))
        ),
    ],
)
def test_output_equals_the_reference(fields, scaled):
    module = SpalmMemory(dim=DIM, scale_neighbors=scaled, **fields)
    params = random(module)
    y, aux = run(module, params)
    np.testing.assert_allclose(y, expected(params, scale=DIM**0.5 if scaled else 1.0), atol=1e-12)
    gates = [
        reference.gate(HIDDEN[b, t], params["weight"], params.get("bias", 0.0)).mean()
        for b, t in np.ndindex(ROWS, LENGTH)
        if (FOUND[b, t] >= 0).any()
    ]
    assert aux.metrics["gate"].weight == len(gates) == ROWS * LENGTH - 1
    np.testing.assert_allclose(aux.metrics["gate"].total, sum(gates), rtol=1e-12)


def test_an_open_gate_is_the_model_and_a_closed_one_the_memory():
    """S1, exactly; S2: one neighbour is its embedding, whatever the hidden state; S3: equal ones too."""
    module = SpalmMemory(dim=DIM, gate_bias=0.0, scale_neighbors=False)
    none = {"weight": np.zeros(DIM)}
    y, _ = run(module, none | {"bias": np.full(1, np.inf)})
    np.testing.assert_array_equal(y, HIDDEN)
    y, _ = run(module, none | {"bias": np.full(1, -np.inf)})
    np.testing.assert_allclose(y[0, 1], TABLE[FOUND[0, 1, 0]], atol=1e-12)
    same = np.broadcast_to(FOUND[:, :, :1].clip(0), FOUND.shape)
    y, _ = run(module, none | {"bias": np.full(1, -np.inf)}, values=same)
    np.testing.assert_allclose(y, TABLE[same[..., 0]], atol=1e-12)


def test_the_order_of_neighbors_does_not_matter():
    """S4."""
    module, order = SpalmMemory(dim=DIM), np.array([2, 0, 3, 1])
    params = random(module)
    np.testing.assert_allclose(run(module, params, values=FOUND[..., order])[0], run(module, params)[0], atol=1e-12)


def test_without_neighbors_the_hidden_state_passes():
    """S8, exactly: none at all, none that count, or none given; what stands at their places does not matter."""
    module = SpalmMemory(dim=DIM)
    params = random(module)
    for more in ({"values": np.full_like(FOUND, -1)}, {"values": None}, {"mask": np.zeros(FOUND.shape, bool)}):
        y, aux = run(module, params, **more)
        np.testing.assert_array_equal(y, HIDDEN)
        assert aux.metrics["gate"].weight == 0
    some = FOUND >= 0
    some[..., 2:] = False
    y, _ = run(module, params, mask=some)
    np.testing.assert_allclose(y, expected(params, np.where(some, FOUND, -1)), atol=1e-12)


def test_the_nearest_are_taken_and_too_few_are_refused():
    y, _ = run(SpalmMemory(dim=DIM, num_neighbors=2), params := random(SpalmMemory(dim=DIM)))
    np.testing.assert_allclose(y, expected(params, FOUND[..., :2]), atol=1e-12)
    with pytest.raises(ValueError, match="neighbor_values: given 4 neighbours, num_neighbors = 5"):
        run(SpalmMemory(dim=DIM, num_neighbors=5), params)


def test_gradients_go_to_output_weights_gate_and_hidden_state():
    """S5: and to the output weights of neighbours only."""
    module = SpalmMemory(dim=DIM)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), random(module))
    weights = jnp.asarray(RNG.normal(size=HIDDEN.shape), jnp.float32)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def slopes_of(params, hidden, table):
        return (weights * apply(module, params, hidden, table, jnp.asarray(FOUND))[0]).sum()

    to_params, to_hidden, to_table = slopes_of(
        params, jnp.asarray(HIDDEN, jnp.float32), jnp.asarray(TABLE, jnp.float32)
    )
    assert all(np.isfinite(leaf).all() for leaf in (to_params["weight"], to_hidden, to_table))
    assert np.asarray(to_params["weight"]).all() and np.asarray(to_hidden).any(axis=-1).all()
    touched = np.isin(np.arange(VOCAB), FOUND)
    assert not touched.all() and (np.asarray(to_table).any(axis=-1) == touched).all()
    np.testing.assert_array_equal(to_hidden[1, 2], weights[1, 2])  # nothing was mixed in there


def test_gates_are_counted_by_bins():
    module = SpalmMemory(dim=DIM, gate_bins=4)
    params = random(module)
    tokens = np.array([[True, True, True], [True, True, False]])
    _, aux = run(module, params, tokens=tokens)
    gates = np.array([[reference.gate(h, params["weight"])[0] for h in row] for row in HIDDEN])
    counted = gates[tokens & (FOUND >= 0).any(axis=-1)]
    names = [f"gate_up_to_{edge:.2f}" for edge in (0.25, 0.5, 0.75, 1.0)]
    found = [aux.metrics[name] for name in names]
    assert [one.total for one in found] == np.histogram(counted, 4, (0, 1))[0].tolist()
    assert [float(one.weight) for one in found] == [5.0] * 4


def test_figures_of_what_is_added_and_of_targets_among_the_neighbors():
    """The next token of a segment's last position is not known, nor is that of one before padding."""
    module = SpalmMemory(dim=DIM, gate_bias=1.0)
    params, tokens = random(module), np.array([[True, True, True], [True, True, False]])
    read = np.array([[0, FOUND[0, 0, 2], FOUND[0, 1, 0] + 1], [1, FOUND[1, 0, 3], FOUND[1, 1, 0]]]) % VOCAB
    _, aux = run(module, params, tokens=tokens, read=read)
    ratios = [
        np.linalg.norm(z - g * HIDDEN[b, t]) / np.linalg.norm(HIDDEN[b, t])
        for b, t in np.argwhere(tokens & (FOUND >= 0).any(axis=-1))
        for z, g in [(expected(params)[b, t], reference.gate(HIDDEN[b, t], params["weight"], params["bias"]))]
    ]
    length, among = (aux.metrics[f"spalm/{name}"] for name in ("added_length", "target_among"))
    assert length.weight == len(ratios) == 5
    np.testing.assert_allclose(length.total, sum(ratios), rtol=1e-12)
    assert (float(among.total), float(among.weight)) == (2, 3)
    assert "spalm/target_among" not in run(module, params)[1].metrics


def test_neighbors_are_left_out_in_training_each_by_itself():
    """Without any left the hidden state passes; the figure of the targets is of all that came."""
    many = 400
    values = jnp.broadcast_to(jnp.array([1, 2]), (ROWS, many, 2))
    module = SpalmMemory(dim=DIM, num_neighbors=2, neighbor_dropout=0.25, gate_bias=0.0, scale_neighbors=False)
    given = {"start_of_document": jnp.zeros(ROWS, bool)}
    table = jnp.zeros((VOCAB, DIM)).at[1, 0].set(1.0).at[2, 1].set(1.0)
    given |= {"embed_output": lambda ids: table[ids], "neighbor_values": values, "deterministic": False}
    given |= {"tokens": jnp.full((ROWS, many), 2), "rngs": {"dropout": jax.random.key(0)}}
    variables = {"params": {"weight": jnp.zeros(DIM), "bias": jnp.full(1, -jnp.inf)}}
    y, _, aux = jax.jit(lambda x: module.apply(variables, x, EmptyState(), **given))(jnp.ones((ROWS, many, DIM)))
    first, second = np.asarray(y[..., 0]), np.asarray(y[..., 1])
    whole, both = (first == 1) & (second == 1), (first == 0.5) & (second == 0.5)
    single = ((first == 1) & (second == 0)) | ((first == 0) & (second == 1))
    assert (whole | both | single).all()
    np.testing.assert_allclose([whole.mean(), both.mean(), single.mean()], [1 / 16, 9 / 16, 6 / 16], atol=0.05)
    assert aux.metrics["spalm/target_among"].mean() == 1


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"neighbor_dropout": 1.0}, "neighbor_dropout: given 1.0, allowed: a rate in "),
        ({"num_neighbors": 0}, "num_neighbors: given 0, allowed: 1 or more"),
        ({"gate_bins": -1}, "gate_bins: given -1, allowed: 0"),
    ],
)
def test_mistakes_are_named(fields, line):
    with pytest.raises(ValueError, match=line):
        SpalmMemory(dim=DIM, **fields).init_state(1)


# Over a language model

XL = config.TransformerXL(memory_length=5)
SOFTMAXES = {"softmax": config.Softmax(), "adaptive": config.AdaptiveSoftmax(cutoffs=(3, 6), div_val=2)}


def language_models(kind: str, **fields):
    make = lambda output: make_language_model(
        config.Model(dim=8, num_layers=1, num_heads=2, attention=XL, output=output), VOCAB
    )
    return make(SOFTMAXES[kind]), make(config.Spalm(softmax=SOFTMAXES[kind], **fields))


def variables_of(model):
    tokens, start = jnp.zeros((1, LENGTH), jnp.int32), jnp.ones(1, bool)
    params = params_of(model, tokens, model.init_state(1), start_of_document=start, dtype=np.float32)
    return {"params": jax.tree.map(jnp.asarray, params)}


TOKENS = jnp.asarray(RNG.integers(0, VOCAB, (ROWS, LENGTH)), jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def forward(model, variables, extras):
    start = jnp.ones(ROWS, bool)
    hidden, _, aux = model.apply(variables, TOKENS, model.init_state(ROWS), start_of_document=start, extras=extras)
    return hidden, model.apply(variables, hidden, method="log_probs"), aux


@pytest.mark.parametrize("kind", SOFTMAXES)
def test_a_model_mixes_before_its_softmax(kind):
    """The neighbours' output weights, as published; S7; S8 is Transformer-XL exactly."""
    plain, model = language_models(kind, scale_neighbors=False)
    variables = variables_of(model)
    without = {"params": {k: v for k, v in variables["params"].items() if k != "output_memory"}}
    assert count_parameters(variables) - count_parameters(without) == 8
    h, log_probs, _ = forward(plain, without, {})
    for extras in ({}, {VALUES: jnp.full((ROWS, LENGTH, K), -1)}):
        np.testing.assert_array_equal(forward(model, variables, extras)[1], log_probs)
    z, mixed, aux = forward(model, variables, {VALUES: jnp.asarray(FOUND)})
    table = np.asarray(plain.apply(without, jnp.arange(VOCAB), method="embed_output"), np.float64)
    weight = np.asarray(variables["params"]["output_memory"]["weight"], np.float64)
    h = np.asarray(h, np.float64)
    for b, t in np.ndindex(ROWS, LENGTH):
        np.testing.assert_allclose(z[b, t], reference.mix(h[b, t], table, FOUND[b, t], weight), atol=1e-5)
    assert not np.allclose(mixed, log_probs) and aux.metrics["output_memory/gate"].weight == ROWS * LENGTH - 1
    if kind == "softmax":
        scores = np.asarray(z) @ table.T
        expected = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        np.testing.assert_allclose(mixed, expected, atol=1e-5)


def test_neighbors_are_interpolated_besides():
    """SPALM and kNN-LM with the same store."""
    _, model = language_models("softmax")
    variables = variables_of(model)
    both = add_mixtures(model, KNNMemory(interpolation_weight=0.3))
    distances = jnp.asarray(RNG.gamma(2.0, 2.0, FOUND.shape), jnp.float32)
    extras = {VALUES: jnp.asarray(FOUND), "knn_distances": distances, "knn_values": jnp.asarray(FOUND)}
    chosen = both.select_extras(extras | {MASK: np.ones(FOUND.shape, bool), "more": 0})
    assert set(chosen) == {*extras, MASK}
    alone = np.exp(forward(model, variables, {VALUES: jnp.asarray(FOUND)})[1])
    found = np.exp(forward(both, variables, extras)[1])
    knn = knn_reference.knn_probs(distances[0, 0], FOUND[0, 0], FOUND[0, 0] >= 0, VOCAB)
    np.testing.assert_allclose(found[0, 0], knn_reference.interpolate(alone[0, 0], knn, 0.3), atol=1e-6)


def test_training_learns_from_neighbors_that_come_with_the_batch():
    """Neighbours that are always the target: the gate closes and the loss falls; without them it is refused."""
    _, model = language_models("softmax", num_neighbors=2, gate_bins=2)
    targets = np.asarray(TOKENS)[None]
    batch = Batch(
        inputs=np.zeros_like(targets),
        targets=targets,
        mask=np.ones(targets.shape, bool),
        weights=np.ones(targets.shape, np.float32),
        start_of_document=np.ones((1, ROWS), bool),
        extras={NEIGHBORS: np.repeat(targets[..., None], 2, axis=-1)},
    )
    assert NEIGHBORS == VALUES
    objective, optimizer = Objective(model_loss(model)), optax.adam(0.05)
    arguments = (variables_of(model), model.init_state(ROWS), batch, jax.random.key(0))
    state = init_train_state(objective, optimizer, *arguments)
    step, losses, gates = make_train_step(objective, optimizer), [], []
    for _ in range(30):
        state, sums = step(state, batch)
        losses.append(float(sums["nll"].mean()))
        gates.append(float(sums["output_memory/gate"].mean()))
    assert losses[-1] < 0.5 * losses[0] and gates[-1] < gates[0]
    assert sums["output_memory/gate_up_to_0.50"].weight == ROWS * LENGTH
    bare = Batch(**{**batch.__dict__, "extras": {}})
    with pytest.raises(ValueError, match="extras: given .*, SpalmMemory needs neighbor_values"):
        make_train_step(objective, optimizer)(state, bare)
