"""The benchmark harness, with workers that pretend to measure."""

import dataclasses
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest

from memjax.allocation import SWITCH
from tools.bench import __main__ as bench
from tools.bench import end_to_end, harness, models, peers, profile, worker
from tools.bench.peer_models import PEERS
from tools.bench.suites import DEFAULT_MALLOC, SUITES
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


def test_contenders_of_memjax_start_a_second_time_with_their_compiled_programs(fake, tmp_path):
    ours, plain = fake("memjax a", [9.0, 5.0]), fake("memjax a, plain", [9.0])
    plain = dataclasses.replace(plain, environment={**plain.environment, SWITCH: "0"})
    suite = harness.Suite("s", [fake("b", [2.0]), ours, plain], baseline="b")
    records = run(suite, tmp_path, rounds=1)
    again = {(record["contender"], record["mode"]): record["second_start_seconds"] for record in records}
    found = {("memjax a", "infer"): 9.0, ("memjax a", "train"): 5.0}
    assert again == {key: found.get(key) for key in again} and found.keys() <= again.keys()
    assert (tmp_path / "journal").read_text().splitlines()[-2:] == ["infer memjax a", "train memjax a"]
    table = shown(suite, records).splitlines()
    assert "| first step s | of a second start |" in table[2] and "| 9.0 | 9.0 |" in table[5]
    first, second = (harness.with_cache(entry, tmp_path).environment for entry in (ours, plain))
    assert first["JAX_COMPILATION_CACHE_DIR"] != second["JAX_COMPILATION_CACHE_DIR"]


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
    monkeypatch.setattr(bench, "SUITES", {"s": lambda: harness.Suite("s", [fake("a", [1.0], fail="train")], "a")})
    with pytest.raises(SystemExit) as caught:
        bench.main(["t"])
    assert caught.value.code == 2 and "SUITE: given 't', allowed: s" in capsys.readouterr().err
    assert bench.main(["s", "--rounds", "1", "--out", str(tmp_path / "out")]) == 1
    assert "bench: s: a: 'warm train 3' failed: RuntimeError: the index is gone" in capsys.readouterr().err

    monkeypatch.setattr(bench, "SUITES", {"s": lambda: harness.Suite("s", [fake("a", [1.0])], "a")})
    assert bench.main(["s", "--rounds", "1", "--out", str(tmp_path / "out")]) == 0
    (found,) = Book(tmp_path / "out").measurements()
    assert [record["mode"] for record in apart(found.facts)] == ["infer", "train"] and found.commit
    assert len(apart(found.facts)[0]["seconds"]["all"]) == 1 and found.facts["machine"]["cores"] >= 1
    assert "## s" in (tmp_path / "out" / "tables" / "bench.md").read_text() and "## s" in capsys.readouterr().out


def test_a_failing_suite_spares_the_others_and_a_missing_peer_leaves_its_suite_out(fake, tmp_path, monkeypatch, capsys):
    command = [str(peers.interpreter()), "peers.py", "memformer", "{}"]
    suites = {
        "broken": harness.Suite("broken", [fake("a", [1.0], fail="train")], "a"),
        "absent": harness.Suite("absent", [harness.Entry("p", command)], "p"),
        "s": harness.Suite("s", [fake("a", [1.0])], "a", rounds=2),
    }
    monkeypatch.setattr(peers, "missing_peers", lambda: {"memformer": "no network"})
    monkeypatch.setattr(peers, "install", lambda: pytest.fail("it was tried before"))
    monkeypatch.setattr(bench, "SUITES", {name: lambda suite=suite: suite for name, suite in suites.items()})
    monkeypatch.setattr(bench, "AFTER_ALL", ())
    assert bench.main(["--out", str(tmp_path / "out")]) == 1
    (found,) = Book(tmp_path / "out").measurements()
    assert found.name == "s" and found.facts["rounds"] == 2 and found.facts["timed_code"]
    lines = capsys.readouterr().err.splitlines()
    assert "bench: absent is left out: memformer is missing: no network" in lines
    assert any(line.startswith("bench: broken: a: 'warm train 3' failed") for line in lines)


