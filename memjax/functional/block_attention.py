"""Attention that reads its keys block by block, so that the scores of all keys are never in memory at once.

Every block updates the softmax of the blocks before it (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867),
and the backward pass computes the weights of a block once more from the logarithm of the denominator (Dao et al. 2022,
https://arxiv.org/abs/2205.14135). Both are loops over plain matrix products, for every device.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from memjax.functional.attention import attend_values, drop_weights, scale_queries, score_keys
from memjax.functional.named_operations import operation
from memjax.functional.positions import relative_shift
from memjax.functional.precision import at_least_float32

__all__ = ["block_attention"]

BLOCK_LENGTHS, BLOCK_BYTES = (512, 256, 128), 2**24
"""default numbers of queries and keys in a block, and the bytes that its scores may have on one device: as many as the
memory on a chip holds beside the sums of a block"""

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Sizes and options of the loop over blocks of keys.

    Attributes:
      length: Number of keys in a block.
      number: Number of blocks.
      cap: Limit of the scores. 0 for none.
      dropout_rate: Probability with which an attention weight is dropped.
      counted: Numbers of first keys whose weights are summed.
      tile: Number of queries and of keys in a tile of the biases of distances.
    """

    length: int
    number: int
    cap: float
    dropout_rate: float
    counted: tuple[int, ...]
    tile: int


