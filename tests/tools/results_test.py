"""The tables say what the ledger, the curves and the measurements say."""

import dataclasses
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from memjax.settings.checks import validate
from memjax.settings.overrides import UsageError, apply_overrides, load_config
from memjax.training.runs import config_to_dict
from tests.tools import searches_test
from tools.measurements import compile_times
from tools.recipes import RECIPES, Recipe
from tools.recipes.recipe import BOTH_SPLITS
from tools.recipes.search import RATE, propose_trial
from tools.results import ledger, pages, perplexities, runner, speed_tables, streams, tables
from tools.results.ledger import Book, Measurement, Run
from tools.results.searches import show_settings

SCORE = {"bits_per_byte": 1.25, "nats_per_token": 2.0, "targets": 3, "memory_bytes": 4, "subsets": {}}
RUN = Run(
    recipe="r",
    row="memory",
    seed=0,
    name="r-memory-seed0",
    command="memjax train --config x",
    commit="0123456789ab",
    hardware="a processor, 2 cores",
    config="x",
    variant="default",
    difference={"training.steps": 5},
    versions=[{"jax": "1"}],
    step=5,
    attempts=1,
    results={"evaluation": SCORE, "parameters": 5},
    evaluations={},
)
FOUND = Measurement("continuous_cache", "x", "a command", "0123", "hardware", "A title", "How it was made.", {})
FOUND.facts["records"] = [{"split": "test", "scale": 1, "interpolation_weight": 0.5, "perplexity": 9.0, "targets": 7}]


def test_the_committed_tables_are_up_to_date_and_few():
    assert pages.check() == []


def test_every_page_of_a_run_names_command_commit_and_hardware(tmp_path):
    book = Book(tmp_path)
    book.add(RUN)
    pages.write(book)
    page = (tmp_path / "tables" / "r.md").read_text()
    assert all(part in page for part in ("1.2500", RUN.command, RUN.commit, RUN.hardware))
    assert "(tables/r.md): 1 runs" in (tmp_path / "README.md").read_text() and pages.check(book) == []
    (tmp_path / "tables" / "r.md").write_text("something better")
    (tmp_path / "tables" / "s.md").write_text("something else")
    assert [problem.partition(":")[0] for problem in pages.check(book)] == ["r.md", "tables/s.md"]


def test_a_run_or_measurement_made_again_replaces_the_older_one(tmp_path):
    book = Book(tmp_path)
    for step in (5, 6):
        book.add(dataclasses.replace(RUN, step=step), [{"kind": "train", "step": step}])
        book.add(dataclasses.replace(RUN, seed=1))
        book.measure(dataclasses.replace(FOUND, commit=str(step)))
    assert [(run.seed, run.step) for run in book.runs()] == [(0, 6), (1, 5)]
    assert book.curves("r")[RUN.key] == [{"kind": "train", "step": 6}]
    assert [one.commit for one in book.measurements()] == ["6"]


def test_the_history_has_the_commits_of_all_runs_but_those_that_the_page_names():
    git = lambda *words, **how: (
        subprocess.run(["git", *words], cwd=ledger.ROOT, capture_output=True, text=True, check=False, **how).stdout
    )
    commits = {run.commit.rstrip("+") for run in Book().runs()}
    assert {*pages.LOST_COMMITS} < commits
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("no history here")
    found = git("cat-file", "--batch-check", input="\n".join(sorted(commits))).splitlines()
    assert {line.split()[0] for line in found if line.endswith("missing")} <= {*pages.LOST_COMMITS}


def test_writers_side_by_side_lose_no_line(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: Book(tmp_path).add(dataclasses.replace(RUN, seed=seed)), range(24)))
    assert sorted(run.seed for run in Book(tmp_path).runs()) == [*range(24)]


def test_a_trial_in_the_ledger_is_found_under_the_names_that_options_have_today():
    run = dataclasses.replace(RUN, config="lifelong_text", variant="replay", row="replay, --lifelong.method.rows 16")
    assert run.key_of_today[1] == "replay, --lifelong.method.replay-batch-size 16"


def test_seeds_are_shown_as_mean_and_range():
    other = dataclasses.replace(RUN, seed=1, results={**RUN.results, "evaluation": {**SCORE, "bits_per_byte": 1.35}})
    assert "| memory | 0, 1 | 1.3000 (1.2500 to 1.3500) |" in tables.rows([RUN, other])


