"""kNN-LM: the tokens that followed the nearest contexts of a datastore, interpolated with a model's prediction.

Khandelwal et al. 2020, "Generalization through Memorization: Nearest Neighbor Language Models",
https://arxiv.org/abs/1911.00172. Nothing is learned. The datastore is searched outside of the compiled program, before
it (neighbours that come with the batch) or between two tokens (`memjax.retrieval.generation`). This file turns the
neighbours into candidates for the next token.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from memjax.functional.mixing import candidate_log_prob, candidate_log_weights, distance_scores
from memjax.functional.named_operations import operation
from memjax.memory.interface import DecodeState, OutputMemory, broadcast_mask
from memjax.memory.next_token_candidates import NextTokenCandidates, linear_weight, spread_metrics
from memjax.settings.checks import require
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows

__all__ = ["KNNMemory"]

DISTANCES, VALUES = "knn_distances", "knn_values"
"""Names of two extras of a batch with the neighbours of each target: squared distances, nearest first, and the tokens
after the neighbours. A token of -1 means no neighbour."""
Search = Callable[[np.ndarray, int], Any]
"""Search function of an index, `search(queries [queries, dim], num_neighbors) -> (scores, ids, valid)`. Each result is
`[queries, neighbors]`, best first."""
ValuesOf = Callable[[np.ndarray], np.ndarray]
"""Function from entry ids of a datastore to the tokens after these entries."""


class BatchNeighbors(NamedTuple):
    """Neighbours of each query in a datastore, nearest first: their distances, the tokens after them and their entries,
    as arrays on the host.

    Attributes:
      distances: float32 `[queries, neighbors]`, squared L2 distances, or negative inner products.
      values: int32 `[queries, neighbors]`, tokens after the neighbours. -1 for no neighbour.
      ids: int64 `[queries, neighbors]`, entries of the datastore. -1 for no neighbour.
    """

    distances: Any
    values: Any
    ids: Any


def search_neighbors(
    queries: Float[np.ndarray, "queries dim"],
    search: Search,
    values: ValuesOf,
    num_neighbors: int,
    *,
    metric: str = "squared_l2",
) -> BatchNeighbors:
    """Searches a datastore for the neighbours of queries with the function `search`, and looks up the tokens that
    followed them with the function `values`. Returns `BatchNeighbors`.

    Args:
      queries: float `[queries, dim]`, one query a row, as wide as the keys.
      search: Search function of an index.
      values: Function from entry ids to the tokens after them.
      num_neighbors: Number of neighbours of each query.
      metric: Metric of the scores of `search`: 'squared_l2', or 'inner_product', whose negative is the distance.

    Raises:
      ValueError: Unknown metric, or a search whose results have another shape.
    """
    require(metric in ("squared_l2", "inner_product"), "metric", metric, "'squared_l2' or 'inner_product'")
    scores, ids, valid = (np.asarray(array) for array in search(np.asarray(queries, np.float32), num_neighbors))
    if ids.shape != (len(queries), num_neighbors):
        raise ValueError(f"search: gave {ids.shape} for {len(queries)} queries and {num_neighbors} neighbours")
    distances = np.where(valid, scores if metric == "squared_l2" else -scores, 0).astype(np.float32)
    tokens = np.where(valid, np.asarray(values(np.where(valid, ids, 0))), -1).astype(np.int32)
    return BatchNeighbors(distances, tokens, np.where(valid, ids, -1).astype(np.int64))


@operation
def read(
    distances: Float[Array, "*tokens neighbors"],
    values: Int[Array, "*tokens neighbors"],
    *,
    temperature: float | Float[Array, ""] = 1.0,
    interpolation_weight: float | Float[Array, ""] = 0.25,
    query: Any = EmptyState(),
) -> NextTokenCandidates:
    """Turns neighbours, given by distances and the tokens after them (`values`), into `NextTokenCandidates`, weighed by
    `exp(-distance / temperature)`, the distribution `p_kNN`. `query` is only returned with them.

    Args:
      distances: Squared L2 distances of the neighbours, or negative inner products.
      values: Tokens after the neighbours. -1 for no neighbour.
      temperature: Divisor of the distances, above 0. The paper has 1.
      interpolation_weight: Share of the neighbours in the mixture with the model.
      query: Query of the search, returned with the candidates.
    """
    scores = distance_scores(distances, temperature, values >= 0)
    return NextTokenCandidates(scores, jnp.maximum(values, 0), linear_weight(scores, interpolation_weight), query)


@operation
def neighbor_log_prob(
    distances: Float[Array, "targets neighbors"],
    values: Int[Array, "targets neighbors"],
    targets: Int[Array, " targets"],
    temperature: float | Float[Array, ""] = 1.0,
) -> Float[Array, " targets"]:
    """Computes `log p_kNN` of one target token for each list of neighbours, whose tokens are `values`. -inf if no
    neighbour has this token.

    Example:
      >>> distances, values = jnp.array([[1.0, 1.0], [9.0, 9.0]]), jnp.array([[7, 3], [-1, -1]])
      >>> jnp.exp(neighbor_log_prob(distances, values, jnp.array([3, 3]))).tolist()
      [0.5, 0.0]
    """
    scores = distance_scores(distances, temperature, values >= 0)
    return candidate_log_prob(candidate_log_weights(scores), values, targets)


class KNNMemory(OutputMemory):
    """kNN-LM: proposes the tokens that followed the nearest contexts of a datastore, for a mixture with the prediction.

    Khandelwal et al. 2020, https://arxiv.org/abs/1911.00172. A memory behind the last hidden state.

    What is stored: nothing here. A datastore holds a key and the token after it for every position of a corpus. When
    written: before, by one pass of the model over that corpus. What is differentiable: nothing that is stored, and
    nothing is learned. When reset: never.

    Symbols: `f(x) -> feature`, `k_i, v_i -> keys and values of the store`, `d(k_i, f(x)) -> knn_distances`,
    `lambda -> interpolation_weight`.

    Differs from the paper or its code:

    * Distances are divided by a temperature (1 as published). Models with long keys need more. It must be tuned
      together with the weight.
    * The neighbours give no probability to a target that no neighbour has. The code gives `exp(-10000)`.
    * Without any neighbour the model's prediction is unchanged.

    `y` is a `NextTokenCandidates`, candidates for the next token, without the residual and without a norm: `x` stays
      as it is.

    Metrics: `knn_lm/neighbors`, the number of neighbours. `knn_lm/effective_neighbors`, how evenly the weights are
    spread over them. It is 1 / neighbours if only the nearest one counts: the temperature is then too low for the
    length of the keys.

    Attributes:
      num_neighbors: Number of candidates per position before any search in generation.
      interpolation_weight: Share of the neighbours in the mixture, 0 to 1.
      temperature: Divisor of the distances, above 0.
      query_feature: Inner tensor of the model that is the key, as named by `LanguageModel.features`. The paper's is the
        input of the last feed-forward layer after its normalisation.
      dtype: Dtype of the computation of the hidden states.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> near = {"knn_distances": jnp.ones((1, 4, 2)), "knn_values": jnp.array([[[5, 6]] * 4])}
      >>> memory, x = KNNMemory(num_neighbors=2), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool), **near}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.scores.shape, y.tokens.shape
      ((1, 4, 2), (1, 4, 2))
    """

    num_neighbors: int = 1024
    interpolation_weight: float = 0.25
    temperature: float = 1.0
    query_feature: str = "layer_-1/feed_forward_input_normed"
    dtype: Any = jnp.float32

    input_names = ("features", DISTANCES, VALUES)
    """Names of the further arguments of `__call__` and `decode`."""
    required_extras = (DISTANCES, VALUES)
    """Names of the arguments that must be among the extras of a batch."""

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> EmptyState:
        """Checks the settings and returns the empty state: nothing is remembered between segments."""
        require(self.num_neighbors >= 1, "num_neighbors", self.num_neighbors, "1 or more")
        require(0 <= self.interpolation_weight <= 1, "interpolation_weight", self.interpolation_weight, "0 to 1")
        require(0 < self.temperature < np.inf, "temperature", self.temperature, "a number above 0")
        return EmptyState()

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shape and dtype of the extras that a batch must have, by name: `knn_distances` and `knn_values`, the
        tokens after the neighbours, each `[batch, length, neighbors]`.
        """
        shape = (batch_size, length, self.num_neighbors)
        return {DISTANCES: jax.ShapeDtypeStruct(shape, jnp.float32), VALUES: jax.ShapeDtypeStruct(shape, jnp.int32)}

    def __call__(
        self,
        x: Activations,
        state: EmptyState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
        features: Mapping[str, Array] | None = None,
        knn_distances: Float[Array, "batch length neighbors"] | None = None,
        knn_values: Int[Array, "batch length neighbors"] | None = None,
    ) -> tuple[NextTokenCandidates, EmptyState, Aux]:
        """Returns the neighbours of every position as candidates for its next token.

        Args:
          x: Last hidden states.
          state: `EmptyState`.
          start_of_document: Not used: a datastore has no documents.
          mask: bool `[batch, length]`, real tokens.
          deterministic: Not used, nothing is drawn.
          features: Inner tensors of the model. The key is returned with the candidates, as the query for a datastore.
          knn_distances: Distances of the neighbours of each position. None for no candidates, before a search.
          knn_values: Tokens after the neighbours. -1 for no neighbour.
        """
        mask = broadcast_mask(mask, *x.shape[:2])
        recalled = self._recall(x, features, knn_distances, knn_values)
        metrics = spread_metrics("knn_lm", "neighbors", recalled.scores, mask)
        return recalled, EmptyState(), Aux(metrics=metrics)

    def decode(
        self,
        x: Float[Array, "batch 1 dim"],
        decode_state: DecodeState,
        *,
        active: Rows,
        features: Mapping[str, Array] | None = None,
        knn_distances: Float[Array, "batch 1 neighbors"] | None = None,
        knn_values: Int[Array, "batch 1 neighbors"] | None = None,
    ) -> tuple[NextTokenCandidates, DecodeState]:
        """Returns two values: the neighbours given for one token of every row as `NextTokenCandidates`, whose query is
        taken from the inner tensors `features`, and the decode state. Without neighbours there are no candidates.
        """
        position = decode_state.position + active.astype(jnp.int32)
        recalled = self._recall(x, features, knn_distances, knn_values)
        return recalled, DecodeState(EmptyState(), EmptyState(), position)

    @nn.nowrap
    def recall(self, distances: Array, values: Array, query: Any = EmptyState()) -> NextTokenCandidates:
        """Turns neighbours, given by distances and the tokens after them (`values`), of any leading axes, into
        `NextTokenCandidates` with the settings of this memory. `query` is only returned with them.
        """
        return read(
            distances, values, temperature=self.temperature, interpolation_weight=self.interpolation_weight, query=query
        )

    def _recall(
        self, x: Array, features: Mapping[str, Array] | None, distances: Any, values: Any
    ) -> NextTokenCandidates:
        if features is not None and self.query_feature not in features:
            raise ValueError(
                f"query_feature: given {self.query_feature!r}, the model gives {sorted(features)}; "
                "use memjax.models.add_mixtures"
            )
        query = EmptyState() if features is None else jax.lax.stop_gradient(features[self.query_feature])
        if values is None:
            shape = (*x.shape[:2], self.num_neighbors)
            dtype = jnp.promote_types(x.dtype, jnp.float32)
            distances, values = jnp.zeros(shape, dtype), jnp.full(shape, -1, jnp.int32)
        return self.recall(distances, values, query)
