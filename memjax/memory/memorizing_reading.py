"""Reading the neighbours of a long memory together with a local cache, and the arrays that describe it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.attention import attention, joint_attention, masked_softmax, scored_neighbor_attention
from memjax.functional.named_operations import operation
from memjax.functional.neighbors import (
    gather_slots,
    neighbor_scores,
    select_neighbors,
    select_scored_neighbors,
    threshold_mask,
)
from memjax.functional.positions import relative_distances
from memjax.functional.sharded import PartialSoftmax, sharded_neighbors
from memjax.memory.layer_parts import RETRIEVED, SEGMENT, SHORT, TrackedKeys, tracked_weights
from memjax.memory.memorizing_state import KeyValueMemory, TokenProjections
from memjax.memory.projector import group_queries, repeat_heads, ungroup_heads
from memjax.typing import Aux

__all__ = [
    "LocalAttention",
    "Neighbors",
    "attention_shares",
    "gather_neighbors",
    "read_jointly",
    "read_neighbors",
    "read_shards",
    "retrieval_arrays",
    "retrieve",
    "threshold_neighbors",
]


@operation
def retrieve(
    queries: Float[Array, "batch length heads head_dim"],
    memory: KeyValueMemory,
    num_neighbors: int,
    *,
    method: Literal["exact", "approximate", "bucket"] = "exact",
    recall_target: float = 0.95,
) -> tuple[Int[Array, "batch heads length neighbors"], Bool[Array, "batch heads length neighbors"]]:
    """Returns the slots of the nearest keys of the same row and head, and which of them are real, both `[batch, heads,
    length, neighbors]`, without a gradient. `method` names the search.
    """
    by_head = jnp.swapaxes(queries, 1, 2)
    keys = memory.keys.astype(queries.dtype)
    return select_neighbors(by_head, keys, memory.valid, num_neighbors, method=method, recall_target=recall_target)


class LocalAttention(NamedTuple):
    """Queries, keys, values, scores of positions and mask of the attention to cache and segment, before the softmax.

    Attributes:
      queries: `[batch, length, heads, head_dim]`, placed queries.
      keys: `[batch, cache + length, heads, head_dim]`, placed keys of cache and segment.
      values: `[batch, cache + length, heads, head_dim]`.
      scores: `[#batch, heads, length, cache + length]`, scores of positions. None for none.
      visible: bool `[batch, 1, length, cache + length]`, keys that each query may read.
    """

    queries: Array
    keys: Array
    values: Array
    scores: Array | None
    visible: Array


class Neighbors(NamedTuple):
    """Keys and values of the slots of a long memory that were retrieved for every query, or of all slots, and which of
    them are read.

    Attributes:
      keys: `[batch, heads, length, neighbors, head_dim]`, or `[batch, memory, heads, head_dim]` of all slots.
      values: Values in the layout of `keys`.
      real: bool `[batch, heads, length, neighbors]` or `[batch, #heads, #length, memory]`, slots that are read.
      arrays: Arrays for analysis, by name.
    """

    keys: Array
    values: Array
    real: Array
    arrays: dict[str, Array]


def gather_neighbors(
    queries: Array, memory: KeyValueMemory, number: int, *, method: Any, recall_target: float
) -> tuple[Array, Array, Array, Array]:
    """Finds the `number` nearest slots of every query, whose heads may share key heads. Returns their keys and values,
    `[batch, heads, length, neighbors, head_dim]`, their slots, and which of them are real. `method` names the search.
    """
    heads, key_heads = queries.shape[2], memory.keys.shape[1]
    grouped = group_queries(queries, key_heads)
    nearest = retrieve(grouped, memory, number, method=method, recall_target=recall_target)
    near = [gather_slots(slots, nearest[0]).astype(queries.dtype) for slots in (memory.keys, memory.values)]
    keys, values, ids, real = (ungroup_heads(leaf, heads) for leaf in (*near, *nearest))
    return keys, values, ids, real


def read_neighbors(
    queries: Array,
    memory: KeyValueMemory,
    number: int,
    *,
    method: Any,
    recall_target: float,
    reads_empty_slots: bool = False,
    scale: Array | float | None = None,
    **dropout: Any,
) -> Array:
    """Attends to the `number` nearest slots of every query, whose heads may share key heads, with the scores of the
    search. Returns the result of every head, `[batch, length, heads, head_dim]`.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      memory: The long memory.
      number: Number of slots for each query.
      method: Search method. See `select_neighbors`.
      recall_target: Expected share of true neighbours that "approximate" finds.
      reads_empty_slots: Whether slots that are missing take part as zero keys and values.
      scale: Factor of the scores, one number or one for every head. None for `head_dim ** -0.5`.
      **dropout: `dropout_rate` and `dropout_key` of `scored_neighbor_attention`.
    """
    heads, keys = queries.shape[2], memory.keys.astype(queries.dtype)
    by_head = jnp.swapaxes(group_queries(queries, keys.shape[1]), 1, 2)
    search: dict[str, Any] = {"method": method, "recall_target": recall_target}
    ids, real, products = select_scored_neighbors(by_head, keys, memory.valid, number, **search)
    scores = neighbor_scores(by_head, keys, ids, real, products)
    values = gather_slots(memory.values, ids).astype(queries.dtype)
    scores, values, real = (ungroup_heads(leaf, heads) for leaf in (scores, values, real))
    if reads_empty_slots:
        scores, values, real = jnp.where(real, scores, 0), jnp.where(real[..., None], values, 0), jnp.ones_like(real)
    factor = queries.shape[-1] ** -0.5 if scale is None else scale
    return scored_neighbor_attention(scores, values, real, scale=factor, **dropout)


def threshold_neighbors(queries: Array, memory: KeyValueMemory, number: int, *, reads_empty_slots: bool) -> Neighbors:
    """Returns all slots of a long memory as `Neighbors`, of which the `number` nearest ones are marked for each query,
    without search and gather. With `reads_empty_slots` empty slots fill up the number.
    """
    # Every slot is read here, and slots that are not valid may hold NaN.
    valid_only = lambda slots: jnp.where(memory.valid[:, None, :, None], slots.astype(queries.dtype), 0)
    every_head = lambda slots: repeat_heads(valid_only(slots), queries.shape[2], axis=1)
    keys, values = every_head(memory.keys), every_head(memory.values)
    score_dtype = jnp.promote_types(queries.dtype, jnp.float32)
    scores = jnp.einsum("blhd,bhmd->bhlm", queries, keys, preferred_element_type=score_dtype)
    real = threshold_mask(jax.lax.stop_gradient(scores), memory.valid, number)
    if reads_empty_slots:  # as many empty slots as neighbours are missing take part as zero keys and values
        empty = ~memory.valid
        missing = number - memory.valid.sum(axis=1, keepdims=True)
        real = real | (empty & (jnp.cumsum(empty, axis=1) <= missing))[:, None, None]
    return Neighbors(jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2), real, {})


def read_jointly(local: LocalAttention, near: Neighbors, *, has_all_slots: bool, options: dict[str, Any]) -> Array:
    """Reads local keys and neighbours with one softmax, and returns the output. `has_all_slots` says that `near` are
    all slots of the memory. `options` are those of the attention functions.
    """
    queries, keys, values, bias, visible = local
    if not has_all_slots:
        options = {"mask": visible, "neighbor_valid": near.real, "bias": bias, **options}
        return joint_attention(queries, keys, values, near.keys, near.values, **options)
    keys, values = jnp.concatenate([near.keys, keys], 1), jnp.concatenate([near.values, values], 1)
    visible = jnp.broadcast_to(visible, (*near.real.shape[:3], visible.shape[-1]))
    visible = jnp.concatenate([near.real, visible], -1)
    bias = None if bias is None else jnp.pad(bias, [(0, 0)] * 3 + [(near.real.shape[-1], 0)])
    return attention(queries, keys, values, mask=visible, bias=bias, **options)


def read_shards(queries: Array, memory: KeyValueMemory, number: int, **options: Any) -> PartialSoftmax:
    """Reads the `number` nearest slots of a memory whose slots are split over a mesh axis, and returns a
    `PartialSoftmax`. `options` are those of `sharded_neighbors`.
    """
    every_head = lambda slots: repeat_heads(slots, queries.shape[2], axis=1)
    keys, values = every_head(memory.keys), every_head(memory.values)
    return sharded_neighbors(queries, keys, values, memory.valid, number, slot_axis=memory.slot_axis, **options)


def retrieval_arrays(
    queries: Array, keys: Array, ids: Array, real: Array, scale: Array | float | None, memory: KeyValueMemory
) -> dict[str, Array]:
    """Returns the document positions of neighbours and their softmax weights by name, for analysis. `keys` are those of
    the neighbours, `ids` their slots in `memory`, `real` marks those that exist.
    """
    factor = jnp.reshape(queries.shape[-1] ** -0.5 if scale is None else scale, (1, -1, 1, 1))
    shares = masked_softmax(jnp.einsum("blhd,bhlkd->bhlk", queries, keys) * factor, real)
    positions = jax.vmap(lambda row, slots: row[slots])(memory.positions, ids)
    return {"neighbor_positions": jnp.where(real, positions, -1), "neighbor_weights": shares}


def attention_shares(
    part: nn.Module,
    queries: Array,
    local: LocalAttention,
    segment: TokenProjections,
    near: Neighbors | None,
    scale: Array | float | None,
    merged: tuple[Array, Array] | None,
) -> Aux:
    """Returns an `Aux` with the share of every key in the output: of the neighbours, then of cache and segment.
    `merged` are the shares of both parts, None for one softmax. It is empty unless `part` tracks its attention.

    Args:
      part: Attention with the field `track_attention`.
      queries: `[batch, length, heads, head_dim]`, queries of the neighbours.
      local: Attention to cache and segment.
      segment: Keys and values of the segment, with document positions where there are neighbours.
      near: Neighbours with their document positions. None without a long memory.
      scale: Factor of the scores, one number or one for every head. None for `head_dim ** -0.5`.
      merged: Shares of memory and of local attention, each `[#batch, #heads, 1, 1]`. None for one softmax over both.
    """
    wide, length = jnp.promote_types(queries.dtype, jnp.float32), queries.shape[1]
    factor = jnp.reshape(queries.shape[-1] ** -0.5 if scale is None else scale, (1, 1, -1, 1))
    scores = jnp.einsum("blhd,bmhd->bhlm", local.queries.astype(wide) * factor, local.keys.astype(wide))
    scores = scores if local.scores is None else scores + local.scores
    total, local_visible = scores.shape[-1], jnp.broadcast_to(local.visible, scores.shape)
    ages = jnp.broadcast_to(jnp.asarray(relative_distances(length, total), jnp.int32), scores.shape)
    sources = jnp.where(jnp.arange(total) < total - segment.keys.shape[1], SHORT, SEGMENT)
    if near is None:
        key_facts = TrackedKeys(ages, jnp.ones_like(sources), sources)
        return tracked_weights(part, masked_softmax(scores, local_visible), local_visible, key_facts)
    positions = near.arrays["neighbor_positions"]
    near_scores = jnp.einsum("blhd,bhlkd->bhlk", queries.astype(wide) * factor, near.keys.astype(wide))
    visible_keys = jnp.concatenate([near.real & (positions >= 0), local_visible], axis=-1)
    if merged is None:
        real = jnp.concatenate([near.real, local_visible], axis=-1)
        shares = masked_softmax(jnp.concatenate([near_scores, scores], axis=-1), real)
    else:
        parts = masked_softmax(near_scores, near.real), masked_softmax(scores, local_visible)
        shares = jnp.concatenate([share * of for share, of in zip(merged, parts, strict=True)], axis=-1)
    here = segment.positions[:, None, :, None]
    ages = jnp.concatenate([jnp.where(positions >= 0, here - positions, 0), ages], axis=-1)
    sources = jnp.pad(sources, (near.real.shape[-1], 0), constant_values=RETRIEVED)
    key_facts = TrackedKeys(ages, jnp.ones_like(sources), sources)
    return tracked_weights(part, jnp.where(visible_keys, shares, 0), visible_keys, key_facts)
