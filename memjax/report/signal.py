"""Panels of the signal of an infinity-former: where queries look in it, and how much space each token has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax.inspection.memory_maps import SignalMap, long_term_layers, signal_map, token_space, with_long_term_fields
from memjax.memory.interface import NotProvided
from memjax.report.charts import heatmap, line_chart
from memjax.report.panel import Figure, OpenedRun, Panel, Paragraph, Table
from memjax.report.run_text import (
    age_groups,
    evenly_spaced,
    first_segments,
    label_log_axes,
    printable_words,
    segments_since_start,
    stack_segments,
    token_texts,
)

BINS = 64
"""Number of bins of the densities."""
DRAWN, GROUPS, QUERIES, WORDS = 6, 48, 10, 160
"""Largest numbers of layers with a line, token groups along an axis, tokens with attention, and shaded words."""


@dataclasses.dataclass(frozen=True)
class Document:
    """One document of a run on an infinity-former: the signal that its last segment reads, and the positions in it of
    the remembered tokens.

    Attributes:
      found: Signal of this document, a batch of one row.
      layer: Index of the last layer with a signal in `found.layers`.
      sticky: Positions of the remembered tokens with sticky updates, `[written, length]`.
      even: Positions of the remembered tokens with even updates, `[written, length]`.
      tokens: Ids of the remembered tokens, int `[written, length]`.
      queries: Ids of the real tokens in the segment that reads, int `[length]`.
      own: Whether the run itself uses sticky updates.
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
        """Index of the document's last segment, from 0, in the arrays of `found`. This segment reads the signal."""
        return self.found.mean.shape[1] - 1

    def attention(self, token: int) -> np.ndarray:
        """Returns how much attention the token at position `token` of the last segment pays to each remembered token,
        the mean over heads, `[tokens]`.

        Args:
          token: Position of the query in the segment that reads.
        """
        return self.found.token_attention(self.layer, self.last, token).mean(axis=0).ravel()


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields one panel about the signal of an infinity-former: where queries look in it, and how much space each token
    has. It yields nothing for other models, or where no token was counted.
    """
    model = run.loaded_run.experiment.model
    try:
        _, memory = long_term_layers(model)
    except NotProvided:
        return
    segments, _ = first_segments(run, warm=True)
    arrays = stack_segments(segments)
    signal = _read_signal(run, model, arrays)
    counted = int(signal.counted.any(axis=0).sum())
    if not counted:
        return
    documents = {row: segments_since_start(segments, row) for row in range(run.rows)}
    row = max(documents, key=lambda row: len(documents[row]))
    document = _read_document(run, arrays, row, documents[row])
    text = (
        "Where in its signal does the model look? The memory is a function over [0, 1], where 0 is long ago and 1 is "
        "just before the segment. Every query reads it with a Gaussian density. Martins et al. 2022 show histograms of "
        "the positions that heads attend to, the space of tokens with and without sticky memories, and the words that "
        "are attended to (https://arxiv.org/abs/2109.00301)."
    )
    densities = Figure(
        "signal_densities",
        "Where queries look in the signal",
        f"Mean density of all heads over {counted} tokens of the {run.split} split, with {memory.num_basis} basis "
        "functions. 1 = uniform over the signal."
        + (f" {DRAWN} of {len(signal.layers)} layers." if len(signal.layers) > DRAWN else ""),
        lambda figure: _draw_densities(figure, signal),
    )
    yield Panel(
        "signal",
        "Signal of the long-term memory",
        text,
        (densities, *(_document_items(run, document) if document else ())),
    )


def _read_signal(run: OpenedRun, model: Any, arrays: dict[str, np.ndarray]) -> SignalMap:
    inputs = {name: jnp.asarray(array) for name, array in arrays.items()}
    return signal_map(model, run.loaded_run.variables["params"], inputs.pop("inputs"), **inputs)


def _read_document(run: OpenedRun, arrays: dict[str, np.ndarray], row: int, chosen: Sequence[int]) -> Document | None:
    """Reads the signal of a row's last document. None if it holds fewer than two segments."""
    model = run.loaded_run.experiment.model
    document_arrays = {name: array[list(chosen)][:, row : row + 1] for name, array in arrays.items()}
    _, memory = long_term_layers(model)
    signal = _read_signal(run, model, document_arrays)
    sticky_signal = (
        signal
        if memory.sticky != "none"
        else _read_signal(run, with_long_term_fields(model, sticky="quantile"), document_arrays)
    )
    layer, last = len(signal.layers) - 1, len(chosen) - 1
    updates = np.flatnonzero(signal.updated[layer, :, 0])
    if len(updates) < 2:
        return None
    # Tokens enter the signal `updates[0]` segments after they were read.
    written = document_arrays["inputs"][updates - updates[0], 0]
    sticky, even = (
        source.token_places(layer, last, even=even) for source, even in ((sticky_signal, False), (signal, True))
    )
    real = int(document_arrays["mask"][last, 0].sum())
    return Document(
        signal, layer, sticky, even, written, document_arrays["inputs"][last, 0, :real], memory.sticky != "none"
    )


