"""Base classes of the settings of all kinds of attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.checks import Settings, require
from memjax.settings.ranges import zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config, ModelSettings

__all__ = ["Attention"]


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
      encodes_texts: Whether its layers can also read whole texts for the head of a task, from the last token where it
        is causal.
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
    encodes_texts = False

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
        cleared = "whose memory has a fixed length; evaluation.memory_intervention 'cleared' empties it"
        reason = cleared if self.crosses_segments else "which has no memory"
        allowed = f"None with {type(self).__name__}, {reason}"
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
      implementations: Programs that can compute the attention, beside 'auto'.
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
    implementations = ("reference",)

    def make(self, model: ModelSettings, layer: int) -> Any:
        """Returns the attention part of one layer, a `memjax.memory.LayerMemory`. Settings of a user's own define it;
        `memjax.models.factory` makes the other kinds.

        Args:
          model: Settings of the model, such as its width `dim`.
          layer: Number of the layer, from 0.
        """
        del model, layer
        raise ValueError(f"model.attention: given {type(self).__name__}, allowed: one of memjax.config.AttentionKind")


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


def check_sines(of: str, dim: int) -> None:
    """Raises `ValueError` for an odd width `dim` of the model, which sines and cosines cannot fill. `of` is the word
    for what needs them, such as 'TransformerXL', in the message.
    """
    require(dim % 2 == 0, "model.dim", dim, f"an even number (sines and cosines of {of})")


def check_positions(field: str, positions: int, length: int) -> None:
    """Raises `ValueError` for fewer learned positions than the `length` tokens of a segment. `field` is the path of the
    settings with a dot at the end, for the message.
    """
    require(positions >= length, f"{field}num_positions", positions, f"at least data.segment_length = {length}")
