"""Vectors with classes: digits, clouds, bags of words and cached features, and the batches that they come in."""

import gzip
import struct

import numpy as np
import pytest

from memjax.config import Blobs, CachedFeatures, Data, Digits, PermutedBags
from memjax.data.example_batches import EXAMPLE
from memjax.data.opening import vocab_size_from_settings
from memjax.data.reading_plan import ReadingPlan
from memjax.data.source_readers import open_source
from memjax.data.sources import SPLITS
from memjax.data.vectors import (
    LabelledVectors,
    VectorArrays,
    make_blobs,
    make_permuted_bags,
    open_cached_features,
    read_digits,
    write_features,
)
from memjax.durable_files import read_json

IMAGES = np.random.RandomState(0).randint(0, 256, (12, 2, 3)).astype(np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2], np.uint8)


def read(vectors: VectorArrays) -> np.ndarray:
    return vectors.read(vectors.rows)


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train", 12), ("t10k", 6)):
        images = struct.pack(">IIII", 2051, count, 2, 3) + IMAGES[:count].tobytes()
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + LABELS[:count].tobytes())
    return tmp_path


def test_digits_are_pixels_from_0_to_1(folder):
    train, validation, test = (read_digits(folder, split) for split in SPLITS)
    assert [len(part.rows) for part in (train, validation, test)] == [6, 6, 6]
    np.testing.assert_array_equal(read(train), IMAGES[:6].reshape(6, 6).astype(np.float32) / 255)
    np.testing.assert_array_equal(read(validation), IMAGES[6:].reshape(6, 6).astype(np.float32) / 255)
    assert train.classes == (0, 1, 2) and train.labels.tolist() == LABELS[:6].tolist()
    assert train.values is validation.values  # the file is read once


def test_split_and_permuted_digits(folder):
    some = open_source(Data(source=Digits(path=str(folder), classes=(2, 0), num_train=3, num_test=2)), "train")
    assert some.labels.tolist() == [0, 2, 0] and some.rows.tolist() == [0, 2, 3] and some.classes == (2, 0)
    held_out = open_source(Data(source=Digits(path=str(folder), classes=(2, 0), num_test=2)), "validation")
    assert held_out.labels.tolist() == [0, 2] and held_out.rows.tolist() == [6, 8]
    plain, first, second = (read_digits(folder, "test", permutation=seed) for seed in (0, 1, 2))
    assert first.columns is not None and second.columns is not None
    np.testing.assert_array_equal(read(first), read(plain)[:, first.columns])
    assert sorted(first.columns) == list(range(6)) and (first.columns != second.columns).any()
    np.testing.assert_array_equal(read_digits(folder, "train", permutation=1).columns, first.columns)
    # For ever: this order, and no other, is task 1.
    assert first.columns.tolist() == [1, 3, 4, 0, 5, 2]


def test_a_folder_of_digits_that_does_not_fit_is_refused(folder):
    with pytest.raises(ValueError, match=r"^data.source.classes: given 3, allowed: 0, 1, 2$"):
        read_digits(folder, "train", classes=(1, 3))
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, 2) + bytes(2))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte: 2 labels, allowed: 12, one for each image"):
        read_digits(folder, "train")
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2051, 2) + bytes(2))
    with pytest.raises(ValueError, match=r"not an idx file of labels \(magic number 2049\)"):
        read_digits(folder, "train")
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match=r"^data.source.path: given .*, allowed: a folder with train-labels-idx1"):
        read_digits(folder, "test")


def test_clouds_are_those_of_every_task_of_a_seed():
    both, one = make_blobs("train", 6, classes=(3, 1), dim=4), make_blobs("train", 3, classes=(1,), dim=4)
    assert both.labels.tolist() == [3, 1, 3, 1, 3, 1] and one.labels.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(read(both)[1::2], read(one))
    # Far from their spread a cloud is its centre, which splits share.
    still = [read(make_blobs(split, 2, classes=(3, 1), dim=4, spread=0.0)) for split in SPLITS]
    np.testing.assert_array_equal(still[0], still[2])
    np.testing.assert_allclose(read(make_blobs("test", 800, classes=(3,), dim=4)).mean(axis=0), still[0][0], atol=0.15)
    assert (read(make_blobs("train", 2, dim=4)) != read(make_blobs("test", 2, dim=4))).all()
    assert (read(make_blobs("train", 2, dim=4)) != read(make_blobs("train", 2, dim=4, seed=1))).all()
    # The same for ever.
    np.testing.assert_allclose(still[0][0], [-0.97678, 0.03548, -1.35447, -0.7505], atol=1e-5)


def test_bags_are_shares_of_words_in_any_order():
    plain, other = (make_permuted_bags("train", 8, num_words=9, length=5, permutation=seed) for seed in (0, 1))
    counts = read(plain) * 5 / 3
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-5)
    np.testing.assert_allclose(counts.sum(axis=1), 5, rtol=1e-5)
    np.testing.assert_array_equal(read(other), read(plain)[:, other.columns])
    assert plain.labels.tolist() == [0, 1, 2, 3] * 2 and (other.columns != np.arange(9)).any()


def test_sources_of_made_vectors_have_their_sizes():
    for source in (Blobs(num_train=8, num_test=5), PermutedBags(num_train=8, num_test=5, num_words=16)):
        data = Data(source=source)
        assert [len(open_source(data, split).rows) for split in SPLITS] == [8, 5, 5]
        assert open_source(data, "test").values.shape[1] == 16 and vocab_size_from_settings(data) == 0


