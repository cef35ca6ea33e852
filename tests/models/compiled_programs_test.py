"""Compiled programs: how long they live."""

import jax
import numpy as np

from memjax.models.compiled_programs import free_programs, jit_by_model


def test_programs_of_the_models_used_last_are_kept():
    traced = []

    @jit_by_model(num_models=2, static_argnames="power")
    def scale(model, x, *, power=1):
        traced.append((model, power))
        return model * x**power

    for model in (2, 3, 2, 3, 4, 2):
        assert scale(model, np.float32(5.0)) == 5 * model
    assert scale(2, np.float32(5.0), power=2) == 50
    # The program of 2 was the oldest when that of 4 was made.
    assert traced == [(2, 1), (3, 1), (4, 1), (2, 1), (2, 2)]
    assert scale.__name__ == "scale"


def test_freed_programs_compile_again():
    scale = jax.jit(lambda x: 3 * x)
    assert scale(1) == 3 and scale._cache_size() == 1
    free_programs([scale])
    assert scale._cache_size() == 0 and scale(1) == 3
