"""Damaged files, failed writes and kills: what is judged how, and a part of `make faults`."""

import os
import random
import sys

import pytest

from memjax.durable_files import replace_file
from tools.faults.damage import DAMAGES, damage_file, partners, try_damages
from tools.faults.interruptions import Interruption, fail, interrupt, limit_file_size
from tools.faults.judge import FAULTS, Observation, judge_damage, judge_failure, names_file
from tools.faults.kills import try_kills
from tools.faults.results import Results, Row, is_in_part
from tools.faults.subjects import COMMANDS, files_of, written_files
from tools.faults.writes import try_writes

FILE = "runs/half/config.json"
RIGHT = Observation(0, ("step 6/6",), {"loss": 1.5})
OTHER = {"loss": 2.5}


@pytest.mark.parametrize(
    "code, lines, result, verdict",
    [
        (0, ["step 6/6"], RIGHT.result, "right"),
        (0, ["step 6/8"], RIGHT.result, "right"),
        (0, ["step 6/6", "config.json: damaged"], RIGHT.result, "said"),
        (0, ["memjax eval: runs/half/config.json: damaged"], OTHER, "said"),
        (0, ["step 6/6"], OTHER, "silent"),
        (0, ["other_config.json: damaged"], OTHER, "silent"),
        (0, ["runs/half: damaged"], OTHER, "silent"),
        (2, ["memjax train: runs/half/config.json: damaged"], None, "refused"),
        (1, ["step 6/6", "memjax train: config.json: damaged"], None, "refused"),
        (2, ["memjax train: the run is damaged"], None, "unnamed"),
        (2, ["config.json: damaged"], None, "unnamed"),
        (143, ["memjax train: config.json: damaged"], None, "unnamed"),
        (2, ["Traceback (most recent call last):", "memjax train: config.json: damaged"], None, "traceback"),
        (0, ["Traceback (most recent call last):"], RIGHT.result, "traceback"),
    ],
)
def test_a_damage_is_judged(code, lines, result, verdict):
    assert judge_damage(FILE, RIGHT, Observation(code, tuple(lines), result)) == verdict


def test_a_line_that_is_said_anyway_says_nothing():
    lines = ("config.json: read 5 s ago",)
    observed = Observation(0, ("config.json: read 17 s ago",), OTHER)
    assert judge_damage(FILE, Observation(0, lines, {}), observed) == "silent"


@pytest.mark.parametrize(
    "line, file, names",
    [
        ("checkpoint 4 is damaged", "runs/a/checkpoints/00000004/manifest/metadata", True),
        ("checkpoint 40 is damaged", "runs/a/checkpoints/00000004/manifest/metadata", False),
        ("step 4 (not the newest: step 6 is damaged)", "runs/a/checkpoints/00000006/_METADATA", True),
        ("step 4 (not the newest: step 6 is damaged)", "runs/a/checkpoints/00000004/_METADATA", False),
        ("path: data/cache/Text-train-1 is damaged", "data/cache/Text-train-1/tokens.bin", True),
        ("path: data/cache/Text-train-2 is damaged", "data/cache/Text-train-1/tokens.bin", False),
        ("datastore: /x/stores/train is damaged", "stores/train/meta.json", True),
    ],
)
def test_a_file_is_named_by_its_folder_or_its_checkpoint(line, file, names):
    assert names_file([line], file) == names


