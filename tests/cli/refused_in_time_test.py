"""Values of all verbs are checked before anything is printed, made, opened or trained; a full output is one line."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

import memjax.cli
from memjax.cli import VERBS, main
from memjax.config import GPT2, Bytes, Config, Data, FullAttention, Model, TextFiles, Training
from memjax.training.runs import config_to_dict
from tests.cli.command_line_test import contents

RUN = "--run runs/text"
TRAIN = "train --config own.py --name new"
NUMBERS = {
    f"generate {RUN} --prompt hello --seed -1": "--seed: given -1, allowed",
    f"generate {RUN} --prompt hello --seed 99999999999": "--seed: given 99999999999, allowed",
    f"generate {RUN} --prompt hello --max-tokens -1": "--max-tokens: given -1, allowed",
    f"generate {RUN} --prompt hello --top-k -3": "--top-k: given -3, allowed",
    f"generate {RUN} --prompt hello --top-p 0": "--top-p: given 0.0, allowed: a probability in (0, 1]",
    f"generate {RUN} --prompt hello --temperature inf": "--temperature: given inf, allowed",
    f"generate {RUN} --prompt hello --datastore s --knn-weight nan": "--knn-weight: given nan, allowed",
    f"eval {RUN} --datastore s --knn-temperature inf": "--knn-temperature: given inf, allowed",
    f"eval {RUN} --datastore s --knn-neighbors 0": "--knn-neighbors: given 0, allowed",
    f"eval {RUN} --memory -4": "--memory: given",
    f"eval {RUN} --memory 99999999999": "--memory: given 99999999999, allowed",
    f"sample {RUN} --to x.png --seed -1": "--seed: given -1, allowed",
    f"sample {RUN} --to x.png --count 0": "--count: given 0, allowed",
    f"translate {RUN} --text x --length-penalty nan": "--length-penalty: given nan, allowed",
    f"translate {RUN} --text x --beam-size 0": "--beam-size: given 0, allowed",
    f"predict {RUN} --text x --top 0": "--top: given 0, allowed",
    "report runs/text --rows 0": "--rows: given 0, allowed",
    "report runs/text --tokens -1": "--tokens: given -1, allowed",
    "plan --config own.py --topology v5e:1x1 --vocab-size -3": "--vocab-size: given -3, allowed",
    "datastore index --path s --parts 0": "--parts: given 0, allowed",
    "datastore index --path s --parts 2 --part 2": "--part: given 2, allowed: 0 to 1 of --parts 2",
    "datastore verify --path s --sample 0": "--sample: given 0, allowed",
    "datastore verify --path s --leaves -1": "--leaves: given -1, allowed",
    f"datastore build --path s {RUN} --shards -1": "--shards: given -1, allowed",
    f"datastore neighbors --path s {RUN} --to n --apart -2": "--apart: given -2, allowed",
    f"{TRAIN} --num-processes 0": "--num-processes: given 0, allowed",
    f"{TRAIN} --training.seed -1": "training.seed: given -1, allowed",
    f"{TRAIN} --profile 3:900": "profile: given 3:900, allowed",
    "train --text texts --training.seed -1": "training.seed: given -1, allowed",
}
EMPTY = (
    *(f"generate {RUN} {option}" for option in ("--stop", "--prompt-file", "--datastore", "--knn-backend", "--seed")),
    *(f"eval {RUN} {option}" for option in ("--memory", "--datastore", "--knn-weight")),
    *("train --text", "train --config", "train --tasks", "train --run", f"{TRAIN} --profile", f"{TRAIN} --coordinator"),
    *(
        "report runs/text --out",
        "report runs/text --figures",
        "report runs/text --only",
        "report runs/text --datastore",
    ),
    *(f"sample {RUN} --to", f"sample {RUN} --to x.png --size", "demo --workdir", "import --weights w --run"),
    *(f"predict {RUN} --file", f"predict {RUN} --question", f"translate {RUN} --file", f"export {RUN} --to"),
    *("plan --config own.py --topology", "plan --config own.py --topology v5e:1x1 --sweep", "datastore stats --path"),
)
PLACES = {
    f"sample {RUN} --to {{}}/x.png": "--to",
    "report runs/text --out {}/page.html": "--out",
    "report runs/text --figures {}/figures": "--figures",
    f"datastore build {RUN} --path {{}}/store": "--path",
    f"datastore neighbors {RUN} --path s --to {{}}/near": "--to",
    "train --config own.py --workdir {}/runs": "workdir",
    "train --text texts --workdir {}/runs": "workdir",
    "train --config own.py --name new --data.cache-dir {}/cache": "data.cache-dir",
    "data --config own.py --data.cache-dir {}/cache": "data.cache-dir",
    "demo --workdir {}/demo": "--workdir",
    "import --weights w --run {}/run": "--run",
    f"export {RUN} --to {{}}/out": "--to",
}
LENGTHS = {
    "eval --run runs/gpt2 --evaluation.segment-length 17": "evaluation.segment-length: given 17, allowed: at most",
    "eval --run runs/gpt2 --evaluation.segment-length 2048 --json": "evaluation.segment-length: given 2048, allowed",
    "eval --run runs/gpt2 --evaluation.segment-length -1": "evaluation.segment-length: given -1, allowed",
    "usage --run runs/gpt2 --evaluation.segment-length 17": "evaluation.segment-length: given 17, allowed",
    "datastore build --run runs/gpt2 --path s --evaluation.segment-length 17": "evaluation.segment-length: given 17",
    "train --config gpt2.py --name new --data.segment-length 17": "num_positions: given 16, allowed",
    "train --config gpt2.py --name new --evaluation.segment-length 17": "evaluation.segment-length: given 17, allowed",
    "data --config gpt2.py --data.segment-length 99": "num_positions: given 16, allowed",
    "plan --config gpt2.py --topology v5e:1x1 --data.segment-length 17": "num_positions: given 16, allowed",
}
CONFIG = """
from memjax.config import *

