"""Where sentences with relations come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from memjax.settings.examples import Vectors
from memjax.settings.ranges import Count, Number, Percent, Range, Seed
from memjax.settings.relations import require
from memjax.settings.sources import Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["CachedPairs", "MadeRelations", "RelationFiles", "RelationKind", "Relations", "Tacred"]

Numbers = Annotated[tuple[int, ...], Range(words="numbers of relations, from 1 on", least=1)]


@dataclass(slots=True, kw_only=True)
class Relations(Source):
    """Sentences that each tell one relation of two things, for RelationExtraction. Relations are numbered from 1.

    For Classification pairs of a sentence and the name of a relation, which it tells (class 1) or not (class 0).
    """

    gives = ("relations", "labelled")
    names_relations = True

    relations: Numbers = ()
    """whose sentences are read: those of one task of several; () = all"""
    known: Numbers = ()
    """Classification: the relations whose names a sentence to train on is paired with beside its own; () = all. A
    stream gives each task those of the tasks so far, and Joint with one stage those of all"""

    def after(self, earlier: Sequence[Any]) -> Source:
        return replace(self, known=_known(self, earlier))

    def check(self, field: str, config: Config) -> None:
        count, largest = config.task.num_classes, max(self.relations, default=1)
        task = type(config.task).__name__
        allowed = f"RelationExtraction or Classification with {type(self).__name__}"
        require(task in ("RelationExtraction", "Classification"), "task", task, allowed)
        if config.task.numbers_relations:
            require(largest <= count, f"{field}relations", largest, f"1 to task.num_classes = {count}")
        else:
            require(count == 2, "task.num_classes", count, f"2 with pairs of {type(self).__name__}")


@dataclass(slots=True, kw_only=True)
class RelationFiles(Relations):
    """Lifelong FewRel and SimpleQuestions (Wang et al. 2019): a relation, candidates and a sentence in every line."""

    path: str = ""
    """the folder of the files (also .xz / .gz)"""
    names: str = "relation_name.txt"
    """the file of the names of relations, one a line"""
    train: tuple[str, ...] = ("val_data.txt",)
    """files to train on"""
    test: tuple[str, ...] = ()
    """files to test on; () = a share of the others"""
    entities: tuple[str, ...] = ()
    """files of the folder that say where the two things of a sentence stand, for a text encoder: of CFRL (Qin and Joty
    2022: relation, candidates, sentence, then words and places of each thing) or .json of FewRel; sentences are the
    same but for case and white space"""
    validation_percent: Percent = 10
    """share of the sentences to train on that is held out, by a hash of the sentence"""
    test_percent: Percent = 20
    """likewise for the test split, where it has no files"""


@dataclass(slots=True, kw_only=True)
class Tacred(Relations):
    """TACRED (Zhang et al. 2017): train.json, dev.json and test.json; sentences of no relation are left out."""

    path: str = ""
    """the folder of the files (also .xz / .gz)"""
    num_candidates: Count = 10
    """other relations that a sentence is compared with, drawn by the seed"""
    seed: Seed = 0
    """of the candidates"""


@dataclass(slots=True, kw_only=True)
class MadeRelations(Relations):
    """Synthetic sentences: a word of the relation's own among words that say nothing."""

    num_relations: Count = 8
    """relations that there are"""
    num_train: Count = 16
    """sentences of each relation to train on; half as many in validation and test"""
    num_candidates: Number = 3
    """other relations that a sentence is compared with; 0 = all"""
    seed: Seed = 0
    """of all that is drawn"""

    def check(self, field: str, config: Config) -> None:
        Relations.check(self, field, config)
        if not config.task.numbers_relations:
            return
        count = config.task.num_classes
        require(count == self.num_relations, f"{field}num_relations", self.num_relations, f"task.num_classes = {count}")


@dataclass(slots=True, kw_only=True)
class CachedPairs(Vectors):
    """Pairs of a sentence and the name of a relation as vectors that a model made before, for Classification.

    As CachedFeatures, with `validation.npy`, and for every split `SPLIT_pairs.npy`, int32 [pairs, 3]: number of the
    sentence, relation that it tells, relation of the name (`python -m tools.measurements.vectors pairs`).
    """

    path: str = ""
    """the folder"""
    relations: Numbers = ()
    """as in RelationFiles"""
    known: Numbers = ()
    """as in RelationFiles"""

    def after(self, earlier: Sequence[Any]) -> Source:
        return replace(self, known=_known(self, earlier))

    def check(self, field: str, config: Config) -> None:
        Vectors.check(self, field, config)
        count, kind = config.task.num_classes, type(self).__name__
        require(not self.classes, f"{field}classes", self.classes, f"() with {kind}")
        require(count == 2, "task.num_classes", count, f"2 with {kind}")


def _known(own: Any, earlier: Sequence[Any]) -> tuple[int, ...]:
    """The relations of some tasks; () = all, where one of them has all."""
    of_each = [one.relations for one in (*earlier, own)]
    return tuple(sorted({number for some in of_each for number in some})) if all(of_each) else ()


RelationKind = RelationFiles | Tacred | MadeRelations | CachedPairs
