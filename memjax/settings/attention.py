"""Settings of the kinds of attention, each with its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import Settings, require, require_layers
from memjax.settings.ranges import Count, Positive, Range, Slots, Weight, zero_or_more

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
"""value of `loss` -> name of that loss in `memjax.memory.compressive.LOSSES`"""


@dataclass(slots=True, kw_only=True)
class Carrier(Settings):
    """Base class of settings that describe a memory: a kind of attention, or a model with one memory for all layers.
    Methods and attributes are facts about the kind that a subclass may override.

    Attributes:
      is_causal: Whether a token sees no later tokens.
      crosses_segments: Whether gradients flow through the state into earlier segments of the same update.
      memory_length: Number of slots of a memory whose size an evaluation may change. None for no such memory.
      memory_parameter_names: Names of the parameters that the memory adds to a model without it.
      init_stddev: Standard deviation of initial matrices and embeddings, as published. None for the library's own.
      kl_over_layers: Reduction of an auxiliary loss over the layers that have it, as published: 'sum' or 'mean'.
      sorts_all_scores: Whether a TPU sorts the scores of all slots to find the nearest ones.
      learned_positions: Number of positions that the model learns. 0 for none.
      hf_model_type: `model_type` in transformers of the model without its memory. '' where transformers has none.
      gate_dim: Width of the hidden layer of a gate on the input of the model's head. 0 for no gate.
      can_grow: Whether such a model can become wider and deeper without changing what it computes.
    """

    # Facts have no annotation: with one they would be fields, options and keys of config.json.
    is_causal = True
    crosses_segments = False
    memory_length = None
    memory_parameter_names = ()
    init_stddev = None
    kl_over_layers = "sum"
    sorts_all_scores = False
    learned_positions = 0
    hf_model_type = ""
    gate_dim = 0
    can_grow = False

    def attention_span(self, segment_length: int) -> int:
        """Returns the number of tokens that a layer sees with segments of `segment_length` tokens: the segment, the
        query's token included, and short-term memory or cache, but no long or compressed memory.
        """
        return (self.memory_length or 0) + segment_length

    def auxiliary_loss_weights(self) -> dict[str, float]:
        """Returns a dictionary from the name of each auxiliary loss of the memory to its coefficient in the objective
        (see `memjax.training.step`). {} for a memory without such a loss.
        """
        return {}

    def with_memory(self, length: int) -> Carrier:
        """Returns a copy of these settings with `memory_length` set to `length` slots. Raises `ValueError` for a kind
        without a `memory_length`.

        Raises:
          ValueError: The memory has no size that can change, or there is no memory.
        """
        allowed = f"None with {type(self).__name__}"
        require(self.memory_length is not None, "evaluation.memory_length", length, allowed)
        return replace(self, memory_length=length)


@dataclass(slots=True, kw_only=True)
class Attention(Carrier):
    """Base class of the settings of all kinds of attention. It has no fields, only facts that a kind may override, such
    as the place of the norms of a layer.

    Attributes:
      norm_place: Place of the norms of a layer: 'pre', 'post' or 'none'.
      norm_kind: Kind of the norms: 'rms', 'layer', 'layer_exact' (layer norm with exact variance), or '' for none.
      final_norm: Whether there is a norm after the last layer where `norm_place` is 'pre'.
      learned_positions: Number of positions that the model learns. 0 for none.
      hidden_dropout: Whether dropout also falls on the hidden layer of the feed-forward part.
      embedding_dropout: Whether dropout also falls on a decoder's embeddings and last hidden state.
      has_heads: Whether `num_heads` and `head_dim` of the model have an effect.
      has_feed_forward: Whether a layer has a feed-forward part.
      takes_memory_tokens: Whether memory tokens may be put before the segments.
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
    """Common settings of attention with T5's relative position buckets and, unless turned off, normalised queries and
    keys.
    """

    query_key_norm: bool = True
    """normalise queries and keys to unit length and learn a scale for each head"""
    scale_init: float | None = None
    """initial scale of the scores where `query_key_norm` is True; None = sqrt(head_dim), or 1 with `compatibility`
    'meliad'"""
    num_buckets: int = 32
    """number of T5 relative-position buckets of local attention; 0 = no positions"""
    max_distance: int = 128
    """distance in tokens beyond which all distances share the last bucket"""
    bias_scaling: Literal["learned", "always"] = "learned"
    """scaling of the position bias: 'learned' = by the scale of query-key norm, unscaled without that norm; 'always' =
    without that norm by 1 / sqrt(head_dim), as the scores"""

    def check(self, field: str, config: Config) -> None:
        buckets, distance = self.num_buckets, self.max_distance
        require(buckets == 0 or buckets >= 2, f"{field}num_buckets", buckets, "0 (no positions), or 2 or more")
        fits = buckets == 0 or distance > buckets // 2
        require(fits, f"{field}max_distance", distance, f"more than half of {field}num_buckets = {buckets}")


