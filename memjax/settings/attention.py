"""Kinds of attention, each with the memory that it carries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.ranges import Count, Positive, Range, Slots, Weight, zero_or_more
from memjax.settings.relations import Settings, require, require_layers

if TYPE_CHECKING:
    from memjax.config import Config

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

RECONSTRUCTION = {"attention": "compressive/attention_reconstruction", "auto_encoding": "compressive/auto_encoding"}
"""names of the losses of `memjax.memory.compressive.LOSSES`"""


@dataclass(slots=True, kw_only=True)
class Carrier(Settings):
    """What carries a memory, and what it says of it: a kind of attention, or a model with one memory for all layers.

    Facts have no annotation: with one they would be fields, options and keys of config.json.

    Attributes:
      is_causal: whether a token sees only what is before it.
      crosses_segments: whether gradients cross segments.
      memory_length: slots of the memory whose size an evaluation may change; None = it has none.
      added_parameters: names of the parameters that the memory adds to a model without it.
      init_stddev: of initial matrices and embeddings, as published; None = the library's own.
      over_layers: whether an auxiliary loss that several layers have is their 'sum' or 'mean', as published.
      sorts_all_scores: whether a TPU sorts the scores of all slots to find the nearest.
      learned_positions: tokens for which the model learns positions; 0 = it learns none.
      exports_as: what transformers calls the model without its memory (`model_type`); '' = it has no such model.
      gate: width of the hidden layer of a gate on what its head reads; 0 = it has none.
      grows: whether a model of it can become wider and deeper and compute the same.
    """

    is_causal = True
    crosses_segments = False
    memory_length = None
    added_parameters = ()
    init_stddev = None
    over_layers = "sum"
    sorts_all_scores = False
    learned_positions = 0
    exports_as = ""
    gate = 0
    grows = False

    def local_window(self, segment_length: int) -> int:
        """Tokens that one layer sees without its long or compressed memory, the query included."""
        return (self.memory_length or 0) + segment_length

    def coefficients(self) -> dict[str, float]:
        """The coefficients of its auxiliary losses, by name (see `memjax.training.step`)."""
        return {}

    def with_memory(self, length: int) -> Carrier:
        """The same with a memory of so many slots.

        Raises:
          ValueError: it has no memory whose size can change.
        """
        allowed = f"None with {type(self).__name__}"
        require(self.memory_length is not None, "evaluation.memory_length", length, allowed)
        return replace(self, memory_length=length)


@dataclass(slots=True, kw_only=True)
class Attention(Carrier):
    """What every kind of attention says of itself; a kind overrides what differs.

    Attributes:
      norm_place: of the layers' norms: 'pre', 'post' or 'none'.
      norm_kind: 'rms', 'layer', 'layer_exact', or '' where there is none.
      final_norm: a norm after the last layer where `norm_place` is 'pre'.
      learned_positions: tokens for which the model learns positions; 0 = it learns none.
      hidden_dropout: whether the feed-forward part drops its hidden layer too.
      embedding_dropout: whether a decoder drops embeddings and the last hidden state too.
      has_heads: whether `num_heads` and `head_dim` of the model have an effect.
      has_feed_forward: whether a layer has a feed-forward part.
      takes_memory_tokens: whether memory tokens may stand before its segments.
    """

    norm_place = "pre"
    norm_kind = "rms"
    final_norm = True
    learned_positions = 0
    hidden_dropout = True
    embedding_dropout = True
    has_heads = True
    has_feed_forward = True
    takes_memory_tokens = False


@dataclass(slots=True, kw_only=True)
class BucketAttention(Attention):
    """Attention with T5's relative positions, whose queries and keys may be normalised."""

    query_key_norm: bool = True
    """normalise queries and keys to unit length and learn a scale per head"""
    scale_init: float | None = None
    """initial scale of query-key norm; None = sqrt(head_dim), or 1 with compatibility = 'meliad'"""
    num_buckets: int = 32
    """T5 relative-position buckets of local attention; 0 = no positions"""
    max_distance: int = 128
    """tokens beyond which all distances share the last bucket"""
    bias_scaling: Literal["learned", "always"] = "learned"
    """what multiplies the position bias as it does the scores: the scale of query-key norm only, or 'always', without
    that norm 1 / sqrt(head_dim)"""

    def check(self, field: str, config: Config) -> None:
        buckets, distance = self.num_buckets, self.max_distance
        require(buckets == 0 or buckets >= 2, f"{field}num_buckets", buckets, "0 (no positions), or 2 or more")
        fits = buckets == 0 or distance > buckets // 2
        require(fits, f"{field}max_distance", distance, f"more than half of {field}num_buckets = {buckets}")


