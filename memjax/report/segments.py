"""What panels read of a run: consecutive segments of its split, and the words of ids."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from memjax.report.panel import OpenedRun
from memjax.typing import Batch

__all__ = [
    "age_groups",
    "MOST_WORDS",
    "as_arrays",
    "first_segments",
    "from_starts",
    "label_words",
    "plain_logs",
    "shown",
    "spread",
    "words_of",
]

MOST_WORDS = 40
"""that are written below a picture"""

WARM = 3
"""segments that a memory fills in, for each one that is looked at"""


def first_segments(run: OpenedRun, *, warm: bool = False) -> tuple[list[Batch], int]:
    """Consecutive segments of the split that is looked at, and how many of them are there to fill a memory.

    Args:
      run: an opened run; `rows` and `segments` of it are looked at.
      warm: with segments before them.
    """
    experiment = run.loaded.experiment
    protocol = (
        "" if experiment.config.evaluation.protocol == "sliding_window" else experiment.config.evaluation.protocol
    )
    evaluation = dataclasses.replace(
        experiment.config.evaluation, split=run.split, rows=run.rows, protocol=protocol, stride=0
    )
    batches = experiment.reading(evaluation).batches(experiment.documents(run.split))
    wanted = run.segments * (1 + WARM) if warm else run.segments
    found = list(itertools.islice(batches, wanted))
    return found, max(len(found) - run.segments, 0)


def from_starts(segments: Sequence[Batch], row: int) -> list[int]:
    """Indices of the segments of the last document of a row, in order, up to the last segment with a real token.

    Example:
      >>> one = lambda start: Batch(np.zeros((1, 2)), None, np.ones((1, 2), bool), None, np.array([start]))
      >>> from_starts([one(True), one(False), one(True), one(False)], 0)
      [2, 3]
    """
    real = [index for index, batch in enumerate(segments) if np.asarray(batch.mask)[row].any()]
    starts = [index for index in real if np.asarray(segments[index].start_of_document)[row]]
    return [index for index in real if not starts or index >= starts[-1]]


def as_arrays(segments: Sequence[Batch]) -> dict[str, Any]:
    """Tokens, starts of documents and mask with segments at axis 0, as the maps of memories take them."""
    stacked = lambda name: np.stack([np.asarray(getattr(batch, name)) for batch in segments])
    return {name: stacked(name) for name in ("inputs", "start_of_document", "mask")}


def words_of(run: OpenedRun, ids: Iterable[Any]) -> tuple[str, ...]:
    """The text of every id, with its spaces; of ids that are no text what they mean."""
    tokenizer = run.loaded.experiment.tokenizer
    begin = run.loaded.experiment.begin_token
    if tokenizer is None:
        documents = run.loaded.experiment.documents(run.split)
        return tuple(f" {documents.word(int(one))}" for one in ids)
    numbers = [int(one) for one in ids]
    decoded = {one: tokenizer.decode([one]) for one in {*numbers} if one != begin}
    return tuple(decoded.get(one, "") or " ·" for one in numbers)


def shown(words: Sequence[str]) -> list[str]:
    """Words for a picture: breaks and tabs as signs.

    Example:
      >>> shown([" a", "\\n", "\\t"])
      [' a', '⏎', '→']
    """
    return [word.replace("\n", "⏎").replace("\t", "→") for word in words]


def label_words(axes: Any, words: Sequence[str]) -> Any:
    """Writes a word below every column of a picture; returns the axes."""
    axes.set_xticks(range(len(words)), [word.strip() or "␣" for word in words], rotation=90, fontsize=10)
    axes.tick_params(axis="x", pad=3)
    return axes


def spread(count: int, most: int) -> list[int]:
    """At most so many of `count` indices, evenly, the first and the last among them.

    Example:
      >>> spread(3, 6), spread(12, 4)
      ([0, 1, 2], [0, 4, 7, 11])
    """
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))}) if count else []


def plain_logs(axes: Any) -> Any:
    """Writes the powers of ten of logarithmic axes as numbers, and nothing between them; returns the axes."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis, scale in ((axes.xaxis, axes.get_xscale()), (axes.yaxis, axes.get_yscale())):
        if scale == "log":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
    return axes


def age_groups(count: int, groups: int) -> list[tuple[int, int]]:
    """Ages 1 to `count` in at most so many runs (first, last), longer the older they are.

    Example:
      >>> age_groups(8, 4)
      [(1, 1), (2, 2), (3, 4), (5, 8)]
    """
    edges = np.unique(np.geomspace(1, count + 1, min(groups, count) + 1).round().astype(int))
    return [(int(first), int(last) - 1) for first, last in itertools.pairwise(edges)]
