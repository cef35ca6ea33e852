"""Which examples and which updates a stream has: counted before it begins, and gone on with where it was stopped."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memjax.cli import main
from memjax.config import EWC, GEM, LAMOL, EpisodicMemory, Lifelong, MbPA, Replay, Sequential
from memjax.data.batch_iterator import merge_positions
from memjax.data.example_batches import EXAMPLE
from memjax.data.reading_plan import ReadingPlan
from memjax.data.vectors import LabelledVectors, VectorArrays
from memjax.lifelong import train
from memjax.lifelong.factory import load_run, make_learner_and_stages, make_method
from memjax.lifelong.method_interface import concatenate_tasks, task_stages
from memjax.lifelong.update_streams import (
    TASK,
    EpisodeSchedule,
    JoinedExamples,
    ReplaySchedule,
    StreamPlan,
    TaskSlice,
    task_free_order,
)
from memjax.settings.checks import validate
from memjax.training import read_metrics
from memjax.training.experiment import make_experiment
from memjax.training.stages import STREAM
from memjax.training.update_functions import make_objective
from tests.lifelong.learner_cases import ALL, CASE, TASKS, assert_equal, config_of, play
from tests.training.loop_test import Crash, assert_same_run, crash_at

ROWS = 4


def examples(size, first=0):
    values = np.arange(first, first + size, dtype=np.float32)[:, None] + np.zeros(3, np.float32)
    vectors = VectorArrays(values, np.zeros(size, np.int32), np.arange(size), classes=(0,))
    return LabelledVectors(vectors, length=3, num_classes=2)


def joined(*sizes, **fields):
    starts = itertools.accumulate(sizes, initial=0)
    parts = [
        TaskSlice(examples(size, first), i, first) for i, (size, first) in enumerate(zip(sizes, starts, strict=False))
    ]
    return JoinedExamples(parts, **fields)


def stream_of(split, plan, position=None, host_rows=None):
    reading = ReadingPlan(rows=plan.rows, segment_length=3)
    batches = reading.stream(split, epochs=plan.epochs, position=position, host_rows=host_rows, seed=1)
    return plan.stream(batches, position)


def ids_of(updates):
    found = np.concatenate([np.ravel(batch.extras[EXAMPLE]) for _, batch in updates if batch is not None])
    return found[found >= 0].tolist()


@pytest.mark.parametrize(
    "size, epochs, every, seen", [(10, 1, 4, 0), (10, 3, 5, 7), (8, 2, 4, 2), (3, 1, 100, 98), (7, 1, 0, 0)]
)
@pytest.mark.parametrize("reads", [False, True])
def test_a_plan_counts_what_its_stream_gives(size, epochs, every, seen, reads):
    plan = StreamPlan(size, ROWS, epochs, seen, ReplaySchedule(every, "other", reads))
    updates = list(stream_of(joined(size), plan))
    assert len(updates) == plan.updates
    assert sorted(ids_of(updates)) == sorted([*range(size)] * epochs)
    read = [batch for _, batch in updates if batch is not None]
    counts = [int(batch.weights.any(axis=-1).sum()) for batch in read]
    assert counts == [plan.count(i) for i in range(plan.batches)] and sum(counts) == plan.total
    assert [plan.examples_before(i) for i in range(plan.batches)] == [sum(counts[:i]) for i in range(plan.batches)]
    others = [kind for kind, _ in updates if kind != STREAM]
    wanted = (seen + plan.total) // every - seen // every if every else 0
    assert len(others) == plan.schedule.count_due(plan, plan.batches) == wanted
    assert all((batch is not None) == reads for kind, batch in updates if kind != STREAM)


def test_replays_are_counted_in_examples_whatever_the_batch():
    for rows in (1, 3, 4, 7):
        plan = StreamPlan(100, rows, 1, 0, ReplaySchedule(10))
        assert sum(plan.update(number).kind != STREAM for number in range(plan.updates)) == 10


EPISODES = EpisodeSchedule(every=4, steps=1, keeps_last=True)


@pytest.mark.parametrize(
    "size, epochs, steps, every", [(10, 1, 1, 4), (10, 3, 2, 5), (8, 2, 0, 4), (3, 1, 5, 100), (23, 1, 2, 0)]
)
@pytest.mark.parametrize("keeps_last", [False, True])
def test_episodes_read_every_batch_once_with_the_query_behind_what_it_is_adapted_to(
    size, epochs, steps, every, keeps_last
):
    plan = StreamPlan(size, ROWS, epochs, 1, EpisodeSchedule(every, steps=steps, keeps_last=keeps_last))
    updates = list(stream_of(joined(size), plan))
    assert [kind for kind, _ in updates] == [plan.update(number).kind for number in range(plan.updates)]
    lengths = [0 if batch is None else len(batch.inputs) for _, batch in updates]
    assert lengths == [steps + (kind == STREAM) for kind, _ in updates]
    plain = list(stream_of(joined(size), StreamPlan(size, ROWS, epochs, 0, ReplaySchedule())))
    read = ids_of(updates) if any(lengths) else []
    assert read == ids_of(plain)[: len(read)] and len(read) == size * epochs - plan.left_out
    for number, (_, batch) in enumerate(updates):
        real = plan.update(number).reads
        if batch is not None:  # what a last episode lacks stands in front
            assert not batch.weights[: len(batch.inputs) - real].any() and batch.weights[-1].any()


@pytest.mark.parametrize(
    "schedule", [ReplaySchedule(6), ReplaySchedule(2), EPISODES], ids=["updates", "often", "episodes"]
)
@pytest.mark.parametrize("stop", range(8))
def test_a_stream_goes_on_with_the_update_that_would_have_come_next(stop, schedule):
    plan, split = schedule.plan(10, ROWS, 2, None), joined(6, 4)
    whole = stream_of(split, plan)
    first = list(itertools.islice(whole, stop))
    rest = list(stream_of(split, plan, whole.position))
    again = list(stream_of(split, plan))
    assert [kind for kind, _ in first + rest] == [kind for kind, _ in again]
    assert ids_of(first + rest) == ids_of(again) if first else True


@pytest.mark.parametrize(
    "schedule", [ReplaySchedule(6), ReplaySchedule(2), EPISODES], ids=["updates", "often", "episodes"]
)
def test_hosts_with_rows_of_their_own_read_one_stream(schedule):
    plan, split = schedule.plan(14, ROWS, 1, None), joined(14)
    halves = [stream_of(split, plan, host_rows=rows) for rows in ((0, 2), (2, 4))]
    found = [list(itertools.islice(half, 2)) for half in halves]
    position = merge_positions([half.position for half in halves])
    rest = list(stream_of(split, plan, position))
    whole = list(stream_of(split, plan))
    assert [kind for kind, _ in found[0]] == [kind for kind, _ in whole[:2]]
    assert sorted(ids_of([*found[0], *found[1], *rest])) == [*range(14)]
    assert ids_of(rest) == ids_of(whole[2:])


def test_examples_have_numbers_of_their_own_and_say_their_task_where_it_is_told():
    both = joined(3, 2, tells_task=True)
    context = [both.example(i).context for i in range(5)]
    assert [int(one[EXAMPLE]) for one in context] == [*range(5)] and [int(one[TASK]) for one in context] == [
        0,
        0,
        0,
        1,
        1,
    ]
    assert TASK not in joined(3, 2).example(4).context
    assert both.fingerprint != joined(3, 2).fingerprint != joined(2, 3).fingerprint
    with pytest.raises(ValueError, match="lifelong.tasks.1: no examples"):
        JoinedExamples([TaskSlice(examples(3), 0, 0), TaskSlice(_Empty(), 1, 3)])


class _Empty(LabelledVectors):
    def __init__(self):
        pass

    def __len__(self):
        return 0


def test_borders_are_sharp_blurred_over_a_width_or_gone():
    sizes = (100, 100, 100)
    task = np.repeat(range(3), sizes)
    sharp, blurred, mixed = (task[task_free_order(sizes, width=width, seed=2)] for width in (0, 40, np.inf))
    assert (sharp == task).all()
    changed = np.flatnonzero(blurred != task)
    assert 10 < len(changed) and np.all(np.abs((changed + 50) % 100 - 50) <= 40)
    assert (mixed != task).mean() > 0.5
    for order in (sharp, blurred, mixed):
        assert np.bincount(order).tolist() == [100, 100, 100]
    assert not np.array_equal(task_free_order(sizes, width=0, seed=2), task_free_order(sizes, width=0, seed=3))


def test_the_same_examples_in_another_container_give_the_same_batches():
    order = task_free_order((6, 4), width=3, seed=0)
    one, other = joined(6, 4, order=order), joined(10, order=order)
    plan = StreamPlan(10, ROWS, 1, 0, ReplaySchedule())
    for (_, a), (_, b) in zip(stream_of(one, plan), stream_of(other, plan), strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)


def test_tasks_are_learned_in_the_order_that_is_given():
    config = config_of(Sequential(), task_order=(2, 0, 1))
    make_learner, stages = make_learner_and_stages(make_experiment(config), None, make_objective)
    learner = make_learner(())
    state = learner.init(learner.make_variables())
    assert [stage.name for stage in stages] == ["task 2", "task 0", "task 1"]
    first = [batch.targets for _, batch in stages[0].open_stream(state, None)]
    assert {4, 5} == set(np.ravel(first[0]).tolist())


def test_a_stream_without_borders_is_one_stage_of_all_examples():
    config = config_of(Sequential(), task_boundaries="blurred", blur_width=4)
    make_learner, (stage,) = make_learner_and_stages(make_experiment(config), None, make_objective)
    learner = make_learner(())
    updates = list(stage.open_stream(learner.init(learner.make_variables()), None))
    assert len(updates) == stage.steps == 8 and sorted(ids_of(updates)) == [*range(10 * TASKS)]


@pytest.mark.parametrize(
    "method, fields, line",
    [
        (
            GEM(examples_per_task=4),
            {"task_boundaries": "sharp"},
            "lifelong.task_boundaries: given 'sharp', allowed: 'known', GEM needs to know the task",
        ),
        (
            EWC(),
            {"task_boundaries": "mixed"},
            "lifelong.task_boundaries: given 'mixed', allowed: 'known', EWC needs to know where tasks",
        ),
        (
            Replay(),
            {"epochs": 0, "training": {"steps": 9}},
            "lifelong.epochs: given 0, allowed: at least 1, Replay counts examples",
        ),
        (
            LAMOL(sample_ratio=0.0),
            {"epochs": 0, "training": {"steps": 9}},
            "lifelong.epochs: given 0, allowed: at least 1, LAMOL counts examples",
        ),
        (Sequential(), {"task_boundaries": "blurred"}, "lifelong.blur_width: given 0, allowed"),
        (MbPA(replay_interval=3), {}, "lifelong.method.replay_interval: given 3, allowed: 0, or the 4 rows of a batch"),
        (
            Replay(memory=EpisodicMemory(write_policy="diversity")),
            {},
            "memory.write_policy: given 'diversity', allowed: another one",
        ),
        (
            Replay(memory=EpisodicMemory(key_search="scann")),
            {},
            "lifelong.method.memory.key_search: given 'scann', allowed: 'exact' unless storage is 'host'",
        ),
        (Replay(memory=EpisodicMemory(capacity=0)), {}, "lifelong.method.memory.capacity: given 0, allowed"),
        (
            MbPA(replay_interval=4, key_distance="inner_product", neighbor_weighting="inverse_distance"),
            {},
            "method.neighbor_weighting: given 'inverse_distance', allowed: 'uniform' or 'softmax' with key_distance",
        ),
        (
            MbPA(replay_interval=4, neighbor_choice="random", neighbor_weighting="softmax"),
            {},
            "lifelong.method.neighbor_weighting: given 'softmax', allowed: 'uniform' with neighbor_choice 'random'",
        ),
        (
            Sequential(),
            {"task_order": (0, 0, 2)},
            "lifelong.task_order: given .0, 0, 2., allowed: each of .0, 1, 2. once",
        ),
        (Sequential(), {"tasks": 0}, "lifelong.tasks: given .., allowed: at least one task"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(method, fields, line):
    config = config_of(method, **fields)
    with pytest.raises(ValueError, match=line) as refused:  # noqa: PT012 (either may refuse)
        validate(config)
        make_learner_and_stages(make_experiment(config), None, make_objective)
    assert "\n" not in str(refused.value)


def notes_of(memory, **fields):
    config = config_of(Replay(memory=memory), **fields)
    return [stage.notes for stage in make_learner_and_stages(make_experiment(config), None, make_objective)[1]]


def test_a_memory_that_is_full_early_says_from_where_on():
    line = "lifelong.method.memory.capacity: full after 12 rows, of task 1; rows that come later are not kept"
    assert notes_of(EpisodicMemory(write_policy="all", capacity=12), epochs=1) == [[], [line], []]
    assert notes_of(EpisodicMemory(write_policy="random", write_probability=0.5, capacity=6), epochs=1) == [
        [],
        [line],
        [],
    ]
    quiet = (
        EpisodicMemory(write_policy="all", capacity=30),
        EpisodicMemory(write_policy="all", capacity=12, when_full="ring"),
    )
    for memory in (*quiet, EpisodicMemory(write_policy="reservoir", capacity=12)):
        assert not any(notes_of(memory, epochs=1))


def test_a_memory_that_keeps_copies_says_so():
    first, *others = notes_of(EpisodicMemory(write_policy="all", capacity=90), epochs=3)
    assert len(first) == 1 and "kept 3 times" in first[0] and "probability 0.33" in first[0] and not any(others)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["mbpa_pp", "mbpa_host", "replay_host", "replay_balanced", "agem_sparse", "gem", "si", "logit_kd"]
    + ["oml", "oml_host", "maml_second", "meta_mbpa_diverse"],
)
@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_run_killed_within_a_task_or_at_its_border_goes_on_bit_for_bit(tmp_path, name, step):
    """With the memory half full; batches are 3 a task."""

    def of(folder):
        config = config_of(CASE[name].method, epochs=1, training={"log_every": 2, "checkpoint_every": 1})
        return dataclasses.replace(config, workdir=str(tmp_path / folder))

    silent = {"on_event": lambda event: None}
    whole = train(of("whole"), **silent)
    with pytest.raises(Crash):
        train(of("again"), hooks=[crash_at(step)], **silent)
    again = train(of("again"), **silent)
    assert_same_run(again.path, whole.path)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["device", "host"])
def test_a_run_opened_again_is_scored_as_it_was_in_training(tmp_path, place):
    """MbPA++ adapts to the neighbours of each query: also from the directory alone."""
    method = MbPA(
        memory=dataclasses.replace(ALL, storage=place),
        replay_interval=8,
        replay_batch_size=4,
        num_neighbors=4,
        adaptation_steps=5,
        adaptation_learning_rate=0.5,
    )
    config = dataclasses.replace(config_of(method), workdir=str(tmp_path))
    result = train(config, on_event=lambda event: None)
    lines = [line for line in read_metrics(result.path / "metrics.jsonl") if line.get("name") == "task 1"]
    loaded = load_run(result.path)
    evaluation = dataclasses.replace(config.evaluation, task="task 1")
    assert loaded.experiment.evaluate(loaded.variables, evaluation).nats == pytest.approx(lines[-1]["nats"], rel=1e-6)
    plain = dataclasses.replace(loaded.experiment, adapt_rows=None)
    params = {"params": loaded.variables["params"]}
    assert plain.evaluate(params, evaluation).nats != pytest.approx(lines[-1]["nats"], rel=1e-3)


@pytest.mark.slow
def test_eval_and_compare_show_what_a_stream_has_come_to(tmp_path, capsys):
    config = config_of(Sequential(), evaluate_before_training=True)
    result = train(dataclasses.replace(config, workdir=str(tmp_path)), on_event=lambda event: None)
    assert main(["eval", "--run", str(result.path), "--json"]) == 0
    stream = json.loads(capsys.readouterr().out)["stream"]
    assert stream["tasks"] == ["task 0", "task 1", "task 2"] and np.shape(stream["scores"]) == (3, 3)
    assert stream["average"] == pytest.approx(np.mean(stream["scores"][-1]))
    assert -1 <= stream["forward_transfer"] <= 1
    assert main(["eval", "--run", str(result.path)]) == 0
    assert "accuracy after" in capsys.readouterr().out
    assert main(["compare", str(result.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)[str(result.path)]
    assert facts["average"] == stream["average"] and "forgetting" in facts


@pytest.mark.laws
def test_a_stage_reads_as_many_examples_as_its_limit_evenly_drawn():
    config = config_of(Sequential())
    plain = play(config)
    assert config.lifelong is not None
    limits = (10, 4, 7)
    limited = dataclasses.replace(config, lifelong=dataclasses.replace(config.lifelong, max_examples_per_task=limits))
    numbers = [
        np.concatenate([np.ravel(batch.extras[EXAMPLE]) for _, batch in play(one).updates]) for one in (config, limited)
    ]
    count = lambda ids, task: len({*ids[(ids >= 10 * task) & (ids < 10 * task + 10)].tolist()})
    assert [count(numbers[0], task) for task in range(3)] == [10, 10, 10]
    # Numbers go on from those of the tasks before, which are as many as are read.
    assert sorted(numbers[1][numbers[1] >= 0].tolist()) == list(range(sum(limits)))
    whole = dataclasses.replace(
        config, lifelong=dataclasses.replace(config.lifelong, max_examples_per_task=(10, 10, 10))
    )
    assert_equal(play(whole).state.params, plain.state.params)
    examples = [
        part.examples for part in concatenate_tasks([make_experiment(limited).of_task(f"task {i}") for i in range(3)])
    ]
    assert [len(one) for one in examples] == [*limits]
    first = [examples[1].example(index).inputs.tolist() for index in range(4)]
    own = make_experiment(config).of_task("task 1").documents("train")
    places = [[own.example(i).inputs.tolist() for i in range(10)].index(one) for one in first]
    assert places == sorted(places) and places != [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        ((4,), "max_examples_per_task: given .4,., allowed: .., or 3 numbers"),
        ((4, 4, 11), "max_examples_per_task.2: given 11"),
    ],
)
def test_limits_that_do_not_fit_are_refused(limits, line):
    config = config_of(Sequential())
    assert config.lifelong is not None
    config = dataclasses.replace(config, lifelong=dataclasses.replace(config.lifelong, max_examples_per_task=limits))
    with pytest.raises(ValueError, match=line):
        make_learner_and_stages(make_experiment(config), None, make_objective)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 9), st.integers(0, 500))
def test_passes_are_the_fewest_that_make_enough_updates(examples, rows, epochs, least):
    passes = Lifelong(epochs=epochs, min_updates_per_task=least).passes(examples, rows)
    updates = StreamPlan(examples, rows, passes, 0, ReplaySchedule()).batches
    assert passes >= epochs and updates >= least
    assert passes == epochs or updates - -(-examples // rows) < least


def test_a_small_task_is_read_more_often_and_a_line_says_so():
    config = config_of(Sequential(), tasks=2, epochs=2, min_updates_per_task=11)
    config.lifelong.tasks[1].source.num_train = 40
    experiment = make_experiment(config)
    small, large = task_stages(experiment, None, make_method(config.lifelong.method))
    # Ten examples in batches of four are three updates, forty are ten.
    assert (small.steps, large.steps) == (4 * 3, 2 * 10)
    wanted = "task 0: 4 passes over 10 examples instead of 2, for at least 11 updates (lifelong.min_updates_per_task)"
    assert list(small.notes) == [wanted] and not large.notes
    assert int(play(config).state.step) == 32
