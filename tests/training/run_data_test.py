"""A run reads what it was made of, or says so: every source, changed and unchanged."""

import collections
import contextlib
import dataclasses
import json
import os
import shutil
import struct
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from memjax import config as configs
from memjax.cli.own_tasks import tasks_config
from memjax.data.annotations import write_neighbors
from memjax.data.saved_tokenizers import save_tokenizer
from memjax.data.source_files import source_files
from memjax.data.text_classes import labelled_texts
from memjax.durable_files import write_json
from memjax.lifelong import make_learner_and_stages
from memjax.training.experiment import make_experiment
from memjax.training.run_data import RunData, read_record
from memjax.training.runs import config_to_dict, load_config, open_tokenizer, run_path
from memjax.training.update_functions import make_objective

WORDS = "one two three four five six seven eight".split()
"""words of the texts"""


def sentence(number):
    return " ".join(WORDS[(number * k) % 8] for k in (1, 3, 5, 7)) + f" {number}"


def write_texts(folder):
    (folder / "text.txt").write_text("".join(f"{sentence(n)}\n" for n in range(80)))
    return configs.TextFiles(path=str(folder / "text.txt"))


def write_folder(folder):
    (folder / "texts").mkdir()
    for n in range(60):
        (folder / "texts" / f"{n}.txt").write_text(sentence(n))
    return configs.TextFiles(path=str(folder / "texts"))


def write_lines(folder):
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": sentence(n)}) + "\n" for n in range(80)))
    return configs.JsonLines(path=str(folder / "lines.jsonl"))


def write_wikitext(folder):
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(f" \n = {split} = \n \n a text of one two \n")
    return configs.WikiText(path=str(folder))


def write_directories(folder):
    for n in range(60):
        (folder / f"project_{n}").mkdir()
        (folder / f"project_{n}" / "main.py").write_text(f"x = {n}\n" * 9)
    return configs.Directories(path=str(folder))


def write_labelled(folder):
    (folder / "mood.csv").write_text("".join(f"{'good' if n % 2 else 'bad'},,{sentence(n)}\n" for n in range(60)))
    return configs.LabelledFile(path=str(folder / "mood.csv"), classes=("bad", "good"), class_ids=(0, 1))


def write_glue(folder):
    for name, size in (("train", 60), ("dev", 20)):
        rows = (f"x\t{n % 2}\t\t{name} {sentence(n)}\n" for n in range(size))
        (folder / f"{name}.tsv").write_text("".join(rows))
    return configs.Glue(name="cola", path=str(folder))


def write_questions(folder):
    qas = [{"question": "q", "id": "1", "answers": [{"text": "b", "answer_start": 2}]}]
    for name, size in (("train", 40), ("dev", 40)):
        data = [{"title": f"{name} {n}", "paragraphs": [{"context": f"a b {sentence(n)}", "qas": qas}]}
                for n in range(size)]  # fmt: skip
        (folder / f"{name}-v1.1.json").write_text(json.dumps({"version": "1.1", "data": data}))
    return configs.Squad(path=str(folder))


def write_vectors(folder):
    values = np.arange(160, dtype=np.float32).reshape(40, 4)
    for split in ("train", "test"):
        np.save(folder / f"{split}.npy", values)
        np.save(folder / f"{split}_labels.npy", np.arange(40, dtype=np.int32) % 2)
    (folder / "about.json").write_text("{}")
    return configs.CachedFeatures(path=str(folder))


def write_digits(folder):
    images = np.random.RandomState(0).randint(0, 256, (5010, 2, 2)).astype(np.uint8)
    labels = (np.arange(5010) % 2).astype(np.uint8)
    for name in ("train", "t10k"):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, 5010, 2, 2) + images.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, 5010) + labels.tobytes())
    return configs.Digits(path=str(folder))


SOURCES = {
    write.__name__.removeprefix("write_"): write
    for write in (
        *(write_texts, write_folder, write_lines, write_wikitext, write_directories),
        *(write_labelled, write_glue, write_questions, write_vectors, write_digits),
    )
}


