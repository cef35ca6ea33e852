"""Compares the attention of a grown model with that of its ancestors on the same text, head by head.

    python -m tools.measurements.ancestors --run RUN --name "ELLE, order 1" --to ancestors.npz

RUN is the directory of a run whose model grows, such as `configs/lifelong_pretraining.py --variant elle`, trained with
`--training.keep-checkpoints 99`. Without this option only the last two checkpoints stay, and earlier generations are
gone. All generations read the same pieces of the first domain. `--to` writes the arrays to a file:

- `tokens` `[queries]` has the tokens of the first piece.
- `attention_<generation>_<updates>` `[layers, heads, queries, keys]` has the attention of a checkpoint.
- `sources_<...>` `[layers, heads, 2]` has the sources of the heads of a pair of checkpoints.
- `weights/<kind>_<...>` and `beyond_even/<kind>_<...>` `[layers, heads]` have the correlations of a pair. The kinds are
  `relatives`, `beside` and `others`.

Arrays of a pair are named by the generation and the updates of both.
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
    """Returns the mean of each correlation over all heads, and over the heads of each layer.

    A mean is None where no head has a correlation.
    """
    mean = lambda values: float(np.mean(values[np.isfinite(values)])) if np.isfinite(values).any() else None
    values_by_kind = correlations._asdict()
    layers = {name: [mean(layer) for layer in values] for name, values in values_by_kind.items()}
    return {**{name: mean(values) for name, values in values_by_kind.items()}, "layers": layers}


def measure(run: Path, pieces: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the facts of the measurement, and the arrays that `--to` writes.

    Args:
      run: Run directory with checkpoints of several generations.
      pieces: Largest number of pieces of text to read, from the validation split of the first domain.

    Raises:
      ValueError: `memjax.report.ancestors.read_lineage` refuses the run.
    """
    lineage = read_lineage(run, pieces)
    rows, pair_facts = lineage.rows, list[dict[str, Any]]()
    arrays = {"tokens": np.asarray(rows.inputs[0])}
    arrays |= {f"attention_{look}": maps.weights[:, 0] for look, maps in lineage.maps.items()}
    for pair in lineage.pairs():
        ancestor, descendant = pair.ancestor, pair.descendant
        arrays[f"sources_{ancestor}_{descendant}"] = pair.sources
        facts: dict[str, Any] = {"generations": [ancestor.generation, descendant.generation]}
        facts |= {"updates": [ancestor.updates, descendant.updates], "sources": pair.sources[:, 0, 0].tolist()}
        for kind, correlations in (("weights", pair.weights), ("beyond_even", pair.beyond)):
            facts[kind] = describe(correlations)
            arrays |= {
                f"{kind}/{name}_{ancestor}_{descendant}": values for name, values in correlations._asdict().items()
            }
        pair_facts.append(facts)
    counts = {"pieces": int(rows.mask.any(axis=1).sum()), "tokens": int(rows.mask.sum()), "domain": lineage.domain}
    return {"versions": versions(), **counts, "pairs": pair_facts}, arrays


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
