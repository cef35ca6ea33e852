"""`memjax compare`."""

from collections.abc import Mapping
from typing import Any

from memjax.cli.parser import Parser, tell
from memjax.console import align, show_value
from memjax.report.comparison import compare_runs


def run(arguments: list[str]) -> int:
    """Prints finished runs side by side: what tells their configurations apart, and what they have come to."""
    parser = Parser("compare", run.__doc__, json=": run -> its values")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory whose run is finished")
    options = parser.read(arguments)
    return tell(compare_runs(options.runs), describe_comparison, options)


def describe_comparison(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a value, a column a run.

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
    return "\n".join(align([["", *facts], *rows]))
