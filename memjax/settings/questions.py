"""Settings of sources of questions about texts, for the task QuestionAnswering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memjax.settings.checks import require
from memjax.settings.ranges import Count, Number, Percent, Seed
from memjax.settings.sources import Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["QuestionSource", "QaSrl", "Quac", "QuestionKind", "Squad", "TriviaQa"]


@dataclass(slots=True, kw_only=True)
class QuestionSource(Source):
    """Common settings of Squad, TriviaQa, Quac and QaSrl, sources of questions about texts for the tasks
    QuestionAnswering and Instructions.
    """

    content_types = ("questions", "instructions")
    opened_by = "memjax.data.source_readers:open_questions"
    noted_by = "memjax.data.source_readers:note_questions"

    path: str = ""
    """folder of the published files (also .xz / .gz); '' = the builder of TensorFlow Datasets, where there is one
    (needs the extra `data`)"""
    data_dir: str = ""
    """folder of prepared TFDS data sets; '' = the default of TFDS"""
    validation_percent: Percent = 10
    """percentage of the texts held out for validation, by a hash of their subject, where no file is that split"""
    test_percent: Percent = 10
    """percentage of the texts held out for test, by a hash of their subject, where no file is that split"""
    num_train: Number = 0
    """number of questions of the training split to use, chosen by a hash of question and text; 0 = all"""
    num_validation: Number = 0
    """number of questions of the validation split to use, chosen by a hash of question and text; 0 = all"""
    num_test: Number = 0
    """number of questions of the test split to use, chosen by a hash of question and text; 0 = all"""
    sampling_seed: Seed = 0
    """seed of the hash that chooses questions"""


@dataclass(slots=True, kw_only=True)
class Squad(QuestionSource):
    """SQuAD 1.1 (Rajpurkar et al. 2016). Its test set is hidden, so that `test` is the validation set."""

    parsed_by = "memjax.data.squad:parse_squad"
    noted_by = ""  # no question is left out

    parts: Count = 1
    """number of groups into which the articles are divided by a hash of their titles, to make several tasks of one
    source"""
    part: Number = 0
    """number of the group of articles that is read, from 0"""

    def check(self, field: str, config: Config) -> None:
        require(self.part < self.parts, f"{field}part", self.part, f"below {field}parts = {self.parts}")


@dataclass(slots=True, kw_only=True)
class TriviaQa(QuestionSource):
    """TriviaQA (Joshi et al. 2017): the answer to a question is the first place where a page names it.

    Questions whose answers no page names are left out, and counted. The test set is hidden, so that `test` is the
    validation set.
    """

    parsed_by = "memjax.data.trivia_qa:parse_trivia_qa"

    pages: Literal["web", "wikipedia"] = "web"
    """set of pages: 'web' = pages found by a web search; 'wikipedia' = pages of Wikipedia"""
    max_words: Number = 800
    """number of words of a page that are read (800 in the authors' conversion); 0 = all"""


@dataclass(slots=True, kw_only=True)
class Quac(QuestionSource):
    """QuAC (Choi et al. 2018): questions about texts, where every turn of a dialogue is an independent question.

    Turns without an answer are left out, and counted. The test set is hidden, so that `test` is the validation set.
    """

    parsed_by = "memjax.data.quac:parse_quac"


@dataclass(slots=True, kw_only=True)
class QaSrl(QuestionSource):
    """QA-SRL, the gold standard of Roit et al. (2020): questions who did what to whom in a sentence.

    A share of the development file is `validation`, the rest is `train`. TFDS has no builder for it.
    """

    parsed_by = "memjax.data.qa_srl:parse_qa_srl"

    domain: Literal["wikinews", "wikipedia"] = "wikinews"
    """set of sentences: 'wikinews' or 'wikipedia'"""

    def check(self, field: str, config: Config) -> None:
        require(not self.data_dir, f"{field}data_dir", self.data_dir, "'' (QaSrl has files alone)")


QuestionKind = Squad | TriviaQa | Quac | QaSrl
