"""Panels of attention: by the age of the tokens that are read, to retrieved tokens, and to memory tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from memjax.inspection.attention_ages import NAMES, AttentionAges, attention_by_age
from memjax.inspection.attention_maps import make_attention_tracking_model
from memjax.inspection.retrievals import Retrieval, Retrievals, retrievals
from memjax.inspection.token_maps import TokenMaps, memory_token_maps
from memjax.memory.interface import NotProvided
from memjax.memory.layer_parts import ROW
from memjax.report.charts import heatmap, line_chart
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.retrieved_arcs import RetrievalArcs, draw_arcs
from memjax.report.run_text import MOST_WORDS, evenly_spaced, first_segments, label_words, printable_words, token_texts

DRAWN = 6
"""Largest number of layers with a line in a chart."""
QUERIES, NEIGHBORS, LETTERS = 4, 4, 11
"""Numbers of tokens with arcs, of retrieved positions for each of them, and of letters around a token."""
LISTED = 12
"""Number of tokens in the table of retrieved contexts."""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields up to three panels: attention by the age of tokens, tokens that were retrieved, and memory tokens. A panel
    is left out if the model lacks what it shows.
    """
    model = run.loaded_run.experiment.model
    makers = (_ages_panel, _retrieved_panel) if _can_be_tracked(model) else ()
    for make_panel in (*makers, *((_memory_tokens_panel,) if model.num_memory_tokens else ())):
        try:
            panel = make_panel(run)
        except NotProvided:  # no layer retrieves, or keys have no ages
            continue
        if panel is not None:
            yield panel


def _can_be_tracked(model: Any) -> bool:
    """Returns whether all layers can record their attention."""
    try:
        make_attention_tracking_model(model)
    except NotProvided:
        return False
    return True


def _ages_panel(run: OpenedRun) -> Panel | None:
    segments, skip = first_segments(run, warm=True)
    attention = attention_by_age(run.loaded_run.experiment.model, run.loaded_run.variables, segments, skip=skip)
    if not attention.memory_share().any():
        return None
    length = segments[0].mask.shape[1]
    num_segments = len(segments) - skip
    counted = f"{attention.tokens} tokens of the {run.split} split, in {num_segments} segments of {length} after {skip}"
    text = (
        "How far back does the model look? The mean attention of a token on earlier tokens by their age. Rae et al. "
        "2019 show it for a memory and a compressed memory (https://arxiv.org/abs/1911.05507)."
    )
    ages = Figure(
        "attention_by_age",
        "Attention by age of the token that is read",
        f"Share of attention on tokens that were read 1, 2 to 3, 4 to 7, ... tokens before, mean over heads and "
        f"{counted} that fill the memory. Left of the vertical line, at {length} tokens, some of these tokens are in "
        "the current segment. Right of it all of them are in memories. The token itself and learned rows are left out. "
        "The attention on a compressed slot is spread evenly over its tokens." + _left_out(len(attention.layers)),
        lambda figure: _draw_ages(figure, attention, length),
    )
    sources = Figure(
        "attention_by_source",
        "Attention by source of the key",
        f"Mean over heads and {counted}. Rows sum to 1, or less if a model also attends to empty slots.",
        lambda figure: _draw_sources(figure, attention),
        height=1.2 + 0.32 * min(len(attention.layers), 16),
    )
    return Panel("attention_by_age", "Attention by age", text, (ages, sources))


def _left_out(layers: int) -> str:
    return f" Of {layers} layers, {DRAWN} are drawn." if layers > DRAWN else ""


