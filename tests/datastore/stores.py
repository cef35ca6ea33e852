"""Small stores for the tests of this folder."""

import dataclasses
from pathlib import Path

import numpy as np

from memjax.datastore import Header, ShardWriter, Store, create_store, finish_store

HEADER = Header(dim=4, model="m", tokenizer="t", data="d", protocol={"segment_length": 8}, block_entries=5)


def make_header(**changes) -> Header:
    return dataclasses.replace(HEADER, **changes)


def make_store(path: Path, keys, values=None, *, shards=None, **header) -> Store:
    """A finished store; `shards` = entries of each shard."""
    keys = np.asarray(keys)
    values = np.arange(len(keys)) if values is None else np.asarray(values)
    shards = [len(keys)] if shards is None else shards
    assert sum(shards) == len(keys)
    create_store(
        path, make_header(**{"dim": keys.shape[1], "key_dtype": "float32", **header, "num_shards": len(shards)})
    )
    first = 0
    for shard, size in enumerate(shards):
        with ShardWriter(path, shard) as writer:
            writer.append(keys[first : first + size], values[first : first + size])
            writer.finish()
        first += size
    return finish_store(path)


def clusters(entries: int, dim: int, *, centres: int = 100, seed: int = 0) -> np.ndarray:
    """float32 points around random centres: neighbours that mean something."""
    rng = np.random.default_rng(seed)
    middle = np.random.default_rng(123).normal(size=(centres, dim))
    return (middle[rng.integers(0, centres, entries)] + 0.5 * rng.normal(size=(entries, dim))).astype(np.float32)
