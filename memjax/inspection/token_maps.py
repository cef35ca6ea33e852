"""Attention from and to memory tokens, as arrays (Burtsev et al. 2020, https://arxiv.org/abs/2006.11527)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.inspection.attention_ages import read_tracked
from memjax.memory.contract import Absent
from memjax.memory.projections import WEIGHTS
from memjax.models.contract import Model
from memjax.training.objective import model_collections
from memjax.typing import Batch

__all__ = ["TokenMaps", "memory_token_maps"]


@dataclasses.dataclass(frozen=True)
class TokenMaps:
    """Attention of every layer over memory tokens and the text behind them.

    Attributes:
      num_tokens: memory tokens: the first of the queries and of the keys.
      weights: of a query on every key; between memory tokens and text stand the slots of a memory of earlier segments,
        where there is one.
      tokens: of the text.
      mask: which of them are real.
    """

    num_tokens: int
    weights: Float[np.ndarray, "layers batch heads queries keys"]
    tokens: Int[np.ndarray, "batch length"]
    mask: Bool[np.ndarray, "batch length"]

    @property
    def of_text(self) -> Float[np.ndarray, "layers batch heads rows rows"]:
        """Queries and keys without the slots of earlier segments, so that a row may sum to less than 1."""
        text = self.weights.shape[-1] - self.tokens.shape[1]
        return np.concatenate([self.weights[..., : self.num_tokens], self.weights[..., text:]], axis=-1)

    def shares(self) -> dict[str, Float[np.ndarray, " layers"]]:
        """Mean attention on memory tokens, of memory tokens and of real tokens, in every layer."""
        on_memory = self.weights[..., : self.num_tokens].sum(axis=-1).mean(axis=2)  # [layers, batch, queries]
        own, text = on_memory[..., : self.num_tokens], on_memory[..., self.num_tokens :]
        rows = self.mask.any(axis=1)
        return {"memory tokens": own[:, rows].mean(axis=(1, 2)), "tokens": text[:, self.mask].mean(axis=1)}


def memory_token_maps(model: Model, variables: Mapping[str, Any], segments: Sequence[Batch]) -> TokenMaps:
    """The attention of a model with memory tokens over the last of consecutive segments: of a translation its source.

    Args:
      model: a language or translation model.
      variables: of the model.
      segments: consecutive; of a translation model the last one alone counts.

    Raises:
      Absent: a model without memory tokens, or a language model whose layers cannot be tracked.
    """
    if not model.num_memory_tokens:
        raise Absent(f"memory tokens: given {type(model).__name__} without any, allowed: a model with 1 or more")
    if not model.translates:
        *_, (batch, layers) = read_tracked(model, variables, segments)
        weights = [arrays[WEIGHTS] for arrays in layers.values()]
        return TokenMaps(model.num_memory_tokens, np.stack(weights), np.asarray(batch.inputs), np.asarray(batch.mask))
    chosen = model.choose_extras(segments[-1].extras)
    source = chosen["source"], chosen["source_mask"]
    read = jax.jit(lambda variables, *source: model.apply(variables, *source, method="source_maps"))
    maps: Any = read(model_collections(variables), *source)
    return TokenMaps(model.num_memory_tokens, np.stack(maps), *map(np.asarray, source))