@dataclass(slots=True, kw_only=True)
class RelativeAttention(Attention):
    """Attention with Transformer-XL's relative positions."""

    norm: Literal["post", "pre"] = "post"
    """place of the layer norm; the published models are post-norm"""
    final_norm: bool = True
    """a norm after the last layer where norm is not 'post'; the published code of Transformer-XL has none"""
    tied_biases: bool = False
    """share the biases u and v between all layers (as the text of Transformer-XL's paper does)"""
    clamp_length: Annotated[int, zero_or_more("off", "tokens")] = 0
    """tokens; distances beyond it are treated as it; 0 = no clamping"""

    norm_kind = "layer"
    init_stddev = 0.02
    exports_as = "transfo-xl"
    same_length = False
    empty_memory = "mask"

    @property
    def norm_place(self) -> str:
        return "post" if self.norm == "post" else "pre"


@dataclass(slots=True, kw_only=True)
class FullAttention(BucketAttention):
    """No memory: causal attention inside the segment. The degenerate case of every memory."""

    bias: bool = False
    """biases of all projections"""
    norm_kind: Literal["rms", "layer"] = "rms"
    """kind of the norm, in the feed-forward part too"""
    final_norm: bool = True
    """a norm after the last layer; the published language models beside MemSizer have none"""

    grows = True


@dataclass(slots=True, kw_only=True)
class TransformerXL(RelativeAttention):
    """Transformer-XL (Dai et al. 2019): the hidden states of earlier segments, in every layer."""

    memory_length: Slots = 128
    """slots (tokens) of the hidden-state memory of each layer; 0 = no memory"""
    same_length: bool = False
    """every query sees exactly memory_length keys including itself (evaluation in the published scripts)"""
    empty_memory: Literal["mask", "zeros"] = "mask"
    """'zeros' attends to never-written slots as zero vectors, as the TensorFlow and Hugging Face code does"""

    takes_memory_tokens = True

    def check(self, field: str, config: Config) -> None:
        _check_sines(type(self).__name__, config.model.dim)
        fits = self.memory_length > 0 or not self.same_length
        require(fits, f"{field}same_length", True, f"False when {field}memory_length is 0")


