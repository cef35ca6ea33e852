"""Measures the training time that is lost to saving checkpoints, at once and in the background, in one run.

    python -m tools.measurements.saves [--rounds 7] [--steps 8]

A run in one process takes turns of equally many steps: without a checkpoint, after a checkpoint that is written at
once, and after one that a thread writes while training goes on. The lost time is the time in which training stands
still for the save, as a share of the turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from memjax import config
from memjax.training.checkpoint_writer import CheckpointWriter
from memjax.training.checkpoints import Checkpoints
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.experiment import make_experiment
from memjax.training.metrics import count_bytes
from memjax.training.plain_learner import make_single_stage
from memjax.training.update_functions import make_objective
from tools.results import pages
from tools.results.ledger import measured, together

MODES = {"none": None, "at once": False, "in the background": True}
"""Name of a way to save -> whether it saves in the background. None for no checkpoint."""
TITLE = "Time lost to checkpoints"


class TrainedRun:
    """A run of a small model, which trains some steps after each checkpoint.

    Attributes:
      size: Number of bytes of a checkpoint.
    """

    def __init__(self, folder: Path, dim: int, layers: int):
        model = config.Model(dim=dim, num_layers=layers, num_heads=4, attention=config.TransformerXL(memory_length=128))
        data = config.Data(source=config.KeyValueRecall(), batch_size=8, segment_length=128)
        make_learner, stages = make_single_stage(
            make_experiment(config.Config(model=model, data=data)), None, make_objective
        )
        self._learner = CompiledLearner(None, make_learner(()))
        self._state = self._learner.init(self._learner.new_variables())
        self._stream, self._number = stages[0].open_stream(self._state, None), 0
        self._checkpoints = Checkpoints(folder)
        self._writers = [CheckpointWriter(self._checkpoints, in_background=mode) for mode in (False, True)]
        self.size = count_bytes(self._state)

    def turn(self, in_background: bool | None, steps: int) -> tuple[float, float]:
        """Saves a checkpoint and trains some steps. Returns the seconds of both, and the seconds of the save alone.

        Args:
          in_background: Whether to save in the background. None for no checkpoint.
          steps: Number of training steps.
        """
        self._number += 1
        begin = time.perf_counter()
        if in_background is not None:
            tree = self._learner.to_checkpoint(self._state)
            self._writers[in_background].save(self._number, tree, extra={})
        saved = time.perf_counter()
        for _ in range(steps):
            self._state, sums = self._learner.update_inlined(self._state, next(self._stream))
            jax.block_until_ready(sums)
        self._writers[True].wait()
        return time.perf_counter() - begin, saved - begin

    def close(self) -> None:
        """Ends the threads that write, and closes the checkpoints."""
        for writer in self._writers:
            writer.close()
        self._checkpoints.close()


def measure(rounds: int, steps: int, dim: int, layers: int) -> list[dict[str, Any]]:
    """Trains turns of all ways to save in alternation, and returns a record of each way."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in MODES}
    with tempfile.TemporaryDirectory(prefix="memjax-saves-") as folder:
        run = TrainedRun(Path(folder) / "checkpoints", dim, layers)
        for number in range(rounds + 1):
            for name, in_background in MODES.items():
                turn = run.turn(in_background, steps)
                if number:  # the first round compiles
                    seconds[name].append(turn)
        run.close()
    return [
        {
            "mode": name,
            "turn_seconds": statistics.median(turn for turn, _ in seconds[name]),
            "save_seconds": statistics.median(save for _, save in seconds[name]),
            "bytes": run.size,
        }
        for name in MODES
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, value in {"rounds": 7, "steps": 8, "dim": 512, "layers": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args(arguments)
    rows = measure(options.rounds, options.steps, options.dim, options.layers)
    command = f"python -m tools.measurements.saves --rounds {options.rounds} --steps {options.steps}"
    about = (
        f"A checkpoint every {options.steps} steps of a model of {options.layers} layers, {options.dim} wide, 8 rows "
        f"of 128 tokens. Medians of {options.rounds} turns. What is lost is the time in which training stands still."
    )
    facts = {**together(rows), "jax": jax.__version__}
    pages.record(measured("saves", "small_model", facts, command=command, title=TITLE, about=about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
