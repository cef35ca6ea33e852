"""Panels of a model that has grown: attention of its heads beside that of the heads that they are copies of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from memjax.lifelong.ancestors import (
    HeadCorrelations,
    correlate_heads,
    head_sources,
    map_correlations,
    subtract_uniform_attention,
)
from memjax.lifelong.expansion import Growth
from memjax.lifelong.looks import KEPT, GenerationCheckpoint, ancestor_pairs, generation_checkpoints
from memjax.report import charts
from memjax.report.panel import Figure, OpenedRun, Panel, Table

__all__ = ["Lineage", "Pair", "head_in_the_middle", "panels", "read_lineage"]

PIECES = 16
"""of the first domain that are read, at most"""
TOKENS = 24
"""of a piece whose maps are shown, at most"""


@dataclasses.dataclass(frozen=True)
class Pair:
    """An ancestor and a descendant.

    Attributes:
      ancestor: the older one.
      descendant: the other.
      sources: `[layers, heads, 2]`, layer and head of the ancestor that each head of the descendant is a copy of.
      weights: correlations of attention weights.
      beyond: of what they are beyond even attention.
    """

    ancestor: GenerationCheckpoint
    descendant: GenerationCheckpoint
    sources: np.ndarray
    weights: HeadCorrelations
    beyond: HeadCorrelations


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The generations of a run, all of which have read the same pieces.

    Attributes:
      looks: the first and the last checkpoint of each, oldest first.
      growths: what lies between generations.
      maps: look -> `memjax.inspection.attention_maps.AttentionMaps`.
      rows: the pieces.
      domain: whose validation split they are of.
      tokenizer: of the run.
    """

    looks: tuple[GenerationCheckpoint, ...]
    growths: tuple[Growth, ...]
    maps: dict[GenerationCheckpoint, Any]
    rows: Any
    domain: str
    tokenizer: Any

    def pairs(self) -> list[Pair]:
        """The last look of each generation with those of all later ones."""
        sizes = lambda look: (self.maps[look].weights.shape[0], self.maps[look].weights.shape[2])
        first, found = self.looks[0], list[Pair]()
        for one, other in ancestor_pairs(self.looks):
            sources = head_sources(self.growths[one.generation : other.generation], *sizes(one))
            founders = head_sources(self.growths[first.generation : one.generation], *sizes(first))
            both, seen = [self.maps[look].weights for look in (one, other)], self.maps[one].seen
            correlated = [
                correlate_heads(map_correlations(old, new, seen), sources, founders)
                for old, new in (both, [subtract_uniform_attention(part, seen) for part in both])
            ]
            found.append(Pair(one, other, sources, *correlated))
        return found


