"""Compares indices of a datastore: recall, speed, size and building time, measured in turns in one run.

    memjax train --config knn_lm_wikitext --data.source.path DIR
    python -m tools.measurements.knn_lm RUN --data.source.path DIR            # builds the store
    python -m tools.measurements.search RUN 100000 --data.source.path DIR

The first entries of the store become a store of their own. The queries are keys that the model makes of validation
text. Approximate indices are tried with more and more effort until they reach a recall. The first setting that reaches
it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memjax.cli.parser import EVALUATION_FIELDS
from memjax.datastore import (
    ExactIndex,
    FaissIndex,
    Header,
    Index,
    Neighbors,
    ShardedIndex,
    ShardWriter,
    Store,
    StreamedIndex,
    build_faiss,
    build_scann,
    create_store,
    finish_store,
    measure_recall,
    open_index,
    rescore,
)
from memjax.datastore.artefacts import open_artefact
from memjax.retrieval.keys import KeyExtractor, make_key_extractor
from memjax.settings.overrides import apply_overrides
from memjax.training.loaded_runs import load_run
from memjax.training.run_versions import versions
from memjax.training.runs import load_config
from tools.bench import worker
from tools.bench.harness import quartiles, speed_ratio
from tools.results import pages
from tools.results.ledger import measured, together

QUERIES = 1000
NEIGHBORS = 32
LEVELS = (0.9, 0.95, 0.99)
EFFORTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of visited leaves, inverted lists or candidates of a graph that are tried."""
CANDIDATES = (64, 128, 256)
"""Numbers of entries that are scored again by their keys."""
BASELINE = "faiss Flat"
MOST_ENTRIES_OF_A_GRAPH = 100_000  # more take minutes to build


@dataclasses.dataclass(frozen=True)
class Family:
    """A built index, with the settings that are tried.

    Attributes:
      name: Name of the index in the table.
      effort: Name of the first setting. '' = the index is exact and has no settings.
      candidates: Choices of the second setting, the number of entries to score again. (0,) = no such setting.
      make: `make(effort, candidates)` returns the index with these settings.
      build: Seconds and CPU seconds of building and saving the index.
      size: Bytes of the index. Bytes of the keys where there is nothing else.
      efforts: Choices of the first setting, ascending.
    """

    name: str
    effort: str
    candidates: tuple[int, ...]
    make: Callable[[int, int], Index]
    build: dict[str, float]
    size: int
    efforts: tuple[int, ...] = EFFORTS


@dataclasses.dataclass(frozen=True)
class Contender:
    """An index with fixed settings, and its recall.

    Attributes:
      family: The built index.
      level: Level of recall that the settings reach. None for an exact index.
      setting: Description of the settings. '' for an exact index.
      recall: Recall with these settings. NaN where nothing is searched.
      search: Function without arguments that searches all queries.
    """

    family: Family
    level: float | None
    setting: str
    recall: float
    search: Callable[[], Any]

    @property
    def name(self) -> str:
        """Name of the index, with the level of recall where there is one."""
        return self.family.name + (f" at {self.level}" if self.level else "")


def queries_of(source: KeyExtractor, file: Path) -> np.ndarray:
    """Returns the keys of random tokens of the validation split, which are made once and then read from `file`."""
    if not file.exists():
        keys = np.concatenate([part.keys for part in source.reader("validation")]).astype(np.float32)
        places = np.sort(np.random.default_rng(0).choice(len(keys), QUERIES, replace=False))
        np.save(file, keys[places])
    return np.load(file)


def first_entries(store: Store, entries: int, path: Path) -> Store:
    """Writes the first entries of a store to a new store, and replaces an earlier one at `path`."""
    shutil.rmtree(path, ignore_errors=True)
    header = dataclasses.asdict(store.header)
    create_store(path, Header(**{**header, "num_shards": 1, "data": f"{header['data']}, first {entries}"}))
    with ShardWriter(path) as writer:
        for block in store.blocks(last=entries):
            writer.append(block.keys, block.values)
        writer.finish()
    return finish_store(path)


