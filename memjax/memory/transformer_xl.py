"""Transformer-XL, whose layers attend to the hidden states of earlier segments, with relative positions.

Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
https://arxiv.org/abs/1901.02860.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from memjax.axes import named
from memjax.functional.attention import attention_with_weights, scale_queries
from memjax.functional.fifo import reset_rows, shift_append
from memjax.functional.named_operations import operation
from memjax.functional.positions import relative_shift, sinusoids
from memjax.memory.attention_implementations import AttentionWeights, attention_shares
from memjax.memory.checks import MUST_BE_GIVEN, refuse_padding_in_front
from memjax.memory.hidden_state_attention import HiddenStateAttention, SegmentAttention
from memjax.memory.interface import where_rows
from memjax.memory.layer_parts import SHORT, NormKind, TrackedKeys, matrix_init, project
from memjax.memory.projector import Projector, Runs, Weights
from memjax.settings.ranges import Count, HeadDim, Slots
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, tree_dataclass

__all__ = ["TransformerXLAttention", "TransformerXLProjector", "TransformerXLState"]


EmptyMemory = Literal["mask", "zeros"]
"""Treatment of slots that were never written: no attention to them, or attention to them as zero vectors."""


@tree_dataclass
class TransformerXLState:
    """Memory of one Transformer-XL layer: its inputs at the last `memory` positions, oldest first.

    Attributes:
      hidden: `[batch, memory, dim]`, remembered hidden states.
      valid: bool `[batch, memory]`, slots that hold a token of the running document.
    """

    hidden: Leaf
    valid: Leaf


@operation
def reset(state: Any, start_of_document: Rows, *, empty_memory: EmptyMemory = "mask") -> Any:
    """Empties the memory of rows that start a document. `empty_memory='zeros'` marks their zero slots as valid, 'mask'
    as invalid.
    """
    state = jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)
    if isinstance(state, EmptyState) or empty_memory != "zeros":
        return state
    return dataclasses.replace(state, valid=state.valid | start_of_document[:, None])


@operation
def write(state: Any, hidden: Activations, mask: Mask) -> Any:
    """Returns the memory with the hidden states of a segment appended, `m' = SG([m; h])[-memory:]`.

    Rows without a real token keep their state.

    Args:
      state: `TransformerXLState`, or `EmptyState` for a memory of length 0.
      hidden: `[batch, length, dim]`, input of the layer.
      mask: bool `[batch, length]`, real tokens. Padding takes slots that are marked invalid.
    """
    if isinstance(state, EmptyState):
        return state
    new = TransformerXLState(shift_append(state.hidden, jax.lax.stop_gradient(hidden)), shift_append(state.valid, mask))
    return where_rows(mask.any(axis=1), new, state)


@operation
def score_positions(
    queries: Float[Array, "batch length heads head_dim"],
    relative_keys: Float[Array, "total heads head_dim"],
    position_bias: Float[Array, "heads head_dim"],
) -> Float[Array, "batch heads length total"]:
    """Returns attention scores by relative position, `(q_i + v) r_{i-j} / sqrt(head_dim)`, where `relative_keys` has r
    and `position_bias` is v. The scores of later keys have no meaning: mask them.

    Args:
      queries: `[batch, length, heads, head_dim]`, queries of the segment. The last query is at the position of the last
        key.
      relative_keys: Projected sinusoids of the distances, the longest distance `total - 1` first.
      position_bias: `[heads, head_dim]`, the bias v.
    """
    scaled = (queries + position_bias[None, None]) * queries.shape[-1] ** -0.5
    return relative_shift(jnp.einsum("blhd,mhd->bhlm", scaled, relative_keys))


@operation
def read(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch total heads head_dim"],
    values: Float[Array, "batch total heads head_dim"],
    position_scores: Float[Array, "batch heads length total"],
    content_bias: Float[Array, "heads head_dim"],
    visible: Bool[Array, "#batch 1 length total"],
    **dropout: Any,
) -> tuple[Float[Array, "batch length heads head_dim"], Float[Array, "batch heads length total"]]:
    """Returns relative attention, `softmax(((q_i + u) k_j + (q_i + v) r_{i-j}) / sqrt(head_dim)) values`, and its
    weights. `content_bias` is u, `position_scores` is the second term after division.

    Args:
      queries: `[batch, length, heads, head_dim]`, queries of the segment.
      keys: `[batch, total, heads, head_dim]`, keys of memory and segment, oldest first.
      values: `[batch, total, heads, head_dim]`, values of memory and segment, oldest first.
      position_scores: `(q_i + v) r_{i-j} / sqrt(head_dim)`.
      content_bias: `[heads, head_dim]`, the bias u.
      visible: bool `[batch, 1, length, total]`, keys that each query may read. The batch axis may be 1.
      **dropout: `dropout_rate` and `dropout_key` of `memjax.functional.attention`.
    """
    scale, queries = queries.shape[-1] ** -0.5, queries + content_bias[None, None]
    return attention_with_weights(queries, keys, values, mask=visible, bias=position_scores, scale=scale, **dropout)


class RelativeBiases(nn.Module):
    """The biases u and v of relative attention, as one module that all layers share (`tied_biases`).

    Attributes:
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
    """

    num_heads: Count
    head_dim: int

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "heads head_dim"], Float[Array, "heads head_dim"]]:
        """Returns the content bias u and the position bias v."""
        shape, init = (self.num_heads, self.head_dim), named(nn.initializers.normal(0.02), "heads", None)
        return self.param("content", init, shape), self.param("position", init, shape)


@dataclasses.dataclass(frozen=True)
class TransformerXLProjector(Projector):
    """Transformer-XL's projections without biases, and its relative positions (Dai et al. 2019).

    The score of a key at distance i - j is `((q_i + u) k_j + (q_i + v) W_R R_{i-j}) / sqrt(head_dim)`. Further runs of
    slots have their own `W_R` and `v`, the parameters `<prefix>relative` and `<prefix>position`.

    Attributes:
      tied_biases: Whether all layers of a stack share the biases u and v.
      clamp_length: Largest distance between a query and a key. Longer distances count as this one. 0 for no limit.

    Example:
      >>> TransformerXLAttention(8, 2, 4, memory_length=4, projector=TransformerXLProjector(clamp_length=3)).projector
      TransformerXLProjector(tied_biases=False, clamp_length=3)
    """

    tied_biases: bool = False
    clamp_length: int = 0

    has_position_scores = True

    def declare(self, part: nn.Module, prefixes: tuple[str, ...] = ()) -> dict[str, Array]:
        """Declares `query`, `key_value`, `relative` and `output` in the attention module `part`, and `<prefix>relative`
        and `<prefix>position` for each of `prefixes`, those of further runs of slots. Returns them by name.
        """
        init, dim, heads = matrix_init(part.init_stddev), part.dim, (part.num_heads, part.head_dim)
        inner = named(init, "embed", "heads", None)
        weights = {
            "query": part.param("query", inner, (dim, *heads)),
            "key_value": part.param("key_value", named(init, "embed", None, "heads", None), (dim, 2, *heads)),
            "relative": part.param("relative", inner, (dim, *heads)),
            "output": part.param("output", named(init, "heads", None, "embed"), (*heads, dim)),
        }
        for prefix in prefixes:
            relative, position = f"{prefix}relative", f"{prefix}position"
            weights[relative] = part.param(relative, inner, (dim, *heads))
            bias = named(nn.initializers.normal(0.02), "heads", None)
            weights[position] = part.param(position, bias, heads)
        return weights

    def make_biases(self, num_heads: int, head_dim: int) -> nn.Module | None:
        """Makes the module of the biases u and v, a `RelativeBiases`."""
        return RelativeBiases(num_heads, head_dim)

    def place(
        self,
        weights: Weights,
        queries: Array,
        keys: Array,
        runs: Runs,
        *,
        position: Array | None = None,
        drop: Callable[[Array], Array] | None = None,
    ) -> tuple[Array, Array, Array | None]:
        """Returns queries and keys as they are, and the scores of their distances. `runs` lists prefix and length of
        each run of memory slots, `position` is the index of a decoded token, `drop` a dropout of encodings.
        """
        segment_length, scores = keys.shape[1] - sum(slots for _, slots in runs), []
        for index, (prefix, slots) in enumerate(runs):
            total = slots + segment_length
            columns = total if index == len(runs) - 1 else slots
            if position is None:
                by_key = self._score_segment(weights, prefix, queries, total, drop or (lambda positions: positions))
                scores.append(by_key if columns == total else by_key[..., :columns])
            else:
                place = position[:, None] + slots
                scores.append(self._score_token(weights, prefix, queries, place, total, columns))
        return queries, keys, scores[0] if len(scores) == 1 else jnp.concatenate(scores, axis=-1)

    def position_factors(
        self, weights: Weights, queries: Array, total: int, drop: Callable[[Array], Array] | None = None
    ) -> tuple[Array, Array]:
        """Returns the queries with the bias v, divided by sqrt(head_dim), and the projected encodings of all distances
        up to `total - 1`, the longest first. See `Projector.position_factors`.
        """
        matrix, bias = self._terms(weights, "")
        positions = self._positions(weights, total)
        relative_keys = project(positions if drop is None else drop(positions), matrix)
        return scale_queries(queries + bias[None, None], None), relative_keys

    def add_content_bias(self, weights: Weights, queries: Array) -> Array:
        """Returns the queries with the bias u added."""
        return queries + weights["biases"][0][None, None]

    def attend(
        self,
        weights: Weights,
        queries: Array,
        keys: Array,
        values: Array,
        scores: Array | None,
        visible: Array,
        **dropout: Any,
    ) -> tuple[Array, Array]:
        """Attends to keys by content and by `scores`, those of relative positions. Returns the result of every head and
        the attention weights.
        """
        assert scores is not None  # `place` always gives them
        return read(queries, keys, values, scores, weights["biases"][0], visible, **dropout)

    def _score_segment(
        self, weights: Weights, prefix: str, queries: Array, total: int, drop: Callable[[Array], Array]
    ) -> Array:
        """Computes the scores `[batch, heads, length, total]` of a segment's queries and the keys up to the last."""
        matrix, bias = self._terms(weights, prefix)
        positions = drop(self._positions(weights, total))
        return score_positions(queries, project(positions, matrix), bias)

    def _score_token(
        self, weights: Weights, prefix: str, query: Array, place: Array, total: int, columns: int
    ) -> Array:
        """Computes the scores `[batch, heads, 1, columns]` of one token per row, `place` keys after the first one."""
        matrix, bias = self._terms(weights, prefix)
        distance = place - jnp.arange(columns)[None, :]  # [b, m]
        # (q + v) W_R^T first: one vector per head instead of projecting every distance for one token.
        scaled = (query + bias[None, None]) * query.shape[-1] ** -0.5
        folded = jnp.einsum("blhd,ehd->blhe", scaled, matrix.astype(query.dtype))
        by_distance = jnp.einsum("blhe,me->bhlm", folded, self._positions(weights, total).astype(query.dtype))
        column = jnp.clip(total - 1 - distance, 0, total - 1)[:, None, None, :]
        return jnp.take_along_axis(by_distance, jnp.broadcast_to(column, (*by_distance.shape[:3], columns)), axis=-1)

    def _terms(self, weights: Weights, prefix: str) -> tuple[Array, Array]:
        """Returns W_R and v of a run of slots."""
        bias = weights["biases"][1]
        return weights[f"{prefix}relative"], weights[f"{prefix}position"].astype(bias.dtype) if prefix else bias

    def _positions(self, weights: Weights, total: int) -> Float[Array, "total dim"]:
        """Returns the encodings of the distances, the longest one first."""
        distances, matrix = np.arange(total - 1, -1, -1), weights["relative"]
        if self.clamp_length:
            distances = np.minimum(distances, self.clamp_length)
        wide = jnp.promote_types(weights["biases"][1].dtype, matrix.dtype)
        return sinusoids(distances, matrix.shape[0]).astype(wide)


