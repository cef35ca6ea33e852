"""Compares streams of small tasks with TF-IDF and logistic regression on the texts of all tasks.

python -m tools.measurements.few_texts DATA --out DIR            # may be interrupted, and goes on
python -m tools.measurements.few_texts DATA --out DIR --rows bag --draws 3
python -m tools.measurements.few_texts DATA --out DIR --record   # adds what DIR has to the measurements

DATA is the folder of data sets that `tools.measurements.vectors` names. Each draw has other texts and another order.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax.config import Config, Replay, TaskData, TokenBag
from memjax.data.source_readers import read_classified_texts
from memjax.lifelong import train
from memjax.lifelong.orders import MBPA_ORDERS
from memjax.settings.overrides import load_config
from tools.measurements.vectors import FIVE, sources
from tools.results import pages
from tools.results.ledger import measured

TRAIN, TEST = 500, 400
"""Number of training texts of a task, and number of its validation and of its test texts."""
WORDS, PAIRS = "TF-IDF, words", "TF-IDF, words and pairs"
JOINT = {WORDS: (1, 1), PAIRS: (1, 2)}
"""Name of a row of scikit-learn -> smallest and largest length of its n-grams."""
STREAMS = ("bag", "bag_mixed", "bag_tenth", "bag_linear", "bag_multi_task", "small_mixed")
"""Rows that are streams: variants of `configs/lifelong_text.py`."""
INVERSE_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)
SMOOTHINGS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
CHOICE = "smoothing"
"""Name of the row that searches the smoothing, on the validation texts of the first draw."""


def sources_of(data: Path, draw: int) -> dict[str, Any]:
    """Returns the source of the texts of each task, by its name. The number of the draw is the seed of their choice."""
    return {
        name: dataclasses.replace(source, sampling_seed=draw)
        for name, source in sources("five", data, TRAIN, TEST).items()
    }


def measure_joint(data: Path, draw: int, ngrams: tuple[int, int]) -> dict[str, Any]:
    """Trains logistic regression on the TF-IDF of all tasks, and returns its accuracies and times.

    The penalty is chosen on validation texts.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    splits = {name: read_classified_texts(source).texts for name, source in sources_of(data, draw).items()}
    select = lambda split, name: ([e.texts[0] for e in splits[name][split]], [e.label for e in splits[name][split]])
    wall, cpu = time.perf_counter(), time.process_time()
    texts, labels = (sum((list(select("train", name)[part]) for name in splits), []) for part in (0, 1))
    vectorizer = TfidfVectorizer(ngram_range=ngrams)
    features = vectorizer.fit_transform(texts)
    read = {
        split: {name: (vectorizer.transform(select(split, name)[0]), select(split, name)[1]) for name in splits}
        for split in ("validation", "test")
    }

    def accuracies(model: Any, split: str) -> dict[str, float]:
        return {name: float(np.mean(model.predict(x) == np.array(y))) for name, (x, y) in read[split].items()}

    tried: dict[float, Any] = {}
    for inverse in INVERSE_PENALTIES:
        began = time.perf_counter(), time.process_time()
        model = LogisticRegression(C=inverse, max_iter=300, tol=1e-3).fit(features, labels)
        spent = {"seconds": time.perf_counter() - began[0], "cpu_seconds": time.process_time() - began[1]}
        tried[inverse] = float(np.mean([*accuracies(model, "validation").values()])), model, spent
    best = max(tried, key=lambda inverse: tried[inverse][0])
    final, fit = accuracies(tried[best][1], "test"), tried[best][2]
    search = sum(spent["cpu_seconds"] for _, _, spent in tried.values())
    return {
        "final": final,
        "stored": len(texts),
        "chosen": best,
        "validation": {str(inverse): score for inverse, (score, _, _) in tried.items()},
        # Of one fit with what is read of the texts; the search is said apart.
        "seconds": time.perf_counter()
        - wall
        - sum(spent["seconds"] for _, _, spent in tried.values())
        + fit["seconds"],
        "cpu_seconds": time.process_time() - cpu - search + fit["cpu_seconds"],
        "search_cpu_seconds": search,
    }


def config_of(variant: str, data: Path, draw: int, folder: Path) -> Config:
    """Returns the configuration of a variant for the texts and the order of tasks of a draw."""
    config, texts = load_config("lifelong_text", variant), sources_of(data, draw)
    order = MBPA_ORDERS[draw % len(MBPA_ORDERS)]
    stream = config.lifelong
    assert stream is not None
    tasks = tuple(TaskData(name=name, source=texts[name]) for name in order)
    config.lifelong = dataclasses.replace(stream, tasks=tasks, sources_dir="", vocabulary="tasks")
    config.task = dataclasses.replace(config.task, mask_unseen_classes=True)
    config.data = dataclasses.replace(config.data, source=texts[order[0]], seed=draw, cache_dir="")
    config.training = dataclasses.replace(config.training, seed=draw, log_every=0)
    config.name, config.workdir = f"{variant}_{draw}", str(folder / "runs")
    return config


