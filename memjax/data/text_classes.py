"""Texts with classes for one head: the five sets of Zhang et al. (2015), and the benchmark of O-LoRA.

Zhang, Zhao and LeCun, "Character-level Convolutional Networks for Text Classification", NeurIPS 2015,
https://arxiv.org/abs/1509.01626; de Masson d'Autume, Ruder, Kong and Yogatama (MbPA++), NeurIPS 2019,
https://arxiv.org/abs/1906.01076; Wang et al. (O-LoRA), Findings of EMNLP 2023, https://arxiv.org/abs/2310.14152.

A class has the same number in every order of the tasks: sentiment 0-4 (Yelp and Amazon share them), AG News 5-8,
DBpedia 9-22, Yahoo 23-32, which are the 33 classes of MbPA++; then what the other tasks of O-LoRA answer, equal words
being one class, as they are for a model that writes them (33-41).

Of files that others have cut from the sets, 351 of the 10,001 rows of AG News that ALPS (Yuan et al. 2020) holds out
are in O-LoRA's train file and 10 in the test file, 138 of the 10,000 rows of DBpedia of DHIM (Ou et al. 2021) are in
O-LoRA's test file, and 4 rows of O-LoRA's train file of AG News are in its test file; 131 rows of its MNLI test file
have no class. None of them is read (`TextSplits.notes` says so of every source). DHIM numbers the classes of DBpedia
otherwise: by `DHIM_CLASSES` all 138 have the class that O-LoRA's file gives them, by the order of Zhang et al. none
has.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from memjax.data.reading_report import ReadingReport, Record, UnreadableError
from memjax.data.records import first_field, lack_of_text, read_records, read_table, record_format
from memjax.data.seqio import seqio_pairs, seqio_splits
from memjax.data.sources import SPLITS, find_packed, packed_names, read_text
from memjax.data.text_splits import TextSplits, TitledText, split_texts
from memjax.data.tfds import tfds_examples, tfds_splits
from memjax.settings.reading_rules import ReadingRules

__all__ = [
    "CLASSES",
    "CL_BENCHMARK",
    "DHIM_CLASSES",
    "TEXT_SETS",
    "cl_benchmark_texts",
    "class_texts",
    "labelled_texts",
    "labels_of",
    "read_rows",
    "read_titled_texts",
    "seqio_class_texts",
    "tfds_class_texts",
]

CLASSES = (
    *("very negative", "negative", "neutral", "positive", "very positive"),
    *("World", "Sports", "Business", "Sci/Tech"),
    *("Company", "Educational Institution", "Artist", "Athlete", "Office Holder", "Mean Of Transportation", "Building"),
    *("Natural Place", "Village", "Animal", "Plant", "Album", "Film", "Written Work"),
    *("Society & Culture", "Science & Mathematics", "Health", "Education & Reference", "Computers & Internet"),
    *("Sports", "Business & Finance", "Entertainment & Music", "Family & Relationships", "Politics & Government"),
    *("Bad", "Good"),
    *("entailment", "neutral", "contradiction"),
    *("False", "True"),
    *("A", "B"),
)
"""names of all classes by their number; the first 33 are those of MbPA++"""

TEXT_SETS: Mapping[str, Sequence[int]] = {
    "yelp": range(5),
    "amazon": range(5),
    "ag_news": range(5, 9),
    "dbpedia": range(9, 23),
    "yahoo": range(23, 33),
}
"""set of Zhang et al. -> numbers of its classes, in the order in which its files number them from 1"""

DHIM_CLASSES = (
    *("Artist", "Company", "Office Holder", "Building", "Village", "Plant", "Educational Institution", "Animal"),
    *("Album", "Written Work", "Natural Place", "Mean Of Transportation", "Athlete", "Film"),
)
"""classes of DBpedia in the order in which the files of DHIM number them from 1"""

_SENTIMENT, _INFERENCE, _TRUTH, _CHOICE = range(33, 35), range(35, 38), range(38, 40), range(40, 42)
CL_BENCHMARK: Mapping[str, tuple[str, Sequence[int]]] = {
    "mnli": ("NLI/MNLI", _INFERENCE),
    "cb": ("NLI/CB", _INFERENCE),
    "wic": ("WiC/WiC", _TRUTH),
    "copa": ("COPA/COPA", _CHOICE),
    "qqp": ("QQP/QQP", _TRUTH),
    "boolq": ("BoolQA/BoolQA", _TRUTH),
    "rte": ("NLI/RTE", (_INFERENCE[0], _INFERENCE[2])),
    "imdb": ("SC/IMDB", _SENTIMENT),
    "yelp": ("SC/yelp", TEXT_SETS["yelp"]),
    "amazon": ("SC/amazon", TEXT_SETS["amazon"]),
    "sst2": ("SC/SST-2", _SENTIMENT),
    "dbpedia": ("TC/dbpedia", TEXT_SETS["dbpedia"]),
    "ag_news": ("TC/agnews", TEXT_SETS["ag_news"]),
    "multirc": ("MultiRC/MultiRC", _TRUTH),
    "yahoo": ("TC/yahoo", TEXT_SETS["yahoo"]),
}
"""task of O-LoRA's benchmark -> its folder, and the numbers of its classes"""

