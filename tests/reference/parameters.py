"""Random parameters without compiling an initialiser: no bias is zero, no two layers are alike."""

import jax
import jax.numpy as jnp
import numpy as np


def random_params(shapes, seed: int = 0, dtype=np.float64):
    """NumPy arrays for a tree of shapes, as `jax.eval_shape` returns it: norms near 1, matrices by fan-in.

    Args:
      shapes: the tree.
      seed: of the numbers.
      dtype: of the arrays.
    """
    rng = np.random.default_rng(seed)

    def fill(path, leaf) -> np.ndarray:
        names = [entry.key for entry in path]
        noise = rng.normal(size=leaf.shape)
        if names[-1] == "scale":
            return (1 + 0.2 * noise).astype(dtype)
        matrix = names[-1] in ("query", "key", "value", "key_value", "relative", "output", "kernel")
        return (noise * (leaf.shape[0] ** -0.5 if matrix and leaf.ndim > 1 else 0.5)).astype(dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def params_of(module, *args, seed: int = 0, dtype=np.float64, **kwargs):
    """Random parameters of a Linen module for the given call."""
    shapes = jax.eval_shape(lambda: module.init({"params": jax.random.key(0)}, *args, **kwargs))
    return random_params(shapes["params"], seed, dtype)


def as_float64(model):
    """A language model with every part computing in float64 (configurations know float32 and bfloat16 only)."""
    part = lambda module: module.clone(dtype=jnp.float64)
    layers = tuple(
        layer.clone(attention=part(layer.attention), feed_forward=part(layer.feed_forward))
        for layer in model.stack.layers
    )
    return part(model).clone(stack=model.stack.clone(layers=layers), vocabulary=part(model.vocabulary))
