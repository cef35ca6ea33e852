"""Growing a trained model in width and depth without changing what it computes: functions on trees of parameters.

Qin et al. 2022, "ELLE: Efficient Lifelong Pre-training for Emerging Data", https://arxiv.org/abs/2203.06311, after
Net2Net (Chen et al. 2016, https://arxiv.org/abs/1511.05641) and bert2BERT (Chen et al. 2022,
https://arxiv.org/abs/2110.07143).

Every entry of a wider array is a copy of an entry of the smaller array (`Sources`). Outputs of a matrix are copied.
Where the inputs of a matrix have grown, each of its rows is divided by the number of copies of the input that it
multiplies, so that the sum over the copies stays the same. Parameters name their axes (`memjax.axes`), so one rule
serves all of them: `embed` is the residual stream, which all layers share, and `heads` and `mlp` are widths of a layer.

Differs from the paper: the expansion is exact. Norms weigh the copies of an entry by their number (`WeightedNorm`),
noise sums to zero over the copies of one source, and copies of layers may begin as identities. The paper has ordinary
norms, noise on every row that has copies, and plain copies of layers, so that its expansion changes the output.
`memjax.config.ELLE.as_published` makes settings for the paper's version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.tree_util import GetAttrKey
from jaxtyping import Array

from memjax.axes import Names, parameter_names
from memjax.lifelong.growth_sources import FLAT_HEADS, HEADS, Growth, Sources, copy_counts
from memjax.memory.layer_parts import NORM_WEIGHTS
from memjax.models.transformer import join_collection, split_collection
from memjax.training.named_arrays import flatten

Noise = Literal["zero_sum", "paper", "code", "none"]
Depth = Literal["identity", "copy"]
TRANSPOSED = ("vocabulary/output",)
"""Paths of the matrices whose last axis is their input."""
ENTRIES = "vocabulary/embedding"


# Arrays


class _LeafGrowth(NamedTuple):
    """The plan by which one array grows.

    Attributes:
      axes: Old index of each new entry, by the number of the axis that grows.
      counts: Number of copies that each new entry has, by the number of the axis.
      read: Number of the input axis, whose entries are divided by their number of copies. None if entries are only
        copied.
    """

    axes: dict[int, np.ndarray]
    counts: dict[int, np.ndarray]
    read: int | None

    def copy_entries(self, leaf: Any) -> Any:
        """Returns an array with its entries copied along all axes that grow."""
        for axis, index in self.axes.items():
            leaf = jnp.take(leaf, index, axis=axis)
        return leaf

    def along_axis(self, values: np.ndarray, axis: int, leaf: Any) -> Any:
        """Reshapes numbers, one for each entry of `axis`, so that they broadcast against `leaf`."""
        return jnp.asarray(values.reshape((1,) * axis + (-1,) + (1,) * (leaf.ndim - 1 - axis)), leaf.dtype)


def _plan_growth(
    path: str, shape: tuple[int, ...], names: Names, widths: Mapping[str, Sources], head_dim: int
) -> _LeafGrowth:
    """Plans how the array of a path grows, from its old shape, the names of its axes, and their sources."""
    axes, numbers = {}, {}
    growing = [axis for axis, name in enumerate(names.axes) if name in widths]
    for axis in growing:
        name = names.axes[axis]
        sources, inner = widths[str(name)], head_dim if name == FLAT_HEADS else 1
        old = int(sources.max()) + 1
        outer, rest = divmod(shape[axis], old * inner)
        if rest:
            raise ValueError(f"{path}: given {shape[axis]} entries of {name}, allowed: a multiple of {old * inner}")
        blocks = np.arange(outer)[:, None, None] * old * inner
        axes[axis] = (blocks + sources[None, :, None] * inner + np.arange(inner)).reshape(-1)
        numbers[axis] = np.tile(np.repeat(copy_counts(sources), inner), outer)
    read = None
    if path in TRANSPOSED:
        read = len(shape) - 1
    elif 0 in growing and (
        len(growing) > 1 or (len(shape) > 1 and names.axes[0] != HEADS)
    ):  # a bias of heads has two axes
        read = 0
    return _LeafGrowth(axes, numbers, read)


def _add_noise(leaf: Any, plan: _LeafGrowth, how: Noise, stddev: float, random: np.random.Generator) -> Any:
    """Adds noise to the rows of a matrix whose inputs have copies; see `expand_params` for its kinds."""
    assert plan.read is not None
    sources, numbers = plan.axes[plan.read], plan.counts[plan.read]
    added = np.moveaxis(random.normal(scale=stddev, size=leaf.shape), plan.read, 0)
    if how == "zero_sum":
        sums = np.zeros((int(sources.max()) + 1, *added.shape[1:]))
        np.add.at(sums, sources, added)
        added -= sums[sources] / numbers.reshape((-1,) + (1,) * (added.ndim - 1))
    firsts = np.zeros(len(sources), bool)
    firsts[np.unique(sources, return_index=True)[1]] = True
    added[(numbers == 1) | (firsts if how == "code" else False)] = 0
    return leaf + jnp.asarray(np.moveaxis(added, 0, plan.read), leaf.dtype)


Change = Callable[[str, Any, _LeafGrowth], Any]


def _map_widths(
    tree: Mapping[str, Any],
    names: Mapping[str, Any],
    growth: Growth,
    head_dim: int,
    change: Change,
) -> dict[str, Any]:
    """Applies `change(path, leaf, plan)` to every leaf of a collection that is split by layer.

    Args:
      tree: The collection.
      names: Names of the axes of every leaf, in the structure of `tree`.
      growth: Sources of all widths.
      head_dim: Width of an attention head.
      change: Function that returns the new leaf.
    """
    flat, axes = flatten(tree), flatten(names)
    changed = {}
    for path, leaf in flat.items():
        widths = growth.widths(_layer_of(path))
        changed[path] = change(path, leaf, _plan_growth(path, leaf.shape, axes[path], widths, head_dim))
    return unflatten_dict(changed, sep="/")


def _layer_of(path: str) -> int | None:
    """Returns the number of the layer that a parameter belongs to, or None if it belongs to no layer."""
    part = next((part for part in path.split("/") if part.startswith("layer_") and part[6:].isdigit()), None)
    return None if part is None else int(part[6:])


def expand_params(
    params: Mapping[str, Any],
    names: Mapping[str, Any],
    growth: Growth,
    *,
    head_dim: int,
    noise: Noise = "zero_sum",
    stddev: float = 0.01,
    seed: Any = 0,
    divided: str = "",
    factor: float = 1.0,
) -> dict[str, Any]:
    """Returns the parameters of a wider model that computes the same with as many layers. `names` are the names of all
    axes, `divided` the path of a norm whose scale is divided, `factor` one of the embeddings.

    The number of layers stays. See `copy_layers` for adding layers.

    Args:
      params: Parameters split by layer (`split_collection`), in float32 or a more precise type.
      names: Names of the axes of every parameter, in the structure of `params`.
      growth: Sources of all widths.
      head_dim: Width of an attention head, which does not grow.
      noise: Noise on the rows of matrices, so that copies learn different things. "zero_sum" sums to zero over the
        copies of one source, which is exact. "paper" is noise on all rows that have copies, "code" on the copies
        alone. "none" adds no noise.
      stddev: Standard deviation of the noise.
      seed: Seed of the noise, anything that `numpy.random.default_rng` takes.
      divided: Beginning of the path of the norm in front of the output weights, for models whose output weights are
        their input embeddings. The scale of this norm is divided by the numbers of copies, because the embeddings
        cannot be. Empty for other models.
      factor: Factor for the input embeddings, for a bigger model that multiplies them by another number than the
        smaller one.
    """
    random = np.random.default_rng(seed)

    def change(path: str, leaf: Any, plan: _LeafGrowth) -> Any:
        new = plan.copy_entries(leaf)
        if plan.read is not None:
            numbers = plan.counts[plan.read]
            new = new / plan.along_axis(numbers, plan.read, new)
            if noise != "none" and (numbers > 1).any():
                new = _add_noise(new, plan, noise, stddev, random)
        elif divided and path.startswith(divided):
            new = new / plan.along_axis(plan.counts[0], 0, new) / factor
        return new * factor if path == ENTRIES and factor != 1 else new

    return _map_widths(params, names, growth, head_dim, change)


def copy_layers(layers: Mapping[str, Any], growth: Growth, depth: Depth = "copy") -> dict[str, Any]:
    """Returns the parameters of a deeper model, whose layers are copies of those in the tree `layers`. `depth` "copy"
    leaves copies equal to their sources, "identity" lets added layers return their input.

    Args:
      layers: Tree with `layer_00`, `layer_01`, ... of the old number of layers in its entry `stack`.
      growth: Growth whose `layers` name the source of every layer of the deeper model.
      depth: First values of the copies. "copy" leaves them equal to their sources (the paper). "identity" sets the
        output matrices and biases of their attention and feed-forward parts to 0, so that a pre-norm layer returns
        its input.
    """
    stack = layers.get("stack", {})
    new_stack = {name: part for name, part in stack.items() if not name.startswith("layer_")}
    for place, old in enumerate(growth.layers):
        if f"layer_{old:02d}" in stack:
            silent = depth == "identity" and place in growth.added
            new_stack[f"layer_{place:02d}"] = (
                _zero_residual_outputs(stack[f"layer_{old:02d}"]) if silent else stack[f"layer_{old:02d}"]
            )
    return {**layers, "stack": new_stack} if "stack" in layers else dict(layers)


def _zero_residual_outputs(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a layer with those set to 0 that write to the residual stream."""
    zeroed = ("attention/output", "attention/output_bias", "feed_forward/narrow/kernel", "feed_forward/narrow/bias")
    flat = flatten(layer)
    return unflatten_dict(
        {path: jnp.zeros_like(leaf) if path in zeroed else leaf for path, leaf in flat.items()}, sep="/"
    )


