"""Mistakes that people make on the command line: one line with the name as typed, what was given, what is allowed."""

import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memjax.cli import main
from memjax.cli.own_tasks import tasks_config
from memjax.config import Bytes, Config, Data, Evaluation, Model, TextFiles, Training, TransformerXL
from memjax.durable_files import write_json
from memjax.settings.overrides import load_config as load_config_file
from memjax.training.runs import config_to_dict
from tests.cli import bad_inputs
from tests.cli.command_line_test import TRAIN, contents, here, refuse, workplace  # noqa: F401 (fixtures)
from tests.cli.wrong_commands import PARTS, WHOLE
from tests.cli.wrong_values import VALUES

LINE = re.compile(
    r"memjax (?P<verb>\S+): (?P<wrong>(?P<name>.+?): .+?)"
    r"(?:, allowed(?: for \S+)?: (?P<allowed>.+)|; (?P<proposal>(?:give|did you mean|see --help).*))"
)
"""Pattern of the line about every mistake: the verb, the name with what is wrong, and what is allowed or meant"""


@pytest.fixture(scope="module")
def wrong(workplace):  # noqa: F811
    """The same directory with everything that the wrong commands name."""
    bad_inputs.write_inputs(workplace)
    (workplace / "novel.txt").write_text("a few words of a novel. " * 1000)
    (workplace / "nothing").mkdir()
    (workplace / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
    for name, classes in {"news": ("World", "Sports"), "reviews": ("good", "bad")}.items():
        rows = [f"{classes[number % 2]},title {number},some text {number}" for number in range(40)]
        (workplace / f"{name}.csv").write_text("\n".join(["class,title,text", *rows]))
    (workplace / "unlabelled.csv").write_text("\n".join(["id,body", *(f"{number},some words" for number in range(20))]))
    data = Data(source=TextFiles(path="novel.txt"), tokenizer=Bytes(), batch_size=2, segment_length=8)
    model = Model(dim=8, num_layers=1, num_heads=2, attention=TransformerXL(memory_length=8))
    settings = {"training": Training(steps=2), "evaluation": Evaluation(batch_size=2)}
    novel = Config(name="novel", model=model, data=data, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace)
        tasks, _ = tasks_config(["news.csv", "reviews.csv"])
        pairs = load_config_file("pairs.py")
    for name, config in {"novel": novel, "tasks": dataclasses.replace(tasks, name="tasks"), "pairs": pairs}.items():
        (workplace / "runs" / name).mkdir()
        write_json(workplace / "runs" / name / "config.json", config_to_dict(config))
    (workplace / "folder_of_nothing").mkdir()
    (workplace / "runs" / "foreign").mkdir()
    (workplace / "runs" / "foreign" / "thesis.tex").write_text("mine")


def refuse_at_once(command, capsys):
    """The match of the only line that a command prints. It must have exit code 2 and leave all files as they were."""
    times = lambda: {
        str(path): path.stat().st_mtime_ns for path in Path.cwd().rglob("*") if "__pycache__" not in path.parts
    }
    before = times()
    capsys.readouterr()
    code = main(shlex.split(command))
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, ""), printed
    (line,) = printed.err.splitlines()
    assert times() == before
    match = LINE.fullmatch(line)
    assert match, line
    return match


def sample_rows(table):
    """Every third in `make test`, all among the laws."""
    return [pytest.param(row, marks=[pytest.mark.laws] if number % 3 else []) for number, row in enumerate(table)]


def test_ways_to_start_are_printed_for_train_without_a_word(capsys):
    assert main(["train"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    for way in ("--text", "--tasks", "--config", "--run"):
        assert f"  memjax train {way} " in printed.err


@pytest.mark.parametrize("command", ["help train", "--help train", "train -h", "train --help"])
def test_every_form_of_asking_for_help_of_a_verb(capsys, command):
    assert main(command.split()) == 0
    assert "usage: memjax train" in capsys.readouterr().out


@pytest.mark.parametrize("command", sample_rows(WHOLE))
def test_a_mistake_is_one_line_with_the_name_as_typed(here, wrong, capsys, command):  # noqa: F811
    beginning, allowed, *parts = WHOLE[command]
    match = refuse_at_once(command, capsys)
    assert match["wrong"].startswith(beginning)
    assert allowed in (match["allowed"] or match["proposal"])
    assert all(part in match[0] for part in parts)


@pytest.mark.parametrize("command", sample_rows(PARTS))
def test_a_mistake_is_the_last_line(here, wrong, capsys, command):  # noqa: F811
    check_parts(PARTS[command], refuse(shlex.split(command), capsys))


@pytest.mark.parametrize("options", sample_rows(VALUES))
def test_a_wrong_value_is_the_last_line(here, wrong, capsys, options):  # noqa: F811
    check_parts(VALUES[options], refuse([*TRAIN, "--name", "new", *shlex.split(options)], capsys))


def check_parts(parts, line):
    for part in [parts] if isinstance(parts, str) else parts:
        assert part in line


@pytest.mark.laws
def test_a_mistake_in_an_own_config_is_one_line_with_its_number(here, wrong):  # noqa: F811
    """In a process of its own: where the tests check types at run time, a wrong type would be another error."""
    asked = {("train", "--config", f"own_{name}.py"): part for name, (_, part) in bad_inputs.OWN.items()}
    for kind, verb, part in bad_inputs.DAMAGED:
        if kind in bad_inputs.TYPED and verb == "eval":
            bad_inputs.damage(here, kind, f"{kind}_typed")
            asked[verb, "--run", f"runs/{kind}_typed"] = part.format(run=f"{kind}_typed")
    before = contents(here)
    code = "import sys; from memjax.cli import main; print([main(line.split()) for line in sys.stdin])"
    lines = "\n".join(map(" ".join, asked))
    done = subprocess.run([sys.executable, "-c", code], input=lines, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str([2] * len(asked))]
    mistakes = [line for line in done.stderr.splitlines() if line.startswith("memjax ")]
    assert len(mistakes) == len(asked), done.stderr
    for (verb, *_), part, line in zip(asked, asked.values(), mistakes, strict=True):
        assert line.startswith(f"memjax {verb}: ") and part in line, line
    assert contents(here) == before
    for kind in bad_inputs.TYPED:
        shutil.rmtree(here / "runs" / f"{kind}_typed")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(bad_inputs.SOURCES)))
def test_bad_data_is_one_line(here, wrong, capsys, number):  # noqa: F811
    assert bad_inputs.SOURCES[number][2] in refuse(["train", "--config", f"source_{number}.py"], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind, verb, part", [row for row in bad_inputs.DAMAGED if row[0] not in bad_inputs.TYPED])
def test_a_damaged_run_is_one_line(here, wrong, capsys, kind, verb, part):  # noqa: F811
    name = f"{kind}_{verb}"
    bad_inputs.damage(here, kind, name)
    run = {"compare": [f"runs/{name}"], "train": ["--config", "tiny.py", "--name", name]}.get(
        verb, ["--run", f"runs/{name}"]
    )
    assert part.format(run=name) in refuse([verb, *run], capsys)
    shutil.rmtree(here / "runs" / name)


def test_at_least_500_bad_inputs_are_tried():
    tables = (WHOLE, PARTS, VALUES, bad_inputs.OWN, bad_inputs.SOURCES, bad_inputs.DAMAGED)
    assert sum(map(len, tables)) >= 500
