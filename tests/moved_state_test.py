"""A state that was saved goes on in another process, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.contract.cases import CASES
from tests.contract.harness import LENGTH, Run, prefix_mask, starts

ROTARY = [case.name for case in CASES if "rotary" in case.name]
OTHERS = [case.name for case in CASES if case.name not in ROTARY and not case.is_variant]
NEW, LENGTHS = starts(False, True, False), prefix_mask(LENGTH, 2, LENGTH)
"""rows that start a document in the segment that is read after the move, and its real tokens"""


def save(file: Path, tree) -> None:
    np.savez(file, *map(np.asarray, jax.tree.leaves(tree)))


def load(file: Path, like):
    """The leaves of a file in the tree of `like`."""
    with np.load(file) as leaves:
        found = [jax.device_put(leaves[name]) for name in leaves.files]
    return jax.tree.unflatten(jax.tree.structure(like), found)


def go_on(run: Run, state):
    """What a segment gives after a state: the output and the next state."""
    return run.forward(run.xs(2)[1], state, start=NEW, mask=LENGTHS)[:2]


def continue_all(folder: Path, names: list[str]) -> None:
    """Reads each state of a folder, and writes what comes after it."""
    for name in names:
        run = Run(next(case for case in CASES if case.name == name))
        state = load(folder / f"{name}.npz", run.init_state())
        save(folder / f"{name}-next.npz", go_on(run, state))


@pytest.mark.parametrize(
    "names", [pytest.param(ROTARY, marks=pytest.mark.laws), pytest.param(OTHERS, marks=pytest.mark.slow)],
    ids=["rotary", "others"],
)  # fmt: skip
def test_state_goes_on_in_another_process(names, tmp_path):
    expected = {}
    for name in names:
        run = Run(next(case for case in CASES if case.name == name))
        state = run.used_state()
        save(tmp_path / f"{name}.npz", state)
        expected[name] = go_on(run, state)
        assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(state)) or not jax.tree.leaves(state)
    root = Path(__file__).parents[1]
    command = (
        f"import pathlib, tests.moved_state_test as moved; moved.continue_all(pathlib.Path({str(tmp_path)!r}), {names})"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", command], check=True, cwd=root, env=environment)
    for name in names:
        found = load(tmp_path / f"{name}-next.npz", expected[name])
        for here, there in zip(jax.tree.leaves(expected[name]), jax.tree.leaves(found), strict=True):
            np.testing.assert_array_equal(np.asarray(here), np.asarray(there), err_msg=name)
