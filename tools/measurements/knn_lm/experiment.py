"""Functions that the tables of kNN-LM share: stores, indices, neighbours, tuning and the record of a table.

Everything expensive is made once and stored in a folder: stores, indices, and the neighbours of every scored token. An
interrupted build of a store goes on. The rest is arithmetic on them. Weights and temperatures are tuned on validation.
Test is read off once.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.cli.parser import EVALUATION_FIELDS
from memjax.data.documents import Documents
from memjax.datastore.index import Index, Metric
from memjax.datastore.opening import open_index
from memjax.datastore.scann import build_scann
from memjax.datastore.store import Store
from memjax.datastore.writer import ShardWriter, create_store, finish_store
from memjax.retrieval.interpolation import StoreNeighbors, neighbors_in_store
from memjax.retrieval.keys import TAP, KeyExtractor, make_key_extractor
from memjax.retrieval.tuning import (
    TEMPERATURES,
    WEIGHTS,
    CachedNeighbors,
    ScoredTargets,
    score_mixture,
    tune_interpolation,
)
from memjax.settings.overrides import apply_overrides
from memjax.training.loaded_runs import load_run
from memjax.training.run_versions import versions
from memjax.training.runs import load_config
from tools.results import pages
from tools.results.ledger import Book, measured

NEIGHBORS = 256
SPLITS = ("validation", "test")


def without(retrieval: StoreNeighbors, token: int) -> StoreNeighbors:
    """Returns targets and neighbours without the targets that are the token `token`."""
    chosen = retrieval.targets.tokens != token
    targets = ScoredTargets(*(array[chosen] for array in _targets(retrieval.targets)))
    return StoreNeighbors(targets, CachedNeighbors(*(array[chosen] for array in _neighbors(retrieval.neighbors))))


def parse(module: str, description: str | None, *more: tuple[str, dict[str, Any]]) -> tuple[Any, Any]:
    """Returns the options of a table, and the configuration of its run with the changes of the command line.

    Args:
      module: Last part of the module's name.
      description: Docstring of the module.
      *more: Further arguments of the parser, `(name, arguments of add_argument)`.
    """
    parser = argparse.ArgumentParser(prog=f"knn_lm.{module}", description=(description or "").splitlines()[0])
    parser.add_argument("run", help="run directory")
    parser.add_argument("--workdir", default="", help="stores and neighbours (default: RUN/datastore)")
    for name, arguments in more:
        parser.add_argument(name, **arguments)
    options, rest = parser.parse_known_args()
    options.workdir = Path(options.workdir or f"{options.run}/datastore")
    return options, apply_overrides(load_config(options.run), rest, prog="knn_lm", only=EVALUATION_FIELDS)


def open_source(run: str, config: Any, tap: str = TAP) -> KeyExtractor:
    """Opens a run as a source of keys and queries."""
    return make_key_extractor(load_run(run, config), tap)


def all_tokens(documents: Documents) -> np.ndarray:
    """Returns the tokens of all documents of a split, one after the other."""
    return np.concatenate([np.asarray(documents[i]) for i in range(len(documents))])


def scann_index(store: Store, metric: Metric = "squared_l2", *, exact_scores: bool = True) -> Index:
    """Opens the ScaNN index of a store, and builds it first where there is none yet."""
    try:
        return open_index(store, "scann", metric=metric, exact_scores=exact_scores)
    except ValueError:
        build_scann(store, metric=metric)
        return open_index(store, "scann", metric=metric, exact_scores=exact_scores)


def first_entries(store: Store, path: Path, count: int) -> Store:
    """Writes a store of the first entries of another store: the beginnings of all rows that were read side by side."""
    create_store(path, dataclasses.replace(store.header, num_shards=1))
    with ShardWriter(path) as writer:
        if not writer.complete:
            if writer.entries:
                raise ValueError(f"path: {path} is an unfinished copy; delete it")
            for block in store.blocks(last=count):
                writer.append(block.keys, block.values)
            writer.finish()
    return finish_store(path)


def find(
    source: KeyExtractor,
    store: Store,
    index: Index,
    split: str,
    folder: Path,
    *,
    name: str = "scann",
    num_neighbors: int = NEIGHBORS,
) -> StoreNeighbors:
    """Returns every scored token of a split with its neighbours, which are searched once and stored in a file.

    Args:
      source: Run whose evaluation reads the split.
      store: Store to search.
      index: Index of the store.
      split: Split of the source's data.
      folder: Folder that stores the neighbours.
      name: Name of the index in the name of the file.
      num_neighbors: Number of neighbours of each token.
    """
    evaluator = source.evaluator(split)
    scored = f"_first{evaluator.max_segments}" if evaluator.max_segments else ""
    text = getattr(source.run.experiment.documents(split), "fingerprint", "")
    file = folder / f"{split}{scored}_{text}_{name}_{store.fingerprint}_{num_neighbors}.npz"
    if not file.exists():
        print(f"search {file.stem}", file=sys.stderr, flush=True)
        retrieval = neighbors_in_store(source, store, index, evaluator, num_neighbors)[1]
        folder.mkdir(parents=True, exist_ok=True)
        save(file, retrieval)
    return load(file)


def save(file: Path, retrieval: StoreNeighbors) -> None:
    """Writes targets and neighbours to a file, which is complete or not there."""
    partial = file.with_name(f"partial_{file.name}")
    arrays = dict(zip(("numbers", "tokens", "log_probs"), _targets(retrieval.targets), strict=True))
    arrays |= dict(zip(("distances", "values", "ids"), _neighbors(retrieval.neighbors), strict=True))
    np.savez(partial, **arrays)  # type: ignore[arg-type]
    partial.replace(file)


def load(file: Path) -> StoreNeighbors:
    """Reads targets and neighbours from a file of `save`."""
    with np.load(file) as arrays:
        return StoreNeighbors(
            ScoredTargets(*(arrays[name] for name in ("numbers", "tokens", "log_probs"))),
            CachedNeighbors(*(arrays[name] for name in ("distances", "values", "ids"))),
        )


def tuned(
    validation: StoreNeighbors,
    test: StoreNeighbors,
    *,
    weights: Sequence[float] = WEIGHTS,
    temperatures: Sequence[float] = TEMPERATURES,
) -> dict[str, float]:
    """Tunes weight and temperature on validation, and returns them with the nats per token of both splits."""
    best = tune_interpolation(validation.targets, validation.neighbors, weights=weights, temperatures=temperatures)
    row = {"weight": best.interpolation_weight, "temperature": best.temperature}
    return {**row, "validation": float(best.nats_per_token.min()), "test": score(test, row)}


def score(retrieval: StoreNeighbors, row: Mapping[str, Any]) -> float:
    """Returns the nats per token with the weight and the temperature of a row."""
    total = score_mixture(retrieval.targets, retrieval.neighbors, row["weight"], row["temperature"])[0]
    return total.nats / total.targets


def base(retrievals: Mapping[str, StoreNeighbors]) -> dict[str, float]:
    """Returns the nats per token of the model alone, by split."""
    return {
        split: -float(retrieval.targets.log_probs.mean(dtype=np.float64)) for split, retrieval in retrievals.items()
    }


def facts_of(
    retrievals: Mapping[str, StoreNeighbors], rows: Sequence[Mapping[str, Any]], protocol: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the numbers of a table: those of the model alone, the numbers of targets, the rows and the protocol."""
    targets = {split: len(retrieval.targets) for split, retrieval in retrievals.items()}
    return {"base": base(retrievals), "targets": targets, "rows": rows, "protocol": protocol}


