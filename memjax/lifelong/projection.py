"""Gradients that are turned so that they do not raise the loss of what was learned before.

GEM, Lopez-Paz and Ranzato 2017, https://arxiv.org/abs/1706.08840, with one constraint for each earlier task; A-GEM,
Chaudhry et al. 2019, https://arxiv.org/abs/1812.00420, with one for the mean over all of them. Both hold to first order
for the gradient itself: stand before clipping and the update rule, whose steps may again go against a constraint.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

__all__ = ["agem", "gem", "project_average", "solve_gem"]


def project_average(gradient: Any, reference: Any) -> Any:
    """The nearest gradient that does not go against `reference`: A-GEM's `g - (g . r / r . r) r` where `g . r < 0`.

    Inner products run over the whole tree in at least float32. Without conflict, and for a reference of 0, every entry
    stays as it is, bit for bit; a reference that is not finite makes a result that is not.

    Args:
      gradient: of the new examples, any tree.
      reference: of the remembered ones, the same tree; its length does not matter.

    Example:
      >>> gradient = {"a": jnp.array([1.0, -1.0])}
      >>> project_average(gradient, {"a": jnp.array([0.0, 3.0])})["a"].tolist()
      [1.0, 0.0]
      >>> project_average(gradient, {"a": jnp.array([0.0, -3.0])})["a"].tolist()
      [1.0, -1.0]
    """
    # Squares of what is below 1e-19 vanish in float32, so the reference is divided by its largest entry first.
    leaves = [_wide(leaf) for leaf in jax.tree.leaves(reference) if leaf.size]
    if not leaves:
        return gradient
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
    unit = jax.tree.map(lambda leaf: _wide(leaf) / jnp.where(largest == 0, 1, largest), reference)
    dot = _dot(gradient, unit)
    share = dot / jnp.where(largest == 0, 1, _dot(unit, unit))
    turned = lambda leaf, one: jnp.where(dot >= 0, leaf, (_wide(leaf) - share * one).astype(leaf.dtype))
    return jax.tree.map(turned, gradient, unit)


def agem(name: str = "memory") -> optax.GradientTransformationExtraArgs:
    """A link that projects on the gradient of one loss, that of remembered examples.

    Args:
      name: Name of that loss, given to `reference.gradient` (`memjax.training.optimizers.ReferenceGradients`). An
        update without `reference` passes as it is: the sparse form projects in some steps only.

    Example:
      >>> from memjax.training.optimizers import make_reference_gradients
      >>> link, params = agem(), jnp.zeros(2)
      >>> remembered = make_reference_gradients(lambda params: {"memory": params[1]}, params)
      >>> link.update(jnp.array([1.0, -1.0]), link.init(params), params, reference=remembered)[0].tolist()
      [1.0, 0.0]
    """

    def update(updates: Any, state: Any, params: Any = None, *, reference: Any = None, **_: Any) -> tuple[Any, Any]:
        return (updates if reference is None else project_average(updates, reference.gradient(name))), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def solve_gem(
    gram: Float[Array, "tasks tasks"],
    dots: Float[Array, " tasks"],
    *,
    margin: float = 0.5,
    epsilon: float = 1e-3,
    sweeps: int = 1000,
    valid: Bool[Array, " tasks"] | None = None,
) -> Float[Array, " tasks"]:
    """How much of each earlier task's gradient GEM adds: `argmin_v v' (gram + epsilon I) v / 2 + dots' v, v >= margin`.

    By cyclic coordinate descent, which has an answer to any gradients, parallel ones too, where solvers of quadratic
    programs may find none. It ends when a sweep changes nothing, so that more `sweeps` change nothing either.

    Args:
      gram: inner products of the gradients of the tasks, `g_j . g_k`.
      dots: theirs with the new gradient, `g . g_k`.
      margin: the least that is added of each (gamma); 0 is the nearest gradient. It has no scale: above 0, it is added
        of every task, in conflict or not.
      epsilon: added to the diagonal. The published 1e-3 is absolute: a task whose gradient has a squared norm below it
        is hardly protected.
      sweeps: over all tasks, at most. Nearly parallel gradients need many: at a cosine of 0.99 between up to 20 tasks,
        1000 leave at most 1e-4 of the gradient's largest entry, at 0.9999 about 1e-2.
      valid: False = there is no such task yet, of which nothing is added; None = all are there.

    Returns:
      v; the projected gradient is `g + sum_k v_k g_k`. Not finite where what is given is not.

    Example:
      >>> solve_gem(jnp.eye(2), jnp.array([-1.0, 2.0]), margin=0.0, epsilon=0.0).tolist()
      [1.0, 0.0]
    """
    valid = jnp.ones(dots.shape, bool) if valid is None else valid
    matrix, floor = gram + epsilon * jnp.eye(dots.shape[0], dtype=gram.dtype), jnp.where(valid, margin, 0.0)

    def coordinate(task: Any, v: Array) -> Array:
        curvature = matrix[task, task]
        slope = jnp.sum(matrix[task] * v) + dots[task]
        best = jnp.where(curvature == 0, floor[task], v[task] - slope / jnp.where(curvature == 0, 1, curvature))
        return v.at[task].set(jnp.where(valid[task], jnp.maximum(best, floor[task]), 0))

    def sweep(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        v, _, done = carry
        new = jax.lax.fori_loop(0, dots.shape[0], coordinate, v)
        return new, jnp.any(new != v), done + 1

    start = (floor.astype(dots.dtype), jnp.ones((), bool), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda carry: carry[1] & (carry[2] < sweeps), sweep, start)[0]


def gem(
    *, margin: float = 0.5, epsilon: float = 1e-3, sweeps: int = 1000, stored: bool = False
) -> optax.GradientTransformationExtraArgs:
    """A link that keeps the gradient from going against that of any loss of `reference`, one for each earlier task.

    A step without conflict changes no bit and costs one forward pass more, `reference.dots`. One with a conflict also
    costs a backward and a forward pass for each task, through the losses of all, for the Gram matrix, and one backward
    pass for their weighted sum: no more than one gradient beside the new one is held at a time. `stored` ones are
    worked out once in every step, a forward and a backward pass through the rows of each task there is, and need as
    much memory as there are tasks.

    Args:
      margin: of `solve_gem`, as are the others; a loss whose gradient is 0 (a task that is not there yet, with a finite
        loss) changes nothing.
      epsilon: on the diagonal.
      sweeps: of its loop.
      stored: hold the gradients of all tasks at once.
    """
    solve = functools.partial(solve_gem, margin=margin, epsilon=epsilon, sweeps=sweeps)
    add = lambda leaf, more: (_wide(leaf) + more).astype(leaf.dtype)

    def update(updates: Any, state: Any, params: Any = None, *, reference: Any = None, **_: Any) -> tuple[Any, Any]:
        if reference is None:
            return updates, state
        if stored:
            each = reference.gradients()
            inner = lambda direction: jax.vmap(_dot, in_axes=(0, None))(each, direction)
            weighted = lambda v: jax.tree.map(lambda leaf: jnp.tensordot(v, _wide(leaf), 1), each)
            dots, row = inner(updates), lambda task: inner(jax.tree.map(lambda leaf: leaf[task], each))
        else:
            dots, weighted = reference.dots(updates), reference.weighted_gradient
            row = lambda task: reference.dots(weighted(jnp.zeros_like(dots).at[task].set(1)))

        def projected() -> Any:
            gram = jax.lax.map(row, jnp.arange(dots.shape[0]))
            return jax.tree.map(add, updates, weighted(solve(gram, dots)))

        return jax.lax.cond(jnp.all(dots >= 0), lambda: updates, projected), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _wide(leaf: Array) -> Array:
    """In at least float32."""
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _dot(a: Any, b: Any) -> Array:
    """The inner product of two trees; without the low precision that matrix products have on some devices."""
    dots = jax.tree.map(lambda x, y: jnp.vdot(_wide(x), _wide(y), precision=jax.lax.Precision.HIGHEST), a, b)
    return sum(jax.tree.leaves(dots), jnp.zeros(()))