@dataclass(slots=True, kw_only=True)
class RelativeAttention(Attention):
    """Common settings of attention with Transformer-XL's relative positions: place of the layer norm, shared biases,
    largest distance.
    """

    norm: Literal["post", "pre"] = "post"
    """place of the layer norm: 'post' = after the residual (the published models); 'pre' = before each part"""
    final_norm: bool = True
    """add a norm after the last layer where `norm` is not 'post'; the published code of Transformer-XL has none"""
    tied_biases: bool = False
    """share the biases u and v between all layers, as in the text of Transformer-XL's paper"""
    clamp_length: Annotated[int, zero_or_more("off", "tokens")] = 0
    """largest relative distance in tokens; longer ones are treated as this one; 0 = no clamping"""

    norm_kind = "layer"
    init_stddev = 0.02
    hf_model_type = "transfo-xl"
    same_length = False
    empty_memory = "mask"

    @property
    def norm_place(self) -> str:
        return "post" if self.norm == "post" else "pre"


@dataclass(slots=True, kw_only=True)
class FullAttention(BucketAttention):
    """Causal attention inside a segment, with T5's position buckets and without a memory: the degenerate case of every
    memory.
    """

    bias: bool = False
    """add biases to all projections"""
    norm_kind: Literal["rms", "layer"] = "rms"
    """kind of the norms, also in the feed-forward part"""
    final_norm: bool = True
    """add a norm after the last layer; the language models published with MemSizer have none"""

    can_grow = True


@dataclass(slots=True, kw_only=True)
class TransformerXL(RelativeAttention):
    """Transformer-XL (Dai et al. 2019): every layer attends to a memory of the hidden states of its last
    `memory_length` tokens in earlier segments.
    """

    memory_length: Slots = 128
    """number of slots (tokens) of the memory of hidden states in each layer; 0 = no memory"""
    same_length: bool = False
    """let every query see exactly `memory_length` keys including itself, as in evaluations of the published scripts"""
    empty_memory: Literal["mask", "zeros"] = "mask"
    """treatment of slots that were never written: 'mask' = no attention to them; 'zeros' = attention to them as zero
    vectors, as in the TensorFlow and Hugging Face code"""

    takes_memory_tokens = True

    def check(self, field: str, config: Config) -> None:
        _check_sines(type(self).__name__, config.model.dim)
        fits = self.memory_length > 0 or not self.same_length
        require(fits, f"{field}same_length", True, f"False when {field}memory_length is 0")


