"""Candidates for the next token from a memory behind the last hidden state, and their mixture with the model's own.

A memory whose output is a distribution of tokens returns it as `NextTokenCandidates`, the scores and tokens of
candidates, never
as an array as wide as the vocabulary. A model with such memories returns a `Prediction`, its last hidden states and the
candidates of every memory. The probability of one token and those of all tokens follow from it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.functional.mixing import (
    candidate_log_prob,
    candidate_log_probs,
    candidate_log_total,
    candidate_log_weights,
    interpolate_log_probs,
    join_log_probs,
)
from memjax.functional.named_operations import operation
from memjax.typing import EmptyState, Leaf, Mask, WeightedSum, tree_dataclass

__all__ = ["Prediction", "NextTokenCandidates"]

Mixing = Literal["linear", "global"]


@tree_dataclass
class NextTokenCandidates:
    """Candidates for the token after each position, with their scores, from one memory.

    Attributes:
      scores: `[batch, length, candidates]`, score of each candidate, at least float32. -inf marks no candidate.
      tokens: int32 `[batch, length, candidates]`, token of each candidate. Length 1 where all positions have the same
        candidates.
      weight: `[batch, length]`, share of the candidates in a linear mixture. 0 where there are no candidates.
      query: `[batch, length, key_dim]`, query for a datastore. `EmptyState` for none.
      mixing: 'linear' interpolates two distributions. 'global' takes one softmax over the model's scores and `scores`
        (static).
    """

    scores: Leaf
    tokens: Leaf
    weight: Leaf
    query: Leaf = EmptyState()
    mixing: str = dataclasses.field(default="linear", metadata={"static": True})


@tree_dataclass
class Prediction:
    """Last hidden states of a model with output memories, and the candidates for the next tokens from each memory.

    Attributes:
      hidden: `[batch, length, dim]`, last hidden states of the model.
      recalled: Candidates of each memory, in the order in which they are mixed into the model's distribution.
    """

    hidden: Leaf
    recalled: tuple[NextTokenCandidates, ...]


@operation
def linear_weight(
    scores: Float[Array, "batch length candidates"], weight: float | Float[Array, ""]
) -> Float[Array, "batch length"]:
    """Returns the weight of the candidates in a linear mixture at every position: `weight` where any score is above
    -inf, else 0 for the model alone.
    """
    return jnp.where((scores > -jnp.inf).any(axis=-1), jnp.asarray(weight, scores.dtype), 0)


@operation
def effective_share(scores: Float[Array, "batch length candidates"]) -> Float[Array, "batch length"]:
    """Returns how evenly the softmax weights of the candidates are spread at every position, `1 / (n sum(w^2))` for `n`
    candidates, 1 for equal weights. 0 for no candidates.

    Example:
      >>> effective_share(jnp.log(jnp.array([[[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 1e-9]]]))).round(3).tolist()
      [[1.0, 0.5]]
    """
    count = (scores > -jnp.inf).sum(axis=-1).astype(scores.dtype)
    squares = jnp.square(jnp.exp(candidate_log_weights(jax.lax.stop_gradient(scores)))).sum(axis=-1)
    return jnp.where(count > 0, 1 / jnp.where(count > 0, squares * count, 1), 0)


@operation
def spread_metrics(memory: str, candidates: str, scores: Array, mask: Mask) -> dict[str, WeightedSum]:
    """Returns two metrics by name, means over real tokens: `<memory>/<candidates>`, the number of candidates, and
    `<memory>/effective_<candidates>`, how evenly their weights are spread. `memory` and `candidates` are names.
    """
    num_candidates = jnp.where(mask, (scores > -jnp.inf).sum(axis=-1), 0)
    share = jnp.where(mask, effective_share(scores), 0)
    total = lambda values: values.sum().astype(scores.dtype)
    return {
        f"{memory}/{candidates}": WeightedSum(total(num_candidates), total(mask)),
        f"{memory}/effective_{candidates}": WeightedSum(total(share), total(mask & (num_candidates > 0))),
    }


@operation
def recalled_log_prob(
    recalled: NextTokenCandidates, targets: Int[Array, "batch length"]
) -> Float[Array, "batch length"]:
    """Returns the log-probability of each target, `[batch, length]`, according to the candidates `recalled` alone. -inf
    where no candidate is the target.
    """
    return candidate_log_prob(candidate_log_weights(recalled.scores), recalled.tokens, targets)


@operation
def mix_log_prob(
    log_prob: Float[Array, "batch length"],
    targets: Int[Array, "batch length"],
    recalled: Sequence[NextTokenCandidates],
    log_normalizer: Callable[[], Float[Array, "batch length"]],
) -> Float[Array, "batch length"]:
    """Mixes the candidates of all memories into the log-probability of the target tokens, one memory after the other.
    `log_normalizer` is a function that returns the log-sum-exp of the model's scores.

    Args:
      log_prob: `[batch, length]`, log-probability of the targets according to the model alone.
      targets: int32 `[batch, length]`, target tokens.
      recalled: Candidates of each memory. The first are mixed with the model, the next with the result.
      log_normalizer: Function that returns the logarithm of the sum of the model's exponentiated scores. Called for
        candidates of the mixing 'global' only.
    """
    for part in recalled:
        if part.mixing == "global":
            matching = candidate_log_prob(part.scores, part.tokens, targets)
            log_prob = join_log_probs(log_prob, log_normalizer(), matching, candidate_log_total(part.scores))
        else:
            log_prob = interpolate_log_probs(log_prob, recalled_log_prob(part, targets), part.weight)
    return log_prob


@operation
def mix_log_probs(
    log_probs: Float[Array, "batch length vocab"],
    recalled: Sequence[NextTokenCandidates],
    log_normalizer: Callable[[], Float[Array, "batch length"]],
) -> Float[Array, "batch length vocab"]:
    """Mixes the candidates of all memories into the log-probabilities of the whole vocabulary, one memory after the
    other. `log_normalizer` is a function that returns the log-sum-exp of the model's scores.
    """
    vocab_size = log_probs.shape[-1]
    for part in recalled:
        if part.mixing == "global":
            matching = candidate_log_probs(part.scores, part.tokens, vocab_size)
            log_probs = join_log_probs(log_probs, log_normalizer(), matching, candidate_log_total(part.scores))
        else:
            others = candidate_log_probs(candidate_log_weights(part.scores), part.tokens, vocab_size)
            log_probs = interpolate_log_probs(log_probs, others, part.weight)
    return log_probs
