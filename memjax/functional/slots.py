"""Slots that attend to themselves and to tokens, and what keeps them at unit length: the writer of Memformer.

Wu et al. 2020, "Memformer: A Memory-Augmented Transformer for Sequence Modeling", https://arxiv.org/abs/2010.06891.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.attention import masked_softmax
from memjax.functional.scopes import operation

__all__ = ["count_slot_types", "normalize_slots", "slot_attention", "slot_shares", "slot_spread", "slot_types"]


@operation
def slot_attention(
    queries: Float[Array, "batch slots heads head_dim"],
    own_keys: Float[Array, "batch slots heads head_dim"],
    keys: Float[Array, "batch length heads head_dim"],
    own_values: Float[Array, "batch slots heads head_dim"],
    values: Float[Array, "batch length heads head_dim"],
    mask: Bool[Array, "batch length"] | None = None,
    *,
    own_bias: Float[Array, " heads"] | None = None,
    temperature: float = 1.0,
) -> tuple[Float[Array, "batch slots heads head_dim"], Float[Array, "batch heads slots sources"]]:
    """Every slot attends to itself and to all tokens, and to no other slot.

    The cost is that of `slots x (1 + length)` scores: no mask over pairs of slots is ever built.

    Args:
      queries: `[batch, slots, heads, head_dim]`, of the slots.
      own_keys: Of the slots, each for its own query.
      keys: Of the tokens.
      own_values: What a slot that attends to itself alone becomes.
      values: Of the tokens.
      mask: Real tokens; None = all. A row without one keeps `own_values`.
      own_bias: `[heads]`, added to the score of each slot on itself.
      temperature: Divides the scores, besides `sqrt(head_dim)`; below 1 slots decide for few tokens.

    Returns:
      The new slots in the dtype of `own_values`, and the weights of each slot on itself, then on the tokens, in at
      least float32.

    Example:
      >>> slots, tokens = jnp.zeros((1, 1, 1, 2)), jnp.ones((1, 3, 1, 2))
      >>> new, weights = slot_attention(slots, slots, tokens, slots, tokens, jnp.array([[True, False, False]]))
      >>> print(new.ravel(), weights.ravel())
      [0.5 0.5] [0.5 0.5 0.  0. ]
    """
    dtype = jnp.promote_types(jnp.promote_types(queries.dtype, keys.dtype), jnp.float32)
    queries = queries.astype(dtype) * (queries.shape[-1] ** -0.5 / temperature)
    own = (queries * own_keys.astype(dtype)).sum(axis=-1).swapaxes(1, 2)[..., None]  # [b, h, n, 1]
    if own_bias is not None:
        own = own + own_bias.astype(dtype)[None, :, None, None]
    tokens = jnp.einsum("bnhd,blhd->bhnl", queries.astype(keys.dtype), keys, preferred_element_type=dtype)
    scores = jnp.concatenate([own, tokens.astype(dtype)], axis=-1)
    if mask is not None:
        mask = jnp.pad(mask, [(0, 0), (1, 0)], constant_values=True)[:, None, None, :]
    weights = masked_softmax(scores, mask)
    kept = weights[..., 0].swapaxes(1, 2)[..., None] * own_values.astype(dtype)  # [b, n, h, d]
    read = jnp.einsum("bhnl,blhd->bnhd", weights[..., 1:].astype(values.dtype), values, preferred_element_type=dtype)
    return (kept + read).astype(own_values.dtype), weights


@operation
def normalize_slots(slots: Float[Array, "*slots dim"]) -> Float[Array, "*slots dim"]:
    """Slots at unit length, `m * rsqrt(sum(m^2) + 1e-12)`, in at least float32 inside.

    With `slots + bias` it is the biased memory normalisation of the paper: at every update each slot moves towards its
    own learned bias, and so forgets.

    Args:
      slots: `[..., dim]`.

    Example:
      >>> print(normalize_slots(jnp.array([[3.0, 4.0]])))
      [[0.6 0.8]]
    """
    wide = slots.astype(jnp.promote_types(slots.dtype, jnp.float32))
    return (wide * jax.lax.rsqrt(jnp.square(wide).sum(axis=-1, keepdims=True) + 1e-12)).astype(slots.dtype)


@operation
def count_slot_types(
    shares: Float[Array, "batch slots"], rows: Bool[Array, " batch"]
) -> tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """How many slots retain, aggregate and rewrite: by what is left of them after the write.

    At least 0.9 is retaining, at most 0.1 rewriting, the rest aggregates old and new.

    Args:
      shares: `[batch, slots]`, from `slot_shares`.
      rows: That count.

    Example:
      >>> shares = jnp.array([[0.95, 0.5, 0.05, 0.0]])
      >>> print(*count_slot_types(shares, jnp.array([True])))
      1 1 2
    """
    retaining, aggregating, rewriting = ((chosen & rows[:, None]).sum() for chosen in slot_types(shares))
    return retaining, aggregating, rewriting


@operation
def slot_shares(
    slots: Float[Array, "batch slots heads head_dim"],
    own_weights: Float[Array, "batch heads slots"],
    written: Float[Array, "batch slots heads head_dim"],
) -> Float[Array, "batch slots"]:
    """What is left of each slot after a write, `|w m| / (|w m| + |m' - w m|)`.

    The weight w of a slot on itself says it only where all that is added up is as long as the slot: beside values of
    length 8, a slot with the weight 0.9 is mostly new.

    Args:
      slots: `[batch, slots, heads, head_dim]`, before the write.
      own_weights: `[batch, heads, slots]`, the first weight of each slot, from `slot_attention`.
      written: M', with what forgetting adds, before it is brought to unit length.

    Example:
      >>> slots, written = jnp.array([[[[1.0, 0.0]]]]), jnp.array([[[[0.5, 1.5]]]])
      >>> print(slot_shares(slots, jnp.array([[[0.5]]]), written))
      [[0.25]]
    """
    kept = own_weights.swapaxes(1, 2)[..., None] * slots
    old, new = (jnp.sqrt(jnp.square(part).sum(axis=(2, 3))) for part in (kept, written - kept))
    return old / jnp.maximum(old + new, 1e-12)


@operation
def slot_spread(slots: Float[Array, "batch slots dim"]) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
    """The mean cosine between two slots, and the effective number of slots, `n^2 / sum(cos^2)` over all pairs.

    Equal slots have cosine 1 and are one slot in effect; at right angles they are as many as there are. The products of
    slots or those of dimensions are computed, whichever are fewer.

    Args:
      slots: `[batch, slots, dim]`, at unit length, two or more.

    Example:
      >>> cosine, number = slot_spread(jnp.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]))
      >>> print(cosine.round(3), number)
      [0.333] [1.8]
    """
    _, count, dim = slots.shape
    pairs = jnp.square(slots.sum(axis=1)).sum(axis=-1) - jnp.square(slots).sum(axis=(1, 2))
    products = jnp.einsum("bnd,bmd->bnm" if count <= dim else "bnd,bne->bde", slots, slots)
    return pairs / (count * (count - 1)), count**2 / jnp.square(products).sum(axis=(1, 2))


@operation
def slot_types(shares: Any) -> tuple[Any, Any, Any]:
    """Which slots retain, aggregate and rewrite: masks of the shape of `shares`, JAX or NumPy.

    Args:
      shares: What is left of each slot after the write, from `slot_shares`.

    Example:
      >>> print(*slot_types(jnp.array([0.95, 0.5, 0.05])))
      [ True False False] [False  True False] [False False  True]
    """
    return shares >= 0.9, (shares < 0.9) & (shares > 0.1), shares <= 0.1
