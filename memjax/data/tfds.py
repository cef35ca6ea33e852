"""Reads the builders of TensorFlow Datasets (TFDS) as texts, and makes a builder of the Python standard library.

Needs the extra `data`. TensorFlow is imported inside functions only, without its messages, and with accelerators hidden
from it because JAX uses them.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from memjax import config as configs
from memjax.data.content import hash_in_order, hash_sample
from memjax.data.python_sources import corpus_sha256, python_sources, python_version, read_python_sources
from memjax.data.reading_report import ReadingReport, UnreadableError
from memjax.data.sources import SPLITS, Texts

__all__ = ["python_library_builder", "tfds_examples", "tfds_splits", "tfds_texts"]

PYTHON_LIBRARY = "memjax_python_library"
"""Name of the builder of the Python standard library, which `python_library_builder` registers."""

FILE_FORMATS = ("array_record", "tfrecord")
"""File formats of TFDS: one with random access, and the one that `tfds.load` and seqio read."""


def import_quietly(name: str) -> Any:
    """Imports a library of the extra `data` without its warnings, and returns it.

    Raises:
      ValueError: The library is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise ValueError(f"{name}: not installed; pip install 'memjax[data]'") from error


def import_tensorflow() -> Any:
    """Imports TensorFlow without start-up messages, restricts it to the CPU, and returns it. See `import_quietly`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = import_quietly("tensorflow")
    for kind in ("GPU", "TPU"):
        with contextlib.suppress(RuntimeError):  # Too late: someone else has used TensorFlow in this process.
            tensorflow.config.set_visible_devices([], kind)
    return tensorflow


def import_tfds() -> Any:
    """Imports TensorFlow Datasets, turns off its progress bars, and returns it. See `import_tensorflow`."""
    import_tensorflow()
    tfds = import_quietly("tensorflow_datasets")
    tfds.disable_progress_bar()
    return tfds


@contextlib.contextmanager
def hide_warnings() -> Iterator[None]:
    """Context manager that hides warnings of TFDS and seqio. Their errors are still printed."""
    from absl import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)


@functools.cache
def _python_library_class() -> type:
    """Defines the builder class of the Python standard library, which registers it in TFDS."""
    tfds = import_tfds()
    documents = read_python_sources()
    digest = corpus_sha256(documents)

    class MemjaxPythonLibrary(tfds.core.GeneratorBasedBuilder):
        """Python sources of the standard library, one document per top-level package or module."""

        VERSION = tfds.core.Version("1.0.0")
        # One configuration per library, so that prepared data of another Python are never taken for this one's, and
        # per file format: `as_data_source` reads only array_record, `as_dataset` (and seqio) only tfrecord.
        BUILDER_CONFIGS = [
            tfds.core.BuilderConfig(
                name=f"{python_version().replace(' ', '-').lower()}-{digest[:8]}-{file_format}",
                description=f"{python_version()}, SHA-256 {digest}",
            )
            for file_format in FILE_FORMATS
        ]

        def _info(self):
            features = tfds.features.FeaturesDict({"name": tfds.features.Text(), "text": tfds.features.Text()})
            metadata = tfds.core.MetadataDict({"python": python_version(), "sha256": digest})
            return tfds.core.DatasetInfo(
                builder=self,
                description="Python sources of the running interpreter's standard library.",
                features=features,
                metadata=metadata,
            )

        def _split_generators(self, dl_manager):
            del dl_manager  # Nothing is downloaded.
            return {split: self._generate_examples(split) for split in SPLITS}

        def _generate_examples(self, split):
            texts = python_sources(split)
            for name, text in zip(texts.names, texts, strict=True):
                yield name, {"name": name, "text": text}

    return MemjaxPythonLibrary


def python_library_builder(data_dir: str | os.PathLike[str] | None = None, *, file_format: str = "array_record") -> Any:
    """Returns a TFDS builder of Python's library, which is prepared if necessary: `name` and `text` of each top-level
    package or module.

    Args:
      data_dir: Folder of prepared data sets. None for the default of TFDS.
      file_format: File format, one of `FILE_FORMATS`.

    Raises:
      ValueError: Another file format.

    Example:
      >>> builder = python_library_builder("/tmp/tfds")  # doctest: +SKIP
      >>> builder.as_data_source("train")[0]["name"]  # doctest: +SKIP
    """
    if file_format not in FILE_FORMATS:
        raise ValueError(f"file_format: {file_format!r}; allowed are {', '.join(FILE_FORMATS)}")
    with hide_warnings():
        builder_class: Any = _python_library_class()
        config = builder_class.BUILDER_CONFIGS[FILE_FORMATS.index(file_format)]
        builder = builder_class(data_dir=data_dir, config=config.name)
        if not builder.is_prepared():
            builder.download_and_prepare(file_format=file_format)
    return builder


class TfdsPairs:
    """The texts of a TFDS builder without random access: an iterable of pairs of name and text, in file order.

    A text that cannot be read is replaced by its `UnreadableError`.

    Attributes:
      fingerprint: Hash of the texts.
      compared: Part of the texts that the fingerprint covers, in words. Empty for all of them.
    """

    def __init__(self, builder: Any, split: str, field: str, fingerprint: str, compared: str = ""):
        self.fingerprint, self.compared = fingerprint, compared
        self._builder, self._split, self._field = builder, split, field

    def __len__(self) -> int:
        return self._builder.info.splits[self._split].num_examples

    def __iter__(self) -> Iterator[tuple[str, str | UnreadableError]]:
        with hide_warnings():
            for number, example in enumerate(_read_in_order(self._builder, self._split)):
                name = f"{self._split}:{number}"
                try:
                    yield name, decode_example(example[self._field], f"{self._builder.info.full_name} {name}")
                except UnreadableError as problem:
                    yield name, problem


def decode_example(content: bytes, name: str) -> str:
    """Decodes the UTF-8 text of an example. A broken character is an `UnreadableError`, which names the example `name`.

    Args:
      content: Bytes of the text.
      name: Name of the example, for the error message.

    Raises:
      UnreadableError: A broken character. The example may be skipped.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"path: {name} is not UTF-8 at byte {error.start}; mend the data set"
        raise UnreadableError(message, "not UTF-8", is_broken=False, size=len(content)) from None


