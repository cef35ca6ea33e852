"""Streams with an episodic memory on one device and on eight: run in a process of its own, prints one JSON object."""

import contextlib
import dataclasses
import json

import jax
import numpy as np

from memjax.config import (
    AGEM,
    EAEMR,
    EMAR,
    EMR,
    GEM,
    MAML,
    OML,
    EpisodicMemory,
    LogitKD,
    MbPA,
    MetaMbPA,
    Replay,
)
from memjax.training.metrics import count_bytes
from memjax.training.sharding import Layout, make_mesh
from tests.integration.sharding_worker import difference
from tests.lifelong.learner_cases import config_of, memory_of, play

ROWS = 8
ALL = EpisodicMemory(write_policy="all", capacity=32)
SOME = EpisodicMemory(capacity=12)  # the devices do not divide it: each has all of it
METHODS = {
    "replay": Replay(memory=EpisodicMemory(capacity=16), replay_batch_size=8),
    "replay_sparse": Replay(memory=ALL, mode="sparse", replay_interval=8, replay_batch_size=5),
    "agem": AGEM(memory=ALL, reference_batch_size=8),
    "agem_whole": AGEM(memory=SOME, reference_batch_size=5, projection_interval=8),
    "gem": GEM(examples_per_task=3),
    "logit_kd": LogitKD(memory=ALL, replay_batch_size=8),
    "mbpa_pp": MbPA(
        memory=ALL,
        replay_interval=8,
        replay_batch_size=5,
        key_source="first",
        num_neighbors=4,
        adaptation_steps=3,
        adaptation_learning_rate=0.1,
        adaptation_batch_size=1,
    ),
    "logit_kd_annealed": LogitKD(memory=ALL, replay_batch_size=8, anneal_weight=True),
    "mbpa_random": MbPA(
        memory=ALL,
        replay_interval=8,
        replay_batch_size=5,
        neighbor_choice="random",
        num_neighbors=4,
        adaptation_steps=3,
        adaptation_batch_size=2,
    ),
}
EPISODE = {"memory": ALL, "replay_interval": 16, "replay_rate": 0.5, "inner_steps": 1, "inner_learning_rate": 0.1}
METHODS |= {
    "oml": OML(**EPISODE, last_episode="kept"),
    "maml_second": MAML(**EPISODE, first_order=False, last_episode="kept"),
    "meta_mbpa": MetaMbPA(
        memory=ALL,
        replay_interval=8,
        replay_batch_size=5,
        num_neighbors=4,
        inner_learning_rate=0.1,
        adaptation_steps=2,
        adaptation_learning_rate=0.1,
    ),
}
METHODS |= {
    "emar": EMAR(examples_per_task=4, reconsolidation_batch_size=8, instances_per_class=2),
    "emr": EMR(examples_per_task=4),
    "ea_emr": EAEMR(examples_per_task=4, alignment_epochs=2, alignment_learning_rate=1e-3),
}
MESHES = {"replay": [(8, 1, 1), (2, 4, 1)], "mbpa_pp": [(8, 1, 1), (2, 4, 1)]}


def outcome(method, shape):
    """What a stream has left on a mesh, or on one device: its state, its sums, its score, bytes of the memory."""
    config = config_of(method)
    config.data.batch_size = config.evaluation.batch_size = ROWS
    config.evaluations = tuple(
        dataclasses.replace(config.evaluation, name=task.name, task=task.name) for task in config.lifelong.tasks
    )
    layout = Layout(make_mesh(shape)) if shape else None
    with layout.active() if layout else contextlib.nullcontext():
        # In float64, since the choice of neighbours and of a projection is not continuous.
        played = play(config, layout=layout, float64=True)
        variables = played.learner.evaluation_variables(played.state, 0)
        scores = [evaluator(variables) for evaluator in played.learner.evaluators.values()]
    first = jax.devices()[0]
    kept = memory_of(played) or played.state.method  # methods without an episodic memory keep numbers of examples
    held = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(kept)
        for shard in leaf.addressable_shards
        if shard.device == first
    )
    return {
        "params": played.state.params,
        "memory": kept,
        "sums": [{name: value.total for name, value in one.items()} for one in played.sums],
        "nats": [score.nats for score in scores],
        "held": held / count_bytes(kept),
    }


def compare(name):
    """On every mesh, how far from one device."""
    one, found = outcome(METHODS[name], None), {}
    assert all(np.isfinite(one["nats"]))
    for shape in MESHES.get(name, [(8, 1, 1)]):
        mesh = outcome(METHODS[name], shape)
        found[str(shape)] = {
            **{part: difference(mesh[part], one[part]) for part in ("params", "memory", "sums", "nats")},
            "held": mesh["held"],
        }
    return found


if __name__ == "__main__":
    print(json.dumps({name: compare(name) for name in METHODS}))
