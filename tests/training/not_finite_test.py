"""NaN and infinity at every place of a training step, for every memory: the step is skipped, and what was finite stays
so. A table says what comes after it.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import Config, Data, KeyValueRecall, Model, Training
from memjax.data.annotations import write_neighbors
from memjax.data.sources import SPLITS
from memjax.settings.named_memories import MEMORIES, with_memory_kind
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.experiment import make_experiment
from memjax.training.plain_learner import make_single_stage
from memjax.training.stages import STREAM
from memjax.training.update_functions import make_objective

pytestmark = pytest.mark.laws

ROWS, LENGTH = 2, 8
TRIGGER = np.float32(1.0000001)
"""Weight of the first target that makes the gradients of a segment not finite, with a finite loss"""
VALUES = (np.nan, np.inf, -np.inf)


@jax.custom_vjp
def with_gradient(total: Any, added: Any) -> Any:
    """Returns `total`, whose cotangent gets `added`."""
    del added
    return total


with_gradient.defvjp(lambda total, added: (total, added), lambda added, cotangent: (cotangent + added, None))


def make_triggered_objective(config: Any, model: Any) -> Any:
    """The objective of a run, whose gradient is NaN where the first weight of a segment is `TRIGGER`."""
    objective = make_objective(config, model)

    def loss(variables: Any, memory: Any, segment: Any, key: Any) -> Any:
        memory, batch_stats, nll, aux = objective.loss(variables, memory, segment, key)
        added = jnp.where(segment.weights[0, 0] == TRIGGER, jnp.nan, 0.0)
        nll = dataclasses.replace(nll, total=with_gradient(nll.total, added))
        return memory, batch_stats, nll, aux

    return objective._replace(loss=loss)


class Trained(NamedTuple):
    """A learner after two updates.

    Attributes:
      name: Name of its memory.
      update: Function of a state and a batch, compiled.
      state: State after two updates.
      batch: Function that draws a batch.
    """

    name: str
    update: Callable[..., Any]
    state: Any
    batch: Callable[..., Any]


def train(name: str, folder: Path) -> Trained:
    """Makes a model with the memory of a name, and trains it for two updates. Neighbours are written to a folder."""
    data = Data(source=KeyValueRecall(num_documents=4), batch_size=ROWS, segment_length=LENGTH)
    config = Config(model=Model(dim=8, num_layers=2, num_heads=2), data=data, training=Training(steps=8))
    config = with_memory_kind(config, name)
    if config.model.output.needs_neighbors:
        plain = make_experiment(with_memory_kind(config, "none"))
        for split in SPLITS:
            documents = plain.documents(split)
            tokens = sum(documents.num_tokens(index) for index in range(len(documents)))
            write_neighbors(folder, split, np.full((tokens, config.model.output.num_neighbors), 3), documents)
        config.data.neighbors_dir = str(folder)
    experiment = make_experiment(config)
    make_learner, _ = make_single_stage(experiment, None, make_triggered_objective)
    learner = CompiledLearner(None, make_learner(()))
    shapes = learner.learner.batch_shapes[STREAM]

    def batch(seed: int, *, start: bool = False) -> Any:
        draw = np.random.default_rng(seed)
        arrays = jax.tree.map(lambda leaf: draw.integers(2, size=leaf.shape).astype(leaf.dtype), shapes)
        inputs = draw.integers(3, 9, size=shapes.inputs.shape).astype(np.int32)
        ones = {"mask": np.ones_like(arrays.mask), "weights": np.ones_like(arrays.weights)}
        starts = np.zeros_like(arrays.start_of_document)
        starts[0] = start
        return dataclasses.replace(arrays, inputs=inputs, targets=inputs[:, ::-1], start_of_document=starts, **ones)

    update = lambda state, batch: learner.update_inlined(jax.tree.map(jnp.copy, state), (STREAM, batch))[0]
    state = learner.init(learner.new_variables())
    for seed in (1, 2):
        state = update(state, batch(seed, start=seed == 1))
    assert skipped(state) == 0 and not count_broken(state)
    return Trained(name, update, state, batch)


@pytest.fixture(scope="module", params=MEMORIES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(request.param, tmp_path_factory.mktemp("neighbors"))


def skipped(state: Any) -> int:
    return int(state.totals["skipped"].total)


def is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def count_broken(tree: Any) -> int:
    """Returns the number of entries that are not finite."""
    return sum(
        int((~np.isfinite(np.asarray(leaf, np.float32))).sum()) for leaf in jax.tree.leaves(tree) if is_float(leaf)
    )


def break_entries(tree: Any, value: float) -> Any:
    """Replaces the entries of all arrays of real numbers."""
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, value) if is_float(leaf) else leaf, tree)


def break_field(name: str) -> Callable[..., Any]:
    """Returns a function that breaks all entries of a field of a train state, and leaves the batch."""

    def change(state: Any, batch: Any, value: float) -> Any:
        return dataclasses.replace(state, **{name: break_entries(getattr(state, name), value)}), batch

    return change


def break_loss(state: Any, batch: Any, value: float) -> Any:
    weights = batch.weights.copy()
    weights[0, 0, 0] = value
    return state, dataclasses.replace(batch, weights=weights)


def break_gradient(state: Any, batch: Any, value: float) -> Any:
    del value
    return break_loss(state, batch, float(TRIGGER))


def break_update(state: Any, batch: Any, value: float) -> Any:
    """Leaves the moments finite, with a mean whose ratio to the root of the variance is not."""
    changes = {"mu": lambda leaf: jnp.full_like(leaf, 3e38), "nu": jnp.zeros_like}

    def change(path: Any, leaf: Any) -> Any:
        names = {part.name for part in path if isinstance(part, jax.tree_util.GetAttrKey)}
        return next((changes[name](leaf) for name in changes if name in names), leaf)

    return dataclasses.replace(state, opt_state=jax.tree_util.tree_map_with_path(change, state.opt_state)), batch


def break_tables(state: Any, batch: Any, value: float) -> Any:
    tables = dataclasses.replace(state.tables, values=break_entries(state.tables.values, value))
    return dataclasses.replace(state, tables=tables), batch


class Place(NamedTuple):
    """A place of a training step that gets a value which is not finite.

    Attributes:
      change: Function `change(state, batch, value) -> (state, batch)`.
      heals: Whether the next update that begins a document is applied. Otherwise every update is skipped, so that
        `training.max_skipped_steps` ends the run.
      field: Field of the state that a memory may not have. '' where all have the place.
    """

    change: Callable[..., Any]
    heals: bool
    field: str = ""


PLACES = {
    "loss": Place(break_loss, heals=True),
    "gradient": Place(break_gradient, heals=True),
    "memory": Place(break_field("memory"), heals=True, field="memory"),
    "update": Place(break_update, heals=False),
    "moments": Place(break_field("opt_state"), heals=False),
    "parameters": Place(break_field("params"), heals=False),
    "tables": Place(break_tables, heals=False, field="tables"),
}
WITHOUT_MEMORY = {"none", "product_key", "continuous_cache", "knn_lm", "spalm"}
"""memories that are in parameters, come with the texts, or are read by evaluations alone"""
FIELDS = {"memory": {*MEMORIES} - WITHOUT_MEMORY, "tables": {"product_key"}}
"""Field of the train state -> memories that have numbers in it"""


def assert_unchanged(old: Any, new: Any) -> None:
    """Asserts that all fields are equal, bit for bit, without those that a skipped step writes."""
    for field in dataclasses.fields(old):
        if field.name not in ("totals", "restart", "key"):
            pairs = zip(*(jax.tree.leaves(getattr(state, field.name)) for state in (old, new)), strict=True)
            for before, after in pairs:
                np.testing.assert_array_equal(before, after, err_msg=field.name)


@pytest.mark.parametrize("place", PLACES)
def test_a_step_with_a_value_that_is_not_finite_changes_nothing(trained, place):
    change, heals, field = PLACES[place]
    if field:
        has_numbers = any(is_float(leaf) for leaf in jax.tree.leaves(getattr(trained.state, field)))
        assert has_numbers == (trained.name in FIELDS[field])
        if not has_numbers:
            return
    for value in VALUES:
        state, batch = change(trained.state, trained.batch(3), value)
        after = trained.update(state, batch)
        assert skipped(after) == 1, value
        assert_unchanged(state, after)
        for seed in (4, 5):
            after = trained.update(after, trained.batch(seed, start=seed == 4))
        assert skipped(after) == (1 if heals else 3), value
        assert not heals or not count_broken((after.params, after.opt_state, after.tables))
