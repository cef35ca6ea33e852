"""Panels of scores and of the memory's part in them: without it, with other sizes, and where tokens come back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.report import charts
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.verdicts import Comparison, compare_documents, show_difference

SIZES = (0, 0.25, 1, 4)
"""Sizes of the memory that are evaluated, as multiples of its size in training."""

OF_MACHINES = ("tokens_per_second", "examples_per_second")
"""Numbers of an evaluation that depend on the machine."""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields a panel of the last evaluations of a run, if it is finished, and two of what its memory contributes to the
    loss, if it has one.
    """
    if run.finished is not None:
        from memjax.tasks import make_task

        yield _results_panel(run.finished["results"], make_task(run.config).main_metrics)
    if not run.has_memory:
        return
    yield _memory_panel(run)
    yield _mentions_panel(run)


def _results_panel(results: Mapping[str, Any], headline: Sequence[str]) -> Panel:
    """Makes the panel of the last evaluations of a finished run, with the main metrics of its task first."""
    evaluations = {"evaluation": results["evaluation"], **results.get("evaluations", {})}
    columns: dict[str, Mapping[str, Any]] = {}
    for name, values in evaluations.items():
        columns[name] = values
        for subset, numbers in values.get("subsets", {}).items():
            columns[subset if name == "evaluation" else f"{name}: {subset}"] = numbers
    numbers = lambda values: {k: v for k, v in values.items() if isinstance(v, int | float) and k not in OF_MACHINES}
    nonzero = {number for values in columns.values() for number, value in numbers(values).items() if value}
    order = dict.fromkeys((*headline, "nats_per_token", *(number for v in columns.values() for number in numbers(v))))
    rows = [number for number in order if number in nonzero]
    cells = tuple((name, *(numbers(values).get(row) for row in rows)) for name, values in columns.items())
    heads = ("", *(row.replace("_", " ") for row in rows))
    caption = "The last evaluations of the run. Below an evaluation are the subsets of its targets that were scored."
    notes = " ".join(note for values in evaluations.values() for note in values.get("notes", ()))
    table = Table("results", "Evaluations", f"{caption} {notes}".strip(), heads, cells)
    return Panel(
        "results", "Scores", "Scores at the end of the run, as `memjax eval` prints them with its settings.", (table,)
    )


def _memory_panel(run: OpenedRun) -> Panel:
    """Makes the panel that scores one text with the memory kept, cleared, shuffled, and of other sizes."""
    task = run.loaded_run.experiment.task
    measure = next(
        (name for name in task.main_metrics if getattr(run.nats_with_memory.result, name, None) is not None), ""
    )
    states = {"kept": run.nats_with_memory.result, "cleared": run.nats_without_memory.result}
    if run.evaluation.batch_size > 1:
        states["shuffled"] = _evaluate(run, memory_intervention="shuffled", intervention_path="")
    parts: list[Figure | Table] = []
    rows = tuple((name, *_result_cells(result, measure)) for name, result in states.items())
    scored = f"{run.nats_with_memory.result.targets:,} {task.target_unit} of the {run.split} split"
    gain = _compare_with_cleared(run)
    caption = (
        f"{scored}. Cleared: the memory is reset before every segment. Shuffled: every row reads the memory of another "
        f"row. The memory saves {show_difference(gain)} nats a token: {gain.verdict}, by a paired t-test on these "
        f"{gain.unit}s. Another seed may differ."
    )
    heads = ("memory", "nats per token", *([measure.replace("_", " ")] if measure else []), "bytes of a row")
    parts.append(Table("memory_states", "Memory kept, cleared, shuffled", caption, heads, rows))
    if sizes := _evaluate_sizes(run):
        trained = run.loaded_run.experiment.config.model.memory_facts.memory_length
        by_size = {_format_size(length, trained): result for length, result in sizes.items()}
        caption = f"{scored}. The model was trained with {trained:,} slots and evaluated with other sizes unchanged."
        rows = tuple((name, *_result_cells(result, measure)) for name, result in by_size.items())
        draw = functools.partial(_draw_sizes, nats={name: result.nats_per_token for name, result in by_size.items()})
        parts.append(Figure("memory_sizes", "Loss by the size of the memory", caption, draw, height=3.2))
        parts.append(Table("memory_size_scores", "Sizes of the memory", caption, heads, rows))
    text = (
        "How much does the memory help? A model that does not need its memory scores the same without it, or with the "
        "memory of another text. Papers on memories compare with models that were trained without memory. Here it is "
        "one model, so that a part of the difference may come from its training with a memory."
    )
    return Panel("memory_scores", "Value of the memory", text, tuple(parts))


