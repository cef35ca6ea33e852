"""Opens a split of any source in the settings with the functions that the settings name.

A source that belongs to no family is opened by a function of its own data set. The sources of texts with classes, of
sentences with relations, and of questions are opened here, from files that a function of the data set parses.
"""

from collections.abc import Sequence, Sized
from typing import Any

from memjax import config as configs
from memjax.data.glue import LabelledText
from memjax.data.instruction_readers import POLARITY
from memjax.data.instructions import Instruction, select_instructions
from memjax.data.questions import Question, QuestionSplit, select_questions
from memjax.data.relation_pairs import RelationPair, make_relation_pairs
from memjax.data.relation_sentences import RelationSentence, RelationSplits
from memjax.data.source_files import cache_parsed_source
from memjax.data.sources import SPLITS, Texts
from memjax.data.text_splits import TextSplits
from memjax.settings.pointers import import_by_name
from memjax.settings.reading_rules import held_out_shares

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
    """Opens one split of a source and returns what the function that its settings name returns, such as `Texts` or
    questions. `wanted` is the kind of data to read if a source offers several, such as 'labelled'.

    Args:
      data: Settings of the data, with the source.
      split: 'train', 'validation' or 'test'.
      wanted: Kind of data to read from a source that offers several kinds, such as 'labelled', 'questions' or
        'instructions'. Empty for the default kind.

    Returns:
      Data of the kind that `source.content_types` names: texts with random access (or pairs of name and text, for some
      data sets of TFDS), documents of tokens, dialogues, texts of two languages, labelled texts, questions, or vectors.

    Raises:
      ValueError: A source without a reader, a split without examples, or an error of the reader.
    """
    content, source = _read_split(data, split, wanted), data.source
    if isinstance(content, Sized) and not len(content):
        raise ValueError(
            f"data.source: given {source.path or type(source).__name__}, whose {split} split has no example, allowed: "
            "at least one; give more, hold out a larger share, or select others"
        )
    return content


def _read_split(data: configs.Data, split: str, wanted: str) -> Any:
    """Returns the content of one split of a source. See `open_source`."""
    if wanted == "instructions":
        return read_instructions(data, split)
    if opener := data.source.opener(wanted):
        return import_by_name(opener)(data, split)
    content = data.source.read(split)
    if data.source.content_types[0] == "texts" and not isinstance(content, Texts):
        kind = f"{type(data.source).__name__}, whose read() returns a {type(content).__name__}"
        raise ValueError(f"data.source: given {kind}, allowed: memjax.data.Texts, as Texts.from_mapping(...)")
    return content


def read_instructions(data: configs.Data, split: str) -> list[Instruction]:
    """Reads one split of a source as a list of instructions: contexts with questions and answers. Of a labelled text,
    the answer is the name of its class.

    Labelled texts become instructions whose answer is the name of the class.

    Raises:
      ValueError: A source without instructions, labelled texts whose classes have no names, or an error of the reader.
    """
    source = data.source
    if opener := source.opened_as.get("instructions"):
        return import_by_name(opener)(data, split)
    if source.content_types[0] == "questions":
        questions = open_source(data, split)
        parts = [zip(*question.answers, strict=True) for question in questions]
        return [
            Instruction(question.context, question.question, answers, answer_starts=starts)
            for question, (answers, starts) in zip(questions, parts, strict=True)
        ]
    names = class_names(source)
    if not names or "labelled" not in source.content_types:
        allowed = "a source of instructions, of questions, or of texts whose classes have names"
        raise ValueError(f"data.source: given {type(source).__name__}, allowed: {allowed}")
    labelled = open_source(data, split, wanted="labelled")
    text = lambda example: " ".join(part for part in example.texts if part)
    return [Instruction(text(example), CLASS_QUESTION, (names[example.label],)) for example in labelled]


def class_names(source: configs.Source) -> dict[int, str]:
    """Returns number -> name of the classes of a source of labelled texts. Empty if they have no names that are known
    before the source is read.
    """
    return import_by_name(source.classes_named_by)(source) if source.classes_named_by else {}


def source_notes(source: configs.Source) -> list[str]:
    """Returns a list of lines about documents or examples of a source that were left out or are problematic."""
    return import_by_name(source.noted_by)(source) if source.noted_by else []


