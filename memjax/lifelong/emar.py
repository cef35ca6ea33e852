"""EMAR: prototypes of classes, from kept examples, that are activated and reconsolidated after every task.

Han, Dai, Gao, Lin, Liu, Li, Sun and Zhou, "Continual Relation Learning via Episodic Memory Activation and
Reconsolidation", ACL 2020, https://aclanthology.org/2020.acl-main.573.

A task k is learned in stages: its own examples; then, `rounds` times, activation (memory and task together) and
reconsolidation (examples of the memory against prototypes, which no gradient reaches). What is answered is the class
whose final prototype is most similar.

======================  ==========================================================
paper                   here
======================  ==========================================================
T_k, M_k                the task, the kept examples of it (`CHOSEN`)
r_i                     the vector of a class in the head (`VECTORS`)
f, g                    what the head reads, its similarity
P_i, I_i                `instances` of the kept examples of a class
p_i                     `prototypes`, fixed for a round
p~_i                    `(r_i + sum f) / (1 + number)`, over all kept examples
======================  ==========================================================

Differs from the paper: a class without kept examples (a memory smaller than the classes of a task) has r_i for its
prototype. From its code (`memjax.config.EMAR.as_published`): names are read by the encoder of sentences, as there; the
dummy class is left out; nothing that was kept is kept twice; the loss of a last batch counts by its share.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from memjax.data.vectors import random_of
from memjax.lifelong.compose import Component, chain_components, make_update
from memjax.lifelong.contract import Method, TaskInfo, phase_of, settings_of
from memjax.lifelong.head_features import read_features
from memjax.lifelong.rehearsal import (
    KeptExamples,
    Selection,
    allocate_kept,
    choose_rehearsal_examples,
    keep_examples,
    kept_example_ids,
    note_seen_classes,
    rows_like,
    with_fresh_optimizer,
)
from memjax.models.similarity_head import VECTORS
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeObjective
from memjax.training.objective import Objective, model_collections
from memjax.training.sharding import Layout
from memjax.training.stages import STREAM, Learner, PhaseContext, Requirements, SingleKindStream, Stage
from memjax.training.step import TrainState, model_variables

__all__ = [
    "ACTIVATE",
    "EMAR",
    "RECONSOLIDATE",
    "class_sums",
    "draw_instances",
    "emar",
    "final_prototypes",
    "use_prototypes",
]

EMAR = "emar"
"""what is kept, in `TrainState.method`: prototypes of the round, and the sums that the final ones are made of"""
ACTIVATE, RECONSOLIDATE = "activate", "reconsolidate"
"""kinds of update"""


class How(NamedTuple):
    """The fields of `memjax.config.EMAR`, which says what they mean."""

    size: int
    selection: Selection
    embedding: Literal["learned", "name"]
    first: Literal["task", "both"]
    rounds: int
    activations: int
    reconsolidations: int
    instances: int
    rows: int
    new_optimizer: bool


def emar(**fields: Any) -> Method:
    """The method; `fields` are those of `How`."""
    how = How(**fields)

    def init(params: Any) -> dict[str, Any]:
        classes, dim = head_vectors(params).shape
        zeros = lambda: jnp.zeros((classes, dim), jnp.float32)
        named = {"relations": zeros()} if how.embedding == "name" else {}
        return {"prototypes": zeros(), "totals": zeros(), "counts": jnp.zeros(classes, jnp.float32), **named}

    needs = Requirements(boundaries=True, examples=True)
    base = chain_components(Component(EMAR, init, requirements=needs))

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        made = base.learner(experiment, layout, objective)
        against = make_update(experiment, objective, Component(EMAR, init, wrap_stream_loss=use_prototypes))
        tasks, example = len(settings_of(experiment).tasks), made.batch_shapes[STREAM]

        def start(values: Mapping[str, Any]) -> TrainState:
            return allocate_kept(made.init(values), tasks, how.size)

        def observe(state: TrainState, batch: Any, kind: str) -> Any:
            return (against if kind == RECONSOLIDATE else made.update)(state, batch, kind)

        kinds = {ACTIVATE: example, RECONSOLIDATE: rows_like(example, how.rows)}
        used = {kind: kinds[kind] for kind, epochs in plan_passes(how) if epochs and how.rounds}
        return made._replace(
            init=start,
            update=observe,
            batch_shapes={**made.batch_shapes, **used},
            adapt_variables=with_final_prototypes,
        )

    return base._replace(
        learner=learner, stages=lambda task, own: _Stages(how, task).all(own), needs=needs, takes_tasks=False
    )


def plan_passes(how: How) -> tuple[tuple[str, int], ...]:
    """The passes of a round, each with its epochs; without a memory there is nothing to reconsolidate."""
    return (ACTIVATE, how.activations), (RECONSOLIDATE, how.reconsolidations if how.size else 0)


class _Stages:
    """The stages of one task; what phases do is `change(state, context) -> state`."""

    def __init__(self, how: How, task: TaskInfo):
        self.how, self.task, self.index, self.experiment = how, task, task.index, task.experiment
        self.chosen, self.config = KeptExamples(task.parts, task.experiment), task.experiment.config

    def all(self, task_stage: Stage) -> list[Stage]:
        """Returns the stage of the task, then rounds of activation and reconsolidation."""
        how, rows = self.how, self.config.data.rows
        if how.first == "both" and self.index and how.size:
            # As many passes as over the task alone, so that no task gets fewer updates than `least_updates`.
            epochs = settings_of(self.experiment).passes(len(self.chosen.of_task(self.index)), rows)
            task_stage = task_stage._replace(**self._reading(STREAM, self._both, epochs, rows, 0))
        stages = [(task_stage, [self._begin], [self._keep_some])]
        for number in range(how.rounds):
            # Prototypes are those of the model before the round.
            before = [lambda state, context, number=number: self._with_prototypes(state, number)]
            for kind, epochs in plan_passes(how):
                if epochs:
                    stages.append((self._pass(kind, epochs, number, task_stage), [*before, self._renew], []))
                    before = []
        stages[-1][2].append(self._finish)
        return [stage._replace(before=phase_of(*before), after=phase_of(*after)) for stage, before, after in stages]

    def _pass(self, kind: str, epochs: int, number: int, own: Stage) -> Stage:
        """A stage of one kind of update."""
        if kind == ACTIVATE:
            fields = self._reading(kind, self._both, epochs, self.config.data.rows, number)
        else:
            sets = lambda state: self._instances(state, "instances", number)
            fields = self._reading(kind, sets, epochs, self.how.rows, number)
        return Stage(f"{own.name}, {kind} {number + 1}", task=own.task, **fields)

    def _reading(
        self, kind: str, numbers: Callable[[TrainState], np.ndarray], epochs: int, rows: int, number: int
    ) -> dict[str, Any]:
        """Fields of a stage that reads some examples, in another order in every round."""

        def opened(state: TrainState, position: Any) -> SingleKindStream:
            return SingleKindStream(
                self.chosen.stream(numbers(state), position, rows=rows, epochs=epochs, order=number), kind
            )

        return {"open_stream": opened, "steps": lambda state: epochs * -(-len(numbers(state)) // rows)}

    # Which examples

    def _both(self, state: TrainState) -> np.ndarray:
        """Those of the task and those that are kept, none twice."""
        return np.union1d(self.chosen.of_task(self.index), kept_example_ids(state))

    def _instances(self, state: TrainState, purpose: str, number: int) -> np.ndarray:
        """Kept ones, some of each class."""
        numbers = kept_example_ids(state)
        name = f"{purpose}/{self.config.data.seed}/{self.index}/{number}"
        return draw_instances(numbers, self.chosen.labels(numbers), self.how.instances, name)

    # Phases

    def _begin(self, state: TrainState, context: PhaseContext) -> TrainState:
        return self._renew(
            note_seen_classes(state, self.experiment.model, self.chosen.labels(self.chosen.of_task(self.index))),
            context,
        )

    def _renew(self, state: TrainState, context: PhaseContext) -> TrainState:
        del context
        return with_fresh_optimizer(state, self.task) if self.how.new_optimizer else state

    def _keep_some(self, state: TrainState, context: PhaseContext) -> TrainState:
        if not self.how.size:
            return state
        read = read_features(
            self.experiment, model_variables(state), self.chosen.joined(self.chosen.of_task(self.index))
        )
        numbers = choose_rehearsal_examples(read, self.how.size, context.key, self.how.selection)
        context.report(f"emar: {len(numbers)} examples of task {self.index} are kept")
        return keep_examples(state, self.index, numbers)

    def _with_prototypes(self, state: TrainState, number: int) -> TrainState:
        """Prototypes of the round."""
        totals, counts = self._sums(state, self._instances(state, "prototypes", number))
        vectors = self._relations(state)
        own = 1.0 if self.how.embedding == "name" else 0.0  # a name counts as one of the examples, as in the code
        means = (own * vectors + totals) / np.maximum(own + counts, 1)[:, None]
        return _with_kept(state, prototypes=np.where(counts[:, None] > 0, means, vectors))

    def _finish(self, state: TrainState, context: PhaseContext) -> TrainState:
        """With what the final prototypes are made of."""
        del context
        totals, counts = self._sums(state, kept_example_ids(state))
        named = {"relations": self._relations(state)} if self.how.embedding == "name" else {}
        return _with_kept(state, totals=totals, counts=counts, **named)

    def _sums(self, state: TrainState, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of what the head reads of some examples."""
        classes, dim = head_vectors(state.params).shape
        if not len(numbers):
            return np.zeros((classes, dim), np.float32), np.zeros(classes, np.float32)
        read = read_features(self.experiment, model_variables(state), self.chosen.joined(numbers))
        return class_sums(read.features, read.labels, classes)

    def _relations(self, state: TrainState) -> np.ndarray:
        """The r of every class."""
        if self.how.embedding == "learned":
            return np.asarray(head_vectors(state.params), np.float32)
        return np.asarray(_named(self.experiment.model)(model_collections(model_variables(state))), np.float32)


