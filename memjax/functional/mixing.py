"""Ways to mix what was read from a memory with what was read locally."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from memjax.functional.scopes import operation

__all__ = ["head_gate", "stop_forward"]


@operation
def head_gate(
    gate_logits: Float[Array, " heads"],
    memory_output: Float[Array, "batch length heads value_dim"],
    local_output: Float[Array, "batch length heads value_dim"],
    has_memory: Bool[Array, "..."] | None = None,
    *,
    dilute_empty: bool = False,
) -> Float[Array, "batch length heads value_dim"]:
    """`g * memory + (1 - g) * local` with one learned gate `g = sigmoid(gate_logits)` per head.

    The merge of the Memorizing Transformer (arXiv:2203.08913). Differs from its code: where there is nothing in memory
    the local output passes undiluted (g = 0); the code multiplies it by `1 - g` all the same.

    Args:
      gate_logits: `[heads]`; 0 gives an even mix.
      memory_output: `[batch, length, heads, value_dim]`.
      local_output: `[batch, length, heads, value_dim]`.
      has_memory: `[batch]`, `[batch, length]` or `[batch, length, heads]`, whether there was anything to read; None =
        everywhere.
      dilute_empty: True = the published code's `(1 - g) * local` where there is no memory.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `local_output`.

    Example:
      >>> import jax.numpy as jnp
      >>> memory, local = jnp.full((2, 1, 1, 1), 4.0), jnp.full((2, 1, 1, 1), 2.0)
      >>> print(head_gate(jnp.zeros(1), memory, local, jnp.array([True, False])).ravel())
      [3. 2.]
    """
    dtype = jnp.promote_types(local_output.dtype, jnp.float32)
    gate = jax.nn.sigmoid(gate_logits.astype(dtype)).reshape(1, 1, -1, 1)
    memory, local = memory_output.astype(dtype), local_output.astype(dtype)
    if has_memory is None:
        return (gate * memory + (1 - gate) * local).astype(local_output.dtype)
    present = _per_position(has_memory)
    memory = jnp.where(present, memory, 0)
    if not dilute_empty:
        gate = jnp.where(present, gate, 0)
    return (gate * memory + (1 - gate) * local).astype(local_output.dtype)


@operation
def stop_forward(
    memory_output: Float[Array, "batch length heads value_dim"],
    local_output: Float[Array, "batch length heads value_dim"],
    has_memory: Bool[Array, "..."] | None = None,
) -> Float[Array, "batch length heads value_dim"]:
    """Memory alone in the forward pass, both in the backward pass: `memory + (local - stop_gradient(local))`.

    A merge of the Memorizing Transformer's code: the local path is trained although its output is not used.

    Args:
      memory_output: `[batch, length, heads, value_dim]`.
      local_output: `[batch, length, heads, value_dim]`.
      has_memory: as in `head_gate`; without memory the local output is used. None = everywhere.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `local_output`, with the exact values of `memory_output`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> ones = jnp.ones((1, 1, 1, 1))
      >>> print(stop_forward(3 * ones, ones).item(), jax.grad(lambda x: stop_forward(3 * ones, x).sum())(ones).item())
      3.0 1.0
    """
    # Grouped so that the forward value is exactly the memory's: (m + c) - c would round.
    mixed = memory_output.astype(local_output.dtype) + (local_output - lax.stop_gradient(local_output))
    return mixed if has_memory is None else jnp.where(_per_position(has_memory), mixed, local_output)


def _per_position(has_memory: Array) -> Array:
    """`[batch]`, `[batch, length]` or `[batch, length, heads]` -> four axes, 1 where missing."""
    if not 1 <= has_memory.ndim <= 3:
        raise ValueError(
            f"has_memory: shape {has_memory.shape} given; [batch], [batch, length] or [batch, length, heads] allowed"
        )
    return has_memory.reshape(has_memory.shape + (1,) * (4 - has_memory.ndim))
