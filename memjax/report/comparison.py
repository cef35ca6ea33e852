"""Finished runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memjax.report.outcomes import stream_facts

__all__ = ["compare_runs", "settings_apart"]


def settings_apart(runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run -> the fields of its configuration in which the runs differ.

    Raises:
      ValueError: no run directory.
    """
    from memjax.training.runs import IGNORED, config_to_dict, flat_settings, load_config

    settings = {run: flat_settings(config_to_dict(load_config(run))) for run in runs}
    every = {name: None for fields in settings.values() for name in fields if name not in IGNORED}
    apart = [name for name in every if len({str(fields.get(name)) for fields in settings.values()}) > 1]
    return {run: {name: fields.get(name) for name in apart} for run, fields in settings.items()}


def compare_runs(runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run -> its values: fields of the configuration in which the runs differ, then steps, sizes and scores.

    Raises:
      ValueError: no run directory, or a run that is not finished.
    """
    from memjax.training.runs import load_config, read_finished

    facts = settings_apart(runs)
    for run in runs:
        finished = read_finished(run)
        if finished is None:
            raise ValueError(f"{run}: not finished, allowed: a run with finished.json; train it to its end")
        results = finished["results"]
        scores = {"evaluation": results["evaluation"], **results.get("evaluations", {})}
        facts[run] |= {"steps": finished["step"]}
        facts[run] |= {name: results[name] for name in ("parameters", "memory_bytes")}
        stream = stream_facts(run, load_config(run))
        facts[run] |= {name: value for name, value in stream.items() if isinstance(value, float)}
        facts[run] |= {name: value for name, value in stream.get("cost", {}).items() if isinstance(value, float)}
        facts[run] |= {"kept_bytes": stream["kept_bytes"]["total"]} if stream else {}
        for name, score in scores.items():
            plain = {key: value for key, value in score.items() if isinstance(value, float) and key != "nats"}
            facts[run] |= {f"{name}.{key}": value for key, value in plain.items() if not key.endswith("_per_second")}
    return facts
