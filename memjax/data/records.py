"""Reads records from files (rows of CSV, TSV, JSON, Parquet and Arrow), and finds the text of a record.

For example, this prints the records of a packed CSV file:

    report = ReadingReport("rows", "reviews.csv.gz", ReadingRules(encoding="cp1252"))
    for record in report.filter_readable(read_records("reviews.csv.gz", "cp1252")):
        print(record.place, record.value)
    print(report.finish())  # "3 of 212 rows skipped: 2 empty, 1 null"
"""

from __future__ import annotations

import collections
import contextlib
import csv
import importlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.data.file_contents import (
    ARROW,
    ARROW_STREAM,
    PARQUET,
    decode_bytes,
    detect_compression,
    import_extra,
    read_text_file,
    unpacked_name,
)
from memjax.data.reader_errors import reading
from memjax.data.reading_report import Record, UnreadableError

__all__ = [
    "get_field",
    "first_field",
    "json_line_records",
    "missing_text_error",
    "parse_json",
    "parse_json_file",
    "parse_json_text",
    "read_json",
    "read_records",
    "read_table",
    "detect_record_format",
    "record_text",
]

# The default of csv, 131,072 characters, is less than a chapter.
csv.field_size_limit(2**31 - 1)

_RECORD_ENDINGS = {
    **{".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "tsv"},
    **{".parquet": "parquet", ".arrow": "arrow"},
}


def detect_record_format(path: str | os.PathLike[str]) -> str:
    """Detects the format of records by a file's bytes and name: json, csv, tsv, parquet, arrow, or '' for none.

    Parquet and Arrow are recognised by their first bytes, the other formats by the ending of the unpacked name.
    """
    with open(path, "rb") as file:
        start = file.read(8)
    if start.startswith(PARQUET):
        return "parquet"
    if start.startswith((ARROW, ARROW_STREAM)):
        return "arrow"
    name = Path(path).name
    ending = Path(name.removesuffix(detect_compression(path))).suffix.lower()
    if ending in _RECORD_ENDINGS:
        return _RECORD_ENDINGS[ending]
    try:
        return _RECORD_ENDINGS.get(Path(unpacked_name(path)).suffix.lower(), "")
    except UnreadableError:
        return ""


def read_records(
    path: str | os.PathLike[str], encoding: str = "utf-8", *, delimiter: str = "", form: str = ""
) -> Iterator[Record]:
    """Yields a `Record` for each record of a file: rows of CSV and TSV, also a header, as lists of fields, other
    records as JSON values. `form` is a result of `detect_record_format`. It and `delimiter` are detected if empty.

    Args:
      path: Path of the file, which may be packed.
      encoding: Encoding of the text if it is not UTF-8.
      delimiter: Character between the fields of a table. Empty to detect it.
      form: Format of the records, a result of `detect_record_format`. Empty to detect it.

    Raises:
      UnreadableError: The file as a whole cannot be read. A record that cannot be read is an `UnreadableError` as its
        value.
    """
    form = form or detect_record_format(path)
    if form in ("parquet", "arrow"):
        yield from _read_columns(path, form)
    elif form == "json":
        yield from read_json(read_text_file(path, encoding), path)
    elif form:
        delimiter = delimiter or ("\t" if form == "tsv" else "")
        yield from read_table(read_text_file(path, encoding), path, delimiter=delimiter)
    else:
        endings = ", ".join(_RECORD_ENDINGS)
        raise UnreadableError(f"path: {path} has no records; allowed: {endings}", "without records", is_broken=False)


_CONTAINERS = ("data", "rows", "examples", "records", "documents", "items")
"""Keys under which a JSON object may contain the list of all records."""


def read_json(text: str, name: object) -> Iterator[Record]:
    """Yields the records of `text`, the content of the file `name`: a JSON array, JSON lines, or an object that holds
    them under `data` or a similar key. Any other object is a record itself.

    Raises:
      UnreadableError: An array that is not JSON.
    """
    if text.lstrip().startswith("["):
        with reading(name, "a JSON array, or one JSON object per line"):
            entries = _json_array(text)
    elif (whole := _object_of_lines(text)) is not None:
        lists = [whole[name] for name in _CONTAINERS if isinstance(whole.get(name), list)]
        entries = lists[0] if lists else [whole]
    else:
        yield from json_line_records(text.split("\n"), name)
        return
    size = len(text) // max(len(entries), 1)
    for number, entry in enumerate(entries, start=1):
        yield Record(f"{name}, row {number}", number, entry, size)


def _json_array(text: str) -> list[Any]:
    """Parses a JSON array, or lines that are arrays."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        lines = text.lstrip().split("\n")
        # Lines that are arrays each are no JSON array.
        with contextlib.suppress(json.JSONDecodeError):
            return [json.loads(line) for line in lines if line.strip()]
        raise


def _object_of_lines(text: str) -> dict[str, Any] | None:
    """Parses a text that is a single JSON object. None for JSON lines and anything else."""
    if not text.lstrip().startswith("{"):
        return None
    first = text.lstrip().split("\n", 1)[0]
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(first)
        if text.strip() != first.strip():
            return None  # JSON lines
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def parse_json_text(text: str | bytes) -> Any:
    """Parses a JSON value, inside of `memjax.data.reader_errors.reading`, which turns errors into a line with the file.

    Raises:
      ValueError: The text is not JSON.
    """
    return json.loads(text)


def parse_json_file(path: str | os.PathLike[str]) -> Any:
    """Reads the JSON value of a file, which may be packed, inside of `memjax.data.reader_errors.reading`, which turns
    errors into a line with the file.

    Raises:
      ValueError: The file is not text, or not JSON.
    """
    return json.loads(read_text_file(path))


def json_line_records(lines: Iterable[str | bytes], name: object) -> Iterator[Record]:
    """Yields a `Record` for every line that is not blank. Its value is an `UnreadableError` if the line is not JSON.
    Places and errors name the file `name`.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{name}, row {number}"
            yield Record(place, number, parse_json(line, place), len(line))


def parse_json(line: str | bytes, place: str) -> Any:
    """Parses a JSON value, and returns (not raises) an `UnreadableError` if the line is not JSON. `place` names the
    line in the error.
    """
    try:
        with reading(place, "one JSON object per line, or an array"):
            return json.loads(decode_bytes(line, place) if isinstance(line, bytes) else line)
    except UnreadableError as error:
        return error


def read_table(text: str, name: object, *, delimiter: str = "", has_quotes: bool | None = None) -> Iterator[Record]:
    r"""Yields the rows of `text`, the content of a CSV or TSV file, as `Record`s with lists of fields. Blank lines are
    left out. `delimiter` and `has_quotes` are detected by default. Errors name the file `name`.

    Fields may be quoted and then contain delimiters and line ends. Lines may end in `\r\n` or `\r`. In tables with
    tabs, quotes are part of the text unless they clearly enclose fields.

    Args:
      text: Content of the file.
      name: Name of the file in error messages.
      delimiter: Character between fields. Empty to choose the one of `, ; tab |` that gives most rows the same number
        of fields.
      has_quotes: Whether quotes enclose fields. None to detect it.

    Raises:
      UnreadableError: A quote that is never closed. The error names the row in which it opens.

    Example:
      >>> [row.value for row in read_table('a;"b;\n1,5"\r\nc;d', "table")]
      [['a', 'b;\n1,5'], ['c', 'd']]
    """
    text = text.removeprefix("\ufeff")
    if separator := re.match(r'"?sep=(.)"?\r?\n', text):  # as Excel writes it
        delimiter, text = delimiter or separator[1], text[separator.end() :]
    with reading(name, "a table, one row per line"):
        delimiter = delimiter or _delimiter_of(text)
        if has_quotes is None:
            has_quotes = delimiter != "\t" or _has_table_quotes(text)
        options: dict[str, Any] = {} if has_quotes else {"quoting": csv.QUOTE_NONE}
        lines = _CountedLines(text)
        for number, row in enumerate(csv.reader(lines, delimiter=delimiter, **options), start=1):
            taken = lines.take()
            if row:
                yield Record(f"{name}, row {number}", number, row, sum(map(len, taken)))
            if has_quotes and len(taken) > 1 and lines.is_done and _is_open(taken, delimiter):
                advice = "mend it, or double quotes inside of fields"
                raise UnreadableError(
                    f"path: {name}, row {number}: a quote is never closed; {advice}", "with an open quote"
                )


class _CountedLines:
    """Iterates over the lines of a text and keeps those that make up the current row."""

    def __init__(self, text: str):
        self._lines, self._taken, self.is_done = io.StringIO(text, newline=""), list[str](), False

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self._taken.append(line)
            yield line
        self.is_done = True

    def take(self) -> list[str]:
        """Returns the lines read since the last call."""
        taken, self._taken = self._taken, []
        return taken


def _is_open(lines: Sequence[str], delimiter: str) -> bool:
    """Returns whether a row ends inside quotes."""
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        return "unexpected end" in str(error)
    return False


def _sample_rows(text: str, delimiter: str, **options: Any) -> list[list[str]]:
    """Returns the first rows of a table, as far as they are complete in the first 256 KiB."""
    reader = csv.reader(io.StringIO(text[: 1 << 18], newline=""), delimiter=delimiter, **options)
    rows = [row for row in itertools.islice(reader, 200) if row]
    return rows[:-1] if len(text) > 1 << 18 else rows


def _delimiter_of(text: str) -> str:
    """Returns the delimiter that gives most rows the same number of fields, at least two. The comma if none does."""
    best, most = ",", 0.0
    for delimiter in ",;\t|":
        widths = [len(row) for row in _sample_rows(text, delimiter)]
        ((width, count),) = collections.Counter(widths).most_common(1) or [(0, 0)]
        if width > 1 and count / len(widths) > most:
            best, most = delimiter, count / len(widths)
    return best


def _has_table_quotes(text: str) -> bool:
    """Returns whether the quotes of a table with tabs enclose its fields and are not part of the texts."""
    if '"' not in text:
        return False
    try:
        quoted = _sample_rows(text, "\t", strict=True)
    except csv.Error:
        return False
    plain = _sample_rows(text, "\t", quoting=csv.QUOTE_NONE)
    widths = lambda rows: len({len(row) for row in rows})
    doubled = any(re.search(r'^".*"".*"$', field) for row in plain for field in row)
    all_quoted = all(len(field) > 1 and field[0] == field[-1] == '"' for row in plain for field in row)
    holds_breaks = any({"\t", "\n", "\r"} & set(field) for row in quoted for field in row)
    return (widths(quoted) == 1 and (widths(plain) > 1 or doubled or holds_breaks)) or all_quoted


def _read_columns(path: str | os.PathLike[str], form: str) -> Iterator[Record]:
    """Yields the rows of Parquet and Arrow files."""
    arrow, number = import_extra("pyarrow", path, form.capitalize()), 0
    with reading(path, f"a whole {form.capitalize()} file"):
        if form == "parquet":
            batches = importlib.import_module("pyarrow.parquet").ParquetFile(path).iter_batches(1024)
        else:
            with open(path, "rb") as file:
                opener = arrow.ipc.open_file if file.read(6) == ARROW else arrow.ipc.open_stream
            reader = opener(arrow.memory_map(os.fspath(path)))
            batches = (
                map(reader.get_batch, range(reader.num_record_batches)) if opener is arrow.ipc.open_file else reader
            )
        for batch in batches:
            batch.validate(full=True)  # a damaged offset would end the process
            size = batch.nbytes // max(batch.num_rows, 1)
            for row in batch.to_pylist():
                number += 1
                yield Record(f"{path}, row {number}", number, row, size)


# Texts of records


def get_field(value: Any, field: str) -> Any:
    """Returns the value of a field of a record. Dots in the name lead into nested records, numbers into lists. A
    missing field is a `KeyError`.

    Raises:
      KeyError: The record has no such field.

    Example:
      >>> get_field({"a": {"b": [1, "two"]}}, "a.b.1"), get_field({"a.b": 3}, "a.b")
      ('two', 3)
    """
    if isinstance(value, Mapping) and field in value:
        return value[field]
    head, _, rest = field.partition(".")
    if isinstance(value, Mapping) and head in value and rest:
        return get_field(value[head], rest)
    if isinstance(value, list) and head.isdecimal() and int(head) < len(value):
        return get_field(value[int(head)], rest) if rest else value[int(head)]
    raise KeyError(field)


def first_field(value: Any, fields: Sequence[str]) -> Any:
    """Returns the value of the first of the fields named `fields` that a record has. None if it has none of them. Dots
    in a name lead into nested records.

    Args:
      value: Any JSON value.
      fields: Names of fields, with dots for nested records.
    """
    for field in fields:
        with contextlib.suppress(KeyError):
            return get_field(value, field)
    return None


def record_text(value: Any, field: str, place: str) -> str:
    r"""Returns the text under `field` of the record `value`, or the record itself if it is a string. Chats and lists of
    texts are joined. A record without text is an `UnreadableError`, which names `place`.

    A record that is a string is its own text. A chat is written message by message, and a list of texts line by line.
    If `field` is 'text' and a record has no such field, `messages`, `conversations`, or `prompt` and `completion` are
    used.

    Args:
      value: JSON value, or fields by the names of their columns.
      field: Name of the field with the text, with dots for nested records.
      place: Name of the record in error messages.

    Raises:
      UnreadableError: The record is empty or null, or has no text in the field.

    Example:
      >>> record_text({"messages": [{"role": "user", "content": "Hi"}]}, "text", "row 1")
      'user: Hi\n'
    """
    if isinstance(value, UnreadableError):
        raise value
    if value is None or (isinstance(value, Mapping | list | str) and not value):
        raise missing_text_error(place, "null" if value is None else "empty")
    if isinstance(value, str):
        return value
    try:
        entry = get_field(value, field) if isinstance(value, Mapping) else value
    except KeyError:
        entry = _chat_of(dict(value)) if field == "text" else ...
    if entry is None or (isinstance(entry, str | list | Mapping) and not entry):
        raise missing_text_error(place, "null" if entry is None else "empty")
    text = _write_out(entry) if isinstance(value, Mapping) else None
    if text is None:
        has = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        advice = "name the field that holds the text"
        raise UnreadableError(
            f"field: {place} has no text under {field!r} (it has: {has}); {advice}", f"without {field!r}"
        )
    if not text:
        raise missing_text_error(place, "empty")
    return text


def missing_text_error(place: str, reason: str) -> UnreadableError:
    """Returns the error for a record without text, which may be skipped. `reason` is 'empty' or 'null'."""
    return UnreadableError(f"path: {place} is {reason}; remove it", reason, is_broken=False)


def _chat_of(value: Mapping[str, Any]) -> Any:
    """Returns the messages of a record, or its prompt and completion as one text. `...` if it has neither."""
    for name in ("messages", "conversations"):
        if isinstance(value.get(name), list):
            return value[name]
    parts = [value.get(name) for name in ("prompt", "completion")]
    if not all(isinstance(part, str | list) for part in parts):
        return ...
    prompt, completion = (_write_out(part) for part in parts)
    if prompt is None or completion is None:
        return ...
    return prompt + ("" if prompt[-1:].isspace() or completion[:1].isspace() else "\n") + completion


def _write_out(entry: Any) -> str | None:
    """Writes a string, a list of strings or the messages of a chat as one text. None for anything else."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, list):
        return None
    if all(isinstance(part, str) for part in entry):
        return "\n".join(entry)
    lines = []
    for message in entry:
        role, content = (first_field(message, names) for names in (("role", "from"), ("content", "value")))
        if isinstance(content, list):  # parts of a message, of which pictures have no text
            content = "\n".join(part["text"] for part in content if isinstance(part, Mapping) and "text" in part)
        if not isinstance(role, str) or not isinstance(content, str | None):
            return None
        lines.append(f"{role}: {content or ''}\n")
    return "".join(lines)
