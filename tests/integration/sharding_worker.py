"""What several devices do: run in a process of its own with eight virtual ones, prints one JSON object."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memjax import config as configs
from memjax.axes import RULES, SLOT_SHARDED, parameter_names
from memjax.models.factory import make_language_model
from memjax.training.metrics import count_bytes
from memjax.training.objective import Objective, model_loss
from memjax.training.run_start import train
from memjax.training.sharding import Layout, make_mesh, put
from memjax.training.step import make_train_step
from memjax.training.train_state import init_train_state, init_variables
from memjax.typing import Batch
from tests.reference.parameters import as_float64

MESHES = ((8, 1, 1), (1, 8, 1), (4, 2, 1), (2, 2, 2), (1, 1, 8))
ROWS, LENGTH, VOCAB, STEPS = 8, 4, 125, 20  # tables of 128 rows
ATTENTION = {
    "memorizing": configs.Memorizing(layers_with_memory=(1,), memory_length=16, num_neighbors=3, cache_length=4),
    "transformer_xl": configs.TransformerXL(memory_length=8, norm="pre"),
    "compressive": configs.Compressive(
        memory_length=8, compressed_memory_length=4, compression_rate=2, norm="pre", tied_biases=True
    ),
    "rotary": configs.Rotary(memory_length=8, key_heads=4, query_key_norm="head"),
    "rotary_slots": configs.Rotary(memory_length=8, key_heads=4, bias=True, sinks=2, same_length=True),
}
SPLIT_BY = {"rotary_slots": SLOT_SHARDED}
"""rules of a memory that are not those of heads"""


def make_model(attention: configs.Attention, dim: int = 16) -> configs.Model:
    return configs.Model(dim=dim, num_layers=2, num_heads=8, head_dim=8, attention=attention, scan_layers=False)


def batches(steps: int) -> list[Batch]:
    """Random rows; documents begin now and then."""
    rng = np.random.default_rng(0)
    made = []
    for step in range(steps):
        ids = rng.integers(0, VOCAB, (1, ROWS, LENGTH + 1)).astype(np.int32)
        shape = (1, ROWS, LENGTH)
        start = np.full((1, ROWS), step == 0) | (rng.random((1, ROWS)) < 0.1)
        ones = np.ones(shape, np.float32)
        made.append(Batch(ids[..., :-1], ids[..., 1:], np.ones(shape, bool), ones, start, {}))
    return made


class Run:
    """One model, in float64 (the choice of neighbours is not continuous), on a mesh or without one."""

    def __init__(
        self, attention: configs.Attention, shape: tuple[int, int, int] | None, dim: int = 16, rules: Any = RULES
    ):
        model = as_float64(make_language_model(make_model(attention, dim), VOCAB, vocab_multiple=128))
        objective = Objective(model_loss(model), attention.auxiliary_loss_weights())
        optimizer, example = optax.adam(1e-2), batches(1)[0]

        def variables():
            made = init_variables(model, jax.random.key(0), LENGTH)
            return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float64)), made)

        def fresh():
            memory = model.init_state(ROWS, jnp.float64)
            return init_train_state(objective, optimizer, variables(), memory, example, jax.random.key(1))

        self.traces = 0
        plain = make_train_step(objective, optimizer, jit=False)

        def step(state, batch):
            self.traces += 1
            return plain(state, batch)

        self.layout = Layout(make_mesh(shape), rules) if shape else None
        if self.layout is None:
            self.state, self.step = jax.jit(fresh)(), jax.jit(step, donate_argnums=0)
            return
        shapes = jax.eval_shape(fresh)
        names = parameter_names(lambda: init_variables(model, jax.random.key(0), LENGTH))
        self.shardings, self.batch = self.layout.train_state(shapes, names), self.layout.batch(example)
        with self.layout.active():
            self.state = jax.jit(fresh, out_shardings=self.shardings)()
        self.step = jax.jit(
            step,
            donate_argnums=0,
            in_shardings=(self.shardings, self.batch),
            out_shardings=(self.shardings, self.layout.replicated),
        )

    def place(self, batch: Batch):
        return put(batch, self.batch) if self.layout else batch

    def train(self, steps: int):
        for batch in batches(steps):
            if self.layout is None:
                self.state, _ = self.step(self.state, batch)
            else:
                with self.layout.active():
                    self.state, _ = self.step(self.state, self.place(batch))
        return self

    def compiled(self):
        batch = batches(1)[0]
        if self.layout is None:
            return self.step.lower(self.state, batch).compile()
        with self.layout.active():
            return self.step.lower(self.state, self.place(batch)).compile()


def difference(a, b) -> float:
    """Largest difference of two trees of arrays, relative to the largest entry of each."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        worst = max(worst, float(np.max(np.abs(x - y)) / max(np.max(np.abs(y)), 1e-12)))
    return worst


