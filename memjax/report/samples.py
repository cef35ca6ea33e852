"""Panels of generated text and images: pseudo-samples of earlier tasks, and outputs of every kept checkpoint."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.lifelong.looks import KEPT, evenly_spaced, task_end_checkpoints
from memjax.report import charts
from memjax.report.method_log import task_borders
from memjax.report.panel import Figure, OpenedRun, Panel, Table

TEXTS = 3
"""Number of pseudo-samples that are shown for each earlier task before each new task."""
MOST_TEXTS = 36
"""Largest number of rows of a table of texts."""
MOST_CHECKPOINTS = 6
MOST_TASKS = 4
LETTERS = 200
"""Largest number of letters of a text in a table."""
PROMPT_LETTERS = 60
PROMPT_TOKENS = 64
TOKENS = 48
"""Number of tokens that every checkpoint generates after the prompt."""
IMAGES = 6
SEED = 0
TEMPERATURE = 0.8


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields a panel of the pseudo-samples that the model has generated (LAMOL), and a panel of what at most six kept
    checkpoints generate. A panel is left out if there is nothing to show.

    Checkpoints are evenly spaced, in runs whose task generates: texts, answers, translations or images.
    """
    if parts := [*_pseudo_sample_items(run)]:
        text = (
            "Before each task the model generates examples of the earlier tasks and is trained on them again (Sun et "
            "al. 2020, LAMOL, whose tables show such samples). Only texts with exactly one answer mark are used. If "
            "their share falls, or texts of one task look like texts of another, little is replayed."
        )
        yield Panel("pseudo_samples", "Pseudo-samples", text, tuple(parts))
    if run.log_lines and (part := _outputs_by_checkpoint(run)):
        text = (
            "One prompt, continued by every checkpoint with one seed. It shows what the model has learned so far and, "
            f"in a run over tasks, what it has forgotten. Runs keep their last two checkpoints; `{KEPT}` keeps more."
        )
        yield Panel("samples", "What each checkpoint generates", text, (part,))


# Pseudo-samples


