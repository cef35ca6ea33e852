"""Streams of questions, which are measured by F1."""

import dataclasses
import json

import pytest

from memjax.cli import main
from memjax.config import EWC, MbPA, Sequential, Templates
from memjax.data.documents import Examples
from memjax.lifelong import train
from memjax.lifelong.orders import QUESTION_ORDERS
from memjax.settings.overrides import load_config
from memjax.tasks import make_task
from memjax.training import read_metrics
from memjax.training.experiment import make_experiment


def tiny(folder, method, **fields):
    config = load_config("lifelong_questions", "smoke")
    config.name, config.workdir, config.lifelong.method = "tiny", str(folder), method
    config.model = dataclasses.replace(config.model, num_layers=1, **fields)
    config.data.cache_dir = str(folder / "cache")
    return config


def test_the_published_orders_have_each_stage_once():
    assert len(QUESTION_ORDERS) == 4 and {frozenset(order) for order in QUESTION_ORDERS} == {
        frozenset(QUESTION_ORDERS[0])
    }
    config = load_config("lifelong_questions", "paper")
    assert tuple(task.name for task in config.lifelong.tasks) == QUESTION_ORDERS[0]


def test_training_reads_windows_with_the_answer_and_evaluation_all(tmp_path):
    config = tiny(tmp_path, Sequential())
    experiment = make_experiment(config)
    documents: dict[str, Examples] = {split: experiment.documents(split) for split in ("train", "test")}
    weights = {name: [one.example(i).weights[0] for i in range(len(one))] for name, one in documents.items()}
    assert set(weights["train"]) == {1.0} and set(weights["test"]) == {0.0, 1.0}
    assert documents["train"].skipped > 0 and make_task(config).head().answers_in_context_only


@pytest.mark.laws
def test_the_matrix_of_a_stream_of_questions_is_of_f1(tmp_path, capsys):
    config = tiny(tmp_path, Sequential())
    run = str(train(config, on_event=lambda event: None).path)
    lines = [line for line in read_metrics(f"{run}/metrics.jsonl") if line["kind"] == "evaluation"]
    assert main(["eval", "--run", run, "--json"]) == 0
    stream = json.loads(capsys.readouterr().out)["stream"]
    after = {(line.get("stage", 0), line.get("name")): line for line in lines if line.get("phase") == "after"}
    wanted = [[after[stage, name]["f1"] for name in ("stage_1", "stage_2")] for stage in (0, 1)]
    assert stream["measure"] == "f1" and stream["scores"] == wanted
    assert stream["average"] == pytest.approx(sum(wanted[1]) / 2)
    assert stream["forgetting"] == pytest.approx(wanted[0][0] - wanted[1][0])
    exact = [after[1, name]["exact_match"] for name in ("stage_1", "stage_2")]
    assert stream["exact_match"] == pytest.approx(sum(exact) / 2) and sum(exact) <= sum(wanted[1])
    assert main(["eval", "--run", run]) == 0
    assert "f1 after" in capsys.readouterr().out
    assert main(["compare", run]) == 0
    assert "exact_match" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        MbPA(
            replay_interval=16,
            replay_batch_size=4,
            key_source="question",
            num_neighbors=64,
            adaptation_steps=2,
            adapted_parameters=("head/",),
        ),
        EWC(consolidation="online", fisher_batches=2),
    ],
)
def test_methods_learn_questions(method, tmp_path):
    """Of 64 neighbours some are missing, which leaves everything finite."""
    config = tiny(tmp_path, method)
    config.lifelong.tasks[1].source = Templates(num_examples=24)
    results = train(config, on_event=lambda event: None).results
    assert all(0 <= one["f1"] <= 100 and 0 < one["nats_per_token"] < 10 for one in results["evaluations"].values())


@pytest.mark.slow
def test_answers_from_kept_states_are_those_from_tokens(tmp_path):
    plain = tiny(tmp_path, Sequential(), dropout=0.0, attention_dropout=0.0)
    plain.model.num_layers = 2
    encoder = train(dataclasses.replace(plain, name="encoder"), on_event=lambda event: None)
    given = dataclasses.replace(plain.training, init_from=str(encoder.path), num_trainable_layers=1)
    tokens = train(dataclasses.replace(plain, name="tokens", training=given), on_event=lambda event: None)
    model = dataclasses.replace(plain.model, first_trained_layer=1)
    data = dataclasses.replace(plain.data, encoder_states_dir=str(tmp_path / "states"))
    own = dataclasses.replace(plain.training, init_from=str(encoder.path))
    kept = train(
        dataclasses.replace(plain, name="kept", model=model, data=data, training=own), on_event=lambda event: None
    )
    found = [run.results["evaluations"]["stage_2"] for run in (tokens, kept)]
    assert found[0]["nats_per_token"] == pytest.approx(found[1]["nats_per_token"], rel=1e-4)
    assert found[0]["f1"] == found[1]["f1"]
