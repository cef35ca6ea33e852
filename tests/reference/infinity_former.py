"""The long-term memory of infinity-former in float64 with loops, one document, one layer.

Written from Martins et al. 2022, https://arxiv.org/abs/2109.00301, with the positions and the padding of the published
code.
"""

import math

import numpy as np


def psi(t, centers, widths):
    return np.array(
        [
            math.exp(-0.5 * ((t - c) / w) ** 2) / (w * math.sqrt(2 * math.pi))
            for c, w in zip(centers, widths, strict=True)
        ]
    )


def regression(positions, values, centers, widths, ridge):
    """Coefficients of the signal with these values at these positions, by normal equations."""
    functions = np.stack([psi(t, centers, widths) for t in positions])  # [p, n]
    return np.linalg.solve(functions.T @ functions + ridge * np.eye(len(centers)), functions.T @ values)


def gate(x, kernel, bias):
    """A convolution over three positions, and its sigmoid times the input."""
    gated = np.zeros_like(x)
    for i in range(len(x)):
        total = bias.copy()
        for offset in (-1, 0, 1):
            if 0 <= i + offset < len(x):
                total = total + x[i + offset] @ kernel[offset + 1]
        gated[i] = x[i] / (1 + np.exp(-total))
    return gated


def fit(tokens, centers, widths, ridge):
    """Tokens at (i - 1/2) / L, zeros around them (an even number of tokens)."""
    length = len(tokens)
    shift = 1 / (2 * length)
    positions = np.linspace(-0.5 + shift, 1.5 - shift, 2 * length)
    zeros = np.zeros((length // 2, tokens.shape[1]))
    return regression(positions, np.concatenate([zeros, tokens, zeros]), centers, widths, ridge)


def contract(coefficients, tokens, centers, widths, ridge, tau, places):
    """The old signal at `places` goes to [0, tau], the tokens to (tau, 1]."""
    length, samples = len(tokens), len(places)
    past = np.stack([psi(t, centers, widths) @ coefficients for t in places])
    positions = [tau * m / samples for m in range(1, samples + 1)]
    positions += [tau + (1 - tau) * i / length for i in range(1, length + 1)]
    shift = 1 / (2 * length + samples)
    around = np.linspace(-0.5 + shift, 1.5 - shift, 2 * (length + samples))
    before, after = [t for t in around if t < 0], [t for t in around if t > 1]
    zeros = lambda some: np.zeros((len(some), tokens.shape[1]))
    values = np.concatenate([zeros(before), past, tokens, zeros(after)])
    return regression([*before, *positions, *after], values, centers, widths, ridge)


def attend(queries, coefficients, params, centers, widths, min_variance, begin_stddev):
    """Output `[L, dim]` and the mean and variance of every query and head.

    With `begin_stddev` a query whose scores are 0 has this standard deviation and the middle of its head's part.
    """
    length, heads, head_dim = queries.shape
    outputs, found = np.zeros((length, params["output"].shape[-1])), np.zeros((length, heads, 2))
    for h in range(heads):
        keys, values = coefficients @ params["key"][:, h], coefficients @ params["value"][:, h]
        for i in range(length):
            scores = keys @ queries[i, h] / math.sqrt(head_dim)
            of_mean, of_variance = scores @ params["affine"][0], scores @ params["affine"][1]
            if begin_stddev is not None:
                middle = (2 * h + 1) / (2 * heads)
                of_mean += math.log(middle / (1 - middle))
                of_variance += math.log(math.exp(begin_stddev**2) - 1)
            mean = 1 / (1 + math.exp(-of_mean))
            variance = max(math.log1p(math.exp(of_variance)), min_variance)
            expected = psi(mean, centers, [math.sqrt(variance + w**2) for w in widths])
            outputs[i] += (expected @ values) @ params["output"][h]
            found[i, h] = mean, variance
    return outputs, found


def masses(found, bins):
    """Histogram of the densities of all queries and heads over [0, 1]."""
    counts = np.zeros(bins)
    for mean, variance in found.reshape(-1, 2):
        below = lambda t, m=mean, v=variance: 0.5 * (1 + math.erf((t - m) / math.sqrt(2 * v)))
        counts += [below((b + 1) / bins) - below(b / bins) for b in range(bins)]
    return counts


def quantiles(counts, samples):
    """Positions below which (m - 1/2) / M of the mass lies."""
    until = np.concatenate([[0], np.cumsum(counts / counts.sum())])
    return [np.interp((m + 0.5) / samples, until, np.linspace(0, 1, len(until))) for m in range(samples)]


def long_term_memory(
    queries, hidden, params, *, centers, widths, samples, tau, ridge, bins, sticky, min_variance, begin_stddev=None
):
    """Outputs of each segment: segment s reads a signal that holds the segments before it.

    Args:
      queries: `[segments, L, heads, head_dim]`.
      hidden: `[segments, L, dim]`, what each segment stores.
    """
    coefficients, counts, outputs, divergences = None, None, [], []
    for s in range(len(queries)):
        if s > 0:
            tokens = gate(hidden[s - 1], params["gate_kernel"], params["gate_bias"])
            if coefficients is None:
                coefficients = fit(tokens, centers, widths, ridge)
            else:
                places = quantiles(counts, samples) if sticky else [m / samples for m in range(1, samples + 1)]
                coefficients = contract(coefficients, tokens, centers, widths, ridge, tau, places)
        if coefficients is None:
            outputs.append(np.zeros((len(hidden[s]), hidden.shape[-1])))
            divergences.append(0.0)
            continue
        y, found = attend(queries[s], coefficients, params, centers, widths, min_variance, begin_stddev)
        counts = masses(found, bins)
        outputs.append(y)
        ratio = found[..., 1] / 0.05**2
        divergences.append(0.5 * (ratio - np.log(ratio) - 1).mean())
    return np.stack(outputs), np.array(divergences)
