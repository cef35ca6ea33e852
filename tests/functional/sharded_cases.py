"""Split slots against slots that are together, on 8 CPU devices: prints one JSON object, case -> what was found.

A program of its own (`python -m tests.functional.sharded_cases`), since the number of devices is fixed when jax starts.
"""

import dataclasses
import importlib
import json
import math
import os
import re
import sys
import traceback

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from memjax import axes, config, functional  # noqa: E402
from memjax.models.factory import make_language_model
from memjax.training.objective import Objective, model_loss  # noqa: E402
from memjax.training.sharding import Layout, make_mesh, put  # noqa: E402
from memjax.training.step import make_train_step  # noqa: E402
from memjax.training.train_state import init_train_state, init_variables  # noqa: E402
from memjax.typing import Batch  # noqa: E402
from tests.memory.memorizing_parts import memorizing_part  # noqa: E402

best_entries = importlib.import_module("memjax.functional.best_entries")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

ROWS = ("data", "fsdp")
COLLECTIVE = re.compile(
    r"= (\(.*?\)|\S+) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
ARRAY = re.compile(r"(pred|[a-z]+(\d+))\[([\d,]*)\]")


def pairs(a, b):
    return zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)


def largest(a, b) -> float:
    """The largest difference of two trees."""
    return max(float(np.max(np.abs(np.asarray(x) - np.asarray(y)))) for x, y in pairs(a, b))


def equal(a, b) -> bool:
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs(a, b))


