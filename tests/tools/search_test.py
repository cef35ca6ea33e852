"""The table of indices: which settings it takes, with an index that finds what it is told to find."""

from dataclasses import replace

import numpy as np
import pytest

from memjax.datastore import Neighbors, StreamedIndex
from tests.datastore.stores import make_store
from tools.measurements import search
from tools.results import speed_tables
from tools.results.ledger import Measurement

RNG = np.random.default_rng(0)


class Finds:
    """The first of the true neighbours."""

    def __init__(self, true: Neighbors, share: float):
        self.metric, self.entries, self.dim = "squared_l2", 200, 4
        self.true, self.share = true, share

    def search(self, queries, num_neighbors):
        missed = np.arange(num_neighbors)[None] >= round(self.share * num_neighbors)
        return Neighbors(self.true.scores, np.where(missed, -1, self.true.ids), ~missed & self.true.valid)


@pytest.fixture
def tried(tmp_path):
    store = make_store(tmp_path / "s", RNG.normal(size=(200, 4)).astype(np.float32))
    queries = RNG.normal(size=(10, 4)).astype(np.float32)
    true = StreamedIndex(store).search(queries, search.NEIGHBORS)
    shares = {(1, 0): 0.5, (2, 0): 0.91, (4, 0): 0.94, (8, 0): 0.97}
    asked = []

    def make(effort, candidates):
        asked.append((effort, candidates))
        return Finds(true, shares[effort, candidates])

    family = search.Family(
        "an index", "effort", (0,), make, {"seconds": 1.0, "cpu_seconds": 2.0}, 3_000_000, (1, 2, 4, 8)
    )
    return family, store, queries, true, asked


def test_the_first_setting_that_reaches_a_level_is_taken(tried):
    family, store, queries, true, asked = tried
    found, best = search.contenders(family, store, queries, true)
    assert [(one.level, one.setting) for one in found] == [(0.9, "effort 2"), (0.95, "effort 8")]
    assert asked[:4] == [(1, 0), (2, 0), (4, 0), (8, 0)]
    assert best == found[1].recall == 31 / 32 and found[0].recall == 29 / 32


def test_no_more_effort_than_the_highest_level_takes(tried):
    family, store, queries, true, asked = tried
    search.contenders(replace(family, make=lambda *_: asked.append(0) or Finds(true, 1.0)), store, queries, true)
    assert len(asked) == 1 + 3 * len(search.LEVELS)  # recall once, speed three times for each level


def test_the_table_says_what_was_not_reached():
    ratio = {"value": 2.0, "low": 1.5, "high": 2.5}
    pace = {"median": 10.0, "low": 9.0, "high": 11.0}
    measured = {"reached": True, "setting": "effort 2", "recall": 0.9, "queries_per_second": pace, "ratio": ratio}
    measured |= {"cpu_ratio": ratio, "bytes": 1500000, "build": {"seconds": 1.0, "cpu_seconds": 2.0}}
    records = [
        {**measured, "index": "one", "level": 0.9},
        {"index": "one", "level": 0.99, "reached": False, "recall": 0.97},
        {**measured, "index": "product", "level": None, "setting": "", "recall": None},
    ]
    found = Measurement("search", "5", "a command", "c", "h", "", "", {"load": 1.0, "records": records})
    rows = [line for line in speed_tables.search(found).splitlines() if line.startswith("| ") and "---" not in line][1:]
    columns = {row.count("|") for row in rows}
    assert columns == {10}
    assert rows[0] == (
        "| one | 0.9 | effort 2 | 0.9000 | 10 (11-9) | 2.00 (1.50-2.50) | 2.00 (1.50-2.50) | 1.5 | 1.0 (2.0) |"
    )
    assert "not reached" in rows[1] and "at most 0.970" in rows[1]


def test_a_store_of_the_first_entries_is_made_anew(tmp_path):
    keys = RNG.normal(size=(23, 4)).astype(np.float32)
    store = make_store(tmp_path / "s", keys, shards=[10, 13])
    for _ in range(2):
        part = search.first_entries(store, 17, tmp_path / "part")
        assert part.entries == 17 and np.array_equal(part.keys(np.arange(17)), keys[:17])
