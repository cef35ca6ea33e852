"""Methods that are made of adapters: adapters with orthogonal inputs (O-LoRA), and one adapter a task.

Wang, Chen, Ge, Xia, Bao, Zheng, Zhang, Gui and Huang, "Orthogonal Subspace Learning for Language Model Continual
Learning", Findings of EMNLP 2023, https://arxiv.org/abs/2310.14152. Task t trains new adapters A_t and B_t beside the
frozen weights W and the frozen adapters of earlier tasks. The model computes

    x W + scale * (x A_1 B_1 + ... + x A_t B_t),

and the loss of task t is its negative log-likelihood plus

    lambda * sum over i < t of |A_i^T A_t|^2,    the squares of all entries, summed over the adapted matrices.

The columns of A_i span the inputs that task i reads. A gradient step on B_t in the orthogonal subspace leaves the
outputs of the earlier tasks as they are.

======================  ==========================================================
paper                   here
======================  ==========================================================
A_t, B_t                the arrays `a` and `b` of an adapter
A_1 ... A_{t-1}         its array `earlier_a`, which is 0 where tasks are to come
lambda_1                `penalty_weight`
======================  ==========================================================

Differs from the paper or its code: the code sums absolute values instead of squares (`overlap`), and adds the lengths
of A_t and B_t with a second weight, for which an optimiser's weight decay serves here. The paper writes classes as
text. A head of classes, if the model has one, goes on from task to task and is trained by all of them.

One adapter a task needs no paper: the trained parameters of every task are stored, and are put in place of the current
ones before the task is evaluated. Nothing is forgotten, and a task must be known to be answered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from memjax import config as configs
from memjax.lifelong.basic_methods import TOLD_BORDERS
from memjax.lifelong.components import Component
from memjax.lifelong.composition import chain_components, start_again
from memjax.lifelong.method_interface import Method, TaskInfo, settings_of
from memjax.memory.adapters import EARLIER, initialize_a
from memjax.models.adapters import is_adapter
from memjax.models.transformer import join_collection, split_collection
from memjax.training.experiment import Experiment
from memjax.training.named_arrays import flatten
from memjax.training.objective import Objective, with_penalty
from memjax.training.sharding import Layout
from memjax.training.stages import Learner, PhaseContext
from memjax.training.train_state import TrainState, model_variables
from memjax.training.trained_parameters import fill_in, select_like
from memjax.training.update_functions import MakeObjective, make_update_functions

O_LORA, TASK_ADAPTERS = "o_lora", "task_adapters"
"""Names of the components, and of what they store in `TrainState.method`."""


def o_lora(settings: configs.OLoRA) -> Method:
    """Makes the `Method` O-LoRA, which trains new adapters for each task beside the frozen ones of all earlier tasks,
    with a penalty for inputs that are not orthogonal.
    """
    name = f"{O_LORA}/overlap"

    def wrap(objective: Objective, model: Any) -> Objective:
        groups = model.layer_groups()
        penalty = lambda params, method: sum_overlaps(split_collection(params, groups), settings.overlap)
        loss = with_penalty(objective.loss, name, penalty)
        return objective._replace(loss=loss, coefficients={**objective.coefficients, name: settings.penalty_weight})

    def before(state: TrainState, context: PhaseContext, task: TaskInfo) -> TrainState:
        if not task.index:
            return state
        groups = task.experiment.model.layer_groups()
        layers = begin_adapters(split_collection(state.params, groups), task.index, context.key)
        return start_again(state, join_collection(layers, groups), task)

    requirements = TOLD_BORDERS._replace(all_tasks=True)
    return chain_components(Component(O_LORA, wrap_stream_loss=wrap, before_task=before, requirements=requirements))


def sum_overlaps(params: Mapping[str, Any], overlap: str = "squared") -> Any:
    """Sums the penalty of O-LoRA over all adapters in the parameters of single layers, a scalar: the squares of all
    products of an input vector of an adapter and one of an earlier adapter, or their absolute values.

    Args:
      params: Parameters as nested dicts, with `a` and `earlier_a` of each adapter.
      overlap: 'squared' or 'absolute'.

    Example:
      >>> a, earlier = jnp.array([[1.0], [2.0]]), jnp.array([[3.0, 0.0], [-1.0, 4.0]])
      >>> params = {"attention": {"adapter_query": {"a": a, "earlier_a": earlier}}}
      >>> float(sum_overlaps(params)), float(sum_overlaps(params, "absolute"))
      (65.0, 9.0)
    """
    arrays, total = flatten(params), jnp.zeros(())
    measure = {"squared": jnp.square, "absolute": jnp.abs}[overlap]
    for path, earlier in arrays.items():
        stem, _, name = path.rpartition("/")
        if is_adapter(path) and name == f"{EARLIER}a":
            new, old = (array.reshape(-1, array.shape[-1]) for array in (arrays[f"{stem}/a"], earlier))
            total += jnp.sum(measure(old.T @ new))
    return total


def begin_adapters(params: Mapping[str, Any], index: int, key: Any) -> dict[str, Any]:
    """Returns the parameters of single layers with new adapters for task number `index`, above 0. Those of the task
    before it join the adapters of earlier tasks, and are not trained any more.

    Args:
      params: Parameters as nested dicts, with `a`, `b`, `earlier_a` and `earlier_b` of each adapter.
      index: Number of the task that begins.
      key: Random key of the new arrays `a`. The new arrays `b` are 0.
    """
    arrays = flatten(params)
    stems = [path.rpartition("/")[0] for path in arrays if is_adapter(path) and path.endswith("/a")]
    for number, stem in enumerate(stems):
        a, b = arrays[f"{stem}/a"], arrays[f"{stem}/b"]
        first = (index - 1) * len(b)
        old_a, old_b = arrays[f"{stem}/{EARLIER}a"], arrays[f"{stem}/{EARLIER}b"]
        arrays |= {
            f"{stem}/{EARLIER}a": old_a.at[..., first : first + len(b)].set(a),
            f"{stem}/{EARLIER}b": old_b.at[first : first + len(b)].set(b),
            f"{stem}/a": initialize_a(jax.random.fold_in(key, number), a.shape, a.dtype),
            f"{stem}/b": jnp.zeros_like(b),
        }
    return unflatten_dict(arrays, sep="/")


def task_adapters(settings: configs.TaskAdapters) -> Method:
    """Makes the `Method` of one adapter a task: every task begins with the first adapters and head of the run, trains
    them alone, and is answered by its own.

    What is trained besides (`training.lora.fully_trained`) also belongs to the task.
    """
    del settings
    needs = TOLD_BORDERS._replace(tasks_in_evaluation=True, all_tasks=True)
    rule = Component(TASK_ADAPTERS, before_task=_begin_task, after_task=_store_task, requirements=needs)
    method = chain_components(rule)

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        plain, number = method.learner(experiment, layout, objective), len(settings_of(experiment).tasks)
        select = make_update_functions(experiment.config, experiment.model).select_trained

        def init(values: Mapping[str, Any]) -> TrainState:
            state = plain.init(values)
            start = {"params": select(state.params), "constants": state.constants}
            parts = jax.tree.map(lambda leaf: jnp.stack([leaf] * number), start)
            stored = {"task": jnp.zeros((), jnp.int32), "start": jax.tree.map(jnp.copy, start), "tasks": parts}
            return dataclasses.replace(state, method={**state.method, TASK_ADAPTERS: stored})

        evaluated = dataclasses.replace(experiment, variables_of_task=variables_of_task)
        variables = lambda state, support, key: {
            **model_variables(state),
            "method": {TASK_ADAPTERS: state.method[TASK_ADAPTERS]},
        }
        return plain._replace(
            init=init,
            adapt_variables=variables,
            variables_of_task=variables_of_task,
            evaluators=evaluated.evaluators(layout),
        )

    return method._replace(learner=learner)


def variables_of_task(variables: Mapping[str, Any], number: int | None) -> dict[str, Any]:
    """Returns the variables of the model that answer the task with this number: the stored ones of an earlier task, the
    current ones for the newest task or None, and those that the run began with for a task that is still to come.

    Args:
      variables: Variables of the model, with the stored ones of all tasks under `method`.
      number: Number of the task in the order of the stream.
    """
    others = {name: values for name, values in variables.items() if name != "method"}
    if number is None:
        return others
    stored = variables["method"][TASK_ADAPTERS]
    now = select_like(others, {name: part for name, part in stored["start"].items() if name in others})
    choose = lambda current, parts: jnp.where(number == stored["task"], current, parts[number])
    return fill_in(jax.tree.map(choose, now, select_like(stored["tasks"], now)), others)


def _begin_task(state: TrainState, context: PhaseContext, task: TaskInfo) -> TrainState:
    """Starts a task but the first with the adapters, the head and the optimiser that the run began with."""
    del context
    if not task.index:
        return state
    stored = state.method[TASK_ADAPTERS]
    start = jax.tree.map(jnp.copy, stored["start"])
    method = {**state.method, TASK_ADAPTERS: {**stored, "task": jnp.asarray(task.index, jnp.int32)}}
    state = dataclasses.replace(state, constants=start["constants"], method=method)
    return start_again(state, fill_in(start["params"], state.params), task)


def _store_task(state: TrainState, context: PhaseContext, task: TaskInfo) -> TrainState:
    """Stores the trained parameters of a task at its end."""
    del context
    stored = state.method[TASK_ADAPTERS]
    now = {"params": select_like(state.params, stored["start"]["params"]), "constants": state.constants}
    parts = jax.tree.map(lambda parts, leaf: parts.at[task.index].set(leaf), stored["tasks"], now)
    return dataclasses.replace(state, method={**state.method, TASK_ADAPTERS: {**stored, "tasks": parts}})
