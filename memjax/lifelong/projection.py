"""Gradient projections that avoid raising the loss of earlier tasks: GEM and A-GEM.

GEM, Lopez-Paz and Ranzato 2017, https://arxiv.org/abs/1706.08840, has one constraint for each earlier task. A-GEM,
Chaudhry et al. 2019, https://arxiv.org/abs/1812.00420, has one for the mean over all of them. Both hold to first order
and for the gradient itself. Apply them before clipping and before the update rule, whose steps may again violate a
constraint.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float


def project_average(gradient: Any, reference: Any) -> Any:
    """Returns a gradient, projected if it points against a reference (A-GEM): `g - (g . r / r . r) r` if `g . r < 0`,
    else g. Both are trees of one structure.

    Inner products are over the whole tree in at least float32. If there is no conflict or the reference is 0, the
    gradient is unchanged bit for bit. If the reference is not finite, neither is the result.

    Args:
      gradient: Gradient of the new examples, any tree.
      reference: Gradient of the remembered examples, the same tree. Its length has no effect.

    Example:
      >>> gradient = {"a": jnp.array([1.0, -1.0])}
      >>> project_average(gradient, {"a": jnp.array([0.0, 3.0])})["a"].tolist()
      [1.0, 0.0]
      >>> project_average(gradient, {"a": jnp.array([0.0, -3.0])})["a"].tolist()
      [1.0, -1.0]
    """
    # Squares of values below 1e-19 vanish in float32, so the reference is divided by its largest entry first.
    leaves = [_wide(leaf) for leaf in jax.tree.leaves(reference) if leaf.size]
    if not leaves:
        return gradient
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
    unit = jax.tree.map(lambda leaf: _wide(leaf) / jnp.where(largest == 0, 1, largest), reference)
    dot = _dot(gradient, unit)
    share = dot / jnp.where(largest == 0, 1, _dot(unit, unit))
    project = lambda leaf, unit: jnp.where(dot >= 0, leaf, (_wide(leaf) - share * unit).astype(leaf.dtype))
    return jax.tree.map(project, gradient, unit)


def agem(name: str = "memory") -> optax.GradientTransformationExtraArgs:
    """Makes the optax transformation of A-GEM, which projects gradients that point against the gradient of the loss of
    remembered examples. `name` is the name of that loss in the argument `reference` of an update.

    Args:
      name: Name of that loss, given to `reference.gradient` (`memjax.training.optimizers.ReferenceGradients`). An
        update without `reference` is unchanged, because sparse replay projects only in some steps.

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
    """Solves GEM's problem for the weights `[tasks]` with which gradients of earlier tasks are added to the new one.
    `gram` has inner products of theirs, `dots` those with the new one, `margin` is the smallest weight.

    The weights are `argmin_v v' (gram + epsilon I) v / 2 + dots' v, v >= margin`. They are found by cyclic coordinate
    descent, which solves all problems, even those with parallel gradients, where solvers of quadratic programs may
    fail. It ends when a sweep changes nothing.

    Args:
      gram: Inner products of the gradients of the earlier tasks, `g_j . g_k`.
      dots: Inner products with the new gradient, `g . g_k`.
      margin: Smallest weight of an earlier task (gamma). 0 gives the nearest gradient. It has no scale: above 0, the
        gradient of every earlier task is added, whether it conflicts or not.
      epsilon: Constant added to the diagonal. The published 1e-3 is absolute, so a task whose gradient has a smaller
        squared norm is hardly protected.
      sweeps: Maximum number of sweeps over all tasks. Nearly parallel gradients need many: at a cosine of 0.99 between
        up to 20 tasks, 1000 sweeps leave an error of at most 1e-4 of the gradient's largest entry, at 0.9999 about
        1e-2.
      valid: Whether each task exists yet. Tasks that do not get weight 0. None if all exist.

    Returns:
      Weights v. The projected gradient is `g + sum_k v_k g_k`. They are not finite if an argument is not.

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
    """Makes the optax transformation of GEM, which projects gradients with one constraint for the loss of each earlier
    task. `stored` holds the gradients of all tasks at once. See `solve_gem` for the other arguments.

    A step without conflict changes no bit and costs one more forward pass (`reference.dots`). A step with a conflict
    also costs a backward and a forward pass through all losses for each task, for the Gram matrix, and one backward
    pass for the weighted sum of gradients. Then at most one gradient beside the new one is held at a time. With
    `stored`, the gradients of all tasks are computed once in every step, by one forward and backward pass through the
    rows of each task, and all of them are held at once.

    Args:
      margin: Smallest weight of an earlier task, for the updates of a whole batch. See `solve_gem`. A task that does
        not exist yet, with a gradient of 0, changes nothing.
      epsilon: Constant added to the diagonal. See `solve_gem`.
      sweeps: Maximum number of sweeps. See `solve_gem`.
      stored: Whether the gradients of all tasks are held at once.
    """
    solve = functools.partial(solve_gem, margin=margin, epsilon=epsilon, sweeps=sweeps)
    add = lambda leaf, more: (_wide(leaf) + more).astype(leaf.dtype)

    def update(updates: Any, state: Any, params: Any = None, *, reference: Any = None, **_: Any) -> tuple[Any, Any]:
        if reference is None:
            return updates, state
        whole = jax.tree.map(lambda leaf: leaf / jnp.asarray(reference.share, leaf.dtype), updates)
        if stored:
            gradients = reference.gradients()
            inner = lambda direction: jax.vmap(_dot, in_axes=(0, None))(gradients, direction)
            weighted = lambda v: jax.tree.map(lambda leaf: jnp.tensordot(v, _wide(leaf), 1), gradients)
            dots, row = inner(whole), lambda task: inner(jax.tree.map(lambda leaf: leaf[task], gradients))
        else:
            dots, weighted = reference.dots(whole), reference.weighted_gradient
            row = lambda task: reference.dots(weighted(jnp.zeros_like(dots).at[task].set(1)))

        def project() -> Any:
            gram = jax.lax.map(row, jnp.arange(dots.shape[0]))
            projected = jax.tree.map(add, whole, weighted(solve(gram, dots)))
            return jax.tree.map(lambda leaf: leaf * jnp.asarray(reference.share, leaf.dtype), projected)

        return jax.lax.cond(jnp.all(dots >= 0), lambda: updates, project), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _wide(leaf: Array) -> Array:
    """Converts to at least float32."""
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _dot(a: Any, b: Any) -> Array:
    """Computes the inner product of two trees, without the low precision of matrix products on some devices."""
    dots = jax.tree.map(lambda x, y: jnp.vdot(_wide(x), _wide(y), precision=jax.lax.Precision.HIGHEST), a, b)
    return sum(jax.tree.leaves(dots), jnp.zeros(()))
