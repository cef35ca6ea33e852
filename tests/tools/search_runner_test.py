"""Searches of settings: the next trial, equal numbers of trials, hours that are printed before, and the command."""

import contextlib
import dataclasses
import json
import math
import subprocess
import time

import pytest

from memjax.cli import main as memjax_main
from memjax.settings.overrides import UsageError
from tools.recipes import RECIPES, Recipe
from tools.recipes.search import RATE, Search, Setting, find_edges, propose_trial, search_rates
from tools.results import __main__, ledger, pages, runner, search_runner, searches, streams
from tools.results.ledger import Book


def descend(loss, settings, trials):
    """Returns settings and losses of so many trials."""
    losses = []
    for _ in range(trials):
        proposal = propose_trial(losses, settings)
        losses.append((proposal, loss(proposal)))
    return losses


RATES = (Setting("--rate", 0.1),)
distance = lambda option, best: lambda settings: abs(math.log(settings[option] / best))
OPTIMA = {"inside": 0.1, "far below": 0.001, "far above": 5.0, "between": 0.13}


@pytest.mark.parametrize("best", OPTIMA.values(), ids=OPTIMA)
def test_a_search_goes_beyond_its_edges_until_the_best_lies_inside(best):
    losses = descend(distance("--rate", best), RATES, 12)
    found = min(losses, key=lambda trial: trial[1])[0]
    assert abs(math.log2(found["--rate"] / best)) <= 0.5 and not find_edges([trial for trial, _ in losses], found)
    assert len({trial["--rate"] for trial, _ in losses}) == 12


def test_two_settings_are_searched_together_and_followers_have_their_value():
    settings = (Setting("--rate", 0.1), Setting("--inner", 1.0, factor=10, also=("--outer",)))
    loss = lambda trial: distance("--rate", 0.8)(trial) + distance("--inner", 0.01)(trial)
    losses = descend(loss, settings, 14)
    best = min(losses, key=lambda trial: trial[1])[0]
    assert best == {"--rate": 0.8, "--inner": 0.01, "--outer": 0.01}
    assert all(trial["--inner"] == trial["--outer"] for trial, _ in losses)


def test_a_value_that_rounding_alone_moves_is_not_tried_again():
    # 0.025 times the square root of 2 is 0.0354 where it is rounded once, and may be 0.0353 after several steps.
    tried = ((0.1, 2.0), (0.05, 1.0), (0.025, 0.5), (0.0125, 3.0), (0.0177, 4.0), (0.0353, 4.0))
    assert propose_trial([({"--rate": rate}, loss) for rate, loss in tried], RATES) == {"--rate": 0.021}


def test_limits_and_whole_numbers_are_kept():
    settings = (Setting("--rows", 100, least=50, most=150, is_whole=True),)
    losses = descend(lambda trial: -trial["--rows"], settings, 6)
    values = [trial["--rows"] for trial, _ in losses]
    assert values[:3] == [100, 50, 150] and all(value == round(value) and 50 <= value <= 150 for value in values)
    assert find_edges([trial for trial, _ in losses], {"--rows": 150}, settings) == ()
    with pytest.raises(ValueError, match="no value is left"):
        descend(lambda trial: 0.0, (Setting("--rows", 2, least=1, most=3, is_whole=True),), 5)


def test_where_all_neighbours_of_the_best_trial_were_tried_the_next_best_one_moves():
    losses = descend(distance("--rate", 0.11), RATES, 30)
    values = sorted(trial["--rate"] for trial, _ in losses)
    assert len({*values}) == 30 and values[0] <= 0.05 and values[-1] >= 0.2
    assert min(losses, key=lambda trial: trial[1])[0]["--rate"] == pytest.approx(0.11, rel=0.02)


def test_a_trial_that_diverged_is_never_the_best():
    losses = descend(lambda trial: math.inf if trial["--rate"] >= 0.1 else trial["--rate"] ** -1, RATES, 5)
    assert min(losses, key=lambda trial: trial[1])[0]["--rate"] < 0.1


