"""Opens a split of any source in the settings with the reader for its kind."""

import dataclasses
import functools
from typing import Any

from memjax import config as configs
from memjax.data import sources
from memjax.data.dialogue import read_cmu_dog
from memjax.data.events import MarkedEventDocuments
from memjax.data.facts import FactTableDocuments
from memjax.data.glue import GLUE, glue_texts, tfds_glue_texts
from memjax.data.images import mnist
from memjax.data.instructions import (
    Instruction,
    read_instruction_lines,
    select_instructions,
    seqio_instructions,
    sst_instructions,
    toy_instructions,
    wikisql_instructions,
    woz_instructions,
)
from memjax.data.labelled_rows import labelled_texts
from memjax.data.python_sources import python_sources
from memjax.data.qa_srl import qa_srl_questions
from memjax.data.quac import quac_questions, tfds_quac_questions
from memjax.data.questions import QuestionSplit, select_questions
from memjax.data.record_files import texts_from_records
from memjax.data.relation_pairs import make_relation_pairs, open_cached_pairs
from memjax.data.relation_sentences import RelationSplits, make_synthetic_relations, read_relation_files, read_tacred
from memjax.data.sorting import SortingDocuments
from memjax.data.source_files import cache_parsed_source, reading_rules_of
from memjax.data.sources import SPLITS
from memjax.data.squad import squad_questions, tfds_squad_questions
from memjax.data.synthetic import KeyValueRecallDocuments
from memjax.data.templates import template_dialogues, template_questions, template_texts
from memjax.data.text_classes import (
    CL_BENCHMARK,
    CLASSES,
    TEXT_SETS,
    cl_benchmark_texts,
    class_texts,
    seqio_class_texts,
    tfds_class_texts,
)
from memjax.data.text_splits import TextSplits
from memjax.data.tfds import tfds_texts
from memjax.data.translation import (
    number_words,
    parallel_texts,
    random_letters,
)
from memjax.data.trivia_qa import tfds_trivia_qa_questions, trivia_qa_questions
from memjax.data.vectors import make_blobs, make_permuted_bags, open_cached_features, read_digits

__all__ = [
    "read_all_questions",
    "class_names",
    "read_classified_texts",
    "read_instructions",
    "open_source",
    "read_relation_splits",
    "source_notes",
]

CLASS_QUESTION = "Which class is this text of?"
"""Question about a text with a class, for models that generate the name of the class as an answer."""


