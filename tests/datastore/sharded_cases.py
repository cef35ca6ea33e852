"""Keys split over 8 CPU devices against keys on one: prints one JSON object, case -> what was found.

A program of its own (`python -m tests.datastore.sharded_cases FOLDER`), since the number of devices is fixed when jax
starts.
"""

import functools
import json
import os
import re
import sys
import traceback
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

from memjax.datastore import ExactIndex, ShardedIndex, nearest_entries, nearest_entries_sharded, open_index  # noqa: E402
from tests.datastore.stores import make_store  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")

GOLDEN = Path(__file__).parent.parent / "golden" / "faiss_exact.npz"
FOLDER = Path(sys.argv[1])
SENT = re.compile(
    r"= (\(.*?\)|\S+) (?:all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
ARRAY = re.compile(r"(?:f32|s32|pred)\[([\d,]*)\]")
METRICS = {"squared_l2": "l2", "inner_product": "ip"}


def make_mesh(*shape):
    names = ("data", "fsdp")[: len(shape)]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape)), names


def bytes_of(shape: str) -> int:
    return 4 * int(np.prod([int(n) for n in shape.split(",") if n]))


def golden(metric: str, *shape: int) -> dict:
    """1000 entries on 8 devices are 125 each, in shards of the store that lie across devices."""
    with np.load(GOLDEN) as file:
        expected = dict(file)
    folder = FOLDER / "golden"
    if not folder.exists():
        make_store(folder, expected["base"], shards=[333, 667])
    from memjax.datastore import Store

    mesh, names = make_mesh(*shape)
    axis = names if len(names) > 1 else names[0]
    index = open_index(Store(folder), "sharded", metric=metric, mesh=mesh, axis=axis, query_batch=10, block_entries=50)
    found = index.search(expected["query"], 32)
    scores = expected[f"{METRICS[metric]}_scores"]
    return {
        "ids": bool(np.array_equal(found.ids, expected[f"{METRICS[metric]}_ids"])),
        "scores": float(np.max(np.abs(found.scores - scores) / np.maximum(1, np.abs(scores)))),
        "valid": bool(found.valid.all()),
    }


def uneven() -> dict:
    """Fewer entries than rows, than neighbours, than devices; ties everywhere: as on one device, to the last id."""
    rng, mesh = np.random.default_rng(0), make_mesh(8)[0]
    wrong = []
    for entries in (1, 9, 61):
        keys = rng.integers(-1, 2, (entries, 3)).astype(np.float32)
        store = make_store(FOLDER / f"uneven{entries}", keys)
        for metric in METRICS:
            one = ExactIndex(keys, metric=metric, block_entries=16)
            split = ShardedIndex.from_store(store, mesh=mesh, metric=metric, block_entries=4)
            for num_neighbors in (2, 20):
                queries = rng.integers(-1, 2, (5, 3)).astype(np.float32)
                a, b = one.search(queries, num_neighbors), split.search(queries, num_neighbors)
                if not all(np.array_equal(x, y) for x, y in zip(a, b, strict=True)):
                    wrong.append((entries, metric, num_neighbors))
    return {"wrong": wrong}


def ranges() -> dict:
    """Shards of different sizes with numbers of their own, in a function that is compiled under the mesh."""
    rng, mesh = np.random.default_rng(1), make_mesh(8)[0]
    counts = np.array([5, 0, 3, 8, 8, 1, 2, 7], np.int32)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32)
    keys, queries = rng.normal(size=(64, 4)).astype(np.float32), rng.normal(size=(16, 4)).astype(np.float32)
    real = np.concatenate([keys[8 * s : 8 * s + n] for s, n in enumerate(counts)])
    expected = nearest_entries(jnp.asarray(queries), jnp.asarray(real), 6)
    search = jax.jit(functools.partial(nearest_entries_sharded, num_neighbors=6, counts=counts, first_ids=first))
    with jax.set_mesh(mesh):
        found = search(queries, jax.device_put(keys, NamedSharding(mesh, PartitionSpec("data"))))
    return {
        "ids": bool(np.array_equal(found.ids, expected.ids)),
        "scores": float(np.max(np.abs(found.scores - expected.scores))),
        "split": [shard.data.shape for shard in found.ids.addressable_shards],
    }


def traffic() -> dict:
    """What a search sends: candidates, never keys; what each device needs besides its keys does not grow with them."""
    mesh, _ = make_mesh(8)
    search = jax.jit(functools.partial(nearest_entries_sharded, num_neighbors=8, mesh=mesh, block_entries=256))
    shape = lambda *sizes, spec: jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=NamedSharding(mesh, spec))
    found = {"bytes": [], "temporaries": []}
    for entries in (1 << 14, 1 << 18):
        keys = shape(entries, 16, spec=PartitionSpec("data"))
        norms = shape(entries, spec=PartitionSpec("data"))
        compiled = search.lower(shape(32, 16, spec=PartitionSpec()), keys, half_norms=norms).compile()
        found["bytes"].append(
            [sum(map(bytes_of, ARRAY.findall(shapes))) for shapes in SENT.findall(compiled.as_text())]
        )
        found["temporaries"].append(compiled.memory_analysis().temp_size_in_bytes)
    return found


def errors() -> dict:
    mesh, _ = make_mesh(8)
    found = {}
    for name, arguments in {"rows": {"mesh": mesh}, "axis": {"mesh": mesh, "axis": "model"}, "unset": {}}.items():
        try:
            nearest_entries_sharded(jnp.zeros((1, 2)), jnp.zeros((9, 2)), 1, **arguments)
        except ValueError as error:
            found[name] = str(error)
    return found


CASES = {
    **{
        f"golden_{m}_{'x'.join(map(str, s))}": functools.partial(golden, m, *s) for m in METRICS for s in ((8,), (2, 4))
    },
    "uneven": uneven,
    "ranges": ranges,
    "traffic": traffic,
    "errors": errors,
}


def main() -> None:
    found = {}
    for name, case in CASES.items():
        try:
            found[name] = case()
        except Exception:
            found[name] = {"error": traceback.format_exc()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
