"""Runs recipes: trains what the ledger does not have, reads off what the recipe asks for, and adds it to the ledger."""

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
from tools.results.ledger import Book, Run, finished_run, without_paths
from tools.results.searches import (
    SECTION,
    find_trials,
    has_settings,
    read_settings,
    show_settings,
    summarize_search,
)


def run(name: str, workdir: Path, only: str = "", book: Book | None = None) -> None:
    """Trains and records what the ledger does not have with the settings that the search has found.

    Args:
      name: of the recipe.
      workdir: of run directories; a run that was interrupted there goes on.
      only: rows whose name contains this text.
      book: ledger to look in and to add to; the committed one by default.
    """
    recipe, book = RECIPES[name], book or Book()
    for contender, (row, order) in recipe.contenders().items():
        if only not in contender:
            continue
        chosen = best_arguments(name, row, book)
        for seed in recipe.seeds:
            recorded = {run.key: run for run in book.runs()}.get((name, contender, seed))
            if recorded is None or not has_settings(recorded, read_settings(chosen)):
                directory = train(name, row, seed, workdir, chosen, order)
                record(name, contender, seed, directory, book, _command(name, row, seed, workdir, chosen, order))


def train(name: str, row: str, seed: int, workdir: Path, chosen: str, order: str = "") -> Path:
    """Runs `memjax train` to its end, after the run that this one begins with; its directory."""
    directory = workdir / run_name(name, row, seed, order)
    if (directory / "finished.json").exists() and not _has_arguments(directory, chosen):
        raise UsageError(f"{directory}: given a run with other settings than {chosen!r}, allowed: another --workdir")
    train_command(name, row, workdir, _command(name, row, seed, workdir, chosen, order))
    return directory


def _has_arguments(directory: Path, chosen: str) -> bool:
    """Returns whether a finished run has the settings of these arguments already."""
    config = load_config(directory)
    return config_to_dict(apply_overrides(config, chosen.split(), prog="memjax train")) == config_to_dict(config)


def train_command(name: str, row: str, workdir: Path, command: list[str]) -> None:
    """Runs a command `memjax train` of a row to its end unless it is through, after the run that it begins with. Its
    CPU seconds, of all attempts together, are kept beside the run directory.
    """
    directory = workdir / command[command.index("--name") + 1]
    if (directory / "finished.json").exists():
        return
    for word in RECIPES[name].variants[row].split():
        if word.startswith("@"):
            other, other_row = _other(word)
            _train_first(other, other_row, workdir)
    before, seconds = _children_seconds(), cpu_seconds(directory) or 0.0
    print("==", shlex.join(command), flush=True)
    try:
        subprocess.run([sys.executable, "-m", "memjax.cli", *command[1:]], check=True)
    finally:
        workdir.mkdir(parents=True, exist_ok=True)
        _seconds_file(directory).write_text(f"{seconds + _children_seconds() - before:.2f}\n")


def cpu_seconds(directory: Path) -> float | None:
    """Returns the CPU seconds that the training of a run has taken, None where they are not known."""
    file = _seconds_file(directory)
    return float(file.read_text()) if file.exists() else None


