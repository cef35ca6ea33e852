"""Panels of a grown model: the attention of its heads compared with the heads that they were copied from."""

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
from memjax.lifelong.growth_sources import Growth
from memjax.lifelong.looks import KEPT, GenerationCheckpoint, ancestor_pairs, generation_checkpoints
from memjax.report import charts
from memjax.report.panel import Figure, OpenedRun, Panel, Table

PIECES = 16
"""Largest number of validation texts of the first domain that are read."""
TOKENS = 24
"""Largest number of tokens of a text whose attention maps are shown."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two checkpoints of a growing model, one before and one after growth, with the source of each head and the
    correlations between the attention maps of head and source. It holds no models.

    Attributes:
      ancestor: Checkpoint of the smaller model.
      descendant: Checkpoint of the model that has grown out of it.
      sources: Layer and head of the ancestor from which each head of the descendant was copied, `[layers, heads, 2]`.
      weights: Correlations of the attention weights.
      beyond: Correlations of the attention weights after uniform attention has been subtracted.
    """

    ancestor: GenerationCheckpoint
    descendant: GenerationCheckpoint
    sources: np.ndarray
    weights: HeadCorrelations
    beyond: HeadCorrelations


@dataclasses.dataclass(frozen=True)
class Lineage:
    """Attention maps of the first and last checkpoint of each generation of a growing model, all over the same texts,
    and the growths between them.

    Attributes:
      looks: First and last checkpoint of each generation, oldest first.
      growths: Growth steps between consecutive generations.
      maps: Checkpoint -> its `memjax.inspection.attention_maps.AttentionMaps`.
      rows: Batch of the texts that every model has read.
      domain: Task whose validation split the texts are from.
      tokenizer: Tokenizer of the run. None for data without one.
    """

    looks: tuple[GenerationCheckpoint, ...]
    growths: tuple[Growth, ...]
    maps: dict[GenerationCheckpoint, Any]
    rows: Any
    domain: str
    tokenizer: Any

    def pairs(self) -> list[Pair]:
        """Pairs the last checkpoint of each generation with the first and the last one of every later generation, and
        correlates the attention of their heads. Returns a list of `Pair`.
        """
        sizes = lambda look: (self.maps[look].weights.shape[0], self.maps[look].weights.shape[2])
        first, pairs = self.looks[0], list[Pair]()
        for ancestor, descendant in ancestor_pairs(self.looks):
            sources = head_sources(self.growths[ancestor.generation : descendant.generation], *sizes(ancestor))
            founders = head_sources(self.growths[first.generation : ancestor.generation], *sizes(first))
            weights, seen = [self.maps[look].weights for look in (ancestor, descendant)], self.maps[ancestor].seen
            correlations = [
                correlate_heads(map_correlations(old, new, seen), sources, founders)
                for old, new in (weights, [subtract_uniform_attention(part, seen) for part in weights])
            ]
            pairs.append(Pair(ancestor, descendant, sources, *correlations))
        return pairs


