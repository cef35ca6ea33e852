"""Time of a training step of adapters in the last layers, with and without stored states of the layers below.

    python -m tools.measurements.adapter_states

Three contenders in one process take turns (a step of A, a step of B, ...), after warm-up: adapters in all layers,
adapters in the last layers of the whole model, and the same adapters above the stored states of the layers below. The
model is a decoder with rotary attention and a head of classes, parameters are fresh, and texts are random tokens. The
ratios of times are printed, with a 95 % interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.models.adapters import count_trained
from memjax.tasks.interface import make_task
from memjax.training.train_state import init_variables
from memjax.training.update_functions import make_update_functions
from tools.bench.harness import speed_ratio
from tools.results import pages
from tools.results.ledger import measured, together

VOCAB = 4096


class Contender:
    """A model with adapters, its training state and its compiled training step."""

    def __init__(self, name: str, first_adapted: int, stored: bool, args: argparse.Namespace):
        self.name, self.seconds = name, []
        attention = configs.Rotary(memory_length=0, key_heads=1)
        feed_forward = configs.Dense(dim=3 * args.dim, activation="swiglu")
        model = configs.Model(
            dim=args.dim, num_layers=args.num_layers, num_heads=2, attention=attention, feed_forward=feed_forward
        )
        model.first_trained_layer = first_adapted if stored else 0
        lora = configs.LoRA(rank=args.rank, layers=tuple(range(first_adapted, args.num_layers)))
        data = configs.Data(segment_length=args.segment_length, batch_size=args.rows)
        task = configs.Classification(num_classes=16)
        config = configs.Config(model=model, data=data, task=task, training=configs.Training(lora=lora))
        module = make_task(config).model(VOCAB)
        functions, rng = make_update_functions(config, module), np.random.default_rng(0)

        def draw(leaf: Any) -> np.ndarray:
            shape = (1, *leaf.shape)
            is_float = np.issubdtype(leaf.dtype, np.floating)
            return np.asarray(rng.normal(size=shape) if is_float else rng.integers(1, 16, shape), leaf.dtype)

        batch = jax.tree.map(draw, module.example(args.rows, args.segment_length))
        ones = {"mask": np.ones_like(batch.mask), "weights": np.ones_like(batch.weights)}
        self.batch = jax.tree.map(jnp.asarray, dataclasses.replace(batch, **ones))

        def fresh() -> Any:
            variables = init_variables(module, jax.random.key(0), args.segment_length)
            return functions.init(variables, module.init_state(args.rows), self.batch, jax.random.key(1))

        self.state = jax.jit(fresh)()
        self.step = jax.jit(functions.step, donate_argnums=0).lower(self.state, self.batch).compile()
        self.trained = count_trained(self.state.params, lora)

    def run(self, record: bool) -> None:
        """Runs one training step, and adds its seconds to `seconds` where `record` is set."""
        start = time.perf_counter()
        self.state, metrics = self.step(self.state, self.batch)
        jax.block_until_ready((metrics, self.state.step))
        if record:
            self.seconds.append(time.perf_counter() - start)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measurements.adapter_states", description=__doc__)
    sizes = {"rounds": 11, "warm": 2, "dim": 128, "num_layers": 30, "last": 6, "rank": 8, "rows": 8}
    for name, default in {**sizes, "segment_length": 64}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--record", default="", metavar="NAME", help="add the rows to the measurements, by this name")
    args = parser.parse_args(arguments)
    last = args.num_layers - args.last
    contenders = [
        Contender(f"adapters in the last {args.last} layers, states stored", last, True, args),
        Contender(f"adapters in the last {args.last} layers", last, False, args),
        Contender("adapters in all layers", 0, False, args),
    ]
    for turn in range(args.warm + args.rounds):
        for contender in contenders:
            contender.run(record=turn >= args.warm)
    rows = []
    for contender in contenders:
        ratio = speed_ratio(contenders[0].seconds, contender.seconds)
        facts = {"trained_parameters": contender.trained, "milliseconds": 1e3 * statistics.median(contender.seconds)}
        facts |= {"times_the_first": ratio["value"], "low": ratio["low"], "high": ratio["high"]}
        rows.append({"what": contender.name, **facts})
        print(rows[-1], flush=True)
    if args.record:
        about = (
            f"Medians of {args.rounds} turns in one process, {args.num_layers} layers of width {args.dim}, adapters of "
            f"rank {args.rank}, {args.rows} rows of {args.segment_length} tokens."
        )
        options = f"--dim {args.dim} --rounds {args.rounds}"
        command = f"python -m tools.measurements.adapter_states {options} --record '{args.record}'"
        title = f"A step of adapters above stored states: {args.record}"
        measurement = measured("adapter_states", args.record, together(rows), command=command, title=title, about=about)
        pages.record(measurement)


if __name__ == "__main__":
    main()
