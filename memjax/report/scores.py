"""What a run has scored, and what of that is its memory's: without it, with other sizes, where tokens come back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.report import charts
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.verdicts import Comparison, compare_documents, show_difference

__all__ = ["panels"]

SIZES = (0, 0.25, 1, 4)
"""of the memory, as multiples of that of training"""

OF_MACHINES = ("tokens_per_second", "examples_per_second")
"""numbers of an evaluation that differ from one machine to the next"""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Scores of any run; of one with a memory what that gives."""
    if run.finished is not None:
        from memjax.tasks import make_task

        yield _results(run.finished["results"], make_task(run.config).headline)
    if not run.has_memory:
        return
    yield _memory(run)
    yield _mentions(run)


def _results(results: Mapping[str, Any], headline: Sequence[str]) -> Panel:
    """The last evaluations of a finished run, with the numbers that its task is about first."""
    evaluations = {"evaluation": results["evaluation"], **results.get("evaluations", {})}
    columns: dict[str, Mapping[str, Any]] = {}
    for name, values in evaluations.items():
        columns[name] = values
        for subset, numbers in values.get("subsets", {}).items():
            columns[subset if name == "evaluation" else f"{name}: {subset}"] = numbers
    numbers = lambda values: {k: v for k, v in values.items() if isinstance(v, int | float) and k not in OF_MACHINES}
    found = {number for values in columns.values() for number, value in numbers(values).items() if value}
    order = dict.fromkeys((*headline, "nats_per_token", *(number for v in columns.values() for number in numbers(v))))
    rows = [number for number in order if number in found]
    cells = tuple((name, *(numbers(values).get(row) for row in rows)) for name, values in columns.items())
    heads = ("", *(row.replace("_", " ") for row in rows))
    caption = "The last evaluations of the run; below an evaluation the targets of it that were scored apart too."
    notes = " ".join(note for values in evaluations.values() for note in values.get("notes", ()))
    table = Table("results", "Evaluations", f"{caption} {notes}".strip(), heads, cells)
    return Panel(
        "results", "Scores", "What the run scored in the end, as `memjax eval` says it of its settings.", (table,)
    )


def _memory(run: OpenedRun) -> Panel:
    """The same text with other memories."""
    task = run.loaded_run.experiment.task
    measure = next((name for name in task.headline if getattr(run.nats_with_memory.result, name, None) is not None), "")
    states = {"kept": run.nats_with_memory.result, "cleared": run.nats_without_memory.result}
    if run.evaluation.rows > 1:
        states["shuffled"] = _scored(run, memory_state="shuffled", memory_part="")
    parts: list[Figure | Table] = []
    rows = tuple((name, *_numbers(result, measure)) for name, result in states.items())
    scored = f"{run.nats_with_memory.result.targets:,} {task.scored} of the {run.split} split"
    gain = _gain(run)
    caption = (
        f"{scored}. Cleared: every segment finds what a document begins with; shuffled: what another row has left. The "
        f"memory of this text is worth {show_difference(gain)} nats a token: {gain.verdict}, by a paired t-test "
        f"on these {gain.unit}s; another seed may differ."
    )
    heads = ("memory", "nats per token", *([measure.replace("_", " ")] if measure else []), "bytes of a row")
    parts.append(Table("memory_states", "Memory kept, cleared, shuffled", caption, heads, rows))
    if sizes := _sizes(run):
        trained = run.loaded_run.experiment.config.model.carrier.memory_length
        named = {_size(length, trained): result for length, result in sizes.items()}
        caption = f"{scored}; the model was trained with {trained:,}, and reads with the others as it is."
        rows = tuple((name, *_numbers(result, measure)) for name, result in named.items())
        draw = functools.partial(_draw_sizes, nats={name: result.nats_per_token for name, result in named.items()})
        parts.append(Figure("memory_sizes", "Loss by the size of the memory", caption, draw, height=3.2))
        parts.append(Table("memory_size_scores", "Sizes of the memory", caption, heads, rows))
    text = (
        "What is the memory worth? A model that does not need its memory scores the same without it, or with that of "
        "another text. Papers on memories show the first table with models trained without; here the model is one, so "
        "that a part of the difference may be that it was trained to find a memory."
    )
    return Panel("memory_scores", "What the memory is worth", text, tuple(parts))


def _gain(run: OpenedRun) -> Comparison:
    """Compares the memory with one that is cleared by the nats saved on a token, paired over documents."""
    documents = run.nats_with_memory.document
    nats, cleared_nats, targets = (
        np.bincount(documents, weights)
        for weights in (run.nats_with_memory.nats, run.nats_without_memory.nats, np.ones(len(documents)))
    )
    return compare_documents(nats, cleared_nats, targets)


