"""Building a datastore from a trained model: one pass over a split, every process into its own shard."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from memjax.data.documents import Documents
from memjax.datastore.plan import StorePlan, measure_write_speed, plan_store
from memjax.datastore.store import Header, Store
from memjax.datastore.writer import ShardWriter, create_store, finish_store
from memjax.training import processes
from memjax.training.checkpoints import describe_arrays, flatten
from memjax.training.keys import KeyReader, KeySource
from memjax.training.runs import config_to_dict

COMMIT_SECONDS = 30.0
"""a kill costs at most so much of the pass"""

Progress = Callable[[str, int, int | None], None]
"""Called with (what, done so far, total or None)."""


def make_header(source: KeySource, split: str, *, key_dtype: str = "float16") -> Header:
    """What a store of a split would be made from.

    Args:
      source: the model, and how it reads.
      split: of the run's data.
      key_dtype: of the stored keys.
    """
    experiment, documents = source.run.experiment, source.run.experiment.documents(split)
    arrays = describe_arrays(flatten(source.variables))
    model = {"config": config_to_dict(experiment.config.model), "arrays": arrays}
    return Header(
        dim=source.dim,
        model=_digest(model),
        tokenizer=str(getattr(experiment.tokenizer, "fingerprint", None)),
        data=f"{split}/{getattr(documents, 'fingerprint', None)}",
        protocol=source.protocol(),
        key_dtype=key_dtype,
        num_shards=processes.count(),
    )


def build_datastore(
    source: KeySource,
    path: Path | str,
    *,
    split: str = "train",
    key_dtype: str = "float16",
    commit_seconds: float = COMMIT_SECONDS,
    progress: Progress = lambda what, done, total: None,
) -> Store:
    """Writes the keys and next tokens of a split, or goes on where an earlier call has stopped, however it stopped.

    Every process reads its share of the rows and writes a shard of its own.

    Args:
      source: the model, and how it reads.
      path: of the store.
      split: of the run's data.
      key_dtype: of the stored keys, see `memjax.datastore.store.KEY_DTYPES`.
      commit_seconds: between two commits: what a kill may cost.
      progress: told how many entries there are.

    Raises:
      ValueError: the folder holds something else, or a store of another model, data or protocol.
      DiskFull: no space is left; what was committed stands.
    """
    path = Path(path).expanduser()
    rows, own = _rows(source)
    header, total = make_header(source, split, key_dtype=key_dtype), count_entries(source, split)
    create_store(path, header)
    processes.barrier("the datastore")
    with ShardWriter(path, jax.process_index()) as writer:
        if not writer.complete:
            reader = source.reader(
                split,
                host_rows=(own.start, own.stop),
                progress=writer.progress,
                state=writer.load_state() if writer.progress else None,
            )
            _write(reader, writer, commit_seconds, lambda done: progress("entries", done, total * len(own) // rows))
    processes.barrier("the shards")
    if processes.is_first():
        finish_store(path)
    processes.barrier("the finished datastore")
    return Store(path)


def _rows(source: KeySource) -> tuple[int, range]:
    """Rows of all processes, and those of this one."""
    rows, count = source.run.experiment.config.evaluation.rows, processes.count()
    if rows % count:
        raise ValueError(f"evaluation.rows: given {rows}, allowed: a multiple of the {count} processes")
    first = jax.process_index() * (rows // count)
    return rows, range(first, first + rows // count)


def _write(reader: KeyReader, writer: ShardWriter, seconds: float, tell: Callable[[int], None]) -> None:
    committed = time.monotonic()
    for keys, targets, _ in reader:
        writer.append(keys, targets)
        if time.monotonic() - committed >= seconds:
            writer.commit(reader.progress, reader.state())
            committed = time.monotonic()
            tell(writer.entries)
    writer.finish()
    tell(writer.entries)


def count_entries(source: KeySource, split: str) -> int:
    """Entries of a store of a split: its tokens, and no first tokens where those are not scored."""
    documents: Documents = source.run.experiment.documents(split)
    protocol = source.protocol()
    counts = [
        documents.num_tokens(i) if hasattr(documents, "num_tokens") else len(documents[i])  # type: ignore[attr-defined]
        for i in range(len(documents))
    ]
    unscored = 0 if protocol["score_first"] else len(counts) if protocol["documents"] == "separate" else 1
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


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
