"""Compares exact search and ScaNN in the episodic memory of MbPA++ on the host: recall, accuracy, queries a second.

    python -m tools.measurements.episodes /tmp/episodes

A perceptron learns five tasks of 4,000 vectors one after the other, in one pass, and the memory stores all rows. The
same memory and parameters are then read with both indices, in alternation. The vectors are random: 33 classes in 384
dimensions.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from memjax.config import CachedFeatures, Config, EpisodicMemory, MbPA, TaskData
from memjax.data.example_batches import EXAMPLE
from memjax.data.vectors import write_features
from memjax.lifelong import load_run, train
from memjax.settings.overrides import load_config
from memjax.training.run_versions import versions
from memjax.typing import Batch
from tools.bench.harness import quartiles
from tools.results import pages
from tools.results.ledger import measured

CLASSES, DIM, INNER = 33, 384, 48
"""Number of classes, width of a vector, and number of dimensions in which the vectors of all classes spread."""
TASKS, SIZE, TESTS = 5, 4000, 200
"""Number of tasks, of training examples of each, and of its validation and of its test examples."""
NEIGHBORS, QUERIES, STEPS = 32, 1000, 30
INDICES = ("exact", "scann")


def make_data(folder: Path) -> list[Path]:
    """Writes a folder of random vectors for each task, and returns the folders.

    A vector is the centre of its class, with a spread in a space of few dimensions and a little noise.
    """
    rng = np.random.default_rng(0)
    centres, basis = rng.normal(size=(CLASSES, INNER)), rng.normal(size=(INNER, DIM)) / INNER**0.5

    def draw_examples(classes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.choice(classes, size)
        inner = centres[labels] + 1.2 * rng.normal(size=(size, INNER))
        vectors = inner @ basis + 0.1 * rng.normal(size=(size, DIM))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float32), labels.astype(np.int32)

    paths = [folder / f"task_{task}" for task in range(TASKS)]
    for path, classes in zip(paths, np.array_split(np.arange(CLASSES), TASKS), strict=True):
        splits = {"train": SIZE, "validation": TESTS, "test": TESTS}
        write_features(path, {name: draw_examples(classes, size) for name, size in splits.items()}, {"about": "drawn"})
    return paths


def config_of(folder: Path, paths: list[Path]) -> Config:
    """Returns the configuration of the stream of tasks, with a memory on the host that stores all rows."""
    config = load_config("lifelong_text", "mbpa_pp")
    sources = [CachedFeatures(path=str(path)) for path in paths]
    memory = EpisodicMemory(write_policy="all", capacity=TASKS * SIZE, storage="host")
    assert config.lifelong is not None and isinstance(config.lifelong.method, MbPA)
    method = dataclasses.replace(config.lifelong.method, memory=memory, num_neighbors=NEIGHBORS)
    tasks = tuple(TaskData(name=path.name, source=source) for path, source in zip(paths, sources, strict=True))
    lifelong = dataclasses.replace(config.lifelong, method=method, tasks=tasks)
    data = dataclasses.replace(config.data, source=sources[0])
    return dataclasses.replace(config, name="episodes", workdir=str(folder), data=data, lifelong=lifelong)


def with_index(config: Config, index: str, steps: int) -> Config:
    """Returns a configuration whose memory is searched with another index, 'exact' or 'scann'.

    `steps` is the number of steps of an adaptation. 0 for no adaptation and no search.
    """
    lifelong: Any = config.lifelong
    memory = dataclasses.replace(lifelong.method.memory, key_search=index)
    method = dataclasses.replace(lifelong.method, memory=memory, adaptation_steps=steps)
    return dataclasses.replace(config, lifelong=dataclasses.replace(lifelong, method=method))


def measure_time(action: Any) -> tuple[Any, float, float]:
    """Calls `action`, and returns its result, its seconds and its CPU seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = action()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Trains the run, measures both indices, and returns all numbers of the table."""
    paths = make_data(folder)
    plain = with_index(config_of(folder, paths), "exact", 0)  # training searches for nothing
    run = train(plain, on_event=lambda event: None)
    loaded = {index: load_run(run.path, with_index(plain, index, STEPS)) for index in INDICES}
    tests = [np.load(path / "test.npy") for path in paths]
    queries = np.concatenate(tests)[:QUERIES]
    ones = np.ones((len(queries), 1), np.float32)
    batch = Batch(queries, ones.astype(np.int32), queries == queries, ones, ones[:, 0] > 0)

    def search(index: str) -> Any:
        run_with_index = loaded[index]
        assert run_with_index.experiment.adapt_rows is not None
        support, _ = run_with_index.experiment.adapt_rows.retrieve_support(run_with_index.variables, batch)
        return np.asarray(support.extras[EXAMPLE])

    load, neighbors, first = os.getloadavg()[0], {}, {}
    costs: dict[str, list[tuple[float, float]]] = {index: [] for index in INDICES}
    for index in INDICES:
        neighbors[index], seconds, cpu = measure_time(functools.partial(search, index))
        first[index] = {"seconds": seconds, "cpu_seconds": cpu}  # ScaNN builds its index
    for _ in range(rounds):
        for index in INDICES:
            _, seconds, cpu = measure_time(functools.partial(search, index))
            costs[index].append((seconds, cpu))
    shared = [len(set(a) & set(b)) / NEIGHBORS for a, b in zip(neighbors["exact"], neighbors["scann"], strict=True)]
    rows = []
    for index in INDICES:
        run_with_index, accuracies = loaded[index], []
        for task in run_with_index.experiment.config.lifelong.tasks:  # type: ignore[union-attr]
            evaluation = dataclasses.replace(run_with_index.experiment.config.evaluation, task=task.name)
            accuracies.append(run_with_index.experiment.evaluate(run_with_index.variables, evaluation).accuracy)
        pace = quartiles([seconds for seconds, _ in costs[index]])
        rows.append(
            {
                "index": index,
                "recall": float(np.mean(shared)) if index == "scann" else 1.0,
                "accuracy": float(np.mean(accuracies)),
                "accuracies": accuracies,
                "queries_per_second": {name: QUERIES / value for name, value in pace.items()},
                "seconds": [seconds for seconds, _ in costs[index]],
                "cpu_seconds": [cpu for _, cpu in costs[index]],
                "first": first[index],
            }
        )
    without = load_run(run.path, plain)
    evaluations = [dataclasses.replace(plain.evaluation, task=path.name) for path in paths]
    plain_accuracy = [without.experiment.evaluate(without.variables, evaluation).accuracy for evaluation in evaluations]
    known = {"rows": TASKS * SIZE, "dim": DIM, "classes": CLASSES, "neighbors": NEIGHBORS, "queries": QUERIES}
    return {
        **known,
        "load": load,
        "versions": versions(),
        "steps": STEPS,
        "without": float(np.mean(plain_accuracy)),
        "indices": rows,
    }


def about(facts: dict[str, Any]) -> str:
    """Returns the text above the table: what was measured, and how."""
    return (
        f"{facts['rows']:,} rows of {facts['dim']} numbers with {facts['classes']} classes, drawn (a cloud a class in "
        f"{INNER} dimensions, projected, of length 1), learned as {TASKS} tasks one after the other in one pass, all "
        f"kept on the host. {facts['queries']:,} queries at a time, {facts['neighbors']} neighbours; recall: share of "
        "the exact neighbours that are found. Queries a second: search and reading of the rows, median of alternating "
        f"rounds by the clock, at a load of {facts['load']:.1f} (CPU seconds of all queries); first search: seconds, "
        "with what is compiled and built (CPU seconds). Accuracy: mean "
        f"over the test examples of the tasks, the head adapted in {facts['steps']} steps; without adaptation it is "
        f"{100 * facts['without']:.1f} %."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the vectors and the run")
    parser.add_argument("--rounds", type=int, default=8, help="measured searches of each index")
    options = parser.parse_args()
    facts = measure(options.folder, options.rounds)
    command, title = "python -m tools.measurements.episodes DIR", "Episodic memory on the host, exact and ScaNN"
    pages.record(measured("episodes", "host", facts, command=command, title=title, about=about(facts)))


if __name__ == "__main__":
    main()
