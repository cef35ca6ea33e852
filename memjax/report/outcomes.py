"""Outcomes of a run over several tasks: the matrix of its scores, the bytes that it keeps, and its times."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.config import Config
from memjax.lifelong.stream_results import NATS, summarize_stream

WHOLE = "whole"
"""Name of the evaluation on the data of all tasks together."""

LOG = "the log of a run as memjax writes it"

SPIKE = 0.5
"""Increase of the loss from one line of the log to the next, in nats a token, that counts as a spike."""

LOGGED = {
    "train": ("step", "tokens", "targets"),
    "grown": ("step", "seconds"),
    "generated": ("step", "seconds", "samples"),
}
"""Numbers that every line of a kind has. Lines of other kinds have `step`."""

WRITTEN = ("kept", "of_task", "written_nats", "real_nats")
"""Measures of generated pseudo-samples. A line has each for every earlier task, with the number of the task behind it.
"""

MAY_BE_LOGGED = ("stage", "skipped", "first_step_seconds")
"""Numbers that some lines have."""

MAY_BE_UNKNOWN = ("tokens_per_second", "examples_per_second", NATS)
"""Numbers that some lines have, None where they are not finite."""


def check_log(file: Path, lines: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> None:
    """Raises `ValueError` for the first line (dict) of a log without the numbers of its kind. `file` is named in the
    message, `measures` are names of scores that must be numbers or None.

    Args:
      file: The log of a run.
      lines: Its lines.
      measures: Names of further numbers that some lines have.

    Raises:
      ValueError: A line is damaged.
    """
    for number, line in enumerate(lines, start=1):
        if reason := _damage_of_line(line, measures):
            raise ValueError(f"{file}: line {number} is damaged ({reason}), allowed: {LOG}")


def _damage_of_line(line: Mapping[str, Any], measures: Sequence[str]) -> str:
    """Returns what a line of a log lacks. '' for a line as memjax writes it."""
    if not isinstance(line.get("kind"), str):
        return "it has no kind"
    if not isinstance(line.get("name"), str | None):
        return "its name is no text"
    numbers = (*LOGGED.get(line["kind"], ("step",)), *(name for name in MAY_BE_LOGGED if name in line))
    wrong = [name for name in numbers if not isinstance(line.get(name), int | float)]
    written = [name for name in line if line["kind"] == "generated" and name.rpartition("_")[0] in WRITTEN]
    wrong += [
        name for name in (*MAY_BE_UNKNOWN, *measures, *written) if not isinstance(line.get(name), int | float | None)
    ]
    return f"it has no number {wrong[0]}" if wrong else ""


def describe_divergence(results: Mapping[str, Any]) -> str:
    """Describes the divergence in the `results` of a finished run (`finished.json`): a line with its loss and with the
    limit above which a model counts as diverged. '' for a run that has not diverged.

    Args:
      results: `results` of `finished.json`.

    Returns:
      A line. '' for a run that has not diverged.

    Example:
      >>> describe_divergence({"diverged": {"nats_per_token": 1e17, "more_than": 55.45}})
      'yes: 1e+17 nats a target, more than 55.45'
    """
    diverged = results.get("diverged")
    return (
        f"yes: {diverged['nats_per_token']:.4g} nats a target, more than {diverged['more_than']:.4g}"
        if diverged
        else ""
    )


def stream_facts(run: str, config: Config, log: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Computes from the log and checkpoint of a run over tasks its matrix of scores, their summary, stored bytes and
    times, as a dict. {} before the first task is finished. `run` is the run directory.

    Args:
      run: Run directory.
      config: Configuration of the run.
      log: Lines of the run's `metrics.jsonl` where they have been read already. None to read them.

    Raises:
      ValueError: A line of `metrics.jsonl` is damaged.

    Returns:
      {} for runs without tasks, and before the first task is finished. Otherwise the entries of
      `memjax.lifelong.stream_results.summarize_stream` and these, in which unknown numbers are None:
      `whole`: last score on the data of all tasks together, if that is scored after every task. `after_each`: lists
      with a value after every task: the score on the data of all tasks together and the mean over the tasks learned so
      far, or for nats without the former AP and AP+. `kept_bytes`: bytes that the method stores beside the model, by
      kind. `cost`: times (`stream_cost`, `phase_costs`) and `parameters`, the final size. `written`: `average_written`.
    """
    from memjax.lifelong.metrics import kept_bytes, perplexities_after_each
    from memjax.tasks import make_task
    from memjax.training.loaded_runs import saved_shapes
    from memjax.training.metrics import read_metrics

    file = Path(run).expanduser() / "metrics.jsonl"
    if config.lifelong is None:
        return {}
    task = make_task(config)
    logged = read_metrics(file) if log is None else log  # without a file nothing, and a line of a finished run
    if not logged:
        return {}
    check_log(file, logged, (*task.matrix_metrics, *task.extra_metrics))
    try:
        facts = summarize_stream(task, logged)
    except ValueError as error:
        raise ValueError(f"{file}: damaged ({error}), allowed: {LOG}") from None
    if not facts:
        return {}
    measure, names, scores = facts["measure"], facts["tasks"], np.array(facts["scores"], np.float64)
    lines = [line for line in logged if line["kind"] == "evaluation" and line.get("phase") == "after"]
    newest = {line["name"]: line for line in lines if line.get("name")}
    training = [line for line in logged if line["kind"] == "train"]
    ends = sorted({line["step"] for line in lines})
    cost = stream_cost(config, training, [newest[name] for name in names]) | phase_costs(logged, ends)
    shapes = saved_shapes(run)
    cost["parameters"] = sum(math.prod(shape.shape) for name, shape in shapes.items() if name.startswith("params/"))
    written = average_written(logged, [part.name for part in config.lifelong.ordered_tasks])
    further_facts = {"kept_bytes": kept_bytes(shapes), "cost": cost} | ({"written": written} if written else {})
    wholes = {line.get("stage", 0): line[measure] for line in lines if line.get("name") == WHOLE and measure in line}
    if measure == NATS and not wholes and len(scores) == facts["num_tasks"]:
        each = perplexities_after_each(scores)
    else:
        learned = [row[: _num_read(facts, number)] for number, row in enumerate(scores)]
        each = {"of those learned": [float(row.mean()) for row in learned]}
    if wholes:
        facts[WHOLE] = wholes[max(wholes)]
        each = {"of all": [wholes[stage] for stage in sorted(wholes)], **each}
    known = {name: [None if math.isnan(value) else value for value in values] for name, values in each.items()}
    return {**facts, "after_each": known, **further_facts}


