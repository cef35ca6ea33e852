"""Tables of layers that stand alone and of scanned groups; `step_test` has the whole step."""

import contextlib
import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax.config import Model, ProductKey, TableAdam
from memjax.models.factory import make_language_model
from memjax.training.metrics import read_metrics
from memjax.training.objective import Objective, model_loss
from memjax.training.optimizers import make_optimizer
from memjax.training.run_start import train
from memjax.training.step import make_train_step
from memjax.training.tables import (
    TouchedRows,
    freeze_tables,
    ids_of,
    is_dense,
    make_gradient_sinks,
    sparse_sgd,
    table_adam,
    touched_rows,
)
from memjax.typing import Batch
from tests.reference import product_keys as reference
from tests.reference.parameters import as_float64
from tests.training.loop_test import assert_same_run, final_arrays, make_experiment
from tests.training.toy import VOCAB, sparse_adam, toy_state

ROWS, DIM = 5, 2
TABLES = {
    "stack": {
        "layers_0": {"feed_forward": {"values": np.zeros((2, ROWS, DIM), np.float32)}},
        "layers_2": {"feed_forward": {"values": np.zeros((ROWS, DIM), np.float32)}},
    }
}
PATHS = [("stack", f"layers_{index}", "feed_forward", "values") for index in (0, 2)]


def arrays(groups, segments):
    generator = np.random.default_rng(0)
    ids = lambda: jnp.asarray(generator.integers(0, ROWS, (groups, segments, 3, 4)))
    return {
        **{f"layer_{i:02d}/values/ids": ids() for i in range(3)},
        "layer_00/output": jnp.zeros((groups, segments, 3)),
    }


def test_a_frozen_table_stays():
    rows = TouchedRows(jnp.array([[1], [3]]), jnp.ones((2, 1)), jnp.ones((2, DIM)))
    both = {"first": {"values": jnp.zeros((ROWS, DIM))}, "second": {"values": jnp.zeros((ROWS, DIM))}}
    touched = {(name, "values"): rows for name in both}
    optimizer = freeze_tables(sparse_sgd(lambda step: 0.5), lambda path: "first/" in path)
    update = jax.jit(lambda both, ok: optimizer.update(both, {}, touched, step=jnp.int32(0), ok=ok)[0])
    new = update(both, True)
    assert (new["first"]["values"] == 0).all()
    assert new["second"]["values"].sum(axis=1).tolist() == [0, -DIM / 2, 0, -DIM / 2, 0]


@pytest.mark.parametrize("form", ["lazy", "dense"])
def test_a_row_whose_update_is_not_finite_stays(form):
    rows = TouchedRows(jnp.array([[1], [3]]), jnp.ones((2, 1)), jnp.ones((2, DIM)))
    values = {"values": jnp.arange(ROWS * DIM, dtype=jnp.float32).reshape(ROWS, DIM)}
    optimizer = table_adam(lambda step: 0.5, form=form, eps=0.0)  # where no gradient has been, 0 / 0
    moments = optimizer.init(values)
    moments["mu"]["values"] = moments["mu"]["values"].at[3, 0].set(np.nan)
    update = jax.jit(lambda v, m, ok: optimizer.update(v, m, {("values",): rows}, step=jnp.int32(0), ok=ok))
    new, after = update(values, moments, True)
    changed = np.any(np.asarray(new["values"] != values["values"]), axis=1)
    assert changed.tolist() == [False, True, False, False, False]
    chex.assert_trees_all_equal(after["mu"]["values"][3], moments["mu"]["values"][3])


