"""The programs of attention compile for every chip, and keep the scores out of its HBM where the table says so."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MEASURE = """
import json
from tools.measurements import attention_programs as programs
for chip in programs.CHIPS:
    for name in ("reference", "fused"):
        print(json.dumps(programs.measure("rotary", name, programs.parse_topology(chip))))
for positions in ("relative positions", "distance buckets"):
    for name in ("reference", "blocks"):
        print(json.dumps(programs.measure(positions, name, programs.parse_topology("v5e:2x2"))))
for name in ("reference", "chunks"):
    print(json.dumps(programs.measure("none, linear attention", name, programs.parse_topology("v5e:2x2"))))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
def test_scores_stay_out_of_the_hbm():
    done = subprocess.run([sys.executable, "-c", MEASURE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    moved = {(r["chip"], r["positions"], r["program"]): r for r in records}
    for (chip, positions, program), record in moved.items():
        if program == "reference":
            continue
        reference, sizes = moved[chip, positions, "reference"], record["sizes"]
        scores = 4 * sizes["rows"] * sizes["heads"] * sizes["length"] * (sizes["slots"] + sizes["length"])
        assert record["temporary_bytes"] < scores < reference["temporary_bytes"] + 1
        assert record["hbm_bytes"] < reference["hbm_bytes"] / 3