def test_too_many_files_and_too_long_cells_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MOST_FILES", 2)
    book = Book(tmp_path)
    book.add(RUN)
    pages.write(book)
    assert pages.check(book) == [f"{tmp_path.name}: given 3 files, allowed: at most 2"]
    monkeypatch.setattr(pages, "MOST_FILES", 80)
    text = tmp_path.parent / "TEXT.md"
    text.write_text("| short | " + "long " * 60 + "|\n")
    monkeypatch.setattr(pages, "TEXTS", (text,))
    monkeypatch.setattr(Book, "__eq__", lambda self, other: True)
    assert [problem.partition(",")[0] for problem in pages.check(book)] == ["TEXT.md: a cell of 299 characters"]


def test_a_marker_that_names_nothing_is_refused():
    with pytest.raises(ValueError, match="result: given 'nothing', allowed: transformer_xl, "):
        pages.marked("<!-- result: nothing --><!-- end -->", Book())


def test_a_curve_keeps_evaluations_and_its_last_line():
    train = [{"kind": "train", "step": step} for step in range(1, 201)]
    lines = [*train[:100], {"kind": "evaluation", "step": 100}, *train[100:], {"kind": "evaluation", "step": 200}]
    kept = ledger.thinned(lines, most=10)
    assert len(kept) == 10 and [line["step"] for line in kept if line["kind"] == "evaluation"] == [100, 200]
    steps = [line["step"] for line in kept if line["kind"] == "train"]
    assert {100, 200} < set(steps) and steps == sorted(steps) and ledger.thinned(lines[:5], most=10) == lines[:5]


def test_a_difference_restores_the_configuration_that_it_was_made_from():
    shipped = config_to_dict(load_config("memory_gain", "default"))
    given = config_to_dict(load_config("memory_gain", "novels"))
    given["training"]["steps"] = 7
    changes = ledger.difference(shipped, given)
    assert changes["training.steps"] == 7 and changes["data.source"]["type"] == "Novels"
    assert {**ledger.restored(shipped, changes), "name": given["name"]} == given
    assert "name" not in changes and ledger.difference(given, given) == {}


def test_records_are_kept_apart_from_what_they_share():
    records = [{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}]
    assert ledger.together(records) == {"a": 1, "records": [{"b": 2}, {"b": 3, "c": 4}]}
    assert ledger.apart(ledger.together(records)) == records


