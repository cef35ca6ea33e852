"""Panels of what a memory looks at: attention by age, retrieved tokens, memory tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from memjax.inspection.attention_ages import NAMES, AttentionAges, attention_by_age
from memjax.inspection.attention_maps import tracked
from memjax.inspection.retrievals import Retrieval, Retrievals, retrievals
from memjax.inspection.token_maps import TokenMaps, memory_token_maps
from memjax.memory.contract import Absent
from memjax.memory.projections import ROW
from memjax.report.charts import heat, lines
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.retrieved_arcs import Arcs, draw_arcs
from memjax.report.segments import MOST_WORDS, first_segments, label_words, shown, spread, words_of

__all__ = ["panels"]

DRAWN = 6
"""layers whose lines can be told apart"""
QUERIES, NEIGHBORS, LETTERS = 4, 4, 11
"""tokens of which arcs are drawn, what is named of each, and letters around a token"""
LISTED = 12
"""tokens in the table of what is retrieved"""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Attention by age, retrieved tokens and memory tokens, as far as the model has them."""
    model = run.loaded.experiment.model
    asked = (_ages, _retrieved) if _can_be_tracked(model) else ()
    for made in (*asked, *((_memory_tokens,) if model.num_memory_tokens else ())):
        try:
            found = made(run)
        except Absent:  # nothing that is retrieved, or keys without ages
            continue
        if found is not None:
            yield found


def _can_be_tracked(model: Any) -> bool:
    """Whether all layers tell what they attend to."""
    try:
        tracked(model)
    except Absent:
        return False
    return True


def _ages(run: OpenedRun) -> Panel | None:
    segments, skip = first_segments(run, warm=True)
    found = attention_by_age(run.loaded.experiment.model, run.loaded.variables, segments, skip=skip)
    if not found.memory_share().any():
        return None
    length = segments[0].mask.shape[1]
    counted = (
        f"{found.tokens} tokens of the {run.split} split, in {len(segments) - skip} segments of {length} after {skip}"
    )
    text = (
        "How far back does the model look? Mean attention of a token on what was read before it, as Rae et al. 2019 "
        "show it for memory and compressed memory (https://arxiv.org/abs/1911.05507), here by age in tokens."
    )
    ages = Figure(
        "attention_by_age",
        "Attention by age of the token that is read",
        f"Share of attention on tokens that were read 1, 2 to 3, 4 to 7, ... tokens before, mean over heads and "
        f"{counted} that fill the memory. Left of the upright line, at {length} tokens, part of it is in the own "
        "segment; right of it everything is memory. The token itself and learned rows are left out; a compressed slot "
        "counts evenly for all tokens that it stands for." + _left_out(len(found.layers)),
        lambda figure: draw_ages(figure, found, length),
    )
    sources = Figure(
        "attention_by_source",
        "Attention by where the key is from",
        f"Mean over heads and {counted}. Rows sum to 1, or less where a model also attends to slots that hold nothing.",
        lambda figure: draw_sources(figure, found),
        height=1.2 + 0.32 * min(len(found.layers), 16),
    )
    return Panel("attention_by_age", "What the memory looks at, by age", text, (ages, sources))


def _left_out(layers: int) -> str:
    return f" Of {layers} layers, {DRAWN} are drawn." if layers > DRAWN else ""


