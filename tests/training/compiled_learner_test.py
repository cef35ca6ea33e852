"""How the programs of a learner are compiled."""

import jax
import numpy as np
import pytest

from memjax.planning.programs import planned_learner
from memjax.settings.overrides import load_config
from memjax.training.compiled_learner import options_to_run_once
from tests.compiling import AS_USERS_DO

OPTION = "xla_backend_optimization_level"


@pytest.mark.parametrize(
    "flags, options",
    [("", {OPTION: 1}), ("--xla_dump_to=/tmp/x", {OPTION: 1}), (f"--xla_dump_to=/tmp/x --{OPTION}=0", {})],
)
def test_flags_of_the_user_come_first(monkeypatch, flags, options):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert options_to_run_once() == options


@pytest.mark.laws
@pytest.mark.parametrize("name", ["memorizing_python", "bert_mlm_wikitext"])
def test_new_variables_have_the_bits_that_all_optimizations_give(monkeypatch, name):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    learner = planned_learner(load_config(name, "smoke"), 259, None)
    make = [
        jax.jit(lambda: learner.make_variables(), compiler_options={**AS_USERS_DO, **options})
        for options in ({}, options_to_run_once())
    ]
    expected, variables = (jax.tree.leaves(function()) for function in make)
    assert len(expected) > 5
    assert all(np.array_equal(a, b) for a, b in zip(expected, variables, strict=True))
