"""Every memory that a model can learn to use in a minute or two is used, and nothing else solves its task."""

import pytest

from tests.learns.task import ALONE, MEASURED_SEEDS, SEEDS, bounds
from tests.learns.tasks import TASKS
from tools.results.ledger import Book

MEASURED = {one.name: one.facts for one in Book().measurements() if one.kind == "learns"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TASKS)
def test_a_model_learns_to_use_its_memory(name, seed, tmp_path):
    found = TASKS[name].measure(seed, tmp_path)
    least, most = bounds([one["found"] for one in MEASURED[name]["records"]])
    assert found["kept"] >= least, (found, least)
    assert set(most) == found.keys() - {"kept", ALONE}
    for what, value in most.items():
        assert found[what] <= value, (what, found, most)


def test_what_was_measured_is_learning():
    assert MEASURED.keys() == TASKS.keys()
    for name, facts in MEASURED.items():
        records = facts["records"]
        assert [one["seed"] for one in records] == list(MEASURED_SEEDS)
        least, most = bounds([one["found"] for one in records])
        assert least > max(most.values()), name
        assert min(one["found"]["kept"] for one in records) > max(most.values()) + 0.1, name
