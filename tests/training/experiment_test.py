"""Parts from a configuration, and parameters from another run. Nothing is compiled here."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax.config import (
    Adafactor,
    Adam,
    Compressive,
    Config,
    Data,
    Evaluation,
    FullAttention,
    KeyValueRecall,
    Memorizing,
    Model,
    ProductKey,
    Schedule,
    Spalm,
    Training,
    TransformerXL,
)
from memjax.data.annotations import write_neighbors
from memjax.data.documents import ArrayDocuments
from memjax.durable_files import write_json
from memjax.training.checkpoints import Checkpoints
from memjax.training.experiment import make_evaluation_model, make_experiment
from memjax.training.loaded_runs import init_from, load_run, tokenizer_of_start
from memjax.training.runs import config_from_dict, config_to_dict
from memjax.training.tables import Tables
from memjax.training.train_state import TrainState, init_variables
from memjax.training.update_functions import make_optimizer
from memjax.training.variables import join_state, split_state


def make_config(tmp_path, attention=None, name="run", **model):
    model = {"dim": 8, "num_heads": 2, "num_layers": 3, "scan_layers": True, **model}
    source = KeyValueRecall(num_documents=16)
    return Config(
        name=name,
        workdir=str(tmp_path),
        model=Model(attention=attention or FullAttention(), **model),
        data=Data(source=source, batch_size=2, segment_length=8),
    )


def random_variables(model, seed=0):
    generator = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), 8))
    return jax.tree.map(lambda leaf: generator.normal(size=leaf.shape).astype(leaf.dtype), shapes)


def save_run(config, seed=0):
    """A run directory with a checkpoint, as `train` leaves it."""
    experiment = make_experiment(config)
    variables = random_variables(experiment.model, seed)
    path = experiment_path(config)
    path.mkdir(parents=True)
    write_json(path / "config.json", config_to_dict(config))
    state = TrainState(
        np.int32(3), variables["params"], Tables(), (), {}, {}, {}, jax.random.key(0), {}, np.zeros(2, bool)
    )
    checkpoints = Checkpoints(path / "checkpoints")
    checkpoints.save(3, split_state(state, experiment.model.layer_groups()))
    checkpoints.close()
    return experiment, variables


def experiment_path(config):
    from memjax.training.runs import run_path

    return run_path(config)


def long_memory(layers=(-1,), **kwargs):
    return Memorizing(layers_with_memory=layers, memory_length=16, num_neighbors=2, cache_length=8, **kwargs)


@pytest.mark.parametrize("dense_scale", [pytest.param(0.0, marks=pytest.mark.laws), 1.0])
def test_a_model_without_memory_goes_on_with_product_keys(tmp_path, dense_scale):
    _, variables = save_run(make_config(tmp_path, name="old"))
    part = ProductKey(layers=(1,), num_keys=4, memory_heads=2, num_neighbors=2, key_dim=4, dense_scale=dense_scale)
    new = make_experiment(make_config(tmp_path, name="new", feed_forward=part))
    fresh = random_variables(new.model, 1)
    merged, names = init_from(tmp_path / "old", fresh, new.model)
    assert len(names) == 8 and all("/layer_01/feed_forward/memory/" in name for name in names)
    assert {name.split("/")[0] for name in names} == {"params", "tables", "batch_stats"}
    np.testing.assert_array_equal(*(jax.tree.leaves(v["tables"])[0] for v in (merged, fresh)))
    source, stack = variables["params"]["stack"]["layers_0"], merged["params"]["stack"]
    for index in range(3):
        own, expected = stack[f"layers_{index}"], jax.tree.map(lambda leaf, i=index: leaf[i], source)
        if index == 1:
            own["feed_forward"].pop("memory")
            if not dense_scale:  # the memory has replaced them
                expected["feed_forward"] = {"layer_norm": expected["feed_forward"]["layer_norm"]}
        jax.tree.map(np.testing.assert_array_equal, own, expected)


def test_layers_are_addressed_by_index_whatever_the_grouping(tmp_path):
    local = dataclasses.replace(long_memory(layers=()), memory_length=0)
    old, variables = save_run(make_config(tmp_path, local, "old"))
    assert old.model.scanned_groups() == ("layers_0",)
    # A memory in the last layer breaks the group of three into two and one; its gate is new.
    new = make_experiment(make_config(tmp_path, long_memory(layers=(-1,)), "new"))
    assert new.model.layer_groups() == ((0, 2), (2, 0))
    fresh = random_variables(new.model, 1)
    merged, names = init_from(tmp_path / "old", fresh, new.model)
    assert names and all("layer_02" in name for name in names) and any("gate" in name for name in names)
    stack, source = merged["params"]["stack"], variables["params"]["stack"]["layers_0"]
    compare = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)
    compare(stack["layers_0"], jax.tree.map(lambda leaf: leaf[:2], source))
    last = stack["layers_2"]
    gates = {name: last["attention"].pop(name) for name in list(last["attention"]) if name not in source["attention"]}
    compare(last, jax.tree.map(lambda leaf: leaf[2], source))
    compare(gates, {name: fresh["params"]["stack"]["layers_2"]["attention"][name] for name in gates})
    assert jax.tree.structure(init_from(tmp_path / "old", fresh, new.model)[0]) == jax.tree.structure(fresh)


def test_init_from_refuses_what_does_not_fit(tmp_path):
    save_run(make_config(tmp_path, long_memory(layers=(-1,)), "old"))
    without = make_experiment(make_config(tmp_path, dataclasses.replace(long_memory(), memory_length=0), "without"))
    with pytest.raises(ValueError, match="does not fit: the model lacks params/stack/layer_02/attention/"):
        init_from(tmp_path / "old", random_variables(without.model), without.model)
    wide = make_experiment(make_config(tmp_path, long_memory(layers=(-1,)), "wide", dim=16))
    with pytest.raises(
        ValueError, match=r"does not fit: params/layer_norm/scale \[8\] there and \[16\] here, .* and \d+ more"
    ):
        init_from(tmp_path / "old", random_variables(wide.model), wide.model)
    with pytest.raises(ValueError, match="has no checkpoint"):
        init_from(tmp_path / "nothing", random_variables(wide.model), wide.model)


def test_a_run_that_goes_on_does_not_need_the_run_that_it_began_from(tmp_path):
    config = make_config(tmp_path, long_memory(layers=(-1,)))
    training = dataclasses.replace(config.training, init_from=str(tmp_path / "gone"))
    assert tokenizer_of_start(dataclasses.replace(config, training=training)) is None


def test_a_run_is_loaded_also_with_another_memory(tmp_path):
    config = make_config(tmp_path, long_memory(layers=(-1,)))
    _, variables = save_run(config)
    run = load_run(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, run.variables, {"params": variables["params"]})
    for length in (0, 64):
        model = make_evaluation_model(run.experiment, Evaluation(memory_length=length))
        state = jax.eval_shape(lambda model=model: model.init_state(1))
        small = jax.eval_shape(lambda: run.experiment.model.init_state(1))
        sizes = [sum(leaf.size for leaf in jax.tree.leaves(s)) for s in (state, small)]
        assert (sizes[0] > sizes[1]) == (length > 16)
    with pytest.raises(ValueError, match="of another architecture: it lacks params/"):
        load_run(tmp_path / "run", make_config(tmp_path, TransformerXL(memory_length=8), "other"))
    plain = make_experiment(make_config(tmp_path, FullAttention(), "plain"))
    with pytest.raises(ValueError, match="evaluation.memory_length: given 4, allowed: None with FullAttention"):
        make_evaluation_model(plain, Evaluation(memory_length=4))


def test_a_cache_of_the_evaluation_needs_no_other_variables(tmp_path):
    run, variables = save_run(make_config(tmp_path, long_memory(layers=(-1,))))
    evaluation = Evaluation()
    assert make_evaluation_model(run, evaluation) is run.model
    evaluation.cache.memory_length = 12
    for length in (None, 4):
        evaluation.memory_length = length
        model = make_evaluation_model(run, evaluation)
        shapes = jax.eval_shape(lambda model=model: init_variables(model, jax.random.key(0), 8))
        jax.tree.map(lambda leaf, own: np.testing.assert_array_equal(leaf.shape, own.shape), shapes, variables)
        assert model.init_state(2).mixtures[0].hidden.shape == (2, 12, 8)


def test_neighbors_come_with_the_documents(tmp_path):
    """A run of SPALM: its neighbours lie in a folder, one file a split."""
    config = make_config(tmp_path, TransformerXL(memory_length=8), output=Spalm(num_neighbors=2))
    plain = make_experiment(make_config(tmp_path, TransformerXL(memory_length=8)))
    for split in ("train", "validation"):
        documents = plain.documents(split)
        total = sum(documents.num_tokens(i) for i in range(len(documents)))
        write_neighbors(tmp_path / "neighbors", split, np.arange(3 * total).reshape(total, 3) % 7, documents)
    with pytest.raises(ValueError, match="data.neighbors_dir: given '', allowed: a folder"):
        make_experiment(config)
    config.data.neighbors_dir = str(tmp_path / "neighbors")
    assert config_from_dict(config_to_dict(config)) == config
    experiment = make_experiment(config)
    batch = next(experiment.stream())
    assert batch.extras["neighbor_values"].shape == (1, 2, 8, 3)
    assert set(experiment.model.select_extras(batch.extras)) == {"neighbor_values"}
    result = experiment.evaluator(Evaluation(max_segments=1, batch_size=2))(random_variables(experiment.model))
    assert 0 < result.metrics["output_memory/gate"] < 1
    with pytest.raises(ValueError, match="neighbors: .* has none for the split test"):
        experiment.documents("test")
    assert experiment.notes() == plain.notes() == []
    documents = plain.documents("train")
    tokens = np.concatenate([documents[i] for i in range(len(documents))])
    write_neighbors(tmp_path / "neighbors", "train", np.stack([tokens, tokens * 0], axis=1), documents)
    (line,) = experiment.notes()
    assert line.startswith("data.neighbors_dir: the target is among the neighbours of 100.0% of the training tokens")


@pytest.mark.laws
def test_a_compressive_run_is_loaded_with_other_memories(tmp_path):
    attention = Compressive(
        memory_length=8, compressed_memory_length=4, compression_rate=2, compression_loss="auto_encoding"
    )
    config = make_config(tmp_path, attention)
    _, variables = save_run(config)
    for length, slots in ((8, 4), (8, 40), (3, 4), (0, 4)):
        evaluation = Evaluation(memory_length=length)
        longer = dataclasses.replace(attention, compressed_memory_length=slots)
        run = load_run(tmp_path / "run", dataclasses.replace(config, model=make_config(tmp_path, longer).model))
        jax.tree.map(np.testing.assert_array_equal, run.variables, {"params": variables["params"]})
        model = make_evaluation_model(run.experiment, evaluation)
        state = jax.eval_shape(lambda model=model: model.init_state(2)).stack.groups[0].attention
        sizes = [leaf.shape[2] for leaf in jax.tree.leaves(state) if leaf.ndim == 4]  # [layers, b, slots, dim]
        assert sizes == ([length, slots] if length else [])


@pytest.mark.parametrize(
    "attention, expected",
    [
        (FullAttention(), {}),
        (TransformerXL(), {}),
        (Compressive(), {"compressive/attention_reconstruction": 1.0}),
        (Compressive(compression_loss="auto_encoding", loss_weight=0.5), {"compressive/auto_encoding": 0.5}),
        (Compressive(compression_loss="none"), {}),
        (Compressive(memory_length=0), {}),
        (Compressive(compressed_memory_length=0), {}),
        (Compressive(compression="max"), {"compressive/attention_reconstruction": 1.0}),
    ],
)
def test_coefficients_are_those_of_the_losses_that_the_model_has(tmp_path, attention, expected):
    assert attention.auxiliary_loss_weights() == expected
    model = make_experiment(make_config(tmp_path, attention)).model

    def losses():
        variables, start = init_variables(model, jax.random.key(0), 8), jnp.ones(1, bool)
        return model.apply(variables, jnp.zeros((1, 8), int), model.init_state(1), start_of_document=start)[2].losses

    assert {name.partition("/")[2] for name in jax.eval_shape(losses)} == set(expected)


def test_split_and_join_are_inverse(tmp_path):
    model = make_experiment(make_config(tmp_path, long_memory(layers=(0,)))).model
    params = random_variables(model)["params"]
    state = TrainState(0, params, Tables({"stack": {}}), (), {}, {}, {}, None, {}, None)
    groups = model.layer_groups()
    split = split_state(state, groups)
    assert {"layer_00", "layer_01", "layer_02"} <= set(split.params["stack"])
    jax.tree.map(np.testing.assert_array_equal, join_state(split, groups).params, params)


def test_optimizers_of_a_configuration(tmp_path):
    config = make_config(tmp_path)
    model = make_experiment(config).model
    made = lambda **training: make_optimizer(dataclasses.replace(config, training=Training(**training)), model, ())
    params = {"w": np.ones((2, 2), np.float32)}
    gradient = {"w": np.full((2, 2), 3.0, np.float32)}
    rate = Schedule(learning_rate=0.5, warmup_steps=0, decay="constant")
    for rule in (Adam(weight_decay=0.1), Adafactor(momentum=0.9)):
        optimizer = made(optimizer=rule, schedule=rate)
        updates, _ = optimizer.update(gradient, optimizer.init(params), params)
        assert np.all(np.asarray(updates["w"]) < 0)
    optimizer = made(optimizer=Adam(), schedule=rate, gradient_accumulation_steps=2, clip_norm=0.0)
    assert isinstance(optimizer.init(params), optax.MultiStepsState)


def test_the_local_window_decides_which_identifiers_are_distant(tmp_path):
    assert make_config(tmp_path, long_memory()).model.memory_facts.attention_span(8) == 16
    assert make_config(tmp_path, long_memory(local_window=4)).model.memory_facts.attention_span(8) == 4
    assert make_config(tmp_path, TransformerXL(memory_length=5)).model.memory_facts.attention_span(8) == 13
    assert make_config(tmp_path, Compressive(memory_length=5)).model.memory_facts.attention_span(8) == 13
    assert make_config(tmp_path).model.memory_facts.attention_span(8) == 8
    experiment = make_experiment(make_config(tmp_path))
    assert set(experiment.subsets(Evaluation())) == {"is_answer", "is_practice"}
    annotated = ArrayDocuments([np.arange(3)], annotations=[{"identifier_distance": np.zeros(3, np.int32)}])
    code = dataclasses.replace(experiment, documents=lambda split: annotated)
    chosen = code.subsets(Evaluation(identifier_distance=5))["distant_identifier"]
    np.testing.assert_array_equal(chosen({"identifier_distance": np.array([0, 5, 6])}), [False, False, True])
