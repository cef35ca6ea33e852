"""LwF and Logit-KD: the divergence against SciPy's, its limits, and what must not reach it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import rel_entr, softmax

from memjax.functional.divergence import divergence, divergence_sum

CLASSES = 5


def scores(seed=0, rows=3):
    """Of a teacher and of a student."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=(2, rows, CLASSES)) * 2, jnp.float32)


@functools.cache
def with_gradients(temperature=1.0):
    """Divergences, and the gradients of their sum to the student and to the teacher."""

    def both(teacher, student, classes):
        value = lambda teacher, student: divergence(teacher, student, temperature=temperature, classes=classes)
        slopes = jax.grad(lambda *given: jnp.sum(value(*given)), argnums=(1, 0))(teacher, student)
        return value(teacher, student), *slopes

    return jax.jit(both)


def sum_and_slope(function):
    """A loss of (teacher, student, weights, which), and the gradient of its total to the student."""

    def both(teacher, student, *others):
        total = lambda student: function(teacher, student, *others).total
        return function(teacher, student, *others), jax.grad(total)(student)

    return jax.jit(both)


def wanted(teacher, student, temperature):
    p, q = (softmax(np.asarray(given, float) / temperature, axis=-1) for given in (teacher, student))
    return temperature**2 * rel_entr(p, q).sum(-1), temperature * (q - p)


ALL = jnp.ones(CLASSES, bool)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_value_and_gradient_are_those_of_the_equation(temperature):
    teacher, student = scores()
    value, slope, to_teacher = with_gradients(temperature)(teacher, student, ALL)
    expected, expected_slope = wanted(teacher, student, temperature)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, expected_slope, atol=1e-5)
    np.testing.assert_array_equal(to_teacher, 0)
    # Log-probabilities are scores, too.
    again, _, _ = with_gradients(temperature)(jax.nn.log_softmax(teacher), jax.nn.log_softmax(student), ALL)
    np.testing.assert_allclose(again, value, rtol=1e-5)


def test_a_student_that_is_the_teacher_has_nothing_to_learn():
    teacher, _ = scores()
    value, slope, _ = with_gradients(2.0)(teacher, teacher + 3.0, ALL)
    np.testing.assert_allclose(value, 0, atol=1e-6)
    np.testing.assert_allclose(slope, 0, atol=1e-6)


def test_at_a_high_temperature_scores_are_matched():
    """The gradient tends to the difference of centred scores over the number of classes, whatever the temperature."""
    teacher, student = scores()
    apart = np.asarray(student - teacher)
    limit = (apart - apart.mean(-1, keepdims=True)) / CLASSES
    far = np.abs(with_gradients(1.0)(teacher, student, ALL)[1] - limit).max()
    near = np.abs(with_gradients(1000.0)(teacher, student, ALL)[1] - limit).max()
    assert near < 2e-3 and near < 0.01 * far


BROKEN = {"NaN": jnp.nan, "-inf": -jnp.inf, "inf": jnp.inf, "the lowest number": jnp.finfo(jnp.float32).min}


@pytest.mark.parametrize("name", BROKEN)
def test_nothing_of_a_masked_class_gets_in(name):
    """Neither a value nor a gradient: masking a probability of 0 x inf or NaN afterwards would be too late."""
    teacher, student = scores()
    classes = jnp.array([True, True, False, True, False])
    bad = lambda given: given.at[:, jnp.array([2, 4])].set(BROKEN[name])
    kept = np.flatnonzero(classes)
    expected, expected_slope = wanted(teacher[:, kept], student[:, kept], 2.0)
    value, slope, _ = with_gradients(2.0)(bad(teacher), bad(student), classes)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(slope[:, kept], expected_slope, atol=1e-5)
    np.testing.assert_array_equal(slope[:, np.array([2, 4])], 0)


def test_classes_that_scores_exclude():
    """By -inf: of the teacher alone they have probability 0, of both they are out, of the student alone it is lost."""
    teacher, student = scores()
    closed = teacher.at[:, 2].set(-jnp.inf)
    expected, expected_slope = wanted(closed, student, 1.0)
    value, slope, _ = with_gradients()(closed, student, ALL)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, expected_slope, atol=1e-5)
    value, slope, _ = with_gradients()(closed, student.at[:, 2].set(-jnp.inf), ALL)
    others = np.array([0, 1, 3, 4])
    np.testing.assert_allclose(value, wanted(teacher[:, others], student[:, others], 1.0)[0], rtol=1e-5)
    assert np.isfinite(slope).all()
    value, _, _ = with_gradients()(teacher, student.at[:, 2].set(-jnp.inf), ALL)
    assert np.all(value == np.inf)
    # A probability that is no more than 0 in float32 is 0.
    value, slope, _ = with_gradients()(teacher.at[:, 2].set(-1e4), student.at[:, 2].set(-jnp.inf), ALL)
    assert np.isfinite(value).all() and np.isfinite(slope).all()


def test_without_classes_there_is_nothing_to_keep():
    value, slope, _ = with_gradients(2.0)(*scores(), ~ALL)
    np.testing.assert_array_equal(value, 0)
    np.testing.assert_array_equal(slope, 0)


def test_positions_of_weight_zero_are_not_there():
    teacher, student = scores()
    weights = jnp.array([0.5, 0.0, 2.0])
    ask = sum_and_slope(divergence_sum)
    found, slope = ask(teacher.at[1].set(jnp.nan), student.at[1].set(jnp.inf), weights)
    expected, expected_slope = wanted(teacher, student, 1.0)
    np.testing.assert_allclose(found.total, 0.5 * expected[0] + 2 * expected[2], rtol=1e-5)
    assert float(found.weight) == 2.5
    np.testing.assert_allclose(slope, expected_slope * np.array([[0.5], [0], [2]]), atol=1e-5)


def test_half_precision_is_not_lost():
    teacher, student = scores().astype(jnp.bfloat16)
    found = jax.jit(divergence)(teacher, student)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(
        found, wanted(teacher.astype(jnp.float32), student.astype(jnp.float32), 1.0)[0], rtol=1e-5
    )


def test_a_temperature_is_above_zero():
    with pytest.raises(ValueError, match="temperature: given 0.0, allowed: above 0"):
        divergence(*scores(), temperature=0.0)
