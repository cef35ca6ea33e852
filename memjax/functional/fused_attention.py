"""Causal attention to a memory and a segment by a kernel that keeps the scores on the chip: JAX's splash
kernel on a TPU, cuDNN's on a GPU.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from memjax.functional.attention import scale_queries, visibility
from memjax.functional.devices import platform
from memjax.functional.named_operations import operation

__all__ = ["fused_attention", "why_not_fused"]

LANES, LARGEST_BLOCK = 128, 512
"""number of entries of a vector register of a TPU, and the largest number of queries or keys in a tile of scores"""
DTYPES = {"tpu": ("float32", "bfloat16"), "gpu": ("bfloat16", "float16")}
"""platform that has a kernel -> dtypes of queries and keys that its kernel reads"""
WIDTH_UNIT, LARGEST_WIDTH = 8, 128
"""unit of the widths of heads that cuDNN has kernels for, and the largest such width on all its GPUs"""


@operation
def fused_attention(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch memory key_heads head_dim"],
    values: Float[Array, "batch memory key_heads value_dim"],
    valid: Bool[Array, "batch memory"],
    *,
    window: int | None = None,
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None = None,
    cap: float = 0.0,
    head_axis: str = "",
    interpret: bool = False,
) -> Float[Array, "batch length heads value_dim"]:
    """Computes `attention` with the mask of `visibility` in one kernel, forward and backward, on a TPU or GPU.

    On a TPU the kernel is `jax.experimental.pallas.ops.tpu.splash_attention`. Scores stay in the memory of the chip,
    and tiles that no query sees are skipped. It reads the keys once for every 512 queries. On a GPU it is that of cuDNN
    (`jax.nn.dot_product_attention`), which reads the mask as a summand `[batch, 1, length, memory]`, and computes
    masked tiles too. With a mesh (`jax.set_mesh`, automatic axes) every device computes its own rows and heads.

    Args:
      queries: `[batch, length, heads, head_dim]`. The last query stands at the last key.
      keys: `[batch, memory, key_heads, head_dim]`, keys of memory and segment, oldest first, with a divisor of `heads`
        as the number of key heads.
      values: `[batch, memory, key_heads, value_dim]`.
      valid: bool `[batch, memory]`, keys that later queries, and their own, see. All keys must be finite.
      window: Largest number of keys that a query sees, itself included. None for no limit.
      scale: Factor of the scores. See `attention`.
      cap: Limit of the scaled scores. See `attention_with_weights`.
      head_axis: Name of the mesh axis over which heads are split. Empty for none.
      interpret: Whether Pallas interprets the kernel of a TPU, slowly, on any device. It is for tests.

    Returns:
      `[batch, length, heads, value_dim]` in the dtype of `queries`. 0 for a query that sees no key.

    Raises:
      ValueError: The kernel cannot compute it (`why_not_fused`), and is not interpreted.

    Example:
      >>> x, values = jnp.ones((1, 2, 1, 4)), jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
      >>> print(fused_attention(x, x, values, jnp.ones((1, 2), bool), interpret=True).ravel())
      [1. 2.]
    """
    if not interpret and (reason := why_not_fused(queries, keys, cap=cap, head_axis=head_axis)):
        raise ValueError(f"fused_attention: given {reason}")
    is_cudnn = not interpret and platform() == "gpu"
    mesh_axes = jax.sharding.get_abstract_mesh().axis_names
    # All axes are named, also those of one device: gradients would be summed over the others.
    rows = tuple(name for name in mesh_axes if name != head_axis)
    by_row = PartitionSpec(rows or None)
    by_head = PartitionSpec(rows or None, None, head_axis if head_axis in mesh_axes else None)

    def on_shard(queries: Array, keys: Array, values: Array, valid: Array) -> Array:
        if is_cudnn:
            return _attend_by_cudnn(queries, keys, values, valid, window)
        return _attend_by_splash(queries, keys, values, valid, window, cap, interpret)

    arrays = (scale_queries(queries, scale), keys, values, valid)
    if mesh_axes:
        specs = (by_head, by_head, by_head, by_row)
        output = jax.shard_map(on_shard, in_specs=specs, out_specs=by_head, check_vma=False)(*arrays)
    else:
        output = on_shard(*arrays)
    sees_any = _sees_any(valid, queries.shape[1], window)
    return jnp.where(sees_any[:, :, None, None], output, 0).astype(queries.dtype)


def why_not_fused(queries: Array, keys: Array, *, cap: float = 0.0, head_axis: str = "") -> str:
    """Returns why `fused_attention` cannot run with these arrays on the devices of this program: what is given and what
    is allowed. Empty if it can.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      keys: `[batch, memory, key_heads, head_dim]`.
      cap: Limit of the scaled scores. 0 for none.
      head_axis: Name of the mesh axis over which heads are split. Empty for none.

    Example:
      >>> why_not_fused(jnp.zeros((1, 4, 2, 8)), jnp.zeros((1, 4, 2, 8)))
      "a program for 'cpu', allowed: for 'tpu' or 'gpu'"
    """
    kind = platform()
    if kind not in DTYPES:
        return f"a program for {kind!r}, allowed: for 'tpu' or 'gpu'"
    if kind == "tpu" and jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64:
        return "a program with jax_enable_x64, allowed: without"
    if not {queries.dtype.name, keys.dtype.name} <= set(DTYPES[kind]):
        return f"queries of {queries.dtype} and keys of {keys.dtype}, allowed: {' or '.join(DTYPES[kind])}"
    if kind == "gpu" and cap:
        return f"score_cap {cap:g} on a GPU, allowed: 0, 'reference' or 'blocks'"
    if kind == "gpu" and (queries.shape[-1] % WIDTH_UNIT or queries.shape[-1] > LARGEST_WIDTH):
        return f"heads of width {queries.shape[-1]}, allowed: multiples of {WIDTH_UNIT} up to {LARGEST_WIDTH}"
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    if queries.shape[2] % sizes.get(head_axis, 1) or keys.shape[2] % sizes.get(head_axis, 1):
        devices = f"the {sizes[head_axis]} devices of the mesh axis {head_axis!r}"
        return f"{queries.shape[2]} heads and {keys.shape[2]} key heads, allowed: multiples of {devices}"
    if queries.shape[0] % math.prod(size for name, size in sizes.items() if name != head_axis):
        return f"{queries.shape[0]} rows, allowed: a multiple of the devices of a mesh {sizes} that share rows"
    return ""


def _attend_by_cudnn(queries: Array, keys: Array, values: Array, valid: Array, window: int | None) -> Array:
    """Runs the kernel of a GPU for the rows and heads of one device. Numbers are even, which gradients need."""
    length, memory = queries.shape[1], keys.shape[1] - queries.shape[1]
    visible = visibility(length, valid[:, :memory], valid[:, memory:], window=window)
    queries, keys, values = (_pad(array, 2) for array in (queries, keys, values))
    visible = jnp.pad(visible, [(0, 0), (0, 0), (0, length % 2), (0, valid.shape[1] % 2)])
    attend = jax.nn.dot_product_attention
    return attend(queries, keys, values, mask=visible, scale=1.0, implementation="cudnn")[:, :length]


def _attend_by_splash(
    queries: Array, keys: Array, values: Array, valid: Array, window: int | None, cap: float, interpret: bool
) -> Array:
    """Runs the kernel of a TPU for the rows and heads of one device."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    length, total, heads = queries.shape[1], keys.shape[1], queries.shape[2]
    query_block, key_block = _block(length), _block(total)
    queries, keys, values = (
        jnp.swapaxes(_pad(array, size), 1, 2)
        for array, size in ((queries, query_block), (keys, key_block), (values, key_block))
    )
    shape, offset = (queries.shape[2], keys.shape[2]), total - length
    if window is None:
        mask = masks.CausalMask(shape, offset=offset)
    else:
        mask = masks.LocalMask(shape, (window - 1, 0), offset=offset)
    # A kernel of its own for the gradient of the queries: in one with the others it would write a part of it for every
    # block of keys.
    sizes = kernels.BlockSizes(
        **dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), query_block),
        **dict.fromkeys(("block_kv", "block_kv_dkv", "block_kv_dq"), key_block),
    )
    attend = kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=cap or None,
        interpret=interpret,
    )
    ids = jnp.ones((queries.shape[0], shape[0]), jnp.int32)  # equal ids see each other
    segments = kernels.SegmentIds(ids, _pad(valid, key_block).astype(jnp.int32))
    output: Any = jax.vmap(attend)(queries, keys, values, segments)
    return jnp.swapaxes(output, 1, 2)[:, :length]


def _block(number: int) -> int:
    """Returns the number of queries or keys in a tile.

    Example:
      >>> _block(100), _block(300), _block(2048)
      (128, 384, 512)
    """
    return min(-(-number // LANES) * LANES, LARGEST_BLOCK)


def _pad(array: Array, block: int) -> Array:
    """Pads axis 1 to whole blocks."""
    return jnp.pad(array, [(0, -array.shape[1] % block if axis == 1 else 0) for axis in range(array.ndim)])


def _sees_any(valid: Array, length: int, window: int | None) -> Array:
    """Returns which queries, bool `[batch, length]`, see a key at all."""
    total = valid.shape[1]
    counts = jnp.pad(jnp.cumsum(valid, axis=1, dtype=jnp.int32), ((0, 0), (1, 0)))
    after = jnp.arange(total - length + 1, total + 1)
    before = jnp.maximum(after - window, 0) if window is not None else jnp.zeros_like(after)
    return counts[:, after] > counts[:, before]
