"""The soak: what it tells of samples and logs."""

import json

import pytest

from memjax.durable_files import DamageWarning
from tools.measurements import soak

STEADY = {"resident": 1000, "descriptors": 9, "threads": 4}


@pytest.mark.parametrize(
    "steps, changes, lines",
    [
        (2000, {}, []),
        (2000, {"resident": 1020}, []),
        (2000, {"resident": 1021}, ["resident: 1,000 after 1,000 steps, 1,021 after 2,000"]),
        (2000, {"resident": 979}, ["resident: 1,000 after 1,000 steps, 979 after 2,000"]),
        (2000, {"threads": 5}, ["threads: 4 after 1,000 steps, 5 after 2,000"]),
        (2000, {"descriptors": 10}, ["descriptors: 9 after 1,000 steps, 10 after 2,000"]),
        (2000, {"descriptors": 8}, ["descriptors: 9 after 1,000 steps, 8 after 2,000"]),
        (2000, {"threads": 3}, ["threads: 4 after 1,000 steps, 3 after 2,000"]),
        (900, {"threads": 5}, []),
    ],
)
def test_what_grows_after_the_first_thousand_steps_is_told(steps, changes, lines):
    samples = [{"steps": 1000, **STEADY}, {"steps": steps, **STEADY, **changes}]
    assert soak.describe_changes(sorted(samples, key=lambda sample: sample["steps"])) == lines


@pytest.mark.slow
def test_a_short_soak_finds_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(soak, "SETTLED", 100)
    monkeypatch.setattr(soak, "MOST_CHANGE", 0.5)
    soak.train_in_parts(tmp_path / "whole", 1200, ())
    samples = soak.train_in_parts(tmp_path / "parts", 1200, (437, 800))
    assert len(samples) == 3 and soak.describe_difference(tmp_path / "whole", tmp_path / "parts") == []
    log = tmp_path / "parts/run/metrics.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines, lines[-1]]) + "\n")
    assert soak.describe_difference(tmp_path / "whole", tmp_path / "parts")[0].startswith("log: ")
    log.write_text("\n".join(lines[1:]) + "\n")
    with pytest.warns(DamageWarning, match="1 of its .* lines are missing"):
        (line,) = soak.describe_difference(tmp_path / "whole", tmp_path / "parts")
    assert line.startswith("line of the log: ") and json.dumps(json.loads(lines[0])["step"]) in line
