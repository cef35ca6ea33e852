"""Sentences that each tell a relation of two things: Lifelong FewRel, SimpleQuestions, TACRED, and made ones.

Han et al., "FewRel", EMNLP 2018, https://arxiv.org/abs/1810.10147, and Bordes et al., "Large-scale Simple Question
Answering with Memory Networks", 2015, https://arxiv.org/abs/1506.02075, in the form of Wang et al., "Sentence Embedding
Alignment for Lifelong Relation Extraction", NAACL 2019, https://arxiv.org/abs/1903.02588: a relation, candidates and a
sentence in every line, relations being lines of a file of names, counted from 1. Zhang et al., "Position-aware
Attention and Supervised Data Improve Slot Filling" (TACRED), EMNLP 2017.

The files to train on of the first two are not everywhere at hand. Where only the others are, each is split by a hash of
the sentence: numbers of such splits are no published ones.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax.data.paths import find_packed, packed_names, read_text
from memjax.data.sources import SPLITS, split_of
from memjax.data.vectors import random_of

__all__ = [
    "RelationSentence",
    "RelationSplits",
    "drawn_candidates",
    "made_relations",
    "name_words",
    "relation_files",
    "tacred_sentences",
]

NO_NEGATIVES = "noNegativeAnswer"
"""what SimpleQuestions writes where a question has no candidates; published readers leave such lines out"""
NO_RELATION = "no_relation"
SUBJECTS = ("she", "he", "it", "nobody", "someone", "everyone")
FILLERS = ("then", "often", "there", "once", "again", "perhaps", "here", "today")


class RelationSentence(NamedTuple):
    """A sentence with its relation.

    Attributes:
      text: words between white space.
      label: number of the relation, from 0.
      candidates: those that it is compared with, from 0, without its own, in the order of the file.
      entities: first and last word of the first thing and of the second; () = not known.
    """

    text: str
    label: int
    candidates: tuple[int, ...]
    entities: tuple[int, int, int, int] | tuple[()] = ()


class RelationSplits(NamedTuple):
    """What is read of a source.

    Attributes:
      names: of the relations, in the order of their numbers.
      sentences: split -> its sentences.
      repeated: lines that repeat another, with the same relation, which are left out.
      without: lines without candidates or relation, which are left out.
    """

    names: tuple[str, ...]
    sentences: Mapping[str, Sequence[RelationSentence]]
    repeated: int = 0
    without: int = 0

    def notes(self) -> list[str]:
        """A line for every number that is not 0."""
        told = {"repeat another": self.repeated, "have no candidates or no relation": self.without}
        return [f"{count} sentences {what}, and are left out" for what, count in told.items() if count]

    def of(self, relations: Sequence[int]) -> RelationSplits:
        """The sentences of some relations alone, numbered from 1; () = all."""
        if not relations:
            return self
        if wrong := [number for number in relations if number > len(self.names)]:
            allowed = f"1 to {len(self.names)}, the names of relations"
            raise ValueError(f"data.source.relations: given {wrong[0]}, allowed: {allowed}")
        own = {number - 1 for number in relations}
        kept = {split: [one for one in some if one.label in own] for split, some in self.sentences.items()}
        return self._replace(sentences=kept)

    @property
    def most_candidates(self) -> int:
        """Of any sentence."""
        return max((len(one.candidates) for some in self.sentences.values() for one in some), default=0)


def name_words(name: str) -> list[str]:
    """The words of a relation's name, in lower case.

    Example:
      >>> name_words("/people/person/place_of_birth"), name_words("per:stateorprovince_of_birth")[:2]
      (['people', 'person', 'place', 'of', 'birth'], ['per', 'stateorprovince'])
    """
    return re.findall(r"[^\W_]+", name.lower())


def relation_files(
    path: str,
    *,
    names: str,
    train: Sequence[str],
    test: Sequence[str] = (),
    entities: Sequence[str] = (),
    validation_share: float = 0.1,
    test_share: float = 0.2,
) -> RelationSplits:
    """All splits of a folder of Lifelong FewRel or SimpleQuestions; no sentence is in two of them.

    Args:
      path: the folder.
      names: the file of the names (also `.xz`, `.gz`).
      train: files to train on (also packed).
      test: files to test on; () = a share of the others.
      entities: files that say where the two things of a sentence stand (`entity_places`).
      validation_share: held out of those to train on, by a hash of the sentence.
      test_share: likewise, where no file is the test split.

    Raises:
      ValueError: a file that is missing or of another form, a relation without a name, a sentence whose candidates are
        without its relation.
    """
    found = []
    for file in (names, *train, *test, *entities):
        there = find_packed(Path(path).expanduser(), file)
        if there is None:
            allowed = f"a folder with {' or '.join(packed_names(file))}"
            raise ValueError(f"data.source.path: given {path!r}, allowed: {allowed}")
        found.append((str(there), there.stat().st_mtime_ns))
    count = len(found) - len(entities)
    return _read_files(tuple(found[:count]), tuple(found[count:]), len(train), validation_share, test_share)


@functools.lru_cache(maxsize=4)  # the tasks of one run read the same files
def _read_files(
    files: tuple[tuple[str, int], ...],
    entities: tuple[tuple[str, int], ...],
    num_train: int,
    validation_share: float,
    test_share: float,
) -> RelationSplits:
    names = tuple(line.strip() for line in read_text(files[0][0]).splitlines() if line.strip())
    parts: dict[str, list[RelationSentence]] = {"train": [], "test": []}
    without = 0
    for place, (file, _) in enumerate(files[1:]):
        rows, left_out = _read_rows(Path(file), names, Path(files[0][0]).name)
        parts["train" if place < num_train else "test"] += rows
        without += left_out
    tested = {one.text for one in parts["test"]}
    sentences: dict[str, list[RelationSentence]] = {split: [] for split in SPLITS}
    known: set[tuple[str, int]] = set()
    repeated = 0
    for part in ("test", "train"):
        for one in parts[part]:
            if (one.text, one.label) in known or (part == "train" and one.text in tested):
                repeated += 1
                continue
            known.add((one.text, one.label))
            shares = {"validation": validation_share, "test": 0.0 if tested else test_share}
            sentences["test" if part == "test" else split_of(one.text, **shares)].append(one)
    places: dict[str, tuple[int, int, int, int]] = {}
    for file, _ in entities:
        places = entity_places(file) | places
    placed = lambda one: one._replace(entities=places.get(_same(one.text), one.entities))
    sentences = {split: [*map(placed, some)] for split, some in sentences.items()}
    return RelationSplits(names, sentences, repeated, without)


def _same(text: str) -> str:
    return " ".join(text.lower().split())


def entity_places(file: str | Path) -> dict[str, tuple[int, int, int, int]]:
    """Sentence, in lower case and single spaces -> first and last word of its two things.

    Args:
      file: of CFRL, whose lines have words and places of each thing behind the sentence, or `.json` of FewRel.

    Raises:
      ValueError: another form, or things beyond their sentence.
    """
    read: list[tuple[str, list[list[int]]]] = []
    try:
        if ".json" in Path(file).suffixes:
            for rows in json.loads(read_text(file)).values():
                read += [(" ".join(row["tokens"]), [row[one][2][0] for one in "ht"]) for row in rows]
        else:
            for line in filter(str.strip, read_text(file).splitlines()):
                fields = line.split("\t")
                read.append((fields[2], [[int(place) for place in fields[one].split()] for one in (4, 6)]))
        found = {}
        for number, (text, both) in enumerate(read, start=1):
            spans = (both[0][0], both[0][-1], both[1][0], both[1][-1])
            words = text.split()
            if len(words) == len(text.strip().split(" ")):  # else places count words that are white space
                check_entities(spans, len(words), f"{file}, sentence {number}")
                found.setdefault(_same(text), spans)
    except (KeyError, IndexError, TypeError, json.JSONDecodeError):
        allowed = "a file of CFRL with places of the things, or .json of FewRel"
        raise ValueError(f"{file}: given without places, allowed: {allowed}") from None
    return found


def _read_rows(file: Path, names: Sequence[str], of_names: str) -> tuple[list[RelationSentence], int]:
    """The sentences of a file, and how many lines were left out."""
    found, without = [], 0
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) < 3 or not fields[2].strip():
            allowed = "a relation, candidates and a sentence, with tabs between them"
            raise ValueError(f"{file}:{number}: given {line[:40]!r}, allowed: {allowed}")
        if fields[1].strip() == NO_NEGATIVES:
            without += 1
            continue
        try:
            label, candidates = int(fields[0]), [int(one) for one in fields[1].split()]
        except ValueError:
            raise ValueError(f"{file}:{number}: given {line[:40]!r}, allowed: numbers of relations") from None
        if wrong := [one for one in (label, *candidates) if not 1 <= one <= len(names)]:
            allowed = f"1 to {len(names)}, the names of {of_names}"
            raise ValueError(f"{file}:{number}: given relation {wrong[0]}, allowed: {allowed}")
        if label not in candidates:
            allowed = "candidates with the relation of the sentence among them"
            raise ValueError(f"{file}:{number}: given candidates without relation {label}, allowed: {allowed}")
        others = tuple(dict.fromkeys(one - 1 for one in candidates if one != label))
        found.append(RelationSentence(fields[2].strip(), label - 1, others))
    return found, without


def tacred_sentences(path: str, *, num_candidates: int = 10, seed: int = 0) -> RelationSplits:
    """The three splits of TACRED; sentences of `no_relation` are left out.

    Relations are numbered by their names. The candidates of a sentence are drawn by the seed and its id, so that they
    are the same in every run.

    Args:
      path: the folder of `train.json`, `dev.json` and `test.json` (also `.xz`, `.gz`).
      num_candidates: other relations of each sentence, at most.
      seed: of the candidates.

    Raises:
      ValueError: a file that is missing or of another form, or an entity beyond its sentence.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for split, name in zip(SPLITS, ("train.json", "dev.json", "test.json"), strict=True):
        file = find_packed(Path(path).expanduser(), name)
        if file is None:
            raise ValueError(f"data.source.path: given {path!r}, allowed: a folder with {name}, also .xz or .gz")
        try:
            rows[split] = [{**row, "place": f"{file}, {row['id']}"} for row in json.loads(read_text(file))]
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{file}: no list of sentences with an id, allowed: TACRED's JSON") from None
    names = sorted({str(row.get("relation")) for some in rows.values() for row in some} - {NO_RELATION})
    number = {name: place for place, name in enumerate(names)}

    def sentence(row: Mapping[str, Any]) -> RelationSentence:
        words, label = row["token"], number[row["relation"]]
        spans = tuple(int(row[f"{who}_{end}"]) for who in ("subj", "obj") for end in ("start", "end"))
        check_entities(spans, len(words), row["place"])
        ranked = sorted(
            range(len(names)), key=lambda one: hashlib.sha256(f"{seed}/{row['id']}/{one}".encode()).digest()
        )
        others = tuple([one for one in ranked if one != label][:num_candidates])
        return RelationSentence(" ".join(words).lower(), label, others, spans)  # type: ignore[arg-type]

    try:
        kept = {split: [row for row in some if row["relation"] != NO_RELATION] for split, some in rows.items()}
        sentences = {split: [sentence(row) for row in some] for split, some in kept.items()}
    except KeyError as error:
        raise ValueError(f"{path}: a sentence without {error.args[0]!r}, allowed: TACRED's JSON") from None
    return RelationSplits(tuple(names), sentences, 0, sum(map(len, rows.values())) - sum(map(len, kept.values())))


