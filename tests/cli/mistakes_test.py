"""Mistakes that people make on the command line: one line with the name as typed, what was given, what is allowed."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from memjax.cli import main
from memjax.config import Bytes, Config, Data, Evaluation, Model, TextFiles, Training, TransformerXL
from memjax.durable_files import write_json
from memjax.training.runs import config_to_dict

LINE = re.compile(
    r"memjax (?P<verb>\S+): (?P<wrong>(?P<name>.+?): .+?)"
    r"(?:, allowed(?: for \S+)?: (?P<allowed>.+)|; (?P<proposal>(?:give|did you mean|see --help).*))"
)
"""Pattern of the line about every mistake: the verb, the name with what is wrong, and what is allowed or meant"""

MISTAKES = {
    "trian": ("verb: given 'trian'", "train, sweep, configs, eval, compare, report"),
    "novel.txt": ("verb: given 'novel.txt'", "train, sweep, configs, eval, compare, report"),
    "--config tiny.py": ("verb: given '--config'", "train, sweep, configs, eval, compare, report"),
    "--text novel.txt": ("verb: given '--text'", "train, sweep, configs, eval, compare, report"),
    "train novel.txt": ("novel.txt: given without an option", "--text novel.txt"),
    "train tiny.py": ("tiny.py: given without an option", "--config tiny.py"),
    "train memorizing_python": ("memorizing_python: given without an option", "--config memorizing_python"),
    "train --file novel.txt": ("--file: no such field here", "did you mean --text?"),
    "train --data novel.txt": ("--data: no such field here", "did you mean --text?"),
    "train --texts novel.txt": ("--texts: no such field here", "did you mean --text?"),
    "train —text novel.txt": ("—text: no such field here", "did you mean --text?"),
    "train -text novel.txt": ("-text: no such field here", "did you mean --text?"),
    "train --text": ("--text: given no value", "one (see --help)"),
    "train --text missing.txt": (
        "--text: missing.txt does not exist and matches no file",
        "give a file, a folder or a glob",
    ),
    "train --text empty.txt": ("--text: empty.txt is empty", "give a file with text"),
    "train --text ''": ("--text: given ''", "a text of at least one character; leave"),
    "train --text nothing": ("--text: nothing has no files", "give a file, a folder or a glob"),
    "train --text picture.png": ("--text: picture.png is a picture (PNG)", "give files with text"),
    "train --text “novel.txt”": (
        "--text: “novel.txt” does not exist and matches no file",
        "give a file, a folder or a glob",
    ),
    "train --text novel.txt other.txt": ("other.txt: given without an option", "one path after --text"),
    "train --text novel.txt --tasks news.csv reviews.csv": ("--text: given with --tasks", "one of the two"),
    "train --text novel.txt --config lifelong_text": (
        "--text: given with --config lifelong_text, which reads a stream of",
        "a config of texts",
    ),
    "train --text novel.txt --variant samll": ("--variant: given 'samll'", "default, tiny, medium"),
    "train --text novel.txt --steps 100": ("--steps: no such field here", "did you mean --training.steps?"),
    "train --text novel.txt --training.steps 1,000": ("--training.steps: given '1,000'", "an integer"),
    "train --text novel.txt --training.steps 1e3": ("--training.steps: given '1e3'", "an integer"),
    "train --text novel.txt --training.steps -5": ("--training.steps: given -5", "an integer of at least 1"),
    "train --text novel.txt --training.steps=": ("--training.steps: given ''", "an integer"),
    "train --text novel.txt --epochs 3": ("--epochs: no such field here", "did you mean --training.steps?"),
    "train --text novel.txt --batch-size 8": ("--batch-size: no such field here", "did you mean --data.batch-size?"),
    "train --text novel.txt --lr 0.001": ("--lr: no such field here", "did you mean"),
    "train --text novel.txt --learning_rate 0.001": (
        "--learning_rate: no such field here",
        "--training.schedule.learning-rate?",
    ),
    "train --text novel.txt --seed 1": ("--seed: no such field here", "did you mean --training.seed?"),
    "train --text novel.txt --training.tensorboard yes": ("--training.tensorboard: given 'yes'", "True or False"),
    "train --text novel.txt --training.tensorboard true": ("--training.tensorboard: given 'true'", "True or False"),
    "train --text novel.txt --model.dim 100.0": ("--model.dim: given '100.0'", "an integer"),
    "train --text novel.txt --model.dim 127": ("model.num_heads: given 4", "a divisor of model.dim = 127, or set"),
    "train --text novel.txt --model.attention.memory-length off": (
        "--model.attention.memory-length: given 'off'",
        "an integer",
    ),
    "train --text novel.txt --data.tokenizer Bytes": (
        "--data.tokenizer: its kind (Bytes) is set in the config file or by",
        "its values (see --help)",
    ),
    "train --text novel.txt --model.attention Memorizing": (
        "--model.attention: its kind (TransformerXL) is set in the config file",
        "its values, such as --model.attention.",
    ),
    "train --text novel.txt --output out": ("--output: no such field here", "did you mean --workdir?"),
    "train --text novel.txt --run runs/novel": ("--run: given with --text", "one of the two"),
    "train --text novel.txt --encoding utf9": (
        "--encoding: given 'utf9'",
        "an encoding such as utf-8, utf-16, latin-1",
    ),
    "train --text novel.txt -n 3": ("-n: no such field here", "see --help"),
    "train --text novel.txt --quiet": ("--quiet: no such field here", "see --help"),
    "train --text novel.txt --skip=true": ("--skip: given 'true'", "no value"),
    "train --text novel.txt --strict --skip": ("--strict: given with --skip", "one of the two"),
    "train --text novel.txt --text-column body": ("--text-column: given with --text", "with --tasks or --add-task"),
    "train --text novel.txt --json": ("--json: no such field here", "see --help"),
    "train --text novel.txt --profile 5": ("--profile: given '5'", "FIRST:LAST, as 10:15 for steps 10 to 15"),
    "train --text novel.txt --workdir tiny.py": ("--workdir: given 'tiny.py/text_novel'", "a path in a folder"),
    "train --run runs/none": (
        "runs/none: no run directory (it has no config.json)",
        "a directory made by `memjax train`",
    ),
    "train --run runs/novel --training.steps 1": (
        "--training.steps: given 1",
        "2 or more, which the run in runs/novel was",
    ),
    "train --run runs/novel --model.dim 64": (
        "runs/novel: holds a run of another config, model.dim = 8 there and 64",
        "give another name, or remove the directory",
    ),
    "train --run novel.txt": (
        "novel.txt: no run directory (it has no config.json)",
        "a directory made by `memjax train`",
    ),
    "train --run runs": ("runs: no run directory (it has no config.json)", "a directory made by `memjax train`"),
    "train --run runs/novel --config tiny.py": ("--run: given with --config", "one of the two"),
    "train --config memorizing": ("--config: given 'memorizing'", "a config file or one of associative_recall"),
    "train --config tiny": ("--config: given 'tiny'", "a config file or one of associative_recall"),
    "train --config novel.txt": ("--config: given 'novel.txt'", "a Python file (NAME.py) with"),
    "train --config tiny.py --variant lokal": ("--variant: given 'lokal'", "did you mean local?"),
    "train --config tiny.py --variant=local --model.attention.memory-length 4": (
        "--model.attention.memory-length: no such field here",
        "did you mean --evaluation.memory-length or",
    ),
    "train --tasks": ("--tasks: given no value", "one (see --help)"),
    "train --tasks news.csv missing.csv": ("--tasks: given 'missing.csv', which does not exist", "a file or a folder"),
    "train --tasks news.csv news.csv": ("--tasks: given news.csv twice", "each file once"),
    "train --tasks news.csv,reviews.csv": (
        "--tasks: given 'news.csv,reviews.csv', which does not exist",
        "several with spaces",
    ),
    "train --tasks unlabelled.csv": (
        "unlabelled.csv: 21 classes in 21 rows, as '0'",
        ".csv with the class in the first column",
    ),
    "train --tasks novel.txt": ("novel.txt: given another ending", ".csv, .csv.xz, .csv.gz, .tsv, .tsv.xz"),
    "train --tasks news.csv --text-column boddy": (
        "--text-column: given 'boddy'",
        "row 1: class, title, text",
    ),
    "train --tasks news.csv reviews.csv --variant ewcc": (
        "--variant: given 'ewcc'",
        "default, single_task",
    ),
    "train --run runs/novel --add-task news.csv": (
        "--add-task: given a run of one task",
        "a run of a stream (memjax train --tasks ...)",
    ),
    "train --run runs/tasks --add-task missing.csv": (
        "--add-task: given 'missing.csv', which does not exist",
        "a file or a folder",
    ),
    "train --add-task news.csv": ("--add-task: given without a run", "--run DIR --add-task news.csv"),
    "eval": ("--run: not given", "--run DIR, a run directory"),
    "eval runs/novel": ("runs/novel: given without an option", "--run runs/novel (see --help)"),
    "eval novel": ("novel: given without an option", "--run novel (see --help)"),
    "eval --run": ("--run: given no value", "one (see --help)"),
    "eval --run runs/none": (
        "runs/none: no run directory (it has no config.json)",
        "a directory made by `memjax train`",
    ),
    "eval --run novel": ("novel: no run directory (it has no config.json)", "a directory made by `memjax train`"),
    "eval --run runs/novel": ("runs/novel/checkpoints: has no checkpoint", "the directory of a run that has saved one"),
    "eval --run runs": ("runs: no run directory (it has no config.json)", "a directory made by `memjax train`"),
    "eval --rum runs/novel": ("--rum: no such option of memjax eval", "did you mean --run?"),
    "eval --run runs/novel --memory none": ("--memory: given 'none'", "off, or a number of slots; several with"),
    "eval --run runs/novel --memory -1": ("--memory: given '-1'", "off, or a number of slots; several with"),
    "eval --run runs/novel --memory off 64": ("64: given without an option", "--option value (see --help)"),
    "eval --run runs/novel --memory 1e3": ("--memory: given '1e3'", "off, or a number of slots; several with"),
    "eval --run runs/novel --split test": ("--split: no such field here", "did you mean --evaluation.split?"),
    "eval --run runs/novel --evaluation.split valid": (
        "--evaluation.split: given 'valid'",
        "one of 'train', 'validation', 'test'",
    ),
    "eval --run runs/novel --probe": ("--probe: given a run of one task", "a run over tasks with classes"),
    "eval --run runs/novel --text novel.txt": ("--text: no such field here", "did you mean --data.source.path?"),
    "eval --run runs/novel --model.dim 64": (
        "--model.dim: cannot be changed here",
        "evaluation.*, model.attention.*, task.*",
    ),
    "eval --run runs/novel --checkpoint 2": ("--checkpoint: no such field here", "see --help"),
    "eval --run runs/novel --config tiny.py": ("--config: no such field here", "see --help"),
    "eval --run runs/novel --memory off --datastore nothing": (
        "--memory: given with --datastore",
        "one of the two: keys are of one memory",
    ),
    "eval --run runs/tasks --memory off": ("--memory: given off", "none with TokenBag"),
    "generate": ("--run: not given", "--run DIR, a run directory"),
    'generate runs/novel "Once upon a time"': ("runs/novel: given without an option", "--run runs/novel (see --help)"),
    'generate --run runs/novel "Once upon a time"': (
        "'Once upon a time': given without an option",
        "--prompt 'Once upon a time'",
    ),
    "generate --run runs/none --prompt hi": (
        "runs/none: no run directory (it has no config.json)",
        "a directory made by `memjax train`",
    ),
    "generate --run runs/novel --prompt hi": (
        "runs/novel/checkpoints: has no checkpoint",
        "the directory of a run that has saved one",
    ),
    "generate --run runs/tasks --prompt hi": ("generate: given ClassificationTask", "a run that continues texts"),
    "generate --prompt hi": ("--run: not given", "--run DIR, a run directory"),
    "generate --run runs/novel --prompt": ("--prompt: given no value", "one (see --help)"),
    "generate --run runs/novel --prompt hi --temperature -1": ("--temperature: given -1.0", "0 (greedy) or more"),
    "generate --run runs/novel --prompt hi --temperature 0,8": ("--temperature: given '0,8'", "a number"),
    "generate --run runs/novel --prompt hi --top-p 95": ("--top-p: given 95.0", "a probability in (0, 1]"),
    "generate --run runs/novel --prompt hi --top_p 2": ("--top_p: given 2.0", "a probability in (0, 1]"),
    "generate --run runs/novel --prompt hi --max_tokens ten": ("--max_tokens: given 'ten'", "an integer"),
    "generate --run runs/novel --prompt hi --max-new-tokens 10": (
        "--max-new-tokens: no such field here",
        "did you mean --max-tokens?",
    ),
    "generate --run runs/novel --prompt hi --length 10": ("--length: no such field here", "did you mean --max-tokens?"),
    "generate --run runs/novel --prompt hi --num-samples 3": ("--num-samples: no such field here", "see --help"),
    "generate --run runs/novel --prompt hi --greedy --temperature 0.5": (
        "--greedy: given with --temperature",
        "one of the two",
    ),
    "generate --run runs/novel --prompt hi --greedy=1": ("--greedy: given '1'", "no value"),
    "generate --run runs/novel --prompt-file missing.txt": ("--prompt-file: given 'missing.txt'", "a text file"),
    "generate --run runs/novel --file novel.txt": ("--file: no such field here", "did you mean --prompt-file?"),
    "generate --run runs/novel --prompt hi --seed 1.5": ("--seed: given '1.5'", "an integer"),
    "generate --run runs/novel --prompt hi --evaluation.split test": (
        "--evaluation.split: cannot be changed here",
        "evaluation.cache.*, data.source.*",
    ),
    "predict --run runs/novel --text hi": ("predict: given LanguageModeling", "a run that answers about a text"),
    "predict --run runs/tasks": ("--text: given none", "--text TEXT or --file FILE"),
    "predict --run runs/tasks missing.csv": ("missing.csv: no such file", "one whose rows are questions"),
    "predict --run runs/tasks --text ''": ("--text: given ''", "a text of at least one character; leave"),
    "predict --run runs/tasks --text hi --question why": ("--question: given with ClassificationTask", "--pair"),
    "predict runs/tasks --text hi": ("--run: not given", "--run DIR, a run directory"),
    "translate --run runs/novel --text hi": ("translate: given LanguageModeling", "a run that translates texts"),
    "sample --run runs/novel --to x.png": (
        "sample: given LanguageModeling",
        "a run that draws images; LanguageModeling",
    ),
    "sample --run runs/novel": ("--to: not given", "--to FILE, PNG file to write"),
    "report": ("RUN: not given", "a run directory"),
    "report --run runs/novel": ("--run: no such option of memjax report", "memjax report RUN, without an option"),
    "report runs/none": ("runs/none: no run directory (it has no config.json)", "a directory made by `memjax train`"),
    "report runs": ("runs: no run directory (it has no config.json)", "a directory made by `memjax train`"),
    "report runs/novel --only curvs": ("--only: given 'curvs'", "of curves, scores, streams, gains"),
    "report runs/novel --split dev": ("--split: given 'dev'", "'train', 'validation', 'test'"),
    "report runs/novel --rows 0": ("--rows: given 0", "an integer of at least 1"),
    "compare": ("RUN: not given", "a run directory whose run is finished"),
    "compare runs/none": ("runs/none: no run directory (it has no config.json)", "a directory made by `memjax train`"),
    "compare --runs runs/novel runs/tasks": (
        "--runs: no such option of memjax compare",
        "memjax compare RUN, without an option",
    ),
    "usage --run runs/novel": ("usage: the model has no value tables", "one with model.feed_forward ProductKey"),
    "usage runs/novel": ("runs/novel: given without an option", "--run runs/novel (see --help)"),
    "datastore": ("action: not given", "plan: Computes the bytes and the time that"),
    "datastore biuld --run runs/novel --path s": ("action: given 'biuld'", "'plan', 'build', 'index', 'verify'"),
    "datastore build --run runs/novel": ("--path: not given", "--path DIR, folder of the store"),
    "datastore build --run runs/tasks --path s": (
        "datastore: given TokenBag",
        "a model that shows the inner tensors of its",
    ),
    "datastore --run runs/novel": ("action: given 'runs/novel'", "'plan', 'build', 'index', 'verify'"),
    "plan --config tiny.py": ("--topology: not given", "--topology NAME, TPU topology, such as"),
    "plan --config tiny.py --topology tpu": ("--topology: given 'tpu'", "a slice of v4, v5e, v5p, v6e, tpu7x, as"),
    "import gpt2": ("gpt2: given without an option", "--weights gpt2 (see --help)"),
    "import --weights missing --run runs/gpt2": (
        "--weights: missing is no folder",
        "one as save_pretrained writes it, or a name",
    ),
    "export --run runs/none --to out": (
        "runs/none: no run directory (it has no config.json)",
        "a directory made by `memjax train`",
    ),
    "export --run runs/novel": ("--to: not given", "--to DIR, folder to write, which must be"),
    "configs memorizing": ("config: given 'memorizing'", "a config file or one of associative_recall"),
    "configs --json=1": ("--json: given '1'", "no value"),
    "data prepare --config tinyy": ("--config: given 'tinyy'", "a config file or one of associative_recall"),
    "data novel.txt": ("novel.txt: given without an option", "--text novel.txt"),
    "data --text missing.txt": (
        "--text: missing.txt does not exist and matches no file",
        "give a file, a folder or a glob",
    ),
    "demo 5": ("5: given without an option", "--option value (see --help)"),
    "demo --minutes 5": ("--minutes: no such option of memjax demo", "see --help"),
    "doctor --verbose": ("--verbose: no such option of memjax doctor", "see --help"),
    "migrate": ("FILE: not given", "a Python file"),
    "help trian": ("verb: given 'trian'", "train, sweep, configs, eval, compare, report"),
    "datastore stats --path nowhere": (
        "--path: nowhere is not a datastore",
        "a folder that `memjax datastore build` has made",
    ),
    "migrate missing.py": ("missing.py: No such file or directory", "a text file"),
    "train -help": ("-help: no such option of memjax train", "did you mean --help?"),
    "train help": ("help: given without an option", "--help"),
    "generate --run runs/novel --prompt hi --greedy --top_p 0.9": ("--greedy: given with --top-p", "one of the two"),
}
"""Command line -> beginning of the line about it after the verb, and a part of what is allowed"""

CONFIG = """
from memjax.config import *

