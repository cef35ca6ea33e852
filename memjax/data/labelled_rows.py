"""Reads texts with classes from CSV, TSV, JSON, Parquet and Arrow files, and splits a user's own labelled file.

For example, this numbers the labels of a file and splits it:

    numbers = {label: number for number, label in enumerate(find_labels("reviews.csv"))}
    splits = labelled_texts("reviews.csv", numbers)
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from memjax import config as configs
from memjax.data.paths import find_packed, packed_names, read_text
from memjax.data.reading_report import ReadingReport, Record, UnreadableError
from memjax.data.records import detect_record_format, first_field, missing_text_error, read_records, read_table
from memjax.data.sources import SPLITS
from memjax.data.text_splits import TextSplits, TitledText, split_texts
from memjax.settings.reading_rules import ReadingRules, reading_rules_of

__all__ = ["LabelledLine", "find_labelled_files", "labelled_texts", "find_labels", "read_rows", "unescape"]

HEADER = ("class", "label")
"""Names by which the first row of a user's own file may call the column of the class."""
TEXT_HEADER = ("text", "sentence")
"""Names by which the first row may call the column of the text, if the column of the class is between others."""
_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow")


def labelled_texts(
    path: str, numbers: Mapping[str, int], *, rules: ReadingRules = ReadingRules(), **options: Any
) -> TextSplits:
    """Reads a user's own labelled file or folder and divides its rows into `TextSplits`. `numbers` maps each label to
    the number of its class, `rules` say how files are read. The options are arguments of `split_texts`.

    Args:
      path: File that `read_rows` can read, of which shares are held out. Or a folder with `train.csv` (also `.tsv`,
        `.json` and so on), and optionally `validation` and `test` files.
      numbers: Mapping from a label in the files to the number of its class.
      rules: Encoding of the files, and rules for rows that may be skipped.
      **options: Arguments of `split_texts` except `files`.

    Raises:
      ValueError: No such file, a file of another form, a class without a number, or no training or test examples.
    """

    def to_titled_text(row: LabelledLine) -> TitledText:
        if row.label and row.label not in numbers:
            raise ValueError(f"{row.place}: class {row.label!r}, allowed: {', '.join(numbers)}")
        return TitledText(row.title, row.text, numbers.get(row.label))

    report = ReadingReport("rows", path, rules)
    files = {
        split: {str(file): list(map(to_titled_text, read_rows(file, rules=rules, report=report)))}
        for split, file in find_labelled_files(path).items()
    }
    skipped, splits = report.finish(), split_texts(files, **options)
    for split in ("train", "test"):
        if not splits.texts[split]:
            num_rows = sum(len(rows) for rows_of_file in files.values() for rows in rows_of_file.values())
            allowed = "at least one; more rows, or a folder with train.csv and test.csv"
            raise ValueError(f"{path}: no examples for the {split} split in its {num_rows} rows, allowed: {allowed}")
    return replace(splits, skipped=skipped)


def parse_labelled_file(source: configs.LabelledFile, **options: Any) -> TextSplits:
    """Reads the user's own labelled file or folder of the settings `source` and divides its rows into `TextSplits`. The
    options are arguments of `split_texts`.
    """
    numbers = dict(zip(source.classes, source.class_ids, strict=True))
    return labelled_texts(source.path, numbers, rules=reading_rules_of(source), **options)


def name_labelled_classes(source: configs.LabelledFile) -> dict[int, str]:
    """Returns number -> name of the classes of a user's own labelled file, from the settings `source`."""
    return dict(zip(source.class_ids, source.classes, strict=True))


