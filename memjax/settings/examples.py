"""Settings of sources of labelled examples: texts with classes, and vectors with classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import require
from memjax.settings.instructions import InstructionKind
from memjax.settings.questions import QuestionKind
from memjax.settings.ranges import Count, Encoding, Number, Percent, Positive, Range, Seed, zero_or_more
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
    """A task of GLUE (Wang et al. 2019) as a source of labelled texts or pairs of texts, for Classification.

    Where the test set has no labels, the validation split is used as test.
    """

    content_types = ("labelled",)
    opened_by = "memjax.data.glue:open_glue"
    classes_named_by = "memjax.data.glue:name_glue_classes"

    name: Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli"] = "sst2"
    """task of GLUE; 'mnli' is scored on matched genres"""
    path: str = ""
    """folder of the task's TSV files (also .xz / .gz); '' = `glue/NAME` of TensorFlow Datasets (needs the extra
    `data`)"""
    data_dir: str = ""
    """folder of prepared TFDS data sets; '' = the default of TFDS"""
    validation_percent: Percent = 10
    """percentage of the examples held out for validation, by a hash of the text, where the folder lacks a file of that
    split"""
    test_percent: Percent = 10
    """percentage of the examples held out for test, by a hash of the text, where the folder lacks a file of that
    split"""

    @property
    def metrics(self) -> tuple[str, ...]:
        return {"cola": ("matthews",), "mrpc": ("f1",), "qqp": ("f1",)}.get(self.name, ())


@dataclass(slots=True, kw_only=True)
class ClassifiedTexts(Source):
    """Common settings of the sources of labelled texts that both Classification and Instructions can read. A class has
    the same number in every order of tasks.
    """

    content_types = ("labelled", "instructions")
    answer_metric = "class"
    opened_by = "memjax.data.source_readers:open_classified_texts"
    noted_by = "memjax.data.source_readers:note_classified_texts"

    row_text: Literal["title_and_text", "text"] = "title_and_text"
    """text of an example: `title. text`, or the text without its title"""
    validation_percent: Percent = 10
    """percentage of the training texts held out for validation, by a hash of the text, where no file is that split"""
    test_percent: Percent = 10
    """percentage of the training texts held out for test, by a hash of the text, where no file is that split"""
    num_train: Number = 0
    """number of examples of the training split to use, chosen by a hash of their text; 0 = all"""
    num_validation: Number = 0
    """number of examples of the validation split to use, chosen by a hash of their text; 0 = all"""
    num_test: Number = 0
    """number of examples of the test split to use, chosen by a hash of their text; 0 = all"""
    subset_sampling: Literal["balanced", "random"] = "balanced"
    """choice of the examples where `num_train`, `num_validation` or `num_test` limits them: 'balanced' = equally many
    of each class, as far as there are so many; 'random' = whatever their class"""
    sampling_seed: Seed = 0
    """seed of the hash that chooses examples"""
    equality: Literal["exact", "letters_and_digits"] = "exact"
    """comparison of texts, of which one of two equal ones is left out: 'exact' = up to white space;
    'letters_and_digits' = by letters and digits alone, which published sets need, whose files differ in punctuation"""


@dataclass(slots=True, kw_only=True)
class TextClasses(ClassifiedTexts):
    """A data set of Zhang et al. (2015), as MbPA++ uses them: labelled texts with 33 classes in all data sets together,
    of which Yelp and Amazon share theirs.
    """

    parsed_by = "memjax.data.text_classes:parse_text_classes"
    classes_named_by = "memjax.data.text_classes:name_text_classes"

    data_set: Literal["yelp", "amazon", "ag_news", "dbpedia", "yahoo"] = "ag_news"
    """name of the data set"""
    path: str = ""
    """folder of the files"""
    train: tuple[str, ...] = ("train.csv",)
    """training files (also .xz / .gz): .csv of Zhang et al., .tsv with text and class, .json of O-LoRA"""
    test: tuple[str, ...] = ("test.csv",)
    """test files, whose texts are never trained on; () = `test_percent` of the training texts"""
    class_order: tuple[str, ...] = ()
    """names of the classes in the order of their numbers in the .csv files; () = the order of Zhang et al."""

    def file_names(self) -> tuple[str, ...]:
        return (*self.train, *self.test)


@dataclass(slots=True, kw_only=True)
class CLBenchmark(ClassifiedTexts):
    """A task of the continual-learning benchmark of O-LoRA (Wang et al. 2023): labelled texts with 42 classes in all
    tasks together, the first 33 of them as in TextClasses.
    """

    parsed_by = "memjax.data.text_classes:parse_cl_benchmark"
    classes_named_by = "memjax.data.text_classes:name_cl_benchmark_classes"

    # fmt: off
    task: Literal[
        "mnli", "cb", "wic", "copa", "qqp", "boolq", "rte", "imdb", "yelp", "amazon", "sst2", "dbpedia",
        "ag_news", "multirc", "yahoo",
    ] = "ag_news"
    # fmt: on
    """name of the task"""
    path: str = ""
    """the folder CL_Benchmark, which holds the folders NLI, SC, TC and so on (files also .xz / .gz)"""


@dataclass(slots=True, kw_only=True)
class TfdsClasses(ClassifiedTexts):
    """Labelled texts of a TensorFlow Datasets builder, AG News by default. Needs the extra `data`."""

    parsed_by = "memjax.data.text_classes:parse_tfds_classes"

    name: str = "ag_news_subset"
    """name of the TFDS builder, with config and version where needed"""
    title_feature: str = "title"
    """feature that holds the title; '' = examples have no title"""
    text_feature: str = "description"
    """feature that holds the text"""
    label_feature: str = "label"
    """feature that holds the class"""
    first_class: Number = 5
    """number that class 0 of the data set gets here; a data set of n classes takes the n numbers from there on"""
    data_dir: str = ""
    """folder of prepared TFDS data sets; '' = the default of TFDS"""


@dataclass(slots=True, kw_only=True)
class SeqioClasses(ClassifiedTexts):
    """Labelled texts of a registered seqio Task, whose `inputs` are texts and whose `targets` are names or numbers of
    classes. Needs the extra `data`.
    """

    names_seqio_task = True
    parsed_by = "memjax.data.text_classes:parse_seqio_classes"
    classes_named_by = "memjax.data.text_classes:name_seqio_classes"

    name: str = ""
    """registered name of the seqio Task"""
    classes: tuple[str, ...] = ()
    """texts of the targets in the order of the class numbers; () = the targets are numbers"""
    first_class: Number = 0
    """number that the first class gets here; the others follow"""


@dataclass(slots=True, kw_only=True)
class LabelledFile(ClassifiedTexts):
    """A user's own labelled texts in a file or folder (`memjax train --tasks A.csv B.csv`)."""

    parsed_by = "memjax.data.labelled_rows:parse_labelled_file"
    classes_named_by = "memjax.data.labelled_rows:name_labelled_classes"

    path: str = ""
    """a file, from which validation and test are held out: .csv with class, title and text, .tsv with text and class,
    or .json of O-LoRA (also .xz / .gz); or a folder with train.csv, and test.csv if there is one"""
    classes: tuple[str, ...] = ()
    """names of the classes as the file writes them"""
    class_ids: tuple[int, ...] = ()
    """number of each class in the head, in the order of `classes`; the same in every order of tasks"""
    encoding: Encoding = "utf-8"
    """encoding of files that are not UTF-8, such as utf-16, latin-1 or cp1252"""
    skip: Literal["few", "all", "none"] = "few"
    """rows without a readable text that may be left out: 'few' = up to 5 % of the characters; 'all' = any number;
    'none' = no row, the file is refused"""
    text_column: str = ""
    """name of the column or key that holds the text; '' = `row_text`, or the columns beside the class"""
    label_column: str = ""
    """name of the column or key that holds the class; '' = one called class or label, else the first column of a .csv
    file and the last of a .tsv file"""
    escapes: Literal["kept", "resolved"] = "kept"
    """treatment of backslashes: 'kept' leaves them as they are; 'resolved' replaces escapes by their characters (`\\n`,
    `\\"`), as published sets need it"""

    def check(self, field: str, config: Config) -> None:
        fits = len(set(self.class_ids)) == len(self.class_ids) == len(self.classes)
        require(
            fits,
            f"{field}class_ids",
            self.class_ids,
            f"a number of its own for each of the {len(self.classes)} classes",
        )