def collectives(text: str) -> list[tuple[str, tuple[int, ...], int]]:
    """(kind, shape, bytes) of every array that a compiled program sends, by its result."""
    found = []
    for shapes, kind in COLLECTIVE.findall(text):
        for name, bits, shape in ARRAY.findall(shapes):
            size = tuple(int(n) for n in shape.split(",") if n)
            found.append((kind, size, math.prod(size) * (1 if name == "pred" else int(bits) // 8)))
    return found


# The lookup


def neighbors_together(queries, keys, values, scale, local_keys, local_values, valid, mask, *, num_neighbors):
    ids, real = functional.select_neighbors(jnp.swapaxes(queries, 1, 2), keys, valid, num_neighbors)
    near = functional.gather_slots(keys, ids), functional.gather_slots(values, ids)
    alone = functional.neighbor_attention(queries, *near, real, scale=scale)
    local = {"mask": mask, "neighbor_valid": real, "scale": scale}
    return alone, functional.joint_attention(queries, local_keys, local_values, *near, **local)


def neighbors_split(queries, keys, values, scale, local_keys, local_values, valid, mask, **named):
    found = functional.sharded_neighbors(queries, keys, values, valid, slot_axis="model", scale=scale, **named)
    local = functional.partial_attention(queries, local_keys, local_values, mask=mask, scale=scale)
    return functional.merge_partials(found), functional.merge_partials(found, local)


def with_gradients(function, **named):
    def loss(differentiable, *others):
        out = function(*differentiable, *others, **named)
        return sum(jnp.sin(x).sum() for x in out), out

    return jax.jit(jax.grad(loss, has_aux=True))


def lookup(mesh_shape, *, heads, rows=4, num_neighbors=4, ties=False, method="exact") -> dict:
    """Row 0 has an empty memory, row 1 fills a part of the first shards only, row 2 is full."""
    rng = np.random.default_rng(0)
    draw = rng.normal if not ties else lambda size: rng.integers(-1, 2, size).astype(float)
    length, slots, near, dim = 3, 24, 5, 4
    queries, keys = draw(size=(rows, length, heads, dim)), draw(size=(rows, heads, slots, dim))
    values = rng.normal(size=(rows, heads, slots, dim + 1))
    local = rng.normal(size=(rows, near, heads, dim)), rng.normal(size=(rows, near, heads, dim + 1))
    valid, mask = rng.random((rows, slots)) < 0.7, rng.random((rows, 1, length, near)) < 0.5
    valid[0], valid[1], valid[2], mask[:, :, 0] = False, np.arange(slots) < 5, True, False
    scale = rng.random(heads) + 0.5
    arguments = (queries, keys, values, scale, *local), valid, mask
    expected = with_gradients(neighbors_together, num_neighbors=num_neighbors)(*arguments)

    mesh = make_mesh(mesh_shape)
    by_row = ROWS if rows % math.prod(mesh_shape[:2]) == 0 else None
    by_head = P(by_row, None, "model" if heads % mesh_shape[2] == 0 else None)
    ring, flags = P(by_row, None, "model"), P(by_row, "model")
    specs = (by_head, ring, ring, P(), by_head, by_head), flags, P(by_row)
    with jax.set_mesh(mesh):
        arguments = jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), arguments, specs)
        got = with_gradients(neighbors_split, num_neighbors=num_neighbors, method=method)(*arguments)
    return {
        "values": largest(got[1], expected[1]),
        "gradients": largest(got[0], expected[0]),
        "empty": largest(got[1][0][0], np.zeros(())),
        "sizes": [float(np.abs(x).max()) for x in got[0]],
    }


def dropout() -> dict:
    """With one-hot values the output is the weights: what stays is scaled, what is dropped differs everywhere."""
    rows, length, heads, slots = 2, 4, 4, 16
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(rows, length, heads, 4)), rng.normal(size=(rows, heads, slots, 4))
    values = np.broadcast_to(np.eye(slots), (rows, heads, slots, slots))
    valid = np.ones((rows, slots), bool)

    @jax.jit
    def weights(key):
        dropping = {"dropout_rate": 0.5, "dropout_key": key} if key is not None else {}
        found = functional.sharded_neighbors(queries, keys, values, valid, slots, slot_axis="model", **dropping)
        return functional.merge_partials(found)

    with jax.set_mesh(make_mesh((2, 1, 4))):
        whole, kept = np.asarray(weights(None)), np.asarray(weights(jax.random.key(0)))
    stays = kept > 0
    parts = stays.reshape(rows, length, heads, 4, slots // 4).transpose(0, 3, 1, 2, 4).reshape(8, -1)
    return {
        "scaled": float(np.abs(np.where(stays, kept - 2 * whole, 0)).max()),
        "share": float(stays.mean()),
        "masks": len({part.tobytes() for part in parts}),
    }


# Rings


WRITE_ROWS = importlib.import_module("memjax.functional.sharded")._write_rows


def rings(mesh_shape, *, split: str = "slots") -> dict:
    """Writes of every place and length, idle rows, several layers at once; what they send, and what a restore gives.
    With `split="heads"` every device writes to its own rows and heads, as on TPUs.
    """
    by_device = split == "heads"
    module = importlib.import_module("memjax.functional.sharded")
    module.platform = lambda: "tpu" if by_device else "cpu"
    write, writes = WRITE_ROWS, []
    module._write_rows = lambda *arguments: writes.append(1) or write(*arguments)
    mesh = make_mesh(mesh_shape)
    layers, rows, heads, slots = 2, 4, 2, 16
    rng = np.random.default_rng(0)
    out = {"appended": True, "restored": True, "in_place": True, "sent": [], "ran": 0}
    active = np.array([True, False, True, True])
    for length, axis in ((5, 2), (19, 2), (5, 1)):
        shape = lambda n, axis=axis: (layers, rows, heads, n, 3) if axis == 2 else (layers, rows, n)
        draw = (lambda shape: rng.normal(size=shape)) if axis == 2 else (lambda shape: rng.random(shape) < 0.5)
        ring, new = draw(shape(slots)), draw(shape(length))

        axes = {"slot_axis": "", "head_axis": "model" if axis == 2 else ""} if by_device else {"slot_axis": "model"}

        def append(ring, new, cursor, axis=axis, axes=axes):
            return functional.sharded_append(ring, new, cursor, active, axis=axis, **axes)

        def undo(ring, new, cursor, axis=axis, length=length, append=append, axes=axes):
            window = min(length, slots)
            start = (cursor + length - window) % slots
            saved = functional.sharded_save(ring, start, window, slot_axis=axes["slot_axis"], axis=axis)
            written = append(ring, new, cursor)
            return functional.sharded_restore(written, saved, start, active, axis=axis, **axes)

        expect = jax.jit(jax.vmap(lambda r, n, c, a=axis: functional.ring_append(r, n, c, active, axis=a)))
        middle = () if by_device and axis == 1 else ("model",) if by_device else (*(None,) * (axis - 1), "model")
        place = NamedSharding(mesh, P(None, ROWS, *middle))
        by_row = NamedSharding(mesh, P(None, ROWS))
        with jax.set_mesh(mesh):
            inputs = (place, by_row, by_row)
            both = [jax.jit(jax.vmap(f), in_shardings=inputs, out_shardings=place) for f in (append, undo)]
            both = [f.lower(ring, new, np.zeros((layers, rows), np.int32)).compile() for f in both]
            for cursors in ((0, 3, 7, 12), (15, 2, 13, 4)):
                cursor = np.array([cursors, cursors[::-1]], np.int32)
                wanted = expect(ring, new, cursor)
                written, undone = (f(*jax.device_put((ring, new, cursor), inputs)) for f in both)
                out["appended"] &= equal(written, wanted)
                out["restored"] &= equal(undone, ring)
                out["in_place"] &= written.sharding.is_equivalent_to(place, ring.ndim)
                out["ran"] += 1
            for f in both:
                out["sent"] += collectives(f.as_text())
    return {**out, "writes_by_device": len(writes)}


def fused(mesh_shape) -> dict:
    """The kernel of attention, interpreted, on rows and heads of every device, and what it sends."""
    mesh = make_mesh(mesh_shape)
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    queries, keys, values = draw(4, 6, 4, 8), draw(4, 20, 2, 8), draw(4, 20, 2, 8)
    valid = rng.random((4, 20)) < 0.7
    seen = functional.visibility(6, jnp.asarray(valid[:, :14]), jnp.asarray(valid[:, 14:]))

    def plain(queries, keys, values):
        return jnp.square(functional.attention(queries, keys, values, mask=seen)).sum()

    def kernel(queries, keys, values):
        output = functional.fused_attention(queries, keys, values, valid, head_axis="model", interpret=True)
        return jnp.square(output).sum()

    expected = jax.value_and_grad(plain, (0, 1, 2))(*map(jnp.asarray, (queries, keys, values)))
    place = NamedSharding(mesh, P(ROWS, None, "model"))
    with jax.set_mesh(mesh):
        compiled = jax.jit(jax.value_and_grad(kernel, (0, 1, 2)), in_shardings=(place,) * 3)
        compiled = compiled.lower(queries, keys, values).compile()
        found = compiled(*jax.device_put((queries, keys, values), place))
    return {
        "difference": largest(found, expected),
        "sent": [sent for sent in collectives(compiled.as_text()) if sent[1]],
    }


# The attention part


def part() -> dict:
    """Segments with padding, idle rows and resets, then decoding; gradients of the parameters."""
    rows, length, segments, dim = 2, 4, 5, 8
    fields = {"memory_length": 16, "num_neighbors": 6, "cache_length": 3, "num_buckets": 4, "max_distance": 6}
    fields |= {"merge": "joint", "write_policy": "evicted", "retrieval": "approximate", "dtype": jnp.float64}
    make = lambda **more: memorizing_part(dim=dim, num_heads=4, head_dim=4, **fields, **more)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(segments, rows, length, dim))
    mask = np.ones((segments, rows, length), bool)
    mask[1, 0, 2:], mask[2, 1], mask[3, 0] = False, False, False
    starts = np.zeros((segments, rows), bool)
    starts[0], starts[2, 0] = True, True
    plain = make()
    params = plain.init(jax.random.key(0), x[0], plain.init_state(rows), start_of_document=starts[0])["params"]
    params = jax.tree.map(lambda p: rng.normal(size=p.shape), params)

    def run(module):
        def loss(params):
            def step(state, segment):
                x, start, mask = segment
                y, state, _ = module.apply({"params": params}, x, state, start_of_document=start, mask=mask)
                return state, y

            state, y = jax.lax.scan(step, module.init_state(rows, jnp.float64), (x, starts, mask))

            def token(state, x):
                y, state = module.apply({"params": params}, x, state, active=jnp.array([True, False]), method="decode")
                return state, y

            decoding = module.init_decode_state(state, length, rows)
            tokens = jnp.asarray(x[:2].swapaxes(1, 2).reshape(2 * length, rows, 1, dim))
            decoded, z = jax.lax.scan(token, decoding, jax.lax.stop_gradient(tokens))
            return jnp.sin(y).sum(), (y, state, z, decoded)

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    expected = run(plain)
    with jax.set_mesh(make_mesh((2, 1, 4))):
        got = run(make(slot_axis="model"))
    together = lambda tree: jax.tree.leaves(tree)  # the two differ in structure by the name of the mesh axis
    return {
        "outputs": largest(got[1][0], expected[1][0]),
        "state": largest(*(jax.tree.map(np.float64, together(run[1][1])) for run in (got, expected))),
        "decoded": largest(*(jax.tree.map(np.float64, together(run[1][2:])) for run in (got, expected))),
        "gradients": largest(got[0], expected[0]),
        "smallest_gradient": min(float(np.abs(g).max()) for g in jax.tree.leaves(expected[0])),
    }


