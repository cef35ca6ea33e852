"""Opens the data sets and the tokenizer that a configuration describes, prepared once and kept in a cache folder.

Preparation trains a tokenizer on the training split and writes one token file per split. `memjax train` does this by
itself, `memjax data` does it alone. An interrupted preparation continues where it stopped.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memjax import config as configs
from memjax.data.dialogue import NUM_MARKS, DialogueDocuments, TokenizerWithDialogueMarks, dialogue_texts
from memjax.data.documents import Documents, split_at_half
from memjax.data.identifiers import ANNOTATION, identifier_distances
from memjax.data.images import ImageDocuments
from memjax.data.seqio import register_tasks, seqio_content, seqio_documents, seqio_tokenizer
from memjax.data.source_readers import open_source
from memjax.data.sources import SPLITS, Texts, texts_without_names
from memjax.data.token_files import Progress, TokenFile, write_token_file
from memjax.data.tokenizers import count_words
from memjax.data.translation import (
    BilingualTexts,
    SentencePairs,
    TokenizerWithEndToken,
)
from memjax.durable_files import PARTIAL, DamagedError, file_checksum, read_json, write_json
from memjax.settings.compatibility import saved_type
from memjax.settings.pointers import import_by_name
from memjax.settings.reading_rules import ReadingRules

__all__ = [
    "Datasets",
    "make_datasets",
    "make_examples",
    "make_tokenizer",
    "prepare",
]


@dataclasses.dataclass(frozen=True)
class Datasets:
    """The data of a run: a function from the name of a split to its documents or examples, and the tokenizer that made
    their tokens.

    Attributes:
      documents: Function from the name of a split to its documents or examples. It prepares the split if necessary.
      tokenizer: Tokenizer of the texts. None if the data is not text.
      vocab_size: Number of ids of the tokenizer.
      begin_token: Id that is read before the first token of a document.
      words_in_split: Function from the name of a split to the number of words of its text. None unless results for the
        corpus are reported per word and its tokens preserve all of the text.
    """

    documents: Callable[[str], Any]
    tokenizer: Any
    vocab_size: int
    begin_token: int
    words_in_split: Callable[[str], int] | None = None

    def for_encoder(self, num_prompts: int = 0) -> Datasets:
        """Returns these data sets for a text encoder: with the encoder's version of the tokenizer, and `num_prompts`
        more ids at the end of the vocabulary.

        The tokenizer is replaced by its version for encoders, which adds frame tokens such as [CLS] and [SEP] to texts.

        Args:
          num_prompts: Number of prompt ids to add to the end of the vocabulary.
        """
        tokenizer = self.tokenizer.for_encoder()
        size = tokenizer.vocab_size + num_prompts
        return dataclasses.replace(self, tokenizer=tokenizer, vocab_size=size, begin_token=tokenizer.begin_id)


ReadSplit = Callable[[str], Any]
"""Function from the name of a split to the data that its source's reader returns. Results are cached."""
MakeTokenizer = Callable[[Callable[[], Any]], Any]
"""Function that returns the tokenizer. Its argument opens the training texts, and is only called for training one."""


def make_datasets(data: configs.Data, *, tokenizer: Any = None, progress: Progress | None = None) -> Datasets:
    """Returns `Datasets` with the documents of the settings `data`, and with the tokenizer of the settings unless
    `tokenizer` is passed. `progress(kind, done, total)` is called during preparation.

    If `tokenizer` is passed, nothing is read before a split is opened.

    Args:
      data: Settings of the data.
      tokenizer: Tokenizer to use instead of the one in the settings, such as the tokenizer of a run. None for the
        tokenizer of the settings.
      progress: Function that is called with the kind of work, the amount that is done, and the total. None for none.

    Raises:
      ValueError: A source without documents, a path that is missing or empty, text that is not UTF-8, a document
        without tokens, or a split without documents.
    """
    makers = {
        "texts": _open_texts,
        "tokens": _open_tokens,
        "seqio": _open_seqio,
        "dialogues": _open_dialogues,
        "pairs": _open_pairs,
    }
    wanted = data.source.content_types[0]
    if wanted not in makers:
        raise ValueError(f"data.source: given {type(data.source).__name__}, allowed: a source of documents")
    read = functools.cache(functools.partial(open_source, data))
    datasets = makers[wanted](data, read, functools.partial(_choose_tokenizer, data, tokenizer, progress), progress)
    if not data.train_half:
        return datasets
    half = lambda split: (
        split_at_half(datasets.documents(split), data.train_half) if split == "train" else datasets.documents(split)
    )
    return dataclasses.replace(datasets, documents=half, words_in_split=None)  # words are counted in whole splits


