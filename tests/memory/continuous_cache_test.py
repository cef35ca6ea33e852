"""The continuous cache against loops: K1 to K6, strictness, blocks and steps, evaluation and generation with it."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.data.documents import ArrayDocuments
from memjax.data.reading_plan import ReadingPlan
from memjax.functional.mixing import candidate_log_probs, candidate_log_weights
from memjax.inference import Sampling, generate
from memjax.memory.continuous_cache import ContinuousCacheMemory, Similarity
from memjax.memory.interface import where_rows
from memjax.memory.next_token_candidates import Prediction
from memjax.models.factory import make_language_model
from memjax.training.evaluation import Evaluator
from tests.reference import continuous_cache as reference
from tests.reference.parameters import as_float64, params_of

DIM, VOCAB, ROWS = 4, 5, 2
DOCUMENTS = [[7, 3, 1, 9], [1, 2, 12]]
"""Lengths of the documents of each row."""


def stream(seed: int = 0):
    """Hidden states and tokens of both rows, document after document."""
    rng = np.random.default_rng(seed)
    length = max(sum(row) for row in DOCUMENTS)
    return rng.normal(size=(ROWS, length, DIM)), rng.integers(0, VOCAB, (ROWS, length))


def segments_of(length: int):
    """`(places, mask, start)` of the rows' segments: places in the stream `[segments, rows, length]`."""
    rows = []
    for row in DOCUMENTS:
        pieces, begin = [], 0
        for size in row:
            for first in range(begin, begin + size, length):
                pieces.append((first, min(first + length, begin + size), first == begin))
            begin += size
        rows.append(pieces)
    count = max(map(len, rows))
    places = np.zeros((count, ROWS, length), np.int64)
    mask, start = np.zeros((count, ROWS, length), bool), np.zeros((count, ROWS), bool)
    for b, pieces in enumerate(rows):
        for s, (first, last, new) in enumerate(pieces):
            places[s, b, : last - first] = np.arange(first, last)
            mask[s, b, : last - first], start[s, b] = True, new
    return places, mask, start


@functools.partial(jax.jit, static_argnums=0)
def scan(cache, xs, tokens, mask, start):
    def step(state, segment):
        x, ids, mask, start = segment
        recalled, state, aux = cache.apply({}, x, state, start_of_document=start, tokens=ids, mask=mask)
        log_probs = candidate_log_probs(candidate_log_weights(recalled.scores), recalled.tokens, VOCAB)
        return state, (jnp.exp(log_probs), recalled.weight, aux)

    return jax.lax.scan(step, cache.init_state(ROWS, xs.dtype), (xs, tokens, mask, start))


def cached_probs(cache, length: int, hidden=None, tokens=None, dtype=jnp.float64):
    """What the cache gives each row's tokens, in their order."""
    places, mask, start = segments_of(length)
    drawn = stream()
    hidden, tokens = drawn[0] if hidden is None else hidden, drawn[1] if tokens is None else tokens
    rows = np.arange(ROWS)[None, :, None]
    with jax.enable_x64(dtype == jnp.float64):
        arguments = jnp.asarray(hidden[rows, places], dtype), jnp.asarray(tokens[rows, places], jnp.int32)
        state, (probs, weight, aux) = scan(cache, *arguments, jnp.asarray(mask), jnp.asarray(start))
    state, probs, weight, aux = jax.tree.map(np.asarray, (state, probs, weight, aux))
    each = [(probs[:, b][mask[:, b]], weight[:, b][mask[:, b]]) for b in range(ROWS)]
    return state, each, aux


def expected_scores(memory_length: int, hidden=None, tokens=None, **settings):
    """The reference's (score, token) lists of each row's tokens."""
    drawn = stream()
    hidden, tokens = drawn[0] if hidden is None else hidden, drawn[1] if tokens is None else tokens
    rows = []
    for b, documents in enumerate(DOCUMENTS):
        cache, scored, place = reference.Cache(memory_length, **settings), [], 0
        for size in documents:
            cache.start()
            for _ in range(size):
                scored.append(cache.read(int(tokens[b, place]), hidden[b, place]))
                place += 1
        rows.append(scored)
    return rows


