"""Every memory by its name on an own text, by command lines: the model is better with what its memory holds.

The text has chapters in eight dialects. In a dialect most letters follow their one predecessor, and a chapter is five
segments long: a model that remembers the chapter knows the dialect from the first letter of a segment. A chapter ends
with one of forty lines, which are too many for a model without a datastore or a table of values.
"""

import json
import random

import pytest

from memjax.cli import main
from memjax.settings.named_memories import MEMORIES

LETTERS = "abcdefghijklmnop"
OPTIONS = """--variant smoke --model.dim 64 --data.batch-size 16 --evaluation.batch-size 8 --training.steps 400
    --training.schedule.warmup-steps 50 --training.evaluate-every 0 --training.checkpoint-every 0
    --training.log-every 200 --data.cache-dir cache""".split()
MORE_UPDATES = {"t2r": 1000, "memsizer": 1000, "gpt2_compressive": 1000, "gpt2_infinity_former": 1000}
"""memory -> number of updates until it is used, where 400 are too few"""
CLEARED = "--evaluation.memory-intervention cleared"
EMPTIED = {"continuous_cache": "--evaluation.cache.memory-length 0"}
"""memory -> options that empty it, where they are others than `CLEARED`"""
IN_PARAMETERS = ("product_key", "spalm")
"""memories that cannot be emptied, which are compared with the same model without them"""


def write_chapters(path, count=520):
    """Writes a record for each chapter."""
    draw = random.Random(0)
    dialects = [dict(zip(LETTERS, draw.sample(LETTERS, 16), strict=True)) for _ in range(8)]
    last_lines = ["".join(draw.choices(LETTERS, k=15)) for _ in range(40)]
    with open(path, "w") as file:
        for _ in range(count):
            following, letters = draw.choice(dialects), [draw.choice(LETTERS)]
            while len(letters) < 64:
                letters.append(following[letters[-1]] if draw.random() < 0.8 else draw.choice(LETTERS))
            file.write(json.dumps({"text": "".join(letters) + draw.choice(last_lines) + "\n"}) + "\n")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """A function that runs a command line in a folder with the text, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    write_chapters("chapters.jsonl")

    def run(line, *arguments):
        assert main([*line.split(), *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def train(command, name, run, *more):
    options = [*OPTIONS, "--training.steps", str(MORE_UPDATES[name])] if name in MORE_UPDATES else OPTIONS
    command(f"train --text chapters.jsonl --memory-kind {name} --name {run}", *options, *more)


def nats(command, run, options=""):
    return json.loads(command(f"eval --run runs/{run} --json {options}"))["nats_per_token"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MEMORIES if name not in ("none", *IN_PARAMETERS)])
def test_a_model_is_better_with_what_its_memory_holds(command, name):
    train(command, name, name)
    if name == "knn_lm":
        command(f"datastore build --run runs/{name} --path store")
        with_memory = nats(command, name, "--datastore store")
        without = nats(command, name)
    else:
        with_memory, without = nats(command, name), nats(command, name, EMPTIED.get(name, CLEARED))
    print(f"{name}: {with_memory:.3f} nats a token, {without:.3f} without what the memory holds")
    assert with_memory < without < 2.75  # nats of a letter that could be any of 16


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PARAMETERS)
def test_a_model_is_better_than_one_without_the_memory_in_its_parameters(command, name):
    train(command, "none", "none")
    options = []
    if name == "spalm":
        command("datastore build --run runs/none --path store --key output_normed")
        for split in ("train", "validation", "test"):
            neighbors = "datastore neighbors --run runs/none --path store --backend exact --to near"
            command(f"{neighbors} --split {split}")
        options = ["--data.neighbors-dir", "near"]
    train(command, name, name, *options)
    with_memory, without = nats(command, name), nats(command, "none")
    print(f"{name}: {with_memory:.3f} nats a token, {without:.3f} of the model without it")
    assert with_memory < without < 2.75