@dataclass(slots=True, kw_only=True)
class Compressive(RelativeAttention):
    """Compressive Transformer (Rae et al. 2019): Transformer-XL whose oldest hidden states are not dropped but
    compressed into the slots of a second memory.
    """

    memory_length: Slots = 128
    """number of slots (tokens) of the memory of hidden states in each layer; 0 = no memory, neither this nor the
    compressed one"""
    compressed_memory_length: Annotated[int, zero_or_more("TransformerXL", "slots")] = 128
    """number of slots of the compressed memory in each layer; 0 = a Transformer-XL"""
    compression_rate: Count = 4
    """number of tokens that one compressed slot stands for; a divisor of `data.segment_length` is fastest"""
    compression: Literal["convolution", "dilated", "max", "mean", "most_used"] = "convolution"
    """compression of old slots: 'convolution' and 'dilated' (with causal convolutions before) are learned; 'max' and
    'mean' pool; 'most_used' keeps the slots that received most attention"""
    dilations: Annotated[
        tuple[int, ...], Range(words="one or more numbers of slots, each at least 1", least=1, entries=1)
    ] = (1, 2, 4)
    """distances in slots of the causal convolutions where `compression` is 'dilated', one for each layer of them"""
    compression_loss: Literal["attention", "auto_encoding", "none"] = "attention"
    """auxiliary loss that trains the compression: 'attention' = attention to compressed slots gives what attention to
    the old ones gave; 'auto_encoding' = old slots can be decoded from compressed ones; 'none' = only the model's loss
    on later segments of the same update (`training.segments_per_update` of 2 or more)"""
    loss_weight: Weight = 1.0
    """coefficient of the auxiliary loss, which trains the compression only; 0 = it is only logged"""
    loss_reduction: Literal["mean_square", "norm"] = "mean_square"
    """error where `compression_loss` is 'attention': 'mean_square' as in the published code, or 'norm' = the L2 norm
    of the paper's text"""
    compressed_positions: Literal["separate", "contiguous"] = "separate"
    """positions of compressed slots: 'separate' = relative keys of their own, as in the published code; 'contiguous' =
    one row of slots together with the memory"""
    norm: Literal["post", "pre", "pre_sonnet"] = "post"
    """place of the layer norm; 'pre_sonnet' = pre-norm with memories of normed inputs, as in the published code"""
    empty_memory: Literal["mask", "zeros"] = "mask"
    """treatment of slots that were never written: 'mask' = no attention to them; 'zeros' = attention to them as zero
    vectors, as in the published code"""

    kl_over_layers = "mean"
    memory_parameter_names = (
        "compressed_position",
        "compressed_relative",
        "compression_kernel",
        "decompression_kernel",
        "dilated_kernels",
    )

    @property
    def crosses_segments(self) -> bool:
        return self._compresses and self.compression_loss == "none" and self.compression in ("convolution", "dilated")

    @property
    def _compresses(self) -> bool:
        return self.memory_length > 0 and self.compressed_memory_length > 0

    def auxiliary_loss_weights(self) -> dict[str, float]:
        name = RECONSTRUCTION.get(self.compression_loss)
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
                f"training.segments_per_update = 1: with {field}compression_loss = 'none' the compression learns "
                f"from later "
                "segments of the same update only; with 1 it never does"
            )
        if self._compresses and self.memory_length < length and self.compression_loss == "attention":
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
    """Memorizing Transformer (Wu et al. 2022): local attention with a cache in every layer, and in some layers the k
    nearest (key, value) pairs of a long FIFO memory for each query.
    """

    layers_with_memory: tuple[int, ...] | None = None
    """layers with the long memory, from 0, negative from the end; () = all; None = the fourth from the end (the first
    of a model with fewer layers)"""
    memory_length: Slots = 8192
    """number of slots (tokens) of the long memory for each row and head; 0 = only the local cache"""
    num_neighbors: int = 32
    """number of slots retrieved for each query and head"""
    cache_length: Annotated[int, zero_or_more(unit="tokens")] = 512
    """number of tokens of earlier segments that local attention sees, in every layer; 0 = only the current segment"""
    local_window: Annotated[int, zero_or_more("all", "keys")] | None = None
    """number of keys of local attention, including the key of the query's own token; 0 = all keys of cache and segment
    up to the query; None = all, or `cache_length` earlier keys with `compatibility` 'meliad'"""
    merge: Literal["gate", "joint", "add", "stop_forward"] = "gate"
    """combination of attention to the memory and local attention: 'gate' = a learned gate for each head (final version
    of the paper); 'joint' = one softmax over both (its first version); 'add' = their sum; 'stop_forward' = the value of
    the memory's result, with gradients of both"""
    write_policy: Literal["current", "evicted"] = "current"
    """entries written into the long memory: 'current' = those of the segment just read; 'evicted' = those that leave
    the local cache"""
    retrieval: Literal["exact", "approximate", "bucket", "threshold"] | None = None
    """search in the long memory: 'exact'; 'approximate'; 'bucket' = the best of each bucket, about 63 % recall;
    'threshold' = exact without a gather; None = 'exact', or 'bucket' with `compatibility` 'meliad'"""
    recall_target: Annotated[float, Range(words="above 0, up to 1", above=0, most=1)] = 0.95
    """expected recall where `retrieval` is 'approximate', on a TPU; on other devices that search is exact"""
    gate_init: float = 0.0
    """initial logit of the gate; positive values favour the memory"""
    track_positions: bool = False
    """store the document position of its token with every slot"""
    dropout_on: Literal["outputs", "inputs"] | None = None
    """activations that dropout falls on: 'outputs' = outputs of both parts of a layer, hidden layer, embeddings, last
    hidden state, all attention weights; 'inputs' = normed inputs of queries, keys and values, weights of local
    attention, output of the feed-forward part; None = 'outputs', or 'inputs' with `compatibility` 'meliad'"""
    compatibility: Literal["paper", "meliad"] = "paper"
    """details of the computation: 'paper'; 'meliad' = as in the authors' code: no bias in memory layers, strict
    causality, unmasked empty slots, and its scale, window, search and dropout where `scale_init`, `local_window`,
    `retrieval` and `dropout_on` are None"""

    memory_parameter_names = ("gate",)

    @property
    def sorts_all_scores(self) -> bool:
        return self.resolve().retrieval == "exact" and self.memory_length > 0

    @property
    def hidden_dropout(self) -> bool:
        return self.resolve().dropout_on == "outputs"

    @property
    def embedding_dropout(self) -> bool:
        return self.hidden_dropout

    @property
    def sees_itself(self) -> bool:
        """Whether local attention of a token includes the token itself: True with `compatibility` 'paper', False with
        'meliad'.
        """
        return self.compatibility == "paper"

    @property
    def empty_memory(self) -> str:
        """Treatment of slots that were never written: 'mask' = no attention to them (`compatibility` 'paper'), 'zeros'
        = attention to them as zero vectors ('meliad').
        """
        return "mask" if self.compatibility == "paper" else "zeros"

    def resolve(self, *, has_memory: bool = True) -> Memorizing:
        """Returns a copy in which fields that are None have the values of `compatibility`. `has_memory` tells whether
        it is for a layer with the long memory, which has no position buckets with 'meliad'.

        Args:
          has_memory: Whether they are for a layer with the long memory, which has no position bias with 'meliad'.
        """
        if self.compatibility == "paper":
            preset = {"local_window": 0, "retrieval": "exact", "dropout_on": "outputs"}
        else:
            preset = {"local_window": self.cache_length, "retrieval": "bucket", "dropout_on": "inputs"}
            preset |= {"scale_init": 1.0}
        values = {name: value for name, value in preset.items() if getattr(self, name) is None}
        if self.compatibility == "meliad" and has_memory:
            values["num_buckets"] = 0
        return replace(self, **values)

    def attention_span(self, segment_length: int) -> int:
        return self.resolve().local_window or self.cache_length + segment_length

    def chosen_layers(self, num_layers: int) -> tuple[int, ...]:
        """Returns the numbers of the layers with the long memory, negative ones from the end: `layers_with_memory`,
        where () stands for all layers, or the fourth from the end if that is None.
        """
        return (max(-4, -num_layers),) if self.layers_with_memory is None else self.layers_with_memory

    def check(self, field: str, config: Config) -> None:
        BucketAttention.check(self, field, config)
        fits = self.memory_length == 0 or 1 <= self.num_neighbors <= self.memory_length
        allowed = f"1 to {field}memory_length = {self.memory_length}"
        require(fits, f"{field}num_neighbors", self.num_neighbors, allowed)
        require_layers(f"{field}layers_with_memory", self.layers_with_memory or (), config.model.num_layers)
        fits = self.write_policy == "current" or self.cache_length > 0
        require(fits, f"{field}write_policy", self.write_policy, "'current' when cache_length is 0")