def _num_read(facts: Mapping[str, Any], row: int) -> int:
    """Returns the number of tasks that a run over tasks has read when it was scored for a row of its matrix."""
    return row + 1 if len(facts["scores"]) == facts["num_tasks"] else facts["num_tasks"]


def stream_cost(
    config: Config, training: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Computes examples per second in training and seconds per test example of a run over tasks, as a dict without
    unknown values. `training` and `evaluations` are lines of its log of these kinds.

    Args:
      config: Configuration of the run.
      training: Lines of updates.
      evaluations: The newest line of each task.

    Returns:
      `examples_per_second`: examples of the stream in training per second, the median over the lines, so that lines
      with compilation do not count. It includes updates on replayed rows, but no evaluations, checkpoints or work
      between tasks. `seconds_per_test_example`: mean over the tasks, without the first batch of each, which compiles.
      `adapts`: whether that time contains an adaptation, with the search for the rows that are adapted to.
    """
    from memjax.tasks import make_task

    assert config.lifelong is not None
    head, cost = make_task(config).head(), dict[str, Any]()
    paced = [line for line in training if line.get("tokens_per_second") and line["tokens"]]
    if paced and head is not None and not head.scores_vocabulary:  # else an example has any number of targets
        targets = sum(line["targets"] + line.get("projected/targets", 0) for line in paced)
        examples_per_token = targets / head.num_targets(1) / sum(line["tokens"] for line in paced)
        pace = statistics.median(line["tokens_per_second"] for line in paced)
        # Of an episode, a line counts the query alone.
        cost["examples_per_second"] = pace * examples_per_token * config.lifelong.method.batches_per_update
    rates = [line["examples_per_second"] for line in evaluations if line.get("examples_per_second")]
    if rates:
        cost["seconds_per_test_example"] = statistics.fmean(1 / rate for rate in rates)
        cost["adapts"] = config.lifelong.method.adapts
    return cost


def phase_costs(logged: Sequence[Mapping[str, Any]], ends: Sequence[int] = ()) -> dict[str, Any]:
    """Computes from a log the seconds that a run took for updates, compilation, growth and generation, and counts of
    its incidents, as a dict. `ends` are the numbers of updates at the ends of tasks.

    Args:
      logged: All lines of the run's `metrics.jsonl`.
      ends: Number of updates at the end of each task.

    Returns:
      `update_seconds`: seconds of all updates at the speed of the timed ones. `seconds_after_each`: the same until each
      of `ends`. Both are missing if no update was timed. `compilation_seconds`: seconds of the first update of each
      stage with its compilation, which `update_seconds` leaves out. `skipped`: number of skipped updates. `spikes`:
      result of `count_spikes`. `growth_seconds`: seconds of growth. `growths`: nats on rows of the memory before and
      after each growth. `generation_seconds` and `samples`: seconds and number of generated pseudo-samples.

    Example:
      >>> line = {"kind": "train", "step": 5, "tokens": 20.0, "tokens_per_second": 10.0, "first_step_seconds": 3.0}
      >>> grown = {"kind": "grown", "seconds": 0.5, "nats_before": 2.0, "nats_after": 2.5}
      >>> phase_costs([line, grown])  # doctest: +NORMALIZE_WHITESPACE
      {'update_seconds': 2.0, 'compilation_seconds': 3.0, 'skipped': 0, 'spikes': 0, 'growth_seconds': 0.5,
       'growths': [[2.0, 2.5]]}
    """
    of_kind = lambda kind: [line for line in logged if line["kind"] == kind]
    updates = of_kind("train")
    paced = [
        (line["step"], line["tokens"] / line["tokens_per_second"]) for line in updates if line.get("tokens_per_second")
    ]
    costs: dict[str, Any] = {"update_seconds": sum(seconds for _, seconds in paced)} if paced else {}
    if paced and ends:
        costs["seconds_after_each"] = [sum(seconds for step, seconds in paced if step <= end) for end in ends]
    if first := [line["first_step_seconds"] for line in updates if "first_step_seconds" in line]:
        costs["compilation_seconds"] = sum(first)
    costs["skipped"] = round(sum(line.get("skipped", 0.0) for line in updates))
    costs["spikes"] = count_spikes(updates, ends)
    if grown := of_kind("grown"):
        costs["growth_seconds"] = sum(line["seconds"] for line in grown)
        costs["growths"] = [[line["nats_before"], line["nats_after"]] for line in grown if "nats_before" in line]
    if written := of_kind("generated"):
        costs["generation_seconds"] = sum(line["seconds"] for line in written)
        costs["samples"] = sum(line["samples"] for line in written)
    return costs


def average_written(logged: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns measures of the pseudo-samples that were generated of each task, means over the tasks before which they
    were generated, as a dict from the name of a task to a dict.

    Args:
      logged: All lines of the run's `metrics.jsonl`.
      names: Names of the tasks in the order of training.

    Returns:
      Those of these measures that were logged: `kept`: share of the texts with the form of an example. `of_task`: share
      of them whose answer has the form of the task's answers, such as one of its classes. `written_nats` and
      `real_nats`: nats a token of the texts that are kept, and of real examples of the task, under the model that
      generated.

    Example:
      >>> lines = [{"kind": "generated", "kept_0": share, "real_nats_0": 4.0} for share in (0.5, 1.0)]
      >>> average_written(lines, ["x", "y"])
      {'x': {'kept': 0.75, 'real_nats': 4.0}}
    """
    lines, averages = [line for line in logged if line["kind"] == "generated"], dict[str, dict[str, float]]()
    for number, name in enumerate(names):
        for measure in WRITTEN:
            values = [line.get(f"{measure}_{number}") for line in lines]
            if values := [value for value in values if value is not None]:
                averages.setdefault(name, {})[measure] = statistics.fmean(values)
    return averages


def count_spikes(updates: Sequence[Mapping[str, Any]], ends: Sequence[int] = ()) -> int:
    """Counts the training lines whose loss is more than `SPIKE` nats a token above that of the line before, but not the
    first line after one of `ends`, the numbers of updates at the ends of tasks.

    Rises across the end of a task are explained by the next task, or by the growth of the model before it.

    Args:
      updates: Lines of updates, in order.
      ends: Number of updates at the end of each task.

    Example:
      >>> lines = [{"step": step, "nats_per_token": nats} for step, nats in ((1, 5.0), (2, 5.6), (3, 5.0), (4, 7.0))]
      >>> count_spikes(lines), count_spikes(lines, ends=(3,))
      (2, 1)
    """
    nats = [(line["step"], line.get(NATS)) for line in updates]
    border = lambda step, later: any(step <= end < later for end in ends)
    pairs = [
        (earlier, later_line)
        for earlier, later_line in itertools.pairwise(nats)
        if not border(earlier[0], later_line[0])
    ]
    return sum(after - before > SPIKE for (_, before), (_, after) in pairs if before is not None and after is not None)
