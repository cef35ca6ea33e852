"""Writing stores: kills at any moment, full disks and several writers lose nothing and double nothing."""

import errno
import itertools
import os
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.datastore import DiskFull, ShardWriter, Store, create_store, finish_store, read_cursor
from tests.datastore.stores import HEADER, make_header
from tests.programs import printed

BATCHES = 3
KEYS = np.random.default_rng(0).normal(size=(17, 4)).astype(np.float16)
VALUES = np.arange(17) * 3
SPLITS = [0, 4, 12, 17]


def build(path, shard=0, *, with_state=True) -> None:
    """One run of a builder: it goes on where the last one was interrupted, whatever interrupted it."""
    create_store(path, HEADER)
    with ShardWriter(path, shard) as writer:
        state = writer.load_state()
        begin = writer.progress or 0
        assert (state is None) == (begin == 0 or not with_state or writer.complete)
        if state is not None:
            assert state["memory"].tolist() == [begin] * 3 and state["memory"].dtype == ml_dtypes.bfloat16
        for batch in range(begin, BATCHES) if not writer.complete else ():
            rows = slice(SPLITS[batch], SPLITS[batch + 1])
            writer.append(KEYS[rows], VALUES[rows])
            memory = {"memory": np.full(3, batch + 1, ml_dtypes.bfloat16)}
            writer.commit(batch + 1, memory if with_state else None)
        writer.finish()
    finish_store(path)


def check(path) -> None:
    store = Store(path)
    ids = np.arange(17)
    assert store.entries == 17
    assert np.array_equal(store.keys(ids), KEYS) and np.array_equal(store.values(ids), VALUES)
    assert list(store.find_problems()) == []
    left = sorted(p.name for p in (path / "shard_00000").iterdir())
    assert left == [".lock", "blocks.bin", "cursor.json", "keys.bin", "values.bin"]
    assert sorted(p.name for p in path.iterdir()) == ["meta.json", "shard_00000"]


class Killed(BaseException):
    """Nothing in the library may catch this."""


class Disk:
    """Counts what reaches the operating system; stops at a given call, or when the disk is full."""

    def __init__(self, monkeypatch, *, stop=None, space=None):
        self.calls, self.stop, self.space = 0, stop, space
        for name in ("write", "fsync", "replace", "ftruncate", "open"):
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name, function):
        def call(*args):
            self.calls += 1
            if self.calls == self.stop:
                if name == "write":  # a part of it gets there
                    function(args[0], memoryview(args[1])[: len(args[1]) // 2])
                raise Killed
            if name == "write" and self.space is not None:
                allowed = memoryview(args[1])[: self.space]
                if not len(allowed) and len(args[1]):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self.space -= len(allowed)
                return function(args[0], allowed)
            return function(*args)

        return call


@pytest.fixture(scope="module")
def num_calls(tmp_path_factory) -> int:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        build(tmp_path_factory.mktemp("count") / "s")
    return disk.calls


def test_a_crash_at_every_single_call_loses_nothing(tmp_path, num_calls):
    """Before and in the middle of each write, before each fsync and each replacement of a file."""
    assert num_calls > 50
    for stop in range(1, num_calls + 1):
        path = tmp_path / str(stop)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, stop=stop)
            with pytest.raises(Killed):
                build(path)
        build(path)
        check(path)


def test_data_is_on_the_disk_before_the_cursor_moves(tmp_path, monkeypatch):
    """What a loss of power needs and a kill does not: every file that was written is synced before the commit."""
    dirty, commits = set(), []
    name_of = lambda descriptor: os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
    write, fsync, replace = os.write, os.fsync, os.replace
    monkeypatch.setattr(os, "write", lambda fd, data: (dirty.add(name_of(fd)), write(fd, data))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (dirty.discard(name_of(fd)), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (commits.append((b.name, sorted(dirty))), replace(a, b))[1])
    build(tmp_path / "s")
    assert commits == [("meta.json", [])] + [("cursor.json", [])] * (BATCHES + 1) + [("meta.json", [])]


def test_crash_after_crash(tmp_path, num_calls):
    """Every run gets a few calls further than its commits; in the end the store is the same."""
    path = tmp_path / "s"
    for run in itertools.count():
        assert run < 100, "the build makes no progress"
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, stop=num_calls // 2)
            try:
                build(path)
                break
            except Killed:
                pass
    assert run > 1
    check(path)


@pytest.mark.parametrize("space", [*range(0, 900, 71), 1500, 2500])
def test_a_full_disk_leaves_a_store_that_is_continued(tmp_path, space):
    path = tmp_path / "s"
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, space=space)
        with pytest.raises(DiskFull) as error:
            build(path)
    assert error.value.filename and "no space is left on the disk" in error.value.strerror
    assert "run the same command again" in error.value.strerror
    if (path / "meta.json").is_file():
        done = read_cursor(path, 0)["entries"]
        assert done in SPLITS
        if "entries" in error.value.strerror:
            assert f"shard 0 has {done} entries" in error.value.strerror
        with pytest.raises(ValueError, match="is not finished"):
            Store(path)
    build(path)
    check(path)


def test_a_writer_that_has_failed_writes_no_more(tmp_path):
    create_store(tmp_path / "s", HEADER)
    with ShardWriter(tmp_path / "s") as writer:
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, space=5)
            with pytest.raises(DiskFull):
                writer.append(KEYS, VALUES)
        for call in (lambda: writer.append(KEYS, VALUES), lambda: writer.commit(1), writer.finish):
            with pytest.raises(ValueError, match="the writer of 0 was closed, or has failed; open another one"):
                call()


