"""Helpers for parameters of imported models: tables of the vocabulary, checks, and merging of two sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from memjax import config
from memjax.models.layer_factory import make_stack

MOST_PADDING = 512
"""number of rows of a table of embeddings below which they may be padding"""


def vocab_size(params: Mapping[str, Any]) -> int:
    """Returns the number of entries of the vocabulary, which are the rows of the embedding tables in a tree of
    parameters.

    Example:
      >>> vocab_size({"vocabulary": {"embedding_0": np.zeros((5, 8)), "embedding_1": np.zeros((4, 4))}})
      9
    """
    tables = [leaf for name, leaf in params["vocabulary"].items() if name.startswith("embedding")]
    return sum(table.shape[0] for table in tables)


def check_finite(weights: Mapping[str, Any]) -> None:
    """Raises `ValueError` with name and position of the first value that is NaN or infinite, in a state dict, name ->
    array.
    """
    for name, weight in weights.items():
        array = np.asarray(weight)
        if array.dtype.kind not in "biu" and not (finite := np.isfinite(array)).all():
            place = tuple(int(index) for index in np.argwhere(~finite)[0])
            where = f"{float(array[place])} at {list(place)}, {int((~finite).sum())} of {array.size} values not finite"
            raise ValueError(f"weights[{name!r}]: given {where}, allowed: finite numbers")


def is_padded(rows: int, entries: int) -> bool:
    """Whether a table of embeddings seems to be padded: its number of `rows` is a multiple of 8, and by 1 to 511 larger
    than the number of token ids (`entries`).

    Example:
      >>> is_padded(50304, 50257), is_padded(30522, 28996), is_padded(61, 60)
      (True, False, False)
    """
    return 0 < rows - entries < MOST_PADDING and rows % 8 == 0


def is_tied(model: config.Model) -> bool:
    """Whether the settings of a model say that its output weights are its input embeddings."""
    return model.output.softmax.tied


def uneven_tables(tables: Mapping[str, Any]) -> list[str]:
    """Returns a phrase for each bias or output table that has another number of rows than its embedding table. `tables`
    maps names to the vocabulary's arrays.
    """
    uneven = []
    for name, table in tables.items():
        entries = len(tables.get(f"embedding{name[name.find('_') :] if '_' in name else ''}", table))
        if name.startswith(("bias", "output")) and not name.startswith("output_") and len(table) != entries:
            uneven.append(f"{name} has {len(table)} entries and not {entries}")
    return uneven


def extend_tables(tables: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Returns copies of all arrays of a vocabulary with `count` rows added at the end. Each added row is the mean of
    the old rows.
    """

    def extend(table: Any) -> Any:
        table = np.asarray(table)
        mean = table.mean(axis=0, keepdims=True, dtype=np.float64).astype(table.dtype)
        return np.concatenate([table, np.repeat(mean, count, axis=0)])

    return {name: extend(table) for name, table in tables.items()}


def merge_params(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tree of parameters with the leaves of `new`, and those of `old` that `new` lacks. The arguments are not
    changed.
    """
    are_trees = lambda name: isinstance(old.get(name), Mapping) and isinstance(new[name], Mapping)
    return {**old, **{name: merge_params(old[name], new[name]) if are_trees(name) else new[name] for name in new}}


def layer_groups(model: config.Model) -> tuple[tuple[int, int], ...]:
    """Returns (first layer, number of layers) of each group of layers that the model scans over. A layer that is not
    scanned has the number 0.
    """
    return make_stack(model, segment_length=1).layer_groups()
