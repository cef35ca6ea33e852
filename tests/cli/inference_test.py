"""Evaluation and generation from the command line: memories side by side, and a datastore at inference."""

import json
import struct
from pathlib import Path

import pytest

from memjax.cli import main
from tests.cli.command_line_test import here, refuse, workplace  # noqa: F401 (fixtures)
from tools.verbs import write_data

RUN = ["--run", "runs/tiny_default"]


def answer(arguments, capsys):
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_eval_begins_with_a_sentence(here, capsys):  # noqa: F811
    first, blank, *rest = answer(["eval", *RUN], capsys).splitlines()
    values = json.loads(answer(["eval", *RUN, "--json"], capsys))
    assert first.startswith("runs/tiny_default") and first.endswith("tokens of the validation split, memory 16)")
    assert f"perplexity {values['perplexity']:.4f} ({values['targets']:,} tokens" in first and blank == ""
    assert any(line.split()[0] == "nats" for line in rest) and not any(line.startswith("perplexity") for line in rest)


@pytest.mark.laws
def test_memories_side_by_side(here, capsys):  # noqa: F811
    run = [*RUN, "--evaluation.max-segments", "12", "--evaluation.split", "train"]
    rows = json.loads(answer(["eval", *run, "--memory", "64,off", "--json"], capsys))
    assert [row["memory_length"] for row in rows] == [0, 16, 64]
    gains = [row.pop("gain") for row in rows[1:]]
    for row in rows[:2]:
        more = [] if row["memory_length"] else ["--evaluation.memory-length", "0"]
        alone = json.loads(answer(["eval", *run, "--json", *more], capsys))
        assert {**row, "tokens_per_second": 0} == {**alone, "tokens_per_second": 0}
    first, _, head, *table = answer(["eval", *run, "--memory", "off,64"], capsys).splitlines()
    best = min(rows, key=lambda row: row["nats"])
    assert f"best with memory {best['memory_length'] or 'off'}" in first
    assert head.split()[0] == "memory"
    assert [line.split()[0] for line in table[:3]] == ["off", "16", "64"] and "(as trained)" in table[1]
    for gain, row in zip(gains, rows[1:], strict=True):
        assert gain["over_memory_length"] == 0 and gain["unit"] == "document" and gain["units"] > 2
        assert gain["difference"] == pytest.approx(rows[0]["nats_per_token"] - row["nats_per_token"], abs=1e-9)
    assert table[4].startswith("nats saved on a token over memory off, paired (Student's t")
    assert [line.split()[0] for line in table[5:7]] == ["16", "64"] and "± " in table[5]
    assert f"({gains[0]['units']} documents, p " in table[5] and table[5].endswith(gains[0]["verdict"])
    assert table[7] == "on these documents; another seed may differ"


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["eval", "--memory", "of"], "--memory: given 'of', allowed: off, or a number of slots"),
        (["eval", "--memory", "1"], "num_neighbors: given 2"),
        (["eval", "--memory", "4", "--datastore", "store"], "--memory: given with --datastore"),
        (["eval", "--datastore", "texts"], "texts is not a datastore"),
        (["eval", "--knn-weight", "0.2"], "--knn-weight: given without --datastore"),
        (["translate", "--text", "x"], "translate: given LanguageModeling, allowed: a run that translates texts; Lang"),
        (["translate", "--text", "x", "--beam-size", "0"], "--beam-size: given 0, allowed: an integer of at least 1"),
        (["predict", "--text", "x"], "predict: given LanguageModeling, allowed: a run that answers about a text; Lang"),
        (["sample", "--to", "x.png"], "sample: given LanguageModeling, allowed: a run that draws images; LanguageM"),
        (["sample", "--to", "nowhere/x.png"], "--to: given 'nowhere/x.png', allowed: a file in a folder that is there"),
        (["sample", "--to", "x.png", "--size", "3"], "--size: given '3', allowed: HEIGHTxWIDTH"),
        (
            ["generate", "--datastore", "s", "--knn-temperature", "0"],
            "--knn-temperature: given 0.0, allowed: more than 0",
        ),
    ],
)
def test_mistakes_are_one_line(here, capsys, arguments, line):  # noqa: F811
    assert line in refuse([*arguments, *RUN], capsys)


