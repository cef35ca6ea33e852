"""What the table of SPALM says, from numbers given by hand."""

from tools.measurements.knn_lm import spalm


def test_bins_are_those_that_an_evaluation_reports():
    metrics = {"output_memory/gate": 0.8, "output_memory/gate_up_to_0.50": 0.1, "output_memory/gate_up_to_1.00": 0.9}
    assert spalm.gates(metrics) == {"0.50": 0.1, "1.00": 0.9}
