"""Earlier names of fields and classes: what they have saved and hashed stays what it was."""

import dataclasses
import importlib.util
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from memjax import config as configs
from memjax.cli import main
from memjax.cli.migrate import migrate_source
from memjax.config import (
    GPT2,
    Adam,
    Bidirectional,
    Compressive,
    Config,
    ContinuousCache,
    Data,
    EncoderDecoder,
    InfinityFormer,
    Memformer,
    Memorizing,
    Model,
    Perceptron,
    Spalm,
    Training,
)
from memjax.datastore.index import Index
from memjax.durable_files import checksum
from memjax.retrieval.interpolation import _tuning_conditions
from memjax.retrieval.keys import KeyExtractor
from memjax.settings import compatibility, earlier_fields, earlier_names
from memjax.settings.overrides import UsageError, apply_overrides, find_field, load_config
from memjax.training.runs import config_after_growth, config_from_dict, config_to_dict, model_for_fingerprint

SAVED = json.loads((Path(__file__).parent / "saved_settings.json").read_text(encoding="utf-8"))
"""Class -> its default values, as version 0.1.0 writes them in a config.json."""


READ_AS = {"AGEM": configs.AGEM(reference_tasks="all")}
"""Class -> what its saved default values mean today, where the default of a later field is another one"""


@pytest.mark.parametrize("name", SAVED)
def test_settings_saved_by_an_earlier_version_are_read(name):
    default = getattr(configs, earlier_names.CLASSES.get(name, name))()
    assert config_from_dict(SAVED[name]) == READ_AS.get(name, default)


def test_the_program_that_rotary_attention_named_has_no_effect_any_more():
    assert config_from_dict({**config_to_dict(configs.Rotary()), "implementation": "plain"}) == configs.Rotary()


def test_the_program_of_attention_is_in_no_fingerprint():
    assert model_for_fingerprint(Model(attention_implementation="blocks")) == model_for_fingerprint(Model())


@pytest.mark.parametrize(
    ("model", "digest"),
    [
        (Model(attention=Compressive()), "a26e2a357c0883bf39b426550a3f1441"),
        (Model(attention=GPT2()), "18394f704cb2b9404f2e21aa482667e5"),
        (Model(attention=InfinityFormer(kl_over_layers="sum")), "1923bcf6f12fd46280eab3223524c06b"),
        (Model(attention=Memorizing(layers_with_memory=(0, -1), local_window=0)), "df61fb443304cd5717bb321fdae9d7bb"),
        (Model(output=Spalm()), "a6c403ab5aec2832dbac810fe072845a"),
        (Memformer(unit_length_updates=False), "9f789591530846616d0303edbb66379a"),
        (Memformer(use_forgetting=False), "91511f27546f908bb15051a3c2252a6c"),
        (Perceptron(), "28ffb90b2ccda43549c498375f96e46a"),
        (EncoderDecoder(), "400b6bb6d80017463a8304308e05691b"),
        (Bidirectional(), "dfacfecd7ccff4bf50b86fe443378da3"),
    ],
)
def test_the_model_of_a_store_has_the_digest_that_earlier_versions_wrote(model, digest):
    assert checksum(model_for_fingerprint(model))[:32] == digest


@pytest.mark.parametrize(
    ("cache", "digest"),
    [
        (ContinuousCache(memory_length=64), "dbcd0b3e322e2ca6"),
        (
            ContinuousCache(
                memory_length=64,
                interpolation="global",
                similarity_scale=0.5,
                score_offset=2.0,
                keep_across_documents=True,
            ),
            "8f7bf8ed82d411ff",
        ),
    ],
)
def test_tuned_weights_are_found_under_the_digest_that_earlier_versions_wrote(cache, digest):
    config = SimpleNamespace(evaluation=SimpleNamespace(cache=cache))
    source = Mock(spec=KeyExtractor, run=SimpleNamespace(experiment=SimpleNamespace(config=config)))
    assert _tuning_conditions(source, Mock(spec=Index, metric="l2"))["cache"] == digest


