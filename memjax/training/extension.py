"""Describes the extension of a run, which is trained for more steps than it was started with."""

import dataclasses

from memjax.settings.training import Training
from memjax.training.update_functions import make_schedule


def describe_extension(training: Training, before: int, step: int) -> str:
    """Describes in one line that a run has `training.steps` steps instead of `before`, and how its learning rate jumps
    after `step` steps.

    Args:
      training: Settings of the run, with the new number of steps.
      before: Number of steps that the run was started with.
      step: Number of steps done.

    Example:
      >>> longer = Training(steps=400, gradient_accumulation_steps=2)
      >>> print(describe_extension(longer, before=300, step=300).split(";")[0])
      training.steps: 400 instead of 300
    """
    text = f"training.steps: {training.steps} instead of {before}"
    if training.schedule.decay not in ("cosine", "linear"):
        return text
    updates = -(-step // training.gradient_accumulation_steps)
    old, new = make_schedule(dataclasses.replace(training, steps=before)), make_schedule(training)
    return (
        f"{text}; the learning rate goes on from {float(new(updates)):.4g}, where the schedule over all steps is; "
        f"it had come to {float(old(updates)):.4g}"
    )
