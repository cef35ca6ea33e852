"""Growing a trained model in width and depth without changing what it computes: functions on trees of parameters.

Qin et al. 2022, "ELLE: Efficient Lifelong Pre-training for Emerging Data", https://arxiv.org/abs/2203.06311, after
Net2Net (Chen et al. 2016, https://arxiv.org/abs/1511.05641) and bert2BERT (Chen et al. 2022,
https://arxiv.org/abs/2110.07143).

Every entry of a wider array is a copy of one that was there (`Sources`). Where a matrix reads a width that has grown, a
row is divided by the number of copies of what it reads, so that their sum is what it was; what a matrix gives is
copied. Parameters name their axes (`memjax.axes`), so that this is one rule and no table of paths: `embed` is the
residual stream, which all layers share, `heads` and `mlp` are widths of one layer.

Differs from the paper: it is exact. Norms weigh the copies of an entry by their number (`WeightedNorm`), noise adds up
to nothing over the copies of one source, and copies of layers may begin as identities. The paper has the ordinary
norms, noise on every row that has copies, and plain copies of layers, and its expansion changes the output;
`memjax.config.ELLE.as_published` is that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jaxtyping import Array

from memjax.axes import Names, parameter_names
from memjax.memory.projections import NORM_WEIGHTS
from memjax.models.transformer import join_collection, split_collection
from memjax.training.checkpoints import flatten

__all__ = [
    "Growth",
    "Sources",
    "compose",
    "contract",
    "copied_layers",
    "copies",
    "copy_layers",
    "counts",
    "divided_norm",
    "expand",
    "expand_gradients",
    "expand_moments",
    "expand_params",
    "norm_weights",
]

Sources = np.ndarray
"""int `[new width]`: for every new index the old one that it copies"""
Noise = Literal["zero_sum", "paper", "code", "none"]
Depth = Literal["identity", "copy"]
EMBED, HEADS, MLP, FLAT_HEADS = "embed", "heads", "mlp", "flat_heads"
"""names of axes that grow; `flat_heads` are heads and their widths in one axis"""
TRANSPOSED = ("vocabulary/output",)
"""matrices that read their last axis"""
ENTRIES = "vocabulary/embedding"


# Maps


def copies(old: int, new: int, how: Literal["random", "cyclic"] = "random", seed: Any = 0) -> Sources:
    """What each of `new` indices copies: the first `old` themselves, the others any of those, or those in turn.

    Args:
      old: width before.
      new: width after, at least as large.
      how: "random" (uniform) or "cyclic".
      seed: of the random choice, anything that `numpy.random.default_rng` takes.

    Raises:
      ValueError: it is to become narrower.

    Example:
      >>> copies(2, 5, "cyclic").tolist()
      [0, 1, 0, 1, 0]
    """
    if new < old:
        raise ValueError(f"width: given {new}, allowed: at least {old}, what it is already")
    drawn = np.random.default_rng(seed).integers(old, size=new - old) if how == "random" else np.arange(old, new) % old
    return np.concatenate([np.arange(old), drawn])


def counts(sources: Sources) -> np.ndarray:
    """For every new index the number of copies of what it copies.

    Example:
      >>> counts(np.array([0, 1, 2, 0, 0])).tolist()
      [3, 1, 1, 3, 3]
    """
    return np.bincount(sources)[sources]


def compose(first: Sources, second: Sources) -> Sources:
    """The map of two expansions, one after the other. Its counts are counted anew: they are no products.

    Example:
      >>> both = compose(np.array([0, 1, 0]), np.array([0, 1, 2, 0]))
      >>> both.tolist(), counts(both).tolist()
      ([0, 1, 0, 0], [3, 1, 3, 3])
    """
    return np.asarray(first)[np.asarray(second)]


def copied_layers(
    num_layers: int, more: int, left: Sequence[int] = (), seed: Any = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which layer each layer of a deeper model is: its own, and copies, each behind its source.

    Sources are drawn without repetition until all layers were copied; then all may be copied again.

    Args:
      num_layers: layers before.
      more: layers to add.
      left: those that no earlier growth has copied; () = all.
      seed: as in `copies`.

    Returns:
      The source of every new layer, and which of the new layers are left to copy.

    Raises:
      ValueError: more copies than layers.

    Example:
      >>> sources, left = copied_layers(3, 2)
      >>> len(sources), len(set(sources)), len(left)
      (5, 3, 1)
    """
    if not 0 <= more <= num_layers:
        raise ValueError(f"layers: given {num_layers + more}, allowed: {num_layers} to {2 * num_layers}")
    random, chosen = np.random.default_rng(seed), []
    candidates = list(left) or list(range(num_layers))
    for _ in range(more):
        if not candidates:
            candidates = [layer for layer in range(num_layers) if layer not in chosen]
        chosen.append(candidates.pop(int(random.integers(len(candidates)))))
    sources = tuple(layer for old in range(num_layers) for layer in [old] * (1 + (old in chosen)))
    firsts = {old: place for place, old in reversed(list(enumerate(sources)))}
    return sources, tuple(firsts[old] for old in sorted(candidates))