def open_source(data: configs.Data, split: str, *, wanted: str = "") -> Any:
    """Opens one split of a source with its reader.

    Args:
      data: Settings of the data, with the source. WikiText is read as separate articles if the protocol is 'separate'
        or if the run trains on a half of them, otherwise as one text.
      split: 'train', 'validation' or 'test'.
      wanted: Kind of data to read from a source that offers several kinds, such as 'labelled', 'questions' or
        'instructions'. Empty for the default kind.

    Returns:
      Data of the kind that `source.gives` names: texts with random access (or pairs of name and text, for some data
      sets of TFDS), documents of tokens, dialogues, texts of two languages, labelled texts, questions, or vectors.

    Raises:
      ValueError: A source without a reader, or an error of the reader.
    """
    source, part = data.source, SPLITS.index(split)
    if wanted == "instructions":
        return read_instructions(data, split)
    held_out = lambda count, share=8: count if split == "train" else max(count // share, 1)
    match source:
        case configs.PythonLibrary():
            return python_sources(split)
        case configs.TextFiles():
            return sources.texts_from_files(source.path, split=split, rules=reading_rules_of(source), **_shares(source))
        case configs.Directories():
            listed = {"pattern": source.pattern, "order_file": source.order_file}
            return sources.texts_from_directories(
                source.path, split=split, rules=reading_rules_of(source), **listed, **_shares(source)
            )
        case configs.JsonLines():
            return texts_from_records(
                source.path, field=source.field, split=split, rules=reading_rules_of(source), **_shares(source)
            )
        case configs.Enwik8():
            return sources.enwik8(source.path, split=split)
        case configs.WikiText():
            halved = bool(data.train_half) and split == "train"
            return sources.wikitext(source.path, split=split, articles=data.protocol == "separate" or halved)
        case configs.Novels():
            return sources.novels(source.path, split=split)
        case configs.TfdsBuilder():
            return tfds_texts(source.name, split=split, field=source.field, data_dir=source.data_dir or None)
        case configs.KeyValueRecall():
            # Held-out documents score answers from afar only, so that their accuracy is that of the memory.
            fields: Any = dataclasses.asdict(source) | {"num_documents": held_out(source.num_documents)}
            return KeyValueRecallDocuments(seed=part, score_practice=split == "train", **fields)
        case configs.FactTable():
            return FactTableDocuments(
                seed=part, **dataclasses.asdict(source) | {"num_documents": held_out(source.num_documents)}
            )
        case configs.Sorting():
            sizes = {"length": source.length, "num_symbols": source.num_symbols}
            return SortingDocuments(held_out(source.num_documents, 10), seed=part, **sizes)
        case configs.MarkedEvents():
            fields = dataclasses.asdict(source) | {"num_documents": held_out(source.num_documents)}
            return MarkedEventDocuments(seed=part, **fields)
        case configs.Mnist():
            return mnist(source.path, split)
        case configs.CmuDog():
            return read_cmu_dog(source.path, split)
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
            return read_classified_texts(source).texts[split]
        case configs.Relations(relations=relations) if wanted == "labelled":
            return make_relation_pairs(read_relation_splits(source).of(relations), split, known=source.known)
        case configs.Relations(relations=relations):
            return read_relation_splits(source).of(relations).sentences[split]
        case configs.CachedPairs(relations=relations):
            return open_cached_pairs(source.path, split, relations=relations, known=source.known)
        case configs.AskedTexts():
            count = getattr(source, f"num_{split}")
            return select_questions(read_all_questions(source, split).questions, count, seed=source.sampling_seed)
        case configs.Templates():
            make = template_questions if wanted == "questions" else template_texts
            return make(held_out(source.num_examples), seed=part)
        case configs.Digits(num_train=train, num_test=test):
            count = train if split == "train" else test
            return read_digits(source.path, split, classes=source.classes, permutation=source.permutation, count=count)
        case configs.Blobs() | configs.PermutedBags():
            fields = dataclasses.asdict(source)
            sizes = {name: fields.pop(name) for name in ("num_train", "num_test", "mask_classes")}
            count = sizes["num_train" if split == "train" else "num_test"]
            return (make_blobs if isinstance(source, configs.Blobs) else make_permuted_bags)(split, count, **fields)
        case configs.CachedFeatures(train=train, test=test):
            count = train if split == "train" else test
            return open_cached_features(source.path, split, classes=source.classes, count=count, seed=source.seed)
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source with a reader")


def read_instructions(data: configs.Data, split: str) -> list[Instruction]:
    """Reads one split of a source as instructions: contexts with questions and answers.

    Labelled texts become instructions whose answer is the name of the class.

    Raises:
      ValueError: A source without instructions, labelled texts whose classes have no names, or an error of the reader.
    """
    source: Any = data.source
    readers = {
        configs.Sst: sst_instructions,
        configs.Woz: woz_instructions,
        configs.WikiSql: wikisql_instructions,
        configs.InstructionLines: read_instruction_lines,
    }
    if read := readers.get(type(source)):
        number = getattr(source, f"num_{split}")
        return select_instructions(read(source.path, split), number, seed=source.sampling_seed)
    match source:
        case configs.ToyInstructions():
            return toy_instructions(split, **dataclasses.asdict(source))
        case configs.SeqioInstructions(name=name):
            return seqio_instructions(name, split)
        case configs.AskedTexts():
            questions = open_source(data, split)
            return [Instruction(q.context, q.question, tuple(text for text, _ in q.answers)) for q in questions]
    names = class_names(source)
    if not names or "labelled" not in source.gives:
        allowed = "a source of instructions, of questions, or of texts whose classes have names"
        raise ValueError(f"data.source: given {type(source).__name__}, allowed: {allowed}")
    labelled = open_source(data, split, wanted="labelled")
    text = lambda example: " ".join(part for part in example.texts if part)
    return [Instruction(text(example), CLASS_QUESTION, (names[example.label],)) for example in labelled]


def class_names(source: configs.Source) -> dict[int, str]:
    """Returns number -> name of the classes of a source of labelled texts.

    Empty if the classes have no names, or if they are not known before the source is read.
    """
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


@cache_parsed_source
def read_classified_texts(source: configs.Source) -> TextSplits:
    """Reads all splits of a source of texts with classes, and counts the rows that were left out.

    Raises:
      ValueError: A source of another kind, or an error of the reader.
    """
    if not isinstance(source, configs.ClassifiedTexts):
        raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source of texts with classes")
    names = ("text", "num_train", "num_validation", "num_test", "sampling", "equality")
    options: Any = {name: getattr(source, name) for name in names} | _shares(source) | {"seed": source.sampling_seed}
    options["names"] = class_names(source)
    match source:
        case configs.TextClasses(data_set=name, path=path):
            files = {"train_files": source.train, "test_files": source.test, "class_order": source.class_order}
            return class_texts(name, path, **files, **options)
        case configs.CLBenchmark(task=name, path=path):
            return cl_benchmark_texts(name, path, **options)
        case configs.TfdsClasses(name=name, title_feature=title, text_feature=body, label_feature=label):
            location = {"first_class": source.first_class, "data_dir": source.data_dir}
            return tfds_class_texts(name, title=title, body=body, label=label, **location, **options)
        case configs.SeqioClasses(name=name, classes=classes):
            return seqio_class_texts(name, classes=classes, first_class=source.first_class, **options)
        case configs.LabelledFile(path=path, classes=classes, numbers=numbers):
            options["rules"] = reading_rules_of(source)
            return labelled_texts(path, dict(zip(classes, numbers, strict=True)), **options)
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source with a reader")


def read_relation_splits(source: configs.Source) -> RelationSplits:
    """Reads all splits of a source of sentences with relations, and counts the lines that were left out.

    The sentences of all relations are returned, whatever relations the settings select.

    Raises:
      ValueError: A source of another kind, or an error of the reader.
    """
    match source:
        case configs.RelationFiles(path=path):
            if not path:
                raise ValueError(f"data.source.path: given '', allowed: the folder of {source.names}")
            shares = {f"{name}_share": share for name, share in _shares(source).items()}
            files = {name: getattr(source, name) for name in ("names", "train", "test", "entities")}
            return read_relation_files(path, **files, **shares)
        case configs.Tacred(path=path):
            return read_tacred(path, num_candidates=source.num_candidates, seed=source.seed)
        case configs.MadeRelations():
            names = ("num_relations", "num_train", "num_candidates", "seed")
            return make_synthetic_relations(**{name: getattr(source, name) for name in names})
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source of sentences with relations")


@cache_parsed_source
def read_all_questions(source: configs.AskedTexts, split: str) -> QuestionSplit:
    """Reads all questions of a split of a source, and counts those that were left out.

    Raises:
      ValueError: A source without a reader, or an error of the reader.
    """
    path, data_dir = source.path, source.data_dir
    options: dict[str, Any] = {"split": split, **_shares(source)}
    match source:
        case configs.Squad():
            articles = {"part": source.part, "parts": source.parts}
            if path:
                return squad_questions(path, **articles, **options)
            return tfds_squad_questions(split=split, data_dir=data_dir, **articles)
        case configs.TriviaQa(pages=pages, max_words=most):
            if path:
                return trivia_qa_questions(path, pages=pages, max_words=most, **options)
            return tfds_trivia_qa_questions(split=split, data_dir=data_dir, pages=pages, max_words=most)
        case configs.Quac():
            return quac_questions(path, **options) if path else tfds_quac_questions(split=split, data_dir=data_dir)
        case configs.QaSrl(domain=domain):
            return qa_srl_questions(path, domain=domain, split=split, validation=options["validation"])
    raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source with a reader")


def source_notes(source: configs.Source) -> list[str]:
    """Returns lines of text about the documents or examples of a source that were left out."""
    match source:
        case configs.OwnFiles():
            files: Any = source
            note = open_source(configs.Data(source=files), "train").note
            return [note] if note else []
        case configs.ClassifiedTexts():
            return read_classified_texts(source).notes(class_names(source))
        case configs.Relations(relations=()):
            return read_relation_splits(source).notes()
        case configs.TriviaQa() | configs.Quac() | configs.QaSrl():
            return [line for split in SPLITS for line in read_all_questions(source, split).notes(split)]
    return []


def _shares(source: Any) -> dict[str, Any]:
    """Returns the shares in [0, 1] of a source that are held out for validation and test."""
    return {"validation": source.validation_percent / 100, "test": source.test_percent / 100}
