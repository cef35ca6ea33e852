"""Models that carry memories."""

from memjax.models.encoder_decoder import EncoderDecoder, make_encoder_decoder
from memjax.models.features import add_features, add_mixtures, regroup
from memjax.models.gpt2 import GPT2Attention, GPT2CompressiveAttention, GPT2InfinityFormerAttention
from memjax.models.language_model import LanguageModel, LanguageModelState, make_language_model, make_mixtures
from memjax.models.memformer import Memformer, make_memformer, memformer_of, replay_parts
from memjax.models.recurrent import LSTM, LSTMState
from memjax.models.text_encoder import TextEncoder, make_text_encoder, mean_pooling
from memjax.models.transformer import FeedForward, Layer, NoFeedForward, Stack, join_layers, split_layers
from memjax.models.vocabulary import AdaptiveVocabulary, Vocabulary, cut_tables, pad_tables

__all__ = [
    "AdaptiveVocabulary",
    "EncoderDecoder",
    "FeedForward",
    "GPT2Attention",
    "GPT2CompressiveAttention",
    "GPT2InfinityFormerAttention",
    "LSTM",
    "LSTMState",
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
    "memformer_of",
    "make_mixtures",
    "make_text_encoder",
    "mean_pooling",
    "pad_tables",
    "regroup",
    "replay_parts",
    "split_layers",
]