def _with_kept(state: TrainState, **kept: np.ndarray) -> TrainState:
    new = {**state.method[EMAR], **{name: jnp.asarray(value, jnp.float32) for name, value in kept.items()}}
    return dataclasses.replace(state, method={**state.method, EMAR: new})


@functools.lru_cache(maxsize=4)
def _named(model: Any) -> Any:
    """`vectors(variables)`, what a model makes of the names of all classes; compiled once for a model."""
    return jax.jit(lambda variables: model.apply(variables, model.all_names(), method="name_vectors"))


# Prototypes


def head_vectors(params: Any) -> Any:
    """The vectors of the classes in a head of similarities, `[classes, dim]`."""
    return params["head"][VECTORS]


def with_head_vectors(params: Any, vectors: Any) -> Any:
    """The parameters with other vectors of the classes."""
    return {**params, "head": {**params["head"], VECTORS: vectors}}


def use_prototypes(objective: Objective, model: Any) -> Objective:
    """The objective with the prototypes of the round for the vectors of the classes; no gradient reaches them."""
    del model

    def loss(variables: Mapping[str, Any], *rest: Any) -> Any:
        prototypes = jax.lax.stop_gradient(variables["method"][EMAR]["prototypes"])
        return objective.loss({**variables, "params": with_head_vectors(variables["params"], prototypes)}, *rest)

    return objective._replace(loss=loss)


