"""Memories and methods of one's own by name: `--memory-kind my_module:MyMemory` and `--method my_module:MyMethod`."""

import csv
import os
import re
import sys

import jax
import pytest

from memjax.cli import main
from memjax.cli.parser import Parser, parse_with_config
from memjax.cli.sweep import group_words, make_parser, plan_runs
from memjax.settings import pointers
from memjax.settings.overrides import load_config
from tests.integration.own_parts_test import MODULES, forget

OTHERS = """from dataclasses import dataclass

from memjax.config import Method


@dataclass(slots=True, kw_only=True)
class Needs(Method):
    rate: float


def call():
    raise SystemExit("was called")
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder with the modules of the notebook, beside the current one. It is forgotten before and after the test."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, text in {**MODULES, "others": OTHERS}.items():
        (folder / f"{name}.py").write_text(text)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "here.py").write_text("raise SystemExit('was imported')")
    (tmp_path / "here" / "novel.txt").write_text("".join(f"line {number} of a novel\n" for number in range(400)))
    for task, (first, second) in {"fruit": ("apple", "leek"), "mood": ("fine", "sad")}.items():
        with open(tmp_path / "here" / f"{task}.csv", "w", newline="") as file:
            csv.writer(file).writerows([word, "", f"{word} {row}"] for row in range(16) for word in (first, second))
    forget(tmp_path)
    yield folder
    forget(tmp_path)


def choose(*words: str):
    return parse_with_config(Parser("train", "", reads="config"), [*words])[1]


TASKS = ("--tasks", "fruit.csv", "mood.csv", "--method", "averaging:Averaging")
TEXT = ("--text", "novel.txt", "--variant", "smoke", "--memory-kind", "running_means:RunningMeans")


def test_a_class_of_a_file_stands_where_a_name_does(modules, capsys):
    config = choose(*TASKS, "--module", str(modules / "averaging.py"), "--lifelong.method.share", "0.25")
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"averaging is imported from {modules / 'averaging.py'}"
    assert "; averaging:Averaging, TokenBag; changed by options: lifelong.method.share 0.25 instead of 0.5" in last
    kind = type(config.lifelong.method)
    assert config.lifelong.method == kind(share=0.25) and pointers.name_of_kind(kind) == "averaging:Averaging"
    assert config.name == "tasks_fruit_mood_averaging_Averaging"
    config = choose(*TEXT, "--module", str(modules / "running_means.py"))
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"running_means is imported from {modules / 'running_means.py'}"
    assert "memory running_means:RunningMeans (Attention to the segment and to running means of earlier segm" in last
    assert config.name == "text_novel_smoke_running_means_RunningMeans"
    smoke = load_config("own_text", "smoke").with_parts(memory=type(config.model.attention)())
    assert config.model == smoke.model


def test_a_class_is_found_beside_the_config_file_and_in_an_installed_package(modules, monkeypatch, capsys):
    (modules / "mine.py").write_text(
        "from memjax.settings.overrides import load_config\ndef get_config():\n"
        "    return load_config('lifelong_text', 'bag')\n"
    )
    config = choose("--config", str(modules / "mine.py"), *TASKS)
    assert type(config.lifelong.method).__module__ == "averaging"
    assert capsys.readouterr().err.splitlines()[0] == f"averaging:Averaging is imported from {modules}/averaging.py"
    forget(modules.parent)
    monkeypatch.syspath_prepend(str(modules))
    config = choose("--config", "own_text", "--variant", "smoke", *TEXT[4:])
    assert type(config.model.attention).__module__ == "running_means"
    assert capsys.readouterr().err == f"running_means:RunningMeans is imported from {modules}/running_means.py\n"


REFUSED = {
    "--method os:system": "os:system: given a builtin_function_or_method, allowed: a subclass of memjax.config.Method",
    "--method antigravity:fly": "antigravity:fly: given a module of Python, allowed: a subclass of memjax.config.M",
    "--method here:Mine": "here:Mine: there is no installed module here, .* allowed: --module here.py",
    "--method averaging:": "type: given 'averaging:', allowed: my_module:MyClass",
    "--method averaging:Mean": "averaging:Mean: given nothing of that name, allowed: a subclass of memjax",
    "--method others:call": "others:call: given a function, allowed: a subclass of memjax.config.Method",
    "--method others:Needs": "given others:Needs, whose field rate has no default, allowed: a class whose fields all",
    "--method running_means:RunningMeans": "given running_means:RunningMeans, settings of another kind, allowed: a "
    "subclass of memjax.config.Method",
    "--memory-kind averaging:Averaging": "given averaging:Averaging, settings of another kind, allowed: a subclass of "
    "memjax.config.Attention",
    "--memory-kind memjax.config:LSTM": "memjax.config:LSTM: given the class LSTM, allowed: a subclass of memjax",
}
"""Option with its value -> pattern of what the line says after the option."""


@pytest.mark.parametrize("words", REFUSED)
def test_another_name_is_one_line_and_runs_nothing(words, modules, monkeypatch, capsys):
    called = []
    monkeypatch.setattr(os, "system", called.append)
    monkeypatch.syspath_prepend(str(modules))
    option = words.split()[0]
    data = ("--tasks", "fruit.csv", "mood.csv") if option == "--method" else TEXT[:4]
    for verb in ("train", "sweep"):
        assert main([verb, *data, *words.split()]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert re.match(f"memjax {verb}: {option}: {REFUSED[words]}", line)
    assert not called and not {"here", "antigravity"} & sys.modules.keys() and not os.path.exists("runs")


def test_a_sweep_over_names_and_a_class_of_ones_own(modules):
    words = [*TASKS[:3], "--method", "ewc,averaging:Averaging", "--module", str(modules / "averaging.py")]
    parser = make_parser()
    parser.split(words)
    runs = [*plan_runs(parser, group_words(words), {("training.seed",): [("0",), ("1",)]})]
    names = ["tasks_fruit_mood_ewc-seed0", "tasks_fruit_mood_averaging_Averaging-seed0"]
    assert [planned.path.name for planned in runs[::2]] == names
    seed_and_name = ["--training.seed", "1", "--name", "tasks_fruit_mood_averaging_Averaging-seed1"]
    assert [*runs[-1].words] == [*words[:4], "averaging:Averaging", *words[5:], *seed_and_name]


@pytest.fixture
def as_a_user():
    """Ranks that are promoted, as in a user's process."""
    previous = jax.config.jax_numpy_rank_promotion  # type: ignore[attr-defined]
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_rank_promotion", previous)


@pytest.mark.laws
@pytest.mark.parametrize("words", [TASKS, TEXT], ids=["method", "memory"])
def test_commands_on_such_a_run(words, modules, as_a_user, capsys):
    module = words[-1].partition(":")[0]
    file = ["--module", str(modules / f"{module}.py")]
    run = f"runs/{choose(*words, *file).name}"
    small = (
        ["--lifelong.epochs", "1"] if words is TASKS else ["--model.positions", "sinusoids", "--training.steps", "2"]
    )
    commands = {
        "train": [*words, *small, "--data.cache-dir", ""],
        "resume": ["--run", run],
        "eval": ["--run", run],
        "compare": [run],
        "report": [run, "--only", "curves", "--out", "page.html"],
    }
    for verb, arguments in commands.items():
        forget(modules.parent)
        command = ["train" if verb == "resume" else verb, *arguments]
        assert main(command) == 2 and f"there is no installed module {module}, " in capsys.readouterr().err, verb
        assert main([*command, *file]) == 0, capsys.readouterr().err
        assert capsys.readouterr().err.splitlines()[0] == f"{module} is imported from {file[1]}", verb
