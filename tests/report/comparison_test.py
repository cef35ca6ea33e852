"""Runs side by side: what cannot be compared is left out and named, and runs of several seeds are judged."""

import dataclasses
import json
import math

import hypothesis
import pytest
from hypothesis import strategies

from memjax.cli import main
from memjax.config import Bytes, Config, Data, Model, TextFiles, Training
from memjax.report.comparison import compare_contenders, split_finished, split_readable
from memjax.training.runs import config_to_dict

CONFIG = Config(
    name="run",
    model=Model(dim=8, num_layers=1, num_heads=2),
    data=Data(source=TextFiles(path="texts"), tokenizer=Bytes(), rows=2, segment_length=8),
    training=Training(steps=2),
)


def write_run(folder, *, seed=0, dim=8, bits=2.0, **score):
    """A finished run of one task as memjax writes it, without arrays; returns its path as text."""
    model, training = dataclasses.replace(CONFIG.model, dim=dim), dataclasses.replace(CONFIG.training, seed=seed)
    config = dataclasses.replace(CONFIG, name=folder.name, model=model, training=training)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_to_dict(config)))
    evaluation = {"nats_per_token": 3.0, "bits_per_byte": bits, **score}
    results = {"parameters": 10, "memory_bytes": 0, "evaluation": evaluation}
    (folder / "finished.json").write_text(json.dumps({"step": 2, "results": results}))
    return str(folder)


def replaced(file, text):
    return lambda run: (run / file).write_text(text)


def without(file, field):
    def change(run):
        content = json.loads((run / file).read_text())
        content.pop(field, None)
        content.get("results", {}).pop(field, None)
        (run / file).write_text(json.dumps(content))

    return change


LEFT_OUT = {
    "not finished": (lambda run: (run / "finished.json").unlink(), "not finished, allowed"),
    "no config": (lambda run: (run / "config.json").unlink(), "no run directory"),
    "cut config": (replaced("config.json", '{"type": '), "config.json: damaged"),
    "empty config": (replaced("config.json", ""), "config.json: damaged"),
    "another config": (replaced("config.json", '{"type": "Bytes"}'), "config.json: config: given Bytes"),
    "a field nobody knows": (
        lambda run: (run / "config.json").write_text((run / "config.json").read_text().replace('"dim"', '"dimm"')),
        "config.json: config: Model.dimm",
    ),
    "cut results": (replaced("finished.json", '{"step": 2, '), "finished.json: damaged"),
    "a list of results": (replaced("finished.json", "[]"), "finished.json: damaged"),
    "results of nothing": (replaced("finished.json", '{"step": 2, "results": {}}'), "finished.json: damaged"),
    "no parameters": (without("finished.json", "parameters"), "damaged (KeyError"),
    "scores are no mapping": (
        replaced("finished.json", '{"step": 2, "results": {"evaluation": 3, "parameters": 1, "memory_bytes": 0}}'),
        "damaged (AttributeError",
    ),
    "a folder in the way": (
        lambda run: ((run / "finished.json").unlink(), (run / "finished.json").mkdir()),
        "finished.json: Is a directory",
    ),
}


@pytest.mark.parametrize("change, reason", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_cannot_be_compared_is_left_out_and_named(tmp_path, capsys, change, reason):
    runs = [write_run(tmp_path / name) for name in ("one", "bad", "two")]
    change(tmp_path / "bad")
    assert main(["compare", *runs, "--json"]) == 0
    said = capsys.readouterr()
    assert [*json.loads(said.out)] == [runs[0], runs[2]]
    (line,) = said.err.splitlines()
    assert line.startswith("left out: ") and runs[1] in line and reason in line
    readable, left_out = split_readable(runs)
    assert (runs[1] in readable) == (reason.startswith("not finished")) != (runs[1] in left_out)
    # Alone it is a mistake: nothing is left.
    assert main(["compare", runs[1]]) == 2
    said = capsys.readouterr()
    assert not said.out and reason in said.err and len(said.err.splitlines()) == 1


@hypothesis.given(data=strategies.data())
@hypothesis.settings(max_examples=25, deadline=None)
def test_cut_and_changed_bytes_are_left_out_or_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("runs")
    run = write_run(folder / "run")
    file = folder / "run" / data.draw(strategies.sampled_from(["config.json", "finished.json"]))
    content = bytearray(file.read_bytes())
    place = data.draw(strategies.integers(0, len(content) - 1))
    if data.draw(strategies.booleans()):
        content = content[:place]
    else:
        content[place] = data.draw(strategies.integers(0, 255))
    file.write_bytes(bytes(content))
    finished, left_out = split_finished([run])
    assert finished == [run] or "\n" not in left_out[run]


def test_runs_of_several_seeds_are_judged(tmp_path, capsys):
    bits = {8: (2.0, 2.1, 2.2), 16: (1.5, 1.61, 1.69), 24: (2.0, 2.5, 1.9)}
    runs = [
        write_run(tmp_path / f"{dim}_{seed}", dim=dim, seed=seed, bits=value)
        for dim, values in bits.items()
        for seed, value in enumerate(values)
    ]
    better, level = compare_contenders(runs)
    assert (better.name, better.control, better.runs, better.measure) == (runs[3], runs[0], 3, "bits_per_byte")
    assert better.comparison.verdict == "gain" and better.comparison.difference == pytest.approx(-0.5)
    assert level.comparison.verdict == "level" and level.comparison.counted == "3 seeds"
    assert main(["compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{runs[3]} against {runs[0]}: bits per byte -0.5 ± 0.0058 (3 seeds, p <0.001): gain" in lines
    assert lines[-1].startswith("(Student's t, paired and two-sided")
    assert main(["compare", *runs, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in facts["differences"]] == ["gain", "level"]
    assert facts[runs[0]]["model.dim"] == 8
    # Two seeds are too few, one pair is no comparison, and neither are seeds that differ.
    assert [one.comparison.verdict for one in compare_contenders([*runs[:2], *runs[3:5]])] == ["too few"]
    assert compare_contenders([runs[0], runs[3]]) == compare_contenders(runs[:3]) == []
    assert compare_contenders([runs[0], runs[1], runs[5]]) == []
    assert main(["compare", *runs[:2], *runs[3:5], "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["differences"]
    assert found["p"] is None and not math.isnan(found["error"])


def test_accuracy_is_better_where_it_is_more(tmp_path):
    scores = {8: (0.5, 0.51, 0.52), 16: (0.7, 0.71, 0.73)}
    runs = [
        write_run(tmp_path / f"{dim}_{seed}", dim=dim, seed=seed, bits=None, accuracy=value)
        for dim, values in scores.items()
        for seed, value in enumerate(values)
    ]
    for run in runs:
        file = tmp_path / run / "finished.json"
        content = json.loads(file.read_text())
        del content["results"]["evaluation"]["bits_per_byte"]
        file.write_text(json.dumps(content))
    (found,) = compare_contenders(runs)
    assert (found.measure, found.comparison.verdict) == ("accuracy", "gain")
