"""The slow suite runs file by file, survives what kills a process, and goes on where it stopped."""

import json
import signal
import subprocess
import sys

import pytest

from tools import slow_suite

FILES = {
    "passes": "def test_a(): pass\ndef test_b():\n    import pytest\n    pytest.skip()",
    "fails": "def test_a(): pass\ndef test_b(): assert 0",
    "dies": "def test_a():\n    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)",
}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A checkout with three files of tests."""
    for name, text in FILES.items():
        (tmp_path / f"{name}_test.py").write_text(text + "\n")
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "tests"]
    for words in (["init", "-q"], ["add", "."], commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(slow_suite, "ROOT", tmp_path)
    monkeypatch.setattr(slow_suite, "PYTEST", [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"])
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)


def test_files_run_apart_and_a_second_call_goes_on(repository, capsys):
    results = repository / "build" / "results.jsonl"
    files = ["passes_test.py", "."]
    assert slow_suite.main([*files, "--results", str(results)]) == 1
    passed, died, failed = map(json.loads, results.read_text().splitlines())
    assert passed["passed"] and passed["counts"] == {"passed": 1, "skipped": 1} and passed["seconds"] > 0
    assert not failed["passed"] and failed["counts"] == {"passed": 1, "failed": 1} and failed["failures"] == ["test_b"]
    assert not died["passed"] and died["end"] == "died of SIGSEGV"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "5 slow tests in 3 files, 3 files to run"
    assert lines[3].startswith("3/3 fails_test.py: 1 passed, 1 failed, ") and "FAILED test_b (" in lines[3]
    assert lines[4].startswith("1 of 3 files passed")

    (repository / "fails_test.py").write_text(FILES["fails"].replace("assert 0", "assert 1"))
    subprocess.run(
        ["git", "stash", "-q"], cwd=repository, check=True
    )  # The same sources: what passed is not run again.
    assert slow_suite.main([*files, "--results", str(results)]) == 1
    assert capsys.readouterr().out.startswith("5 slow tests in 3 files, 2 files to run")
    subprocess.run(["git", "stash", "pop", "-q"], cwd=repository, check=True)
    assert slow_suite.main(["passes_test.py", "fails_test.py", "--results", str(results)]) == 0
    assert json.loads(results.read_text().splitlines()[-1])["file"] == "passes_test.py"  # What failed came first.


def test_what_hangs_is_ended_with_its_children(repository):
    text = "def test_a():\n    import subprocess\n    subprocess.run(['sleep', '600'])\n"
    (repository / "hangs_test.py").write_text(text)
    result = slow_suite.run_file("hangs_test.py", [], repository, seconds=2)
    assert not result["passed"] and result["end"] == "ended after 2 s" and result["seconds"] < 60


def test_tests_that_cannot_be_collected_are_said(repository):
    (repository / "broken_test.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(SystemExit, match="nothing_of_this_name"):
        slow_suite.collect_files(["broken_test.py"], [])


@pytest.mark.parametrize("cut", ["", "{", '{"fi', '{"file": {"b": 1', '{"fi{"file": "c"}', "\n"])
def test_results_that_were_cut_off_are_read(tmp_path, cut):
    path = tmp_path / "results.jsonl"
    path.write_text('{"file": "a"}\n' + cut)
    assert slow_suite.read_results(path) == [{"file": "a"}]
    assert slow_suite.read_results(tmp_path / "none") == []
