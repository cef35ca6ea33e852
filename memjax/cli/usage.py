"""The command `memjax usage`, which measures how a value table (product keys) is used."""

from collections.abc import Mapping
from typing import Any

from memjax.cli.console import describe_facts
from memjax.cli.parser import EVALUATION_FIELDS, Parser, open_run, parse_with_config, print_result
from memjax.config import Config


def run(arguments: list[str]) -> int:
    """Measures how many slots of its value tables (product keys) a run uses on a split, and how evenly."""
    parser = Parser("usage", run.__doc__, reads="run", json="")
    every = "measure all checkpoints of the run, and at which of them each slot was last in use"
    parser.add_argument("--checkpoints", action="store_true", help=every)
    options, config = parse_with_config(parser, arguments, only=EVALUATION_FIELDS)
    from memjax.inspection.slot_usage import NO_TABLES

    if not config.model.has_value_tables:
        raise ValueError(NO_TABLES)
    facts = usage_facts(options.run, config, is_data_named=options.is_data_named, checkpoints=options.checkpoints)
    return print_result(facts, describe_usage, options)


def usage_facts(run: str, config: Config, *, is_data_named: bool = False, checkpoints: bool = False) -> dict[str, Any]:
    """Measures how many slots of every value table the run in a directory uses on the split of `config`, and returns
    JSON values. With `checkpoints` it measures all checkpoints, not only the newest.

    Args:
      run: Directory of the run.
      config: Configuration of the run, with the split to read.
      is_data_named: Whether the command line names the data. See `open_run`.
      checkpoints: Whether to measure all checkpoints of the run instead of the newest one.
    """
    from memjax.inspection.slot_usage import describe_counts, last_used, measure_usage
    from memjax.training.loaded_runs import checkpoint_steps

    read: dict[str, Any] = {}

    def measure(step: int | None) -> dict[str, dict[str, Any]]:
        loaded = open_run(run, config, is_data_named=is_data_named, step=step)
        read.update(loaded.checkpoint.facts())
        return measure_usage(loaded.experiment, loaded.variables)

    steps = checkpoint_steps(run) if checkpoints else []
    measured = {step: measure(step) for step in steps or [None]}  # the newest; where there is none, a line of its own
    *_, newest = measured.values()
    facts = {"run": run, **read, "split": config.evaluation.split, "tables": describe_counts(newest)}
    if not checkpoints:
        return facts
    facts["checkpoints"] = {str(step): describe_counts(counts) for step, counts in measured.items()}
    for table, slots in last_used({step or 0: counts for step, counts in measured.items()}).items():
        facts["tables"][table]["last_used"] = slots
    return facts


def describe_usage(facts: Mapping[str, Any]) -> str:
    """Formats the JSON values of `usage_facts` as text: the measurements of every value table, one number in a line."""
    lines = [f"{facts['split']} split of {facts['run']}, step {facts['step']}"]
    for table, values in facts["tables"].items():
        flat = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
        flat |= {f"last used at {step}": slots for step, slots in values.get("last_used", {}).items()}
        for subset, numbers in values.get("subsets", {}).items():
            flat |= {f"{subset}: {name}": value for name, value in numbers.items()}
        shown = {k.replace("_", " "): round(v, 4) if isinstance(v, float) else v for k, v in flat.items()}
        lines += ["", table, describe_facts(shown)]
    return "\n".join(lines)
