"""Key-value stores that outlive documents, and one protocol to find the nearest entries of a query."""

from memjax.datastore.exact import ExactIndex, StreamedIndex, half_squared_norms, nearest_entries
from memjax.datastore.faiss import FaissIndex, build_faiss, open_faiss
from memjax.datastore.files import DiskFull
from memjax.datastore.hosts import HostsIndex
from memjax.datastore.index import (
    Backend,
    Index,
    MergedIndex,
    Metric,
    Neighbors,
    exact_scores,
    merge_neighbors,
    rescore,
)
from memjax.datastore.opening import open_index
from memjax.datastore.plan import StorePlan, measure_write_speed, plan_store
from memjax.datastore.scann import ScannIndex, ScannSettings, build_scann, build_scann_parts, open_scann
from memjax.datastore.sharded import ShardedIndex, nearest_entries_sharded
from memjax.datastore.store import Block, Header, Store
from memjax.datastore.verification import recall
from memjax.datastore.writer import ShardWriter, create_store, finish_store, read_cursor

__all__ = [
    "Backend",
    "Block",
    "DiskFull",
    "ExactIndex",
    "FaissIndex",
    "Header",
    "HostsIndex",
    "Index",
    "MergedIndex",
    "Metric",
    "Neighbors",
    "ScannIndex",
    "ScannSettings",
    "ShardWriter",
    "ShardedIndex",
    "Store",
    "StorePlan",
    "StreamedIndex",
    "build_faiss",
    "build_scann",
    "build_scann_parts",
    "create_store",
    "exact_scores",
    "finish_store",
    "half_squared_norms",
    "measure_write_speed",
    "merge_neighbors",
    "nearest_entries",
    "nearest_entries_sharded",
    "open_faiss",
    "open_index",
    "open_scann",
    "plan_store",
    "read_cursor",
    "recall",
    "rescore",
]
