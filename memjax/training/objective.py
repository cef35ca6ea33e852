"""Training objectives: the loss of one segment, penalties and distillation added to it, and their weighted sum.

All sums over rows and segments are divided once, at the end.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.functional.divergence import divergence_sum
from memjax.models.heads import CLASSES
from memjax.training.trained_parameters import fill_in
from memjax.typing import Aux, Batch, SegmentLoss, WeightedSum

__all__ = ["Objective", "model_loss", "with_distillation", "with_penalty"]

RANDOM_STREAMS = ("dropout", "memory", "features")
COLLECTIONS = ("params", "tables", "batch_stats", "constants", "sinks")
"""Linen collections that a model is applied with. The variables of a loss also contain `method`."""

Reduction = Callable[[Sequence[WeightedSum]], WeightedSum]
"""Function that combines the auxiliary losses of one name, one for each layer that has it, into one."""


def mean_over_layers(losses: Sequence[WeightedSum]) -> WeightedSum:
    """Combines the losses of several layers, a `WeightedSum` each, into one whose mean is over all positions of all
    layers.

    Example:
      >>> float(mean_over_layers([WeightedSum(4.0, 2.0), WeightedSum(2.0, 2.0)]).mean())
      1.5
    """
    first, *rest = losses
    for loss in rest:
        first = first + loss
    return first


def sum_over_layers(losses: Sequence[WeightedSum]) -> WeightedSum:
    """Combines the losses of several layers, a `WeightedSum` each, into one whose mean is the sum of their means over
    positions, if all layers have the same weight.

    Example:
      >>> float(sum_over_layers([WeightedSum(4.0, 2.0), WeightedSum(2.0, 2.0)]).mean())
      3.0
    """
    mean = mean_over_layers(losses)
    return WeightedSum(mean.total, mean.weight / len(losses))


OVER_LAYERS: dict[str, Reduction] = {"sum": sum_over_layers, "mean": mean_over_layers}
"""Reductions over layers by their names in the settings."""


class Objective(NamedTuple):
    """A training objective: the mean negative log-likelihood of the targets plus weighted auxiliary losses.

    The mean is over the scored targets of all rows and segments of a batch. Each auxiliary loss is divided by its total
    weight in the batch and multiplied by its coefficient.

    Attributes:
      loss: Loss of one segment.
      coefficients: Coefficient of each auxiliary loss by name. The names are those in `Aux.losses` without
        `layer_<index>/`. 0 logs a loss without training on it.
      reduction: Function that combines the auxiliary losses of one name from several layers into one.
    """

    loss: SegmentLoss
    coefficients: Mapping[str, float] = {}
    reduction: Reduction = sum_over_layers

    def losses(self, aux: Aux) -> dict[str, WeightedSum]:
        """Returns the auxiliary losses in `aux`, a `WeightedSum` by name, after combining those of all layers
        (`layer_<index>/name`).
        """
        layers: dict[str, list[WeightedSum]] = {}
        for name, value in aux.losses.items():
            layers.setdefault(re.sub(r"^layer_\d+/", "", name), []).append(value)
        return {name: self.reduction(values) for name, values in layers.items()}

    def divisors(self, nll: WeightedSum, aux: Aux) -> dict[str, Array]:
        """Returns the weights that the sums of the negative log-likelihood (`nll`) and of the auxiliary losses are
        divided by, by name and without gradient.

        The weights of several row groups add.

        Raises:
          ValueError: A loss has no coefficient, or a coefficient has no loss.
        """
        losses = self.losses(aux)
        if set(losses) != set(self.coefficients):
            raise ValueError(
                f"coefficients: given {sorted(self.coefficients)}, allowed: one for each loss of the model, "
                f"{sorted(losses)}; 0 logs a loss without training on it"
            )
        weights = {"nll": nll.weight, **{f"losses/{name}": value.weight for name, value in losses.items()}}
        return jax.lax.stop_gradient(weights)

    def value(self, nll: WeightedSum, aux: Aux, divisors: Mapping[str, Array]) -> Array:
        """Returns the contribution of `nll` and the auxiliary losses to the objective, a scalar: each sum is divided by
        its weight in `divisors`, where 0 counts as 1, and each auxiliary loss multiplied by its coefficient.

        Args:
          nll: Sum of the negative log-likelihoods.
          aux: Auxiliary losses.
          divisors: Weights that the sums are divided by, from `divisors`, added over row groups.
        """
        divisors = {name: jnp.where(weight > 0, weight, 1) for name, weight in divisors.items()}
        value = nll.total / divisors["nll"]
        for name, loss in self.losses(aux).items():
            if self.coefficients[name]:
                value += self.coefficients[name] * loss.total / divisors[f"losses/{name}"]
        return value


def model_loss(model: Any, *, deterministic: bool = False, output: bool = False) -> SegmentLoss:
    """Makes a function `loss(variables, memory, segment, key) -> (memory, batch_stats, nll, aux)` of the negative
    log-likelihood of a segment. With `output` the output of the model is added to `aux.arrays`.

    Args:
      model: Linen model.
      deterministic: Whether to apply the model in evaluation mode, without dropout. By default it is in training mode.
      output: Whether to return the output of the model as `Aux.arrays["output"]`, for a loss that wraps this one.
    """

    def loss(
        variables: Mapping[str, Any], memory: Any, segment: Batch, key: Array
    ) -> tuple[Any, Any, WeightedSum, Aux]:
        variables = model_collections(variables)
        rngs = {name: jax.random.fold_in(key, i) for i, name in enumerate(RANDOM_STREAMS)}
        options = {"deterministic": deterministic, "rngs": rngs, "mutable": ["batch_stats"]}
        (hidden, memory, aux), written = read_segment(model, variables, memory, segment, **options)
        nll = model.apply(variables, hidden, segment.targets, segment.weights, method="nll")
        aux = aux + Aux(arrays={"output": hidden}) if output else aux
        return memory, written.get("batch_stats", {}), nll, aux

    return loss


def read_segment(model: Any, variables: Any, memory: Any, segment: Batch, **options: Any) -> Any:
    """Applies a model to one `segment` (a `Batch` without an axis of segments), and returns the result of
    `model.apply`: output, next memory and `Aux`. `options` are further keyword arguments of `model.apply`.
    """
    extras = model.select_extras(segment.extras)
    options |= {"start_of_document": segment.start_of_document, "mask": segment.mask}
    options |= {"extras": extras} if extras else {}
    return model.apply(variables, segment.inputs, memory, **options)


def model_collections(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the collections in the variables of a loss that a model is applied with, such as `params`. The entry
    `method` is left out.
    """
    # Linen would take `method` for a collection of the model.
    return {name: value for name, value in variables.items() if name in COLLECTIONS}


