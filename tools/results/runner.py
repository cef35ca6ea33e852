"""Runs recipes: trains the runs that the ledger does not have, evaluates them, and adds them to the ledger."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from memjax.report.outcomes import stream_facts
from memjax.settings.overrides import UsageError, apply_overrides
from memjax.training.metrics import read_metrics
from memjax.training.runs import config_to_dict, load_config
from tools.recipes import RECIPES, Recipe
from tools.recipes.search import RATE
from tools.results.ledger import Book, Run, ends_without_loss, finished_run, without_paths
from tools.results.searches import (
    SECTION,
    find_trials,
    has_settings,
    read_settings,
    show_settings,
    summarize_search,
)


def run(name: str, workdir: Path, only: str = "", book: Book | None = None) -> None:
    """Trains and records the runs of a recipe that the ledger does not have with the best settings of the search.

    Args:
      name: Name of the recipe.
      workdir: Folder of run directories. A run that was interrupted there goes on.
      only: Part of the names of the rows to run, with the order where there are several. '' for all rows.
      book: Ledger that is read and added to. None for the committed one.
    """
    recipe, book = RECIPES[name], book or Book()
    for contender, (row, order) in recipe.contenders().items():
        if only not in contender:
            continue
        chosen = best_arguments(name, row, book)
        for seed in recipe.seeds_of(row, order):
            recorded = {run.key: run for run in book.runs()}.get((name, contender, seed))
            if recorded is None or not has_settings(recorded, read_settings(chosen)):
                directory = train(name, row, seed, workdir, chosen, order)
                record(name, contender, seed, directory, book, _make_command(name, row, seed, workdir, chosen, order))


def train(name: str, row: str, seed: int, workdir: Path, chosen: str, order: str = "") -> Path:
    """Trains a run to its end with `memjax train` and returns its directory. A run that this one begins with is
    trained first.

    Raises:
      UsageError: The directory has a finished run with other settings.
    """
    directory = workdir / run_name(name, row, seed, order)
    if (directory / "finished.json").exists() and not _has_arguments(directory, chosen):
        raise UsageError(f"{directory}: given a run with other settings than {chosen!r}, allowed: another --workdir")
    train_command(name, row, workdir, _make_command(name, row, seed, workdir, chosen, order))
    return directory


def _has_arguments(directory: Path, chosen: str) -> bool:
    """Returns whether the configuration of a finished run already has the settings of the arguments `chosen`."""
    config = load_config(directory)
    return config_to_dict(apply_overrides(config, chosen.split(), prog="memjax train")) == config_to_dict(config)


def train_command(name: str, row: str, workdir: Path, command: list[str]) -> None:
    """Runs the command `memjax train` of a row to its end, unless its run is finished. A run that it begins with is
    trained first. The CPU seconds of all attempts together are written to a file beside the run directory.
    """
    directory = workdir / command[command.index("--name") + 1]
    if (directory / "finished.json").exists():
        return
    for word in RECIPES[name].variants[row].split():
        if word.startswith("@"):
            other, other_row = _parse_reference(word)
            _train_first(other, other_row, workdir)
    before, seconds = _children_seconds(), cpu_seconds(directory) or 0.0
    print("==", shlex.join(command), flush=True)
    try:
        subprocess.run([sys.executable, "-m", "memjax.cli", *command[1:]], check=True)
    finally:
        workdir.mkdir(parents=True, exist_ok=True)
        _seconds_file(directory).write_text(f"{seconds + _children_seconds() - before:.2f}\n")


def cpu_seconds(directory: Path) -> float | None:
    """Returns the CPU seconds that the training of a run has taken. None where they are not known."""
    file = _seconds_file(directory)
    return float(file.read_text()) if file.exists() else None


def _seconds_file(directory: Path) -> Path:
    """Returns the file beside a run directory that has the CPU seconds of the run."""
    return directory.with_name(f"{directory.name}.cpu_seconds")


def _children_seconds() -> float:
    """Returns the CPU seconds of all child processes of this process that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_name(name: str, row: str, seed: int, order: str = "") -> str:
    """Returns the name of a run directory: the recipe, the `label` of the row's variant, the order and the seed."""
    order = f"-{join_words(order)}" if order else ""
    return f"{name}-{label(RECIPES[name].variants[row])}{order}-seed{seed}"


