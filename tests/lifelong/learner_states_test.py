"""What learners keep of a task whose last batch is partial, against the equations of the papers."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import EWC, MAS, SI, EpisodicMemory, Method, Perceptron
from memjax.lifelong import basic_methods
from memjax.lifelong.basic_methods import make_memory_options
from memjax.lifelong.components import REPLAY, EpisodeOptions, ReplayOptions
from memjax.lifelong.composition import chain_components
from tests.lifelong.learner_cases import ROWS, SIZE, TASKS, config_of, flat, play

pytestmark = pytest.mark.laws

RATE, WEIGHT, DAMPING = 0.2, 2.0, 0.1


def scores_of(params, x):
    layer, head = params["layers_0"], params["head"]["classifier"]
    score = lambda row: jax.nn.relu(row @ layer["kernel"] + layer["bias"]) @ head["kernel"] + head["bias"]
    return jax.vmap(score)(x)


def loss_of(params, x, y):
    return -jnp.mean(jax.nn.log_softmax(scores_of(params, x))[jnp.arange(len(y)), y])


slope_of = jax.jit(jax.grad(loss_of))


def streamed(method, **fields):
    """The stream played without dropout, and the rows of every batch that have targets, a list a task."""
    played = play(dataclasses.replace(config_of(method, **fields), model=Perceptron(widths=(5,))))
    batches = []
    for _, batch in played.updates:
        inputs, targets, weights = (np.asarray(leaf)[0] for leaf in (batch.inputs, batch.targets, batch.weights))
        there = weights[:, 0] > 0
        batches.append((inputs[there], targets[there, 0]))
    per_task = len(batches) // TASKS
    assert len(batches[per_task - 1][1]) == SIZE % ROWS != 0  # the last batch of a task is partial
    return played, [batches[start : start + per_task] for start in range(0, len(batches), per_task)]


@pytest.mark.parametrize("weighting", ["share", "mean"])
def test_the_importances_of_si_are_those_of_the_gradient_of_the_task_alone(weighting):
    method = SI(penalty_weight=WEIGHT, damping=DAMPING)
    played, tasks = streamed(method, last_batch_weighting=weighting)
    params = jax.tree.map(np.asarray, played.begun[0].params)
    importance = jax.tree.map(np.zeros_like, params)
    anchor = importance
    for batches in tasks:
        start, path = params, jax.tree.map(np.zeros_like, params)
        for x, y in batches:
            factor = len(y) / ROWS if weighting == "share" else 1.0
            slope = jax.tree.map(np.asarray, slope_of(params, x, y))
            step = lambda g, f, p, a: -RATE * factor * (g + WEIGHT * f * (p - a))  # noqa: B023
            moved = jax.tree.map(step, slope, importance, params, anchor)
            path = jax.tree.map(lambda w, g, d: w - g * d, path, slope, moved)
            params = jax.tree.map(np.add, params, moved)
        new = jax.tree.map(lambda w, a, b: np.maximum(w, 0) / ((b - a) ** 2 + DAMPING), path, start, params)
        importance, anchor = jax.tree.map(np.add, importance, new), params
    around = played.state.method["si"]["around"]
    np.testing.assert_allclose(flat(around.importance), flat(importance), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(flat(played.state.params), flat(params), rtol=1e-4, atol=1e-6)


def squares_of_rows(params, x, y):
    """EWC: the squared gradient of the log-likelihood of each row, summed."""
    slopes = [slope_of(params, x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    return sum(flat(slope) ** 2 for slope in slopes)


def sensitivities_of_rows(params, x, y):
    """MAS: the absolute gradient of the squared length of the scores of each row, summed."""
    del y
    slope = jax.jit(jax.grad(lambda params, row: jnp.sum(scores_of(params, row[None]) ** 2)))
    return sum(np.abs(flat(slope(params, row))) for row in x)


@pytest.mark.parametrize(
    ("name", "method", "of_rows", "decay"),
    [
        ("ewc", EWC(penalty_weight=WEIGHT), squares_of_rows, 1.0),
        ("ewc", EWC(penalty_weight=WEIGHT, consolidation="online", decay=0.5), squares_of_rows, 0.5),
        ("mas", MAS(penalty_weight=0.1), sensitivities_of_rows, 1.0),
    ],
    ids=["ewc", "ewc_online", "mas"],
)
def test_importances_that_are_measured_after_a_task_are_means_over_its_rows(name, method, of_rows, decay):
    played, tasks = streamed(method)
    ends = [*(state.params for state in played.begun[1:]), played.state.params]
    importance = 0.0
    for params, batches in zip(ends, tasks, strict=True):
        x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        assert len(y) == SIZE
        importance = decay * importance + of_rows(params, x, y) / SIZE
    np.testing.assert_allclose(flat(played.state.method[name]["around"].importance), importance, rtol=1e-4, atol=1e-6)


@dataclasses.dataclass(slots=True, kw_only=True)
class InEpisodes(Method):
    """SI over episodes that replay, whose gradient is the sum over the batches of a query."""

    steps: int = 1
    """batches to adapt to"""

    def make(self):
        with mock.patch.object(basic_methods, "chain_components", wraps=chain_components) as chain:
            basic_methods.si(SI(penalty_weight=WEIGHT, damping=DAMPING))
        (component,) = chain.call_args.args
        replay = ReplayOptions(2 * ROWS, every=8)
        episode = EpisodeOptions(self.steps, reduction="sum")
        memory = make_memory_options(EpisodicMemory(write_policy="all", capacity=40))
        return chain_components(component, memory=memory, replay=replay, episode=episode)


@pytest.mark.parametrize("steps", [0, 1])
def test_the_path_of_si_has_the_gradient_of_replayed_rows_and_not_their_factor(steps):
    played = play(config_of(InEpisodes(steps=steps), tasks=1))
    batch = next(batch for kind, batch in played.updates if kind == REPLAY)
    start = jax.tree.map(jnp.copy, played.state)
    after, _ = played.places.update_inlined(jax.tree.map(jnp.copy, start), played.places.put_update((REPLAY, batch)))
    moved = flat(after.params) - flat(start.params)
    # Gradient descent moves by -rate * factor * gradient, and the path grows by -moved * gradient.
    grown = flat(after.method["si"]["path"]) - flat(start.method["si"]["path"])
    assert np.abs(moved).max() > 1e-3
    np.testing.assert_allclose(grown, moved**2 / (RATE * 2), rtol=1e-3, atol=1e-7)