def _draw_ages(figure: Any, found: AttentionAges, length: int) -> Any:
    """Draws the attention over ages in doubling bins, with one line for each layer."""
    last = max(found.mass.shape[2] - 1, 2)
    edges = 2 ** np.arange(int(np.log2(last)) + 2)
    sources = [source for source in NAMES if source != ROW]
    binned = found.binned(edges.tolist(), sources)
    middles = np.sqrt(edges[:-1] * np.minimum(edges[1:] - 1, last).clip(edges[:-1]))
    chosen = evenly_spaced(len(found.layers), DRAWN)
    series = {f"layer {found.layers[index]}": (middles, binned[index]) for index in chosen}
    options = {"x": "tokens ago", "y": "share of attention", "log_x": True, "marks": True}
    axes = line_chart(figure, series, borders=(length,), limits=(0, None), **options)
    ticks = edges[: -1 : max(1, len(edges) // 8)]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    return axes


def _draw_sources(figure: Any, found: AttentionAges) -> Any:
    """Draws the attention as a heat map of layers and sources of keys."""
    by_source = found.by_source()
    used = [source for source in NAMES if by_source[:, source].any()]
    chosen = evenly_spaced(len(found.layers), 16)
    rows = [f"layer {found.layers[index]}" for index in chosen]
    options = {"rows": rows, "columns": [NAMES[source] for source in used], "numbers": "{:.2f}", "low": 0, "high": 1}
    axes = heatmap(figure, by_source[chosen][:, used], **options)
    axes.tick_params(axis="x", rotation=0)
    return axes


def _retrieved_panel(run: OpenedRun) -> Panel:
    segments, skip = first_segments(run, warm=True)
    retrieved = retrievals(run.loaded_run.experiment.model, run.loaded_run.variables, segments)
    layer = len(retrieved.layers) - 1
    # The memory is fullest in the last segments, but documents may be too short to reach them.
    queries = retrieved.sharpest(layer, LISTED, skip * segments[0].mask.shape[1]) or retrieved.sharpest(layer, LISTED)
    same, chance = retrieved.same_token(layer)
    tokens = int((retrieved.places >= 0).sum())
    of_layer = f"layer {retrieved.layers[layer]}, {tokens} tokens of the {run.split} split"
    text = (
        "What does a token look up? Wu et al. 2022 show that a name retrieves the position of its definition "
        "(https://arxiv.org/abs/2203.08913). Below are the tokens with the most attention on a single retrieved "
        "position, each token once, first those whose position is neither in the segment nor in the cache. In "
        f"{of_layer}, {same:.1%} of the retrieved weight is on earlier occurrences of the same token, which make up "
        f"{chance:.1%} of all earlier tokens."
    )
    arcs = [_arcs_of(run, retrieved, layer, row, index) for row, index in queries[:QUERIES]]
    figure = Figure(
        "retrieved_tokens",
        "Retrieved tokens",
        "Each strip is one text from its start to the token that retrieves (right, with its position). Arcs lead to "
        f"the {NEIGHBORS} positions with the largest weights, thicker = more. The numbers are their shares of the "
        f"layer's output, mean over heads ({of_layer}).",
        lambda figure: draw_arcs(figure, arcs),
        height=0.3 + 1.55 * max(len(arcs), 1),
    )
    rows = [_context_rows(run, retrieved, layer, row, index) for row, index in queries]
    table = Table(
        "retrieved_contexts",
        "Retrieved tokens in context",
        f"The retrieving or retrieved token stands in [ ]. Weights are shares of the layer's output ({of_layer}).",
        ("retrieved by", "position", "retrieved", "tokens back", "weight"),
        tuple(line for lines_ in rows for line in lines_),
    )
    return Panel("retrieved", "Retrieved tokens", text, (figure, table) if arcs else ())


def _choose_positions(found: Retrieval, count: int) -> list[tuple[int, float]]:
    """Chooses the positions with the largest weights, no two of them adjacent."""
    chosen: list[tuple[int, float]] = []
    for position, weight in zip(found.positions.tolist(), found.weights.tolist(), strict=True):
        if len(chosen) < count and weight > 0 and all(abs(position - other) > 1 for other, _ in chosen):
            chosen.append((position, weight))
    return chosen


def _arcs_of(run: OpenedRun, found: Retrievals, layer: int, row: int, index: int) -> RetrievalArcs:
    retrieval = found.of_token(layer, row, index)
    ends = _choose_positions(retrieval, NEIGHBORS)
    words = [_context(run, found, row, index, position, LETTERS) for position, _ in ends]
    query = _context(run, found, row, index, retrieval.position, LETTERS)
    return RetrievalArcs(retrieval.position, query, tuple(ends), tuple(words))


def _context_rows(run: OpenedRun, found: Retrievals, layer: int, row: int, index: int) -> list[tuple[Any, ...]]:
    retrieval = found.of_token(layer, row, index)
    query, table_rows = _context(run, found, row, index, retrieval.position, 3 * LETTERS), []
    for number, (position, weight) in enumerate(_choose_positions(retrieval, 3)):
        words = _context(run, found, row, index, position, 3 * LETTERS)
        first = (query, retrieval.position) if number == 0 else (None, None)
        table_rows.append((*first, words, retrieval.position - position, round(weight, 3)))
    return table_rows


def _context(run: OpenedRun, found: Retrievals, row: int, index: int, position: int, letters: int) -> str:
    """Returns the word at a position in [ ] with some letters of the text at each side."""
    ids = lambda around: found.text(row, index, position, around)
    wide = min(position, letters)
    near = printable_words(token_texts(run, ids(letters)))
    before, word, after = "".join(near[:wide]), near[wide], "".join(near[wide + 1 :])
    half = max(letters - len(word), 4) // 2
    return f"{before[-half:]}[{word.strip() or word}]{after[:half]}"


def _memory_tokens_panel(run: OpenedRun) -> Panel:
    segments, _ = first_segments(run)
    maps = memory_token_maps(run.loaded_run.experiment.model, run.loaded_run.variables, segments)
    row = int(maps.mask.sum(axis=1).argmax())
    length = int(maps.mask[row].sum())
    words = printable_words(token_texts(run, maps.tokens[row, :length].tolist()))
    shares, layers = maps.shares(), maps.weights.shape[0]
    even = maps.num_tokens / (maps.num_tokens + length)
    text = (
        "What do memory tokens attend to, and which tokens attend to them? Burtsev et al. 2020 show such maps of a "
        "MemTransformer over its memory tokens and the text (https://arxiv.org/abs/2006.11527)."
    )
    whole = Figure(
        "memory_token_maps",
        "Attention over memory tokens and text",
        f"Mean over heads, one text of {length} tokens of the {run.split} split. Rows attend to columns. The first "
        f"{maps.num_tokens} of both, up to the faint lines, are memory tokens. Darker = more.",
        lambda figure: _draw_maps(figure, maps, row, length),
        height=3.0,
    )
    heads = Figure(
        "memory_token_words",
        "Attention of the memory tokens on the text",
        f"The last of {layers} layers, mean over heads. Each column is a token of the same text.",
        lambda figure: _draw_words(figure, maps, row, words),
        height=1.9 + 0.25 * min(maps.num_tokens, 16),
    )
    table = Table(
        "memory_token_shares",
        "Attention on memory tokens",
        f"Mean share over heads and {int(maps.mask.sum())} tokens of {len(maps.mask)} texts. Uniform attention "
        f"over the text above would give {even:.2f}.",
        ("layer", *(f"of {name}" for name in shares)),
        tuple((index, *(round(float(of[index]), 3) for of in shares.values())) for index in range(layers)),
    )
    return Panel("memory_tokens", "Memory tokens", text, (whole, heads, table))


def _draw_maps(figure: Any, found: TokenMaps, row: int, length: int) -> Any:
    """Draws the attention maps of up to three layers side by side."""
    chosen, charts, last = evenly_spaced(len(found.weights), 3), [], found.num_tokens + length
    for place, index in enumerate(chosen):
        matrix = found.of_text[index, row].mean(axis=0)[:last, :last]
        axes = heatmap(figure, matrix, title=f"layer {index}", place=(1, len(chosen), place + 1))
        for draw in (axes.axhline, axes.axvline):
            draw(found.num_tokens - 0.5, color="#9097a3", linewidth=0.8)
        charts.append(axes)
    return charts


def _draw_words(figure: Any, found: TokenMaps, row: int, words: Sequence[str]) -> Any:
    """Draws the attention of memory tokens on words in the last layer."""
    count = found.num_tokens
    matrix = found.of_text[-1, row].mean(axis=0)[:count, count : count + len(words)][:16, :MOST_WORDS]
    rows = [str(index) for index in range(len(matrix))]
    return label_words(heatmap(figure, matrix, rows=rows, y="memory token"), words[:MOST_WORDS])
