"""SPALM: the tokens that followed similar contexts in a corpus, gated into the last hidden state of a model.

Yogatama, de Masson d'Autume, Kong 2021, "Adaptive Semiparametric Language Models", TACL 9,
https://arxiv.org/abs/2102.02557. Its short-term memory is Transformer-XL's, and this file is the long-term one.
Another, frozen model finds similar contexts before training: `memjax.retrieval.precomputation`.
"""

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import named
from memjax.functional.attention import masked_softmax
from memjax.functional.named_operations import operation
from memjax.memory.interface import DecodeState, OutputMemory, broadcast_mask
from memjax.settings.checks import require
from memjax.settings.ranges import Count
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows, WeightedSum

__all__ = ["SpalmMemory"]

VALUES, MASK = "neighbor_values", "neighbor_mask"
"""Names of two extras of a batch: the tokens that followed the contexts similar to each target's, and their mask. A
token of -1 or a False in the mask means no neighbour."""
TINY = float(np.finfo(np.float32).tiny)


@operation
def read(
    hidden: Activations,
    embedded: Float[Array, "batch length neighbors dim"],
    valid: Bool[Array, "batch length neighbors"],
    scale: float = 1.0,
) -> Activations:
    """Reads the neighbours and returns `m_t = scale * sum_k softmax_k(y_k h_t) y_k`. `hidden` is h_t, `embedded` has
    y_k, the output weights of the neighbours' tokens. 0 where there is no neighbour.

    Args:
      hidden: `[batch, length, dim]`, hidden states `h_t`.
      embedded: `[batch, length, neighbors, dim]`, output weights `y_k` of the neighbours' tokens, with which hidden
        states are compared to the vocabulary.
      valid: bool `[batch, length, neighbors]`, neighbours that exist.
      scale: Factor of the sum. The softmax weights do not depend on it.

    Returns:
      The memory's vector `m_t`, at least float32. 0 where there is no neighbour.
    """
    dtype = jnp.promote_types(jnp.promote_types(hidden.dtype, embedded.dtype), jnp.float32)
    hidden, embedded = hidden.astype(dtype), embedded.astype(dtype)
    weights = masked_softmax(jnp.einsum("bld,blkd->blk", hidden, embedded), valid)
    return scale * jnp.einsum("blk,blkd->bld", weights, jnp.where(valid[..., None], embedded, 0))


@operation
def mix(
    hidden: Activations, memory: Activations, gate: Float[Array, "batch length #dim"], present: Mask
) -> Activations:
    """Mixes memory and hidden state, `z_t = (1 - g_t) m_t + g_t h_t`. Where `present` is False, without a neighbour, it
    is `h_t`.

    Example:
      >>> one = jnp.ones((1, 2, 1))
      >>> mix(2 * one, 6 * one, 0.25 * one, jnp.array([[True, False]])).ravel().tolist()
      [5.0, 2.0]
    """
    mixed = (1 - gate) * memory + gate * hidden.astype(memory.dtype)
    return jnp.where(present[..., None], mixed.astype(hidden.dtype), hidden)


