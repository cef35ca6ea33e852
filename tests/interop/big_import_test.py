"""Weights that are imported tensor by tensor: the peak of the host's memory stays below their size."""

import json

import pytest

from tests.programs import printed

pytestmark = pytest.mark.slow


def test_a_folder_is_imported_without_a_whole_copy(tmp_path):
    (size,) = printed("-m", "tests.interop.big_import_worker", "make", tmp_path, 16)
    found = json.loads(printed("-m", "tests.interop.big_import_worker", "import", tmp_path)[-1])
    assert found["parameters"] > 5e8 and int(size) > 1e9
    assert found["peak"] - found["before"] < int(size) / 2  # parameters have twice the bytes of these weights
