"""The job that is done with memjax and with Avalanche: what is counted, and that the ledger has today's lines."""

import gzip
import importlib.util
import json
import runpy
import struct
import sys
import textwrap

import numpy as np
import pytest

from memjax.cli.sweep import OWN, group_words, make_parser, plan_runs, read_values
from tools.bench import same_job
from tools.bench.split_mnist import PEER
from tools.results import streams
from tools.results.ledger import Book, Measurement

ENVIRONMENT = same_job.ROOT / ".venv-avalanche/bin/python"
PRINTED = "".join(f"{name}: average 0.5000 ± 0.0100 over 6 runs\n0.9000 ± 0.1\n" for name in same_job.METHODS.values())


@pytest.fixture
def digits(tmp_path):
    """A folder with the four files of MNIST: forty images for training and forty for tests."""
    labels = np.tile(np.arange(10, dtype=np.uint8), 504)
    for name, count in (("train", 5040), ("t10k", 40)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), 0, labels[:count]] = 255
        data = struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes()
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(data))
        data = struct.pack(">II", 2049, count) + labels[:count].tobytes()
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(data))
    return tmp_path


def test_lines_without_code_are_not_counted():
    source = textwrap.dedent(
        '''
        """Docstring
        of two lines."""

        # a comment
        x = """a text
        # of two lines"""


        def f(x):
            """Docstring."""
            return x  # and its comment

        class C:
            y = (
                1
            )
        '''
    )
    assert same_job.count_lines(source) == 8
    assert same_job.count_lines(source, ("f",)) == 2 and same_job.count_lines(source, ("f", "C")) == 6


def test_the_ledger_has_the_lines_and_the_commands_of_today():
    measurements = Book().measurements()
    (lines,) = [one.facts for one in measurements if one.kind == "job_lines"]
    assert lines == same_job.count() and lines["Avalanche"]["reading_lines"] > 0
    for facts in (one.facts for one in measurements if one.kind == "same_job"):
        assert [row["method"] for row in facts["rows"]] == [*same_job.METHODS.values()]
        assert all(row["runs"] == 6 for row in facts["rows"])


@pytest.mark.laws
def test_the_command_of_memjax_is_one_run_for_each_method_seed_and_order(digits):
    ((program, verb, *words),) = same_job.memjax_commands(str(digits))
    groups = dict(group_words(words))
    over = read_values(groups["--over"])
    runs = [*plan_runs(make_parser(), [(name, values) for name, values in groups.items() if name not in OWN], over)]
    assert (program, verb) == ("memjax", "sweep") and len(runs) == 36


def test_the_command_of_memjax_is_the_one_in_the_guide():
    guide = (same_job.ROOT / "docs/guides/lifelong.md").read_text(encoding="utf-8")
    ((_, verb, *words),) = same_job.memjax_commands("DIR")
    shown = " ".join(f"'{word}'" if " " in word else word for word in words)
    assert f"memjax {verb} {shown}\n" in guide


def test_both_sides_give_a_row_for_each_method(digits, monkeypatch, tmp_path):
    peer = tmp_path / "python"
    peer.write_text(f"#!{sys.executable}\nprint({PRINTED!r})\n")
    peer.chmod(0o755)
    theirs = same_job.do_with_avalanche(digits, tmp_path, str(peer))
    assert set(np.load(tmp_path / "stream.npz")) == {
        f"{s}_{p}{i}" for s in ("train", "test") for p in "xy" for i in range(5)
    }
    contender = {"runs": ["run"] * 6, "scores": {"average": {"mean": 0.5, "half_width": 0.01}}}
    printed = json.dumps({"contenders": [contender] * 6})
    monkeypatch.setattr(same_job, "run_all", lambda *given: (printed, 60.0))
    ours = same_job.do_with_memjax(digits, tmp_path)
    assert ours["rows"] == theirs["rows"] and ours["cpu_seconds"] == 60.0 and 0 < theirs["cpu_seconds"] < 60.0


def test_both_sides_stand_in_one_table():
    facts = {"a": {"lines": 0, "shipped_lines": 9, "commands": 1}, "b": {"lines": 7, "reading_lines": 2, "commands": 3}}
    lines = Measurement("job_lines", "", "", "", "", "", "", facts)
    shown = streams.job_lines(lines).splitlines()
    assert shown[2:] == ["| a | 0 (9 in a shipped config) | 1 |", "| b | 7 (2 read the images) | 3 |"]
    done = {"cpu_seconds": 90.0, "rows": [{"method": "SEQ", "mean": 0.5, "half_width": 0.01}]}
    job = Measurement("same_job", "b", "", "", "", "", "", done)
    assert streams.same_job(job).splitlines()[::2] == ["| CPU, minutes | SEQ |", "| 1.5 | 50.0 ± 1.0 |"]
    shown = streams.job_lines(lines, [job]).splitlines()
    assert shown[2].endswith("| 1 |  |  |") and shown[3].endswith("| 3 | 1.5 | 50.0 ± 1.0 |")


def test_torchvision_is_empty_where_its_folder_is_on_the_path(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    runpy.run_path(f"{PEER['PYTHONPATH']}/sitecustomize.py")
    finder = sys.meta_path[0]
    transforms = importlib.util.module_from_spec(finder.find_spec("torchvision.transforms"))
    assert transforms.Compose([1], size=2) and not hasattr(transforms, "__wrapped__")
    assert finder.find_spec("torch") is None and finder.find_spec("torchvision_more") is None


@pytest.mark.parametrize("words, said", [(["memjax"], "--data"), (["Avalanche", "--data", "DIR"], "--python")])
def test_a_job_without_data_or_environment_is_refused(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        same_job.main(words)
    assert ended.value.code == 2 and f"{said}: given none, allowed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(
    not ENVIRONMENT.exists(), reason="needs .venv-avalanche with avalanche-lib (tools/bench/split_mnist.py)"
)
def test_the_script_prints_a_matrix_for_each_method(digits, monkeypatch, tmp_path):
    run_all, printed = same_job.run_all, []
    monkeypatch.setattr(same_job, "run_all", lambda *given: printed.append(run_all(*given)) or printed[-1])
    facts = same_job.do_with_avalanche(digits, tmp_path, str(ENVIRONMENT))
    assert [row["runs"] for row in facts["rows"]] == [6] * 6 and facts["cpu_seconds"] > 0
    lines = printed[0][0].splitlines()
    assert len(lines) == 36 and [line.count("±") for line in lines[:6]] == [1, 1, 2, 3, 4, 5]