def label(variant: str) -> str:
    """Returns a short name of a variant with further arguments, as a part of names of run directories.

    It has the variant, the values of options, the last words of flags, and `after_ROW` for the row that a run begins
    with. Options themselves and values `$NAME`, which stand for paths, are left out.
    """
    words = variant.split()
    next_words = dict(zip(words, words[1:], strict=False))
    is_flag = lambda word: word[0] == "-" and next_words.get(word, "-")[0] == "-"
    without_flags = (word.rpartition(".")[2] if is_flag(word) else word for word in words)
    parts = (f"after_{_parse_reference(word)[1].lower()}" if word[0] == "@" else word for word in without_flags)
    return "-".join(join_words(word.strip("/")) for word in parts if word[0] not in "-$")


def join_words(text: str) -> str:
    """Joins the words of a text by `_`, so that it can be part of the name of a directory."""
    return re.sub(r"[^\w.]+", "_", text)


def record(
    name: str, label: str, seed: int, directory: Path, book: Book, command: list[str], *, is_trial: bool = False
) -> Run:
    """Adds a run of a recipe that has ended to a book, and returns it. A trial is not evaluated any further.

    Args:
      name: Name of the recipe.
      label: Row of the run in the ledger.
      seed: Seed of the run.
      directory: Directory of the run.
      book: Ledger that gets the run.
      command: Command of the run.
      is_trial: Whether the run is a trial of the search.
    """
    recipe = RECIPES[name]
    if is_trial:
        recipe = dataclasses.replace(recipe, evaluations={}, own_evaluations={}, usage=False)
    row = label if is_trial else recipe.contenders()[label][0]
    stream = {} if ends_without_loss(directory) else stream_facts(str(directory), load_config(directory))
    evaluations: dict[str, Any] = {"stream": stream} if stream else {}
    for title, further in (recipe.evaluations | recipe.own_evaluations.get(row, {})).items():
        evaluations[title] = json.loads(_run_memjax("eval", "--run", str(directory), "--json", *further.split()))
    if recipe.usage and (usage := _run_memjax("usage", "--run", str(directory), "--json", may_refuse=True)):
        evaluations["usage"] = json.loads(usage)
    for evaluation in evaluations.values():
        evaluation |= {"run": directory.name} if "run" in evaluation else {}
    finished = finished_run(
        directory,
        recipe=f"{name}: {SECTION}" if is_trial else name,
        row=label,
        seed=seed,
        command=shlex.join(without_paths(command)),
        config=recipe.config,
        variant=command[command.index("--variant") + 1],
        evaluations=evaluations,
    )
    finished = dataclasses.replace(finished, cpu_seconds=cpu_seconds(directory))
    # The evaluations of a stream are its matrix.
    book.add(finished, [] if stream else read_metrics(directory / "metrics.jsonl"))
    return finished


def best_arguments(name: str, row: str, book: Book) -> str:
    """Returns the arguments of `memjax train` with the best settings of a row.

    They are those of the best trial of the row, or of the row of another recipe that `settings_from` names. For a
    recipe without a search they are its learning rate, or '' where it has none; '' too for a row that its search leaves
    out.

    Raises:
      UsageError: The row has fewer trials than its recipe wants.
    """
    recipe = RECIPES[name]
    if row in recipe.settings_from:
        source, _, source_row = recipe.settings_from[row].partition("/")
        return best_arguments(source, source_row, book)
    if recipe.search is None:
        return f"{RATE} {recipe.learning_rate:g}" if recipe.learning_rate else ""
    if not recipe.search.settings_of(row):
        return ""
    trials = find_trials(book.runs(), name, row)
    if len(trials) < recipe.search.trials:
        wanted = f"{recipe.search.trials}; run `python -m tools.results search {name}` first"
        raise UsageError(f"{name}: given {len(trials)} trials of the row {row!r}, allowed: at least {wanted}")
    return show_settings(summarize_search(trials).best)


