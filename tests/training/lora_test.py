"""Runs with adapters: what is trained, what a step holds, going on, and starting from a run without adapters."""

import jax
import numpy as np
import pytest

from memjax.config import Config, Data, Dense, Evaluation, LoRA, Model, Schedule, Training, TransformerXL
from memjax.models.adapters import count_trained, is_adapter
from memjax.models.factory import make_model
from memjax.settings.checks import validate
from memjax.training.experiment import Experiment
from memjax.training.named_arrays import flatten
from memjax.training.run_start import train
from memjax.training.train_state import init_variables
from memjax.training.update_functions import make_is_frozen, make_update_functions
from memjax.training.variables import name_arrays
from tests.training.loop_test import assert_same_run, final_arrays
from tests.training.toy import LENGTH, ROWS, VOCAB, toy_documents

RANK = 2


def experiment(workdir, name, *, dim=8, memory=4, rows=ROWS, segment=LENGTH, **training):
    feed_forward = Dense(dim=2 * dim)
    attention = TransformerXL(memory_length=memory)
    model = Model(dim=dim, num_layers=2, num_heads=2, attention=attention, feed_forward=feed_forward)
    schedule = Schedule(learning_rate=1e-2, warmup_steps=0)
    training = {"steps": 4, "log_every": 2, "checkpoint_every": 2, "schedule": schedule, **training}
    config = Config(
        name=name,
        workdir=str(workdir),
        model=model,
        data=Data(batch_size=rows, segment_length=segment),
        training=Training(**training),
        evaluation=Evaluation(batch_size=3),
    )
    validate(config)
    return Experiment(config, make_model(config, VOCAB, vocab_multiple=1), lambda split: toy_documents(), begin_token=0)


def run(of, **options):
    return train(of.config, experiment=of, on_event=lambda event: None, **options)


def arrays_in(path):
    return {name.removeprefix("params/"): array for name, array in final_arrays(path)[1].items() if "params/" in name}


@pytest.mark.laws
def test_only_adapters_are_trained_from_a_run_and_the_run_goes_on_bit_for_bit(tmp_path):
    base = run(experiment(tmp_path, "base", steps=1))
    lora = LoRA(rank=RANK, dropout=0.2, fully_trained=("attention/layer_norm/",))
    whole = run(experiment(tmp_path, "whole", lora=lora, init_from=str(base.path)))
    start, end = arrays_in(base.path), arrays_in(whole.path)
    trained = {name for name in end if is_adapter(name) or "attention/layer_norm/" in name}
    assert start.keys() == {name for name in end if not is_adapter(name)}
    for name, array in start.items():
        assert np.array_equal(end[name], array) == (name not in trained), name
    assert all(end[name].any() for name in trained)

    moments = {n: a for n, a in final_arrays(whole.path)[1].items() if n.startswith("opt_state/") and a.ndim}
    assert sum(a.size for a in moments.values()) == 2 * sum(end[name].size for name in trained)
    with pytest.raises(StopIteration):
        run(experiment(tmp_path, "parts", lora=lora, init_from=str(base.path)), hooks=[stop_after(3)])
    assert_same_run(run(experiment(tmp_path, "parts", lora=lora, init_from=str(base.path))).path, whole.path)


def stop_after(step):
    def stop(info):
        if info.step == step:
            raise StopIteration

    return stop


def lowered(of):
    """The compiled train step, from shapes alone."""
    functions, model = make_update_functions(of.config, of.model), of.model
    batch = of.example()
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), of.config.data.segment_length))
    rows = of.config.data.batch_size
    state = jax.eval_shape(lambda v: functions.init(v, model.init_state(rows), batch, jax.random.key(0)), variables)
    compiled = jax.jit(functions.step, donate_argnums=0).lower(state, batch).compile()
    return compiled.memory_analysis(), state


@pytest.mark.laws
@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_a_step_holds_no_copy_of_the_frozen_weights(num_microbatches, tmp_path):
    options = {"dim": 256, "rows": 2, "num_microbatches": num_microbatches}
    adapted, state = lowered(experiment(tmp_path, "adapters", lora=LoRA(rank=RANK), **options))
    full, _ = lowered(experiment(tmp_path, "full", **options))
    weights = sum(leaf.size * 4 for leaf in jax.tree.leaves(state.params))
    assert adapted.temp_size_in_bytes < weights / 3 < weights < full.temp_size_in_bytes
    trained = count_trained(state.params, LoRA(rank=RANK)) * 4
    assert sum(leaf.size * 4 for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim) == 2 * trained < weights / 10


@pytest.mark.parametrize("host_layers, expected", [((), 2), ((-1,), 1)])
def test_adapters_stand_where_the_settings_say(host_layers, expected, tmp_path):
    lora = LoRA(rank=RANK, targets=("attention/query", "narrow"), layers=host_layers)
    of = experiment(tmp_path, "run", lora=lora)
    shapes = jax.eval_shape(lambda: init_variables(of.model, jax.random.key(0), LENGTH))
    arrays = name_arrays(shapes, of.model.layer_groups())
    found = {name.removeprefix("params/"): leaf.shape for name, leaf in arrays.items() if is_adapter(name)}
    layers = range(2)[-expected:]
    query = {"a": (8, RANK), "b": (RANK, 2, 4)}
    narrow = {"a": (16, RANK), "b": (RANK, 8)}
    parts = {"attention/adapter_query": query, "feed_forward/adapter_narrow": narrow}
    assert found == {
        f"stack/layer_{layer:02d}/{part}/{factor}": shape
        for layer in layers
        for part, factors in parts.items()
        for factor, shape in factors.items()
    }
    is_frozen = make_is_frozen(of.config.training, of.model)
    assert {name for name in flatten(shapes["params"]) if not is_frozen(name)} == {
        name for name in flatten(shapes["params"]) if "/adapter_" in name
    }


def test_a_begins_uniform_within_one_over_the_root_of_its_inputs_and_b_at_zero(tmp_path):
    of = experiment(tmp_path, "run", dim=64, lora=LoRA(rank=8, targets=("attention/query", "attention/output")))
    variables = jax.jit(lambda: init_variables(of.model, jax.random.key(0), LENGTH))()
    for name, leaf in flatten(variables["params"]).items():
        if name.endswith("/a") and is_adapter(name):
            assert 0.99 / 8 < np.abs(leaf).max() <= 1 / 8 and abs(np.std(leaf) - 1 / 8 / 3**0.5) < 0.005
        elif is_adapter(name):
            assert not np.any(leaf)


@pytest.mark.parametrize(
    "lora, message",
    [
        ({"targets": ("attention/keys",)}, "training.lora.targets: given 'attention/keys', allowed: 'all-linear' or a"),
        ({"targets": ()}, r"training.lora.targets: given \(\), allowed: one part of a path or more"),
        ({"layers": (2,)}, r"training.lora.layers: given \(2,\), allowed: layers from -2 to 1"),
        ({"dropout": 1.0}, "training.lora.dropout: given 1.0, allowed: "),
        ({"rank": -1}, "training.lora.rank: given -1, allowed: "),
        ({"fully_trained": ("gates",)}, "training.lora.fully_trained: given 'gates', allowed: a part of a parameter's"),
    ],
)
def test_other_settings_are_refused_in_one_line(lora, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(experiment(tmp_path, "run", lora=LoRA(**{"rank": 2, **lora})))
    assert not (tmp_path / "run/metrics.jsonl").exists()
