"""A gate on the input of a head, computed from the same text or vector by a second network (ANML).

Beaulieu et al., "Learning to Continually Learn", ECAI 2020, https://arxiv.org/abs/2002.09571; for text Holla, Mishra,
Yannakoudakis and Shutova, "Meta-Learning with Sparse Experience Replay for Lifelong Language Learning", 2020,
https://arxiv.org/abs/2009.04891.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.models.heads import make_dense

GATE, GATE_ENCODER = "gate/", "gate/encoder/"
"""Path prefixes of the parameters of a gate, and of the encoder in it."""


class Gate(nn.Module):
    """A module that computes the factors of a gate on the input of a head, `sigmoid(W2 relu(W1 f + b1) + b2)`. `f` is
    the model's input as a second encoder encodes it, or the input itself.

    Attributes:
      width: Width of the tensor that the gate multiplies.
      hidden: Width of the gate's hidden layer.
      encoder: Text encoder without head, of the kind of the model's own encoder. None = `f` is the input itself, a
        vector that a frozen encoder has computed.
      initializer: Initial values of the matrices, one of `memjax.models.heads.INITS`.
      dtype: Dtype of the computation.
    """

    width: int
    hidden: int
    encoder: Any = None
    initializer: str = "normal"
    dtype: Any = jnp.float32

    def setup(self) -> None:
        self.first = make_dense(self.hidden, self.dtype, initializer=self.initializer)
        self.second = make_dense(self.width, self.dtype, initializer=self.initializer)

    def __call__(self, inputs: Array, **read: Any) -> Float[Array, "batch width"]:
        """Computes the factors of the gate, from 0 to 1.

        Args:
          inputs: Inputs of the model, one text or vector a row.
          **read: Further arguments of the encoder's `encode`. It runs without dropout.
        """
        features = inputs if self.encoder is None else self.encoder.encode(inputs, **read)[0].pooled
        return nn.sigmoid(self.second(nn.relu(self.first(features.astype(self.dtype)))))
