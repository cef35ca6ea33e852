"""The README is short, and says what is there."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MOST_LINES = 150
MOST_LINES_OF_CODE = 15


def test_it_is_read_in_five_minutes():
    assert len(README.splitlines()) <= MOST_LINES
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 1 and len(blocks[0].splitlines()) <= MOST_LINES_OF_CODE


def test_it_shows_a_picture_that_is_read_on_light_and_dark():
    picture = (ROOT / re.search(r"!\[[^]]+\]\((\S+\.svg)\)", README).group(1)).read_text()
    assert "prefers-color-scheme:dark" in picture and "<title>" in picture


def test_it_names_every_memory_of_the_measurement():
    lines = (ROOT / "tools/results/measurements.jsonl").read_text().splitlines()
    costs = json.loads(next(line for line in lines if '"kind": "memory_costs"' in line))
    named = re.findall(r"^\| ([^|]+) \|", README.partition("result: which")[2].partition("<!-- end")[0], re.M)
    assert named[2:] == [record["memory"] for record in costs["facts"]["records"]]
