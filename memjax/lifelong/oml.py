"""OML-ER, ANML-ER and MAML-ER: learning parameters that few gradient steps adapt, with sparse replay.

Holla, Mishra, Yannakoudakis and Shutova, "Meta-Learning with Sparse Experience Replay for Lifelong Language Learning",
2020, https://arxiv.org/abs/2009.04891; after Javed and White, "Meta-Learning Representations for Continual Learning"
(OML), NeurIPS 2019, https://arxiv.org/abs/1905.12588; Beaulieu et al., "Learning to Continually Learn" (ANML), ECAI
2020, https://arxiv.org/abs/2002.09571; Finn, Abbeel and Levine (MAML), ICML 2017, https://arxiv.org/abs/1703.03400.

An episode reads m + 1 batches of the stream. A part of the parameters takes a step of gradient descent on each of the
first m, its support; the loss of the last one, its query, at those parameters teaches all parameters, and the adapted
ones are thrown away. Now and then the query is of the memory.

======================  ==========================================================
paper                   here
======================  ==========================================================
m                       `steps`
alpha                   `inner_learning_rate`
R_I, r                  `every`, `rate` (`memjax.lifelong.streams.replay_frequency`)
phi, W                  all else, and what `adapted` names: OML the head (the
                        prediction network), ANML all but the gate, MAML all
======================  ==========================================================

Averaged over support and query that are drawn from one pool, the gradient of the first order is that of the mean loss
of the queries, less alpha / 2 times that of the inner products of the gradients of support and query, up to alpha^2:
it asks for steps that help what comes next. Where the query is drawn from other examples than the support (a replay,
or a border between tasks within the episode) it is not of that form.

Differs from the papers or their code: the encoder in ANML's gate is frozen, as the paper says (its code means to, and
trains it); nothing is dropped out where a test set is answered (two of the published programs leave dropout on); the
gradients of a query of the memory are a mean, and their sum over batches where asked for (as published); a batch of the
support with fewer rows counts by its share; the rows of a replay are drawn before the support of the episode is
written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from memjax.config import EpisodicMemory
from memjax.lifelong.adaptation import inner_steps, selected
from memjax.lifelong.compose import (
    SUPPORT,
    Component,
    EpisodeOptions,
    ReplayOptions,
    TestTimeAdaptation,
    chain_components,
)
from memjax.lifelong.contract import Method
from memjax.lifelong.episodes import EPISODES, PURPOSES, Store, key_for
from memjax.lifelong.methods import make_memory_options
from memjax.models.gate import GATE, GATE_ENCODER
from memjax.training.experiment import Experiment
from memjax.training.objective import RANDOM_STREAMS, Objective, model_collections, model_loss
from memjax.training.step import TrainState, model_variables
from memjax.typing import Batch, SegmentLoss, Sum

__all__ = ["anml", "maml", "oml"]

HEAD = "head/"
"""beginning of the paths of the prediction network of OML"""


def oml(**fields: Any) -> Method:
    """OML-ER; `memjax.settings.meta.OML` says what its fields mean."""
    return meta_learning_method("oml", lambda path: path.startswith(HEAD), adapt_head, **fields)


def maml(**fields: Any) -> Method:
    """MAML-ER: as OML-ER, and everything is adapted."""
    return meta_learning_method("maml", None, adapt_by_loss, **fields)


def anml(*, train_gate_encoder: bool, **fields: Any) -> Method:
    """ANML-ER: as MAML-ER, of a model whose gate stays as it is in the inner loop."""

    def begin(params: Any) -> Any:
        """With the encoder in the gate as that beside it begins."""
        gate = params.get("gate")
        if gate is None:
            raise ValueError("model: given one without a gate, allowed: model.gate, or model.attention.gate, above 0")
        own = {name: jax.tree.map(jnp.copy, params[name]) for name in gate.get("encoder", {})}
        return {**params, "gate": {**gate, **({"encoder": own} if own else {})}}

    rule = Component("gate", init_params=begin, frozen=() if train_gate_encoder else (GATE_ENCODER,))
    return meta_learning_method("anml", lambda path: not path.startswith(GATE), adapt_by_loss, rule, **fields)


Select = Callable[[str], bool] | None


def meta_learning_method(
    name: str,
    select: Select,
    adapt: Callable[..., Any],
    *rules: Component,
    memory: EpisodicMemory,
    every: int,
    rows: int,
    steps: int,
    inner_learning_rate: float,
    order: Literal[1, 2],
    reduction: Literal["mean", "sum"],
    adapts_at_test: bool,
    last_episode: Literal["dropped", "kept"],
) -> Method:
    """The method that adapts what `select` takes, by `adapt` (`adapt_by_loss`, and what comes to the same)."""

    def lay(objective: Objective, model: Any) -> Objective:
        how: dict[str, Any] = {"select": select, "learning_rate": inner_learning_rate, "order": order}

        def loss(variables: Mapping[str, Any], state: Any, segment: Batch, key: Any) -> tuple[Any, Any, Sum, Any]:
            support = variables["method"][SUPPORT]
            if support is not None:
                params = adapt(model, objective.loss, variables, support, key, **how)
                variables = {**variables, "params": params}
            return objective.loss(variables, state, segment, key)

        return objective._replace(loss=loss)

    def variables(experiment: Experiment, store: Store) -> Callable[[TrainState, Any, Any], dict[str, Any]]:
        """Those that all rows of a test set are answered with: adapted once, to rows of the memory."""
        model, batch = experiment.model, experiment.config.data.rows
        loss = model_loss(model, deterministic=True)

        def draw(kept: Any, key: Any) -> Batch:
            return store.take(kept, store.draw(kept, key[None], steps * batch)[0])

        @jax.jit
        def adapted(own: Mapping[str, Any], drawn: Batch, key: Any) -> Any:
            support = jax.tree.map(lambda leaf: leaf.reshape(steps, batch, *leaf.shape[1:]), drawn)
            how: dict[str, Any] = {"select": select, "learning_rate": inner_learning_rate, "order": 1}
            return adapt(model, loss, own, support, key, deterministic=True, **how)

        drawing = draw if store.outside else jax.jit(draw)

        def of_state(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
            del support
            own, key = model_variables(state), jax.random.fold_in(key, PURPOSES["adapt"])
            return {**own, "params": adapted(own, drawing(state.method.get(EPISODES), key), key)}

        return of_state

    copied = functools.partial(selected, select=select)
    replayed = ReplayOptions(rows, "sparse", every) if every else None
    return chain_components(
        Component(name, wrap_stream_loss=lay, wrap_replay_loss=lay),
        *rules,
        memory=make_memory_options(memory),
        replay=replayed,
        adapting=TestTimeAdaptation(variables, copied=copied) if adapts_at_test and steps else None,
        episode=EpisodeOptions(steps, reduction=reduction, keeps_last=last_episode == "kept"),
    )


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
    """The parameters after a step on every batch of the support.

    Args:
      model: the Linen model; it remembers nothing.
      loss: of one batch.
      variables: of the loss.
      support: `[steps, rows, ...]`.
      key: of dropout.
      deterministic: `loss` has no dropout; for those that do not ask it.
      **how: of `inner_steps`.
    """
    del deterministic

    def inner(params: Any, given: tuple[Batch, Any]) -> Any:
        batch, number = given
        start, own = model.init_state(len(batch.inputs)), {**variables, "params": params}
        return share_of_rows(loss(own, start, batch, inner_key(key, number))[2], batch)

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
    """The same for the head alone: what it reads of the whole support is computed in one call, where a model can."""
    if not model.represents:
        return adapt_by_loss(model, loss, variables, support, key, **how)
    steps, size = support.weights.shape[:2]
    together = lambda leaf: leaf.reshape(steps * size, *leaf.shape[2:])
    apart = lambda leaf: leaf.reshape(steps, size, *leaf.shape[1:])
    own = model_collections(variables)
    # With derivatives of the first order nothing reaches the rest of the parameters through the support.
    below = jax.lax.stop_gradient(own) if how["order"] == 1 else own
    rows = jax.tree.map(together, support)
    read, _ = model.apply(
        below,
        rows.inputs,
        mask=rows.mask,
        deterministic=deterministic,
        extras=model.choose_extras(rows.extras),
        rngs=random_streams(inner_key(key, steps)),
        method="represent",
    )

    def inner(params: Any, given: tuple[Any, Batch, Any]) -> Any:
        text, batch, number = given
        mine = {**own, "params": params}
        rngs = random_streams(inner_key(key, number))
        output = model.apply(mine, text, deterministic, rngs=rngs, method="answer")
        return share_of_rows(model.apply(mine, output, batch.targets, batch.weights, method="nll"), batch)

    return inner_steps(inner, own["params"], (jax.tree.map(apart, read), support, jnp.arange(steps)), **how)


def share_of_rows(nll: Sum, batch: Batch) -> Any:
    """The mean over the targets of a batch, times the share of its rows that there are."""
    return nll.mean() * jnp.mean(jnp.any(batch.weights > 0, axis=-1))


def inner_key(key: Any, number: Any) -> Any:
    """Of dropout in a step of the inner loop; the query has `key` itself, with or without inner steps."""
    return key_for(key, "adapt", number)


def random_streams(key: Any) -> dict[str, Any]:
    """Keys of the random numbers of a model, of one key."""
    return {name: jax.random.fold_in(key, i) for i, name in enumerate(RANDOM_STREAMS)}
