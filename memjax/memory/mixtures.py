"""What a memory at the output site recalls: candidates for the next token, and their mixture with a model's own.

A memory whose output is a distribution of tokens gives it as `Recalled`: scores and tokens of candidates, never an
array as wide as the vocabulary. A model that carries such memories returns a `Prediction`, its last hidden states and
what was recalled, from which both the probability of one token and those of all tokens follow.
"""

import dataclasses
from collections.abc import Callable, Sequence

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
from memjax.functional.scopes import operation
from memjax.typing import EmptyState, Leaf, Mask, Sum, tree_dataclass

__all__ = ["Prediction", "Recalled"]

MIXING = ("linear", "global")


@tree_dataclass
class Recalled:
    """Candidates for the token after each position.

    Attributes:
      scores: `[batch, length, candidates]`, at least float32; -inf = no candidate.
      tokens: int32 `[batch, length, candidates]`, or length 1 where all positions have the same candidates.
      weight: `[batch, length]`, share of the candidates in a linear mixture; 0 where there are none.
      query: `[batch, length, key_dim]`, what a datastore is asked with, or `EmptyState`.
      mixing: 'linear' = two distributions are interpolated; 'global' = one softmax over the model's scores and these
        (static).
    """

    scores: Leaf
    tokens: Leaf
    weight: Leaf
    query: Leaf = EmptyState()
    mixing: str = dataclasses.field(default="linear", metadata={"static": True})


@tree_dataclass
class Prediction:
    """What a model with output memories knows of the next tokens.

    Attributes:
      hidden: `[batch, length, dim]`, its last hidden states.
      recalled: of each memory, in the order in which they are mixed in.
    """

    hidden: Leaf
    recalled: tuple[Recalled, ...]


@operation
def linear_weight(
    scores: Float[Array, "batch length candidates"], weight: float | Float[Array, ""]
) -> Float[Array, "batch length"]:
    """`weight` where there is any candidate, else 0: without candidates the model is left as it is."""
    return jnp.where((scores > -jnp.inf).any(axis=-1), jnp.asarray(weight, scores.dtype), 0)


@operation
def effective_share(scores: Float[Array, "batch length candidates"]) -> Float[Array, "batch length"]:
    """How many candidates the distribution is spread over, `1 / sum(w^2)`, as a share of those there are; 0 of none.

    Example:
      >>> effective_share(jnp.log(jnp.array([[[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 1e-9]]]))).round(3).tolist()
      [[1.0, 0.5]]
    """
    count = (scores > -jnp.inf).sum(axis=-1).astype(scores.dtype)
    squares = jnp.square(jnp.exp(candidate_log_weights(jax.lax.stop_gradient(scores)))).sum(axis=-1)
    return jnp.where(count > 0, 1 / jnp.where(count > 0, squares * count, 1), 0)


@operation
def spread_metrics(memory: str, candidates: str, scores: Array, mask: Mask) -> dict[str, Sum]:
    """Means over the real tokens: how many candidates there are, and the share that weights are spread over."""
    found = jnp.where(mask, (scores > -jnp.inf).sum(axis=-1), 0)
    share = jnp.where(mask, effective_share(scores), 0)
    total = lambda values: values.sum().astype(scores.dtype)
    return {
        f"{memory}/{candidates}": Sum(total(found), total(mask)),
        f"{memory}/effective_{candidates}": Sum(total(share), total(mask & (found > 0))),
    }


@operation
def recalled_log_prob(recalled: Recalled, targets: Int[Array, "batch length"]) -> Float[Array, "batch length"]:
    """Log-probability of the targets under the candidates alone; -inf where none is the target."""
    return candidate_log_prob(candidate_log_weights(recalled.scores), recalled.tokens, targets)


@operation
def mix_log_prob(
    log_prob: Float[Array, "batch length"],
    targets: Int[Array, "batch length"],
    recalled: Sequence[Recalled],
    log_normalizer: Callable[[], Float[Array, "batch length"]],
) -> Float[Array, "batch length"]:
    """Log-probability of the targets after all mixtures, one after the other.

    Args:
      log_prob: of the targets under the model alone.
      targets: the tokens.
      recalled: what is mixed in; the first is mixed with the model, the next with the result.
      log_normalizer: gives the logarithm of the sum of the model's exponentiated scores; called for 'global' only.
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
    recalled: Sequence[Recalled],
    log_normalizer: Callable[[], Float[Array, "batch length"]],
) -> Float[Array, "batch length vocab"]:
    """Log-probabilities of the whole vocabulary after all mixtures; arguments as in `mix_log_prob`."""
    vocab_size = log_probs.shape[-1]
    for part in recalled:
        if part.mixing == "global":
            matching = candidate_log_probs(part.scores, part.tokens, vocab_size)
            log_probs = join_log_probs(log_probs, log_normalizer(), matching, candidate_log_total(part.scores))
        else:
            others = candidate_log_probs(candidate_log_weights(part.scores), part.tokens, vocab_size)
            log_probs = interpolate_log_probs(log_probs, others, part.weight)
    return log_probs
