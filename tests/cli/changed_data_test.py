"""Every verb that reads the data of a run, where it is as it was, has changed, and was named on the command line."""

import json
import shutil
import struct

import numpy as np
import pytest

from memjax.cli import main
from memjax.durable_files import read_json, write_json

pytestmark = pytest.mark.laws

CONFIG = """
from memjax.config import *
VARIANTS = ("texts", "lines", "images", "classes")
def get_config(variant="texts"):
    source, tokenizer = TextFiles(path="data/text.txt", validation_percent=20, test_percent=20), Bytes()
    model = Model(dim=8, num_layers=1, num_heads=2, attention=TransformerXL(memory_length=8))
    task = LanguageModeling()
    if variant == "lines":
        source = JsonLines(path="data/lines.jsonl", validation_percent=20, test_percent=20)
    if variant == "images":
        source = Mnist(path="data/images")
    if variant == "classes":
        source = LabelledFile(path="data/mood.csv", classes=("bad", "good"), class_ids=(0, 1), validation_percent=20)
        model.attention, task = Bidirectional(num_positions=16), Classification(num_classes=2)
        tokenizer = WordPiece(vocab_size=90)
    return Config(
        name=variant, model=model, task=task,
        data=Data(source=source, tokenizer=tokenizer, cache_dir="cache", batch_size=2, segment_length=16),
        training=Training(steps=2, schedule=Schedule(warmup_steps=1), log_every=0, evaluate_every=0),
        evaluation=Evaluation(batch_size=2, max_segments=2),
    )
"""
FILES = {
    "texts": "data/text.txt",
    "lines": "data/lines.jsonl",
    "images": "data/images/train-images-idx3-ubyte",
    "classes": "data/mood.csv",
}
EVAL, BUILD = ["eval"], ["datastore", "build", "--path", "store"]
READING = [
    *((kind, [*EVAL, "--evaluation.split", split]) for kind in FILES for split in ("validation", "test")),
    *((kind, command) for kind in ("texts", "lines") for command in (["eval", "--memory", "off"], BUILD)),
    ("texts", ["datastore", "plan", "--path", "planned"]),
    ("images", ["sample", "--count", "1", "--to", "image.png"]),
]
"""kind of run, and a verb that reads its data"""


def write(folder):
    texts = [f"number {n} of {n * 7 % 5} texts" for n in range(60)]
    (folder / "images").mkdir(parents=True)
    (folder / "text.txt").write_text("\n".join(texts))
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "mood.csv").write_text("".join(f"{('bad', 'good')[n % 2]},,{text}\n" for n, text in enumerate(texts)))
    for name, count in (("train", 5003), ("t10k", 3)):
        images = np.random.RandomState(count).randint(0, 256, (count, 2, 2)).astype(np.uint8)
        header = struct.pack(">IIII", 2051, count, 2, 2)
        (folder / "images" / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with data of every kind and a trained run of each."""
    folder = tmp_path_factory.mktemp("changed")
    write(folder / "data")
    (folder / "own.py").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for kind in FILES:
            assert main(["train", "--config", "own.py", "--variant", kind, "--name", kind]) == 0
    return folder


@pytest.fixture
def here(workplace, tmp_path, monkeypatch):
    shutil.copytree(workplace, tmp_path / "w")
    for record in (tmp_path / "w" / "runs").glob("*/data.json"):  # the data of the original is not there any more
        text = json.dumps(read_json(record)).replace(str(workplace), str(tmp_path / "w"))
        write_json(record, json.loads(text))
    monkeypatch.chdir(tmp_path / "w")
    return tmp_path / "w"


def change(file):
    """Other content of the same size for images, ten lines less for texts."""
    content = file.read_bytes()
    lines = content.split(b"\n", 10)
    file.write_bytes(lines[-1] if file.suffix else content[:16] + bytes(255 - byte for byte in content[16:]))


def ask(kind, command, capsys, *more):
    """Exit code, standard output and standard error of a verb."""
    capsys.readouterr()
    code = main([*command, "--run", f"runs/{kind}", *more])
    return code, *capsys.readouterr()


@pytest.mark.parametrize(("kind", "command"), READING, ids=lambda value: value if isinstance(value, str) else value[0])
def test_a_verb_reads_what_the_run_was_made_of_or_says_so(here, capsys, kind, command):
    code, out, told = ask(kind, command, capsys)
    assert code == 0 and "other data" not in told + out
    shutil.rmtree(here / "store", ignore_errors=True)
    change(here / FILES[kind])
    code, out, told = ask(kind, command, capsys)
    line = told.splitlines()[-1]
    assert code == 2 and out == ""
    assert "the data has changed since it was trained: " in line and FILES[kind] in line and "allowed: " in line
    path = FILES[kind] if kind != "images" else "data/images"
    code, out, told = ask(kind, command, capsys, "--data.source.path", path)
    assert code == 0 and f"reads {path} (" in told and "other data than that of training" in told


def test_a_result_on_other_data_names_it(here, capsys):
    change(here / FILES["texts"])
    code, out, _ = ask("texts", EVAL, capsys, "--data.source.path", "data/text.txt", "--json")
    assert code == 0 and json.loads(out)["other_data"].startswith("data/text.txt (1 file, ")


def test_a_report_leaves_out_what_it_cannot_read_and_says_why(here, capsys):
    change(here / FILES["texts"])
    assert main(["report", "runs/texts", "--only", "samples,scores,gains"]) == 0
    assert "the data has changed since it was trained: data/text.txt has " in capsys.readouterr().err


def test_verbs_that_read_no_data_need_none(here, capsys):
    asked = {
        "texts": ["generate", "--prompt", "number", "--max-tokens", "4", "--greedy"],
        "classes": ["predict", "--text", "x"],
    }
    before = {kind: ask(kind, command, capsys)[:2] for kind, command in asked.items()}
    shutil.rmtree(here / "data")
    assert {kind: ask(kind, command, capsys)[:2] for kind, command in asked.items()} == before
    assert all(code == 0 for code, _ in before.values())


def test_training_goes_on_with_its_own_data_alone(here, capsys):
    (here / "runs" / "texts" / "finished.json").unlink()
    content = (here / "data" / "text.txt").read_bytes()
    (here / "data" / "text.txt").write_bytes(content[:900])
    code, _, told = ask("texts", ["train"], capsys)
    wanted = f"data/text.txt has 900 bytes, it had {len(content):,}; allowed: the data as it was, or a new run"
    assert code == 2 and wanted in told.splitlines()[-1]
    (here / "data" / "text.txt").write_bytes(content)  # touched
    assert ask("texts", ["train"], capsys)[0] == 0
