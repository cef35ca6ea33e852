"""kNN-LM with stores of growing size, the weight and the temperature tuned anew for each.

    python -m tools.measurements.knn_lm.store_size RUN --data.source.path DIR --evaluation.max-segments 10

A smaller store has the first entries of the whole one, which are the beginnings of all streams that were read side by
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
"""of the whole store, one in so many"""


def measure(source: KeyExtractor, workdir: Path) -> dict[str, Any]:
    """Every number of the table."""
    whole = build_datastore(source, workdir / "store")
    rows, found = [], {}
    for part in PARTS:
        store = whole
        if part > 1:
            store = experiment.first_entries(whole, workdir / f"store_1_{part}", whole.entries // part)
        index = open_index(store, "exact")
        found = {s: experiment.find(source, store, index, s, workdir, name="exact") for s in experiment.SPLITS}
        rows.append({"part": part, "entries": store.entries, **experiment.tuned(*found.values())})
    return experiment.facts_of(found, rows, source.protocol())


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
