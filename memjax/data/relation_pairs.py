"""Relation extraction as classification of pairs: a sentence, and the name of a relation that it states or not.

Holla, Mishra, Yannakoudakis and Shutova, "Meta-Learning with Sparse Experience Replay for Lifelong Language Learning",
2020, https://arxiv.org/abs/2009.04891. A sentence is paired with its own relation (class 1) and with each of its
candidates (class 0). The predicted relation is that of the pair with the best score.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.array_files import read_array
from memjax.data.glue import LabelledText
from memjax.data.relation_sentences import RelationSplits, name_words, sample_candidates
from memjax.data.vectors import VectorArrays, open_feature_files

__all__ = ["PAIRS", "RelationPair", "open_cached_pairs", "pair_id_array", "make_relation_pairs"]

PAIRS = "{}_pairs.npy"
"""File name of a split's pairs, int32 `[pairs, 3]`: sentence number, its relation, and the relation that the pair
names (both from 1)."""


@dataclasses.dataclass(frozen=True)
class RelationPair(LabelledText):
    """A sentence and the name of a relation as a pair of texts, of class 1 if the sentence states that relation.

    `group` is the number of the sentence.

    Attributes:
      stated: Number of the relation that the sentence states, from 1 as in the files.
      candidate: Number of the relation whose name the pair contains, from 1.
    """

    stated: int = 1
    candidate: int = 1


def make_relation_pairs(
    splits: RelationSplits, split: str, *, known: Sequence[int] = (), sentences: int = 0, candidates: int = 0
) -> list[RelationPair]:
    """Pairs each sentence of a split with its own relation, and then with its candidates, in training only with those
    numbered in `known`. At most `sentences` sentences of a relation and `candidates` of a sentence are used, 0 for all.

    Args:
      splits: Sentences of all splits.
      split: 'train', 'validation' or 'test'.
      known: Numbers, from 1, of the relations that candidates of training sentences may be. Empty for all. Other splits
        use all candidates. A sentence without a candidate left is paired with its own relation only.
      sentences: Number of sentences of each relation, the first ones. 0 for all.
      candidates: Largest number of candidates of a sentence, selected by a hash of the sentence. 0 for all.

    Example:
      >>> from memjax.data.relation_sentences import make_synthetic_relations
      >>> relations = make_synthetic_relations(num_relations=4, num_candidates=3)
      >>> pairs = make_relation_pairs(relations, "train", known=(1, 2))
      >>> [(pair.texts[1], pair.label, pair.group) for pair in pairs[:2]], len({pair.group for pair in pairs})
      ([('made cue0', 1, 0), ('made cue1', 0, 0)], 64)
    """
    names = [" ".join(name_words(name)) for name in splits.names]
    allowed = set(known) if split == "train" and known else set(range(1, 1 + len(names)))
    pairs: list[RelationPair] = []
    num_taken = np.zeros(len(names), int)
    for group, sentence in enumerate(splits.sentences[split]):
        label = sentence.label
        num_taken[label] += 1
        if sentences and num_taken[label] > sentences:
            continue
        others = [other for other in sample_candidates(sentence, candidates) if 1 + other in allowed]
        for other in (label, *others):
            texts = (sentence.text, names[other])
            pairs.append(RelationPair(texts, int(other == label), group, stated=1 + label, candidate=1 + other))
    return pairs


def pair_id_array(pairs: Sequence[RelationPair]) -> np.ndarray:
    """Returns the pairs as int32 `[pairs, 3]`, the content of the file `PAIRS`: number of the sentence, its relation,
    and the relation that the pair names.
    """
    return np.array([(pair.group, pair.stated, pair.candidate) for pair in pairs], np.int32).reshape(-1, 3)


def open_cached_pairs(
    folder: str | Path, split: str, *, relations: Sequence[int] = (), known: Sequence[int] = ()
) -> VectorArrays:
    """Opens the cached features of the pairs of a split, memory-mapped, as `VectorArrays`. `relations` are the numbers
    of the relations whose sentences are read, `known` those of the candidates in training. Empty for all.

    `tools.measurements.vectors pairs` writes them with an encoder.

    Args:
      folder: Folder with `SPLIT.npy`, `SPLIT_labels.npy` and `SPLIT_pairs.npy`.
      split: 'train', 'validation' or 'test'.
      relations: Numbers, from 1, of the relations of the sentences to read. Empty for all.
      known: Numbers, from 1, of the relations that candidates of training sentences may be. Empty for all.

    Raises:
      ValueError: A file that is missing or has the wrong content, or relations that no sentence has.
    """
    folder = Path(folder).expanduser()
    values, labels = open_feature_files(folder, split)
    file = folder / PAIRS.format(split)
    if not file.is_file():
        raise ValueError(f"data.source.path: given {str(folder)!r}, allowed: a folder with {file.name}")
    pairs = read_array(file, f"int32 [{len(labels)}, 3]")
    if pairs.shape != (len(labels), 3) or pairs.dtype.kind != "i":
        actual, allowed = f"{pairs.dtype} {list(pairs.shape)}", f"int32 [{len(labels)}, 3]"
        raise ValueError(f"{file}: given {actual}, allowed: {allowed}")
    is_selected = np.isin(pairs[:, 1], relations) if len(relations) else np.ones(len(pairs), bool)
    if split == "train" and len(known):
        is_selected &= (labels == 1) | np.isin(pairs[:, 2], known)
    if not is_selected.any():
        allowed = f"some of {', '.join(map(str, np.unique(pairs[:, 1])))}"
        raise ValueError(f"data.source.relations: given {tuple(relations)}, allowed: {allowed}")
    rows = np.flatnonzero(is_selected)
    return VectorArrays(values, np.asarray(labels[rows], np.int32), rows, (0, 1), groups=pairs[rows, 0])


def open_pair_vectors(data: configs.Data, split: str) -> VectorArrays:
    """Returns the features of the pairs of one split, which a model has computed earlier, from the folder
    `data.source.path`, as `VectorArrays`.
    """
    source: Any = data.source
    return open_cached_pairs(source.path, split, relations=source.relations, known=source.earlier_relations)


def name_pair_classes(source: configs.Source) -> dict[int, str]:
    """Returns number -> name of the two classes of pairs: 1 if the sentence states the relation, otherwise 0. `source`
    is not used.
    """
    del source
    return {0: "another relation", 1: "this relation"}
