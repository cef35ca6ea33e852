import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp
import jaxtyping
import pytest
from jaxtyping import Array, Float, Int

from tests.type_checks import check_annotations

if TYPE_CHECKING:
    from fractions import Fraction as Unknown

Rows = Int[Array, " batch"]
X, ROWS = jnp.ones((2, 3)), jnp.arange(2)


@check_annotations
def scale(x: Float[Array, "batch dim"], rows: Rows | None = None, *, by: float = 1.0) -> Float[Array, "batch dim"]:
    return x[:, :-1] if by == 0 else x * by


@check_annotations
def count(name: str, others: "Unknown | int" = 0, more: "list[int] | None" = None) -> int:
    return name if others else len(name)  # pyright: ignore[reportReturnType]


@check_annotations
@dataclasses.dataclass
class Pair:
    x: Float[Array, " dim"]
    y: Float[Array, " dim"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: scale(X[0]),
        lambda: scale(ROWS[:, None]),
        lambda: scale(X, jnp.arange(3)),
        lambda: scale(X, by="2"),
        lambda: scale(X, by=0.0),
        lambda: count(3),
        lambda: count("a", others=1),
        lambda: count("a", more=["b"]),
        lambda: Pair(X[0], X[0, :2]),
    ],
)
def test_what_an_annotation_does_not_allow_is_an_error(call):
    with pytest.raises(jaxtyping.TypeCheckError):
        call()


def test_sizes_are_those_of_one_call():
    @check_annotations
    def outer(x: Float[Array, "batch dim"]) -> Float[Array, "batch dim"]:
        assert scale(x[:1, :2], ROWS[:1], by=2).shape == (1, 2)  # an int is a float
        return scale(x, ROWS)  # other sizes than above

    assert (outer(X).shape, Pair(X[0], X[1]).y.shape) == ((2, 3), (3,))
    assert (count("ab"), count.__name__) == (2, "count")


def test_functions_without_annotations_stay_themselves():
    function = lambda x: x
    assert check_annotations(function) is function


def test_checks_can_be_turned_off():
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        assert count("a", others=1) == "a"
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