def find_labels(path: str, rules: ReadingRules = ReadingRules()) -> tuple[str, ...]:
    """Returns the sorted labels, as written, that occur in a user's own labelled file or folder, which is read by
    `rules`. More labels than half the number of its rows are an error.

    Args:
      path: File or folder. See `labelled_texts`.
      rules: Encoding of the files, and rules for rows that may be skipped.

    Raises:
      ValueError: A path that `labelled_texts` refuses, or a file with more labels than half the number of its rows.
    """
    report = ReadingReport("rows", path, rules)
    rows = [row for file in find_labelled_files(path).values() for row in read_rows(file, rules=rules, report=report)]
    rows = [row for row in rows if row.label]
    labels = sorted({row.label for row in rows})
    if not rows:
        raise ValueError(f"{path}: no row has a class and a text, allowed: at least one")
    if len(labels) > max(len(rows) // 2, 2):
        allowed = (
            ".csv with the class in the first column, .tsv with it in the last, or other columns that the first row "
            "names: --label-column NAME --text-column NAME"
        )
        raise ValueError(
            f"{path}: {len(labels)} classes in {len(rows)} rows, as {labels[0][:20]!r}, allowed: {allowed}"
        )
    return tuple(labels)


def find_labelled_files(path: str) -> dict[str, Path]:
    """Returns split -> path of the file, for a user's labelled file or folder. A single file belongs to 'train'.

    Raises:
      ValueError: No such file, or a folder without files of the splits.
    """
    place = Path(path).expanduser()
    if place.is_file():
        return {"train": place}
    candidates = {split: find_packed(place, *(f"{split}{ending}" for ending in _ENDINGS)) for split in SPLITS}
    files = {split: file for split, file in candidates.items() if file is not None}
    if not files:
        endings = ", ".join(_ENDINGS)
        raise ValueError(f"{path}: no such file, allowed: a file ({endings}) or a folder with train{_ENDINGS[0]}")
    return files


class LabelledLine(NamedTuple):
    """One row of a labelled file: title, text, class as written, and its place in the file.

    Attributes:
      title: Title of the text. Empty if it has none.
      text: The text.
      label: Class as written in the file.
      place: File and number of the row, for messages.
    """

    title: str
    text: str
    label: str
    place: str

    def to_text(self, titled: bool) -> str:
        """Returns `title. text` if `titled` is set and there is a title, otherwise the text alone."""
        return ". ".join(filter(None, (self.title, self.text))) if titled else self.text


def read_rows(
    file: Path,
    is_class: Callable[[str], bool] | None = None,
    *,
    spaced: bool = False,
    rules: ReadingRules = ReadingRules(),
    report: ReadingReport | None = None,
) -> Iterator[LabelledLine]:
    r"""Yields a `LabelledLine` for each row of a file, which may be packed. `is_class(field)` finds the column of the
    class in published files. With `spaced`, backslashes stand for white space. `report` counts skipped rows.

    The form of a row depends on the ending of the file:

    - `.csv`: The class is the first or the last column. The others are a text, a title and a text, or a title and
      several texts (such as a question and its answer).
    - `.tsv`: A text and its class.
    - `.json`, `.jsonl`, `.parquet`, `.arrow`: Objects with `sentence` or `text`, and `label`, as in the files of
      O-LoRA. The text may have the form `Title: ...`, `Text: ...`.

    Escape sequences in published files, such as `\n`, `\"` and `\u00e9`, are replaced by their characters. AG News has
    a backslash for each line break. Backslashes in a user's own files are preserved unless `rules.escapes` is
    'resolved'.

    Args:
      file: Path of the file.
      is_class: Function that returns whether a field is a class, which finds the column of the class in the first row
        of a published file. None for a user's own file: the column that a header names, otherwise the first column of
        `.csv` and the last of `.tsv`.
      spaced: Whether backslashes stand for white space, as in AG News.
      rules: Encoding of the file, its columns, and rules for rows that may be skipped.
      report: Report that counts skipped rows: those without text, and broken ones if these may be skipped. None to
        refuse broken rows and yield all others.

    Raises:
      ValueError: A file of another form, or a row that must not be skipped.
    """
    form, is_published = detect_record_format(file), is_class is not None
    plain = functools.partial(unescape, spaced=spaced) if is_published or rules.escapes == "resolved" else str.strip
    if not form:
        raise ValueError(f"{file}: given another ending, allowed: {', '.join(packed_names(*_ENDINGS))}")
    if form in ("csv", "tsv"):
        content, delimiter = read_text(file, encoding=rules.encoding), "," if is_published else ""
        # Published files with tabs have been read without quotes, also where they have some (the dev file of ALPS).
        has_quotes = False if form == "tsv" and is_published else None
        records = read_table(content, file, delimiter="\t" if form == "tsv" else delimiter, has_quotes=has_quotes)
        rows = _read_table(records, is_class, -1 if form == "tsv" else 0, plain, rules)
    else:
        rows = (_read_object(record, plain, rules) for record in read_records(file, rules.encoding, form=form))
    for row in rows:
        size = row.size if isinstance(row, UnreadableError) else len(row.title) + len(row.text)
        if report is not None and not size and isinstance(row, LabelledLine):
            row = UnreadableError(f"{row.place} has no text; remove it", "empty", is_broken=False)
        if not isinstance(row, UnreadableError):
            if report is not None:
                report.count_read(size)
            yield row
        elif report is None:
            raise row
        else:
            report.count_skipped(row, size)


def _read_table(
    records: Iterator[Record],
    is_class: Callable[[str], bool] | None,
    usual: int,
    plain: Callable[[str], str],
    rules: ReadingRules,
) -> Iterator[LabelledLine | UnreadableError]:
    """Yields the rows of a table, or the error of a row with too few columns.

    Args:
      records: Rows of the table as lists of fields.
      is_class: Function that finds the column of the class. None to use a header, or `usual`.
      usual: Number of the column of the class if no header names it.
      plain: Function that cleans a field.
      rules: Names of the columns.
    """
    place, text_places = None, None
    for record in records:
        row = record.value
        if len(row) < 2:
            message = f"{record.place}: {len(row)} columns, allowed: a class and at least one text"
            yield UnreadableError(message, "with one column", size=record.size)
            continue
        if place is None and is_class is not None:
            place = 0 if is_class(row[0]) else -1
        elif place is None:
            place, text_places = _columns_of(row, record.place, rules)
            if place is not None:
                continue
            place = usual
        label = place if place >= 0 else len(row) + place
        places = [number for number in range(len(row)) if number != label] if text_places is None else text_places
        if max(label, *places) >= len(row):
            message = f"{record.place}: {len(row)} columns, allowed: as many as the first row"
            yield UnreadableError(message, "with too few columns", size=record.size)
            continue
        fields = [plain(row[number]) for number in places]
        title, texts = (fields[0], fields[1:]) if len(fields) > 1 else ("", fields)
        yield LabelledLine(title, " ".join(filter(None, texts)), row[label].strip(), record.place)


def _columns_of(header: Sequence[str], where: str, rules: ReadingRules) -> tuple[int | None, list[int] | None]:
    """Finds the columns of the class and of the text by the names in the first row of a table.

    Returns:
      Number of the column of the class (None if the row does not name one), and numbers of the columns of the text
      (None for all other columns).

    Raises:
      ValueError: The first row does not have a column that the rules name.
    """
    names = [name.strip() for name in header]
    columns = {}
    for option in ("text_column", "label_column"):
        if name := getattr(rules, option):
            if name not in names:
                raise ValueError(f"{option}: given {name!r}, allowed: a column of {where}: {', '.join(names)}")
            columns[option] = names.index(name)
    usual = lambda allowed: [number for number, name in enumerate(names) if name.lower() in allowed]
    labels, ends, texts = usual(HEADER), (0, len(names) - 1), usual(TEXT_HEADER)
    label = columns.get("label_column", next((number for number in labels if number in ends), None))
    if label is None and labels and (texts or "text_column" in columns):
        label = labels[0]
    if label is None and "text_column" in columns:
        allowed = f"a name of the column of the class, one of {', '.join(names)}"
        raise ValueError(
            f"label_column: given '', allowed: {allowed}, as the first row of {where} has no class or label"
        )
    if "text_column" in columns:
        return label, [columns["text_column"]]
    return label, texts[:1] if label is not None and label not in ends and texts else None


def _read_object(record: Record, plain: Callable[[str], str], rules: ReadingRules) -> LabelledLine | UnreadableError:
    """Returns the row of a JSON object, or the error if it has no text or class."""
    value = record.value
    if isinstance(value, UnreadableError):
        return value
    if value is None or value == {}:
        return missing_text_error(record.place, "null" if value is None else "empty")
    keys = (rules.text_column,) if rules.text_column else ("sentence", "text")
    sentence, label = first_field(value, keys), first_field(value, (rules.label_column or "label",))
    if not isinstance(sentence, str) or label is None:
        has = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        wanted = f"objects with {' or '.join(keys)}, and {rules.label_column or 'label'}"
        message = f"{record.place}: of another form (it has: {has}), allowed: {wanted}"
        return UnreadableError(message, "of another form", size=record.size)
    match = re.fullmatch(r"(?:Title:(?P<title>[^\n]*)\n)?Text:(?P<text>.*)", sentence, re.DOTALL)
    title, text = (match["title"] or "", match["text"]) if match else ("", sentence)
    return LabelledLine(plain(title), plain(text), str(label).strip(), record.place)


_ESCAPED = re.compile(r"""(?P<units>(?:\\u[0-9a-fA-F]{4})+)|\\(?P<sign>[nrt"'\\])""")


_SIGNS = {"n": "\n", "r": "\n", "t": "\t"}


def unescape(text: str, spaced: bool) -> str:
    """Replaces escape sequences of a text by their characters, or with `spaced` every backslash by a blank, and strips
    white space around the text.

    Args:
      text: Any text.
      spaced: Whether backslashes stand for white space instead, as in AG News.
    """
    if spaced:
        return text.replace("\\", " ").strip()

    def sign(match: re.Match[str]) -> str:
        if units := match["units"]:
            return bytes.fromhex(units.replace("\\u", "")).decode("utf-16-be", "replace")
        return _SIGNS.get(match["sign"], match["sign"])

    return _ESCAPED.sub(sign, text).strip()
