"""Episodic memory on a device and on the host: one set of tests for both."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from scipy.special import chdtri

from memjax.axes import MESH_AXES
from memjax.datastore.scann import ScannSettings
from memjax.lifelong import episodic_memory as memory
from memjax.lifelong import host_memory, policies, stored_rows
from memjax.lifelong.host_memory import HostMemory
from memjax.training.checkpoints import Checkpoints
from memjax.training.sharding import _method_names
from memjax.typing import Batch
from tests.datastore.stores import clusters
from tests.programs import printed
from tests.reference.nearest import nearest

LENGTH, DIM, CAPACITY, ROWS = 3, 4, 20, 8
DRAWN = 30  # more than the capacity
POLICIES = {
    "ring": policies.write_all_policy(),
    "reservoir": policies.reservoir_policy(),
    "balanced": policies.balanced_policy(),
    "diverse": policies.diversity_policy(0.5, full="drop"),
}

start = jax.jit(lambda capacity, key_dim: memory.init_memory(row_of(), capacity, key_dim), static_argnums=(0, 1))
write = jax.jit(memory.write, static_argnames="policy", donate_argnums=0)
sample = jax.jit(memory.sample, static_argnames=("number", "replace"))
look_up = jax.jit(memory.nearest, static_argnames=("number", "metric"))
delete = jax.jit(memory.delete, donate_argnums=0)
take = jax.jit(memory.read_slots)
set_scores = jax.jit(memory.set_scores, donate_argnums=0)


def row_of(length=LENGTH):
    leaf = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype)
    parts = (leaf(dtype, length) for dtype in (jnp.int32, jnp.int32, bool, jnp.float32))
    return Batch(*parts, leaf(bool), {"example": leaf(jnp.int32)})


def key_of(ids):
    return np.sin(np.outer(np.asarray(ids) + 1, np.arange(1, DIM + 1))).astype(np.float32)


QUERIES = np.concatenate([key_of([0, 3]), np.random.default_rng(0).normal(size=(4, DIM)).astype(np.float32)])


def batch_of(ids, present=None):
    """Rows whose tokens, targets and extras say their ids; rows that are not present are padding."""
    ids = np.asarray(ids, np.int32)
    present = np.ones(len(ids), bool) if present is None else present
    tokens = np.broadcast_to(ids[:, None], (len(ids), LENGTH))
    weights = np.broadcast_to(present[:, None] * np.float32([0, 1, 0.5]), tokens.shape)
    mask = np.broadcast_to(present[:, None], tokens.shape)
    return Batch(tokens, tokens + 1, mask, weights, np.zeros(len(ids), bool), {"example": ids + 2})


class OnDevice:
    """The functions as methods, as `HostMemory` has them."""

    def __init__(self, row, capacity, key_dim=0):
        self.state = start(capacity, key_dim)

    def write(self, rows, key, policy, **given):
        self.state = write(self.state, rows, key, policy, **given)

    def delete(self, chosen):
        self.state = delete(self.state, chosen)

    def set_scores(self, ids, scores):
        self.state = set_scores(self.state, ids, scores)

    def sample(self, key, number, **options):
        return sample(self.state, key, number, **options)

    def take(self, ids):
        return take(self.state, ids)

    def nearest(self, queries, number, **options):
        return look_up(self.state, queries, number, **options)

    def __getattr__(self, name):
        return getattr(self.state, name)


KINDS = {"device": OnDevice, "host": HostMemory}


@pytest.fixture(params=KINDS)
def make(request):
    return lambda capacity=CAPACITY, key_dim=DIM: KINDS[request.param](row_of(), capacity, key_dim)


def fill(kept, ids, policy=POLICIES["ring"], seed=0, present=None):
    """Writes rows of these ids in batches; the last batch is padded, which must not count."""
    for i, first in enumerate(range(0, len(ids), ROWS)):
        part = np.resize(np.asarray(ids[first : first + ROWS]), ROWS)
        real = np.arange(ROWS) < len(ids) - first
        given = {"keys": key_of(part)} if kept.keys is not None else {}
        key = jax.random.fold_in(jax.random.key(seed), i)
        kept.write(batch_of(part, real), key, policy, groups=part % 3, scores=part / 2.0, **given)
    return kept


def ids_in(kept):
    return np.asarray(kept.rows.inputs)[: int(kept.count), 0]


def assert_paired(kept, offered):
    """All that is known of a row stands in its slot."""
    ids, used = ids_in(kept), slice(int(kept.count))
    assert set(ids.tolist()) <= set(offered)
    wanted = batch_of(ids)
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: np.asarray(leaf)[used], kept.rows), wanted)
    assert (np.asarray(kept.groups)[used] == ids % 3).all()
    np.testing.assert_array_equal(np.asarray(kept.keys)[used], key_of(ids))


@pytest.mark.parametrize("name", POLICIES)
def test_rows_stay_with_their_keys(make, name):
    """Over many writes and deletions, with padding, only rows that were offered."""
    kept, offered = make(), np.arange(45)
    fill(kept, offered[:30], POLICIES[name])
    assert_paired(kept, offered[:30])
    assert int(kept.offered) == 30
    before = set(ids_in(kept).tolist())
    kept.delete(np.array([0, 5, 5, -1, int(kept.count) - 1, CAPACITY + 3]))
    assert len(before - set(ids_in(kept).tolist())) == 3 and int(kept.count) == len(before) - 3
    assert_paired(kept, before)
    fill(kept, offered[30:], POLICIES[name], seed=1)
    assert_paired(kept, offered)
    assert int(kept.offered) == 45 and np.asarray(kept.offered).dtype.kind == "i"
    if name != "diverse":
        assert int(kept.count) == CAPACITY


def test_device_and_host_are_equal():
    """Bit for bit, whatever is done; and so are the rows that are drawn."""
    both = [kind(row_of(), CAPACITY, DIM) for kind in KINDS.values()]
    for step, policy in enumerate(POLICIES.values()):
        for kept in both:
            fill(kept, np.arange(13 * step, 13 * step + 13), policy, seed=step)
            kept.delete(np.arange(CAPACITY) % 7 == step)
            kept.set_scores(np.array([step, -1]), np.array([100.0, 200.0]))
        for name in ("rows", "keys", "groups", "scores", "count", "offered", "written"):
            chex.assert_trees_all_equal(*(jax.tree.map(np.asarray, getattr(kept, name)) for kept in both))
        for replace in (True, False):
            draws = [kept.sample(jax.random.key(step), DRAWN, replace=replace) for kept in both]
            chex.assert_trees_all_equal(*map(jax.device_get, draws))


def test_one_program_for_every_fill_level():
    programs = [write, sample, take, look_up, host_memory._draw, host_memory._search]
    both = [kind(row_of(), CAPACITY, DIM) for kind in KINDS.values()]
    sizes, counts = [], []
    for first in range(0, 40, 7):  # the last rows of each batch are padding
        for episodes in both:
            fill(episodes, np.arange(first, first + 7), POLICIES["reservoir"])
            episodes.take(episodes.nearest(QUERIES, 7).ids)
            episodes.sample(jax.random.key(0), DRAWN)
        policies = [decide for episodes in both for decide in getattr(episodes, "_deciders", {}).values()]
        sizes.append([program._cache_size() for program in [*programs, *policies]])
        counts.append(int(episodes.count))
    assert all(size == sizes[0] for size in sizes) and counts == [7, 14, 20, 20, 20, 20]


def test_a_slot_that_is_given_twice_holds_the_later_row(make):
    kept = make(2)
    kept.write(batch_of(range(7)), jax.random.key(0), POLICIES["ring"], keys=key_of(range(7)))
    assert ids_in(kept).tolist() == [6, 5] and (int(kept.count), int(kept.written)) == (2, 7)
    np.testing.assert_array_equal(kept.keys, key_of([6, 5]))


def test_no_slot_is_scattered_to_twice():
    """Which of two values would stay is not defined on every device."""
    kept = HostMemory(row_of(), 2, DIM)
    offered = stored_rows.make_candidates(kept, batch_of(range(7)), key_of(range(7)), None, None, None)
    decide = jax.jit(memory.assign_slots, static_argnames="policy")
    new = decide(kept.entries, offered, jax.random.key(0), POLICIES["ring"])
    assert new.slots.tolist() == [2, 2, 2, 2, 2, 1, 0] and int(new.written) == 7


def test_padding_is_neither_offered_nor_written(make):
    kept = make()
    present = np.array([1, 0, 1, 0], bool)
    kept.write(batch_of(range(4), present), jax.random.key(0), POLICIES["ring"], keys=key_of(range(4)))
    assert ids_in(kept).tolist() == [0, 2] and int(kept.offered) == int(kept.written) == 2
    given = {"keys": key_of(range(4)), "weights": np.float32([0, 1, 1, 0])}
    kept.write(batch_of(range(4), present), jax.random.key(0), POLICIES["ring"], **given)
    assert ids_in(kept).tolist() == [0, 2, 2] and int(kept.offered) == 3


def test_rows_that_are_not_finite_are_not_written(make):
    kept = make()
    scores = np.float32([1, np.nan, 1, -np.inf])
    kept.write(batch_of(range(4)), jax.random.key(0), POLICIES["ring"], keys=key_of(range(4)), scores=scores)
    assert ids_in(kept).tolist() == [0, 2] and int(kept.offered) == int(kept.written) == 2


def test_sampling_is_uniform_over_what_is_in_use(make):
    kept = fill(make(), np.arange(9))
    found = np.zeros(9)
    for seed in range(50):
        drawn, weights = kept.sample(jax.random.key(seed), DRAWN)
        found += np.bincount(np.asarray(drawn.inputs)[:, 0], minlength=9)
        assert np.all(weights == 1) and np.all(drawn.start_of_document)
    wanted = 50 * DRAWN / 9
    assert np.sum((found - wanted) ** 2) / wanted < chdtri(8, 1e-3)
    firsts = []
    for seed in range(30):
        drawn, weights = kept.sample(jax.random.key(seed), DRAWN, replace=False)
        ids = np.asarray(drawn.inputs)[:, 0]
        real = np.asarray(weights) == 1
        assert sorted(ids[real]) == list(range(9)) and real.sum() == 9
        assert not np.asarray(drawn.weights)[~real].any() and not np.asarray(drawn.mask)[~real].any()
        chex.assert_trees_all_equal(np.asarray(drawn.weights)[real], batch_of(ids[real]).weights)
        firsts.append(ids[0])
    assert len(set(firsts)) > 4


def test_an_empty_memory_replays_nothing(make):
    kept = make()
    for replace in (True, False):
        drawn, weights = kept.sample(jax.random.key(0), DRAWN, replace=replace)
        assert not np.any(weights) and not np.any(drawn.weights) and not np.any(drawn.mask)
        assert np.all(drawn.start_of_document) and np.shape(drawn.inputs) == (DRAWN, LENGTH)
    found = kept.nearest(QUERIES, 7)
    assert not np.any(found.valid) and np.all(np.asarray(found.ids) == -1) and np.all(np.isinf(found.distances))
    assert not np.any(kept.take(found.ids).weights)


@pytest.mark.parametrize("metric", ["squared_l2", "inner_product"])
@pytest.mark.parametrize("count", [5, 20])
def test_nearest_is_that_of_sorting(make, monkeypatch, metric, count):
    """More than there are, ties, keys behind the rows in use, in several blocks."""
    monkeypatch.setattr(host_memory, "BLOCK", 8)
    ids = np.arange(count) % 17  # 17, 18, 19 are equal to 0, 1, 2
    kept = fill(make(), np.concatenate([ids, 20 + np.arange(20 - count)]))
    kept.delete(np.arange(count, 20))
    queries, number = QUERIES, 7
    found = kept.nearest(queries, number, metric=metric)
    expected = nearest(queries, key_of(ids), number, metric)
    for scores, found_ids, valid, pairs in zip(found.distances, found.ids, found.valid, expected, strict=True):
        real = min(number, count)
        assert np.asarray(valid).tolist() == [True] * real + [False] * (number - real)
        np.testing.assert_allclose(scores[:real], [score for score, _ in pairs], rtol=1e-4, atol=1e-5)
        assert np.all(np.asarray(found_ids)[:real] < count) and np.all(np.asarray(found_ids)[real:] == -1)
        assert len(set(np.asarray(found_ids)[:real].tolist())) == real
        own = ((queries[:, None] - key_of(ids)[None]) ** 2).sum(-1)
    if metric == "squared_l2":
        assert np.allclose(own[np.arange(6), np.asarray(found.ids)[:, 0]], own.min(axis=1), atol=1e-6)
        np.testing.assert_allclose(np.asarray(found.distances)[:2, 0], 0, atol=1e-6)  # of itself
    rows = kept.take(found.ids)
    assert np.shape(rows.inputs) == (6, number, LENGTH)
    assert (np.asarray(rows.weights).any(axis=-1) == np.asarray(found.valid)).all()
    assert (np.asarray(rows.inputs)[0, 0] == 0).all()


def test_checkpoint_roundtrip(tmp_path):
    """What a memory does after a restart is what it would have done: writes, draws and neighbours."""
    make_both = lambda key_dim: (OnDevice(row_of(), CAPACITY, key_dim), HostMemory(row_of(), CAPACITY, key_dim))
    saved, fresh = ([*make_both(DIM), *make_both(0)] for _ in range(2))
    for kept in saved:
        fill(kept, np.arange(30), POLICIES["reservoir"])
    states, hosts = [saved[0].state, saved[2].state], [saved[1].arrays(), saved[3].arrays()]
    tree = {"method": states, "key": jax.random.key(7), "host": hosts}
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, tree)
    found = checkpoints.restore(jax.eval_shape(lambda tree: tree, tree)).tree
    checkpoints.close()
    for i in range(2):
        fresh[2 * i].state = jax.tree.map(jnp.array, found["method"][i])
        fresh[2 * i + 1].restore(found["host"][i])
    for old, new in zip(saved, fresh, strict=True):
        for kept in (old, new):
            fill(kept, np.arange(30, 42), POLICIES["reservoir"], seed=1)
        draws = [jax.device_get(kept.sample(found["key"], DRAWN)) for kept in (old, new)]
        chex.assert_trees_all_equal(*draws)
        chex.assert_trees_all_equal(*(jax.tree.map(np.asarray, kept.rows) for kept in (old, new)))
    other = HostMemory(row_of(), CAPACITY + 1)
    with pytest.raises(ValueError, match=r"arrays: given groups \[20\], allowed: \[21\], as this memory has it"):
        other.restore(found["host"][1])


def test_a_write_and_a_draw_copy_no_memory():
    """In the compiled program for 100,000 rows: all of the memory is updated in place."""
    shapes = jax.eval_shape(lambda: memory.init_memory(row_of(128), 100_000, 64))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((16, *leaf.shape), leaf.dtype), row_of(128))
    key, keys = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((16, 64), jnp.float32)
    for name in ("reservoir", "diverse"):
        used = write.lower(shapes, rows, key, POLICIES[name], keys=keys).compile().memory_analysis()
        assert used.alias_size_in_bytes == size and used.temp_size_in_bytes < 0.05 * size
    read = jax.jit(lambda *given: memory.sample(*given, 32)).lower(shapes, key).compile().memory_analysis()
    assert read.temp_size_in_bytes < 0.01 * size


def test_entries_are_split_over_the_data_axis():
    """What `memjax.training.sharding` makes of a memory in `TrainState.method`."""
    kept = jax.eval_shape(lambda: memory.init_memory(row_of(), 8, DIM))
    mesh = AbstractMesh((4, 1, 1), MESH_AXES)
    names = _method_names({"episodes": kept}, {}, {})["episodes"]
    specs = jax.tree.map(lambda name, leaf: name.spec(leaf.shape, mesh), names, kept)
    assert {leaf.shape[0] for leaf, spec in zip(*map(jax.tree.leaves, (kept, specs)), strict=True) if spec} == {8}
    assert tuple(specs.rows.inputs) == ("data", None) and tuple(specs.rows.extras["example"]) == ("data",)
    assert tuple(specs.keys) == ("data", None) and tuple(specs.count) == ()


def test_nearest_on_a_mesh_of_one_device():
    kept = fill(OnDevice(row_of(), CAPACITY, DIM), np.arange(11))
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    queries = key_of([3, 7, 30])
    found = jax.jit(lambda *given: memory.nearest(*given, 4, axis="data", mesh=mesh))(kept.state, queries)
    chex.assert_trees_all_equal(tuple(found), tuple(kept.nearest(queries, 4)))


@pytest.mark.slow
def test_on_eight_devices():
    """Written and searched where the entries are split, a memory is the same."""
    assert printed("-m", "tests.lifelong.memory_cases") == ["equal"]


@pytest.mark.parametrize("metric", ["squared_l2", pytest.param("inner_product", marks=pytest.mark.slow)])
def test_scann_finds_what_was_written_since_its_build(metric):
    """What was replaced since is never found by its old key, what is new exactly; a doubled memory is rebuilt."""
    settings = ScannSettings(num_leaves=1, brute_force_entries=100)
    kept = HostMemory(row_of(), 600, 8, index="scann", settings=settings)
    exact = HostMemory(row_of(), 600, 8)
    points, key = clusters(1000, 8, centres=20), jax.random.key(0)

    def put(first, last):
        for one in (kept, exact):
            one.write(batch_of(np.arange(first, last)), key, POLICIES["ring"], keys=points[first:last])

    def recall(first):
        queries, number = points[first : first + 40], 10
        found, right = (one.nearest(queries, number, metric=metric) for one in (kept, exact))
        assert found.valid.all() and (found.ids < kept.count).all()
        np.testing.assert_allclose(
            found.distances[found.ids == right.ids], right.distances[found.ids == right.ids], rtol=1e-4, atol=1e-3
        )
        return np.mean([len(set(a) & set(b)) / number for a, b in zip(found.ids, right.ids, strict=True)])

    put(0, 50)
    assert recall(0) == 1 and not kept._built, "few rows are searched exactly"
    put(50, 300)
    assert recall(0) > 0.9 and kept._built[metric].index.entries == 300
    put(300, 400)
    assert recall(300) > 0.9 and kept._built[metric].index.entries == 300
    put(400, 650)  # more than have been there, and the first 50 are replaced
    assert recall(5) > 0.9 and kept._built[metric].index.entries == 600
    put(650, 800)
    if metric == "squared_l2":
        own = kept.nearest(points[650:690], 10).distances[:, 0]
        assert np.allclose(own, 0, atol=1e-3), "written since"
        gone = kept.nearest(points[60:100], 10).distances[:, 0]
        assert np.all(gone > 1e-3), "replaced since"
    kept.delete(np.arange(0, 600, 3))
    exact.delete(np.arange(0, 600, 3))
    assert recall(200) > 0.9


def test_without_scann_it_says_so(monkeypatch):
    monkeypatch.setattr(host_memory.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"index: scann is not installed; pip install 'memjax\[knn\]'"):
        HostMemory(row_of(), 4, DIM, index="scann")


def test_the_counter_of_offered_rows_stops_at_its_end():
    kept = OnDevice(row_of(), CAPACITY, DIM)
    kept.state = dataclasses.replace(kept.state, offered=jnp.asarray(2**31 - 3, jnp.int32))
    assert int(fill(kept, np.arange(16)).offered) == 2**31 - 1


@pytest.mark.parametrize(
    "call, line",
    [
        (lambda kept: memory.init_memory(row_of(), 0), "capacity: given 0, allowed: 1 or more rows"),
        (lambda kept: memory.init_memory(row_of(), 1, -1), "key_dim: given -1, allowed: 0 (no keys) or more"),
        (
            lambda kept: kept.write(batch_of([1]), jax.random.key(0), POLICIES["ring"]),
            "keys: given none, allowed: [1, 4], see key_dim",
        ),
        (
            lambda kept: kept.write(
                batch_of([1]), jax.random.key(0), POLICIES["ring"], keys=np.zeros((1, 3), np.float32)
            ),
            "keys: given [1, 3], allowed: [1, 4], see key_dim",
        ),
        (
            lambda kept: kept.write(
                dataclasses.replace(batch_of([1]), inputs=np.zeros((1, 5), np.int32)),
                jax.random.key(0),
                POLICIES["ring"],
            ),
            "rows.inputs: given int32 [1, 5], allowed: int32 [rows, 3]",
        ),
        (
            lambda kept: kept.write(dataclasses.replace(batch_of([1]), extras={}), jax.random.key(0), POLICIES["ring"]),
            "rows.extras.example: given none, allowed: int32 [rows]",
        ),
        (lambda kept: kept.delete(np.ones(3, bool)), "chosen: given bool [3], allowed: bool [20] or ids"),
        (lambda kept: kept.sample(jax.random.key(0), 0), "number: given 0, allowed: 1 or more rows"),
    ],
)
def test_what_is_refused(make, call, line):
    with pytest.raises(ValueError) as error:
        call(make())
    assert str(error.value) == line


def test_a_memory_without_keys_is_not_searched(make):
    kept = fill(make(key_dim=0), np.arange(3))
    with pytest.raises(ValueError, match="memory: given one without keys, allowed: "):
        kept.nearest(key_of([0]), 1)
    with pytest.raises(ValueError, match="policy: diverse compares keys, given a memory without"):
        kept.write(batch_of([1]), jax.random.key(0), POLICIES["diverse"])


def test_the_host_refuses_keys_that_are_not_finite():
    keys = key_of([0, 1])
    keys[1, 2] = np.nan
    with pytest.raises(ValueError, match="keys: given row 1 that is NaN or infinite"):
        HostMemory(row_of(), 4, DIM).write(batch_of([0, 1]), jax.random.key(0), POLICIES["ring"], keys=keys)
    with pytest.raises(ValueError, match="index: given 'tree', allowed: exact, scann"):
        HostMemory(row_of(), 4, DIM, index="tree")
