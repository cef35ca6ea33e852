"""A model trained without the long memory goes on with one: the gap closed, step by step.

    python -m tools.results.memorizing.fine_tuning --workdir runs/results

Four runs of `memory_gain`, each trained where it is not finished yet: the local cache only, and the memory from the
start, half as long as those of the recipe `memory_gain_python`. From the parameters of the first one go on, for a few
steps, one with the memory and, as a control, one with the cache only.
Writes `fine_tuning.json` and `fine_tuning.md`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from memjax.training.evaluation import Score
from memjax.training.restoring import load_run
from memjax.training.runs import load_config
from tools.results import records
from tools.results.recipes import commit, hardware

OUT = Path(__file__).parent
STEPS, MORE, EVERY = 15000, 1000, 100
"""of training, of going on, and between evaluations"""
SHARED = ("--config", "memory_gain", "--training.seed", "1", "--data.seed", "1")
FROM_START = ("--training.steps", str(STEPS), "--training.schedule.learning-rate", "0.006")
GOING_ON = (
    *("--training.steps", str(MORE), "--training.evaluate-every", str(EVERY)),
    *("--training.schedule.learning-rate", "0.0005", "--training.schedule.warmup-steps", "50"),
)
BASE = "fine_tuning-before"
RUNS = {
    "cache": (BASE, "cache_only", FROM_START),
    "memory": ("fine_tuning-from_start", "default", FROM_START),
    "cache_memory": ("fine_tuning-default", "default", GOING_ON),
    "cache_cache": ("fine_tuning-cache_only", "cache_only", GOING_ON),
}
"""part of the table -> name, variant, arguments"""


def train(name: str, workdir: Path, segments: int) -> Path:
    """One run, if it is not finished; its directory."""
    run_name, variant, arguments = RUNS[name]
    directory = workdir / run_name
    if not (directory / "finished.json").exists():
        command = ["train", *SHARED, "--variant", variant, *arguments]
        command += ["--name", directory.name, "--workdir", str(workdir)]
        if arguments is GOING_ON:
            command += ["--training.init-from", str(workdir / BASE)]
            command += ["--evaluation.max-segments", str(segments)]
        print("== memjax", *command, file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "memjax.cli", *command], check=True)
    return directory


def evaluate(directory: Path, segments: int) -> Score:
    """The score of a finished run on so many segments of every row."""
    config = load_config(directory)
    config.evaluation.max_segments = segments
    run = load_run(directory, config)
    return run.experiment.evaluator()(run.variables)


def evaluations(directory: Path) -> dict[int, float]:
    """Step -> nats per token on validation."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["nats_per_token"] for line in lines if line["kind"] == "evaluation"}


def as_markdown(facts: dict[str, Any]) -> str:
    """The table."""
    before, after = facts["cache"], facts["memory"]
    lines = [
        f"| steps after the {STEPS:,} without memory | with memory | gap closed | control: without |",
        "| --- | --- | --- | --- |",
        f"| 0 | | | {before:.4f} |",
    ]
    for step, nats in facts["cache_memory"].items():
        closed = f"{100 * (before - nats) / (before - after):.0f} %"
        lines.append(f"| {step} | {nats:.4f} | {closed} | {facts['cache_cache'][step]:.4f} |")
    return "\n".join([*lines, f"| the memory from the start, {STEPS:,} steps | {after:.4f} | 100 % | |", ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="memorizing.fine_tuning", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workdir", default="runs/results", type=Path, help="run directories")
    parser.add_argument("--max-segments", default=60, type=int, help="of every row in an evaluation (default: 60)")
    options = parser.parse_args()
    found = {name: train(name, options.workdir, options.max_segments) for name in RUNS}
    for directory in found.values():
        records.keep_log(directory, f"memorizing/{directory.name}")
    scores = {name: evaluate(found[name], options.max_segments) for name in ("cache", "memory")}
    facts: dict[str, Any] = {name: score.nats_per_token for name, score in scores.items()}
    facts |= {name: evaluations(found[name]) for name in ("cache_memory", "cache_cache")}
    targets = scores["memory"].targets
    command = "python -m tools.results.memorizing.fine_tuning"
    known = {"command": command, "commit": commit(), "hardware": hardware(), "targets": targets}
    (OUT / "fine_tuning.json").write_text(json.dumps({**facts, **known}, indent=1) + "\n")
    page = (
        "# Memorizing Transformer: the memory added to a model trained without it\n\n"
        f"`{command}`; commit {known['commit']}; {known['hardware']}. `memory_gain` on Python documents, one seed; "
        f"nats per token of {targets:,} validation targets (separate documents, the first {options.max_segments} "
        f"segments of every row). {STEPS:,} steps with the local cache only, then {MORE:,} steps at a twelfth of "
        "the peak learning rate from those parameters, with the memory of 512 tokens (its gates are new) and, as a "
        "control, without; logs in [logs](../logs/memorizing). The gap is that to the model that had the memory from "
        "the start.\n\n"
    )
    (OUT / "fine_tuning.md").write_text(page + as_markdown(facts))
    print(page + as_markdown(facts))


if __name__ == "__main__":
    main()
