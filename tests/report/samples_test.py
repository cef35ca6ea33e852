"""What runs write: pseudo-samples in lines, and the same prompt at every checkpoint."""

import numpy as np
import pytest

from memjax.config import TaskData
from memjax.lifelong import train
from memjax.report import charts, samples
from memjax.report.panel import OpenedRun
from memjax.report.samples import list_pseudo_samples, shorten
from tests.report.crafted import AFTER, crafted, parts_of, smoke

ENDS = [{**AFTER, "name": name, "step": 4 * (stage + 1), "stage": stage} for stage, name in enumerate("abc")]


def written(step, **kept):
    shares = {f"kept_{number}": share for number, share in enumerate(kept.values())}
    texts = {f"texts_{number}": [f"{name} ANS {i}" for i in range(10)] for number, name in enumerate(kept)}
    return {"kind": "generated", "step": step, "samples": 20 * len(kept), "seconds": 1.0, **shares, **texts}


LINES = [ENDS[0], written(4, a=0.5), ENDS[1], written(8, a=0.25, b=1.0), ENDS[2]]


def test_each_task_is_written_before_those_that_follow():
    found = list_pseudo_samples(LINES, ["a", "b", "c"])
    assert [row[:4] for row in found] == [("b", "a", 20, 0.5), ("c", "a", 20, 0.25), ("c", "b", 20, 1.0)]
    assert found[2][4][0] == "b ANS 0" and not list_pseudo_samples(ENDS, ["a"])


def test_pseudo_samples_are_counted_and_shown(tmp_path, monkeypatch):
    config = smoke("lifelong_lamol", tmp_path)
    config.lifelong.tasks = tuple(TaskData(name=name, source=config.data.source) for name in "abc")
    monkeypatch.setattr(samples, "_outputs_by_checkpoint", lambda run: None)
    parts = parts_of(samples.panels(crafted(tmp_path / "run", config, LINES)))
    assert [*parts] == ["pseudo_share", "pseudo_written", "pseudo_texts"]
    assert len(parts["pseudo_written"].rows) == 3 and len(parts["pseudo_texts"].rows) == 3 * samples.TEXTS
    assert parts["pseudo_texts"].rows[0] == ("b", "a", "a ANS 0")


def test_texts_are_one_line_of_what_can_be_printed():
    assert shorten("a\n\tb\x00") == "a b\ufffd" and len(shorten("x" * 999)) == samples.LETTERS


def test_images_are_a_row_of_each_checkpoint():
    drawn = {f"{step} updates": np.full((samples.IMAGES, 3, 3), step, np.uint8) for step in (1, 200)}
    with charts.new_figure() as figure:
        samples._draw_images(figure, drawn)
        assert len(figure.axes) == 2 * samples.IMAGES and figure.axes[0].get_title(loc="left") == "1 updates"


def test_runs_that_answer_with_classes_write_nothing(tmp_path):
    assert not [*samples.panels(crafted(tmp_path, smoke("lifelong_mnist", tmp_path), ENDS))]


@pytest.mark.slow
def test_every_checkpoint_answers_the_same_question(tmp_path):
    run = OpenedRun(str(train(smoke("lifelong_lamol", tmp_path), on_event=lambda event: None).path))
    table = parts_of(samples.panels(run))["samples_answers"]
    assert [row[0] for row in table.rows if row[0]] == ["copy", "reverse"]
    assert [row[1] for row in table.rows[:4]] == [
        "question",
        "correct",
        "4 updates, after copy",
        "8 updates, after reverse",
    ]


@pytest.mark.slow
def test_every_checkpoint_goes_on_from_the_same_prompt(tmp_path):
    config = smoke("transformer_xl_python", tmp_path)
    config.training.checkpoint_every = config.training.steps // 2
    run = OpenedRun(str(train(config, on_event=lambda event: None).path))
    table = parts_of(samples.panels(run))["samples_texts"]
    assert [row[0] for row in table.rows] == ["2 updates", "4 updates"] and all(row[1] for row in table.rows)
    assert run.loaded_run.experiment.task.verbs == ("generate",) and table.caption.startswith("Up to 48 tokens")
