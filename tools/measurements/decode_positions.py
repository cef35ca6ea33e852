"""Times a decoded token far into a document: after 1, 4 and 16 times as many tokens as the memory holds.

    python -m tools.measurements.decode_positions [--repeats 9]

Everything runs in one process. Every memory decodes up to each position once. From the states there the same program
then decodes whole segments, in turns over memories and positions.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from memjax import config
from memjax.models.factory import make_language_model
from memjax.training.train_state import init_variables
from tools.bench.harness import speed_ratio
from tools.measurements.decode_speed import BATCH, BEGIN, VOCAB, decode_step
from tools.results import pages
from tools.results.ledger import measured, together

MEMORY, SEGMENT, TOKENS = 256, 64, 256
TIMES = (1, 4, 16)
SIZES: dict[str, Any] = {"dim": 256, "num_layers": 4, "num_heads": 4, "scan_layers": False}
MEMORIES: dict[str, config.Attention] = {
    "Transformer-XL": config.TransformerXL(memory_length=MEMORY),
    "Compressive": config.Compressive(memory_length=MEMORY // 2, compressed_memory_length=MEMORY // 2),
    "Memorizing": config.Memorizing(layers_with_memory=(-2,), memory_length=MEMORY, cache_length=SEGMENT),
    "infinity-former": config.InfinityFormer(memory_length=MEMORY),
    "rotary": config.Rotary(memory_length=MEMORY),
}


class Decoder:
    """A model of one memory with random parameters, and its states after several numbers of tokens."""

    def __init__(self, attention: config.Attention, sizes: dict[str, Any] = SIZES, times: tuple[int, ...] = TIMES):
        settings = config.Model(**sizes, attention=attention)
        self.model = make_language_model(settings, VOCAB, segment_length=SEGMENT)
        self.variables = init_variables(self.model, jax.random.key(0), SEGMENT)
        self.run = jax.jit(functools.partial(_decode_from, self.model))
        start = self.model.init_decode_state(self.model.init_state(BATCH), SEGMENT, BATCH)
        carry, self.carries, read = (start, jnp.full((BATCH, 1), BEGIN, jnp.int32)), {}, 0
        for number in times:
            carry = self.run(self.variables, carry, jnp.asarray(number * MEMORY - read))
            self.carries[number], read = carry, number * MEMORY

    def seconds(self, times: int) -> float:
        """Returns the wall seconds of `TOKENS` tokens, after `times` as many tokens as the memory holds."""
        begin = time.perf_counter()
        jax.block_until_ready(self.run(self.variables, self.carries[times], jnp.asarray(TOKENS)))
        return time.perf_counter() - begin


def _decode_from(model: Any, variables: Any, carry: Any, count: Any) -> Any:
    return jax.lax.fori_loop(0, count, lambda _, carry: decode_step(model, variables, *carry), carry)


def measure(repeats: int) -> list[dict[str, Any]]:
    """Measures every memory from every position, in turns, and returns a record for each."""
    decoders = {name: Decoder(attention) for name, attention in MEMORIES.items()}
    seconds: dict[tuple[str, int], list[float]] = {(name, times): [] for name in decoders for times in TIMES}
    for name, times in seconds:
        decoders[name].seconds(times)
    for _ in range(repeats):
        for name, times in seconds:
            seconds[name, times].append(decoders[name].seconds(times))
    return [
        {
            "memory": name,
            "times": times,
            "seconds": values,
            "times_the_first": speed_ratio(seconds[name, TIMES[0]], values),
        }
        for (name, times), values in seconds.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(arguments)
    facts = {**together(measure(options.repeats)), "memory_length": MEMORY, "tokens": TOKENS, "jax": jax.__version__}
    about = (
        f"{SIZES['num_layers']} layers, {SIZES['dim']} wide, memories of {MEMORY} tokens, segments of {SEGMENT}, one "
        f"row: {TOKENS} tokens from the state after 1, 4 and 16 times as many tokens as the memory holds, in turns. "
        "Milliseconds a token: median of the turns; how many times as long as at the first position (95 % interval)."
    )
    command = f"python -m tools.measurements.decode_positions --repeats {options.repeats}"
    title = "A token far into a document"
    pages.record(measured("decode_positions", "memories", facts, command=command, title=title, about=about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
