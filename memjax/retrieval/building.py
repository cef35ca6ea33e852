"""Building a datastore from a trained model: one pass over a split, into shards that are written independently.

The rows of an evaluation (streams of text side by side) are shared among the shards. A shard is made by whoever comes
to it, a process of `build_datastore` or a worker of `build_with_beam`, and goes on where an earlier maker has stopped.
"""

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memjax.config import Config
from memjax.data.documents import Documents
from memjax.datastore.beam import run_pipeline
from memjax.datastore.files import checksum
from memjax.datastore.plan import StorePlan, measure_write_speed, plan_store
from memjax.datastore.store import Header, Progress, Store
from memjax.datastore.writer import ShardWriter, create_store, finish_store, read_cursor
from memjax.retrieval.keys import TAP, KeySource, make_key_source
from memjax.training import processes
from memjax.training.checkpoints import describe_arrays, flatten
from memjax.training.restoring import load_run
from memjax.training.runs import model_for_fingerprint

__all__ = ["build_datastore", "build_with_beam", "plan_datastore", "sample_queries"]

COMMIT_SECONDS = 30.0
"""a kill costs at most so much of the pass"""
WAIT_SECONDS = 7 * 24 * 3600.0
"""for processes that have more to do; one that is gone is noticed at once"""


def make_header(source: KeySource, split: str, *, key_dtype: str = "float16", num_shards: int = 0) -> Header:
    """What a store of a split would be made from.

    Args:
      source: the model, and how it reads.
      split: of the run's data.
      key_dtype: of the stored keys.
      num_shards: 0 = one for each process.

    Raises:
      ValueError: a number of shards that does not divide the rows.
    """
    experiment, documents = source.run.experiment, source.run.experiment.documents(split)
    rows, shards = experiment.config.evaluation.rows, num_shards or processes.count()
    if shards < 1 or rows % shards:
        raise ValueError(f"evaluation.rows: given {rows}, allowed: a multiple of the {shards} shards")
    return Header(
        **_made_with(source),
        dim=source.dim,
        data=f"{split}/{documents.fingerprint}",
        key_dtype=key_dtype,
        num_shards=shards,
        rows=rows,
    )


def check_store(source: KeySource, store: Store) -> None:
    """Refuses a store whose keys another model has made, with another tokenizer, or by reading in another way.

    Raises:
      ValueError: one line with everything that differs.
    """
    store.check(**_made_with(source))


def check_unread(source: KeySource, store: Store, split: str) -> None:
    """Refuses a store that holds a split: what is scored would be read off.

    Raises:
      ValueError: one line with the store and the split.
    """
    ours = source.run.experiment.documents(split).fingerprint
    name, _, theirs = store.header.data.partition("/")
    if theirs == str(ours) if ours else name == split:
        raise ValueError(
            f"datastore: {store.path} holds the {split} split, allowed: a store of text that is not scored"
        )


def _made_with(source: KeySource) -> dict[str, Any]:
    """What the keys of a store depend on beside its texts."""
    experiment = source.run.experiment
    arrays = describe_arrays(flatten(source.variables))
    model = {"config": model_for_fingerprint(experiment.config.model), "arrays": arrays}
    tokenizer = str(experiment.fingerprint)
    return {"model": checksum(model)[:32], "tokenizer": tokenizer, "protocol": source.protocol()}


