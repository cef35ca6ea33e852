"""Memory replay back-propagation: gradients through many recurrent steps with only the memories stored between them.

Wu et al. 2020, "Memformer: A Memory-Augmented Transformer for Sequence Modeling", https://arxiv.org/abs/2010.06891,
algorithm 1, in two forms with the gradients of back-propagation through time. `scan_with_replay` is a scan of
checkpointed steps, which can be used inside any loss and runs every step twice. `mrbp_value_and_grad` first runs only
what the memory needs, from the first step to the last, and then whole steps backwards. Only the encoder runs twice, but
the result is already a gradient and cannot be differentiated.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.functional.named_operations import operation
from memjax.typing import Leaf, tree_dataclass

__all__ = ["RolloutResult", "mrbp_value_and_grad", "scan_with_replay"]


@tree_dataclass
class RolloutResult:
    """Loss, gradients, memories and further outputs of a rollout over consecutive segments.

    Attributes:
      value: Scalar, sum of the losses of all segments.
      gradients: Gradients of `value`, a tree like the parameters.
      memory: Memory after the last segment.
      memories: Memories before each segment, leaves with segments at axis 0.
      memory_gradient: Gradients of `value` with respect to the floating leaves of the memory before the first segment,
        a list in the order of the leaves.
      aux: Auxiliary outputs of the head, leaves with segments at axis 0.

    Example:
      >>> import jax.numpy as jnp
      >>> add = lambda weight, memory, x: (memory + x, memory)
      >>> result = mrbp_value_and_grad(add, lambda weight, y, x: (weight * y, None), 2.0, 0.0, jnp.arange(4.0))
      >>> print(result.memories, float(result.memory), float(result.value), float(result.gradients))
      [0. 0. 1. 3.] 6.0 8.0 4.0
    """

    value: Leaf
    gradients: Any
    memory: Any
    memories: Any
    memory_gradient: Any
    aux: Any

    def known(self, overlap: int) -> Any:
        """Returns the memories that are known to a next rollout whose first `overlap` segments are the last of this
        one, for `memories` of `mrbp_value_and_grad`.
        """
        after = lambda old, last: jnp.concatenate([old[old.shape[0] - overlap :], jnp.asarray(last)[None]])
        return jax.tree.map(after, self.memories, self.memory)


@operation
def scan_with_replay(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    params: Any,
    memory: Any,
    segments: Any,
    *,
    horizon: int | None = None,
) -> tuple[Any, Any]:
    """Scans `step(params, memory, segment) -> (memory, out)`, and returns the last memory and all outputs. The backward
    pass stores the memories only and computes each step again. Gradients are cut every `horizon` segments.

    Random numbers must come from keys in `segments` (one per segment), so that the second run draws equal numbers.

    Args:
      step: `step(params, memory, segment) -> (memory, out)`. The memory keeps its structure, shapes and dtypes.
      params: Parameters of `step`, used in every segment.
      memory: Memory before the first segment.
      segments: Tree whose leaves have the segments at axis 0.
      horizon: Number of segments after which the gradient through the memory is cut. None for no cut.

    Returns:
      The memory after the last segment, and the outputs with segments at axis 0.

    Raises:
      ValueError: Leaves with different numbers of segments, or a horizon below 1.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> step = lambda weight, memory, x: (weight * memory + x, memory**2)
      >>> loss = lambda weight: scan_with_replay(step, weight, 0.0, jnp.ones(3))[1].sum()
      >>> print(loss(2.0), jax.grad(loss)(2.0))
      10.0 6.0
    """
    length = _num_segments(segments)
    _check_horizon(horizon)

    def body(params: Any, memory: Any, item: Any) -> tuple[Any, Any]:
        index, segment = item
        if horizon is not None:
            cut = _is_cut(index, horizon)
            memory = jax.tree.map(lambda leaf: jnp.where(cut, jax.lax.stop_gradient(leaf), leaf), memory)
        return step(params, memory, segment)

    once = jax.checkpoint(body, prevent_cse=False)
    items = (jnp.arange(length), segments)
    return jax.lax.scan(lambda carry, item: once(params, carry, item), _as_arrays(memory), items)


@operation
def mrbp_value_and_grad(
    encode: Callable[[Any, Any, Any], tuple[Any, Any]],
    head: Callable[[Any, Any, Any], tuple[Any, Any]],
    params: Any,
    memory: Any,
    segments: Any,
    *,
    memories: Any = None,
    horizon: int | None = None,
) -> RolloutResult:
    """Computes value and gradients of the summed losses of segments, storing one segment's activations. `encode` gives
    the next memory, `head` the loss. `memories` are known ones. Gradients are cut every `horizon` segments.

    First the memories are computed segment by segment with `encode` alone, without any gradient. Then the segments are
    visited from the last to the first: encoder and head run on the stored memory, their gradient is added to that of
    the parameters, and the gradient of the memory is handed to the segment before.

    A recurrence that cannot be split, `step(params, memory, segment) -> (memory, (loss, aux))`, is its own encoder
    with `head = lambda params, out, segment: out`. Everything then runs twice, as in `scan_with_replay`.

    Args:
      encode: `encode(params, memory, segment) -> (memory, encoded)`, everything that the next memory depends on.
      head: `head(params, encoded, segment) -> (loss, aux)`, everything else that the loss needs. The loss is a scalar.
      params: Parameters, floating arrays. Gradients are added up in at least float32.
      memory: Memory before the first segment. Not read if `memories` is given. Leaves that are not floating (counters,
        validity) are carried along. A state that begins a document inside `encode` passes its gradient to the
        parameters there.
      segments: Tree whose leaves have the segments at axis 0. If `encode` or `head` draw random numbers it has a key
        for each segment, so that the second run draws equal numbers.
      memories: Memories before the first segments, `[known, ...]` with `known` from 1 to the number of segments, if an
        earlier rollout computed them (`RolloutResult.known`). They are not computed again, though the parameters may
        have changed since. The first one is the memory before the first segment.
      horizon: Number of segments after which the gradient through the memory is cut. None for no cut.

    Returns:
      A `RolloutResult`.

    Raises:
      ValueError: Leaves with different numbers of segments, too many memories, or a horizon below 1.

    Example:
      A recurrent network that is to be trained through 64 segments, with dropout:

      >>> import jax, jax.numpy as jnp
      >>> def encode(params, memory, segment):
      ...     tokens, key = segment
      ...     hidden = jnp.tanh(tokens @ params["in"] + memory @ params["loop"])
      ...     return hidden * jax.random.bernoulli(key, 0.9, hidden.shape), hidden
      >>> def head(params, hidden, segment):
      ...     return ((hidden @ params["out"] - segment[0]) ** 2).sum(), None
      >>> keys = jax.random.split(jax.random.key(0), 64)
      >>> draw = lambda key, *shape: jax.random.normal(key, shape)
      >>> params = {"in": draw(keys[0], 3, 5), "loop": draw(keys[1], 5, 5), "out": draw(keys[2], 5, 3)}
      >>> segments = (draw(keys[3], 64, 2, 3), keys)
      >>> result = jax.jit(lambda p: mrbp_value_and_grad(encode, head, p, jnp.zeros((2, 5)), segments))(params)
      >>> jax.tree.map(jnp.shape, (result.gradients, result.memory))
      ({'in': (3, 5), 'loop': (5, 5), 'out': (5, 3)}, (2, 5))
    """
    length = _num_segments(segments)
    _check_horizon(horizon)
    memories, last = _sweep(encode, params, memory, segments, memories, length)
    floats, _ = _floating(last)
    wide = lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32))
    params = _as_arrays(params)
    start = (jnp.zeros((), jnp.float32), jax.tree.map(wide, params), [jnp.zeros_like(leaf) for leaf in floats])

    def visit(carry: Any, item: Any) -> tuple[Any, Any]:
        value, gradients, to_next = carry
        index, before, segment = item
        floats, join = _floating(before)

        def run_segment(params: Any, floats: list[Array]) -> tuple[Any, Any]:
            after, encoded = encode(params, join(floats), segment)
            loss, aux = head(params, encoded, segment)
            return (loss, _floating(_as_arrays(after))[0]), aux

        (loss, _), pull, aux = jax.vjp(run_segment, params, floats, has_aux=True)
        to_params, to_memory = pull((jnp.ones_like(loss), to_next))
        if horizon is not None:
            cut = _is_cut(index, horizon)
            to_memory = [jnp.where(cut, 0, leaf) for leaf in to_memory]
        gradients = jax.tree.map(lambda total, more: total + more.astype(total.dtype), gradients, to_params)
        return (value + loss, gradients, to_memory), aux

    items = (jnp.arange(length), memories, segments)
    dtype = jax.eval_shape(visit, start, jax.tree.map(lambda leaf: leaf[0], items))[0][0].dtype
    start = (start[0].astype(dtype), *start[1:])
    (value, gradients, to_memory), aux = jax.lax.scan(visit, start, items, reverse=True)
    gradients = jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), gradients, params)
    return RolloutResult(value, gradients, last, memories, to_memory, aux)


def _sweep(encode: Any, params: Any, memory: Any, segments: Any, known: Any, length: int) -> tuple[Any, Any]:
    """Computes the memories before each segment, and after the last. Those of the first segments may be given."""
    first = 0
    if known is not None:
        first = _num_segments(known, "memories") - 1
        if first >= length:
            raise ValueError(f"memories: given those of {first + 1} segments, allowed: 1 to {length}, one for each")
        memory = jax.tree.map(lambda leaf: leaf[-1], known)
    memory = _as_arrays(memory)

    def walk(memory: Any, segment: Any) -> tuple[Any, Any]:
        return _as_arrays(encode(params, memory, segment)[0]), memory

    last, memories = jax.lax.scan(walk, memory, jax.tree.map(lambda leaf: leaf[first:], segments))
    if first:
        join = lambda old, new: jnp.concatenate([old[:first], new])
        memories = jax.tree.map(join, known, memories)
    return jax.lax.stop_gradient((memories, last))


def _floating(tree: Any) -> tuple[list[Array], Callable[[list[Array]], Any]]:
    """Returns the floating leaves of a tree, and a function that replaces them by others."""
    leaves, structure = jax.tree.flatten(tree)
    indices = [index for index, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

    def join(chosen: list[Array]) -> Any:
        new = list(leaves)
        for index, leaf in zip(indices, chosen, strict=True):
            new[index] = leaf
        return jax.tree.unflatten(structure, new)

    return [leaves[index] for index in indices], join


def _as_arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def _is_cut(index: Array, horizon: int) -> Array:
    return (index > 0) & (index % horizon == 0)


def _num_segments(tree: Any, name: str = "segments") -> int:
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(tree)}
    if len(sizes) != 1:
        raise ValueError(f"{name}: given leaves of {sorted(sizes)} segments, allowed: one number for all, at axis 0")
    return sizes.pop()


def _check_horizon(horizon: int | None) -> None:
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon: given {horizon}, allowed: at least 1 segment, or None for no cut")
