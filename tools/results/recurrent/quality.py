"""What the runs of a recipe reach, beside what their memories cost: quality, FLOPs and state.

    python -m tools.results.recurrent.quality --recipe recurrent_memories

Nothing is run: quality is that of the records, FLOPs are counted from the configuration in each run's log. Writes
`quality_RECIPE.json` and `quality_RECIPE.md`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from memjax.planning.programs import vocab_size_of
from memjax.training.costs import count_flops
from memjax.training.metrics import count_bytes
from memjax.training.runs import load_config
from tools.results import records
from tools.results.recurrent.costs import program
from tools.results.runs import cells, write

FOLDER = "recurrent"


def measure(record: records.Record) -> dict[str, Any]:
    """Numbers of a record, FLOPs of a token in a forward pass, and bytes of the state of a row."""
    config = load_config(records.LOGS / record.log)
    rows, length = config.data.rows, config.data.segment_length  # what all rows share is shared by as many
    loss, shapes = program(config.model, vocab_size_of(config.data), rows, length)
    state = count_bytes(shapes[1]) // rows
    if state != record.numbers["memory bytes per row"]:
        raise ValueError(f"{record.log}: a state of {record.numbers['memory bytes per row']:.0f} bytes, here {state}")
    return {**record.numbers, "flops per token": count_flops(loss, *shapes) / (rows * length), "log": record.log}


def as_markdown(found: dict[str, dict[str, Any]], quality: str) -> str:
    """One row per run, the best first."""
    heads = [quality, "MFLOPs a token", "state, KiB a row", "parameters"]
    lines = [cells(["run", *heads]), cells(["---"] * (len(heads) + 1))]
    best_first = sorted(found.items(), key=lambda item: item[1][quality], reverse="accuracy" in quality)
    for name, numbers in best_first:
        cost = [f"{numbers['flops per token'] / 1e6:.3f}", f"{numbers['memory bytes per row'] / 1024:,.1f}"]
        lines.append(cells([name, f"{numbers[quality]:.4f}", *cost, f"{numbers['parameters']:,.0f}"]))
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="recurrent.quality", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", required=True, help="whose records are shown")
    parser.add_argument("--quality", default="bits per byte", help="number of the records (default: bits per byte)")
    options = parser.parse_args(arguments)
    chosen = [record for record in records.read() if record.recipe == options.recipe]
    if not chosen:
        allowed = ", ".join(sorted({record.recipe for record in records.read()}))
        parser.error(f"--recipe: given {options.recipe!r}, which has no records; allowed: {allowed}")
    found = {f"{record.row}, seed {record.seed}": measure(record) for record in chosen}
    command = f"python -m tools.results.recurrent.quality --recipe {options.recipe}"
    command += "" if options.quality == "bits per byte" else f" --quality '{options.quality}'"
    page = (
        f"# Quality, FLOPs and state: {options.recipe}\n\n"
        "Quality is that of the [results table](../README.md), which names the logs. FLOPs of a forward pass and its "
        "loss, counted from the traced program: 2 for each multiplication and addition of products of matrices, "
        "everything else 0. Nothing was run for this page.\n\n"
    )
    page += as_markdown(found, options.quality)
    write(FOLDER, f"quality_{options.recipe}", command, {"runs": found}, page, logs=options.recipe)
    return 0


if __name__ == "__main__":
    sys.exit(main())
