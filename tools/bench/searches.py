"""Exact search, served as contenders: memjax's, that of faiss, and the bare product of queries and keys.

python -m tools.bench.searches exact '{"entries": 100000, "dim": 64, "queries": 256}'

All are in memjax's own environment, which has faiss.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from memjax.allocation import keep_freed_memory
from tools.bench import worker

POOL = 4  # different batches of queries that the steps cycle through
CENTRES = 1000


class Search:
    """The nearest of clustered float32 keys; the mode is the number of neighbours."""

    def __init__(self, kind: str, settings: dict[str, Any]):
        self.settings, self.turn = settings, 0
        entries, dim, queries = settings["entries"], settings["dim"], settings["queries"]
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(CENTRES, dim))
        near = lambda n: (centres[rng.integers(0, CENTRES, n)] + 0.6 * rng.normal(size=(n, dim))).astype(np.float32)
        self.keys = near(entries)
        self.pool = [near(queries) for _ in range(POOL)]
        self.versions, self.search = {"exact": _exact, "faiss": _faiss, "product": _product}[kind](self.keys)

    def describe(self) -> dict[str, Any]:
        return {
            "parameters": self.keys.size,
            "queries_per_step": self.settings["queries"],
            "versions": worker.versions_of(*self.versions),
            "settings": self.settings,
        }

    def prepare(self, mode: str) -> None:
        self.queries = self.pool[self.turn % POOL]
        self.turn += 1

    def step(self, mode: str) -> None:
        self.search(self.queries, int(mode))


Found = tuple[tuple[str, ...], Callable[[np.ndarray, int], Any]]


def _exact(keys: np.ndarray) -> Found:
    from memjax.datastore import ExactIndex

    return ("jax", "jaxlib"), ExactIndex(keys).search


def _faiss(keys: np.ndarray) -> Found:
    """`IndexFlatL2`. By default faiss compares small batches without BLAS, several times slower."""
    import faiss

    faiss.omp_set_num_threads(worker.THREADS)
    faiss.cvar.distance_compute_blas_threshold = 20
    index = faiss.IndexFlatL2(keys.shape[1])
    index.add(keys)
    return ("faiss-cpu",), index.search


def _product(keys: np.ndarray) -> Found:
    """All products of queries and keys, written to memory and nothing selected."""
    import jax

    product, on_device = jax.jit(lambda queries, keys: queries @ keys.T), jax.device_put(keys)
    return ("jax", "jaxlib"), lambda queries, _: jax.block_until_ready(product(queries, on_device))


def make_contender(kind: str, settings: dict[str, Any]) -> Search:
    """The search of the given kind and settings."""
    return Search(kind, settings)


def main(argv: list[str] | None = None) -> int:
    """Serves the search of the given kind and settings."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.searches", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=["exact", "faiss", "product"])
    parser.add_argument("settings", help="JSON object")
    arguments = parser.parse_args(argv)
    keep_freed_memory()  # as commands do
    return worker.serve(lambda: make_contender(arguments.kind, json.loads(arguments.settings)))


if __name__ == "__main__":
    sys.exit(main())
