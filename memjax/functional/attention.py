"""Scaled dot-product attention over masked keys, and the masks themselves.

Queries, shared keys and outputs are `[batch, length, heads, head_dim]`. Neighbours, which differ from query to query,
are `[batch, heads, length, neighbors, head_dim]`, because the slots of a searched memory are stored by heads. Every
function here computes scores and softmax in at least float32 and gives exactly 0, with gradients of exactly 0, where a
query sees no key. There may be fewer heads of shared keys and values than of queries: consecutive query heads then
share a key head (grouped queries, Ainslie et al. 2023, https://arxiv.org/abs/2305.13245).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from memjax.functional.named_operations import operation
from memjax.functional.precision import at_least_float32
from memjax.functional.shapes import check_shapes

__all__ = [
    "attention",
    "attention_with_weights",
    "joint_attention",
    "masked_softmax",
    "neighbor_attention",
    "scale_queries",
    "scored_neighbor_attention",
    "visibility",
]


@operation
def masked_softmax(
    scores: Float[Array, "*shape"], mask: Bool[Array, "*#shape"] | None, axis: int = -1
) -> Float[Array, "*shape"]:
    """Softmax along `axis` over the entries where `mask` is True, in at least float32. All other entries, and all
    entries of a row without any, are 0.

    Args:
      scores: Scores of any shape. Masked entries may hold anything, NaN and infinities too.
      mask: True for entries that take part. Broadcasts against `scores` (same rank). None for all entries.
      axis: Axis along which the weights sum to 1.

    Returns:
      Weights in the dtype `promote_types(scores.dtype, float32)`: 0 where masked, and 0 everywhere on a row that is
      masked completely (not uniform, not NaN). Gradients are finite, and 0 at masked entries.

    Example:
      >>> import jax.numpy as jnp
      >>> scores = jnp.array([[0.0, 5.0, 0.0], [1.0, 2.0, 3.0]])
      >>> mask = jnp.array([[True, False, True], [False, False, False]])
      >>> print(masked_softmax(scores, mask))
      [[0.5 0.  0.5]
       [0.  0.  0. ]]
    """
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    return jax.nn.softmax(scores, axis=axis) if mask is None else _masked_softmax(scores, mask, axis)


@operation
def scale_queries(
    queries: Float[Array, "batch length heads head_dim"],
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None,
) -> Float[Array, "batch length heads head_dim"]:
    """Returns the queries times the scale of the scores: one number or one for each head, `head_dim ** -0.5` for None.
    It is cheaper than to scale the scores, forward and backward.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      scale: One number, or one number per head. None for `head_dim ** -0.5`.

    Returns:
      The scaled queries in their own dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> print(scale_queries(jnp.ones((1, 1, 2, 4)), None)[0, 0])
      [[0.5 0.5 0.5 0.5]
       [0.5 0.5 0.5 0.5]]
    """
    heads, head_dim = queries.shape[-2:]
    # In at least float32: a scale rounded to bfloat16 would be a systematic error of the temperature
    factor = jnp.asarray(head_dim**-0.5 if scale is None else scale, jnp.promote_types(queries.dtype, jnp.float32))
    if factor.shape not in ((), (heads,)):
        raise ValueError(
            f"scale: given shape {factor.shape}, allowed: one number, or shape ({heads},) for the heads of queries"
        )
    if factor.ndim:
        factor = factor.reshape(1, 1, heads, 1)
    return (queries * factor).astype(queries.dtype)


@operation
def attention(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch memory key_heads head_dim"],
    values: Float[Array, "batch memory key_heads value_dim"],
    *,
    mask: Bool[Array, "#batch #heads length memory"] | None = None,
    bias: Float[Array, "#batch heads length memory"] | None = None,
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
) -> Float[Array, "batch length heads value_dim"]:
    """Scaled dot-product attention, `softmax(scale * queries . keys + bias) values`, over the keys where `mask` is
    True. All arrays are `[batch, tokens, heads, width]` except mask and bias. 0 for a query that sees no key.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      keys: `[batch, memory, key_heads, head_dim]`, with a divisor of `heads` as the number of key heads.
      values: `[batch, memory, key_heads, value_dim]`.
      mask: True where the query sees the key. Axes 0 and 1 may be 1. None if every query sees every key. A key that no
        query sees must be finite, and its value too: a weight of 0 times NaN is NaN.
      bias: Summand of the scaled scores. Axis 0 may be 1.
      scale: Factor of the content scores, one number or one per head. None for `head_dim ** -0.5`. The bias is not
        scaled.
      dropout_rate: Probability with which an attention weight is dropped.
      dropout_key: Random key of the dropout. Needed if `dropout_rate` is above 0.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `queries`. 0 for a query that sees no key.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.ones((1, 2, 1, 4))
      >>> values = jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
      >>> print(attention(x, x, values, mask=visibility(2, None, None)).ravel())
      [1. 2.]
    """
    dropout = {"dropout_rate": dropout_rate, "dropout_key": dropout_key}
    return attention_with_weights(queries, keys, values, mask=mask, bias=bias, scale=scale, **dropout)[0]


@operation
def attention_with_weights(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch memory key_heads head_dim"],
    values: Float[Array, "batch memory key_heads value_dim"],
    *,
    mask: Bool[Array, "#batch #heads length memory"] | None = None,
    bias: Float[Array, "#batch heads length memory"] | None = None,
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None = None,
    cap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
) -> tuple[Float[Array, "batch length heads value_dim"], Float[Array, "batch heads length memory"]]:
    """Computes `attention`, and returns it with the attention weights before dropout, `[batch, heads, length, memory]`,
    for memories that record the use of their slots.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      keys: `[batch, memory, key_heads, head_dim]`, with a divisor of `heads` as the number of key heads.
      values: `[batch, memory, key_heads, value_dim]`.
      mask: True where the query sees the key. See `attention`.
      bias: Summand of the scaled scores. See `attention`.
      scale: Factor of the content scores. See `attention`.
      cap: Limit of the scaled scores, which become `cap * tanh(score / cap)` before the bias (Gemma 2). 0 for none.
      dropout_rate: Probability with which an attention weight is dropped.
      dropout_key: Random key of the dropout. Needed if `dropout_rate` is above 0.

    Returns:
      The output, and the weights before dropout `[batch, heads, length, memory]`, in at least float32.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.ones((1, 2, 1, 4))
      >>> print(attention_with_weights(x, x, x, mask=visibility(2, None, None))[1][0, 0])
      [[1.  0. ]
       [0.5 0.5]]
    """
    dtype = _score_dtype(queries, keys)
    scores = score_keys(scale_queries(queries, scale), keys, bias, dtype, cap)
    weights = masked_softmax(scores, mask)
    return attend_values(drop_weights(weights, dropout_rate, dropout_key), values, queries.dtype), weights


@operation
def neighbor_attention(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch heads length neighbors head_dim"],
    values: Float[Array, "batch heads length neighbors value_dim"],
    valid: Bool[Array, "batch heads length neighbors"] | None = None,
    *,
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
) -> Float[Array, "batch length heads value_dim"]:
    """Attention in which every query has its own keys and values, the neighbours that were retrieved for it. `valid`
    marks real ones. Returns `[batch, length, heads, value_dim]`.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      keys: `[batch, heads, length, neighbors, head_dim]`, as `gather_slots` returns them.
      values: `[batch, heads, length, neighbors, value_dim]`.
      valid: True for neighbours that are real. None for all. The others may hold anything, NaN and infinities too.
      scale: Factor of the scores, one number or one per head. None for `head_dim ** -0.5`.
      dropout_rate: Probability with which an attention weight is dropped.
      dropout_key: Random key of the dropout. Needed if `dropout_rate` is above 0.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `queries`. 0 for a query without a real neighbour.

    Example:
      >>> import jax.numpy as jnp
      >>> queries = jnp.ones((1, 1, 1, 2))
      >>> keys = jnp.zeros((1, 1, 1, 3, 2))
      >>> values = jnp.array([1.0, 2.0, 9.0]).reshape(1, 1, 1, 3, 1)
      >>> print(neighbor_attention(queries, keys, values, jnp.array([True, True, False]).reshape(1, 1, 1, 3)).ravel())
      [1.5]
    """
    keys, values = _zero_invalid(keys, valid), _zero_invalid(values, valid)
    scores = _neighbor_scores(scale_queries(queries, scale), keys, _score_dtype(queries, keys))
    weights = drop_weights(masked_softmax(scores, valid), dropout_rate, dropout_key)
    return _attend_neighbors(weights, values, queries.dtype)


@operation
def scored_neighbor_attention(
    scores: Float[Array, "batch heads length neighbors"],
    values: Float[Array, "batch heads length neighbors value_dim"],
    valid: Bool[Array, "batch heads length neighbors"] | None = None,
    *,
    scale: float | Float[Array, " #heads"] | Float[Array, ""],
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
) -> Float[Array, "batch length heads value_dim"]:
    """Computes `neighbor_attention` from the inner products of queries and neighbours instead of their keys. Returns
    `[batch, length, heads, value_dim]` in the dtype of the values.

    Args:
      scores: `[batch, heads, length, neighbors]`, inner products, as `neighbor_scores` returns them.
      values: `[batch, heads, length, neighbors, value_dim]`.
      valid: True for neighbours that are real. None for all. The others may hold anything, NaN and infinities too.
      scale: Factor of the scores, one number or one per head.
      dropout_rate: Probability with which an attention weight is dropped.
      dropout_key: Random key of the dropout. Needed if `dropout_rate` is above 0.

    Example:
      >>> scores, values = jnp.array([[[[0.0, 0.0, 9.0]]]]), jnp.array([1.0, 2.0, 9.0]).reshape(1, 1, 1, 3, 1)
      >>> valid = jnp.array([True, True, False]).reshape(1, 1, 1, 3)
      >>> print(scored_neighbor_attention(scores, values, valid, scale=1.0).ravel())
      [1.5]
    """
    values = _zero_invalid(values, valid)
    scores = scores if valid is None else jnp.where(valid, scores, 0)  # -inf times a scale of 0 is NaN
    scores = scores * jnp.reshape(jnp.asarray(scale, scores.dtype), (1, -1, 1, 1))
    weights = drop_weights(masked_softmax(scores, valid), dropout_rate, dropout_key)
    return _attend_neighbors(weights, values, values.dtype)


@operation
def joint_attention(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch memory key_heads head_dim"],
    values: Float[Array, "batch memory key_heads value_dim"],
    neighbor_keys: Float[Array, "batch heads length neighbors head_dim"],
    neighbor_values: Float[Array, "batch heads length neighbors value_dim"],
    *,
    mask: Bool[Array, "#batch #heads length memory"] | None = None,
    neighbor_valid: Bool[Array, "batch heads length neighbors"] | None = None,
    bias: Float[Array, "#batch heads length memory"] | None = None,
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
) -> Float[Array, "batch length heads value_dim"]:
    """Attention with one softmax over the keys that all queries share, to which `mask` and `bias` belong, and each
    query's own neighbours. Returns `[batch, length, heads, value_dim]`.

    The merge of the first version of the Memorizing Transformer (OpenReview submission of arXiv:2203.08913): local and
    retrieved keys compete in one softmax. Neighbours carry no bias.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      keys: Shared (local) keys `[batch, memory, key_heads, head_dim]`.
      values: Shared values `[batch, memory, key_heads, value_dim]`.
      neighbor_keys: `[batch, heads, length, neighbors, head_dim]`.
      neighbor_values: `[batch, heads, length, neighbors, value_dim]`.
      mask: True where the query sees the shared key.
      neighbor_valid: True for neighbours that are real. None for all. The others may hold anything, NaN and infinities
        too.
      bias: Summand of the scaled scores of the shared keys.
      scale: Factor of the content scores of shared keys and neighbours. See `attention`.
      dropout_rate: Probability with which an attention weight is dropped.
      dropout_key: Random key of the dropout. Needed if `dropout_rate` is above 0.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `queries`. 0 for a query that sees nothing in both blocks.

    Example:
      >>> import jax.numpy as jnp
      >>> queries, keys = jnp.ones((1, 1, 1, 2)), jnp.zeros((1, 2, 1, 2))
      >>> values = jnp.array([0.0, 4.0]).reshape(1, 2, 1, 1)
      >>> print(joint_attention(queries, keys, values, jnp.zeros((1, 1, 1, 2, 2)), jnp.ones((1, 1, 1, 2, 1))).ravel())
      [1.5]
    """
    dtype = _score_dtype(queries, keys)
    scaled = scale_queries(queries, scale)
    neighbor_keys, neighbor_values = (
        _zero_invalid(neighbor_keys, neighbor_valid),
        _zero_invalid(neighbor_values, neighbor_valid),
    )
    near = _neighbor_scores(scaled, neighbor_keys, dtype)
    local = score_keys(scaled, keys, bias, dtype)
    visible = None
    if mask is not None or neighbor_valid is not None:
        parts = [(neighbor_valid, near.shape), (mask, local.shape)]
        visible = jnp.concatenate(
            [jnp.broadcast_to(True if part is None else part, shape) for part, shape in parts], axis=-1
        )
    weights = masked_softmax(jnp.concatenate([near, local], axis=-1), visible)
    weights = drop_weights(weights, dropout_rate, dropout_key)
    neighbors = near.shape[-1]
    from_near = _attend_neighbors(weights[..., :neighbors], neighbor_values, dtype)
    from_local = attend_values(weights[..., neighbors:], values, dtype)
    return (from_near + from_local).astype(queries.dtype)


@operation
def visibility(
    length: int,
    memory_valid: Bool[Array, "batch memory"] | None,
    mask: Bool[Array, "batch length"] | None,
    *,
    window: int | None = None,
) -> Bool[Array, "#batch 1 length total"]:
    """Makes the causal mask of a segment, bool `[#batch, 1, length, total]`: which of the keys `memory ++ segment` each
    query sees. `mask` marks real tokens. A query sees the `window` nearest keys at most.

    Query i sees key j when `j <= i + memory` (the last query is aligned to the last key), the slot is valid, the token
    is real, and the key is among the last `window` ones up to and including the query itself. `window=memory_length`
    is Transformer-XL's `same_length` (arXiv:1901.02860): the context is then independent of the segment length.

    Args:
      length: Number of tokens of the segment.
      memory_valid: bool `[batch, memory]`, slots that hold something. None for no memory.
      mask: bool `[batch, length]`, real tokens. None for all. Queries at padding still see the keys before them.
      window: Largest number of keys that a query sees, itself included. None for no limit.

    Returns:
      bool `[batch, 1, length, memory + length]`, for use as the mask of `attention`. The batch axis is 1 when neither
      `memory_valid` nor `mask` is given.

    Raises:
      ValueError: `window` is below 1.

    Example:
      >>> import jax.numpy as jnp
      >>> print(visibility(2, jnp.array([[False, True]]), None).astype(int)[0, 0])
      [[0 1 1 0]
       [0 1 1 1]]
    """
    if window is not None and window < 1:
        raise ValueError(f"window: given {window}, allowed: at least 1 (the query itself), or None for no limit")
    check_shapes(mask=(mask, f"batch {length}"))
    memory = 0 if memory_valid is None else memory_valid.shape[1]
    behind = np.arange(length)[:, None] + memory - np.arange(memory + length)[None, :]
    allowed = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    allowed = jnp.asarray(allowed[None, None])
    if mask is None:
        if memory_valid is None:
            return allowed
        mask = jnp.ones((memory_valid.shape[0], length), bool)
    parts = [mask] if memory_valid is None else [memory_valid, mask]
    return allowed & jnp.concatenate(parts, axis=1)[:, None, None, :]


@operation
def limit_scores(scores: Float[Array, "*shape"], cap: float) -> Float[Array, "*shape"]:
    """Returns `cap * tanh(scores / cap)`, scores of any shape between -cap and cap, or for `cap` 0 the scores as they
    are.

    Example:
      >>> print(limit_scores(jnp.array([0.0, 1e6]), 30.0), limit_scores(jnp.array([50.0]), 0.0))
      [ 0. 30.] [50.]
    """
    return cap * jnp.tanh(scores / cap) if cap else scores


def _score_dtype(queries: Array, keys: Array) -> jnp.dtype:
    return at_least_float32(queries.dtype, keys.dtype)


@operation
def score_keys(queries: Array, keys: Array, bias: Array | None, dtype: jnp.dtype, cap: float = 0.0) -> Array:
    """Returns the inner products of scaled queries and keys, `[batch, heads, length, memory]` of `dtype`, limited by
    `cap`, plus `bias`.
    """
    # Heads move to axis 1 first, as CPUs are faster so.
    queries, keys = jnp.swapaxes(queries, 1, 2), jnp.swapaxes(keys, 1, 2)
    grouped = _group_heads(queries, keys.shape[1])
    scores = jnp.einsum("bhld,bhmd->bhlm", grouped, keys, preferred_element_type=dtype)
    scores = limit_scores(_ungroup_heads(scores, queries.shape[1]), cap)
    return scores if bias is None else _add_bias(scores, bias.astype(dtype))


def _group_heads(array: Array, key_heads: int) -> Array:
    """Moves the rows of all heads that share a key head one after the other: `[batch, heads, length, ...]` becomes
    `[batch, key_heads, heads / key_heads * length, ...]`, so that keys are not copied.
    """
    heads = array.shape[1]
    if heads == key_heads:
        return array
    if heads % key_heads:
        allowed = (
            f"[batch, memory, heads, head_dim] with a divisor of {heads} at axis 2 (heads), as queries have {heads}"
        )
        raise ValueError(f"keys: given {key_heads} heads, allowed: {allowed}")
    return array.reshape(array.shape[0], key_heads, -1, *array.shape[3:])


def _ungroup_heads(array: Array, heads: int) -> Array:
    """Undoes `_group_heads`."""
    return array if array.shape[1] == heads else array.reshape(array.shape[0], heads, -1, *array.shape[3:])


@jax.custom_jvp
def _add_bias(scores: Array, bias: Array) -> Array:
    """Adds a bias to scores, where a bias of one row is added to all rows."""
    return scores + bias


@_add_bias.defjvp
def _add_bias_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    # Spread over rows by a product with ones: its transpose, the sum over rows, is then a product too, which CPUs run
    # ten times faster than a sum over the leading axis.
    scores, bias = primals
    tangent = tangents[1]
    if bias.shape[0] == 1:
        tangent = jnp.einsum("bz,zhlm->bhlm", jnp.ones((scores.shape[0], 1), bias.dtype), tangent)
    return _add_bias(scores, bias), tangents[0] + tangent


def _zero_invalid(neighbors: Array, valid: Array | None) -> Array:
    """Sets neighbours that are not real to 0, since neither a weight of 0 nor its gradient keeps NaN out."""
    return neighbors if valid is None else jnp.where(valid[..., None], neighbors, 0)


def _neighbor_scores(queries: Array, keys: Array, dtype: jnp.dtype) -> Array:
    """Inner products `[batch, heads, length, neighbors]`, with a transpose of the small array and not of the keys."""
    queries = jnp.swapaxes(queries, 1, 2)
    return jnp.einsum("bhld,bhlkd->bhlk", queries, keys, preferred_element_type=dtype)


@operation
def attend_values(weights: Array, values: Array, dtype: jnp.dtype) -> Array:
    """Returns the sum of the values by `weights`, `[batch, length, heads, value_dim]` of `dtype`. Operands have the
    dtype of the values, and are accumulated in that of the weights (at least float32).
    """
    values = jnp.swapaxes(values, 1, 2)
    grouped = _group_heads(weights.astype(values.dtype), values.shape[1])
    out = jnp.einsum("bhlm,bhme->bhle", grouped, values, preferred_element_type=weights.dtype).astype(dtype)
    return jnp.swapaxes(_ungroup_heads(out, weights.shape[1]), 1, 2)


def _attend_neighbors(weights: Array, values: Array, dtype: jnp.dtype) -> Array:
    """Weighted sum of each query's own values, `[batch, heads, length, neighbors, value_dim]`."""
    out = jnp.einsum(
        "bhlk,bhlke->bhle", weights.astype(values.dtype), values, preferred_element_type=weights.dtype
    ).astype(dtype)
    return jnp.swapaxes(out, 1, 2)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _masked_softmax(scores: Array, mask: Array, axis: int) -> Array:
    # The first `where` keeps masked entries out of the sum. With the most negative finite number instead of -inf, a row
    # without any key is uniform here and not NaN. The second `where` makes that row 0.
    lowest = np.array(np.finfo(scores.dtype).min, scores.dtype)
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, lowest), axis=axis), 0)


@_masked_softmax.defjvp
def _masked_softmax_jvp(axis: int, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    # Weights of masked entries are exactly 0, so no further `where` is needed: attention's gradient takes a tenth less
    # time on CPUs.
    weights = _masked_softmax(*primals, axis)
    weighted = weights * tangents[0]
    return weights, weighted - weights * jnp.sum(weighted, axis=axis, keepdims=True)


@operation
def drop_weights(weights: Array, rate: float, key: PRNGKeyArray | None) -> Array:
    """Returns the attention weights, each set to 0 with the probability `rate`, the others divided by `1 - rate`."""
    if rate == 0.0:
        return weights
    if not 0.0 < rate < 1.0:
        raise ValueError(f"dropout_rate: given {rate}, allowed: a rate in [0, 1)")
    if key is None:
        raise ValueError(f"dropout_key: given None with dropout_rate {rate}, allowed: a random key, or rate 0")
    keep = jax.random.bernoulli(key, 1.0 - rate, weights.shape)
    return jnp.where(keep, weights / (1.0 - rate), 0)
