"""OML-ER, ANML-ER and MAML-ER: meta-learning of parameters that adapt in a few gradient steps, with sparse replay.

Holla, Mishra, Yannakoudakis and Shutova, "Meta-Learning with Sparse Experience Replay for Lifelong Language Learning",
2020, https://arxiv.org/abs/2009.04891; after Javed and White, "Meta-Learning Representations for Continual Learning"
(OML), NeurIPS 2019, https://arxiv.org/abs/1905.12588; Beaulieu et al., "Learning to Continually Learn" (ANML), ECAI
2020, https://arxiv.org/abs/2002.09571; Finn, Abbeel and Levine (MAML), ICML 2017, https://arxiv.org/abs/1703.03400.

An episode reads m + 1 batches of the stream. The first m are its support and the last is its query. A part of the
parameters takes a step of gradient descent on each batch of the support. The loss of the query at these adapted
parameters updates all parameters, and the adapted ones are thrown away. In some episodes the query is from the memory.

======================  ==========================================================
paper                   here
======================  ==========================================================
m                       `steps`
alpha                   `inner_learning_rate`
R_I, r                  `every`, `rate` (`memjax.lifelong.update_streams.replay_frequency`)
phi, W                  all other parameters, and the adapted ones: OML the
                        head (the prediction network), ANML all but the gate,
                        MAML all
======================  ==========================================================

The first-order gradient, averaged over support and query from one pool of examples, is up to alpha^2 the gradient of
the mean loss of the queries minus alpha / 2 times the gradient of the inner products of the gradients of support and
query. So it favours steps that help the next batches. If the query is from other examples than the support (in a replay
or at a task boundary within the episode), it does not have this form.

Differs from the papers or their code: the encoder in ANML's gate is frozen, as the paper says (its code intends this
but trains it). There is no dropout when a test set is answered (two of the published programs leave it on). The
gradient of a query from the memory is a mean, and a sum over batches only if asked for (as published). A batch of the
support with fewer rows is weighted by its share of rows. The rows of a replay are drawn before the support of the
episode is written to the memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from memjax import config as configs
from memjax.lifelong.adaptation import inner_steps
from memjax.lifelong.basic_methods import make_memory_options
from memjax.lifelong.components import SUPPORT, Component, EpisodeOptions, ReplayOptions, TestTimeAdaptation
from memjax.lifelong.composition import (
    chain_components,
    freeze_parameters,
    make_of_experiment,
    restrict_to_trained,
)
from memjax.lifelong.memory_backends import EPISODES, PURPOSES, Store, key_for
from memjax.lifelong.method_interface import Method
from memjax.models.gate import GATE, GATE_ENCODER
from memjax.training.experiment import Experiment
from memjax.training.objective import RANDOM_STREAMS, Objective, model_collections, model_loss
from memjax.training.sharding import Layout
from memjax.training.stages import Learner
from memjax.training.train_state import TrainState, model_variables
from memjax.training.update_functions import MakeObjective
from memjax.typing import Batch, SegmentLoss, WeightedSum

HEAD = "head/"
"""Beginning of the paths of the parameters of the head, which is the prediction network of OML."""


def oml(settings: configs.OML) -> Method:
    """Makes the `Method` OML-ER: meta-learning in episodes with replay, which adapts the parameters of the head."""
    return _meta_learning_method("oml", lambda path: path.startswith(HEAD), adapt_head, settings)


def maml(settings: configs.MAML) -> Method:
    """Makes the `Method` MAML-ER: meta-learning in episodes with replay, which adapts all parameters."""
    return _meta_learning_method("maml", None, adapt_by_loss, settings)


def anml(settings: configs.ANML) -> Method:
    """Makes the `Method` ANML-ER: meta-learning in episodes with replay, which adapts all parameters but those of the
    gate of the model.
    """
    method = _meta_learning_method("anml", lambda path: not path.startswith(GATE), adapt_by_loss, settings)
    frozen = () if settings.train_gate_encoder else (GATE_ENCODER,)

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        base_learner = method.learner(freeze_parameters(experiment, frozen), layout, objective)
        start = lambda values: base_learner.init({**values, "params": _with_gate_encoder(values["params"])})
        return base_learner._replace(init=start)

    return method._replace(learner=learner)


def _with_gate_encoder(params: Any) -> Any:
    """Starts the encoder in the gate of a model with the parameters of the encoder beside it.

    Raises:
      ValueError: the model has no gate.
    """
    gate = params.get("gate")
    if gate is None:
        raise ValueError(
            "model: given one without a gate, allowed: model.gate_dim, or model.attention.gate_dim, above 0"
        )
    encoder = {name: jax.tree.map(jnp.copy, params[name]) for name in gate.get("encoder", {})}
    return {**params, "gate": {**gate, **({"encoder": encoder} if encoder else {})}}


Select = Callable[[str], bool] | None
"""Function `select(path)` that says whether a parameter is adapted. None to adapt all."""
MetaSettings = configs.OML | configs.MAML | configs.ANML
"""Settings of a meta-learning method."""


def _meta_learning_method(name: str, select: Select, adapt: Callable[..., Any], settings: MetaSettings) -> Method:
    """Makes a meta-learning method that adapts selected parameters within each episode, with sparse replay.

    Args:
      name: Name of the method in `TrainState.method`.
      select: `select(path)` returns whether a parameter is adapted. None to adapt all.
      adapt: Function that adapts parameters to a support, such as `adapt_by_loss` or `adapt_head`.
      settings: Settings of the method.
    """
    replay = (
        ReplayOptions(settings.replay_batch_size, every=settings.replay_interval) if settings.replay_interval else None
    )
    adapts = settings.adapts_at_test and settings.inner_steps

    def of_experiment(experiment: Experiment | None) -> Method:
        selected = restrict_to_trained(select, experiment)
        wrap = functools.partial(_wrap_loss_of_query, selected, adapt, settings)
        adaptation = TestTimeAdaptation(functools.partial(_adapt_to_random_rows, selected, adapt, settings))
        return chain_components(
            Component(name, wrap_stream_loss=wrap, wrap_replay_loss=wrap),
            memory=make_memory_options(settings.memory),
            replay=replay,
            test_time_adaptation=adaptation if adapts else None,
            episode=EpisodeOptions(
                settings.inner_steps,
                reduction=settings.replay_loss_reduction,
                keeps_last=settings.last_episode == "kept",
            ),
        )

    return make_of_experiment(of_experiment)


def _wrap_loss_of_query(
    select: Select, adapt: Callable[..., Any], settings: MetaSettings, objective: Objective, model: Any
) -> Objective:
    """Returns an objective whose loss is computed at parameters that are adapted to the support of a query.

    Args:
      select: `select(path)` returns whether a parameter is adapted. None to adapt all.
      adapt: Function that adapts parameters to a support.
      settings: Settings of the method.
      objective: Objective of the query.
      model: Model to train.
    """
    how: dict[str, Any] = {
        "select": select,
        "learning_rate": settings.inner_learning_rate,
        "order": 1 if settings.first_order else 2,
    }

    def loss(variables: Mapping[str, Any], state: Any, segment: Batch, key: Any) -> tuple[Any, Any, WeightedSum, Any]:
        support = variables["method"][SUPPORT]
        if support is not None:
            params = adapt(model, objective.loss, variables, support, key, **how)
            variables = {**variables, "params": params}
        return objective.loss(variables, state, segment, key)

    return objective._replace(loss=loss)


def _adapt_to_random_rows(
    select: Select, adapt: Callable[..., Any], settings: MetaSettings, experiment: Experiment, store: Store
) -> Callable[[TrainState, Any, Any], dict[str, Any]]:
    """Makes the variables for all rows of a test set, adapted once to random rows of the memory.

    Args:
      select: `select(path)` returns whether a parameter is adapted. None to adapt all.
      adapt: Function that adapts parameters to a support.
      settings: Settings of the method.
      experiment: Experiment with the model.
      store: Backend of the memory.
    """
    model, batch = experiment.model, experiment.config.data.batch_size
    loss = model_loss(model, deterministic=True)

    def draw(episodes: Any, key: Any) -> Batch:
        return store.take(episodes, store.draw(episodes, key[None], settings.inner_steps * batch)[0])

    @jax.jit
    def adapt_params(collections: Mapping[str, Any], rows: Batch, key: Any) -> Any:
        support = jax.tree.map(lambda leaf: leaf.reshape(settings.inner_steps, batch, *leaf.shape[1:]), rows)
        how: dict[str, Any] = {"select": select, "learning_rate": settings.inner_learning_rate, "order": 1}
        return adapt(model, loss, collections, support, key, deterministic=True, **how)

    draw_rows = draw if store.outside else jax.jit(draw)

    def adapt_variables(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
        del support
        present, key = model_variables(state), jax.random.fold_in(key, PURPOSES["adapt"])
        return {
            **present,
            "params": adapt_params(present, draw_rows(state.method.get(EPISODES), key), key),
        }

    return adapt_variables


def adapt_by_loss(
    model: Any,
    loss: SegmentLoss,
    variables: Mapping[str, Any],
    support: Batch,
    key: Any,
    *,
    deterministic: bool = False,
    **how: Any,
) -> Any:
    """Returns the parameters after one gradient step of `loss` on each batch of the support, `[steps, rows, ...]`.
    `variables` has the first ones, `key` draws dropout, and `deterministic` is not used.

    Args:
      model: The Linen model, without a memory.
      loss: Loss of one batch.
      variables: Variables of the loss.
      support: Batches `[steps, rows, ...]`.
      key: Random key of dropout.
      deterministic: Unused, as `loss` itself decides about dropout. `adapt_head` needs it.
      **how: Keyword arguments of `memjax.lifelong.adaptation.inner_steps`.
    """
    del deterministic

    def inner(params: Any, batch_and_number: tuple[Batch, Any]) -> Any:
        batch, number = batch_and_number
        start, adapted = model.init_state(len(batch.inputs)), {**variables, "params": params}
        return _share_of_rows(loss(adapted, start, batch, _inner_key(key, number))[2], batch)

    return inner_steps(inner, variables["params"], (support, jnp.arange(len(support.inputs))), **how)


def adapt_head(
    model: Any,
    loss: SegmentLoss,
    variables: Mapping[str, Any],
    support: Batch,
    key: Any,
    *,
    deterministic: bool = False,
    **how: Any,
) -> Any:
    """Returns the parameters after one gradient step of the head's parameters on each batch of the support,
    `[steps, rows, ...]`. `key` draws dropout, which `deterministic` switches off.

    The inputs of the head are computed for the whole support in one call, if the model can. See `adapt_by_loss` for the
    arguments.
    """
    if not model.has_separate_head:
        return adapt_by_loss(model, loss, variables, support, key, **how)
    steps, size = support.weights.shape[:2]
    join_steps = lambda leaf: leaf.reshape(steps * size, *leaf.shape[2:])
    split_steps = lambda leaf: leaf.reshape(steps, size, *leaf.shape[1:])
    collections = model_collections(variables)
    # With derivatives of the first order nothing reaches the rest of the parameters through the support.
    below = jax.lax.stop_gradient(collections) if how["order"] == 1 else collections
    rows = jax.tree.map(join_steps, support)
    features, _ = model.apply(
        below,
        rows.inputs,
        mask=rows.mask,
        deterministic=deterministic,
        extras=model.select_extras(rows.extras),
        rngs=_random_streams(_inner_key(key, steps)),
        method="encode",
    )

    def inner(params: Any, inputs: tuple[Any, Batch, Any]) -> Any:
        text, batch, number = inputs
        adapted = {**collections, "params": params}
        rngs = _random_streams(_inner_key(key, number))
        output = model.apply(adapted, text, deterministic, rngs=rngs, method="apply_head")
        return _share_of_rows(model.apply(adapted, output, batch.targets, batch.weights, method="nll"), batch)

    return inner_steps(
        inner, collections["params"], (jax.tree.map(split_steps, features), support, jnp.arange(steps)), **how
    )


def _share_of_rows(nll: WeightedSum, batch: Batch) -> Any:
    """Computes the mean loss over the targets of a batch, times the fraction of its rows that are not padding."""
    return nll.mean() * jnp.mean(jnp.any(batch.weights > 0, axis=-1))


def _inner_key(key: Any, number: Any) -> Any:
    """Derives the key of dropout in a step of the inner loop. The query uses `key` itself."""
    return key_for(key, "adapt", number)


def _random_streams(key: Any) -> dict[str, Any]:
    """Derives the keys of all random streams of a model from one key."""
    return {name: jax.random.fold_in(key, i) for i, name in enumerate(RANDOM_STREAMS)}
