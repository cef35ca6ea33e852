"""Warm-ups that are as long as their run are said."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.config import Config, Schedule, Training
from memjax.settings.checks import warnings


def lines_of(steps: int, warmup: int, apply_every: int = 1) -> list[str]:
    training = Training(steps=steps, gradient_accumulation_steps=apply_every, schedule=Schedule(warmup_steps=warmup))
    return [line for line in warnings(Config(training=training)) if "warmup_steps" in line]


@pytest.mark.parametrize(
    "steps, warmup, apply_every",
    [(100, 100, 1), (99, 100, 1), (1, 1, 1), (50, 5000, 1), (400, 100, 4), (397, 100, 4)],
)
def test_a_warm_up_that_never_ends_is_said_with_the_rate_at_the_end(steps, warmup, apply_every):
    (line,) = lines_of(steps, warmup, apply_every)
    updates = -(-steps // apply_every)
    assert line.startswith(f"training.schedule.warmup_steps: given {warmup}, the run has {updates} optimiser updates")
    assert line.endswith(f"a rate of {1e-3 * (updates - 1) / warmup:.4g} instead of 0.001")


@pytest.mark.parametrize("steps, warmup, apply_every", [(101, 100, 1), (1, 0, 1), (1000, 100, 1), (401, 100, 4)])
def test_a_warm_up_that_ends_is_not_mentioned(steps, warmup, apply_every):
    assert not lines_of(steps, warmup, apply_every)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(1, 9))
def test_there_is_a_line_where_the_peak_is_not_reached(steps, warmup, apply_every):
    last = math.ceil(steps / apply_every) - 1
    assert bool(lines_of(steps, warmup, apply_every)) == (warmup > 0 and last < warmup)
