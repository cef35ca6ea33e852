"""Metrics that show whether a memory works: their meanings, and their usual range in a working memory.

A memory reports them for every segment under names such as `transformer_xl/memory_share`. A stack of layers puts
`layer_<index>/` before each name. They are in every line of `metrics.jsonl`, and `memjax eval` prints them.
"""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["FIGURES", "MemoryMetric", "MemoryMetricValue", "find_figures"]


class MemoryMetric(NamedTuple):
    """The meaning of a memory metric in one line, and the range of its usual values. `FIGURES` has one for the name of
    each metric.

    Attributes:
      meaning: One line that says what the metric measures.
      low: Smallest usual value of a working memory after six segments, with initial parameters.
      high: Largest usual value of a working memory after six segments, with initial parameters.
    """

    meaning: str
    low: float
    high: float


class MemoryMetricValue(NamedTuple):
    """The mean, the smallest and the largest value of a memory metric over the layers of a model that report it, and
    the number of these layers.

    Attributes:
      mean: Mean over the layers.
      least: Smallest value of a layer.
      most: Largest value of a layer.
      layers: Number of layers that report the metric.
    """

    mean: float
    least: float
    most: float
    layers: int


FIGURES = {
    "infinity_former/stddev": MemoryMetric(
        "mean standard deviation of the densities on a signal over [0, 1]", 0.02, 0.2
    ),
    "infinity_former/inside": MemoryMetric("mass of the densities inside [0, 1]", 0.9, 1.0),
    "infinity_former/sticky_evenness": MemoryMetric(
        "entropy of the histogram of where queries looked, over that of an even one", 0.3, 0.999
    ),
    "memory_tokens/cosine": MemoryMetric("mean cosine between two memory tokens after the last layer", -0.1, 0.5),
    "transformer_xl/memory_share": MemoryMetric("share of attention on the slots of the memory", 0.1, 0.9),
    "rotary/memory_share": MemoryMetric("share of attention on the slots of the memory", 0.1, 0.9),
    "spalm/added_length": MemoryMetric("length of what the neighbours add, in lengths of the hidden state", 0.02, 1.0),
    "output_memory/gate": MemoryMetric("gate of the hidden state (1 = none of the neighbours)", 0.1, 0.95),
    "spalm/target_among": MemoryMetric("share of the targets among the neighbours", 0.0, 1.0),
    "knn_lm/effective_neighbors": MemoryMetric(
        "share of the neighbours that their weights are spread over", 0.05, 0.95
    ),
    "continuous_cache/effective_pairs": MemoryMetric("share of the cache that its weights are spread over", 0.05, 0.95),
    "compressive/memory_share": MemoryMetric("share of attention on the slots of both memories", 0.1, 0.95),
    "compressive/compressed_share": MemoryMetric("share of attention on compressed slots", 0.03, 0.9),
    "memformer/retaining": MemoryMetric("share of slots of which 0.9 or more is left after a write", 0.05, 0.95),
    "memformer/aggregating": MemoryMetric("share of slots that take in something and keep something", 0.05, 0.95),
    "memformer/rewriting": MemoryMetric("share of slots of which 0.1 or less is left after a write", 0.0, 0.5),
    "memformer/slot_cosine": MemoryMetric("mean cosine between two slots", -0.1, 0.5),
    "memformer/effective_slots": MemoryMetric("how many slots there are in effect, as a share of all", 0.06, 1.0),
    "memorizing/memory_share": MemoryMetric("what the gate lets through of memories that hold something", 0.1, 0.9),
    "linear_state/effective_rank": MemoryMetric(
        "directions in which the sums of a head lie, a share of all", 0.08, 1.0
    ),
    "memsizer/effective_rank": MemoryMetric("directions in which the memory lies, a share of its slots", 0.1, 1.0),
    "product_key/used": MemoryMetric("slots touched, a share of those that so many lookups could touch", 0.2, 1.0),
    "product_key/divergence": MemoryMetric("of the use of slots from an even one, in nats over log slots", 0.0, 0.2),
}
"""Name of a memory metric, without its layer -> its meaning and usual range."""


def find_figures(metrics: Mapping[str, float]) -> dict[str, MemoryMetricValue]:
    """Selects the memory metrics from the means of an evaluation by name (`metrics`), and summarizes each over layers.
    Returns a `MemoryMetricValue` by the name without the layer, in the order of `FIGURES`.

    Args:
      metrics: Name of a metric -> its mean, as in `EvaluationResult.metrics`.

    Example:
      >>> share = "transformer_xl/memory_share"
      >>> find_figures({f"layer_00/{share}": 0.25, f"layer_01/{share}": 0.75})[share]
      MemoryMetricValue(mean=0.5, least=0.25, most=0.75, layers=2)
    """
    summaries = {}
    for figure in FIGURES:
        values = [value for name, value in metrics.items() if name == figure or name.endswith(f"/{figure}")]
        if values:
            summaries[figure] = MemoryMetricValue(sum(values) / len(values), min(values), max(values), len(values))
    return summaries
