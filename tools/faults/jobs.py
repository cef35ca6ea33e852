"""The commands that are interrupted: runs of every kind, the preparation of data, tokenizers, and stores."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memjax.config import BytePairs, Config, SentencePiece, WordPiece, Words
from memjax.datastore.store import Store
from memjax.durable_files import PARTIAL
from tools.faults.subjects import (
    NEIGHBORS,
    STORE,
    SUBJECTS,
    Command,
    inside,
    prepare_keys,
    prepare_store,
    read_run,
    with_checkpoints,
)
from tools.verbs import RUNS, make_config, write_data

__all__ = ["JOBS", "VARIANTS", "Job", "get_config", "make_job"]


class Job(NamedTuple):
    """A command that writes files.

    Attributes:
      words: Words of the command line.
      result: Function that returns what it has written, as JSON values.
      prepare: Function that writes what the command reads, in the working directory.
    """

    words: str
    result: Callable[[], Any]
    prepare: Callable[[], None] = lambda: None

    @property
    def command(self) -> Command:
        return Command(self.words, lambda _: self.result(), ())


TOKENIZERS = {
    "byte pairs": BytePairs(vocab_size=270),
    "sentence pieces": SentencePiece(vocab_size=300),
    "word pieces": WordPiece(vocab_size=100),
    "words": Words(),
}
VARIANTS = (*SUBJECTS, *RUNS, *TOKENIZERS)


def get_config(variant: str) -> Config:
    """Returns the configuration of a job, whose run is called `run`."""
    if variant in SUBJECTS:
        config = SUBJECTS[variant].make_config()
    elif variant in TOKENIZERS:
        config = make_config("TransformerXL")
        config.data.tokenizer = TOKENIZERS[variant]
    else:
        config = make_config(variant)
        if config.lifelong is None:
            config = with_checkpoints(config, 4)
    config.data.cache_dir = "data/cache"
    return dataclasses.replace(config, name="run")


def hash_files(folder: str) -> Any:
    """Returns the hash of every file below a folder by its path, without locks and what a kill has left of a file."""
    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.name != ".lock"]
    files = [path for path in files if path.suffix != PARTIAL]
    return {path.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def read_store(path: str) -> Any:
    """Returns the hashes of the keys and values of a store."""
    store = Store(path)
    assert not [*store.find_problems()]
    return {name: digest for name, digest in hash_files(path).items() if name.endswith(("keys.bin", "values.bin"))}


def train_job(variant: str) -> Job:
    """Returns the job that trains a run of a variant."""
    prepare = SUBJECTS[variant].prepare if variant in SUBJECTS else lambda: None
    return Job(f"train --config jobs.py --variant {shlex.quote(variant)}", lambda: read_run("run"), prepare)


def data_job(tokenizer: str) -> Job:
    """Returns the job that trains a tokenizer and prepares data with it."""
    words = f"data --config jobs.py --variant {shlex.quote(tokenizer)}"
    return Job(words, lambda: hash_files("data/cache"))


JOBS: Mapping[str, Job] = {
    **{variant: train_job(variant) for variant in (*SUBJECTS, *RUNS) if variant != "SPALM"},  # that is 'neighbors'
    **{f"data, {tokenizer}": data_job(tokenizer) for tokenizer in TOKENIZERS},
    "store": Job(f"datastore build {STORE} --shards 2", lambda: read_store("stores/train"), prepare_keys),
    "cached neighbours": Job(f"{NEIGHBORS} train", lambda: hash_files("data/neighbors"), prepare_store),
}
"""name -> a command that is interrupted"""


def make_job(job: Job, folder: Path) -> None:
    """Writes all that the command of a job reads to a folder, which is created."""
    write_data(folder)
    (folder / "jobs.py").write_text("from tools.faults.jobs import VARIANTS, get_config\n")
    with inside(folder):
        job.prepare()
