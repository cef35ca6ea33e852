"""Reads off the ledger how the settings of the rows of a table were searched, and settles which rows have a verdict.

A trial is a run of the ledger whose recipe is `RECIPE: search` and whose row is `ROW, SETTINGS`. Two rows are compared
where both had the same number of trials, neither best trial lies at the edge of what was tried, and the runs of both
have the settings of their best trials.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from memjax.report.verdicts import Comparison, correct_for_many, withhold_verdict
from tools.recipes import RECIPES, Recipe
from tools.recipes.search import RATE, Setting, Settings, count_distinct, find_edges
from tools.results.ledger import Run, command_of_today
from tools.results.speed_tables import grid

ALONE = "single task"
"""Row of a stream in which every task is learned alone"""
SECTION = "search"
"""Name of searches in the ledger, where it follows the name of the recipe"""
SECTIONS = (SECTION, "learning-rate search")
"""Names of searches in the ledger. Trials of the second one are named by the learning rate alone."""
SEARCHED = "nats_per_token"
"""Score that a search minimizes. For a stream that reports accuracy, a search maximizes the average accuracy."""
LEAST_TRIALS = 2
"""Smallest number of trials of a row that is searched"""
UNSEARCHED = (
    "Not searched: no two rows have trials of their own, and as many, so that what follows describes these runs at "
    "these settings, and says of no method that it is better than, worse than or level with another."
)
"""First sentence of the findings of a recipe whose rows have no verdict"""


class RowSearch(NamedTuple):
    """The search of the settings of one row: its trials and the best settings.

    Attributes:
      trials: Number of trials whose settings differ.
      tried: Option -> all values that were tried, ascending.
      best: Settings of the best trial.
      edges: Options whose best value is the smallest or largest that was tried.
      is_used: Whether all recorded runs of the row have the settings of the best trial.
      loss: Loss of the best trial. It is infinite where all trials diverged.
    """

    trials: int
    tried: Mapping[str, tuple[float, ...]]
    best: Settings
    edges: tuple[str, ...]
    is_used: bool
    loss: float = 0.0

    @property
    def problem(self) -> str:
        """Why the row can be in no verdict, in words. '' for a row that can."""
        if self.trials < LEAST_TRIALS:
            return "not searched"
        if not math.isfinite(self.loss):
            return "all trials diverged"
        if self.edges:
            return f"best at the edge of {', '.join(map(_short, self.edges))}"
        return "" if self.is_used else "its runs have other settings than the best trial"


NO_SEARCH = RowSearch(0, {}, {}, (), False)
"""Search of a row that has no trials"""


def find_searches(runs: Iterable[Run], name: str) -> dict[str, RowSearch]:
    """Returns how each row of a recipe was searched, read off the ledger.

    Args:
      runs: All runs of the ledger.
      name: Name of the recipe.

    Returns:
      Row -> its search, for rows that have trials.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        return {}
    runs = [run for run in runs if run.recipe.partition(":")[0] == name]
    rows = {contender: row for contender, (row, _) in recipe.contenders().items()}
    recorded: dict[str, list[Run]] = {}
    for run in runs:
        if run.recipe == name and run.row in rows:
            recorded.setdefault(rows[run.row], []).append(run)
    trials_by_row = {row: find_trials(runs, name, row) for row in recipe.variants}
    settings = recipe.search.settings_of if recipe.search else lambda row: ()
    return {
        row: summarize_search(trials, recorded.get(row, ()), settings(row))
        for row, trials in trials_by_row.items()
        if trials
    }


def find_trials(runs: Iterable[Run], name: str, row: str) -> list[tuple[Settings, float, Run]]:
    """Returns settings, loss and run of each trial of a row of a recipe.

    Args:
      runs: Runs of the ledger.
      name: Name of the recipe.
      row: Row of the recipe.
    """
    search, sections = RECIPES[name].search, [f"{name}: {section}" for section in SECTIONS]
    if search is None:
        return []
    # A row may begin with the name of another one, as "10 memory tokens, bottleneck".
    longer = tuple(f"{other}, " for other in RECIPES[name].variants if other.startswith(f"{row}, "))
    is_own = lambda run: run.row.startswith(f"{row}, ") and not run.row.startswith(longer)
    trials = [run for run in runs if run.recipe in sections and run.seed == search.seed and is_own(run)]
    labels = [run.key_of_today[1].removeprefix(f"{row}, ") for run in trials]
    return [(read_settings(label), trial_loss(run, row), run) for label, run in zip(labels, trials, strict=True)]


