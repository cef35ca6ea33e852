"""Split MNIST beside Avalanche 0.6.0: accuracy and speed of six methods on the same images, by turns.

    python -m venv .venv-avalanche; .venv-avalanche/bin/pip install torch==2.13.0 avalanche-lib==0.6.0 quadprog==0.1.14
    python -m tools.bench.split_mnist --data DIR --python .venv-avalanche/bin/python      # DIR: the four idx files

Every run is a process of its own, memjax's and Avalanche's by turns. Seconds are those of updates alone: for memjax
without the compilation, which stands beside.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.data.vectors import read_digits
from memjax.lifelong.factory import train
from memjax.report.outcomes import stream_facts
from memjax.settings.overrides import apply_overrides, load_config
from memjax.training import read_metrics
from memjax.training.runs import load_config as load_run_config
from tools.results import pages
from tools.results.ledger import measured

METHODS: Mapping[str, tuple[str, str]] = {
    "SEQ": ("default", ""),
    "replay": ("replay", ""),
    "GEM": ("gem", ""),
    "EWC": ("ewc", "--lifelong.method.fisher-estimate batch --lifelong.method.fisher-batches 63"),
    "LwF": (
        "lwf",
        "--lifelong.method.distillation-weight 0.25",
    ),  # Avalanche leaves out the square of the temperature, 2
    "cumulative": ("cumulative", ""),
}
"""name -> the variant of configs/lifelong_mnist.py, and further arguments"""
ABOUT = (
    "10,000 images, 5 x 2 digits, one head of 10, perceptron 784-256-10, SGD 0.1, batches of 32, one epoch: both read "
    "the same images. Replay 500 rows in all, 32 stored beside 32 new ones; GEM 100 rows a task, margin 0.5; EWC 100; "
    "LwF 1 at temperature 2 (0.25 here, where the divergence is times the square of the temperature). Accuracy: mean "
    "over tasks at the end. Seconds: all updates of a run without evaluations, medians over seeds; ratio of these."
)
PEER = {"PYTHONPATH": str(Path(__file__).with_name("no_torchvision")), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
"""environment variables of Avalanche's Python: no torchvision, one thread, and none of the modules beside a script, of
which one is called profile, as one that torch imports"""
COMPILING = "/jax/core/compile/"
"""events of JAX that time tracing, lowering and compiling"""


def write_stream(data: Path, file: Path) -> None:
    """The images and labels of every task as `tools.bench.avalanche_peer` reads them."""
    config = load_config("lifelong_mnist")
    assert config.lifelong is not None
    arrays: dict[str, Any] = {}
    for number, task in enumerate(config.lifelong.tasks):
        for split, count in (("train", task.source.num_train), ("test", task.source.num_test)):
            found = read_digits(data, split, classes=task.source.classes, count=count)
            arrays[f"{split}_x{number}"] = found.read(found.rows)
            arrays[f"{split}_y{number}"] = found.labels.astype(np.int64)
    np.savez(file, **arrays)


def own(method: str, seed: int, data: Path, workdir: Path) -> dict[str, Any]:
    """A run of memjax: accuracies at the end, and seconds of updates and of compilation."""
    import jax

    compiling: list[float] = []
    listen = lambda event, seconds, **_: compiling.append(seconds) if event.startswith(COMPILING) else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    variant, further = METHODS[method]
    words = [
        "--lifelong.sources-dir",
        str(data),
        "--training.seed",
        str(seed),
        "--data.seed",
        str(seed),
        *further.split(),
    ]
    words += ["--workdir", str(workdir), "--name", f"{method}-{seed}", "--training.log-every", "21"]
    config = apply_overrides(load_config("lifelong_mnist", variant), words, prog="split_mnist")
    train(config)
    run = workdir / f"{method}-{seed}"
    lines = [line for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "train"]
    # A line that stands right behind an evaluation has no pace; its updates take what the others do.
    paced = [line for line in lines if line["tokens_per_second"]]
    pace = sum(line["tokens"] / line["tokens_per_second"] for line in paced) / sum(line["tokens"] for line in paced)
    seconds = pace * sum(line["tokens"] for line in lines)
    scores = stream_facts(str(run), load_run_config(run))["scores"][-1]
    return {"accuracies": scores, "seconds": seconds, "compile_seconds": sum(compiling)}


def rows(data: Path, python: str, methods: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row a method: what every seed came to on both sides."""
    with tempfile.TemporaryDirectory() as folder:
        stream, found = Path(folder, "stream.npz"), []
        write_stream(data, stream)
        for method in methods:
            row: dict[str, Any] = {"method": method, "memjax": [], "Avalanche": []}
            for seed in seeds:
                ours = [sys.executable, "-m", "tools.bench.split_mnist", "--data", str(data), "--own", method]
                theirs = [python, str(Path(__file__).with_name("avalanche_peer.py")), method, str(seed), str(stream)]
                row["memjax"].append(_said([*ours, "--seeds", str(seed), "--workdir", folder]))
                row["Avalanche"].append(_said(theirs, PEER))
            found.append(row)
            print(method, {side: statistics.fmean(_accuracies(row[side])) for side in ("memjax", "Avalanche")})
    return found


def _said(command: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _accuracies(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    return [statistics.fmean(run["accuracies"]) for run in runs]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.split_mnist", description="memjax beside Avalanche.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the four idx files of MNIST")
    parser.add_argument("--python", default="", help="Python of an environment with avalanche-lib")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--own", default="", choices=["", *METHODS], help="one run of memjax, as JSON")
    parser.add_argument("--workdir", type=Path, default=Path("runs"), help="of --own")
    args = parser.parse_args(arguments)
    if args.own:
        print(json.dumps(own(args.own, args.seeds[0], args.data, args.workdir)))
        return 0
    if not args.python:
        parser.error("--python: given none, allowed: the Python of an environment with avalanche-lib")
    found = rows(args.data, args.python, args.methods, args.seeds)
    words = shlex.join(["python", "-m", "tools.bench.split_mnist", "--data", "DIR", "--python", "PYTHON"])
    title = "Beside Avalanche 0.6.0"
    pages.record(measured("avalanche", "split_mnist", {"rows": found}, command=words, title=title, about=ABOUT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