class TransformerXLAttention(HiddenStateAttention):
    """Attention of a Transformer-XL layer, which also reads the hidden states of earlier segments.

    Dai et al. 2019, https://arxiv.org/abs/1901.02860.

    What is stored: the part's input of the last `memory_length` positions. When written: after each segment, with the
    dropout already applied. What is differentiable: nothing through the memory (stopped gradient), but the projections
    of remembered states do train. When reset: at `start_of_document`.

    Symbols: `m^n -> state.hidden`, `h~^{n-1} -> [state.hidden; x]`, `W_q, W_{k,E}, W_v -> query, key_value`,
    `W_{k,R} -> relative`, `R -> sinusoids(distance)`, `u, v -> biases` of `TransformerXLProjector`.

    Differs from the paper or its code:

    * An empty memory is masked. The published TensorFlow code attends to zero vectors (`empty_memory="zeros"`).
    * Documents are separate streams.
    * Hidden states are kept per layer. The output of the last layer is not kept, because nothing reads it.
    * Queries are projected for the segment only.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      memory_length: Number of slots. 0 for no memory.
      projector: Projections and positions. By default those of Transformer-XL.
      norm: Place of the norm: 'post' (as published) or 'pre' (applied to memory and segment when they are read).
      norm_kind: Kind of norm: 'layer' or 'rms'.
      same_length: Whether every query sees exactly `memory_length` keys including itself.
      empty_memory: Effect of empty slots: 'mask' hides them, 'zeros' lets queries attend to zero vectors.
      dropout: Dropout rate of the output and of the relative positions.
      attention_dropout: Dropout rate of the attention weights.
      init_stddev: Standard deviation of all initial matrices and biases.
      dtype: Dtype of the computation.
      track_attention: Whether `Aux.arrays` has the arrays for `memjax.inspection.attention_maps`: `attention/weights`
        `[batch, heads, length, slots + length]`, and `attention/visible`, the keys that a query may read. Also the
        arrays for `memjax.inspection.attention_by_age` (`memjax.memory.layer_parts.TrackedKeys`).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory = TransformerXLAttention(dim=8, num_heads=2, head_dim=4, memory_length=4)
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.hidden.shape
      ((1, 4, 8), (1, 4, 8))
    """

    dim: Count
    num_heads: Count
    head_dim: HeadDim = 0
    memory_length: Slots = MUST_BE_GIVEN
    projector: Projector = TransformerXLProjector()
    norm: Literal["post", "pre"] = "post"
    norm_kind: NormKind = "layer"
    same_length: bool = False
    empty_memory: EmptyMemory = "mask"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_stddev: float = 0.02
    dtype: Any = jnp.float32
    track_attention: bool = False

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> TransformerXLState | EmptyState:
        """Makes an empty memory, in which a document starts, with hidden states of `dtype`. `EmptyState` for a memory
        of length 0.
        """
        if not self.memory_length:
            return EmptyState()
        hidden = jnp.zeros((batch_size, self.memory_length, self.dim), dtype)
        return TransformerXLState(hidden, jnp.full((batch_size, self.memory_length), self.empty_memory == "zeros"))

    @property
    def _num_slots(self) -> int:
        return self.memory_length

    @property
    def _why_reference(self) -> str:
        return ""

    @property
    def _window(self) -> int | None:
        return self.memory_length if self.same_length else None

    def _reset(self, state: Any, start_of_document: Array) -> Any:
        return reset(state, start_of_document, empty_memory=self.empty_memory)

    @nn.nowrap
    def _slots(self, state: Any) -> tuple[tuple[Array, ...], Array | None]:
        return ((), None) if isinstance(state, EmptyState) else ((state.hidden,), state.valid)

    def _write(
        self, state: Any, stored: Array, mask: Array, attended: Any, reading: SegmentAttention | None = None
    ) -> tuple[Any, Aux]:
        return write(state, stored, mask), Aux()

    def _figures(self, attention: AttentionWeights, mask: Array) -> Aux:
        """Measures the share of the attention of a segment's real tokens that goes to the memory."""
        if not self._num_slots:
            return Aux()
        return attention_shares(attention, mask, {"transformer_xl/memory_share": (0, self._num_slots)})

    def _known_keys(self, state: Any, length: int) -> TrackedKeys:
        slots = self._num_slots
        places = jnp.arange(slots, 0, -1, dtype=jnp.int32)[None]
        return TrackedKeys.of_slots(places, jnp.ones(slots, jnp.int32), jnp.full(slots, SHORT), length)

    def _refuse_padding(self, y: Array, mask: Mask | None) -> Array:
        # Zero slots have distances, which padding in front would change.
        return refuse_padding_in_front(y, mask) if self.empty_memory == "zeros" else y
