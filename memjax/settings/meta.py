"""Settings of methods that learn to adapt: OML-ER, ANML-ER, MAML-ER and Meta-MbPA."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.methods import EpisodicMemory, Method, Neighborly
from memjax.settings.ranges import Count, Number, Range, Share, zero_or_more
from memjax.settings.relations import require

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["ANML", "MAML", "OML", "MetaMbPA"]

Order = Annotated[int, Range(words="1 or 2", least=1, most=2)]


@dataclass(slots=True, kw_only=True)
class Episodic(Method):
    """Common settings of OML-ER, ANML-ER and MAML-ER (Holla et al. 2020): episodes of support and query, replay."""

    memory: EpisodicMemory = field(default_factory=lambda: EpisodicMemory(policy="all", capacity=10_000))
    """memory of earlier rows"""
    every: Number = 9600
    """approximate number of examples of the stream between two replays (R_I); 0 = no replay"""
    rate: Share = 0.01
    """number of examples in the query of a replay, as a share of `every` (r)"""
    steps: Number = 5
    """number of support batches of an episode, with one gradient step on each before the query (m); 0 = no
    adaptation"""
    inner_learning_rate: Annotated[float, zero_or_more()] = 1e-3
    """learning rate of the adaptation to the support batches (alpha)"""
    order: Order = 1
    """order of the derivatives through the adaptation: 1 = the gradient at the adapted parameters (first-order
    approximation); 2 = the gradient through the adaptation's steps"""
    reduction: Literal["mean", "sum"] = "mean"
    """reduction of the gradients over the batches of a replay's query; 'sum' takes larger steps (the published code)"""
    adapts_at_test: bool = True
    """answer every test set with parameters adapted to `steps` batches of the memory"""
    last_episode: Literal["dropped", "kept"] = "dropped"
    """treatment of batches at the end of a stage that do not fill an episode: 'dropped' = left out (the published
    code); 'kept' = read in an episode with fewer steps"""

    @property
    def batches(self) -> int:
        """Number of batches of an episode: `steps` support batches and the query. A replay has one less."""
        return self.steps + 1

    def check(self, field: str, config: Config) -> None:
        del config
        fits = not self.every or self.rate * self.every >= 1
        require(fits, f"{field}rate", self.rate, f"at least 1 / every = {1 / self.every if self.every else 0:.2g}")

    def arguments(self) -> dict[str, Any]:
        arguments = Method.arguments(self)
        # A product such as 0.07 * 100 must not fall below the number that it stands for.
        rows = int(self.every * arguments.pop("rate") + 1e-9)
        return {**arguments, "rows": rows}


@dataclass(slots=True, kw_only=True)
class OML(Episodic):
    """OML-ER: the head is adapted to the support batches; the encoder learns from the loss of the query afterwards."""

    made_by = "memjax.lifelong.oml:oml"


@dataclass(slots=True, kw_only=True)
class ANML(Episodic):
    """ANML-ER: all parameters are adapted except for a gate (`model.gate`), which multiplies the input of the head."""

    made_by = "memjax.lifelong.oml:anml"
    train_gate_encoder: bool = False
    """also train the encoder inside the gate, which is frozen in the paper but trained by an oversight in the published
    code"""

    def check(self, field: str, config: Config) -> None:
        Episodic.check(self, field, config)
        gate = config.model.carrier.gate
        require(gate > 0, "model.gate", gate, "1 or more with ANML (of a text encoder model.attention.gate)")


@dataclass(slots=True, kw_only=True)
class MAML(Episodic):
    """MAML-ER: all parameters are adapted to the support batches."""

    made_by = "memjax.lifelong.oml:maml"


@dataclass(slots=True, kw_only=True)
class MetaMbPA(Neighborly):
    """Meta-MbPA (Wang et al. 2020): trains for the loss after an adaptation; one adaptation may serve many queries.

    `penalty` has no effect in training where `inner_steps` is 1.
    """

    made_by = "memjax.lifelong.meta_mbpa:meta_mbpa"

    memory: EpisodicMemory = field(
        default_factory=lambda: EpisodicMemory(policy="diversity", probability=0.01, capacity=10_000)
    )
    """memory of earlier rows"""
    meta: bool = True
    """train for the loss after an adaptation to neighbours; False = train for the plain loss, as MbPA++ does"""
    shared: bool = True
    """adapt once for all rows of a training update, to the neighbours of their mean key; False = adapt for each row to
    its own neighbours, with a copy of the adapted parameters for each"""
    inner_steps: Count = 1
    """number of gradient steps of the adaptation in training"""
    inner_learning_rate: Annotated[float, zero_or_more()] = 1e-5
    """learning rate of the adaptation in training (alpha)"""
    order: Order = 1
    """order of the derivatives through the adaptation in training: 1 = the gradient at the adapted parameters
    (first-order approximation); 2 = the gradient through the adaptation's steps"""
    exclude_self: bool = True
    """exclude a stored row from its own neighbours"""
    inference: Literal["random", "together", "each"] = "random"
    """parameters that answer: 'random' = adapted once, to random stored rows; 'together' = adapted for every batch of
    `evaluation.batch_size` rows, to the neighbours of their mean key; 'each' = adapted for every row, to its own
    neighbours (MbPA++)"""
    learning_rate: Annotated[float, zero_or_more()] = 1e-5
    """learning rate of the adaptation before answering"""

    @property
    def adapts(self) -> bool:
        """Whether every row is scored with parameters that have been adapted to it."""
        return self.steps > 0 and self.inference != "random"

    def check(self, field: str, config: Config) -> None:
        groups = config.training.accumulate
        fits = self.shared or groups == 1
        require(fits, "training.accumulate", groups, f"1 with {field}shared False")
        place = self.memory.place
        require(place == "device" or not self.meta, f"{field}memory.place", place, f"'device' with {field}meta")
