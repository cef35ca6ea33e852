"""Key-value stores that outlive documents."""

from memjax.datastore.files import DiskFull
from memjax.datastore.plan import StorePlan, measure_write_speed, plan_store
from memjax.datastore.store import Block, Header, Store
from memjax.datastore.writer import ShardWriter, create_store, finish_store, read_cursor

__all__ = [
    "Block",
    "DiskFull",
    "Header",
    "ShardWriter",
    "Store",
    "StorePlan",
    "create_store",
    "finish_store",
    "measure_write_speed",
    "plan_store",
    "read_cursor",
]
