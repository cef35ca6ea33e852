"""Documents and tokenizer of a configuration, prepared once and kept in the user's cache folder.

`memjax data` prepares by hand what `memjax train` prepares by itself: a tokenizer trained on the training split and one
token file per split. An interrupted preparation goes on where it was.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memjax import config as configs
from memjax.data import sources
from memjax.data.byte_pairs import BytePairTokenizer, train_byte_pairs
from memjax.data.dialogue import NUM_MARKS, Dialogues, MarkingTokenizer, cmu_dog, dialogue_texts
from memjax.data.documents import Documents, half_of
from memjax.data.events import MarkedEvents
from memjax.data.facts import FactTable
from memjax.data.glue import GLUE, glue_texts, tfds_glue_texts
from memjax.data.identifiers import ANNOTATION, identifier_distances
from memjax.data.images import ImageDocuments, mnist
from memjax.data.instructions import (
    Instruction,
    lines_of_instructions,
    select_instructions,
    seqio_instructions,
    sst_instructions,
    toy_instructions,
    wikisql_instructions,
    woz_instructions,
)
from memjax.data.python_sources import python_sources
from memjax.data.qa_srl import qa_srl_questions
from memjax.data.quac import quac_questions, tfds_quac_questions
from memjax.data.questions import QuestionSplit, select_questions
from memjax.data.relation_pairs import cached_pairs, relation_pairs
from memjax.data.relation_sentences import RelationSplits, made_relations, relation_files, tacred_sentences
from memjax.data.seqio import register_tasks, seqio_documents, seqio_tokenizer
from memjax.data.sorting import Sorting
from memjax.data.sources import SPLITS, only_texts
from memjax.data.squad import squad_questions, tfds_squad_questions
from memjax.data.synthetic import KeyValueRecall
from memjax.data.templates import template_dialogues, template_questions, template_texts
from memjax.data.text_classes import (
    CL_BENCHMARK,
    CLASSES,
    TEXT_SETS,
    cl_benchmark_texts,
    class_texts,
    labelled_texts,
    seqio_class_texts,
    tfds_class_texts,
)
from memjax.data.text_splits import TextSplits
from memjax.data.tfds import tfds_texts
from memjax.data.token_files import Progress, write_token_file
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
    number_words,
    parallel_texts,
    random_letters,
)
from memjax.data.trivia_qa import tfds_trivia_qa_questions, trivia_qa_questions
from memjax.data.vectors import blobs, cached_features, digits, permuted_bags
from memjax.data.word_vectors import read_word_vectors
from memjax.data.wordpiece import WordPieceTokenizer

__all__ = [
    "Datasets",
    "class_names",
    "classified_texts",
    "make_datasets",
    "make_examples",
    "make_tokenizer",
    "open_source",
    "prepare",
    "relation_splits",
    "source_notes",
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


CLASS_QUESTION = "Which class is this text of?"
"""asked of a text with a class, where the answer is written"""

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
) -> Datasets:
    """Examples of a task, and the tokenizer that the texts to train on need.

    Args:
      data: the configuration.
      wanted: what the task asks of the source: 'labelled' texts, or 'questions'.
      texts_of: the texts of what the reader gives as one entry.
      question: from the entries of a split and the tokenizer to the task's examples, or what they are made of.
      tokenizer: as in `make_datasets`, like `progress`.
      progress: told what is prepared.
    """
    if data.half:
        raise ValueError(f"data.half: given {data.half!r}, allowed: '' for {wanted} examples (documents have halves)")
    read = functools.cache(functools.partial(open_source, data, wanted=wanted))

    def texts() -> sources.Texts:
        lines = [text for entry in read("train") for text in texts_of(entry)]
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


def open_source(data: configs.Data, split: str, *, wanted: str = "") -> Any:
    """One split of a source, as its reader gives it.

    Args:
      data: whose source it is; WikiText is read as articles where its protocol is 'separate', or where a half of them
        is trained on, else as one text.
      split: 'train', 'validation' or 'test'.
      wanted: which of them, where a source gives several kinds.

    Returns:
      Texts in random order of access (or pairs of name and text, for some of TFDS), documents of tokens, dialogues,
      the texts of two languages, labelled texts, questions, or vectors, as `source.gives` says.
    """
    source, part = data.source, SPLITS.index(split)
    if wanted == "instructions":
        return instructions_of(data, split)
    held_out = lambda count, share=8: count if split == "train" else max(count // share, 1)
    match source:
        case configs.PythonLibrary():
            return python_sources(split)
        case configs.TextFiles():
            return sources.text_files(source.path, split=split, **_shares(source))
        case configs.Directories():
            listed = {"pattern": source.pattern, "order_file": source.order_file}
            return sources.directories(source.path, split=split, **listed, **_shares(source))
        case configs.JsonLines():
            return sources.json_lines(source.path, field=source.field, split=split, **_shares(source))
        case configs.Enwik8():
            return sources.enwik8(source.path, split=split)
        case configs.WikiText():
            halved = bool(data.half) and split == "train"
            return sources.wikitext(source.path, split=split, articles=data.protocol == "separate" or halved)
        case configs.Novels():
            return sources.novels(source.path, split=split)
        case configs.TfdsBuilder():
            return tfds_texts(source.name, split=split, field=source.field, data_dir=source.data_dir or None)
        case configs.KeyValueRecall():
            # Held-out documents score answers from afar only, so that their accuracy is that of the memory.
            fields: Any = dataclasses.asdict(source) | {"num_documents": held_out(source.num_documents)}
            return KeyValueRecall(seed=part, score_practice=split == "train", **fields)
        case configs.FactTable():
            return FactTable(
                seed=part, **dataclasses.asdict(source) | {"num_documents": held_out(source.num_documents)}
            )
        case configs.Sorting():
            sizes = {"length": source.length, "num_symbols": source.num_symbols}
            return Sorting(held_out(source.num_documents, 10), seed=part, **sizes)
        case configs.MarkedEvents():
            fields = dataclasses.asdict(source) | {"num_documents": held_out(source.num_documents)}
            return MarkedEvents(seed=part, **fields)
        case configs.Mnist():
            return mnist(source.path, split)
        case configs.CmuDog():
            return cmu_dog(source.path, split)
        case configs.TemplateDialogues():
            return template_dialogues(held_out(source.num_dialogues), seed=part)
        case configs.ParallelText():
            stem, languages = getattr(source, split), (source.source_language, source.target_language)
            return tuple(parallel_texts(source.path, stem, language) for language in languages)
        case configs.NumberWords():
            return tuple(number_words(held_out(source.num_documents), split, language) for language in ("en", "de"))
        case configs.CopiedLetters():
            texts = random_letters(held_out(source.num_documents), source.length, source.num_letters, split)
            return texts, texts
        case configs.TfdsTranslation():
            read = functools.partial(tfds_texts, source.name, split=split, data_dir=source.data_dir or None)
            return read(field=source.source_language), read(field=source.target_language)
        case configs.Glue() if source.path:
            return glue_texts(source.name, source.path, split=split, **_shares(source))
        case configs.Glue():
            return tfds_glue_texts(source.name, split=split, data_dir=source.data_dir)
        case configs.ClassifiedTexts():
            return classified_texts(source).texts[split]
        case configs.Relations(relations=relations) if wanted == "labelled":
            return relation_pairs(relation_splits(source).of(relations), split, known=source.known)
        case configs.Relations(relations=relations):
            return relation_splits(source).of(relations).sentences[split]
        case configs.CachedPairs(relations=relations):
            return cached_pairs(source.path, split, relations=relations, known=source.known)
        case configs.AskedTexts():
            count = getattr(source, f"num_{split}")
            return select_questions(asked_questions(source, split).questions, count, seed=source.sampling_seed)
        case configs.Templates():
            make = template_questions if wanted == "questions" else template_texts
            return make(held_out(source.num_examples), seed=part)
        case configs.Digits(num_train=train, num_test=test):
            count = train if split == "train" else test
            return digits(source.path, split, classes=source.classes, permutation=source.permutation, count=count)
        case configs.Blobs() | configs.PermutedBags():
            fields = dataclasses.asdict(source)
            sizes = {name: fields.pop(name) for name in ("num_train", "num_test", "mask_classes")}
            count = sizes["num_train" if split == "train" else "num_test"]
            return (blobs if isinstance(source, configs.Blobs) else permuted_bags)(split, count, **fields)
        case configs.CachedFeatures(train=train, test=test):
            count = train if split == "train" else test
            return cached_features(source.path, split, classes=source.classes, count=count, seed=source.seed)
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source with a reader")


def instructions_of(data: configs.Data, split: str) -> list[Instruction]:
    """One split of a source as contexts with questions and answers.

    Raises:
      ValueError: a source without such, labelled texts whose classes have no names, or what its reader refuses.
    """
    source: Any = data.source
    readers = {
        configs.Sst: sst_instructions,
        configs.Woz: woz_instructions,
        configs.WikiSql: wikisql_instructions,
        configs.InstructionLines: lines_of_instructions,
    }
    match source:
        case configs.Sst() | configs.Woz() | configs.WikiSql() | configs.InstructionLines():
            read = readers[type(source)](source.path, split)
            return select_instructions(read, getattr(source, f"num_{split}"), seed=source.sampling_seed)
        case configs.ToyInstructions():
            return toy_instructions(split, **dataclasses.asdict(source))
        case configs.SeqioInstructions(name=name):
            return seqio_instructions(name, split)
        case configs.AskedTexts():
            asked = open_source(data, split)
            return [Instruction(one.context, one.question, tuple(text for text, _ in one.answers)) for one in asked]
    names = class_names(source)
    if not names or "labelled" not in source.gives:
        allowed = "a source of instructions, of questions, or of texts whose classes have names"
        raise ValueError(f"data.source: given {type(source).__name__}, allowed: {allowed}")
    labelled = open_source(data, split, wanted="labelled")
    text = lambda one: " ".join(part for part in one.texts if part)
    return [Instruction(text(one), CLASS_QUESTION, (names[one.label],)) for one in labelled]


def class_names(source: configs.Source) -> dict[int, str]:
    """Number -> name of the classes of labelled texts; {} where they are numbers, or not known before they are read."""
    match source:
        case configs.Glue(name=name):
            return dict(enumerate(GLUE[name].classes))
        case configs.TextClasses(data_set=name):
            return {number: CLASSES[number] for number in TEXT_SETS[name]}
        case configs.CLBenchmark(task=name):
            return {number: CLASSES[number] for number in CL_BENCHMARK[name][1]}
        case configs.SeqioClasses(classes=classes, first_class=first):
            return dict(enumerate(classes, start=first))
        case configs.LabelledFile(classes=classes, numbers=numbers):
            return dict(zip(numbers, classes, strict=True))
        case configs.Relations() | configs.CachedPairs():
            return {0: "another relation", 1: "this relation"}
    return {}


def classified_texts(source: configs.Source) -> TextSplits:
    """All splits of a source of texts with classes that do not depend on the order, and what was left out.

    Raises:
      ValueError: another source, or what its reader refuses.
    """
    if not isinstance(source, configs.ClassifiedTexts):
        raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source of texts with classes")
    names = ("text", "num_train", "num_validation", "num_test", "sampling")
    how: Any = {name: getattr(source, name) for name in names} | _shares(source) | {"seed": source.sampling_seed}
    match source:
        case configs.TextClasses(data_set=name, path=path):
            files = {"train_files": source.train, "test_files": source.test, "class_order": source.class_order}
            return class_texts(name, path, **files, **how)
        case configs.CLBenchmark(task=name, path=path):
            return cl_benchmark_texts(name, path, **how)
        case configs.TfdsClasses(name=name, title_feature=title, text_feature=body, label_feature=label):
            where = {"first_class": source.first_class, "data_dir": source.data_dir}
            return tfds_class_texts(name, title=title, body=body, label=label, **where, **how)
        case configs.SeqioClasses(name=name, classes=classes):
            return seqio_class_texts(name, classes=classes, first_class=source.first_class, **how)
        case configs.LabelledFile(path=path, classes=classes, numbers=numbers):
            return labelled_texts(path, dict(zip(classes, numbers, strict=True)), **how)
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source with a reader")


def relation_splits(source: configs.Source) -> RelationSplits:
    """All splits of a source of sentences with relations, of all relations, and what was left out.

    Raises:
      ValueError: another source, or what its reader refuses.
    """
    match source:
        case configs.RelationFiles(path=path):
            if not path:
                raise ValueError(f"data.source.path: given '', allowed: the folder of {source.names}")
            shares = {f"{name}_share": share for name, share in _shares(source).items()}
            files = {name: getattr(source, name) for name in ("names", "train", "test", "entities")}
            return relation_files(path, **files, **shares)
        case configs.Tacred(path=path):
            return tacred_sentences(path, num_candidates=source.num_candidates, seed=source.seed)
        case configs.MadeRelations():
            names = ("num_relations", "num_train", "num_candidates", "seed")
            return made_relations(**{name: getattr(source, name) for name in names})
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source of sentences with relations")


def asked_questions(source: configs.AskedTexts, split: str) -> QuestionSplit:
    """All questions of a split, and what was left out.

    Raises:
      ValueError: what its reader refuses.
    """
    path, where = source.path, source.data_dir
    here: dict[str, Any] = {"split": split, **_shares(source)}
    match source:
        case configs.Squad():
            articles = {"part": source.part, "parts": source.parts}
            if path:
                return squad_questions(path, **articles, **here)
            return tfds_squad_questions(split=split, data_dir=where, **articles)
        case configs.TriviaQa(pages=pages, max_words=most):
            if path:
                return trivia_qa_questions(path, pages=pages, max_words=most, **here)
            return tfds_trivia_qa_questions(split=split, data_dir=where, pages=pages, max_words=most)
        case configs.Quac():
            return quac_questions(path, **here) if path else tfds_quac_questions(split=split, data_dir=where)
        case configs.QaSrl(domain=domain):
            return qa_srl_questions(path, domain=domain, split=split, validation=here["validation"])
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source with a reader")


def source_notes(source: configs.Source) -> list[str]:
    """Lines about what was left out of a source."""
    match source:
        case configs.ClassifiedTexts():
            return classified_texts(source).notes()
        case configs.Relations(relations=()):
            return relation_splits(source).notes()
        case configs.TriviaQa() | configs.Quac() | configs.QaSrl():
            return [line for split in SPLITS for line in asked_questions(source, split).notes(split)]
    return []


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
    """Where prepared data lies."""
    if data.cache_dir:
        return Path(data.cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memjax" / "data"


def _tokenizer_of(data: configs.Data, given: Any, progress: Progress | None, train: Callable[[], Any]) -> Any:
    """The tokenizer that is given, else that of the configuration."""
    return given or make_tokenizer(data.tokenizer, train, cache_folder(data), progress=progress)


def _texts(data: configs.Data, read: Read, tokenizer_of: TokenizerOf, progress: Progress | None) -> Datasets:
    """Texts in token files, code with the distances of its identifiers."""
    folder, tokenizer = cache_folder(data), tokenizer_of(lambda: read("train"))
    annotators = {ANNOTATION: identifier_distances} if data.source.is_code and tokenizer.lossless else {}

    def documents(split: str) -> Documents:
        chosen = read(split)
        name = _digest(chosen.fingerprint, tokenizer.fingerprint, str(data.min_document_length), *annotators)
        return write_token_file(
            folder / f"{type(data.source).__name__}-{split}-{name}",
            chosen,
            tokenizer,
            min_tokens=data.min_document_length,
            annotators=annotators,
            progress=progress,
        )

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
            return write_token_file(path, texts, ending, progress=progress)

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
    name = _digest(source.name, source.feature, tokenizer.fingerprint, str(shortest), source.data_dir)

    def documents(split: str) -> Documents:
        path, chosen = cache_folder(data) / f"SeqioTask-{split}-{name}", {"split": split, "feature": source.feature}
        return seqio_documents(source.name, path, min_tokens=shortest, progress=progress, **chosen)

    return Datasets(documents, tokenizer, *_ids(tokenizer))


def _ids(tokenizer: Any) -> tuple[int, int]:
    return tokenizer.vocab_size, tokenizer.begin_id


def _shares(source: Any) -> dict[str, Any]:
    return {"validation": source.validation_percent / 100, "test": source.test_percent / 100}


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:12]
