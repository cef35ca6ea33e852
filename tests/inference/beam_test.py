"""Beam search against the enumeration of all translations, and BLEU."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inference.beam import beam_search, detokenized_bleu, tokenized_bleu, translate
from memjax.models.factory import make_encoder_decoder
from tests.reference.parameters import random_params

VOCAB, BEGIN, END, MAX_LENGTH, ROWS = 4, 1, 2, 3, 2
SOURCE = jnp.array([[3, 0, 2], [0, 2, 0]], jnp.int32)
MASK = jnp.array([[True, True, True], [True, True, False]])
SEARCH = {"begin_token": BEGIN, "end_token": END, "max_length": MAX_LENGTH, "segment_length": MAX_LENGTH}


@functools.cache
def small():
    part = config.EncoderDecoder(
        dim=8, num_layers=1, num_heads=2, attention=config.MemSizer(num_slots=2), feed_forward=config.Dense(dim=8)
    )
    model = make_encoder_decoder(part, VOCAB)
    init = lambda: model.init(
        {"params": jax.random.key(0)}, SOURCE, model.init_state(ROWS), start_of_document=jnp.ones(ROWS, bool)
    )
    params = random_params(jax.eval_shape(init)["params"], dtype=np.float32)
    return model, {"params": jax.tree.map(jnp.asarray, params)}


@functools.cache
def all_translations():
    """Row -> tokens -> log-probability, of every translation that ends within `MAX_LENGTH` tokens."""
    model, variables = small()

    @jax.jit
    def score(tokens):
        inputs = jnp.concatenate([jnp.array([BEGIN]), tokens[:-1]])
        named = {"start_of_document": jnp.ones(ROWS, bool), "extras": {"source": SOURCE, "source_mask": MASK}}
        hidden, _, _ = model.apply(variables, jnp.tile(inputs[None], (ROWS, 1)), model.init_state(ROWS), **named)
        return -model.apply(variables, hidden, jnp.tile(tokens[None], (ROWS, 1)), method="token_nll")

    found = [{} for _ in range(ROWS)]
    others = [token for token in range(VOCAB) if token != END]
    for length in range(MAX_LENGTH):
        for before in itertools.product(others, repeat=length):
            tokens = (*before, END)
            padded = jnp.asarray([*tokens, *[0] * (MAX_LENGTH - len(tokens))], jnp.int32)
            log_probs = np.asarray(score(padded))[:, : len(tokens)].sum(axis=1)
            for row in range(ROWS):
                found[row][tokens] = float(log_probs[row])
    return found


@pytest.mark.parametrize("length_penalty", [pytest.param(0.0, marks=pytest.mark.laws), 1.5])
def test_a_wide_beam_finds_the_best_translations(length_penalty):
    found = beam_search(*small(), SOURCE, MASK, **SEARCH, beam_size=9, length_penalty=length_penalty)
    for row, scores in enumerate(all_translations()):
        scores = {tokens: score / len(tokens) ** length_penalty for tokens, score in scores.items()}
        best = sorted(scores, key=lambda tokens: -scores[tokens])[:3]
        for place, tokens in enumerate(best):
            length = int(found.lengths[row, place])
            assert tuple(np.asarray(found.tokens[row, place, :length]).tolist()) == tokens
            np.testing.assert_allclose(found.scores[row, place], scores[tokens], rtol=1e-4)


def test_a_beam_of_one_follows_the_best_token():
    model, variables = small()
    state = jax.jit(lambda v: model.apply(v, SOURCE, MASK, MAX_LENGTH, method="start_decoding"))(variables)

    @jax.jit
    def decode(token, state):
        hidden, state = model.apply(variables, token, state, active=jnp.ones(ROWS, bool), method="decode")
        return model.apply(variables, hidden, method="log_probs")[:, 0], state

    token, steps = jnp.full((ROWS, 1), BEGIN, jnp.int32), []
    for _ in range(MAX_LENGTH):
        log_probs, state = decode(token, state)
        steps.append(np.asarray(log_probs))
        others = np.where(np.arange(VOCAB)[None] == END, -np.inf, steps[-1])
        token = jnp.argmax(others, axis=-1)[:, None].astype(jnp.int32)
    found = beam_search(model, variables, SOURCE, MASK, **SEARCH, beam_size=1, length_penalty=0.0)
    for row in range(ROWS):
        best, total, path, goes_on = (-np.inf, ()), 0.0, [], True
        for step in (step[row] for step in steps):  # of two candidates each time, an end is noted, the other goes on
            if goes_on and END in np.argsort(step)[-2:]:
                best = max(best, (total + step[END], (*path, END)))
            others = np.where(np.arange(VOCAB) == END, -np.inf, step)
            path.append(int(np.argmax(others)))
            total += others.max()
            goes_on = goes_on and total > best[0]
        length = int(found.lengths[row, 0])
        given = tuple(np.asarray(found.tokens[row, 0, :length]).tolist())
        assert given == (best[1] or tuple(path))


def test_translations_do_not_depend_on_the_rows_beside_them():
    sources = [[3, 0, 2], [0, 2], [1, 3, 2]]
    together = list(translate(*small(), sources, rows=2, **SEARCH, beam_size=2))
    alone = [next(translate(*small(), [ids], rows=2, source_length=3, **SEARCH, beam_size=2)) for ids in sources]
    assert together == alone and all(END not in ids for ids in together)
    with pytest.raises(ValueError, match="sources: given lengths up to 3, allowed: 1 to 2 tokens"):
        next(translate(*small(), sources, rows=2, source_length=2, **SEARCH))


def test_bleu_of_plain_and_of_tokenised_text():
    references = ["Ein Hund läuft über die Wiese.", "Zwei Katzen schlafen auf dem Sofa."]
    perfect = detokenized_bleu(references, references)
    assert perfect.score == pytest.approx(100) and "tok:13a" in perfect.signature and "version:" in perfect.signature
    cases = [text.lower() for text in references]
    assert tokenized_bleu(cases, references).score == pytest.approx(100)
    assert "tok:none" in tokenized_bleu(cases, references).signature
    assert detokenized_bleu(cases, references).score < 60
    with pytest.raises(ValueError, match="translations: given 1 for 2 references"):
        detokenized_bleu(references[:1], references)