NO_CLASS = "-"
"""what MNLI writes where its annotators did not agree"""
HEADER = ("class", "label")
"""usual names of the column of the class in the first row of a user's own file"""
TEXT_HEADER = ("text", "sentence")
"""usual names of the column of the text, where the class is in a column between others"""
_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow")
_OTHER_NAMES = {"scienceortechnology": "scitech"}


def class_texts(
    data_set: str,
    path: str,
    *,
    train_files: Sequence[str] = ("train.csv",),
    test_files: Sequence[str] = ("test.csv",),
    class_order: Sequence[str] = (),
    **how: Any,
) -> TextSplits:
    """One of the five sets of Zhang et al. (2015).

    Args:
      data_set: of `TEXT_SETS`.
      path: the folder of the files.
      train_files: names of files in it (also `.xz`, `.gz`), of any form that `read_titled_texts` reads.
      test_files: likewise; () = none, and a share of the others is held out.
      class_order: names of the classes in the order in which the files number them; () = that of Zhang et al.
      **how: see `split_texts`.

    Raises:
      ValueError: an unknown set, a file that is missing or of another form, a class that the set does not have.
    """
    if data_set not in TEXT_SETS:
        raise ValueError(f"data.source.data_set: given {data_set!r}, allowed: {', '.join(TEXT_SETS)}")
    if not path:
        raise ValueError(f"data.source.path: given '', allowed: the folder of the files of {data_set}")
    classes, named = TEXT_SETS[data_set], _numbers(TEXT_SETS[data_set])
    if class_order:
        if sorted(map(_name, class_order)) != sorted(named):
            raise ValueError(
                f"data.source.class_order: given {tuple(class_order)}, allowed: each of {', '.join(named)}"
            )
        classes = [named[_name(name)] for name in class_order]
    files: dict[str, dict[str, list[TitledText]]] = {}
    for split, names in (("train", train_files), ("test", test_files)):
        for name in names:
            file = find_packed(path, name)
            if file is None:
                allowed = (
                    f"{', '.join(packed_names(name))} in {path}, or other names ({split}=() holds out of the rest)"
                )
                raise ValueError(f"data.source.{split}: given {name!r}, allowed: {allowed}")
            rows = read_titled_texts(file, classes, spaced=data_set == "ag_news")
            files.setdefault(split, {})[str(file.relative_to(path))] = rows
    if not files:
        raise ValueError("data.source.train: given (), allowed: at least one file")
    return split_texts(files, **how)