KILLED = """
import os, random, signal, sys, time
import numpy as np
from memjax.datastore import Header, ShardWriter, create_store
path, rounds, entries, rng = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), random.Random(0)

def run():
    create_store(path, Header(dim=8, model="m", tokenizer="t", data="d", protocol={}, block_entries=64))
    with ShardWriter(path) as writer:
        first = writer.progress or 0
        while first < entries:
            last = min(first + 37, entries)
            ids = np.arange(first, last)
            writer.append(np.repeat(ids[:, None] % 2048, 8, axis=1).astype("f2"), ids)
            writer.commit(last, {"memory": np.full(4, last, "f4")})
            assert writer.load_state()["memory"][0] == last
            first = last
        writer.finish()

kills = 0
for _ in range(rounds):
    child = os.fork()
    if not child:
        run()
        os._exit(0)
    time.sleep(rng.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    kills += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
cursor_before = os.path.exists(path + "/shard_00000/cursor.json")
run()
print(kills, cursor_before)
"""


def test_kill_9_at_random_moments(tmp_path):
    kills, interrupted = printed("-W", "ignore", "-c", KILLED, tmp_path / "s", 25, 20000)[-1].split()
    assert int(kills) > 5 and interrupted == "True"
    store = finish_store(tmp_path / "s")
    ids = np.arange(20000)
    assert store.entries == 20000 and list(store.find_problems()) == []
    assert np.array_equal(store.values(ids), ids)
    assert np.array_equal(store.keys(ids)[:, 3], ids % 2048)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 12), max_size=6),
    block_entries=st.integers(1, 9),
    reopen=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_batches_of_any_size(tmp_path_factory, sizes, block_entries, reopen):
    """The files do not depend on how the entries were cut into batches, nor on how often the writer was opened."""
    keys = np.arange(sum(sizes) * 4, dtype=np.float32).reshape(-1, 4)
    header = make_header(block_entries=block_entries, key_dtype="float32")
    files = []
    for cuts in (sizes, [sum(sizes)]):
        path = tmp_path_factory.mktemp("cut") / "s"
        create_store(path, header)
        writer, first = ShardWriter(path), 0
        for size, again in zip(cuts, reopen, strict=False):
            writer.append(keys[first : first + size], np.arange(first, first + size))
            first += size
            writer.commit(first)
            if again:
                writer.close()
                writer = ShardWriter(path)
                assert writer.entries == writer.progress == first
        writer.finish()
        writer.close()
        assert np.array_equal(finish_store(path).keys(np.arange(first)), keys)
        files.append([(path / "shard_00000" / f).read_bytes() for f in ("keys.bin", "values.bin", "blocks.bin")])
    assert files[0] == files[1]


