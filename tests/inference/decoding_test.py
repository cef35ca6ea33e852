import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.config import Compressive, FullAttention, Memorizing, TransformerXL
from memjax.inference import Sampling, generate, prefill, stream_tokens
from memjax.memory.interface import DecodeState, where_rows
from memjax.models.factory import make_language_model
from memjax.models.interface import Model
from memjax.typing import Aux

VOCAB, SEGMENT = 11, 4
TRACES = {"call": 0, "decode": 0}


class Counter(Model):
    """A model whose output is a running count of tokens: half of the memory plus all of this segment so far."""

    vocab: int = VOCAB

    def setup(self):
        self.table = self.param("table", nn.initializers.normal(1.0), (self.vocab, self.vocab))

    @nn.nowrap
    def init_state(self, batch_size, dtype=None):
        return jnp.zeros((batch_size, self.vocab), dtype or jnp.float32)

    @nn.nowrap
    def init_decode_state(self, state, segment_length, batch_size):
        segment = jnp.zeros((batch_size, segment_length, self.vocab))
        return DecodeState(state, segment, jnp.zeros(batch_size, jnp.int32))

    def __call__(self, tokens, state, *, start_of_document, mask=None, deterministic=True):
        TRACES["call"] += 1
        state = jnp.where(start_of_document[:, None], 0.0, state)
        counts = jnp.cumsum(jax.nn.one_hot(tokens, self.vocab) * mask[..., None], axis=1)
        hidden = 0.5 * state[:, None] + counts
        return hidden, jnp.where(mask[:, :1], hidden[:, -1], state), Aux()

    def decode(self, tokens, state, *, active):
        TRACES["decode"] += 1
        rows = jnp.arange(tokens.shape[0])
        segment = state.segment.at[rows, state.position].set(jax.nn.one_hot(tokens[:, 0], self.vocab))
        hidden = 0.5 * state.memory + segment.sum(axis=1)
        full = state.position + 1 == segment.shape[1]
        new = DecodeState(
            jnp.where(full[:, None], hidden, state.memory),
            jnp.where(full[:, None, None], 0.0, segment),
            jnp.where(full, 0, state.position + 1),
        )
        return hidden[:, None], where_rows(active, new, state)

    def log_probs(self, hidden):
        return jax.nn.log_softmax(hidden @ self.table)


MODEL = Counter()
VARIABLES = {"params": {"table": jax.random.normal(jax.random.key(0), (VOCAB, VOCAB))}}


def reference_output(tokens: list[int]) -> np.ndarray:
    """The output at the last token, from the definition."""
    memory = np.zeros(VOCAB)
    for start in range(0, len(tokens), SEGMENT):
        segment = tokens[start : start + SEGMENT]
        hidden = 0.5 * memory + np.bincount(segment, minlength=VOCAB)
        memory = hidden
    return hidden


def reference_greedy(prompt: list[int], steps: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(np.argmax(reference_output(tokens) @ np.asarray(VARIABLES["params"]["table"]))))
    return tokens[len(prompt) :]


PROMPTS = [[1], [1, 2, 3, 4], [5, 6, 7, 1, 2, 3, 4, 8, 9], [2] * 8, [10, 3]]


def test_prefill_reads_prompts_of_different_lengths():
    prefix = prefill(MODEL, VARIABLES, PROMPTS, segment_length=SEGMENT)
    np.testing.assert_allclose(prefix.hidden, [reference_output(p) for p in PROMPTS], atol=1e-6)
    np.testing.assert_array_equal(prefix.state.position, [len(p) % SEGMENT for p in PROMPTS])


def test_prefill_continues_a_given_memory():
    first = prefill(MODEL, VARIABLES, [[1, 2, 3, 4]], segment_length=SEGMENT)
    second = prefill(MODEL, VARIABLES, [[5, 6]], segment_length=SEGMENT, state=first.state.memory)
    np.testing.assert_allclose(second.hidden, [reference_output([1, 2, 3, 4, 5, 6])], atol=1e-6)


def test_greedy_equals_running_the_whole_text_again_for_every_token():
    rows = generate(
        MODEL, VARIABLES, PROMPTS, segment_length=SEGMENT, max_tokens=14, sampling=Sampling(temperature=0), block=5
    )
    assert rows == [reference_greedy(prompt, 14) for prompt in PROMPTS]


def test_text_depends_on_seed_and_prompt_not_on_the_batch():
    settings = dict(segment_length=SEGMENT, max_tokens=12, block=4)
    together = generate(MODEL, VARIABLES, PROMPTS, seed=3, **settings)
    alone = [generate(MODEL, VARIABLES, [prompt], seed=3, **settings)[0] for prompt in PROMPTS[:3]]
    assert together[:3] == alone
    turned = generate(MODEL, VARIABLES, PROMPTS[::-1], seed=3, **settings)
    assert turned[::-1] == together
    assert generate(MODEL, VARIABLES, PROMPTS, seed=4, **settings) != together


def test_block_size_does_not_change_the_text():
    settings = dict(segment_length=SEGMENT, max_tokens=11, seed=1)
    one, seven = (generate(MODEL, VARIABLES, PROMPTS, block=block, **settings) for block in (1, 7))
    assert one == seven
    assert all(len(row) == 11 for row in one)