def make_examples(
    data: configs.Data,
    wanted: str,
    texts_of: Callable[[Any], Sequence[str]],
    question: Callable[[Sequence[Any], Any], Any],
    *,
    tokenizer: Any = None,
    progress: Progress | None = None,
    vocabulary: Sequence[configs.Data] = (),
) -> Datasets:
    """Returns `Datasets` with the examples of a task. `wanted` is the kind of entries to read, `texts_of(entry)` gives
    their texts, `question(entries, tokenizer)` makes examples, and `vocabulary` lists data to train a tokenizer on.

    Args:
      data: Settings of the data.
      wanted: Kind of entries that the task needs from the source, such as 'labelled' (texts with classes) or
        'questions'.
      texts_of: Function from one entry of the source to its texts, for the training of a tokenizer.
      question: Function from the entries of a split and the tokenizer to the examples of the task.
      tokenizer: Tokenizer to use instead of the one in the settings. None for the tokenizer of the settings.
      progress: Function that is called with the kind of work, the amount that is done, and the total. None for none.
      vocabulary: Settings of the data whose texts a new tokenizer is trained on. Empty for `data` alone.
    """
    if data.train_half:
        raise ValueError(
            f"data.train_half: given {data.train_half!r}, allowed: '' for {wanted} examples (documents have halves)"
        )
    read = functools.cache(functools.partial(open_source, data, wanted=wanted))

    def texts() -> Texts:
        parts = [open_source(part, "train", wanted=wanted) for part in vocabulary] or [read("train")]
        lines = [text for entries in parts for entry in entries for text in texts_of(entry)]
        return Texts.from_mapping({str(number): line for number, line in enumerate(lines)})

    made_tokenizer = _choose_tokenizer(data, tokenizer, progress, texts)
    return Datasets(lambda split: question(read(split), made_tokenizer), made_tokenizer, *_ids(made_tokenizer))


def prepare(data: configs.Data, *, progress: Progress | None = None) -> dict[str, dict[str, int]]:
    """Prepares all data that a run with these settings reads (the tokenizer, and the token file of each split), and
    returns the numbers of documents, tokens, bytes and skipped documents by split.

    Existing files are reused, and an interrupted preparation is continued.

    Args:
      data: Settings of the data.
      progress: Function that is called with the kind of work, the amount that is done, and the total. None for none.

    Returns:
      Mapping from split to its numbers of `documents`, `tokens` and `bytes`, and the number of documents that were
      `skipped` because they are too short.

    Raises:
      ValueError: See `make_datasets`.
    """
    datasets = make_datasets(data, progress=progress)
    return {split: _count_documents(datasets.documents(split)) for split in SPLITS}


def _count_documents(documents: Documents) -> dict[str, int]:
    """Counts the documents, tokens, bytes and skipped documents of a split."""
    numbers = range(len(documents))
    return {
        "documents": len(documents),
        "tokens": sum(documents.num_tokens(i) for i in numbers),
        "bytes": sum(documents.num_bytes(i) for i in numbers),
        "skipped": documents.skipped,
    }


def make_tokenizer(
    tokenizer: configs.Tokenizer, train: Callable[[], Any], folder: Path, *, progress: Progress | None = None
) -> Any:
    """Loads the tokenizer of the settings `tokenizer`, or trains it first if it is not in `folder` yet. `train` is a
    function that opens the training texts.

    A trained tokenizer is kept in `folder` under a name that contains the hash of its training texts.

    Args:
      tokenizer: Settings of the tokenizer.
      train: Function that opens the training texts. Only called if the settings name no file of a tokenizer.
      folder: Folder of trained tokenizers.
      progress: Function that is told when training starts and ends. None for none.

    Raises:
      ValueError: The settings are not those of a tokenizer.
    """
    if not tokenizer.made_by:
        kind = type(tokenizer).__name__
        raise ValueError(f"data.tokenizer: given {kind}, allowed: one of memjax.config.TokenizerKind")

    def train_once(name: str, train_on: Callable[[Any, Path], Any], load: Callable[[Path], Any]) -> Any:
        """Trains a tokenizer unless its file exists. `name` is that of its file, with {} for the hash of its texts."""
        texts = train()
        path = folder / name.format(_digest(texts.fingerprint))
        report = progress or (lambda what, done, total: None)
        if damage := _describe_damaged_tokenizer(path):
            report(f"{damage}; the tokenizer is trained again", 0, 0)
            path.unlink()
        if not path.exists():
            report("train the tokenizer", 0, 1)
            partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
            train_on(texts_without_names(texts), partial)
            write_json(_checksum_file(path), {"sha256": file_checksum(partial)})  # before: no tokenizer is without it
            partial.replace(path)
            report("train the tokenizer", 1, 1)
            trained = load(path)
            if trained.vocab_size < tokenizer.vocab_size:
                line = f"the vocabulary has {trained.vocab_size:,} entries instead of {tokenizer.vocab_size:,}"
                report(f"{line}: the text has no more pieces", 0, 0)
        return load(path)

    return import_by_name(tokenizer.made_by)(tokenizer, train_once)