@pytest.mark.parametrize(
    "memory_length, length, across_documents",
    [
        (3, 4, False),
        (2, 5, True),
        *(
            pytest.param(*sizes, marks=pytest.mark.laws)
            for sizes in (
                (5, 1, True),
                (40, 3, False),
                (3, 4, True),
                (6, 4, False),
                (6, 4, True),
                (2, 5, False),
                (5, 1, False),
                (40, 3, True),
            )
        ),
    ],
)
def test_blocks_equal_the_reference_token_by_token(memory_length, length, across_documents):
    """K3, K4: also where a segment is longer than the cache, with padding, documents that start, and idle rows."""
    cache = ContinuousCacheMemory(dim=DIM, memory_length=memory_length, scale=0.7, across_documents=across_documents)
    state, found, aux = cached_probs(cache, length)
    rows = expected_scores(memory_length, scale=0.7, across_documents=across_documents)
    seen = 0
    for scored, (probs, weight) in zip(rows, found, strict=True):
        expected = np.array([reference.cache_probs(one, VOCAB) for one in scored])
        np.testing.assert_allclose(probs, expected, atol=1e-12)
        np.testing.assert_allclose(probs.sum(axis=-1), [float(bool(one)) for one in scored], atol=1e-12)
        np.testing.assert_array_equal(weight, [0.1 * bool(one) for one in scored])
        seen += sum(map(len, scored))
    pairs = aux.metrics["continuous_cache/pairs"]
    assert pairs.total.sum() == seen and pairs.weight.sum() == sum(map(len, rows))
    if not across_documents:
        return
    for b, scored in enumerate(rows):  # capacity: padding and idle segments have taken no slot
        order = (np.arange(memory_length) + int(state.cursor[b])) % memory_length
        there = np.asarray(state.valid[b])[order]
        np.testing.assert_array_equal(np.asarray(state.tokens[b])[order][there], [token for _, token in scored[-1]])


@pytest.mark.parametrize(
    "dtype, tolerance", [(jnp.float64, 1e-12), pytest.param(jnp.float32, 1e-5, marks=pytest.mark.laws)]
)
@pytest.mark.parametrize("similarity", get_args(Similarity))
def test_similarities_equal_the_reference(similarity, dtype, tolerance):
    cache = ContinuousCacheMemory(dim=DIM, memory_length=6, scale=0.7, similarity=similarity)
    rows = expected_scores(6, scale=0.7, similarity=similarity)
    for scored, (probs, _) in zip(rows, cached_probs(cache, 4, dtype=dtype)[1], strict=True):
        expected = np.array([reference.cache_probs(one, VOCAB) for one in scored])
        np.testing.assert_allclose(probs, expected, atol=tolerance)


def test_without_scale_the_cache_is_a_histogram():
    """K2."""
    cache = ContinuousCacheMemory(dim=DIM, memory_length=6, scale=0.0)
    for scored, (probs, _) in zip(expected_scores(6), cached_probs(cache, 4)[1], strict=True):
        counts = np.array([np.bincount([token for _, token in one], minlength=VOCAB) for one in scored])
        np.testing.assert_allclose(probs, counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1), atol=1e-12)


def test_equal_tokens_have_all_the_probability():
    """K6."""
    cache = ContinuousCacheMemory(dim=DIM, memory_length=6)
    tokens = np.full_like(stream()[1], 3)
    for scored, (probs, _) in zip(expected_scores(6), cached_probs(cache, 4, tokens=tokens)[1], strict=True):
        np.testing.assert_allclose(probs[:, 3], [float(bool(one)) for one in scored], atol=1e-12)


def test_a_pair_is_seen_only_when_its_token_has_been_read():
    """What comes later changes nothing, and the token that is predicted is not there yet."""
    hidden, tokens = stream()
    cache = ContinuousCacheMemory(dim=DIM, memory_length=6)
    place = 5  # in the first document of row 0, in the middle of a segment
    plain = cached_probs(cache, 4)[1][0][0]
    changed = tokens.copy()
    changed[0, place] = (changed[0, place] + 1) % VOCAB
    other = cached_probs(cache, 4, tokens=changed)[1][0][0]
    np.testing.assert_array_equal(other[:place], plain[:place])
    assert not np.allclose(other[place], plain[place])  # the pair of the token before is complete now
    later = hidden.copy()
    later[0, place] += 1.0
    other = cached_probs(cache, 4, hidden=later)[1][0][0]
    np.testing.assert_array_equal(other[:place], plain[:place])
    assert not np.allclose(other[place], plain[place]) and not np.allclose(other[place + 1], plain[place + 1])


