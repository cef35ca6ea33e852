"""Documents and tokenizer of a configuration, prepared once and kept in the user's cache folder.

`memjax data` prepares by hand what `memjax train` prepares by itself: a tokenizer trained on the training split and one
token file per split. An interrupted preparation goes on where it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memjax import config as configs
from memjax.data import sources
from memjax.data.byte_pairs import BytePairTokenizer, train_byte_pairs
from memjax.data.classification import GLUE, LabelledTexts, glue_texts, tfds_glue_texts
from memjax.data.dialogue import NUM_MARKS, Dialogue, Dialogues, MarkingTokenizer, cmu_dog, dialogue_texts
from memjax.data.documents import Documents
from memjax.data.examples import Split
from memjax.data.identifiers import ANNOTATION, identifier_distances
from memjax.data.images import ImageDocuments, mnist
from memjax.data.masking import MaskedTexts
from memjax.data.python_sources import python_sources
from memjax.data.sorting import Sorting
from memjax.data.squad import QuestionWindows, squad_questions, tfds_squad_questions
from memjax.data.synthetic import KeyValueRecall
from memjax.data.templates import template_dialogues, template_questions, template_texts
from memjax.data.token_files import Progress, write_token_file
from memjax.data.tokenizers import ByteTokenizer, SentencePieceTokenizer, WordTokenizer, train_sentencepiece
from memjax.data.translation import BothSides, EndingTokenizer, SentencePairs, number_words, parallel_texts
from memjax.data.wordpiece import WordPieceTokenizer

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Datasets:
    """What a run reads.

    Attributes:
      documents: split -> its documents; prepares the split where that has not been done.
      tokenizer: text to tokens and back; None where documents never were text.
      vocab_size: ids of the tokenizer.
      begin_token: id read before a document's first token.
    """

    documents: Callable[[str], Any]
    tokenizer: Any
    vocab_size: int
    begin_token: int


def make_datasets(
    data: configs.Data, *, task: configs.Task | None = None, progress: Progress | None = None
) -> Datasets:
    """The documents and the tokenizer that a configuration describes.

    Args:
      data: the configuration.
      task: what is asked of the documents; None = every next token.
      progress: told what is prepared, how much is done, and of how much.

    Raises:
      ValueError: a path that is missing or empty, text that is not UTF-8, a document without tokens, a split without
        documents.
    """
    source = data.source
    if isinstance(source, configs.KeyValueRecall):
        return _recall(source)
    if isinstance(source, configs.Sorting):
        return _sorting(source)
    if isinstance(source, configs.Mnist):
        documents = lambda split: mnist(source.path, split)  # noqa: E731
        return Datasets(documents, None, ImageDocuments.vocab_size, ImageDocuments.begin_id)
    folder = cache_folder(data)
    if isinstance(source, configs.Glue | configs.Squad | configs.Templates):
        return _examples(data, task, folder, progress)
    if isinstance(source, configs.SeqioTask):
        return _seqio(source, data, folder, progress)
    if isinstance(source, configs.Dialogues):
        return _dialogues(source, data, folder, progress)
    if isinstance(source, configs.Translation):
        return _translation(source, data, folder, progress)
    texts = lambda split: open_texts(source, split, articles=data.protocol == "separate")  # noqa: E731
    train = texts("train")
    tokenizer = make_tokenizer(data.tokenizer, train, folder, progress=progress)
    is_code = isinstance(source, configs.PythonLibrary | configs.Directories)
    annotators = {ANNOTATION: identifier_distances} if is_code and tokenizer.lossless else {}

    def documents(split: str) -> Documents:
        chosen = train if split == "train" else texts(split)
        name = _digest(chosen.fingerprint, tokenizer.fingerprint, str(data.min_document_length), *annotators)
        return write_token_file(
            folder / f"{type(source).__name__}-{split}-{name}",
            chosen,
            tokenizer,
            min_tokens=data.min_document_length,
            annotators=annotators,
            progress=progress,
        )

    if isinstance(task, configs.MaskedLanguageModeling):
        return Datasets(_masked(data, task, documents, tokenizer), tokenizer, *_ids(tokenizer))
    return Datasets(documents, tokenizer, *_ids(tokenizer))


def prepare(
    data: configs.Data, *, task: configs.Task | None = None, progress: Progress | None = None
) -> dict[str, dict[str, int]]:
    """Makes everything that a run with this configuration reads: the tokenizer and the token file of each split.

    What is there already is opened, what was interrupted goes on.

    Args:
      data: the configuration.
      task: as in `make_datasets`.
      progress: told what is prepared, how much is done, and of how much.

    Returns:
      Split -> number of documents, tokens, bytes, and documents left out because they are too short.

    Raises:
      ValueError: see `make_datasets`.
    """
    datasets = make_datasets(data, task=task, progress=progress)
    return {split: _count(datasets.documents(split)) for split in SPLITS}


def _count(documents: Any) -> dict[str, int]:
    numbers = range(len(documents))
    return {
        "documents": len(documents),
        "tokens": sum(documents.num_tokens(i) for i in numbers),
        "bytes": sum(documents.num_bytes(i) for i in numbers),
        "skipped": documents.skipped,
    }


def open_texts(source: configs.Source, split: str, *, articles: bool = True) -> Any:
    """One split of a source of texts, in random order of access (or pairs of name and text, for some of TFDS).

    Args:
      source: where the texts are.
      split: 'train', 'validation' or 'test'.
      articles: WikiText as articles (protocol `separate`) instead of one text.
    """
    match source:
        case configs.PythonLibrary():
            return python_sources(split)
        case configs.TextFiles():
            return sources.text_files(source.path, split=split, **_shares(source))
        case configs.Directories():
            return sources.directories(
                source.path, pattern=source.pattern, order_file=source.order_file, split=split, **_shares(source)
            )
        case configs.JsonLines():
            return sources.json_lines(source.path, field=source.field, split=split, **_shares(source))
        case configs.Enwik8():
            return sources.enwik8(source.path, split=split)
        case configs.WikiText():
            return sources.wikitext(source.path, split=split, articles=articles)
        case configs.Novels():
            return sources.novels(source.path, split=split)
        case configs.TfdsBuilder():
            from memjax.data.tfds import tfds_texts

            return tfds_texts(source.name, split=split, field=source.field, data_dir=source.data_dir or None)
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source of texts")


def make_tokenizer(tokenizer: configs.Tokenizer, train: Any, folder: Path, *, progress: Progress | None = None) -> Any:
    """The tokenizer of a configuration; one that has to be trained is trained once per training split."""
    report = progress or (lambda what, done, total: None)
    match tokenizer:
        case configs.Bytes():
            return ByteTokenizer()
        case configs.SentencePiece(model=model) if model:
            return SentencePieceTokenizer(model)
        case configs.SentencePiece():
            path = folder / f"sentencepiece-{tokenizer.vocab_size}-{_digest(train.fingerprint)}.model"
            if path.exists():
                return SentencePieceTokenizer(path)
            report("train the tokenizer", 0, 1)
            trained = train_sentencepiece(_only_texts(train), path, vocab_size=tokenizer.vocab_size)
            report("train the tokenizer", 1, 1)
            return trained
        case configs.BytePairs(path=path) if path:
            return BytePairTokenizer(path)
        case configs.BytePairs():
            path = folder / f"byte-pairs-{tokenizer.vocab_size}-{_digest(train.fingerprint)}.json"
            if path.exists():
                return BytePairTokenizer(path)
            report("train the tokenizer", 0, 1)
            trained = train_byte_pairs(_only_texts(train), path, vocab_size=tokenizer.vocab_size)
            report("train the tokenizer", 1, 1)
            return trained
        case configs.Words():
            path = folder / f"words-{_digest(train.fingerprint)}.json"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_suffix(f".{os.getpid()}.partial")
                WordTokenizer.train(_only_texts(train)).save(partial)
                partial.replace(path)
            return WordTokenizer.load(path)
        case configs.WordPiece():
            return _wordpiece(tokenizer, train, folder)
    raise ValueError(f"data.tokenizer: given {type(tokenizer).__name__}, allowed: one of memjax.config.TokenizerKind")


def vocab_size_of(data: configs.Data) -> int:
    """The size of the vocabulary, as far as a configuration tells it without its data.

    Raises:
      ValueError: only the data tells.
    """
    source, tokenizer = data.source, data.tokenizer
    match source:
        case configs.KeyValueRecall() | configs.Sorting() | configs.Mnist():
            return make_datasets(data).vocab_size
        case configs.SeqioTask():
            size, kind = None, "SeqioTask"
        case _:
            size, kind = _trained_size(tokenizer), type(tokenizer).__name__
    if size is None:
        raise ValueError(f"vocab-size: given none, allowed: a number of ids, since only the data of {kind} tells it")
    return size + (NUM_MARKS if isinstance(source, configs.Dialogues) else 0)


def _trained_size(tokenizer: configs.Tokenizer) -> int | None:
    """The ids of a tokenizer, before it is trained where it has to be; None = only the data tells."""
    match tokenizer:
        case configs.SentencePiece(model=""):
            return tokenizer.vocab_size
        case configs.Bytes() | configs.SentencePiece():
            return make_tokenizer(tokenizer, None, Path()).vocab_size
    return None


def cache_folder(data: configs.Data) -> Path:
    """Where prepared data lies."""
    if data.cache_dir:
        return Path(data.cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memjax" / "data"


def _wordpiece(tokenizer: configs.WordPiece, train: Any, folder: Path) -> Any:
    if tokenizer.vocab:
        return WordPieceTokenizer(tokenizer.vocab, lowercase=tokenizer.lowercase)
    case = "uncased" if tokenizer.lowercase else "cased"
    path = folder / f"wordpiece-{tokenizer.vocab_size}-{case}-{_digest(train.fingerprint)}.json"
    if not path.exists():
        trained = WordPieceTokenizer.train(
            _only_texts(train), vocab_size=tokenizer.vocab_size, lowercase=tokenizer.lowercase
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        trained.save(partial)
        partial.replace(path)
    return WordPieceTokenizer(path)


def _masked(
    data: configs.Data, task: configs.MaskedLanguageModeling, documents: Callable[[str], Documents], tokenizer: Any
) -> Callable[[str], Split]:
    """Documents as frames of which tokens are hidden."""
    fields = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}

    def masked(split: str) -> MaskedTexts:
        # Evaluations of all runs ask for the same tokens; training for those of its seed.
        seed = {"seed": data.seed if split == "train" else 0}
        packed = data.protocol == "contiguous"
        return MaskedTexts(documents(split), tokenizer, length=data.segment_length, packed=packed, **fields, **seed)

    return masked


def _examples(data: configs.Data, task: configs.Task | None, folder: Path, progress: Progress | None) -> Datasets:
    """Labelled texts, or questions with their texts."""
    read = lambda split: _read_examples(data.source, task, split)
    train = read("train")
    if isinstance(task, configs.QuestionAnswering):
        lines = [text for question in train for text in (question.question, question.context)]
    else:
        lines = [text for example in train for text in example.texts]
    texts = sources.Texts.from_mapping({str(number): line for number, line in enumerate(lines)})
    tokenizer = make_tokenizer(data.tokenizer, texts, folder, progress=progress)

    def documents(split: str) -> Split:
        examples: Any = train if split == "train" else read(split)
        if isinstance(task, configs.QuestionAnswering):
            fields = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
            return QuestionWindows(examples, tokenizer, length=data.segment_length, **fields)
        assert isinstance(task, configs.Classification)
        metrics = GLUE[data.source.name].metrics if isinstance(data.source, configs.Glue) else ()
        length = data.segment_length
        return LabelledTexts(examples, tokenizer, length=length, num_classes=task.num_classes, metrics=metrics)

    return Datasets(documents, tokenizer, *_ids(tokenizer))


def _read_examples(source: configs.Source, task: configs.Task | None, split: str) -> Any:
    asks = isinstance(task, configs.QuestionAnswering)
    match source:
        case configs.Templates():
            number = source.num_examples if split == "train" else max(source.num_examples // 8, 1)
            return (template_questions if asks else template_texts)(number, seed=SPLITS.index(split))
        case configs.Glue() if not asks:
            if not source.path:
                return tfds_glue_texts(source.name, split=split, data_dir=source.data_dir)
            return glue_texts(source.name, source.path, split=split, **_shares(source))
        case configs.Squad() if asks:
            if not source.path:
                return tfds_squad_questions(split=split, data_dir=source.data_dir)
            return squad_questions(source.path, split=split, **_shares(source))
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source of the task's examples")


def _ids(tokenizer: Any) -> tuple[int, int]:
    return tokenizer.vocab_size, tokenizer.begin_id


def _recall(source: configs.KeyValueRecall) -> Datasets:
    fields = {f.name: getattr(source, f.name) for f in dataclasses.fields(source) if f.name != "num_documents"}

    def documents(split: str) -> KeyValueRecall:
        count = source.num_documents if split == "train" else max(source.num_documents // 8, 1)
        # Held-out documents score answers from afar only, so that their accuracy is that of the memory.
        return KeyValueRecall(count, seed=SPLITS.index(split), score_practice=split == "train", **fields)

    example = documents("train")
    return Datasets(documents, None, example.vocab_size, example.begin_id)


def _sorting(source: configs.Sorting) -> Datasets:
    def documents(split: str) -> Sorting:
        count = source.num_documents if split == "train" else max(source.num_documents // 10, 1)
        return Sorting(count, length=source.length, num_symbols=source.num_symbols, seed=SPLITS.index(split))

    return Datasets(documents, None, documents("train").vocab_size, Sorting.begin_id)


def open_dialogues(source: configs.Dialogues, split: str) -> list[Dialogue]:
    """The dialogues of a split, with the documents they are about."""
    match source:
        case configs.CmuDog():
            return cmu_dog(source.path, split)
        case configs.TemplateDialogues():
            number = source.num_dialogues if split == "train" else max(source.num_dialogues // 8, 1)
            return template_dialogues(number, seed=SPLITS.index(split))
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: CmuDog, TemplateDialogues")


def _dialogues(source: configs.Dialogues, data: configs.Data, folder: Path, progress: Progress | None) -> Datasets:
    train = open_dialogues(source, "train")
    tokenizer = MarkingTokenizer(make_tokenizer(data.tokenizer, dialogue_texts(train), folder, progress=progress))

    def documents(split: str) -> Dialogues:
        return Dialogues(
            train if split == "train" else open_dialogues(source, split),
            tokenizer,
            layout=source.document,
            segment_length=data.segment_length,
            document_length=source.document_length,
            max_utterance_length=source.max_utterance_length,
        )

    return Datasets(documents, tokenizer, tokenizer.vocab_size, tokenizer.begin_id)


def _translation(
    source: configs.TranslationKind, data: configs.Data, folder: Path, progress: Progress | None
) -> Datasets:
    train = open_sides(source, "train")
    tokenizer = make_tokenizer(data.tokenizer, BothSides(*train), folder, progress=progress)
    ending = EndingTokenizer(tokenizer)

    def documents(split: str) -> SentencePairs:
        def write(texts: Any) -> Documents:
            name = _digest(texts.fingerprint, ending.fingerprint)
            return write_token_file(
                folder / f"{type(source).__name__}-{split}-{name}", texts, ending, progress=progress
            )

        sources, targets = train if split == "train" else open_sides(source, split)
        return SentencePairs(write(sources), write(targets), source.max_length)

    return Datasets(documents, tokenizer, tokenizer.vocab_size, tokenizer.begin_id)


def open_sides(source: configs.TranslationKind, split: str) -> tuple[Any, Any]:
    """Texts to translate and their translations, entry by entry."""
    match source:
        case configs.ParallelText():
            read = lambda language: parallel_texts(source.path, getattr(source, split), language)
            return read(source.source_language), read(source.target_language)
        case configs.NumberWords():
            count = source.num_documents if split == "train" else max(source.num_documents // 8, 1)
            return number_words(count, split, "en"), number_words(count, split, "de")
    from memjax.data.tfds import tfds_texts

    read = lambda field: tfds_texts(source.name, split=split, field=field, data_dir=source.data_dir or None)
    return read(source.source_language), read(source.target_language)


def _seqio(source: configs.SeqioTask, data: configs.Data, folder: Path, progress: Progress | None) -> Datasets:
    from memjax.data.seqio import register_tasks, seqio_documents, seqio_tokenizer

    if source.data_dir:
        register_tasks([source.name], data_dir=source.data_dir)
    tokenizer = seqio_tokenizer(source.name, feature=source.feature)

    def documents(split: str) -> Documents:
        name = _digest(
            source.name, source.feature, tokenizer.fingerprint, str(data.min_document_length), source.data_dir
        )
        path = folder / f"SeqioTask-{split}-{name}"
        return seqio_documents(
            source.name,
            path,
            split=split,
            feature=source.feature,
            min_tokens=data.min_document_length,
            progress=progress,
        )

    return Datasets(documents, tokenizer, tokenizer.vocab_size, tokenizer.begin_id)


def _shares(source: Any) -> dict[str, float]:
    return {"validation": source.validation_percent / 100, "test": source.test_percent / 100}


def _only_texts(texts: Any) -> Any:
    """The texts of a source that may give pairs of name and text."""
    return (item[1] if isinstance(item, tuple) else item for item in texts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:12]
