"""Tasks as text to text: where contexts with questions and answers come from, for Instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.ranges import Count, Number, Range, Seed
from memjax.settings.relations import require
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
    """Contexts with questions and answers, for Instructions."""

    gives = ("instructions",)


@dataclass(slots=True, kw_only=True)
class InstructionFiles(InstructionSource):
    """Contexts with questions and answers from published files."""

    path: str = ""
    """the folder of the published files (also .xz / .gz)"""
    num_train: Number = 0
    """examples of the training split that are kept, chosen by a hash; 0 = all"""
    num_validation: Number = 0
    """likewise of the validation split"""
    num_test: Number = 0
    """likewise of the test split"""
    sampling_seed: Seed = 0
    """of the hash"""

    def check(self, field: str, config: Config) -> None:
        del config
        kind = type(self).__name__
        require(bool(self.path), f"{field}path", self.path, f"the folder of the files of {kind}")


@dataclass(slots=True, kw_only=True)
class Sst(InstructionFiles):
    """The Stanford Sentiment Treebank with two classes (Socher et al. 2013), `stsa.binary.train` and its kin."""

    answered_by = "class"


@dataclass(slots=True, kw_only=True)
class Woz(InstructionFiles):
    """WOZ 2.0 (Wen et al. 2017; Mrksic et al. 2017): what a turn changes in the state of a dialogue.

    Whole dialogues are kept, until there are as many turns as were asked for.
    """

    answered_by = "dialogue_state"


@dataclass(slots=True, kw_only=True)
class WikiSql(InstructionFiles):
    """WikiSQL (Zhong et al. 2017): a question as a query, from `wikisql.json` of text2sql-data.

    The headers of the tables are not in it: columns have to be guessed from the question.
    """

    answered_by = "logical_form"


@dataclass(slots=True, kw_only=True)
class InstructionLines(InstructionFiles):
    """Files of one's own: a folder with `train.jsonl`, `validation.jsonl` and `test.jsonl` (also .xz / .gz).

    Every line is a JSON object with `question`, `answers` (a list, or one text), and where there is one `context`.
    """

    answered_by: Literal["words", "class", "logical_form", "dialogue_state"] = "words"
    """what counts as right: words that are shared (F1), the very name of a class, the parts of a query, or of a change
    of state"""


@dataclass(slots=True, kw_only=True)
class SeqioInstructions(InstructionSource):
    """A registered seqio Task: `inputs` are context and question, `targets` the answer.

    Of inputs that are too long the end is cut off.
    """

    name: str = ""
    """of the Task; the module that registers it is named in SEQIO_MODULES"""
    answered_by: Literal["words", "class"] = "words"
    """what counts as right: words that are shared (F1), or the very name of a class"""


@dataclass(slots=True, kw_only=True)
class ToyInstructions(InstructionSource):
    """Letters that are to be copied, reversed or sorted; made, not read."""

    answered_by = "class"

    change: Literal["copy", "reverse", "sort"] = "copy"
    """what the answer makes of the context"""
    num_letters: Annotated[int, Range(words="2 to 26", least=2, most=26)] = 6
    """different ones"""
    length: Count = 3
    """letters of a context"""
    num_examples: Count = 256
    """to train on; an eighth of them in other splits"""


InstructionKind = Sst | Woz | WikiSql | InstructionLines | SeqioInstructions | ToyInstructions
