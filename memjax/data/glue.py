"""Reads the tasks of GLUE: texts and pairs of texts with classes.

Wang, Singh, Michael, Hill, Levy and Bowman, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", ICLR 2019, https://arxiv.org/abs/1804.07461.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memjax import config as configs
from memjax.data.paths import find_packed, read_text
from memjax.data.reading_report import Record
from memjax.data.records import read_table
from memjax.data.sources import SPLITS, assign_split
from memjax.data.tfds import tfds_examples
from memjax.settings.reading_rules import held_out_shares

__all__ = ["LabelledText", "glue_texts", "tfds_glue_texts"]


@dataclasses.dataclass(frozen=True)
class LabelledText:
    """One or two texts with the number of their class, and the number of the group of examples that are choices of one
    question.

    Attributes:
      texts: One or two texts.
      label: Number of the class.
      group: Number of a group of examples that are the choices of one question, of which the choice of class 1 is
        right. -1 for no group.
    """

    texts: tuple[str, ...]
    label: int
    group: int = -1


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """The format of a GLUE task: the columns of its TSV files, its classes, and the features of its builder in TFDS.

    Attributes:
      texts: Names of the columns of the texts, or their numbers if a file has no header.
      label: Name or number of the column of the class.
      classes: Names of the classes in the order of their numbers. Empty if classes are written as numbers.
      features: Names of the features of the texts in TFDS. Empty if they are those of `texts`.
      num_classes: Number of classes.
      skips_broken: Whether to skip lines with too few columns, as the published readers do.
    """

    texts: tuple[str | int, ...]
    label: str | int = "label"
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    num_classes: int = 2
    skips_broken: bool = False


_ENTAILMENT = ("entailment", "not_entailment")
GLUE = {
    "cola": GlueTask((3,), 1, features=("sentence",)),
    "sst2": GlueTask(("sentence",)),
    "mrpc": GlueTask(("#1 String", "#2 String"), "Quality", features=("sentence1", "sentence2"), skips_broken=True),
    "qqp": GlueTask(("question1", "question2"), "is_duplicate", skips_broken=True),
    "mnli": GlueTask(
        ("sentence1", "sentence2"),
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        ("premise", "hypothesis"),
        num_classes=3,
    ),
    "qnli": GlueTask(("question", "sentence"), classes=_ENTAILMENT),
    "rte": GlueTask(("sentence1", "sentence2"), classes=_ENTAILMENT),
    "wnli": GlueTask(("sentence1", "sentence2")),
}
"""Name of a GLUE task -> its format. STS-B is missing because it is a regression."""

_FILES = {
    "train": (("train",), ("in_domain_train",)),
    "validation": (("dev",), ("dev_matched",), ("in_domain_dev", "out_of_domain_dev")),
    "test": (("test",),),
}
"""Split -> alternative sets of file names, of which the first complete one is read. CoLA's own release has the last."""


def glue_texts(name: str, path: str, *, split: str, validation: float, test: float) -> list[LabelledText]:
    """Reads one split of the GLUE task `name` from a folder with its TSV files, as a list of labelled texts.
    `validation` and `test` are the shares in [0, 1] that are held out if files are missing.

    If the folder lacks `train.tsv` or the validation files, the files that exist are split by a hash of the texts. If
    `test.tsv` has no labels, the test split is the validation split.

    Args:
      name: Name of the task, a key of `GLUE`.
      path: Folder of the files.
      split: 'train', 'validation' or 'test'.
      validation: Share in [0, 1] held out for validation if files are missing.
      test: Share in [0, 1] held out for the test if files are missing.

    Raises:
      ValueError: An unknown task or split, a folder without its files, or a line without its columns or class.
    """
    task = _task(name)
    if split not in SPLITS:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(SPLITS)}")
    files = {part: _find_files(Path(path), choices) for part, choices in _FILES.items()}
    if not files["train"] or not files["validation"]:
        existing_files = files["train"] or files["validation"]
        if not existing_files:
            raise ValueError(f"data.source.path: {path} has no train.tsv or dev.tsv, allowed: the folder of {name}")
        examples = [example for file in existing_files for example in _read_tsv(file, task)]
        return [e for e in examples if assign_split("\t".join(e.texts), validation=validation, test=test) == split]
    selected_files = files[split]
    if split == "test" and not (selected_files and _has_labels(selected_files[0], task)):
        selected_files = files["validation"]
    return [example for file in selected_files for example in _read_tsv(file, task)]


