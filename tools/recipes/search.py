"""Searches of the settings of a recipe's rows, and the choice of the next trial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

RATE = "--training.schedule.learning-rate"
FINEST = 6
"""Number of times that the step of a search is refined before nothing is left to try"""

Settings = Mapping[str, float]
"""Option -> its value in a trial"""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting that is searched on a logarithmic grid.

    Attributes:
      option: Option of `memjax train`, such as `--training.schedule.learning-rate`.
      start: Value of the first trial, above 0.
      factor: Ratio of two neighbours of the grid, above 1.
      least: Smallest value that is allowed.
      most: Largest value that is allowed.
      is_whole: Whether values are whole numbers.
      also: Further options that take the same value.
    """

    option: str
    start: float
    factor: float = 2.0
    least: float = 0.0
    most: float = math.inf
    is_whole: bool = False
    also: tuple[str, ...] = ()

    def move(self, value: float, factor: float) -> float:
        """Returns a value times `factor`, rounded to three digits, within what is allowed."""
        moved = min(max(float(f"{value * factor:.3g}"), self.least), self.most)
        return float(round(moved)) if self.is_whole else moved


@dataclasses.dataclass(frozen=True)
class Search:
    """The search of a recipe: every row has the same number of trials, on a stream that no table reports.

    Attributes:
      settings: Row -> settings that are searched: the learning rate first, then the one or two that the paper names.
        The row '' stands for all other rows. () for a row that is not searched, whose variant has its settings.
      trials: Number of trials of every row. All rows get one more as long as a best value lies at an edge.
      arguments: Further arguments of all trials: another order of tasks, the validation split.
      steps: Updates of a trial. 0 for those of the configuration.
      seed: Seed of parameters and data of all trials, which no recorded run has.
    """

    settings: Mapping[str, tuple[Setting, ...]]
    trials: int
    arguments: str = ""
    steps: int = 0
    seed: int = 100

    def settings_of(self, row: str) -> tuple[Setting, ...]:
        """Returns the settings that are searched for a row."""
        return self.settings.get(row, self.settings.get("", ()))

    @property
    def most_trials(self) -> int:
        """The number of trials of a row at which its grid is widened no further."""
        return 2 * self.trials


def search_rates(start: float, trials: int, steps: int) -> Search:
    """Returns a search of the learning rate alone for all rows, from the rate `start`."""
    return Search({"": (Setting(RATE, start),)}, trials, steps=steps)


def find_edges(tried: Sequence[Settings], best: Settings, settings: Sequence[Setting] = ()) -> tuple[str, ...]:
    """Returns the options whose best value is the smallest or largest that was tried. A limit that `settings` name is
    no edge.
    """
    limits = {setting.option: (setting.least, setting.most) for setting in settings}
    edges = []
    for option, value in best.items():
        values = [trial[option] for trial in tried if option in trial]
        least, most = limits.get(option, (0.0, math.inf))
        if (value == min(values) and value > least) or (value == max(values) and value < most):
            edges.append(option)
    return tuple(edges)


def propose_trial(losses: Sequence[tuple[Settings, float]], settings: Sequence[Setting]) -> dict[str, float]:
    """Returns the settings of the next trial of a row.

    The first trial has the value at which each setting starts. From then on one setting of the best trial is moved:
    beyond the edge where its best value lies at one, else to an untried neighbour, first at the distance of the grid,
    then at the square root of that distance and so on. Where all its neighbours were tried, one of the next best trial
    is moved so.

    Args:
      losses: Settings and loss of each trial so far.
      settings: Settings that are searched.

    Raises:
      ValueError: All neighbours of all trials were tried at the finest distance.

    Example:
      >>> rate = (Setting("--rate", 0.1),)
      >>> propose_trial([], rate), propose_trial([({"--rate": 0.1}, 3.0), ({"--rate": 0.05}, 4.0)], rate)
      ({'--rate': 0.1}, {'--rate': 0.2})
    """
    if not losses:
        return _values({setting.option: setting.start for setting in settings}, settings)
    tried = [trial for trial, _ in losses]
    for start, _ in sorted(losses, key=lambda trial: trial[1]):
        edges = find_edges(tried, start, settings)
        order = sorted(settings, key=lambda setting: setting.option not in edges)
        for step in range(FINEST):
            for setting in order:
                factor = setting.factor ** (0.5**step)
                for ratio in (1 / factor, factor):
                    moved = {**start, setting.option: setting.move(start[setting.option], ratio)}
                    proposal = _values(moved, settings)
                    if count_distinct([*tried, proposal]) > count_distinct(tried):
                        return proposal
    raise ValueError(f"search: given {len(tried)} trials of {', '.join(tried[0])}, allowed: fewer, no value is left")


def _values(values: Settings, settings: Sequence[Setting]) -> dict[str, float]:
    """Returns the values of all options, those that follow another one included."""
    return {option: values[setting.option] for setting in settings for option in (setting.option, *setting.also)}


def count_distinct(trials: Iterable[Settings]) -> int:
    """Returns the number of trials of a row whose settings differ. Values that differ by a hundredth are the same.

    Example:
      >>> count_distinct([{"--rate": 0.1}, {"--rate": 0.0997}, {"--rate": 0.2}])
      2
    """
    distinct: list[Settings] = []
    for trial in trials:
        if not any(_is_same(trial, other) for other in distinct):
            distinct.append(trial)
    return len(distinct)


def _is_same(first: Settings, second: Settings) -> bool:
    # Values are rounded: a way there and back may end at 0.0353 or 0.0354.
    return first.keys() == second.keys() and all(
        math.isclose(first[name], second[name], rel_tol=0.01) for name in first
    )
