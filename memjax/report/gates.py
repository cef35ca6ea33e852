"""Panels of learned gates: how much of the memory each head, and each token, lets through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from memjax.inspection.gates import GateMap, Gates, gate_map, gated_memories
from memjax.report.charts import heatmap, histogram
from memjax.report.panel import Figure, OpenedRun, Panel, Paragraph
from memjax.report.run_text import first_segments, printable_words, segments_since_start, token_texts
from memjax.typing import Batch

NEIGHBORS = "neighbor_values"
"""Name of the batch extra with the ids of tokens that followed similar contexts."""
WORDS = 160
"""Largest number of words in the shaded text."""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields a panel of the gates in memory layers, and a panel of the gate of the output memory. A panel is left out
    if the model has no such gate.
    """
    layers, last = gated_memories(run.loaded_run.experiment.model)
    if not layers and last is None:
        return
    segments, _ = first_segments(run)
    gates = gate_map(run.loaded_run.experiment.model, run.loaded_run.variables, segments)
    if gates.layers:
        yield _layers_panel(run, gates)
    if gates.output is not None:
        yield _output_panel(run, gates, gates.output, segments)


def _layers_panel(run: OpenedRun, found: GateMap) -> Panel:
    gated = next(iter(found.layers.values())).gated
    tokens = int(found.counted.sum())
    changing = {layer: gates for layer, gates in found.layers.items() if gates.by_token}
    measured = f"mean over {tokens} tokens of the {run.split} split" if changing else "the same for all tokens"
    text = (
        f"How much of {gated} does each head let through? A gate of 0 lets nothing through, a gate of 1 everything. Wu "
        "et al. 2022 learn one gate for each head of a memory layer (https://arxiv.org/abs/2203.08913). Peng et al. "
        "2021 compute a gate for every token (https://arxiv.org/abs/2103.02143)."
    )
    parts = [
        Figure(
            "gates",
            f"Gate on {gated}, by layer and head",
            f"Value of the gate, {measured}. Heads near 1 read only {gated}, heads near 0 do not use it.",
            lambda figure: _draw_heads(figure, found),
            height=1.3 + 0.35 * len(found.layers),
        )
    ]
    if changing:
        parts.append(
            Figure(
                "gates_by_token",
                "Gates of single tokens",
                f"Share of {tokens} tokens of the {run.split} split, all heads of a layer together. A gate g keeps the "
                "share g of the memory's sums at each token: 0.9 forgets half within 7 tokens, 0.99 within 69.",
                lambda figure: _draw_tokens(figure, changing, found.counted),
            )
        )
    return Panel("gates", "Gates of the heads", text, tuple(parts))


def _draw_heads(figure: Any, found: GateMap) -> Any:
    """Draws the mean gates over tokens as a heat map of layers and heads."""
    matrix = np.stack([gates.mean(found.counted) for gates in found.layers.values()])
    numbers = "{:.2f}" if matrix.shape[1] <= 12 else ""
    rows = [f"layer {layer}" for layer in found.layers]
    columns = [str(head) for head in range(matrix.shape[1])]
    return heatmap(figure, matrix, rows=rows, columns=columns, x="head", numbers=numbers, low=0, high=1)


def _draw_tokens(figure: Any, layers: dict[int, Gates], counted: np.ndarray) -> Any:
    """Draws histograms of the gates of single tokens, one for each layer."""
    values = {f"layer {layer}": gates.values[counted].ravel() for layer, gates in layers.items()}
    return histogram(figure, values, bins=np.linspace(0, 1, 41).tolist(), x="gate", y="share of tokens")


def _output_panel(run: OpenedRun, found: GateMap, gates: Gates, segments: list[Batch]) -> Panel:
    by_token = np.where(found.counted, gates.values.mean(axis=-1), np.nan)
    tokens = int(found.counted.sum())
    text = (
        "Where does the model use its retrieved neighbours? SPALM computes a gate for every token: 1 = only the "
        "model's hidden state, 0 = only the tokens that followed similar contexts. Yogatama et al. 2021 show its "
        f"distribution (https://arxiv.org/abs/2102.02557). Here its mean is {np.nanmean(by_token):.2f}, over {tokens} "
        f"tokens of the {run.split} split."
    )
    distribution = Figure(
        "output_gate",
        "Gate of the hidden state",
        f"Share of {tokens} tokens of the {run.split} split; left = neighbours, right = the model itself.",
        lambda figure: histogram(
            figure, {"": by_token[found.counted]}, bins=np.linspace(0, 1, 41).tolist(), x="gate", y="share of tokens"
        ),
    )
    return Panel(
        "output_gate",
        "Gate over the words of a text",
        text,
        (distribution, _shaded_text(run, found, by_token, segments)),
    )


def _shaded_text(run: OpenedRun, found: GateMap, by_token: np.ndarray, segments: list[Batch]) -> Paragraph:
    """Makes the text of the last document in the first row, darker where the neighbours have more weight."""
    length, chosen = segments[0].mask.shape[1], segments_since_start(segments, 0)
    places = [index * length + place for index in chosen for place in range(length)]
    places = [place for place in places if found.counted[0, place]][:WORDS]
    proposed = [_proposed_ids(segments[place // length], place % length) for place in places]
    notes = []
    for place, ids in zip(places, proposed, strict=True):
        proposals = ", ".join(word.strip() for word in printable_words(token_texts(run, ids)))
        notes.append(f"gate {by_token[0, place]:.2f}" + (f"; neighbours propose: {proposals}" if proposals else ""))
    caption = (
        f"{len(places)} tokens of one document of the {run.split} split. Darker = more weight (1 - gate) on the next "
        "tokens that the neighbours propose. Point at a word for its gate and the proposals."
    )
    values = tuple(float(np.clip(1 - by_token[0, place], 0, 1)) for place in places)
    words = token_texts(run, found.tokens[0, places].tolist())
    return Paragraph("output_gate_words", "The gate over a text", caption, words, values, tuple(notes))


def _proposed_ids(batch: Batch, place: int) -> list[int]:
    """Lists the ids that the neighbours of a token propose, each once."""
    if NEIGHBORS not in batch.extras:
        return []
    ids = np.asarray(batch.extras[NEIGHBORS])[0, place].tolist()
    return [*dict.fromkeys(token for token in ids if token >= 0)]
