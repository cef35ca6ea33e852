"""Multilayer perceptrons, which read vectors of numbers and end in the head of a task.

Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors", Nature 323, 1986,
https://doi.org/10.1038/323533a0; with the rectifiers of Glorot, Bordes and Bengio, "Deep Sparse Rectifier Neural
Networks", AISTATS 2011, https://proceedings.mlr.press/v15/glorot11a.html.

A perceptron has the interface of a text encoder (`memjax.models.encoder_with_head`). So the code that trains, scores
and replays texts also handles pixels and cached features.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Real

from memjax.axes import constrain, named
from memjax.models.encoder_with_head import EncoderWithHead
from memjax.models.gate import GATE, Gate
from memjax.models.heads import INITS, EncodedText, TaskHead
from memjax.models.transformer import LateralInputs
from memjax.models.vocabulary import EmptyVocabulary
from memjax.typing import Aux, Batch, Mask

__all__ = ["Perceptron"]


class Perceptron(EncoderWithHead):
    """A multilayer perceptron over vectors: dense layers with rectifiers and dropout, followed by the head of a task.

    A row is one vector. The `length` of a batch is its width, and entries that the mask leaves out read as 0.

    Differs from the paper or its code: rectifiers instead of sigmoids; biases start at 0.

    Attributes:
      head: Head of the task. It reads the last hidden layer as the `pooled` of an `EncodedText`.
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

    vocabulary = EmptyVocabulary()
    encodes_one_vector = True
    task_parameters = ("head/", GATE)

    def setup(self) -> None:
        matrix, bias = named(INITS[self.initializer], "embed", "mlp"), named(nn.initializers.zeros, "mlp")
        common: dict[str, Any] = {"kernel_init": matrix, "bias_init": bias, "dtype": self.dtype}
        self.layers = [nn.Dense(width, **common) for width in self.widths]
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def example(self, batch_size: int, length: int) -> Batch:
        """Returns a `Batch` of vectors of width `length`, with shapes and dtypes instead of arrays."""
        inputs: Any = jax.ShapeDtypeStruct((batch_size, length), jnp.float32)
        return dataclasses.replace(super().example(batch_size, length), inputs=inputs)

    def encode(
        self,
        inputs: Real[Array, "batch length"],
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
        side: LateralInputs | None = None,
    ) -> tuple[EncodedText, Aux]:
        """Returns two values: the input of the head after the gate (an `EncodedText`), and an `Aux` with requested
        inner tensors before the gate. `side(index)` is a tensor that is added to the output of a layer.

        See `__call__` for the arguments.
        """
        vectors = self.vectors(inputs, mask)
        hidden = constrain(vectors.astype(self.dtype), "batch", None)
        tensors: dict[str, Any] = {}
        for index, layer in enumerate(self.layers):
            hidden = self.drop(nn.relu(layer(hidden)), deterministic=deterministic)
            tensors[f"layer_{index:02d}/output"] = hidden
            hidden = hidden if side is None else hidden + side(index)[:, 0]
        tensors["output"] = hidden
        is_present = jnp.ones((len(inputs), 1), bool) if mask is None else mask.any(axis=1, keepdims=True)
        read = hidden if self.gate is None else hidden * self.gate(vectors)
        text = EncodedText(read[:, None], read, is_present, extras or {})
        return text, Aux(arrays={name: tensors[name][:, None] for name in self.features})

    def vectors(self, inputs: Real[Array, "batch length"], mask: Mask | None) -> Real[Array, "batch width"]:
        """Returns the vectors that the first layer reads: the inputs, with 0 where the mask leaves entries out."""
        return inputs if mask is None else jnp.where(mask, inputs, 0)
