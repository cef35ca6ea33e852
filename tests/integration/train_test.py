"""A real language model through the whole loop, with every option of the step at once."""

import chex
import jax
import numpy as np
import pytest

from memjax.config import (
    Adafactor,
    Config,
    Data,
    Evaluation,
    KeyValueRecall,
    Memorizing,
    Model,
    Schedule,
    Training,
)
from memjax.training import run_start, update_functions
from memjax.training.loaded_runs import load_run
from memjax.training.step import make_train_step
from tests.training.loop_test import Crash, assert_same_run, crash_at, run


def make_config(workdir):
    attention = Memorizing(layers_with_memory=(-1,), memory_length=24, num_neighbors=2, cache_length=8)
    model = Model(dim=8, num_layers=3, num_heads=2, attention=attention, scan_layers=True)
    model.compute_dtype = model.memory_dtype = "bfloat16"
    model.dropout = 0.1
    return Config(
        name="run",
        workdir=str(workdir),
        model=model,
        data=Data(source=KeyValueRecall(num_documents=16), batch_size=2, segment_length=8),
        training=Training(
            steps=6,
            num_microbatches=2,
            gradient_accumulation_steps=2,
            remat="per_layer",
            optimizer=Adafactor(momentum=0.9),
            schedule=Schedule(learning_rate=1e-2, warmup_steps=1, decay="rsqrt"),
            checkpoint_every=3,
            log_every=2,
        ),
        evaluation=Evaluation(batch_size=2, memory_length=48, compute_accuracy=True),
    )


class Parts:
    """`run` of the toy's tests takes parts; here the loop builds them."""

    def __init__(self, config):
        self.config = config


@pytest.mark.slow
def test_every_option_at_once_and_resumed(tmp_path, monkeypatch):
    def make(objective, optimizer, **kwargs):
        chex.clear_trace_counter()
        return chex.assert_max_traces(make_train_step(objective, optimizer, **kwargs), n=1)

    monkeypatch.setattr(update_functions, "make_train_step", make)
    monkeypatch.setattr(
        "tests.training.loop_test.train", lambda config, experiment, **kw: run_start.train(config, **kw)
    )
    dtypes = []
    look = lambda info: dtypes.append(
        ({leaf.dtype for leaf in jax.tree.leaves(info.state.params)}, info.state.memory.stack.groups[1].attention)
    )
    reference, _ = run(Parts(make_config(tmp_path / "whole")), hooks=[look])
    assert dtypes[0][0] == {np.dtype(np.float32)} and dtypes[0][1].memory.keys.dtype == jax.numpy.bfloat16
    with pytest.raises(Crash):
        run(Parts(make_config(tmp_path / "again")), hooks=[crash_at(5)])
    result, _ = run(Parts(make_config(tmp_path / "again")))
    assert_same_run(result.path, reference.path)
    subsets = result.results["evaluation"]["subsets"]
    assert set(subsets) == {"is_answer", "is_practice"} and "accuracy" in result.results["evaluation"]

    loaded = load_run(result.path)
    assert loaded.experiment.model.layer_groups() == ((0, 2), (2, 0))
    score = loaded.experiment.evaluator()(loaded.variables)
    np.testing.assert_allclose(score.nats, result.results["evaluation"]["nats"], rtol=1e-6)