def make_config(folder, kind):
    """A configuration that reads such a source below a folder."""
    (folder / "data").mkdir(parents=True)
    source = SOURCES[kind](folder / "data")
    model, task = configs.Model(dim=8, num_layers=1, num_heads=2, attention=configs.FullAttention()), None
    bidirectional = configs.Bidirectional(num_positions=64)
    if kind in ("labelled", "glue"):
        task, model.attention = configs.Classification(num_classes=2), bidirectional
    elif kind == "questions":
        task, model.attention = configs.QuestionAnswering(max_question_length=8, stride=8), bidirectional
    elif kind in ("vectors", "digits"):
        task, model = configs.Classification(num_classes=2), configs.Perceptron(widths=(4,))
    tokenizer = configs.WordPiece(vocab_size=90) if task else configs.Bytes()
    data = configs.Data(
        source=source, tokenizer=tokenizer, cache_dir=str(folder / "cache"), batch_size=2, segment_length=64
    )
    data.segment_length = 4 if kind in ("vectors", "digits") else 64
    fields = {"task": task} if task else {}
    return configs.Config(name="run", workdir=str(folder / "runs"), model=model, data=data, **fields)


def train(config, *splits):
    """A run directory, as training leaves it, that has opened some splits."""
    path = run_path(config)
    path.mkdir(parents=True)
    write_json(path / "config.json", config_to_dict(config))
    experiment = make_experiment(config, run_data=RunData(path, is_training=True))
    for split in splits:
        experiment.documents(split)
    experiment.run_data.keep(path)
    if experiment.tokenizer is not None:
        save_tokenizer(experiment.tokenizer, path / "tokenizer")
    return path


def reopen(path, config=None, tell=lambda line: None, **named):
    """Opens the experiment of a run as a verb does."""
    saved = load_config(path)
    run_data = RunData.of_run(path, saved, config, tell=tell, **named)
    return make_experiment(config or saved, tokenizer=open_tokenizer(path), run_data=run_data)


@pytest.fixture(scope="module", params=SOURCES)
def trained_run(request, tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp(request.param), request.param)
    return config, train(config, "train", "validation")


@pytest.fixture
def place(trained_run, tmp_path, monkeypatch):
    """A copy of a run with its data."""
    config, path = trained_run
    source = path.parent.parent
    shutil.copytree(source, tmp_path / "w")
    return tmp_path / "w" / "runs" / "run", move(config, source, tmp_path / "w")


def move(config, old, new):
    path = str(config.data.source.path).replace(str(old), str(new))
    return dataclasses.replace(
        config,
        workdir=str(new / "runs"),
        data=dataclasses.replace(config.data, source=dataclasses.replace(config.data.source, path=path)),
    )


def fingerprints(experiment):
    return [experiment.documents(split).fingerprint for split in ("train", "validation", "test")]


def test_unchanged_data_is_read_without_a_word(trained_run):
    config, path = trained_run
    lines = []
    for file in source_files(config.data.source):
        os.utime(file)  # touched
    opened = fingerprints(reopen(path, tell=lines.append))
    assert lines == [] and opened == fingerprints(make_experiment(config))


def make_lines(folder):
    (folder / "0.jsonl").write_text("".join(json.dumps({"text": sentence(n)}) + "\n" for n in range(80)))
    return configs.JsonLines(path=str(folder))


def make_novels(folder):
    for n in range(60):
        (folder / f"{n}.txt").write_text(sentence(n))
    return configs.Novels(path=str(folder))


def make_labelled(folder):
    (folder / "train.csv").write_text("".join(f"{'good' if n % 2 else 'bad'},,{sentence(n)}\n" for n in range(60)))
    return configs.LabelledFile(path=str(folder), classes=("bad", "good"), class_ids=(0, 1))


