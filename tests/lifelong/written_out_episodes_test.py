"""OML-ER, MAML-ER and ANML-ER, end to end in float64, against their papers' equations written out in NumPy."""

import math

import jax
import numpy as np
import pytest

from memjax.config import ANML, MAML, OML, Adam, EpisodicMemory
from tests.lifelong.learner_cases import ROWS
from tests.lifelong.written_out import (
    RATE,
    SEED,
    assert_params,
    batches_of,
    draw_for_test,
    draw_replay,
    join,
    start_of,
    stream_in_float64,
)
from tests.reference.adaptation import descend, gradient_through
from tests.reference.perceptron import GATE, step

pytestmark = pytest.mark.slow

STEPS, INNER_RATE, INTERVAL, SHARE, CAPACITY = 2, 0.5, 16, 0.5, 64
"""batches of a support (m), rate of the inner loop (alpha), R_I, r, rows of the memory"""
ADAPTED = {OML: lambda path: path.startswith("head/"), MAML: lambda path: True, ANML: lambda path: path not in GATE}
DECAYS, EPSILON = (0.9, 0.999), 2**-8


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def adam(params, slopes):
    """Adam after all the gradients so far (Kingma and Ba 2015)."""
    first, second = ({path: np.zeros_like(leaf) for path, leaf in params.items()} for _ in range(2))
    (b1, b2), number = DECAYS, len(slopes)
    for slope in slopes:
        first = {path: b1 * leaf + (1 - b1) * slope[path] for path, leaf in first.items()}
        second = {path: b2 * leaf + (1 - b2) * slope[path] ** 2 for path, leaf in second.items()}
    direction = {
        path: leaf / (1 - b1**number) / (np.sqrt(second[path] / (1 - b2**number)) + EPSILON)
        for path, leaf in first.items()
    }
    return step(params, direction, RATE)


def support_of(batches):
    """Rows, classes and weights of each step: a batch that is not full weighs its share of rows."""
    return [(rows.x, rows.y, np.full(len(rows.y), 1 / ROWS)) for rows in batches]


CASES = {
    "oml": (OML, {}),
    "oml_second_order": (OML, {"first_order": False}),
    "oml_summed": (OML, {"replay_loss_reduction": "sum"}),
    "oml_kept": (OML, {"last_episode": "kept"}),
    "oml_adam": (OML, {}),
    "maml": (MAML, {}),
    "maml_second_order": (MAML, {"first_order": False, "last_episode": "kept"}),
    "anml": (ANML, {}),
    "anml_second_order": (ANML, {"first_order": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_episode_learns_its_query_after_an_inner_loop_over_its_support(case):
    kind, options = CASES[case]
    method = kind(
        memory=EpisodicMemory(write_policy="all", capacity=CAPACITY),
        replay_interval=INTERVAL,
        replay_rate=SHARE,
        inner_steps=STEPS,
        inner_learning_rate=INNER_RATE,
        **options,
    )
    training = {"optimizer": Adam(eps=EPSILON)} if case == "oml_adam" else {}
    gate_dim = 4 if kind is ANML else 0
    _, played = stream_in_float64(method, gate_dim=gate_dim, epochs=2, training=training)
    params, memory, slopes = start_of(played), [], []
    how = {"rate": INNER_RATE, "second_order": not options.get("first_order", True), "adapted": ADAPTED[kind]}
    frequency, replayed = math.ceil((INTERVAL / ROWS + 1) / (STEPS + 1)), int(SHARE * INTERVAL)
    for number, (name, batch) in enumerate(played.updates):
        support = batches_of(batch)
        if (number + 1) % frequency == 0:
            assert name == "replay"
            written = join(memory)
            query = written.take(draw_replay(played, number, len(written.y), CAPACITY, replayed))
            factor = replayed / ROWS if "replay_loss_reduction" in options else 1.0
            memory += support
        else:
            assert name == "stream"
            memory += support
            *support, query = support
            factor = len(query.y) / ROWS
        slope = gradient_through(params, support_of(support), (query.x, query.y), **how)
        slopes.append({path: factor * leaf for path, leaf in slope.items()})
        params = adam(params, slopes) if training else step(params, slopes[-1], RATE)
    assert_params(played.state.params, params)
    written = join(memory)
    rows = written.take(draw_for_test(played, len(written.y), CAPACITY, STEPS * ROWS))
    batches = [rows.take(slice(start, start + ROWS)) for start in range(0, STEPS * ROWS, ROWS)]
    answers = descend(params, support_of(batches), rate=INNER_RATE, adapted=ADAPTED[kind])[-1]
    assert_params(played.learner.evaluation_variables(played.state, SEED)["params"], answers)
