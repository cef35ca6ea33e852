"""Every projector works with every memory: the laws ask it of rotary attention, and shapes of all pairs."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.positions import relative_distances
from memjax.memory.bucket_projector import BucketProjector
from memjax.memory.gpt2 import GPT2Projector
from memjax.memory.projector import Projector
from memjax.memory.rotary_projector import RotaryProjector
from memjax.memory.transformer_xl import TransformerXLProjector
from tests.contract.cases import compressed_segments, compressive, infinity_former, memorizing, transformer_xl
from tests.contract.harness import Case, Run
from tests.contract.laws import LAWS


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
GROUPED = RotaryProjector(key_heads=1, frequencies=(1.0, 0.1))
HOSTS = [GROUPED, TransformerXLProjector(), GPT2Projector(), BucketProjector(num_buckets=4, max_distance=6)]


def check(law: str, memory: str, projector: Projector) -> None:
    make, facts = MEMORIES[memory]
    run = Run(Case(name=memory, make=make(projector), **facts), as_users=False)
    LAWS[law](run)


@pytest.mark.parametrize("memory", MEMORIES)
def test_rotary_attention_decodes_with_every_memory(memory):
    check("decode", memory, GROUPED)


@pytest.mark.laws
@pytest.mark.parametrize("law", ("reset", "causality", "gradient_policy", "use"))
@pytest.mark.parametrize("memory", MEMORIES)
def test_rotary_attention_keeps_the_laws_of_every_memory(memory, law):
    check(law, memory, GROUPED)


@pytest.mark.laws
@pytest.mark.parametrize("projector", HOSTS, ids=lambda projector: type(projector).__name__)
@pytest.mark.parametrize("memory", MEMORIES)
def test_every_host_works_with_every_memory(memory, projector):
    check("shape", memory, projector)


@pytest.mark.parametrize("fields", [{}, {"query_key_norm": False}, {"query_key_norm": False, "bias_scaling": "always"}])
def test_biases_by_distance_are_those_of_the_places(fields):
    projector = BucketProjector(num_buckets=6, max_distance=9, **fields)
    random = np.random.default_rng(0)
    weights = {"position_bias": jnp.asarray(random.normal(size=(2, 6))), "scale": jnp.asarray([-2.0, 3.0])}
    queries, keys = jnp.zeros((1, 4, 2, 8)), jnp.zeros((1, 20, 2, 8))
    bias = projector.place(weights, queries, keys, (("", 16),))[2]
    by_distance = projector.distance_bias(weights, 8)
    assert bias is not None and by_distance is not None
    assert by_distance.shape == (2, 10)
    np.testing.assert_allclose(bias[0], by_distance[:, np.clip(relative_distances(4, 20), 0, 9)], rtol=1e-6)
    assert BucketProjector(num_buckets=0).distance_bias({}, 8) is None
