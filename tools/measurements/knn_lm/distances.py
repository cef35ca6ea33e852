"""kNN-LM with exact and with quantised distances, and with inner products: one store, several searches.

    python -m tools.measurements.knn_lm.distances RUN --data.source.path DIR --evaluation.max-segments 10

The store has a quarter of the training split's entries, as in `store_size`. Quantised distances are faiss's, from
product codes of as many bytes a key as the row says, in 1,024 inverted lists of which 32 are searched (the paper has 64
bytes, and 4,096 lists for its larger store). ScaNN ranks what its codes find again by the keys, so its distances are
exact for those it finds.
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
    """One search.

    Attributes:
      label: in the table.
      name: of the index, in file names.
      metric: of the search.
      code_bytes: of faiss's product codes; 0 = another index.
      exact_scores: distances from the keys.
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
    """The index of a row; those of faiss are built once."""
    if row.name.startswith("exact"):
        return open_index(store, "exact", metric=row.metric)
    if not row.code_bytes:
        return experiment.scann_index(store, exact_scores=False)
    if row.code_bytes not in built:
        factory = f"IVF{LISTS},PQ{row.code_bytes}"
        built[row.code_bytes] = build_faiss(store, factory=factory, num_probes=PROBES, save=False)
    index = built[row.code_bytes]
    return rescore(index, store) if row.exact_scores else index


def share(found: StoreNeighbors, true: StoreNeighbors) -> float:
    """Of the true neighbours, by their numbers, that were found."""
    size = true.neighbors.ids.shape[1]
    pairs = zip(found.neighbors.ids, true.neighbors.ids, strict=True)
    return float(np.mean([len(np.intersect1d(one, other)) / size for one, other in pairs]))


def measure(source: KeyExtractor, workdir: Path) -> dict[str, Any]:
    """Every number of the table."""
    whole = build_datastore(source, workdir / "store")
    store = experiment.first_entries(whole, workdir / f"store_1_{PART}", whole.entries // PART)
    rows, built, true, found = [], {}, None, {}
    for row in ROWS:
        index = open_row(row, store, built)
        found = {
            split: experiment.find(source, store, index, split, workdir, name=row.name) for split in experiment.SPLITS
        }
        true = true or found["validation"]
        shared = share(found["validation"], true) if row.metric == "squared_l2" else None
        rows.append({**row._asdict(), "found": shared, **experiment.tuned(*found.values())})
    return {"entries": store.entries, **experiment.facts_of(found, rows, source.protocol())}


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
