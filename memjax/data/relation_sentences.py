"""Reads data sets for relation extraction: Lifelong FewRel, SimpleQuestions, TACRED, and synthetic sentences.

A sentence states a relation between two entities. A model must choose it among candidate relations.

Han et al., "FewRel", EMNLP 2018, https://arxiv.org/abs/1810.10147, and Bordes et al., "Large-scale Simple Question
Answering with Memory Networks", 2015, https://arxiv.org/abs/1506.02075, in the form of Wang et al., "Sentence Embedding
Alignment for Lifelong Relation Extraction", NAACL 2019, https://arxiv.org/abs/1903.02588: a relation, candidates and a
sentence in every line. Relations are numbered by the lines of a file of names, from 1. Zhang et al., "Position-aware
Attention and Supervised Data Improve Slot Filling" (TACRED), EMNLP 2017.

The training files of the first two are not always available. If only the other files are, these are split by a hash of
the sentence. Results on such splits cannot be compared with published ones.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax import config as configs
from memjax.data.paths import find_packed, packed_names, read_text
from memjax.data.reader_errors import expect, reading
from memjax.data.records import parse_json_file
from memjax.data.sources import SPLITS, assign_split
from memjax.data.vectors import make_random_state
from memjax.settings.reading_rules import held_out_shares

__all__ = [
    "RelationSentence",
    "RelationSplits",
    "sample_candidates",
    "make_synthetic_relations",
    "name_words",
    "parse_relation_files",
    "parse_tacred",
]

NO_NEGATIVES = "noNegativeAnswer"
"""Field of SimpleQuestions for a question without candidates. Published readers leave such lines out."""
NO_RELATION = "no_relation"
SUBJECTS = ("she", "he", "it", "nobody", "someone", "everyone")
FILLERS = ("then", "often", "there", "once", "again", "perhaps", "here", "today")


class RelationSentence(NamedTuple):
    """A sentence with the numbers of its relation and of the candidate relations, and the positions of its two
    entities.

    Attributes:
      text: The sentence, with white space between words.
      label: Number of its relation, from 0.
      candidates: Numbers of other relations that compete with its relation, from 0, in the order of the file.
      entities: Positions of the first and last word of the first entity and of the second entity. () if unknown.
    """

    text: str
    label: int
    candidates: tuple[int, ...]
    entities: tuple[int, int, int, int] | tuple[()] = ()


class RelationSplits(NamedTuple):
    """The sentences of each split of a data set for relation extraction, with the names of the relations and the
    numbers of lines that were left out.

    Attributes:
      names: Names of the relations, in the order of their numbers.
      sentences: Mapping from split to its sentences.
      repeated: Number of lines that were left out because they repeat a sentence with its relation, or a sentence of
        the test files.
      without: Number of lines that were left out because they have no candidates or no relation.
    """

    names: tuple[str, ...]
    sentences: Mapping[str, Sequence[RelationSentence]]
    repeated: int = 0
    without: int = 0

    def notes(self) -> list[str]:
        """Returns a list with a line about each kind of lines that were left out. Empty if none were."""
        counts = {"repeat another": self.repeated, "have no candidates or no relation": self.without}
        return [f"{count} sentences {what}, and are left out" for what, count in counts.items() if count]

    def of(self, relations: Sequence[int]) -> RelationSplits:
        """Returns the same splits with only the sentences of some relations, which are given by numbers from 1. Empty
        for all relations.

        Args:
          relations: Numbers of the relations, from 1. Empty for all relations.

        Raises:
          ValueError: A relation without a name.
        """
        if not relations:
            return self
        if wrong := [number for number in relations if number > len(self.names)]:
            allowed = f"1 to {len(self.names)}, the names of relations"
            raise ValueError(f"data.source.relations: given {wrong[0]}, allowed: {allowed}")
        labels = {number - 1 for number in relations}
        selected = {
            split: [sentence for sentence in sentences if sentence.label in labels]
            for split, sentences in self.sentences.items()
        }
        return self._replace(sentences=selected)


def name_words(name: str) -> list[str]:
    """Returns the words of a relation's name in lower case, as a list.

    Example:
      >>> name_words("/people/person/place_of_birth"), name_words("per:stateorprovince_of_birth")[:2]
      (['people', 'person', 'place', 'of', 'birth'], ['per', 'stateorprovince'])
    """
    return re.findall(r"[^\W_]+", name.lower())


def parse_relation_files(source: configs.RelationFiles) -> RelationSplits:
    """Reads Lifelong FewRel or SimpleQuestions from the files that `source` names, as `RelationSplits`. No sentence is
    in two splits.

    Raises:
      ValueError: A file that is missing or of another form, a relation without a name, or a sentence whose candidates
        do not contain its relation.
    """
    if not source.path:
        raise ValueError(f"data.source.path: given '', allowed: the folder of {source.names}")
    files = []
    for file in (source.names, *source.train, *source.test, *source.entities):
        found_path = find_packed(Path(source.path).expanduser(), file)
        if found_path is None:
            allowed = f"a folder with {' or '.join(packed_names(file))}"
            raise ValueError(f"data.source.path: given {source.path!r}, allowed: {allowed}")
        files.append((str(found_path), found_path.stat().st_mtime_ns))
    count, shares = len(files) - len(source.entities), held_out_shares(source)
    return _read_files(
        tuple(files[:count]), tuple(files[count:]), len(source.train), shares["validation"], shares["test"]
    )


@functools.lru_cache(maxsize=4)  # the tasks of one run read the same files
def _read_files(
    files: tuple[tuple[str, int], ...],
    entities: tuple[tuple[str, int], ...],
    num_train: int,
    validation_share: float,
    test_share: float,
) -> RelationSplits:
    """Reads the splits of `parse_relation_files`.

    Args:
      files: Path and time of change of the file of names, the training files and the test files, in this order.
      entities: Path and time of change of the files of entity positions.
      num_train: Number of training files.
      validation_share: Share of the training sentences that is held out for validation.
      test_share: Share of the training sentences that is held out for the test if there are no test files.
    """
    names = tuple(line.strip() for line in read_text(files[0][0]).splitlines() if line.strip())
    parts: dict[str, list[RelationSentence]] = {"train": [], "test": []}
    without = 0
    for place, (file, _) in enumerate(files[1:]):
        rows, left_out = _read_rows(Path(file), names, Path(files[0][0]).name)
        parts["train" if place < num_train else "test"] += rows
        without += left_out
    tested = {sentence.text for sentence in parts["test"]}
    sentences: dict[str, list[RelationSentence]] = {split: [] for split in SPLITS}
    known: set[tuple[str, int]] = set()
    repeated = 0
    for part in ("test", "train"):
        for sentence in parts[part]:
            if (sentence.text, sentence.label) in known or (part == "train" and sentence.text in tested):
                repeated += 1
                continue
            known.add((sentence.text, sentence.label))
            shares = {"validation": validation_share, "test": 0.0 if tested else test_share}
            sentences["test" if part == "test" else assign_split(sentence.text, **shares)].append(sentence)
    places: dict[str, tuple[int, int, int, int]] = {}
    for file, _ in entities:
        places = read_entity_positions(file) | places
    add_entities = lambda sentence: sentence._replace(entities=places.get(_normalize(sentence.text), sentence.entities))
    sentences = {split: [*map(add_entities, some)] for split, some in sentences.items()}
    return RelationSplits(names, sentences, repeated, without)


def _normalize(text: str) -> str:
    """Returns a text in lower case with single spaces, as the key of a sentence."""
    return " ".join(text.lower().split())


def read_entity_positions(file: str | Path) -> dict[str, tuple[int, int, int, int]]:
    """Reads a file of CFRL or FewRel: sentence, in lower case with single spaces -> positions of the first and last
    word of the first entity and of the second entity.

    Args:
      file: File of CFRL, whose lines have the words and positions of each entity after the sentence, or a `.json` file
        of FewRel.

    Returns:
      Mapping from the sentence, in lower case with single spaces, to the positions of the first and last word of both
      entities.

    Raises:
      ValueError: A file of another form, or entities beyond their sentence.
    """
    read: list[tuple[str, list[list[int]]]] = []
    entities = {}
    with reading(file, "a file of CFRL with places of the things, or .json of FewRel"):
        if ".json" in Path(file).suffixes:
            for rows in parse_json_file(file).values():
                read += [(" ".join(row["tokens"]), [row[entity][2][0] for entity in "ht"]) for row in rows]
        else:
            for line in filter(str.strip, read_text(file).splitlines()):
                fields = line.split("\t")
                read.append((fields[2], [[int(place) for place in fields[column].split()] for column in (4, 6)]))
        for number, (text, (head, tail)) in enumerate(read, start=1):
            spans = tuple(expect(place, int) for place in (head[0], head[-1], tail[0], tail[-1]))
            words = text.split()
            if len(words) == len(text.strip().split(" ")):  # else places count words that are white space
                check_entities(spans, len(words), f"{file}, sentence {number}")
                entities.setdefault(_normalize(text), spans)
    return entities


def _read_rows(file: Path, names: Sequence[str], of_names: str) -> tuple[list[RelationSentence], int]:
    """Reads the sentences of a file, and counts the lines that were left out. `of_names` is the file of names."""
    sentences, without = [], 0
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
        with reading(f"{file}:{number}", "numbers of relations"):
            label, candidates = int(fields[0]), [int(candidate) for candidate in fields[1].split()]
        if wrong := [number for number in (label, *candidates) if not 1 <= number <= len(names)]:
            allowed = f"1 to {len(names)}, the names of {of_names}"
            raise ValueError(f"{file}:{number}: given relation {wrong[0]}, allowed: {allowed}")
        if label not in candidates:
            allowed = "candidates with the relation of the sentence among them"
            raise ValueError(f"{file}:{number}: given candidates without relation {label}, allowed: {allowed}")
        others = tuple(dict.fromkeys(candidate - 1 for candidate in candidates if candidate != label))
        sentences.append(RelationSentence(fields[2].strip(), label - 1, others))
    return sentences, without


def parse_tacred(source: configs.Tacred) -> RelationSplits:
    """Reads TACRED as `RelationSplits`, from `train.json`, `dev.json` and `test.json` (also `.xz`, `.gz`) in the folder
    `source.path`. Sentences of `no_relation` are left out.

    Relations are numbered in the order of their names. The candidates of a sentence depend only on the seed and the id
    of the sentence, so that they are the same in every run.

    Raises:
      ValueError: A file that is missing or of another form, or an entity beyond its sentence.
    """
    path, seed = source.path, source.seed
    rows: dict[str, list[dict[str, Any]]] = {}
    for split, name in zip(SPLITS, ("train.json", "dev.json", "test.json"), strict=True):
        file = find_packed(Path(path).expanduser(), name)
        if file is None:
            raise ValueError(f"data.source.path: given {path!r}, allowed: a folder with {name}, also .xz or .gz")
        with reading(file, "TACRED's JSON, a list of sentences with an id"):
            rows[split] = [
                {**row, "place": f"{file}, {row['id']}", "relation": expect(row["relation"], str)}
                for row in parse_json_file(file)
            ]
    names = sorted({row["relation"] for split_rows in rows.values() for row in split_rows} - {NO_RELATION})
    number = {name: place for place, name in enumerate(names)}

    def sentence(row: Mapping[str, Any]) -> RelationSentence:
        words, label = expect(row["token"], list), number[row["relation"]]
        spans = tuple(int(row[f"{who}_{end}"]) for who in ("subj", "obj") for end in ("start", "end"))
        check_entities(spans, len(words), row["place"])
        ranked = sorted(
            range(len(names)), key=lambda relation: hashlib.sha256(f"{seed}/{row['id']}/{relation}".encode()).digest()
        )
        others = tuple([relation for relation in ranked if relation != label][: source.num_candidates])
        return RelationSentence(" ".join(words).lower(), label, others, spans)  # type: ignore[arg-type]

    related_rows = {
        split: [row for row in split_rows if row["relation"] != NO_RELATION] for split, split_rows in rows.items()
    }
    with reading(path, "TACRED's JSON"):
        sentences = {split: [sentence(row) for row in split_rows] for split, split_rows in related_rows.items()}
    return RelationSplits(
        tuple(names), sentences, 0, sum(map(len, rows.values())) - sum(map(len, related_rows.values()))
    )


def check_entities(spans: Sequence[int], words: int, place: str) -> None:
    """Raises `ValueError` unless each entity lies within its sentence of `words` words. `spans` are the positions of
    the first and last word of each entity. The error names the place `place`.

    Args:
      spans: Positions of the first and last word of each entity.
      words: Number of words of the sentence.
      place: Place of the sentence, for the error message.

    Raises:
      ValueError: An entity that is not within the sentence.
    """
    for first, last in zip(spans[::2], spans[1::2], strict=True):
        if not 0 <= first <= last < words:
            raise ValueError(f"{place}: given an entity from word {first} to {last}, allowed: within 0 to {words - 1}")


def sample_candidates(sentence: RelationSentence, most: int) -> tuple[int, ...]:
    """Returns at most `most` of the candidates of a sentence, 0 for all, as numbers of relations in the order of the
    sentence. They are selected by a hash of the sentence.
    """
    count = len(sentence.candidates)
    if not most or count <= most:
        return sentence.candidates
    selected_places = np.sort(
        make_random_state(f"candidates/{sentence.label}/{sentence.text}").permutation(count)[:most]
    )
    return tuple(sentence.candidates[place] for place in selected_places)


def make_synthetic_relations(
    *, num_relations: int = 8, num_train: int = 16, num_candidates: int = 3, seed: int = 0
) -> RelationSplits:
    """Generates synthetic sentences for relation extraction as `RelationSplits`: filler words and one cue word that
    names the relation. `num_train` counts training sentences of each relation. Other splits have half as many.

    Args:
      num_relations: Number of relations.
      num_train: Number of training sentences of each relation. Validation and test have half as many.
      num_candidates: Number of candidates of a sentence, other relations than its own. 0 for all.
      seed: Seed of all random choices.

    Example:
      >>> splits = make_synthetic_relations(num_relations=3, num_train=2)
      >>> [len(splits.sentences[name]) for name in SPLITS], splits.names[2], "cue2" in splits.sentences["test"][2].text
      ([6, 3, 3], '/made/cue2', True)
    """
    sentences = {}
    for split in SPLITS:
        draw, split_sentences = make_random_state(f"relations/{seed}/{split}"), []
        for turn in range(num_train if split == "train" else max(num_train // 2, 1)):
            for label in range(num_relations):
                place, words = draw.randint(1, 4), list(draw.choice(FILLERS, 4))
                words[place] = f"cue{label}"
                others = draw.permutation([relation for relation in range(num_relations) if relation != label])
                candidates = tuple(int(relation) for relation in others[: num_candidates or None])
                text = " ".join([SUBJECTS[(turn + label) % len(SUBJECTS)], *words])
                split_sentences.append(RelationSentence(text, label, candidates, (0, 0, 4, 4)))
        sentences[split] = split_sentences
    return RelationSplits(tuple(f"/made/cue{number}" for number in range(num_relations)), sentences)


def parse_made_relations(source: configs.SyntheticRelations) -> RelationSplits:
    """Generates synthetic sentences with relations as `RelationSplits`, with the sizes in `source`."""
    names = ("num_relations", "num_train", "num_candidates", "seed")
    return make_synthetic_relations(**{name: getattr(source, name) for name in names})
