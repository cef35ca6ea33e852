"""Local adaptation: parameters that take a few gradient steps on stored examples before one prediction.

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
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

__all__ = ["NUM_NEIGHBORS", "PRESETS", "adapt", "adapted_outputs", "neighbor_weights"]

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

paper: of MbPA++. Recalled and not verified: the learning rate, and the penalty (text; for questions 1e-4).
h3lio5: github.com/h3lio5/episodic-lifelong-learning. Recalled and not verified: eps and no decay, which are the
  defaults of the AdamW that it calls. Adam's first step is `learning_rate` for every parameter, whatever its gradient:
  30 of them move far more than SGD does.
em_in_lll: github.com/Daikon-Sun/EM-in-LLL, the defaults of its settings; it tests in half precision.
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
) -> Any:
    """The parameters after some gradient steps on `sum(weights * loss) + penalty * |params - those given|^2`.

    What is given is not touched. Without any weight above 0 nothing moves, bit for bit, also where the rule decays. The
    gradient of the penalty is exactly 0 in the first step. Derivatives of the result are those of all steps.

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

    Returns:
      The adapted parameters, a tree like `params`.

    Raises:
      ValueError: steps below 0, nothing selected, or a loss that is not one number a neighbour.

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
    merge = lambda some, tree: jax.tree.map(lambda leaf, new: leaf if _is_masked(new) else new, tree, some)
    base, link = selected(params, select), rule(learning_rate)
    if not jax.tree.leaves(base):
        names = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        raise ValueError(f"select: given what takes none of {names}, allowed: at least one")

    def objective(some: Any) -> Array:
        losses = loss(merge(some, params), support)
        if losses.shape != weights.shape:
            raise ValueError(f"loss: given losses {losses.shape}, allowed: {weights.shape}, one for each neighbour")
        return jnp.sum(weights * losses)

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        some, state = carry
        pull = lambda gradient, leaf, old: gradient + (2 * penalty * (leaf - old)).astype(leaf.dtype)
        gradient = jax.tree.map(pull, jax.grad(objective)(some), some, base)
        updates, state = link.update(gradient, state, some)
        return (optax.apply_updates(some, updates), state), None

    (adapted, _), _ = jax.lax.scan(step, (base, link.init(base)), None, length=steps)
    moves = jnp.any(weights != 0)
    return merge(jax.tree.map(lambda new, old: jnp.where(moves, new, old), adapted, base), params)


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
