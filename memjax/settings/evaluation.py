"""Settings of evaluations: which split is scored, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import Settings, require
from memjax.settings.ranges import Count, Number, Share, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["ContinuousCache", "Evaluation"]


@dataclass(slots=True, kw_only=True)
class ContinuousCache(Settings):
    """A continuous cache (Grave et al. 2017) on a trained model: recent hidden states, each with the token that
    followed, predict the next token together with the model.
    """

    memory_length: Annotated[int, zero_or_more("no cache", "tokens")] = 0
    """number of recent tokens that the cache holds; 0 = no cache"""
    interpolation: Literal["linear", "global"] = "linear"
    """combination of model and cache: 'linear' interpolates their two distributions; 'global' takes one softmax over
    the scores of both"""
    similarity: Literal["dot", "cosine", "negative_squared_l2"] = "dot"
    """similarity of hidden states, from which the scores of the cache are computed"""
    interpolation_weight: Share = 0.1
    """weight of the cache's distribution where `interpolation` is 'linear', from 0 to 1 (lambda in the paper)"""
    similarity_scale: Annotated[float, zero_or_more()] = 0.1
    """factor on the similarities (theta in the paper); a good value depends on the size of the hidden states, so tune
    it"""
    score_offset: float = 0.0
    """number added to the scores of the cache where `interpolation` is 'global' (alpha in the paper)"""
    keep_across_documents: bool = False
    """keep the entries of earlier documents in the cache instead of emptying it at every document start"""

    def check(self, field: str, config: Config) -> None:
        fits = self.interpolation == "linear" or config.model.output.softmax.is_one_softmax
        require(
            fits,
            f"{field}interpolation",
            self.interpolation,
            "'linear' with AdaptiveSoftmax (it has no single softmax)",
        )


@dataclass(slots=True, kw_only=True)
class Evaluation(Settings):
    """One evaluation: the split that is scored, the way it is read and the size of the memory, and what is measured
    besides the loss.
    """

    name: str = ""
    """name of the evaluation in metrics.jsonl; needed where there are several; '' only in `evaluation`"""
    task: str = ""
    """name of the task of a stream whose documents or examples are scored; '' = the data of `data.source`"""
    prompt_of_task: str = ""
    """name of the task whose learned prompt is put into the texts, or 'none' for no prompt (where `task.prompt` is not
    'none'); '' = the prompt of the task that is evaluated"""
    split: Literal["train", "validation", "test"] = "validation"
    """split of the data that is scored"""
    batch_size: Count = 8
    """number of rows that are scored side by side"""
    segment_length: Number = 0
    """tokens that the model reads at once; 0 = `data.segment_length`"""
    protocol: Literal["", "separate", "contiguous", "sliding_window"] = ""
    """'separate' resets the memory at every document start; 'contiguous' scores the joined corpus in as many streams as
    there are rows; 'sliding_window' scores only the last tokens of overlapping segments (see `stride`); '' =
    `data.protocol`"""
    stride: Number = 0
    """number of tokens scored in each segment where `protocol` is 'sliding_window'; 0 = half a segment"""
    score_first_token: bool = True
    """also score the first token of each document, predicted from a begin token"""
    memory_length: int | None = None
    """number of slots of the memory at evaluation; 0 = no memory; None = as trained"""
    memory_intervention: Literal["kept", "cleared", "shuffled"] = "kept"
    """memory that each segment starts with, to measure how much the model uses its memory: 'kept' = as earlier segments
    left it; 'cleared' = as at the start of a document; 'shuffled' = the memory of another row"""
    intervention_path: str = ""
    """part of the path of those memory arrays that `memory_intervention` changes, such as 'compressed'; '' = all of the
    memory"""
    max_segments: Number = 0
    """maximum number of segments scored in each row; 0 = the whole split"""
    compute_accuracy: bool = False
    """also count the targets that the model gives the highest probability"""
    max_answers: Number = 200
    """number of examples, the first of the split, for which the model generates text after scoring: translations,
    dialogue answers or answers to instructions; slow; 0 = none"""
    identifier_distance: Number = 0
    """number of tokens since its last occurrence beyond which an identifier of source code is also scored separately;
    0 = the number of tokens that a layer sees without its long memory"""
    cache: ContinuousCache = field(default_factory=ContinuousCache)
    """continuous cache that is added to the model"""

    def check(self, field: str, config: Config) -> None:
        fits = not self.intervention_path or self.memory_intervention != "kept"
        require(fits, f"{field}intervention_path", self.intervention_path, "'' with memory_intervention 'kept'")
        positions = config.model.memory_facts.learned_positions
        fits = not positions or self.segment_length <= positions
        require(fits, f"{field}segment_length", self.segment_length, f"at most the {positions} positions of the model")
