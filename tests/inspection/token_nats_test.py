"""What a model makes of every token, and how long ago that was there last."""

import dataclasses

import jax
import numpy as np
import pytest

from memjax.config import TransformerXL
from memjax.data.annotations import AnnotatedDocuments
from memjax.inspection.token_nats import mention_buckets, token_nats
from memjax.training.experiment import make_experiment
from memjax.training.train_state import init_variables
from tools.verbs import make_config, write_data


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """An experiment with its variables, and its tokens with memory and without."""
    folder = tmp_path_factory.mktemp("tokens")
    write_data(folder)
    config = make_config("TransformerXL")
    config.data.source.path, config.data.cache_dir = str(folder / "data" / "texts"), str(folder / "cache")
    config.evaluation.max_segments = 12
    assert isinstance(config.model.attention, TransformerXL)
    experiment = make_experiment(config)
    variables = init_variables(experiment.model, jax.random.key(0), config.data.segment_length)
    cleared = dataclasses.replace(config.evaluation, memory_intervention="cleared")
    return experiment, token_nats(experiment, variables), token_nats(experiment, variables, cleared)


def test_they_sum_to_the_evaluation(scored):
    _, kept, cleared = scored
    for found in (kept, cleared):
        assert found.nats.sum() == pytest.approx(found.result.nats) and len(found.nats) == found.result.targets
    assert np.array_equal(kept.tokens, cleared.tokens) and np.array_equal(kept.document, cleared.document)
    first = kept.segment == 0
    np.testing.assert_allclose(kept.nats[first], cleared.nats[first], rtol=1e-5)
    assert np.abs(kept.nats - cleared.nats)[~first].max() > 1e-6


def test_documents_are_consecutive_and_mentions_are_theirs(scored):
    _, kept, _ = scored
    assert np.all(np.diff(kept.document) >= 0) and kept.document[0] == 0
    for number in range(int(kept.document.max()) + 1):
        where = np.flatnonzero(kept.document == number)
        tokens, segments = kept.tokens[where].tolist(), kept.segment[where]
        assert np.all(np.diff(segments) >= 0) and segments[0] == 0
        for place, token in enumerate(tokens):
            last = max((i for i in range(place) if tokens[i] == token), default=None)
            ago = 0 if last is None else place - last
            assert kept.since[where[place]] == ago
            assert kept.inside[where[place]] == (ago > 0 and segments[last] == segments[place])


def test_buckets_part_the_tokens(scored):
    experiment, kept, _ = scored
    buckets = mention_buckets(kept, experiment.config.data.segment_length)
    assert np.array_equal(np.sum([*buckets.values()], axis=0), np.ones(len(kept.tokens)))
    assert [*buckets][:3] == ["never", "in this segment", "up to 1x"]
    assert np.all(kept.since[buckets["up to 1x"]] <= experiment.config.data.segment_length)


def test_the_last_bucket_has_what_is_farthest(scored):
    _, kept, _ = scored
    far = dataclasses.replace(kept, since=np.full(len(kept.since), 1000), inside=np.zeros(len(kept.since), bool))
    assert [*mention_buckets(far, 8)] == ["beyond 32x"]


def test_where_nothing_is_scored_there_is_a_line(scored):
    experiment, _, _ = scored
    documents = AnnotatedDocuments(experiment.documents("validation"))
    unscored = AnnotatedDocuments(documents, {"weights": np.zeros(documents.offsets[-1], np.float32)})
    other = dataclasses.replace(experiment, documents=lambda split: unscored)
    variables = init_variables(experiment.model, jax.random.key(0), experiment.config.data.segment_length)
    with pytest.raises(ValueError, match="evaluation.max_segments: given 12, allowed: more: nothing is scored"):
        token_nats(other, variables)
