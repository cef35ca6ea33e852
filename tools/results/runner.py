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

from tools.results.ledger import Book, Run, finished_run, without_paths
from tools.results.recipes import RECIPES, Recipe

SEARCH_SEED = 100
"""the learning-rate search has a seed that no result has"""
SEARCHED = "nats_per_token"
"""what a search makes least"""


def run(name: str, workdir: Path, only: str = "", book: Book | None = None) -> None:
    """Trains and records what the ledger does not have: the learning-rate search, then every contender and seed.

    Args:
      name: of the recipe.
      workdir: of run directories; a run that was interrupted there goes on.
      only: rows whose name contains this text.
      book: ledger to look in and to add to; the committed one by default.
    """
    recipe, book = RECIPES[name], book or Book()
    for row in recipe.variants:
        if only not in row:
            continue
        rate = _search(name, row, workdir, book)
        for seed in recipe.seeds:
            if (name, row, seed) not in {found.key for found in book.runs()}:
                directory = train(name, row, seed, workdir, rate)
                _record(recipe, name, row, seed, directory, book, _command(name, row, seed, workdir, rate))


def train(name: str, row: str, seed: int, workdir: Path, rate: float | None) -> Path:
    """Runs `memjax train` to its end, after the run that this one begins with; its directory."""
    directory = workdir / run_name(name, row, seed)
    if not (directory / "finished.json").exists():
        for word in RECIPES[name].variants[row].split():
            if word.startswith("@"):
                other, other_row = _other(word)
                _train_first(other, other_row, workdir)
        command = _command(name, row, seed, workdir, rate)
        print("==", shlex.join(command), flush=True)
        subprocess.run([sys.executable, "-m", "memjax.cli", *command[1:]], check=True)
    return directory


def run_name(name: str, row: str, seed: int) -> str:
    """Of a run directory: the recipe, the variant, the values of further arguments but for paths, and the seed."""
    return f"{name}-{label(RECIPES[name].variants[row])}-seed{seed}"


def label(variant: str) -> str:
    """The variant, the values of its further arguments but for paths, and the row that it begins with."""
    words = (f"after_{_other(word)[1].lower()}" if word[0] == "@" else word for word in variant.split())
    return "-".join(re.sub(r"[^\w.]+", "_", word.strip("/")) for word in words if word[0] not in "-$")


def _record(recipe: Recipe, section: str, row: str, seed: int, directory: Path, book: Book, command: list[str]) -> Run:
    evaluations: dict[str, Any] = {}
    for what, further in (recipe.evaluations | recipe.own_evaluations.get(row, {})).items():
        evaluations[what] = json.loads(_memjax("eval", "--run", str(directory), "--json", *further.split()))
    if recipe.usage and (found := _memjax("usage", "--run", str(directory), "--json", refusable=True)):
        evaluations["usage"] = json.loads(found)
    for found in evaluations.values():
        found |= {"run": directory.name} if "run" in found else {}
    made = finished_run(
        directory,
        recipe=section,
        row=row,
        seed=seed,
        command=shlex.join(without_paths(command)),
        config=recipe.config,
        variant=command[command.index("--variant") + 1],
        evaluations=evaluations,
    )
    metrics = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    book.add(made, [json.loads(line) for line in metrics])
    return made


def _search(name: str, row: str, workdir: Path, book: Book) -> float | None:
    recipe = RECIPES[name]
    if len(recipe.learning_rates) < 2:
        return recipe.learning_rates[0] if recipe.learning_rates else None
    section, scores = f"{name}: learning-rate search", {}
    for rate in recipe.learning_rates:
        key = (section, f"{row}, {rate:g}", SEARCH_SEED)
        found = {run.key: run for run in book.runs()}
        if key not in found:
            directory = workdir / f"{name}-search-{label(recipe.variants[row])}-{rate:g}"
            command = ["memjax", "train", *arguments(name, row, SEARCH_SEED, workdir, rate, recipe.search_steps)]
            command += ["--name", directory.name, "--workdir", str(workdir)]
            print("==", shlex.join(command), flush=True)
            subprocess.run([sys.executable, "-m", "memjax.cli", *command[1:]], check=True)
            searched = Recipe(recipe.description, recipe.config, recipe.variants, recipe.search_steps)
            found[key] = _record(searched, section, key[1], SEARCH_SEED, directory, book, command)
        scores[rate] = found[key].results["evaluation"][SEARCHED]
    return min(scores, key=lambda rate: scores[rate])


def arguments(name: str, row: str, seed: int, workdir: Path, rate: float | None, steps: int) -> list[str]:
    """Of `memjax train`, but for the name and the folder of the run."""
    recipe = RECIPES[name]
    variant, *own = recipe.variants[row].split()
    found = ["--config", recipe.config, "--variant", variant, "--training.steps", str(steps)]
    found += ["--training.schedule.learning-rate", f"{rate:g}"] if rate else []
    found += ["--training.seed", str(seed), "--data.seed", str(seed), *recipe.arguments.split()]
    found += ["--data.source.path", f"${recipe.data_path}"] if recipe.data_path else []
    return [_resolved(word, recipe, workdir) for word in (*found, *own)]


def _command(name: str, row: str, seed: int, workdir: Path, rate: float | None) -> list[str]:
    given = arguments(name, row, seed, workdir, rate, RECIPES[name].steps)
    return ["memjax", "train", *given, "--name", run_name(name, row, seed), "--workdir", str(workdir)]


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
    rate = recipe.learning_rates[0] if recipe.learning_rates else None
    return train(name, row, recipe.seeds[0], workdir, rate)


def _memjax(*words: str, refusable: bool = False) -> str:
    """What a command prints; '' where it refuses the run and may."""
    command = [sys.executable, "-m", "memjax.cli", *words]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode == 2 and refusable:
        return ""
    done.check_returncode()
    return done.stdout
