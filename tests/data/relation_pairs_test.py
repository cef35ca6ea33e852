"""Pairs of sentences and relations: which there are, and which a task of a stream trains on."""

import numpy as np
import pytest

from memjax.config import CachedPairs, Joint, Lifelong, Sequential, SyntheticRelations, TaskData
from memjax.data.relation_pairs import PAIRS, make_relation_pairs, open_cached_pairs, pair_id_array
from memjax.data.relation_sentences import make_synthetic_relations

SPLITS = make_synthetic_relations(num_relations=5, num_train=4, num_candidates=3)


def test_training_loses_candidates_that_are_not_known_and_no_sentence_and_the_test_nothing():
    known = (1, 2)
    found = {split: make_relation_pairs(SPLITS.of(known), split, known=known) for split in ("train", "test")}
    for split, pairs in found.items():
        sentences = SPLITS.of(known).sentences[split]
        assert [one.group for one in pairs if one.label] == list(range(len(sentences)))
        for one in pairs:
            sentence = sentences[one.group]
            assert one.texts == (sentence.text, f"made cue{one.candidate - 1}") and one.stated == 1 + sentence.label
            assert one.label == (one.candidate == one.stated)
        named = [[one.candidate - 1 for one in pairs if one.group == group] for group in range(len(sentences))]
        allowed = set(range(5)) if split == "test" else {0, 1}
        assert named == [[one.label, *(other for other in one.candidates if other in allowed)] for one in sentences]
    assert {one.candidate for one in found["train"]} == {1, 2} and {one.candidate for one in found["test"]} == {
        1,
        2,
        3,
        4,
        5,
    }


def test_limits_keep_the_first_sentences_of_each_relation():
    found = make_relation_pairs(SPLITS, "train", sentences=2, candidates=1)
    assert len(found) == 5 * 2 * 2 and np.bincount([one.stated for one in found])[1:].tolist() == [4] * 5


def folder(path):
    for split in ("train", "validation", "test"):
        pairs = make_relation_pairs(SPLITS, split)
        np.save(path / f"{split}.npy", np.arange(2 * len(pairs), dtype=np.float32).reshape(-1, 2))
        np.save(path / f"{split}_labels.npy", np.array([one.label for one in pairs], np.int32))
        np.save(path / PAIRS.format(split), pair_id_array(pairs))
    return str(path)


def test_vectors_of_pairs_are_those_of_the_texts(tmp_path):
    path = folder(tmp_path)
    for split in ("train", "test"):
        whole = make_relation_pairs(SPLITS, split)
        own = make_relation_pairs(SPLITS.of((2, 4)), split, known=(1, 2, 4))
        found = open_cached_pairs(path, split, relations=(2, 4), known=(1, 2, 4))
        read = [(whole[row].texts, whole[row].label) for row in found.rows]
        assert read == [(one.texts, one.label) for one in own]
        groups = np.unique(found.groups, return_inverse=True)[1]
        assert groups.tolist() == [one.group for one in own] and found.labels.tolist() == [one.label for one in own]
    with pytest.raises(ValueError, match=r"^data.source.relations: given \(9,\), allowed: some of 1, 2, 3, 4, 5$"):
        open_cached_pairs(path, "train", relations=(9,))
    (tmp_path / PAIRS.format("test")).unlink()
    with pytest.raises(ValueError, match="allowed: a folder with test_pairs.npy$"):
        open_cached_pairs(path, "test")


@pytest.mark.parametrize("kind", [SyntheticRelations, CachedPairs])
def test_a_task_knows_the_relations_of_the_tasks_so_far_in_their_order(kind):
    tasks = tuple(TaskData(name=f"{first}", source=kind(relations=(first, first + 1))) for first in (1, 3, 5))
    stream = Lifelong(tasks=tasks, task_order=(2, 0, 1), method=Sequential())
    assert [stream.source_of(name).earlier_relations for name in "513"] == [(5, 6), (1, 2, 5, 6), (1, 2, 3, 4, 5, 6)]
    together = Lifelong(tasks=tasks, task_order=(2, 0, 1), method=Joint())
    assert {together.source_of(name).earlier_relations for name in "135"} == {(1, 2, 3, 4, 5, 6)}
    whole = Lifelong(tasks=(TaskData(name="a", source=kind()), tasks[1]))
    assert whole.source_of("3").earlier_relations == ()
