import copy
from pathlib import Path

import pytest

from memjax import demo


def score(bits: float, memory_bytes: int = 1) -> dict:
    distant = {"targets": 250, "bits_per_byte": bits + 1}
    return {
        "bits_per_byte": bits,
        "tokens_per_second": 9000.0,
        "memory_bytes": memory_bytes,
        "targets": 1000,
        "subsets": {"distant_identifier": distant},
    }


def results(trained=2.0, off=2.1, larger=1.99, local=2.2) -> dict:
    split = {"documents": 3, "tokens": 1000, "bytes": 3000}
    model = {"tokens": 5000, "tokens_per_second": 3000.0, "parameters": 77, "memory_bytes": 1}
    recall = {"answers": 20, "chance": 0.25}
    return {
        "plan": {"larger_memory": 128},
        "corpus": {
            "python": "CPython 3.11.2",
            "sha256": "abcdef" * 10,
            "vocabulary": 4096,
            "train": split,
            "validation": split,
            "test": split,
        },
        "memorizing": {**model, "memory_length": 64, "evaluation": score(trained, 4000)},
        "score/0": score(off),
        "score/128": score(larger, 8000),
        "cache_only": {**model, "memory_length": 0, "evaluation": score(local)},
        "recall/default": {**recall, "accuracy": 0.99},
        "recall/cache_only": {**recall, "accuracy": 0.24},
        "continuation": {"document": "json", "prompt": "import ", "text": "os"},
    }


def test_the_table_has_every_number():
    lines = demo._table(results()).splitlines()
    rows = [line.split() for line in lines[2:6]]
    assert rows[0][:5] == ["Memorizing", "Transformer", "64", "(as", "trained)"]
    assert rows[0][5:] == ["2.0000", "3.0000", "3,000", "9,000", "77", "4,000"]
    assert rows[1][2:5] == ["off", "2.1000", "3.1000"]
    assert rows[2][2:5] == ["128", "1.9900", "2.9900"] and rows[2][-1] == "8,000"
    assert rows[3][:6] == ["local", "cache", "only", "none", "2.2000", "3.2000"]
    assert len({len(line) for line in lines[:7]}) == 1
    assert "25.0 % of tokens" in " ".join(lines)


@pytest.mark.parametrize(
    "numbers, sentence",
    [
        ({"trained": 2.0, "local": 2.001}, "Memory and no memory are level here: 2.0000 and 2.0010 bits per byte."),
        ({"trained": 2.0, "local": 2.5}, "With its memory the model needs 20.0 % fewer bits per byte"),
        ({"trained": 2.2, "local": 2.0}, "With its memory the model needs 10.0 % more bits per byte"),
        (
            {"trained": 2.0, "off": 2.1},
            "Switching off the memory it was trained with changes its bits per byte by +5.00 %",
        ),
    ],
)
def test_the_verdict_is_what_was_measured(numbers, sentence):
    assert sentence in demo._verdict(results(**numbers))


def test_the_recall_lines_give_accuracy_and_chance():
    assert "99.0 % of 20 answers right (chance 25.0 %)" in demo._recall_lines(results())


def test_parts_that_are_done_are_not_repeated(tmp_path, monkeypatch, capsys):
    calls = []

    def run(fail: str = "") -> str:
        made = demo._Demo(demo.Plan(workdir=str(tmp_path), larger_memory=128))
        wanted = results()

        def do(name):
            calls.append(name)
            if name == fail:
                raise KeyboardInterrupt
            return copy.deepcopy(wanted[name])

        real = made.part
        monkeypatch.setattr(made, "part", lambda name, *_: real(name, do, name))
        monkeypatch.setattr(made, "describe_corpus", lambda: made.results.update(corpus=wanted["corpus"]))
        made.run()
        return capsys.readouterr().out

    with pytest.raises(KeyboardInterrupt):
        run(fail="score/0")
    assert calls == ["memorizing", "cache_only", "score/0"]
    text = run()
    assert calls[3:] == ["score/0", "score/128", "recall/default", "recall/cache_only", "continuation"]
    assert "found the finished demonstration" not in text and str(tmp_path) in text
    again = run()
    assert len(calls) == 8 and "found the finished demonstration" in again
    assert (tmp_path / "report.txt").read_text() in again
    with pytest.raises(ValueError, match="holds a demonstration with other settings"):
        demo.run_demo(demo.Plan(workdir=str(tmp_path), steps=1))


@pytest.mark.slow
def test_in_miniature(tmp_path, capsys, monkeypatch):
    from memjax.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(__file__).parent.parent / ".cache"))
    assert main(["demo", "--smoke", "--workdir", str(tmp_path / "demo")]) == 0
    text = capsys.readouterr().out
    for part in ("(as trained)", "local cache only", "answers right", ">>>", str(tmp_path / "demo")):
        assert part in text
    assert main(["demo", "--smoke", "--workdir", str(tmp_path / "demo")]) == 0
    assert "found the finished demonstration" in capsys.readouterr().out