def test_commands_do_not_name_where_the_data_lay():
    words = ["memjax", "--path", "/somewhere/of/mine/novels.tar", "a/b"]
    assert ledger.without_paths(words) == ["memjax", "--path", "novels.tar", "a/b"]


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Commands that were started by the runner: runs are finished without being trained."""
    started = []

    def run(command, **options):
        words = command[3:]
        started.append(words)
        given = dict(zip(words[1::2], words[2::2], strict=False))
        if words[0] == "train":
            directory = tmp_path / "runs" / given["--name"]
            directory.mkdir(parents=True)
            config = load_config(given["--config"], given["--variant"])
            config.training.schedule.learning_rate = float(given.get(RATE, 0))
            results = {"evaluation": SCORE, "parameters": 5}
            files = {"finished": {"step": 1, "attempts": 1, "results": results}, "config": config_to_dict(config)}
            for name, value in {**files, "versions": []}.items():
                (directory / f"{name}.json").write_text(json.dumps(value))
            (directory / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
        score = json.dumps({"run": "/somewhere/r", "perplexity": 40.0, "targets": 9, "memory_bytes": 8})
        refused = words[0] == "usage"
        return runner.subprocess.CompletedProcess(command, 2 * refused, stdout="" if refused else score)

    monkeypatch.setattr(runner.subprocess, "run", run)
    monkeypatch.setattr(ledger, "commit", lambda: "0123")
    return started


def test_a_recipe_trains_what_the_ledger_does_not_have(tmp_path, monkeypatch, commands):
    rows = {"first": "default", "then": "default --training.init-from @r/first --k $MEMJAX_PLACE/x"}
    recipe = Recipe("", "sorting", rows, 5, learning_rate=0.1, arguments="--k 1", usage=True)
    recipe = dataclasses.replace(recipe, evaluations=BOTH_SPLITS)
    monkeypatch.setitem(RECIPES, "r", recipe)
    book, runs = Book(tmp_path / "book"), tmp_path / "runs"
    (tmp_path / "book").mkdir()
    with pytest.raises(UsageError, match="MEMJAX_PLACE: not set"):
        runner.run("r", runs, "then", book)
    monkeypatch.setenv("MEMJAX_PLACE", "/here")
    runner.run("r", runs, "then", book)  # what it begins with is trained, and not recorded
    trained = [words for words in commands if words[0] == "train"]
    names = [words[words.index("--name") + 1] for words in trained]
    assert names == ["r-default-seed0", "r-default-after_first-seed0"]
    first = str(runs / "r-default-seed0")
    # After those of all rows: a row's own arguments win.
    assert trained[1][-10:-4] == ["--k", "1", "--training.init-from", first, "--k", "/here/x"]
    assert [run.row for run in book.runs()] == ["then"]
    commands.clear()
    runner.run("r", runs, "", book)
    assert [words[0] for words in commands] == ["eval", "eval", "usage"]  # the first one was trained already
    found = {run.row: run for run in book.runs()}
    assert found["first"].evaluations["test"]["run"] == "r-default-seed0" and "usage" not in found["first"].evaluations
    assert "/here" not in found["then"].command and found["first"].commit == "0123"
    assert tables.numbers(found["first"], recipe)["test perplexity"] == 40
    assert book.curves("r")[found["first"].key] == [{"kind": "train", "step": 1}]
    commands.clear()
    runner.run("r", runs, "", book)
    assert commands == []
    monkeypatch.setitem(RECIPES, "r", dataclasses.replace(recipe, learning_rate=0.0))
    runner.run("r", runs, "", book)  # without a rate of its own, a recipe has the one of the configuration
    assert commands == []


OWN_MODEL = [name for name, recipe in RECIPES.items() if "--from" not in recipe.arguments.split()]
"""Recipes whose configs have the whole model. That of the others is the model of a run."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "memory_gain_python" else pytest.mark.laws) for name in OWN_MODEL]
)
def test_rows_are_valid_and_have_a_directory_each(name, monkeypatch, tmp_path):
    recipe = RECIPES[name]
    for file in ("", recipe.arguments, *recipe.variants.values()):
        for word in (f"${recipe.data_path}", *file.split()):
            if word.startswith("$") and len(word) > 1:
                monkeypatch.setenv(word[1:].partition("/")[0], str(tmp_path))
    for row in recipe.variants:
        given = runner.arguments(
            name, row, 0, tmp_path, "--training.schedule.learning-rate 0.1", next(iter(recipe.orders), "")
        )
        config = apply_overrides(load_config(recipe.config, given[3]), given[4:], prog="memjax train")
        validate(config)
        if recipe.search:
            trial = show_settings(propose_trial([], recipe.search.settings_of(row)))
            given = runner.arguments(name, row, 0, tmp_path, f"{trial} {recipe.search.arguments}", is_trial=True)
            validate(apply_overrides(load_config(recipe.config, given[3]), given[4:], prog="memjax train"))
        for asked in (recipe.evaluations | recipe.own_evaluations.get(row, {})).values():
            validate(apply_overrides(config, asked.split(), prog="memjax eval"))
    assert set(recipe.own_evaluations) <= set(recipe.variants)
    names = [runner.run_name(name, row, 0) for row in recipe.variants]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["sorting_horizon", "sorting_curves"])