@pytest.fixture
def features(tmp_path):
    draw = np.random.RandomState(1)
    splits = {"train": (draw.standard_normal((60, 4)), np.arange(60) % 3), "test": (np.eye(4), np.arange(4) % 3)}
    write_features(tmp_path / "features", splits, {"model": "none"})
    return tmp_path / "features"


def test_cached_features_stay_in_their_file(features):
    train, validation, test = (open_cached_features(features, split) for split in SPLITS)
    assert isinstance(train.values, np.memmap) and read_json(features / "about.json") == {"model": "none"}
    assert sorted([*train.rows, *validation.rows]) == list(range(60)) and 0 < len(validation.rows) < 15
    np.testing.assert_array_equal(read(test), np.eye(4))
    np.testing.assert_array_equal(train.labels, train.rows % 3)
    some, others = (open_cached_features(features, "train", classes=(2, 1), count=9, seed=seed) for seed in (0, 1))
    assert len(some.rows) == 9 and set(some.labels) == {1, 2} and some.rows.tolist() != others.rows.tolist()
    write_features(features, {"validation": (np.zeros((2, 4)), np.array([2, 0]))}, {})
    assert len(open_cached_features(features, "train").rows) == 60
    source = CachedFeatures(path=str(features), train=5, test=1)
    assert [len(open_source(Data(source=source), split).rows) for split in SPLITS] == [5, 1, 1]


def test_cached_features_of_another_form_are_refused(features):
    with pytest.raises(ValueError, match="^splits: given 'dev', allowed: train, validation, test"):
        write_features(features, {"dev": (np.eye(2), np.arange(2))}, {})
    np.save(features / "test_labels.npy", np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="3 labels of test, allowed: 4, one for each vector"):
        open_cached_features(features, "test")
    np.save(features / "test.npy", np.eye(4))
    with pytest.raises(ValueError, match=r"test.npy: given float64 \[4, 4\], allowed: float32 \[examples, width\]"):
        open_cached_features(features, "test")
    (features / "test.npy").unlink()
    with pytest.raises(ValueError, match=r"^data.source.path: given .*, allowed: a folder with test.npy"):
        open_cached_features(features, "test")


def test_a_batch_of_vectors_asks_for_their_classes():
    vectors = make_blobs("train", 3, classes=(1, 3), num_classes=5, dim=4)
    examples = LabelledVectors(vectors, length=4, num_classes=5, masked=True)
    first, second = ReadingPlan(rows=2, segment_length=4).batches(examples)
    assert first.inputs.dtype == np.float32 and first.mask.all() and first.targets.dtype == np.int32
    np.testing.assert_array_equal(np.concatenate([first.inputs, second.inputs[:1]]), read(vectors))
    assert first.targets.tolist() == [[1], [3]] and first.extras[EXAMPLE].tolist() == [0, 1]
    assert first.extras["classes"].tolist() == [[False, True, False, True, False]] * 2
    # A row without an example reads nothing, and may answer nothing.
    assert second.weights.tolist() == [[1.0], [0.0]] and second.extras[EXAMPLE].tolist() == [2, -1]
    assert not second.inputs[1].any() and not second.mask[1].any() and not second.extras["classes"][1].any()
    assert (examples.num_tokens(0), examples.num_bytes(0), len(examples)) == (4, 16, 3)
    plain = LabelledVectors(vectors, length=4, num_classes=5)
    assert set(next(iter(ReadingPlan(rows=2, segment_length=4).batches(plain))).extras) == {EXAMPLE}


def test_a_fingerprint_says_what_is_read_and_asked():
    vectors = make_blobs("train", 4, classes=(0, 1), dim=4)
    same = LabelledVectors(make_blobs("train", 4, classes=(0, 1), dim=4), length=4, num_classes=2)
    others = [
        vectors._replace(values=vectors.values + 1),
        vectors._replace(labels=vectors.labels[::-1]),
        vectors._replace(rows=vectors.rows[::-1]),
        vectors._replace(columns=np.array([1, 0, 2, 3])),
        vectors._replace(divisor=2.0),
    ]
    prints = [LabelledVectors(one, length=4, num_classes=2).fingerprint for one in (vectors, *others)]
    prints.append(LabelledVectors(vectors, length=4, num_classes=2, masked=True).fingerprint)
    assert len(set(prints)) == len(prints) and same.fingerprint == prints[0]


@pytest.mark.parametrize(
    ("change", "named", "line"),
    [
        ({}, {"length": 5}, "data.segment_length: given 5, allowed: 4, the numbers of a vector"),
        ({}, {"num_classes": 3}, "task.num_classes: given 3, allowed: at least 4, as the data have"),
        ({"rows": np.arange(0)}, {}, "examples: none in this split"),
        ({"values": np.full((2, 4), np.nan, np.float32)}, {}, "examples: example 0 has a number that is not finite"),
    ],
)
def test_what_does_not_fit_is_refused(change, named, line):
    vectors = make_blobs("train", 2, classes=(3,), dim=4)._replace(**change)
    with pytest.raises(ValueError, match=f"^{line}"):
        LabelledVectors(vectors, **{"length": 4, "num_classes": 4, **named})
