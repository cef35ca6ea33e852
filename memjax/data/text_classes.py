"""Reads text-classification data sets with common class numbers: five of Zhang et al. (2015), and O-LoRA's benchmark.

Zhang, Zhao and LeCun, "Character-level Convolutional Networks for Text Classification", NeurIPS 2015,
https://arxiv.org/abs/1509.01626; de Masson d'Autume, Ruder, Kong and Yogatama (MbPA++), NeurIPS 2019,
https://arxiv.org/abs/1906.01076; Wang et al. (O-LoRA), Findings of EMNLP 2023, https://arxiv.org/abs/2310.14152.

One head serves all data sets. A class has the same number in every order of the tasks: sentiment 0-4 (shared by Yelp
and Amazon), AG News 5-8, DBpedia 9-22, Yahoo 23-32. These are the 33 classes of MbPA++. The classes of the other tasks
of O-LoRA follow (33-41). Tasks share a class if its name is the same word, as for a model that generates the word.

Files that others have cut from the data sets overlap: 351 of the 10,001 rows of AG News that ALPS (Yuan et al. 2020)
holds out are in O-LoRA's training file and 10 in its test file, 138 of the 10,000 rows of DBpedia in DHIM (Ou et al.
2021) are in O-LoRA's test file, and 4 rows of O-LoRA's training file of AG News are in its test file. 131 rows of its
MNLI test file have no class. None of these rows is read (`TextSplits.notes` reports them for every source). DHIM
numbers the classes of DBpedia differently: with `DHIM_CLASSES` all 138 shared rows have the same class as in O-LoRA's
file, with the order of Zhang et al. none has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memjax import config as configs
from memjax.data.labelled_rows import find_labels, labelled_texts, read_rows, unescape
from memjax.data.paths import find_packed, packed_names
from memjax.data.reading_report import ReadingReport
from memjax.data.seqio import seqio_pairs, seqio_splits
from memjax.data.sources import SPLITS
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
    "find_labels",
    "read_rows",
    "read_titled_texts",
    "parse_seqio_classes",
    "parse_tfds_classes",
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
"""Names of all classes in the order of their numbers. The first 33 are those of MbPA++."""

TEXT_SETS: Mapping[str, Sequence[int]] = {
    "yelp": range(5),
    "amazon": range(5),
    "ag_news": range(5, 9),
    "dbpedia": range(9, 23),
    "yahoo": range(23, 33),
}
"""Data set of Zhang et al. -> numbers of its classes, in the order in which its files number them from 1."""

DHIM_CLASSES = (
    *("Artist", "Company", "Office Holder", "Building", "Village", "Plant", "Educational Institution", "Animal"),
    *("Album", "Written Work", "Natural Place", "Mean Of Transportation", "Athlete", "Film"),
)
"""Classes of DBpedia in the order in which the files of DHIM number them from 1."""

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
"""Task of O-LoRA's benchmark -> its folder, and the numbers of its classes."""

NO_CLASS = "-"
"""Label of a row of MNLI whose annotators did not agree."""
_OTHER_NAMES = {"scienceortechnology": "scitech"}


def class_texts(
    data_set: str,
    path: str,
    *,
    train_files: Sequence[str] = ("train.csv",),
    test_files: Sequence[str] = ("test.csv",),
    class_order: Sequence[str] = (),
    **options: Any,
) -> TextSplits:
    """Reads one of the five data sets of Zhang et al. (2015) from a folder and divides its rows into `TextSplits`.
    `class_order` names the classes in the order of their numbers in the files. The options are arguments of
    `split_texts`.

    Args:
      data_set: Name of the data set, a key of `TEXT_SETS`.
      path: Folder of the files.
      train_files: Names of the training files (also `.xz`, `.gz`), of any form that `read_titled_texts` reads.
      test_files: Names of the test files. Empty to hold out a share of the training files.
      class_order: Names of the classes in the order in which the files number them. Empty for the order of Zhang et al.
      **options: Arguments of `split_texts` except `files`.

    Raises:
      ValueError: An unknown data set, a file that is missing or of another form, or a class that the data set does not
        have.
    """
    if data_set not in TEXT_SETS:
        raise ValueError(f"data.source.data_set: given {data_set!r}, allowed: {', '.join(TEXT_SETS)}")
    if not path:
        raise ValueError(f"data.source.path: given '', allowed: the folder of the files of {data_set}")
    classes, numbers = TEXT_SETS[data_set], _numbers_of_labels(TEXT_SETS[data_set])
    if class_order:
        if sorted(map(_normalize_name, class_order)) != sorted(numbers):
            raise ValueError(
                f"data.source.class_order: given {tuple(class_order)}, allowed: each of {', '.join(numbers)}"
            )
        classes = [numbers[_normalize_name(name)] for name in class_order]
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
    return split_texts(files, **options)