def check_entities(spans: Sequence[int], words: int, place: str) -> None:
    """Refuses entities that are not within their sentence.

    Raises:
      ValueError: one line with the place.
    """
    for first, last in zip(spans[::2], spans[1::2], strict=True):
        if not 0 <= first <= last < words:
            raise ValueError(f"{place}: given an entity from word {first} to {last}, allowed: within 0 to {words - 1}")


def drawn_candidates(sentence: RelationSentence, most: int) -> tuple[int, ...]:
    """At most so many of the candidates, in their order, drawn by a hash of the sentence; 0 = all."""
    count = len(sentence.candidates)
    if not most or count <= most:
        return sentence.candidates
    kept = np.sort(random_of(f"candidates/{sentence.label}/{sentence.text}").permutation(count)[:most])
    return tuple(sentence.candidates[place] for place in kept)


def made_relations(
    *, num_relations: int = 8, num_train: int = 16, num_candidates: int = 3, seed: int = 0
) -> RelationSplits:
    """Sentences of words that say nothing and one of the relation's own, which is in its name too.

    Args:
      num_relations: that there are.
      num_train: sentences of each to train on; half as many in validation and test.
      num_candidates: other relations that a sentence is compared with; 0 = all.
      seed: of all that is drawn.

    Example:
      >>> made = made_relations(num_relations=3, num_train=2)
      >>> [len(made.sentences[split]) for split in SPLITS], made.names[2], "cue2" in made.sentences["test"][2].text
      ([6, 3, 3], '/made/cue2', True)
    """
    sentences = {}
    for split in SPLITS:
        draw, some = random_of(f"relations/{seed}/{split}"), []
        for turn in range(num_train if split == "train" else max(num_train // 2, 1)):
            for label in range(num_relations):
                place, words = draw.randint(1, 4), list(draw.choice(FILLERS, 4))
                words[place] = f"cue{label}"
                others = draw.permutation([one for one in range(num_relations) if one != label])
                chosen = tuple(int(one) for one in others[: num_candidates or None])
                text = " ".join([SUBJECTS[(turn + label) % len(SUBJECTS)], *words])
                some.append(RelationSentence(text, label, chosen, (0, 0, 4, 4)))
        sentences[split] = some
    return RelationSplits(tuple(f"/made/cue{number}" for number in range(num_relations)), sentences)
