"""Feed-forward parts of Transformer layers, in which a memory in parameters may replace the matrices or be added."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from memjax.axes import named
from memjax.memory.adapters import AdaptableMatrix, add_low_ranks
from memjax.memory.interface import StatelessMemory
from memjax.memory.layer_parts import (
    ACTIVATIONS,
    GATED_ACTIVATIONS,
    Activation,
    GatedActivation,
    NormKind,
    NormPlace,
    Residual,
    matrix_init,
)
from memjax.typing import Activations, Aux, EmptyState, Mask

__all__ = ["FeedForwardLayer", "NoFeedForward"]


class FeedForwardLayer(Residual, StatelessMemory):
    """The feed-forward part of a layer: norm, two matrices and residual. A memory may replace the matrices or be added.

    It computes `x + dense_scale * make_dense(norm(x)) + memory_scale * memory(norm(x))`, or the norm of that sum where
    `norm` is 'post'. With scales (1, 0) it is an ordinary feed-forward part. With (0, 1) the memory replaces the
    matrices (PKM). With (1, 1) both read the same input (ResM, Kim & Jung 2020, where the scales are alpha and beta).

    Attributes:
      dim: Width of the residual stream.
      hidden_dim: Width of the hidden layer.
      activation: Activation function, one of `ACTIVATIONS` ('gelu' is the tanh form), or 'swiglu' or 'geglu'. With
        these a third matrix gates the hidden layer, through SiLU or tanh GELU.
      norm: Place of the norm, 'pre', 'post', 'after' or 'both'. See `Residual`.
      norm_kind: Kind of the norm. See `make_norm`.
      bias: Whether both dense layers have biases.
      dropout: Dropout rate after each dense layer.
      hidden_dropout: Whether dropout also follows the first dense layer. False = the second only.
      init_stddev: Standard deviation of both initial matrices. None = variance scaling by fan-in.
      dtype: Dtype of the computation.
      memory: Memory in parameters, such as `ProductKeyMemory`. None = no memory.
      dense_scale: Factor of the two matrices. 0 = there are none.
      memory_scale: Factor of the memory. 0 = there is none.
    """

    dim: int
    hidden_dim: int
    activation: Activation | GatedActivation = "relu"
    norm: NormPlace = "pre"
    norm_kind: NormKind = "rms"
    bias: bool = True
    dropout: float = 0.0
    hidden_dropout: bool = True
    init_stddev: float | None = None
    dtype: Any = jnp.float32
    memory: StatelessMemory | None = None
    dense_scale: float = 1.0
    memory_scale: float = 1.0

    def setup(self) -> None:
        super().setup()
        init = matrix_init(self.init_stddev)
        gates = 2 if self.activation in GATED_ACTIVATIONS else 1
        self.wide = _dense(gates * self.hidden_dim, self.bias, init, "embed", "mlp", self.dtype)
        self.narrow = _dense(self.dim, self.bias, init, "mlp", "embed", self.dtype)

    def read(self, x: Activations, mask: Mask | None, deterministic: bool) -> tuple[Activations, Aux]:
        """Computes the residual stream after the part from `x`, the stream before it, `[batch, length, dim]`. Also
        returns the `Aux` of the memory.
        """
        normed, aux = self.apply_norm(x), Aux()
        y = self._dense(normed, deterministic) if self.dense_scale else jnp.zeros_like(x)
        if self.dense_scale not in (0, 1):
            y = self.dense_scale * y
        if self.memory is not None and self.memory_scale:
            memory_output, _, aux = self.memory(normed, EmptyState(), mask=mask, deterministic=deterministic)
            y = y + self.memory_scale * memory_output
        return self.add_residual(x, y, deterministic), aux

    def _dense(self, x: Array, deterministic: bool) -> Array:
        """Applies the two matrices with the activation between them."""
        # Products of plain matrices: a CPU runs them faster than products with a batch and a length axis.
        flat = x.reshape(-1, self.dim)
        y = add_low_ranks(self.wide(flat), flat, self.low_ranks("wide/kernel", deterministic))
        if gated := GATED_ACTIVATIONS.get(self.activation):
            gate, y = jnp.split(y, 2, axis=-1)
            y = ACTIVATIONS[gated](gate) * y
        else:
            y = ACTIVATIONS[self.activation](y)
        y = self.drop(y, deterministic=deterministic or not self.hidden_dropout)
        return add_low_ranks(self.narrow(y), y, self.low_ranks("narrow/kernel", deterministic)).reshape(x.shape)

    @nn.nowrap
    def adaptable_matrices(self) -> tuple[AdaptableMatrix, ...]:
        """Returns the parameters whose matrices can have adapters: `wide`, or `gate` and `up` where the hidden layer is
        gated, and `narrow`. None if a memory replaces them.
        """
        if not self.dense_scale:
            return ()
        embed, hidden = ((self.dim, "embed"),), ((self.hidden_dim, "mlp"),)
        wide = ("gate", "up") if self.activation in GATED_ACTIVATIONS else ("wide",)
        return AdaptableMatrix("wide/kernel", wide, embed, hidden), AdaptableMatrix(
            "narrow/kernel", ("narrow",), hidden, embed
        )

    @nn.nowrap
    def replaced_parameter_names(self) -> tuple[str, ...]:
        """Returns `("wide", "narrow")`, the names of the two matrices, if a memory replaces them. Otherwise empty."""
        return () if self.dense_scale else ("wide", "narrow")

    @nn.nowrap
    def excluded_from_scan(self) -> bool:
        """Returns whether the memory of the part keeps its layer out of scanned groups."""
        return self.memory is not None and self.memory.excluded_from_scan()


class NoFeedForward(StatelessMemory):
    """A placeholder for the feed-forward part of layers that have none, such as those of an LSTM."""

    def read(self, x: Activations, mask: Mask | None, deterministic: bool) -> tuple[Activations, Aux]:
        """Returns the input unchanged, and an empty `Aux`."""
        return x, Aux()

    def apply_norm(self, x: Activations) -> Activations:
        """Returns the input unchanged."""
        return x


def _dense(features: int, bias: bool, init: Any, inner: str, outer: str, dtype: Any) -> nn.Dense:
    """Makes a dense layer with logical axis names, for sharding."""
    bias_init = named(nn.initializers.zeros, outer)
    return nn.Dense(features, bias, kernel_init=named(init, inner, outer), bias_init=bias_init, dtype=dtype)
