"""EMR and EA-EMR: replay of stored examples between the batches of a task, and alignment of embeddings after it.

Wang, Xiong, Yu, Guo, Chang and Wang, "Sentence Embedding Alignment for Lifelong Relation Extraction", NAACL 2019,
https://arxiv.org/abs/1903.02588.

EMR: before each batch of a task, one update learns all stored examples of an earlier task. Earlier tasks take turns.
EA-EMR: after the task a linear map is fitted that maps the embeddings of stored sentences and of their relations to
their values before the task. From then on the map is applied in front of the similarity. Examples of a task are chosen
and stored after it.

Differs from the paper or its code: the map begins as the identity (in the code with random values). The embedding of a
relation is stored once, not once for each of its sentences. Sentences and names share one encoder. Rows of a loss have
equal weights, however many candidates they have.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from memjax import config as configs
from memjax.data.example_batches import EXAMPLE
from memjax.data.vectors import make_random_state
from memjax.lifelong.class_features import features_of, read_features
from memjax.lifelong.components import Component
from memjax.lifelong.composition import chain_components, make_update
from memjax.lifelong.kept_examples import (
    CHOSEN,
    KeptExamples,
    allocate_kept,
    choose_rehearsal_examples,
    keep_examples,
    kept_example_ids,
    note_seen_classes,
    rows_like,
)
from memjax.lifelong.method_interface import Method, TaskInfo, phase_of, settings_of
from memjax.models.heads import CLASSES
from memjax.models.similarity_head import ALIGNMENT, VECTORS, apply_alignment
from memjax.training.experiment import Experiment
from memjax.training.objective import model_collections
from memjax.training.sharding import Layout
from memjax.training.stages import (
    STREAM,
    Learner,
    PhaseContext,
    PlannedUpdate,
    Requirements,
    Stage,
    Update,
    UpdateStream,
)
from memjax.training.train_state import TrainState, model_variables
from memjax.training.update_functions import MakeObjective
from memjax.typing import Batch, WeightedSum

EA_EMR = "ea_emr"
"""Name of the state in `TrainState.method`: embeddings of stored sentences and classes, and the map's optimiser."""
REHEARSE, ALIGN = "rehearse", "align"
"""Names of the kinds of update other than those of the stream."""


def emr(settings: configs.EMR) -> Method:
    """Makes the `Method` EMR: stored examples of earlier tasks are learned between the batches of a task. With
    `alignment_epochs` above 0 it is EA-EMR, which fits a map of the embeddings to their earlier values after each task
    but the first.
    """
    needs = Requirements(boundaries=True, examples=True, all_tasks=True)
    base = chain_components(Component(EA_EMR, requirements=needs))
    rule = optax.adam(settings.alignment_learning_rate)

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        base_learner = base.learner(experiment, layout, objective)
        tasks, example, model = len(settings_of(experiment).tasks), base_learner.batch_shapes[STREAM], experiment.model

        def start(values: Mapping[str, Any]) -> TrainState:
            state = allocate_kept(base_learner.init(values), tasks, settings.examples_per_task)
            if not settings.alignment_epochs:
                return state
            alignment = state.constants["head"][ALIGNMENT]
            dim = alignment["bias"].shape[0]
            stored = {
                "sentences": jnp.zeros((tasks, settings.examples_per_task, dim), jnp.float32),
                "classes": jnp.zeros((model.head.num_classes, dim), jnp.float32),
                "optimizer": rule.init(alignment),
            }
            return dataclasses.replace(state, method={**state.method, EA_EMR: stored})

        updates: dict[str, Update] = {}
        if settings.examples_per_task and tasks > 1:
            updates[REHEARSE] = make_update(experiment, objective, Component(EA_EMR))
        if settings.alignment_epochs and tasks > 1:
            updates[ALIGN] = functools.partial(_align_once, model, rule)
        batches = dict.fromkeys(updates, rows_like(example, max(settings.examples_per_task, 1)))
        return base_learner._replace(
            init=start,
            updates={**base_learner.updates, **updates},
            batch_shapes={**base_learner.batch_shapes, **batches},
        )

    return base._replace(
        learner=learner,
        stages=lambda task, own: _TaskStages(settings, rule, task).all(own),
    )