def norm_entry_weights(before: Any, sources: Sources) -> Array:
    """Returns the weights of the entries in the norms of a wider model: copies share the weight of their source.
    `before` are the weights in the smaller model, `sources` the index that each entry copies.

    Args:
      before: Weights `[width]` in the norms of the smaller model. All are `1 / width` for ordinary norms.
      sources: Sources of the residual stream, integers `[new width]`.

    Returns:
      Floats `[new width]`.

    Example:
      >>> print(norm_entry_weights(np.array([0.5, 0.5], np.float32), np.array([0, 1, 0])))
      [0.25 0.5  0.25]
    """
    before = jnp.asarray(before)
    return before[sources] / copy_counts(sources).astype(before.dtype)


# Models


def expand(
    variables: Mapping[str, Any],
    model: Any,
    bigger: Any,
    growth: Growth,
    *,
    make: Callable[[Any], Any],
    noise: Noise = "zero_sum",
    stddev: float = 0.01,
    seed: Any = 0,
    depth: Depth = "copy",
    factor: float = 1.0,
) -> dict[str, Any]:
    """Returns variables of the Linen model `bigger`, with which it computes the same as the smaller `model` with
    `variables`. `make(model)` returns new variables of a model, of which only names and shapes are used.

    This is exact with `WeightedNorm`, or if all entries of the residual stream have equally many copies. It also takes
    noise "zero_sum" or "none", and no copied layers or pre-norm ones with depth "identity". Compare without dropout.

    Args:
      variables: Variables of the smaller model.
      model: The smaller Linen model.
      bigger: The bigger Linen model, of the same configuration with other sizes. If only the bigger model has output
        weights of its own, they begin as the divided embeddings.
      growth: Sources of all widths and layers.
      make: `make(model)` returns new variables of a model. It is only traced, for names and shapes.
      noise: Kind of noise on the rows of matrices. See `expand_params`.
      stddev: Standard deviation of the noise.
      seed: Seed of the noise.
      depth: First values of copied layers, "copy" or "identity". See `copy_layers`.
      factor: Factor for the input embeddings. See `expand_params`.

    Raises:
      ValueError: an expanded array has another shape than the array of the bigger model. The message names the first.
    """
    groups = model.layer_groups()
    by_layer = lambda variables: {part: split_collection(tree, groups) for part, tree in variables.items()}
    names, split = by_layer(parameter_names(lambda: make(model))), by_layer(variables)
    shapes, head_dim = jax.eval_shape(lambda: make(bigger)), model.stack.layers[0].attention.head_dim
    tied, untied = TRANSPOSED[0] not in flatten(split["params"]), TRANSPOSED[0] in flatten(shapes["params"])
    options: dict[str, Any] = {"noise": noise, "stddev": stddev, "seed": seed, "factor": factor}
    options["divided"] = scaled_norm_path(variables["params"], model, shapes["params"])
    params = expand_params(split["params"], names["params"], growth, head_dim=head_dim, **options)
    if tied and untied:
        params["vocabulary"]["output"] = params["vocabulary"]["embedding"] / factor / copy_counts(growth.embed)[None]
    expanded = {"params": copy_layers(params, growth, depth)}
    for part in split.keys() - expanded.keys():
        constant = functools.partial(_expand_constant, sources=growth.embed)
        expanded[part] = copy_layers(_map_widths(split[part], names[part], growth, head_dim, constant), growth)
    expanded = {part: join_collection(tree, bigger.layer_groups()) for part, tree in expanded.items()}
    return _with_norm_weights(expanded, shapes, growth)


