"""Multilayer perceptrons: vectors of numbers in, the head of a task out.

Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors", Nature 323, 1986,
https://doi.org/10.1038/323533a0; with the rectifiers of Glorot, Bordes and Bengio, "Deep Sparse Rectifier Neural
Networks", AISTATS 2011, https://proceedings.mlr.press/v15/glorot11a.html.

It has the interface of a text encoder: `output, state, aux = model(vectors, state, ...)`, then `nll(output, targets,
weights)` and `log_probs(output)`. So what trains, scores and replays texts does so with pixels and cached features.
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
from memjax.models.transformer import Side
from memjax.typing import Aux, Batch, EmptyState, Mask, Rows

__all__ = ["Perceptron"]


class NoVocabulary(NamedTuple):
    """Of a model that reads no tokens."""

    vocab_size: int = 0


class Perceptron(Model):
    """Dense layers with rectifiers and dropout, and the head of a task.

    A row is one vector: `length` of a batch is its width, and what the mask leaves out reads as 0.

    Differs from the paper or its code: rectifiers instead of sigmoids; biases begin at 0.

    Attributes:
      head: of the task; it reads the last hidden layer as a text encoder's reads the first token.
      widths: of the hidden layers; () = the head reads the vector itself.
      dropout: rate on the hidden layers.
      initializer: of their matrices, one of `memjax.models.heads.INITS`.
      features: what to return in `Aux.arrays`, `[batch, 1, width]`: `output`, the last hidden layer, or
        `layer_<two digits>/output`.
      gate: on what the head reads, or None.
      dtype: of the computation.
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
        """A perceptron remembers nothing."""
        return EmptyState()

    @nn.nowrap
    def scores(self) -> VocabularyScores | ChoiceScores:
        """What the head says of its targets."""
        return self.head.scores(None)

    @nn.nowrap
    def padding(self) -> int:
        """It has no vocabulary."""
        return 0

    @nn.nowrap
    def num_classes(self) -> int:
        """Returns the number of classes of its head. 0 without a head of classes."""
        return self.head.count_classes()

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """As many as the head has."""
        return self.head.num_targets(1)

    @nn.nowrap
    def example(self, batch_size: int, length: int) -> Batch:
        """Shapes of a batch of vectors."""
        inputs: Any = jax.ShapeDtypeStruct((batch_size, length), jnp.float32)
        return dataclasses.replace(super().example(batch_size, length), inputs=inputs)

    @nn.nowrap
    def choose_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """The classes that may be answered, where a batch says so."""
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
        side: Side | None = None,
    ) -> tuple[Any, EmptyState, Aux]:
        """Reads vectors, one a row.

        Args:
          vectors: any numbers.
          state: of nothing.
          start_of_document: every vector stands alone.
          mask: entries that are there; None = all.
          deterministic: without dropout.
          extras: from `choose_extras`.
          side: `side(layer)` is added to the output of each hidden layer, behind its feature.

        Returns:
          What the head gives, for `nll` and `log_probs`; the state; requested features.
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
        side: Side | None = None,
    ) -> tuple[EncodedText, Aux]:
        """What the head reads, behind the gate; requested features before it. Arguments as in `__call__`."""
        given = vectors if mask is None else jnp.where(mask, vectors, 0)
        hidden = constrain(given.astype(self.dtype), "batch", None)
        tensors: dict[str, Any] = {}
        for index, layer in enumerate(self.layers):
            hidden = self.drop(nn.relu(layer(hidden)), deterministic=deterministic)
            tensors[f"layer_{index:02d}/output"] = hidden
            hidden = hidden if side is None else hidden + side(index)[:, 0]
        tensors["output"] = hidden
        there = jnp.ones((len(vectors), 1), bool) if mask is None else mask.any(axis=1, keepdims=True)
        read = hidden if self.gate is None else hidden * self.gate(given)
        text = EncodedText(read[:, None], read, there, extras or {})
        return text, Aux(arrays={name: tensors[name][:, None] for name in self.features})

    def answer(self, read: EncodedText, deterministic: bool = True) -> Any:
        """What the head gives of what it reads."""
        return self.head(read, deterministic)