def test_rows_of_the_horizon_have_the_gradients_that_they_name(name, tmp_path):
    for row in RECIPES[name].variants:
        given = runner.arguments(name, row, 0, tmp_path, "")
        config = apply_overrides(load_config("sorting", given[3]), given[4:], prog="memjax train")
        horizon = config.training.segments_per_update - config.training.burn_in_segments
        assert int(row.split()[1].rstrip(",")) == horizon
        assert config.model.num_slots == (int(row.split()[3]) if "slots" in row else 64)
        tokens = config.data.source.length + 1 + config.data.source.num_symbols  # an update is a whole document
        assert -(-tokens // config.data.segment_length) == config.training.segments_per_update


def test_every_measurement_has_a_table():
    kinds = {one.kind for one in Book().measurements()}
    assert kinds <= {*pages.TABLES, "plan", "flops", "note", "learns"}
    shown = {kind for kinds in pages.MEASURED.values() for kind in kinds}
    assert kinds - {"flops"} <= shown


def test_a_section_says_where_it_comes_from_and_how_it_was_made():
    lines = pages.section(FOUND).splitlines()
    assert lines[0] == "## A title" and lines[2] == "`a command`; commit 0123; hardware. How it was made."
    assert lines[-1] == "| test | 1 | 0.5 | 9.00 | 7 |"


def test_the_gap_that_is_closed():
    label, nats = "validation, 60 segments", {"local cache only": 4.0, "memory from the start": 3.0}
    runs = [
        dataclasses.replace(RUN, row=row, evaluations={label: {"nats_per_token": nats.get(row, 0)}})
        for row in (*nats, "goes on with the memory", "goes on without")
    ]
    lines = [{"kind": "train", "step": 100, "nats_per_token": 9.0}]
    lines += [{"kind": "evaluation", "step": 100, "nats_per_token": 3.5}]
    shown = tables.gap(runs, {run.key: lines for run in runs})
    assert "| 0 |  |  | 4.0000 |" in shown and "| 100 | 3.5000 | 50 % | 3.5000 |" in shown


def test_usage_and_curves_of_runs():
    values = {"usage": 1.0, "top_usage": 0.5, "count_divergence": 0.25, "weight_divergence": 0.125}
    run = dataclasses.replace(RUN, evaluations={"usage": {"tables": {"layer_01/values": values}}})
    assert "| memory | usage | layer_01/values | 1.0000 | 0.5000 | 0.2500 | 0.1250 |" in tables.usage([run])
    assert tables.usage([RUN]) == "" and tables.numbers(run)["slots: top usage"] == 0.5
    lines = [{"kind": "evaluation", "step": 250, "perplexity": 30.0}]
    assert "| memory, seed 0 | 30.00 |" in tables.curve([run], {run.key: lines}, "perplexity")


def test_quality_stands_beside_its_cost_the_best_first():
    worse = dataclasses.replace(RUN, seed=1, results={**RUN.results, "evaluation": {**SCORE, "bits_per_byte": 2.0}})
    costs = {"memory, seed 1": 2e6, "memory, seed 0": 1e6}
    found = dataclasses.replace(FOUND, facts={"quality": "bits per byte", "flops per token": costs})
    lines = tables.flops(found, [worse, RUN], None).splitlines()
    assert lines[2:] == [
        "| memory, seed 0 | 1.2500 | 1.000 | 0.0 | 5 |",
        "| memory, seed 1 | 2.0000 | 2.000 | 0.0 | 5 |",
    ]


def test_rows_and_bins_of_spalm():
    row = {"validation": 3.0, "test": 2.0, "parameters": 1234}
    mixed = {**row, "test": 1.0, "weight": 0.25, "temperature": 4.0}
    names = ("no_memory", "transformer_xl", "compressive", "spalm")
    bins = {"0.50": 0.1, "1.00": 0.9}
    facts = {
        "rows": {name: row for name in names} | {f"{name}_knn_lm": mixed for name in names[1:]},
        "gate": {split: bins for split in ("validation", "test")},
        "mean_gate": {"validation": 0.8, "test": 0.7},
    }
    lines = tables.spalm(dataclasses.replace(FOUND, facts=facts)).splitlines()
    assert "| Transformer, no memory | 1,234 |  |  | 20.09 | 7.39 | +0.0 % |" in lines
    assert "| SPALM + kNN-LM | 1,234 | 0.25 | 4 | 20.09 | 2.72 | -63.2 % |" in lines
    assert "| up to 0.50 | 0.100 | 0.100 |" in lines and "| mean | 0.800 | 0.700 |" in lines


def test_hits_of_neighbors_stand_beside_those_of_validation():
    shares = {"train": [0.2, 0.35], "validation": [0.19, 0.3]}
    row = {"trained_on": "all articles", "learned": True, "own_article": False, "target_among": shares}
    nats = {"validation": 3.0, "test": 2.0}
    facts = {"rows": [row], "base": nats, "knn_lm": {**nats, "test": 1.0, "weight": 0.25, "temperature": 4.0}}
    lines = tables.neighbor_hits(dataclasses.replace(FOUND, facts=facts)).splitlines()
    assert "| all articles | yes | no | 35.0 % | 30.0 % | +5.0 | +1.0 |" in lines
    assert "| + kNN-LM | 0.25 | 4 | 20.09 | 2.72 | -63.2 % |" in lines


def test_decoding_has_medians_and_their_spread():
    row = {"contender": "a", "state_bytes": 10, "flops_per_token": 7, "programs": 1}
    records = [
        {**row, "length": 64, "tokens_per_second": [3.0, 1.0, 2.0]},
        {**row, "length": 128, "tokens_per_second": [4000.0, 4000.0, 4000.0], "state_bytes": 20},
    ]
    found = dataclasses.replace(FOUND, facts={**ledger.together(records), "jax": "1"})
    table = speed_tables.decode_speed(found)
    assert "| 64 | 2 (1 to 3) |" in table and "| 128 | 4,000 (4,000 to 4,000) |" in table
    assert "| state bytes | 10 to 20 |" in table and "| programs | 1 |" in table


def test_compilation_has_a_row_for_each_way_and_its_sum():
    seconds = {"tracing": 0.5, "lowering": 0.25, "machine code": 2.0}
    records = [{"layers": name, "equations": 1234, "cpu_seconds": seconds} for name in ("unrolled", "scanned")]
    found = dataclasses.replace(FOUND, facts={**ledger.together(records), "jax": "1"})
    table = speed_tables.compile_times(found)
    assert "| layers | equations | tracing | lowering | machine code | in all |" in table
    assert "| scanned | 1,234 | 0.50 | 0.25 | 2.00 | 2.75 |" in table


def test_phases_of_a_compilation_leave_out_waiting():
    seconds = {
        "PjRtCpuClient::Compile": 10,
        "HLO passes through layout assignment (jit_f)": 2,
        "HLO passes after layout assignment (jit_f)": 1,
        "ThunkEmitter::ConsumeKernels": 1,
        "JitCompiler::Compile": 4,
        "FusionCompiler::Compile": 3,
        "TaskDispatcher::dispatch": 7,
        "CSEPass": 2,
    }
    events = [{"name": name, "dur": 1e6 * value} for name, value in seconds.items()]
    phases = compile_times.thread_seconds(events)
    assert phases == {"HLO passes": 3.0, "kernels of fusions": 3.0, "machine code": 7.0, "other": 2.0}


def test_configurations_name_tables_that_exist():
    named = {
        name
        for file in (ledger.ROOT.parents[1] / "configs").glob("*.py")
        for name in re.findall(r"tools/results/([\w/.]*\w)", file.read_text())
    }
    assert named and all((ledger.ROOT / name).exists() for name in named)


def _stream(row, seed, average):
    matrix = [[0.5, 0.1], [average - 0.1, average + 0.1]]
    facts = {"measure": "accuracy", "tasks": ["a", "b"], "scores": matrix, "average": average, "forgetting": 0.25}
    return dataclasses.replace(RUN, row=row, seed=seed, evaluations={"stream": {**facts, "learning_accuracy": 0.6}})


def test_rows_of_streams_are_compared_over_orders_and_seeds():
    orders = {"order 1": "--lifelong.task-order 0 1", "order 2": "--lifelong.task-order 1 0"}
    recipe = Recipe("", "lifelong_text", {"one": "default", "two": "replay"}, 0, orders=orders, seeds=(0, 1))
    recipe = dataclasses.replace(recipe, controls={"two": ("one",)})
    given = {"one": (0.3, 0.5, 0.2, 0.4), "two": (0.5, 0.69, 0.4, 0.6)}
    runs = [
        _stream(f"{row}, order {1 + n // 2}", n % 2, value)
        for row, some in given.items()
        for n, value in enumerate(some)
    ]
    found = streams.methods(runs, recipe)
    assert "| one | 4 of 4 | 35.0 | 7.1 | 14.1 | 40.0 | 30.0 | 60.0 | 25.0 |  |" in found
    searches = dict.fromkeys(given, searches_test.SEARCHED)
    assert "| two | one | +19.75 ± 0.25 | 2 orders |  | too few |" in streams.differences(runs, recipe, searches)
    assert "| two | one | +19.75 ± 0.25 | 2 orders |  | not searched |" in streams.differences(runs, recipe, {})
    assert "| one | 47.5 | 25.0 |" in streams.ages(runs, recipe)
    assert "| b | 30.0 | 50.0 |" in streams.matrices(runs, recipe)
    of_order_1 = [run for run in runs if "order 1" in run.row]
    assert "| two | 2 of 4 | 59.5 |" in streams.methods(of_order_1, recipe)
    assert "| one (1 of 2 orders) | " in streams.ages(of_order_1, recipe)


def test_orders_with_seeds_of_their_own_are_units_that_differ_in_all_draws():
    orders = {f"order {n}": f"--lifelong.task-order {tasks}" for n, tasks in enumerate(("0 1 2", "1 0 2", "2 1 0"), 1)}
    shared = Recipe("", "lifelong_text", {"one": "default"}, 0, orders=orders, seeds=(4,))
    own = dataclasses.replace(shared, own_seeds=True)
    assert [shared.seeds_of("one", order) for order in orders] == [(4,)] * 3
    assert [own.seeds_of("one", order) for order in orders] == [(4,), (5,), (6,)]
    runs = [_stream(f"one, order {n}", 3 + n, n / 10) for n in (1, 2, 3)]
    assert streams.scores(runs, own, "one", streams.AVERAGE).tolist() == [[10.0], [20.0], [30.0]]
    assert "| one | 1 of 3 | 10.0 |" in streams.methods(runs, shared)
    assert "seed 4, so that what is said holds for one initialisation" in streams.methods(runs, shared)
    said = streams.describe_units(own)
    assert (
        "a seed of its own (4 to 6)" in said and "end in 2 of the 3 tasks; as many drawn at random end in 2.1" in said
    )
    assert streams.describe_units(dataclasses.replace(own, orders={"order 1": ""})) == ""
    partly = dataclasses.replace(own, variants={"one": "default", "two": "replay"}, one_seed=("two",))
    assert [partly.seeds_of(row, "order 3") for row in partly.variants] == [(6,), (4,)]
    assert "In the rows two all have seed 4." in streams.describe_units(partly)


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.orders])
def test_all_runs_of_a_stream_have_the_seeds_of_their_order(name):
    recipe = RECIPES[name]
    contenders = recipe.contenders()
    assert [
        run.key for run in Book().runs() if run.recipe == name and run.seed not in recipe.seeds_of(*contenders[run.row])
    ] == []


