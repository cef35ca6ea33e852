"""Panels of learned gates: how much of a memory every head, and every word, lets through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from memjax.inspection.gates import GateMap, Gates, gate_map, gated_memories
from memjax.report.charts import heat, histogram
from memjax.report.panel import Figure, OpenedRun, Panel, Words
from memjax.report.segments import first_segments, from_starts, shown, words_of
from memjax.typing import Batch

__all__ = ["panels"]

NEIGHBORS = "neighbor_values"
"""tokens after similar contexts, among the extras of a batch"""
WORDS = 160
"""that are shaded"""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Gates of layers and of the output memory, as far as the model has them."""
    layers, last = gated_memories(run.loaded.experiment.model)
    if not layers and last is None:
        return
    segments, _ = first_segments(run)
    found = gate_map(run.loaded.experiment.model, run.loaded.variables, segments)
    if found.layers:
        yield _of_layers(run, found)
    if found.output is not None:
        yield _of_output(run, found, found.output, segments)


def _of_layers(run: OpenedRun, found: GateMap) -> Panel:
    gated = next(iter(found.layers.values())).gated
    tokens = int(found.counted.sum())
    changing = {layer: gates for layer, gates in found.layers.items() if gates.by_token}
    measured = f"mean over {tokens} tokens of the {run.split} split" if changing else "the same for all tokens"
    text = (
        f"How much of {gated} does each head let through? Each gate is learned: 0 = nothing, 1 = all. Wu et al. 2022 "
        "learn one for each head of a memory layer (https://arxiv.org/abs/2203.08913), Peng et al. 2021 compute one of "
        "every token (https://arxiv.org/abs/2103.02143)."
    )
    parts = [
        Figure(
            "gates",
            f"Gate on {gated}, by layer and head",
            f"Sigmoid of the learned gate, {measured}. Heads near 1 read {gated} only, heads near 0 do without.",
            lambda figure: draw_heads(figure, found),
            height=1.3 + 0.35 * len(found.layers),
        )
    ]
    if changing:
        parts.append(
            Figure(
                "gates_by_token",
                "Gates of single tokens",
                f"Share of {tokens} tokens of the {run.split} split, all heads of a layer together. A share g of the "
                "sums is left after each token, so that g = 0.9 forgets half in 7 tokens and g = 0.99 in 69.",
                lambda figure: draw_tokens(figure, changing, found.counted),
            )
        )
    return Panel("gates", "Gates of the heads", text, tuple(parts))


def draw_heads(figure: Any, found: GateMap) -> Any:
    """Layers by heads, means over tokens."""
    matrix = np.stack([gates.mean(found.counted) for gates in found.layers.values()])
    numbers = "{:.2f}" if matrix.shape[1] <= 12 else ""
    rows = [f"layer {layer}" for layer in found.layers]
    columns = [str(head) for head in range(matrix.shape[1])]
    return heat(figure, matrix, rows=rows, columns=columns, x="head", numbers=numbers, low=0, high=1)


def draw_tokens(figure: Any, layers: dict[int, Gates], counted: np.ndarray) -> Any:
    """How the gates of tokens are spread, a line a layer."""
    values = {f"layer {layer}": gates.values[counted].ravel() for layer, gates in layers.items()}
    return histogram(figure, values, bins=np.linspace(0, 1, 41).tolist(), x="gate", y="share of tokens")


def _of_output(run: OpenedRun, found: GateMap, gates: Gates, segments: list[Batch]) -> Panel:
    by_token = np.where(found.counted, gates.values.mean(axis=-1), np.nan)
    tokens = int(found.counted.sum())
    text = (
        "Where does the model listen to its neighbours? SPALM computes a gate for every token: 1 = its own hidden "
        "state alone, 0 = the tokens after similar contexts alone. Yogatama et al. 2021 show how its values are spread "
        f"(https://arxiv.org/abs/2102.02557). Here its mean is {np.nanmean(by_token):.2f}, over {tokens} tokens of the "
        f"{run.split} split."
    )
    spread = Figure(
        "output_gate",
        "Gate of the hidden state",
        f"Share of {tokens} tokens of the {run.split} split; left = neighbours, right = the model itself.",
        lambda figure: histogram(
            figure, {"": by_token[found.counted]}, bins=np.linspace(0, 1, 41).tolist(), x="gate", y="share of tokens"
        ),
    )
    return Panel(
        "output_gate", "Gate over the words of a text", text, (spread, _shaded(run, found, by_token, segments))
    )


def _shaded(run: OpenedRun, found: GateMap, by_token: np.ndarray, segments: list[Batch]) -> Words:
    """The last document of the first row, darker where the neighbours count more."""
    length, chosen = segments[0].mask.shape[1], from_starts(segments, 0)
    places = [index * length + place for index in chosen for place in range(length)]
    places = [place for place in places if found.counted[0, place]][:WORDS]
    proposed = [_proposed(segments[place // length], place % length) for place in places]
    notes = []
    for place, ids in zip(places, proposed, strict=True):
        said = ", ".join(word.strip() for word in shown(words_of(run, ids)))
        notes.append(f"gate {by_token[0, place]:.2f}" + (f"; neighbours say: {said}" if said else ""))
    caption = (
        f"{len(places)} tokens of one document of the {run.split} split. Darker = more weight on what neighbours "
        "propose to come after the word (1 - gate); point at a word for the number and the proposals."
    )
    values = tuple(float(np.clip(1 - by_token[0, place], 0, 1)) for place in places)
    words = words_of(run, found.tokens[0, places].tolist())
    return Words("output_gate_words", "The gate over a text", caption, words, values, tuple(notes))


def _proposed(batch: Batch, place: int) -> list[int]:
    """Ids that the neighbours of a token propose, each once."""
    if NEIGHBORS not in batch.extras:
        return []
    ids = np.asarray(batch.extras[NEIGHBORS])[0, place].tolist()
    return [*dict.fromkeys(one for one in ids if one >= 0)]
