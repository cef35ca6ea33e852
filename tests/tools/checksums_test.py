"""The measurement of checksums, with a small file."""

import pytest

from tools.measurements import checksums
from tools.results import pages

pytestmark = pytest.mark.laws


def test_every_share_and_the_time_to_open_a_file_are_recorded(monkeypatch):
    recorded = []
    monkeypatch.setattr(pages, "record", recorded.append)
    checksums.main(["--gigabytes", "0.00002", "--repeats", "1"])
    (measurement,) = recorded
    table = pages.TABLES["checksums"](measurement)
    assert measurement.facts["bytes"] == 20_000 and measurement.facts["open_seconds"] > 0
    assert table.count("%") == len(measurement.facts["records"]) == 3 and "A token file of 2e-05 GB" in table
