"""Memories: one paper, one file, under one contract."""

from memjax.memory.compressive import CompressiveAttention, CompressiveState, Usage
from memjax.memory.continuous_cache import ContinuousCache, ContinuousCacheState
from memjax.memory.contract import (
    DecodeState,
    LayerState,
    MemoryModule,
    StackState,
    num_rows,
    restore_state,
    save_state,
    select_state,
    state_axes,
    take_rows,
    where_rows,
)
from memjax.memory.infinity_former import (
    InfinityFormerAttention,
    InfinityFormerState,
    LongTermMemory,
    LongTermState,
)
from memjax.memory.knn_lm import KNNMemory
from memjax.memory.memformer import Encoded, MemformerEncoder, MemformerState
from memjax.memory.memorizing import LongMemory, MemorizingAttention, MemorizingState, Tokens
from memjax.memory.mixtures import Prediction, Recalled
from memjax.memory.spalm import Spalm
from memjax.memory.transformer_xl import TransformerXLAttention, TransformerXLState

__all__ = [
    "CompressiveAttention",
    "CompressiveState",
    "ContinuousCache",
    "ContinuousCacheState",
    "DecodeState",
    "Encoded",
    "InfinityFormerAttention",
    "InfinityFormerState",
    "KNNMemory",
    "LayerState",
    "LongMemory",
    "LongTermMemory",
    "LongTermState",
    "MemformerEncoder",
    "MemformerState",
    "MemorizingAttention",
    "MemorizingState",
    "MemoryModule",
    "Prediction",
    "Recalled",
    "Spalm",
    "StackState",
    "Tokens",
    "TransformerXLAttention",
    "TransformerXLState",
    "Usage",
    "num_rows",
    "restore_state",
    "save_state",
    "select_state",
    "state_axes",
    "take_rows",
    "where_rows",
]