def protocol_text(facts: Mapping[str, Any], config: Any) -> str:
    """Returns the end of a sentence that says how weights were tuned, and how much of the splits was read."""
    first, protocol, targets = config.evaluation.max_segments, facts["protocol"], facts["targets"]
    part = f", the first {first} segments of each" if first else ""
    return (
        f"weight and temperature tuned on validation, test read off once. Protocol: {protocol['documents']}, "
        f"{config.evaluation.batch_size} rows{part}, segments of {protocol['segment_length']}; perplexity per token of "
        f"{targets['validation']:,} validation and {targets['test']:,} test tokens."
    )


def record(
    kind: str, facts: Mapping[str, Any], title: str, text: str, runs: Sequence[str] = (), book: Book | None = None
) -> None:
    """Adds a table's numbers to the measurements, and writes its page.

    Args:
      kind: Kind of the measurement, which is the name of the module that was run.
      facts: All numbers of the table, as JSON.
      title: Title of the table.
      text: Text above the table, which says what was measured and how.
      runs: Directories of further runs beside the run of the command line.
      book: Ledger of the measurements. None for the committed one.
    """
    module = "" if kind == "knn_lm" else f".{kind}"
    known = {"python": platform.python_version(), "versions": versions()}
    known["runs"] = [Path(run).name for run in (sys.argv[1], *runs)]
    command = f"python -m tools.measurements.knn_lm{module} RUN {' '.join(_arguments())}".strip()
    name = Path(sys.argv[1]).name
    pages.record(measured(kind, name, {**facts, **known}, command=command, title=title, about=text), book)


def _arguments() -> list[str]:
    """Returns the arguments of the command line, without the run and `--workdir`. Absolute paths become their names."""
    command_line = sys.argv[1:]
    arguments: list[str] = []
    for before, argument in zip(["", *command_line], command_line, strict=False):
        if argument == "--workdir" or before == "--workdir" or argument == command_line[0]:
            continue
        arguments.append(Path(argument).name if argument.startswith("/") else argument)
    return arguments


def _targets(targets: ScoredTargets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return targets.numbers, targets.tokens, targets.log_probs


def _neighbors(neighbors: CachedNeighbors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return neighbors.distances, neighbors.values, neighbors.ids