def test_averages_of_methods_stand_by_size_whichever_recipe_their_runs_are_of():
    sizes = {"one": {"10": "small/one, 10 texts", "20": "large/one"}, "two": {"10": "small/two", "20": "large/two"}}
    orders = {"order 1": "", "order 2": ""}
    recipe = Recipe("", "lifelong_text", {}, 0, orders=orders, rows_by_size=sizes)
    values = {("small", "one, 10 texts", "order 1"): 0.3, ("small", "one, 10 texts", "order 2"): 0.5}
    values |= {
        ("large", "one", "order 2"): 0.6,
        ("large", "two", "order 1"): 0.7,
        ("large", "one, 10 texts", "order 1"): 0,
    }
    runs = [
        dataclasses.replace(_stream(f"{row}, {order}", 0, value), recipe=source)
        for (source, row, order), value in values.items()
    ]
    found = streams.averages_by_size(runs, recipe)
    assert "| row | 10 | 20 |" in found and "| two |  | 70.0" in found
    assert "| one | 40.0 ± 14.1 (2) | 60.0" in found
    assert streams.averages_by_size(runs, dataclasses.replace(recipe, rows_by_size={})) == ""


def test_where_candidates_grow_there_is_no_column_of_forgetting():
    fixed = Recipe("", "lifelong_text", {"one": ""}, 0, orders={"order 1": ""})
    growing, runs = dataclasses.replace(fixed, candidates_grow=True), [_stream("one, order 1", 0, 0.3)]
    with_column, without = (streams.methods(runs, recipe) for recipe in (fixed, growing))
    assert "| after its own task | forgetting | last task |" in with_column and "forgetting, and the" in with_column
    assert "| after its own task | last task |" in without and "there is no column of forgetting" in without
    cells = [found.splitlines()[-1].count("|") for found in (with_column, without)]
    assert cells[0] == cells[1] + 1