def test_every_contender_of_memjax_stands_twice_and_differs_in_malloc_alone():
    for make in SUITES.values():
        entries = {entry.name: entry for entry in make().entries}
        for name, entry in entries.items():
            if name.startswith("memjax") and not name.endswith(DEFAULT_MALLOC):
                other = entries[name + DEFAULT_MALLOC]
                assert other.command == entry.command
                assert other.environment == {**entry.environment, SWITCH: "0"} and SWITCH not in entry.environment


def test_memories_are_full_before_the_first_step():
    settings = {
        "dim": 8,
        "layers": 2,
        "heads": 2,
        "head_dim": 4,
        "feed_forward": 8,
        "length": 4,
        "batch": 2,
        "vocab": 9,
    }
    model = models.Model("transformer_xl", {**settings, "memory_length": 12})
    leaves = jax.tree.leaves(model.memory)
    assert any(leaf.dtype == bool for leaf in leaves)
    for leaf in leaves:
        assert leaf.all() if leaf.dtype == bool else (np.abs(leaf).sum(-1) > 0).all()


def test_peers_environment_is_made_from_pins():
    sections = peers.read_sections(peers.REQUIREMENTS.read_text())
    lines = [line for section in sections for line in section.lines]
    assert all("==" in line for line in lines)
    assert {"torch==2.13.0", "transformers==4.35.2", "memorizing-transformers-pytorch==0.4.1"} <= set(lines)
    assert not any(line.startswith("faiss-gpu") for line in lines)
    assert sections[0].peers == (peers.ALL,) and set(PEERS) - {"vanilla"} == {p for s in sections[1:] for p in s.peers}
    assert peers.folders_of("gpt2") == [str(peers.ENVIRONMENT / "current")] and peers.folders_of("memformer") == []


