"""Records the attention from and to memory tokens, as arrays.

Burtsev et al. 2020 show such maps (https://arxiv.org/abs/2006.11527).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.inspection.attention_ages import read_with_attention
from memjax.memory.interface import NotProvided
from memjax.memory.layer_parts import WEIGHTS
from memjax.models.interface import Model
from memjax.training.objective import model_collections
from memjax.typing import Batch

__all__ = ["TokenMaps", "memory_token_maps"]


@dataclasses.dataclass(frozen=True)
class TokenMaps:
    """Attention weights of every layer and head over memory tokens and the text that follows them in one segment, with
    the ids of the text.

    Attributes:
      num_tokens: Number of memory tokens. They are the first queries and the first keys.
      weights: Attention weights `[layers, batch, heads, queries, keys]`. If the model has a memory of earlier segments,
        its slots are keys between the memory tokens and the text.
      tokens: Ids of the text `[batch, length]`.
      mask: Whether each token of the text is real and not padding, `[batch, length]`.
    """

    num_tokens: int
    weights: Float[np.ndarray, "layers batch heads queries keys"]
    tokens: Int[np.ndarray, "batch length"]
    mask: Bool[np.ndarray, "batch length"]

    @property
    def of_text(self) -> Float[np.ndarray, "layers batch heads rows rows"]:
        """Attention weights of memory tokens and text on each other, `[layers, batch, heads, rows, rows]`, without the
        slots of earlier segments. A row may then sum to less than 1.
        """
        text = self.weights.shape[-1] - self.tokens.shape[1]
        return np.concatenate([self.weights[..., : self.num_tokens], self.weights[..., text:]], axis=-1)

    def shares(self) -> dict[str, Float[np.ndarray, " layers"]]:
        """Returns the mean attention on memory tokens in every layer, `[layers]`: under 'memory tokens' that of the
        memory tokens, under 'tokens' that of the real tokens of the text.
        """
        on_memory = self.weights[..., : self.num_tokens].sum(axis=-1).mean(axis=2)  # [layers, batch, queries]
        memory, text = on_memory[..., : self.num_tokens], on_memory[..., self.num_tokens :]
        rows = self.mask.any(axis=1)
        return {"memory tokens": memory[:, rows].mean(axis=(1, 2)), "tokens": text[:, self.mask].mean(axis=1)}


def memory_token_maps(model: Model, variables: Mapping[str, Any], segments: Sequence[Batch]) -> TokenMaps:
    """Reads consecutive segments and returns the attention of a model with memory tokens over the last one, as
    `TokenMaps`. A translation model reads only the source of the last segment.

    Args:
      model: Language or translation model.
      variables: Variables of the model.
      segments: Consecutive segments. A translation model uses only the last one.

    Raises:
      NotProvided: The model has no memory tokens, or it is a language model whose layers cannot record their attention.
    """
    if not model.num_memory_tokens:
        raise NotProvided(f"memory tokens: given {type(model).__name__} without any, allowed: a model with 1 or more")
    if not model.translates:
        *_, (batch, layers) = read_with_attention(model, variables, segments)
        weights = [arrays[WEIGHTS] for arrays in layers.values()]
        return TokenMaps(model.num_memory_tokens, np.stack(weights), np.asarray(batch.inputs), np.asarray(batch.mask))
    chosen = model.select_extras(segments[-1].extras)
    source = chosen["source"], chosen["source_mask"]
    read = jax.jit(lambda variables, *source: model.apply(variables, *source, method="source_maps"))
    maps: Any = read(model_collections(variables), *source)
    return TokenMaps(model.num_memory_tokens, np.stack(maps), *map(np.asarray, source))
