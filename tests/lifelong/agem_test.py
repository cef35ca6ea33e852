"""A-GEM: the tasks whose stored rows are its reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.cli import main
from memjax.config import AGEM, EpisodicMemory
from memjax.data.example_batches import EXAMPLE
from memjax.lifelong.factory import make_learner_and_stages
from memjax.lifelong.memory_backends import EPISODES, replay_key
from memjax.lifelong.task_references import EARLIER_ROWS
from memjax.training.experiment import make_experiment
from memjax.training.stages import PhaseContext
from memjax.training.update_functions import make_objective
from tests.lifelong.learner_cases import ALL, SIZE, assert_equal, config_of, flat, play


def with_broken_task(state, task):
    """The state whose stored rows of one task are not finite."""
    memory = state.method[EPISODES]
    of_task = (jnp.arange(memory.capacity) < memory.count) & (memory.rows.extras[EXAMPLE] // SIZE == task)
    assert int(of_task.sum()) == SIZE
    inputs = jnp.where(of_task[:, None], jnp.nan, memory.rows.inputs)
    broken = dataclasses.replace(memory, rows=dataclasses.replace(memory.rows, inputs=inputs))
    return dataclasses.replace(state, method={**state.method, EPISODES: broken})


@pytest.mark.laws
@pytest.mark.parametrize(
    ("boundaries", "chosen", "read"),
    [
        ({}, None, (0, 1)),
        ({}, "earlier", (0, 1)),
        ({}, "all", (0, 1, 2)),
        ({"task_boundaries": "sharp"}, None, (0, 1, 2)),
        ({"task_boundaries": "sharp"}, "all", (0, 1, 2)),
        ({"task_boundaries": "blurred", "blur_width": 4}, None, (0, 1, 2)),
        ({"task_boundaries": "mixed"}, None, (0, 1, 2)),
    ],
)
def test_the_reference_has_rows_of_these_tasks_in_the_third_one(boundaries, chosen, read):
    method = AGEM(memory=ALL, reference_batch_size=64, reference_tasks=chosen)  # 64 draws of 30 rows miss no task
    played = play(config_of(method, **boundaries))
    copied = lambda: jax.tree.map(jnp.copy, played.state)
    update = played.places.put_update(played.updates[-1])
    clean, _ = played.places.update_inlined(copied(), update)
    for task in (0, 1, 2):
        after, sums = played.places.update_inlined(with_broken_task(copied(), task), update)
        is_read = float(sums["skipped"].total) == 1
        assert is_read == (task in read), task
        if not is_read:
            assert_equal(after.params, clean.params)


@pytest.mark.laws
def test_nothing_is_projected_in_the_first_task_and_something_in_the_second():
    method = AGEM(memory=ALL, reference_batch_size=64, reference_tasks="earlier")
    never = dataclasses.replace(method, projection_interval=10**6)
    for stages, is_projected in ((1, False), (2, True)):
        projected, plain = (flat(play(config_of(each), stages=stages).state.params) for each in (method, never))
        assert np.array_equal(projected, plain) != is_projected, stages


def test_rows_of_earlier_tasks_are_refused_where_borders_are_not_told(capsys, tmp_path):
    allowed = "'known' with lifelong.method.reference_tasks 'earlier'"
    line = f"task-boundaries: given 'sharp', allowed: {allowed}"
    with pytest.raises(ValueError, match=f"lifelong.task_boundaries: given 'sharp', allowed: {allowed}"):
        make_experiment(config_of(AGEM(reference_tasks="earlier"), task_boundaries="sharp"))
    options = ["--method", "agem", "--lifelong.method.reference-tasks", "earlier"]
    options += ["--lifelong.task-boundaries", "sharp", "--workdir", str(tmp_path)]
    assert main(["train", "--config", "lifelong_text", "--variant", "smoke", *options]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert line in said and not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_forgotten_answers_are_counted_for_the_rows_that_were_drawn():
    """A-GEM chooses rows of earlier tasks: the counts of others, of the task itself, do not change."""
    method = AGEM(memory=EpisodicMemory(capacity=12, write_policy="forgettable"), reference_batch_size=8)
    config = config_of(method)
    played, (_, course) = play(config, stages=2), make_learner_and_stages(make_experiment(config), None, make_objective)
    places, stage = played.places, course[2]
    context = PhaseContext(jax.random.key(0), lambda: iter(()), (), lambda: None, lambda line: None, None)
    state, changed = places.adopt_state(stage.before(played.state, context).state, grown=False), set()
    for update in stage.open_stream(state, None):
        before = jax.device_get(state.method[EPISODES])
        drawn = EARLIER_ROWS.draw(state.method, state.method[EPISODES], replay_key(state), 8)
        state, _ = places.update_inlined(state, places.put_update(update))
        after = jax.device_get(state.method[EPISODES])
        stays = before.rows.extras[EXAMPLE] == after.rows.extras[EXAMPLE]
        differs = {int(slot) for slot in np.flatnonzero(stays & (before.scores != after.scores))}
        assert differs <= {*np.asarray(drawn).tolist()}
        changed |= differs
    assert changed
