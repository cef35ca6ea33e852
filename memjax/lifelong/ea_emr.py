"""EMR and EA-EMR: what is kept of earlier tasks is learned between the batches of a task, and embeddings are aligned.

Wang, Xiong, Yu, Guo, Chang and Wang, "Sentence Embedding Alignment for Lifelong Relation Extraction", NAACL 2019,
https://arxiv.org/abs/1903.02588.

EMR: before each batch of a task, one update on all that is kept of one earlier task, each task in turn. EA-EMR: after
the task a linear map is fitted, which brings the embeddings of kept sentences and of their relations to where they were
before the task; it stands before the similarity from then on. What is kept is chosen after a task.

Differs from the paper or its code: the map begins as the identity (the code's with random values); the embedding of a
relation is kept once, and not once for each of its sentences; sentences and names have one encoder; a row of a loss
counts as another, however many candidates it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from memjax.data.examples import EXAMPLE
from memjax.data.vectors import random_of
from memjax.lifelong.compose import Component, chain_components
from memjax.lifelong.contract import Method, TaskInfo, phase_of, settings_of
from memjax.lifelong.head_features import features_of, read_features
from memjax.lifelong.rehearsal import (
    CHOSEN,
    KeptExamples,
    allocate_kept,
    choose_rehearsal_examples,
    keep_examples,
    kept_example_ids,
    note_seen_classes,
    rows_like,
)
from memjax.models.heads import CLASSES
from memjax.models.similarity_head import ALIGNMENT, VECTORS, align
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeObjective
from memjax.training.objective import model_collections
from memjax.training.sharding import Layout
from memjax.training.stages import STREAM, Learner, PhaseContext, Requirements, Stage
from memjax.training.step import TrainState, model_variables
from memjax.typing import Batch, Sum

__all__ = ["ALIGN", "EA_EMR", "REHEARSE", "CyclingBatches", "alignment_loss", "ea_emr", "emr"]

EA_EMR = "ea_emr"
"""what is kept, in `TrainState.method`: the embeddings of kept sentences and of classes, and the map's optimiser"""
REHEARSE, ALIGN = "rehearse", "align"
"""kinds of update"""


class How(NamedTuple):
    """The fields of `memjax.config.EAEMR`, which says what they mean; EMR has no alignments."""

    size: int
    selection: Literal["random", "flat"]
    normalized: bool
    num_candidates: int
    alignments: int = 0
    learning_rate: float = 1e-4


def emr(**fields: Any) -> Method:
    """EMR; `fields` are those of `memjax.config.EMR`."""
    return _method(How(**fields))


def ea_emr(**fields: Any) -> Method:
    """EA-EMR; `fields` are those of `memjax.config.EAEMR`."""
    return _method(How(**fields))


def _method(how: How) -> Method:
    needs = Requirements(boundaries=True, examples=True)
    base = chain_components(Component(EA_EMR, requirements=needs))
    rule = optax.adam(how.learning_rate)

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        made = base.learner(experiment, layout, objective)
        tasks, example, model = len(settings_of(experiment).tasks), made.batch_shapes[STREAM], experiment.model

        def start(values: Mapping[str, Any]) -> TrainState:
            state = allocate_kept(made.init(values), tasks, how.size)
            if not how.alignments:
                return state
            held = state.constants["head"][ALIGNMENT]
            dim = held["bias"].shape[0]
            kept = {
                "sentences": jnp.zeros((tasks, how.size, dim), jnp.float32),
                "classes": jnp.zeros((model.head.num_classes, dim), jnp.float32),
                "optimizer": rule.init(held),
            }
            return dataclasses.replace(state, method={**state.method, EA_EMR: kept})

        def observe(state: TrainState, batch: Any, kind: str) -> Any:
            if kind == ALIGN:
                return _aligned(model, rule, state, batch)
            return made.update(state, batch, kind)

        rows = rows_like(example, max(how.size, 1))
        used = {REHEARSE: rows} if how.size and tasks > 1 else {}
        used |= {ALIGN: rows} if how.alignments and tasks > 1 else {}
        return made._replace(init=start, update=observe, batch_shapes={**made.batch_shapes, **used})

    return base._replace(
        learner=learner, stages=lambda task, own: _Stages(how, rule, task).all(own), needs=needs, takes_tasks=False
    )


