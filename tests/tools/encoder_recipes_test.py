"""The recipes of five text tasks with an encoder that is trained: their rows, and what their searches may propose."""

import pytest

from memjax.settings.overrides import apply_overrides, describe_config, load_config
from tools.recipes import RECIPES, encoders
from tools.recipes.search import propose_trial

VARIANTS = describe_config("lifelong_text")[1]
SEARCHED = [name for name in encoders.RECIPES if RECIPES[name].search]
CHANGES = {"alike": 0.0, "worse": 1.0, "better": -1.0}
"""Difference of the loss from one trial to the next"""


@pytest.mark.parametrize("name", encoders.RECIPES)
def test_rows_and_controls_are_known(name):
    recipe = RECIPES[name]
    assert {words.split()[0] for words in recipe.variants.values()} <= {*VARIANTS}
    assert {*recipe.controls} | {row for rows in recipe.controls.values() for row in rows} <= {*recipe.variants}
    assert len({*recipe.orders.values()}) == (4 if name == "lifelong_encoder" else 6) and recipe.seeds == (0,)


@pytest.mark.parametrize("row", [row for row in RECIPES["lifelong_last_two"].variants if "passes" in row])
def test_rows_of_more_passes_make_as_many_outer_updates_as_plain_training(row):
    recipe = RECIPES["lifelong_last_two"]
    variant, *words = recipe.variants[row].split()
    config = apply_overrides(load_config("lifelong_text", variant), words, prog="memjax train")
    method = config.lifelong.method
    assert config.lifelong.epochs == method.inner_steps + 1
    assert method.memory.write_probability * config.lifelong.epochs == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("name", SEARCHED)
def test_no_argument_of_a_row_hides_what_is_searched(name):
    """Arguments of the recipe and of its rows come after those of a trial."""
    recipe = RECIPES[name]
    for row, words in recipe.variants.items():
        words_given = {*recipe.arguments.split(), *words.split(), *recipe.search.arguments.split()}
        assert not words_given & {
            option for setting in recipe.search.settings_of(row) for option in (setting.option, *setting.also)
        }


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", SEARCHED)
def test_proposals_stay_within_their_limits(name, change):
    search = RECIPES[name].search
    for row in (row for row in RECIPES[name].variants if search.settings_of(row)):
        losses = []
        for number in range(search.most_trials):
            losses.append((propose_trial(losses, search.settings_of(row)), change * number))
        assert len({tuple(trial.values()) for trial, _ in losses}) == search.most_trials
        for setting in search.settings_of(row):
            values = [trial[setting.option] for trial, _ in losses]
            assert all(setting.least <= value <= setting.most for value in values)
            assert not setting.is_whole or all(value == int(value) for value in values)


def test_sizes_of_the_curve_differ_in_texts_and_in_the_room_for_them():
    recipe = RECIPES["lifelong_last_two_sizes"]
    for row, words in recipe.variants.items():
        method, _, size = row.removesuffix(" texts").partition(", ")
        variant, *options = words.split()
        config = apply_overrides(load_config("lifelong_text", variant), options, prog="memjax train")
        texts = config.lifelong.max_examples_per_task
        assert texts == (int(size.replace(",", "")),) * 5 and recipe.settings_from[row] == f"lifelong_last_two/{method}"
        if method in ("MbPA++", "OML-ER"):
            assert config.lifelong.method.memory.capacity == sum(texts)
        assert recipe.rows_by_size[method][size] == f"lifelong_last_two_sizes/{row}"
        source = config.lifelong.tasks[0].source
        assert max(texts) <= source.num_train and source.num_validation == 100
    for method, rows in recipe.rows_by_size.items():
        assert [*rows] == ["125", "500", "2,000"] and rows["500"] == f"lifelong_last_two/{method}"
