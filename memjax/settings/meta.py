"""Settings of methods that learn to adapt: OML-ER, ANML-ER, MAML-ER and Meta-MbPA."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import require
from memjax.settings.methods import EpisodicMemory, Method, NeighborAdaptationMethod
from memjax.settings.ranges import Count, Number, Share, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["ANML", "MAML", "OML", "MetaMbPA"]


@dataclass(slots=True, kw_only=True)
class MetaLearningMethod(Method):
    """Common settings of OML-ER, ANML-ER and MAML-ER (Holla et al. 2020), which learn from episodes of support and
    query, and from replayed rows as a query.
    """

    memory: EpisodicMemory = field(default_factory=lambda: EpisodicMemory(write_policy="all", capacity=10_000))
    """memory of earlier rows"""
    replay_interval: Number = 9600
    """approximate number of examples of the stream between two replays (R_I); 0 = no replay"""
    replay_rate: Share = 0.01
    """number of examples in the query of a replay, as a share of `replay_interval` (r)"""
    inner_steps: Number = 5
    """number of support batches of an episode, with one gradient step on each before the query (m); 0 = no
    adaptation"""
    inner_learning_rate: Annotated[float, zero_or_more()] = 1e-3
    """learning rate of the adaptation to the support batches (alpha)"""
    first_order: bool = True
    """take the gradient at the adapted parameters (first-order approximation); False = take the gradient through the
    adaptation's steps, with derivatives of second order"""
    replay_loss_reduction: Literal["mean", "sum"] = "mean"
    """reduction of the gradients over the batches of a replay's query; 'sum' takes larger steps (the published code)"""
    adapts_at_test: bool = True
    """answer every test set with parameters adapted to `inner_steps` batches of the memory"""
    last_episode: Literal["dropped", "kept"] = "dropped"
    """treatment of batches at the end of a stage that do not fill an episode: 'dropped' = left out (the published
    code); 'kept' = read in an episode with fewer steps"""

    @property
    def replay_batch_size(self) -> int:
        """Number of examples in the query of a replay: `replay_rate` times `replay_interval`."""
        # A product such as 0.07 * 100 must not fall below the number that it stands for.
        return int(self.replay_interval * self.replay_rate + 1e-9)

    @property
    def batches_per_update(self) -> int:
        """Number of batches that an episode reads: `inner_steps` support batches and the query. An episode that replays
        reads one less.
        """
        return self.inner_steps + 1

    def check(self, field: str, config: Config) -> None:
        del config
        fits = not self.replay_interval or self.replay_rate * self.replay_interval >= 1
        require(
            fits,
            f"{field}replay_rate",
            self.replay_rate,
            f"at least 1 / replay_interval = {1 / self.replay_interval if self.replay_interval else 0:.2g}",
        )


@dataclass(slots=True, kw_only=True)
class OML(MetaLearningMethod):
    """OML-ER: the head is adapted to the support batches of an episode. The loss of the query with the adapted head
    updates all parameters.
    """

    made_by = "memjax.lifelong.oml:oml"


@dataclass(slots=True, kw_only=True)
class ANML(MetaLearningMethod):
    """ANML-ER: all parameters but those of a gate (`model.gate_dim`), which multiplies the input of the head, are
    adapted to the support batches. The loss of the query then updates them and the gate.
    """

    made_by = "memjax.lifelong.oml:anml"
    train_gate_encoder: bool = False
    """also train the encoder inside the gate, which is frozen in the paper but trained by an oversight in the published
    code"""

    def check(self, field: str, config: Config) -> None:
        MetaLearningMethod.check(self, field, config)
        gate = config.model.memory_facts.gate_dim
        require(gate > 0, "model.gate_dim", gate, "1 or more with ANML (of a text encoder model.attention.gate_dim)")


@dataclass(slots=True, kw_only=True)
class MAML(MetaLearningMethod):
    """MAML-ER: all parameters are adapted to the support batches of an episode. The loss of the query at the adapted
    parameters updates them.
    """

    made_by = "memjax.lifelong.oml:maml"


@dataclass(slots=True, kw_only=True)
class MetaMbPA(NeighborAdaptationMethod):
    """Meta-MbPA (Wang et al. 2020): trains for the loss after an adaptation to stored rows. Before answers, one
    adaptation may serve many queries.

    `adaptation_l2` has no effect in training where `inner_steps` is 1.
    """

    made_by = "memjax.lifelong.meta_mbpa:meta_mbpa"

    memory: EpisodicMemory = field(
        default_factory=lambda: EpisodicMemory(write_policy="diversity", write_probability=0.01, capacity=10_000)
    )
    """memory of earlier rows"""
    meta_train: bool = True
    """train for the loss after an adaptation to neighbours; False = train for the plain loss, as MbPA++ does"""
    share_neighborhood: bool = True
    """adapt once for all rows of a training update, to the neighbours of their mean key; False = adapt for each row to
    its own neighbours, with a copy of the adapted parameters for each"""
    inner_steps: Count = 1
    """number of gradient steps of the adaptation in training"""
    inner_learning_rate: Annotated[float, zero_or_more()] = 1e-5
    """learning rate of the adaptation in training (alpha)"""
    first_order: bool = True
    """take the gradient at the adapted parameters in training (first-order approximation); False = take the gradient
    through the adaptation's steps, with derivatives of second order"""
    exclude_self: bool = True
    """exclude a stored row from its own neighbours"""
    adaptation_scope: Literal["once", "per_batch", "per_example"] = "once"
    """parameters that answer: 'once' = adapted once, to random stored rows; 'per_batch' = adapted for every batch of
    `evaluation.batch_size` rows, to the neighbours of their mean key, which tells their task, since all are of one;
    'per_example' = adapted for every row, to its own neighbours (MbPA++)"""
    adaptation_learning_rate: Annotated[float, zero_or_more()] = 1e-5
    """learning rate of the adaptation before answering"""

    @property
    def adapts(self) -> bool:
        """Whether rows are scored with parameters that have been adapted to them or their batch. False where one
        adaptation to random rows answers all (`adaptation_scope` 'once').
        """
        return self.adaptation_steps > 0 and self.adaptation_scope != "once"

    def check(self, field: str, config: Config) -> None:
        groups = config.training.num_microbatches
        fits = self.share_neighborhood or groups == 1
        require(fits, "training.num_microbatches", groups, f"1 with {field}share_neighborhood False")
        stream = config.lifelong
        has_borders = stream is None or stream.task_boundaries == "known" or self.adaptation_scope != "per_batch"
        borders = "" if stream is None else stream.task_boundaries
        require(has_borders, "lifelong.task_boundaries", borders, f"'known' with {field}adaptation_scope 'per_batch'")
        place = self.memory.storage
        require(
            place == "device" or not self.meta_train,
            f"{field}memory.storage",
            place,
            f"'device' with {field}meta_train",
        )
