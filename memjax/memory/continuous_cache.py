"""Continuous cache: pairs of recent hidden states and the tokens that followed, as candidates for the next token.

Grave, Joulin, Usunier 2017, "Improving Neural Language Models with a Continuous Cache",
https://arxiv.org/abs/1612.04426. Nothing is learned: the cache is added to a trained model when it is evaluated or
generates.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.functional.fifo import order_after, reset_rows, ring_ages
from memjax.functional.named_operations import operation
from memjax.functional.precision import at_least_float32
from memjax.memory.interface import DecodeState, OutputMemory, broadcast_mask, count_positions
from memjax.memory.next_token_candidates import Mixing, NextTokenCandidates, linear_weight, spread_metrics
from memjax.settings.checks import require
from memjax.settings.ranges import Count
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, tree_dataclass

__all__ = ["ContinuousCacheMemory", "ContinuousCacheState"]

Similarity = Literal["dot", "cosine", "negative_squared_l2"]


@tree_dataclass
class ContinuousCacheState:
    """Ring of the last `memory` pairs of a hidden state and the token that came after it, and the last hidden state,
    whose token is not read yet.

    Attributes:
      hidden: `[batch, memory, dim]`, remembered hidden states.
      tokens: int32 `[batch, memory]`, token after each hidden state.
      valid: bool `[batch, memory]`, slots that hold a pair.
      cursor: int32 `[batch]`, slot that is written next. It holds the oldest pair.
      pending: `[batch, dim]`, last hidden state, whose next token has not been read yet.
      pending_valid: bool `[batch]`, rows with a pending hidden state.
    """

    hidden: Leaf
    tokens: Leaf
    valid: Leaf
    cursor: Leaf
    pending: Leaf
    pending_valid: Leaf


class CacheEntries(NamedTuple):
    """Pairs that are completed by reading a segment: each token, the hidden state before it, and whether the pair
    exists.

    Attributes:
      hidden: `[batch, length, dim]`, hidden state before each token.
      tokens: int32 `[batch, length]`, tokens of the segment.
      valid: bool `[batch, length]`, False at padding and at the first token of a document, which has no pair.
    """

    hidden: Any
    tokens: Any
    valid: Any


@operation
def reset(
    state: ContinuousCacheState, start_of_document: Rows, *, across_documents: bool = False
) -> ContinuousCacheState:
    """Empties the cache of rows that start a document. With `across_documents` they keep their pairs and lose only the
    pending hidden state.
    """
    empty = jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)
    if across_documents:
        return dataclasses.replace(state, pending=empty.pending, pending_valid=empty.pending_valid)
    return empty


@operation
def complete(
    state: ContinuousCacheState, hidden: Activations, tokens: Int[Array, "batch length"], mask: Mask
) -> CacheEntries:
    """Returns the pairs `(h_{t-1}, x_t)` of a segment as `CacheEntries`: each token with the hidden state before it.
    The first has its hidden state from the segment before.

    Hidden states are rounded to the dtype of the state, so that a segment at once equals its tokens one by one.
    """
    hidden = jax.lax.stop_gradient(hidden.astype(state.hidden.dtype))
    before = jnp.concatenate([state.pending[:, None], hidden[:, :-1]], axis=1)
    first = mask & (count_positions(mask) == 0)  # it completes the pending pair, behind padding too
    before = jnp.where(first[..., None], state.pending[:, None], before)
    return CacheEntries(before, tokens, mask & (~first | state.pending_valid[:, None]))


@operation
def read(
    queries: Activations, state: ContinuousCacheState, entries: CacheEntries, *, similarity: Similarity
) -> tuple[Float[Array, "batch length candidates"], Int[Array, "batch 1 candidates"]]:
    """Compares every hidden state in `queries` with the last `memory` completed pairs. Returns the similarities, -inf
    where a pair is not seen, and the tokens of the pairs. `similarity` names the kind.

    Pair `(h_i, x_{i+1})` is seen from the position of `x_{i+1}` on, which predicts the token after it.

    Args:
      queries: Hidden states of the segment.
      state: State before the segment.
      entries: Pairs of the segment.
      similarity: Kind of similarity, see `similarities`.

    Returns:
      Scores, -inf where a pair is not seen, and tokens. Candidates are the slots of the ring, then the segment's pairs.
    """
    memory, length = state.valid.shape[1], entries.valid.shape[1]
    count = jnp.cumsum(entries.valid.astype(jnp.int32), axis=1)  # pairs completed in the segment up to each token
    ages = ring_ages(state.cursor, memory)[:, None, :] + count[:, :, None]
    slot_visible = state.valid[:, None] & (ages < memory)
    behind = count[:, :, None] - count[:, None, :]
    earlier = jnp.tril(jnp.ones((length, length), bool))[None]
    segment_visible = entries.valid[:, None] & earlier & (behind < memory)

    scores = [similarities(queries, keys, similarity) for keys in (state.hidden, entries.hidden)]
    visible = jnp.concatenate([slot_visible, segment_visible], axis=-1)
    tokens = jnp.concatenate([state.tokens, entries.tokens], axis=1)[:, None]
    return jnp.where(visible, jnp.concatenate(scores, axis=-1), -jnp.inf), tokens


@operation
def similarities(
    queries: Activations, keys: Float[Array, "batch memory dim"], kind: Similarity
) -> Float[Array, "batch length memory"]:
    """Returns the similarity of every query to every key, `[batch, queries, keys]`. `kind` is 'dot' `q k`, 'cosine' `q
    k / |q| |k|` or 'negative_squared_l2' `-|q - k|^2`.

    The result is at least float32.

    Example:
      >>> q, k = jnp.array([[[3.0, 0.0]]]), jnp.array([[[2.0, 0.0], [0.0, 5.0]]])
      >>> [similarities(q, k, kind).ravel().tolist() for kind in ("dot", "cosine", "negative_squared_l2")]
      [[6.0, 0.0], [1.0, 0.0], [-1.0, -34.0]]
    """
    dtype = at_least_float32(queries.dtype, keys.dtype)
    queries, keys = queries.astype(dtype), keys.astype(dtype)
    if kind == "negative_squared_l2":
        # Not |q|^2 - 2 q k + |k|^2, which loses the digits that tell near neighbours apart. XLA fuses this into a sum.
        return -jnp.sum(jnp.square(queries[:, :, None] - keys[:, None]), axis=-1)
    products = jnp.einsum("bld,bmd->blm", queries, keys, precision="highest", preferred_element_type=dtype)
    if kind == "dot":
        return products
    norm = lambda x: jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1), jnp.finfo(dtype).tiny))
    return products / norm(queries)[:, :, None] / norm(keys)[:, None]


@operation
def write(state: ContinuousCacheState, entries: CacheEntries, hidden: Activations, mask: Mask) -> ContinuousCacheState:
    """Returns the cache in which the oldest pairs are overwritten with `entries`, those of a segment, and the segment's
    last hidden state is pending.

    Args:
      state: State before the segment.
      entries: Pairs of the segment. Pairs that are not valid take no slot.
      hidden: `[batch, length, dim]`, hidden states of the segment.
      mask: bool `[batch, length]`, real tokens of the segment.
    """
    memory, length = state.valid.shape[1], mask.shape[1]
    count = jnp.cumsum(entries.valid.astype(jnp.int32), axis=1)
    total = count[:, -1:]
    # The last `memory` pairs are stored, each in the slot it would reach. The others go beyond the end and are dropped.
    stored = entries.valid & (count > total - memory)
    beyond = memory + jnp.arange(length, dtype=jnp.int32)[None]
    slots = jnp.where(stored, (state.cursor[:, None] + count - 1) % memory, beyond)
    put = jax.vmap(lambda ring, new, at: ring.at[at].set(new, mode="drop", unique_indices=True))
    last = jnp.max(jnp.where(mask, jnp.arange(length, dtype=jnp.int32)[None], 0), axis=1)
    newest = jax.lax.stop_gradient(jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0])
    has_tokens = mask.any(axis=1)
    return ContinuousCacheState(
        hidden=put(state.hidden, entries.hidden, slots),
        tokens=put(state.tokens, entries.tokens.astype(jnp.int32), slots),
        valid=put(state.valid, entries.valid, slots),
        cursor=(state.cursor + total[:, 0]) % memory,
        pending=jnp.where(has_tokens[:, None], newest.astype(state.pending.dtype), state.pending),
        pending_valid=state.pending_valid | has_tokens,
    )


class ContinuousCacheMemory(OutputMemory):
    """Continuous cache: proposes the tokens that followed similar hidden states of the recent past, for a mixture.

    Grave et al. 2017, https://arxiv.org/abs/1612.04426. A memory behind the last hidden state.

    What is stored: pairs of a last hidden state and the token that was read after it. When written: at every token,
    which completes the pair of the token before. What is differentiable: nothing that is stored, and nothing is
    learned. When reset: at `start_of_document`, or never (`across_documents`).

    Symbols: `h_i, x_{i+1} -> state.hidden, state.tokens`, `theta -> scale`, `lambda -> interpolation_weight`,
    `alpha -> offset`. A token's probability under the cache is the softmax over the pairs of `theta h_t h_i`, added up
    by their tokens. 'linear' mixing interpolates it with the model's. 'global' mixing is one softmax over the model's
    scores and `theta h_t h_i + alpha`.

    Differs from the paper or its code:

    * Documents are separate streams unless `across_documents` is set.
    * The cache is used from the second token on. The AWD-LSTM code waits until it is full.
    * Other similarities can be chosen (that code has the cosine).
    * The last token of a document is never read, so that its pair is not stored.

    `y` is a `NextTokenCandidates`, candidates for the next token, without the residual and without a norm: `x` stays
      as it is.

    Metrics: `continuous_cache/pairs`, the number of pairs that are seen. `continuous_cache/effective_pairs`, how evenly
    the weights are spread over them. It is 1 / pairs if only the most similar one counts: the scale is then too high
    for the hidden states.

    Attributes:
      dim: Width of the hidden states.
      memory_length: Number of pairs.
      mixing: Mixture with the model's distribution: 'linear' or 'global'.
      similarity: Similarity of hidden states: 'dot', 'cosine' or 'negative_squared_l2'.
      interpolation_weight: Share of the cache in linear mixing, 0 to 1.
      scale: Factor of the similarities, which grow with the hidden states: tune it. 0 weighs all pairs equally.
      offset: Summand of the scores in global mixing.
      across_documents: Whether to keep the pairs of earlier documents.
      dtype: Dtype of the computation of the hidden states.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = ContinuousCacheMemory(dim=8, memory_length=4), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool), "tokens": jnp.array([[5, 6, 7, 5]])}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.scores.shape, y.tokens.shape, state.tokens
      ((1, 4, 8), (1, 1, 8), Array([[6, 7, 5, 0]], dtype=int32))
    """

    dim: Count
    memory_length: int
    mixing: Mixing = "linear"
    similarity: Similarity = "dot"
    interpolation_weight: float = 0.1
    scale: float = 0.1
    offset: float = 0.0
    across_documents: bool = False
    dtype: Any = jnp.float32

    input_names = ("tokens",)
    """Names of the further arguments of `__call__` and `decode`."""

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> ContinuousCacheState:
        """Makes an empty cache for `batch_size` rows, with hidden states of `dtype`."""
        self._check()
        return ContinuousCacheState(
            hidden=jnp.zeros((batch_size, self.memory_length, self.dim), dtype),
            tokens=jnp.zeros((batch_size, self.memory_length), jnp.int32),
            valid=jnp.zeros((batch_size, self.memory_length), bool),
            cursor=jnp.zeros((batch_size,), jnp.int32),
            pending=jnp.zeros((batch_size, self.dim), dtype),
            pending_valid=jnp.zeros((batch_size,), bool),
        )

    def __call__(
        self,
        x: Activations,
        state: ContinuousCacheState,
        *,
        start_of_document: Rows,
        tokens: Int[Array, "batch length"],
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[NextTokenCandidates, ContinuousCacheState, Aux]:
        """Compares the segment's hidden states with the pairs completed so far, its own included.

        Args:
          x: Last hidden states.
          state: State before the segment.
          start_of_document: bool `[batch]`, rows that start a document.
          tokens: int32 `[batch, length]`, tokens of the segment.
          mask: bool `[batch, length]`, real tokens.
          deterministic: Not used, nothing is drawn.
        """
        mask = broadcast_mask(mask, *tokens.shape)
        state = reset(state, start_of_document, across_documents=self.across_documents)
        entries = complete(state, x, tokens, mask)
        scores, candidates = read(x, state, entries, similarity=self.similarity)
        # Written after it was read: in place where the state is donated.
        new = write(dataclasses.replace(state, cursor=order_after(state.cursor, scores)), entries, x, mask)
        recalled = self._to_candidates(scores, candidates)
        return recalled, new, Aux(metrics=spread_metrics("continuous_cache", "pairs", recalled.scores, mask))

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows, tokens: Int[Array, "batch 1"]
    ) -> tuple[NextTokenCandidates, DecodeState]:
        """Completes a pair with one token of every active row, and compares its hidden state `x` with all pairs, this
        one included. Returns them as `NextTokenCandidates`, and the decode state.
        """
        mask, state = active[:, None], decode_state.memory
        state = write(state, complete(state, x, tokens, mask), x, mask)
        scores = similarities(x, state.hidden, self.similarity)
        scores = jnp.where(state.valid[:, None], scores, -jnp.inf)
        position = decode_state.position + active.astype(jnp.int32)
        return self._to_candidates(scores, state.tokens[:, None]), DecodeState(state, EmptyState(), position)

    def _to_candidates(self, scores: Array, tokens: Array) -> NextTokenCandidates:
        present = scores > -jnp.inf
        scaled = self.scale * jnp.where(present, scores, 0) + (self.offset if self.mixing == "global" else 0.0)
        scores = jnp.where(present, scaled, -jnp.inf)
        return NextTokenCandidates(scores, tokens, linear_weight(scores, self.interpolation_weight), mixing=self.mixing)

    @nn.nowrap
    def _check(self) -> None:
        pairs, weight = self.memory_length, self.interpolation_weight
        require(pairs >= 1, "memory_length", pairs, "1 or more pairs (leave the cache out for none)")
        require(0 <= weight <= 1, "interpolation_weight", weight, "0 to 1")
