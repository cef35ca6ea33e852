"""Every method by its name on own labelled files, by command lines: it is better than the files' largest classes."""

import collections
import csv
import json
import random

import pytest

from memjax.cli import main
from memjax.settings.named_methods import METHODS

COMMON = "the a of and it was in on with for this that one there about after".split()
FILES = {
    "news": {
        "sport": "ball goal team win coach match league cup player field",
        "market": "stock price bank trade share profit bond cash index fund",
    },
    "reviews": {
        "good": "fine great nice lovely superb happy charming bright clever warm",
        "bad": "poor awful sad dull boring weak flat cold broken slow",
        "odd": "weird strange bizarre quirky unusual curious peculiar eccentric cryptic surreal",
    },
}
"""file -> class -> words of its texts, beside common ones"""
OPTIONS = {"lamol": "--data.segment-length 56 --task.max-answer-length 8"}
"""method -> options that make its texts short"""


def write_files():
    """Writes a file of 300 texts for each task, and returns the share of the largest class in each."""
    draw, shares = random.Random(0), []
    for name, words in FILES.items():
        counts = collections.Counter(draw.choices([*words], k=300))
        shares.append(max(counts.values()) / 300)
        with open(f"{name}.csv", "w", newline="") as file:
            for label in draw.sample([*counts.elements()], 300):
                chosen = [draw.choice(words[label].split() if draw.random() < 0.4 else COMMON) for _ in range(10)]
                csv.writer(file).writerow([label, "", " ".join(chosen)])
    return shares


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_better_than_the_largest_class(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    shares = write_files()
    options = ["--data.cache-dir", "cache", *OPTIONS.get(name, "--data.segment-length 32").split()]
    assert main(["train", "--tasks", "news.csv", "reviews.csv", "--method", name, *options]) == 0
    capsys.readouterr()
    assert main(["eval", "--run", f"runs/tasks_news_reviews_{name}", "--json"]) == 0
    stream = json.loads(capsys.readouterr().out)["stream"]
    scores = [score / (100 if stream["measure"] == "score" else 1) for score in stream["scores"][-1]]
    if name == "single_task":  # every model knows its own task alone
        scores = [row[task] for task, row in enumerate(stream["scores"])]
    mean, largest = sum(scores) / len(scores), sum(shares) / len(shares)
    print(f"{name}: {mean:.3f}, the largest classes have {largest:.3f}")
    assert mean > largest
