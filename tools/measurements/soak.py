"""Checks a long run of a stream of tasks with five interruptions: its memory, descriptors, threads and log.

    python -m tools.measurements.soak [--steps 10000]

A stream with replay is learned twice: in one process, and in six, of which five end by SIGTERM. Every process records
its resident memory, its open descriptors and its threads. The exit code is 1 if, after the first thousand steps of a
process, the memory changes by more than 2 %, or the descriptors or threads at all, or if the two runs differ in a line
of their logs or in a bit of their last checkpoints. Saves start threads that end some seconds after them, so threads
are counted once a thousand steps, when the training has rested.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from memjax import config
from memjax.training import StepInfo, read_metrics
from memjax.training.checkpoints import Checkpoints
from memjax.training.signals import StoppedBySignal

EVERY = 100
"""Number of steps between two samples, and between two lines of the log."""
SETTLED = 1_000
"""Number of steps of a process before its numbers must stay, and between two rests."""
REST = 25
"""Seconds of a rest. After it TensorStore's threads of a save (`ts_pool_worker`), idle for 20 seconds, have ended."""
MOST_CHANGE = 0.02
"""Largest allowed change of the resident memory, as a share."""
ROWS = 16
VOLATILE = ("attempt", "seconds", "first_step_seconds", "tokens_per_second", "examples_per_second")
"""Entries of a line of the log that say when and how fast it was written. They are not compared."""


def stream(workdir: Path, steps: int) -> config.Config:
    """Returns the configuration of a stream of four tasks, two classes in each, that reads every example once."""
    examples = steps // 4 * ROWS
    sources = [
        config.Blobs(classes=(2 * task, 2 * task + 1), num_classes=8, dim=16, num_train=examples) for task in range(4)
    ]
    method = config.Replay(memory=config.EpisodicMemory(capacity=256), replay_batch_size=16)
    tasks = tuple(config.TaskData(name=f"task {number}", source=source) for number, source in enumerate(sources))
    training = config.Training(
        steps=steps, log_every=EVERY, checkpoint_every=5 * EVERY, evaluate_every=10 * EVERY, optimizer=config.Adam()
    )
    return config.Config(
        name="run",
        workdir=str(workdir),
        model=config.Perceptron(widths=(32,)),
        task=config.Classification(num_classes=8),
        data=config.Data(source=sources[0], batch_size=ROWS, segment_length=16),
        training=training,
        evaluation=config.Evaluation(batch_size=16, split="test"),
        lifelong=config.Lifelong(method=method, tasks=tasks, epochs=1),
    )


