"""Differences between contenders: their errors by hand, and which are gain, level or loss."""

import dataclasses
import math

import pytest

from tests.tools.results_test import RUN
from tools.recipes import RECIPES, Recipe
from tools.results.comparisons import compare_rows, compare_seeds, differences, memory_figures
from tools.results.ledger import Book
from tools.results.searches import RowSearch

SEARCHED = RowSearch(4, {"--a": (1.0, 2.0, 4.0)}, {"--a": 2.0}, (), True)
SHARE = "transformer_xl/memory_share"


def runs(row, values, share=None):
    metrics = {} if share is None else {f"layer_00/{SHARE}": share, f"layer_01/{SHARE}": share + 0.2}
    scores = [{**RUN.results["evaluation"], "bits_per_byte": value, "metrics": metrics} for value in values]
    results = [{**RUN.results, "evaluation": score} for score in scores]
    return [dataclasses.replace(RUN, row=row, seed=seed, results=one) for seed, one in enumerate(results)]


def test_a_difference_is_taken_seed_by_seed():
    comparison = compare_seeds({0: 1.0, 1: 2.0, 2: 3.0, 9: 0.0}, {2: 3.4, 1: 2.2, 0: 1.3, 7: 5.0}, more_is_better=False)
    assert comparison.counted == "3 seeds" and comparison.difference == pytest.approx(-0.3)
    assert comparison.error == pytest.approx(math.sqrt((0.1**2 + 0.1**2) / 2 / 3)) and comparison.verdict == "gain"
    with pytest.raises(ValueError, match=r"seeds: given \[0\] and \[1\], allowed: at least one in common"):
        compare_seeds({0: 1.0}, {1: 1.0}, more_is_better=True)


def test_a_page_compares_rows_with_their_controls():
    recipe = Recipe(
        "about", "x", {"memory": "a", "none": "b", "later": "c"}, 5, controls={"memory": ("none",), "later": ("none",)}
    )
    found = [*runs("memory", [1.0, 1.1, 1.2], share=0.25), *runs("none", [1.5, 1.61, 1.69])]
    searches = dict.fromkeys(("memory", "none"), SEARCHED)
    assert compare_rows(found, recipe, searches)["memory", "none", "bits per byte"].verdict == "gain"
    text = differences(found, recipe, searches)
    assert "| memory | none | bits per byte | -0.5000 ± 0.0058 | 3 seeds | <0.001 | gain |" in text
    assert "later" not in text and "targets" not in text and "parameters" not in text
    assert differences(found[3:], recipe, searches) == ""
    assert "| -0.5000 ± 0.0058 | 3 seeds |  | not searched |" in differences(found, recipe, {"memory": SEARCHED})
    figures = memory_figures(found)
    assert SHARE in figures and "| memory | 0.3500 |" in figures and "none" not in figures
    assert memory_figures(found[3:]) == ""


def test_controls_are_rows_of_their_recipe():
    for name, recipe in RECIPES.items():
        pairs = [(row, control) for row, controls in recipe.controls.items() for control in controls]
        assert {row for pair in pairs for row in pair} <= recipe.variants.keys(), name
        assert all(row != control for row, control in pairs), name
    assert any(recipe.controls for recipe in RECIPES.values())
    assert {run.recipe for run in Book().runs()} & {name for name, recipe in RECIPES.items() if recipe.controls}