# Instructions


def name_polarities(source: configs.Source) -> dict[int, str]:
    """Returns number -> name of the classes of reviews in the Stanford Sentiment Treebank."""
    del source
    return dict(enumerate(POLARITY))


def open_instruction_files(data: configs.Data, split: str) -> list[Instruction]:
    """Returns a list of the instructions of one split, as many as the settings ask for, from files that the function
    named by `data.source.parsed_by` parses.
    """
    source: Any = data.source
    instructions = import_by_name(source.parsed_by)(source.path, split)
    return select_instructions(instructions, getattr(source, f"num_{split}"), seed=source.sampling_seed)


# Texts with classes


@cache_parsed_source
def read_classified_texts(source: configs.Source) -> TextSplits:
    """Reads all splits of a source of texts with classes as `TextSplits`, which also count the rows that were left out.
    The result is cached while it is in use.

    Raises:
      ValueError: A source of another kind, or an error of the reader.
    """
    if not isinstance(source, configs.ClassifiedTexts):
        raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source of texts with classes")
    names = ("num_train", "num_validation", "num_test", "equality")
    options: Any = {name: getattr(source, name) for name in names} | held_out_shares(source)
    options |= {"text": source.row_text, "sampling": source.subset_sampling}
    return import_by_name(source.parsed_by)(source, seed=source.sampling_seed, names=class_names(source), **options)


def open_classified_texts(data: configs.Data, split: str) -> Sequence[LabelledText]:
    """Returns the labelled texts of one split of a source of texts with classes."""
    return read_classified_texts(data.source).texts[split]


def note_classified_texts(source: configs.ClassifiedTexts) -> list[str]:
    """Returns a list of lines about the rows of a source of texts with classes that were left out or that are
    problematic.
    """
    return read_classified_texts(source).notes(class_names(source))


# Sentences with relations


def read_relation_splits(source: configs.Source) -> RelationSplits:
    """Reads all splits of a source of sentences with relations as `RelationSplits`, which also count the lines that
    were left out. Whatever relations `source` selects, all are read.

    Raises:
      ValueError: A source of another kind, or an error of the reader.
    """
    if not isinstance(source, configs.Relations):
        raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source of sentences with relations")
    return import_by_name(source.parsed_by)(source)


def open_relations(data: configs.Data, split: str) -> Sequence[RelationSentence]:
    """Returns the sentences of one split of a source of sentences with relations, those of the relations that the
    settings select.
    """
    return read_relation_splits(data.source).of(data.source.relations).sentences[split]


def open_relation_pairs(data: configs.Data, split: str) -> list[RelationPair]:
    """Returns one split of a source of sentences with relations as pairs of a sentence and the name of a relation, for
    the relations that the settings select.
    """
    source: Any = data.source
    return make_relation_pairs(read_relation_splits(source).of(source.relations), split, known=source.earlier_relations)


def note_relations(source: configs.Relations) -> list[str]:
    """Returns a list of lines about sentences that were left out. Empty for the source of a task with only some of the
    relations.
    """
    return [] if source.relations else read_relation_splits(source).notes()


# Questions about texts


@cache_parsed_source
def read_all_questions(source: configs.QuestionSource, split: str) -> QuestionSplit:
    """Reads all questions of one split of a source as a `QuestionSplit`, which also counts those that were left out.
    The result is cached while it is in use.

    Raises:
      ValueError: A source without a reader, or an error of the reader.
    """
    if not source.parsed_by:
        raise ValueError(f"data.source: given {type(source).__name__}, allowed: a source with a reader")
    return import_by_name(source.parsed_by)(source, split)


def open_questions(data: configs.Data, split: str) -> Sequence[Question]:
    """Returns the questions of one split of a source, as many as the settings ask for."""
    source: Any = data.source
    count = getattr(source, f"num_{split}")
    return select_questions(read_all_questions(source, split).questions, count, seed=source.sampling_seed)


def note_questions(source: configs.QuestionSource) -> list[str]:
    """Returns a list of lines about the questions of all splits that were left out."""
    return [line for split in SPLITS for line in read_all_questions(source, split).notes(split)]
