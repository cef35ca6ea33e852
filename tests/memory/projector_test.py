"""Every projector works with every memory: the laws ask it of rotary attention, and shapes of all pairs."""

from collections.abc import Callable
from typing import Any

import pytest

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
