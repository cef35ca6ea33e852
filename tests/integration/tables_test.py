"""Value tables whose rows or columns are split over eight virtual devices, and batches that are: as on one device."""

import json
import os
import subprocess
import sys

import pytest

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
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
    }
    command = [sys.executable, "-m", "tests.integration.tables_worker"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


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
