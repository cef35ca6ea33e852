"""Embeddings of the last mark: in segments, from token to token, and over resets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.models.factory import make_language_model
from memjax.models.language_model import last_markers
from memjax.settings.checks import validate
from tests.reference.parameters import params_of

VOCAB, LENGTH, SEGMENTS, ROWS = 11, 4, 4, 3
MARKS = (9, 10)


@functools.cache
def small():
    part = config.GPT2(num_positions=LENGTH)
    described = config.Model(
        dim=8,
        num_layers=2,
        num_heads=2,
        attention=part,
        feed_forward=config.Dense(dim=8),
        num_speaker_markers=len(MARKS),
    )
    model = make_language_model(described, VOCAB)
    start = jnp.ones(ROWS, bool)
    named = {"start_of_document": start, "dtype": np.float32}
    return model, {"params": params_of(model, jnp.zeros((ROWS, LENGTH), jnp.int32), model.init_state(ROWS), **named)}


def stream():
    """Tokens `[segments, rows, length]`, padding at the end of some, and where documents start."""
    rng = np.random.default_rng(0)
    tokens = rng.choice([1, 2, 3, *MARKS], (SEGMENTS, ROWS, LENGTH)).astype(np.int32)
    starts = np.zeros((SEGMENTS, ROWS), bool)
    starts[0], starts[2, 1] = True, True
    real = np.full((SEGMENTS, ROWS), LENGTH)
    real[1, 1], real[2, 0], real[3, 2] = 2, 0, 1
    return tokens, starts, np.arange(LENGTH) < real[..., None]


def numbers_of(tokens, starts, mask):
    """By a loop: the number of the last mark at each real token, and after each segment."""
    found, ends, last = np.zeros(tokens.shape, int), np.zeros(tokens.shape[:2], int), [0] * ROWS
    for segment in range(SEGMENTS):
        for row in range(ROWS):
            last[row] = 0 if starts[segment, row] and mask[segment, row].any() else last[row]
            for place in np.flatnonzero(mask[segment, row]):
                if tokens[segment, row, place] in MARKS:
                    last[row] = 1 + MARKS.index(tokens[segment, row, place])
                found[segment, row, place] = last[row]
            ends[segment, row] = last[row]
    return found, ends


def test_the_last_mark_is_carried_between_segments():
    tokens, starts, mask = stream()
    expected, ends = numbers_of(tokens, starts, mask)
    assert {*expected[mask].tolist()} == {0, 1, 2}
    model, variables = small()
    state, run = model.init_state(ROWS), jax.jit(model.apply)
    for segment in range(SEGMENTS):
        before = np.where(starts[segment], 0, state.marker)
        marks = last_markers(jnp.asarray(np.where(mask[segment], tokens[segment], -1)), jnp.asarray(before), MARKS)
        assert (np.asarray(marks) == expected[segment])[mask[segment]].all()
        named = {"start_of_document": jnp.asarray(starts[segment]), "mask": jnp.asarray(mask[segment])}
        _, state, _ = run(variables, jnp.asarray(tokens[segment]), state, **named)
        assert np.asarray(state.marker).tolist() == ends[segment].tolist()


def test_every_token_gets_the_embedding_of_its_mark():
    model, variables = small()
    tokens = jnp.array([[1, 10, 2, 9]] * ROWS, jnp.int32)
    x, after = model.apply(variables, jnp.zeros((ROWS, LENGTH, 8)), tokens, jnp.array([0, 1, 2]), method="_mark")
    table = variables["params"]["markers"]
    assert table.shape == (3, 8) and after.tolist() == [1, 1, 1]
    for row in range(ROWS):
        np.testing.assert_array_equal(x[row], table[np.array([row, 2, 2, 1])])


def test_decoding_gives_the_hidden_states_of_the_segment():
    tokens, _, _ = stream()
    model, variables = small()
    state, apply = model.init_state(ROWS), jax.jit(model.apply)
    decode = jax.jit(functools.partial(model.apply, method="decode"))
    decoded = model.init_decode_state(state, LENGTH, ROWS)
    active = jnp.ones(ROWS, bool)
    for segment in range(SEGMENTS):
        hidden, state, _ = apply(variables, jnp.asarray(tokens[segment]), state, start_of_document=~active)
        for place in range(LENGTH):
            one, decoded = decode(variables, jnp.asarray(tokens[segment, :, place : place + 1]), decoded, active=active)
            np.testing.assert_allclose(one[:, 0], hidden[:, place], rtol=1e-5, atol=1e-5)
    _, idle = decode(variables, jnp.full((ROWS, 1), MARKS[0], jnp.int32), decoded, active=~active)
    assert idle.marker.tolist() == decoded.marker.tolist() == state.marker.tolist()


@pytest.mark.parametrize(
    "changed, line",
    [
        ({"num_speaker_markers": -1}, "model.num_speaker_markers: given -1, allowed: 0 (none) or more ids"),
        (
            {"model": config.EncoderDecoder(num_speaker_markers=1)},
            "model.num_speaker_markers: given 1, allowed: 0 but in a decoder-only language model",
        ),
        ({"protocol": "contiguous"}, "data.protocol: given 'contiguous', allowed: 'separate' for dialogues"),
        (
            {"source": config.CmuDog(max_utterance_length=0)},
            "data.source.max_utterance_length: given 0, allowed: 1 or more tokens",
        ),
    ],
)
def test_a_dialogue_that_cannot_be_is_refused(changed, line):
    given = config.Config(data=config.Data(source=config.CmuDog()), model=config.Model(num_speaker_markers=3))
    validate(given)
    given.model = changed.get("model", given.model)
    given.model.num_speaker_markers = changed.get("num_speaker_markers", given.model.num_speaker_markers)
    given.data.source = changed.get("source", given.data.source)
    given.data.protocol = changed.get("protocol", given.data.protocol)
    with pytest.raises(ValueError) as error:
        validate(given)
    assert str(error.value) == line