@pytest.mark.parametrize("name", ["Compressive", "GPT2", "InfinityFormer", "MemSizer", "Memorizing", "RFA", "T2R"])
def test_the_protocol_of_a_store_names_the_attention_as_earlier_versions_did(name):
    config = SimpleNamespace(model=SimpleNamespace(attention=getattr(configs, name)()))
    reading = lambda: SimpleNamespace(stride=0, protocol="separate", segment_length=8, score_first=True)
    run = SimpleNamespace(experiment=SimpleNamespace(config=config, reading=reading))
    protocol = KeyExtractor.protocol(SimpleNamespace(run=run, tap="key"))  # type: ignore[arg-type]
    assert protocol["attention"] == SAVED[name]


@pytest.fixture
def earlier(monkeypatch):
    """Names that no version had: `Adam.beta1`, the protocol 'one_by_one' as `Data.way`, and the class `AdamW`."""
    monkeypatch.setattr(compatibility, "FIELDS", {"Adam": {"beta1": "b1"}, "Data": {"way": "protocol"}})
    monkeypatch.setattr(compatibility, "VALUES", {"Data": {"protocol": {"one_by_one": "separate"}}})
    monkeypatch.setitem(earlier_names.CLASSES, "AdamW", "Adam")
    clear = lambda: [f.cache_clear() for f in (compatibility.renamed_fields, compatibility.changed_values)]
    clear()
    yield
    clear()


def test_a_config_of_an_earlier_version_is_read_and_hashed_by_its_names(earlier):
    saved = {"type": "Data", "way": "one_by_one", "segment_length": 7}
    assert config_from_dict(saved) == Data(segment_length=7)
    optimizer = {"type": "AdamW", "beta1": 0.8}
    training = Training(optimizer=Adam(b1=0.8))
    assert config_from_dict({"type": "Training", "optimizer": optimizer}) == training
    hashed = compatibility.in_saved_names(config_to_dict(training))
    assert hashed["optimizer"]["beta1"] == 0.8 and hashed["optimizer"]["type"] == "AdamW"
    assert compatibility.in_saved_names(config_to_dict(Data()))["way"] == "one_by_one"
    assert config_after_growth(Config(), [{"training.optimizer.beta1": 0.5}]).training.optimizer == Adam(b1=0.5)


def test_an_option_of_an_earlier_version_is_refused_in_a_line_with_its_new_name(earlier):
    line = "^training.optimizer.beta1 is now training.optimizer.b1$"
    for option in ("--training.optimizer.beta1", "--optimizer.beta1", "--beta1"):
        with pytest.raises(UsageError, match=option[2:] + " is now training.optimizer.b1$"):
            apply_overrides(Config(), [option, "0.5"])
    with pytest.raises(UsageError, match=line):
        apply_overrides(Config(), ["--training.optimizer.beta1=0.5"])
    with pytest.raises(UsageError, match=r"^data.way is now data.protocol \('one_by_one' is now 'separate'\)$"):
        apply_overrides(Config(), ["--data.way", "one_by_one"])
    with pytest.raises(UsageError, match="beta1 is now training.optimizer.b1$"):
        find_field(Config(), "beta1")
    assert apply_overrides(Config(), ["--training.optimizer.b1", "0.5"]).training.optimizer == Adam(b1=0.5)


def test_keywords_and_attributes_of_an_earlier_version_are_refused_with_the_new_name(earlier, tmp_path):
    with pytest.raises(TypeError, match="^Adam: beta1 is now b1; `memjax migrate FILE` renames it in a config file$"):
        Adam(beta1=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Adam: beta1 is now b1"):
        dataclasses.replace(Adam(), beta1=0.5)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="Data: way is now protocol"):
        Data().way  # type: ignore[attr-defined]  # noqa: B018
    data = Data()
    with pytest.raises(AttributeError, match="Data: way is now protocol"):
        data.way = "separate"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'Data' object has no attribute 'speed'"):
        data.speed  # type: ignore[attr-defined]  # noqa: B018
    file = tmp_path / "mine.py"
    file.write_text(
        "from memjax.config import Config, Data\n\n\ndef get_config():\n    return Config(data=Data(way=1))\n"
    )
    with pytest.raises(UsageError, match="line 5: Data: way is now protocol"):
        load_config(str(file))


def test_a_class_of_an_earlier_version_is_todays_with_a_warning(earlier):
    with pytest.warns(DeprecationWarning, match="memjax.config.AdamW is now Adam"):
        assert configs.AdamW is Adam  # type: ignore[attr-defined]
    with warnings.catch_warnings(), pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        from memjax.config import Nothing  # type: ignore[attr-defined]  # noqa: F401


