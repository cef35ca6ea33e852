"""Panels of the signal of an infinity-former: where queries look in it, and how much room each token has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax.inspection.memory_maps import SignalMap, long_term_layers, signal_map, token_space, with_long_term_fields
from memjax.memory.contract import NotProvided
from memjax.report.charts import heatmap, line_chart
from memjax.report.panel import Figure, OpenedRun, Panel, Paragraph, Table
from memjax.report.segments import (
    age_groups,
    evenly_spaced,
    first_segments,
    label_log_axes,
    printable_words,
    segments_since_start,
    stack_segments,
    token_texts,
)

__all__ = ["panels"]

BINS = 64
"""of the densities"""
DRAWN, GROUPS, QUERIES, WORDS = 6, 48, 10, 160
"""layers with a line, groups of tokens along an axis, tokens whose attention is shown, words that are shaded"""


@dataclasses.dataclass(frozen=True)
class Document:
    """One document and the signal that its last segment reads.

    Attributes:
      found: of this document alone, one row.
      layer: index into `found.layers`, the last one with a signal.
      sticky: places of its remembered tokens with sticky updates.
      even: with even ones.
      tokens: int `[written, length]`, ids of the remembered tokens.
      queries: int, ids of the segment that reads.
      own: whether the updates of the run are sticky.
    """

    found: SignalMap
    layer: int
    sticky: np.ndarray
    even: np.ndarray
    tokens: np.ndarray
    queries: np.ndarray
    own: bool

    @property
    def last(self) -> int:
        """The segment that reads."""
        return self.found.mean.shape[1] - 1

    def attention(self, token: int) -> np.ndarray:
        """Mass of one query on each remembered token, mean over heads, `[tokens]`."""
        return self.found.token_attention(self.layer, self.last, token).mean(axis=0).ravel()


def panels(run: OpenedRun) -> Iterator[Panel]:
    """What the queries of an infinity-former look at in its signal; nothing of other models."""
    model = run.loaded_run.experiment.model
    try:
        _, memory = long_term_layers(model)
    except NotProvided:
        return
    segments, _ = first_segments(run, warm=True)
    arrays = stack_segments(segments)
    found = _map(run, model, arrays)
    counted = int(found.counted.any(axis=0).sum())
    if not counted:
        return
    documents = {row: segments_since_start(segments, row) for row in range(run.rows)}
    row = max(documents, key=lambda row: len(documents[row]))
    document = _document(run, arrays, row, documents[row])
    text = (
        "Where in its signal does the model look? The memory is a function over [0, 1], 0 = long ago, 1 = just before "
        "the segment, and every query looks at it with a Gaussian density. Martins et al. 2022 show histograms of "
        "where heads look, the space that tokens get with and without sticky memories, and the words that are "
        "attended to (https://arxiv.org/abs/2109.00301)."
    )
    densities = Figure(
        "signal_densities",
        "Where queries look in the signal",
        f"Mean density of all heads over {counted} tokens of the {run.split} split, {memory.num_basis} basis "
        "functions; 1 = evenly over the signal."
        + (f" {DRAWN} of {len(found.layers)} layers." if len(found.layers) > DRAWN else ""),
        lambda figure: draw_densities(figure, found),
    )
    yield Panel(
        "signal", "Signal of the long-term memory", text, (densities, *(_parts(run, document) if document else ()))
    )


def _map(run: OpenedRun, model: Any, arrays: dict[str, np.ndarray]) -> SignalMap:
    given = {name: jnp.asarray(array) for name, array in arrays.items()}
    return signal_map(model, run.loaded_run.variables["params"], given.pop("inputs"), **given)


def _document(run: OpenedRun, arrays: dict[str, np.ndarray], row: int, chosen: Sequence[int]) -> Document | None:
    """The last document of a row; None where its signal holds less than two segments."""
    model = run.loaded_run.experiment.model
    own = {name: array[list(chosen)][:, row : row + 1] for name, array in arrays.items()}
    _, memory = long_term_layers(model)
    found = _map(run, model, own)
    other = found if memory.sticky != "none" else _map(run, with_long_term_fields(model, sticky="quantile"), own)
    layer, last = len(found.layers) - 1, len(chosen) - 1
    updates = np.flatnonzero(found.updated[layer, :, 0])
    if len(updates) < 2:
        return None
    written = own["inputs"][updates - updates[0], 0]  # what was read so many segments before it entered
    sticky, even = (one.token_places(layer, last, even=even) for one, even in ((other, False), (found, True)))
    real = int(own["mask"][last, 0].sum())
    return Document(found, layer, sticky, even, written, own["inputs"][last, 0, :real], memory.sticky != "none")


def _parts(run: OpenedRun, document: Document) -> tuple[Any, ...]:
    count, layer = document.tokens.size, document.found.layers[document.layer]
    where = f"layer {layer}, one document of the {run.split} split, {count} tokens in the signal"
    other = "" if document.own else " The run's own updates are even; the sticky ones are those of the same parameters."
    space = Figure(
        "signal_space",
        "Space of each token with and without sticky updates",
        f"Share of [0, 1] that is nearer to a token than to others, times the number of tokens: 1 = an even share. "
        f"Sticky updates keep more of where queries looked. {where.capitalize()}, means of neighbouring tokens.{other}",
        lambda figure: draw_space(figure, document),
    )
    asking = evenly_spaced(len(document.queries), QUERIES)
    words = printable_words(token_texts(run, document.queries[asking].tolist()))
    masses = np.stack([document.attention(token) for token in asking])
    attention = Figure(
        "signal_attention",
        "What single words look at",
        f"Attention of {len(asking)} tokens of the last segment on the remembered ones, oldest at the left, in even "
        f"shares, mean over heads ({where}).",
        lambda figure: draw_attention(figure, masses, words),
        height=1.4 + 0.25 * len(asking),
    )
    rows = []
    for word, mass in zip(words, masses, strict=True):
        best = np.argsort(-mass, kind="stable")[:3].tolist()
        rows.append((word, *(f"{_context(run, document, index)} ({mass[index]:.3f})" for index in best)))
    table = Table(
        "signal_words",
        "Remembered tokens with the most attention",
        f"The three tokens in [ ] with the most mass of each of those words; evenly each would get {1 / count:.4f}.",
        ("word", "first", "second", "third"),
        tuple(rows),
    )
    return space, attention, table, _shaded(run, document, masses)


def _context(run: OpenedRun, document: Document, index: int) -> str:
    """A remembered token in [ ], with two at each side."""
    ids = document.tokens.ravel()
    pieces = printable_words(token_texts(run, ids[max(index - 2, 0) : index + 3].tolist()))
    at = min(index, 2)
    return "".join([*pieces[:at], f"[{pieces[at].strip() or pieces[at]}]", *pieces[at + 1 :]])


def _shaded(run: OpenedRun, document: Document, masses: np.ndarray) -> Paragraph:
    """The part of the remembered text with the most attention, shaded by it."""
    mean = masses.mean(axis=0)
    size = min(WORDS, mean.size)
    sums = np.convolve(mean, np.ones(size), "valid")
    start = int(sums.argmax())
    ids, chosen = document.tokens.ravel()[start : start + size], mean[start : start + size]
    notes = tuple(f"{mass * mean.size:.2f} times an even share" for mass in chosen)
    caption = (
        f"Darker = more attention of those words, full colour = {chosen.max() * mean.size:.2f} times an even share; "
        f"{size} of {mean.size} remembered tokens, those with the most attention."
    )
    values = tuple((chosen / max(float(chosen.max()), 1e-12)).tolist())
    return Paragraph("signal_text", "The remembered text", caption, token_texts(run, ids.tolist()), values, notes)


def draw_densities(figure: Any, found: SignalMap) -> Any:
    """A density a layer, over the signal."""
    places, density = (np.arange(BINS) + 0.5) / BINS, found.histogram(BINS) * BINS
    series = {f"layer {found.layers[index]}": (places, density[index]) for index in evenly_spaced(len(density), DRAWN)}
    named = {"x": "place in the signal (0 = long ago)", "y": "density", "limits": (0, None)}
    return line_chart(figure, series, levels={"even": 1.0}, **named)


def draw_space(figure: Any, document: Document) -> Any:
    """Space of tokens by how long ago they entered, with sticky and with even updates."""
    groups, series = age_groups(document.tokens.size, GROUPS), {}
    for name, places in (("even", document.even), ("sticky", document.sticky)):
        space = token_space(places.ravel())[::-1] * places.size  # the newest first
        middle = [(first * last) ** 0.5 for first, last in groups]
        series[name] = (middle, [float(space[first - 1 : last].mean()) for first, last in groups])
    named = {"x": "tokens ago, in the signal", "y": "space, in even shares", "log_x": True}
    axes = label_log_axes(line_chart(figure, series, levels={"an even share": 1.0}, limits=(0, None), **named))
    axes.invert_xaxis()
    return axes


def draw_attention(figure: Any, masses: np.ndarray, words: Sequence[str]) -> Any:
    """Words that ask by remembered tokens, the oldest at the left, in groups that are longer the older they are."""
    groups, newest = age_groups(masses.shape[1], GROUPS)[::-1], masses[:, ::-1] * masses.shape[1]
    matrix = np.stack([newest[:, first - 1 : last].mean(axis=1) for first, last in groups], axis=1)
    axes = heatmap(figure, matrix, rows=[word.strip() or "␣" for word in words], x="tokens ago, in the signal")
    ticks = evenly_spaced(len(groups), 8)
    axes.set_xticks(ticks, [str(groups[tick][1]) for tick in ticks])
    return axes
