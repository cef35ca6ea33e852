"""Where an answer may begin and end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.models.heads import TOKEN_TYPES, EncodedText, SpanHead

TYPES = jnp.array([[0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0]])
MASK = jnp.array([[1] * 6 + [0] * 2, [1] * 8, [0] * 8], bool)
CONTEXT = np.array([[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1, 0], [1] * 8], bool)
"""the tokens of the text without its [SEP]; of a row that is padding all, so that its scores are finite"""
HIDDEN = jax.random.normal(jax.random.key(0), (3, 8, 4))


def scores(head, extras, hidden=HIDDEN):
    text = EncodedText(hidden, hidden[:, 0], MASK, extras)
    variables = head.init(jax.random.key(1), text, True)
    return head.apply(variables, text, True)


def test_no_token_but_those_of_the_text_is_an_answer():
    found = np.asarray(scores(SpanHead(answers_in_context_only=True), {TOKEN_TYPES: TYPES}))
    np.testing.assert_array_equal(np.isfinite(found), np.broadcast_to(CONTEXT[:, None], found.shape))
    whole = np.asarray(scores(SpanHead(), {}))
    real = np.asarray(MASK | ~MASK.any(axis=1, keepdims=True))
    np.testing.assert_array_equal(np.isfinite(whole), np.broadcast_to(real[:, None], whole.shape))
    np.testing.assert_array_equal(found[np.isfinite(found)], whole[np.isfinite(found)])


def test_nothing_is_learned_from_a_question_or_from_missing_rows():
    head, targets = SpanHead(answers_in_context_only=True), jnp.array([[3, 4], [2, 2], [0, 0]])

    def loss(hidden):
        nats = head.scorer(None).token_nll(scores(head, {TOKEN_TYPES: TYPES}, hidden), targets)
        return jnp.sum(nats * jnp.array([[1.0], [1.0], [0.0]]))  # the last row is a neighbour that is missing

    value, slope = jax.value_and_grad(loss)(HIDDEN)
    touched = np.asarray(slope != 0).any(axis=-1)
    assert np.isfinite(float(value))
    np.testing.assert_array_equal(touched, np.concatenate([CONTEXT[:2], np.zeros((1, 8), bool)]))


def test_texts_without_types_are_refused():
    head = SpanHead(answers_in_context_only=True)
    text = EncodedText(HIDDEN, HIDDEN[:, 0], MASK, {})
    with pytest.raises(ValueError, match=r"task\.answers_in_context_only: given texts without types of tokens"):
        head.apply(head.init(jax.random.key(1), text, True), text, True)
