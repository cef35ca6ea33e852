"""Files of one's own as tasks: what becomes of their classes, and a stream of them from the command line."""

import csv
import json
import random
import re
from pathlib import Path

import pytest

from memjax.cli import main
from memjax.cli.own_tasks import add_task_from_file, tasks_config
from memjax.config import CachedFeatures, LabelledFile, MbPA, ModelSettings, TextClasses, TextFiles, TokenBag
from memjax.data.source_readers import read_classified_texts
from memjax.settings.checks import validate
from memjax.settings.named_methods import METHODS
from memjax.settings.overrides import load_config
from memjax.training.runs import load_config as load_run_config
from tests.training.loop_test import final_arrays

WORDS = {
    "fruit": {"1": ("apple", "pear", "plum"), "2": ("carrot", "leek", "bean")},
    "mood": {"good": ("fine", "great", "nice"), "bad": ("poor", "awful", "sad")},
    "taste": {"good": ("lovely", "tasty", "nice"), "odd": ("weird", "strange", "bland")},
}
CONFIG = """
from memjax.config import *
VARIANTS = ("default", "mbpa")
def get_config(variant="default"):
    attention = Bidirectional(num_positions=12)
    model = Model(dim=8, num_layers=1, num_heads=2, attention=attention, feed_forward=Dense(dim=16))
    data = Data(source=Templates(), tokenizer=WordPiece(vocab_size=64), cache_dir="c", batch_size=4, segment_length=12)
    memory = EpisodicMemory(write_policy="all", capacity=200)
    replay = {"memory": memory, "replay_interval": 16, "replay_batch_size": 4, "key_source": "first"}
    method = MbPA(**replay, num_neighbors=3, adaptation_steps=2, adaptation_learning_rate=0.1)
    return Config(
        name="tiny", model=model, data=data, task=Classification(num_classes=8),
        evaluation=Evaluation(batch_size=4, split="test"),
        training=Training(schedule=Schedule(warmup_steps=0, decay="constant"), log_every=0),
        lifelong=Lifelong(method=method if variant == "mbpa" else Sequential(), epochs=1),
    )
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The working directory with a file a task and a config `stream.py`."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    for name, classes in WORDS.items():
        with open(f"{name}.csv", "w", newline="") as file:
            for number in range(40):
                label = draw.choice([*classes])
                words = " ".join(draw.choices(classes[label], k=3))
                csv.writer(file).writerow([label, f"no {number}", f"{words} {number}"])
    (tmp_path / "stream.py").write_text(CONFIG)
    return tmp_path


def classes_of(config):
    return {
        task.name: dict(zip(task.source.classes, task.source.class_ids, strict=True)) for task in config.lifelong.tasks
    }


def test_classes_have_the_same_numbers_in_every_order_and_later_ones_follow(files):
    config, what = tasks_config(["taste.csv", "fruit.csv"], "stream.py")
    assert what.startswith("2 tasks (taste, fruit), 4 classes in a head of 8; Sequential")
    other, _ = tasks_config([str(files / "fruit.csv"), "taste.csv"], "stream.py")
    wanted = {"fruit": {"1": 0, "2": 1}, "taste": {"good": 2, "odd": 3}}
    assert classes_of(config) == classes_of(other) == wanted
    assert [task.name for task in config.lifelong.ordered_tasks] == ["taste", "fruit"]
    assert config.data.source == other.data.source and config.lifelong.sources_dir == str(files)
    later, what = add_task_from_file(config, "mood.csv")
    validate(later)
    assert classes_of(later) == {**wanted, "mood": {"bad": 4, "good": 2}} and "5 classes" in what
    whole, _ = tasks_config(["taste.csv", "fruit.csv", "mood.csv"], "stream.py", "mbpa")
    # A word is one class wherever it stands; a number is its file's own.
    assert len({number for own in classes_of(whole).values() for number in own.values()}) == 5
    assert isinstance(whole.lifelong.method, MbPA) and whole.task.num_classes == 10
    splits = read_classified_texts(later.lifelong.with_sources_dir(later.lifelong.tasks[-1].source)).texts
    assert {example.label for examples in splits.values() for example in examples} == {2, 4}
    assert sum(map(len, splits.values())) == 40 and all(splits.values())
    with pytest.raises(ValueError, match=r"mood.csv, row \d+: class 'bad', allowed: good"):
        read_classified_texts(LabelledFile(path="mood.csv", classes=("good",), class_ids=(0,)))


def test_a_file_may_have_a_header_or_be_a_folder_with_splits_or_json(files):
    folder = files / "news"
    folder.mkdir()
    (folder / "train.csv").write_text("title,text,label\n" + "one,first words,yes\ntwo,other words,no\n" * 5)
    rows = [{"sentence": "Title: three\nText: third words", "label": "no"}]
    (folder / "test.json").write_text(json.dumps(rows))
    config, what = tasks_config(["news", "fruit.csv"])
    assert "4 classes in a head of 33; Sequential, TokenBag" in what
    assert isinstance(config.model, TokenBag) and config.lifelong.vocabulary == "tasks"
    assert classes_of(config)["news"] == {"no": 2, "yes": 3}
    found = read_classified_texts(config.lifelong.with_sources_dir(config.lifelong.tasks[0].source))
    assert [example.texts for example in found.texts["test"]] == [("three. third words",)]
    assert {example.texts[0] for example in found.texts["train"]} <= {"one. first words", "two. other words"}
    (folder / "train.csv").unlink()
    with pytest.raises(ValueError, match="no examples for the train split in its 1 rows, allowed: at least one"):
        read_classified_texts(LabelledFile(path=str(folder), classes=("no",), class_ids=(0,), test_percent=100))


def test_other_runs_take_the_kind_of_data_that_they_read(files):
    (files / "dbpedia").mkdir()
    (files / "dbpedia" / "train.csv").write_text("1,a title,a text\n")
    published = load_config("lifelong_text", "encoder")
    published.lifelong.tasks = tuple(task for task in published.lifelong.tasks if task.name != "dbpedia")
    source = add_task_from_file(published, "dbpedia")[0].lifelong.tasks[-1].source
    assert isinstance(source, TextClasses) and (source.data_set, source.num_train) == ("dbpedia", 2000)
    with pytest.raises(
        ValueError, match="mood has 2 new classes beside 19, the head of the run has 33, allowed: .* 35 or"
    ):
        add_task_from_file(published, "mood.csv")
    for variant in ("mbpa_pp", ""):
        with pytest.raises(
            ValueError, match=r"--tasks: given .*dbpedia with .* reads vectors, allowed: .*--variant bag"
        ):
            tasks_config(["dbpedia"], "lifelong_text", variant)
    (files / "dbpedia" / "train.npy").write_bytes(b"")
    vectors, _ = tasks_config(["dbpedia"], "lifelong_text")
    assert isinstance(vectors.lifelong.tasks[0].source, CachedFeatures) and vectors.task.num_classes == 33
    texts, _ = tasks_config(["mood.csv", "taste.csv"], "transformer_xl_python")
    assert [type(task.source) for task in texts.lifelong.tasks] == [TextFiles, TextFiles]
    narrow, _ = tasks_config(["fruit.csv"], "stream.py")
    narrow.task.num_classes = 2
    with pytest.raises(
        ValueError, match="mood has 2 new classes beside 2, the head of the run has 2, allowed: .* 4 or"
    ):
        add_task_from_file(narrow, "mood.csv")


@pytest.mark.parametrize("method", METHODS)
def test_labelled_files_take_every_method(files, method):
    config, what = tasks_config(["fruit.csv", "mood.csv"], method=method)
    validate(config)
    assert type(config.lifelong.method) is METHODS[method].kind and config.name == f"tasks_fruit_mood_{method}"
    assert [type(task.source) for task in config.lifelong.tasks] == [LabelledFile] * 2
    assert "4 classes" in what and "Settings" not in what
    if method in ("multi_task", "gem", "emr", "ea_emr", "emar", "elle", "o_lora", "task_adapters"):
        kind = METHODS[method].kind.__name__
        with pytest.raises(ValueError, match=rf"lifelong.method: given {kind}, allowed .*; or a new run with all of"):
            add_task_from_file(config, "taste.csv")
        return
    longer, _ = add_task_from_file(config, "taste.csv")
    assert len(longer.lifelong.tasks) == 3


def test_a_config_may_be_named_beside_a_method(files):
    config, _ = tasks_config(["fruit.csv"], "lifelong_text", "small", method="mbpa_pp")
    assert isinstance(config.model, ModelSettings) and config.lifelong.method.key_source == "first"
    config, _ = tasks_config(["fruit.csv"], "stream.py", method="ewc")
    assert config.model.dim == 8 and config.data.batch_size == 4
    texts, _ = tasks_config(["mood.csv"], "transformer_xl_python", method="replay")
    assert texts.task.fixed_length_examples and isinstance(texts.lifelong.tasks[0].source, TextFiles)
    validate(texts)


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--method", "mbpapp"], "--method: given 'mbpapp', allowed: sequential, .*; did you mean mbpa_pp?"),
        (["--variant", "small_ewc"], "; ewc is a name for --method ewc, beside --variant small"),
        (["--config", "ewc"], "; ewc is a name for --method ewc"),
        (["--config", "lifelong_text"], "allowed: files for a model that reads texts: --variant bag or"),
        (["--method", "elle", "--variant", "bag"], "model: given 'TokenBag', allowed: GPT2, .* which grow"),
        (["--method", "lamol", "--variant", "bag"], "task: given 'Classification', allowed: Instructions with LAMOL"),
        (["--memory-kind", "rfa"], "--memory-kind: given rfa with tasks_fruit, whose task Classification has no"),
    ],
)
def test_mistakes(files, capsys, arguments, told):
    assert main(["train", "--tasks", "fruit.csv", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(told.replace("?", r"\?"), line), line


@pytest.mark.parametrize("method", ["elle", "gem"])
def test_a_method_that_divides_its_memory_by_the_tasks_takes_no_further_one(files, method):
    config, _ = tasks_config(["fruit.csv", "mood.csv"], method=method)
    kind = type(config.lifelong.method).__name__
    with pytest.raises(ValueError, match=f"^lifelong.method: given {kind}, .*not divided by the tasks; or a new run"):
        add_task_from_file(config, "taste.csv")


@pytest.mark.slow
def test_two_files_and_later_a_third_are_three_in_one_go(files, capsys):
    size = ["--task.num-classes", "8"]
    both = ["train", "--config", "stream.py", "--variant", "mbpa", *size]
    same = ["--lifelong.vocabulary", "source"]  # else the tokenizer is that of all three files
    assert main([*both, *same, "--name", "later", "--tasks", "fruit.csv", "mood.csv"]) == 0
    assert main([*both, *same, "--name", "whole", "--tasks", "fruit.csv", "mood.csv", "taste.csv"]) == 0
    more = ["train", "--run", "runs/later", "--add-task", "taste.csv"]
    assert main(more) == 0
    (path := files / "runs" / "later").rename(files / "moved")
    assert main(["train", "--run", "moved"]) == 0 and not path.exists()
    assert "finished after" in capsys.readouterr().err
    assert main(["train", "--run", "moved", "--add-task", "taste.csv"]) == 2
    assert "--add-task: given taste.csv, a task of the run already" in capsys.readouterr().err
    assert load_run_config("moved").lifelong == load_run_config("runs/whole").lifelong
    (step, arrays, extra), (wanted_step, wanted, wanted_extra) = (
        final_arrays(files / "moved"),
        final_arrays(files / "runs" / "whole"),
    )
    # A run of three tasks has one line more: it evaluates the third one also before the others came.
    assert extra.pop("log_lines") == wanted_extra.pop("log_lines") - 1
    assert (step, extra) == (wanted_step, wanted_extra) and arrays.keys() == wanted.keys()
    assert [name for name, array in arrays.items() if array.tobytes() != wanted[name].tobytes()] == []
    capsys.readouterr()
    assert main(["eval", "--run", "moved"]) == 0
    assert re.search("^accuracy after +fruit +mood +taste$", capsys.readouterr().out, re.MULTILINE)
    # Rows of a file: class, probability, and the examples that the answer was adapted to.
    Path("asked.txt").write_text("apple pear\n\nnice great fine\n")
    assert main(["predict", "--run", "moved", "asked.txt", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["apple pear", "nice great fine"]
    for row in rows:
        assert row["answer"] in ("fruit/1", "fruit/2", "good", "bad", "odd", *"567") and 0 < row["probability"] <= 1
        assert row["candidates"][0][0] == {name: row[name] for name in ("answer", "probability")}
        assert len(row["neighbors"]) == 3 and all(0 <= number < 120 for number in row["neighbors"])
    assert main(["predict", "--run", "moved", "mood.csv"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 40 and all(len(line) == 3 and len(line[2].split()) == 3 for line in lines)
    assert main(["predict", "--run", "moved", "nowhere.csv"]) == 2
    assert "nowhere.csv: no such file" in capsys.readouterr().err
