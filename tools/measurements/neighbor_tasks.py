"""Counts the tasks that the neighbours of each task's test texts come from, in the memory of a run.

python -m tools.measurements.neighbor_tasks RUN --name "diverse"      # a finished run of MbPA++ or Meta-MbPA
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from memjax.lifelong import load_run
from memjax.lifelong.neighborhoods import neighborhoods, parts_in_order, task_counts, task_shares
from memjax.training.run_versions import versions
from memjax.training.runs import load_config
from tools.measurements.coarse import with_adaptation
from tools.results import pages
from tools.results.ledger import measured


def measure(run: Path) -> dict[str, Any]:
    """Returns the shares of tasks among the neighbours of each task's test texts, in the order of the stream."""
    config = load_config(run)
    assert config.lifelong is not None
    loaded = load_run(run, with_adaptation(config, "each", adaptation_steps=1))
    names = [task.name for task in config.lifelong.ordered_tasks]
    texts = [
        (task_experiment, task_experiment.documents("test"))
        for task_experiment in map(loaded.experiment.of_task, names)
    ]
    neighbors = neighborhoods(loaded.experiment, loaded.variables, texts)
    firsts = [part.first for part in parts_in_order(loaded.experiment)]
    shares = task_shares(np.stack([task_counts(task_neighbors.numbers, firsts) for task_neighbors in neighbors]))
    used = {int(number) for task_neighbors in neighbors for number in task_neighbors.numbers.ravel() if number >= 0}
    return {"versions": versions(), "tasks": names, "shares": shares.tolist(), "used": len(used)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of a finished run of MbPA++ or Meta-MbPA")
    parser.add_argument("--name", required=True, help="how its rows were chosen, for the table")
    options = parser.parse_args()
    facts = measure(options.run)
    command = f"python -m tools.measurements.neighbor_tasks RUN --name {options.name!r}"
    about = f"{facts['used']:,} stored texts are a neighbour of one or more test texts."
    title = f"Where neighbours come from: {options.name}"
    pages.record(measured("neighbor_tasks", options.name, facts, command=command, title=title, about=about))


if __name__ == "__main__":
    main()
