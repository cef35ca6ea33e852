"""The modules of the guide about parts of your own: commands of other processes, and a run that was cut."""

import ast
import json
import re
import sys
from pathlib import Path

import jax
import nbformat
import numpy as np
import pytest

from memjax.cli import main
from memjax.settings import pointers
from tests.training.loop_test import Crash, assert_same_run, crash_at

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/your_own.md").read_text(), re.S)
NOTEBOOK = nbformat.read(ROOT / "colabs/your_own.ipynb", as_version=4)
MODULES = {
    name: text
    for cell in NOTEBOOK.cells
    for name, text in re.findall(r"\A%%writefile (\w+)\.py\n(.*)\Z", cell.source, re.S)
}
MOST_LINES = {"averaging": 15, "running_means": 40, "colours": 10}
CONFIGS = {
    "stream": """
        from dataclasses import replace

        from averaging import Averaging
        from memjax.settings.overrides import load_config


        def get_config():
            config = load_config("lifelong_mnist", "smoke")
            return replace(config, lifelong=replace(config.lifelong, method=Averaging()))
        """,
    "text": """
        from colours import Colours
        from running_means import RunningMeans
        from memjax.config import Bytes, Config, Data, Evaluation, Model, Training


        def get_config():
            return Config(
                model=Model(dim=8, num_layers=1, num_heads=2, attention=RunningMeans(), positions="sinusoids"),
                data=Data(source=Colours(count=8), tokenizer=Bytes(), batch_size=2, segment_length=8),
                training=Training(steps=4, checkpoint_every=2, log_every=2),
                evaluation=Evaluation(batch_size=2, max_segments=4),
            )
        """,
}


def forget(folder: Path) -> None:
    """Makes this process one that has imported nothing of a folder."""
    pointers.OWN_FILES.clear()
    pointers.OWN_FOLDERS.clear()
    for name, module in [*sys.modules.items()]:
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the modules, two config files, and a run of each."""
    folder = tmp_path_factory.mktemp("own")
    previous = jax.config.jax_numpy_rank_promotion  # type: ignore[attr-defined]
    jax.config.update("jax_numpy_rank_promotion", "allow")  # as in a user's process
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    for name, text in CONFIGS.items():
        (folder / f"{name}_config.py").write_text(re.sub(r"^        ", "", text, flags=re.M))
        command = ["train", "--config", str(folder / f"{name}_config.py"), "--name", name]
        assert main([*command, "--workdir", str(folder / "runs"), "--data.cache-dir", ""]) == 0
    yield folder
    jax.config.update("jax_numpy_rank_promotion", previous)
    forget(folder)


@pytest.fixture(autouse=True)
def elsewhere(runs, tmp_path, monkeypatch):
    """Every test is another process in another folder."""
    monkeypatch.chdir(tmp_path)
    forget(runs)
    np.save(tmp_path / "vectors.npy", np.zeros((2, 8), np.float32))


def lines_of_code(text: str) -> int:
    """Counts the lines of classes and functions, without docstrings and empty ones."""
    tree = ast.parse(text)
    docs = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    imports = {
        number
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(text.splitlines(), start=1)
    return sum(bool(line.strip()) and number not in docs | imports for number, line in lines)


@pytest.mark.laws
def test_the_guide_and_the_notebook_hold_the_same_modules_and_they_are_short():
    assert MODULES.keys() == MOST_LINES.keys()
    for name, text in MODULES.items():
        assert f"{text.rstrip()}\n" in BLOCKS, name
        assert lines_of_code(text) <= MOST_LINES[name], name


def files_of(name: str) -> list[str]:
    return {"stream": ["averaging"], "text": ["running_means", "colours"]}[name]


COMMANDS = {
    "train stream": ["train", "--run", "runs/stream"],
    "eval stream": ["eval", "--run", "runs/stream"],
    "predict stream": ["predict", "--run", "runs/stream", "vectors.npy"],
    "report stream": ["report", "runs/stream", "--only", "curves,scores", "--out", "page.html"],
    "eval text": ["eval", "--run", "runs/text", "--evaluation.memory-intervention", "shuffled"],
    "generate text": ["generate", "--run", "runs/text", "--prompt", "day", "--max-tokens", "9"],
    "compare text": ["compare", "runs/text"],
    "train text": ["train", "--run", "runs/text", "--training.steps", "6"],
}
"""Command and run -> its command line."""


@pytest.mark.laws
@pytest.mark.parametrize("case", COMMANDS)
def test_every_command_on_such_a_run_takes_the_file_or_names_it(case, runs, capsys):
    name = case.split()[1]
    command = [str(runs / word) if word.startswith("runs/") else word for word in COMMANDS[case]]
    assert main(command) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert re.search(rf"there is no installed module ({'|'.join(files_of(name))}), .* allowed: --module \w+\.py", line)
    files = [word for module in files_of(name) for word in ("--module", str(runs / f"{module}.py"))]
    assert main([*command, *files]) == 0
    told = [f"{module} is imported from {runs / module}.py" for module in files_of(name)]
    assert capsys.readouterr().err.splitlines()[: len(told)] == told


@pytest.mark.laws
def test_a_run_with_a_method_of_ones_own_that_was_cut_goes_on_bit_for_bit(runs, tmp_path, capsys):
    from memjax.lifelong import train
    from memjax.settings.overrides import load_config

    config = load_config(str(runs / "stream_config.py"))
    config.workdir, config.training.checkpoint_every = str(tmp_path / "whole"), 1
    whole = train(config, on_event=lambda event: None)
    config.workdir = str(tmp_path / "cut")
    for step in (3, 6):
        with pytest.raises(Crash):
            train(config, on_event=lambda event: None, hooks=[crash_at(step)])
    forget(runs)
    command = ["train", "--run", str(tmp_path / "cut" / config.name)]
    assert main([*command, "--module", str(runs / "averaging.py")]) == 0
    assert_same_run(whole.path, tmp_path / "cut" / config.name)


@pytest.mark.laws
def test_a_config_file_in_another_folder_continues_its_run(runs):
    command = ["train", "--config", str(runs / "text_config.py"), "--name", "text", "--data.cache-dir", ""]
    assert main([*command, "--workdir", str(runs / "runs"), "--training.steps", "8"]) == 0
    assert json.loads((runs / "runs" / "text" / "finished.json").read_text())["step"] == 8
