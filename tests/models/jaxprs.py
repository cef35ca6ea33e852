"""Looking into traced programs."""

from collections.abc import Iterator
from typing import Any

import jax


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of those inside it (scans, conditions, calls), each once."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in jax.tree.leaves(value, is_leaf=lambda leaf: hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def trace(function, *args) -> list[Any]:
    """All equations of `function(*args)`; arguments may be shapes."""
    return list(equations(jax.make_jaxpr(function)(*args).jaxpr))
