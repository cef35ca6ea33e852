"""Optimisers and learning-rate schedules of the papers, as optax chains."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from memjax import config as configs

__all__ = ["ReferenceGradients", "adafactor", "adam", "make_optimizer", "make_schedule", "make_matrix_mask"]

Schedule = Callable[[Any], Any]


class ReferenceGradients(NamedTuple):
    """Gradients of other losses, for links that project a gradient: worked out when a link asks.

    Functions instead of arrays, so that as many gradients as there are losses need be held at once only where a link
    asks for all. They speak of trees of the structure of the updates that the link gets: of the trained parameters
    alone.

    Attributes:
      gradient: `gradient(name)`, that of one loss.
      dots: `dots(direction) -> [losses]`, the inner product of each gradient with a direction, in one forward pass.
      weighted_gradient: `weighted_gradient(weights)`, the gradients times `[losses]` weights, added, in one backward
        pass.
      gradients: `gradients()`, all of them, with an axis of losses in front of each leaf.
    """

    gradient: Callable[[str], Any]
    dots: Callable[[Any], Array]
    weighted_gradient: Callable[[Array], Any]
    gradients: Callable[[], Any]


def make_reference_gradients(
    losses: Callable[[Any], Mapping[str, Array]], params: Any, gradients: Callable[[], Any] | None = None
) -> ReferenceGradients:
    """The reference to some losses at these parameters.

    Args:
      losses: `losses(params) -> {name: scalar}`.
      params: the parameters.
      gradients: of the reference, where there is a cheaper way than through all losses for each.

    Example:
      >>> losses = lambda params: {"a": 3 * params["x"], "b": params["x"] ** 2}
      >>> reference = make_reference(losses, {"x": jnp.array(2.0)})
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
    """The learning rate over optimiser steps: linear from 0 during the warm-up, then `decay`.

    Args:
      learning_rate: the peak.
      steps: optimiser steps of the whole run, where cosine and linear decay end.
      warmup_steps: steps of the warm-up; 0 = none.
      decay: "constant", "cosine", "linear", or "rsqrt", which is `learning_rate * sqrt(warmup_steps / step)`, the
        factor of T5 and the Memorizing Transformer.
      final_fraction: of the peak, where cosine and linear decay end.

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
    """Adam; with `weight_decay` AdamW (Loshchilov & Hutter 2019).

    Args:
      schedule: learning rate of a step.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: decoupled decay, multiplied by the learning rate.
      decay_mask: params -> bool per leaf, which are decayed; `make_matrix_mask()` if None.
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
    """Adafactor (Shazeer & Stern 2018) as T5X and the Memorizing Transformer use it: updates clipped to RMS 1 per leaf.

    The two largest axes of a leaf are factored where both are at least 128. Scales and clipping are per leaf, so the
    layers of a scanned group share them (T5X does the same).

    Args:
      schedule: learning rate of a step, relative to the parameters' scale where `multiply_by_parameter_scale`.
      decay_rate: the second moment decays by `1 - step ** -decay_rate`.
      momentum: decay of the first moment; 0 = none.
      multiply_by_parameter_scale: steps relative to the RMS of each leaf, at least 1e-3.
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
    """The update rule that a configuration describes; `scanned` as in `make_matrix_mask`.

    Raises:
      ValueError: another kind of rule.
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
    apply_every: int = 1,
    links: Sequence[optax.GradientTransformation] = (),
) -> optax.GradientTransformation:
    """An update rule behind links and gradient clipping, applied to the mean gradient of every `apply_every` steps.

    With `apply_every` above 1, `update(..., finish=True)` ends a window early: the rule is applied to the mean of
    the gradients in it, and the given gradient does not count. An empty window changes nothing.

    Args:
      rule: `adam(...)`, `adafactor(...)` or any other of optax.
      clip_norm: largest global norm of the gradient that reaches the rule; 0 = no clipping.
      apply_every: steps whose gradients are averaged before one update.
      links: what a learner does to the gradient before it is clipped: transformations of optax whose `update` may take
        `reference`, a `ReferenceGradients`.
    """
    optimizer = optax.chain(optax.clip_by_global_norm(clip_norm), rule) if clip_norm else rule
    optimizer = optax.chain(*links, optimizer) if links else optimizer
    if apply_every == 1:
        return optimizer
    steps: Any = optax.MultiSteps(optimizer, every_k_schedule=apply_every)

    def update(updates: Any, state: Any, params: Any = None, *, finish: bool = False, **others: Any) -> tuple[Any, Any]:
        if not finish:
            return steps.update(updates, state, params, **others)
        some, rule = state.mini_step > 0, optax.with_extra_args_support(optimizer)
        updates, inner = rule.update(state.acc_grads, state.inner_opt_state, params, **others)
        empty = jax.tree.map(jnp.zeros_like, state.acc_grads)
        new = state._replace(
            mini_step=jnp.zeros_like(state.mini_step),
            gradient_step=optax.safe_increment(state.gradient_step),
            inner_opt_state=inner,
            acc_grads=empty,
        )
        select = lambda a, b: jax.tree.map(lambda x, y: jnp.where(some, x, y), a, b)
        return select(updates, empty), select(new, state)

    return optax.GradientTransformationExtraArgs(steps.init, update)  # its own method would lose the reference


