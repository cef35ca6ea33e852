"""Attention parts of a Memorizing Transformer from flat fields."""

import dataclasses
from typing import Any

from memjax import config
from memjax.memory.bucket_projector import BucketProjector
from memjax.memory.memorizing import MemorizingAttention

SETTINGS = {field.name for field in dataclasses.fields(config.Memorizing)}
PROJECTOR = {field.name for field in dataclasses.fields(BucketProjector)}


def memorizing_part(**fields: Any) -> MemorizingAttention:
    """The part with fields of `MemorizingAttention` and `BucketProjector`, or of the settings `config.Memorizing`."""
    given: dict[str, Any] = {"memory_length": 0, "cache_length": 0} | fields
    part = config.Memorizing(**{name: value for name, value in given.items() if name in SETTINGS})
    part = part.resolve(has_memory=part.memory_length > 0)
    given |= {name: getattr(part, name) for name in SETTINGS - {"layers_with_memory", "compatibility"}}
    given.pop("compatibility", None)
    given |= {"sees_itself": part.sees_itself, "empty_memory": part.empty_memory}
    projector = BucketProjector(**{name: given.pop(name) for name in PROJECTOR if name in given})
    return MemorizingAttention(**{"projector": projector} | given)
