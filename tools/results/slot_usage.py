"""How much of its value tables a trained model uses on a split: means over its tables.

python -m tools.results.slot_usage RUN [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from memjax.training.experiment import load_run
from memjax.training.usage import describe_counts, measure_usage

SHOWN = ("usage", "top_usage", "count_divergence")
"""of `memjax.training.usage.SlotCounts`"""


def measure(run: str) -> dict[str, Any]:
    """Numbers of every table, and under `numbers` their means; without tables there are none."""
    loaded = load_run(run)
    if not loaded.variables.get("tables"):
        return {"numbers": {}}
    tables = describe_counts(measure_usage(loaded.experiment, loaded.variables))
    means = {name: statistics.fmean(table[name] for table in tables.values()) for name in SHOWN}
    numbers = {f"slots: {name.replace('_', ' ')}": value for name, value in means.items()}
    return {"tables": tables, "numbers": numbers}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results.slot_usage", description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run directory")
    parser.add_argument("--out", type=Path, help="also write the numbers to this file")
    given = parser.parse_args(arguments)
    text = json.dumps(measure(given.run), indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