class _Stages:
    """The stages of one task; what phases do is `change(state, context) -> state`."""

    def __init__(self, how: How, rule: optax.GradientTransformation, task: TaskInfo):
        self.how, self.rule, self.index, self.experiment = how, rule, task.index, task.experiment
        self.chosen = KeptExamples(task.parts, task.experiment)

    def all(self, own: Stage) -> list[Stage]:
        """The task's own, with what is kept of others between its batches; then the alignment."""
        rehearses = bool(self.index and self.how.size)
        if rehearses:
            assert isinstance(own.steps, int)
            own = own._replace(open_stream=self._rehearsing(own), steps=2 * own.steps)
        own = own._replace(before=phase_of(self._begin), after=phase_of(self._keep_some))
        if not (rehearses and self.how.alignments):
            return [own]
        opened = lambda state, position: CyclingBatches(
            self._kept(state), ALIGN, self.how.alignments, position=position
        )
        fields: dict[str, Any] = {
            "open_stream": opened,
            "steps": self.how.alignments * (self.index + 1),
            "task": own.task,
        }
        fields |= {"before": phase_of(self._renew), "after": phase_of(self._embed)}
        return [own, Stage(f"{own.name}, alignment", **fields)]

    def _rehearsing(self, own: Stage) -> Any:
        """`open` of the stage with the batches of earlier tasks before its own."""

        def opened(state: TrainState, position: Any) -> CyclingBatches:
            inner = own.open_stream(state, position and position["own"])
            return CyclingBatches(self._kept(state, self.index), REHEARSE, between=inner, position=position)

        return opened

    def _kept(self, state: TrainState, tasks: int | None = None) -> list[Batch]:
        """All that is kept of each of the first tasks, a batch each."""
        found = []
        for task in range(self.index + 1 if tasks is None else tasks):
            stream = self.chosen.stream(kept_example_ids(state, task), None, rows=self.how.size, epochs=1)
            found.append(self._with_candidates(next(stream), task))
        return found

    def _with_candidates(self, batch: Batch, task: int) -> Batch:
        """With other candidates, of the classes that were seen, where examples have candidates."""
        number = self.how.num_candidates
        if not number or CLASSES not in batch.extras or not batch.extras[CLASSES].any():
            return batch
        parts = (self.chosen.of_task(one) for one in range(self.index + 1))
        seen = np.unique(np.concatenate([self.chosen.labels(numbers) for numbers in parts]))
        allowed = np.zeros_like(batch.extras[CLASSES])
        seed = self.experiment.config.data.seed
        for row in np.flatnonzero(batch.weights[0, :, 0] > 0):
            label = int(batch.targets[0, row, 0])
            others = random_of(f"candidates/{seed}/{self.index}/{task}/{row}").permutation(seen[seen != label])
            allowed[0, row, [label, *others[:number]]] = True
        return dataclasses.replace(batch, extras={**batch.extras, CLASSES: allowed})

    # Phases

    def _begin(self, state: TrainState, context: PhaseContext) -> TrainState:
        del context
        return note_seen_classes(state, self.experiment.model, self.chosen.labels(self.chosen.of_task(self.index)))

    def _keep_some(self, state: TrainState, context: PhaseContext) -> TrainState:
        how = self.how
        if not how.size:
            return state
        read = read_features(
            self.experiment, model_variables(state), self.chosen.joined(self.chosen.of_task(self.index))
        )
        numbers = choose_rehearsal_examples(read, how.size, context.key, how.selection, normalized=how.normalized)
        context.report(f"emr: {len(numbers)} examples of task {self.index} are kept")
        state = keep_examples(state, self.index, numbers)
        return self._embedded(state, [self.index]) if how.alignments else state

    def _renew(self, state: TrainState, context: PhaseContext) -> TrainState:
        """With the map's optimiser at its beginning."""
        del context
        optimizer = self.rule.init(state.constants["head"][ALIGNMENT])
        return _with_kept(state, optimizer=optimizer)

    def _embed(self, state: TrainState, context: PhaseContext) -> TrainState:
        del context
        return self._embedded(state, range(self.index + 1))

    def _embedded(self, state: TrainState, tasks: Sequence[int]) -> TrainState:
        """With the embeddings, behind the map, of what is kept of some tasks."""
        kept, held = state.method[EA_EMR], state.constants["head"][ALIGNMENT]
        sentences, classes = np.array(kept["sentences"]), np.array(kept["classes"])
        variables = model_collections(model_variables(state))
        vectors = align(held, class_vectors(self.experiment.model, variables, None))
        for task in tasks:
            numbers = kept_example_ids(state, task)
            read = read_features(self.experiment, model_variables(state), self.chosen.joined(numbers))
            sentences[task, : len(numbers)] = align(held, jnp.asarray(read.features))
            own = np.unique(read.labels)
            classes[own] = np.asarray(vectors)[own]
        return _with_kept(state, sentences=jnp.asarray(sentences), classes=jnp.asarray(classes))


def _with_kept(state: TrainState, **kept: Any) -> TrainState:
    new = {**state.method[EA_EMR], **kept}
    return dataclasses.replace(state, method={**state.method, EA_EMR: new})


