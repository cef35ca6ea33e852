"""What the scripts that measure a run have in common."""

import json

from tools.results import runs


def measure(run, split, rows):
    return {"numbers": {f"{split} {run}": rows}}


def test_a_script_prints_and_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "load_run", lambda path: path)
    arguments = ["a/run", "--rows", "3", "--out", str(tmp_path / "facts.json")]
    assert runs.measure_command(measure, "A script.\n\nMore.", arguments, split="test", rows=16) == 0
    written = (tmp_path / "facts.json").read_text()
    assert capsys.readouterr().out == written
    facts = json.loads(written)
    assert facts["numbers"] == {"test a/run": 3} and facts["run"] == "run" and facts["hardware"] and facts["commit"]


def test_what_is_no_run_is_one_line_and_code_2(tmp_path, capsys):
    assert runs.measure_command(measure, "A script.", [str(tmp_path / "nothing")], split="test", rows=1) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1 and "nothing" in output.err