def test_streams_of_questions_are_shown_in_f1_and_exact_match():
    recipe = Recipe("", "lifelong_questions", {"one": "default"}, 0, orders={"order 1": ""}, seeds=(0, 1))

    def run(seed, average):
        found = _stream("one, order 1", seed, average)
        facts = found.evaluations["stream"]
        percent = {name: 100 * value for name, value in facts.items() if isinstance(value, float)}
        matrix = [[100 * value for value in line] for line in facts["scores"]]
        told = {**facts, **percent, "scores": matrix, "measure": "f1", "exact_match": 50 * average}
        return dataclasses.replace(found, evaluations={"stream": told})

    runs = [run(0, 0.4), run(1, 0.6)]
    assert "Average F1 over the tasks" in streams.methods(runs, recipe)
    assert "| one | 2 of 2 | 50.0 |" in streams.methods(runs, recipe)
    assert "Exact match" in streams.beside(runs, recipe) and "| one | 25.0 |" in streams.beside(runs, recipe)
    assert "F1 in percent" in streams.matrices(runs, recipe) and "| a | 50.0 | 10.0 |" in streams.matrices(runs, recipe)
    assert streams.beside([_stream("one, order 1", 0, 0.5)], recipe) == ""
    for facts in (found.evaluations["stream"] for found in runs):
        facts["after_each"] = {"of those learned": [30.0, 10.0]}
    found = streams.wholes(runs, recipe)
    assert "| F1 after task | 1 | 2 |" in found and "| one, of those learned | 30.0 | 10.0 |" in found


