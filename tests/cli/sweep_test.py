"""Sweeps: which runs they make, that finished ones are not trained again, and that an error names its run."""

import json
import subprocess
import sys

import pytest

from memjax.cli import main
from memjax.cli import sweep as sweep_module
from memjax.cli.sweep import PlannedRun, group_words, make_parser, name_run, plan_runs, read_values, train_all
from memjax.settings.overrides import UsageError

SMOKE = ["--config", "lifelong_mnist", "--variant", "smoke"]


def plan(folder, words, over):
    words = [*SMOKE, *words, "--workdir", str(folder)]
    return [*plan_runs(make_parser(), group_words(words), read_values(over))]


def test_every_combination_is_a_run_with_a_name_of_its_own(tmp_path):
    runs = plan(tmp_path, ["--data.batch-size", "4,8"], ["training.seed=0,1", "lifelong.task_order=0 1,1 0"])
    names = [planned.path.name for planned in runs]
    assert len(set(names)) == 8 and not any(planned.is_finished for planned in runs)
    assert names[0].endswith("size4-seed0-order0_1") and names[-1].endswith("size8-seed1-order1_0")
    words = runs[-1].words
    assert words[words.index("--data.batch-size") + 1] == "8" and words[-2:] == ("--name", names[-1])
    place = words.index("--lifelong.task-order")
    assert words[place + 1 : place + 3] == ("1", "0")
    # A value that is added later leaves the names of the others as they are.
    more = plan(tmp_path, ["--data.batch-size", "8"], ["training.seed=1,2", "lifelong.task_order=1 0"])
    assert more[0].path == runs[-1].path and more[1].path not in [planned.path for planned in runs]


def test_fields_with_commas_have_the_same_value(tmp_path):
    runs = plan(tmp_path, [], ["training.seed,data.seed=0,1", "lifelong.task-order=0 1,1 0"])
    words = [run.words for run in runs]
    seeds = [tuple(word[word.index(name) + 1] for name in ("--training.seed", "--data.seed")) for word in words]
    assert seeds == [("0", "0"), ("0", "0"), ("1", "1"), ("1", "1")] and len({run.path for run in runs}) == 4


