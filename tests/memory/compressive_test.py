"""Compressive Transformer against float64 loops, and the invariants C5 to C9 of its specification.

C1 and C2 are degenerate cases (`tests/contract/relations.py`), C3 and C4 concern the compression functions alone.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.memory.compressive import CompressiveAttention, evict, reset
from memjax.memory.compressive_state import AttentionUsage, CompressiveState
from memjax.memory.transformer_xl import TransformerXLProjector, TransformerXLState
from memjax.typing import EmptyState
from tests.reference import compressive as reference
from tests.reference.parameters import params_of

DIM, HEADS, HEAD_DIM, ROWS, SEGMENT = 8, 2, 3, 3, 4
SIZES = {"memory_length": 6, "compressed_memory_length": 5, "compression_rate": 2}
GOLDEN = Path(__file__).parent.parent / "golden" / "compressive.npz"
COMPRESSION = ("compression_kernel", "dilated_kernels", "decompression_kernel")


def make(**fields) -> CompressiveAttention:
    positions = {name: fields.pop(name) for name in ("tied_biases", "clamp_length") if name in fields}
    fields = {**SIZES, "dtype": jnp.float64, "dilations": (1, 2), **fields}
    return CompressiveAttention(DIM, HEADS, HEAD_DIM, projector=TransformerXLProjector(**positions), **fields)


def document(seed: int = 0, tokens: int = 6 * SEGMENT) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, tokens, DIM))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def some_params(part: CompressiveAttention) -> dict:
    x = jnp.zeros((1, 12, part.dim))
    return params_of(part, x, part.init_state(1), start_of_document=jnp.ones(1, bool))


@functools.cache
def stepper(part: CompressiveAttention):
    @jax.jit
    def step(params, x, state, start, mask):
        return part.apply({"params": params}, x, state, start_of_document=start, mask=mask)

    return step


def run(part: CompressiveAttention, x, *, length=SEGMENT, state=None, start=True, masks=None):
    """A document in segments: outputs, the state after each segment, and what each adds to the loss."""
    state = part.init_state(ROWS, np.float64) if state is None else state
    outputs, states, losses = [], [], []
    for index, first in enumerate(range(0, x.shape[1], length)):
        begins = np.broadcast_to(start and index == 0, (ROWS,))
        mask = np.ones((ROWS, length), bool) if masks is None else masks[index]
        y, state, aux = stepper(part)(some_params(part), x[:, first : first + length], state, begins, mask)
        outputs.append(np.asarray(y))
        states.append(jax.tree.map(np.asarray, state))
        losses.append(aux.losses)
    return np.concatenate(outputs, axis=1), states, losses


def reference_layers(part: CompressiveAttention) -> list[reference.Layer]:
    fields = {
        name: getattr(part, name)
        for name in ("compression", "compression_loss", "compressed_positions", "norm", "dilations")
    }
    return [
        reference.Layer(
            some_params(part),
            memory_length=part.memory_length,
            compressed_length=part.compressed_memory_length,
            rate=part.compression_rate,
            clamp_length=part.projector.clamp_length,
            **fields,
        )
        for _ in range(ROWS)
    ]


def assert_holds(state: CompressiveState, layers: list[reference.Layer], atol: float = 1e-12) -> None:
    """Both memories hold what the reference holds, slot by slot."""
    for b, layer in enumerate(layers):
        for slots, valid, expected in (
            (state.hidden, state.valid, [entry and entry["x"] for entry in layer.memory]),
            (state.compressed, state.compressed_valid, list(layer.compressed)),
        ):
            np.testing.assert_array_equal(valid[b], [slot is not None for slot in expected])
            for slot in np.flatnonzero(valid[b]):
                np.testing.assert_allclose(slots[b, slot], expected[slot], rtol=0, atol=atol)


VARIANTS = {
    "convolution": {},
    "max, contiguous": {"compression": "max", "compressed_positions": "contiguous", "clamp_length": 7},
    "mean, pre-norm": {"compression": "mean", "norm": "pre", "compression_rate": 4, "compressed_memory_length": 3},
    "dilated, auto-encoding, pre-norm": {"compression": "dilated", "compression_loss": "auto_encoding", "norm": "pre"},
    "convolution, pre-norm": {"norm": "pre"},
    "convolution, normed memory": {"norm": "pre_sonnet", "memory_length": 3},
    "most used": {"compression": "most_used"},
    "most used, short memory": {
        "compression": "most_used",
        "norm": "pre",
        "memory_length": 5,
        "compressed_positions": "contiguous",
    },
    "a memory shorter than the segment": {"memory_length": 2, "compressed_memory_length": 7},
    "most used, shorter than the segment": {"compression": "most_used", "memory_length": 1},
}


FAST = (
    "convolution",
    "max, contiguous",
    "dilated, auto-encoding, pre-norm",
    "convolution, normed memory",
    "most used, short memory",
    "a memory shorter than the segment",
)
"""Each option at least once; `make test-laws` runs all."""


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(fields, id=name, marks=[] if name in FAST else pytest.mark.laws)
        for name, fields in VARIANTS.items()
    ],
)
def test_equals_the_float64_reference(fields):
    """Outputs, both memories slot by slot and the loss, before, at and after the compressed memory is full."""
    part, x = make(**fields), document()
    outputs, states, losses = run(part, x)
    layers = reference_layers(part)
    for segment, state in enumerate(states):
        tokens = slice(segment * SEGMENT, (segment + 1) * SEGMENT)
        expected = [layer.read(x[b, tokens]) for b, layer in enumerate(layers)]
        np.testing.assert_allclose(outputs[:, tokens], expected, rtol=0, atol=1e-12)
        assert_holds(state, layers)
        if losses[segment]:
            (loss,) = losses[segment].values()
            total, weight = np.sum([layer.losses[-1] for layer in layers], axis=0)
            np.testing.assert_allclose((loss.total, loss.weight), (total, weight), rtol=0, atol=1e-12)
    assert states[-1].compressed_valid.all() and not states[1].compressed_valid.all()
    assert total > 0 and weight > 0 or part.compression_loss == "none"


def test_zeros_that_are_attended_to_equal_the_reference_with_zero_slots():
    part, x = make(empty_memory="zeros"), document()
    outputs, states, _ = run(part, x)
    layers = reference_layers(part)
    for layer in layers:
        zeros = lambda: {"x": np.zeros(DIM), "usage": 0.0, "queries": 0}
        layer.memory.extend(zeros() for _ in range(part.memory_length))
        layer.compressed.extend(np.zeros(DIM) for _ in range(part.compressed_memory_length))
    for first in range(0, x.shape[1], SEGMENT):
        expected = [layer.read(row[first : first + SEGMENT]) for layer, row in zip(layers, x, strict=True)]
        np.testing.assert_allclose(outputs[:, first : first + SEGMENT], expected, rtol=0, atol=1e-12)
    assert_holds(states[-1], layers)
    assert part.init_state(ROWS).compressed_valid.all() and not part.init_state(ROWS).compressed.any()


# C5: what learns from what


def losses_of(part: CompressiveAttention, params, x):
    """The loss of the model (a stand-in) and that of the compression, over all segments."""
    state, model, compression = part.init_state(ROWS, x.dtype), 0.0, 0.0
    for index, first in enumerate(range(0, x.shape[1], SEGMENT)):
        start = jnp.full((ROWS,), index == 0)
        y, state, aux = part.apply({"params": params}, x[:, first : first + SEGMENT], state, start_of_document=start)
        model = model + (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum()
        compression = compression + sum(loss.total for loss in aux.losses.values())
    return model, compression


@functools.cache
def gradients_of(part: CompressiveAttention):
    """Gradients of both losses to parameters and inputs, over four segments: the last reads compressed slots."""

    @jax.jit
    def gradients(params, x):
        _, pull = jax.vjp(functools.partial(losses_of, part), params, x)
        one, zero = jnp.ones((), x.dtype), jnp.zeros((), x.dtype)
        return pull((one, zero)), pull((zero, one)) if part.compression_loss != "none" else None

    return gradients(some_params(part), jnp.asarray(document(tokens=4 * SEGMENT)))


@pytest.mark.parametrize(
    "compression, loss, norm",
    [
        ("convolution", "attention", "post"),
        ("dilated", "auto_encoding", "pre"),
        pytest.param("convolution", "attention", "pre", marks=pytest.mark.laws),
        pytest.param("convolution", "attention", "pre_sonnet", marks=pytest.mark.laws),
        pytest.param("dilated", "auto_encoding", "post", marks=pytest.mark.laws),
        pytest.param("dilated", "auto_encoding", "pre_sonnet", marks=pytest.mark.laws),
    ],
)
def test_the_compression_learns_from_its_own_loss_and_nothing_else_does(compression, loss, norm):
    by_model, by_compression = gradients_of(make(compression=compression, compression_loss=loss, norm=norm))
    own = [name for name in by_model[0] if name in COMPRESSION]
    assert own
    for name, gradient in by_compression[0].items():
        for leaf in jax.tree.leaves(gradient):
            assert np.any(leaf) == (name in own), name
    assert not np.any(by_compression[1])
    for name, gradient in by_model[0].items():
        for leaf in jax.tree.leaves(gradient):
            assert np.any(leaf) == (name not in own), name


@pytest.mark.parametrize("compression", ["convolution", pytest.param("dilated", marks=pytest.mark.laws)])
def test_without_a_loss_the_compression_learns_through_later_segments(compression):
    (params, x), _ = gradients_of(make(compression=compression, compression_loss="none"))
    for name, gradient in params.items():
        assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient)), name
    assert np.any(x)


def test_the_gradient_through_the_compression_is_that_of_difference_quotients():
    part, x = make(compression_loss="none"), jnp.asarray(document(tokens=4 * SEGMENT))
    params = jax.tree.map(jnp.asarray, some_params(part))
    direction = np.random.default_rng(5).normal(size=params["compression_kernel"].shape)

    @jax.jit
    def model(width):
        kernel = params["compression_kernel"] + width * direction
        return losses_of(part, {**params, "compression_kernel": kernel}, x)[0]

    quotient = (model(1e-5) - model(-1e-5)) / 2e-5
    exact = (gradients_of(part)[0][0]["compression_kernel"] * direction).sum()
    np.testing.assert_allclose(quotient, exact, rtol=1e-6)


def test_nothing_is_lost_where_nothing_is_compressed():
    """C6."""
    part = make(compression_rate=1)
    params = {**some_params(part), "compression_kernel": np.eye(DIM)[None]}
    state, x = part.init_state(ROWS, np.float64), document()
    for segment in range(4):
        start = np.full(ROWS, segment == 0)
        tokens = x[:, segment * SEGMENT : (segment + 1) * SEGMENT]
        _, state, aux = stepper(part)(params, tokens, state, start, np.ones((ROWS, SEGMENT), bool))
    loss = aux.losses["compressive/attention_reconstruction"]
    assert loss.weight == ROWS * SEGMENT
    np.testing.assert_allclose(loss.total, 0, atol=1e-24)


def test_queries_before_what_is_compressed_do_not_learn_from_it():
    part, x = make(memory_length=2), document(tokens=2 * SEGMENT)
    # Of four tokens that leave, the last two are the first two of the segment: its first query stands before one.
    name = "compressive/attention_reconstruction"
    assert [loss[name].weight for loss in run(part, x)[2]] == [3 * ROWS] * 2
    assert run(make(memory_length=4), x)[2][1][name].weight == 4 * ROWS
    # Windows of three begin at tokens 2, 5, 8, 11: the last one ends with token 13, in the segment from 12 on.
    part = make(memory_length=4, compression_rate=3)
    assert [loss[name].weight / ROWS for loss in run(part, document())[2]] == [0, 4, 4, 3, 4, 4]


# C7: windows


@pytest.mark.parametrize(
    "rate, memory_length, compression",
    [
        pytest.param(2, 6, "mean", marks=pytest.mark.laws),
        (3, 4, "convolution"),
        pytest.param(4, 5, "convolution", marks=pytest.mark.laws),
    ],
)
def test_the_same_windows_are_compressed_whatever_the_segments_are(rate, memory_length, compression):
    """Token by token, in segments that are not whole windows, and in segments that are."""
    part = make(compression=compression, compression_rate=rate, memory_length=memory_length)
    x, found = document(tokens=24), {}
    for length in (1, 3, 4, 12):
        found[length] = run(part, x, length=length)[1][-1]
    whole = found[12]
    assert whole.compressed_valid.sum() >= 3
    for length, state in found.items():
        np.testing.assert_array_equal(state.hidden, whole.hidden, err_msg=f"segments of {length}")
        np.testing.assert_array_equal(state.compressed_valid, whole.compressed_valid, err_msg=f"segments of {length}")
        seen = whole.compressed_valid
        np.testing.assert_allclose(
            state.compressed[seen], whole.compressed[seen], atol=1e-12, err_msg=f"segments of {length}"
        )
    kernel = some_params(part).get("compression_kernel", np.broadcast_to(np.eye(DIM) / rate, (rate, DIM, DIM)))
    # The windows are the tokens from a multiple of the rate (less memory_length) on, newest last.
    starts = [t for t in range(-memory_length % rate, 24 - memory_length, rate)][-part.compressed_memory_length :]
    expected = [reference.strided_convolution(list(x[0, s : s + rate]), kernel)[0] for s in starts]
    np.testing.assert_allclose(whole.compressed[0][-len(expected) :], expected, atol=1e-12)


def test_rows_that_are_out_of_phase_compress_their_own_windows():
    """A row that began its document later, in segments that are not whole windows."""
    part, x = make(compression_rate=3, memory_length=5), document()
    together = run(part, x)[1]
    state, late = part.init_state(ROWS, np.float64), 2
    ones = np.ones((ROWS, SEGMENT), bool)
    for segment in range(6):
        start = np.array([segment == 0, segment == late, segment == 0])
        shifted = np.concatenate([np.zeros((1, late * SEGMENT, DIM)), x[1:2, : -late * SEGMENT]], axis=1)
        tokens = np.concatenate([x[:1], shifted, x[2:]])[:, segment * SEGMENT : (segment + 1) * SEGMENT]
        _, state, _ = stepper(part)(some_params(part), tokens, state, start, ones)
    for b, expected in enumerate([together[5], together[5 - late], together[5]]):
        assert state.phase[b] == expected.phase[b]
        np.testing.assert_array_equal(state.compressed_valid[b], expected.compressed_valid[b])
        seen = expected.compressed_valid[b]
        np.testing.assert_allclose(state.compressed[b][seen], expected.compressed[b][seen], atol=1e-12)


def test_what_is_evicted_by_hand():
    slots = np.arange(1.0, 6.0).reshape(1, 5, 1) * np.ones((2, 1, 1))
    valid = np.array([[True] * 5, [False] * 2 + [True] * 3])
    state = CompressiveState(slots, valid, np.zeros((2, 2, 1)), np.zeros((2, 2), bool), np.array([0, 1]), EmptyState())
    segment, mask = np.arange(6.0, 10.0).reshape(1, 4, 1) * np.ones((2, 1, 1)), np.ones((2, 4), bool)
    state, segment, mask = jax.tree.map(jnp.asarray, (state, segment, mask))
    old = evict(state, segment, mask, 2)
    np.testing.assert_array_equal(old.hidden[..., 0], [[1, 2, 3, 4], [0, 0, 3, 4]])
    assert old.start is None and old.last is None
    # Windows of three: the second row has written one token, so that its next window begins two tokens on.
    old = evict(state, segment, mask, 3)
    np.testing.assert_array_equal(old.hidden[..., 0], [[1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8]])
    np.testing.assert_array_equal(old.last, [True, False])
    np.testing.assert_array_equal(old.places(jnp.arange(9)[None] + jnp.zeros((2, 1), int)), [range(6), range(2, 8)])


def test_a_memory_that_cannot_hold_the_rest_of_a_window_is_refused():
    part = make(memory_length=1, compression_rate=3)
    with pytest.raises(ValueError, match="memory_length: given 1, allowed: at least compression_rate - 1 = 2 for"):
        run(part, document())
    run(part, document(), length=6)  # whole windows


# C8: documents


@pytest.mark.parametrize("compression", ["convolution", "dilated", "most_used"])
def test_no_compressed_slot_stands_for_two_documents(compression):
    """A new document on a full memory: segment by segment as on an empty one, until all slots are new."""
    part, x = make(compression=compression), document(seed=2)
    used = run(part, document(seed=1))[1][-1]
    assert used.valid.all() and used.compressed_valid.all()
    fresh_outputs, fresh, fresh_losses = run(part, x)
    outputs, states, losses = run(part, x, state=used)
    for segment, (state, expected) in enumerate(zip(states, fresh, strict=True)):
        np.testing.assert_array_equal(state.valid, expected.valid)
        np.testing.assert_array_equal(state.compressed_valid, expected.compressed_valid)
        seen = expected.compressed_valid
        np.testing.assert_array_equal(state.compressed[seen], expected.compressed[seen])
        tokens = slice(segment * SEGMENT, (segment + 1) * SEGMENT)
        np.testing.assert_array_equal(outputs[:, tokens], fresh_outputs[:, tokens], err_msg=f"segment {segment}")
        assert losses[segment] == fresh_losses[segment]
    carried = run(part, x, state=used, start=False)[0]
    for segment in range(3):  # two segments after the border the old document would still be there
        tokens = slice(segment * SEGMENT, (segment + 1) * SEGMENT)
        assert np.abs(carried[:, tokens] - outputs[:, tokens]).max() > 1e-3


def test_a_reset_empties_its_rows_only():
    used = run(make(compression="most_used", compression_rate=3), document(tokens=5 * SEGMENT))[1][-1]
    new = jax.tree.map(np.asarray, jax.jit(reset)(used, np.array([False, True, False])))
    for leaf, old in zip(jax.tree.leaves(new), jax.tree.leaves(used), strict=True):
        assert not leaf[1].any() and old[[0, 2]].any()
        np.testing.assert_array_equal(leaf[[0, 2]], old[[0, 2]])


def test_a_window_with_an_empty_slot_gives_an_invalid_one():
    part, x = make(memory_length=3), document()  # the first window of a document has two slots before its beginning
    states = run(part, x)[1]
    assert states[0].compressed_valid.sum() == 0
    np.testing.assert_array_equal(states[1].compressed_valid, [[False, False, False, True, True]] * ROWS)
    np.testing.assert_array_equal(states[0].valid, [[True] * 3] * ROWS)


def test_padding_is_not_compressed_and_an_idle_row_keeps_its_state():
    part, x = make(memory_length=4), document()
    full = np.ones((ROWS, SEGMENT), bool)
    tail = np.arange(SEGMENT)[None, :] < np.array([[4], [3], [0]])
    _, states, losses = run(part, x[:, : 4 * SEGMENT], masks=[full, tail, full, full])
    np.testing.assert_array_equal(
        states[2].compressed_valid[:, -4:], [[True] * 4, [True] * 3 + [False], [False] * 2 + [True] * 2]
    )
    jax.tree.map(lambda new, old: np.testing.assert_array_equal(new[2], old[2]), states[1], states[0])
    weights = [loss["compressive/attention_reconstruction"].weight for loss in losses]
    assert weights == [0, 4 + 3, 4 * ROWS, 4 * ROWS]  # queries of rows that compress something


# C9: the most used


def test_usage_is_the_mean_attention_since_a_slot_was_written():
    part, x = make(compression="most_used", norm="pre"), document()
    states = run(part, x)[1]
    layers = reference_layers(part)
    for segment, state in enumerate(states):
        for b, layer in enumerate(layers):
            layer.read(x[b, segment * SEGMENT : (segment + 1) * SEGMENT])
            entries, seen = [entry for entry in layer.memory if entry], state.valid[b]
            attention = [entry["usage"] for entry in entries]
            np.testing.assert_allclose(state.usage.attention[b][seen], attention, rtol=0, atol=1e-12)
            np.testing.assert_array_equal(state.usage.queries[b][seen], [entry["queries"] for entry in entries])


@pytest.mark.parametrize("queries", [1, [1, 40, 1, 1, 1, 1]])
def test_the_slots_of_largest_mean_usage_are_kept(queries):
    part = make(compression="most_used", memory_length=6)
    attention = np.array([0.1, 0.9, 0.5, 0.4, 9.0, 9.0])
    state = part.init_state(ROWS, np.float64)
    ones = np.ones((ROWS, 6))
    hidden = np.arange(6.0)[None, :, None] * np.ones((ROWS, 1, DIM))
    usage = AttentionUsage(1e3 * ones * attention, (ones * queries).astype(np.int32))
    state = CompressiveState(hidden, ones > 0, state.compressed, state.compressed_valid, state.phase, usage)
    new = run(part, document(tokens=SEGMENT), state=state, start=False)[1][0]
    expected = [1, 2] if queries == 1 else [2, 3]  # 900 over 44 queries is less than 400 over 5
    np.testing.assert_array_equal(new.compressed[:, -2:, 0], [expected] * ROWS)
    np.testing.assert_array_equal(new.compressed_valid, [[False] * 3 + [True] * 2] * ROWS)
    assert not new.usage.attention[:, -SEGMENT:].any() and not new.usage.queries[:, -SEGMENT:].any()


# Positions


def test_separate_positions_have_parameters_of_their_own():
    separate, contiguous = (
        some_params(make(compressed_positions=positions)) for positions in ("separate", "contiguous")
    )
    assert set(separate) - set(contiguous) == {"compressed_relative", "compressed_position"}
    gradients = gradients_of(make())[0][0]
    assert np.any(gradients["compressed_relative"]) and np.any(gradients["compressed_position"])


def test_tied_biases_are_parameters_of_the_stack():
    part = make(tied_biases=True)
    x, start = jnp.asarray(document(tokens=SEGMENT)), jnp.ones(ROWS, bool)
    shared = (jnp.ones((HEADS, HEAD_DIM)), jnp.zeros((HEADS, HEAD_DIM)))
    call = {"start_of_document": start, "shared": shared}
    params = jax.tree.map(jnp.asarray, params_of(part, x, part.init_state(ROWS), **call))
    assert "biases" not in params and "compressed_position" in params
    y = jax.jit(lambda params: part.apply({"params": params}, x, part.init_state(ROWS, x.dtype), **call)[0])(params)
    own = {**params, "biases": {"content": shared[0], "position": shared[1]}}
    expected, _, _ = stepper(make())(own, x, part.init_state(ROWS, x.dtype), start, np.ones((ROWS, SEGMENT), bool))
    np.testing.assert_allclose(y, expected, atol=1e-12)


# State and dtypes


def test_without_a_compressed_memory_the_state_is_that_of_transformer_xl():
    assert isinstance(make(compressed_memory_length=0).init_state(2), TransformerXLState)
    assert make(memory_length=0).init_state(2) == EmptyState()
    assert make().init_state(2).usage == EmptyState()


@pytest.mark.parametrize(
    "compression",
    ["convolution", *(pytest.param(name, marks=pytest.mark.laws) for name in ("mean", "most_used"))],
)
def test_bfloat16_keeps_the_dtypes_and_stays_close(compression):
    exact_part, part = make(compression=compression), make(compression=compression, dtype=jnp.bfloat16)
    x = document()
    exact = run(exact_part, x)[1][-2]
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16 if leaf.ndim == 3 else None), exact)
    if compression == "most_used":
        narrow = AttentionUsage(jnp.asarray(exact.usage.attention, jnp.float32), exact.usage.queries)
        state = CompressiveState(
            *(getattr(state, name) for name in ("hidden", "valid", "compressed")),
            state.compressed_valid,
            state.phase,
            narrow,
        )
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), some_params(exact_part))
    start, mask = np.zeros(ROWS, bool), np.ones((ROWS, SEGMENT), bool)
    y, new, aux = stepper(part)(params, jnp.asarray(x[:, -SEGMENT:], jnp.bfloat16), state, start, mask)
    assert y.dtype == new.hidden.dtype == new.compressed.dtype == jnp.bfloat16
    (loss,) = aux.losses.values()
    assert loss.total.dtype == jnp.float32
    expected, expected_state, expected_aux = stepper(exact_part)(
        some_params(exact_part), x[:, -SEGMENT:], exact, start, mask
    )
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, atol=0.1)
    np.testing.assert_allclose(np.asarray(new.compressed, np.float64), expected_state.compressed, atol=0.1)
    (expected_loss,) = expected_aux.losses.values()
    np.testing.assert_allclose(float(loss.mean()), expected_loss.mean(), rtol=0.1)


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"same_length": True}, "same_length: given True with a compressed memory, allowed: False"),
    ],
)  # fmt: skip
def test_wrong_fields_get_one_line(fields, line):
    with pytest.raises(ValueError) as error:
        make(**fields).init_state(2)
    assert str(error.value).startswith(line)


# Numbers of other implementations


def golden(part: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return {name.removeprefix(part): file[name].astype(np.float64) for name in file if name.startswith(part)}


def in_heads(matrix: np.ndarray) -> np.ndarray:
    """A torch matrix `[heads * head_dim, dim]` as `[dim, heads, head_dim]`."""
    return matrix.T.reshape(matrix.shape[1], 2, -1)


def test_layers_memories_and_losses_equal_those_of_another_implementation():
    """compressive-transformer-pytorch: one row of slots for positions, a memory of normed inputs that starts empty."""
    file, name = golden("self_attention/"), "param/fn.fn."
    keys, values = np.split(file[name + "to_kv.weight"], 2)
    heads = np.zeros((2, 8))
    params = {
        "query": in_heads(file[name + "to_q.weight"]),
        "key_value": np.stack([in_heads(keys), in_heads(values)], axis=1),
        "relative": file["relative"],
        "output": file[name + "to_out.weight"].T.reshape(2, 8, 16),
        "biases": {"content": heads, "position": heads},
        "layer_norm": {"scale": file["param/fn.norm.weight"], "bias": file["param/fn.norm.bias"]},
        "compression_kernel": file[name + "compress_mem_fn.conv.weight"].transpose(2, 1, 0),
    }
    sizes = {"compressed_memory_length": 4, "compression_rate": 3}
    part = CompressiveAttention(
        16, 2, 8, 6, **sizes, norm="pre_sonnet", compressed_positions="contiguous", dtype=jnp.float64
    )
    step = stepper(part)

    start, mask = jnp.zeros(2, bool), jnp.ones((2, 6), bool)

    @jax.jit
    def loss(kernel, x, state):
        losses = step({**params, "compression_kernel": kernel}, x, state, start, mask)[2].losses
        return losses["compressive/attention_reconstruction"].mean()

    state = part.init_state(2, np.float64)
    for segment in range(5):
        find = lambda name, segment=segment: file[f"segment{segment}/{name}"]
        value, gradient = jax.value_and_grad(loss)(params["compression_kernel"], find("x"), state)
        np.testing.assert_allclose(value, find("loss").sum(), rtol=1e-5)
        np.testing.assert_allclose(gradient, find("grad").transpose(2, 1, 0), rtol=0, atol=2e-6)
        y, state, _ = step(params, find("x"), state, start, mask)
        np.testing.assert_allclose(y, find("y"), rtol=0, atol=2e-6)
        np.testing.assert_allclose(state.hidden, find("mem"), rtol=0, atol=2e-6)
        slots = find("cmem").shape[1]
        assert np.asarray(state.compressed_valid).sum(axis=1).tolist() == [slots] * 2
        np.testing.assert_allclose(state.compressed[:, 4 - slots :], find("cmem"), rtol=0, atol=2e-6)
    assert slots == 4 and value > 0


def test_attention_reconstruction_equals_that_of_another_implementation():
    """labml-nn: un-normalised memories, normed when read with parameters that the loss does not reach."""
    file = golden("reconstruction/")
    linear = lambda which: in_heads(file[f"param/self_attn.{which}.linear.weight"])
    hidden, memory = (file[name].transpose(1, 0, 2) for name in ("hidden", "memory"))
    sizes = {"compressed_memory_length": 2, "compression_rate": 4}
    part = CompressiveAttention(16, 2, 8, 8, **sizes, norm="pre", dtype=jnp.float64)
    params = {
        **some_params(part),
        "query": linear("query"),
        "key_value": np.stack([linear("key"), linear("value")], axis=1),
        "layer_norm": {"scale": file["param/norm_self_attn.weight"], "bias": file["param/norm_self_attn.bias"]},
    }
    state = part.init_state(2, np.float64)
    state = dataclasses.replace(state, hidden=jnp.asarray(memory), valid=jnp.ones((2, 8), bool))

    @jax.jit
    def loss(params):
        aux = stepper(part)(params, hidden, state, jnp.zeros(2, bool), jnp.ones((2, 8), bool))[2]
        return aux.losses["compressive/attention_reconstruction"].mean()

    params["compression_kernel"] = file["param/compress.conv.weight"].transpose(2, 1, 0)
    value, gradient = jax.value_and_grad(loss)(params)
    np.testing.assert_allclose(value, file["loss"], rtol=1e-5)
    np.testing.assert_allclose(gradient.pop("compression_kernel"), file["grad"].transpose(2, 1, 0), rtol=0, atol=2e-6)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_the_compression_has_the_published_size():
    """One convolution of width 4 over 1,024 features without bias: 4,194,304 parameters."""
    fields = {"compressed_memory_length": 512, "compression_rate": 4}
    part = CompressiveAttention(1024, 16, 64, 512, **fields)
    without = CompressiveAttention(1024, 16, 64, 512, **{**fields, "compressed_memory_length": 0})
    x, start = jax.ShapeDtypeStruct((1, 4, 1024), jnp.float32), jax.ShapeDtypeStruct((1,), bool)
    sizes = []
    for module in (part, without):
        init = lambda x, start, module=module: module.init(
            jax.random.key(0), x, module.init_state(1), start_of_document=start
        )
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init, x, start))))
    assert sizes[0] - sizes[1] == 4_194_304 + 1024 * 1024 + 1024  # relative keys and the bias v of compressed slots
