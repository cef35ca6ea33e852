"""Bags of hashed tokens: counts by hand, and what does not matter to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.models import TokenBag
from memjax.models.heads import ClassificationHead
from memjax.models.token_bag import BayesHead, SummedScorer, count_hashed
from memjax.models.vocabulary import EmptyVocabulary

count = jax.jit(count_hashed, static_argnames=("buckets", "pairs"))


def bucket(number, buckets):
    number %= 1 << 32
    return (number ^ (number >> 15)) % buckets


@given(st.lists(st.integers(0, 30_000), min_size=0, max_size=6), st.booleans())
@settings(max_examples=25, deadline=None)
def test_counts_are_those_by_hand(ids, pairs):
    tokens, mask = np.zeros((2, 6), np.int32), np.zeros((2, 6), bool)
    tokens[0, : len(ids)], mask[0, : len(ids)] = ids, True
    hashes = [bucket(token * 2654435761, 64) for token in ids]
    if pairs:
        hashes += [bucket(a * 2246822519 + b * 3266489917, 64) for a, b in zip(ids, ids[1:], strict=False)]
    expected = np.bincount(np.array(hashes, int), minlength=64) / max(len(hashes), 1) ** 0.5
    np.testing.assert_allclose(count(tokens, mask, buckets=64, pairs=pairs), [expected, np.zeros(64)], rtol=1e-6)


@pytest.mark.parametrize("widths", [(), (5,)])
def test_a_bag_has_the_interface_of_a_text_encoder_and_padding_does_not_matter(widths):
    model = TokenBag(head=ClassificationHead(3), vocabulary=EmptyVocabulary(20), buckets=32, pairs=True, widths=widths)
    assert model.example(2, 6).inputs.dtype == jnp.int32
    tokens = jnp.array([[1, 2, 3, 4, 0, 0]])
    variables = jax.jit(lambda: model.init(jax.random.key(0), tokens, model.init_state(1)))()
    read = jax.jit(
        lambda tokens, length: model.apply(variables, tokens, model.init_state(1), mask=jnp.arange(6)[None] < length)[0]
    )
    output = read(tokens, 4)
    assert output.shape == (1, 1, 3)
    np.testing.assert_array_equal(output, read(tokens.at[0, 4:].set(9), 4))
    assert not np.allclose(output, read(tokens[:, jnp.array([1, 0, 3, 2, 4, 5])], 4))  # pairs tell orders apart


def test_descent_sums_the_counts_of_each_class_and_leaves_the_others():
    head = BayesHead(3, masks_unseen=True)
    model = TokenBag(head=head, vocabulary=EmptyVocabulary(20), buckets=8, pairs=False)
    tokens, targets, weights = jnp.array([[1, 2], [3, 3]]), jnp.array([[0], [2]]), jnp.ones((2, 1))
    variables = model.init(jax.random.key(0), tokens, model.init_state(2))
    seen = {"head": {"seen": jnp.array([True, False, True])}}

    def loss(params):
        variables = {"params": params, "constants": seen}
        output = model.apply(variables, tokens, model.init_state(2))[0]
        return model.apply(variables, output, targets, weights, method="nll").total

    value, gradient = jax.jit(jax.value_and_grad(loss))(variables["params"])
    np.testing.assert_allclose(value, 2 * np.log(2), rtol=1e-6)
    counts = count(tokens, np.ones((2, 2), bool), buckets=8, pairs=False)
    expected = np.stack([-counts[0], np.zeros(8), -counts[1]], axis=1)
    np.testing.assert_allclose(gradient["head"]["counts"], expected, rtol=1e-6)


@given(st.lists(st.floats(-4, 4), min_size=3, max_size=3), st.integers(0, 2), st.booleans())
@settings(max_examples=25, deadline=None)
def test_an_example_counts_by_the_probability_of_other_classes(scores, target, scored):
    output, targets = jnp.array([[scores]]), jnp.array([[target]])
    nll = lambda output: jnp.sum(SummedScorer(weighs_errors=True).nll(output, targets, jnp.array([[scored]])))
    others = 1 - np.exp(np.array(scores[target])) / np.exp(np.array(scores)).sum()
    expected = np.where(np.arange(3) == target, -others * scored, 0)
    np.testing.assert_allclose(jax.grad(nll)(output)[0, 0], expected, rtol=1e-4, atol=1e-6)


def test_what_is_known_adds_nothing_when_it_is_read_again():
    tokens, targets, weights = jnp.array([[1, 1], [2, 2]]), jnp.array([[0], [1]]), jnp.ones((2, 1))

    def grow_counts(weighs_errors):
        head = BayesHead(2, weighs_errors=weighs_errors)
        model = TokenBag(head=head, vocabulary=EmptyVocabulary(20), buckets=64)
        variables = model.init(jax.random.key(0), tokens, model.init_state(2))

        def loss(variables):
            output = model.apply(variables, tokens, model.init_state(2))[0]
            return model.apply(variables, output, targets, weights, method="nll").total

        descend = jax.jit(lambda variables: jax.tree.map(lambda v, g: v - g, variables, jax.grad(loss)(variables)))
        sums = [float(variables["params"]["head"]["counts"].sum())]
        for _ in range(3):
            variables = descend(variables)
            sums.append(float(variables["params"]["head"]["counts"].sum()))
        return np.diff(sums)

    np.testing.assert_allclose(grow_counts(False), grow_counts(False)[0], rtol=1e-5)
    first, *others = grow_counts(True)
    assert max(others) < 0.05 * first