def _checksum_file(path: Path) -> Path:
    """Returns the path of the file with the checksum of a trained tokenizer."""
    return path.with_name(f"{path.name}.checksum")


def _describe_damaged_tokenizer(path: Path) -> str:
    """Describes in a few words that the file of a trained tokenizer is not as it was written. '' for an intact one, for
    none, and for one of an earlier version, which has no checksum.
    """
    if not path.exists():
        return ""
    try:
        known = read_json(_checksum_file(path))
    except DamagedError as error:
        return str(error).partition(", allowed")[0]
    is_intact = known is None or known["sha256"] == file_checksum(path)
    return "" if is_intact else f"{path}: damaged (it is not what memjax wrote)"


def vocab_size_from_settings(data: configs.Data) -> int:
    """Returns the size of the vocabulary that follows from the settings without the data, 0 for vectors. It is an error
    if only the data tells it.

    Raises:
      ValueError: The size is only known from the data.
    """
    source, tokenizer, size = data.source, data.tokenizer, None
    match source.content_types[0], tokenizer:
        case "tokens", _:
            return make_datasets(data).vocab_size
        case "vectors", _:
            return 0
        case "seqio", _:
            tokenizer = source
        case _, configs.SentencePiece(model=""):
            size = tokenizer.vocab_size
        case _, configs.Bytes() | configs.SentencePiece():
            size = make_tokenizer(tokenizer, lambda: None, Path()).vocab_size
    if size is None:
        kind = type(tokenizer).__name__
        raise ValueError(f"vocab-size: given none, allowed: a number of ids, since only the data of {kind} tells it")
    return size + (NUM_MARKS if source.content_types[0] == "dialogues" else 0)


def cache_folder(data: configs.Data) -> Path:
    """Returns the path of the folder of prepared data: that of `data.cache_dir`, the user's cache for 'default', or a
    temporary one for ''.
    """
    if data.cache_dir == "default":
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memjax" / "data"
    return Path(data.cache_dir).expanduser() if data.cache_dir else Path(_temporary_folder().name)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="memjax-data-")


def _report_reuse(file: TokenFile, began: float, split: str, compared: str, progress: Progress | None) -> None:
    """Reports, once per split, that it was prepared earlier, when, and which part of its source was compared."""
    is_reported = file.finished >= began or file.path in _reported_files  # what this process has prepared needs no line
    _reported_files.add(file.path)
    if progress is None or is_reported:
        return
    part = f" ({compared})" if compared else ""
    age = describe_age(time.time() - file.finished)
    progress(f"{split}: tokens prepared {age} ago, read from {file.path}{part}; --data.cache-dir '' uses none", 0, 0)


_reported_files: set[Path] = set()


def describe_age(seconds: float) -> str:
    """Describes a number of seconds as a short text, such as '5 s', '3 min', '2 h' or '2 days'.

    Example:
      >>> [describe_age(seconds) for seconds in (5, 200, 7_300, 200_000)]
      ['5 s', '3 min', '2 h', '2 days']
    """
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length * (2 if unit == "days" else 1):
            return f"{seconds // length:,.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _choose_tokenizer(data: configs.Data, tokenizer: Any, progress: Progress | None, train: Callable[[], Any]) -> Any:
    """Returns `tokenizer`, or the tokenizer of the settings if it is None."""
    return tokenizer or make_tokenizer(data.tokenizer, train, cache_folder(data), progress=progress)


