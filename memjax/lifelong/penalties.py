"""Quadratic penalties that keep parameters near where earlier tasks have left them, and what they are weighed by.

============  ==================================================================  =========================
method        importance of a parameter                                           from
============  ==================================================================  =========================
EWC           its Fisher information (`fisher`)                                   data of the task, after it
MAS           how strongly the outputs depend on it (`sensitivity`)               the same, without labels
SI            its share in the fall of the loss (`accumulate_path`, then          every step of the task
              `path_importance`)
============  ==================================================================  =========================

All then go the same way: `consolidate` after a task, `quadratic_penalty` during the next ones. Two arrays of the size
of the parameters are kept, however many tasks there are, and no examples.

What they can do: hold a model near a solution of tasks that share one, each with a head of its own, or with inputs that
change under equal classes. What they cannot: a stream of new classes in one head. Its loss never shows two tasks'
classes together, so nothing tells them apart, and weights at which the old ones survive are weights at which the new
ones are not learned (van de Ven and Tolias 2019, https://arxiv.org/abs/1904.07734); that takes replay. Importances are
local: far from the anchor they say nothing.

Functions take one example at a time, without an axis for it, and any tree of parameters: hand in those that are
trained. Evaluate without dropout.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.typing import tree_dataclass

__all__ = [
    "ImportanceState",
    "accumulate_path",
    "consolidate",
    "fisher",
    "init_consolidated",
    "init_path",
    "path_importance",
    "quadratic_penalty",
    "sensitivity",
]

Outputs = Callable[[Any, Any], Array]
"""`outputs(params, example) -> array`"""
FISHERS = ("true", "example", "batch")
KINDS = ("example", "batch")


@tree_dataclass
class ImportanceState:
    """What earlier tasks have left; of each task in the separate form, of all together in the online one.

    The penalty around task t, `sum_i F_ti (theta_i - theta*_ti)^2 / 2`, is a quadratic form; the sum over tasks is one
    too, and these are its coefficients, so that memory does not grow with tasks.

    Attributes:
      importance: of each parameter, `sum_t F_t` (the paper's F), in at least float32.
      anchor: the parameters that it is around: `sum_t F_t theta*_t / sum_t F_t`, the last ones where F is 0.
      constant: scalar, what the penalty is at the anchor: `sum_ti F_ti (anchor_i - theta*_ti)^2`.
    """

    importance: Any
    anchor: Any
    constant: Any


def init_consolidated(params: Any) -> ImportanceState:
    """Before the first task: a penalty of 0 everywhere."""
    zeros = lambda: jax.tree.map(lambda leaf: jnp.zeros_like(_wide(leaf)), params)
    return ImportanceState(zeros(), zeros(), jnp.zeros(()))


def quadratic_penalty(params: Any, kept: ImportanceState) -> Float[Array, ""]:
    """`sum_t sum_i F_ti (theta_i - theta*_ti)^2 / 2`.

    The factor 1/2 is that of EWC's paper. Those of MAS and SI have none, nor has Avalanche in any: their strength is
    half of the one to multiply this with.

    Raises:
      ValueError: a parameter of another shape than what is kept of it, which would broadcast.
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
    """What is kept after one more task, in arrays of its own: none is one of `params`.

    Args:
      kept: after the tasks before.
      information: the importances of the task, such as its Fisher information.
      params: the parameters that it has left.
      decay: None = the sum of the penalties around each task; else all information, `decay` of the earlier one, around
        these parameters. MAS and SI have 1, online EWC its gamma.
      share: with `decay`, of the task's information that is added. MAS as Avalanche has it mixes: decay 1/2 and share
        1/2, but share 1 after the first task.

    Raises:
      ValueError: `share` without `decay`.

    Example:
      >>> kept = ImportanceState(jnp.array([1.0]), jnp.array([0.0]), jnp.array(0.0))
      >>> both = consolidate(kept, jnp.array([3.0]), jnp.array([4.0]))
      >>> float(quadratic_penalty(jnp.array([2.0]), both)), (1 * 2**2 + 3 * 2**2) / 2
      (8.0, 8.0)
    """
    if decay is not None:
        add = lambda old, new: decay * old + (new if share == 1 else share * new)
        importance = jax.tree.map(add, kept.importance, information)
        return ImportanceState(importance, jax.tree.map(_own, params), jnp.zeros_like(kept.constant))
    if share != 1:
        raise ValueError(f"share: given {share} without decay, allowed: 1, or a decay beside it")
    importance = jax.tree.map(jnp.add, kept.importance, information)
    part = jax.tree.map(
        lambda new, both: jnp.where(both > 0, new / jnp.where(both > 0, both, 1), 1), information, importance
    )
    anchor = jax.tree.map(lambda old, leaf, part: old + part * (leaf - old), kept.anchor, params, part)
    apart = lambda old, part, anchor, leaf: jnp.sum(old * part * (leaf - anchor) ** 2)
    between = jax.tree.leaves(jax.tree.map(apart, kept.importance, part, kept.anchor, params))
    return ImportanceState(importance, anchor, kept.constant + sum(between))


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
    """The diagonal of the Fisher information of EWC, added up over examples; and over how many.

    Kirkpatrick et al. 2017, https://arxiv.org/abs/1612.00796; online, Schwarz et al. 2018,
    https://arxiv.org/abs/1805.06370. The kinds have scales of their own, so a strength that was found with one does not
    hold for another: "batch" is smaller than the others by about the number of examples.

    Args:
      log_likelihood: `log_likelihood(params, example, label) -> scalar`.
      params: what it is differentiated by.
      examples: tree of `[examples, ...]`; a batch as `kind="batch"` has it is all of them.
      labels: `[examples, ...]`, not read by "true".
      kind: "true": squared gradients under the model's own labels, the Fisher information of the paper; "example": of
        each example under its label, the empirical one; "batch": the square of the mean gradient of all, which is what
        Avalanche and LAMOL's code compute.
      log_probs: of "true": `log_probs(params, example) -> [classes]`, or `[*positions, classes]`.
      key: of "true": one label is drawn of each example; None = the expectation over all classes, exact, at the price
        of as many backward passes.
      weights: 1 = the example counts, 0 = it is not there; None = all count.
      at_once: examples whose gradients are held side by side; a divisor of their number.

    Returns:
      Sums in at least float32, and what to divide them by: the weight of the examples, or of "batch" 1 (0 without any).

    Raises:
      ValueError: another kind; "true" without `log_probs`, or without `key` where a label is more than one class; an
        `at_once` that does not divide.

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
        return _sums(function, jnp.square, params, (examples, labels), kind, weights, at_once)
    if log_probs is None:
        raise ValueError('log_probs: given None, allowed with kind "true": the log-probabilities of one example')
    number = jax.tree.leaves(examples)[0].shape[0]
    found = jax.lax.map(lambda example: log_probs(params, example), examples, batch_size=at_once)
    if key is not None:
        drawn = jax.random.categorical(key, found)
        return _sums(function, jnp.square, params, (examples, drawn), "example", weights, at_once)
    if found.ndim != 2:
        raise ValueError(f"key: given None for labels of shape {found.shape[1:-1]}, allowed: a key to draw them with")
    classes = found.shape[1]
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, classes, axis=0), examples)
    every = jnp.tile(jnp.arange(classes), number)
    ones = jnp.ones(number) if weights is None else weights
    chances = (ones[:, None] * jnp.exp(found)).reshape(-1)
    sums, _ = _sums(function, jnp.square, params, (repeated, every), "example", chances, at_once)
    return sums, jnp.sum(ones)


def sensitivity(
    outputs: Outputs,
    params: Any,
    examples: Any,
    *,
    kind: str = "example",
    weights: Float[Array, " examples"] | None = None,
    at_once: int = 1,
) -> tuple[Any, Float[Array, ""]]:
    """The importances of MAS, `|d ||outputs||^2 / d theta|`, added up over examples; and over how many.

    Memory aware synapses, Aljundi et al. 2018, https://arxiv.org/abs/1711.09601. No labels: examples may come from
    where the model is used.

    Args:
      outputs: of one example, before a softmax.
      params: what it is differentiated by.
      examples: tree of `[examples, ...]`.
      kind: "example": absolute values of each example's gradient, as the paper has it; "batch": of the mean gradient
        of all, as Avalanche has it, in which examples of opposite sign cancel.
      weights: as in `fisher`.
      at_once: as in `fisher`.

    Returns:
      Sums and what to divide them by, as in `fisher`.

    Raises:
      ValueError: another kind, an `at_once` that does not divide.

    Example:
      >>> total, number = sensitivity(lambda params, x: params * x, jnp.array(3.0), jnp.array([1.0, -2.0]))
      >>> float(total / number), (2 * 3 * 1**2 + 2 * 3 * 2**2) / 2
      (15.0, 15.0)
    """
    if kind not in KINDS:
        raise ValueError(f"kind: given {kind!r}, allowed: {', '.join(KINDS)}")
    norm = lambda params, example: jnp.sum(jnp.square(_wide(outputs(params, example))))
    return _sums(norm, jnp.abs, params, examples, kind, weights, at_once)


def init_path(params: Any) -> Any:
    """The path of SI at the beginning of a task: zeros."""
    return jax.tree.map(lambda leaf: jnp.zeros_like(_wide(leaf)), params)


def accumulate_path(path: Any, before: Any, after: Any, gradients: Any) -> Any:
    """The path of SI after one more update: each parameter's share in the fall of the loss, `-g (after - before)`.

    Synaptic intelligence, Zenke et al. 2017, https://arxiv.org/abs/1703.04200. Whatever rule made the update of the
    gradient, Adam or clipping, is in `after`.

    Args:
      path: from `init_path` at the beginning of the task, or the update before.
      before: the parameters before the update.
      after: the parameters after it.
      gradients: of the loss at `before`: the task's own, without the penalty (whose gradient is
        `jax.grad(quadratic_penalty)` and can be taken off).
    """
    step = lambda total, old, new, gradient: total - _wide(gradient) * (_wide(new) - _wide(old))
    return jax.tree.map(step, path, before, after, gradients)


def path_importance(path: Any, start: Any, end: Any, *, damping: float = 0.1) -> Any:
    """The importances of SI after a task: `max(path, 0) / ((end - start)^2 + damping)`.

    A parameter along which the loss rose counts as 0; a negative importance would push it away from its anchor.

    Args:
      path: gathered over the task.
      start: the parameters before the task (a copy, where updates donate them).
      end: the parameters after it.
      damping: the paper's xi, above 0: a bound for parameters that hardly moved.
    """
    if not damping > 0:
        raise ValueError(f"damping: given {damping}, allowed: above 0")
    return jax.tree.map(
        lambda total, old, new: jnp.maximum(total, 0) / ((_wide(new) - _wide(old)) ** 2 + damping), path, start, end
    )


def _sums(
    function: Outputs,
    measure: Callable[[Array], Array],
    params: Any,
    examples: Any,
    kind: str,
    weights: Array | None,
    at_once: int,
) -> tuple[Any, Array]:
    """`measure` of the gradients of a scalar function of examples, added up by their weights; and the weight."""
    number = jax.tree.leaves(examples)[0].shape[0]
    weights = jnp.ones(number) if weights is None else weights
    measured = lambda gradient: jax.tree.map(lambda leaf: measure(_wide(leaf)), gradient)
    over = jax.vmap(function, in_axes=(None, 0))
    if kind == "batch":
        shares = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)
        mean = lambda params: jnp.sum(jnp.where(weights > 0, shares * over(params, examples), 0))
        return measured(jax.grad(mean)(params)), jnp.any(weights > 0).astype(weights.dtype)
    if at_once < 1 or number % at_once:
        raise ValueError(f"at_once: given {at_once}, allowed: a divisor of the {number} examples")
    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, at_once, *leaf.shape[1:]), (examples, weights))

    def body(sums: Any, group: Any) -> tuple[Any, None]:
        found, weight = jax.vmap(lambda example: measured(jax.grad(function)(params, example)))(group[0]), group[1]

        def add(total: Array, leaf: Array) -> Array:
            each = weight.reshape(-1, *[1] * (leaf.ndim - 1))
            return total + jnp.sum(jnp.where(each > 0, each * leaf, 0), axis=0)

        return jax.tree.map(add, sums, found), None

    return jax.lax.scan(body, init_path(params), groups)[0], jnp.sum(weights)


def _wide(leaf: Any) -> Array:
    """In at least float32: squares of small gradients vanish in less."""
    return jnp.asarray(leaf).astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _own(leaf: Any) -> Array:
    """A copy in at least float32: an anchor in the buffer of the parameters would be donated with them."""
    return jnp.array(_wide(leaf), copy=True)
