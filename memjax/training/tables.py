"""Value tables with row-sparse updates, and their optimisers.

A module keeps its table in the Linen collection `tables` and reads rows with
`memjax.functional.table_rows.lookup_rows(table, ids, sink)`. Without a sink a table has a dense gradient, as in any
loss that a user writes. The train step differentiates with respect to the *sinks* instead. A sink is an array of zeros
with the shape of the rows that were looked up. The module receives it in the collection `sinks`, under the path of the
table. The collection is absent outside training. The module returns the ids of the rows in `Aux.arrays` as
`<variable>/ids`, and a `TableOptimizer` applies the gradient of the sink to these rows. A stack of layers adds the
prefix `layer_<index>/` to the names and stores its layers under `layers_<first index of a group>`. `ids_of` handles
both.

A module that reads weighted sums of rows (`sum_rows`) also returns the weights, as `<variable>/weights`. The sink then
has the shape of the sums, and the gradient of a row is the gradient of its sums times its weights. No array with the
size of all rows that a step reads is ever made.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from memjax.axes import MODEL
from memjax.functional.table_rows import Split, gradient_of_rows, update_rows
from memjax.typing import tree_dataclass

__all__ = ["TableOptimizer", "Tables", "TouchedRows", "sparse_sgd", "table_adam"]

Path = tuple[str, ...]
Schedule = Callable[[Any], Any]

DENSE_UP_TO = 4
"""Largest ratio of table rows to lookups per step at which `table_adam` updates the whole table."""
# Up to this ratio most rows are touched, and sorting the ids would cost more.


@tree_dataclass
class Tables:
    """Value tables and the state of their optimiser.

    Attributes:
      values: Linen collection `tables`. Empty for a model without value tables.
      moments: State of the optimiser, from `TableOptimizer.init`.
    """

    values: Any = dataclasses.field(default_factory=dict)
    moments: Any = dataclasses.field(default_factory=dict)


@tree_dataclass
class TouchedRows:
    """The rows of one table that a step has looked up, with their gradients. A row may occur several times.

    A bag is a set of rows that is read as one weighted sum. The gradient of lookup l of bag b is
    `weights[b, l] * gradients[b]`. A row that is read alone is a bag of one.

    Attributes:
      ids: Ids of the rows, int32 `[layers?, bags, lookups]`. The table of a scanned group of layers has a leading axis
        of layers. Ids beyond the table are ignored.
      weights: Weights of the rows, `[layers?, bags, lookups]`.
      gradients: Gradient of each bag, `[layers?, bags, dim]`.
    """

    ids: Any
    weights: Any
    gradients: Any


class TableOptimizer(NamedTuple):
    """A row-sparse optimiser of value tables, like an optax transformation for dense parameters.

    Attributes:
      init: Function `init(values) -> moments`, which makes the state of the optimiser.
      update: Function `update(values, moments, touched, *, step, ok) -> (values, moments)`. `touched` maps the path of
        each table to its `TouchedRows`. If `ok`, a bool scalar, is False, it must return the old values and moments.
    """

    # `update` handles `ok` row by row: selecting old or new tables afterwards would copy them.

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


def sparse_sgd(learning_rate: Schedule) -> TableOptimizer:
    """Makes stochastic gradient descent on the touched rows of value tables. `learning_rate` is a function of the step.

    Each touched row becomes `row - learning_rate(step) * gradient`, where `gradient` is the sum over its lookups.
    """

    def update(
        values: Any, moments: Any, touched: Mapping[Path, TouchedRows], *, step: Int[Array, ""], ok: Bool[Array, ""]
    ) -> tuple[Any, Any]:
        rule = _keep_finite(lambda rows, gradient: (rows[0] - learning_rate(step) * gradient,))

        update_table = lambda table, rows: update_rows((table,), *_lookups_that_count(rows, ok), rule)[0]
        return map_tables(lambda path, table: _map_over_layers(update_table, table, touched[path]), values), moments

    return TableOptimizer(lambda values: {}, update)


def table_adam(
    learning_rate: Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    form: str = "auto",
    split: Split = "rows",
) -> TableOptimizer:
    """Makes the Adam optimiser for value tables, in a lazy form, which updates only rows with a gradient, or a dense
    one (`form`). `split` is the axis of the tables that the mesh splits, 'rows' or 'columns'.

    Lazy Adam updates only the rows that have a gradient in a step, each once with its whole gradient. All other rows
    and their moments stay unchanged. Bias correction counts the steps of the run, as in PyTorch's `SparseAdam`. The
    cost of a step depends on the rows that it reads, and not on the size of the table. Lazy Adam equals Adam (Kingma &
    Ba 2015) if every row has a gradient in every step. The dense form is Adam: the moments of all rows decay in every
    step, and rows continue to move by their moments.

    Both forms have the same moments, so that a run can continue with the other form.

    Args:
      learning_rate: Learning rate as a function of the step. The first step is 0.
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment.
      eps: Constant that is added to the square root of the second moment.
      form: "lazy", "dense", or "auto". "auto" is dense for tables with at most `DENSE_UP_TO` rows per lookup of the
        step, and lazy for larger ones.
      split: Axis of the tables that the mesh axis `model` splits, "rows" or "columns".

    Raises:
      ValueError: Unknown `form`.
    """
    if form not in ("auto", "lazy", "dense"):
        raise ValueError(f"form: given {form!r}, allowed: 'auto', 'lazy' or 'dense'")
    places: dict[str, Any] = {"axis": MODEL, "split": split}

    def init(values: Any) -> Any:
        return {"mu": jax.tree.map(jnp.zeros_like, values), "nu": jax.tree.map(jnp.zeros_like, values)}

    def update(
        values: Any, moments: Any, touched: Mapping[Path, TouchedRows], *, step: Int[Array, ""], ok: Bool[Array, ""]
    ) -> tuple[Any, Any]:
        @_keep_finite
        def rule(rows: tuple[Array, ...], gradient: Array) -> tuple[Array, ...]:
            row, mu, nu = rows
            time = (step + 1).astype(row.dtype)
            mu, nu = b1 * mu + (1 - b1) * gradient, b2 * nu + (1 - b2) * gradient**2
            size = (mu / (1 - b1**time)) / (jnp.sqrt(nu / (1 - b2**time)) + eps)
            return row - learning_rate(step) * size, mu, nu

        def update_table(arrays: tuple[Array, ...], rows: TouchedRows) -> tuple[Array, ...]:
            if not is_dense(arrays[0].shape[0], rows.ids.size, form):
                return update_rows(arrays, *_lookups_that_count(rows, ok), rule, **places)
            new = rule(arrays, gradient_of_rows(arrays[0], *_lookups_that_count(rows, ok), **places))
            return tuple(jnp.where(ok, n.astype(o.dtype), o) for n, o in zip(new, arrays, strict=True))

        each = lambda path, *arrays: _map_over_layers(update_table, arrays, touched[path])
        values, mu, nu = split_pairs(map_tables(each, values, moments["mu"], moments["nu"]), 3)
        return values, {"mu": mu, "nu": nu}

    return TableOptimizer(init, update)


def freeze_tables(optimizer: TableOptimizer, is_frozen: Callable[[str], bool]) -> TableOptimizer:
    """Restricts an optimiser to the tables that are not frozen. `is_frozen(path)` says of the path of a table, with `/`
    between its parts, whether it is. The moments of frozen tables are still updated.
    """

    def update(values: Any, moments: Any, touched: Mapping[Path, TouchedRows], **options: Any) -> tuple[Any, Any]:
        new, moments = optimizer.update(values, moments, touched, **options)
        select = lambda path, old, changed: old if is_frozen("/".join(path)) else changed
        return map_tables(select, values, new), moments

    return TableOptimizer(optimizer.init, update)


def is_dense(rows: int, lookups: int, form: str = "auto") -> bool:
    """Returns whether `table_adam` updates the whole of a table with `rows` rows instead of single rows, in a step with
    `lookups` lookups.

    Args:
      rows: Number of rows of the table.
      lookups: Number of lookups in a step.
      form: Argument `form` of `table_adam`.

    Example:
      >>> is_dense(2**16, 2**15), is_dense(2**18, 2**15)
      (True, False)
    """
    return form == "dense" or (form == "auto" and rows <= DENSE_UP_TO * lookups)


Rule = Callable[[tuple[Array, ...], Array], tuple[Array, ...]]
"""Update rule `rule((rows, *moments), gradients) -> (rows, *moments)` of table rows."""


def _keep_finite(rule: Rule) -> Rule:
    """Wraps an update rule such that rows keep their values if any of their new values is not finite."""

    # A table is written in place, some rows at a time: once the last rows are known, the first cannot be restored.
    def finite_rule(rows: tuple[Array, ...], gradient: Array) -> tuple[Array, ...]:
        new = rule(rows, gradient)
        ok = functools.reduce(jnp.logical_and, [jnp.isfinite(n).all(axis=-1, keepdims=True) for n in new])
        return tuple(jnp.where(ok, n, old) for n, old in zip(new, rows, strict=True))

    return finite_rule


def _lookups_that_count(rows: TouchedRows, ok: Array) -> tuple[Array, Array, Array]:
    """Returns ids, weights and gradients of the touched rows. Weights and gradients are 0 in a skipped step."""
    gradients = jnp.where(ok, rows.gradients, 0)
    return rows.ids, jnp.where(ok, rows.weights, 0), gradients


def _map_over_layers(function: Callable[..., Any], arrays: Any, rows: TouchedRows) -> Any:
    """Computes `function(arrays, rows)`, for each layer if the arrays have a leading axis of layers."""
    return jax.vmap(function)(arrays, rows) if rows.ids.ndim == 3 else function(arrays, rows)


def ids_of(path: Path, table: Any, arrays: Mapping[str, Any]) -> Any:
    """Returns the ids of the rows that a step has looked up in the table at `path`, an array from `arrays`, the
    `Aux.arrays` of the model.

    Args:
      path: Path of the table in its collection, such as `("layers_2", "feed_forward", "values")`.
      table: Table or its `jax.ShapeDtypeStruct`, `[rows, dim]`, or `[layers, rows, dim]` in a scanned group of layers.
      arrays: `Aux.arrays` of the model.

    Returns:
      Array of ids. For a table of a scanned group, the ids of its layers are stacked at axis 0.

    Raises:
      ValueError: The model did not return the ids of a lookup.
    """
    names = [f"{prefix}{path[-1]}/ids" for prefix in layer_prefixes(path, table)]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(
            f"tables: {'/'.join(path)} reports no ids, given Aux.arrays {sorted(arrays)}; put them there as "
            f"{missing[0]!r}"
        )
    return _stack_layers(names, table, arrays)


def weights_of(path: Path, table: Any, arrays: Mapping[str, Any]) -> Any:
    """Returns the weights of the lookups in the table at `path`, with the shape of `ids_of`. Returns None for a table
    whose rows are read one by one.

    See `ids_of` for the arguments.
    """
    names = [f"{prefix}{path[-1]}/weights" for prefix in layer_prefixes(path, table)]
    return _stack_layers(names, table, arrays) if set(names) <= set(arrays) else None


def layer_prefixes(path: Path, table: Any) -> list[str]:
    """Lists the prefixes of names in `Aux` for the layers of a table, `layer_<index>/`. The list has a single '' for a
    table outside of a stack of layers.

    Example:
      >>> layer_prefixes(("stack", "layers_2", "feed_forward", "values"), jax.ShapeDtypeStruct((2, 9, 4), jnp.float32))
      ['layer_02/', 'layer_03/']
    """
    first = next((int(m[1]) for part in path if (m := re.fullmatch(r"layers_(\d+)", part))), None)
    layers = table.shape[0] if first is not None and len(table.shape) == 3 else 1
    return [""] if first is None else [f"layer_{first + i:02d}/" for i in range(layers)]


def _stack_layers(names: list[str], table: Any, arrays: Mapping[str, Any]) -> Any:
    """Returns the named arrays of all layers of a table, stacked at axis 0 if the table has an axis of layers."""
    return jnp.stack([arrays[name] for name in names]) if len(table.shape) == 3 else arrays[names[0]]


def make_gradient_sinks(values: Any, arrays: Mapping[str, Any], num_segments: int) -> Any:
    """Makes the sinks of one row group, arrays whose gradients are those of the looked-up rows: zeros with the shape of
    the rows or sums that the lookups return.

    Args:
      values: Linen collection `tables`.
      arrays: Shapes of `Aux.arrays` of one segment.
      num_segments: Number of segments in a step.

    Returns:
      Tree with the structure of `values` and arrays `[segments, layers?, ..., dim]`.
    """

    def zeros(path: Path, table: Any) -> Array:
        shapes = jax.eval_shape(lambda a: (ids_of(path, table, a), weights_of(path, table, a)), dict(arrays))
        bags = shapes[0].shape if shapes[1] is None else shapes[0].shape[:-1]
        return jnp.zeros((num_segments, *bags, table.shape[-1]), table.dtype)

    return map_tables(zeros, values)


def touched_rows(values: Any, sink_gradients: Any, arrays: Mapping[str, Any]) -> dict[Path, TouchedRows]:
    """Combines ids, weights and gradients of the rows that a step has looked up. Returns the `TouchedRows` of each
    table by its path.

    Args:
      values: Linen collection `tables`.
      sink_gradients: Gradients of the sinks, arrays `[groups, segments, layers?, ..., dim]`.
      arrays: `Aux.arrays` of the model with two leading axes, `[groups, segments, ...]`.
    """
    leaves = dict(_flatten(sink_gradients))
    touched = {}
    for path, table in _flatten(values):
        stacked = len(table.shape) == 3
        weighed = weights_of(path, table, arrays) is not None
        flat = {
            name: array.reshape(-1, array.shape[-1] if weighed else 1)
            for name, array in _select_lookups(arrays).items()
        }
        ids = ids_of(path, table, flat)
        weights = weights_of(path, table, flat) if weighed else jnp.ones(ids.shape, table.dtype)
        gradients = leaves[path]
        if stacked:
            gradients = jnp.moveaxis(gradients, 2, 0)  # [layers, groups, segments, ..., dim]
        shape: tuple[int, ...] = (*ids.shape[:-1], table.shape[-1])
        touched[path] = TouchedRows(ids, weights, jnp.reshape(gradients, shape))
    return touched


def _select_lookups(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the ids and weights of lookups from `Aux.arrays`."""
    return {name: array for name, array in arrays.items() if name.endswith(("/ids", "/weights"))}


def map_tables(function: Callable[..., Any], values: Any, *others: Any) -> Any:
    """Computes `function(path, table, *leaves)` for every table of a collection and returns a tree of the results.

    `leaves` are the entries of `others`, trees of the same structure, at the path of the table.
    """
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: function(_path_names(path), *leaves), values, *others)


def split_pairs(tuples: Any, number: int) -> tuple[Any, ...]:
    """Converts a tree of tuples with `number` entries each to a tuple of `number` trees."""
    is_leaf = lambda node: isinstance(node, tuple)
    return tuple(jax.tree.map(lambda node, i=i: node[i], tuples, is_leaf=is_leaf) for i in range(number))


def _flatten(tree: Any) -> list[tuple[Path, Any]]:
    """Lists `(path, leaf)` of all leaves of a tree."""
    return [(_path_names(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _path_names(path: tuple[Any, ...]) -> Path:
    """Converts a path of `jax.tree_util` to a tuple of names."""
    return tuple(str(key.key) for key in path)
