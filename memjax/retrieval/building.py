"""Building a datastore from a trained model in one pass over a split, in shards that are written independently.

The rows of an evaluation (streams of text side by side) are divided among the shards. A shard is written by a process
of `build_datastore` or by a worker of `build_with_beam`. Whoever writes it continues where an earlier writer stopped.
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
from memjax.datastore.plan import StorePlan, measure_write_speed, plan_store
from memjax.datastore.store import Header, Progress, Store
from memjax.datastore.writer import ShardWriter, create_store, finish_store, read_cursor
from memjax.durable_files import checksum
from memjax.retrieval.keys import TAP, KeyExtractor, make_key_extractor
from memjax.training import processes
from memjax.training.loaded_runs import load_run
from memjax.training.named_arrays import describe_arrays, flatten
from memjax.training.runs import model_for_fingerprint

__all__ = ["build_datastore", "build_with_beam", "plan_datastore", "sample_queries"]

COMMIT_SECONDS = 30.0
"""Seconds between two commits. A killed process loses at most this much of its pass."""
WAIT_SECONDS = 7 * 24 * 3600.0
"""Longest wait in seconds for processes with more to write. A process that is gone is noticed at once."""


def make_header(source: KeyExtractor, split: str, *, key_dtype: str = "float16", num_shards: int = 0) -> Header:
    """Makes the `Header` of a store that would hold the keys that `source` computes of a split, without writing it. 0
    shards stand for one of each process.

    Args:
      source: Trained model, with its way of reading texts.
      split: Split of the run's data.
      key_dtype: Dtype of the stored keys.
      num_shards: Number of shards. 0 = one for each process.

    Raises:
      ValueError: The number of shards does not divide the rows.
    """
    experiment, documents = source.run.experiment, source.run.experiment.documents(split)
    rows, shards = experiment.config.evaluation.batch_size, num_shards or processes.num_processes()
    if shards < 1 or rows % shards:
        raise ValueError(f"evaluation.batch_size: given {rows}, allowed: a multiple of the {shards} shards")
    return Header(
        **_key_provenance(source),
        dim=source.dim,
        data=f"{split}/{documents.fingerprint}",
        key_dtype=key_dtype,
        num_shards=shards,
        rows=rows,
    )


def check_store(source: KeyExtractor, store: Store) -> None:
    """Raises an error unless the keys of a store were made by the model, tokenizer and reading protocol of `source`.

    Raises:
      ValueError: Something differs. One line names everything that does.
    """
    store.check(**_key_provenance(source))


def check_not_in_store(source: KeyExtractor, store: Store, split: str) -> None:
    """Raises an error for a store that holds the given split of the run of `source`, because scored text must not be
    looked up.

    Raises:
      ValueError: The store holds the split. One line names both.
    """
    split_fingerprint = source.run.experiment.documents(split).fingerprint
    name, _, store_fingerprint = store.header.data.partition("/")
    if store_fingerprint == str(split_fingerprint) if split_fingerprint else name == split:
        raise ValueError(
            f"datastore: {store.path} holds the {split} split, allowed: a store of text that is not scored"
        )


def _key_provenance(source: KeyExtractor) -> dict[str, Any]:
    """Returns everything that the keys of a store depend on besides its texts: model, tokenizer and protocol."""
    experiment = source.run.experiment
    arrays = describe_arrays(flatten(source.variables))
    model = {"config": model_for_fingerprint(experiment.config.model), "arrays": arrays}
    tokenizer = str(experiment.fingerprint)
    return {"model": checksum(model)[:32], "tokenizer": tokenizer, "protocol": source.protocol()}


def build_datastore(
    source: KeyExtractor,
    path: Path | str,
    *,
    split: str = "train",
    key_dtype: str = "float16",
    num_shards: int = 0,
    commit_seconds: float = COMMIT_SECONDS,
    progress: Progress = lambda what, done, total: None,
) -> Store:
    """Writes the keys that `source` computes of a split, and the next tokens, to a store in the folder `path`, or
    continues where an earlier call stopped. Returns the `Store`.

    Every process reads its share of the rows and writes its own shards.

    Args:
      source: Trained model, with its way of reading texts.
      path: Folder of the store.
      split: Split of the run's data.
      key_dtype: Dtype of the stored keys, one of `memjax.datastore.store.KEY_DTYPES`.
      num_shards: Number of shards, a multiple of the number of processes that divides the rows. 0 = one for each
        process. Entries are ordered by shard, so another number gives another order.
      commit_seconds: Seconds between two commits, the most that a killed process loses.
      progress: Function called with 'entries', the number of entries that this process has written, and the expected
        number.

    Raises:
      ValueError: The folder holds something else, or a store of another model, data or protocol.
      DiskFull: No space is left. Committed entries stay.
    """
    path, count = Path(path).expanduser(), processes.num_processes()
    header, total = make_header(source, split, key_dtype=key_dtype, num_shards=num_shards), count_entries(source, split)
    if header.num_shards % count:
        raise ValueError(f"num_shards: given {num_shards}, allowed: a multiple of the {count} processes")
    create_store(path, header)
    done, timeout = 0, source.run.experiment.config.sharding.process_timeout
    with processes.ProcessMonitor(timeout):
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
    source: KeyExtractor,
    path: Path,
    shard: int,
    *,
    split: str,
    commit_seconds: float = COMMIT_SECONDS,
    tell: Callable[[int], None] = lambda entries: None,
) -> int:
    """Writes one shard, by its number, of a store that `create_store` has made, or continues it. Returns its number of
    entries, which the function `tell` gets after each commit.

    Args:
      source: Trained model, with its way of reading texts.
      path: Folder of the store.
      shard: Number of the shard, from 0. Each holds an equal share of the rows.
      split: Split of the run's data.
      commit_seconds: Seconds between two commits.
      tell: Function called after each commit with the number of entries of the shard.

    Returns:
      The number of entries of the shard.
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
    """Builds the store of `build_datastore` from a run's folder as an Apache Beam pipeline, whose `runner`, a name,
    places the work on its workers. Returns the `Store`.

    Args:
      run: Run directory. Every worker sees it under this path, as it sees the store.
      path: Folder of the store. See `memjax.datastore.beam` for what its disk must support.
      runner: Name of a runner of Beam.
      num_shards: Number of shards, which divides the rows. Each is one element of the pipeline.
      config: Configuration to use instead of the one in the run directory.
      tap: Inner tensor that the keys are. See `make_key_extractor`.
      split: Split of the run's data.
      key_dtype: Dtype of the stored keys.
      runner_options: Options of the pipeline, `name=value` or `name`.
      commit_seconds: Seconds between two commits of a shard.
      progress: Function called with 'entries', the number of committed entries, and the expected number.

    Raises:
      ValueError: As in `build_datastore`, or Beam does not know the runner or an option.
      DiskFull: No space is left. Committed entries stay.
    """
    path, run = Path(path).expanduser().absolute(), Path(run).expanduser().absolute()
    source = make_key_extractor(load_run(run, config), tap)
    header, total = make_header(source, split, key_dtype=key_dtype, num_shards=num_shards), count_entries(source, split)
    create_store(path, header)  # raises errors before a worker starts
    del source
    load = functools.partial(_load_work, run, config, tap, path, header, split, commit_seconds)
    shards = range(num_shards)
    committed = lambda: sum(read_cursor(path, shard)["entries"] for shard in shards)
    watch = lambda: progress("entries", committed(), total)
    run_pipeline(load, shards, runner=runner, options=runner_options, watch=watch)
    watch()  # the last entries may be younger than the last look
    return finish_store(path)


