"""Embeddings and softmax: one vocabulary module embeds ids, scores targets and gives log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.axes import constrain, named
from memjax.functional.losses import token_cross_entropy


class Vocabulary(nn.Module):
    """One table of embeddings and one softmax.

    Attributes:
      vocab_size: entries.
      dim: width of the model.
      tied: the output weights are the embeddings.
      bias: an output bias per entry.
      scale: multiplies input embeddings.
      init_stddev: of embeddings and output weights.
      dtype: of the computation; scores and losses are at least float32.
    """

    vocab_size: int
    dim: int
    tied: bool = True
    bias: bool = False
    scale: float = 1.0
    init_stddev: float = 0.02
    dtype: Any = jnp.float32

    def setup(self) -> None:
        init = named(nn.initializers.normal(self.init_stddev), "vocab", "embed")
        shape = (self.vocab_size, self.dim)
        self.embedding = self.param("embedding", init, shape)
        if not self.tied:
            self.output = self.param("output", init, shape)
        if self.bias:
            self.output_bias = self.param("bias", named(nn.initializers.zeros, "vocab"), (self.vocab_size,))

    def embed(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Input embeddings, scaled."""
        # Gathered over `fsdp` first: rows that are themselves split would be looked up on the wrong devices.
        table = constrain(self.embedding, "vocab", None)
        return jnp.take(table, ids, axis=0, mode="clip").astype(self.dtype) * self.scale

    def embed_output(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """The output weights of the ids: what a hidden state is compared with."""
        return jnp.take(self.embedding if self.tied else self.output, ids, axis=0, mode="clip")

    def logits(self, hidden: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens vocab"]:
        """Scores of every entry, at least float32."""
        weights = self.embedding if self.tied else self.output
        dtype = jnp.promote_types(hidden.dtype, jnp.float32)
        flat = hidden.reshape(-1, self.dim)
        scores = jnp.einsum("nd,vd->nv", flat, weights.astype(hidden.dtype), preferred_element_type=dtype)
        scores = scores.reshape(*hidden.shape[:-1], self.vocab_size)
        if not self.bias:
            return scores
        return scores + self.output_bias.astype(dtype).reshape((1,) * (scores.ndim - 1) + (-1,))

    def token_nll(self, hidden: Float[Array, "*tokens dim"], targets: Int[Array, "*tokens"]) -> Float[Array, "*tokens"]:
        """Nats of each target."""
        return token_cross_entropy(self.logits(hidden), targets)

    def log_probs(self, hidden: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens vocab"]:
        """Log-probabilities of every entry."""
        return jax.nn.log_softmax(self.logits(hidden), axis=-1)


class AdaptiveVocabulary(nn.Module):
    """Adaptive embeddings and softmax: frequent ids first, tail clusters behind one score each, tied tables.

    Grave et al. 2017 (https://arxiv.org/abs/1609.04309) and Baevski & Auli 2019 (https://arxiv.org/abs/1809.10853),
    laid out as in Transformer-XL. Ids must be sorted by frequency. Training never builds scores of the whole vocabulary
    for all tokens: targets are sorted by cluster and scored in pieces, and a piece computes only the clusters that it
    contains.

    Differs from the published code: the score of tail cluster i is column `cutoffs[0] + i - 1` of the head, as in the
    TensorFlow and Hugging Face code; the PyTorch code has the cluster columns in reverse.

    Attributes:
      vocab_size: entries.
      dim: width of the model.
      cutoffs: first ids of the tail clusters.
      div_val: each cluster's embeddings are this factor narrower than the one before.
      tie_projections: per cluster, whether the output projection is the input's; () = none is. Only with `div_val` > 1.
      bias: an output bias per entry and per cluster.
      scale: multiplies input embeddings after their projection.
      init_stddev: of the tables and cluster weights.
      projection_stddev: of the projections.
      pieces: how many pieces the tokens of a batch are scored in.
      dtype: of the computation; scores and losses are at least float32.
    """

    vocab_size: int
    dim: int
    cutoffs: tuple[int, ...]
    div_val: int = 1
    tie_projections: tuple[bool, ...] = ()
    bias: bool = True
    scale: float = 1.0
    init_stddev: float = 0.02
    projection_stddev: float = 0.01
    pieces: int = 8
    dtype: Any = jnp.float32

    def setup(self) -> None:
        if not self.cutoffs or self.cutoffs[-1] >= self.vocab_size:
            raise ValueError(
                f"cutoffs: given {self.cutoffs}, allowed: at least one, ascending ids below vocab_size = "
                f"{self.vocab_size}"
            )
        normal = lambda stddev, *names: named(nn.initializers.normal(stddev), *names)
        zeros = nn.initializers.zeros
        tables, projections, output_projections, biases = [], [], [], []
        ties = self.tie_projections or (False,) * len(self.bounds)
        for index, (first, last) in enumerate(self.bounds):
            width = self.dim // self.div_val**index
            tables.append(
                self.param(f"embedding_{index}", normal(self.init_stddev, "vocab", "embed"), (last - first, width))
            )
            if self.div_val > 1:
                make = lambda name, i=index, w=width: self.param(
                    f"{name}_{i}", normal(self.projection_stddev, None, "embed"), (w, self.dim)
                )  # noqa: E731
                projections.append(make("projection"))
                output_projections.append(projections[-1] if ties[index] else make("output_projection"))
            if self.bias:
                biases.append(self.param(f"bias_{index}", named(zeros, "vocab"), (last - first,)))
        self.tables, self.projections, self.output_projections, self.biases = (
            tables,
            projections,
            output_projections,
            biases,
        )
        tails = len(self.bounds) - 1
        self.cluster_weight = self.param("cluster_weight", normal(self.init_stddev, None, "embed"), (tails, self.dim))
        if self.bias:
            self.cluster_bias = self.param("cluster_bias", named(zeros, None), (tails,))

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """(first id, id after the last) of each cluster; cluster 0 is the head's short list."""
        edges = (0, *self.cutoffs, self.vocab_size)
        return tuple(zip(edges[:-1], edges[1:], strict=True))

    def embed(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Input embeddings, projected to `dim` and scaled."""
        return self._embed(ids, self.projections) * self.scale

    def embed_output(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """The output weights of the ids, in the space of the hidden states."""
        return self._embed(ids, self.output_projections)

    def token_nll(self, hidden: Float[Array, "*tokens dim"], targets: Int[Array, "*tokens"]) -> Float[Array, "*tokens"]:
        """Nats of each target."""
        flat, ids = hidden.reshape(-1, self.dim), targets.reshape(-1)
        count = ids.shape[0]
        size = -(-count // min(self.pieces, count))
        order = jnp.argsort(ids)
        padded = jnp.pad(order, (0, -count % size), mode="edge").reshape(-1, size)
        score = jax.checkpoint(self._piece_nll)
        nll = jax.lax.map(lambda rows: score(flat[rows], ids[rows]), padded).reshape(-1)[:count]
        return jnp.zeros_like(nll).at[order].set(nll).reshape(targets.shape)

    def log_probs(self, hidden: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens vocab"]:
        """Log-probabilities of every entry."""
        head = jax.nn.log_softmax(self._head(hidden), axis=-1)
        shortlist = self.bounds[0][1]
        parts = [head[..., :shortlist]]
        for index in range(1, len(self.bounds)):
            tail = jax.nn.log_softmax(self._tail(hidden, index), axis=-1)
            parts.append(head[..., shortlist + index - 1, None] + tail)
        return jnp.concatenate(parts, axis=-1)

    def _piece_nll(self, hidden: Array, ids: Array) -> Array:
        head = jax.nn.log_softmax(self._head(hidden), axis=-1)
        shortlist = self.bounds[0][1]
        tails = jnp.asarray([first for first, _ in self.bounds[1:]])
        cluster = (ids[:, None] >= tails[None, :]).sum(axis=1)
        column = jnp.where(cluster == 0, ids, shortlist + cluster - 1)
        log_prob = jnp.take_along_axis(head, column[:, None], axis=-1, mode="clip")[:, 0]
        for index, (first, _) in enumerate(self.bounds):
            if index == 0:
                continue
            member = cluster == index

            def tail(index: int = index, first: int = first) -> Array:
                scores = jax.nn.log_softmax(self._tail(hidden, index), axis=-1)
                return jnp.take_along_axis(scores, (ids - first)[:, None], axis=-1, mode="clip")[:, 0]

            within = jax.lax.cond(member.any(), tail, lambda: jnp.zeros(ids.shape, head.dtype))
            log_prob = log_prob + jnp.where(member, within, 0)
        return -log_prob

    def _embed(self, ids: Array, projections: Sequence[Array]) -> Array:
        total = jnp.zeros((*ids.shape, self.dim), self.dtype)
        for index, (first, last) in enumerate(self.bounds):
            rows = jnp.take(self.tables[index], jnp.clip(ids - first, 0, last - first - 1), axis=0).astype(self.dtype)
            if projections:
                rows = rows @ projections[index].astype(self.dtype)
            total = jnp.where(((ids >= first) & (ids < last))[..., None], rows, total)
        return total

    def _scores(self, hidden: Array, weights: Array, index: int) -> Array:
        if self.output_projections:
            hidden = hidden @ self.output_projections[index].astype(hidden.dtype).T
        dtype = jnp.promote_types(hidden.dtype, jnp.float32)
        return jnp.einsum("...d,vd->...v", hidden, weights.astype(hidden.dtype), preferred_element_type=dtype)

    def _head(self, hidden: Array) -> Array:
        scores = self._scores(hidden, jnp.concatenate([self.tables[0], self.cluster_weight]), 0)
        return _add_bias(scores, jnp.concatenate([self.biases[0], self.cluster_bias]) if self.bias else None)

    def _tail(self, hidden: Array, index: int) -> Array:
        return _add_bias(self._scores(hidden, self.tables[index], index), self.biases[index] if self.bias else None)


def _add_bias(scores: Array, bias: Array | None) -> Array:
    return scores if bias is None else scores + bias.astype(scores.dtype).reshape((1,) * (scores.ndim - 1) + (-1,))
