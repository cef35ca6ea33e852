"""The page of all systems: every row that it quotes exists, and says its control."""

import pytest

from tools.recipes import RECIPES
from tools.results import survey
from tools.results.ledger import Run
from tools.texts.known import Known


def quoted():
    """Recipe, row and control of everything that the page and its markers may quote."""
    found = [(system.name, *one) for system in survey.SYSTEMS for one in system.ours]
    return found + [(name, *one) for name, ours in survey.OTHERS.items() for one in ours]


@pytest.mark.parametrize(("name", "recipe", "row", "control"), quoted())
def test_what_is_quoted_is_a_row_of_a_recipe(name, recipe, row, control):
    assert {row, control} <= {*RECIPES[recipe].variants} and control in RECIPES[recipe].controls[row], name


def test_every_system_has_all_cells_and_one_of_our_rows():
    assert len({system.name for system in survey.SYSTEMS}) == len(survey.SYSTEMS)
    for system in survey.SYSTEMS:
        assert all(system[:7]) and system.ours, system.name


def run_of(recipe, row, seed, average):
    facts = {"measure": "accuracy", "tasks": ["a", "b"], "scores": [[0.5, 0.1], [average, average]], "average": average}
    return Run(
        recipe=recipe, row=f"{row}, {next(iter(RECIPES[recipe].orders))}", seed=seed, name="", command="", commit="",
        hardware="", config="", variant="", difference={}, versions=[], step=1, attempts=1, results={},
        evaluations={"stream": facts},
    )  # fmt: skip


def test_a_system_is_quoted_beside_plain_training_alone():
    (recipe, row, control), *_ = next(system.ours for system in survey.SYSTEMS if system.name.startswith("EWC"))
    runs = [run_of(recipe, row, 0, 0.75)]
    page = lambda: survey.page(Known({run.key: run for run in runs}, {}))
    line = lambda: next(one for one in page().splitlines() if one.startswith("| EWC ("))
    assert "plain training" not in line()
    runs.append(run_of(recipe, control, 0, 0.5))
    assert "EWC: 75.0 (plain training 50.0; 1 seed, not searched)" in line()
    runs.append(run_of("lifelong_last_two", "SEQ", 0, 0.5))
    assert "| SEQ | 50.0 (1 of 6 orders) |" in page()
