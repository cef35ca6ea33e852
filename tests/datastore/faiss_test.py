"""The backend of faiss: its own exact and quantised indices under the protocol, saved and opened."""

from pathlib import Path

import numpy as np
import pytest

from memjax.datastore import ExactIndex, build_faiss, measure_recall, open_faiss, rescore
from tests.datastore.stores import clusters, make_store

faiss = pytest.importorskip("faiss")
GOLDEN = Path(__file__).parent.parent / "golden" / "faiss_exact.npz"


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other would take longer than the work."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.mark.parametrize("metric, name", [("squared_l2", "l2"), ("inner_product", "ip")])
def test_flat_is_the_golden_file(tmp_path, metric, name):
    with np.load(GOLDEN) as golden:
        store = make_store(tmp_path / "s", golden["base"], shards=[400, 600])
        build_faiss(store, metric=metric)
        found = open_faiss(store, metric=metric).search(golden["query"], 32)
        assert np.array_equal(found.ids, golden[f"{name}_ids"])
        np.testing.assert_allclose(found.scores, golden[f"{name}_scores"], rtol=1e-5, atol=1e-5)


def test_lists_and_products(tmp_path):
    """The form of the kNN-LM paper, small; more lists find more, and exact scoring repairs the order."""
    store = make_store(tmp_path / "s", clusters(3000, 16), key_dtype="float16")
    built = build_faiss(store, factory="IVF16,PQ8x4", num_probes=2, training_entries=1000)
    queries = clusters(32, 16, seed=1)
    for a, b in zip(
        open_faiss(store).search(queries, 8), open_faiss(store, num_probes=2).search(queries, 8), strict=True
    ):
        assert np.array_equal(a, b)
    few, all_lists = rescore(built, store, 200), rescore(open_faiss(store, num_probes=16), store, 200)
    assert measure_recall(few, store, queries, 8) < measure_recall(all_lists, store, queries, 8)
    assert measure_recall(open_faiss(store, num_probes=16), store, queries, 8) < measure_recall(
        all_lists, store, queries, 8
    )
    assert measure_recall(all_lists, store, queries, 8) > 0.9


def test_the_threshold_of_faiss_is_left_alone(tmp_path):
    store = make_store(tmp_path / "s", clusters(50, 4))
    before = faiss.cvar.distance_compute_blas_threshold
    index = build_faiss(store, save=False)
    found = index.search(clusters(40, 4, seed=1), 60)
    assert faiss.cvar.distance_compute_blas_threshold == before
    assert np.array_equal(found.ids[:, :50], ExactIndex.from_store(store).search(clusters(40, 4, seed=1), 50).ids)
    assert not found.valid[:, 50:].any()


def test_errors_name_the_argument(tmp_path):
    store = make_store(tmp_path / "s", clusters(50, 4))
    with pytest.raises(ValueError, match="factory: given 'Flatt', allowed: what faiss.index_factory knows"):
        build_faiss(store, factory="Flatt")
    with pytest.raises(ValueError, match="has no faiss_squared_l2; build it"):
        open_faiss(store)
