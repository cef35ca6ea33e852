"""Measures checksums as shares of a training step, and the time until a large token file is open.

    python -m tools.measurements.checksums [--gigabytes 1]

Every share is one of a step of a small model on this machine. Larger models have longer steps, and smaller shares.
The exit code is 1 if a share is 1 % or more, or if the file takes a second or longer to open.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memjax import config
from memjax.data.checked_files import BLOCK_BYTES
from memjax.data.token_files import TokenFile, TokenizedDocument, write_tokens
from memjax.durable_files import checksum
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.experiment import make_experiment
from memjax.training.metrics import encode_line
from memjax.training.plain_learner import make_single_stage
from memjax.training.runs import config_to_dict
from memjax.training.stages import STREAM
from memjax.training.update_functions import make_objective
from tools.results import pages
from tools.results.ledger import measured, together

MOST_SHARE, MOST_SECONDS = 0.01, 1.0
"""Limits that the exit code checks: share of a step, and seconds until the token file is open."""
DOCUMENT_TOKENS, BYTES_OF_TOKEN = 2_500, 2
TITLE = "Checksums"


def settings() -> config.Config:
    """Returns the configuration of the small model."""
    model = config.Model(dim=128, num_layers=2, num_heads=4, attention=config.TransformerXL(memory_length=128))
    data = config.Data(source=config.KeyValueRecall(), batch_size=16, segment_length=128)
    return config.Config(model=model, data=data)


def seconds_of(function: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.process_time) -> float:
    """Returns the median seconds of a call, after one call for warming up. The default clock counts CPU seconds."""
    function()
    seconds = []
    for _ in range(repeats):
        begin = clock()
        function()
        seconds.append(clock() - begin)
    return statistics.median(seconds)


def seconds_of_step(repeats: int) -> float:
    """Returns the median CPU seconds of a training step of the small model."""
    make_learner, stages = make_single_stage(make_experiment(settings()), None, make_objective)
    learner = CompiledLearner(None, make_learner(()))
    holder = [learner.init(learner.new_variables())]
    update = next(stages[0].open_stream(holder[0], None))

    def step() -> None:
        holder[0], sums = learner.update_inlined(holder[0], update)
        jax.block_until_ready(sums)

    assert update[0] == STREAM
    return seconds_of(step, repeats)


def shares(repeats: int) -> list[dict[str, Any]]:
    """Returns a row for each kind of checksum, with its CPU seconds and their share of a step."""
    step, data, run = seconds_of_step(repeats), settings().data, config_to_dict(settings())
    line = {"step": 1, "attempt": 1, "kind": "train", **{f"metric_{number}": number / 7 for number in range(20)}}
    block = np.random.default_rng(0).bytes(BLOCK_BYTES)
    read = data.batch_size * data.segment_length * BYTES_OF_TOKEN
    with_checksum, without = (
        seconds_of(lambda: [encode_line(line) for _ in range(100)], repeats) / 100,
        seconds_of(lambda: [json.dumps(line).encode() for _ in range(100)], repeats) / 100,
    )
    costs = {
        "a line of metrics, written every step": with_checksum - without,
        "blocks of tokens, for the tokens of a step": seconds_of(lambda: hashlib.sha256(block).digest(), repeats)
        * (read / BLOCK_BYTES),
        "config.json, once per 1,000 steps": seconds_of(lambda: checksum(run), repeats) / 1000,
    }
    return [
        {"what": what, "seconds": seconds, "share": seconds / step, "step_seconds": step}
        for what, seconds in costs.items()
    ]


def write_token_file(folder: Path, size: int) -> None:
    """Writes a token file of `size` bytes, in documents of 2,500 tokens."""
    tokens = np.random.default_rng(0).integers(0, 50_000, DOCUMENT_TOKENS, np.int32)

    def documents(first: int) -> Iterator[TokenizedDocument]:
        for number in range(first, -(-size // (DOCUMENT_TOKENS * BYTES_OF_TOKEN))):
            yield TokenizedDocument(f"document {number}", tokens, DOCUMENT_TOKENS)

    write_tokens(folder, documents, token_bytes=np.ones(50_000, np.int32), source="random", tokenizer="none")


def open_token_file(size: int, repeats: int) -> dict[str, Any]:
    """Returns the seconds until a token file of `size` bytes is open, and until its first document is read."""
    with tempfile.TemporaryDirectory(prefix="memjax-checksums-") as place:
        folder = Path(place) / "tokens"
        write_token_file(folder, size)
        seconds = seconds_of(lambda: TokenFile(folder), repeats, time.perf_counter)
        first = seconds_of(lambda: TokenFile(folder)[0], repeats, time.perf_counter)
    return {"bytes": size, "open_seconds": seconds, "first_document_seconds": first}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the token file")
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args(arguments)
    rows = shares(options.repeats)
    opened = open_token_file(int(options.gigabytes * 1e9), options.repeats)
    facts = {**together(rows), **opened, "jax": jax.__version__, "settings": dataclasses.asdict(settings().data)}
    del facts["settings"]["source"]
    command = f"python -m tools.measurements.checksums --gigabytes {options.gigabytes:g} --repeats {options.repeats}"
    about = (
        "A model of 2 layers, 128 wide, 16 rows of 128 tokens. Medians of CPU time; a file is opened in wall time. A "
        "block of a token file has 4 MiB."
    )
    pages.record(measured("checksums", "small_model", facts, command=command, title=TITLE, about=about))
    is_cheap = all(row["share"] < MOST_SHARE for row in rows) and opened["open_seconds"] < MOST_SECONDS
    return 0 if is_cheap else 1


if __name__ == "__main__":
    sys.exit(main())
