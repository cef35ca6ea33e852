"""What a longer memory improves."""

import numpy as np
import pytest

from memjax.data.annotations import AnnotatedDocuments
from memjax.data.documents import ArrayDocuments
from memjax.settings.overrides import load_config
from memjax.training.loaded_runs import load_run
from memjax.training.run_start import train
from tools.measurements import gains
from tools.results import tables
from tools.results.ledger import Measurement


def test_what_came_after_a_retrieved_place_is_the_token_of_that_number():
    documents = AnnotatedDocuments(ArrayDocuments([[5, 6, 7], [8, 9, 10, 11]]))
    # Of the second document: position 0 is the begin token, after which 8 came.
    places = np.array([[0, -1], [0, 2], [1, 2]])
    nothing, numbers, tokens = np.zeros(3), np.array([2, 5, 6]), np.array([7, 10, 11])
    scores = gains.Scores(numbers, tokens, nothing, nothing, places, np.ones((3, 2)))
    assert gains.followers(scores, documents).tolist() == [[5, -1], [8, 10], [9, 10]]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = load_config("memory_gain", "smoke")
    config.workdir = str(tmp_path_factory.mktemp("runs"))
    config.training.steps = 2
    return train(config, on_event=lambda event: None).path


@pytest.mark.slow
def test_gains_are_differences_and_places_lie_before_their_targets(run):
    loaded = load_run(run)
    config = loaded.experiment.config
    short, long = gains.evaluate(str(run), config, 16), gains.evaluate(str(run), config, 64, track=True)
    np.testing.assert_array_equal(short.numbers, long.numbers)
    documents = AnnotatedDocuments(loaded.experiment.documents("validation"))
    first = documents.offsets[np.searchsorted(documents.offsets, long.numbers, side="right") - 1]
    there = long.places >= 0
    # The begin token is read at position 0, a segment retrieves from earlier segments, and a row's memory is its own.
    segment_begin = (long.numbers - first) // config.data.segment_length * config.data.segment_length
    assert there.any() and (long.places < segment_begin[:, None])[there].all()
    found = there.any(axis=1)
    np.testing.assert_allclose(long.weights.sum(axis=1)[found], 1, rtol=1e-5)
    facts = gains.measure(loaded, str(run), (16, 64))
    assert [row["nats_per_token"] for row in facts["growth"]] == pytest.approx([short.nats.mean(), long.nats.mean()])
    whole = facts["groups"]["all"]
    assert whole["targets"] == len(long.tokens)
    assert whole["gain"] == pytest.approx((short.nats - long.nats).mean(), abs=1e-6)
    best = facts["examples"][0]["probabilities"]
    assert np.log(best[1] / best[0]) == pytest.approx((short.nats - long.nats).max(), rel=1e-4)
    page = tables.gains(Measurement("gains", "x", "", "", "", "", "", facts))
    assert page.count("tokens ago") and "/tmp" not in page
