"""memjax contenders: the kinds of update of a learner of tasks, each by itself, and episodes beside as many of them.

python -m tools.bench.updates KIND SETTINGS
"""

import argparse
import dataclasses
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.allocation import keep_freed_memory
from memjax.config import ANML, MAML, OML, Config, EpisodicMemory, Replay, Sequential
from memjax.planning.programs import planned_learner
from memjax.settings.overrides import load_config
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.metrics import count_parameters
from memjax.training.stages import STREAM
from tools.bench import worker

KINDS = ("plain", "kept", "replay", "oml", "anml", "maml")
EPISODES = {"oml": OML, "anml": ANML, "maml": MAML}


def config_of(kind: str, settings: dict[str, Any]) -> Config:
    """MiniLM, trained plainly, with sparse replay from a memory of every text, or in episodes of which it keeps all."""
    config = load_config("lifelong_text", "encoder")
    assert config.lifelong is not None
    memory = EpisodicMemory(write_policy="all", capacity=settings["capacity"])
    method: Any = Replay(
        memory=memory, mode="sparse", replay_interval=settings["every"], replay_batch_size=settings["replayed"]
    )
    if kind in EPISODES:
        method = EPISODES[kind](memory=memory, replay_interval=0, inner_steps=settings["episode"] - 1)
    if kind == "anml":
        config.model.attention.gate_dim = config.model.dim
    lifelong = dataclasses.replace(config.lifelong, method=Sequential() if kind == "plain" else method)
    data = dataclasses.replace(config.data, batch_size=settings["rows"], segment_length=settings["length"])
    return dataclasses.replace(config, data=data, lifelong=lifelong)


class Updates:
    """One kind of update: of the stream, of the stream with its rows written to the memory, or of replayed rows.

    A step is one of them, or, where `settings["episode"]` says how many batches one reads, as many as an episode has.
    """

    def __init__(self, kind: str, settings: dict[str, Any]):
        self.kind, self.settings = kind, settings
        learner = planned_learner(config_of(kind, settings), settings["vocab"], None)
        self.places = CompiledLearner(None, learner)
        rng = np.random.default_rng(0)
        full: Any = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), learner.batch_shapes[STREAM])
        tokens = rng.integers(1, settings["vocab"], full.inputs.shape, full.inputs.dtype)
        self.batch = dataclasses.replace(full, inputs=tokens, extras={**full.extras, "token_types": 0 * tokens})
        values = self.places.new_variables()
        self.parameters = count_parameters(values["params"])
        self.state = self.places.init(values)
        self.number = settings.get("episode", 1) if kind not in EPISODES else 1
        if kind == "replay":  # as many rows as it draws
            for _ in range(-(-settings["replayed"] // settings["rows"])):
                self.state, _ = self.places.update_inlined(self.state, (STREAM, self.batch))
        self.prepare("train")

    def describe(self) -> dict[str, Any]:
        rows = self.settings["replayed" if self.kind == "replay" else "rows"]
        return {
            "parameters": self.parameters,
            "tokens_per_step": rows * self.settings["length"] * self.settings.get("episode", 1),
            "versions": worker.versions_of("jax", "jaxlib", "flax", "optax"),
            "settings": self.settings,
        }

    def prepare(self, mode: str) -> None:
        jax.block_until_ready(jax.tree.map(jnp.asarray, self.batch))

    def step(self, mode: str) -> None:
        update = ("replay", None) if self.kind == "replay" else (STREAM, self.batch)
        for _ in range(self.number):
            self.state, _ = self.places.update_inlined(self.state, update)
        jax.block_until_ready(self.state)


def main(argv: list[str] | None = None) -> int:
    """Serves one kind of update."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.updates", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("settings", help="JSON object")
    arguments = parser.parse_args(argv)
    keep_freed_memory()  # as commands do
    return worker.serve(lambda: Updates(arguments.kind, json.loads(arguments.settings)))


if __name__ == "__main__":
    sys.exit(main())