class Growth(NamedTuple):
    """How a model grows once; `to_json` and `from_json` are its form in a checkpoint.

    Attributes:
      embed: sources of the residual stream.
      heads: of the heads of each old layer.
      mlp: of the feed-forward width of each old layer.
      layers: the old layer that each new one is, or is a copy of.
    """

    embed: Sources
    heads: tuple[Sources, ...]
    mlp: tuple[Sources, ...]
    layers: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Lists of numbers."""
        lists = lambda maps: [one.tolist() for one in maps]
        return {
            "embed": self.embed.tolist(),
            "heads": lists(self.heads),
            "mlp": lists(self.mlp),
            "layers": list(self.layers),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Growth:
        """The inverse of `to_json`."""
        arrays = lambda maps: tuple(np.array(one, np.int64) for one in maps)
        return cls(
            np.array(value["embed"], np.int64), arrays(value["heads"]), arrays(value["mlp"]), tuple(value["layers"])
        )

    @property
    def added(self) -> tuple[int, ...]:
        """The new layers that are copies."""
        return tuple(place for place, old in enumerate(self.layers) if place and self.layers[place - 1] == old)

    def then(self, other: Growth) -> Growth:
        """Both, one after the other, in one: from the first model to the last.

        Raises:
          ValueError: a layer that the first has copied, whose copies the second widens otherwise.
        """
        for place, old in enumerate(self.layers):
            first = self.layers.index(old)
            for theirs in (other.heads, other.mlp):
                if not np.array_equal(theirs[place], theirs[first]):
                    what = f"given others for layers {first} and {place}, copies of one"
                    raise ValueError(f"growth: {what}, allowed: the same, or two growths one after the other")
        of_layer = lambda mine, theirs: tuple(
            compose(mine[old], theirs[self.layers.index(old)]) for old in range(len(mine))
        )
        layers = tuple(self.layers[layer] for layer in other.layers)
        return Growth(
            compose(self.embed, other.embed), of_layer(self.heads, other.heads), of_layer(self.mlp, other.mlp), layers
        )

    def widths(self, layer: int | None) -> dict[str, Sources]:
        """Name of an axis -> its sources, of the parameters of an old layer or of those above all of them."""
        if layer is None:
            return {EMBED: self.embed}
        return {EMBED: self.embed, HEADS: self.heads[layer], FLAT_HEADS: self.heads[layer], MLP: self.mlp[layer]}


# Arrays


class _Leaf(NamedTuple):
    """How one array grows.

    Attributes:
      axes: axis -> index of each new entry in it.
      counts: axis -> copies of each of its entries.
      read: axis that is read, so that its rows are divided by their number of copies; None = everything is copied.
    """

    axes: dict[int, np.ndarray]
    counts: dict[int, np.ndarray]
    read: int | None

    def copied(self, leaf: Any) -> Any:
        for axis, index in self.axes.items():
            leaf = jnp.take(leaf, index, axis=axis)
        return leaf

    def shaped(self, values: np.ndarray, axis: int, leaf: Any) -> Any:
        """Numbers of an axis, to multiply with."""
        return jnp.asarray(values.reshape((1,) * axis + (-1,) + (1,) * (leaf.ndim - 1 - axis)), leaf.dtype)


def _plan(path: str, shape: tuple[int, ...], names: Names, widths: Mapping[str, Sources], head_dim: int) -> _Leaf:
    """How an array grows."""
    axes, numbers = {}, {}
    grown = [axis for axis, name in enumerate(names.axes) if name in widths]
    for axis in grown:
        name = names.axes[axis]
        sources, inner = widths[str(name)], head_dim if name == FLAT_HEADS else 1
        old = int(sources.max()) + 1
        outer, rest = divmod(shape[axis], old * inner)
        if rest:
            raise ValueError(f"{path}: given {shape[axis]} entries of {name}, allowed: a multiple of {old * inner}")
        blocks = np.arange(outer)[:, None, None] * old * inner
        axes[axis] = (blocks + sources[None, :, None] * inner + np.arange(inner)).reshape(-1)
        numbers[axis] = np.tile(np.repeat(counts(sources), inner), outer)
    read = None
    if path in TRANSPOSED:
        read = len(shape) - 1
    elif 0 in grown and (len(grown) > 1 or (len(shape) > 1 and names.axes[0] != HEADS)):  # a bias of heads has two axes
        read = 0
    return _Leaf(axes, numbers, read)


def _noise(leaf: Any, plan: _Leaf, how: Noise, stddev: float, random: np.random.Generator) -> Any:
    """What is added to the rows of a matrix whose inputs have copies."""
    assert plan.read is not None
    sources, numbers = plan.axes[plan.read], plan.counts[plan.read]
    drawn = np.moveaxis(random.normal(scale=stddev, size=leaf.shape), plan.read, 0)
    if how == "zero_sum":
        sums = np.zeros((int(sources.max()) + 1, *drawn.shape[1:]))
        np.add.at(sums, sources, drawn)
        drawn -= sums[sources] / numbers.reshape((-1,) + (1,) * (drawn.ndim - 1))
    firsts = np.zeros(len(sources), bool)
    firsts[np.unique(sources, return_index=True)[1]] = True
    drawn[(numbers == 1) | (firsts if how == "code" else False)] = 0
    return leaf + jnp.asarray(np.moveaxis(drawn, 0, plan.read), leaf.dtype)


Change = Callable[[str, Any, _Leaf], Any]


def _map_widths(
    tree: Mapping[str, Any],
    names: Mapping[str, Any],
    growth: Growth,
    head_dim: int,
    change: Change,
    *,
    wide: bool = False,
) -> dict[str, Any]:
    """`change(path, leaf, plan)` of every leaf of a collection by layer, of the old widths or (`wide`) of the new."""
    flat, axes = flatten(tree), flatten(names)
    found = {}
    for path, leaf in flat.items():
        widths = growth.widths(_layer_of(path))
        old = lambda size, name, widths=widths: size // len(widths[name]) * (int(widths[name].max()) + 1)
        shape = tuple(
            old(size, name) if wide and name in widths else size
            for size, name in zip(leaf.shape, axes[path].axes, strict=True)
        )
        found[path] = change(path, leaf, _plan(path, shape, axes[path], widths, head_dim))
    return unflatten_dict(found, sep="/")


def _layer_of(path: str) -> int | None:
    """The layer that a parameter is of."""
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
    """The parameters of a wider model that computes the same; of its old number of layers (`copy_layers` adds some).

    Args:
      params: by layer (`split_collection`), in float32 or more.
      names: of their axes, likewise.
      growth: what is copied.
      head_dim: width of a head, which does not grow.
      noise: added to rows of matrices, so that copies learn different things: "zero_sum", which adds up to nothing over
        the copies of one source (exact); "paper", on all rows that have copies; "code", on the copies alone; "none".
      stddev: of the noise.
      seed: of the noise.
      divided: beginning of the path of the norm whose result the input embeddings score (tied weights): these are not
        divided, and it is instead. '' = none.
      factor: of the input embeddings, where the model multiplies them by another number from now on.
    """
    random = np.random.default_rng(seed)

    def change(path: str, leaf: Any, plan: _Leaf) -> Any:
        new = plan.copied(leaf)
        if plan.read is not None:
            numbers = plan.counts[plan.read]
            new = new / plan.shaped(numbers, plan.read, new)
            if noise != "none" and (numbers > 1).any():
                new = _noise(new, plan, noise, stddev, random)
        elif divided and path.startswith(divided):
            new = new / plan.shaped(plan.counts[0], 0, new) / factor
        return new * factor if path == ENTRIES and factor != 1 else new

    return _map_widths(params, names, growth, head_dim, change)


def contract(params: Mapping[str, Any], names: Mapping[str, Any], growth: Growth, *, head_dim: int) -> dict[str, Any]:
    """The left inverse of `expand_params` without a divided norm: sums of divided rows, and the first copy of the rest.

    Arguments as there; `params` are of the new width.
    """

    def change(path: str, leaf: Any, plan: _Leaf) -> Any:
        for axis, index in plan.axes.items():
            firsts = np.unique(index, return_index=True)[1]
            if axis == plan.read:
                rows = jax.ops.segment_sum(jnp.moveaxis(leaf, axis, 0), index, num_segments=len(firsts))
                leaf = jnp.moveaxis(rows, 0, axis)
            else:
                leaf = jnp.take(leaf, firsts, axis=axis)
        return leaf

    return _map_widths(params, names, growth, head_dim, change, wide=True)


def copy_layers(layers: Mapping[str, Any], growth: Growth, depth: Depth = "copy") -> dict[str, Any]:
    """The layers of a deeper model.

    Args:
      layers: a tree with `layer_00`, `layer_01`, ... of the old number of layers in its entry `stack`.
      growth: says which layer each new one is.
      depth: of copies: "copy" (the paper), or "identity": their last matrices and biases, which give what is added to
        the residual stream, are 0, so that a pre-norm layer gives what it gets.
    """
    stack = layers.get("stack", {})
    found = {name: part for name, part in stack.items() if not name.startswith("layer_")}
    for place, old in enumerate(growth.layers):
        if f"layer_{old:02d}" in stack:
            silent = depth == "identity" and place in growth.added
            found[f"layer_{place:02d}"] = _silent(stack[f"layer_{old:02d}"]) if silent else stack[f"layer_{old:02d}"]
    return {**layers, "stack": found} if "stack" in layers else dict(layers)


def _silent(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A layer that adds nothing to the residual stream."""
    zeroed = ("attention/output", "attention/output_bias", "feed_forward/narrow/kernel", "feed_forward/narrow/bias")
    flat = flatten(layer)
    return unflatten_dict(
        {path: jnp.zeros_like(leaf) if path in zeroed else leaf for path, leaf in flat.items()}, sep="/"
    )


