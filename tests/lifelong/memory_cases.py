"""An episodic memory that is split over 8 CPU devices against one on a single device: prints `equal`.

A program of its own, since the number of devices is fixed when jax starts.
"""

import functools
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import chex  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402

from memjax.axes import MESH_AXES  # noqa: E402
from memjax.lifelong import episodic_memory as memory
from memjax.lifelong import policies  # noqa: E402
from memjax.training.sharding import _method_names  # noqa: E402
from tests.lifelong.episodic_memory_test import DIM, batch_of, key_of, row_of  # noqa: E402

mesh = jax.make_mesh((8, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
make = functools.partial(memory.init_memory, row_of(), 24, DIM)
shapes = jax.eval_shape(make)
names = _method_names(shapes, {}, {})
places = jax.tree.map(lambda name, leaf: NamedSharding(mesh, name.spec(leaf.shape, mesh)), names, shapes)
policy = policies.priority_policy()


def steps(write, search, kept):
    for step in range(5):
        ids = np.arange(7 * step, 7 * step + 7)
        kept = write(kept, batch_of(ids), jax.random.fold_in(jax.random.key(0), step), policy, keys=key_of(ids))
    return kept, [search(kept, key_of([1, 20, 50]), number) for number in (4, 30)]


one = steps(jax.jit(memory.write, static_argnames="policy"), jax.jit(memory.nearest, static_argnums=2), make())
search = jax.jit(functools.partial(memory.nearest, axis="data", mesh=mesh), static_argnums=2)
write = jax.jit(memory.write, static_argnames="policy", donate_argnums=0, out_shardings=places)
split = steps(write, search, jax.device_put(make(), places))
assert split[0].keys.sharding.shard_shape(split[0].keys.shape) == (3, DIM)
chex.assert_trees_all_equal(*jax.device_get((one, split)))
print("equal")
