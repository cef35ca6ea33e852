"""Where finite labelled examples come from: texts with classes or questions, and vectors with classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.instructions import InstructionKind
from memjax.settings.questions import QuestionKind
from memjax.settings.ranges import Count, Encoding, Number, Percent, Positive, Range, Seed, zero_or_more
from memjax.settings.relations import require
from memjax.settings.sources import Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "Glue",
    "ClassifiedTexts",
    "TextClasses",
    "CLBenchmark",
    "TfdsClasses",
    "SeqioClasses",
    "LabelledFile",
    "Templates",
    "Vectors",
    "Digits",
    "Blobs",
    "PermutedBags",
    "CachedFeatures",
    "ExampleKind",
]


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

    gives = ("labelled", "instructions")
    answered_by = "class"

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
    equality: Literal["exact", "letters_and_digits"] = "exact"
    """texts that count as equal, so that one is left out: those of equal signs (but for white space), or of equal
    letters and digits, as published sets need it, whose files differ in signs"""


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

    def file_names(self) -> tuple[str, ...]:
        return (*self.train, *self.test)


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

    names_seqio_task = True

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
    encoding: Encoding = "utf-8"
    """encoding of the files that are not UTF-8, such as utf-16, latin-1 or cp1252"""
    skip: Literal["few", "all", "none"] = "few"
    """rows without a text that are left out: up to 5 % of the characters, all that cannot be read, or none"""
    text_column: str = ""
    """name of the column or key that holds the text; '' = the columns beside that of the class, or `text`"""
    label_column: str = ""
    """name of the column or key that holds the class; '' = one that is called class or label, else the first column of
    .csv and the last of .tsv"""
    escapes: Literal["kept", "resolved"] = "kept"
    """whether backslashes stay as they are, or what they escape is put back (`\\n`, `\\"`), as in published sets"""

    def check(self, field: str, config: Config) -> None:
        fits = len(set(self.numbers)) == len(self.numbers) == len(self.classes)
        require(
            fits, f"{field}numbers", self.numbers, f"a number of its own for each of the {len(self.classes)} classes"
        )


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

    def file_names(self) -> tuple[str, ...]:
        splits = ("train", "validation", "test")
        return tuple(f"{split}{end}.npy" for split in splits for end in ("", "_labels"))


ExampleKind = (
    InstructionKind
    | Glue
    | TextClasses
    | CLBenchmark
    | TfdsClasses
    | SeqioClasses
    | LabelledFile
    | QuestionKind
    | Templates
    | Digits
    | Blobs
    | PermutedBags
    | CachedFeatures
)