def describe_hours(runs: Sequence[Run], name: str) -> str:
    """Returns a sentence with the CPU hours of a recipe. '' where a trial has not recorded its CPU seconds, and without
    a search where no run has.

    It says the hours that the search of all rows with trials was expected to take by its first trial, and the hours
    that trials and runs have recorded.
    """
    recipe = RECIPES[name]
    recorded = [run.cpu_seconds / 3600 for run in runs if run.recipe == name and run.cpu_seconds is not None]
    spent_on_runs = f"{sum(recorded):.2f} on {len(recorded)} runs" if recorded else ""
    if recipe.search is None:
        return f"CPU hours spent: {spent_on_runs}." if recorded else ""
    trials = {row: [run for *_, run in found] for row in recipe.variants if (found := find_trials(runs, name, row))}
    identities = {id(run) for of_row in trials.values() for run in of_row}
    in_order = [run for run in runs if id(run) in identities]
    hours = [run.cpu_seconds / 3600 for run in in_order if run.cpu_seconds is not None]
    if not hours or len(hours) < len(in_order):
        return ""
    planned = hours[0] * recipe.search.trials * len(trials)
    spent = " and ".join(filter(None, (f"{sum(hours):.2f} on {len(hours)} trials", spent_on_runs)))
    return f"CPU hours of the search as planned by its first trial: {planned:.2f}. Spent: {spent}."


def describe_lengths(recipe: Recipe) -> str:
    """Returns a sentence with the numbers of updates of trials and runs of a recipe where they differ, else ''."""
    trial = recipe.search.steps if recipe.search else 0
    if not trial or trial == recipe.steps:
        return ""
    return f"A trial of the search has {trial:,} updates, a run {recipe.steps:,}."


def summarize_search(
    trials: Sequence[tuple[Settings, float, Run]], recorded: Sequence[Run] = (), settings: Sequence[Setting] = ()
) -> RowSearch:
    """Returns the search of a row.

    Args:
      trials: Settings, loss and run of each trial.
      recorded: Recorded runs of the row.
      settings: Settings that are searched. A best value at a limit that they name is not at an edge.
    """
    best, loss, _ = min(trials, key=lambda trial: trial[1])
    tried = {option: tuple(sorted({values[option] for values, *_ in trials})) for option in best}
    edges = find_edges([values for values, *_ in trials], best, settings)
    is_used = all(has_settings(run, best) for run in recorded)
    return RowSearch(count_distinct(settings for settings, *_ in trials), tried, best, edges, is_used, loss)


def has_diverged(run: Run) -> bool:
    """Returns whether updates of a run were skipped to its end since they were not finite, or its last loss is above
    the limit beyond which a model counts as diverged.
    """
    return any(run.results.get(name) for name in ("skipped_at_end", "diverged"))


def trial_loss(run: Run, row: str) -> float:
    """Returns the loss of a trial, which a search minimizes. It is infinite for a run that diverged.

    The loss is in nats per token, for a stream the mean over tasks after the last one. For a stream that reports
    accuracy it is the negative average accuracy. For the row `ALONE` it is the negative accuracy of each task when it
    has just been learned, averaged over tasks.
    """
    stream = run.evaluations.get("stream")
    if has_diverged(run):
        return math.inf
    if stream is None:
        loss = run.results["evaluation"][SEARCHED]
    elif stream.get("measure") == SEARCHED:
        loss = statistics.fmean(stream["scores"][-1])
    else:
        loss = -stream["learning_accuracy" if row == ALONE else "average"]
    return loss if loss is not None and math.isfinite(loss) else math.inf


def read_settings(label: str) -> dict[str, float]:
    """Returns the settings that the label of a trial names.

    Example:
      >>> read_settings("0.003"), read_settings("--a 1 --b 0.5"), read_settings("")
      ({'--training.schedule.learning-rate': 0.003}, {'--a': 1.0, '--b': 0.5}, {})
    """
    words = [RATE, label] if label and " " not in label else label.split()
    return {option: float(value) for option, value in zip(words[::2], words[1::2], strict=True)}


