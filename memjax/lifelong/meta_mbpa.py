"""Meta-MbPA: training for the local adaptation of MbPA++, with a small and diverse memory.

Wang, Mehta, Poczos and Carbonell, "Efficient Meta Lifelong-Learning with Limited Memory", EMNLP 2020,
https://arxiv.org/abs/2010.02500.

Batches of the stream and replayed rows are learned with the loss at parameters that were adapted to neighbours in the
memory:

    L_x(V) = 1/K sum_k loss(x_k, y_k; V) + lambda |V - W|^2,    V_x = W - alpha grad L_x(W),    minimise loss(x, y; V_x)

At the end, parameters are adapted once for many queries, instead of once for each query.

======================  =====================================================
paper                   here
======================  =====================================================
alpha                   `inner_learning_rate` in training, `learning_rate`
                        in evaluation
lambda                  `penalty`
K, L                    `num_neighbors`, `steps`
beta                    `memory.temperature`
======================  =====================================================

With one inner step lambda has no effect on training, because its term and its gradient are 0 at W.

Differs from the paper: derivatives are of first order by default. By default a batch has one neighbourhood, that of its
mean key. A neighbourhood for each row can be chosen, and takes a copy of the adapted parameters for each row. A stored
row is not among its own neighbours, from which it would learn to look up its label. The sign in the write policy is
that of the paper's text, not of its formula (`memjax.lifelong.policies.diversity_policy`). The paper does not say which
rows the one adaptation at the end uses. Here they are random, or neighbours of the mean key of a batch
(`evaluation.batch_size`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from memjax import config as configs
from memjax.lifelong.adaptation import adapt, selected
from memjax.lifelong.basic_methods import make_memory_options
from memjax.lifelong.components import SUPPORT, Component, EpisodeOptions, ReplayOptions, TestTimeAdaptation
from memjax.lifelong.composition import chain_components, make_of_experiment
from memjax.lifelong.mbpa import (
    adapt_to_own_neighbors,
    adaptation_options,
    adapted_variables,
    key_components,
    make_key_function,
    make_path_filter,
    neighbor_examples,
    neighbor_nats,
    neighbor_options,
    neighbor_shares,
    neighbors_of,
)
from memjax.lifelong.memory_backends import EPISODES, PURPOSES, Store
from memjax.lifelong.method_interface import Method
from memjax.training.experiment import Experiment
from memjax.training.objective import Objective, model_collections
from memjax.training.row_adaptation import PerRowAdaptation
from memjax.training.train_state import TrainState, model_variables
from memjax.typing import Aux, Batch, WeightedSum


def meta_mbpa(settings: configs.MetaMbPA) -> Method:
    """Makes the `Method` Meta-MbPA: updates learn at parameters that were adapted to neighbours in the memory, and for
    an evaluation parameters are adapted once for many queries, or to each row.
    """
    return make_of_experiment(functools.partial(_method_of_experiment, settings))


def _method_of_experiment(settings: configs.MetaMbPA, experiment: Experiment | None) -> Method:
    """Makes the method for an experiment, which says which parameters are trained and can be adapted."""
    wrap = functools.partial(_wrap_loss, settings, experiment)
    rule = Component("meta", wrap_stream_loss=wrap, wrap_replay_loss=wrap)
    replay = (
        ReplayOptions(settings.replay_batch_size, every=settings.replay_interval) if settings.replay_interval else None
    )
    return chain_components(
        *((rule,) if settings.meta_train else ()),
        *key_components(settings.key_source),
        memory=make_memory_options(settings.memory, keys=make_key_function(settings.key_source)),
        replay=replay,
        test_time_adaptation=_make_test_time_adaptation(settings) if settings.adaptation_steps else None,
        episode=EpisodeOptions(find=functools.partial(_find_support, settings)) if settings.meta_train else None,
    )


# Training


def _find_support(
    settings: configs.MetaMbPA, model: Any, store: Store
) -> Callable[[Mapping[str, Any], Batch], tuple[Batch, Any]]:
    """Makes the function that finds the neighbours that a query of training is adapted to.

    Raises:
      ValueError: the memory is on the host.
    """
    if store.outside:
        raise ValueError("lifelong.method.memory.storage: given 'host', allowed: 'device' with MetaMbPA in training")
    find = neighbors_of(model, store, settings.key_source, excludes=settings.exclude_self, **neighbor_options(settings))
    return functools.partial(find, together=settings.share_neighborhood)


def _wrap_loss(
    settings: configs.MetaMbPA, experiment: Experiment | None, objective: Objective, model: Any
) -> Objective:
    """Returns an objective whose loss is computed at parameters that are adapted to neighbours."""
    inner = {
        "steps": settings.inner_steps,
        "learning_rate": settings.inner_learning_rate,
        "order": 1 if settings.first_order else 2,
        "penalty": settings.adaptation_l2,
        "select": make_path_filter(settings.adapted_parameters, experiment),
    }
    of_batch = _loss_of_batch if settings.share_neighborhood else _loss_of_rows
    return objective._replace(loss=functools.partial(of_batch, objective, model, inner))


def _loss_of_batch(
    objective: Objective,
    model: Any,
    inner: Mapping[str, Any],
    variables: Mapping[str, Any],
    state: Any,
    segment: Batch,
    key: Any,
) -> tuple[Any, Any, WeightedSum, Aux]:
    """Computes the loss of a batch at parameters that are adapted once, to neighbours that its rows share."""
    params = _adapt_once(model, model_collections(variables), variables["method"][SUPPORT], inner)
    state, batch_stats, nll, aux = objective.loss({**variables, "params": params}, state, segment, key)
    without = objective.loss(jax.lax.stop_gradient(variables), state, segment, key)[2]
    return state, batch_stats, nll, aux + _loss_change(nll, without)


def _loss_of_rows(
    objective: Objective,
    model: Any,
    inner: Mapping[str, Any],
    variables: Mapping[str, Any],
    state: Any,
    segment: Batch,
    key: Any,
) -> tuple[Any, Any, WeightedSum, Aux]:
    """Computes the loss of a batch, with parameters that are adapted for each row to its own neighbours."""
    collections = model_collections(variables)

    def loss_of_row(row: Batch, support: Batch, alpha: Any, number: Any) -> tuple[Any, WeightedSum, Aux]:
        params = _adapt_once(model, collections, (support, alpha), inner)
        batch_of_row = jax.tree.map(lambda leaf: leaf[None], row)
        adapted = {**variables, "params": params}
        key_of_row, start = jax.random.fold_in(key, number), model.init_state(1)
        _, batch_stats, nll, aux = objective.loss(adapted, start, batch_of_row, key_of_row)
        without = objective.loss(jax.lax.stop_gradient(variables), start, batch_of_row, key_of_row)[2]
        return batch_stats, nll, Aux(aux.losses, aux.metrics) + _loss_change(nll, without)

    support, alpha = variables["method"][SUPPORT]
    batch_stats, nll, aux = jax.vmap(loss_of_row)(segment, support, alpha, jnp.arange(len(segment.inputs)))
    nll, aux = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), (nll, aux))
    return state, jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), batch_stats), nll, aux


# Evaluation


def _make_test_time_adaptation(settings: configs.MetaMbPA) -> TestTimeAdaptation:
    """Makes the adaptation before an evaluation: once for all rows, or for each row or batch by itself."""
    if settings.adaptation_scope == "once":
        return TestTimeAdaptation(functools.partial(_adapt_to_random_rows, settings))
    return TestTimeAdaptation(lambda experiment, store: adapted_variables, functools.partial(_adapt_rows, settings))


def _adapt_to_random_rows(
    settings: configs.MetaMbPA, experiment: Experiment, store: Store
) -> Callable[[TrainState, Any, Any], dict[str, Any]]:
    """Makes the variables for all rows of a test set, adapted once to random rows of the memory."""
    model, options = experiment.model, adaptation_options(settings, experiment)
    draw = lambda episodes, key: store.take(episodes, store.draw(episodes, key[None], settings.num_neighbors)[0])
    draw_rows = draw if store.outside else jax.jit(draw)

    @jax.jit
    def adapt_params(collections: Mapping[str, Any], support: Batch) -> Any:
        return _adapt_once(model, collections, (support, _uniform(support)), options)

    def adapt_variables(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
        del support
        collections, episodes = model_variables(state), state.method[EPISODES]
        rows_of_memory = draw_rows(episodes, jax.random.fold_in(key, PURPOSES["adapt"]))
        return {**collections, "params": adapt_params(collections, rows_of_memory)}

    return adapt_variables


def _adapt_rows(settings: configs.MetaMbPA, experiment: Experiment, store: Store) -> PerRowAdaptation:
    """Makes the adaptation of each row to its own neighbours, or of all rows of a batch to neighbours they share."""
    model, options = experiment.model, adaptation_options(settings, experiment)
    find = neighbors_of(model, store, settings.key_source, **neighbor_options(settings))
    if settings.adaptation_scope == "per_example":
        return adapt_to_own_neighbors(model, store, find, settings.adaptation_batch_size, options)

    def together(variables: Mapping[str, Any], rows: Batch) -> tuple[Batch, Any]:
        support, alpha = find(variables, rows, together=True)
        return support, jnp.broadcast_to(alpha, (len(rows.inputs), *alpha.shape))  # Equal for all rows.

    def score(
        variables: Mapping[str, Any], rows: Batch, neighborhood: Any, predict: Callable[[Any, Batch], Any]
    ) -> Any:
        support, alpha = neighborhood
        params = _adapt_once(model, model_collections(variables), (support, alpha[0]), options)
        return jax.vmap(functools.partial(predict, params))(rows)

    copied = functools.partial(selected, select=options["select"])
    return PerRowAdaptation(together, score, store.outside, neighbor_examples, neighbor_shares, copied=copied)


def _adapt_once(model: Any, variables: Mapping[str, Any], found: tuple[Batch, Any], how: Mapping[str, Any]) -> Any:
    """Adapts parameters to one neighbourhood.

    Args:
      model: The Linen model.
      variables: Variables of the model.
      found: Rows of the neighbourhood and their weights.
      how: Keyword arguments of `memjax.lifelong.adaptation.adapt`.
    """
    support, alpha = found
    return adapt(functools.partial(neighbor_nats, model, variables), variables["params"], support, alpha, **how)


def _loss_change(adapted: WeightedSum, without: WeightedSum) -> Aux:
    """Makes the metric of the change of a query's loss by the adaptation. It is negative if adaptation helps."""
    difference = WeightedSum(adapted.total - without.total, adapted.weight)
    return Aux(metrics={"adapted_minus_base": jax.lax.stop_gradient(difference)})


def _uniform(support: Batch) -> Any:
    """Computes equal weights for rows, 0 for missing ones."""
    exists = jnp.any(support.weights > 0, axis=-1).astype(jnp.float32)
    return exists / jnp.maximum(jnp.sum(exists), 1)