# A model


LENGTH, BATCH, STEPS, SKIPPED = 8, 8, 6, 3


@dataclasses.dataclass
class Run:
    """A training of a small model: a scanned pair of layers with memories, and one without."""

    memory_length: int
    memory_sharding: str
    mesh: tuple[int, int, int] | None
    rules: dict = dataclasses.field(default_factory=lambda: dict(axes.SLOT_SHARDED))

    def __post_init__(self):
        attention = config.Memorizing(
            layers_with_memory=(0, 1), memory_length=self.memory_length, num_neighbors=4, cache_length=LENGTH
        )
        sizes = {"dim": 32, "num_layers": 3, "num_heads": 8, "head_dim": 4, "scan_layers": True}
        model = config.Model(attention=attention, compute_dtype="float64", memory_dtype="float64", **sizes)
        self.model = make_language_model(model, 64, memory_sharding=self.memory_sharding)
        self.objective, self.optimizer = Objective(model_loss(self.model)), optax.adam(1e-2)
        step = make_train_step(self.objective, self.optimizer, jit=False)
        if self.mesh is None:
            self.step, self.state = jax.jit(step), jax.jit(self.init)()
            return
        self.layout = Layout(make_mesh(self.mesh), self.rules)
        names = axes.parameter_names(lambda: init_variables(self.model, jax.random.key(0), LENGTH))
        self.places = self.layout.train_state(jax.eval_shape(self.init), names)
        rows = self.layout.batch(self.batch(0))
        with jax.set_mesh(self.layout.mesh), axes.use_rules(self.rules):
            self.state = jax.jit(self.init, out_shardings=self.places)()
            self.step = jax.jit(
                step,
                donate_argnums=0,
                in_shardings=(self.places, rows),
                out_shardings=(self.places, self.layout.replicated),
            )
            self.compiled = self.step.lower(self.state, put(self.batch(0), rows)).compile()
            self.step = lambda state, batch: self.compiled(state, put(batch, rows))

    def init(self):
        variables = init_variables(self.model, jax.random.key(0), LENGTH)
        variables = jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, variables)
        memory = self.model.init_state(BATCH, jnp.float64)
        return init_train_state(self.objective, self.optimizer, variables, memory, self.batch(0), jax.random.key(1))

    @staticmethod
    def batch(step: int) -> Batch:
        """Rows begin documents at random; one step is not finite, so that its memories are taken back."""
        rng = np.random.default_rng(step)
        ids = rng.integers(0, 64, (1, BATCH, LENGTH + 1)).astype(np.int32)
        starts = np.full((1, BATCH), step == 0) | (rng.random((1, BATCH)) < 0.1)
        weights = np.full((1, BATCH, LENGTH), np.inf if step == SKIPPED else 1.0, np.float32)
        return Batch(ids[..., :-1], ids[..., 1:], np.ones((1, BATCH, LENGTH), bool), weights, starts, {})

    def train(self) -> list[float]:
        losses = []
        for step in range(STEPS):
            self.state, metrics = self.step(self.state, self.batch(step))
            losses.append(float(metrics["nll"].total))
        return losses


