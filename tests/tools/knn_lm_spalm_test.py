"""What the table of SPALM says, from numbers given by hand."""

import numpy as np

from memjax.data.documents import ArrayDocuments
from tools.measurements.knn_lm import spalm
from tools.measurements.oracle_neighbors import oracle_neighbors


def test_bins_are_those_that_an_evaluation_reports():
    metrics = {"output_memory/gate": 0.8, "output_memory/gate_up_to_0.50": 0.1, "output_memory/gate_up_to_1.00": 0.9}
    assert spalm.gates(metrics) == {"0.50": 0.1, "1.00": 0.9}


def test_every_token_is_among_its_oracle_neighbors_at_any_place():
    documents = ArrayDocuments([np.arange(3, 203), np.arange(203, 403)])
    values, tokens = oracle_neighbors(documents, 4), np.arange(3, 403)
    hits = values == tokens[:, None]
    assert hits.any(axis=1).all() and set(values.ravel()) <= set(tokens)
    assert (np.abs(hits.mean(axis=0) - 0.25) < 0.1).all()
