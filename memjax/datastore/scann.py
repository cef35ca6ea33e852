"""Approximate nearest-neighbour search on the host with ScaNN.

ScaNN (Guo et al. 2020, https://arxiv.org/abs/1908.10396) partitions the keys into the leaves of a tree. It searches the
leaves nearest to a query, ranks their entries by a product with quantised keys (asymmetric hashing), and ranks the best
of those again by the keys themselves. Small parts are searched by brute force. A build is not reproducible: two builds
of the same keys differ. So the built index is saved in the store, and a saved index gives the same neighbours whenever
it is opened.

A store that does not fit on one host is indexed in parts, each a range of entries, by any number of processes. A search
merges the results of the parts that are opened.
"""

import dataclasses
import functools
import importlib.metadata
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from memjax.datastore.artefacts import artefact_names, open_artefact, remove_artefact, save_artefact
from memjax.datastore.index import BaseIndex, Index, MergedIndex, Metric, Neighbors, check_metric, pad_neighbors
from memjax.datastore.store import Store

__all__ = [
    "ScannIndex",
    "ScannSettings",
    "build_scann",
    "build_scann_in_memory",
    "build_scann_parts",
    "open_scann",
]

MEASURES = {"squared_l2": "squared_l2", "inner_product": "dot_product"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScannSettings:
    """Settings for building a ScaNN index of `n` entries, those of one part of a store or of an array of keys.

    Attributes:
      num_leaves: Number of leaves of the tree. 0 = the square root of `n`.
      training_entries: Number of random entries that the tree and the codebooks are trained on.
      dims_per_block: Number of dimensions that share 4 bits of a quantised key.
      anisotropic_threshold: Threshold of anisotropic quantisation for inner products. NaN = isotropic quantisation,
        which distances always use.
      brute_force_entries: Number of entries below which a part is searched in full.
    """

    num_leaves: int = 0
    training_entries: int = 250_000
    dims_per_block: int = 2
    anisotropic_threshold: float = 0.2
    brute_force_entries: int = 20_000


class ScannIndex(BaseIndex):
    """An approximate index of a store, of one part of it, or of an array of keys, which ScaNN searches in the memory of
    the host.

    `build_scann` builds one, `open_scann` opens a saved one.

    Attributes:
      leaves_to_search: Number of leaves to search. More leaves give a higher recall and a slower search. 0 = a
        twentieth, and more where many neighbours are asked for. May be changed at any time.
      reorder: Number of candidates that are ranked again by their keys. 0 = four times the neighbours, at least 128.
    """

    def __init__(self, searcher: Any, about: dict[str, Any], *, leaves_to_search: int = 0, reorder: int = 0):
        """Wraps a ScaNN searcher.

        Args:
          searcher: Searcher of ScaNN.
          about: Description of the index that `build_scann` saves.
          leaves_to_search: See `ScannIndex`.
          reorder: See `ScannIndex`.
        """
        self._first, last = about["range"]
        super().__init__(about["metric"], last - self._first, about["dim"])
        self._searcher, self._leaves = searcher, about["leaves"]
        self.leaves_to_search, self.reorder = leaves_to_search, reorder

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        queries = queries.astype(np.float32)
        wanted = min(num_neighbors, self.entries)
        options = {}
        if self._leaves:
            reorder = max(self.reorder or max(4 * wanted, 128), wanted)
            options = {
                "leaves_to_search": min(self.leaves_to_search or self._default_leaves(wanted), self._leaves),
                "pre_reorder_num_neighbors": min(reorder, self.entries),
            }
        if not wanted:
            scores, ids = np.zeros((2, len(queries), 0), np.float32)
        else:
            batch = math.ceil(len(queries) / (os.cpu_count() or 1))  # one batch for each thread
            ids, scores = self._searcher.search_batched_parallel(
                queries, final_num_neighbors=wanted, batch_size=batch, **options
            )
        # Where the leaves have too few entries, ScaNN returns entry 0 with distance NaN.
        return pad_neighbors(scores, ids.astype(np.int64) + self._first, ~np.isnan(scores), num_neighbors, self.metric)

    def _default_leaves(self, num_neighbors: int) -> int:
        """Returns the number of leaves to search for this number of neighbours."""
        per_leaf = self.entries / self._leaves
        return max(1, math.ceil(self._leaves / 20), math.ceil(16 * num_neighbors / per_leaf))


def build_scann(
    store: Store,
    *,
    metric: Metric = "squared_l2",
    settings: ScannSettings | None = None,
    part: int = 0,
    num_parts: int = 1,
    save: bool = True,
) -> ScannIndex:
    """Builds a ScaNN index of part number `part` of `num_parts` equal parts of a store, and returns it. With `save` it
    is also saved in the store's folder.

    All keys of the part are read into main memory as float32 and compared with their checksums.

    Args:
      store: Store with the keys.
      metric: "squared_l2" or "inner_product".
      settings: Settings of the index. None = the defaults.
      part: Number of the part, from 0. The parts are of nearly equal size.
      num_parts: Number of parts of the whole store. Different processes may build them at the same time.
      save: Whether to save the index in the folder of the store.

    Raises:
      ValueError: The part or metric does not exist, the store is damaged, or a key is not finite. ScaNN would accept
        such a key and then find wrong neighbours.
      DiskFull: No space is left. An index that was saved before is still there.
    """
    check_metric(metric)
    settings = settings or ScannSettings()
    if not 0 <= part < num_parts:
        raise ValueError(f"part: given {part} of {num_parts}, allowed: 0 to {num_parts - 1}")
    if num_parts > max(1, store.entries):
        raise ValueError(f"num_parts: given {num_parts}, allowed: 1 to {store.entries}, the entries of {store.path}")
    first, last = (store.entries * p // num_parts for p in (part, part + 1))
    keys = _load_float32(store, first, last)
    searcher, about = _build_searcher(keys, first, metric, settings)
    if save:
        name = _artefact_name(metric, part, num_parts)
        serialize = lambda folder: searcher.serialize(str(folder), relative_path=True)
        save_artefact(store, name, about, serialize, expected_bytes=keys.nbytes)
    return ScannIndex(searcher, about)


def build_scann_in_memory(
    keys: Float[np.ndarray, "entries dim"], *, metric: Metric = "squared_l2", settings: ScannSettings | None = None
) -> ScannIndex:
    """Builds a ScaNN index of an array of keys `[entries, dim]`, which need no store, and returns it. It is not saved.

    Args:
      keys: `[entries, dim]`. The index holds a float32 copy.
      metric: "squared_l2" or "inner_product".
      settings: Settings of the index. None = the defaults.

    Raises:
      ValueError: The metric is unknown, or a key is not finite.
    """
    check_metric(metric)
    bad = ~np.isfinite(keys).all(axis=1)
    if bad.any():
        raise ValueError(f"keys: given row {int(np.argmax(bad))} that is NaN or infinite; they must be finite")
    return ScannIndex(*_build_searcher(keys.astype(np.float32), 0, metric, settings or ScannSettings()))


def open_scann(
    store: Store, *, metric: Metric = "squared_l2", part: int | None = None, leaves_to_search: int = 0, reorder: int = 0
) -> Index:
    """Opens all parts of the index for `metric` that `build_scann` has saved as one index, or only the part with number
    `part`. The ids of neighbours are numbers in the whole store.

    Args:
      store: Store whose keys the index was built from.
      metric: Metric that the index was built for.
      part: Number of the only part to open, as on one of several hosts, whose results `memjax.datastore.HostsIndex`
        merges. None = all parts.
      leaves_to_search: see `ScannIndex`.
      reorder: see `ScannIndex`.

    Raises:
      ValueError: There is no such index, a part is missing, a file is damaged, or the index belongs to other keys.
    """
    check_metric(metric)
    names = [name for name in artefact_names(store) if name.startswith(f"scann_{metric}_")]
    counts = sorted({int(name.rpartition("_")[2]) for name in names})
    if len(counts) > 1:
        raise ValueError(f"index: {store.path} has scann indices of {metric} in {counts} parts; delete all but one")
    num_parts = counts[0] if counts else 1
    indices = []
    for number in range(num_parts) if part is None else [part]:
        folder, about = open_artefact(store, _artefact_name(metric, number, num_parts))
        searcher = import_scann().scann_ops_pybind.load_searcher(str(folder))
        indices.append(ScannIndex(searcher, about, leaves_to_search=leaves_to_search, reorder=reorder))
    return indices[0] if len(indices) == 1 else MergedIndex(indices)


def build_scann_parts(
    store: Store,
    parts: Sequence[int],
    num_parts: int,
    *,
    metric: Metric = "squared_l2",
    runner: str = "",
    runner_options: Sequence[str] = (),
) -> bool:
    """Builds and saves the parts with the numbers in `parts`, in this process or with an Apache Beam pipeline on
    `runner`. Returns whether all `num_parts` parts of the index are saved now.

    Args:
      store: Store with the keys.
      parts: Numbers of the parts to build, from 0.
      num_parts: Number of parts of the whole store.
      metric: "squared_l2" or "inner_product".
      runner: Runner of Beam, see `memjax.datastore.beam`. '' = this process.
      runner_options: Options of the pipeline, `name=value` or `name`.

    Returns:
      Whether all parts are saved now. If so, indices with another number of parts are deleted.

    Raises:
      ValueError: As in `build_scann`.
      DiskFull: As in `build_scann`.
    """
    load = functools.partial(_load_work, store.path.absolute(), metric, num_parts)
    if runner:
        from memjax.datastore.beam import run_pipeline

        run_pipeline(load, parts, runner=runner, options=runner_options)
    else:
        for part in parts:
            build_scann(store, metric=metric, part=part, num_parts=num_parts)
    return _delete_other_divisions(store, metric, num_parts)


def _load_work(path: Path, metric: Metric, num_parts: int) -> Callable[[int], ScannIndex]:
    """Opens a store and makes the function with which a worker builds a part of its index."""
    store = Store(path)
    return lambda part: build_scann(store, metric=metric, part=part, num_parts=num_parts)


def _delete_other_divisions(store: Store, metric: Metric, num_parts: int) -> bool:
    """Deletes indices with another number of parts if all parts of this division are saved."""
    names = {name for name in artefact_names(store) if name.startswith(f"scann_{metric}_")}
    wanted = {_artefact_name(metric, part, num_parts) for part in range(num_parts)}
    if not wanted <= names:
        return False
    for name in names - wanted:
        remove_artefact(store, name)
    return True


def import_scann() -> Any:
    """Imports ScaNN without TensorFlow, which it asks for and does not need here, and returns the module.

    ScaNN asks for TensorFlow to register operations that are not used here; the import takes many seconds, and fails
    with another release than the one that ScaNN was built for. For the moment of the import TensorFlow is therefore
    declared to be missing.
    """
    if sys.modules.get("scann") is not None:
        return sys.modules["scann"]
    before = {name: sys.modules[name] for name in ("tensorflow",) if name in sys.modules}
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    try:
        import scann
    finally:
        del sys.modules["tensorflow"]
        sys.modules.update(before)
    return scann


def _build_searcher(
    keys: np.ndarray, first: int, metric: Metric, settings: ScannSettings
) -> tuple[Any, dict[str, Any]]:
    """Builds a searcher of ScaNN, and describes it. `first` is the number of the first key in the store."""
    leaves = 0
    builder = import_scann().scann_ops_pybind.builder(keys, min(128, max(1, len(keys))), MEASURES[metric])
    if len(keys) < settings.brute_force_entries:
        builder = builder.score_brute_force()
    else:
        leaves = min(settings.num_leaves or round(math.sqrt(len(keys))), len(keys))
        sample = min(settings.training_entries, len(keys))
        anisotropic = settings.anisotropic_threshold if metric == "inner_product" else math.nan
        builder = (
            builder.tree(num_leaves=leaves, num_leaves_to_search=max(1, leaves // 20), training_sample_size=sample)
            .score_ah(
                settings.dims_per_block, anisotropic_quantization_threshold=anisotropic, training_sample_size=sample
            )
            .reorder(128)
        )
    about = {
        "metric": metric,
        "dim": keys.shape[1],
        "range": [first, first + len(keys)],
        "leaves": leaves,
        "settings": {name: _json_number(value) for name, value in dataclasses.asdict(settings).items()},
        "scann": importlib.metadata.version("scann"),
    }
    return builder.build(), about


def _load_float32(store: Store, first: int, last: int) -> np.ndarray:
    """Reads the keys `[first, last)` of a store as float32, and checks that they are finite."""
    keys = np.empty((last - first, store.dim), np.float32)
    for block in store.blocks(first=first, last=last):
        bad = ~np.isfinite(block.keys).all(axis=1)
        if bad.any():
            raise ValueError(
                f"keys: entry {block.first + int(np.argmax(bad))} of {store.path} is NaN or infinite; build the store "
                "anew"
            )
        keys[block.first - first : block.first - first + len(block.keys)] = block.keys
    return keys


def _artefact_name(metric: Metric, part: int, num_parts: int) -> str:
    """Returns the name under which a part of an index is saved."""
    return f"scann_{metric}_{part:05d}_of_{num_parts:05d}"


def _json_number(value: float) -> float | None:
    """Replaces NaN, which JSON does not have, by None."""
    return None if isinstance(value, float) and math.isnan(value) else value
