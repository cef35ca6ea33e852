"""Sentences with relations as pairs: a sentence and the name of a relation, which it tells or does not.

Holla, Mishra, Yannakoudakis and Shutova, "Meta-Learning with Sparse Experience Replay for Lifelong Language Learning",
2020, https://arxiv.org/abs/2009.04891: a sentence is paired with the relation that it tells (class 1) and with each of
its candidates (class 0); its answer is the relation of the pair that scores best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from memjax.data.glue import LabelledText
from memjax.data.relation_sentences import RelationSplits, drawn_candidates, name_words
from memjax.data.vectors import Vectors, feature_files

__all__ = ["PAIRS", "RelationPair", "cached_pairs", "pair_numbers", "relation_pairs"]

PAIRS = "{}_pairs.npy"
"""file of a split, int32 `[pairs, 3]`: number of the sentence, relation that it tells, relation of the name (from 1)"""


@dataclasses.dataclass(frozen=True)
class RelationPair(LabelledText):
    """A sentence and the words of a relation's name; class 1 = it tells the relation. `group` is the sentence.

    Attributes:
      told: the relation that the sentence tells, from 1 as in the files.
      named: the one whose name it is.
    """

    told: int = 1
    named: int = 1


def relation_pairs(
    splits: RelationSplits, split: str, *, known: Sequence[int] = (), sentences: int = 0, candidates: int = 0
) -> list[RelationPair]:
    """The pairs of a split, sentence by sentence, the right one first.

    Args:
      splits: what was read.
      split: which of them.
      known: of the training split: the relations, from 1, whose names a sentence is paired with beside its own; () =
        all. A sentence of which none is left is paired with its own alone.
      sentences: the first ones of each relation; 0 = all.
      candidates: other relations of a sentence, at most, drawn by a hash of it; 0 = all.

    Example:
      >>> from memjax.data.relation_sentences import made_relations
      >>> found = relation_pairs(made_relations(num_relations=4, num_candidates=3), "train", known=(1, 2))
      >>> [(one.texts[1], one.label, one.group) for one in found[:2]], len({one.group for one in found})
      ([('made cue0', 1, 0), ('made cue1', 0, 0)], 64)
    """
    names = [" ".join(name_words(name)) for name in splits.names]
    allowed = set(known) if split == "train" and known else set(range(1, 1 + len(names)))
    found: list[RelationPair] = []
    taken = np.zeros(len(names), int)
    for group, one in enumerate(splits.sentences[split]):
        taken[one.label] += 1
        if sentences and taken[one.label] > sentences:
            continue
        others = [other for other in drawn_candidates(one, candidates) if 1 + other in allowed]
        for other in (one.label, *others):
            pair = (one.text, names[other])
            found.append(RelationPair(pair, int(other == one.label), group, told=1 + one.label, named=1 + other))
    return found


def pair_numbers(pairs: Sequence[RelationPair]) -> np.ndarray:
    """What `PAIRS` holds."""
    return np.array([(one.group, one.told, one.named) for one in pairs], np.int32).reshape(-1, 3)


def cached_pairs(
    folder: str | Path, split: str, *, relations: Sequence[int] = (), known: Sequence[int] = ()
) -> Vectors:
    """A split of pairs that an encoder has read before (`tools.measurements.vectors pairs`), left where they are.

    Args:
      folder: with `SPLIT.npy`, `SPLIT_labels.npy` and `SPLIT_pairs.npy`.
      split: 'train', 'validation' or 'test'.
      relations: of the sentences, from 1; () = all.
      known: as in `relation_pairs`.

    Raises:
      ValueError: a file that is missing or holds something else, or relations that no sentence has.
    """
    folder = Path(folder).expanduser()
    values, labels = feature_files(folder, split)
    file = folder / PAIRS.format(split)
    if not file.is_file():
        raise ValueError(f"data.source.path: given {str(folder)!r}, allowed: a folder with {file.name}")
    pairs = np.load(file)
    if pairs.shape != (len(labels), 3) or pairs.dtype.kind != "i":
        given, allowed = f"{pairs.dtype} {list(pairs.shape)}", f"int32 [{len(labels)}, 3]"
        raise ValueError(f"{file}: given {given}, allowed: {allowed}")
    chosen = np.isin(pairs[:, 1], relations) if len(relations) else np.ones(len(pairs), bool)
    if split == "train" and len(known):
        chosen &= (labels == 1) | np.isin(pairs[:, 2], known)
    if not chosen.any():
        allowed = f"some of {', '.join(map(str, np.unique(pairs[:, 1])))}"
        raise ValueError(f"data.source.relations: given {tuple(relations)}, allowed: {allowed}")
    rows = np.flatnonzero(chosen)
    return Vectors(values, np.asarray(labels[rows], np.int32), rows, (0, 1), groups=pairs[rows, 0])
