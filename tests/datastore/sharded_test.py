"""Keys split over a mesh axis: what 8 devices give (see `sharded_cases`), and one device as a mesh."""

import json

import jax
import numpy as np
import pytest

from memjax.datastore import ExactIndex, ShardedIndex
from tests.datastore.stores import make_store
from tests.programs import printed


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What every case found, from one program on 8 devices."""
    return json.loads(printed("-m", "tests.datastore.sharded_cases", tmp_path_factory.mktemp("stores"))[-1])


@pytest.fixture
def case(found, request) -> dict:
    result = found[request.param]
    assert "error" not in result, result["error"]
    return result


def of(*names: str):
    return pytest.mark.parametrize("case", names, indirect=True)


@pytest.mark.slow
@of("golden_squared_l2_8", "golden_inner_product_8", "golden_squared_l2_2x4", "golden_inner_product_2x4")
def test_neighbors_are_those_of_faiss(case):
    assert case["ids"] and case["valid"] and case["scores"] < 1e-5


@pytest.mark.slow
@of("uneven")
def test_shards_of_any_size_equal_one_device(case):
    assert case["wrong"] == []


@pytest.mark.slow
@of("ranges")
def test_shards_with_numbers_of_their_own(case):
    assert case["ids"] and case["scores"] < 1e-5
    assert case["split"] == [[2, 6]] * 8, "every device merges its share of the queries"


@pytest.mark.slow
@of("traffic")
def test_only_candidates_are_sent(case):
    """32 queries of 8 neighbours: twice (scores, ids) what a device has found, whatever the size of the store."""
    assert case["bytes"][0] == case["bytes"][1] == [32 * 8 * 4] * 2
    assert case["temporaries"][0] == case["temporaries"][1]


@pytest.mark.slow
@of("errors")
def test_errors_name_the_argument(case):
    assert case["rows"] == "keys: given 9 rows for 8 shards, allowed: a multiple; pad, give counts"
    assert case["axis"] == "axis: given 'model', allowed: data"
    assert case["unset"] == "axis: given 'data', allowed: none, since no mesh is set"


def test_one_device_is_a_mesh_too(tmp_path):
    rng = np.random.default_rng(0)
    keys, queries = rng.normal(size=(50, 4)).astype(np.float32), rng.normal(size=(3, 4))
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    index = ShardedIndex.from_store(make_store(tmp_path / "s", keys), mesh=mesh)
    for a, b in zip(index.search(queries, 5), ExactIndex(keys).search(queries, 5), strict=True):
        assert np.array_equal(a, b)
