"""Panels of the slots of a Memformer: how writes change them, what the writer attends to, and which words read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax.inspection.memory_maps import SlotMap, slot_map
from memjax.report.charts import FAINT, SERIES, bar_chart, heatmap, line_chart
from memjax.report.panel import Figure, OpenedRun, Panel
from memjax.report.run_text import (
    MOST_WORDS,
    first_segments,
    label_words,
    printable_words,
    segments_since_start,
    stack_segments,
    token_texts,
)

TYPES = ("retaining", "aggregating", "rewritten")
SLOTS = 24
"""Largest number of slots that are drawn as rows."""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields one panel about the slots of a Memformer: how much of each slot a write keeps, and what is written. It
    yields nothing for other models.
    """
    model = run.loaded_run.experiment.model
    if not model.has_slots:
        return
    segments, _ = first_segments(run)
    arrays = stack_segments(segments)
    inputs = {name: jnp.asarray(array) for name, array in arrays.items()}
    slot_maps = slot_map(model, run.loaded_run.variables["params"], inputs.pop("inputs"), **inputs)
    begins = arrays["start_of_document"] & (not model.write_begin_token)  # nothing is written when a document begins
    wrote = arrays["mask"].any(axis=2) & ~begins
    if not wrote.any():
        return
    written = int(wrote.sum()) * slot_maps.shares.shape[2]
    text = (
        "What do the slots keep? Wu et al. 2020 call a slot retaining if 0.9 or more of it is left after a write, "
        "rewritten if 0.1 or less is left, and aggregating in between. They show what the writer of each kind attends "
        "to (https://arxiv.org/abs/2010.06891)."
    )
    moves = model.encoder.use_forgetting
    types = Figure(
        "slot_types",
        "Kinds of slots over a text",
        f"Share of {slot_maps.shares.shape[2]} slots after each of {len(segments)} segments of "
        f"{arrays['mask'].shape[2]} tokens, {arrays['mask'].shape[1]} rows of the {run.split} split: {written} writes. "
        "Nothing is written where a document begins.",
        lambda figure: _draw_types(figure, slot_maps, wrote),
    )
    norms = Figure(
        "slot_forgetting",
        "Forgetting of the slots",
        "Left: the norm of each slot's learned bias, "
        + ("towards which every write moves it (larger = forgets faster). " if moves else "its initial value only. ")
        + f"Right: the share of a slot that is left after a write, over {written} writes.",
        lambda figure: _draw_forgetting(figure, slot_maps, wrote),
        height=2.8,
    )
    documents = [segments_since_start(segments, row) for row in range(wrote.shape[1])]
    yield Panel("slots", "Slots of the memory", text, (types, *_word_figures(run, slot_maps, arrays, documents), norms))


def _word_figures(
    run: OpenedRun, found: SlotMap, arrays: dict[str, np.ndarray], documents: Sequence[Sequence[int]]
) -> list[Figure]:
    """Makes figures of the writer and the readers over words of the longest document, if it has two segments."""
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
    options = {"height": 2.0 + 0.16 * count}
    return [
        Figure(
            "slot_writer",
            "Attention of the writer of each slot",
            f"Mean over heads, {where}. The first column is the slot itself, the share that it keeps, cut off at the "
            f"full colour. Then follow the words{extra}. "
            f"{_describe_order(found, count)}",
            lambda figure: _draw_writer(figure, found, segment, row, words, classes),
            **options,
        ),
        Figure(
            "slot_readers",
            "Attention of the words on slots",
            f"Mean over heads and layers of the encoder, {where}. {_describe_order(found, count)}",
            lambda figure: _draw_reader(figure, found, segment, row, words),
            **options,
        ),
    ]


def _describe_order(found: SlotMap, count: int) -> str:
    slots = found.shares.shape[2]
    order = "Slots that keep most are on top."
    evenly = f"{count} of {slots} slots, evenly spaced from those that keep most (top) to those that keep least."
    return order if count == slots else evenly


def _choose_slots(found: SlotMap) -> np.ndarray:
    """Returns the numbers of the slots that are drawn, those that keep most first."""
    ranked = np.argsort(-found.shares.mean(axis=(0, 1)), kind="stable")
    return ranked[np.unique(np.linspace(0, len(ranked) - 1, min(len(ranked), SLOTS)).round().astype(int))]


def _draw_types(figure: Any, found: SlotMap, wrote: np.ndarray) -> Any:
    """Draws stacked bars of the shares of the kinds of slots after each segment, over the rows that wrote."""
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


def _draw_writer(figure: Any, found: SlotMap, segment: int, row: int, words: Sequence[str], classes: int) -> Any:
    """Draws the attention of the writer of each slot on the slot itself, the words and classification tokens."""
    order, most = _choose_slots(found), min(len(words), MOST_WORDS)
    weights = found.writer[segment, row].mean(axis=0)[order]  # [slots, sources]
    text = weights.shape[1] - classes
    columns = [*range(1 + most), *range(text, weights.shape[1])]
    high = float(weights[:, 1:].max(initial=0.0)) or 1.0  # what a slot keeps of itself would hide the words
    axes = heatmap(figure, weights[:, columns], rows=[str(slot) for slot in order], y="slot", high=high)
    axes.axvline(0.5, color=FAINT, linewidth=0.8)
    return label_words(axes, ["itself", *words[:most], *["cls"] * classes])


def _draw_reader(figure: Any, found: SlotMap, segment: int, row: int, words: Sequence[str]) -> Any:
    """Draws the attention of the words on each slot."""
    order, most = _choose_slots(found), min(len(words), MOST_WORDS)
    weights = found.reader[segment, :, row].mean(axis=(0, 1))[:most, order].T  # [slots, words]
    return label_words(heatmap(figure, weights, rows=[str(slot) for slot in order], y="slot"), words[:most])


def _draw_forgetting(figure: Any, found: SlotMap, wrote: np.ndarray) -> Any:
    """Draws the norms of the biases, largest first, and a histogram of the shares of slots that are left."""
    norms = np.sort(found.bias_norms)[::-1]
    ranks = np.arange(1, len(norms) + 1)
    options = {"x": "slot, by rank", "y": "norm of bias", "marks": len(norms) < 40}
    left = line_chart(figure, {"": (ranks, norms)}, limits=(0, None), place=(1, 2, 1), **options)
    edges = np.linspace(0, 1, 11)
    shares = found.shares[wrote]
    counts = np.histogram(shares, edges)[0] / shares.size
    names = [f"{edge:.1f}" for edge in edges[:-1]]
    right = bar_chart(
        figure, names, {"": counts}, x="share left, from", y="share of writes", upright=True, place=(1, 2, 2)
    )
    right.set_xticks(range(0, 10, 3), names[::3])
    return [left, right]
