import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax.config import Compressive, Model
from memjax.models.factory import make_language_model
from memjax.training.objective import Objective, model_loss
from memjax.training.optimizers import adam, make_optimizer, make_schedule
from memjax.training.step import make_train_step
from memjax.training.tables import sparse_sgd
from memjax.typing import Batch, tree_dataclass
from tests.training import toy
from tests.training.toy import LENGTH, ROWS, VOCAB, ToyModel, again, sparse_adam, toy_state, toy_stream


def batches(number, **kwargs):
    stream = toy_stream(**kwargs)
    return [next(stream) for _ in range(number)]


def host(state):
    """The state as NumPy: the next step deletes its buffers."""
    return jax.device_get(dataclasses.replace(state, key=jax.random.key_data(state.key)))


def run(model, batches, optimizer=None, *, state=None, coefficients=None, **kwargs):
    optimizer = optimizer or optax.sgd(0.1)
    if state is None:
        state = toy_state(model, optimizer, batch=batches[0], table_optimizer=kwargs.get("table_optimizer"))
    step = make_train_step(Objective(model_loss(model), coefficients or {}), optimizer, **kwargs)
    for batch in batches:
        state, metrics = step(state, batch)
    return state, metrics


def test_training_learns_with_one_trace_and_donates():
    model, optimizer = ToyModel(dropout=0.1), make_optimizer(adam(make_schedule(1e-2, steps=80)), clip_norm=1.0)
    stream = toy_stream()
    first = next(stream)
    state = toy_state(model, optimizer, batch=first)
    plain = make_train_step(Objective(model_loss(model)), optimizer, jit=False)
    step = jax.jit(chex.assert_max_traces(plain, n=1), donate_argnums=0)
    losses = []
    for index, batch in zip(range(80), stream, strict=False):
        old = state
        state, metrics = step(state, batch)
        losses.append(metrics["nll"])
        if index == 40:  # what the loop does when it logs
            state = dataclasses.replace(state, totals=jax.tree.map(jnp.zeros_like, state.totals))
    kept = [leaf for leaf in jax.tree.leaves(dataclasses.replace(old, totals={})) if not leaf.is_deleted()]
    assert not kept, "every buffer of the old state is gone"
    means = [float(loss.mean()) for loss in losses]
    assert np.mean(means[-10:]) < np.mean(means[:10]) - 0.3
    assert int(state.step) == 80 and float(state.totals["skipped"].weight) == 39


def test_accumulation_changes_nothing():
    with jax.enable_x64(True):
        model = ToyModel(use_table=True, auxiliary_loss=True, detach=False)
        data = batches(2, segments=2)
        # Weights that differ between rows: a mean of means would show.
        data[0].weights[:, 0] = 0.0
        # A row group in which nothing is scored.
        data[1].weights[:, 1::2] = 0.0
        start = toy_state(model, batch=data[0], dtype=np.float64, table_optimizer=sparse_sgd(lambda step: 0.5))
        results = [
            run(
                model,
                data,
                state=again(start),
                accumulate=groups,
                coefficients={"toy/size": 0.3},
                table_optimizer=sparse_sgd(lambda step: 0.5),
            )[0]
            for groups in (1, 2)
        ]
        for name in ("params", "tables", "memory"):
            for a, b in zip(*(jax.tree.leaves(getattr(s, name)) for s in results), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)
        for name, total in results[0].totals.items():
            np.testing.assert_allclose(total.mean(), results[1].totals[name].mean(), rtol=1e-6)


def test_recomputation_with_dropout_gives_equal_gradients():
    with jax.enable_x64(True):
        model, data = ToyModel(dropout=0.5, detach=False), batches(1, segments=3)
        start = toy_state(model, batch=data[0], dtype=np.float64)
        kinds = ("none", "segment")
        plain, recomputed = (run(model, data, state=again(start), rematerialize=kind)[0].params for kind in kinds)
        chex.assert_trees_all_close(plain, recomputed, rtol=1e-12)