def with_final_prototypes(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
    """The variables that are evaluated: the final prototypes for the vectors of the classes."""
    del support, key
    kept = state.method[EMAR]
    relations = kept.get("relations", head_vectors(state.params))
    params = with_head_vectors(state.params, final_prototypes(relations, kept["totals"], kept["counts"]))
    return {**model_variables(state), "params": params}


def final_prototypes(
    relations: Float[Any, "classes dim"], totals: Float[Any, "classes dim"], counts: Float[Any, " classes"]
) -> Float[Any, "classes dim"]:
    """`(r + sum f) / (1 + number)` of every class; r alone where nothing of it is kept.

    Example:
      >>> final_prototypes(jnp.array([[1.0], [5.0]]), jnp.array([[8.0], [0.0]]), jnp.array([2.0, 0.0])).tolist()
      [[3.0], [5.0]]
    """
    return (relations + totals) / (1 + counts)[:, None]


def class_sums(
    features: Float[np.ndarray, "examples dim"], labels: Int[np.ndarray, " examples"], num_classes: int
) -> tuple[Float[np.ndarray, "classes dim"], Float[np.ndarray, " classes"]]:
    """The sum of the features of each class, and how many there are.

    Example:
      >>> totals, counts = class_sums(np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 1]), 3)
      >>> totals.tolist(), counts.tolist()
      ([[2.0], [5.0], [0.0]], [1.0, 2.0, 0.0])
    """
    totals = np.zeros((num_classes, features.shape[1]), features.dtype)
    np.add.at(totals, labels, features)
    return totals, np.bincount(labels, minlength=num_classes).astype(features.dtype)


def draw_instances(numbers: np.ndarray, labels: np.ndarray, instances: int, name: str) -> np.ndarray:
    """At most so many examples of each class, drawn by a name; 0 = all.

    Example:
      >>> draw_instances(np.array([7, 8, 9]), np.array([0, 0, 1]), 1, "prototypes/0").size
      2
    """
    if not instances:
        return numbers
    order = random_of(name).permutation(len(numbers))
    kept = [order[labels[order] == label][:instances] for label in np.unique(labels)]
    return np.sort(numbers[np.concatenate(kept)]) if kept else numbers
