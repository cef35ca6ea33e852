"""Where documents come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.ranges import Count, Encoding, Number, Percent, Range, zero_or_more
from memjax.settings.relations import Settings, require

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
    """What every source says of itself.

    Attributes:
      gives: what its reader gives, the first where nothing else is wanted: 'texts', 'tokens', 'seqio', 'dialogues',
        'pairs' (the texts of two languages), 'labelled' (texts with classes), 'questions', or 'vectors' (of numbers,
        with classes), or 'instructions' (contexts with questions and answers).
      answered_by: what counts as right in an answer that is written: 'words' (shared ones), the very name of a 'class',
        a 'logical_form', a 'dialogue_state'.
      is_code: whether its texts are source code.
      is_images: whether its documents are images.
      counts_words: whether published perplexities are those of words, with one for every line end.
      metrics: what is published for its classes besides accuracy: 'matthews', 'f1'.
      max_length: tokens of each side of its pairs, the end included; 0 = it has none.
      text: what is read of a row with a title: 'title_and_text', or 'text' alone.
      relations: whose sentences are read; () = all, or it has no relations.
      path: File, folder or glob that is read. '' where there is none, or none is named.
      name: Name in a registry of data sets. '' where there is none.
      names_seqio_task: Whether `name` is that of a registered seqio Task with classes.
      names_relations: Whether its file names the relations, which are read for an answer.
      skip: Treatment of examples that cannot be read. 'few' leaves out those of at most 5 % of the bytes.
    """

    gives = ("texts",)
    answered_by = "words"
    is_code = False
    is_images = False
    counts_words = False
    metrics = ()
    max_length = 0
    text = "title_and_text"
    relations = ()
    path = ""
    name = ""
    names_seqio_task = False
    names_relations = False
    skip = "few"

    def file_names(self) -> tuple[str, ...]:
        """Returns the names of the files that are read of a folder. () where its reader finds them."""
        return ()

    def after(self, earlier: Sequence[Any]) -> Source:
        """The same as a task of a stream, after sources of earlier tasks."""
        del earlier
        return self


@dataclass(slots=True, kw_only=True)
class PythonLibrary(Source):
    """The interpreter's standard library in source, one document per top-level module or package."""

    is_code = True


@dataclass(slots=True, kw_only=True)
class HeldOut(Source):
    """Documents of which shares are held out, by a hash of their names."""

    validation_percent: Percent = 5
    """share of documents held out for validation, by a hash of the name"""
    test_percent: Percent = 5
    """share of documents held out for the test split, by a hash of the name"""


@dataclass(slots=True, kw_only=True)
class OwnFiles(HeldOut):
    """Files that anybody may have written, packed (.gz, .bz2, .xz, .zst, .zip) or not."""

    encoding: Encoding = "utf-8"
    """encoding of the files that are not UTF-8, such as utf-16, latin-1 or cp1252"""
    skip: Literal["few", "all", "none"] = "few"
    """files and records without a text that are left out: up to 5 % of the bytes, all that cannot be read, or none"""


@dataclass(slots=True, kw_only=True)
class TextFiles(OwnFiles):
    """Plain text files, one document each."""

    path: str = ""
    """a file, a directory or a glob"""


@dataclass(slots=True, kw_only=True)
class Directories(OwnFiles):
    """One document per directory (a repository): its files joined in path order, each after a line with its path."""

    is_code = True

    path: str = ""
    """the directory that holds the documents' directories"""
    pattern: str = "**/*"
    """glob of the files to join"""
    order_file: str = ""
    """a file inside each directory that lists its files in the order to join them; '' = path order"""


@dataclass(slots=True, kw_only=True)
class JsonLines(OwnFiles):
    """Records, one document each: JSON lines or arrays, CSV, TSV, Parquet, Arrow, `datasets.save_to_disk`."""

    path: str = ""
    """a file, a directory or a glob"""
    field: str = "text"
    """the field or column that holds the text, with dots for nested ones; 'text' also takes chats (`messages`, or
    `prompt` and `completion`)"""


@dataclass(slots=True, kw_only=True)
class Enwik8(Source):
    """enwik8 or text8: the first 90 M, next 5 M and last 5 M bytes are train, validation and test."""

    path: str = ""
    """the uncompressed or .xz / .gz file"""


@dataclass(slots=True, kw_only=True)
class WikiText(Source):
    """WikiText at word level: train.txt, valid.txt and test.txt, one `<eos>` a line."""

    counts_words = True

    path: str = ""
    """the directory of the three files (also .xz / .gz)"""


@dataclass(slots=True, kw_only=True)
class Novels(Source):
    """Whole books: a directory or a tar (.tar, .tar.xz, .tar.gz) of text files, one document a book."""

    path: str = ""
    """the directory or tar file"""