def test_commands_are_shown_with_the_options_of_today(earlier):
    command = "memjax train --data.way one_by_one --training.optimizer.beta1=0.5 --name way"
    new = "memjax train --data.protocol separate --training.optimizer.b1=0.5 --name way"
    assert compatibility.current_command(command, Config()) == new
    assert compatibility.current_command("a text: it's no command", Config()) == "a text: it's no command"


SCRIPT = """
import dataclasses
from memjax import config as configs
from memjax.config import AdamW, Config, Data

def get_config(variant="default"):
    data = Data(way="one_by_one", segment_length=8)  # data.way is said here
    config = Config(data=data, training=configs.Training(optimizer=AdamW(beta1=0.5, b2=0.9)))
    config.data.way = "separate"
    other.way = 3
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, way="separate"))
    print(f"é {config.data.way}", config.training.optimizer.beta1, "--training.optimizer.beta1 0.5", way)
    return config
"""

MIGRATED = """
import dataclasses
from memjax import config as configs
from memjax.config import Adam, Config, Data

def get_config(variant="default"):
    data = Data(protocol="separate", segment_length=8)  # data.protocol is said here
    config = Config(data=data, training=configs.Training(optimizer=Adam(b1=0.5, b2=0.9)))
    config.data.protocol = "separate"
    other.way = 3
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, protocol="separate"))
    print(f"é {config.data.protocol}", config.training.optimizer.b1, "--training.optimizer.b1 0.5", way)
    return config
"""


def test_a_file_is_migrated_to_the_names_of_today(earlier, tmp_path, capsys):
    file, script = tmp_path / "mine.py", tmp_path / "go.sh"
    file.write_text(SCRIPT)
    script.write_text("memjax train --data.way separate --no-way\n")
    assert main(["migrate", str(file)]) == 0
    assert file.read_text() == SCRIPT and "not written; --write changes the file" in capsys.readouterr().out
    assert main(["migrate", str(file), "--write"]) == 0 and main(["migrate", str(script), "--write"]) == 0
    assert file.read_text() == MIGRATED
    assert script.read_text() == "memjax train --data.protocol separate --no-way\n"
    capsys.readouterr()
    assert main(["migrate", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "difference": [], "written": False}
    for wrong, line in ((tmp_path / "no.py", "No such file"), (tmp_path, "Is a directory")):
        assert main(["migrate", str(wrong)]) == 2 and line in capsys.readouterr().err
    file.write_text("def (")
    assert main(["migrate", str(file)]) == 2 and "invalid syntax" in capsys.readouterr().err


def test_todays_names_are_fields_and_earlier_ones_are_not():
    for name, fields in earlier_fields.FIELDS.items():
        kind = compatibility.settings_class(name) or getattr(settings_module(name), name)
        names = {field.name for field in dataclasses.fields(kind)}
        assert {*fields.values()} <= names and not names & fields.keys(), name
    for name, fields in earlier_fields.VALUES.items():
        kind = compatibility.settings_class(name) or getattr(settings_module(name), name)
        assert fields.keys() <= {field.name for field in dataclasses.fields(kind)}


def test_todays_modules_are_there_and_earlier_ones_are_not():
    assert all(importlib.util.find_spec(new) for new in earlier_names.MODULES.values())
    assert not any(importlib.util.find_spec(old) for old in earlier_names.MODULES)
    text = "from memjax.data.rows import X\nimport memjax.lifelong.memory as memory\nimport memjax.data.rows_of_mine\n"
    text += "from memjax.overrides import load_config\nimport memjax.doctor\nmemjax.doctor.diagnose()\n"
    new = migrate_source(text)
    assert new.splitlines() == [
        "from memjax.data.batch_iterator import X",
        "import memjax.lifelong.episodic_memory as memory",
        "import memjax.data.rows_of_mine",
        "from memjax.settings.overrides import load_config",
        "import memjax.cli.doctor",
        "memjax.cli.doctor.diagnose()",
    ]


def settings_module(name: str):
    """The file of `memjax.settings` with a class that is the base of others and no part of `memjax.config`."""
    from memjax.settings import attention, generation, meta, methods, model, rehearsal_methods, sources, task

    files = (attention, generation, meta, methods, model, rehearsal_methods, sources, task)
    return next(file for file in files if hasattr(file, name))