class _TaskStages:
    """Makes the stages of one task. Its phases are methods `change(state, context) -> state`."""

    def __init__(self, settings: configs.EMR, rule: optax.GradientTransformation, task: TaskInfo):
        self.settings, self.rule, self.index, self.experiment = settings, rule, task.index, task.experiment
        self.chosen = KeptExamples(task.parts, task.experiment)

    def all(self, task_stage: Stage) -> list[Stage]:
        """Returns the stage of the task, with stored examples between its batches, then the stage of the alignment."""
        rehearses = bool(self.index and self.settings.examples_per_task)
        if rehearses:
            assert isinstance(task_stage.steps, int)
            task_stage = task_stage._replace(
                open_stream=self._open_with_rehearsal(task_stage), steps=2 * task_stage.steps
            )
        task_stage = task_stage._replace(before=phase_of(self._begin), after=phase_of(self._store_examples))
        if not (rehearses and self.settings.alignment_epochs):
            return [task_stage]
        open_stream = lambda state, position: cycle_batches(
            self._stored_batches(state), ALIGN, self.settings.alignment_epochs, position
        )
        fields: dict[str, Any] = {
            "open_stream": open_stream,
            "steps": self.settings.alignment_epochs * (self.index + 1),
            "task": task_stage.task,
        }
        fields |= {"before": phase_of(self._reset_optimizer), "after": phase_of(self._store_all_embeddings)}
        return [task_stage, Stage(f"{task_stage.name}, alignment", **fields)]

    def _open_with_rehearsal(self, task_stage: Stage) -> Any:
        """Makes the function that opens the stream of a task, with stored batches of earlier tasks between its own."""

        def open_stream(state: TrainState, position: Any) -> UpdateStream:
            assert isinstance(task_stage.steps, int)
            of_task = task_stage.open_stream(state, position and position["own"])
            stored = self._stored_batches(state, self.index)
            return alternate_batches(stored, REHEARSE, of_task, task_stage.steps, position)

        return open_stream

    def _stored_batches(self, state: TrainState, tasks: int | None = None) -> list[Batch]:
        """Returns a batch of all stored examples for each of the first `tasks` tasks. None for all up to this one."""
        batches = []
        for task in range(self.index + 1 if tasks is None else tasks):
            stream = self.chosen.stream(
                kept_example_ids(state, task), None, rows=self.settings.examples_per_task, epochs=1
            )
            batches.append(self._with_candidates(next(stream), task))
        return batches

    def _with_candidates(self, batch: Batch, task: int) -> Batch:
        """Replaces the candidates of a batch, if it has any, by random ones among the classes seen so far."""
        number = self.settings.num_candidates
        if not number or CLASSES not in batch.extras or not batch.extras[CLASSES].any():
            return batch
        parts = (self.chosen.of_task(index) for index in range(self.index + 1))
        seen = np.unique(np.concatenate([self.chosen.labels(numbers) for numbers in parts]))
        allowed = np.zeros_like(batch.extras[CLASSES])
        seed = self.experiment.config.data.seed
        for row in np.flatnonzero(batch.weights[0, :, 0] > 0):
            label = int(batch.targets[0, row, 0])
            others = make_random_state(f"candidates/{seed}/{self.index}/{task}/{row}").permutation(seen[seen != label])
            allowed[0, row, [label, *others[:number]]] = True
        return dataclasses.replace(batch, extras={**batch.extras, CLASSES: allowed})

    # Phases

    def _begin(self, state: TrainState, context: PhaseContext) -> TrainState:
        """Marks the classes of the task as seen."""
        del context
        return note_seen_classes(state, self.experiment.model, self.chosen.labels(self.chosen.of_task(self.index)))

    def _store_examples(self, state: TrainState, context: PhaseContext) -> TrainState:
        """Chooses and stores examples of the task."""
        settings = self.settings
        if not settings.examples_per_task:
            return state
        read = read_features(
            self.experiment, model_variables(state), self.chosen.joined(self.chosen.of_task(self.index))
        )
        numbers = choose_rehearsal_examples(
            read,
            settings.examples_per_task,
            context.key,
            settings.example_selection,
            normalized=settings.normalize_features,
        )
        context.report(f"emr: {len(numbers)} examples of task {self.index} are kept")
        state = keep_examples(state, self.index, numbers)
        return self._store_embeddings(state, [self.index]) if settings.alignment_epochs else state

    def _reset_optimizer(self, state: TrainState, context: PhaseContext) -> TrainState:
        """Resets the optimiser of the map."""
        del context
        optimizer = self.rule.init(state.constants["head"][ALIGNMENT])
        return _with_method_state(state, optimizer=optimizer)

    def _store_all_embeddings(self, state: TrainState, context: PhaseContext) -> TrainState:
        """Stores the aligned embeddings of the stored sentences of all tasks so far."""
        del context
        return self._store_embeddings(state, range(self.index + 1))

    def _store_embeddings(self, state: TrainState, tasks: Sequence[int]) -> TrainState:
        """Stores the aligned embeddings of the stored sentences of some tasks and of their classes."""
        stored, alignment = state.method[EA_EMR], state.constants["head"][ALIGNMENT]
        sentences, classes = np.array(stored["sentences"]), np.array(stored["classes"])
        variables = model_collections(model_variables(state))
        vectors = apply_alignment(alignment, _class_vectors(self.experiment.model, variables, None))
        for task in tasks:
            numbers = kept_example_ids(state, task)
            read = read_features(self.experiment, model_variables(state), self.chosen.joined(numbers))
            sentences[task, : len(numbers)] = apply_alignment(alignment, jnp.asarray(read.features))
            labels = np.unique(read.labels)
            classes[labels] = np.asarray(vectors)[labels]
        return _with_method_state(state, sentences=jnp.asarray(sentences), classes=jnp.asarray(classes))


