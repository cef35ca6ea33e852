"""The table of FLOPs and state of recurrent memories."""

import chex
import jax
import jax.numpy as jnp
import pytest

from tools.measurements import costs
from tools.results import speed_tables
from tools.results.ledger import Book

SIZES = {"dim": 8, "heads": 2, "hidden": 16, "encoder_layers": 1, "layers": 4, "vocab": 11, "length": 4, "batch": 2}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    settings = {"SIZES": SIZES, "MEMORIES": (8, 16, 24), "LENGTHS": (4, 8, 12), "COMPILED": (8,)}
    for name, value in settings.items():
        monkeypatch.setattr(costs, name, value)
    for module in (costs, speed_tables):
        monkeypatch.setattr(module, "MEMORY_OF_LENGTHS", 8)


@pytest.mark.laws
def test_operations_are_affine_in_memory_and_quadratic_in_length(tmp_path, capsys):
    assert costs.main(["--out", str(tmp_path)]) == 0
    content = Book(tmp_path).measurements()[0].facts
    of = lambda kind, name: [record[name] for record in content["records"] if record["kind"] == kind]
    for kind in ("memformer", "transformer_xl"):
        first, second, third = of(kind, "flops")
        assert third - second == second - first > 0
    assert 0 < next(iter(content["ratios"].values())) < 1
    first, second, third = of("transformer", "flops")
    assert third - second > second - first
    # Positions of four layers and their validity, to one set of slots, the tokens of a segment and two flags.
    assert of("transformer_xl", "state_bytes")[0] == 4 * 8 * (8 * 4 + 1)
    assert of("memformer", "state_bytes")[0] == 8 * 8 * 4 + 4 * 4 + 4 + 1
    assert "| Transformer-XL | 24 |" in capsys.readouterr().out


def test_temporaries_are_compared_beyond_the_weights():
    record = lambda kind, memory, state, temp: {
        "kind": kind, "memory": memory, "flops": memory, "state_bytes": state, "temp_bytes": temp, "rows": 2
    }  # fmt: skip
    records = [record(kind, m, s, 10) for m in (8, 16, 24) for kind, s in (("memformer", 5), ("transformer_xl", 45))]
    assert costs.ratios(records)["state and temporaries at 8, Transformer-XL to Memformer"] == 5.0
    assert costs.ratios(records)["state at 8, Transformer-XL to Memformer"] == 9.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memformer", "transformer_xl"])
def test_row_by_row_is_the_same_program(kind):
    loss, (params, state, tokens) = costs.program(costs.model_config(kind, 8, SIZES), SIZES["vocab"], SIZES["batch"], 4)
    keys = iter(jax.random.split(jax.random.key(0), 1000))

    def fill(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jax.random.normal(next(keys), leaf.shape, leaf.dtype)
        return jnp.ones(leaf.shape, leaf.dtype)

    params, state = jax.tree.map(fill, (params, state))
    tokens = jax.random.randint(next(keys), tokens.shape, 0, SIZES["vocab"])
    expected, at_once = jax.jit(loss)(params, state, tokens)
    given, one_by_one = jax.jit(costs.row_by_row(loss, SIZES["batch"]))(params, state, tokens)
    chex.assert_trees_all_close((given, one_by_one), (expected, at_once), rtol=1e-5, atol=1e-6)
    assert costs.measure(kind, 8, 4, SIZES, compiled=True)["row_temp_bytes"] > 0
