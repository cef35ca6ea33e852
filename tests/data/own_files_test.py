"""Folders as people have them: what of them is read, skipped or refused, for texts and for records."""

import gzip
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.data.record_files import texts_from_records
from memjax.data.sources import SPLITS, texts_from_directories, texts_from_files
from memjax.settings.reading_rules import ReadingRules

TEXT = "".join(f"line {number}: ein Café, zwei Straßen.\n" for number in range(200))
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(100)
FOREIGN = {
    "a.png": (PICTURE, "picture (PNG)"),
    "a.pyc": (b"\xa7\r\r\n\0\0\0\0" + bytes(range(64)), "compiled Python"),
    "empty.txt": (b"", "empty"),
    "paper.pdf": (b"%PDF-1.7\n1 0 obj", "PDF"),
    "noise.bin": (random.Random(0).randbytes(100), "not text"),
    "empty.gz": (gzip.compress(b""), "empty"),
    "array.npy": (b"\x93NUMPY\1\0" + bytes(100), "NumPy array"),
    "picture.txt": (b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(10), "picture (JPEG)"),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(2):
        (tmp_path / "texts" / f"{number}.txt").write_text(TEXT)
    return tmp_path / "texts"


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_text_is_skipped_and_counted(folder, name):
    before = texts_from_files(folder)
    content, reason = FOREIGN[name]
    (folder / name).write_bytes(content)
    texts = texts_from_files(folder)
    assert texts.note == f"1 of 3 files skipped: 1 {reason}" and list(texts) == [TEXT, TEXT]
    assert texts.fingerprint == before.fingerprint and before.note == ""
    with pytest.raises(ValueError, match=name):
        texts_from_files(folder, rules=ReadingRules(skip="none"))
    for rules in (ReadingRules(), ReadingRules(skip="all")):
        with pytest.raises(ValueError, match=f"path: .*{name} is "):
            texts_from_files(folder / name, rules=rules)
    texts = texts_from_directories(folder.parent)
    assert texts.note == f"1 of 3 files skipped: 1 {reason}" and texts[0].count("line 1:") == 2


def test_more_than_a_twentieth_is_refused(folder):
    (folder / "large.png").write_bytes(PICTURE + bytes(2000))
    with pytest.raises(
        ValueError, match=r"1 of 3 files skipped: 1 picture .PNG., 1.% of the bytes; .* --skip"
    ) as error:
        texts_from_files(folder)
    assert "large.png" in str(error.value) and "\n" not in str(error.value)
    assert len(texts_from_files(folder, rules=ReadingRules(skip="all"))) == 2


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "cp1251", "shift-jis", "gbk"]
)
def test_files_of_another_encoding_are_broken(folder, encoding):
    letters = {"cp1251": "Привет, мир! Как дела?\n", "shift-jis": "こんにちは、世界。\n", "gbk": "你好，世界。\n"}
    other = (
        letters.get(encoding, "“Café”, zwei Straßen – ja.\n" if encoding == "cp1252" else "Café, zwei Straßen.\n") * 20
    )
    (folder / "other.txt").write_bytes(other.encode(encoding))
    with pytest.raises(
        ValueError, match=r"other.txt is not UTF-8 at byte \d+.*--encoding .*; --skip leaves out"
    ) as error:
        texts_from_files(folder)
    assert f"--encoding {encoding}" in str(error.value) or encoding in ("shift-jis", "gbk", "cp1251")
    texts = texts_from_files(folder, rules=ReadingRules(encoding=encoding))
    assert list(texts) == [TEXT, TEXT, other] and encoding.replace("_", "-")[:3] in texts.fingerprint.lower() + encoding
    skipped = texts_from_files(folder, rules=ReadingRules(skip="all"))
    assert skipped.note == "1 of 3 files skipped: 1 not UTF-8" and len(skipped) == 2


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["a.txt", "a.json", "a.csv", "a.gz", "a.zip", "a.parquet", "a"]))
def test_whatever_lies_beside_the_texts(tmp_path_factory, content, name):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n" + json.dumps({"text": TEXT}) + "\n")
    (folder / name).write_bytes(content)
    for read in (texts_from_files, texts_from_records):
        try:
            documents = len(read(folder))
        except ValueError as error:
            message = str(error)
            assert_one_line(message)
        else:
            assert documents in (1, 2, 3)


def assert_one_line(message):
    assert "\n" not in message and message.startswith(("path: ", "field: "))


