"""EMAR: class prototypes of stored examples that are activated and reconsolidated after every task.

Han, Dai, Gao, Lin, Liu, Li, Sun and Zhou, "Continual Relation Learning via Episodic Memory Activation and
Reconsolidation", ACL 2020, https://aclanthology.org/2020.acl-main.573.

A task k is learned in stages. The first learns its examples. Then `rounds` times follow activation (examples of the
memory and the task together) and reconsolidation (examples of the memory against prototypes, which get no gradients).
A query is answered with the class whose final prototype is most similar.

======================  ==========================================================
paper                   here
======================  ==========================================================
T_k, M_k                the task, the stored examples of it (`CHOSEN`)
r_i                     the vector of a class in the head (`VECTORS`)
f, g                    the input of the head, the similarity in it
P_i, I_i                `instances` of the stored examples of a class
p_i                     `prototypes`, fixed for a round
p~_i                    `(r_i + sum f) / (1 + number)`, over all stored examples
======================  ==========================================================

Differs from the paper: the prototype of a class without stored examples (with a memory smaller than the classes of a
task) is r_i. Differs from its code (`memjax.config.EMAR.as_published`): there is no dummy class, no example is stored
twice, and the loss of a last batch is weighted by its share of rows. As in the code, the encoder of sentences reads
names too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from memjax import config as configs
from memjax.data.vectors import make_random_state
from memjax.lifelong.class_features import read_features
from memjax.lifelong.components import Component
from memjax.lifelong.composition import chain_components, make_update
from memjax.lifelong.kept_examples import (
    KeptExamples,
    allocate_kept,
    choose_rehearsal_examples,
    keep_examples,
    kept_example_ids,
    note_seen_classes,
    rows_like,
    with_fresh_optimizer,
)
from memjax.lifelong.method_interface import Method, TaskInfo, phase_of, settings_of
from memjax.models.similarity_head import VECTORS
from memjax.training.experiment import Experiment
from memjax.training.objective import Objective, model_collections
from memjax.training.sharding import Layout
from memjax.training.stages import (
    STREAM,
    Learner,
    PhaseContext,
    Requirements,
    Stage,
    UpdateStream,
    make_stream_of_one_kind,
)
from memjax.training.train_state import TrainState, model_variables
from memjax.training.update_functions import MakeObjective

EMAR = "emar"
"""Name of the state in `TrainState.method`: the prototypes of the round, and the sums that make the final ones."""
ACTIVATE, RECONSOLIDATE = "activate", "reconsolidate"
"""Names of the kinds of update other than those of the stream."""


def emar(settings: configs.EMAR) -> Method:
    """Makes the `Method` EMAR: after the examples of a task, stored ones are learned in rounds, also against prototypes
    of their classes. In evaluations the final prototypes are the class vectors.
    """

    def init(params: Any) -> dict[str, Any]:
        classes, dim = head_vectors(params).shape
        zeros = lambda: jnp.zeros((classes, dim), jnp.float32)
        from_names = {"relations": zeros()} if settings.prototype_anchor == "name" else {}
        return {"prototypes": zeros(), "totals": zeros(), "counts": jnp.zeros(classes, jnp.float32), **from_names}

    needs = Requirements(boundaries=True, examples=True, all_tasks=True)
    base = chain_components(Component(EMAR, init, requirements=needs))

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        base_learner = base.learner(experiment, layout, objective)
        tasks, example = len(settings_of(experiment).tasks), base_learner.batch_shapes[STREAM]

        def start(values: Mapping[str, Any]) -> TrainState:
            return allocate_kept(base_learner.init(values), tasks, settings.examples_per_task)

        batches = {ACTIVATE: example, RECONSOLIDATE: rows_like(example, settings.reconsolidation_batch_size)}
        components = {
            ACTIVATE: Component(EMAR, init),
            RECONSOLIDATE: Component(EMAR, init, wrap_stream_loss=use_prototypes),
        }
        kinds = [kind for kind, epochs in _plan_passes(settings) if epochs and settings.rounds]
        updates = {kind: make_update(experiment, objective, components[kind]) for kind in kinds}
        return base_learner._replace(
            init=start,
            updates={**base_learner.updates, **updates},
            batch_shapes={**base_learner.batch_shapes, **{kind: batches[kind] for kind in kinds}},
            adapt_variables=_with_final_prototypes,
        )

    return base._replace(learner=learner, stages=lambda task, own: _TaskStages(settings, task).all(own))


def _plan_passes(settings: configs.EMAR) -> tuple[tuple[str, int], ...]:
    """Returns the kinds of update of a round and the epochs of each. Without a memory there is no reconsolidation."""
    return (ACTIVATE, settings.activation_epochs), (
        RECONSOLIDATE,
        settings.reconsolidation_epochs if settings.examples_per_task else 0,
    )


class _TaskStages:
    """Makes the stages of one task. Its phases are methods `change(state, context) -> state`."""

    def __init__(self, settings: configs.EMAR, task: TaskInfo):
        self.settings, self.task, self.index, self.experiment = settings, task, task.index, task.experiment
        self.chosen, self.config = KeptExamples(task.parts, task.experiment), task.experiment.config

    def all(self, task_stage: Stage) -> list[Stage]:
        """Returns the stage of the task, then rounds of activation and reconsolidation."""
        settings, rows = self.settings, self.config.data.batch_size
        if settings.first_pass_examples == "both" and self.index and settings.examples_per_task:
            # As many passes as over the task alone, so that no task gets fewer updates than `least_updates`.
            epochs = settings_of(self.experiment).passes(len(self.chosen.of_task(self.index)), rows)
            task_stage = task_stage._replace(**self._fields_of_reading(STREAM, self._task_and_stored, epochs, rows, 0))
        stages = [(task_stage, [self._begin], [self._store_examples])]
        for number in range(settings.rounds):
            # Prototypes are those of the model before the round.
            before = [lambda state, context, number=number: self._with_prototypes(state, number)]
            for kind, epochs in _plan_passes(settings):
                if epochs:
                    stages.append((self._pass(kind, epochs, number, task_stage), [*before, self._reset_optimizer], []))
                    before = []
        stages[-1][2].append(self._finish)
        return [stage._replace(before=phase_of(*before), after=phase_of(*after)) for stage, before, after in stages]

    def _pass(self, kind: str, epochs: int, number: int, own: Stage) -> Stage:
        """Makes the stage of a pass of one kind of update in round `number`."""
        if kind == ACTIVATE:
            fields = self._fields_of_reading(kind, self._task_and_stored, epochs, self.config.data.batch_size, number)
        else:
            sets = lambda state: self._instances(state, "instances", number)
            fields = self._fields_of_reading(kind, sets, epochs, self.settings.reconsolidation_batch_size, number)
        return Stage(f"{own.name}, {kind} {number + 1}", task=own.task, **fields)

    def _fields_of_reading(
        self, kind: str, numbers: Callable[[TrainState], np.ndarray], epochs: int, rows: int, number: int
    ) -> dict[str, Any]:
        """Makes the fields of a stage that reads the examples of `numbers(state)`, in another order in every round."""

        def open_stream(state: TrainState, position: Any) -> UpdateStream:
            return make_stream_of_one_kind(
                self.chosen.stream(numbers(state), position, rows=rows, epochs=epochs, order=number), kind
            )

        return {"open_stream": open_stream, "steps": lambda state: epochs * -(-len(numbers(state)) // rows)}

    # Numbers of examples

    def _task_and_stored(self, state: TrainState) -> np.ndarray:
        """Returns the numbers of the examples of the task and of the stored ones, each once."""
        return np.union1d(self.chosen.of_task(self.index), kept_example_ids(state))

    def _instances(self, state: TrainState, purpose: str, number: int) -> np.ndarray:
        """Draws stored examples, at most `instances` of each class, by a purpose and the number of the round."""
        numbers = kept_example_ids(state)
        name = f"{purpose}/{self.config.data.seed}/{self.index}/{number}"
        return draw_instances(numbers, self.chosen.labels(numbers), self.settings.instances_per_class, name)

    # Phases

    def _begin(self, state: TrainState, context: PhaseContext) -> TrainState:
        """Marks the classes of the task as seen, and resets the optimiser."""
        return self._reset_optimizer(
            note_seen_classes(state, self.experiment.model, self.chosen.labels(self.chosen.of_task(self.index))),
            context,
        )

    def _reset_optimizer(self, state: TrainState, context: PhaseContext) -> TrainState:
        """Resets the optimiser, if `new_optimizer` is set."""
        del context
        return with_fresh_optimizer(state, self.task) if self.settings.reset_optimizer else state

    def _store_examples(self, state: TrainState, context: PhaseContext) -> TrainState:
        """Chooses and stores examples of the task."""
        if not self.settings.examples_per_task:
            return state
        read = read_features(
            self.experiment, model_variables(state), self.chosen.joined(self.chosen.of_task(self.index))
        )
        numbers = choose_rehearsal_examples(
            read, self.settings.examples_per_task, context.key, self.settings.example_selection
        )
        context.report(f"emar: {len(numbers)} examples of task {self.index} are kept")
        return keep_examples(state, self.index, numbers)

    def _with_prototypes(self, state: TrainState, number: int) -> TrainState:
        """Computes the prototypes of a round."""
        totals, counts = self._class_sums(state, self._instances(state, "prototypes", number))
        vectors = self._class_vectors(state)
        name_weight = (
            1.0 if self.settings.prototype_anchor == "name" else 0.0
        )  # As in the published code, a name counts as an example.
        means = (name_weight * vectors + totals) / np.maximum(name_weight + counts, 1)[:, None]
        return _with_method_state(state, prototypes=np.where(counts[:, None] > 0, means, vectors))

    def _finish(self, state: TrainState, context: PhaseContext) -> TrainState:
        """Stores the sums that the final prototypes are made of."""
        del context
        totals, counts = self._class_sums(state, kept_example_ids(state))
        from_names = {"relations": self._class_vectors(state)} if self.settings.prototype_anchor == "name" else {}
        return _with_method_state(state, totals=totals, counts=counts, **from_names)

    def _class_sums(self, state: TrainState, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Computes the sum of the features of examples and their number, for each class."""
        classes, dim = head_vectors(state.params).shape
        if not len(numbers):
            return np.zeros((classes, dim), np.float32), np.zeros(classes, np.float32)
        read = read_features(self.experiment, model_variables(state), self.chosen.joined(numbers))
        return class_sums(read.features, read.labels, classes)

    def _class_vectors(self, state: TrainState) -> np.ndarray:
        """Returns the vector r of every class: from the head, or from the encoded name."""
        if self.settings.prototype_anchor == "learned":
            return np.asarray(head_vectors(state.params), np.float32)
        return np.asarray(_name_encoder(self.experiment.model)(model_collections(model_variables(state))), np.float32)


