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
ALL = EpisodicMemory(policy="all", capacity=32)
SOME = EpisodicMemory(capacity=12)  # the devices do not divide it: each has all of it
METHODS = {
    "replay": Replay(memory=EpisodicMemory(capacity=16), rows=8),
    "replay_sparse": Replay(memory=ALL, mode="sparse", every=8, rows=5),
    "agem": AGEM(memory=ALL, rows=8),
    "agem_whole": AGEM(memory=SOME, rows=5, every=8),
    "gem": GEM(rows=3),
    "logit_kd": LogitKD(memory=ALL, rows=8),
    "mbpa_pp": MbPA(memory=ALL, every=8, rows=5, key="first", num_neighbors=4, steps=3, learning_rate=0.1, queries=1),
    "logit_kd_annealed": LogitKD(memory=ALL, rows=8, annealed=True),
    "mbpa_random": MbPA(memory=ALL, every=8, rows=5, neighbors="random", num_neighbors=4, steps=3, queries=2),
}
EPISODE = {"memory": ALL, "every": 16, "rate": 0.5, "steps": 1, "inner_learning_rate": 0.1}
METHODS |= {
    "oml": OML(**EPISODE, last_episode="kept"),
    "maml_second": MAML(**EPISODE, order=2, last_episode="kept"),
    "meta_mbpa": MetaMbPA(
        memory=ALL, every=8, rows=5, num_neighbors=4, inner_learning_rate=0.1, steps=2, learning_rate=0.1
    ),
}
METHODS |= {
    "emar": EMAR(size=4, rows=8, instances=2),
    "emr": EMR(size=4),
    "ea_emr": EAEMR(size=4, alignments=2, learning_rate=1e-3),
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