@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.laws), 2])
def test_segments_without_gradient_write_the_memory_and_nothing_else(groups):
    with jax.enable_x64(True):
        data = batches(1, segments=3)
        scored = dataclasses.replace(data[0], weights=data[0].weights * np.array([0, 0, 1])[:, None, None])
        model = ToyModel(dropout=0.5, use_table=True, auxiliary_loss=True)
        table_optimizer = sparse_sgd(lambda step: 0.5)
        start = toy_state(model, batch=data[0], dtype=np.float64, table_optimizer=table_optimizer)

        def after(batch, **kwargs):
            settings = {"coefficients": {"toy/size": 0.0}, "table_optimizer": table_optimizer, "accumulate": groups}
            return host(run(model, [batch], state=again(start), **settings, **kwargs)[0])

        # A memory that stops gradients, unscored segments, and no other loss: nothing is left of their gradients.
        plain, read = after(scored), after(data[0], segments_without_gradient=2)
        for name in ("params", "tables", "memory"):
            chex.assert_trees_all_close(getattr(read, name), getattr(plain, name), rtol=1e-10, atol=1e-14)
        for name in ("nll", "tokens"):
            np.testing.assert_allclose(read.totals[name].total, plain.totals[name].total, rtol=1e-6)
        moved = [
            np.abs(new - old).max() for new, old in zip(*map(jax.tree.leaves, (read.params, start.params)), strict=True)
        ]
        assert max(moved) > 1e-3


def test_no_gradient_goes_back_into_segments_without_one():
    with jax.enable_x64(True):
        (batch,), model = batches(1, segments=3), ToyModel(detach=False, auxiliary_loss=True)
        start, loss = toy_state(model, batch=batch, dtype=np.float64), {"coefficients": {"toy/size": 0.3}}
        read, metrics = run(model, [batch], state=again(start), segments_without_gradient=2, **loss)
        # The same by hand: two segments that change the memory only, then an update on the last alone.
        before, after = (jax.tree.map(lambda leaf, p=part: leaf[p], batch) for part in (slice(2), slice(2, 3)))
        written = run(model, [before], optax.sgd(0.0), state=again(start), **loss)[0]
        chex.assert_trees_all_equal(written.params, start.params)
        expected, alone = run(model, [after], state=written, **loss)
        chex.assert_trees_all_close((read.params, read.memory), (expected.params, expected.memory), rtol=1e-12)
        for name in ("nll", "losses/toy/size"):
            np.testing.assert_allclose(metrics[name].total, alone[name].total, rtol=1e-6)


@pytest.mark.parametrize("given", [-1, 2])
def test_one_segment_has_a_gradient(given):
    (batch,) = batches(1, segments=2)
    with pytest.raises(
        ValueError, match=f"segments_without_gradient: given {given}, allowed: from 0 to 1, so that one of the 2"
    ):
        run(ToyModel(), [batch], segments_without_gradient=given)


def compressive_batches(number: int, segments: int) -> list[Batch]:
    """One document in every row that goes on through all steps: after two segments something is compressed."""
    rng = np.random.default_rng(0)

    def one(step: int) -> Batch:
        ids = rng.integers(0, VOCAB, (segments, ROWS, LENGTH + 1)).astype(np.int32)
        start = np.zeros((segments, ROWS), bool)
        start[0] = step == 0
        ones = np.ones((segments, ROWS, LENGTH), np.float32)
        return Batch(ids[..., :-1], ids[..., 1:], ones > 0, ones, start, {})

    return [one(step) for step in range(number)]


