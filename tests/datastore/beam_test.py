"""Parts made by a Beam pipeline: each process loads once, every part is made, errors keep their line.

Beam runs in processes of its own. They need it installed, which the locked environment has not: `make test-beam`.
"""

import importlib.util
import json
import sys

import numpy as np
import pytest

from memjax.cli import main
from memjax.datastore import MergedIndex, StreamedIndex, build_scann, open_scann, rescore
from memjax.datastore.artefacts import artefact_names
from memjax.datastore.scann import build_scann_parts
from tests.datastore.stores import clusters, make_store
from tests.programs import printed

needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None,
    reason="apache-beam is not installed: its protobuf contradicts that of the lock; run `make test-beam`",
)
MODES = ("in_memory", "multi_threading", "multi_processing")

PIPELINE = """
import functools, json, os, sys
from memjax.datastore.beam import run_pipeline
from tests.datastore.beam_work import load

folder, mode = sys.argv[1:]
options = [f"direct_running_mode={mode}", "direct_num_workers=2"]
found = {}

def run(name, *, runner="DirectRunner", extra=(), fail=""):
    try:
        run_pipeline(functools.partial(load, folder, fail), range(7), runner=runner, options=[*options, *extra])
        found[name] = "done"
    except Exception as error:
        found[name] = [type(error).__name__, getattr(error, "filename", None), str(error)]

run("good")
run("value", fail="value")
if mode == "in_memory":
    run("full", fail="full")
    run("load", fail="load")
    run("other", fail="other")
    run("runner", runner="Nonsense")
    run("option", extra=["nonsense=3"])
print(json.dumps(found))
"""


@needs_beam
@pytest.mark.beam
@pytest.mark.parametrize("mode", MODES)
def test_every_part_is_made_and_errors_keep_their_line(tmp_path, mode):
    found = json.loads(printed("-c", PIPELINE, tmp_path, mode)[-1])
    assert found["good"] == "done"
    made = sorted(path.name for path in tmp_path.glob("part_*"))
    assert made == [f"part_{part}" for part in range(7)]
    # One load for each process, whatever the number of its threads and of the parts that it makes.
    loads = (tmp_path / "loads").read_text().split()
    assert len(loads) == len(set(loads)) and 1 <= len(loads) <= (2 if mode == "multi_processing" else 1)
    assert found["value"] == ["ValueError", None, "keys: given none for part 3, allowed: some"]
    if mode == "in_memory":
        line = "[Errno 28] no space is left on the disk; free some: '/some/where'"
        assert found["full"] == ["DiskFull", "/some/where", line]
        assert found["load"] == ["ValueError", None, "run: given one that is not there"]
        assert found["other"][0] not in ("ValueError", "DiskFull") and "a fault of the program" in found["other"][2]
        assert found["runner"][2].startswith("runner: given 'Nonsense': Unexpected pipeline runner")
        assert found["option"][2] == "runner_options: given nonsense, allowed: the options of Beam's pipelines"


def test_without_beam_there_is_one_line(tmp_path, monkeypatch, capsys):
    store = make_store(tmp_path / "s", clusters(50, 4))
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    assert main(["datastore", "index", "--path", str(store.path), "--runner", "DirectRunner"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "apache_beam is not installed" in error and "pip install 'memjax[beam]'" in error


def check_parts(store, num_parts) -> None:
    """The saved parts together find what exact search finds."""
    merged, queries = open_scann(store), clusters(9, 8, seed=1)
    assert isinstance(merged, MergedIndex) and merged.entries == store.entries
    found = rescore(merged, store).search(queries, 20)
    expected = StreamedIndex(store).search(queries, 20)
    assert np.array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-5)
    assert artefact_names(store) == [f"scann_squared_l2_{p:05d}_of_{num_parts:05d}" for p in range(num_parts)]


def test_parts_of_an_index_by_the_command_line(tmp_path, capsys):
    """As several hosts do, each with a part of its own; the old division stays until the new one is whole."""
    store = make_store(tmp_path / "s", clusters(300, 8), shards=[100, 200])
    line = ["datastore", "index", "--path", str(store.path), "--json"]
    assert main(line) == 0 and json.loads(capsys.readouterr().out)["complete"]
    for part in (2, 0):
        assert main([*line, "--parts", "3", "--part", str(part)]) == 0
        assert not json.loads(capsys.readouterr().out)["complete"]
    assert "scann_squared_l2_00000_of_00001" in artefact_names(store)
    assert main([*line, "--parts", "3", "--part", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"]
    check_parts(store, 3)
    assert main(["datastore", "verify", "--path", str(store.path), "--sample", "50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recall@32"] == 1
    assert build_scann_parts(store, range(2), 2)
    check_parts(store, 2)
    for number, part, message in (
        (3, 3, "--part: given 3, allowed: 0 to 2 of --parts 3"),
        (301, 0, "num_parts: given 301, allowed: 1 to 300"),
    ):
        assert main([*line, "--parts", str(number), "--part", str(part)]) == 2
        assert message in capsys.readouterr().err
    build_scann(store, part=1, num_parts=3)
    with pytest.raises(ValueError, match=r"in \[2, 3\] parts; delete all but one"):
        open_scann(store)


@needs_beam
@pytest.mark.beam
def test_parts_of_an_index_by_a_pipeline(tmp_path):
    store = make_store(tmp_path / "s", clusters(300, 8), shards=[100, 200])
    build_scann(store)
    command = ["-m", "memjax.cli", "datastore", "index", "--path", store.path, "--parts", "3", "--json"]
    lines = printed(*command, "--runner", "DirectRunner", "--runner-option", "direct_num_workers=2")
    assert json.loads(lines[-1])["complete"]
    check_parts(store, 3)
