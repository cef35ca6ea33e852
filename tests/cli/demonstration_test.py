import copy
from pathlib import Path

import pytest

from memjax.cli import demonstration as demo


def row(test: float, cache: float = 0.0, weight: float = 0.0) -> dict:
    settings = {"cache_weight": cache, "weight": weight, "temperature": 8.0}
    return {**settings, "validation": test + 0.1, "test": test}


def results(alone=2.0, cache=1.6, store=1.9, both=1.5) -> dict:
    split = {"documents": 3, "tokens": 1000, "bytes": 3000}
    recall = {"answers": 20, "chance": 0.25}
    rows = {"none": row(alone), "cache": row(cache, 0.4), "store": row(store, 0, 0.2), "both": row(both, 0.35, 0.15)}
    return {
        "plan": {"cache_length": 2000},
        "times": {"model": 90.0, "store": 30.0},
        "recall/default": {**recall, "accuracy": 0.99},
        "recall/cache_only": {**recall, "accuracy": 0.24},
        "corpus": {
            "python": "CPython 3.11.2",
            "sha256": "abcdef" * 10,
            "vocabulary": 2048,
            "train": split,
            "validation": split,
            "test": split,
        },
        "model": {"parameters": 77, "tokens": 5000, "tokens_per_second": 3000.0, "segment_length": 128},
        "store": {"entries": 12345, "dim": 128},
        "score/validation": {"targets": 900, "bytes": 2700},
        "score/test": {"targets": 1000, "bytes": 3000},
        "mixtures": {"scale": 15.0, "rows": rows},
        "continuation": {"document": "json", "prompt": "import ", "none": "os", "both": "json"},
    }


def test_the_table_has_every_number():
    lines = demo._table(results()).splitlines()
    assert [line.split()[-5:] for line in lines[3:7]] == [
        ["2.0000", "-", "2.1000", "-", "-"],
        ["1.6000", "20.0", "%", "1.7000", "0.40", "-"][-5:],
        ["5.0", "%", "2.0000", "-", "0.20"],
        ["25.0", "%", "1.6000", "0.35", "0.15"],
    ]
    assert [line.split("  ")[0] for line in lines[3:7]] == list(demo.NAMES.values())
    assert len({len(line) for line in lines[2:8]}) == 1
    assert "77 parameters, trained once on 5,000 tokens" in " ".join(lines) and "1,000 tokens of held-out" in lines[9]


@pytest.mark.parametrize(
    "numbers, sentence",
    [
        ({}, "The cache saves 20.0 % of the bits: it holds the last 2,000 tokens of the document."),
        ({}, "The datastore saves 5.0 % of the bits: it holds 12,345 tokens"),
        ({}, "Having both saves 25.0 % of the bits, 5.0 points more than the better of the two alone."),
        ({"cache": 2.2}, "The cache costs 10.0 % more bits: "),
        ({"store": 2.001}, "The datastore changes nothing to speak of: "),
        ({"both": 1.6}, "Having both saves 20.0 % of the bits.\n"),
    ],
)
def test_the_sentences_are_what_was_measured(numbers, sentence):
    assert sentence in demo._sentences(results(**numbers)) + "\n"


def test_the_recall_lines_give_accuracy_and_chance():
    assert "99.0 % of 20 answers right (chance 25.0 %)" in demo._recall_lines(results())


def test_the_times_are_those_of_the_parts():
    assert demo._times(results()) == "2.0 minutes (seconds: model 90, store 30)"


def test_parts_that_are_done_are_not_repeated(tmp_path, monkeypatch, capsys):
    calls = []
    names = ["recall/default", "recall/cache_only", "corpus", "model", "store", "score/validation", "score/test"]
    names += ["mixtures", "continuation"]

    def run(fail: str = "") -> str:
        made = demo._Demo(demo.Plan(workdir=str(tmp_path)))
        wanted = results()

        def do(name):
            calls.append(name)
            if name == fail:
                raise KeyboardInterrupt
            return copy.deepcopy(wanted[name])

        real = made.part
        monkeypatch.setattr(made, "part", lambda name, *_: real(name, do, name))
        made.run()
        return capsys.readouterr().out

    with pytest.raises(KeyboardInterrupt):
        run(fail="store")
    assert calls == names[:5]
    text = run()
    assert calls[5:] == names[4:]
    assert "found the finished demonstration" not in text and str(tmp_path) in text
    again = run()
    assert len(calls) == 10 and "found the finished demonstration" in again
    assert (tmp_path / "report.txt").read_text() in again
    with pytest.raises(ValueError, match="holds a demonstration with other settings"):
        demo.run_demo(demo.Plan(workdir=str(tmp_path), steps=1))


@pytest.mark.slow
def test_in_miniature(tmp_path, capsys, monkeypatch):
    from memjax.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(__file__).parent.parent.parent / ".cache"))
    assert main(["demo", "--smoke", "--workdir", str(tmp_path / "demo")]) == 0
    text = capsys.readouterr().out
    for part in ("no memory", "+ cache + datastore", "answers right", ">>>", str(tmp_path / "demo")):
        assert part in text
    assert main(["demo", "--smoke", "--workdir", str(tmp_path / "demo")]) == 0
    assert "found the finished demonstration" in capsys.readouterr().out
