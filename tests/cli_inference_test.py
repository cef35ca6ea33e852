"""Evaluation and generation from the command line: memories side by side, and a datastore at inference."""

import json

import pytest

from memjax.cli import main
from tests.cli_test import here, refuse, workplace  # noqa: F401 (fixtures)

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


def test_memories_side_by_side(here, capsys):  # noqa: F811
    rows = json.loads(answer(["eval", *RUN, "--memory", "64,off", "--json"], capsys))
    assert [row["memory_length"] for row in rows] == [0, 16, 64]
    for row in rows[:2]:
        more = [] if row["memory_length"] else ["--evaluation.memory-length", "0"]
        alone = json.loads(answer(["eval", *RUN, "--json", *more], capsys))
        assert {**row, "tokens_per_second": 0} == {**alone, "tokens_per_second": 0}
    first, _, head, *table = answer(["eval", *RUN, "--memory", "off,64"], capsys).splitlines()
    best = min(rows, key=lambda row: row["nats"])
    assert f"best with memory {best['memory_length'] or 'off'}" in first
    assert head.split()[0] == "memory"
    assert [line.split()[0] for line in table] == ["off", "16", "64"] and "(as trained)" in table[1]


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["eval", "--memory", "of"], "--memory: given 'of', allowed: off, or a number of slots"),
        (["eval", "--memory", "1"], "num_neighbors: given 2"),
        (["eval", "--memory", "4", "--datastore", "store"], "--memory: given with --datastore"),
        (["eval", "--datastore", "texts"], "texts is not a datastore"),
        (["eval", "--knn-weight", "0.2"], "--knn-weight: given without --datastore"),
        (
            ["generate", "--datastore", "s", "--knn-temperature", "0"],
            "--knn-temperature: given 0.0, allowed: more than 0",
        ),
    ],
)
def test_mistakes_are_one_line(here, capsys, arguments, line):  # noqa: F811
    assert line in refuse([*arguments, *RUN], capsys)


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