@pytest.fixture
def book(tmp_path, monkeypatch):
    """An empty ledger. Training is a file with the distance of the rate from that at which the row is best."""
    best = {"default": 0.1, "memformer": 0.8}

    def train(command, **options):
        words = command[3:]
        given = dict(zip(words[1::2], words[2::2], strict=False))
        directory = tmp_path / "runs" / given["--name"]
        directory.mkdir(parents=True)
        nats = abs(math.log(float(given[RATE]) / best[given["--variant"]]))
        results = {"evaluation": {"nats_per_token": nats}, "parameters": 5}
        config = ledger.config_to_dict(ledger.load_config(given["--config"], given["--variant"]))
        files = {"finished": {"step": 1, "attempts": 1, "results": results}, "config": config, "versions": []}
        for name, value in files.items():
            (directory / f"{name}.json").write_text(json.dumps(value))
        (directory / "metrics.jsonl").write_text("")
        started.append(given)

    started = []
    (tmp_path / "book").mkdir()
    book = Book(tmp_path / "book")
    rows = {"one": "default", "two": "memformer"}
    recipe = Recipe("", "sorting", rows, 5, search=dataclasses.replace(search_rates(0.1, 3, 2), arguments="--s 1"))
    monkeypatch.setitem(RECIPES, "r", recipe)
    monkeypatch.setattr(runner.subprocess, "run", train)
    monkeypatch.setattr(runner, "_children_seconds", lambda: 7.0 * len(started))
    monkeypatch.setattr(ledger, "commit", lambda: "0123")
    return book, started


def test_all_rows_get_as_many_trials_until_no_best_lies_at_an_edge(book, tmp_path, capsys):
    book, started = book
    assert search_runner.search("r", tmp_path / "runs", book) == []
    found = {row: searches.find_trials(book.runs(), "r", row) for row in ("one", "two")}
    assert len(found["one"]) == len(found["two"]) == 6  # one row alone would have needed three
    summary = searches.summarize_search(found["two"])
    assert math.isclose(summary.best[RATE], 0.8) and summary.edges == ()
    assert all(run.cpu_seconds == 7.0 and run.step == 1 for *_, run in found["one"])
    assert {given["--training.seed"] for given in started} == {"100"} and {given["--s"] for given in started} == {"1"}
    assert {given["--training.steps"] for given in started} == {"2"}
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("==")]
    assert lines[0].startswith(
        "r: 5 trials of 2 rows are left, 7.0 CPU seconds each: about 0.01 CPU hours, at most 0.02"
    )
    assert lines[1] == "r: best at the edge: two; 4 trials of every row"
    trained = len(started)
    assert search_runner.search("r", tmp_path / "runs", book) == [] and len(started) == trained
    assert runner.best_arguments("r", "two", book) == f"{RATE} 0.8"


def test_a_trial_goes_on_where_it_diverges_and_is_never_the_best(book, tmp_path, monkeypatch):
    book, started = book
    train = runner.subprocess.run

    def train_to_the_end(command, **options):
        train(command, **options)
        if float(started[-1][RATE]) == 0.1:  # the best of the row by its loss
            file = tmp_path / "runs" / started[-1]["--name"] / "finished.json"
            finished = json.loads(file.read_text())
            finished["results"]["skipped_at_end"] = {"stream": 3}
            file.write_text(json.dumps(finished))

    monkeypatch.setattr(runner.subprocess, "run", train_to_the_end)
    search_runner.search("r", tmp_path / "runs", book, only="one")
    trials = searches.find_trials(book.runs(), "r", "one")
    assert {given["--training.max-skipped-steps"] for given in started} == {"0"}
    assert {settings[RATE]: loss for settings, loss, _ in trials}[0.1] == math.inf
    assert searches.summarize_search(trials).best[RATE] != 0.1
    assert "--training.max-skipped-steps" not in runner.arguments("r", "one", 0, tmp_path, "")


