"""Searches the settings of the rows of a recipe: every row has the same number of trials, all of them in the ledger."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from memjax.settings.overrides import UsageError
from tools.recipes import RECIPES
from tools.recipes.search import Search, count_distinct, propose_trial
from tools.results.ledger import Book, Run, ends_without_loss
from tools.results.runner import arguments, join_words, label, record, train_command
from tools.results.searches import LEAST_TRIALS, SECTION, find_trials, show_settings, summarize_search


def search(
    name: str, workdir: Path, book: Book, only: str = "", trials: int = 0, *, is_estimate: bool = False
) -> list[str]:
    """Trains and records the trials that the ledger does not have. A search that was interrupted goes on.

    Prints the hours that are left before it goes on, from one timed trial. All rows get one more trial as long as the
    best value of a row is the smallest or largest that was tried, up to twice the number.

    Args:
      name: Name of the recipe.
      workdir: Folder of run directories. A trial that was interrupted there goes on.
      book: Ledger that is read and added to.
      only: Part of the names of the rows to search. '' for all rows.
      trials: Number of trials of every row. 0 for that of the recipe.
      is_estimate: Whether to stop after the estimate.

    Returns:
      Rows for which a best value still is the smallest or largest that was tried. Empty for an estimate.

    Raises:
      UsageError: The recipe has no search, no row that is searched has that name, or the number of trials is too small.
    """
    plan = RECIPES[name].search
    if plan is None:
        searched = ", ".join(recipe for recipe in RECIPES if RECIPES[recipe].search)
        raise UsageError(f"search: given {name!r}, allowed: a recipe with a search: {searched}")
    searched_rows = [row for row in RECIPES[name].variants if plan.settings_of(row)]
    rows = [row for row in searched_rows if only in row]
    if not rows:
        allowed = ", ".join(searched_rows)
        raise UsageError(f"--only: given {only!r}, allowed: a part of the name of a row: {allowed}")
    if trials and trials < LEAST_TRIALS:
        raise UsageError(f"--trials: given {trials}, allowed: at least {LEAST_TRIALS}")
    runner = _SearchRunner(name, plan, workdir, book)
    wanted = max(trials or plan.trials, *map(runner.count, RECIPES[name].variants))
    most = max(wanted, 2 * trials or plan.most_trials)
    print(runner.estimate(rows, wanted, most), flush=True)
    while not is_estimate:
        for row in rows:
            while runner.count(row) < wanted:
                runner.train_next(row)
        edges = [row for row in rows if summarize_search(runner.find(row), (), plan.settings_of(row)).edges]
        if not edges or wanted >= most:
            return edges
        wanted += 1
        print(f"{name}: best at the edge: {', '.join(edges)}; {wanted} trials of every row", flush=True)
    return []


class _SearchRunner:
    """Trains the trials of one recipe.

    Attributes:
      name: Name of the recipe.
      plan: Search of the recipe.
      workdir: Folder of run directories.
      book: Ledger that is read and added to.
    """

    def __init__(self, name: str, plan: Search, workdir: Path, book: Book):
        self.name, self.plan, self.workdir, self.book = name, plan, workdir, book

    def find(self, row: str) -> list:
        """Returns settings, loss and run of each trial of a row in the ledger."""
        return find_trials(self.book.runs(), self.name, row)

    def count(self, row: str) -> int:
        """Returns the number of trials of a row in the ledger whose settings differ."""
        return count_distinct(settings for settings, *_ in self.find(row))

    def train_next(self, row: str) -> Run:
        """Trains and records the next trial of a row. One whose loss is not finite at its end is recorded too."""
        losses = [(settings, loss) for settings, loss, _ in self.find(row)]
        chosen = show_settings(propose_trial(losses, self.plan.settings_of(row)))
        further = f"{chosen} {self.plan.arguments}".strip()
        words = arguments(self.name, row, self.plan.seed, self.workdir, further, is_trial=True)
        variant = label(RECIPES[self.name].variants[row])
        directory = f"{self.name}-{SECTION}-{variant}-{join_words(chosen.strip('-'))}-seed{self.plan.seed}"
        command = ["memjax", "train", *words, "--name", directory, "--workdir", str(self.workdir)]
        run_directory, seed = self.workdir / directory, self.plan.seed
        try:
            train_command(self.name, row, self.workdir, command)
        except subprocess.CalledProcessError:
            if not ends_without_loss(run_directory):
                raise
        return record(self.name, f"{row}, {chosen}", seed, run_directory, self.book, command, is_trial=True)

    def estimate(self, rows: Sequence[str], wanted: int, most: int) -> str:
        """Returns a line with an estimate of the CPU hours that are left, from the mean time of the timed trials.

        Trains the first missing trial where no trial is timed.

        Args:
          rows: Names of the rows.
          wanted: Number of trials of every row.
          most: Number of trials of every row where grids are widened as far as they may be.
        """
        missing = [row for row in rows if self.count(row) < wanted]
        timed = [run.cpu_seconds for row in rows for *_, run in self.find(row) if run.cpu_seconds is not None]
        if not timed and missing:
            timed = [self.train_next(missing[0]).cpu_seconds or 0.0]
        done = [*map(self.count, rows)]
        left, widest = (sum(max(0, number - count) for count in done) for number in (wanted, most))
        if not timed:
            return f"{self.name}: {sum(done)} trials of {len(rows)} rows are in the ledger, none is left"
        seconds = sum(timed) / len(timed)
        return (
            f"{self.name}: {left} trials of {len(rows)} rows are left, {seconds:.1f} CPU seconds each: about "
            f"{left * seconds / 3600:.2f} CPU hours, at most {widest * seconds / 3600:.2f} where grids are widened"
        )