VARIANTS = {"default": "a memory", "local": "none"}

def get_config(variant="default"):
    attention = TransformerXL(memory_length=8) if variant == "default" else FullAttention()
    return Config(name="tiny", model=Model(dim=8, num_layers=1, num_heads=2, attention=attention))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with texts, tables, a config, and two runs that have a configuration and nothing else."""
    path = tmp_path_factory.mktemp("mistakes")
    (path / "novel.txt").write_text("a few words of a novel. " * 1000)
    (path / "empty.txt").write_text("")
    (path / "nothing").mkdir()
    (path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
    for name, classes in {"news": ("World", "Sports"), "reviews": ("good", "bad")}.items():
        rows = [f"{classes[number % 2]},title {number},some text {number}" for number in range(40)]
        (path / f"{name}.csv").write_text("\n".join(["class,title,text", *rows]))
    (path / "unlabelled.csv").write_text("\n".join(["id,body", *(f"{number},some words" for number in range(20))]))
    (path / "tiny.py").write_text(CONFIG)
    data = Data(source=TextFiles(path="novel.txt"), tokenizer=Bytes(), batch_size=2, segment_length=8)
    model = Model(dim=8, num_layers=1, num_heads=2, attention=TransformerXL(memory_length=8))
    settings = {"training": Training(steps=2), "evaluation": Evaluation(batch_size=2)}
    novel = Config(name="novel", model=model, data=data, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        from memjax.cli.own_tasks import tasks_config

        tasks, _ = tasks_config(["news.csv", "reviews.csv"])
    for name, config in {"novel": novel, "tasks": dataclasses.replace(tasks, name="tasks")}.items():
        (path / "runs" / name).mkdir(parents=True)
        write_json(path / "runs" / name / "config.json", config_to_dict(config))
    return path


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def contents(folder):
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}


def refuse(command, capsys):
    """The match of the only line that a command prints. It must have exit code 2 and leave all files as they were."""
    before = contents(Path.cwd())
    capsys.readouterr()
    code = main(shlex.split(command))
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, ""), printed
    (line,) = printed.err.splitlines()
    assert contents(Path.cwd()) == before
    match = LINE.fullmatch(line)
    assert match, line
    return match


def sample_rows(table):
    """Every fourth in `make test`, all among the laws."""
    return [pytest.param(row, marks=[pytest.mark.laws] if number % 4 else []) for number, row in enumerate(table)]


def test_ways_to_start_are_printed_for_train_without_a_word(capsys):
    assert main(["train"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    for way in ("--text", "--tasks", "--config", "--run"):
        assert f"  memjax train {way} " in printed.err


@pytest.mark.parametrize("command", ["help train", "--help train", "train -h", "train --help"])
def test_every_form_of_asking_for_help_of_a_verb(here, capsys, command):
    assert main(command.split()) == 0
    assert "usage: memjax train" in capsys.readouterr().out


@pytest.mark.parametrize("command", sample_rows(MISTAKES))
def test_a_mistake_is_one_line_with_the_name_as_typed(here, capsys, command):
    wrong, allowed = MISTAKES[command]
    match = refuse(command, capsys)
    assert match["wrong"].startswith(wrong)
    assert allowed in (match["allowed"] or match["proposal"])