def build_datastore(
    source: KeySource,
    path: Path | str,
    *,
    split: str = "train",
    key_dtype: str = "float16",
    num_shards: int = 0,
    commit_seconds: float = COMMIT_SECONDS,
    progress: Progress = lambda what, done, total: None,
) -> Store:
    """Writes the keys and next tokens of a split, or goes on where an earlier call has stopped, however it stopped.

    Every process reads its share of the rows and writes shards of its own.

    Args:
      source: the model, and how it reads.
      path: of the store.
      split: of the run's data.
      key_dtype: of the stored keys, see `memjax.datastore.store.KEY_DTYPES`.
      num_shards: a multiple of the processes that divides the rows; 0 = one for each process. Entries are ordered by
        shard, so that another number gives another order.
      commit_seconds: between two commits: what a kill may cost.
      progress: told how many entries of this process there are.

    Raises:
      ValueError: the folder holds something else, or a store of another model, data or protocol.
      DiskFull: no space is left; what was committed stands.
    """
    path, count = Path(path).expanduser(), processes.count()
    header, total = make_header(source, split, key_dtype=key_dtype, num_shards=num_shards), count_entries(source, split)
    if header.num_shards % count:
        raise ValueError(f"num_shards: given {num_shards}, allowed: a multiple of the {count} processes")
    create_store(path, header)
    done, timeout = 0, source.run.experiment.config.sharding.timeout
    with processes.Watch(timeout):
        processes.barrier("the datastore", timeout)
        for shard in range(jax.process_index(), header.num_shards, count):
            tell = lambda entries, before=done: progress("entries", before + entries, total // count)
            done += build_shard(source, path, shard, split=split, commit_seconds=commit_seconds, tell=tell)
        processes.barrier("the shards", WAIT_SECONDS)
        if processes.is_first():
            finish_store(path)
        processes.barrier("the finished datastore", timeout)
    return Store(path)


def build_shard(
    source: KeySource,
    path: Path,
    shard: int,
    *,
    split: str,
    commit_seconds: float = COMMIT_SECONDS,
    tell: Callable[[int], None] = lambda entries: None,
) -> int:
    """Writes one shard of a store that `create_store` has made of `make_header`, or goes on with it.

    Args:
      source: the model, and how it reads.
      path: of the store.
      shard: from 0; it holds an equal share of the rows.
      split: of the run's data.
      commit_seconds: between two commits.
      tell: called with the entries of the shard after each.

    Returns:
      The entries of the shard.
    """
    with ShardWriter(path, shard) as writer:
        if not writer.complete:
            share = writer.header.rows // writer.header.num_shards
            reader = source.reader(
                split,
                host_rows=(shard * share, (shard + 1) * share),
                progress=writer.progress,
                state=writer.load_state() if writer.progress else None,
            )
            committed = time.monotonic()
            for keys, targets, _ in reader:
                writer.append(keys, targets)
                if time.monotonic() - committed >= commit_seconds:
                    writer.commit(reader.progress, reader.state())
                    committed = time.monotonic()
                    tell(writer.entries)
            writer.finish()
            tell(writer.entries)
        return writer.entries


def build_with_beam(
    run: Path | str,
    path: Path | str,
    *,
    runner: str,
    num_shards: int,
    config: Config | None = None,
    tap: str = TAP,
    split: str = "train",
    key_dtype: str = "float16",
    runner_options: Sequence[str] = (),
    commit_seconds: float = COMMIT_SECONDS,
    progress: Progress = lambda what, done, total: None,
) -> Store:
    """`build_datastore` as an Apache Beam pipeline: the same store, whose shards are made wherever its runner likes.

    Args:
      run: a run directory that every worker sees under the same path, like the store.
      path: of the store, see `memjax.datastore.beam` for what its disk must know.
      runner: of Beam.
      num_shards: elements of the pipeline, a divisor of the rows.
      config: instead of the one in the directory of the run.
      tap: see `make_key_source`.
      split: of the run's data.
      key_dtype: of the stored keys.
      runner_options: of the pipeline, `name=value` or `name`.
      commit_seconds: between two commits of a shard.
      progress: told how many entries are committed.

    Raises:
      ValueError: as `build_datastore`, or a runner or option that Beam does not know.
      DiskFull: no space is left; what was committed stands.
    """
    path, run = Path(path).expanduser().absolute(), Path(run).expanduser().absolute()
    source = make_key_source(load_run(run, config), tap)
    header, total = make_header(source, split, key_dtype=key_dtype, num_shards=num_shards), count_entries(source, split)
    create_store(path, header)  # what is wrong is said before a worker starts
    del source
    load = functools.partial(_load_work, run, config, tap, path, header, split, commit_seconds)
    shards = range(num_shards)
    committed = lambda: sum(read_cursor(path, shard)["entries"] for shard in shards)
    watch = lambda: progress("entries", committed(), total)
    run_pipeline(load, shards, runner=runner, options=runner_options, watch=watch)
    return finish_store(path)


def _load_work(
    run: Path, config: Config | None, tap: str, path: Path, header: Header, split: str, commit_seconds: float
) -> Callable[[int], int]:
    """What a worker does with the number of a shard; it has read the same run as the one that has made the store."""
    source = make_key_source(load_run(run, config), tap)
    create_store(path, make_header(source, split, key_dtype=header.key_dtype, num_shards=header.num_shards))
    return functools.partial(build_shard, source, path, split=split, commit_seconds=commit_seconds)


def sample_queries(source: KeySource, split: str, count: int, *, seed: int = 0) -> np.ndarray:
    """What the model asks a store with at some tokens of a split, `[count, dim]`: a fairer sample than stored keys.

    Args:
      source: the model, and how it reads; the split is read once.
      split: of the run's data, best one that is not in the store.
      count: of queries; all where there are fewer.
      seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    keys, ranks = np.zeros((0, source.dim), np.float32), np.zeros(0)
    for found in source.reader(split):  # how many there will be is not known: the lowest of random ranks are kept
        keys, ranks = np.concatenate([keys, found.keys]), np.concatenate([ranks, rng.random(len(found.keys))])
        kept = np.sort(np.argsort(ranks)[:count])
        keys, ranks = keys[kept], ranks[kept]
    return keys


def count_entries(source: KeySource, split: str) -> int:
    """Entries of a store of a split: its tokens, and no first tokens where those are not scored."""
    documents: Documents = source.run.experiment.documents(split)
    protocol = source.protocol()
    counts = [documents.num_tokens(i) for i in range(len(documents))]
    unscored = 0 if protocol["score_first"] else 1 if protocol["documents"] == "contiguous" else len(counts)
    return sum(counts) - unscored


def plan_datastore(
    source: KeySource, path: Path | str, *, split: str = "train", key_dtype: str = "float16", segments: int = 4
) -> StorePlan:
    """What a store will cost; reads a few segments to measure the speed of the model, and writes nothing that stays.

    Args:
      source: the model, and how it reads.
      path: where the store is to be.
      split: of the run's data.
      key_dtype: of the stored keys.
      segments: that are read; the first, which compiles, is not counted.
    """
    folder = Path(path).expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    entries, seconds = 0, 0.0
    reader = iter(source.reader(split))
    next(reader)
    for _ in range(segments):
        start = time.perf_counter()
        found = next(reader, None)
        if found is None:
            break
        entries, seconds = entries + len(found.targets), seconds + time.perf_counter() - start
    return plan_store(
        make_header(source, split, key_dtype=key_dtype),
        count_entries(source, split),
        path=folder,
        tokens_per_second=entries / seconds if entries else None,
        write_bytes_per_second=measure_write_speed(folder),
        num_devices=len(jax.devices()),
    )
