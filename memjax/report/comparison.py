"""Compares finished runs: their differing settings and scores, and tested differences between groups of seeds."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memjax.config import Config
from memjax.lifelong.stream_results import NATS
from memjax.report.outcomes import stream_facts

ORDER = "lifelong.task_order"
"""Field with the order of the tasks. Comparisons show it as the names of the tasks."""
NOT_FINISHED = "not finished, allowed: a run with finished.json; train it to its end"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The contents of the text files in a run directory, each read when it is first needed: its configuration, its log,
    and after its end its results. It has no parameters or other arrays.

    Attributes:
      path: The run directory.
    """

    path: str

    @functools.cached_property
    def config(self) -> Config:
        """Configuration of the run.

        Raises:
          ValueError: Not a run directory, or its `config.json` is damaged.
        """
        from memjax.training.runs import load_config

        return load_config(self.path)

    @functools.cached_property
    def finished(self) -> Mapping[str, Any] | None:
        """Content of `finished.json`. None before the end of the run.

        Raises:
          ValueError: The file is damaged, or lacks a size or a score that memjax writes there.
        """
        from memjax.training.runs import read_finished

        finished = read_finished(self.path)
        if finished is not None:
            _check_finished(Path(self.path).expanduser() / "finished.json", self.config, finished)
        return finished

    @functools.cached_property
    def log_lines(self) -> list[dict[str, Any]]:
        """Lines of the run's `metrics.jsonl`, each a dict. [] if nothing has been logged yet."""
        from memjax.training.metrics import read_metrics

        return read_metrics(Path(self.path).expanduser() / "metrics.jsonl")

    @functools.cached_property
    def stream(self) -> Mapping[str, Any]:
        """Scores and costs of a run over tasks (`stream_facts`). Empty for other runs.

        Raises:
          ValueError: A line of the log is damaged.
        """
        return stream_facts(self.path, self.config, self.log_lines) if self.config.lifelong is not None else {}

    @property
    def results(self) -> Mapping[str, Any]:
        """Sizes and evaluations of a finished run, the entry `results` of its `finished.json`. Raises `ValueError`
        before the end of the run.

        Raises:
          ValueError: The run is not finished.
        """
        if self.finished is None:
            raise ValueError(f"{self.path}: {NOT_FINISHED}")
        return self.finished["results"]

    def score(self, name: str) -> float:
        """Returns a score of the finished run by name: of a run over tasks a summary score or the score of a task at
        the end, otherwise a number of its evaluation. NaN if it has none of this name.
        """
        if self.stream:
            values = {**dict(zip(self.stream["tasks"], self.stream["scores"][-1], strict=True)), **self.stream}
        else:
            values = self.results["evaluation"]
        return math.nan if values.get(name) is None else float(values[name])


def differing_settings(configs: Mapping[str, Config]) -> dict[str, dict[str, Any]]:
    """Finds the settings in which the configurations, run -> `Config`, are not all equal. Returns run -> {name of such
    a setting: its value}. Fields that only some kinds have, such as those of a memory, are left out where they have
    their default values.

    Args:
      configs: Configuration of each run.

    Returns:
      Run -> the values of these fields in its configuration.
    """
    settings = {run: settings_that_matter(config) for run, config in configs.items()}
    every = {name: None for fields in settings.values() for name in fields}
    apart = [name for name in every if len({str(fields.get(name)) for fields in settings.values()}) > 1]
    kinds = [name for name in apart if any(other.startswith(f"{name}.") for other in every)]
    usual = {
        run: {name: value for kind in kinds for name, value in _defaults(config, kind).items()}
        for run, config in configs.items()
    }

    def is_usual(name: str) -> bool:
        values = [(fields[name], usual[run].get(name, fields)) for run, fields in settings.items() if name in fields]
        return len(values) < len(settings) and all(value == default for value, default in values)

    apart = [name for name in apart if not is_usual(name)]
    return {run: {name: fields.get(name) for name in apart} for run, fields in settings.items()}


def _defaults(config: Config, path: str) -> dict[str, Any]:
    """Returns the default values of the fields of one part of a configuration by their names, such as
    `model.attention.norm`. Empty for a part that is missing or in a list.
    """
    from memjax.training.runs import config_to_dict, flat_settings

    part: Any = config
    for name in path.split("."):
        part = getattr(part, name, None)
    if not dataclasses.is_dataclass(part):
        return {}
    values = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(part)
    }
    return flat_settings({name: config_to_dict(value) for name, value in values.items()}, f"{path}.")


def split_readable(records: Iterable[RunRecord]) -> tuple[dict[str, RunRecord], dict[str, str]]:
    """Checks the files of runs, finished or not. Returns the records of those that can be read, and for each other one
    the reason, both by directory.

    Args:
      records: Runs, of which one that is given twice counts once.

    Returns:
      The records of the readable runs by their directories, and run -> the reason for every other one.
    """
    readable, left_out = dict[str, RunRecord](), dict[str, str]()
    for run, record in {record.path: record for record in records}.items():
        try:
            _ = record.config, record.finished is not None and record.stream  # each raises an error where it is damaged
            readable[run] = record
        except (ValueError, OSError) as error:
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            left_out[run] = " ".join(str(reason).split())
    return readable, left_out