def test_a_peer_that_cannot_be_installed_is_named_and_spares_the_others(tmp_path, monkeypatch, capsys):
    file = tmp_path / "requirements.txt"
    file.write_text(
        "# [*]\ntorch==1\n# [memformer]\nmemformer==1\n# [causal_product]\nfast==1\n# [gpt2] in new\nt==5\n"
    )
    monkeypatch.setattr(peers, "REQUIREMENTS", file)
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path / "venv")
    broken, commands = {"fast==1"}, []

    def run(command, **options):
        if "pip" not in command:
            peers.interpreter().parent.mkdir(parents=True)
            peers.interpreter().touch()
            return None
        commands.append(command)
        fails = any(word in broken for word in command)
        log = "building\nerror: command 'g++' failed: No such file\nERROR: Failed building wheel: fast\n"
        return subprocess.CompletedProcess(command, int(fails), "", log if fails else "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "version_info", (3, 11, 0))
    assert peers.missing_peers() is None
    missing = peers.install()
    assert list(missing) == ["causal_product"] and missing == peers.missing_peers()
    assert missing["causal_product"] == (
        "fast==1: error: command 'g++' failed: No such file; it is compiled, which needs a C++ compiler (g++ or CXX)"
    )
    assert "peers: causal_product is missing: fast==1" in capsys.readouterr().err
    assert [("--no-deps" in command, "--target" in command) for command in commands] == [
        (False, False),
        (True, False),
        (True, False),
        (True, True),
    ]
    broken.clear()
    assert peers.install() == {} and len(commands) == 5  # what is there is not installed again
    assert peers.install() == {} and len(commands) == 5
    file.write_text("# [*]\ntorch==2\n")
    assert peers.missing_peers() is None


def test_a_compiler_of_another_library_is_hidden_from_the_path(tmp_path):
    for folder, names in {"a": ("nvcc", "g++"), "b": ("ld",)}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("#!/bin/sh\n")
            (tmp_path / folder / name).chmod(0o755)
    given = f"{tmp_path / 'a'}:{tmp_path / 'b'}"
    with peers.path_without("nvcc", given) as path:
        assert shutil.which("nvcc", path=path) is None
        assert shutil.which("g++", path=path) and shutil.which("ld", path=path) == str(tmp_path / "b" / "ld")


@pytest.mark.parametrize(
    ("instruction", "path", "kind"),
    [
        ("ynn_fusion.3", "", profile.PRODUCTS),
        ("dot.9", "jit(f)/layers_0/transpose", profile.PRODUCTS),
        ("multiply_add_fusion", "jit(train_step)/add", profile.OPTIMISER),
        ("wrapped_scatter", "jit(f)/write/scatter", profile.GATHERS),
        ("bitcast_gather_fusion", "jit(f)/attention.masked_softmax/mul", profile.GATHERS),
        ("subtract_exponential_fusion", "jit(f)/attention.masked_softmax/exp", profile.SOFTMAX),
        ("copy_rsqrt_fusion", "jit(f)/apply_norm/layer_norm/rsqrt", profile.NORMS),
        ("copy.138", "", profile.COPIES),
        ("bitcast_concatenate_fusion", "jit(f)/attention/concatenate", profile.COPIES),
        ("maximum_fusion", "jit(f)/feed_forward/jit(relu)/max", profile.OTHER),
        ("wrapped_reduce-window", "", profile.OTHER),
    ],
)
def test_the_kind_of_an_operation(instruction, path, kind):
    assert profile.kind_of(instruction, path) == kind


def test_a_profile_adds_up_what_each_part_costs_and_counts_nothing_twice():
    named = profile.instruction_names(
        '  %dot.1 = f32[2] dot(%a, %b), metadata={op_name="jit(f)/layers_0/attention/bhld/dot_general" source_line=1}\n'
        '  ROOT %while.2 = f32[2] while(%a), metadata={op_name="jit(f)/layers_0/attention/while"}\n'
    )
    milliseconds = lambda name, begin, length: profile.Operation("1", begin * 1e6, length * 1e6, "jit_f", name)
    operations = [milliseconds("while.2", 0, 5), milliseconds("dot.1", 1, 3), milliseconds("copy.7", 6, 1)]
    names = {("jit_f", name): path for name, path in named.items()}
    found = profile.summarise(operations, names, wall=0.016, steps=2, rows=1)
    kinds = dict.fromkeys(profile.KINDS, 0.0) | {profile.PRODUCTS: 1.5, profile.OTHER: 1.0, profile.COPIES: 0.5}
    assert found["kinds"] == kinds | {profile.NO_OPERATION: 5.0}
    assert found["wall_milliseconds"] == 8.0 and found["milliseconds"] == 3.0
    first, rest = found["shown"]
    assert first == {"operations": "attention: dot_general", "milliseconds": 1.5, "percent": 50.0}
    assert rest == {"operations": "everything else", "milliseconds": 1.5, "percent": 50.0}


def test_a_contender_is_profiled_in_this_process(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    settings = {
        "dim": 8,
        "layers": 1,
        "heads": 2,
        "head_dim": 4,
        "feed_forward": 8,
        "length": 4,
        "batch": 2,
        "vocab": 9,
    }
    (found,) = profile.profile("tools.bench.models", "encoder", settings, ["train"], 1, 3)
    assert found["mode"] == "train" and found["kinds"][profile.PRODUCTS] > 0 and found["kinds"][profile.OPTIMISER] > 0
    assert 0 <= found["kinds"][profile.NO_OPERATION] < found["wall_milliseconds"]


def test_profiled_are_contenders_of_memjax_as_commands_run_them():
    names = [entry.name for entry in profile.select_entries(SUITES["transformer_xl"]())]
    assert names == ["memjax Transformer-XL", "memjax, scanned layers"]


def test_a_training_run_is_measured_beside_its_step():
    sizes = {"dim": 8, "layers": 1, "heads": 2, "feed_forward": 8, "length": 8, "batch": 2}
    found = end_to_end.measure(sizes, steps=4, every=2)
    assert found["steady_steps"] == 2 and found["tokens_per_step"] == 16
    assert 0 < found["steady_seconds"] < found["run_seconds"] and found["step_seconds"] > 0
    with pytest.raises(SystemExit) as caught:
        end_to_end.main(["--steps", "3", "--every", "3"])
    assert caught.value.code == 2
