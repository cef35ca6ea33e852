"""MbPA++ and MbPA: an episodic memory that is replayed now and then, and read for every query.

de Masson d'Autume, Ruder, Kong and Yogatama, "Episodic Memory in Lifelong Language Learning", NeurIPS 2019,
https://arxiv.org/abs/1906.01076; Sprechmann et al., "Memory-based Parameter Adaptation", ICLR 2018,
https://arxiv.org/abs/1802.10542.

Rows of the stream are written with the key that a frozen network gives them. A query is answered with parameters that
have taken some gradient steps on its nearest rows (`memjax.lifelong.adaptation`), and are then forgotten.

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

from memjax.axes import constrain
from memjax.config import EpisodicMemory
from memjax.data.examples import EXAMPLE
from memjax.lifelong.adaptation import adapted_outputs, neighbor_weights, selected
from memjax.lifelong.compose import Component, ReplayOptions, TestTimeAdaptation, chain_components
from memjax.lifelong.contract import Method
from memjax.lifelong.episodes import EPISODES, PURPOSES, OfRows, Store
from memjax.lifelong.methods import make_memory_options
from memjax.training.evaluation import PerRowAdaptation
from memjax.training.objective import model_collections, read_segment
from memjax.training.sharding import row_shards
from memjax.training.step import TrainState, model_variables
from memjax.typing import Batch

__all__ = ["key_of", "mbpa"]

KEY_NETWORK = "key_network"
"""the frozen parameters that keys come from, in `TrainState.method`; not in `constants`, a collection of the model,
which goes wherever its parameters go: weights that a run begins with, exports, models of other sizes"""
Key = Literal["inputs", "first", "question", "mean", "prompt"]


def mbpa(
    *,
    memory: EpisodicMemory,
    every: int,
    rows: int,
    neighbors: Literal["nearest", "random"],
    num_neighbors: int,
    weights: Literal["uniform", "inverse_distance", "softmax"],
    metric: Literal["squared_l2", "inner_product"],
    key: Key,
    steps: int,
    learning_rate: float,
    momentum: float,
    penalty: float,
    adapted: tuple[str, ...],
    queries: int,
) -> Method:
    """The method; `memjax.settings.methods.MbPA` says what its fields mean."""
    keyed = neighbors == "nearest" or memory.policy == "diversity"
    replayed = ReplayOptions(rows, "sparse", every) if every else None
    select = make_path_filter(adapted)
    how: dict[str, Any] = {"steps": steps, "learning_rate": learning_rate, "penalty": penalty, "select": select}
    how |= {"rule": functools.partial(optax.sgd, momentum=momentum or None)}
    found: dict[str, Any] = {"num_neighbors": num_neighbors, "weights": weights, "metric": metric}

    def adapting_rows(model: Any, store: Store) -> PerRowAdaptation:
        given = key if neighbors == "nearest" else None
        return adapt_to_own_neighbors(model, store, neighbors_of(model, store, given, **found), queries, how)

    copied = functools.partial(selected, select=select)
    variables = lambda experiment, store: adapted_variables
    adapting = TestTimeAdaptation(variables, adapting_rows, "lifelong.method.queries", copied) if steps else None
    kept = make_memory_options(memory, keys=key_of(key) if keyed else None)
    return chain_components(*key_components(key if keyed else None), memory=kept, replay=replayed, adapting=adapting)


def key_components(key: Key | None) -> tuple[Component, ...]:
    """What keeps the network that keys come from, where they come from one; None = there are no keys."""
    if key in (None, "inputs"):
        return ()
    return (Component(KEY_NETWORK, lambda params: jax.tree.map(jnp.copy, params)),)


def make_path_filter(adapted: tuple[str, ...]) -> Callable[[str], bool] | None:
    """Whether a path has one of these parts; of none, all have."""
    return (lambda path: any(part in path for part in adapted)) if adapted else None


def neighbors_of(
    model: Any, store: Store, key: Key | None, *, num_neighbors: int, weights: str, metric: Any, excludes: bool = False
) -> Callable[..., tuple[Batch, Any]]:
    """`find(variables, rows, together=False)`, the neighbours of every row, and how much each counts.

    Where `together`, they are those of the mean key of the rows, without an axis of rows.

    Args:
      model: the Linen model.
      store: of the memory.
      key: of rows; None = neighbours are drawn.
      num_neighbors: of a row (K).
      weights: as in `neighbor_weights`.
      metric: of keys.
      excludes: a stored example is no neighbour of itself, nor of rows that it is `together` with.
    """
    keys = jax.jit(functools.partial(key_of(key), model)) if key is not None else None

    def find(variables: Mapping[str, Any], rows: Batch, *, together: bool = False) -> tuple[Batch, Any]:
        method, own = variables["method"], model_collections(variables)
        kept, number = method[EPISODES], 1 if together else rows.inputs.shape[0]
        if keys is None:
            ids = store.draw(kept, jax.random.split(method["random"], number), num_neighbors)
            valid, distances = ids >= 0, jnp.zeros(ids.shape)
        else:
            sought, there = keys(own, method, rows), jnp.any(rows.weights > 0, axis=-1)
            if together:
                share = there / jnp.maximum(jnp.sum(there), 1)
                sought = jnp.sum(share[:, None] * jnp.where(there[:, None], sought, 0), axis=0, keepdims=True)
            more = (rows.inputs.shape[0] if together else 1) if excludes else 0
            ids, distances, valid = store.nearest(kept, sought, num_neighbors + more, metric=metric)
            if excludes:
                own_ids = jnp.where(there, rows.extras[EXAMPLE], -1)
                stored = store.take(kept, ids).extras[EXAMPLE]
                own_ids = own_ids[None, None] if together else own_ids[:, None, None]
                same = (stored[..., None] == own_ids).any(axis=-1)
                order = jnp.argsort(same | ~valid, axis=1, stable=True)[:, :num_neighbors]
                pick = lambda leaf: jnp.take_along_axis(leaf, order, axis=1)
                ids, distances, valid = pick(ids), pick(distances), pick(valid & ~same)
            distances = -distances if metric == "inner_product" else distances
        found = store.take(kept, ids), neighbor_weights(jnp.asarray(distances), jnp.asarray(valid), weights)
        return jax.tree.map(lambda leaf: leaf[0], found) if together else found

    return find


def adapt_to_own_neighbors(
    model: Any, store: Store, find: Callable[..., tuple[Batch, Any]], queries: int, how: Mapping[str, Any]
) -> PerRowAdaptation:
    """Every row is answered with parameters that are adapted to its own neighbours.

    Args:
      model: the Linen model.
      store: of the memory.
      find: `neighbors_of`.
      queries: adapted side by side on a device.
      how: of `memjax.lifelong.adaptation.adapt`.
    """

    def score(variables: Mapping[str, Any], rows: Batch, found: Any, predict: Callable[[Any, Batch], Any]) -> Any:
        own = model_collections(variables)
        # Beside their queries, so that devices adapt without a word to each other.
        beside = lambda leaf: constrain(leaf, "batch", *(None,) * (leaf.ndim - 1))
        given = (own["params"], rows, *jax.tree.map(beside, found))
        at_once = queries * row_shards(jax.sharding.get_abstract_mesh())
        loss = functools.partial(neighbor_nats, model, own)
        return adapted_outputs(loss, predict, *given, batch_size=at_once, **how)

    return PerRowAdaptation(find, score, store.outside, neighbor_examples, neighbor_shares)


def neighbor_nats(model: Any, variables: Mapping[str, Any], params: Any, support: Batch) -> Any:
    """The loss of every stored row, the mean over its targets, in evaluation mode: float `[neighbors]`."""
    start = model.init_state(support.inputs.shape[0])
    own = {**variables, "params": params}
    output = read_segment(model, own, start, support, deterministic=True)[0]
    nats = model.apply(own, output, support.targets, method="token_nll") * (support.weights > 0)
    return jnp.sum(nats, axis=1) / jnp.maximum(jnp.sum(support.weights > 0, axis=1), 1)


def neighbor_examples(found: tuple[Batch, Any]) -> Any:
    """The numbers of the neighbours that count; -1 elsewhere."""
    support, alpha = found
    return jnp.where(alpha > 0, support.extras[EXAMPLE], -1)


def neighbor_shares(found: tuple[Batch, Any]) -> Any:
    """How much each of them counts."""
    return found[1]


def adapted_variables(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
    """The variables of the model, and what rows are adapted with."""
    del support
    named = {name: state.method[name] for name in (EPISODES, KEY_NETWORK) if name in state.method}
    kept = {**named, "random": jax.random.fold_in(key, PURPOSES["adapt"])}
    return {**model_variables(state), "method": kept}


def key_of(kind: Key) -> OfRows:
    """The key of every row, float32 `[rows, dim]`.

    Args:
      kind: "inputs": what is read, where that is a vector. Else of the last hidden states of the frozen network, which
        are those of the parameters that training began with: of the first token, of the first one of the question
        (the second of the text), the mean over the text, or over what stands before the first answer to write.
    """
    if kind not in get_args(Key):
        raise ValueError(f"lifelong.method.key: given {kind!r}, allowed: {', '.join(get_args(Key))}")

    def keys(model: Any, variables: Mapping[str, Any], method: Mapping[str, Any], rows: Batch) -> Any:
        if kind == "inputs":
            if not jnp.issubdtype(rows.inputs.dtype, jnp.floating):
                raise ValueError(
                    "lifelong.method.key: given 'inputs' for tokens, allowed: 'first', 'question', 'mean', 'prompt'"
                )
            return rows.inputs.astype(jnp.float32)
        frozen = {**variables, "params": method[KEY_NETWORK]}
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
