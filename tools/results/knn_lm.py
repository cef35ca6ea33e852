"""kNN-LM beside its base model: one table of a trained run, tuned on validation, read off on test.

    memjax train --config knn_lm_wikitext --data.source.path DIR
    python -m tools.results.knn_lm RUN --data.source.path DIR

Writes `tools/results/knn_lm/NAME.json` and `NAME.md`. The store of the training split is built once (and goes on after
an interruption), neighbours of validation and test are searched once and kept; everything else is arithmetic on them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memjax.cli import EVALUATION_FIELDS
from memjax.datastore.index import open_index
from memjax.datastore.scann import build_scann
from memjax.datastore.store import Store
from memjax.datastore.verification import recall
from memjax.overrides import apply_overrides
from memjax.training.datastores import build_datastore
from memjax.training.experiment import load_run
from memjax.training.keys import TAP, KeySource, make_key_source
from memjax.training.neighbors import CachedNeighbors, Targets, score_mixture, tune
from memjax.training.runs import load_config, versions

OUT = Path(__file__).parent / "knn_lm"
NEIGHBORS = 256
WEIGHTS = tuple(i / 20 for i in range(20))
TEMPERATURES = tuple(float(2**n) for n in range(-2, 8))
SWEEP = (1, 4, 16, 64, 256)


def neighbors_of(
    source: KeySource, store: Store, index: Any, split: str, folder: Path
) -> tuple[Targets, CachedNeighbors]:
    """Every scored token of a split, in the order in which it is read, and its neighbours."""
    file = folder / f"{split}_{store.fingerprint}_{NEIGHBORS}.npz"
    if not file.exists():
        parts = []
        for keys, targets, nats in source.reader(split):
            found = index.search(keys, NEIGHBORS)
            values = np.where(found.valid, store.values(np.where(found.valid, found.ids, 0)), -1)
            parts.append((found.scores.astype(np.float32), values.astype(np.int32), found.ids, targets, nats))
        names = ("distances", "values", "ids", "tokens", "nats")
        arrays = {name: np.concatenate(part) for name, part in zip(names, zip(*parts, strict=True), strict=True)}
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file, **arrays)  # type: ignore[arg-type]
    with np.load(file) as arrays:
        targets = Targets(np.arange(len(arrays["tokens"])), arrays["tokens"], -arrays["nats"])
        return targets, CachedNeighbors(arrays["distances"], arrays["values"], arrays["ids"])


def measure(source: KeySource, workdir: Path) -> dict[str, Any]:
    """Builds, searches, tunes; every number of the table."""
    start = time.monotonic()
    store = build_datastore(source, workdir / "store")
    built = time.monotonic() - start
    start = time.monotonic()
    try:
        index = open_index(store, "scann", exact_scores=True)
    except ValueError:
        build_scann(store)
        index = open_index(store, "scann", exact_scores=True)
    indexed = time.monotonic() - start
    queries = np.concatenate([part.keys for part in itertools.islice(source.reader("validation"), 1)])[:500]
    found_share = recall(index, store, queries, 32)
    found = {split: neighbors_of(source, store, index, split, workdir) for split in ("validation", "test")}
    rows = []
    (validation, near), (test, near_test) = found["validation"], found["test"]
    for count in SWEEP:
        best = tune(validation, near.first(count), weights=WEIGHTS, temperatures=TEMPERATURES)
        weight, temperature = best.interpolation_weight, best.temperature
        score = score_mixture(test, near_test.first(count), weight, temperature)[0]
        nats = float(best.nats_per_token.min())
        row = {"neighbors": count, "weight": weight, "temperature": temperature, "validation": nats}
        rows.append({**row, "test": score.nats_per_token})
    base = {split: -float(targets.log_probs.mean(dtype=np.float64)) for split, (targets, _) in found.items()}
    return {
        "entries": store.entries,
        "recall@32": found_share,
        "build_seconds": built,
        "index_seconds": indexed,
        "targets": {split: len(targets) for split, (targets, _) in found.items()},
        "base": base,
        "knn_lm": rows,
        "protocol": source.protocol(),
    }


def as_markdown(name: str, facts: dict[str, Any]) -> str:
    """The table."""
    perplexity = lambda nats: f"{np.exp(nats):.2f}"
    base = facts["base"]
    lines = [
        f"# kNN-LM: {name}",
        "",
        f"`{facts['command']}`; commit {facts['commit']}; {facts['hardware']}. Store of the training split, "
        f"{facts['entries']:,} entries, key `{facts['protocol']['key']}`; ScaNN with exact re-scoring, recall@32 of "
        f"validation queries {facts['recall@32']:.3f}. Protocol: {facts['protocol']['documents']}, segments of "
        f"{facts['protocol']['segment_length']}; perplexity per token of {facts['targets']['validation']:,} validation "
        f"and {facts['targets']['test']:,} test tokens. Weight and temperature tuned on validation.",
        "",
        "| system | neighbours | weight | temperature | validation perplexity | test perplexity |",
        "|---|---|---|---|---|---|",
        f"| base model | | | | {perplexity(base['validation'])} | {perplexity(base['test'])} |",
    ]
    for row in facts["knn_lm"]:
        lines.append(
            f"| + kNN-LM | {row['neighbors']} | {row['weight']} | {row['temperature']:g} | "
            f"{perplexity(row['validation'])} | {perplexity(row['test'])} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run directory")
    parser.add_argument("--workdir", default="", help="store and neighbours (default: RUN/datastore)")
    options, rest = parser.parse_known_args()
    config = apply_overrides(load_config(options.run), rest, prog="knn_lm", only=EVALUATION_FIELDS)
    source = make_key_source(load_run(options.run, config), options.run, TAP)
    facts = measure(source, Path(options.workdir or f"{options.run}/datastore"))
    from tools.results.recipes import commit, hardware

    name = Path(options.run).name
    facts |= {
        "command": "python -m tools.results.knn_lm RUN --data.source.path DIR",
        "commit": commit(),
        "hardware": hardware(),
        "python": platform.python_version(),
        "versions": versions(),
        "devices": len(jax.devices()),
    }
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    (OUT / f"{name}.md").write_text(as_markdown(name, facts))
    print(as_markdown(name, facts))


if __name__ == "__main__":
    main()
