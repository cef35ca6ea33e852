"""Runs that add up: groups over seeds and orders, their means with intervals, and the same in a report."""

import dataclasses
import json
import re

import numpy as np
import pytest
from scipy import stats

from memjax.cli import main
from memjax.config import EWC, Sequential
from memjax.durable_files import write_json
from memjax.report.build import make_report
from memjax.report.comparison import RunRecord
from memjax.report.contender_panels import mean_curve
from memjax.report.contenders import Contender, compare_contenders, group_runs, tabulate
from memjax.report.panel import OpenedRun
from memjax.settings.overrides import load_config
from tests.report.crafted import AFTER, crafted, parts_of

OVER = ("training.seed", "lifelong.task_order")
NAMES = ("a", "b", "c")


def write_stream(folder, method, seed, order, gain):
    """A finished run over three tasks whose final scores are known; an order is numbers of tasks."""
    config = load_config("lifelong_mnist", "smoke")
    tasks = tuple(
        dataclasses.replace(task, name=name) for task, name in zip(config.lifelong.tasks * 2, NAMES, strict=False)
    )
    stream = dataclasses.replace(config.lifelong, tasks=tasks, task_order=order, method=method)
    training = dataclasses.replace(config.training, seed=seed)
    config = dataclasses.replace(config, lifelong=stream, training=training, name=folder.name)
    learned = [NAMES[number] for number in order]
    score = lambda stage, name: 0.9 - 0.1 * (stage - learned.index(name)) + gain if name in learned[: stage + 1] else 0
    lines = [
        {"kind": "train", "step": 5 * (n + 1), "tokens": 1.0, "targets": 1.0, "nats_per_token": 2.0 / (n + 1) + gain}
        for n in range(6)
    ]
    lines += [
        {
            **AFTER,
            "step": 10 * (stage + 1),
            "stage": stage,
            "name": name,
            "accuracy": score(stage, name),
            "largest_class": 0.5,
        }
        for stage in range(3)
        for name in learned
    ]
    run = crafted(folder, config, [{"attempt": 1, **line} for line in lines])
    results = {"parameters": 1, "memory_bytes": 0, "evaluation": {"nats_per_token": 1.0, "accuracy": 0.0}}
    write_json(folder / "finished.json", {"step": 30, "attempts": 1, "results": results})
    return run.path


@pytest.fixture
def runs(tmp_path):
    gains = {
        (seed, order): 0.01 * seed + 0.02 * order[0] for seed in (0, 1) for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2))
    }
    return [
        write_stream(tmp_path / f"{type(method).__name__}_{seed}_{order[0]}", method, seed, order, gain + more)
        for method, more in ((Sequential(), 0.0), (EWC(), 0.005))
        for (seed, order), gain in gains.items()
    ]


def test_runs_of_several_orders_and_seeds_are_one_contender(runs):
    sequential, ewc = group_runs(map(RunRecord, runs), OVER)
    assert (sequential.label, ewc.label) == ("Sequential", "EWC") and len(sequential.runs) == len(ewc.runs) == 6
    found = ewc.interval(lambda record: record.score("average"))
    by_order = [0.8 + 0.005 + 0.005 + 0.02 * first for first in range(3)]
    low, high = stats.t.interval(0.95, 2, np.mean(by_order), stats.sem(by_order))
    assert (found.units, found.unit) == (3, "order") and found.mean == pytest.approx(np.mean(by_order))
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high))
    (difference,) = compare_contenders(map(RunRecord, runs), OVER)
    assert (difference.comparison.verdict, difference.comparison.units) == ("gain", 3)
    # Over seeds alone every order is a contender of its own, whose matrix has the names of the tasks.
    apart = group_runs(map(RunRecord, runs), ["training.seed"])
    assert len(apart) == 6 and [len(contender.runs) for contender in apart] == [2] * 6
    assert apart[1].label == "Sequential, task_order c, b, a" and apart[1].task_names == ("c", "b", "a")
    assert [round(cell.mean, 3) for cell in apart[1].matrix()[2]] == pytest.approx([0.745, 0.845, 0.945])
    assert apart[1].matrix()[0][0].unit == "seed" and sequential.task_names == ("task 1", "task 2", "task 3")


