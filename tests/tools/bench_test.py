"""The benchmark harness, with workers that pretend to measure."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tools.bench import __main__ as bench
from tools.bench import harness, peers, profile, worker
from tools.bench.suites import SUITES
from tools.results import speed_tables
from tools.results.ledger import Book, apart

ROOT = Path(__file__).resolve().parents[2]

# Reports the seconds it is told, and leaves a line in a shared journal for each step. `fail` breaks at one command.
FAKE = textwrap.dedent(
    """
    import json, sys
    from tools.bench import worker

    name, journal, seconds, fail = json.loads(sys.argv[1])

    class Fake:
        def describe(self):
            print("chatter of a library")
            return {"parameters": 1000, "tokens_per_step": 8, "versions": {"fake": "1"}, "settings": {"dim": 4}}

        def prepare(self, mode):
            pass

        def step(self, mode):
            with open(journal, "a") as lines:
                lines.write(f"{mode} {name}\\n")
            if mode == fail:
                raise RuntimeError("the index\\nis gone")

    steps = iter(seconds * 100)
    worker._timed_steps = lambda contender, mode, count: {
        key: [contender.step(mode) or next(steps) for _ in range(count)] for key in ("seconds",)
    } | {"cpu_seconds": [0.5] * count, "page_faults": [7] * count}
    sys.exit(worker.serve(Fake))
    """
)


@pytest.fixture
def fake(tmp_path):
    script = tmp_path / "fake.py"
    script.write_text(FAKE)

    def entry(name, seconds, fail=""):
        arguments = json.dumps([name, str(tmp_path / "journal"), seconds, fail])
        return harness.Entry(name, [sys.executable, str(script), arguments], {"PYTHONPATH": str(ROOT)})

    return entry


def run(suite, tmp_path, rounds=3):
    return harness.run_suite(suite, rounds=rounds, warm=1, command="a command", root=tmp_path)


def test_contenders_take_turns_and_warm_up_first(fake, tmp_path):
    suite = harness.Suite("s", [fake("a", [1.0]), fake("b", [2.0])], baseline="b")
    run(suite, tmp_path)
    journal = (tmp_path / "journal").read_text().splitlines()
    assert journal == [*["infer a", "infer b"] * 4, *["train a", "train b"] * 4]


def test_records_hold_medians_ratios_and_where_they_come_from(fake, tmp_path):
    # The first number of each is its warm-up step.
    suite = harness.Suite("s", [fake("a", [9.0, 1.0, 2.0, 3.0]), fake("b", [4.0])], "b", modes=("train",))
    a, b = json.loads(json.dumps(run(suite, tmp_path)))
    assert a["seconds"] == {"median": 2.0, "low": 1.5, "high": 2.5, "all": [1.0, 2.0, 3.0]}
    assert a["first_step_seconds"] == 9.0 and a["compile_seconds"] == 7.0
    assert a["tokens_per_second"] == 4.0 and b["tokens_per_second"] == 2.0
    assert a["ratios"]["b"]["value"] == 2.0 and b["ratios"] == {}
    assert a["cpu_ratios"]["b"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert a["ratios"]["b"]["low"] >= 4 / 3 and a["ratios"]["b"]["high"] <= 4.0
    for record in (a, b):
        assert record["suite"] == "s" and record["mode"] == "train" and record["command"] == "a command"
        assert record["commit"] == "unknown" and record["rounds"] == 3 and record["warm_steps"] == 1
        assert record["versions"] == {"fake": "1"} and record["settings"] == {"dim": 4}
        assert set(record["hardware"]) == {"cpu", "cores", "memory_gib", "system"}
        assert record["peak_rss_mib"] > 1 and record["cpu_seconds"]["median"] == 0.5 and record["parameters"] == 1000
        assert record["page_faults"] == 7
        assert {"note", "started", "threads", "load_at_start", "contender"} <= set(record)


def shown(suite, records):
    return speed_tables.bench(harness.measurement(suite, records))


def test_table_has_one_row_per_contender_and_mode(fake, tmp_path):
    suite = harness.Suite("s", [fake("a", [1.0]), fake("b", [2.0])], baseline="b", reference="a", note="A note.")
    rows = [
        line for line in shown(suite, run(suite, tmp_path)).splitlines() if line.startswith("| ") and "---" not in line
    ]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| mode", "contender"],
        *[[f"| {mode}", name] for mode in ("infer", "train") for name in ("a", "b")],
    ]
    assert "| 2.00 (2.00-2.00) | - |" in rows[1] and "| - | 0.50 (0.50-0.50) |" in rows[2]


def test_failing_contender_gives_one_line(fake, tmp_path):
    suite = harness.Suite("s", [fake("a", [1.0]), fake("broken", [1.0], fail="train")], baseline="a")
    with pytest.raises(harness.BenchError) as caught:
        run(suite, tmp_path)
    assert str(caught.value) == "broken: 'warm train 1' failed: RuntimeError: the index is gone"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            [sys.executable, "-c", "raise SystemExit('no such module')"],
            "x: the process ended with code 1 at 'start': no",
        ),
        ([sys.executable, "-c", "print('hello')"], "x: not an answer to 'start': 'hello'"),
        (["/no/such/python"], "x: cannot start /no/such/python: No such file or directory"),
    ],
)
def test_contender_that_does_not_start_gives_one_line(command, line):
    with pytest.raises(harness.BenchError) as caught:
        harness.Worker(harness.Entry("x", command))
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_speed_ratio_keeps_rounds_together():
    # The machine was four times slower in half of the rounds: in each of them b still takes twice as long.
    ours = [1.0, 4.0] * 10
    ratio = harness.speed_ratio(ours, [2 * t for t in ours])
    assert ratio == {"value": 2.0, "low": 2.0, "high": 2.0}
    with pytest.raises(ValueError, match="same rounds"):
        harness.speed_ratio([1.0], [1.0, 2.0])


def test_every_step_is_timed_and_prepared():
    class Counter:
        log = []

        def prepare(self, mode):
            self.log.append("prepare")

        def step(self, mode):
            self.log.append(mode)

    answer = worker._answer(Counter(), "step train 2")
    assert Counter.log == ["prepare", "train"] * 2
    assert len(answer["seconds"]) == len(answer["cpu_seconds"]) == 2
    with pytest.raises(ValueError, match="unknown command 'dance': use describe"):
        worker._answer(Counter(), "dance")


def test_suites_compare_equal_sizes():
    for name, make in SUITES.items():
        suite = make()
        names = [entry.name for entry in suite.entries]
        assert suite.name == name and len(set(names)) == len(names)
        assert {suite.baseline, suite.reference} - {None} <= set(names)
        settings = [json.loads(entry.command[-1]) for entry in suite.entries if entry.name != suite.reference]
        # Ways to compute the same; in contenders of their own also what a peer has by default, or its reference.
        ours = {
            "scan_layers": 0,
            "retrieval": "exact",
            "gated": False,
            "activation": "",
            "chunk_length": 0,
            "rematerialize": "",
        }
        assert all({**one, **ours} == {**settings[0], **ours} for one in settings)


def test_peers_run_as_a_file_and_hide_no_standard_module():
    code = "import runpy, sys; sys.path.insert(0, {0!r}); runpy.run_path({1!r}); import cProfile"
    code = code.format(str(Path(peers.__file__).parent), peers.__file__)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_command_rejects_unknown_suites_and_reports_failures(fake, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "is_installed", lambda: True)
    monkeypatch.setattr(bench, "SUITES", {"s": lambda: harness.Suite("s", [fake("a", [1.0], fail="train")], "a")})
    with pytest.raises(SystemExit) as caught:
        bench.main(["t"])
    assert caught.value.code == 2 and "SUITE: given 't', allowed: s" in capsys.readouterr().err
    assert bench.main(["s", "--rounds", "1", "--out", str(tmp_path / "out")]) == 1
    assert "bench: s: a: 'warm train 4' failed: RuntimeError: the index is gone" in capsys.readouterr().err

    monkeypatch.setattr(bench, "SUITES", {"s": lambda: harness.Suite("s", [fake("a", [1.0])], "a")})
    assert bench.main(["s", "--rounds", "1", "--out", str(tmp_path / "out")]) == 0
    (found,) = Book(tmp_path / "out").measurements()
    assert [record["mode"] for record in apart(found.facts)] == ["infer", "train"] and found.commit
    assert len(apart(found.facts)[0]["seconds"]["all"]) == 1 and found.facts["machine"]["cores"] >= 1
    assert "## s" in (tmp_path / "out" / "tables" / "bench.md").read_text() and "## s" in capsys.readouterr().out


def test_peers_environment_is_made_from_pins():
    lines = [line for line in peers.REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines) and len(lines) == len(set(lines))
    assert {"torch==2.13.0", "transformers==4.35.2", "memorizing-transformers-pytorch==0.4.1"} <= set(lines)
    assert not any(line.startswith("faiss-gpu") for line in lines)


def test_a_profile_adds_up_what_each_part_costs_and_counts_nothing_twice():
    names = profile.instruction_names(
        '  %dot.1 = f32[2] dot(%a, %b), metadata={op_name="jit(f)/layers_0/attention/bhld/dot_general" source_line=1}\n'
        '  ROOT %while.2 = f32[2] while(%a), metadata={op_name="jit(f)/layers_0/attention/while"}\n'
    )
    event = lambda name, start, length: {
        "ph": "X",
        "tid": 1,
        "ts": start,
        "dur": length,
        "args": {"hlo_op": name},
    }
    trace = {
        "traceEvents": [event("while.2", 0, 5000), event("dot.1", 1000, 3000), {"ph": "M"}, event("copy.7", 6000, 1000)]
    }
    times = profile.operation_times(trace, names)
    assert times == {
        "attention: dot_general": 3.0,
        "attention: while": 2.0,
        "optimiser and rest: copy": 1.0,
    }
    first, rest = profile.shown(6.0, times, rows=1)
    assert first == {"operations": "attention: dot_general", "milliseconds": 3.0, "percent": 50.0}
    assert rest == {"operations": "everything else", "milliseconds": 3.0, "percent": 50.0}