def split_finished(records: Iterable[RunRecord]) -> tuple[dict[str, RunRecord], dict[str, str]]:
    """Checks the files of runs. Returns the records of the finished runs, and for each run that is not finished,
    damaged or no run the reason, both by directory.

    Args:
      records: Runs, of which one that is given twice counts once.

    Returns:
      The records of the finished runs by their directories, and run -> the reason for every other one, in the order of
      `records`.
    """
    records = [*records]
    readable, left_out = split_readable(records)
    finished = {run: record for run, record in readable.items() if record.finished is not None}
    left_out |= {run: f"{run}: {NOT_FINISHED}" for run in readable if run not in finished}
    paths = dict.fromkeys(record.path for record in records)
    return finished, {run: left_out[run] for run in paths if run in left_out}


def compare_runs(records: Iterable[RunRecord]) -> dict[str, dict[str, Any]]:
    """Collects the values that a table of finished runs shows: run -> {name: value}. These are the settings in which
    the runs differ, steps, sizes and scores.

    Args:
      records: Finished runs, as `split_finished` returns them.

    Returns:
      Run -> its values: the fields of the configuration in which the runs differ, then steps, sizes and scores. A run
      that has diverged has the value `diverged`, 'yes'. Others have no such value.

    Raises:
      ValueError: A run is not finished.
    """
    from memjax.training.run_versions import generator_of

    by_run = {record.path: record for record in records}
    facts = differing_settings({run: record.config for run, record in by_run.items()})
    generators = {run: generator_of(run) for run in by_run}
    if len({*generators.values()} - {""}) > 1:
        for run, generator in generators.items():
            facts[run] |= {"random_generator": generator or None}
    for run, record in by_run.items():
        facts[run] |= _facts(record)
    return facts


def settings_that_matter(config: Config) -> dict[str, Any]:
    """Returns the fields of a configuration that affect what is computed. Tasks and evaluations are sorted by name, and
    the order of the tasks consists of their names, so that runs of two orders differ in that field alone.
    """
    from memjax.training.runs import IGNORED, config_to_dict, flat_settings

    order = {}
    if stream := config.lifelong:
        name_of = lambda part: part.name
        order = {ORDER: ", ".join(task.name for task in stream.ordered_tasks)}
        stream = dataclasses.replace(stream, tasks=tuple(sorted(stream.tasks, key=name_of)), task_order=())
        evaluations = tuple(sorted(config.evaluations, key=name_of))
        config = dataclasses.replace(config, lifelong=stream, evaluations=evaluations)
    fields = flat_settings(config_to_dict(config)) | order
    return {name: value for name, value in fields.items() if name not in IGNORED}


def _check_finished(file: Path, config: Config, finished: Mapping[str, Any]) -> None:
    """Raises `ValueError` where `finished.json` lacks a size or a score that memjax writes there."""
    from memjax.tasks import make_task

    results, evaluations = finished["results"], finished["results"].get("evaluations", {})
    is_mapping = isinstance(evaluations, dict) and all(isinstance(scores, dict) for scores in evaluations.values())
    numbers = {"step": finished["step"], **{name: results.get(name) for name in ("parameters", "memory_bytes")}}
    wrong = [name for name, value in numbers.items() if not isinstance(value, int | float)]
    wrong += [] if is_mapping else ["evaluations"]
    if not isinstance(scores := results["evaluation"], dict):
        wrong += ["evaluation"]
    else:
        names = (*make_task(config).main_metrics, NATS)
        wrong += [name for name in names if not isinstance(scores.get(name), int | float | None)]
    if wrong:
        raise ValueError(f"{file}: damaged (no value of {wrong[0]}), allowed: the JSON file of a finished run")


def _facts(record: RunRecord) -> dict[str, Any]:
    """Collects the steps, sizes and scores of a finished run."""
    results, stream = record.results, record.stream
    scores = {"evaluation": results["evaluation"], **results.get("evaluations", {})}
    facts: dict[str, Any] = {"steps": (record.finished or {})["step"]}
    facts |= {"diverged": "yes"} if "diverged" in results else {}
    facts |= {name: results[name] for name in ("parameters", "memory_bytes")}
    facts |= {"tasks": stream["num_tasks"]} if stream else {}
    facts |= {name: value for name, value in stream.items() if isinstance(value, float)}
    facts |= {name: value for name, value in stream.get("cost", {}).items() if isinstance(value, float)}
    facts |= {"kept_bytes": stream["kept_bytes"]["total"]} if stream else {}
    for name, score in scores.items():
        plain = {key: value for key, value in score.items() if isinstance(value, float) and key != "nats"}
        facts |= {f"{name}.{key}": value for key, value in plain.items() if not key.endswith("_per_second")}
    return facts
