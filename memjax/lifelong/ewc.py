"""Elastic weight consolidation: a quadratic penalty around the parameters that earlier tasks have left.

Kirkpatrick et al. 2017, https://arxiv.org/abs/1612.00796, and its online form, Schwarz et al. 2018,
https://arxiv.org/abs/1805.06370.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.lifelong.contract import Method, Phase
from memjax.lifelong.fisher import fisher_information
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeObjective, plain_learner
from memjax.training.objective import Objective, with_penalty
from memjax.training.sharding import Layout
from memjax.training.stages import Change, Context, Learner
from memjax.training.step import TrainState
from memjax.typing import tree_dataclass

__all__ = ["Consolidated", "consolidate", "quadratic_penalty"]

PENALTY = "ewc/penalty"


@tree_dataclass
class Consolidated:
    """What earlier tasks have left; of each task in the separate form, of all together in the online one.

    The penalty around task t, `sum_i F_ti (theta_i - theta*_ti)^2 / 2`, is a quadratic form; the sum over tasks is one
    too, and these are its coefficients, so that memory does not grow with tasks.

    Attributes:
      importance: of each parameter, `sum_t F_t` (the paper's F).
      anchor: the parameters that it is around: `sum_t F_t theta*_t / sum_t F_t`, the last ones where F is 0.
      constant: scalar, what the penalty is at the anchor: `sum_ti F_ti (anchor_i - theta*_ti)^2`.
    """

    importance: Any
    anchor: Any
    constant: Any


def ewc(
    *, weight: float = 1.0, fisher: str = "example", batches: int = 32, form: str = "separate", decay: float = 1.0
) -> Method:
    """The method.

    Differs from the papers or their code: the Fisher information is the empirical one, with the labels of the data, of
    rows read from an empty memory, of the mean over a row's targets. `fisher="batch"` squares the gradients of whole
    batches, as Avalanche does: smaller by about the number of rows. The factor 1/2 is the paper's (Avalanche has none:
    its weight is half of this one). Tables, which have no dense gradient, are not consolidated.

    Args:
      weight: of the penalty (lambda).
      fisher: "example" or "batch".
      batches: of a task's data, from its beginning.
      form: "separate" penalties around each task, or "online": all around the last.
      decay: online, of the earlier information at each task (gamma).
    """

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        def penalised(config: Any, model: Any) -> Objective:
            plain = objective(config, model)
            loss = with_penalty(plain.loss, PENALTY, quadratic_penalty)
            return plain._replace(loss=loss, coefficients={**plain.coefficients, PENALTY: weight})

        return plain_learner(experiment, layout, penalised, method=_nothing)

    def after(index: int, experiment: Experiment) -> Phase:
        def phase(state: TrainState, context: Context) -> Change:
            squares = jax.jit(lambda state, batch: fisher_information(experiment.model, state, batch, fisher))
            sums: Any = None
            for _, batch in itertools.islice(context.data(), batches):
                context.stop()
                more = squares(state, batch)
                sums = more if sums is None else jax.tree.map(jnp.add, sums, more)
            online = decay if form == "online" else None
            combine = jax.jit(lambda *given: consolidate(*given, decay=online))
            information = jax.tree.map(lambda leaf: leaf / jnp.maximum(sums[1], 1), sums[0])
            method = combine(state.method, information, state.params)
            context.report(f"{PENALTY}: around task {index}, from {int(sums[1])} gradients")
            return Change(dataclasses.replace(state, method=method), context.lineage)

        return phase

    return Method(learner, after=after)


def quadratic_penalty(params: Any, kept: Consolidated) -> Float[Array, ""]:
    """`sum_t sum_i F_ti (theta_i - theta*_ti)^2 / 2`."""
    square = lambda importance, anchor, leaf: jnp.sum(importance * (leaf - anchor) ** 2)
    return (sum(jax.tree.leaves(jax.tree.map(square, kept.importance, kept.anchor, params))) + kept.constant) / 2


def consolidate(kept: Consolidated, information: Any, params: Any, *, decay: float | None = None) -> Consolidated:
    """What is kept after one more task.

    Args:
      kept: after the tasks before.
      information: the Fisher information of the task.
      params: the parameters that it has left.
      decay: None = the sum of the penalties around each task; else all information, `decay` of the earlier one, around
        these parameters.

    Example:
      >>> kept = Consolidated(jnp.array([1.0]), jnp.array([0.0]), jnp.array(0.0))
      >>> both = consolidate(kept, jnp.array([3.0]), jnp.array([4.0]))
      >>> float(quadratic_penalty(jnp.array([2.0]), both)), (1 * 2**2 + 3 * 2**2) / 2
      (8.0, 8.0)
    """
    if decay is not None:
        importance = jax.tree.map(lambda old, new: decay * old + new, kept.importance, information)
        return Consolidated(importance, params, jnp.zeros_like(kept.constant))
    importance = jax.tree.map(jnp.add, kept.importance, information)
    share = jax.tree.map(
        lambda new, both: jnp.where(both > 0, new / jnp.where(both > 0, both, 1), 1), information, importance
    )
    anchor = jax.tree.map(lambda old, leaf, part: old + part * (leaf - old), kept.anchor, params, share)
    apart = lambda old, part, anchor, leaf: jnp.sum(old * part * (leaf - anchor) ** 2)
    between = jax.tree.leaves(jax.tree.map(apart, kept.importance, share, kept.anchor, params))
    return Consolidated(importance, anchor, kept.constant + sum(between))


def _nothing(params: Any) -> Consolidated:
    """Before the first task."""
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)
    return Consolidated(zeros(), zeros(), jnp.zeros(()))
