"""The programs that can compute the attention of a segment, and what they keep of the attention weights.

'reference' keeps the weights of all keys in memory, `memjax.functional.attention`. 'blocks' computes them in blocks of
keys, `memjax.functional.block_attention`. 'fused' is one kernel, `memjax.functional.fused_attention`. They agree but
for rounding.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.axes import MODEL
from memjax.functional.attention import attention_with_weights
from memjax.functional.block_attention import block_attention
from memjax.functional.devices import device_kind, platform
from memjax.functional.fused_attention import fused_attention
from memjax.functional.named_operations import operation
from memjax.typing import Aux, Mask, WeightedSum

Implementation = Literal["auto", "reference", "blocks", "fused"]
"""Program that computes the attention of a segment. 'auto' chooses by platform and sizes (`choose_implementation`)."""
LARGE_SCORES, HUGE_SCORES = 2**26, 2**30
"""bytes of the scores of one device from which on 'auto' computes them in blocks: on chips whose compiler keeps the
scores of a block out of the HBM, and on all others but CPUs, where blocks save memory and no time"""
ON_CHIP = ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e")
"""kinds of such chips"""


class AttentionWeights(NamedTuple):
    """Attention weights of a segment, or where a program does not keep them, sums of them.

    Attributes:
      weights: `[batch, heads, rows, total]`, all weights before dropout. None where they were never all in memory.
      sums: Number of first keys -> `[batch, heads, rows]`, sum of their weights, where there are no weights.
    """

    weights: Array | None
    sums: Mapping[int, Array] = {}

    def sum(self, start: int, stop: int) -> Array | None:
        """Returns the sum of the weights of the keys from `start` to `stop`, `[batch, heads, rows]`. None where it is
        not known.
        """
        if self.weights is not None:
            return self.weights[..., start:stop].sum(axis=-1)
        if stop not in self.sums or (start and start not in self.sums):
            return None
        return self.sums[stop] - self.sums[start] if start else self.sums[stop]


def choose_implementation(
    wanted: Implementation, reasons: Mapping[str, str], score_bytes: int
) -> Literal["reference", "blocks", "fused"]:
    """Returns the program that computes an attention: `wanted`, or for 'auto' the kernel where it can run, blocks where
    scores are large (`LARGE_SCORES`) and the platform is no CPU, and the reference otherwise.

    Args:
      wanted: Program that the user has set.
      reasons: 'blocks' and 'fused' -> why such a program cannot compute this attention: what is given and what is
        allowed. Empty if it can.
      score_bytes: Bytes of all scores on one device.

    Raises:
      ValueError: The wanted program cannot compute this attention.

    Example:
      >>> choose_implementation("auto", {"blocks": "", "fused": "a program for 'cpu'"}, 4096)
      'reference'
    """
    if wanted == "auto":
        if not reasons["fused"]:
            return "fused"
        least = LARGE_SCORES if device_kind() in ON_CHIP else HUGE_SCORES
        is_large = score_bytes >= least and platform() != "cpu"
        return "blocks" if is_large and not reasons["blocks"] else "reference"
    if reason := reasons.get(wanted):
        raise ValueError(f"attention_implementation: given {wanted!r} with {reason}; or 'auto'")
    return wanted


def score_bytes(queries: Array, keys: Array) -> int:
    """Returns the bytes of the scores of queries and keys, `[batch, tokens, heads, width]`, on one device, if rows and
    heads are split evenly over a mesh.
    """
    devices = max(jax.sharding.get_abstract_mesh().size, 1)
    return 4 * queries.shape[0] * queries.shape[2] * queries.shape[1] * keys.shape[1] // devices


@operation
def read_segment(
    implementation: Literal["reference", "blocks", "fused"],
    queries: Array,
    keys: Array,
    values: Array,
    *,
    visible: Array,
    valid: Array | None = None,
    window: int | None = None,
    counted: tuple[int, ...] = (),
    bias: Array | None = None,
    distance_bias: Array | None = None,
    position_factors: tuple[Array, Array] | None = None,
    **options: Any,
) -> tuple[Array, AttentionWeights]:
    """Attends to memory and segment by a program. Returns the result of every head and what is kept of the weights.

    Args:
      implementation: Program.
      queries: `[batch, length, heads, head_dim]`, queries of the segment.
      keys: `[batch, total, key_heads, head_dim]`, keys of memory and segment, oldest first.
      values: `[batch, total, key_heads, head_dim]`.
      visible: bool `[#batch, 1, length, total]`, keys that each query may read.
      valid: bool `[batch, total]`, slots and tokens that hold something. With `window` it says the same as `visible`,
        for the program 'fused', which needs it.
      window: Largest number of keys that a query sees, itself included. None for no limit.
      counted: Numbers of first keys whose weights are summed. See `block_attention`.
      bias: Summand of the scaled scores, but for 'fused'. None for none.
      distance_bias: `[heads, distances]`, what `bias` says, by distance, for 'blocks', which then needs no `bias`. See
        `block_attention`. None for none.
      position_factors: Queries of relative positions and encodings of distances, for 'blocks'. See `block_attention`.
        None for none.
      **options: `scale`, `cap`, `dropout_rate` and `dropout_key` of `attention_with_weights`.
    """
    if implementation == "fused":
        assert valid is not None
        options = {name: options[name] for name in ("scale", "cap") if name in options}
        z = fused_attention(queries, keys, values, valid, window=window, head_axis=MODEL, **options)
        return z, AttentionWeights(None)
    if implementation == "blocks":
        names = ("position_queries", "relative_keys")
        positions = {} if position_factors is None else dict(zip(names, position_factors, strict=True))
        options |= {"mask": visible, "distance_bias": distance_bias, "counted": counted}
        options["bias"] = bias if distance_bias is None else None
        z, sums = block_attention(queries, keys, values, **positions, **options)
        return z, AttentionWeights(None, dict(zip(counted, jnp.moveaxis(sums, -1, 0), strict=True)))
    z, weights = attention_with_weights(queries, keys, values, mask=visible, bias=bias, **options)
    return z, AttentionWeights(weights)


@operation
def attention_shares(attention: AttentionWeights, mask: Mask, slots: Mapping[str, tuple[int, int]]) -> Aux:
    """Measures the shares of the attention that go to slots of a memory, over the real tokens, as metrics of `Aux`. Of
    a program that keeps no sums of weights there are none.

    Args:
      attention: Attention weights over slots and segment, oldest first. Rows and columns in front of the slots belong
        to learned memory rows and are not counted.
      mask: bool `[batch, length]`, real tokens.
      slots: Name of the metric -> first slot and slot after the last one, counted from the oldest.

    Example:
      >>> weights = jnp.array([[[[0.25, 0.5, 0.25, 0.0], [0.0, 0.0, 0.5, 0.5]]]])  # two slots, two tokens
      >>> aux = attention_shares(AttentionWeights(weights), jnp.array([[True, True]]), {"share": (0, 2)})
      >>> print(aux.metrics["share"].mean())
      0.375
    """
    length = mask.shape[1]
    first = 0 if attention.weights is None else attention.weights.shape[-2] - length  # memory rows in front
    metrics = {}
    for name, (start, stop) in slots.items():
        of_slots = attention.sum(first + start, first + stop)
        if of_slots is not None:
            by_token = jax.lax.stop_gradient(of_slots[:, :, first:]).mean(axis=1)  # [b, l]
            metrics[name] = WeightedSum(jnp.where(mask, by_token, 0).sum(), mask.sum().astype(by_token.dtype))
    return Aux(metrics=metrics)
