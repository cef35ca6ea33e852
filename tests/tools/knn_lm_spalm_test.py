"""What the table of SPALM says, from numbers given by hand."""

import numpy as np

from memjax.data.annotations import NEIGHBORS, AnnotatedDocuments
from memjax.data.documents import ArrayDocuments
from tools.results.knn_lm import spalm


def test_the_share_of_tokens_that_neighbors_propose():
    values = np.array([[5, 1], [1, 6], [-1, -1], [7, 8]])
    documents = AnnotatedDocuments(ArrayDocuments([[5, 6], [7, 8]]), {NEIGHBORS: values})
    assert (spalm.share_found(documents, 1), spalm.share_found(documents, 2)) == (0.25, 0.75)


def test_rows_and_bins():
    row = {"validation": np.log(50.0), "test": np.log(40.0), "parameters": 1234}
    mixed = {**row, "test": np.log(30.0), "weight": 0.25, "temperature": 4.0}
    names = ("no_memory", "transformer_xl", "compressive", "spalm")
    metrics = {"output_memory/gate": 0.8, "output_memory/gate_up_to_0.50": 0.1, "output_memory/gate_up_to_1.00": 0.9}
    assert spalm.gates(metrics) == {"0.50": 0.1, "1.00": 0.9}
    facts = {
        "rows": {name: row for name in names} | {f"{name}_knn_lm": mixed for name in names[1:]},
        "gate": {split: spalm.gates(metrics) for split in ("validation", "test")},
        "mean_gate": {"validation": 0.8, "test": 0.7},
    }
    lines = spalm.as_tables(facts).splitlines()
    assert "| Transformer, no memory | 1,234 |  |  | 50.00 | 40.00 | +0.0 % |" in lines
    assert "| SPALM + kNN-LM | 1,234 | 0.25 | 4 | 50.00 | 30.00 | -25.0 % |" in lines
    assert "| up to 0.50 | 0.100 | 0.100 |" in lines and "| mean | 0.800 | 0.700 |" in lines
