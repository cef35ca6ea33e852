"""Memories: one paper, one file, under one contract."""

from memjax.memory.bidirectional import BidirectionalAttention
from memjax.memory.compressive import CompressiveAttention, CompressiveState, Usage
from memjax.memory.continuous_cache import ContinuousCache, ContinuousCacheState
from memjax.memory.contract import (
    CrossMemory,
    DecodeState,
    LayerMemory,
    LayerState,
    Memory,
    OutputMemory,
    StackMemory,
    StackState,
    Stateless,
    num_rows,
    restore_state,
    save_state,
    select_state,
    state_axes,
    take_rows,
    where_rows,
)
from memjax.memory.cross_attention import CrossAttention, CrossAttentionState
from memjax.memory.gpt2 import GPT2Attention, GPT2CompressiveAttention, GPT2InfinityFormerAttention
from memjax.memory.infinity_former import InfinityFormerAttention, InfinityFormerState, LongTermMemory, LongTermState
from memjax.memory.knn_lm import KNNMemory
from memjax.memory.linear_transformer import LinearCrossAttention, LinearCrossState, LinearTransformerAttention
from memjax.memory.lstm import LSTM, LSTMState
from memjax.memory.memformer import Encoded, MemformerEncoder, MemformerState
from memjax.memory.memorizing import LongMemory, MemorizingAttention, MemorizingState, Tokens
from memjax.memory.memory_tokens import EncoderLayer, MemoryTokens, resize_memory
from memjax.memory.memory_tokens_xl import MemoryTokenXLAttention
from memjax.memory.memsizer import MemSizerAttention
from memjax.memory.mixtures import Prediction, Recalled
from memjax.memory.product_key import ProductKeyMemory
from memjax.memory.rfa import RFAAttention
from memjax.memory.spalm import Spalm
from memjax.memory.t2r import T2RAttention
from memjax.memory.transformer_xl import TransformerXLAttention, TransformerXLState

__all__ = [
    "BidirectionalAttention",
    "CompressiveAttention",
    "CompressiveState",
    "ContinuousCache",
    "ContinuousCacheState",
    "CrossAttention",
    "CrossAttentionState",
    "DecodeState",
    "Encoded",
    "EncoderLayer",
    "GPT2Attention",
    "GPT2CompressiveAttention",
    "GPT2InfinityFormerAttention",
    "InfinityFormerAttention",
    "InfinityFormerState",
    "KNNMemory",
    "LSTM",
    "LSTMState",
    "LayerState",
    "LinearCrossAttention",
    "LinearCrossState",
    "LinearTransformerAttention",
    "LongMemory",
    "LongTermMemory",
    "LongTermState",
    "MemSizerAttention",
    "MemformerEncoder",
    "MemformerState",
    "MemorizingAttention",
    "MemorizingState",
    "CrossMemory",
    "LayerMemory",
    "Memory",
    "OutputMemory",
    "StackMemory",
    "Stateless",
    "MemoryTokenXLAttention",
    "MemoryTokens",
    "Prediction",
    "ProductKeyMemory",
    "RFAAttention",
    "Recalled",
    "Spalm",
    "StackState",
    "T2RAttention",
    "Tokens",
    "TransformerXLAttention",
    "TransformerXLState",
    "Usage",
    "num_rows",
    "resize_memory",
    "restore_state",
    "save_state",
    "select_state",
    "state_axes",
    "take_rows",
    "where_rows",
]
