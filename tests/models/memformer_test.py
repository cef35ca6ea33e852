"""Memformer as a language model: replay, decoding, ablations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config as configs
from memjax.functional.mrbp import mrbp_value_and_grad
from memjax.memory.interface import take_rows
from memjax.memory.knn_lm import KNNMemory
from memjax.models.factory import make_memformer
from memjax.models.feature_taps import add_mixtures
from memjax.models.memformer import replay_parts
from memjax.training.segment_loop import loss_over_segments
from memjax.typing import Batch
from tests.reference.parameters import params_of

ROWS, LENGTH, VOCAB, SEGMENTS = 2, 4, 7, 3
SIZES = {
    "dim": 8, "num_heads": 2, "feed_forward": configs.Dense(dim=12), "encoder_layers": 1, "num_layers": 2,
    "num_slots": 3, "scan_layers": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(segment_length=LENGTH, compute_dtype="float64", **fields):
    model = configs.Memformer(**{**SIZES, **fields})
    model.compute_dtype = compute_dtype  # float64 is for tests alone
    return make_memformer(model, VOCAB, segment_length=segment_length)


def tokens(seed: int = 0, segments: int = SEGMENTS):
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCAB, (segments, ROWS, LENGTH)), jnp.int32)


BEFORE = {"unit_length_updates": False, "retain_bias": 0.0, "write_begin_token": True, "segment_positions": "none"}


def params(**fields):
    model, start = make(**fields), jnp.ones(ROWS, bool)
    arrays = params_of(model, tokens()[0], model.init_state(ROWS, jnp.float64), start_of_document=start)
    return jax.tree.map(jnp.asarray, arrays)


@functools.cache
def own_params():
    return params()


def batch(segments: int = SEGMENTS) -> Batch:
    ids, starts = tokens(1, segments), jnp.zeros((segments, ROWS), bool).at[0].set(True).at[1, 1].set(True)
    mask = jnp.ones(ids.shape, bool).at[0, 1, 2:].set(False)
    return Batch(ids, tokens(2, segments), mask, mask.astype(jnp.float64), starts)


@functools.cache
def program(model):
    """One segment, compiled once for all tests that ask for this model."""
    return jax.jit(lambda p, ids, state, start: model.apply({"params": p}, ids, state, start_of_document=start))


def over_segments(model, p, ids, starts=None):
    """Hidden states of every segment, and the last state."""
    state, outputs = model.init_state(ROWS, jnp.float64), []
    for index, segment in enumerate(ids):
        start = jnp.zeros(ROWS, bool) if starts is None else starts[index]
        y, state, _ = program(model)(p, segment, state, start)
        outputs.append(np.asarray(y))
    return outputs, state


@pytest.mark.slow
def test_replay_has_the_gradients_of_bptt_with_dropout():
    model = make(dropout=0.2, attention_dropout=0.2, num_layers=1)
    encode, head = replay_parts(model)
    keys = jax.random.split(jax.random.key(3, impl="rbg"), SEGMENTS)
    segments, state = (batch(), keys), model.init_state(ROWS, jnp.float64)
    p = {name: value for name, value in own_params().items() if name != "decoder_1"}

    def step(p, memory, segment):
        memory, encoded = encode(p, memory, segment)
        return memory, head(p, encoded, segment)[1]

    bptt = lambda p: loss_over_segments(step, p, state, segments, rematerialize="none")[1].total
    value, expected = jax.jit(jax.value_and_grad(bptt))(p)
    found = jax.jit(lambda p: mrbp_value_and_grad(encode, head, p, state, segments))(p)
    assert float(found.aux.weight.sum()) == float(batch().weights.sum())
    np.testing.assert_allclose(found.value, value, rtol=1e-12)
    leaves = jax.tree_util.tree_flatten_with_path(found.gradients)[0]
    for (path, leaf), other in zip(leaves, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-10, atol=1e-10, err_msg=jax.tree_util.keystr(path))
        assert np.asarray(other).any(), jax.tree_util.keystr(path)  # v and the begin token among them


def test_a_segment_knows_those_before_through_the_encoder_only():
    model, ids = make(), tokens(0, 4)
    outputs, _ = over_segments(model, own_params(), ids)
    changed = ids.at[0, 0, 1].set((ids[0, 0, 1] + 1) % VOCAB)
    others, _ = over_segments(model, own_params(), changed)
    for segment in range(1, 4):  # the next one by the encoding, later ones by the memory
        assert np.abs(others[segment][0] - outputs[segment][0]).max() > 1e-9
        np.testing.assert_array_equal(others[segment][1], outputs[segment][1])
    np.testing.assert_array_equal(others[0][0, :1], outputs[0][0, :1])
    forgetful, _ = over_segments(make(num_slots=0), forget_memory(own_params()), ids)
    same, _ = over_segments(make(num_slots=0), forget_memory(own_params()), changed)
    assert np.abs(same[1][0] - forgetful[1][0]).max() > 1e-9
    np.testing.assert_array_equal(same[2], forgetful[2])


def forget_memory(p):
    """The parameters of the model without memory."""
    encoder = {name: value for name, value in p["encoder"].items() if "writer" not in name and name != "forgetting"}
    layer = {name: value for name, value in encoder["layers_0"].items() if not name.startswith("reader")}
    return {**p, "encoder": {**encoder, "layers_0": layer}}


def test_a_document_that_starts_again_is_a_new_one():
    model, ids = make(), tokens(0, 4)
    starts = jnp.zeros((4, ROWS), bool).at[2].set(True)
    outputs, _ = over_segments(model, own_params(), ids, starts)
    fresh, _ = over_segments(model, own_params(), ids[2:])
    np.testing.assert_array_equal(outputs[2:], fresh)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        *(
            pytest.param(fields, marks=pytest.mark.laws)
            for fields in ({"scan_layers": True, "single_memory_head": True, **BEFORE}, {"encoder_layers": 0})
        ),
    ],
)
def test_decoding_equals_the_segment_forward(fields):
    model, p, ids = make(**fields), params(**fields), tokens(0, 3)
    expected, last = over_segments(model, p, ids)
    state = model.init_decode_state(model.init_state(ROWS, jnp.float64), LENGTH, ROWS)
    traces = []

    @jax.jit
    def decode(state, token, active):
        traces.append(1)
        return model.apply({"params": p}, token, state, active=active, method="decode")

    flat, read = np.concatenate(ids, axis=1), np.zeros(ROWS, int)  # [rows, tokens]
    found = [[] for _ in range(ROWS)]
    for index in range(30):
        active = (read < flat.shape[1]) & np.array([True, index % 3 > 0])
        token = flat[np.arange(ROWS), np.minimum(read, flat.shape[1] - 1)][:, None]
        y, after = decode(state, jnp.asarray(token), jnp.asarray(active))
        for row in range(ROWS):
            if active[row]:
                found[row].append(np.asarray(y[row, 0]))
            else:
                for a, b in zip(
                    *(jax.tree.leaves(take_rows(s, jnp.array([row]))) for s in (after, state)), strict=True
                ):
                    np.testing.assert_array_equal(a, b)
        state, read = after, read + active
    assert (read == flat.shape[1]).all() and len(traces) == 1
    np.testing.assert_allclose(np.stack([np.stack(row) for row in found]), np.concatenate(expected, axis=1), atol=1e-10)
    for a, b in zip(jax.tree.leaves(state.state), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_rows_of_padding_keep_their_state_and_have_no_weight():
    model, ids = make(), tokens()
    _, state = over_segments(model, own_params(), ids)
    mask = jnp.array([[False] * LENGTH, [True, True, False, False]])
    named = {"start_of_document": jnp.zeros(ROWS, bool), "mask": mask}
    read = jax.jit(model.apply)
    _, new, aux = read({"params": own_params()}, ids[0], state, **named)
    for a, b in zip(*(jax.tree.leaves(take_rows(s, jnp.array([0]))) for s in (new, state)), strict=True):
        np.testing.assert_array_equal(a, b)
    of_spread = ("memformer/slot_cosine", "memformer/effective_slots")
    assert {name: float(metric.weight) for name, metric in aux.metrics.items()} == {  # of the other row
        name: 1.0 if name in of_spread else 3.0 for name in aux.metrics
    }
    garbage = jnp.where(mask, ids[0], 0)
    _, other, _ = read({"params": own_params()}, garbage, state, **named)
    named = {"start_of_document": jnp.zeros(ROWS, bool)}
    after, same = (read({"params": own_params()}, ids[1], s, **named)[0] for s in (new, other))
    np.testing.assert_array_equal(after, same)


@pytest.mark.parametrize("write_begin_token", [False, True])
def test_the_first_text_of_a_document_reads_the_learned_memory(write_begin_token):
    model, ids = make(write_begin_token=write_begin_token), tokens()
    start = jnp.zeros(ROWS, bool)
    apply = lambda state, segment: program(model)(own_params(), segment, state, start)
    _, begun, _ = apply(model.init_state(ROWS, jnp.float64), ids[0])
    bias = own_params()["encoder"]["forgetting"]
    learned = np.broadcast_to(bias / np.linalg.norm(bias, axis=1, keepdims=True), begun.memory.slots.shape)
    assert np.allclose(begun.memory.slots, learned, atol=1e-9) != write_begin_token
    _, after, aux = apply(begun, ids[1])
    assert (np.abs(after.memory.slots - begun.memory.slots).max(axis=(1, 2)) > 1e-3).all()
    assert float(aux.metrics["memformer/retaining"].weight) == ROWS * 3


@pytest.mark.parametrize("positions, knows", [("none", False), ("sinusoids", True)])
def test_what_reads_the_segment_before_knows_places(positions, knows):
    # Without buckets, classification tokens and the order of a segment can only be told apart by positions.
    model = make(segment_positions=positions)
    model = model.clone(encoder=model.encoder.clone(num_buckets=0))
    p = {**own_params(), "encoder": {k: v for k, v in own_params()["encoder"].items() if k != "position_bias"}}
    ids = jnp.array([[[0, 1, 2, 3]] * 2, [[4, 5, 6, 0]] * 2], jnp.int32)
    (_, read), (_, turned) = (
        over_segments(model, p, jnp.stack([before, ids[1]]))[0] for before in (ids[0], ids[0, :, ::-1])
    )
    assert (np.abs(read - turned).max() > 1e-6) == knows


def test_scanned_layers_are_the_same_layers():
    stacked = lambda p, first: jax.tree.map(
        lambda *leaves: np.stack(leaves), *(p.pop(f"{first}_{i}") for i in range(2))
    )
    p = dict(own_params())
    p["decoder_0"] = stacked(p, "decoder")
    encoder = dict(p["encoder"])
    encoder["layers_0"] = jax.tree.map(lambda leaf: leaf[None], encoder["layers_0"])
    outputs, _ = over_segments(make(scan_layers=True), {**p, "encoder": encoder}, tokens())
    np.testing.assert_allclose(outputs, over_segments(make(), own_params(), tokens())[0], atol=1e-12)


def test_the_softmax_of_a_configuration():
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "encoder_layers": 1, "num_slots": 2}
    tokens = jnp.zeros((1, LENGTH), jnp.int32)

    def names(output):
        model = make_memformer(configs.Memformer(**sizes, output=output), 10, segment_length=LENGTH)
        starts = jnp.ones(1, bool)
        init = lambda: model.init(jax.random.key(0), tokens, model.init_state(1), start_of_document=starts)
        return set(jax.eval_shape(init)["params"]["vocabulary"])

    assert names(configs.Softmax()) == {"embedding"}
    assert names(configs.Softmax(tied=False, bias=True)) == {"embedding", "output", "bias"}


def test_the_state_is_as_large_as_the_slots():
    sizes = {"dim": 512, "num_heads": 8, "feed_forward": configs.Dense(dim=2048), "encoder_layers": 4, "num_layers": 16}
    model = make(**sizes, num_slots=1024, segment_length=128, compute_dtype="float32")
    state = jax.eval_shape(lambda: model.init_state(16))
    bytes_of = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    assert state.memory.slots.size * 4 == 16 * 1024 * 512 * 4
    transformer_xl = 16 * 16 * 1024 * 512 * 4  # 16 layers of 1,024 hidden states
    assert bytes_of(state.memory) <= 1.001 * transformer_xl / 16


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_heads": 3}, "num_heads: given 3, allowed: a divisor of dim = 8"),
        ({"num_layers": 0}, "num_layers: given 0, allowed: at least 1"),
    ],
)
def test_bad_sizes_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        make(**fields)


def test_another_segment_length_is_refused():
    model = make()
    with pytest.raises(ValueError, match="segment_length: given 5, allowed: 4"):
        model.init_decode_state(model.init_state(1), 5, 1)
    with pytest.raises(ValueError, match="tokens: given 3, allowed: segment_length = 4"):
        jax.eval_shape(
            lambda: model.apply(
                {"params": own_params()},
                tokens()[0, :, :3],
                model.init_state(ROWS),
                start_of_document=jnp.ones(ROWS, bool),
            )
        )


def test_memories_over_its_output_are_refused():
    with pytest.raises(ValueError, match="^add_mixtures: given Memformer, allowed: a model that takes memories over"):
        add_mixtures(make(), KNNMemory())
