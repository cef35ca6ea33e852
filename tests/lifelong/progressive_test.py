"""Progressive networks: columns that stay, nothing forgotten, resume, and refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.cli import main
from memjax.config import (
    Adam,
    Bidirectional,
    Blobs,
    Config,
    Lifelong,
    Model,
    ProgressiveNetwork,
    Sequential,
    TransformerXL,
    validate,
)
from memjax.lifelong import load_run, train
from memjax.lifelong.factory import make_learner, make_learner_and_stages
from memjax.lifelong.metrics import kept_bytes, perplexity_summary, summary
from memjax.models.factory import make_model
from memjax.models.heads import ClassificationHead
from memjax.training import read_metrics
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import saved_shapes
from memjax.training.stages import PhaseContext
from memjax.training.train_state import init_variables, model_variables
from memjax.training.update_functions import make_objective
from tests.lifelong import elle_test, learner_cases
from tests.training.loop_test import Crash, assert_same_run, crash_at, final_arrays

DECAYED = {"optimizer": Adam(weight_decay=0.5)}


def classes_of(workdir, method, **fields):
    config = learner_cases.config_of(method, **{"training": DECAYED, **fields})
    config.workdir = str(workdir)
    return config


def texts_of(workdir, method, **fields):
    config = elle_test.config_of(workdir, method, **fields)
    config.training.optimizer = DECAYED["optimizer"]
    return config


def scores_of(result):
    """(updates, task) -> nats, of every evaluation of a stream that has a name."""
    lines = [line for line in read_metrics(result.path / "metrics.jsonl") if line.get("name")]
    return {(line["step"], line["name"]): line["nats"] for line in lines}


def updates(stage, state):
    return iter(stage.open_stream(state, None).__next__, None)


def played(config, stages=3):
    """(experiment, state before the updates, state after them) of each stage."""
    experiment = make_experiment(config)
    learners, course = make_learner_and_stages(experiment, None, make_objective)
    lineage, found = (), []
    places = CompiledLearner(None, learners(()))
    state = places.init(places.new_variables())
    for number, stage in enumerate(course[:stages]):
        data = lambda stage=stage, state=state: updates(stage, state)
        context = PhaseContext(jax.random.key(number), data, lineage, lambda: None, lambda line: None, None)
        change = stage.before(state, context)
        if change.lineage != lineage:
            lineage, places = change.lineage, CompiledLearner(None, learners(change.lineage))
        state = places.adopt_state(change.state, grown=True)
        begun = jax.device_get(state.params)
        for update in updates(stage, state):
            state, _ = places.update_inlined(state, places.put_update(update))
        found.append((experiment.with_growth(lineage), begun, jax.tree.map(jnp.copy, model_variables(state))))
    return found


BOTH = [
    pytest.param(classes_of, id="classes", marks=pytest.mark.laws),
    pytest.param(texts_of, id="texts", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("config_of", BOTH)
def test_old_columns_get_no_update_under_decay_and_answer_as_before_bit_for_bit(tmp_path, config_of):
    first, second, third = played(config_of(tmp_path, ProgressiveNetwork()))
    for _, begun, after in (second, third):
        newest = [name for name in sorted(begun) if name.startswith("columns")][-1]
        into = sorted(name for name in begun if name.startswith("laterals"))[-1]
        for name in begun:
            same = jax.tree.map(lambda old, new: np.array_equal(old, new), begun[name], after["params"][name])
            assert all(jax.tree.leaves(same)) is (name not in (newest, into)), name
    experiment = third[0]
    batch = experiment.example()
    rows = jax.tree.map(lambda leaf: leaf[0], batch)

    def said(one, task):
        model = one[0].model.of_task(task)
        state = model.init_state(rows.inputs.shape[0])
        named = {"start_of_document": rows.start_of_document, "mask": rows.mask}
        return jax.jit(lambda v: model.apply(v, model.apply(v, rows.inputs, state, **named)[0], method="log_probs"))(
            one[2]
        )

    for task, when in ((0, first), (1, second)):
        np.testing.assert_array_equal(said(when, task), said(third, task))
    assert not np.array_equal(said(third, 1), said(third, 2))


@pytest.mark.laws
def test_every_column_notes_the_classes_that_it_reads_and_learns_with_others_masked(tmp_path):
    config = classes_of(tmp_path, ProgressiveNetwork())
    config.task = dataclasses.replace(config.task, mask_unseen_classes=True)
    noted = []
    for number, (_, begun, after) in enumerate(played(config)):
        head = after["constants"][f"columns_{number}"]["head"] if number else after["constants"]["head"]
        noted.append(np.flatnonzero(head["seen"]).tolist())
        name = f"columns_{number}" if number else "head"
        moved = jax.tree.map(lambda old, new: not np.array_equal(old, new), begun[name], after["params"][name])
        assert any(jax.tree.leaves(moved))
    assert noted == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("config_of", BOTH)
def test_with_one_task_it_is_plain_training_bit_for_bit(tmp_path, config_of):
    own, plain = (
        final_arrays(train(config_of(tmp_path / name, method, tasks=1)).path)[1]
        for name, method in (("own", ProgressiveNetwork()), ("plain", Sequential()))
    )
    named = [{name: leaf for name, leaf in one.items() if name.startswith("params/")} for one in (own, plain)]
    assert named[0].keys() == named[1].keys()
    for name, leaf in named[0].items():
        np.testing.assert_array_equal(leaf, named[1][name])


@pytest.mark.parametrize("config_of", BOTH)
def test_nothing_is_forgotten_and_a_run_is_opened_with_its_columns(tmp_path, config_of):
    result = train(config_of(tmp_path, ProgressiveNetwork()))
    scores = scores_of(result)
    for number in range(3):
        after = [nats for (step, name), nats in sorted(scores.items()) if name == f"task {number}"]
        assert len(after) == 3 and set(after[number:]) == {after[number]}
    matrix = [[scores[step, f"task {number}"] for number in range(3)] for step in sorted({key[0] for key in scores})]
    assert perplexity_summary(matrix)["increased_perplexity"] == 0
    assert summary(-np.array(matrix))["forgetting"] == 0
    kept = kept_bytes(saved_shapes(result.path))["columns"]
    loaded = load_run(result.path)
    newest = count(loaded.variables["params"]["columns_2"])
    assert kept == 4 * (count(loaded.variables["params"]) - newest)
    assert result.results["parameters"] == count(loaded.variables["params"]) - loaded.experiment.model.padding()
    for evaluation in loaded.experiment.config.evaluations:
        found = loaded.experiment.evaluate(loaded.variables, evaluation)
        assert found.nats == scores[result.step, evaluation.name]
    assert make_learner(loaded.experiment).model == loaded.experiment.model


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("kind", ["classes", "texts"])
def test_parameters_are_columns_and_a_matrix_for_each_pair_of_layers(tmp_path, kind):
    method, widths = ProgressiveNetwork(), {"classes": (5,), "texts": (8, 8)}[kind]
    config = classes_of(tmp_path, method) if kind == "classes" else texts_of(tmp_path, method, num_layers=2)
    experiment, length = make_experiment(config), config.data.segment_length
    grown = [experiment.with_growth([{"lifelong.method.num_columns": columns}]).model for columns in (1, 2, 3)]
    make = lambda model: lambda: init_variables(model, jax.random.key(0), length)
    one, *more = [count(jax.eval_shape(make(model))["params"]) for model in grown]
    pairs = sum(width**2 for width in widths)
    assert more == [2 * one + pairs, 3 * one + 3 * pairs]


@pytest.mark.slow
@pytest.mark.parametrize("step", [5, 8])
def test_a_run_killed_in_a_later_task_goes_on_bit_for_bit(tmp_path, step):
    whole = train(texts_of(tmp_path / "whole", ProgressiveNetwork()))
    config = texts_of(tmp_path / "again", ProgressiveNetwork())
    with pytest.raises(Crash):
        train(config, hooks=[crash_at(step)])
    assert_same_run(train(config).path, whole.path)


BAD = {
    "attention": ({"attention": TransformerXL(memory_length=4)}, "model.attention: given 'TransformerXL', allowed"),
    "scanned": ({"num_layers": 6}, "model.scan_layers: given None, allowed: False"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_has_no_columns_is_refused_in_one_line(tmp_path, name):
    model, line = BAD[name]
    with pytest.raises(ValueError, match=line):
        validate(texts_of(tmp_path, ProgressiveNetwork(), **model))


def test_a_run_begins_with_one_column_and_has_no_more_than_tasks(tmp_path):
    config = texts_of(tmp_path, ProgressiveNetwork(num_columns=2))
    with pytest.raises(ValueError, match="lifelong.method.num_columns: given 2, allowed: 1 where a run begins"):
        train(config)
    with pytest.raises(ValueError, match="columns: given 4, allowed: up to 3"):
        validate(texts_of(tmp_path, ProgressiveNetwork(num_columns=4)))


def test_borders_that_are_not_told_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match="task_boundaries: given 'sharp', allowed: 'known', ProgressiveNetwork needs to know"
    ):
        train(classes_of(tmp_path, ProgressiveNetwork(), task_boundaries="sharp"))


@pytest.mark.laws
def test_an_evaluation_is_told_its_task_or_refused(tmp_path, capsys):
    other = classes_of(tmp_path, ProgressiveNetwork(), tasks=2)
    other.data.source = Blobs(classes=(4, 5), num_classes=6, dim=6, num_train=10, num_test=8)
    line = "evaluation.task: given '', allowed: one of .'task 0', 'task 1'.; ProgressiveNetwork must know the task"
    with pytest.raises(ValueError, match=line):
        train(other)
    config = classes_of(tmp_path, ProgressiveNetwork(), tasks=2)
    result = train(config)
    # The documents of data.source are those of the first task: its column answers, and not the last.
    scores = result.results["evaluations"]
    assert result.results["evaluation"]["nats"] == scores["task 0"]["nats"]
    loaded = load_run(result.path)
    elsewhere = dataclasses.replace(loaded.experiment, config=other)
    with pytest.raises(ValueError, match=line):
        elsewhere.evaluate(loaded.variables, config.evaluation)
    named = dataclasses.replace(config.evaluation, task="task 1")
    assert elsewhere.evaluate(loaded.variables, named).nats == scores["task 1"]["nats"]
    np.save(tmp_path / "rows.npy", np.zeros((1, 6), np.float32))
    assert main(["predict", "--run", str(result.path), str(tmp_path / "rows.npy")]) == 0
    told = capsys.readouterr().err
    assert f"{result.path}: no task is told, the column of task 1 answers" in told.splitlines()


@pytest.mark.laws
def test_a_text_encoder_has_columns_with_heads_of_their_own():
    attention = Bidirectional(num_positions=8)
    config = Config(model=Model(dim=8, num_layers=2, num_heads=2, attention=attention))
    config.lifelong = Lifelong(method=ProgressiveNetwork(num_columns=2))
    model = make_model(config, 10, ClassificationHead(3))
    tokens, start = jnp.arange(6)[None], {"start_of_document": jnp.ones(1, bool)}
    params = init_variables(model, jax.random.key(0), 6)["params"]
    assert {name for name in params if "head" in params[name]} == {"columns_0", "columns_1"}

    def said(params, task):
        one = model.of_task(task)
        return one.apply({"params": params}, tokens, one.init_state(1), **start)[0]

    assert said(params, 1).shape == (1, 1, 3)
    # The second reads the first; nothing of it reaches the first, neither forwards nor backwards.
    other = {**params, "laterals_0": jax.tree.map(jnp.zeros_like, params["laterals_0"])}
    assert not np.array_equal(said(params, 1), said(other, 1))
    np.testing.assert_array_equal(said(params, 0), said(other, 0))
    slope = jax.grad(lambda params: said(params, 1).sum())(params)
    moved = {name: any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(slope[name])) for name in slope}
    assert moved == {"columns_0": False, "columns_1": True, "laterals_0": True}
