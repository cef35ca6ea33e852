"""The search of a row is read off its trials, and rows that were not searched alike have no verdict."""

import dataclasses
import math
import re

import pytest

from memjax.report.verdicts import compare_pairs
from tools.recipes import RECIPES, Recipe, page_of
from tools.recipes.search import RATE, Search, Setting, search_rates
from tools.results import pages, searches, streams, verdicts
from tools.results.ledger import ROOT, Book, Run
from tools.results.searches import RowSearch

SEARCHED = RowSearch(4, {"--a": (1.0, 2.0, 4.0)}, {"--a": 2.0}, (), True)


def run(recipe, row, rate, loss=0.0, **further):
    facts = {
        "recipe": recipe, "row": row, "seed": 100 * (recipe != "r"), "name": "", "commit": "", "hardware": "",
        "config": "sorting", "variant": "default", "difference": {}, "versions": [], "step": 1, "attempts": 1,
        "evaluations": {}, "command": f"memjax train {RATE} {rate}",
        "results": {"evaluation": {"nats_per_token": loss}},
    }  # fmt: skip
    return Run(**(facts | further))


def trials(row, losses):
    return [run("r: search", f"{row}, {RATE} {rate:g}", rate, loss) for rate, loss in losses.items()]


@pytest.fixture
def recipe(monkeypatch):
    rows = {"one": "a", "one, wide": "b"}
    monkeypatch.setitem(RECIPES, "r", Recipe("", "sorting", rows, 5, search=search_rates(0.2, trials=3, steps=2)))


INSIDE = {0.1: 3.0, 0.2: 1.0, 0.4: 2.0}


def test_a_search_is_read_off_its_trials(recipe):
    runs = [*trials("one", INSIDE), run("r", "one", 0.2)]
    search = searches.find_searches(runs, "r")["one"]
    assert (search.trials, search.best, search.edges, search.is_used) == (3, {RATE: 0.2}, (), True)
    assert search.tried == {RATE: (0.1, 0.2, 0.4)} and search.problem == ""
    old = [run("r: learning-rate search", f"one, {rate:g}", rate, loss) for rate, loss in INSIDE.items()]
    assert searches.find_searches(old, "r")["one"].best == {RATE: 0.2}
    assert searches.find_searches(runs, "of no recipe") == {}


def test_hours_are_those_that_trials_and_runs_say(recipe):
    runs = [*trials("one", INSIDE), run("r", "one", 0.2)]
    timed = [dataclasses.replace(each, cpu_seconds=s) for each, s in zip(runs, (600, 1800, 1200, 900), strict=True)]
    # One row of three trials, the other has none: three times a sixth of an hour.
    said = "CPU hours of the search as planned by its first trial: 0.50. Spent: 1.00 on 3 trials"
    assert searches.describe_hours(timed, "r") == f"{said} and 0.25 on 1 runs."
    assert searches.describe_hours([*timed[:3], runs[3]], "r") == f"{said}."
    assert searches.describe_hours([*timed[:2], *runs[2:]], "r") == searches.describe_hours(runs, "r") == ""
    of_curve = [dataclasses.replace(each, recipe="lifelong_last_two_sizes") for each in timed[:2]]
    assert searches.describe_hours(of_curve, "lifelong_last_two_sizes") == "CPU hours spent: 0.67 on 2 runs."
    assert searches.describe_hours(timed, "lifelong_last_two_sizes") == ""


def test_the_first_trial_is_the_first_one_of_the_ledger_whatever_its_row(recipe):
    runs = [*trials("one, wide", INSIDE), *trials("one", INSIDE)]
    timed = [dataclasses.replace(each, cpu_seconds=3600 * hours) for hours, each in enumerate(runs, 1)]
    # Two rows of three trials, each as long as the first one, an hour.
    assert "planned by its first trial: 6.00. Spent: 21.00 on 6 trials." in searches.describe_hours(timed, "r")


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.search])
def test_no_row_of_a_searched_recipe_has_the_trials_of_another_one(name):
    rows, seed = RECIPES[name].variants, RECIPES[name].search.seed
    every = [dataclasses.replace(run(f"{name}: search", f"{row}, {RATE} 0.1", 0.1, 1.0), seed=seed) for row in rows]
    found = {row: searches.find_trials(every, name, row) for row in rows}
    assert {row: [trial.row for *_, trial in trials] for row, trials in found.items()} == {
        row: [f"{row}, {RATE} 0.1"] for row in rows
    }


