r"""Backslashes of labelled files: a user's own keep theirs (`C:\new`), published sets escape with them."""

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.config import Classification, Config, Data, LabelledFile, TextClasses
from memjax.data.source_readers import read_classified_texts
from memjax.data.text_classes import read_rows
from memjax.settings.reading_rules import ReadingRules
from memjax.tasks import make_task
from memjax.training.runs import config_from_dict, config_to_dict

TEXTS = {
    r"C:\new\table.txt": "C:\new\table.txt",
    r"say \"so\"": 'say "so"',
    r"caf\u00e9": "café",
    r"\frac{a}{b} \neq \rho": "\\frac{a}{b} \neq \nho",
    r"^\d+\.\d*$": r"^\d+\.\d*$",
    r"two \\ in a row": r"two \ in a row",
    r"at the end \n": "at the end",
    r"it\'s": "it's",
}
"""text in a file -> the same with what it escapes put back"""


def write(path, texts):
    """Writes a table or objects with the classes 0 and 1 in turn."""
    rows = [(str(number % 2), text) for number, text in enumerate(texts)]
    if path.suffix == ".json":
        path.write_text(json.dumps([{"label": label, "text": text} for label, text in rows]), encoding="utf-8")
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([("label", "text"), *rows])
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "json"])
def test_own_files_keep_them_unless_the_rules_say_otherwise(tmp_path, ending):
    path = write(tmp_path / f"rows.{ending}", TEXTS)
    assert [row.text for row in read_rows(path)] == [*TEXTS]
    assert [row.text for row in read_rows(path, rules=ReadingRules(escapes="resolved"))] == [*TEXTS.values()]


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_published_files_are_resolved(tmp_path, ending):
    path = write(tmp_path / f"rows.{ending}", TEXTS)
    assert [row.text for row in read_rows(path, {"0", "1", "label"}.__contains__)][-len(TEXTS) :] == [*TEXTS.values()]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(st.sampled_from("\\nrtu0'\"x,\n é"), min_size=1), min_size=1, max_size=5))
def test_whatever_is_written_is_read(tmp_path_factory, texts):
    texts = [f"a{text}b" for text in texts]
    for ending in ("csv", "tsv", "json"):
        path = write(tmp_path_factory.getbasetemp() / f"whatever.{ending}", texts)
        assert [row.text for row in read_rows(path)] == texts


def test_a_run_of_an_earlier_version_reads_its_files_as_it_did(tmp_path):
    path = write(tmp_path / "rows.csv", [f"{text} {number}" for number in range(9) for text in TEXTS])
    source = LabelledFile(path=str(path), classes=("0", "1"), class_ids=(0, 1))
    saved = config_to_dict(source)
    assert config_from_dict(saved).escapes == "kept"
    has_path = lambda source: any(r"C:\new" in text.texts[0] for text in read_classified_texts(source).texts["train"])
    assert has_path(source)
    del saved["escapes"]
    earlier = config_from_dict(saved)
    assert earlier.escapes == "resolved" and config_from_dict(config_to_dict(earlier)) == earlier
    assert not has_path(earlier)


@pytest.mark.parametrize(
    "source, first",
    [
        (LabelledFile(), r"C:\new\table.txt"),
        (LabelledFile(escapes="resolved"), "C:\new\table.txt"),
        (TextClasses(), "C:\new\table.txt"),
    ],
)
def test_rows_that_are_asked_are_read_as_those_of_training(tmp_path, source, first):
    path = write(tmp_path / "rows.csv", TEXTS)
    config = Config(name="run", data=Data(source=source), task=Classification(num_classes=2))
    assert make_task(config).read_queries(str(path))[0][0] == first
