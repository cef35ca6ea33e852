"""What an update makes small: the loss of one segment, losses laid over it, and the one division at the end."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.functional.divergence import divergence_sum
from memjax.typing import Aux, Batch, SegmentLoss, Sum

__all__ = ["Objective", "model_loss", "with_distillation", "with_penalty"]

RANDOM_STREAMS = ("dropout", "memory", "features")
COLLECTIONS = ("params", "tables", "batch_stats", "constants", "sinks")
"""what a model is applied with; `method` stands beside them in the variables of a loss"""

Reduction = Callable[[Sequence[Sum]], Sum]
"""the auxiliary losses of one name, one for each layer that has it, as one"""


def mean_over_layers(losses: Sequence[Sum]) -> Sum:
    """Totals and weights added: the mean over the layers and positions of all.

    Example:
      >>> float(mean_over_layers([Sum(4.0, 2.0), Sum(2.0, 2.0)]).mean())
      1.5
    """
    first, *rest = losses
    for loss in rest:
        first = first + loss
    return first


def sum_over_layers(losses: Sequence[Sum]) -> Sum:
    """The mean over positions of each layer, added up.

    Example:
      >>> float(sum_over_layers([Sum(4.0, 2.0), Sum(2.0, 2.0)]).mean())
      3.0
    """
    both = mean_over_layers(losses)
    return Sum(both.total, both.weight / len(losses))


OVER_LAYERS: dict[str, Reduction] = {"sum": sum_over_layers, "mean": mean_over_layers}
"""reductions by the names that settings give them"""


class Objective(NamedTuple):
    """The sum of the negative log likelihoods of all rows and segments, divided once by the number of scored targets,
    plus each auxiliary loss, so divided too, times its coefficient.

    Attributes:
      loss: of one segment.
      coefficients: name -> coefficient of each of `Aux.losses`, without `layer_<index>/`; 0 logs it only.
      reduction: of a loss that several layers have.
    """

    loss: SegmentLoss
    coefficients: Mapping[str, float] = {}
    reduction: Reduction = sum_over_layers

    def losses(self, aux: Aux) -> dict[str, Sum]:
        """The auxiliary losses by name, those of all layers (`layer_<index>/name`) as one."""
        layers: dict[str, list[Sum]] = {}
        for name, value in aux.losses.items():
            layers.setdefault(re.sub(r"^layer_\d+/", "", name), []).append(value)
        return {name: self.reduction(values) for name, values in layers.items()}

    def divisors(self, nll: Sum, aux: Aux) -> dict[str, Array]:
        """What the sums were summed over, without gradient; they add over row groups.

        Raises:
          ValueError: a loss without coefficient, or a coefficient without loss.
        """
        losses = self.losses(aux)
        if set(losses) != set(self.coefficients):
            raise ValueError(
                f"coefficients: given {sorted(self.coefficients)}, allowed: one for each loss of the model, "
                f"{sorted(losses)}; 0 logs a loss without training on it"
            )
        weights = {"nll": nll.weight, **{f"losses/{name}": value.weight for name, value in losses.items()}}
        return jax.lax.stop_gradient(weights)

    def value(self, nll: Sum, aux: Aux, divisors: Mapping[str, Array]) -> Array:
        """The share of these sums in the objective; nothing is divided by 0 where nothing was summed."""
        divisors = {name: jnp.where(weight > 0, weight, 1) for name, weight in divisors.items()}
        value = nll.total / divisors["nll"]
        for name, loss in self.losses(aux).items():
            if self.coefficients[name]:
                value += self.coefficients[name] * loss.total / divisors[f"losses/{name}"]
        return value


def model_loss(model: Any, *, deterministic: bool = False, output: bool = False) -> SegmentLoss:
    """The negative log likelihood of a model, in training mode.

    Args:
      model: a Linen model.
      deterministic: in evaluation mode.
      output: leave what the model gave in `Aux.arrays["output"]`, for a loss that is laid over this one.
    """

    def loss(variables: Mapping[str, Any], memory: Any, segment: Batch, key: Array) -> tuple[Any, Any, Sum, Aux]:
        variables = model_collections(variables)
        rngs = {name: jax.random.fold_in(key, i) for i, name in enumerate(RANDOM_STREAMS)}
        named = {"deterministic": deterministic, "rngs": rngs, "mutable": ["batch_stats"]}
        (hidden, memory, aux), written = read_segment(model, variables, memory, segment, **named)
        nll = model.apply(variables, hidden, segment.targets, segment.weights, method="nll")
        aux = aux + Aux(arrays={"output": hidden}) if output else aux
        return memory, written.get("batch_stats", {}), nll, aux

    return loss


def read_segment(model: Any, variables: Any, memory: Any, segment: Batch, **named: Any) -> Any:
    """What the model makes of a segment; `named` are further arguments of `model.apply`."""
    extras = model.choose_extras(segment.extras)
    named |= {"start_of_document": segment.start_of_document, "mask": segment.mask}
    named |= {"extras": extras} if extras else {}
    return model.apply(variables, segment.inputs, memory, **named)


def model_collections(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a loss that a model is applied with: all but `method`, which Linen would take for its own."""
    return {name: value for name, value in variables.items() if name in COLLECTIONS}


