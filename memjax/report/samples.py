"""Panels of what a run writes: pseudo-samples of earlier tasks, and the same prompt at every kept checkpoint."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.lifelong.looks import KEPT, evenly_spaced, task_end_checkpoints
from memjax.report import charts
from memjax.report.method_log import borders_of
from memjax.report.panel import Figure, OpenedRun, Panel, Table

__all__ = ["panels", "prompt_of", "shortened", "written_rows"]

TEXTS = 3
"""of each task before each other one"""
MOST_TEXTS = 36
"""rows of a table of texts"""
MOST_CHECKPOINTS = 6
MOST_TASKS = 4
LETTERS = 200
"""of a text"""
PROMPT_LETTERS = 60
PROMPT_TOKENS = 64
TOKENS = 48
"""that are written from every checkpoint"""
IMAGES = 6
SEED = 0
TEMPERATURE = 0.8


def panels(run: OpenedRun) -> Iterator[Panel]:
    """What is written before tasks (LAMOL), and what a generative run writes from every checkpoint that it has kept."""
    if parts := [*_pseudo_parts(run)]:
        text = (
            "Before a task the model writes examples of the earlier ones, and learns those again (Sun et al. 2020, "
            "LAMOL, whose tables show such samples). Only texts with exactly one answer mark are learned: where their "
            "share falls, or texts of one task look like those of another, little is replayed."
        )
        yield Panel("pseudo_samples", "Pseudo-samples", text, tuple(parts))
    if run.lines and (part := _by_checkpoint(run)):
        text = (
            "The same prompt, the same seed, at every checkpoint: what the model has learned to write so far, and in a "
            f"stream what it has forgotten. Runs keep their last two checkpoints; `{KEPT}` keeps more."
        )
        yield Panel("samples", "What each checkpoint writes", text, (part,))


# Pseudo-samples


def written_rows(lines: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> list[tuple[Any, ...]]:
    """What was written before each task: that task, whose examples, how many, the share that is kept, some texts.

    Args:
      lines: of a run.
      tasks: names, in their order.

    Example:
      >>> line = {"kind": "generated", "step": 4, "samples": 8, "kept_0": 0.75, "texts_0": ["a ANS b"]}
      >>> end = {"kind": "evaluation", "phase": "after", "name": "x", "step": 4}
      >>> written_rows([end, line], ["x", "y"])
      [('y', 'x', 8, 0.75, ('a ANS b',))]
    """
    borders, found = borders_of(lines, tasks), []
    for line in lines:
        if line["kind"] != "generated":
            continue
        through = sum(border <= line["step"] for border in borders)
        before = tasks[through] if through < len(tasks) else None
        numbers = sorted(int(one[1]) for name in line if (one := re.fullmatch(r"kept_(\d+)", name)))
        for number in numbers:
            each = line["samples"] // len(numbers)
            found.append((before, tasks[number], each, line[f"kept_{number}"], tuple(line.get(f"texts_{number}", ()))))
    return found


def _pseudo_parts(run: OpenedRun) -> Iterator[Figure | Table]:
    if run.config.lifelong is None:
        return
    tasks = [task.name for task in run.config.lifelong.in_order]
    rows = written_rows(run.lines, tasks)
    if not rows:
        return
    if len({before for before, *_ in rows}) > 1:
        yield Figure(
            "pseudo_share",
            "Share with exactly one answer mark",
            "A line for each earlier task, a place for each task before which the model wrote; others are not learned.",
            functools.partial(_draw_shares, rows=rows, tasks=tasks),
        )
    columns = ("before task", "of task", "written", "with one answer mark")
    caption = "Texts that the model wrote before each task, and the share of them that it learns again."
    yield Table("pseudo_written", "What was written", caption, columns, tuple(row[:4] for row in rows))
    texts = [(before, of, shortened(text)) for before, of, _, _, some in rows for text in some[:TEXTS]]
    caption = (
        f"The first {TEXTS} of each task as they were written, those that are not learned too; ANS stands before the "
        "answer."
    )
    shown = tuple(evenly_spaced(texts, MOST_TEXTS))
    yield Table("pseudo_texts", "Some of them", caption, ("before task", "of task", "text"), shown)


def _draw_shares(figure: Any, rows: Sequence[tuple[Any, ...]], tasks: Sequence[str]) -> None:
    places = {name: number + 1 for number, name in enumerate(tasks)}
    series = {}
    for name in tasks:
        own = [(places[before], share) for before, of, _, share, _ in rows if of == name and before]
        if own:
            series[name] = tuple(zip(*own, strict=True))
    named: dict[str, Any] = {"x": "before task", "y": "share", "marks": True, "limits": (0.0, 1.04)}
    axes = charts.lines(figure, series, **named)
    at = range(2, len(tasks) + 1)
    axes.set_xticks(at, tasks[1:] if sum(map(len, tasks)) <= 45 else [str(number) for number in at])


def shortened(text: str, most: int = LETTERS) -> str:
    """A text in one line, with a mark for what cannot be printed.

    Example:
      >>> shortened("one  two\\nthree", 9), shortened("\\x08a")
      ('one two …', '\ufffda')
    """
    text = "".join(one if one.isprintable() else "\ufffd" for one in " ".join(text.split()))
    return text if len(text) <= most else f"{text[: most - 1]}…"


# The same prompt at every checkpoint


def _by_checkpoint(run: OpenedRun) -> Figure | Table | None:
    """What the run writes, by the kind of its task; None where it writes nothing."""
    from memjax.tasks import task_of

    task = task_of(run.config)
    if task.writes_answers:
        return _answers(run)
    if "sample" in task.verbs:
        return _images(run)
    if not {"translate", "generate"} & {*task.verbs} or run.loaded.experiment.tokenizer is None:
        return None
    if "translate" in task.verbs:
        return _translations(run)
    model = run.loaded.experiment.model
    return _continuations(run) if model.decodes and not model.example_extras(1, 1) else None


def _checkpoints(run: OpenedRun) -> Iterator[tuple[str, Any]]:
    """Words on some kept checkpoints, oldest first, and the run opened at each."""
    from memjax.lifelong import load_run
    from memjax.training.restoring import checkpoint_extras
    from memjax.training.stages import Position

    stream = run.config.lifelong
    tasks = [] if stream is None else [task.name for task in stream.in_order]
    borders = borders_of(run.lines, [one.name for one in run.config.evaluations if one.task])
    updates = {
        step: Position.read(step, extra["position"], 0).step for step, extra in checkpoint_extras(run.path).items()
    }
    # Of several with as many updates the last; but that of the end of a task, before the next one begins.
    last = {number: step for step, number in updates.items()}
    last |= {updates[step]: step for step in task_end_checkpoints(run.lines, [*updates]).values()}
    for step in evenly_spaced(sorted(last.values()), MOST_CHECKPOINTS):
        number = updates[step]
        after = f", after {tasks[borders.index(number)]}" if number in borders and len(borders) == len(tasks) else ""
        yield f"{number:,} updates{after}", load_run(run.path, step=step)


def prompt_of(experiment: Any, split: str, letters: int = PROMPT_LETTERS) -> str:
    """The beginning of the first document of a split, whole words where it has some."""
    from memjax.data.documents import Examples

    documents = experiment.documents(split)
    if isinstance(documents, Examples):
        ids = documents.example(0).inputs[:PROMPT_TOKENS]
    else:
        ids = documents.window(0, 0, min(PROMPT_TOKENS, documents.num_tokens(0)))[0]
    text = experiment.tokenizer.decode(ids)[:letters]
    cut = text.rfind(" ")
    return text[:cut] if cut > letters // 3 else text


def _continuations(run: OpenedRun) -> Table:
    from memjax.inference.sampling import Sampling
    from memjax.inference.texts import continue_texts

    first = run.loaded.experiment
    stream = run.config.lifelong
    prompt = prompt_of(first.of_task(stream.in_order[0].name) if stream else first, run.split)
    named: dict[str, Any] = {"max_tokens": TOKENS, "sampling": Sampling(temperature=TEMPERATURE), "seed": SEED}
    named |= {"segment_length": run.config.data.segment_length}
    rows = []
    for words, loaded in _checkpoints(run):
        experiment = loaded.experiment
        pieces = continue_texts(experiment.model, loaded.variables, experiment.tokenizer, [prompt], **named)
        rows.append((words, shortened("".join(piece for (piece,) in pieces))))
    caption = (
        f"Up to {TOKENS} tokens behind the prompt {shortened(prompt)!r}, the beginning of the first document of the "
        f"{run.split} split; temperature {TEMPERATURE}, seed {SEED}."
    )
    return Table("samples_texts", "Continuations of one prompt", caption, ("checkpoint", "text"), tuple(rows))


def _answers(run: OpenedRun) -> Table:
    """Of the first question of some tasks."""
    stream, config = run.config.lifelong, run.config
    names = [task.name for task in stream.in_order][:MOST_TASKS] if stream else [""]
    split = next((one.split for one in config.evaluations if one.task), config.evaluation.split)
    rows: list[tuple[Any, ...]] = []
    room = config.data.segment_length - run.loaded.experiment.task.settings.max_answer_length
    of_task = lambda loaded, name: loaded.experiment.of_task(name) if name else loaded.experiment
    for name in names:
        one = of_task(run.loaded, name).documents(split).instructions[0]
        asked = shortened(f"{one.context} {one.question}")
        rows.append((name or None, "asked", asked))
        rows.append((None, "right", shortened(" | ".join(one.answers))))
    written: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
    for words, loaded in _checkpoints(run):
        for name in names:
            one = of_task(loaded, name)
            given = {"rows": 1, "adapt_rows": loaded.experiment.adapt_rows}
            prompts = [one.documents(split).prompt(0, room)]
            answer = one.task.write(one.model, loaded.variables, prompts, one.datasets, **given)[0]
            written[name].append((None, words, shortened(answer)))
    shown = [row for number, name in enumerate(names) for row in (*rows[2 * number : 2 * number + 2], *written[name])]
    caption = f"The most probable answer to the first question of the {split} split of each task, by every checkpoint."
    return Table("samples_answers", "Answers to the same question", caption, ("task", "", "text"), tuple(shown))


def _translations(run: OpenedRun) -> Table:
    from memjax.tasks.contract import Asked

    first = run.loaded.experiment
    source = first.documents(run.split).source(0)
    text = first.tokenizer.decode(source)
    rows = [("source", shortened(text))]
    for words, loaded in _checkpoints(run):
        found = loaded.experiment.predict(loaded.variables, [Asked(text)])
        rows.append((words, shortened(found[0]["answer"])))
    caption = f"The first sentence of the {run.split} split, translated by every checkpoint."
    columns = ("checkpoint", "text")
    return Table("samples_translations", "Translations of one sentence", caption, columns, tuple(rows))


def _images(run: OpenedRun) -> Figure:
    from memjax.inference.images import sample_images
    from memjax.inference.sampling import Sampling

    shape = run.loaded.experiment.documents("train").shape
    named = {"segment_length": run.config.data.segment_length, "sampling": Sampling(), "seed": SEED}
    drawn = {
        words: np.asarray(sample_images(loaded.experiment.model, loaded.variables, IMAGES, shape, **named))
        for words, loaded in _checkpoints(run)
    }
    caption = f"{IMAGES} images of {shape[0]} x {shape[1]} pixels from every checkpoint, pixel by pixel; seed {SEED}."
    draw = functools.partial(_draw_images, drawn=drawn)
    return Figure("samples_images", "Images of the same seed", caption, draw, 0.4 + 1.25 * len(drawn))


def _draw_images(figure: Any, drawn: Mapping[str, np.ndarray]) -> None:
    axes = figure.subplots(len(drawn), IMAGES, squeeze=False)
    for row, (words, images) in zip(axes, drawn.items(), strict=True):
        row[0].set_title(words)
        for one, image in zip(row, images, strict=True):
            one.imshow(image, cmap="gray", vmin=0, vmax=255)
            one.set_axis_off()
