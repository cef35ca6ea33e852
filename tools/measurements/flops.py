"""Counts the FLOPs of a token for the runs of a recipe, beside the quality and the state that the ledger has.

    python -m tools.measurements.flops --recipe recurrent_memories --workdir runs/results

Nothing is run: FLOPs are counted from the configuration of each run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from memjax.data.opening import vocab_size_from_settings
from memjax.training.costs import count_flops
from memjax.training.metrics import count_bytes
from memjax.training.runs import load_config
from tools.measurements.costs import program
from tools.recipes import RECIPES
from tools.results import pages, tables
from tools.results.ledger import ROOT, Book, Run, measured


def measure(run: Run, directory: Path) -> float:
    """Counts the FLOPs of a token in a forward pass.

    Args:
      run: Run as the ledger has it.
      directory: Run directory.

    Raises:
      ValueError: The state of the counted model has another size than the ledger says.
    """
    config = load_config(directory)
    rows, length = config.data.batch_size, config.data.segment_length  # what all rows share is shared by as many
    loss, shapes = program(config.model, vocab_size_from_settings(config.data), rows, length)
    state, known = count_bytes(shapes[1]) // rows, tables.numbers(run, RECIPES.get(run.recipe))["memory bytes per row"]
    if state != known:
        raise ValueError(f"{run.name}: a state of {known:.0f} bytes, here {state}")
    return count_flops(loss, *shapes) / (rows * length)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flops", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", required=True, help="whose runs are counted")
    parser.add_argument("--quality", default="bits per byte", help="number beside them (default: bits per byte)")
    parser.add_argument("--workdir", type=Path, default="runs/results", help="run directories")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of ledger and measurements")
    options = parser.parse_args(arguments)
    book = Book(options.out)
    chosen = [run for run in book.runs() if run.recipe == options.recipe]
    if not chosen:
        allowed = ", ".join(sorted({run.recipe for run in book.runs()}))
        parser.error(f"--recipe: given {options.recipe!r}, which has no runs; allowed: {allowed}")
    flops_per_token = {f"{run.row}, seed {run.seed}": measure(run, options.workdir / run.name) for run in chosen}
    command = ["python", "-m", "tools.measurements.flops", "--recipe", options.recipe, "--quality", options.quality]
    about = (
        "FLOPs of a forward pass and its loss, counted from the traced program: 2 for each multiplication and addition "
        "of products of matrices, everything else 0. Nothing was run for this table."
    )
    facts = {"quality": options.quality, "flops per token": flops_per_token}
    title = "Quality, FLOPs and state"
    pages.record(measured("flops", options.recipe, facts, command=shlex.join(command), title=title, about=about), book)
    return 0


if __name__ == "__main__":
    sys.exit(main())
