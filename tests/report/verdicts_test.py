"""Verdicts: p-values against SciPy, units of orders and seeds, Holm's correction by its definition, and borders."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from scipy import stats

from memjax.report.verdicts import (
    compare_documents,
    compare_pairs,
    correct_for_many,
    describe_test,
    show_difference,
    show_p,
    show_verdict,
    withhold_verdict,
)

NAN = math.nan
SCORES = strategies.floats(-100, 100).map(lambda value: round(value, 3))
PAIRS = strategies.lists(strategies.tuples(SCORES, SCORES), min_size=3, max_size=12)


@hypothesis.given(PAIRS)
def test_p_is_that_of_scipy(pairs):
    scores, control = np.array(pairs).T
    comparison = compare_pairs(scores, control)
    differences = scores - control
    if np.ptp(differences) < 1e-9:  # SciPy warns: the t of a deviation 0
        assert comparison.p < 1e-9 or comparison.verdict == "level"
        return
    expected = stats.ttest_rel(scores, control)
    assert comparison.p == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-15)
    assert comparison.difference == pytest.approx(differences.mean())
    assert comparison.error == pytest.approx(stats.sem(differences)) and comparison.units == len(pairs)
    low, high = expected.confidence_interval(0.95)  # the rule of an interval is the same rule
    if min(abs(low), abs(high)) > 1e-9:
        assert (comparison.verdict == "level") == (low < 0 < high)


@hypothesis.given(PAIRS)
def test_the_other_way_round_is_the_other_verdict(pairs):
    scores, control = np.array(pairs).T
    opposite = {"gain": "loss", "loss": "gain", "level": "level"}
    comparison = compare_pairs(scores, control)
    assert compare_pairs(control, scores).verdict == opposite[comparison.verdict]
    assert compare_pairs(scores, control, more_is_better=False).verdict == opposite[comparison.verdict]
    assert compare_pairs(np.append(scores, [NAN, 1.0]), np.append(control, [1.0, NAN])) == comparison


TABLE = {
    # t = difference / error; the border of three units is 4.303, of four 3.182, of five 2.776.
    "three units below": ([-0.3, 0.0, 0.3], 4.2, "level"),
    "three units above": ([-0.3, 0.0, 0.3], 4.4, "gain"),
    "three units, two errors": ([-0.3, 0.0, 0.3], 2.1, "level"),
    "four units below": ([-0.3, -0.1, 0.1, 0.3], 3.1, "level"),
    "four units above": ([-0.3, -0.1, 0.1, 0.3], 3.25, "gain"),
    "five units below": ([-0.2, -0.1, 0.0, 0.1, 0.2], 2.7, "level"),
    "five units above": ([-0.2, -0.1, 0.0, 0.1, 0.2], 2.85, "gain"),
    "five units, a loss": ([-0.2, -0.1, 0.0, 0.1, 0.2], -2.85, "loss"),
}


@pytest.mark.parametrize("noise, errors, verdict", TABLE.values(), ids=TABLE)
def test_borders(noise, errors, verdict):
    noise = np.array(noise)
    assert compare_pairs(noise + errors * stats.sem(noise), np.zeros(len(noise))).verdict == verdict


def test_units():
    rng = np.random.default_rng(0)
    orders, control = rng.normal(size=(4, 3)) + 1, rng.normal(size=(4, 3))
    same = lambda one, other: one[:2] == pytest.approx(other[:2]) and one.p == pytest.approx(other.p)
    comparison = compare_pairs(orders, control)
    assert (
        same(comparison, compare_pairs(orders.mean(axis=1), control.mean(axis=1))) and comparison.counted == "4 orders"
    )
    # A seed that was not run leaves the mean of its order, and an order that was not run is no unit.
    holes = orders.copy()
    holes[0, 1] = holes[3] = NAN
    means = [(holes - control)[0, [0, 2]].mean(), *(holes - control)[1:3].mean(axis=1)]
    assert same(compare_pairs(holes, control), compare_pairs(means, np.zeros(3)))
    assert compare_pairs(holes, control).counted == "3 orders"
    # One order: its seeds. Two: too few, however many seeds.
    alone = np.where(np.arange(4)[:, None] == 2, orders, NAN)
    assert compare_pairs(alone, control) == compare_pairs(orders[2], control[2])
    assert compare_pairs(orders[2:3], control[2:3]).counted == "3 seeds"
    two = compare_pairs(orders[:2] + 100, control[:2])
    assert (two.verdict, two.counted) == ("too few", "2 orders") and math.isnan(two.p) and two.error > 0


@pytest.mark.parametrize("scores", [[], [NAN], [0.9], [0.9, 0.8], [0.9, NAN, 0.8], [[0.9], [0.8]]])
def test_too_few(scores):
    comparison = compare_pairs(scores, np.zeros_like(scores))
    assert (
        comparison.verdict == "too few" and math.isnan(comparison.p) and comparison.units == np.sum(~np.isnan(scores))
    )
    assert math.isnan(comparison.error) == (comparison.units < 2) and math.isnan(comparison.difference) == (
        comparison.units < 1
    )


def test_equal_and_diverged_runs():
    same = compare_pairs([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert (same.difference, same.error, same.p, same.verdict) == (0.0, 0.0, 1.0, "level")
    rounded = np.nextafter([0.1, 0.2, 0.3], 1)  # differs by the last bit alone: no certain gain
    assert compare_pairs(rounded, [0.1, 0.2, 0.3]) == same
    assert compare_pairs([1.5, 2.5, 3.5], [1.0, 2.0, 3.0]).verdict == "gain"  # without deviation
    for scores in ([math.inf, 1.0, 2.0], [-math.inf, 1.0, 2.0], [math.inf, -math.inf, 0.0]):
        found = compare_pairs(scores, [0.0, 0.1, 0.2])
        assert found.verdict == show_verdict(found) == "diverged" and math.isnan(found.p)
        assert show_difference(found).endswith("(3 seeds, diverged)")
    assert compare_pairs([math.inf, 1.0], [0.0, 0.1]).verdict == "too few"


@hypothesis.given(strategies.lists(strategies.tuples(SCORES, SCORES, strategies.integers(1, 50)), min_size=3))
def test_documents_are_a_ratio_of_sums(documents):
    scores, control, targets = np.array(documents).T
    comparison = compare_documents(scores, control, targets)
    assert comparison.difference == pytest.approx((control - scores).sum() / targets.sum(), abs=1e-9)
    residual, count = control - scores - comparison.difference * targets, len(documents)  # the error of a ratio of sums
    expected = math.sqrt(count / (count - 1) * np.sum(residual**2)) / targets.sum()
    assert comparison.error == pytest.approx(expected, abs=1e-9) and comparison.counted == f"{count} documents"


def test_documents_of_equal_length_are_pairs():
    scores, control = np.array([3.0, 5.0, 8.0]), np.array([4.0, 5.5, 9.5])
    comparison, pairs = compare_documents(scores, control, [2, 2, 2]), compare_pairs(control / 2, scores / 2)
    assert comparison[:2] == pytest.approx(pairs[:2]) and comparison.p == pytest.approx(pairs.p)
    alone = compare_documents([3.0], [4.0], [2])
    assert (alone.verdict, alone.counted, alone.difference) == ("too few", "1 document", 0.5)
    assert compare_documents([], [], []).units == 0


def test_documents_without_targets_do_not_count():
    scores, control, targets = np.array([1.0, 2.0, 4.0]), np.array([2.0, 3.0, 7.0]), np.array([2, 2, 4])
    padded = [np.insert(values, [0, 2, 3], 0) for values in (scores, control, targets)]
    assert compare_documents(*padded) == compare_documents(scores, control, targets)


def holm(values):
    """By the definition: the largest of all steps up to one's own, cut at 1."""
    order = np.argsort(values, kind="stable")
    steps = [min(1.0, (len(values) - rank) * values[number]) for rank, number in enumerate(order)]
    return dict(zip(order.tolist(), itertools.accumulate(steps, max), strict=True))


