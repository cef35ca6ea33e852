"""What is read, and how it is cut into rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.ranges import Count, Number, Percent, Positive, Range, Seed, zero_or_more
from memjax.settings.relations import Settings, require
from memjax.settings.tokenizers import SentencePiece, TokenizerKind

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "Source",
    "ClassifiedTexts",
    "PythonLibrary",
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
    "Glue",
    "TextClasses",
    "CLBenchmark",
    "TfdsClasses",
    "SeqioClasses",
    "LabelledFile",
    "Squad",
    "Templates",
    "Vectors",
    "Digits",
    "Blobs",
    "PermutedBags",
    "CachedFeatures",
    "Translation",
    "ParallelText",
    "TfdsTranslation",
    "NumberWords",
    "CopiedLetters",
    "SourceKind",
    "TranslationKind",
    "Data",
]


Length = Annotated[int, Range(words="2 or more tokens", least=2)]
"""of a sentence with its end"""


@dataclass(slots=True, kw_only=True)
class Source(Settings):
    """What every source says of itself.

    Attributes:
      gives: what its reader gives, the first where nothing else is wanted: 'texts', 'tokens', 'seqio', 'dialogues',
        'pairs' (the texts of two languages), 'labelled' (texts with classes), 'questions', or 'vectors' (of numbers,
        with classes).
      is_code: whether its texts are source code.
      is_images: whether its documents are images.
      counts_words: whether published perplexities are those of words, with one for every line end.
      metrics: what is published for its classes besides accuracy: 'matthews', 'f1'.
      max_length: tokens of each side of its pairs, the end included; 0 = it has none.
      text: what is read of a row with a title: 'title_and_text', or 'text' alone.
    """

    gives = ("texts",)
    is_code = False
    is_images = False
    counts_words = False
    metrics = ()
    max_length = 0
    text = "title_and_text"


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
class TextFiles(HeldOut):
    """Plain text files, one document each. Compressed .xz and .gz are read as they are."""

    path: str = ""
    """a file, a directory or a glob"""


@dataclass(slots=True, kw_only=True)
class Directories(HeldOut):
    """One document per directory (a repository): its files joined in path order, each after a line with its path."""

    is_code = True

    path: str = ""
    """the directory that holds the documents' directories"""
    pattern: str = "**/*"
    """glob of the files to join"""
    order_file: str = ""
    """a file inside each directory that lists its files in the order to join them; '' = path order"""


@dataclass(slots=True, kw_only=True)
class JsonLines(HeldOut):
    """JSON lines, one document a line."""

    path: str = ""
    """a file or a glob"""
    field: str = "text"
    """the field that holds the text"""


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


@dataclass(slots=True, kw_only=True)
class Glue(Source):
    """A task of GLUE (Wang et al. 2019), for Classification. Where test has no labels it is the validation split."""

    gives = ("labelled",)

    name: Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli"] = "sst2"
    """which task; 'mnli' is scored on matched genres"""
    path: str = ""
    """the folder of its TSV files (also .xz / .gz); '' = `glue/NAME` of TensorFlow Datasets (needs the extra `data`)"""
    data_dir: str = ""
    """prepared TFDS data sets; '' = the library's default"""
    validation_percent: Percent = 10
    """share of the examples held out, by a hash of the text, where the folder has only one of the files"""
    test_percent: Percent = 10
    """likewise for the test split"""

    @property
    def metrics(self) -> tuple[str, ...]:
        return {"cola": ("matthews",), "mrpc": ("f1",), "qqp": ("f1",)}.get(self.name, ())


@dataclass(slots=True, kw_only=True)
class ClassifiedTexts(Source):
    """Texts with classes that have the same numbers in every order of tasks, for Classification."""

    gives = ("labelled",)

    text: Literal["title_and_text", "text"] = "title_and_text"
    """what is read of a row: `title. text`, or its text alone"""
    validation_percent: Percent = 10
    """share of the texts to train on that is held out, by a hash of the text, where no file is the split"""
    test_percent: Percent = 10
    """likewise for the test split"""
    num_train: Number = 0
    """examples of the training split that are kept, chosen by a hash of their text; 0 = all"""
    num_validation: Number = 0
    """likewise of the validation split"""
    num_test: Number = 0
    """likewise of the test split"""
    sampling: Literal["balanced", "random"] = "balanced"
    """which are kept: equally many of each class where there are so many, or any"""
    sampling_seed: Seed = 0
    """of the hash"""