def draw_ages(figure: Any, found: AttentionAges, length: int) -> Any:
    """A line a layer, over ages that double."""
    last = max(found.mass.shape[2] - 1, 2)
    edges = 2 ** np.arange(int(np.log2(last)) + 2)
    sources = [source for source in NAMES if source != ROW]
    binned = found.binned(edges.tolist(), sources)
    middles = np.sqrt(edges[:-1] * np.minimum(edges[1:] - 1, last).clip(edges[:-1]))
    chosen = spread(len(found.layers), DRAWN)
    series = {f"layer {found.layers[index]}": (middles, binned[index]) for index in chosen}
    named = {"x": "tokens ago", "y": "share of attention", "log_x": True, "marks": True}
    axes = lines(figure, series, borders=(length,), limits=(0, None), **named)
    ticks = edges[: -1 : max(1, len(edges) // 8)]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    return axes


def draw_sources(figure: Any, found: AttentionAges) -> Any:
    """Layers by sources of keys."""
    by_source = found.by_source()
    used = [source for source in NAMES if by_source[:, source].any()]
    chosen = spread(len(found.layers), 16)
    rows = [f"layer {found.layers[index]}" for index in chosen]
    named = {"rows": rows, "columns": [NAMES[source] for source in used], "numbers": "{:.2f}", "low": 0, "high": 1}
    axes = heat(figure, by_source[chosen][:, used], **named)
    axes.tick_params(axis="x", rotation=0)
    return axes


def _retrieved(run: OpenedRun) -> Panel:
    segments, skip = first_segments(run, warm=True)
    found = retrievals(run.loaded.experiment.model, run.loaded.variables, segments)
    layer = len(found.layers) - 1
    # Of the last segments, where the memory is fullest; documents may be shorter than that.
    asking = found.sharpest(layer, LISTED, skip * segments[0].mask.shape[1]) or found.sharpest(layer, LISTED)
    same, chance = found.same_token(layer)
    tokens = int((found.places >= 0).sum())
    of_layer = f"layer {found.layers[layer]}, {tokens} tokens of the {run.split} split"
    text = (
        "What does a token look up? Wu et al. 2022 show that a name retrieves the place of its definition "
        "(https://arxiv.org/abs/2203.08913). Below are the tokens whose attention is most on one retrieved position, "
        "those first that segment and cache do not reach, each word once. Of all that is retrieved in "
        f"{of_layer}, {same:.1%} lies on earlier tokens of the same id; of what stands in the document before, "
        f"{chance:.1%} are such tokens."
    )
    arcs = [_arcs_of(run, found, layer, row, index) for row, index in asking[:QUERIES]]
    figure = Figure(
        "retrieved_tokens",
        "Retrieved tokens",
        "One text a strip, from its start to the token that asks (right, with its position). Arcs lead to the "
        f"{NEIGHBORS} positions with the largest weights, thicker = more, and the numbers are their shares of the "
        f"output of the layer, mean over heads ({of_layer}).",
        lambda figure: draw_arcs(figure, arcs),
        height=0.3 + 1.55 * max(len(arcs), 1),
    )
    rows = [_row_of(run, found, layer, row, index) for row, index in asking]
    table = Table(
        "retrieved_contexts",
        "What is retrieved, in its context",
        f"The word that asks or is retrieved stands in [ ]; weights are shares of the layer's output ({of_layer}).",
        ("asked by", "position", "retrieved", "tokens back", "weight"),
        tuple(line for lines_ in rows for line in lines_),
    )
    return Panel("retrieved", "Retrieved tokens", text, (figure, table) if arcs else ())


def _apart(found: Retrieval, count: int) -> list[tuple[int, float]]:
    """Positions with the largest weights, not two next to each other."""
    chosen: list[tuple[int, float]] = []
    for position, weight in zip(found.positions.tolist(), found.weights.tolist(), strict=True):
        if len(chosen) < count and weight > 0 and all(abs(position - other) > 1 for other, _ in chosen):
            chosen.append((position, weight))
    return chosen


def _arcs_of(run: OpenedRun, found: Retrievals, layer: int, row: int, index: int) -> Arcs:
    one = found.of_token(layer, row, index)
    ends = _apart(one, NEIGHBORS)
    words = [_context(run, found, row, index, position, LETTERS) for position, _ in ends]
    asking = _context(run, found, row, index, one.position, LETTERS)
    return Arcs(one.position, asking, tuple(ends), tuple(words))


def _row_of(run: OpenedRun, found: Retrievals, layer: int, row: int, index: int) -> list[tuple[Any, ...]]:
    one = found.of_token(layer, row, index)
    asked, lines_ = _context(run, found, row, index, one.position, 3 * LETTERS), []
    for number, (position, weight) in enumerate(_apart(one, 3)):
        words = _context(run, found, row, index, position, 3 * LETTERS)
        first = (asked, one.position) if number == 0 else (None, None)
        lines_.append((*first, words, one.position - position, round(weight, 3)))
    return lines_


def _context(run: OpenedRun, found: Retrievals, row: int, index: int, position: int, letters: int) -> str:
    """The word at a position in [ ], with what stands around it, cut to so many letters at each side."""
    ids = lambda around: found.text(row, index, position, around)
    wide = min(position, letters)
    near = shown(words_of(run, ids(letters)))
    before, word, after = "".join(near[:wide]), near[wide], "".join(near[wide + 1 :])
    half = max(letters - len(word), 4) // 2
    return f"{before[-half:]}[{word.strip() or word}]{after[:half]}"


def _memory_tokens(run: OpenedRun) -> Panel:
    segments, _ = first_segments(run)
    found = memory_token_maps(run.loaded.experiment.model, run.loaded.variables, segments)
    row = int(found.mask.sum(axis=1).argmax())
    length = int(found.mask[row].sum())
    words = shown(words_of(run, found.tokens[row, :length].tolist()))
    shares, layers = found.shares(), found.weights.shape[0]
    even = found.num_tokens / (found.num_tokens + length)
    text = (
        "What do memory tokens read, and who reads them? Attention of a MemTransformer over its memory tokens and the "
        "text, as Burtsev et al. 2020 show it (https://arxiv.org/abs/2006.11527)."
    )
    whole = Figure(
        "memory_token_maps",
        "Attention over memory tokens and text",
        f"Mean over heads, one text of {length} tokens of the {run.split} split; rows read columns, the first "
        f"{found.num_tokens} of both are memory tokens (up to the faint lines). Darker = more.",
        lambda figure: draw_maps(figure, found, row, length),
        height=3.0,
    )
    heads = Figure(
        "memory_token_words",
        "What the memory tokens read of the text",
        f"The last of {layers} layers, mean over heads; each column is a token of the same text.",
        lambda figure: draw_words(figure, found, row, words),
        height=1.9 + 0.25 * min(found.num_tokens, 16),
    )
    table = Table(
        "memory_token_shares",
        "Attention on memory tokens",
        f"Mean share over heads and {int(found.mask.sum())} tokens of {len(found.mask)} texts; evenly spread attention "
        f"over the text above would give {even:.2f}.",
        ("layer", *(f"of {name}" for name in shares)),
        tuple((index, *(round(float(of[index]), 3) for of in shares.values())) for index in range(layers)),
    )
    return Panel("memory_tokens", "Memory tokens", text, (whole, heads, table))


def draw_maps(figure: Any, found: TokenMaps, row: int, length: int) -> Any:
    """The maps of up to three layers, side by side."""
    chosen, drawn, last = spread(len(found.weights), 3), [], found.num_tokens + length
    for place, index in enumerate(chosen):
        matrix = found.of_text[index, row].mean(axis=0)[:last, :last]
        axes = heat(figure, matrix, title=f"layer {index}", place=(1, len(chosen), place + 1))
        for draw in (axes.axhline, axes.axvline):
            draw(found.num_tokens - 0.5, color="#9097a3", linewidth=0.8)
        drawn.append(axes)
    return drawn


def draw_words(figure: Any, found: TokenMaps, row: int, words: Sequence[str]) -> Any:
    """Memory tokens by words, in the last layer."""
    own = found.num_tokens
    matrix = found.of_text[-1, row].mean(axis=0)[:own, own : own + len(words)][:16, :MOST_WORDS]
    rows = [str(index) for index in range(len(matrix))]
    return label_words(heat(figure, matrix, rows=rows, y="memory token"), words[:MOST_WORDS])
