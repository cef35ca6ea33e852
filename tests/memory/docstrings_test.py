"""Every memory says what its `y` is, and shows a call: `tests/doctest_test.py` runs it."""

import inspect
import re

import pytest

from memjax import memory
from memjax.memory import (
    CrossMemory,
    HiddenStateAttention,
    LayerMemory,
    LinearCrossAttention,
    Memory,
    OutputMemory,
    ProjectedAttention,
    StackMemory,
    StatelessMemory,
)
from memjax.memory.layer_parts import Residual

FACES = (Memory, LayerMemory, StackMemory, CrossMemory, OutputMemory, StatelessMemory)
FACES += (ProjectedAttention, HiddenStateAttention)
CLASSES = [
    value
    for value in vars(memory).values()
    if inspect.isclass(value) and issubclass(value, Memory) and value not in FACES
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_y_is_and_an_example(cls):
    text = " ".join(inspect.cleandoc(cls.__doc__).split())
    (sentence,) = re.findall(
        r"`y` is [^:]*, (with the residual[^:]* with the norm|with\S* the residual and without a norm)", text
    )
    owns_both = issubclass(cls, Residual | StackMemory | LinearCrossAttention)
    assert owns_both == sentence.endswith("with the norm")
    assert f"{cls.__name__}(" in text.partition(" Example: >>> ")[2]


def test_all_memories_are_there():
    assert len(CLASSES) == 21
