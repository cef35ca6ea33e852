"""Opens the records of files as documents: JSON, CSV, TSV, Parquet, Arrow, and folders of `datasets.save_to_disk`."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from memjax.data.content import files_with_facts
from memjax.data.file_contents import HEAD_BYTES, check_text, detect_compression, open_unpacked
from memjax.data.paths import encoding_suffix, file_fingerprint, find_files
from memjax.data.reading_report import ReadingReport, Record, UnreadableError
from memjax.data.records import detect_record_format, parse_json, read_records, record_text
from memjax.data.sources import Texts, select_split
from memjax.settings.reading_rules import ReadingRules, check_encoding

__all__ = ["find_record_files", "texts_from_records", "read_record_files"]

_Source = str | tuple[int, int]
"""Text of a record, or the position and the size of its line in a file."""


def texts_from_records(
    path: str | os.PathLike[str],
    *,
    field: str = "text",
    split: str | None = None,
    validation: float = 0.05,
    test: float = 0.05,
    rules: ReadingRules = ReadingRules(),
) -> Texts:
    """Opens the records of JSON, CSV, TSV, Parquet or Arrow files as `Texts`, one per record, named `file:row`. `field`
    holds the text, `validation` and `test` are shares held out by a hash of the name, `rules` say how files are read.

    The lines of unpacked JSON lines files are read when they are accessed. The texts of other files are kept in memory.
    A folder written by `datasets.save_to_disk` has the splits that it was saved with. Files without records and records
    without text are skipped.

    Args:
      path: File, folder or glob.
      field: Name of the field or column with the text, with dots for nested ones. See
        `memjax.data.records.record_text`.
      split: 'train', 'validation' or 'test', by a hash of the name. If a split would have no record, each text is cut
        into three parts instead. None for all records.
      validation: Share in [0, 1] that is held out for validation.
      test: Share in [0, 1] that is held out for the test.
      rules: Encoding of the files, and rules for files and records that may be skipped.

    Raises:
      ValueError: A path that is missing or without records, a record that cannot be read or has no text under `field`,
        or a file or record that must not be skipped.
    """
    files, documents = _open_records(path, field, rules)
    used = _used_files(files, documents)  # what is skipped beside them changes no name, and so no split
    root = Path(os.path.commonpath([file.parent for file in used]))
    names = [f"{files[number].relative_to(root).as_posix()}:{row}" for number, row, _ in documents.places]

    def read(index: int) -> str:
        number, row, source = documents.places[index]
        if isinstance(source, str):
            return source
        offset, size = source
        with open(files[number], "rb") as lines:
            lines.seek(offset)
            line = lines.read(size)
        place = f"{files[number]}, row {row}"
        return record_text(parse_json(line, place), field, place)

    texts = Texts(names, read, f"{file_fingerprint(used, root)}-{field}{encoding_suffix(rules)}")
    has_splits = (Path(path) / "dataset_dict.json").is_file()
    texts = (_select_published if has_splits else select_split)(
        texts, split, validation=validation, test=test, few_are_cut=True
    )
    texts.note = documents.note
    return texts


def find_record_files(path: str | os.PathLike[str]) -> list[Path]:
    """Lists the files of a path (file, folder or glob), without the files of metadata that `datasets.save_to_disk`
    writes beside its data.

    Raises:
      ValueError: The path has no files.
    """
    files = find_files(path)
    saved = {file.parent for file in files if file.name == "dataset_info.json"}
    saved = {folder for folder in saved if (folder / "state.json").is_file()}
    is_data = lambda file: file.suffix == ".arrow" if file.parent in saved else file.name != "dataset_dict.json"
    return [file for file in files if is_data(file)] if saved else files


def read_record_files(path: str | os.PathLike[str], field: str, rules: ReadingRules) -> list[Path]:
    """Reads the records of the files of a path, and lists the files that have records with text under `field`. See
    `texts_from_records` for arguments and errors.
    """
    return _used_files(*_open_records(path, field, rules))


def _open_records(path: str | os.PathLike[str], field: str, rules: ReadingRules) -> tuple[list[Path], _Documents]:
    """Returns the files of a path, and the places of the texts of their records."""
    files = find_record_files(path)
    return files, _find_documents(str(path), files_with_facts(files), field, rules, Path(path).is_file())


def _used_files(files: Sequence[Path], documents: _Documents) -> list[Path]:
    """Returns the files that have records with text."""
    return [files[number] for number in sorted({number for number, _, _ in documents.places})]


def _select_published(texts: Texts, split: str | None, *, validation: float, test: float, few_are_cut: bool) -> Texts:
    """Selects a split by the folders of the texts. A split without a folder is held out of the training split."""
    if split is None:
        return texts
    folders = [name.split("/")[0] for name in texts.names]
    select = lambda folder: texts.select([i for i, name in enumerate(folders) if name == folder], folder)
    if split != "train" and split in folders:
        return select(split)
    shares = {"validation": validation, "test": test}
    shares = {name: 0.0 if name in folders else share for name, share in shares.items()}
    pool = select("train") if "train" in folders else texts
    return select_split(pool, split, **shares, few_are_cut=few_are_cut)


class _Documents(NamedTuple):
    """The places of the texts of all records in some files.

    Attributes:
      places: Number of the file, number of the record in it, and its text or the place of its line, for each record.
      note: Line about skipped files and records. Empty if there are none.
    """

    places: list[tuple[int, int, _Source]]
    note: str


# Remembered for files of the same sizes and times: every split asks for it.
@functools.lru_cache(maxsize=2)
def _find_documents(
    where: str, facts: Sequence[tuple[Path, int, int]], field: str, rules: ReadingRules, is_alone: bool
) -> _Documents:
    """Reads all records once to find those with text.

    Args:
      where: Path that messages name.
      facts: Files with their sizes and times.
      field: Name of the field with the text.
      rules: Encoding of the files, and rules for files and records that may be skipped.
      is_alone: Whether the path is a single file.
    """
    of_files, of_rows = ReadingReport("files", where, rules), ReadingReport("rows", where, rules)
    places: list[tuple[int, int, _Source]] = []
    for number, (file, size, _) in enumerate(facts):
        first = len(places)
        try:
            for record, source in _read_sources(file, field, rules.encoding, is_alone):
                if isinstance(source, UnreadableError):
                    of_rows.count_skipped(source, record.size)
                else:
                    of_rows.count_read(record.size)
                    places.append((number, record.number, source))
        except UnreadableError as error:
            del places[first:]
            of_files.count_skipped(error, size, is_alone=is_alone)
        else:
            of_files.count_read(size)
    notes = [of_files.finish(), of_rows.finish()]
    if not places:
        raise ValueError(f"path: {where} has no records; give a file with one JSON object per line, or a table")
    return _Documents(places, "; ".join(filter(None, notes)))


def _read_sources(
    file: Path, field: str, encoding: str, is_alone: bool
) -> Iterator[tuple[Record, _Source | UnreadableError]]:
    """Yields the records of a file, each with its text, the place of its line, or the error if it has no text."""
    form = _form_of(file, is_alone)
    if form == "json" and check_encoding(encoding) == "utf-8" and _has_plain_lines(file):
        for record, place in _plain_lines(file):
            text = _text_of(record, field)
            yield record, text if isinstance(text, UnreadableError) else place
        return
    is_table, header = form in ("csv", "tsv"), list[str]()
    for record in read_records(file, encoding, form=form):
        if is_table and not header:
            header = [name.strip() for name in record.value]
            if field not in header:
                message = f"field: {file} has no column {field!r} (it has: {', '.join(header)}); name one of them"
                raise UnreadableError(message, f"without {field!r}")
            continue
        yield record, _text_of(_with_names(record, header, field) if is_table else record, field)


def _with_names(record: Record, header: Sequence[str], field: str) -> Record:
    """Returns a row of a table as a mapping from the names of its columns, or an error if it has other columns."""
    if header.index(field) < len(record.value) <= len(header):
        return record._replace(value=dict(zip(header, record.value, strict=False)))
    message = f"path: {record.place} has {len(record.value)} fields, the header {len(header)}; mend the row"
    return record._replace(value=UnreadableError(message, "with other columns"))


def _text_of(record: Record, field: str) -> str | UnreadableError:
    """Returns the text of a record, or the error if it has none."""
    try:
        return record_text(record.value, field, record.place)
    except UnreadableError as reason:
        return reason


def _form_of(file: Path, is_alone: bool) -> str:
    """Returns the format of the records of a file. A file with another ending is read as JSON lines.

    Raises:
      UnreadableError: A file with another ending in a folder, whose first line is not a JSON object.
    """
    form = detect_record_format(file)
    if form or is_alone:
        return form or "json"
    with open_unpacked(file) as lines:
        first = lines.readline(HEAD_BYTES)
    if isinstance(parse_json(first, str(file)), dict):
        return "json"
    raise UnreadableError(f"path: {file} has no records", "without records", is_broken=False)


def _has_plain_lines(file: Path) -> bool:
    """Returns whether an unpacked file consists of at least two JSON lines, which need not be kept in memory."""
    if detect_compression(file):
        return False
    with open(file, "rb") as lines:
        check_text(lines.read(HEAD_BYTES), file)
        lines.seek(0)
        begin = list(itertools.islice(filter(bytes.strip, lines), 2))
    return len(begin) == 2 and isinstance(parse_json(begin[0], str(file)), dict)


def _plain_lines(file: Path) -> Iterator[tuple[Record, tuple[int, int]]]:
    """Yields the records of a file of JSON lines, each with the position and the size of its line."""
    offset = 0
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                place = f"{file}, row {number}"
                yield Record(place, number, parse_json(line, place), len(line)), (offset, len(line))
            offset += len(line)