def test_ids_and_gradients_of_every_layer_meet():
    groups, segments = 2, 2
    ids = arrays(groups, segments)
    one = {name: array[0, 0] for name, array in ids.items()}
    sinks = make_gradient_sinks(TABLES, one, segments)
    assert sinks["stack"]["layers_0"]["feed_forward"]["values"].shape == (segments, 2, 3, 4, DIM)
    assert sinks["stack"]["layers_2"]["feed_forward"]["values"].shape == (segments, 3, 4, DIM)

    generator = np.random.default_rng(1)
    gradients = {
        "stack": {
            "layers_0": {"feed_forward": {"values": generator.normal(size=(groups, segments, 2, 3, 4, DIM))}},
            "layers_2": {"feed_forward": {"values": generator.normal(size=(groups, segments, 3, 4, DIM))}},
        }
    }

    @jax.jit
    def update(values, ok):
        touched = touched_rows(TABLES, gradients, ids)
        return sparse_sgd(lambda step: 0.5).update(values, {}, touched, step=jnp.zeros((), jnp.int32), ok=ok)[0]

    values = jax.tree.map(jnp.asarray, TABLES)
    new = update(values, True)
    expected = np.zeros((3, ROWS, DIM))
    scanned, alone = (gradients["stack"][f"layers_{i}"]["feed_forward"]["values"] for i in (0, 2))
    for layer in range(3):
        gradient = scanned[:, :, layer] if layer < 2 else alone
        np.add.at(expected[layer], np.asarray(ids[f"layer_{layer:02d}/values/ids"]), -0.5 * gradient)
    np.testing.assert_allclose(new["stack"]["layers_0"]["feed_forward"]["values"], expected[:2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new["stack"]["layers_2"]["feed_forward"]["values"], expected[2], rtol=1e-5, atol=1e-6)

    same = update(values, False)
    assert not np.any(same["stack"]["layers_0"]["feed_forward"]["values"])


def test_a_lookup_that_reports_no_ids_is_named():
    table = TABLES["stack"]["layers_2"]["feed_forward"]["values"]
    with pytest.raises(ValueError, match="stack/layers_2/feed_forward/values reports no ids, .* 'layer_02/values/ids'"):
        ids_of(PATHS[1], table, {})


# Adam of tables


def touched_of(dim=3, rows=7, bags=5, lookups=4, seed=0, dtype=np.float64):
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, rows - 2, (bags, lookups)).astype(np.int32)  # the last rows are never read
    ids[0, 0] = rows  # padding
    return TouchedRows(ids, generator.normal(size=(bags, lookups)).astype(dtype), generator.normal(size=(bags, dim)))


PATH = ("stack", "layers_1", "values")


def nested(table):
    return {"stack": {"layers_1": {"values": table}}}


def steps_of(optimizer, number=4, rows=7, dim=3, skip=()):
    """Values and moments after each step, and the gradients of the steps."""
    table = np.random.default_rng(9).normal(size=(rows, dim))
    values, found, step = nested(jnp.asarray(table)), [], 0
    moments = optimizer.init(values)
    update = jax.jit(lambda v, m, t, step, ok: optimizer.update(v, m, {PATH: t}, step=step, ok=ok))
    for index in range(number):
        touched, ok = touched_of(seed=index), index not in skip
        values, moments = update(values, moments, touched, jnp.asarray(step), jnp.asarray(ok))
        step += ok
        leaf = lambda tree: np.asarray(tree["stack"]["layers_1"]["values"])
        found.append(tuple(map(leaf, (values, moments["mu"], moments["nu"]))))
    return table, found


@pytest.mark.parametrize("skip", [(), (2,)])
def test_lazy_adam_is_its_dense_mask_form_in_values_and_moments(skip):
    with jax.enable_x64(True):
        table, found = steps_of(table_adam(lambda step: 0.1, form="lazy"), skip=skip)
        mu, nu, step = np.zeros_like(table), np.zeros_like(table), 0
        for index, new in enumerate(found):
            if index not in skip:
                rows = touched_of(seed=index)
                gradient = reference.table_gradient(7, rows.ids, rows.weights, rows.gradients)
                step += 1
                table, mu, nu = reference.lazy_adam(table, mu, nu, gradient, step, rate=0.1)
            for one, expected in zip(new, (table, mu, nu), strict=True):
                np.testing.assert_allclose(one, expected, rtol=0, atol=1e-12)
                assert one[5:].tobytes() == expected[5:].tobytes()  # rows that were never read


