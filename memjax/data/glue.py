"""Labelled texts and pairs of texts: GLUE by task name.

Wang, Singh, Michael, Hill, Levy and Bowman, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", ICLR 2019, https://arxiv.org/abs/1804.07461.
"""

import csv
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from memjax.data.paths import find_packed, read_text
from memjax.data.sources import SPLITS, split_of
from memjax.data.tfds import tfds_examples

__all__ = ["LabelledText", "glue_texts", "tfds_glue_texts"]


@dataclasses.dataclass(frozen=True)
class LabelledText:
    """One example: a text or a pair of texts, and its class.

    Attributes:
      texts: one or two.
      label: number of the class.
      group: those of one group are choices, of which that of class 1 is right; -1 = it stands alone.
    """

    texts: tuple[str, ...]
    label: int
    group: int = -1


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """What a task of GLUE looks like.

    Attributes:
      texts: columns of its files; numbers where a file has no header.
      label: column of the class.
      classes: names of the classes in their order; () = written as numbers.
      features: of TFDS, where they have other names than `texts`.
      skips_broken: lines with too few columns are left out, as the published readers do.
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
"""name -> task; STS-B, which is a regression, is not here"""

_FILES = {
    "train": (("train",), ("in_domain_train",)),
    "validation": (("dev",), ("dev_matched",), ("in_domain_dev", "out_of_domain_dev")),
    "test": (("test",),),
}
"""split -> sets of files, the first complete one of which is read (the last ones are those of CoLA's own release)"""


def glue_texts(name: str, path: str, *, split: str, validation: float, test: float) -> list[LabelledText]:
    """One split of a task from a folder with its TSV files.

    A folder that has no `train.tsv` (or nothing else) is split by a hash of the texts. Without labels in `test.tsv` the
    test split is the validation split.

    Args:
      name: of the task.
      path: the folder.
      split: 'train', 'validation' or 'test'.
      validation: share held out where there is one file only.
      test: likewise.

    Raises:
      ValueError: an unknown task or split, a folder without its files, a line without its columns or class.
    """
    task = _task(name)
    if split not in SPLITS:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(SPLITS)}")
    files = {part: _files(Path(path), choices) for part, choices in _FILES.items()}
    if not files["train"] or not files["validation"]:
        only = files["train"] or files["validation"]
        if not only:
            raise ValueError(f"data.source.path: {path} has no train.tsv or dev.tsv, allowed: the folder of {name}")
        examples = [example for file in only for example in _read_tsv(file, task)]
        return [e for e in examples if split_of("\t".join(e.texts), validation=validation, test=test) == split]
    chosen = files[split]
    if split == "test" and not (chosen and _has_labels(chosen[0], task)):
        chosen = files["validation"]
    return [example for file in chosen for example in _read_tsv(file, task)]


def tfds_glue_texts(name: str, *, split: str, data_dir: str) -> list[LabelledText]:
    """The same from the prepared builder `glue/NAME` of TensorFlow Datasets."""
    task = _task(name)
    part = {"train": "train"}.get(split, "validation_matched" if name == "mnli" else "validation")
    names = task.features or tuple(str(column) for column in task.texts)
    return [
        LabelledText(tuple(example[feature].decode("utf-8") for feature in names), int(example["label"]))
        for example in tfds_examples(f"glue/{name}", split=part, data_dir=data_dir or None)
    ]


def _task(name: str) -> GlueTask:
    if name not in GLUE:
        raise ValueError(f"data.source.name: given {name!r}, allowed: {', '.join(GLUE)}")
    return GLUE[name]


def _files(folder: Path, choices: Sequence[Sequence[str]]) -> list[Path]:
    """The first set of files that is complete, [] where none is."""
    for names in choices:
        found = [file for name in names if (file := find_packed(folder, f"{name}.tsv"))]
        if len(found) == len(names):
            return found
    return []


def _columns(header: Sequence[str], task: GlueTask) -> tuple[list[int], int] | None:
    """Places of the texts and of the class; None where a file has no class."""
    if isinstance(task.label, int):
        return [int(place) for place in task.texts], task.label
    wanted = [*task.texts, task.label]
    if any(name not in header for name in wanted):
        return None
    places = [list(header).index(str(name)) for name in wanted]
    return places[:-1], places[-1]


def _rows(file: Path) -> Iterator[list[str]]:
    return csv.reader(read_text(file).split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)


def _has_labels(file: Path, task: GlueTask) -> bool:
    header = next(_rows(file), [])
    if isinstance(task.label, int):
        return len(header) > max(task.label, *(int(place) for place in task.texts))
    return _columns(header, task) is not None


def _read_tsv(file: Path, task: GlueTask) -> Iterator[LabelledText]:
    rows = _rows(file)
    header = [] if isinstance(task.label, int) else next(rows, [])
    columns = _columns(header, task)
    if columns is None:
        names = ", ".join(str(name) for name in (*task.texts, task.label))
        raise ValueError(f"{file}: its columns are {', '.join(header) or 'none'}, allowed: with {names}")
    texts, label = columns
    for number, row in enumerate(rows, start=1 + bool(header)):
        if not row or (task.skips_broken and len(row) <= max(*texts, label)):
            continue
        if len(row) <= max(*texts, label):
            raise ValueError(f"{file}, line {number}: {len(row)} columns, allowed: at least {max(*texts, label) + 1}")
        yield LabelledText(tuple(row[place] for place in texts), _class(row[label], task, file, number))


def _class(text: str, task: GlueTask, file: Path, line: int) -> int:
    if task.classes and text in task.classes:
        return task.classes.index(text)
    allowed = task.classes or tuple(str(number) for number in range(task.num_classes))
    if not task.classes and text in allowed:
        return int(text)
    raise ValueError(f"{file}, line {line}: class {text!r}, allowed: {', '.join(allowed)}")