@pytest.mark.parametrize(
    "loss, segments, weight, learns",
    [
        ("attention", 1, 1.0, True),
        pytest.param("auto_encoding", 1, 1.0, True, marks=pytest.mark.laws),
        pytest.param("attention", 1, 0.0, False, marks=pytest.mark.laws),  # logged only
        ("none", 1, 1.0, False),  # no later segment in the update reads what is compressed
        pytest.param("none", 2, 1.0, True, marks=pytest.mark.laws),
    ],
)
def test_a_compression_learns_from_what_its_configuration_says(loss, segments, weight, learns):
    attention = Compressive(
        memory_length=LENGTH, compressed_memory_length=2, compression_rate=2, compression_loss=loss, loss_weight=weight
    )
    model = make_language_model(Model(dim=8, num_layers=1, num_heads=2, attention=attention), VOCAB)
    data, optimizer = compressive_batches(4, segments), make_optimizer(optax.sgd(0.1), clip_norm=0.1)
    start = toy_state(model, optimizer, batch=data[0])
    kernel = lambda state: state.params["stack"]["layers_0"]["attention"]["compression_kernel"]
    end, metrics = run(model, data, optimizer, state=start, coefficients=attention.auxiliary_loss_weights())
    assert np.array_equal(kernel(end), kernel(start)) == (not learns)
    assert not np.array_equal(end.params["vocabulary"]["embedding"], start.params["vocabulary"]["embedding"])
    losses = {name: total for name, total in metrics.items() if name.startswith("losses/")}
    assert len(losses) == (loss != "none")
    for total in losses.values():
        counted = ROWS * LENGTH * segments  # queries, or old slots
        assert total.weight == counted and 0 < float(total.mean()) < np.inf


def test_a_step_that_is_not_finite_keeps_every_field():
    model = ToyModel(use_table=True, use_batch_stats=True, use_constants=True)
    optimizer, tables = optax.adam(1e-2), sparse_adam(1e-2)
    data = batches(3)
    step = make_train_step(Objective(model_loss(model)), optimizer, table_optimizer=tables)
    state, _ = step(toy_state(model, optimizer, batch=data[0], table_optimizer=tables), data[0])
    before = host(state)
    data[1].weights[0, 0, 0] = np.nan
    data[1].start_of_document[0] = [False, True, False, False]
    after, metrics = step(state, data[1])
    for field in dataclasses.fields(before):
        if field.name not in ("totals", "restart"):
            chex.assert_trees_all_equal(getattr(host(after), field.name), getattr(before, field.name))
    assert float(after.totals["skipped"].total) == 1 and float(metrics["skipped"].total) == 1
    for name, total in before.totals.items():
        if name != "skipped":
            chex.assert_trees_all_equal(after.totals[name], total)

    # Row 1 began a document in the step that was lost, so it starts anew in the next one; the others go on.
    np.testing.assert_array_equal(after.restart, [False, True, False, False])
    data[2].start_of_document[:] = False
    after, _ = step(after, data[2])
    assert not np.any(after.restart)
    kept = np.asarray(before.memory["valid"]).sum(axis=1) > 0
    read = data[2].mask[0].sum(axis=1)
    valid = np.asarray(after.memory["valid"]).sum(axis=1)
    assert valid[1] == read[1] and kept[[0, 2, 3]].all() and (valid[[0, 2, 3]] > read[[0, 2, 3]]).all()


def test_the_seams_of_the_state():
    model = ToyModel(use_table=True, use_batch_stats=True, use_constants=True)
    data = batches(1, segments=2)
    start = toy_state(model, batch=data[0], table_optimizer=sparse_adam(1e-2))
    assert start.tables.values.keys() == {"values"} and "values" not in start.params
    before = start
    state, _ = run(model, data, state=start, table_optimizer=sparse_adam(1e-2))

    touched = np.isin(np.arange(VOCAB), np.asarray(data[0].inputs))
    changed = np.any(np.asarray(state.tables.values["values"] != before.tables.values["values"]), axis=1)
    np.testing.assert_array_equal(changed, touched)
    assert not touched.all()
    np.testing.assert_array_equal(np.any(state.tables.moments["mu"]["values"] != 0, axis=1), touched)

    chex.assert_trees_all_equal(state.constants, before.constants)

    # The running mean passes from the first segment to the second: 0.9 of (0.1 of the first) and 0.1 of the second.
    def mean(segment):
        x = before.params["embed"]["embedding"] + before.tables.values["values"]
        x = x[data[0].inputs[segment]]
        return np.mean(x + 0.1 * np.sin(x @ before.constants["features"]), axis=(0, 1))

    np.testing.assert_allclose(state.batch_stats["mean"], 0.09 * mean(0) + 0.1 * mean(1), rtol=1e-5, atol=1e-7)