def norm_weights(before: Any, sources: Sources) -> Array:
    """What the norms of a wider model weigh entries with: the copies of one share its weight.

    Args:
      before: `[width]`, the weights of the model before it; `1 / width` where its norms are ordinary ones.
      sources: of the residual stream.

    Example:
      >>> print(norm_weights(np.array([0.5, 0.5], np.float32), np.array([0, 1, 0])))
      [0.25 0.5  0.25]
    """
    before = jnp.asarray(before)
    return before[sources] / counts(sources).astype(before.dtype)


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
    """The variables of a bigger model that computes what a smaller one does.

    Exact with `WeightedNorm` (or where all entries of the residual stream have equally many copies), noise "zero_sum"
    or "none", and without copied layers, or with pre-norm ones of depth "identity". Compare without dropout.

    Args:
      variables: of the smaller one.
      model: the smaller Linen model.
      bigger: the bigger one, from the same configuration with other sizes; where it alone has untied output weights,
        these are the divided embeddings.
      growth: what is copied of what.
      make: `make(model)`, fresh variables, which are traced for names and shapes.
      noise: as in `expand_params`.
      stddev: as there.
      seed: as there.
      depth: as in `copy_layers`.
      factor: as in `expand_params`.

    Raises:
      ValueError: arrays that do not become those of the bigger one; the line names the first.
    """
    by_layer = lambda variables: {part: split_collection(tree, model.groups()) for part, tree in variables.items()}
    names, split = by_layer(parameter_names(lambda: make(model))), by_layer(variables)
    shapes, head_dim = jax.eval_shape(lambda: make(bigger)), model.stack.layers[0].attention.head_dim
    tied, untied = TRANSPOSED[0] not in flatten(split["params"]), TRANSPOSED[0] in flatten(shapes["params"])
    own: dict[str, Any] = {"noise": noise, "stddev": stddev, "seed": seed, "factor": factor}
    own["divided"] = divided_norm(variables["params"], model, shapes["params"])
    params = expand_params(split["params"], names["params"], growth, head_dim=head_dim, **own)
    if tied and untied:
        params["vocabulary"]["output"] = params["vocabulary"]["embedding"] / factor / counts(growth.embed)[None]
    found = {"params": copy_layers(params, growth, depth)}
    for part in split.keys() - found.keys():
        constant = functools.partial(_constant, sources=growth.embed)
        found[part] = copy_layers(_map_widths(split[part], names[part], growth, head_dim, constant), growth)
    found = {part: join_collection(tree, bigger.groups()) for part, tree in found.items()}
    return _with_norm_weights(found, shapes, growth)