FOLDERS = {"texts": write_folder, "directories": write_directories} | {
    make.__name__.removeprefix("make_"): make for make in (make_lines, make_novels, make_labelled)
}
BESIDE = {
    "a picture": ("cover.png", b"\x89PNG\r\n\x1a\n" + bytes(20)),
    "an empty file": ("empty", b""),
    "compiled code": ("main.pyc", b"\xa7\r\r\n" + bytes(20)),
    "hidden": (".notes", b"to do"),
}
"""files that no source reads: name and content"""


@pytest.mark.parametrize("kind", FOLDERS)
def test_files_that_are_not_read_are_no_data(tmp_path, kind):
    (tmp_path / "data").mkdir()
    source = FOLDERS[kind](tmp_path / "data")
    config = make_config(tmp_path / "run", "labelled" if kind == "labelled" else "texts")
    config.data.source = source
    path, lines = train(config, "train", "validation"), []
    before, folder = fingerprints(make_experiment(config)), Path(source.path)
    folder = next(entry for entry in folder.iterdir()) if kind == "directories" else folder
    for name, content in BESIDE.values():
        (folder / name).write_bytes(content)
    assert fingerprints(reopen(path, tell=lines.append)) == before and lines == []
    assert {file.name for file in source_files(source)}.isdisjoint(name for name, _ in BESIDE.values())
    files = [file for file in source_files(source) if file.stat().st_size]
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"9")
    with pytest.raises(ValueError, match="the data has changed since it was trained"):
        fingerprints(reopen(path))


def test_a_copied_run_reads_the_data_beside_it(place, trained_run):
    path, config = place
    assert reopen(path, config).documents("train").fingerprint is not None
    record = read_record(path)
    assert set(record[""]["splits"]) >= {"train", "validation"} and record[""]["files"]
    experiment = reopen(path, config)
    experiment.documents("train")
    assert experiment.run_data.other == []  # the same content elsewhere is the same data


def change(file, how):
    content = file.read_bytes()
    half = len(content) // 2
    {
        "cut": lambda: file.write_bytes(content[: len(content) * 3 // 4]),
        "longer": lambda: file.write_bytes(content + content[-40:]),
        "byte": lambda: file.write_bytes(content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]),
        "gone": file.unlink,
    }[how]()


@pytest.mark.parametrize("how", ["cut", "longer", "byte", "gone"])
def test_changed_data_is_refused_with_the_file(place, trained_run, how):
    path, config = place
    write_json(path / "config.json", config_to_dict(config))
    file = max(source_files(config.data.source), key=lambda file: file.stat().st_size)
    size = file.stat().st_size
    change(file, how)
    with pytest.raises(ValueError) as error:
        fingerprints(reopen(path))
    line = str(error.value)
    assert "\n" not in line and str(file) in line and "allowed: " in line
    if how == "gone":
        assert "is gone" in line or "looked for" in line
    else:
        assert "has changed since it was trained" in line and f"{size:,}" in line


def test_other_data_that_the_user_names_is_read_and_said(place, trained_run):
    path, config = place
    write_json(path / "config.json", config_to_dict(config))
    lines = []
    file = source_files(config.data.source)[0]
    change(file, "gone" if len(source_files(config.data.source)) > 20 else "byte")
    experiment = reopen(path, tell=lines.append, is_named=True)
    with contextlib.suppress(ValueError):  # of the reader, where the file is damaged now
        fingerprints(experiment)
    if experiment.run_data.other:
        assert config.data.source.path in lines[-1] and "other data than that of training" in lines[-1]


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(st.data())
def test_any_changed_byte_of_a_text_is_seen(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    config = make_config(folder, "texts")
    config.data.source.validation_percent = config.data.source.test_percent = 20
    path = train(config, "train", "validation", "test")
    file = folder / "data" / "text.txt"
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.sampled_from(sorted(set(b"abcxyz \n") - {content[place]})))
    file.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="has changed since it was trained: .*text.txt has other content in its"):
        fingerprints(reopen(path))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_that_was_never_opened_is_compared_by_its_files(tmp_path, split):
    config = make_config(tmp_path, "glue")
    path = train(config, split)
    change(tmp_path / "data" / "dev.tsv", "cut")
    with pytest.raises(ValueError, match="dev.tsv has .* bytes, it had"):
        fingerprints(reopen(path))


