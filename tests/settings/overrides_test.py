import dataclasses
import re

import pytest

from memjax.config import Config, Memorizing, Model
from memjax.settings.overrides import UsageError, apply_overrides, config_names, find_config, load_config


def memorizing() -> Config:
    return Config(model=Model(attention=Memorizing(layers_with_memory=(-1,))))


def test_values_replace_defaults_and_leave_the_given_config_alone():
    config = memorizing()
    before = dataclasses.asdict(config)
    arguments = (
        "--model.attention.memory-length 64 --model.attention.layers-with-memory -1 -2 --model.no-scale-embeddings"
    )
    new = apply_overrides(config, [*arguments.split(), "--evaluation.memory_length=3", "--name", "x"])
    assert isinstance(new.model.attention, Memorizing)
    assert (new.model.attention.memory_length, new.model.attention.layers_with_memory) == (64, (-1, -2))
    assert (new.model.scale_embeddings, new.evaluation.memory_length, new.name) == (False, 3, "x")
    assert dataclasses.asdict(config) == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model.dimm", "3"], "--model.dimm: no such field here; did you mean --model.dim?"),
        (
            ["--memory-length", "3"],
            "--memory-length: no such field here; did you mean --model.attention.memory-length, "
            "--evaluation.memory-length or --evaluation.cache.memory-length?",
        ),
        (["--qqqq", "3"], "--qqqq: no such field here; see --help"),
        (["--model.dim", "x"], "model.dim: given 'x', allowed: an integer"),
        (["--model.dim"], "model.dim: given no value, allowed: an integer"),
        (["--data.batch-size", "3", "--model.dim", "3", "4"], "model.dim: given '3 4', allowed: an integer"),
        (["--model.dropout", "0,1"], "model.dropout: given '0,1', allowed: a number"),
        (
            ["--model.attention.layers-with-memory", "a"],
            "model.attention.layers_with_memory: given 'a', allowed: integers, separated by spaces or None",
        ),
        (
            ["--model.attention.merge", "joind"],
            "model.attention.merge: given 'joind', allowed: one of 'gate', 'joint', 'add', 'stop_forward'",
        ),
        (["--evaluation.memory-length", "x"], "evaluation.memory_length: given 'x', allowed: an integer or None"),
        (["x"], "x: given without an option, allowed: --option value (see --help)"),
        (
            ["--model.attention", "transformer-xl"],
            "model.attention: its kind (Memorizing) is set in the config file or by --variant, allowed: its values, "
            "such as --model.attention.query-key-norm (see --help)",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    with pytest.raises(UsageError) as error:
        apply_overrides(memorizing(), arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "field, kinds",
    [
        ("same-length", "TransformerXL, Rotary have it"),
        ("clamp-length", "TransformerXL, Compressive, InfinityFormer have it"),
    ],
)
def test_a_field_of_another_kind_is_named(field, kinds):
    with pytest.raises(UsageError, match=rf"\({kinds}; model.attention of this config is Memorizing\)$"):
        apply_overrides(memorizing(), [f"--model.attention.{field}", "3"])


def test_only_some_fields_may_be_changed():
    with pytest.raises(UsageError, match=r"^model.dim: cannot be changed here, allowed: evaluation\.\*$"):
        apply_overrides(memorizing(), ["--model.dim", "3"], only=["evaluation."])


def test_help_lists_every_field(capsys):
    with pytest.raises(SystemExit) as exit:
        apply_overrides(memorizing(), ["--help"])
    assert exit.value.code == 0
    text = capsys.readouterr().out
    names = {re.sub("^no-", "", name) for name in re.findall(r"--([\w.-]+)", text)}
    assert {
        "model.attention.merge",
        "training.schedule.decay",
        "evaluation.stride",
        "data.tokenizer.vocab-size",
    } < names


def test_config_names_and_paths(tmp_path, monkeypatch):
    assert "memorizing_python" in config_names()
    assert load_config("memorizing_python", "smoke").model.dim == 32
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    text = "from memjax.config import Config\ndef get_config(variant='default'):\n    return Config(name=variant)\n"
    (tmp_path / "configs" / "mine.py").write_text(text)
    assert find_config("mine").resolve() == tmp_path / "configs" / "mine.py"
    assert load_config("mine", "x").name == "x"
    assert load_config(str(tmp_path / "configs" / "mine.py")).name == "default"
    assert load_config("memorizing_python", "smoke").model.dim == 32  # still found beside the package


@pytest.mark.parametrize(
    "text, message",
    [
        ("def get_config(:\n", r"config: .*bad\.py, line 1: SyntaxError: .*"),
        ("\nimport not_there\n", r"config: .*bad\.py, line 2: ModuleNotFoundError: .*"),
        ("x = 1\n", r"config: .*bad\.py has no function get_config\(variant\) .*"),
        ("get_config = lambda variant='': 3\n", r"config: .*bad\.py, line 1: get_config gave int, allowed: .*"),
    ],
)
def test_a_broken_config_file_is_one_line(tmp_path, text, message):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(UsageError) as error:
        load_config(str(tmp_path / "bad.py"))
    assert re.fullmatch(message, str(error.value))


def test_wrong_names_get_a_suggestion():
    with pytest.raises(UsageError, match=r"^config: given 'memorizing_pyton', .*; did you mean memorizing_python\?$"):
        load_config("memorizing_pyton")
    with pytest.raises(UsageError, match=r"^variant: given 'smok', .*; did you mean smoke\?$"):
        load_config("memorizing_python", "smok")