def list_pseudo_samples(lines: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> list[tuple[Any, ...]]:
    """Lists from the log the pseudo-samples that were generated before each task: (next task, imitated task, number,
    share that is used, texts), one tuple for each imitated task.

    Args:
      lines: Lines of the run's `metrics.jsonl`.
      tasks: Names of the tasks in the order of training.

    Returns:
      Tuples of the task that follows (None after the last one), the task that the samples imitate, their number, the
      share of them that is used, and some of their texts.

    Example:
      >>> line = {"kind": "generated", "step": 4, "samples": 8, "kept_0": 0.75, "texts_0": ["a ANS b"]}
      >>> end = {"kind": "evaluation", "phase": "after", "name": "x", "step": 4}
      >>> list_pseudo_samples([end, line], ["x", "y"])
      [('y', 'x', 8, 0.75, ('a ANS b',))]
    """
    borders, rows = task_borders(lines, tasks), []
    for line in lines:
        if line["kind"] != "generated":
            continue
        num_done = sum(border <= line["step"] for border in borders)
        next_task = tasks[num_done] if num_done < len(tasks) else None
        numbers = sorted(int(match[1]) for name in line if (match := re.fullmatch(r"kept_(\d+)", name)))
        for number in numbers:
            count = line["samples"] // len(numbers)
            texts = tuple(line.get(f"texts_{number}", ()))
            rows.append((next_task, tasks[number], count, line[f"kept_{number}"], texts))
    return rows


def _pseudo_sample_items(run: OpenedRun) -> Iterator[Figure | Table]:
    if run.config.lifelong is None:
        return
    tasks = [task.name for task in run.config.lifelong.ordered_tasks]
    rows = list_pseudo_samples(run.log_lines, tasks)
    if not rows:
        return
    if len({before for before, *_ in rows}) > 1:
        yield Figure(
            "pseudo_share",
            "Share with exactly one answer mark",
            "One line for each earlier task, over the tasks before which the model generated. Others are not used.",
            functools.partial(_draw_shares, rows=rows, tasks=tasks),
        )
    columns = ("before task", "of task", "generated", "with one answer mark")
    caption = "Number of texts that the model generated before each task, and the share of them that it is trained on."
    yield Table("pseudo_written", "Generated pseudo-samples", caption, columns, tuple(row[:4] for row in rows))
    texts = [(before, of, shorten(text)) for before, of, _, _, some in rows for text in some[:TEXTS]]
    caption = (
        f"The first {TEXTS} texts of each task as they were generated, unused ones included. ANS stands before the "
        "answer."
    )
    table_rows = tuple(evenly_spaced(texts, MOST_TEXTS))
    yield Table("pseudo_texts", "Some pseudo-samples", caption, ("before task", "of task", "text"), table_rows)


def _draw_shares(figure: Any, rows: Sequence[tuple[Any, ...]], tasks: Sequence[str]) -> None:
    places = {name: number + 1 for number, name in enumerate(tasks)}
    series = {}
    for name in tasks:
        points = [(places[before], share) for before, of, _, share, _ in rows if of == name and before]
        if points:
            series[name] = tuple(zip(*points, strict=True))
    options: dict[str, Any] = {"x": "before task", "y": "share", "marks": True, "limits": (0.0, 1.04)}
    axes = charts.line_chart(figure, series, **options)
    at = range(2, len(tasks) + 1)
    axes.set_xticks(at, tasks[1:] if sum(map(len, tasks)) <= 45 else [str(number) for number in at])


def shorten(text: str, most: int = LETTERS) -> str:
    """Returns a text in one line of at most `most` letters: blanks are joined, the end is cut off, and unprintable
    letters become `\\ufffd`.

    Example:
      >>> shorten("one  two\\nthree", 9), shorten("\\x08a")
      ('one two …', '\ufffda')
    """
    text = "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(text.split()))
    return text if len(text) <= most else f"{text[: most - 1]}…"


# The same prompt at every checkpoint


def _outputs_by_checkpoint(run: OpenedRun) -> Figure | Table | None:
    """Makes the table or figure of generated outputs that suits the run's task. None if the task generates nothing."""
    from memjax.tasks import make_task

    task = make_task(run.config)
    if task.writes_answers:
        return _answers(run)
    if "sample" in task.verbs:
        return _images(run)
    if not {"translate", "generate"} & {*task.verbs} or run.loaded_run.experiment.tokenizer is None:
        return None
    if "translate" in task.verbs:
        return _translations(run)
    model = run.loaded_run.experiment.model
    return _continuations(run) if model.decodes and not model.example_extras(1, 1) else None


def _checkpoints(run: OpenedRun) -> Iterator[tuple[str, Any]]:
    """Yields a description of some kept checkpoints, oldest first, and the run loaded from each."""
    from memjax.lifelong import load_run
    from memjax.training.loaded_runs import checkpoint_extras
    from memjax.training.stages import Position

    stream = run.config.lifelong
    tasks = [] if stream is None else [task.name for task in stream.ordered_tasks]
    borders = task_borders(run.log_lines, [evaluation.name for evaluation in run.config.evaluations if evaluation.task])
    updates = {
        step: Position.read(step, extra["position"], 0).step for step, extra in checkpoint_extras(run.path).items()
    }
    # Of checkpoints with equally many updates the last is shown, but the one at the end of a task takes precedence.
    last = {number: step for step, number in updates.items()}
    last |= {updates[step]: step for step in task_end_checkpoints(run.log_lines, [*updates]).values()}
    for step in evenly_spaced(sorted(last.values()), MOST_CHECKPOINTS):
        number = updates[step]
        after = f", after {tasks[borders.index(number)]}" if number in borders and len(borders) == len(tasks) else ""
        yield f"{number:,} updates{after}", load_run(run.path, step=step)


def make_prompt(experiment: Any, split: str, letters: int = PROMPT_LETTERS) -> str:
    """Returns the text at the beginning of a split's first document, to be continued by a model: at most `letters`
    letters, cut after a word where possible.

    Args:
      experiment: Experiment with the data and the tokenizer.
      split: Name of the split.
      letters: Largest number of letters of the prompt.
    """
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

    first = run.loaded_run.experiment
    stream = run.config.lifelong
    prompt = make_prompt(first.of_task(stream.ordered_tasks[0].name) if stream else first, run.split)
    options: dict[str, Any] = {"max_tokens": TOKENS, "sampling": Sampling(temperature=TEMPERATURE), "seed": SEED}
    options |= {"segment_length": run.config.data.segment_length}
    rows = []
    for words, loaded in _checkpoints(run):
        experiment = loaded.experiment
        pieces = continue_texts(experiment.model, loaded.variables, experiment.tokenizer, [prompt], **options)
        rows.append((words, shorten("".join(piece for (piece,) in pieces))))
    caption = (
        f"Up to {TOKENS} tokens after the prompt {shorten(prompt)!r}, the beginning of the first document of the "
        f"{run.split} split; temperature {TEMPERATURE}, seed {SEED}."
    )
    return Table("samples_texts", "Continuations of one prompt", caption, ("checkpoint", "text"), tuple(rows))


def _answers(run: OpenedRun) -> Table:
    """Makes the table of answers that every checkpoint gives to the first question of some tasks."""
    stream, config = run.config.lifelong, run.config
    names = [task.name for task in stream.ordered_tasks][:MOST_TASKS] if stream else [""]
    split = next((evaluation.split for evaluation in config.evaluations if evaluation.task), config.evaluation.split)
    rows: list[tuple[Any, ...]] = []
    of_task = lambda loaded, name: loaded.experiment.of_task(name) if name else loaded.experiment
    for name in names:
        instruction = of_task(run.loaded_run, name).documents(split).instructions[0]
        question = shorten(f"{instruction.context} {instruction.question}")
        rows.append((name or None, "question", question))
        rows.append((None, "correct", shorten(" | ".join(instruction.answers))))
    written: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
    for words, loaded in _checkpoints(run):
        for name in names:
            experiment = of_task(loaded, name)
            options = {"rows": 1, "adapt_rows": loaded.experiment.adapt_rows}
            prompts = [experiment.documents(split).prompt(0)]
            task = experiment.task
            answer = task.write(experiment.model, loaded.variables, prompts, experiment.datasets, **options)[0]
            written[name].append((None, words, shorten(answer)))
    shown = [row for number, name in enumerate(names) for row in (*rows[2 * number : 2 * number + 2], *written[name])]
    caption = f"Most probable answer of every checkpoint to the first question of the {split} split of each task."
    return Table("samples_answers", "Answers to the same question", caption, ("task", "", "text"), tuple(shown))


def _translations(run: OpenedRun) -> Table:
    from memjax.tasks.interface import Query

    first = run.loaded_run.experiment
    source = first.documents(run.split).source(0)
    text = first.tokenizer.decode(source)
    rows = [("source", shorten(text))]
    for words, loaded in _checkpoints(run):
        predictions = loaded.experiment.predict(loaded.variables, [Query(text)])
        rows.append((words, shorten(predictions[0]["answer"])))
    caption = f"The first sentence of the {run.split} split, translated by every checkpoint."
    columns = ("checkpoint", "text")
    return Table("samples_translations", "Translations of one sentence", caption, columns, tuple(rows))


def _images(run: OpenedRun) -> Figure:
    from memjax.inference.images import sample_images
    from memjax.inference.sampling import Sampling

    shape = run.loaded_run.experiment.documents("train").shape
    options = {"segment_length": run.config.data.segment_length, "sampling": Sampling(), "seed": SEED}
    images_by_checkpoint = {
        words: np.asarray(sample_images(loaded.experiment.model, loaded.variables, IMAGES, shape, **options))
        for words, loaded in _checkpoints(run)
    }
    caption = f"{IMAGES} images of {shape[0]} x {shape[1]} pixels from every checkpoint, pixel by pixel; seed {SEED}."
    draw = functools.partial(_draw_images, images_by_checkpoint=images_by_checkpoint)
    height = 0.4 + 1.25 * len(images_by_checkpoint)
    return Figure("samples_images", "Images of the same seed", caption, draw, height)


def _draw_images(figure: Any, images_by_checkpoint: Mapping[str, np.ndarray]) -> None:
    axes = figure.subplots(len(images_by_checkpoint), IMAGES, squeeze=False)
    for row, (words, images) in zip(axes, images_by_checkpoint.items(), strict=True):
        row[0].set_title(words)
        for chart, image in zip(row, images, strict=True):
            chart.imshow(image, cmap="gray", vmin=0, vmax=255)
            chart.set_axis_off()
