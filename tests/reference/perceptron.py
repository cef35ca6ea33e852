"""A classifier with one hidden layer in float64: its loss, the gradient by the chain rule, and second derivatives.

Parameters are a dict from paths to arrays. Heads are a matrix with a bias, or a vector of every class that is compared
by dot products. A gate, `sigmoid(W2 relu(W1 x + b1) + b2)`, multiplies the input of the head, if there is one.
"""

import numpy as np

KERNEL, BIAS = "layers_0/kernel", "layers_0/bias"
HEAD_KERNEL, HEAD_BIAS, VECTORS = "head/classifier/kernel", "head/classifier/bias", "head/vectors"
GATE = ("gate/first/kernel", "gate/first/bias", "gate/second/kernel", "gate/second/bias")


def flatten(tree, prefix="") -> dict[str, np.ndarray]:
    """The float64 arrays of nested dicts, by their paths."""
    if not hasattr(tree, "items"):
        return {prefix[:-1]: np.asarray(tree, np.float64)}
    return {path: leaf for key in tree for path, leaf in flatten(tree[key], f"{prefix}{key}/").items()}


def step(params, direction, rate, adapted=lambda path: True):
    """`params - rate * direction` where `adapted(path)`, and the others as they are."""
    return {path: leaf - rate * direction[path] if adapted(path) else leaf for path, leaf in params.items()}


def hidden(params, x):
    """The hidden layer `[rows, width]`. Of complex parameters the real part decides where a rectifier is open."""
    before = x @ params[KERNEL] + params[BIAS]
    return before * (before.real > 0)


def gate(params, x):
    """The hidden layer of the gate and the gate, both `[rows, ...]`."""
    before = x @ params[GATE[0]] + params[GATE[1]]
    inner = before * (before.real > 0)
    return inner, 1 / (1 + np.exp(-(inner @ params[GATE[2]] + params[GATE[3]])))


def features(params, x):
    """The input of the head, `[rows, width]`."""
    return hidden(params, x) * gate(params, x)[1] if GATE[0] in params else hidden(params, x)


def probabilities(params, x, allowed=slice(None)):
    """The softmax of the scores, `[rows, classes]`, which is 0 for classes that are not `allowed`."""
    read = features(params, x)
    scores = read @ params[VECTORS].T if VECTORS in params else read @ params[HEAD_KERNEL] + params[HEAD_BIAS]
    raised, few = np.zeros_like(scores), scores[:, allowed]
    raised[:, allowed] = np.exp(few - few.real.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def losses(params, x, y, allowed=slice(None)):
    """The cross-entropy of every row in nats."""
    return -np.log(probabilities(params, x, allowed)[np.arange(len(y)), y])


def gradient(params, x, y, weights=None, allowed=slice(None)):
    """The gradient of the weighted sum of the losses of rows, of their mean by default."""
    weights = np.full(len(y), 1 / len(y)) if weights is None else weights
    slopes = (probabilities(params, x, allowed) - np.eye(num_classes(params))[y]) * weights[:, None]
    return gradient_of_scores(params, x, slopes)


def scores_of(params, x):
    """The scores of a head that is a matrix with a bias, `[rows, classes]`."""
    return features(params, x) @ params[HEAD_KERNEL] + params[HEAD_BIAS]


def gradient_of_scores(params, x, scores):
    """The gradient of a function of the scores of rows, of which `scores` is the derivative, `[rows, classes]`."""
    read, layer = features(params, x), hidden(params, x)
    if VECTORS in params:
        slopes, of_read = {VECTORS: scores.T @ read}, scores @ params[VECTORS]
    else:
        slopes = {HEAD_KERNEL: read.T @ scores, HEAD_BIAS: scores.sum(axis=0)}
        of_read = scores @ params[HEAD_KERNEL].T
    if GATE[0] in params:
        inner, factor = gate(params, x)
        of_second = of_read * layer * factor * (1 - factor)
        of_first = of_second @ params[GATE[2]].T * (inner.real > 0)
        parts = (x.T @ of_first, of_first.sum(axis=0), inner.T @ of_second, of_second.sum(axis=0))
        slopes, of_read = {**slopes, **dict(zip(GATE, parts, strict=True))}, of_read * factor
    of_layer = of_read * (layer.real > 0)
    return {**slopes, KERNEL: x.T @ of_layer, BIAS: of_layer.sum(axis=0)}


def num_classes(params) -> int:
    """The number of classes of the head."""
    return len(params[VECTORS]) if VECTORS in params else len(params[HEAD_BIAS])


def hessian_product(params, direction, x, y, weights=None):
    """The derivative of `gradient` along a direction, exact but for rounding: that of an imaginary step."""
    tiny = 1e-30
    moved = {path: leaf + 1j * tiny * direction[path] for path, leaf in params.items()}
    return {path: leaf.imag / tiny for path, leaf in gradient(moved, x, y, weights).items()}
