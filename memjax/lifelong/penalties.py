"""Quadratic penalties that hold parameters near their values after earlier tasks, and the importances in them.

============  ==================================================================  =============================
method        importance of a parameter                                           computed from
============  ==================================================================  =============================
EWC           its Fisher information (`fisher`)                                   data of the task, after it
MAS           how strongly the outputs depend on it (`sensitivity`)               inputs of the task, after it
SI            its share in the fall of the loss (`accumulate_path`, then          every step of the task
              `path_importance`)
============  ==================================================================  =============================

The rest is common to all: `consolidate` is called after a task, and `quadratic_penalty` is added during the next ones.
Two arrays of the size of the parameters are stored, however many tasks there are, and no examples.

Penalties were published for tasks that share a solution, have separate heads, or change only their inputs. Van de Ven
and Tolias 2019 (https://arxiv.org/abs/1904.07734) report that they fail for new classes in one shared head: no loss has
the classes of two tasks together, so that nothing tells them apart. Importances are local and say nothing far from the
anchor. Our numbers of both cases: tools/results/tables/lifelong_mnist.md.

Functions take one example without a batch axis, and any tree of parameters. Give them the parameters that are trained,
and evaluate without dropout.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.typing import tree_dataclass

Outputs = Callable[[Any, Any], Array]
"""A function `outputs(params, example)` that returns an array."""
FISHERS = ("true", "example", "batch")
KINDS = ("example", "batch")


@tree_dataclass
class ImportanceState:
    """The state of a quadratic penalty: importances and anchor of the parameters after all earlier tasks, and a
    constant.

    The penalty of task t is a quadratic form, `sum_i F_ti (theta_i - theta*_ti)^2 / 2`. The sum over tasks is also one,
    and these are its coefficients, so the state does not grow with the number of tasks. The online form of EWC has a
    single anchor instead, the parameters after the last task.

    Attributes:
      importance: Importance of each parameter, `sum_t F_t` (the paper's F), in at least float32.
      anchor: Parameters at the minimum of the penalty, `sum_t F_t theta*_t / sum_t F_t`, or those of the last task
        where F is 0.
      constant: Twice the penalty at the anchor, `sum_ti F_ti (anchor_i - theta*_ti)^2`, a scalar.
    """

    importance: Any
    anchor: Any
    constant: Any


def init_consolidated(params: Any) -> ImportanceState:
    """Makes the `ImportanceState` before the first task, whose penalty is 0 everywhere."""
    zeros = lambda: jax.tree.map(lambda leaf: jnp.zeros_like(_wide(leaf)), params)
    return ImportanceState(zeros(), zeros(), jnp.zeros(()))


def quadratic_penalty(params: Any, kept: ImportanceState) -> Float[Array, ""]:
    """Computes the penalty `sum_t sum_i F_ti (theta_i - theta*_ti)^2 / 2`, a scalar, of the parameters theta. `kept`
    has importances F and anchors theta* of all earlier tasks t.

    The factor 1/2 is that of EWC's paper. The papers of MAS and SI and all penalties of Avalanche have none, so their
    strength is half of the weight to multiply this penalty with.

    Args:
      params: Parameters.
      kept: State of the penalty after earlier tasks.

    Raises:
      ValueError: a parameter has another shape than its anchor, which would broadcast.
    """
    for (path, leaf), anchor in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(kept.anchor), strict=True):
        if jnp.shape(leaf) != jnp.shape(anchor):
            name = jax.tree_util.keystr(path) or "it"
            raise ValueError(f"params: given {name} of {jnp.shape(leaf)}, allowed: {jnp.shape(anchor)}, as it was kept")
    square = lambda importance, anchor, leaf: jnp.sum(importance * (_wide(leaf) - anchor) ** 2)
    return (sum(jax.tree.leaves(jax.tree.map(square, kept.importance, kept.anchor, params))) + kept.constant) / 2


def consolidate(
    kept: ImportanceState, information: Any, params: Any, *, decay: float | None = None, share: float = 1.0
) -> ImportanceState:
    """Returns the state of a penalty after a task with the importances `information`. `decay` None sums the penalties
    of all tasks. A number multiplies old importances and anchors all in `params`, and `share` multiplies the new ones.

    The result shares no array with `params`.

    Args:
      kept: State after the earlier tasks.
      information: Importances of the task, such as its Fisher information.
      params: Parameters after the task.
      decay: None to sum the penalties of all tasks, each with its own anchor. A number multiplies the importances of
        earlier tasks, and `params` become the only anchor: 1 for MAS and SI, gamma for online EWC.
      share: Factor of the importances of this task, only with `decay`. Avalanche's MAS has decay 1/2 and share 1/2, but
        share 1 after the first task.

    Raises:
      ValueError: `share` is given without `decay`.

    Example:
      >>> first = ImportanceState(jnp.array([1.0]), jnp.array([0.0]), jnp.array(0.0))
      >>> second = consolidate(first, jnp.array([3.0]), jnp.array([4.0]))
      >>> float(quadratic_penalty(jnp.array([2.0]), second)), (1 * 2**2 + 3 * 2**2) / 2
      (8.0, 8.0)
    """
    if decay is not None:
        add = lambda old, new: decay * old + (new if share == 1 else share * new)
        importance = jax.tree.map(add, kept.importance, information)
        return ImportanceState(importance, jax.tree.map(_copy_wide, params), jnp.zeros_like(kept.constant))
    if share != 1:
        raise ValueError(f"share: given {share} without decay, allowed: 1, or a decay beside it")
    importance = jax.tree.map(jnp.add, kept.importance, information)
    part = jax.tree.map(
        lambda new, total: jnp.where(total > 0, new / jnp.where(total > 0, total, 1), 1), information, importance
    )
    anchor = jax.tree.map(lambda old, leaf, part: old + part * (leaf - old), kept.anchor, params, part)
    distance = lambda old, part, anchor, leaf: jnp.sum(old * part * (leaf - anchor) ** 2)
    distances = jax.tree.leaves(jax.tree.map(distance, kept.importance, part, kept.anchor, params))
    return ImportanceState(importance, anchor, kept.constant + sum(distances))


def fisher(
    log_likelihood: Callable[[Any, Any, Any], Array],
    params: Any,
    examples: Any,
    labels: Any,
    *,
    kind: str = "example",
    log_probs: Outputs | None = None,
    key: Array | None = None,
    weights: Float[Array, " examples"] | None = None,
    at_once: int = 1,
) -> tuple[Any, Float[Array, ""]]:
    """Sums the diagonal of EWC's Fisher information over examples, and returns two values: the sums as a tree like
    `params`, and their divisor. `kind` is "true", which needs `log_probs(params, example)`, "example" or "batch".

    Kirkpatrick et al. 2017, https://arxiv.org/abs/1612.00796. Online: Schwarz et al. 2018,
    https://arxiv.org/abs/1805.06370. Each kind has its own scale, so a strength that was tuned for one does not fit
    another: "batch" is smaller than the others by about the number of examples.

    Args:
      log_likelihood: `log_likelihood(params, example, label)` returns a scalar.
      params: Parameters to differentiate by.
      examples: Tree of arrays `[examples, ...]`. For kind "batch" all of them are the batch.
      labels: Labels `[examples, ...]`. Kind "true" does not read them.
      kind: "true": squared gradients under labels from the model itself, the Fisher information of the paper.
        "example": squared gradients of each example under its own label, the empirical Fisher information. "batch": the
        square of the mean gradient of all examples, as in Avalanche and in LAMOL's code.
      log_probs: `log_probs(params, example)` returns log-probabilities `[classes]` or `[*positions, classes]`. Only for
        kind "true".
      key: Random key that draws one label for each example. None for the exact expectation over all classes, which
        takes one backward pass for each class. Only for kind "true".
      weights: Weight of each example, 1 or 0 for padding. None for 1.
      at_once: Number of examples whose gradients are computed side by side, a divisor of the number of examples.

    Returns:
      Sums in at least float32, and their divisor: the total weight of the examples, or for "batch" 1 (0 without
      examples).

    Raises:
      ValueError: the kind is unknown, "true" lacks `log_probs`, or `key` if a label has several positions, or `at_once`
        does not divide the number of examples.

    Example:
      >>> log_probs = lambda params, x: jax.nn.log_softmax(params * x)
      >>> likelihood = lambda params, x, label: log_probs(params, x)[label]
      >>> x, labels = jnp.ones((4, 2)), jnp.array([0, 0, 1, 1])
      >>> for kind in ("example", "true", "batch"):
      ...     total, number = fisher(likelihood, jnp.zeros(2), x, labels, kind=kind, log_probs=log_probs)
      ...     print((total / number).tolist())
      [0.25, 0.25]
      [0.25, 0.25]
      [0.0, 0.0]
    """
    if kind not in FISHERS:
        raise ValueError(f"kind: given {kind!r}, allowed: {', '.join(FISHERS)}")
    function = lambda params, pair: log_likelihood(params, *pair)
    if kind != "true":
        return _sum_over_examples(function, jnp.square, params, (examples, labels), kind, weights, at_once)
    if log_probs is None:
        raise ValueError('log_probs: given None, allowed with kind "true": the log-probabilities of one example')
    number = jax.tree.leaves(examples)[0].shape[0]
    log_probabilities = jax.lax.map(lambda example: log_probs(params, example), examples, batch_size=at_once)
    if key is not None:
        sampled = jax.random.categorical(key, log_probabilities)
        return _sum_over_examples(function, jnp.square, params, (examples, sampled), "example", weights, at_once)
    if log_probabilities.ndim != 2:
        raise ValueError(
            f"key: given None for labels of shape {log_probabilities.shape[1:-1]}, allowed: a key to draw them with"
        )
    classes = log_probabilities.shape[1]
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, classes, axis=0), examples)
    all_labels = jnp.tile(jnp.arange(classes), number)
    example_weights = jnp.ones(number) if weights is None else weights
    chances = (example_weights[:, None] * jnp.exp(log_probabilities)).reshape(-1)
    sums, _ = _sum_over_examples(function, jnp.square, params, (repeated, all_labels), "example", chances, at_once)
    return sums, jnp.sum(example_weights)


def sensitivity(
    outputs: Outputs,
    params: Any,
    examples: Any,
    *,
    kind: str = "example",
    weights: Float[Array, " examples"] | None = None,
    at_once: int = 1,
) -> tuple[Any, Float[Array, ""]]:
    """Sums the importances of MAS, `|d ||outputs(params, example)||^2 / d params|`, over examples, and returns two
    values: the sums as a tree like `params`, and their divisor. `kind` is "example" or "batch".

    Memory aware synapses, Aljundi et al. 2018, https://arxiv.org/abs/1711.09601. It needs no labels, so examples may
    come from wherever the model is used.

    Args:
      outputs: `outputs(params, example)` returns the outputs of one example before a softmax.
      params: Parameters to differentiate by.
      examples: Tree of arrays `[examples, ...]`.
      kind: "example": absolute values of each example's gradient, as in the paper. "batch": absolute values of the mean
        gradient of all examples, as in Avalanche, in which examples of opposite sign cancel.
      weights: Weight of each example, 1 or 0 for padding. None for 1.
      at_once: Number of examples whose gradients are computed side by side, a divisor of the number of examples.

    Returns:
      Sums in at least float32, and their divisor. See `fisher`.

    Raises:
      ValueError: the kind is unknown, or `at_once` does not divide the number of examples.

    Example:
      >>> total, number = sensitivity(lambda params, x: params * x, jnp.array(3.0), jnp.array([1.0, -2.0]))
      >>> float(total / number), (2 * 3 * 1**2 + 2 * 3 * 2**2) / 2
      (15.0, 15.0)
    """
    if kind not in KINDS:
        raise ValueError(f"kind: given {kind!r}, allowed: {', '.join(KINDS)}")
    norm = lambda params, example: jnp.sum(jnp.square(_wide(outputs(params, example))))
    return _sum_over_examples(norm, jnp.abs, params, examples, kind, weights, at_once)


def init_path(params: Any) -> Any:
    """Makes the path of SI at the beginning of a task: a tree of zeros like `params`."""
    return jax.tree.map(lambda leaf: jnp.zeros_like(_wide(leaf)), params)


def accumulate_path(path: Any, before: Any, after: Any, gradients: Any) -> Any:
    """Adds an update to the path of SI and returns the new path: each parameter's share in the fall of the loss,
    `path - gradients * (after - before)`. `before` and `after` are parameters.

    Synaptic intelligence, Zenke et al. 2017, https://arxiv.org/abs/1703.04200. `after` contains everything that the
    update did with the gradient, such as Adam or clipping.

    Args:
      path: Path after the update before, or from `init_path`.
      before: Parameters before the update.
      after: Parameters after the update.
      gradients: Gradients of the loss of the task at `before`, without those of the penalty. Subtract
        `jax.grad(quadratic_penalty)` if they contain it.
    """
    step = lambda total, old, new, gradient: total - _wide(gradient) * (_wide(new) - _wide(old))
    return jax.tree.map(step, path, before, after, gradients)


def path_importance(path: Any, start: Any, end: Any, *, damping: float = 0.1) -> Any:
    """Computes the importances of SI after a task, `max(path, 0) / ((end - start)^2 + damping)`, a tree like the
    parameters `start` before and `end` after the task.

    A parameter along which the loss rose gets 0, because a negative importance would push it away from its anchor.

    Args:
      path: Path of the whole task (`accumulate_path`).
      start: Parameters before the task. Copy them if updates donate them.
      end: Parameters after the task.
      damping: Constant that bounds the importance of parameters that hardly moved (the paper's xi), above 0.
    """
    if not damping > 0:
        raise ValueError(f"damping: given {damping}, allowed: above 0")
    return jax.tree.map(
        lambda total, old, new: jnp.maximum(total, 0) / ((_wide(new) - _wide(old)) ** 2 + damping), path, start, end
    )


def _sum_over_examples(
    function: Outputs,
    measure: Callable[[Array], Array],
    params: Any,
    examples: Any,
    kind: str,
    weights: Array | None,
    at_once: int,
) -> tuple[Any, Array]:
    """Sums `measure` of the gradients of a scalar function over examples. Returns the sums and their divisor."""
    number = jax.tree.leaves(examples)[0].shape[0]
    weights = jnp.ones(number) if weights is None else weights
    measure_tree = lambda gradient: jax.tree.map(lambda leaf: measure(_wide(leaf)), gradient)
    per_example = jax.vmap(function, in_axes=(None, 0))
    if kind == "batch":
        shares = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)
        mean = lambda params: jnp.sum(jnp.where(weights > 0, shares * per_example(params, examples), 0))
        return measure_tree(jax.grad(mean)(params)), jnp.any(weights > 0).astype(weights.dtype)
    if at_once < 1 or number % at_once:
        raise ValueError(f"at_once: given {at_once}, allowed: a divisor of the {number} examples")
    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, at_once, *leaf.shape[1:]), (examples, weights))

    def body(sums: Any, group: Any) -> tuple[Any, None]:
        values, weight = jax.vmap(lambda example: measure_tree(jax.grad(function)(params, example)))(group[0]), group[1]

        def add(total: Array, leaf: Array) -> Array:
            factor = weight.reshape(-1, *[1] * (leaf.ndim - 1))
            return total + jnp.sum(jnp.where(factor > 0, factor * leaf, 0), axis=0)

        return jax.tree.map(add, sums, values), None

    return jax.lax.scan(body, init_path(params), groups)[0], jnp.sum(weights)


def _wide(leaf: Any) -> Array:
    """Converts to at least float32, because squares of small gradients vanish in less."""
    return jnp.asarray(leaf).astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _copy_wide(leaf: Any) -> Array:
    """Copies to at least float32: an anchor in the buffer of the parameters would be donated with them."""
    return jnp.array(_wide(leaf), copy=True)
