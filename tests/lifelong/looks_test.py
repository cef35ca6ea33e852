"""Which checkpoints of a run over tasks are looked at afterwards."""

import pytest

from memjax.lifelong import looks
from memjax.training.stages import GROWTH, Position

GROWN_ONCE = ({GROWTH: {"embed": [0], "heads": [[0]], "mlp": [[0]], "layers": [0]}},)


def extras_of(*lineages):
    """Checkpoints, one after each update, of so many lineages."""
    positions = [Position(update, 0, "steps", (9,)) for update in range(len(lineages))]
    return {
        at.checkpoint_number: {"position": at.to_dict(), "lineage": one}
        for at, one in zip(positions, lineages, strict=True)
    }


def test_the_ends_of_each_generation_are_looked_at(monkeypatch):
    extras = extras_of((), (), GROWN_ONCE, GROWN_ONCE, GROWN_ONCE, GROWN_ONCE * 2)
    monkeypatch.setattr(looks, "checkpoint_extras", lambda run: extras)
    found, growths = looks.generation_checkpoints("run")
    assert list(map(str, found)) == ["0_0", "0_1", "1_2", "1_4", "2_5"] and len(growths) == 2
    named = [f"{one} {other}" for one, other in looks.ancestor_pairs(found)]
    assert named == ["0_1 1_2", "0_1 1_4", "0_1 2_5", "1_4 2_5"]


@pytest.mark.parametrize(
    ("lineages", "line"),
    [
        ((GROWN_ONCE, GROWN_ONCE), "of 1 generation, allowed: .*--training.keep-checkpoints 99"),
        (((), ({"lifelong.method.num_columns": 2},)), "which has not grown by copies, allowed: a run of ELLE"),
    ],
)
def test_runs_without_ancestors_are_refused(monkeypatch, lineages, line):
    monkeypatch.setattr(looks, "checkpoint_extras", lambda run: extras_of(*lineages))
    with pytest.raises(ValueError, match=f"run: given run, .*{line}"):
        looks.generation_checkpoints("run")


def test_the_last_checkpoint_of_a_task_is_that_of_its_end():
    after = {"kind": "evaluation", "phase": "after", "name": "a"}
    lines = [
        {"kind": "train", "step": 4},
        {**after, "phase": "before", "step": 0},
        {**after, "step": 4},
        {**after, "step": 9, "stage": 2},
        {**after, "step": 9, "stage": 2, "name": "b"},
    ]
    # Stage 0 ends with the checkpoint before stage 1, 4 + 3 - 1; stage 2 with 9 + 9 - 1.
    kept = [2, 4, 5, 6, 8, 14, 15, 17]
    assert looks.task_end_checkpoints(lines, kept) == {0: 6, 1: 17}
    assert looks.task_end_checkpoints(lines, [15]) == {1: 15} and looks.task_end_checkpoints(lines[:1], kept) == {}
