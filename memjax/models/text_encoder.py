"""Bidirectional text encoders (BERT, DistilBERT, MiniLM) with a head for each task, and the factory.

Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
NAACL 2019, https://arxiv.org/abs/1810.04805.

An encoder has the interface of a language model without memory: `output, state, aux = encoder(tokens, state, ...)`,
then `nll(output, targets, weights)` and `log_probs(output)`. Its head decides what the targets are: the hidden tokens,
the class of the text, or the first and last token of an answer. So it trains and is scored by what trains and scores
language models. Layers are those of `memjax.models.transformer`: any feed-forward part may stand in them.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.axes import constrain, named
from memjax.memory.checks import refuse_padding_in_front
from memjax.memory.contract import broadcast_mask
from memjax.memory.memory_tokens import memory_aux, prepend_memory
from memjax.memory.projections import make_norm, matrix_init
from memjax.models.contract import Model
from memjax.models.gate import GATE, Gate
from memjax.models.heads import (
    ALLOWED,
    INIT_STDDEV,
    MASKED_POSITIONS,
    STATES,
    TOKEN_TYPES,
    ChoiceScores,
    EncodedText,
    TaskHead,
    VocabularyScores,
    dense,
)
from memjax.models.transformer import Side, Stack
from memjax.models.vocabulary import Vocabulary
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows

__all__ = ["TextEncoder", "mean_pooling"]


EMBEDDINGS = ("vocabulary/", "position_embedding", "token_type_embedding", "layer_norm/")
"""beginnings of the paths of the parameters below the first layer"""


class TextEncoder(Model):
    """BERT: embeddings, post-norm layers that see the whole text, a pooler, and the head of a task.

    Differs from the paper or its code: no next-sentence head (the recipes here do without it, as most since); padding
    is never the start or end of an answer.

    Attributes:
      stack: the layers. Where it does not begin with layer 0, there are no embeddings: texts come with the states that
        its first layer reads.
      vocabulary: token embeddings, and the output weights tied to them.
      head: of the task; None = the output is the last hidden states.
      max_length: learned positions.
      token_types: learned types of tokens; 0 = none.
      pooler: a dense layer and tanh over the first token.
      pooling: what a head of classes reads: the first token, behind the pooler where there is one, or the mean over
        all tokens.
      gate: on that, or None.
      weighted_norms: as in `make_norm`.
      norm_epsilon: as in `make_norm`.
      dropout: rate on embeddings.
      memory_tokens: learned rows before every text, which all layers read and write, as in a MemTransformer; they come
        out as `memory` in `Aux.arrays`, have no positions, types or norm of embeddings, and no head reads them.
      memory_stddev: of their initial values; 1 is that of the normed embeddings.
      features: inner tensors to return in `Aux.arrays`: `output`; those of layers are named in the stack, and begin
        with the rows of the memory.
      dtype: of the computation.
    """

    stack: Stack
    vocabulary: Vocabulary
    head: TaskHead | None = None
    max_length: int = 512
    token_types: int = 2
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

    has_stack = True
    represents = True
    task_parameters = ("head/", "pooler/", "vocabulary/bias", "vocabulary/output", GATE)
    """Parameters of one task: an encoder that goes on with another task need not have, or find, them."""

    @property
    def num_memory_tokens(self) -> int:
        """Learned rows before every text."""
        return self.memory_tokens

    def setup(self) -> None:
        dim = self.vocabulary.dim
        if self.pooler:
            self.pooler_dense = dense(dim, self.dtype, name="pooler", outer="embed")
        if self.stack.first:
            return
        init = named(matrix_init(INIT_STDDEV), None, "embed")
        self.position_embedding = self.param("position_embedding", init, (self.max_length, dim))
        if self.token_types:
            self.token_type_embedding = self.param("token_type_embedding", init, (self.token_types, dim))
        if self.memory_tokens:
            rows = named(matrix_init(self.memory_stddev), None, "embed")
            self.memory_rows = self.param("memory_tokens", rows, (self.memory_tokens, dim))
        options: dict[str, Any] = {"weighted": self.weighted_norms, "epsilon": self.norm_epsilon}
        self.layer_norm = make_norm("layer_exact", self.dtype, **options)
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> EmptyState:
        """An encoder remembers nothing."""
        return EmptyState()

    @nn.nowrap
    def scores(self) -> VocabularyScores | ChoiceScores:
        """What the head says of its targets."""
        return ChoiceScores() if self.head is None else self.head.scores(self.vocabulary)

    @nn.nowrap
    def output_norm(self) -> str:
        """That of a head whose result the vocabulary scores."""
        return "head/layer_norm/" if self.head is not None and self.head.scores_vocabulary else ""

    @nn.nowrap
    def num_classes(self) -> int:
        """Returns the number of classes of its head. 0 without a head of classes."""
        return 0 if self.head is None else self.head.count_classes()

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """As many as the head has."""
        return self.head.num_targets(length) if self.head is not None else length

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The types of tokens, where it has any; what the layers below its first one give of them."""
        types, states = (batch_size, length), (batch_size, length, self.vocabulary.dim)
        found = {TOKEN_TYPES: jax.ShapeDtypeStruct(types, jnp.int32)} if self.token_types else {}
        return found | ({STATES: jax.ShapeDtypeStruct(states, jnp.float32)} if self.stack.first else {})

    @nn.nowrap
    def padding(self) -> int:
        """Parameters that are padding of its vocabulary."""
        return 0 if self.stack.first else super().padding()

    @nn.nowrap
    def replaced_parameters(self) -> tuple[str, ...]:
        """Also those of what stands below its first layer."""
        below = tuple(f"stack/layer_{index:02d}/" for index in range(self.stack.first))
        return (*super().replaced_parameters(), *(EMBEDDINGS if below else ()), *below)

    @nn.nowrap
    def parameters_below(self, layers: int) -> tuple[str, ...]:
        """Beginnings of the paths of all parameters below the last `layers`, each of which stands alone."""
        numbers = range(len(self.stack.layers) - layers)
        return (*EMBEDDINGS, *(f"stack/layers_{number}/" for number in numbers))

    @nn.nowrap
    def choose_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a batch's extras that the encoder takes."""
        names = ((TOKEN_TYPES,) if self.token_types else ()) + (MASKED_POSITIONS, STATES, *ALLOWED)
        return {name: extras[name] for name in names if name in extras}

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        state: EmptyState,
        *,
        start_of_document: Rows | None = None,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
        side: Side | None = None,
    ) -> tuple[Any, EmptyState, Aux]:
        """Reads texts, one a row.

        Args:
          tokens: of the texts, special ones included.
          state: of nothing.
          start_of_document: every text stands alone.
          mask: real tokens; None = all.
          deterministic: without dropout.
          extras: from `choose_extras`; tokens without types have type 0.
          side: as in `Stack`; of an encoder without memory tokens.

        Returns:
          What the head gives, for `nll` and `log_probs`; the state; sums and requested features.

        Raises:
          ValueError: a text longer than the positions.
        """
        del start_of_document
        read, aux = self.represent(tokens, mask=mask, deterministic=deterministic, extras=extras, side=side)
        if self.head is None:
            return read.hidden, state, aux
        output = self.answer(read, deterministic)
        if self.is_initializing():
            self.scores().log_probs(output[:, :1])
        return output, state, aux

    def represent(
        self,
        tokens: Int[Array, "batch length"],
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
        side: Side | None = None,
    ) -> tuple[EncodedText, Aux]:
        """What the head reads, behind the gate. Arguments as in `__call__`."""
        extras, mask = extras or {}, jnp.ones(tokens.shape, bool) if mask is None else mask
        read = {"token_types": extras.get(TOKEN_TYPES), "states": extras.get(STATES)}
        hidden, aux = self.encode(tokens, mask=mask, **read, deterministic=deterministic, side=side)
        first = jnp.tanh(self.pooler_dense(hidden[:, 0])) if self.pooler else hidden[:, 0]
        if self.pooling == "mean":
            real = mask[..., None]
            total = jnp.sum(jnp.where(real, hidden, 0), axis=1)
            first = total / jnp.maximum(jnp.sum(real, axis=1), 1).astype(hidden.dtype)
        if self.gate is not None:
            first = first * self.gate(tokens, mask=mask, extras=extras)
        return EncodedText(hidden, first, mask, extras), aux

    def answer(self, read: EncodedText, deterministic: bool = True) -> Any:
        """What the head gives of what it reads."""
        assert self.head is not None
        return self.head(read, deterministic)

    def encode(
        self,
        tokens: Int[Array, "batch length"],
        *,
        mask: Mask | None = None,
        token_types: Int[Array, "batch length"] | None = None,
        states: Activations | None = None,
        deterministic: bool = True,
        side: Side | None = None,
    ) -> tuple[Activations, Aux]:
        """The last hidden states, and sums and requested features; `states` are what the first layer reads."""
        batch, length = tokens.shape
        if self.stack.first:
            if states is None and not self.is_initializing():
                raise ValueError("model.first_layer: given texts alone, allowed: texts whose states are in data.states")
            states = jnp.zeros((batch, length, self.vocabulary.dim)) if states is None else states
            x = states.astype(self.dtype)
        else:
            x = self._embed(tokens, token_types, deterministic)
        text_mask, texts = mask, broadcast_mask(mask, batch, length).any(axis=1)
        if own := self.memory_tokens:
            x, mask = prepend_memory(self.memory_rows, x, mask)
        x = constrain(x, "batch", None, None)
        named_arguments = {"start_of_document": jnp.ones(batch, bool), "mask": mask, "deterministic": deterministic}
        hidden, _, aux = self.stack(x, self.stack.init_state(batch), **named_arguments, side=side)
        if own:
            aux += memory_aux(hidden[:, :own], texts)
        hidden = refuse_padding_in_front(hidden[:, own:], text_mask)
        return hidden, aux + Aux(arrays={name: hidden for name in self.features})

    def _embed(self, tokens: Array, token_types: Array | None, deterministic: bool) -> Activations:
        """Embeddings of tokens, their positions and their types, normed."""
        length = tokens.shape[1]
        if length > self.max_length:
            raise ValueError(
                f"tokens: a text of {length} tokens given, allowed: up to {self.max_length}, the positions of the model"
            )
        x = self.vocabulary.embed(tokens) + self.position_embedding[None, :length].astype(self.dtype)
        if self.token_types:
            types = jnp.zeros_like(tokens) if token_types is None else token_types
            x += jnp.take(self.token_type_embedding, types, axis=0, mode="clip").astype(self.dtype)
        return self.drop(self.layer_norm(x), deterministic=deterministic)

    def embed_texts(
        self,
        tokens: Int[Array, "batch length"],
        *,
        mask: Mask | None = None,
        token_types: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch dim"]:
        """Sentence embeddings: the mean of the last hidden states of real tokens, of length 1 (as MiniLM's are)."""
        hidden, _ = self.encode(tokens, mask=mask, token_types=token_types)
        return mean_pooling(hidden, jnp.ones(tokens.shape, bool) if mask is None else mask)


def mean_pooling(hidden: Activations, mask: Mask) -> Float[Array, "batch dim"]:
    """Means over real tokens, scaled to length 1; 0 for a row without a real token.

    Example:
      >>> print(mean_pooling(jnp.array([[[6.0, 0.0], [0.0, 8.0], [9.0, 9.0]]]), jnp.array([[True, True, False]])))
      [[0.6 0.8]]
    """
    hidden = hidden.astype(jnp.promote_types(hidden.dtype, jnp.float32))
    total = jnp.where(mask[..., None], hidden, 0).sum(axis=1)
    length = jnp.sqrt(jnp.square(total).sum(axis=-1, keepdims=True))  # of the mean too, but for a factor
    return jnp.where(length > 0, total / jnp.where(length > 0, length, 1), 0)