@hypothesis.given(strategies.lists(strategies.floats(1e-9, 1), min_size=1, max_size=30), strategies.randoms())
def test_corrections(values, random):
    few = compare_pairs([0.9, 0.8], [0.0, 0.0])
    table = [few._replace(p=p, units=3, verdict="gain" if p < 0.05 else "level") for p in values]
    for _ in range(3):  # lines that claim nothing
        table.insert(random.randrange(len(table) + 1), few)
    corrected = correct_for_many(table)
    assert [comparison for comparison in corrected if comparison.verdict == "too few"] == [few] * 3
    claims = [comparison for comparison in corrected if comparison.verdict != "too few"]
    expected = holm(values)
    assert [comparison.p for comparison in claims] == pytest.approx([expected[number] for number in range(len(values))])
    assert all((comparison.verdict == "gain") == (comparison.p < 0.05) for comparison in claims)
    assert f"Holm's correction for {len(values)} claims" in describe_test(table) or len(values) == 1
    assert describe_test(table) == describe_test(corrected)


def test_three_steps_by_hand():
    comparison = compare_pairs([1.5, 1.6, 1.7], [1.0, 1.0, 1.0])
    table = [comparison._replace(p=p) for p in (0.03, 0.004, 0.0046, *[0.5] * 8)]
    corrected = correct_for_many(table)
    assert [c.p for c in corrected[:3]] == pytest.approx([0.27, 0.044, 0.046])
    assert [c.verdict for c in corrected[:3]] == ["level", "gain", "gain"]
    assert correct_for_many(table[:1]) == table[:1]


