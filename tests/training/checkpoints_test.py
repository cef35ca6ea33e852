import contextlib
import json
import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.cli.errors import explain
from memjax.durable_files import DiskFull
from memjax.training.checkpoints import Checkpoints
from memjax.training.lazy_arrays import LazyArray
from memjax.training.named_arrays import describe_arrays, flatten, unflatten

GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")
FULL_DISK = "no space is left on the disk; step 3 is not saved; free some and run the same command again"
BIG = np.arange(4096, dtype=np.float32).reshape(64, 64)


def tree(scale=1.0):
    return {
        "params": {"stack": {"layer_00": {"kernel": scale * BIG}}, "bias": jnp.ones(3, jnp.bfloat16)},
        "opt_state": (jnp.zeros((), jnp.int32), {"mu": BIG + 1}),
        "valid": np.array([True, False]),
        "key": jax.random.key(7, impl="threefry2x32"),
    }


def shapes():
    return jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf if leaf.dtype != bool else jnp.asarray(leaf), tree()))


@pytest.fixture
def opened(tmp_path):
    lines = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2, on_warning=lines.append)
    yield checkpoints, lines
    checkpoints.close()


def damage(checkpoints, step, part="state"):
    """Flips one bit in every file of data."""
    folder = checkpoints.directory / f"{step:08d}" / part
    files = [
        os.path.join(at, name)
        for at, _, names in os.walk(folder)
        for name in names
        if at.endswith("/d") or part != "state"
    ]
    assert files
    for name in files:
        with open(name, "r+b") as file:
            content = bytearray(file.read())
            content[len(content) // 2] ^= 4
            file.seek(0)
            file.write(content)


def test_what_is_saved_comes_back(opened):
    checkpoints, lines = opened
    assert checkpoints.steps() == [] and checkpoints.restore(shapes()) is None
    for step in (2, 4, 6):
        checkpoints.save(step, tree(step), extra={"position": [step, 0.1]})
    assert checkpoints.steps() == [4, 6]
    step, restored, extra = checkpoints.restore(shapes())
    assert (step, extra) == (6, {"position": [6, 0.1]})
    expected = tree(6)
    assert jax.tree.structure(restored) == jax.tree.structure(expected)
    for (name, a), b in zip(flatten(restored).items(), flatten(expected).values(), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes(), name
    draws = [jax.random.uniform(t["key"]) for t in (restored, expected)]
    assert draws[0] == draws[1]
    with pytest.raises(Exception, match="already exists"):
        checkpoints.save(6, tree())
    with pytest.raises(ValueError, match="memory/slots has shape \\(0, 3\\)"):
        checkpoints.save(8, {"memory": {"slots": np.zeros((0, 3))}})

    # A reader in another process, of a part.
    reader = Checkpoints(checkpoints.directory, read_only=True)
    step, arrays, _ = reader.load("params/")
    assert step == 6 and sorted(arrays) == ["params/bias", "params/stack/layer_00/kernel"]
    np.testing.assert_array_equal(arrays["params/stack/layer_00/kernel"], 6 * BIG)
    reader.close()
    assert not lines


@pytest.mark.parametrize("part", ["state", "manifest"])
def test_damage_falls_back_to_the_newest_intact_step(opened, part):
    checkpoints, lines = opened
    for step in (2, 4):
        checkpoints.save(step, tree(step), extra=step)
    damage(checkpoints, 4, part)
    step, restored, extra = checkpoints.restore(shapes())
    assert (step, extra) == (2, 2)
    np.testing.assert_array_equal(restored["params"]["stack"]["layer_00"]["kernel"], 2 * BIG)
    (line,) = lines
    assert line.startswith("checkpoint 4 is damaged, ") and line.endswith("going back to an older one")

    # The run that went back saves that step again.
    checkpoints.save(3, tree(3), extra=3)
    checkpoints.save(4, tree(4), extra=44)
    assert checkpoints.restore(shapes()).extra == 44

    for step in checkpoints.steps():
        damage(checkpoints, step, part)
    with pytest.raises(ValueError, match=r"none of the checkpoints \[3, 4\] is intact"):
        checkpoints.restore(shapes())


def test_arrays_that_the_file_of_the_tree_no_longer_names_are_damage(opened):
    """Orbax then returns what it was asked for, `jax.ShapeDtypeStruct`, and no error."""
    checkpoints, lines = opened
    for step in (2, 4):
        checkpoints.save(step, tree(step), extra=step)
    (file,) = checkpoints.directory.glob("*4/state/_METADATA")
    content = file.read_text()
    assert "kernel" in content
    file.write_text(content.replace("kernel", "kernal"))
    assert checkpoints.restore(shapes()).step == 2
    assert lines[0].startswith("checkpoint 4 is damaged, its arrays cannot be read (ValueError)")


def test_errors_of_tensorstore_are_not_told_a_second_time(opened, caplog):
    checkpoints, _ = opened
    checkpoints.save(2, tree(2))
    asyncio_log = logging.getLogger("asyncio")
    for text, told in (("DATA_LOSS: Error reading in OCDBT database", False), ("of the user", True)):
        error = ValueError(text)
        asyncio_log.error("Task exception was never retrieved", exc_info=(ValueError, error, None))
        assert any(record.exc_info[1] is error for record in caplog.records) == told


def test_a_value_that_changed_is_found_by_its_checksum(opened, monkeypatch):
    checkpoints, lines = opened
    for step in (2, 4):
        checkpoints.save(step, tree(step))
    read = checkpoints._read_arrays

    def changed(step, *arguments):
        arrays = dict(read(step, *arguments))
        if step == 4:
            arrays["opt_state/1/mu"] = np.where(BIG == 7, 7.0000005, arrays["opt_state/1/mu"]).astype(np.float32)
        return arrays

    monkeypatch.setattr(checkpoints, "_read_arrays", changed)
    assert checkpoints.restore(shapes()).step == 2
    assert lines == ["checkpoint 4 is damaged, opt_state/1/mu differ from what was saved: going back to an older one"]


def test_an_interrupted_save_is_no_checkpoint(opened):
    checkpoints, lines = opened
    for step in (2, 4):
        checkpoints.save(step, tree(step), extra=step)
    checkpoints.close()
    (checkpoints.directory / "00000004" / "commit_success.txt").unlink()
    again = Checkpoints(checkpoints.directory)
    assert again.steps() == [2] and again.restore(shapes()).step == 2
    again.save(4, tree(4), extra=44)
    assert again.restore(shapes()).extra == 44
    again.close()
    assert not lines


def test_another_architecture_is_described(opened):
    checkpoints, _ = opened
    checkpoints.save(2, tree())
    other = shapes()
    other["params"] = {
        "stack": {"layer_00": {"kernel": jax.ShapeDtypeStruct((64, 32), jnp.float32)}},
        "bias": jax.ShapeDtypeStruct((3,), jnp.float32),
        **{f"gate_{i}": jax.ShapeDtypeStruct((2,), jnp.float32) for i in range(6)},
    }
    del other["opt_state"]
    with pytest.raises(ValueError) as error:
        checkpoints.restore(other)
    line = str(error.value)
    assert "checkpoint 2 is of another architecture: it lacks params/gate_0, params/gate_1" in line
    assert "and 2 more; it has besides opt_state/0, opt_state/1/mu;" in line
    assert "params/bias bfloat16[3] instead of float32[3]" in line
    assert "params/stack/layer_00/kernel float32[64, 64] instead of float32[64, 32]" in line
    assert "\n" not in line


def test_names_do_not_depend_on_classes():
    flat = flatten(tree())
    assert list(flat)[:2] == ["key", "opt_state/0"] and flat["key"].dtype == np.uint32
    assert jax.tree.structure(unflatten(shapes(), flat, {"key": "threefry2x32"})) == jax.tree.structure(tree())
    json.dumps(list(flat))


def test_checksums_know_values_and_places_and_nothing_else():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.int8, np.uint16, bool, np.float64, jnp.bfloat16):
        array = rng.integers(0, 2, (3, 4, 5)).astype(dtype)
        (description,) = describe_arrays({"a": array}).values()
        assert description[:2] == [str(array.dtype), [3, 4, 5]] and len(description[2]) == 16
        if array.dtype.itemsize < 8:  # on a device the same
            assert describe_arrays({"a": jnp.asarray(array)})["a"] == description
        swapped = array.copy()
        one, other = np.argwhere(array != array[0, 0, 0])[0], (0, 0, 0)
        swapped[tuple(one)], swapped[other] = array[other], array[tuple(one)]
        for changed in (swapped, array.reshape(5, 4, 3), array[::-1]):
            assert describe_arrays({"a": changed})["a"][2] != description[2] or changed.shape != array.shape
    bits = np.zeros(256, np.float32)
    sums = set()
    for index in range(256):
        flipped = bits.view(np.uint32).copy()
        flipped[index] = 1 << (index % 32)
        sums.add(describe_arrays({"a": flipped.view(np.float32)})["a"][2])
    assert len(sums) == 256 and describe_arrays({"a": bits})["a"][2] not in sums


def test_a_part_may_be_left_out(opened):
    checkpoints, _ = opened
    checkpoints.save(1, tree())
    expected = {name: leaf for name, leaf in shapes().items() if name != "opt_state"}
    with pytest.raises(ValueError, match="has besides opt_state/0"):
        checkpoints.restore(expected)
    assert checkpoints.restore(expected, without=("opt_state/",)).tree.keys() == expected.keys()


def test_what_began_later_begins_at_zero(opened):
    """Metrics that an earlier version did not count, or that a later one no longer counts."""
    checkpoints, _ = opened
    checkpoints.save(2, tree() | {"totals": {"nll": np.float32(3), "old": np.float32(4)}})
    wanted = shapes() | {"totals": {name: jax.ShapeDtypeStruct((), np.float32) for name in ("nll", "new")}}
    with pytest.raises(ValueError, match="another architecture: it lacks totals/new"):
        checkpoints.restore(wanted)
    found = checkpoints.restore(wanted, anew=("totals/",)).tree
    assert {name: float(value) for name, value in found["totals"].items()} == {"nll": 3, "new": 0}
    with pytest.raises(ValueError, match="another architecture: it lacks params/gate"):
        checkpoints.restore(wanted | {"params": {**wanted["params"], "gate": wanted["valid"]}}, anew=("totals/",))


def test_arrays_are_read_where_they_are_wanted(opened):
    checkpoints, _ = opened
    checkpoints.save(1, tree())
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), shapes())
    restored = checkpoints.restore(placed).tree
    assert all(leaf.sharding == device for leaf in jax.tree.leaves(restored))
    np.testing.assert_array_equal(restored["params"]["stack"]["layer_00"]["kernel"], BIG)


