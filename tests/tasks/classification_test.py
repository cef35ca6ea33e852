import numpy as np
import pytest

from memjax.config import Blobs, Config, Data, LabelledFile, Lifelong, TaskData
from memjax.config import Classification as ClassificationSettings
from memjax.data.example_batches import EXAMPLE, ExampleBatches
from memjax.data.glue import LabelledText
from memjax.data.wordpiece import WordPieceTokenizer
from memjax.models.heads import UNSEEN_SCORE
from memjax.tasks.classification import ClassificationTask, ClassMeasure, LabelledTexts
from memjax.typing import Batch

TOKENIZER = WordPieceTokenizer.train(["one two three four five six"], vocab_size=60)


def test_a_batch_asks_for_the_classes():
    examples = [
        LabelledText(("one two", "three"), 1),
        LabelledText(("four", "five six"), 0),
        LabelledText(("six", "one"), 1),
    ]
    documents = LabelledTexts(examples, TOKENIZER, length=8)
    first, second = ExampleBatches(documents, rows=2, segment_length=8, begin_token=0, epochs=1, shuffle=False)
    assert first.targets.tolist() == [[[1], [0]]] and first.weights.tolist() == [[[1.0], [1.0]]]
    assert first.inputs[0, 0][first.mask[0, 0]].tolist() == documents.example(0).inputs.tolist()
    assert first.extras["token_types"][0, 0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert set(first.extras) == {"token_types", EXAMPLE} and first.extras[EXAMPLE].tolist() == [[0, 1]]
    assert second.weights.tolist() == [[[1.0], [0.0]]] and second.extras[EXAMPLE].tolist() == [[2, -1]]
    assert documents.truncated == 0


def test_long_texts_are_cut_and_counted():
    documents = LabelledTexts([LabelledText(("one two three four five six",), 0)], TOKENIZER, length=5)
    tokens = documents.example(0).inputs
    assert len(tokens) == 5 and tokens[-1] == TOKENIZER.end_id and documents.truncated == 1


@pytest.mark.parametrize("length, truncated", [(5, 1), (8, 0)])
def test_a_decoder_reads_no_end_behind_the_last_text(length, truncated):
    made = lambda *texts: LabelledTexts([LabelledText(texts, 0)], TOKENIZER, length=length, ends=False)
    long, words = made("one two three four five six"), TOKENIZER.encode("one two three four five six")
    assert long.example(0).inputs.tolist() == [TOKENIZER.begin_id, *words[: length - 1]]
    assert long.truncated == truncated
    pair = made("one", "two").example(0)
    assert pair.inputs.tolist() == [TOKENIZER.begin_id, words[0], TOKENIZER.end_id, words[1]]
    assert pair.annotations["token_types"].tolist() == [0, 0, 0, 1]


def test_classes_and_examples_must_be_there():
    with pytest.raises(ValueError, match=r"task\.num_classes: given 2, allowed: at least 3, as the data have"):
        LabelledTexts([LabelledText(("one",), 2)], TOKENIZER, length=5)
    with pytest.raises(ValueError, match="examples: none in this split"):
        LabelledTexts([], TOKENIZER, length=5)


def test_measures_by_hand():
    pytest.importorskip("sklearn")
    # 3 true and 1 false positives, 2 true and 2 false negatives.
    given = np.array([1, 1, 1, 1, 0, 0, 0, 0])
    right = np.array([1, 1, 1, 0, 0, 0, 1, 1])
    measure = ClassMeasure(("matthews", "f1"))
    measure.add(given[:3], right[:3])
    measure.add(given[3:], right[3:])
    numbers = measure.result()
    assert numbers["accuracy"] == 5 / 8
    assert numbers["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert numbers["matthews"] == pytest.approx((3 * 2 - 1 * 2) / (4 * 5 * 3 * 4) ** 0.5)


def test_rows_without_a_text_are_not_measured():
    batch = Batch(None, np.array([[1], [0], [0]]), None, np.array([[1.0], [1.0], [0.0]]), None)
    measure = ClassMeasure()
    measure.observe(batch, np.array([[[0.0, 2.0]], [[0.0, 2.0]], [[0.0, 2.0]]]))
    assert measure.result() == {"accuracy": 0.5, "largest_class": 0.5}


@pytest.mark.parametrize("room", [4, 5, 9, 33])
def test_classes_that_are_only_reserved_are_no_answers(room):
    sources_of_names = [
        LabelledFile(path="a.csv", classes=("x", "y"), class_ids=(0, 1)),
        LabelledFile(path="c.csv", classes=("x", "z"), class_ids=(0, 1)),
    ]
    task = lambda sources: ClassificationTask(
        Config(
            task=ClassificationSettings(num_classes=room),
            data=Data(source=sources[0]),
            lifelong=Lifelong(tasks=tuple(TaskData(name=str(n), source=source) for n, source in enumerate(sources))),
        )
    )
    known = lambda sources: task(sources).known_classes(task(sources).class_names()).tolist()
    assert known(sources_of_names) == [True] * 2 + [False] * (room - 2)
    three = LabelledFile(path="b.csv", classes=("p", "q", "r"), class_ids=(1, 2, 3))
    assert known([*sources_of_names, three]) == [True] * 4 + [False] * (room - 4)
    assert known([*sources_of_names, Blobs(num_classes=2, dim=4)]) == [True] * room  # names of one task are not known


def batch_of(targets, weights):
    """A batch of texts of which only the classes are read."""
    blank = np.zeros(targets.shape, np.int32)
    return Batch(blank, targets, weights > 0, weights, np.zeros(len(targets), bool))


def test_texts_of_classes_that_training_has_not_read_are_counted_apart():
    """One of three texts has the class that the head masks, and its loss is in the thousands."""
    measure = ClassMeasure()
    scores = np.array([[2.0, 1.0, UNSEEN_SCORE], [0.0, 1.0, UNSEEN_SCORE], [3.0, 1.0, UNSEEN_SCORE], [0.0, 0.0, 0.0]])
    targets, weights = np.array([[0], [0], [2], [2]]), np.array([[1.0], [1.0], [1.0], [0.0]])
    measure.observe(batch_of(targets, weights), scores[:, None])
    result = measure.result()
    nats = [np.log1p(np.exp(-1)), np.log1p(np.exp(1))]
    assert result["accuracy"] == pytest.approx(1 / 3) and result["unseen_class_targets"] == 1
    assert result["seen_class_accuracy"] == 0.5 and result["seen_class_nats"] == pytest.approx(np.mean(nats))
    alone = ClassMeasure()
    alone.observe(batch_of(targets[2:], weights[2:]), scores[2:, None])
    assert alone.result() == {"accuracy": 0.0, "largest_class": 1.0, "unseen_class_targets": 1.0}
    known = ClassMeasure()
    known.observe(batch_of(targets[:2], weights[:2]), scores[:2, None])
    assert known.result() == {"accuracy": 0.5, "largest_class": 1.0}
    diverged = ClassMeasure()
    diverged.observe(batch_of(targets[:2], weights[:2]), scores[:2, None] * -1e9)
    assert diverged.result() == {"accuracy": 0.0, "largest_class": 1.0}
