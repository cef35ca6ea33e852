"""The memjax side: serves one memjax model as a contender.

.venv/bin/python -m tools.bench.models transformer_xl '{"memory_length": 512}'
"""

import argparse
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.allocation import keep_freed_memory
from memjax.inference import Sampling, generate
from memjax.models.factory import make_model
from memjax.training.metrics import count_parameters
from memjax.training.train_state import init_variables
from memjax.training.update_functions import make_update_functions
from memjax.typing import Batch
from tools.bench import worker

LEARNING_RATE = 1e-4
POOL = 16  # different segments of random tokens that the steps cycle through


def _described(model: config.ModelBase, settings: dict[str, Any]) -> config.Config:
    return config.Config(model=model, data=config.Data(segment_length=settings["length"]))


def model_config(kind: str, settings: dict[str, Any]) -> config.ModelBase:
    """The configuration that corresponds to a suite's settings."""
    if kind == "memformer":
        names = ("dim", "encoder_layers", "num_slots")
        return config.Memformer(
            **{name: settings[name] for name in names},
            num_layers=settings["layers"],
            num_heads=settings["heads"],
            scan_layers=settings.get("scan_layers", False),
            feed_forward=_feed_forward(kind, settings),
        )
    if kind == "transformer_xl":
        # Post-norm, u and v per layer, tied embeddings with an output bias: what the peer computes.
        attention = config.TransformerXL(memory_length=settings["memory_length"])
        output = config.Softmax(tied=True, bias=True)
    elif kind == "compressive":
        # What the peer computes: norms before the parts, memories of normed inputs, one row of positions.
        attention = config.Compressive(
            memory_length=settings["memory_length"],
            compressed_memory_length=settings["compressed_memory_length"],
            compression_rate=settings["compression_rate"],
            compressed_positions="contiguous",
            norm="pre_sonnet",
            final_norm=False,
        )
        output = config.Softmax(tied=False, bias=True)
    elif kind == "gpt2":
        attention = config.GPT2(num_positions=settings["positions"])
        output = config.Softmax(tied=True, bias=False)
    elif kind in ("product_key", "encoder"):
        attention = config.FullAttention(query_key_norm=False)
        output = config.Softmax(tied=False, bias=True)
    else:
        attention = config.Memorizing(
            layers_with_memory=(settings["memory_layer"],),
            memory_length=settings["memory_length"],
            num_neighbors=settings["num_neighbors"],
            cache_length=settings["window"],
            retrieval=settings.get("retrieval", "exact"),
        )
        output = config.Softmax(tied=False, bias=True)
    return config.Model(
        dim=settings["dim"],
        num_layers=settings["layers"],
        num_heads=settings["heads"],
        head_dim=settings["head_dim"],
        scale_embeddings=kind != "gpt2",
        scan_layers=settings.get("scan_layers", False),
        attention=attention,
        feed_forward=_feed_forward(kind, settings),
        output=output,
    )


def _feed_forward(kind: str, settings: dict[str, Any]) -> config.FeedForward:
    shared = {"dim": settings["feed_forward"], "activation": settings.get("activation", "relu")}
    if kind != "product_key":
        return config.Dense(**shared)
    return config.ProductKey(
        **shared,
        layers=(settings["memory_layer"],),
        num_keys=settings["num_keys"],
        memory_heads=settings["memory_heads"],
        num_neighbors=settings["num_neighbors"],
        key_dim=settings["key_dim"],
        query_norm="layer",
    )


def _training(settings: dict[str, Any]) -> config.Training:
    """Adam at a constant rate, without clipping: what the peers do."""
    return config.Training(
        schedule=config.Schedule(learning_rate=LEARNING_RATE, warmup_steps=0, decay="constant"),
        value_table_optimizer=config.TableAdam(learning_rate=LEARNING_RATE),
        clip_norm=0.0,
        remat=settings.get("rematerialize", "none"),
    )


