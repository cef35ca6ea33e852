"""Projectors: what a host Transformer brings to the attention of a layer, whatever the memory that it reads.

A *projector* makes queries, keys, values and the output of an attention part, and places keys at positions. What is
read beside the segment, such as a cache, compressed slots or a signal, belongs to the memory, a subclass of
`ProjectedAttention`. The two are joined by a field:

    attention = CompressiveAttention(
        dim=8, num_heads=2, memory_length=4, compressed_memory_length=2, projector=GPT2Projector()
    )

A new host is one subclass of `Projector` and works with every memory. A new memory is one subclass of
`ProjectedAttention`, or of `memjax.memory.hidden_state_attention.HiddenStateAttention` if it stores hidden states, and
works with every host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from memjax.axes import MODEL
from memjax.functional.attention import attention_with_weights
from memjax.functional.fused_attention import why_not_fused
from memjax.memory.adapters import AdaptableMatrix
from memjax.memory.attention_implementations import Implementation, choose_implementation, score_bytes
from memjax.memory.interface import LayerMemory
from memjax.memory.layer_parts import Residual, project, project_biased
from memjax.typing import Activations

__all__ = ["ProjectedAttention", "Projector", "key_places"]

Weights = Mapping[str, Any]
"""Parameters of a projector by name, and under `biases` those that all layers of a stack may share."""
Runs = tuple[tuple[str, int], ...]
"""Consecutive slots with positions of their own, oldest first: a prefix of parameter names, and a number of slots.

