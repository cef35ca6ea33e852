"""Norms, residual connections, projections and initialisers that the parts of a layer share."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.axes import named
from memjax.memory.adapters import (
    ADAPTER,
    AdaptableMatrix,
    AdaptedMatrix,
    Adapter,
    Adapters,
    LowRank,
    LowRanks,
    multiply,
)
from memjax.memory.checks import CheckedModule
from memjax.settings.checks import require
from memjax.typing import Activations, Aux

NORM_WEIGHTS = "norm_weights"
"""Name of the weights with which a `WeightedNorm` averages, in the collection `constants`."""
WEIGHTS, VISIBLE = "attention/weights", "attention/visible"
"""Names in `Aux.arrays` of the attention weights, and of the keys that a query may read, of a part with
`track_attention`."""
AGES, SPANS, SOURCES = "attention/ages", "attention/spans", "attention/sources"
"""Names in `Aux.arrays` of the ages, the numbers of tokens and the sources of the keys, see `TrackedKeys`."""
ROW, SEGMENT, SHORT, COMPRESSED, RETRIEVED = range(5)
"""Sources of a key: a learned row without age, the segment itself, the tokens before the segment, a slot that stands
for several tokens, a retrieved token."""
EPSILON = {"layer": 1e-5, "layer_exact": 1e-12, "rms": 1e-6, "rms_offset": 1e-6}
"""Kind of norm -> number added to the variance."""


class WeightedNorm(nn.Module):
    """Layer norm or RMS norm whose means weigh the entries of the residual stream by given constants, for a model that
    has grown in width.

    The copies of one entry share its weight (`memjax.lifelong.expansion`), so that mean and variance are those of the
    model before it grew, whatever the number of copies of each. Equal weights, `1 / dim`, give the ordinary norm.

    Parameters have the names of the ordinary norms. The weights are `constants`, which nothing trains.

    Attributes:
      epsilon: Number added to the variance.
      center: Whether to subtract the mean and to add a bias. False gives the norm of root mean squares.
      dtype: Dtype of the result. Statistics are computed in float32 or wider.
    """

    epsilon: float
    center: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises the last axis of `x`."""
        dim, axis, zeros = x.shape[-1], "embed", nn.initializers.zeros
        last = lambda values: values.reshape((1,) * (x.ndim - 1) + (dim,))
        scale = last(self.param("scale", named(nn.initializers.ones, axis), (dim,)))
        equal = named(lambda: jnp.full((dim,), 1 / dim, jnp.float32), axis)
        weights = last(self.variable("constants", NORM_WEIGHTS, equal).value)
        y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        if self.center:
            y = y - jnp.sum(y * weights, axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.sum(jnp.square(y) * weights, axis=-1, keepdims=True) + self.epsilon) * scale
        if self.center:
            y = y + last(self.param("bias", named(zeros, axis), (dim,)))
        return y.astype(self.dtype)


