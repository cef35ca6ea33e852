"""Logical names of array axes, and the table of the mesh axes over which they are split.

A mesh has the axes `data`, `fsdp` and `model`. Axes get their names where arrays are defined: those of a parameter at
its initialiser (`named`), those of a memory state in its dataclass (`axes_of`), and those of the few activations that
decide the layout where they are computed (`constrain`). Nothing else in the library depends on devices, except the
lookup in a memory whose slots are split (`memjax.functional.sharded`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec

DATA, FSDP, MODEL = MESH_AXES = ("data", "fsdp", "model")

RULES: Mapping[str, tuple[str, ...]] = {
    "batch": (DATA, FSDP),
    "embed": (FSDP,),
    "heads": (MODEL,),
    "mlp": (MODEL,),
    "vocab": (MODEL,),
    "table_rows": (MODEL,),
    "table_columns": (MODEL,),
    "memory_heads": (MODEL,),
    "memory": (),
    "entries": (DATA,),
}
"""logical axis -> mesh axes over which it is split; others are never split. `embed` is an axis of parameters only"""

SLOT_SHARDED: Mapping[str, tuple[str, ...]] = {**RULES, "memory_heads": (), "memory": (MODEL,)}
"""`RULES` for a long memory whose slots are split instead of its heads"""

_naming: contextvars.ContextVar[bool] = contextvars.ContextVar("naming", default=False)
_rules: contextvars.ContextVar[Mapping[str, tuple[str, ...]]] = contextvars.ContextVar("rules", default=RULES)


def named(init: Callable[..., Any], *names: str | None) -> Callable[..., Any]:
    """Returns an initialiser like `init` whose array has logical names of its axes for `parameter_names`, one argument
    `*names` for each axis. Everywhere else it gives a plain array.

    Args:
      init: Initialiser, as `init(key, shape, dtype)` or with other arguments.
      *names: Logical name of each axis. None for an axis that is never split.

    Example:
      >>> import jax.numpy as jnp
      >>> named(nn.initializers.ones, "embed", "mlp")(jax.random.key(0), (2, 3), jnp.float32).shape
      (2, 3)
    """
    return functools.partial(_initialize, init, names)


def _initialize(init: Callable[..., Any], names: tuple[str | None, ...], *arguments: Any) -> Any:
    value = init(*arguments)
    if not _naming.get():
        return value
    if len(names) != value.ndim:
        raise ValueError(f"axes: {len(names)} names {names} given for a parameter of shape {tuple(value.shape)}")
    return _Named(value, names)


class _Named(nn.Partitioned):
    """A value with the names of its axes, which do not constrain its layout (unlike in `nn.Partitioned`)."""

    def unbox(self, apply_constraint: bool = True) -> Any:
        return self.value


def axes_of(*names: str | None) -> dict[str, Any]:
    """Returns metadata for `dataclasses.field` that names the axes of a field of a memory state, one argument for each
    axis, None for an axis that is never split.

    Without it the first axis is called `batch` and the others have no names.

    Example:
      >>> @dataclasses.dataclass
      ... class Slots:
      ...     keys: jax.Array = dataclasses.field(metadata=axes_of("batch", "memory_heads", "memory", None))
    """
    return {"axes": names}


def parameter_names(init: Callable[[], Any]) -> Any:
    """Returns a tree of `Names`, the names of the axes of all variables that the function `init()` makes. The function
    is traced and not run.

    Args:
      init: Function that makes the variables, such as `lambda: model.init(...)`. It is traced, not run.

    Returns:
      A tree of `Names` with the structure of the variables.

    Raises:
      ValueError: The axes of a parameter have no names.
    """
    token = _naming.set(True)
    try:
        variables = jax.eval_shape(lambda: init())
    finally:
        _naming.reset(token)

    def names(path: Any, value: Any) -> Names:
        if isinstance(value, _Named):
            return Names(value.names)
        if value.ndim == 0:
            return Names(())
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        raise ValueError(f"axes: {where} has no names; wrap its initialiser in memjax.axes.named")

    return jax.tree_util.tree_map_with_path(names, variables, is_leaf=lambda value: isinstance(value, _Named))


@dataclasses.dataclass(frozen=True)
class Names:
    """Logical names of the axes of one array, such as ('embed', 'mlp'), which rules map to mesh axes. An instance is a
    leaf of a tree.
    """

    axes: tuple[str | None, ...]

    def __getitem__(self, index: int) -> Names:
        """Names of `array[index]`."""
        return Names(self.axes[1:])

    def spec(self, shape: tuple[int, ...], mesh: Any, rules: Mapping[str, tuple[str, ...]] = RULES) -> PartitionSpec:
        """Returns the `PartitionSpec` of an array of this shape over a mesh, by `rules` from logical axes to mesh axes.
        An axis whose size is not a multiple of its number of devices is not split.

        Args:
          shape: Shape of the array.
          mesh: Mesh of devices.
          rules: Mesh axes of each logical axis.

        Example:
          >>> mesh = jax.sharding.AbstractMesh((1, 4, 2), MESH_AXES)
          >>> tuple(Names(("embed", "mlp")).spec((8, 6), mesh))
          ('fsdp', 'model')
          >>> tuple(Names(("embed", "mlp")).spec((6, 6), mesh))
          (None, 'model')
        """
        return PartitionSpec(*(axes or None for axes, _ in self._places(shape, mesh, rules)))

    def skipped(self, shape: tuple[int, ...], mesh: Any, rules: Mapping[str, tuple[str, ...]] = RULES) -> list[str]:
        """Returns a line of text for each axis that the rules would split but whose size is not a multiple of its
        number of devices. `spec` does not split these axes.
        """
        return [note for _, note in self._places(shape, mesh, rules) if note]

    def _places(self, shape: tuple[int, ...], mesh: Any, rules: Mapping[str, tuple[str, ...]]) -> list[tuple[Any, str]]:
        if len(self.axes) != len(shape):
            raise ValueError(f"axes: names {self.axes} given for an array of shape {tuple(shape)}")
        sizes, taken, places = dict(mesh.shape), set(), []
        for name, size in zip(self.axes, shape, strict=True):
            axes = tuple(a for a in rules.get(name or "", ()) if sizes.get(a, 1) > 1 and a not in taken)
            parts = math.prod(sizes[a] for a in axes)
            if size % parts:
                places.append((None, f"{name} = {size} over {' x '.join(axes)} = {parts}"))
                continue
            taken.update(axes)
            places.append((axes[0] if len(axes) == 1 else axes, ""))
        return places


@contextlib.contextmanager
def use_rules(rules: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Context manager that sets the rules (logical axis -> mesh axes) of `constrain` for programs that are traced
    inside it.
    """
    token = _rules.set(rules)
    try:
        yield
    finally:
        _rules.reset(token)


def constrain(x: Any, *names: str | None) -> Any:
    """Returns an activation with its sharding constrained by the logical names of its axes, one argument `*names` for
    each axis. Returns `x` unchanged where no mesh with axes of memjax is set (`jax.set_mesh`).

    Args:
      x: Activation.
      *names: Logical name of each axis. None for an axis that is not split.
    """
    # Without it the compiler may keep parameters where they are and move activations instead.
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not set(mesh.axis_names) & set(MESH_AXES):
        return x
    return jax.lax.with_sharding_constraint(x, Names(names).spec(x.shape, mesh, _rules.get()))