def _seconds_file(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.cpu_seconds")


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_name(name: str, row: str, seed: int, order: str = "") -> str:
    """Of a run directory: the recipe, the variant, the values of further arguments but for paths, and the seed."""
    order = f"-{joined(order)}" if order else ""
    return f"{name}-{label(RECIPES[name].variants[row])}{order}-seed{seed}"


def label(variant: str) -> str:
    """The variant, the values of its further arguments but for paths, its flags, and the row that it begins with."""
    words = variant.split()
    followed = dict(zip(words, words[1:], strict=False))
    is_flag = lambda word: word[0] == "-" and followed.get(word, "-")[0] == "-"
    told = (word.rpartition(".")[2] if is_flag(word) else word for word in words)
    named = (f"after_{_other(word)[1].lower()}" if word[0] == "@" else word for word in told)
    return "-".join(joined(word.strip("/")) for word in named if word[0] not in "-$")


def joined(words: str) -> str:
    return re.sub(r"[^\w.]+", "_", words)


def record(
    name: str, label: str, seed: int, directory: Path, book: Book, command: list[str], *, is_trial: bool = False
) -> Run:
    """Adds a finished run of a recipe to a book, and returns it. A trial is not evaluated any further.

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
    stream = stream_facts(str(directory), load_config(directory))
    evaluations: dict[str, Any] = {"stream": stream} if stream else {}
    for what, further in (recipe.evaluations | recipe.own_evaluations.get(row, {})).items():
        evaluations[what] = json.loads(_memjax("eval", "--run", str(directory), "--json", *further.split()))
    if recipe.usage and (found := _memjax("usage", "--run", str(directory), "--json", refusable=True)):
        evaluations["usage"] = json.loads(found)
    for found in evaluations.values():
        found |= {"run": directory.name} if "run" in found else {}
    made = finished_run(
        directory,
        recipe=f"{name}: {SECTION}" if is_trial else name,
        row=label,
        seed=seed,
        command=shlex.join(without_paths(command)),
        config=recipe.config,
        variant=command[command.index("--variant") + 1],
        evaluations=evaluations,
    )
    made = dataclasses.replace(made, cpu_seconds=cpu_seconds(directory))
    # The evaluations of a stream are its matrix.
    book.add(made, [] if stream else read_metrics(directory / "metrics.jsonl"))
    return made


def best_arguments(name: str, row: str, book: Book) -> str:
    """Returns the arguments of the best trial of a row, of the row that a recipe takes its settings from, or the
    learning rate of a recipe that is not searched.

    Raises:
      UsageError: The row has fewer trials than its recipe wants.
    """
    recipe = RECIPES[name]
    if row in recipe.settings_from:
        source, _, source_row = recipe.settings_from[row].partition("/")
        return best_arguments(source, source_row, book)
    if recipe.search is None:
        return f"{RATE} {recipe.learning_rate:g}" if recipe.learning_rate else ""
    trials = find_trials(book.runs(), name, row)
    if len(trials) < recipe.search.trials:
        wanted = f"{recipe.search.trials}; run `python -m tools.results search {name}` first"
        raise UsageError(f"{name}: given {len(trials)} trials of the row {row!r}, allowed: at least {wanted}")
    return show_settings(summarize_search(trials).best)


def arguments(
    name: str, row: str, seed: int, workdir: Path, chosen: str, order: str = "", *, is_trial: bool = False
) -> list[str]:
    """Of `memjax train`, but for the name and the folder of the run.

    Args:
      name: of the recipe.
      row: of its variants.
      seed: of parameters and data.
      workdir: of run directories.
      chosen: what the search has found.
      order: of the recipe's orders, '' = none.
      is_trial: whether the run is a trial of the search, which has its own number of updates.
    """
    recipe = RECIPES[name]
    variant, *own = recipe.variants[row].split()
    number = recipe.search.steps if is_trial and recipe.search else recipe.steps
    found = ["--config", recipe.config, "--variant", variant]
    found += ["--training.steps", str(number)] if number else []
    found += [*chosen.split(), *recipe.orders.get(order, "").split()]
    found += ["--training.seed", str(seed), "--data.seed", str(seed), *recipe.arguments.split()]
    found += ["--data.source.path", f"${recipe.data_path}"] if recipe.data_path else []
    return [_resolved(word, recipe, workdir) for word in (*found, *own)]


def _command(name: str, row: str, seed: int, workdir: Path, chosen: str, order: str = "") -> list[str]:
    given = arguments(name, row, seed, workdir, chosen, order)
    return ["memjax", "train", *given, "--name", run_name(name, row, seed, order), "--workdir", str(workdir)]


def _resolved(word: str, recipe: Recipe, workdir: Path) -> str:
    """A word of an argument with the path that `$NAME/REST` or `@RECIPE/ROW` stands for."""
    if word.startswith("@"):
        name, row = _other(word)
        return str(workdir / run_name(name, row, RECIPES[name].seeds[0]))
    if not word.startswith("$"):
        return word
    name, _, rest = word[1:].partition("/")
    if not os.environ.get(name):
        raise UsageError(f"{name}: not set; give the path of the data, see configs/{recipe.config}.py")
    return os.environ[name] + ("/" + rest if rest else "")


def _other(word: str) -> tuple[str, str]:
    """The recipe and the row that `@RECIPE/ROW` names."""
    name, _, wanted = word[1:].partition("/")
    return name, next(row for row in RECIPES[name].variants if row.replace(" ", "_") == wanted)


def _train_first(name: str, row: str, workdir: Path) -> Path:
    """The directory of a run that another begins with, trained if it is not there; what it says is not recorded."""
    return train(name, row, RECIPES[name].seeds[0], workdir, best_arguments(name, row, Book()))


def _memjax(*words: str, refusable: bool = False) -> str:
    """What a command prints; '' where it refuses the run and may."""
    command = [sys.executable, "-m", "memjax.cli", *words]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode == 2 and refusable:
        return ""
    done.check_returncode()
    return done.stdout
