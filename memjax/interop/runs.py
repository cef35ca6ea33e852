"""Run directories made of imported weights."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memjax import config
from memjax.models.vocabulary import pad_tables
from memjax.training.checkpoints import Checkpoints
from memjax.training.runs import config_to_dict, write_json
from memjax.training.step import TrainState
from memjax.training.tables import Tables
from memjax.training.variables import split_state


def write_run(
    path: Path, described: config.Config, model: Any, params: Mapping[str, Any], vocabulary: Sequence[Path]
) -> None:
    """A run directory at step 0: `training.init_from` starts from it, `memjax eval` scores it.

    Args:
      path: of the directory, which must not exist.
      described: its configuration.
      model: the Linen model of it.
      params: of the model, without the padding of its vocabulary.
      vocabulary: files of the tokenizer, which are copied beside the configuration.
    """
    tables = model.vocabulary.clone(bias="bias" in params["vocabulary"])
    params = {**params, "vocabulary": pad_tables(params["vocabulary"], tables)}
    path.mkdir(parents=True)
    for file in vocabulary:
        shutil.copyfile(file, path / file.name)
    write_json(path / "config.json", config_to_dict(described))
    empty: Any = {}
    state = TrainState(
        step=np.int32(0), params=params, tables=Tables(), opt_state=(), batch_stats=empty, constants=empty,
        memory=empty, key=jax.random.key(0), totals=empty, restart=np.zeros(1, bool),
    )  # fmt: skip
    checkpoints = Checkpoints(path / "checkpoints")
    checkpoints.save(0, split_state(state, model.groups()))
    checkpoints.close()