def test_decoding_equals_blocks_with_rows_out_of_phase():
    """K4, the step form: prefilled by one segment, then token by token, one row idle now and then."""
    cache, length = ContinuousCacheMemory(dim=DIM, memory_length=5, scale=0.7), 12
    hidden, tokens = (array[:, :length] for array in stream())

    @jax.jit
    def probs(recalled):
        return jnp.exp(candidate_log_probs(candidate_log_weights(recalled.scores), recalled.tokens, VOCAB))

    @jax.jit
    def block(x, ids, state, mask):
        start = jnp.zeros(ROWS, bool)
        return cache.apply({}, x, state, start_of_document=start, tokens=ids, mask=mask)

    keep, decode = jax.jit(where_rows), jax.jit(functools.partial(cache.apply, method="decode"))
    with jax.enable_x64(True):
        hidden, tokens = jnp.asarray(hidden), jnp.asarray(tokens, jnp.int32)
        whole, state, _ = block(hidden, tokens, cache.init_state(ROWS, jnp.float64), jnp.ones(tokens.shape, bool))
        expected = probs(whole)
        prefill = jnp.arange(4)[None] < jnp.array([[4], [2]])
        _, memory, _ = block(hidden[:, :4], tokens[:, :4], cache.init_state(ROWS, jnp.float64), prefill)
        current, read = cache.init_decode_state(memory, 4, ROWS), np.array([4, 2])
        for step in range(30):
            active = (read < length) & ((step + np.arange(ROWS)) % 3 > 0)
            at = np.minimum(read, length - 1)[:, None]
            rows = np.arange(ROWS)[:, None]
            recalled, new = decode({}, hidden[rows, at], current, active=jnp.asarray(active), tokens=tokens[rows, at])
            kept = keep(jnp.asarray(active), current, new)
            jax.tree.map(np.testing.assert_array_equal, kept, current)  # an inactive row changes nothing
            current = new
            for b in np.flatnonzero(active):
                np.testing.assert_allclose(probs(recalled)[b, 0], expected[b, read[b]], atol=1e-12)
            read += active
        assert (read == length).all()
    for b in range(ROWS):
        sort = lambda s, b=b: np.asarray(s.hidden)[b][np.argsort(np.asarray(s.hidden)[b, :, 0])]
        np.testing.assert_array_equal(sort(current.memory), sort(state))


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"memory_length": 0}, "memory_length: given 0, allowed: 1 or more pairs"),
        ({"interpolation_weight": 1.5}, "interpolation_weight: given 1.5, allowed: 0 to 1"),
    ],
)
def test_mistakes_are_named(fields, line):
    with pytest.raises(ValueError, match=line):
        ContinuousCacheMemory(**{"dim": DIM, "memory_length": 3, **fields}).init_state(1)


# Over a language model

SEGMENT = 4
MODEL = config.Model(
    dim=8,
    num_layers=1,
    num_heads=2,
    attention=config.TransformerXL(memory_length=5),
    output=config.Softmax(tied=False),
)


@functools.cache
def language_model(**fields):
    """A model in float64 with a cache over it, its parameters, and its hidden states and logits on demand."""
    with jax.enable_x64(True):
        plain = as_float64(make_language_model(MODEL, VOCAB))
        start = jnp.ones(1, bool)
        tokens = jnp.zeros((1, SEGMENT), jnp.int32)
        params = params_of(plain, tokens, plain.init_state(1), start_of_document=start)
    cache = ContinuousCacheMemory(**{"dim": 8, "memory_length": 6, "scale": 0.3, **fields}, dtype=jnp.float64)
    return plain, plain.clone(mixtures=(cache,)), {"params": jax.tree.map(jnp.float32, params)}


@functools.partial(jax.jit, static_argnums=0)
def forward(model, variables, tokens, state, mask, start):
    hidden, state, _ = model.apply(variables, tokens, state, start_of_document=start, mask=mask)
    return hidden, model.apply(variables, hidden, method="log_probs"), state


def run(model, variables, documents):
    """`(hidden, log_probs)` of each document's tokens."""
    out = []
    for tokens in documents:
        state, start = model.init_state(1, jnp.result_type(float)), jnp.ones(1, bool)
        hidden, log_probs = [], []
        for begin in range(0, len(tokens), SEGMENT):
            piece = list(tokens[begin : begin + SEGMENT])
            mask = jnp.arange(SEGMENT)[None] < len(piece)
            padded = jnp.asarray([piece + [0] * (SEGMENT - len(piece))], jnp.int32)
            x, log_prob, state = forward(model, variables, padded, state, mask, start)
            x = x.hidden if isinstance(x, Prediction) else x
            hidden += list(np.asarray(x[0, : len(piece)]))
            log_probs += list(np.asarray(log_prob[0, : len(piece)]))
            start = jnp.zeros(1, bool)
        out.append((np.array(hidden), np.array(log_probs)))
    return out


TEXTS = [[1, 2, 3, 2, 1, 2, 3, 4, 1, 2, 3], [4, 4], [3, 1, 4, 1, 2, 3, 4, 3]]