def sample(*, rested: bool) -> dict[str, int]:
    """Returns the resident memory of this process in KiB, and its numbers of open descriptors and of threads.

    Args:
      rested: Whether the process has rested. Threads are counted only then.
    """
    (resident,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    count = lambda folder: len(os.listdir(f"/proc/self/{folder}"))
    counts = {"resident": int(resident.split()[1]), "descriptors": count("fd")}
    return {**counts, "threads": count("task")} if rested else counts


def train_part(workdir: Path, steps: int, stop_at: int) -> int:
    """Trains the stream from its last checkpoint on, and writes the samples to a file of the attempt.

    Args:
      workdir: Folder of the run and of the samples.
      steps: Number of steps of the whole stream.
      stop_at: Step at which to send SIGTERM to this process. 0 for never.

    Returns:
      128 and the number of the signal if it has stopped the run, else 0.
    """
    from memjax.lifelong import train

    samples, first = list[dict[str, int]](), list[int]()

    def watch(info: StepInfo) -> None:
        first.append(info.step) if not first else None
        if info.step % EVERY == 0:
            rests = info.step % SETTLED == 0
            time.sleep(REST if rests else 0)
            samples.append({"steps": info.step - first[0] + 1, **sample(rested=rests)})
        if info.step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        train(stream(workdir, steps), hooks=[watch], on_event=lambda event: None)
        code = 0
    except StoppedBySignal as stopped:
        code = stopped.exit_code
    (workdir / f"samples-{first[0]:06d}.json").write_text(json.dumps(samples))
    return code


def train_in_parts(workdir: Path, steps: int, stops: Sequence[int]) -> list[list[dict[str, int]]]:
    """Trains the stream in one process after the other, and returns the samples of each.

    Args:
      workdir: Folder of the run, which is made.
      steps: Number of steps of the whole stream.
      stops: Steps at which a process gets SIGTERM. One more process trains to the end.

    Raises:
      RuntimeError: A process has ended with another exit code than expected.
    """
    workdir.mkdir()
    for stop_at in (*stops, 0):
        arguments = ["--workdir", str(workdir), "--steps", str(steps), "--stop-at", str(stop_at)]
        done = subprocess.run([sys.executable, "-m", "tools.measurements.soak", *arguments], check=False)
        wanted = 128 + signal.SIGTERM if stop_at else 0
        if done.returncode != wanted:
            raise RuntimeError(f"the process until step {stop_at or steps} ended with {done.returncode}, not {wanted}")
    return [json.loads(file.read_text()) for file in sorted(workdir.glob("samples-*.json"))]


def describe_changes(samples: Sequence[Mapping[str, int]]) -> list[str]:
    """Describes each number of a process that has changed too much after the first thousand steps, in a line each.

    Example:
      >>> steady = {"resident": 100, "descriptors": 9, "threads": 4}
      >>> describe_changes([{"steps": 1000, **steady}, {"steps": 2000, **steady, "resident": 103, "threads": 5}])
      ['resident: 100 after 1,000 steps, 103 after 2,000', 'threads: 4 after 1,000 steps, 5 after 2,000']
    """
    settled = [sample for sample in samples if sample["steps"] >= SETTLED]
    pairs = []
    for name in ("resident", "descriptors", "threads"):
        if known := [sample for sample in settled if name in sample]:
            pairs.append((name, known[0], max(known, key=lambda sample: abs(sample[name] - known[0][name]))))
    lines = []
    for name, before, after in pairs:
        if abs(after[name] - before[name]) > (MOST_CHANGE * before[name] if name == "resident" else 0):
            places = [f"{sample[name]:,} after {sample['steps']:,}" for sample in (before, after)]
            lines.append(f"{name}: {places[0]} steps, {places[1]}")
    return lines


def describe_difference(whole: Path, parts: Path) -> list[str]:
    """Describes in which lines of their logs and in which arrays of their last checkpoints two runs differ."""
    logs = [
        [{key: value for key, value in line.items() if key not in VOLATILE} for line in read_metrics(run)]
        for run in (whole / "run/metrics.jsonl", parts / "run/metrics.jsonl")
    ]
    lines = [f"line of the log: {line}" for line in logs[0] if line not in logs[1]]
    lines += [f"line of the log, only with interruptions: {line}" for line in logs[1] if line not in logs[0]]
    if not lines and logs[0] != logs[1]:
        lines = [f"log: {len(logs[1])} lines in another order or double, {len(logs[0])} without interruptions"]
    arrays = []
    for workdir in (whole, parts):
        checkpoints = Checkpoints(workdir / "run/checkpoints", read_only=True)
        arrays.append({name: np.asarray(array).tobytes() for name, array in checkpoints.load("")[1].items()})
        checkpoints.close()
    return lines + [f"checkpoint: {name}" for name in arrays[0] if arrays[0][name] != arrays[1].get(name)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000, help="number of steps of the stream, 6,000 or more")
    parser.add_argument("--workdir", type=Path, help="folder of a part, in the process that learns it")
    parser.add_argument("--stop-at", type=int, default=0, help="step at which a part gets SIGTERM")
    options = parser.parse_args(arguments)
    if options.workdir:
        return train_part(options.workdir, options.steps, options.stop_at)
    stops = [options.steps * part // 6 + 37 for part in range(1, 6)]
    with tempfile.TemporaryDirectory(prefix="memjax-soak-") as place:
        whole, parts = Path(place) / "whole", Path(place) / "parts"
        samples = [*train_in_parts(whole, options.steps, ()), *train_in_parts(parts, options.steps, stops)]
        lines = [line for process in samples for line in describe_changes(process)] + describe_difference(whole, parts)
    for process in samples:
        begin, end = next(sample for sample in process if sample["steps"] >= SETTLED), process[-1]
        rested = [sample for sample in process if "threads" in sample][-1]
        print(
            f"{end['steps']:,} steps: {begin['resident'] / 1024:.1f} to {end['resident'] / 1024:.1f} MiB, "
            f"{end['descriptors']} descriptors, {rested['threads']} threads"
        )
    print("\n".join(lines) or f"{options.steps:,} steps with {len(stops)} interruptions: nothing grew, nothing is lost")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
