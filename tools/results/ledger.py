"""Where every number of a run or a measurement stands, once, and the one way to add one.

`ledger.jsonl` has a line a run, `curves/CONFIG.jsonl.xz` a line a run with at most `MOST_POINTS` points of what it
logged, `measurements.jsonl` a line for everything that is no run: rounds of a benchmark, plans, searches, stores.
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
from memjax.training.runs import config_to_dict
from memjax.training.runs import load_config as load_run_config

ROOT = Path(__file__).parent
MOST_POINTS = 50
"""of a run's curve"""
LOCAL = ("name", "workdir")
"""fields of a configuration that are no part of a result"""

_PATH = re.compile(r"/(?:[^/]*/)*([^/]+)")  # where the data lay is no part of a result


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
      recipe: the experiment it belongs to.
      row: the contender.
      seed: of parameters and data order.
      name: of the run directory.
      command: what was run; that of a script where it trained several.
      commit: of the code; `+` where files differed from it.
      hardware: processor and cores, or accelerator.
      config: name of the configuration.
      variant: of it.
      difference: field -> value, where the run's configuration is not the one shipped at the commit.
      versions: of every attempt.
      step: the last one.
      attempts: how often the run was started.
      results: what training reported at its end.
      evaluations: what was read off the run afterwards, by label.
      cpu_seconds: CPU seconds of its training, all attempts together. None where they were not recorded.
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
        """By which a run is found, and replaced by a newer one."""
        return self.recipe, self.row, self.seed

    @property
    def key_of_today(self) -> tuple[str, str, int]:
        """The key with the options in the name of the row, those of a search, under the names that they have today."""
        return self.recipe, command_of_today(self.row, self.config, self.variant), self.seed


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What is no run.

    Attributes:
      kind: what was measured, which also names the function of its table.
      name: of what it was measured on.
      command: what was run.
      commit: of the code; `+` where files differed from it.
      hardware: processor and cores, or accelerator; '' = nothing was run on any.
      title: of its table.
      about: what was measured and how.
      facts: every number.
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
      folder: that has, or gets, the files.
    """

    folder: Path = ROOT

    def runs(self) -> list[Run]:
        """All runs, in the order in which they were added."""
        return [Run(**line) for line in _read(self.folder / "ledger.jsonl")]

    def measurements(self) -> list[Measurement]:
        """All measurements, in the order in which they were added."""
        return [Measurement(**line) for line in _read(self.folder / "measurements.jsonl")]

    def curves(self, recipe: str) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
        """Key of a run -> what it logged: every line says its `kind` and `step`. All runs of the recipe's config."""
        file = self._curves(recipe)
        lines = _read_compressed(file) if file.exists() else []
        return {(line["recipe"], line["row"], line["seed"]): line["points"] for line in lines}

    def add(self, run: Run, metrics: Sequence[Mapping[str, Any]] = ()) -> None:
        """Adds a finished run and its curve; older ones of the same recipe, row and seed go.

        Args:
          run: to add.
          metrics: all lines that it logged; none = it has no curve.
        """
        with self._alone():
            others = [other for other in self.runs() if other.key != run.key]
            _write(self.folder / "ledger.jsonl", map(_line, [*others, run]))
            curves = {key: points for key, points in self.curves(run.recipe).items() if key != run.key}
            if metrics:
                curves[run.key] = thinned(metrics)
            if curves or self._curves(run.recipe).exists():
                self._write_curves(self._curves(run.recipe), curves)

    def measure(self, measurement: Measurement) -> None:
        """Adds a measurement; an older one of the same kind and name goes."""
        key = (measurement.kind, measurement.name)
        with self._alone():
            others = [dataclasses.asdict(other) for other in self.measurements() if (other.kind, other.name) != key]
            _write(self.folder / "measurements.jsonl", [*others, dataclasses.asdict(measurement)])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One writer at a time: recipes that run side by side would lose each other's lines."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write_curves(self, file: Path, curves: Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]) -> None:
        lines = [
            json.dumps({"recipe": recipe, "row": row, "seed": seed, "points": points}) + "\n"
            for (recipe, row, seed), points in curves.items()
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(lzma.compress("".join(lines).encode(), preset=9))

    def _curves(self, recipe: str) -> Path:
        """The file of a recipe's curves, which it shares with the other recipes of its configuration."""
        config = next((run.config for run in self.runs() if run.recipe == recipe), recipe)
        return self.folder / "curves" / f"{config}.jsonl.xz"


def measured(
    kind: str, name: str, facts: dict[str, Any], *, command: str, title: str, about: str = "", hardware: str = ""
) -> Measurement:
    """A measurement that was made just now, at this commit; `hardware` is this machine unless given."""
    return Measurement(kind, name, command, commit(), hardware or this_hardware(), title, about, facts)


def together(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Facts of several records: what all have in common once, and under `records` the rest of each.

    Example:
      >>> together([{"rounds": 3, "seconds": 1.0}, {"rounds": 3, "seconds": 2.0}])
      {'rounds': 3, 'records': [{'seconds': 1.0}, {'seconds': 2.0}]}
    """
    first, *others = records
    shared = {key: value for key, value in first.items() if all(key in r and r[key] == value for r in others)}
    return {**shared, "records": [{key: r[key] for key in r if key not in shared} for r in records]}


def apart(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records that `together` was given."""
    shared = {key: value for key, value in facts.items() if key != "records"}
    return [{**shared, **record} for record in facts["records"]]


def thinned(metrics: Sequence[Mapping[str, Any]], most: int = MOST_POINTS) -> list[dict[str, Any]]:
    """At most so many lines of a log, whole: evaluations first, then others at equal distances, the last one too."""
    kept = [i for i, line in enumerate(metrics) if line.get("kind") == "evaluation"]
    kept = _spread(kept, most)
    beside = {metrics[i]["step"] for i in kept}
    others = [i for i, line in enumerate(metrics) if line.get("kind") != "evaluation"]
    paired = _spread([i for i in others if metrics[i]["step"] in beside], most - len(kept))
    free = [i for i in others if i not in set(paired)]
    chosen = {*kept, *paired, *_spread(free, most - len(kept) - len(paired))}
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
    """The line of a run directory that is through, made at this commit."""
    finished = read_json(directory / "finished.json")
    there = _without_paths(config_to_dict(load_run_config(directory)))  # by the names of today
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
        difference=difference(shipped, there),
        versions=_without_paths(read_json(directory / "versions.json")),
        step=finished["step"],
        attempts=finished["attempts"],
        results=finished["results"],
        evaluations=dict(evaluations),
    )


def difference(shipped: Any, given: Any) -> dict[str, Any]:
    """Field -> value, for what differs between two configurations as dicts; a part of another type is there whole.

    Example:
      >>> difference({"a": {"type": "A", "b": 1, "c": 2}}, {"a": {"type": "A", "b": 1, "c": 3}})
      {'a.c': 3}
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in LOCAL:
            continue
        other = shipped.get(name)
        if isinstance(value, dict) and isinstance(other, dict) and value.get("type") == other.get("type"):
            found |= {f"{name}.{field}": item for field, item in difference(other, value).items()}
        elif name not in shipped or value != other:
            found[name] = value
    return found


def restored(shipped: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that `difference` was made from, but for `LOCAL` fields."""
    config = json.loads(json.dumps(shipped))
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = config
        for name in parents:
            place = place[name]
        place[last] = value
    return config


def command_of_today(command: str, config: str = "", variant: str = "") -> str:
    """Returns a recorded command with its options under the names that they have today.

    Args:
      command: As it was run.
      config: Name of the configuration, whose kinds say what an option is now. '' for an option of any kind.
      variant: Variant of the configuration.
    """
    return current_command(command, _shipped(config, variant) if config else Config)


@functools.cache
def _shipped(config: str, variant: str) -> Any:
    """Returns a shipped configuration, or the class where the configuration is no longer there."""
    try:
        return load_config(config, variant)
    except UsageError:
        return Config


def commit() -> str:
    """Of this checkout; `+` where the library or a configuration differs from it."""
    git: Callable[..., str] = lambda *words: subprocess.run(
        ["git", *words], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", ":/memjax", ":/configs")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def this_hardware() -> str:
    """The accelerator that JAX uses, if any, the processor and the number of cores this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    device = jax.devices()[0]
    return processor if device.platform == "cpu" else f"{jax.device_count()} x {device.device_kind}; {processor}"


def without_paths(words: Iterable[str]) -> list[str]:
    """A command as a reader would give it: paths of this machine become their last part."""
    return [_without_paths(word) for word in words]


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    found = _PATH.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else value


def _line(run: Run) -> dict[str, Any]:
    """Returns a run as a line of the ledger, without the CPU seconds of one that does not know them."""
    known = dataclasses.asdict(run)
    return known if run.cpu_seconds is not None else {k: v for k, v in known.items() if k != "cpu_seconds"}


def _spread(items: list[int], count: int) -> list[int]:
    """At most `count` of some items at equal distances, the last one among them."""
    if count <= 0:
        return []
    if len(items) <= count:
        return items
    return [items[(i + 1) * len(items) // count - 1] for i in range(count)]


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    facts = file.stat()
    return _read_version(file, (facts.st_ino, facts.st_mtime_ns, facts.st_size))


@functools.lru_cache(maxsize=4)  # Every page asks for all runs.
def _read_version(file: Path, version: tuple[int, ...]) -> list[dict[str, Any]]:
    del version
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _read_compressed(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.decompress(file.read_bytes()).decode().splitlines()]


def _write(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    partial = file.with_suffix(".tmp")
    partial.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    partial.replace(file)
