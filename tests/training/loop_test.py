import dataclasses
import json
import os
import shutil
import signal

import chex
import numpy as np
import pytest

from memjax.config import Config, Data, Evaluation, Schedule, Training
from memjax.data.documents import ArrayDocuments
from memjax.durable_files import read_json, write_json
from memjax.training import loop, update_functions
from memjax.training.checkpoints import Checkpoints
from memjax.training.evaluation import Evaluator
from memjax.training.experiment import Experiment
from memjax.training.loop import StoppedBySignal, call_every
from memjax.training.metrics import read_metrics
from memjax.training.run_start import train
from memjax.training.run_versions import read_attempts
from memjax.training.skipped import NonFiniteError, SkippedSteps
from memjax.training.step import make_train_step
from tests.training.toy import LENGTH, ROWS, ToyModel, toy_documents

VOLATILE = ("attempt", "seconds", "first_step_seconds", "tokens_per_second", "examples_per_second")
STEPS = 13


def make_experiment(workdir, name="run", *, model=None, documents=None, **training):
    training = {
        "steps": STEPS,
        "log_every": 3,
        "checkpoint_every": 4,
        "evaluate_every": 6,
        "schedule": Schedule(learning_rate=1e-2, warmup_steps=2),
        **training,
    }
    config = Config(
        name=name,
        workdir=str(workdir),
        data=Data(batch_size=ROWS, segment_length=LENGTH),
        training=Training(**training),
        evaluation=Evaluation(batch_size=3),
    )
    documents = toy_documents() if documents is None else documents
    return Experiment(config, model or ToyModel(dropout=0.1), lambda split: documents, begin_token=0)


@pytest.fixture(autouse=True)
def one_compilation(monkeypatch):
    """Every run compiles its step once: one trace, and one program in the cache of `jit`."""
    steps = []

    def make(objective, optimizer, **kwargs):
        chex.clear_trace_counter()  # Chex counts by name, also over runs.
        return chex.assert_max_traces(make_train_step(objective, optimizer, **kwargs), n=1)

    def compile_once(places, kind):
        steps.append(compiled(places, kind))
        return steps[-1]

    compiled = loop.CompiledLearner.compile
    monkeypatch.setattr(update_functions, "make_train_step", make)
    monkeypatch.setattr(loop.CompiledLearner, "compile", compile_once)
    yield
    assert all(step._cache_size() <= 1 for step in steps)


def run(experiment, **kwargs):
    events = []
    result = train(experiment.config, experiment=experiment, on_event=events.append, **kwargs)
    return result, events


def final_arrays(path):
    checkpoints = Checkpoints(path / "checkpoints", read_only=True)
    step, arrays, extra = checkpoints.load("")
    checkpoints.close()
    return step, arrays, extra


