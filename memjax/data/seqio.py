"""seqio: Tasks for the corpora of the papers, and any Task or Mixture as documents. Needs the extra `data`.

Importing seqio takes tens of seconds (it imports TensorFlow and tensorflow_text), so it happens inside functions, and
Tasks are registered by a call: `register_tasks()`.
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
    import_quietly,
    import_tensorflow,
    python_library_builder,
    quiet,
    split_map,
)
from memjax.data.token_files import Progress, TokenFile, TokenizedDocument, write_tokens
from memjax.data.tokenizers import SeqioVocabulary
from memjax.settings.reading_rules import ReadingRules

__all__ = ["register_tasks", "seqio_content", "seqio_documents", "seqio_pairs", "seqio_splits", "seqio_tokenizer"]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus of TFDS.

    Attributes:
      tfds_name: builder, configuration and version.
      features: feature of the Task -> feature of the builder.
      splits: the builder's splits.
      has_markers: the text has Wiki-40B's markers instead of line breaks.
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
    """Every pair of `wmt13_translate` to `wmt19_translate`, in both directions."""
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
"""Task name -> corpus, under their TFDS names. The embedded corpus is `memjax_python_library`."""


def import_seqio() -> Any:
    """seqio, with TensorFlow on the CPU (see `builders.import_tensorflow`)."""
    import_tensorflow()
    return import_quietly("seqio")


def register_tasks(
    names: Sequence[str] | None = None,
    *,
    vocabulary: Any = None,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
) -> list[str]:
    """Registers seqio Tasks for the corpora; a second call replaces what the first registered.

    A Task has the feature `targets` (translations also `inputs`), tokenised without an end token, and the text under
    `targets_pretokenized`. Missing validation or test splits are cut as `builders.split_map` says.

    Args:
      names: of `CORPORA`, or `memjax_python_library`; None = all of them.
      vocabulary: a `seqio.Vocabulary`; bytes if None.
      data_dir: where prepared TFDS data sets lie; TFDS's own default if None.
      download: let TFDS download and prepare what is missing when a Task is read.

    Returns:
      The names.

    Raises:
      ValueError: an unknown name.

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
    with quiet():
        for name in chosen:
            if name in seqio.TaskRegistry.names():
                seqio.TaskRegistry.remove(name)
            corpus = _python_library_corpus(folder) if name == PYTHON_LIBRARY else CORPORA[name]
            _add_task(seqio, name, corpus, vocabulary, folder, read_only=not download)
    return chosen


def _python_library_corpus(data_dir: str | None) -> Corpus:
    name, _, version = python_library_builder(data_dir, file_format="tfrecord").info.full_name.rpartition("/")
    return Corpus(f"{name}:{version}")


