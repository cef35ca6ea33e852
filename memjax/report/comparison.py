"""Compares finished runs: their differing settings and scores, and tested differences between groups of seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax.config import Config
from memjax.report.outcomes import NATS, stream_facts
from memjax.report.verdicts import Comparison, compare_pairs, correct_for_many

DRAWN = ("training.seed", "data.seed", "lifelong.task_order")
"""Fields in which runs of one contender may differ: the seeds, and the order of the tasks."""
NOT_FINISHED = "not finished, allowed: a run with finished.json; train it to its end"
AVERAGE = "average"
LESS_IS_BETTER = ("bits_per_byte", "bits_per_token", "nats_per_token", "perplexity")


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The contents of the text files in a run directory: its configuration, and after its end its results. It has no
    parameters or other arrays.

    Attributes:
      path: The run directory.
      config: Configuration of the run.
      finished: Content of `finished.json`. None before the end of the run.
      stream: Scores of a finished run over tasks (`stream_facts`). Empty for other runs.
    """

    path: str
    config: Config
    finished: Mapping[str, Any] | None
    stream: Mapping[str, Any]

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


class RunDifference(NamedTuple):
    """The tested difference in one score between two groups of runs. The runs of a group differ only in seed and order
    of tasks, and are paired by these with runs of the other group.

    Attributes:
      runs: Number of runs of the contender.
      name: First run of the contender.
      control: First run of the other one.
      measure: Name of the score that is compared.
      comparison: The difference and its verdict.
    """

    runs: int
    name: str
    control: str
    measure: str
    comparison: Comparison


def differing_settings(configs: Mapping[str, Config]) -> dict[str, dict[str, Any]]:
    """Finds the settings in which the configurations, run -> `Config`, are not all equal. Returns run -> {name of such
    a setting: its value}.

    Args:
      configs: Configuration of each run.

    Returns:
      Run -> the values of these fields in its configuration.
    """
    settings = {run: _settings(config) for run, config in configs.items()}
    every = {name: None for fields in settings.values() for name in fields}
    apart = [name for name in every if len({str(fields.get(name)) for fields in settings.values()}) > 1]
    return {run: {name: fields.get(name) for name in apart} for run, fields in settings.items()}


def read_run(run: str) -> RunRecord:
    """Reads the configuration and, if it is finished, the results of the run directory `run` into a `RunRecord`, and
    checks that they are as memjax writes them.

    Raises:
      ValueError: Not a run directory, or a file of it is damaged.
      OSError: A file of it cannot be read.
    """
    from memjax.training.runs import load_config, read_finished

    config, finished = load_config(run), read_finished(run)
    if finished is None:
        return RunRecord(run, config, None, {})
    _check_finished(Path(run).expanduser() / "finished.json", config, finished)
    return RunRecord(run, config, finished, stream_facts(run, config))


def split_readable(runs: Sequence[str]) -> tuple[dict[str, RunRecord], dict[str, str]]:
    """Reads all run directories, finished or not. Returns the records of those that can be read, and for each other one
    the reason, both by directory.

    Args:
      runs: Run directories.

    Returns:
      The records of the readable runs by their directories, and run -> the reason for every other one.
    """
    readable, left_out = dict[str, RunRecord](), dict[str, str]()
    for run in dict.fromkeys(runs):
        try:
            readable[run] = read_run(run)
        except (ValueError, OSError) as error:
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            left_out[run] = " ".join(str(reason).split())
    return readable, left_out


def split_finished(runs: Sequence[str]) -> tuple[dict[str, RunRecord], dict[str, str]]:
    """Reads all run directories. Returns the records of the finished runs, and for each run that is not finished,
    damaged or no run the reason, both by directory.

    Args:
      runs: Run directories.

    Returns:
      The records of the finished runs by their directories, and run -> the reason for every other one, in the order of
      `runs`.
    """
    readable, left_out = split_readable(runs)
    finished = {run: record for run, record in readable.items() if record.finished is not None}
    left_out |= {run: f"{run}: {NOT_FINISHED}" for run in readable if run not in finished}
    return finished, {run: left_out[run] for run in dict.fromkeys(runs) if run in left_out}


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


def compare_contenders(records: Iterable[RunRecord]) -> list[RunDifference]:
    """Tests whether groups of finished runs differ in score. Runs that differ only in seed and order of tasks form a
    group. Returns a difference from the group of the first run for each other group that has two or more pairs.

    Such a group is a contender. It is compared in one score that all of its pairs have: the average over tasks in the
    end where all are runs over tasks, else the first number that the task of the first run is about.

    Args:
      records: Finished runs, as `split_finished` returns them.

    Returns:
      A difference for each other contender that has at least two pairs and a score in common with the first one.
    """
    contenders: dict[str, dict[tuple[str, str], RunRecord]] = {}
    for record in records:
        settings = _settings(record.config)
        seeds = {name: str(settings.pop(name, "")) for name in DRAWN}
        place = seeds["lifelong.task_order"], f"{seeds['training.seed']}, {seeds['data.seed']}"
        contenders.setdefault(str(settings), {})[place] = record
    if not contenders:
        return []
    first, *others = contenders.values()
    differences = []
    for other in others:
        shared = [place for place in other if place in first]
        chosen = _shared_measure([contender[place] for place in shared for contender in (first, other)])
        if len(shared) < 2 or chosen is None:
            continue
        measure, more_is_better = chosen
        orders, seeds = ([*dict.fromkeys(names)] for names in zip(*shared, strict=True))
        pair = np.full((2, len(orders), len(seeds)), np.nan)
        for order, seed in shared:
            for side, contender in enumerate((other, first)):
                record = contender[order, seed]
                value = (record.stream if measure == AVERAGE else record.results["evaluation"]).get(measure)
                pair[side, orders.index(order), seeds.index(seed)] = np.nan if value is None else value
        comparison = compare_pairs(*pair, more_is_better=more_is_better)
        name, control = (next(iter(contender.values())).path for contender in (other, first))
        differences.append(RunDifference(len(other), name, control, measure, comparison))
    corrected = correct_for_many([difference.comparison for difference in differences])
    pairs = zip(differences, corrected, strict=True)
    return [difference._replace(comparison=comparison) for difference, comparison in pairs]


def _shared_measure(records: Sequence[RunRecord]) -> tuple[str, bool] | None:
    """Returns the score that all of some runs have, and whether more of it is better. None without such a score."""
    from memjax.tasks import make_task

    of_streams = {record.stream.get("measure") for record in records}
    if len(of_streams) == 1 and None not in of_streams:
        return AVERAGE, NATS not in of_streams
    names = (*make_task(records[0].config).main_metrics, NATS) if records else ()
    for name in names:
        if all(name in record.results["evaluation"] for record in records):
            return name, name not in LESS_IS_BETTER
    return None


def _settings(config: Config) -> dict[str, Any]:
    """Returns the fields of a configuration that affect what is computed."""
    from memjax.training.runs import IGNORED, config_to_dict, flat_settings

    fields = flat_settings(config_to_dict(config))
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
    facts |= {name: value for name, value in stream.items() if isinstance(value, float)}
    facts |= {name: value for name, value in stream.get("cost", {}).items() if isinstance(value, float)}
    facts |= {"kept_bytes": stream["kept_bytes"]["total"]} if stream else {}
    for name, score in scores.items():
        plain = {key: value for key, value in score.items() if isinstance(value, float) and key != "nats"}
        facts |= {f"{name}.{key}": value for key, value in plain.items() if not key.endswith("_per_second")}
    return facts