def test_words():
    assert [show_p(p) for p in (0.0005, 0.001, 0.0499, 1.0, NAN)] == ["<0.001", "0.001", "0.050", "1.000", ""]
    assert compare_pairs([1.0], [0.0], unit="document").counted == "1 document"


@pytest.mark.parametrize(
    "scores, control", [([0.1], [0.1, 0.2]), (0.1, 0.2), (np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))]
)
def test_other_shapes_are_refused(scores, control):
    with pytest.raises(ValueError, match=r"control: given shape .* allowed: \[units\] or \[orders, seeds\]"):
        compare_pairs(scores, control)


@pytest.mark.parametrize("times, verdict", [(0.999, "level"), (1.001, "gain")])
def test_the_smallest_difference_that_shows_is_the_border_of_level(times, verdict):
    noise = np.array([-0.3, -0.1, 0.1, 0.3])
    least = compare_pairs(noise, np.zeros(4)).least
    assert least == pytest.approx(stats.t.interval(0.95, 3, scale=stats.sem(noise))[1])
    assert compare_pairs(noise + times * least, np.zeros(4)).verdict == verdict


@pytest.mark.parametrize("times, verdict", [(0.999, "level"), (1.001, "gain")])
def test_after_a_correction_the_smallest_difference_is_the_border_of_the_corrected_level(times, verdict):
    noise, zeros = np.array([-0.3, -0.1, 0.1, 0.3]), np.zeros(4)
    gains = [compare_pairs(noise + 100, zeros)] * 2
    levels = [compare_pairs(noise, zeros)] * 11
    least = correct_for_many([*gains, *levels])[-1].least
    assert least > levels[0].least
    moved = correct_for_many([*gains, *levels[1:], compare_pairs(noise + times * least, zeros)])
    assert [c.verdict for c in moved] == ["gain"] * 2 + ["level"] * 10 + [verdict]


def test_a_withheld_verdict_claims_nothing_and_is_not_counted():
    comparison = compare_pairs([1.5, 1.6, 1.7], [1.0, 1.0, 1.0])
    withheld = withhold_verdict(comparison)
    assert (withheld.verdict, withheld.difference) == ("not searched", comparison.difference) and math.isnan(withheld.p)
    assert correct_for_many([comparison] + [withheld] * 5) == [comparison] + [withheld] * 5
    assert "claims" not in describe_test([comparison] + [withheld] * 5)
    assert show_verdict(withheld) == "not searched" and show_verdict(comparison) == "gain"
