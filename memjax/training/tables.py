"""Row-sparse value tables: the part of the train state that no dense gradient reaches.

A module keeps its table in the Linen collection `tables` and reads it through
`memjax.functional.product_keys.lookup_rows(table, ids, sink)`. Without a sink a table has a dense gradient, as in any
loss of a user's own. The train step differentiates with respect to the *sinks* instead: zeros of the shape of what was
looked up, given to the module in the collection `sinks` (same path as the table; absent outside training). The ids of
the rows leave the module through `Aux.arrays`, named `<variable>/ids`, and a `TableOptimizer` brings rows and gradients
together. A stack prefixes those names with `layer_<index>/` and stores layers under `layers_<first index of a group>`;
`ids_of` knows both.

A module that reads weighted sums of rows (`sum_rows`) names the weights too, `<variable>/weights`. Then a sink has the
shape of the sums, and a row's gradient is that of the sums it is in, times its weights: nothing of the size of all the
rows that a step reads is ever made.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from memjax.axes import MODEL
from memjax.functional.product_keys import Split, gradient_of_rows, update_rows
from memjax.training.optimizers import is_named
from memjax.typing import tree_dataclass

__all__ = ["TableOptimizer", "Tables", "TouchedRows", "sparse_sgd", "table_adam"]

Path = tuple[str, ...]
Schedule = Callable[[Any], Any]

DENSE_UP_TO = 4
"""rows a lookup, up to which a table is updated as a whole: most of its rows are touched, and a sort costs more"""


@tree_dataclass
class Tables:
    """Value tables with the optimiser's statistics of their rows.

    Attributes:
      values: the Linen collection `tables`; {} for a model without tables.
      moments: whatever `TableOptimizer.init` made of it.
    """

    values: Any = dataclasses.field(default_factory=dict)
    moments: Any = dataclasses.field(default_factory=dict)


@tree_dataclass
class TouchedRows:
    """The rows of one table that a step has looked up; a row may stand in it many times.

    The gradient of lookup l of bag b is `weights[b, l] * gradients[b]`. Rows that are read one by one are bags of one.

    Attributes:
      ids: int32 `[layers?, bags, lookups]`, with a leading axis of layers for the table of a scanned group; ids beyond
        the table stand for nothing.
      weights: `[layers?, bags, lookups]`.
      gradients: `[layers?, bags, dim]`, the gradient of each bag.
    """

    ids: Any
    weights: Any
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


def sparse_sgd(learning_rate: Schedule) -> TableOptimizer:
    """Stochastic gradient descent on the touched rows: `row -= learning_rate(step) * sum of its gradients`."""

    def update(
        values: Any, moments: Any, touched: Mapping[Path, TouchedRows], *, step: Int[Array, ""], ok: Bool[Array, ""]
    ) -> tuple[Any, Any]:
        rule = _finite(lambda rows, gradient: (rows[0] - learning_rate(step) * gradient,))

        one = lambda table, rows: update_rows((table,), *_of(rows, ok), rule)[0]
        return map_tables(lambda path, table: _over_layers(one, table, touched[path]), values), moments

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
    """Adam for value tables, lazy or dense.

    Lazy Adam changes the rows that have a gradient in a step, once each with their whole gradient, and leaves the
    others and their moments as they are; bias correction goes by the steps of the run, as in PyTorch's `SparseAdam`. A
    step costs what it reads, whatever the size of the table. It is Adam (Kingma & Ba 2015) where every row has a
    gradient in every step. The dense form is Adam: moments decay in every step and rows go on moving by them.

    The moments of both are the same, so a run may go on with the other form.

    Args:
      learning_rate: of a step; step 0 is the first.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      form: "auto" is dense for tables of at most `DENSE_UP_TO` rows a lookup of the step.
      split: what the mesh axis `model` splits of the tables.
    """
    if form not in ("auto", "lazy", "dense"):
        raise ValueError(f"form: given {form!r}, allowed: 'auto', 'lazy' or 'dense'")
    places: dict[str, Any] = {"axis": MODEL, "split": split}

    def init(values: Any) -> Any:
        return {"mu": jax.tree.map(jnp.zeros_like, values), "nu": jax.tree.map(jnp.zeros_like, values)}

    def update(
        values: Any, moments: Any, touched: Mapping[Path, TouchedRows], *, step: Int[Array, ""], ok: Bool[Array, ""]
    ) -> tuple[Any, Any]:
        @_finite
        def rule(rows: tuple[Array, ...], gradient: Array) -> tuple[Array, ...]:
            row, mu, nu = rows
            time = (step + 1).astype(row.dtype)
            mu, nu = b1 * mu + (1 - b1) * gradient, b2 * nu + (1 - b2) * gradient**2
            size = (mu / (1 - b1**time)) / (jnp.sqrt(nu / (1 - b2**time)) + eps)
            return row - learning_rate(step) * size, mu, nu

        def one(arrays: tuple[Array, ...], rows: TouchedRows) -> tuple[Array, ...]:
            if not is_dense(arrays[0].shape[0], rows.ids.size, form):
                return update_rows(arrays, *_of(rows, ok), rule, **places)
            new = rule(arrays, gradient_of_rows(arrays[0], *_of(rows, ok), **places))
            return tuple(jnp.where(ok, n.astype(o.dtype), o) for n, o in zip(new, arrays, strict=True))

        each = lambda path, *arrays: _over_layers(one, arrays, touched[path])
        values, mu, nu = split_pairs(map_tables(each, values, moments["mu"], moments["nu"]), 3)
        return values, {"mu": mu, "nu": nu}

    return TableOptimizer(init, update)


def freeze_tables(optimizer: TableOptimizer, names: Collection[str]) -> TableOptimizer:
    """The rule for all tables but those whose path contains one of `names`, which stay as they are."""

    def update(values: Any, moments: Any, touched: Mapping[Path, TouchedRows], **named: Any) -> tuple[Any, Any]:
        new, moments = optimizer.update(values, moments, touched, **named)
        kept = lambda path, old, changed: old if is_named("/".join(path), names) else changed
        return map_tables(kept, values, new), moments

    return TableOptimizer(optimizer.init, update)


def is_dense(rows: int, lookups: int, form: str = "auto") -> bool:
    """Whether `table_adam` updates a table of so many rows as a whole, given the lookups of a step.

    Example:
      >>> is_dense(2**16, 2**15), is_dense(2**18, 2**15)
      (True, False)
    """
    return form == "dense" or (form == "auto" and rows <= DENSE_UP_TO * lookups)


Rule = Callable[[tuple[Array, ...], Array], tuple[Array, ...]]


def _finite(rule: Rule) -> Rule:
    """The rule, but for rows of which it would make something that is not finite: they stay as they are.

    A table is written in place, some rows at a time: when the last of them is known, the first cannot be taken back.
    """

    def kept(rows: tuple[Array, ...], gradient: Array) -> tuple[Array, ...]:
        new = rule(rows, gradient)
        ok = functools.reduce(jnp.logical_and, [jnp.isfinite(n).all(axis=-1, keepdims=True) for n in new])
        return tuple(jnp.where(ok, n, old) for n, old in zip(new, rows, strict=True))

    return kept


def _of(rows: TouchedRows, ok: Array) -> tuple[Array, Array, Array]:
    """What was looked up; of no weight where the step does not count."""
    finite = jnp.where(ok, rows.gradients, 0)
    return rows.ids, jnp.where(ok, rows.weights, 0), finite


def _over_layers(function: Callable[..., Any], arrays: Any, rows: TouchedRows) -> Any:
    """`function(arrays, rows)`, for each layer where they have an axis of layers."""
    return jax.vmap(function)(arrays, rows) if rows.ids.ndim == 3 else function(arrays, rows)


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
    names = [f"{prefix}{path[-1]}/ids" for prefix in layer_prefixes(path, table)]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(
            f"tables: {'/'.join(path)} reports no ids, given Aux.arrays {sorted(arrays)}; put them there as "
            f"{missing[0]!r}"
        )
    return _stacked(names, table, arrays)


def weights_of(path: Path, table: Any, arrays: Mapping[str, Any]) -> Any:
    """The weights of the lookups, as `ids_of` has the ids; None for rows that are read one by one."""
    names = [f"{prefix}{path[-1]}/weights" for prefix in layer_prefixes(path, table)]
    return _stacked(names, table, arrays) if set(names) <= set(arrays) else None


def layer_prefixes(path: Path, table: Any) -> list[str]:
    """What stands before the names in `Aux` of each layer that a table has: `layer_<index>/`, or nothing.

    Example:
      >>> layer_prefixes(("stack", "layers_2", "feed_forward", "values"), jax.ShapeDtypeStruct((2, 9, 4), jnp.float32))
      ['layer_02/', 'layer_03/']
    """
    first = next((int(m[1]) for part in path if (m := re.fullmatch(r"layers_(\d+)", part))), None)
    layers = table.shape[0] if first is not None and len(table.shape) == 3 else 1
    return [""] if first is None else [f"layer_{first + i:02d}/" for i in range(layers)]


def _stacked(names: list[str], table: Any, arrays: Mapping[str, Any]) -> Any:
    return jnp.stack([arrays[name] for name in names]) if len(table.shape) == 3 else arrays[names[0]]


def make_gradient_sinks(values: Any, arrays: Mapping[str, Any], num_segments: int) -> Any:
    """Zeros for what the lookups of one row group return, `[segments, layers?, ..., dim]`, in the tables' structure.

    Args:
      values: the collection `tables`.
      arrays: shapes of `Aux.arrays` of one segment.
      num_segments: segments of a step.
    """

    def zeros(path: Path, table: Any) -> Array:
        shapes = jax.eval_shape(lambda a: (ids_of(path, table, a), weights_of(path, table, a)), dict(arrays))
        bags = shapes[0].shape if shapes[1] is None else shapes[0].shape[:-1]
        return jnp.zeros((num_segments, *bags, table.shape[-1]), table.dtype)

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
        weighed = weights_of(path, table, arrays) is not None
        flat = {name: array.reshape(-1, array.shape[-1] if weighed else 1) for name, array in _lookups(arrays).items()}
        ids = ids_of(path, table, flat)
        weights = weights_of(path, table, flat) if weighed else jnp.ones(ids.shape, table.dtype)
        gradients = leaves[path]
        if stacked:
            gradients = jnp.moveaxis(gradients, 2, 0)  # [layers, groups, segments, ..., dim]
        shape: tuple[int, ...] = (*ids.shape[:-1], table.shape[-1])
        touched[path] = TouchedRows(ids, weights, jnp.reshape(gradients, shape))
    return touched


def _lookups(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if name.endswith(("/ids", "/weights"))}


def map_tables(function: Callable[..., Any], values: Any, *others: Any) -> Any:
    """`function(path, table, ...)` for every table of a collection, with what other trees hold of it."""
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: function(_names(path), *leaves), values, *others)


def split_pairs(tuples: Any, number: int) -> tuple[Any, ...]:
    """A tree of tuples, of `number` each, as so many trees."""
    is_leaf = lambda node: isinstance(node, tuple)
    return tuple(jax.tree.map(lambda node, i=i: node[i], tuples, is_leaf=is_leaf) for i in range(number))


def _flatten(tree: Any) -> list[tuple[Path, Any]]:
    return [(_names(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _names(path: tuple[Any, ...]) -> Path:
    return tuple(str(key.key) for key in path)
