"""Finished runs side by side, and what may be said of runs that differ in more than their seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from memjax.report.outcomes import NATS, stream_facts
from memjax.report.verdicts import Comparison, compare_pairs, correct_for_many

__all__ = ["RunDifference", "compare_contenders", "compare_runs", "settings_apart", "split_finished", "split_readable"]

DRAWN = ("training.seed", "data.seed", "lifelong.order")
"""fields in which runs of one contender may differ: the seeds, and the order of the tasks"""
LESS_IS_BETTER = ("bits_per_byte", "bits_per_token", "nats_per_token", "perplexity")


class RunDifference(NamedTuple):
    """Runs of one contender against those of another, paired by order of tasks and seed.

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


def settings_apart(runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run -> the fields of its configuration in which the runs differ.

    Raises:
      ValueError: no run directory.
    """
    settings = {run: _settings(run) for run in runs}
    every = {name: None for fields in settings.values() for name in fields}
    apart = [name for name in every if len({str(fields.get(name)) for fields in settings.values()}) > 1]
    return {run: {name: fields.get(name) for name in apart} for run, fields in settings.items()}


def split_readable(runs: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separates the runs that can be read, finished or not, from damaged ones and from what is no run.

    Args:
      runs: Run directories.

    Returns:
      The readable runs, and run -> the reason for every other one.
    """
    from memjax.training.runs import load_config, read_finished

    readable, left_out = list[str](), dict[str, str]()
    for run in dict.fromkeys(runs):
        try:
            config, finished = load_config(run), read_finished(run)
            _ = finished and _facts(run, config, finished)
        except (ValueError, OSError) as error:
            said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            left_out[run] = " ".join(str(said).split())
        except (AttributeError, KeyError, TypeError) as error:  # a file that lacks what memjax writes there
            left_out[run] = f"{run}: damaged ({type(error).__name__}: {error}), allowed: a run as memjax has left it"
        else:
            readable.append(run)
    return readable, left_out


def split_finished(runs: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separates the runs that can be compared from those that are not finished or damaged.

    Args:
      runs: Run directories.

    Returns:
      The finished runs, and run -> the reason for every other one, in the order of `runs`.
    """
    from memjax.training.runs import read_finished

    readable, left_out = split_readable(runs)
    finished = [run for run in readable if read_finished(run) is not None]
    hint = "not finished, allowed: a run with finished.json; train it to its end"
    left_out |= {run: f"{run}: {hint}" for run in readable if run not in finished}
    return finished, {run: left_out[run] for run in dict.fromkeys(runs) if run in left_out}


def compare_runs(runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run -> its values: fields of the configuration in which the runs differ, then steps, sizes and scores.

    A run that has diverged has `diverged`, 'yes'; others have no such value.

    Raises:
      ValueError: no run directory, or a run that is not finished.
    """
    from memjax.training.runs import generator_of, load_config, read_finished

    facts = settings_apart(runs)
    generators = {run: generator_of(run) for run in runs}
    if len({*generators.values()} - {""}) > 1:
        for run, generator in generators.items():
            facts[run] |= {"random_generator": generator or None}
    for run in runs:
        finished = read_finished(run)
        if finished is None:
            raise ValueError(f"{run}: not finished, allowed: a run with finished.json; train it to its end")
        facts[run] |= _facts(run, load_config(run), finished)
    return facts


def compare_contenders(runs: Sequence[str]) -> list[RunDifference]:
    """Compares finished runs that differ in more than seed and order of tasks, where a contender has several.

    Runs whose settings are equal but for seeds and order are one contender. Each is compared with that of the first
    run in one score: the average over tasks in the end, or the first number that the task is about.

    Args:
      runs: Directories of finished runs.

    Returns:
      A difference for each other contender that has at least two pairs. Empty where no contender has.
    """
    from memjax.tasks import task_of
    from memjax.training.runs import load_config, read_finished

    contenders: dict[str, dict[tuple[str, str], str]] = {}
    for run in runs:
        settings = _settings(run)
        seeds = {name: str(settings.pop(name, "")) for name in DRAWN}
        place = seeds["lifelong.order"], f"{seeds['training.seed']}, {seeds['data.seed']}"
        contenders.setdefault(str(settings), {})[place] = run
    first, *others = contenders.values()
    differences = []
    for other in others:
        shared = [place for place in other if place in first]
        if len(shared) < 2:
            continue
        orders, seeds = ([*dict.fromkeys(names)] for names in zip(*shared, strict=True))
        pair, measure, better = np.full((2, len(orders), len(seeds)), np.nan), "", True
        for order, seed in shared:
            for side, contender in enumerate((other, first)):
                run = contender[order, seed]
                config, finished = load_config(run), read_finished(run) or {}
                stream, score = stream_facts(run, config), finished["results"]["evaluation"]
                measure = next((name for name in (*task_of(config).headline, NATS) if name in score), NATS)
                measure, better = ("average", stream["measure"] != NATS) if stream else (measure, _is_better(measure))
                value = stream.get("average") if stream else score.get(measure)
                pair[side, orders.index(order), seeds.index(seed)] = np.nan if value is None else value
        comparison = compare_pairs(*pair, more_is_better=better)
        differences.append(
            RunDifference(len(other), next(iter(other.values())), next(iter(first.values())), measure, comparison)
        )
    corrected = correct_for_many([difference.comparison for difference in differences])
    pairs = zip(differences, corrected, strict=True)
    return [difference._replace(comparison=comparison) for difference, comparison in pairs]


def _is_better(measure: str) -> bool:
    return measure not in LESS_IS_BETTER


def _settings(run: str) -> dict[str, Any]:
    """The fields of a configuration that say what is computed."""
    from memjax.training.runs import IGNORED, config_to_dict, flat_settings, load_config

    fields = flat_settings(config_to_dict(load_config(run)))
    return {name: value for name, value in fields.items() if name not in IGNORED}


def _facts(run: str, config: Any, finished: Mapping[str, Any]) -> dict[str, Any]:
    """Steps, sizes and scores of a finished run."""
    results = finished["results"]
    scores = {"evaluation": results["evaluation"], **results.get("evaluations", {})}
    facts: dict[str, Any] = {"steps": finished["step"]}
    facts |= {"diverged": "yes"} if "diverged" in results else {}
    facts |= {name: results[name] for name in ("parameters", "memory_bytes")}
    stream = stream_facts(run, config)
    facts |= {name: value for name, value in stream.items() if isinstance(value, float)}
    facts |= {name: value for name, value in stream.get("cost", {}).items() if isinstance(value, float)}
    facts |= {"kept_bytes": stream["kept_bytes"]["total"]} if stream else {}
    for name, score in scores.items():
        plain = {key: value for key, value in score.items() if isinstance(value, float) and key != "nats"}
        facts |= {f"{name}.{key}": value for key, value in plain.items() if not key.endswith("_per_second")}
    return facts
