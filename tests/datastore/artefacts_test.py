"""Saved indices: whole or not there, whatever interrupts the build; damage and other keys are named."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memjax.datastore import DiskFull, artefacts
from memjax.datastore.artefacts import artefact_names, open_artefact, save_artefact
from tests.datastore.stores import make_store

ROOT = Path(__file__).parent.parent.parent


class Killed(BaseException):
    """Nothing in the library may catch this."""


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "s", np.ones((5, 4)))


def writes(text: str, then: BaseException | None = None):
    def write(folder: Path) -> None:
        (folder / "a.bin").write_text(text)
        if then is not None:
            raise then
        (folder / "b.bin").write_text(text * 2)

    return write


def content(store, name="x") -> tuple[str, dict]:
    folder, about = open_artefact(store, name)
    assert (folder / "b.bin").read_text() == (folder / "a.bin").read_text() * 2
    return (folder / "a.bin").read_text(), about


def folders(store) -> int:
    return sum(path.is_dir() for path in (store.path / "indices").iterdir())


def test_what_was_saved_comes_back_and_is_replaced(store):
    with pytest.raises(ValueError, match=r"has no x; build it \(memjax datastore index\)"):
        open_artefact(store, "x")
    save_artefact(store, "x", {"leaves": 3}, writes("one"))
    save_artefact(store, "xy", {}, writes("other"))
    assert content(store) == ("one", {"leaves": 3})
    save_artefact(store, "x", {"leaves": 4}, writes("two"))
    assert content(store) == ("two", {"leaves": 4}) and content(store, "xy")[0] == "other"
    assert artefact_names(store) == ["x", "xy"] and folders(store) == 2


@pytest.mark.parametrize(
    "moment, calls",
    [
        ("write", 0),
        ("sync_to_disk", 0),
        ("file_checksum", 0),
        ("sync_to_disk", 2),
        ("write_checked_json", 0),
        ("remove_leftovers", 1),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_any_moment_leaves_the_old_index_or_the_new_one(store, monkeypatch, moment, calls, before):
    """After so many calls that go well (two files and their folder are synced); `before` = there was an index."""
    if before:
        save_artefact(store, "x", {}, writes("old"))
    with monkeypatch.context() as patch:
        survived = iter(range(calls))

        def kill(*_):
            if next(survived, None) is None:
                raise Killed

        if moment != "write":
            patch.setattr(artefacts, moment, kill)
        with pytest.raises(Killed):
            save_artefact(store, "x", {}, writes("new", Killed() if moment == "write" else None))
    if moment == "remove_leftovers":
        assert content(store)[0] == "new"
    elif before:
        assert content(store)[0] == "old"
    else:
        with pytest.raises(ValueError, match="has no x; build it"):
            open_artefact(store, "x")
    save_artefact(store, "x", {}, writes("again"))
    assert content(store)[0] == "again" and folders(store) == 1


KILLED = """
import os, signal, sys
from memjax.datastore import Store
from memjax.datastore.artefacts import save_artefact

def write(folder):
    (folder / "half.bin").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

save_artefact(Store(sys.argv[1]), "x", {}, write)
"""


def test_kill_9_of_a_build(store):
    run = subprocess.run([sys.executable, "-c", KILLED, str(store.path)], cwd=ROOT, check=False)
    assert run.returncode == -signal.SIGKILL and folders(store) == 1
    with pytest.raises(ValueError, match="has no x; build it"):
        open_artefact(store, "x")
    save_artefact(store, "x", {}, writes("new"))  # the lock fell with the process
    assert content(store)[0] == "new" and folders(store) == 1


@pytest.mark.parametrize("kind", ["expected", "write", "silent"])
def test_a_full_disk_is_named_and_the_old_index_stays(store, monkeypatch, kind):
    save_artefact(store, "x", {}, writes("old"))
    with monkeypatch.context() as patch:
        if kind != "write":
            patch.setattr(artefacts, "free_bytes", lambda _: 1000)
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        then = {"expected": None, "write": full, "silent": RuntimeError("I/O error")}[kind]
        with pytest.raises(DiskFull, match=r"no space is left on the disk; free some and build the index x again"):
            save_artefact(store, "x", {}, writes("new", then), expected_bytes=2000 if kind == "expected" else 0)
    assert content(store)[0] == "old" and folders(store) == 1


def test_other_failures_pass(store):
    with pytest.raises(RuntimeError, match="a fault of the library"):
        save_artefact(store, "x", {}, writes("new", RuntimeError("a fault of the library")))
    assert folders(store) == 0


def test_damage_is_named(store):
    save_artefact(store, "x", {}, writes("text"))
    folder, _ = open_artefact(store, "x")
    for data in (b"texu", b"tex"):
        (folder / "a.bin").write_bytes(data)
        with pytest.raises(
            ValueError, match=f"{re.escape(str(folder / 'a.bin'))} is damaged: .*; build the index again"
        ):
            open_artefact(store, "x")
    (folder / "a.bin").unlink()
    with pytest.raises(ValueError, match=r"a\.bin is damaged"):
        open_artefact(store, "x")
    path = store.path / "indices" / "x.json"
    path.write_text(path.read_text().replace('"about": {}', '"about": 1'))
    with pytest.raises(ValueError, match=r"x\.json is damaged: it is not what was written"):
        open_artefact(store, "x")


def test_an_index_of_other_keys_is_refused(store, tmp_path):
    save_artefact(store, "x", {}, writes("text"))
    other = make_store(tmp_path / "t", np.full((5, 4), 2.0))
    (store.path / "indices").rename(other.path / "indices")
    line = rf"x of .* was made from other keys \({store.fingerprint}, now {other.fingerprint}\); build it again"
    with pytest.raises(ValueError, match=line):
        open_artefact(other, "x")


def test_one_build_at_a_time(store):
    def write(folder):
        with pytest.raises(ValueError, match="index x of .* is being written by another process"):
            save_artefact(store, "x", {}, writes("second"))
        writes("first")(folder)

    save_artefact(store, "x", {}, write)
    assert content(store)[0] == "first"
