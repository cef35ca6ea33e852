"""An LSTM in float64 loops over rows and tokens, from the equations of its papers."""

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm(
    xs: np.ndarray, params: dict, cell: np.ndarray, hidden: np.ndarray, mask: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One row: `xs` `[length, dim]`, the state `[dim]`; padding is passed over and has the output 0.

    Returns outputs `[length, dim]` and the state after the last real token.
    """
    outputs = []
    for t, x in enumerate(xs):
        if mask is not None and not mask[t]:
            outputs.append(np.zeros_like(hidden))
            continue
        gates = {}
        for gate in "ifgo":
            recurrent = params[f"h{gate}"]
            gates[gate] = x @ params[f"i{gate}"]["kernel"] + hidden @ recurrent["kernel"] + recurrent["bias"]
        cell = sigmoid(gates["f"]) * cell + sigmoid(gates["i"]) * np.tanh(gates["g"])
        hidden = sigmoid(gates["o"]) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs), cell, hidden