def expected_model(fields) -> list[np.ndarray]:
    """Probabilities of each document by the reference, on the hidden states of the model."""
    plain, _, variables = language_model()
    table = np.asarray(variables["params"]["vocabulary"]["output"], np.float64)
    found = []
    for tokens, (hidden, _) in zip(TEXTS, run(plain, variables, TEXTS), strict=True):
        cache = reference.Cache(6, similarity=fields.get("similarity", "dot"), scale=fields.get("scale", 0.3))
        rows = []
        for token, h in zip(tokens, hidden, strict=True):
            logits, scored = table @ h, cache.read(token, h)
            if fields.get("mixing") == "global":
                rows.append(reference.joint(logits, scored, fields.get("offset", 0.0)))
            else:
                rows.append(reference.linear(logits, scored, fields.get("interpolation_weight", 0.1)))
        found.append(np.array(rows))
    return found


FIELDS = [
    {"interpolation_weight": 0.3},
    {"similarity": "cosine", "scale": 3.0, "interpolation_weight": 0.8},
    {"mixing": "global", "offset": 0.5},
    {"mixing": "global", "offset": 2.0, "similarity": "negative_squared_l2"},
]


@pytest.mark.laws
@pytest.mark.parametrize(
    "fields",
    FIELDS,
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_a_model_with_a_cache_equals_the_reference(fields):
    """K3, linear and global mixing, all tokens and one token."""
    with jax.enable_x64(True):
        _, model, variables = language_model(**fields)
        expected = expected_model(fields)
        for probs, (_, log_probs) in zip(expected, run(model, variables, TEXTS), strict=True):
            np.testing.assert_allclose(np.exp(log_probs), probs, atol=1e-10)
            np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, atol=1e-10)
    # The evaluator scores the same, in float32, whatever the rows; the first token is read and not scored.
    nats = sum(-np.log(p[np.arange(len(t) - 1), t[1:]]).sum() for p, t in zip(expected, TEXTS, strict=True))
    model = make_language_model(MODEL, VOCAB).clone(mixtures=tuple(m.clone(dtype=jnp.float32) for m in model.mixtures))
    for rows in (1, 3):
        reading = ReadingPlan(rows=rows, segment_length=SEGMENT, score_first=False)
        evaluator = Evaluator(model, ArrayDocuments(TEXTS), reading, compute_accuracy=rows == 3)
        result = evaluator(variables)
        assert result.targets == sum(len(t) - 1 for t in TEXTS) and "continuous_cache/pairs" in result.metrics
        np.testing.assert_allclose(result.nats, nats, rtol=1e-5)


def test_without_weight_the_model_is_left_as_it_is():
    """K1, K5: bit for bit."""
    with jax.enable_x64(True):
        plain, _, variables = language_model()
        expected = run(plain, variables, TEXTS)
        for fields in ({"interpolation_weight": 0.0}, {"mixing": "global", "offset": -np.inf}):
            for (_, a), (_, b) in zip(run(language_model(**fields)[1], variables, TEXTS), expected, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "fields", [FIELDS[1], pytest.param(FIELDS[2], marks=pytest.mark.slow)], ids=["linear", "global"]
)
def test_generation_with_a_cache_equals_running_the_text_again(fields):
    _, model, variables = language_model(**fields)
    model = make_language_model(MODEL, VOCAB).clone(mixtures=tuple(m.clone(dtype=jnp.float32) for m in model.mixtures))
    prompts = [[1], [1, 2, 3, 4], [3, 1, 4, 1, 2, 3, 4, 3, 2]]
    settings = {"segment_length": SEGMENT, "max_tokens": 7, "sampling": Sampling(temperature=0)}
    rows = generate(model, variables, prompts, **settings, block=3)
    plain = generate(model.clone(mixtures=()), variables, prompts, **settings)
    assert rows != plain
    for prompt, row in zip(prompts, rows, strict=True):
        log_probs = run(model, variables, [prompt + row])[0][1]
        assert row == [int(token) for token in log_probs[len(prompt) - 1 : -1].argmax(axis=-1)]


def test_one_softmax_needs_one():
    model = make_language_model(
        config.Model(dim=8, num_layers=1, num_heads=2, output=config.AdaptiveSoftmax(cutoffs=(2,))), VOCAB
    )
    model = model.clone(mixtures=(ContinuousCacheMemory(dim=8, memory_length=3, mixing="global"),))
    cache = model.mixtures[0]

    def log_probs():
        hidden, given = jnp.zeros((1, 2, 8)), {"start_of_document": jnp.ones(1, bool), "tokens": jnp.zeros((1, 2), int)}
        recalled, _, _ = cache.apply({}, hidden, cache.init_state(1), **given)
        return model.init(jax.random.key(0), Prediction(hidden, (recalled,)), method="log_probs")

    with pytest.raises(ValueError, match="mixing: given 'global' with AdaptiveVocabulary, allowed: 'linear'"):
        jax.eval_shape(log_probs)
