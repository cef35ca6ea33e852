"""Counts the updates of a stage, for components whose effect changes while a task is learned.

A method with such components has `UPDATE_COUNTER` as its last component, and is made by `count_updates`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from memjax.lifelong.components import Component
from memjax.lifelong.method_interface import Method
from memjax.training.stages import PhaseContext, PhaseResult, Stage
from memjax.training.train_state import TrainState

SPAN = "span"
"""Name in `TrainState.method` of the updates that the stage has made and will make in all, int32 `[2]`."""


UPDATE_COUNTER = Component(
    SPAN,
    init=lambda params: jnp.zeros(2, jnp.int32),
    after_update=lambda progress, before, after, gradients: progress.at[0].add(1),
)
"""A component that counts the updates of a stage for other components that read them."""


def count_updates(method: Method) -> Method:
    """Returns a method with `UPDATE_COUNTER` with stages that count their updates from 0. For methods with one stage
    for each task.
    """
    return method._replace(stages=lambda task, stage: [count_stage_updates(stage)])


def count_stage_updates(stage: Stage) -> Stage:
    """Returns a stage that, when it begins, sets the count of its updates in the train state to 0 and stores there how
    many it will make.
    """

    def before(state: TrainState, context: PhaseContext) -> PhaseResult:
        change = stage.before(state, context)
        steps = stage.steps if isinstance(stage.steps, int) else stage.steps(change.state)
        method = {**change.state.method, SPAN: jnp.array([0, steps], jnp.int32)}
        return change._replace(state=dataclasses.replace(change.state, method=method))

    return stage._replace(before=before)


def fraction_done(method: Mapping[str, Any]) -> Any:
    """Returns the fraction of the stage's updates that were made, a float scalar from 0 to 1. `method` is the state of
    the method, which counts them.

    Args:
      method: State of the method, with the count under `SPAN`.

    Example:
      >>> print(fraction_done({SPAN: jnp.array([1, 4])}), fraction_done({SPAN: jnp.array([0, 0])}))
      0.25 0.0
    """
    done, total = method[SPAN]
    return jnp.minimum(done / jnp.maximum(total, 1), 1.0)
