"""The loss of consecutive segments, with the memory carried from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from memjax.typing import Aux, Sum

Rematerialize = Literal["none", "per_layer", "segment"]


def loss_over_segments(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    params: Any,
    memory: Any,
    segments: Any,
    *,
    rematerialize: Rematerialize = "none",
) -> tuple[Any, Any]:
    """Runs `step` over consecutive segments and adds up what it reports.

    With `rematerialize="segment"` only the memory is saved per segment and the rest is computed again in the backward
    pass (memory replay back-propagation, Wu et al. 2022, https://arxiv.org/abs/2010.06891). A single segment is not
    scanned.

    Args:
      step: `step(params, memory, segment) -> (memory, sums)`; `sums` is a tree of `Sum` and `Aux`.
      params: what is differentiated; the same for every segment.
      memory: the state before the first segment, of the structure and dtypes that `step` returns.
      segments: a tree whose leaves have the segments at axis 0.
      rematerialize: "segment" recomputes each segment in the backward pass; "per_layer" is the model's business and
        here the same as "none".

    Returns:
      The memory after the last segment, and the sums: every `Sum` added over segments, `Aux.arrays` with a leading
      axis of segments.

    Example:
      >>> step = lambda w, memory, x: (memory + x, Sum(w * memory * x, jnp.ones(())))
      >>> memory, total = loss_over_segments(step, 2.0, jnp.zeros(()), jnp.arange(3.0))
      >>> float(memory), float(total.total), float(total.weight)
      (3.0, 4.0, 3.0)
    """
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(segments)}
    if len(sizes) != 1:
        raise ValueError(f"segments: given leaves of {sorted(sizes)} segments, allowed: one number for all, at axis 0")
    if sizes == {1}:
        # Outside a scan nothing but `prevent_cse` keeps the compiler from undoing the recomputation.
        once = jax.checkpoint(step) if rematerialize == "segment" else step
        memory, sums = once(params, memory, jax.tree.map(lambda leaf: leaf[0], segments))
        return memory, add_segments(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], sums))
    body = jax.checkpoint(step, prevent_cse=False) if rematerialize == "segment" else step
    memory, sums = jax.lax.scan(lambda carry, segment: body(params, carry, segment), memory, segments)
    return memory, add_segments(sums)


def add_segments(sums: Any) -> Any:
    """Adds every `Sum` of a tree over its leading axis; `Aux.arrays` keep that axis."""

    def add(node: Any) -> Any:
        if isinstance(node, Aux):
            return Aux(_add(node.losses), _add(node.metrics), node.arrays)
        return _add(node) if isinstance(node, Sum) else node

    return jax.tree.map(add, sums, is_leaf=lambda node: isinstance(node, Aux | Sum))


def segment_keys(key: Array, step: Int[Array, ""] | int, num_segments: int) -> Array:
    """One key per segment of a step, `fold_in(fold_in(key, step), segment)`: `[segments]` keys."""
    key = jax.random.fold_in(key, step)
    return jax.vmap(lambda segment: jax.random.fold_in(key, segment))(jnp.arange(num_segments))


def _add(sums: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)
