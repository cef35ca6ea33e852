"""Results of a run over several tasks, as `memjax eval` prints them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from memjax.cli.console import align
from memjax.config import Config
from memjax.lifelong.stream_results import describe_unlearned
from memjax.settings.overrides import UsageError


def check_probe(config: Config) -> None:
    """Raises `UsageError` where `--probe` does not fit the config of a run, which needs tasks with classes, before
    anything is read.

    Raises:
      UsageError: The run has a single task, its tasks have no classes, or one task of several is evaluated.
      ModuleNotFoundError: scikit-learn is not installed.
    """
    from memjax.lifelong.feature_separation import check_linear_probe
    from memjax.tasks import make_task

    task, allowed = make_task(config), "a run over tasks with classes"
    if config.lifelong is None:
        raise UsageError(f"--probe: given a run of one task, allowed: {allowed}")
    if not task.classifies:
        raise UsageError(f"--probe: given tasks of {type(task).__name__}, allowed: {allowed}")
    if config.evaluation.task:
        raise UsageError("--probe: given with --evaluation.task, allowed: one of the two; every task is probed")
    check_linear_probe()


def probe_stream(stream: Mapping[str, Any], loaded: Any) -> dict[str, Any]:
    """Trains a linear classifier for each task on the inputs of an opened run's head, and returns their accuracies and
    average. `stream` has the results of the tasks (`stream_facts`), which give their order.

    Args:
      stream: Results of the tasks (`stream_facts`).
      loaded: The opened run.

    Returns:
      `accuracies` in the order of the tasks, and their `average`.

    Raises:
      UsageError: The run has not finished its first task.
    """
    from memjax.lifelong.probe import probe_tasks

    if not stream:
        raise UsageError("--probe: given a run before the end of its first task, allowed: after it")
    by_task = probe_tasks(loaded.experiment, loaded.variables)
    accuracies = [by_task[name] for name in stream["tasks"]]
    return {"accuracies": accuracies, "average": statistics.fmean(accuracies)}


def describe_stream(facts: Mapping[str, Any]) -> str:
    """Formats the results of a run over tasks as text: a table of scores after each finished task, and summaries of it.

    Example:
      >>> facts = {"measure": "accuracy", "tasks": ["a", "b"], "num_tasks": 2, "scores": [[1.0, 0.0], [0.25, 0.75]]}
      >>> facts |= {"average": 0.5, "forgetting": 0.75, "probe": {"accuracies": [1.0, 0.5], "average": 0.75}}
      >>> facts |= {"largest_classes": [0.5, 0.8]}
      >>> facts |= {"kept_bytes": {"keys": 2048, "total": 2048}}
      >>> facts |= {"cost": {"examples_per_second": 1500.0, "seconds_per_test_example": 0.002, "adapts": True}}
      >>> print(describe_stream(facts))
      accuracy after  a       b
      a               1.0000
      b               0.2500  0.7500
      largest class   0.5000  0.8000
      linear probe    1.0000  0.5000
      b: 0.750, its largest class has 0.800; it was not learned
      average 0.5000, forgetting 0.7500
      linear probe on what the head reads: average 0.7500
      kept beside the model: keys 2,048, total 2,048 bytes
      training 1,500 examples/s, evaluation 2.000 ms an example with its adaptation
    """
    tasks, scores, probe = facts["tasks"], facts["scores"], facts.get("probe")
    show = lambda value: "" if value is None else f"{value:.4f}"
    is_at_once = len(scores) < facts["num_tasks"]
    names = ["all tasks"] if is_at_once else tasks[: len(scores)]
    table = [[f"{facts['measure']} after", *tasks]]
    for number, (name, row) in enumerate(zip(names, scores, strict=True), start=1):
        read = row if is_at_once else row[:number]
        table.append([name, *map(show, read), *[""] * (len(tasks) - len(read))])
    shares = facts.get("largest_classes")
    table += [["largest class", *map(show, shares)]] if shares else []
    table += [["linear probe", *map(show, probe["accuracies"])]] if probe else []
    said = {name: value for name, value in facts.items() if isinstance(value, float)}
    words = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in said.items())
    probed = f"linear probe on what the head reads: average {probe['average']:.4f}" if probe else ""
    for name, values in facts.get("after_each", {}).items():
        table.append([f"{name}, after each", *map(show, (values + [None] * len(tasks))[: len(tasks)])])
    sizes = ", ".join(f"{kind} {count:,}" for kind, count in facts.get("kept_bytes", {}).items() if count)
    stored = f"kept beside the model: {sizes} bytes" if sizes else ""
    lines = [*describe_unlearned(facts).values(), words, probed, stored, describe_cost(facts.get("cost", {}))]
    return "\n".join([*align(table), *filter(None, lines)])


def describe_cost(cost: Mapping[str, Any]) -> str:
    """Describes the speeds of training and evaluation, a mapping as from `stream_cost`, in one line of text. '' where
    it has none.

    Example:
      >>> describe_cost({"seconds_per_test_example": 0.0005, "adapts": False})
      'evaluation 0.500 ms an example'
    """
    names, parts = ("examples_per_second", "seconds_per_test_example"), list[str]()
    if names[0] in cost:
        parts.append(f"training {cost[names[0]]:,.0f} examples/s")
    if names[1] in cost:
        adapted = " with its adaptation" if cost["adapts"] else ""
        parts.append(f"evaluation {1000 * cost[names[1]]:,.3f} ms an example{adapted}")
    return ", ".join(parts)
