"""Runs side by side: what cannot be compared is left out and named, and runs of several seeds are judged."""

import contextlib
import dataclasses
import json
import math
import re
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
from hypothesis import strategies

import memjax.training.metrics
from memjax.cli import main
from memjax.config import Bytes, Config, Data, Memorizing, Model, TextFiles, Training, TransformerXL
from memjax.report.build import collect_run_facts, make_report
from memjax.report.comparison import RunRecord, differing_settings, split_finished, split_readable
from memjax.report.contenders import compare_contenders
from memjax.report.curves import compare_runs_panel
from memjax.report.panel import OpenedRun
from memjax.report.providers import PROVIDERS
from memjax.settings.overrides import load_config as load_config_file
from memjax.training.run_versions import describe_generator, generator_of, random_generator
from memjax.training.runs import config_to_dict

CONFIG = Config(
    name="run",
    model=Model(dim=8, num_layers=1, num_heads=2),
    data=Data(source=TextFiles(path="texts"), tokenizer=Bytes(), batch_size=2, segment_length=8),
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


def change_score(run, name, value):
    """Sets a score of the last evaluation of a run. None removes it."""
    file = Path(run) / "finished.json"
    content = json.loads(file.read_text())
    scores = content["results"]["evaluation"]
    content["results"]["evaluation"] = {key: old for key, old in {**scores, name: value}.items() if old is not None}
    file.write_text(json.dumps(content))


def drop_score(run, name):
    change_score(run, name, None)


def compare_finished(runs):
    return compare_contenders(split_finished(map(RunRecord, runs))[0].values())


def replace_content(file, text):
    return lambda run: (run / file).write_text(text)


def drop_field(file, field):
    def change(run):
        content = json.loads((run / file).read_text())
        content.pop(field, None)
        content.get("results", {}).pop(field, None)
        (run / file).write_text(json.dumps(content))

    return change


LEFT_OUT = {
    "not finished": (lambda run: (run / "finished.json").unlink(), "not finished, allowed"),
    "no config": (lambda run: (run / "config.json").unlink(), "no run directory"),
    "cut config": (replace_content("config.json", '{"type": '), "config.json: damaged"),
    "empty config": (replace_content("config.json", ""), "config.json: damaged"),
    "another config": (replace_content("config.json", '{"type": "Bytes"}'), "config.json: config: given Bytes"),
    "a field nobody knows": (
        lambda run: (run / "config.json").write_text((run / "config.json").read_text().replace('"dim"', '"dimm"')),
        "config.json: config: Model.dimm",
    ),
    "cut results": (replace_content("finished.json", '{"step": 2, '), "finished.json: damaged"),
    "a list of results": (replace_content("finished.json", "[]"), "finished.json: damaged"),
    "results of nothing": (replace_content("finished.json", '{"step": 2, "results": {}}'), "finished.json: damaged"),
    "no parameters": (drop_field("finished.json", "parameters"), "finished.json: damaged (no value of parameters)"),
    "scores are no mapping": (
        replace_content(
            "finished.json", '{"step": 2, "results": {"evaluation": 3, "parameters": 1, "memory_bytes": 0}}'
        ),
        "finished.json: damaged (no value of evaluation)",
    ),
    "scores are no numbers": (
        lambda run: (run / "finished.json").write_text((run / "finished.json").read_text().replace("2.0", '"2.0"')),
        "finished.json: damaged (no value of bits_per_byte)",
    ),
    "a type that is a list": (replace_content("config.json", '{"type": ["Config"]}'), "config.json: config: type"),
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
    readable, left_out = split_readable(map(RunRecord, runs))
    assert (runs[1] in readable) == (reason.startswith("not finished")) != (runs[1] in left_out)
    assert readable.keys() | left_out.keys() == {*runs} and not readable.keys() & left_out.keys()
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
    try:
        finished, left_out = split_finished([RunRecord(run)])
    except jaxtyping.TypeCheckError:  # Only with `--jaxtyping`, which looks at a value before memjax does.
        hypothesis.reject()
    assert [*finished] == [run] or "\n" not in left_out[run]


def write_stream(folder, *, logged=()):
    """A finished run over several tasks with some lines in its log; returns its path as text."""
    run = write_run(folder, accuracy=0.75)
    config = load_config_file("lifelong_text", "")
    tasks = [task.name for task in config.lifelong.ordered_tasks]
    evaluations = tuple(dataclasses.replace(config.evaluation, name=name, task=name) for name in tasks)
    (folder / "config.json").write_text(
        json.dumps(config_to_dict(dataclasses.replace(config, evaluations=evaluations)))
    )
    lines = [
        {"step": 10 * (stage + 1), "attempt": 1, "kind": "evaluation", "phase": "after", "stage": stage, "name": name}
        for stage in range(len(tasks))
        for name in tasks
    ]
    train = {"step": 5, "attempt": 1, "kind": "train", "tokens": 8.0, "tokens_per_second": 4.0, "targets": 8.0}
    scored = {"accuracy": 0.5, "split": "test", "targets": 16}
    content = [train, *({**line, **scored} for line in lines), *logged]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in content))
    return run


