"""Reads how far the learned gates of memories are open, as arrays.

Wu et al. 2022 (https://arxiv.org/abs/2203.08913) learn a gate for each head of a memory layer, Yogatama et al. 2021
(https://arxiv.org/abs/2102.02557) compute one for every token, Peng et al. 2021 (https://arxiv.org/abs/2103.02143) one
for every token and head.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.memory.interface import NotProvided
from memjax.models.feature_taps import add_features, regroup_layers
from memjax.models.interface import Model
from memjax.models.transformer import split_collection
from memjax.training.objective import model_collections, read_segment
from memjax.typing import Batch

__all__ = ["GateMap", "Gates", "gate_map", "gated_memories"]

OUTPUT = "output_normed"
TAP = "attention_input_normed"


@dataclasses.dataclass(frozen=True)
class Gates:
    """Gate values of one memory, from 0 to 1 and for every token or the same for all tokens, and the name of what the
    gates let through.

    Attributes:
      gated: Name of what the gates let through, such as "the long memory".
      values: Gate values from 0 to 1 for all tokens of all segments, `[batch, length, gates]`. `[1, 1, gates]` if the
        gates do not depend on the token.
    """

    gated: str
    values: Float[np.ndarray, "#batch #length gates"]

    @property
    def by_token(self) -> bool:
        """Whether there are gate values for every token. False if they are the same for all tokens."""
        return self.values.shape[1] > 1

    def mean(self, counted: Bool[np.ndarray, "batch length"]) -> Float[np.ndarray, " gates"]:
        """Returns the mean of every gate, `[gates]`, over the tokens for which the bool array `counted`,
        `[batch, length]`, is True.
        """
        return np.broadcast_to(self.values, (*counted.shape, self.values.shape[-1]))[counted].mean(axis=0)


@dataclasses.dataclass(frozen=True)
class GateMap:
    """Gate values of the memories that `gated_memories` finds in a model, by layer and at the output, for the tokens of
    consecutive segments.

    Attributes:
      layers: Number of a layer, from 0 -> the gates of its memory.
      output: Gates of the memory at the model's output. None for a model without a gated output memory.
      tokens: Ids of the tokens that were read, int `[batch, length]`.
      counted: Whether each token is real and not padding, bool `[batch, length]`.
    """

    layers: Mapping[int, Gates]
    output: Gates | None
    tokens: Int[np.ndarray, "batch length"]
    counted: Bool[np.ndarray, "batch length"]


def gated_memories(model: Model) -> tuple[dict[int, Any], Any]:
    """Finds the memories whose gate values `gate_map` can read, those with a `Memory.gate_description`. Returns the
    memories in layers by the number of their layer, and the one at the output or None.

    Args:
      model: Model to search.

    Returns:
      The memories in layers, by the number of their layer from 0, and the gated memory at the output, or None.
    """
    if not model.stores_keys:  # the model does not expose its inner tensors
        return {}, None
    layers: Any = model.stack.layers if model.has_stack else ()
    last: Any = model.output_memory if model.mixes else None
    gated = {index: layer.attention for index, layer in enumerate(layers) if layer.attention.gate_description}
    return gated, last if last is not None and last.gate_description else None


def gate_map(model: Model, variables: Mapping[str, Any], segments: Sequence[Batch]) -> GateMap:
    """Reads consecutive segments from an empty memory and returns the gate values for every token, of the memories that
    `gated_memories` finds, as a `GateMap`.

    Args:
      model: Language model with a gate in at least one memory (`Memory.gate_description`).
      variables: Variables of the model.
      segments: Consecutive segments.

    Raises:
      NotProvided: No memory of the model has a gate.
    """
    gated, last = gated_memories(model)
    if not gated and last is None:
        raise NotProvided(f"gates: given {type(model).__name__} without one, allowed: a model whose memory has a gate")
    names = [f"layer_{index:02d}/{TAP}" for index in gated] + ([OUTPUT] if last is not None else [])
    tapped: Any = add_features(model, *names)
    variables = model_collections(variables)
    read = jax.jit(
        lambda variables, state, batch: read_segment(tapped, variables, state, batch, deterministic=True)[1:]
    )
    regrouped = regroup_layers(variables, model, tapped)
    inner, state = [], tapped.init_state(len(segments[0].mask))
    for batch in segments:
        state, aux = read(regrouped, state, batch)
        inner.append({name: aux.arrays[name] for name in names})
    hidden = {name: jnp.concatenate([arrays[name] for arrays in inner], axis=1) for name in names}

    split = {name: split_collection(collection, model.layer_groups()) for name, collection in variables.items()}
    part = lambda *path: {name: _get_path(tree, path) for name, tree in split.items() if _get_path(tree, path)}
    gates_of_layers = {}
    for index, name in zip(gated, names, strict=False):
        memory = gated[index]
        values = memory.apply(part("stack", f"layer_{index:02d}", "attention"), hidden[name], method="gate_values")
        gates_of_layers[index] = Gates(memory.gate_description, np.asarray(values))
    of_output = None
    if last is not None:
        values = last.apply(part("output_memory"), hidden[OUTPUT], method="gate_values")
        of_output = Gates(last.gate_description, np.asarray(values))
    joined = [
        np.concatenate([np.asarray(getattr(batch, name)) for batch in segments], axis=1) for name in ("inputs", "mask")
    ]
    return GateMap(gates_of_layers, of_output, *joined)


def _get_path(tree: Any, path: Sequence[str]) -> Any:
    """Returns the entry of a nested mapping under a path of names. {} if there is none."""
    for name in path:
        tree = tree.get(name, {})
    return tree
