"""Loops over consecutive segments and passes the memory from one to the next."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Int

from memjax.typing import Aux, WeightedSum

__all__ = ["add_segments", "loss_over_segments", "segment_keys"]

Rematerialize = Literal["none", "per_layer", "segment", "segment_nested", "offload"]
CARRY = "segment_memory"
"""Name of the memory that is passed between segments, for checkpoint policies."""


def loss_over_segments(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    params: Any,
    memory: Any,
    segments: Any,
    *,
    rematerialize: Rematerialize = "none",
    segments_per_checkpoint: int = 0,
) -> tuple[Any, Any]:
    """Runs `step(params, memory, segment) -> (memory, sums)` over consecutive segments. Returns the last memory and the
    sums, added over segments. `rematerialize` says what the backward pass computes again.

    With `rematerialize="segment"` only the memory of each segment is saved, and all other activations are computed
    again in the backward pass (memory replay back-propagation, Wu et al. 2022, https://arxiv.org/abs/2010.06891). A
    single segment is not scanned. All policies give the same gradients.

    Args:
      step: Function `step(params, memory, segment) -> (memory, sums)`, where `sums` is a tree of `WeightedSum` and
        `Aux`.
      params: Parameters that are differentiated. All segments use the same ones.
      memory: Memory before the first segment, with the structure and dtypes that `step` returns.
      segments: Tree of arrays with the segments at axis 0.
      rematerialize: Computations to repeat in the backward pass. "none": none. "per_layer": each layer. "segment": each
        segment. "segment_nested": each segment, and in it each layer. "offload": each segment, with the saved memories
        in host memory (TPU and GPU). The model repeats its layers itself. In this function "per_layer" is therefore the
        same as "none", and "segment_nested" the same as "segment".
      segments_per_checkpoint: Number of segments between two saved memories, for very many segments. The segments in
        between are computed once more. With the square root of the number of segments, device memory grows with that
        root. 0 saves the memory of every segment.

    Returns:
      The memory after the last segment, and the sums: each `WeightedSum` is added over segments, and `Aux.arrays` have
      a leading axis of segments.

    Example:
      >>> step = lambda w, memory, x: (memory + x, WeightedSum(w * memory * x, jnp.ones(())))
      >>> memory, total = loss_over_segments(step, 2.0, jnp.zeros(()), jnp.arange(3.0))
      >>> float(memory), float(total.total), float(total.weight)
      (3.0, 4.0, 3.0)

    Raises:
      ValueError: The arrays have different numbers of segments, or `segments_per_checkpoint` does not divide it.
    """
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(segments)}
    if len(sizes) != 1:
        raise ValueError(f"segments: given leaves of {sorted(sizes)} segments, allowed: one number for all, at axis 0")
    (length,) = sizes
    if segments_per_checkpoint and length % segments_per_checkpoint:
        raise ValueError(
            f"segments_per_checkpoint: given {segments_per_checkpoint}, allowed: 0 or a divisor of {length} segments"
        )
    if length == 1:
        # Outside a scan nothing but `prevent_cse` keeps the compiler from undoing the recomputation.
        once = _checkpoint_step(step, rematerialize, prevent_cse=True)
        memory, sums = once(params, memory, jax.tree.map(lambda leaf: leaf[0], segments))
        return memory, add_segments(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], sums))
    body = _checkpoint_step(step, rematerialize, prevent_cse=False)

    def run(params: Any, memory: Any, segments: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda carry, segment: body(params, carry, segment), memory, segments)

    if not 1 < segments_per_checkpoint < length:
        memory, sums = run(params, memory, segments)
        return memory, add_segments(sums)
    parts = length // segments_per_checkpoint
    split = lambda leaf: leaf.reshape(parts, segments_per_checkpoint, *leaf.shape[1:])
    join = lambda leaf: leaf.reshape(length, *leaf.shape[2:])
    run_part = jax.checkpoint(run, prevent_cse=False)
    memory, sums = jax.lax.scan(
        lambda carry, part: run_part(params, carry, part), memory, jax.tree.map(split, segments)
    )
    return memory, add_segments(jax.tree.map(join, sums))


def _checkpoint_step(
    step: Callable[..., Any], rematerialize: Rematerialize, *, prevent_cse: bool
) -> Callable[..., Any]:
    """Wraps a step in `jax.checkpoint` as the rematerialization policy says."""
    if rematerialize in ("segment", "segment_nested"):
        return jax.checkpoint(step, prevent_cse=prevent_cse)
    if rematerialize != "offload":
        return step
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[CARRY],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def step_with_named_memory(params: Any, memory: Any, segment: Any) -> tuple[Any, Any]:
        return step(params, jax.tree.map(lambda leaf: checkpoint_name(leaf, CARRY), memory), segment)

    return jax.checkpoint(step_with_named_memory, prevent_cse=prevent_cse, policy=policy)


def add_segments(sums: Any) -> Any:
    """Adds every `WeightedSum` of a tree over the leading axis of segments. `Aux.arrays` keep this axis."""

    def add(node: Any) -> Any:
        if isinstance(node, Aux):
            return Aux(_add(node.losses), _add(node.metrics), node.arrays)
        return _add(node) if isinstance(node, WeightedSum) else node

    return jax.tree.map(add, sums, is_leaf=lambda node: isinstance(node, Aux | WeightedSum))


def segment_keys(key: Array, step: Int[Array, ""] | int, num_segments: int) -> Array:
    """Makes one random key per segment of a step, `[segments]`, as `fold_in(fold_in(key, step), segment)`."""
    key = jax.random.fold_in(key, step)
    return jax.vmap(lambda segment: jax.random.fold_in(key, segment))(jnp.arange(num_segments))


def _add(sums: Any) -> Any:
    """Adds all arrays of a tree over axis 0."""
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)
