"""Attention of a model that has grown beside that of its ancestors on the same text, head by head.

    python -m tools.measurements.ancestors --run RUN --name "ELLE, order 1" --to ancestors.npz

RUN is of a method that grows, such as `configs/lifelong_pretraining.py --variant elle`, trained with
`--training.keep-checkpoints 99`: without it only the last two checkpoints stay, and earlier generations are gone. All
generations read the same pieces of the first domain. The arrays, where wanted, go to a file: `tokens` `[queries]` of
the first piece, and of each checkpoint its `attention_<generation>_<updates>` `[layers, heads, queries, keys]`; of each
pair `sources_<...>` `[layers, heads, 2]`, `weights/relatives_<...>` and `beyond_even/relatives_<...>` `[layers, heads]`
and likewise `beside` and `others`, named by generation and updates of both.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from memjax.lifelong.ancestors import HeadCorrelations
from memjax.report.ancestors import read_lineage
from memjax.training.run_versions import versions
from tools.results import pages
from tools.results.ledger import ROOT, Book, measured


def describe(correlations: HeadCorrelations) -> dict[str, Any]:
    """Means over all heads, and over those of each layer; None where there is nothing to correlate."""
    mean = lambda values: float(np.mean(values[np.isfinite(values)])) if np.isfinite(values).any() else None
    named = correlations._asdict()
    layers = {name: [mean(layer) for layer in values] for name, values in named.items()}
    return {**{name: mean(values) for name, values in named.items()}, "layers": layers}


def measure(run: Path, pieces: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Facts and arrays.

    Args:
      run: with checkpoints of several generations.
      pieces: of the validation split of its first domain, at most.

    Raises:
      ValueError: as `memjax.report.ancestors.read_lineage`.
    """
    lineage = read_lineage(run, pieces)
    rows, found = lineage.rows, list[dict[str, Any]]()
    arrays = {"tokens": np.asarray(rows.inputs[0])}
    arrays |= {f"attention_{look}": maps.weights[:, 0] for look, maps in lineage.maps.items()}
    for pair in lineage.pairs():
        one, other = pair.ancestor, pair.descendant
        arrays[f"sources_{one}_{other}"] = pair.sources
        facts: dict[str, Any] = {"generations": [one.generation, other.generation]}
        facts |= {"updates": [one.updates, other.updates], "sources": pair.sources[:, 0, 0].tolist()}
        for kind, correlations in (("weights", pair.weights), ("beyond_even", pair.beyond)):
            facts[kind] = describe(correlations)
            arrays |= {f"{kind}/{name}_{one}_{other}": values for name, values in correlations._asdict().items()}
        found.append(facts)
    read = {"pieces": int(rows.mask.any(axis=1).sum()), "tokens": int(rows.mask.sum()), "domain": lineage.domain}
    return {"versions": versions(), **read, "pairs": found}, arrays


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.ancestors", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--run", required=True, type=Path, help="directory of a run with checkpoints of its generations"
    )
    parser.add_argument("--name", required=True, help="of the run, for the table")
    parser.add_argument("--pieces", type=int, default=32, help="that are read, at most (default: 32)")
    parser.add_argument("--to", type=Path, help="file of the arrays, .npz")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of the measurements")
    options = parser.parse_args(arguments)
    if options.pieces < 1:
        parser.error(f"--pieces: given {options.pieces}, allowed: 1 or more")
    try:
        facts, arrays = measure(options.run, options.pieces)
    except ValueError as error:
        parser.error(str(error))
    if options.to:
        np.savez_compressed(options.to, allow_pickle=False, **arrays)
    command = f"python -m tools.measurements.ancestors --run RUN --name {options.name!r} --pieces {options.pieces}"
    about = (
        f"Pearson's correlation of attention weights over the first {facts['pieces']} validation pieces of "
        f"{facts['domain']}, where both query and key are read: of each head with the head of the ancestor that it is "
        "a copy of, with the unrelated heads in the layer of that one, and with those of all layers; means over heads. "
        "First of the weights, which are alike in any two heads where queries have few keys to read, then of what "
        "they are beyond even attention. Copies of one head of the first generation are related. Equal numbers of "
        "updates: right after growth."
    )
    title = f"Heads beside those of ancestors: {options.name}"
    pages.record(
        measured("ancestors", options.name, facts, command=command, title=title, about=about), Book(options.out)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
