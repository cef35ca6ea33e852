"""SPALM learns to take the next token from neighbours that contain it, among others that do not fit."""

import dataclasses
from pathlib import Path

import numpy as np

from memjax.config import (
    Config,
    Data,
    Evaluation,
    KeyValueRecall,
    Model,
    Schedule,
    Softmax,
    Spalm,
    Training,
    TransformerXL,
)
from memjax.data.annotations import NEIGHBORS, AnnotatedDocuments, write_neighbors
from memjax.training import load_run, train
from memjax.training.experiment import make_experiment
from tests.learns.task import Task
from tools.measurements.oracle_neighbors import oracle_neighbors

NUM_NEIGHBORS = 4


def answers(output: Softmax | Spalm) -> Config:
    """Makes the configuration of a small model without memory that recalls keys and values.

    Nothing in a segment tells the values, because their keys were bound to them in the segment before.
    """
    source = KeyValueRecall(num_pairs=4, num_keys=4, num_values=8, filler_length=8, num_documents=512)
    attention = TransformerXL(memory_length=0, norm="pre")
    return Config(
        model=Model(dim=64, num_layers=1, num_heads=2, attention=attention, output=output),
        data=Data(source=source, batch_size=32, segment_length=12),
        training=Training(steps=200, schedule=Schedule(learning_rate=4e-3, warmup_steps=20)),
        evaluation=Evaluation(batch_size=32, compute_accuracy=True),
    )


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Returns accuracies on held-out answers.

    The neighbours are `kept`, `off`, or `shuffled` between documents. The `parent` reads no neighbours.
    """
    accuracies = {}
    spalm = Spalm(softmax=Softmax(), num_neighbors=NUM_NEIGHBORS)
    for name, config in {"memory": answers(spalm), "parent": answers(Softmax())}.items():
        config = dataclasses.replace(config, name=f"{name}_{seed}", workdir=str(workdir))
        config.training.seed = config.data.seed = seed
        config.training.evaluate_every, config.training.log_every = 0, config.training.steps
        plain = make_experiment(dataclasses.replace(config, model=answers(Softmax()).model))
        splits = {split: plain.documents(split) for split in ("train", "validation")}
        values = {split: oracle_neighbors(part, NUM_NEIGHBORS) for split, part in splits.items()}
        if name == "memory":
            config.data.neighbors_dir = str(workdir / "neighbors")
            for split, part in splits.items():
                write_neighbors(config.data.neighbors_dir, split, values[split], part)
        loaded = load_run(train(config, on_event=lambda event: None).path)
        near = values["validation"]
        neighbors_by_state = {
            "kept": near,
            "off": near * 0 - 1,
            "shuffled": np.roll(near, splits["validation"].num_tokens(0), axis=0),
        }
        for state, neighbors in (neighbors_by_state if name == "memory" else {"parent": near}).items():
            documents = AnnotatedDocuments(splits["validation"], {NEIGHBORS: neighbors})
            result = loaded.experiment.evaluator(documents=documents)(loaded.variables)
            accuracies[state] = result.subsets["is_answer"].accuracy
    return accuracies


TASK = Task(measure, "the target among four neighbours, some of them other values")