def show_settings(settings: Settings) -> str:
    """Returns settings as arguments of a command.

    Example:
      >>> show_settings({"--a": 1.0, "--b": 0.00025})
      '--a 1 --b 0.00025'
    """
    return " ".join(f"{option} {value:g}" for option, value in settings.items())


def has_settings(run: Run, settings: Settings) -> bool:
    """Returns whether the command of a run gives these settings."""
    words = command_of_today(run.command, run.config, run.variant).split()
    values: dict[str, str] = dict(zip(words, words[1:], strict=False))
    return all(option in values and math.isclose(float(values[option]), value) for option, value in settings.items())


def explain_difference(first: RowSearch, second: RowSearch) -> str:
    """Returns why two rows were not searched alike. '' for rows that were."""
    if first.problem or second.problem:
        return first.problem or second.problem
    return "" if first.trials == second.trials else f"{first.trials} and {second.trials} trials"


def settle_verdicts(
    compared: Mapping[tuple[str, ...], Comparison], searches: Mapping[str, RowSearch]
) -> dict[tuple[str, ...], Comparison]:
    """Returns the comparisons of a table with the verdicts that they may have.

    The verdict is "not searched" where the two rows were not searched alike. The other comparisons are corrected
    for the number of comparisons, see `correct_for_many`.

    Args:
      compared: Row, control and further names -> their comparison.
      searches: Row -> its search.
    """
    search = lambda row: searches.get(row, NO_SEARCH)
    settled = [
        withhold_verdict(comparison) if explain_difference(search(row), search(control)) else comparison
        for (row, control, *_), comparison in compared.items()
    ]
    return dict(zip(compared, correct_for_many(settled), strict=True))


def describe_searches(claims: Iterable[tuple[str, ...]], searches: Mapping[str, RowSearch]) -> str:
    """Returns a table of the search of each row of some comparisons, or a sentence where no row was searched.

    Args:
      claims: Row, control and further names of each comparison.
      searches: Row -> its search.
    """
    rows = dict.fromkeys(row for claim in claims for row in claim[:2])
    if not any(row in searches for row in rows):
        return "No row has trials of its own, so that no two rows have a verdict."
    cells = []
    for row in rows:
        search = searches.get(row, NO_SEARCH)
        tried = (_describe_tried(option, values, search) for option, values in search.tried.items())
        cells.append([row, search.trials, "; ".join(tried), search.problem])
    about = (
        "How the settings of each row were searched. Two rows have a verdict where both had the same number of trials, "
        "no best value is the smallest or largest that was tried or else the last that the search allows, and the runs "
        "have the best settings:"
    )
    return f"{about}\n\n{grid(['row', 'trials', 'settings', 'no verdict, since'], cells)}"


def _describe_tried(option: str, values: Sequence[float], search: RowSearch) -> str:
    """Describes the values of a setting that were tried, and the best one. It says so where no further one is allowed.

    Args:
      option: Option of the setting.
      values: The values, ascending.
      search: Search of the row.
    """
    best, end = search.best[option], ""
    if option not in search.edges and best in (values[0], values[-1]):
        end = f", the {'smallest' if best == values[0] else 'largest'} allowed"
    return f"{_short(option)} {values[0]:g} to {values[-1]:g}, best {best:g}{end}"


def qualify_findings(recipe: Recipe, searches: Mapping[str, RowSearch]) -> str:
    """Returns the findings of a recipe. '' for a recipe without findings.

    Where no two compared rows were searched alike, `UNSEARCHED` comes first: none of the findings is a verdict on
    methods.
    """
    pairs = [(row, control) for row, controls in recipe.controls.items() for control in controls]
    search = lambda row: searches.get(row, NO_SEARCH)
    if recipe.findings and all(explain_difference(search(row), search(control)) for row, control in pairs):
        return f"{UNSEARCHED} {recipe.findings}"
    return recipe.findings


def _short(option: str) -> str:
    """Returns an option as its last word.

    Example:
      >>> _short("--lifelong.method.inner-learning-rate")
      'inner learning rate'
    """
    return option.rpartition(".")[2].lstrip("-").replace("-", " ")