@pytest.mark.parametrize(
    "failed, repeated, verdict",
    [
        ((1, "memjax train: no space"), (0, "", RIGHT.result), "refused"),
        ((0, ""), (0, "", RIGHT.result), "right"),
        ((1, "no space"), (0, "", RIGHT.result), "unnamed"),
        ((1, "memjax train: no space"), (0, "", OTHER), "silent"),
        ((1, "memjax train: no space"), (2, "memjax train: damaged"), "silent"),
        ((1, "Traceback (most recent call last):"), (0, "", RIGHT.result), "traceback"),
    ],
)
def test_an_interruption_is_judged(failed, repeated, verdict):
    observe = lambda code, line, result=None: Observation(code, (line,), result)
    assert judge_failure(RIGHT, observe(*failed), observe(*repeated)) == verdict


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_changes_a_file(tmp_path, damage):
    file, other = tmp_path / "a.json", tmp_path / "b.json"
    for seed in range(20):
        file.write_bytes(b'{"a": 12}')
        other.write_bytes(b'{"a": 13}')
        assert damage_file(file, damage, random.Random(seed), [other])
        assert not file.exists() if damage == "delete" else file.read_bytes() != b'{"a": 12}'
    file.write_bytes(b"")
    assert damage_file(file, damage, random.Random(0)) == (damage == "delete")


def test_written_files_are_found_by_listing(tmp_path):
    random_names = [f"runs/half/checkpoints/00000002/d/{digit * 32}" for digit in "ab"]
    names = [FILE, "runs/whole/config.json", "data/cache/x/new.bin", "data/texts/01.txt", "runs.py", *random_names]
    for size, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    files = written_files(tmp_path)
    folder = "runs/half/checkpoints/00000002/d"
    assert [*files] == ["data/cache/x/new.bin", f"{folder}/#1", f"{folder}/#2", FILE, "runs/whole/config.json"]
    assert {*files_of(COMMANDS["eval"], files)} == {"data/cache/x/new.bin", "runs/whole/config.json"}
    assert partners(FILE, files) == [tmp_path / "runs/whole/config.json"]


@pytest.mark.parametrize("kind", ["open", "rename", "fsync", "write"])
def test_an_interruption_fails_one_event_in_its_folder(tmp_path, kind):
    with interrupt(Interruption(tmp_path / "inside", kind, 1, fail)):
        replace_file(tmp_path / "a", b"content")  # elsewhere
    (tmp_path / "inside").mkdir()
    number = 3 if kind == "fsync" else 2  # that of the file, and that of its folder
    interruption = Interruption(tmp_path / "inside", kind, number, fail)
    with interrupt(interruption):
        replace_file(tmp_path / "inside" / "a", b"first")
        with pytest.raises(OSError, match=r"(?i)no space"):
            replace_file(tmp_path / "inside" / "a", b"second")
    assert interruption.happened and (tmp_path / "inside" / "a").read_bytes() == b"first"


def test_a_limited_file_is_refused(tmp_path):
    with limit_file_size(4), pytest.raises(OSError, match="too large"):
        (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "a").write_bytes(b"content")


def test_results_go_on_where_they_stopped(tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    first = Results(file, "sources")
    first.add(Row("damage", "a", "right"))
    first.add(Row("damage", "b", "silent", "no word"))
    assert capsys.readouterr().err == "damage: b: silent\nno word\n"
    again = Results(file, "sources")
    assert not again.is_wanted("damage", "a") and again.is_wanted("damage", "b") and again.is_wanted("writes", "a")
    assert Results(file, "others").is_wanted("damage", "a") and Results(file, "sources", seed=1).is_wanted(
        "damage", "a"
    )
    names = [f"row {number}" for number in range(1000)]
    parts = [{name for name in names if is_in_part(name, part, 10)} for part in range(1, 11)]
    assert {*names} == set().union(*parts) and sum(map(len, parts)) == 1000
    assert all(60 < len(part) < 140 for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("try_rows", [try_damages, try_writes, try_kills])
def test_a_drawn_tenth_has_no_fault(tmp_path, try_rows, monkeypatch):
    monkeypatch.setitem(os.environ, "PYTHONPATH", os.pathsep.join(sys.path))
    results = Results(None, "", (3, 10))
    try_rows(results, tmp_path)
    faults = [row for row in results.rows.values() if row.verdict in FAULTS]
    assert results.rows and faults == []