def _with_method_state(state: TrainState, **kept: Any) -> TrainState:
    """Replaces entries of the method state."""
    new = {**state.method[EA_EMR], **kept}
    return dataclasses.replace(state, method={**state.method, EA_EMR: new})


def cycle_batches(batches: Sequence[Any], kind: str, times: int, position: Any = None) -> UpdateStream:
    """Returns a stream of updates of the kind named `kind` that reads a list of batches in turn, each `times` times. It
    continues at `position`, or begins if that is None.

    Args:
      batches: The batches, at least one.
      kind: Kind of the updates.
      times: Number of times that each batch is read.
      position: Position of an earlier stream, with the number of batches that were read. None for the beginning.
    """
    number = position["given"] if position else 0
    return UpdateStream(
        lambda number: PlannedUpdate(kind),
        times * len(batches),
        itertools.islice(itertools.cycle(batches), number % len(batches), None),
        lambda number: {"given": number, "due": False, "own": None},
        number=number,
    )


def alternate_batches(batches: Sequence[Any], kind: str, own: Any, steps: int, position: Any = None) -> UpdateStream:
    """Returns a stream of `2 * steps` updates that alternates between an update of the kind named `kind`, on the listed
    batches in turn, and one of the stream `own`. It continues at `position`, or begins if that is None.

    Args:
      batches: The batches, at least one.
      kind: Kind of the updates that read these batches. The others are those of the stream.
      own: The other stream, which must already be at its position.
      steps: Number of updates of the other stream.
      position: Position of an earlier stream, with the number of batches of the list that were read, and whether an
        update of the other stream is due. None for the beginning.
    """
    number = 2 * position["given"] - position["due"] if position else 0
    turns = itertools.islice(itertools.cycle(batches), (number + 1) // 2 % len(batches), None)
    sources = itertools.islice(itertools.cycle([turns, (batch for _, batch in own)]), number % 2, None)
    return UpdateStream(
        lambda number: PlannedUpdate(STREAM if number % 2 else kind),
        2 * steps,
        (next(source) for source in sources),
        lambda number: {"given": (number + 1) // 2, "due": number % 2 == 1, "own": own.position},
        number=number,
    )


# The alignment


def _class_vectors(model: Any, variables: Mapping[str, Any], needed: Any) -> Float[Array, "classes dim"]:
    """Returns the vectors of the classes in front of the map.

    Args:
      model: The Linen model.
      variables: Variables of the model.
      needed: Classes whose names must be encoded, bool `[classes]`, if vectors come from names. None for all classes.
    """
    if not model.head.named:
        return variables["params"]["head"][VECTORS]
    return model.apply(variables, model.all_classes() if needed is None else needed, method="name_vectors")


def alignment_loss(
    alignment: Mapping[str, Any], now: Float[Array, "rows dim"], before: Float[Array, "rows dim"], there: Any
) -> Float[Array, ""]:
    """Computes the mean squared difference, a scalar, between embeddings `now`, mapped by the linear map `alignment`,
    and those `before` the task. `there` is the weight of each row, 0 for padding.

    Args:
      alignment: Kernel and bias of the linear map.
      now: Present embeddings.
      before: Embeddings before the task.
      there: Weight of each row, 1 or 0 for padding.

    Example:
      >>> identity = {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}
      >>> float(alignment_loss(identity, jnp.ones((3, 2)), jnp.ones((3, 2)), jnp.ones(3)))
      0.0
    """
    squares = jnp.mean(jnp.square(apply_alignment(alignment, now) - before), axis=1)
    return jnp.sum(squares * there) / jnp.maximum(jnp.sum(there), 1)


def _align_once(
    model: Any, rule: optax.GradientTransformation, state: TrainState, batch: Batch
) -> tuple[TrainState, dict[str, WeightedSum]]:
    """Makes one update of the map on the stored examples of a task: a step on sentences, then one on classes."""
    stored, rows = state.method[EA_EMR], jax.tree.map(lambda leaf: leaf[0], batch)
    variables = model_collections(model_variables(state))
    present = (rows.weights[:, 0] > 0).astype(jnp.float32)
    labels = jnp.where(present > 0, rows.targets[:, 0], 0)
    place = jnp.argmax(state.method[CHOSEN].reshape(1, -1) == rows.extras[EXAMPLE][:, None], axis=1)
    count = stored["classes"].shape[0]
    needed = jnp.zeros(count, bool).at[jnp.where(present > 0, labels, count)].set(True, mode="drop")
    pairs = (
        (features_of(model, variables, rows), stored["sentences"].reshape(-1, stored["sentences"].shape[-1])[place]),
        (_class_vectors(model, variables, needed)[labels], stored["classes"][labels]),
    )
    start = (state.constants["head"][ALIGNMENT], stored["optimizer"])
    (alignment, optimizer), losses = start, []
    for now, before in pairs:
        now = jax.lax.stop_gradient(now.astype(jnp.float32))
        loss, gradient = jax.value_and_grad(alignment_loss)(alignment, now, before, present)
        updates, optimizer = rule.update(gradient, optimizer, alignment)
        alignment = optax.apply_updates(alignment, updates)
        losses.append(loss)
    ok = jnp.isfinite(losses[0]) & jnp.isfinite(losses[1])
    alignment, optimizer = jax.tree.map(lambda new, old: jnp.where(ok, new, old), (alignment, optimizer), start)
    head = {**state.constants["head"], ALIGNMENT: alignment}
    new = _with_method_state(
        dataclasses.replace(state, constants={**state.constants, "head": head}), optimizer=optimizer
    )
    unit = jnp.ones((), jnp.float32)
    metric = lambda value: WeightedSum(jnp.where(ok, value, 0).astype(jnp.float32), unit)
    sums = {"sentences": metric(losses[0]), "classes": metric(losses[1])}
    return new, {**sums, "skipped": WeightedSum(jnp.where(ok, 0.0, 1.0).astype(jnp.float32), unit)}