@dataclass(slots=True, kw_only=True)
class TfdsBuilder(Source):
    """A TensorFlow Datasets builder. Needs the extra `data`."""

    name: str = "pg19"
    """builder name, with config and version where wanted"""
    field: str = "text"
    """feature that holds the text"""
    data_dir: str = ""
    """prepared data sets; '' = the library's default"""
    skip: Literal["few", "all", "none"] = "few"
    """examples, empty or with broken characters, that are left out: up to 5 % of the bytes, all, or none"""


@dataclass(slots=True, kw_only=True)
class SeqioTask(Source):
    """A seqio Task or Mixture. Needs the extra `data`."""

    gives = ("seqio",)

    name: str = "memjax_pg19"
    """registered name"""
    feature: str = "targets"
    """feature that holds the tokens"""
    data_dir: str = ""
    """prepared TFDS data sets; '' = the library's default"""
    skip: Literal["few", "all", "none"] = "few"
    """examples, empty or with broken characters, that are left out: up to 5 % of the bytes, all, or none"""


@dataclass(slots=True, kw_only=True)
class KeyValueRecall(Source):
    """Synthetic documents that define keys and values and ask for them many segments later."""

    gives = ("tokens",)

    num_pairs: Count = 8
    """bindings per document"""
    num_keys: Count = 16
    """different keys"""
    num_values: Count = 16
    """different values; chance is 1 / num_values"""
    filler_length: Number = 48
    """tokens between the definitions and the questions"""
    group: Number = 4
    """bindings after which they are practised; 0 = they are asked for at the end only"""
    layout: Literal["joint", "sequence"] = "joint"
    """a binding is one token for the pair, or key and value one after the other"""
    num_documents: Count = 2048
    """documents of the training split; validation and test have an eighth each"""


@dataclass(slots=True, kw_only=True)
class FactTable(Source):
    """Synthetic documents of facts, a value for every pair of a subject and a relation, to be held in parameters."""

    gives = ("tokens",)

    num_subjects: Count = 128
    """different subjects"""
    num_relations: Count = 128
    """different relations"""
    num_values: Count = 16
    """different values; chance is 1 / num_values"""
    num_facts: Count = 32
    """facts per document, three tokens each"""
    num_documents: Count = 8192
    """documents of the training split; validation and test have an eighth each, of the same facts"""


@dataclass(slots=True, kw_only=True)
class Sorting(Source):
    """Synthetic documents whose symbols are to be named at the end by how often they occurred (Martins et al. 2022)."""

    gives = ("tokens",)

    length: Count = 4000
    """symbols to sort; 4,000 to 16,000 in the paper"""
    num_symbols: Count = 20
    """different symbols"""
    num_documents: Count = 8000
    """documents of the training split; validation and test have a tenth each"""


@dataclass(slots=True, kw_only=True)
class MarkedEvents(Source):
    """Synthetic documents in whose long past something happened now and then, which they ask for by its time."""

    gives = ("tokens",)

    num_events: Count = 4
    """times that something happens, and questions"""
    num_values: Count = 8
    """different events; chance is 1 / num_values"""
    span: Count = 16
    """tokens from one time to the next"""
    duration: Count = 8
    """tokens of an event, at most span"""
    filler_length: Number = 16
    """tokens between the last span and the first question"""
    num_documents: Count = 4096
    """documents of the training split; validation and test have an eighth each"""

    def check(self, field: str, config: Config) -> None:
        allowed = f"at most {field}span = {self.span}"
        require(self.duration <= self.span, f"{field}duration", self.duration, allowed)


@dataclass(slots=True, kw_only=True)
class Mnist(Source):
    """Grey images in the files of MNIST, one token a pixel; the last 5,000 of training are the validation split."""

    gives = ("tokens",)
    is_images = True

    path: str = ""
    """the folder of train-images-idx3-ubyte and t10k-images-idx3-ubyte (also .gz)"""


@dataclass(slots=True, kw_only=True)
class Dialogues(Source):
    """Dialogues about documents: utterances are scored, documents are not."""

    gives = ("dialogues",)

    document: Literal["none", "context", "memory"] = "memory"
    """where the document stands: nowhere, before the utterances in every segment, or whole in segments before them"""
    document_length: Annotated[int, zero_or_more("all")] = 0
    """tokens of the document that are kept; 0 = all"""
    max_utterance_length: Annotated[int, Range(words="1 or more tokens", least=1)] = 128
    """tokens of an utterance that are kept"""

    def check(self, field: str, config: Config) -> None:
        protocol = config.data.protocol
        require(protocol == "separate", "data.protocol", protocol, "'separate' for dialogues")


@dataclass(slots=True, kw_only=True)
class CmuDog(Dialogues):
    """CMU-DoG (Zhou et al. 2018): dialogues about films."""

    path: str = ""
    """the folder with Conversations and WikiData, one with the archive cmu_dog.tar.xz, or the archive"""


@dataclass(slots=True, kw_only=True)
class TemplateDialogues(Dialogues):
    """Synthetic dialogues about who lives where, which only the document tells."""

    num_dialogues: Count = 512
    """dialogues of the training split; validation and test have an eighth each"""


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