@dataclass(slots=True, kw_only=True)
class Templates(Source):
    """Synthetic sentences about who lives where, in a source of classes for Classification and of questions for
    QuestionAnswering.
    """

    content_types = ("labelled", "questions")
    opened_by = "memjax.data.templates:open_template_texts"
    opened_as = {"questions": "memjax.data.templates:open_template_questions"}

    num_examples: Count = 512
    """number of training examples; validation and test have an eighth as many each"""


Classes = Annotated[tuple[int, ...], Range(words="classes from 0 on", least=0)]


@dataclass(slots=True, kw_only=True)
class Vectors(Source):
    """Common settings of sources of vectors of numbers with classes, for Classification by a Perceptron.

    `data.segment_length` is the number of entries of a vector.
    """

    content_types = ("vectors",)
    classes: Classes = ()
    """numbers of the classes to read, from 0; () = all"""
    mask_classes: bool = False
    """allow only these classes as answers (task-incremental learning: the head is masked by the task)"""

    def check(self, field: str, config: Config) -> None:
        kind, model = type(self).__name__, type(config.model).__name__
        require(config.model.reads == "vectors", "model", model, f"Perceptron with {kind}")
        fits = len(set(self.classes)) == len(self.classes)
        require(fits, f"{field}classes", self.classes, "each class once")


