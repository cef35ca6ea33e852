"""Large tables of values of which one step touches few rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.functional.scopes import operation

__all__ = ["lookup_rows"]


@operation
def lookup_rows(
    table: Float[Array, "rows dim"], ids: Int[Array, "*lookups"], sink: Float[Array, "*lookups dim"] | None = None
) -> Float[Array, "*lookups dim"]:
    """`table[ids]`, whose gradient goes to `sink` instead of the table.

    The gradient of a gather is a dense array of the table's size. Here the table has none at all; the gradient of every
    looked-up row is the gradient of `sink`, from which a row-sparse optimiser updates the rows `ids`.

    Args:
      table: the rows; no gradient flows into them.
      ids: which rows; the same row may be looked up many times.
      sink: an array of the result's shape whose values do not matter; None where no gradient is wanted.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> table, ids = jnp.arange(6.0).reshape(3, 2), jnp.array([2, 0])
      >>> jax.grad(lambda sink: jnp.sum(lookup_rows(table, ids, sink) ** 2))(jnp.zeros((2, 2)))
      Array([[ 8., 10.],
             [ 0.,  2.]], dtype=float32)
    """
    if sink is None:
        return jax.lax.stop_gradient(_take(table, ids))
    if sink.shape != (*ids.shape, table.shape[-1]):
        raise ValueError(f"sink: given shape {sink.shape}, allowed: the result's, {(*ids.shape, table.shape[-1])}")
    return _lookup(table, ids, sink)


def _take(table: Array, ids: Array) -> Array:
    return jnp.take(table, ids, axis=0)


@jax.custom_vjp
def _lookup(table: Array, ids: Array, sink: Array) -> Array:
    del sink
    return _take(table, ids)


def _lookup_forward(table: Array, ids: Array, sink: Array) -> tuple[Array, None]:
    del sink
    return _take(table, ids), None


def _lookup_backward(_: None, gradient: Array) -> tuple[None, None, Array]:
    return None, None, gradient


_lookup.defvjp(_lookup_forward, _lookup_backward)
