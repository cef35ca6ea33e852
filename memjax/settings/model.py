"""Models: their sizes, and the kinds of their parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from memjax.settings.attention import RFA, T2R, AttentionKind, FullAttention, LinearTransformer, MemSizer
from memjax.settings.feed_forward import Dense, FeedForwardKind
from memjax.settings.output import OutputKind, Softmax

__all__ = [
    "MemoryTokens",
    "ModelSettings",
    "EncoderDecoder",
    "Memformer",
]


@dataclass(slots=True, kw_only=True)
class MemoryTokens:
    """Memory tokens (Burtsev et al. 2020): learned rows before the sequence that all layers read and write."""

    num_tokens: int = 10
    """memory tokens"""
    kind: Literal["transformer", "control", "bottleneck"] = "transformer"
    """ordinary layers over both; layers of its own for the memory; or those, and tokens that read the memory alone"""
    shared: bool = False
    """of 'control' and 'bottleneck': one layer for the memory instead of one beside every layer"""
    init_stddev: float = 0.02
    """of the learned rows"""


@dataclass(slots=True, kw_only=True)
class ModelSettings:
    """A decoder-only language model, or a text encoder where `attention` is Bidirectional."""

    dim: int = 256
    """width of the residual stream"""
    num_layers: int = 4
    """number of layers"""
    num_heads: int = 4
    """attention heads"""
    head_dim: int = 0
    """width of one head; 0 = dim / num_heads"""
    dropout: float = 0.0
    """rate on embeddings, residual branches and the output"""
    attention_dropout: float = 0.0
    """rate on attention weights"""
    scale_embeddings: bool = True
    """multiply input embeddings by sqrt(dim)"""
    positions: Literal["none", "sinusoids"] = "none"
    """'sinusoids' of the place in the document are added to embeddings, for attention without positions of its own"""
    scan_layers: bool | None = None
    """one scan over equal neighbouring layers (compile time independent of depth); None = from 6 layers up"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations; parameters and statistics stay float32"""
    memory_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations stored in memory states"""
    attention: AttentionKind = field(default_factory=FullAttention)
    """the attention part of the layers, and the memory it carries"""
    feed_forward: FeedForwardKind = field(default_factory=Dense)
    """the feed-forward part of the layers"""
    output: OutputKind = field(default_factory=Softmax)
    """embeddings and softmax"""
    markers: int = 0
    """last ids of the vocabulary that mark what follows them, as the speakers of a dialogue do: every token gets a
    learned embedding of the last mark before it; 0 = none"""
    memory_tokens: MemoryTokens | None = None
    """memory tokens: of the encoder, or before every segment of a Transformer-XL; None = no memory tokens"""


@dataclass(slots=True, kw_only=True)
class EncoderDecoder(ModelSettings):
    """A translation model: an encoder, and a decoder that also attends to the source. `attention` is the decoder's."""

    attention: AttentionKind = field(default_factory=lambda: FullAttention(query_key_norm=False, num_buckets=0))
    """causal attention of the decoder's layers"""
    cross_attention: FullAttention | LinearTransformer | RFA | T2R | MemSizer = field(
        default_factory=lambda: FullAttention(query_key_norm=False, num_buckets=0)
    )
    """attention of the decoder to the source; of FullAttention no field has an effect"""
    positions: Literal["none", "sinusoids"] = "sinusoids"
    """added to the embeddings of source and target"""
    encoder_layers: int = 0
    """layers of the encoder; 0 = num_layers"""
    norm: Literal["post", "pre"] = "post"
    """place of the layer norms; in front, both stacks end with one"""
    label_smoothing: float = 0.1
    """share of the target distribution spread over the vocabulary, in training"""


@dataclass(slots=True, kw_only=True)
class Memformer(ModelSettings):
    """Memformer (Wu et al. 2020): an encoder with a memory of slots, and a decoder of `num_layers` layers.

    Of the fields of `Model`, `attention`, `head_dim`, `memory_dtype`, `positions` and `memory_tokens` have no effect;
    `output` is a `Softmax` and `markers` is 0.
    """

    encoder_layers: int = 4
    """layers that read the memory; 0 = a decoder alone, which knows its own segment only (ablation)"""
    num_slots: int = 64
    """slots of the memory, one memory for all layers; 0 = the encoder reads the segment before only (ablation)"""
    temperature: float = 0.25
    """of the writer's attention; 1 is the ablation"""
    forgetting: bool = True
    """move every slot towards its learned bias at each update; False is the ablation"""
    single_head: bool = False
    """one head in memory reader and writer (ablation)"""
    slots_per_chunk: int = 256
    """slots that are written at a time, which bounds the memory of the writer's weights; 0 = all"""
    num_classification_tokens: int = 1
    """learned tokens after each segment in the encoder"""
    segment_length: int = 128
    """tokens of a segment: the same as data.segment_length"""