def arguments(
    name: str, row: str, seed: int, workdir: Path, chosen: str, order: str = "", *, is_trial: bool = False
) -> list[str]:
    """Returns the arguments of `memjax train` for a run, without the name and the folder of the run.

    Args:
      name: Name of the recipe.
      row: Row of the recipe, one of its variants.
      seed: Seed of parameters and data.
      workdir: Folder of run directories.
      chosen: Arguments with the settings of the run, such as those of the best trial.
      order: Name of one of the recipe's orders of tasks. '' for a recipe without orders.
      is_trial: Whether the run is a trial of the search. Trials have the number of updates of the search, and one that
        diverges skips its updates to the end, so that the search goes on.
    """
    recipe = RECIPES[name]
    variant, *row_words = recipe.variants[row].split()
    steps = recipe.search.steps if is_trial and recipe.search else recipe.steps
    words = ["--config", recipe.config, "--variant", variant]
    words += ["--training.steps", str(steps)] if steps else []
    words += ["--training.max-skipped-steps", "0"] if is_trial else []
    words += [*chosen.split(), *recipe.orders.get(order, "").split()]
    words += ["--training.seed", str(seed), "--data.seed", str(seed), *recipe.arguments.split()]
    words += ["--data.source.path", f"${recipe.data_path}"] if recipe.data_path else []
    return [_resolve_path(word, recipe, workdir) for word in (*words, *row_words)]


def _make_command(name: str, row: str, seed: int, workdir: Path, chosen: str, order: str = "") -> list[str]:
    """Returns the whole command `memjax train` of a recorded run. See `arguments`."""
    words = arguments(name, row, seed, workdir, chosen, order)
    return ["memjax", "train", *words, "--name", run_name(name, row, seed, order), "--workdir", str(workdir)]


def _resolve_path(word: str, recipe: Recipe, workdir: Path) -> str:
    """Returns the path that a word `$NAME/REST` or `@RECIPE/ROW` stands for. Other words are returned unchanged.

    Raises:
      UsageError: The environment variable `NAME` is not set.
    """
    if word.startswith("@"):
        name, row = _parse_reference(word)
        return str(workdir / run_name(name, row, RECIPES[name].seeds[0]))
    if not word.startswith("$"):
        return word
    name, _, rest = word[1:].partition("/")
    if not os.environ.get(name):
        raise UsageError(f"{name}: not set; give the path of the data, see configs/{recipe.config}.py")
    return os.environ[name] + ("/" + rest if rest else "")


def _parse_reference(word: str) -> tuple[str, str]:
    """Returns the recipe and the row that a word `@RECIPE/ROW` names. The word has `_` for the spaces of the row."""
    name, _, wanted = word[1:].partition("/")
    return name, next(row for row in RECIPES[name].variants if row.replace(" ", "_") == wanted)


def _train_first(name: str, row: str, workdir: Path) -> Path:
    """Trains a run that another run begins with, unless it is finished, and returns its directory. Records nothing."""
    return train(name, row, RECIPES[name].seeds[0], workdir, best_arguments(name, row, Book()))


def _run_memjax(*words: str, may_refuse: bool = False) -> str:
    """Runs a command of memjax and returns its output. '' where `may_refuse` is set and the command refuses the run."""
    command = [sys.executable, "-m", "memjax.cli", *words]
    process = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if process.returncode == 2 and may_refuse:
        return ""
    process.check_returncode()
    return process.stdout
