"""What a memory of a trained model does: slots in use, maps of memories, errors of compressed signals."""

from memjax.inspection.memory_maps import SignalMap, SlotMap, attend_places, signal_map, slot_map, token_space
from memjax.inspection.regression import RegressionErrors, regression_errors
from memjax.inspection.slot_usage import SlotCounts, class_divergence, class_overlap, measure_usage, staleness

__all__ = [
    "RegressionErrors",
    "SignalMap",
    "SlotCounts",
    "SlotMap",
    "attend_places",
    "class_divergence",
    "class_overlap",
    "measure_usage",
    "regression_errors",
    "signal_map",
    "slot_map",
    "staleness",
    "token_space",
]
