"""Encoders of whole texts made of the layers of a decoder, with a head on the last token (Llama and its kin, GPT-2).

The interface is that of `memjax.models.encoder_with_head`. Parameters have the names of the language model.
"""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from memjax.axes import named
from memjax.memory.layer_parts import NormKind, make_norm
from memjax.models.encoder_with_head import LayeredEncoder
from memjax.models.heads import ALLOWED, STATES, TaskHead
from memjax.models.interface import Model
from memjax.models.transformer import Stack
from memjax.models.vocabulary import Vocabulary
from memjax.typing import Activations, Aux, Mask

__all__ = ["CausalTextEncoder"]


class CausalTextEncoder(LayeredEncoder):
    """A text encoder whose tokens see no later ones, as in a decoder. A head of classes reads the last token of a text,
    as in the classes for sequence classification of transformers.

    Every text is read whole, with an empty memory.

    Attributes:
      stack: Layers. If it starts above layer 0 there are no embeddings, and texts come with the input states of its
        first layer.
      vocabulary: Token embeddings.
      head: Head of the task. None = the output is the last hidden states.
      final_norm: Norm of the last hidden states: 'layer', 'rms' or '' for none.
      weighted_norms: Whether the means in the norms weigh the entries (`WeightedNorm`).
      norm_epsilon: Number added to the variance in norms. None = the default of `make_norm`.
      num_positions: Number of learned positions. 0 = none.
      dropout: Dropout rate on embeddings.
      features: Inner tensors to return in `Aux.arrays`: `output`. Those of layers are named in the stack.
      dtype: Dtype of the computation.
    """

    stack: Stack
    vocabulary: Vocabulary
    head: TaskHead | None = None
    final_norm: Literal[NormKind, ""] = "rms"
    weighted_norms: bool = False
    norm_epsilon: float | None = None
    num_positions: int = 0
    dropout: float = 0.0
    features: tuple[str, ...] = ()
    dtype: Any = jnp.float32

    extra_names = (STATES, *ALLOWED)
    embedding_parameters = ("vocabulary/", "positions")
    task_parameters = ("head/", "vocabulary/bias", "vocabulary/output")
    """Path prefixes of parameters of one task, such as those that score the next token. An encoder that continues with
    another task need not have or load them."""

    def setup(self) -> None:
        if self.final_norm:
            options: dict[str, Any] = {"weighted": self.weighted_norms, "epsilon": self.norm_epsilon}
            self.layer_norm = make_norm(self.final_norm, self.dtype, **options)
        self.drop = nn.Dropout(self.dropout)
        if self.num_positions and not self.stack.first:
            init = named(nn.initializers.normal(0.02), None, "embed")
            self.positions_table = self.param("positions", init, (self.num_positions, self.vocabulary.dim))

    @nn.nowrap
    def as_encoder(self) -> Model:
        """Returns the encoder without a head."""
        return self.clone(head=None)

    def pool(self, hidden: Activations, inputs: Array, mask: Mask, extras: Mapping[str, Any]) -> Array:
        """Returns the last hidden state of each text's last token, `[batch, dim]`. See `LayeredEncoder.pool`."""
        last = jnp.maximum(jnp.sum(mask, axis=1) - 1, 0)
        return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]

    def embed(self, tokens: Array, token_types: Array | None, deterministic: bool) -> Activations:
        """Embeds tokens, and adds learned positions where the model has any. See `LayeredEncoder.embed`."""
        x, length = self.vocabulary.embed(tokens), tokens.shape[1]
        if self.num_positions:
            if length > self.num_positions:
                allowed = f"up to num_positions = {self.num_positions}"
                raise ValueError(f"tokens: given {length} in a text, allowed: {allowed}")
            x = x + self.positions_table[:length].astype(x.dtype)[None]
        return self.drop(x, deterministic=deterministic)

    def apply_layers(self, x: Activations, mask: Mask | None, **options: Any) -> tuple[Activations, Aux]:
        """Applies the layers and the last norm. See `LayeredEncoder.apply_layers`."""
        hidden, aux = super().apply_layers(x, mask, **options)
        return (self.layer_norm(hidden) if self.final_norm else hidden), aux
