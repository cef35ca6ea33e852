"""Plans: what a store will take is what it takes."""

import re
from pathlib import Path

import numpy as np
import pytest

from memjax.datastore import measure_write_speed, plan_store
from tests.datastore.stores import HEADER, make_header, make_store


@pytest.mark.parametrize("shards, key_dtype", [([23], "float32"), ([9, 0, 14], "float16")])
def test_bytes_on_disk(tmp_path, shards, key_dtype):
    make_store(tmp_path / "s", np.ones((23, 4)), shards=shards, key_dtype=key_dtype)
    plan = plan_store(make_header(num_shards=len(shards), key_dtype=key_dtype), 23)
    sizes = {name: sum(f.stat().st_size for f in (tmp_path / "s").rglob(f"{name}.bin")) for name in ("keys", "values")}
    assert (plan.key_bytes, plan.value_bytes) == (sizes["keys"], sizes["values"])
    blocks = sum(f.stat().st_size for f in (tmp_path / "s").rglob("blocks.bin"))
    assert blocks <= plan.checksum_bytes <= blocks + 64 * len(shards)
    assert plan.store_bytes == plan.key_bytes + plan.value_bytes + plan.checksum_bytes


def test_time_and_space(tmp_path):
    plan = plan_store(HEADER, 10_000, tokens_per_second=50, write_bytes_per_second=1000.0, path=tmp_path / "a" / "b")
    assert plan.forward_seconds == 200 and plan.write_seconds == plan.store_bytes / 1000
    assert plan.fits and plan.free_bytes and not (tmp_path / "a").exists()
    assert any("3 min" in line for line in plan.to_lines())
    huge = plan_store(make_header(dim=1 << 14), 1 << 40, path=tmp_path, num_devices=8)
    assert not huge.fits and "does not fit" in huge.to_lines()[1]
    assert huge.forward_seconds is None and "not measured" in "".join(huge.to_lines())
    assert huge.index_bytes["sharded"] == huge.index_bytes["exact"] / 8
    with pytest.raises(ValueError, match="entries: given -1 over 1 devices"):
        plan_store(HEADER, -1)


def test_the_disk_is_measured_and_left_clean(tmp_path):
    assert measure_write_speed(tmp_path, 1 << 20) > 0
    assert list(Path(tmp_path).iterdir()) == []


def test_every_line_is_short():
    for line in plan_store(HEADER, 10**9).to_lines():
        assert len(line) <= 100 and re.match(r"[a-z]+ +\S", line)
