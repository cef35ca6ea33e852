"""MbPA++ and MbPA: sparse replay of an episodic memory, and adaptation to the nearest rows before every prediction.

de Masson d'Autume, Ruder, Kong and Yogatama, "Episodic Memory in Lifelong Language Learning", NeurIPS 2019,
https://arxiv.org/abs/1906.01076; Sprechmann et al., "Memory-based Parameter Adaptation", ICLR 2018,
https://arxiv.org/abs/1802.10542.

Rows of the stream are written with keys from a frozen network. A query is answered with parameters that have taken
some gradient steps on its nearest rows (`memjax.lifelong.adaptation`). These parameters are then thrown away.

Differs from the paper or its code: gradient steps are those of SGD; the memory has a fixed capacity; neighbours are
found by the Euclidean distance, as the paper says (one public code takes the largest product instead).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from memjax import config as configs
from memjax.axes import constrain
from memjax.data.example_batches import EXAMPLE
from memjax.lifelong.adaptation import adapted_outputs, neighbor_weights, selected
from memjax.lifelong.basic_methods import make_memory_options
from memjax.lifelong.components import Component, ReplayOptions, TestTimeAdaptation
from memjax.lifelong.composition import chain_components, restrict_to_trained
from memjax.lifelong.memory_backends import EPISODES, PURPOSES, OfRows, Store
from memjax.lifelong.method_interface import Method
from memjax.settings.methods import NeighborAdaptationMethod
from memjax.training.experiment import Experiment
from memjax.training.objective import model_collections, read_segment
from memjax.training.row_adaptation import PerRowAdaptation
from memjax.training.sharding import row_shards
from memjax.training.train_state import TrainState, model_variables
from memjax.training.trained_parameters import fill_in
from memjax.typing import Batch

KEY_NETWORK = "key_network"
"""Name in `TrainState.method` of the frozen parameters of the network that computes keys."""
# They are not in `constants`: that collection of the model goes wherever its parameters go, such as into exports,
# models of other sizes, and weights that a run begins with.
Key = Literal["inputs", "first", "question", "mean", "prompt"]


def mbpa(settings: configs.MbPA) -> Method:
    """Makes the `Method` MbPA++ or MbPA: every row is answered with parameters adapted to its neighbours in an episodic
    memory, and with `replay_interval` above 0 (MbPA++) stored rows are replayed sometimes.
    """
    keyed = settings.neighbor_choice == "nearest" or settings.memory.write_policy == "diversity"
    replay = (
        ReplayOptions(settings.replay_batch_size, every=settings.replay_interval) if settings.replay_interval else None
    )

    def adapt_rows(experiment: Experiment, store: Store) -> PerRowAdaptation:
        model = experiment.model
        row_key = settings.key_source if settings.neighbor_choice == "nearest" else None
        find = neighbors_of(model, store, row_key, **neighbor_options(settings))
        options = adaptation_options(settings, experiment)
        return adapt_to_own_neighbors(model, store, find, settings.adaptation_batch_size, options)

    variables = lambda experiment, store: adapted_variables
    adaptation = TestTimeAdaptation(variables, adapt_rows) if settings.adaptation_steps else None
    memory_options = make_memory_options(
        settings.memory, keys=make_key_function(settings.key_source) if keyed else None
    )
    return chain_components(
        *key_components(settings.key_source if keyed else None),
        memory=memory_options,
        replay=replay,
        test_time_adaptation=adaptation,
    )


def neighbor_options(settings: NeighborAdaptationMethod) -> dict[str, Any]:
    """Returns a dict of the keyword arguments of `neighbors_of` that settings describe: the number of neighbours, the
    kind of their weights, and the metric.
    """
    return {
        "num_neighbors": settings.num_neighbors,
        "weights": settings.neighbor_weighting,
        "metric": settings.key_distance,
    }


def adaptation_options(settings: NeighborAdaptationMethod, experiment: Experiment) -> dict[str, Any]:
    """Returns a dict of the keyword arguments of `memjax.lifelong.adaptation.adapt` that settings describe, for the
    adaptation of the model of `experiment` before an answer.
    """
    return {
        "steps": settings.adaptation_steps,
        "learning_rate": settings.adaptation_learning_rate,
        "penalty": settings.adaptation_l2,
        "select": make_path_filter(settings.adapted_parameters, experiment),
        "rule": functools.partial(optax.sgd, momentum=settings.adaptation_momentum or None),
    }


def key_components(key: Key | None) -> tuple[Component, ...]:
    """Returns a tuple with the component that stores the frozen network that computes keys. It is empty if the kind of
    key `key` needs no network, or is None.

    Args:
      key: Kind of key. See `make_key_function`. None if rows have no keys.
    """
    if key in (None, "inputs"):
        return ()
    return (Component(KEY_NETWORK, lambda params: jax.tree.map(jnp.copy, params)),)


def make_path_filter(adapted: tuple[str, ...], experiment: Experiment | None = None) -> Callable[[str], bool] | None:
    """Returns a function that tells whether a path of a parameter contains one of the strings `adapted`. None for all
    paths, if `adapted` is empty. In an experiment with adapters it is True for trained parameters alone.
    """
    select = (lambda path: any(part in path for part in adapted)) if adapted else None
    return restrict_to_trained(select, experiment)


def neighbors_of(
    model: Any, store: Store, key: Key | None, *, num_neighbors: int, weights: str, metric: Any, excludes: bool = False
) -> Callable[..., tuple[Batch, Any]]:
    """Returns `find(variables, rows)`, which returns for each row `num_neighbors` stored rows and their weights. `key`
    is the kind of key, None for random rows, `weights` the kind of weights. `excludes` leaves out the row itself.

    Args:
      model: The Linen model.
      store: Backend of the memory.
      key: Kind of key that rows are compared by. None for random neighbours.
      num_neighbors: Number of neighbours of a row (K).
      weights: Kind of weights. See `memjax.lifelong.adaptation.neighbor_weights`.
      metric: Metric between keys, "squared_l2" or "inner_product".
      excludes: Whether a stored example is left out of its own neighbours, and of those of all rows that it is searched
        together with.

    Returns:
      `find(variables, rows, together=False)`, which returns the neighbours of every row and their weights. With
      `together`, all rows share the neighbours of their mean key, and the result has no axis of rows.
    """
    keys = jax.jit(functools.partial(make_key_function(key), model)) if key is not None else None

    def find(variables: Mapping[str, Any], rows: Batch, *, together: bool = False) -> tuple[Batch, Any]:
        method, collections = variables["method"], model_collections(variables)
        episodes, number = method[EPISODES], 1 if together else rows.inputs.shape[0]
        if keys is None:
            ids = store.draw(episodes, _make_row_keys(method["random"], rows)[:number], num_neighbors)
            valid, distances = ids >= 0, jnp.zeros(ids.shape)
        else:
            queries, has_targets = keys(collections, method, rows), jnp.any(rows.weights > 0, axis=-1)
            if together:
                share = has_targets / jnp.maximum(jnp.sum(has_targets), 1)
                queries = jnp.sum(share[:, None] * jnp.where(has_targets[:, None], queries, 0), axis=0, keepdims=True)
            more = (rows.inputs.shape[0] if together else 1) if excludes else 0
            ids, distances, valid = store.nearest(episodes, queries, num_neighbors + more, metric=metric)
            if excludes:
                own_ids = jnp.where(has_targets, rows.extras[EXAMPLE], -1)
                stored = store.take(episodes, ids).extras[EXAMPLE]
                own_ids = own_ids[None, None] if together else own_ids[:, None, None]
                same = (stored[..., None] == own_ids).any(axis=-1)
                order = jnp.argsort(same | ~valid, axis=1, stable=True)[:, :num_neighbors]
                pick = lambda leaf: jnp.take_along_axis(leaf, order, axis=1)
                ids, distances, valid = pick(ids), pick(distances), pick(valid & ~same)
            distances = -distances if metric == "inner_product" else distances
        neighbors = store.take(episodes, ids), neighbor_weights(jnp.asarray(distances), jnp.asarray(valid), weights)
        return jax.tree.map(lambda leaf: leaf[0], neighbors) if together else neighbors

    return find


def _make_row_keys(key: Any, rows: Batch) -> Any:
    """Makes a random key for each row, `[rows]`, from its inputs `[rows, length]`, so that it is the same in every
    batch and differs from those of other rows.
    """
    inputs = rows.inputs.reshape(len(rows.inputs), -1).astype(jnp.float32)
    words = jax.lax.bitcast_convert_type(inputs, jnp.int32) * (2 * jnp.arange(inputs.shape[1]) + 1)[None]
    return jax.vmap(lambda word: jax.random.fold_in(key, word))(jnp.sum(words, axis=1))


def adapt_to_own_neighbors(
    model: Any, store: Store, find: Callable[..., tuple[Batch, Any]], queries: int, how: Mapping[str, Any]
) -> PerRowAdaptation:
    """Returns the `PerRowAdaptation` that answers every row with parameters adapted to its neighbours from `find`
    (`neighbors_of`). `how` are arguments of `adapt`, `queries` is the number of rows adapted at once on a device.

    Args:
      model: The Linen model.
      store: Backend of the memory.
      find: Function that finds neighbours, made by `neighbors_of`.
      queries: Number of rows that are adapted side by side on a device.
      how: Keyword arguments of `memjax.lifelong.adaptation.adapt`.
    """

    def score(variables: Mapping[str, Any], rows: Batch, found: Any, predict: Callable[[Any, Batch], Any]) -> Any:
        collections = model_collections(variables)
        # Beside their queries, so that devices adapt without a word to each other.
        beside = lambda leaf: constrain(leaf, "batch", *(None,) * (leaf.ndim - 1))
        arguments = (collections["params"], rows, *jax.tree.map(beside, found))
        at_once = queries * row_shards(jax.sharding.get_abstract_mesh())
        loss = functools.partial(neighbor_nats, model, collections)
        return adapted_outputs(loss, predict, *arguments, batch_size=at_once, **how)

    return PerRowAdaptation(
        find,
        score,
        store.outside,
        neighbor_examples,
        neighbor_shares,
        "lifelong.method.adaptation_batch_size",
        functools.partial(selected, select=how["select"]),
    )


def neighbor_nats(model: Any, variables: Mapping[str, Any], params: Any, support: Batch) -> Any:
    """Computes the mean loss of the targets of every stored row in `support` in nats, float `[neighbors]`, in
    evaluation mode. `params` take the place of the parameters in `variables`.
    """
    start = model.init_state(support.inputs.shape[0])
    adapted = {**variables, "params": params}
    output = read_segment(model, adapted, start, support, deterministic=True)[0]
    nats = model.apply(adapted, output, support.targets, method="token_nll") * (support.weights > 0)
    return jnp.sum(nats, axis=1) / jnp.maximum(jnp.sum(support.weights > 0, axis=1), 1)


def neighbor_examples(found: tuple[Batch, Any]) -> Any:
    """Returns the numbers of the examples that are the neighbours in `found`, a result of `find` (see `neighbors_of`).
    -1 for neighbours of weight 0.
    """
    support, alpha = found
    return jnp.where(alpha > 0, support.extras[EXAMPLE], -1)


def neighbor_shares(found: tuple[Batch, Any]) -> Any:
    """Returns the weights of the neighbours in `found`, a result of `find` (see `neighbors_of`)."""
    return found[1]


def adapted_variables(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
    """Returns the variables of the model together with the memory, the key network and a random key, which the later
    adaptation to rows needs. Nothing is adapted here, and `support` is not used.
    """
    del support
    stored = {name: state.method[name] for name in (EPISODES, KEY_NETWORK) if name in state.method}
    method = {**stored, "random": jax.random.fold_in(key, PURPOSES["adapt"])}
    return {**model_variables(state), "method": method}


def make_key_function(kind: Key) -> OfRows:
    """Returns a function `keys(model, variables, method, rows)` that computes the keys of rows, float32 `[rows, dim]`:
    their inputs, or hidden states of a frozen network, as `kind` says.

    Args:
      kind: "inputs": the input itself, if it is a vector. All other kinds read the last hidden states of a frozen
        network with the parameters that training began with. "first": the state of the first token. "question": that of
        the second token, the first of the question. "mean": the mean over the text. "prompt": the mean over the tokens
        up to the first answer token.

    Returns:
      A function `keys(model, variables, method, rows)` that returns float32 `[rows, dim]`.

    Raises:
      ValueError: the kind is unknown.
    """
    if kind not in get_args(Key):
        raise ValueError(f"lifelong.method.key_source: given {kind!r}, allowed: {', '.join(get_args(Key))}")

    def keys(model: Any, variables: Mapping[str, Any], method: Mapping[str, Any], rows: Batch) -> Any:
        if kind == "inputs":
            if not jnp.issubdtype(rows.inputs.dtype, jnp.floating):
                raise ValueError(
                    "lifelong.method.key_source: given 'inputs' for tokens, allowed: 'first', 'question', 'mean', "
                    "'prompt'"
                )
            return rows.inputs.astype(jnp.float32)
        frozen = {**variables, "params": fill_in(method[KEY_NETWORK], variables["params"])}
        start = model.init_state(rows.inputs.shape[0])
        aux = read_segment(model.clone(features=("output",)), frozen, start, rows, deterministic=True)[2]
        hidden = aux.arrays["output"].astype(jnp.float32)
        if kind in ("mean", "prompt"):
            mask = rows.mask[:, : hidden.shape[1], None]
            if kind == "prompt":
                first = jnp.argmax(rows.weights > 0, axis=1)[:, None, None]
                mask = mask & (jnp.arange(hidden.shape[1])[None, :, None] <= first)
            return jnp.sum(jnp.where(mask, hidden, 0), axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)
        return hidden[:, 1 if kind == "question" else 0]

    return keys
