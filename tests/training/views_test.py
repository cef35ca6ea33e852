"""Metrics elsewhere: event files of TensorBoard, and what is told to Weights & Biases."""

import sys
from types import SimpleNamespace

import pytest

from memjax.config import Config, Training
from memjax.training.views import WANDB_ID, TensorBoard, open_views

LINE = {"nats_per_token": 2.0, "split": "validation", "done": True, "none": None}


class Wandb:
    """Stands in for the package: keeps what it is told."""

    def __init__(self):
        self.opened, self.logged, self.finished = [], [], 0

    def init(self, **settings):
        self.opened.append(settings)
        return SimpleNamespace(
            define_metric=lambda *_, **__: None, log=self.logged.append, finish=lambda: self.__dict__.update(finished=1)
        )


def test_tensorboard_is_a_view(tmp_path):
    board = TensorBoard(tmp_path, after_step=0)
    board.write("train", 20, LINE)
    board.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    content = file.read_bytes()
    assert b"train/nats_per_token" in content and b"train/split" not in content and b"train/done" not in content


def test_weights_and_biases_gets_numbers_and_every_attempt_is_one_run(tmp_path, monkeypatch):
    told = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", told)
    config = Config(training=Training(wandb_project="memory", steps=3))
    for _ in range(2):
        (view,) = open_views(config, tmp_path, 0)
        view.write("train", 20, LINE)
        view.close()
    assert told.logged == 2 * [{"step": 20, "train/nats_per_token": 2.0}] and told.finished
    first, second = told.opened
    assert first == second and first["id"] == (tmp_path / WANDB_ID).read_text() and len(first["id"]) == 8
    assert (first["project"], first["resume"], first["dir"]) == ("memory", "allow", str(tmp_path))
    assert first["config"]["training"]["steps"] == 3


def test_without_the_package_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ValueError, match=r"^training.wandb_project: given 'x', but wandb is missing; pip install 'memjax\[w"
    ):
        open_views(Config(training=Training(wandb_project="x")), tmp_path, 0)
    assert open_views(Config(), tmp_path, 0) == [] and not (tmp_path / WANDB_ID).exists()
