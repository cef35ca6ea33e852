"""Examples that each stage of `lifelong_pretraining` may read so that all its variants do equal work.

python -m tools.measurements.work --domains DOMAINS

Work is counted, not timed: the products of matrices of every update as it is traced (`memjax.training.costs`), with
replayed rows, reference gradients, teachers and recoveries, at the size that the model has by then. A batch of which
the importance of parameters is taken counts as a plain update. What naive training spends on all of a domain, read as
often as the configuration says, is the work of its stage.
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
    """Operations of an update."""
    state = jax.eval_shape(learner.init, jax.eval_shape(learner.make_variables))
    batch = learner.batch_shapes[kind]
    return count_flops(lambda state, batch: learner.updates[kind](state, batch)[0], state, batch)


def stages(config: Config) -> list[tuple[int, int, int]]:
    """Of every stage: operations of an update that reads the domain, of all others, and examples of the domain."""
    experiment = make_experiment(config)
    method: Any = settings_of(experiment).method
    names = [task.name for task in settings_of(experiment).ordered_tasks]
    parts = concatenate_tasks([experiment.of_task(name) for name in names])
    make_learner, _ = make_learner_and_stages(experiment, None, make_objective)
    found = []
    for number, (lineage, part) in enumerate(zip(growth_histories(config), parts, strict=True)):
        learner = make_learner(lineage)
        each, others = update_flops(learner, STREAM), 0
        for kind in learner.batch_shapes:
            if kind != STREAM and number:
                others += method.warm_up * update_flops(learner, kind)
        importance = method.batches
        others += importance * each if importance > 1 else 0
        found.append((each, others, len(part.examples)))
    return found


def limits(variant: str, domains: str, work: list[int]) -> list[int]:
    """Examples of each domain that a variant may read."""
    config = of(variant, domains)
    rows, epochs = config.data.batch_size, settings(config).epochs
    found = []
    for (each, others, size), total in zip(stages(config), work, strict=True):
        found.append(min(size, rows * int((total - others) / each / epochs)))
    return found


def of(variant: str, domains: str) -> Config:
    """The configuration without limits."""
    config = load_config(CONFIG, variant)
    return dataclasses.replace(
        config, lifelong=dataclasses.replace(settings(config), sources_dir=domains, max_examples_per_task=())
    )


def settings(config: Config) -> Any:
    """Of the stream."""
    return config.lifelong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measurements.work", description=__doc__.splitlines()[0])
    parser.add_argument("--domains", required=True)
    parser.add_argument("--plain", default="default", help="the variant whose work the others do")
    parser.add_argument("--variants", nargs="*", default=[])
    given = parser.parse_args()
    plain = of(given.plain, given.domains)
    rows, epochs = plain.data.batch_size, settings(plain).epochs
    work = [each * epochs * -(-size // rows) for each, _, size in stages(plain)]
    print("work of a stage, in 10^12:", [round(one / 1e12, 3) for one in work])
    for variant in given.variants:
        print(f'    "{variant}": {tuple(limits(variant, given.domains, work))},')


if __name__ == "__main__":
    main()
