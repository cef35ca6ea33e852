"""Three steps of the toy in every seam of the step, as tests/golden/train_step.npz has them.

`python -m tests.training.recorded FILE` writes them anew.
"""

import dataclasses
import sys

import jax
import numpy as np

from memjax.training.objective import Objective, model_loss
from memjax.training.optimizers import adam, make_optimizer, make_schedule
from memjax.training.step import make_train_step
from tests.training.toy import ToyModel, sparse_adam, toy_state, toy_stream

CASES = {
    "plain": ({"dropout": 0.3}, {}, {}, 1),
    "accumulate": (
        {"dropout": 0.3, "use_table": True, "auxiliary_loss": True, "detach": False},
        {"toy/size": 0.3},
        {"accumulate": 2},
        2,
    ),
    "tables": ({"use_table": True, "use_batch_stats": True, "use_constants": True}, {}, {}, 2),
    "without_gradient": (
        {"detach": False, "use_table": True, "auxiliary_loss": True},
        {"toy/size": 0.5},
        {"segments_without_gradient": 2, "accumulate": 2, "rematerialize": "segment"},
        3,
    ),
}
"""name -> (the model, coefficients, options of the step, segments of an update)"""


def after_three_steps(model, coefficients, options, segments):
    """Name -> array of the state after three steps."""
    module = ToyModel(**model)
    tables = sparse_adam(1e-2) if module.use_table else None
    optimizer = make_optimizer(adam(make_schedule(1e-2, steps=10, warmup_steps=2), weight_decay=0.1), clip_norm=0.5)
    stream = toy_stream(segments=segments)
    batches = [next(stream) for _ in range(3)]
    state = toy_state(module, optimizer, batch=batches[0], table_optimizer=tables)
    objective = Objective(model_loss(module), coefficients)
    step = make_train_step(objective, optimizer, table_optimizer=tables, **options)
    for batch in batches:
        state, _ = step(state, batch)
    state = dataclasses.replace(state, key=jax.random.key_data(state.key))
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


if __name__ == "__main__":
    arrays = {name: after_three_steps(*case) for name, case in CASES.items()}
    flat = {f"{name}/{key}": array for name, case in arrays.items() for key, array in case.items()}
    np.savez_compressed(sys.argv[1], **flat)
