"""The laws of the memory contract, for every memory. A new memory is one `Case` in `tests/contract/cases.py`.

`make test` runs the laws of a memory in float32, compiled fast, under strict promotion of dtypes and ranks.
`make test-laws` runs them once more, compiled as users do, and the rest. Every change has to pass both.
"""

import contextlib

import hypothesis.extra.numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx.bridge.variables import linen_vars_to_nnx_attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.memory.checks import refuse_padding_in_front
from memjax.memory.interface import Memory, StackState
from memjax.models.interface import Model
from memjax.training.checkpoints import Checkpoints
from memjax.typing import EmptyState
from tests.compiling import AS_USERS_DO
from tests.contract.cases import CASES, memorizing, table_stack, toy, transformer_xl
from tests.contract.harness import (
    DIM,
    LENGTH,
    ROWS,
    Case,
    Run,
    Segments,
    assert_identical,
    full_mask,
    named_leaves,
    prefix_mask,
    starts,
)
from tests.contract.laws import IDENTITIES, LAWS, mixed_segments
from tests.contract.relations import RELATIONS, check
from tests.contract.toys import FAULTS, OutputMemory

CASE = {case.name: case for case in CASES}
CUT = jax.jit(refuse_padding_in_front)


def dtypes_of(law: str) -> tuple[str, ...]:
    if law == "float64":
        return ("float64",)
    if law == "not_finite":
        return ("float32", "bfloat16")
    return ("float32", "float64") if law in IDENTITIES else ("float32",)


def laws_of(case: Case) -> list[tuple[str, str]]:
    return [(law, dtype) for law in LAWS if law not in case.exemptions() for dtype in dtypes_of(law)]


IN_EVERY_CASE = ("reset",)
"""What `make test` runs of a variant, a whole model or a toy too."""
KIN = ("full_attention", "rfa", "t2r", "memsizer", "linear_transformer_cross")
OF_KIN = ("reset", "not_finite", "shape")
"""What `make test` runs of a memory that shares its state and its forms with `memorizing` or `linear_transformer`."""
CONTAINED = ("scan",)
"""What `make test` leaves out: `replay` is a scan too."""


def programs_of(case: Case) -> list:
    """(case, law, dtype, as users), each of the fast ones a second time as users compile it, among the slow tests."""
    # One worker compiles a case for all its laws: `tests/scheduling.py` finds it in the id.
    fast, others = [], []
    for law, dtype in laws_of(case):
        name = f"{case.name}-{law}-{dtype}"
        if case.is_variant:
            is_fast = law in IN_EVERY_CASE
        else:
            is_fast = law in OF_KIN if case.name in KIN else law not in CONTAINED
        mark = pytest.mark.laws
        if dtype == "float32" and is_fast:
            fast.append(pytest.param(case, law, dtype, False, id=name))
            name, mark = f"{name}_as_users", pytest.mark.slow
        others.append(pytest.param(case, law, dtype, True, id=name, marks=mark))
    return fast + others


@pytest.fixture(scope="module")
def run_of():
    """`run_of(case, dtype, as_users)`: the programs of one case at a time, compiled once for all its laws."""
    runs: dict[tuple[str, str, bool], Run] = {}

    def get(case: Case, dtype: str, as_users: bool) -> Run:
        key = (case.name, dtype, as_users)
        if key not in runs:
            for other in [other for other in runs if other[0] != case.name]:
                del runs[other]
            runs[key] = Run(case, dtype, as_users=as_users)
        return runs[key]

    return get


@pytest.mark.parametrize("case, law, dtype, as_users", [one for case in CASES for one in programs_of(case)])
def test_law(case, law, dtype, as_users, run_of):
    run = run_of(case, dtype, as_users)
    with run.precision(), jax.numpy_dtype_promotion("standard" if as_users else "strict"):
        LAWS[law](run)


