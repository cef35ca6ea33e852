"""Counts the updates of a stage, for components whose effect changes while a task is learned.

A component asks for the count with `memjax.lifelong.components.Component.needs_stage_progress`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from memjax.training.stages import PhaseContext, PhaseResult, Stage
from memjax.training.step import TrainState

__all__ = ["SPAN", "fraction_done", "count_stage_updates"]

SPAN = "span"
"""Name in `TrainState.method` of the updates that the stage has made and will make in all, int32 `[2]`."""


def count_stage_updates(stage: Stage) -> Stage:
    """Returns a stage that sets the count of its updates to 0 when it begins, and stores how many it will make."""

    def before(state: TrainState, context: PhaseContext) -> PhaseResult:
        change = stage.before(state, context)
        steps = stage.steps if isinstance(stage.steps, int) else stage.steps(change.state)
        method = {**change.state.method, SPAN: jnp.array([0, steps], jnp.int32)}
        return change._replace(state=dataclasses.replace(change.state, method=method))

    return stage._replace(before=before)


def fraction_done(method: Mapping[str, Any]) -> Any:
    """Returns the fraction of the updates of the stage that were made, a float scalar from 0 to 1.

    Args:
      method: State of the method, with the count under `SPAN`.

    Example:
      >>> print(fraction_done({SPAN: jnp.array([1, 4])}), fraction_done({SPAN: jnp.array([0, 0])}))
      0.25 0.0
    """
    done, total = method[SPAN]
    return jnp.minimum(done / jnp.maximum(total, 1), 1.0)
