"""Checkpoints that a thread writes are those of a run that waits for them, also after kills and full disks."""

import errno
import os
import signal
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from memjax.durable_files import DiskFull
from memjax.training.checkpoint_writer import CheckpointWriter
from memjax.training.checkpoints import Checkpoints
from memjax.training.loop import StoppedBySignal
from tests.training.loop_test import Crash, assert_same_run, crash_at, make_experiment, run


class SlowCheckpoints(Checkpoints):
    """Checkpoints whose saves wait for `gate`, and write nothing."""

    def __init__(self, error=None):
        super().__init__("unused")
        self.gate, self.saved, self.error = threading.Event(), [], error

    def save(self, step, tree, *, extra):
        assert self.gate.wait(60)
        if self.error:
            raise self.error
        self.saved.append((step, tree["x"].tolist(), extra))


def test_a_save_copies_what_the_next_step_overwrites():
    checkpoints, array = SlowCheckpoints(), np.array([1.0, 2.0])
    writer = CheckpointWriter(checkpoints, in_background=True)
    writer.save(1, {"x": array}, extra="first")
    array[:] = 7
    assert not checkpoints.saved
    checkpoints.gate.set()
    writer.wait()
    assert checkpoints.saved == [(1, [1.0, 2.0], "first")]
    writer.close()


def test_an_error_is_raised_by_the_next_save_and_by_waiting():
    full = DiskFull(errno.ENOSPC, "no space is left on the disk", "checkpoints")
    for ask in (lambda writer: writer.wait(), lambda writer: writer.save(2, {"x": jnp.ones(1)}, extra=None)):
        checkpoints = SlowCheckpoints(full)
        checkpoints.gate.set()
        writer = CheckpointWriter(checkpoints, in_background=True)
        writer.save(1, {"x": jnp.ones(1)}, extra=None)
        with pytest.raises(DiskFull):
            ask(writer)
        writer.close()


def test_closing_waits_for_the_last_save(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    writer = CheckpointWriter(checkpoints, in_background=True)
    for step in (1, 2, 3):
        writer.save(step, {"x": jnp.full(3, step)}, extra={"step": step})
    writer.close()
    assert checkpoints.steps() == [2, 3] and checkpoints.load("")[1]["x"].tolist() == [3, 3, 3]
    checkpoints.close()


@pytest.mark.laws
def test_a_run_that_is_saved_in_the_background_is_that_of_one_that_waits(tmp_path):
    expected, _ = run(make_experiment(tmp_path / "whole"))
    result, _ = run(make_experiment(tmp_path / "beside", save_in_background=True))
    assert_same_run(result.path, expected.path)
    for step in (5, 9):  # some after the checkpoints 4 and 8
        with pytest.raises(Crash):
            run(make_experiment(tmp_path / "crashed", save_in_background=True), hooks=[crash_at(step)])
    result, events = run(make_experiment(tmp_path / "crashed"))  # the setting may change
    assert "going on after step 8" in [event.text for event in events]
    assert_same_run(result.path, expected.path)


@pytest.mark.laws
def test_a_signal_waits_until_the_checkpoint_is_complete(tmp_path):
    def stop(info):
        if info.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedBySignal):
        run(make_experiment(tmp_path, save_in_background=True), hooks=[stop])
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", read_only=True)
    assert checkpoints.steps()[-1] == 6
    checkpoints.close()