def test_dense_adam_is_that_of_optax():
    with jax.enable_x64(True):
        table, found = steps_of(table_adam(lambda step: 0.1, form="dense"))
        rule = optax.adam(0.1)
        state = rule.init(jnp.asarray(table))
        for index, (new, mu, nu) in enumerate(found):
            rows = touched_of(seed=index)
            gradient = reference.table_gradient(7, rows.ids, rows.weights, rows.gradients)
            updates, state = rule.update(jnp.asarray(gradient), state)
            table = table + np.asarray(updates)
            for one, expected in ((new, table), (mu, state[0].mu), (nu, state[0].nu)):
                np.testing.assert_allclose(one, expected, rtol=0, atol=1e-9)  # optax computes 1 - b ** t in float32


def test_layers_of_a_scanned_group_are_updated_each_with_its_own_rows():
    with jax.enable_x64(True):
        optimizer = table_adam(lambda step: 0.1, form="lazy")
        tables = np.random.default_rng(0).normal(size=(2, 7, 3))
        rows = [touched_of(seed=index) for index in range(2)]
        run = jax.jit(
            lambda v, t: optimizer.update(v, optimizer.init(v), {PATH: t}, step=jnp.asarray(0), ok=jnp.asarray(True))
        )
        together = run(nested(jnp.asarray(tables)), jax.tree.map(lambda *leaves: np.stack(leaves), *rows))
        for index in range(2):
            alone = run(nested(jnp.asarray(tables[index])), rows[index])
            for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
                np.testing.assert_allclose(a[index], b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "rows, lookups, form, dense",
    [
        (64, 16, "auto", True),
        (65, 16, "auto", False),
        (64, 16, "lazy", False),
        (10**6, 1, "dense", True),
    ],
)
def test_the_form_follows_the_share_of_rows_that_are_touched(rows, lookups, form, dense):
    assert is_dense(rows, lookups, form) == dense


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="form: given 'sparse', allowed: 'auto', 'lazy' or 'dense'"):
        table_adam(lambda step: 0.1, form="sparse")


# A language model with product keys


def product_keys(**fields):
    part = ProductKey(layers=(1,), num_keys=4, memory_heads=2, num_neighbors=3, key_dim=4, query_norm="none")
    part = dataclasses.replace(part, **fields)
    return Model(dim=DIM_OF_MODEL, num_layers=3, num_heads=2, feed_forward=part, scan_layers=True)


DIM_OF_MODEL = 8


def batches_of(number, segments=1, rows=4, length=3, vocab=11):
    generator = np.random.default_rng(1)
    made = []
    for index in range(number):
        ids = generator.integers(0, vocab, (segments, rows, length + 1)).astype(np.int32)
        shape = (segments, rows, length)
        mask = np.ones(shape, bool)
        mask[:, 1, 2:] = False
        weights = mask.astype(np.float32)
        weights[0, 0, 1] = 0
        start = np.full((segments, rows), index == 0)
        made.append(Batch(ids[..., :-1], ids[..., 1:], mask, weights, start, {}))
    return made


def model_steps(optimizer, data, *, accumulate=1, clip_norm=0.0, **fields):
    model = as_float64(make_language_model(product_keys(**fields), 11))
    dense = make_optimizer(optax.sgd(0.5), clip_norm=clip_norm)
    state = toy_state(model, dense, batch=data[0], dtype=np.float64, table_optimizer=optimizer)
    start = state
    step = make_train_step(Objective(model_loss(model)), dense, table_optimizer=optimizer, accumulate=accumulate)
    for batch in data:
        state, _ = step(state, batch)
    return model, start, state