def _add_task(seqio: Any, name: str, corpus: Corpus, vocabulary: Any, data_dir: str | None, read_only: bool) -> None:
    keys = dict(corpus.features)
    seqio.TaskRegistry.add(
        name,
        source=seqio.TfdsDataSource(
            tfds_name=corpus.tfds_name,
            tfds_data_dir=data_dir,
            splits=split_map(list(corpus.splits)),
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
    """Wiki-40B's lines `_START_ARTICLE_`, `_START_SECTION_`, `_START_PARAGRAPH_` turn blank, `_NEWLINE_` a line end."""
    tensorflow = import_tensorflow()

    def clean(example):
        text = tensorflow.strings.regex_replace(example["targets"], r"\n_START_(ARTICLE|SECTION|PARAGRAPH)_\n", "\n\n")
        text = tensorflow.strings.strip(tensorflow.strings.regex_replace(text, "_NEWLINE_", "\n"))
        return {**example, "targets": text}

    return dataset.map(clean, num_parallel_calls=tensorflow.data.AUTOTUNE)


def seqio_tokenizer(name: str, *, feature: str = "targets") -> SeqioVocabulary:
    """The vocabulary of a feature of a registered Task or Mixture, as a tokenizer."""
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
    """Any registered seqio Task or Mixture as documents, read once into a token file.

    Examples come untrimmed, unpacked and in the order of the source (a Mixture: in its deterministic interleaving,
    which ends with the first of its Tasks). An end token that a Task appends stays in the document. `num_bytes` is that
    of `{feature}_pretokenized` where the Task keeps it, otherwise the sum over tokens. seqio reads TFDS data sets in
    the format `tfrecord` only.

    Args:
      name: a Task or Mixture; those of `CORPORA` after `register_tasks`.
      path: Folder of the token file.
      split: Split of the Task.
      feature: Feature whose tokens are the document.
      min_tokens: Number of tokens below which documents are left out (see `write_token_file`).
      content: The hash of `seqio_content`, where it has been computed already.
      progress: called after every document.
      rules: Rules for documents that are empty or have broken characters.

    Raises:
      ValueError: an unknown name, split or feature, data that are not prepared, or documents that must not be skipped.
    """
    task, tokenizer = _task_with_split(name, split), seqio_tokenizer(name, feature=feature)
    content = content or seqio_content(name, split=split, feature=feature)[0]
    lengths = tokenizer.token_bytes(np.arange(tokenizer.vocab_size))

    def documents(start: int) -> Iterator[TokenizedDocument]:
        with quiet():
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
    """Hashes the examples of a registered Task or Mixture, which may have been registered anew under its name.

    Returns:
      The hash, and how much was compared, in words (`memjax.data.content.hash_in_order`).

    Raises:
      ValueError: an unknown name or split, or data that are not prepared.
    """
    task = _task_with_split(name, split)

    def examples() -> Iterator[bytes]:
        for example in _dataset(task, split).as_numpy_iterator():
            text = example.get(f"{feature}_pretokenized", b"")
            yield np.asarray(example[feature], np.int32).tobytes() + (text if isinstance(text, bytes) else b"")

    try:
        with quiet():
            return hash_in_order(examples())
    except (AssertionError, FileNotFoundError, NotImplementedError) as error:
        raise _unreadable(name, error) from error


def seqio_splits(name: str) -> list[str]:
    """The splits of a registered Task or Mixture."""
    task = _task(name)
    with quiet():
        return list(task.splits)


def _problem_of(content: Any, place: str) -> UnreadableError | None:
    """Returns why the text of an example cannot be read."""
    try:
        decode_example(content if isinstance(content, bytes) else b"", place)
    except UnreadableError as problem:
        return problem
    return None


def seqio_pairs(name: str, *, split: str, report: ReadingReport | None = None) -> Iterator[tuple[str, str]]:
    """The texts of `inputs` and `targets` of a registered Task, in the order of the source.

    They are those of `inputs_pretokenized` and `targets_pretokenized` where the Task keeps them, else decoded.

    Args:
      name: Name of the Task.
      split: Split of the Task.
      report: Counts examples with broken characters, which are skipped. None to refuse them.

    Raises:
      ValueError: an unknown name, a Task without one of the features, data that are not prepared, or an example with a
        broken character.
    """
    task, decoders = _task(name), {one: seqio_tokenizer(name, feature=one).decode for one in ("inputs", "targets")}
    try:
        with quiet():
            for number, example in enumerate(_dataset(task, split).as_numpy_iterator()):
                texts = {feature: example.get(f"{feature}_pretokenized") for feature in decoders}
                problems = [_problem_of(text, f"{name}/{split}:{number}") for text in texts.values()]
                if problem := next(filter(None, problems), None):
                    if report is None:
                        raise problem
                    report.skip(problem, problem.size)
                    continue
                inputs, targets = (
                    text.decode("utf-8") if isinstance(text, bytes) else decoders[feature](example[feature])
                    for feature, text in texts.items()
                )
                if report is not None:
                    report.take(len(inputs) + len(targets))
                yield inputs, targets
    except (AssertionError, FileNotFoundError, NotImplementedError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> ValueError:
    reason = str(error).strip().split("\n")[0]
    return ValueError(f"name: {name} cannot be read ({reason}); prepare its data set, or give data_dir")


def _dataset(task: Any, split: str) -> Any:
    """The examples of a Task or Mixture, untrimmed and in the order of the source."""
    return task.get_dataset(sequence_length=None, split=split, shuffle=False, num_epochs=1)


def _task_with_split(name: str, split: str) -> Any:
    task = _task(name)
    with quiet():
        if split not in task.splits:
            raise ValueError(f"split: {split!r}; {name} has {', '.join(task.splits)}")
    return task


def _task(name: str) -> Any:
    seqio = import_seqio()
    with quiet():
        if name not in [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]:
            if name not in (PYTHON_LIBRARY, *CORPORA):
                raise ValueError(f"name: {name!r} is no seqio Task or Mixture; import the module that registers it")
            register_tasks([name])
        return seqio.get_mixture_or_task(name)
