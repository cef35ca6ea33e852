"""Documents and tokenizer of a configuration, prepared once and kept in the user's cache folder.

`memjax data` prepares by hand what `memjax train` prepares by itself: a tokenizer trained on the training split and one
token file per split. An interrupted preparation goes on where it was.
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
from memjax.data import sources
from memjax.data.byte_pairs import BytePairTokenizer, train_byte_pairs
from memjax.data.dialogue import NUM_MARKS, Dialogues, MarkingTokenizer, dialogue_texts
from memjax.data.documents import Documents, half_of
from memjax.data.identifiers import ANNOTATION, identifier_distances
from memjax.data.images import ImageDocuments
from memjax.data.readers import open_source
from memjax.data.seqio import register_tasks, seqio_content, seqio_documents, seqio_tokenizer
from memjax.data.sources import SPLITS, only_texts
from memjax.data.token_files import Progress, TokenFile, write_token_file
from memjax.data.tokenizers import (
    ByteTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
    count_words,
    train_sentencepiece,
)
from memjax.data.translation import (
    BothSides,
    EndingTokenizer,
    SentencePairs,
)
from memjax.data.word_vectors import read_word_vectors
from memjax.data.wordpiece import WordPieceTokenizer
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
    """What a run reads.

    Attributes:
      documents: split -> its documents; prepares the split where that has not been done.
      tokenizer: text to tokens and back; None where documents never were text.
      vocab_size: ids of the tokenizer.
      begin_token: id read before a document's first token.
      num_words: split -> words of its text, where its corpus is counted in words and the tokens keep all of the text.
    """

    documents: Callable[[str], Any]
    tokenizer: Any
    vocab_size: int
    begin_token: int
    num_words: Callable[[str], int] | None = None

    def for_encoder(self, num_prompts: int = 0) -> Datasets:
        """The same for a text encoder, whose tokenizer frames texts; with ids of prompts behind its own."""
        own = self.tokenizer.for_encoder()
        size = own.vocab_size + num_prompts
        return dataclasses.replace(self, tokenizer=own, vocab_size=size, begin_token=own.begin_id)


Read = Callable[[str], Any]
"""Split -> what the reader of a source gives for it, kept."""
TokenizerOf = Callable[[Callable[[], Any]], Any]
"""What opens the texts to train on -> the tokenizer"""


def make_datasets(data: configs.Data, *, tokenizer: Any = None, progress: Progress | None = None) -> Datasets:
    """The documents and the tokenizer that a configuration describes; with a tokenizer given, nothing is read yet.

    Args:
      data: the configuration.
      tokenizer: instead of the one that the configuration describes, such as that of a run.
      progress: told what is prepared, how much is done, and of how much.

    Raises:
      ValueError: a source without documents, a path that is missing or empty, text that is not UTF-8, a document
        without tokens, a split without documents.
    """
    makers = {"texts": _texts, "tokens": _tokens, "seqio": _seqio, "dialogues": _dialogues, "pairs": _pairs}
    wanted = data.source.gives[0]
    if wanted not in makers:
        raise ValueError(f"data.source: given {type(data.source).__name__}, allowed: a source of documents")
    read = functools.cache(functools.partial(open_source, data))
    found = makers[wanted](data, read, functools.partial(_tokenizer_of, data, tokenizer, progress), progress)
    if not data.half:
        return found
    half = lambda split: half_of(found.documents(split), data.half) if split == "train" else found.documents(split)
    return dataclasses.replace(found, documents=half, num_words=None)  # words are counted in whole splits


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
    """Examples of a task, and the tokenizer that the texts to train on need.

    Args:
      data: the configuration.
      wanted: what the task asks of the source: 'labelled' texts, or 'questions'.
      texts_of: the texts of what the reader gives as one entry.
      question: from the entries of a split and the tokenizer to the task's examples, or what they are made of.
      tokenizer: as in `make_datasets`, like `progress`.
      progress: told what is prepared.
      vocabulary: Configurations of the data whose texts a new tokenizer is trained on. Empty for `data` alone.
    """
    if data.half:
        raise ValueError(f"data.half: given {data.half!r}, allowed: '' for {wanted} examples (documents have halves)")
    read = functools.cache(functools.partial(open_source, data, wanted=wanted))

    def texts() -> sources.Texts:
        parts = [open_source(part, "train", wanted=wanted) for part in vocabulary] or [read("train")]
        lines = [text for entries in parts for entry in entries for text in texts_of(entry)]
        return sources.Texts.from_mapping({str(number): line for number, line in enumerate(lines)})

    found = _tokenizer_of(data, tokenizer, progress, texts)
    return Datasets(lambda split: question(read(split), found), found, *_ids(found))


def prepare(data: configs.Data, *, progress: Progress | None = None) -> dict[str, dict[str, int]]:
    """Makes everything that a run with this configuration reads: the tokenizer and the token file of each split.

    What is there already is opened, what was interrupted goes on.

    Args:
      data: the configuration.
      progress: told what is prepared, how much is done, and of how much.

    Returns:
      Split -> number of documents, tokens, bytes, and documents left out because they are too short.

    Raises:
      ValueError: see `make_datasets`.
    """
    datasets = make_datasets(data, progress=progress)
    return {split: _count(datasets.documents(split)) for split in SPLITS}


def _count(documents: Documents) -> dict[str, int]:
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
    """The tokenizer of a configuration; one that has to be trained is trained once per training split.

    Args:
      tokenizer: its settings.
      train: opens the texts to train on; asked only where one has to be trained.
      folder: where those that were trained lie.
      progress: told that one is trained.
    """
    match tokenizer:
        case configs.Bytes():
            return ByteTokenizer()
        case configs.SentencePiece(model=given, vocab_size=size):
            load, name = SentencePieceTokenizer, f"sentencepiece-{size}-{{}}.model"
            train_on = functools.partial(train_sentencepiece, vocab_size=size)
        case configs.BytePairs(path=given, vocab_size=size):
            load, name = BytePairTokenizer, f"byte-pairs-{size}-{{}}.json"
            train_on = functools.partial(train_byte_pairs, vocab_size=size)
        case configs.VectorWords(path=path, num_words=number):
            return WordTokenizer(read_word_vectors(path, num_words=number).words)
        case configs.Words():
            given, load, name = "", WordTokenizer.load, "words-{}.json"
            train_on = lambda texts, path: WordTokenizer.train(texts).save(path)
        case configs.WordPiece(vocab=given, vocab_size=size, lowercase=lowercase):
            load = functools.partial(WordPieceTokenizer, lowercase=lowercase)
            name = f"wordpiece-{size}-{'uncased' if lowercase else 'cased'}-{{}}.json"
            options = {"vocab_size": size, "lowercase": lowercase}
            train_on = lambda texts, path: WordPieceTokenizer.train(texts, **options).save(path)
        case _:
            kind = type(tokenizer).__name__
            raise ValueError(f"data.tokenizer: given {kind}, allowed: one of memjax.config.TokenizerKind")
    if given:
        return load(given)
    texts = train()
    path = folder / name.format(_digest(texts.fingerprint))
    if not path.exists():
        report = progress or (lambda what, done, total: None)
        report("train the tokenizer", 0, 1)
        train_on(only_texts(texts), path)
        report("train the tokenizer", 1, 1)
        trained = load(path)
        if trained.vocab_size < (getattr(tokenizer, "vocab_size", None) or 0):
            wanted = tokenizer.vocab_size  # type: ignore[union-attr]
            line = f"the vocabulary has {trained.vocab_size:,} entries instead of {wanted:,}"
            report(f"{line}: the text has no more pieces", 0, 0)
    return load(path)


def vocab_size_of(data: configs.Data) -> int:
    """The size of the vocabulary, as far as a configuration tells it without its data.

    Raises:
      ValueError: only the data tells.
    """
    source, tokenizer, size = data.source, data.tokenizer, None
    match source.gives[0], tokenizer:
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
    return size + (NUM_MARKS if source.gives[0] == "dialogues" else 0)


def cache_folder(data: configs.Data) -> Path:
    """The folder of prepared data: that of the settings, the user's cache, or one that goes with this process."""
    if data.cache_dir == "default":
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memjax" / "data"
    return Path(data.cache_dir).expanduser() if data.cache_dir else Path(_temporary_folder().name)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="memjax-data-")


