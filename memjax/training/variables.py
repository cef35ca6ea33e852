"""Variables layer by layer, as checkpoints hold them, whatever groups of layers a model scans."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax.traverse_util import unflatten_dict

from memjax.models.contract import Model
from memjax.models.transformer import join_collection, split_collection
from memjax.training.checkpoints import describe_difference, flatten
from memjax.training.optimizers import is_named
from memjax.training.step import TrainState, init_variables

COLLECTIONS = {
    "params": "params/",
    "tables": "tables/values/",
    "batch_stats": "batch_stats/",
    "constants": "constants/",
}
"""Linen collection -> where its arrays stand in a checkpoint"""


def split_state(
    state: TrainState, groups: Sequence[tuple[int, int]], run: Callable[..., Any] = lambda function: function
) -> TrainState:
    """The state with parameters, tables, statistics and constants addressed by layer, as checkpoints hold them.

    Args:
      state: arrays, shapes or names.
      groups: from `Model.groups`.
      run: `jax.jit` where arrays are split over devices.
    """
    return _map_collections(state, run(lambda collection: split_collection(collection, groups)))


def join_state(state: TrainState, groups: Sequence[tuple[int, int]]) -> TrainState:
    """The inverse of `split_state`."""
    return _map_collections(state, lambda collection: join_collection(collection, groups))


def name_arrays(variables: Mapping[str, Any], groups: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Name in a checkpoint -> array, of the collections of a model with these groups of layers."""
    split = {name: split_collection(collection, groups) for name, collection in variables.items()}
    return {COLLECTIONS[name] + path: leaf for name, tree in split.items() for path, leaf in flatten(tree).items()}


def join_arrays(arrays: Mapping[str, Any], groups: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The collections of a model from arrays by name, the inverse of `name_arrays`."""
    joined = {}
    for name, prefix in COLLECTIONS.items():
        own = {path.removeprefix(prefix): leaf for path, leaf in arrays.items() if path.startswith(prefix)}
        if own:
            joined[name] = join_collection(unflatten_dict(own, sep="/"), groups)
    return joined


def fit_variables(
    arrays: Mapping[str, Any], model: Model, segment_length: int, *, added: Sequence[str] = (), what: str
) -> dict[str, Any]:
    """The variables of a model from arrays by their names in a checkpoint, in the groups of layers that it has.

    Args:
      arrays: of this model, or of one with the same layers in other groups or another memory size.
      model: the model.
      segment_length: tokens, as in training.
      added: parts of the names of what a memory adds: left out where the model has no such memory.
      what: the beginning of the error.

    Raises:
      ValueError: an array that the model lacks, that is not there, or of another shape.
    """
    groups, key = model.groups(), jax.random.key(0)
    expected = jax.eval_shape(lambda: name_arrays(init_variables(model, key, segment_length), groups))
    arrays = {name: leaf for name, leaf in arrays.items() if name in expected or not is_named(name, added)}
    difference = describe_difference(expected, {n: (str(a.dtype), list(a.shape)) for n, a in arrays.items()})
    if difference:
        raise ValueError(f"{what}: {difference}")
    return join_arrays(arrays, groups)


def fitting(
    model: Model, other: Model, segment_length: int, *, added: Sequence[str], what: str
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """What makes the variables of `other` from those of `model`; arguments as in `fit_variables`, which it calls.

    Raises:
      ValueError: the variables of `model` are not those of `other`.
    """

    def fit(variables: Mapping[str, Any]) -> dict[str, Any]:
        arrays = name_arrays(variables, model.groups())
        return fit_variables(arrays, other, segment_length, added=added, what=what)

    jax.eval_shape(lambda: fit(init_variables(model, jax.random.key(0), segment_length)))
    # Where no group changes a module finds its own and never asks for the rest: nothing is copied.
    return (lambda variables: variables) if model.groups() == other.groups() else jax.jit(fit)


def _map_collections(state: TrainState, function: Callable[[Any], Any]) -> TrainState:
    return dataclasses.replace(
        state,
        params=function(state.params),
        tables=dataclasses.replace(state.tables, values=function(state.tables.values)),
        batch_stats=function(state.batch_stats),
        constants=function(state.constants),
    )