def _with_method_state(state: TrainState, **kept: np.ndarray) -> TrainState:
    """Replaces entries of the method state."""
    new = {**state.method[EMAR], **{name: jnp.asarray(value, jnp.float32) for name, value in kept.items()}}
    return dataclasses.replace(state, method={**state.method, EMAR: new})


@functools.lru_cache(maxsize=4)
def _name_encoder(model: Any) -> Any:
    """Makes a function `vectors(variables)` that encodes the names of all classes. It is compiled once for a model."""
    return jax.jit(lambda variables: model.apply(variables, model.all_classes(), method="name_vectors"))


# Prototypes


def head_vectors(params: Any) -> Any:
    """Returns the class vectors `[classes, dim]` in a tree of parameters `params` of a model with a similarity head."""
    return params["head"][VECTORS]


def _with_head_vectors(params: Any, vectors: Any) -> Any:
    """Replaces the vectors of the classes in the parameters of a model."""
    return {**params, "head": {**params["head"], VECTORS: vectors}}


def use_prototypes(objective: Objective, model: Any) -> Objective:
    """Returns the objective with a loss that uses the stored prototypes of a round as class vectors. They get no
    gradients. `model` is not used.
    """
    del model

    def loss(variables: Mapping[str, Any], *rest: Any) -> Any:
        prototypes = jax.lax.stop_gradient(variables["method"][EMAR]["prototypes"])
        return objective.loss({**variables, "params": _with_head_vectors(variables["params"], prototypes)}, *rest)

    return objective._replace(loss=loss)