class Model:
    """One memjax language model: the training step of the library, and a jitted forward pass with its memory."""

    def __init__(self, kind: str, settings: dict[str, Any]):
        self.settings = settings
        batch, length = settings["batch"], settings["length"]
        model = model_config(kind, settings)
        self.model = make_model(_described(model, settings), settings["vocab"], vocab_multiple=1)
        variables = init_variables(self.model, jax.random.key(0), length)
        self.parameters = count_parameters([variables["params"], variables.get("tables", ())])
        shape = (POOL, batch, settings.get("segments", 1) * length + 1)
        self.pool = np.random.default_rng(0).integers(1, settings["vocab"], shape, np.int32)
        self.turn = 0
        state = self._filled(variables)
        self.prepare("train")
        parts = make_update_functions(config.Config(model=model, training=_training(settings)), self.model)
        self.state = parts.init(variables, state, self.batch, jax.random.key(1))
        self.train_step = jax.jit(parts.step, donate_argnums=0)
        # Parameters of its own: a training step donates its state.
        self.variables = jax.tree.map(jnp.copy, variables)
        self.memory = jax.tree.map(jnp.copy, state)
        self.infer_step = jax.jit(self._infer, donate_argnums=1)

    def _filled(self, variables: Any) -> Any:
        """The memory after a document that is longer than it, as the peers have it: no slot is empty."""
        read = jax.jit(lambda *arguments: self._infer(*arguments)[1], donate_argnums=1)
        state = self.model.init_state(self.settings["batch"])
        for _ in range(worker.steps_to_fill(self.settings)):
            self.prepare("infer")
            state = read(variables, state, self.batch.inputs, self.batch.start_of_document)
        return state

    def _infer(self, variables: Any, state: Any, segments: Any, starts: Any) -> Any:
        log_probs = []
        for tokens, start in zip(segments, starts, strict=True):
            hidden, state, _ = self.model.apply(variables, tokens, state, start_of_document=start)
            log_probs.append(self.model.apply(variables, hidden, method="log_probs"))
        return log_probs, state

    def describe(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "tokens_per_step": self.pool[0, :, 1:].size,
            "versions": worker.versions_of("jax", "jaxlib", "flax", "optax"),
            "settings": self.settings,
        }

    def prepare(self, mode: str) -> None:
        segment = self.pool[self.turn % POOL]
        self.turn += 1
        cut = lambda tokens: tokens.reshape(len(tokens), -1, self.settings["length"]).swapaxes(0, 1)
        inputs, targets = cut(segment[:, :-1]), cut(segment[:, 1:])
        self.batch = Batch(
            inputs=jnp.asarray(inputs),
            targets=jnp.asarray(targets),
            mask=jnp.ones(inputs.shape, bool),
            weights=jnp.ones(inputs.shape, jnp.float32),
            start_of_document=jnp.zeros(inputs.shape[:2], bool),
            extras={},
        )
        jax.block_until_ready(self.batch)

    def step(self, mode: str) -> None:
        if mode == "train":
            self.state, _ = self.train_step(self.state, self.batch)
            jax.block_until_ready(self.state)
        else:
            tokens, starts = self.batch.inputs, self.batch.start_of_document
            log_probs, self.memory = self.infer_step(self.variables, self.memory, tokens, starts)
            jax.block_until_ready((log_probs, self.memory))


class Decoder:
    """One memjax language model that continues its first tokens greedily, a segment at a time."""

    def __init__(self, kind: str, settings: dict[str, Any]):
        self.settings, self.turn = settings, 0
        described = model_config(kind, settings)
        self.model = make_model(_described(described, settings), settings["vocab"], vocab_multiple=1)
        self.variables = init_variables(self.model, jax.random.key(0), settings["length"])
        self.pool = np.random.default_rng(0).integers(1, settings["vocab"], (POOL, settings["batch"], 1), np.int32)

    def describe(self) -> dict[str, Any]:
        return {
            "parameters": count_parameters([self.variables["params"]]),
            "tokens_per_step": self.settings["batch"] * self.settings["length"],
            "versions": worker.versions_of("jax", "jaxlib", "flax"),
            "settings": self.settings,
        }

    def prepare(self, mode: str) -> None:
        self.prompts = self.pool[self.turn % POOL].tolist()
        self.turn += 1

    def step(self, mode: str) -> None:
        length = self.settings["length"]
        generate(
            *(self.model, self.variables, self.prompts),
            segment_length=length,
            max_tokens=length,
            sampling=Sampling(temperature=0.0),
            block=length,
        )


KINDS = ("transformer_xl", "compressive", "memorizing", "product_key", "memformer", "gpt2", "encoder")


def make_contender(kind: str, settings: dict[str, Any]) -> Model | Decoder:
    """The model of the given kind and settings."""
    return (Decoder if settings.get("greedy") else Model)(kind, settings)


def main(argv: list[str] | None = None) -> int:
    """Serves the model of the given kind and settings."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.models", description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("settings", help="JSON object")
    arguments = parser.parse_args(argv)
    keep_freed_memory()  # as commands do
    return worker.serve(lambda: make_contender(arguments.kind, json.loads(arguments.settings)))


if __name__ == "__main__":
    sys.exit(main())
