"""The trained part of a model's parameters, where the others are frozen: a smaller tree of the same nested dicts.

Gradients of a step, anchors and importances of a penalty, and the parameters of a teacher are such parts in a run with
adapters (`training.lora`), so that no copy of the frozen parameters is made.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict


def select_trained(params: Any, is_frozen: Callable[[str], bool] | None) -> Any:
    """Returns the parameters that are not frozen, as nested dicts without the frozen ones. `is_frozen(path)` says of
    the path of a parameter whether it is. None returns all parameters.

    Example:
      >>> select_trained({"head": {"bias": 1}, "stack": {"keys": 2}}, lambda path: path.startswith("stack/"))
      {'head': {'bias': 1}}
    """
    if is_frozen is None:
        return params
    leaves = flatten_dict(params, sep="/")
    return unflatten_dict({path: leaf for path, leaf in leaves.items() if not is_frozen(path)}, sep="/")


def select_like(tree: Any, part: Any) -> Any:
    """Returns the entries of the nested dicts `tree` that `part` has, too. `part` need not be smaller.

    Example:
      >>> select_like({"head": {"bias": 1, "kernel": 2}, "stack": 3}, {"head": {"bias": 0}})
      {'head': {'bias': 1}}
    """
    if not isinstance(part, Mapping):
        return tree
    return {name: select_like(tree[name], leaf) for name, leaf in part.items()}


def fill_in(part: Any, tree: Any) -> Any:
    """Returns the nested dicts `tree` with the values of `part` where that has some, the inverse of `select_like`.

    Example:
      >>> fill_in({"head": {"bias": 5}}, {"head": {"bias": 1, "kernel": 2}, "stack": 3})
      {'head': {'bias': 5, 'kernel': 2}, 'stack': 3}
    """
    if not isinstance(tree, Mapping):
        return part
    return {**tree, **{name: fill_in(leaf, tree.get(name)) for name, leaf in part.items()}}


def is_part_of(part: Any, tree: Any) -> bool:
    """Returns whether all entries of the nested dicts `part` are in `tree`, with leaves in the same places."""
    if isinstance(part, Mapping) and isinstance(tree, Mapping):
        return all(name in tree and is_part_of(leaf, tree[name]) for name, leaf in part.items())
    return jax.tree.structure(part) == jax.tree.structure(tree)
