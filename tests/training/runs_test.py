import dataclasses
import json
import re

import pytest

from memjax import config as configs
from memjax.config import (
    Adafactor,
    Bytes,
    Config,
    Data,
    InfinityFormer,
    Lifelong,
    Memformer,
    Memorizing,
    Model,
    Spalm,
    TaskData,
    Training,
)
from memjax.settings.ranges import describe_invalid
from memjax.training.run_identity import read_run_file
from memjax.training.run_versions import read_attempts, versions
from memjax.training.runs import RunDirectory, config_from_dict, config_to_dict, load_config, request_run, run_path


def make_config(tmp_path, **kwargs):
    model = Model(attention=Memorizing(layers_with_memory=(0, -1)))
    return Config(name="run", workdir=str(tmp_path), model=model, data=Data(tokenizer=Bytes()), **kwargs)


def open_directory(config, **options):
    return RunDirectory(request_run(config, **options))


def test_a_config_survives_json():
    config = Config(
        model=Model(attention=Memorizing(layers_with_memory=(0, -1))), training=Training(optimizer=Adafactor())
    )
    value = json.loads(json.dumps(config_to_dict(config)))
    assert config_from_dict(value) == config
    assert value["model"]["attention"]["type"] == "Memorizing"
    with pytest.raises(ValueError, match="config: Training.speed is not known"):
        config_from_dict({"type": "Training", "speed": 3})
    with pytest.raises(ValueError, match="config: type 'Quantum' is not known"):
        config_from_dict({"type": "Quantum"})


NO_NAMES = (5, -1.5, 10**400, True, None, "", "x", "os:path", "a:b", [], ["Bytes"], {}, {"a": 1}, {"type": "Bytes"})
"""values that stand in place of the name of a type"""


def with_other_types(value, new):
    """Yields copies of settings as JSON values in which `new` stands in place of one type."""
    if isinstance(value, dict):
        yield {**value, "type": new}
        yield {name: entry for name, entry in value.items() if name != "type"}
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for changed in with_other_types(entry, new):
            copy = value.copy()
            copy[key] = changed
            yield copy


@pytest.mark.parametrize("new", NO_NAMES, ids=lambda new: str(new)[:20])
def test_a_config_with_a_type_that_is_no_name_is_refused_in_one_line(tmp_path, new):
    tasks = (TaskData(name="a"), TaskData(name="b"))
    changed = [*with_other_types(config_to_dict(make_config(tmp_path, lifelong=Lifelong(tasks=tasks))), new)]
    for value in changed:
        (tmp_path / "config.json").write_text(json.dumps(value))  # without a checksum, as earlier versions wrote it
        with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path))}/config.json: [^\n]*$"):
            load_config(tmp_path)
    assert len(changed) > 20


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), float("inf"), float("nan"), "1", None, True, [1.0]], ids=lambda value: str(value)[:8]
)
def test_a_value_that_is_no_number_is_refused(value):
    assert describe_invalid(value, float) == "a number"
    assert not describe_invalid(1e300, float)


def test_a_config_that_is_nested_too_deeply_is_refused(tmp_path):
    for levels in (90, 101, 900, 100_000):
        (tmp_path / "config.json").write_text('{"type":' * levels + "1" + "}" * levels)
        with pytest.raises(ValueError, match="is not known" if levels < 100 else "damaged .*, allowed: the file"):
            load_config(tmp_path)


