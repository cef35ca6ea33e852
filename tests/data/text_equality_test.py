"""Which texts are the same: classes that differ in signs, case, digits, blanks, scripts and emoji keep their texts."""

import collections
import csv
import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.config import LabelledFile, TextClasses
from memjax.data.questions import Question, select_questions
from memjax.data.source_readers import class_names, read_classified_texts, source_notes
from memjax.data.text_classes import find_labels
from memjax.data.text_splits import TitledText, exact_key, split_texts
from memjax.training.runs import config_from_dict, config_to_dict

PAIRS = {
    "signs": ("good :)", "good :("),
    "operators": ("a + b", "a - b"),
    "signs behind a letter": ("C", "C++"),
    "case": ("us", "US"),
    "digits": ("room 1", "room 2"),
    "one blank": ("ice cream", "icecream"),
    "script": ("сода", "coда"),
    "accent": ("resume", "résumé"),
    "emoji": ("👍 yes", "👎 yes"),
    "right to left": ("مرحبا", "مرحبا!"),
    "only signs": ("...", "?!"),
    "case of another alphabet": ("Σας", "σας"),
}
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1, max_size=12)


def counts(splits):
    return collections.Counter(example.label for texts in splits.texts.values() for example in texts)


def write(path, form, rows):
    """Rows (class, text) in a form of labelled files."""
    if form == "json":
        path.write_text(json.dumps([{"sentence": text, "label": label} for label, text in rows]))
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if form == "tsv" else ",")
        writer.writerow(["text", "label"])
        writer.writerows((text, label) for label, text in rows)


@pytest.mark.parametrize("form", ["csv", "tsv", "json"])
@pytest.mark.parametrize("first,second", PAIRS.values(), ids=[*PAIRS])
def test_classes_keep_all_texts_that_differ(tmp_path, form, first, second):
    for split in ("train", "test"):
        rows = [("one", f"{first}{split}{number}") for number in range(4)]
        write(tmp_path / f"{split}.{form}", form, rows + [("two", f"{second}{split}{n}") for n in range(4)])
    labels = find_labels(str(tmp_path))
    source = LabelledFile(path=str(tmp_path), classes=labels, class_ids=tuple(range(len(labels))))
    splits = read_classified_texts(source)
    assert counts(splits) == {0: 8, 1: 8} and splits.removed == 0
    assert class_names(source) == {0: "one", 1: "two"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORDS, st.booleans()), min_size=1, max_size=12))
def test_no_class_loses_more_than_exact_duplicates(rows):
    titled = [TitledText("", text, int(label)) for text, label in rows]
    first = {exact_key(text): int(label) for text, label in reversed(rows)}
    expected = collections.Counter(first.values())
    if lost := {int(label) for _, label in rows} - expected.keys():
        with pytest.raises(ValueError, match=f"a: every text of class {min(lost)} in the train split is that of"):
            split_texts({"train": {"a": titled}}, validation=0, test=0)
        return
    splits = split_texts({"train": {"a": titled}}, validation=0, test=0)
    assert counts(splits) == expected and splits.removed == len(rows) - len(first)


@given(WORDS, WORDS)
def test_equality_is_that_of_nfc_and_folded_white_space(text, other):
    assert exact_key(f" {text}\u00a0\n {other} ") == exact_key(f"{unicodedata.normalize('NFD', text)} {other}")
    assert exact_key(exact_key(text)) == exact_key(text)


def test_a_class_without_a_text_of_its_own_is_refused_and_what_is_near_is_said(tmp_path):
    train = [("one", f"text {number}") for number in range(9)] + [("two", "TEXT 1"), ("two", "text 2!")]
    write(tmp_path / "train.csv", "csv", [*train, ("one", "Text 1")])
    write(tmp_path / "test.csv", "csv", [("one", "Text 3."), ("three", "new"), ("one", "text 4"), ("three", "other")])
    source = LabelledFile(
        path=str(tmp_path), classes=("one", "two", "three"), class_ids=(0, 1, 2), validation_percent=0
    )
    notes = source_notes(source)
    assert f"1 rows of {tmp_path}/train.csv are in {tmp_path}/test.csv too" in notes
    assert "1 texts of the test split differ from one to train on in signs, case or blanks alone; they stay" in notes
    assert "2 texts of the test split have a class that no text to train on has ('three')" in notes
    assert read_classified_texts(source).unseen_classes("test") == {2: 2}
    source.equality = "letters_and_digits"
    with pytest.raises(ValueError, match=r"every text of class 'two' in the train split is that of another row.*exact"):
        read_classified_texts(source)
    with pytest.raises(ValueError, match=r"equality: given 'loose', allowed: 'exact', 'letters_and_digits'"):
        split_texts({"train": {"a": [TitledText("", "x", 0)]}}, equality="loose")


def test_equal_texts_of_other_classes_are_counted():
    rows = [TitledText("", text, label) for text, label in [("a", 0), ("a", 1), ("b", 1), ("b", 1), ("c", 0)]]
    splits = split_texts({"train": {"f": rows}}, validation=0, test=0)
    assert "2 rows of f repeat another, 1 of them with another class" in splits.notes()


def test_questions_that_differ_in_a_sign_stay():
    questions = [Question(f"{text}?", "it is so", (("so", 6),)) for pair in PAIRS.values() for text in pair]
    assert select_questions(questions, 0) == questions
    assert (
        len({question.question for question in select_questions(questions, len(questions) - 1)}) == len(PAIRS) * 2 - 1
    )


def test_runs_from_before_compare_letters_and_digits():
    saved = config_to_dict(TextClasses())
    assert config_from_dict(saved).equality == "exact"
    del saved["equality"]
    assert config_from_dict(saved).equality == "letters_and_digits"