def compare(attention: str) -> dict:
    reference = Run(ATTENTION[attention], None).train(STEPS).state
    found = {}
    for shape in MESHES:
        run = Run(ATTENTION[attention], shape, rules=SPLIT_BY.get(attention, RULES)).train(STEPS)
        state = run.state
        kept = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), state, run.shardings)
        found[str(shape)] = {
            "params": difference(state.params, reference.params),
            "moments": difference(state.opt_state, reference.opt_state),
            "memory": difference(state.memory, reference.memory),
            "nll": difference(state.totals["nll"].total, reference.totals["nll"].total),
            "sharding_kept": all(jax.tree.leaves(kept)),
            "traces": run.traces,
            "parts": sorted({str(x.addressable_shards[0].data.shape) for x in jax.tree.leaves(state.memory)}),
        }
    return found


def shares(attention: str) -> dict:
    """FLOPs and state bytes of one of eight devices, relative to a run on one device."""
    part_of_model = ATTENTION[attention]
    if isinstance(part_of_model, configs.Memorizing):  # one device searches in a loop, whose body is counted once
        part_of_model = dataclasses.replace(part_of_model, retrieval="threshold")
    whole, part = Run(part_of_model, None, dim=128), Run(part_of_model, (1, 8, 1), dim=128)
    flops = [run.compiled().cost_analysis()["flops"] for run in (whole, part)]
    device = jax.devices()[0]
    local = [
        shard.data.nbytes
        for leaf in jax.tree.leaves((part.state.params, part.state.opt_state, part.state.memory))
        for shard in leaf.addressable_shards
        if shard.device == device
    ]
    state = count_bytes((whole.state.params, whole.state.opt_state, whole.state.memory))
    return {"flops": flops[1] / flops[0], "state": sum(local) / state}


def trained(workdir: Path) -> dict:
    """`train` on one mesh, interrupted, and gone on with on another; without an interruption it is the same."""
    source = configs.KeyValueRecall(num_documents=32, filler_length=8, num_pairs=2)
    model = make_model(configs.Memorizing(layers_with_memory=(1,), memory_length=16, num_neighbors=4, cache_length=8))
    training = configs.Training(steps=6, log_every=1, checkpoint_every=3)

    def run(name: str, hooks=(), **sharding: int):
        config = configs.Config(
            name=name,
            workdir=str(workdir),
            model=model,
            data=configs.Data(source=source, batch_size=8, segment_length=8),
            training=training,
            evaluation=configs.Evaluation(batch_size=8),
            sharding=configs.Sharding(**sharding),
        )
        return train(config, hooks=hooks, on_event=lambda event: None).results

    def stop(info):
        if info.step == 5:
            raise KeyboardInterrupt

    whole = run("whole", fsdp=4, model=2)
    with contextlib.suppress(KeyboardInterrupt):
        run("resumed", [stop], fsdp=2, model=4)
    resumed = run("resumed", fsdp=8)
    lines = [json.loads(line) for line in (workdir / "resumed" / "metrics.jsonl").read_text().splitlines()]
    return {
        "nats": [found["evaluation"]["nats"] for found in (whole, resumed)],
        "targets": whole["evaluation"]["targets"],
        "parameters": [found["parameters"] for found in (whole, resumed)],
        "logged": [line["step"] for line in lines if line["kind"] == "train"],
    }


if __name__ == "__main__":
    found = {name: {"meshes": compare(name), "shares": shares(name)} for name in ATTENTION}
    found["train"] = trained(Path(sys.argv[1]))
    print(json.dumps(found))
