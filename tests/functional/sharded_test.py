"""Slots split over a mesh axis: what 8 devices give (see `sharded_cases`), and what there is without a mesh."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.axes import SLOT_SHARDED, Names
from memjax.functional import (
    gather_slots,
    joint_attention,
    merge_partials,
    neighbor_attention,
    num_shards,
    partial_attention,
    read_window,
    ring_append,
    select_neighbors,
    sharded_append,
    sharded_neighbors,
    sharded_restore,
    sharded_save,
)
from memjax.memory.memorizing import MemorizingAttention
from memjax.memory.state_trees import state_names
from memjax.models.factory import make_language_model
from memjax.training.sharding import make_mesh

ROOT = Path(__file__).parent.parent.parent
CLOSE = 1e-10


@pytest.fixture(scope="module")
def found() -> dict:
    """What every case found, from one program on 8 devices."""
    command = [sys.executable, "-m", "tests.functional.sharded_cases"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture
def case(found, request) -> dict:
    result = found[request.param]
    assert "error" not in result, result["error"]
    return result


def of(*names: str):
    return pytest.mark.parametrize("case", names, indirect=True)


@pytest.mark.slow
@of("lookup_1_1_8", "lookup_2_1_4", "lookup_2_2_2", "lookup_ties")
def test_neighbors_are_those_of_the_whole_memory(case):
    """Values and gradients; more neighbours than a shard has slots, heads and rows that do not divide, ties."""
    assert case["values"] < CLOSE and case["gradients"] < CLOSE
    assert case["empty"] == 0, "a row with an empty memory reads something"
    assert min(case["sizes"]) > 0.01, "a gradient that is compared is zero everywhere"


@pytest.mark.slow
@of("dropout")
def test_dropout_draws_for_every_shard_and_row(case):
    assert case["scaled"] < CLOSE
    assert 0.35 < case["share"] < 0.65
    assert case["masks"] == 8, "two rows or shards drop the same weights"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case, writes",
    [
        *(pytest.param(name, 0, id=name) for name in ("rings_1_1_8", "rings_2_1_4", "rings_2_2_2")),
        # two rings of keys, each appended twice and restored once; a ring without heads has too few rows for the mesh
        *(pytest.param(name, 6, id=name) for name in ("rows_2_2_2", "rows_4_1_2")),
    ],
    indirect=["case"],
)
def test_rings_are_written_where_they_are(case, writes):
    """Past the end, over several shards, more entries than slots; idle rows stay, and a restore undoes all of it."""
    assert case["appended"] and case["restored"] and case["in_place"]
    assert case["sent"] == []
    assert case["ran"] == 6
    assert case["writes_by_device"] == writes


@pytest.mark.slow
@of("fused_2_2_2", "fused_4_1_2")
def test_every_device_computes_the_attention_of_its_own_rows_and_heads(case):
    assert case["difference"] < 1e-4
    assert case["sent"] == []  # but the sum of the loss


@pytest.mark.slow
@of("part")
def test_attention_part_with_split_slots(case):
    """Padding, idle rows, resets, wrap-around and decoding equal the part with its slots together."""
    assert max(case[name] for name in ("outputs", "state", "decoded", "gradients")) < CLOSE
    assert case["smallest_gradient"] > 0.01


@pytest.mark.slow
@of("train")
def test_training_equals_one_device(case):
    """Under the scan over layers, with one step that is taken back; every leaf of the state keeps its place."""
    assert case["memory"] < CLOSE and case["params"] < CLOSE
    assert case["losses"] < 1e-4, "sums of some hundred nats, reported in float32"
    assert case["learned"] > 1 and case["skipped"] == 1
    assert case["in_place"]
    layers, rows, heads, slots, dim = case["shape"]
    assert case["part"] == [layers, rows // 4, heads, slots // 2, dim]


@pytest.mark.slow
@of("traffic")
def test_what_a_training_step_sends(case):
    """Nothing of the size of a device's part of the ring, and a fraction of what the compiler alone would send."""
    assert case["largest"] < case["ring"] / 4
    assert case["compilers_largest"] > case["ring"], "the compiler has learned it: is this mode still needed?"
    assert case["bytes"] < case["compilers_bytes"] / 4
    assert "all-to-all" in case["kinds"]
    assert case["donated"] > case["memory"]


@pytest.fixture
def lookup() -> tuple:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    valid = jnp.asarray([[False] * 6, [True, False, True, False, False, True]])
    return draw(2, 3, 2, 4), draw(2, 2, 6, 4), draw(2, 2, 6, 5), valid


