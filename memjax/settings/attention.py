"""Settings of the kinds of attention, each with its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.attention_bases import Attention, BucketAttention, RelativeAttention, check_positions, check_sines
from memjax.settings.checks import require
from memjax.settings.long_memory import RECONSTRUCTION, Compressive, InfinityFormer, Memorizing
from memjax.settings.ranges import Count, Positive, Range, Slots, Weight, zero_or_more
from memjax.settings.rotary import Rotary

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "FullAttention",
    "TransformerXL",
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
    implementations = ("reference", "blocks")


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
    implementations = ("reference", "blocks")

    def check(self, field: str, config: Config) -> None:
        check_sines(type(self).__name__, config.model.dim)
        fits = self.memory_length > 0 or not self.same_length
        require(fits, f"{field}same_length", True, f"False when {field}memory_length is 0")


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
    encodes_texts = True
    kl_over_layers = "mean"
    memory_parameter_names = ("compression_kernel",)

    @property
    def can_grow(self) -> bool:
        return not self.compressed_memory_length

    @property
    def implementations(self) -> tuple[str, ...]:
        return ("reference",) if self.compressed_memory_length else ("reference", "blocks", "fused")

    @property
    def learned_positions(self) -> int:
        return self.num_positions

    def auxiliary_loss_weights(self) -> dict[str, float]:
        return {RECONSTRUCTION["attention"]: self.loss_weight} if self.compressed_memory_length else {}

    def check(self, field: str, config: Config) -> None:
        length, rate = config.data.segment_length, self.compression_rate
        check_positions(field, self.num_positions, length)
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
    encodes_texts = True

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
    | Rotary
    | Bidirectional
    | LinearTransformer
    | RFA
    | T2R
    | MemSizer
    | LSTM
)
