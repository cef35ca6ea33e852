"""Compares kNN-LM with exact distances, quantised distances and inner products: one store, several searches.

    python -m tools.measurements.knn_lm.distances RUN --data.source.path DIR --evaluation.max-segments 10

The store has a quarter of the training split's entries, as in `store_size`. Quantised distances come from product codes
of faiss with the row's number of bytes a key, in 1,024 inverted lists of which 32 are searched. The paper has 64 bytes,
and 4,096 lists for its larger store. ScaNN ranks its candidates again by the keys, so its distances are exact for the
neighbours that it finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax.datastore.faiss import build_faiss
from memjax.datastore.index import Metric, rescore
from memjax.datastore.opening import open_index
from memjax.datastore.store import Store
from memjax.retrieval.building import build_datastore
from memjax.retrieval.interpolation import StoreNeighbors
from memjax.retrieval.keys import KeyExtractor
from tools.measurements.knn_lm import experiment

PART = 4
LISTS, PROBES = 1024, 32


class Row(NamedTuple):
    """One search, a row of the table.

    Attributes:
      label: Label of the row in the table.
      name: Name of the index in file names.
      metric: Metric of the search.
      code_bytes: Number of bytes of faiss's product codes. 0 = another index.
      exact_scores: Whether distances are computed from the keys. False for distances of the codes.
    """

    label: str
    name: str
    metric: Metric = "squared_l2"
    code_bytes: int = 0
    exact_scores: bool = True


ROWS = (
    Row("squared L2, exact search", "exact"),
    Row("squared L2, ScaNN", "scann"),
    Row("squared L2, 64-byte codes, quantised distances", "pq64", code_bytes=64, exact_scores=False),
    Row("the same neighbours, exact distances", "pq64_exact", code_bytes=64),
    Row("squared L2, 16-byte codes, quantised distances", "pq16", code_bytes=16, exact_scores=False),
    Row("the same neighbours, exact distances", "pq16_exact", code_bytes=16),
    Row("inner product, exact search", "exact_inner_product", metric="inner_product"),
)


def open_row(row: Row, store: Store, built: dict[int, Any]) -> Any:
    """Opens the index of a row.

    Args:
      row: Row of the table.
      store: Store that the index searches.
      built: Indices of faiss by bytes of their codes. A missing one is built and added.
    """
    if row.name.startswith("exact"):
        return open_index(store, "exact", metric=row.metric)
    if not row.code_bytes:
        return experiment.scann_index(store, exact_scores=False)
    if row.code_bytes not in built:
        factory = f"IVF{LISTS},PQ{row.code_bytes}"
        built[row.code_bytes] = build_faiss(store, factory=factory, num_probes=PROBES, save=False)
    index = built[row.code_bytes]
    return rescore(index, store) if row.exact_scores else index


def share(retrieval: StoreNeighbors, true: StoreNeighbors) -> float:
    """Returns the share of the true neighbours that a search has found. Neighbours are compared by their entries."""
    size = true.neighbors.ids.shape[1]
    pairs = zip(retrieval.neighbors.ids, true.neighbors.ids, strict=True)
    return float(np.mean([len(np.intersect1d(ids, true_ids)) / size for ids, true_ids in pairs]))


def measure(source: KeyExtractor, workdir: Path) -> dict[str, Any]:
    """Searches and tunes every row, and returns all numbers of the table."""
    whole = build_datastore(source, workdir / "store")
    store = experiment.first_entries(whole, workdir / f"store_1_{PART}", whole.entries // PART)
    rows, built, true, retrievals = [], {}, None, {}
    for row in ROWS:
        index = open_row(row, store, built)
        retrievals = {
            split: experiment.find(source, store, index, split, workdir, name=row.name) for split in experiment.SPLITS
        }
        true = true or retrievals["validation"]
        shared = share(retrievals["validation"], true) if row.metric == "squared_l2" else None
        rows.append({**row._asdict(), "found": shared, **experiment.tuned(*retrievals.values())})
    return {"entries": store.entries, **experiment.facts_of(retrievals, rows, source.protocol())}


def main() -> None:
    options, config = experiment.parse("distances", __doc__)
    facts = measure(experiment.open_source(options.run, config), options.workdir)
    experiment.record(
        "distances",
        facts,
        "kNN-LM: exact and quantised distances, L2 and inner product",
        f"Store of the first quarter of every stream of the training split, {facts['entries']:,} entries; "
        f"{experiment.NEIGHBORS} neighbours. Product codes: faiss, {LISTS:,} lists, {PROBES} searched. Found: share of "
        f"the true neighbours of the validation tokens; {experiment.protocol_text(facts, config)}",
    )


if __name__ == "__main__":
    main()
