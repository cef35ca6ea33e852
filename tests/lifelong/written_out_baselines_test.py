"""Penalties, distillation, A-GEM and replay, end to end in float64, against their papers' equations in NumPy."""

import jax
import numpy as np
import pytest

from memjax.config import AGEM, EWC, MAS, SI, EpisodicMemory, LogitKD, LwF, Replay
from tests.lifelong.learner_cases import ROWS, SIZE, TASKS
from tests.lifelong.written_out import RATE, assert_params, batches_of, draw_replay, join, start_of, stream_in_float64
from tests.reference.perceptron import gradient, gradient_of_scores, scores_of, step

WEIGHT, DAMPING, TEMPERATURE = 0.5, 0.1, 2.0
DECAYS = {"ewc": None, "ewc_online": 0.5, "mas": 1.0, "si": 1.0}


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def method_of(name):
    if name == "ewc_online":
        return EWC(penalty_weight=WEIGHT, consolidation="online", decay=DECAYS[name])
    if name == "si":
        return SI(penalty_weight=WEIGHT, damping=DAMPING)
    return {"ewc": EWC, "mas": MAS}[name](penalty_weight=WEIGHT)


def tasks_of(played):
    """The batches of each task. The last one of a task is partial."""
    batches = [batches_of(batch)[0] for _, batch in played.updates]
    length = len(batches) // TASKS
    assert len(batches[length - 1].y) == SIZE % ROWS != 0
    return [batches[start : start + length] for start in range(0, len(batches), length)]


def combine(function, *trees):
    return {path: function(*(tree[path] for tree in trees)) for path in trees[0]}


def zeros(params):
    return combine(np.zeros_like, params)


def fisher_information(params, rows):
    """EWC, equation 3: the mean over examples of the squared slope of the log-likelihood."""
    slopes = [gradient(params, rows.x[[row]], rows.y[[row]]) for row in range(len(rows.y))]
    return combine(lambda *each: np.mean(np.square(each), axis=0), *slopes)


def sensitivities(params, rows):
    """MAS, equation 3 for the squared length of the outputs: the mean over examples of its absolute slope."""
    slopes = [gradient_of_scores(params, x[None], 2 * scores_of(params, x[None])) for x in rows.x]
    return combine(lambda *each: np.mean(np.abs(each), axis=0), *slopes)


# SI is a law: the fault of a penalty that is taken off a gradient of a partial batch shows in no smaller test.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.laws if name == "si" else pytest.mark.slow) for name in DECAYS]
)
def test_penalties_hold_parameters_where_the_papers_have_them(name):
    """The loss of a batch is its mean and `WEIGHT / 2 * sum_t sum_i F_ti (theta_i - theta*_ti)^2`."""
    _, played = stream_in_float64(method_of(name))
    params, penalties, held = start_of(played), [], False
    for batches in tasks_of(played):
        start, path = params, zeros(params)
        for rows in batches:
            slope = gradient(params, rows.x, rows.y)
            pull = zeros(params)
            for importance, anchor in penalties:
                pull = combine(lambda w, f, p, a: w + WEIGHT * f * (p - a), pull, importance, params, anchor)
            held = held or max(np.abs(leaf).max() for leaf in pull.values()) > 1e-3
            after = step(params, combine(np.add, slope, pull), RATE * len(rows.y) / ROWS)
            path = combine(lambda w, g, new, old: w - g * (new - old), path, slope, after, params)
            params = after
        if name == "si":  # equations 4 and 5
            share = lambda w, new, old: np.maximum(w, 0) / ((new - old) ** 2 + DAMPING)
            importance = combine(share, path, params, start)
        else:
            importance = (sensitivities if name == "mas" else fisher_information)(params, join(batches))
        if DECAYS[name] is None:  # a penalty for each task
            penalties.append((importance, params))
        else:  # one around the parameters after the last task
            earlier = penalties[0][0] if penalties else zeros(params)
            penalties = [(combine(lambda old, new: DECAYS[name] * old + new, earlier, importance), params)]
    assert held
    assert_params(played.state.params, params)


