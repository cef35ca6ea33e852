"""Counts how often a token is among its neighbours, by the causes why SPALM trusts neighbours of training too much.

    python -m tools.results run wikitext2_spalm_models --workdir RUNS
    python -m tools.measurements.neighbor_hits WHOLE FIRST SECOND --to NEAR --evaluation.max-segments 0

Neighbours of training tokens can be better than those of validation tokens for two reasons: the token's own article is
in the store, and the model that makes the keys has learned these very tokens. Leaving the article out removes the first
reason. Keys of a model that has not read the text remove the second. Their neighbours are written to `NEAR/by_halves`,
which `data.neighbors_dir` reads. Stores of equal size are compared. kNN-LM is laid over the model of all articles with
the same store.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.cli.console import preparation
from memjax.cli.parser import EVALUATION_FIELDS
from memjax.data.annotations import target_shares, write_neighbors
from memjax.datastore.store import Progress
from memjax.retrieval.building import build_datastore
from memjax.retrieval.keys import SPALM_TAP
from memjax.retrieval.precomputation import CrossFittingHalf, cross_fitted_neighbors, exclude_nearby, neighbors_of_split
from memjax.settings.overrides import apply_overrides
from memjax.training.run_versions import versions
from memjax.training.runs import load_config
from tools.measurements.knn_lm import experiment
from tools.results import pages
from tools.results.ledger import measured

NEIGHBORS = 4
"""Number of neighbours that SPALM reads."""
KNN_NEIGHBORS = 64
WAYS = {
    "whole_own": ("all articles", True, True),
    "whole_apart": ("all articles", True, False),
    "halves_own": ("a half, that of the token", True, True),
    "halves_apart": ("a half, that of the token", True, False),
    "by_halves": ("a half, the other one", False, False),
}
"""Name of a folder of neighbours of training tokens -> three facts: the articles that the model of the keys was trained
on, which the store holds; whether that model has learned the token; whether the token's own article is in the store."""


def open_model(run: str, changes: Sequence[str], workdir: Path) -> CrossFittingHalf:
    """Opens a run, and builds the store of its training split and its ScaNN index where they are missing.

    Args:
      run: Run directory.
      changes: Options of the command line that change the run's data or evaluation.
      workdir: Folder of the store.
    """
    config = apply_overrides(load_config(run), list(changes), prog="neighbor_hits", only=EVALUATION_FIELDS)
    source = experiment.open_source(run, config, SPALM_TAP)
    store = build_datastore(source, workdir / f"store_{Path(run).name}")
    return CrossFittingHalf(source, store, experiment.scann_index(store))


def write_all(whole: CrossFittingHalf, first: CrossFittingHalf, second: CrossFittingHalf, to: Path) -> None:
    """Writes the neighbours of all splits for each of `WAYS`, to a folder of its name.

    Args:
      whole: Model that was trained on all articles.
      first: Model that was trained on the first half of the articles.
      second: Model that was trained on the second half of the articles.
      to: Parent folder of the written folders.
    """
    tell = preparation()
    training = {"whole_own": training_neighbors(whole, "own", tell)}
    training["whole_apart"] = training_neighbors(whole, "apart", tell)
    for way in ("own", "apart"):
        training[f"halves_{way}"] = np.concatenate([training_neighbors(half, way, tell) for half in (first, second)])
    training["by_halves"], documents = cross_fitted_neighbors(first, second, NEIGHBORS, progress=tell)
    for name, values in training.items():
        write_neighbors(to / name, "train", values, documents, store=name)
    for model, names in ((whole, [n for n in WAYS if "whole" in n]), (first, [n for n in WAYS if "halves" in n])):
        for split in experiment.SPLITS:
            values = neighbors_of_split(model.source, split, model.store, model.index, NEIGHBORS, progress=tell)
            for name in names:
                write_neighbors(to / name, split, values, model.source.run.experiment.documents(split), store=name)


def training_neighbors(model: CrossFittingHalf, way: str, tell: Progress) -> np.ndarray:
    """Returns the neighbours of the tokens that a model was trained on.

    Args:
      model: Model with its store and index.
      way: 'own' to search a token's own article, too, except for the token itself, or 'apart' to leave it out.
      tell: Function that shows the progress.
    """
    exclude = exclude_nearby(0) if way == "own" else None
    arguments = model.source, "train", model.store, model.index, NEIGHBORS
    return neighbors_of_split(*arguments, exclude=exclude, progress=tell)


def measure(whole: CrossFittingHalf, halves: Sequence[CrossFittingHalf], to: Path) -> dict[str, Any]:
    """Returns all numbers of the table, from the folders that `write_all` has written and from a search for kNN-LM."""
    entries = {"whole": whole.store.entries, "halves": [half.store.entries for half in halves]}
    retrievals = {
        split: experiment.find(whole.source, whole.store, whole.index, split, to, num_neighbors=KNN_NEIGHBORS)
        for split in experiment.SPLITS
    }
    return {
        "entries": entries,
        "neighbors": NEIGHBORS,
        "rows": [
            {
                "trained_on": trained,
                "learned": learned,
                "own_article": has_article,
                "target_among": target_shares(to / name),
            }
            for name, (trained, learned, has_article) in WAYS.items()
        ],
        "base": experiment.base(retrievals),
        "knn_lm": {"neighbors": KNN_NEIGHBORS, **experiment.tuned(*retrievals.values())},
        "targets": {split: len(retrieval.targets) for split, retrieval in retrievals.items()},
        "protocol": whole.source.protocol(),
    }


def describe_protocol(facts: Mapping[str, Any]) -> str:
    """Returns the text above the table: what was measured, and how."""
    entries, targets = facts["entries"], facts["targets"]
    return (
        f"Share of the tokens that are among their {facts['neighbors']} nearest neighbours, by stores of "
        f"{entries['whole']:,} entries (all articles) and {' and '.join(f'{n:,}' for n in entries['halves'])} (each "
        f"half), key `{facts['protocol']['key']}`; ScaNN with exact re-scoring. Validation is searched in the store of "
        "all articles, and in that of the first half. kNN-LM: the model of all articles with its store, "
        f"{facts['knn_lm']['neighbors']} neighbours; weight and temperature tuned on {targets['validation']:,} "
        f"validation tokens, {targets['test']:,} test tokens read off once."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("whole", help="run directory of the model of all articles")
    parser.add_argument("first", help="of that of their first half (data.train_half)")
    parser.add_argument("second", help="of that of their second half")
    parser.add_argument("--to", required=True, type=Path, help="folder of stores and neighbours")
    options, changes = parser.parse_known_args()
    runs = (options.whole, options.first, options.second)
    whole, first, second = (open_model(run, changes, options.to) for run in runs)
    write_all(whole, first, second, options.to)
    facts = measure(whole, (first, second), options.to) | {"versions": versions(), "runs": [Path(r).name for r in runs]}
    command = f"python -m tools.measurements.neighbor_hits WHOLE FIRST SECOND --to NEAR {' '.join(changes)}".strip()
    title = "How often a token is among its neighbours"
    name = Path(options.whole).name
    pages.record(measured("neighbor_hits", name, facts, command=command, title=title, about=describe_protocol(facts)))


if __name__ == "__main__":
    main()
