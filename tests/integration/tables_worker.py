"""Value tables on several devices: run in a process of its own with eight virtual ones, prints one JSON object."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memjax import config as configs
from memjax.axes import parameter_names
from memjax.models.factory import make_language_model
from memjax.training.objective import Objective, model_loss
from memjax.training.sharding import Layout, make_mesh, put
from memjax.training.slot_counters import count_usage
from memjax.training.step import make_train_step
from memjax.training.tables import table_adam
from memjax.training.train_state import init_train_state, init_variables
from tests.functional.sharded_cases import collectives
from tests.integration.sharding_worker import LENGTH, ROWS, VOCAB, batches, difference
from tests.reference.parameters import as_float64

STEPS, DIM, KEYS = 4, 16, 16
CASES = {
    "rows (8, 1, 1)": ("rows", (8, 1, 1), "lazy"),
    "rows (2, 2, 2)": ("rows", (2, 2, 2), "lazy"),
    "rows (1, 1, 8)": ("rows", (1, 1, 8), "lazy"),
    "rows (2, 1, 4) dense": ("rows", (2, 1, 4), "dense"),
    "columns (2, 1, 4)": ("columns", (2, 1, 4), "lazy"),
    "columns (4, 1, 2) dense": ("columns", (4, 1, 2), "dense"),
}


class Run:
    """A model with one memory whose norm takes statistics over all rows, in float64."""

    def __init__(self, split: str, shape: tuple[int, int, int] | None, form: str):
        memory = configs.ProductKey(layers=(1,), num_keys=KEYS, memory_heads=2, num_neighbors=3, key_dim=8)
        model = configs.Model(dim=DIM, num_layers=2, num_heads=8, head_dim=8, feed_forward=memory, scan_layers=False)
        module = as_float64(make_language_model(model, VOCAB, table_sharding=split, vocab_multiple=128))
        objective, optimizer, example = Objective(model_loss(module)), optax.sgd(0.1), batches(1)[0]
        tables = count_usage(table_adam(lambda step: 0.05, form=form, split=split))

        def variables():
            made = init_variables(module, jax.random.key(0), LENGTH)
            return jax.tree.map(lambda x: x.astype(jnp.float64), made)

        def fresh():
            state = module.init_state(ROWS, jnp.float64)
            return init_train_state(
                objective, optimizer, variables(), state, example, jax.random.key(1), table_optimizer=tables
            )

        step = make_train_step(objective, optimizer, table_optimizer=tables, jit=False)
        self.layout = Layout(make_mesh(shape)) if shape else None
        if self.layout is None:
            self.state, self.step = jax.jit(fresh)(), jax.jit(step, donate_argnums=0)
            return
        shapes = jax.eval_shape(fresh)
        names = parameter_names(lambda: init_variables(module, jax.random.key(0), LENGTH))
        self.shardings, self.batch = self.layout.train_state(shapes, names), self.layout.batch(example)
        with self.layout.active():
            self.state = jax.jit(fresh, out_shardings=self.shardings)()
        self.step = jax.jit(
            step,
            donate_argnums=0,
            in_shardings=(self.shardings, self.batch),
            out_shardings=(self.shardings, self.layout.replicated),
        )

    def train(self) -> Run:
        for batch in batches(STEPS):
            if self.layout is None:
                self.state, _ = self.step(self.state, batch)
            else:
                with self.layout.active():
                    self.state, _ = self.step(self.state, put(batch, self.batch))
        return self

    def largest_message(self) -> int:
        """Numbers in the largest array that one device sends."""
        with self.layout.active():
            compiled = self.step.lower(self.state, put(batches(1)[0], self.batch)).compile()
        return max((math.prod(shape) for _, shape, _ in collectives(compiled.as_text())), default=0)


def table_of(tree) -> jax.Array:
    return tree["stack"]["layers_1"]["feed_forward"]["memory"]["values"]


def compare(split: str, shape: tuple[int, int, int], form: str, references: dict) -> dict:
    if form not in references:
        references[form] = Run(split, None, form).train().state
    reference, run = references[form], Run(split, shape, form)
    table = table_of(run.state.tables.values)
    parts = {tuple(shard.data.shape) for shard in table.addressable_shards}
    message = run.largest_message()
    state = run.train().state
    kept = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), state.tables, run.shardings.tables)
    usage = [jax.tree.map(np.asarray, s.tables.moments["usage"]) for s in (state, reference)]
    return {
        "params": difference(state.params, reference.params),
        "batch_stats": difference(state.batch_stats, reference.batch_stats),
        "values": difference(state.tables.values, reference.tables.values),
        "moments": difference(state.tables.moments["rule"], reference.tables.moments["rule"]),
        "counts_equal": all(
            np.array_equal(table_of(usage[0][name]), table_of(usage[1][name])) for name in ("lookups", "top")
        ),
        "weights": difference(usage[0]["weights"], usage[1]["weights"]),
        "parts": sorted(parts),
        "message": message,
        "kept": all(jax.tree.leaves(kept)),
    }


if __name__ == "__main__":
    references: dict = {}
    print(json.dumps({name: compare(*case, references) for name, case in CASES.items()}))
