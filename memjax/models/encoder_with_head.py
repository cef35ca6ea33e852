"""The base class of encoders that end in the head of a task: of texts, sentences and vectors."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from memjax.axes import constrain
from memjax.memory.checks import refuse_padding_in_front
from memjax.models.heads import ALLOWED, STATES, TOKEN_TYPES, ChoiceScorer, EncodedText, VocabularyScorer
from memjax.models.interface import Model
from memjax.models.transformer import LateralInputs
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows

__all__ = ["EncoderWithHead", "LayeredEncoder"]


class EncoderWithHead(Model):
    """The base class of models that read each row independently and end in the head of a task, whose input `encode`
    computes.

    Such a model is called as a language model without memory: `output, state, aux = model(inputs, state, ...)`, then
    `nll(output, targets, weights)` and `log_probs(output)`. Its head decides what the targets are: hidden tokens, the
    class of the row, or the first and last token of an answer. So the code that trains and scores language models also
    handles encoders.

    A subclass has the fields `head` (a `TaskHead`, or None where the output is the last hidden states) and
    `vocabulary`, and the method `encode`. It states as class attributes:

    * `extra_names`: names of the extras of a batch that it reads.
    * `encodes_one_vector`: the hidden states that the head reads are one vector, whatever the length of the row.
    """

    has_separate_head = True
    extra_names = ALLOWED
    encodes_one_vector = False

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> EmptyState:
        """Returns an empty state, `EmptyState`, since an encoder has no memory. The arguments have no effect."""
        return EmptyState()

    @nn.nowrap
    def scorer(self) -> VocabularyScorer | ChoiceScorer:
        """Returns the object that turns the output of the head into losses and log-probabilities of targets, a
        `VocabularyScorer` or a `ChoiceScorer`.
        """
        return ChoiceScorer() if self.head is None else self.head.scorer(self.vocabulary)

    @nn.nowrap
    def num_classes(self) -> int:
        """Returns the number of classes of the head. 0 for a head without classes."""
        return 0 if self.head is None else self.head.count_classes()

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns the number of targets of a row with `length` inputs, which depends on the head, such as 1 for a head
        of classes.
        """
        length = 1 if self.encodes_one_vector else length
        return length if self.head is None else self.head.num_targets(length)

    @nn.nowrap
    def select_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries of a batch's extras that the encoder or its head reads."""
        return {name: extras[name] for name in self.extra_names if name in extras}

    def __call__(
        self,
        inputs: Array,
        state: EmptyState,
        *,
        start_of_document: Rows | None = None,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Any, EmptyState, Aux]:
        """Encodes every row and applies the head.

        Args:
          inputs: `[batch, length]`, token ids with special tokens, or numbers for an encoder of vectors.
          state: Empty state.
          start_of_document: Ignored, since every row is read independently.
          mask: Real tokens, or entries of the vectors to read. None = all.
          deterministic: Whether to run without dropout.
          extras: Extras from `select_extras`.
          **options: Further arguments of `encode`. An encoder of layers takes `side`, a function from a layer's index
            to the tensor added to its output, after its feature is taken.

        Returns:
          The output of the head for `nll` and `log_probs`, the state, and an `Aux` with losses, metrics and
          requested inner tensors.
        """
        del start_of_document
        encoded, aux = self.encode(inputs, mask=mask, deterministic=deterministic, extras=extras, **options)
        if self.head is None:
            return encoded.hidden, state, aux
        output = self.apply_head(encoded, deterministic)
        if self.head.scores_vocabulary and self.is_initializing():
            self.scorer().log_probs(output[:, :1])
        return output, state, aux

    def encode(
        self,
        inputs: Array,
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[EncodedText, Aux]:
        """Returns two values: the input of the head (an `EncodedText`) and an `Aux` with losses, metrics and requested
        inner tensors. See `__call__` for the arguments.
        """
        raise NotImplementedError(f"{type(self).__name__} has no encode")

    def apply_head(self, encoded: EncodedText, deterministic: bool = True) -> Any:
        """Applies the head to the `EncodedText` that `encode` returns, and returns its output, such as class scores
        `[batch, 1, classes]`.
        """
        return self.head(encoded, deterministic)


class LayeredEncoder(EncoderWithHead):
    """The base class of encoders of tokens that are a stack of layers over embeddings. A stack that starts above layer
    0 has no embeddings, and texts come with the input states of its first layer.

    A subclass has the fields `stack`, `vocabulary`, `head`, `features` and `dtype`, and the methods `embed` and `pool`.
    It states as a class attribute:

    * `embedding_parameters`: path prefixes of the parameters below the first layer.
    """

    has_stack = True
    embedding_parameters = ()

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shape and dtype of the input states of the first layer, by name, if the encoder needs them."""
        states = jax.ShapeDtypeStruct((batch_size, length, self.vocabulary.dim), jnp.float32)
        return {STATES: states} if self.stack.first else {}

    @nn.nowrap
    def padding(self) -> int:
        """Returns the number of parameters that only pad the vocabulary. 0 for an encoder without embeddings."""
        return 0 if self.stack.first else super().padding()

    @nn.nowrap
    def replaced_parameters(self) -> tuple[str, ...]:
        """Returns path prefixes of parameters that an ordinary encoder has and this one lacks: those that memories have
        replaced, and all below the first layer that runs.
        """
        below = tuple(f"stack/layer_{index:02d}/" for index in range(self.stack.first))
        return (*super().replaced_parameters(), *(self.embedding_parameters if below else ()), *below)

    @nn.nowrap
    def parameters_below(self, layers: int) -> tuple[str, ...]:
        """Returns path prefixes of all parameters below the last `layers` layers, with the embeddings. The layers must
        not be in scanned groups.
        """
        numbers = range(len(self.stack.layers) - layers)
        return (*self.embedding_parameters, *(f"stack/layers_{number}/" for number in numbers))

    def encode(
        self,
        inputs: Int[Array, "batch length"],
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
        side: LateralInputs | None = None,
    ) -> tuple[EncodedText, Aux]:
        """Returns two values: the input of the head (an `EncodedText`), and an `Aux` with losses, metrics and requested
        inner tensors. `side(index)` is a tensor that is added to the output of a layer. See `__call__`.
        """
        extras, mask = extras or {}, jnp.ones(inputs.shape, bool) if mask is None else mask
        read: dict[str, Any] = {"token_types": extras.get(TOKEN_TYPES), "states": extras.get(STATES)}
        hidden, aux = self.hidden_states(inputs, mask=mask, **read, deterministic=deterministic, side=side)
        return EncodedText(hidden, self.pool(hidden, inputs, mask, extras), mask, extras), aux

    def hidden_states(
        self,
        tokens: Int[Array, "batch length"],
        *,
        mask: Mask | None = None,
        token_types: Int[Array, "batch length"] | None = None,
        states: Activations | None = None,
        deterministic: bool = True,
        side: LateralInputs | None = None,
    ) -> tuple[Activations, Aux]:
        """Computes the last hidden states of texts, and an `Aux` with losses, metrics and requested inner tensors. If
        the first layer is not layer 0, it reads `states` instead of embedded tokens.

        Args:
          tokens: `[batch, length]`, token ids with special tokens.
          mask: Real tokens, at the beginning of each row. None = all.
          token_types: `[batch, length]`, types of the tokens. None = 0. A model without token types ignores them.
          states: `[batch, length, dim]`, input of the first layer where it is not layer 0.
          deterministic: Whether to run without dropout.
          side: Function from a layer's index to the tensor added to its output, see `Stack`.

        Raises:
          ValueError: A text is longer than the number of positions.
        """
        if self.stack.first:
            x = self.input_states(tokens, states).astype(self.dtype)
        else:
            x = self.embed(tokens, token_types, deterministic)
        hidden, aux = self.apply_layers(x, mask, deterministic=deterministic, side=side)
        hidden = refuse_padding_in_front(hidden, mask)
        return hidden, aux + Aux(arrays={name: hidden for name in self.features})

    def embed(self, tokens: Array, token_types: Array | None, deterministic: bool) -> Activations:
        """Returns the embeddings that layer 0 reads, `[batch, length, dim]`. See `hidden_states`."""
        raise NotImplementedError(f"{type(self).__name__} has no embed")

    def apply_layers(self, x: Activations, mask: Mask | None, **options: Any) -> tuple[Activations, Aux]:
        """Applies the layers to states `[batch, length, dim]`, with an empty memory in every row, and returns the last
        hidden states and an `Aux`.

        Args:
          x: `[batch, length, dim]`, input of the first layer.
          mask: Real tokens. None = all.
          **options: `deterministic` and `side` of `Stack`.
        """
        rows = len(x)
        x, state = constrain(x, "batch", None, None), self.stack.init_state(rows, self.dtype)
        hidden, _, aux = self.stack(x, state, start_of_document=jnp.ones(rows, bool), mask=mask, **options)
        return hidden, aux

    def pool(self, hidden: Activations, inputs: Array, mask: Mask, extras: Mapping[str, Any]) -> Array:
        """Returns the vector of each text that a head of classes reads, `[batch, dim]`, given the last hidden states
        and what `encode` was given.
        """
        raise NotImplementedError(f"{type(self).__name__} has no pool")

    def input_states(self, tokens: Array, states: Any) -> Array:
        """Returns the states that the first layer reads where it is not layer 0, zeros to initialize the parameters.

        Raises:
          ValueError: There are none.
        """
        if states is None and not self.is_initializing():
            raise ValueError(
                "model.first_trained_layer: given texts alone, allowed: texts whose states are in "
                "data.encoder_states_dir"
            )
        return jnp.zeros((*tokens.shape, self.vocabulary.dim)) if states is None else states
