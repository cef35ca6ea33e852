"""Pure functions on arrays, without Flax: the part of memjax that other codebases import."""

from memjax.functional.attention import (
    attention,
    joint_attention,
    masked_softmax,
    neighbor_attention,
    scale_queries,
    visibility,
)
from memjax.functional.fifo import (
    advance,
    order_after,
    read_window,
    reset_rows,
    ring_ages,
    ring_append,
    ring_order,
    select_window,
    shift_append,
    write_window,
)
from memjax.functional.losses import cross_entropy_sum, token_cross_entropy
from memjax.functional.mixing import head_gate, stop_forward
from memjax.functional.neighbors import (
    gather_bucket_slots,
    gather_slots,
    select_neighbors,
    threshold_attention,
    threshold_mask,
)
from memjax.functional.positions import (
    bucket_bias,
    relative_buckets,
    relative_distances,
    relative_shift,
    sinusoids,
)
from memjax.functional.product_keys import lookup_rows
from memjax.functional.scopes import operation
from memjax.functional.sharded import (
    Partial,
    merge_partials,
    num_shards,
    partial_attention,
    sharded_append,
    sharded_neighbors,
    sharded_restore,
    sharded_save,
)

__all__ = [
    "Partial",
    "advance",
    "attention",
    "bucket_bias",
    "cross_entropy_sum",
    "gather_bucket_slots",
    "gather_slots",
    "head_gate",
    "joint_attention",
    "lookup_rows",
    "masked_softmax",
    "merge_partials",
    "neighbor_attention",
    "num_shards",
    "operation",
    "order_after",
    "partial_attention",
    "read_window",
    "relative_buckets",
    "relative_distances",
    "relative_shift",
    "reset_rows",
    "ring_ages",
    "ring_append",
    "ring_order",
    "scale_queries",
    "select_neighbors",
    "select_window",
    "sharded_append",
    "sharded_neighbors",
    "sharded_restore",
    "sharded_save",
    "shift_append",
    "sinusoids",
    "stop_forward",
    "threshold_attention",
    "threshold_mask",
    "token_cross_entropy",
    "visibility",
    "write_window",
]
