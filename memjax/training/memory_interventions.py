"""Interventions of an evaluation: clear or shuffle the memory between segments to show whether a model uses it.

A model that does not use its memory scores the same with the memory of another row. A model that uses it scores worse.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from memjax.memory.interface import num_rows, take_rows
from memjax.models.interface import Model
from memjax.settings.checks import require

PLACES = (".position", ".marker")
"""Leaves of a model's state that hold the position of a row in its document and are not memory."""


def make_memory_intervention(kind: str, model: Model, *, part: str = "", rows: int = 2) -> Callable[[Any], Any] | None:
    """Makes a function that an evaluation applies to a model's state before every segment: `kind` 'cleared' empties the
    memory, 'shuffled' takes that of another row. Returns None for 'kept'. `part` selects leaves by their path.

    Args:
      kind: Replacement of the memory. 'kept': no replacement. 'cleared': the memory at the start of a document.
        'shuffled': the memory of the row before.
      model: Model whose state is changed.
      part: Part of the path of the leaves to change, such as 'compressed'. '' for the whole memory. The position of a
        row in its document is never changed.
      rows: Number of rows that are read side by side.

    Returns:
      Function from the state to the changed state. None for 'kept'.

    Raises:
      ValueError: The state of the model has no memory or no such part, or there is only a single row to shuffle.

    Example:
      >>> from memjax import config
      >>> from memjax.models import make_language_model
      >>> settings = config.Model(dim=8, num_layers=1, num_heads=2, attention=config.TransformerXL(memory_length=4))
      >>> model = make_language_model(settings, 5)
      >>> state = jax.tree.map(jnp.ones_like, model.init_state(2))
      >>> clear = make_memory_intervention("cleared", model)
      >>> print(jax.tree.map(jnp.sum, clear(state)).stack.groups[0].attention.hidden)
      0.0
    """
    if kind == "kept":
        return None
    names = memory_leaves(model, rows)
    require(bool(names), "evaluation.memory_intervention", kind, "'kept' with a model whose state is empty")
    changed = {name for name in names if part in name}
    leaves = sorted({name.rpartition(".")[2] for name in names})
    require(bool(changed), "evaluation.intervention_path", part, f"a part of the path of a leaf: {', '.join(leaves)}")
    require(
        kind != "shuffled" or rows > 1, "evaluation.batch_size", rows, "2 or more with memory_intervention 'shuffled'"
    )

    def change(state: Any) -> Any:
        count = num_rows(state)
        assert count is not None
        other = model.init_state(count) if kind == "cleared" else take_rows(state, jnp.roll(jnp.arange(count), 1))
        pairs = zip(_leaves_with_paths(state), jax.tree.leaves(other), strict=True)
        leaves = [new.astype(old.dtype) if name in changed else old for (name, old), new in pairs]
        return jax.tree.unflatten(jax.tree.structure(state), leaves)

    return change


def memory_leaves(model: Model, rows: int = 2) -> list[str]:
    """Lists the paths of the leaves of a model's state that are memory, and not the position of a row. The list is
    empty for a model that passes no state between segments.

    Example:
      >>> from memjax import config
      >>> from memjax.models import make_language_model
      >>> attention = config.TransformerXL(memory_length=4)
      >>> settings = config.Model(dim=8, num_layers=1, num_heads=2, attention=attention)
      >>> [name.rpartition(".")[2] for name in memory_leaves(make_language_model(settings, 5))]
      ['hidden', 'valid']
    """
    paths = [path for path, _ in _leaves_with_paths(jax.eval_shape(lambda: model.init_state(rows)))]
    return [name for name in paths if name not in PLACES]


def _leaves_with_paths(state: Any) -> list[tuple[str, Any]]:
    """Lists `(path, leaf)` of all leaves of a state."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(state)]
