"""Row-sparse value tables: the part of the train state that no dense gradient ever reaches.

A module keeps its table in the Linen collection `tables` and reads it through
`memjax.functional.product_keys.lookup_rows(table, ids, sink)`. The train step differentiates with respect to the
*sinks* instead of the tables: zeros of the shape of what was looked up, given to the module in the collection `sinks`
(same path as the table; absent outside training). The ids of the rows leave the module through `Aux.arrays`, named
`<variable>/ids`, and a `TableOptimizer` brings rows and gradients together. A stack prefixes those names with
`layer_<index>/` and stores layers under `layers_<first index of the group>`; `ids_of` knows both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

Path = tuple[str, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
    """Value tables with the optimiser's statistics of their rows.

    Attributes:
      values: the Linen collection `tables`; {} for a model without tables.
      moments: whatever `TableOptimizer.init` made of it.
    """

    values: Any = dataclasses.field(default_factory=dict)
    moments: Any = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TouchedRows:
    """The rows of one table that a step has looked up; a row may stand in it many times.

    Attributes:
      ids: int32 `[layers?, lookups]`, with a leading axis of layers for the table of a scanned group.
      gradients: `[layers?, lookups, dim]`, the gradient of each lookup.
    """

    ids: Any
    gradients: Any


class TableOptimizer(NamedTuple):
    """A row-sparse update rule, as optax has them for dense parameters.

    Attributes:
      init: `init(values) -> moments`.
      update: `update(values, moments, touched, *, step, ok) -> (values, moments)`. `touched` maps the path of each
        table to its `TouchedRows`; where `ok` (bool scalar) is False both results are the old ones, which is for the
        rule to see to, row by row: selecting afterwards would copy the table.
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


def sparse_sgd(learning_rate: Callable[[Any], Any]) -> TableOptimizer:
    """Stochastic gradient descent on the touched rows: `row -= learning_rate(step) * sum of its gradients`."""

    def update(
        values: Any, moments: Any, touched: Mapping[Path, TouchedRows], *, step: Int[Array, ""], ok: Bool[Array, ""]
    ) -> tuple[Any, Any]:
        def one(path: Path, table: Array) -> Array:
            rows = touched[path]
            change = jnp.where(ok, -learning_rate(step) * rows.gradients, 0).astype(table.dtype)
            add = lambda t, ids, c: t.at[ids].add(c)  # noqa: E731
            return jax.vmap(add)(table, rows.ids, change) if rows.ids.ndim == 2 else add(table, rows.ids, change)

        return map_tables(one, values), moments

    return TableOptimizer(lambda values: {}, update)


def ids_of(path: Path, table: Any, arrays: Mapping[str, Any]) -> Any:
    """The ids that a step has looked up in the table at `path`.

    Args:
      path: of the table in its collection, such as `("layers_2", "feed_forward", "values")`.
      table: the table, or its `jax.ShapeDtypeStruct`: `[rows, dim]`, in a scanned group `[layers, rows, dim]`.
      arrays: `Aux.arrays`.

    Returns:
      The array of ids; for a table of a scanned group the ids of its layers, stacked at axis 0.

    Raises:
      ValueError: a lookup did not report its ids.
    """
    first = next((int(m[1]) for part in path if (m := re.fullmatch(r"layers_(\d+)", part))), None)
    layers = table.shape[0] if first is not None and len(table.shape) == 3 else 1
    names = [f"{path[-1]}/ids" if first is None else f"layer_{first + i:02d}/{path[-1]}/ids" for i in range(layers)]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(
            f"tables: {'/'.join(path)} reports no ids, given Aux.arrays {sorted(arrays)}; put them there as "
            f"{missing[0]!r}"
        )
    return jnp.stack([arrays[name] for name in names]) if len(table.shape) == 3 else arrays[names[0]]


def make_sinks(values: Any, arrays: Mapping[str, Any], num_segments: int) -> Any:
    """Zeros for what every lookup of one row group returns, `[segments, layers?, ..., dim]`, in the tables' structure.

    Args:
      values: the collection `tables`.
      arrays: shapes of `Aux.arrays` of one segment.
      num_segments: segments of a step.
    """

    def zeros(path: Path, table: Any) -> Array:
        ids = jax.eval_shape(lambda a: ids_of(path, table, a), dict(arrays))
        return jnp.zeros((num_segments, *ids.shape, table.shape[-1]), table.dtype)

    return map_tables(zeros, values)


def touched_rows(values: Any, sink_gradients: Any, arrays: Mapping[str, Any]) -> dict[Path, TouchedRows]:
    """Brings ids and gradients of a step together.

    Args:
      values: the collection `tables`.
      sink_gradients: gradients of the sinks, `[groups, segments, layers?, ..., dim]`.
      arrays: `Aux.arrays` with two leading axes, `[groups, segments, ...]`.
    """
    leaves = dict(_flatten(sink_gradients))
    touched = {}
    for path, table in _flatten(values):
        stacked = len(table.shape) == 3
        per_layer = {name: jnp.reshape(array, -1) for name, array in arrays.items() if name.endswith("/ids")}
        ids = ids_of(path, table, per_layer)
        gradients = leaves[path]
        if stacked:
            gradients = jnp.moveaxis(gradients, 2, 0)  # [layers, groups, segments, ..., dim]
        shape: tuple[int, ...] = (*ids.shape, table.shape[-1])
        touched[path] = TouchedRows(ids, jnp.reshape(gradients, shape))
    return touched


def map_tables(function: Callable[[Path, Any], Any], values: Any) -> Any:
    """`function(path, table)` for every table of a collection."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(_names(path), leaf), values)


def _flatten(tree: Any) -> list[tuple[Path, Any]]:
    return [(_names(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _names(path: tuple[Any, ...]) -> Path:
    return tuple(str(key.key) for key in path)
