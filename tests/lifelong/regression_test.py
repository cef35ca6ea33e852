"""What methods reach on five tasks of two classes each: their order, with margins, not their values.

A change that breaks replay shows in no law: the numbers fall.
"""

import dataclasses

import numpy as np
import pytest

from memjax.config import (
    EWC,
    GEM,
    Blobs,
    EpisodicMemory,
    Joint,
    LwF,
    MbPA,
    Perceptron,
    PermutedBags,
    Replay,
    Sequential,
    TaskData,
)
from tests.lifelong.learner_cases import config_of, play

pytestmark = [pytest.mark.laws, pytest.mark.xdist_group("lifelong regression")]

TASKS = 5


def clouds_of(mask_classes=False):
    """Two classes a task, all with one head."""
    clouds = {"num_classes": 2 * TASKS, "dim": 16, "num_train": 200, "num_test": 50, "mask_classes": mask_classes}
    return [Blobs(classes=(2 * i, 2 * i + 1), **clouds) for i in range(TASKS)]


def accuracies(method, sources=None, *, num_classes=2 * TASKS, length=16):
    """Of every task in the end, mean."""
    sources = sources or clouds_of()
    config = config_of(method)
    lifelong = dataclasses.replace(
        config.lifelong, tasks=tuple(TaskData(name=f"task {i}", source=one) for i, one in enumerate(sources))
    )
    config = dataclasses.replace(
        config,
        model=Perceptron(widths=(32,)),
        task=dataclasses.replace(config.task, num_classes=num_classes),
        data=dataclasses.replace(config.data, source=sources[0], batch_size=10, segment_length=length),
        training=dataclasses.replace(
            config.training, schedule=dataclasses.replace(config.training.schedule, learning_rate=0.1)
        ),
        evaluation=dataclasses.replace(config.evaluation, batch_size=50),
        evaluations=tuple(
            dataclasses.replace(config.evaluation, batch_size=50, name=task.name, task=task.name)
            for task in lifelong.tasks
        ),
        lifelong=lifelong,
    )
    played = play(config)
    variables = played.learner.evaluation_variables(played.state, 0)
    return float(np.mean([played.learner.evaluators[task.name](variables).accuracy for task in lifelong.tasks]))


def test_one_head_plain_training_forgets_replay_does_not_and_all_at_once_is_best():
    memory, every = EpisodicMemory(capacity=100), EpisodicMemory(write_policy="all", capacity=1000)
    plain, replay, together = (
        accuracies(method) for method in (Sequential(), Replay(memory=memory, replay_batch_size=10), Joint())
    )
    assert plain + 0.2 < replay < together + 0.05 and together > 0.8
    sparse = Replay(memory=every, mode="sparse", replay_interval=100, replay_batch_size=10)
    adapted = MbPA(
        memory=every,
        replay_interval=100,
        replay_batch_size=10,
        num_neighbors=16,
        adaptation_steps=10,
        adaptation_learning_rate=0.1,
    )
    assert accuracies(adapted) > accuracies(sparse) + 0.2
    assert accuracies(GEM(examples_per_task=20)) > plain + 0.2
    # A penalty cannot tell classes apart that were never seen together.
    assert accuracies(EWC(penalty_weight=10.0)) < replay - 0.2


def test_where_tasks_share_their_classes_a_penalty_keeps_earlier_ones():
    bags = [
        PermutedBags(classes=(0, 1, 2, 3), num_train=800, num_test=100, permutation=i, concentration=0.5)
        for i in range(TASKS)
    ]
    methods = (Sequential(), EWC(penalty_weight=0.0), EWC(penalty_weight=100.0))
    plain, free, held = (accuracies(method, bags, num_classes=4, length=64) for method in methods)
    assert free == plain < 0.82 and held > plain + 0.06


def test_distillation_harms_no_task_whose_classes_are_told():
    told = clouds_of(mask_classes=True)
    plain, held = (accuracies(method, told) for method in (Sequential(), LwF(distillation_weight=3.0)))
    assert plain > 0.9 and held > plain - 0.05