PROBLEMS = {
    "no trials": ([], "not searched"),
    "one trial": (trials("one", {0.2: 1.0}), "not searched"),
    "edge": ([*trials("one", {0.1: 3.0, 0.2: 1.0}), run("r", "one", 0.2)], "best at the edge of learning rate"),
    "diverged": (
        [*trials("one", {0.1: 3.0, 0.2: float("nan")}), run("r", "one", 0.1)], "best at the edge of learning rate"
    ),
    "other settings": (
        [*trials("one", INSIDE), run("r", "one", 0.4)], "its runs have other settings than the best trial"
    ),
}  # fmt: skip


@pytest.mark.parametrize("runs, problem", PROBLEMS.values(), ids=PROBLEMS)
def test_what_stands_against_a_verdict(recipe, runs, problem):
    search = searches.find_searches(runs, "r").get("one", searches.NO_SEARCH)
    assert search.problem == problem
    assert searches.explain_difference(search, SEARCHED) == searches.explain_difference(SEARCHED, search) == problem


def test_rows_with_other_numbers_of_trials_have_no_verdict():
    more = SEARCHED._replace(trials=6)
    assert searches.explain_difference(SEARCHED, SEARCHED) == ""
    assert searches.explain_difference(SEARCHED, more) == "4 and 6 trials"
    gain = compare_pairs([1.5, 1.6, 1.7], [1.0, 1.0, 1.0])
    compared = {("one", "two"): gain, ("one", "three"): gain, ("one", "four"): gain}
    settled = searches.settle_verdicts(compared, {"one": SEARCHED, "two": SEARCHED, "three": more})
    assert [comparison.verdict for comparison in settled.values()] == ["gain", "not searched", "not searched"]


def test_every_row_of_the_table_says_why_it_has_no_verdict():
    table = searches.describe_searches([("one", "two", "score")], {"one": SEARCHED})
    assert "| one | 4 | a 1 to 4, best 2 |  |" in table and "| two | 0 |  | not searched |" in table
    assert "No row has trials of its own" in searches.describe_searches([("one", "two")], {})
    last = searches.RowSearch(4, {"--a": (1.0, 2.0, 4.0)}, {"--a": 4.0}, (), True)
    assert "| one | 4 | a 1 to 4, best 4, the largest allowed |  |" in searches.describe_searches(
        [("one", "two")], {"one": last}
    )


def test_trials_of_another_seed_do_not_count(recipe):
    others = [dataclasses.replace(trial, seed=99) for trial in trials("one", INSIDE)]
    assert searches.find_searches(others, "r") == {}


def test_every_trial_of_the_ledger_belongs_to_the_search_of_its_recipe():
    recorded = [trial for trial in Book().runs() if trial.recipe.partition(": ")[2] in searches.SECTIONS]
    assert recorded
    for trial in recorded:
        name = trial.recipe.partition(":")[0]
        assert trial.seed == RECIPES[name].search.seed, (name, trial.row)


def test_descriptions_do_not_say_by_hand_that_nothing_was_searched():
    said = {name for name, recipe in RECIPES.items() if "settings not searched" in recipe.description.lower()}
    assert said == set()


def test_a_limit_of_a_setting_is_no_edge(recipe, monkeypatch):
    limited = Search({"": (Setting(RATE, 0.2, most=0.2),)}, 2)
    monkeypatch.setitem(RECIPES, "r", dataclasses.replace(RECIPES["r"], search=limited))
    runs = [*trials("one", {0.1: 3.0, 0.2: 1.0}), run("r", "one", 0.2)]
    assert searches.find_searches(runs, "r")["one"].problem == ""


LOSSES = {
    "nats of a model": (run("r", "one", 1, 2.5), 2.5),
    "not finite": (run("r", "one", 1, None), float("inf")),
    "accuracy": (run("r", "one", 1, evaluations={"stream": {"measure": "accuracy", "average": 0.5}}), -0.5),
    "nats of tasks": (
        run("r", "one", 1, evaluations={"stream": {"measure": "nats_per_token", "scores": [[9.0, 9.0], [1.0, 2.0]]}}),
        1.5,
    ),
}


@pytest.mark.parametrize("trial, loss", LOSSES.values(), ids=LOSSES)
def test_a_search_makes_nats_least_and_accuracy_most(trial, loss):
    assert searches.trial_loss(trial, "one") == loss


def test_tasks_apart_are_searched_by_what_they_reach_after_themselves():
    stream = {"measure": "accuracy", "average": 0.5, "learning_accuracy": 0.75}
    assert searches.trial_loss(run("r", "single task", 1, evaluations={"stream": stream}), "single task") == -0.75


SEARCHED_RECIPES = {name: recipe for name, recipe in RECIPES.items() if recipe.search}