@dataclass(slots=True, kw_only=True)
class Digits(Vectors):
    """Grey images in the files of MNIST with their digits as classes, as vectors of pixels from 0 to 1: split and
    permuted MNIST.

    The last 5,000 of the training file are the validation split, as with Mnist.
    """

    opened_by = "memjax.data.vectors:open_digits"

    path: str = ""
    """folder of train-images-idx3-ubyte, t10k-images-idx3-ubyte and their label files (also .gz)"""
    permutation: Seed = 0
    """seed of a permutation of the pixels, the same in all splits (permuted MNIST); 0 = not permuted"""
    num_train: Annotated[int, zero_or_more("all", "examples")] = 0
    """number of training examples to use, the first ones of the chosen classes; 0 = all"""
    num_test: Annotated[int, zero_or_more("all", "examples")] = 0
    """number of examples of validation and of test to use each, the first ones of the chosen classes; 0 = all"""


@dataclass(slots=True, kw_only=True)
class SyntheticVectors(Vectors):
    """Common settings of sources of synthetic vectors with classes. Equal seeds give equal vectors in every version.

    The vectors of a class do not depend on the other classes that are read, so that several tasks can share a seed.
    """

    num_classes: Annotated[int, Range(words="2 or more", least=2)] = 10
    """number of classes of the distribution"""
    num_train: Count = 512
    """number of training examples, equally many of each class"""
    num_test: Count = 128
    """number of examples in validation and in test each"""
    seed: Seed = 0
    """seed of the class distributions and of the examples"""

    def check(self, field: str, config: Config) -> None:
        Vectors.check(self, field, config)
        fits = max(self.classes, default=0) < self.num_classes
        require(fits, f"{field}classes", self.classes, f"below {field}num_classes = {self.num_classes}")


@dataclass(slots=True, kw_only=True)
class Blobs(SyntheticVectors):
    """Synthetic vectors: every class is a Gaussian cloud around a centre drawn from a standard normal distribution."""

    opened_by = "memjax.data.vectors:open_blobs"

    dim: Count = 16
    """number of entries of a vector"""
    spread: Annotated[float, zero_or_more()] = 1.0
    """standard deviation of a class around its centre; centres are about sqrt(2 dim) apart"""


@dataclass(slots=True, kw_only=True)
class PermutedBags(SyntheticVectors):
    """Synthetic bags of words with classes, as vectors of word shares: words are drawn from a distribution of each
    class, over a vocabulary that a task may permute.
    """

    opened_by = "memjax.data.vectors:open_permuted_bags"

    num_classes: Annotated[int, Range(words="2 or more", least=2)] = 4
    """number of classes of the distribution"""
    num_words: Count = 64
    """number of words of the vocabulary, which is the number of entries of a vector"""
    length: Count = 32
    """number of words of a bag; a vector holds the share of each word, times sqrt(num_words)"""
    concentration: Positive = 0.2
    """concentration of the Dirichlet distribution from which the word distribution of each class is drawn; smaller =
    fewer words to a class"""
    permutation: Seed = 0
    """seed of a permutation of the vocabulary; 0 = not permuted"""


@dataclass(slots=True, kw_only=True)
class CachedFeatures(Vectors):
    """Vectors with classes that a model has computed before: `train.npy` and `test.npy`, float32 [examples, width],
    memory-mapped, and their labels.

    The folder also has `train_labels.npy` and `test_labels.npy`, int32 [examples], and `about.json`, which describes
    the vectors. Validation is `validation.npy` with its labels, or a tenth of train, held out by a hash of the
    example's number.
    """

    opened_by = "memjax.data.vectors:open_feature_vectors"

    path: str = ""
    """folder of the arrays"""
    train: Annotated[int, zero_or_more("all", "examples")] = 0
    """number of training examples to use, drawn at random; 0 = all"""
    test: Annotated[int, zero_or_more("all", "examples")] = 0
    """number of examples of validation and of test to use each, drawn at random; 0 = all"""
    seed: Seed = 0
    """seed of the random choice of examples"""

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
