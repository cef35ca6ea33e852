"""Records the attention weights of all heads of a model, as arrays."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from memjax.memory.interface import NotProvided
from memjax.memory.layer_parts import VISIBLE, WEIGHTS
from memjax.models.interface import Model
from memjax.training.objective import model_collections, read_segment
from memjax.typing import Batch

__all__ = ["AttentionMaps", "attention_maps"]


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """Attention weights of every layer and head over one segment of a batch, read from an empty memory, and the keys
    that each token may read.

    Attributes:
      weights: Attention weights `[layers, batch, heads, queries, keys]`. The weights of the keys that a query may read
        sum to 1.
      seen: Whether the query is a real token and may read the key, `[batch, queries, keys]`.
    """

    weights: Float[np.ndarray, "layers batch heads queries keys"]
    seen: Bool[np.ndarray, "batch queries keys"]


def attention_maps(model: Model, variables: Mapping[str, Any], rows: Batch) -> AttentionMaps:
    """Reads a batch of one segment (`rows`) in evaluation mode, from an empty memory, and returns the attention weights
    of the model as `AttentionMaps`.

    Args:
      model: Language model or text encoder. All its layers must have one kind of attention that can be recorded
        (`LayerMemory.with_attention_tracking`), as in GPT-2 and BERT.
      variables: Variables of the model.
      rows: Batch of one segment of text.

    Raises:
      ValueError: The model has no layers, or its layers cannot record their attention, or the shapes differ.
    """
    tracking = make_attention_tracking_model(model)

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


def make_attention_tracking_model(model: Model) -> Any:
    """Returns a copy of a model whose layers also return their attention weights, in `Aux.arrays`. It takes the
    variables of `model`.

    Args:
      model: Model with a stack of layers.

    Raises:
      NotProvided: The model has no layers, or the attention of a layer cannot be recorded.
    """
    if not model.has_stack:
        raise NotProvided(f"attention maps: given {type(model).__name__}, allowed: a model with a stack of layers")
    stack: Any = model.stack
    layers = tuple(layer.clone(attention=layer.attention.with_attention_tracking()) for layer in stack.layers)
    return model.clone(stack=stack.clone(layers=layers))