def divided_norm(params: Mapping[str, Any], model: Any, bigger: Mapping[str, Any]) -> str:
    """Beginning of the path of the norm that is divided where tied output weights stay tied; '' = none is.

    Args:
      params: of the smaller model.
      model: the smaller one.
      bigger: parameters of the bigger one, or their shapes.

    Raises:
      ValueError: a tied model that ends without a norm.
    """
    tied = all(name not in flatten(tree) for tree in (params, bigger) for name in TRANSPOSED)
    return model.output_norm() if tied else ""


def _constant(path: str, leaf: Any, plan: _Leaf, *, sources: Sources) -> Any:
    """An array that is no parameter: weights of norms are shared by copies, the rest is copied."""
    return norm_weights(leaf, sources) if path.endswith(NORM_WEIGHTS) else plan.copied(leaf)


def _with_norm_weights(found: dict[str, Any], shapes: Mapping[str, Any], growth: Growth) -> dict[str, Any]:
    """With the weights of norms that were ordinary ones, and all arrays of the shapes of the bigger model."""
    wanted = flatten(shapes)
    arrays = flatten(found)
    old, dtype = int(growth.embed.max()) + 1, next(iter(arrays.values())).dtype
    for path, shape in wanted.items():
        if path.endswith(NORM_WEIGHTS) and path not in arrays:
            equal = np.full(old, 1 / old, jnp.promote_types(dtype, jnp.float32))
            one = norm_weights(equal, growth.embed)
            arrays[path] = jnp.tile(one, (*shape.shape[:-1], 1)) if shape.ndim > 1 else one
    for path in {**wanted, **arrays}:
        there, given = wanted.get(path), arrays.get(path)
        shown = ["none" if one is None else str(tuple(one.shape)) for one in (given, there)]
        if shown[0] != shown[1]:
            raise ValueError(f"expansion: {path} given as {shown[0]}, allowed: {shown[1]}, as the bigger model has it")
    return unflatten_dict({path: arrays[path] for path in wanted}, sep="/")


