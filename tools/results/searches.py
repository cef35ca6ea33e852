"""How the settings of every row of a table were searched, by the trials in the ledger, and what may be said then.

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
from tools.recipes.search import RATE, Setting, Settings, find_edges
from tools.results.ledger import Run, command_of_today
from tools.results.speed_tables import grid

ALONE = "single task"
"""Row of tasks that are learned apart"""
SECTION = "search"
"""What a search is called in the ledger, after the name of its recipe"""
SECTIONS = (SECTION, "learning-rate search")
"""Names of searches in the ledger. Trials of the second one are named by the learning rate alone."""
SEARCHED = "nats_per_token"
"""Score that a search makes least. Of a stream it makes the average accuracy most."""
LEAST_TRIALS = 2
UNSEARCHED = (
    "Not searched: no two rows were searched alike, so that what follows describes these runs at these settings, and "
    "says of no method that it is better than, worse than or level with another."
)
"""First sentence of the findings of a recipe whose rows have no verdict"""


class RowSearch(NamedTuple):
    """How the settings of a row were searched.

    Attributes:
      trials: Number of trials.
      tried: Option -> all values that were tried, ascending.
      best: Settings of the best trial.
      edges: Options whose best value is the smallest or largest that was tried.
      is_used: Whether all recorded runs of the row have the settings of the best trial.
      cpu_seconds: CPU seconds of the trials that say them.
    """

    trials: int
    tried: Mapping[str, tuple[float, ...]]
    best: Settings
    edges: tuple[str, ...]
    is_used: bool
    cpu_seconds: float

    @property
    def problem(self) -> str:
        """Why the row can be in no verdict, in words. '' for a row that can."""
        if self.trials < LEAST_TRIALS:
            return "not searched"
        if self.edges:
            return f"best at the edge of {', '.join(map(_short, self.edges))}"
        return "" if self.is_used else "its runs have other settings than the best trial"


NO_SEARCH = RowSearch(0, {}, {}, (), False, 0.0)


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
    found = {row: find_trials(runs, name, row) for row in recipe.variants}
    settings = recipe.search.settings_of if recipe.search else lambda row: ()
    return {
        row: summarize_search(trials, recorded.get(row, ()), settings(row)) for row, trials in found.items() if trials
    }


def describe_earlier_search(runs: Sequence[Run], name: str) -> str:
    """Returns a sentence about an earlier search of a recipe, where recorded runs have its best settings. '' where none
    have: today's search has taken its place.
    """
    recipe = RECIPES[name]
    if recipe.search is None:
        return ""
    rows = {contender: row for contender, (row, _) in recipe.contenders().items()}
    used = []
    for row in recipe.variants:
        recorded = [run for run in runs if run.recipe == name and rows.get(run.row) == row]
        trials = find_trials(runs, name, row, is_earlier=True)
        if trials and recorded:
            search = summarize_search(trials, recorded, recipe.search.settings_of(row))
            used += [search] if search.is_used else []
    if not used:
        return ""
    numbers = " or ".join(map(str, sorted({search.trials for search in used})))
    edges = sum(bool(search.edges) for search in used)
    return (
        f"The runs of {len(used)} rows have the best settings of an earlier search on {recipe.search.earlier}, of "
        f"{numbers} trials a row: in {edges} of them a best value lies at the edge of what was tried."
    )


def find_trials(
    runs: Iterable[Run], name: str, row: str, *, is_earlier: bool = False
) -> list[tuple[Settings, float, Run]]:
    """Returns settings, loss and run of each trial of a row of a recipe, of the seed of its search, or of other seeds
    for an earlier search.
    """
    search, sections = RECIPES[name].search, [f"{name}: {section}" for section in SECTIONS]
    if search is None:
        return []
    # A row may begin with the name of another one, as "10 memory tokens, bottleneck".
    longer = tuple(f"{other}, " for other in RECIPES[name].variants if other.startswith(f"{row}, "))
    is_own = lambda run: run.row.startswith(f"{row}, ") and not run.row.startswith(longer)
    trials = [run for run in runs if run.recipe in sections and (run.seed != search.seed) == is_earlier and is_own(run)]
    labels = [run.key_of_today[1].removeprefix(f"{row}, ") for run in trials]
    return [(read_settings(label), trial_loss(run, row), run) for label, run in zip(labels, trials, strict=True)]


def summarize_search(
    trials: Sequence[tuple[Settings, float, Run]], recorded: Sequence[Run] = (), settings: Sequence[Setting] = ()
) -> RowSearch:
    """Returns the search of a row.

    Args:
      trials: Settings, loss and run of each trial.
      recorded: Recorded runs of the row.
      settings: What is searched, whose limits are no edges.
    """
    best = min(trials, key=lambda trial: trial[1])[0]
    tried = {option: tuple(sorted({values[option] for values, *_ in trials})) for option in best}
    edges = find_edges([values for values, *_ in trials], best, settings)
    is_used = all(has_settings(run, best) for run in recorded)
    seconds = sum(run.cpu_seconds or 0.0 for *_, run in trials)
    return RowSearch(len(trials), tried, best, edges, is_used, seconds)


def trial_loss(run: Run, row: str) -> float:
    """Returns what a search makes least: nats, or the negative accuracy of a stream. Infinite for a run that diverged.

    Of tasks that are learned apart it is the accuracy of each after itself.
    """
    stream = run.evaluations.get("stream")
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
      >>> read_settings("0.003"), read_settings("--a 1 --b 0.5")
      ({'--training.schedule.learning-rate': 0.003}, {'--a': 1.0, '--b': 0.5})
    """
    words = label.split() if " " in label else [RATE, label]
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
    given: dict[str, str] = dict(zip(words, words[1:], strict=False))
    return all(option in given and math.isclose(float(given[option]), value) for option, value in settings.items())


def explain_difference(first: RowSearch, second: RowSearch) -> str:
    """Returns why two rows were not searched alike. '' for rows that were."""
    if first.problem or second.problem:
        return first.problem or second.problem
    return "" if first.trials == second.trials else f"{first.trials} and {second.trials} trials"


def settle_verdicts(
    compared: Mapping[tuple[str, ...], Comparison], searches: Mapping[str, RowSearch]
) -> dict[tuple[str, ...], Comparison]:
    """Returns the comparisons of a table as they may be read: "not searched" where the two rows were not searched
    alike, the others after the correction for many.

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
    """Returns a table of how each row of some comparisons was searched, or a sentence where none was.

    Args:
      claims: Row, control and further names of each comparison.
      searches: Row -> its search.
    """
    rows = dict.fromkeys(row for claim in claims for row in claim[:2])
    if not any(row in searches for row in rows):
        return "No row has trials of a search of its settings, so that no two rows have a verdict."
    cells = []
    for row in rows:
        search = searches.get(row, NO_SEARCH)
        tried = [
            f"{_short(option)} {min(v):g} to {max(v):g}, best {search.best[option]:g}"
            for option, v in search.tried.items()
        ]
        cells.append([row, search.trials, "; ".join(tried), search.problem])
    about = (
        "How the settings of each row were searched. Two rows have a verdict where both had the same number of trials, "
        "no best value is the smallest or largest that was tried, and the runs have the best settings:"
    )
    return f"{about}\n\n{grid(['row', 'trials', 'settings', 'no verdict, since'], cells)}"


def qualify_findings(recipe: Recipe, searches: Mapping[str, RowSearch]) -> str:
    """Returns the findings of a recipe after a sentence that says where none of them is a verdict on methods: a recipe
    no two compared rows of which were searched alike. '' without findings.
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
