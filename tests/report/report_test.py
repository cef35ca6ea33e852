"""`memjax report` on tiny runs: one, two side by side, one without checkpoints; what is missing is a line."""

import builtins
import re
import shutil

import pytest

from memjax.cli import main
from memjax.report.build import collect_run_facts, make_report
from memjax.report.curves import compare_runs_panel, panels, training_series
from memjax.report.page import make_page
from memjax.report.panel import Figure, OpenedRun, Panel, Paragraph, Table
from memjax.report.providers import PROVIDERS
from memjax.training import train
from tests.report.page_test import Reader
from tools.verbs import make_config, write_data


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with `runs/memory`, `runs/more` of more updates, and `runs/bare` without checkpoints."""
    folder = tmp_path_factory.mktemp("report")
    write_data(folder)
    for name, steps in (("memory", 3), ("more", 4)):
        config = make_config("TransformerXL")
        config.name, config.workdir, config.training.steps = name, str(folder / "runs"), steps
        config.data.source.path, config.data.cache_dir = str(folder / "data" / "texts"), str(folder / "cache")
        config.training.evaluate_every = 1
        train(config)
    shutil.copytree(folder / "runs" / "memory", folder / "runs" / "bare")
    shutil.rmtree(folder / "runs" / "bare" / "checkpoints")
    (folder / "runs" / "bare" / "finished.json").unlink()
    return folder / "runs"


@pytest.fixture(scope="module")
def opened(runs):
    return OpenedRun(str(runs / "memory"), segments=2, tokens=64)


@pytest.fixture(scope="module")
def report(opened):
    return make_report([opened], only=["curves", "scores", "gains"])


def parts_of(report):
    return {part.name: part for section in report.sections for panel in section.panels for part in panel.items}


def test_what_a_memory_is_worth(report, opened):
    parts = parts_of(report)
    states = {row[0]: row[1] for row in parts["memory_states"].rows}
    assert states["kept"] == pytest.approx(opened.nats_with_memory.result.nats_per_token)
    assert states["cleared"] == pytest.approx(opened.nats_without_memory.result.nats_per_token) != states["kept"]
    assert [row[0] for row in parts["memory_size_scores"].rows] == ["off", "2", "8 (trained)", "32"]
    mentions = parts["mention_scores"].rows
    assert sum(row[1] for row in mentions) == opened.nats_with_memory.result.targets
    assert sum(row[-1] for row in mentions) == pytest.approx(states["cleared"] - states["kept"])


def test_a_text_is_whole_and_its_gains_add_up(report, opened):
    words = parts_of(report)["gains_text"]
    assert isinstance(words, Paragraph) and " lives in " in "".join(words.words)
    assert len(words.words) == len(words.shades) == len(words.notes) and all(words.notes)
    largest = parts_of(report)["gains_largest"].rows
    gains = (opened.nats_without_memory.nats - opened.nats_with_memory.nats).round(3)
    assert largest[0][4] == pytest.approx(gains.max(), abs=2e-3)
    assert largest[-1][4] == pytest.approx(gains.min(), abs=2e-3)


def test_a_report_is_a_page_and_files(runs, report, capsys, tmp_path):
    assert not report.sections[0].left
    asked = ["report", str(runs / "memory"), "--tokens", "64", "--only", "curves,scores,gains"]
    assert main([*asked, "--out", str(tmp_path / "new" / "a.html"), "--figures", str(tmp_path / "figures")]) == 0
    page = (tmp_path / "new" / "a.html").read_text(encoding="utf-8")
    assert page == make_page(report)  # another call gives the same bytes
    read = Reader(page)
    assert len(read.ids) == len(set(read.ids)) and "model.attention.memory_length" in page
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"{figure.name}.{kind}" for figure in report.figures for kind in ("svg", "png")}
    assert "figures" in capsys.readouterr().out
    assert main(["report", str(runs / "memory"), "--only", "curves"]) == 0
    assert (runs / "memory" / "report.html").exists()


def test_which_neighbours_of_a_store_helped(runs, tmp_path):
    store = ["--run", str(runs / "memory"), "--path", str(tmp_path / "store"), "--shards", "1"]
    assert main(["datastore", "build", *store]) == 0
    run = OpenedRun(str(runs / "memory"), tokens=64, datastore=str(tmp_path / "store"))
    panel = next(iter(PROVIDERS["gains"](run)))
    (table,) = panel.items
    assert isinstance(table, Table) and panel.name == "store"
    targets = [row for row in table.rows if row[0] == "target"]
    gains = [row[5] for row in targets]
    assert gains == sorted(gains, reverse=True) and all(row[4] >= row[3] for row in targets[:1])
    nearest = [row for row in table.rows if row[0] == "neighbour 1"]
    assert len(nearest) == len(targets) and all(0 < row[5] <= 1 and row[6] >= 0 for row in nearest)
    assert "lives" in "".join(row[1] for row in nearest)
    report = make_report([OpenedRun(str(runs / "memory"), datastore=str(runs))], only=["gains"])
    assert "is not a datastore" in report.sections[0].left[0]


def test_the_header_says_what_a_run_is(opened):
    facts = collect_run_facts(opened)
    assert facts["memory"].startswith("TransformerXL: ") and "memory length 8" in facts["memory"]
    assert facts["steps"] == 3 and facts["parameters"] > 100 and facts["finished"] == "yes"
    internals = {"feed forward", "output", "random numbers"}
    assert not internals & set(facts) and " 0" not in facts["memory"] and "numpy" not in facts["versions"]
    assert facts["nats per token"] == opened.finished["results"]["evaluation"]["nats_per_token"]


def test_curves_of_two_runs(runs):
    both = [OpenedRun(str(runs / name)) for name in ("memory", "more")]
    comparison, training, memory = compare_runs_panel(both)
    table = comparison.items[0]
    assert isinstance(table, Table) and table.columns == ("", "memory", "more")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["training.steps"] == (3, 4) and rows["steps"] == (3, 4) and "parameters" in rows
    assert {"training_loss", "evaluation_loss", "training_updates"} <= {part.name for part in training.items}
    assert [part.name for part in memory.items] == ["memory_transformer_xl_memory_share"]
    report = make_report(both, only=["curves", "scores"])
    assert [section.name for section in report.sections] == ["all", "run1", "run2"]
    read = Reader(make_page(report))
    assert len(read.ids) == len(set(read.ids)) and {"run1_results", "run2_results"} <= set(read.ids)


def test_a_run_without_checkpoints_is_shown_as_far_as_it_is_there(runs):
    bare = OpenedRun(str(runs / "bare"))
    report = make_report([bare])
    assert [panel.name for panel in report.sections[0].panels][:1] == ["curves"]
    lines = [line for line in report.sections[0].left if "checkpoint" in line]
    assert len(lines) == 1 and "scores" in lines[0] and "gains" in lines[0]
    assert dict((row[0], row[1]) for row in report.header.rows)["finished"].startswith("no")


def test_a_provider_or_a_picture_that_refuses_costs_a_line(opened, monkeypatch):
    def refusing(run):
        yield Panel("half", "Half", "There.", (Figure("bad", "Bad", "", refuse),))
        raise ValueError("slots: given\nnone, allowed: some")

    def refuse(figure):
        raise ValueError("nothing to draw")

    monkeypatch.setitem(PROVIDERS, "slots", refusing)
    report = make_report([opened], only=["slots"])
    (section,) = report.sections
    assert [panel.name for panel in section.panels] == ["half"] and not section.panels[0].items
    assert section.left == ("slots: slots: given none, allowed: some", "Bad: nothing to draw")
    assert "nothing to draw" in make_page(report)


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["nowhere"], "nowhere: no run directory (it has no config.json), allowed"),
        (["{runs}/memory", "--only", "nothing"], "--only: given 'nothing', allowed: of curves, scores"),
        (["{runs}/memory", "--rows", "0"], "--rows: given 0, allowed: an integer of at least 1"),
        (["{runs}/memory", "{runs}/more", "--datastore", "x"], "--datastore: given with several runs, allowed"),
        (["{runs}/memory", "--run", "x"], "--run: no such option of memjax report"),
        ([], "RUN: not given, allowed: a run directory"),
    ],
)
def test_mistakes_are_one_line(runs, capsys, arguments, line):
    assert main(["report", *(part.format(runs=runs) for part in arguments)]) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_one_line(runs, capsys, monkeypatch, package):
    real = builtins.__import__

    def absent(name, *arguments, **named):
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert main(["report", str(runs / "memory")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"memjax report: {package} is not installed .*pip install 'memjax\[plots\]'", line)


def test_logs_of_several_attempts_add_up(opened):
    line = {"kind": "train", "tokens": 4.0, "nats_per_token": 1.0}
    lines = [{**line, "step": s, "attempt": a, "seconds": float(t)} for s, a, t in ((1, 1, 5), (2, 2, 1), (3, 3, 1))]
    found = training_series(
        [*lines, {**line, "step": 4, "attempt": 3, "seconds": 2.0, "nats_per_token": None}], "nats_per_token"
    )
    assert found.seconds.tolist() == [5.0, 6.0, 7.0] and found.tokens.tolist() == [4.0, 8.0, 12.0]
    assert len(found.thinned(2).values) == 2
    assert [panel.name for panel in panels(opened)] == ["curves", "memory_curves"]