class SpalmMemory(OutputMemory):
    """Long-term memory of SPALM: mixes output weights of the tokens that followed similar contexts into the last hidden
    state, by a gate.

    Yogatama et al. 2021, https://arxiv.org/abs/2102.02557.

    What is stored: nothing here. A datastore, made by a frozen model, holds a key and the token after it for every
    position of a corpus, and the tokens of each target's neighbours come with the batch. What is differentiable: the
    neighbours' output weights, the gate and the hidden state, but not the choice of neighbours. When reset: never.

    Symbols: `h_t^R -> x`, `y_k -> embed_output(neighbor_values)`, `w_g -> weight`.

    Differs from the paper or its code (none is published):

    * The neighbours' part is multiplied by `sqrt(dim)`, the length of a normed hidden state. In trained models output
      weights are 10 to 15 times shorter, so that the gate would have to close for neighbours to have an effect.
      `scale_neighbors = False` does not scale them, as published.
    * Without any neighbour the hidden state is unchanged.
    * A gate for each dimension, a bias and dropout of neighbours can be chosen. The weights of the gate begin at 0 and
      the gate at 1/2, which halves the hidden state too. If a trained model is trained further with neighbours, a bias
      of 2 or 3 preserves what it has learned.

    `y` is the new hidden state, with the residual and without a norm: `gate * x + (1 - gate) * neighbours`.

    Metrics, over positions with neighbours: `gate`. `spalm/added_length` is the length of `(1 - gate) * neighbours`
    divided by that of the hidden state. `spalm/target_among` is the share of positions whose next token is among the
    neighbours' tokens, of those whose next token is in the same segment. It should be the same in training and in
    evaluation, and is not where the article itself is in the store of training tokens. Whether the key model has
    learned them (`memjax.retrieval.cross_fitted_neighbors`) made no such difference in our measurement
    (tools/results/tables/wikitext2_memories.md).

    Attributes:
      dim: Width of the hidden states.
      num_neighbors: Number of neighbours to use, the nearest of those that come with the batch.
      gate: Kind of gate: 'scalar' for one gate per position, `sigmoid(w_g h_t)` with `dim` parameters, or 'vector' for
        one gate per dimension, from a matrix.
      gate_bias: Initial value of a learned bias of the gate, such as 2. None for no bias, as published.
      scale_neighbors: Whether to multiply the neighbours' part by `sqrt(dim)`. False is as published.
      neighbor_dropout: Rate at which each neighbour is left out in training.
      gate_bins: Number of equal bins for which to report the share of tokens whose gate lies in them. 0 for the mean
        only.
      dtype: Dtype of the computation.

    Example:
      >>> import functools, jax, jax.numpy as jnp
      >>> embed = lambda tokens: jax.nn.one_hot(tokens, 8)
      >>> memory, x = SpalmMemory(dim=8, num_neighbors=2), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool), "neighbor_values": jnp.ones((1, 4, 2), int)}
      >>> init = jax.jit(functools.partial(memory.init_with_output, embed_output=embed))
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape
      (1, 4, 8)
    """

    dim: Count
    num_neighbors: int = 4
    gate: Literal["scalar", "vector"] = "scalar"
    gate_bias: float | None = None
    scale_neighbors: bool = True
    neighbor_dropout: float = 0.0
    gate_bins: int = 0
    dtype: Any = jnp.float32

    input_names = ("embed_output", "tokens", VALUES, MASK)
    """Names of the further arguments of `__call__` and `decode`."""
    required_extras = (VALUES,)
    """Names of the arguments that must be among the extras of a batch."""

    def setup(self) -> None:
        size = self.dim if self.gate == "vector" else 1
        shape = (self.dim, size) if self.gate == "vector" else (self.dim,)
        names = ("embed", None)[: len(shape)]
        self.weight = self.param("weight", named(nn.initializers.zeros, *names), shape)
        if self.gate_bias is not None:
            self.bias = self.param("bias", named(nn.initializers.constant(self.gate_bias), None), (size,))

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> EmptyState:
        """Checks the settings and returns the empty state: nothing is remembered between segments."""
        require(self.num_neighbors >= 1, "num_neighbors", self.num_neighbors, "1 or more")
        require(0 <= self.neighbor_dropout < 1, "neighbor_dropout", self.neighbor_dropout, "a rate in [0, 1)")
        require(self.gate_bins >= 0, "gate_bins", self.gate_bins, "0 (none) or more")
        return EmptyState()

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shape and dtype of the only extra that a batch must have, by name: `neighbor_values`, the tokens
        after the neighbours, `[batch, length, neighbors]`.
        """
        return {VALUES: jax.ShapeDtypeStruct((batch_size, length, self.num_neighbors), jnp.int32)}

    def __call__(
        self,
        x: Activations,
        state: EmptyState,
        *,
        start_of_document: Rows,
        embed_output: Callable[[Array], Array],
        mask: Mask | None = None,
        deterministic: bool = True,
        tokens: Int[Array, "batch length"] | None = None,
        neighbor_values: Int[Array, "batch length neighbors"] | None = None,
        neighbor_mask: Bool[Array, "batch length neighbors"] | None = None,
    ) -> tuple[Activations, EmptyState, Aux]:
        """Mixes the neighbours of every position into its hidden state.

        Args:
          x: Last hidden states.
          state: `EmptyState`.
          start_of_document: Not used: a store has no documents.
          embed_output: Function from token ids to output weights of the model with this memory.
          mask: bool `[batch, length]`, real tokens.
          deterministic: Whether to leave out dropout of neighbours.
          tokens: int32 `[batch, length]`, tokens of the segment, for the metric `spalm/target_among`. None if unknown.
          neighbor_values: int32 `[batch, length, neighbors]`, tokens after the neighbours, nearest first. -1 for no
            neighbour. None for no neighbours at all.
          neighbor_mask: bool `[batch, length, neighbors]`, neighbours to use. None for all.
        """
        mask, gate = broadcast_mask(mask, *x.shape[:2]), self.gate_values(x)
        if neighbor_values is None:
            return x, EmptyState(), self._metrics(gate, mask & False)
        values, valid = self._nearest(neighbor_values, neighbor_mask)
        target_metrics = _target_metrics(values, valid, tokens, mask)
        if self.neighbor_dropout and not deterministic:
            valid &= jax.random.bernoulli(self.make_rng("dropout"), 1 - self.neighbor_dropout, valid.shape)
        y, added, present = self._mix(x, gate, embed_output, values, valid)
        counted = present & mask
        ratio = jnp.linalg.norm(added, axis=-1) / jnp.maximum(jnp.linalg.norm(x.astype(added.dtype), axis=-1), TINY)
        length = WeightedSum(
            jnp.where(counted, jax.lax.stop_gradient(ratio), 0).sum(), counted.sum().astype(added.dtype)
        )
        further = Aux(metrics={"spalm/added_length": length, **target_metrics})
        return y, EmptyState(), self._metrics(gate, counted) + further

    def decode(
        self,
        x: Float[Array, "batch 1 dim"],
        decode_state: DecodeState,
        *,
        active: Rows,
        embed_output: Callable[[Array], Array],
        tokens: Int[Array, "batch 1"] | None = None,
        neighbor_values: Int[Array, "batch 1 neighbors"] | None = None,
        neighbor_mask: Bool[Array, "batch 1 neighbors"] | None = None,
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """Mixes the neighbours, given by their tokens `neighbor_values`, into the hidden state of one token of every
        row. Returns it and the decode state. `embed_output` is a function from tokens to output weights.
        """
        y = x
        if neighbor_values is not None:
            y = self._mix(x, self.gate_values(x), embed_output, *self._nearest(neighbor_values, neighbor_mask))[0]
        position = decode_state.position + active.astype(jnp.int32)
        return y, DecodeState(EmptyState(), EmptyState(), position)

    @nn.nowrap
    def _nearest(self, values: Array, mask: Array | None) -> tuple[Array, Array]:
        """Selects the tokens of the nearest neighbours, and which of them count."""
        if values.shape[-1] < self.num_neighbors:
            raise ValueError(f"{VALUES}: given {values.shape[-1]} neighbours, num_neighbors = {self.num_neighbors}")
        values = values[..., : self.num_neighbors]
        return values, values >= 0 if mask is None else (values >= 0) & mask[..., : self.num_neighbors]

    def _mix(
        self, x: Array, gate: Array, embed: Callable[[Array], Array], values: Array, valid: Array
    ) -> tuple[Array, Array, Array]:
        """Returns the new hidden states, the neighbours' part of them, and which positions have any neighbour."""
        present = valid.any(axis=-1)
        scale = self.dim**0.5 if self.scale_neighbors else 1.0
        memory = read(x, embed(jnp.where(valid, values, 0)), valid, scale)
        return mix(x, memory, gate, present), (1 - gate) * memory, present

    @property
    def gate_description(self) -> str:
        """Text that says what the learned gate lets through: the hidden state."""
        return "the hidden state"

    def gate_values(self, hidden: Activations) -> Float[Array, "batch length gates"]:
        """Computes the gate `g_t`, `[batch, length, gates]`, one per position or one per dimension, from the hidden
        states. It is at least float32.
        """
        dtype = jnp.promote_types(hidden.dtype, jnp.float32)
        weight = self.weight.astype(dtype).reshape(self.dim, -1)
        scores = jnp.einsum("bld,de->ble", hidden.astype(dtype), weight)
        if self.gate_bias is not None:
            scores = scores + self.bias.astype(dtype)[None, None]
        return jax.nn.sigmoid(scores)

    def _metrics(self, gate: Array, counted: Array) -> Aux:
        weight = counted.sum().astype(gate.dtype)
        mean = jax.lax.stop_gradient(gate).mean(axis=-1)
        metrics = {"gate": WeightedSum(jnp.where(counted, mean, 0).sum(), weight)}
        edges = np.linspace(0, 1, self.gate_bins + 1)[1:] if self.gate_bins else []
        # A gate on an edge belongs to the lower bin.
        below = [(jnp.where(counted, mean, 2) <= edge).sum().astype(gate.dtype) for edge in edges]
        for index, total in enumerate(below):
            metrics[f"gate_up_to_{edges[index]:.2f}"] = WeightedSum(total - (below[index - 1] if index else 0), weight)
        return Aux(metrics=metrics)


def _target_metrics(values: Array, valid: Array, tokens: Array | None, mask: Array) -> dict[str, WeightedSum]:
    """Measures how often the next token is among the neighbours' tokens, where it is in the segment."""
    if tokens is None:
        return {}
    counted = valid[:, :-1].any(axis=-1) & mask[:, 1:]
    hits = ((values == jnp.roll(tokens, -1, axis=1)[..., None]) & valid)[:, :-1].any(axis=-1) & counted
    return {"spalm/target_among": WeightedSum(hits.sum().astype(jnp.float32), counted.sum().astype(jnp.float32))}
