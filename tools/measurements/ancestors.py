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
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.inspection.attention_maps import AttentionMaps, attention_maps
from memjax.lifelong import load_run
from memjax.lifelong.ancestors import HeadCorrelations, beyond_even, correlate_heads, head_sources, map_correlations
from memjax.lifelong.expansion import Growth
from memjax.training.restoring import checkpoint_extras
from memjax.training.runs import load_config, versions
from memjax.training.stages import GROWTH, Position
from tools.results import pages
from tools.results.ledger import ROOT, Book, measured


@dataclasses.dataclass(frozen=True)
class Look:
    """A checkpoint of a run.

    Attributes:
      generation: how often the model had grown.
      updates: made before it.
      step: of the checkpoint.
    """

    generation: int
    updates: int
    step: int

    def __str__(self) -> str:
        return f"{self.generation}_{self.updates}"


def looks_of(run: Path) -> tuple[list[Look], list[Growth]]:
    """The first and the last checkpoint of each generation of a run, oldest first, and how it has grown in between.

    Raises:
      ValueError: one generation alone, or growth without copies of heads.
    """
    extras = checkpoint_extras(run)
    looks = [
        Look(len(extra.get("lineage", ())), Position.read(step, extra["position"], 0).step, step)
        for step, extra in extras.items()
    ]
    own = [[look for look in looks if look.generation == one] for one in sorted({look.generation for look in looks})]
    if len(own) < 2:
        allowed = "checkpoints of two or more; train one that grows with --training.keep-checkpoints 99"
        raise ValueError(f"--run: given {run}, with checkpoints of {len(own)} generation, allowed: {allowed}")
    lineage = max((extra.get("lineage", ()) for extra in extras.values()), key=len)
    if any(GROWTH not in one for one in lineage):
        raise ValueError(f"--run: given {run}, which has not grown by copies, allowed: a run of ELLE")
    return [look for one in own for look in dict.fromkeys((one[0], one[-1]))], [
        Growth.from_json(one[GROWTH]) for one in lineage
    ]


def pairs_of(looks: Sequence[Look]) -> list[tuple[Look, Look]]:
    """The last checkpoint of each generation with all of later generations."""
    last = {look.generation: look for look in looks}
    return [(one, other) for one in last.values() for other in looks if one.generation < other.generation]


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
      ValueError: as `looks_of`, or a model whose attention cannot be shown.
    """
    looks, growths = looks_of(run)
    stream = load_config(run).lifelong
    assert stream is not None  # nothing else grows
    domain, maps, arrays = stream.in_order[0].name, dict[Look, AttentionMaps](), dict[str, np.ndarray]()
    rows: Any = None
    for look in looks:
        loaded = load_run(run, step=look.step)
        if rows is None:
            experiment = loaded.experiment.of_task(domain)
            reading = experiment.reading(dataclasses.replace(experiment.config.evaluation, rows=pieces))
            rows = next(iter(reading.batches(experiment.documents("validation"))))
            arrays["tokens"] = np.asarray(rows.inputs[0])
        maps[look] = attention_maps(loaded.experiment.model, loaded.variables, rows)
        arrays[f"attention_{look}"] = maps[look].weights[:, 0]
    sizes = lambda look: (maps[look].weights.shape[0], maps[look].weights.shape[2])
    first, found = looks[0], []
    for one, other in pairs_of(looks):
        sources = head_sources(growths[one.generation : other.generation], *sizes(one))
        founders = head_sources(growths[first.generation : one.generation], *sizes(first))
        arrays[f"sources_{one}_{other}"], seen = sources, maps[one].seen
        pair: dict[str, Any] = {"generations": [one.generation, other.generation]}
        pair |= {"updates": [one.updates, other.updates], "sources": sources[:, 0, 0].tolist()}
        both = [maps[look].weights for look in (one, other)]
        for kind, (old, new) in {"weights": both, "beyond_even": [beyond_even(part, seen) for part in both]}.items():
            every = map_correlations(old, new, seen)
            correlations = correlate_heads(every, sources, founders)
            pair[kind] = describe(correlations)
            arrays |= {f"{kind}/{name}_{one}_{other}": values for name, values in correlations._asdict().items()}
        found.append(pair)
    read = {"pieces": int(rows.mask.any(axis=1).sum()), "tokens": int(rows.mask.sum()), "domain": domain}
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
