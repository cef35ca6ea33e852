"""The count of lines in the guide is that of the script."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_guide_counts_the_lines_of_the_script():
    source = (ROOT / "tools/bench/avalanche_job.py").read_text(encoding="utf-8")
    code = source.splitlines()[ast.parse(source).body[0].end_lineno :]
    lines = sum(bool(line.strip()) for line in code)
    assert f"| {lines} ([script](../../tools/bench/avalanche_job.py))" in (ROOT / "docs/guides/lifelong.md").read_text()
