"""Models that carry memories."""

from memjax.models.features import add_features, add_mixtures, regroup
from memjax.models.gpt2 import GPT2Attention, GPT2CompressiveAttention, GPT2InfinityFormerAttention
from memjax.models.language_model import LanguageModel, LanguageModelState, make_language_model, make_mixtures
from memjax.models.memformer import Memformer, make_memformer, make_model, replay_parts
from memjax.models.transformer import FeedForward, Layer, Stack, join_layers, split_layers
from memjax.models.vocabulary import AdaptiveVocabulary, Vocabulary, cut_tables, pad_tables

__all__ = [
    "AdaptiveVocabulary",
    "FeedForward",
    "GPT2Attention",
    "GPT2CompressiveAttention",
    "GPT2InfinityFormerAttention",
    "LanguageModel",
    "LanguageModelState",
    "Layer",
    "Memformer",
    "Stack",
    "Vocabulary",
    "add_features",
    "add_mixtures",
    "cut_tables",
    "join_layers",
    "make_language_model",
    "make_memformer",
    "make_mixtures",
    "make_model",
    "pad_tables",
    "regroup",
    "replay_parts",
    "split_layers",
]
