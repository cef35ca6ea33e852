"""Adaptation: parameters that take a few gradient steps, on stored examples before one prediction, or on the batches of
an episode before its query.

Sprechmann et al. 2018 (MbPA), https://arxiv.org/abs/1802.10542, and de Masson d'Autume et al. 2019 (MbPA++),
https://arxiv.org/abs/1906.01076. For every query i with its neighbours (x_k, y_k), k = 1..K,

    W_i = argmin_V  lambda |V - W|^2 - sum_k alpha_k log p(y_k | x_k; V),    by L gradient steps from V = W

======================  ================================
paper                   here
======================  ================================
W                       `params`
x_k, y_k                `support`, K = its `neighbors`
-log p(y_k | x_k; V)    `loss`
alpha_k                 `weights` (`neighbor_weights`)
lambda                  `penalty`
L                       `steps`
======================  ================================

`inner_steps` are those of an episode, one for each batch (Finn et al. 2017, https://arxiv.org/abs/1703.03400). What is
learned through either is of first order, where the gradient is that at the adapted parameters, or of second order,
where it goes through the steps.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

__all__ = ["NUM_NEIGHBORS", "PRESETS", "adapt", "adapted_outputs", "inner_steps", "neighbor_weights"]

Loss = Callable[[Any, Any], Array]
Rule = Callable[[Any], optax.GradientTransformation]

NUM_NEIGHBORS = 32
"""of a query, in the MbPA++ paper and in both public codes"""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"rule": optax.sgd, "learning_rate": 5e-3, "penalty": 1e-3, "steps": 30},
    "h3lio5": {
        "rule": functools.partial(optax.adamw, eps=1e-6, weight_decay=0.0),
        "learning_rate": 1e-3,
        "penalty": 1e-3,
        "steps": 30,
    },
    "em_in_lll": {
        "rule": functools.partial(optax.sgd, momentum=0.9),
        "learning_rate": 2e-3,
        "penalty": 1e-3,
        "steps": 20,
    },
}
"""Keyword arguments of `adapt`, by where they are from; the weights are uniform in all of them.

* paper: of MbPA++. Recalled and not verified: the learning rate, and the penalty (text; for questions 1e-4).
* h3lio5: github.com/h3lio5/episodic-lifelong-learning. Recalled and not verified: eps and no decay, which are the
  defaults of the AdamW that it calls. Adam's first step is `learning_rate` for every parameter, whatever its gradient:
  30 of them move far more than SGD does.
