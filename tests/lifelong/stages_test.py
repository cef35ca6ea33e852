"""Runs of several stages through `train`: killed, resumed, grown, and opened again from their directory alone."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.cli import main
from memjax.config import (
    EWC,
    Config,
    Data,
    Dense,
    Evaluation,
    KeyValueRecall,
    Lifelong,
    Model,
    Schedule,
    Sequential,
    TaskData,
    Training,
    TransformerXL,
)
from memjax.lifelong import train
from memjax.training import Checkpoints, load_run, read_metrics
from memjax.training.plain_learner import make_plain_learner
from memjax.training.stages import PhaseResult, Position, Stage, make_stream_of_one_kind
from tests.lifelong import learner_cases as cases
from tests.training.loop_test import Crash, assert_same_run, crash_at, final_arrays

STEPS = 6
PAIRS = {"num_keys": 4, "num_values": 4, "num_documents": 16}
SHORT, LONG = (KeyValueRecall(num_pairs=2, filler_length=length, **PAIRS) for length in (2, 9))


def config_of(workdir, method=None, **training):
    tasks = (TaskData(name="short", source=SHORT), TaskData(name="long", source=LONG))
    return Config(
        name="run",
        workdir=str(workdir),
        model=Model(
            dim=8, num_layers=1, num_heads=2, feed_forward=Dense(dim=8), attention=TransformerXL(memory_length=4)
        ),
        data=Data(source=SHORT, batch_size=2, segment_length=4),
        training=Training(
            **{
                "steps": 2 * STEPS,
                "log_every": 3,
                "checkpoint_every": 2,
                "schedule": Schedule(learning_rate=1e-2, warmup_steps=2),
                **training,
            }
        ),
        evaluation=Evaluation(batch_size=2),
        lifelong=Lifelong(method=method, tasks=tasks) if method else None,
    )


def run(config, **arguments):
    events = []
    return train(config, on_event=events.append, **arguments), events


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(Sequential(), id="sequential", marks=pytest.mark.slow),
        pytest.param(EWC(penalty_weight=10.0, fisher_batches=2), id="ewc", marks=pytest.mark.laws),
    ],
)
def test_two_tasks_killed_in_the_second_go_on_bit_for_bit(tmp_path, method, capsys):
    whole, _ = run(config_of(tmp_path / "whole", method))
    config = config_of(tmp_path / "again", method)
    for step in (STEPS - 1, STEPS + 3):
        with pytest.raises(Crash):
            run(config, hooks=[crash_at(step)])
    again, events = run(config)
    assert_same_run(again.path, whole.path)
    assert any(event.text == f"going on after step {STEPS + 2}" for event in events)
    lines = [line for line in read_metrics(again.path / "metrics.jsonl") if line["kind"] == "evaluation"]
    names = [(line["step"], line.get("stage", 0), line.get("phase"), line.get("name", "")) for line in lines]
    matrix = [(STEPS * (1 + stage), stage, "after", name) for stage in (0, 1) for name in ("short", "long")]
    assert names == [*matrix, (2 * STEPS, 1, "after", "")]
    results = json.loads((again.path / "finished.json").read_text())["results"]
    assert results["evaluations"].keys() == {"short", "long"}
    kept = [name for name in final_arrays(again.path)[1] if name.startswith("method/")]
    assert bool(kept) == isinstance(method, EWC)
    # One task of a finished run is evaluated from its directory alone.
    assert main(["eval", "--run", str(again.path), "--evaluation.task", "long", "--json"]) == 0
    assert main(["eval", "--run", str(again.path), "--evaluation.task", "other"]) == 2
    capsys.readouterr()
    assert main(["eval", "--run", str(again.path), "--probe"]) == 2
    assert "--probe: given tasks of LanguageModeling, allowed: a run over tasks with classes" in capsys.readouterr().err
    runs = [str(again.path), str(whole.path)]
    assert main(["compare", *runs, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    for one in facts.values():
        assert one.pop("update_seconds") > 0 < one.pop("compilation_seconds")  # times are no results
    assert facts[runs[0]] == facts[runs[1]] and {"steps", "long.nats_per_token"} <= facts[runs[0]].keys()
    (again.path / "finished.json").unlink()
    assert main(["compare", *runs]) == 0
    said = capsys.readouterr()
    assert f"left out: {runs[0]}: not finished" in said.err and runs[0] not in said.out and runs[1] in said.out


@pytest.mark.slow
def test_ewc_keeps_more_of_the_first_task(tmp_path):
    moved = {}
    for name, method in (("sequential", Sequential()), ("ewc", EWC(penalty_weight=1e6, fisher_batches=4))):
        ends = []
        hook = lambda info, ends=ends: ends.append(jax.device_get(info.state.params))
        run(config_of(tmp_path / name, method), hooks=[hook])
        first, last = (np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(ends[i])]) for i in (STEPS - 1, -1))
        moved[name] = float(np.sum((first - last) ** 2))
    assert 0 < moved["ewc"] < 0.9 * moved["sequential"]


class Killed(BaseException):
    """As a kill: nothing of the run catches it."""


def growing(experiment, layout, objective, *, kill=(), calls=None):
    """A course whose second stage doubles the feed-forward network before it begins."""
    calls = [] if calls is None else calls

    def make_learner(lineage):
        return make_plain_learner(experiment.with_growth(lineage), layout, objective)

    def double(state, context):
        calls.append(context.key)
        context.stop()
        if len(calls) in kill:
            raise Killed
        lineage = (*context.lineage, {"model.feed_forward.dim": 2 * experiment.config.model.feed_forward.dim})
        larger = make_learner(lineage)
        fresh = larger.init(larger.make_variables())

        def grow(old, new):
            axes = [axis for axis, (a, b) in enumerate(zip(old.shape, new.shape, strict=True)) if a != b]
            for axis in axes:
                noise = 0.1 * jax.random.normal(context.key, old.shape)
                old = jnp.concatenate([old, old + noise], axis=axis)
            return old

        params = jax.tree.map(grow, state.params, fresh.params)
        grown = dataclasses.replace(fresh, params=params, step=state.step, memory=state.memory)
        return PhaseResult(grown, lineage)

    open_stream = lambda state, position: make_stream_of_one_kind(experiment.stream(position))
    stages = [
        Stage("small", open_stream, STEPS),
        Stage("large", open_stream, lambda state: STEPS // 2 + int(state.step) // STEPS, before=double),
    ]
    return make_learner, stages


@pytest.mark.laws
def test_a_run_that_grows_is_killed_resumed_and_evaluated_from_its_directory(tmp_path, capsys):
    course = lambda **given: lambda *parts: growing(*parts, **given)
    whole, _ = run(config_of(tmp_path / "whole"), course=course())
    assert whole.step == STEPS + STEPS // 2 + 1
    config, calls = config_of(tmp_path / "again"), []
    with pytest.raises(Killed):  # in `before`
        run(config, course=course(kill=(1,), calls=calls))
    with pytest.raises(Crash):  # in the first step of the larger model
        run(config, course=course(calls=calls), hooks=[crash_at(STEPS + 1)])
    again, events = run(config, course=course(calls=calls))
    assert any(event.text == f"going on after step {STEPS}" for event in events)
    assert len(calls) == 2 and jnp.array_equal(*map(jax.random.key_data, calls))
    assert_same_run(again.path, whole.path)
    loaded = load_run(again.path)
    assert loaded.experiment.model.stack.layers[0].feed_forward.hidden_dim == 16
    capsys.readouterr()
    assert main(["eval", "--run", str(again.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nats"] == again.results["evaluation"]["nats"]


@pytest.mark.slow
def test_a_damaged_checkpoint_goes_back_over_the_border_of_growth(tmp_path):
    course = lambda *parts: growing(*parts)
    config = config_of(tmp_path, checkpoint_every=0, keep_checkpoints=9)
    with pytest.raises(Crash):
        run(config, course=course, hooks=[crash_at(STEPS + 1)])
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", read_only=True)
    steps = checkpoints.steps()
    checkpoints.close()
    assert steps == [STEPS, Position(STEPS, 1, "steps").checkpoint_number]
    for file in (tmp_path / "run" / "checkpoints" / f"{steps[-1]:08d}" / "state").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:-20] + bytes(20))
    result, events = run(config, course=course)
    texts = [event.text for event in events]
    assert any("is damaged" in text for text in texts) and f"going on after step {STEPS}" in texts
    assert result.step == STEPS + STEPS // 2 + 1


def test_positions_tell_where_a_run_stands():
    whole = [Position(0, 0, "steps", (3,)), Position(3, 0, "after", (3,)), Position(3, 1, "before", (3,))]
    whole += [Position(3, 1, "steps", (3, 2)), Position(5, 1, "after", (3, 2)), Position(5, 2, "before", (3, 2))]
    numbers = [position.checkpoint_number for position in whole]
    assert numbers == sorted(set(numbers)) and numbers[0] == 0
    for position in whole:
        assert Position.read(position.checkpoint_number, json.loads(json.dumps(position.to_dict())), 9) == position
    assert whole[3].end == 5
    # A run of an earlier version: the position of its stream, and one stage.
    old = Position.read(7, {"stream": {}, "rows": {}}, 9)
    assert (old.step, old.stage, old.phase, old.end, old.checkpoint_number) == (7, 0, "steps", 9, 7)


def test_tasks_need_their_own_train_and_names(tmp_path):
    from memjax.training import train as plain

    with pytest.raises(ValueError, match="lifelong: given tasks, allowed: None; train them with"):
        plain(config_of(tmp_path, Sequential()))
    twice = config_of(tmp_path, Sequential())
    twice.lifelong.tasks = (twice.lifelong.tasks[0],) * 2
    with pytest.raises(ValueError, match="lifelong.tasks: given .*'short', 'short'.* a name of its own for each"):
        train(twice)
    with pytest.raises(ValueError, match="evaluation.task: given 'long', allowed"):
        train(dataclasses.replace(config_of(tmp_path), evaluation=Evaluation(task="long")))


def test_a_rate_decays_over_all_updates_of_tasks_whose_examples_are_counted(tmp_path):
    stream = cases.config_of(Sequential(), epochs=2)
    linear = Schedule(learning_rate=0.1, warmup_steps=0, decay="linear")
    training = dataclasses.replace(stream.training, schedule=linear, log_every=1, checkpoint_every=0)
    result = train(dataclasses.replace(stream, workdir=str(tmp_path), training=training))
    rates = [line["learning_rate"] for line in read_metrics(result.path / "metrics.jsonl") if line["kind"] == "train"]
    # Three tasks of ten examples in batches of four, twice.
    assert len(rates) == 3 * 2 * 3 != stream.training.steps
    np.testing.assert_allclose(rates, 0.1 * (1 - np.arange(18) / 18), rtol=1e-5)
    # What the optimiser does is what is logged: a number of updates that the configuration has by itself is not read.
    played = [
        cases.play(dataclasses.replace(stream, training=dataclasses.replace(stream.training, schedule=linear, steps=n)))
        for n in (6, 600)
    ]
    cases.assert_equal(*(one.state.params for one in played))
