"""Embeddings and softmax: one vocabulary module embeds ids, scores targets and computes log-probabilities.

Tables may have more rows than entries, so that they divide over devices (`multiple`). The rows after the last entry are
padding. They start as zeros and stay zeros, no id looks them up, and they have no share of the softmax.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.axes import constrain, named
from memjax.functional.attention import limit_scores
from memjax.functional.losses import token_cross_entropy
from memjax.settings.checks import require

__all__ = ["AdaptiveVocabulary", "Vocabulary", "unpad_tables", "pad_tables"]

TableSizes = dict[str, tuple[int, tuple[int, ...]]]
"""Name of a parameter -> its number of entries, and its shape with padding."""


class Vocabulary(nn.Module):
    """An embedding table and a softmax over all entries of a vocabulary.

    Attributes:
      vocab_size: Number of entries.
      dim: Width of the model.
      tied: Whether the output weights are the embeddings.
      bias: Whether every entry has an output bias.
      scale: Factor of the input embeddings.
      logit_divisor: Divisor of the scores.
      logit_cap: Limit of the scores, `cap * tanh(score / cap)`. 0 = none.
      init_stddev: Standard deviation of the initial embeddings and output weights.
      multiple: Number that the tables' rows are a multiple of. 1 = no padding.
      dtype: Dtype of the computation. Scores and losses are at least float32.
    """

    vocab_size: int
    dim: int
    tied: bool = True
    bias: bool = False
    scale: float = 1.0
    logit_divisor: float = 1.0
    logit_cap: float = 0.0
    init_stddev: float = 0.02
    multiple: int = 1
    dtype: Any = jnp.float32

    @nn.nowrap
    def tables(self) -> TableSizes:
        """Returns a dict from the name of each parameter with a row for every entry to a pair: the number of entries,
        and the shape with padding.
        """
        rows = _round_up(self.vocab_size, self.multiple)
        tables: TableSizes = {"embedding": (self.vocab_size, (rows, self.dim))}
        if not self.tied:
            tables["output"] = tables["embedding"]
        if self.bias:
            tables["bias"] = (self.vocab_size, (rows,))
        return tables

    @property
    def input_stddev(self) -> float:
        """The standard deviation of the input vectors of tokens in an untrained model, after the factor `scale`."""
        return self.init_stddev * self.scale

    def setup(self) -> None:
        tables, init = self.tables(), nn.initializers.normal(self.init_stddev)
        make = lambda name, init, *names: self.param(
            name, _init_entries(tables[name][0], init, *names), tables[name][1]
        )
        self.embedding = make("embedding", init, "vocab", "embed")
        if not self.tied:
            self.output = make("output", init, "vocab", "embed")
        if self.bias:
            self.output_bias = make("bias", nn.initializers.zeros, "vocab")

    def embed(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Looks up the input embeddings of token ids, and multiplies them by `scale`."""
        # Gathered over `fsdp` first: if rows are split themselves, they are looked up on the wrong devices.
        table = constrain(self.embedding, "vocab", None)
        return self._take(table, ids).astype(self.dtype) * self.scale

    def embed_output(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Looks up the output weights of token ids, vectors with which a hidden state is compared."""
        return self._take(constrain(self.embedding if self.tied else self.output, "vocab", None), ids)

    def logits(self, hidden: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens vocab"]:
        """Computes the scores of every entry given hidden states, at least float32."""
        return self._scores(hidden)[..., : self.vocab_size]

    def token_nll(self, hidden: Float[Array, "*tokens dim"], targets: Int[Array, "*tokens"]) -> Float[Array, "*tokens"]:
        """Returns the negative log-likelihood of each target in nats, given hidden states. 0 for an id outside the
        vocabulary.
        """
        return token_cross_entropy(self._scores(hidden), jnp.where(targets < self.vocab_size, targets, -1))

    def log_probs(self, hidden: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens vocab"]:
        """Returns the log-probabilities of every entry given hidden states."""
        return jax.nn.log_softmax(self._scores(hidden), axis=-1)[..., : self.vocab_size]

    def log_normalizer(self, hidden: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens"]:
        """Returns the log-sum-exp (the logarithm of the sum of the exponentials) of all scores at each position."""
        return jax.nn.logsumexp(self._scores(hidden), axis=-1)

    def _take(self, table: Any, ids: Array) -> Array:
        """Looks up rows of a table, clipping ids to the vocabulary."""
        return jnp.take(table, jnp.minimum(ids, self.vocab_size - 1), axis=0, mode="clip")

    def _scores(self, hidden: Array) -> Array:
        """Computes the scores of every row, -inf for padding, split over devices like the table."""
        weights = self.embedding if self.tied else self.output
        dtype = jnp.promote_types(hidden.dtype, jnp.float32)
        flat = hidden.reshape(-1, self.dim)
        scores = jnp.einsum("nd,vd->nv", flat, weights.astype(hidden.dtype), preferred_element_type=dtype)
        scores = scores.reshape(*hidden.shape[:-1], weights.shape[0])
        scores = _add_bias(scores, self.output_bias if self.bias else None)
        scores = scores if self.logit_divisor == 1 else scores / self.logit_divisor
        return _mask_padding(limit_scores(scores, self.logit_cap), self.vocab_size)


class AdaptiveVocabulary(nn.Module):
    """A vocabulary with adaptive embeddings and softmax: rare ids are in clusters behind one score each.

    Grave et al. 2017 (https://arxiv.org/abs/1609.04309) and Baevski & Auli 2019 (https://arxiv.org/abs/1809.10853),
    with the layout and tied tables of Transformer-XL. Ids must be sorted by frequency. Training never builds scores of
    the whole vocabulary for all tokens: targets are sorted by cluster and scored in pieces, and a piece computes only
    the clusters that it contains.

    Differs from the published code: the score of tail cluster i is column `cutoffs[0] + i - 1` of the head, as in the
    TensorFlow and Hugging Face code; the PyTorch code has the cluster columns in reverse.

    Attributes:
      vocab_size: Number of entries.
      dim: Width of the model.
      cutoffs: First id of each tail cluster.
      div_val: Factor by which each cluster's embeddings are narrower than those of the cluster before.
      tie_projections: Whether each cluster's output projection is its input projection. () = none is. Only with
        `div_val` > 1.
      bias: Whether every entry and every cluster has an output bias.
      scale: Factor of the input embeddings after their projection.
      init_stddev: Standard deviation of the initial tables and cluster weights.
      projection_stddev: Standard deviation of the initial projections.
      pieces: Number of pieces in which the tokens of a batch are scored.
      multiple: Number that the rows of every cluster's tables are a multiple of. 1 = no padding.
      dtype: Dtype of the computation. Scores and losses are at least float32.
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
    multiple: int = 1
    dtype: Any = jnp.float32

    @nn.nowrap
    def tables(self) -> TableSizes:
        """Returns a dict from the name of each cluster's parameter with a row for every entry to a pair: the number of
        entries, and the shape with padding.
        """
        tables: TableSizes = {}
        for index, (first, last) in enumerate(self.bounds):
            rows = _round_up(last - first, self.multiple)
            tables[f"embedding_{index}"] = (last - first, (rows, self.dim // self.div_val**index))
            if self.bias:
                tables[f"bias_{index}"] = (last - first, (rows,))
        return tables

    @property
    def input_stddev(self) -> float:
        """The standard deviation of the input vectors of frequent ids in an untrained model, after projection and
        `scale`.
        """
        projected = self.projection_stddev * self.dim**0.5 if self.div_val > 1 else 1.0
        return self.init_stddev * projected * self.scale

    def setup(self) -> None:
        fits = bool(self.cutoffs) and self.cutoffs[-1] < self.vocab_size
        require(fits, "cutoffs", self.cutoffs, f"at least one, ascending ids below vocab_size = {self.vocab_size}")
        normal = lambda stddev, *names: named(nn.initializers.normal(stddev), *names)
        zeros, described = nn.initializers.zeros, self.tables()
        table = lambda name, init, *names: self.param(
            name, _init_entries(described[name][0], init, *names), described[name][1]
        )
        embeddings, projections, output_projections, biases = [], [], [], []
        ties = self.tie_projections or (False,) * len(self.bounds)
        for index in range(len(self.bounds)):
            init = nn.initializers.normal(self.init_stddev)
            embeddings.append(table(f"embedding_{index}", init, "vocab", "embed"))
            if self.div_val > 1:
                make = lambda name, i=index, w=embeddings[-1].shape[1]: self.param(
                    f"{name}_{i}", normal(self.projection_stddev, None, "embed"), (w, self.dim)
                )
                projections.append(make("projection"))
                output_projections.append(projections[-1] if ties[index] else make("output_projection"))
            if self.bias:
                biases.append(table(f"bias_{index}", zeros, "vocab"))
        self.embeddings, self.biases = embeddings, biases
        self.projections, self.output_projections = projections, output_projections
        tails = len(self.bounds) - 1
        self.cluster_weight = self.param("cluster_weight", normal(self.init_stddev, None, "embed"), (tails, self.dim))
        if self.bias:
            self.cluster_bias = self.param("cluster_bias", named(zeros, None), (tails,))

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """A pair for each cluster: its first id, and the id after its last one. Cluster 0 is the short list of frequent
        ids.
        """
        edges = (0, *self.cutoffs, self.vocab_size)
        return tuple(zip(edges[:-1], edges[1:], strict=True))

    def embed(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Looks up the input embeddings of token ids, projects them to `dim` and multiplies them by `scale`."""
        return self._embed(ids, self.projections) * self.scale

    def embed_output(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Looks up the output weights of token ids, projected to the space of the hidden states."""
        return self._embed(ids, self.output_projections)

    def token_nll(self, hidden: Float[Array, "*tokens dim"], targets: Int[Array, "*tokens"]) -> Float[Array, "*tokens"]:
        """Returns the negative log-likelihood of each target in nats, given hidden states. Targets must be ids of the
        vocabulary.
        """
        flat, ids = hidden.reshape(-1, self.dim), targets.reshape(-1)
        count = ids.shape[0]
        size = -(-count // min(self.pieces, count))
        order = jnp.argsort(ids)
        padded = jnp.pad(order, (0, -count % size), mode="edge").reshape(-1, size)
        score = jax.checkpoint(self._piece_nll)
        nll = jax.lax.map(lambda rows: score(flat[rows], ids[rows]), padded).reshape(-1)[:count]
        return jnp.zeros_like(nll).at[order].set(nll).reshape(targets.shape)

    def log_probs(self, hidden: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens vocab"]:
        """Returns the log-probabilities of every entry given hidden states."""
        shortlist, clusters = self._head(hidden)
        parts = [shortlist[..., : self.bounds[0][1]]]
        for index, (first, last) in enumerate(self.bounds[1:], start=1):
            tail = jax.nn.log_softmax(self._scores(hidden, index), axis=-1)[..., : last - first]
            parts.append(clusters[..., index - 1, None] + tail)
        return jnp.concatenate(parts, axis=-1)

    def log_normalizer(self, hidden: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens"]:
        """Raises a `ValueError`, since there is no single softmax whose normalizer it could be."""
        kind = type(self).__name__
        raise ValueError(f"mixing: given 'global' with {kind}, allowed: 'linear' (it has no single softmax)")

    def _piece_nll(self, hidden: Array, ids: Array) -> Array:
        """Computes the nats of one piece of the targets, with only the clusters that it contains."""
        shortlist, clusters = self._head(hidden)
        tails = jnp.asarray([first for first, _ in self.bounds[1:]])
        cluster = (ids[:, None] >= tails[None, :]).sum(axis=1)
        pick = lambda table, columns: jnp.take_along_axis(table, columns[:, None], axis=-1, mode="clip")[:, 0]
        shortlist_log_prob = pick(shortlist, jnp.clip(ids, 0, self.bounds[0][1] - 1))
        log_prob = jnp.where(cluster == 0, shortlist_log_prob, pick(clusters, cluster - 1))
        for index, (first, last) in enumerate(self.bounds):
            if index == 0:
                continue
            member = cluster == index

            def tail(index: int = index, first: int = first, last: int = last) -> Array:
                scores = jax.nn.log_softmax(self._scores(hidden, index), axis=-1)
                return pick(scores, jnp.clip(ids - first, 0, last - first - 1))

            within = jax.lax.cond(member.any(), tail, lambda: jnp.zeros_like(shortlist_log_prob))
            log_prob = log_prob + jnp.where(member, within, 0)
        return -log_prob

    def _embed(self, ids: Array, projections: Sequence[Array]) -> Array:
        """Looks up ids in the tables of their clusters, and projects the rows."""
        total = jnp.zeros((*ids.shape, self.dim), self.dtype)
        for index, (first, last) in enumerate(self.bounds):
            table = constrain(self.embeddings[index], "vocab", None)  # gathered over `fsdp`, as in `Vocabulary`
            rows = jnp.take(table, jnp.clip(ids - first, 0, last - first - 1), axis=0).astype(self.dtype)
            if projections:
                rows = rows @ constrain(projections[index], None, None).astype(self.dtype)
            total = jnp.where(((ids >= first) & (ids < last))[..., None], rows, total)
        return total

    def _head(self, hidden: Array) -> tuple[Array, Array]:
        """Computes the log-probabilities of the short list (with padding) and of the tail clusters.

        They are one softmax in two parts, which are not joined, since the first is split over devices.
        """
        shortlist = self._scores(hidden, 0)
        clusters = self._products(hidden, self.cluster_weight, 0)
        clusters = _add_bias(clusters, self.cluster_bias if self.bias else None)
        total = lambda scores: jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        normalizer = jnp.logaddexp(total(shortlist), total(clusters))
        return shortlist - normalizer, clusters - normalizer

    def _scores(self, hidden: Array, index: int) -> Array:
        """Computes the scores of every row of a cluster, -inf for padding."""
        scores = _add_bias(
            self._products(hidden, self.embeddings[index], index), self.biases[index] if self.bias else None
        )
        first, last = self.bounds[index]
        return _mask_padding(scores, last - first)

    def _products(self, hidden: Array, weights: Array, index: int) -> Array:
        """Computes the products of hidden states with the weights of a cluster, after the output projection."""
        if self.output_projections:
            hidden = hidden @ self.output_projections[index].astype(hidden.dtype).T
        dtype = jnp.promote_types(hidden.dtype, jnp.float32)
        return jnp.einsum("...d,vd->...v", hidden, weights.astype(hidden.dtype), preferred_element_type=dtype)


class EmptyVocabulary(NamedTuple):
    """A stand-in for the vocabulary of a model whose head never scores tokens. It has no parameters."""

    vocab_size: int = 0

    def tables(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Returns an empty dict, since the vocabulary has no parameters. See `Vocabulary.tables`."""
        return {}


def num_padding(vocabulary: Vocabulary | AdaptiveVocabulary | EmptyVocabulary) -> int:
    """Returns the number of parameters of a vocabulary that are padding.

    Example:
      >>> num_padding(Vocabulary(vocab_size=250, dim=8, multiple=128))
      48
    """
    tables = vocabulary.tables().values()
    return sum((shape[0] - entries) * math.prod(shape[1:]) for entries, shape in tables)


def pad_tables(params: Mapping[str, Any], vocabulary: Vocabulary | AdaptiveVocabulary) -> dict[str, Any]:
    """Returns the parameters of a vocabulary, such as imported ones without padding, with rows of zeros added to fit
    `vocabulary`.

    Example:
      >>> vocabulary = Vocabulary(vocab_size=5, dim=2, multiple=4)
      >>> pad_tables({"embedding": jnp.ones((5, 2))}, vocabulary)["embedding"].shape
      (8, 2)
    """
    padded = dict(params)
    for name, (_, shape) in vocabulary.tables().items():
        missing = shape[0] - params[name].shape[0]
        if missing:
            padded[name] = jnp.pad(jnp.asarray(params[name]), [(0, missing)] + [(0, 0)] * (len(shape) - 1))
    return padded


def unpad_tables(params: Mapping[str, Any], vocabulary: Vocabulary | AdaptiveVocabulary) -> dict[str, Any]:
    """Returns the parameters of `vocabulary` without the rows of padding. The inverse of `pad_tables`."""
    entries = {name: params[name][:count] for name, (count, _) in vocabulary.tables().items()}
    return {**params, **entries}


def _round_up(size: int, multiple: int) -> int:
    """Rounds a size up to a multiple."""
    return -(-size // multiple) * multiple


def _init_entries(entries: int, init: Callable[..., Array], *names: str | None) -> Callable[..., Array]:
    """Makes an initialiser that fills the first `entries` rows as if there were no others, and the rest with zeros."""

    def initialize(key: Array, shape: tuple[int, ...], *rest: Any) -> Array:
        values = init(key, (entries, *shape[1:]), *rest)
        return jnp.pad(values, [(0, shape[0] - entries)] + [(0, 0)] * (len(shape) - 1))

    return named(initialize, *names)


def _mask_padding(scores: Array, entries: int) -> Array:
    """Replaces scores after the first `entries` by -inf, so that they have no share of a softmax, and no gradient."""
    if scores.shape[-1] == entries:
        return scores
    return jnp.where(jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1) < entries, scores, -jnp.inf)


def _add_bias(scores: Array, bias: Any) -> Array:
    """Adds a bias along the last axis of scores, if there is one."""
    return scores if bias is None else scores + bias.astype(scores.dtype).reshape((1,) * (scores.ndim - 1) + (-1,))
