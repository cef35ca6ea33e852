"""How far the learned gates of memories are open, as arrays.

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

from memjax.memory.contract import Absent
from memjax.models.contract import Model
from memjax.models.features import add_features, regroup
from memjax.models.transformer import split_collection
from memjax.training.objective import model_collections, read_segment
from memjax.typing import Batch

__all__ = ["GateMap", "Gates", "gate_map", "gated_memories"]

OUTPUT = "output_normed"
TAP = "attention_input_normed"


@dataclasses.dataclass(frozen=True)
class Gates:
    """Those of one memory.

    Attributes:
      gated: what they let through, in words.
      values: `[batch, length, gates]` from 0 to 1, over all segments; of a gate that is the same everywhere `[1, 1,
        gates]`.
    """

    gated: str
    values: Float[np.ndarray, "#batch #length gates"]

    @property
    def by_token(self) -> bool:
        """Whether the tokens have gates of their own."""
        return self.values.shape[1] > 1

    def mean(self, counted: Bool[np.ndarray, "batch length"]) -> Float[np.ndarray, " gates"]:
        """Of every gate, over the tokens that count."""
        return np.broadcast_to(self.values, (*counted.shape, self.values.shape[-1]))[counted].mean(axis=0)


@dataclasses.dataclass(frozen=True)
class GateMap:
    """The gates of a model over consecutive segments.

    Attributes:
      layers: layer, 0-based -> its gates.
      output: those of the memory at the output site, or None.
      tokens: int `[batch, length]`, that were read.
      counted: bool `[batch, length]`, which of them are real.
    """

    layers: Mapping[int, Gates]
    output: Gates | None
    tokens: Int[np.ndarray, "batch length"]
    counted: Bool[np.ndarray, "batch length"]


def gated_memories(model: Model) -> tuple[dict[int, Any], Any]:
    """The memories of a model with a gate: by layer, 0-based, and the one at the output site or None."""
    if not model.stores_keys:  # its inner tensors cannot be asked for
        return {}, None
    layers: Any = model.stack.layers if model.has_stack else ()
    last: Any = model.output_memory if model.mixes else None
    gated = {index: layer.attention for index, layer in enumerate(layers) if layer.attention.gated}
    return gated, last if last is not None and last.gated else None


def gate_map(model: Model, variables: Mapping[str, Any], segments: Sequence[Batch]) -> GateMap:
    """Reads consecutive segments from an empty memory and keeps how far the gates are open.

    Args:
      model: a language model, some of whose memories have a gate (`Memory.gated`).
      variables: of the model.
      segments: consecutive.

    Raises:
      Absent: there is no gate.
    """
    gated, last = gated_memories(model)
    if not gated and last is None:
        raise Absent(f"gates: given {type(model).__name__} without one, allowed: a model whose memory has a gate")
    names = [f"layer_{index:02d}/{TAP}" for index in gated] + ([OUTPUT] if last is not None else [])
    tapped: Any = add_features(model, *names)  # type: ignore[type-var]
    variables = model_collections(variables)
    read = jax.jit(
        lambda variables, state, batch: read_segment(tapped, variables, state, batch, deterministic=True)[1:]
    )
    inner, own, state = [], regroup(variables, model, tapped), tapped.init_state(len(segments[0].mask))  # type: ignore[type-var]
    for batch in segments:
        state, aux = read(own, state, batch)
        inner.append({name: aux.arrays[name] for name in names})
    hidden = {name: jnp.concatenate([one[name] for one in inner], axis=1) for name in names}

    split = {name: split_collection(one, model.groups()) for name, one in variables.items()}
    part = lambda *path: {name: _at(one, path) for name, one in split.items() if _at(one, path)}
    found = {}
    for index, name in zip(gated, names, strict=False):
        memory = gated[index]
        values = memory.apply(part("stack", f"layer_{index:02d}", "attention"), hidden[name], method="gates")
        found[index] = Gates(memory.gated, np.asarray(values))
    of_output = None
    if last is not None:
        of_output = Gates(last.gated, np.asarray(last.apply(part("output_memory"), hidden[OUTPUT], method="gates")))
    joined = [
        np.concatenate([np.asarray(getattr(one, name)) for one in segments], axis=1) for name in ("inputs", "mask")
    ]
    return GateMap(found, of_output, *joined)


def _at(tree: Any, path: Sequence[str]) -> Any:
    """What stands under a path of names; {} where there is nothing."""
    for name in path:
        tree = tree.get(name, {})
    return tree
