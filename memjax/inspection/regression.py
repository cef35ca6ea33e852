"""How well the signal of infinity-former holds what was written to it.

Martins et al. 2022, https://arxiv.org/abs/2109.00301, section 4.1 and figure 3: with fewer basis functions the error of
the regression grows and the model is less often right.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.basis import evaluate_basis, gaussian_basis
from memjax.inspection.memory_maps import SignalMap, long_term_of, signal_map
from memjax.memory.infinity_former import LongTermMemory, update
from memjax.models.language_model import LanguageModel

__all__ = ["RegressionErrors", "regression_errors"]


@dataclasses.dataclass(frozen=True)
class RegressionErrors:
    """Differences between a signal, read where each token stands, and the tokens that were written to it.

    Attributes:
      layers: the layers with a signal, 0-based.
      num_basis: basis functions of each regression.
      squares: `[layers, sizes, updates]`, mean over tokens and features of the squared difference; the last axis is
        the number of updates since the tokens were written, 0 = the last one wrote them.
      variance: `[layers, updates]`, the same with the mean token of the layer instead of the signal.
      tokens: int `[layers, updates]`, tokens that were compared.
    """

    layers: tuple[int, ...]
    num_basis: tuple[int, ...]
    squares: Float[np.ndarray, "layers sizes updates"]
    variance: Float[np.ndarray, "layers updates"]
    tokens: Int[np.ndarray, "layers updates"]

    def relative(self) -> Float[np.ndarray, "layers sizes updates"]:
        """Share of the variance that the signal has lost: 0 = nothing, 1 = no better than the mean token."""
        return self.squares / self.variance[:, None]

    def overall(self) -> Float[np.ndarray, "layers sizes"]:
        """`relative` of all tokens that are in the signal at the end."""
        weights = self.tokens / self.tokens.sum(axis=1, keepdims=True)
        return (self.squares * weights[:, None]).sum(axis=2) / (self.variance * weights).sum(axis=1, keepdims=True)


def regression_errors(
    model: LanguageModel,
    params: Any,
    tokens: Int[Array, "segments batch length"],
    *,
    mask: Bool[Array, "segments batch length"] | None = None,
    num_basis: Sequence[int] = (),
) -> RegressionErrors:
    """Runs an infinity-former over documents and compares its signal with what was written, after the last update.

    The hidden states that were written are those of the model as it is, after the gate. They are fitted anew, update by
    update, with every number of basis functions: with another one than the model's, this is the error of the
    regression, not that of a model that was trained with it. A token is looked up where the updates have moved it
    (`memjax.functional.basis.token_positions`); sticky updates read the past where they did in the run.

    Args:
      model: a language model whose layers have a signal.
      params: its parameters.
      tokens: each row one document from its start, in consecutive segments.
      mask: real tokens; None = all.
      num_basis: numbers of functions, each a multiple of the number of widths; () = the model's.

    Raises:
      ValueError: no layer has a signal, it begins anew inside a document (`reset_after`), a number of functions that
        the widths do not divide, or documents of one segment, of which nothing is written.
    """
    layers, memory = long_term_of(model)
    sizes = tuple(num_basis) or (memory.num_basis,)
    starts = np.zeros(tokens.shape[:2], bool)
    starts[:1] = True
    found = signal_map(model, params, tokens, start_of_document=jnp.asarray(starts), mask=mask)
    if not found.updated.any():
        raise ValueError(f"tokens: given {len(tokens)} segments, allowed: enough to write to the signal and read it")
    signals = {size: np.asarray(_signals(memory, size, found), np.float64) for size in sizes}
    ages = int(found.updated.sum(axis=1).max())
    squares, spread = np.zeros((len(layers), len(sizes), ages)), np.zeros((len(layers), ages))
    counts = np.zeros((len(layers), ages), np.int64)
    for layer in range(len(layers)):
        mean = found.tokens[layer][found.entered[layer]].mean(axis=0, dtype=np.float64)
        for row in range(tokens.shape[1]):
            updates = np.flatnonzero(found.updated[layer, :, row])[::-1]  # as ages: the last one first
            written = np.asarray(found.tokens[layer, updates, row], np.float64)
            entered, seen = found.entered[layer, updates, row], slice(0, len(updates))
            places = found.token_places(layer, len(tokens) - 1, row)[::-1]
            total = lambda difference, entered=entered: ((difference**2).mean(axis=-1) * entered).sum(axis=1)
            counts[layer, seen] += entered.sum(axis=1)
            spread[layer, seen] += total(written - mean)
            for index, size in enumerate(sizes):
                functions = np.asarray(evaluate_basis(gaussian_basis(size, memory.widths), places))
                squares[layer, index, seen] += total(functions @ signals[size][layer, row] - written)
    return RegressionErrors(layers, sizes, squares / counts[:, None], spread / counts, counts)


def _signals(memory: LongTermMemory, num_basis: int, found: SignalMap) -> Float[Array, "layers batch basis dim"]:
    """The coefficients after the last update, of what entered the signal of a run."""
    even = memory.clone(num_basis=num_basis, sticky="none", parent=None)
    further = functools.partial(
        update,
        basis=gaussian_basis(num_basis, memory.widths),
        num_samples=memory.num_samples,
        contraction=memory.contraction,
        ridge=memory.ridge,
        reset_after=None,
    )

    @jax.jit
    def over(segments: Any) -> Array:
        def step(state: Any, segment: Any) -> tuple[Any, None]:
            tokens, entered, positions = segment
            tokens = jnp.where(entered[..., None], tokens, 0)
            return further(dataclasses.replace(state, previous_valid=entered), tokens, positions), None

        return jax.lax.scan(step, even.init_state(found.tokens.shape[2]), segments)[0].coefficients

    positions = [None] * len(found.layers) if found.positions is None else found.positions
    return jnp.stack([over(arrays) for arrays in zip(found.tokens, found.entered, positions, strict=True)])