def test_stop_tokens_end_their_row_only():
    settings = dict(segment_length=SEGMENT, max_tokens=12, sampling=Sampling(temperature=0), block=4)
    free = generate(MODEL, VARIABLES, PROMPTS, **settings)
    stop = free[0][2]
    stopped = generate(MODEL, VARIABLES, PROMPTS, stop_tokens=[stop], **settings)
    for row, whole in zip(stopped, free, strict=True):
        assert row == (whole[: whole.index(stop)] if stop in whole else whole)


def test_finished_rows_generate_nothing_more():
    settings = dict(segment_length=SEGMENT, max_tokens=12, sampling=Sampling(temperature=0), block=4)
    blocks = list(
        stream_tokens(MODEL, VARIABLES, PROMPTS, finished=lambda rows: [i == 0 for i in range(len(rows))], **settings)
    )
    assert [len(block[0]) for block in blocks] == [4, 0, 0]
    assert [len(block[1]) for block in blocks] == [4, 4, 4]
    everyone = list(stream_tokens(MODEL, VARIABLES, PROMPTS, finished=lambda rows: [True] * len(rows), **settings))
    assert len(everyone) == 1


def test_one_trace_whatever_the_lengths():
    settings = dict(segment_length=SEGMENT, sampling=Sampling(temperature=0, top_k=9), block=8)
    generate(MODEL, VARIABLES, PROMPTS[1:3], max_tokens=20, **settings)
    before = dict(TRACES)
    generate(MODEL, VARIABLES, [[4] * 9, [3, 2, 1]], max_tokens=30, **settings)
    assert TRACES["call"] == before["call"]
    assert TRACES["decode"] - before["decode"] <= 1  # the shape of the output is asked for without compiling


@pytest.mark.parametrize("prompts", [[], [[1], []]])
def test_prompts_need_a_token(prompts):
    with pytest.raises(ValueError, match=r"^prompts: given .*, allowed: at least one"):
        prefill(MODEL, VARIABLES, prompts, segment_length=SEGMENT)


@pytest.mark.parametrize(
    "attention",
    [
        Memorizing(layers_with_memory=(0,), memory_length=8, num_neighbors=2, cache_length=3),
        pytest.param(TransformerXL(memory_length=5), marks=pytest.mark.laws),
        pytest.param(
            Compressive(memory_length=3, compressed_memory_length=2, compression_rate=2, compression_loss="none"),
            marks=pytest.mark.laws,
        ),
        pytest.param(FullAttention(), marks=pytest.mark.laws),
    ],
    ids=lambda attention: type(attention).__name__,
)
def test_generation_of_models_equals_their_forward_pass(attention):
    model = make_language_model(config.Model(dim=8, num_layers=1, num_heads=2, attention=attention), VOCAB)
    start = jnp.ones(1, bool)
    variables = jax.jit(
        lambda key: model.init(key, jnp.zeros((1, SEGMENT), jnp.int32), model.init_state(1), start_of_document=start)
    )(jax.random.key(1))
    variables = jax.tree.map(lambda leaf: 3 * leaf, variables)  # sharper than at the start

    @jax.jit
    def forward(tokens, state, mask, start):
        hidden, state, _ = model.apply(variables, tokens, state, start_of_document=start, mask=mask)
        return model.apply(variables, hidden, method="log_probs"), state

    def next_token(tokens: list[int]) -> int:
        state, start = model.init_state(1), jnp.ones(1, bool)
        for begin in range(0, len(tokens), SEGMENT):
            segment = tokens[begin : begin + SEGMENT]
            padded = jnp.array([segment + [0] * (SEGMENT - len(segment))])
            log_probs, state = forward(padded, state, jnp.arange(SEGMENT)[None] < len(segment), start)
            start = jnp.zeros(1, bool)
        return int(log_probs[0, len(segment) - 1].argmax())

    prompts = [[1], [1, 2, 3, 4], [5, 6, 7, 1, 2, 3, 4, 8, 9, 10, 1, 2, 2, 2]]
    rows = generate(
        model, variables, prompts, segment_length=SEGMENT, max_tokens=10, sampling=Sampling(temperature=0), block=4
    )
    for prompt, row in zip(prompts, rows, strict=True):
        tokens = list(prompt)
        for token in row:
            assert token == next_token(tokens)
            tokens.append(token)


@pytest.mark.parametrize("place", ["one entry", "everything", "the prompt's entry"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_not_finite_end_a_text(place, value, temperature):
    """Softmax turns one infinite logit into NaN for all."""
    table = np.array(VARIABLES["params"]["table"])
    table[{"one entry": (1, 3), "everything": slice(None), "the prompt's entry": 1}[place]] = value
    how = {"segment_length": SEGMENT, "max_tokens": 6, "sampling": Sampling(temperature=temperature)}
    broken = {"params": {"table": jnp.asarray(table)}}
    if place == "one entry" and value == -np.inf:  # a token that is never chosen is no fault
        assert len(generate(MODEL, broken, [[1]], **how)[0]) == 6
        return
    with pytest.raises(FloatingPointError, match=r"^logits: not finite at token 1 of row 0, allowed: finite ones; "):
        generate(MODEL, broken, [[1], [1]], **how)