def record_with(config):
    """A record of a run that has no directory, only a configuration."""
    record = RunRecord(config.name)
    vars(record).update(config=config)
    return record


def test_runs_over_other_tasks_are_told_apart_by_their_names(runs):
    config = RunRecord(runs[0]).config

    def labels(change):
        tasks = tuple(dataclasses.replace(task, **change(task)) for task in config.lifelong.tasks)
        other = dataclasses.replace(config, lifelong=dataclasses.replace(config.lifelong, tasks=tasks))
        return [contender.label for contender in group_runs(map(record_with, (config, other)), OVER)]

    assert labels(lambda task: {"name": f"other_{task.name}"}) == ["tasks a, b, c", "tasks other_a, other_b, other_c"]
    same_names = labels(lambda task: {"source": dataclasses.replace(task.source, num_test=7)})
    assert len(set(same_names)) == 2 and "num_test 7" in same_names[1]


def test_a_label_of_many_fields_shows_those_that_tell_apart(runs):
    config = RunRecord(runs[0]).config
    configs = [
        dataclasses.replace(
            config,
            lifelong=dataclasses.replace(config.lifelong, method=method, epochs=number),
            model=dataclasses.replace(config.model, widths=(number,)),
            training=dataclasses.replace(config.training, steps=number, log_every=number, clip_norm=float(number)),
        )
        for number, method in enumerate([Sequential(), EWC()], start=1)
    ]
    labels = [contender.label for contender in group_runs(map(record_with, configs), OVER)]
    assert labels == ["Sequential, ...", "EWC, ..."]


def test_streams_that_are_measured_differently_say_how(runs):
    contenders = group_runs(map(RunRecord, runs), OVER)
    assert "measure" not in tabulate(contenders)[0]
    record = RunRecord("lamol")
    vars(record).update(stream={"measure": "score", "tasks": ["a"], "scores": [[50.0]], "average": 50.0})
    heads, rows, _ = tabulate([*contenders, Contender("LAMOL", {("", ""): record})])
    assert heads[:4] == ("", "runs", "measure", "average")
    assert [row[2] for row in rows] == ["accuracy", "accuracy", "score, %"]


def test_compare_prints_means_intervals_and_verdicts(runs, capsys):
    assert main(["compare", *runs, "--over", "training.seed,lifelong.task-order"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    assert rows[0][:2] == ["runs", "average"] and ["Sequential", "6", "0.825", "±", "0.05"] == rows[1][:5]
    assert "over 3 orders; seeds within an order are averaged first" in text
    assert re.search(r"EWC against Sequential: average \+0.005 ± \S+ \(3 orders, p <0.001\): gain", text)
    assert "Sequential: accuracy after  task 1" in text and "task 3" in text
    assert main(["compare", *runs, "--over", "training.sed"]) == 2
    assert "--over: given training.sed" in (said := capsys.readouterr().err) and "did you mean training.seed" in said
    assert main(["compare", *runs, "--over", ",".join(OVER), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [contender["label"] for contender in facts["contenders"]] == ["Sequential", "EWC"]
    assert facts["contenders"][0]["scores"]["average"]["unit"] == "order"
    assert np.shape(facts["contenders"][0]["matrix"]) == (3, 3) and facts["differences"][0]["verdict"] == "gain"
    # Without the option each run has a column, and the verdicts are the same.
    assert main(["compare", *runs]) == 0 and "(3 orders, p <0.001): gain" in capsys.readouterr().out


def test_a_report_of_means_has_bands(runs, tmp_path, capsys):
    report = make_report([OpenedRun(run) for run in runs], over=OVER)
    assert report.names == ("Sequential", "EWC") and len(report.header.rows) == 2
    (section,) = report.sections
    parts = parts_of(section.panels)
    assert {"contender_scores", "verdicts", "contender_matrix", "contender_loss", "contender_means"} <= {*parts}
    contender = group_runs(map(RunRecord, runs), OVER)[0]
    steps, means, widths = mean_curve(contender, lambda record: (np.array([1, 2]), np.array([record.score("a"), 1.0])))
    assert steps.tolist() == [1, 2] and widths[0] > 0 == widths[1] and means[1] == 1
    assert main(["report", *runs, "--over", "training.seed", "--out", str(tmp_path / "page.html")]) == 0
    assert "2 panels" in capsys.readouterr().out
