"""Results of a run over tasks: the score of every task after every task, their average, and forgetting.

They are computed from the lines of the run's log. A run writes them to `finished.json`, and all commands show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NATS = "nats_per_token"
"""Name of the only score of a matrix of which less is better."""

LARGEST_CLASS = "largest_class"
"""Name of the share of the most frequent class among the targets of an evaluation. In percent beside a `score`."""


def summarize_stream(task: Any, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Computes the results of a run over tasks from the lines of its log, as a dict of JSON values: the matrix of
    scores, their average and forgetting. {} before the first task is finished. `task` is the `Task` of the run.

    Args:
      task: Task of the run (`memjax.tasks.make_task`), whose configuration has an evaluation for each task of the
        stream.
      lines: Lines of the run's `metrics.jsonl`.

    Returns:
      {} for runs without tasks, and before the first task is finished. Otherwise a dict with these entries, in which
      unknown numbers are None:
      `measure`: name of the score. `tasks`: names of the tasks in the order of learning. `num_tasks`: number of tasks
      that have been learned. `scores`: a row after each learned task, with a column for each task. A run that learns
      all tasks at once has one row. The summary scores of `memjax.lifelong.metrics.summary`, or of
      `perplexity_summary` for nats, over the tasks that have been learned, and the means over them of the task's other
      scores. `largest_classes`: share of the most frequent class of each task, if the tasks have classes,
      in percent beside a `score`.

    Raises:
      ValueError: The evaluations of the tasks have none of the scores that the task of the run names.
    """
    # Commands that show results import this module, and JAX only when they compute them.
    from memjax.lifelong.method_interface import learns_all_at_once
    from memjax.lifelong.metrics import matrix_from_lines, perplexity_summary, summary

    config, evaluations = task.config, [line for line in lines if line["kind"] == "evaluation"]
    if config.lifelong is None:
        return {}
    newest = {line["name"]: line for line in evaluations if line.get("phase") == "after" and line.get("name")}
    task_of = {evaluation.name: evaluation.task for evaluation in config.evaluations}
    order = [part.name for part in config.lifelong.ordered_tasks]
    names = sorted((name for name in newest if task_of.get(name)), key=lambda name: order.index(task_of[name]))
    if not names:
        return {}
    measure = next((measure for measure in task.matrix_metrics if measure in newest[names[0]]), "")
    if not measure:
        raise ValueError(f"{names[0]}: given none of {', '.join(task.matrix_metrics)}, allowed: one of them")
    stages = {
        line.get("stage", 0) for line in evaluations if line.get("phase") == "after" and line.get("name") in names
    }
    matrix, rows = matrix_from_lines(evaluations, measure, names), len(stages)
    learned = len(names) if learns_all_at_once(config.lifelong) else rows
    square = slice(learned)
    scores = matrix.scores[:rows]
    if rows < learned:
        summed = {"average": float(scores[-1].mean())}
    elif measure == NATS:
        summed = perplexity_summary(scores[:, square])
    else:
        summed = summary(scores[:, square], matrix.before[square])
    for name in task.extra_metrics:
        others = matrix_from_lines(evaluations, name, names).scores[rows - 1, square]
        summed[name] = float(others.mean())
    facts = {"measure": measure, "tasks": names, "num_tasks": learned}
    facts["scores"] = [[_known(float(score)) for score in row] for row in scores]
    facts |= {name: score + 0.0 for name, score in summed.items() if not math.isnan(score)}  # no -0.0
    shares = [newest[name].get(LARGEST_CLASS) for name in names]
    return facts | ({"largest_classes": shares} if any(share is not None for share in shares) else {})


def describe_result(facts: Mapping[str, Any]) -> str:
    """Describes the results of a run over tasks, as `summarize_stream` returns them, in one line of text: the average,
    the number of tasks, and forgetting.

    Example:
      >>> facts = {"measure": "accuracy", "tasks": ["a", "b", "c"], "num_tasks": 2, "average": 0.5, "forgetting": 0.25}
      >>> describe_result(facts)
      'average accuracy 0.5000 over 2 of 3 tasks, forgetting 0.2500'
    """
    total, learned = len(facts["tasks"]), facts["num_tasks"]
    count = f"{total} task{'' if total == 1 else 's'}"
    over = f"over {count}" if learned == total else f"over {learned} of {count}"
    average = f" {facts['average']:.4f}" if facts.get("average") is not None else " unknown"
    names = ("forgetting", "average_perplexity", "increased_perplexity")
    others = [f"{name.replace('_', ' ')} {facts[name]:.4f}" for name in names if facts.get(name) is not None]
    return ", ".join([f"average {facts['measure'].replace('_', ' ')}{average} {over}", *others])


def describe_unlearned(facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns a line for each task, by its name, whose accuracy or score right after it was learned is not above that
    of always giving its largest class. `facts` are those of `summarize_stream`.

    Example:
      >>> facts = {"measure": "accuracy", "tasks": ["a", "b"], "num_tasks": 2, "scores": [[0.75, 0], [0.25, 0.451]]}
      >>> describe_unlearned({**facts, "largest_classes": [0.5, 0.549]})
      {'b': 'b: 0.451, its largest class has 0.549; it was not learned'}
    """
    lines, shares, best = {}, facts.get("largest_classes", ()), 1 if facts["measure"] == "accuracy" else 100
    for number, (name, share) in enumerate(zip(facts["tasks"][: facts["num_tasks"]], shares, strict=False)):
        score = facts["scores"][min(number, len(facts["scores"]) - 1)][number]
        if None not in (score, share) and score <= share < best:
            lines[name] = f"{name}: {score:.3f}, its largest class has {share:.3f}; it was not learned"
    return lines


def summarize_log(task: Any, lines: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Returns the results of a run over tasks (`summarize_stream`) and texts that describe them: one for all, and a
    further one if the task that was learned last was not learned. Both are empty before the first task is finished.

    Args:
      task: Task of the run (`memjax.tasks.make_task`).
      lines: Lines of the run's `metrics.jsonl`.
    """
    facts = summarize_stream(task, lines)
    if not facts:
        return {}, []
    is_one_by_one, learned = len(facts["scores"]) == facts["num_tasks"], facts["tasks"][: facts["num_tasks"]]
    newest, unlearned = learned[-1:] if is_one_by_one else learned, describe_unlearned(facts)
    return facts, [describe_result(facts), *(unlearned[name] for name in newest if name in unlearned)]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
