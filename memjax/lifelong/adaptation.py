"""Local adaptation of parameters by a few gradient steps: on stored examples before a prediction, or within an episode.

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

`inner_steps` adapts within an episode, by one step on each batch (Finn et al. 2017, https://arxiv.org/abs/1703.03400).
Learning through the adaptation is of first order if the gradient is taken at the adapted parameters, and of second
order if it is propagated through the steps.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

Loss = Callable[[Any, Any], Array]
Rule = Callable[[Any], optax.GradientTransformation]

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
"""Keyword arguments of `adapt` by their source. Weights are uniform in all sources.

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
    """Returns parameters adapted by `steps` updates of the optax optimiser `rule(learning_rate)` on
    `sum(weights * loss(params, support)) + penalty * |params - initial params|^2`. `order` 2 differentiates through the
    steps, 1 does not.

    The given parameters are not changed. If no weight is above 0 the result equals them bit for bit, even if the update
    rule has weight decay. The gradient of the penalty is exactly 0 in the first step, so with one step it has no
    effect.

    Args:
      loss: `loss(params, support)` returns losses `[neighbors]`. It must be without dropout, and finite even for
        missing neighbours.
      params: Tree of parameters.
      support: Tree of arrays with the neighbours.
      weights: Weight of each neighbour's loss. 0 for missing neighbours.
      steps: Number of gradient steps, a static integer. 0 for none.
      learning_rate: Learning rate, a number or a scalar array.
      penalty: Weight of the squared distance (lambda), a number or a scalar array. It is not divided by the number of
        neighbours.
      select: `select(path)` returns whether a parameter is adapted, by a path such as "layers_3/attention/query". Other
        parameters are not copied, differentiated or penalised. None to adapt all.
      rule: `rule(learning_rate)` makes the optax transformation of the steps. It sees the adapted parameters, and
        `optax.MaskedNode` in the place of all others.
      order: Order of derivatives of the result: 2 propagates gradients through all steps, 1 treats the steps as
        constants.

    Returns:
      The adapted parameters, a tree like `params`.

    Raises:
      ValueError: `steps` is negative, no parameter is selected, the loss is not one number for each neighbour, the
        order is unknown, or it is 2 and the loss has no second derivative.

    Example:
      >>> square = lambda params, support: (params["head"]["w"] * params["scale"] - support) ** 2
      >>> params = {"head": {"w": jnp.array(0.0)}, "scale": jnp.array(1.0)}
      >>> support, weights = jnp.array([1.0, 3.0]), jnp.array([0.5, 0.5])
      >>> options = {"steps": 50, "learning_rate": 0.1, "select": lambda path: path.startswith("head/")}
      >>> new = adapt(square, params, support, weights, penalty=0.0, **options)
      >>> print(round(float(new["head"]["w"]), 3), float(new["scale"]))
      2.0 1.0
      >>> print(round(float(adapt(square, params, support, weights, penalty=1.0, **options)["head"]["w"]), 3))
      1.0
    """
    if steps < 0:
        raise ValueError(f"steps: given {steps}, allowed: 0 or more")
    base, fixed = _select_parameters(params, select), _stop_gradient_if_first_order(params, order)

    def objective(some: Any, _: None) -> Array:
        losses = loss(_merge_parameters(some, fixed), support)
        if losses.shape != weights.shape:
            raise ValueError(f"loss: given losses {losses.shape}, allowed: {weights.shape}, one for each neighbour")
        return jnp.sum(weights * losses)

    def pull(gradient: Any, some: Any) -> Any:
        add = lambda gradient, leaf, old: gradient + (2 * penalty * (leaf - old)).astype(leaf.dtype)
        return jax.tree.map(add, gradient, some, base)

    adapted = _descend(objective, base, None, steps=steps, link=rule(learning_rate), order=order, pull=pull)
    moves = jnp.any(weights != 0)
    return _merge_parameters(jax.tree.map(lambda new, old: jnp.where(moves, new, old), adapted, base), params)