def _open_texts(
    data: configs.Data, read: ReadSplit, tokenizer_of: MakeTokenizer, progress: Progress | None
) -> Datasets:
    """Opens texts through token files. Source code is annotated with the distances between its identifiers."""
    source: Any = data.source
    folder, tokenizer = cache_folder(data), tokenizer_of(lambda: read("train"))
    annotators = {ANNOTATION: identifier_distances} if source.is_code and tokenizer.lossless else {}

    def documents(split: str) -> Documents:
        chosen, began = read(split), time.time()
        parts = (chosen.fingerprint, tokenizer.fingerprint, str(data.min_document_length), *annotators)
        name = _digest(*parts, *_skip_key(source))
        file = write_token_file(
            folder / f"{saved_type(type(source)).replace(':', '.')}-{split}-{name}",
            chosen,
            tokenizer,
            min_tokens=data.min_document_length,
            annotators=annotators,
            progress=progress,
            rules=ReadingRules(skip=source.skip),
        )
        _report_reuse(file, began, split, chosen.compared, progress)
        return file

    num_words = functools.cache(lambda split: sum(map(count_words, read(split))))
    counted = {"words_in_split": num_words} if data.source.counts_words and tokenizer.lossless else {}
    return Datasets(documents, tokenizer, *_ids(tokenizer), **counted)


def _open_tokens(
    data: configs.Data, read: ReadSplit, tokenizer_of: MakeTokenizer, progress: Progress | None
) -> Datasets:
    """Opens documents of tokens that are not made from text."""
    del tokenizer_of, progress
    # Of images the class knows, so that a model of images draws without any; the others are made, not read.
    example = ImageDocuments if data.source.is_images else read("train")
    return Datasets(read, None, example.vocab_size, example.begin_id)


def _open_dialogues(
    data: configs.Data, read: ReadSplit, tokenizer_of: MakeTokenizer, progress: Progress | None
) -> Datasets:
    """Opens dialogues about documents."""
    del progress
    source: Any = data.source
    tokenizer = TokenizerWithDialogueMarks(tokenizer_of(lambda: dialogue_texts(read("train"))).base)

    def documents(split: str) -> DialogueDocuments:
        return DialogueDocuments(
            read(split),
            tokenizer,
            layout=source.document,
            segment_length=data.segment_length,
            document_length=source.document_length,
            max_utterance_length=source.max_utterance_length,
        )

    return Datasets(documents, tokenizer, *_ids(tokenizer))


def _open_pairs(
    data: configs.Data, read: ReadSplit, tokenizer_of: MakeTokenizer, progress: Progress | None
) -> Datasets:
    """Opens pairs of sentences in two languages, each language through token files."""
    source: Any = data.source
    folder, tokenizer = cache_folder(data), tokenizer_of(lambda: BilingualTexts(*read("train")))
    ending = TokenizerWithEndToken(tokenizer)

    def documents(split: str) -> SentencePairs:
        def write(texts: Any) -> Documents:
            kind = saved_type(type(source)).replace(":", ".")
            path = folder / f"{kind}-{split}-{_digest(texts.fingerprint, ending.fingerprint)}"
            began = time.time()
            file = write_token_file(path, texts, ending, progress=progress)
            _report_reuse(file, began, split, texts.compared, progress)
            return file

        source_file, target_file = map(write, read(split))
        return SentencePairs(source_file, target_file, source.max_length)

    return Datasets(documents, tokenizer, *_ids(tokenizer))


def _open_seqio(
    data: configs.Data, read: ReadSplit, tokenizer_of: MakeTokenizer, progress: Progress | None
) -> Datasets:
    """Opens a seqio Task, which has its own tokenizer, through token files."""
    del read, tokenizer_of
    source: Any = data.source
    shortest = data.min_document_length
    if source.data_dir:
        register_tasks([source.name], data_dir=source.data_dir)
    tokenizer = seqio_tokenizer(source.name, feature=source.feature)

    def documents(split: str) -> Documents:
        began, chosen = time.time(), {"split": split, "feature": source.feature}
        content, compared = seqio_content(source.name, **chosen)
        parts = (source.name, source.feature, tokenizer.fingerprint, str(shortest), source.data_dir, content)
        name = _digest(*parts, *_skip_key(source))
        path = cache_folder(data) / f"SeqioTask-{split}-{name}"
        options = {"content": content, "min_tokens": shortest, "progress": progress}
        options["rules"] = ReadingRules(skip=source.skip)
        file = seqio_documents(source.name, path, **chosen, **options)
        _report_reuse(file, began, split, compared, progress)
        return file

    return Datasets(documents, tokenizer, *_ids(tokenizer))


def _ids(tokenizer: Any) -> tuple[int, int]:
    """Returns the vocabulary size and the begin id of a tokenizer."""
    return tokenizer.vocab_size, tokenizer.begin_id


def _skip_key(source: Any) -> tuple[str, ...]:
    """Returns the part of a token file's name that depends on which documents may be skipped. () for the default."""
    return () if source.skip == "few" else (f"skip {source.skip}",)


def _digest(*parts: str) -> str:
    """Returns 12 hexadecimal digits of the SHA-256 of texts, as part of a file name."""
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:12]
