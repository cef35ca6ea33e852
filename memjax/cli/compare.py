"""`memjax compare`."""

from collections.abc import Mapping, Sequence
from typing import Any

from memjax.cli.parser import Parser, tell
from memjax.cli.streams import stream_facts
from memjax.console import align, show_value


def run(arguments: list[str]) -> int:
    """Prints finished runs side by side: what tells their configurations apart, and what they have come to."""
    parser = Parser("compare", run.__doc__, json=": run -> its values")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory whose run is finished")
    options = parser.read(arguments)
    return tell(compare_runs(options.runs), describe_comparison, options)


def compare_runs(runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run -> its values: fields of the configuration in which the runs differ, then steps, sizes and scores.

    Raises:
      ValueError: no run directory, or a run that is not finished.
    """
    from memjax.training.runs import IGNORED, config_to_dict, flat_settings, load_config, read_finished

    settings = {run: flat_settings(config_to_dict(load_config(run))) for run in runs}
    every = {name: None for fields in settings.values() for name in fields if name not in IGNORED}
    apart = [name for name in every if len({str(fields.get(name)) for fields in settings.values()}) > 1]
    facts: dict[str, dict[str, Any]] = {}
    for run in runs:
        finished = read_finished(run)
        if finished is None:
            raise ValueError(f"{run}: not finished, allowed: a run with finished.json; train it to its end")
        results = finished["results"]
        scores = {"evaluation": results["evaluation"], **results.get("evaluations", {})}
        facts[run] = {name: settings[run].get(name) for name in apart} | {"steps": finished["step"]}
        facts[run] |= {name: results[name] for name in ("parameters", "memory_bytes")}
        stream = stream_facts(run, load_config(run))
        facts[run] |= {name: value for name, value in stream.items() if isinstance(value, float)}
        facts[run] |= {name: value for name, value in stream.get("cost", {}).items() if isinstance(value, float)}
        facts[run] |= {"kept_bytes": stream["kept_bytes"]["total"]} if stream else {}
        for name, score in scores.items():
            plain = {key: value for key, value in score.items() if isinstance(value, float) and key != "nats"}
            facts[run] |= {f"{name}.{key}": value for key, value in plain.items() if not key.endswith("_per_second")}
    return facts


def describe_comparison(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a value, a column a run.

    Example:
      >>> print(describe_comparison({"a": {"steps": 10, "loss": 0.5}, "b": {"steps": 2000, "loss": 0.25}}))
             a    b
      steps  10   2,000
      loss   0.5  0.25
    """
    cell = lambda value: f"{value:.5g}" if isinstance(value, float) else show_value(value)
    show = lambda value: "" if value is None else cell(value)
    names = {name: None for values in facts.values() for name in values}
    rows = [[name, *(show(values.get(name)) for values in facts.values())] for name in names]
    return "\n".join(align([["", *facts], *rows]))
