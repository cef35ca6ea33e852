"""Paired comparisons of scores, and what may be claimed of them: gain, level or loss.

A verdict rests on independent units. Runs of one order of tasks share that order, so that seeds within an order are
averaged and each order is one unit. Where there is one order, and where there are no tasks, each seed is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LEVEL_OF_SIGNIFICANCE = 0.05
LEAST_UNITS = 3
TOO_FEW = "too few"
NOT_SEARCHED = "not searched"
DIVERGED = "diverged"
_ROUNDING = 1e-12  # Relative to the scores. Equal runs may differ by as much, and their mean would look certain.


class Comparison(NamedTuple):
    """The tested difference in score between a contender and its control: mean over paired units such as seeds,
    standard error, p-value and verdict.

    Attributes:
      difference: Mean of the differences over the units. NaN of no unit.
      error: Standard error of that mean. NaN of fewer than two units.
      units: Number of units.
      unit: Kind of the units, in the singular, such as "order", "seed" or "document".
      p: Two-sided p-value of Student's t, corrected where `correct_for_many` was applied. NaN of too few units, and
        where a difference is not finite.
      verdict: "gain" or "loss" where p is below 0.05, else "level". "too few" of fewer than three units. "diverged"
        where a difference is not finite. "not searched" after `withhold_verdict`.
      least: Smallest difference that would have been a gain or a loss with this error: half of the 95 % interval by
        Student's t, wider where `correct_for_many` was applied. NaN of too few units.
    """

    difference: float
    error: float
    units: int
    unit: str
    p: float
    verdict: str
    least: float = math.nan

    @property
    def counted(self) -> str:
        """Number and kind of the units as a text, such as "3 seeds"."""
        return f"{self.units:,} {self.unit}{'' if self.units == 1 else 's'}"


class Interval(NamedTuple):
    """The mean of a score over independent units such as seeds, and half the width of its confidence interval.

    Attributes:
      mean: Mean over the units. NaN of no unit.
      half_width: Distance from the mean to either end of its interval of 95 %, by Student's t. NaN of fewer than two
        units.
      units: Number of units.
      unit: Kind of the units, in the singular, such as "order" or "seed".
    """

    mean: float
    half_width: float
    units: int
    unit: str


def compute_interval(scores: npt.ArrayLike, *, unit: str = "seed") -> Interval:
    """Computes the mean of scores `[units]` or `[orders, seeds]` and its confidence interval of 95 %, by Student's t.
    With two axes the units are orders, and seeds within an order are averaged.

    Args:
      scores: Scores of runs. NaN for runs that are missing.
      unit: Kind of the units of one axis. With two axes the units are orders, or seeds if one order has runs.

    Raises:
      ValueError: The array has more than two axes.

    Example:
      >>> interval = compute_interval([0.75, 0.8, 0.82])
      >>> print(f"{interval.mean:.3f} ± {interval.half_width:.3f}, {interval.units} {interval.unit}s")
      0.790 ± 0.090, 3 seeds
      >>> compute_interval([[0.5, 0.75], [0.75, 0.5]])
      Interval(mean=0.625, half_width=0.0, units=2, unit='order')
    """
    values, unit = _independent_units(np.asarray(scores, np.float64), unit)
    mean, error = _mean_and_error(values)
    return Interval(mean, _half_width(error, values.size, LEVEL_OF_SIGNIFICANCE), values.size, unit)


def _half_width(error: float, units: int, level: float) -> float:
    """Returns half of the interval of a mean with this standard error by Student's t, outside of which p is below
    `level`. NaN of fewer than two units.
    """
    from scipy import special  # `scipy.stats` takes half a second to import.

    return float(special.stdtrit(units - 1, 1 - level / 2)) * error if units > 1 else math.nan


def _independent_units(values: np.ndarray, unit: str) -> tuple[np.ndarray, str]:
    """Returns one value for each independent unit, without NaN, and the kind of the units."""
    if values.ndim not in (1, 2):
        raise ValueError(f"scores: given shape {values.shape}, allowed: [units] or [orders, seeds]")
    by_order = [known for row in np.atleast_2d(values) if (known := row[~np.isnan(row)]).size]
    if values.ndim == 2 and len(by_order) > 1:
        return np.array([row.mean() for row in by_order]), "order"
    return np.concatenate([np.zeros(0), *by_order]), "seed" if values.ndim == 2 else unit


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Returns the mean of some values and its standard error. Both are NaN where there are too few."""
    with np.errstate(invalid="ignore"):  # of infinities
        mean = float(np.mean(values)) if values.size else math.nan
        error = float(np.std(values, ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan
    return mean, error


def compare_pairs(
    scores: npt.ArrayLike, control: npt.ArrayLike, *, more_is_better: bool = True, unit: str = "seed"
) -> Comparison:
    """Compares scores of a contender with those of its control, `[units]` or `[orders, seeds]`, by a paired two-sided
    t-test. Returns difference, error, p-value and verdict.

    Args:
      scores: Scores of the contender `[units]` or `[orders, seeds]`. Pairs of which one is NaN do not count.
      control: Scores of the control, for the same units in the same order.
      more_is_better: Whether a larger score is a gain. False for losses and perplexities.
      unit: Kind of the units of one axis. With two axes the units are orders, or seeds if one order has pairs.

    Raises:
      ValueError: The shapes differ, or have more than two axes.

    Example:
      >>> found = compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5])
      >>> print(f"{found.difference:.3f} ± {found.error:.3f}, {found.counted}, p {found.p:.3f}: {found.verdict}")
      0.257 ± 0.035, 3 seeds, p 0.018: gain
      >>> compare_pairs([0.75, 0.4, 0.82], [0.5, 0.6, 0.5]).verdict
      'level'
      >>> compare_pairs([[0.75, 0.8, 0.82], [0.7, 0.8, 0.9]], [[0.5, 0.6, 0.5], [0.5, 0.5, 0.4]])[2:4]
      (2, 'order')
    """
    from scipy import special

    scores, control = np.asarray(scores, np.float64), np.asarray(control, np.float64)
    if scores.shape != control.shape or scores.ndim not in (1, 2):
        allowed = "[units] or [orders, seeds], as many of both"
        raise ValueError(f"control: given shape {control.shape} beside {scores.shape}, allowed: {allowed}")
    with np.errstate(invalid="ignore"):
        differences = np.where(np.isclose(scores, control, rtol=_ROUNDING, atol=0), 0.0, scores - control)
    # Infinite differences count: a run that has diverged is not left out.
    differences, unit = _independent_units(differences, unit)
    units, (difference, error) = differences.size, _mean_and_error(differences)
    if units < LEAST_UNITS:
        return Comparison(difference, error, units, unit, math.nan, TOO_FEW)
    if not math.isfinite(error):  # Its size says nothing about the other runs.
        return Comparison(difference, error, units, unit, math.nan, DIVERGED)
    if error:
        p = 2 * float(special.stdtr(units - 1, -abs(difference) / error))
    else:
        p = 0.0 if difference else 1.0
    better = (difference > 0) == more_is_better
    verdict = "level" if p >= LEVEL_OF_SIGNIFICANCE else "gain" if better else "loss"
    return Comparison(difference, error, units, unit, p, verdict, _half_width(error, units, LEVEL_OF_SIGNIFICANCE))


def withhold_verdict(comparison: Comparison) -> Comparison:
    """Returns a comparison that says "not searched" in place of its verdict and p-value, for contenders whose settings
    were not searched with equal budgets. `correct_for_many` does not count it.

    Example:
      >>> found = withhold_verdict(compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5]))
      >>> found.verdict, show_p(found.p), format_difference(found, 2)
      ('not searched', '', '+0.26 ± 0.03')
    """
    return comparison._replace(p=math.nan, verdict=NOT_SEARCHED, least=math.nan)


def compare_documents(
    nats: npt.ArrayLike, control: npt.ArrayLike, targets: npt.ArrayLike, *, unit: str = "document"
) -> Comparison:
    """Compares two evaluations of the same documents by nats per target. `nats` and `control` are sums and `targets`
    numbers of targets, `[documents]`. The difference is above 0 if the first evaluation is better.

    The nats per target are those of all documents together, so that long documents count more. The error is that of a
    ratio of two sums over documents.

    Args:
      nats: Sums of nats `[documents]`.
      control: Sums of nats of the other evaluation `[documents]`.
      targets: Number of targets of each document `[documents]`. A document without any does not count.
      unit: Kind of the documents.

    Returns:
      The nats per target that are saved. Above 0 the first evaluation is better.

    Example:
      >>> found = compare_documents([10.0, 21.0, 38.0], [15.0, 30.0, 61.0], [10, 20, 40])
      >>> print(f"{found.difference:.3f} ± {found.error:.3f} ({found.counted}, p {found.p:.3f}): {found.verdict}")
      0.529 ± 0.043 (3 documents, p 0.007): gain
    """
    nats, control, targets = (np.asarray(values, np.float64) for values in (nats, control, targets))
    scored = targets > 0
    saved, targets = (control - nats)[scored], targets[scored]
    mean = float(saved.sum() / targets.sum()) if targets.size else math.nan
    linear = mean + (saved - mean * targets) / targets.mean() if targets.size else saved
    return compare_pairs(linear, np.zeros_like(linear), unit=unit)


def correct_for_many(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons of one table with p-values and verdicts after Holm's correction for all that have a
    p-value.

    A comparison without a p-value, such as one of too few units, claims nothing. It does not count and stays as it is.

    Args:
      comparisons: All comparisons of the table, as `compare_pairs` returns them.

    Returns:
      The comparisons in the same order, with corrected p-values and the verdicts that follow.

    Example:
      >>> one = compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5])
      >>> print(*(f"{correct_for_many([one] * count)[0].p:.3f}" for count in (1, 2, 10)))
      0.018 0.036 0.179
    """
    claims = sorted((c.p, number) for number, c in enumerate(comparisons) if not math.isnan(c.p))
    corrected, largest, rejected = list(comparisons), 0.0, 0
    for rank, (p, number) in enumerate(claims):
        largest = max(largest, min(1.0, p * (len(claims) - rank)))
        comparison = comparisons[number]
        rejected = rank + 1 if largest < LEVEL_OF_SIGNIFICANCE else rejected
        verdict = comparison.verdict if largest < LEVEL_OF_SIGNIFICANCE else "level"
        # What is level would have had to pass at the step at which the correction stopped.
        level = LEVEL_OF_SIGNIFICANCE / (len(claims) - min(rank, rejected))
        least = _half_width(comparison.error, comparison.units, level)
        corrected[number] = comparison._replace(p=largest, verdict=verdict, least=least)
    return corrected


def describe_test(comparisons: Sequence[Comparison]) -> str:
    """Returns a sentence that names the test behind the verdicts of a table, and the correction if there was one.

    Example:
      >>> describe_test([])
      "Student's t, paired and two-sided: a gain or a loss has p < 0.05, fewer than 3 units are too few"
    """
    claims = sum(not math.isnan(comparison.p) for comparison in comparisons)
    corrected = f"; p by Holm's correction for {claims} claims" if claims > 1 else ""
    return (
        f"Student's t, paired and two-sided: a gain or a loss has p < {LEVEL_OF_SIGNIFICANCE:g}, fewer than "
        f"{LEAST_UNITS} units are too few{corrected}"
    )


def describe_intervals(intervals: Sequence[Interval]) -> str:
    """Returns a sentence about the intervals of a table, with the number and kind of their units.

    Example:
      >>> describe_intervals([compute_interval([[0.5, 0.75], [0.75, 0.5]])])
      "mean ± half of the 95 % interval by Student's t, over 2 orders; seeds within an order are averaged first"
    """
    counts = {(interval.units, interval.unit) for interval in intervals}
    units = " or ".join(f"{units:,} {unit}{'' if units == 1 else 's'}" for units, unit in sorted(counts))
    averaged = "; seeds within an order are averaged first" if any(unit == "order" for _, unit in counts) else ""
    return f"mean ± half of the 95 % interval by Student's t, over {units or 'no runs'}{averaged}"


def format_difference(comparison: Comparison, digits: int | None = None) -> str:
    """Formats the difference of a comparison as a text `+MEAN ± ERROR`, without the error if it is unknown. `digits` is
    the number of decimals.

    Args:
      comparison: The difference and its standard error.
      digits: Decimals of both. None for four significant digits of the difference and two of the error.

    Example:
      >>> comparison = compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5])
      >>> format_difference(comparison, 2), format_difference(comparison)
      ('+0.26 ± 0.03', '+0.2567 ± 0.035')
      >>> format_difference(compare_pairs([0.5], [1.5]), 4)
      '-1.0000'
    """
    mean_format, error_format = ("+.4g", ".2g") if digits is None else (f"+.{digits}f", f".{digits}f")
    mean = format(comparison.difference, mean_format)
    return mean if math.isnan(comparison.error) else f"{mean} ± {comparison.error:{error_format}}"


def format_interval(interval: Interval) -> str:
    """Formats a mean with its interval as a text `MEAN ± HALF_WIDTH`, or as the mean alone of a single unit.

    Example:
      >>> format_interval(compute_interval([0.75, 0.8, 0.82])), format_interval(compute_interval([0.5]))
      ('0.79 ± 0.09', '0.5')
    """
    mean = f"{interval.mean:.4g}"
    return mean if math.isnan(interval.half_width) else f"{mean} ± {interval.half_width:.2g}"


def show_difference(comparison: Comparison, digits: int = 4) -> str:
    """Formats a comparison as a text with difference, error, units and p-value: "+0.26 ± 0.03 (3 seeds, p 0.018)".
    `digits` is the number of decimals.

    Example:
      >>> show_difference(compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5]), 2)
      '+0.26 ± 0.03 (3 seeds, p 0.018)'
      >>> show_difference(compare_pairs([0.75], [0.5], unit="document"), 2)
      '+0.25 (1 document, too few for an error)'
    """
    missing = "an error" if math.isnan(comparison.error) else "a verdict"
    without_p = DIVERGED if comparison.verdict == DIVERGED else f"too few for {missing}"
    p = f"p {show_p(comparison.p)}".replace("p <", "p < ") if show_p(comparison.p) else without_p
    return f"{format_difference(comparison, digits)} ({comparison.counted}, {p})"


def show_verdict(comparison: Comparison, digits: int | None = None) -> str:
    """Formats a verdict for a table, with the smallest difference that would have shown beside "level". `digits` is the
    number of decimals, None for two significant digits.

    Example:
      >>> show_verdict(compare_pairs([0.75, 0.4, 0.82], [0.5, 0.6, 0.5]), 2)
      'level (0.70 would show)'
      >>> show_verdict(compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5]))
      'gain'
    """
    return " ".join(filter(None, (comparison.verdict, show_least(comparison, digits))))


def show_least(comparison: Comparison, digits: int | None = None) -> str:
    """Formats the smallest difference that would have been a gain or a loss, in brackets. '' for other verdicts than
    "level". `digits` is the number of decimals, None for two significant digits.

    Example:
      >>> show_least(compare_pairs([0.75, 0.4, 0.82], [0.5, 0.6, 0.5]))
      '(0.7 would show)'
    """
    if comparison.verdict != "level" or not math.isfinite(comparison.least):
        return ""
    return f"({format(comparison.least, '.2g' if digits is None else f'.{digits}f')} would show)"


def show_p(p: float) -> str:
    """Formats a p-value for a table with three decimals, or as '<0.001'. '' for NaN.

    Example:
      >>> show_p(0.0312), show_p(0.0001), show_p(1.0), show_p(float("nan"))
      ('0.031', '<0.001', '1.000', '')
    """
    return "" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"