LOGS = {
    "no kind": ({"step": 5}, "it has no kind"),
    "a kind that is a list": ({"step": 5, "kind": ["train"]}, "it has no kind"),
    "no tokens": ({"step": 5, "kind": "train", "tokens_per_second": 2.0}, "it has no number tokens"),
    "text for a number": ({"step": 5, "kind": "grown", "seconds": "x"}, "it has no number seconds"),
    "no targets": ({"step": 5, "kind": "train", "tokens": 8.0}, "it has no number targets"),
    "a list for a score": ({"step": 5, "kind": "evaluation", "accuracy": []}, "it has no number accuracy"),
    "text for a stage": ({"step": 5, "kind": "evaluation", "stage": "x"}, "it has no number stage"),
    "a list for a name": ({"step": 5, "kind": "evaluation", "name": []}, "its name is no text"),
}


@pytest.mark.parametrize("line, reason", LOGS.values(), ids=LOGS)
def test_a_damaged_log_is_named(tmp_path, line, reason):
    runs = [write_stream(tmp_path / "whole"), write_stream(tmp_path / "damaged", logged=[line])]
    finished, left_out = split_finished(map(RunRecord, runs))
    assert [*finished] == runs[:1] and finished[runs[0]].stream["average"] == 0.5
    number = len((tmp_path / "damaged" / "metrics.jsonl").read_text().splitlines())
    assert f"line {number} is damaged ({reason})" in left_out[runs[1]]


@pytest.mark.parametrize("error", [AttributeError, KeyError, TypeError])
def test_a_mistake_in_memjax_is_no_damaged_run(tmp_path, monkeypatch, error):
    def fail(run, config, log):
        raise error("ours")

    monkeypatch.setattr("memjax.report.comparison.stream_facts", fail)
    with pytest.raises(error, match="ours"):
        split_readable([RunRecord(write_stream(tmp_path / "run"))])


def test_fields_of_one_kind_are_left_out_where_they_have_their_defaults():
    memories = {"a": TransformerXL(memory_length=8), "b": Memorizing(memory_length=4, num_neighbors=2)}
    facts = differing_settings({run: Config(model=Model(attention=memory)) for run, memory in memories.items()})
    assert facts["a"]["model.attention"] == "TransformerXL" and facts["b"]["model.attention"] == "Memorizing"
    assert (facts["a"]["model.attention.memory_length"], facts["b"]["model.attention.memory_length"]) == (8, 4)
    assert facts["b"]["model.attention.num_neighbors"] == 2 and "model.attention.cache_length" not in facts["b"]
    memories["a"] = Memorizing(memory_length=4)  # of the same kind, a default says what is different
    facts = differing_settings({run: Config(model=Model(attention=memory)) for run, memory in memories.items()})
    assert facts == {"a": {"model.attention.num_neighbors": 32}, "b": {"model.attention.num_neighbors": 2}}


def test_a_run_is_read_once(tmp_path, monkeypatch, capsys):
    runs = [write_stream(tmp_path / name) for name in ("one", "two")]
    read = []
    monkeypatch.setattr("memjax.report.comparison.stream_facts", lambda run, config, log: read.append(run) or {})
    assert main(["compare", *runs]) == 0 and read == runs