def read_lineage(run: Path | str, pieces: int) -> Lineage:
    """Computes the attention maps of the first and last checkpoint of each generation of a run, over at most `pieces`
    validation texts of its first domain. `run` is its directory.

    Args:
      run: Run directory with checkpoints of several generations.
      pieces: Largest number of texts.

    Raises:
      ValueError: `generation_checkpoints` refuses the run, or the model's attention cannot be recorded.
    """
    from memjax.inspection.attention_maps import attention_maps
    from memjax.lifelong import load_run
    from memjax.training.runs import load_config

    looks, growths = generation_checkpoints(run)
    stream = load_config(run).lifelong
    assert stream is not None  # only models of runs over tasks grow
    domain, maps = stream.ordered_tasks[0].name, dict[GenerationCheckpoint, Any]()
    rows: Any = None
    tokenizer: Any = None
    for look in looks:
        loaded = load_run(run, step=look.step)
        if rows is None:
            experiment, tokenizer = loaded.experiment.of_task(domain), loaded.experiment.tokenizer
            reading = experiment.reading(dataclasses.replace(experiment.config.evaluation, batch_size=pieces))
            rows = next(iter(reading.batches(experiment.documents("validation"))))
        maps[look] = attention_maps(loaded.experiment.model, loaded.variables, rows)
    return Lineage(tuple(looks), tuple(growths), maps, rows, domain, tokenizer)


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields one panel that compares heads with the heads that they were copied from. It yields nothing for a run that
    has not grown.
    """
    stream = run.config.lifelong
    if stream is None or not any(line["kind"] == "grown" for line in run.log_lines):
        return
    text = (
        "Every head of a grown model was copied from a head of its ancestor. Qin et al. 2022 (ELLE) show that it "
        "continues to attend in much the same way. Right after function-preserving growth it does so exactly. "
        "Unrelated heads show how similar any two heads are."
    )
    lineage = read_lineage(run.path, PIECES)
    all_pairs = lineage.pairs()
    newest = [pair for pair in all_pairs if pair.descendant == lineage.looks[-1]]
    parts: list[Any] = [
        _correlation_figure(lineage, pair, f"ancestors_correlation_{number}") for number, pair in enumerate(newest)
    ]
    parts += [_maps_figure(lineage, newest[-1]), _means_table(lineage, all_pairs)]
    yield Panel("ancestors", "Heads compared with their ancestors", text, tuple(parts))


def _describe_texts(found: Lineage) -> str:
    pieces, tokens = int(found.rows.mask.any(axis=1).sum()), int(found.rows.mask.sum())
    return f"{pieces:,} validation pieces of {found.domain}, {tokens:,} tokens"


def _describe_checkpoint(look: GenerationCheckpoint) -> str:
    return f"generation {look.generation}, {look.updates:,} updates"


def _correlation_figure(found: Lineage, pair: Pair, name: str) -> Figure:
    layers, heads = pair.sources.shape[:2]
    caption = (
        "Pearson's correlation of the attention weights of each head "
        f"({_describe_checkpoint(pair.descendant)}) with the weights of the head that it was copied from "
        f"({_describe_checkpoint(pair.ancestor)}), over the visible query-key pairs of {_describe_texts(found)}. "
        "Uniform attention is subtracted first. 1 = it attends as its ancestor did. Empty: a head that attends to all "
        "keys equally."
    )
    title = f"Generation {pair.descendant.generation} with {pair.ancestor.generation}: correlation of each head"
    draw = functools.partial(_draw_correlations, pair=pair)
    return Figure(name, title, caption, draw, min(1.2 + 0.42 * layers, 6.0) if heads <= 16 else 4.0)


def _draw_correlations(figure: Any, pair: Pair) -> None:
    values = pair.beyond.relatives
    layers, heads = values.shape
    options = {"x": "head", "y": "layer", "rows": [str(i) for i in range(layers)]}
    columns = [str(i) for i in range(heads)]
    numbers = "{:.2f}" if heads <= 12 else ""
    charts.heatmap(figure, values, columns=columns, numbers=numbers, signed=True, high=1.0, **options)


def head_in_the_middle(pair: Pair) -> tuple[int, int]:
    """Returns (layer, head) of that head of the descendant which has the median correlation with its source. (0, 0) if
    no correlation is known.
    """
    values = pair.beyond.relatives
    known = np.argwhere(np.isfinite(values))
    if not len(known):
        return 0, 0
    order = np.argsort(values[tuple(known.T)], kind="stable")
    layer, head = known[order[(len(order) - 1) // 2]]
    return int(layer), int(head)


def _maps_figure(found: Lineage, pair: Pair) -> Figure:
    (layer, head), (piece, count) = head_in_the_middle(pair), _longest_piece(found)
    source = tuple(int(number) for number in pair.sources[layer, head])
    shown = [
        (f"generation {look.generation}: layer {place[0]}, head {place[1]}", look, place)
        for look, place in ((pair.ancestor, source), (pair.descendant, (layer, head)))
    ]
    caption = (
        f"Attention of the head with the median correlation ({pair.beyond.relatives[layer, head]:.2f}) and of the head "
        f"that it was copied from, over the first {count} tokens of a validation piece of {found.domain}. Rows are "
        "queries, columns are keys. White is 0, the full colour is the largest weight of both."
    )
    draw = functools.partial(_draw_maps, found=found, shown=shown, piece=piece, count=count)
    return Figure("ancestors_maps", "A head and its ancestor", caption, draw, 4.4)


def _longest_piece(found: Lineage) -> tuple[int, int]:
    """Returns the number of the longest text and how many of its tokens are shown."""
    sizes = np.asarray(found.rows.mask).sum(axis=1)
    piece = int(np.argmax(sizes))
    return piece, int(min(sizes[piece], TOKENS))


def _draw_maps(figure: Any, found: Lineage, shown: Any, piece: int, count: int) -> None:
    ids = np.asarray(found.rows.inputs[piece, :count])
    decode = (lambda token: str(token)) if found.tokenizer is None else (lambda token: found.tokenizer.decode([token]))
    tokens = [decode(int(token)).strip() or "·" for token in ids]
    maps = [found.maps[look].weights[layer, piece, head, :count, :count] for _, look, (layer, head) in shown]
    high = float(max(np.max(weights) for weights in maps))
    for number, (values, (title, _, _)) in enumerate(zip(maps, shown, strict=True)):
        visible = np.where(found.maps[found.looks[0]].seen[piece, :count, :count], values, np.nan)
        options = {"rows": tokens if number == 0 else (), "columns": tokens, "title": title}
        axes = charts.heatmap(figure, visible, low=0.0, high=high, place=(1, 2, number + 1), **options)
        axes.tick_params(axis="both", labelsize=8)
        axes.tick_params(axis="x", rotation=90)
        axes.get_legend().remove()  # the caption explains the colours
        if number:
            axes.set_yticks([])


def _means_table(found: Lineage, pairs: list[Pair]) -> Table:
    mean = lambda values: float(np.nanmean(values)) if np.isfinite(values).any() else None
    rows = tuple(
        (
            _describe_checkpoint(pair.ancestor),
            _describe_checkpoint(pair.descendant),
            *(mean(values) for values in pair.beyond),
            mean(pair.weights.relatives),
        )
        for pair in pairs
    )
    columns = ("ancestor", "descendant", "its ancestor's head", "others in its layer", "all others", "raw weights")
    caption = (
        f"Mean correlations over heads and {_describe_texts(found)}, after uniform attention has been subtracted: "
        "with the head that each was copied from, with unrelated heads in the same layer of the ancestor, and with "
        "unrelated heads of all layers. The last column compares the raw weights with the ancestor's head. Raw "
        "weights of any two heads are similar where queries have few keys. "
        f"`{KEPT}` keeps all generations."
    )
    return Table("ancestors_means", "Correlations by pair of generations", caption, columns, rows)
