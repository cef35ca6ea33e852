"""The ledger: files that hold every number of a run or a measurement once. Numbers are added by this module alone.

`ledger.jsonl` has one line for each run. `curves/CONFIG.jsonl.xz` has one line for each run of a configuration, with
at most `MOST_POINTS` of the lines that the run logged. `measurements.jsonl` has one line for each measurement, such as
rounds of a benchmark, a plan, a search or a store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import lzma
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from memjax.config import Config
from memjax.durable_files import read_json
from memjax.settings.compatibility import current_command
from memjax.settings.overrides import UsageError, load_config
from memjax.training.metrics import read_metrics
from memjax.training.runs import config_to_dict
from memjax.training.runs import load_config as load_run_config

ROOT = Path(__file__).parent
MOST_POINTS = 50
"""Largest number of logged lines that the ledger keeps of a run, its curve"""
LOCAL = ("name", "workdir")
"""Fields of a configuration that are left out of the ledger, since results do not depend on them"""

_PATH = re.compile(r"/(?:[^/]*/)*([^/]+)")  # An absolute path. Folders of the data are not part of a result.


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
      recipe: Name of the recipe that the run belongs to, followed by `: search` for a trial of the search of settings.
      row: Contender, a row of the recipe's table: `ROW`, `ROW, ORDER` for a stream of tasks in several orders, or
        `ROW, SETTINGS` for a trial.
      seed: Seed of the parameters and of the order of the data.
      name: Name of the run directory.
      command: Command that trained the run, or the command of the script where a script trained several runs.
      commit: Abbreviated commit of the code, followed by `+` where files differed from the commit.
      hardware: Processor and number of cores, or the accelerator too where there was one.
      config: Name of the configuration.
      variant: Name of the variant of the configuration.
      difference: Field -> value, for fields in which the run's configuration is not the one shipped at the commit.
      versions: Versions of memjax and its libraries and the devices, one dict for each attempt.
      step: Number of the last update.
      attempts: Number of times that the run was started.
      results: Results that training reported at its end.
      evaluations: Label -> results that were read off the run after training.
      cpu_seconds: CPU seconds of the training, all attempts together. None where they were not recorded.
    """

    recipe: str
    row: str
    seed: int
    name: str
    command: str
    commit: str
    hardware: str
    config: str
    variant: str
    difference: dict[str, Any]
    versions: list[dict[str, Any]]
    step: int
    attempts: int
    results: dict[str, Any]
    evaluations: dict[str, Any]
    cpu_seconds: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """The recipe, row and seed. A newer run of the same key replaces an older one."""
        return self.recipe, self.row, self.seed

    @property
    def key_of_today(self) -> tuple[str, str, int]:
        """The key, with today's names for the options that the row of a trial ends with."""
        return self.recipe, command_of_today(self.row, self.config, self.variant), self.seed


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The numbers of one measurement, such as a benchmark, a plan or a store, which is not a training run.

    Attributes:
      kind: Kind of the measurement, such as `knn_lm`. It names the function that renders the table.
      name: Name of the measured object, such as a run, a recipe or a size.
      command: Command that made the measurement.
      commit: Abbreviated commit of the code, followed by `+` where files differed from the commit.
      hardware: Processor and number of cores, or the accelerator too where there was one. '' where nothing was run on
        any hardware.
      title: Title above the table.
      about: Description of what was measured and how.
      facts: All recorded numbers by name.
    """

    kind: str
    name: str
    command: str
    commit: str
    hardware: str
    title: str
    about: str
    facts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Book:
    """The folder of ledger, measurements and curves.

    Attributes:
      folder: Folder in which the files are read and written. Files that do not exist are created when something is
        added.
    """

    folder: Path = ROOT

    def runs(self) -> list[Run]:
        """Returns all runs, in the order in which they were added."""
        return [Run(**line) for line in _read(self.folder / "ledger.jsonl")]

    def measurements(self) -> list[Measurement]:
        """Returns all measurements, in the order in which they were added."""
        return [Measurement(**line) for line in _read(self.folder / "measurements.jsonl")]

    def curves(self, recipe: str) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
        """Returns the logged lines of every run of the recipe's configuration: key of the run -> its lines. Every line
        has a `kind` and a `step`.
        """
        file = self._curves_file(recipe)
        lines = _read_compressed(file) if file.exists() else []
        return {(line["recipe"], line["row"], line["seed"]): line["points"] for line in lines}

    def add(self, run: Run, metrics: Sequence[Mapping[str, Any]] = ()) -> None:
        """Adds a finished run and its curve. An older run of the same recipe, row and seed is removed.

        Args:
          run: Finished run to add.
          metrics: All lines that the run logged. Empty for a run without a curve.
        """
        with self._lock_folder():
            others = [other for other in self.runs() if other.key != run.key]
            _write(self.folder / "ledger.jsonl", map(_ledger_line, [*others, run]))
            curves = {key: points for key, points in self.curves(run.recipe).items() if key != run.key}
            if metrics:
                curves[run.key] = thinned(metrics)
            if curves or self._curves_file(run.recipe).exists():
                self._write_curves(self._curves_file(run.recipe), curves)

    def measure(self, measurement: Measurement) -> None:
        """Adds a measurement. An older one of the same kind and name is removed."""
        key = (measurement.kind, measurement.name)
        with self._lock_folder():
            others = [dataclasses.asdict(other) for other in self.measurements() if (other.kind, other.name) != key]
            _write(self.folder / "measurements.jsonl", [*others, dataclasses.asdict(measurement)])

    @contextlib.contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Locks the folder against other processes while the context is open."""
        # Recipes that run side by side would lose each other's lines.
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write_curves(self, file: Path, curves: Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]) -> None:
        """Writes the curves of all runs of a configuration to a compressed file, one line for each run."""
        lines = [
            json.dumps({"recipe": recipe, "row": row, "seed": seed, "points": points}) + "\n"
            for (recipe, row, seed), points in curves.items()
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(lzma.compress("".join(lines).encode(), preset=9))

    def _curves_file(self, recipe: str) -> Path:
        """Returns the file of a recipe's curves. All recipes of one configuration share a file."""
        config = next((run.config for run in self.runs() if run.recipe == recipe), recipe)
        return self.folder / "curves" / f"{config}.jsonl.xz"


def measured(
    kind: str, name: str, facts: dict[str, Any], *, command: str, title: str, about: str = "", hardware: str = ""
) -> Measurement:
    """Constructs a measurement made at the current commit. `hardware` is this machine where it is ''."""
    return Measurement(kind, name, command, commit(), hardware or this_hardware(), title, about, facts)


def together(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges records into one dict: entries that all records share once, and under `records` the rest of each record.

    Example:
      >>> together([{"rounds": 3, "seconds": 1.0}, {"rounds": 3, "seconds": 2.0}])
      {'rounds': 3, 'records': [{'seconds': 1.0}, {'seconds': 2.0}]}
    """
    first, *others = records
    shared = {key: value for key, value in first.items() if all(key in r and r[key] == value for r in others)}
    return {**shared, "records": [{key: r[key] for key in r if key not in shared} for r in records]}


def apart(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the records that `together` has merged."""
    shared = {key: value for key, value in facts.items() if key != "records"}
    return [{**shared, **record} for record in facts["records"]]


def thinned(metrics: Sequence[Mapping[str, Any]], most: int = MOST_POINTS) -> list[dict[str, Any]]:
    """Returns at most `most` lines of a log, unchanged and in their order.

    Evaluations come first, then other lines of the steps of these evaluations, then the remaining lines. Where there is
    no room for all lines of such a group, lines at equal distances are taken, the last one of the group among them.
    """
    evaluations = [i for i, line in enumerate(metrics) if line.get("kind") == "evaluation"]
    evaluations = _select_evenly(evaluations, most)
    evaluated_steps = {metrics[i]["step"] for i in evaluations}
    others = [i for i, line in enumerate(metrics) if line.get("kind") != "evaluation"]
    paired = _select_evenly([i for i in others if metrics[i]["step"] in evaluated_steps], most - len(evaluations))
    remaining = [i for i in others if i not in set(paired)]
    chosen = {*evaluations, *paired, *_select_evenly(remaining, most - len(evaluations) - len(paired))}
    return [dict(metrics[i]) for i in sorted(chosen)]


def finished_run(
    directory: Path,
    *,
    recipe: str,
    row: str,
    seed: int,
    command: str,
    config: str,
    variant: str,
    evaluations: Mapping[str, Any],
) -> Run:
    """Reads a run that has ended from its directory, as a run of the current commit on this machine."""
    finished = _read_ending(directory)
    # A run of an earlier version has its fields under the names of today.
    run_config = _without_paths(config_to_dict(load_run_config(directory)))
    shipped = _without_paths(config_to_dict(load_config(config, variant)))
    return Run(
        recipe=recipe,
        row=row,
        seed=seed,
        name=directory.name,
        command=command,
        commit=commit(),
        hardware=this_hardware(),
        config=config,
        variant=variant,
        difference=difference(shipped, run_config),
        versions=_without_paths(read_json(directory / "versions.json")),
        step=finished["step"],
        attempts=finished["attempts"],
        results=finished["results"],
        evaluations=dict(evaluations),
    )


def ends_without_loss(directory: Path) -> bool:
    """Returns whether the last evaluation of a run that is not finished has a loss that is not finite. Such a run fails
    at its end, however often it is begun again.
    """
    if (directory / "finished.json").exists():
        return False
    lines = read_metrics(directory / "metrics.jsonl")
    # The file has null for a number that is not finite.
    return bool(lines) and lines[-1]["kind"] == "evaluation" and lines[-1]["nats"] is None


def _read_ending(directory: Path) -> dict[str, Any]:
    """Returns number of updates, number of attempts and results of a run that is finished or ends without loss. The
    latter counts as diverged.
    """
    if not ends_without_loss(directory):
        return read_json(directory / "finished.json")
    line = read_metrics(directory / "metrics.jsonl")[-1]
    return {"step": line["step"], "attempts": line["attempt"], "results": {"diverged": {"nats_per_token": None}}}


def difference(shipped: Any, changed: Any) -> dict[str, Any]:
    """Returns the fields of the configuration `changed` whose values are not those of `shipped`, both as dicts.

    The result maps dotted names of fields to values. A component of another type than in `shipped` is one entry with
    all of its fields. Fields in `LOCAL` are left out.

    Example:
      >>> difference({"a": {"type": "A", "b": 1, "c": 2}}, {"a": {"type": "A", "b": 1, "c": 3}})
      {'a.c': 3}
    """
    differences: dict[str, Any] = {}
    for name, value in changed.items():
        if name in LOCAL:
            continue
        other = shipped.get(name)
        if isinstance(value, dict) and isinstance(other, dict) and value.get("type") == other.get("type"):
            differences |= {f"{name}.{field}": item for field, item in difference(other, value).items()}
        elif name not in shipped or value != other:
            differences[name] = value
    return differences


def restored(shipped: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the shipped configuration with the changes from `difference`. Fields in `LOCAL` stay as shipped."""
    config = json.loads(json.dumps(shipped))
    for path, value in changes.items():
        *parents, last = path.split(".")
        component = config
        for name in parents:
            component = component[name]
        component[last] = value
    return config


def command_of_today(command: str, config: str = "", variant: str = "") -> str:
    """Returns a recorded command with its options under the names that they have today.

    Args:
      command: Command in the words of the time of its run.
      config: Name of the configuration, whose kinds say what an option is now. '' for an option of any kind.
      variant: Variant of the configuration.
    """
    return current_command(command, _shipped(config, variant) if config else Config)


@functools.cache
def _shipped(config: str, variant: str) -> Any:
    """Returns a shipped configuration, or the class `Config` where none of this name is shipped any more."""
    try:
        return load_config(config, variant)
    except UsageError:
        return Config


def commit() -> str:
    """Returns the abbreviated commit of this checkout, followed by `+` where `memjax` or `configs` differ from it."""
    git: Callable[..., str] = lambda *words: subprocess.run(
        ["git", *words], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", ":/memjax", ":/configs")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def this_hardware() -> str:
    """Names the accelerator that JAX uses, if any, the processor, and the number of cores that this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    device = jax.devices()[0]
    return processor if device.platform == "cpu" else f"{jax.device_count()} x {device.device_kind}; {processor}"


def without_paths(words: Iterable[str]) -> list[str]:
    """Returns the words of a command with every absolute path cut to its last part."""
    return [_without_paths(word) for word in words]


def _without_paths(value: Any) -> Any:
    """Returns a value with every string in it that is an absolute path cut to the last part of the path."""
    if isinstance(value, dict):
        return {name: _without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    path = _PATH.fullmatch(value) if isinstance(value, str) else None
    return path[1] if path else value


def _ledger_line(run: Run) -> dict[str, Any]:
    """Returns a run as a line of the ledger. The line has no `cpu_seconds` where they were not recorded."""
    fields = dataclasses.asdict(run)
    return fields if run.cpu_seconds is not None else {k: v for k, v in fields.items() if k != "cpu_seconds"}


def _select_evenly(items: list[int], count: int) -> list[int]:
    """Returns at most `count` of the items, at equal distances and with the last item among them."""
    if count <= 0:
        return []
    if len(items) <= count:
        return items
    return [items[(i + 1) * len(items) // count - 1] for i in range(count)]


def _read(file: Path) -> list[dict[str, Any]]:
    """Reads the lines of a JSON Lines file. A file that does not exist has none."""
    if not file.exists():
        return []
    status = file.stat()
    return _read_version(file, (status.st_ino, status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=4)  # Every page asks for all runs.
def _read_version(file: Path, version: tuple[int, ...]) -> list[dict[str, Any]]:
    """Reads the lines of a file. `version` makes the cache read a file anew that was replaced or changed."""
    del version
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _read_compressed(file: Path) -> list[dict[str, Any]]:
    """Reads the lines of a JSON Lines file that is compressed with LZMA."""
    return [json.loads(line) for line in lzma.decompress(file.read_bytes()).decode().splitlines()]


def _write(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Writes a JSON Lines file and puts it in the place of the old one when it is complete."""
    partial = file.with_suffix(".tmp")
    partial.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    partial.replace(file)
