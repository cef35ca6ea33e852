"""The parts that a lifelong-learning method is built from: components, and options for replay, episodes and adaptation.

`memjax.lifelong.composition.chain_components` combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import optax

from memjax.lifelong.memory_backends import Store
from memjax.lifelong.method_interface import TaskInfo
from memjax.lifelong.update_streams import ReplaySchedule
from memjax.training.experiment import Experiment
from memjax.training.objective import Objective
from memjax.training.row_adaptation import PerRowAdaptation
from memjax.training.stages import STREAM, PhaseContext, Requirements, Update
from memjax.training.train_state import TrainState
from memjax.training.update_functions import MakeObjective
from memjax.typing import Batch, WeightedSum

REPLAY, PROJECTED = "replay", "projected"
"""Names of the kinds of update other than `stream`."""
SUPPORT = "support"
"""Name of the support in the method state that losses read: the rows that an update adapts to before its loss."""

StateChange = Callable[[TrainState, PhaseContext, TaskInfo], TrainState]
ObjectiveWrapper = Callable[[Objective, Any], Objective]
"""A function `wrap(objective, model) -> objective` that adds something to an objective, such as a penalty."""


def identity_wrapper(objective: Objective, model: Any) -> Objective:
    """Returns the objective unchanged: the default wrapper of a component that adds no loss. `model` is not used."""
    del model
    return objective


class Component(NamedTuple):
    """One ingredient of a learning method: extra losses, a gradient transformation and hooks around updates and tasks.

    All fields but `name` are optional.

    Attributes:
      name: Name under which the component stores its state in `TrainState.method`.
      init: `init(params)` returns the first state of the component. None if it stores nothing. In a run with adapters,
        `params` are the trained parameters alone, as smaller nested dicts. The losses of `wrap_stream_loss` see all of
        them: `memjax.training.trained_parameters` has `select_like` and `fill_in` between both.
      wrap_stream_loss: Wrapper of the objective for rows of the stream.
      wrap_replay_loss: Wrapper of the objective for replayed rows.
      gradient_transformation: Transformation applied before clipping. It may ask for the argument `reference`.
      after_update: `after_update(component_state, params_before, params_after, gradients)` returns the new state of the
        component, after every update. The last three are trees as in `init`. Gradients are those of the batch of the
        stream by itself, whatever it weighs in the update, or of the replayed rows where an update has no such batch.
      before_task: `before(state, context, task) -> state`, called once before the updates of a task.
      after_task: `after(state, context, task) -> state`, called once after the updates of a task.
      requirements: Information that batches and tasks must carry for the component, such as task numbers. A component
        with `before_task` or `after_task` needs the boundaries between tasks, also without this field.
    """

    name: str
    init: Callable[[Any], Any] | None = None
    wrap_stream_loss: ObjectiveWrapper = identity_wrapper
    wrap_replay_loss: ObjectiveWrapper = identity_wrapper
    gradient_transformation: optax.GradientTransformation | None = None
    after_update: Callable[[Any, Any, Any, Any], Any] | None = None
    before_task: StateChange | None = None
    after_task: StateChange | None = None
    requirements: Requirements = Requirements()


class ReplayChoice(NamedTuple):
    """Two functions by which a method chooses the rows to replay: `draw` returns their ids, and `record` updates the
    state of the method when they were learned.

    Attributes:
      draw: `draw(method_state, memory, key, number)` returns the ids of rows of the memory.
      record: `record(method_state, rows, nll, number)` returns the method state after `number` rows, `[1, rows, ...]`,
        were learned. `nll` is the sum of the negative log-likelihoods of their targets.
    """

    draw: Callable[[Mapping[str, Any], Any, Any, int], Any]
    record: Callable[[Mapping[str, Any], Batch, WeightedSum, int], Mapping[str, Any]]


class ReplayOptions(NamedTuple):
    """Options for replaying rows of the episodic memory: how many, how often, and in which way.

    Attributes:
      rows: Number of rows that are replayed at once.
      make_update: `make_update(parts, separate_rows=...)` makes the update of a batch of the stream with rows of the
        memory, such as `memjax.lifelong.updates.make_joint_update`. None for separate updates between those of the
        stream.
      every: Number of examples of the stream from one replay to the next. With 0, every update of the stream replays,
        and there are no separate updates.
      replace: Whether rows are drawn with replacement.
      choice: Choice of the rows. None if all rows of the memory are equally likely.
    """

    rows: int
    make_update: Callable[..., Update] | None = None
    every: int = 0
    replace: bool = True
    choice: ReplayChoice | None = None

    @property
    def schedule(self) -> ReplaySchedule:
        """The `ReplaySchedule` of updates that replay. With `make_update` they take the place of updates of the stream,
        without it they come between them.
        """
        if self.make_update is None:
            return ReplaySchedule(self.every, REPLAY)
        return ReplaySchedule(self.every, PROJECTED, reads=True)

    def is_read_by(self, kind: str) -> bool:
        """Returns whether updates of the kind named `kind` read rows of the memory. Updates of the kind "stream" do so
        only with `make_update` and `every` 0, all others always.
        """
        return kind != STREAM or (self.make_update is not None and not self.every)


class EpisodeOptions(NamedTuple):
    """Options for learning in episodes: each update adapts to a support before the loss of its query.

    The query is the last batch of an update. Losses of components find the support under `SUPPORT`: batches of the
    stream, `[steps, rows, ...]`, or the result of `find`.

    Attributes:
      steps: Number of batches of the stream in front of the query.
      find: `find(model, store)(variables, query)` returns rows of the memory as the support of a query. None for a
        support from the stream.
      reduction: Loss of a query from the memory: "mean" over its rows, or "sum" of the means of its batches.
      keeps_last: Whether batches that are left at the end of a stage form a shorter episode. See `EpisodeSchedule`.
    """

    steps: int = 0
    find: Callable[[Any, Store], Callable[[Mapping[str, Any], Batch], Any]] | None = None
    reduction: Literal["mean", "sum"] = "mean"
    keeps_last: bool = False


class TestTimeAdaptation(NamedTuple):
    """Two functions by which a method adapts to its memory for an evaluation: `variables` makes the variables that all
    rows are evaluated with, `rows` adapts parameters to each row by itself.

    Attributes:
      variables: `variables(experiment, store)(state, support, key)` returns the variables to evaluate with. See
        `Learner.adapt_variables`.
      rows: `rows(experiment, store)` returns the adaptation of each row by itself. See `Learner.adapt_rows`. None if
        all rows are evaluated with the same parameters.
    """

    variables: Callable[[Experiment, Store], Callable[[TrainState, Any, Any], dict[str, Any]]]
    rows: Callable[[Experiment, Store], PerRowAdaptation] | None = None


def wrap_objective(objective: MakeObjective, laid: Sequence[ObjectiveWrapper]) -> MakeObjective:
    """Returns a function of configuration and model that makes an objective by `objective(config, model)` and applies
    the wrappers in the list `laid` to it, the first one innermost.
    """

    def make_wrapped(config: Any, model: Any) -> Objective:
        wrapped = objective(config, model)
        for wrap in laid:
            wrapped = wrap(wrapped, model)
        return wrapped

    return make_wrapped