def get_config():
    model = Model(dim=8, num_layers=1, num_heads=2, attention={attention})
    data = Data(source=TextFiles(path="texts"), tokenizer=Bytes(), batch_size=2, segment_length=8)
    return Config(name="new", model=model, data=data, training=Training(steps=20))
"""


def config_of(attention):
    model = Model(dim=8, num_layers=1, num_heads=2, attention=attention)
    data = Data(source=TextFiles(path="texts"), tokenizer=Bytes(), cache_dir="", batch_size=2, segment_length=8)
    return Config(name="run", model=model, data=data, training=Training(steps=20))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Configs, runs that have a configuration and nothing else, texts, and a file where a folder is named."""
    folder = tmp_path_factory.mktemp("refused")
    for name, attention in {"text": FullAttention(), "gpt2": GPT2(num_positions=16)}.items():
        (folder / "runs" / name).mkdir(parents=True)
        config = dataclasses.replace(config_of(attention), name=name)
        (folder / "runs" / name / "config.json").write_text(json.dumps(config_to_dict(config)))
    (folder / "own.py").write_text(CONFIG.format(attention="FullAttention()"))
    (folder / "gpt2.py").write_text(CONFIG.format(attention="GPT2(num_positions=16)"))
    (folder / "texts").mkdir()
    for number in range(20):
        (folder / "texts" / f"{number}.txt").write_text("some words of a text " * 20)
    (folder / "file").write_text("no folder")
    return folder


@pytest.fixture
def here(workplace, monkeypatch):
    """The workplace, where nothing that works may begin."""
    monkeypatch.chdir(workplace)

    def begun(*arguments, **named):
        raise AssertionError("it began")

    for place in (
        "lifelong.load_run",
        "lifelong.train",
        "training.experiment.make_experiment",
        "cli.demonstration.run_demo",
    ):
        monkeypatch.setattr(f"memjax.{place}", begun)
    return workplace


def refuse(command, capsys):
    """The only line that a command says; checks that it made nothing."""
    before = contents(Path.cwd())
    capsys.readouterr()
    assert main(shlex.split(command)) == 2, command
    said = capsys.readouterr()
    assert said.out == "", command
    (line,) = said.err.splitlines()
    assert contents(Path.cwd()) == before
    return line


def sample_rows(table):
    """Every third in `make test`, all among the laws."""
    return [pytest.param(row, marks=[pytest.mark.laws] if number % 3 else []) for number, row in enumerate(table)]


