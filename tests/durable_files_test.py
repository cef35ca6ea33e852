import json
import os

import pytest

from memjax.datastore.files import read_checked_json, write_checked_json
from memjax.durable_files import DamagedError, checksum, is_unfinished, read_json, write_json

VALUE = {"name": "Zoë", "rates": [0.1, 1e-30], "none": None, "nested": {"a": [], "b": {}}}
CHECKED = {**VALUE, "checksum": checksum(VALUE)}


@pytest.mark.parametrize(
    "options, content",
    [
        ({}, json.dumps(CHECKED, indent=2) + "\n"),  # of a run
        ({"indent": 1, "end": ""}, json.dumps(CHECKED, indent=1)),  # of a token file
        ({"indent": None}, json.dumps(CHECKED) + "\n"),  # of a folder of neighbours
        ({"checked": False}, json.dumps(VALUE, indent=2) + "\n"),  # of other programs, and of earlier versions
    ],
)
def test_a_file_has_the_bytes_of_every_version(tmp_path, options, content):
    write_json(tmp_path / "a.json", VALUE, **options)
    assert (tmp_path / "a.json").read_bytes() == content.encode() and read_json(tmp_path / "a.json") == VALUE
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_with_a_checksum_has_the_bytes_of_every_version(tmp_path):
    write_checked_json(tmp_path / "a.json", VALUE)
    content = json.dumps(CHECKED, indent=1) + "\n"
    assert (tmp_path / "a.json").read_bytes() == content.encode()
    assert read_checked_json(tmp_path / "a.json") == CHECKED
    (tmp_path / "a.json").write_text(content.replace("1e-30", "2e-30"))
    with pytest.raises(ValueError, match=r"a\.json is damaged: it is not what was written"):
        read_checked_json(tmp_path / "a.json")


@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, function):
    write_json(tmp_path / "a.json", 1)

    def fail(*arguments):
        raise OSError("full")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="full"):
        write_json(tmp_path / "a.json", 2)
    monkeypatch.undo()
    assert read_json(tmp_path / "a.json") == 1
    left = [path for path in tmp_path.iterdir() if path.name != "a.json"]
    assert all(is_unfinished(path, "a.json") for path in left) and len(left) == (function == "replace")


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"a\.json: damaged \(.*\), allowed: the JSON file that was written there"
    ) as error:
        read_json(tmp_path / "a.json")
    assert len(str(error.value).splitlines()) == 1


def test_a_file_that_is_not_there_is_none(tmp_path):
    assert read_json(tmp_path / "a.json") is None


def test_files_of_interrupted_writers_are_known(tmp_path):
    left = ("config.json.0f3a9c21.partial", "config.json.partial", "config.tmp")
    assert all(is_unfinished(tmp_path / name, "config.json") for name in left)
    assert not any(is_unfinished(tmp_path / name, "config.json") for name in ("config.json", "data.tmp", "a.partial"))


@pytest.mark.parametrize(
    "old, new", [("0.1", "0.2"), ("Zo", "Zu"), ('"checksum": "', '"checksum": "0'), ("none", "nose")]
)
def test_an_object_that_was_changed_is_refused(tmp_path, old, new):
    write_json(tmp_path / "a.json", VALUE)
    text = (tmp_path / "a.json").read_text()
    assert old in text
    (tmp_path / "a.json").write_text(text.replace(old, new, 1))
    with pytest.raises(DamagedError, match=r"a\.json: damaged \(it is not what memjax wrote\), delete it$"):
        read_json(tmp_path / "a.json", advice="delete it")


def test_only_where_it_is_needed_a_missing_checksum_is_damage(tmp_path):
    write_json(tmp_path / "a.json", VALUE, checked=False)
    assert read_json(tmp_path / "a.json") == VALUE
    with pytest.raises(DamagedError, match="not what memjax wrote"):
        read_json(tmp_path / "a.json", needs_checksum=True)
