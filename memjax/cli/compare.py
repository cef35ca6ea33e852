"""The command `memjax compare`, which prints the results of finished runs side by side."""

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from memjax.cli.console import align, show_value
from memjax.cli.over import add_over, describe_run_difference, difference_values, print_contenders, read_over
from memjax.cli.parser import Parser, print_result
from memjax.report.comparison import RunRecord, compare_runs, split_finished
from memjax.report.contenders import RunDifference, compare_contenders
from memjax.report.verdicts import describe_test
from memjax.settings.overrides import UsageError


def run(arguments: list[str]) -> int:
    """Prints finished runs side by side: the settings in which they differ, and their results.

    Unfinished and damaged runs are left out, with a line for each. With several seeds or orders of tasks for each
    setting, the differences between settings are judged by a paired test. `--over` prints one row for all runs that
    differ only in the fields that it names.
    """
    json = ": run -> its settings and results, and the differences between settings with several runs"
    parser = Parser("compare", run.__doc__, reads="runs", json=json)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory whose run is finished")
    add_over(parser)
    options = parser.read(arguments)
    finished, left_out = split_finished(map(RunRecord, options.runs))
    if not finished:
        raise UsageError(next(iter(left_out.values())))
    for line in left_out.values():
        print(f"left out: {line}", file=sys.stderr)
    if over := read_over(options):
        return print_contenders([*finished.values()], over, options)
    differences = compare_contenders(finished.values())
    facts: dict[str, Any] = compare_runs(finished.values())
    if options.json and differences:
        facts |= {"differences": [difference_values(difference) for difference in differences]}
    return print_result(facts, functools.partial(describe_comparison, differences=differences), options)


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