@dataclass(slots=True, kw_only=True)
class InfinityFormer(RelativeAttention):
    """infinity-former (Martins et al. 2022): the whole past as a continuous signal of constant size, read beside the
    attention of Transformer-XL or GPT-2.

    `norm`, `final_norm`, `tied_biases` and `clamp_length` have an effect where `base_attention` is 'transformer_xl'.
    """

    base_attention: Literal["transformer_xl", "gpt2"] = "transformer_xl"
    """attention that the long-term memory is added to: 'transformer_xl' = relative positions and a short-term memory;
    'gpt2' = learned positions"""
    layers_with_memory: tuple[int, ...] = ()
    """layers with the long-term memory, from 0, negative from the end; () = all"""
    num_basis: int = 512
    """number of basis functions of the signal, a multiple of the number of `widths`; 0 = no long-term memory"""
    widths: Annotated[tuple[float, ...], Range(words="one or more numbers above 0", above=0, entries=1)] = (0.01, 0.05)
    """standard deviations of the basis functions; (0.005, 0.01) in the paper's GPT-2"""
    num_samples: Annotated[int, Range(words="at least 1", least=1)] = 512
    """number of points at which the past is read when it is contracted"""
    contraction: Annotated[float, Range(words="above 0 and below 1", above=0, below=1)] = 0.5
    """share of the signal that the past keeps at every memory update"""
    ridge: Annotated[float, Range(words="above 0", above=0)] = 0.5
    """ridge penalty of the regression onto the basis functions; 1.0 in the published code for sorting"""
    sticky: Literal["none", "sample", "quantile"] = "none"
    """points at which the past is read: 'none' = evenly spaced; 'sample' = drawn in training where the last queries
    looked (sticky memories); 'quantile' = quantiles of where they looked"""
    num_bins: Annotated[int, Range(words="at least 1", least=1)] = 128
    """number of bins of the histogram of where queries looked, for sticky memories"""
    jitter_samples: bool = False
    """draw points inside a bin instead of at its left edge where `sticky` is 'sample'"""
    reset_after_tokens: Annotated[int, zero_or_more("never", "tokens")] = 0
    """number of tokens after which the signal starts again (2048 in the published GPT-2 code); 0 = never inside a
    document"""
    density_init: Literal["prior", "published"] = "prior"
    """densities of the queries before training: 'prior' = of standard deviation `prior_stddev`, each head at its own
    part of the signal; 'published' = all at the middle of the signal with 0.83, where they stay for thousands of
    updates"""
    prior_stddev: Annotated[float, Range(words="above 0", above=0)] = 0.05
    """standard deviation towards which the KL regulariser draws the densities; 0.1 in the paper for a model from
    scratch"""
    kl_weight: Weight = 1e-6
    """coefficient of the KL regulariser; 1e-5 in the paper for sorting, over 20,000 updates. Short runs need more, such
    as 1e-3: with 1e-6, densities that begin with 0.05 had 0.14 after 300 updates of a layer that learned to use them"""
    kl_over_layers: Literal["sum", "mean"] = "sum"
    """reduction of the KL regulariser over layers: 'sum', as published, or 'mean'"""
    min_variance: Annotated[float, Range(words="above 0", above=0)] = 1e-4
    """smallest variance of a density; 1e-6 in the published code for sorting"""
    memory_length: int = 0
    """number of slots (tokens) of the short-term memory where `base_attention` is 'transformer_xl', a multiple of the
    segment length; 0 = none"""
    num_positions: Count = 1024
    """number of learned positions where `base_attention` is 'gpt2'; at least the segment length"""

    memory_parameter_names = ("long_term",)

    @property
    def norm_place(self) -> str:
        return "pre" if self.base_attention == "gpt2" else self.norm

    @property
    def learned_positions(self) -> int:
        return self.num_positions if self.base_attention == "gpt2" else 0

    @property
    def hf_model_type(self) -> str:
        return "gpt2" if self.base_attention == "gpt2" else "transfo-xl"

    def auxiliary_loss_weights(self) -> dict[str, float]:
        return {"infinity_former/kl": self.kl_weight} if self.num_basis else {}

    def check(self, field: str, config: Config) -> None:
        basis, slots, length = self.num_basis, self.memory_length, config.data.segment_length
        fits = basis >= 0 and basis % len(self.widths) == 0
        require(fits, f"{field}num_basis", basis, f"0 (none) or a multiple of the {len(self.widths)} widths")
        require_layers(f"{field}layers_with_memory", self.layers_with_memory, config.model.num_layers)
        fits = slots >= 0 and slots % length == 0
        require(fits, f"{field}memory_length", slots, f"0 or a multiple of {length} tokens")
        scored = config.evaluation.segment_length
        fits = scored in (0, length)
        require(fits, "evaluation.segment_length", scored, f"0 or data.segment_length = {length}")
        if self.base_attention == "gpt2":
            allowed = "0 with base_attention = 'gpt2', which has no short-term memory"
            require(slots == 0, f"{field}memory_length", slots, allowed)
            _check_positions(field, self.num_positions, length)
        else:
            _check_sines("positions", config.model.dim)


