"""Sampling of the next token: pure functions on logits, applied to every row of a batch.

The order is temperature, `keep_top_k`, `keep_top_p`, and one random draw. `Sampling` holds the settings. Logits may be
log-probabilities, because adding a constant to a row changes no result.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["Sampling", "greedy", "keep_top_k", "keep_top_p", "row_keys", "sample"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings for choosing the next token from the logits of a model.

    Attributes:
      temperature: Temperature that the logits are divided by. 0 takes the most probable token.
      top_k: Number of most probable tokens to sample from. Of equally probable tokens the first ones count. 0 for all.
      top_p: Probability of the smallest set of most probable tokens to sample from, above 0. 1 for all tokens.
      forbidden: Token ids that are never chosen, such as begin and padding tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    forbidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed, fits in [
            ("temperature", "0 (greedy) or more", 0 <= self.temperature < math.inf),
            ("top_k", "0 (all) or more tokens", self.top_k >= 0),
            ("top_p", "a probability in (0, 1]", 0 < self.top_p <= 1),
        ]:
            if not fits:
                raise ValueError(f"{name}: given {getattr(self, name)!r}, allowed: {allowed}")

    def without(self, ids: Iterable[int]) -> Sampling:
        """Returns these settings with further token ids that are never chosen."""
        return dataclasses.replace(self, forbidden=tuple(sorted({*self.forbidden, *ids})))


def greedy(logits: Float[Array, "*batch vocab"]) -> Int[Array, "*batch"]:
    """Returns the token id of the largest logit in each row, the first one of equal logits.

    Example:
      >>> int(greedy(jnp.array([0.1, 2.0, 2.0])))
      1
    """
    return jnp.argmax(logits, axis=-1)


def keep_top_k(logits: Float[Array, "*batch vocab"], k: int) -> Float[Array, "*batch vocab"]:
    """Returns the logits with all but the `k` largest ones of each row set to -inf. 0 keeps all.

    Of equal logits the first ones are kept. 0, or a `k` of at least the size of the vocabulary, keeps all.

    Example:
      >>> keep_top_k(jnp.array([1.0, 3.0, 2.0, 2.0]), 2).tolist()
      [-inf, 3.0, 2.0, -inf]
    """
    if not 0 < k < logits.shape[-1]:
        return logits
    best = jax.lax.top_k(logits, k)[1]
    in_top_k = jnp.put_along_axis(jnp.zeros(logits.shape, bool), best, True, axis=-1, inplace=False)
    return jnp.where(in_top_k, logits, -jnp.inf)


def keep_top_p(logits: Float[Array, "*batch vocab"], p: float) -> Float[Array, "*batch vocab"]:
    """Returns the logits with all outside the nucleus of probability `p` set to -inf in each row (Holtzman et al.
    2020).

    The nucleus is the smallest set of most probable tokens whose probability reaches `p`. It includes the token that
    crosses `p`, so that at least one token is kept. Of equally probable tokens the first ones are kept.

    Example:
      >>> jnp.isfinite(keep_top_p(jnp.log(jnp.array([0.2, 0.5, 0.3])), 0.6)).tolist()
      [False, True, True]
    """
    if p >= 1:
        return logits
    order = jnp.argsort(-logits, axis=-1, stable=True)
    probabilities = jax.nn.softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), axis=-1)
    ordered = jnp.take_along_axis(probabilities, order, axis=-1)
    before = jnp.cumsum(ordered, axis=-1) - ordered  # probability of all more probable tokens
    in_nucleus = jnp.take_along_axis(before < p, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(in_nucleus, logits, -jnp.inf)


def sample(keys: Array, logits: Float[Array, "batch vocab"], sampling: Sampling | None = None) -> Int[Array, " batch"]:
    """Chooses the next token id of every row from its logits: draws with the row's random key, or takes the most
    probable one at temperature 0. Without `sampling` it draws from the whole distribution.

    Args:
      keys: One random key per row, `[batch]`. The token of a row depends only on the key and the logits of the row.
      logits: Logits or log-probabilities, `[batch, vocab]`.
      sampling: Settings of sampling. None samples from the whole distribution.
    """
    sampling = sampling or Sampling()
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if sampling.forbidden:
        logits = logits.at[:, jnp.array(sampling.forbidden)].set(-jnp.inf)
    if sampling.temperature == 0:
        return greedy(logits)
    logits = keep_top_p(keep_top_k(logits / sampling.temperature, sampling.top_k), sampling.top_p)
    return jax.vmap(jax.random.categorical)(keys, logits)


def row_keys(seed: int, prompts: Sequence[Sequence[int]]) -> Array:
    """Makes one random key per prompt, `[batch]`, from the seed and the number of equal prompts before it in the list.

    The text of a prompt depends only on the seed and on the number of equal prompts before it, and not on the other
    prompts of the batch. Equal prompts get different texts.

    Raises:
      ValueError: `seed` is negative or does not fit in 32 bits.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed: given {seed}, allowed: 0 to {2**32 - 1}")
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    copies = []
    for prompt in prompts:
        copies.append(seen[tuple(prompt)])
        seen[tuple(prompt)] += 1
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.array(copies))
