"""What the table of SPALM says, from numbers given by hand."""

import numpy as np

from memjax.data.annotations import NEIGHBORS, AnnotatedDocuments
from memjax.data.documents import ArrayDocuments
from tools.measurements.knn_lm import spalm


def test_the_share_of_tokens_that_neighbors_propose():
    values = np.array([[5, 1], [1, 6], [-1, -1], [7, 8]])
    documents = AnnotatedDocuments(ArrayDocuments([[5, 6], [7, 8]]), {NEIGHBORS: values})
    assert (spalm.share_found(documents, 1), spalm.share_found(documents, 2)) == (0.25, 0.75)


def test_bins_are_those_that_an_evaluation_reports():
    metrics = {"output_memory/gate": 0.8, "output_memory/gate_up_to_0.50": 0.1, "output_memory/gate_up_to_1.00": 0.9}
    assert spalm.gates(metrics) == {"0.50": 0.1, "1.00": 0.9}
