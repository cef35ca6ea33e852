"""Models learn to use every memory that can be learned in a minute or two, and nothing else solves its task."""

import pytest

from tests.learns.task import ALONE, MEASURED_SEEDS, SEEDS, bounds
from tests.learns.tasks import TASKS
from tools.results.ledger import Book

MEASURED = {
    measurement.name: measurement.facts for measurement in Book().measurements() if measurement.kind == "learns"
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TASKS)
def test_a_model_learns_to_use_its_memory(name, seed, tmp_path):
    results = TASKS[name].measure(seed, tmp_path)
    least, most = bounds([record["found"] for record in MEASURED[name]["records"]])
    assert results["kept"] >= least, (results, least)
    assert set(most) == results.keys() - {"kept", ALONE}
    for what, value in most.items():
        assert results[what] <= value, (what, results, most)


def test_what_was_measured_is_learning():
    assert MEASURED.keys() == TASKS.keys()
    for name, facts in MEASURED.items():
        records = facts["records"]
        assert [record["seed"] for record in records] == list(MEASURED_SEEDS)
        least, most = bounds([record["found"] for record in records])
        assert least > max(most.values()), name
        assert min(record["found"]["kept"] for record in records) > max(most.values()) + 0.1, name
