"""What an evaluation does to the memory between segments, to show whether a model uses it.

A model that does not need its memory scores the same with the memory of another row; one that does, does not.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from memjax.memory.contract import num_rows, take_rows
from memjax.models.contract import Model
from memjax.settings.relations import require

__all__ = ["make_memory_intervention", "memory_leaves"]

PLACES = (".position", ".marker")
"""of a model's state: where in the document a row is, which is no memory"""


def make_memory_intervention(kind: str, model: Model, *, part: str = "", rows: int = 2) -> Callable[[Any], Any] | None:
    """What a segment finds of the memory instead of what the segments before have left; None = just that.

    Args:
      kind: 'kept'; 'cleared': what a document starts with, in every segment; 'shuffled': that of the row before.
      model: whose state it is.
      part: change only leaves whose path in the state contains this text, such as 'compressed'; '' = all but where
        in the document a row is.
      rows: streams side by side.

    Raises:
      ValueError: a state without memory, or without such a part; a single row to shuffle.

    Example:
      >>> from memjax import config
      >>> from memjax.models import make_language_model
      >>> settings = config.Model(dim=8, num_layers=1, num_heads=2, attention=config.TransformerXL(memory_length=4))
      >>> model = make_language_model(settings, 5)
      >>> state = jax.tree.map(jnp.ones_like, model.init_state(2))
      >>> print(jax.tree.map(jnp.sum, intervention("cleared", model)(state)).stack.groups[0].attention.hidden)
      0.0
    """
    if kind == "kept":
        return None
    names = memory_leaves(model, rows)
    require(bool(names), "evaluation.memory_state", kind, "'kept' with a model whose state is empty")
    changed = {name for name in names if part in name}
    leaves = sorted({name.rpartition(".")[2] for name in names})
    require(bool(changed), "evaluation.memory_part", part, f"a part of the path of a leaf: {', '.join(leaves)}")
    require(kind != "shuffled" or rows > 1, "evaluation.rows", rows, "2 or more with memory_state 'shuffled'")

    def change(state: Any) -> Any:
        count = num_rows(state)
        assert count is not None
        other = model.init_state(count) if kind == "cleared" else take_rows(state, jnp.roll(jnp.arange(count), 1))
        pairs = zip(_named(state), jax.tree.leaves(other), strict=True)
        found = [new.astype(old.dtype) if name in changed else old for (name, old), new in pairs]
        return jax.tree.unflatten(jax.tree.structure(state), found)

    return change


def memory_leaves(model: Model, rows: int = 2) -> list[str]:
    """Paths of the leaves of a model's state that are memory; [] of a model whose segments know nothing of another.

    Example:
      >>> from memjax import config
      >>> from memjax.models import make_language_model
      >>> attention = config.TransformerXL(memory_length=4)
      >>> settings = config.Model(dim=8, num_layers=1, num_heads=2, attention=attention)
      >>> [name.rpartition(".")[2] for name in memory_leaves(make_language_model(settings, 5))]
      ['hidden', 'valid']
    """
    paths = [path for path, _ in _named(jax.eval_shape(lambda: model.init_state(rows)))]
    return [name for name in paths if name not in PLACES]


def _named(state: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(state)]
