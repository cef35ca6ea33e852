"""`python -m tools.bench.end_to_end`: tokens a second of a training run with data and checkpoints, beside its step.

A Transformer-XL reads the bytes of the Python library's sources. First its compiled update runs again and again on one
batch, then `memjax.training.train` makes a run of the same configuration, with a log line and a checkpoint every few
steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from memjax import config
from memjax.allocation import keep_freed_memory
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.experiment import Experiment, make_experiment
from memjax.training.plain_learner import make_single_stage
from memjax.training.run_start import train
from memjax.training.update_functions import make_objective
from tools.bench.suites import SIZES
from tools.results import pages
from tools.results.ledger import ROOT as RESULTS
from tools.results.ledger import Book, measured
from tools.results.timed_code import fingerprint, timed_with

NAME, MEMORY_LENGTH = "transformer_xl", 512


def run_config(sizes: dict[str, int], steps: int, every: int, folder: str) -> config.Config:
    """Returns the configuration of the run.

    Args:
      sizes: Sizes of the model and its batches, as in the suites.
      steps: Number of steps.
      every: Number of steps between checkpoints, and between lines of the log.
      folder: Folder of the run directory.
    """
    return config.Config(
        name="end_to_end",
        workdir=folder,
        model=config.Model(
            dim=sizes["dim"],
            num_layers=sizes["layers"],
            num_heads=sizes["heads"],
            attention=config.TransformerXL(memory_length=MEMORY_LENGTH),
            feed_forward=config.Dense(dim=sizes["feed_forward"]),
        ),
        data=config.Data(
            source=config.PythonLibrary(),
            tokenizer=config.Bytes(),
            batch_size=sizes["batch"],
            segment_length=sizes["length"],
        ),
        training=config.Training(steps=steps, log_every=every, checkpoint_every=every),
        evaluation=config.Evaluation(batch_size=sizes["batch"], max_segments=4),
    )


def seconds_of_steps(experiment: Experiment, steps: int) -> list[float]:
    """Times updates on one batch, without reading data or writing anything."""
    make_learner, stages = make_single_stage(experiment, None, make_objective)
    learner = CompiledLearner(None, make_learner(()))
    state = learner.init(learner.new_variables())
    batch = next(stages[0].open_stream(state, None))
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        state, sums = learner.update_inlined(state, batch)
        jax.block_until_ready((state, sums))
        seconds.append(time.perf_counter() - begin)
    return seconds


def measure(sizes: dict[str, int], steps: int, every: int) -> dict[str, Any]:
    """Measures the update alone and a run.

    Returns:
      `tokens_per_step`, `step_seconds` of the update alone (median), `run_seconds` of the whole call,
      `first_step_seconds`, and `steady_steps` and `steady_seconds` of the run after its first log line.
    """
    with tempfile.TemporaryDirectory(prefix="memjax-end-to-end-") as folder:
        described = run_config(sizes, steps, every, folder)
        experiment = make_experiment(described)
        alone = seconds_of_steps(experiment, 2 * every)[1:]
        begin = time.perf_counter()
        train(described, experiment=experiment, on_event=lambda event: None)
        whole = time.perf_counter() - begin
        log = (Path(folder) / described.name / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [line for line in map(json.loads, log.splitlines()) if line["kind"] == "train"]
    first, last = lines[0], lines[-1]
    return {
        "tokens_per_step": sizes["batch"] * sizes["length"],
        "steps": steps,
        "every": every,
        "step_seconds": statistics.median(alone),
        "run_seconds": whole,
        "first_step_seconds": first["first_step_seconds"],
        "steady_steps": last["step"] - first["step"],
        "steady_seconds": last["seconds"] - first["seconds"],
    }


def main(argv: list[str] | None = None) -> int:
    """Measures and records."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.end_to_end", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--steps", type=int, default=120, help="steps of the run")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints, and between lines of the log")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the measurements")
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.every < arguments.steps:
        parser.error(f"--every: given {arguments.every}, allowed: at least 1 and fewer than --steps")
    keep_freed_memory()  # as commands do
    facts = {
        **measure(SIZES, arguments.steps, arguments.every),
        "timed_modules": [],
        "timed_code": fingerprint(timed=timed_with(())),
    }
    about = (
        f"Transformer-XL of {SIZES['layers']} layers, {SIZES['dim']} wide, with a memory of {MEMORY_LENGTH}, on the "
        f"bytes of the Python library; a log line and a checkpoint every {arguments.every} steps."
    )
    words = {"command": "python -m tools.bench.end_to_end", "title": "A training run beside its step", "about": about}
    arguments.out.mkdir(parents=True, exist_ok=True)
    pages.record(measured("end_to_end", NAME, facts, **words), Book(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
