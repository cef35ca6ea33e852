"""Metrics that show whether a memory works: their meanings, and their usual range in a working memory.

A memory reports them for every segment under names such as `transformer_xl/memory_share`. A stack of layers puts
`layer_<index>/` before each name. They are in every line of `metrics.jsonl`, and `memjax eval` prints them.
"""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["FIGURES", "Figure", "Found", "find_figures"]


class Figure(NamedTuple):
    """A metric of a memory, with its meaning and its usual range.

    Attributes:
      meaning: One line that says what the metric measures.
      low: Smallest usual value of a working memory after six segments, with initial parameters.
      high: Largest usual value of a working memory after six segments, with initial parameters.
    """

    meaning: str
    low: float
    high: float


class Found(NamedTuple):
    """The value of a memory metric in one model, summarized over the layers that report it.

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
    "infinity_former/stddev": Figure("mean standard deviation of the densities on a signal over [0, 1]", 0.02, 0.2),
    "infinity_former/inside": Figure("mass of the densities inside [0, 1]", 0.9, 1.0),
    "infinity_former/sticky_evenness": Figure(
        "entropy of the histogram of where queries looked, over that of an even one", 0.3, 0.999
    ),
    "memory_tokens/cosine": Figure("mean cosine between two memory tokens after the last layer", -0.1, 0.5),
    "transformer_xl/memory_share": Figure("share of attention on the slots of the memory", 0.1, 0.9),
    "spalm/added_length": Figure("length of what the neighbours add, in lengths of the hidden state", 0.02, 1.0),
    "output_memory/gate": Figure("gate of the hidden state (1 = none of the neighbours)", 0.1, 0.95),
    "spalm/target_among": Figure("share of the targets among the neighbours", 0.0, 1.0),
    "knn_lm/effective_neighbors": Figure("share of the neighbours that their weights are spread over", 0.05, 0.95),
    "continuous_cache/effective_pairs": Figure("share of the cache that its weights are spread over", 0.05, 0.95),
    "compressive/memory_share": Figure("share of attention on the slots of both memories", 0.1, 0.95),
    "compressive/compressed_share": Figure("share of attention on compressed slots", 0.03, 0.9),
    "memformer/retaining": Figure("share of slots of which 0.9 or more is left after a write", 0.05, 0.95),
    "memformer/aggregating": Figure("share of slots that take in something and keep something", 0.05, 0.95),
    "memformer/rewriting": Figure("share of slots of which 0.1 or less is left after a write", 0.0, 0.5),
    "memformer/slot_cosine": Figure("mean cosine between two slots", -0.1, 0.5),
    "memformer/effective_slots": Figure("how many slots there are in effect, as a share of all", 0.06, 1.0),
    "memorizing/memory_share": Figure("what the gate lets through of memories that hold something", 0.1, 0.9),
    "linear_state/effective_rank": Figure("directions in which the sums of a head lie, a share of all", 0.08, 1.0),
    "memsizer/effective_rank": Figure("directions in which the memory lies, a share of its slots", 0.1, 1.0),
    "product_key/used": Figure("slots touched, a share of those that so many lookups could touch", 0.2, 1.0),
    "product_key/divergence": Figure("of the use of slots from an even one, in nats over log slots", 0.0, 0.2),
}
"""Name of a memory metric, without its layer -> its meaning and usual range."""


def find_figures(metrics: Mapping[str, float]) -> dict[str, Found]:
    """Selects the memory metrics of a model and summarizes them over layers, in the order of `FIGURES`.

    Args:
      metrics: Name of a metric -> its mean, as in `EvaluationResult.metrics`.

    Example:
      >>> share = "transformer_xl/memory_share"
      >>> find_figures({f"layer_00/{share}": 0.25, f"layer_01/{share}": 0.75})[share]
      Found(mean=0.5, least=0.25, most=0.75, layers=2)
    """
    summaries = {}
    for figure in FIGURES:
        values = [value for name, value in metrics.items() if name == figure or name.endswith(f"/{figure}")]
        if values:
            summaries[figure] = Found(sum(values) / len(values), min(values), max(values), len(values))
    return summaries
