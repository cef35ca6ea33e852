"""Where questions about texts come from, for QuestionAnswering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memjax.settings.ranges import Count, Number, Percent, Seed
from memjax.settings.relations import require
from memjax.settings.sources import Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["AskedTexts", "QaSrl", "Quac", "QuestionKind", "Squad", "TriviaQa"]


@dataclass(slots=True, kw_only=True)
class AskedTexts(Source):
    """Questions about texts, for QuestionAnswering."""

    gives = ("questions", "instructions")

    path: str = ""
    """the folder of the published files (also .xz / .gz); '' = the builder of TensorFlow Datasets, where there is one
    (needs the extra `data`)"""
    data_dir: str = ""
    """prepared TFDS data sets; '' = the library's default"""
    validation_percent: Percent = 10
    """share of the texts held out, by a hash of what they are about, where no file is the split"""
    test_percent: Percent = 10
    """likewise for the test split"""
    num_train: Number = 0
    """questions of the training split that are kept, chosen by a hash of question and text; 0 = all"""
    num_validation: Number = 0
    """likewise of the validation split"""
    num_test: Number = 0
    """likewise of the test split"""
    sampling_seed: Seed = 0
    """of the hash"""


@dataclass(slots=True, kw_only=True)
class Squad(AskedTexts):
    """SQuAD 1.1 (Rajpurkar et al. 2016), for QuestionAnswering. Its test set is hidden: `test` is then validation."""

    parts: Count = 1
    """groups into which the articles fall, by a hash of the title: one source as several tasks"""
    part: Number = 0
    """which of them is read, from 0"""

    def check(self, field: str, config: Config) -> None:
        require(self.part < self.parts, f"{field}part", self.part, f"below {field}parts = {self.parts}")


@dataclass(slots=True, kw_only=True)
class TriviaQa(AskedTexts):
    """TriviaQA (Joshi et al. 2017), for QuestionAnswering: where a page first names an answer.

    What its pages do not name is left out, and counted. The test set is hidden: `test` is then validation.
    """

    pages: Literal["web", "wikipedia"] = "web"
    """which of its two sets: pages that a search has found, or those of Wikipedia"""
    max_words: Number = 800
    """words of a page that are read (800 in the authors' conversion); 0 = all"""


@dataclass(slots=True, kw_only=True)
class Quac(AskedTexts):
    """QuAC (Choi et al. 2018), for QuestionAnswering: every turn of a dialogue as a question of its own.

    Turns without an answer are left out, and counted. The test set is hidden: `test` is then validation.
    """


@dataclass(slots=True, kw_only=True)
class QaSrl(AskedTexts):
    """QA-SRL, the gold standard of Roit et al. (2020), for QuestionAnswering: who did what to whom in a sentence.

    A share of its development file is `validation`, the rest is trained on; it has no builder of TFDS.
    """

    domain: Literal["wikinews", "wikipedia"] = "wikinews"
    """which of its two sets"""

    def check(self, field: str, config: Config) -> None:
        require(not self.data_dir, f"{field}data_dir", self.data_dir, "'' (QaSrl has files alone)")


QuestionKind = Squad | TriviaQa | Quac | QaSrl
