"""Compares kNN-LM with stores of growing size, with weight and temperature tuned anew for each.

    python -m tools.measurements.knn_lm.store_size RUN --data.source.path DIR --evaluation.max-segments 10

A smaller store has the first entries of the whole store, which are the beginnings of all rows that were read side by
side. Search is exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memjax.datastore.opening import open_index
from memjax.retrieval.building import build_datastore
from memjax.retrieval.keys import KeyExtractor
from tools.measurements.knn_lm import experiment

PARTS = (16, 4, 2, 1)
"""Sizes of the stores: the whole store has this many times as many entries."""


def measure(source: KeyExtractor, workdir: Path) -> dict[str, Any]:
    """Searches and tunes every size of the store, and returns all numbers of the table."""
    whole = build_datastore(source, workdir / "store")
    rows, retrievals = [], {}
    for part in PARTS:
        store = whole
        if part > 1:
            store = experiment.first_entries(whole, workdir / f"store_1_{part}", whole.entries // part)
        index = open_index(store, "exact")
        retrievals = {s: experiment.find(source, store, index, s, workdir, name="exact") for s in experiment.SPLITS}
        rows.append({"part": part, "entries": store.entries, **experiment.tuned(*retrievals.values())})
    return experiment.facts_of(retrievals, rows, source.protocol())


def main() -> None:
    options, config = experiment.parse("store_size", __doc__)
    facts = measure(experiment.open_source(options.run, config), options.workdir)
    experiment.record(
        "store_size",
        facts,
        "kNN-LM: size of the store",
        "Parts of the store of the training split (the beginnings of its streams), exact search, "
        f"{experiment.NEIGHBORS} neighbours; {experiment.protocol_text(facts, config)}",
    )


if __name__ == "__main__":
    main()