@pytest.mark.parametrize("command", sample_rows({**NUMBERS, **LENGTHS}))
def test_numbers_are_refused_first(here, capsys, command):
    assert {**NUMBERS, **LENGTHS}[command] in refuse(command, capsys)


@pytest.mark.parametrize("command", sample_rows(EMPTY))
def test_an_empty_text_is_refused_and_not_taken_for_none(here, capsys, command):
    option = command.split()[-1]
    assert f"{option}: given '', allowed" in refuse(f"{command} ''", capsys)
    assert f"{option}: given '', allowed" in refuse(f"{command}=", capsys)


@pytest.mark.parametrize("command", sample_rows(PLACES))
def test_a_place_that_cannot_be_written_is_refused_first(here, capsys, monkeypatch, command):
    line = refuse(command.format("file"), capsys)
    assert f"{PLACES[command]}: given 'file/" in line
    if not command.startswith("sample"):  # makes no folders
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        line = refuse(command.format("folder"), capsys)
        assert "may not be written to" in line and ("given 'folder/" in line or "data.cache-dir" in command)


@hypothesis.settings(
    max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    option=strategies.sampled_from(
        [
            *(f"generate {RUN} --prompt x {name}" for name in ("--seed", "--max-tokens", "--top-k")),
            *(f"sample {RUN} --to x.png {name}" for name in ("--seed", "--count", "--columns", "--top-k")),
            *("report runs/text --rows", "report runs/text --segments", "datastore verify --path s --num-neighbors"),
        ]
    ),
    value=strategies.one_of(
        strategies.integers(max_value=-1),
        strategies.integers(min_value=2**31),
        strategies.sampled_from(["1e3", "x", "１.5"]),
    ),
)
def test_any_other_number_is_refused_first(here, capsys, option, value):
    name = option.split()[-1]
    assert f"{name}: given" in refuse(f"{option} {value}", capsys)


@contextlib.contextmanager
def full_output(monkeypatch, *, at_once):
    """A standard output without room, which says so when it is written to, or when it is flushed in the end."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    file = open("/dev/full", "w", buffering=1 if at_once else 2**20)  # noqa: SIM115
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", file)
        yield file
    with contextlib.suppress(OSError):
        file.close()


SAID = ("--help", "--version", "help", "configs", "configs --json", "train --help", "eval --help", "datastore --help")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("command", SAID)
def test_a_full_output_is_one_line(here, capsys, monkeypatch, command, at_once):
    with full_output(monkeypatch, at_once=at_once):
        assert main(command.split()) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memjax") and "standard output" in line and "no space is left on the disk" in line


def test_a_closed_output_is_nobodys_mistake(here, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert main(["--version"]) == 0


def test_a_mistake_stays_one_line_where_the_output_is_full(here, capsys, monkeypatch):
    with full_output(monkeypatch, at_once=False) as file:
        file.write("what was printed before")
        assert main(["compare", "nowhere"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere: no run directory" in line


def test_the_line_about_a_text_says_what_options_have_changed(here, capsys, monkeypatch):
    began = []
    monkeypatch.setattr("memjax.lifelong.train", lambda config, **named: began.append(config))
    text = ["train", "--text", "texts", "--workdir", "elsewhere"]
    assert main([*text, "--training.steps", "50", "--model.dim", "64"]) == 0
    changed = capsys.readouterr().err.splitlines()[0].rpartition("; changed by options: ")[2]
    assert "training.steps 50 instead of" in changed and "model.dim 64 instead of" in changed
    assert changed.startswith("workdir 'elsewhere' instead of 'runs'") and len(changed.split(", ")) == 3
    assert main(["train", "--text", "texts"]) == 0
    assert "changed by options" not in capsys.readouterr().err
    assert (began[0].training.steps, began[0].model.dim) == (50, 64)


def test_options_with_numbers_have_a_range():
    """A new option is read by `make_reader`, which refuses in time; a bare `int` takes any number."""
    files = [Path(memjax.cli.__file__).parent / f"{VERBS[verb][0]}.py" for verb in VERBS]
    bare = [file.name for file in files if re.search(r"type=(int|float)\b", file.read_text(encoding="utf-8"))]
    assert not bare