def test_a_report_of_several_runs_reads_each_log_once(tmp_path, monkeypatch):
    runs, read = [write_stream(tmp_path / name) for name in ("one", "two")], []
    read_metrics = memjax.training.metrics.read_metrics
    monkeypatch.setattr(
        "memjax.training.metrics.read_metrics", lambda file: read.append(str(file)) or read_metrics(file)
    )
    assert main(["report", *runs, "--out", str(tmp_path / "page.html"), "--only", "curves,streams"]) == 0
    assert sorted(read) == [f"{run}/metrics.jsonl" for run in runs]


def test_runs_of_several_seeds_are_judged(tmp_path, capsys):
    bits = {8: (2.0, 2.1, 2.2), 16: (1.5, 1.61, 1.69), 24: (2.0, 2.5, 1.9)}
    runs = [
        write_run(tmp_path / f"{dim}_{seed}", dim=dim, seed=seed, bits=value)
        for dim, values in bits.items()
        for seed, value in enumerate(values)
    ]
    better, level = compare_finished(runs)
    assert (better.name, better.control, better.runs, better.measure) == (runs[3], runs[0], 3, "bits_per_byte")
    assert better.comparison.verdict == "gain" and better.comparison.difference == pytest.approx(-0.5)
    assert level.comparison.verdict == "level" and level.comparison.counted == "3 seeds"
    assert main(["compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{runs[3]} against {runs[0]}: bits per byte -0.5 ± 0.0058 (3 seeds, p <0.001): gain" in lines
    assert lines[-1].startswith("(Student's t, paired and two-sided")
    assert main(["compare", *runs, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [difference["verdict"] for difference in facts["differences"]] == ["gain", "level"]
    assert facts[runs[0]]["model.dim"] == 8
    # Two seeds are too few, one pair is no comparison, and neither are seeds that differ.
    assert [difference.comparison.verdict for difference in compare_finished([*runs[:2], *runs[3:5]])] == ["too few"]
    assert compare_finished([runs[0], runs[3]]) == compare_finished(runs[:3]) == compare_finished([]) == []
    assert compare_finished([runs[0], runs[1], runs[5]]) == []
    assert main(["compare", *runs[:2], *runs[3:5], "--json"]) == 0
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert difference["p"] is None and not math.isnan(difference["error"])


def test_accuracy_is_better_where_it_is_more(tmp_path):
    scores = {8: (0.5, 0.51, 0.52), 16: (0.7, 0.71, 0.73)}
    runs = [
        write_run(tmp_path / f"{dim}_{seed}", dim=dim, seed=seed, bits=None, accuracy=value)
        for dim, values in scores.items()
        for seed, value in enumerate(values)
    ]
    for run in runs:
        drop_score(run, "bits_per_byte")
    (difference,) = compare_finished(runs)
    assert (difference.measure, difference.comparison.verdict) == ("accuracy", "gain")


@pytest.mark.parametrize("side", [0, 3])
@pytest.mark.parametrize("seed", range(3))
def test_one_score_is_compared_in_all_pairs(tmp_path, side, seed):
    """A run of either contender lacks the first score: nats are compared in all pairs, whichever comes last."""
    runs = [write_run(tmp_path / f"{dim}_{seed}", dim=dim, seed=seed) for dim in (8, 16) for seed in range(3)]
    for number, run in enumerate(runs):
        change_score(run, "nats_per_token", 3.0 + 0.125 * (number % 3) + 0.5 * (number > 2))
    drop_score(runs[side + seed], "bits_per_byte")
    (difference,) = compare_finished(runs)
    assert (difference.measure, difference.comparison.verdict) == ("nats_per_token", "loss")
    assert (difference.comparison.difference, difference.comparison.units) == (0.5, 3)
    for run in runs[side : side + 3]:
        drop_score(run, "nats_per_token")
    assert compare_finished(runs) == []  # They have no score in common.


GENERATORS = {
    "none recorded": ([{}], ""),
    "no attempt": ([], ""),
    "damaged": ("[{", ""),
    "no list": ({"random_generator": "rbg"}, ""),
    "one": ([{"random_generator": "rbg"}], "rbg"),
    "one twice": ([{"random_generator": "rbg"}] * 2, "rbg"),
    "two": ([{"random_generator": "rbg"}, {"random_generator": random_generator()}], f"rbg then {random_generator()}"),
    "that of here": ([{"random_generator": random_generator()}], random_generator()),
}


@pytest.mark.parametrize("attempts, name", GENERATORS.values(), ids=GENERATORS)
def test_a_run_of_another_random_generator_is_named(tmp_path, attempts, name):
    text = attempts if isinstance(attempts, str) else json.dumps(attempts)
    (tmp_path / "versions.json").write_text(text)
    assert generator_of(tmp_path) == name
    line = describe_generator(tmp_path)
    assert bool(line) == (name not in ("", random_generator())) and (not line or name in line)


def test_compare_names_random_generators_that_differ(tmp_path, capsys):
    runs = [write_run(tmp_path / name) for name in ("one", "two", "old")]
    for name, generator in {"one": "rbg", "two": random_generator()}.items():
        (tmp_path / name / "versions.json").write_text(json.dumps([{"random_generator": generator}]))
    assert main(["compare", *runs, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [facts[run]["random_generator"] for run in runs] == ["rbg", random_generator(), None]
    assert main(["compare", runs[1], runs[2], "--json"]) == 0
    assert "random_generator" not in json.loads(capsys.readouterr().out)[runs[1]]


def test_a_report_leaves_damaged_runs_out_and_judges_seeds(tmp_path, capsys, monkeypatch):
    bits = {8: (2.0, 2.1, 2.2), 16: (1.5, 1.61, 1.69)}
    runs = [
        write_run(tmp_path / f"{dim}_{seed}", dim=dim, seed=seed, bits=value)
        for dim, values in bits.items()
        for seed, value in enumerate(values)
    ]
    (panel,) = compare_runs_panel([OpenedRun(run) for run in runs])
    table = next(part for part in panel.items if part.name == "verdicts")
    assert table.rows[0][0] == "16_0 (3 runs)" and table.rows[0][-3:] == ("3 seeds", "<0.001", "gain")
    assert [part.name for part in next(compare_runs_panel([OpenedRun(run) for run in runs[:2]])).items] == [
        "differences"
    ]
    shown = []

    def make_report(opened, **named):
        shown.extend(run.path for run in opened)
        raise ValueError("enough")

    monkeypatch.setattr("memjax.report.build.make_report", make_report)
    replace_content("config.json", "{")(tmp_path / "8_1")
    (tmp_path / "8_2" / "finished.json").unlink()  # is shown as far as it is there
    with contextlib.suppress(ValueError):
        main(["report", *runs])
    assert shown == [runs[0], *runs[2:]]
    assert f"left out: {runs[1]}/config.json: damaged" in capsys.readouterr().err


@pytest.mark.parametrize("nats, more_than", [(1e17, 55.45), (60.0, 55.0), (1e300, 1.0)])
def test_a_run_that_has_diverged_says_so(tmp_path, capsys, nats, more_than):
    runs = [write_run(tmp_path / "one", bits=3.0), write_run(tmp_path / "two")]
    assert main(["compare", *runs]) == 0 and "\ndiverged" not in capsys.readouterr().out
    file = tmp_path / "one" / "finished.json"
    finished = json.loads(file.read_text())
    finished["results"]["diverged"] = {"nats_per_token": nats, "more_than": more_than}
    file.write_text(json.dumps(finished))
    assert main(["compare", *runs]) == 0
    assert "\ndiverged                   yes\n" in re.sub(" +\n", "\n", capsys.readouterr().out)
    assert main(["compare", *runs, "--json"]) == 0
    assert [facts.get("diverged") for facts in json.loads(capsys.readouterr().out).values()] == ["yes", None]
    lines = [collect_run_facts(OpenedRun(run)).get("diverged") for run in runs]
    assert lines == [f"yes: {nats:.4g} nats a target, more than {more_than:.4g}", None]


@pytest.mark.parametrize("error", [FloatingPointError, ValueError])
def test_a_panel_that_cannot_be_computed_costs_a_line(tmp_path, monkeypatch, error):
    def refuse(run):
        raise error("logits: not finite")

    monkeypatch.setitem(PROVIDERS, "gains", refuse)
    report = make_report([OpenedRun(write_run(tmp_path / "one"))], only=["gains"])
    assert [line for section in report.sections for line in section.left] == ["gains: logits: not finite"]
