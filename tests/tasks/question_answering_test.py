import numpy as np
import pytest

from memjax.data.example_batches import ExampleBatches
from memjax.data.questions import Question
from memjax.data.wordpiece import WordPieceTokenizer
from memjax.tasks.question_answering import (
    AnswerMeasure,
    QuestionWindows,
    cut_windows,
    exact_match,
    f1,
    normalize_answer,
)
from memjax.typing import Batch

WORDS = "zero one two three four five six seven eight nine ten eleven"
TOKENIZER = WordPieceTokenizer.train([WORDS + " where is ?"] * 9, vocab_size=120)
QUESTION = Question("where is seven ?", WORDS, (("Seven", WORDS.index("seven")), ("seven eight", WORDS.index("seven"))))
ACROSS = Question("where is ?", WORDS, (("one two", WORDS.index("one")),))
"""in windows of one token"""


def windows(length=14, stride=4, questions=(QUESTION,), **fields):
    return QuestionWindows(questions, TOKENIZER, length=length, stride=stride, **fields)


def scores_for(documents, index, first, last, value=5.0):
    scores = np.zeros((2, 14))
    shift = 6 - documents.windows[index][1]
    scores[0, first + shift] = scores[1, last + shift] = value
    return scores


def test_every_word_is_one_token():
    assert len(TOKENIZER.encode(WORDS)) == 12 and len(TOKENIZER.encode("where is seven ?")) == 4


@pytest.mark.parametrize(
    "text, normal",
    [
        ("The Cat", "cat"),
        ("a cat, an owl and the dog!", "cat owl and dog"),
        ("anthem of Theatre", "anthem of theatre"),
        ("U.S.  $5.00", "us 500"),
        ("", ""),
    ],
)
def test_the_official_normalisation(text, normal):
    assert normalize_answer(text) == normal


def test_measures_by_hand():
    assert exact_match("The Cat!", "cat") == 1 and exact_match("cat", "cats") == 0
    assert f1("x y y", "y y z") == pytest.approx(2 / 3)  # two common words of three and three
    assert f1("x", "z") == 0 and f1("the cat", "cat") == 1
    assert f1("big red cat", "cat") == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))


def test_windows_cover_the_text():
    assert cut_windows(12, room=7, stride=4) == [(0, 7), (4, 11), (8, 12)]
    assert cut_windows(5, room=7, stride=4) == [(0, 5)]
    assert cut_windows(11, room=7, stride=4) == [(0, 7), (4, 11)]


def test_windows_ask_for_the_ends_of_the_answer():
    documents = windows()
    assert [w[1:] for w in documents.windows] == [(0, 7), (4, 11), (8, 12)]
    # Six tokens stand before the window: [CLS], four of the question, [SEP].
    assert [documents.answer_span(i) for i in range(3)] == [(0, 0), (6 + 3, 6 + 3), (0, 0)]
    tokens = documents.example(1).inputs
    assert tokens[9] == TOKENIZER.encode("seven")[0] and len(tokens) == 14 == documents.num_tokens(1)
    assert documents.example(1).annotations["token_types"].tolist() == [0] * 6 + [1] * 8
    batches = list(ExampleBatches(documents, rows=2, segment_length=14, begin_token=0, epochs=1, shuffle=False))
    assert batches[0].targets.tolist() == [[[0, 0], [9, 9]]] and batches[0].extras["window"].tolist() == [[[0], [1]]]
    assert batches[1].weights.tolist() == [[[1.0, 1.0], [0.0, 0.0]]]
    np.testing.assert_array_equal(batches[0].inputs[0, 1], tokens)


def test_an_answer_of_several_tokens_is_whole_or_not_there():
    question = Question("where ?", WORDS, (("five six seven", WORDS.index("five")),))
    documents = windows(length=12, questions=[question])  # room 7
    spans = {w[1:]: documents.answer_span(i) for i, w in enumerate(documents.windows)}
    assert spans == {(0, 7): (0, 0), (4, 11): (5, 7), (8, 12): (0, 0)}


def test_characters_inside_a_token_belong_to_it():
    question = Question("where ?", WORDS, (("ve si", WORDS.index("five") + 2),))
    documents = windows(length=20, stride=8, questions=[question])
    assert documents.answer_span(0) == (4 + 5, 4 + 6)


