"""Reads any seqio Task or Mixture as documents, and registers Tasks for the corpora of the papers.

Needs the extra `data`. Importing seqio takes tens of seconds (it imports TensorFlow and tensorflow_text), so it is
imported inside functions, and Tasks are only registered by a call of `register_tasks`.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from memjax.data.content import hash_in_order
from memjax.data.reading_report import ReadingReport, UnreadableError
from memjax.data.tfds import (
    PYTHON_LIBRARY,
    decode_example,
    hide_warnings,
    import_quietly,
    import_tensorflow,
    map_splits,
    python_library_builder,
)
from memjax.data.token_files import Progress, TokenFile, TokenizedDocument, write_tokens
from memjax.data.tokenizers import Ids, _piece_bytes
from memjax.settings.reading_rules import ReadingRules

__all__ = [
    "SeqioVocabulary",
    "register_tasks",
    "seqio_content",
    "seqio_documents",
    "seqio_pairs",
    "seqio_splits",
    "seqio_tokenizer",
]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus in TFDS for which a seqio Task can be registered.

    Attributes:
      tfds_name: Name of the builder with configuration and version.
      features: Pairs of a feature of the Task and the feature of the builder that it is read from.
      splits: Names of the builder's splits.
      has_markers: Whether the text has Wiki-40B's markers instead of line breaks.
    """

    tfds_name: str
    features: tuple[tuple[str, str], ...] = (("targets", "text"),)
    splits: tuple[str, ...] = ("train", "validation", "test")
    has_markers: bool = False


_WMT = {
    13: ("cs-en", "de-en", "fr-en", "es-en", "ru-en"),
    14: ("cs-en", "de-en", "fr-en", "hi-en", "ru-en"),
    15: ("cs-en", "de-en", "fi-en", "fr-en", "ru-en"),
    16: ("cs-en", "de-en", "fi-en", "ro-en", "ru-en", "tr-en"),
    17: ("cs-en", "de-en", "fi-en", "lv-en", "ru-en", "tr-en", "zh-en"),
    18: ("cs-en", "de-en", "et-en", "fi-en", "ru-en", "tr-en", "zh-en"),
    19: ("cs-en", "de-en", "fi-en", "gu-en", "kk-en", "lt-en", "ru-en", "zh-en", "fr-de"),
}


def _translations() -> dict[str, Corpus]:
    """Returns the corpora of all language pairs of `wmt13_translate` to `wmt19_translate`, in both directions."""
    corpora = {}
    for year, pairs in _WMT.items():
        splits = ("train", "validation") if year == 19 else ("train", "validation", "test")
        for pair in pairs:
            for source, target in (pair.split("-"), pair.split("-")[::-1]):
                features = (("inputs", source), ("targets", target))
                name = f"memjax_wmt{year}_translate_{source}_{target}"
                corpora[name] = Corpus(f"wmt{year}_translate/{pair}:1.0.0", features, splits)
    return corpora


CORPORA: dict[str, Corpus] = {
    "memjax_pg19": Corpus("pg19:0.1.1", (("targets", "book_text"),)),
    "memjax_wiki40b_en": Corpus("wiki40b/en:1.3.0", has_markers=True),
    "memjax_wikipedia": Corpus("wikipedia/20230601.en:1.0.0", splits=("train",)),
    "memjax_lm1b": Corpus("lm1b:1.1.0", splits=("train", "test")),
    "memjax_c4": Corpus("c4/en:3.1.0", splits=("train", "validation")),
    "memjax_scientific_papers_arxiv": Corpus("scientific_papers/arxiv:1.1.1", (("targets", "article"),)),
    "memjax_scientific_papers_pubmed": Corpus("scientific_papers/pubmed:1.1.1", (("targets", "article"),)),
    **_translations(),
}
"""Name of a Task -> its corpus. The Python standard library, `memjax_python_library`, is another Task."""


def import_seqio() -> Any:
    """Imports seqio and returns it, with TensorFlow restricted to the CPU. See `memjax.data.tfds.import_tensorflow`."""
    import_tensorflow()
    return import_quietly("seqio")