def scaled_norm_path(params: Mapping[str, Any], model: Any, bigger: Mapping[str, Any]) -> str:
    """Returns the beginning of the path of the norm in front of the output weights, whose scale a growth divides, if
    both models tie these weights to the embeddings. '' if not. `bigger` are parameters or their shapes.

    Args:
      params: Parameters of the smaller model.
      model: The smaller Linen model.
      bigger: Parameters of the bigger model, or their shapes.

    Returns:
      A path, or '' if one of the models has output weights of its own.

    Raises:
      ValueError: the models tie their output weights and have no norm in front of them.
    """
    tied = all(name not in flatten(tree) for tree in (params, bigger) for name in TRANSPOSED)
    return model.output_norm() if tied else ""


def _expand_constant(path: str, leaf: Any, plan: _LeafGrowth, *, sources: Sources) -> Any:
    """Widens an array that is not a parameter: copies share the weights of norms, other arrays are copied."""
    return norm_entry_weights(leaf, sources) if path.endswith(NORM_WEIGHTS) else plan.copy_entries(leaf)


def _with_norm_weights(expanded: dict[str, Any], shapes: Mapping[str, Any], growth: Growth) -> dict[str, Any]:
    """Adds the weights of norms that were ordinary ones before, and checks all shapes against the bigger model."""
    wanted = flatten(shapes)
    arrays = flatten(expanded)
    old, dtype = int(growth.embed.max()) + 1, next(iter(arrays.values())).dtype
    for path, shape in wanted.items():
        if path.endswith(NORM_WEIGHTS) and path not in arrays:
            equal = np.full(old, 1 / old, jnp.promote_types(dtype, jnp.float32))
            weights = norm_entry_weights(equal, growth.embed)
            arrays[path] = jnp.tile(weights, (*shape.shape[:-1], 1)) if shape.ndim > 1 else weights
    for path in {**wanted, **arrays}:
        wanted_leaf, leaf = wanted.get(path), arrays.get(path)
        shown = ["none" if array is None else str(tuple(array.shape)) for array in (leaf, wanted_leaf)]
        if shown[0] != shown[1]:
            raise ValueError(f"expansion: {path} given as {shown[0]}, allowed: {shown[1]}, as the bigger model has it")
    return unflatten_dict({path: arrays[path] for path in wanted}, sep="/")


