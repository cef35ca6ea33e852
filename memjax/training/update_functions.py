"""Builds the functions of a training update from a configuration: objective, optimisers and train step."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import optax

from memjax import config as configs
from memjax.config import Config
from memjax.models.adapters import is_part, is_trained_with_adapters
from memjax.training import optimizers
from memjax.training.named_arrays import flatten
from memjax.training.objective import OVER_LAYERS, Objective, model_loss
from memjax.training.slot_counters import count_usage
from memjax.training.step import AfterUpdate, finish_window, make_train_step
from memjax.training.tables import TableOptimizer, freeze_tables, table_adam
from memjax.training.train_state import TrainState, init_train_state
from memjax.training.trained_parameters import select_trained
from memjax.typing import Batch, WeightedSum

__all__ = ["UpdateFunctions", "make_update_functions"]

MakeObjective = Callable[[Config, Any], Objective]
"""Function `make_objective(config, model)` that makes a training objective."""


class UpdateFunctions(NamedTuple):
    """The objective, the optimisers and the train step that a configuration describes.

    Attributes:
      objective: Loss that training minimizes.
      optimizer: Optimiser of the dense parameters.
      table_optimizer: Optimiser of the value tables.
      step: Train step `step(state, batch) -> (state, sums)`, not jitted.
      segments: Keyword arguments of `compute_gradients` that control how segments are processed. A learner that calls
        `compute_gradients` itself passes them on.
      finish: `finish(state) -> state`, called once at the end of a stage. It applies the gradients of an incomplete
        accumulation window. None when every step applies its gradients.
    """

    objective: Objective
    optimizer: optax.GradientTransformation
    table_optimizer: TableOptimizer
    step: Callable[[TrainState, Batch], tuple[TrainState, dict[str, WeightedSum]]]
    segments: Mapping[str, Any]
    finish: Callable[[TrainState], TrainState] | None = None

    def select_trained(self, params: Any) -> Any:
        """Returns the parameters that are trained in a run with adapters, as smaller nested dicts, and all of them in
        any other run.
        """
        return select_trained(params, self.segments["is_frozen"])

    def init(self, variables: Any, memory: Any, batch: Batch, key: Any, *, method: Any = None) -> TrainState:
        """Makes the train state before the first step, with `method` as the state of the learning method.

        See `init_train_state`.
        """
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
    """Makes the default objective: the negative log-likelihood plus the weighted auxiliary losses of the model."""
    memory_facts = config.model.memory_facts
    return Objective(model_loss(model), memory_facts.auxiliary_loss_weights(), OVER_LAYERS[memory_facts.kl_over_layers])


def make_update_functions(
    config: Config,
    model: Any,
    *,
    objective: Callable[[Config, Any], Objective] = make_objective,
    transformations: Sequence[optax.GradientTransformation] = (),
    after_update: AfterUpdate | None = None,
) -> UpdateFunctions:
    """Builds objective, optimisers and train step from a configuration, as `UpdateFunctions`.
    `objective(config, model)` is a function that makes the objective.

    Args:
      config: Configuration of the run.
      model: Linen model that the configuration describes.
      objective: Function `objective(config, model)` that makes the objective.
      transformations: Gradient transformations to apply before clipping. See `optimizers.make_optimizer`.
      after_update: Function that computes the next `TrainState.method`. See `apply_gradients`.

    Raises:
      ValueError: `transformations` together with `training.gradient_accumulation_steps` above 1.
    """
    # The training loop, memory plans and benchmarks all build their step here, so that they run the same program.
    training, loss = config.training, objective(config, model)
    # The last window of a task may be incomplete, and has no reference gradients.
    if transformations and training.gradient_accumulation_steps > 1:
        allowed = "1 with a method that projects gradients"
        raise ValueError(
            f"training.gradient_accumulation_steps: given {training.gradient_accumulation_steps}, allowed: {allowed}"
        )
    optimizer, tables = make_optimizer(config, model, transformations), make_table_optimizer(config, model)
    segments = {
        "accumulate": training.num_microbatches,
        "rematerialize": training.remat,
        "segments_per_checkpoint": training.segments_per_remat,
        "segments_without_gradient": training.burn_in_segments,
        "is_frozen": is_frozen_beside_adapters(training, model),
    }
    step = make_train_step(loss, optimizer, table_optimizer=tables, after_update=after_update, jit=False, **segments)
    finish = functools.partial(finish_window, optimizer=optimizer) if training.gradient_accumulation_steps > 1 else None
    return UpdateFunctions(loss, optimizer, tables, step, segments, finish)


def make_schedule(training: configs.Training) -> optimizers.Schedule:
    """Makes the learning-rate schedule that the settings of training describe, a function of the number of optimiser
    steps.
    """
    steps = -(-training.steps // training.gradient_accumulation_steps)  # the last window may be shorter
    return optimizers.make_schedule(**dataclasses.asdict(training.schedule), steps=steps)


def make_optimizer(
    config: Config, model: Any, transformations: Sequence[optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Makes the optimiser of the dense parameters, with clipping, accumulation and frozen parameters.

    Args:
      config: Configuration of the run.
      model: Model to train. It names the groups of layers whose parameters are stacked along axis 0 and the layers
        that stay frozen.
      transformations: Gradient transformations to apply before clipping. See `optimizers.make_optimizer`.
    """
    training = config.training
    chain = optimizers.make_transformation(training.optimizer, make_schedule(training), model.scanned_groups())
    if training.memory_learning_rate:
        factor = training.memory_learning_rate / training.schedule.learning_rate
        chain = optax.chain(chain, optimizers.scale_updates(config.model.memory_facts.memory_parameter_names, factor))
    rule = optimizers.make_optimizer(
        chain,
        clip_norm=training.clip_norm,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        transformations=transformations,
    )
    is_frozen = make_is_frozen(training, model)
    return optimizers.freeze_parameters(rule, is_frozen) if is_frozen else rule


