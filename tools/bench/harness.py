"""Measures contenders in turn, each in a process of its own, and writes records and a table.

Absolute times on a shared machine vary several-fold from minute to minute, so contenders take turns (A step, B step,
A step, ...) within one run, and what is reported first is the ratio of medians with an interval from resampled rounds.
"""

import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from memjax.allocation import SWITCH
from tools.bench import worker
from tools.results.ledger import Measurement, together
from tools.results.speed_tables import quartiles
from tools.results.timed_code import CONTENDERS, fingerprint, timed_with

RESAMPLES = 1000


class BenchError(Exception):
    """A contender failed; the message is one line that names it."""


@dataclass(frozen=True)
class Entry:
    """One contender of a suite: its name in the table and the command that serves it."""

    name: str
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """Contenders measured alternately; ratios are taken to `baseline` and, where it takes part, to `reference`."""

    name: str
    entries: Sequence[Entry]
    baseline: str
    reference: str | None = None
    modes: Sequence[str] = ("infer", "train")  # training last: the peak of a process never falls
    note: str = ""
    unit: str = "tokens"  # what a step works through
    rounds: int = 12  # measured steps per contender and mode, unless the command says how many


class Worker:
    """A running contender."""

    def __init__(self, entry: Entry, cwd: Path | None = None):
        self.name = entry.name
        self._errors = tempfile.TemporaryFile("w+")
        try:
            self._process = subprocess.Popen(
                list(entry.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                bufsize=1,
                cwd=cwd,
                env={**os.environ, **worker.WAIT_PASSIVELY, **entry.environment},
            )
        except OSError as error:
            self._errors.close()
            raise BenchError(f"{self.name}: cannot start {entry.command[0]}: {error.strerror}") from error
        try:
            self._read()
            self.description = self.ask("describe")
        except BenchError:
            self.close()
            raise

    def ask(self, command: str) -> dict:
        """Sends one command and returns its answer.

        Raises:
          BenchError: the contender answered with an error, or its process ended.
        """
        try:
            self._process.stdin.write(command + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except (BrokenPipeError, ValueError) as error:
            raise self._ended(command) from error
        return self._read(command)

    def _read(self, command: str = "start") -> dict:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise self._ended(command)
        try:
            answer = json.loads(line)
        except json.JSONDecodeError as error:
            raise BenchError(f"{self.name}: not an answer to {command!r}: {line.strip()[:200]!r}") from error
        if "error" in answer:
            raise BenchError(f"{self.name}: {command!r} failed: {answer['error']}")
        return answer

    def _ended(self, command: str) -> BenchError:
        code = self._process.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it wrote nothing"])[-1]
        return BenchError(f"{self.name}: the process ended with code {code} at {command!r}: {last[:300]}")

    def close(self) -> None:
        """Ends the process."""
        if self._process.poll() is None:
            try:
                self._process.communicate("quit\n", timeout=30)
            except (subprocess.TimeoutExpired, BrokenPipeError, ValueError):
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                stream.close()


def speed_ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Returns how many times as fast `ours` is, median(theirs) / median(ours), with a 95 % interval.

    Args:
      ours: Seconds per step of our contender, one per round.
      theirs: Seconds per step of the other contender in the same rounds.
      seed: Seed of the resampling.

    Returns:
      `value`, `low` and `high`; the interval resamples rounds, which keeps what both saw of the machine's load paired.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"ours has {len(ours)} rounds and theirs {len(theirs)}: both must come from the same rounds")
    rng, rounds = random.Random(seed), range(len(ours))
    samples = []
    for _ in range(RESAMPLES):
        picked = rng.choices(rounds, k=len(ours))
        samples.append(statistics.median(theirs[i] for i in picked) / statistics.median(ours[i] for i in picked))
    samples.sort()
    value = statistics.median(theirs) / statistics.median(ours)
    return {"value": value, "low": samples[int(0.025 * RESAMPLES)], "high": samples[int(0.975 * RESAMPLES) - 1]}


def alternate(workers: Sequence[Worker], mode: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """One step of every worker per round, in the same order each time."""
    measured = {w.name: {"seconds": [], "cpu_seconds": [], "page_faults": []} for w in workers}
    for _ in range(rounds):
        for w in workers:
            answer = w.ask(f"step {mode} 1")
            for key, values in measured[w.name].items():
                values.extend(answer[key])
    return measured


def hardware() -> dict:
    """Processor, cores and memory of this machine."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": model, "cores": os.cpu_count(), "memory_gib": round(pages / 2**30, 1), "system": platform.system()}


def commit(root: Path) -> str:
    """Commit of the working tree, with `+` where it has changes; "unknown" outside git."""
    try:
        git = ["git", "-C", str(root)]
        name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True)
        # Not the results, to which each suite adds.
        code = ("--", "memjax", "configs", "tools/bench")
        state = subprocess.run(
            [*git, "status", "--porcelain", "-uno", *code], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + ("+" if state.stdout.strip() else "")


def contender_modules(entries: Sequence[Entry]) -> list[str]:
    """Returns the modules of `tools.bench` that the contenders of memjax among some are of."""
    words = {word for entry in entries for word in entry.command}
    return [name for name in CONTENDERS if f"tools.bench.{name}" in words]


def select_entries(suite: Suite) -> list[Entry]:
    """Returns the contenders of memjax in a suite that have the settings of malloc of its commands."""
    return [entry for entry in suite.entries if entry.name.startswith("memjax") and SWITCH not in entry.environment]


def with_cache(entry: Entry, folder: Path) -> Entry:
    """Returns a contender that keeps its compiled programs in a folder of its own, as the commands of memjax do."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / entry.name), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return replace(entry, environment={**entry.environment, **cache})


def start_again(entry: Entry, modes: Sequence[str], root: Path) -> dict[str, float]:
    """Returns the seconds of the first step of each mode in a new process, which finds the programs of the last one."""
    again = Worker(entry, root)
    try:
        return {mode: again.ask(f"warm {mode} 1")["seconds"][0] for mode in modes}
    finally:
        again.close()


def run_suite(suite: Suite, *, rounds: int, warm: int, command: str, root: Path) -> list[dict]:
    """Measures a suite.

    Args:
      suite: Suite to measure.
      rounds: Number of measured steps per contender and mode.
      warm: Number of unmeasured steps before them. The first one compiles.
      command: Command that started the run, for the records.
      root: Checkout in which workers run, and whose commit the records name.

    Returns:
      One JSON-able record per contender and mode.
    """
    modules = contender_modules(suite.entries)
    frame = {
        "suite": suite.name,
        "note": suite.note,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(root),
        "timed_modules": modules,
        "timed_code": fingerprint(timed=timed_with(modules)),
        "command": command,
        "hardware": hardware(),
        "threads": worker.THREADS,
        "rounds": rounds,
        "warm_steps": warm,
    }
    records = []
    with tempfile.TemporaryDirectory(prefix="memjax_bench_") as folder, contextlib.ExitStack() as stack:
        cached = {entry.name: with_cache(entry, Path(folder)) for entry in suite.entries}
        workers = [stack.enter_context(contextlib.closing(Worker(entry, root))) for entry in cached.values()]
        for mode in suite.modes:
            records += measure_mode(suite, workers, mode, rounds, warm)
        stack.close()
        ours = [entry.name for entry in select_entries(suite)]
        again = {name: start_again(cached[name], suite.modes, root) for name in ours}
    second_start = lambda record: again.get(record["contender"], {}).get(record["mode"])
    return [{**frame, **record, "second_start_seconds": second_start(record)} for record in records]


def measure_mode(suite: Suite, workers: Sequence[Worker], mode: str, rounds: int, warm: int) -> list[dict]:
    """Measures a mode of all contenders of a suite. See `run_suite`."""
    warmed = {w.name: w.ask(f"warm {mode} {warm}")["seconds"] for w in workers}
    load = os.getloadavg()[0]
    measured = alternate(workers, mode, rounds)
    records = []
    for w in workers:
        figures = measured[w.name]
        against = dict.fromkeys(name for name in (suite.baseline, suite.reference) if name and name != w.name)
        median = statistics.median(figures["seconds"])
        records.append(
            {
                "contender": w.name,
                "mode": mode,
                **w.description,
                "seconds": {**quartiles(figures["seconds"]), "all": figures["seconds"]},
                "cpu_seconds": quartiles(figures["cpu_seconds"]),
                "page_faults": statistics.median(figures["page_faults"]),
                f"{suite.unit}_per_second": w.description[f"{suite.unit}_per_step"] / median,
                "first_step_seconds": warmed[w.name][0],
                # What the first step took beyond a usual one: tracing and compiling.
                "compile_seconds": max(0.0, warmed[w.name][0] - median),
                "peak_rss_mib": w.ask("rss")["peak_rss_mib"],
                "load_at_start": load,
                "ratios": {name: speed_ratio(figures["seconds"], measured[name]["seconds"]) for name in against},
                # What others ran at the same time hardly touches these.
                "cpu_ratios": {
                    name: speed_ratio(figures["cpu_seconds"], measured[name]["cpu_seconds"]) for name in against
                },
            }
        )
    return records


def measurement(suite: Suite, records: Sequence[dict]) -> Measurement:
    """The records of a suite as one of the results' measurements."""
    facts = together(records)
    machine, command, made_at = (facts.pop(key) for key in ("hardware", "command", "commit"))
    del facts["suite"], facts["note"]
    known = {"unit": suite.unit, "baseline": suite.baseline, "reference": suite.reference or "", "machine": machine}
    hardware = f"{machine['cpu']}, {machine['cores']} cores"
    return Measurement("bench", suite.name, command, made_at, hardware, suite.name, suite.note, {**known, **facts})