def register_tasks(
    names: Sequence[str] | None = None,
    *,
    vocabulary: Any = None,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
) -> list[str]:
    """Registers seqio Tasks for corpora of the papers, replaces Tasks that an earlier call has registered, and returns
    their names. By default it registers all of them, with a vocabulary of bytes.

    A Task has the feature `targets` (translations also `inputs`), tokenised without an end token, and the text under
    `targets_pretokenized`. Missing validation or test splits are cut as in `memjax.data.tfds.map_splits`.

    Args:
      names: Names of Tasks: keys of `CORPORA`, or `memjax_python_library`. None for all of them.
      vocabulary: Vocabulary of the Tasks, a `seqio.Vocabulary`. None for bytes.
      data_dir: Folder of prepared TFDS data sets. None for the default of TFDS.
      download: Whether TFDS downloads and prepares a missing data set when its Task is read.

    Returns:
      The names of the registered Tasks.

    Raises:
      ValueError: An unknown name.

    Example:
      >>> register_tasks(["memjax_pg19"])  # doctest: +SKIP
      ['memjax_pg19']
    """
    allowed = [PYTHON_LIBRARY, *CORPORA]
    chosen = allowed if names is None else list(names)
    unknown = [name for name in chosen if name not in allowed]
    if unknown:
        raise ValueError(f"names: {unknown[0]!r}; allowed are {', '.join(allowed[:8])} and memjax_wmt*_translate_*_*")
    seqio = import_seqio()
    vocabulary = seqio.ByteVocabulary() if vocabulary is None else vocabulary
    folder = None if data_dir is None else os.fspath(data_dir)
    with hide_warnings():
        for name in chosen:
            if name in seqio.TaskRegistry.names():
                seqio.TaskRegistry.remove(name)
            corpus = _python_library_corpus(folder) if name == PYTHON_LIBRARY else CORPORA[name]
            _add_task(seqio, name, corpus, vocabulary, folder, read_only=not download)
    return chosen


def _python_library_corpus(data_dir: str | None) -> Corpus:
    """Prepares the builder of the Python standard library, and returns it as a corpus."""
    name, _, version = python_library_builder(data_dir, file_format="tfrecord").info.full_name.rpartition("/")
    return Corpus(f"{name}:{version}")


def _add_task(seqio: Any, name: str, corpus: Corpus, vocabulary: Any, data_dir: str | None, read_only: bool) -> None:
    """Registers the Task of a corpus. With `read_only`, seqio does not download its data set."""
    keys = dict(corpus.features)
    seqio.TaskRegistry.add(
        name,
        source=seqio.TfdsDataSource(
            tfds_name=corpus.tfds_name,
            tfds_data_dir=data_dir,
            splits=map_splits(list(corpus.splits)),
            read_only=read_only,
        ),
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map=keys),
            *([_replace_markers] if corpus.has_markers else []),
            seqio.preprocessors.tokenize,
        ],
        output_features={key: seqio.Feature(vocabulary=vocabulary, add_eos=False) for key in keys},
        metric_fns=[],
    )


def _replace_markers(dataset: Any) -> Any:
    """Replaces the markers of Wiki-40B: lines such as `_START_ARTICLE_` by blank lines, `_NEWLINE_` by a line end."""
    tensorflow = import_tensorflow()

    def clean(example):
        text = tensorflow.strings.regex_replace(example["targets"], r"\n_START_(ARTICLE|SECTION|PARAGRAPH)_\n", "\n\n")
        text = tensorflow.strings.strip(tensorflow.strings.regex_replace(text, "_NEWLINE_", "\n"))
        return {**example, "targets": text}

    return dataset.map(clean, num_parallel_calls=tensorflow.data.AUTOTUNE)