def _load_work(
    run: Path, config: Config | None, tap: str, path: Path, header: Header, split: str, commit_seconds: float
) -> Callable[[int], int]:
    """Makes the function with which a worker writes the shard of a given number.

    The worker loads the run itself, and checks that it gives the same store.
    """
    source = make_key_extractor(load_run(run, config), tap)
    create_store(path, make_header(source, split, key_dtype=header.key_dtype, num_shards=header.num_shards))
    return functools.partial(build_shard, source, path, split=split, commit_seconds=commit_seconds)


def sample_queries(source: KeyExtractor, split: str, count: int, *, seed: int = 0) -> np.ndarray:
    """Returns `count` queries to a store, `[count, dim]`: the keys that `source` computes at random tokens of a split.

    They test an index more fairly than stored keys, each of which finds itself.

    Args:
      source: Trained model, with its way of reading texts. The split is read once.
      split: Split of the run's data, preferably one that is not in the store.
      count: Number of queries. All tokens where the split has fewer.
      seed: Seed of the random choice.
    """
    rng = np.random.default_rng(seed)
    keys, ranks = np.zeros((0, source.dim), np.float32), np.zeros(0)
    for entries in source.reader(split):  # their number is unknown: keep the lowest random ranks
        keys, ranks = np.concatenate([keys, entries.keys]), np.concatenate([ranks, rng.random(len(entries.keys))])
        lowest = np.sort(np.argsort(ranks)[:count])
        keys, ranks = keys[lowest], ranks[lowest]
    return keys


def count_entries(source: KeyExtractor, split: str) -> int:
    """Returns the number of entries in a store of a split: its tokens, without first tokens that are not scored."""
    documents: Documents = source.run.experiment.documents(split)
    protocol = source.protocol()
    counts = [documents.num_tokens(i) for i in range(len(documents))]
    unscored = 0 if protocol["score_first"] else 1 if protocol["documents"] == "contiguous" else len(counts)
    return sum(counts) - unscored


def plan_datastore(
    source: KeyExtractor, path: Path | str, *, split: str = "train", key_dtype: str = "float16", segments: int = 4
) -> StorePlan:
    """Estimates the cost of a store in the folder `path` as a `StorePlan`. Reads a few `segments` to measure the speed
    of the model, and writes no store.

    Args:
      source: Trained model, with its way of reading texts.
      path: Folder that the store is to be written to.
      split: Split of the run's data.
      key_dtype: Dtype of the stored keys.
      segments: Number of segments to read. The first one compiles and is not timed.
    """
    folder = Path(path).expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    entries, seconds = 0, 0.0
    reader = iter(source.reader(split))
    next(reader)
    for _ in range(segments):
        start = time.perf_counter()
        read = next(reader, None)
        if read is None:
            break
        entries, seconds = entries + len(read.targets), seconds + time.perf_counter() - start
    return plan_store(
        make_header(source, split, key_dtype=key_dtype),
        count_entries(source, split),
        path=folder,
        tokens_per_second=entries / seconds if entries else None,
        write_bytes_per_second=measure_write_speed(folder),
        num_devices=len(jax.devices()),
    )
