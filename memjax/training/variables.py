"""Variables layer by layer, as checkpoints hold them, whatever groups of layers a model scans."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from memjax.models.contract import Model
from memjax.models.transformer import join_collection, split_collection
from memjax.training.checkpoints import describe_difference, flatten, unflatten
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


def name_arrays(split: Mapping[str, Any]) -> dict[str, Any]:
    """Name in a checkpoint -> array, of collections whose layers are addressed by index."""
    return {COLLECTIONS[name] + path: leaf for name, tree in split.items() for path, leaf in flatten(tree).items()}


def join_arrays(
    split: Mapping[str, Any], arrays: Mapping[str, Any], groups: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """The collections of a model from arrays by name, the inverse of `name_arrays` in the structure of `split`."""
    joined = {}
    for name, tree in split.items():
        prefix = COLLECTIONS[name]
        own = {path.removeprefix(prefix): leaf for path, leaf in arrays.items() if path.startswith(prefix)}
        joined[name] = join_collection(unflatten(tree, own), groups)
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
    split = lambda: {
        name: split_collection(collection, model.groups())
        for name, collection in init_variables(model, jax.random.key(0), segment_length).items()
    }
    shapes = jax.eval_shape(split)
    expected = name_arrays(shapes)
    arrays = {name: leaf for name, leaf in arrays.items() if name in expected or not is_named(name, added)}
    difference = describe_difference(expected, {n: (str(a.dtype), list(a.shape)) for n, a in arrays.items()})
    if difference:
        raise ValueError(f"{what}: {difference}")
    return join_arrays(shapes, arrays, model.groups())


def fitting(
    model: Model, other: Model, segment_length: int, *, added: Sequence[str], what: str
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """What makes the variables of `other` from those of `model`; arguments as in `fit_variables`, which it calls.

    Raises:
      ValueError: the variables of `model` are not those of `other`.
    """

    def fit(variables: Mapping[str, Any]) -> dict[str, Any]:
        split = {name: split_collection(collection, model.groups()) for name, collection in variables.items()}
        return fit_variables(name_arrays(split), other, segment_length, added=added, what=what)

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
