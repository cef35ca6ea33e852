"""Optimisers and learning-rate schedules of the papers, built as chains of optax transformations."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import DictKey
from jaxtyping import Array

from memjax import config as configs

__all__ = ["ReferenceGradients", "adafactor", "adam", "make_optimizer", "make_schedule", "make_matrix_mask"]

Schedule = Callable[[Any], Any]
"""Learning rate as a function `schedule(step)` of the number of optimiser steps already done."""


class ReferenceGradients(NamedTuple):
    """Functions that compute gradients of reference losses, for gradient transformations that project a gradient, such
    as GEM's.

    They are functions and are computed when a transformation calls them. All trees have the structure of the updates
    that the transformation receives: they contain the trained parameters only.

    Attributes:
      gradient: Function `gradient(name)`, which computes the gradient of one reference loss.
      dots: Function `dots(direction) -> [losses]`, which computes the inner product of each gradient with a direction
        in one forward pass.
      weighted_gradient: Function `weighted_gradient(weights)`, which computes the sum of the gradients times `weights`,
        `[losses]`, in one backward pass.
      gradients: Function `gradients()`, which computes all gradients, with a leading axis of losses in each leaf.
      share: Factor, above 0, that the updates were multiplied by, such as the share of a batch that has rows. What is
        not proportional to the updates is computed for those of a whole batch.
    """

    # Functions and not arrays: all gradients need be held at once only if a transformation asks for all of them.

    gradient: Callable[[str], Any]
    dots: Callable[[Any], Array]
    weighted_gradient: Callable[[Array], Any]
    gradients: Callable[[], Any]
    share: Any = 1.0


def make_reference_gradients(
    losses: Callable[[Any], Mapping[str, Array]], params: Any, gradients: Callable[[], Any] | None = None
) -> ReferenceGradients:
    """Makes the reference gradients of `losses(params) -> {name: scalar}` at the given parameters. `gradients` is a
    function that computes all of them, or None.

    Args:
      losses: Function `losses(params) -> {name: scalar}`, which computes the reference losses.
      params: Parameters to differentiate at, a tree of arrays.
      gradients: Function `gradients()`, which computes all gradients, with a leading axis of losses in each leaf. None
        differentiates `losses`, which costs one backward pass through all losses for each of them.

    Example:
      >>> losses = lambda params: {"a": 3 * params["x"], "b": params["x"] ** 2}
      >>> reference = make_reference_gradients(losses, {"x": jnp.array(2.0)})
      >>> float(reference.gradient("b")["x"]), reference.dots({"x": jnp.array(10.0)}).tolist()
      (4.0, [30.0, 40.0])
      >>> float(reference.weighted_gradient(jnp.array([1.0, 0.5]))["x"])
      5.0
    """
    stacked = lambda params: jnp.stack(list(losses(params).values()))
    return ReferenceGradients(
        gradient=lambda name: jax.grad(lambda params: losses(params)[name])(params),
        dots=lambda direction: jax.jvp(stacked, (params,), (direction,))[1],
        weighted_gradient=lambda weights: jax.grad(lambda params: jnp.dot(weights, stacked(params)))(params),
        gradients=gradients or (lambda: jax.jacrev(stacked)(params)),
    )


def make_schedule(
    learning_rate: float, *, steps: int, warmup_steps: int = 0, decay: str = "cosine", final_fraction: float = 0.0
) -> Schedule:
    """Makes a learning-rate schedule, a function of the number of optimiser steps: a linear warm-up from 0 to the peak
    `learning_rate`, then a decay ('constant', 'cosine', 'linear' or 'rsqrt').

    Args:
      learning_rate: Peak learning rate.
      steps: Optimiser steps of the whole run. Cosine and linear decay end there.
      warmup_steps: Optimiser steps of the warm-up. 0 for no warm-up.
      decay: Shape of the decay: "constant", "cosine", "linear", or "rsqrt". "rsqrt" is
        `learning_rate * sqrt(warmup_steps / step)`, the factor of T5 and the Memorizing Transformer.
      final_fraction: Final learning rate of cosine and linear decay, as a fraction of the peak, from 0 to 1.

    Returns:
      Function from the number of optimiser steps done to the learning rate, a float32 scalar.

    Raises:
      ValueError: Unknown `decay`.

    Example:
      >>> schedule = make_schedule(1.0, steps=100, warmup_steps=4, decay="rsqrt")
      >>> [float(schedule(step)) for step in (0, 2, 4, 16)]
      [0.0, 0.5, 1.0, 0.5]
    """
    if decay not in ("constant", "cosine", "linear", "rsqrt"):
        raise ValueError(f"decay: given {decay!r}, allowed: constant, cosine, linear, rsqrt")

    def schedule(step: Any) -> Array:
        step = jnp.asarray(step, jnp.float32)
        progress = jnp.clip((step - warmup_steps) / max(steps - warmup_steps, 1), 0.0, 1.0)
        match decay:
            case "constant":
                factor = jnp.ones_like(step)
            case "linear":
                factor = 1.0 - (1.0 - final_fraction) * progress
            case "cosine":
                factor = final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
            case "rsqrt":
                factor = jnp.sqrt(max(warmup_steps, 1) / jnp.maximum(step, max(warmup_steps, 1)))
        return learning_rate * jnp.where(step < warmup_steps, step / max(warmup_steps, 1), factor)

    return schedule


def adam(
    schedule: Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decay_mask: Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """Makes the Adam optimiser of optax. With `weight_decay` it is AdamW (Loshchilov & Hutter 2019), which decays only
    matrices unless there is a `decay_mask`. `schedule` is the learning rate as a function of the step.

    Args:
      schedule: Learning rate as a function of the step.
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment.
      eps: Constant that is added to the square root of the second moment.
      weight_decay: Strength of the decoupled weight decay, which is multiplied by the learning rate. 0 for no decay.
      decay_mask: Function from the parameters to a tree with one bool per leaf, True for leaves that are decayed. None
        decays matrices only (`make_matrix_mask`).
    """
    decay = (
        optax.add_decayed_weights(weight_decay, mask=decay_mask or make_matrix_mask())
        if weight_decay
        else optax.identity()
    )
    return optax.chain(optax.scale_by_adam(b1=b1, b2=b2, eps=eps), decay, optax.scale_by_learning_rate(schedule))


def adafactor(
    schedule: Schedule, *, decay_rate: float = 0.8, momentum: float = 0.0, multiply_by_parameter_scale: bool = True
) -> optax.GradientTransformation:
    """Makes the Adafactor optimiser (Shazeer & Stern 2018) as T5X and the Memorizing Transformer use it. `schedule` is
    the learning rate as a function of the step, by default relative to the scale of the parameters.

    The update of each leaf is clipped to a root mean square of 1. The second moment is factored over the two largest
    axes of a leaf if both have at least 128 entries. Scales and clipping are per leaf, so that the layers of a scanned
    group share them, as in T5X.

    Args:
      schedule: Learning rate as a function of the step. With `multiply_by_parameter_scale` it is relative to the scale
        of the parameters.
      decay_rate: Exponent of the decay of the second moment, whose decay rate is `1 - step ** -decay_rate`.
      momentum: Decay rate of the first moment. 0 for no first moment.
      multiply_by_parameter_scale: Whether to multiply the update of each leaf by the root mean square of the leaf, at
        least 1e-3.
    """
    return optax.adafactor(
        schedule,
        decay_rate=decay_rate,
        momentum=momentum or None,
        multiply_by_parameter_scale=multiply_by_parameter_scale,
    )


def make_transformation(
    rule: configs.Adam | configs.Adafactor | configs.SGD, schedule: Schedule, scanned: Sequence[str] = ()
) -> optax.GradientTransformation:
    """Makes the optimiser that settings (`rule`) describe: Adam, Adafactor or SGD. Weight decay does not count axis 0
    as an axis in the parameter groups named in `scanned`, where it is the layers.

    Args:
      rule: Settings of the optimiser.
      schedule: Learning rate as a function of the step.
      scanned: Names of the parameter groups whose leaves have layers at axis 0. See `make_matrix_mask`.

    Raises:
      ValueError: Settings of an unknown optimiser.
    """
    match rule:
        case configs.Adam():
            return adam(schedule, **dataclasses.asdict(rule), decay_mask=make_matrix_mask(scanned))
        case configs.Adafactor():
            return adafactor(schedule, **dataclasses.asdict(rule))
        case configs.SGD():
            return optax.sgd(schedule, momentum=rule.momentum or None, nesterov=rule.nesterov)
    raise ValueError(f"training.optimizer: given {type(rule).__name__}, allowed: Adam, Adafactor, SGD")


def make_optimizer(
    rule: optax.GradientTransformation,
    *,
    clip_norm: float = 0.0,
    gradient_accumulation_steps: int = 1,
    transformations: Sequence[optax.GradientTransformation] = (),
) -> optax.GradientTransformation:
    """Wraps an optimiser of optax (`rule`): averages gradients over `gradient_accumulation_steps` steps, applies
    `transformations` to the gradient in order, and clips its norm before the optimiser receives it.

    With `gradient_accumulation_steps` above 1, `update(..., finish=True)` ends an accumulation window early. It applies
    the mean of the gradients in the window and ignores the gradient that it is called with. An empty window changes
    nothing.

    Args:
      rule: Optimiser to wrap: `adam(...)`, `adafactor(...)` or any transformation of optax.
      clip_norm: Largest global norm of the gradient. Larger gradients are scaled down. 0 for no clipping.
      gradient_accumulation_steps: Number of steps whose gradients are averaged before one update.
      transformations: Gradient transformations of optax to apply in order before clipping. Their `update` may take the
        keyword argument `reference`, a `ReferenceGradients`.
    """
    optimizer = optax.chain(optax.clip_by_global_norm(clip_norm), rule) if clip_norm else rule
    optimizer = optax.chain(*transformations, optimizer) if transformations else optimizer
    if gradient_accumulation_steps == 1:
        return optimizer
    steps: Any = optax.MultiSteps(optimizer, every_k_schedule=gradient_accumulation_steps)

    def update(updates: Any, state: Any, params: Any = None, *, finish: bool = False, **others: Any) -> tuple[Any, Any]:
        if not finish:
            return steps.update(updates, state, params, **others)
        is_started, rule = state.mini_step > 0, optax.with_extra_args_support(optimizer)
        updates, inner = rule.update(state.acc_grads, state.inner_opt_state, params, **others)
        empty = jax.tree.map(jnp.zeros_like, state.acc_grads)
        new = state._replace(
            mini_step=jnp.zeros_like(state.mini_step),
            gradient_step=optax.safe_increment(state.gradient_step),
            inner_opt_state=inner,
            acc_grads=empty,
        )
        select = lambda a, b: jax.tree.map(lambda x, y: jnp.where(is_started, x, y), a, b)
        return select(updates, empty), select(new, state)

    # The method of `MultiSteps` that makes a transformation would lose the reference gradients.
    return optax.GradientTransformationExtraArgs(steps.init, update)


def count_applied_steps(state: optax.OptState) -> Any:
    """Counts the steps that an optimiser has applied since its state began, as its schedule counts them, an int32
    scalar. 0 if it has no schedule. Steps that were skipped or only accumulated do not count.

    Args:
      state: State of an optimiser, which may contain those of others.
    """
    is_schedule = lambda part: isinstance(part, optax.ScaleByScheduleState)
    counts = [part.count for part in jax.tree.leaves(state, is_leaf=is_schedule) if is_schedule(part)]
    return counts[0] if counts else 0


def scale_updates(names: Collection[str], factor: float) -> optax.GradientTransformation:
    """Makes a transformation that multiplies the updates of the parameters and modules in `names` by a factor, which
    gives them a separate learning rate.

    Args:
      names: Names of parameters or modules. All parameters below a named module are included.
      factor: Ratio of their learning rate to that of the other parameters.

    Example:
      >>> rule = scale_updates(["memory"], 5.0)
      >>> gradients = {"memory": {"gate": jnp.ones(())}, "query": jnp.ones(())}
      >>> updates, _ = rule.update(gradients, rule.init(gradients))
      >>> float(updates["memory"]["gate"]), float(updates["query"])
      (5.0, 1.0)
    """
    chosen = lambda path, _: any(isinstance(key, DictKey) and key.key in names for key in path)
    return optax.masked(optax.scale(factor), lambda params: jax.tree_util.tree_map_with_path(chosen, params))


def freeze_parameters(
    rule: optax.GradientTransformation, is_frozen: Callable[[str], bool]
) -> optax.GradientTransformation:
    """Restricts an optimiser (`rule`) to the parameters that are not frozen. `is_frozen(path)` says of the path of a
    parameter, with `/` between its parts, whether it is frozen.

    Frozen parameters keep their values bit for bit. They have no weight decay and no moments, do not count in the
    gradient norm, and are hidden from the gradient transformations in `rule`, also in `ReferenceGradients`.

    Args:
      rule: Optimiser of the parameters that are not frozen.
      is_frozen: Function from the path of a parameter, such as `stack/layers_3/keys`, to whether it is frozen.
    """

    def labels(params: Any) -> Any:
        return jax.tree.map(lambda frozen: "frozen" if frozen else "trained", map_paths(is_frozen, params))

    split: Any = optax.multi_transform({"trained": rule, "frozen": optax.set_to_zero()}, labels)

    def update(updates: Any, state: Any, params: Any = None, **others: Any) -> tuple[Any, Any]:
        if "reference" in others:
            others["reference"] = _trained_part(others["reference"], labels(updates), updates)
        return split.update(updates, state, params, **others)

    return optax.GradientTransformationExtraArgs(split.init, update)


def _trained_part(reference: ReferenceGradients, labels: Any, updates: Any) -> ReferenceGradients:
    """Restricts reference gradients to the trained parameters, in trees as `optax.multi_transform` passes them on."""
    trained = jax.tree.map(lambda label: label == "trained", labels)
    select = lambda tree: jax.tree.map(
        lambda is_trained, leaf: leaf if is_trained else optax.MaskedNode(), trained, tree
    )
    fill_with_zeros = lambda tree: jax.tree.map(
        lambda is_trained, leaf, like: leaf if is_trained else jnp.zeros_like(like), trained, tree, updates
    )
    return ReferenceGradients(
        gradient=lambda name: select(reference.gradient(name)),
        dots=lambda direction: reference.dots(fill_with_zeros(direction)),
        weighted_gradient=lambda weights: select(reference.weighted_gradient(weights)),
        gradients=lambda: select(reference.gradients()),
        share=reference.share,
    )


def map_paths(function: Callable[[str], Any], tree: Any) -> Any:
    """Applies a function to the path of every leaf of a tree, with `/` between its parts, and returns the tree of its
    results.

    Example:
      >>> map_paths(str.upper, {"stack": {"keys": 1}})
      {'stack': {'keys': 'STACK/KEYS'}}
    """
    path_name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    return jax.tree_util.tree_map_with_path(lambda path, _: function(path_name(path)), tree)


def is_named(path: str, names: Collection[str]) -> bool:
    """Returns whether the path of a parameter, such as `stack/layers_3/keys`, contains one of `names` as a part of its
    text.

    Example:
      >>> is_named("stack/layers_3/feed_forward/memory/keys", ["feed_forward/memory/"])
      True
    """
    return any(name in path for name in names)


def make_matrix_mask(scanned: Collection[str] = ()) -> Callable[[Any], Any]:
    """Makes a mask for weight decay, a function from parameters to bools, True for matrices and False for vectors and
    scalars. In the parameter groups named in `scanned` axis 0, the layers, does not count.

    Args:
      scanned: Names of the parameter groups whose leaves have layers at axis 0, such as `layers_2`. This axis does not
        count as a dimension.

    Returns:
      Function from the parameters to a tree with one bool per leaf.

    Example:
      >>> make_matrix_mask(["layers_0"])({"layers_0": {"bias": jnp.zeros((4, 8))}, "embedding": jnp.zeros((16, 8))})
      {'embedding': True, 'layers_0': {'bias': False}}
    """
    is_scanned = lambda path: any(isinstance(key, DictKey) and key.key in scanned for key in path)
    is_matrix = lambda path, leaf: leaf.ndim - is_scanned(path) >= 2
    return lambda params: jax.tree_util.tree_map_with_path(is_matrix, params)
