"""infinity-former: attention with a long-term memory of constant size, a continuous signal that holds all of the past.

Martins, Marinho, Martins 2022, "infinity-former: Infinite Memory Transformer", https://arxiv.org/abs/2109.00301.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from memjax.axes import axes_of, named
from memjax.functional.gaussian_basis import (
    GaussianBasis,
    bin_masses,
    gaussian_basis,
    kl_to_prior,
    quantile_positions,
    sample_positions,
)
from memjax.functional.precision import at_least_float32
from memjax.memory.checks import MUST_BE_GIVEN, CheckedModule
from memjax.memory.hidden_state_attention import HiddenStateSegment, SegmentAttention
from memjax.memory.interface import DecodeState, where_rows
from memjax.memory.layer_parts import matrix_init, project
from memjax.memory.long_term_signal import (
    Densities,
    LongTermState,
    attention_densities,
    gate,
    initial_densities,
    read,
    reset,
    signal_matrices,
    update,
)
from memjax.memory.projector import Weights
from memjax.memory.transformer_xl import TransformerXLAttention
from memjax.settings.checks import require
from memjax.settings.ranges import Count, HeadDim
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, WeightedSum, tree_dataclass

__all__ = ["InfinityFormerAttention", "InfinityFormerState", "LongTermMemory"]

LOSS = "infinity_former/kl"
"""Name of the regulariser in `Aux.losses`."""


@tree_dataclass
class LongTermSegment:
    """Buffers of the long-term memory during the decoding of one segment: the updated state, and the keys and values of
    its signal.

    Attributes:
      updated: State after the update at the segment's first token. Its `previous` is still that before the segment.
      pooled: `[batch, 2, heads, head_dim]`, keys of the signal, pooled by the affine maps of mean and variance.
      values: `[batch, basis, heads, head_dim]`, values of the basis functions.
      histogram: `[batch, bins]`, attention mass of the queries so far. `EmptyState` unless updates are sticky.
    """

    updated: LongTermState
    pooled: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    histogram: Leaf


@tree_dataclass
class InfinityFormerState:
    """State of an attention part: its short-term memory, and its long-term memory.

    Attributes:
      short: State of the attention itself, its short-term memory.
      long: State of the long-term memory.
    """

    short: Any
    long: LongTermState


class LongTermWeights(NamedTuple):
    """Parameters of a `LongTermMemory` as plain arrays, all but its output matrix.

    Attributes:
      gate_kernel: `[3, dim, dim]`, kernel of the gate's convolution.
      gate_bias: `[dim]`, bias of the gate's convolution.
      key: `[dim, heads, head_dim]`, W^K.
      value: `[dim, heads, head_dim]`, W^V.
      affine: `[2, basis]`, w_mu and w_sigma.
    """

    gate_kernel: Array
    gate_bias: Array
    key: Array
    value: Array
    affine: Array


class LongTermMemory(CheckedModule):
    """The long-term memory of infinity-former, a continuous signal: a module beside the attention of a layer
    (`InfinityFormerAttention`).

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      segment_length: Number of tokens of a segment.
      num_basis: Number of basis functions.
      widths: Standard deviations of the basis functions.
      num_samples: Number of positions at which the past is read in an update.
      contraction: Share of [0, 1] that the past keeps (tau).
      ridge: Penalty of the regression.
      sticky: Positions at which an update reads the past: 'none' for evenly spaced ones, 'sample' draws them where the
        queries looked, 'quantile' takes the quantiles of the same histogram. In a deterministic call 'sample' takes
        the quantiles too.
      num_bins: Number of bins of the histogram.
      jitter_samples: Whether to draw positions inside a bin instead of its left edge.
      reset_after_tokens: Number of tokens after which the signal begins anew. None for never inside a document.
      density_init: Densities before training. 'prior' have the standard deviation `prior_stddev`, and each head
        looks at its own part of the signal. 'published' are all at the middle of the signal with 0.83, and nothing in
        the signal tells them apart.
      prior_stddev: Standard deviation sigma_0 of the regulariser.
      min_variance: Smallest variance of a density.
      init_stddev: Standard deviation of initial matrices. None for a truncated normal scaled by fan-in.
      zero_output: Whether the output matrix begins with zeros, so that a memory that is added to a trained model
        changes nothing before it is trained.
      track_attention: Whether `Aux.arrays` has the arrays for `memjax.inspection.memory_maps`: `infinity_former/mean`
        and `infinity_former/variance` `[batch, heads, length]`, `infinity_former/tokens` `[batch, length, dim]` and
        `infinity_former/entered` bool `[batch, length]` of the tokens that entered the signal, and for sticky updates
        `infinity_former/positions` `[batch, samples]`, the quantiles of the histogram.
      dtype: Dtype of the computation.
    """

    dim: Count
    num_heads: Count
    head_dim: HeadDim = 0
    segment_length: Count = MUST_BE_GIVEN
    num_basis: int = 512
    widths: tuple[float, ...] = (0.01, 0.05)
    num_samples: int = 512
    contraction: float = 0.5
    ridge: float = 0.5
    sticky: Literal["none", "sample", "quantile"] = "none"
    num_bins: Count = 128
    jitter_samples: bool = False
    reset_after_tokens: int | None = None
    density_init: Literal["prior", "published"] = "prior"
    prior_stddev: float = 0.05
    min_variance: float = 1e-4
    init_stddev: float | None = None
    zero_output: bool = False
    track_attention: bool = False
    dtype: Any = jnp.float32

    def setup(self) -> None:
        heads, init = (self.num_heads, self.head_dim), matrix_init(self.init_stddev, out_axis=(1, 2))
        inner, outer = named(init, "embed", "heads", None), matrix_init(self.init_stddev, (0, 1))
        outer = nn.initializers.zeros if self.zero_output else outer
        kernel = named(nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal"), None, "embed", None)
        self.gate_kernel = self.param("gate_kernel", kernel, (3, self.dim, self.dim))
        self.gate_bias = self.param("gate_bias", named(nn.initializers.zeros, "embed"), (self.dim,))
        self.key = self.param("key", inner, (self.dim, *heads))
        self.value = self.param("value", inner, (self.dim, *heads))
        self.output = self.param("output", named(outer, "heads", None, "embed"), (*heads, self.dim))
        affine = named(nn.initializers.normal(self.num_basis**-0.5), None, None)
        self.affine = self.param("affine", affine, (2, self.num_basis))

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> LongTermState:
        """Makes the state of rows without a signal. `dtype` is that of the segment that waits to enter it. The signal
        is at least float32.
        """
        self._check()
        wide, tokens = at_least_float32(dtype), (batch_size, self.segment_length)
        return LongTermState(
            jnp.zeros((batch_size, self.num_basis, self.dim), wide),
            jnp.zeros((batch_size,), bool),
            jnp.zeros((batch_size,), jnp.int32),
            EmptyState() if self.sticky == "none" else jnp.zeros((batch_size, self.num_bins), wide),
            jnp.zeros((*tokens, self.dim), dtype),
            jnp.zeros(tokens, bool),
        )

    @nn.nowrap
    def init_segment(self, state: LongTermState) -> LongTermSegment:
        """Makes the empty buffers for decoding a segment, in the shapes of `state`."""
        batch, heads = state.valid.shape[0], (self.num_heads, self.head_dim)
        copy = lambda tree: jax.tree.map(jnp.zeros_like, tree)
        pooled, values = (jnp.zeros((batch, count, *heads), self.dtype) for count in (2, self.num_basis))
        return LongTermSegment(copy(state), pooled, values, copy(state.histogram))

    def __call__(
        self,
        queries: Float[Array, "batch length heads head_dim"],
        state: LongTermState,
        *,
        mask: Mask,
        deterministic: bool = True,
    ) -> tuple[Activations, LongTermState, Aux]:
        """Lets the waiting tokens enter the signal, then reads it. Rows without a real token keep their state."""
        if queries.shape[1] != self.segment_length:
            raise ValueError(
                f"x: given {queries.shape[1]} tokens, allowed: segment_length = {self.segment_length}; mask the rest"
            )
        weights = self.weights()
        new = self.update_signal(
            weights, state, None if deterministic or self.sticky != "sample" else self.make_rng("memory")
        )
        y, query_densities = self.read(weights, queries, *self.project_signal(weights, new.coefficients))
        y = jnp.where(new.valid[:, None, None], y, 0)
        counted = mask & new.valid[:, None]
        losses = {LOSS: self._divergence(query_densities, counted)}
        arrays = self._tracked_arrays(weights, query_densities, state, mask.any(axis=1))
        new = dataclasses.replace(new, histogram=self.attention_histogram(query_densities, counted))
        new = jax.lax.stop_gradient(where_rows(mask.any(axis=1), new, state))
        return y, new, Aux(losses, self._metrics(query_densities, counted, new.histogram), arrays)

    def weights(self) -> LongTermWeights:
        """Returns the parameters as arrays (`LongTermWeights`), for the functions of decoding inside conditionals."""
        return LongTermWeights(self.gate_kernel, self.gate_bias, self.key, self.value, self.affine)

    @nn.nowrap
    def update_signal(self, weights: LongTermWeights, state: LongTermState, key: Array | None) -> LongTermState:
        """Returns the state with the waiting segment, `state.previous`, moved into the signal. The random `key` draws
        the positions at which a sticky update reads the past. None takes the quantiles.
        """
        return update(
            state,
            self._gate_waiting_tokens(weights, state),
            self._positions(state, key),
            basis=self._basis,
            num_samples=self.num_samples,
            contraction=self.contraction,
            ridge=self.ridge,
            reset_after=self.reset_after_tokens,
        )

    @nn.nowrap
    def project_signal(self, weights: LongTermWeights, coefficients: Array) -> tuple[Array, Array]:
        """Projects the coefficients of the signal to keys pooled by the two affine maps, `[batch, 2, heads, head_dim]`,
        and to values of the basis functions. Returns both.
        """
        pooled = jnp.einsum("bnd,cn->bcd", coefficients, weights.affine.astype(coefficients.dtype))
        return project(pooled.astype(self.dtype), weights.key), project(coefficients.astype(self.dtype), weights.value)

    @nn.nowrap
    def read(
        self, weights: LongTermWeights, queries: Array, pooled: Array, values: Array
    ) -> tuple[Activations, Densities]:
        """Reads the signal with every query, from the keys `pooled` and the `values` of `project_signal`. Returns the
        output, as wide as the residual stream, and the `Densities` of the queries.
        """
        offsets = initial_densities(self.num_heads, self.prior_stddev) if self.density_init == "prior" else None
        query_densities = attention_densities(queries.astype(self.dtype), pooled, self.min_variance, offsets)
        return project(read(query_densities, values, self._basis), self.output, axes=2), query_densities

    def enter_segment(self, state: LongTermState, segment: LongTermSegment, entering: Rows) -> LongTermSegment:
        """Returns the buffers for decoding a segment after the update of the signal, in the rows `entering`, which are
        at the first token of their segment.
        """
        weights = self.weights()

        def enter(segment: LongTermSegment) -> LongTermSegment:
            updated = jax.lax.stop_gradient(self.update_signal(weights, state, None))
            pooled, values = self.project_signal(weights, updated.coefficients)
            histogram = jax.tree.map(jnp.zeros_like, updated.histogram)
            return where_rows(entering, LongTermSegment(updated, pooled, values, histogram), segment)

        return jax.lax.cond(entering.any(), enter, lambda segment: segment, segment)

    def read_token(self, query: Array, segment: LongTermSegment, active: Rows) -> tuple[Array, LongTermSegment]:
        """Reads the signal with the query of one token, `[batch, 1, heads, head_dim]`. Returns what it adds to the
        residual stream, and the buffers. Only `active` rows count in the histogram.
        """
        valid = segment.updated.valid
        y, query_densities = self.read(self.weights(), query, segment.pooled, segment.values)
        masses = self.attention_histogram(query_densities, (active & valid)[:, None])
        histogram = jax.tree.map(lambda sums, more: sums + more.astype(sums.dtype), segment.histogram, masses)
        return jnp.where(valid[:, None, None], y, 0), dataclasses.replace(segment, histogram=histogram)

    @nn.nowrap
    def finish_segment(self, state: LongTermState, segment: LongTermSegment, rows: Rows) -> LongTermState:
        """Returns the state after a segment that was decoded token by token, in the rows `rows`."""
        return where_rows(rows, dataclasses.replace(segment.updated, histogram=segment.histogram), state)

    @nn.nowrap
    def attention_histogram(self, query_densities: Densities, counted: Mask) -> Array | EmptyState:
        """Returns the attention mass in each bin of the signal, `[batch, bins]`, summed over heads and the queries that
        `counted` marks. `EmptyState` unless updates are sticky.
        """
        if self.sticky == "none":
            return EmptyState()
        by_query = bin_masses(*jax.lax.stop_gradient(query_densities), self.num_bins)  # [b, h, l, bins]
        return jnp.where(counted[:, None, :, None], by_query, 0).sum(axis=(1, 2))

    @nn.nowrap
    def _gate_waiting_tokens(self, weights: LongTermWeights, state: LongTermState) -> Array:
        """Applies the gate to the tokens that wait to enter the signal. 0 where there is no token."""
        tokens = jnp.where(state.previous_valid[..., None], state.previous, 0).astype(self.dtype)
        kernel, bias = (leaf.astype(self.dtype) for leaf in (weights.gate_kernel, weights.gate_bias))
        return gate(tokens, kernel, bias)

    @nn.nowrap
    def _positions(self, state: LongTermState, key: Array | None) -> Array | None:
        """Chooses the positions at which a sticky update reads the old signal."""
        if self.sticky == "none":
            return None
        if key is None:
            return quantile_positions(state.histogram, self.num_samples)
        return sample_positions(key, state.histogram, self.num_samples, jitter=self.jitter_samples)

    def _tracked_arrays(
        self, weights: LongTermWeights, query_densities: Densities, state: LongTermState, rows: Array
    ) -> dict[str, Array]:
        """Collects the arrays for `track_attention`. Only `rows`, which have a real token, update their signal."""
        if not self.track_attention:
            return {}
        arrays = {"mean": query_densities.mean, "variance": query_densities.variance}
        arrays |= {"tokens": self._gate_waiting_tokens(weights, state), "entered": state.previous_valid & rows[:, None]}
        positions = self._positions(state, None)
        arrays |= {} if positions is None else {"positions": positions}
        return {f"infinity_former/{name}": array for name, array in arrays.items()}

    @nn.nowrap
    def _metrics(self, query_densities: Densities, counted: Array, histogram: Any) -> dict[str, WeightedSum]:
        """Measures the width of the densities, their mass in [0, 1], and the normalised entropy of the histogram."""
        mean, variance = jax.lax.stop_gradient(query_densities)
        by_name = {"stddev": jnp.sqrt(variance), "inside": bin_masses(mean, variance, 1)[..., 0]}
        sums = {name: _masked_sum(by_query.mean(axis=1), counted) for name, by_query in by_name.items()}
        if self.sticky != "none" and self.num_bins > 1:
            masses = jnp.maximum(histogram, 0)  # a difference of two distribution functions may round to below 0
            entropy = jax.scipy.special.entr(masses / jnp.maximum(masses.sum(axis=1, keepdims=True), 1e-12))
            sums["sticky_evenness"] = _masked_sum(entropy.sum(axis=1) / np.log(self.num_bins), counted.any(axis=1))
        return {f"infinity_former/{name}": value for name, value in sums.items()}

    def _divergence(self, query_densities: Densities, counted: Array) -> WeightedSum:
        return _masked_sum(kl_to_prior(query_densities.variance, self.prior_stddev).mean(axis=1), counted)

    @property
    def _basis(self) -> GaussianBasis:
        return gaussian_basis(self.num_basis, self.widths)

    @nn.nowrap
    def _check(self) -> None:
        signal_matrices(self._basis, self.segment_length, self.num_samples, self.contraction, self.ridge)
        fits = self.reset_after_tokens is None or self.reset_after_tokens >= 1
        require(fits, "reset_after_tokens", self.reset_after_tokens, "at least 1 token, or None")


def _masked_sum(values: Array, counted: Array) -> WeightedSum:
    """Sums the counted values, with their number as the weight."""
    return WeightedSum(jnp.where(counted, values, 0).sum(), counted.sum().astype(values.dtype))


class InfinityFormerAttention(TransformerXLAttention):
    """Attention of an infinity-former layer, with a long-term memory of all older tokens as a continuous signal.

    Martins et al. 2022, https://arxiv.org/abs/2109.00301. The attention itself is Transformer-XL's, whose short-term
    memory may have length 0. Continuous attention to the signal is added to its output.

    What is stored: coefficients of the signal, and the inputs of the part that left the short-term memory last. When
    written: these inputs enter the signal at the start of the next segment, and the signal is contracted to make room.
    What is differentiable: nothing stored. The gate learns through the inputs that enter the signal in the same
    segment, all other parameters through reading. When reset: at `start_of_document`, and every `reset_after_tokens`
    tokens.

    Symbols: `B -> state.long.coefficients`, `X -> state.long.previous`, `psi -> GaussianBasis`, `tau -> contraction`,
    `W^K, W^V, W^O -> key, value, output` of `long_term`, `mu, sigma^2 -> Densities`, `Z_LTM ->` summand of the output
    of the attention before dropout and residual, `p(d_j) -> state.long.histogram`.

    Differs from the paper or its code:

    * The paper does not give the regularisation of the regression, its padding with zeros and the positions. They are
      those of the code (see `memjax.functional.gaussian_basis`).
    * The regulariser is the KL divergence without a term for the mean, as in the code. The paper prints another
      formula.
    * Densities begin at `prior_stddev`, each head's at its own part of the signal. In paper and code all begin at 0.5
      with a standard deviation of 0.83, where a coefficient of 1e-6 leaves them for thousands of updates
      (`density_init="published"`).
    * Keys and values are projected from all of `dim` as in the code. In the paper each head projects its own part.
    * The regression is solved in float64. The code computes an inverse in float32.
    * `reset_after_tokens` is off. The code begins the signal anew every 2,048 tokens, and counts across documents.
    * Positions of sticky updates are drawn in training only, and are the quantiles of the same histogram otherwise. The
      code always draws.
    * The keys are pooled before the product with the queries, which gives equal numbers.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      long_term: Long-term memory. Every call has its `segment_length` tokens, and `memory_length` is 0 or a multiple of
        it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = {"dim": 8, "num_heads": 2, "head_dim": 4}
      >>> signal = LongTermMemory(**sizes, segment_length=4, num_basis=6, widths=(0.1, 0.2), num_samples=5, num_bins=4)
      >>> memory, x = InfinityFormerAttention(**sizes, memory_length=4, long_term=signal), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.long.coefficients.shape
      ((1, 4, 8), (1, 6, 8))
    """

    long_term: LongTermMemory = MUST_BE_GIVEN

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> InfinityFormerState:
        """Makes the state without a signal, and with an empty short-term memory of hidden states in `dtype`."""
        length, slots = self.long_term.segment_length, self._num_slots
        allowed = f"0 or a multiple of segment_length = {length}"
        require(slots % length == 0, "memory_length", slots, allowed)
        short = super().init_state(batch_size, dtype)
        return InfinityFormerState(short, self.long_term.init_state(batch_size, dtype))

    @nn.nowrap
    def init_decode_state(self, state: InfinityFormerState, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state at the start of a segment of `segment_length` tokens, with `state` as the memory and
        empty buffers.
        """
        decode_state = super().init_decode_state(state, segment_length, batch_size)
        further = self.long_term.init_segment(state.long)
        segment = dataclasses.replace(decode_state.segment, further=further)
        return dataclasses.replace(decode_state, segment=segment)

    def _reset(self, state: InfinityFormerState, start_of_document: Array) -> InfinityFormerState:
        short = super()._reset(state.short, start_of_document)
        return InfinityFormerState(short, reset(state.long, start_of_document))

    @nn.nowrap
    def _slots(self, state: InfinityFormerState) -> Any:
        return super()._slots(state.short)

    @nn.nowrap
    def _stored_dtype(self, state: InfinityFormerState) -> Any:
        return state.long.previous.dtype

    def _read_further(
        self, queries: Array, state: InfinityFormerState, mask: Array, deterministic: bool
    ) -> tuple[Array, InfinityFormerState, Aux]:
        y, long, aux = self.long_term(queries, state.long, mask=mask, deterministic=deterministic)
        return y, InfinityFormerState(state.short, long), aux

    def _write(
        self,
        state: InfinityFormerState,
        stored: Array,
        mask: Array,
        attended: Any,
        reading: SegmentAttention | None = None,
    ) -> tuple[InfinityFormerState, Aux]:
        """Writes the segment to the short-term memory. What leaves it waits to enter the signal."""
        leaving, valid, length = stored, mask, mask.shape[1]
        if not isinstance(state.short, EmptyState):
            leaving = jnp.concatenate([state.short.hidden, stored.astype(state.short.hidden.dtype)], axis=1)[:, :length]
            valid = jnp.concatenate([state.short.valid, mask], axis=1)[:, :length]
        previous = jax.lax.stop_gradient(leaving).astype(state.long.previous.dtype)
        long = dataclasses.replace(state.long, previous=previous, previous_valid=valid)
        short, aux = super()._write(state.short, stored, mask, attended, reading)
        return InfinityFormerState(short, where_rows(mask.any(axis=1), long, state.long)), aux

    @property
    def decodes_segments(self) -> bool:
        """False: the continuous memory is read token by token."""
        return False

    def _enter_segment(
        self, memory: InfinityFormerState, segment: HiddenStateSegment, entering: Array, weights: Weights
    ) -> HiddenStateSegment:
        segment = super()._enter_segment(memory, segment, entering, weights)
        further = self.long_term.enter_segment(memory.long, segment.further, entering)
        return dataclasses.replace(segment, further=further)

    def _read_token_further(
        self, query: Array, segment: HiddenStateSegment, active: Array
    ) -> tuple[Array, HiddenStateSegment]:
        y, further = self.long_term.read_token(query, segment.further, active)
        return y, dataclasses.replace(segment, further=further)

    def _write_segment(self, state: InfinityFormerState, segment: HiddenStateSegment, mask: Array) -> Any:
        long = self.long_term.finish_segment(state.long, segment.further, mask.any(axis=1))
        return super()._write_segment(InfinityFormerState(state.short, long), segment, mask)