@dataclass(slots=True, kw_only=True)
class TextClasses(ClassifiedTexts):
    """A set of Zhang et al. (2015), the tasks of MbPA++: 33 classes (Yelp and Amazon share theirs)."""

    data_set: Literal["yelp", "amazon", "ag_news", "dbpedia", "yahoo"] = "ag_news"
    """which set"""
    path: str = ""
    """the folder of its files"""
    train: tuple[str, ...] = ("train.csv",)
    """files to train on (also .xz / .gz): .csv of Zhang et al., .tsv with text and class, .json of O-LoRA"""
    test: tuple[str, ...] = ("test.csv",)
    """files to test on; () = a share of the others. No text of theirs is trained on"""
    class_order: tuple[str, ...] = ()
    """names of the classes in the order in which the .csv files number them; () = that of Zhang et al."""


@dataclass(slots=True, kw_only=True)
class CLBenchmark(ClassifiedTexts):
    """A task of the benchmark of O-LoRA (Wang et al. 2023): 42 classes, the first 33 as TextClasses has them."""

    # fmt: off
    task: Literal[
        "mnli", "cb", "wic", "copa", "qqp", "boolq", "rte", "imdb", "yelp", "amazon", "sst2", "dbpedia",
        "ag_news", "multirc", "yahoo",
    ] = "ag_news"
    # fmt: on
    """which task"""
    path: str = ""
    """the folder CL_Benchmark, whose folders are NLI, SC, TC and so on (files also .xz / .gz)"""


@dataclass(slots=True, kw_only=True)
class TfdsClasses(ClassifiedTexts):
    """A TensorFlow Datasets builder of labelled texts; AG News by default. Needs the extra `data`."""

    name: str = "ag_news_subset"
    """builder name, with config and version where wanted"""
    title_feature: str = "title"
    """feature that holds the title; '' = it has none"""
    text_feature: str = "description"
    """feature that holds the text"""
    label_feature: str = "label"
    """feature that holds the class"""
    first_class: Number = 5
    """number that its class 0 has here"""
    data_dir: str = ""
    """prepared data sets; '' = the library's default"""


@dataclass(slots=True, kw_only=True)
class SeqioClasses(ClassifiedTexts):
    """A registered seqio Task whose `inputs` are texts and whose `targets` name classes. Needs the extra `data`."""

    name: str = ""
    """registered name"""
    classes: tuple[str, ...] = ()
    """its targets in the order of their numbers; () = they are numbers"""
    first_class: Number = 0
    """number that the first of them has here"""


@dataclass(slots=True, kw_only=True)
class LabelledFile(ClassifiedTexts):
    """Texts with classes of one's own (`memjax train --tasks A.csv B.csv`)."""

    path: str = ""
    """a file: .csv with class, title and text, .tsv with text and class, .json of O-LoRA (also .xz / .gz), of which
    shares are held out; or a folder with train.csv, and test.csv where there is one"""
    classes: tuple[str, ...] = ()
    """its classes, as it writes them"""
    numbers: tuple[int, ...] = ()
    """number of each of them in the head, the same in every order of tasks"""

    def check(self, field: str, config: Config) -> None:
        fits = len(set(self.numbers)) == len(self.numbers) == len(self.classes)
        require(
            fits, f"{field}numbers", self.numbers, f"a number of its own for each of the {len(self.classes)} classes"
        )


@dataclass(slots=True, kw_only=True)
class Squad(Source):
    """SQuAD 1.1 (Rajpurkar et al. 2016), for QuestionAnswering. Its test set is hidden: `test` is then validation."""

    gives = ("questions",)

    path: str = ""
    """the folder of its JSON files (also .xz / .gz); '' = `squad` of TensorFlow Datasets (needs the extra `data`)"""
    data_dir: str = ""
    """prepared TFDS data sets; '' = the library's default"""
    validation_percent: Percent = 10
    """share of the articles held out, by a hash of the title, where the folder has only one of the files"""
    test_percent: Percent = 10
    """likewise for the test split"""


@dataclass(slots=True, kw_only=True)
class Templates(Source):
    """Synthetic sentences about who lives where, for Classification and QuestionAnswering."""

    gives = ("labelled", "questions")

    num_examples: Count = 512
    """examples of the training split; validation and test have an eighth each"""