def expand_moments(
    opt_state: Any,
    params: Any,
    grow: Callable[[Any, int], Any],
    fresh: Any,
) -> Any:
    """An optimiser's state after growth: first and second moments of what was there go on with their copies.

    In a model that computes the same, the gradient of an entry that is one of n copies, counted over all axes that are
    not read, is an n-th of what it was; so moments are divided, and squared ones by the square.

    Args:
      opt_state: before.
      params: before, whose structure moments have.
      grow: `grow(tree, power)`, a tree of gradients (to that power) of the bigger model.
      fresh: the state of the optimiser at its beginning, for the bigger model.

    Raises:
      ValueError: its shapes are not those of the parameters, or do not become those of `fresh`.
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
        kind = next(
            (str(getattr(key, "name", "")) for key in reversed(path) if getattr(key, "name", "") in place), "mu"
        )
        return grow(node, place[kind])

    grown = jax.tree_util.tree_map_with_path(change, opt_state, is_leaf=is_moment)
    if jax.tree.map(jnp.shape, grown) != jax.tree.map(jnp.shape, fresh):
        raise ValueError(unlike)
    return grown


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
    """Gradients (to a power) of a wider model that computes the same, from those of the narrower one.

    Arguments as in `expand_params`; rows that are read are copied, entries that are given are divided. Those of tied
    embeddings are not exact: as input and as output weights they grow in two ways, of which this is the first.
    """
    is_divided = lambda path: bool(divided) and path.startswith(divided)

    def change(path: str, leaf: Any, plan: _Leaf) -> Any:
        new = plan.copied(leaf)
        for axis, number in plan.counts.items():
            if axis != plan.read and not is_divided(path):
                new = new / plan.shaped(number.astype(np.float64) ** power, axis, new)
        if factor == 1:
            return new
        return new / factor**power if path == ENTRIES else new * factor**power if is_divided(path) else new

    return _map_widths(gradients, names, growth, head_dim, change)