def cl_benchmark_texts(task: str, path: str, **options: Any) -> TextSplits:
    """Reads one of the 15 tasks of O-LoRA's benchmark from its folder `CL_Benchmark` and divides the rows into
    `TextSplits`. The options are arguments of `split_texts`.

    A split without a file is held out by a hash of the texts. The published part of the benchmark has 14 tasks without
    `yahoo`, and lacks the test files of Yelp, IMDB and MultiRC and the training file of DBpedia.

    Args:
      task: Name of the task, a key of `CL_BENCHMARK`.
      path: Folder `CL_Benchmark`, which contains `NLI`, `SC`, `TC` and so on.
      **options: Arguments of `split_texts` except `files`.

    Raises:
      ValueError: An unknown task, or one without files.
    """
    if task not in CL_BENCHMARK:
        raise ValueError(f"data.source.task: given {task!r}, allowed: {', '.join(CL_BENCHMARK)}")
    folder, classes = CL_BENCHMARK[task]
    candidates = {split: find_packed(Path(path) / folder, f"{split}.json") for split in ("train", "test")}
    files = {
        split: {f"{folder}/{file.name}": read_titled_texts(file, classes, spaced=task == "ag_news")}
        for split, file in candidates.items()
        if file is not None
    }
    if not files:
        raise ValueError(f"data.source.path: {path} has no {folder}/train.json or test.json, allowed: those of {task}")
    return split_texts(files, **options)


def parse_text_classes(source: configs.TextClasses, **options: Any) -> TextSplits:
    """Reads the data set of Zhang et al. in the settings `source` and divides its rows into `TextSplits`. The options
    are arguments of `split_texts`.
    """
    files: Any = {"train_files": source.train, "test_files": source.test, "class_order": source.class_order}
    return class_texts(source.data_set, source.path, **files, **options)


def parse_cl_benchmark(source: configs.CLBenchmark, **options: Any) -> TextSplits:
    """Reads the task of O-LoRA's benchmark in the settings `source` and divides its rows into `TextSplits`. The options
    are arguments of `split_texts`.
    """
    return cl_benchmark_texts(source.task, source.path, **options)


def parse_tfds_classes(source: configs.TfdsClasses, **options: Any) -> TextSplits:
    """Reads the labelled texts of a prepared builder of TFDS and divides them into `TextSplits`. Negative class numbers
    are read as no class. The options are arguments of `split_texts`.

    Args:
      source: Settings of the source.
      **options: Arguments of `split_texts` except `files`.

    Raises:
      ValueError: A builder that is unknown or not prepared, or lacks a feature.
    """
    name, data_dir, spaced = source.name, source.data_dir or None, source.name.startswith("ag_news")
    texts, label = (source.title_feature, source.text_feature), source.label_feature

    def row(example: Mapping[str, Any]) -> TitledText:
        missing = [feature for feature in filter(None, (*texts, label)) if feature not in example]
        if missing:
            raise ValueError(
                f"data.source: {name} has no feature {missing[0]!r}, allowed: {', '.join(sorted(example))}"
            )
        words = [unescape(example[field].decode("utf-8"), spaced) if field else "" for field in texts]
        number = int(example[label])
        return TitledText(words[0], words[1], source.first_class + number if number >= 0 else None)

    available, report = tfds_splits(name, data_dir=data_dir), ReadingReport("examples", name, ReadingRules())
    read = lambda split: list(map(row, tfds_examples(name, split=split, data_dir=data_dir, report=report)))
    splits = split_texts({split: {f"{name}/{split}": read(split)} for split in SPLITS if split in available}, **options)
    return replace(splits, skipped=report.finish())


