"""Memory slots that attend to themselves and to tokens and are normalised after it: the writer of Memformer.

Wu et al. 2020, "Memformer: A Memory-Augmented Transformer for Sequence Modeling", https://arxiv.org/abs/2010.06891.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.attention import masked_softmax
from memjax.functional.named_operations import operation

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
    """Lets every memory slot attend to itself (`own_keys`, `own_values`) and to all tokens (`keys`, `values`), but to
    no other slot. Returns new slots, and the weights on itself, then on the tokens.

    It computes `slots x (1 + length)` scores. A mask over pairs of slots is never built.

    Args:
      queries: `[batch, slots, heads, head_dim]`, queries of the slots.
      own_keys: `[batch, slots, heads, head_dim]`, key of each slot for its own query.
      keys: `[batch, length, heads, head_dim]`, keys of the tokens.
      own_values: `[batch, slots, heads, head_dim]`, value of each slot for its own query, such as the slot itself.
      values: `[batch, length, heads, head_dim]`, values of the tokens.
      mask: bool `[batch, length]`, real tokens. None for all. A row without a real token keeps `own_values`.
      own_bias: `[heads]`, summand of the score of each slot on itself. None for none.
      temperature: Divisor of the scores, besides `sqrt(head_dim)`. Below 1 slots decide for few tokens.

    Returns:
      The new slots in the dtype of `own_values`, and the weights `[batch, heads, slots, 1 + length]` of each slot on
      itself, then on the tokens, in at least float32.

    Example:
      >>> slots, tokens = jnp.zeros((1, 1, 1, 2)), jnp.ones((1, 3, 1, 2))
      >>> new, weights = slot_attention(slots, slots, tokens, slots, tokens, jnp.array([[True, False, False]]))
      >>> print(new.ravel(), weights.ravel())
      [0.5 0.5] [0.5 0.5 0.  0. ]
    """
    dtype = jnp.promote_types(jnp.promote_types(queries.dtype, keys.dtype), jnp.float32)
    queries = queries.astype(dtype) * (queries.shape[-1] ** -0.5 / temperature)
    own_scores = (queries * own_keys.astype(dtype)).sum(axis=-1).swapaxes(1, 2)[..., None]  # [b, h, n, 1]
    if own_bias is not None:
        own_scores = own_scores + own_bias.astype(dtype)[None, :, None, None]
    tokens = jnp.einsum("bnhd,blhd->bhnl", queries.astype(keys.dtype), keys, preferred_element_type=dtype)
    scores = jnp.concatenate([own_scores, tokens.astype(dtype)], axis=-1)
    if mask is not None:
        mask = jnp.pad(mask, [(0, 0), (1, 0)], constant_values=True)[:, None, None, :]
    weights = masked_softmax(scores, mask)
    retained = weights[..., 0].swapaxes(1, 2)[..., None] * own_values.astype(dtype)  # [b, n, h, d]
    read = jnp.einsum("bhnl,blhd->bnhd", weights[..., 1:].astype(values.dtype), values, preferred_element_type=dtype)
    return (retained + read).astype(own_values.dtype), weights


@operation
def normalize_slots(slots: Float[Array, "*slots dim"]) -> Float[Array, "*slots dim"]:
    """Scales slots to unit length, `m * rsqrt(sum(m^2) + 1e-12)`, computed in at least float32.

    Applied to `slots + bias` it is the biased memory normalisation of the paper: at every update each slot moves
    towards its learned bias, and so forgets.

    Args:
      slots: `[..., dim]`, memory slots.

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
    """Counts the slots that retain their content, aggregate old and new, and rewrite, in one write, in the batch rows
    where `rows` is True. Returns three numbers.

    A slot retains if at least 0.9 of it is left after the write, rewrites if at most 0.1 is left, and aggregates
    otherwise.

    Args:
      shares: `[batch, slots]`, share of each slot that is left after the write, from `slot_shares`.
      rows: bool `[batch]`, rows to count.

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
    """Computes the share of each slot that is left after a write, `|w m| / (|w m| + |m' - w m|)`. `slots` are m,
    `own_weights` w and `written` m' before its length is normalised.

    The weight w of a slot on itself is this share only if everything that is added up is as long as the slot. Beside
    values of length 8, a slot with the weight 0.9 is mostly new.

    Args:
      slots: `[batch, slots, heads, head_dim]`, slots before the write.
      own_weights: `[batch, heads, slots]`, first weight of each slot, from `slot_attention`.
      written: `[batch, slots, heads, head_dim]`, M' with the summand of forgetting, before its length is normalised.

    Example:
      >>> slots, written = jnp.array([[[[1.0, 0.0]]]]), jnp.array([[[[0.5, 1.5]]]])
      >>> print(slot_shares(slots, jnp.array([[[0.5]]]), written))
      [[0.25]]
    """
    retained = own_weights.swapaxes(1, 2)[..., None] * slots
    old, new = (jnp.sqrt(jnp.square(part).sum(axis=(2, 3))) for part in (retained, written - retained))
    return old / jnp.maximum(old + new, 1e-12)


@operation
def slot_spread(slots: Float[Array, "batch slots dim"]) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
    """Computes two measures of each row: the mean cosine between two slots, and the effective number of slots, `n^2 /
    sum(cos^2)` over all pairs.

    Equal slots have cosine 1 and are one slot in effect. Slots at right angles are as many as there are. The products
    of slots or those of dimensions are computed, whichever are fewer.

    Args:
      slots: `[batch, slots, dim]`, two or more slots of unit length.

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
    """Classifies slots by their shares into retaining, aggregating and rewriting ones: returns three masks like
    `shares`, JAX or NumPy.

    Args:
      shares: Share of each slot that is left after a write, from `slot_shares`.

    Example:
      >>> print(*slot_types(jnp.array([0.95, 0.5, 0.05])))
      [ True False False] [False  True False] [False False  True]
    """
    return shares >= 0.9, (shares < 0.9) & (shares > 0.1), shares <= 0.1
