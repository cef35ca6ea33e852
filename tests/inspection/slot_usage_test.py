"""Counters of slots: by hand, against loops, on the device, and of a split."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import cli
from memjax.cli.usage import describe_usage, usage_facts
from memjax.config import Config, Data, Evaluation, KeyValueRecall, Model, ProductKey, Schedule, Training
from memjax.inspection.slot_usage import (
    SlotCounts,
    class_divergence,
    class_overlap,
    describe_counts,
    last_used,
    measure_usage,
    staleness,
)
from memjax.training.checkpoints import Checkpoints
from memjax.training.loaded_runs import load_run
from memjax.training.run_start import train
from memjax.training.runs import load_config
from memjax.training.slot_counters import count_usage, pull_usage
from memjax.training.tables import Tables, TouchedRows, sparse_sgd
from memjax.training.train_state import init_variables
from memjax.training.variables import name_arrays

SLOTS = 9


def lookups(seed=0, tokens=7, heads=2, neighbors=3):
    """Slots that are apart within a head and may meet between heads, with weights that sum to 1 in each head."""
    generator = np.random.default_rng(seed)
    ids = np.stack([[generator.permutation(SLOTS)[:neighbors] for _ in range(heads)] for _ in range(tokens)])
    weights = generator.random(ids.shape)
    weights /= weights.sum(axis=-1, keepdims=True)
    return ids.reshape(tokens, -1), weights.reshape(tokens, -1)


def by_hand(ids, weights):
    counts = SlotCounts.zeros(SLOTS)
    for slots, heavy in zip(ids, weights, strict=True):
        merged = np.zeros(SLOTS)
        for slot, weight in zip(slots, heavy, strict=True):
            counts.lookups[slot] += 1
            counts.weights[slot] += weight
            merged[slot] += weight
        counts.top[np.argmax(merged)] += 1
    return counts


def assert_counts(counts, expected, rtol=1e-12):
    np.testing.assert_array_equal(counts.lookups, expected.lookups)
    np.testing.assert_array_equal(counts.top, expected.top)
    np.testing.assert_allclose(counts.weights, expected.weights, rtol=rtol)


def test_counts_by_hand():
    ids, weights = lookups(tokens=1100)
    counts = SlotCounts.zeros(SLOTS)
    counts.add(ids[:3].reshape(3, 1, -1), weights[:3].reshape(3, 1, -1))
    more = SlotCounts.zeros(SLOTS)
    # Padding counts nothing.
    more.add(np.append(ids[3:], np.full((2, 6), SLOTS), axis=0), np.append(weights[3:], np.zeros((2, 6)), axis=0))
    assert_counts(counts.plus(more), by_hand(ids, weights))
    assert counts.lookups.dtype == counts.top.dtype == np.int64


def test_counters_are_exact_beyond_what_a_float_counts():
    counts = SlotCounts.zeros(2)
    counts.lookups[:] = 2**53
    counts.add(np.array([[0, 1]]), np.array([[0.5, 0.5]]))
    assert counts.lookups.tolist() == [2**53 + 1] * 2


def test_even_and_uneven_usage():
    even = SlotCounts.zeros(SLOTS)
    even.add(np.arange(SLOTS)[:, None], np.ones((SLOTS, 1)))
    assert even.as_dict() == pytest.approx(
        {"usage": 1, "top_usage": 1, "count_divergence": 0, "weight_divergence": 0}, abs=1e-12
    )
    one = SlotCounts.zeros(SLOTS)
    one.add(np.full((5, 1), 4), np.ones((5, 1)))
    assert one.as_dict() == pytest.approx(
        {"usage": 1 / 9, "top_usage": 1 / 9, "count_divergence": np.log(9), "weight_divergence": np.log(9)}
    )
    some = by_hand(*lookups())
    assert some.top_usage <= some.usage
    p = some.lookups / some.lookups.sum()
    expected = np.log(SLOTS) + sum(x * np.log(x) for x in p if x)
    assert some.count_divergence == pytest.approx(expected)
    # Chosen counts, though the weight is 0.
    silent = SlotCounts.zeros(2)
    silent.add(np.array([[0, 1]]), np.array([[1.0, 0.0]]))
    assert silent.usage == 1 and silent.top_usage == 0.5


def test_classes():
    first, second = np.array([4, 0, 1]), np.array([1, 3, 1])
    p, q = np.array([5, 1, 2]) / 8, np.array([2, 4, 2]) / 8
    assert class_divergence(first, second) == pytest.approx((p * np.log(p / q)).sum())
    assert class_divergence(first, first) == 0
    assert class_overlap(first, second) == (1 + 0 + 1) / (4 + 3 + 1)
    assert class_overlap(first, first) == 1 == class_overlap(np.zeros(3), np.zeros(3))


def test_staleness_is_the_last_checkpoint_of_a_slot():
    tops = [np.array([3, 1, 0, 0, 2]), np.array([0, 1, 0, 0, 9]), np.array([1, 0, 0, 0, 1])]
    assert staleness(tops).tolist() == [2, 0, 1, 2]


def test_slots_were_last_used_at_a_checkpoint_of_a_table_of_their_size():
    counts = lambda *top: {"": SlotCounts(np.zeros(len(top), np.int64), np.array(top), np.zeros(len(top)))}
    measured = {5: {"a": counts(1, 0), "b": counts(1)}, 9: {"a": counts(0, 2), "b": counts(0, 1)}}
    assert last_used(measured) == {"a": {"never": 0, "5": 1, "9": 1}, "b": {"never": 1, "9": 1}}


def test_of_no_tokens_there_is_nothing_to_compare():
    counts = lambda *lookups: SlotCounts(np.array(lookups, float), np.array(lookups), np.array(lookups))
    groups = {"": counts(2, 1), "some": counts(2, 0), "not some": counts(0, 1), "none": counts(0, 0)}
    found = describe_counts({"table": {**groups, "not none": counts(2, 1)}})["table"]["subsets"]
    assert found["some"]["overlap_with_rest"] == 0 and found["some"]["divergence_from_rest"] > 0
    assert not {"overlap_with_rest", "divergence_from_rest"} & {*found["none"]}


@pytest.mark.parametrize("layers", [0, 2])
def test_counters_in_the_moments_of_a_rule(layers):
    ids, weights = lookups()
    rows = TouchedRows(
        jnp.asarray(np.append(ids, np.full((1, 6), SLOTS), axis=0), jnp.int32),
        jnp.asarray(np.append(weights, np.zeros((1, 6)), axis=0), jnp.float32),
        jnp.ones((8, 2)),
    )
    values = {"stack": {"layers_3": {"values": jnp.zeros((SLOTS, 2))}}}
    if layers:
        values, rows = jax.tree.map(lambda leaf: jnp.stack([leaf] * layers), (values, rows))
    optimizer = count_usage(sparse_sgd(lambda step: 0.1))
    path = ("stack", "layers_3", "values")

    @jax.jit
    def update(values, moments, ok):
        return optimizer.update(values, moments, {path: rows}, step=jnp.zeros((), jnp.int32), ok=ok)

    moments = optimizer.init(values)
    for ok in (True, False, True):
        values, moments = update(values, moments, jnp.asarray(ok))
    expected = by_hand(ids, weights)
    expected = expected.plus(expected)
    usage = jax.tree.map(np.asarray, moments["usage"])
    for layer in range(max(layers, 1)):
        found = [usage[n]["stack"]["layers_3"]["values"] for n in ("lookups", "top", "weights")]
        assert [f.dtype for f in found] == [np.int32, np.int32, np.float32]
        assert_counts(SlotCounts(*(f[layer] if layers else f for f in found)), expected, rtol=1e-5)
    numbers, tables = pull_usage(Tables(values, moments))
    for layer in range(max(layers, 1)):
        of_layer = {name: numbers[f"layer_{3 + layer:02d}/{name}"] for name in expected.as_dict()}
        assert of_layer == pytest.approx(expected.as_dict(), rel=1e-4, abs=1e-6)
    assert not any(leaf.any() for leaf in jax.tree.leaves(tables.moments["usage"]))
    assert np.asarray(jax.tree.leaves(tables.values)[0]).any()


def test_without_tables_there_is_nothing_to_pull():
    assert pull_usage(Tables()) == ({}, Tables())
    empty = Tables({}, count_usage(sparse_sgd(lambda step: 0.1)).init({}))
    assert pull_usage(empty) == ({}, empty)


# Of a split


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    part = ProductKey(layers=(0, 2), num_keys=4, memory_heads=2, num_neighbors=2, key_dim=4)
    config = Config(
        name="usage",
        workdir=str(tmp_path_factory.mktemp("usage")),
        model=Model(dim=8, num_layers=3, num_heads=2, feed_forward=part),
        data=Data(
            source=KeyValueRecall(num_documents=16, num_pairs=2, filler_length=4), batch_size=2, segment_length=8
        ),
        training=Training(
            steps=4, log_every=2, checkpoint_every=2, keep_checkpoints=3, schedule=Schedule(warmup_steps=1)
        ),
        evaluation=Evaluation(batch_size=2, max_segments=3),
    )
    return train(config, on_event=lambda event: None).path


@pytest.mark.laws
def test_the_usage_of_a_split(run):
    loaded = load_run(run)
    counts = measure_usage(loaded.experiment, loaded.variables)
    assert set(counts) == {"layer_00/values", "layer_02/values"}
    result = loaded.experiment.evaluator()(loaded.variables)
    for groups in counts.values():
        whole = groups[""]
        # Every token whose target is scored, once: heads x neighbours slots, and one that is foremost.
        assert whole.lookups.sum() == result.targets * 4 and whole.top.sum() == result.targets
        assert whole.weights.sum() == pytest.approx(result.targets * 2, rel=1e-5)
        for name in result.subsets:
            assert groups[name].top.sum() == result.subsets[name].targets
            np.testing.assert_array_equal(groups[name].plus(groups[f"not {name}"]).lookups, whole.lookups)
    described = describe_counts(counts)["layer_02/values"]
    assert described["slots"] == 16 and set(described["subsets"]) == set(result.subsets)


@pytest.mark.laws
def test_the_command_says_it_for_every_checkpoint(run, capsys):
    facts = usage_facts(str(run), load_run(run).experiment.config, checkpoints=True)
    assert list(facts["checkpoints"]) == ["2", "4"]
    for table in facts["tables"].values():
        assert list(table["last_used"]) == ["never", "2", "4"] and sum(table["last_used"].values()) == 16
        assert table["last_used"]["4"] == round(16 * table["top_usage"])
    assert "last used at 4" in describe_usage(facts)
    assert cli.main(["usage", "--run", str(run), "--json", "--evaluation.max-segments", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == facts["tables"] | {
        name: {key: value for key, value in table.items() if key != "last_used"}
        for name, table in facts["tables"].items()
    }


@pytest.mark.slow
def test_a_run_whose_tables_have_grown(run, tmp_path):
    """Every checkpoint is of the model that the run was then."""
    grown = shutil.copytree(run, tmp_path / "grown")
    lineage = [{"model.feed_forward.num_keys": 6}]
    model = load_run(run).experiment.with_growth(lineage).model
    variables = init_variables(model, jax.random.key(0), 8)
    checkpoints = Checkpoints(grown / "checkpoints")
    checkpoints.save(6, name_arrays(variables, model.layer_groups()), extra={"lineage": lineage})
    checkpoints.close()
    config = load_config(grown)
    newest, facts = usage_facts(str(grown), config), usage_facts(str(grown), config, checkpoints=True)
    slots = {step: tables["layer_00/values"]["slots"] for step, tables in facts["checkpoints"].items()}
    assert slots == {"4": 16, "6": 36}
    assert newest["tables"] == facts["checkpoints"]["6"]
    assert list(facts["tables"]["layer_00/values"]["last_used"]) == ["never", "6"]


@pytest.mark.laws
def test_a_model_without_tables_is_refused(run):
    loaded = load_run(run)
    with pytest.raises(ValueError, match="usage: the model has no value tables, allowed: one with model.feed_forward"):
        measure_usage(loaded.experiment, {"params": {}})
