"""Rows that episodic memories store: checks of them, their form for policies, and padding."""

import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.lifelong.policies import CandidateRows
from memjax.memory.state_trees import describe_kind, is_array_like, kind_of
from memjax.typing import Batch


def check_row(row: Any) -> None:
    """Raises an error for a row without arrays, with a leaf that is none, or a `Batch` that lacks what replay needs."""
    leaves = jax.tree_util.tree_leaves_with_path(row)
    if not leaves:
        raise ValueError(f"row: given {row!r}, allowed: a tree with one array or more, such as a Batch or a dict")
    for path, leaf in leaves:
        if not is_array_like(leaf) and not isinstance(leaf, bool | int | float):
            leaf_text = f"{leaf!r} of {type(leaf).__name__}"
            raise ValueError(f"{_label('row', path)}: given {leaf_text}, allowed: an array or jax.ShapeDtypeStruct")
    for name in ("mask", "weights", "start_of_document") if isinstance(row, Batch) else ():
        if getattr(row, name) is None:
            raise ValueError(f"row.{name}: given None, allowed: an array; rows without it are a dict, not a Batch")


def _label(name: str, path: Any) -> str:
    """Returns the name of a leaf of a tree, such as `rows.inputs`."""
    inner = jax.tree_util.keystr(path, simple=True, separator=".")
    return f"{name}.{inner}" if inner else name


def require_integer(name: str, value: Any, least: int, allowed: str) -> None:
    """Raises an error unless `value` is an integer of at least `least`. `allowed` describes the range."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: given {value!r}, allowed: {allowed}")


def check_key(key: Any) -> None:
    """Raises an error for a number or None in the place of a random key."""
    if not is_array_like(key):
        raise ValueError(f"key: given {key!r}, allowed: a random key, such as jax.random.key(0)")


def check_memory(memory: Any) -> None:
    """Raises an error for what is no episodic memory, such as rows in its place."""
    if not hasattr(memory, "entries"):
        memory_text = "None" if memory is None else type(memory).__name__
        raise ValueError(f"memory: given {memory_text}, allowed: the result of init_memory or write")


def is_policy(policy: Any) -> bool:
    """Whether an object can be called with the arguments of a policy, which a function that makes a policy cannot."""
    try:
        inspect.signature(policy).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True


def make_candidates(memory: Any, rows: Any, keys: Any, groups: Any, scores: Any, weights: Any) -> CandidateRows:
    """Checks rows that are offered to a memory, and returns them in the form that policies read (`CandidateRows`):
    keys, groups, scores, and whether each row has targets, a weight above 0, and no NaN or infinity.

    Args:
      memory: An `EpisodicMemoryState` or a `HostMemory`.
      rows: Rows `[rows, ...]` on devices or on the host.
      keys: Keys of the rows, or None. See `write`.
      groups: Groups of the rows, or None. See `write`.
      scores: Scores of the rows, or None. See `write`.
      weights: Weights of the rows, or None. See `write`.

    Raises:
      ValueError: shapes or dtypes do not fit the memory.
    """
    number = _check_rows(memory.rows, rows)
    width = None if memory.keys is None else memory.keys.shape[1]
    if (None if keys is None else tuple(keys.shape)) != (None if width is None else (number, width)):
        shape = "none" if keys is None else list(keys.shape)
        raise ValueError(f"keys: given {shape}, allowed: {'none' if width is None else [number, width]}, see key_dim")
    present = has_weight(rows, weights, number) & is_finite((rows, keys, scores), number)
    groups = np.full(number, -1) if groups is None else groups
    scores = np.zeros(number) if scores is None else scores
    return CandidateRows(keys, groups.astype(np.int32), scores.astype(np.float32), present)


def has_weight(rows: Any, weights: Any, number: int) -> Any:
    """Returns which of `number` rows have targets and a weight above 0, bool `[rows]`."""
    present = jnp.ones(number, bool)
    if isinstance(rows, Batch):
        present = (rows.weights.reshape(number, -1) > 0).any(axis=1)
    return present if weights is None else present & (weights > 0)


def is_finite(arrays: Any, number: int) -> Any:
    """Returns which of `number` rows have no NaN and no infinity in a tree of arrays `[rows, ...]`, bool `[rows]`. A
    memory that held others would make every replay of them fail.
    """
    floats = [leaf for leaf in jax.tree.leaves(arrays) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    finite = [jnp.isfinite(leaf).reshape(number, -1).all(axis=1) for leaf in floats]
    return functools.reduce(jnp.logical_and, finite, jnp.ones(number, bool))


def _check_rows(stored: Any, rows: Any) -> int:
    """Returns the number of offered rows, after a check that each has the shapes and dtypes of the stored rows.

    Raises:
      ValueError: Other arrays, shapes or dtypes, or arrays with different numbers of rows.
    """
    if kind_of(rows) is not kind_of(stored):
        allowed = f"{describe_kind(stored)}, as init_memory was given"
        raise ValueError(f"rows: given {describe_kind(rows)}, allowed: {allowed}")
    have = {name: _describe_array(leaf, ("rows", *leaf.shape[1:])) for name, leaf in _leaves(stored).items()}
    offered = _leaves(rows)
    for name in {**have, **offered}:
        leaf = offered.get(name)
        if leaf is None or not np.ndim(leaf) or _describe_array(leaf, ("rows", *np.shape(leaf)[1:])) != have.get(name):
            leaf_text = "none" if leaf is None else _describe_array(leaf, np.shape(leaf))
            raise ValueError(f"{name}: given {leaf_text}, allowed: {have.get(name, 'none')}")
    if jax.tree.structure(rows) != jax.tree.structure(stored):
        raise ValueError("rows: given a tree of another structure, allowed: that of init_memory's row")
    numbers = {name: np.shape(leaf)[0] for name, leaf in zip(have, jax.tree.leaves(rows), strict=True)}
    first, number = next(iter(numbers.items()))
    for name, other in numbers.items():
        if other != number:
            raise ValueError(f"{name}: given {other} rows, allowed: {number}, as {first}")
    return number


def _leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of rows by their names, such as `rows.inputs`."""
    return {_label("rows", path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _describe_array(array: Any, shape: Sequence[Any]) -> str:
    """Describes the dtype of an array and a shape, such as `float32 [rows, 2]`."""
    return f"{jnp.result_type(array)} [{', '.join(map(str, shape))}]"


def mask_invalid(rows: Any, valid: Any) -> Any:
    """Returns rows of which those that are not `valid`, a bool for each row, are padding. All rows of a `Batch` are
    marked as the start of a document.
    """
    like = lambda leaf: valid.reshape(valid.shape + (1,) * (leaf.ndim - valid.ndim))
    if not isinstance(rows, Batch):
        where = lambda leaf: (np if isinstance(leaf, np.ndarray) else jnp).where(like(leaf), leaf, leaf.dtype.type(0))
        return jax.tree.map(where, rows)
    return dataclasses.replace(
        rows,
        mask=rows.mask & like(rows.mask),
        weights=rows.weights * like(rows.weights),
        start_of_document=rows.start_of_document | True,
    )
