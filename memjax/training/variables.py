"""Converts variables between the layers of a checkpoint and the layer groups of a model.

A checkpoint names every layer by its index. A model stacks the parameters of consecutive equal layers, to scan them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax.traverse_util import unflatten_dict

from memjax.models.interface import Model
from memjax.models.transformer import join_collection, split_collection
from memjax.training.named_arrays import describe_array_difference, flatten
from memjax.training.optimizers import is_named
from memjax.training.train_state import TrainState, init_variables

COLLECTIONS = {
    "params": "params/",
    "tables": "tables/values/",
    "batch_stats": "batch_stats/",
    "constants": "constants/",
}
"""Prefix of the names in a checkpoint for each Linen collection."""


def split_state(
    state: TrainState, groups: Sequence[tuple[int, int]], run: Callable[..., Any] = lambda function: function
) -> TrainState:
    """Splits the layer groups in parameters, tables, statistics and constants of a train state into single layers.
    `run` is a function that wraps the split, such as `jax.jit`.

    Args:
      state: Train state with arrays, shapes or names of axes as leaves.
      groups: Groups of layers of the model, from `Model.layer_groups`.
      run: Function that wraps the splitting function. `jax.jit` if arrays are split over devices.
    """
    return _map_collections(state, run(lambda collection: split_collection(collection, groups)))


def join_state(state: TrainState, groups: Sequence[tuple[int, int]]) -> TrainState:
    """Joins single layers of a train state into the layer groups of a model, the inverse of `split_state`."""
    return _map_collections(state, lambda collection: join_collection(collection, groups))


def name_arrays(variables: Mapping[str, Any], groups: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Returns the arrays in the variables of a model by their names in a checkpoint, as single layers. `groups` are the
    layer groups of the model.
    """
    split = {name: split_collection(collection, groups) for name, collection in variables.items()}
    return {COLLECTIONS[name] + path: leaf for name, tree in split.items() for path, leaf in flatten(tree).items()}


def join_arrays(arrays: Mapping[str, Any], groups: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Builds the variables of a model from arrays by their names in a checkpoint, the inverse of `name_arrays`."""
    joined = {}
    for name, prefix in COLLECTIONS.items():
        leaves = {path.removeprefix(prefix): leaf for path, leaf in arrays.items() if path.startswith(prefix)}
        if leaves:
            joined[name] = join_collection(unflatten_dict(leaves, sep="/"), groups)
    return joined


def fit_variables(
    arrays: Mapping[str, Any], model: Model, segment_length: int, *, added: Sequence[str] = (), what: str
) -> dict[str, Any]:
    """Builds the variables of a model from arrays by name, and raises `ValueError` if they do not fit. Parameters with
    a part of `added` in their name are left out if the model lacks them. `what` begins the message.

    Args:
      arrays: Arrays by their names in a checkpoint. They may come from a model with other layer groups or another
        memory size.
      model: Model to build the variables for.
      segment_length: Tokens per segment in training.
      added: Parts of the names of parameters that a memory adds. They are left out if the model has no such memory.
      what: Beginning of the error message.

    Raises:
      ValueError: The model lacks an array, an array is missing, or an array has another shape.
    """
    groups, key = model.layer_groups(), jax.random.key(0)
    expected = jax.eval_shape(lambda: name_arrays(init_variables(model, key, segment_length), groups))
    arrays = {name: leaf for name, leaf in arrays.items() if name in expected or not is_named(name, added)}
    difference = describe_array_difference(expected, {n: (str(a.dtype), list(a.shape)) for n, a in arrays.items()})
    if difference:
        raise ValueError(f"{what}: {difference}")
    return join_arrays(arrays, groups)


def fitting(
    model: Model, other: Model, segment_length: int, *, added: Sequence[str], what: str
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Makes a function that converts the variables of `model` to those of `other`, a model with the same layers.
    Parameters with a part of `added` in their name are left out if `other` lacks them. `what` begins an error message.

    Args:
      model: Model whose variables are converted.
      other: Model with the same layers, possibly in other layer groups or with another memory size.
      segment_length: Tokens per segment in training.
      added: Parts of the names of parameters that a memory adds. They are left out if `other` has no such memory.
      what: Beginning of the error message.

    Raises:
      ValueError: The variables of `model` do not fit `other`.
    """

    def fit(variables: Mapping[str, Any]) -> dict[str, Any]:
        arrays = name_arrays(variables, model.layer_groups())
        return fit_variables(arrays, other, segment_length, added=added, what=what)

    jax.eval_shape(lambda: fit(init_variables(model, jax.random.key(0), segment_length)))
    # If no group changes, a module looks up only the variables that it needs, so that nothing has to be copied.
    return (lambda variables: variables) if model.layer_groups() == other.layer_groups() else jax.jit(fit)


def _map_collections(state: TrainState, function: Callable[[Any], Any]) -> TrainState:
    """Applies a function to the parameters, tables, statistics and constants of a train state."""
    return dataclasses.replace(
        state,
        params=function(state.params),
        tables=dataclasses.replace(state.tables, values=function(state.tables.values)),
        batch_stats=function(state.batch_stats),
        constants=function(state.constants),
    )
