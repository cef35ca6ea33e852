"""Records: tables as people write them, JSON in its forms, Parquet and Arrow, and the text of a record."""

import csv
import gzip
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.data.reading_report import ReadingReport, UnreadableError
from memjax.data.records import detect_record_format, get_field, read_json, read_records, read_table, record_text
from memjax.settings.reading_rules import ReadingRules

ROWS = [["label", "text"], ["a, b", 'says "x"'], ["c", "two\nlines; and; more"], ["", "tab\there"]]


def write_table(rows, **options):
    content = io.StringIO()
    csv.writer(content, **options).writerows(rows)
    return content.getvalue()


TABLES = {
    "commas": write_table(ROWS),
    "semicolons": write_table(ROWS, delimiter=";"),
    "tabs": write_table(ROWS, delimiter="\t"),
    "bars": write_table(ROWS, delimiter="|"),
    "all quoted": write_table(ROWS, quoting=csv.QUOTE_ALL),
    "line feeds": write_table(ROWS, lineterminator="\n"),
    "carriage returns": write_table(ROWS, lineterminator="\r", quoting=csv.QUOTE_ALL),
    "a mark of the byte order": "\ufeff" + write_table(ROWS, quoting=csv.QUOTE_ALL),
    "excel": "sep=;\r\n" + write_table(ROWS, delimiter=";"),
    "blank lines": write_table(ROWS).replace("\r\n", "\r\n\r\n"),
    "no line end": write_table(ROWS).removesuffix("\r\n"),
}


@pytest.mark.parametrize("form", TABLES)
def test_tables_of_every_dialect_have_the_same_rows(form):
    assert [record.value for record in read_table(TABLES[form], "table")] == ROWS


fields = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], include_characters="\n\r\t"), max_size=12)
lines = st.lists(st.tuples(fields, fields, st.just("end")), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(lines, st.sampled_from(",;\t|"), st.sampled_from(["\r\n", "\n"]))
def test_what_is_written_with_quotes_is_read(rows, delimiter, end):
    content = write_table(rows, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    table = [tuple(record.value) for record in read_table(content, "table", delimiter=delimiter)]
    assert table == rows


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet='a,;"\t\n\r|', max_size=60))
def test_whatever_the_table_it_has_rows_or_one_line(text):
    try:
        rows = list(read_table(text, "table"))
    except UnreadableError as refusal:
        rows = []
        message = str(refusal)
        assert_line(message)
    assert all(row.value for row in rows)


def assert_line(message):
    assert "\n" not in message and message.startswith("path: ")


def test_tables_with_tabs_keep_quotes_that_are_part_of_a_text():
    text = '"Great" he said\tpos\nand "no" she said\tneg\n"alone\tpos\n"Quoted."\tneg\n'
    assert [row.value[0] for row in read_table(text, "t", delimiter="\t")] == [
        *('"Great" he said', 'and "no" she said', '"alone', '"Quoted."')
    ]


def test_a_quote_that_is_never_closed_names_its_row():
    rows = read_table('a,"b"\nc,"d\ne,f\ng,h\n', "t.csv")
    assert next(rows).value == ["a", "b"]
    with pytest.raises(UnreadableError, match=r"t.csv, row 2: a quote is never closed"):
        list(rows)


def test_fields_of_a_chapter_are_read():
    assert len(next(read_table(f"a,{'x' * 200_000}\n", "t")).value[1]) == 200_000


OBJECTS = [{"text": "é one"}, {"text": "two", "id": 3}]
JSON_FORMS = {
    "array": json.dumps(OBJECTS),
    "array on lines": json.dumps(OBJECTS, indent=1),
    "lines": "\n".join(map(json.dumps, OBJECTS)),
    "lines with blanks": "\r\n\r\n".join(map(json.dumps, OBJECTS)) + "\r\n",
    "in an object": json.dumps({"version": 1, "data": OBJECTS}),
    "in an object on lines": json.dumps({"data": OBJECTS}, indent=2),
    "arrays on lines": "\n".join(json.dumps([part]) for part in OBJECTS),
    "line separators inside": json.dumps({"text": "a\u2028b"}, ensure_ascii=False) + "\n" + json.dumps(OBJECTS[1]),
}


@pytest.mark.parametrize("form", JSON_FORMS)
def test_forms_of_json(form):
    values = [record.value for record in read_json(JSON_FORMS[form], "some.json")]
    if form == "arrays on lines":
        assert values == [[part] for part in OBJECTS]
    elif form == "line separators inside":
        assert values == [{"text": "a\u2028b"}, OBJECTS[1]]
    else:
        assert values == OBJECTS


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.none() | st.integers()), min_size=2))
def test_arrays_and_lines_are_the_same_records(objects):
    of_array = [record.value for record in read_json(json.dumps(objects), "a")]
    of_lines = [record.value for record in read_json("\n".join(map(json.dumps, objects)), "a")]
    assert of_array == of_lines == objects