def test_both_sides_of_a_method_stand_side_by_side():
    ours = [{"accuracies": [0.5, 0.7], "seconds": 2.0, "compile_seconds": 4.0}] * 2
    theirs = [{"accuracies": [0.5, 0.5], "seconds": seconds} for seconds in (6.0, 8.0)]
    facts = {"rows": [{"method": "SEQ", "memjax": ours, "Avalanche": theirs}]}
    shown = streams.avalanche(dataclasses.replace(FOUND, kind="avalanche", facts=facts))
    assert shown.endswith("| SEQ | 60.0 (60.0 to 60.0) | 50.0 (50.0 to 50.0) | +10.0 | 2.00 | 7.00 | 3.5 | 4.0 |")


def test_contenders_of_a_recipe():
    recipe = Recipe("", "sorting", {"one": "default"}, 5)
    assert recipe.contenders() == {"one": ("one", "")}
    recipe = dataclasses.replace(recipe, orders={"a": "", "b": ""})
    assert list(recipe.contenders()) == ["one, a", "one, b"]


def test_a_stream_of_texts_has_perplexities_of_which_less_is_better():
    told = {"measure": "nats_per_token", "tasks": ["a", "b"], "kept_bytes": {"total": 0}, "cost": {}}
    stream = lambda last: {"stream": {**told, "scores": [[1.0, 3.0], last]}}
    rows = {"plain": [2.0, 1.0], "method": [1.0, 1.0]}
    runs = [
        dataclasses.replace(RUN, row=f"{row}, order 1", seed=seed, evaluations=stream(last))
        for row, last in rows.items()
        for seed in range(3)
    ]
    variants = dict.fromkeys(rows, "default")
    recipe = Recipe("", "x", variants, steps=0, seeds=(0, 1, 2), controls={"method": ("plain",)})
    assert perplexities.is_of_nats(runs)
    lines = perplexities.methods(runs, recipe).splitlines()
    # exp(1.5) in the end; the first task has grown from e to e squared.
    assert lines[-2].startswith("| plain | 3 | 4.5 ± 0.0 | 4.7 ± 0.0 | 2.000 (1.000) |")
    assert lines[-1].startswith("| method | 3 | 2.7 ± 0.0 | 0.0 ± 0.0 |")
    searches = dict.fromkeys(rows, searches_test.SEARCHED)
    assert "| method | plain | -0.5000 ± 0.0000 | 3 seeds | <0.001 | gain |" in perplexities.differences(
        runs, recipe, searches
    )
    assert "| 3 seeds |  | not searched |" in perplexities.differences(runs, recipe, {})
    # What no run says stays open; what some say is their mean.
    assert perplexities.costs(runs, recipe).splitlines()[-1].endswith("|  |  |  |  |  |  | 0.0 |  |")
    told = {"update_seconds": 90.0, "growth_seconds": 1.5, "skipped": 2, "parameters": 1000, "growths": [[2.0, 2.25]]}
    told |= {"seconds_after_each": [40.0, 90.0], "compilation_seconds": 8.0, "spikes": 3}
    costly = [
        dataclasses.replace(run, evaluations={"stream": {**run.evaluations["stream"], "cost": told}}) for run in runs
    ]
    assert (
        "| 40 / 90 | 1.5 | 8 | 2 | 3 | 1,000 | 0.0 | 2.000 → 2.250 |"
        in perplexities.costs(costly, recipe).splitlines()[-1]
    )