def inner_steps(
    loss: Callable[[Any, Any], Array],
    params: Any,
    batches: Any,
    *,
    learning_rate: Any,
    select: Callable[[str], bool] | None = None,
    order: int = 1,
) -> Any:
    """Returns parameters adapted by one step of gradient descent on each batch of `batches`, arrays `[steps, ...]`, in
    their order. `order` 2 differentiates through the steps, 1 takes them as constants.

    For first-order derivatives no step is stored, whatever the number of steps. For second-order derivatives the first
    parameters of every step are stored, and the step is computed again in the backward pass.

    Differs from published code (Holla et al. 2020): only the order of the derivatives can be chosen.

    Args:
      loss: `loss(params, batch)` returns a scalar, which must be 0 for a batch of padding.
      params: Tree of parameters. They are not changed.
      batches: Tree of arrays `[steps, ...]`.
      learning_rate: Learning rate (alpha), a number or a scalar array.
      select: `select(path)` returns whether a parameter is adapted. None to adapt all. See `adapt`.
      order: Order of derivatives of the result, 1 or 2. See `adapt`.

    Returns:
      The adapted parameters, a tree like `params`. Parameters that are not selected are those of `params`, so gradients
      flow to them.

    Raises:
      ValueError: no parameter is selected, the order is unknown, or it is 2 and the loss has no second derivative.

    Example:
      >>> loss = lambda w, batch: (w - batch) ** 2 / 2
      >>> print(inner_steps(loss, jnp.array(0.0), jnp.array([1.0, 2.0]), learning_rate=0.5))
      1.25
      >>> adapt = lambda w, **options: inner_steps(loss, w, jnp.array([1.0, 2.0]), learning_rate=0.5, **options)
      >>> query_loss = lambda w, **options: loss(adapt(w, **options), 1.0)
      >>> for order in (1, 2):
      ...     print(jax.grad(query_loss)(jnp.array(0.0), order=order))
      0.25
      0.0625
    """
    base, fixed = _select_parameters(params, select), _stop_gradient_if_first_order(params, order)
    (steps,) = {leaf.shape[0] for leaf in jax.tree.leaves(batches)}
    objective = lambda some, batch: loss(_merge_parameters(some, fixed), batch)
    return _merge_parameters(
        _descend(objective, base, batches, steps=steps, link=optax.sgd(learning_rate), order=order), params
    )


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
    """Applies `steps` updates of the optax transformation `link` to parameters and returns the result.

    Args:
      objective: `objective(params, batch)` returns a scalar.
      base: Parameters before the updates.
      batches: Tree of arrays `[steps, ...]`, or None.
      steps: Number of updates.
      link: Optax transformation.
      order: Order of derivatives of the result, 1 or 2.
      pull: `pull(gradient, params)` changes a gradient before it is transformed.
    """

    def step(carry: tuple[Any, Any], batch: Any) -> tuple[tuple[Any, Any], None]:
        some, state = carry
        # With constants the loss is not linearised a second time, so it needs no second derivative.
        here = _stop_gradient_if_first_order(some, order)
        gradient = _stop_gradient_if_first_order(pull(jax.grad(objective)(here, batch), here), order)
        updates, state = link.update(gradient, state, here)
        return (optax.apply_updates(some, updates), state), None

    body, start = step, (base, link.init(_stop_gradient_if_first_order(base, order)))
    if order == 2:
        # Tracing once shows errors of the loss itself, so later failures are those of its second derivative.
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


def _stop_gradient_if_first_order(tree: Any, order: int) -> Any:
    """Stops gradients through a tree for first-order derivatives, and returns it unchanged for second-order ones.

    Raises:
      ValueError: the order is neither 1 nor 2.
    """
    if order not in (1, 2):
        raise ValueError(f"order: given {order}, allowed: 1 or 2")
    return jax.lax.stop_gradient(tree) if order == 1 else tree


def _select_parameters(params: Any, select: Callable[[str], bool] | None) -> Any:
    """Returns the parameters to adapt. See `selected`.

    Raises:
      ValueError: no parameter is selected.
    """
    base = selected(params, select)
    if not jax.tree.leaves(base):
        names = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        raise ValueError(f"select: given what takes none of {names}, allowed: at least one")
    return base


def _merge_parameters(some: Any, params: Any) -> Any:
    """Returns all parameters, with the selected ones replaced by `some`."""
    return jax.tree.map(lambda leaf, new: leaf if _is_masked(new) else new, params, some)


