"""Table of all providers of panels, in the order in which a report shows them."""

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

CURVES = "curves"
"""Name of the provider of training curves, which shows several runs in common charts."""

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
"""Name of a provider, as `memjax report --only` takes it -> the function that yields its panels."""
