"""Records attention to memories and what memories keep: slots of Memformer, and the signal of infinity-former.

Wu et al. 2020, https://arxiv.org/abs/2010.06891, sections 4.5 and figure 5 (slot types); Martins et al. 2022,
https://arxiv.org/abs/2109.00301, section 4.3 and its appendix (histograms, attention per word, space per token).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.gaussian_basis import bin_masses, token_positions
from memjax.functional.slot_attention import slot_types
from memjax.memory.infinity_former import InfinityFormerAttention, LongTermMemory
from memjax.memory.interface import NotProvided
from memjax.models.interface import Model
from memjax.models.language_model import LanguageModel
from memjax.models.memformer import Memformer

__all__ = ["SignalMap", "SlotMap", "attend_places", "signal_map", "slot_map", "token_space", "with_long_term_fields"]


@dataclasses.dataclass(frozen=True)
class SlotMap:
    """Attention from and to the slots of a Memformer in each of several consecutive segments, and the share of each
    slot that is left after the write.

    Attributes:
      writer: Attention weights of the write, `[segments, batch, heads, slots, 1 + encoded]`: of each slot on itself,
        then on the encoded tokens of the segment before, then on the classification tokens.
      shares: Share of each slot that is left after the write, `[segments, batch, slots]`.
      reader: Attention weights of encoded tokens on slots in every layer of the encoder, `[segments, layers, batch,
        heads, encoded, slots]`.
      bias_norms: Norm of each slot's learned bias v, `[slots]`. A larger norm means faster forgetting.
    """

    writer: Float[np.ndarray, "segments batch heads slots sources"]
    shares: Float[np.ndarray, "segments batch slots"]
    reader: Float[np.ndarray, "segments layers batch heads encoded slots"]
    bias_norms: Float[np.ndarray, " slots"]

    def type_counts(self) -> Int[np.ndarray, "segments batch 3"]:
        """Counts the slots of each row that retain, aggregate or are rewritten in each segment, int
        `[segments, batch, 3]` in this order.
        """
        return np.stack([kind.sum(axis=-1) for kind in slot_types(self.shares)], axis=-1)


@dataclasses.dataclass(frozen=True)
class SignalMap:
    """Gaussian densities with which the queries of an infinity-former look at its signal over [0, 1], and the tokens
    that were written to the signal, in consecutive segments.

    Attributes:
      layers: Numbers of the layers with a signal, from 0, along axis 0 of the arrays.
      mean: Mean of each query's Gaussian density over [0, 1], `[layers, segments, batch, heads, length]`.
      variance: Variance of each query's density, `[layers, segments, batch, heads, length]`.
      tokens: Hidden states, after the gate, that could enter the signal just before the segment read it, `[layers,
        segments, batch, length, dim]`. 0 where there was no token.
      entered: Whether each of these tokens entered the signal, bool `[layers, segments, batch, length]`.
      positions: Positions at which a sticky update sampled the old signal, `[layers, segments, batch, samples]`. None
        if updates are even.
      contraction: Factor tau by which an update contracts the old signal.
      counted: Whether a token is real and its row's signal holds something, bool `[layers, segments, batch, length]`.
    """

    layers: tuple[int, ...]
    mean: Float[np.ndarray, "layers segments batch heads length"]
    variance: Float[np.ndarray, "layers segments batch heads length"]
    tokens: Float[np.ndarray, "layers segments batch length dim"]
    entered: Bool[np.ndarray, "layers segments batch length"]
    positions: Float[np.ndarray, "layers segments batch samples"] | None
    contraction: float
    counted: Bool[np.ndarray, "layers segments batch length"]

    @property
    def updated(self) -> Bool[np.ndarray, "layers segments batch"]:
        """Whether any token entered the signal of a row just before it read each segment, bool
        `[layers, segments, batch]`. False after a segment of padding, even if the signal holds earlier tokens.
        """
        return np.any(self.entered, axis=-1)

    def histogram(self, num_bins: int = 128) -> Float[np.ndarray, "layers bins"]:
        """Returns the mean attention mass of each layer's queries in `num_bins` equal bins of [0, 1], `[layers, bins]`.

        Args:
          num_bins: Number of bins. Mass outside [0, 1] is ignored.
        """
        sums = []
        for mean, variance, counted in zip(self.mean, self.variance, self.counted, strict=True):
            chosen = np.broadcast_to(counted[:, :, None], mean.shape)
            masses = bin_masses(jnp.asarray(mean[chosen]), jnp.asarray(variance[chosen]), num_bins)
            sums.append(np.asarray(masses).sum(axis=0) / max(len(masses), 1))
        return np.stack(sums)

    def token_places(
        self, layer: int, segment: int, row: int = 0, *, even: bool = False
    ) -> Float[np.ndarray, "written length"]:
        """Computes the positions in [0, 1] of all tokens that were written to the signal when a segment reads it,
        `[written segments, length]`. With `even` the updates count as even, even if they were sticky. `layer` is an
        index into `layers`.

        Args:
          layer: Index into `layers`.
          segment: Number of the segment that reads.
          row: Row of the batch. It must hold one document from its start.
          even: Whether to compute the positions as if every update had been even.

        Returns:
          Positions `[written segments, length]`, oldest segment first.
        """
        updates = np.flatnonzero(self.updated[layer, : segment + 1, row])
        if not len(updates):
            return np.zeros((0, self.mean.shape[-1]))
        sampled = None if even or self.positions is None else self.positions[layer, updates[1:], row]
        return token_positions(len(updates), self.mean.shape[-1], self.contraction, sampled)

    def token_attention(
        self, layer: int, segment: int, token: int, row: int = 0
    ) -> Float[np.ndarray, "heads written length"]:
        """Computes the attention mass of one query, a token of a segment, on the part of the signal that is nearest to
        each written token (`token_space`), `[heads, written segments, length]`. `layer` is an index into `layers`.

        Args:
          layer: Index into `layers`.
          segment: Number of the query's segment.
          token: Position of the query in its segment.
          row: Row of the batch.

        Returns:
          Masses `[heads, written segments, length]`.
        """
        places = self.token_places(layer, segment, row)
        at = (layer, segment, row, slice(None), token)
        masses = attend_places(self.mean[at], self.variance[at], places.ravel())
        return masses.reshape(*masses.shape[:-1], *places.shape)


def slot_map(
    model: Memformer,
    params: Any,
    tokens: Int[Array, "segments batch length"],
    *,
    start_of_document: Bool[Array, "segments batch"],
    mask: Bool[Array, "segments batch length"] | None = None,
) -> SlotMap:
    """Runs a Memformer over the token ids of consecutive segments, `[segments, batch, length]`, and returns its
    attention to and from the memory slots as a `SlotMap`.

    Args:
      model: Memformer with a memory.
      params: Parameters of the model.
      tokens: Token ids of consecutive segments, `[segments, batch, length]`.
      start_of_document: Whether a row begins a document with the segment, `[segments, batch]`.
      mask: Whether each token is real, `[segments, batch, length]`. None if all are.

    Raises:
      NotProvided: The model has no slots.
    """
    if model.encoder is None or not model.encoder.num_slots:
        raise NotProvided("model: given a Memformer without memory, allowed: one with num_slots of 1 or more")
    tracking = model.clone(encoder=model.encoder.clone(track_attention=True))
    arrays = _record_arrays(tracking, params, tokens, start_of_document, mask)
    norms = np.linalg.norm(np.asarray(params["encoder"]["forgetting"], np.float64), axis=-1)
    writer, shares, reader = (arrays[f"memformer/{name}"] for name in ("writer", "shares", "reader"))
    return SlotMap(writer, shares, reader, norms)


def signal_map(
    model: LanguageModel,
    params: Any,
    tokens: Int[Array, "segments batch length"],
    *,
    start_of_document: Bool[Array, "segments batch"],
    mask: Bool[Array, "segments batch length"] | None = None,
) -> SignalMap:
    """Runs an infinity-former over the token ids of consecutive segments, `[segments, batch, length]`, and returns
    where its queries look in the signal as a `SignalMap`.

    Args:
      model: Language model with an infinity-former signal in its layers.
      params: Parameters of the model.
      tokens: Token ids of consecutive segments, `[segments, batch, length]`.
      start_of_document: Whether a row begins a document with the segment, `[segments, batch]`.
      mask: Whether each token is real, `[segments, batch, length]`. None if all are.

    Raises:
      ValueError: No layer has a signal, or the signal is reset inside documents (`reset_after_tokens`).
    """
    layers, signal = long_term_layers(model)
    if signal.reset_after_tokens:
        length = signal.reset_after_tokens
        raise ValueError(f"reset_after_tokens: given {length}, allowed: None for a map of the signal")
    tracking = with_long_term_fields(model, track_attention=True)
    arrays = _record_arrays(tracking, params, tokens, start_of_document, mask)
    stacked = lambda name: np.stack([arrays[f"layer_{layer:02d}/infinity_former/{name}"] for layer in layers])
    entered, sticky = stacked("entered"), signal.sticky != "none"
    real = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask)
    return SignalMap(
        layers,
        stacked("mean"),
        stacked("variance"),
        stacked("tokens"),
        entered,
        stacked("positions") if sticky else None,
        signal.contraction,
        real[None] & _holds_tokens(np.any(entered, axis=-1), np.asarray(start_of_document))[..., None],
    )


def long_term_layers(model: Model) -> tuple[tuple[int, ...], LongTermMemory]:
    """Returns the numbers of all layers of a model with an infinity-former signal, from 0, and the `LongTermMemory`
    module of the first of them.

    Args:
      model: Model with a stack of layers.

    Raises:
      NotProvided: No layer has a signal.
    """
    layers: Any = model.stack.layers if model.has_stack else ()
    parts = enumerate(layer.attention for layer in layers)
    memories = {index: part.long_term for index, part in parts if isinstance(part, InfinityFormerAttention)}
    if not memories:
        raise NotProvided("model: given a model without infinity-former, allowed: one with it in some layer")
    return tuple(memories), next(iter(memories.values()))


def with_long_term_fields(model: LanguageModel, **fields: Any) -> LanguageModel:
    """Returns a copy of a model in which all long-term memories (infinity-former) have the given `fields`, such as
    `sticky`. It takes the parameters of `model`.

    Args:
      model: Language model with a signal in its layers.
      **fields: New values of fields of `memjax.memory.infinity_former.LongTermMemory`, such as `sticky="quantile"`.
    """

    def change_layer(layer: Any) -> Any:
        if not isinstance(layer.attention, InfinityFormerAttention):
            return layer
        return layer.clone(attention=layer.attention.clone(long_term=layer.attention.long_term.clone(**fields)))

    return model.clone(stack=model.stack.clone(layers=tuple(change_layer(layer) for layer in model.stack.layers)))


def token_space(places: Float[np.ndarray, " tokens"]) -> Float[np.ndarray, " tokens"]:
    """Computes the share of [0, 1] that is nearer to each of the positions `places` than to any other, `[tokens]`.
    Tokens at equal positions share it equally.

    Args:
      places: Positions of the tokens in [0, 1], in any order, `[tokens]`.

    Example:
      >>> print(token_space(np.array([0.1, 0.5, 0.7, 0.7])))
      [0.3 0.3 0.2 0.2]
    """
    edges, which, counts = _cells(places)
    return (np.diff(edges) / counts)[which]


def attend_places(
    mean: Float[np.ndarray, "*queries"], variance: Float[np.ndarray, "*queries"], places: Float[np.ndarray, " tokens"]
) -> Float[np.ndarray, "*queries tokens"]:
    """Computes the mass of each query's Gaussian density in the space of each token (`token_space`),
    `[*queries, tokens]`. `places` are the positions of the tokens. Mass outside [0, 1] is ignored.

    Args:
      mean: Mean of each query's density, `[*queries]`.
      variance: Variance of each query's density, above 0, `[*queries]`.
      places: Positions of the tokens in [0, 1], in any order, `[tokens]`. See `token_space` for their space.

    Example:
      >>> print(attend_places(np.array(0.25), np.array(1e-4), np.array([0.25, 0.75])).round(3))
      [1. 0.]
    """
    edges, which, counts = _cells(places)
    wide = np.asarray(mean, np.float64)[..., None], np.sqrt(np.asarray(variance, np.float64))[..., None]
    below = np.asarray(jax.scipy.special.ndtr(jnp.asarray((edges - wide[0]) / wide[1])), np.float64)
    return (np.diff(below, axis=-1) / counts)[..., which]


def _cells(places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the borders between neighbouring positions, the cell of each token and the tokens in each cell."""
    distinct, which, counts = np.unique(np.asarray(places, np.float64), return_inverse=True, return_counts=True)
    edges = np.concatenate([[0.0], (distinct[1:] + distinct[:-1]) / 2, [1.0]]) if len(distinct) else np.zeros(1)
    return edges, which, counts


def _holds_tokens(updated: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns whether the signal holds tokens of the current document, `[layers, segments, batch]`."""
    filled, now = np.zeros_like(updated), np.zeros(updated[:, 0].shape, bool)
    for segment, start in enumerate(starts):
        now = (now & ~start) | updated[:, segment]
        filled[:, segment] = now
    return filled


def _record_arrays(
    model: Any, params: Any, tokens: Array, start_of_document: Array, mask: Array | None
) -> dict[str, np.ndarray]:
    """Runs a model over segments and returns `Aux.arrays` of all of them, stacked along axis 0."""
    mask = jnp.ones(tokens.shape, bool) if mask is None else jnp.asarray(mask)

    @jax.jit
    def run_segments(params: Any) -> dict[str, Array]:
        def step(state: Any, segment: Any) -> tuple[Any, dict[str, Array]]:
            ids, start, real = segment
            settings = {"start_of_document": start, "mask": real}
            _, state, aux = model.apply({"params": params}, ids, state, **settings)
            return state, aux.arrays

        segments = (jnp.asarray(tokens), jnp.asarray(start_of_document), mask)
        return jax.lax.scan(step, model.init_state(tokens.shape[1]), segments)[1]

    return jax.tree.map(np.asarray, run_segments(params))
