"""Programs that nothing needs are freed, and a freed one still runs."""

import jax
import jax.numpy as jnp

from tests.freeing import count_maps, free_programs


def test_programs_are_freed_above_the_limit_and_run_again():
    scale = jax.jit(lambda x: 3 * x + 1)
    scale(jnp.ones(3))
    before = count_maps()
    free_programs(limit=before + 1000)
    assert scale._cache_size() == 1  # below the limit nothing is touched
    free_programs(limit=-1)
    assert scale._cache_size() == 0
    assert scale(jnp.ones(3)).tolist() == [4.0, 4.0, 4.0]


def test_unreachable_programs_are_freed():
    for _ in range(20):
        cycle = [jax.jit(lambda x: x * x + 1)]
        cycle.append(cycle)
        cycle[0](jnp.ones(3))
    before = count_maps()
    free_programs(limit=before - 1)
    assert before == 0 or count_maps() < before
