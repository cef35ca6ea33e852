"""The command `memjax compare`, which prints the results of finished runs side by side."""

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from memjax.cli.console import align, show_value
from memjax.cli.parser import Parser, print_result
from memjax.report.comparison import RunDifference, compare_contenders, compare_runs, split_finished
from memjax.report.verdicts import describe_test, format_difference, show_p
from memjax.settings.overrides import UsageError


def run(arguments: list[str]) -> int:
    """Prints finished runs side by side: the settings in which they differ, and their results.

    Unfinished and damaged runs are left out, with a line for each. With several seeds or orders of tasks for each
    setting, the differences between settings are judged by a paired test.
    """
    json = ": run -> its settings and results, and the differences between settings with several runs"
    parser = Parser("compare", run.__doc__, reads="runs", json=json)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory whose run is finished")
    options = parser.read(arguments)
    finished, left_out = split_finished(options.runs)
    if not finished:
        raise UsageError(next(iter(left_out.values())))
    for line in left_out.values():
        print(f"left out: {line}", file=sys.stderr)
    differences = compare_contenders(finished.values())
    facts: dict[str, Any] = compare_runs(finished.values())
    if options.json and differences:
        facts |= {"differences": [difference_values(difference) for difference in differences]}
    return print_result(facts, functools.partial(describe_comparison, differences=differences), options)


def difference_values(difference: RunDifference) -> dict[str, Any]:
    """Converts a difference of one measure between a run and its control to a dictionary of JSON values. A number that
    is NaN becomes None.
    """
    numbers = {name: None if value != value else value for name, value in difference.comparison._asdict().items()}
    return {"run": difference.name, "control": difference.control, "measure": difference.measure, **numbers}


def describe_comparison(facts: Mapping[str, Mapping[str, Any]], differences: Sequence[RunDifference] = ()) -> str:
    """Formats the facts of runs (run -> name -> value) as a table with a row for each value and a column for each run,
    and below it a line for each difference.

    Example:
      >>> print(describe_comparison({"a": {"steps": 10, "loss": 0.5}, "b": {"steps": 2000, "loss": 0.25}}))
             a    b
      steps  10   2,000
      loss   0.5  0.25
    """
    cell = lambda value: f"{value:.5g}" if isinstance(value, float) else show_value(value)
    show = lambda value: "" if value is None else cell(value)
    names = {name: None for values in facts.values() for name in values}
    rows = [[name, *(show(values.get(name)) for values in facts.values())] for name in names]
    table = "\n".join(align([["", *facts], *rows]))
    if not differences:
        return table
    test = describe_test([difference.comparison for difference in differences])
    return "\n".join([table, "", *map(describe_run_difference, differences), f"({test})"])


def describe_run_difference(difference: RunDifference) -> str:
    """Describes a difference of one measure between a run and its control in one line of text, with its p-value and
    verdict.
    """
    comparison = difference.comparison
    p = f", p {show_p(comparison.p)}" if show_p(comparison.p) else ""
    change = f"{difference.measure.replace('_', ' ')} {format_difference(comparison)}"
    return f"{difference.name} against {difference.control}: {change} ({comparison.counted}{p}): {comparison.verdict}"
