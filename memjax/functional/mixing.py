"""Mixtures of what was read from a memory and what was read locally: vectors of heads, and distributions of tokens.

A memory proposes tokens as candidates, each a score and a token. Several candidates may be the same token. Their
softmax is a distribution over the vocabulary, and everything here stays in its logarithm, in at least float32. A score
of minus infinity marks no candidate, and a logarithm of minus infinity a token without probability.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.named_operations import operation
from memjax.functional.precision import at_least_float32
from memjax.functional.shapes import check_shapes

__all__ = [
    "candidate_log_prob",
    "candidate_log_probs",
    "candidate_log_total",
    "candidate_log_weights",
    "distance_scores",
    "gate_openings",
    "head_gate",
    "interpolate_log_probs",
    "join_log_probs",
    "stop_forward",
]

GateKind = Literal["sigmoid", "tanh"]
"""Function that turns the parameters of a gate into its openings."""
HasMemory = Bool[Array, " batch"] | Bool[Array, "batch length"] | Bool[Array, "batch length heads"]


@operation
def gate_openings(gate_logits: Float[Array, " heads"], kind: GateKind = "sigmoid") -> Float[Array, " heads"]:
    """Returns how far gates are open, the sigmoid or the tanh of their parameters, in at least float32. A parameter of
    0 is a gate that is closed for 'tanh', and half open for 'sigmoid'.

    Args:
      gate_logits: `[heads]`, parameters of the gates.
      kind: Function of the gate: 'sigmoid' or 'tanh'.

    Example:
      >>> import jax.numpy as jnp
      >>> print(gate_openings(jnp.zeros(1)), gate_openings(jnp.zeros(1), "tanh"))
      [0.5] [0.]
    """
    return {"sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}[kind](gate_logits.astype(at_least_float32(gate_logits.dtype)))


@operation
def head_gate(
    gate_logits: Float[Array, " heads"],
    memory_output: Float[Array, "batch length heads value_dim"],
    local_output: Float[Array, "batch length heads value_dim"],
    has_memory: HasMemory | None = None,
    *,
    dilute_empty: bool = False,
    kind: GateKind = "sigmoid",
) -> Float[Array, "batch length heads value_dim"]:
    """Mixes memory and local attention with one learned gate per head: `g * memory + (1 - g) * local`. Where
    `has_memory` is False it is the local output, or with `dilute_empty` `(1 - g) * local`.

    The gate is `g = sigmoid(gate_logits)`, the merge of the Memorizing Transformer (arXiv:2203.08913), or with the kind
    'tanh' `g = tanh(gate_logits)`, which is exactly closed at 0 and still has a gradient there. Differs from its code:
    where there is nothing in memory the local output passes undiluted (g = 0), while the code multiplies it by
    `1 - g` all the same.

    Args:
      gate_logits: `[heads]`, logits of the gates. 0 gives an even mix.
      memory_output: `[batch, length, heads, value_dim]`, output of attention to the memory.
      local_output: `[batch, length, heads, value_dim]`, output of local attention.
      has_memory: bool `[batch]`, `[batch, length]` or `[batch, length, heads]`, whether there was anything to read.
        None for everywhere.
      dilute_empty: Whether to compute `(1 - g) * local` without a memory, as the published code does.
      kind: Function of the gate: 'sigmoid' or 'tanh'.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `local_output`.

    Example:
      >>> import jax.numpy as jnp
      >>> memory, local = jnp.full((2, 1, 1, 1), 4.0), jnp.full((2, 1, 1, 1), 2.0)
      >>> print(head_gate(jnp.zeros(1), memory, local, jnp.array([True, False])).ravel())
      [3. 2.]
    """
    dtype = jnp.promote_types(local_output.dtype, jnp.float32)
    gate = gate_openings(gate_logits.astype(dtype), kind).reshape(1, 1, -1, 1)
    memory, local = memory_output.astype(dtype), local_output.astype(dtype)
    if has_memory is None:
        return (gate * memory + (1 - gate) * local).astype(local_output.dtype)
    present = _per_position(has_memory)
    memory = jnp.where(present, memory, 0)
    if not dilute_empty:
        gate = jnp.where(present, gate, 0)
    return (gate * memory + (1 - gate) * local).astype(local_output.dtype)


@operation
def stop_forward(
    memory_output: Float[Array, "batch length heads value_dim"],
    local_output: Float[Array, "batch length heads value_dim"],
    has_memory: HasMemory | None = None,
) -> Float[Array, "batch length heads value_dim"]:
    """Returns the memory's output, and trains memory and local attention alike in the backward pass. Where `has_memory`
    is False it is the local output.

    It is `memory + (local - stop_gradient(local))`, a merge of the Memorizing Transformer's code: the local path is
    trained although its output is not used.

    Args:
      memory_output: `[batch, length, heads, value_dim]`, output of attention to the memory.
      local_output: `[batch, length, heads, value_dim]`, output of local attention.
      has_memory: bool `[batch]`, `[batch, length]` or `[batch, length, heads]`, whether there was anything to read.
        Elsewhere the local output is used. None for everywhere.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `local_output`, with the exact values of `memory_output`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> ones = jnp.ones((1, 1, 1, 1))
      >>> print(stop_forward(3 * ones, ones).item(), jax.grad(lambda x: stop_forward(3 * ones, x).sum())(ones).item())
      3.0 1.0
    """
    # Grouped so that the forward value is exactly the memory's: (m + c) - c would round.
    mixed = memory_output.astype(local_output.dtype) + (local_output - lax.stop_gradient(local_output))
    return mixed if has_memory is None else jnp.where(_per_position(has_memory), mixed, local_output)


def _per_position(has_memory: Array) -> Array:
    """Reshapes `[batch]`, `[batch, length]` or `[batch, length, heads]` to four axes, 1 where missing."""
    return has_memory.reshape(has_memory.shape + (1,) * (4 - has_memory.ndim))


@operation
def distance_scores(
    distances: Float[Array, "*tokens candidates"],
    temperature: float | Float[Array, ""] = 1.0,
    valid: Bool[Array, "*tokens candidates"] | None = None,
) -> Float[Array, "*tokens candidates"]:
    """Turns distances into scores of candidates, `-distance / temperature`, -inf where `valid` is False (kNN-LM,
    arXiv:1911.00172, temperature 1).

    Args:
      distances: `[..., candidates]`, squared L2 distances, or negative inner products.
      temperature: Divisor of the distances, above 0. Infinity makes all candidates equal.
      valid: bool `[..., candidates]`, candidates that exist. The distances of others may be anything. None for all.

    Returns:
      `[..., candidates]`, at least float32. -inf where not valid.

    Example:
      >>> import jax.numpy as jnp
      >>> print(distance_scores(jnp.array([1.0, 4.0, jnp.nan]), 2.0, jnp.array([True, True, False])))
      [-0.5 -2.  -inf]
    """
    distances = distances.astype(jnp.promote_types(distances.dtype, jnp.float32))
    if valid is None:
        return -distances / temperature
    return jnp.where(valid, -jnp.where(valid, distances, 0) / temperature, -jnp.inf)


@operation
def candidate_log_weights(scores: Float[Array, "*tokens candidates"]) -> Float[Array, "*tokens candidates"]:
    """Computes the logarithm of the softmax over candidates, the last axis of `scores`. -inf marks no candidate, in
    scores and result.

    Args:
      scores: `[..., candidates]`, scores. -inf marks no candidate.

    Returns:
      `[..., candidates]`, at least float32: -inf where there is no candidate, also where there is none at all.
      Gradients are finite, and 0 where there is no candidate.

    Example:
      >>> import jax.numpy as jnp
      >>> print(jnp.exp(candidate_log_weights(jnp.array([0.0, -jnp.inf, 0.0]))))
      [0.5 0.  0.5]
    """
    total = candidate_log_total(scores)
    present = scores > -jnp.inf
    known = jnp.where(present, scores, 0) - jnp.where(total > -jnp.inf, total, 0)[..., None]
    return jnp.where(present, known, -jnp.inf)


@operation
def candidate_log_total(scores: Float[Array, "*tokens candidates"]) -> Float[Array, "*tokens"]:
    """Computes the logarithm of the sum of the exponentiated scores of the candidates of each position. -inf where
    there is no candidate.

    Args:
      scores: `[..., candidates]`, scores. -inf marks no candidate.

    Returns:
      `[...]`, at least float32. -inf, without a gradient, where there is no candidate.

    Example:
      >>> import jax.numpy as jnp
      >>> print(candidate_log_total(jnp.array([[0.0, -jnp.inf], [-jnp.inf, -jnp.inf]])))
      [  0. -inf]
    """
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    return _log_sum(scores, scores > -jnp.inf)


@operation
def candidate_log_prob(
    log_weights: Float[Array, "*#tokens candidates"],
    tokens: Int[Array, "*#tokens candidates"],
    targets: Int[Array, "*tokens"],
) -> Float[Array, "*tokens"]:
    """Computes the log-probability of one target at each position: the sum over the candidates whose token is the
    target. -inf where there is none.

    Args:
      log_weights: `[..., candidates]`, from `candidate_log_weights`, or scores, for a sum that is not normalised. Axes
        may be 1.
      tokens: int `[..., candidates]`, tokens of the candidates. Axes may be 1.
      targets: int `[...]`, tokens whose probability to compute.

    Returns:
      `[...]` in the dtype of `log_weights`. -inf where no candidate is the target.

    Example:
      >>> import jax.numpy as jnp
      >>> log_weights = jnp.log(jnp.array([0.5, 0.25, 0.25]))
      >>> print(jnp.exp(candidate_log_prob(log_weights, jnp.array([7, 3, 7]), jnp.array(7))))
      0.75
    """
    return _log_sum(log_weights, (tokens == targets[..., None]) & (log_weights > -jnp.inf))


@operation
def candidate_log_probs(
    log_weights: Float[Array, "*tokens candidates"], tokens: Int[Array, "*#tokens candidates"], vocab_size: int
) -> Float[Array, "*tokens vocab"]:
    """Computes the log-probabilities of the whole vocabulary, `[..., vocab]`, from the log-weights and tokens of
    candidates. -inf for a token of no candidate.

    Equals `candidate_log_prob` of every token, however small its probability.

    Args:
      log_weights: `[..., candidates]`, from `candidate_log_weights`, or scores, for sums that are not normalised.
      tokens: int `[..., candidates]`, tokens of the candidates. Axes may be 1. Numbers outside the vocabulary are left
        out.
      vocab_size: Number of tokens of the vocabulary.

    Returns:
      `[..., vocab]` in the dtype of `log_weights`. -inf where no candidate is the token.

    Example:
      >>> import jax.numpy as jnp
      >>> log_weights = jnp.log(jnp.array([0.5, 0.25, 0.25]))
      >>> print(jnp.exp(candidate_log_probs(log_weights, jnp.array([2, 0, 2]), 3)))
      [0.25 0.   0.75]
    """
    flat = log_weights.reshape(-1, log_weights.shape[-1])
    indices = jnp.broadcast_to(tokens, log_weights.shape).reshape(flat.shape)
    # A negative index would count from the end.
    indices = jnp.where((indices >= 0) & (flat > -jnp.inf), indices, vocab_size)

    def scatter(log_weights: Array, indices: Array) -> Array:
        largest = jnp.full(vocab_size, -jnp.inf, flat.dtype)
        largest = largest.at[indices].max(lax.stop_gradient(log_weights), mode="drop")
        shift = jnp.where(largest > -jnp.inf, largest, 0)
        own_shift = shift.at[indices].get(mode="fill", fill_value=0)
        weights = jnp.where(
            indices < vocab_size, jnp.exp(jnp.where(indices < vocab_size, log_weights, 0) - own_shift), 0
        )
        total = jnp.zeros(vocab_size, flat.dtype).at[indices].add(weights, mode="drop")
        return jnp.where(total > 0, shift + jnp.log(jnp.where(total > 0, total, 1)), -jnp.inf)

    return jax.vmap(scatter)(flat, indices).reshape(*log_weights.shape[:-1], vocab_size)


@operation
def interpolate_log_probs(
    log_probs: Float[Array, "*shape"], others: Float[Array, "*shape"], weight: float | Float[Array, "..."]
) -> Float[Array, "*shape"]:
    """Interpolates two distributions in log space, with the share `weight` of the second: `log((1 - weight)
    exp(log_probs) + weight exp(others))`.

    Args:
      log_probs: Log-probabilities of the first distribution. -inf for no probability.
      others: Log-probabilities of the second distribution.
      weight: Share of the second distribution, 0 to 1. 0 gives the first and 1 the second, bit for bit. The axes of
        an array are the first axes of `log_probs`, of the same size or 1.

    Returns:
      Log-probabilities in the common dtype, at least float32. -inf where both are -inf. Gradients are finite.

    Example:
      >>> import jax.numpy as jnp
      >>> mixed = interpolate_log_probs(jnp.log(jnp.array([0.5, 0.5])), jnp.array([0.0, -jnp.inf]), 0.2)
      >>> [round(float(p), 4) for p in jnp.exp(mixed)]
      [0.6, 0.4]
    """
    _check_leading(log_probs, weight=weight)
    dtype = jnp.promote_types(jnp.promote_types(log_probs.dtype, others.dtype), jnp.float32)
    log_probs, others, weight = log_probs.astype(dtype), others.astype(dtype), jnp.asarray(weight, dtype)
    weight = weight.reshape(weight.shape + (1,) * (log_probs.ndim - weight.ndim))
    inside = (weight > 0) & (weight < 1)
    safe = jnp.where(inside, weight, 0.5)
    mixed = _log_add(log_probs + jnp.log1p(-safe), others + jnp.log(safe))
    return jnp.where(inside, mixed, jnp.where(weight > 0.5, others, log_probs))


@operation
def join_log_probs(
    log_probs: Float[Array, "*shape"],
    log_normalizer: Float[Array, "..."],
    matching: Float[Array, "*shape"],
    total: Float[Array, "..."],
) -> Float[Array, "*shape"]:
    """Mixes vocabulary and candidates in one softmax over all their scores (arXiv:1612.04426). `matching` is the
    log-sum-exp of the scores of candidates that are the token, `total` that of all candidates.

    `p(w) = (exp(logit_w) + sum over candidates that are w of exp(score)) / (sum of exp over all logits and scores)`.

    Args:
      log_probs: Log-probabilities of the softmax over the vocabulary alone.
      log_normalizer: Logarithm of the sum of exponentiated vocabulary scores, for the leading axes of `log_probs`.
      matching: Logarithm of the sum over the candidates that are the token, from `candidate_log_prob` (or
        `candidate_log_probs`) of scores.
      total: Logarithm of the sum over all candidates, from `candidate_log_total`, for the leading axes of `log_probs`.

    Returns:
      Log-probabilities in the dtype of `log_probs`, equal to it bit for bit where there is no candidate.

    Example:
      >>> import jax.numpy as jnp
      >>> logits, scores = jnp.log(jnp.array([1.0, 3.0])), jnp.log(jnp.array([4.0]))  # a candidate for token 0
      >>> matching = candidate_log_probs(scores, jnp.array([0]), 2)
      >>> print(jnp.exp(join_log_probs(jax.nn.log_softmax(logits), jnp.log(4.0), matching, scores[0])))
      [0.625 0.375]
    """
    _check_leading(log_probs, log_normalizer=log_normalizer, total=total)
    spread = lambda x: x.reshape(x.shape + (1,) * (log_probs.ndim - x.ndim))
    # Divided by the sum over the vocabulary, so that without candidates nothing is added and nothing rounded.
    normalizer = spread(log_normalizer)
    return _log_add(log_probs, matching - normalizer) - jax.nn.softplus(spread(total) - normalizer)


def _check_leading(log_probs: Array, **others: float | Array) -> None:
    """Raises an error if the axes of the other arrays are not the first axes of `log_probs`."""
    axes = [f"axis_{i}" for i in range(log_probs.ndim)]
    first = {name: (x, " ".join(f"#{axis}" for axis in axes[: jnp.ndim(x)])) for name, x in others.items()}
    check_shapes(log_probs=(log_probs, " ".join(axes)), **first)


def _log_sum(x: Array, present: Array) -> Array:
    """Logarithm of the sum of exponentials over the last axis where `present`. -inf, without gradient, for none."""
    largest = lax.stop_gradient(jnp.max(jnp.where(present, x, -jnp.inf), axis=-1, keepdims=True, initial=-jnp.inf))
    has_any = largest > -jnp.inf
    largest = jnp.where(has_any, largest, 0)
    total = jnp.sum(jnp.where(present, jnp.exp(jnp.where(present, x, largest) - largest), 0), axis=-1, keepdims=True)
    return jnp.where(has_any, largest + jnp.log(jnp.where(has_any, total, 1)), -jnp.inf)[..., 0]


def _log_add(a: Array, b: Array) -> Array:
    """Computes `log(exp(a) + exp(b))`, exactly the other one if one is -inf. Gradients are finite even if both are."""
    larger, smaller = jnp.maximum(a, b), jnp.minimum(a, b)
    both_finite = smaller > -jnp.inf
    gap = jnp.where(both_finite, smaller, 0) - jnp.where(both_finite, larger, 0)
    return larger + jnp.where(both_finite, jnp.log1p(jnp.exp(gap)), 0)
