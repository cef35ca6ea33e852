"""Bidirectional text encoders (BERT, DistilBERT, MiniLM) with a head for each task, and the factory.

Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
NAACL 2019, https://arxiv.org/abs/1810.04805.

An encoder has the interface of a language model without memory: `output, state, aux = encoder(tokens, state, ...)`,
then `nll(output, targets, weights)` and `log_probs(output)`. Its head decides what the targets are: the hidden tokens,
the class of the text, or the first and last token of an answer. So it trains and is scored by what trains and scores
language models. Layers are those of `memjax.models.transformer`: any feed-forward part may stand in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import constrain, named
from memjax.functional.losses import token_cross_entropy
from memjax.memory.memory_tokens import MEMORY, prepend_memory
from memjax.memory.projections import make_norm, matrix_init
from memjax.models.transformer import Stack
from memjax.models.vocabulary import Vocabulary
from memjax.typing import Aux, EmptyState, Sum

INIT_STDDEV = 0.02
MASKED_POSITIONS, TOKEN_TYPES = "masked_positions", "token_types"
"""`Batch.extras` of an encoder: places of the hidden tokens, `[batch, targets]`, and the type of each token read."""


class MaskedTokenHead(nn.Module):
    """What stood at hidden tokens: dense, GELU and norm; the scores are the vocabulary's, with a bias.

    Attributes:
      dim: width of the encoder.
      dtype: of the computation.
    """

    dim: int
    dtype: Any = jnp.float32

    scores_vocabulary = True

    def setup(self) -> None:
        self.dense = _dense(self.dim, self.dtype)
        self.layer_norm = make_norm("layer_exact", self.dtype)

    def __call__(
        self,
        hidden: Float[Array, "batch length dim"],
        first: Float[Array, "batch dim"],
        mask: Bool[Array, "batch length"],
        extras: Mapping[str, Array],
        deterministic: bool,
    ) -> Float[Array, "batch targets dim"]:
        """Hidden states of the targets, of all tokens where the extras do not say which."""
        del first, mask, deterministic
        if MASKED_POSITIONS in extras:
            hidden = jnp.take_along_axis(hidden, extras[MASKED_POSITIONS][..., None], axis=1, mode="clip")
        return self.layer_norm(nn.gelu(self.dense(hidden), approximate=False))


class ClassificationHead(nn.Module):
    """The class of a text: dropout and one matrix over the first token.

    Attributes:
      num_classes: classes.
      dropout: rate.
      dtype: of the computation.
    """

    num_classes: int
    dropout: float = 0.0
    dtype: Any = jnp.float32

    scores_vocabulary = False

    def setup(self) -> None:
        self.classifier = _dense(self.num_classes, self.dtype)
        self.drop = nn.Dropout(self.dropout)

    def __call__(
        self,
        hidden: Float[Array, "batch length dim"],
        first: Float[Array, "batch dim"],
        mask: Bool[Array, "batch length"],
        extras: Mapping[str, Array],
        deterministic: bool,
    ) -> Float[Array, "batch 1 classes"]:
        """Scores of the classes."""
        del hidden, mask, extras
        return self.classifier(self.drop(first, deterministic=deterministic))[:, None]


class SpanHead(nn.Module):
    """Where an answer begins and ends: one matrix over every token, and two softmaxes over the tokens.

    Attributes:
      dtype: of the computation.
    """

    dtype: Any = jnp.float32

    scores_vocabulary = False

    def setup(self) -> None:
        self.spans = _dense(2, self.dtype)

    def __call__(
        self,
        hidden: Float[Array, "batch length dim"],
        first: Float[Array, "batch dim"],
        mask: Bool[Array, "batch length"],
        extras: Mapping[str, Array],
        deterministic: bool,
    ) -> Float[Array, "batch 2 length"]:
        """Scores of the tokens as the first and as the last of the answer; -inf at padding."""
        del first, extras, deterministic
        scores = jnp.swapaxes(self.spans(hidden), 1, 2)
        return jnp.where(mask[:, None], scores, -jnp.inf)


class TextEncoder(nn.Module):
    """BERT: embeddings, post-norm layers that see the whole text, a pooler, and the head of a task.

    Differs from the paper or its code: no next-sentence head (the recipes here do without it, as most since); padding
    is never the start or end of an answer.

    Attributes:
      stack: the layers.
      vocabulary: token embeddings, and the output weights tied to them.
      head: of the task; None = the output is the last hidden states.
      max_length: learned positions.
      token_types: learned types of tokens; 0 = none.
      pooler: a dense layer and tanh over the first token.
      dropout: rate on embeddings.
      memory_tokens: learned rows before every text, which all layers read and write, as in a MemTransformer; they come
        out as `memory` in `Aux.arrays`, have no positions, types or norm of embeddings, and no head reads them.
      memory_stddev: of their initial values.
      features: inner tensors to return in `Aux.arrays`: `output`; those of layers are named in the stack, and begin
        with the rows of the memory.
      dtype: of the computation.
    """

    stack: Stack
    vocabulary: Vocabulary
    head: nn.Module | None = None
    max_length: int = 512
    token_types: int = 2
    pooler: bool = True
    dropout: float = 0.0
    memory_tokens: int = 0
    memory_stddev: float = INIT_STDDEV
    features: tuple[str, ...] = ()
    dtype: Any = jnp.float32

    task_parameters = ("head/", "pooler/", "vocabulary/bias")
    """Parameters of one task: an encoder that goes on with another task need not have, or find, them."""

    def setup(self) -> None:
        init, dim = named(matrix_init(INIT_STDDEV), None, "embed"), self.vocabulary.dim
        self.position_embedding = self.param("position_embedding", init, (self.max_length, dim))
        if self.token_types:
            self.token_type_embedding = self.param("token_type_embedding", init, (self.token_types, dim))
        if self.memory_tokens:
            rows = named(matrix_init(self.memory_stddev), None, "embed")
            self.memory_rows = self.param("memory_tokens", rows, (self.memory_tokens, dim))
        self.layer_norm = make_norm("layer_exact", self.dtype)
        self.drop = nn.Dropout(self.dropout)
        if self.pooler:
            self.pooler_dense = _dense(dim, self.dtype, name="pooler")

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> EmptyState:
        """An encoder remembers nothing."""
        return EmptyState()

    @nn.nowrap
    def choose_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a batch's extras that the encoder takes."""
        names = ((TOKEN_TYPES,) if self.token_types else ()) + (MASKED_POSITIONS,)
        return {name: extras[name] for name in names if name in extras}

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        state: EmptyState,
        *,
        start_of_document: Bool[Array, " batch"] | None = None,
        mask: Bool[Array, "batch length"] | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[Any, EmptyState, Aux]:
        """Reads texts, one a row.

        Args:
          tokens: of the texts, special ones included.
          state: of nothing.
          start_of_document: every text stands alone.
          mask: real tokens; None = all.
          deterministic: without dropout.
          extras: from `choose_extras`; tokens without types have type 0.

        Returns:
          What the head gives, for `nll` and `log_probs`; the state; sums and requested features.

        Raises:
          ValueError: a text longer than the positions.
        """
        del start_of_document
        extras, mask = extras or {}, jnp.ones(tokens.shape, bool) if mask is None else mask
        hidden, aux = self.encode(tokens, mask=mask, token_types=extras.get(TOKEN_TYPES), deterministic=deterministic)
        first = jnp.tanh(self.pooler_dense(hidden[:, 0])) if self.pooler else hidden[:, 0]
        if self.head is None:
            return hidden, state, aux
        output = self.head(hidden, first, mask, extras, deterministic)
        if self.is_initializing() and self._scores_vocabulary():
            self.vocabulary.log_probs(output[:, :1])
        return output, state, aux

    def encode(
        self,
        tokens: Int[Array, "batch length"],
        *,
        mask: Bool[Array, "batch length"] | None = None,
        token_types: Int[Array, "batch length"] | None = None,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "batch length dim"], Aux]:
        """The last hidden states, and sums and requested features."""
        batch, length = tokens.shape
        if length > self.max_length:
            raise ValueError(
                f"tokens: a text of {length} tokens given, allowed: up to {self.max_length}, the positions of the model"
            )
        x = self.vocabulary.embed(tokens) + self.position_embedding[None, :length].astype(self.dtype)
        if self.token_types:
            types = jnp.zeros_like(tokens) if token_types is None else token_types
            x += jnp.take(self.token_type_embedding, types, axis=0, mode="clip").astype(self.dtype)
        x = self.drop(self.layer_norm(x), deterministic=deterministic)
        if own := self.memory_tokens:
            x, mask = prepend_memory(self.memory_rows, x, mask)
        x = constrain(x, "batch", None, None)
        named_arguments = {"start_of_document": jnp.ones(batch, bool), "mask": mask, "deterministic": deterministic}
        hidden, _, aux = self.stack(x, self.stack.init_state(batch), **named_arguments)
        if own:
            aux += Aux(arrays={MEMORY: hidden[:, :own]})
        hidden = hidden[:, own:]
        return hidden, aux + Aux(arrays={name: hidden for name in self.features})

    def embed_texts(
        self,
        tokens: Int[Array, "batch length"],
        *,
        mask: Bool[Array, "batch length"] | None = None,
        token_types: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch dim"]:
        """Sentence embeddings: the mean of the last hidden states of real tokens, of length 1 (as MiniLM's are)."""
        hidden, _ = self.encode(tokens, mask=mask, token_types=token_types)
        return mean_pooling(hidden, jnp.ones(tokens.shape, bool) if mask is None else mask)

    def token_nll(self, output: Any, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets"]:
        """Nats of each target, at least float32; 0 for one of -1."""
        if self._scores_vocabulary():
            return self.vocabulary.token_nll(output, targets)
        return token_cross_entropy(output, targets)

    def nll(self, output: Any, targets: Int[Array, "batch targets"], weights: Float[Array, "batch targets"]) -> Sum:
        """Nats of the targets with their weights, and the sum of the weights; nothing else reaches a gradient."""
        scored = weights != 0
        if self._scores_vocabulary():
            output = jnp.where(scored[..., None], output, 0)
        nats = self.token_nll(output, jnp.where(scored, targets, -1))
        weights = weights.astype(nats.dtype)
        return Sum((nats * weights).sum(), weights.sum())

    def log_probs(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Log-probabilities of all choices for each target, at least float32."""
        if self._scores_vocabulary():
            return self.vocabulary.log_probs(output)
        return jax.nn.log_softmax(output.astype(jnp.promote_types(output.dtype, jnp.float32)), axis=-1)

    def logits(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Scores of all choices for each target."""
        return self.vocabulary.logits(output) if self._scores_vocabulary() else output

    @nn.nowrap
    def _scores_vocabulary(self) -> bool:
        return bool(getattr(type(self.head), "scores_vocabulary", False))


def mean_pooling(
    hidden: Float[Array, "batch length dim"], mask: Bool[Array, "batch length"]
) -> Float[Array, "batch dim"]:
    """Means over real tokens, scaled to length 1; 0 for a row without a real token.

    Example:
      >>> print(mean_pooling(jnp.array([[[6.0, 0.0], [0.0, 8.0], [9.0, 9.0]]]), jnp.array([[True, True, False]])))
      [[0.6 0.8]]
    """
    hidden = hidden.astype(jnp.promote_types(hidden.dtype, jnp.float32))
    total = jnp.where(mask[..., None], hidden, 0).sum(axis=1)
    length = jnp.sqrt(jnp.square(total).sum(axis=-1, keepdims=True))  # of the mean too, but for a factor
    return jnp.where(length > 0, total / jnp.where(length > 0, length, 1), 0)


def _dense(features: int, dtype: Any, name: str | None = None) -> nn.Dense:
    init, zeros = named(matrix_init(INIT_STDDEV), "embed", None), named(nn.initializers.zeros, None)
    return nn.Dense(features, kernel_init=init, bias_init=zeros, dtype=dtype, name=name)