* em_in_lll: github.com/Daikon-Sun/EM-in-LLL, the defaults of its settings; it tests in half precision.
"""


def adapt(
    loss: Loss,
    params: Any,
    support: Any,
    weights: Float[Array, " neighbors"],
    *,
    steps: int,
    learning_rate: Any,
    penalty: Any,
    select: Callable[[str], bool] | None = None,
    rule: Rule = optax.sgd,
    order: int = 1,
) -> Any:
    """The parameters after some gradient steps on `sum(weights * loss) + penalty * |params - those given|^2`.

    What is given is not touched. Without any weight above 0 nothing moves, bit for bit, also where the rule decays. The
    gradient of the penalty is exactly 0 in the first step: with one step it has no effect.

    Args:
      loss: `loss(params, support) -> [neighbors]`, without dropout; finite also of a neighbour that is missing.
      params: a tree.
      support: a tree, the neighbours.
      weights: of each neighbour's loss, 0 = it is missing.
      steps: how many, static; 0 = none.
      learning_rate: a number or a scalar.
      penalty: on the squared distance (lambda), not divided by the number of neighbours; a number or a scalar.
      select: `select(path) -> bool`, of paths such as "layers_3/attention/query": what is adapted, and in the penalty.
        All else is neither copied nor differentiated. None = everything.
      rule: `rule(learning_rate)`, an optax transformation. It sees what is selected, and `optax.MaskedNode` elsewhere.
      order: of derivatives of the result: 2 = those of all steps; 1 = as if each step added a constant.

    Returns:
      The adapted parameters, a tree like `params`.

    Raises:
      ValueError: steps below 0, nothing selected, a loss that is not one number a neighbour, another order, or the
        second where the loss has no second derivative.

    Example:
      >>> square = lambda params, support: (params["head"]["w"] * params["scale"] - support) ** 2
      >>> params = {"head": {"w": jnp.array(0.0)}, "scale": jnp.array(1.0)}
      >>> support, weights = jnp.array([1.0, 3.0]), jnp.array([0.5, 0.5])
      >>> given = {"steps": 50, "learning_rate": 0.1, "select": lambda path: path.startswith("head/")}
      >>> new = adapt(square, params, support, weights, penalty=0.0, **given)
      >>> print(round(float(new["head"]["w"]), 3), float(new["scale"]))
      2.0 1.0
      >>> print(round(float(adapt(square, params, support, weights, penalty=1.0, **given)["head"]["w"]), 3))
      1.0
    """
    if steps < 0:
        raise ValueError(f"steps: given {steps}, allowed: 0 or more")
    base, fixed = _chosen(params, select), _constant(params, order)

    def objective(some: Any, _: None) -> Array:
        losses = loss(_merged(some, fixed), support)
        if losses.shape != weights.shape:
            raise ValueError(f"loss: given losses {losses.shape}, allowed: {weights.shape}, one for each neighbour")
        return jnp.sum(weights * losses)

    def pull(gradient: Any, some: Any) -> Any:
        add = lambda gradient, leaf, old: gradient + (2 * penalty * (leaf - old)).astype(leaf.dtype)
        return jax.tree.map(add, gradient, some, base)

    adapted = _descend(objective, base, None, steps=steps, link=rule(learning_rate), order=order, pull=pull)
    moves = jnp.any(weights != 0)
    return _merged(jax.tree.map(lambda new, old: jnp.where(moves, new, old), adapted, base), params)


def inner_steps(
    loss: Callable[[Any, Any], Array],
    params: Any,
    batches: Any,
    *,
    learning_rate: Any,
    select: Callable[[str], bool] | None = None,
    order: int = 1,
) -> Any:
    """The parameters after one step of gradient descent on each of some batches, in their order.

    Nothing is kept of a step for derivatives of the first order, whatever their number; for those of the second order a
    step keeps the parameters that it began with, and is done again.

    Differs from published code (Holla et al. 2020): nothing but the order of the derivatives is chosen.

    Args:
      loss: `loss(params, batch) -> scalar`; 0 of a batch of padding.
      params: a tree; what is given is not touched.
      batches: a tree, leaves `[steps, ...]`.
      learning_rate: a number or a scalar (alpha).
      select: as in `adapt`.
      order: of derivatives of the result, as in `adapt`.

    Returns:
      The adapted parameters, a tree like `params`; what is not selected is that of `params` itself.

    Raises:
      ValueError: as `adapt`.

    Example:
      >>> loss = lambda w, batch: (w - batch) ** 2 / 2
      >>> print(inner_steps(loss, jnp.array(0.0), jnp.array([1.0, 2.0]), learning_rate=0.5))
      1.25
      >>> behind = lambda w, **given: loss(inner_steps(loss, w, jnp.array([1.0, 2.0]), learning_rate=0.5, **given), 1.0)
      >>> for order in (1, 2):
      ...     print(jax.grad(behind)(jnp.array(0.0), order=order))
      0.25
      0.0625
    """
    base, fixed = _chosen(params, select), _constant(params, order)
    (steps,) = {leaf.shape[0] for leaf in jax.tree.leaves(batches)}
    objective = lambda some, batch: loss(_merged(some, fixed), batch)
    return _merged(_descend(objective, base, batches, steps=steps, link=optax.sgd(learning_rate), order=order), params)


def _descend(
    objective: Callable[[Any, Any], Array],
    base: Any,
    batches: Any,
    *,
    steps: int,
    link: optax.GradientTransformation,
    order: int,
    pull: Callable[[Any, Any], Any] = lambda gradient, some: gradient,
) -> Any:
    """`base` after some updates of `link`; `pull(gradient, some)` is what it is given."""

    def step(carry: tuple[Any, Any], batch: Any) -> tuple[tuple[Any, Any], None]:
        some, state = carry
        # Of a constant, nothing of the loss is linearised a second time, and what has no second derivative will do.
        here = _constant(some, order)
        gradient = _constant(pull(jax.grad(objective)(here, batch), here), order)
        updates, state = link.update(gradient, state, here)
        return (optax.apply_updates(some, updates), state), None

    body, start = step, (base, link.init(_constant(base, order)))
    if order == 2:
        # Errors of the loss itself come first, so that what fails behind them is its second derivative.
        jax.eval_shape(step, start, jax.tree.map(lambda leaf: leaf[0], batches) if steps else None)
        body = jax.checkpoint(step, prevent_cse=False)
    try:
        (adapted, _), _ = jax.lax.scan(body, start, batches, length=steps)
    except (TypeError, ValueError, NotImplementedError) as error:
        if order == 1:
            raise
        first = str(error).splitlines()[0]
        raise ValueError(f"order: given 2, allowed: 1 where a kernel has no second derivative ({first})") from error
    return adapted


def _constant(tree: Any, order: int) -> Any:
    """What a step is computed from; of the first order, nothing is derived from it.

    Raises:
      ValueError: another order.
    """
    if order not in (1, 2):
        raise ValueError(f"order: given {order}, allowed: 1 or 2")
    return jax.lax.stop_gradient(tree) if order == 1 else tree


def _chosen(params: Any, select: Callable[[str], bool] | None) -> Any:
    """What is adapted.

    Raises:
      ValueError: nothing.
    """
    base = selected(params, select)
    if not jax.tree.leaves(base):
        names = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        raise ValueError(f"select: given what takes none of {names}, allowed: at least one")
    return base


def _merged(some: Any, params: Any) -> Any:
    """The parameters with others in the place of what is selected."""
    return jax.tree.map(lambda leaf, new: leaf if _is_masked(new) else new, params, some)


def selected(params: Any, select: Callable[[str], bool] | None = None) -> Any:
    """What of the parameters is adapted, with `optax.MaskedNode` in the place of all else (see `adapt`).

    Example:
      >>> selected({"head": 1.0, "layers": 2.0}, lambda path: path == "head")
      {'head': 1.0, 'layers': MaskedNode()}
    """
    chosen = lambda path: select is None or select(_name(path))
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if chosen(path) else optax.MaskedNode(), params)


def adapted_outputs(
    loss: Loss,
    predict: Callable[[Any, Any], Any],
    params: Any,
    queries: Any,
    supports: Any,
    weights: Float[Array, "queries neighbors"],
    *,
    batch_size: int | None = None,
    **adaptation: Any,
) -> Any:
    """What the model says of every query, each time with parameters that were adapted to its own neighbours.

    The adapted parameters never exist for more than `batch_size` queries, and are not returned. Queries that are split
    over devices (as many a device of a group as of all) need no communication.

    Args:
      loss: as `adapt` has it, of the neighbours of one query.
      predict: `predict(params, query) -> output`, of one query.
      params: a tree, the same for all queries.
      queries: a tree, leaves `[queries, ...]`.
      supports: a tree, leaves `[queries, ...]`.
      weights: of neighbours (`neighbor_weights`).
      batch_size: queries side by side, each with a copy of what is adapted (times three: its gradient, its momentum);
        the groups come one after the other. None = all at once.
      **adaptation: of `adapt`.

    Returns:
      A tree like an output, leaves `[queries, ...]`.

    Raises:
      ValueError: a batch size below 1, or as `adapt`.

    Example:
      >>> loss = lambda w, support: (w - support) ** 2
      >>> supports, weights = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[1.0], [1.0], [0.0]])
      >>> given = {"steps": 40, "learning_rate": 0.2, "penalty": 0.0}
      >>> outputs = adapted_outputs(
      ...     loss, lambda w, query: w * query, jnp.array(0.5), jnp.array([1.0, 10.0, 10.0]), supports, weights, **given
      ... )
      >>> print(outputs.round(3))
      [ 1. 20.  5.]
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size: given {batch_size}, allowed: 1 or more, or None for all queries at once")
    count = weights.shape[0]
    each = lambda query, support, weights: predict(adapt(loss, params, support, weights, **adaptation), query)
    at_once = lambda given: jax.vmap(each)(*given)
    given = (queries, supports, weights)
    if batch_size is None or batch_size >= count:
        return at_once(given)
    groups = count // batch_size
    whole = groups * batch_size

    # A group takes every `groups`-th query, so that one of a split axis lies on all of its devices.
    def split(leaf: Array) -> Array:
        return jnp.swapaxes(leaf[:whole].reshape(batch_size, groups, *leaf.shape[1:]), 0, 1)

    def join(leaf: Array) -> Array:
        return jnp.swapaxes(leaf, 0, 1).reshape(whole, *leaf.shape[2:])

    outputs = jax.tree.map(join, jax.lax.map(at_once, jax.tree.map(split, given)))
    if whole == count:
        return outputs
    rest = at_once(jax.tree.map(lambda leaf: leaf[whole:], given))
    return jax.tree.map(lambda first, last: jnp.concatenate([first, last]), outputs, rest)


