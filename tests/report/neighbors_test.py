"""Tasks of neighbours, and what is read of examples."""

import numpy as np
import pytest

from memjax.data.documents import Example
from memjax.data.tokenizers import ByteTokenizer
from memjax.lifelong.neighborhoods import task_counts, task_of_number, task_shares
from memjax.report.neighbors import label_of, text_of


def test_neighbours_are_of_the_task_whose_numbers_they_have():
    firsts = [0, 3, 4]
    assert task_of_number(np.array([0, 2, 3, 4, 99]), firsts).tolist() == [0, 0, 1, 2, 2]
    counts = np.stack([task_counts(np.array(one), firsts) for one in ([[0, 3], [4, -1]], [[-1, -1]])])
    assert counts.tolist() == [[1, 1, 1], [0, 0, 0]]
    shares = task_shares(counts)
    np.testing.assert_allclose(shares[0], 1 / 3)
    assert np.isnan(shares[1]).all()


class Task:
    classifies = True

    def __init__(self, classifies=True, head=None):
        self.classifies, self.head = classifies, lambda: head

    def class_names(self):
        return {1: "World"}


class Opened:
    def __init__(self, task, tokenizer=None):
        self.task, self.tokenizer = task, tokenizer


def example(text, targets, weights):
    return Example(ByteTokenizer().encode(text), np.array(targets, np.int32), np.array(weights, np.float32))


@pytest.mark.parametrize(
    ("task", "targets", "weights", "label"),
    [
        (Task(), [1], [1], "World"),
        (Task(), [2], [1], "2"),
        (Task(False, head="spans"), [4, 6], [1, 1], "cat"),
        (Task(False), [9, *ByteTokenizer().encode("ok").tolist()], [0, 1, 1], "ok"),
    ],
)
def test_an_answer_is_a_class_a_span_or_words(task, targets, weights, label):
    opened = Opened(task, ByteTokenizer())
    assert label_of(opened, example("the cat sat", targets, weights)) == label


def test_texts_are_cut_and_vectors_have_none():
    opened = Opened(Task(), ByteTokenizer())
    assert text_of(opened, example("the  cat sat", [1], [1]), most=8) == "the cat…"
    assert text_of(opened, Example(np.zeros(3, np.float32), np.array([1]), np.ones(1))) == ""
    assert text_of(Opened(Task()), example("x", [1], [1])) == ""