def time_action(action: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Calls `action`, and returns its result, with its seconds and its CPU seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = action()
    return result, {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def exact_family(name: str, build: Callable[[], Any], size: int) -> Family:
    """Builds an exact index, and measures the time.

    Args:
      name: Name of the index in the table.
      build: Function without arguments that returns the index.
      size: Bytes of the index.
    """
    index, cost = time_action(build)
    return Family(name, "", (0,), lambda *_: index, cost, size)


def exact_families(store: Store) -> list[Family]:
    """Builds memjax's exact indices."""
    size = store.entries * (store.header.key_bytes + 4)  # keys and their squared lengths
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    return [
        exact_family("memjax exact", lambda: ExactIndex.from_store(store), size),
        exact_family("memjax sharded, one device", lambda: ShardedIndex.from_store(store, mesh=mesh), size),
    ]


def scann_families(store: Store, candidates: tuple[int, ...] = CANDIDATES) -> list[Family]:
    """Builds the index of ScaNN, and returns it twice: as it is, and with its candidates scored again by their keys.

    Args:
      store: Store with the keys.
      candidates: Numbers of candidates to try.
    """
    built = []
    _, cost = time_action(lambda: build_scann(store))
    size = _bytes(open_artefact(store, "scann_squared_l2_00000_of_00001")[0])
    scann: Any = open_index(store, "scann")
    again = rescore(scann, store)
    for name, index in (("memjax ScaNN", scann), ("memjax ScaNN, exact re-scoring", again)):

        def make(effort: int, candidates: int, index: Index = index) -> Index:
            scann.leaves_to_search, scann.reorder = effort, candidates
            return index

        built.append(Family(name, "leaves_to_search", candidates, make, cost, size))
    return built


def families(store: Store) -> list[Family]:
    """Builds every index of the table."""
    import faiss

    def faiss_index(name: str, factory: str, parameter: str, candidates: tuple[int, ...] = (0,)) -> Family:
        _, cost = time_action(lambda: build_faiss(store, factory=factory, training_entries=100_000))
        folder, _ = open_artefact(store, "faiss_squared_l2")
        raw = faiss.read_index(str(folder / "index.faiss"))

        def make(effort: int, candidates: int) -> Index:
            if parameter:
                faiss.ParameterSpace().set_index_parameter(raw, parameter, effort)
            index = FaissIndex(raw, "squared_l2")
            return rescore(index, store, candidates) if candidates else index

        # A graph visits at least as many candidates as there are neighbours.
        efforts = tuple(n for n in EFFORTS if n >= NEIGHBORS) if parameter == "efSearch" else EFFORTS
        return Family(name, parameter, candidates, make, cost, _bytes(folder), efforts)

    lists = 2 ** int(math.log2(4 * math.sqrt(store.entries)))
    built = [
        exact_family("bare matrix product", lambda: Product(store), 2 * store.entries * store.header.key_bytes),
        *exact_families(store),
        faiss_index(BASELINE, "Flat", ""),
        *scann_families(store),
        faiss_index(f"faiss IVF{lists}", f"IVF{lists},Flat", "nprobe"),
        faiss_index(f"faiss IVF{lists},PQ64, exact re-scoring", f"IVF{lists},PQ64", "nprobe", CANDIDATES),
    ]
    if store.entries <= MOST_ENTRIES_OF_A_GRAPH:
        built.append(faiss_index("faiss HNSW32", "HNSW32", "efSearch"))
    return built


class Product:
    """All products of queries and keys, float32, in batches of 256 queries. No neighbours are selected."""

    def __init__(self, store: Store):
        keys = np.concatenate([block.keys for block in store.blocks()])
        self._keys = jax.device_put(keys.astype(np.float32))
        self._product = jax.jit(lambda queries, keys: queries @ keys.T)

    def search(self, queries: np.ndarray, num_neighbors: int) -> None:
        for first in range(0, len(queries), 256):
            self._product(queries[first : first + 256], self._keys).block_until_ready()


def contenders(family: Family, store: Store, queries: np.ndarray, true: Neighbors) -> tuple[list[Contender], float]:
    """Returns a contender for each level of recall that an index reaches, and its best recall.

    For every number of candidates the effort rises until the highest level is reached. The first setting that reaches
    a level is a choice for this level. The choice with the fastest of three searches becomes the contender.

    Args:
      family: The built index, with the settings to try.
      store: Store that the index searches.
      queries: Queries, `[queries, dim]`.
      true: The true neighbours of the queries.
    """

    def contender(level: float | None, effort: int, candidates: int, recall: float) -> Contender:
        setting = f"{family.effort} {effort}" + (f", {candidates} candidates" if candidates else "")
        search = lambda: family.make(effort, candidates).search(queries, NEIGHBORS)
        return Contender(family, level, setting if family.effort else "", recall, search)

    if not family.effort:
        if isinstance(index := family.make(0, 0), Product):
            return [contender(None, 0, 0, math.nan)], 1.0
        return [contender(None, 0, 0, measure_recall(index, store, queries, NEIGHBORS, true=true))], 1.0
    best, first = 0.0, {level: [] for level in LEVELS}
    for candidates in family.candidates:
        open_levels = list(LEVELS)
        for effort in family.efforts:
            recall = measure_recall(family.make(effort, candidates), store, queries, NEIGHBORS, true=true)
            best = max(best, recall)
            for level in [level for level in open_levels if recall >= level]:
                first[level].append(contender(level, effort, candidates, recall))
                open_levels.remove(level)
            if not open_levels or effort > 32 and recall < 0.5:
                break
    quickest = lambda choices: min(choices, key=lambda c: min(time_action(c.search)[1]["seconds"] for _ in range(3)))
    return [quickest(choices) for choices in first.values() if choices], best


def measure(
    store: Store, queries: np.ndarray, built: Sequence[Family], rounds: int, baseline: str = BASELINE
) -> list[dict[str, Any]]:
    """Measures all contenders in turns, and returns a record for each, and for each level that an index does not reach.

    Args:
      store: Store that the indices search.
      queries: Queries, `[queries, dim]`.
      built: The built indices.
      rounds: Number of measured searches of each contender.
      baseline: Name of the contender whose speed is 1 in the ratios.
    """
    true = StreamedIndex(store).search(queries, NEIGHBORS)
    taking_part, records = [], []
    for family in built:
        print(f"{family.name}: built in {family.build['seconds']:.1f} s", file=sys.stderr, flush=True)
        reached, best = contenders(family, store, queries, true)
        taking_part += reached
        if family.effort:
            for level in set(LEVELS) - {contender.level for contender in reached}:
                records.append({"index": family.name, "level": level, "reached": False, "recall": best})
    load = os.getloadavg()[0]
    print("rounds", file=sys.stderr, flush=True)
    costs: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in taking_part}
    for turn in range(rounds + 1):  # the first warms up
        for contender in taking_part:
            cost = time_action(contender.search)[1]
            costs[contender.name] += [cost] if turn else []
    column = lambda name, key: [cost[key] for cost in costs[name]]
    for contender in taking_part:
        seconds = column(contender.name, "seconds")
        records.append(
            {
                "index": contender.family.name,
                "level": contender.level,
                "reached": True,
                "setting": contender.setting,
                "recall": None if math.isnan(contender.recall) else contender.recall,
                "queries_per_second": {name: len(queries) / value for name, value in quartiles(seconds).items()},
                "seconds": seconds,
                "cpu_seconds": column(contender.name, "cpu_seconds"),
                "ratio": speed_ratio(seconds, column(baseline, "seconds")),
                "cpu_ratio": speed_ratio(column(contender.name, "cpu_seconds"), column(baseline, "cpu_seconds")),
                "bytes": contender.family.size,
                "build": contender.family.build,
            }
        )
    return [{"entries": store.entries, "load": load, **record} for record in records]


def about(known: dict[str, Any]) -> str:
    """Returns the text above the table: what was measured, and how."""
    return (
        f"The first keys of the store of {known['store']}, {known['dim']} dimensions, float16; {QUERIES:,} queries at "
        f"a time, keys of validation tokens drawn at random; squared L2, {NEIGHBORS} neighbours; recall against exact "
        f"search, ties counted as found. {known['rounds']} alternating rounds: median (quartiles). x: times as fast as "
        f"{BASELINE}, by the clock and by CPU time, with 95 % intervals. A setting is the first that reaches the "
        "level. Bytes: of the saved index, of the keys in memory for exact ones. Build: seconds with saving (CPU "
        "seconds); for exact ones loading. ScaNN: square root of the entries in leaves; it ranks its candidates by "
        "their keys itself. faiss: `distance_compute_blas_threshold` 20, trained with 100,000 keys; a graph is "
        f"built of at most {MOST_ENTRIES_OF_A_GRAPH:,}."
    )


def _bytes(folder: Path) -> int:
    """Returns the bytes of all files of a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())


def main() -> None:
    os.environ.update(worker.WAIT_PASSIVELY)  # before faiss is imported: threads that wait must not spin
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run directory, with the store of `tools.measurements.knn_lm`")
    parser.add_argument("entries", type=int, help="of the store, the first ones")
    parser.add_argument("--rounds", type=int, default=8, help="measured searches of each index")
    parser.add_argument("--workdir", type=Path, help="stores and queries (default: RUN/search)")
    options, rest = parser.parse_known_args()
    config = apply_overrides(load_config(options.run), rest, prog="search", only=EVALUATION_FIELDS)
    source = make_key_extractor(load_run(options.run, config))
    store = Store(Path(options.run) / "datastore" / "store")
    store.check(protocol=source.protocol())
    workdir = options.workdir or Path(options.run) / "search"
    workdir.mkdir(parents=True, exist_ok=True)
    queries = queries_of(source, workdir / "queries.npy")
    part = first_entries(store, options.entries, workdir / f"first_{options.entries}")
    records = measure(part, queries, families(part), options.rounds)
    known = {"versions": versions(), "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    known |= {"store": Path(options.run).name, "dim": store.dim, "rounds": options.rounds}
    facts = {**known, **together(records)}
    command = f"python -m tools.measurements.search RUN {options.entries} --data.source.path DIR"
    title = f"Search among {options.entries:,} keys"
    pages.record(measured("search", str(options.entries), facts, command=command, title=title, about=about(known)))


if __name__ == "__main__":
    main()
