"""What a model still tells of its tasks below its head, and what a run has cost, in `memjax eval`."""

import dataclasses
import importlib.util
import json

import jax
import numpy as np
import pytest

from memjax.cli import main
from memjax.cli.errors import explain
from memjax.cli.streams import check_probe, probe_stream
from memjax.config import AGEM, Classification, MbPA, Sequential
from memjax.lifelong import train
from memjax.lifelong.feature_separation import linear_probe
from memjax.lifelong.probe import probe_tasks
from memjax.models.heads import FeatureHead
from memjax.report.outcomes import stream_cost
from memjax.settings.overrides import UsageError
from memjax.training.experiment import make_experiment
from memjax.training.objective import read_segment
from memjax.training.train_state import init_variables
from tests.lifelong.learner_cases import CASE, TASKS, config_of
from tests.tasks.answers_test import hide


def stream(workdir, method, **fields):
    config = config_of(method, **fields)
    own = lambda name: dataclasses.replace(config.evaluation, name=name, task=name)
    named = tuple(own(task.name) for task in config.lifelong.tasks)
    return dataclasses.replace(config, workdir=str(workdir), evaluations=named)


def fresh(experiment):
    length = experiment.config.data.segment_length
    return jax.jit(lambda: init_variables(experiment.model, jax.random.key(0), length))()


@pytest.mark.laws
def test_every_task_is_probed_on_the_last_hidden_layer_as_it_is_without_dropout(tmp_path):
    pytest.importorskip("sklearn")
    experiment = make_experiment(stream(tmp_path, Sequential()))
    variables = fresh(experiment)
    found = probe_tasks(experiment, {**variables, "method": {"random": jax.random.key(1)}})
    layer = jax.tree.map(np.asarray, variables["params"]["layers_0"])
    for name, accuracy in found.items():
        documents, splits = experiment.of_task(name).documents, []
        for split in ("train", "test"):
            examples = [documents(split).example(index) for index in range(len(documents(split)))]
            vectors = np.stack([example.inputs for example in examples])
            splits += [np.maximum(vectors @ layer["kernel"] + layer["bias"], 0), [one.targets[0] for one in examples]]
        assert accuracy == linear_probe(*splits)
    assert [*found] == [f"task {number}" for number in range(TASKS)]


@pytest.mark.laws
def test_a_probe_reads_what_the_head_reads(tmp_path):
    from tests.training.tasks_test import make_config

    experiment = make_experiment(make_config(tmp_path, Classification(), dropout=0.1))
    model, variables = experiment.model, fresh(experiment)
    batch = jax.tree.map(lambda leaf: leaf[0], experiment.example())
    read = lambda model: read_segment(model, variables, model.init_state(4), batch, deterministic=True)[0]
    head = jax.tree.map(np.asarray, variables["params"]["head"]["classifier"])
    features, scores = np.asarray(read(model.clone(head=FeatureHead()))), read(model)
    assert model.pooler and features.shape == (4, 1, model.vocabulary.dim)
    np.testing.assert_allclose(features @ head["kernel"] + head["bias"], scores, atol=1e-6)


@pytest.mark.laws
def test_eval_prints_probes_and_costs_of_a_method_that_adapts(tmp_path, capsys, monkeypatch):
    pytest.importorskip("sklearn")
    config = stream(tmp_path, CASE["mbpa_pp"].method, training={"log_every": 1})
    run = str(train(config, on_event=lambda event: None).path)
    asked = ["eval", "--run", run, "--probe"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stream"]
    assert len(found["probe"]["accuracies"]) == TASKS
    assert found["probe"]["average"] == pytest.approx(np.mean(found["probe"]["accuracies"]))
    cost = found["cost"]
    assert cost["examples_per_second"] > 0 and cost["seconds_per_test_example"] > 0 and cost["adapts"]
    assert main(asked) == 0
    told = " ".join(capsys.readouterr().out.split())  # the width of columns follows their longest entry
    shown = " ".join(f"{accuracy:.4f}" for accuracy in found["probe"]["accuracies"])
    assert f"linear probe {shown}" in told and "ms an example with its adaptation" in told
    assert main([*asked, "--evaluation.task", "task 0"]) == 2
    assert "--probe: given with --evaluation.task, allowed: one of the two" in capsys.readouterr().err
    hide(monkeypatch, "sklearn")
    assert main(asked) == 2
    assert capsys.readouterr().err.endswith("allowed: pip install 'memjax[eval]'\n")


def test_what_cannot_be_probed_is_refused(tmp_path, monkeypatch):
    config = stream(tmp_path, Sequential())
    with pytest.raises(UsageError, match="--probe: given a run of one task, allowed: a run over tasks with classes"):
        check_probe(dataclasses.replace(config, lifelong=None, evaluations=()))
    with pytest.raises(UsageError, match="--probe: given a run before the end of its first task, allowed: after it"):
        probe_stream({}, None)
    if importlib.util.find_spec("sklearn"):
        check_probe(config)
    hide(monkeypatch, "sklearn")
    with pytest.raises(ModuleNotFoundError) as caught:
        check_probe(config)
    line, code = explain(caught.value)
    assert code == 2 and line is not None and line.endswith("allowed: pip install 'memjax[eval]'")


def test_costs_are_read_off_the_lines(tmp_path):
    line = {"tokens": 60.0, "targets": 10.0, "tokens_per_second": None}
    paced = [{**line, "tokens_per_second": pace} for pace in (600.0, 6.0, 1200.0)]  # the second one has compiled
    evaluations = [{"examples_per_second": 100.0}, {"examples_per_second": 50.0}, {"name": "one batch"}]
    config = stream(tmp_path, Sequential())
    found = stream_cost(config, [line, *paced], evaluations)
    assert found == {"examples_per_second": 100.0, "seconds_per_test_example": pytest.approx(0.015), "adapts": False}
    assert stream_cost(config, [line], evaluations[2:]) == {}
    # Updates with a projection read the stream too.
    projected = [{**one, "projected/targets": 5.0} for one in paced]
    assert stream_cost(stream(tmp_path, AGEM()), projected, [])["examples_per_second"] == pytest.approx(150.0)
    assert stream_cost(stream(tmp_path, MbPA()), [], evaluations[:1])["adapts"]
    assert not stream_cost(stream(tmp_path, MbPA(adaptation_steps=0)), [], evaluations[:1])["adapts"]
