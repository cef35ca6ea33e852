"""How much of its value tables a trained model uses on a split: means over its tables.

python -m tools.results.slot_usage RUN [--out FILE]
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from memjax.inspection.slot_usage import describe_counts, measure_usage
from memjax.training.restoring import LoadedRun
from tools.results.runs import measure_command

SHOWN = ("usage", "top_usage", "count_divergence")
"""of `memjax.inspection.slot_usage.SlotCounts`"""


def measure(run: LoadedRun) -> dict[str, Any]:
    """Numbers of every table, and under `numbers` their means; without tables there are none."""
    if not run.variables.get("tables"):
        return {"numbers": {}}
    tables = describe_counts(measure_usage(run.experiment, run.variables))
    means = {name: statistics.fmean(table[name] for table in tables.values()) for name in SHOWN}
    numbers = {f"slots: {name.replace('_', ' ')}": value for name, value in means.items()}
    return {"tables": tables, "numbers": numbers}


def main(arguments: list[str] | None = None) -> int:
    return measure_command(measure, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
