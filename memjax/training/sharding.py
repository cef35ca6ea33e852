"""Makes device meshes and decides how every array of a run is split over them.

Parameters and optimiser state are split by the names of their axes (`memjax.axes`). Memory states and batches are split
by batch rows. A run on one device has no mesh.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from memjax.axes import MESH_AXES, RULES, SLOT_SHARDED, Names, use_rules
from memjax.config import Sharding
from memjax.memory.state_trees import is_array_like, state_names
from memjax.training.tables import Tables
from memjax.training.train_state import TrainState
from memjax.training.trained_parameters import is_part_of, select_like

ROWS = ("data", "fsdp")
"""Mesh axes that split batch rows."""


def mesh_shape(num_devices: int, *, data: int = 0, fsdp: int = 1, model: int = 1) -> tuple[int, int, int]:
    """Computes the sizes `(data, fsdp, model)` of the axes of a mesh of `num_devices` devices. One of the given sizes
    may be 0, which stands for what is left.

    Args:
      num_devices: Number of devices of the mesh.
      data: Size of the axis `data`. 0 for the number of devices divided by the other sizes.
      fsdp: Size of the axis `fsdp`, or 0.
      model: Size of the axis `model`, or 0. At most one of the three sizes may be 0.

    Raises:
      ValueError: The product of the sizes is not the number of devices.

    Example:
      >>> mesh_shape(8, fsdp=4)
      (2, 4, 1)
    """
    sizes = (data, fsdp, model)
    product = math.prod(size for size in sizes if size)
    if sizes.count(0) > 1 or min(sizes) < 0 or num_devices % product or (0 not in sizes and product != num_devices):
        raise ValueError(
            f"sharding: given data x fsdp x model = {' x '.join(map(str, sizes))}, allowed: sizes whose product is the "
            f"number of devices, {num_devices}; at most one 0, which stands for what is left"
        )
    data, fsdp, model = (size or num_devices // product for size in sizes)
    return data, fsdp, model


def make_mesh(shape: Sequence[int], devices: Sequence[Any] | None = None) -> Mesh:
    """Makes a mesh with the axes `data`, `fsdp` and `model`, for `jax.set_mesh`.

    Args:
      shape: Sizes of the three axes.
      devices: Devices of the mesh. None for all devices.
    """
    # Automatic axes: the compiler chooses the layout of arrays that no rule names. With explicit axes, the default of
    # `jax.make_mesh`, embeddings and ordinary products fail.
    shape, types = tuple(shape), (AxisType.Auto,) * len(shape)
    try:
        return jax.make_mesh(shape, MESH_AXES, devices=devices, axis_types=types)
    except NotImplementedError:  # an axis is not a product of sides of a TPU slice: split a side
        devices = jax.devices() if devices is None else devices
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        return Mesh(grid, MESH_AXES, axis_types=types)


def make_layout(sharding: Sharding, devices: Sequence[Any] | None = None) -> Layout | None:
    """Makes the `Layout` that settings (`sharding`) describe, over all devices or the given ones. Returns None for a
    single device.

    Args:
      sharding: Settings of the mesh.
      devices: Devices of the mesh. None for all devices.

    Raises:
      ValueError: The sizes of the mesh do not fit the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = mesh_shape(len(devices), data=sharding.data, fsdp=sharding.fsdp, model=sharding.model)
    if len(devices) == 1:
        return None
    return Layout(make_mesh(shape, devices), SLOT_SHARDED if sharding.split_memory_by == "slots" else RULES)


def check_rows(rows: int, mesh: Any, *, what: str = "data.batch_size") -> None:
    """Raises `ValueError` unless the number of batch rows is a multiple of the parts into which the mesh splits them.
    `what` names the setting in the message.

    Args:
      rows: Number of batch rows.
      mesh: Device mesh.
      what: Name of the setting, for the message.

    Raises:
      ValueError: The mesh does not divide the number of rows.
    """
    parts = row_shards(mesh)
    if rows % parts:
        raise ValueError(f"{what}: given {rows}, allowed: a multiple of {parts} (data x fsdp of the mesh)")