class SeqioVocabulary:
    """A tokenizer that wraps a `seqio.Vocabulary`.

    `token_bytes` decodes one id at a time and is only exact if ids stand for fixed bytes.
    """

    lossless = False
    extra_end_ids: tuple[int, ...] = ()
    chat_template = ""

    def __init__(self, vocabulary: Any, *, begin_id: int | None = None):
        """Wraps a vocabulary.

        Args:
          vocabulary: A `seqio.Vocabulary`, or an object with its `encode`, `decode`, `vocab_size`, `eos_id`, `pad_id`.
          begin_id: Id that is read before the first token of a document. None for the padding id, as in T5's decoder.
        """
        self.vocabulary = vocabulary
        self.vocab_size = int(vocabulary.vocab_size)
        self.pad_id = int(vocabulary.pad_id)
        self.end_id = self.pad_id if vocabulary.eos_id is None else int(vocabulary.eos_id)
        self.begin_id = self.pad_id if begin_id is None else begin_id
        probe = vocabulary.encode("A vocabulary is known by the ids of a text:\n 0123 (é) <x>.")
        name = f"{type(vocabulary).__name__}/{self.vocab_size}/{[int(i) for i in probe]}"
        self.fingerprint = "seqio-" + hashlib.sha256(name.encode("utf-8")).hexdigest()[:16]

    @property
    def base(self) -> Any:
        return self

    def files(self) -> dict[str, bytes]:
        """Returns an empty mapping: no file is saved, because the vocabulary is only known from its seqio Task."""
        return {}

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text."""
        return np.asarray(self.vocabulary.encode(text), np.int32)

    def decode(self, ids: Ids) -> str:
        """Returns the text of ids, as the vocabulary decodes them (it may stop at its end id)."""
        return self.vocabulary.decode([int(i) for i in np.asarray(ids)])

    def token_bytes(self, ids: Ids) -> np.ndarray:
        """Returns the number of UTF-8 bytes that each id stands for, int32 in the shape of `ids`. Ids of padding,
        begin and end, and control and unknown pieces, have 0.
        """
        return self._lengths[np.asarray(ids, np.int64)]

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([self._num_bytes(index) for index in range(self.vocab_size)], np.int32)

    def _num_bytes(self, index: int) -> int:
        if index in (self.pad_id, self.end_id, self.begin_id):
            return 0
        processor = getattr(self.vocabulary, "tokenizer", None)
        if processor is not None and hasattr(processor, "is_byte") and index < processor.get_piece_size():
            return len(_piece_bytes(processor, index))
        return len(self.vocabulary.decode([index]).encode("utf-8"))


def seqio_tokenizer(name: str, *, feature: str = "targets") -> SeqioVocabulary:
    """Returns the vocabulary of a feature of the registered Task or Mixture `name` as a tokenizer. A Task of `CORPORA`
    is registered if necessary.

    Raises:
      ValueError: An unknown name, or a Task without the feature.
    """
    task = _task(name)
    if feature not in task.output_features:
        raise ValueError(f"feature: {feature!r}; {name} has {', '.join(task.output_features)}")
    return SeqioVocabulary(task.output_features[feature].vocabulary)


def seqio_documents(
    name: str,
    path: str | os.PathLike[str],
    *,
    split: str,
    feature: str = "targets",
    min_tokens: int = 1,
    content: str = "",
    progress: Progress | None = None,
    rules: ReadingRules = ReadingRules(),
) -> TokenFile:
    """Reads one split of a registered seqio Task or Mixture once, writes it to a token file in the folder `path`, and
    opens that. Documents are the tokens of `feature`. `content` is the hash of `seqio_content`, if known.

    The examples are neither trimmed nor packed, and in the order of the source. A Mixture has the order of its
    deterministic interleaving, which ends when its first Task ends. An end token that a Task appends stays in the
    document. `num_bytes` counts `{feature}_pretokenized` if the Task has it, otherwise the bytes of the tokens. seqio
    reads TFDS data sets in the format `tfrecord` only.

    Args:
      name: Name of a Task or Mixture. A Task of `CORPORA` is registered if necessary.
      path: Folder of the token file.
      split: Split of the Task.
      feature: Feature whose tokens are the document.
      min_tokens: Number of tokens of the shortest document. Shorter documents are left out and counted.
      content: Hash of `seqio_content`, if it is already known. Empty to compute it.
      progress: Function that is called after every document. None for none.
      rules: Rules for documents that are empty or have broken characters.

    Raises:
      ValueError: An unknown name, split or feature, data that is not prepared, or documents that must not be skipped.
    """
    task, tokenizer = _task_with_split(name, split), seqio_tokenizer(name, feature=feature)
    content = content or seqio_content(name, split=split, feature=feature)[0]
    lengths = tokenizer.token_bytes(np.arange(tokenizer.vocab_size))

    def documents(start: int) -> Iterator[TokenizedDocument]:
        with hide_warnings():
            for number, example in enumerate(_dataset(task, split).skip(start).as_numpy_iterator(), start=start):
                tokens = np.asarray(example[feature], np.int32)
                text = example.get(f"{feature}_pretokenized")
                num_bytes = len(text) if isinstance(text, bytes) else int(lengths[tokens].sum())
                problem = _problem_of(text, f"{name}/{split}:{number}")
                yield TokenizedDocument(f"{name}/{split}:{number}", tokens, num_bytes, problem=problem)

    source = f"{name}/{split}/{feature}/{tokenizer.fingerprint}/{content}"
    try:
        return write_tokens(
            path,
            documents,
            source="seqio-" + hashlib.sha256(source.encode("utf-8")).hexdigest()[:16],
            tokenizer=tokenizer.fingerprint,
            token_bytes=lengths,
            min_tokens=min_tokens,
            progress=progress,
            rules=rules,
        )
    except (AssertionError, FileNotFoundError, NotImplementedError) as error:
        raise _unreadable(name, error) from error


def seqio_content(name: str, *, split: str, feature: str = "targets") -> tuple[str, str]:
    """Hashes the examples of one split of a registered Task or Mixture. Returns the hash, and the part of the examples
    that it covers, in words ('' for all).

    Returns:
      The hash, and the part of the examples that it covers, in words (see `memjax.data.content.hash_in_order`).

    Raises:
      ValueError: An unknown name or split, or data that is not prepared.
    """
    # The name alone does not identify the examples: another Task may have been registered under it.
    task = _task_with_split(name, split)

    def examples() -> Iterator[bytes]:
        for example in _dataset(task, split).as_numpy_iterator():
            text = example.get(f"{feature}_pretokenized", b"")
            yield np.asarray(example[feature], np.int32).tobytes() + (text if isinstance(text, bytes) else b"")

    try:
        with hide_warnings():
            return hash_in_order(examples())
    except (AssertionError, FileNotFoundError, NotImplementedError) as error:
        raise _unreadable(name, error) from error


def seqio_splits(name: str) -> list[str]:
    """Returns a list of the names of the splits of a registered Task or Mixture."""
    task = _task(name)
    with hide_warnings():
        return list(task.splits)


def _problem_of(content: Any, place: str) -> UnreadableError | None:
    """Returns the error if the text of an example cannot be decoded, otherwise None."""
    try:
        decode_example(content if isinstance(content, bytes) else b"", place)
    except UnreadableError as problem:
        return problem
    return None


def seqio_pairs(name: str, *, split: str, report: ReadingReport | None = None) -> Iterator[tuple[str, str]]:
    """Yields pairs of the texts of `inputs` and `targets` of a registered Task, in the order of the source. `report`
    counts examples with broken characters, which are skipped. Without a report they are an error.

    The texts are `inputs_pretokenized` and `targets_pretokenized` if the Task has them, otherwise the decoded tokens.

    Args:
      name: Name of the Task.
      split: Split of the Task.
      report: Report that counts examples with broken characters, which are skipped. None to refuse them.

    Raises:
      ValueError: An unknown name, a Task without one of the features, data that is not prepared, or an example with a
        broken character.
    """
    task = _task(name)
    decoders = {feature: seqio_tokenizer(name, feature=feature).decode for feature in ("inputs", "targets")}
    try:
        with hide_warnings():
            for number, example in enumerate(_dataset(task, split).as_numpy_iterator()):
                texts = {feature: example.get(f"{feature}_pretokenized") for feature in decoders}
                problems = [_problem_of(text, f"{name}/{split}:{number}") for text in texts.values()]
                if problem := next(filter(None, problems), None):
                    if report is None:
                        raise problem
                    report.count_skipped(problem, problem.size)
                    continue
                inputs, targets = (
                    text.decode("utf-8") if isinstance(text, bytes) else decoders[feature](example[feature])
                    for feature, text in texts.items()
                )
                if report is not None:
                    report.count_read(len(inputs) + len(targets))
                yield inputs, targets
    except (AssertionError, FileNotFoundError, NotImplementedError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> ValueError:
    """Returns the error for a Task whose data set cannot be read."""
    reason = str(error).strip().split("\n")[0]
    return ValueError(f"name: {name} cannot be read ({reason}); prepare its data set, or give data_dir")


def _dataset(task: Any, split: str) -> Any:
    """Reads the examples of a Task or Mixture, untrimmed and in the order of the source."""
    return task.get_dataset(sequence_length=None, split=split, shuffle=False, num_epochs=1)


def _task_with_split(name: str, split: str) -> Any:
    """Returns a Task or Mixture, and raises `ValueError` if it lacks a split."""
    task = _task(name)
    with hide_warnings():
        if split not in task.splits:
            raise ValueError(f"split: {split!r}; {name} has {', '.join(task.splits)}")
    return task


def _task(name: str) -> Any:
    """Returns a Task or Mixture by its name, after registering it if it is one of `CORPORA`."""
    seqio = import_seqio()
    with hide_warnings():
        if name not in [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]:
            if name not in (PYTHON_LIBRARY, *CORPORA):
                raise ValueError(f"name: {name!r} is no seqio Task or Mixture; import the module that registers it")
            register_tasks([name])
        return seqio.get_mixture_or_task(name)