def with_penalty(loss: SegmentLoss, name: str, penalty: Callable[[Any, Any], Array]) -> SegmentLoss:
    """Returns a segment loss that adds a penalty on the parameters to the auxiliary losses of `loss`, under `name`.
    `penalty(params, method)` computes it, a scalar, from the parameters and the state of a learning method.

    Several penalties can be added one after the other.

    Args:
      loss: Loss of one segment.
      name: Name of the penalty in `Aux.losses`. `Objective.coefficients` holds its strength under this name.
      penalty: Function `penalty(params, method) -> scalar`, where `method` is `TrainState.method`.

    Example:
      >>> plain = lambda variables, memory, segment, key: (memory, {}, WeightedSum(0.0, 1.0), Aux())
      >>> decayed = with_penalty(plain, "size", lambda params, method: jnp.sum((params - method) ** 2))
      >>> variables = {"params": jnp.array([1.0, 2.0]), "method": jnp.array([1.0, 0.0])}
      >>> segment = Batch(*[jnp.zeros((2, 4))] * 4, jnp.zeros(2))
      >>> float(decayed(variables, None, segment, jax.random.key(0))[3].losses["size"].mean())
      4.0
    """

    def loss_with_penalty(
        variables: Mapping[str, Any], memory: Any, segment: Batch, key: Array
    ) -> tuple[Any, Any, WeightedSum, Aux]:
        memory, batch_stats, nll, aux = loss(variables, memory, segment, key)
        value = penalty(variables["params"], variables.get("method", {}))
        return memory, batch_stats, nll, aux + Aux({name: WeightedSum(value, jnp.ones_like(value))})

    return loss_with_penalty


def with_distillation(
    loss: SegmentLoss,
    name: str,
    model: Any,
    teacher: Callable[[Any], Mapping[str, Any]],
    *,
    temperature: float = 1.0,
    classes: Callable[[Any], Array] | None = None,
) -> SegmentLoss:
    """Returns a segment loss with an auxiliary loss `name` beside those of `loss`: the divergence of the model from a
    teacher at every scored target. `teacher(method)` returns the variables of the teacher.

    It is `temperature ** 2 * KL(teacher || model)` of distributions that `temperature` has flattened (Hinton et al.
    2015, https://arxiv.org/abs/1503.02531). The teacher reads the same memory as the model.

    Args:
      loss: Loss of one segment, `model_loss(model, output=True)` or a loss that wraps it.
      name: Name of the distillation loss in `Aux.losses`. `Objective.coefficients` holds its strength under this name.
      model: Linen model. The teacher has the same architecture.
      teacher: Function `teacher(method) -> variables`, where `method` is `TrainState.method`. It returns the variables
        of the teacher that differ from those of the model, or all. No gradient reaches them.
      temperature: Temperature that the logits of the model and the teacher are divided by.
      classes: Function `classes(method) -> mask`, bool `[classes]`, of the classes that both distributions are over,
        whatever classes the extra `CLASSES` of a row allows. None for all that it allows.
    """

    def loss_with_distillation(
        variables: Mapping[str, Any], memory: Any, segment: Batch, key: Array
    ) -> tuple[Any, Any, WeightedSum, Aux]:
        after, batch_stats, nll, aux = loss(variables, memory, segment, key)
        arrays, method = dict(aux.arrays), variables.get("method", {})
        student_output, student = arrays.pop("output"), model_collections(variables)
        frozen = jax.lax.stop_gradient(fill_in(teacher(method), student))
        if classes is not None and CLASSES in segment.extras:
            extras = {extra: array for extra, array in segment.extras.items() if extra != CLASSES}
            segment = dataclasses.replace(segment, extras=extras)
            student_output, _, _ = read_segment(model, student, memory, segment, deterministic=True)
        output, _, _ = read_segment(model, frozen, jax.lax.stop_gradient(memory), segment, deterministic=True)
        student_log_probs = model.apply(student, student_output, method="log_probs")
        teacher_log_probs = model.apply(frozen, output, method="log_probs")
        options = {"temperature": temperature, "classes": None if classes is None else classes(method)}
        divergence = divergence_sum(teacher_log_probs, student_log_probs, segment.weights, **options)
        return after, batch_stats, nll, Aux(aux.losses, aux.metrics, arrays) + Aux({name: divergence})

    return loss_with_distillation