def tfds_texts(
    name: str,
    *,
    split: str,
    field: str = "text",
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
) -> Texts | TfdsPairs:
    """Opens one split of a TFDS builder as `Texts`, or as `TfdsPairs`, which can only be iterated, if its files have no
    random access. `field` names the feature with the text.

    If the prepared files have random access (`array_record`), each text is read when it is accessed. Otherwise the
    result can only be iterated.

    Args:
      name: Name of the builder, optionally with configuration and version: `pg19`, `wiki40b/en`, `c4/en:3.1.0`.
      split: `train`, `validation` or `test`, or any TFDS split such as `train[:1%]`. If the builder lacks one of the
        three splits, it is cut from another one as described in `map_splits`.
      field: Name of the feature that contains the text.
      data_dir: Folder of prepared data sets. None for the default of TFDS.
      download: Whether to download and prepare missing data sets. If False, nothing is downloaded.

    Raises:
      ValueError: An unknown builder, one that is not prepared, or one without that split or field.
    """
    tfds = import_tfds()
    with hide_warnings():
        if name.split("/")[0].split(":")[0] == PYTHON_LIBRARY:
            builder = python_library_builder(data_dir)
        else:
            builder = _open_builder(tfds, name, data_dir, download)
        features = builder.info.features.items()
        fields = sorted(key for key, feature in features if isinstance(feature, tfds.features.Text))
        available = sorted(builder.info.splits)
    if field not in fields:
        raise ValueError(f"field: {field!r}; text features of {name} are {', '.join(fields) or 'none'}")
    part = map_splits(available).get(split, split)
    if part.split("[")[0] not in available:
        raise ValueError(f"split: {split!r}; {name} has {', '.join(available)}; allowed are these, and slices of them")
    size = builder.info.splits[part].num_examples
    if not size:
        raise ValueError(f"split: {split!r} of {name} has no documents; give another split")
    in_order = builder.info.file_format.value != "array_record"
    with hide_warnings():
        source = None if in_order else builder.as_data_source(split=part)
        if source is None:
            last = next(iter(_read_in_order(builder, f"{part}[{size - 1}:]")))[field] if "[" not in part else b""
            content, compared = hash_in_order((example[field] for example in _read_in_order(builder, part)), size, last)
        else:
            content, compared = hash_sample(size, lambda number: source[number][field])
    identity = f"{builder.info.full_name}/{part}/{field}/{size}/{content}"
    fingerprint = "tfds-" + hashlib.sha256(identity.encode("utf-8")).hexdigest()[:16]
    if source is None:
        return TfdsPairs(builder, part, field, fingerprint, compared)
    names = [f"{part}:{number}" for number in range(size)]
    read = lambda index: decode_example(source[index][field], f"{builder.info.full_name} {names[index]}")
    texts = Texts(names, read, fingerprint)
    texts.compared = compared
    return texts


