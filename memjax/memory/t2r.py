"""T2R: linear attention with learned features, with which pre-trained Transformers are trained on as RNNs.

Kasai et al. 2021, "Finetuning Pretrained Transformers into RNNs", https://arxiv.org/abs/2103.13076.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.axes import named
from memjax.functional.linear_attention import Normalizer, relu_features
from memjax.functional.named_operations import operation
from memjax.memory.layer_parts import matrix_init, project_biased
from memjax.memory.linear_transformer import LinearTransformerAttention
from memjax.settings.ranges import Count

__all__ = ["T2RAttention"]


class T2RAttention(LinearTransformerAttention):
    """Linear attention with learned features, for pre-trained softmax Transformers that are converted to RNNs.

    Kasai et al. 2021, https://arxiv.org/abs/2103.13076.

    What is stored: the sums of `phi(k) v^T` and `phi(k)`, a state of fixed size. When written: every token. What is
    differentiable: all of it. When reset: at `start_of_document`.

    Its parameters are those of softmax attention with equal projections, plus `feature_kernel` and `feature_bias`. It
    can continue a model that was trained with `FullAttention(query_key_norm=False, num_buckets=0)` and the same `bias`
    and `norm_kind`. For inference `fold` multiplies the feature map into the projections.

    Symbols: `phi_h(x) = relu(W_h x + b_h) -> feature_kernel, feature_bias`, one map for queries and keys. Queries are
    divided by sqrt(head_dim) before it.

    Differs from the paper or its code: none known (denominators are clamped at 1e-2, as in the code).

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      num_features: Width of the feature map of a head.
      fold_features: Whether the parameters are those that `fold` returns.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = T2RAttention(dim=8, num_heads=2, head_dim=4, num_features=3), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.products.shape
      ((1, 4, 8), (1, 2, 3, 4))
    """

    normalizer: ClassVar[Normalizer] = "clamp"
    eps: ClassVar[float] = 1e-2

    init_gain: float | None = 8**-0.5
    num_features: Count = 32
    fold_features: bool = False

    def setup(self) -> None:
        super().setup()
        if self.fold_features:
            return
        shape = (self.num_heads, self.head_dim, self.num_features)
        kernel = named(matrix_init(None, in_axis=1), "heads", None, None)
        self.feature_kernel = self.param("feature_kernel", kernel, shape)
        bias = named(nn.initializers.zeros, "heads", None)
        self.feature_bias = self.param("feature_bias", bias, (self.num_heads, self.num_features))

    @property
    def _state_sizes(self) -> tuple[int, int, int]:
        return self.num_heads, self.num_features, self.head_dim

    def _projection(self, name: str, width: int = 0) -> tuple[Array, Array | None]:
        if not self.fold_features or name == "value":
            return super()._projection(name, width)
        matrix, bias = super()._projection(name, self.num_features)
        if bias is None:  # the bias of the feature map remains
            shape = (self.num_heads, self.num_features)
            bias = self.param(f"{name}_bias", named(nn.initializers.zeros, "heads", None), shape)
        return matrix, bias

    def _queries(self, y: Array, maps: Any, deterministic: bool) -> Array:
        queries = project_biased(y, self.query, self.query_bias)
        return jax.nn.relu(queries) if self.fold_features else self._features(queries * self.head_dim**-0.5)

    def _keys_values(self, y: Array, maps: Any) -> tuple[Array, Array]:
        keys = project_biased(y, self.key, self.key_bias)
        keys = jax.nn.relu(keys) if self.fold_features else self._features(keys)
        return keys, project_biased(y, self.value, self.value_bias)

    def _features(self, x: Array) -> Array:
        return relu_features(x, self.feature_kernel, self.feature_bias)


@operation
def fold(params: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the parameters of a `T2RAttention`, or of a model with some, to those for `fold_features=True`:
    multiplies every feature map into the projections of queries and keys. Returns a new tree.

    `relu(W_h (W_q x + b_q) + b_h)` is `relu((W_h W_q) x + (W_h b_q + b_h))`, so that no query or key is ever formed.

    Args:
      params: Parameters of a `T2RAttention`, or of a model that contains some. Scanned groups have layers at axis 0.

    Returns:
      The converted tree. Projections with a feature map have the width of the features.
    """
    if "feature_kernel" not in params:
        return {name: fold(value) if isinstance(value, Mapping) else value for name, value in params.items()}
    kernel, shift = params["feature_kernel"], params["feature_bias"]  # [..., heads, head_dim, features]
    folded = {name: value for name, value in params.items() if name not in ("feature_kernel", "feature_bias")}
    for name, scale in (("query", kernel.shape[-2] ** -0.5), ("key", 1.0)):
        folded[name] = scale * jnp.einsum("...xhd,...hdf->...xhf", params[name], kernel)
        bias = params.get(f"{name}_bias")
        moved = 0 if bias is None else scale * jnp.einsum("...hd,...hdf->...hf", bias, kernel)
        folded[f"{name}_bias"] = moved + shift
    return folded
