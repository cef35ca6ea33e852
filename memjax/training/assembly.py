"""The parts of an update that a configuration describes: objective, optimisers and step, put together in one place."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import optax

from memjax import config as configs
from memjax.config import Config
from memjax.training import optimizers
from memjax.training.checkpoints import flatten
from memjax.training.objective import OVER_LAYERS, Objective, model_loss
from memjax.training.slot_counters import count_usage
from memjax.training.step import AfterUpdate, TrainState, finish_window, init_train_state, make_train_step
from memjax.training.tables import TableOptimizer, freeze_tables, table_adam
from memjax.typing import Batch, Sum

__all__ = ["UpdateFunctions", "make_update_functions"]


class UpdateFunctions(NamedTuple):
    """What an update consists of.

    Attributes:
      objective: what is made small.
      optimizer: of the dense parameters.
      table_optimizer: of value tables.
      step: `step(state, batch) -> (state, sums)`, not jitted.
      segments: arguments of `compute_gradients`, for a learner that composes the step itself.
      finish: `finish(state) -> state` at the end of a stage (see `Learner`), None without windows.
    """

    objective: Objective
    optimizer: optax.GradientTransformation
    table_optimizer: TableOptimizer
    step: Callable[[TrainState, Batch], tuple[TrainState, dict[str, Sum]]]
    segments: Mapping[str, Any]
    finish: Callable[[TrainState], TrainState] | None = None

    def init(self, variables: Any, memory: Any, batch: Batch, key: Any, *, method: Any = None) -> TrainState:
        """The state before the first step (see `init_train_state`)."""
        return init_train_state(
            self.objective,
            self.optimizer,
            variables,
            memory,
            batch,
            key,
            table_optimizer=self.table_optimizer,
            method=method,
        )


def make_objective(config: Config, model: Any) -> Objective:
    """The negative log likelihood of the model, with the auxiliary losses that the configuration weighs."""
    carrier = config.model.carrier
    return Objective(model_loss(model), carrier.coefficients(), OVER_LAYERS[carrier.over_layers])


def make_update_functions(
    config: Config,
    model: Any,
    *,
    objective: Callable[[Config, Any], Objective] = make_objective,
    links: Sequence[optax.GradientTransformation] = (),
    after_update: AfterUpdate | None = None,
) -> UpdateFunctions:
    """Objective, optimisers and step: for the loop, for plans and for the bench alike.

    Args:
      config: the configuration.
      model: the Linen model that it describes.
      objective: `objective(config, model)`, another one.
      links: as in `optimizers.make_optimizer`.
      after_update: as in `apply_gradients`.
    """
    training, made = config.training, objective(config, model)
    if links and training.apply_every > 1:  # the last window of a task may be short, and has no reference of its own
        allowed = "1 with a method that projects gradients"
        raise ValueError(f"training.apply_every: given {training.apply_every}, allowed: {allowed}")
    optimizer, tables = make_optimizer(config, model, links), make_table_optimizer(config)
    names = ("accumulate", "rematerialize", "segments_per_checkpoint", "segments_without_gradient")
    segments = {name: getattr(training, name) for name in names}
    step = make_train_step(made, optimizer, table_optimizer=tables, after_update=after_update, jit=False, **segments)
    finish = functools.partial(finish_window, optimizer=optimizer) if training.apply_every > 1 else None
    return UpdateFunctions(made, optimizer, tables, step, segments, finish)


def make_schedule(training: configs.Training) -> optimizers.Schedule:
    """The learning rate over optimiser steps."""
    steps = -(-training.steps // training.apply_every)  # the last window may be shorter
    return optimizers.make_schedule(**dataclasses.asdict(training.schedule), steps=steps)


def make_optimizer(
    config: Config, model: Any, links: Sequence[optax.GradientTransformation]
) -> optax.GradientTransformation:
    """The optimiser of the dense parameters.

    Args:
      config: the configuration.
      model: its groups of layers have these at axis 0 (see `optimizers.make_matrix_mask`).
      links: as in `optimizers.make_optimizer`.
    """
    training = config.training
    chain = optimizers.make_transformation(training.optimizer, make_schedule(training), model.scanned_groups())
    if training.memory_learning_rate:
        factor = training.memory_learning_rate / training.schedule.learning_rate
        chain = optax.chain(chain, optimizers.scale_updates(config.model.carrier.added_parameters, factor))
    rule = optimizers.make_optimizer(chain, clip_norm=training.clip_norm, apply_every=training.apply_every, links=links)
    below = () if training.train_layers is None else model.parameters_below(training.train_layers)
    return optimizers.freeze_parameters(rule, training.frozen, below) if training.frozen or below else rule


def make_table_optimizer(config: Config) -> TableOptimizer:
    """The update rule of value tables, with counters of their slots."""
    rule = dataclasses.asdict(config.training.tables)
    schedule = optimizers.make_schedule(rule.pop("learning_rate"), steps=1, decay="constant")
    adam = table_adam(schedule, **rule, split=config.sharding.tables)
    return count_usage(freeze_tables(adam, config.training.frozen))


def check_frozen(names: Sequence[str], state: TrainState) -> None:
    """Raises `ValueError` for a name of `training.frozen` that no parameter has."""
    paths = [*flatten(state.params), *flatten(state.tables.values)]
    for name in names:
        if not any(optimizers.is_named(path, [name]) for path in paths):
            raise ValueError(f"training.frozen: given {name!r}, allowed: a part of a parameter's path, as {paths[0]}")
