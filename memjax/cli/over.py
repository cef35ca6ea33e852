"""Runs as one row for all that differ only in seeds or orders of tasks, as `compare --over` and `sweep` print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memjax.cli.console import align, show_value
from memjax.cli.parser import Parser, print_result
from memjax.report.comparison import RunRecord
from memjax.report.contenders import (
    DRAWN,
    MAX_TASKS,
    Contender,
    RunDifference,
    compare_contenders,
    group_runs,
    tabulate,
)
from memjax.report.verdicts import (
    Interval,
    describe_test,
    format_difference,
    format_interval,
    show_p,
)


def add_over(parser: Parser) -> None:
    """Adds the option `--over`, with the fields over which runs are averaged."""
    fields = (
        f"average over runs that differ only in these fields, with commas, such as {','.join((DRAWN[0], DRAWN[-1]))}: "
        "mean, 95 %% interval, number of runs"
    )
    parser.add_argument("--over", default="", metavar="FIELDS", help=fields)


def read_over(options: Any) -> tuple[str, ...]:
    """Returns the fields that `--over` names, with `_` between words."""
    return tuple(name.replace("-", "_") for part in options.over.split(",") if (name := part.strip()))


def print_contenders(records: Sequence[RunRecord], over: Sequence[str], options: Any) -> int:
    """Prints finished runs as one row for all that differ only in the fields `over`, with the differences between rows,
    and returns the exit code.
    """
    contenders, differences = group_runs(records, over), compare_contenders(records, over)
    facts = {
        "contenders": [contender_values(contender) for contender in contenders],
        "differences": [difference_values(difference) for difference in differences],
    }
    return print_result(facts, lambda facts: describe_contenders(contenders, differences), options)


def contender_values(contender: Contender) -> dict[str, Any]:
    """Converts a contender to a dictionary of JSON values: its label, its runs, and of each score mean, interval and
    number of units.
    """

    def values(interval: Interval) -> dict[str, Any]:
        known = {name: None if value != value else value for name, value in interval._asdict().items()}
        return {name: known[name] for name in ("mean", "half_width", "units", "unit")}

    scores = {
        name: values(contender.interval(lambda record, name=name: record.score(name))) for name in contender.scores
    }
    matrix = [[values(cell) for cell in row] for row in contender.matrix()]
    runs = [record.path for record in contender.runs.values()]
    return {"label": contender.label, "runs": runs, "scores": scores, **({"matrix": matrix} if matrix else {})}


def describe_contenders(contenders: Sequence[Contender], differences: Sequence[RunDifference] = ()) -> str:
    """Formats contenders as a table with a row for each, below it their matrices of scores, if they are runs over
    tasks, and a line for each difference.
    """
    heads, rows, about = tabulate(contenders)
    show = lambda value: "" if value is None else show_value(value)
    lines = [*align([heads, *([*map(show, row)] for row in rows)]), f"({about})"]
    for contender in contenders:
        lines += describe_matrix(contender)
    if differences:
        test = describe_test([difference.comparison for difference in differences])
        lines += ["", *(describe_run_difference(difference, labels=True) for difference in differences), f"({test})"]
    return "\n".join(lines)


def describe_matrix(contender: Contender) -> list[str]:
    """Returns lines with the mean matrix of scores of a contender that learns tasks one after the other, after an empty
    line. [] for others. Tasks have their names where all runs have one order, otherwise their places.
    """
    matrix, stream, tasks = contender.matrix(), contender.first.stream, contender.task_names
    if len(matrix) < 2 or len(matrix) > MAX_TASKS:
        return []
    rows = [[f"{contender.label}: {stream['measure'].replace('_', ' ')} after", *tasks]]
    for number, (task, row) in enumerate(zip(tasks, matrix, strict=False), start=1):
        rows.append([task, *map(format_interval, row[:number]), *[""] * (len(tasks) - number)])
    return ["", *align(rows)]


def difference_values(difference: RunDifference) -> dict[str, Any]:
    """Converts a difference of one measure between a run and its control to a dictionary of JSON values. A number that
    is NaN becomes None.
    """
    numbers = {name: None if value != value else value for name, value in difference.comparison._asdict().items()}
    return {"run": difference.name, "control": difference.control, "measure": difference.measure, **numbers}


def describe_run_difference(difference: RunDifference, *, labels: bool = False) -> str:
    """Describes a difference of one measure between a run and its control in one line of text, with its p-value and
    verdict. `labels` names the two by their settings instead of their first runs.
    """
    comparison = difference.comparison
    p = f", p {show_p(comparison.p)}" if show_p(comparison.p) else ""
    change = f"{difference.measure.replace('_', ' ')} {format_difference(comparison)}"
    names = (difference.label, difference.control_label) if labels else (difference.name, difference.control)
    return f"{names[0]} against {names[1]}: {change} ({comparison.counted}{p}): {comparison.verdict}"
