"""The measurement of the time that is lost to checkpoints, with a tiny model."""

import pytest

from tools.measurements import saves
from tools.results import pages

pytestmark = pytest.mark.laws


def test_every_way_to_save_is_recorded(monkeypatch):
    recorded = []
    monkeypatch.setattr(pages, "record", recorded.append)
    saves.main(["--rounds", "1", "--steps", "1", "--dim", "8", "--layers", "1"])
    (measurement,) = recorded
    table = pages.TABLES["saves"](measurement)
    assert [record["mode"] for record in measurement.facts["records"]] == [*saves.MODES] and table.count("%") == 3
    assert "in the background" in table
