"""Panels of the slots of a Memformer: what becomes of them, what they take in, who reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax.inspection.memory_maps import SlotMap, slot_map
from memjax.report.charts import FAINT, SERIES, bar_chart, heatmap, line_chart
from memjax.report.panel import Figure, OpenedRun, Panel
from memjax.report.segments import (
    MOST_WORDS,
    first_segments,
    label_words,
    printable_words,
    segments_since_start,
    stack_segments,
    token_texts,
)

__all__ = ["panels"]

TYPES = ("retaining", "aggregating", "rewritten")
SLOTS = 24
"""that are drawn as rows"""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """What the slots of a Memformer do; nothing of other models."""
    model = run.loaded_run.experiment.model
    if not model.has_slots:
        return
    segments, _ = first_segments(run)
    arrays = stack_segments(segments)
    given = {name: jnp.asarray(array) for name, array in arrays.items()}
    found = slot_map(model, run.loaded_run.variables["params"], given.pop("inputs"), **given)
    begins = arrays["start_of_document"] & (not model.writes_begin)  # nothing is written when a document begins
    wrote = arrays["mask"].any(axis=2) & ~begins
    if not wrote.any():
        return
    written = int(wrote.sum()) * found.shares.shape[2]
    text = (
        "What do the slots keep? Wu et al. 2020 call a slot retaining where 0.9 or more of it is left after a write, "
        "rewritten where 0.1 or less is, and aggregating in between, and show what the writer of each kind attends to "
        "(https://arxiv.org/abs/2010.06891)."
    )
    moves = model.encoder.forgetting
    types = Figure(
        "slot_types",
        "Kinds of slots over a text",
        f"Share of {found.shares.shape[2]} slots after each of {len(segments)} segments of {arrays['mask'].shape[2]} "
        f"tokens, {arrays['mask'].shape[1]} rows of the {run.split} split: {written} writes. "
        "Nothing is written where a document begins.",
        lambda figure: draw_types(figure, found, wrote),
    )
    norms = Figure(
        "slot_forgetting",
        "How fast slots forget, and what is left of them",
        "Left: the length of each slot's learned bias, "
        + ("towards which it moves in every write (longer = forgets faster). " if moves else "its initial value only. ")
        + f"Right: what is left of a slot after a write, share of {written} writes.",
        lambda figure: draw_forgetting(figure, found, wrote),
        height=2.8,
    )
    documents = [segments_since_start(segments, row) for row in range(wrote.shape[1])]
    yield Panel("slots", "Slots of the memory", text, (types, *_words(run, found, arrays, documents), norms))


def _words(
    run: OpenedRun, found: SlotMap, arrays: dict[str, np.ndarray], documents: Sequence[Sequence[int]]
) -> list[Figure]:
    """Writer and readers over the words of the longest document; none where all are of one segment."""
    row = int(np.argmax([len(chosen) for chosen in documents]))
    if len(documents[row]) < 2:
        return []
    segment, before = documents[row][-1], documents[row][-2]
    real = int(arrays["mask"][before, row].sum())
    words = printable_words(token_texts(run, arrays["inputs"][before, row, :real].tolist()))
    classes = found.writer.shape[-1] - 1 - arrays["mask"].shape[2]
    extra = f", then {classes} classification token{'s' if classes > 1 else ''} (cls)" if classes else ""
    where = f"one segment of {real} tokens of the {run.split} split"
    count = min(found.shares.shape[2], SLOTS)
    named = {"height": 2.0 + 0.16 * count}
    return [
        Figure(
            "slot_writer",
            "What the writer of each slot attends to",
            f"Mean over heads, {where}. First column: the slot itself, what it keeps, "
            f"up to the full colour; then the words{extra}. "
            f"{_chosen(found, count)}",
            lambda figure: draw_writer(figure, found, segment, row, words, classes),
            **named,
        ),
        Figure(
            "slot_readers",
            "Which slots the words read",
            f"Mean over heads and layers of the encoder, {where}. {_chosen(found, count)}",
            lambda figure: draw_reader(figure, found, segment, row, words),
            **named,
        ),
    ]


def _chosen(found: SlotMap, count: int) -> str:
    slots = found.shares.shape[2]
    order = "Slots that keep most stand on top."
    evenly = f"{count} of {slots} slots, evenly from those that keep most (top) to those that keep least."
    return order if count == slots else evenly


def _order(found: SlotMap) -> np.ndarray:
    """Slots that are drawn, those that keep most first."""
    ranked = np.argsort(-found.shares.mean(axis=(0, 1)), kind="stable")
    return ranked[np.unique(np.linspace(0, len(ranked) - 1, min(len(ranked), SLOTS)).round().astype(int))]


def draw_types(figure: Any, found: SlotMap, wrote: np.ndarray) -> Any:
    """Shares of the kinds after each segment, stacked, over the rows that wrote."""
    counts = np.where(wrote[..., None], found.type_counts(), 0).sum(axis=1)  # [segments, 3]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes = line_chart(figure, {}, x="segment", y="share of slots", limits=(0, 1))
    below, places = np.zeros(len(shares)), np.arange(len(shares))
    for index, (name, color) in enumerate(zip(TYPES, SERIES, strict=False)):
        axes.bar(places, shares[:, index], 0.85, bottom=below, color=color, label=name)
        below = below + shares[:, index]
    axes.set_xticks(places[:: max(1, len(places) // 10)])
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, borderaxespad=0.2, handlelength=1.2)
    return axes


def draw_writer(figure: Any, found: SlotMap, segment: int, row: int, words: Sequence[str], classes: int) -> Any:
    """Slots by the sources of their write."""
    order, most = _order(found), min(len(words), MOST_WORDS)
    weights = found.writer[segment, row].mean(axis=0)[order]  # [slots, sources]
    text = weights.shape[1] - classes
    columns = [*range(1 + most), *range(text, weights.shape[1])]
    high = float(weights[:, 1:].max(initial=0.0)) or 1.0  # what a slot keeps of itself would hide the words
    axes = heatmap(figure, weights[:, columns], rows=[str(slot) for slot in order], y="slot", high=high)
    axes.axvline(0.5, color=FAINT, linewidth=0.8)
    return label_words(axes, ["itself", *words[:most], *["cls"] * classes])


def draw_reader(figure: Any, found: SlotMap, segment: int, row: int, words: Sequence[str]) -> Any:
    """Slots by the words that read them."""
    order, most = _order(found), min(len(words), MOST_WORDS)
    weights = found.reader[segment, :, row].mean(axis=(0, 1))[:most, order].T  # [slots, words]
    return label_words(heatmap(figure, weights, rows=[str(slot) for slot in order], y="slot"), words[:most])


def draw_forgetting(figure: Any, found: SlotMap, wrote: np.ndarray) -> Any:
    """Lengths of the biases, longest first, and how much of slots is left."""
    norms = np.sort(found.bias_norms)[::-1]
    ranks = np.arange(1, len(norms) + 1)
    named = {"x": "slot, by rank", "y": "length of bias", "marks": len(norms) < 40}
    left = line_chart(figure, {"": (ranks, norms)}, limits=(0, None), place=(1, 2, 1), **named)
    edges = np.linspace(0, 1, 11)
    shares = found.shares[wrote]
    counts = np.histogram(shares, edges)[0] / shares.size
    names = [f"{edge:.1f}" for edge in edges[:-1]]
    right = bar_chart(
        figure, names, {"": counts}, x="share left, from", y="share of writes", upright=True, place=(1, 2, 2)
    )
    right.set_xticks(range(0, 10, 3), names[::3])
    return [left, right]
