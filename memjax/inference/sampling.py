"""Choosing the next token: pure functions on logits, each the same for every row of a batch.

A chain is temperature, then `keep_top_k`, then `keep_top_p`, then one draw; `Sampling` holds its settings. Logits may
be log-probabilities: every function is invariant to a constant added to a row.
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
    """How a token is chosen.

    Attributes:
      temperature: logits are divided by it; 0 takes the most probable token.
      top_k: only so many most probable tokens can be drawn, of equals the first; 0 = all.
      top_p: only the smallest set of most probable tokens that holds this probability can be drawn; 1 = all.
      forbidden: ids that are never chosen (begin and padding tokens).
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
        """The same settings, with more ids that are never chosen."""
        return dataclasses.replace(self, forbidden=tuple(sorted({*self.forbidden, *ids})))


def greedy(logits: Float[Array, "*batch vocab"]) -> Int[Array, "*batch"]:
    """The most probable token; of equals the first.

    Example:
      >>> int(greedy(jnp.array([0.1, 2.0, 2.0])))
      1
    """
    return jnp.argmax(logits, axis=-1)


def keep_top_k(logits: Float[Array, "*batch vocab"], k: int) -> Float[Array, "*batch vocab"]:
    """-inf for all but the `k` largest logits of each row, of equals the first. 0 or more than vocab keeps all.

    Example:
      >>> keep_top_k(jnp.array([1.0, 3.0, 2.0, 2.0]), 2).tolist()
      [-inf, 3.0, 2.0, -inf]
    """
    if not 0 < k < logits.shape[-1]:
        return logits
    best = jax.lax.top_k(logits, k)[1]
    kept = jnp.put_along_axis(jnp.zeros(logits.shape, bool), best, True, axis=-1, inplace=False)
    return jnp.where(kept, logits, -jnp.inf)


def keep_top_p(logits: Float[Array, "*batch vocab"], p: float) -> Float[Array, "*batch vocab"]:
    """-inf outside the smallest set of most probable tokens whose probability reaches `p` (Holtzman et al. 2020).

    The token that crosses `p` stays, so at least one token does; of equally probable tokens the first ones stay.

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
    kept = jnp.take_along_axis(before < p, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(kept, logits, -jnp.inf)


def sample(keys: Array, logits: Float[Array, "batch vocab"], sampling: Sampling | None = None) -> Int[Array, " batch"]:
    """One token of every row.

    Args:
      keys: one PRNG key a row `[batch]`; a row's draw depends on its own key and logits only.
      logits: or log-probabilities.
      sampling: settings; None draws from the whole distribution.
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
    """One PRNG key a prompt `[batch]`, from the seed and the number of equal prompts before it.

    The text of a prompt thus depends on the seed and on which copy of the prompt it continues, not on what else is in
    the batch or where; copies of one prompt give different texts.

    Raises:
      ValueError: a seed that has no 32 bits.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed: given {seed}, allowed: 0 to {2**32 - 1}")
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    copies = []
    for prompt in prompts:
        copies.append(seen[tuple(prompt)])
        seen[tuple(prompt)] += 1
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.array(copies))