def _numbers(result: Any, measure: str) -> tuple[Any, ...]:
    return (result.nats_per_token, *([getattr(result, measure)] if measure else []), result.memory_bytes)


def _scored(run: OpenedRun, **fields: Any) -> Any:
    evaluation = dataclasses.replace(run.evaluation, **fields)
    return run.loaded_run.experiment.evaluator(evaluation)(run.loaded_run.variables)


def _sizes(run: OpenedRun) -> dict[int, Any]:
    """Slots -> the score with so many; {} where the size of the memory cannot be changed."""
    experiment = run.loaded_run.experiment
    trained = experiment.config.model.carrier.memory_length
    if not experiment.model.resizes or not trained:
        return {}
    found = {}
    for share in SIZES:
        length = round(share * trained)
        try:
            found[length] = run.nats_with_memory.result if share == 1 else _scored(run, memory_length=length)
        except ValueError:  # a size that this memory cannot have, such as none
            continue
    return found if len(found) > 1 else {}


def _size(length: int, trained: int) -> str:
    """A size in words.

    Example:
      >>> [_size(length, 512) for length in (0, 128, 512)]
      ['off', '128', '512 (trained)']
    """
    return "off" if not length else f"{length:,}" + (" (trained)" if length == trained else "")


def _draw_sizes(figure: Any, *, nats: Mapping[str, float]) -> None:
    places = np.arange(len(nats))
    axes = charts.line_chart(
        figure, {"": (places, [*nats.values()])}, x="slots of the memory", y="nats a token", marks=True
    )
    axes.set_xticks(places, [*nats])
    axes.margins(x=0.08, y=0.2)


def _mentions(run: OpenedRun) -> Panel:
    """Loss by how long ago a token was there last."""
    from memjax.inspection.token_nats import mention_buckets

    kept, cleared = run.nats_with_memory, run.nats_without_memory
    length = kept.result.segment_length
    buckets = mention_buckets(kept, length)
    rows, nats = [], {"with memory": [], "without": []}
    for name, where in buckets.items():
        of = [float(np.mean(one.nats[where])) for one in (kept, cleared)]
        share = float(np.sum(cleared.nats[where] - kept.nats[where])) / len(kept.nats)
        rows.append((name, int(where.sum()), *of, of[1] - of[0], share))
        for series, value in zip(nats.values(), of, strict=True):
            series.append(value)
    caption = (
        f"{len(kept.nats):,} tokens of the {run.split} split by how long ago the document had the same token last, in "
        f"lengths of a segment ({length} tokens; here = in this one). Without: every segment finds the memory that a "
        "document begins with."
    )
    text = (
        "Does the memory help where it can? A token that stood earlier in the document, but not in this segment, is "
        "where a model without memory has to guess: the figure of Memorizing Transformers and of most papers since."
    )
    gains = {"gain": [without - with_it for with_it, without in zip(*nats.values(), strict=True)]}
    short = [_short(name) for name in buckets]
    draw = functools.partial(_draw_mentions, names=short, nats=nats, gains=gains)
    heads = ("last there", "tokens", "nats with memory", "without", "gain", "share of the gain a token")
    parts = (
        Figure("mentions", "Loss by the distance of the last mention", caption, draw, height=5.4),
        Table(
            "mention_scores",
            "By the distance of the last mention",
            f"{caption} Last column: sums to the whole gain.",
            heads,
            tuple(rows),
        ),
    )
    return Panel("mentions_panel", "Where the memory helps", text, parts)


def _short(bucket: str) -> str:
    """A bucket of `mention_buckets` below a bar.

    Example:
      >>> [_short(name) for name in ("never", "in this segment", "up to 1x", "4x to 8x", "beyond 8x")]
      ['never', 'here', '1x', '8x', 'more']
    """
    if bucket.startswith("beyond"):
        return "more"
    return {"in this segment": "here"}.get(bucket, bucket.rpartition(" ")[2])


def _draw_mentions(
    figure: Any, *, names: list[str], nats: Mapping[str, list[float]], gains: Mapping[str, list[float]]
) -> None:
    charts.bar_chart(figure, names, nats, y="nats a token", upright=True, place=(2, 1, 1))
    charts.bar_chart(
        figure,
        names,
        gains,
        y="gain in nats",
        x="last mention, up to so many segments ago",
        numbers="{:.2f}" if max(map(abs, gains["gain"])) > 0.05 else "{:.3f}",
        upright=True,
        signed=True,
        place=(2, 1, 2),
    )
