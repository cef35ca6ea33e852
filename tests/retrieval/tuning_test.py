"""Neighbours of scored targets: found once, in the order of the documents, mixed and tuned without another search."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.data.annotations import AnnotatedDocuments
from memjax.data.documents import ArrayDocuments
from memjax.data.reading_plan import ReadingPlan
from memjax.memory.continuous_cache import ContinuousCacheMemory
from memjax.memory.knn_lm import KNNMemory
from memjax.models import add_features, add_mixtures, make_language_model
from memjax.retrieval.retrieved import describe_retrieved, largest_gains, read_retrieved
from memjax.retrieval.tuning import (
    CachedNeighbors,
    ScoredTargets,
    find_neighbors,
    mixture_nats,
    score_mixture,
    score_targets,
    tune_interpolation,
    tune_with_memory,
)
from memjax.training.evaluation import Evaluator
from tests.reference import knn_lm as reference
from tests.reference.parameters import params_of

VOCAB, LENGTH, BEGIN = 6, 4, 0
MODEL = config.Model(dim=8, num_layers=1, num_heads=2, attention=config.TransformerXL(memory_length=5))
KEY = "layer_00/feed_forward_input_normed"


def documents(seed: int, lengths) -> AnnotatedDocuments:
    rng = np.random.default_rng(seed)
    return AnnotatedDocuments(ArrayDocuments([rng.integers(1, VOCAB, n) for n in lengths]), numbers=True)


TRAIN, TEXTS = documents(0, [9, 14]), documents(1, [7, 3, 10])


@functools.cache
def model_and_variables():
    model = add_features(make_language_model(MODEL, VOCAB), KEY)
    tokens, start = jnp.zeros((1, LENGTH), jnp.int32), jnp.ones(1, bool)
    params = params_of(model, tokens, model.init_state(1), start_of_document=start, dtype=np.float32)
    return model, {"params": jax.tree.map(jnp.asarray, params)}


@functools.cache
def programs():
    """Compiled evaluations by what they were compiled for."""
    return {}


def make_evaluator(model, texts=TEXTS, **settings):
    given = {name: settings.pop(name) for name in ("rows", "protocol", "stride", "score_first") if name in settings}
    reading = ReadingPlan(**{"rows": 2, "segment_length": LENGTH, "begin_token": BEGIN, **given})
    evaluator = Evaluator(model, texts, reading, **settings)
    kind = (model, reading.rows, settings.get("compute_parts", False), tuple(settings.get("feature_names", ())))
    evaluator._score = programs().setdefault(kind, evaluator._score)
    return evaluator


@functools.cache
def store():
    """Keys and values of the training documents, by the numbers of their tokens."""
    model, variables = model_and_variables()
    keys, values = np.zeros((23, 8), np.float32), np.concatenate([TRAIN[0], TRAIN[1]])

    def observe(batch, scored):
        chosen = batch.weights > 0
        keys[batch.extras["target_number"][chosen]] = scored.features[KEY][chosen]

    make_evaluator(model, TRAIN, feature_names=(KEY,))(variables, observe=observe)
    return reference.Store(keys, values)


def find(num_neighbors=4, **settings):
    model, variables = model_and_variables()
    evaluator = make_evaluator(model, feature_names=(KEY,), **settings)
    return find_neighbors(evaluator, variables, store().search, store().values, num_neighbors, feature=KEY)


def own_log_probs() -> np.ndarray:
    """`[targets, vocab]` of the plain model, token after token."""
    model, variables = model_and_variables()
    rows = []

    @jax.jit
    def step(state, tokens, start, mask):
        hidden, state, _ = model.apply(variables, tokens, state, start_of_document=start, mask=mask)
        return state, model.apply(variables, hidden, method="log_probs")

    for index in range(len(TEXTS)):
        inputs = [BEGIN, *TEXTS[index][:-1]]
        state, start = model.init_state(1), jnp.ones(1, bool)
        for begin in range(0, len(inputs), LENGTH):
            piece = inputs[begin : begin + LENGTH]
            mask = jnp.arange(LENGTH)[None] < len(piece)
            state, found = step(state, jnp.asarray([piece + [0] * (LENGTH - len(piece))]), start, mask)
            rows += list(np.asarray(found[0, : len(piece)]))
            start = jnp.zeros(1, bool)
    return np.array(rows)


@pytest.mark.parametrize(
    "settings",
    [{}, pytest.param({"rows": 3}, marks=pytest.mark.laws), {"protocol": "sliding_window", "stride": 2}],
    ids=str,
)
def test_every_target_once_in_the_order_of_the_documents(settings):
    """N11."""
    result, targets, neighbors = find(**settings)
    assert result.targets == len(targets) == 20
    assert targets.numbers.tolist() == list(range(20))
    assert targets.tokens.tolist() == [token for index in range(3) for token in TEXTS[index]]
    np.testing.assert_allclose(-targets.log_probs.sum(dtype=np.float64), result.nats, rtol=1e-6)
    assert neighbors.values.shape == neighbors.ids.shape == (20, 4)
    np.testing.assert_array_equal(neighbors.values, store().tokens[neighbors.ids])
    if "protocol" not in settings:
        own = own_log_probs()[np.arange(20), targets.tokens]
        np.testing.assert_allclose(targets.log_probs, own, atol=1e-5)


def test_neighbors_do_not_depend_on_rows_and_batches_of_queries():
    model, variables = model_and_variables()
    found = [find()[2], find(rows=3)[2]]
    evaluator = make_evaluator(model, feature_names=(KEY,))
    arguments = (evaluator, variables, store().search, store().values, 4)
    found.append(find_neighbors(*arguments, feature=KEY, queries_at_once=3)[2])
    for other in found[1:]:
        np.testing.assert_array_equal(other.ids, found[0].ids)
        np.testing.assert_allclose(other.distances, found[0].distances, rtol=1e-4, atol=1e-10)
    few = find(num_neighbors=2)[2]
    np.testing.assert_array_equal(found[0].first(2).ids, few.ids)
    with pytest.raises(ValueError, match="num_neighbors: given 5, allowed: 1 to 4"):
        found[0].first(5)


WEIGHTS, TEMPERATURES = (0.0, 0.3, 1.0), (0.5, 20.0)


def test_tuning_equals_loops_and_searches_nothing():
    _, targets, neighbors = find()
    searches = store().searches
    tuning = tune_interpolation(targets, neighbors, weights=WEIGHTS, temperatures=TEMPERATURES)
    assert store().searches == searches
    own = np.exp(own_log_probs())
    expected = np.zeros((2, 3))
    for i, temperature in enumerate(TEMPERATURES):
        for row, (distances, values) in enumerate(zip(neighbors.distances, neighbors.values, strict=True)):
            knn = reference.knn_probs(distances, values, [True] * 4, VOCAB, temperature)
            for j, weight in enumerate(WEIGHTS):
                with np.errstate(divide="ignore"):
                    mixed = reference.interpolate(own[row], knn, weight)[targets.tokens[row]]
                    expected[i, j] -= np.log(mixed) / len(targets)
    np.testing.assert_allclose(tuning.nats_per_token, expected, rtol=1e-5)
    best = np.unravel_index(expected.argmin(), expected.shape)
    assert (tuning.temperature, tuning.interpolation_weight) == (TEMPERATURES[best[0]], WEIGHTS[best[1]])
    assert tuning.perplexity == pytest.approx(np.exp(expected.min()), rel=1e-5)
    ranked = [row["perplexity"] for row in tuning.rows()]
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(ranked, np.sort(np.exp(expected).ravel()), rtol=1e-4)


def test_the_evaluator_gives_what_the_cached_neighbors_give():
    """One setting scored on the host, and by a model with the neighbours coming with its batches."""
    _, targets, neighbors = find()
    score, mixed = score_mixture(targets, neighbors, 0.3, 2.0)
    model, variables = model_and_variables()
    with_neighbors = add_mixtures(model, KNNMemory(interpolation_weight=0.3, temperature=2.0))
    annotated = AnnotatedDocuments(TEXTS, neighbors.annotations(targets.numbers, 20))
    result, again = score_targets(make_evaluator(with_neighbors, annotated, rows=3, compute_parts=True), variables)
    np.testing.assert_allclose(result.nats, score.nats, rtol=1e-6)
    np.testing.assert_allclose(again.log_probs, mixed, atol=1e-5)
    np.testing.assert_allclose(again.parts[0], targets.log_probs, atol=1e-5)
    nats = mixture_nats(again.parts[0], again.parts[1:], [0.3])
    np.testing.assert_allclose(nats, [[score.nats]], rtol=1e-5)
    with pytest.raises(ValueError, match="KNNMemory needs knn_distances, knn_values"):
        make_evaluator(with_neighbors)(variables)


def test_neighbors_are_mixed_with_model_and_cache_together():
    model, variables = model_and_variables()
    cached = add_mixtures(model, ContinuousCacheMemory(dim=8, memory_length=6, interpolation_weight=0.2))
    evaluator = make_evaluator(cached, feature_names=(KEY,), compute_parts=True)
    _, targets, neighbors = find_neighbors(evaluator, variables, store().search, store().values, 4, feature=KEY)
    np.testing.assert_array_equal(neighbors.ids, find()[2].ids)
    own, cache = targets.parts
    np.testing.assert_allclose(targets.log_probs, np.logaddexp(own + np.log(0.8), cache + np.log(0.2)), atol=1e-5)
    np.testing.assert_allclose(cache[[0, 7, 10]], own[[0, 7, 10]])  # nothing is cached at a document's first token
    both = add_mixtures(cached, KNNMemory(interpolation_weight=0.3))
    annotated = AnnotatedDocuments(TEXTS, neighbors.annotations(targets.numbers, 20))
    result = make_evaluator(both, annotated)(variables)
    np.testing.assert_allclose(result.nats, score_mixture(targets, neighbors, 0.3, 1.0)[0].nats, rtol=1e-6)


def test_a_memory_and_neighbours_together_are_at_least_as_good_as_each():
    rng = np.random.default_rng(5)
    tokens = rng.integers(1, VOCAB, 12).astype(np.int32)
    own, cache = np.log(rng.uniform(0.01, 0.9, (2, 12)))
    values = rng.integers(1, VOCAB, (12, 4)).astype(np.int32)
    neighbors = CachedNeighbors(rng.uniform(0, 9, (12, 4)).astype(np.float32), values, np.zeros((12, 4), np.int64))
    targets = ScoredTargets(np.arange(12), tokens, own, np.stack([own, cache[::-1], cache]))
    grid = {"weights": (0.0, 0.25, 0.5), "temperatures": (1.0, 4.0)}
    weight, best = tune_with_memory(targets, neighbors, 2, **grid)
    alone = tune_interpolation(targets, neighbors, **grid).nats_per_token.min()
    each = min(-targets.mixed(one, 2).log_probs.mean() for one in grid["weights"])
    assert best.nats_per_token.min() <= min(alone, each) + 1e-9
    score, _ = score_mixture(targets.mixed(weight, 2), neighbors, best.interpolation_weight, best.temperature)
    assert score.nats / 12 == pytest.approx(best.nats_per_token.min())
    expected = 0.75 * np.exp(own) + 0.25 * np.exp(cache)
    np.testing.assert_allclose(np.exp(targets.mixed(0.25, 2).log_probs), expected, rtol=1e-6)
    np.testing.assert_array_equal(targets.mixed(0.0, 1).log_probs, own)


def test_neighbors_survive_a_file(tmp_path):
    _, _, neighbors = find()
    neighbors.save(tmp_path / "neighbors.npz")
    loaded = CachedNeighbors.load(tmp_path / "neighbors.npz")
    for name in ("distances", "values", "ids"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(neighbors, name))


def test_targets_without_neighbors_keep_the_model():
    targets = ScoredTargets(np.arange(2), np.array([1, 2], np.int32), np.log(np.array([0.5, 0.25], np.float32)))
    none = CachedNeighbors(np.zeros((2, 1), np.float32), np.array([[1], [-1]], np.int32), np.array([[0], [-1]]))
    score, mixed = score_mixture(targets, none, 0.5, 1.0)
    np.testing.assert_allclose(np.exp(mixed), [0.75, 0.25], rtol=1e-6)
    assert score.targets == 2
    everything, _ = score_mixture(targets, none, 1.0, 1.0)
    np.testing.assert_allclose(everything.nats, -np.log(0.25), rtol=1e-6)


@pytest.mark.parametrize(
    "call, line",
    [
        (lambda t, n: tune_interpolation(t, n, weights=[]), "weights, temperatures: given "),
        (lambda t, n: tune_interpolation(t, n, weights=[1.5]), "interpolation_weight: given 1.5, allowed: 0 to 1"),
        (
            lambda t, n: tune_interpolation(t, CachedNeighbors(*(a[:3] for a in (n.distances, n.values, n.ids)))),
            "neighbors: given",
        ),
    ],
)
def test_mistakes_of_tuning_are_named(call, line):
    _, targets, neighbors = find()
    with pytest.raises(ValueError, match=line):
        call(targets, neighbors)


def test_documents_need_numbers_and_features_must_be_shown():
    model, variables = model_and_variables()
    with pytest.raises(ValueError, match="documents: given without numbers"):
        score_targets(make_evaluator(model, TEXTS.documents), variables)
    evaluator = make_evaluator(model, feature_names=(KEY,))
    with pytest.raises(ValueError, match="feature: given 'layer_00/output', the evaluator shows"):
        find_neighbors(evaluator, variables, store().search, store().values, 2, feature="layer_00/output")


# What was retrieved, as text


def test_retrieved_contexts_by_hand():
    _, targets, neighbors = find()
    _, mixed = score_mixture(targets, neighbors, 0.5, 2.0)
    chosen = largest_gains(targets, mixed, 3)
    gains = mixed - targets.log_probs
    assert gains[chosen].tolist() == sorted(gains, reverse=True)[:3]
    rows = read_retrieved(
        chosen,
        targets,
        neighbors,
        before_target=lambda number: TEXTS.before(number, 3),
        before_entry=lambda entry: TRAIN.before(entry, 3),
        decode=lambda ids: "".join("_abcde"[i] for i in ids),
        temperature=2.0,
        mixed=mixed,
        count=2,
    )
    letters = "_abcde"
    for place, row in zip(chosen, rows, strict=True):
        index = int(np.searchsorted(TEXTS.offsets, row.number, side="right")) - 1
        inside = row.number - TEXTS.offsets[index]
        text = "".join(letters[i] for i in TEXTS[index])
        assert text[:inside].endswith(row.context) and len(row.context) == min(3, inside)
        assert row.token == text[inside] and row.mixed == pytest.approx(np.exp(mixed[place]))
        shares = np.exp(-neighbors.distances[place].astype(float) / 2.0)
        np.testing.assert_allclose([n.weight for n in row.neighbors], (shares / shares.sum())[:2], rtol=1e-5)
        for k, neighbor in enumerate(row.neighbors):
            entry = neighbors.ids[place, k]
            joined = ["".join(letters[i] for i in TRAIN[d]) for d in range(2)]
            text, inside = (joined[0], entry) if entry < 9 else (joined[1], entry - 9)
            assert neighbor.token == text[inside] and text[:inside].endswith(neighbor.context)
    table = describe_retrieved(rows)
    assert len(table.splitlines()) == 3 * (1 + 2) and " -> " in table
    long = describe_retrieved([rows[0].__class__(5, "a\nb" + "c" * 90, "d", 0.5, None, ())], width=10)
    assert long.endswith("...ccccccc | d  (0.5000)") and "\n" not in long
