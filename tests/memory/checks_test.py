"""Arguments of memories are told by their names, whatever their order."""

import flax.linen as nn
import jax.numpy as jnp
import pytest

from memjax.memory.interface import Memory
from memjax.typing import Aux


class StateFirst(Memory):
    """A memory whose state comes before its segment, and whose mask may be given by its place."""

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        return jnp.zeros((batch_size, 5), dtype)

    def __call__(self, state, x, mask=None, *, start_of_document=None):
        return x, state, Aux()

    def decode(self, decode_state, x, *, active):
        return x, decode_state


class OtherNames(Memory):
    """A memory whose arguments have no name of the contract."""

    def __call__(self, left, right):
        return left, right, Aux()


X, STATE, MASK = jnp.ones((2, 3, 4)), jnp.zeros((2, 5)), jnp.ones((2, 3), bool)
REFUSED = {
    "state": ((STATE[:1], X), {}, "state: given one of 1 rows, allowed: 2"),
    "segment": ((STATE, X[:, :0]), {}, "x: given a segment of 0 tokens"),
    "mask by its place": ((STATE, X, MASK[:, :2]), {}, r"mask: given shape \(2, 2\)"),
    "mask by its name": ((STATE, X), {"mask": MASK[:1]}, r"mask: given shape \(1, 3\)"),
    "start": ((STATE, X), {"start_of_document": MASK[:1, 0]}, r"start_of_document: given shape \(1,\)"),
    "decoding": ((STATE[:1], X), {"active": MASK[:, 0], "method": "decode"}, "state: given one of 1 rows"),
    "active": ((STATE, X), {"active": MASK[:1, 0], "method": "decode"}, r"active: given shape \(1,\)"),
    "state by its name": ((), {"x": X, "state": STATE[:1]}, "state: given one of 1 rows"),
}


@pytest.mark.parametrize("arguments, options, message", REFUSED.values(), ids=REFUSED)
def test_another_order_of_arguments_is_checked_as_the_usual_one(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        StateFirst().apply({}, *arguments, **options)


def test_equal_rows_pass_in_another_order():
    y, state, _ = StateFirst().apply({}, STATE, X, MASK, start_of_document=MASK[:, 0])
    assert y.shape == X.shape and state.shape == STATE.shape


def test_arguments_of_other_names_are_not_taken_for_rows():
    left, right, _ = OtherNames().apply({}, X, STATE[:1])
    assert left.shape == X.shape and right.shape == (1, 5)
