"""Computes how many examples each stage of `lifelong_pretraining` may read so that all its variants do equal work.

python -m tools.measurements.work --domains DOMAINS

Work is counted, not timed: the matrix products of every traced update (`memjax.training.costs`), with replayed rows,
reference gradients, teachers and recoveries, at the size that the model has in this stage. A batch that estimates the
importance of parameters counts as a plain update. The work of a stage is the work of naive training on all of its
domain, read as often as the configuration says.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import jax

from memjax.config import Config
from memjax.lifelong.factory import growth_histories, make_learner_and_stages
from memjax.lifelong.method_interface import concatenate_tasks, settings_of
from memjax.settings.overrides import load_config
from memjax.training.costs import count_flops
from memjax.training.experiment import make_experiment
from memjax.training.stages import STREAM, Learner
from memjax.training.update_functions import make_objective

CONFIG = "lifelong_pretraining"


def update_flops(learner: Learner, kind: str) -> int:
    """Counts the operations of an update of some kind."""
    state = jax.eval_shape(learner.init, jax.eval_shape(learner.make_variables))
    batch = learner.batch_shapes[kind]
    return count_flops(lambda state, batch: learner.updates[kind](state, batch)[0], state, batch)


def count_stage_work(config: Config) -> list[tuple[int, int, int]]:
    """Counts the work of every stage of a stream.

    Returns:
      For each stage the operations of one update that reads the domain, the operations of all other updates together,
      and the number of examples of the domain.
    """
    experiment = make_experiment(config)
    method: Any = settings_of(experiment).method
    names = [task.name for task in settings_of(experiment).ordered_tasks]
    parts = concatenate_tasks([experiment.of_task(name) for name in names])
    make_learner, _ = make_learner_and_stages(experiment, None, make_objective)
    stage_counts = []
    for number, (lineage, part) in enumerate(zip(growth_histories(config), parts, strict=True)):
        learner = make_learner(lineage)
        each, others = update_flops(learner, STREAM), 0
        for kind in learner.batch_shapes:
            if kind != STREAM and number:
                others += method.warm_up * update_flops(learner, kind)
        importance = method.batches
        others += importance * each if importance > 1 else 0
        stage_counts.append((each, others, len(part.examples)))
    return stage_counts


def limits(variant: str, domains: str, work: list[int]) -> list[int]:
    """Returns the number of examples of each domain that a variant may read.

    Args:
      variant: Variant of the configuration.
      domains: Folder of the domains.
      work: Operations that each stage may take.
    """
    config = config_without_limits(variant, domains)
    rows, epochs = config.data.batch_size, stream_settings(config).epochs
    max_examples = []
    for (each, others, size), total in zip(count_stage_work(config), work, strict=True):
        max_examples.append(min(size, rows * int((total - others) / each / epochs)))
    return max_examples


def config_without_limits(variant: str, domains: str) -> Config:
    """Returns the configuration of a variant without limits of its examples."""
    config = load_config(CONFIG, variant)
    return dataclasses.replace(
        config, lifelong=dataclasses.replace(stream_settings(config), sources_dir=domains, max_examples_per_task=())
    )


def stream_settings(config: Config) -> Any:
    """Returns the settings of the stream of tasks."""
    return config.lifelong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measurements.work", description=__doc__.splitlines()[0])
    parser.add_argument("--domains", required=True)
    parser.add_argument("--plain", default="default", help="the variant whose work the others do")
    parser.add_argument("--variants", nargs="*", default=[])
    options = parser.parse_args()
    plain = config_without_limits(options.plain, options.domains)
    rows, epochs = plain.data.batch_size, stream_settings(plain).epochs
    work = [each * epochs * -(-size // rows) for each, _, size in count_stage_work(plain)]
    print("work of a stage, in 10^12:", [round(operations / 1e12, 3) for operations in work])
    for variant in options.variants:
        print(f'    "{variant}": {tuple(limits(variant, options.domains, work))},')


if __name__ == "__main__":
    main()