def _tell_reuse(file: TokenFile, began: float, split: str, compared: str, progress: Progress | None) -> None:
    """Says once that a split was prepared before, when, and how much of its source was compared."""
    is_told = file.finished >= began or file.path in _told  # what this process has prepared needs no line
    _told.add(file.path)
    if progress is None or is_told:
        return
    part = f" ({compared})" if compared else ""
    age = describe_age(time.time() - file.finished)
    progress(f"{split}: tokens prepared {age} ago, read from {file.path}{part}; --data.cache-dir '' uses none", 0, 0)


_told: set[Path] = set()


def describe_age(seconds: float) -> str:
    """A time span in words.

    Example:
      >>> [describe_age(seconds) for seconds in (5, 200, 7_300, 200_000)]
      ['5 s', '3 min', '2 h', '2 days']
    """
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length * (2 if unit == "days" else 1):
            return f"{seconds // length:,.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _tokenizer_of(data: configs.Data, given: Any, progress: Progress | None, train: Callable[[], Any]) -> Any:
    """The tokenizer that is given, else that of the configuration."""
    return given or make_tokenizer(data.tokenizer, train, cache_folder(data), progress=progress)


def _texts(data: configs.Data, read: Read, tokenizer_of: TokenizerOf, progress: Progress | None) -> Datasets:
    """Texts in token files, code with the distances of its identifiers."""
    source: Any = data.source
    folder, tokenizer = cache_folder(data), tokenizer_of(lambda: read("train"))
    annotators = {ANNOTATION: identifier_distances} if source.is_code and tokenizer.lossless else {}

    def documents(split: str) -> Documents:
        chosen, began = read(split), time.time()
        parts = (chosen.fingerprint, tokenizer.fingerprint, str(data.min_document_length), *annotators)
        name = _digest(*parts, *_skip_key(source))
        file = write_token_file(
            folder / f"{type(source).__name__}-{split}-{name}",
            chosen,
            tokenizer,
            min_tokens=data.min_document_length,
            annotators=annotators,
            progress=progress,
            rules=ReadingRules(skip=source.skip),
        )
        _tell_reuse(file, began, split, chosen.compared, progress)
        return file

    num_words = functools.cache(lambda split: sum(map(count_words, read(split))))
    counted = {"num_words": num_words} if data.source.counts_words and tokenizer.lossless else {}
    return Datasets(documents, tokenizer, *_ids(tokenizer), **counted)