Classes = Annotated[tuple[int, ...], Range(words="classes from 0 on", least=0)]


@dataclass(slots=True, kw_only=True)
class Vectors(Source):
    """Vectors of numbers with classes, for Classification by a Perceptron; `data.segment_length` is their width."""

    gives = ("vectors",)
    classes: Classes = ()
    """the classes that are read; () = all"""
    mask_classes: bool = False
    """examples say that no other class may be answered (task-incremental: the head is masked by the task)"""

    def check(self, field: str, config: Config) -> None:
        kind, model = type(self).__name__, type(config.model).__name__
        require(config.model.reads == "vectors", "model", model, f"Perceptron with {kind}")
        fits = len(set(self.classes)) == len(self.classes)
        require(fits, f"{field}classes", self.classes, "each class once")


@dataclass(slots=True, kw_only=True)
class Digits(Vectors):
    """Grey images in the files of MNIST as vectors of pixels from 0 to 1: split and permuted MNIST.

    The last 5,000 of the training file are the validation split, as with Mnist.
    """

    path: str = ""
    """the folder of train-images-idx3-ubyte, t10k-images-idx3-ubyte and their labels (also .gz)"""
    permutation: Seed = 0
    """of the pixels, the same in all splits; 0 = as they are"""
    num_train: Annotated[int, zero_or_more("all", "examples")] = 0
    """the first ones of these classes that are trained on; 0 = all"""
    num_test: Annotated[int, zero_or_more("all", "examples")] = 0
    """likewise of validation, and of test"""


@dataclass(slots=True, kw_only=True)
class Made(Vectors):
    """Vectors that are drawn, and not read; equal seeds give equal ones for ever.

    A class looks the same whatever other classes are read with it, so that several tasks can share one seed.
    """

    num_classes: Annotated[int, Range(words="2 or more", least=2)] = 10
    """classes that there are"""
    num_train: Count = 512
    """examples of the training split, as many of each class as of the next"""
    num_test: Count = 128
    """examples of validation, and of test"""
    seed: Seed = 0
    """of what the classes are like, and of the examples"""

    def check(self, field: str, config: Config) -> None:
        Vectors.check(self, field, config)
        fits = max(self.classes, default=0) < self.num_classes
        require(fits, f"{field}classes", self.classes, f"below {field}num_classes = {self.num_classes}")


@dataclass(slots=True, kw_only=True)
class Blobs(Made):
    """Synthetic vectors: a Gaussian cloud for every class, around a centre drawn from a standard normal."""

    dim: Count = 16
    """numbers of a vector"""
    spread: Annotated[float, zero_or_more()] = 1.0
    """standard deviation of a cloud; centres are about sqrt(2 dim) apart"""


@dataclass(slots=True, kw_only=True)
class PermutedBags(Made):
    """Synthetic bags of words: counts under the distribution of a class, over a vocabulary that a task may permute."""

    num_classes: Annotated[int, Range(words="2 or more", least=2)] = 4
    """classes that there are"""
    num_words: Count = 64
    """of the vocabulary: numbers of a vector"""
    length: Count = 32
    """words of a bag; a vector holds their shares times the root of num_words"""
    concentration: Positive = 0.2
    """of the Dirichlet distribution that draws those of the classes; smaller = each has fewer words"""
    permutation: Seed = 0
    """of the vocabulary; 0 = as it is"""


@dataclass(slots=True, kw_only=True)
class CachedFeatures(Vectors):
    """Vectors that a model made before: `train.npy` and `test.npy`, float32 [examples, width], memory-mapped.

    Beside them `train_labels.npy` and `test_labels.npy`, int32 [examples]; `validation.npy` with its labels, else a
    tenth of train is held out, by a hash of the number; and `about.json`, which says what they are.
    """

    path: str = ""
    """the folder"""
    train: Annotated[int, zero_or_more("all", "examples")] = 0
    """examples that are trained on, drawn by the seed; 0 = all"""
    test: Annotated[int, zero_or_more("all", "examples")] = 0
    """likewise of validation, and of test"""
    seed: Seed = 0
    """of what is drawn"""


@dataclass(slots=True, kw_only=True)
class Translation(Source):
    """Sentence pairs."""

    gives = ("pairs",)

    def check(self, field: str, config: Config) -> None:
        kind, protocol = type(self).__name__, config.data.protocol
        require(config.model.translates, "data.source", kind, "texts, where model is no EncoderDecoder")
        require(protocol == "separate", "data.protocol", protocol, "'separate' for sentence pairs")


