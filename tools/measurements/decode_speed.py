"""Measures tokens per second of decoding with linear states and with a cache of keys and values, at growing lengths.

    python -m tools.measurements.decode_speed [--lengths 64 128 256 512 1024 2048 4096] [--repeats 5]

Everything runs in one process with one model size. A measurement decodes the whole length from an empty state in one
compiled loop, and every token is the most probable one. Contenders and lengths alternate. A number is the median of the
repeats, with the smallest and the largest. A linear state has one program for all lengths. The cache of softmax
attention is as long as the decoded text.
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
from memjax.training.costs import count_flops
from memjax.training.metrics import count_bytes
from memjax.training.train_state import init_variables
from tools.results import pages
from tools.results.ledger import measured, together

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
SIZES = {"dim": 256, "num_layers": 4, "num_heads": 4, "positions": "sinusoids", "scan_layers": False}
VOCAB, BATCH = 256, 1
BEGIN = 1
TITLE = "Decoding with linear states and with a cache of keys and values"

CONTENDERS: dict[str, config.Attention] = {
    "softmax": config.FullAttention(query_key_norm=False, num_buckets=0),
    "Linear Transformer": config.LinearTransformer(),
    "RFA": config.RFA(),
    "T2R": config.T2R(fold_features=True),
    "MemSizer": config.MemSizer(),
}


class Decoder:
    """A model with the attention of one contender and random parameters."""

    def __init__(self, attention: config.Attention, **sizes: Any):
        """Makes the model. `sizes` replace some of `SIZES`."""
        self.model = make_language_model(config.Model(**{**SIZES, **sizes}, attention=attention), VOCAB)
        self.variables = init_variables(self.model, jax.random.key(0), 2)
        self.constant = isinstance(attention, config.LinearTransformer)
        self.run = jax.jit(functools.partial(_decode, self.model))

    def start(self, length: int) -> Any:
        """Returns the state before the first of `length` tokens."""
        return self.model.init_decode_state(self.model.init_state(BATCH), 1 if self.constant else length, BATCH)

    def state_bytes(self, length: int) -> int:
        """Returns the bytes of the decode state of one row."""
        return count_bytes(jax.eval_shape(lambda: self.start(length))) // BATCH

    def flops_per_token(self, length: int) -> int:
        """Counts the operations in the matrix products of one token."""
        state, token = self.start(length), jnp.zeros((BATCH, 1), jnp.int32)
        return count_flops(functools.partial(decode_step, self.model), self.variables, state, token) // BATCH

    def seconds(self, length: int) -> float:
        """Returns the wall seconds of decoding `length` tokens."""
        state = self.start(length)
        jax.block_until_ready(state)
        begin = time.perf_counter()
        jax.block_until_ready(self.run(self.variables, state, jnp.asarray(length)))
        return time.perf_counter() - begin


def decode_step(model: Any, variables: Any, state: Any, token: Any) -> tuple[Any, Any]:
    """Reads a token, and returns the new state and the most probable next token."""
    active = jnp.ones(token.shape[0], bool)
    hidden, state = model.apply(variables, token, state, active=active, method="decode")
    log_probs = model.apply(variables, hidden, method="log_probs")
    return state, jnp.argmax(log_probs, axis=-1).astype(jnp.int32)


def _decode(model: Any, variables: Any, state: Any, count: Any) -> Any:
    body = lambda _, carry: decode_step(model, variables, *carry)
    return jax.lax.fori_loop(0, count, body, (state, jnp.full((BATCH, 1), BEGIN, jnp.int32)))


def measure(lengths: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Measures every contender at every length, in alternation, and returns a record for each."""
    decoders = {name: Decoder(attention) for name, attention in CONTENDERS.items()}
    rates: dict[tuple[str, int], list[float]] = {(name, n): [] for name in decoders for n in lengths}
    for decoder in decoders.values():
        for length in lengths:
            decoder.seconds(length)  # compiles
    for _ in range(repeats):
        for name, length in rates:
            rates[name, length].append(length / decoders[name].seconds(length))
    return [
        {
            "contender": name,
            "length": length,
            "tokens_per_second": values,
            "state_bytes": decoders[name].state_bytes(length),
            "flops_per_token": decoders[name].flops_per_token(length),
            "programs": decoders[name].run._cache_size(),
        }
        for (name, length), values in rates.items()
    ]


def _about(args: argparse.Namespace) -> str:
    return (
        f"{SIZES['num_layers']} layers, {SIZES['dim']} wide, {SIZES['num_heads']} heads, {VOCAB} ids, one row, random "
        "parameters. Tokens per second of decoding a text of the given length from an empty state: median of "
        f"{args.repeats} alternating repeats (smallest to largest). State bytes of a row; operations in products for "
        "one token; compiled programs."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(arguments)
    rows = measure(tuple(args.lengths), args.repeats)
    facts = {**together(rows), "jax": jax.__version__, "sizes": SIZES, "batch": BATCH}
    lengths = " ".join(map(str, args.lengths))
    command = f"python -m tools.measurements.decode_speed --lengths {lengths} --repeats {args.repeats}"
    pages.record(measured("decode_speed", "linear_states", facts, command=command, title=TITLE, about=_about(args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