def test_what_a_stream_costs_is_in_its_table():
    recipe = Recipe("", "lifelong_lamol", {"one": "lamol", "two": "default"}, 0, orders={"order 1": ""}, seeds=(0, 1))
    runs = [_stream(f"{row}, order 1", seed, 0.5) for row in ("one", "two") for seed in (0, 1)]
    assert streams.costs(runs, recipe) == ""

    def with_cost(run, **cost):
        kept = {"memory": 1_500_000, "teachers": 500_000, "total": 2_000_000}
        told = {**run.evaluations["stream"], "kept_bytes": kept, "cost": cost}
        return dataclasses.replace(run, evaluations={"stream": told})

    writes = {"update_seconds": 30.0, "generation_seconds": 4.0, "samples": 20, "seconds_per_test_example": 0.25}
    writes |= {"compilation_seconds": 3.0, "parameters": 4000}
    costly = [with_cost(run, **writes) for run in runs[:2]] + [with_cost(run, update_seconds=10.0) for run in runs[2:]]
    lines = streams.costs(costly, recipe).splitlines()
    kept = "2.0 (memory 1.5, teachers 0.5)"
    assert f"| one | 2 | 4,000 | {kept} | 30.0 | 3.0 | 4.0 | 5.0 | 250.0 |" in lines
    assert f"| two | 2 |  | {kept} | 10.0 |  |  |  |  |" in lines


@pytest.mark.parametrize(("share", "words"), streams.SHARES.items())
def test_shares_of_written_answers_are_shown(share, words):
    recipe = Recipe("", "lifelong_lamol", {"one": "lamol", "two": "default"}, 0, orders={"order 1": ""}, seeds=(0, 1))
    runs = [_stream(f"{row}, order 1", seed, 0.5) for row in ("one", "two") for seed in (0, 1)]
    assert streams.shares_of_answers(runs, recipe) == ""
    scored = [
        dataclasses.replace(run, results={"evaluations": {"a": {share: percent}, "b": {"score": 1.0}}})
        for run, percent in zip(runs, (10.0, 20.0, 0.0, 1.0), strict=True)
    ]
    lines = streams.shares_of_answers(scored, recipe).splitlines()
    assert lines[0].startswith(f"Share of {words}") and lines[2] == "| row | a |"
    assert lines[-2:] == ["| one | 15.0 |", "| two | 0.5 |"] and len(lines) == 6


def test_written_texts_stand_beside_real_ones():
    recipe = Recipe("", "lifelong_lamol", {"one": "lamol", "two": "default"}, 0, orders={"order 1": ""}, seeds=(0, 1))
    runs = [_stream(f"{row}, order 1", seed, 0.5) for row in ("one", "two") for seed in (0, 1)]
    assert streams.written_texts(runs, recipe) == ""
    facts = [{"a": {"kept": 0.5, "real_nats": 4.0}}, {"a": {"kept": 1.0, "of_task": 0.5}, "b": {"written_nats": 2.0}}]
    wrote = [
        dataclasses.replace(run, evaluations={"stream": {**run.evaluations["stream"], "written": written}})
        for run, written in zip(runs, facts, strict=False)
    ]
    lines = streams.written_texts(wrote + runs[2:], recipe).splitlines()
    assert lines[-2:] == ["| one | a | 2 | 75.0 | 50.0 |  | 4.0 |", "| one | b | 1 |  |  | 2.0 |  |"]
