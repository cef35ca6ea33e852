"""A trained model of dialogues is asked, and its answers are scored."""

import json

import pytest

from memjax.overrides import load_config
from memjax.training.loop import train
from tools.measurements import dialogue, of_run


@pytest.mark.slow
def test_answers_of_a_run_are_scored(tmp_path, capsys):
    config = load_config("cmu_dog", "smoke")
    config.workdir, config.training.steps = str(tmp_path), 2
    run = train(config, on_event=lambda event: None).path
    arguments = [str(run), "--dialogues", "1", "--max-tokens", "3", "--rows", "1"]
    assert dialogue.main(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    names = [f"test {measure}, {way}" for measure in ("F1", "METEOR") for way in ("nucleus", "greedy")]
    assert {*names, "test utterances"} <= {*facts["numbers"]} and facts["numbers"]["test utterances"] == 8
    assert len(facts["greedy"]) == 8 and "no WordNet" in facts["signature"]


def test_a_run_of_something_else_is_refused(monkeypatch, capsys):
    from types import SimpleNamespace

    experiment = SimpleNamespace(config=load_config("sorting", "smoke"))
    monkeypatch.setattr(of_run, "load_run", lambda path: SimpleNamespace(experiment=experiment))
    assert dialogue.main(["somewhere"]) == 2
    assert capsys.readouterr().err == "run: given one of Sorting, allowed: a model of dialogues\n"


def test_what_is_no_run_is_one_line_and_code_2(tmp_path, capsys):
    assert dialogue.main([str(tmp_path / "nothing")]) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1 and "nothing" in output.err