@operation
def block_attention(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch memory key_heads head_dim"],
    values: Float[Array, "batch memory key_heads value_dim"],
    *,
    mask: Bool[Array, "#batch #heads length memory"] | None = None,
    bias: Float[Array, "#batch heads length memory"] | None = None,
    distance_bias: Float[Array, "heads distances"] | None = None,
    position_queries: Float[Array, "batch length heads head_dim"] | None = None,
    relative_keys: Float[Array, "memory heads head_dim"] | None = None,
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None = None,
    cap: float = 0.0,
    counted: tuple[int, ...] = (),
    block_length: int | None = None,
    query_block_length: int | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
) -> tuple[Float[Array, "batch length heads value_dim"], Float[Array, "batch heads length counts"]]:
    """Computes `attention` block by block, and returns it with the sums of the attention weights of the first keys.

    Beside the arguments and the result it keeps the scores of one block of queries and keys, `[batch, heads,
    query_block_length, block_length]`. Where positions are relative, their scores are computed in the block too, from
    `position_queries` and `relative_keys`, about twice as many as the block has. It is not bit-equal to `attention`,
    since it adds in another order, and drops other weights.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      keys: `[batch, memory, key_heads, head_dim]`, with a divisor of `heads` as the number of key heads.
      values: `[batch, memory, key_heads, value_dim]`.
      mask: True where the query sees the key. See `attention`.
      bias: Summand of the scaled scores. It is an argument of the size of the scores unless its batch axis is 1.
      distance_bias: `[heads, distances]`, a further summand for every distance between query and key, that of 0 first.
        Longer distances have the last one. The last query stands at the last key. None for none.
      position_queries: `[batch, length, heads, head_dim]`, queries of the relative positions, scaled. None for none.
      relative_keys: `[memory, heads, head_dim]`, encodings of the distances, that of `memory - 1` first. A query and a
        key add the product of the position query and the encoding of their distance to the score. The last query
        stands at the last key.
      scale: Factor of the content scores. See `attention`.
      cap: Limit of the scaled scores. See `attention_with_weights`.
      counted: Numbers of first keys whose attention weights, before dropout, are summed for every query.
      block_length: Number of keys in a block. None for one whose scores are small.
      query_block_length: Number of queries in a block. None for one whose scores are small, all queries if possible.
      dropout_rate: Probability with which an attention weight is dropped.
      dropout_key: Random key of the dropout. Needed if `dropout_rate` is above 0.

    Returns:
      The output `[batch, length, heads, value_dim]` in the dtype of `queries`, 0 for a query that sees no key, and sums
      `[batch, heads, length, counts]`, one for each number in `counted`, in at least float32 and without gradient.

    Raises:
      ValueError: Only one of `position_queries` and `relative_keys`, or a block without keys.

    Example:
      >>> x, values = jnp.ones((1, 2, 1, 4)), jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
      >>> output, sums = block_attention(x, x, values, counted=(1,), block_length=1)
      >>> print(output.ravel(), sums.ravel())
      [2. 2.] [0.5 0.5]
    """
    length, total = queries.shape[1], keys.shape[1]
    if (position_queries is None) != (relative_keys is None):
        alone = "position_queries" if relative_keys is None else "relative_keys"
        raise ValueError(f"{alone}: given alone, allowed: together with the other of position_queries, relative_keys")
    default_queries, default_keys = _default_block(queries, relative_keys is not None)
    block_length = default_keys if block_length is None else block_length
    query_block_length = default_queries if query_block_length is None else query_block_length
    for name, number in (("block_length", block_length), ("query_block_length", query_block_length)):
        if number < 1:
            raise ValueError(f"{name}: given {number}, allowed: 1 or more")
    size, rows = min(block_length, total), min(query_block_length, length)
    blocks = _Blocks(size, -(-total // size), cap, dropout_rate, counted, math.gcd(rows, size))
    behind, rows_behind = blocks.number * size - total, -length % rows
    mask = jnp.ones((1, 1, length, total), bool) if mask is None else mask
    by_row: dict[str, Any] = {"queries": _pad(scale_queries(queries, scale), 1, rows_behind)}
    by_row["mask"] = _pad(_pad(mask, 3, behind), 2, rows_behind)
    split: dict[str, Any] = {"keys": _pad(keys, 1, behind), "values": _pad(values, 1, behind)}
    if bias is not None:
        by_row["bias"] = _pad(_pad(bias, 3, behind), 2, rows_behind)
    if position_queries is not None and relative_keys is not None:
        by_row["position_queries"] = _pad(position_queries, 1, rows_behind)
        split["relative_keys"] = jnp.pad(relative_keys, [(rows_behind, behind + length - 1), (0, 0), (0, 0)])
    tiles, first_tile = None, 0
    if distance_bias is not None:
        tiles, first_tile = _distance_tiles(distance_bias, total - length, blocks.tile)
    output, sums = _read_rows(blocks, rows, by_row, split, tiles, first_tile, dropout_key)
    output, sums = (array[:, :, :length] for array in (output, sums))
    return jnp.swapaxes(output, 1, 2).astype(queries.dtype), lax.stop_gradient(sums)


def _pad(array: Array, axis: int, number: int) -> Array:
    """Appends zeros to an axis."""
    return jnp.pad(array, [(0, number if i == axis else 0) for i in range(array.ndim)])


def _default_block(queries: Array, are_relative: bool) -> tuple[int, int]:
    """Returns how many queries and keys a block has whose scores have at most `BLOCK_BYTES` on one device: all queries
    if possible, but as many as keys where positions are relative, since a block then scores all distances in it.

    Example:
      >>> _default_block(jnp.zeros((1, 512, 8, 64)), False), _default_block(jnp.zeros((4, 512, 16, 64)), False)
      ((512, 512), (512, 128))
      >>> _default_block(jnp.zeros((4, 512, 16, 64)), True), _default_block(jnp.zeros((64, 512, 16, 64)), False)
      ((128, 128), (128, 128))
    """
    batch, length, heads, _ = queries.shape
    pair_bytes = 4 * batch * heads // max(jax.sharding.get_abstract_mesh().size, 1)
    few = BLOCK_LENGTHS[-1]
    if are_relative:
        fits = lambda number: 3 * number * number * pair_bytes <= BLOCK_BYTES  # with the scores of 2 * number distances
        number = next((number for number in BLOCK_LENGTHS if fits(number)), few)
        return number, number
    number = next((number for number in BLOCK_LENGTHS if number * length * pair_bytes <= BLOCK_BYTES), few)
    return max(min(length, BLOCK_BYTES // (number * pair_bytes) // few * few), few), number


def _read_rows(
    blocks: _Blocks,
    rows: int,
    by_row: Mapping[str, Array],
    split: Arrays,
    tiles: Array | None,
    first_tile: int,
    dropout_key: Array | None,
) -> tuple[Array, Array]:
    """Attends with `rows` queries at a time. Returns output and sums of weights with queries at axis 2.

    Args:
      blocks: Blocks of keys.
      rows: Number of queries in a block.
      by_row: Arrays with an axis of queries, those of whole blocks: `queries`, `mask`, `bias` and `position_queries`.
      split: Arrays with an axis of keys, those of whole blocks.
      tiles: Biases of distances (`_distance_tiles`). None for none.
      first_tile: Tile of the first queries and the first keys.
      dropout_key: Random key of the dropout.
    """
    length = by_row["queries"].shape[1]
    number, window = length // rows, blocks.number * blocks.length + rows - 1

    def read(index: Array | int, split: Arrays) -> tuple[Array, Array]:
        axes = {"mask": 2, "bias": 2}
        take = lambda name: lax.dynamic_slice_in_dim(by_row[name], index * rows, rows, axes.get(name, 1))
        parts, key_parts = {name: take(name) for name in by_row}, dict(split)
        if "relative_keys" in key_parts:  # the longest distance of the last rows stands first
            key_parts["relative_keys"] = lax.dynamic_slice_in_dim(
                key_parts["relative_keys"], (number - 1 - index) * rows, window, 0
            )
        if "bias" in parts:
            key_parts["bias"] = parts.pop("bias")
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, index)
        mask = parts.pop("mask")
        if tiles is not None:
            parts["tiles"] = tiles
        tile = jnp.asarray(first_tile + index * (rows // blocks.tile))
        output_and_sums: Any = _attend(blocks, parts, key_parts, mask, tile, key)
        return output_and_sums

    if number == 1:
        return read(0, split)
    # Gradients to keys are summed over the blocks of rows, in at least float32.
    wide = jax.tree.map(lambda array: array.astype(at_least_float32(array.dtype)), split)
    narrow = lambda: jax.tree.map(lambda array, given: array.astype(given.dtype), wide, split)
    results = lax.map(lambda index: read(index, narrow()), jnp.arange(number))
    output, sums = (jnp.moveaxis(array, 0, 2).reshape(*array.shape[1:3], length, -1) for array in results)
    return output, sums


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(blocks: _Blocks, shared: Arrays, split: Arrays, mask: Array, tile: Array, dropout_key: Array | None) -> Any:
    """Returns output `[batch, heads, length, value_dim]` and sums of weights. `shared` has the arrays that all blocks
    read, `split` those of which each reads a part. `tile` is the tile of the first queries and the first keys.
    """
    return _attend_forward(blocks, shared, split, mask, tile, dropout_key)[0]


def _attend_forward(
    blocks: _Blocks, shared: Arrays, split: Arrays, mask: Array, tile: Array, dropout_key: Array | None
) -> tuple[tuple[Array, Array], tuple]:
    queries, values = shared["queries"], split["values"]
    batch, length, heads, _ = queries.shape
    dtype = at_least_float32(queries.dtype, split["keys"].dtype)
    lowest = np.array(np.finfo(dtype).min, dtype)

    def read(carry: tuple[Array, Array, Array], index: Array) -> tuple[tuple[Array, Array, Array], None]:
        maximum, sums, output = carry
        block, visible = _block(blocks, split, mask, length, index)
        scores = jnp.where(visible, _scores(blocks, tile, index, shared, block), lowest)
        larger = jnp.maximum(maximum, scores.max(axis=-1, keepdims=True))
        weights, factor = jnp.where(visible, jnp.exp(scores - larger), 0), jnp.exp(maximum - larger)
        places = index * blocks.length + jnp.arange(blocks.length)
        first = [jnp.where(places < number, weights, 0) for number in blocks.counted]
        more = jnp.stack([part.sum(axis=-1) for part in (weights, *first)], axis=-1)
        read_values = _read_values(blocks, weights, block["values"], dropout_key, index)
        return (larger, sums * factor + more, output * factor + read_values), None

    carry = (
        jnp.full((batch, heads, length, 1), lowest),
        jnp.zeros((batch, heads, length, 1 + len(blocks.counted)), dtype),
        jnp.zeros((batch, heads, length, values.shape[-1]), dtype),
    )
    (maximum, sums, output), _ = lax.scan(read, carry, jnp.arange(blocks.number))
    denominator = sums[..., :1]
    sees_any = denominator > 0
    inverse = jnp.where(sees_any, 1 / jnp.where(sees_any, denominator, 1), 0)
    output = output * inverse
    # Of a query that sees no key all weights are 0, whatever it is.
    log_sum = maximum + jnp.log(jnp.where(sees_any, denominator, 1))
    return (output, sums[..., 1:] * inverse), (shared, split, mask, tile, dropout_key, output, log_sum)


def _attend_backward(blocks: _Blocks, residuals: tuple, gradients: tuple[Array, Array]) -> tuple:
    shared, split, mask, tile, dropout_key, output, log_sum = residuals
    gradient, length = gradients[0], shared["queries"].shape[1]
    along = jnp.sum(gradient * output, axis=-1, keepdims=True)

    def read(carry: Arrays, index: Array) -> tuple[Arrays, Arrays]:
        block, visible = _block(blocks, split, mask, length, index)
        values = block.pop("values")
        scores, of_scores = jax.vjp(functools.partial(_scores, blocks, tile, index), shared, block)
        weights = jnp.where(visible, jnp.exp(scores - log_sum), 0)
        _, of_values = jax.vjp(lambda w, v: _read_values(blocks, w, v, dropout_key, index), weights, values)
        to_weights, to_values = of_values(gradient)
        to_shared, to_block = of_scores(weights * (to_weights - along))
        carry = jax.tree.map(lambda total, more: total + more.astype(total.dtype), carry, to_shared)
        return carry, {**to_block, "values": to_values}

    # Sums of many blocks, in at least float32 whatever the arrays are.
    zeros = jax.tree.map(lambda array: jnp.zeros(array.shape, at_least_float32(array.dtype)), shared)
    to_shared, to_blocks = lax.scan(read, zeros, jnp.arange(blocks.number))
    to_shared = jax.tree.map(lambda total, array: total.astype(array.dtype), to_shared, shared)
    return to_shared, _join(blocks, to_blocks, split), None, None, None


_attend.defvjp(_attend_forward, _attend_backward)

_SPLIT_AXIS = {"keys": 1, "values": 1, "bias": 3, "relative_keys": 0}
"""name of an array -> its axis of keys"""


def _block(blocks: _Blocks, split: Arrays, mask: Array, length: int, index: Array) -> tuple[dict[str, Array], Array]:
    """Returns the parts of `split` that a block reads, and which of its keys each query sees."""
    start = index * blocks.length
    sizes = {"relative_keys": blocks.length + length - 1}
    take = lambda array, axis, size: lax.dynamic_slice_in_dim(array, start, size, axis)
    parts = {name: take(array, _SPLIT_AXIS[name], sizes.get(name, blocks.length)) for name, array in split.items()}
    return parts, take(mask, 3, blocks.length)


def _join(blocks: _Blocks, parts: Arrays, split: Arrays) -> dict[str, Array]:
    """Joins the gradients of the parts of all blocks, `[blocks, ...]`, to those of the whole arrays."""
    joined = {}
    for name, part in parts.items():
        axis = _SPLIT_AXIS[name]
        if name == "relative_keys":  # windows overlap
            places = np.arange(blocks.number)[:, None] * blocks.length + np.arange(part.shape[1])[None]
            zeros = jnp.zeros(split[name].shape, at_least_float32(part.dtype))
            joined[name] = zeros.at[places].add(part.astype(zeros.dtype)).astype(part.dtype)
        else:
            joined[name] = jnp.moveaxis(part, 0, axis).reshape(split[name].shape)
    return joined


def _scores(blocks: _Blocks, tile: Array, index: Array, shared: Arrays, block: Arrays) -> Array:
    """Returns the scores of the keys of a block, `[batch, heads, length, keys]`."""
    queries, keys, bias = shared["queries"], block["keys"], block.get("bias")
    dtype = at_least_float32(queries.dtype, keys.dtype)
    if "tiles" in shared:
        of_distances = _join_tiles(blocks, tile - index * (blocks.length // blocks.tile), shared["tiles"], queries)
        bias = of_distances if bias is None else bias + of_distances
    scores = score_keys(queries, keys, bias, dtype, blocks.cap)
    if "relative_keys" not in block:
        return scores
    by_distance = jnp.einsum(
        "blhd,mhd->bhlm", shared["position_queries"], block["relative_keys"], preferred_element_type=dtype
    )
    return scores + relative_shift(by_distance)[..., : blocks.length]


def _distance_tiles(distance_bias: Array, slots: int, tile: int) -> tuple[Array, int]:
    """Returns the biases of tiles of `tile` queries and keys, `[tiles, heads, tile, tile]`, and which of them belongs
    to the first queries and the first keys, if `slots` keys stand before the first query. A tile of later queries is
    one further, a tile of later keys one nearer. Before the first tile and after the last one nothing changes.

    Example:
      >>> tiles, first = _distance_tiles(jnp.array([[0.0, 1.0, 2.0]]), slots=2, tile=2)
      >>> print(tiles[first, 0], tiles.shape)  # distances of the first two queries, at 2 and 3, to keys at 0 and 1
      [[2. 1.]
       [2. 2.]] (3, 1, 2, 2)
    """
    heads, number = distance_bias.shape
    nearest = -1 if slots % tile else 0  # with the slots of a whole tile, the tile before is all in the future
    furthest = -(-(number + tile - 2 - slots % tile) // tile)
    starts = np.arange(nearest, furthest + 1) * tile + slots % tile
    along = np.clip(starts[:, None] + tile - 1 - np.arange(2 * tile - 1)[None], 0, number - 1)
    pick = jnp.asarray(along[..., None] == np.arange(number), distance_bias.dtype)
    by_distance = jnp.einsum("hd,tnd->thn", distance_bias, pick, precision="highest")  # its gradient needs no scatter
    rows = jnp.broadcast_to(by_distance[:, :, None], (len(starts), heads, tile, 2 * tile - 1))
    return relative_shift(rows)[..., :tile], slots // tile - nearest


def _join_tiles(blocks: _Blocks, tile: Array, tiles: Array, queries: Array) -> Array:
    """Returns the biases of a block whose first queries and keys have the number `tile` in `tiles`, `[1, heads, length,
    keys]`.
    """
    size, heads, length = blocks.tile, tiles.shape[1], queries.shape[1]
    steps = np.arange(length // size)[:, None] - np.arange(blocks.length // size)[None]
    numbers = jnp.clip(tile + steps, 0, len(tiles) - 1)
    # A choice and a sum: the gradient of a gather would be a scatter.
    is_it = numbers[..., None] == jnp.arange(len(tiles))[None, None]
    picked = jnp.where(is_it[..., None, None, None], tiles[None, None], 0).sum(axis=2)
    return picked.transpose(2, 0, 3, 1, 4).reshape(1, heads, length, blocks.length)


def _read_values(blocks: _Blocks, weights: Array, values: Array, dropout_key: Array | None, index: Array) -> Array:
    """Returns the sum of the values of a block times their weights, `[batch, heads, length, value_dim]`."""
    key = None if dropout_key is None else jax.random.fold_in(dropout_key, index)
    dropped = drop_weights(weights, blocks.dropout_rate, key)
    return jnp.swapaxes(attend_values(dropped, values, weights.dtype), 1, 2)
