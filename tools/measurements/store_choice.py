"""Compares exact search, sharded search and ScaNN in stores of ten thousand to ten million random keys.

    python -m tools.measurements.store_choice [--entries N ...]

Each size of the store takes up to ten minutes and 10 GB. The indices of one size take turns in one run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from memjax.datastore import Header, ShardWriter, Store, create_store, finish_store
from memjax.training.run_versions import versions
from tools.measurements.search import NEIGHBORS, exact_families, measure, scann_families
from tools.results import pages
from tools.results.ledger import measured, together

ENTRIES = (10_000, 100_000, 1_000_000, 10_000_000)
DIM, CENTRES, QUERIES, BLOCK = 64, 1000, 256, 100_000
CANDIDATES = (64, 256, 1024, 4096)
"""Numbers of entries that ScaNN scores again by their keys."""
BASELINE = "memjax exact"


def draw_keys(centres: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """Draws `number` float32 keys around random centres."""
    keys = centres[rng.integers(0, len(centres), number)] + rng.normal(size=(number, centres.shape[1]))
    return keys.astype(np.float32)


def draw_store(entries: int, path: Path) -> tuple[Store, np.ndarray]:
    """Writes a store of random float16 keys, and returns it with random queries, `[QUERIES, DIM]`."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CENTRES, DIM))
    queries = draw_keys(centres, QUERIES, rng)
    create_store(path, Header(dim=DIM, model="", tokenizer="", data=f"{entries} drawn keys", protocol={}))
    with ShardWriter(path) as writer:
        for first in range(0, entries, BLOCK):
            number = min(BLOCK, entries - first)
            writer.append(draw_keys(centres, number, rng).astype(np.float16), np.zeros(number, np.int32))
        writer.finish()
    return finish_store(path), queries


def measure_size(entries: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Builds the indices of a store, measures them in turns, and returns their records.

    Args:
      entries: Number of keys.
      rounds: Number of measured searches of each index.
      folder: Folder of the store.
    """
    store, queries = draw_store(entries, folder / str(entries))
    built = [*exact_families(store), *scann_families(store, CANDIDATES)]
    return measure(store, queries, built, rounds, BASELINE)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.measurements.store_choice", description="Indices by size.")
    parser.add_argument("--entries", type=int, nargs="+", default=ENTRIES, help="numbers of keys")
    parser.add_argument("--rounds", type=int, default=5, help="measured searches of each index")
    options = parser.parse_args(arguments)
    for name, numbers in (("--entries", options.entries), ("--rounds", [options.rounds])):
        if least := [number for number in numbers if number < 1]:
            parser.error(f"{name}: given {least[0]}, allowed: at least 1")
    records = []
    for entries in options.entries:
        folder = Path(tempfile.mkdtemp())
        try:
            print(f"== {entries:,} keys", file=sys.stderr, flush=True)
            records += measure_size(entries, options.rounds, folder)
        finally:
            shutil.rmtree(folder)
    about = (
        f"Drawn keys around {CENTRES:,} centres, as wide as those are apart, {DIM} dimensions, float16; {QUERIES} "
        f"queries at a time, squared L2, {NEIGHBORS} neighbours; {options.rounds} rounds in turns. Recall against "
        "exact search; a row of ScaNN is the first setting that reaches the level, the quickest of those with "
        "different numbers of candidates. Build: seconds with saving; for exact ones loading. x: times as fast as "
        "exact search by the clock."
    )
    facts = {"versions": versions(), **together(records)}
    command = "python -m tools.measurements.store_choice"
    pages.record(measured("store_choice", "drawn keys", facts, command=command, title="Which index", about=about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