@pytest.mark.slow
def test_a_datastore_at_inference(here, capsys):  # noqa: F811
    answer(["datastore", "build", *RUN, "--path", "store"], capsys)
    generate = ["generate", *RUN, "--prompt", "text 7: abc", "--max-tokens", "6"]
    store = ["--datastore", "store"]
    assert "no weight and temperature are known" in refuse([*generate, *store], capsys)
    plain = json.loads(answer(["eval", *RUN, "--json"], capsys))
    values = json.loads(answer(["eval", *RUN, *store, "--knn-neighbors", "4", "--json"], capsys))
    told = values["datastore"]
    assert (told["tuned_on"], told["neighbors"], told["path"]) == ("validation", 4, "store")
    assert told["without"]["perplexity"] == pytest.approx(plain["perplexity"]) and told["weight"] > 0
    assert values["nats"] < plain["nats"] and values["targets"] == plain["targets"]
    given = ["--knn-weight", "0", "--knn-temperature", "1", "--knn-neighbors", "4"]
    assert json.loads(answer(["eval", *RUN, *store, *given, "--json"], capsys))["nats"] == pytest.approx(plain["nats"])
    text = answer(["eval", *RUN, *store, "--knn-neighbors", "4"], capsys)
    assert f"with 4 neighbours of {told['entries']:,} entries in store (weight {told['weight']:g}, " in text
    assert main([*generate, *store]) == 0
    assert "tuned on validation" in capsys.readouterr().err
    assert answer([*generate, *store, *given], capsys) == answer(generate, capsys)
    assert "holds the train split" in refuse(["eval", *RUN, *store, "--evaluation.split", "train"], capsys)
    assert "protocol.segment_length 8, given 4" in refuse(
        ["eval", *RUN, *store, "--evaluation.segment-length", "4"], capsys
    )


@pytest.mark.slow
def test_what_other_runs_have_learned(tmp_path, monkeypatch, capsys):
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    kinds = ("images", "Classification", "QuestionAnswering", "MaskedLanguageModeling", "EncoderDecoder", "dialogues")
    for kind in kinds:
        answer(["train", "--config", "runs.py", "--variant", kind], capsys)
    sample = ["sample", "--run", "runs/images", "--to", "images.png", "--count", "3", "--columns", "2"]
    assert answer(sample, capsys) == "images.png: 3 images of 4 x 4\n"
    assert struct.unpack(">II", Path("images.png").read_bytes()[16:24]) == (9, 9)
    first = Path("images.png").read_bytes()
    facts = json.loads(answer([*sample, "--json", "--size", "4x4"], capsys))
    assert (facts["step"], facts["images"], facts["height"]) == (2, 3, 4) and Path("images.png").read_bytes() == first
    Path("context.txt").write_text("Ada lives in Athens. Boole lives in Berlin.")
    asked = ["--file", "context.txt", "--question", "Where does Ada live?"]
    found = answer(["predict", "--run", "runs/QuestionAnswering", *asked], capsys).strip()
    assert found in Path("context.txt").read_text()
    pair = ["--text", "Ada lives in Athens.", "--pair", "Ada lives in Rome."]
    lines = answer(["predict", "--run", "runs/Classification", *pair], capsys).splitlines()
    assert lines[0] in "01" and lines[1].startswith(f"  {lines[0]} 0.")
    masks = ["predict", "--run", "runs/MaskedLanguageModeling", "--text", "Ada [MASK] in [MASK].", "--top", "2"]
    assert len(answer(masks, capsys).splitlines()) == 3
    Path("lines.txt").write_text("one\ntwo\n")
    translate = ["translate", "--run", "runs/EncoderDecoder", "--file", "lines.txt", "--json"]
    rows = [json.loads(line) for line in answer(translate, capsys).splitlines()]
    assert [row["text"] for row in rows] == ["one", "two"] and all("translation" in row for row in rows)
    reply = ["predict", "--run", "runs/dialogues", "--text", "Where does Ada live?", "--document", "context.txt"]
    assert json.loads(answer([*reply, "--json"], capsys))["answer"] is not None
    run = ["--run", "runs/Classification", "--text", "x"]
    line = refuse(["predict", *run, "--question", "y"], capsys)
    assert "--question: given with ClassificationTask, allowed: --pair" in line
    assert "text: given none, allowed: --text TEXT or --file FILE" in refuse(["predict", *run[:2]], capsys)