def open_tfds_builder(data: configs.Data, split: str) -> Texts | TfdsPairs:
    """Returns one split of the texts of the TFDS builder in `data.source`. See `tfds_texts`."""
    source: Any = data.source
    return tfds_texts(source.name, split=split, field=source.field, data_dir=source.data_dir or None)


def tfds_examples(
    name: str, *, split: str, data_dir: str | os.PathLike[str] | None = None, report: ReadingReport | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the examples of a prepared builder in the order of its files, as mappings from feature to NumPy value.
    `report` counts examples with broken characters, which are skipped. Without a report they are an error.

    Args:
      name: Name of the builder, optionally with configuration: `glue/cola`, `squad`.
      split: Split of the builder.
      data_dir: Folder of prepared data sets. None for the default of TFDS.
      report: Report that counts examples with broken characters, which are skipped. None to refuse them.

    Raises:
      ValueError: An unknown builder, one that is not prepared, one without that split, or an example with a broken
        character.
    """
    tfds = import_tfds()
    with hide_warnings():
        builder = _open_builder(tfds, name, data_dir, download=False)
        available = sorted(builder.info.splits)
        if split not in available:
            raise ValueError(f"split: given {split!r}, allowed: {', '.join(available)} ({name})")
        is_indexed = builder.info.file_format.value == "array_record"
        examples = builder.as_data_source(split=split) if is_indexed else _read_in_order(builder, split)
        for number, example in enumerate(examples):
            contents = [value for value in example.values() if isinstance(value, bytes)]
            try:
                for value in contents:
                    decode_example(value, f"{builder.info.full_name} {split}:{number}")
            except UnreadableError as problem:
                if report is None:
                    raise
                report.count_skipped(problem, problem.size)
                continue
            if report is not None:
                report.count_read(sum(map(len, contents)))
            yield example


def tfds_splits(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """Returns a sorted list of the names of the splits of a prepared builder. See `tfds_examples` for arguments and
    errors.
    """
    tfds = import_tfds()
    with hide_warnings():
        return sorted(_open_builder(tfds, name, data_dir, download=False).info.splits)


def _read_in_order(builder: Any, split: str) -> Any:
    """Reads the examples of a builder without random access."""
    # In the order of the files, so that an interrupted reader can continue.
    tfds = import_tfds()
    read = tfds.ReadConfig(interleave_cycle_length=1)
    return tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False, read_config=read))


def _open_builder(tfds: Any, name: str, data_dir: str | os.PathLike[str] | None, download: bool) -> Any:
    """Returns a prepared builder, and prepares it first if `download` allows it."""
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"name: {name!r} is no TFDS builder ({reason}); give BUILDER or BUILDER/CONFIG:VERSION"
        ) from None
    if not builder.is_prepared():
        if not download:
            raise ValueError(
                f"name: {name} is not prepared in {builder.data_path}; give data_dir, or prepare it with "
                f"`tfds build {name}` (it may download)"
            )
        builder.download_and_prepare(file_format="array_record")
    return builder


def map_splits(available: Mapping[str, Any] | list[str]) -> dict[str, str]:
    """Maps 'train', 'validation' and 'test' to the splits of a TFDS builder, whose names are `available`, or to slices
    such as 'test[:50%]' if it lacks some. Empty without a training split.

    If either validation or test is missing, the other one is halved. If both are missing, one percent of train is held
    out for each. Empty for a builder without a training split.

    Args:
      available: Names of the builder's splits.

    Example:
      >>> map_splits(["train", "test"])
      {'train': 'train', 'validation': 'test[:50%]', 'test': 'test[50%:]'}
      >>> map_splits(["train"])
      {'train': 'train[:98%]', 'validation': 'train[98%:99%]', 'test': 'train[99%:]'}
    """
    if "train" not in available:
        return {}
    held_out = [split for split in ("validation", "test") if split in available]
    if len(held_out) == 2:
        return {split: split for split in SPLITS}
    if len(held_out) == 1:
        return {"train": "train", "validation": f"{held_out[0]}[:50%]", "test": f"{held_out[0]}[50%:]"}
    return {"train": "train[:98%]", "validation": "train[98%:99%]", "test": "train[99%:]"}
