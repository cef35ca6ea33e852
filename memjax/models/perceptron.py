"""Multilayer perceptrons, which read vectors of numbers and end in the head of a task.

Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors", Nature 323, 1986,
https://doi.org/10.1038/323533a0; with the rectifiers of Glorot, Bordes and Bengio, "Deep Sparse Rectifier Neural
Networks", AISTATS 2011, https://proceedings.mlr.press/v15/glorot11a.html.

A perceptron has the interface of a text encoder: `output, state, aux = model(vectors, state, ...)`, then `nll(output,
targets, weights)` and `log_probs(output)`. So the code that trains, scores and replays texts also handles pixels and
cached features.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Real

from memjax.axes import constrain, named
from memjax.models.contract import Model
from memjax.models.gate import GATE, Gate
from memjax.models.heads import ALLOWED, INITS, ChoiceScores, EncodedText, TaskHead, VocabularyScores
from memjax.models.transformer import LateralInputs
from memjax.typing import Aux, Batch, EmptyState, Mask, Rows

__all__ = ["Perceptron"]


class NoVocabulary(NamedTuple):
    """A stand-in for the vocabulary of a model that reads no tokens."""

    vocab_size: int = 0


class Perceptron(Model):
    """A perceptron: dense layers with rectifiers and dropout, followed by the head of a task.

    A row is one vector. The `length` of a batch is its width, and entries that the mask leaves out read as 0.

    Differs from the paper or its code: rectifiers instead of sigmoids; biases start at 0.

    Attributes:
      head: Head of the task. It reads the last hidden layer as the `first` of an `EncodedText`.
      widths: Widths of the hidden layers. () = the head reads the vector itself.
      dropout: Dropout rate on the hidden layers.
      initializer: Initial values of the hidden layers' matrices, one of `memjax.models.heads.INITS`.
      features: Inner tensors to return in `Aux.arrays`, `[batch, 1, width]`: `output` for the last hidden layer, or
        `layer_<two digits>/output`.
      gate: Gate on the input of the head. None = no gate.
      dtype: Dtype of the computation.
    """

    head: TaskHead
    widths: tuple[int, ...] = (256,)
    dropout: float = 0.0
    initializer: str = "lecun"
    features: tuple[str, ...] = ()
    gate: Gate | None = None
    dtype: Any = jnp.float32

    vocabulary = NoVocabulary()
    represents = True
    task_parameters = ("head/", GATE)

    def setup(self) -> None:
        matrix, bias = named(INITS[self.initializer], "embed", "mlp"), named(nn.initializers.zeros, "mlp")
        common: dict[str, Any] = {"kernel_init": matrix, "bias_init": bias, "dtype": self.dtype}
        self.layers = [nn.Dense(width, **common) for width in self.widths]
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> EmptyState:
        """Returns an empty state, since a perceptron has no memory."""
        return EmptyState()

    @nn.nowrap
    def scores(self) -> VocabularyScores | ChoiceScores:
        """Returns the object that scores targets given the output of the head."""
        return self.head.scores(None)

    @nn.nowrap
    def padding(self) -> int:
        """Returns 0, since there is no vocabulary to pad."""
        return 0

    @nn.nowrap
    def num_classes(self) -> int:
        """Returns the number of classes of the head. 0 for a head without classes."""
        return self.head.count_classes()

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns the number of targets of a row, as the head says."""
        return self.head.num_targets(1)

    @nn.nowrap
    def example(self, batch_size: int, length: int) -> Batch:
        """Returns the shapes of a batch of vectors."""
        inputs: Any = jax.ShapeDtypeStruct((batch_size, length), jnp.float32)
        return dataclasses.replace(super().example(batch_size, length), inputs=inputs)

    @nn.nowrap
    def choose_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the extras that say which classes may be answered, where a batch has them."""
        return {name: extras[name] for name in ALLOWED if name in extras}

    def __call__(
        self,
        vectors: Real[Array, "batch length"],
        state: EmptyState,
        *,
        start_of_document: Rows | None = None,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
        side: LateralInputs | None = None,
    ) -> tuple[Any, EmptyState, Aux]:
        """Reads vectors, one a row, and applies the head.

        Args:
          vectors: `[batch, width]`, any numbers.
          state: Empty state.
          start_of_document: Ignored, since every vector is read independently.
          mask: Entries of the vectors to read. None = all.
          deterministic: Whether to run without dropout.
          extras: Extras from `choose_extras`.
          side: Function from a layer's index to the tensor that is added to its output, after its feature is taken.

        Returns:
          The output of the head for `nll` and `log_probs`, the state, and requested features.
        """
        del start_of_document
        read, aux = self.represent(vectors, mask=mask, deterministic=deterministic, extras=extras, side=side)
        return self.answer(read, deterministic), state, aux

    def represent(
        self,
        vectors: Real[Array, "batch length"],
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
        side: LateralInputs | None = None,
    ) -> tuple[EncodedText, Aux]:
        """Computes the input of the head after the gate, and requested features before it.

        See `__call__` for the arguments.
        """
        masked = vectors if mask is None else jnp.where(mask, vectors, 0)
        hidden = constrain(masked.astype(self.dtype), "batch", None)
        tensors: dict[str, Any] = {}
        for index, layer in enumerate(self.layers):
            hidden = self.drop(nn.relu(layer(hidden)), deterministic=deterministic)
            tensors[f"layer_{index:02d}/output"] = hidden
            hidden = hidden if side is None else hidden + side(index)[:, 0]
        tensors["output"] = hidden
        is_present = jnp.ones((len(vectors), 1), bool) if mask is None else mask.any(axis=1, keepdims=True)
        read = hidden if self.gate is None else hidden * self.gate(masked)
        text = EncodedText(read[:, None], read, is_present, extras or {})
        return text, Aux(arrays={name: tensors[name][:, None] for name in self.features})

    def answer(self, read: EncodedText, deterministic: bool = True) -> Any:
        """Applies the head to its input."""
        return self.head(read, deterministic)
