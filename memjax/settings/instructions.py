"""Settings of sources of tasks as text to text: contexts with questions and answers, for the task Instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import require
from memjax.settings.ranges import Count, Number, Range, Seed
from memjax.settings.sources import Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "InstructionKind",
    "InstructionLines",
    "InstructionSource",
    "SeqioInstructions",
    "Sst",
    "ToyInstructions",
    "WikiSql",
    "Woz",
]


@dataclass(slots=True, kw_only=True)
class InstructionSource(Source):
    """Base class of the sources that serve the task Instructions alone, with contexts, questions and answers. Sources
    of questions and of labelled texts serve it too, but do not derive from this class.
    """

    content_types = ("instructions",)


@dataclass(slots=True, kw_only=True)
class InstructionFiles(InstructionSource):
    """Common settings of Sst, Woz, WikiSql and InstructionLines, which read contexts with questions and answers from
    the files in a folder.
    """

    opened_as = {"instructions": "memjax.data.source_readers:open_instruction_files"}

    path: str = ""
    """folder of the published files (also .xz / .gz)"""
    num_train: Number = 0
    """number of examples of the training split to use, chosen by a hash; 0 = all"""
    num_validation: Number = 0
    """number of examples of the validation split to use, chosen by a hash; 0 = all"""
    num_test: Number = 0
    """number of examples of the test split to use, chosen by a hash; 0 = all"""
    sampling_seed: Seed = 0
    """seed of the hash that chooses examples"""

    def check(self, field: str, config: Config) -> None:
        del config
        kind = type(self).__name__
        require(bool(self.path), f"{field}path", self.path, f"the folder of the files of {kind}")


@dataclass(slots=True, kw_only=True)
class Sst(InstructionFiles):
    """The Stanford Sentiment Treebank (Socher et al. 2013), in the files `stsa.binary.train` and so on: the answer is
    whether a sentence is negative or positive.
    """

    answer_metric = "class"
    parsed_by = "memjax.data.instruction_readers:sst_instructions"
    classes_named_by = "memjax.data.source_readers:name_polarities"


@dataclass(slots=True, kw_only=True)
class Woz(InstructionFiles):
    """WOZ 2.0 (Wen et al. 2017; Mrksic et al. 2017): the answer is the change of a dialogue's state by a turn, read
    from the published files.

    Where the number of examples is limited, whole dialogues are used, until there are as many turns.
    """

    answer_metric = "dialogue_state"
    parsed_by = "memjax.data.instruction_readers:woz_instructions"


@dataclass(slots=True, kw_only=True)
class WikiSql(InstructionFiles):
    """WikiSQL (Zhong et al. 2017): the answer is the SQL query that an English question stands for, from `wikisql.json`
    of text2sql-data.

    The data set does not include the headers of the tables: columns have to be guessed from the question.
    """

    answer_metric = "logical_form"
    parsed_by = "memjax.data.instruction_readers:wikisql_instructions"


@dataclass(slots=True, kw_only=True)
class InstructionLines(InstructionFiles):
    """A user's own contexts with questions and answers: a folder with `train.jsonl`, `validation.jsonl` and
    `test.jsonl` (also .xz / .gz).

    Every line is a JSON object with `question`, `answers` (a list, or one text), and optionally `context`.
    """

    parsed_by = "memjax.data.instruction_readers:read_instruction_lines"

    answer_metric: Literal["words", "class", "logical_form", "dialogue_state"] = "words"
    """comparison of a generated answer with the right one: 'words' = F1 of their words; 'class' = equality with the
    name of a class; 'logical_form' = parts of a query; 'dialogue_state' = changes of a dialogue's state"""


@dataclass(slots=True, kw_only=True)
class SeqioInstructions(InstructionSource):
    """Contexts with questions and answers of a registered seqio Task: `inputs` are context and question, `targets` the
    answer.

    Inputs that are too long lose their end.
    """

    opened_as = {"instructions": "memjax.data.instruction_readers:open_seqio_instructions"}

    name: str = ""
    """registered name of the seqio Task; SEQIO_MODULES names the module that registers it"""
    answer_metric: Literal["words", "class"] = "words"
    """comparison of a generated answer with the right one: 'words' = F1 of their words; 'class' = equality with the
    name of a class"""


@dataclass(slots=True, kw_only=True)
class ToyInstructions(InstructionSource):
    """Synthetic instructions to copy, reverse or sort some letters."""

    answer_metric = "class"
    opened_as = {"instructions": "memjax.data.instruction_readers:open_toy_instructions"}

    change: Literal["copy", "reverse", "sort"] = "copy"
    """operation that turns the letters of the context into the answer"""
    num_letters: Annotated[int, Range(words="2 to 26", least=2, most=26)] = 6
    """number of different letters"""
    length: Count = 3
    """number of letters of a context"""
    num_examples: Count = 256
    """number of training examples; validation and test have an eighth as many each"""


InstructionKind = Sst | Woz | WikiSql | InstructionLines | SeqioInstructions | ToyInstructions