@dataclass(slots=True, kw_only=True)
class GPT2(Attention):
    """GPT-2 (Radford et al. 2019): attention inside the segment with learned positions, alone or with a compressed
    memory of the hidden states of earlier segments.
    """

    num_positions: Count = 1024
    """number of learned positions; at least the segment length"""
    compressed_memory_length: Annotated[int, zero_or_more("none", "slots")] = 0
    """number of slots of the compressed memory in each layer; 0 = none"""
    compression_rate: Count = 4
    """number of tokens that one compressed slot stands for; a divisor of `data.segment_length`"""
    loss_weight: Weight = 1.0
    """coefficient of the attention-reconstruction loss, which trains the compression only; 0 = it is only logged"""

    norm_kind = "layer"
    init_stddev = 0.02
    hf_model_type = "gpt2"
    kl_over_layers = "mean"
    memory_parameter_names = ("compression_kernel",)

    @property
    def can_grow(self) -> bool:
        return not self.compressed_memory_length

    @property
    def learned_positions(self) -> int:
        return self.num_positions

    def auxiliary_loss_weights(self) -> dict[str, float]:
        return {RECONSTRUCTION["attention"]: self.loss_weight} if self.compressed_memory_length else {}

    def check(self, field: str, config: Config) -> None:
        length, rate = config.data.segment_length, self.compression_rate
        _check_positions(field, self.num_positions, length)
        fits = not self.compressed_memory_length or (rate >= 1 and length % rate == 0)
        require(fits, f"{field}compression_rate", rate, f"a divisor of data.segment_length = {length}")