@pytest.mark.parametrize("name", SEARCHED_RECIPES)
def test_trials_are_on_streams_that_no_table_reports(name):
    recipe = SEARCHED_RECIPES[name]
    search = recipe.search
    seeds = {seed for row, order in recipe.contenders().values() for seed in recipe.seeds_of(row, order)}
    assert search.seed not in seeds and search.trials >= searches.LEAST_TRIALS
    assert set(search.settings) <= {"", *recipe.variants}
    for row, words in recipe.variants.items():
        options = [setting.option for setting in search.settings_of(row)]
        # A row that is left out says its rate itself.
        assert (options[0] == RATE and len(options) <= 3) if options else RATE in words.split()
    if recipe.orders:
        assert "--evaluation.split validation" in search.arguments and "--lifelong.task-order" in search.arguments
        assert not any(order in search.arguments for order in recipe.orders.values())


def test_all_trials_of_the_ledger_belong_to_a_row_of_their_recipe():
    recorded = [trial for trial in Book().runs() if trial.recipe.partition(": ")[2] in searches.SECTIONS]
    for trial in recorded:
        recipe = RECIPES[trial.recipe.partition(":")[0]]
        rows = [row for row in recipe.variants if trial.row.startswith(f"{row}, ")]
        assert rows and recipe.search and trial.seed not in recipe.seeds
    assert recorded


VERDICT = re.compile(r"\| (gain|loss|level[^|]*|too few|not searched|diverged) \|$", re.MULTILINE)


def test_findings_claim_no_more_than_their_table():
    """Read off the pages as they are shown."""
    withheld = 0
    for name, recipe in RECIPES.items():
        page = (ROOT / "tables" / f"{page_of(name)}.md").read_text(encoding="utf-8")
        section = re.split(
            r"^# ", page.partition(f"# {pages.TITLES.get(name, name)}\n")[2], maxsplit=1, flags=re.MULTILINE
        )[0]
        shown = {*VERDICT.findall(section)}
        assert (searches.UNSEARCHED in section) == (bool(recipe.findings) and shown <= {"not searched"}), name
        withheld += "not searched" in shown
    assert withheld


def test_no_verdict_is_on_the_split_of_a_search():
    """Trials of recipes that are no streams are chosen on the validation split."""
    runs, judged = Book().runs(), 0
    for name, recipe in RECIPES.items():
        if not recipe.orders:
            compared = verdicts.compare_recipe(name, runs)
            numbers = [claim[2] for claim, comparison in compared.items() if not math.isnan(comparison.p)]
            assert all(number.startswith("test") for number in numbers), (name, numbers)
            judged += len(numbers)
    assert judged


def test_a_search_of_fewer_updates_is_said():
    said = {name: searches.describe_lengths(recipe) for name, recipe in RECIPES.items()}
    assert said["memory_gain_controls"] == "A trial of the search has 500 updates, a run 3,000."
    assert said["lifelong_meta"] == said["wikitext2_spalm"] == said["linear_states_wikitext2"] == ""


def test_trials_count_once_and_must_end():
    same = [run("r: search", f"one, {rate}", 100, {"nats_per_token": 3.0}) for rate in (0.1, 0.0997, 0.2, 0.05)]
    trials = [(searches.read_settings(trial.row.partition(", ")[2]), 3.0, trial) for trial in same]
    assert searches.summarize_search(trials).trials == 3
    diverged = [(settings, math.inf, trial) for settings, _, trial in trials]
    assert searches.summarize_search(diverged).problem == "all trials diverged"


def test_findings_of_rows_that_were_searched_alike_stand_alone():
    recipe = Recipe("", "sorting", {"one": "a", "two": "b"}, 5, controls={"two": ("one",)}, findings="Two gains.")
    alike = dict.fromkeys(("one", "two"), SEARCHED)
    assert searches.qualify_findings(recipe, alike) == "Two gains."
    assert searches.qualify_findings(recipe, {"one": SEARCHED}) == f"{searches.UNSEARCHED} Two gains."


@pytest.mark.parametrize("results", [{"skipped_at_end": {"stream": 3}}, {"diverged": {"nats_per_token": 1e9}}])
def test_runs_and_trials_that_diverged_are_named(results):
    recipe, runs = RECIPES["lifelong_mnist"], Book().runs()
    of_row = [run for run in runs if run.recipe == "lifelong_mnist" and run.row.startswith("SEQ, order")]
    trial = next(run for run in runs if run.recipe == "lifelong_mnist: search")
    diverged = lambda run: dataclasses.replace(run, results=run.results | results)
    assert searches.trial_loss(diverged(trial), "SEQ") == math.inf > searches.trial_loss(trial, "SEQ")
    assert [streams.searches([run]).count("diverged") for run in (trial, diverged(trial))] == [0, 2]
    assert streams.diverged_rows(of_row, recipe) == ""
    assert streams.diverged_rows([*map(diverged, of_row[:2]), *of_row[2:]], recipe).endswith(": SEQ in 2 runs.")