def parse_seqio_classes(source: configs.SeqioClasses, **options: Any) -> TextSplits:
    """Reads the examples of a seqio Task whose `inputs` are texts and whose `targets` name or number classes, and
    divides them into `TextSplits`. The options are arguments of `split_texts`.

    Args:
      source: Settings of the source.
      **options: Arguments of `split_texts` except `files`.

    Raises:
      ValueError: An unknown Task, one without `inputs`, or a target that is no class.
    """
    name, classes, first_class = source.name, source.classes, source.first_class

    def row(inputs: str, target: str) -> TitledText:
        if classes and target in classes:
            return TitledText("", inputs, first_class + classes.index(target))
        if not classes and target.isdecimal():
            return TitledText("", inputs, first_class + int(target))
        raise ValueError(f"data.source.classes: {name} has {target!r}, allowed: {', '.join(classes) or 'numbers'}")

    report = ReadingReport("examples", name, ReadingRules())
    read = lambda split: [row(*pair) for pair in seqio_pairs(name, split=split, report=report)]
    available = seqio_splits(name)
    splits = split_texts({split: {f"{name}/{split}": read(split)} for split in SPLITS if split in available}, **options)
    return replace(splits, skipped=report.finish())


def name_text_classes(source: configs.TextClasses) -> dict[int, str]:
    """Returns number -> name of the classes of the data set of Zhang et al. in the settings `source`."""
    return {number: CLASSES[number] for number in TEXT_SETS[source.data_set]}


def name_cl_benchmark_classes(source: configs.CLBenchmark) -> dict[int, str]:
    """Returns number -> name of the classes of the task of O-LoRA's benchmark in the settings `source`."""
    return {number: CLASSES[number] for number in CL_BENCHMARK[source.task][1]}


def name_seqio_classes(source: configs.SeqioClasses) -> dict[int, str]:
    """Returns number -> name of the classes of the seqio Task in the settings `source`. Empty if its targets are
    numbers.
    """
    return dict(enumerate(source.classes, start=source.first_class))


def read_titled_texts(file: Path, classes: Sequence[int], *, spaced: bool = False) -> list[TitledText]:
    """Reads titles, texts and classes of a published file as a list. `classes` are numbers in `CLASSES`, in the order
    in which the file numbers its classes from 1. With `spaced`, backslashes in texts stand for white space.

    Args:
      file: File of any form that `read_rows` reads.
      classes: Numbers of the classes of the file, in the order in which it numbers them from 1. It may also name them.
      spaced: Whether backslashes stand for white space, as in AG News. See `read_rows`.

    Raises:
      ValueError: A file of another form, or a class that is none of `classes`.
    """
    numbers = _numbers_of_labels(classes, counted=".json" not in file.suffixes)
    is_class = lambda label: _normalize_name(label) in numbers
    rows = read_rows(file, is_class, spaced=spaced)
    return [TitledText(row.title, row.text, _class_number(row.label, numbers, row.place)) for row in rows]


def _numbers_of_labels(classes: Sequence[int], *, counted: bool = False) -> dict[str, int]:
    """Returns the number of each class by its label: its name, and with `counted` also its position from 1."""
    by_name = {_normalize_name(CLASSES[number]): number for number in classes}
    return by_name | ({str(place): number for place, number in enumerate(classes, start=1)} if counted else {})


def _normalize_name(label: str) -> str:
    """Normalises the name of a class: `Society & Culture` and `society_culture` become the same."""
    return _OTHER_NAMES.get(name := "".join(filter(str.isalnum, label.lower())), name)


def _class_number(label: str, numbers: Mapping[str, int], place: str) -> int | None:
    """Returns the number of the class that a label names, None for `NO_CLASS`.

    Raises:
      ValueError: The label is not one of `numbers`.
    """
    if label == NO_CLASS:
        return None
    if _normalize_name(label) not in numbers:
        raise ValueError(f"{place}: class {label!r}, allowed: {', '.join(numbers)}")
    return numbers[_normalize_name(label)]
