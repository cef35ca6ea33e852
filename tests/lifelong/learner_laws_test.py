"""The laws of learners, for every method. A new method is one `Case` in `learner_cases.py`.

`make test` runs them for two methods, `make test-laws` for all.
"""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from memjax.config import AGEM, EWC, GEM, MAS, SI, Adam, EpisodicMemory, LwF, MbPA, Replay, Sequential
from memjax.data.example_batches import EXAMPLE
from memjax.lifelong.ea_emr import ALIGN, REHEARSE
from memjax.lifelong.elle import WARM_UP
from memjax.lifelong.emar import ACTIVATE, RECONSOLIDATE
from memjax.lifelong.factory import make_learner_and_stages
from memjax.lifelong.kept_examples import CHOSEN, kept_example_ids
from memjax.lifelong.lamol import num_samples
from memjax.lifelong.memory_backends import EPISODES
from memjax.lifelong.method_interface import make_method
from memjax.lifelong.update_streams import TASK
from memjax.training.experiment import make_experiment
from memjax.training.named_arrays import flatten
from memjax.training.stages import STREAM, do_nothing
from memjax.training.update_functions import make_objective
from tests.lifelong.learner_cases import (
    ALL,
    CAPACITY,
    CASE,
    CASES,
    SIZE,
    TASKS,
    arrays,
    assert_equal,
    config_of,
    flat,
    memory_of,
    play,
)

KEEPING = ("emar", "emar_flat", "emr", "ea_emr")
WRITING = ("lamol", "lamol_real")
"""what they keep is none of the stream, and what they read are tokens"""
READING = (*WRITING, "elle_grown")
"""tokens"""
USING = ("agem", "agem_sparse")
"""use borders between tasks where they are told, and do without them elsewhere"""
GROWING = ("elle", "elle_grown", "pnn")
OWN_ROWS = (ACTIVATE, RECONSOLIDATE, REHEARSE, ALIGN)
"""kinds of update that read what was read before"""
FAST = ("replay", "mbpa_pp")


def cases(*, vectors: bool = False) -> list:
    """All of them, or those that read numbers, of which one can be NaN."""
    marks = lambda name: [pytest.mark.xdist_group(f"learner {name}"), *([] if name in FAST else [pytest.mark.laws])]
    return [
        pytest.param(case.name, id=case.name, marks=marks(case.name))
        for case in CASES
        if not vectors or case.name not in READING
    ]


@pytest.fixture(scope="module")
def whole():
    """Name -> the stream played once, with its configuration."""
    done = {}

    def of(name):
        if name not in done:
            done[name] = play(config_of(CASE[name].method))
        return done[name]

    return of


@pytest.mark.parametrize("name", cases())
def test_one_stream_gives_one_state_and_each_kind_is_traced_once(whole, name):
    first, again = whole(name), play(config_of(CASE[name].method))
    assert_equal(first.state, again.state)
    # Once for its sums, and once as part of the program, which inlines it; likewise in every generation.
    assert {kind for kind, _ in first.updates} == set(first.learner.batch_shapes)
    assert len(first.traced) == {"elle_grown": 2, "pnn": 3}.get(name, 1) == len(first.lineage) + 1
    assert all(set(traced) == set(first.learner.batch_shapes) and max(traced.values()) <= 2 for traced in first.traced)
    assert not np.array_equal(flat(first.state.params), flat(first.places.init(first.places.new_variables()).params))


@pytest.mark.parametrize("name", cases())
def test_every_example_is_read_once_and_says_no_more_than_was_asked_for(whole, name):
    played = whole(name)
    read = [batch for kind, batch in played.updates if batch is not None and kind not in OWN_ROWS]
    ids = np.concatenate([np.ravel(batch.extras[EXAMPLE]) for batch in read])
    scored = np.concatenate([np.ravel(batch.weights.any(axis=-1)) for batch in read])
    assert np.array_equal(ids >= 0, scored)
    often = {"cumulative": (3, 2, 1), "joint_anew": (3, 2, 1)}.get(name, (1, 1, 1))
    wanted = np.repeat(np.arange(SIZE * TASKS), np.repeat(often, SIZE))
    assert sorted(ids[ids >= 0].tolist()) == wanted.tolist()
    told = make_method(CASE[name].method).needs.tasks_in_training
    assert all((TASK in batch.extras) == told for batch in read)