def _tokens(data: configs.Data, read: Read, tokenizer_of: TokenizerOf, progress: Progress | None) -> Datasets:
    """Documents that never were text."""
    del tokenizer_of, progress
    # Of images the class knows, so that a model of images draws without any; the others are made, not read.
    example = ImageDocuments if isinstance(data.source, configs.Mnist) else read("train")
    return Datasets(read, None, example.vocab_size, example.begin_id)


def _dialogues(data: configs.Data, read: Read, tokenizer_of: TokenizerOf, progress: Progress | None) -> Datasets:
    del progress
    source: Any = data.source
    tokenizer = MarkingTokenizer(tokenizer_of(lambda: dialogue_texts(read("train"))).base)

    def documents(split: str) -> Dialogues:
        return Dialogues(
            read(split),
            tokenizer,
            layout=source.document,
            segment_length=data.segment_length,
            document_length=source.document_length,
            max_utterance_length=source.max_utterance_length,
        )

    return Datasets(documents, tokenizer, *_ids(tokenizer))


def _pairs(data: configs.Data, read: Read, tokenizer_of: TokenizerOf, progress: Progress | None) -> Datasets:
    """The texts of two languages in token files, entry by entry."""
    source: Any = data.source
    folder, tokenizer = cache_folder(data), tokenizer_of(lambda: BothSides(*read("train")))
    ending = EndingTokenizer(tokenizer)

    def documents(split: str) -> SentencePairs:
        def write(texts: Any) -> Documents:
            path = folder / f"{type(source).__name__}-{split}-{_digest(texts.fingerprint, ending.fingerprint)}"
            began = time.time()
            file = write_token_file(path, texts, ending, progress=progress)
            _tell_reuse(file, began, split, texts.compared, progress)
            return file

        here, there = map(write, read(split))
        return SentencePairs(here, there, source.max_length)

    return Datasets(documents, tokenizer, *_ids(tokenizer))


def _seqio(data: configs.Data, read: Read, tokenizer_of: TokenizerOf, progress: Progress | None) -> Datasets:
    """Tokens of a seqio Task, which has a tokenizer of its own."""
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
        how = {"content": content, "min_tokens": shortest, "progress": progress}
        how["rules"] = ReadingRules(skip=source.skip)
        file = seqio_documents(source.name, path, **chosen, **how)
        _tell_reuse(file, began, split, compared, progress)
        return file

    return Datasets(documents, tokenizer, *_ids(tokenizer))


def _ids(tokenizer: Any) -> tuple[int, int]:
    return tokenizer.vocab_size, tokenizer.begin_id


def _skip_key(source: Any) -> tuple[str, ...]:
    """The part of the key of prepared tokens that says which documents may be left out; () for the default."""
    return () if source.skip == "few" else (f"skip {source.skip}",)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:12]