def test_the_best_answer_is_words_of_the_text():
    documents = windows()
    assert documents.candidates(1, scores_for(documents, 1, 7, 8)) == [(10.0, "seven eight")]
    # The end before the start is no answer, nor is one that is too long, nor one in the question.
    scores = scores_for(documents, 1, 8, 6)
    total, words = documents.candidates(1, scores)[0]
    assert total == 5.0 and words in WORDS
    scores = scores_for(documents, 1, 6, 8)
    assert windows(max_answer_length=2).candidates(1, scores)[0][0] == 5.0
    scores = np.zeros((2, 14))
    scores[:, 1] = 9
    assert documents.candidates(1, scores)[0][0] == 0.0


def test_a_token_begins_an_answer_where_it_has_most_context():
    documents = windows()
    # Token 4 is the third from the end of window 0 (two after it) and the first of window 1 (none before it).
    assert documents._has_most_context(0).tolist() == [True] * 6 + [False]
    assert documents._has_most_context(1).tolist() == [False, False, True, True, True, True, False]
    covered = [documents._has_most_context(i) for i in range(3)]
    owners = sum(np.pad(c, (w[1], 12 - w[2])) for c, w in zip(covered, documents.windows, strict=True))
    assert owners.tolist() == [1] * 12


def test_the_measure_takes_the_best_window_and_the_best_right_answer():
    other = Question("where is two ?", WORDS, (("two", WORDS.index("two")),))
    documents = windows(questions=[QUESTION, other])
    measure = AnswerMeasure(documents)
    output = np.stack([scores_for(documents, 0, 2, 2, 3.0), scores_for(documents, 1, 7, 8, 4.0), np.zeros((2, 14))])
    mask = np.array([[True, True], [True, False], [False, False]])
    batch = Batch(None, None, mask, np.zeros((3, 2)), None, {"window": np.array([[0], [1], [5]])})
    measure.observe(batch, output)
    assert isinstance(measure, AnswerMeasure) and measure.answers == {0: (8.0, "seven eight")}
    batch = Batch(None, None, mask[:1], np.ones((1, 2)), None, {"window": np.array([[3]])})
    measure.observe(batch, scores_for(documents, 0, 1, 2, 3.0)[None])
    assert measure.answers[1][1] == "one two"
    assert measure.result() == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}


def test_gaps_between_windows_are_refused():
    with pytest.raises(ValueError, match=r"task\.stride: given 8, allowed: up to 7: windows must not leave gaps"):
        windows(stride=8)
    with pytest.raises(ValueError, match="questions: none in this split"):
        windows(questions=[])
    with pytest.raises(ValueError, match="question: given 4 tokens, allowed: at most 3, so that windows of 7 tokens"):
        windows(length=7, stride=1)
    assert len(windows(length=8, stride=1)) == 12


def test_in_the_context_alone_a_window_without_the_answer_asks_for_nothing():
    documents = windows(answers_in_context_only=True)
    found = [documents.example(index) for index in range(3)]
    assert [one.weights.tolist() for one in found] == [[0, 0], [1, 1], [0, 0]]
    assert [one.targets.tolist() for one in found] == [[-1, -1], [9, 9], [-1, -1]]
    some = documents.answered()
    assert len(some) == 1 and some.skipped == 2 and some.fingerprint not in (documents.fingerprint, None)
    assert some.example(0).targets.tolist() == [9, 9] and len(documents) == 3
    with pytest.raises(ValueError, match="questions: no window has a whole answer"):
        windows(length=7, stride=1, max_question_length=3, questions=[ACROSS], answers_in_context_only=True).answered()


def test_every_answer_is_words_of_the_text_whatever_the_scores_are():
    random, documents = np.random.RandomState(0), windows(answers_in_context_only=True)
    for _ in range(50):
        for index in range(len(documents)):
            scores = random.normal(size=(2, 14)) * 10
            scores[:, :6] += 100  # a question that asks to be answered
            for _, words in documents.candidates(index, scores):
                assert words and words in WORDS
                begin = WORDS.index(words)
                assert begin == 0 or WORDS[begin - 1] == " "