def tfds_glue_texts(name: str, *, split: str, data_dir: str) -> list[LabelledText]:
    """Reads one split of the GLUE task `name` from the prepared builder `glue/NAME` of TensorFlow Datasets, as a list
    of labelled texts. Both held-out splits are the builder's validation split.

    Args:
      name: Name of the task, a key of `GLUE`.
      split: 'train', 'validation' or 'test'. The last two are the builder's validation split.
      data_dir: Folder of prepared data sets. Empty for the default of TFDS.
    """
    task = _task(name)
    part = {"train": "train"}.get(split, "validation_matched" if name == "mnli" else "validation")
    names = task.features or tuple(str(column) for column in task.texts)
    return [
        LabelledText(tuple(example[feature].decode("utf-8") for feature in names), int(example["label"]))
        for example in tfds_examples(f"glue/{name}", split=part, data_dir=data_dir or None)
    ]


def open_glue(data: configs.Data, split: str) -> list[LabelledText]:
    """Returns the labelled texts of one split of a task of GLUE, from its files or, if `data.source` names no folder,
    from TFDS.
    """
    source: Any = data.source
    if source.path:
        return glue_texts(source.name, source.path, split=split, **held_out_shares(source))
    return tfds_glue_texts(source.name, split=split, data_dir=source.data_dir)


def name_glue_classes(source: configs.Glue) -> dict[int, str]:
    """Returns number -> name of the classes of the GLUE task in the settings `source`. Empty if they have no names."""
    return dict(enumerate(GLUE[source.name].classes))


def _task(name: str) -> GlueTask:
    """Returns the format of a GLUE task, and raises `ValueError` for an unknown name."""
    if name not in GLUE:
        raise ValueError(f"data.source.name: given {name!r}, allowed: {', '.join(GLUE)}")
    return GLUE[name]


def _find_files(folder: Path, choices: Sequence[Sequence[str]]) -> list[Path]:
    """Returns the paths of the first set of files that is complete. Empty if none is."""
    for names in choices:
        paths = [file for name in names if (file := find_packed(folder, f"{name}.tsv"))]
        if len(paths) == len(names):
            return paths
    return []


def _find_columns(header: Sequence[str], task: GlueTask) -> tuple[list[int], int] | None:
    """Returns the column numbers of the texts and of the class. None if a header lacks one of the columns."""
    if isinstance(task.label, int):
        return [int(place) for place in task.texts], task.label
    wanted = [*task.texts, task.label]
    if any(name not in header for name in wanted):
        return None
    places = [list(header).index(str(name)) for name in wanted]
    return places[:-1], places[-1]


def _read_rows(file: Path) -> Iterator[Record]:
    """Reads the rows of a TSV file without quotes. Blank lines are left out."""
    return read_table(read_text(file), file, delimiter="\t", has_quotes=False)


def _has_labels(file: Path, task: GlueTask) -> bool:
    """Returns whether a file has a column of classes."""
    header = next((record.value for record in _read_rows(file)), [])
    if isinstance(task.label, int):
        return len(header) > max(task.label, *(int(place) for place in task.texts))
    return _find_columns(header, task) is not None


def _read_tsv(file: Path, task: GlueTask) -> Iterator[LabelledText]:
    """Reads the examples of a TSV file.

    Raises:
      ValueError: A missing column, a line with too few columns, or an unknown class.
    """
    rows = _read_rows(file)
    header: list[str] = [] if isinstance(task.label, int) else next((record.value for record in rows), [])
    columns = _find_columns(header, task)
    if columns is None:
        names = ", ".join(str(name) for name in (*task.texts, task.label))
        raise ValueError(f"{file}: its columns are {', '.join(header) or 'none'}, allowed: with {names}")
    texts, label = columns
    for record in rows:
        row, number = record.value, record.number
        if task.skips_broken and len(row) <= max(*texts, label):
            continue
        if len(row) <= max(*texts, label):
            raise ValueError(f"{file}, line {number}: {len(row)} columns, allowed: at least {max(*texts, label) + 1}")
        yield LabelledText(tuple(row[place] for place in texts), _class_number(row[label], task, file, number))


def _class_number(text: str, task: GlueTask, file: Path, line: int) -> int:
    """Returns the number of the class that a field names, and raises `ValueError` for an unknown one."""
    if task.classes and text in task.classes:
        return task.classes.index(text)
    allowed = task.classes or tuple(str(number) for number in range(task.num_classes))
    if not task.classes and text in allowed:
        return int(text)
    raise ValueError(f"{file}, line {line}: class {text!r}, allowed: {', '.join(allowed)}")
