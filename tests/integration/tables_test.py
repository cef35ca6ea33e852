"""Value tables whose rows or columns are split over eight virtual devices, and batches that are: as on one device."""

import pytest

from tests.programs import found_on_eight_devices

pytestmark = pytest.mark.slow

PARTS = {
    "rows (8, 1, 1)": [256, 16],
    "rows (2, 2, 2)": [128, 16],
    "rows (1, 1, 8)": [32, 16],
    "rows (2, 1, 4) dense": [64, 16],
    "columns (2, 1, 4)": [256, 4],
    "columns (4, 1, 2) dense": [256, 8],
}
"""case -> what each device has of the table"""


@pytest.fixture(scope="module")
def found():
    return found_on_eight_devices("tests.integration.tables_worker")


@pytest.mark.parametrize("case", PARTS)
def test_steps_equal_those_of_one_device(found, case):
    run = found[case]
    # Moments too: Adam hides a gradient that is too large by a constant factor.
    assert max(run[name] for name in ("params", "batch_stats", "values", "moments")) < 1e-9
    assert run["counts_equal"] and run["weights"] < 1e-5
    assert run["kept"]


@pytest.mark.parametrize("case", PARTS)
def test_a_device_holds_its_part_and_no_table_is_sent(found, case):
    run = found[case]
    assert run["parts"] == [PARTS[case]]
    assert run["message"] < 256 * 16