def measure_stream(config: Config) -> dict[str, Any]:
    """Trains a stream, evaluates every task after each task, and returns the accuracies and times."""
    stream, accuracies = config.lifelong, dict[str, list[float]]()
    assert stream is not None
    wall, cpu = time.perf_counter(), time.process_time()

    def note(event: Any) -> None:
        if event.kind == "evaluation":
            accuracies.setdefault(event.values.get("name", ""), []).append(event.values["accuracy"])

    result = train(config, on_event=note)
    spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    shutil.rmtree(result.path, ignore_errors=True)
    names = [task.name for task in stream.tasks]
    learned = {name: accuracies[name][place] for place, name in enumerate(names) if place < len(accuracies[name])}
    method, total = stream.method, TRAIN * len(names)
    stored = min(method.memory.capacity, total) if isinstance(method, Replay) else total if method.joins else 0
    apart = {} if method.joins else {"learned": learned}
    return {"final": {name: accuracies[name][-1] for name in names}, "stored": stored, **apart, **spent}


def choose_smoothing(data: Path, folder: Path) -> dict[str, Any]:
    """Trains `bag` with each smoothing, with pairs of words and without, and returns accuracies on validation texts."""
    scores = {}
    for pairs, smoothing in itertools.product((False, True), SMOOTHINGS):
        config = config_of("bag", data, 0, folder)
        assert isinstance(config.model, TokenBag)
        config.model.smoothing, config.model.pairs, config.name = smoothing, pairs, f"{CHOICE}_{smoothing}_{pairs}"
        config.evaluation = dataclasses.replace(config.evaluation, split="validation")
        name = f"{smoothing} with pairs" if pairs else f"{smoothing}"
        scores[name] = float(np.mean([*measure_stream(config)["final"].values()]))
    return {"validation": scores}


def facts_of(folder: Path) -> dict[str, Any]:
    """Returns all numbers of the table, from the files of a folder."""
    read = lambda path: json.loads(path.read_text())
    records = [read(path) for path in sorted(folder.glob("*.json")) if not path.stem.startswith(CHOICE)]
    place = [*JOINT, *STREAMS].index
    records.sort(key=lambda record: (place(record["row"]), record["draw"]))
    choice = folder / f"{CHOICE}_0.json"
    known = {CHOICE: read(choice)["validation"]} if choice.exists() else {}
    return {"tasks": list(FIVE), "train": TRAIN, "test": TEST, **known, "records": records}


def about(facts: Mapping[str, Any]) -> str:
    """Returns the text above the table: what was measured, and how."""
    tried = facts.get(CHOICE, {})
    search = ", ".join(f"{value}: {100 * score:.1f}" for value, score in tried.items())
    chosen = f" Of naive Bayes on the validation texts of the first draw, by smoothing: {search}." if tried else ""
    return (
        f"{facts['train']} texts of each of {len(facts['tasks'])} sets to train on, {facts['test']} to test on; "
        "accuracy in percent, all classes of all sets in one head. Each draw has other texts and another order of the "
        "tasks. "
        "TF-IDF is scikit-learn's, with logistic regression on all texts at once, its penalty chosen on validation "
        "texts (seconds of one fit). The others are variants of `configs/lifelong_text.py`, as shipped; seconds with "
        f"the tokenizer, what is compiled, and every evaluation.{chosen}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.few_texts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets a file for each row and draw")
    parser.add_argument("--rows", nargs="*", default=[CHOICE, *JOINT, *STREAMS], metavar="ROW", help="default: all")
    parser.add_argument("--draws", type=int, default=3, help="draws of texts, each with an order of the tasks")
    parser.add_argument("--record", action="store_true", help="only add what the folder has to the measurements")
    args = parser.parse_args(arguments)
    if unknown := [row for row in args.rows if row not in (CHOICE, *JOINT, *STREAMS)]:
        parser.error(f"--rows: given {unknown[0]!r}, allowed: {', '.join((CHOICE, *JOINT, *STREAMS))}")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.record:
        facts, command = facts_of(args.out), "python -m tools.measurements.few_texts DATA --out DIR"
        title = f"Few texts: five sets, {TRAIN} texts each"
        pages.record(measured("few_texts", "five", facts, command=command, title=title, about=about(facts)))
        return 0
    for row in args.rows:
        for draw in range(1 if row == CHOICE else args.draws):
            file = args.out / f"{row.replace(', ', '_').replace(' ', '_')}_{draw}.json"
            if file.exists():
                continue
            figures = measure(row, args.data, draw, args.out)
            file.write_text(json.dumps({"row": row, "draw": draw, **figures}))
            print(row, draw, figures, flush=True)
    return 0


def measure(row: str, data: Path, draw: int, folder: Path) -> dict[str, Any]:
    """Measures one row of the table for one draw of texts, and returns its numbers."""
    if row == CHOICE:
        return choose_smoothing(data, folder)
    if row in JOINT:
        return measure_joint(data, draw, JOINT[row])
    return measure_stream(config_of(row, data, draw, folder))


if __name__ == "__main__":
    sys.exit(main())