def selected(params: Any, select: Callable[[str], bool] | None = None) -> Any:
    """Returns the tree `params` with `optax.MaskedNode` in the place of every parameter for whose path `select(path)`
    is False. With `select` None the tree is unchanged.

    Args:
      params: Tree of parameters.
      select: `select(path)` returns whether a parameter is adapted. None to adapt all. See `adapt`.

    Example:
      >>> selected({"head": 1.0, "layers": 2.0}, lambda path: path == "head")
      {'head': 1.0, 'layers': MaskedNode()}
    """
    is_selected = lambda path: select is None or select(_name(path))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if is_selected(path) else optax.MaskedNode(), params
    )


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
    """Returns `predict(params, query)` for every query, with parameters that `adapt` has fitted to the query's own
    neighbours in `supports`. At most `batch_size` queries are adapted at once.

    Adapted parameters exist for at most `batch_size` queries at once and are not returned. Queries that are split over
    devices need no communication if each group has equally many on every device.

    Args:
      loss: Loss of the neighbours of one query. See `adapt`.
      predict: `predict(params, query)` returns the output for one query.
      params: Tree of parameters that are adapted for every query.
      queries: Tree of arrays `[queries, ...]`.
      supports: Tree of arrays `[queries, ...]` with the neighbours of every query.
      weights: Weights of the neighbours (`neighbor_weights`).
      batch_size: Number of queries that are adapted side by side. Each needs three copies of the adapted parameters:
        the parameters, their gradient and their momentum. None for all queries at once.
      **adaptation: Keyword arguments of `adapt`.

    Returns:
      A tree like an output, with arrays `[queries, ...]`.

    Raises:
      ValueError: `batch_size` is below 1, or `adapt` raises it.

    Example:
      >>> loss = lambda w, support: (w - support) ** 2
      >>> supports, weights = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[1.0], [1.0], [0.0]])
      >>> options = {"steps": 40, "learning_rate": 0.2, "penalty": 0.0}
      >>> outputs = adapted_outputs(
      ...     loss, jnp.multiply, jnp.array(0.5), jnp.array([1.0, 10.0, 10.0]), supports, weights, **options
      ... )
      >>> print(outputs.round(3))
      [ 1. 20.  5.]
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size: given {batch_size}, allowed: 1 or more, or None for all queries at once")
    count = weights.shape[0]
    answer = lambda query, support, weights: predict(adapt(loss, params, support, weights, **adaptation), query)
    at_once = lambda arguments: jax.vmap(answer)(*arguments)
    arguments = (queries, supports, weights)
    if batch_size is None or batch_size >= count:
        return at_once(arguments)
    groups = count // batch_size
    whole = groups * batch_size

    # A group takes every `groups`-th query, so that each group is spread over all devices of a split axis.
    def split(leaf: Array) -> Array:
        return jnp.swapaxes(leaf[:whole].reshape(batch_size, groups, *leaf.shape[1:]), 0, 1)

    def join(leaf: Array) -> Array:
        return jnp.swapaxes(leaf, 0, 1).reshape(whole, *leaf.shape[2:])

    outputs = jax.tree.map(join, jax.lax.map(at_once, jax.tree.map(split, arguments)))
    if whole == count:
        return outputs
    rest = at_once(jax.tree.map(lambda leaf: leaf[whole:], arguments))
    return jax.tree.map(lambda first, last: jnp.concatenate([first, last]), outputs, rest)


def neighbor_weights(
    distances: Float[Array, "*queries neighbors"],
    valid: Bool[Array, "*queries neighbors"],
    kind: str = "uniform",
    *,
    epsilon: float | Float[Array, ""] = 1e-3,
    temperature: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*queries neighbors"]:
    """Computes the weight of each neighbour of a query (alpha) from squared distances. `kind` is "uniform",
    "inverse_distance" or "softmax". Weights sum to 1. Neighbours that are not `valid` get 0.

    Args:
      distances: Squared L2 distances, as a search returns them. For inner products give their negative with "softmax".
        Distances of missing neighbours are ignored.
      valid: Whether each neighbour exists.
      kind: "uniform" (MbPA++), "inverse_distance" for `1 / (epsilon + distance)` (the kernel of MbPA), or "softmax" of
        `-distance / temperature`.
      epsilon: Constant of "inverse_distance", above 0. The default was recalled, not verified.
      temperature: Temperature of "softmax", above 0.

    Raises:
      ValueError: the kind is unknown.

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
            scores = 1 / (epsilon + jnp.maximum(distances, 0))  # A rounded |q|^2 - 2 qk + |k|^2 may be negative.
        case "softmax":
            nearest = jnp.min(distances, axis=-1, where=valid, initial=jnp.inf, keepdims=True)
            scores = jnp.exp(-jnp.where(valid, distances - nearest, 0) / temperature)
        case _:
            raise ValueError(f'kind: given {kind!r}, allowed: "uniform", "inverse_distance", "softmax"')
    scores = jnp.where(valid, scores, 0)
    total = jnp.sum(scores, axis=-1, keepdims=True)
    return scores / jnp.where(total > 0, total, 1)


def _name(path: Any) -> str:
    """Joins the keys of a path in a tree by slashes."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_masked(leaf: Any) -> bool:
    """Returns whether a leaf stands for a parameter that is not adapted."""
    return isinstance(leaf, optax.MaskedNode)
