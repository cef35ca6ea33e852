"""The results table says what the records and logs say."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from tools.results import recipes, records
from tools.results.recipes import RECIPES
from tools.results.records import Record

RECORD = Record(
    recipe="a recipe",
    row="memory",
    seed=0,
    command="memjax train --config x",
    commit="0123456789ab",
    hardware="a processor, 2 cores",
    log="a/memory-seed0",
    numbers={"bits per byte": 1.25},
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, file in (("RECORDS", "records.jsonl"), ("LOGS", "logs"), ("TABLE", "README.md")):
        monkeypatch.setattr(records, name, tmp_path / file)
    monkeypatch.setattr(records.read, "__defaults__", (tmp_path / "records.jsonl",))
    return tmp_path


def run_directory(path, bits_per_byte=1.25):
    path.mkdir()
    (path / "finished.json").write_text(json.dumps({"results": {"evaluation": {"bits_per_byte": bits_per_byte}}}))
    (path / "config.json").write_text(json.dumps({"source": {"path": "/somewhere/of/mine/novels.tar"}}))
    return path


def test_the_committed_table_is_up_to_date():
    assert records.check() == []


def test_every_number_stands_with_command_commit_hardware_and_log(folder):
    records.add(RECORD, run_directory(folder / "run"))
    records.write_table()
    table = (folder / "README.md").read_text()
    for part in ("1.2500", RECORD.command, RECORD.commit, RECORD.hardware, f"logs/{RECORD.log}"):
        assert part in table
    assert records.check() == []


def test_a_run_recorded_again_replaces_its_record(folder):
    records.add(RECORD, run_directory(folder / "run"))
    records.add(dataclasses.replace(RECORD, numbers={"bits per byte": 1.5}), run_directory(folder / "again", 1.5))
    assert [record.numbers for record in records.read()] == [{"bits per byte": 1.5}]


def test_seeds_are_shown_as_mean_and_range(folder):
    records.add(RECORD, run_directory(folder / "run"))
    other = dataclasses.replace(RECORD, seed=1, log="a/memory-seed1", numbers={"bits per byte": 1.35})
    records.add(other, run_directory(folder / "other", 1.35))
    assert "1.3000 (1.2500 to 1.3500)" in records.table(records.read())


def test_logs_do_not_name_where_the_data_lay(folder):
    records.add(RECORD, run_directory(folder / "run"))
    assert json.loads((folder / "logs" / RECORD.log / "config.json").read_text())["source"]["path"] == "novels.tar"


def test_a_number_without_a_log_is_found(folder):
    records.add(dataclasses.replace(RECORD, numbers={"bits per byte": 0.5}), run_directory(folder / "run"))
    records.write_table()
    assert records.check() == ["a/memory-seed0: bits per byte not in its log"]
    (folder / "logs" / RECORD.log / "finished.json").unlink()
    assert records.check() == ["a/memory-seed0: no finished.json; the record has no log"]


def test_a_table_that_was_edited_is_found(folder):
    records.add(RECORD, run_directory(folder / "run"))
    records.write_table()
    (folder / "README.md").write_text("something better")
    assert len(records.check()) == 1


def test_a_recipe_with_evaluations_reads_its_numbers_off_them(folder, monkeypatch):
    def memjax(command, **arguments):
        if command[3] == "eval":
            split = command[-1]
            score = {"perplexity": {"validation": 40.0, "test": 50.0}[split], "targets": 9, "memory_bytes": 8}
            return subprocess.CompletedProcess(command, 0, stdout=json.dumps(score))
        directory = folder / "r-memory-seed0"
        directory.mkdir()
        (directory / "finished.json").write_text(json.dumps({"results": {"parameters": 7}}))
        return subprocess.CompletedProcess(command, 0)

    for name in ("commit", "hardware"):
        monkeypatch.setattr(recipes, name, lambda: "")
    monkeypatch.setattr(subprocess, "run", memjax)
    made = recipes.record("r", "memory", 0, [], str(folder), "r/memory-seed0", evaluations=recipes.BOTH_SPLITS)
    assert made.numbers["validation perplexity"] == 40 and made.numbers["test perplexity"] == 50
    records.write_table()
    assert records.check() == []
    (folder / "logs" / made.log / "evaluation_test.json").unlink()
    assert records.check() == ["r/memory-seed0: test perplexity not in its log"]


def test_a_recipe_with_scripts_records_their_numbers(folder, monkeypatch):
    def run(command, **arguments):
        directory = folder / "r-memory-seed0"
        if "tools.results.translation" in command:
            assert command[-4:-2] == ["--split", "test"]
            file = Path(command[command.index("--out") + 1])
            file.write_text(json.dumps({"numbers": {"test BLEU": 12.5}}))
        else:
            directory.mkdir()
            results = {"evaluation": {"bits_per_byte": 1.0, "subsets": {}, "nats_per_token": 2.0, "targets": 3}}
            results["evaluation"]["memory_bytes"], results["parameters"] = 4, 5
            (directory / "finished.json").write_text(json.dumps({"results": results}))
        return subprocess.CompletedProcess(command, 0)

    for name in ("commit", "hardware"):
        monkeypatch.setattr(recipes, name, lambda: "")
    monkeypatch.setattr(subprocess, "run", run)
    scripts = ("tools.results.translation --split test",)
    made = recipes.record("r", "memory", 0, [], str(folder), "r/memory-seed0", scripts=scripts)
    assert made.numbers["test BLEU"] == 12.5 and made.numbers["parameters"] == 5
    assert (folder / "logs" / made.log / "evaluation_translation.json").exists()
    records.write_table()
    assert records.check() == []


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recipes_name_variants_that_exist(recipe):
    from memjax.overrides import load_config

    for variant in recipe.variants.values():
        assert load_config(recipe.config, variant.split()[0]).name


@pytest.mark.parametrize("row", RECIPES["sorting_small"].variants)
def test_rows_of_sorting_are_valid_and_named_by_what_they_are(row):
    from memjax.overrides import apply_overrides, load_config
    from memjax.settings.relations import validate

    recipe = RECIPES["sorting_small"]
    variant, *further = recipe.variants[row].split()
    config = apply_overrides(load_config(recipe.config, variant), [*further, *recipe.arguments], prog="memjax train")
    validate(config)
    attention, number = config.model.attention, [int(word) for word in row.split() if word.isdigit()]
    size = getattr(attention, "compression_rate", None) or getattr(attention, "num_basis", None)
    assert number in ([], [size]) and attention.memory_length == (256 if row == "Transformer-XL" else 128)
    assert getattr(attention, "loss", "attention") == ("none" if "no reconstruction" in row else "attention")
    labels = [recipes._label(other) for other in recipe.variants.values()]
    assert labels.count(recipes._label(recipe.variants[row])) == 1  # each run has a directory of its own


@pytest.mark.parametrize(
    ("name", "row"), [(name, row) for name in ("sorting_horizon", "sorting_curves") for row in RECIPES[name].variants]
)
def test_rows_of_the_horizon_have_the_gradients_that_they_name(name, row):
    from memjax.overrides import apply_overrides, load_config
    from memjax.settings.relations import validate

    recipe = RECIPES[name]
    variant, *further = recipe.variants[row].split()
    config = apply_overrides(load_config(recipe.config, variant), [*recipe.arguments, *further], prog="memjax train")
    validate(config)
    horizon = config.training.segments_per_update - config.training.segments_without_gradient
    assert int(row.split()[1].rstrip(",")) == horizon
    assert config.model.num_slots == (int(row.split()[3]) if "slots" in row else 64)
    tokens = config.data.source.length + 1 + config.data.source.num_symbols  # an update is a whole document
    assert -(-tokens // config.data.segment_length) == config.training.segments_per_update


def test_rows_may_have_arguments_and_paths_of_their_own(folder, monkeypatch):
    ran = []
    rows = {"two": "v --k 2 --d $PLACE", "four": "v --k 4"}
    recipe = recipes.Recipe("", "c", rows, 5, 0, (0.1,), seeds=(0,), arguments=("--k", "1"))
    monkeypatch.setattr(recipes, "RECIPES", {"r": recipe})
    monkeypatch.setattr(recipes, "record", lambda *given, **more: ran.append((given[3], given[5])))
    with pytest.raises(SystemExit, match="PLACE: not set"):
        recipes.run("r", str(folder))
    monkeypatch.setenv("PLACE", "/here")
    recipes.run("r", str(folder))
    assert ran[0][0][2:4] == ["--variant", "v"]
    # After those of all rows: a row's own arguments win.
    assert ran[0][0][-6:] == ["--k", "1", "--k", "2", "--d", "/here"]
    assert [name for _, name in ran] == ["r/v-2-seed0", "r/v-4-seed0"]