def test_other_settings_of_the_documents_compare_the_files(tmp_path):
    config = make_config(tmp_path, "labelled")
    path = train(config, "train", "validation")
    other = dataclasses.replace(config, task=dataclasses.replace(config.task, prompt="none"))
    other.data = dataclasses.replace(config.data, segment_length=32)
    assert reopen(path, other).documents("train")
    change(tmp_path / "data" / "mood.csv", "cut")
    with pytest.raises(ValueError, match="mood.csv has .* bytes, it had"):
        reopen(path, other).documents("train")


def test_drawn_sources_have_no_files_and_are_compared_by_their_documents(tmp_path):
    config = make_config(tmp_path, "texts")
    config.data.source = configs.KeyValueRecall(num_documents=16)
    path = train(config, "train")
    lines = []
    assert fingerprints(reopen(path, tell=lines.append)) and lines == []
    record = read_record(path)
    record[""]["splits"]["train"] = ["another", 16]
    write_json(path / "data.json", {"version": 1, "tasks": record})
    for split in ("train", "test"):
        with pytest.raises(ValueError, match="the train split has other content in its 16 examples"):
            reopen(path).documents(split)


def test_neighbours_of_another_store_are_refused(tmp_path):
    config = make_config(tmp_path, "texts")
    config.model.output = configs.Spalm(num_neighbors=2)
    folder, plain = tmp_path / "neighbors", make_experiment(make_config(tmp_path / "plain", "texts"))

    def write(store, value):
        for split in ("train", "validation"):
            documents = plain.documents(split)
            total = sum(documents.num_tokens(index) for index in range(len(documents)))
            write_neighbors(folder, split, np.full((total, 2), value), documents, store=store)

    write("one", 5)
    config.data.neighbors_dir = str(folder)
    path = train(config, "train", "validation")
    assert reopen(path).documents("train").fingerprint
    shutil.rmtree(folder)
    write("two", 6)
    with pytest.raises(ValueError, match="the train split has other content"):
        reopen(path).documents("train")


# How often a source is read


def test_own_files_are_parsed_once_before_the_first_update(tmp_path, monkeypatch):
    """By everything that training opens: tokenizer, notes, stages and evaluations of every task."""
    parses = collections.Counter()

    def count(path, *arguments, **named):
        parses[Path(path).name] += 1
        return labelled_texts(path, *arguments, **named)

    monkeypatch.setattr("memjax.data.labelled_rows.labelled_texts", count)
    monkeypatch.chdir(tmp_path)
    for name in ("fruit", "mood"):
        rows = (f"{'good' if n % 2 else name},,{sentence(n)} {name}\n" for n in range(60))
        (tmp_path / f"{name}.csv").write_text("".join(rows))
    base = make_config(tmp_path / "base", "labelled")
    base.lifelong = configs.Lifelong(epochs=1)
    monkeypatch.setattr("memjax.cli.own_tasks.load_config", lambda name, variant: base)
    config, _ = tasks_config([str(tmp_path / "fruit.csv"), str(tmp_path / "mood.csv")], "own")
    config.evaluations = tuple(dataclasses.replace(config.evaluation, name=n, task=n) for n in ("fruit", "mood"))
    experiment = make_experiment(config)
    experiment.notes()
    make_learner, _ = make_learner_and_stages(experiment, None, make_objective)
    make_learner(())
    assert parses == {"fruit.csv": 1, "mood.csv": 1}
    (tmp_path / "fruit.csv").write_text((tmp_path / "fruit.csv").read_text() * 2)
    experiment.of_task("fruit").documents("train")
    assert parses["fruit.csv"] == 2, "a changed file is read again"