@pytest.mark.parametrize("saved", GENERATORS)
@pytest.mark.parametrize("here", GENERATORS)
def test_another_random_number_generator_is_named(tmp_path, saved, here):
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(1, {"key": jax.random.key(3, impl=saved)})
        expected = {"key": jax.eval_shape(lambda: jax.random.key(0, impl=here))}
        if saved == here:
            assert checkpoints.restore(expected).step == 1
            return
        line = f"made under the random number generator {saved}, given {here}, allowed: {saved}; start with"
        with pytest.raises(ValueError, match=line):
            checkpoints.restore(expected)


def test_another_format_is_no_damage(opened, monkeypatch):
    checkpoints, lines = opened
    checkpoints.save(1, tree())
    monkeypatch.setattr("memjax.training.checkpoints.FORMAT", 99)
    with pytest.raises(ValueError, match="checkpoint 1 has format 2, allowed: 99"):
        checkpoints.restore(shapes())
    assert checkpoints.steps() == [1] and not lines


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    """TensorStore says it in words of its own, which JAX has for full memory."""

    class FullManager:
        def save(self, step, **options):
            raise ValueError(f"RESOURCE_EXHAUSTED: {tmp_path}: No space left on device [os_error_code='28']")

    checkpoints = Checkpoints(tmp_path / "checkpoints")
    monkeypatch.setattr(checkpoints, "_open_manager", FullManager)
    with pytest.raises(DiskFull) as error:
        checkpoints.save(3, {"kernel": np.ones(2, np.float32)})
    assert explain(error.value) == (f"{tmp_path / 'checkpoints'}: {FULL_DISK}", 1)


