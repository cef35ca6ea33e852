"""Compares contenders with their controls: differences with their errors, and verdicts such as gain, level or loss.

Runs of one seed have the same batches, so that differences are taken seed by seed. The verdicts of a table are those of
`memjax.report.verdicts`, corrected for the number of comparisons in the table. A text elsewhere quotes the verdict of
the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memjax.report.verdicts import (
    LEAST_UNITS,
    NOT_SEARCHED,
    TOO_FEW,
    Comparison,
    compare_pairs,
    correct_for_many,
    describe_test,
    format_difference,
    show_least,
    show_p,
    show_verdict,
)
from tools.recipes import Recipe
from tools.results.ledger import Measurement, Run
from tools.results.searches import RowSearch, describe_searches, settle_verdicts
from tools.results.speed_tables import grid
from tools.results.tables import numbers, spread

MORE_IS_BETTER = ("accuracy", "BLEU", "F1", "ROUGE", "METEOR", "exact match")
"""Words in the names of numbers of which a larger one is a gain"""
NOT_COMPARED = ("parameters", "memory bytes per row", "targets", "pairs", "pairs too long")
"""Ends of the names of numbers that are not compared"""
CONTROLS = ("not_compressed", "off", "cleared")
"""Controls of a model that was trained for its memory, the preferred one first. The model is compared with the first
one that was measured. A control has the same parameters, so that no search of settings stands between the two, as it
does for `parent`, the same model trained without the memory."""
LEAST = "beside level the smallest difference that would have been a gain or a loss"

Claim = tuple[str, ...]
"""Row, control and, where a table compares several numbers, the name of the number"""


def compare_rows(runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch]) -> dict[Claim, Comparison]:
    """Compares every row with its controls, number by number, as the table of the recipe has them.

    Args:
      runs: Runs of the recipe.
      recipe: The recipe.
      searches: Row -> its search. Rows that were not searched alike have no verdict.

    Returns:
      Row, control and number (`tools.results.tables.numbers`) -> the comparison. Empty where there are no controls.
    """
    by_row: dict[str, dict[int, dict[str, float]]] = {}
    for run in runs:
        by_row.setdefault(run.row, {})[run.seed] = numbers(run, recipe)
    compared: dict[Claim, Comparison] = {}
    for row, control in ((row, control) for row, controls in recipe.controls.items() for control in controls):
        if row not in by_row or control not in by_row:
            continue
        first, second = (next(reversed(by_row[name].values())) for name in (row, control))
        for name in (name for name in first if name in second):
            if not name.endswith(NOT_COMPARED) and not name.startswith("slots: "):
                better = any(word in name for word in MORE_IS_BETTER)
                scores = [{seed: values[name] for seed, values in by_row[label].items()} for label in (row, control)]
                compared[row, control, name] = compare_seeds(*scores, more_is_better=better)
    return settle_verdicts(compared, searches)


def compare_seeds(scores: Mapping[int, float], control: Mapping[int, float], *, more_is_better: bool) -> Comparison:
    """Compares a contender with its control, seed by seed.

    Args:
      scores: Seed -> score.
      control: Seed -> score of the control.
      more_is_better: Whether a larger score is a gain.

    Raises:
      ValueError: The two have no seed in common.

    Example:
      >>> compare_seeds({0: 1.5, 1: 1.61, 9: 1.69}, {0: 2.0, 1: 2.1, 2: 2.2}, more_is_better=False).verdict
      'too few'
    """
    seeds = [seed for seed in scores if seed in control]
    if not seeds:
        raise ValueError(f"seeds: given {sorted(scores)} and {sorted(control)}, allowed: at least one in common")
    pair = [[contender[seed] for seed in seeds] for contender in (scores, control)]
    return compare_pairs(*pair, more_is_better=more_is_better)


def compare_learned(measurements: Sequence[Measurement]) -> dict[Claim, Comparison]:
    """Compares every model that was trained for its memory with the control that was measured beside it.

    Returns:
      Memory and control -> the comparison, seed by seed.
    """
    compared: dict[Claim, Comparison] = {}
    for measurement in measurements:
        records = [record["found"] for record in measurement.facts["records"]]
        saves = measurement.facts["unit"].startswith("nats")  # `kept` is then what is saved over the model alone
        control = "alone" if saves else next(name for name in CONTROLS if name in records[0])
        pair = [[record["kept"] for record in records], [0.0 if saves else record[control] for record in records]]
        compared[measurement.name, control] = compare_pairs(*pair)
    return dict(zip(compared, correct_for_many([*compared.values()]), strict=True))


def grid_of_comparisons(compared: Mapping[Claim, Comparison], heads: Sequence[str], unit: str, digits: int) -> str:
    """Returns a table of comparisons.

    Args:
      compared: Names in the first columns of a line -> its comparison.
      heads: Heads of the first columns.
      unit: Unit of the differences. '' where lines have different units.
      digits: Decimals of the differences.
    """
    figures = lambda comparison: [format_difference(comparison, digits), comparison.counted, show_p(comparison.p)]
    cells = [[*claim, *figures(comparison), show_verdict(comparison, digits)] for claim, comparison in compared.items()]
    difference = f"difference ± standard error{', ' if unit else ''}{unit}"
    return grid([*heads, difference, "units", "p", "verdict"], cells)


def differences(runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch]) -> str:
    """Returns a table of every row against its controls, and how each row was searched.

    Every number has its difference with the standard error. '' where there is no comparison.
    """
    compared = compare_rows(runs, recipe, searches)
    if not compared:
        return ""
    about = f"Against the controls, seed by seed ({describe_test([*compared.values()])}; {LEAST}):"
    table = grid_of_comparisons(compared, ("row", "control", "number"), "", 4)
    return f"{about}\n\n{table}\n\n{describe_searches(compared, searches)}"


def state_comparison(comparison: Comparison, digits: int | None = None, least_units: int = LEAST_UNITS) -> str:
    """Formats a comparison for a sentence: difference ± standard error, units and verdict.

    Args:
      comparison: The comparison.
      digits: Decimals of the difference. None for four significant digits.
      least_units: Smallest number of units with a verdict. Fewer units are "too few", whatever the table says. See
        `judge`.

    Example:
      >>> gain = compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5])
      >>> state_comparison(gain, 2), state_comparison(gain, 2, least_units=6)
      ('+0.26 ± 0.03 (3 seeds, gain)', '+0.26 ± 0.03 (3 seeds, too few)')
    """
    return f"{format_difference(comparison, digits)} ({state_verdict(comparison, digits, least_units)})"


def state_verdict(comparison: Comparison, digits: int | None = None, least_units: int = LEAST_UNITS) -> str:
    """Formats the units and the verdict of a comparison for a sentence. See `state_comparison` for the arguments.

    Example:
      >>> state_verdict(compare_pairs([0.75, 0.4, 0.82], [0.5, 0.6, 0.5]), 2)
      '3 seeds, level: 0.70 would show'
    """
    verdict = judge(comparison, least_units)
    least = show_least(comparison, digits).strip("()") if verdict == comparison.verdict else ""
    return f"{comparison.counted}, {': '.join(filter(None, (verdict, least)))}"


def judge(comparison: Comparison, least_units: int = LEAST_UNITS) -> str:
    """Returns the verdict of a comparison, or "too few" where it has fewer units than `least_units`.

    The verdict "not searched" is returned for any number of units.

    Example:
      >>> gain = compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5])
      >>> judge(gain), judge(gain, least_units=6)
      ('gain', 'too few')
    """
    is_few = comparison.units < least_units and comparison.verdict != NOT_SEARCHED
    return TOO_FEW if is_few else comparison.verdict


def differences_of_learned(measurements: Sequence[Measurement]) -> str:
    """Returns a table of every model that was trained for its memory against its control."""
    compared = compare_learned(measurements)
    table = grid_of_comparisons(compared, ("memory", "control"), "", 2)
    about = "With the memory against a control of the same parameters, seed by seed"
    return f"{about} ({describe_test([*compared.values()])}; {LEAST}):\n\n{table}"


def memory_figures(runs: Sequence[Run]) -> str:
    """Returns a table of the metrics that the memories of trained models report, mean and range over seeds.

    '' where no memory reports any.
    """
    from memjax.inspection.figures import FIGURES, find_figures

    values_by_row: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for name, figure in find_figures(run.results["evaluation"].get("metrics", {})).items():
            values_by_row.setdefault(run.row, {}).setdefault(name, []).append(figure.mean)
    names = [name for name in FIGURES if any(name in values for values in values_by_row.values())]
    if not names:
        return ""
    cells = [[row, *(spread(values.get(name, [])) for name in names)] for row, values in values_by_row.items()]
    meanings = "; ".join(f"`{name}`: {FIGURES[name].meaning}" for name in names)
    return f"What the memories say of themselves at the end ({meanings}):\n\n{grid(['row', *names], cells)}"


def learned(measurements: Sequence[Measurement]) -> str:
    """Returns a table of models that were trained for their memory, with one row for each memory and condition.

    A condition is the memory `kept`, a control such as the memory `cleared`, or the `parent`, which is the same model
    trained without it. Scores are means and ranges over seeds.
    """
    cells = []
    for measurement in measurements:
        facts = measurement.facts
        records = [record["found"] for record in facts["records"]]
        for what in records[0]:
            about = (
                [measurement.name, facts["about"], facts["unit"], f"{facts['chance']:g}"]
                if what == "kept"
                else [""] * 4
            )
            # Beside the nats that a memory saves, those of the model alone are all of its nats.
            label = "none: nats a token" if what == "alone" else what.replace("_", " ")
            cells.append([*about, label, spread([values[what] for values in records])])
        cells[-1].append(f"{facts['cpu_seconds']:,}")
        cells[-1].append(measurement.commit)
    heads = [
        "memory",
        "what has to be remembered",
        "unit",
        "chance",
        "memory is",
        "mean (range), six seeds",
        "CPU s",
        "commit",
    ]
    return grid(heads, [[*cell, *[""] * (len(heads) - len(cell))] for cell in cells])