@dataclass(slots=True, kw_only=True)
class Bidirectional(Attention):
    """A text encoder as BERT (Devlin et al. 2019), in which every token sees the whole text, for the tasks that need
    one, such as MaskedLanguageModeling and Classification.

    It has post-norm layers, learned positions, embeddings that are normed and not scaled, and tied output weights with
    a bias.
    """

    num_positions: Annotated[int, Range(words="1 or more tokens", least=1)] = 512
    """number of learned positions, which is the greatest number of tokens of a text"""
    num_token_types: Annotated[int, zero_or_more("none")] = 2
    """number of learned token types, one for each text of a pair; 0 = none, as DistilBERT"""
    pooler: bool = True
    """add a dense layer with tanh over the first token, which Classification reads; DistilBERT has none"""
    pooling: Literal["first", "mean"] = "first"
    """vector that Classification reads: 'first' = the first token, after the pooler if there is one; 'mean' = the mean
    over the text"""
    gate_dim: Annotated[int, zero_or_more("none")] = 0
    """width of the hidden layer of a gate on the vector that Classification reads, computed by a second encoder (ANML);
    0 = no gate"""

    norm_place = "post"
    norm_kind = "layer_exact"
    init_stddev = 0.02
    hidden_dropout = False
    is_causal = False
    takes_memory_tokens = True
    can_grow = True

    @property
    def hf_model_type(self) -> str:
        return "bert" if self.num_token_types else "distilbert"

    @property
    def learned_positions(self) -> int:
        return self.num_positions

    def check(self, field: str, config: Config) -> None:
        length = config.data.segment_length
        allowed = f"at most {field}num_positions = {self.num_positions}: a segment is a text"
        require(length <= self.num_positions, "data.segment_length", length, allowed)


