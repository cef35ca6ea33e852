"""Measures how well the signal of infinity-former reproduces the tokens that were written to it.

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

from memjax.functional.gaussian_basis import evaluate_basis, gaussian_basis
from memjax.inspection.memory_maps import SignalMap, long_term_layers, signal_map
from memjax.memory.infinity_former import LongTermMemory
from memjax.memory.long_term_signal import update
from memjax.models.language_model import LanguageModel

__all__ = ["RegressionErrors", "regression_errors"]


@dataclasses.dataclass(frozen=True)
class RegressionErrors:
    """Mean squared errors between the signal of an infinity-former, read at each token's position, and the tokens that
    were written to it, by layer, number of basis functions and age.

    Attributes:
      layers: Numbers of the layers with a signal, from 0.
      num_basis: Number of basis functions of each regression.
      squares: Squared error, mean over tokens and features, `[layers, sizes, updates]`. The last axis is the number of
        updates since the tokens were written, 0 for the newest tokens.
      variance: Squared error of the layer's mean token in place of the signal, `[layers, updates]`.
      tokens: Number of compared tokens, int `[layers, updates]`.
    """

    layers: tuple[int, ...]
    num_basis: tuple[int, ...]
    squares: Float[np.ndarray, "layers sizes updates"]
    variance: Float[np.ndarray, "layers updates"]
    tokens: Int[np.ndarray, "layers updates"]

    def relative(self) -> Float[np.ndarray, "layers sizes updates"]:
        """Returns the squared errors as shares of the variance, `[layers, sizes, updates]`. 0 is exact, 1 is no better
        than the mean token.
        """
        return self.squares / self.variance[:, None]

    def overall(self) -> Float[np.ndarray, "layers sizes"]:
        """Returns the relative error over all tokens that are in the signal at the end, for each layer and number of
        basis functions, `[layers, sizes]`.
        """
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
    """Runs an infinity-former over documents, fits its signal again with each number of basis functions in `num_basis`,
    and compares the final signals with the tokens that were written to them.

    The written tokens are hidden states of the unchanged model, after the gate. They are fitted again, update by
    update, with each number of basis functions. For a number other than the model's this measures the error of the
    regression, not of a model that was trained with that number. Each token is looked up at the position to which the
    updates have moved it (`memjax.functional.gaussian_basis.token_positions`). Sticky updates sample the old signal at
    the positions of the model's own run.

    Args:
      model: Language model with an infinity-former signal in its layers.
      params: Parameters of the model.
      tokens: Token ids of consecutive segments, `[segments, batch, length]`. Each row is one document from its start.
      mask: Whether each token is real, `[segments, batch, length]`. None if all are.
      num_basis: Numbers of basis functions, each a multiple of the number of widths. () for the model's own number.

    Raises:
      ValueError: No layer has a signal, the signal is reset inside documents (`reset_after_tokens`), the widths do not
        divide a number of functions, or the documents have a single segment, so that nothing is written.
    """
    layers, memory = long_term_layers(model)
    sizes = tuple(num_basis) or (memory.num_basis,)
    starts = np.zeros(tokens.shape[:2], bool)
    starts[:1] = True
    signal = signal_map(model, params, tokens, start_of_document=jnp.asarray(starts), mask=mask)
    if not signal.updated.any():
        raise ValueError(f"tokens: given {len(tokens)} segments, allowed: enough to write to the signal and read it")
    signals = {size: np.asarray(_fit_signals(memory, size, signal), np.float64) for size in sizes}
    ages = int(signal.updated.sum(axis=1).max())
    squares, variance = np.zeros((len(layers), len(sizes), ages)), np.zeros((len(layers), ages))
    counts = np.zeros((len(layers), ages), np.int64)
    for layer in range(len(layers)):
        mean = signal.tokens[layer][signal.entered[layer]].mean(axis=0, dtype=np.float64)
        for row in range(tokens.shape[1]):
            updates = np.flatnonzero(signal.updated[layer, :, row])[::-1]  # as ages: the last one first
            written = np.asarray(signal.tokens[layer, updates, row], np.float64)
            entered, seen = signal.entered[layer, updates, row], slice(0, len(updates))
            places = signal.token_places(layer, len(tokens) - 1, row)[::-1]
            total = lambda difference, entered=entered: ((difference**2).mean(axis=-1) * entered).sum(axis=1)
            counts[layer, seen] += entered.sum(axis=1)
            variance[layer, seen] += total(written - mean)
            for index, size in enumerate(sizes):
                functions = np.asarray(evaluate_basis(gaussian_basis(size, memory.widths), places))
                squares[layer, index, seen] += total(functions @ signals[size][layer, row] - written)
    return RegressionErrors(layers, sizes, squares / counts[:, None], variance / counts, counts)


def _fit_signals(memory: LongTermMemory, num_basis: int, signal: SignalMap) -> Float[Array, "layers batch basis dim"]:
    """Fits the tokens that entered the signal with `num_basis` functions and returns the final coefficients."""
    even = memory.clone(num_basis=num_basis, sticky="none", parent=None)
    apply_update = functools.partial(
        update,
        basis=gaussian_basis(num_basis, memory.widths),
        num_samples=memory.num_samples,
        contraction=memory.contraction,
        ridge=memory.ridge,
        reset_after=None,
    )

    @jax.jit
    def run_updates(segments: Any) -> Array:
        def step(state: Any, segment: Any) -> tuple[Any, None]:
            tokens, entered, positions = segment
            tokens = jnp.where(entered[..., None], tokens, 0)
            return apply_update(dataclasses.replace(state, previous_valid=entered), tokens, positions), None

        return jax.lax.scan(step, even.init_state(signal.tokens.shape[2]), segments)[0].coefficients

    positions = [None] * len(signal.layers) if signal.positions is None else signal.positions
    return jnp.stack([run_updates(arrays) for arrays in zip(signal.tokens, signal.entered, positions, strict=True)])