@pytest.mark.parametrize(("nats", "is_recorded"), [(None, True), (2.0, False)])
def test_a_trial_without_a_loss_at_its_end_is_recorded_and_another_failure_is_not(
    book, tmp_path, monkeypatch, nats, is_recorded
):
    book, started = book
    train = runner.subprocess.run

    def fail(command, **options):
        train(command, **options)
        if len(started) == 2:
            directory = tmp_path / "runs" / started[-1]["--name"]
            (directory / "finished.json").unlink()
            line = {"step": 2, "attempt": 1, "kind": "evaluation", "nats": nats}
            (directory / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(runner.subprocess, "run", fail)
    with contextlib.nullcontext() if is_recorded else pytest.raises(subprocess.CalledProcessError):
        search_runner.search("r", tmp_path / "runs", book, only="one")
    trials = searches.find_trials(book.runs(), "r", "one")
    assert len(trials) == (3 if is_recorded else 1)
    if is_recorded:
        _, loss, run = trials[1]
        assert loss == math.inf and run.step == 2 and run.cpu_seconds is not None
        assert streams.searches([run]).count("diverged") == 2


def test_a_search_that_was_interrupted_goes_on_and_other_rows_catch_up(book, tmp_path, monkeypatch):
    book, started = book
    search_runner.search("r", tmp_path / "runs", book, only="two")
    assert {given["--variant"] for given in started} == {"memformer"}
    count = len(started)
    search_runner.search("r", tmp_path / "runs", book)
    assert len(started) == 2 * count and {given["--variant"] for given in started[count:]} == {"default"}


def test_a_row_that_stays_at_an_edge_is_named(book, tmp_path, monkeypatch):
    book, _ = book
    monkeypatch.setattr(Search, "most_trials", property(lambda self: 4))
    assert search_runner.search("r", tmp_path / "runs", book) == ["two"]
    assert searches.find_searches(book.runs(), "r")["two"].problem == "best at the edge of learning rate"


def test_an_estimate_trains_one_trial_alone(book, tmp_path, capsys):
    book, started = book
    search_runner.search("r", tmp_path / "runs", book, is_estimate=True)
    assert len(started) == 1 and "about 0.01 CPU hours" in capsys.readouterr().out
    search_runner.search("r", tmp_path / "runs", book, is_estimate=True)
    assert len(started) == 1


def test_a_row_that_its_search_leaves_out_has_no_trial_and_its_own_settings(book, tmp_path, monkeypatch):
    book, started = book
    search = search_rates(0.1, 3, 2)
    search = dataclasses.replace(search, settings={**search.settings, "two": ()})
    monkeypatch.setitem(RECIPES, "r", dataclasses.replace(RECIPES["r"], search=search))
    search_runner.search("r", tmp_path / "runs", book)
    assert {options["--variant"] for options in started} == {"default"}
    assert runner.best_arguments("r", "two", book) == "" != runner.best_arguments("r", "one", book)
    with pytest.raises(UsageError, match="^--only: given 'two', allowed: a part of the name of a row: one$"):
        search_runner.search("r", tmp_path / "runs", book, only="two")


def test_a_recipe_without_a_search_has_the_best_settings_of_another_one_or_waits_for_them(book, tmp_path, monkeypatch):
    book, started = book
    follower = dataclasses.replace(RECIPES["r"], search=None, settings_from={"one": "r/two"}, learning_rate=0.5)
    monkeypatch.setitem(RECIPES, "s", follower)
    with pytest.raises(UsageError, match="^r: given 0 trials of the row .*, allowed: at least 3"):
        runner.best_arguments("s", "one", book)
    assert not started
    search_runner.search("r", tmp_path / "runs", book)
    assert runner.best_arguments("s", "one", book) == f"{RATE} 0.8" != runner.best_arguments("s", "two", book)


MISTAKES = {
    "recipe": (["search", "nothing"], "argument recipe: invalid choice: 'nothing'"),
    "no search": (["search", "lifelong_lamol"], "search: given 'lifelong_lamol', allowed: a recipe with a search: "),
    "row": (
        ["search", "r", "--only", "third"],
        "--only: given 'third', allowed: a part of the name of a row: one, two",
    ),
    "trials": (["search", "r", "--trials", "1"], "--trials: given 1, allowed: at least 2"),
    "number": (["search", "r", "--trials", "many"], "argument --trials: invalid int value: 'many'"),
    "not searched yet": (
        ["run", "r"],
        "r: given 0 trials of the row 'one', allowed: at least 3; run `python -m tools.",
    ),
}


@pytest.mark.parametrize("words, line", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_trained(words, line, book, tmp_path, capsys):
    book, started = book
    assert __main__.main(["--out", str(book.folder), *words, *(["--workdir", str(tmp_path)] if line else [])]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith(f"python -m tools.results: {line}") and not started


@pytest.mark.slow
def test_the_smallest_recipe_is_searched_to_its_end(tmp_path, monkeypatch, capsys):
    recipe = Recipe("", "fact_table", {"one": "smoke"}, 3, search=search_rates(3e-3, 2, 2), arguments="")
    monkeypatch.setitem(RECIPES, "r", recipe)
    monkeypatch.setattr(search_runner.Search, "most_trials", property(lambda self: 3))
    # In this process: another one would take longer to start than all trials take.
    start = subprocess.run
    run = lambda command, **options: memjax_main(command[3:]) if "train" in command else start(command, **options)
    monkeypatch.setattr(runner.subprocess, "run", run)
    monkeypatch.setattr(runner, "_children_seconds", time.process_time)
    (tmp_path / "book").mkdir()
    words = ["--out", str(tmp_path / "book"), "search", "r", "--workdir", str(tmp_path / "runs")]
    assert __main__.main(words) == 0
    trials = Book(tmp_path / "book").runs()
    assert 2 <= len(trials) <= 3 and {trial.seed for trial in trials} == {100}
    assert {trial.recipe for trial in trials} == {"r: search"} and all(trial.cpu_seconds > 0 for trial in trials)
    assert "trials of 1 rows are left" in capsys.readouterr().out
    assert pages.check(Book(tmp_path / "book")) == []
    assert "CPU s" in (tmp_path / "book" / "tables" / "fact_table.md").read_text()
