"""Measures why a small encoder does not learn the second of two small tasks: moments, spare classes or passes.

python -m tools.measurements.second_tasks DATA --out DIR            # may be interrupted, and goes on
python -m tools.measurements.second_tasks DATA --out DIR --record   # adds what DIR has to the measurements

DATA is the folder of data sets that `tools.measurements.vectors` names.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from memjax.cli.own_tasks import tasks_config
from memjax.config import Config
from memjax.data.source_readers import read_classified_texts
from memjax.lifelong import factory
from memjax.lifelong.kept_examples import with_fresh_optimizer
from memjax.lifelong.method_interface import Method, TaskInfo, phase_of
from tools.measurements.few_texts import measure_stream
from tools.measurements.vectors import FIVE
from tools.results import pages
from tools.results.ledger import measured

ROWS = {"train": 512, "validation": 64, "test": 256}
"""Number of rows of a task in each split. Both classes have equally many."""
TEXTS = {"ag_news": (0, 1, 2, 3), "dbpedia": (0, 1, 2, 3), "amazon": (0, 4, 1, 3)}
"""Name of a data set -> places of classes among its sorted labels: two of the first task, two of the second."""
PASSES, LENGTH, ENTRIES = (4, 12), 64, 2048
"""Numbers of passes over a task to compare, number of tokens of a text, and number of entries of the tokenizer."""
ROOM = 33
"""Number of classes of the larger head. The smaller head has only the classes of the two tasks."""


class Cell(NamedTuple):
    """The settings of one training, a cell of the table.

    Attributes:
      texts: Name of the data set, a key of `TEXTS`.
      passes: Passes over each task.
      moments: Moments of the optimiser at the border: "carried" over from the first task, or "new".
      room: Number of classes of the head.
      alone: Whether the second task is learned without the first.
    """

    texts: str
    passes: int
    moments: str = "carried"
    room: int = 4
    alone: bool = False

    @property
    def name(self) -> str:
        """Name of the file and the run of the cell."""
        return "_".join(map(str, (*self[:4], "alone" if self.alone else "stream")))


def cells() -> list[Cell]:
    """Returns all cells, one data set after the other. The second tasks alone come first in each."""
    return [
        cell
        for texts in TEXTS
        for cell in (
            *(Cell(texts, passes, alone=True) for passes in PASSES),
            *(Cell(texts, *rest) for rest in itertools.product(PASSES, ("carried", "new"), (4, ROOM))),
        )
    ]


def write_tasks(texts: str, data: Path, folder: Path) -> list[str]:
    """Writes the files of both tasks of a data set, where they are missing, and returns the folders of the tasks."""
    tasks = [folder / f"{texts}_{name}" for name in ("first", "second")]
    if not all((task / "test.csv").exists() for task in tasks):
        source = dataclasses.replace(FIVE[texts], path=str(data), equality="letters_and_digits")
        splits = read_classified_texts(source).texts
        labels = sorted({example.label for example in splits["train"]})
        chosen = [labels[place] for place in TEXTS[texts]]
        for task, pair in zip(tasks, (chosen[:2], chosen[2:]), strict=True):
            task.mkdir(parents=True, exist_ok=True)
            for split, size in ROWS.items():
                of_class = {label: [e.texts[0] for e in splits[split] if e.label == label] for label in pair}
                rows = [(f"class {label}", text) for label in pair for text in of_class[label][: size // 2]]
                random.Random(0).shuffle(rows)
                with (task / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
                    csv.writer(file).writerows(rows)
    return [str(task) for task in tasks]


def config_of(cell: Cell, tasks: list[str], folder: Path) -> Config:
    """Returns the configuration of a cell: a small encoder, with replay of everything."""
    config, _ = tasks_config(tasks[1:] if cell.alone else tasks, "lifelong_text", "small_mixed")
    assert config.lifelong is not None
    config.lifelong.epochs, config.task.num_classes = cell.passes, cell.room
    config.data.segment_length, config.data.tokenizer.vocab_size = LENGTH, ENTRIES
    config.data.cache_dir, config.training.log_every = "", 0
    config.name, config.workdir = cell.name, str(folder / "runs")
    return config


def measure(cell: Cell, data: Path, folder: Path) -> dict[str, Any]:
    """Trains a cell, and returns its accuracies and seconds.

    Cells with new moments start the optimiser anew before the second task.
    """
    config, make = config_of(cell, write_tasks(cell.texts, data, folder), folder), factory.make_method
    shutil.rmtree(Path(config.workdir, config.name), ignore_errors=True)

    def make_with_new_moments(settings: Any, boundaries: str) -> Method:
        def before(task: TaskInfo) -> Any:
            return phase_of(lambda state, context: with_fresh_optimizer(state, task)) if task.index else phase_of()

        return make(settings, boundaries)._replace(before=before)

    replaced = make_with_new_moments if cell.moments == "new" else make
    with mock.patch.object(factory, "make_method", replaced):
        figures = measure_stream(config)
    *first, second = figures["final"].values()
    learned = figures["learned"][f"{cell.texts}_second"]
    return {"first": first[0] if first else None, "second": second, "learned": learned, "seconds": figures["seconds"]}


def about() -> str:
    """Returns the text above the table: what was measured, and how."""
    size, (few, many) = ROWS["train"], PASSES
    return (
        f"Two tasks of two classes, {size} rows each, and an encoder of two layers with replay of everything "
        f"(`small_mixed`), {size // 32 * few} or {size // 32 * many} updates a task. Accuracy of the second task in "
        f"percent right after it was learned, among the classes of both, on {ROWS['test']} texts; one seed, so that "
        "differences under 6 points say nothing. Alone: the second task without the first. Cells that are not yet "
        "measured are empty."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.second_tasks", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets a file for each cell")
    parser.add_argument("--texts", nargs="*", choices=list(TEXTS), default=list(TEXTS), help="sets; default: all")
    parser.add_argument("--record", action="store_true", help="only add what the folder has to the measurements")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    files = {cell: args.out / f"{cell.name}.json" for cell in cells() if cell.texts in args.texts}
    if args.record:
        records = [json.loads(file.read_text()) for file in files.values() if file.exists()]
        command = "python -m tools.measurements.second_tasks DATA --out DIR"
        title = "The second of two small tasks: moments, room in the head, passes"
        pages.record(
            measured("second_tasks", "pairs", {"records": records}, command=command, title=title, about=about())
        )
        return 0
    for cell, file in files.items():
        if not file.exists():
            file.write_text(json.dumps({**cell._asdict(), **measure(cell, args.data, args.out)}))
            print(file.read_text(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
