"""Kinds of attention, each with the memory that it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Attention",
    "FullAttention",
    "TransformerXL",
    "Compressive",
    "Memorizing",
    "InfinityFormer",
    "GPT2",
    "Bidirectional",
    "LinearTransformer",
    "RFA",
    "T2R",
    "MemSizer",
    "LSTM",
    "AttentionKind",
]


@dataclass(slots=True, kw_only=True)
class Attention:
    """What every kind of attention says of itself."""


@dataclass(slots=True, kw_only=True)
class FullAttention(Attention):
    """No memory: causal attention inside the segment. The degenerate case of every memory."""

    query_key_norm: bool = True
    """normalise queries and keys to unit length and learn a scale per head"""
    scale_init: float | None = None
    """initial scale of query-key norm; None = sqrt(head_dim)"""
    num_buckets: int = 32
    """T5 relative-position buckets; 0 = no positions"""
    max_distance: int = 128
    """tokens beyond which all distances share the last bucket"""


@dataclass(slots=True, kw_only=True)
class TransformerXL(Attention):
    """Transformer-XL (Dai et al. 2019): the hidden states of earlier segments, in every layer."""

    memory_length: int = 128
    """slots (tokens) of the hidden-state memory of each layer; 0 = no memory"""
    norm: Literal["post", "pre"] = "post"
    """place of the layer norm; the published models are post-norm"""
    final_norm: bool = True
    """a norm after the last layer where norm is 'pre'; the published code has none"""
    tied_biases: bool = False
    """share the biases u and v between all layers (as the paper's text does)"""
    clamp_length: int = 0
    """tokens; distances beyond it are treated as it; 0 = no clamping"""
    same_length: bool = False
    """every query sees exactly memory_length keys including itself (evaluation in the published scripts)"""
    empty_memory: Literal["mask", "zeros"] = "mask"
    """'zeros' attends to never-written slots as zero vectors, as the TensorFlow and Hugging Face code does"""


@dataclass(slots=True, kw_only=True)
class Compressive(Attention):
    """Compressive Transformer (Rae et al. 2019): Transformer-XL whose oldest memories are compressed, not forgotten."""

    memory_length: int = 128
    """slots (tokens) of the hidden-state memory of each layer; 0 = no memory, compressed or not"""
    compressed_memory_length: int = 128
    """slots of the compressed memory of each layer; 0 = Transformer-XL"""
    compression_rate: int = 4
    """tokens that one compressed slot stands for; best a divisor of data.segment_length"""
    compression: Literal["convolution", "dilated", "max", "mean", "most_used"] = "convolution"
    """'convolution' and 'dilated' (causal convolutions before it) are learned, 'max' and 'mean' pool, 'most_used' keeps
    the slots that received most attention"""
    dilations: tuple[int, ...] = (1, 2, 4)
    """slots back in each layer of 'dilated'"""
    loss: Literal["attention", "auto_encoding", "none"] = "attention"
    """what the compression learns from: attention to old slots stays as it was, or old slots can be decoded; 'none' =
    the loss of the model through later segments of the same update (training.segments_per_update of 2 or more)"""
    loss_weight: float = 1.0
    """coefficient of that loss; it reaches the compression only"""
    loss_reduction: Literal["mean_square", "norm"] = "mean_square"
    """of 'attention': the mean square as in the published code, or the L2 norm of the paper's text"""
    positions: Literal["separate", "contiguous"] = "separate"
    """of compressed slots: relative keys of their own, as in the published code, or one row of slots with the memory"""
    norm: Literal["post", "pre", "pre_sonnet"] = "post"
    """place of the layer norm; 'pre_sonnet' is the published code's: pre-norm, and memories hold the normed input"""
    final_norm: bool = True
    """a norm after the last layer where norm is not 'post'"""
    tied_biases: bool = False
    """share the biases u and v between all layers"""
    clamp_length: int = 0
    """tokens; distances beyond it are treated as it; 0 = no clamping"""
    empty_memory: Literal["mask", "zeros"] = "mask"
    """'zeros' attends to never-written slots as zero vectors, as the published code does"""


@dataclass(slots=True, kw_only=True)
class Memorizing(Attention):
    """Memorizing Transformer (Wu et al. 2022): k nearest (key, value) pairs of a long FIFO memory, in some layers."""

    layers: tuple[int, ...] = (-4,)
    """layers with the long memory, 0-based, negative from the end; () = all"""
    memory_length: int = 8192
    """slots (tokens) of the long memory per row and head; 0 = the local cache only"""
    num_neighbors: int = 32
    """slots retrieved per query and head"""
    cache_length: int = 512
    """tokens of earlier segments kept for local attention, in every layer; 0 = the segment only"""
    window: int = 0
    """keys of local attention including the query's own; 0 = all of cache and segment up to the query"""
    merge: Literal["gate", "joint", "add", "stop_forward"] = "gate"
    """how memory and local attention combine: the final version gates per head, the first one shared one softmax"""
    write: Literal["current", "evicted"] = "current"
    """what enters the long memory: the segment just read, or what leaves the local cache"""
    retrieval: Literal["exact", "approximate", "bucket", "threshold"] = "exact"
    """search over the long memory; 'threshold' is exact without a gather, 'bucket' has about 63 % recall"""
    recall_target: float = 0.95
    """expected recall of 'approximate' on a TPU (elsewhere it is exact)"""
    query_key_norm: bool = True
    """normalise queries and keys to unit length and learn a scale per head"""
    scale_init: float | None = None
    """initial scale of query-key norm; None = sqrt(head_dim)"""
    gate_init: float = 0.0
    """initial gate logit; positive favours the memory"""
    num_buckets: int = 32
    """T5 relative-position buckets of local attention; 0 = no positions"""
    max_distance: int = 128
    """tokens beyond which all distances share the last bucket"""
    track_positions: bool = False
    """let each slot carry the document position of its token"""
    compatibility: Literal["paper", "meliad"] = "paper"
    """'meliad' as the authors' code: no bias in memory layers, strict causality, unmasked empty slots"""


@dataclass(slots=True, kw_only=True)
class InfinityFormer(Attention):
    """infinity-former (Martins et al. 2022): the whole past as a signal of constant size, beside the attention."""

    segment_length: int = 128
    """tokens of a segment: the same as data.segment_length"""
    host: Literal["transformer_xl", "gpt2"] = "transformer_xl"
    """the attention it stands beside: relative positions and a short-term memory, or GPT-2's"""
    layers: tuple[int, ...] = ()
    """layers with the long-term memory, 0-based, negative from the end; () = all"""
    num_basis: int = 512
    """basis functions of the signal, a multiple of the number of widths; 0 = the host alone"""
    widths: tuple[float, ...] = (0.01, 0.05)
    """standard deviations of the basis functions; (0.005, 0.01) in the paper's GPT-2"""
    num_samples: int = 512
    """points at which the past is read when it is contracted"""
    contraction: float = 0.5
    """share of the signal that the past keeps at every update"""
    ridge: float = 0.5
    """penalty of the regression; 1.0 in the published code for sorting"""
    sticky: Literal["none", "sample", "quantile"] = "none"
    """sticky memories: read the past where the last queries looked, at random in training or at its quantiles"""
    num_bins: int = 128
    """bins of the histogram of where they looked"""
    jitter: bool = False
    """of 'sample': draw inside a bin instead of its left edge"""
    reset_after: int = 0
    """tokens after which the signal begins anew (2048 in the published GPT-2 code); 0 = never inside a document"""
    prior_stddev: float = 0.05
    """standard deviation that the regulariser draws the densities to; 0.1 for a model from scratch"""
    kl_weight: float = 1e-6
    """coefficient of the regulariser; 1e-5 in the paper for sorting"""
    min_variance: float = 1e-4
    """smallest variance of a density; 1e-6 in the published code for sorting"""
    memory_length: int = 0
    """slots (tokens) of the short-term memory of a Transformer-XL host, a multiple of the segment; 0 = none"""
    norm: Literal["post", "pre"] = "post"
    """place of the layer norm of a Transformer-XL host"""
    final_norm: bool = True
    """a norm after the last layer where norm is 'pre'"""
    tied_biases: bool = False
    """of a Transformer-XL host: share the biases u and v between all layers"""
    clamp_length: int = 0
    """of a Transformer-XL host, tokens; distances beyond it are treated as it; 0 = no clamping"""
    num_positions: int = 1024
    """learned positions of a GPT-2 host, at least a segment"""


@dataclass(slots=True, kw_only=True)
class GPT2(Attention):
    """GPT-2 (Radford et al. 2019): learned positions inside the segment; alone or with a compressed memory."""

    num_positions: int = 1024
    """learned positions, at least a segment"""
    compressed_memory_length: int = 0
    """slots of the compressed memory of each layer; 0 = none"""
    compression_rate: int = 4
    """tokens that one slot stands for, a divisor of data.segment_length"""
    loss_weight: float = 1.0
    """coefficient of the attention-reconstruction loss; it reaches the compression only"""


@dataclass(slots=True, kw_only=True)
class Bidirectional(Attention):
    """BERT (Devlin et al. 2019): every token sees the whole text; for tasks other than LanguageModeling.

    Post-norm, learned positions, embeddings that are normed and not scaled, output weights tied to them with a bias.
    """

    positions: int = 512
    """learned positions (tokens): the longest text"""
    token_types: int = 2
    """learned types of tokens, one for each text of a pair; 0 = none, as DistilBERT"""
    pooler: bool = True
    """a dense layer and tanh over the first token, which Classification reads; DistilBERT has none"""


@dataclass(slots=True, kw_only=True)
class LinearTransformer(Attention):
    """Linear Transformer (Katharopoulos et al. 2020): sums over all tokens so far, features elu(x) + 1."""

    chunk_length: int = 128
    """tokens multiplied with each other at once; a longer segment carries the sums from chunk to chunk"""
    bias: bool = True
    """biases of all projections"""
    norm: Literal["pre", "post"] = "pre"
    """place of the norm"""
    norm_kind: Literal["layer", "rms"] = "layer"
    """kind of the norm, in the feed-forward part too"""


@dataclass(slots=True, kw_only=True)
class RFA(LinearTransformer):
    """Random feature attention (Peng et al. 2021): sums over all tokens, features estimate the kernel of a softmax."""

    num_directions: int = 64
    """random directions of a head; features are twice as many"""
    temperature: float = 1.0
    """divides the directions"""
    gate: bool = False
    """let the sums decay by a gate per head and token"""
    gate_bias_init: float = 3.0
    """initial bias of the gate"""
    orthogonal: bool = False
    """directions orthogonal in blocks of the head's width"""
    redraw: bool = False
    """new directions in every training segment; no state then crosses a segment in training"""


@dataclass(slots=True, kw_only=True)
class T2R(LinearTransformer):
    """T2R (Kasai et al. 2021): sums over all tokens, learned features; goes on from a model with softmax attention."""

    num_features: int = 32
    """width of the feature map of a head"""
    folded: bool = False
    """the parameters are those that `memjax.memory.t2r.fold` returns (inference)"""


@dataclass(slots=True, kw_only=True)
class MemSizer(LinearTransformer):
    """MemSizer (Zhang & Cai 2022): a memory of few slots whose keys are parameters, one for all heads."""

    num_slots: int = 32
    """slots of the memory (the paper's k)"""
    frozen_queries: bool = False
    """the keys of the slots keep their random initial values"""
    query_init_scale: float = 32.0
    """the slots' initial keys have Xavier's size divided by its root"""
    source_init_scale: float = 1.0
    """the same of the two adaptors"""


@dataclass(slots=True, kw_only=True)
class LSTM(Attention):
    """LSTM (Hochreiter & Schmidhuber 1997) in the place of attention: layers without feed-forward part, norm, residual.

    Of the model, `num_heads`, `head_dim`, `attention_dropout` and `feed_forward` have no effect.
    """


AttentionKind = (
    FullAttention
    | TransformerXL
    | Compressive
    | Memorizing
    | InfinityFormer
    | GPT2
    | Bidirectional
    | LinearTransformer
    | RFA
    | T2R
    | MemSizer
    | LSTM
)