@pytest.mark.slow
def test_a_disk_that_is_full_leaves_one_line(tmp_path):
    """A small file system, where mounting is allowed. The same save passes once there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    script = f"""
import numpy as np
from memjax.cli.errors import explain
from memjax.training.checkpoints import Checkpoints
checkpoints = Checkpoints({str(disk / "checkpoints")!r})
values = np.random.default_rng(0).normal(size=(430, 430)).astype(np.float32)
for step in (1, 2, 3):
    try:
        checkpoints.save(step, {{"kernel": values}})
    except OSError as error:
        print(explain(error)[0])
checkpoints.close()
checkpoints = Checkpoints({str(disk / "checkpoints")!r})
checkpoints.save(4, {{"kernel": values[:100]}})
print(checkpoints.steps(), checkpoints.load("")[0])
"""
    try:
        process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr and "ERROR" not in process.stderr
    line, steps = process.stdout.splitlines()
    assert line == f"{disk / 'checkpoints'}: {FULL_DISK}"
    assert steps.endswith(" 4")


def test_lazy_arrays_are_saved_as_their_values_are(tmp_path):
    """The same manifest, and the same arrays come back. Each is read twice and dropped in between."""
    values = {f"layer_{i:02d}": BIG + i for i in range(3)} | {"short": np.ones((2, 3), jnp.bfloat16)}
    reads = []

    def lazy(name):
        return LazyArray(values[name].shape, values[name].dtype, lambda: reads.append(name) or values[name].copy())

    manifests, loaded = [], []
    for name, params in {"plain": values, "lazy": {name: lazy(name) for name in values}}.items():
        checkpoints = Checkpoints(tmp_path / name)
        checkpoints.save(0, {"params": params}, extra={"x": 1})
        manifests.append(checkpoints._read_manifest(0))
        loaded.append(checkpoints.load()[1])
        checkpoints.close()
    assert manifests[0] == manifests[1]
    assert sorted(reads) == sorted([*values, *values])
    assert loaded[0].keys() == loaded[1].keys()
    for name, array in loaded[0].items():
        np.testing.assert_array_equal(loaded[1][name], array, strict=True)
