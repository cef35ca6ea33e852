"""Settings of rotary attention, the attention of Llama and its kin, and of the kinds of rotary positions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.attention_bases import Attention
from memjax.settings.checks import Settings, require, require_layers
from memjax.settings.grafts import GraftKind
from memjax.settings.ranges import Count, Positive, Range, Slots, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "LinearPositions",
    "Llama3Positions",
    "LongRopePositions",
    "Rotary",
    "RotaryPositions",
    "RotaryPositionsKind",
    "YarnPositions",
]


@dataclass(slots=True, kw_only=True)
class RotaryPositions(Settings):
    """Rotary positions (Su et al. 2021): pair i of the entries of a head is rotated by `theta ** (-2 i / width)`
    radians for each token.
    """

    theta: Positive = 10_000.0
    """base of the wavelengths, which reach 2 pi theta tokens"""
    fraction: Annotated[float, Range(words="a share above 0, up to 1", above=0, most=1)] = 1.0
    """share of the entries of a head that are rotated, the first ones"""

    def width(self, head_dim: int) -> int:
        """Returns the number of entries of a head, of `head_dim`, that are rotated."""
        return int(head_dim * self.fraction)

    def check(self, field: str, config: Config) -> None:
        width = self.width(config.model.head_dim or config.model.dim // config.model.num_heads)
        allowed = f"a share that rotates an even number of entries of a head (here {width})"
        require(width > 0 and width % 2 == 0, f"{field}fraction", self.fraction, allowed)


@dataclass(slots=True, kw_only=True)
class LinearPositions(RotaryPositions):
    """Rotary positions whose frequencies are all divided by one factor (position interpolation, Chen et al. 2023)."""

    factor: Positive = 2.0
    """divisor of all frequencies: the ratio of the new length of texts to that of the pre-training"""


@dataclass(slots=True, kw_only=True)
class Llama3Positions(RotaryPositions):
    """Rotary positions of Llama 3.1 and later: low frequencies are divided, high ones kept, those between blended."""

    factor: Positive = 8.0
    """divisor of low frequencies"""
    low_frequency_factor: Positive = 1.0
    """number of periods in `original_length` tokens below which a frequency is divided"""
    high_frequency_factor: Positive = 4.0
    """number of periods in `original_length` tokens above which a frequency is kept"""
    original_length: Count = 8192
    """number of tokens of the texts of the pre-training"""

    def check(self, field: str, config: Config) -> None:
        RotaryPositions.check(self, field, config)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        allowed = f"above {field}low_frequency_factor = {low}"
        require(low < high, f"{field}high_frequency_factor", high, allowed)


@dataclass(slots=True, kw_only=True)
class YarnPositions(RotaryPositions):
    """Rotary positions of YaRN (Peng et al. 2023): a ramp over the pairs from kept to divided frequencies, and a factor
    of the scores.
    """

    factor: Positive = 4.0
    """divisor of low frequencies"""
    original_length: Count = 4096
    """number of tokens of the texts of the pre-training"""
    fast_periods: Positive = 32.0
    """number of periods in `original_length` tokens of the last pair that is kept"""
    slow_periods: Positive = 1.0
    """number of periods in `original_length` tokens of the first pair that is divided"""
    whole_pairs: bool = True
    """round these two pairs to whole numbers, as in the published code"""
    attention_factor: Positive | None = None
    """factor of rotated queries and keys; None = 0.1 log(factor) + 1"""


@dataclass(slots=True, kw_only=True)
class LongRopePositions(RotaryPositions):
    """Rotary positions of LongRoPE (Ding et al. 2024): every frequency is divided by a number of its own."""

    divisors: Annotated[tuple[float, ...], Range(words="numbers above 0, one for each pair", above=0)] = ()
    """divisor of each frequency, one for each rotated pair"""
    attention_factor: Positive = 1.0
    """factor of rotated queries and keys"""
    original_length: Count = 4096
    """number of tokens of the texts of the pre-training, which an export names; it has no effect here"""

    def check(self, field: str, config: Config) -> None:
        RotaryPositions.check(self, field, config)
        pairs = self.width(config.model.head_dim or config.model.dim // config.model.num_heads) // 2
        allowed = f"{pairs} numbers, one for each rotated pair"
        require(len(self.divisors) == pairs, f"{field}divisors", f"{len(self.divisors)} numbers", allowed)


RotaryPositionsKind = RotaryPositions | LinearPositions | Llama3Positions | YarnPositions | LongRopePositions


@dataclass(slots=True, kw_only=True)
class Rotary(Attention):
    """Attention of Llama and its kin (Touvron et al. 2023): rotary positions, grouped keys and values, and in every
    layer a memory of the keys and values of the last tokens.
    """

    memory_length: Slots = 128
    """number of slots (tokens) of the memory of keys and values in each layer; 0 = no memory"""
    sinks: Slots = 0
    """number of further slots, which keep the first tokens of a document (attention sinks, Xiao et al. 2023)"""
    same_length: bool = False
    """let every query see exactly `memory_length` keys including itself, besides the sinks"""
    key_heads: Annotated[int, zero_or_more("model.num_heads")] = 0
    """number of heads of keys and values, a divisor of `model.num_heads`, of which consecutive ones share one; 0 = as
    many"""
    rotary: RotaryPositionsKind | None = field(default_factory=RotaryPositions)
    """rotary positions; None = no positions"""
    window: Annotated[int, zero_or_more("no limit", "keys")] = 0
    """largest number of keys that a query sees, itself included, besides the sinks; 0 = no limit"""
    local_layers: tuple[int, ...] | None = None
    """layers of a second kind, from 0, negative from the end, with `local_window` and `local_rotary` in place of
    `window` and `rotary`; () = all; None = none"""
    local_window: Annotated[int, zero_or_more("no limit", "keys")] = 0
    """`window` of the layers of `local_layers`"""
    local_rotary: RotaryPositionsKind | None = field(default_factory=RotaryPositions)
    """`rotary` of the layers of `local_layers`; None = no positions there"""
    bias: bool = False
    """add biases to queries, keys and values"""
    output_bias: bool = False
    """add a bias to the output of attention"""
    query_key_norm: Literal["none", "head", "all"] = "none"
    """norm of queries and keys before their rotation: 'head' = of each head, with the same weights; 'all' = of all
    heads together; 'none'"""
    score_scale: Positive | None = None
    """factor of the scores of queries and keys; None = 1 / sqrt(head_dim)"""
    score_cap: Annotated[float, zero_or_more("no limit")] = 0.0
    """limit of these scores, cap * tanh(score / cap), as in Gemma 2; 0 = no limit"""
    norm: Literal["pre", "after", "both"] = "pre"
    """place of the norms of a layer: 'pre' = before each part; 'after' = on the output of each part, before the
    residual; 'both'"""
    norm_kind: Literal["rms", "rms_offset"] = "rms"
    """kind of all norms: 'rms' = of root mean squares; 'rms_offset' = with factors of 1 plus the parameters, as in
    Gemma"""
    trained_length: Annotated[int, zero_or_more("not known", "tokens")] = 0
    """number of tokens of the longest texts of the pre-training, which an export names; it has no effect here"""
    graft: GraftKind | None = None
    """further memory that some layers read beside their attention, which changes nothing before it is trained; None =
    none"""

    init_stddev = 0.02
    implementations = ("reference", "blocks", "fused")
    encodes_texts = True
    hidden_dropout = False
    embedding_dropout = False

    @property
    def norm_place(self) -> str:
        return self.norm

    @property
    def kl_over_layers(self) -> str:
        return self.graft.kl_over_layers if self.graft else "sum"

    @property
    def sorts_all_scores(self) -> bool:
        return self.graft is not None and self.graft.sorts_all_scores

    @property
    def memory_parameter_names(self) -> tuple[str, ...]:
        return ("attention/graft",) if self.graft else ()

    def auxiliary_loss_weights(self) -> dict[str, float]:
        return self.graft.auxiliary_loss_weights() if self.graft else {}

    def with_memory(self, length: int) -> Rotary:
        """Returns a copy of these settings with `memory_length` set to `length` slots. Without slots it has no sinks
        and no `same_length` either, which would need a memory.
        """
        further = {} if length else {"sinks": 0, "same_length": False}
        return replace(self, memory_length=length, **further)

    def layer_kind(self, index: int, num_layers: int) -> tuple[int, RotaryPositionsKind | None]:
        """Returns the window and the rotary positions of the layer with the number `index` of `num_layers`."""
        local = self.local_layers
        is_local = local is not None and (not local or index in {layer % num_layers for layer in local})
        return (self.local_window, self.local_rotary) if is_local else (self.window, self.rotary)

    @property
    def hf_model_type(self) -> str:
        if self.norm != "pre":
            gemma = "gemma3_text" if self.query_key_norm == "head" else "gemma2"
            olmo = "olmo2" if self.local_layers is None else "olmo3"
            return gemma if self.norm == "both" else olmo
        if self.rotary is None:
            return "smollm3"
        if self.query_key_norm == "head":
            return "qwen3"
        if self.rotary.fraction != 1 or isinstance(self.rotary, LongRopePositions):
            return "phi3"
        has_qwen_biases = self.bias and not self.output_bias
        return "mistral" if self.window else "qwen2" if has_qwen_biases else "llama"

    def check(self, field: str, config: Config) -> None:
        require_layers(f"{field}local_layers", self.local_layers or (), config.model.num_layers)
        heads = config.model.num_heads
        fits = heads % (self.key_heads or heads) == 0
        require(fits, f"{field}key_heads", self.key_heads, f"0, or a divisor of model.num_heads = {heads}")
        for name in ("sinks", "same_length"):
            value = getattr(self, name)
            allowed = f"{type(value)(0)} where {field}memory_length is 0"
            require(self.memory_length > 0 or not value, f"{field}{name}", value, allowed)
