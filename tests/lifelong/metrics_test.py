"""Metrics of tasks: hand-computed numbers, identities, gaps, and the lines that a run writes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.lifelong.feature_separation import linear_probe
from memjax.lifelong.metrics import (
    accuracy_by_age,
    area_under_curve,
    average,
    average_perplexity,
    backward_transfer,
    bytes_by_kind,
    forgetting,
    forward_transfer,
    increased_perplexity,
    intransigence,
    last_task_accuracy,
    learning_accuracy,
    matrix_from_lines,
    score_deviations,
    summary,
)
from memjax.training.metrics import MetricsFile, read_metrics

NAN = math.nan
SCORES = np.array([[0.8, 0.3, 0.1], [0.9, 0.7, 0.2], [0.5, 0.6, 0.4]])
REFERENCES = ("max_prev", "max_all", "diag")


def test_three_tasks_by_hand():
    assert average(SCORES) == pytest.approx((0.5 + 0.6 + 0.4) / 3)
    assert learning_accuracy(SCORES) == pytest.approx((0.8 + 0.7 + 0.4) / 3)
    assert last_task_accuracy(SCORES) == 0.4
    assert area_under_curve(SCORES) == pytest.approx((0.8 + (0.9 + 0.7) / 2 + 0.5) / 3)
    np.testing.assert_allclose(accuracy_by_age(SCORES), [1.9 / 3, (0.9 + 0.6) / 2, 0.5])
    np.testing.assert_allclose(forgetting(SCORES), [0.9 - 0.5, 0.7 - 0.6])
    np.testing.assert_allclose(forgetting(SCORES, "diag"), [0.8 - 0.5, 0.7 - 0.6])
    assert backward_transfer(SCORES) == pytest.approx((0.5 - 0.8 + 0.6 - 0.7) / 2)
    assert forward_transfer(SCORES, [0.9, 0.1, 0.25]) == pytest.approx((0.3 - 0.1 + 0.2 - 0.25) / 2)
    np.testing.assert_allclose(intransigence(SCORES, [0.8, 0.8, 0.9]), [0.0, 0.1, 0.5], atol=1e-12)


@pytest.mark.parametrize(
    "scores, lost, last",
    [
        pytest.param([[1.0, 0.0], [0.0, 1.0]], 1.0, 0.5, id="sequential"),
        pytest.param([[1.0, 0.0], [0.6, 0.9]], 0.4, 0.75, id="replay"),
        pytest.param([[1.0, 1.0], [1.0, 1.0]], 0.0, 1.0, id="joint"),
    ],
)
def test_two_tasks_by_hand(scores, lost, last):
    for reference in REFERENCES:
        np.testing.assert_allclose(forgetting(scores, reference), [lost])
    assert average(scores) == last and backward_transfer(scores) == pytest.approx(-lost)
    assert summary(scores)["forgetting"] == pytest.approx(lost)


def test_references_of_forgetting():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.uniform(size=(5, 5))
        previous, every, own = (forgetting(scores, reference) for reference in REFERENCES)
        assert np.mean(own) == pytest.approx(-backward_transfer(scores))
        np.testing.assert_array_equal(every, np.maximum(previous, 0))
        assert np.all(own <= previous)
    # The last task helped the first: only "max_prev" and "diag" can say so, and what came before it was learned counts.
    helped = [[0.2, 0.9], [0.6, 0.5]]
    assert [float(forgetting(helped, reference)[0]) for reference in REFERENCES] == pytest.approx([-0.4, 0.0, -0.4])
    early = [[0.5, 0.9, 0.0], [0.5, 0.7, 0.0], [0.5, 0.6, 0.5]]
    assert forgetting(early)[1] == pytest.approx(0.3) and forgetting(early, "diag")[1] == pytest.approx(0.1)


def test_perplexities():
    assert average_perplexity(np.full((3, 3), 7.0)) == pytest.approx(7.0)
    grown = [[2.0, 50.0], [8.0, 4.0]]
    assert average_perplexity(grown) == pytest.approx(math.sqrt(8 * 4))
    assert increased_perplexity(grown) == 6.0
    # Columns of a network whose earlier parts are frozen do not change: progressive networks.
    frozen = np.triu(np.random.default_rng(0).uniform(2, 9, size=(4, 4)), 1) + np.tril(
        np.tile([2.0, 3.0, 4.0, 5.0], (4, 1))
    )
    assert increased_perplexity(frozen) == 0.0


def test_gaps_do_not_change_the_rest():
    lower = np.where(np.tri(3) > 0, SCORES, NAN)  # only tasks that were learned are evaluated
    for of in (average, learning_accuracy, last_task_accuracy, area_under_curve, backward_transfer):
        assert of(lower) == of(SCORES)
    np.testing.assert_array_equal(accuracy_by_age(lower), accuracy_by_age(SCORES))
    np.testing.assert_allclose(forgetting(lower), [0.4, 0.1])
    holes = SCORES.copy()
    holes[2, 1] = holes[0, 0] = NAN
    assert average(holes) == pytest.approx(0.45) and learning_accuracy(holes) == pytest.approx(0.55)
    np.testing.assert_allclose(forgetting(holes), [0.4, NAN])
    assert math.isnan(backward_transfer(holes)) and summary(holes)["forgetting"] == pytest.approx(0.4)
    assert forward_transfer(SCORES, [0.9, NAN, 0.25]) == pytest.approx(-0.05)
    np.testing.assert_allclose(intransigence(SCORES, [0.8, NAN, 0.9]), [0.0, NAN, 0.5], atol=1e-12)
    assert average_perplexity([[2.0, 2.0], [NAN, 5.0]]) == pytest.approx(5.0)
    nothing = np.full((3, 3), NAN)
    assert all(math.isnan(value) for value in summary(nothing, nothing[0]).values())
    assert np.isnan(accuracy_by_age(nothing)).all() and math.isnan(average_perplexity(nothing))
    # One task: nothing to forget and nothing to transfer.
    alone = summary([[0.7]], [0.1])
    assert alone.pop("average") == alone.pop("area_under_curve") == 0.7
    assert alone.pop("learning_accuracy") == alone.pop("last_task_accuracy") == 0.7
    assert len(alone) == 3 and all(map(math.isnan, alone.values()))


def test_summary_names_what_the_functions_say():
    before = [0.9, 0.1, 0.25]
    found = summary(SCORES, before)
    assert found.pop("forward_transfer") == forward_transfer(SCORES, before)
    assert found == summary(SCORES)
    functions = (average, area_under_curve, learning_accuracy, last_task_accuracy, backward_transfer)
    assert found == {"forgetting": np.mean(forgetting(SCORES)), **{of.__name__: of(SCORES) for of in functions}}


def test_lines_of_a_run(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    say = lambda step, name, accuracy, **place: file.write(
        "evaluation", step, {"split": "test", **place, **({"name": name} if name else {}), "accuracy": accuracy}
    )
    for task, accuracy in zip("abc", (0.25, NAN, 0.75), strict=True):
        say(0, task, accuracy, phase="before")
    for stage in range(2):
        place = {"stage": stage} if stage else {}  # stage 0 is not said
        say(4 * stage + 2, "a", 99.0, **place)  # within the stage
        file.write("train", 4 * stage + 4, {"accuracy": 99.0})
        for task, accuracy in zip("abc", SCORES[stage], strict=True):
            say(4 * stage + 4, task, NAN if (stage, task) == (0, "c") else accuracy, phase="after", **place)
    say(8, "", 99.0, phase="after", stage=1)
    say(8, "whole", 99.0, phase="after", stage=1)
    found = matrix_from_lines(read_metrics(file.path))
    assert found.tasks == ("a", "b", "c")
    np.testing.assert_array_equal(found.scores, [[0.8, 0.3, NAN], [0.9, 0.7, 0.2], [NAN, NAN, NAN]])
    np.testing.assert_array_equal(found.before, [0.25, NAN, 0.75])
    other = matrix_from_lines(read_metrics(file.path), tasks=("b", "a"))
    np.testing.assert_array_equal(other.scores, [[0.3, 0.8], [0.7, 0.9]])
    assert forward_transfer(*other[1:]) == pytest.approx(0.8 - 0.25)


@pytest.mark.slow
def test_lines_of_a_run_that_was_trained(tmp_path):
    from memjax.config import Sequential
    from tests.lifelong.stages_test import config_of, run

    result, _ = run(config_of(tmp_path, Sequential()))
    lines = read_metrics(result.path / "metrics.jsonl")
    found = matrix_from_lines(lines, "nats_per_token")
    assert found.tasks == ("short", "long") and np.isfinite(found.scores).all() and np.isnan(found.before).all()
    last = result.results["evaluations"]
    assert found.scores[1].tolist() == [last[name]["nats_per_token"] for name in found.tasks]
    assert not np.array_equal(found.scores[0], found.scores[1])


def test_deviations_of_orders_and_seeds():
    found = score_deviations([[0.5, 0.7], [0.8, NAN], [0.1, 0.3], [NAN, NAN]])
    assert found.mean == pytest.approx((0.6 + 0.8 + 0.2) / 3)
    assert found.orders == pytest.approx(np.std([0.6, 0.8, 0.2], ddof=1))
    assert found.seeds == pytest.approx(math.sqrt(0.02))
    assert (
        score_deviations([[0.5, 0.5], [0.9, 0.9]]).seeds == 0.0
        and score_deviations([[0.4, 0.6], [0.6, 0.4]]).orders == 0.0
    )
    one = score_deviations([[0.5]])
    assert one.mean == 0.5 and math.isnan(one.orders) and math.isnan(one.seeds)


def test_bytes():
    memory = {"tokens": jax.ShapeDtypeStruct((8, 4), jnp.int32), "valid": np.zeros(8, bool)}
    found = bytes_by_kind(memory=memory, keys=jnp.zeros((8, 2), jnp.bfloat16), anchors=None)
    assert found == {"memory": 8 * 4 * 4 + 8, "keys": 32, "anchors": 0, "total": 168}


def test_a_probe_finds_what_a_head_has_lost():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    labels, other = rng.integers(3, size=60), rng.integers(3, size=60)
    centres = 4 * rng.normal(size=(3, 5))
    examples = lambda labels: centres[labels] + rng.normal(size=(60, 5))
    train, test = examples(labels), examples(other)
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    assert linear_probe(train, labels, test, other) > 0.9
    assert linear_probe(1e-4 * train @ rotation, labels, 1e-4 * test @ rotation, other) > 0.9
    assert linear_probe(train, labels, test, (other + 1) % 3) < 0.1
    assert linear_probe(rng.normal(size=(60, 5)), labels, test, other) < 0.7
    with pytest.raises(ValueError, match="labels: given those of 1 class, allowed: 2 or more"):
        linear_probe(train, 0 * labels, test, other)


def test_a_probe_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"scikit-learn is not installed \(linear_probe\)"):
        linear_probe(np.zeros((2, 1)), [0, 1], np.zeros((2, 1)), [0, 1])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: average([0.5, 0.6]), r"scores: given shape \(2,\), allowed: \[tasks, tasks\]"),
        (lambda: average(np.zeros((2, 3))), r"scores: given shape \(2, 3\), allowed: \[tasks, tasks\]"),
        (lambda: forgetting(SCORES, "best"), "reference: given 'best', allowed: \"max_prev\""),
        (lambda: forward_transfer(SCORES, [0.1]), r"before: given shape \(1,\), allowed: \[tasks\], 3 of them"),
        (lambda: intransigence(SCORES, SCORES), r"joint: given shape \(3, 3\), allowed: \[tasks\], 3 of them"),
        (lambda: score_deviations([0.1, 0.2]), r"scores: given shape \(2,\), allowed: \[orders, seeds\]"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_lines_that_make_no_matrix():
    line = {
        "kind": "evaluation",
        "step": 1,
        "phase": "after",
        "name": "a",
        "accuracy": 0.5,
        "nats": 1.0,
        "complete": True,
    }
    for lines, given, message in [
        ([], {}, r"lines: given evaluations of \[\] after the first stage, allowed: named ones after every stage"),
        (
            [line],
            {"tasks": ["b"]},
            r"lines: given evaluations of \['a'\] after the first stage, allowed: some of \['b'\]",
        ),
        ([line], {"measure": "f1"}, "measure: given 'f1', allowed: accuracy, nats$"),
        ([line, {**line, "stage": 1}], {}, "lines: given 2 stages, allowed: as many as tasks, 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            matrix_from_lines(lines, **given)
