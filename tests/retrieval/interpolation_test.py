"""A store around a trained run: scores, tuning and generation equal what is done step by step."""

import dataclasses

import numpy as np
import pytest

from memjax.config import ContinuousCache, Evaluation
from memjax.datastore import ExactIndex, artefacts, build_faiss, choose_backend, opening
from memjax.inference import Sampling, generate
from memjax.models.factory import make_mixtures
from memjax.retrieval.building import build_datastore
from memjax.retrieval.interpolation import (
    InterpolationWeights,
    evaluate_with_store,
    load_interpolation,
    model_with_store,
)
from memjax.retrieval.keys import make_key_extractor
from memjax.retrieval.tuning import find_neighbors, score_mixture, tune_interpolation
from memjax.training.loaded_runs import load_run
from memjax.training.run_start import train
from tests.retrieval.keys_test import make_config

pytestmark = pytest.mark.laws
GRID = {"weights": (0.0, 0.5, 0.9), "temperatures": (0.25, 16.0)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("runs"), "contiguous")
    run = load_run(train(config, on_event=lambda event: None).path)
    source = make_key_extractor(run)
    return source, build_datastore(source, tmp_path_factory.mktemp("stores") / "train")


@pytest.fixture
def source(made):
    return made[0]


@pytest.fixture
def store(made):
    store = made[1]
    for name in artefacts.artefact_names(store):
        artefacts.remove_artefact(store, name)
    return store


def with_evaluation(source, **fields):
    """The source with another evaluation; its model is the same."""
    experiment = source.run.experiment
    evaluation = dataclasses.replace(experiment.config.evaluation, **fields)
    experiment = dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, evaluation=evaluation))
    return dataclasses.replace(source, run=dataclasses.replace(source.run, experiment=experiment))


def find(source, store, split, count, *mixtures):
    arguments = source.evaluator(split, *mixtures), source.variables, ExactIndex.from_store(store).search, store.values
    return find_neighbors(*arguments, count, feature=source.feature)


@pytest.mark.parametrize("cache", [0, 6], ids=["alone", "over a cache"])
def test_scores_are_those_of_finding_tuning_and_mixing(source, store, cache):
    source = with_evaluation(source, cache=ContinuousCache(memory_length=cache), split="test")
    config = source.run.experiment.config
    mixtures = make_mixtures(config.evaluation, config.model)
    _, targets, neighbors = find(source, store, "validation", 4, *mixtures)
    best = tune_interpolation(targets, neighbors, **GRID)
    alone, targets, neighbors = find(source, store, "test", 4, *mixtures)
    scored = evaluate_with_store(source, store, num_neighbors=4, **GRID)
    assert scored.mixing == InterpolationWeights(best.interpolation_weight, best.temperature, 4, "validation")
    expected, mixed = score_mixture(targets, neighbors, best.interpolation_weight, best.temperature)
    assert (scored.with_store.nats, scored.with_store.targets) == (expected.nats, expected.targets)
    assert (scored.without_store.nats, scored.without_store.bytes) == (alone.nats, scored.with_store.bytes)
    assert alone.subsets.keys() == scored.with_store.subsets.keys() and alone.subsets
    names, documents = source.run.experiment.subsets(config.evaluation), source.run.experiment.documents("test")
    for name, subset in names.items():
        flags = np.concatenate([subset(documents.annotate(i)) for i in range(len(documents))])[targets.numbers]
        assert scored.with_store.subsets[name].nats == pytest.approx(-mixed[flags].sum()), name
        assert scored.with_store.subsets[name].targets == flags.sum()


def test_what_was_tuned_is_kept_for_the_same_conditions(source, store, monkeypatch):
    index = ExactIndex.from_store(store)
    with pytest.raises(ValueError, match="no weight and temperature are known for .*, allowed: given ones, or"):
        load_interpolation(source, store, index)
    first = evaluate_with_store(source, store, "test", num_neighbors=4, **GRID)
    assert load_interpolation(source, store, index) == first.mixing
    monkeypatch.setattr("memjax.retrieval.interpolation.tune_interpolation", None)  # nothing is tuned again
    again = evaluate_with_store(source, store, "test", num_neighbors=4, **GRID)
    assert dataclasses.replace(again.with_store, tokens_per_second=0) == dataclasses.replace(
        first.with_store, tokens_per_second=0
    )
    given = evaluate_with_store(source, store, "test", num_neighbors=2, weights=[0.5], temperatures=[2.0])
    assert given.mixing == InterpolationWeights(0.5, 2.0, 2)
    cached = with_evaluation(source, cache=ContinuousCache(memory_length=6))
    with pytest.raises(ValueError, match="no weight and temperature are known"):
        load_interpolation(cached, store, index)
    with pytest.raises(TypeError):
        evaluate_with_store(source, store, "test", num_neighbors=3, **GRID)


def test_a_store_of_what_is_scored_or_of_another_model_is_refused(source, store, tmp_path):
    with pytest.raises(ValueError, match="holds the train split, allowed: a store of text that is not scored"):
        evaluate_with_store(source, store, "train", weights=[0.5], temperatures=[1.0])
    held_out = build_datastore(source, tmp_path / "validation", split="validation")
    with pytest.raises(ValueError, match="holds the validation split"):
        evaluate_with_store(source, held_out, "test")
    assert (
        evaluate_with_store(
            source, held_out, "test", num_neighbors=2, weights=[0.0], temperatures=[1.0]
        ).with_store.nats
        > 0
    )
    other = dataclasses.replace(source, variables={"params": {"a": np.zeros(1)}})
    with pytest.raises(ValueError, match="was made with model"):
        evaluate_with_store(other, store, "test")
    with pytest.raises(ValueError, match="was made with model"):
        model_with_store(other, store, InterpolationWeights(0.1, 1.0))
    run = with_evaluation(source, memory_length=4).run
    with pytest.raises(ValueError, match="evaluation.memory_length: given 4, allowed: None for keys"):
        make_key_extractor(run)


@pytest.mark.parametrize("cache", [0, 6], ids=["alone", "over a cache"])
def test_generation_without_weight_is_plain(source, store, cache):
    source = with_evaluation(source, cache=ContinuousCache(memory_length=cache))
    run, config = source.run, source.run.experiment.config
    plain = run.experiment.model.clone(mixtures=make_mixtures(Evaluation(cache=config.evaluation.cache), config.model))
    asked = {"segment_length": 8, "max_tokens": 6, "sampling": Sampling(), "seed": 3}
    prompts = [[1, 20, 30], [1]]
    model, variables, recall = model_with_store(source, store, InterpolationWeights(0.0, 1.0, 4))
    expected = generate(plain, run.variables, prompts, **asked)
    assert generate(model, variables, prompts, recall=recall, **asked) == expected
    model, variables, recall = model_with_store(source, store, InterpolationWeights(1.0, 1.0, 4))
    assert generate(model, variables, prompts, recall=recall, **asked) != expected


def test_the_backend_follows_the_store(store, monkeypatch):
    assert choose_backend(store) == "exact"
    monkeypatch.setattr(opening, "SMALL_BYTES", 10)
    with pytest.raises(ValueError, match="has no index and .* bytes of keys, allowed: up to 10"):
        choose_backend(store)
    pytest.importorskip("faiss")
    build_faiss(store)
    assert choose_backend(store) == "faiss"