@dataclass(slots=True, kw_only=True)
class Compressive(RelativeAttention):
    """Compressive Transformer (Rae et al. 2019): Transformer-XL whose oldest memories are compressed, not forgotten."""

    memory_length: Slots = 128
    """slots (tokens) of the hidden-state memory of each layer; 0 = no memory, compressed or not"""
    compressed_memory_length: Annotated[int, zero_or_more("TransformerXL", "slots")] = 128
    """slots of the compressed memory of each layer; 0 = Transformer-XL"""
    compression_rate: Count = 4
    """tokens that one compressed slot stands for; best a divisor of data.segment_length"""
    compression: Literal["convolution", "dilated", "max", "mean", "most_used"] = "convolution"
    """'convolution' and 'dilated' (causal convolutions before it) are learned, 'max' and 'mean' pool, 'most_used' keeps
    the slots that received most attention"""
    dilations: Annotated[
        tuple[int, ...], Range(words="one or more numbers of slots, each at least 1", least=1, entries=1)
    ] = (1, 2, 4)
    """slots back in each layer of 'dilated'"""
    loss: Literal["attention", "auto_encoding", "none"] = "attention"
    """what the compression learns from: attention to old slots stays as it was, or old slots can be decoded; 'none' =
    the loss of the model through later segments of the same update (training.segments_per_update of 2 or more)"""
    loss_weight: Weight = 1.0
    """coefficient of that loss; it reaches the compression only"""
    loss_reduction: Literal["mean_square", "norm"] = "mean_square"
    """of 'attention': the mean square as in the published code, or the L2 norm of the paper's text"""
    positions: Literal["separate", "contiguous"] = "separate"
    """of compressed slots: relative keys of their own, as in the published code, or one row of slots with the memory"""
    norm: Literal["post", "pre", "pre_sonnet"] = "post"
    """place of the layer norm; 'pre_sonnet' is the published code's: pre-norm, and memories hold the normed input"""
    empty_memory: Literal["mask", "zeros"] = "mask"
    """'zeros' attends to never-written slots as zero vectors, as the published code does"""

    over_layers = "mean"
    added_parameters = (
        "compressed_position",
        "compressed_relative",
        "compression_kernel",
        "decompression_kernel",
        "dilated_kernels",
    )

    @property
    def crosses_segments(self) -> bool:
        return self._compresses and self.loss == "none" and self.compression in ("convolution", "dilated")

    @property
    def _compresses(self) -> bool:
        return self.memory_length > 0 and self.compressed_memory_length > 0

    def coefficients(self) -> dict[str, float]:
        name = RECONSTRUCTION.get(self.loss)
        return {name: self.loss_weight} if name and self._compresses else {}

    def check(self, field: str, config: Config) -> None:
        _check_sines(type(self).__name__, config.model.dim)
        length, rate, memory = config.data.segment_length, self.compression_rate, self.memory_length
        allowed = f"a divisor of data.segment_length = {length}, or up to {field}memory_length + 1 = {memory + 1}"
        fits = not self._compresses or length % rate == 0 or rate <= memory + 1
        require(fits, f"{field}compression_rate", rate, allowed)

    def warnings(self, field: str, config: Config) -> list[str]:
        lines, length, rate = [], config.data.segment_length, self.compression_rate
        if self.crosses_segments and config.training.segments_per_update == 1:
            lines.append(
                f"training.segments_per_update = 1: with {field}loss = 'none' the compression learns from later "
                "segments of the same update only; with 1 it never does"
            )
        if self._compresses and self.memory_length < length and self.loss == "attention":
            lines.append(
                f"{field}memory_length = {self.memory_length}: shorter than data.segment_length = {length}, so part of "
                "a segment is compressed at once, and the compression does not learn from the queries before that part"
            )
        if length % rate:
            lines.append(
                f"data.segment_length = {length}: not a multiple of {field}compression_rate = {rate}, so windows cross "
                "segments, which takes longer"
            )
        return lines


@dataclass(slots=True, kw_only=True)
class Memorizing(BucketAttention):
    """Memorizing Transformer (Wu et al. 2022): k nearest (key, value) pairs of a long FIFO memory, in some layers."""

    layers: tuple[int, ...] | None = None
    """layers with the long memory, 0-based, negative from the end; () = all, None = the fourth from the end (the first
    of fewer layers)"""
    memory_length: Slots = 8192
    """slots (tokens) of the long memory per row and head; 0 = the local cache only"""
    num_neighbors: int = 32
    """slots retrieved per query and head"""
    cache_length: Annotated[int, zero_or_more(unit="tokens")] = 512
    """tokens of earlier segments kept for local attention, in every layer; 0 = the segment only"""
    window: Annotated[int, zero_or_more("all", "keys")] | None = None
    """keys of local attention including the query's own; 0 = all of cache and segment up to the query; None = all, or
    cache_length earlier ones with compatibility = 'meliad'"""
    merge: Literal["gate", "joint", "add", "stop_forward"] = "gate"
    """how memory and local attention combine: the final version gates per head, the first one shared one softmax"""
    write: Literal["current", "evicted"] = "current"
    """what enters the long memory: the segment just read, or what leaves the local cache"""
    retrieval: Literal["exact", "approximate", "bucket", "threshold"] | None = None
    """search over the long memory; 'threshold' is exact without a gather, 'bucket' has about 63 % recall; None =
    'exact', or 'bucket' with compatibility = 'meliad'"""
    recall_target: Annotated[float, Range(words="above 0, up to 1", above=0, most=1)] = 0.95
    """expected recall of 'approximate' on a TPU (elsewhere it is exact)"""
    gate_init: float = 0.0
    """initial gate logit; positive favours the memory"""
    track_positions: bool = False
    """let each slot carry the document position of its token"""
    dropout_place: Literal["outputs", "inputs"] | None = None
    """'outputs' of both parts of a layer, hidden layer, embeddings, last hidden state, all attention weights; 'inputs':
    the normed input of queries, keys and values, weights of local attention, output of the feed-forward part; None =
    'outputs', or 'inputs' with compatibility = 'meliad'"""
    compatibility: Literal["paper", "meliad"] = "paper"
    """'meliad' as the authors' code: no bias in memory layers, strict causality, unmasked empty slots; and its scale,
    window, search and dropout where scale_init, window, retrieval and dropout_place are None"""

    added_parameters = ("gate",)

    @property
    def sorts_all_scores(self) -> bool:
        exact = self.retrieval == "exact" or (self.retrieval is None and not self._is_meliad)
        return exact and self.memory_length > 0

    @property
    def hidden_dropout(self) -> bool:
        return not (self.dropout_place == "inputs" or (self.dropout_place is None and self._is_meliad))

    @property
    def embedding_dropout(self) -> bool:
        return self.hidden_dropout

    @property
    def _is_meliad(self) -> bool:
        return self.compatibility == "meliad"

    def local_window(self, segment_length: int) -> int:
        window = self.cache_length if self.window is None and self._is_meliad else self.window
        return window or self.cache_length + segment_length

    def chosen_layers(self, num_layers: int) -> tuple[int, ...]:
        """`layers` of a model of so many."""
        return (max(-4, -num_layers),) if self.layers is None else self.layers

    def check(self, field: str, config: Config) -> None:
        BucketAttention.check(self, field, config)
        fits = self.memory_length == 0 or 1 <= self.num_neighbors <= self.memory_length
        allowed = f"1 to {field}memory_length = {self.memory_length}"
        require(fits, f"{field}num_neighbors", self.num_neighbors, allowed)
        require_layers(f"{field}layers", self.layers or (), config.model.num_layers)
        fits = self.write == "current" or self.cache_length > 0
        require(fits, f"{field}write", self.write, "'current' when cache_length is 0")


