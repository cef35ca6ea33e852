"""Programs on memories leave the process: `jax.export` writes them, and what is read back gives the same numbers."""

import dataclasses

import jax
import jax.export
import jax.numpy as jnp
import pytest

from memjax.typing import EmptyState, tree_dataclass
from tests.contract.cases import CASES
from tests.contract.harness import LENGTH, ROWS, Run, assert_identical, full_mask, starts

CASE = {case.name: case for case in CASES}


def exported_again(function, *arguments):
    """What a program gives after it was written and read."""
    return jax.export.deserialize(jax.export.export(jax.jit(function))(*arguments).serialize()).call


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.laws if case.is_variant else []) for case in CASES],
    ids=lambda case: case.name,
)
def test_states_and_decode_states_are_registered(case):
    module = case.make(jnp.float32)
    states = jax.eval_shape(lambda: module.init_state(ROWS))
    decode = (
        jax.eval_shape(lambda s: module.init_decode_state(s, LENGTH, ROWS), states) if case.causal else EmptyState()
    )
    again = exported_again(lambda trees: trees, (states, decode))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (states, decode))
    if jax.tree.leaves(zeros):
        assert jax.tree.structure(again(zeros)) == jax.tree.structure((states, decode))


@pytest.mark.laws
@pytest.mark.parametrize("name", ["memorizing", "transformer_xl", "linear_transformer"])
def test_a_segment_and_a_token(name):
    run = Run(CASE[name])
    x, state = run.xs(1)[0], run.any_state(3)
    segment = lambda x, state: run.step(run.variables, x, state, starts(), full_mask(), {})
    assert_identical(exported_again(segment, x, state)(x, state), jax.jit(segment)(x, state))
    decode_state = run.module.init_decode_state(state, LENGTH, ROWS)
    active = jnp.ones(ROWS, bool)
    token = lambda x, state: run.apply(run.variables, x, state, active=active, method="decode")
    given = (x[:, :1], decode_state)
    assert_identical(exported_again(token, *given)(*given), jax.jit(token)(*given))


def test_static_fields_survive():
    @tree_dataclass
    class Sized:
        leaf: jax.Array
        sizes: tuple[tuple[int, str], ...] = dataclasses.field(metadata={"static": True})

    given = Sized(jnp.ones(3), ((2, "rows"), (3, "")))
    assert exported_again(lambda state: state, given)(given).sizes == given.sizes
