"""Counts how often each slot of a value table is used during training.

The counters are saved with the tables. See `memjax.inspection.slot_usage` for measuring a trained model.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from memjax.axes import constrain
from memjax.functional.product_keys import top_slots
from memjax.training.tables import Path, TableOptimizer, Tables, TouchedRows, layer_prefixes, map_tables, split_pairs

__all__ = ["count_usage"]

COUNTERS = ("lookups", "top", "weights")
"""Counters of each slot: lookups, tokens for which the slot has the largest weight, and the sum of its weights."""


def count_usage(optimizer: TableOptimizer) -> TableOptimizer:
    """Returns a table optimiser that also counts how each slot is used, in its moments.

    The counters of every table are those of `SlotCounts`, int32 and float32. They are part of the moments and are saved
    with them. `pull_usage` reads them and sets them to 0.
    """

    def init(values: Any) -> Any:
        zeros = lambda dtype: jax.tree.map(lambda table: jnp.zeros(table.shape[:-1], dtype), values)
        dtypes = (jnp.int32, jnp.int32, jnp.float32)
        return {"rule": optimizer.init(values), "usage": dict(zip(COUNTERS, map(zeros, dtypes), strict=True))}

    def update(
        values: Any, moments: Any, touched: Mapping[Path, TouchedRows], *, step: Int[Array, ""], ok: Bool[Array, ""]
    ) -> tuple[Any, Any]:
        values, rule = optimizer.update(values, moments["rule"], touched, step=step, ok=ok)
        count = lambda path, *counters: _count(counters, touched[path], ok)
        new = map_tables(count, *(moments["usage"][name] for name in COUNTERS))
        return values, {"rule": rule, "usage": dict(zip(COUNTERS, split_pairs(new, len(COUNTERS)), strict=True))}

    return TableOptimizer(init, update)


def _count(counters: tuple[Array, ...], rows: TouchedRows, ok: Array) -> tuple[Array, ...]:
    """Adds the touched rows of a step to the counters of a table. A skipped step adds nothing."""
    if rows.ids.ndim == 3:
        return jax.vmap(lambda counters, rows: _count(counters, rows, ok))(counters, rows)
    lookups, top, weights = counters
    # Copied to every device. Otherwise counters that are split over devices would be summed over them as a whole.
    ids = constrain(jnp.where(ok, rows.ids, lookups.shape[0]), None, None)
    heavy = constrain(rows.weights, None, None)
    return (
        lookups.at[ids].add(1, mode="drop"),
        top.at[jax.lax.map(lambda bag: top_slots(*bag), (ids, heavy), batch_size=256)].add(1, mode="drop"),
        weights.at[ids].add(heavy.astype(weights.dtype), mode="drop"),
    )


def pull_usage(tables: Tables) -> tuple[dict[str, float], Tables]:
    """Reads the counters of slot usage in `tables`. Returns shares of used slots and divergences by layer and name, and
    the tables with counters at 0.

    Returns:
      Metrics by name, and the tables with counters at 0. The metrics of every table are `layer_<index>/usage`,
      `/top_usage`, `/count_divergence` and `/weight_divergence` (see `SlotCounts`). They are empty without counters.
    """
    usage = tables.moments.get("usage") if isinstance(tables.moments, dict) else None
    if not usage or not jax.tree.leaves(usage):
        return {}, tables
    numbers = {name: float(value) for name, value in jax.device_get(_describe(usage)).items()}
    moments = {**tables.moments, "usage": jax.tree.map(jnp.zeros_like, usage)}
    return numbers, dataclasses.replace(tables, moments=moments)


@jax.jit
def _describe(usage: Mapping[str, Any]) -> dict[str, Array]:
    """Computes the metrics of all tables from their counters."""
    metrics: dict[str, Array] = {}

    def divergence(counts: Array) -> Array:
        shares = counts / jnp.maximum(counts.sum(dtype=jnp.float32), 1e-30)
        terms = jnp.where(shares > 0, shares * jnp.log(jnp.where(shares > 0, shares, 1)), 0)
        return jnp.where(counts.any(), jnp.maximum(math.log(len(counts)) + terms.sum(), 0), 0)

    def add_table(path: Path, *counters: Array) -> None:
        stacked = [c if c.ndim == 2 else c[None] for c in counters]
        prefixes = layer_prefixes(path, jax.ShapeDtypeStruct((*counters[0].shape, 1), jnp.float32))
        for index, prefix in enumerate(prefixes):
            lookups, top, weights = (c[index] for c in stacked)
            metrics[f"{prefix}usage"] = jnp.mean(lookups > 0)
            metrics[f"{prefix}top_usage"] = jnp.mean(top > 0)
            metrics[f"{prefix}count_divergence"] = divergence(lookups)
            metrics[f"{prefix}weight_divergence"] = divergence(weights)

    map_tables(add_table, *(usage[name] for name in COUNTERS))
    return metrics