def _document_items(run: OpenedRun, document: Document) -> tuple[Any, ...]:
    count, layer = document.tokens.size, document.found.layers[document.layer]
    where = f"layer {layer}, one document of the {run.split} split, {count} tokens in the signal"
    other = (
        "" if document.own else " The run's own updates are even. Sticky ones are computed with the same parameters."
    )
    space = Figure(
        "signal_space",
        "Space of each token with and without sticky updates",
        f"Share of [0, 1] that is nearer to a token than to any other, times the number of tokens: 1 = an even share. "
        f"Sticky updates give more space to positions that queries attended to. {where.capitalize()}, means of "
        f"neighbouring tokens.{other}",
        lambda figure: _draw_space(figure, document),
    )
    queries = evenly_spaced(len(document.queries), QUERIES)
    words = printable_words(token_texts(run, document.queries[queries].tolist()))
    masses = np.stack([document.attention(token) for token in queries])
    attention = Figure(
        "signal_attention",
        "Attention of single words on the signal",
        f"Attention of {len(queries)} tokens of the last segment on the remembered tokens, oldest at the left, in even "
        f"shares (1 = uniform attention), mean over heads ({where}).",
        lambda figure: _draw_attention(figure, masses, words),
        height=1.4 + 0.25 * len(queries),
    )
    rows = []
    for word, mass in zip(words, masses, strict=True):
        best = np.argsort(-mass, kind="stable")[:3].tolist()
        rows.append((word, *(f"{_context(run, document, index)} ({mass[index]:.3f})" for index in best)))
    table = Table(
        "signal_words",
        "Remembered tokens with the most attention",
        f"For each word the three tokens in [ ] with the most attention. Uniform attention would be {1 / count:.4f}.",
        ("word", "first", "second", "third"),
        tuple(rows),
    )
    return space, attention, table, _shaded_text(run, document, masses)


def _context(run: OpenedRun, document: Document, index: int) -> str:
    """Returns the text of a remembered token in [ ], with two tokens at each side."""
    ids = document.tokens.ravel()
    pieces = printable_words(token_texts(run, ids[max(index - 2, 0) : index + 3].tolist()))
    at = min(index, 2)
    return "".join([*pieces[:at], f"[{pieces[at].strip() or pieces[at]}]", *pieces[at + 1 :]])


def _shaded_text(run: OpenedRun, document: Document, masses: np.ndarray) -> Paragraph:
    """Makes the part of the remembered text with the most attention, shaded by attention."""
    mean = masses.mean(axis=0)
    size = min(WORDS, mean.size)
    sums = np.convolve(mean, np.ones(size), "valid")
    start = int(sums.argmax())
    ids, chosen = document.tokens.ravel()[start : start + size], mean[start : start + size]
    notes = tuple(f"{mass * mean.size:.2f} times an even share" for mass in chosen)
    caption = (
        f"Darker = more attention of those words. Full colour = {chosen.max() * mean.size:.2f} times an even share. "
        f"The passage of {size} of {mean.size} remembered tokens with the most attention is shown."
    )
    values = tuple((chosen / max(float(chosen.max()), 1e-12)).tolist())
    return Paragraph("signal_text", "The remembered text", caption, token_texts(run, ids.tolist()), values, notes)


def _draw_densities(figure: Any, found: SignalMap) -> Any:
    """Draws the mean density of the queries over the signal, with one line for each layer."""
    places, density = (np.arange(BINS) + 0.5) / BINS, found.histogram(BINS) * BINS
    series = {f"layer {found.layers[index]}": (places, density[index]) for index in evenly_spaced(len(density), DRAWN)}
    options = {"x": "place in the signal (0 = long ago)", "y": "density", "limits": (0, None)}
    return line_chart(figure, series, levels={"even": 1.0}, **options)


def _draw_space(figure: Any, document: Document) -> Any:
    """Draws the space of tokens by the time since they entered the signal, with sticky and with even updates."""
    groups, series = age_groups(document.tokens.size, GROUPS), {}
    for name, places in (("even", document.even), ("sticky", document.sticky)):
        space = token_space(places.ravel())[::-1] * places.size  # the newest first
        middle = [(first * last) ** 0.5 for first, last in groups]
        series[name] = (middle, [float(space[first - 1 : last].mean()) for first, last in groups])
    options = {"x": "tokens ago, in the signal", "y": "space, in even shares", "log_x": True}
    axes = label_log_axes(line_chart(figure, series, levels={"an even share": 1.0}, limits=(0, None), **options))
    axes.invert_xaxis()
    return axes


def _draw_attention(figure: Any, masses: np.ndarray, words: Sequence[str]) -> Any:
    """Draws the attention of words on remembered tokens, oldest at the left, with older tokens in larger groups."""
    groups, newest = age_groups(masses.shape[1], GROUPS)[::-1], masses[:, ::-1] * masses.shape[1]
    matrix = np.stack([newest[:, first - 1 : last].mean(axis=1) for first, last in groups], axis=1)
    axes = heatmap(figure, matrix, rows=[word.strip() or "␣" for word in words], x="tokens ago, in the signal")
    ticks = evenly_spaced(len(groups), 8)
    axes.set_xticks(ticks, [str(groups[tick][1]) for tick in ticks])
    return axes
