"""The process of one contender: answers a line protocol, so that several Python environments can take turns.

Standard library only, because it runs in every environment. The parent writes one command per line and reads one JSON
object per line:

    describe             -> {"parameters": 3483008, "tokens_per_step": 512, "versions": {...}, "settings": {...}}
    warm MODE COUNT      -> {"seconds": [...], "cpu_seconds": [...], "page_faults": [...]}; the first one compiles
    step MODE COUNT      -> the same
    rss                  -> {"peak_rss_mib": 512.3}
    quit                 -> the process ends

What a library prints goes to stderr, and a failure is answered with {"error": "one line"}.
"""

import importlib.metadata
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol

THREADS = 2
WAIT_PASSIVELY = {
    "OMP_NUM_THREADS": str(THREADS),
    "MKL_NUM_THREADS": str(THREADS),
    "OPENBLAS_NUM_THREADS": str(THREADS),
    # A contender that waits for its turn must not spin on a core of the one that is measured.
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


class Contender(Protocol):
    """What a worker measures."""

    def describe(self) -> dict:
        """`parameters`, `tokens_per_step` (int; the suite's unit) and `settings` (dict)."""
        ...

    def prepare(self, mode: str) -> None:
        """Work that belongs to no step (fresh tokens, refilling an index); not timed."""
        ...

    def step(self, mode: str) -> None:
        """One step of `mode` ("train" or "infer", or another of the suite); returns when its results are there."""
        ...


def steps_to_fill(settings: Mapping[str, int]) -> int:
    """Number of steps after which a memory has no empty slot, with the tokens of the first step attended to once.

    Example:
      >>> steps_to_fill({"memory_length": 384, "compressed_memory_length": 128, "compression_rate": 4, "length": 128})
      8
    """
    compressed = settings.get("compressed_memory_length", 0) * settings.get("compression_rate", 1)
    tokens = settings.get("memory_length", 0) + compressed
    return 1 + -(-tokens // (settings["length"] * settings.get("segments", 1)))


def versions_of(*packages: str) -> dict[str, str]:
    """Versions of Python and of the named distributions."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in packages}


def peak_rss_mib() -> float:
    """Largest resident set of this process so far, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def page_faults() -> int:
    """Pages that were mapped for this process so far, without reading a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _timed_steps(contender: Contender, mode: str, count: int) -> dict:
    measured: dict[str, list] = {"seconds": [], "cpu_seconds": [], "page_faults": []}
    for _ in range(count):
        contender.prepare(mode)
        faults, cpu, wall = page_faults(), time.process_time(), time.perf_counter()
        contender.step(mode)
        measured["seconds"].append(time.perf_counter() - wall)
        measured["cpu_seconds"].append(time.process_time() - cpu)
        measured["page_faults"].append(page_faults() - faults)
    return measured


def _answer(contender: Contender, line: str) -> dict:
    match line.split():
        case ["describe"]:
            return contender.describe()
        case ["warm" | "step", mode, count]:
            return _timed_steps(contender, mode, int(count))
        case ["rss"]:
            return {"peak_rss_mib": peak_rss_mib()}
    raise ValueError(f"unknown command {line!r}: use describe, warm MODE COUNT, step MODE COUNT, rss or quit")


def one_line(error: BaseException) -> str:
    """`error` as `Type: message`, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def serve(make_contender: Callable[[], Contender]) -> int:
    """Answers commands on stdin until `quit` or its end. Returns the exit code."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def put(answer: dict) -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        contender = make_contender()
        put({"ready": True})
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            put(_answer(contender, line))
    except Exception as error:  # whatever a peer raises must reach the parent as one line
        put({"error": one_line(error)})
        return 1
    return 0
