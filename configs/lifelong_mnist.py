"""Split MNIST: five tasks of two digits each, one head of ten classes, and every baseline of lifelong learning.

    memjax train --config lifelong_mnist --variant replay --lifelong.sources-dir DIR     # DIR: the four idx files
    memjax train --config lifelong_mnist --variant permuted_ewc --lifelong.sources-dir DIR
    memjax eval --run runs/lifelong_mnist_replay                                    # accuracies, forgetting, transfer

Paper: A-GEM (Chaudhry et al. 2019, https://arxiv.org/abs/1812.00420), GEM (Lopez-Paz and Ranzato 2017,
https://arxiv.org/abs/1706.08840), EWC (Kirkpatrick et al. 2017, https://arxiv.org/abs/1612.00796) and others, each
named in its class of `memjax.config`.
Paper's number: none in this protocol.
Our number: tools/results/tables/lifelong_mnist.md.
Hardware: 2 CPU cores, seconds a run.

Where the values come from
  ours        10,000 images in all, 256 hidden units, plain gradient descent at 0.1 (the table has searched rates),
              batches of 32, one epoch: the protocol in which common libraries are compared; `permuted_*` are five
              orders of all pixels, ten classes
"""

import copy

from memjax.config import (
    SGD,
    Blobs,
    Classification,
    Config,
    Data,
    Digits,
    EpisodicMemory,
    Evaluation,
    Lifelong,
    Perceptron,
    Schedule,
    TaskData,
    Training,
)
from memjax.settings.named_methods import make_method_settings

VARIANTS = {
    "default": "plain training, one task after the other",
    "single_task": "every task alone",
    "multi_task": "all tasks shuffled together",
    "cumulative": "all tasks so far, shuffled together",
    "replay": "experience replay: 32 stored rows beside 32 new ones, a reservoir of 500",
    "agem": "A-GEM with the gradient of 256 stored rows as reference",
    "gem": "GEM with 100 stored rows of each task",
    "ewc": "elastic weight consolidation",
    "mas": "memory aware synapses",
    "si": "synaptic intelligence",
    "lwf": "learning without forgetting",
    "pnn": "a progressive network: a column for every task, which is known in the test",
    "logit_kd": "experience replay with the model before the task as teacher",
    "permuted": "plain training on permuted MNIST: five orders of all pixels",
    "permuted_ewc": "elastic weight consolidation on permuted MNIST",
    "permuted_replay": "experience replay with a reservoir of 500 on permuted MNIST",
    "by_task": "plain training where the task is known: the head is masked to its classes",
    "by_task_ewc": "elastic weight consolidation where the task is known",
    "smoke": "seconds: clouds of points instead of digits",
}
METHODS = {
    "default": make_method_settings("sequential"),
    "single_task": make_method_settings("single_task"),
    "multi_task": make_method_settings("multi_task"),
    "cumulative": make_method_settings("multi_task", schedule="cumulative"),
    "replay": make_method_settings("replay", memory=EpisodicMemory(capacity=500)),
    "agem": make_method_settings("agem", memory=EpisodicMemory(capacity=500), reference_batch_size=256),
    "gem": make_method_settings("gem", examples_per_task=100, cache_gradients=True),
    "ewc": make_method_settings("ewc", penalty_weight=100.0),
    "mas": make_method_settings("mas", penalty_weight=1.0),
    "si": make_method_settings("si", penalty_weight=1.0),
    "lwf": make_method_settings("lwf", distillation_weight=1.0),
    "pnn": make_method_settings("progressive"),
    "logit_kd": make_method_settings("logit_kd", memory=EpisodicMemory(capacity=500), distillation_weight=1.0),
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    permuted, method_name = variant.startswith("permuted"), variant.removeprefix("permuted_").removeprefix("by_task_")
    pairs = [(2 * i, 2 * i + 1) for i in range(5)]
    sources = [
        Digits(num_train=2000, permutation=i) if permuted else Digits(classes=pair, num_train=2000)
        for i, pair in enumerate(pairs)
    ]
    config = Config(
        name=f"lifelong_mnist_{variant}",
        model=Perceptron(initializer="uniform"),
        task=Classification(num_classes=10),
        data=Data(source=sources[0], batch_size=32, segment_length=784),
        training=Training(
            optimizer=SGD(),
            clip_norm=0.0,
            schedule=Schedule(learning_rate=0.1, warmup_steps=0, decay="constant"),
            log_every=50,
            evaluate_every=0,
            checkpoint_every=0,
        ),
        evaluation=Evaluation(batch_size=256, split="test", compute_accuracy=True),
        lifelong=Lifelong(
            method=copy.deepcopy(METHODS.get(method_name, METHODS["default"])),
            tasks=tuple(TaskData(name=f"task_{i}", source=source) for i, source in enumerate(sources)),
            epochs=1,
        ),
    )
    if variant.startswith("by_task"):
        for source in sources:
            source.mask_classes = True
    assert config.lifelong is not None
    if variant == "smoke":
        blobs = [Blobs(classes=pair, dim=8, num_train=32, num_test=16) for pair in pairs[:2]]
        config.model, config.data.source, config.data.segment_length = Perceptron(widths=(64,)), blobs[0], 8
        config.data.batch_size, config.evaluation.batch_size, config.training.log_every = 8, 8, 1
        config.lifelong.tasks = tuple(TaskData(name=f"task_{i}", source=blob) for i, blob in enumerate(blobs))
        config.lifelong.method = make_method_settings("replay", memory=EpisodicMemory(capacity=16), replay_batch_size=4)
    return config
