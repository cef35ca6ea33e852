"""Bidirectional text encoders (BERT, DistilBERT, MiniLM) with a head for each task.

Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
NAACL 2019, https://arxiv.org/abs/1810.04805.

Layers are those of `memjax.models.transformer`, with any feed-forward part. The interface is that of
`memjax.models.encoder_with_head`.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.axes import named
from memjax.memory.interface import broadcast_mask
from memjax.memory.layer_parts import make_norm, matrix_init
from memjax.memory.memory_tokens import memory_aux, prepend_memory
from memjax.models.encoder_with_head import LayeredEncoder
from memjax.models.gate import GATE, Gate
from memjax.models.heads import (
    ALLOWED,
    INIT_STDDEV,
    MASKED_POSITIONS,
    STATES,
    TOKEN_TYPES,
    TaskHead,
    make_dense,
)
from memjax.models.interface import Model
from memjax.models.transformer import Stack
from memjax.models.vocabulary import Vocabulary
from memjax.typing import Activations, Aux, Mask

__all__ = ["TextEncoder", "mean_pooling"]


EMBEDDINGS = ("vocabulary/", "position_embedding", "token_type_embedding", "layer_norm/")
"""Path prefixes of the parameters below the first layer."""


class TextEncoder(LayeredEncoder):
    """A BERT text encoder: embeddings, post-norm layers that see the whole text, a pooler, and the head of a task.

    Differs from the paper or its code: no next-sentence head (the recipes here do without it, as most since); padding
    is never the start or end of an answer.

    Attributes:
      stack: Layers. If it starts above layer 0 there are no embeddings, and texts come with the input states of its
        first layer.
      vocabulary: Token embeddings, and the output weights tied to them.
      head: Head of the task. None = the output is the last hidden states.
      max_length: Number of learned positions, the largest length of a text.
      num_token_types: Number of learned types of tokens. 0 = none.
      pooler: Whether a dense layer and tanh are applied to the first token.
      pooling: Input of a head of classes: 'first' token, after the pooler if there is one, or 'mean' over all tokens.
      gate: Gate on the input of the head. None = no gate.
      weighted_norms: Whether the means in the norms weigh the entries (`WeightedNorm`), for a model that grows in
        width.
      norm_epsilon: Number added to the variance in norms. None = the default of `make_norm`.
      dropout: Dropout rate on embeddings.
      memory_tokens: Number of learned memory tokens before every text, which all layers read and write, as in a
        MemTransformer. They are returned as `memory` in `Aux.arrays`. They have no positions, types or norm of
        embeddings, and no head reads them.
      memory_stddev: Standard deviation of the memory tokens' initial values. 1 is that of the normed embeddings.
      features: Inner tensors to return in `Aux.arrays`: `output`. Those of layers are named in the stack, and start
        with the rows of the memory tokens.
      dtype: Dtype of the computation.
    """

    stack: Stack
    vocabulary: Vocabulary
    head: TaskHead | None = None
    max_length: int = 512
    num_token_types: int = 2
    pooler: bool = True
    pooling: str = "first"
    gate: Gate | None = None
    weighted_norms: bool = False
    norm_epsilon: float | None = None
    dropout: float = 0.0
    memory_tokens: int = 0
    memory_stddev: float = 1.0
    features: tuple[str, ...] = ()
    dtype: Any = jnp.float32

    embedding_parameters = EMBEDDINGS
    task_parameters = ("head/", "pooler/", "vocabulary/bias", "vocabulary/output", GATE)
    """Path prefixes of parameters of one task. An encoder that continues with another task need not have or load
    them."""

    @property
    def extra_names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names, as a tuple, of the extras of a batch that the encoder or its head reads."""
        return (*((TOKEN_TYPES,) if self.num_token_types else ()), MASKED_POSITIONS, STATES, *ALLOWED)

    @property
    def num_memory_tokens(self) -> int:
        """The number of learned memory tokens before every text."""
        return self.memory_tokens

    def setup(self) -> None:
        dim = self.vocabulary.dim
        if self.pooler:
            self.pooler_dense = make_dense(dim, self.dtype, name="pooler", outer="embed")
        if self.stack.first:
            return
        init = named(matrix_init(INIT_STDDEV), None, "embed")
        self.position_embedding = self.param("position_embedding", init, (self.max_length, dim))
        if self.num_token_types:
            self.token_type_embedding = self.param("token_type_embedding", init, (self.num_token_types, dim))
        if self.memory_tokens:
            rows = named(matrix_init(self.memory_stddev), None, "embed")
            self.memory_rows = self.param("memory_tokens", rows, (self.memory_tokens, dim))
        options: dict[str, Any] = {"weighted": self.weighted_norms, "epsilon": self.norm_epsilon}
        self.layer_norm = make_norm("layer_exact", self.dtype, **options)
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def output_norm(self) -> str:
        """Returns the path prefix of the head's norm if the vocabulary scores its result. Otherwise ''."""
        return "head/layer_norm/" if self.head is not None and self.head.scores_vocabulary else ""

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of the extras for token types and for the input states of the first layer, as
        far as the encoder needs them.
        """
        types = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
        return ({TOKEN_TYPES: types} if self.num_token_types else {}) | super().example_extras(batch_size, length)

    @nn.nowrap
    def as_encoder(self) -> Model:
        """Returns the encoder without a head, and without what stands between the last hidden states and one."""
        return self.clone(head=None, pooler=False, vocabulary=self.vocabulary.clone(bias=False))

    def pool(self, hidden: Activations, inputs: Array, mask: Mask, extras: Mapping[str, Any]) -> Array:
        """Returns the first token after the pooler, or the mean over all tokens, after the gate, `[batch, dim]`. See
        `LayeredEncoder.pool`.
        """
        first = jnp.tanh(self.pooler_dense(hidden[:, 0])) if self.pooler else hidden[:, 0]
        if self.pooling == "mean":
            real = mask[..., None]
            total = jnp.sum(jnp.where(real, hidden, 0), axis=1)
            first = total / jnp.maximum(jnp.sum(real, axis=1), 1).astype(hidden.dtype)
        if self.gate is not None:
            first = first * self.gate(inputs, mask=mask, extras=extras)
        return first

    def embed(self, tokens: Array, token_types: Array | None, deterministic: bool) -> Activations:
        """Embeds tokens, their positions and their types, and normalises the sum. See `LayeredEncoder.embed`."""
        length = tokens.shape[1]
        if length > self.max_length:
            raise ValueError(
                f"tokens: a text of {length} tokens given, allowed: up to {self.max_length}, the positions of the model"
            )
        x = self.vocabulary.embed(tokens) + self.position_embedding[None, :length].astype(self.dtype)
        if self.num_token_types:
            types = jnp.zeros_like(tokens) if token_types is None else token_types
            x += jnp.take(self.token_type_embedding, types, axis=0, mode="clip").astype(self.dtype)
        return self.drop(self.layer_norm(x), deterministic=deterministic)

    def apply_layers(self, x: Activations, mask: Mask | None, **options: Any) -> tuple[Activations, Aux]:
        """Applies the layers to states with the memory tokens before them, and takes those off again. With memory
        tokens there can be no `side`. See `LayeredEncoder.apply_layers`.
        """
        num_memory = self.memory_tokens
        if not num_memory:
            return super().apply_layers(x, mask, **options)
        texts = broadcast_mask(mask, *x.shape[:2]).any(axis=1)
        hidden, aux = super().apply_layers(*prepend_memory(self.memory_rows, x, mask), **options)
        return hidden[:, num_memory:], aux + memory_aux(hidden[:, :num_memory], texts)

    def embed_texts(
        self,
        tokens: Int[Array, "batch length"],
        *,
        mask: Mask | None = None,
        token_types: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch dim"]:
        """Computes sentence embeddings `[batch, dim]` of length 1 as MiniLM: the mean of the last hidden states of real
        tokens.
        """
        hidden, _ = self.hidden_states(tokens, mask=mask, token_types=token_types)
        return mean_pooling(hidden, jnp.ones(tokens.shape, bool) if mask is None else mask)


def mean_pooling(hidden: Activations, mask: Mask) -> Float[Array, "batch dim"]:
    """Averages hidden states over real tokens, and scales the mean to length 1. 0 for a row without real tokens.

    Example:
      >>> print(mean_pooling(jnp.array([[[6.0, 0.0], [0.0, 8.0], [9.0, 9.0]]]), jnp.array([[True, True, False]])))
      [[0.6 0.8]]
    """
    hidden = hidden.astype(jnp.promote_types(hidden.dtype, jnp.float32))
    total = jnp.where(mask[..., None], hidden, 0).sum(axis=1)
    length = jnp.sqrt(jnp.square(total).sum(axis=-1, keepdims=True))  # the mean has the same direction
    return jnp.where(length > 0, total / jnp.where(length > 0, length, 1), 0)
