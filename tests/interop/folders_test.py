"""Files of transformers: in one part or several, whole or not."""

import json

import numpy as np
import pytest

from memjax.interop.folders import INDEX_FILE, WEIGHTS_FILE, read_folder, write_folder

WEIGHTS = {f"layer.{number}": np.full((4, 4), number, np.float32) for number in range(5)}


def test_weights_in_several_files_come_back(tmp_path):
    tied = {"again": WEIGHTS["layer.0"]}  # one array with two names is written once
    write_folder(tmp_path / "parts", {"model_type": "x"}, WEIGHTS | tied, shard_bytes=150)
    assert sorted(file.name for file in (tmp_path / "parts").iterdir()) == [
        "config.json",
        *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
        INDEX_FILE,
    ]
    index = json.loads((tmp_path / "parts" / INDEX_FILE).read_text())
    assert index["metadata"]["total_size"] == 5 * 64 and list(index["weight_map"]) == list(WEIGHTS)
    described, found = read_folder(tmp_path / "parts")
    assert described == {"model_type": "x"} and found.keys() == WEIGHTS.keys()
    for name, weight in WEIGHTS.items():
        np.testing.assert_array_equal(found[name], weight)
    write_folder(tmp_path / "one", {}, WEIGHTS)
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == ["config.json", WEIGHTS_FILE]


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f, index: (f / "model-00002-of-00003.safetensors").unlink(), r"has no model-00002-of-00003"),
        (lambda f, index: index["weight_map"].update(more="model-00001-of-00003.safetensors"), r"'more' is not in "),
        (lambda f, index: index["weight_map"].update(more="../x.safetensors"), r"has no \.\./x\.safetensors, allowed"),
        (lambda f, index: index.pop("weight_map"), r"has no weight_map, allowed: "),
    ],
)  # fmt: skip
def test_parts_that_are_not_whole_are_one_line(damage, message, tmp_path):
    write_folder(tmp_path, {}, WEIGHTS, shard_bytes=150)
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    damage(tmp_path, index)
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message) as error:
        read_folder(tmp_path)
    assert "\n" not in str(error.value)