@pytest.mark.parametrize(
    "accumulate, fields",
    [
        pytest.param(2, {"dense_scale": 1.0, "memory_scale": 0.5}, marks=pytest.mark.laws),
        pytest.param(1, {}, marks=pytest.mark.slow),
    ],
)
def test_training_a_model_changes_tables_and_moments_as_the_dense_mask_form_does(accumulate, fields):
    with jax.enable_x64(True):
        data = batches_of(3, segments=2)
        lazy, masked = table_adam(lambda step: 0.05, form="lazy"), sparse_adam(0.05)
        _, start, state = model_steps(lazy, data, accumulate=accumulate, **fields)
        _, _, expected = model_steps(masked, data, **fields)
        chex.assert_trees_all_close(state.tables, expected.tables, rtol=0, atol=1e-11)
        chex.assert_trees_all_close(state.params, expected.params, rtol=0, atol=1e-11)
        table = lambda s: np.asarray(s.tables.values["stack"]["layers_1"]["feed_forward"]["memory"]["values"])
        assert np.any(table(state) != table(start)) and table(state).shape == (16, DIM_OF_MODEL)


@pytest.mark.laws
def test_the_gradient_of_a_step_is_that_of_the_table():
    with jax.enable_x64(True):
        data = batches_of(1, segments=2)
        rate_of_one = sparse_sgd(lambda step: 1.0)
        model, start, state = model_steps(rate_of_one, data, clip_norm=1e-3)  # the norm is that of params alone
        table = lambda values: values["stack"]["layers_1"]["feed_forward"]["memory"]["values"]

        def loss(table):
            values = {"stack": {"layers_1": {"feed_forward": {"memory": {"values": table}}}}}
            memory, nats = start.memory, 0.0
            for segment in range(2):
                batch = jax.tree.map(lambda leaf, s=segment: jnp.asarray(leaf[s]), data[0])
                variables = {"params": jax.tree.map(jnp.asarray, start.params), "tables": values}
                memory, _, nll, _ = model_loss(model)(variables, memory, batch, jax.random.key(0))
                nats += nll.total
            return nats / jnp.sum(data[0].weights)

        # Not by the sink: small changes of single rows, along a random direction.
        values = np.asarray(table(start.tables.values))
        sparse = values - np.asarray(table(state.tables.values))
        direction = np.random.default_rng(2).normal(size=values.shape)
        run, eps = jax.jit(loss), 1e-5
        slope = (run(values + eps * direction) - run(values - eps * direction)) / (2 * eps)
        np.testing.assert_allclose((sparse * direction).sum(), slope, rtol=1e-6)
        assert np.abs(sparse).max() > 1e-3


@pytest.mark.slow
def test_layers_with_a_table_leave_their_group_and_moments_survive_a_resumed_run(tmp_path):
    model = make_language_model(product_keys(layers=(1, 2), query_norm="batch"), VOCAB)
    assert model.stack.layer_groups() == ((0, 0), (1, 0), (2, 0))
    named = {"model": model, "steps": 5, "log_every": 2, "checkpoint_every": 2, "evaluate_every": 0}
    named["value_table_optimizer"] = TableAdam(form="lazy")

    def run(name, hooks=()):
        experiment = make_experiment(tmp_path, name, **named)
        return train(experiment.config, experiment=experiment, hooks=hooks, on_event=lambda event: None)

    def crash(info):
        if info.step == 3:
            raise KeyboardInterrupt

    whole = run("whole")
    with contextlib.suppress(KeyboardInterrupt):
        run("resumed", [crash])
    resumed = run("resumed")
    assert_same_run(resumed.path, whole.path)
    _, arrays, _ = final_arrays(whole.path)
    names = {name for name in arrays if name.startswith("tables/")}
    assert "tables/values/stack/layer_02/feed_forward/memory/values" in names
    assert any(name.startswith("tables/moments/rule/mu/") for name in names)
    lines = [line for line in read_metrics(whole.path / "metrics.jsonl") if line["kind"] == "train"]
    for line in lines:
        for layer in ("layer_01", "layer_02"):
            assert 0 < line[f"{layer}/top_usage"] <= line[f"{layer}/usage"] <= 1
            assert line[f"{layer}/count_divergence"] >= 0 and line[f"{layer}/weight_divergence"] >= 0
