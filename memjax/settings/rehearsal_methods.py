"""Settings of methods that rehearse stored examples and score by similarity: EMAR, EMR and EA-EMR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import require
from memjax.settings.methods import Method
from memjax.settings.ranges import Count, Number, Positive, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["EMAR", "EMR", "EAEMR"]


@dataclass(slots=True, kw_only=True)
class RehearsalMethod(Method):
    """Common settings of EMAR, EMR and EA-EMR, which store examples of every task and score classes by similarity."""

    examples_per_task: Annotated[int, zero_or_more("no memory", "examples")] = 50
    """number of examples that are stored of each task (B); 0 = no memory"""

    def check(self, field: str, config: Config) -> None:
        similar, kind = config.task.similarity, type(self).__name__
        require(similar != "", "task.similarity", similar, f"'dot' or 'cosine' with {kind}")


@dataclass(slots=True, kw_only=True)
class EMAR(RehearsalMethod):
    """EMAR (Han et al. 2020): after each task, trains on it and on stored examples, and then on the stored examples
    against class prototypes that are made from them.
    """

    made_by = "memjax.lifelong.emar:emar"
    example_selection: Literal["two_level", "flat", "random"] = "two_level"
    """choice of the stored examples: 'two_level' = in each class those nearest to its k-means centroids, as many as
    k-means over the task gives the class; 'flat' = those nearest to the k-means centroids of the task; 'random'"""
    prototype_anchor: Literal["learned", "name"] = "learned"
    """vector of a class that its final prototype averages with its stored examples: 'learned' = the vector in the head;
    'name' = the encoding of the class's name, which the prototypes of every round average too"""
    first_pass_examples: Literal["task", "both"] = "task"
    """examples of the first pass over a task: 'task' = its own; 'both' = also the stored ones of earlier tasks"""
    rounds: Number = 2
    """number of rounds of activation (training on memory and task) and reconsolidation (training on the memory against
    prototypes) after a task; each makes new prototypes"""
    activation_epochs: Number = 1
    """number of epochs over memory and task in a round"""
    reconsolidation_epochs: Number = 1
    """number of epochs over the memory in a round"""
    instances_per_class: Annotated[int, zero_or_more("all", "examples")] = 4
    """number of stored examples of each class that are drawn for its prototype in a round, and as many for its
    reconsolidation; 0 = all"""
    reconsolidation_batch_size: Count = 5
    """number of rows of a batch in reconsolidation"""
    reset_optimizer: bool = False
    """start every pass with a new state of the optimiser"""

    @classmethod
    def as_published(cls) -> EMAR:
        """Returns settings as in the authors' code, which differ from the paper: selection of examples, prototypes,
        first pass and optimiser.
        """
        whole = {"instances_per_class": 0, "reset_optimizer": True}
        return cls(example_selection="flat", prototype_anchor="name", first_pass_examples="both", **whole)

    def check(self, field: str, config: Config) -> None:
        RehearsalMethod.check(self, field, config)
        vectors, margin = config.task.relation_vectors, config.task.margin
        require(vectors == "learned", "task.relation_vectors", vectors, "'learned' with EMAR")
        require(not margin, "task.margin", margin, "0 with EMAR")
        has_vector = self.prototype_anchor == "learned" or config.model.reads == "words"
        require(has_vector, f"{field}prototype_anchor", self.prototype_anchor, "'learned' but with a BiLSTM")


@dataclass(slots=True, kw_only=True)
class EMR(RehearsalMethod):
    """EMR (Wang et al. 2019): before each batch, one update on all stored examples of one earlier task, each task in
    turn.
    """

    made_by = "memjax.lifelong.ea_emr:emr"
    example_selection: Literal["random", "flat"] = "random"
    """choice of the stored examples: 'random', or 'flat' = those nearest to the k-means centroids of the task"""
    normalize_features: bool = True
    """scale features to length 1 before k-means where `example_selection` is 'flat'"""
    num_candidates: Number = 10
    """number of other classes that a stored example is compared with, drawn for each task from the classes seen so far;
    0 = the example's own candidates"""

    alignment_epochs, alignment_learning_rate = 0, 0.0  # of the linear map, which is EA-EMR's


@dataclass(slots=True, kw_only=True)
class EAEMR(EMR):
    """EA-EMR (Wang et al. 2019): EMR with a linear map, fitted after each task, that restores earlier embeddings."""

    example_selection: Literal["random", "flat"] = "flat"
    """choice of the stored examples: 'random', or 'flat' = those nearest to the k-means centroids of the task"""
    alignment_epochs: Number = 20
    """number of epochs over the stored examples in which the linear map is fitted; 0 = it stays the identity"""
    alignment_learning_rate: Positive = 1e-4
    """learning rate of the Adam optimiser that fits the linear map"""

    aligns = True

    def check(self, field: str, config: Config) -> None:
        EMR.check(self, field, config)
        require(
            self.examples_per_task > 0 or not self.alignment_epochs,
            f"{field}alignment_epochs",
            self.alignment_epochs,
            "0 without a memory",
        )
