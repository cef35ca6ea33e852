"""What the tables of kNN-LM share.

Everything expensive is made once and kept in a folder: stores (a build goes on after an interruption), indices, and the
neighbours of every scored token. The rest is arithmetic on them. Weights and temperatures are tuned on validation; test
is read off once.
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


def without(found: StoreNeighbors, token: int) -> StoreNeighbors:
    """Without the targets that are this token."""
    chosen = found.targets.tokens != token
    targets = ScoredTargets(*(array[chosen] for array in _targets(found.targets)))
    return StoreNeighbors(targets, CachedNeighbors(*(array[chosen] for array in _neighbors(found.neighbors))))


def parse(module: str, description: str | None, *more: tuple[str, dict[str, Any]]) -> tuple[Any, Any]:
    """The options of a table, and the configuration of its run with what the command line changes.

    Args:
      module: last part of its name.
      description: its docstring.
      *more: further arguments of its parser, `(name, arguments of add_argument)`.
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
    """A run as a source of keys and queries."""
    return make_key_extractor(load_run(run, config), tap)


def all_tokens(documents: Documents) -> np.ndarray:
    """The tokens of a split one after the other."""
    return np.concatenate([np.asarray(documents[i]) for i in range(len(documents))])


def scann_index(store: Store, metric: Metric = "squared_l2", *, exact_scores: bool = True) -> Index:
    """Its ScaNN index, built where there is none yet."""
    try:
        return open_index(store, "scann", metric=metric, exact_scores=exact_scores)
    except ValueError:
        build_scann(store, metric=metric)
        return open_index(store, "scann", metric=metric, exact_scores=exact_scores)


def first_entries(store: Store, path: Path, count: int) -> Store:
    """A store of the first entries of another: the beginnings of all rows that were read side by side."""
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
    """Every scored token of a split and its neighbours, searched once and kept.

    Args:
      source: whose evaluation reads the split.
      store: searched in.
      index: of the store.
      split: of the source's data.
      folder: where the neighbours are kept.
      name: of the index, in the name of the file.
      num_neighbors: of each token.
    """
    evaluator = source.evaluator(split)
    scored = f"_first{evaluator.max_segments}" if evaluator.max_segments else ""
    text = getattr(source.run.experiment.documents(split), "fingerprint", "")
    file = folder / f"{split}{scored}_{text}_{name}_{store.fingerprint}_{num_neighbors}.npz"
    if not file.exists():
        print(f"search {file.stem}", file=sys.stderr, flush=True)
        found = neighbors_in_store(source, store, index, evaluator, num_neighbors)[1]
        folder.mkdir(parents=True, exist_ok=True)
        save(file, found)
    return load(file)


def save(file: Path, found: StoreNeighbors) -> None:
    """Writes what was found, whole or not at all."""
    partial = file.with_name(f"partial_{file.name}")
    arrays = dict(zip(("numbers", "tokens", "log_probs"), _targets(found.targets), strict=True))
    arrays |= dict(zip(("distances", "values", "ids"), _neighbors(found.neighbors), strict=True))
    np.savez(partial, **arrays)  # type: ignore[arg-type]
    partial.replace(file)


def load(file: Path) -> StoreNeighbors:
    """Reads what `save` has written."""
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
    """The best setting on validation, and what it gives on both splits in nats per token."""
    best = tune_interpolation(validation.targets, validation.neighbors, weights=weights, temperatures=temperatures)
    row = {"weight": best.interpolation_weight, "temperature": best.temperature}
    return {**row, "validation": float(best.nats_per_token.min()), "test": score(test, row)}


def score(found: StoreNeighbors, row: Mapping[str, Any]) -> float:
    """Nats per token with the weight and the temperature of a row."""
    total = score_mixture(found.targets, found.neighbors, row["weight"], row["temperature"])[0]
    return total.nats / total.targets


def base(found: Mapping[str, StoreNeighbors]) -> dict[str, float]:
    """Nats per token of the model alone, by split."""
    return {split: -float(one.targets.log_probs.mean(dtype=np.float64)) for split, one in found.items()}


def facts_of(
    found: Mapping[str, StoreNeighbors], rows: Sequence[Mapping[str, Any]], protocol: Mapping[str, Any]
) -> dict[str, Any]:
    """The numbers of a table: what the model alone says of the targets that were found, and the rows."""
    targets = {split: len(one.targets) for split, one in found.items()}
    return {"base": base(found), "targets": targets, "rows": rows, "protocol": protocol}


def protocol_text(facts: Mapping[str, Any], config: Any) -> str:
    """The end of a sentence: how much of the splits was read, and how."""
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
      kind: of the measurement, the module that was run.
      facts: every number, as JSON.
      title: of the table.
      text: what was measured and how.
      runs: directories of further runs than the one of the command line.
      book: the committed one by default.
    """
    module = "" if kind == "knn_lm" else f".{kind}"
    known = {"python": platform.python_version(), "versions": versions()}
    known["runs"] = [Path(run).name for run in (sys.argv[1], *runs)]
    command = f"python -m tools.measurements.knn_lm{module} RUN {' '.join(_arguments())}".strip()
    name = Path(sys.argv[1]).name
    pages.record(measured(kind, name, {**facts, **known}, command=command, title=title, about=text), book)


def _arguments() -> list[str]:
    """Of the command line, without the run and with names for what lies elsewhere for everybody."""
    given = sys.argv[1:]
    kept: list[str] = []
    for before, argument in zip(["", *given], given, strict=False):
        if argument == "--workdir" or before == "--workdir" or argument == given[0]:
            continue
        kept.append(Path(argument).name if argument.startswith("/") else argument)
    return kept


def _targets(targets: ScoredTargets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return targets.numbers, targets.tokens, targets.log_probs


def _neighbors(neighbors: CachedNeighbors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return neighbors.distances, neighbors.values, neighbors.ids
