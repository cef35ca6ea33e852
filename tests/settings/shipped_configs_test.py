"""Configs of the current folder do not stand in for those that memjax asks for, and are listed without being run."""

import pytest

from memjax.cli import main
from memjax.settings.overrides import describe_config, find_config, load_config, shipped_config

OWN = '''"""My own experiment."""

from pathlib import Path

Path("was_run").touch()
VARIANTS = {"small": "a small one"}
'''


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    for name in ("own_text", "memorizing_python", "mine"):
        (tmp_path / "configs" / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_own_configs_are_listed_without_being_run(own_folder, capsys):
    assert describe_config("mine") == ("My own experiment.", {"small": "a small one"})
    assert main(["configs"]) == 0 and "My own experiment." in capsys.readouterr().out
    assert not (own_folder / "was_run").exists()


def test_variants_that_are_computed_are_left_out(own_folder):
    (own_folder / "configs" / "mine.py").write_text('"""About."""\nVARIANTS = {name: name for name in "ab"}\n')
    assert describe_config("mine") == ("About.", {})


def test_own_configs_do_not_stand_in_for_shipped_ones(own_folder, capsys):
    (own_folder / "novel.txt").write_text("It was a dark night. " * 400)
    assert main(["plan", "--text", "novel.txt", "--help"]) == 0 and not (own_folder / "was_run").exists()
    capsys.readouterr()
    assert load_config(shipped_config("memorizing_python")).name.startswith("memorizing_python")
    assert find_config("memorizing_python").parent.name == "configs"
    assert find_config("memorizing_python").resolve().parent == own_folder / "configs"
