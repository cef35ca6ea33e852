"""Which column of a user's own file holds the class, and which the text."""

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.cli import main
from memjax.cli.own_tasks import tasks_config
from memjax.data.text_classes import find_labels, read_rows
from memjax.settings.reading_rules import ReadingRules

ROWS = [("7", "good, really", "so it was", "New York, NY"), ("8", "bad", "so it went", "the rest")]
HEADS = {
    "class first": (("label", "text"), {}, (3, 1)),
    "class last": (("text", "class"), {}, (1, 3)),
    "class between": (("id", "label", "text"), {}, (0, 3, 1)),
    "text between": (("id", "sentence", "label", "title"), {}, (0, 1, 3, 2)),
    "named class": (("id", "body", "verdict"), {"label_column": "verdict", "text_column": "body"}, (0, 1, 3)),
    "named class alone": (("verdict", "body"), {"label_column": "verdict"}, (3, 1)),
    "named text alone": (("label", "id", "body"), {"text_column": "body"}, (3, 0, 1)),
    "named over usual": (
        ("label", "text", "star", "body"),
        {"label_column": "star", "text_column": "body"},
        (0, 2, 3, 1),
    ),
    "blanks in names": (
        ("my id", "my text", "my class"),
        {"label_column": "my class", "text_column": "my text"},
        (0, 1, 3),
    ),
}


def write(path, head, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([head, *rows])
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("head,columns,order", HEADS.values(), ids=[*HEADS])
def test_the_columns_of_a_table_are_found(tmp_path, ending, head, columns, order):
    path = write(tmp_path / f"rows.{ending}", head, [[row[place] for place in order] for row in ROWS])
    rows = list(read_rows(path, rules=ReadingRules(**columns)))
    assert [(row.title, row.text, row.label) for row in rows] == [("", row[1], row[3]) for row in ROWS]


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_keys_of_objects_are_found_also_nested_ones(tmp_path, ending):
    rows = [{"meta": {"class": label}, "body": {"text": text}, "text": other} for _, text, other, label in ROWS]
    path = tmp_path / f"rows.{ending}"
    path.write_text("\n".join(map(json.dumps, rows)) if ending == "jsonl" else json.dumps(rows))
    rules = ReadingRules(text_column="body.text", label_column="meta.class")
    assert [(row.text, row.label) for row in read_rows(path, rules=rules)] == [(row[1], row[3]) for row in ROWS]
    with pytest.raises(ValueError, match=r"row 1: of another form \(it has: meta, body, text\), allowed: objects with"):
        list(read_rows(path))


NAMES = st.lists(st.text("abcxyz ", min_size=1, max_size=5).map(str.strip).filter(bool), min_size=2, unique=True)


@settings(max_examples=50, deadline=None)
@given(NAMES, st.data())
def test_any_two_named_columns_are_read(tmp_path_factory, names, data):
    text, label = data.draw(st.permutations(range(len(names))))[:2]
    rows = [[f"{row}/{column}" for column in range(len(names))] for row in range(3)]
    path = write(tmp_path_factory.getbasetemp() / "any.csv", names, rows)
    read = read_rows(path, rules=ReadingRules(text_column=names[text], label_column=names[label]))
    assert [(row.text, row.label) for row in read] == [(row[text], row[label]) for row in rows]


@pytest.mark.parametrize(
    "columns,message",
    [
        ({"text_column": "words"}, "text_column: given 'words', allowed: a column of .*: id, text, verdict"),
        ({"label_column": "Verdict"}, "label_column: given 'Verdict', allowed: a column of"),
        (
            {"text_column": "text"},
            "label_column: given '', allowed: a name of the column of the class, one of id, text",
        ),
    ],
)
def test_columns_that_are_not_there_are_named(tmp_path, columns, message):
    path = write(tmp_path / "rows.csv", ("id", "text", "verdict"), [row[:3] for row in ROWS])
    with pytest.raises(ValueError, match=message):
        list(read_rows(path, rules=ReadingRules(**columns)))


def test_a_short_row_is_broken_and_named(tmp_path):
    path = write(tmp_path / "rows.csv", ("id", "text", "label"), [("1", "a", "b"), ("2", "c")])
    with pytest.raises(ValueError, match="row 3: 2 columns, allowed: as many as the first row"):
        list(read_rows(path, rules=ReadingRules(text_column="text", label_column="label")))


def test_options_reach_the_sources_of_the_tasks(tmp_path, capsys):
    head = ("id", "body", "verdict")
    rows = [(number, f"text {number} {word}", word) for number in range(20) for word in ("a, b", "c d")]
    path = write(tmp_path / "rows.csv", head, rows)
    config, _ = tasks_config([str(path)], rules=ReadingRules(text_column="body", label_column="verdict"))
    source = config.lifelong.tasks[0].source
    assert (source.text_column, source.label_column, source.classes) == ("body", "verdict", ("a, b", "c d"))
    of_one_class = write(tmp_path / "one.csv", ("text", "label"), [(f"text {number}", "only") for number in range(20)])
    assert find_labels(str(of_one_class)) == ("only",)
    assert main(["train", "--tasks", str(path), "--text-column", "words"]) == 2
    assert "--text-column: given 'words', allowed: a column of" in capsys.readouterr().err
    assert main(["train", "--text", str(path), "--text-column", "body"]) == 2
    assert "--text-column: given with --text, allowed: with --tasks" in capsys.readouterr().err
