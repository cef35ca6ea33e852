"""Settings of sources of sentences that express relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from memjax.settings.checks import require
from memjax.settings.examples import Vectors
from memjax.settings.ranges import Count, Number, Percent, Range, Seed
from memjax.settings.sources import Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["CachedPairs", "SyntheticRelations", "RelationFiles", "RelationKind", "Relations", "Tacred"]

Numbers = Annotated[tuple[int, ...], Range(words="numbers of relations, from 1 on", least=1)]


@dataclass(slots=True, kw_only=True)
class Relations(Source):
    """Common settings of sources of sentences that each express one relation between two things, for
    RelationExtraction, or for Classification in pairs with names of relations.

    Relations are numbered from 1.

    For Classification they are pairs of a sentence and the name of a relation, which the sentence expresses (class 1)
    or not (class 0).
    """

    content_types = ("relations", "labelled")
    names_relations = True
    opened_by = "memjax.data.source_readers:open_relations"
    opened_as = {"labelled": "memjax.data.source_readers:open_relation_pairs"}
    noted_by = "memjax.data.source_readers:note_relations"
    classes_named_by = "memjax.data.relation_pairs:name_pair_classes"

    relations: Numbers = ()
    """numbers of the relations whose sentences are read, such as those of one task; () = all"""
    earlier_relations: Numbers = ()
    """numbers of the relations whose names a training sentence is paired with beside its own, for Classification; () =
    all. A stream sets it to the relations of the tasks so far, and Joint with one stage to those of all tasks"""

    def following(self, earlier: Sequence[Any]) -> Source:
        return replace(self, earlier_relations=_known_relations(self, earlier))

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
    """Lifelong FewRel and SimpleQuestions (Wang et al. 2019): every line has a relation, candidates and a sentence."""

    parsed_by = "memjax.data.relation_sentences:parse_relation_files"

    path: str = ""
    """folder of the files (also .xz / .gz)"""
    names: str = "relation_name.txt"
    """file of the names of the relations, one in a line"""
    train: tuple[str, ...] = ("val_data.txt",)
    """training files"""
    test: tuple[str, ...] = ()
    """test files; () = `test_percent` of the training sentences"""
    entities: tuple[str, ...] = ()
    """files of the folder that say where the two things of a sentence stand, for a text encoder: of CFRL (Qin and Joty
    2022: relation, candidates, sentence, then words and places of each thing) or .json of FewRel; sentences must be
    equal up to case and white space"""
    validation_percent: Percent = 10
    """percentage of the training sentences held out for validation, by a hash of the sentence"""
    test_percent: Percent = 20
    """percentage of the training sentences held out for test, by a hash of the sentence, where there are no test
    files"""


@dataclass(slots=True, kw_only=True)
class Tacred(Relations):
    """TACRED (Zhang et al. 2017): train.json, dev.json and test.json. Sentences without a relation are left out."""

    parsed_by = "memjax.data.relation_sentences:parse_tacred"

    path: str = ""
    """folder of the files (also .xz / .gz)"""
    num_candidates: Count = 10
    """number of other relations that a sentence is compared with, drawn at random"""
    seed: Seed = 0
    """seed of the random choice of candidates"""


@dataclass(slots=True, kw_only=True)
class SyntheticRelations(Relations):
    """Synthetic sentences for relation extraction: one word tells the relation, the others are noise."""

    parsed_by = "memjax.data.relation_sentences:parse_made_relations"

    num_relations: Count = 8
    """number of relations; with RelationExtraction it must equal `task.num_classes`"""
    num_train: Count = 16
    """number of training sentences of each relation; validation and test have half as many each"""
    num_candidates: Number = 3
    """number of other relations that a sentence is compared with; 0 = all"""
    seed: Seed = 0
    """seed of all random choices"""

    def check(self, field: str, config: Config) -> None:
        Relations.check(self, field, config)
        if not config.task.numbers_relations:
            return
        count = config.task.num_classes
        require(count == self.num_relations, f"{field}num_relations", self.num_relations, f"task.num_classes = {count}")


@dataclass(slots=True, kw_only=True)
class CachedPairs(Vectors):
    """Pairs of a sentence and the name of a relation as vectors that a model has computed before, for Classification.

    The files are those of CachedFeatures with `validation.npy`, and for every split `SPLIT_pairs.npy`, int32 [pairs,
    3]: number of the sentence, number of its relation, and number of the relation whose name the pair has. They are
    made by `python -m tools.measurements.vectors pairs`.
    """

    opened_by = "memjax.data.relation_pairs:open_pair_vectors"
    classes_named_by = "memjax.data.relation_pairs:name_pair_classes"

    path: str = ""
    """folder of the arrays"""
    relations: Numbers = ()
    """numbers of the relations whose sentences are read, such as those of one task; () = all"""
    earlier_relations: Numbers = ()
    """numbers of the relations whose names a training sentence is paired with beside its own; () = all. A stream sets
    it to the relations of the tasks so far, and Joint with one stage to those of all tasks"""

    def following(self, earlier: Sequence[Any]) -> Source:
        return replace(self, earlier_relations=_known_relations(self, earlier))

    def check(self, field: str, config: Config) -> None:
        Vectors.check(self, field, config)
        count, kind = config.task.num_classes, type(self).__name__
        require(not self.classes, f"{field}classes", self.classes, f"() with {kind}")
        require(count == 2, "task.num_classes", count, f"2 with {kind}")


def _known_relations(source: Any, earlier: Sequence[Any]) -> tuple[int, ...]:
    """Returns the relations of a task and of earlier ones. () for all relations, where a task has all."""
    of_each = [task_source.relations for task_source in (*earlier, source)]
    return tuple(sorted({number for relations in of_each for number in relations})) if all(of_each) else ()


RelationKind = RelationFiles | Tacred | SyntheticRelations | CachedPairs
