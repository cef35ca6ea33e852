"""What a report asks about a run, in the order in which it is shown."""

from __future__ import annotations

from memjax.report import (
    ancestors,
    attention,
    curves,
    features,
    gains,
    gates,
    neighbors,
    samples,
    scores,
    signal,
    slots,
    streams,
    usage,
)
from memjax.report.panel import Provider

__all__ = ["CURVES", "PROVIDERS"]

CURVES = "curves"
"""what several runs share"""

PROVIDERS: dict[str, Provider] = {
    CURVES: curves.panels,
    "scores": scores.panels,
    "streams": streams.panels,
    "gains": gains.panels,
    "attention": attention.panels,
    "gates": gates.panels,
    "slots": slots.panels,
    "signal": signal.panels,
    "usage": usage.panels,
    "features": features.panels,
    "ancestors": ancestors.panels,
    "samples": samples.panels,
    "neighbors": neighbors.panels,
}
"""name -> what it is asked"""
