"""Keys of a split: every scored token once, in the order of an evaluation, whoever goes on reading."""

import dataclasses
import itertools

import numpy as np
import pytest

from memjax import config as configs
from memjax.data.annotations import write_neighbors
from memjax.memory.continuous_cache import ContinuousCacheMemory
from memjax.retrieval.building import build_datastore
from memjax.retrieval.interpolation import evaluate_with_store
from memjax.retrieval.keys import TAP, make_key_extractor
from memjax.retrieval.tuning import score_targets
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import load_run
from memjax.training.run_start import train


def make_config(workdir, protocol):
    source = configs.KeyValueRecall(num_documents=10, filler_length=12, num_pairs=2)
    return configs.Config(
        name=protocol,
        workdir=str(workdir),
        model=configs.Model(
            dim=16, num_layers=2, num_heads=2, attention=configs.TransformerXL(memory_length=8, norm="pre")
        ),
        data=configs.Data(source=source, batch_size=2, segment_length=8, protocol=protocol),
        training=configs.Training(steps=2, log_every=0),
        evaluation=configs.Evaluation(batch_size=3),
    )


@pytest.fixture(scope="module", params=["separate", pytest.param("contiguous", marks=pytest.mark.laws)])
def source(request, tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("runs"), request.param)
    result = train(config, on_event=lambda event: None)
    return make_key_extractor(load_run(result.path)), result


def joined(entries):
    return tuple(np.concatenate(parts) for parts in zip(*entries, strict=True))


def test_every_scored_token_once_with_the_score_of_the_evaluation(source):
    source, result = source
    keys, targets, nats = joined(source.reader("validation"))
    found = result.results["evaluation"]
    assert len(keys) == len(targets) == len(nats) == found["targets"]
    assert nats.sum(dtype=np.float64) == pytest.approx(found["nats"], rel=1e-5)
    assert keys.shape[1] == 16 and keys.dtype == np.float32
    documents = source.run.experiment.documents("validation")
    counted = np.bincount(targets, minlength=300)
    whole = np.concatenate([documents[i] for i in range(len(documents))])
    scored = np.concatenate([np.asarray(documents.annotate(i)["weights"]) > 0 for i in range(len(documents))])
    np.testing.assert_array_equal(counted, np.bincount(whole[scored], minlength=300))


@pytest.mark.parametrize("stop", [1, 3])
def test_a_reader_goes_on_where_another_stood(source, stop):
    source, _ = source
    whole = list(source.reader("train"))
    first = source.reader("train")
    begun = list(itertools.islice(first, stop))
    rest = list(source.reader("train", progress=first.progress, state=first.state()))
    for one, other in zip([*begun, *rest], whole, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="progress: given without state"):
        source.reader("train", progress=first.progress)


def test_rows_of_two_hosts_are_those_of_one(source):
    source, _ = source
    if source.protocol()["documents"] == "contiguous":
        pytest.skip("rows of a stream take turns in the same way; one protocol is enough")
    whole = np.sort(joined(source.reader("validation"))[2])
    # The second host may have no document at all, and then gives nothing.
    parts = [entries.nats for rows in ((0, 1), (1, 3)) for entries in source.reader("validation", host_rows=rows)]
    np.testing.assert_allclose(np.sort(np.concatenate(parts)), whole, rtol=1e-5)


