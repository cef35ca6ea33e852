"""The BiLSTM: words beyond a sentence do not matter, and names are encoded as sentences are, in parts too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.models import BiLSTM
from memjax.models.bilstm import AT_ONCE, LazyConstant
from memjax.models.similarity_head import RankingScorer, SimilarityHead
from memjax.models.vocabulary import EmptyVocabulary


def model_of(classes):
    names = np.random.RandomState(0).randint(0, 20, (classes, 3)).astype(np.int32)
    names[::2, 2] = -1
    head = SimilarityHead(classes, "cosine", margin=0.5, named=True, keeps_seen=True)
    fixed = LazyConstant(lambda: names, names.shape, np.int32)
    model = BiLSTM(head=head, vocabulary=EmptyVocabulary(20), dim=3, hidden=4, names=fixed)
    variables = jax.jit(lambda: model.init(jax.random.key(0), jnp.zeros((1, 5), jnp.int32), model.init_state(1)))()
    return model, variables, jnp.asarray(names)


@pytest.mark.laws
def test_what_stands_behind_a_sentence_does_not_matter_and_both_ends_do():
    model, variables, _ = model_of(3)
    read = lambda tokens, length: model.apply(
        variables, jnp.array([tokens]), jnp.arange(5)[None] < length, method="encode_sentences"
    )
    np.testing.assert_array_equal(read([1, 2, 3, 4, 5], 3), read([1, 2, 3, 7, 8], 3))
    for place in range(3):
        other = [1, 2, 3, 4, 5]
        other[place] = 9
        assert not np.allclose(read(other, 3), read([1, 2, 3, 4, 5], 3))
    assert not read([1, 2, 3, 4, 5], 0).any()
    assert "vectors" in variables["constants"] and "vectors" not in variables["params"]


@pytest.mark.laws
@pytest.mark.parametrize("classes", [5, AT_ONCE + 40])
def test_names_are_read_as_sentences_are_and_those_that_are_not_needed_may_be_left_out(classes):
    model, variables, names = model_of(classes)
    needed = jnp.zeros(classes, bool).at[jnp.array([1, classes - 1])].set(True)
    found = model.apply(variables, needed, method="name_vectors")
    whole = model.apply(variables, names, names >= 0, method="encode_sentences")
    np.testing.assert_allclose(found[needed], whole[needed], rtol=1e-6, atol=1e-7)
    assert classes <= AT_ONCE or np.sum(np.any(found != 0, axis=1)) == AT_ONCE


def test_a_ranking_loss_by_hand():
    scores = jnp.array([[[0.9, 0.6, 0.1, -jnp.inf]], [[0.3, -jnp.inf, -jnp.inf, -jnp.inf]]])
    targets, every = jnp.zeros((2, 1), jnp.int32), jnp.ones((2, 1), bool)
    found, gradient = jax.value_and_grad(lambda s: RankingScorer(0.5).nll(s, targets, every).sum())(scores)
    np.testing.assert_allclose(found, (0.2 + 0) / 2 + 0, rtol=1e-6)
    assert np.isfinite(gradient).all() and gradient[0, 0].tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert RankingScorer().token_nll(scores, targets + 3)[0, 0] == 1e4


@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("place", [0, 1])
def test_a_score_that_is_not_a_number_is_no_class_that_may_not_be_answered(margin, place):
    scores = jnp.array([[[0.9, 0.6, 0.1, -jnp.inf]]]).at[0, 0, place].set(jnp.nan)
    targets, every = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool)
    scorer = RankingScorer(margin)
    loss = scorer.nll(scores, targets, every).sum()
    assert np.isnan(loss)
    assert np.isnan(scorer.token_nll(scores, targets)).all() and np.isnan(scorer.log_probs(scores)).any()
