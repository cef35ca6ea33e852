"""Progressive networks: a new column of layers for every task, which reads those of all earlier ones.

Rusu et al. 2016, https://arxiv.org/abs/1606.04671. The network is `memjax.models.progressive_network.Columns`; with
one column it
is the column alone. Earlier columns stay as they are, bit for bit, and a task is answered by its own: nothing is
forgotten, and parameters grow with the square of the number of tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from memjax import config as configs
from memjax.lifelong.basic_methods import TOLD_BORDERS
from memjax.lifelong.components import Component
from memjax.lifelong.composition import chain_components, freeze_parameters
from memjax.lifelong.method_interface import Method, ModelGrowth, Phase, TaskInfo
from memjax.training.experiment import Experiment
from memjax.training.sharding import Layout
from memjax.training.stages import Learner, PhaseContext, PhaseResult
from memjax.training.train_state import TrainState, init_variables, model_variables
from memjax.training.update_functions import MakeObjective, make_objective

COLUMNS = "lifelong.method.num_columns"
"""Name of the setting in a growth history that holds the number of columns."""


def progressive(settings: configs.ProgressiveNetwork) -> Method:
    """Makes the `Method` of progressive networks, which adds a column of layers before every task but the first."""

    def before(task: TaskInfo) -> Phase:
        if settings.num_columns != 1:
            raise ValueError(
                f"lifelong.method.num_columns: given {settings.num_columns}, allowed: 1 where a run begins"
            )
        return lambda state, context: _with_column(task, state, context, 1 + task.index)

    rule = Component("progressive", requirements=TOLD_BORDERS._replace(tasks_in_evaluation=True))
    growth = ModelGrowth(
        lambda index, config, lineage, key: {COLUMNS: 1 + index} if index else None,
        lambda small, big, fields: grow(big, learner(big, None, make_objective), jax.random.key(0)),
    )
    return chain_components(rule)._replace(learner=learner, before=before, growth=growth)


def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
    """Makes the learner of a progressive network, which trains the newest column and freezes all earlier ones.
    `objective(config, model)` makes the objective of an update.
    """
    settings = experiment.config.lifelong
    assert settings is not None
    number = settings.method.num_columns
    earlier = tuple(f"columns_{column}/" for column in range(number - 1))
    # Matrices into a column are called by what stands in front of it.
    into = tuple(f"laterals_{column}/" for column in range(number - 2))
    return chain_components().learner(freeze_parameters(experiment, (*earlier, *into)), layout, objective)


def _with_column(task: TaskInfo, state: TrainState, context: PhaseContext, number: int) -> PhaseResult:
    """Grows the state to `number` columns, the newest one with new parameters. The first task keeps its state."""
    if not task.index:
        return PhaseResult(state, context.lineage)
    lineage = (*context.lineage, {COLUMNS: number})
    big = task.experiment.with_growth(lineage)
    changed = grow(big, learner(big, context.layout, make_objective), context.key)(state)
    context.report(f"{number} columns")
    return PhaseResult(changed, lineage)


def grow(big: Experiment, made: Learner, key: Any) -> Callable[[TrainState], TrainState]:
    """Returns a function that maps the train state of a network to that of the experiment `big`, which has one column
    more. `made` is the learner of `big`, `key` the random key of new parameters.

    Args:
      big: Experiment of the network with the new column.
      made: Learner of the network with the new column.
      key: Random key of the new parameters.
    """
    number = big.config.num_columns

    def change(state: TrainState) -> TrainState:
        fresh = init_variables(big.model, key, big.config.data.segment_length)
        variables = {name: dict(tree) for name, tree in fresh.items()}
        for name, tree in model_variables(state).items():
            if name in variables:
                variables[name] |= tree if number > 2 else {"columns_0": tree}
        return dataclasses.replace(made.init(variables), step=state.step, key=state.key)

    return change
