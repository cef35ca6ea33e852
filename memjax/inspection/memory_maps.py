"""What a memory looks at and what it keeps, as arrays: the slots of Memformer, the signal of infinity-former.

Wu et al. 2020, https://arxiv.org/abs/2010.06891, sections 4.5 and figure 5 (slot types); Martins et al. 2022,
https://arxiv.org/abs/2109.00301, section 4.3 and its appendix (histograms, attention per word, space per token).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.basis import bin_masses, token_positions
from memjax.functional.slots import slot_types
from memjax.memory.contract import Absent
from memjax.memory.infinity_former import BesideLongTerm, LongTermMemory
from memjax.models.contract import Model
from memjax.models.language_model import LanguageModel
from memjax.models.memformer import Memformer

__all__ = ["SignalMap", "SlotMap", "attend_places", "signal_map", "slot_map", "token_space", "with_signal"]


@dataclasses.dataclass(frozen=True)
class SlotMap:
    """Attention from and to the slots of a Memformer, segment by segment.

    Attributes:
      writer: `[segments, batch, heads, slots, 1 + encoded]`, weights of each slot on itself, then on what was encoded:
        the segment before, then the classification tokens.
      shares: `[segments, batch, slots]`, what is left of each slot after the write.
      reader: `[segments, layers, batch, heads, encoded, slots]`, of every layer of the encoder.
      bias_norms: `[slots]`, length of each slot's bias v: how fast it forgets.
    """

    writer: Float[np.ndarray, "segments batch heads slots sources"]
    shares: Float[np.ndarray, "segments batch slots"]
    reader: Float[np.ndarray, "segments layers batch heads encoded slots"]
    bias_norms: Float[np.ndarray, " slots"]

    def type_counts(self) -> Int[np.ndarray, "segments batch 3"]:
        """How many slots retain, aggregate and are rewritten after each segment of each row."""
        return np.stack([kind.sum(axis=-1) for kind in slot_types(self.shares)], axis=-1)


@dataclasses.dataclass(frozen=True)
class SignalMap:
    """Where the queries of an infinity-former look in its signal, segment by segment.

    Attributes:
      layers: the layers with a signal, 0-based: axis 0 of the arrays.
      mean: `[layers, segments, batch, heads, length]`, of each query's density over [0, 1].
      variance: as `mean`.
      tokens: `[layers, segments, batch, length, dim]`, what waited to enter the signal before the segment read it:
        hidden states after the gate, 0 where there is none.
      entered: bool `[layers, segments, batch, length]`, the tokens that did enter it.
      positions: `[layers, segments, batch, samples]`, where a sticky update read the old signal; None where updates are
        even.
      contraction: tau.
      counted: bool `[layers, segments, batch, length]`, real tokens of rows whose signal holds something.
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
        """Whether something entered the signal before the segment read it."""
        return np.any(self.entered, axis=-1)

    def histogram(self, num_bins: int = 128) -> Float[np.ndarray, "layers bins"]:
        """Mean mass of the queries of each layer in equal parts of [0, 1]; what lies outside is left out."""
        sums = []
        for mean, variance, counted in zip(self.mean, self.variance, self.counted, strict=True):
            chosen = np.broadcast_to(counted[:, :, None], mean.shape)
            masses = bin_masses(jnp.asarray(mean[chosen]), jnp.asarray(variance[chosen]), num_bins)
            sums.append(np.asarray(masses).sum(axis=0) / max(len(masses), 1))
        return np.stack(sums)

    def token_places(
        self, layer: int, segment: int, row: int = 0, *, even: bool = False
    ) -> Float[np.ndarray, "written length"]:
        """Where the tokens of each segment that was written stand in [0, 1] when `segment` is read.

        Args:
          layer: index into `layers`.
          segment: that reads.
          row: of the batch; one document, from its start.
          even: where they would stand had every update been even.
        """
        updates = np.flatnonzero(self.updated[layer, : segment + 1, row])
        if not len(updates):
            return np.zeros((0, self.mean.shape[-1]))
        sampled = None if even or self.positions is None else self.positions[layer, updates[1:], row]
        return token_positions(len(updates), self.mean.shape[-1], self.contraction, sampled)

    def token_attention(
        self, layer: int, segment: int, token: int, row: int = 0
    ) -> Float[np.ndarray, "heads written length"]:
        """Mass that one query, and so one prediction, gives to the space of every token in the signal, by head.

        Args:
          layer: index into `layers`.
          segment: of the query.
          token: its place in the segment.
          row: of the batch.
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
    """Runs a Memformer over consecutive segments and keeps its attention to and from the memory.

    Args:
      model: with a memory.
      params: its parameters.
      tokens: of consecutive segments.
      start_of_document: rows that begin a document.
      mask: real tokens; None = all.

    Raises:
      Absent: a model without slots.
    """
    if model.encoder is None or not model.encoder.num_slots:
        raise Absent("model: given a Memformer without memory, allowed: one with num_slots of 1 or more")
    tracking = model.clone(encoder=model.encoder.clone(track_attention=True))
    arrays = _run(tracking, params, tokens, start_of_document, mask)
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
    """Runs an infinity-former over consecutive segments and keeps where its queries look in the signal.

    Args:
      model: a language model whose layers have a signal.
      params: its parameters.
      tokens: of consecutive segments.
      start_of_document: rows that begin a document.
      mask: real tokens; None = all.

    Raises:
      ValueError: no layer has a signal, or the signal begins anew inside a document (`reset_after`).
    """
    layers, signal = long_term_of(model)
    if signal.reset_after:
        raise ValueError(f"reset_after: given {signal.reset_after}, allowed: None for a map of the signal")
    tracking = with_signal(model, track_attention=True)
    arrays = _run(tracking, params, tokens, start_of_document, mask)
    of = lambda name: np.stack([arrays[f"layer_{layer:02d}/infinity_former/{name}"] for layer in layers])
    entered, sticky = of("entered"), signal.sticky != "none"
    real = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask)
    return SignalMap(
        layers,
        of("mean"),
        of("variance"),
        of("tokens"),
        entered,
        of("positions") if sticky else None,
        signal.contraction,
        real[None] & _filled(np.any(entered, axis=-1), np.asarray(start_of_document))[..., None],
    )


def long_term_of(model: Model) -> tuple[tuple[int, ...], LongTermMemory]:
    """The layers of a model with a signal, 0-based, and the long-term memory of the first of them.

    Raises:
      Absent: no layer has one.
    """
    layers: Any = model.stack.layers if model.has_stack else ()
    parts = enumerate(layer.attention for layer in layers)
    found = {index: part.long_term for index, part in parts if isinstance(part, BesideLongTerm)}
    if not found:
        raise Absent("model: given a model without infinity-former, allowed: one with it in some layer")
    return tuple(found), next(iter(found.values()))


def with_signal(model: LanguageModel, **fields: Any) -> LanguageModel:
    """The model with other fields of its long-term memories, such as `sticky="quantile"`; it takes the same parameters.

    Args:
      model: a language model whose layers have a signal.
      **fields: of `memjax.memory.infinity_former.LongTermMemory`.
    """

    def changed(layer: Any) -> Any:
        if not isinstance(layer.attention, BesideLongTerm):
            return layer
        return layer.clone(attention=layer.attention.clone(long_term=layer.attention.long_term.clone(**fields)))

    return model.clone(stack=model.stack.clone(layers=tuple(changed(layer) for layer in model.stack.layers)))


def token_space(places: Float[np.ndarray, " tokens"]) -> Float[np.ndarray, " tokens"]:
    """The share of [0, 1] that is nearer to a token than to any other; tokens at one place share it equally.

    Args:
      places: of the tokens in [0, 1], in any order.

    Example:
      >>> print(token_space(np.array([0.1, 0.5, 0.7, 0.7])))
      [0.3 0.3 0.2 0.2]
    """
    edges, which, counts = _cells(places)
    return (np.diff(edges) / counts)[which]


def attend_places(
    mean: Float[np.ndarray, "*queries"], variance: Float[np.ndarray, "*queries"], places: Float[np.ndarray, " tokens"]
) -> Float[np.ndarray, "*queries tokens"]:
    """Mass of Gaussian densities in the space of each token (`token_space`); what is outside of [0, 1] is left out.

    Args:
      mean: of each query.
      variance: of each query, above 0.
      places: of the tokens in [0, 1], in any order.

    Example:
      >>> print(attend_places(np.array(0.25), np.array(1e-4), np.array([0.25, 0.75])).round(3))
      [1. 0.]
    """
    edges, which, counts = _cells(places)
    wide = np.asarray(mean, np.float64)[..., None], np.sqrt(np.asarray(variance, np.float64))[..., None]
    below = np.asarray(jax.scipy.special.ndtr(jnp.asarray((edges - wide[0]) / wide[1])), np.float64)
    return (np.diff(below, axis=-1) / counts)[..., which]


def _cells(places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Limits between neighbouring places, the cell of every token and the tokens of every cell."""
    found, which, counts = np.unique(np.asarray(places, np.float64), return_inverse=True, return_counts=True)
    edges = np.concatenate([[0.0], (found[1:] + found[:-1]) / 2, [1.0]]) if len(found) else np.zeros(1)
    return edges, which, counts


def _filled(updated: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Whether the signal holds something of the running document, `[layers, segments, batch]`."""
    filled, now = np.zeros_like(updated), np.zeros(updated[:, 0].shape, bool)
    for segment, start in enumerate(starts):
        now = (now & ~start) | updated[:, segment]
        filled[:, segment] = now
    return filled


def _run(model: Any, params: Any, tokens: Array, start_of_document: Array, mask: Array | None) -> dict[str, np.ndarray]:
    """`Aux.arrays` of every segment, with segments at axis 0."""
    mask = jnp.ones(tokens.shape, bool) if mask is None else jnp.asarray(mask)

    @jax.jit
    def over(params: Any) -> dict[str, Array]:
        def step(state: Any, segment: Any) -> tuple[Any, dict[str, Array]]:
            ids, start, real = segment
            settings = {"start_of_document": start, "mask": real}
            _, state, aux = model.apply({"params": params}, ids, state, **settings)
            return state, aux.arrays

        segments = (jnp.asarray(tokens), jnp.asarray(start_of_document), mask)
        return jax.lax.scan(step, model.init_state(tokens.shape[1]), segments)[1]

    return jax.tree.map(np.asarray, over(params))