def expand_moments(
    opt_state: Any,
    params: Any,
    grow: Callable[[Any, int], Any],
    fresh: Any,
) -> Any:
    """Returns the optimiser state of a grown model, in which copies continue with the moments of their sources.
    `grow(tree, power)` expands a tree of moments. `fresh` is a new state of the right shapes.

    In a model that computes the same, an entry that is one of n copies has an n-th of the gradient of its source,
    where n counts the copies over all axes but the input axis. So first moments are divided by n, and second moments
    by its square.

    Args:
      opt_state: State of the optimiser before the growth.
      params: Parameters before the growth. Moments are found by their structure, which is that of the parameters.
      grow: `grow(tree, power)` expands a tree of gradients to the given power. See `expand_gradients`.
      fresh: First state of the optimiser for the bigger model.

    Raises:
      ValueError: moments have other shapes than the parameters, or the expanded state has other shapes than `fresh`.
    """
    like = jax.tree.structure(params)
    is_moment = lambda node: jax.tree.structure(node) == like
    place = {"mu": 1, "nu": 2, "trace": 1}
    unlike = "moments: given an optimiser whose state has other shapes, allowed: fresh moments"

    def change(path: Any, node: Any) -> Any:
        if not is_moment(node):
            return node
        if jax.tree.map(jnp.shape, node) != jax.tree.map(jnp.shape, params):
            raise ValueError(unlike)
        fields = [key.name for key in path if isinstance(key, GetAttrKey) and key.name in place]
        return grow(node, place[fields[-1] if fields else "mu"])

    expanded = jax.tree_util.tree_map_with_path(change, opt_state, is_leaf=is_moment)
    if jax.tree.map(jnp.shape, expanded) != jax.tree.map(jnp.shape, fresh):
        raise ValueError(unlike)
    return expanded