def make_is_frozen(training: configs.Training, model: Any) -> Callable[[str], bool] | None:
    """Makes a function that says of the path of a parameter of the model whether it is frozen, from the settings of
    training. None where the whole model is trained.
    """
    names, lora = training.frozen_parameters, training.lora
    below = () if training.num_trainable_layers is None else model.parameters_below(training.num_trainable_layers)
    if not (names or below or lora.rank):
        return None

    def is_frozen(path: str) -> bool:
        if lora.rank and not is_trained_with_adapters(path, lora):
            return True
        return optimizers.is_named(path, names) or path.startswith(below)

    return is_frozen


def is_frozen_beside_adapters(training: configs.Training, model: Any) -> Callable[[str], bool] | None:
    """Makes a function that says of the path of a parameter whether a run with adapters freezes it. None without
    adapters, also where other parameters are frozen: their gradients are computed, and methods store all parameters.
    """
    return make_is_frozen(training, model) if training.lora.rank else None


def make_table_optimizer(config: Config, model: Any) -> TableOptimizer:
    """Makes the optimiser of value tables, which also counts how often each slot is used."""
    rule = dataclasses.asdict(config.training.value_table_optimizer)
    schedule = optimizers.make_schedule(rule.pop("learning_rate"), steps=1, decay="constant")
    adam = table_adam(schedule, **rule, split=config.sharding.split_tables_by)
    is_frozen = make_is_frozen(config.training, model)
    return count_usage(freeze_tables(adam, is_frozen) if is_frozen else adam)


def check_frozen(training: configs.Training, state: TrainState) -> None:
    """Raises `ValueError` if a name in `training.frozen_parameters` or `training.lora.fully_trained` matches no
    parameter or value table of a train state.
    """
    paths = [*flatten(state.params), *flatten(state.tables.values)]
    frozen = {name: any(optimizers.is_named(path, [name]) for path in paths) for name in training.frozen_parameters}
    trained = {name: any(is_part(name, path) for path in paths) for name in training.lora.fully_trained}
    for field, names in (("frozen_parameters", frozen), ("lora.fully_trained", trained)):
        for name, is_there in names.items():
            allowed = f"a part of a parameter's path, as {paths[0]}"
            configs.require(is_there, f"training.{field}", name, allowed)