def test_a_file_that_breaks_late_is_named_when_it_is_read(folder):
    (folder / "late.txt").write_bytes(TEXT.encode() * 20 + b"\xff\n")
    texts = texts_from_files(folder)
    with pytest.raises(ValueError, match=r"late.txt is not UTF-8 at byte \d+, line 4,001; the rest is: mend that line"):
        list(texts)
    assert texts_from_files(folder, rules=ReadingRules(skip="all")).note == "1 of 3 files skipped: 1 not UTF-8"


def records(*texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def test_what_lies_beside_records(tmp_path):
    (tmp_path / "a.jsonl").write_text(records(*(f"text {number} of many" for number in range(100))))
    before = texts_from_records(tmp_path)
    assert before.names[:2] == ["a.jsonl:1", "a.jsonl:2"] and before.note == ""
    (tmp_path / "README.md").write_text("# About\n")
    (tmp_path / "more.csv").write_text('id,text\n1,"of, a ""table"""\n2,"two\nlines"\n3,\n')
    (tmp_path / "array.json").write_text(
        json.dumps([{"text": "in an array"}, {}, None, {"text": None}, "alone"], indent=1)
    )
    texts = texts_from_records(tmp_path)
    assert texts.note == "1 of 4 files skipped: 1 without records; 4 of 108 rows skipped: 2 empty, 2 null"
    assert [*texts][-4:] == ["in an array", "alone", 'of, a "table"', "two\nlines"] or sorted(texts) == sorted(
        [*before, "in an array", "alone", 'of, a "table"', "two\nlines"]
    )
    assert "more.csv:2" in texts.names and "array.json:5" in texts.names
    with pytest.raises(ValueError, match="README.md has no records"):
        texts_from_records(tmp_path, rules=ReadingRules(skip="none"))


ROWS = {
    "not JSON": ('{"text": ', "row 2 is not JSON"),
    "another field": ('{"body": "x"}', "row 2 has no text under 'text'"),
    "a number": ('{"text": 3}', "row 2 has no text under 'text'"),
    "a list": ("[1]", "row 2 has no text under 'text'"),
}


@pytest.mark.parametrize("kind", ROWS)
def test_broken_rows_are_named(tmp_path, kind):
    row, message = ROWS[kind]
    (tmp_path / "a.jsonl").write_text(records("one") + row + "\n" + records("three"))
    with pytest.raises(ValueError, match=f"a.jsonl, {message}.*--skip leaves out"):
        texts_from_records(tmp_path / "a.jsonl")
    texts = texts_from_records(tmp_path / "a.jsonl", rules=ReadingRules(skip="all"))
    assert list(texts) == ["one", "three"] and texts.note.startswith("1 of 3 rows skipped")


def test_columns_of_a_table(tmp_path):
    (tmp_path / "a.csv").write_text("id;body\n1;eins\n2;zwei\n")
    with pytest.raises(ValueError, match=r"a.csv has no column 'text' .it has: id, body.; name one of them"):
        texts_from_records(tmp_path / "a.csv")
    assert list(texts_from_records(tmp_path / "a.csv", field="body")) == ["eins", "zwei"]
    (tmp_path / "a.csv").write_text("id;body\n1;eins\n2;zwei;drei\n")
    with pytest.raises(ValueError, match="a.csv, row 3 has 3 fields, the header 2"):
        texts_from_records(tmp_path / "a.csv", field="body")
    (tmp_path / "b.tsv").write_bytes("text\tid\nStraße\t1\n".encode("utf-16"))
    assert list(texts_from_records(tmp_path / "b.tsv", rules=ReadingRules(encoding="utf-16"))) == ["Straße"]


def test_folders_of_data_sets_keep_their_splits(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split, count in {"train": 40, "test": 3}.items():
        (tmp_path / split).mkdir()
        (tmp_path / split / "dataset_info.json").write_text("{}")
        (tmp_path / split / "state.json").write_text("{}")
        table = arrow.Table.from_pylist([{"text": f"{split} {number}"} for number in range(count)])
        with arrow.ipc.new_stream(str(tmp_path / split / "data-00000-of-00001.arrow"), table.schema) as writer:
            writer.write_table(table)
    texts = {split: list(texts_from_records(tmp_path, split=split)) for split in SPLITS}
    assert texts["test"] == ["test 0", "test 1", "test 2"] and all("train" in text for text in texts["validation"])
    assert len(texts_from_records(tmp_path)) == 43 and not set(texts["train"]) & set(texts["validation"])
    assert len(texts_from_records(tmp_path / "train")) == 40


def test_pretty_printed_and_packed_records(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"text": "a"}, {"text": "b"}]}, indent=2))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(records("c", "d").encode()))
    assert list(texts_from_records(tmp_path)) == ["a", "b", "c", "d"]
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    assert list(texts_from_records(tmp_path / "chat.jsonl")) == ["user: Hi\n"]
