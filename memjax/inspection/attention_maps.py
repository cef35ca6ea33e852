"""What the heads of a model read, as arrays."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from memjax.memory.contract import Absent
from memjax.memory.projections import VISIBLE, WEIGHTS
from memjax.models.contract import Model
from memjax.training.objective import model_collections, read_segment
from memjax.typing import Batch

__all__ = ["AttentionMaps", "attention_maps"]


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """Attention of every layer and head over one segment, whose documents begin in it.

    Attributes:
      weights: those of the keys that a query may read sum to 1.
      seen: the query is a real token and may read the key.
    """

    weights: Float[np.ndarray, "layers batch heads queries keys"]
    seen: Bool[np.ndarray, "batch queries keys"]


def attention_maps(model: Model, variables: Mapping[str, Any], rows: Batch) -> AttentionMaps:
    """The attention of a model over rows of text, in evaluation mode and from an empty memory.

    Args:
      model: a language model or a text encoder, whose layers all have attention of one kind that can be tracked
        (`LayerMemory.tracked`), such as that of GPT-2 and of BERT.
      variables: of the model.
      rows: of text, one segment.

    Raises:
      ValueError: a model without layers, or layers whose attention cannot be tracked or is of several shapes.
    """
    tracking = tracked(model)

    @jax.jit
    def read(variables: Any, rows: Batch) -> Any:
        state = tracking.init_state(len(rows.inputs))
        return read_segment(tracking, variables, state, rows, deterministic=True)[2].arrays

    arrays, length, stack = read(model_collections(variables), rows), rows.mask.shape[1], tracking.stack
    indices = range(stack.first, len(stack.layers))
    of_layers = lambda name: [np.asarray(arrays[f"layer_{i:02d}/{name}"]) for i in indices]
    weights = of_layers(WEIGHTS)
    shapes = {layer.shape for layer in weights}
    if len(shapes) > 1 or weights[0].shape[2] != length:
        allowed = f"one shape in all layers, with the {length} tokens of a segment as queries"
        raise ValueError(f"attention maps: given {sorted(shapes)}, allowed: {allowed}")
    return AttentionMaps(np.stack(weights), of_layers(VISIBLE)[0][:, 0] & np.asarray(rows.mask)[:, :, None])


def tracked(model: Model) -> Any:
    """The model whose layers also give the weights of their attention; it takes the variables of `model`.

    Raises:
      Absent: a model without layers, or a layer whose attention cannot be tracked.
    """
    if not model.has_stack:
        raise Absent(f"attention maps: given {type(model).__name__}, allowed: a model with a stack of layers")
    stack: Any = model.stack
    layers = tuple(layer.clone(attention=layer.attention.tracked()) for layer in stack.layers)
    return model.clone(stack=stack.clone(layers=layers))