@pytest.mark.parametrize(
    "today, before",
    [
        (Spalm(), {"scale_neighbors": False}),
        (
            Memformer(),
            {"unit_length_updates": False, "retain_bias": 0.0, "write_begin_token": True, "segment_positions": "none"},
        ),
        (InfinityFormer(), {"density_init": "published", "kl_over_layers": "mean"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_opens_with_what_was_there_before_a_field(today, before):
    value = config_to_dict(today)
    assert config_from_dict(value) == today
    without = {name: item for name, item in value.items() if name not in before}
    assert config_from_dict(without) == dataclasses.replace(today, **before) != today


def test_a_run_directory_is_made_and_opened_again(tmp_path):
    config = make_config(tmp_path)
    run = open_directory(config)
    assert run.path == run_path(config) == tmp_path / "run" and run.attempt == 1
    run.record_attempt(0)
    with pytest.raises(ValueError, match="another process trains in this directory"):
        open_directory(config)
    run.close()
    assert load_config(run.path) == config
    again = open_directory(config)
    assert again.attempt == 2 and not (run.path / "finished.json").exists()
    again.record_attempt(7)
    again.finish(9, {"a": 1})
    again.close()
    attempts = read_attempts(run.path)
    assert [(a["attempt"], a["step"]) for a in attempts] == [(1, 0), (2, 7)]
    assert attempts[0].keys() >= {"python", "jax", "backend", "devices"} and versions()["backend"] == "cpu"
    assert len((run.path / "command.txt").read_text().splitlines()) == 2
    assert read_run_file(run.path / "finished.json") == {"step": 9, "attempts": 2, "log_lines": 0, "results": {"a": 1}}


def test_a_config_that_is_being_written_is_no_foreign_file(tmp_path):
    """As another process of the run finds the directory, or the same command after a kill."""
    config = make_config(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.tmp").write_text('{"na')
    open_directory(config).close()
    assert load_config(tmp_path / "run").name == "run"


def test_foreign_directories_are_refused(tmp_path):
    config = make_config(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"run: not empty \(thesis.tex\) and not a run directory; give another name"):
        open_directory(config)
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["thesis.tex"]
    with pytest.raises(ValueError, match="is a file, allowed: a directory"):
        open_directory(dataclasses.replace(config, workdir=str(tmp_path / "run"), name="thesis.tex"))
    with pytest.raises(ValueError, match="no run directory"):
        load_config(tmp_path / "run")


def test_another_config_is_refused_with_the_difference(tmp_path):
    config = make_config(tmp_path)
    open_directory(config).close()
    moved = dataclasses.replace(config, data=dataclasses.replace(config.data, cache_dir="/elsewhere"))
    open_directory(moved).close()
    by_blocks = dataclasses.replace(config, model=dataclasses.replace(config.model, attention_implementation="blocks"))
    open_directory(by_blocks).close()  # another program for the same attention
    other = dataclasses.replace(config, training=Training(clip_norm=2.0))
    with pytest.raises(
        ValueError, match="another config, training.clip_norm = 1.0 there and 2.0 here; give another name"
    ):
        open_directory(other)
    other = dataclasses.replace(config, model=Model(attention=configs.TransformerXL()))
    with pytest.raises(ValueError) as error:
        open_directory(other)
    assert "model.attention = 'Memorizing' there and 'TransformerXL' here" in str(error.value)
    assert "\n" not in str(error.value)


def test_other_rows_are_refused_unless_memories_are_reset(tmp_path):
    config = make_config(tmp_path)
    open_directory(config).close()
    more = dataclasses.replace(config, data=dataclasses.replace(config.data, batch_size=16))
    with pytest.raises(ValueError, match="data.batch_size = 8 there and 16 here; .*--reset-memory"):
        open_directory(more)
    longer = dataclasses.replace(more, training=Training(steps=2000))
    with pytest.raises(ValueError, match="give another name"):  # not only the rows differ
        open_directory(longer, reset_memory=True)
    open_directory(more, reset_memory=True).close()
    assert load_config(tmp_path / "run") == more


def test_a_request_says_what_a_run_gets(tmp_path):
    config = make_config(tmp_path)
    first = request_run(config)
    assert not first.extends_run and first.saved_at is None and not first.path.exists()
    open_directory(config).close()
    assert not request_run(config).extends_run
    more = dataclasses.replace(config, training=Training(steps=config.training.steps + 1))
    assert request_run(more).adds_steps and request_run(more).extends_run
    open_directory(more).close()
    with pytest.raises(ValueError, match="training.steps: given .*, allowed: .* or more"):
        request_run(config)


def test_a_config_that_another_process_writes_meanwhile_is_kept(tmp_path):
    config = make_config(tmp_path)
    request = request_run(config)
    open_directory(dataclasses.replace(config, training=Training(clip_norm=2.0))).close()
    with pytest.raises(ValueError, match="another process has written its config.json meanwhile"):
        RunDirectory(request)
    assert load_config(request.path).training.clip_norm == 2.0


def test_addresses_are_no_folders(tmp_path):
    with pytest.raises(ValueError, match="workdir: given 'gs://bucket/runs', allowed: a folder; mount"):
        run_path(dataclasses.replace(make_config(tmp_path), workdir="gs://bucket/runs"))