def scale_updates(names: Collection[str], factor: float) -> optax.GradientTransformation:
    """Multiplies the updates of some parameters: after a rule, a learning rate of their own.

    Args:
      names: of parameters or modules; what stands below one of them counts.
      factor: their learning rate over that of the others.

    Example:
      >>> rule = scale_updates(["memory"], 5.0)
      >>> gradients = {"memory": {"gate": jnp.ones(())}, "query": jnp.ones(())}
      >>> updates, _ = rule.update(gradients, rule.init(gradients))
      >>> float(updates["memory"]["gate"]), float(updates["query"])
      (5.0, 1.0)
    """
    chosen = lambda path, _: any(getattr(key, "key", None) in names for key in path)
    return optax.masked(optax.scale(factor), lambda params: jax.tree_util.tree_map_with_path(chosen, params))


def freeze_parameters(
    rule: optax.GradientTransformation, names: Collection[str], beginnings: tuple[str, ...] = ()
) -> optax.GradientTransformation:
    """A rule for all parameters but those whose path contains one of `names`, or begins with one of `beginnings`.

    These stay as they are, bit for bit: no decay, no moments, no part in the norm that is clipped, nor in what a link
    of the rule sees of updates and `ReferenceGradients`.

    Args:
      rule: of the other parameters.
      names: parts of paths, such as `feed_forward/memory/`.
      beginnings: of paths.
    """

    def labels(params: Any) -> Any:
        where = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
        stays = lambda name: is_named(name, names) or name.startswith(beginnings)
        label = lambda path, _: "frozen" if stays(where(path)) else "trained"
        return jax.tree_util.tree_map_with_path(label, params)

    split: Any = optax.multi_transform({"trained": rule, "frozen": optax.set_to_zero()}, labels)

    def update(updates: Any, state: Any, params: Any = None, **others: Any) -> tuple[Any, Any]:
        if "reference" in others:
            others["reference"] = _trained_part(others["reference"], labels(updates), updates)
        return split.update(updates, state, params, **others)

    return optax.GradientTransformationExtraArgs(split.init, update)


def _trained_part(reference: ReferenceGradients, labels: Any, updates: Any) -> ReferenceGradients:
    """A reference that speaks of trees as `optax.multi_transform` hands them to the rule of the trained parameters."""
    trained = jax.tree.map(lambda label: label == "trained", labels)
    cut = lambda tree: jax.tree.map(lambda kept, leaf: leaf if kept else optax.MaskedNode(), trained, tree)
    whole = lambda tree: jax.tree.map(
        lambda kept, leaf, like: leaf if kept else jnp.zeros_like(like), trained, tree, updates
    )
    return ReferenceGradients(
        gradient=lambda name: cut(reference.gradient(name)),
        dots=lambda direction: reference.dots(whole(direction)),
        weighted_gradient=lambda weights: cut(reference.weighted_gradient(weights)),
        gradients=lambda: cut(reference.gradients()),
    )


def is_named(path: str, names: Collection[str]) -> bool:
    """Whether a path contains one of `names`.

    Example:
      >>> is_named("stack/layers_3/feed_forward/memory/keys", ["feed_forward/memory/"])
      True
    """
    return any(name in path for name in names)


def make_matrix_mask(scanned: Collection[str] = ()) -> Callable[[Any], Any]:
    """A decay mask: True for matrices, False for vectors and scalars.

    Args:
      scanned: names of the groups whose leaves have layers at axis 0 (`layers_2`): that axis does not count.

    Example:
      >>> matrices(["layers_0"])({"layers_0": {"bias": jnp.zeros((4, 8))}, "embedding": jnp.zeros((16, 8))})
      {'embedding': True, 'layers_0': {'bias': False}}
    """
    is_matrix = lambda path, leaf: leaf.ndim - any(getattr(key, "key", None) in scanned for key in path) >= 2
    return lambda params: jax.tree_util.tree_map_with_path(is_matrix, params)