def read_lineage(run: Path | str, pieces: int) -> Lineage:
    """Attention of all generations of a run over the same text.

    Args:
      run: with checkpoints of several generations.
      pieces: of the validation split of its first domain, at most.

    Raises:
      ValueError: as `generation_checkpoints`, or a model whose attention cannot be shown.
    """
    from memjax.inspection.attention_maps import attention_maps
    from memjax.lifelong import load_run
    from memjax.training.runs import load_config

    looks, growths = generation_checkpoints(run)
    stream = load_config(run).lifelong
    assert stream is not None  # nothing else grows
    domain, maps = stream.in_order[0].name, dict[GenerationCheckpoint, Any]()
    rows: Any = None
    tokenizer: Any = None
    for look in looks:
        loaded = load_run(run, step=look.step)
        if rows is None:
            experiment, tokenizer = loaded.experiment.of_task(domain), loaded.experiment.tokenizer
            reading = experiment.reading(dataclasses.replace(experiment.config.evaluation, rows=pieces))
            rows = next(iter(reading.batches(experiment.documents("validation"))))
        maps[look] = attention_maps(loaded.experiment.model, loaded.variables, rows)
    return Lineage(tuple(looks), tuple(growths), maps, rows, domain, tokenizer)


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Heads beside those of ancestors, of a run that has grown and has kept checkpoints of its generations."""
    stream = run.config.lifelong
    if stream is None or not any(line["kind"] == "grown" for line in run.lines):
        return
    text = (
        "A head of a grown model is a copy of one of its ancestor; Qin et al. 2022 (ELLE) show that it goes on reading "
        "much as that one did. Right after growth it does so exactly, where growth keeps what the model computes; "
        "heads that are no relatives say how alike any two heads are."
    )
    found = read_lineage(run.path, PIECES)
    pairs = found.pairs()
    newest = [pair for pair in pairs if pair.descendant == found.looks[-1]]
    parts: list[Any] = [
        _correlation_figure(found, pair, f"ancestors_correlation_{number}") for number, pair in enumerate(newest)
    ]
    parts += [_maps_figure(found, newest[-1]), _table(found, pairs)]
    yield Panel("ancestors", "Heads beside those of ancestors", text, tuple(parts))


def _measured(found: Lineage) -> str:
    pieces, tokens = int(found.rows.mask.any(axis=1).sum()), int(found.rows.mask.sum())
    return f"{pieces:,} validation pieces of {found.domain}, {tokens:,} tokens"


def _words(look: GenerationCheckpoint) -> str:
    return f"generation {look.generation}, {look.updates:,} updates"


def _correlation_figure(found: Lineage, pair: Pair, name: str) -> Figure:
    layers, heads = pair.sources.shape[:2]
    caption = (
        f"Pearson's correlation of the attention weights of each head ({_words(pair.descendant)}) with those of the "
        f"head that it is a copy of ({_words(pair.ancestor)}), over {_measured(found)}, where query and key are read; "
        "less what even attention has. 1 = it reads as its ancestor did. Empty: a head that reads all keys alike."
    )
    title = f"Generation {pair.descendant.generation} with {pair.ancestor.generation}: correlation of each head"
    draw = functools.partial(_draw_correlations, pair=pair)
    return Figure(name, title, caption, draw, min(1.2 + 0.42 * layers, 6.0) if heads <= 16 else 4.0)


def _draw_correlations(figure: Any, pair: Pair) -> None:
    values = pair.beyond.relatives
    layers, heads = values.shape
    named = {"x": "head", "y": "layer", "rows": [str(i) for i in range(layers)]}
    columns = [str(i) for i in range(heads)]
    numbers = "{:.2f}" if heads <= 12 else ""
    charts.heat(figure, values, columns=columns, numbers=numbers, signed=True, high=1.0, **named)


def head_in_the_middle(pair: Pair) -> tuple[int, int]:
    """Layer and head of the descendant whose correlation is the median of all; the first where none can be told."""
    values = pair.beyond.relatives
    known = np.argwhere(np.isfinite(values))
    if not len(known):
        return 0, 0
    order = np.argsort(values[tuple(known.T)], kind="stable")
    layer, head = known[order[(len(order) - 1) // 2]]
    return int(layer), int(head)


def _maps_figure(found: Lineage, pair: Pair) -> Figure:
    (layer, head), (piece, count) = head_in_the_middle(pair), _piece(found)
    source = tuple(int(number) for number in pair.sources[layer, head])
    shown = [
        (f"generation {look.generation}: layer {place[0]}, head {place[1]}", look, place)
        for look, place in ((pair.ancestor, source), (pair.descendant, (layer, head)))
    ]
    caption = (
        f"Attention of one head and of the head that it is a copy of, that with the median correlation "
        f"({pair.beyond.relatives[layer, head]:.2f}), over the first {count} tokens of a validation piece of "
        f"{found.domain}: a row a query, a column a key; white is 0, the full colour the largest weight of both."
    )
    draw = functools.partial(_draw_maps, found=found, shown=shown, piece=piece, count=count)
    return Figure("ancestors_maps", "A head beside its ancestor", caption, draw, 4.4)


def _piece(found: Lineage) -> tuple[int, int]:
    """The longest piece, and how many of its tokens are shown."""
    sizes = np.asarray(found.rows.mask).sum(axis=1)
    piece = int(np.argmax(sizes))
    return piece, int(min(sizes[piece], TOKENS))


def _draw_maps(figure: Any, found: Lineage, shown: Any, piece: int, count: int) -> None:
    ids = np.asarray(found.rows.inputs[piece, :count])
    decode = (lambda one: str(one)) if found.tokenizer is None else (lambda one: found.tokenizer.decode([one]))
    tokens = [decode(int(one)).strip() or "·" for one in ids]
    both = [found.maps[look].weights[layer, piece, head, :count, :count] for _, look, (layer, head) in shown]
    high = float(max(np.max(one) for one in both))
    for number, (values, (title, _, _)) in enumerate(zip(both, shown, strict=True)):
        seen = np.where(found.maps[found.looks[0]].seen[piece, :count, :count], values, np.nan)
        named = {"rows": tokens if number == 0 else (), "columns": tokens, "title": title}
        axes = charts.heat(figure, seen, low=0.0, high=high, place=(1, 2, number + 1), **named)
        axes.tick_params(axis="both", labelsize=8)
        axes.tick_params(axis="x", rotation=90)
        axes.get_legend().remove()  # the caption says it
        if number:
            axes.set_yticks([])


def _table(found: Lineage, pairs: list[Pair]) -> Table:
    mean = lambda values: float(np.nanmean(values)) if np.isfinite(values).any() else None
    rows = tuple(
        (
            _words(pair.ancestor),
            _words(pair.descendant),
            *(mean(values) for values in pair.beyond),
            mean(pair.weights.relatives),
        )
        for pair in pairs
    )
    columns = ("ancestor", "descendant", "its ancestor's head", "others in its layer", "all others", "whole weights")
    caption = (
        f"Means over heads, over {_measured(found)}: with the head that each is a copy of, with the unrelated ones in "
        "the layer of that one, and with those of all layers, of attention beyond even; last, of whole weights with "
        "its ancestor's head, which are alike in any two heads where queries have few keys. "
        f"`{KEPT}` keeps all generations."
    )
    return Table("ancestors_means", "Correlations by pair of generations", caption, columns, rows)
