"""Text of a run for the panels of a report: consecutive segments of its split, and the texts of token ids."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from memjax.report.panel import OpenedRun
from memjax.typing import Batch

MOST_WORDS = 40
"""Largest number of words that are written below a picture."""

WARM = 3
"""Number of segments that fill the memory beforehand, for each segment that is inspected."""


def first_segments(run: OpenedRun, *, warm: bool = False) -> tuple[list[Batch], int]:
    """Reads the first `run.segments` batches of the inspected split. With `warm`, three times as many are read before
    them to fill the memory. Returns all batches, and how many of them only fill it.

    Args:
      run: Opened run. Its `rows` and `segments` set the size and number of the batches.
      warm: Whether to read further segments before the inspected ones, so that the memory is filled.

    Returns:
      The segments in order, and the number of leading segments that are not inspected.
    """
    experiment = run.loaded_run.experiment
    protocol = (
        "" if experiment.config.evaluation.protocol == "sliding_window" else experiment.config.evaluation.protocol
    )
    evaluation = dataclasses.replace(
        experiment.config.evaluation, split=run.split, batch_size=run.rows, protocol=protocol, stride=0
    )
    batches = experiment.reading(evaluation).batches(experiment.documents(run.split))
    wanted = run.segments * (1 + WARM) if warm else run.segments
    batches_read = list(itertools.islice(batches, wanted))
    return batches_read, max(len(batches_read) - run.segments, 0)


def segments_since_start(segments: Sequence[Batch], row: int) -> list[int]:
    """Lists the indices of those segments that belong to the last document of one row, without segments of padding
    only.

    Args:
      segments: Consecutive batches.
      row: Number of the row in the batches.

    Example:
      >>> batch = lambda start: Batch(np.zeros((1, 2)), None, np.ones((1, 2), bool), None, np.array([start]))
      >>> segments_since_start([batch(True), batch(False), batch(True), batch(False)], 0)
      [2, 3]
    """
    real = [index for index, batch in enumerate(segments) if np.asarray(batch.mask)[row].any()]
    starts = [index for index in real if np.asarray(segments[index].start_of_document)[row]]
    return [index for index in real if not starts or index >= starts[-1]]


def stack_segments(segments: Sequence[Batch]) -> dict[str, Any]:
    """Stacks the arrays `inputs`, `start_of_document` and `mask` of several batches along a new axis 0, and returns
    them as a dict by these names.
    """
    stacked = lambda name: np.stack([np.asarray(getattr(batch, name)) for batch in segments])
    return {name: stacked(name) for name in ("inputs", "start_of_document", "mask")}


def token_texts(run: OpenedRun, ids: Iterable[Any]) -> tuple[str, ...]:
    """Decodes every token id on its own and returns the texts, with their spaces. Without a tokenizer the text is the
    label of the id in the data.
    """
    tokenizer = run.loaded_run.experiment.tokenizer
    begin = run.loaded_run.experiment.begin_token
    if tokenizer is None:
        documents = run.loaded_run.experiment.documents(run.split)
        return tuple(f" {documents.token_label(int(token))}" for token in ids)
    numbers = [int(token) for token in ids]
    decoded = {token: tokenizer.decode([token]) for token in {*numbers} if token != begin}
    return tuple(decoded.get(token, "") or " ·" for token in numbers)


def printable_words(words: Sequence[str]) -> list[str]:
    """Returns the words with line breaks and tabs replaced by visible signs, for a picture.

    Example:
      >>> printable_words([" a", "\\n", "\\t"])
      [' a', '⏎', '→']
    """
    return [word.replace("\n", "⏎").replace("\t", "→") for word in words]


def label_words(axes: Any, words: Sequence[str]) -> Any:
    """Writes the words below the columns of a chart, one for each column from 0, and returns the same Matplotlib
    axes.
    """
    axes.set_xticks(range(len(words)), [word.strip() or "␣" for word in words], rotation=90, fontsize=10)
    axes.tick_params(axis="x", pad=3)
    return axes


def evenly_spaced(count: int, most: int) -> list[int]:
    """Returns at most `most` of the indices 0 to `count` - 1, evenly spaced and ascending: the first, and the last if
    `most` > 1.

    Example:
      >>> evenly_spaced(3, 6), evenly_spaced(12, 4)
      ([0, 1, 2], [0, 4, 7, 11])
    """
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))}) if count else []


def label_log_axes(axes: Any) -> Any:
    """Labels only the powers of ten on logarithmic axes, as plain numbers such as 0.1 or 100, and returns the same
    Matplotlib axes.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis, scale in ((axes.xaxis, axes.get_xscale()), (axes.yaxis, axes.get_yscale())):
        if scale == "log":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
    return axes


def age_groups(count: int, groups: int) -> list[tuple[int, int]]:
    """Divides the ages 1 to `count` into at most `groups` ranges, narrow for young and wide for old ages. Returns
    (first, last) of each.

    Example:
      >>> age_groups(8, 4)
      [(1, 1), (2, 2), (3, 4), (5, 8)]
    """
    edges = np.unique(np.geomspace(1, count + 1, min(groups, count) + 1).round().astype(int))
    return [(int(first), int(last) - 1) for first, last in itertools.pairwise(edges)]
