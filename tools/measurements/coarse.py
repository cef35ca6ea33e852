"""Compares one adaptation for a whole test set with one for each text: seconds and accuracy of the same run, in turns.

    python -m tools.measurements.coarse RUN      # a finished run of MbPA++

The memory, the parameters, the steps and the adapted parameters are those of the run. The same rows are also scored
without adaptation, because the time of scoring is no part of an adaptation.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from memjax.config import Config, MetaMbPA
from memjax.lifelong import load_run
from memjax.training.run_versions import versions
from memjax.training.runs import load_config
from tools.bench.harness import quartiles
from tools.results import pages
from tools.results.ledger import measured

TEXTS = 200
"""Number of test texts, from the last task."""
FORMS = {
    "none": "no adaptation",
    "each": "each text to its own neighbours (MbPA++)",
    "together": "once, to the neighbours of their mean key",
}
SCOPES = {"each": "per_example", "together": "per_batch"}
"""Form of adaptation -> `adaptation_scope` of `MetaMbPA`."""


def with_adaptation(config: Config, form: str, **fields: Any) -> Config:
    """Returns the configuration of a run of MbPA++ or Meta-MbPA that adapts in another form when it answers.

    Args:
      config: Configuration of the run.
      form: Form of adaptation, a key of `SCOPES`.
      **fields: Further fields of `MetaMbPA` to replace.
    """
    assert config.lifelong is not None
    trained = config.lifelong.method
    shared = {field.name for field in dataclasses.fields(trained)} & {
        field.name for field in dataclasses.fields(MetaMbPA)
    }
    of_run = {name: getattr(trained, name) for name in shared}
    method = MetaMbPA(**{**of_run, "meta_train": False, "adaptation_scope": SCOPES[form], **fields})
    return dataclasses.replace(config, lifelong=dataclasses.replace(config.lifelong, method=method))


def config_of(config: Config, form: str) -> Config:
    """Returns the configuration of a run with a form of adaptation, a key of `FORMS`, and all texts in one batch."""
    assert config.lifelong is not None
    task = config.lifelong.ordered_tasks[-1].name
    changed = with_adaptation(config, "each", adaptation_steps=0) if form == "none" else with_adaptation(config, form)
    fields: dict[str, Any] = {
        "task": task,
        "batch_size": TEXTS,
        "split": "test",
        "compute_accuracy": True,
        "max_segments": 1,
    }
    evaluation = dataclasses.replace(config.evaluation, **fields)
    return dataclasses.replace(changed, evaluation=evaluation, evaluations=())


def measure(run: Path, rounds: int) -> dict[str, Any]:
    """Measures every form of adaptation, and returns all numbers of the table."""
    config, load = load_config(run), os.getloadavg()[0]
    configs = {form: config_of(config, form) for form in FORMS}
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    accuracy: dict[str, float | None] = {}
    ready = {}
    for form, form_config in configs.items():
        loaded = load_run(run, form_config)
        ready[form] = (loaded, loaded.experiment.evaluator(form_config.evaluation))
        accuracy[form] = ready[form][1](loaded.variables).accuracy
    for _ in range(rounds):
        for form, (loaded, evaluator) in ready.items():
            began = time.perf_counter()
            evaluator(loaded.variables)
            seconds[form].append(time.perf_counter() - began)
    quartiles_by_form = {form: quartiles(values) for form, values in seconds.items()}
    return {
        "load": load,
        "versions": versions(),
        "texts": TEXTS,
        "steps": config.lifelong.method.adaptation_steps,  # type: ignore[union-attr]
        "forms": [{"form": form, "seconds": quartiles_by_form[form], "accuracy": accuracy[form]} for form in FORMS],
    }


def about(facts: dict[str, Any]) -> str:
    """Returns the text above the table: what was measured, and how."""
    median = {row["form"]: row["seconds"]["median"] for row in facts["forms"]}
    alone = {form: median[form] - median["none"] for form in ("each", "together")}
    ratio = alone["each"] / alone["together"]
    return (
        f"{facts['texts']} test texts of the last task, {facts['steps']} steps, the same run; seconds of a pass over "
        f"them (quartiles), in alternation, at a load of {facts['load']:.1f}. Less what no adaptation takes, one for "
        f"all is {ratio:.0f} times as fast as one for each."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of a finished run of MbPA++")
    parser.add_argument("--rounds", type=int, default=10, help="measured passes of each form")
    parser.add_argument("--name", default="vectors", help="what the run reads, for the table")
    options = parser.parse_args()
    facts = measure(options.run, options.rounds)
    command = f"python -m tools.measurements.coarse RUN --name {options.name}"
    title = f"One adaptation for all, on {options.name}"
    pages.record(measured("coarse", options.name, facts, command=command, title=title, about=about(facts)))


if __name__ == "__main__":
    main()