@dataclass(slots=True, kw_only=True)
class InfinityFormer(RelativeAttention):
    """infinity-former (Martins et al. 2022): the whole past as a signal of constant size, beside the attention.

    `norm`, `final_norm`, `tied_biases` and `clamp_length` are those of a Transformer-XL host.
    """

    host: Literal["transformer_xl", "gpt2"] = "transformer_xl"
    """the attention it stands beside: relative positions and a short-term memory, or GPT-2's"""
    layers: tuple[int, ...] = ()
    """layers with the long-term memory, 0-based, negative from the end; () = all"""
    num_basis: int = 512
    """basis functions of the signal, a multiple of the number of widths; 0 = the host alone"""
    widths: Annotated[tuple[float, ...], Range(words="one or more numbers above 0", above=0, entries=1)] = (0.01, 0.05)
    """standard deviations of the basis functions; (0.005, 0.01) in the paper's GPT-2"""
    num_samples: Annotated[int, Range(words="at least 1", least=1)] = 512
    """points at which the past is read when it is contracted"""
    contraction: Annotated[float, Range(words="above 0 and below 1", above=0, below=1)] = 0.5
    """share of the signal that the past keeps at every update"""
    ridge: Annotated[float, Range(words="above 0", above=0)] = 0.5
    """penalty of the regression; 1.0 in the published code for sorting"""
    sticky: Literal["none", "sample", "quantile"] = "none"
    """sticky memories: read the past where the last queries looked, at random in training or at its quantiles"""
    num_bins: Annotated[int, Range(words="at least 1", least=1)] = 128
    """bins of the histogram of where they looked"""
    jitter: bool = False
    """of 'sample': draw inside a bin instead of its left edge"""
    reset_after: Annotated[int, zero_or_more("never", "tokens")] = 0
    """tokens after which the signal begins anew (2048 in the published GPT-2 code); 0 = never inside a document"""
    first_densities: Literal["prior", "published"] = "prior"
    """before training: of width prior_stddev, each head at its own part of the signal, or, as published, all at its
    middle with 0.83, where they stay for thousands of updates"""
    prior_stddev: Annotated[float, Range(words="above 0", above=0)] = 0.05
    """standard deviation that the regulariser draws the densities to; 0.1 for a model from scratch"""
    kl_weight: Weight = 1e-6
    """coefficient of the regulariser; 1e-5 in the paper for sorting, over 20,000 updates. Short runs need more, as
    1e-3: with 1e-6, densities that begin with 0.05 had 0.14 after 300 updates of a layer that learned to use them"""
    over_layers: Literal["sum", "mean"] = "sum"
    """of the regulariser: the layers' are added up, as published, or averaged"""
    min_variance: Annotated[float, Range(words="above 0", above=0)] = 1e-4
    """smallest variance of a density; 1e-6 in the published code for sorting"""
    memory_length: int = 0
    """slots (tokens) of the short-term memory of a Transformer-XL host, a multiple of the segment; 0 = none"""
    num_positions: Count = 1024
    """learned positions of a GPT-2 host, at least a segment"""

    added_parameters = ("long_term",)

    @property
    def norm_place(self) -> str:
        return "pre" if self.host == "gpt2" else self.norm

    @property
    def learned_positions(self) -> int:
        return self.num_positions if self.host == "gpt2" else 0

    @property
    def exports_as(self) -> str:
        return "gpt2" if self.host == "gpt2" else "transfo-xl"

    def coefficients(self) -> dict[str, float]:
        return {"infinity_former/kl": self.kl_weight} if self.num_basis else {}

    def check(self, field: str, config: Config) -> None:
        basis, slots, length = self.num_basis, self.memory_length, config.data.segment_length
        fits = basis >= 0 and basis % len(self.widths) == 0
        require(fits, f"{field}num_basis", basis, f"0 (none) or a multiple of the {len(self.widths)} widths")
        require_layers(f"{field}layers", self.layers, config.model.num_layers)
        fits = slots >= 0 and slots % length == 0
        require(fits, f"{field}memory_length", slots, f"0 or a multiple of {length} tokens")
        scored = config.evaluation.segment_length
        fits = scored in (0, length)
        require(fits, "evaluation.segment_length", scored, f"0 or data.segment_length = {length}")
        if self.host == "gpt2":
            allowed = "0 with host = 'gpt2', which has no short-term memory"
            require(slots == 0, f"{field}memory_length", slots, allowed)
            _check_positions(field, self.num_positions, length)
        else:
            _check_sines("positions", config.model.dim)


