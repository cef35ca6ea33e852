"""Streams whose learner is compared with equations in NumPy: the rows that it reads and draws, and its parameters."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.config import Perceptron
from memjax.lifelong.episodic_memory import draw
from memjax.lifelong.memory_backends import PURPOSES, replay_key
from memjax.training.experiment import make_experiment
from memjax.training.row_adaptation import make_read
from memjax.typing import Batch
from tests.lifelong.learner_cases import DIM, Played, as_float64, config_of, play
from tests.reference.perceptron import flatten

SEED = 0
RATE = 0.25  # No rounding in float32, in which a schedule may compute it.
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


class Rows(NamedTuple):
    """Rows that a model reads: vectors, classes, and numbers of the examples in the run."""

    x: np.ndarray
    y: np.ndarray
    number: np.ndarray

    def take(self, places: Any) -> "Rows":
        """Some of them."""
        return Rows(*(leaf[places] for leaf in self))


def stream_in_float64(
    method: Any, *, gate_dim: int = 0, task: Mapping[str, Any] = MappingProxyType({}), **fields: Any
) -> tuple[Any, Played]:
    """The configuration and the stream of `config_of`, played in float64 and without dropout at the rate `RATE`."""
    config = config_of(method, **fields)
    model = Perceptron(widths=(5,), gate_dim=gate_dim)
    schedule = dataclasses.replace(config.training.schedule, learning_rate=RATE)
    config = dataclasses.replace(
        config,
        model=model,
        training=dataclasses.replace(config.training, schedule=schedule, clip_norm=0.0),
        task=dataclasses.replace(config.task, **task),
    )
    return config, play(config, float64=True)


def batches_of(batch: Any) -> list[Rows]:
    """The rows that have a target, for each batch of an update."""
    batches = []
    for inputs, targets, weights, number in zip(
        batch.inputs, batch.targets, batch.weights, batch.extras["example"], strict=True
    ):
        has_target = np.asarray(weights)[:, 0] > 0
        leaves = (np.asarray(inputs, np.float64), np.asarray(targets)[:, 0], np.asarray(number))
        batches.append(Rows(*(leaf[has_target] for leaf in leaves)))
    return batches


def join(parts: Any) -> Rows:
    """The rows of all parts, in their order."""
    return Rows(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))


def draw_replay(played: Played, update: int, count: int, capacity: int, number: int) -> np.ndarray:
    """Places of the rows that an update draws with replacement of a memory. This is chance, no equation."""
    key = replay_key(dataclasses.replace(played.state, step=jnp.asarray(update, jnp.int32)))
    return np.asarray(draw(count, capacity, key, number, replace=True))


def draw_for_test(played: Played, count: int, capacity: int, number: int) -> np.ndarray:
    """Places of the different rows that an adaptation before a test draws from a memory."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), 3), PURPOSES["adapt"])
    return np.asarray(draw(count, capacity, key, number, replace=False))


def start_of(played: Played) -> dict[str, np.ndarray]:
    """The parameters before the first update."""
    return flatten(played.begun[0].params)


def assert_params(tree: Any, params: dict[str, np.ndarray], **tolerance: Any) -> None:
    """Compares parameters of a learner with those of equations, one by one. `tolerance` replaces that of float64."""
    of_learner = flatten(tree)
    assert of_learner.keys() == params.keys()
    for path, leaf in params.items():
        np.testing.assert_allclose(of_learner[path], leaf, err_msg=path, **(tolerance or CLOSE))


def queries(number: int = 6) -> np.ndarray:
    """Vectors that no training has read, near the clouds of the classes."""
    return np.random.default_rng(3).normal(size=(number, DIM)).astype(np.float32)


def answer(config: Any, played: Played, x: np.ndarray) -> np.ndarray:
    """Log-probabilities `[rows, classes]` of a learner that adapts to every row."""
    model, adapt = as_float64(make_experiment(config).model), played.learner.adapt_rows
    size = len(x)
    batch = Batch(
        jnp.asarray(x),
        jnp.zeros((size, 1), jnp.int32),
        jnp.ones(x.shape, bool),
        jnp.ones((size, 1)),
        jnp.zeros(size, bool),
        {},
    )
    variables = played.learner.evaluation_variables(played.state, SEED)
    return np.asarray(make_read(model, adapt)(variables, batch).log_probs)[:, 0]