def softmax(scores):
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def pull_to(teacher, params, x, classes=slice(None)):
    """The gradient of the mean over rows of `WEIGHT T^2 KL(teacher || model)`, of softmaxes at the temperature T over
    some classes.
    """
    apart = np.zeros_like(scores_of(params, x))
    ours, theirs = (scores_of(weights, x)[:, classes] / TEMPERATURE for weights in (params, teacher))
    apart[:, classes] = softmax(ours) - softmax(theirs)
    return gradient_of_scores(params, x, WEIGHT * TEMPERATURE * apart / len(x))


@pytest.mark.slow
def test_lwf_stays_near_the_answers_of_the_model_before_the_task():
    _, played = stream_in_float64(LwF(distillation_weight=WEIGHT, temperature=TEMPERATURE))
    params, teacher, earlier = start_of(played), None, set()
    for batches in tasks_of(played):
        for rows in batches:
            slope = gradient(params, rows.x, rows.y)
            if teacher is not None:
                slope = combine(np.add, slope, pull_to(teacher, params, rows.x, sorted(earlier)))
            params = step(params, slope, RATE * len(rows.y) / ROWS)
        teacher, earlier = params, earlier.union(*(rows.y.tolist() for rows in batches))
    assert 0 < len(earlier) <= scores_of(params, rows.x).shape[1]
    assert_params(played.state.params, params)


@pytest.mark.slow
def test_a_gem_projects_against_the_mean_gradient_of_stored_rows():
    """`g - (g . r / r . r) r` where g points against r, the gradient of rows that are drawn of the memory."""
    method = AGEM(memory=EpisodicMemory(write_policy="all", capacity=32), reference_batch_size=5, reference_tasks="all")
    _, played = stream_in_float64(method)
    params, memory, conflicts = start_of(played), [], 0
    dot = lambda a, b: sum(np.vdot(a[path], b[path]) for path in a)
    for number, (_, batch) in enumerate(played.updates):
        rows = batches_of(batch)[0]
        slope = gradient(params, rows.x, rows.y)
        if memory:
            stored = join(memory)
            drawn = stored.take(draw_replay(played, number, len(stored.y), 32, 5))
            reference = gradient(params, drawn.x, drawn.y)
            if (along := dot(slope, reference)) < 0:
                conflicts += 1
                factor = along / dot(reference, reference)
                slope = combine(lambda g, r: g - factor * r, slope, reference)  # noqa: B023
        params = step(params, slope, RATE * len(rows.y) / ROWS)
        memory.append(rows)
    assert conflicts and conflicts < len(played.updates)
    assert_params(played.state.params, params)


@pytest.mark.slow
@pytest.mark.parametrize("distills", [False, True], ids=["replay", "logit_kd"])
def test_replay_learns_drawn_rows_beside_every_batch(distills):
    """The loss is the mean over new and drawn rows. An update weighs the share of its rows that are there.

    Logit-KD adds the divergence of drawn rows from the answers of the model before the task.
    """
    memory = EpisodicMemory(write_policy="all", capacity=32)
    distilled = LogitKD(memory=memory, replay_batch_size=5, distillation_weight=WEIGHT, temperature=TEMPERATURE)
    _, played = stream_in_float64(distilled if distills else Replay(memory=memory, replay_batch_size=5))
    params, written, teacher, number = start_of(played), [], None, 0
    for batches in tasks_of(played):
        for rows in batches:
            slope, there, most = gradient(params, rows.x, rows.y), len(rows.y), ROWS
            if written:
                stored = join(written)
                drawn = stored.take(draw_replay(played, number, len(stored.y), 32, 5))
                beside = gradient(params, drawn.x, drawn.y)
                if distills and teacher is not None:
                    beside = combine(np.add, beside, pull_to(teacher, params, drawn.x))
                share = 5 / (there + 5)
                slope = combine(lambda new, old: (1 - share) * new + share * old, slope, beside)  # noqa: B023
                there, most = there + 5, ROWS + 5
            params = step(params, slope, RATE * there / most)
            written.append(rows)
            number += 1
        teacher = params
    # The share of drawn rows is computed in float32.
    assert_params(played.state.params, params, rtol=1e-6, atol=1e-7)