def with_penalty(loss: SegmentLoss, name: str, penalty: Callable[[Any, Any], Array]) -> SegmentLoss:
    """A loss with a penalty on the parameters beside it; penalties may be laid over one another.

    Args:
      loss: of one segment.
      name: of the penalty in `Aux.losses`; `Objective.coefficients` has its strength.
      penalty: `penalty(params, method) -> scalar`; `method` is `TrainState.method`.

    Example:
      >>> plain = lambda variables, memory, segment, key: (memory, {}, Sum(0.0, 1.0), Aux())
      >>> decayed = with_penalty(plain, "size", lambda params, method: jnp.sum((params - method) ** 2))
      >>> variables = {"params": jnp.array([1.0, 2.0]), "method": jnp.array([1.0, 0.0])}
      >>> segment = Batch(*[jnp.zeros((2, 4))] * 4, jnp.zeros(2))
      >>> float(decayed(variables, None, segment, jax.random.key(0))[3].losses["size"].mean())
      4.0
    """

    def penalised(variables: Mapping[str, Any], memory: Any, segment: Batch, key: Array) -> tuple[Any, Any, Sum, Aux]:
        memory, batch_stats, nll, aux = loss(variables, memory, segment, key)
        value = penalty(variables["params"], variables.get("method", {}))
        return memory, batch_stats, nll, aux + Aux({name: Sum(value, jnp.ones_like(value))})

    return penalised


def with_distillation(
    loss: SegmentLoss, name: str, model: Any, teacher: Callable[[Any], Mapping[str, Any]], *, temperature: float = 1.0
) -> SegmentLoss:
    """A loss with the divergence of a teacher's distribution from the model's beside it, at every scored target.

    It is `temperature ** 2 * KL(teacher || model)` of distributions that `temperature` has flattened (Hinton et al.
    2015, https://arxiv.org/abs/1503.02531). The teacher reads the memory that the model reads.

    Args:
      loss: `model_loss(model, output=True)`, or what is laid over it.
      name: of the divergence in `Aux.losses`.
      model: the Linen model, of the teacher too.
      teacher: `teacher(method) -> variables`, where `method` is `TrainState.method`; no gradient reaches them.
      temperature: divides the scores of both.
    """

    def distilled(variables: Mapping[str, Any], memory: Any, segment: Batch, key: Array) -> tuple[Any, Any, Sum, Aux]:
        after, batch_stats, nll, aux = loss(variables, memory, segment, key)
        arrays = dict(aux.arrays)
        student, own = arrays.pop("output"), model_collections(variables)
        frozen = jax.lax.stop_gradient({**own, **teacher(variables.get("method", {}))})
        output, _, _ = read_segment(model, frozen, jax.lax.stop_gradient(memory), segment, deterministic=True)
        ours = model.apply(own, student, method="log_probs")
        theirs = model.apply(frozen, output, method="log_probs")
        found = divergence_sum(theirs, ours, segment.weights, temperature=temperature)
        return after, batch_stats, nll, Aux(aux.losses, aux.metrics, arrays) + Aux({name: found})

    return distilled