def _compare_with_cleared(run: OpenedRun) -> Comparison:
    """Compares the losses with the memory kept and cleared, in nats per token, paired over documents."""
    documents = run.nats_with_memory.document
    nats, cleared_nats, targets = (
        np.bincount(documents, weights)
        for weights in (run.nats_with_memory.nats, run.nats_without_memory.nats, np.ones(len(documents)))
    )
    return compare_documents(nats, cleared_nats, targets)


def _result_cells(result: Any, measure: str) -> tuple[Any, ...]:
    return (result.nats_per_token, *([getattr(result, measure)] if measure else []), result.memory_bytes)


def _evaluate(run: OpenedRun, **fields: Any) -> Any:
    evaluation = dataclasses.replace(run.evaluation, **fields)
    return run.loaded_run.experiment.evaluator(evaluation)(run.loaded_run.variables)


def _evaluate_sizes(run: OpenedRun) -> dict[int, Any]:
    """Evaluates other sizes of the memory and returns the result for each. {} if the size cannot be changed."""
    experiment = run.loaded_run.experiment
    trained = experiment.config.model.memory_facts.memory_length
    if not experiment.model.resizes or not trained:
        return {}
    results = {}
    for share in SIZES:
        length = round(share * trained)
        try:
            results[length] = run.nats_with_memory.result if share == 1 else _evaluate(run, memory_length=length)
        except ValueError:  # a size that this memory cannot have, such as 0
            continue
    return results if len(results) > 1 else {}


def _format_size(length: int, trained: int) -> str:
    """Formats a size of the memory, with a note at the size of training.

    Example:
      >>> [_format_size(length, 512) for length in (0, 128, 512)]
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


def _mentions_panel(run: OpenedRun) -> Panel:
    """Makes the panel of the loss of tokens by the distance of their last occurrence."""
    from memjax.inspection.token_nats import mention_buckets

    with_memory, without_memory = run.nats_with_memory, run.nats_without_memory
    length = with_memory.result.segment_length
    buckets = mention_buckets(with_memory, length)
    rows, nats = [], {"with memory": [], "without": []}
    for name, where in buckets.items():
        means = [float(np.mean(scored.nats[where])) for scored in (with_memory, without_memory)]
        share = float(np.sum(without_memory.nats[where] - with_memory.nats[where])) / len(with_memory.nats)
        rows.append((name, int(where.sum()), *means, means[1] - means[0], share))
        for series, value in zip(nats.values(), means, strict=True):
            series.append(value)
    caption = (
        f"{len(with_memory.nats):,} tokens of the {run.split} split by how long ago their document contained the same "
        f"token last, in segments of {length} tokens (here = in this segment). Without: the memory is reset before "
        "every segment."
    )
    text = (
        "Does the memory help where it can? A token that occurred earlier in the document, but not in this segment, "
        "can only be guessed without memory. Memorizing Transformers and most later papers show this figure."
    )
    gains = {"gain": [without - with_it for with_it, without in zip(*nats.values(), strict=True)]}
    short = [_shorten_bucket(name) for name in buckets]
    draw = functools.partial(_draw_mentions, names=short, nats=nats, gains=gains)
    heads = ("last occurrence", "tokens", "nats with memory", "without", "gain", "part of the gain per token")
    parts = (
        Figure("mentions", "Loss by the distance of the last mention", caption, draw, height=5.4),
        Table(
            "mention_scores",
            "By the distance of the last mention",
            f"{caption} The last column sums to the gain per token over all tokens.",
            heads,
            tuple(rows),
        ),
    )
    return Panel("mentions_panel", "Where the memory helps", text, parts)


def _shorten_bucket(bucket: str) -> str:
    """Shortens the name of a bucket of `mention_buckets` to a label below a bar.

    Example:
      >>> [_shorten_bucket(name) for name in ("never", "in this segment", "up to 1x", "4x to 8x", "beyond 8x")]
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
