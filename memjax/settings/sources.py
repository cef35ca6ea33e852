"""Settings of sources of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from memjax.settings.checks import Settings, require
from memjax.settings.ranges import Count, Encoding, Number, Percent, Range, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "Source",
    "PythonLibrary",
    "OwnFiles",
    "TextFiles",
    "Directories",
    "JsonLines",
    "Enwik8",
    "WikiText",
    "Novels",
    "TfdsBuilder",
    "SeqioTask",
    "KeyValueRecall",
    "FactTable",
    "Sorting",
    "MarkedEvents",
    "Mnist",
    "Dialogues",
    "CmuDog",
    "TemplateDialogues",
    "DocumentKind",
]


@dataclass(slots=True, kw_only=True)
class Source(Settings):
    """Base class of the settings of all sources of data, with facts that a kind may override.

    Attributes:
      content_types: Kinds of content that can be read, the default first: 'texts', 'tokens', 'seqio' (tokens of a seqio
        task), 'dialogues', 'pairs' (texts in two languages), 'labelled' (texts with classes), 'questions', 'relations',
        'vectors' (of numbers, with classes), or 'instructions' (contexts with questions and answers).
      opened_by: Function `open(data, split)` that opens one split of the source, as 'module:function'. '' for sources
        of instructions, which stand in `opened_as`, and for seqio tasks, whose tokens are made by their own tokenizer.
      opened_as: Kind of content -> function that opens it in place of `opened_by`.
      parsed_by: Function that parses the files of a source whose `opened_by` serves a whole family of sources. ''
        without a family.
      noted_by: Function `notes(source)` that returns lines about documents or examples that were left out. '' where
        none are.
      classes_named_by: Function `names(source)` that returns the names of the classes by their numbers. '' for classes
        without names, or with names that are unknown before the source is read.
      answer_metric: Comparison of a generated answer with the right one: 'words' (F1 of their words), 'class' (equality
        with the name of a class), 'logical_form' (of a query), or 'dialogue_state'.
      is_code: Whether the texts are source code.
      is_images: Whether the documents are images.
      counts_words: Whether published perplexities are per word, where every line end counts as a word.
      metrics: Metrics that are published for the classes besides accuracy: 'matthews', 'f1'.
      max_length: Maximum number of tokens of each side of a pair, its end included. 0 for a source without pairs.
      row_text: Text of an example with a title: 'title_and_text', or 'text' alone.
      relations: Numbers of the relations whose sentences are read. () for all, or for a source without relations.
      path: File, folder or glob that is read. '' where there is none, or none is named.
      name: Name in a registry of data sets. '' where there is none.
      names_seqio_task: Whether `name` is that of a registered seqio Task with classes.
      names_relations: Whether its file names the relations, which are read for an answer.
      skip: Treatment of examples that cannot be read. 'few' leaves out those of at most 5 % of the bytes.
    """

    content_types = ("texts",)
    opened_by = ""
    opened_as: ClassVar[Mapping[str, str]] = {}
    parsed_by = ""
    noted_by = ""
    classes_named_by = ""
    answer_metric = "words"
    is_code = False
    is_images = False
    counts_words = False
    metrics = ()
    max_length = 0
    row_text = "title_and_text"
    relations = ()
    path = ""
    name = ""
    names_seqio_task = False
    names_relations = False
    skip = "few"

    def file_names(self) -> tuple[str, ...]:
        """Returns the names of the files that are read of the folder `path`, as a tuple. () where the function that
        reads the source finds them itself.
        """
        return ()

    def opener(self, content: str) -> str:
        """Returns the name 'module:function' of the function that opens the source as this kind of content, one of
        `content_types`. '' where no function of its own opens it.
        """
        return self.opened_as.get(content, self.opened_by)

    def read(self, split: str) -> Any:
        """Returns the content of one split, such as `memjax.data.Texts` for 'texts'. Sources that name no function to
        open them, such as those of a user's own, define it.

        Args:
          split: 'train', 'validation' or 'test'.
        """
        del split
        raise ValueError(f"data.source: given {type(self).__name__}, allowed: a source with a reader")

    def following(self, earlier: Sequence[Any]) -> Source:
        """Returns these settings as a task of a stream needs them after the sources of `earlier` tasks. Most kinds do
        not change.
        """
        del earlier
        return self


@dataclass(slots=True, kw_only=True)
class PythonLibrary(Source):
    """Source code of the interpreter's standard library, one document per top-level module or package."""

    is_code = True
    opened_by = "memjax.data.python_sources:open_python_library"


@dataclass(slots=True, kw_only=True)
class HoldoutSource(Source):
    """Common settings of sources that hold out percentages of their documents for validation and test, by a hash of
    their names.
    """

    validation_percent: Percent = 5
    """percentage of the documents held out for validation, by a hash of their names"""
    test_percent: Percent = 5
    """percentage of the documents held out for test, by a hash of their names"""