@pytest.mark.parametrize("name", cases())
def test_scoring_leaves_the_state_and_is_the_same_again(whole, name):
    played = whole(name)
    before = [leaf.copy() for leaf in arrays(played.state)]
    variables = played.learner.evaluation_variables(played.state, 0)
    scores = [
        played.learner.evaluators["task 0" if "task 0" in played.learner.evaluators else ""](variables).nats
        for _ in (0, 1)
    ]
    assert scores[0] == scores[1] and np.isfinite(scores[0])
    for old, new in zip(before, arrays(played.state), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("name", cases())
def test_what_stands_in_padding_changes_nothing_and_is_never_kept(whole, name):
    def disturbed(batch):
        gone = ~batch.weights.any(axis=-1)
        inputs = np.where(gone[..., None], 1e3, batch.inputs).astype(batch.inputs.dtype)
        return dataclasses.replace(batch, inputs=inputs, targets=np.where(gone[..., None], 1, batch.targets))

    played, noisy = whole(name), play(config_of(CASE[name].method), change=disturbed)
    memory, other = memory_of(played), memory_of(noisy)
    assert_equal(played.state.params, noisy.state.params)
    if memory is not None:
        assert int(memory.count) == int(other.count) and (name in WRITING or int(memory.offered) == SIZE * TASKS)
        assert_equal(memory.rows.inputs[: int(memory.count)], other.rows.inputs[: int(memory.count)])


@pytest.mark.parametrize(
    "name", [case for case in cases() if hasattr(CASE[case.id].method, "memory") or case.id == "gem"]
)
def test_only_what_was_offered_is_kept_with_its_key_and_within_the_capacity(whole, name):
    played = whole(name)
    memory = memory_of(played)
    count = int(memory.count)
    assert 0 < count <= memory.capacity and int(memory.written) <= int(memory.offered)
    offered = {}
    for _, batch in played.updates:
        if batch is not None:
            for place, number in np.ndenumerate(batch.extras[EXAMPLE]):
                offered[int(number)] = (batch.inputs[place], batch.targets[place])
    ids = np.asarray(memory.rows.extras[EXAMPLE])[:count]
    assert len(set(ids.tolist())) == count and set(ids.tolist()) <= set(range(SIZE * TASKS))
    for slot, number in enumerate(ids.tolist()):
        np.testing.assert_array_equal(memory.rows.inputs[slot], offered[number][0])
        np.testing.assert_array_equal(memory.rows.targets[slot], offered[number][1])
    if memory.keys is not None and "first" not in name:
        np.testing.assert_array_equal(memory.keys[:count], memory.rows.inputs[:count])


@pytest.mark.parametrize("name", cases(vectors=True))
def test_an_update_that_is_not_finite_keeps_the_state_and_is_counted_once(whole, name):
    played = whole(name)
    state = played.places.init(played.places.new_variables())
    update = next(batch for kind, batch in played.updates if kind == STREAM)
    bad = dataclasses.replace(update, inputs=np.full_like(update.inputs, np.nan))
    state, _ = played.places.update_inlined(state, (STREAM, update))
    kept = [leaf.copy() for leaf in arrays(dataclasses.replace(state, totals={}, restart=()))]
    skipped = float(state.totals["skipped"].total)
    state, _ = played.places.update_inlined(state, (STREAM, bad))
    assert float(state.totals["skipped"].total) == skipped + 1
    for old, new in zip(kept, arrays(dataclasses.replace(state, totals={}, restart=())), strict=True):
        np.testing.assert_array_equal(old, new)


BROKEN = ("loss", "parameters", "moments", "method", "host memory")
"""places of an update that get values which are not finite"""


def break_numbers(tree, value):
    """A tree whose arrays of real numbers hold `value` alone."""
    return jax.tree.map(lambda leaf: np.full_like(leaf, value) if is_real(leaf) else leaf, tree)


def is_real(leaf):
    return jax.numpy.issubdtype(leaf.dtype, np.floating)


def break_update(place, state, batch, value):
    """A state and a batch that are broken at a place. The host memory is broken by itself."""
    if place == "loss" and batch is not None:
        weights = np.array(batch.weights)
        weights.flat[0] = value
        return state, dataclasses.replace(batch, weights=weights)
    field = {"parameters": "params", "moments": "opt_state", "method": "method"}.get(place)
    return dataclasses.replace(state, **{field: break_numbers(getattr(state, field), value)}) if field else state, batch


@pytest.mark.parametrize("place", BROKEN)
@pytest.mark.parametrize("name", cases())
def test_what_is_not_finite_at_any_place_of_an_update_reaches_no_parameter(whole, name, place):
    """A loss, parameters or moments that are broken: the update is skipped. What the method keeps, such as rows and
    importances: it is skipped, or reads none of it.
    """
    played = whole(name)
    host = played.learner.host_arrays
    arrays_of_host = {key: np.copy(array) for key, array in host.arrays().items()}
    copied = lambda state: jax.tree.map(jax.numpy.copy, state)
    for kind, batch in {kind: batch for kind, batch in played.updates}.items():
        clean, sums = played.places.update_inlined(copied(played.state), played.places.put_update((kind, batch)))
        host.restore({key: np.copy(array) for key, array in arrays_of_host.items()})
        changes_nothing = all(map(np.array_equal, arrays(clean.params), arrays(played.state.params)))
        for value in (np.nan, np.inf):
            state, broken_batch = break_update(place, played.state, batch, value)
            if place == "host memory":
                host.restore(break_numbers({key: np.copy(array) for key, array in arrays_of_host.items()}, value))
            update = played.places.put_update((kind, broken_batch))
            after, sums = played.places.update_inlined(copied(state), update)
            host.restore({key: np.copy(array) for key, array in arrays_of_host.items()})
            skipped = float(sums["skipped"].total)
            is_broken = place in ("loss", "parameters") and (place, batch) != ("loss", None) and not changes_nothing
            is_broken |= place == "moments" and any(map(is_real, jax.tree.leaves(state.opt_state)))
            assert skipped == 1 or not is_broken, (kind, value)
            for old, new in zip(
                arrays((state.params, state.opt_state)), arrays((after.params, after.opt_state)), strict=True
            ):
                assert np.array_equal(old, new, equal_nan=True) if skipped else np.isfinite(new).all(), (kind, value)


@pytest.mark.laws
@pytest.mark.parametrize("name", [case.name for case in CASES if case.name not in WRITING])
def test_frozen_parameters_stay_under_weight_decay(name):
    training = {"optimizer": Adam(weight_decay=0.5), "frozen_parameters": ("layers_0/",)}
    played = play(config_of(CASE[name].method, training=training), stages=2)
    # Growth alone changes them, and stands before the updates of a stage.
    fresh = played.begun[-1].params if name in GROWING else played.places.new_variables()["params"]
    before, after = flatten(fresh), flatten(played.state.params)
    frozen = {path for path in before if "layers_0/" in path}
    assert frozen and all(np.array_equal(before[path], after[path]) for path in frozen)
    head = [path for path in before if {"head", "vocabulary"} & set(path.split("/"))]
    assert not np.array_equal(flat([before[path] for path in head]), flat([after[path] for path in head]))


@pytest.mark.laws
@pytest.mark.parametrize("name", ["elle", "elle_grown"])
def test_elle_recovers_on_rows_of_earlier_tasks_alone_with_an_optimiser_that_begins(whole, name):
    played = whole(name)
    runs = [(kind, len([*found])) for kind, found in itertools.groupby(kind for kind, _ in played.updates)]
    assert runs == [(STREAM, 3), *[(WARM_UP, 2), (STREAM, 3)] * 2]
    assert all(batch is None for kind, batch in played.updates if kind == WARM_UP)
    for task, state in ((1, played.begun[1]), (2, played.begun[3])):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state))  # counts and moments
        memory = state.method[EPISODES]
        ids = np.asarray(memory.rows.extras[EXAMPLE])[: int(memory.count)]
        assert len(ids) and (ids < SIZE * task).all() and len({int(one) // SIZE for one in ids}) == task
        # The task that comes next has not been read.
        assert int(memory.offered) == SIZE * task
    # The optimiser goes on from recovery to learning.
    assert any(np.any(leaf) for leaf in jax.tree.leaves(played.begun[2].opt_state))


MORE_KEEPING = {
    "replay_balanced_tasks": Replay(
        memory=EpisodicMemory(capacity=CAPACITY, write_policy="balanced", balance_by="task"), replay_batch_size=4
    ),
    "elle_share": dataclasses.replace(CASE["elle"].method, memory_fraction=0.15),
}
"""name -> methods under the law of stored rows alone"""
NUM_WRITTEN = lambda learned: num_samples(0.4, SIZE, min(learned, TASKS - 1))
MOST = {
    "gem": lambda learned: (4, 4 * TASKS),
    **dict.fromkeys(KEEPING, lambda learned: (4, 4 * learned)),
    "replay_balanced": lambda learned: (2 * -(-CAPACITY // (2 * learned)), CAPACITY),  # two classes a task
    "replay_balanced_tasks": lambda learned: (-(-CAPACITY // learned), CAPACITY),
    **dict.fromkeys(WRITING, lambda learned: (NUM_WRITTEN(learned) // min(learned, TASKS - 1), NUM_WRITTEN(learned))),
    "elle_share": lambda learned: (2, 2 * learned),
}
"""name -> the most rows of a task, and of all tasks, once so many were learned; others have a capacity alone"""
STORING = [
    *(case.name for case in CASES if hasattr(case.method, "memory") and "host" not in case.name),
    *(name for name in MOST if name not in MORE_KEEPING and name != "replay_balanced"),
    *MORE_KEEPING,
]


def stored_tasks(played, state):
    """The task of every row that a state stores."""
    if CHOSEN in state.method:
        return kept_example_ids(state) // SIZE
    memory = state.method.get(EPISODES)
    if memory is None:
        return np.zeros(0, np.int64)
    count = int(memory.count)
    if TASK in memory.rows.extras:
        return np.asarray(memory.rows.extras[TASK])[:count]
    ids = np.asarray(memory.rows.extras[EXAMPLE])[:count]
    if (ids < SIZE * TASKS).all():
        return ids // SIZE
    # Copies of rows have numbers of their own. What stands in them is that of one task.
    read = [batch for _, batch in played.updates if batch is not None]
    inputs = np.concatenate([batch.inputs.reshape(-1, batch.inputs.shape[-1]) for batch in read])
    numbers = np.concatenate([np.ravel(batch.extras[EXAMPLE]) for batch in read])
    stored = np.asarray(memory.rows.inputs)[:count]
    return np.array([numbers[(inputs == row).all(axis=1)].max() // SIZE for row in stored])


@pytest.mark.laws
@pytest.mark.parametrize("name", STORING)
def test_no_more_rows_of_a_task_are_kept_than_the_settings_say_after_any_stage(whole, name):
    played = play(config_of(MORE_KEEPING[name])) if name in MORE_KEEPING else whole(name)
    has_warm_ups = len(played.begun) == 2 * TASKS - 1
    ends = [*(played.begun[1::2] if has_warm_ups else played.begun[1:]), played.state]
    assert len(ends) == TASKS or name in KEEPING
    method = MORE_KEEPING[name] if name in MORE_KEEPING else CASE[name].method
    for number, state in enumerate(ends, start=1):
        learned = min(number, TASKS)
        most, most_of_all = MOST[name](learned) if name in MOST else (SIZE, method.memory.capacity)
        of_tasks = np.bincount(stored_tasks(played, state), minlength=TASKS)
        assert of_tasks.max() <= most and of_tasks.sum() <= most_of_all, (number, of_tasks)
    assert of_tasks.sum() > 0


@pytest.mark.laws
def test_gem_keeps_as_many_rows_of_a_task_as_it_says_and_keeps_them():
    played = play(config_of(GEM(examples_per_task=4)))
    kept: list[set[int]] = []
    for number, state in enumerate([*(state for state in played.begun[1:]), played.state], start=1):
        memory = state.method[EPISODES]
        ids = np.asarray(memory.rows.extras[EXAMPLE])[: int(memory.count)]
        of_tasks = [{int(one) for one in ids if one // SIZE == task} for task in range(number)]
        assert [len(of_task) for of_task in of_tasks] == [4] * number
        assert of_tasks[: number - 1] == kept
        kept = of_tasks


@pytest.mark.laws
def test_the_network_that_keys_come_from_never_changes(whole):
    played = whole("mbpa_first")
    assert_equal(played.state.method["key_network"], played.places.new_variables()["params"])


@pytest.mark.parametrize("name", cases())
def test_phases_stand_only_around_tasks_whose_borders_are_known(name):
    stages_of = lambda config: make_learner_and_stages(make_experiment(config), None, make_objective)[1]
    stages, untold = stages_of(config_of(CASE[name].method)), config_of(CASE[name].method, task_boundaries="sharp")
    has_phases = lambda stages: not all(stage.before is do_nothing and stage.after is do_nothing for stage in stages)
    if name in USING:
        assert has_phases(stages) and not has_phases(stages_of(untold))
    elif name in (
        "ewc",
        "ewc_online",
        "ewc_true",
        "mas",
        "si",
        "lwf",
        "logit_kd",
        "logit_kd_annealed",
        "single_task",
        "joint_anew",
        *KEEPING,
        *WRITING,
        *GROWING,
    ):
        assert has_phases(stages)
        with pytest.raises(ValueError, match="lifelong.task_boundaries: given 'sharp', allowed: 'known'"):
            stages_of(untold)
    else:
        assert not has_phases(stages)


@pytest.mark.laws
def test_the_path_of_si_has_the_gradient_of_the_rows_that_are_there():
    settings = SI(penalty_weight=1.0, damping=0.1)
    config = config_of(settings, tasks=1)
    config.data.batch_size = 2 * SIZE  # one update whose batch is half full, and weighs half
    played = play(config)
    rate = config.training.schedule.learning_rate
    before, after = flat(played.begun[0].params), flat(played.state.params)
    path = (after - before) ** 2 / (rate * 0.5)  # SGD: after - before = -rate * 0.5 * gradient
    expected = path / ((after - before) ** 2 + settings.damping)
    assert np.any(expected > 0.01)
    np.testing.assert_allclose(flat(played.state.method["si"]["around"].importance), expected, rtol=2e-5, atol=1e-9)


# Degenerate cases


def params_of(method, **fields):
    return flat(play(config_of(method, **fields)).state.params)


@pytest.mark.laws
def test_without_replay_sparse_replay_is_plain_training():
    plain = params_of(Sequential())
    np.testing.assert_array_equal(params_of(Replay(memory=ALL, mode="sparse", replay_interval=10**6)), plain)
    np.testing.assert_array_equal(params_of(AGEM(memory=ALL, projection_interval=10**6)), plain)


def adapted_nats(method):
    played = play(config_of(method))
    return (
        played.learner.evaluators["task 0"](played.learner.evaluation_variables(played.state, 0)).nats
        if "task 0" in played.learner.evaluators
        else played.learner.evaluators[""](played.learner.evaluation_variables(played.state, 0)).nats
    )


@pytest.mark.laws
def test_mbpa_without_replay_without_steps_and_with_all_of_the_memory():
    how = {
        "memory": ALL,
        "replay_batch_size": 4,
        "num_neighbors": 40,
        "adaptation_steps": 3,
        "adaptation_learning_rate": 0.1,
    }
    np.testing.assert_array_equal(
        adapted_nats(MbPA(replay_interval=10**6, **how)), adapted_nats(MbPA(replay_interval=0, **how))
    )
    # As many neighbours as there are rows: it does not matter how they are found.
    nearest, random = (
        adapted_nats(MbPA(replay_interval=8, neighbor_choice=kind, **how)) for kind in ("nearest", "random")
    )
    np.testing.assert_allclose(nearest, random, rtol=1e-5)
    sparse = Replay(memory=ALL, mode="sparse", replay_interval=8, replay_batch_size=4)
    np.testing.assert_array_equal(
        adapted_nats(MbPA(replay_interval=8, **{**how, "adaptation_steps": 0})), adapted_nats(sparse)
    )
    assert adapted_nats(MbPA(replay_interval=8, **how)) != adapted_nats(sparse)


@pytest.mark.laws
@pytest.mark.parametrize("name", ["replay_uncertain", "agem_sparse", "mbpa_pp", "mbpa_random"])
def test_a_memory_on_the_host_is_that_of_the_devices(name):
    method = CASE[name].method
    device, host = (
        play(config_of(dataclasses.replace(method, memory=dataclasses.replace(method.memory, storage=place))))
        for place in ("device", "host")
    )
    np.testing.assert_allclose(flat(device.state.params), flat(host.state.params), rtol=1e-6, atol=1e-7)
    one, other = memory_of(device), memory_of(host)
    assert (int(one.count), int(one.offered), int(one.written)) == (other.count, other.offered, other.written)
    assert_equal((one.rows, one.groups), (other.rows, other.groups))
    scores = [
        played.learner.evaluators[""](played.learner.evaluation_variables(played.state, 0)).nats
        for played in (device, host)
    ]
    np.testing.assert_allclose(*scores, rtol=1e-6)
    assert not flat(host.state.method["episodes"]).any()  # nothing is left between updates


@pytest.mark.laws
def test_gem_comes_to_the_same_with_all_gradients_at_once():
    found = [params_of(GEM(examples_per_task=4, cache_gradients=stored)) for stored in (False, True)]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
    assert not np.allclose(found[0], params_of(Sequential()), atol=1e-3)


@pytest.mark.laws
@pytest.mark.parametrize(
    "method",
    [EWC(), MAS(), SI(), LwF(), GEM(examples_per_task=4), GEM(examples_per_task=4, cache_gradients=True)],
    ids=lambda method: type(method).__name__,
)
def test_on_one_task_they_are_plain_training(method):
    plain = params_of(Sequential(), tasks=1)
    np.testing.assert_allclose(params_of(method, tasks=1), plain, atol=1e-6)


@pytest.mark.laws
@pytest.mark.parametrize(
    "method",
    [EWC(penalty_weight=0.0), MAS(penalty_weight=0.0), SI(penalty_weight=0.0), LwF(distillation_weight=0.0)],
    ids=lambda m: type(m).__name__,
)
def test_a_term_of_weight_0_is_in_the_program_and_changes_nothing(method):
    played, plain = play(config_of(method)), play(config_of(Sequential()))
    np.testing.assert_allclose(flat(played.state.params), flat(plain.state.params), atol=1e-6)
    batch = next(batch for kind, batch in plain.updates)
    size = lambda one: str(
        jax.make_jaxpr(one.learner.updates[STREAM])(dataclasses.replace(one.state, totals={}), batch)
    ).count("\n")
    assert size(played) > size(plain)
