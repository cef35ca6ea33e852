"""Variables of a model in the groups of layers that another one has."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from memjax.cli import main
from memjax.config import Config, Data, Evaluation, KeyValueRecall, Memorizing, Model, Training
from memjax.training.experiment import make_evaluation_model, make_experiment
from memjax.training.run_start import train
from memjax.training.train_state import init_variables


def make_run(tmp_path, layers=(-2,), memory_length=8, **model):
    attention = Memorizing(layers_with_memory=layers, memory_length=memory_length, num_neighbors=2, cache_length=4)
    described = Model(attention=attention, dim=8, num_heads=2, num_layers=6, **model)
    data = Data(source=KeyValueRecall(num_documents=4), batch_size=2, segment_length=8)
    experiment = make_experiment(Config(name="run", workdir=str(tmp_path), model=described, data=data))
    generator = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: init_variables(experiment.model, jax.random.key(0), 8))
    draw = lambda leaf: generator.normal(size=leaf.shape).astype(leaf.dtype)
    return experiment, jax.tree.map(draw, shapes)


@pytest.mark.laws
def test_an_evaluation_without_memory_joins_the_layers_of_a_scanned_model_anew(tmp_path):
    experiment, variables = make_run(tmp_path)
    assert experiment.model.layer_groups() == ((0, 4), (4, 0), (5, 0))
    evaluation = Evaluation(memory_length=0, batch_size=2)
    model = make_evaluation_model(experiment, evaluation)
    assert model.layer_groups() == ((0, 6),)
    without = experiment.evaluator(evaluation)(jax.tree.map(jax.numpy.asarray, variables))

    # A gate that is shut: what is retrieved has no part in what the layer gives.
    shut = dict(variables["params"]["stack"]["layers_4"]["attention"])
    shut["gate"] = np.full_like(shut["gate"], -1e9)
    layer = {**variables["params"]["stack"]["layers_4"], "attention": shut}
    params = {**variables["params"], "stack": {**variables["params"]["stack"], "layers_4": layer}}
    with_memory = experiment.evaluator(dataclasses.replace(evaluation, memory_length=None))({"params": params})
    assert without.targets == with_memory.targets > 0
    np.testing.assert_allclose(without.nats, with_memory.nats, rtol=1e-5)


def test_a_memory_that_was_not_trained_is_refused_before_anything_is_read(tmp_path):
    experiment, _ = make_run(tmp_path, layers=(), memory_length=0)
    with pytest.raises(ValueError, match="evaluation.memory_length: given 8, .* it lacks params/stack/layer_00/.*gate"):
        experiment.evaluator(Evaluation(memory_length=8))


@pytest.mark.slow
def test_a_run_of_a_scanned_model_is_evaluated_without_its_memory(tmp_path, capsys):
    """In the loop, between two steps and at the end, and from its directory: the same numbers."""
    experiment, _ = make_run(tmp_path)
    training = Training(steps=2, evaluate_every=1, log_every=1)
    config = dataclasses.replace(
        experiment.config, training=training, evaluation=Evaluation(memory_length=0, batch_size=2)
    )
    result = train(config, on_event=lambda event: None)
    score = result.results["evaluation"]
    assert score["targets"] > 0 and score["memory_bytes"] < result.results["memory_bytes"]
    assert main(["eval", "--run", str(result.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nats"] == score["nats"]
