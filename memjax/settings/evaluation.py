"""How a split is scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.ranges import Count, Number, Share, zero_or_more
from memjax.settings.relations import Settings, require

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["ContinuousCache", "Evaluation"]


@dataclass(slots=True, kw_only=True)
class ContinuousCache(Settings):
    """A continuous cache (Grave et al. 2017) over a trained model: recent hidden states with the tokens after them."""

    memory_length: Annotated[int, zero_or_more("no cache", "tokens")] = 0
    """tokens it holds; 0 = no cache"""
    mixing: Literal["linear", "global"] = "linear"
    """interpolate two distributions, or one softmax over the model's scores and the cache's"""
    similarity: Literal["dot", "cosine", "negative_squared_l2"] = "dot"
    """of hidden states"""
    interpolation_weight: Share = 0.1
    """share of the cache in linear mixing (the paper's lambda)"""
    scale: Annotated[float, zero_or_more()] = 0.1
    """multiplies similarities (the paper's theta); depends on the size of the hidden states: tune it"""
    offset: float = 0.0
    """added to the scores in global mixing (the paper's alpha)"""
    across_documents: bool = False
    """keep what earlier documents have left"""

    def check(self, field: str, config: Config) -> None:
        fits = self.mixing == "linear" or config.model.output.softmax.is_one_softmax
        require(fits, f"{field}mixing", self.mixing, "'linear' with AdaptiveSoftmax (it has no single softmax)")


@dataclass(slots=True, kw_only=True)
class Evaluation(Settings):
    """How a split is scored."""

    name: str = ""
    """of one of several evaluations, in metrics.jsonl; '' only in `evaluation`"""
    task: str = ""
    """which task's documents, of those that are learned one after the other; '' = those of data.source"""
    prompt: str = ""
    """with task.prompt: whose prompt the documents of `task` are read with, another task's or 'none'; '' = their own"""
    split: Literal["train", "validation", "test"] = "validation"
    """which documents"""
    rows: Count = 8
    """streams scored side by side"""
    segment_length: Number = 0
    """tokens; 0 = the training segment length"""
    protocol: Literal["", "separate", "contiguous", "sliding_window"] = ""
    """'' = the training protocol"""
    stride: Number = 0
    """tokens scored per sliding window; 0 = half a segment"""
    score_first: bool = True
    """score each document's first token from a begin token"""
    memory_length: int | None = None
    """slots of the memory at evaluation; None = as trained, 0 = off"""
    memory_state: Literal["kept", "cleared", "shuffled"] = "kept"
    """what every segment finds of the memory: what was left there, what a document starts with, or that of another
    row; the difference is what the model makes of its memory"""
    memory_part: str = ""
    """with memory_state 'cleared' or 'shuffled': only leaves of the state whose path contains it, such as
    'compressed'; '' = all of the memory"""
    max_segments: Number = 0
    """stop after so many segments of every row; 0 = the whole split"""
    accuracy: bool = False
    """also count the targets that the model finds most probable"""
    answers: Number = 200
    """sentences translated, or dialogues answered, by `memjax eval` after the scores (slow), the first of the split;
    0 = none"""
    distance: Number = 0
    """source code: identifiers last seen more than so many tokens before are scored apart too; 0 = the local window"""
    cache: ContinuousCache = field(default_factory=ContinuousCache)
    """a continuous cache laid over the model"""

    def check(self, field: str, config: Config) -> None:
        fits = not self.memory_part or self.memory_state != "kept"
        require(fits, f"{field}memory_part", self.memory_part, "'' with memory_state 'kept'")
        positions = config.model.carrier.learned_positions
        fits = not positions or self.segment_length <= positions
        require(fits, f"{field}segment_length", self.segment_length, f"at most the {positions} positions of the model")