def neighbor_weights(
    distances: Float[Array, "*queries neighbors"],
    valid: Bool[Array, "*queries neighbors"],
    kind: str = "uniform",
    *,
    epsilon: float | Float[Array, ""] = 1e-3,
    temperature: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*queries neighbors"]:
    """How much each neighbour of a query counts (alpha): together 1, and 0 where one is missing or all are.

    Args:
      distances: squared L2, as a search gives them; for inner products ("softmax") give their negative. Those of
        missing neighbours may be anything.
      valid: which neighbours there are.
      kind: "uniform" (MbPA++); "inverse_distance", `1 / (epsilon + distance)`, the kernel of MbPA; or "softmax" of
        `-distance / temperature`.
      epsilon: above 0. The default was recalled, not verified.
      temperature: above 0.

    Raises:
      ValueError: another kind.

    Example:
      >>> distances, valid = jnp.array([[1.0, 3.0, 0.0]]), jnp.array([[True, True, False]])
      >>> print(neighbor_weights(distances, valid))
      [[0.5 0.5 0. ]]
      >>> [round(float(weight), 3) for weight in neighbor_weights(distances, valid, "inverse_distance", epsilon=1.0)[0]]
      [0.667, 0.333, 0.0]
    """
    distances = jnp.where(valid, distances, 0).astype(jnp.promote_types(distances.dtype, jnp.float32))
    match kind:
        case "uniform":
            scores = jnp.ones_like(distances)
        case "inverse_distance":
            scores = 1 / (epsilon + jnp.maximum(distances, 0))  # a rounded |q|^2 - 2 qk + |k|^2 may lie below 0
        case "softmax":
            nearest = jnp.min(distances, axis=-1, where=valid, initial=jnp.inf, keepdims=True)
            scores = jnp.exp(-jnp.where(valid, distances - nearest, 0) / temperature)
        case _:
            raise ValueError(f'kind: given {kind!r}, allowed: "uniform", "inverse_distance", "softmax"')
    scores = jnp.where(valid, scores, 0)
    total = jnp.sum(scores, axis=-1, keepdims=True)
    return scores / jnp.where(total > 0, total, 1)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_masked(leaf: Any) -> bool:
    return isinstance(leaf, optax.MaskedNode)
