"""Models that carry memories."""

from memjax.models.encoder_decoder import EncoderDecoder
from memjax.models.factory import (
    make_encoder_decoder,
    make_language_model,
    make_memformer,
    make_mixtures,
    make_model,
    make_text_encoder,
)
from memjax.models.features import add_features, add_mixtures, regroup
from memjax.models.language_model import LanguageModel, LanguageModelState
from memjax.models.memformer import Memformer, replay_parts
from memjax.models.text_encoder import TextEncoder, mean_pooling
from memjax.models.transformer import FeedForward, Layer, NoFeedForward, Stack, join_layers, split_layers
from memjax.models.vocabulary import AdaptiveVocabulary, Vocabulary, cut_tables, pad_tables

__all__ = [
    "AdaptiveVocabulary",
    "EncoderDecoder",
    "FeedForward",
    "LanguageModel",
    "LanguageModelState",
    "Layer",
    "Memformer",
    "NoFeedForward",
    "Stack",
    "TextEncoder",
    "Vocabulary",
    "add_features",
    "add_mixtures",
    "cut_tables",
    "join_layers",
    "make_encoder_decoder",
    "make_language_model",
    "make_memformer",
    "make_model",
    "make_mixtures",
    "make_text_encoder",
    "mean_pooling",
    "pad_tables",
    "regroup",
    "replay_parts",
    "split_layers",
]