Distances of a run count as if its last slot stood right before the segment. The segment belongs to the last run, whose
prefix is empty.
"""


@dataclasses.dataclass(frozen=True)
class Projector:
    """Base class of projectors, which make queries, keys, values and output of an attention and place keys. By default
    it has as many key heads as query heads, and no positions.

    A subclass defines `declare`, and whatever else its host does in another way. All other methods are pure functions
    of `weights`, the parameters that `declare` made, so that they run inside conditionals and with stopped gradients.
    Keys are stored as `keys_values` returns them. Only `place` knows where they stand.

    Attributes:
      tied_biases: Whether all layers of a stack share `weights["biases"]`.
      has_position_scores: Whether `place` returns scores to add.
      score_cap: Limit of the scores (`memjax.functional.attention.attention_with_weights`). 0 for none.
    """

    # Facts without annotations, which would make them fields.
    tied_biases = False
    has_position_scores = False
    score_cap = 0.0

    def declare(self, part: nn.Module, prefixes: tuple[str, ...] = ()) -> dict[str, Array]:
        """Declares the parameters of the projector in the attention module `part`, and returns them by name. `prefixes`
        are name prefixes, one for each further run of memory slots. A subclass defines it.

        The inherited methods read `query`, `key_value` `[dim, 2, heads, head_dim]` and `output`, and the biases
        `query_bias`, `key_value_bias` and `output_bias` where there are any.

        Args:
          part: Attention part during its setup, with the fields `dim`, `num_heads`, `head_dim` and `init_stddev`.
          prefixes: Prefixes of the parameters of further runs of slots (`Runs`).
        """
        raise NotImplementedError(f"declare: given {type(self).__name__}, allowed: a projector that makes parameters")

    def adaptable_matrices(self, dim: int, num_heads: int, head_dim: int) -> tuple[AdaptableMatrix, ...]:
        """Returns the parameters of the projector whose matrices can have adapters: by default `query`, `key_value` and
        `output`.
        """
        embed = ((dim, "embed"),)
        heads, key_heads = (((n, "heads"), (head_dim, None)) for n in (num_heads, self.num_key_heads(num_heads)))
        return (
            AdaptableMatrix("query", ("query",), embed, heads),
            AdaptableMatrix("key_value", ("key", "value"), embed, key_heads),
            AdaptableMatrix("output", ("output",), heads, embed),
        )

    def make_biases(self, num_heads: int, head_dim: int) -> nn.Module | None:
        """Makes the module whose call returns `weights["biases"]`, of which all layers share one with `tied_biases`.
        None, the default, for no such biases.
        """
        return None

    def num_key_heads(self, num_heads: int) -> int:
        """Returns the number of heads of keys and values, a divisor of `num_heads`, the number of heads of the queries.
        By default both are equal.
        """
        return num_heads

    def queries(self, weights: Weights, hidden: Activations) -> Float[Array, "batch length heads head_dim"]:
        """Projects hidden states to queries, `[batch, length, heads, head_dim]`. `weights` are the parameters that
        `declare` has returned.
        """
        return project_biased(hidden, weights["query"], weights.get("query_bias"))

    def keys_values(self, weights: Weights, hidden: Activations) -> tuple[Array, Array]:
        """Projects hidden states to keys and values without positions, and returns both, each `[batch, length,
        key_heads, head_dim]`.
        """
        keys_values = project_biased(hidden, weights["key_value"], weights.get("key_value_bias"))
        return keys_values[:, :, 0], keys_values[:, :, 1]

    def output(self, weights: Weights, z: Array, further: Activations | None = None) -> Activations:
        """Projects `z`, the result of attention in every head, to the residual stream, and adds `further`, the output
        of a second memory, unless it is None.

        Args:
          weights: Parameters.
          z: `[batch, length, heads, head_dim]`, what every head has read.
          further: `[batch, length, dim]`, what was read from a second memory. None for no such memory.
        """
        y, bias = project(z, weights["output"], axes=2), weights.get("output_bias")
        if bias is not None:
            bias = bias.astype(y.dtype)[None, None]
            further = bias if further is None else further + bias
        return y if further is None else y + further

    def place(
        self,
        weights: Weights,
        queries: Float[Array, "batch length heads head_dim"],
        keys: Float[Array, "batch total key_heads head_dim"],
        runs: Runs,
        *,
        position: Int[Array, " batch"] | None = None,
        drop: Callable[[Array], Array] | None = None,
    ) -> tuple[Array, Array, Array | None]:
        """Places queries and keys at their positions, and returns both with scores to add, or None. `runs` lists prefix
        and length of each run of memory slots, `position` is the index of a decoded token, `drop` a dropout.

        Args:
          weights: Parameters.
          queries: `[batch, length, heads, head_dim]`, queries of the segment.
          keys: `[batch, total, key_heads, head_dim]`, keys of all runs of slots and of the segment, oldest first.
          runs: Runs of the slots.
          position: int32 `[batch]`, index in the segment of the only query of each row. None for the queries of a whole
            segment.
          drop: Dropout of position encodings. None for no dropout.

        Returns:
          Queries and keys whose products depend on positions, and scores to add, `[#batch, heads, length, total]`. None
          for no scores.
        """
        return queries, keys, None

    def position_factors(
        self, weights: Weights, queries: Array, total: int, drop: Callable[[Array], Array] | None = None
    ) -> tuple[Float[Array, "batch length heads head_dim"], Float[Array, "total heads head_dim"]] | None:
        """Returns two arrays whose products are the scores that `place` adds for one run of slots, so that they need
        not all be in memory: queries `[batch, length, heads, head_dim]` and encodings of distances, the longest first,
        `[total, heads, head_dim]`. None, the default, for a projector without such scores.

        Args:
          weights: Parameters.
          queries: `[batch, length, heads, head_dim]`, queries of the segment.
          total: Number of keys of slots and segment.
          drop: Dropout of position encodings. None for no dropout.
        """
        return None

    def distance_bias(self, weights: Weights, head_dim: int) -> Float[Array, "heads distances"] | None:
        """Returns the scores that `place` adds for one run of slots by distance, that of 0 first; longer distances have
        the last one. None, the default, for a projector whose scores depend on more, or that has none.

        Args:
          weights: Parameters.
          head_dim: Width of a head.
        """
        return None

    def add_content_bias(self, weights: Weights, queries: Array) -> Array:
        """Returns the queries with a bias that scores every key by content, whatever its position. By default they are
        returned unchanged.
        """
        return queries

    def scale(self, weights: Weights) -> Float[Array, " heads"] | float | None:
        """Returns the factor of the scores, one number or one for every head, `[heads]`. None, the default, for
        `head_dim ** -0.5`.
        """
        return None

    def attend(
        self,
        weights: Weights,
        queries: Array,
        keys: Array,
        values: Array,
        scores: Array | None,
        visible: Array,
        **dropout: Any,
    ) -> tuple[Float[Array, "batch length heads head_dim"], Float[Array, "batch heads length total"]]:
        """Attends to placed keys, with the `scores` of positions added. Returns the result of every head, `[batch,
        length, heads, head_dim]`, and the attention weights.

        Args:
          weights: Parameters.
          queries: `[batch, length, heads, head_dim]`, placed queries.
          keys: `[batch, total, heads, head_dim]`, placed keys, as many heads as queries.
          values: `[batch, total, heads, head_dim]`.
          scores: `[#batch, heads, length, total]`, scores to add. None for none.
          visible: bool `[#batch, 1, length, total]`, keys that each query may read.
          **dropout: `dropout_rate` and `dropout_key` of `memjax.functional.attention`.
        """
        queries = self.add_content_bias(weights, queries)
        options: dict[str, Any] = {"scale": self.scale(weights), **dropout}
        return attention_with_weights(queries, keys, values, mask=visible, bias=scores, **options)


class ProjectedAttention(Residual, LayerMemory, kw_only=True):
    """Base class of the attention parts of layers whose projections and positions are those of a projector.

    A subclass has the fields `dim`, `num_heads`, `head_dim`, `projector`, `init_stddev`, `dtype` and `track_attention`,
    and those of `Residual`.

    Attributes:
      attention_implementation: Program that computes the attention of a segment, 'reference', 'blocks' or 'fused'
        (`memjax.memory.attention_implementations`). 'auto' for the one that suits platform and sizes.
    """

    attention_implementation: Implementation = "auto"

    def setup(self) -> None:
        super().setup()
        self.projections = self.projector.declare(self, self._run_prefixes)
        if not self.projector.tied_biases:
            self.biases = self.projector.make_biases(self.num_heads, self.head_dim)

    @nn.nowrap
    def adaptable_matrices(self) -> tuple[AdaptableMatrix, ...]:
        """Returns the parameters of the projector whose matrices can have adapters."""
        return self.projector.adaptable_matrices(self.dim, self.num_heads, self.head_dim)

    @nn.nowrap
    def shared_module(self) -> nn.Module | None:
        """Makes the module with the biases that all layers share. None if every layer has its own, or none."""
        return self.projector.make_biases(self.num_heads, self.head_dim) if self.projector.tied_biases else None

    @nn.nowrap
    def with_attention_tracking(self) -> Any:
        """Returns a copy of this module that also puts its attention weights into `Aux.arrays`."""
        return self.clone(track_attention=True)

    @property
    def _run_prefixes(self) -> tuple[str, ...]:
        """Prefixes of the positions of further runs of slots, besides the last run (`Runs`)."""
        return ()

    @property
    def _num_key_heads(self) -> int:
        return self.projector.num_key_heads(self.num_heads)

    @property
    def _why_reference(self) -> str:
        """Why no other program than the reference can compute the attention. Empty where others can."""
        return f"{type(self).__name__}, allowed: 'reference'"

    def _choose_implementation(self, queries: Array, keys: Array, deterministic: bool, not_fused: str = "") -> Any:
        """Chooses the program that computes the attention of queries to keys, `[batch, tokens, heads, head_dim]`. It is
        the reference where the weights are asked for, and for single tokens, as in decoding.
        """
        if self.track_attention or queries.shape[1] == 1:
            return "reference"
        if self.projector.has_position_scores:
            not_fused = f"{type(self.projector).__name__}, allowed: 'reference' or 'blocks'"
        if self.attention_dropout and not deterministic:
            not_fused = f"attention_dropout {self.attention_dropout}, allowed: 0, 'reference' or 'blocks'"
        reason = self._why_reference
        fused = reason or not_fused or why_not_fused(queries, keys, cap=self.projector.score_cap, head_axis=MODEL)
        reasons, size = {"blocks": reason, "fused": fused}, score_bytes(queries, keys)
        return choose_implementation(self.attention_implementation, reasons, size)

    def _weights(self, shared: Any, deterministic: bool = True) -> dict[str, Any]:
        """Returns the parameters of the projector with their adapters, and the biases that layers may share."""
        biases = shared
        if not self.projector.tied_biases:
            biases = None if self.biases is None else self.biases()
        return {
            **self.adapt(self.projections, deterministic),
            "biases": jax.tree.map(lambda bias: bias.astype(self.dtype), biases),
        }

    def _add_output(self, weights: Weights, x: Array, z: Array, deterministic: bool, further: Array | None) -> Array:
        return self.add_residual(x, self.projector.output(weights, z, further), deterministic)


def repeat_heads(array: Array, num_heads: int, axis: int = 2) -> Array:
    """Repeats the key heads on one axis of an array so that there are `num_heads`, as many as query heads. Consecutive
    query heads share a key head.

    Example:
      >>> print(repeat_heads(jnp.arange(2.0).reshape(1, 1, 2, 1), 4)[0, 0, :, 0])
      [0. 0. 1. 1.]
    """
    return array if array.shape[axis] == num_heads else jnp.repeat(array, num_heads // array.shape[axis], axis=axis)


def group_queries(queries: Array, key_heads: int) -> Array:
    """Moves the queries of all heads that share a key head one after the other, `[batch, heads / key_heads * length,
    key_heads, head_dim]`, so that attention needs no copies of the keys.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      key_heads: Number of key heads, a divisor of the number of heads.

    Returns:
      `[batch, heads / key_heads * length, key_heads, head_dim]`.
    """
    batch, length, heads, head_dim = queries.shape
    if heads == key_heads:
        return queries
    by_group = jnp.moveaxis(queries.reshape(batch, length, key_heads, -1, head_dim), 3, 1)
    return by_group.reshape(batch, -1, key_heads, head_dim)


def ungroup_heads(array: Array, num_heads: int) -> Array:
    """Undoes `group_queries` in a result with its queries at axis 2, `[batch, key_heads, groups * length, ...]`, and
    returns it as `[batch, heads, length, ...]`.

    Args:
      array: `[batch, key_heads, groups * length, ...]`.
      num_heads: Number of heads of the queries, `key_heads * groups`.

    Returns:
      `[batch, heads, length, ...]`.
    """
    batch, key_heads, queries = array.shape[:3]
    length = queries * key_heads // num_heads
    return array if key_heads == num_heads else array.reshape(batch, num_heads, length, *array.shape[3:])


def key_places(runs: Runs, total: int) -> Int[np.ndarray, " total"]:
    """Returns a position for each of `total` keys, those of all runs of slots and of the segment. Every run ends right
    before the segment, so that runs overlap. `runs` lists prefix and number of slots of each.

    The segment begins at the number of slots of the last run, as the last slot of every other run ends.

    Example:
      >>> print(key_places((("old_", 2), ("", 3)), 7))
      [1 2 0 1 2 3 4]
    """
    slots = runs[-1][1]
    earlier = [np.arange(slots - number, slots) for _, number in runs[:-1]]
    last = np.arange(total - sum(number for _, number in runs[:-1]))
    return np.concatenate([*earlier, last]).astype(np.int32)
