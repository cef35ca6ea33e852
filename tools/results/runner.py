"""Runs recipes: trains what the ledger does not have, reads off what the recipe asks for, and adds it to the ledger."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from memjax.report.outcomes import stream_facts
from memjax.training.metrics import read_metrics
from memjax.training.runs import load_config
from tools.recipes import RECIPES, Recipe
from tools.results.ledger import Book, Run, finished_run, without_paths
from tools.results.streams import ALONE

SEARCH_SEED = 100
"""the search has a seed that no result has"""
SEARCHED = "nats_per_token"
"""what a search makes least; of a stream it makes the average accuracy most"""


def run(name: str, workdir: Path, only: str = "", book: Book | None = None) -> None:
    """Trains and records what the ledger does not have: the search, then every contender and seed.

    Args:
      name: of the recipe.
      workdir: of run directories; a run that was interrupted there goes on.
      only: rows whose name contains this text.
      book: ledger to look in and to add to; the committed one by default.
    """
    recipe, book = RECIPES[name], book or Book()
    searched: dict[str, str] = {}
    for contender, (row, order) in recipe.contenders().items():
        if only not in contender:
            continue
        if row not in searched:
            searched[row] = _search(name, row, workdir, book)
        for seed in recipe.seeds:
            if (name, contender, seed) not in {found.key for found in book.runs()}:
                directory = train(name, row, seed, workdir, searched[row], order)
                command = _command(name, row, seed, workdir, searched[row], order)
                _record(recipe, name, contender, row, seed, directory, book, command)


def train(name: str, row: str, seed: int, workdir: Path, chosen: str, order: str = "") -> Path:
    """Runs `memjax train` to its end, after the run that this one begins with; its directory."""
    directory = workdir / run_name(name, row, seed, order)
    if not (directory / "finished.json").exists():
        for word in RECIPES[name].variants[row].split():
            if word.startswith("@"):
                other, other_row = _other(word)
                _train_first(other, other_row, workdir)
        _train(_command(name, row, seed, workdir, chosen, order))
    return directory


def run_name(name: str, row: str, seed: int, order: str = "") -> str:
    """Of a run directory: the recipe, the variant, the values of further arguments but for paths, and the seed."""
    order = f"-{_joined(order)}" if order else ""
    return f"{name}-{label(RECIPES[name].variants[row])}{order}-seed{seed}"


def label(variant: str) -> str:
    """The variant, the values of its further arguments but for paths, its flags, and the row that it begins with."""
    words = variant.split()
    followed = dict(zip(words, words[1:], strict=False))
    is_flag = lambda word: word[0] == "-" and followed.get(word, "-")[0] == "-"
    told = (word.rpartition(".")[2] if is_flag(word) else word for word in words)
    named = (f"after_{_other(word)[1].lower()}" if word[0] == "@" else word for word in told)
    return "-".join(_joined(word.strip("/")) for word in named if word[0] not in "-$")


def _joined(words: str) -> str:
    return re.sub(r"[^\w.]+", "_", words)


def _train(command: list[str]) -> None:
    print("==", shlex.join(command), flush=True)
    subprocess.run([sys.executable, "-m", "memjax.cli", *command[1:]], check=True)


def _record(
    recipe: Recipe, section: str, contender: str, row: str, seed: int, directory: Path, book: Book, command: list[str]
) -> Run:
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
        recipe=section,
        row=contender,
        seed=seed,
        command=shlex.join(without_paths(command)),
        config=recipe.config,
        variant=command[command.index("--variant") + 1],
        evaluations=evaluations,
    )
    # The evaluations of a stream are its matrix.
    book.add(made, [] if stream else read_metrics(directory / "metrics.jsonl"))
    return made


def _search(name: str, row: str, workdir: Path, book: Book) -> str:
    """The arguments that are best for a row, trained where the ledger does not have them."""
    recipe = RECIPES[name]
    tried = recipe.searches(row)
    if len(tried) < 2:
        return next(iter(tried.values()), "")
    section, scores = f"{name}: {'search' if recipe.trials else 'learning-rate search'}", {}
    for trial, further in tried.items():
        key = (section, f"{row}, {trial}", SEARCH_SEED)
        found = {run.key_of_today: run for run in book.runs()}
        if key not in found:
            directory = workdir / f"{name}-search-{label(recipe.variants[row])}-{_joined(trial.strip('-'))}"
            given = arguments(name, row, SEARCH_SEED, workdir, f"{further} {recipe.search_arguments}", steps=True)
            command = ["memjax", "train", *given, "--name", directory.name, "--workdir", str(workdir)]
            _train(command)
            searched = Recipe(recipe.description, recipe.config, recipe.variants, recipe.search_steps)
            found[key] = _record(searched, section, key[1], row, SEARCH_SEED, directory, book, command)
        scores[trial] = _loss(found[key], row)
    return tried[min(scores, key=lambda trial: scores[trial])]


def _loss(run: Run, row: str) -> float:
    """What a search makes least: nats, or what is missing of the accuracy of a stream.

    Of tasks that are learned apart it is the accuracy of each after itself.
    """
    if stream := run.evaluations.get("stream"):
        return -stream["learning_accuracy" if row == ALONE else "average"]
    return run.results["evaluation"][SEARCHED]


def arguments(
    name: str, row: str, seed: int, workdir: Path, chosen: str, order: str = "", *, steps: bool = False
) -> list[str]:
    """Of `memjax train`, but for the name and the folder of the run.

    Args:
      name: of the recipe.
      row: of its variants.
      seed: of parameters and data.
      workdir: of run directories.
      chosen: what the search has found.
      order: of the recipe's orders, '' = none.
      steps: those of the search.
    """
    recipe = RECIPES[name]
    variant, *own = recipe.variants[row].split()
    number = recipe.search_steps if steps else recipe.steps
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
        raise SystemExit(f"{name}: not set; give the path of the data, see configs/{recipe.config}.py")
    return os.environ[name] + ("/" + rest if rest else "")


def _other(word: str) -> tuple[str, str]:
    """The recipe and the row that `@RECIPE/ROW` names."""
    name, _, wanted = word[1:].partition("/")
    return name, next(row for row in RECIPES[name].variants if row.replace(" ", "_") == wanted)


def _train_first(name: str, row: str, workdir: Path) -> Path:
    """The directory of a run that another begins with, trained if it is not there; what it says is not recorded."""
    recipe = RECIPES[name]
    return train(name, row, recipe.seeds[0], workdir, next(iter(recipe.searches(row).values()), ""))


def _memjax(*words: str, refusable: bool = False) -> str:
    """What a command prints; '' where it refuses the run and may."""
    command = [sys.executable, "-m", "memjax.cli", *words]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode == 2 and refusable:
        return ""
    done.check_returncode()
    return done.stdout