class CyclingBatches:
    """Batches that come again and again, each in turn, as a stream of updates.

    Attributes:
      position: JSON-able: how many were given; and where the stream between them stands, and whether its next update is
        due.
    """

    def __init__(self, batches: Sequence[Any], kind: str, times: int = 0, *, between: Any = None, position: Any = None):
        """Goes on with the next update.

        Args:
          batches: at least one.
          kind: of update.
          times: how often each comes, where nothing is between them.
          between: a stream of updates, one of which follows each batch; with it all ends.
          position: where an earlier one stood; `between` stands there already.
        """
        self._batches, self._kind, self._times, self._between = batches, kind, times, between
        self._given, self._due = (position["given"], position["due"]) if position else (0, False)
        self._held: Any = None
        self._own = between.position if between is not None else None

    @property
    def position(self) -> dict[str, Any]:
        return {"given": self._given, "due": self._due, "own": self._own}

    def __iter__(self) -> CyclingBatches:
        return self

    def __next__(self) -> tuple[str, Any]:
        if self._between is None:
            if self._given == self._times * len(self._batches):
                raise StopIteration
            return self._kind, self._next()
        if self._held is None:
            self._held = next(self._between)
        if self._due:
            held, self._held, self._due = self._held, None, False
            self._own = self._between.position
            return held
        self._due = True
        return self._kind, self._next()

    def _next(self) -> Any:
        batch = self._batches[self._given % len(self._batches)]
        self._given += 1
        return batch


# The alignment


def class_vectors(model: Any, variables: Mapping[str, Any], needed: Any) -> Float[Array, "classes dim"]:
    """The vectors of classes before the map; of names those that are needed, None = all."""
    if not model.head.named:
        return variables["params"]["head"][VECTORS]
    return model.apply(variables, model.all_names() if needed is None else needed, method="name_vectors")


def alignment_loss(
    alignment: Mapping[str, Any], now: Float[Array, "rows dim"], before: Float[Array, "rows dim"], there: Any
) -> Float[Array, ""]:
    """The mean squared difference of embeddings behind the map from what they were.

    Example:
      >>> identity = {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}
      >>> float(alignment_loss(identity, jnp.ones((3, 2)), jnp.ones((3, 2)), jnp.ones(3)))
      0.0
    """
    squares = jnp.mean(jnp.square(align(alignment, now) - before), axis=1)
    return jnp.sum(squares * there) / jnp.maximum(jnp.sum(there), 1)


def _aligned(
    model: Any, rule: optax.GradientTransformation, state: TrainState, batch: Batch
) -> tuple[TrainState, dict[str, Sum]]:
    """One update of the map on what is kept of a task: a step on its sentences, then one on their classes."""
    kept, rows = state.method[EA_EMR], jax.tree.map(lambda leaf: leaf[0], batch)
    variables = model_collections(model_variables(state))
    there = (rows.weights[:, 0] > 0).astype(jnp.float32)
    labels = jnp.where(there > 0, rows.targets[:, 0], 0)
    place = jnp.argmax(state.method[CHOSEN].reshape(1, -1) == rows.extras[EXAMPLE][:, None], axis=1)
    count = kept["classes"].shape[0]
    needed = jnp.zeros(count, bool).at[jnp.where(there > 0, labels, count)].set(True, mode="drop")
    pairs = (
        (features_of(model, variables, rows), kept["sentences"].reshape(-1, kept["sentences"].shape[-1])[place]),
        (class_vectors(model, variables, needed)[labels], kept["classes"][labels]),
    )
    start = (state.constants["head"][ALIGNMENT], kept["optimizer"])
    (alignment, optimizer), losses = start, []
    for now, before in pairs:
        now = jax.lax.stop_gradient(now.astype(jnp.float32))
        loss, gradient = jax.value_and_grad(alignment_loss)(alignment, now, before, there)
        updates, optimizer = rule.update(gradient, optimizer, alignment)
        alignment = optax.apply_updates(alignment, updates)
        losses.append(loss)
    ok = jnp.isfinite(losses[0]) & jnp.isfinite(losses[1])
    alignment, optimizer = jax.tree.map(lambda new, old: jnp.where(ok, new, old), (alignment, optimizer), start)
    head = {**state.constants["head"], ALIGNMENT: alignment}
    new = _with_kept(dataclasses.replace(state, constants={**state.constants, "head": head}), optimizer=optimizer)
    one = jnp.ones((), jnp.float32)
    counted = lambda value: Sum(jnp.where(ok, value, 0).astype(jnp.float32), one)
    sums = {"sentences": counted(losses[0]), "classes": counted(losses[1])}
    return new, {**sums, "skipped": Sum(jnp.where(ok, 0.0, 1.0).astype(jnp.float32), one)}