@dataclass(slots=True, kw_only=True)
class OwnFiles(HoldoutSource):
    """Common settings of sources that read a user's own files, compressed (.gz, .bz2, .xz, .zst, .zip) or not."""

    noted_by = "memjax.data.source_files:note_own_files"

    encoding: Encoding = "utf-8"
    """encoding of files that are not UTF-8, such as utf-16, latin-1 or cp1252"""
    skip: Literal["few", "all", "none"] = "few"
    """unreadable files and records that may be left out: 'few' = up to 5 % of the bytes; 'all' = any number; 'none' =
    an error for the first"""


@dataclass(slots=True, kw_only=True)
class TextFiles(OwnFiles):
    """Plain text files, each of which is one document."""

    opened_by = "memjax.data.source_files:open_text_files"

    path: str = ""
    """a file, a folder or a glob"""


@dataclass(slots=True, kw_only=True)
class Directories(OwnFiles):
    """Folders (repositories), each of which is one document: its files in path order, each after its path."""

    is_code = True
    opened_by = "memjax.data.source_files:open_directories"

    path: str = ""
    """folder that holds the folders of the documents"""
    pattern: str = "**/*"
    """glob of the files that are joined, relative to the folder of a document"""
    order_file: str = ""
    """name of a file in each folder that lists its files in the order in which they are joined; '' = order of their
    paths"""


@dataclass(slots=True, kw_only=True)
class JsonLines(OwnFiles):
    """Records, one document each: JSON lines or arrays, CSV, TSV, Parquet, Arrow, or `datasets.save_to_disk`."""

    opened_by = "memjax.data.source_files:open_json_lines"

    path: str = ""
    """a file, a folder or a glob"""
    field: str = "text"
    """name of the field or column that holds the text, with dots for nested fields; 'text' also reads chats
    (`messages`, or `prompt` and `completion`)"""


@dataclass(slots=True, kw_only=True)
class Enwik8(Source):
    """enwik8 or text8: the first 90 M, next 5 M and last 5 M bytes are train, validation and test."""

    opened_by = "memjax.data.corpora:open_enwik8"

    path: str = ""
    """the file, uncompressed or .xz / .gz"""


@dataclass(slots=True, kw_only=True)
class WikiText(Source):
    """WikiText at word level: train.txt, valid.txt and test.txt, with one `<eos>` at the end of each line."""

    counts_words = True
    opened_by = "memjax.data.corpora:open_wikitext"

    path: str = ""
    """folder of the three files (also .xz / .gz)"""


@dataclass(slots=True, kw_only=True)
class Novels(Source):
    """Whole books: text files of a folder or a tar file (.tar, .tar.xz, .tar.gz), each of which is one document."""

    opened_by = "memjax.data.corpora:open_novels"

    path: str = ""
    """the folder or tar file"""


@dataclass(slots=True, kw_only=True)
class TfdsBuilder(Source):
    """Documents from a data set of TensorFlow Datasets, by the name of its builder. Needs the extra `data`."""

    opened_by = "memjax.data.tfds:open_tfds_builder"

    name: str = "pg19"
    """name of the TFDS builder, with config and version where needed"""
    field: str = "text"
    """feature that holds the text"""
    data_dir: str = ""
    """folder of prepared TFDS data sets; '' = the default of TFDS"""
    skip: Literal["few", "all", "none"] = "few"
    """empty examples and those with broken characters that may be left out: 'few' = up to 5 % of the bytes; 'all' = any
    number; 'none' = an error for the first"""


@dataclass(slots=True, kw_only=True)
class SeqioTask(Source):
    """Documents of tokens from a registered seqio Task or Mixture. Needs the extra `data`."""

    content_types = ("seqio",)

    name: str = "memjax_pg19"
    """registered name of the seqio Task or Mixture"""
    feature: str = "targets"
    """feature that holds the tokens"""
    data_dir: str = ""
    """folder of prepared TFDS data sets; '' = the default of TFDS"""
    skip: Literal["few", "all", "none"] = "few"
    """empty examples and those with broken characters that may be left out: 'few' = up to 5 % of the bytes; 'all' = any
    number; 'none' = an error for the first"""


@dataclass(slots=True, kw_only=True)
class KeyValueRecall(Source):
    """Synthetic documents that bind keys to values, and ask for the values after filler tokens, which may be segments
    later.
    """

    content_types = ("tokens",)
    opened_by = "memjax.data.key_value_recall:open_key_value_recall"

    num_pairs: Count = 8
    """number of bindings of a key to a value in a document"""
    num_keys: Count = 16
    """number of different keys"""
    num_values: Count = 16
    """number of different values; chance is 1 / num_values"""
    filler_length: Number = 48
    """number of tokens between the bindings and the questions"""
    group: Number = 4
    """number of bindings after which they are asked for as practice; 0 = they are asked for at the end only"""
    layout: Literal["joint", "sequence"] = "joint"
    """tokens of a binding: 'joint' = one token for the pair; 'sequence' = the key, then the value"""
    num_documents: Count = 2048
    """number of training documents; validation and test have an eighth as many each"""


