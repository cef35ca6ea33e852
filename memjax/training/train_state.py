"""The train state: all arrays that training changes, and the sums that a step adds to its totals."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from memjax.training.objective import RANDOM_STREAMS, Objective
from memjax.training.tables import TableOptimizer, Tables
from memjax.typing import Aux, Batch, Leaf, WeightedSum, tree_dataclass

__all__ = ["TrainState", "init_train_state", "init_variables", "model_variables"]


@tree_dataclass
class TrainState:
    """All arrays that training changes or needs to continue.

    Attributes:
      step: Number of steps that were applied, int32 scalar. Steps with a non-finite value are skipped and not counted.
      params: Linen collection `params`, float32.
      tables: Value tables with row-sparse updates, and their Adam moments. They never have a dense gradient.
      opt_state: State of the optax optimiser, float32.
      batch_stats: Running statistics. Only training steps write them.
      constants: Arrays that no training step writes, such as random features. A learner may write them, for example to
        mark the classes that it has seen.
      memory: Memory of every row, arrays `[batch, ...]`.
      key: Random key of dropout and sampling. Each step folds in its number.
      totals: `WeightedSum` by name since the totals were last read: `nll`, `tokens` (tokens read), `gradient_norm`,
        `skipped`, `bytes` if the batches carry them, and the losses and metrics of the model.
      restart: Rows whose document began in a skipped step, bool `[batch]`. Their memory is reset in the next step.
      method: State of the learning method (anchors, importances, a teacher, an episodic memory), any tree of arrays.
    """

    step: Leaf
    params: Any
    tables: Tables
    opt_state: Any
    batch_stats: Any
    constants: Any
    memory: Any
    key: Leaf
    totals: dict[str, WeightedSum]
    restart: Leaf
    method: Any = dataclasses.field(default_factory=dict)


def init_variables(model: Any, key: Array, segment_length: int) -> dict[str, Any]:
    """Initializes the variables of a model: `params`, and `tables`, `batch_stats` and `constants` if it has them.

    Args:
      model: Linen model to initialize.
      key: Random key of the initial values.
      segment_length: Tokens per segment. The values depend on it only if the parameters of the model do.
    """
    keys = {name: jax.random.fold_in(key, i) for i, name in enumerate(("params", *RANDOM_STREAMS))}
    tokens = jnp.zeros((1, segment_length), jnp.int32)
    return model.init(keys, tokens, model.init_state(1), start_of_document=jnp.ones(1, bool))


def init_train_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    variables: Mapping[str, Any],
    memory: Any,
    batch: Batch,
    key: Array,
    *,
    table_optimizer: TableOptimizer | None = None,
    method: Any = None,
) -> TrainState:
    """Makes the train state before the first step from variables of a model and the memory of its rows. `batch` is an
    example, for shapes and names, and `method` the state of a learning method.

    Args:
      objective: Objective that the train step minimizes. It decides the names of the totals.
      optimizer: Optimiser of the dense parameters.
      variables: Variables of the model, from `init_variables` or loaded.
      memory: Memory of the rows, from `model.init_state(rows)`.
      batch: Example batch or its shapes, `[segments, batch, length]`. It decides the names of the totals.
      key: Random key of dropout and sampling.
      table_optimizer: Optimiser of the collection `tables`. Required if the model has value tables.
      method: State of the learning method, any tree of arrays. None for no state.

    Raises:
      ValueError: The model has value tables and `table_optimizer` is None.
    """
    values = variables.get("tables", {})
    if values and table_optimizer is None:
        raise ValueError("table_optimizer: given None for a model with value tables, allowed: a TableOptimizer")
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables["params"],
        tables=Tables(values, table_optimizer.init(values) if table_optimizer else {}),
        opt_state=optimizer.init(variables["params"]),
        batch_stats=variables.get("batch_stats", {}),
        constants=variables.get("constants", {}),
        memory=memory,
        key=key,
        totals={},
        restart=jnp.zeros(batch.start_of_document.shape[1], bool),
        method={} if method is None else method,
    )

    def sums(state: TrainState, batch: Batch) -> dict[str, WeightedSum]:
        segment = take_first(batch)
        _, _, nll, aux = objective.loss(loss_variables(state), state.memory, segment, state.key)
        values = {"nll": nll, **named_losses(objective, aux), **aux.metrics, **count_tokens(segment)}
        return step_sums(values, jnp.zeros(()), jnp.ones((), bool))

    return dataclasses.replace(state, totals={name: WeightedSum.zero() for name in jax.eval_shape(sums, state, batch)})


def model_variables(state: TrainState) -> dict[str, Any]:
    """Returns the variables to apply the model with: `params` and all other collections that are not empty."""
    others = {"tables": state.tables.values, "batch_stats": state.batch_stats, "constants": state.constants}
    return {"params": state.params, **{name: value for name, value in others.items() if value}}


def loss_variables(state: TrainState) -> dict[str, Any]:
    """Returns the variables that a loss receives: those of the model and, under `method`, the state of the method."""
    method = {"method": state.method} if jax.tree.leaves(state.method) else {}
    return {**model_variables(state), **method}


def named_losses(objective: Objective, aux: Aux) -> dict[str, WeightedSum]:
    """Returns the auxiliary losses, without coefficients, under the names of their totals."""
    return {f"losses/{name}": value for name, value in objective.losses(aux).items()}


def count_tokens(batch: Batch) -> dict[str, WeightedSum]:
    """Counts the tokens of a batch and, if the batch carries them, the bytes of its scored targets."""
    weight, counts = jnp.ones((), jnp.float32), {}
    if "target_bytes" in batch.extras:
        scored = jnp.sum(batch.extras["target_bytes"] * (batch.weights > 0))
        counts["bytes"] = WeightedSum(scored.astype(jnp.float32), weight)
    return {**counts, "tokens": WeightedSum(jnp.sum(batch.mask), weight)}


def step_sums(sums: dict[str, WeightedSum], norm: Array, ok: Bool[Array, ""]) -> dict[str, WeightedSum]:
    """Returns the sums that a step adds to the totals. A step that was not finite adds 0 to all except `skipped`."""
    weight = jnp.ones((), jnp.float32)
    sums = {**sums, "gradient_norm": WeightedSum(norm, weight)}
    sums = jax.tree.map(lambda leaf: jnp.where(ok, leaf, 0).astype(jnp.float32), sums)
    return {**sums, "skipped": WeightedSum(jnp.where(ok, 0.0, 1.0).astype(jnp.float32), weight)}


def take_first(tree: Any) -> Any:
    """Returns the first entry along axis 0 of every leaf."""
    return jax.tree.map(lambda leaf: leaf[0], tree)
