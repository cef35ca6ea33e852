"""Measures the distances between features of relations after each task of a run: within a relation and between two.

python -m tools.measurements.relation_spread RUN --name "EMAR" --to spread.npz

RUN is the directory of a run of `configs/lifelong_relations.py`, with `--training.keep-checkpoints 999`, so that the
checkpoint of every stage stays. For EA-EMR the features go through the map that is fitted after each task, as in
scoring. The arrays of every task go to a file: `within` `[tasks, relations]`, `between`
`[tasks, relations, relations]`, `relations` `[relations]`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from memjax.lifelong import load_run
from memjax.lifelong.class_features import align_features, read_features
from memjax.lifelong.feature_separation import ClassDistances, class_distances
from memjax.lifelong.looks import task_ends
from memjax.training.run_versions import versions
from memjax.training.runs import load_config
from tools.results import pages
from tools.results.ledger import measured


def measure(run: Path) -> tuple[dict[str, Any], list[ClassDistances], np.ndarray]:
    """Returns the facts, the distances after every task, and the ids of the relations, those of the test split.

    Args:
      run: Run directory with a checkpoint of every stage.

    Raises:
      ValueError: The end of a task has no checkpoint.
    """
    distances, ends, stream = list[ClassDistances](), task_ends(run), load_config(run).lifelong
    if len(ends) < len(stream.tasks if stream else ()):
        raise ValueError(
            f"{run}: checkpoints of the ends of {len(ends)} tasks, allowed: a run with keep-checkpoints 999"
        )
    relations = np.zeros(0, np.int32)
    for step in ends.values():
        loaded = load_run(run, step=step)
        read = read_features(loaded.experiment, loaded.variables, loaded.experiment.documents("test"))
        distances.append(class_distances(align_features(loaded.variables, read.features), read.labels))
        relations = np.unique(read.labels)
    means = [task_distances.means() for task_distances in distances]
    return {"versions": versions(), "tasks": means, "relations": len(relations)}, distances, relations


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of a run with a checkpoint of every stage")
    parser.add_argument("--name", required=True, help="of the method, for the table")
    parser.add_argument("--to", type=Path, required=True, help="file of the arrays, .npz")
    options = parser.parse_args()
    facts, distances, relations = measure(options.run)
    arrays = {
        name: np.stack([getattr(task_distances, name) for task_distances in distances])
        for name in ("within", "between")
    }
    np.savez_compressed(options.to, allow_pickle=False, relations=relations, **arrays)
    command = f"python -m tools.measurements.relation_spread RUN --name {options.name!r} --to FILE"
    about = f"Test sentences of {facts['relations']} relations, those of tasks to come included."
    title = f"Spread of what is read: {options.name}"
    pages.record(measured("relation_spread", options.name, facts, command=command, title=title, about=about))


if __name__ == "__main__":
    main()