def row_shards(mesh: Any) -> int:
    """Returns the number of parts into which a mesh splits batch rows. 1 for an empty mesh."""
    sizes = dict(mesh.shape)
    return math.prod(sizes.get(axis, 1) for axis in ROWS)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A device mesh, and rules for how the arrays of a run are split over it.

    Attributes:
      mesh: Device mesh from `make_mesh`, or an abstract mesh.
      rules: Mesh axes that split each logical axis, by the name of the logical axis.
    """

    mesh: Any
    rules: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: RULES)

    @property
    def replicated(self) -> NamedSharding:
        """Sharding that puts the whole array on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def rows(self, axis: int = 0) -> NamedSharding:
        """Returns the sharding that splits batch rows at `axis` and no other axis."""
        return NamedSharding(self.mesh, PartitionSpec(*(None,) * axis, ROWS))

    def axes(self, name: str, size: int) -> tuple[str, ...]:
        """Returns the names of the mesh axes that split a logical axis of this name and size. Empty if none does."""
        place = Names((name,)).spec((size,), self.mesh, self.rules)[0]
        return () if place is None else (place,) if isinstance(place, str) else tuple(place)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context manager that makes the mesh and the rules known to programs that are traced inside it."""
        with jax.set_mesh(self.mesh), use_rules(self.rules):
            yield

    def host_rows(self, rows: int) -> tuple[int, int]:
        """Returns the range `(start, stop)` of batch rows on the devices of this process.

        Raises:
          ValueError: The rows of this process are not consecutive.
        """
        places = self.rows().addressable_devices_indices_map((rows,)).values()
        spans = {(place[0].start or 0, rows if place[0].stop is None else place[0].stop) for place in places}  # type: ignore[index]
        start, stop = min(a for a, _ in spans), max(b for _, b in spans)
        if sum(b - a for a, b in spans) != stop - start:
            raise ValueError(
                f"sharding: the devices of process {jax.process_index()} hold rows that are not neighbours, "
                f"{sorted(spans)}; allowed: a mesh in which data x fsdp follows the processes"
            )
        return start, stop

    def of(self, names: Any, shapes: Any) -> Any:
        """Returns the sharding of every array of a tree, as a tree. `names` has the `Names` of the axes of each array,
        and `shapes` the arrays or their shapes.

        Args:
          names: Tree of `Names`, the names of the axes of each array.
          shapes: Tree of arrays or their shapes, with the structure of `names`.
        """
        return jax.tree.map(
            lambda name, leaf: NamedSharding(self.mesh, name.spec(leaf.shape, self.mesh, self.rules)), names, shapes
        )

    def memory(self, state: Any) -> Any:
        """Returns the shardings of a memory or decode state, as a tree of its structure."""
        return self.of(state_names(state), state)

    def train_state(self, state: Any, names: Mapping[str, Any]) -> Any:
        """Returns the shardings of a `TrainState`, as a tree of its structure. `names` are those of the axes of the
        variables, from `parameter_names`.

        Args:
          state: Train state or its shapes.
          names: Names of the axes of the variables, from `memjax.axes.parameter_names`.
        """
        return self.of(train_state_names(state, names), state)

    def batch(self, batch: Any, *, segments: bool = True) -> Any:
        """Returns the shardings of a batch, whose rows are at axis 1, or at axis 0 if `segments` is False. Rows that
        the mesh does not divide are copied to every device.

        Args:
          batch: Batch or its shapes.
          segments: Whether the arrays are `[segments, batch, ...]`. False for one segment, `[batch, ...]`.
        """
        # The rows that a method stores of a task need not be a multiple of what the mesh divides.
        axis, parts = int(segments), row_shards(self.mesh)
        split, whole = self.rows(axis), self.replicated
        return jax.tree.map(lambda leaf: whole if leaf.shape[axis] % parts else split, batch)

    def skipped(self, names: Any, shapes: Any) -> list[str]:
        """Lists the rules that are not applied because they do not divide an axis, one line each. `names` and `shapes`
        are trees as in `of`.

        Each line reads `name of the array: axis = size over axes`. `names` and `shapes` are trees as in `of`.
        """
        notes: list[str] = []

        def note(path: Any, name: Names, leaf: Any) -> None:
            array_name = jax.tree_util.keystr(path, simple=True, separator="/")
            notes.extend(f"{array_name}: {text}" for text in name.skipped(leaf.shape, self.mesh, self.rules))

        jax.tree_util.tree_map_with_path(note, names, shapes)
        return notes


def train_state_names(state: TrainState, names: Mapping[str, Any]) -> TrainState:
    """Returns a train state with the `Names` of the axes in place of every array. `names` are those of the variables of
    the model, from `parameter_names`.

    Args:
      state: Train state or its shapes.
      names: Names of the axes of the variables, from `memjax.axes.parameter_names`.
    """
    plain = lambda tree: jax.tree.map(lambda leaf: Names((None,) * leaf.ndim), tree)
    tables = names.get("tables", {})
    return TrainState(
        step=Names(()),
        params=names["params"],
        tables=Tables(tables, _names_like(state.tables.moments, tables, state.tables.values)),
        opt_state=_names_like(state.opt_state, names["params"], state.params),
        batch_stats=names.get("batch_stats", {}),
        constants=names.get("constants", {}),
        memory=state_names(state.memory),
        key=Names(()),
        totals=plain(state.totals),
        restart=Names(("batch",)),
        method=_method_names(state.method, names["params"], state.params),
    )


def _method_names(node: Any, names: Any, params: Any) -> Any:
    """Returns the names of the axes of the state of a learning method.

    A subtree with the structure of the parameters, or of a part of them, gets their names, for all leaves whose shapes
    agree. The fields of a dataclass get the names that the dataclass declares (`axes_of`) for their first axes. All
    other axes have no name.
    """
    if jax.tree.leaves(node) and is_part_of(node, params):
        like = lambda name, leaf, whole: name if leaf.shape == whole.shape else Names((None,) * leaf.ndim)
        return jax.tree.map(like, select_like(names, node), node, select_like(params, node))
    if is_array_like(node):
        return Names((None,) * node.ndim)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = [field for field in dataclasses.fields(node) if not field.metadata.get("static")]
        padded = lambda axes, ndim: Names((*axes, *(None,) * (ndim - len(axes))))
        declared = lambda axes, part: jax.tree.map(lambda leaf: padded(axes, leaf.ndim), part)
        names_by_field = {
            field.name: declared(field.metadata["axes"], getattr(node, field.name))
            if "axes" in field.metadata
            else _method_names(getattr(node, field.name), names, params)
            for field in fields
        }
        return dataclasses.replace(node, **names_by_field)
    return jax.tree.map(
        lambda child: _method_names(child, names, params), node, is_leaf=lambda child: child is not node
    )


def _names_like(tree: Any, names: Any, values: Any) -> Any:
    """Returns the names of the axes of optimiser statistics, from those of the parameters that they belong to.

    Moments have the names of their parameter. Factored moments lack the axis that was summed over.

    Args:
      tree: Optimiser state, with subtrees of the structure of `values` anywhere in it.
      names: Names of the axes of the parameters.
      values: Parameters or their shapes.
    """
    known = {
        _keys(path): (name, tuple(leaf.shape))
        for (path, name), leaf in zip(
            jax.tree_util.tree_flatten_with_path(names)[0], jax.tree.leaves(values), strict=True
        )
    }

    def find(path: Any, leaf: Any) -> Names:
        keys, shape = _keys(path), tuple(leaf.shape)
        for start in range(len(keys)):
            name, whole = known.get(keys[start:], (None, ()))
            if name is None:
                continue
            if shape == whole:
                return name
            if len(whole) > 1 and len(shape) == len(whole) - 1:  # Adafactor sums over one of the two largest axes
                smaller, larger = np.argsort(whole, kind="stable")[-2:]
                summed = larger if "v_row" in keys[:start] else smaller
                if shape == tuple(np.delete(whole, summed)):
                    return Names(name.axes[:summed] + name.axes[summed + 1 :])
        return Names((None,) * leaf.ndim)

    return jax.tree_util.tree_map_with_path(find, tree)


def _keys(path: Any) -> tuple[str, ...]:
    """Returns the entries of a path in a tree as strings."""
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)


def put(tree: Any, shardings: Any) -> Any:
    """Places host arrays that are equal on every process on the devices, as global arrays."""
    return jax.tree.map(_put, tree, shardings)


def _put(value: Any, sharding: NamedSharding) -> jax.Array:
    """Places one array that is equal on every process on the devices."""
    if jax.process_count() == 1:
        return jax.device_put(value, sharding)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = _put(jax.random.key_data(value), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def put_rows(tree: Any, shardings: Any) -> Any:
    """Places arrays with the rows of this process on the devices, as global arrays with the rows of all processes."""
    return jax.tree.map(
        lambda value, sharding: jax.make_array_from_process_local_data(sharding, value), tree, shardings
    )