# Where data lies


def at(folder, monkeypatch):
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)


@pytest.fixture
def typed_run(tmp_path, monkeypatch):
    """A run whose path was typed relative to the folder that it was trained in."""
    config = make_config(tmp_path / "project", "texts")
    monkeypatch.chdir(tmp_path / "project")
    config.data.source.path, config.workdir, config.data.cache_dir = "data/text.txt", "runs", str(tmp_path / "cache")
    return train(config, "train").resolve(), config


def test_a_relative_path_is_found_from_everywhere(typed_run, tmp_path, monkeypatch):
    path, config = typed_run
    wanted = reopen(path).documents("train").fingerprint
    assert reopen(path).config == config, "as typed"
    at(tmp_path / "elsewhere", monkeypatch)
    assert reopen(path).documents("train").fingerprint == wanted
    assert reopen(path).config.data.source.path == str(tmp_path / "project" / "data" / "text.txt")
    # Another text of that name here is not taken for it.
    (tmp_path / "elsewhere" / "data").mkdir()
    (tmp_path / "elsewhere" / "data" / "text.txt").write_text("other " * 99)
    assert reopen(path).documents("train").fingerprint == wanted
    # Run and data move together, or the run alone.
    shutil.copytree(tmp_path / "project", tmp_path / "copied")
    (tmp_path / "project" / "data").rename(tmp_path / "project" / "gone")
    assert reopen(tmp_path / "copied" / "runs" / "run").documents("train").fingerprint == wanted
    (tmp_path / "project" / "gone").rename(tmp_path / "project" / "data")
    (tmp_path / "copied" / "runs" / "run").rename(tmp_path / "alone")
    assert reopen(tmp_path / "alone").documents("train").fingerprint == wanted


def test_what_is_nowhere_names_all_places(typed_run, tmp_path, monkeypatch):
    path, _ = typed_run
    at(tmp_path / "elsewhere", monkeypatch)
    (tmp_path / "project" / "data" / "text.txt").unlink()
    with pytest.raises(ValueError) as error:
        reopen(path).documents("train")
    line = str(error.value)
    for place in ("data/text.txt", str(tmp_path / "project" / "runs" / "data" / "text.txt"), "--data.source.path"):
        assert place in line


# Runs of earlier versions


def earlier(path, **stream):
    """The run without a record, and what its checkpoint holds."""
    (path / "data.json").unlink()
    return {"position": {"stage": 0, "phase": "steps", "steps": [4], "stream": {"stream": stream, "rows": {}}}}


def test_a_run_of_an_earlier_version_is_compared_by_its_checkpoint(typed_run, tmp_path):
    path, _ = typed_run
    documents = reopen(path).documents("train")
    extra = earlier(path, fingerprint=documents.fingerprint, documents=len(documents))
    lines = []
    assert fingerprints(reopen(path, extra=extra, tell=lines.append)) and lines == []
    assert not (path / "data.json").exists()
    change(tmp_path / "project" / "data" / "text.txt", "cut")
    for split in ("train", "validation"):
        with pytest.raises(ValueError, match="has changed since it was trained: the train split has other content"):
            reopen(path, extra=extra).documents(split)


@pytest.mark.parametrize("extra", [{}, {"position": None}, {"position": {"stage": 0, "stream": None}}])
def test_a_run_without_any_record_says_that_it_cannot_be_compared(typed_run, extra):
    path, _ = typed_run
    earlier(path)
    lines = []
    assert fingerprints(reopen(path, extra=extra, tell=lines.append))
    assert len(lines) == 1 and "was not recorded in training, and cannot be compared" in lines[0]


@pytest.mark.parametrize("content", ["[]", "{}", "3", '{"tasks": []}', '{"tasks": {"": 1}}', "{", ""])
def test_a_damaged_record_is_one_line(tmp_path, content):
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(ValueError, match=r"data\.json: damaged \(.*allowed: the JSON file that was written there"):
        read_record(tmp_path)
