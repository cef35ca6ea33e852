"""What a report asks about a run, in the order in which it is shown."""

from __future__ import annotations

from memjax.report import curves, scores
from memjax.report.panel import Provider

__all__ = ["CURVES", "PROVIDERS"]

CURVES = "curves"
"""what several runs share"""

PROVIDERS: dict[str, Provider] = {
    CURVES: curves.panels,
    "scores": scores.panels,
}
"""name -> what it is asked"""
