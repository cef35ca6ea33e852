"""Settings of methods that replay texts which the model itself generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.checks import require
from memjax.settings.methods import Method
from memjax.settings.ranges import Count, Positive, Range, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["LAMOL"]


@dataclass(slots=True, kw_only=True)
class LAMOL(Method):
    """LAMOL (Sun et al. 2020): a language model learns tasks as text, and replays texts that it generates itself.

    The task must be Instructions.
    """

    made_by = "memjax.lifelong.lamol:lamol"

    sample_ratio: Annotated[float, Range(words="a share of 0 (nothing is replayed) or more", least=0)] = 0.2
    """number of examples of earlier tasks replayed beside a task, as a share of the examples of the task (gamma)"""
    sample_source: Literal["generated", "real"] = "generated"
    """'generated' = replay texts that the model generates before the task; 'real' = replay examples that were read
    before, drawn with replacement, as a control"""
    generation_token: Literal["task", "shared"] = "task"
    """token in front of a text that is generated: 'task' = one for each task; 'shared' = one for all tasks"""
    lm_loss_weight: Annotated[float, zero_or_more("answers alone")] = 0.25
    """weight of the language-modelling loss over whole texts, beside the loss of the answers (lambda)"""
    answer_weight: Positive = 1.0
    """weight of the answer mark ANS as a target of the language-modelling loss (5 in the published code)"""
    top_k: Annotated[int, zero_or_more("all", "tokens")] = 20
    """number of most probable tokens from which the next one is drawn; 0 = all tokens"""
    temperature: Positive = 1.0
    """divisor of the scores before a token is drawn"""
    capacity: Count = 1000
    """number of rows that the memory of generated texts can hold; at least `sample_ratio` of the largest task but the
    first"""
    replay_batch_size: Count = 8
    """number of replayed rows in an update"""
    generation_batch_size: Count = 32
    """number of texts that are generated side by side"""

    @classmethod
    def as_published(cls, **fields: Any) -> LAMOL:
        """Returns settings as in the published code, in which the mark ANS has a weight of 5. Fields are given as
        keywords.
        """
        return cls(**{"answer_weight": 5.0, **fields})

    @property
    def interval(self) -> int:
        """Number of examples of the task between two replays of `replay_batch_size` rows, which follows from
        `sample_ratio`. 0 = no replay.
        """
        return round(self.replay_batch_size / self.sample_ratio) if self.sample_ratio else 0

    def check(self, field: str, config: Config) -> None:
        task = type(config.task).__name__
        require(config.task.is_generative, "task", task, "Instructions with LAMOL, as in the config lifelong_lamol")
        least = config.data.batch_size * self.sample_ratio
        allowed = (
            f"at least {least:g}, sample_ratio = {self.sample_ratio:g} of the {config.data.batch_size} rows of a batch"
        )
        require(
            not self.sample_ratio or self.interval >= config.data.batch_size,
            f"{field}replay_batch_size",
            self.replay_batch_size,
            allowed,
        )
