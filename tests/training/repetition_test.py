"""A process that trains, is interrupted and goes on, many times, takes no more memory than one that does so once.

Every compiled program takes some of the 65,530 memory maps that Linux allows a process.
"""

import dataclasses
import gc
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from memjax import config as configs
from memjax.training import StoppedBySignal, train
from memjax.training.skipped import NonFiniteError
from tests.freeing import MAPS, count_maps

pytestmark = pytest.mark.skipif(not MAPS.exists(), reason="this system does not list memory maps")


def toy_config(workdir, **training):
    """A model with a memory that trains in a second."""
    return configs.Config(
        name="run",
        workdir=str(workdir),
        model=configs.Model(
            dim=8, num_layers=1, num_heads=2, head_dim=4, attention=configs.TransformerXL(memory_length=8)
        ),
        data=configs.Data(
            source=configs.KeyValueRecall(num_documents=16, filler_length=4, num_pairs=2),
            batch_size=2,
            segment_length=8,
        ),
        training=configs.Training(steps=4, log_every=1, checkpoint_every=2, evaluate_every=2, **training),
        evaluation=configs.Evaluation(batch_size=2),
    )


def raise_in(error):
    """A hook that raises at the third step."""

    def hook(info):
        if info.step == 3:
            raise error

    return hook


def interrupt(info):
    """Sends this process the signal of a key press at the second step."""
    if info.step == 2:
        os.kill(os.getpid(), signal.SIGINT)


def spoil(info):
    """Makes the parameters infinite."""
    info.state = dataclasses.replace(info.state, params=jax.tree.map(lambda leaf: leaf + jnp.inf, info.state.params))


def nothing(info):
    """A training that ends well."""


ENDS = [
    (nothing, None),
    (raise_in(RuntimeError), RuntimeError),
    (raise_in(KeyboardInterrupt), KeyboardInterrupt),
    (interrupt, StoppedBySignal),
    (spoil, NonFiniteError),
]


def train_until(workdir, hook, error):
    """Trains in a folder and returns what was raised, which must be an `error`."""
    config = toy_config(workdir, max_skipped_steps=2)
    if error is None:
        train(config, hooks=[hook], on_event=lambda event: None)
        return None
    with pytest.raises(error) as raised:
        train(config, hooks=[hook], on_event=lambda event: None)
    return raised.value


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.laws
def test_programs_wait_for_nothing(tmp_path):
    """Neither for the collector of cycles nor for exceptions that are kept, as those of a sweep."""
    gc.collect()
    gc.disable()
    try:
        exceptions, counts = [], []
        for number in range(3):
            exceptions.append(train_until(tmp_path / str(number), *ENDS[1]))
            counts.append(count_maps())
    finally:
        gc.enable()
    assert counts[2] - counts[1] < 30, counts  # The first training also makes programs of single operations.


@pytest.mark.slow
def test_fifty_trainings_take_no_more_than_five(tmp_path):
    sizes = []
    for number in range(50):
        hook, error = ENDS[number % len(ENDS)]
        workdir = tmp_path / str(number)
        raised = train_until(workdir, hook, error)
        if isinstance(raised, StoppedBySignal):  # The same command goes on.
            train_until(workdir, *ENDS[0])
        sizes.append((count_maps(), resident_bytes()))
    (maps, resident), (maps_in_the_end, resident_in_the_end) = sizes[4], sizes[-1]
    assert maps_in_the_end < 1.1 * maps, sizes
    assert resident_in_the_end < 1.1 * resident, sizes
    print(f"maps {maps} -> {maps_in_the_end}, resident {resident / 2**20:.0f} -> {resident_in_the_end / 2**20:.0f} MiB")