IN_NNX = ("transformer_xl", "linear_transformer")
"""Memories that `make test` runs inside an NNX model. `make test-laws` runs the others."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in IN_NNX else pytest.mark.laws)
        for case in CASES
        if not case.is_variant
    ],
)
def test_a_memory_runs_inside_an_nnx_model(case):
    run = Run(case, as_users=False)
    x, named = run.xs(1)[0], {"start_of_document": starts(False, True, False), "mask": full_mask(), **run.extras()}

    class Model(nnx.Module):
        def __init__(self, state):
            keys = nnx.Rngs(params=0, dropout=1, memory=2, features=3)
            self.memory = nnx.bridge.ToNNX(run.module, keys).lazy_init(x, state, **named)

        def __call__(self, state):
            return self.memory(x, state, **named)

    @jax.jit
    def both(variables, state):
        model = Model(state)
        nnx.update(model.memory, linen_vars_to_nnx_attrs(variables))
        return model(state), run.apply(variables, x, state, **named)

    bridged, plain = both(run.variables, run.any_state(61))
    assert_identical(bridged, plain)


@pytest.mark.laws
@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name.replace(" ", "_"))
def test_degenerate_case_equals_its_parent(relation):
    check(relation)


@pytest.mark.laws
@pytest.mark.parametrize("fault, law", FAULTS.items())
def test_laws_catch_broken_memories(fault, law):
    case = Case(
        name=fault, make=toy(OutputMemory, fault=fault), site="output", capacity=8,
        fifos=CASE["toy_output"].fifos, slots={"hidden": 1},
    )  # fmt: skip
    run = Run(case, dtypes_of(law)[-1] if law == "float64" else "float32")
    with run.precision(), pytest.raises(AssertionError):
        LAWS[law](run)


def test_every_fault_has_a_law_and_every_exemption_a_reason():
    assert set(FAULTS.values()) == set(LAWS) - {"round_trip"}
    for case in CASES:
        assert set(case.exemptions()) <= set(LAWS) and all(case.exemptions().values())
    assert set(KIN) <= {case.name for case in CASES if not case.is_variant}
    assert len(CASE) == len(CASES)


@pytest.mark.laws
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bfloat16_activations(case):
    run = Run(case, "bfloat16")
    segments = mixed_segments(run, state=run.init_state(), keys=True)
    gradients, (ys, state, aux) = run.gradients_by_hand(segments)
    assert ys.dtype == jnp.bfloat16
    for (name, new), old in zip(named_leaves(state), jax.tree.leaves(segments.state), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype), name
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients[0])} == {np.dtype(np.float32)}
    for name, leaf in named_leaves((gradients, ys, state, aux)):
        assert np.isfinite(np.asarray(leaf, np.float32)).all(), name


@pytest.mark.parametrize(
    "name",
    [
        "transformer_xl",
        *(
            pytest.param(name, marks=pytest.mark.laws)
            for name in (
                "compressive_dilated_auto_encoding",
                "compressive_most_used",
                "memorizing_threshold",
                "toy_output",
            )
        ),
    ],
)
def test_decoding_with_a_bfloat16_memory_equals_the_forward_pass(name):
    # The segment itself is not rounded to the dtype of the memory before it is read.
    LAWS["decode"](Run(CASE[name], "float32", state_dtype="bfloat16"))


@pytest.mark.laws
def test_states_survive_checkpoints(tmp_path):
    states = {
        f"{case.name}_{dtype}": Run(case, dtype).any_state(17) for case in CASES for dtype in ("float32", "bfloat16")
    }
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(1, states)
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), states)
        assert_identical(checkpoints.restore(shapes).tree, states)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_modules_offer_the_contract(case):
    module = case.make(jnp.float32)
    assert isinstance(module, Memory | Model)
    assert hasattr(module, "init_decode_state") == hasattr(module, "decode") == case.causal


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_rows_that_differ_and_segments_without_tokens_are_refused(case, data):
    # Nothing is compiled: the call is refused before the memory sees it.
    module, state = case.make(jnp.float32), case.make(jnp.float32).init_state(ROWS)
    rows = data.draw(st.integers(1, 6).filter(lambda rows: rows != ROWS))
    length = data.draw(st.integers(1, 6).filter(lambda length: length != LENGTH))
    faults = ["rows", "start", "mask rows", "mask length", "no tokens", "decode", "active"]
    fault = data.draw(st.sampled_from(faults if case.causal else faults[:5]))
    if fault in ("rows", "decode") and not jax.tree.leaves(state):
        state, fault = EmptyState(), "start"
    if fault in ("decode", "active"):
        of_state = rows if fault == "decode" else ROWS
        other = jax.eval_shape(lambda: module.init_decode_state(module.init_state(of_state), LENGTH, of_state))
        named, tokens = {"active": np.ones(rows if fault == "active" else ROWS, bool), "method": "decode"}, 1
        field = "active" if fault == "active" else "state"
    else:
        other = jax.eval_shape(lambda: module.init_state(rows)) if fault == "rows" else state
        mask = {"mask rows": (rows, LENGTH), "mask length": (ROWS, length)}.get(fault, (ROWS, LENGTH))
        start = rows if fault == "start" else ROWS
        named = {"start_of_document": np.ones(start, bool), "mask": np.ones(mask, bool)}
        named |= {"source": np.zeros((ROWS, 5, DIM), np.float32)} if case.site == "cross" else {}
        tokens = 0 if fault == "no tokens" else LENGTH
        field = {"rows": "state", "start": "start_of_document", "no tokens": "x"}.get(fault, "mask")
    shape = (ROWS, tokens) if case.site == "model" else (ROWS, tokens, DIM)
    x = np.zeros(shape, np.int32 if case.site == "model" else np.float32)
    with pytest.raises(ValueError, match=f"^{field}: given .*allowed: ") as raised:
        module.apply({}, x, other, **named)
    assert "\n" not in str(raised.value)


def test_known_masks_with_padding_in_front_are_refused_in_a_line():
    output = jnp.ones((2, 3, 4))
    with pytest.raises(ValueError, match="mask: given padding before a real token in row 1, allowed"):
        refuse_padding_in_front(output, jnp.array([[True, True, False], [False, True, True]]))
    assert refuse_padding_in_front(output, jnp.array([[True, False, False], [False, False, False]])) is output


@settings(deadline=None)
@given(hypothesis.extra.numpy.arrays(bool, (3, 5)))
def test_only_rows_with_padding_in_front_are_not_numbers(mask):
    found = np.asarray(CUT(jnp.ones((3, 5, 2)), mask))
    ends = np.array([not row[: row.sum()].all() for row in mask])
    assert np.isnan(found).all(axis=(1, 2)).tolist() == ends.tolist()
    assert (found[~ends] == 1).all()


def test_states_can_be_donated():
    run = Run(CASE["memorizing_approximate"])
    state = run.used_state()
    expected = run.forward(run.xs(1)[0], state)
    step = jax.jit(run.step, donate_argnums=2, compiler_options=AS_USERS_DO)
    y, new, _ = step(run.variables, run.xs(1)[0], state, starts(), full_mask(), {})
    assert_identical((y, new), expected[:2])
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize(
    "make",
    [
        transformer_xl(memory_length=12),
        transformer_xl(memory_length=12, norm="pre"),
        memorizing(memory_length=0, cache_length=12),
        CASE["toy_linear"].make,
    ],
    ids=["transformer_xl", "transformer_xl_pre_norm", "cache", "toy_linear"],
)
def test_segments_with_a_long_memory_equal_one_forward_pass(make):
    run = Run(Case(name="long", make=make), "float64")
    with run.precision():
        masks, none = jnp.ones((3, ROWS, LENGTH), bool), jnp.zeros((3, ROWS), bool)
        segments = Segments(run.init_state(), run.xs(3), none, masks, jnp.ones(3))
        ys = jnp.moveaxis(run.scan(segments)[0], 0, 1).reshape(ROWS, 3 * LENGTH, DIM)
        x = jnp.moveaxis(segments.x, 0, 1).reshape(ROWS, 3 * LENGTH, DIM)
        np.testing.assert_allclose(ys, run.forward(x, run.init_state())[0], rtol=0, atol=1e-11)


def test_more_neighbors_than_slots_are_refused():
    with pytest.raises(ValueError, match="num_neighbors: given 9, allowed: 1 to memory_length = 8"):
        memorizing(num_neighbors=9)(jnp.float32).init_state(2)


def test_memories_of_length_zero_are_empty_states():
    assert transformer_xl(memory_length=0)(jnp.float32).init_state(2) == EmptyState()
    assert jax.tree.leaves(memorizing(memory_length=0)(jnp.float32).init_state(2)) == []


def test_scanned_groups_have_layers_before_rows():
    state = CASE["model_memorizing"].make(jnp.float32).init_state(ROWS)
    assert isinstance(state.stack, StackState) and state.stack.sizes == (2, 0)
    assert state.stack.groups[0].attention.cache.keys.shape == (2, ROWS, 4, 2, 4)
    assert state.stack.groups[1].attention.memory.keys.shape == (ROWS, 2, 8, 4)
    assert state.output.hidden.shape == (ROWS, 8, DIM)


def test_stored_activations_follow_the_state_dtype_and_accumulators_do_not():
    dtypes = lambda case: {str(leaf.dtype) for leaf in jax.tree.leaves(Run(CASE[case]).init_state(jnp.bfloat16))}
    assert dtypes("toy_linear") == {"float32"}
    assert dtypes("toy_slots") == {"float32", "bool"}
    assert dtypes("memorizing_approximate") == {"bfloat16", "bool", "int32"}


def test_row_sparse_tables_leave_ids_and_gradients_of_the_touched_rows():
    run = Run(Case(name="tables", make=table_stack, site="stack"))
    tables = run.variables["tables"]
    assert tables["layers_0"]["feed_forward"]["values"].shape == (2, 6, DIM)
    sinks = {"layers_0": {"feed_forward": {"values": jnp.zeros((2, ROWS, LENGTH, DIM))}}}
    x, state = run.xs(1)[0], run.init_state()

    def loss(tables, sinks):
        variables = {**run.variables, "tables": tables, "sinks": sinks}
        y, _, aux = run.step(variables, x, state, starts(), full_mask(), {})
        return (y**2).sum(), aux

    (to_tables, to_sinks), aux = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(tables, sinks)
    assert not np.asarray(to_tables["layers_0"]["feed_forward"]["values"]).any()
    assert np.asarray(to_sinks["layers_0"]["feed_forward"]["values"]).any(axis=(2, 3)).all()
    assert set(aux.arrays) == {"layer_00/values/ids", "layer_01/values/ids"}
    assert all(ids.shape == (ROWS, LENGTH) and ids.dtype == jnp.int32 for ids in aux.arrays.values())


def test_a_learned_initial_memory_is_read_by_rows_that_start_a_document():
    run = Run(CASE["toy_slots"])
    state, x = run.used_state(), run.xs(1)[0]

    def loss(params, start):
        return (run.step({"params": params}, x, state, start, full_mask(), {})[0] ** 2).sum()

    gradient = jax.jit(jax.grad(loss))
    assert np.asarray(gradient(run.variables["params"], starts(True, False, False))["initial"]).any()
    assert not np.asarray(gradient(run.variables["params"], starts())["initial"]).any()


def test_a_cross_memory_reads_its_source_once():
    run = Run(CASE["toy_cross"])
    x, extras = run.xs(1)[0], run.extras()
    state = run.forward(x, run.init_state(), start=starts(True, True, True))[1]
    other = {**extras, "source": extras["source"] + 1.0}
    y, new, _ = run.forward(x, state, start=starts(False, True, False), extras=other)
    expected, _, _ = run.forward(x, state, start=starts())
    assert_identical(y[0], expected[0])
    assert not np.array_equal(y[1], expected[1])


def test_retrieved_slots_carry_the_position_of_their_token():
    run = Run(CASE["memorizing_approximate"])
    state = run.init_state()
    for segment, x in enumerate(run.xs(3)):
        here = starts(segment == 0, segment in (0, 2), segment == 0)
        _, state, aux = run.forward(
            x, state, start=here, mask=prefix_mask(LENGTH, 3 if segment == 1 else LENGTH, LENGTH)
        )
    positions = np.asarray(aux.arrays["neighbor_positions"])  # [b, h, l, k]
    weights = np.asarray(aux.arrays["neighbor_weights"])
    assert positions.min(axis=(1, 2, 3)).tolist() == [0, -1, 0] and positions.max(axis=(1, 2, 3)).tolist() == [7, -1, 7]
    np.testing.assert_allclose(
        weights.sum(axis=-1), np.array([1.0, 0.0, 1.0])[:, None, None] * np.ones((1, 2, 4)), atol=1e-5
    )
