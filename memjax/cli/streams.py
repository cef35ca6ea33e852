"""What a run over several tasks has come to, for `memjax eval` and `memjax compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memjax.config import Config
from memjax.console import align

MEASURES = ("accuracy", "nats_per_token")
"""what the matrix is of: the first that its evaluations have"""


def stream_facts(run: str, config: Config) -> dict[str, Any]:
    """The matrix of a run over tasks, and its summary; {} for other runs, and where no task is through.

    Returns:
      `measure`, `tasks` (names), `scores` (a row for each task that is through, a column for each task), what
      `memjax.lifelong.metrics.summary` says, and `kept_bytes`, what the method keeps beside the model, by kind; numbers
      that are not there are None.
    """
    from memjax.lifelong.metrics import kept_bytes, matrix_from_lines, summary
    from memjax.training import read_metrics
    from memjax.training.restoring import saved_shapes

    file = Path(run).expanduser() / "metrics.jsonl"
    if config.lifelong is None or not file.exists():
        return {}
    every = [line for line in read_metrics(file) if line["kind"] == "evaluation"]
    lines = [line for line in every if line.get("phase") == "after"]
    named = {line["name"]: line for line in lines if line.get("name")}
    task_of = {one.name: one.task for one in config.evaluations}
    order = [task.name for task in config.lifelong.in_order]
    names = sorted((name for name in named if task_of.get(name)), key=lambda name: order.index(task_of[name]))
    if not names:
        return {}
    measure = next(measure for measure in MEASURES if measure in named[names[0]])
    found = matrix_from_lines(every, measure, names)
    through = 1 + max(line.get("stage", 0) for line in lines)
    scores = found.scores[:through]
    at_once = through == 1 < len(names)
    said = {"average": float(scores[-1].mean())} if at_once else summary(found.scores, found.before)
    number = lambda value: None if math.isnan(value) else value
    rows = [[number(float(value)) for value in row] for row in scores]
    said = {name: number(value) for name, value in said.items()}
    said = {name: value for name, value in said.items() if value is not None}
    kept = {"kept_bytes": kept_bytes(saved_shapes(run))}
    return {"measure": measure, "tasks": names, "scores": rows, **said, **kept}


def describe_stream(facts: Mapping[str, Any]) -> str:
    """The matrix, a line for each task that is through, and its summary.

    Example:
      >>> facts = {"measure": "accuracy", "tasks": ["a", "b"], "scores": [[1.0, 0.0], [0.25, 0.75]]}
      >>> facts |= {"average": 0.5, "forgetting": 0.75, "kept_bytes": {"keys": 2048, "total": 2048}}
      >>> print(describe_stream(facts))
      accuracy after  a       b
      a               1.0000  0.0000
      b               0.2500  0.7500
      average 0.5000, forgetting 0.7500
      kept beside the model: keys 2,048, total 2,048 bytes
    """
    tasks, scores = facts["tasks"], facts["scores"]
    show = lambda value: "" if value is None else f"{value:.4f}"
    names = ["all tasks"] if len(scores) == 1 < len(tasks) else tasks[: len(scores)]
    table = [[f"{facts['measure']} after", *tasks]]
    table += [[name, *map(show, row)] for name, row in zip(names, scores, strict=True)]
    said = {name: value for name, value in facts.items() if isinstance(value, float)}
    words = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in said.items())
    kept = ", ".join(f"{kind} {count:,}" for kind, count in facts.get("kept_bytes", {}).items() if count)
    return "\n".join([*align(table), words, *([f"kept beside the model: {kept} bytes"] if kept else [])])