@pytest.mark.parametrize("mesh", [None, (1, 1, 1)])
def test_without_a_split_it_is_the_ordinary_path(mesh, lookup):
    queries, keys, values, valid = lookup
    ids, real = select_neighbors(jnp.swapaxes(queries, 1, 2), keys, valid, 4)
    expected = neighbor_attention(queries, gather_slots(keys, ids), gather_slots(values, ids), real)
    broken = (jnp.where(valid[:, None, :, None], slots, jnp.nan) for slots in (keys, values))
    ring, new, cursor = keys, keys[:, :, :4] + 1, jnp.array([4, 1], jnp.int32)
    with jax.set_mesh(make_mesh(mesh)) if mesh else jax.default_matmul_precision("highest"):
        assert num_shards("model", 6) == 1
        got = jax.jit(lambda *a: merge_partials(sharded_neighbors(*a, 4, slot_axis="model")))(queries, *broken, valid)
        saved = sharded_save(ring, cursor, 4, slot_axis="model", axis=2)
        written = sharded_append(ring, new, cursor, slot_axis="model", axis=2)
        undone = sharded_restore(written, saved, cursor, slot_axis="model", axis=2)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert np.array_equal(saved, read_window(ring, cursor, 4, axis=2))
    assert np.array_equal(written, ring_append(ring, new, cursor, axis=2))
    assert np.array_equal(undone, ring)


def test_partial_attention_merges_with_neighbors(lookup):
    queries, keys, values, valid = lookup
    ids, real = select_neighbors(jnp.swapaxes(queries, 1, 2), keys, valid, 4)
    local = jnp.swapaxes(keys, 1, 2) + 1, jnp.swapaxes(values, 1, 2) - 1
    mask = jnp.asarray(np.random.default_rng(1).random((2, 1, 3, 6)) < 0.5).at[:, :, 0].set(False)
    bias, scale = jnp.linspace(-9.0, 9.0, 2 * 3 * 6).reshape(1, 2, 3, 6), jnp.array([0.5, 30.0])
    near = gather_slots(keys, ids), gather_slots(values, ids)
    expected = joint_attention(
        queries, *local, *near, mask=mask, neighbor_valid=real, bias=bias, scale=scale, dropout_rate=0.0
    )
    found = sharded_neighbors(*lookup, 4, slot_axis="model", scale=scale)
    got = merge_partials(found, partial_attention(queries, *local, mask=mask, bias=bias, scale=scale))
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert not np.any(got[0, 0]), "a query that sees nothing in both"


def test_slots_that_the_axis_does_not_divide_stay_together():
    mesh = jax.sharding.AbstractMesh((2, 1, 4), ("data", "fsdp", "model"))
    with jax.sharding.use_abstract_mesh(mesh):
        assert [num_shards("model", slots) for slots in (8, 6)] == [4, 1]
        assert [num_shards(axis, 8) for axis in ("", "elsewhere", "fsdp")] == [1, 1, 1]


def test_errors_name_the_argument(lookup):
    with pytest.raises(ValueError, match="num_neighbors: given 7, allowed: 1 to 6"):
        sharded_neighbors(*lookup, 7, slot_axis="model")
    with pytest.raises(ValueError, match="length: given 7 entries, allowed: up to 6"):
        sharded_save(lookup[1], jnp.zeros(2, jnp.int32), 7, slot_axis="model", axis=2)
    with pytest.raises(ValueError, match="dropout_key: given None with dropout_rate 0.5"):
        sharded_neighbors(*lookup, 4, slot_axis="model", dropout_rate=0.5)


@pytest.mark.parametrize(
    "field, value",
    [("retrieval", "bucket"), ("retrieval", "threshold"), ("empty_memory", "zeros"), ("track_positions", True)],
)
def test_what_split_slots_do_not_support(field, value):
    part = MemorizingAttention(8, 2, 4, memory_length=8, num_neighbors=2, slot_axis="model", **{field: value})
    with pytest.raises(ValueError, match=f"{field}: given {value!r} for a memory whose slots are split"):
        part.init_state(1)


def test_the_model_says_what_is_split():
    attention = config.Memorizing(layers_with_memory=(1,), memory_length=8, num_neighbors=2, cache_length=4)
    model = config.Model(dim=8, num_layers=2, num_heads=2, attention=attention)
    axes = [layer.attention.slot_axis for layer in make_language_model(model, 8, memory_sharding="slots").stack.layers]
    assert axes == ["", "model"]
    state = jax.eval_shape(lambda: make_language_model(model, 8, memory_sharding="slots").init_state(4))
    names = state_names(state).stack.groups[1].attention.memory
    assert names.keys == Names(("batch", "memory_heads", "memory", None)) and names.slot_axis == "model"
    mesh = jax.sharding.AbstractMesh((2, 1, 4), ("data", "fsdp", "model"))
    assert tuple(names.keys.spec((4, 2, 8, 4), mesh, SLOT_SHARDED)) == ("data", None, "model", None)
    with pytest.raises(ValueError, match="memory_sharding: given 'rows', allowed: 'heads' or 'slots'"):
        make_language_model(model, 8, memory_sharding="rows")