@dataclass(slots=True, kw_only=True)
class ParallelText(Translation):
    """Sentence pairs: a folder of files STEM.LANGUAGE with a sentence a line (also .xz / .gz), as Multi30k has them."""

    path: str = ""
    """the folder"""
    source_language: str = "en"
    """ending of the files to translate"""
    target_language: str = "de"
    """ending of their translations"""
    train: str = "train"
    """stem of the training files"""
    validation: str = "val"
    """stem of the validation files"""
    test: str = "test_2016_flickr"
    """stem of the test files"""
    max_length: Length = 64
    """tokens, the end included; pairs with a longer side are left out"""


@dataclass(slots=True, kw_only=True)
class TfdsTranslation(Translation):
    """Sentence pairs of a TFDS translation builder. Needs the extra `data`."""

    name: str = "wmt14_translate/de-en"
    """builder name, with config and version where wanted"""
    source_language: str = "en"
    """feature to translate"""
    target_language: str = "de"
    """feature that holds the translation"""
    max_length: Length = 128
    """tokens, the end included; pairs with a longer side are left out"""
    data_dir: str = ""
    """prepared data sets; '' = the library's default"""


@dataclass(slots=True, kw_only=True)
class NumberWords(Translation):
    """Synthetic sentence pairs: numbers in English words, and in German ones."""

    num_documents: Count = 2048
    """pairs of the training split; validation and test have an eighth each"""
    max_length: Length = 96
    """tokens, the end included; pairs with a longer side are left out"""


@dataclass(slots=True, kw_only=True)
class CopiedLetters(Translation):
    """Synthetic sentence pairs: random letters, and the same again; what a model without a way through must invent."""

    length: Count = 8
    """letters of a text"""
    num_letters: Annotated[int, Range(words="2 to 26 letters", least=2, most=26)] = 16
    """different letters"""
    num_documents: Count = 4096
    """pairs of the training split; validation and test have an eighth each"""
    max_length: Length = 16
    """tokens, the end included: more than length"""

    def check(self, field: str, config: Config) -> None:
        Translation.check(self, field, config)
        allowed = f"more than {field}length = {self.length}"
        require(self.max_length > self.length, f"{field}max_length", self.max_length, allowed)


TranslationKind = ParallelText | TfdsTranslation | NumberWords | CopiedLetters

SourceKind = (
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
    | Glue
    | TextClasses
    | CLBenchmark
    | TfdsClasses
    | SeqioClasses
    | LabelledFile
    | Squad
    | Templates
    | Digits
    | Blobs
    | PermutedBags
    | CachedFeatures
    | ParallelText
    | TfdsTranslation
    | NumberWords
    | CopiedLetters
)


@dataclass(slots=True, kw_only=True)
class Data(Settings):
    """What is read, and how it is cut into rows.

    Attributes:
      places: beginnings of the fields that say where data is, not what: they may differ wherever a run is read.
    """

    places = ("source.", "cache_dir", "neighbors", "states", "tokenizer.vocab")

    source: SourceKind = field(default_factory=PythonLibrary)
    """where documents come from"""
    tokenizer: TokenizerKind = field(default_factory=SentencePiece)
    """text to tokens; sources that are tokens already ignore it"""
    cache_dir: str = ""
    """prepared token files; '' = the user's cache folder"""
    rows: Count = 8
    """batch rows over all hosts: one document stream each"""
    segment_length: Count = 128
    """tokens of one segment"""
    protocol: Literal["separate", "contiguous"] = "separate"
    """reset memory at document starts, or cut the corpus into `rows` contiguous streams that never reset"""
    min_document_length: Count = 1
    """tokens; shorter documents are left out"""
    half: Literal["", "first", "second"] = ""
    """part of the training split that is read: '' = all, else its documents (WikiText: articles) before the middle, or
    from there on; a model of each half makes keys of text that it has not learned (`memjax datastore neighbors`)"""
    neighbors: str = ""
    """folder with the neighbours of every token of each split, which Spalm needs (`memjax datastore neighbors`)"""
    states: str = ""
    """folder with what the layers below `model.first_layer` give of each text; what it lacks is computed once, by the
    encoder of `training.init_from`"""
    seed: Seed = 0
    """order of the documents"""