def test_an_evaluation_shows_the_keys_that_the_reader_gives(source):
    source, _ = source
    keys, targets, nats = joined(source.reader("validation"))
    shown = []

    def observe(batch, scored):
        chosen = batch.weights > 0
        shown.append((scored.features[source.feature][chosen], batch.targets[chosen], scored.nats[chosen]))

    result = source.evaluator("validation")(source.variables, observe=observe)
    again = joined(shown)
    for one, other in zip((keys, targets, nats), again, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert result.targets == len(targets) and source.feature == "layer_01/feed_forward_input_normed"
    _, scored = score_targets(
        source.evaluator("validation", ContinuousCacheMemory(dim=16, memory_length=4)), source.variables
    )
    assert scored.parts is not None and scored.parts.shape == (2, len(targets))
    assert -scored.parts[0].sum(dtype=np.float64) == pytest.approx(result.nats, rel=1e-5)


def test_a_reader_of_some_rows_needs_no_others(source):
    """It ends with its own rows, and goes on from a place of its own."""
    source, _ = source
    whole = [list(source.reader("train", host_rows=(row, row + 1))) for row in range(3)]
    counts = {len(entries) for entries in whole}
    assert len(counts) > 1 or source.protocol()["documents"] == "contiguous"
    first = source.reader("train", host_rows=(1, 2))
    begun = list(itertools.islice(first, 2))
    rest = source.reader("train", host_rows=(1, 2), progress=first.progress, state=first.state())
    for one, other in zip([*begun, *rest], whole[1], strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.targets, other.targets)


@pytest.mark.laws
def test_the_tap_is_the_input_of_the_last_feed_forward_part(source):
    source, result = source
    other = make_key_extractor(load_run(result.path), "layer_-1/feed_forward_input")
    (normed, targets, _), (plain, same, _) = joined(source.reader("validation")), joined(other.reader("validation"))
    np.testing.assert_array_equal(targets, same)
    scale = np.asarray(source.variables["params"]["stack"]["layers_1"]["feed_forward"]["layer_norm"]["scale"])
    expected = (plain - plain.mean(1, keepdims=True)) / np.sqrt(plain.var(1, keepdims=True) + 1e-5)
    assert scale.shape == (16,) and normed.shape == plain.shape
    np.testing.assert_allclose(normed, expected * scale, atol=2e-2)
    assert source.protocol() != other.protocol() and source.tap == TAP


@pytest.mark.slow
def test_a_model_that_reads_neighbors_is_given_them(tmp_path):
    config = make_config(tmp_path, "separate")
    for split in ("train", "validation"):
        documents = make_experiment(config).documents(split)
        tokens = np.concatenate([documents[i] for i in range(len(documents))])
        write_neighbors(tmp_path / "neighbors", split, np.stack([tokens, tokens[::-1]], axis=1), documents)
    config.model.output, config.data.neighbors_dir = configs.Spalm(num_neighbors=2), str(tmp_path / "neighbors")
    result = train(config, on_event=lambda event: None)
    _, _, nats = joined(make_key_extractor(load_run(result.path)).reader("validation"))
    found = result.results["evaluation"]
    assert found["metrics"]["output_memory/gate"] > 0
    assert nats.sum(dtype=np.float64) == pytest.approx(found["nats"], rel=1e-5)


def test_taps_and_protocols_that_are_refused(source):
    _, result = source
    with pytest.raises(ValueError, match="features: given 'layer_7/output'"):
        make_key_extractor(load_run(result.path), "layer_7/output")


@pytest.mark.laws
def test_keys_of_sliding_windows_as_the_paper_makes_them(source, tmp_path):
    """Every token once, going on included; a store of them is searched in the same way of reading only."""
    _, result = source
    if result.path.name == "contiguous":
        pytest.skip("windows are the same, however the run was trained")
    config = make_config(result.path.parent, result.path.name)
    config.evaluation = configs.Evaluation(batch_size=2, protocol="sliding_window", stride=3)
    made = make_key_extractor(load_run(result.path, config))
    whole = list(made.reader("train"))
    keys, targets, nats = joined(whole)
    found = made.evaluator("train")(made.variables)
    assert len(keys) == found.targets and nats.sum(dtype=np.float64) == pytest.approx(found.nats, rel=1e-5)
    documents = made.run.experiment.documents("train")
    tokens = np.concatenate([documents[i] for i in range(len(documents))])
    for shards in (1, 2):
        numbers = made.numbers("train", num_shards=shards)
        np.testing.assert_array_equal(np.sort(numbers), np.unique(numbers))
        assert len(numbers) == len(keys)
    np.testing.assert_array_equal(tokens[made.numbers("train")], targets)
    first = made.reader("train")
    begun = list(itertools.islice(first, 2))
    rest = list(made.reader("train", progress=first.progress, state=first.state()))
    np.testing.assert_array_equal(joined([*begun, *rest])[0], keys)
    other = configs.Evaluation(batch_size=2, protocol="sliding_window", stride=2)
    again = make_key_extractor(load_run(result.path, dataclasses.replace(config, evaluation=other)))
    with pytest.raises(ValueError, match="position: given one in .*'stride': 3"):
        again.reader("train", progress=first.progress, state=first.state())
    store = build_datastore(made, tmp_path / "store", num_shards=2)
    np.testing.assert_array_equal(store.values(np.arange(store.entries)), tokens[made.numbers("train", num_shards=2)])
    scored = evaluate_with_store(made, store, "validation", num_neighbors=2, weights=[0.5], temperatures=[4.0])
    assert (
        scored.with_store.nats != scored.without_store.nats
        and scored.with_store.targets == scored.without_store.targets > 0
    )
    for protocol in (again, source[0]):
        with pytest.raises(ValueError, match="was made with .*protocol.stride 3, given (2|None)"):
            evaluate_with_store(protocol, store, "validation", num_neighbors=2, weights=[0.5], temperatures=[4.0])
