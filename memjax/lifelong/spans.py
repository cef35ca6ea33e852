"""How far a stage has come, for what changes while a task is learned (`memjax.lifelong.compose.Rule.counts`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from memjax.training.stages import Change, Context, Stage
from memjax.training.step import TrainState

__all__ = ["SPAN", "share_done", "spanned"]

SPAN = "span"
"""in `TrainState.method`: updates of the stage that were made, and how many there are; int32 `[2]`"""


def spanned(stage: Stage) -> Stage:
    """The same, whose updates are counted from its beginning."""

    def before(state: TrainState, context: Context) -> Change:
        change = stage.before(state, context)
        steps = stage.steps if isinstance(stage.steps, int) else stage.steps(change.state)
        method = {**change.state.method, SPAN: jnp.array([0, steps], jnp.int32)}
        return change._replace(state=dataclasses.replace(change.state, method=method))

    return stage._replace(before=before)


def share_done(method: Mapping[str, Any]) -> Any:
    """Float scalar from 0 to 1, of the updates of the stage.

    Example:
      >>> print(share_done({SPAN: jnp.array([1, 4])}), share_done({SPAN: jnp.array([0, 0])}))
      0.25 0.0
    """
    done, total = method[SPAN]
    return jnp.minimum(done / jnp.maximum(total, 1), 1.0)