@dataclass(slots=True, kw_only=True)
class GPT2(Attention):
    """GPT-2 (Radford et al. 2019): learned positions inside the segment; alone or with a compressed memory."""

    num_positions: Count = 1024
    """learned positions, at least a segment"""
    compressed_memory_length: Annotated[int, zero_or_more("none", "slots")] = 0
    """slots of the compressed memory of each layer; 0 = none"""
    compression_rate: Count = 4
    """tokens that one slot stands for, a divisor of data.segment_length"""
    loss_weight: Weight = 1.0
    """coefficient of the attention-reconstruction loss; it reaches the compression only"""

    norm_kind = "layer"
    init_stddev = 0.02
    exports_as = "gpt2"
    over_layers = "mean"
    added_parameters = ("compression_kernel",)

    @property
    def grows(self) -> bool:
        return not self.compressed_memory_length

    @property
    def learned_positions(self) -> int:
        return self.num_positions

    def coefficients(self) -> dict[str, float]:
        return {RECONSTRUCTION["attention"]: self.loss_weight} if self.compressed_memory_length else {}

    def check(self, field: str, config: Config) -> None:
        length, rate = config.data.segment_length, self.compression_rate
        _check_positions(field, self.num_positions, length)
        fits = not self.compressed_memory_length or (rate >= 1 and length % rate == 0)
        require(fits, f"{field}compression_rate", rate, f"a divisor of data.segment_length = {length}")