def test_what_is_not_committed_is_cut_off(tmp_path):
    create_store(tmp_path / "s", HEADER)
    with ShardWriter(tmp_path / "s") as writer:
        writer.append(KEYS[:3], VALUES[:3])
        writer.commit({"document": 4})
        writer.append(KEYS[3:], VALUES[3:])
        assert writer.entries == 17
    with ShardWriter(tmp_path / "s") as writer:
        assert writer.entries == 3 and writer.progress == {"document": 4}
        writer.append(KEYS[3:5], VALUES[3:5])
        writer.finish()
    assert finish_store(tmp_path / "s").values(np.arange(5)).tolist() == VALUES[:5].tolist()


def test_shards_are_written_by_themselves(tmp_path):
    header = make_header(num_shards=3)
    for _ in range(3):  # every process calls it
        create_store(tmp_path / "s", header)
    with ShardWriter(tmp_path / "s", 2) as last, ShardWriter(tmp_path / "s", 0) as first:
        for writer, rows in ((last, slice(5, 17)), (first, slice(0, 5))):
            writer.append(KEYS[rows], VALUES[rows])
        first.finish()
        with pytest.raises(ValueError, match="shard 2 of .* is being written by another process"):
            ShardWriter(tmp_path / "s", 2)
        with pytest.raises(ValueError, match=r"2 of 3 shards that are not finished: 1 \(0 entries\), 2 \(0 entries\)"):
            finish_store(tmp_path / "s")
        last.finish()
    with pytest.raises(ValueError, match="shard: given 3, allowed: 0 to 2"):
        ShardWriter(tmp_path / "s", 3)
    with ShardWriter(tmp_path / "s", 1) as empty:
        empty.finish()
    store = finish_store(tmp_path / "s")
    assert np.array_equal(store.keys(np.arange(17)), KEYS) and list(store.find_problems()) == []
    assert finish_store(tmp_path / "s").fingerprint == store.fingerprint


def test_a_finished_shard_stays_as_it_is(tmp_path):
    build(tmp_path / "s")
    with ShardWriter(tmp_path / "s") as writer:
        assert writer.complete and writer.entries == 17 and writer.progress == BATCHES
        writer.finish()
        with pytest.raises(ValueError, match="shard: 0 of .* is finished; entries cannot be added to it"):
            writer.append(KEYS, VALUES)
    check(tmp_path / "s")


def test_a_damaged_shard_alone_is_made_again(tmp_path):
    path = tmp_path / "s"
    build(path)
    before = Store(path).fingerprint
    for file in (path / "shard_00000").iterdir():
        file.unlink()
    (path / "shard_00000").rmdir()
    with pytest.raises(ValueError, match=r"keys.bin is damaged: it is missing .*delete the folder of its shard"):
        Store(path)
    with pytest.raises(ValueError, match="not finished: 0"):
        finish_store(path)
    build(path)
    assert Store(path).fingerprint == before