def train() -> dict:
    one, split = Run(24, "heads", None), Run(24, "slots", (2, 2, 2))
    expected, got = one.train(), split.train()
    same_place = jax.tree.map(
        lambda x, place: x.sharding.is_equivalent_to(place, x.ndim), split.state.memory, split.places.memory
    )
    keys = split.state.memory.stack.groups[0].attention.memory.keys
    numbers = lambda tree: [np.asarray(x, float) for x in jax.tree.leaves(tree)]
    return {
        "losses": largest(got, expected),
        "memory": largest(numbers(split.state.memory), numbers(one.state.memory)),
        "params": largest(split.state.params, one.state.params),
        "learned": expected[0] - expected[-1],
        "skipped": float(split.state.totals["skipped"].total),
        "in_place": all(jax.tree.leaves(same_place)),
        "shape": keys.shape,
        "part": keys.sharding.shard_shape(keys.shape),
    }


def traffic() -> dict:
    """What one training step sends, by hand and as the compiler would do it, with the search of a TPU."""
    slots, search = 256, best_entries._search_on_cpu
    best_entries._search_on_cpu = lambda scores, number: tuple(jax.lax.top_k(scores, number))
    try:
        split, plain = (Run(slots, sharding, (2, 1, 4)) for sharding in ("slots", "heads"))
        sent, compilers = (collectives(run.compiled.as_text()) for run in (split, plain))
    finally:
        best_entries._search_on_cpu = search
    ring = (BATCH // 2) * 8 * (slots // 4) * 4  # numbers in a device's part of one layer's keys
    return {
        "bytes": sum(size for _, _, size in sent),
        "compilers_bytes": sum(size for _, _, size in compilers),
        "largest": max(math.prod(shape) for _, shape, _ in sent),
        "compilers_largest": max(math.prod(shape) for _, shape, _ in compilers),
        "ring": ring,
        "kinds": sorted({kind for kind, _, _ in sent}),
        "donated": split.compiled.memory_analysis().alias_size_in_bytes,
        "memory": 2 * 2 * ring * 8,
    }


CASES = {
    "lookup_1_1_8": lambda: lookup((1, 1, 8), heads=8, num_neighbors=6),
    "lookup_2_1_4": lambda: lookup((2, 1, 4), heads=3, method="approximate"),
    "lookup_2_2_2": lambda: lookup((2, 2, 2), heads=2),
    "lookup_ties": lambda: lookup((2, 2, 2), heads=2, rows=3, ties=True),
    "dropout": dropout,
    "rings_1_1_8": lambda: rings((1, 1, 8)),
    "rings_2_1_4": lambda: rings((2, 1, 4)),
    "rings_2_2_2": lambda: rings((2, 2, 2)),
    "rows_2_2_2": lambda: rings((2, 2, 2), split="heads"),
    "rows_4_1_2": lambda: rings((4, 1, 2), split="heads"),
    "fused_2_2_2": lambda: in_float32(fused, (2, 2, 2)),
    "fused_4_1_2": lambda: in_float32(fused, (4, 1, 2)),
    "part": part,
    "train": train,
    "traffic": traffic,
}


def in_float32(case, *arguments) -> dict:
    with jax.enable_x64(False):
        return case(*arguments)


def main(names: list[str]) -> None:
    results = {}
    for name in names or CASES:
        try:
            results[name] = CASES[name]()
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
