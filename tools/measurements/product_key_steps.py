"""Times a training step of a model with one product-key memory, against the number of its slots.

    python -m tools.measurements.product_key_steps

Row-sparse Adam runs at every size, and dense Adam where it fits, all in one process. Contenders take turns (a step of
A, a step of B, ...), after warm-up. Documents are random tokens and parameters start fresh, so that nearly every lookup
is of another row, which is the most that a step can touch. Temporary memory is what the compiler plans.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memjax import config as configs
from memjax.models.factory import make_language_model
from memjax.training.objective import Objective, model_loss
from memjax.training.step import make_train_step
from memjax.training.tables import table_adam
from memjax.training.train_state import init_train_state, init_variables
from memjax.typing import Batch
from tools.bench.harness import hardware, speed_ratio
from tools.results import pages
from tools.results.ledger import measured, together

VOCAB = 4096


class Contender:
    """A model with a product-key memory, its training state and its compiled training step."""

    def __init__(self, slots: int, form: str, args: argparse.Namespace):
        self.slots, self.form, self.seconds, self.cpu_seconds = slots, form, [], []
        memory = configs.ProductKey(
            layers=(-2,),
            num_keys=math.isqrt(slots),
            memory_heads=args.memory_heads,
            num_neighbors=args.num_neighbors,
            key_dim=args.key_dim,
        )
        model = configs.Model(dim=args.dim, num_layers=args.num_layers, num_heads=4, feed_forward=memory)
        module = make_language_model(model, VOCAB)
        objective, optimizer = Objective(model_loss(module)), optax.adam(1e-3)
        tables = table_adam(lambda step: 1e-3, form=form)
        self.batch = batch_of(args.rows, args.segment_length)

        def fresh() -> Any:
            variables = init_variables(module, jax.random.key(0), args.segment_length)
            state, key = module.init_state(args.rows), jax.random.key(1)
            return init_train_state(objective, optimizer, variables, state, self.batch, key, table_optimizer=tables)

        step = make_train_step(objective, optimizer, table_optimizer=tables, jit=False)
        self.state = jax.jit(fresh)()
        self.step = jax.jit(step, donate_argnums=0).lower(self.state, self.batch).compile()
        memory_of_step = self.step.memory_analysis()
        self.temporary_bytes = memory_of_step.temp_size_in_bytes
        self.aliased_bytes = memory_of_step.alias_size_in_bytes
        self.table_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.state.tables))

    def run(self, record: bool) -> None:
        """Runs one training step, and adds its seconds and CPU seconds to the lists where `record` is set."""
        start, cpu = time.perf_counter(), time.process_time()
        self.state, metrics = self.step(self.state, self.batch)
        jax.block_until_ready((metrics, self.state.step))
        if record:
            self.seconds.append(time.perf_counter() - start)
            self.cpu_seconds.append(time.process_time() - cpu)


def batch_of(rows: int, length: int) -> Batch:
    """Returns a batch of random tokens, with a leading axis of size 1."""
    ids = np.random.default_rng(0).integers(0, VOCAB, (1, rows, length + 1)).astype(np.int32)
    ones = np.ones((1, rows, length), np.float32)
    batch = Batch(ids[..., :-1], ids[..., 1:], ones > 0, ones, np.ones((1, rows), bool), {})
    return jax.tree.map(jnp.asarray, batch)


def record_of(contender: Contender, smallest: Contender, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the record of a contender, with the ratio of its time to that of the smallest one."""
    ratio = speed_ratio(smallest.seconds, contender.seconds)
    return {
        "slots": contender.slots,
        "form": contender.form,
        "seconds": contender.seconds,
        "cpu_seconds": contender.cpu_seconds,
        "times_the_smallest": ratio,
        "temporary_bytes": contender.temporary_bytes,
        "aliased_bytes": contender.aliased_bytes,
        "table_bytes": contender.table_bytes,
        "settings": {key: value for key, value in vars(args).items() if key not in ("slots", "dense")},
        "machine": hardware(),
        "load": os.getloadavg()[0],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measurements.product_key_steps", description=__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[2**16, 2**18, 2**20, 2**22])
    parser.add_argument("--dense", type=int, nargs="*", default=[2**16, 2**18, 2**20], help="sizes with dense Adam")
    for name, value in {
        "rounds": 11,
        "warm": 2,
        "dim": 128,
        "num_layers": 4,
        "memory_heads": 4,
        "num_neighbors": 32,
        "key_dim": 64,
        "rows": 4,
        "segment_length": 128,
    }.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    args = parser.parse_args(arguments)
    wrong = [slots for slots in (*args.slots, *args.dense) if math.isqrt(slots) ** 2 != slots]
    if wrong:
        parser.error(f"slots: given {wrong[0]}, allowed: squares")
    forms_and_slots = [("lazy", slots) for slots in args.slots] + [("dense", slots) for slots in args.dense]
    contenders = [Contender(slots, form, args) for form, slots in forms_and_slots]
    for turn in range(args.warm + args.rounds):
        for contender in contenders:
            contender.run(record=turn >= args.warm)
    records = [record_of(contender, contenders[0], args) for contender in contenders]
    options = shlex.join(sys.argv[1:] if arguments is None else arguments)
    command = f"python -m tools.measurements.product_key_steps {options}".strip()
    about = (
        "Contenders take turns; median (quartiles) of the rounds; the ratio is to row-sparse Adam at the fewest slots "
        "(95 % interval)."
    )
    facts, title = together(records), "Training step against the number of slots"
    pages.record(measured("product_key_steps", "one_memory", facts, command=command, title=title, about=about))


if __name__ == "__main__":
    main()
