"""Configs for a user's own files as tasks: a stream of them, or another task for an existing run.

    config, what = tasks_config(["news.csv", "reviews.csv"], "lifelong_text", "small_mbpa_pp")
    memjax.lifelong.train(config)
    config, what = add_task_from_file(config, "questions.csv")  # tomorrow
    memjax.lifelong.train(config)

`memjax train --tasks A.csv B.csv` and `memjax train --run RUN --add-task C.csv` call these functions. A class has the
same number in every order of the files: classes are numbered file by file, in the order of the files' names. Equal
names in different files are one class, but a class that a file writes as a number belongs to that file alone. Classes
of a task that is added later get the next numbers.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from memjax.cli.from_run import describe_start, name_of_start, with_start
from memjax.config import (
    CachedFeatures,
    Config,
    LabelledFile,
    Lifelong,
    SourceKind,
    TaskData,
    TextClasses,
    TextFiles,
)
from memjax.data.labelled_rows import find_labels
from memjax.data.paths import find_packed, readable_files
from memjax.data.source_readers import class_names
from memjax.data.sources import SPLITS
from memjax.data.text_classes import TEXT_SETS
from memjax.settings.checks import validate
from memjax.settings.compatibility import type_name
from memjax.settings.model import TransformerBase
from memjax.settings.named_kinds import in_name_of_run
from memjax.settings.named_methods import METHODS, with_method
from memjax.settings.overrides import (
    UsageError,
    describe_config,
    load_config,
    shipped_config,
)
from memjax.settings.reading_rules import ReadingRules

CONFIG, VARIANT = "lifelong_text", "bag"
"""config and variant that are used where none is named"""
RESERVED = 2
"""minimum size of the head, as a multiple of the number of classes of the files"""

Numbers = dict[tuple[str, str], int]
"""(name of the task, or '' for a class that several tasks may share; name of the class) -> number in the head"""


def tasks_config(
    files: Sequence[str],
    name: str = "",
    variant: str = "",
    rules: ReadingRules = ReadingRules(),
    *,
    method: str = "",
    from_run: str | None = None,
) -> tuple[Config, str]:
    """Makes the configuration for a stream with one task for each file, and returns it with a line that describes it.
    `name` and `variant` are those of the config that gives the model, `method` is that of a method in place of its
    own, and `rules` say how files are read.

    Args:
      files: Files of the tasks, in the order of learning: as `LabelledFile` for a text encoder, folders of
        `CachedFeatures` for a perceptron, folders of SQuAD for questions, texts for a language model.
      name: Name of a config of a stream. A config of a single task is used for a stream with plain training.
      variant: Variant of the config, with its model and its method.
      rules: Encoding of the files, and which unreadable parts may be skipped.
      method: Name of a method (`memjax.settings.named_methods.METHODS`), which replaces that of the config. Without a
        `name` and a `variant` it also chooses the config. `my_module:MyMethod` for a class of your own. '' for the
        method of the config.
      from_run: Run whose model, tokenizer and parameters are taken. None for a new model.

    Raises:
      ValueError: A file is missing, given twice, of another form, or without examples.
    """
    base, default_variant = (name, "") if name else (CONFIG, VARIANT)
    if method and not (name or variant):
        base, default_variant = METHODS.find(method).base
    config = with_start(load_config(name or shipped_config(base), variant or default_variant), from_run)
    if config.lifelong is None and config.task.file_source is TextFiles:
        # A stream counts the examples of its tasks, which documents of any length do not have.
        config.task = replace(config.task, fixed_length_examples=True)
    paths = [_resolve_path(file, "--tasks") for file in files]
    _check_vectors(config, paths, name, variant)
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise UsageError(f"--tasks: given {files[number]} twice, allowed: each file once")
    names = [_name(path) for path in paths]
    for number, task_name in enumerate(names):
        if task_name in names[:number]:
            raise UsageError(f"--tasks: given two files of the name {task_name!r}, allowed: a name of its own for each")
    folder = os.path.commonpath([path.parent for path in paths])
    sources, numbers = {}, Numbers()
    for task_name, path in sorted(zip(names, paths, strict=True)):
        sources[task_name] = _source(config, task_name, Path(os.path.relpath(path, folder)), path, numbers, rules)
    stream = replace(config.lifelong or Lifelong(epochs=1), sources_dir=folder, task_order=())
    stream.vocabulary = "tasks" if config.task.file_source is LabelledFile else stream.vocabulary
    stream.tasks = tuple(TaskData(name=task_name, source=sources[task_name]) for task_name in names)
    room = max(RESERVED * len(set(numbers.values())), max(numbers.values(), default=-1) + 1)
    task = config.task.with_room(room, RESERVED * len(names)) if numbers else config.task
    parts = [Path(name).stem or "tasks", *names, variant, in_name_of_run(method), name_of_start(from_run)]
    run_name = "_".join(filter(None, parts))[:80]
    config = replace(config, name=run_name, task=task, lifelong=stream, evaluations=())
    config.data = replace(config.data, source=sources[min(names)])
    config = with_method(config, method) if method else config
    return config, _describe_stream(config) + describe_start(from_run)


def add_task_from_file(config: Config, file: str, rules: ReadingRules = ReadingRules()) -> tuple[Config, str]:
    """Adds a file as the last task of a config's stream, and returns the new configuration and a line that describes
    it. `rules` say how the file is read.

    Args:
      config: Configuration of a run over tasks.
      file: File of the new task. See `tasks_config`.
      rules: Encoding of the file, and which unreadable parts may be skipped.

    Raises:
      ValueError: The run has a single task, its method takes no further one, the file is missing or is a task of the
        run already, or the head has no room for its classes.
    """
    from memjax.lifelong.method_interface import check_takes_tasks, make_method

    stream = config.lifelong
    if stream is None:
        raise UsageError("--add-task: given a run of one task, allowed: a run of a stream (memjax train --tasks ...)")
    path = _resolve_path(file, "--add-task")
    name, known = _name(path), [task.name for task in stream.tasks]
    if is_task(config, file):
        raise UsageError(f"--add-task: given {file}, a task of the run already, allowed: another file")
    if name in known:
        raise UsageError(f"--add-task: given a file of the name {name!r}, allowed: another one than {', '.join(known)}")
    check_takes_tasks(config, make_method(stream.method, stream.task_boundaries))
    numbers = _numbers(stream.tasks)
    classes, inside = _classes(config), stream.sources_dir and path.is_relative_to(stream.sources_dir)
    stored, last = path.relative_to(stream.sources_dir) if inside else path, stream.ordered_tasks[-1].source
    if isinstance(last, TextClasses) and name in TEXT_SETS and find_packed(path, *last.train):
        source: SourceKind = replace(last, data_set=name, path=str(stored))  # another one of the published sets
        numbers |= {("", label): number for number, label in class_names(source).items()}
    else:
        source = _source(config, name, stored, path, numbers, rules)
    room = config.task.num_classes
    if numbers and room and max(numbers.values()) >= room:
        new, more = len(set(numbers.values()) - classes), max(numbers.values()) + 1
        raise ValueError(
            f"task.num_classes: {name} has {new} new classes beside {len(classes)}, the head of the run has {room}, "
            f"allowed: a run begun with --task.num-classes {more} or more"
        )
    longer = config.with_task(TaskData(name=name, source=source))
    validate(longer)
    return longer, _describe_stream(longer)


def is_task(config: Config, file: str) -> bool:
    """Whether a file is already the data of a task in the stream of a config."""
    stream = config.lifelong
    located = [stream.with_sources_dir(task.source) for task in stream.tasks] if stream else []
    return any(Path(source.path).resolve() == Path(file).resolve() for source in located if source.path)


def _check_vectors(config: Config, paths: Sequence[Path], name: str, variant: str) -> None:
    """Raises `UsageError` for a variant that reads vectors and files without vectors, and names variants for texts."""
    missing = [path for path in paths if not (path / "train.npy").is_file()]
    if config.model.reads != "vectors" or not missing:
        return
    variants = sorted(describe_config(name or shipped_config(CONFIG))[1], key=lambda other: other != VARIANT)
    texts = (other for other in variants if load_config(name or shipped_config(CONFIG), other).model.reads != "vectors")
    proposed = " or ".join(f"--variant {other}" for other in itertools.islice(texts, 2))
    option = f"--variant {variant}" if variant else f"--config {name}"
    allowed = f"files for a model that reads texts: {proposed}; or a" if proposed else "a"
    raise UsageError(
        f"--tasks: given {missing[0]} with {option}, which reads vectors, allowed: {allowed} folder with train.npy"
    )


def _resolve_path(file: str, option: str) -> Path:
    """Returns the absolute path of a file or folder that an option names, which must exist."""
    path = Path(file).expanduser()
    if not file or not path.exists():
        several = ", several with spaces" if "," in file else ""
        raise UsageError(f"{option}: given {file!r}, which does not exist, allowed: a file or a folder{several}")
    return path.resolve()


def _name(path: Path) -> str:
    """Returns the name of a task: the name of its file, or of its folder where the file is named after a split.

    Example:
      >>> _name(Path("data/news.csv.xz")), _name(Path("data/yelp/train.csv")), _name(Path("data/yelp"))
      ('news', 'yelp', 'yelp')
    """
    stem = path.name.partition(".")[0]
    return path.parent.name if stem in SPLITS else stem


def _source(config: Config, name: str, stored: Path, path: Path, numbers: Numbers, rules: ReadingRules) -> SourceKind:
    """Makes the source for a file, of the kind that the config needs, and numbers the classes of the file.

    Args:
      config: Configuration with the kind of the task.
      name: Name of the task.
      stored: Path that the settings name.
      path: Present path of the file.
      numbers: Numbers of the classes so far, to which those of the file are added.
      rules: Encoding of the file, and which unreadable parts may be skipped.
    """
    kind = CachedFeatures if config.model.reads == "vectors" else config.task.file_source
    if kind is None or not {*kind.content_types} & {*config.data.source.content_types}:
        allowed = "a config that classifies, answers, or reads texts"
        raise UsageError(f"--tasks: given {path.name} for {type(config.task).__name__}, allowed: {allowed}")
    if kind is TextFiles:
        readable_files(str(path), rules)
        return TextFiles(path=str(stored), encoding=rules.encoding, skip=rules.skip)
    if kind is not LabelledFile:
        return kind(path=str(stored))
    labels = find_labels(str(path), rules)
    for label in labels:
        numbers.setdefault(_key(name, label), max(numbers.values(), default=-1) + 1)
    class_numbers = tuple(numbers[_key(name, label)] for label in labels)
    return LabelledFile(path=str(stored), classes=labels, class_ids=class_numbers, **dataclasses.asdict(rules))


def _key(name: str, label: str) -> tuple[str, str]:
    return (name if label.isdecimal() else "", label)


def _numbers(tasks: Iterable[TaskData]) -> Numbers:
    """Returns the numbers of all classes of the tasks."""
    known = Numbers()
    for task in tasks:
        for number, label in class_names(task.source).items():
            known.setdefault(_key(task.name, label), number)
    return known


def _classes(config: Config) -> set[int]:
    """Returns the set of numbers of all classes of a stream."""
    return (
        {number for task in config.lifelong.tasks for number in class_names(task.source)} if config.lifelong else set()
    )


def _describe_stream(config: Config) -> str:
    """Describes the tasks, the method and the model of a stream in one line."""
    stream = config.lifelong
    assert stream is not None
    classes = _classes(config)
    head = f" in a head of {config.task.num_classes}" if config.task.num_classes else ", answered in words"
    room = f", {len(classes)} classes{head}" if classes else ""
    names = ", ".join(task.name for task in stream.ordered_tasks)
    room += f", at least {stream.min_updates_per_task} updates each" if stream.min_updates_per_task else ""
    model = config.model
    sizes = f" of {model.num_layers} layers of {model.dim}" if isinstance(model, TransformerBase) else ""
    kinds = f"{type_name(type(stream.method))}, {type_name(type(model))}{sizes}"
    number = "1 task" if len(stream.tasks) == 1 else f"{len(stream.tasks)} tasks"
    return f"{number} ({names}){room}; {kinds}"