def test_sparse_gradients_equal_the_dense_ones(monkeypatch):
    with jax.enable_x64(True):
        model, data = ToyModel(use_table=True), batches(1, segments=2)
        start = toy_state(model, batch=data[0], dtype=np.float64, table_optimizer=sparse_sgd(lambda step: 1.0))
        before = start
        state, _ = run(model, data, state=start, table_optimizer=sparse_sgd(lambda step: 1.0))
        sparse = before.tables.values["values"] - state.tables.values["values"]

        monkeypatch.setattr(toy, "lookup_rows", lambda table, ids, sink: table[ids])

        def loss(table):
            memory, nats = before.memory, 0.0
            for segment in range(2):
                batch = jax.tree.map(lambda leaf, s=segment: jnp.asarray(leaf[s]), data[0])
                variables = {"params": before.params, "tables": {"values": table}}
                memory, _, nll, _ = model_loss(model)(variables, memory, batch, jax.random.key(0))
                nats += nll.total
            return nats / jnp.sum(data[0].weights)

        np.testing.assert_allclose(
            sparse, jax.jit(jax.grad(loss))(before.tables.values["values"]), rtol=1e-9, atol=1e-14
        )
        assert np.abs(sparse).max() > 0


def test_updates_wait_for_apply_every_but_memory_does_not():
    model, data = ToyModel(), batches(4)
    optimizer = make_optimizer(optax.sgd(0.1), gradient_accumulation_steps=2)
    start = toy_state(model, optimizer, batch=data[0])
    step = make_train_step(Objective(model_loss(model)), optimizer)
    params, memory = [jax.device_get(start.params)], [jax.device_get(start.memory)]
    state = start
    for batch in data:
        state, _ = step(state, batch)
        params.append(jax.device_get(state.params))
        memory.append(jax.device_get(state.memory))
    moved = [
        not np.array_equal(a["mix"]["kernel"], b["mix"]["kernel"]) for a, b in zip(params, params[1:], strict=False)
    ]
    assert moved == [False, True, False, True]
    assert all(not np.array_equal(a["slots"], b["slots"]) for a, b in zip(memory, memory[1:], strict=False))


def test_bfloat16_memory_stays_so_and_statistics_are_float32():
    model, data = ToyModel(), batches(2)
    optimizer = optax.adam(1e-2)
    start = toy_state(model, optimizer, batch=data[0])
    start = dataclasses.replace(start, memory=model.init_state(ROWS, jnp.bfloat16))
    state, metrics = run(model, data, optimizer, state=start)
    assert state.memory["slots"].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves((state.params, state.opt_state[0].mu))} == {jnp.dtype(jnp.float32)}
    assert np.isfinite(metrics["nll"].total)


def test_a_state_that_restores_only_what_one_call_wrote_is_selected_whole_over_several_segments():
    # `select` of this state undoes the last write only, as that of a long FIFO does.
    @tree_dataclass
    class Counter:
        count: jax.Array

        def select(self, ok, old, length):
            return Counter(jnp.where(ok, self.count, old.count if length is None else self.count - length))

    def loss(variables, memory, segment, key):
        nll, aux = model_loss(ToyModel())(variables, ToyModel().init_state(ROWS), segment, key)[2:]
        return Counter(memory.count + LENGTH), {}, nll, aux

    for segments in (1, 2):
        (batch,) = batches(1, segments=segments)
        state = toy_state(ToyModel(), batch=batch)
        state = dataclasses.replace(state, memory=Counter(jnp.zeros(ROWS)))
        batch.weights[0, 0, 0] = np.nan
        state, _ = make_train_step(Objective(loss), optax.sgd(0.1))(state, batch)
        assert float(state.totals["skipped"].total) == 1
        np.testing.assert_array_equal(state.memory.count, np.zeros(ROWS))


def test_mistakes_are_named():
    (batch,) = batches(1)
    with pytest.raises(ValueError, match="table_optimizer: given None"):
        toy_state(ToyModel(use_table=True), batch=batch)
    with pytest.raises(ValueError, match="accumulate: given 3, allowed: a divisor of the 4 rows"):
        run(ToyModel(), [batch], accumulate=3)
    with pytest.raises(
        ValueError, match=r"coefficients: given \[\], allowed: one for each loss of the model, \['toy/size'\]"
    ):
        run(ToyModel(auxiliary_loss=True), [batch])