def test_files_shorter_than_the_cursor_are_named(tmp_path):
    create_store(tmp_path / "s", HEADER)
    with ShardWriter(tmp_path / "s") as writer:
        writer.append(KEYS, VALUES)
        writer.commit(1, {"memory": np.zeros(3)})
    shard = tmp_path / "s" / "shard_00000"
    (state,) = shard.glob("state_*")
    state.write_bytes(state.read_bytes()[:-1])
    with ShardWriter(tmp_path / "s") as writer, pytest.raises(ValueError, match=f"{state.name} is damaged"):
        writer.load_state()
    os.truncate(shard / "keys.bin", 100)
    with pytest.raises(ValueError, match=r"keys.bin is damaged: 100 bytes, and 136 were committed"):
        ShardWriter(tmp_path / "s")
    text = (shard / "cursor.json").read_text()
    (shard / "cursor.json").write_text(text.replace('"entries": 17', '"entries": 12'))
    with pytest.raises(ValueError, match=r"cursor.json is damaged: it is not what was written"):
        ShardWriter(tmp_path / "s")


@pytest.mark.parametrize("file, byte", [("keys.bin", 16 * 8 + 3), ("values.bin", 16 * 4)])
def test_damage_between_two_writers_is_named(tmp_path, file, byte):
    """A bit of the block that the next writer goes on with: it would vouch for it."""
    create_store(tmp_path / "s", HEADER)
    with ShardWriter(tmp_path / "s") as writer:
        writer.append(KEYS, VALUES)
        writer.commit(1)
    path = tmp_path / "s" / "shard_00000" / file
    intact = path.read_bytes()
    path.write_bytes(intact[:byte] + bytes([intact[byte] ^ 2]) + intact[byte + 1 :])
    with pytest.raises(
        ValueError, match="shard_00000 is damaged: entries 15 to 16 of the shard are not what was written"
    ):
        ShardWriter(tmp_path / "s")
    path.write_bytes(intact)
    with ShardWriter(tmp_path / "s") as writer:
        writer.finish()
    assert list(finish_store(tmp_path / "s").find_problems()) == []


def test_a_store_of_another_header_is_refused(tmp_path):
    create_store(tmp_path / "s", HEADER)
    other = make_header(model="n", protocol={"segment_length": 9})
    line = (
        "is a store of model 'm', given 'n'; protocol {'segment_length': 8}, given {'segment_length': 9}; give another"
    )
    with pytest.raises(ValueError, match=re.escape(line)):
        create_store(tmp_path / "s", other)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds thesis.txt and is not a datastore; give another folder"):
        create_store(tmp_path / "t", HEADER)
    assert [p.name for p in (tmp_path / "t").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "keys, values, line",
    [
        (np.zeros((2, 3)), [1, 2], r"keys: given shape \(2, 3\), allowed: \(entries, 4\)"),
        (np.zeros((2, 4)), [1], "values: given 1 for 2 keys, allowed: one for each key"),
        (np.zeros((1, 4)), [1.5], r"values: given shape \(1,\) of float64, allowed: integers"),
        (np.zeros((1, 4)), [2**31], "values: given 2147483648 to 2147483648, allowed: what fits into int32"),
        (np.full((2, 4), [[0], [np.nan]]), [1, 2], r"keys: given row 1 \(entry 4 of shard 0\) that is NaN or infinite"),
        (np.full((2, 4), [[1], [1e5]]), [1, 2], r"row 1 \(entry 4 of shard 0\) up to 100000, too large for float16"),
    ],
)
def test_bad_entries_are_refused_before_anything_is_written(tmp_path, keys, values, line):
    create_store(tmp_path / "s", HEADER)
    with ShardWriter(tmp_path / "s") as writer:
        writer.append(KEYS[:3], VALUES[:3])
        with pytest.raises(ValueError, match=line):
            writer.append(keys, np.array(values))
        writer.append(KEYS[3:], VALUES[3:])
        writer.finish()
    assert np.array_equal(finish_store(tmp_path / "s").keys(np.arange(17)), KEYS)


def test_progress_must_be_json(tmp_path):
    create_store(tmp_path / "s", HEADER)
    with ShardWriter(tmp_path / "s") as writer:
        with pytest.raises(ValueError, match="progress: given .*, allowed: a JSON value"):
            writer.commit(object())
        writer.commit((1, 2))
        assert writer.progress == [1, 2]
