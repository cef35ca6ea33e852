"""Where neighbours come from: the tasks of test texts against the tasks of their neighbours in the memory of a run.

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
from tools.measurements.coarse import answering
from tools.results import pages
from tools.results.ledger import measured


def measure(run: Path) -> dict[str, Any]:
    """Share of the neighbours of each task's test texts that are of each task, in the order of the stream."""
    config = load_config(run)
    assert config.lifelong is not None
    loaded = load_run(run, answering(config, "each", steps=1))
    names = [task.name for task in config.lifelong.ordered_tasks]
    asked = [(one, one.documents("test")) for one in map(loaded.experiment.of_task, names)]
    found = neighborhoods(loaded.experiment, loaded.variables, asked)
    firsts = [part.first for part in parts_in_order(loaded.experiment)]
    shares = task_shares(np.stack([task_counts(one.numbers, firsts) for one in found]))
    used = {int(number) for one in found for number in one.numbers.ravel() if number >= 0}
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
