"""Plain training: a learner with one kind of update, and a single stage that reads the training batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from memjax.training.experiment import Experiment
from memjax.training.sharding import Layout
from memjax.training.stages import STREAM, Learner, MakeLearner, Stage, make_stream_of_one_kind
from memjax.training.train_state import TrainState, init_variables
from memjax.training.update_functions import MakeObjective, make_objective, make_update_functions


def make_plain_learner(
    experiment: Experiment,
    layout: Layout | None = None,
    objective: MakeObjective = make_objective,
    *,
    method: Callable[[Mapping[str, Any]], Any] = lambda params: {},
    **arguments: Any,
) -> Learner:
    """Makes the `Learner` of plain training, with a single kind of update. `objective(config, model)` makes the
    objective, and `method(params)` the initial state of a learning method.

    Args:
      experiment: Model, data and evaluations of the run.
      layout: Shardings of all arrays over several devices. None on a single device.
      objective: Function `objective(config, model)` that makes the training objective.
      method: Function `method(params)` that makes the initial `TrainState.method`. The default has no state.
      **arguments: `transformations` and `after_update` of `make_update_functions`.
    """
    config, model = experiment.config, experiment.model
    functions, rows = make_update_functions(config, model, objective=objective, **arguments), config.data.batch_size
    example = experiment.example()
    key = jax.random.key(config.training.seed)

    def variables() -> Any:
        return init_variables(model, jax.random.fold_in(key, 0), config.data.segment_length)

    def init(values: Mapping[str, Any]) -> TrainState:
        memory, arrays = model.init_state(rows), method(values["params"])
        return functions.init(values, memory, example, jax.random.fold_in(key, 1), method=arrays)

    updates, evaluators = {STREAM: functions.step}, experiment.evaluators(layout)
    return Learner(model, variables, init, updates, {STREAM: example}, evaluators, finish=functions.finish)


def make_stage(experiment: Experiment, layout: Layout | None, name: str, steps: int, **fields: Any) -> Stage:
    """Makes a `Stage` of `steps` updates that reads the training batches of an experiment. `fields` are further fields
    of `Stage`.
    """
    rows = layout.host_rows(experiment.config.data.batch_size) if layout else None
    return Stage(
        name, lambda state, position: make_stream_of_one_kind(experiment.stream(position, rows)), steps, **fields
    )


def make_single_stage(
    experiment: Experiment, layout: Layout | None, objective: MakeObjective
) -> tuple[MakeLearner, Sequence[Stage]]:
    """Makes the arguments `(make_learner, stages)` of `run` for plain training: a function that makes the learner for a
    growth history, and a list of a single stage with a single kind of update.

    See `Course` for the arguments and the result.
    """
    stage = make_stage(experiment, layout, "training", experiment.config.training.steps)
    return lambda lineage: make_plain_learner(experiment.with_growth(lineage), layout, objective), [stage]