def test_a_line_that_is_not_json_is_a_broken_row():
    records = list(read_json('{"text": "a"}\n{"text": \n{"text": "b"}\n', "a.jsonl"))
    assert [isinstance(record.value, UnreadableError) for record in records] == [False, True, False]
    with pytest.raises(UnreadableError, match=r"a.jsonl, row 2 is not JSON .*; --skip leaves out"):
        list(ReadingReport("rows", "a.jsonl", ReadingRules()).filter_readable(records))
    report = ReadingReport("rows", "a.jsonl", ReadingRules(skip="all"))
    assert [record.number for record in report.filter_readable(records)] == [1, 3]
    assert report.finish() == "1 of 3 rows skipped: 1 not JSON"
    with pytest.raises(UnreadableError, match="is not JSON"):
        list(read_json("[1, 2", "a.json"))


TEXTS = {
    "text": ({"text": "a"}, "text", "a"),
    "nested": ({"a": {"b": "c"}}, "a.b", "c"),
    "key with a dot": ({"a.b": "c"}, "a.b", "c"),
    "in a list": ({"a": [{"b": "c"}]}, "a.0.b", "c"),
    "itself": ("alone", "text", "alone"),
    "list of texts": ({"text": ["a", "b"]}, "text", "a\nb"),
    "messages": (
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        *("text", "user: q\nassistant: a\n"),
    ),
    "from and value": ({"conversations": [{"from": "human", "value": "q"}]}, "text", "human: q\n"),
    "parts of a message": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image"}]}]},
        *("text", "user: q\n"),
    ),
    "named messages": ({"dialog": [{"role": "user", "content": "q"}]}, "dialog", "user: q\n"),
    "prompt": ({"prompt": "q", "completion": "a"}, "text", "q\na"),
    "prompt with a space": ({"prompt": "q: ", "completion": "a"}, "text", "q: a"),
    "prompt of messages": (
        {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
        *("text", "user: q\nassistant: a\n"),
    ),
}


@pytest.mark.parametrize("form", TEXTS)
def test_the_text_of_a_record(form):
    value, field, text = TEXTS[form]
    assert record_text(value, field, "row 1") == text


REFUSED = {
    "null": (None, "null", False),
    "an empty object": ({}, "empty", False),
    "an empty text": ({"text": ""}, "empty", False),
    "a text that is null": ({"text": None}, "null", False),
    "no messages": ({"messages": []}, "empty", False),
    "another field": ({"body": "a"}, "without 'text'", True),
    "a number": ({"text": 3}, "without 'text'", True),
    "a list": ([1], "without 'text'", True),
    "messages of another form": ({"messages": [{"who": "me"}]}, "without 'text'", True),
    "prompt alone": ({"prompt": "a"}, "without 'text'", True),
}


@pytest.mark.parametrize("form", REFUSED)
def test_records_without_a_text(form):
    value, reason, is_broken = REFUSED[form]
    with pytest.raises(UnreadableError) as refusal:
        record_text(value, "text", "a.json, row 7")
    assert (refusal.value.reason, refusal.value.is_broken) == (reason, is_broken)
    assert "a.json, row 7" in str(refusal.value)


@settings(max_examples=50, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda part: st.lists(part) | st.dictionaries(
    st.sampled_from(["text", "messages", "role", "content", "prompt", "completion"]), part)))  # fmt: skip
def test_whatever_the_record_it_has_a_text_or_a_reason(value):
    try:
        text = record_text(value, "text", "row 1")
    except UnreadableError as refusal:
        text = refusal.reason
    assert text


def test_nothing_under_a_field():
    with pytest.raises(KeyError):
        get_field({"a": [1]}, "a.1")


def columns(kind, path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_pylist([*OBJECTS, {"text": None}])
    if kind == "parquet":
        arrow.parquet.write_table(table, path)
        return
    new = arrow.ipc.new_file if kind == "arrow" else arrow.ipc.new_stream
    with new(path, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
def test_columns(tmp_path, kind):
    pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data-00000-of-00001"
    columns(kind, str(path))
    assert detect_record_format(path) == kind.split(" ")[0]
    values = [record.value for record in read_records(path)]
    assert [value["text"] for value in values] == ["é one", "two", None]
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UnreadableError, match=r"cannot be read \(.*\), allowed: a whole (Parquet|Arrow) file"):
        list(read_records(path))


def test_formats_are_told_by_the_unpacked_name(tmp_path):
    for name, form in {"a.csv": "csv", "b.JSONL": "json", "c.tsv.gz": "tsv", "d.txt": "", "e": ""}.items():
        content = b"a,b\n"
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        assert detect_record_format(tmp_path / name) == form
    assert [row.value for row in read_records(tmp_path / "a.csv")] == [["a", "b"]]
    with pytest.raises(UnreadableError, match="d.txt has no records; allowed: .json, .jsonl"):
        list(read_records(tmp_path / "d.txt"))


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(20))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"Parquet, and pyarrow is not installed; pip install 'memjax\[files\]'"):
        list(read_records(tmp_path / "a.parquet"))