@dataclass(slots=True, kw_only=True)
class LinearTransformer(Attention):
    """Linear Transformer (Katharopoulos et al. 2020): causal linear attention with features elu(x) + 1. Its state is
    the sums over all earlier tokens of the document.
    """

    chunk_length: Annotated[int, zero_or_more("the segment", "tokens")] = 128
    """number of tokens multiplied with each other at once; a longer segment carries the sums from chunk to chunk; 0 =
    the whole segment"""
    bias: bool = True
    """add biases to all projections"""
    norm: Literal["pre", "post"] = "pre"
    """place of the norm: 'pre' = before each part; 'post' = after the residual"""
    norm_kind: Literal["layer", "rms"] = "layer"
    """kind of the norms, also in the feed-forward part"""
    final_norm: bool = True
    """add a norm after the last layer where `norm` is 'pre'; the language models published with MemSizer have none"""

    crosses_segments = True

    @property
    def norm_place(self) -> str:
        return self.norm


@dataclass(slots=True, kw_only=True)
class RFA(LinearTransformer):
    """Random feature attention (Peng et al. 2021): causal linear attention with random features that approximate the
    softmax kernel, with an optional gate that lets the state decay.
    """

    num_directions: Count = 64
    """number of random directions of a head; there are twice as many features"""
    temperature: Positive = 1.0
    """divisor of the random directions"""
    gate: bool = False
    """let the sums decay by a gate for each head and token"""
    gate_bias_init: float = 3.0
    """initial bias of the decay gate"""
    orthogonal: bool = False
    """draw directions that are orthogonal in blocks of the head's width"""
    redraw_each_segment: bool = False
    """draw new directions in every training segment; then no state crosses segments in training"""

    memory_parameter_names = ("gate",)


@dataclass(slots=True, kw_only=True)
class T2R(LinearTransformer):
    """T2R (Kasai et al. 2021): causal linear attention with learned features, which can continue training from a model
    with softmax attention.
    """

    num_features: Count = 32
    """width of the feature map of a head"""
    fold_features: bool = False
    """the parameters are those that `memjax.memory.t2r.fold` returns, for inference"""


@dataclass(slots=True, kw_only=True)
class MemSizer(LinearTransformer):
    """MemSizer (Zhang & Cai 2022): causal linear attention over one memory of few slots, which all heads share. The
    keys of the slots are parameters.
    """

    num_slots: Count = 32
    """number of slots of the memory (k in the paper)"""
    freeze_slot_keys: bool = False
    """keep the random initial keys of the slots"""
    query_init_scale: Positive = 32.0
    """divisor of the variance of the slots' initial keys: Xavier initialisation divided by sqrt(query_init_scale)"""
    source_init_scale: Positive = 1.0
    """divisor of the variance of the initial source adaptors of slots and values: Xavier initialisation divided by
    sqrt(source_init_scale)"""


@dataclass(slots=True, kw_only=True)
class LSTM(Attention):
    """LSTM layers (Hochreiter & Schmidhuber 1997) in place of attention layers, without feed-forward part, norm or
    residual. The state of the cells is the memory.

    `num_heads`, `head_dim`, `attention_dropout` and `feed_forward` of the model have no effect.
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
