"""Answers in dialogues, and their scores by hand."""

import dataclasses
import functools
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.data.dialogue import Dialogue, DialogueDocuments, TokenizerWithDialogueMarks, Utterance
from memjax.data.tokenizers import ByteTokenizer
from memjax.inference.decoding import generate
from memjax.models.factory import make_language_model
from memjax.tasks.dialogue import GREEDY, NUCLEUS, answer_turns, score_answers, word_f1
from tests.reference.parameters import params_of

LENGTH, MAX_TOKENS = 8, 5
TOKENIZER = TokenizerWithDialogueMarks(ByteTokenizer())
TALKS = (("Hi", "Hello you", "Oh"), ("Seen it",), ("No", "A fine film"))


def documents(layout="memory", length=LENGTH):
    dialogues = [Dialogue("Jaws", tuple(Utterance(i % 2, text) for i, text in enumerate(said))) for said in TALKS]
    return DialogueDocuments(dialogues, TOKENIZER, layout=layout, segment_length=length)


@functools.cache
def small():
    described = config.Model(
        dim=8, num_layers=1, num_heads=2, attention=config.TransformerXL(memory_length=LENGTH), num_speaker_markers=3
    )
    model = make_language_model(described, TOKENIZER.vocab_size)
    named = {"start_of_document": jnp.ones(1, bool), "dtype": np.float32}
    return model, {"params": params_of(model, jnp.zeros((1, LENGTH), jnp.int32), model.init_state(1), **named)}


NEVER = {TOKENIZER.separator_id, *TOKENIZER.speaker_ids, TOKENIZER.begin_id, TOKENIZER.pad_id}


@functools.cache
def continued(dialogue, start):
    """The most probable words after a prompt that is read as a whole."""
    prompt = [TOKENIZER.begin_id, *documents()[dialogue][:start].tolist()]
    settings = {"segment_length": LENGTH, "max_tokens": MAX_TOKENS, "stop_tokens": [TOKENIZER.end_id]}
    sampling = dataclasses.replace(GREEDY, forbidden=tuple(sorted(NEVER)))
    return generate(*small(), [prompt], sampling=sampling, **settings)[0]


@pytest.mark.parametrize("rows", [2, pytest.param(4, marks=pytest.mark.laws)])
def test_answers_are_what_follows_all_that_was_said(rows):
    model, variables = small()
    settings = {"segment_length": LENGTH, "max_tokens": MAX_TOKENS}
    answers = list(answer_turns(model, variables, documents(), sampling=GREEDY, rows=rows, **settings))
    assert sorted((answer.turn.dialogue, answer.turn.utterance) for answer in answers) == [
        (dialogue, utterance) for dialogue, said in enumerate(TALKS) for utterance in range(len(said))
    ]
    for answer in answers:
        turn = answer.turn
        assert TOKENIZER.decode(answer.reference) == TALKS[turn.dialogue][turn.utterance]
        assert answer.tokens == continued(turn.dialogue, turn.start)
    assert len({tuple(answer.tokens) for answer in answers}) > 1


def test_marks_are_never_said_and_the_seed_decides():
    model, variables = small()
    say = lambda seed: [
        answer.tokens
        for answer in answer_turns(
            *(model, variables, documents()),
            sampling=NUCLEUS,
            segment_length=LENGTH,
            max_dialogues=1,
            rows=1,
            max_tokens=24,
            seed=seed,
        )
    ]
    first = say(0)
    assert len(first) == 3 and first == say(0) != say(1)
    assert not NEVER & {token for tokens in first for token in tokens}


def test_scores_by_hand():
    same = score_answers(["A fine film indeed"], ["a fine film INDEED"])
    np.testing.assert_allclose([same.f1, same.rouge_1, same.rouge_l], 100)
    np.testing.assert_allclose(same.meteor, 100 * (1 - 0.5 * (1 / 4) ** 3))  # one chunk of four matches
    part = score_answers(["cat the sat"], ["the cat ran home"])
    np.testing.assert_allclose(part.rouge_1, 100 * 4 / 7)
    np.testing.assert_allclose(part.rouge_l, 100 * 2 / 7)
    np.testing.assert_allclose(part.f1, 100 * 2 / 5)
    both = score_answers(["yes", "A fine film indeed"], ["no", "a fine film indeed"])
    np.testing.assert_allclose([both.f1, both.rouge_1, both.meteor], np.array([100, 100, same.meteor]) / 2)


def test_meteor_matches_stems_and_no_synonyms():
    stems = score_answers(["cats sleep"], ["cat sleeps"])
    assert stems.f1 == 0 and stems.rouge_1 == 0
    np.testing.assert_allclose(stems.meteor, 100 * (1 - 0.5 * (1 / 2) ** 3))
    assert score_answers(["film"], ["movie"]).meteor == 0
    assert score_answers([""], ["movie"]).meteor == 0
    assert "no WordNet" in stems.signature and "rouge-score" in stems.signature


def test_articles_and_marks_are_no_words():
    assert word_f1("The shark.", "a shark, an the") == 1.0
    assert word_f1("shark shark", "shark") == pytest.approx(2 / 3)


def test_what_cannot_be_scored_gets_one_line(monkeypatch):
    for answers, references in (([], []), (["a"], ["a", "b"])):
        with pytest.raises(ValueError, match=r"^answers: given \d for \d references, allowed: as many, at least one$"):
            score_answers(answers, references)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ValueError, match=r"^answers: ROUGE and METEOR need rouge-score and nltk; install memjax\[ev"):
        score_answers(["a"], ["a"])
