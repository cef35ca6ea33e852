"""Linear attention: reads sums over keys and values instead of a softmax over keys, with a state of fixed size.

One causal kernel serves every feature map. With features `q_t`, `k_t`, values `v_t` and a decay `g_t` (1 unless gated):

    S_t = g_t S_{t-1} + k_t v_t^T,    z_t = g_t z_{t-1} + k_t,    out_t = S_t^T q_t / normalizer

It is computed in one of three forms that give the same numbers: masked products over the whole segment (`chunk_length`
0), products inside chunks with the state carried between them, or token by token (`chunk_length` 1, decoding). Sums run
in at least float32.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from memjax.functional.named_operations import operation
from memjax.functional.precision import at_least_float32
from memjax.functional.shapes import check_shapes
from memjax.typing import EmptyState, Leaf, tree_dataclass

__all__ = [
    "LinearState",
    "causal_linear_attention",
    "draw_directions",
    "effective_rank",
    "elu_features",
    "init_linear_state",
    "random_features",
    "read_linear_state",
    "relu_features",
    "reset_linear_state",
    "summarize_source",
]

Normalizer = Literal["add", "clamp", "count", "none"]
READ = "read of linear states"
"""name of the arrays that the backward pass keeps of a chunk"""
"""Divisor of the sums. See `causal_linear_attention`."""


@tree_dataclass
class LinearState:
    """State of linear attention: sums over the tokens it has read, in at least float32.

    Attributes:
      products: `[batch, heads, features, value_dim]`, sum of `k v^T`.
      normalizer: `[batch, heads, features]`, sum of `k`. `EmptyState` for the normalizers 'count' and 'none'.
      count: int32 `[batch]`, number of tokens read. `EmptyState` unless the normalizer is 'count'.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.ones((1, 3, 1, 2))
      >>> causal_linear_attention(x, x, x, normalizer="count")[1].count
      Array([3], dtype=int32)
    """

    # The names are those of `memjax.axes`, which this package does not import.
    products: Leaf = dataclasses.field(metadata={"axes": ("batch", "heads", None, None)})
    normalizer: Leaf = dataclasses.field(default=EmptyState(), metadata={"axes": ("batch", "heads", None)})
    count: Leaf = EmptyState()


@operation
def init_linear_state(
    batch: int, heads: int, features: int, value_dim: int, *, normalizer: Normalizer, dtype: Any = jnp.float32
) -> LinearState:
    """Makes the state of linear attention that has read no token, with the sums that `normalizer` needs. `batch` and
    `heads` are numbers, `features` is the width of the feature map.

    Args:
      batch: Number of rows.
      heads: Number of heads.
      features: Width of the feature map.
      value_dim: Width of a value.
      normalizer: Normalizer of the attention, see `causal_linear_attention`.
      dtype: Dtype of the sums. Dtypes narrower than float32 become float32.

    Example:
      >>> state = init_linear_state(2, 1, 4, 3, normalizer="add")
      >>> state.products.shape, state.normalizer.shape, state.count
      ((2, 1, 4, 3), (2, 1, 4), EmptyState())
    """
    dtype = at_least_float32(dtype)
    sums = normalizer in ("add", "clamp")
    return LinearState(
        jnp.zeros((batch, heads, features, value_dim), dtype),
        jnp.zeros((batch, heads, features), dtype) if sums else EmptyState(),
        jnp.zeros((batch,), jnp.int32) if normalizer == "count" else EmptyState(),
    )


@operation
def reset_linear_state(state: LinearState, rows: Bool[Array, " batch"]) -> LinearState:
    """Returns the state of linear attention emptied where the mask `rows` is True.

    Args:
      state: State with any normalizer.
      rows: bool `[batch]`, rows to empty.

    Example:
      >>> import jax.numpy as jnp
      >>> state = LinearState(jnp.ones((2, 1, 1, 1)), jnp.ones((2, 1, 1)))
      >>> print(reset_linear_state(state, jnp.array([True, False])).normalizer.ravel())
      [0. 1.]
    """
    empty = lambda leaf: jnp.where(rows.reshape(-1, *(1,) * (leaf.ndim - 1)), jnp.zeros_like(leaf), leaf)
    return jax.tree.map(empty, state)


@operation
def causal_linear_attention(
    queries: Float[Array, "batch length heads features"],
    keys: Float[Array, "batch length heads features"],
    values: Float[Array, "batch length heads value_dim"],
    state: LinearState | None = None,
    *,
    mask: Bool[Array, "batch length"] | None = None,
    log_decay: Float[Array, "batch length heads"] | None = None,
    normalizer: Normalizer = "add",
    eps: float = 1e-6,
    chunk_length: int = 0,
) -> tuple[Float[Array, "batch length heads value_dim"], LinearState]:
    """Causal linear attention: every query reads the sums over all tokens up to its own. Returns the output and the
    state after the segment. Queries and keys are features. `normalizer` names the divisor.

    Args:
      queries: `[batch, length, heads, features]`, features of the queries.
      keys: `[batch, length, heads, features]`, features of the keys.
      values: `[batch, length, heads, value_dim]`, values to sum.
      state: State after the tokens before the segment. None if there are none.
      mask: bool `[batch, length]`, real tokens. Padding adds nothing, decays nothing and is not counted.
      log_decay: `[batch, length, heads]`, logarithm of `g`, at most 0. None for no decay.
      normalizer: Divisor of the sums: 'add' (`q z + eps`), 'clamp' (`max(|q z|, eps)`), 'count' (the root of the number
        of tokens) or 'none'.
      eps: Smallest divisor of 'clamp', and summand of the divisor of 'add'.
      chunk_length: Number of tokens of a chunk. 0 (or at least the length) computes one masked product, 1 goes token by
        token.

    Returns:
      The output in the dtype of `values`, and the state after the segment.

    Raises:
      ValueError: Unknown normalizer, or a negative chunk length.

    Example:
      >>> import jax.numpy as jnp
      >>> ones, values = jnp.ones((1, 3, 1, 1)), jnp.array([1.0, 3.0, 5.0]).reshape(1, 3, 1, 1)
      >>> print(causal_linear_attention(ones, ones, values, eps=0.0)[0].ravel())
      [1. 2. 3.]
    """
    if chunk_length < 0:
        raise ValueError(f"chunk_length: given {chunk_length}, allowed: 0 (the whole segment) or more tokens")
    _check_state(state, queries, values)
    batch, length, heads, _ = queries.shape
    dtype = _sum_dtype(queries, keys, values)
    if state is None:
        sizes = (batch, heads, keys.shape[-1], values.shape[-1])
        state = init_linear_state(*sizes, normalizer=normalizer, dtype=dtype)
    mask = jnp.ones((batch, length), bool) if mask is None else mask
    counts = _count_tokens(state, mask) if normalizer == "count" else None
    chunk = min(chunk_length or length, length)
    read_chunk = _read_token if chunk == 1 else _read_chunk

    def read(sums: tuple[Array, ...], part: tuple) -> tuple[tuple[Array, ...], Array]:
        queries, keys, values, mask, decay, counts = part
        real = lambda array: jnp.where(mask[:, None, :, None], array.astype(dtype), 0)
        decay = None if decay is None else jnp.where(mask[:, None], decay.astype(dtype), 0)
        sums, above, below = read_chunk(sums, (queries.astype(dtype), real(keys), real(values)), decay)
        above, below = jax.tree.map(lambda array: checkpoint_name(array, READ), (above, below))
        return sums, _normalize(above, below, counts, normalizer, eps).astype(values.dtype)

    old = (state.products, *([state.normalizer] if _has_sum(normalizer) else []))
    sums = tuple(leaf.astype(dtype) for leaf in old)
    by_head = tuple(
        None if array is None else jnp.swapaxes(array, 1, 2) for array in (queries, keys, values, log_decay)
    )
    sums, out = _read_in_chunks(read, sums, (*by_head[:3], mask, by_head[3], counts), chunk)
    products, *total = (leaf.astype(state.products.dtype) for leaf in sums)
    new = LinearState(products, total[0] if total else EmptyState(), EmptyState() if counts is None else counts[:, -1])
    return jnp.swapaxes(out, 1, 2), new


@operation
def summarize_source(
    keys: Float[Array, "batch source heads features"],
    values: Float[Array, "batch source heads value_dim"],
    *,
    mask: Bool[Array, "batch source"] | None = None,
    normalizer: Normalizer = "add",
) -> LinearState:
    """Sums a whole source to a `LinearState`, which every query of cross-attention or of an encoder then reads. Keys
    are features.

    Args:
      keys: `[batch, source, heads, features]`, features of the keys.
      values: `[batch, source, heads, value_dim]`, values to sum.
      mask: bool `[batch, source]`, real tokens. Padding may stand anywhere.
      normalizer: Normalizer of the attention, see `causal_linear_attention`.

    Example:
      >>> import jax.numpy as jnp
      >>> keys = jnp.ones((1, 3, 1, 1))
      >>> print(summarize_source(keys, 2 * keys, mask=jnp.array([[True, False, True]])).products.ravel())
      [4.]
    """
    dtype = _sum_dtype(keys, values)
    mask = jnp.ones(keys.shape[:2], bool) if mask is None else mask
    keys, values = (jnp.where(mask[..., None, None], part.astype(dtype), 0) for part in (keys, values))
    return LinearState(
        jnp.einsum("bshf,bshe->bhfe", keys, values),
        keys.sum(axis=1) if _has_sum(normalizer) else EmptyState(),
        mask.sum(axis=1).astype(jnp.int32) if normalizer == "count" else EmptyState(),
    )


@operation
def read_linear_state(
    queries: Float[Array, "batch length heads features"],
    state: LinearState,
    *,
    normalizer: Normalizer,
    eps: float = 1e-6,
) -> Float[Array, "batch length heads value_dim"]:
    """Attends with every query to the same sums, such as those of a whole source, and returns `[batch, length, heads,
    value_dim]`. Queries are features.

    Args:
      queries: `[batch, length, heads, features]`, features of the queries.
      state: State to read, such as that of `summarize_source`.
      normalizer: Divisor of the sums, see `causal_linear_attention`.
      eps: Smallest divisor of 'clamp', and summand of the divisor of 'add'.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `queries`. 0 where nothing was summed.

    Example:
      >>> import jax.numpy as jnp
      >>> keys, values = jnp.ones((1, 2, 1, 1)), jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
      >>> print(read_linear_state(keys[:, :1], summarize_source(keys, values), normalizer="add", eps=0.0).ravel())
      [2.]
    """
    _check_state(state, queries)
    features = jnp.swapaxes(queries.astype(state.products.dtype), 1, 2)
    above = jnp.einsum("bhlf,bhfe->bhle", features, state.products)
    below = jnp.einsum("bhlf,bhf->bhl", features, state.normalizer) if _has_sum(normalizer) else None
    counts = state.count[:, None] if normalizer == "count" else None
    return jnp.swapaxes(_normalize(above, below, counts, normalizer, eps), 1, 2).astype(queries.dtype)


@operation
def effective_rank(products: Float[Array, "batch heads features value_dim"]) -> Float[Array, " batch"]:
    """Computes how many directions the sums of linear attention use, as a share of all: the participation ratio of
    their squared singular values, `[batch]`, a mean over heads.

    It is `tr(G)^2 / tr(G^2)` of the Gram matrix `G`, divided by the smaller width of the sums. Near 1 the sums use all
    directions. If k singular values are equal and the others 0, it is k divided by that width. No decomposition is
    needed.

    Args:
      products: `[batch, heads, features, value_dim]`, the sums of `LinearState`.

    Returns:
      `[batch]`, the mean over the heads of each row, in `(0, 1]`. 0 for sums that are 0.

    Example:
      >>> import jax.numpy as jnp
      >>> print(effective_rank(jnp.stack([jnp.eye(4), jnp.ones((4, 4)), jnp.zeros((4, 4))])[:, None]))
      [1.   0.25 0.  ]
    """
    features, value_dim = products.shape[-2:]
    size = jnp.abs(products).max(axis=(-2, -1), keepdims=True)  # fourth powers of the sums overflow float32
    sums = products / jnp.where(size > 0, size, 1)
    gram = jnp.einsum("bhfe,bhge->bhfg" if features <= value_dim else "bhfe,bhfd->bhed", sums, sums)
    square = jnp.square(gram).sum(axis=(-2, -1))
    trace = jnp.square(sums).sum(axis=(-2, -1))
    rank = jnp.where(square > 0, trace**2 / jnp.where(square > 0, square, 1), 0)
    return rank.mean(axis=1) / min(features, value_dim)


@operation
def elu_features(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Feature map `elu(x) + 1`, positive in every dtype (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236).

    It is computed as one exponential: in bfloat16 the sum `(exp(x) - 1) + 1` is 0 from -6.25 on.

    Example:
      >>> import jax.numpy as jnp
      >>> print(elu_features(jnp.array([-jnp.inf, 0.0, 2.0])))
      [0. 1. 3.]
    """
    return jnp.where(x >= 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


@operation
def random_features(
    x: Float[Array, "batch length heads head_dim"],
    directions: Float[Array, "heads directions head_dim"],
    *,
    scale: float = 0.1,
) -> Float[Array, "batch length heads features"]:
    """Feature map of random feature attention: sines and cosines of the projections of normalised vectors `x` on random
    `directions`, times `scale`. Twice as many features as directions.

    Peng et al. 2021, https://arxiv.org/abs/2103.02143.

    Inner products of features estimate `scale^2 D exp(-|x - y|^2 / 2)` for `D` directions drawn from a standard normal
    distribution. The squared norm of every feature vector is `scale^2 D`.

    Args:
      x: `[batch, length, heads, head_dim]`, queries or keys. They are divided by their norm + 1e-3.
      directions: `[heads, directions, head_dim]`, random directions of each head.
      scale: Factor of the features.

    Returns:
      `[batch, length, heads, 2 * directions]`, sines first, in the dtype of `x`.

    Example:
      >>> import jax.numpy as jnp
      >>> features = random_features(jnp.ones((1, 1, 1, 4)), jnp.ones((1, 100, 4)))
      >>> features.shape, round(float((features**2).sum()), 4)
      ((1, 1, 1, 200), 1.0)
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    # Not the norm itself: its gradient at 0 is NaN.
    square = jnp.sum(wide**2, axis=-1, keepdims=True)
    norm = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    angles = jnp.einsum("blhd,hmd->blhm", wide / (norm + 1e-3), directions.astype(wide.dtype))
    return (scale * jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)).astype(x.dtype)


@operation
def draw_directions(
    key: PRNGKeyArray, heads: int, directions: int, head_dim: int, *, orthogonal: bool = False
) -> Float[Array, "heads directions head_dim"]:
    """Draws `directions` random vectors for each head from a standard normal distribution, `[heads, directions,
    head_dim]`, for `random_features`.

    Args:
      key: Random key of the draw.
      heads: Number of heads, whose directions are drawn independently.
      directions: Number of directions of each head.
      head_dim: Width of an attention head.
      orthogonal: Whether the directions of each block of `head_dim` are orthogonal. Their lengths are still those of
        normal vectors.

    Example:
      >>> draw_directions(jax.random.key(0), 2, 6, 4).shape
      (2, 6, 4)
    """
    if not orthogonal:
        return jax.random.normal(key, (heads, directions, head_dim))
    blocks = math.ceil(directions / head_dim)
    turn, size = jax.random.split(key)
    bases = jnp.linalg.qr(jax.random.normal(turn, (heads, blocks, head_dim, head_dim)))[0]
    bases = bases.reshape(heads, blocks * head_dim, head_dim)[:, :directions]
    lengths = jnp.linalg.norm(jax.random.normal(size, (heads, directions, head_dim)), axis=-1, keepdims=True)
    return bases * lengths


@operation
def relu_features(
    x: Float[Array, "batch length heads head_dim"],
    kernel: Float[Array, "heads head_dim features"],
    bias: Float[Array, "heads features"],
) -> Float[Array, "batch length heads features"]:
    """Learned feature map of each head, `relu(W_h x + b_h)` (Kasai et al. 2021, https://arxiv.org/abs/2103.13076).

    A query may have no feature above 0: the normalizer has to be clamped.

    Args:
      x: `[batch, length, heads, head_dim]`, queries or keys.
      kernel: `[heads, head_dim, features]`, the matrices W.
      bias: `[heads, features]`, the biases b.

    Example:
      >>> import jax.numpy as jnp
      >>> x, kernel = jnp.array([2.0]).reshape(1, 1, 1, 1), jnp.array([[[1.0, -1.0]]])
      >>> print(relu_features(x, kernel, jnp.zeros((1, 2))).ravel())
      [2. 0.]
    """
    return jax.nn.relu(jnp.einsum("blhd,hdf->blhf", x, kernel.astype(x.dtype)) + bias.astype(x.dtype)[None, None])


def _read_in_chunks(
    read: Callable[[tuple[Array, ...], tuple], tuple[tuple[Array, ...], Array]],
    sums: tuple[Array, ...],
    parts: tuple[Array | None, ...],
    chunk: int,
) -> tuple[tuple[Array, ...], Array]:
    """Reads `parts`, `[batch, heads, length, ...]`, `[batch, length]` or None, in chunks. Returns the sums after them
    and what was read.

    Chunks are cut from the arrays as they are given, and computed with in `read`: arrays of bfloat16 are then never all
    in memory as float32.
    """
    first = parts[0]
    assert first is not None
    length = first.shape[2]
    chunks = -(-length // chunk)
    if chunks == 1:
        return read(sums, parts)

    def cut(part: Array) -> Array:
        axis = min(part.ndim - 1, 2)
        part = jnp.pad(part, [(0, chunks * chunk - length if i == axis else 0) for i in range(part.ndim)])
        return jnp.moveaxis(part.reshape(*part.shape[:axis], chunks, chunk, *part.shape[axis + 1 :]), axis, 0)

    if chunk > 1:  # what was read is kept, since to compute it again costs half of the forward pass
        read = jax.checkpoint(read, prevent_cse=False, policy=jax.checkpoint_policies.save_only_these_names(READ))
    sums, out = jax.lax.scan(read, sums, jax.tree.map(cut, parts))
    joined = jnp.moveaxis(out, 0, 2)
    return sums, joined.reshape(*joined.shape[:2], chunks * chunk, joined.shape[-1])[:, :, :length]


def _read_chunk(
    sums: tuple[Array, ...], inputs: tuple[Array, Array, Array], decay: Array | None
) -> tuple[tuple[Array, ...], Array, Array | None]:
    """Reads one chunk by products. With a decay, those of its tokens are relative to each other: no ratio overflows."""
    queries, keys, values = inputs
    scores = jnp.einsum("bhlf,bhmf->bhlm", queries, keys)
    before = np.tri(queries.shape[2], dtype=bool)[None, None]
    if decay is None:
        scores, end = jnp.where(before, scores, 0), None
    else:
        since = jnp.cumsum(decay, axis=-1)  # log decay since the start of the chunk, [b, h, l]
        between = since[..., :, None] - since[..., None, :]
        scores = jnp.where(before, scores * jnp.exp(jnp.where(before, between, 0)), 0)
        end = jnp.exp(since[..., -1])
        queries = queries * jnp.exp(since)[..., None]
        keys = keys * jnp.exp(since[..., -1:] - since)[..., None]
    products, *total = sums
    above = jnp.einsum("bhlm,bhme->bhle", scores, values) + jnp.einsum("bhlf,bhfe->bhle", queries, products)
    below = scores.sum(axis=-1) + jnp.einsum("bhlf,bhf->bhl", queries, total[0]) if total else None
    new = (jnp.einsum("bhlf,bhle->bhfe", keys, values), *([keys.sum(axis=2)] if total else []))
    return _add(sums, new, end), above, below


def _read_token(
    sums: tuple[Array, ...], inputs: tuple[Array, Array, Array], decay: Array | None
) -> tuple[tuple[Array, ...], Array, Array | None]:
    """Reads one token in recurrent form, `[batch, heads, 1, ...]`."""
    queries, keys, values = (part[:, :, 0] for part in inputs)
    new = (keys[..., None] * values[..., None, :], *([keys] if len(sums) > 1 else []))
    sums = _add(sums, new, None if decay is None else jnp.exp(decay[..., 0]))
    above = jnp.einsum("bhf,bhfe->bhe", queries, sums[0])[:, :, None]
    return sums, above, jnp.einsum("bhf,bhf->bh", queries, sums[1])[:, :, None] if len(sums) > 1 else None


def _add(sums: tuple[Array, ...], new: tuple[Array, ...], decay: Array | None) -> tuple[Array, ...]:
    if decay is None:
        return tuple(old + more for old, more in zip(sums, new, strict=True))
    spread = lambda leaf: decay.reshape(*decay.shape, *(1,) * (leaf.ndim - 2))
    return tuple(spread(old) * old + more for old, more in zip(sums, new, strict=True))


def _normalize(above: Array, below: Array | None, counts: Array | None, normalizer: Normalizer, eps: float) -> Array:
    """Divides `[batch, heads, length, value_dim]` by `below`, `[batch, heads, length]`, or by the root of `counts`."""
    match normalizer:
        case "add":
            assert below is not None
            return above / (below + eps)[..., None]
        case "clamp":
            assert below is not None
            return above / jnp.maximum(jnp.abs(below), eps)[..., None]
        case "count":
            assert counts is not None
            return above * jax.lax.rsqrt(jnp.maximum(counts, 1).astype(above.dtype))[:, None, :, None]
    return above


def _count_tokens(state: LinearState, mask: Array) -> Array:
    """Counts the tokens read up to and including each token, `[batch, length]`."""
    return state.count[:, None] + jnp.cumsum(mask, axis=1, dtype=jnp.int32)


def _has_sum(normalizer: Normalizer) -> bool:
    return normalizer in ("add", "clamp")


def _sum_dtype(*parts: Array) -> jnp.dtype:
    return jnp.result_type(*parts, jnp.float32)


def _check_state(state: LinearState | None, queries: Array, values: Array | None = None) -> None:
    """Raises an error if the axes of a state do not fit the queries and values."""
    if state is None:
        return
    arrays = {"queries": (queries, "batch length heads features"), "values": (values, "batch length heads value_dim")}
    arrays["state.products"] = (state.products, "batch heads features value_dim")
    if not isinstance(state.normalizer, EmptyState):
        arrays["state.normalizer"] = (state.normalizer, "batch heads features")
    check_shapes(**arrays)
