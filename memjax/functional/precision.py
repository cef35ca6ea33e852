"""Choice of the dtype of sums, softmaxes, norms and scores."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

__all__ = ["at_least_float32"]


def at_least_float32(*dtypes: DTypeLike) -> jnp.dtype:
    """Returns the common dtype of any number of dtypes, or float32 if that is narrower.

    The result does not depend on `jax_numpy_dtype_promotion`. Callers convert to this dtype explicitly, as the strict
    mode demands.

    Args:
      dtypes: Floating dtypes, such as those of queries and keys.

    Example:
      >>> at_least_float32(jnp.bfloat16), at_least_float32(jnp.bfloat16, jnp.float64)
      (dtype('float32'), dtype('float64'))
    """
    with jax.numpy_dtype_promotion("standard"):
        common = jnp.dtype(jnp.float32)
        for dtype in dtypes:
            common = jnp.promote_types(common, dtype)
        return common
