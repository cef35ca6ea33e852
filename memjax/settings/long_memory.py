"""Settings of attention with a long memory: compressed, retrieved, or a continuous signal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.attention_bases import BucketAttention, RelativeAttention, check_positions, check_sines
from memjax.settings.checks import Settings, require, require_layers
from memjax.settings.ranges import Count, Range, Slots, Weight, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Compressive", "InfinityFormer", "Memorizing"]

RECONSTRUCTION = {"attention": "compressive/attention_reconstruction", "auto_encoding": "compressive/auto_encoding"}
"""value of `loss` -> name of that loss in `memjax.memory.compressive.LOSSES`"""


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
        check_sines(type(self).__name__, config.model.dim)
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
    def implementations(self) -> tuple[str, ...]:
        return ("reference",) if self.merge == "joint" else ("reference", "blocks")

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


@dataclass(kw_only=True)
class ContinuousSignal(Settings):
    """Common settings of memories that hold the whole past as a continuous signal (Martins et al. 2022): its functions,
    the points at which it is read when it is contracted, and the regulariser of the densities that read it.
    """

    __slots__ = ()  # A subclass has slots of another base, and those of these fields.

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
    reset_after_tokens: Annotated[int, zero_or_more("never", "tokens")] = 0
    """number of tokens after which the signal starts again (2048 in the published GPT-2 code); 0 = never inside a
    document"""
    prior_stddev: Annotated[float, Range(words="above 0", above=0)] = 0.05
    """standard deviation of the densities before training, and towards which the KL regulariser draws them; 0.1 in the
    paper for a model from scratch"""
    kl_weight: Weight = 1e-6
    """coefficient of the KL regulariser; 1e-5 in the paper for sorting, over 20,000 updates. Short runs need more, such
    as 1e-3: with 1e-6, densities that begin with 0.05 had 0.14 after 300 updates of a layer that learned to use them"""
    kl_over_layers: Literal["sum", "mean"] = "sum"
    """reduction of the KL regulariser over layers: 'sum', as published, or 'mean'"""

    def auxiliary_loss_weights(self) -> dict[str, float]:
        return {"infinity_former/kl": self.kl_weight} if self.num_basis else {}

    def check(self, field: str, config: Config) -> None:
        scored, length = config.evaluation.segment_length, config.data.segment_length
        require(scored in (0, length), "evaluation.segment_length", scored, f"0 or data.segment_length = {length}")


@dataclass(slots=True, kw_only=True)
class InfinityFormer(ContinuousSignal, RelativeAttention):
    """infinity-former (Martins et al. 2022): the whole past as a continuous signal of constant size, read beside the
    attention of Transformer-XL or GPT-2.

    `norm`, `final_norm`, `tied_biases` and `clamp_length` have an effect where `base_attention` is 'transformer_xl'.
    """

    base_attention: Literal["transformer_xl", "gpt2"] = "transformer_xl"
    """attention that the long-term memory is added to: 'transformer_xl' = relative positions and a short-term memory;
    'gpt2' = learned positions"""
    layers_with_memory: tuple[int, ...] = ()
    """layers with the long-term memory, from 0, negative from the end; () = all"""
    jitter_samples: bool = False
    """draw points inside a bin instead of at its left edge where `sticky` is 'sample'"""
    density_init: Literal["prior", "published"] = "prior"
    """densities of the queries before training: 'prior' = of standard deviation `prior_stddev`, each head at its own
    part of the signal; 'published' = all at the middle of the signal with 0.83, where they stay for thousands of
    updates"""
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

    def check(self, field: str, config: Config) -> None:
        basis, slots, length = self.num_basis, self.memory_length, config.data.segment_length
        fits = basis >= 0 and basis % len(self.widths) == 0
        require(fits, f"{field}num_basis", basis, f"0 (none) or a multiple of the {len(self.widths)} widths")
        require_layers(f"{field}layers_with_memory", self.layers_with_memory, config.model.num_layers)
        fits = slots >= 0 and slots % length == 0
        require(fits, f"{field}memory_length", slots, f"0 or a multiple of {length} tokens")
        ContinuousSignal.check(self, field, config)
        if self.base_attention == "gpt2":
            allowed = "0 with base_attention = 'gpt2', which has no short-term memory"
            require(slots == 0, f"{field}memory_length", slots, allowed)
            check_positions(field, self.num_positions, length)
        else:
            check_sines("positions", config.model.dim)