def cl_benchmark_texts(task: str, path: str, **how: Any) -> TextSplits:
    """One of the 15 tasks of O-LoRA's benchmark, in its folder of that name.

    What a task has no file for is held out by a hash of the texts. Where only the published part of the folder lies
    (14 tasks; Yelp, IMDB and MultiRC without a test file, DBpedia without a train file), `yahoo` is missing.

    Args:
      task: of `CL_BENCHMARK`.
      path: the folder `CL_Benchmark`, which holds `NLI`, `SC`, `TC` and so on.
      **how: see `split_texts`.

    Raises:
      ValueError: an unknown task, or one without files.
    """
    if task not in CL_BENCHMARK:
        raise ValueError(f"data.source.task: given {task!r}, allowed: {', '.join(CL_BENCHMARK)}")
    folder, classes = CL_BENCHMARK[task]
    found = {split: find_packed(Path(path) / folder, f"{split}.json") for split in ("train", "test")}
    files = {
        split: {f"{folder}/{file.name}": read_titled_texts(file, classes, spaced=task == "ag_news")}
        for split, file in found.items()
        if file is not None
    }
    if not files:
        raise ValueError(f"data.source.path: {path} has no {folder}/train.json or test.json, allowed: those of {task}")
    return split_texts(files, **how)


def tfds_class_texts(
    name: str, *, title: str, body: str, label: str, first_class: int, data_dir: str, **how: Any
) -> TextSplits:
    """The labelled texts of any prepared builder of TensorFlow Datasets.

    Args:
      name: builder, with configuration and version where wanted.
      title: feature that holds the title; '' = it has none.
      body: feature that holds the text.
      label: feature that holds the class.
      first_class: number that its class 0 has here.
      data_dir: where prepared data sets lie; '' = the library's default.
      **how: see `split_texts`.

    Raises:
      ValueError: a builder that is unknown or not prepared, or lacks a feature.
    """
    spaced, available = name.startswith("ag_news"), tfds_splits(name, data_dir=data_dir or None)

    def row(example: Mapping[str, Any]) -> TitledText:
        missing = [feature for feature in filter(None, (title, body, label)) if feature not in example]
        if missing:
            raise ValueError(
                f"data.source: {name} has no feature {missing[0]!r}, allowed: {', '.join(sorted(example))}"
            )
        words = [_plain(example[field].decode("utf-8"), spaced) if field else "" for field in (title, body)]
        number = int(example[label])
        return TitledText(words[0], words[1], first_class + number if number >= 0 else None)

    report = ReadingReport("examples", name, ReadingRules())
    read = lambda split: list(map(row, tfds_examples(name, split=split, data_dir=data_dir or None, report=report)))
    splits = split_texts({split: {f"{name}/{split}": read(split)} for split in SPLITS if split in available}, **how)
    return replace(splits, skipped=report.finish())


def seqio_class_texts(name: str, *, classes: Sequence[str], first_class: int, **how: Any) -> TextSplits:
    """The labelled texts of a registered seqio Task, whose `inputs` are texts and whose `targets` name classes.

    Args:
      name: of the Task.
      classes: its targets, in the order of their numbers; () = the targets are numbers.
      first_class: number that the first of them has here.
      **how: see `split_texts`.

    Raises:
      ValueError: an unknown Task, one without `inputs`, or a target that is no class.
    """

    def row(inputs: str, target: str) -> TitledText:
        if classes and target in classes:
            return TitledText("", inputs, first_class + classes.index(target))
        if not classes and target.isdecimal():
            return TitledText("", inputs, first_class + int(target))
        raise ValueError(f"data.source.classes: {name} has {target!r}, allowed: {', '.join(classes) or 'numbers'}")

    report = ReadingReport("examples", name, ReadingRules())
    read = lambda split: [row(*pair) for pair in seqio_pairs(name, split=split, report=report)]
    available = seqio_splits(name)
    splits = split_texts({split: {f"{name}/{split}": read(split)} for split in SPLITS if split in available}, **how)
    return replace(splits, skipped=report.finish())


