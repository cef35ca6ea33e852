"""Every projector works with every memory: the laws ask it of a host that is written here, and shapes of all pairs."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from memjax.axes import named
from memjax.memory.bucket_projector import BucketProjector
from memjax.memory.gpt2 import GPT2Projector
from memjax.memory.projector import Projector, key_places
from memjax.memory.transformer_xl import TransformerXLProjector
from tests.contract.cases import compressed_segments, compressive, infinity_former, memorizing, transformer_xl
from tests.contract.harness import Case, Run
from tests.contract.laws import LAWS


@dataclasses.dataclass(frozen=True)
class RotaryProjector(Projector):
    """Llama's attention in small: no biases, positions that turn queries and keys, and one key head for two heads."""

    def declare(self, part: nn.Module, prefixes: tuple[str, ...] = ()) -> dict[str, jax.Array]:
        init, heads, head_dim = nn.initializers.lecun_normal(), part.num_heads, part.head_dim
        key_value = named(init, "embed", None, "heads", None)
        return {
            "query": part.param("query", named(init, "embed", "heads", None), (part.dim, heads, head_dim)),
            "key_value": part.param("key_value", key_value, (part.dim, 2, heads // 2, head_dim)),
            "output": part.param("output", named(init, "heads", None, "embed"), (heads, head_dim, part.dim)),
        }

    def num_key_heads(self, num_heads: int) -> int:
        return num_heads // 2

    def place(self, weights, queries, keys, runs, *, position=None, drop=None):
        places = jnp.asarray(key_places(runs, keys.shape[1]))[None]
        here = places[:, -queries.shape[1] :] if position is None else (position + runs[-1][1])[:, None]
        return turn(queries, here), turn(keys, places), None


def turn(x: jax.Array, places: jax.Array) -> jax.Array:
    """Turns pairs of entries by angles that grow with the place, `[#batch, length]`."""
    half = x.shape[-1] // 2
    speed = 100.0 ** -(jnp.arange(half) / half)
    angles = (places[..., None, None] * speed[None, None, None]).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1)


def beside(make: Callable[..., Any], **fields: Any) -> Callable[[Projector], Callable[[Any], Any]]:
    """`projector -> dtype -> part` of a memory."""
    return lambda projector: lambda dtype: make(**fields)(dtype).clone(projector=projector)


MEMORIES = {
    "cache": (beside(transformer_xl, norm="pre"), {"slots": {"hidden": 1}}),
    "compressive": (beside(compressive), {"slots": {"hidden": 1, "compressed": 1}}),
    "compressed_segments": (beside(compressed_segments), {"slots": {"slots": 1}, "fixed_length": True}),
    "signal": (beside(infinity_former, memory_length=4), {"slots": {"coefficients": 1}, "fixed_length": True}),
    "ring": (beside(memorizing, cache_length=4), {"slots": {"cache/keys": 1, "memory/keys": 2}}),
    "ring_joint": (beside(memorizing, merge="joint", retrieval="threshold"), {"slots": {"memory/keys": 2}}),
}
HOSTS = [RotaryProjector(), TransformerXLProjector(), GPT2Projector(), BucketProjector(num_buckets=4, max_distance=6)]


def check(law: str, memory: str, projector: Projector) -> None:
    make, facts = MEMORIES[memory]
    run = Run(Case(name=memory, make=make(projector), **facts), as_users=False)
    LAWS[law](run)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_host_of_ones_own_decodes_with_every_memory(memory):
    check("decode", memory, RotaryProjector())


@pytest.mark.laws
@pytest.mark.parametrize("law", ("reset", "causality", "gradient_policy", "use"))
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_host_of_ones_own_keeps_the_laws_of_every_memory(memory, law):
    check(law, memory, RotaryProjector())


@pytest.mark.laws
@pytest.mark.parametrize("projector", HOSTS, ids=lambda projector: type(projector).__name__)
@pytest.mark.parametrize("memory", MEMORIES)
def test_every_host_works_with_every_memory(memory, projector):
    check("shape", memory, projector)