def _with_final_prototypes(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
    """Returns the variables for evaluation (`Learner.adapt_variables`), with the final prototypes as class vectors."""
    del support, key
    stored = state.method[EMAR]
    relations = stored.get("relations", head_vectors(state.params))
    params = _with_head_vectors(state.params, final_prototypes(relations, stored["totals"], stored["counts"]))
    return {**model_variables(state), "params": params}


def final_prototypes(
    relations: Float[Any, "classes dim"], totals: Float[Any, "classes dim"], counts: Float[Any, " classes"]
) -> Float[Any, "classes dim"]:
    """Computes the final prototypes of all classes `[classes, dim]`, `(relations + totals) / (1 + counts)`. `totals`
    are the sums of the features of the stored examples of each class, `counts` their numbers.

    Args:
      relations: Vectors r of the classes.
      totals: Sums of the features of the stored examples of each class.
      counts: Numbers of stored examples of each class.

    Example:
      >>> final_prototypes(jnp.array([[1.0], [5.0]]), jnp.array([[8.0], [0.0]]), jnp.array([2.0, 0.0])).tolist()
      [[3.0], [5.0]]
    """
    return (relations + totals) / (1 + counts)[:, None]


def class_sums(
    features: Float[np.ndarray, "examples dim"], labels: Int[np.ndarray, " examples"], num_classes: int
) -> tuple[Float[np.ndarray, "classes dim"], Float[np.ndarray, " classes"]]:
    """Returns the sum of the features `[examples, dim]` of each class, `[num_classes, dim]`, and the number of its
    examples, `[num_classes]`.

    Args:
      features: Features of examples.
      labels: Classes of the examples.
      num_classes: Number of classes.

    Example:
      >>> totals, counts = class_sums(np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 1]), 3)
      >>> totals.tolist(), counts.tolist()
      ([[2.0], [5.0], [0.0]], [1.0, 2.0, 0.0])
    """
    totals = np.zeros((num_classes, features.shape[1]), features.dtype)
    np.add.at(totals, labels, features)
    return totals, np.bincount(labels, minlength=num_classes).astype(features.dtype)


def draw_instances(numbers: np.ndarray, labels: np.ndarray, instances: int, name: str) -> np.ndarray:
    """Draws for each class in `labels` at most `instances` of its examples at random, and returns their numbers,
    sorted. `numbers` are those of all examples, and 0 instances return them all. The string `name` is the seed.

    Args:
      numbers: Numbers of the examples.
      labels: Classes of the examples.
      instances: Maximum number of examples of each class. 0 for all examples.
      name: Name that seeds the draw.

    Example:
      >>> draw_instances(np.array([7, 8, 9]), np.array([0, 0, 1]), 1, "prototypes/0").size
      2
    """
    if not instances:
        return numbers
    order = make_random_state(name).permutation(len(numbers))
    chosen = [order[labels[order] == label][:instances] for label in np.unique(labels)]
    return np.sort(numbers[np.concatenate(chosen)]) if chosen else numbers