def assert_same_run(path, expected):
    """Bit for bit: everything in the last checkpoint, and every line of the metrics but times."""
    (step, arrays, extra), (wanted_step, wanted, wanted_extra) = final_arrays(path), final_arrays(expected)
    assert (step, extra) == (wanted_step, wanted_extra) and arrays.keys() == wanted.keys()
    for name, array in arrays.items():
        assert array.tobytes() == wanted[name].tobytes(), name
    lines, wanted_lines = (
        [{k: v for k, v in line.items() if k not in VOLATILE} for line in read_metrics(p / "metrics.jsonl")]
        for p in (path, expected)
    )
    assert lines == wanted_lines


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run that nothing interrupts."""
    workdir = tmp_path_factory.mktemp("reference")
    return run(make_experiment(workdir))


def test_a_run_writes_its_directory(reference):
    result, events = reference
    assert result.step == STEPS and not result.finished_before
    names = {entry.name for entry in result.path.iterdir()}
    assert names >= {"config.json", "command.txt", "versions.json", "metrics.jsonl", "checkpoints", "finished.json"}
    lines = read_metrics(result.path / "metrics.jsonl")
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 3),
        ("train", 6),
        ("evaluation", 6),
        ("train", 9),
        ("train", 12),
        ("evaluation", 12),
        ("train", 13),
        ("evaluation", 13),
    ]
    assert {"nats_per_token", "bits_per_byte", "perplexity", "learning_rate", "gradient_norm", "attempt"} <= set(
        lines[0]
    )
    assert lines[-1]["subsets"]["odd"]["targets"] > 0 and lines[-1]["split"] == "validation"
    assert sum(line["targets"] for line in lines if line["kind"] == "train") > 0
    steps = Checkpoints(result.path / "checkpoints", read_only=True)
    assert steps.steps() == [12, 13]
    steps.close()
    kinds = [event.kind for event in events]
    assert (
        kinds[0] == "start" and kinds[-1] == "finished" and kinds.count("log") == 5 and kinds.count("checkpoint") == 4
    )
    assert result.results["evaluation"]["nats"] == lines[-1]["nats"]
    assert result.results["parameters"] > 0 and result.results["memory_bytes"] == 6 * (8 * 4 + 1)


def test_a_finished_run_says_so(reference):
    result, _ = reference
    before = (result.path / "metrics.jsonl").read_bytes()
    second, events = run(make_experiment(result.path.parent))
    assert second == dataclasses.replace(result, finished_before=True)
    (event,) = events
    assert event.kind == "finished" and "finished after 13 steps" in event.text
    assert (result.path / "metrics.jsonl").read_bytes() == before


class Crash(Exception):
    pass


def crash_at(step):
    def hook(info):
        if info.step == step:
            raise Crash

    return hook


def test_a_crashed_run_goes_on_as_if_nothing_had_happened(reference, tmp_path):
    experiment = make_experiment(tmp_path)
    # After its own lines of step 12, before the checkpoint of step 12: from 8 on everything is done again.
    for step in (7, 12):
        with pytest.raises(Crash):
            run(experiment, hooks=[crash_at(step)])
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "kind"')
    result, events = run(experiment)
    assert any(event.text == "going on after step 8" for event in events)
    assert_same_run(result.path, reference[0].path)
    lines = read_metrics(result.path / "metrics.jsonl")
    assert [line["attempt"] for line in lines] == [1, 2, 2, 3, 3, 3, 3, 3]
    attempts = read_attempts(result.path)
    assert [attempt["step"] for attempt in attempts] == [0, 4, 8]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.laws)])
def test_a_signal_saves_and_stops(reference, tmp_path, number):
    def send(info):
        if info.step == 6:
            os.kill(os.getpid(), number)

    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    experiment = make_experiment(tmp_path)
    with pytest.raises(StoppedBySignal, match=f"stopped by {number.name} after step 6, saved in") as error:
        run(experiment, hooks=[send])
    assert error.value.exit_code == 128 + number and error.value.step == 6
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    result, _ = run(experiment)
    # The checkpoint of step 6 is one more than the reference has; the last two are the same.
    assert_same_run(result.path, reference[0].path)


@pytest.mark.laws
def test_an_evaluation_that_a_signal_ended_is_made_up_for(reference, tmp_path, monkeypatch):
    experiment = make_experiment(tmp_path)
    score = Evaluator.__call__

    def interrupted(self, variables, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        return score(self, variables, stop=stop)

    monkeypatch.setattr(Evaluator, "__call__", interrupted)
    with pytest.raises(StoppedBySignal):
        run(experiment)
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [3, 6]
    monkeypatch.setattr(Evaluator, "__call__", score)
    result, _ = run(experiment)
    assert_same_run(result.path, reference[0].path)


def test_a_damaged_checkpoint_costs_steps_but_not_the_run(reference, tmp_path):
    shutil.copytree(reference[0].path, tmp_path / "run")
    (tmp_path / "run" / "finished.json").unlink()
    config = read_json(tmp_path / "run" / "config.json")
    write_json(tmp_path / "run" / "config.json", {**config, "workdir": str(tmp_path)})
    for file in (tmp_path / "run" / "checkpoints" / "00000013" / "state").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:-20] + bytes(20))
    result, events = run(make_experiment(tmp_path))
    texts = [event.text for event in events if event.kind == "note"]
    assert any("checkpoint 13 is damaged" in text for text in texts) and "going on after step 12" in texts
    assert_same_run(result.path, reference[0].path)


def test_what_does_not_fit_is_refused_and_nothing_is_lost(reference, tmp_path):
    shutil.copytree(reference[0].path, tmp_path / "run")
    (tmp_path / "run" / "finished.json").unlink()
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != ".lock"}
    other = make_experiment(tmp_path, model=ToyModel(memory_length=9, dropout=0.1))
    with pytest.raises(
        ValueError, match=r"is of another architecture: it has memory/slots float32\[4, 6, 8\] instead of"
    ):
        run(other)
    with pytest.raises(ValueError, match="position: of another stream"):
        run(make_experiment(tmp_path, documents=toy_documents(5)))
    with pytest.raises(ValueError, match="training.clip_norm = 1.0 there and 2.0 here"):
        run(make_experiment(tmp_path, clip_norm=2.0, steps=14))
    for steps in (1, 5, STEPS - 1):
        shorter = f"training.steps: given {steps}, allowed: 13 or more, which the run in .* was made for; a shorter one"
        with pytest.raises(ValueError, match=shorter):
            run(make_experiment(tmp_path, steps=steps))
    assert {p: p.read_bytes() for p in before} == before


def test_parts_of_another_config_are_refused(tmp_path):
    experiment = make_experiment(tmp_path)
    with pytest.raises(ValueError, match="experiment: built from another config"):
        train(make_experiment(tmp_path, steps=3).config, experiment=experiment)
    assert not list(tmp_path.iterdir())


def test_init_from_starts_another_run(reference, tmp_path):
    seen = []
    hook = lambda info: seen.append((info.step, np.asarray(info.state.params["mix"]["kernel"])))
    frozen = {"schedule": Schedule(learning_rate=1e-30, warmup_steps=0), "steps": 1}
    experiment = make_experiment(tmp_path, init_from=str(reference[0].path), **frozen)
    _, events = run(experiment, hooks=[call_every(1, hook), call_every(0, crash_at(1))])
    np.testing.assert_array_equal(seen[0][1], final_arrays(reference[0].path)[1]["params/mix/kernel"])
    assert "no new parameters" in [event.text for event in events]


@pytest.mark.laws
def test_a_run_goes_on_with_empty_memories_and_other_rows(tmp_path):
    experiment, seen = make_experiment(tmp_path), []
    with pytest.raises(Crash):
        run(experiment, hooks=[crash_at(6)])
    fewer = dataclasses.replace(experiment.config, data=Data(batch_size=2, segment_length=LENGTH))
    hook = lambda info: seen.append(np.asarray(info.state.memory["valid"]).sum(1))
    result, events = run(dataclasses.replace(experiment, config=fewer), reset_memory=True, hooks=[hook])
    texts = [event.text for event in events]
    assert "going on after step 4" in texts and "memories are empty, and rows begin their next epoch" in texts
    assert result.step == STEPS and seen[0].shape == (2,) and seen[0].max() <= LENGTH


def test_steps_that_are_not_finite_are_told(tmp_path):
    documents = toy_documents()
    weights = [{"weights": np.full(len(documents[i]), np.nan if i == 0 else 1.0, np.float32)} for i in range(7)]
    poisoned = ArrayDocuments([documents[i] for i in range(7)], annotations=weights)
    experiment = make_experiment(tmp_path, documents=poisoned, steps=6, log_every=6)
    _, events = run(experiment)
    (line,) = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line["kind"] == "train"]
    assert 0 < line["skipped"] < 6 and np.isfinite(line["nats_per_token"])
    assert any("steps skipped: loss, gradient or update not finite" in event.text for event in events)
    assert np.isfinite(final_arrays(tmp_path / "run")[1]["params/mix/kernel"]).all()


def dying(workdir, name="run", **training):
    """A run in which every step from the second on is skipped."""
    schedule = Schedule(learning_rate=1e30, warmup_steps=0)
    often = {"steps": 40, "log_every": 2, "checkpoint_every": 1, "evaluate_every": 0, "schedule": schedule}
    return make_experiment(workdir, name, **{**often, **training})


def test_a_dead_run_ends_and_keeps_what_was_before_also_when_it_was_resumed(tmp_path):
    with pytest.raises(Crash):
        run(dying(tmp_path, max_skipped_steps=7), hooks=[crash_at(5)])
    end = (
        "training.max_skipped_steps = 7 steps in a row were skipped: loss, gradient or update not finite; "
        "checkpoint 1 is"
    )
    for _ in range(2):  # started again, it ends again
        with pytest.raises(NonFiniteError, match=f"ended after step 8, {end} sound"):
            run(dying(tmp_path, max_skipped_steps=7))
    path = tmp_path / "run"
    checkpoints = Checkpoints(path / "checkpoints", read_only=True)
    assert checkpoints.steps() == [1, 6, 7] and not (path / "finished.json").exists()
    one, last = (checkpoints.load("", step=step) for step in (1, 7))
    checkpoints.close()
    for name in one[1]:
        if name.startswith(("params/", "opt_state/")):
            assert one[1][name].tobytes() == last[1][name].tobytes() and np.isfinite(last[1][name]).all()


def test_nothing_finishes_with_a_loss_that_is_not_finite(tmp_path):
    for _ in range(2):
        with pytest.raises(
            NonFiniteError, match="not finished, the loss of the evaluation is nan; checkpoint 1 is sound"
        ):
            run(dying(tmp_path, steps=4, max_skipped_steps=0))
    assert not (tmp_path / "run" / "finished.json").exists()


def lengthen(reference, tmp_path, steps, **schedule):
    """The reference, or a run of the same with another schedule, trained for more steps: path and lines."""
    schedule = {"schedule": Schedule(learning_rate=1e-2, warmup_steps=2, **schedule), "evaluate_every": 0}
    if reference is None:
        run(make_experiment(tmp_path, **schedule))
    else:
        shutil.copytree(reference[0].path, tmp_path / "run")
        del schedule["evaluate_every"]
    result, events = run(make_experiment(tmp_path, steps=steps, **schedule))
    assert result.step == steps and not result.finished_before
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["step"] == steps
    return tmp_path / "run", [event.text for event in events]


def test_a_finished_run_is_trained_longer_and_says_from_which_rate(reference, tmp_path):
    path, lines = lengthen(reference, tmp_path, 17)
    rate = float(
        update_functions.make_schedule(Training(steps=17, schedule=Schedule(learning_rate=1e-2, warmup_steps=2)))(13)
    )
    assert any(line.startswith("training.steps: 17 instead of 13; the learning rate goes on from") for line in lines)
    assert any(f"goes on from {rate:.4g}, where the schedule over all steps is; it had come to 0" in l for l in lines)
    assert [line["step"] for line in read_metrics(path / "metrics.jsonl") if line["kind"] == "train"][-2:] == [15, 17]
    assert json.loads((path / "config.json").read_text())["training"]["steps"] == 17


@pytest.mark.laws
@pytest.mark.parametrize("steps", [14, 16, 20])
@pytest.mark.parametrize("decay", ["constant", "rsqrt"])
def test_a_run_that_is_trained_longer_equals_a_long_one_where_its_rate_does(tmp_path, decay, steps):
    path, lines = lengthen(None, tmp_path / "short", steps, decay=decay)
    assert f"training.steps: {steps} instead of 13" in lines
    schedule = Schedule(learning_rate=1e-2, warmup_steps=2, decay=decay)
    long, _ = run(make_experiment(tmp_path / "long", steps=steps, schedule=schedule, evaluate_every=0))
    arrays, expected = final_arrays(path)[1], final_arrays(long.path)[1]
    for name, array in expected.items():
        if not name.startswith("totals/"):  # lines were written elsewhere
            assert arrays[name].tobytes() == array.tobytes(), name


def test_a_window_of_steps_ends_with_its_stage(tmp_path):
    seen = []
    hook = lambda info: seen.append(np.asarray(info.state.params["mix"]["kernel"]))
    often = {"gradient_accumulation_steps": 4, "steps": 6, "evaluate_every": 0, "log_every": 1, "checkpoint_every": 6}
    often["schedule"] = Schedule(learning_rate=1e-2, warmup_steps=0)
    result, _ = run(make_experiment(tmp_path, **often), hooks=[hook])
    changed = [not np.array_equal(a, b) for a, b in zip(seen, seen[1:], strict=False)]
    assert changed == [False, False, True, False, True]
    arrays = final_arrays(result.path)[1]
    assert arrays["params/mix/kernel"].tobytes() == seen[-1].tobytes()
    assert int(arrays["opt_state/mini_step"]) == 0 and int(arrays["opt_state/gradient_step"]) == 2
    rates = [line["learning_rate"] for line in read_metrics(result.path / "metrics.jsonl") if line["kind"] == "train"]
    assert rates[-1] < rates[-2]  # that of the second update


def test_a_run_that_diverges_says_so(tmp_path):
    wild = Schedule(learning_rate=1e4, warmup_steps=0, decay="constant")
    result, events = run(make_experiment(tmp_path, steps=3, schedule=wild, evaluate_every=0))
    assert result.results["diverged"]["nats_per_token"] > result.results["diverged"]["more_than"] > 0
    assert any(event.kind == "note" and event.text.startswith("diverged: ") for event in events)
    assert "DIVERGED" in events[-1].text
    assert "diverged" in json.loads((result.path / "finished.json").read_text())["results"]


def test_no_sound_run_is_said_to_diverge(reference):
    assert "diverged" not in reference[0].results and not any("iverged" in event.text for event in reference[1])


def test_skipped_steps_in_a_row_are_counted():
    skipped = SkippedSteps(limit=2, counts={"": 1})
    for lost, count, over in ((0, 0, False), (1, 1, False), (0, 0, False), (1, 1, False), (1, 2, True), (0, 2, True)):
        skipped.add(np.float32(lost))
        assert (skipped.read().get("", 0), skipped.is_over) == (count, over)
    endless = SkippedSteps()
    for _ in range(2500):
        endless.add(1.0, "replay")
        endless.add(0.0, "train")
    assert endless.read() == {"replay": 2500} and not endless.is_over
