"""Elastic weight consolidation: a quadratic penalty around the parameters that earlier tasks have left.

Kirkpatrick et al. 2017, https://arxiv.org/abs/1612.00796, and its online form, Schwarz et al. 2018,
https://arxiv.org/abs/1805.06370.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from memjax.lifelong.contract import Method, Phase
from memjax.lifelong.fisher import fisher_information
from memjax.lifelong.penalties import Consolidated, consolidate, init_consolidated, quadratic_penalty
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeObjective, plain_learner
from memjax.training.objective import Objective, with_penalty
from memjax.training.sharding import Layout
from memjax.training.stages import Change, Context, Learner
from memjax.training.step import TrainState

__all__ = ["Consolidated", "consolidate", "quadratic_penalty"]

PENALTY = "ewc/penalty"


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

        return plain_learner(experiment, layout, penalised, method=init_consolidated)

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
