"""Memories that are generated: a model writes what it has learned."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.methods import Method
from memjax.settings.ranges import Count, Positive, Range, zero_or_more
from memjax.settings.relations import require

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["LAMOL"]


@dataclass(slots=True, kw_only=True)
class LAMOL(Method):
    """LAMOL (Sun et al. 2020): a language model learns tasks as text, and beside each what it writes of earlier ones.

    Needs task Instructions.
    """

    made_by = "lamol.lamol"

    share: Annotated[float, Range(words="a share of 0 (nothing is replayed) or more", least=0)] = 0.2
    """of the examples of a task, as many are replayed of earlier ones beside them (gamma)"""
    samples: Literal["generated", "real"] = "generated"
    """what is replayed: what the model writes before a task, or, as a bound, examples that it has read, with
    replacement"""
    tokens: Literal["task", "shared"] = "task"
    """in front of a text that is to be written: a mark of its task, or one for all"""
    language_weight: Annotated[float, zero_or_more("answers alone")] = 0.25
    """of the loss of whole texts, beside that of answers (lambda)"""
    answer_weight: Positive = 1.0
    """of the mark ANS as a target of whole texts (5 in the published code)"""
    top_k: Annotated[int, zero_or_more("all", "tokens")] = 20
    """most probable tokens that can be drawn"""
    temperature: Positive = 1.0
    """divides scores before a token is drawn"""
    capacity: Count = 1000
    """rows that the memory has room for: at least `share` of the largest task but the first"""
    rows: Count = 8
    """of the memory, read at once"""
    written_at_once: Count = 32
    """texts side by side"""

    @classmethod
    def as_published(cls, **fields: Any) -> LAMOL:
        """As the published code has it, which weighs ANS."""
        return cls(**{"answer_weight": 5.0, **fields})

    @property
    def interval(self) -> int:
        """Examples of the task from one reading of the memory to the next."""
        return round(self.rows / self.share) if self.share else 0

    def arguments(self) -> dict[str, Any]:
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "every": self.interval}

    def check(self, field: str, config: Config) -> None:
        given = type(config.task).__name__
        require(config.task.writes, "task", given, "Instructions with LAMOL")
        least = config.data.rows * self.share
        allowed = f"at least {least:g}, share = {self.share:g} of the {config.data.rows} rows of a batch"
        require(not self.share or self.interval >= config.data.rows, f"{field}rows", self.rows, allowed)