def test_without_a_word_nothing_is_trained(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep"]) == 2 and not [*tmp_path.iterdir()]
    assert capsys.readouterr().err.startswith("memjax sweep: nothing to train is given, allowed: --config NAME, --text")


def test_a_mistake_of_the_last_value_is_the_only_line(tmp_path, capsys):
    (tmp_path / "news.csv").write_text(
        "text,label\n" + "".join(f"word {n},{'good' if n % 2 else 'bad'}\n" for n in range(20))
    )
    words = ["--tasks", str(tmp_path / "news.csv"), "--workdir", str(tmp_path / "runs"), "--method"]
    assert main(["sweep", *words, "ewc,lwff"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "1 tasks" in line] == [] and "given 'lwff'" in lines[-1]


@pytest.mark.parametrize(
    "words, said",
    [
        (["--over", "training.seed"], "--over: given 'training.seed', allowed: FIELD=VALUE,VALUE"),
        (["--over", "training.seed=0,,1"], "--over: given 'training.seed=0,,1', allowed"),
        (["--over", "training.seed=0", "training.seed=1"], "--over: given training.seed twice"),
        (["--over", "training.seed,=0,1"], "--over: given 'training.seed,=0,1', allowed: FIELD=VALUE,VALUE"),
        (["--over", "training.seed,training.seed=0"], "--over: given training.seed twice"),
        (["--over", "training.seed,data.sed=0,1"], "did you mean --data.seed"),
        (["--over", "training.sed=0,1"], "did you mean --training.seed"),
        (["--over", "training.seed=0,x"], "training.seed: given 'x', allowed: an integer"),
        (["--data.batch-size", "4,"], "--data.batch-size: given '4,', allowed"),
        (["--data.batch-size", "4,0"], "--data.batch-size: given 0, allowed"),
        (["--variant", "smoke,smokee"], "variant: given 'smokee', allowed"),
        (["--parallel", "0"], "--parallel: given 0, allowed"),
    ],
)
def test_mistakes_are_refused_before_a_run_begins(tmp_path, capsys, words, said):
    given = [*SMOKE, *words] if "--variant" not in words else [*SMOKE[:2], *words]
    assert main(["sweep", *given, "--workdir", str(tmp_path / "runs")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[-1] and lines[-1].startswith("memjax sweep: ") and not (tmp_path / "runs").exists()


def test_a_directory_of_another_run_is_refused(tmp_path):
    folder = tmp_path / name_run("mine", (("--variant", ("smoke",)), ("--training.seed", ("0",))))
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"not empty \(notes.txt\)"):
        plan(tmp_path, ["--name", "mine"], ["training.seed=0"])
    with pytest.raises(UsageError, match="stands alone"):
        group_words(["lifelong_mnist"])


class Process:
    """What stands for a process that trains: it says some lines and ends with a code."""

    commands: list[list[str]] = []
    outputs: dict[str, tuple[list[str], int]] = {}

    def __init__(self, command, **options):
        self.commands.append(command)
        self.stdout, self.returncode = self.outputs.get(command[-1], (["one line\n"], 0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def send_signal(self, number):
        self.commands.append([str(number)])


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(Process, "commands", [])
    monkeypatch.setattr(Process, "outputs", {})
    monkeypatch.setattr(sweep_module.subprocess, "Popen", Process)
    return Process


def planned_runs(folder, names):
    return [PlannedRun(folder / name, ("--name", name), is_finished=False) for name in names]


@pytest.mark.parametrize("parallel", [1, 3])
def test_runs_are_trained_in_processes(tmp_path, capsys, processes, parallel):
    assert train_all(planned_runs(tmp_path, "abc"), parallel) == 0
    assert processes.commands == [[sys.executable, "-m", "memjax", "train", "--name", name] for name in "abc"]
    lines = capsys.readouterr().err.splitlines()
    assert "run 3 of 3: c" in lines and ("c: one line" if parallel > 1 else "one line") in lines


def test_an_error_ends_the_sweep_in_a_line_that_names_the_run(tmp_path, capsys, processes):
    processes.outputs["b"] = (["step 1\n", "memjax train: data.source.path: no such folder\n"], 2)
    assert train_all(planned_runs(tmp_path, "abc"), 1) == 2
    assert [command[-1] for command in processes.commands] == ["a", "b"]
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "memjax sweep: b: data.source.path: no such folder" and "memjax train" not in "".join(said)
    processes.outputs["c"] = ([], -9)
    assert train_all(planned_runs(tmp_path, "c"), 1) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "memjax sweep: c: its process ended with exit code -9"


@pytest.mark.slow
def test_a_sweep_goes_on_and_ends_with_the_table(tmp_path, capsys):
    folder, over = tmp_path / "runs", ["training.seed=0,1", "lifelong.task_order=0 1,1 0"]
    command = ["sweep", *SMOKE[1:], "--workdir", str(folder), "--over", *over]
    runs = plan(folder, [], over)
    subprocess.run([sys.executable, "-m", "memjax", "train", *runs[0].words], check=True)
    time_of = lambda planned: (planned.path / "finished.json").stat().st_mtime_ns
    before = time_of(runs[0])
    assert main([*command, "--json"]) == 0
    (contender,) = json.loads(capsys.readouterr().out)["contenders"]
    assert contender["runs"] == [str(planned.path) for planned in runs] and time_of(runs[0]) == before
    assert {score["unit"] for score in contender["scores"].values()} == {"order"} and len(contender["matrix"]) == 2
    (runs[1].path / "finished.json").unlink()  # as if it had been stopped before its end
    times = [time_of(planned) for planned in (runs[0], *runs[2:])]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "4 runs, of which 3 are finished" in said.err and "over 2 orders" in said.out
    assert times == [time_of(planned) for planned in (runs[0], *runs[2:])] and time_of(runs[1])