@dataclass(slots=True, kw_only=True)
class Bidirectional(Attention):
    """BERT (Devlin et al. 2019): every token sees the whole text; for tasks other than LanguageModeling.

    Post-norm, learned positions, embeddings that are normed and not scaled, output weights tied to them with a bias.
    """

    positions: Annotated[int, Range(words="1 or more tokens", least=1)] = 512
    """learned positions (tokens): the longest text"""
    token_types: Annotated[int, zero_or_more("none")] = 2
    """learned types of tokens, one for each text of a pair; 0 = none, as DistilBERT"""
    pooler: bool = True
    """a dense layer and tanh over the first token, which Classification reads; DistilBERT has none"""
    pooling: Literal["first", "mean"] = "first"
    """what Classification reads: the first token, behind the pooler where there is one, or the mean over the text"""
    gate: Annotated[int, zero_or_more("none")] = 0
    """width of the hidden layer of a gate on that, of what a second encoder makes of the text (ANML); 0 = none"""

    norm_place = "post"
    norm_kind = "layer_exact"
    init_stddev = 0.02
    hidden_dropout = False
    is_causal = False
    takes_memory_tokens = True
    grows = True

    @property
    def exports_as(self) -> str:
        return "bert" if self.token_types else "distilbert"

    @property
    def learned_positions(self) -> int:
        return self.positions

    def check(self, field: str, config: Config) -> None:
        length = config.data.segment_length
        allowed = f"at most {field}positions = {self.positions}: a segment is a text"
        require(length <= self.positions, "data.segment_length", length, allowed)


@dataclass(slots=True, kw_only=True)
class LinearTransformer(Attention):
    """Linear Transformer (Katharopoulos et al. 2020): sums over all tokens so far, features elu(x) + 1."""

    chunk_length: Annotated[int, zero_or_more("the segment", "tokens")] = 128
    """tokens multiplied with each other at once; a longer segment carries the sums from chunk to chunk"""
    bias: bool = True
    """biases of all projections"""
    norm: Literal["pre", "post"] = "pre"
    """place of the norm"""
    norm_kind: Literal["layer", "rms"] = "layer"
    """kind of the norm, in the feed-forward part too"""
    final_norm: bool = True
    """a norm after the last layer where norm is 'pre'; MemSizer's published language models have none"""

    crosses_segments = True

    @property
    def norm_place(self) -> str:
        return self.norm


@dataclass(slots=True, kw_only=True)
class RFA(LinearTransformer):
    """Random feature attention (Peng et al. 2021): sums over all tokens, features estimate the kernel of a softmax."""

    num_directions: Count = 64
    """random directions of a head; features are twice as many"""
    temperature: Positive = 1.0
    """divides the directions"""
    gate: bool = False
    """let the sums decay by a gate per head and token"""
    gate_bias_init: float = 3.0
    """initial bias of the gate"""
    orthogonal: bool = False
    """directions orthogonal in blocks of the head's width"""
    redraw: bool = False
    """new directions in every training segment; no state then crosses a segment in training"""

    added_parameters = ("gate",)


@dataclass(slots=True, kw_only=True)
class T2R(LinearTransformer):
    """T2R (Kasai et al. 2021): sums over all tokens, learned features; goes on from a model with softmax attention."""

    num_features: Count = 32
    """width of the feature map of a head"""
    folded: bool = False
    """the parameters are those that `memjax.memory.t2r.fold` returns (inference)"""


@dataclass(slots=True, kw_only=True)
class MemSizer(LinearTransformer):
    """MemSizer (Zhang & Cai 2022): a memory of few slots whose keys are parameters, one for all heads."""

    num_slots: Count = 32
    """slots of the memory (the paper's k)"""
    frozen_queries: bool = False
    """the keys of the slots keep their random initial values"""
    query_init_scale: Positive = 32.0
    """the slots' initial keys have Xavier's size divided by its root"""
    source_init_scale: Positive = 1.0
    """the same of the two adaptors"""


@dataclass(slots=True, kw_only=True)
class LSTM(Attention):
    """LSTM (Hochreiter & Schmidhuber 1997) in the place of attention: layers without feed-forward part, norm, residual.

    Of the model, `num_heads`, `head_dim`, `attention_dropout` and `feed_forward` have no effect.
    """

    norm_place = "none"
    norm_kind = ""
    has_heads = False
    has_feed_forward = False
    crosses_segments = True

    def check(self, field: str, config: Config) -> None:
        config.model.feed_forward.require_dense("(it has no effect) with LSTM")


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


def _check_sines(of: str, dim: int) -> None:
    require(dim % 2 == 0, "model.dim", dim, f"an even number (sines and cosines of {of})")


def _check_positions(field: str, positions: int, length: int) -> None:
    require(positions >= length, f"{field}num_positions", positions, f"at least data.segment_length = {length}")
