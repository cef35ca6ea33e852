"""What a report asks about a run, in the order in which it is shown."""

from __future__ import annotations

from memjax.report import (
    ancestors,
    curves,
    features,
    neighbors,
    samples,
    scores,
    streams,
)
from memjax.report.panel import Provider

__all__ = ["CURVES", "PROVIDERS"]

CURVES = "curves"
"""what several runs share"""

PROVIDERS: dict[str, Provider] = {
    CURVES: curves.panels,
    "scores": scores.panels,
    "streams": streams.panels,
    "features": features.panels,
    "ancestors": ancestors.panels,
    "samples": samples.panels,
    "neighbors": neighbors.panels,
}
"""name -> what it is asked"""
