"""What must be constant while decoding with a linear state: one program, its state's bytes, operations per token."""

import jax
import jax.numpy as jnp
import pytest

from memjax import config
from tools.measurements.decode_speed import CONTENDERS, Decoder

SMALL = {"dim": 8, "num_layers": 1, "num_heads": 2}
LENGTHS = (64, 4096)


FAST = ("softmax", "MemSizer")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.laws) for name in CONTENDERS]
)
def test_linear_states_cost_the_same_at_every_length(name):
    decoder = Decoder(CONTENDERS[name], **SMALL)
    sizes = {decoder.state_bytes(length) for length in LENGTHS}
    flops = {decoder.flops_per_token(length) for length in LENGTHS}
    assert decoder.constant == (name != "softmax")
    assert (len(sizes), len(flops)) == ((1, 1) if decoder.constant else (2, 2))
    assert min(flops) > 0


@pytest.mark.laws
def test_one_program_serves_all_positions_and_lengths():
    decoder = Decoder(config.MemSizer(num_slots=4), **SMALL)
    state, token = decoder.run(decoder.variables, decoder.start(3), jnp.asarray(3))
    more = decoder.run(decoder.variables, decoder.start(9), jnp.asarray(9))
    assert decoder.run._cache_size() == 1
    assert state.position.tolist() == [3] and more[0].position.tolist() == [9]
    assert token.shape == (1, 1)
    described = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), s) for s in (state, more[0])]
    assert described[0] == described[1]
