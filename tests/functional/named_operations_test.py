import inspect

import jax
import jax.numpy as jnp
import pytest

from memjax.functional import ring_append
from memjax.functional.named_operations import operation


@operation
def square(x, *, offset=0.0):
    """Squares."""
    if offset is None:
        raise ValueError("offset: given None")
    return x * x + offset


def test_a_name_changes_nothing_else():
    assert square(jnp.arange(3.0), offset=1.0).tolist() == [1.0, 2.0, 5.0]
    assert (square.__name__, square.__doc__, list(inspect.signature(square).parameters)) == (
        "square",
        "Squares.",
        ["x", "offset"],
    )
    assert square(2) == 4  # nothing of JAX
    with pytest.raises(ValueError, match="offset: given None"):
        square(1.0, offset=None)
    assert operation(ring_append).__doc__ == ring_append.__doc__


def test_the_name_is_that_of_the_file_and_the_function():
    text = jax.jit(jax.grad(square)).lower(1.0).as_text(debug_info=True)
    assert "transpose(jvp(named_operations_test.square))/mul" in text
    compiled = jax.jit(lambda x: square(x) + 1).lower(1.0).compile().as_text()
    assert "named_operations_test.square/mul" in compiled