@dataclass(slots=True, kw_only=True)
class FactTable(Source):
    """Synthetic documents of facts to be stored in parameters: one value for every pair of a subject and a relation."""

    content_types = ("tokens",)
    opened_by = "memjax.data.facts:open_fact_table"

    num_subjects: Count = 128
    """number of different subjects"""
    num_relations: Count = 128
    """number of different relations"""
    num_values: Count = 16
    """number of different values; chance is 1 / num_values"""
    num_facts: Count = 32
    """number of facts in a document, of three tokens each"""
    num_documents: Count = 8192
    """number of training documents; validation and test have an eighth as many each, of the same facts"""


@dataclass(slots=True, kw_only=True)
class Sorting(Source):
    """Synthetic documents of symbols that are listed at the end by how often they occurred (Martins et al. 2022)."""

    content_types = ("tokens",)
    opened_by = "memjax.data.sorting:open_sorting"

    length: Count = 4000
    """number of symbols to sort; 4,000 to 16,000 in the paper"""
    num_symbols: Count = 20
    """number of different symbols"""
    num_documents: Count = 8000
    """number of training documents; validation and test have a tenth as many each"""


@dataclass(slots=True, kw_only=True)
class MarkedEvents(Source):
    """Synthetic documents with rare events in a long past. At the end each event is asked for by the number of the span
    of tokens in which it was.
    """

    content_types = ("tokens",)
    opened_by = "memjax.data.events:open_marked_events"

    num_events: Count = 4
    """number of events, and of questions"""
    num_values: Count = 8
    """number of different events; chance is 1 / num_values"""
    span: Count = 16
    """number of tokens from one event to the next"""
    duration: Count = 8
    """number of tokens of an event; at most `span`"""
    filler_length: Number = 16
    """number of tokens between the last event's span and the first question"""
    num_documents: Count = 4096
    """number of training documents; validation and test have an eighth as many each"""

    def check(self, field: str, config: Config) -> None:
        allowed = f"at most {field}span = {self.span}"
        require(self.duration <= self.span, f"{field}duration", self.duration, allowed)


@dataclass(slots=True, kw_only=True)
class Mnist(Source):
    """Grey images of MNIST as documents of tokens, one for each pixel. The last 5,000 of the training file are the
    validation split.
    """

    content_types = ("tokens",)
    is_images = True
    opened_by = "memjax.data.images:open_mnist"

    path: str = ""
    """folder of train-images-idx3-ubyte and t10k-images-idx3-ubyte (also .gz)"""


@dataclass(slots=True, kw_only=True)
class Dialogues(Source):
    """Common settings of sources of dialogues about a document. Utterances are scored, the document is not."""

    content_types = ("dialogues",)

    document: Literal["none", "context", "memory"] = "memory"
    """place of the document: 'none' = it is not read; 'context' = before the utterances in every segment; 'memory' = as
    a whole, in segments before the utterances"""
    document_length: Annotated[int, zero_or_more("all")] = 0
    """maximum number of tokens of the document, which is cut off after it; 0 = all"""
    max_utterance_length: Annotated[int, Range(words="1 or more tokens", least=1)] = 128
    """maximum number of tokens of an utterance, which is cut off after it"""

    def check(self, field: str, config: Config) -> None:
        protocol = config.data.protocol
        require(protocol == "separate", "data.protocol", protocol, "'separate' for dialogues")


@dataclass(slots=True, kw_only=True)
class CmuDog(Dialogues):
    """CMU-DoG (Zhou et al. 2018): dialogues about films."""

    opened_by = "memjax.data.dialogue:open_cmu_dog"

    path: str = ""
    """folder with Conversations and WikiData, folder with the archive cmu_dog.tar.xz, or the archive itself"""


@dataclass(slots=True, kw_only=True)
class TemplateDialogues(Dialogues):
    """Synthetic dialogues about where people live, which only the document tells."""

    opened_by = "memjax.data.templates:open_template_dialogues"

    num_dialogues: Count = 512
    """number of training dialogues; validation and test have an eighth as many each"""


DocumentKind = (
    PythonLibrary
    | TextFiles
    | Directories
    | JsonLines
    | Enwik8
    | WikiText
    | Novels
    | TfdsBuilder
    | SeqioTask
    | KeyValueRecall
    | FactTable
    | Sorting
    | MarkedEvents
    | Mnist
    | CmuDog
    | TemplateDialogues
)