def labelled_texts(
    path: str, numbers: Mapping[str, int], *, rules: ReadingRules = ReadingRules(), **how: Any
) -> TextSplits:
    """The splits of a file or a folder of one's own.

    Args:
      path: a file that `read_rows` reads, of which shares are held out; or a folder with `train.csv` (`.tsv`, `.json`)
        and, where there are such, `validation` and `test`.
      numbers: what the files write for a class -> its number.
      rules: Encoding of the files, and what may be skipped.
      **how: see `split_texts`.

    Raises:
      ValueError: no such file, one of another form, a class without number, or nothing to train or to test on.
    """

    def titled(row: Row) -> TitledText:
        if row.label and row.label not in numbers:
            raise ValueError(f"{row.place}: class {row.label!r}, allowed: {', '.join(numbers)}")
        return TitledText(row.title, row.text, numbers.get(row.label))

    report = ReadingReport("rows", path, rules)
    files = {
        split: {str(file): list(map(titled, read_rows(file, rules=rules, report=report)))}
        for split, file in labelled_files(path).items()
    }
    skipped = report.finish()
    found, rows = split_texts(files, **how), sum(len(rows) for named in files.values() for rows in named.values())
    for split in ("train", "test"):
        if not found.texts[split]:
            allowed = "at least one; more rows, or a folder with train.csv and test.csv"
            raise ValueError(f"{path}: no examples for the {split} split in its {rows} rows, allowed: {allowed}")
    return replace(found, skipped=skipped)