class OffsetNorm(nn.Module):
    """Norm of root mean squares whose factor of each entry is 1 plus its parameter, as in Gemma.

    Attributes:
      epsilon: Number added to the mean square.
      dtype: Dtype of the result. The mean is computed in float32 or wider.
    """

    epsilon: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises the last axis of `x`."""
        offset = self.param("scale", named(nn.initializers.zeros, "embed"), (x.shape[-1],))
        y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.epsilon)
        return (y * (1 + offset.reshape((1,) * (x.ndim - 1) + offset.shape))).astype(self.dtype)


Activation = Literal["relu", "gelu", "gelu_exact", "silu", "quick_gelu", "tanh", "relu_squared"]
"""Name of an activation function. 'gelu' is the tanh form."""
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": nn.gelu,
    "gelu_exact": lambda x: nn.gelu(x, approximate=False),
    "silu": nn.silu,
    "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
    "tanh": nn.tanh,
    "relu_squared": lambda x: jnp.square(nn.relu(x)),
}
"""Name in the settings -> activation function."""


GatedActivation = Literal["swiglu", "geglu"]
"""Name of a feed-forward part whose hidden layer is gated by a third matrix."""
GATED_ACTIVATIONS: dict[str, Activation] = {"swiglu": "silu", "geglu": "gelu"}
"""Name in the settings -> activation of the gate."""


NormPlace = Literal["post", "pre", "after", "both"]
"""Place of the norm of a part. See `Residual`."""
NormKind = Literal["rms", "layer", "layer_exact", "rms_offset"]
"""Kind of a norm. See `make_norm`."""


def make_norm(
    kind: NormKind, dtype: Any, *, exact_variance: bool = False, weighted: bool = False, epsilon: float | None = None
) -> nn.Module:
    """Makes the norm module of a part of a layer. `kind` is 'layer', 'layer_exact', 'rms' or 'rms_offset', `dtype` that
    of the result. Statistics are computed in at least float32.

    Args:
      kind: 'layer' (epsilon 1e-5), 'layer_exact' (epsilon 1e-12, as BERT) 'rms' (no mean, no bias, epsilon 1e-6) or
        'rms_offset' ('rms' with factors of 1 plus the parameters, `OffsetNorm`).
      dtype: Dtype of the result.
      exact_variance: Whether the variance is the mean of squared distances from the mean. False subtracts the squared
        mean from the mean square, which cancels where the mean is large against the spread. 'layer_exact' always has
        the exact variance, 'rms' needs none.
      weighted: Whether the means weigh the entries (`WeightedNorm`).
      epsilon: Number added to the variance. None = that of the kind.
    """
    epsilon = EPSILON[kind] if epsilon is None else epsilon
    if kind == "rms_offset":
        require(not weighted, "weighted_norms", weighted, "False with norm_kind 'rms_offset'")
        return OffsetNorm(epsilon, dtype)
    if weighted:
        return WeightedNorm(epsilon, center=kind != "rms", dtype=dtype)
    ones = named(nn.initializers.ones, "embed")
    if kind.startswith("layer"):
        zeros = named(nn.initializers.zeros, "embed")
        # So small an epsilon needs a variance that cannot come out negative.
        fast = not (kind == "layer_exact" or exact_variance or epsilon < 1e-6)
        return nn.LayerNorm(epsilon, dtype=dtype, scale_init=ones, bias_init=zeros, use_fast_variance=fast)
    return nn.RMSNorm(epsilon=epsilon, dtype=dtype, scale_init=ones)


class Residual(CheckedModule, kw_only=True):
    """Base class of a part of a layer with its norms, dropout on its output, and a residual connection.

    A subclass has the fields `norm`, `norm_kind`, `dropout` and `dtype`. `norm` is the place of the norm: 'post' after
    the residual, 'after' on the output of the part before the residual, 'both' in front of the part and on its output,
    and any other word for in front of the part.

    Attributes:
      weighted_norms: Whether the means of the norm weigh the entries, for a model that has grown in width. Passed to
        `make_norm`.
      norm_epsilon: Number added to the variance. None for that of the kind of norm. Passed to `make_norm`.
      residual_scale: Factor of the part's output in the residual stream.
      adapters: Low-rank adapters of the part's matrices. None for no adapters.
    """

    weighted_norms: bool = False
    norm_epsilon: float | None = None
    residual_scale: float = 1.0
    adapters: Adapters | None = None

    def setup(self) -> None:
        options: dict[str, Any] = {"weighted": self.weighted_norms, "epsilon": self.norm_epsilon}
        self.layer_norm = make_norm(self.norm_kind, self.dtype, **options)
        if self.norm == "both":
            self.output_norm = make_norm(self.norm_kind, self.dtype, **options)
        self.drop = nn.Dropout(self.dropout)
        if self.adapters is not None:
            for matrix in self.adaptable_matrices():
                for name in matrix.names:
                    if name in self.adapters.names:
                        sizes = self.adapters.rank, self.adapters.earlier
                        module = Adapter(matrix.inputs, matrix.outputs, *sizes)
                        setattr(self, f"{ADAPTER}_{name}", module)

    @nn.nowrap
    def adaptable_matrices(self) -> tuple[AdaptableMatrix, ...]:
        """Returns the parameters of the part whose matrices can have adapters. None by default."""
        return ()

    def low_ranks(self, path: str, deterministic: bool) -> LowRanks:
        """Returns the adapters of the matrices in the parameter `path` of the part, without dropout if
        `deterministic`. Empty if it has none.
        """
        names = next((matrix.names for matrix in self.adaptable_matrices() if matrix.path == path), ())
        adapters = self.adapters
        if adapters is None or not set(names) & set(adapters.names):
            return ()

        def low_rank(name: str) -> LowRank:
            a, b = getattr(self, f"{ADAPTER}_{name}")()
            key = None if deterministic or not adapters.dropout else self.make_rng("dropout")
            return LowRank(a, b, key, scale=adapters.scale, dropout=adapters.dropout)

        return tuple(low_rank(name) if name in adapters.names else None for name in names)

    def adapt(self, matrices: Mapping[str, Array], deterministic: bool) -> dict[str, Any]:
        """Returns the parameters of the part by name, in which those with adapters are an `AdaptedMatrix`."""
        adapted = {path: self.low_ranks(path, deterministic) for path in matrices}
        return {
            path: AdaptedMatrix(matrix, adapted[path]) if adapted[path] else matrix for path, matrix in matrices.items()
        }

    def apply_norm(self, x: Activations) -> Activations:
        """Returns the input of the part's first matrix: the residual stream `x`, normed unless `norm` is 'post' or
        'after'.
        """
        return x if self.norm in ("post", "after") else self.layer_norm(x)

    def add_residual(self, x: Activations, y: Activations, deterministic: bool) -> Activations:
        """Returns the residual stream `x` plus the output `y` of the part, after dropout, normed where `norm` says so
        and times `residual_scale`.
        """
        y = self.drop(y, deterministic=deterministic)
        if self.norm in ("after", "both"):
            y = (self.layer_norm if self.norm == "after" else self.output_norm)(y)
        y = x + (y if self.residual_scale == 1 else self.residual_scale * y).astype(x.dtype)
        return self.layer_norm(y) if self.norm == "post" else y


def weight_dropout(part: nn.Module, deterministic: bool) -> dict[str, Any]:
    """Returns the arguments `dropout_rate` and `dropout_key` of `memjax.functional.attention.attention` for the
    attention module `part`, by name. Empty without dropout or if `deterministic`.
    """
    if deterministic or not part.attention_dropout:
        return {}
    return {"dropout_rate": part.attention_dropout, "dropout_key": part.make_rng("dropout")}


class TrackedKeys(NamedTuple):
    """Age in tokens, number of tokens and source of every key that a part reads which tracks its attention.

    Attributes:
      ages: int32 `[#batch, #heads, length, keys]`, how many tokens before each token of the segment the newest token of
        a key was read: 0 = itself, below 0 = after it. Learned rows in front have none.
      spans: int32 `[keys]`, number of tokens that each key stands for.
      sources: int32 `[keys]`, source of each key: `ROW`, `SEGMENT`, `SHORT`, `COMPRESSED` or `RETRIEVED`.
    """

    ages: Array
    spans: Array
    sources: Array

    @classmethod
    def of_slots(cls, places: Array, spans: Array, sources: Array, length: int) -> "TrackedKeys":
        """Returns the facts of the keys of memory slots, followed by those of a segment of `length` tokens. `places`
        are the ages of slots at its first token, `spans` their numbers of tokens, `sources` their kinds.

        Args:
          places: int32 `[#batch, slots]`, the ages of the slots at the first token of the segment.
          spans: int32 `[slots]`, number of tokens that each slot stands for.
          sources: int32 `[slots]`, source of each slot.
          length: Number of tokens of the segment.

        Example:
          >>> print(TrackedKeys.of_slots(jnp.array([[2, 1]]), jnp.ones(2, int), jnp.full(2, SHORT), 2).ages[0, 0])
          [[ 2  1  0 -1]
           [ 3  2  1  0]]
        """
        inside = jnp.broadcast_to(-jnp.arange(length, dtype=jnp.int32), (places.shape[0], length))
        starts = jnp.concatenate([places.astype(jnp.int32), inside], axis=1)
        ages = starts[:, None, None, :] + jnp.arange(length, dtype=jnp.int32)[None, None, :, None]
        behind = lambda values, fill: jnp.pad(values.astype(jnp.int32), (0, length), constant_values=fill)
        return cls(ages, behind(spans, 1), behind(sources, SEGMENT))


def tracked_weights(part: nn.Module, weights: Array, visible: Array | None, keys: TrackedKeys | None = None) -> Aux:
    """Returns an `Aux` with the attention weights of a part, the keys that each query may read, and the facts of
    `keys`. It is empty unless `part.track_attention`.

    Args:
      part: Part of a layer with the field `track_attention`.
      weights: `[batch, heads, queries, keys]`, share of every key in the output of its query.
      visible: bool `[batch, #heads, queries, keys]`, keys that each query may read. None for all keys.
      keys: Ages, extents and sources of the keys. None where they are not known.
    """
    if not part.track_attention:
        return Aux()
    visible_keys = jnp.ones_like(weights[:, :1], bool) if visible is None else visible
    key_facts = {} if keys is None else dict(zip((AGES, SPANS, SOURCES), keys, strict=True))
    return Aux(arrays={WEIGHTS: weights, VISIBLE: visible_keys, **key_facts})


def matrix_init(
    stddev: float | None, in_axis: int | tuple[int, ...] = 0, out_axis: int | tuple[int, ...] = -1
) -> Callable[..., Array]:
    """Makes an initialiser for a matrix: normal with the standard deviation `stddev`, or for None truncated normal
    scaled by fan-in. `in_axis` and `out_axis` are the axes of its inputs and outputs.

    Args:
      stddev: Standard deviation. None for the truncated normal scaled by fan-in.
      in_axis: Input axes of the matrix, for the fan-in.
      out_axis: Output axes of the matrix.
    """
    if stddev is None:
        return nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", in_axis=in_axis, out_axis=out_axis)
    return nn.initializers.normal(stddev)


def xavier_init(
    gain: float | None, in_axis: int | tuple[int, ...] = 0, out_axis: int | tuple[int, ...] = -1
) -> Callable[..., Array]:
    """Makes an initialiser for a matrix: Xavier's uniform times `gain`, or for None a truncated normal scaled by
    fan-in. `in_axis` and `out_axis` are the axes of its inputs and outputs.

    Args:
      gain: Factor of the values. None for the truncated normal scaled by fan-in, `matrix_init(None)`.
      in_axis: Input axes of the matrix, for the fan-in.
      out_axis: Output axes of the matrix.
    """
    if gain is None:
        return matrix_init(None, in_axis, out_axis)
    return nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform", in_axis=in_axis, out_axis=out_axis)


def project(x: Array, matrix: Array | AdaptedMatrix, axes: int = 1) -> Array:
    """Multiplies the last `axes` axes of `x` with the first `axes` axes of `matrix`, in the dtype of `x`. A matrix with
    adapters adds their products.

    Example:
      >>> project(jnp.ones((2, 3, 4)), jnp.ones((4, 5, 6))).shape
      (2, 3, 5, 6)
    """
    return matrix.multiply(x, axes) if isinstance(matrix, AdaptedMatrix) else multiply(x, matrix, axes)


def project_biased(x: Array, matrix: Array | AdaptedMatrix, bias: Array | None) -> Array:
    """Multiplies the last axis of `x`, `[batch, length, in]`, with the first axis of `matrix`, and adds `bias` unless
    it is None.

    Without a bias `x` may have any number of axes. With one it must have three.
    """
    y = project(x, matrix)
    return y if bias is None else y + bias.astype(y.dtype)[None, None]
