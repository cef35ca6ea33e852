"""`memjax eval`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from memjax.cli.parser import EVALUATION_FIELDS, Parser, tell, with_config
from memjax.console import ANY_SIZE, describe_facts

PLURAL = {"nats": "{:,.1f}", "targets": "{:,}", "bytes": "{:,}", "memory_bytes": "{:,}", "tokens_per_second": "{:,.0f}"}


def run(arguments: list[str]) -> int:
    """Scores a split with the newest checkpoint of a run, which may still be training."""
    parser = Parser("eval", run.__doc__, reads="run", json="")
    options, config = with_config(parser, arguments, only=EVALUATION_FIELDS)
    from memjax.lifelong import load_run
    from memjax.training.experiment import evaluation_model

    evaluation_model(config, ANY_SIZE)  # refuses what the model does not take before anything is read
    loaded = load_run(options.run, config)
    result = loaded.experiment.evaluate(loaded.variables)
    memory_length = config.with_memory(config.evaluation.memory_length).model.carrier.memory_length or 0
    values = {"run": options.run, "split": config.evaluation.split, "memory_length": memory_length, **result.as_dict()}
    if config.evaluation.cache.memory_length:
        values["cache"] = dataclasses.asdict(config.evaluation.cache)
    return tell(values, describe_evaluation, options)


def describe_evaluation(values: Mapping[str, Any]) -> str:
    """The numbers of an evaluation, one a line; subsets after the whole."""
    show = lambda name, value: PLURAL.get(name, "{:.4f}" if isinstance(value, float) else "{}").format(value)
    whole = {name: value for name, value in values.items() if not (isinstance(value, Mapping) or value is None)}
    shown = {name.replace("_", " "): show(name, value) for name, value in whole.items()}
    for subset, numbers in values.get("subsets", {}).items():
        shown |= {f"{subset}: {name.replace('_', ' ')}": show(name, value) for name, value in numbers.items()}
    return describe_facts(shown)