def expand_gradients(
    gradients: Mapping[str, Any],
    names: Mapping[str, Any],
    growth: Growth,
    *,
    head_dim: int,
    power: int = 1,
    divided: str = "",
    factor: float = 1.0,
) -> dict[str, Any]:
    """Returns the gradients, or moments, of a wider model from those of the narrower model that computes the same.
    `names` are the names of all axes. `power` is 1 for gradients and first moments, 2 for second moments.

    Entries are copied, and divided by the number of copies along all axes but the input axis. The gradients of tied
    embeddings are not exact: as input and as output weights they would grow in two ways, and here they grow as inputs.

    Args:
      gradients: Gradients, or their moments, split by layer (`split_collection`).
      names: Names of the axes of every parameter, in the structure of `gradients`.
      growth: Sources of all widths.
      head_dim: Width of an attention head, which does not grow.
      power: Power that the gradients were raised to: 1 for first moments, 2 for second moments.
      divided: Beginning of the path of the norm that is divided, or ''. See `expand_params`.
      factor: Factor of the input embeddings. See `expand_params`.
    """
    is_divided = lambda path: bool(divided) and path.startswith(divided)

    def change(path: str, leaf: Any, plan: _LeafGrowth) -> Any:
        new = plan.copy_entries(leaf)
        for axis, number in plan.counts.items():
            if axis != plan.read and not is_divided(path):
                new = new / plan.along_axis(number.astype(np.float64) ** power, axis, new)
        if factor == 1:
            return new
        return new / factor**power if path == ENTRIES else new * factor**power if is_divided(path) else new

    return _map_widths(gradients, names, growth, head_dim, change)