def labels_of(path: str, rules: ReadingRules = ReadingRules()) -> tuple[str, ...]:
    """What a file or a folder of one's own writes for its classes, sorted; read by `rules`.

    Raises:
      ValueError: as `labelled_texts`, and where (almost) every row has a class of its own.
    """
    report = ReadingReport("rows", path, rules)
    rows = [row for file in labelled_files(path).values() for row in read_rows(file, rules=rules, report=report)]
    rows = [row for row in rows if row.label]
    found = sorted({row.label for row in rows})
    if not rows:
        raise ValueError(f"{path}: no row has a class and a text, allowed: at least one")
    if len(found) > max(len(rows) // 2, 2):
        allowed = ".csv with the class in the first column, .tsv with it in the last"
        raise ValueError(f"{path}: {len(found)} classes in {len(rows)} rows, as {found[0][:20]!r}, allowed: {allowed}")
    return tuple(found)


def labelled_files(path: str) -> dict[str, Path]:
    """The files of a task of one's own, by their split."""
    there = Path(path).expanduser()
    if there.is_file():
        return {"train": there}
    found = {split: find_packed(there, *(f"{split}{ending}" for ending in _ENDINGS)) for split in SPLITS}
    files = {split: file for split, file in found.items() if file is not None}
    if not files:
        endings = ", ".join(_ENDINGS)
        raise ValueError(f"{path}: no such file, allowed: a file ({endings}) or a folder with train{_ENDINGS[0]}")
    return files


class Row(NamedTuple):
    """A row of a file: its title ('' where it has none), its text, what the file writes for the class, and where."""

    title: str
    text: str
    label: str
    place: str

    def joined(self, titled: bool) -> str:
        """What is read of it: `title. text`, or the text alone."""
        return ". ".join(filter(None, (self.title, self.text))) if titled else self.text


def read_titled_texts(file: Path, classes: Sequence[int], *, spaced: bool = False) -> list[TitledText]:
    """The rows of a file of `read_rows`, of some of the published classes.

    Args:
      file: to read.
      classes: their numbers, in the order in which files number them from 1; a file may name them too.
      spaced: as in `read_rows`.

    Raises:
      ValueError: a file of another form, or a class that is none of `classes`.
    """
    numbers = _numbers(classes, counted=".json" not in file.suffixes)
    is_class = lambda given: _name(given) in numbers
    rows = read_rows(file, is_class, spaced=spaced)
    return [TitledText(row.title, row.text, _label(row.label, numbers, row.place)) for row in rows]


def read_rows(
    file: Path,
    is_class: Callable[[str], bool] | None = None,
    *,
    spaced: bool = False,
    rules: ReadingRules = ReadingRules(),
    report: ReadingReport | None = None,
) -> Iterator[Row]:
    r"""The rows of a file, of the form that its ending says, packed or not.

    `.csv`: the class before or after the fields: a text, a title and a text, or a title and several texts (a question
    and its answer). `.tsv`: a text and its class. `.json`, `.jsonl`, `.parquet`, `.arrow`: objects with `sentence` or
    `text` (`Title: ...`, `Text: ...` where it has them) and `label`, as O-LoRA has it.

    Signs that published files escape are put back: `\n`, `\"`, `\u00e9`; AG News has a backslash where a line was
    broken. A user's own files keep their backslashes, unless `rules.escapes` is 'resolved'.

    Args:
      file: to read.
      is_class: tells the column of the class, by the first row; None = the first column of `.csv`, the last of `.tsv`,
        or the one that a header calls `class` or `label`.
      spaced: backslashes stand for white space (AG News).
      rules: Encoding of the file, its columns, and what may be skipped.
      report: Counts rows that are skipped: those without text, and where all may be skipped broken ones. None to refuse
        broken rows and take the others.

    Raises:
      ValueError: a file of another form, or a row that must not be skipped.
    """
    form, is_published = record_format(file), is_class is not None
    plain = functools.partial(_plain, spaced=spaced) if is_published or rules.escapes == "resolved" else str.strip
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
        if report is not None and not size and isinstance(row, Row):
            row = UnreadableError(f"{row.place} has no text; remove it", "empty", is_broken=False)
        if not isinstance(row, UnreadableError):
            if report is not None:
                report.take(size)
            yield row
        elif report is None:
            raise row
        else:
            report.skip(row, size)


def _read_table(
    records: Iterator[Record],
    is_class: Callable[[str], bool] | None,
    usual: int,
    plain: Callable[[str], str],
    rules: ReadingRules,
) -> Iterator[Row | UnreadableError]:
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
        yield Row(title, " ".join(filter(None, texts)), row[label].strip(), record.place)


def _columns_of(header: Sequence[str], where: str, rules: ReadingRules) -> tuple[int | None, list[int] | None]:
    """Finds the columns that a first row names.

    Returns:
      The column of the class, None if the row names none; and the columns of the text, None for all others.

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


def _read_object(record: Record, plain: Callable[[str], str], rules: ReadingRules) -> Row | UnreadableError:
    value = record.value
    if isinstance(value, UnreadableError):
        return value
    if value is None or value == {}:
        return lack_of_text(record.place, "null" if value is None else "empty")
    keys = (rules.text_column,) if rules.text_column else ("sentence", "text")
    sentence, label = first_field(value, keys), first_field(value, (rules.label_column or "label",))
    if not isinstance(sentence, str) or label is None:
        has = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        wanted = f"objects with {' or '.join(keys)}, and {rules.label_column or 'label'}"
        message = f"{record.place}: of another form (it has: {has}), allowed: {wanted}"
        return UnreadableError(message, "of another form", size=record.size)
    match = re.fullmatch(r"(?:Title:(?P<title>[^\n]*)\n)?Text:(?P<text>.*)", sentence, re.DOTALL)
    title, text = (match["title"] or "", match["text"]) if match else ("", sentence)
    return Row(plain(title), plain(text), str(label).strip(), record.place)


def _numbers(classes: Sequence[int], *, counted: bool = False) -> dict[str, int]:
    """What a file may write for a class -> the number of the class."""
    named = {_name(CLASSES[number]): number for number in classes}
    return named | ({str(place): number for place, number in enumerate(classes, start=1)} if counted else {})


def _name(given: str) -> str:
    """A name as different files write it: `Society & Culture` and `society_culture`."""
    return _OTHER_NAMES.get(name := "".join(filter(str.isalnum, given.lower())), name)


def _label(given: str, numbers: Mapping[str, int], place: str) -> int | None:
    if given == NO_CLASS:
        return None
    if _name(given) not in numbers:
        raise ValueError(f"{place}: class {given!r}, allowed: {', '.join(numbers)}")
    return numbers[_name(given)]


_ESCAPED = re.compile(r"""(?P<units>(?:\\u[0-9a-fA-F]{4})+)|\\(?P<sign>[nrt"'\\])""")
_SIGNS = {"n": "\n", "r": "\n", "t": "\t"}


def _plain(text: str, spaced: bool) -> str:
    """A text without escaped signs, nor white space around it."""
    if spaced:
        return text.replace("\\", " ").strip()

    def sign(found: re.Match[str]) -> str:
        if units := found["units"]:
            return bytes.fromhex(units.replace("\\u", "")).decode("utf-16-be", "replace")
        return _SIGNS.get(found["sign"], found["sign"])

    return _ESCAPED.sub(sign, text).strip()
