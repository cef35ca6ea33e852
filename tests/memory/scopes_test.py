"""Programs name the operations of memories, and no operation is without a name."""

import ast
import functools
import re
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import optax
import pytest

from memjax import config
from memjax.models.factory import make_language_model
from memjax.training.objective import Objective, model_loss
from memjax.training.step import make_train_step
from memjax.training.train_state import init_train_state, init_variables
from memjax.typing import Batch

PACKAGE = Path(__file__).parent.parent.parent / "memjax"
ROWS, LENGTH, VOCAB = 2, 4, 11
CONTRACT = {"interface.save_state", "interface.restore_state"}
RING = {"fifo.ring_append", "fifo.write_window", "fifo.reset_rows", "sharded.sharded_append"}
MEMORIZING = CONTRACT | RING | {"memorizing.reset", "memorizing.write"}
EXPECTED = {
    "gate": (
        config.Memorizing(layers_with_memory=(-1,), memory_length=8, num_neighbors=2, cache_length=6),
        MEMORIZING
        | {
            "neighbors.select_scored_neighbors",
            "neighbors.neighbor_scores",
            "neighbors.gather_slots",
            "mixing.head_gate",
        }
        | {"attention_implementations.read_segment", "attention.scored_neighbor_attention", "fifo.shift_append"},
    ),
    "threshold": (
        config.Memorizing(
            layers_with_memory=(-1,), memory_length=8, num_neighbors=2, cache_length=0, retrieval="threshold"
        ),
        MEMORIZING | {"neighbors.threshold_mask"},
    ),
    "transformer_xl": (
        config.TransformerXL(memory_length=6),
        {"interface.restore_state", "fifo.shift_append", "positions.relative_shift", "attention.visibility"}
        | {f"transformer_xl.{name}" for name in ("reset", "read", "write")},
    ),
    "rotary": (
        config.Rotary(memory_length=6, sinks=2, key_heads=1),
        {"interface.restore_state", "fifo.shift_append", "rotary.rotate", "rotary.reset", "rotary.write"}
        | {"attention_implementations.read_segment", "attention.attention_with_weights"},
    ),
    "rotary memorizing": (
        config.Rotary(memory_length=6, graft=config.MemorizingGraft(layers=(0,), memory_length=8, num_neighbors=2)),
        {f"memorizing.{name}" for name in ("reset", "write")}
        | {
            "attention_implementations.read_segment",
            "neighbors.select_scored_neighbors",
            "attention.scored_neighbor_attention",
            "mixing.head_gate",
        },
    ),
    "compressive": (
        config.Compressive(memory_length=6, compressed_memory_length=4, compression_rate=2, compression="dilated"),
        {f"compressive.{name}" for name in ("reset", "evict", "write")}
        | {f"compression.{name}" for name in ("dilated_convolutions", "strided_convolution", "window_validity")}
        | {"compression.attention_reconstruction", "transformer_xl.read", "transformer_xl.score_positions"},
    ),
    "most used": (
        config.Compressive(memory_length=6, compressed_memory_length=4, compression_rate=2, compression="most_used"),
        {"compressive.add_usage", "compression.keep_most_used", "attention.attention_with_weights"},
    ),
    "infinity_former": (
        config.InfinityFormer(num_basis=8, num_samples=4, sticky="sample", num_bins=4, memory_length=LENGTH),
        {f"long_term_signal.{name}" for name in ("reset", "gate", "update", "attention_densities", "read")}
        | {
            "gaussian_basis.expected_basis",
            "gaussian_basis.evaluate_basis",
            "gaussian_basis.sample_positions",
            "gaussian_basis.bin_masses",
        }
        | {"gaussian_basis.kl_to_prior", "transformer_xl.read", "transformer_xl.write"},
    ),
    "gpt2": (
        config.GPT2(num_positions=8, compressed_memory_length=4, compression_rate=2),
        {"gpt2.write", "compression.strided_convolution", "compression.attention_reconstruction"},
    ),
    "linear transformer": (
        config.LinearTransformer(),
        {f"linear_attention.{name}" for name in ("causal_linear_attention", "elu_features", "reset_linear_state")},
    ),
    "rfa": (config.RFA(num_directions=4), {"linear_attention.random_features"}),
    "t2r": (config.T2R(num_features=4), {"linear_attention.relu_features"}),
    "memsizer": (config.MemSizer(num_slots=3), {"linear_attention.causal_linear_attention"}),
    "lstm": (config.LSTM(), {"interface.where_rows", "cell"}),
    "no memory": (config.FullAttention(), {"attention_implementations.read_segment"}),
}
"""what a train step calls; a new kind of attention gets a row"""
LEARNS = {
    "gate": {"attention.scored_neighbor_attention", "mixing.head_gate"},
    "transformer_xl": {"transformer_xl.read"},
    "compressive": {
        "transformer_xl.read",
        "compression.attention_reconstruction",
        "compression.strided_convolution",
        "compression.dilated_convolutions",
    },
}
"""what has a gradient"""


@functools.cache
def paths(name: str) -> frozenset[str]:
    """The paths of all operations of a lowered train step."""
    described = config.Model(dim=8, num_layers=2, num_heads=2, attention=EXPECTED[name][0])
    model = make_language_model(described, VOCAB, segment_length=LENGTH)
    objective = Objective(model_loss(model), EXPECTED[name][0].auxiliary_loss_weights())
    optimizer = optax.sgd(1e-2)
    shape = lambda *sizes, dtype: jax.ShapeDtypeStruct((1, *sizes), dtype)
    tokens, whole = shape(ROWS, LENGTH, dtype=jnp.int32), shape(ROWS, LENGTH, dtype=bool)
    weights, starts = shape(ROWS, LENGTH, dtype=jnp.float32), shape(ROWS, dtype=bool)
    batch = Batch(tokens, tokens, whole, weights, starts, {})

    def init():
        variables = init_variables(model, jax.random.key(0), LENGTH)
        return init_train_state(objective, optimizer, variables, model.init_state(ROWS), batch, jax.random.key(0))

    step = make_train_step(objective, optimizer, jit=False)
    lowered = jax.jit(step).lower(jax.eval_shape(init), batch)
    return frozenset(re.findall(r'"(jit\(train_step\)[^"]*)"', lowered.as_text(debug_info=True)))


def scopes(found: frozenset[str]) -> set[str]:
    return {part for path in found for part in path.split("/")}


SHARED = ("threshold", "rotary memorizing", "most used", "rfa", "t2r", "memsizer")


def test_every_kind_of_memory_is_looked_at():
    decoders = set(get_args(config.AttentionKind)) - {config.Bidirectional}  # a text encoder's, without memory
    assert {type(attention) for attention, _ in EXPECTED.values()} == decoders


@pytest.mark.parametrize(
    "name",
    # These share all but an operation or two with another row.
    [pytest.param(name, marks=pytest.mark.laws if name in SHARED else []) for name in EXPECTED],
)
def test_a_train_step_names_the_operations_of_its_memory(name):
    assert EXPECTED[name][1] - scopes(paths(name)) == set()


@pytest.mark.parametrize("name", LEARNS)
def test_their_gradients_have_the_names_too(name):
    backward = frozenset(path for path in paths(name) if "/transpose(" in path)
    assert LEARNS[name] - scopes(backward) == set()


def test_operations_stand_under_the_layer_and_the_operation_that_called_them():
    assert any("layers_1/attention/" in path and "memorizing.write/" in path for path in paths("gate"))
    assert any("memorizing.write/sharded.sharded_append/fifo.ring_append/" in path for path in paths("gate"))
    assert not any("layers_0/" in path and "memorizing_reading.retrieve" in path for path in paths("gate"))


ON_THE_HOST = {
    "gaussian_basis.fit_matrix",
    "gaussian_basis.gaussian_basis",
    "gaussian_basis.token_positions",
    "gaussian_basis.update_matrices",
    "long_term_signal.signal_matrices",
    "memformer.run_layers",
    "product_keys.candidate_pairs",
    "fifo.check_ring",
    "shapes.array_arguments",
    "shapes.check_arguments",
    "shapes.check_shapes",
    "table_rows.table_shards",
    "sharded.num_shards",
    "fused_attention.why_not_fused",
    *(f"devices.{name}" for name in ("platform", "device_kind")),
    *(f"attention_implementations.{name}" for name in ("choose_implementation", "score_bytes")),
    "positions.relative_distances",
    "precision.at_least_float32",
    "named_operations.operation",
    "knn_lm.search_neighbors",
    "rotary.rotary_frequencies",
    *(f"rotary.interpolate_{kind}" for kind in ("linearly", "llama3", "yarn", "longrope")),
    *(f"rotary.{kind}_attention_factor" for kind in ("yarn", "longrope")),
}
NO_MEMORIES = {"interface.py", "checks.py", "state_trees.py", "layer_parts.py", "__init__.py"}
NO_MEMORIES |= {"projector.py", "memorizing_reading.py", "compressive_state.py", "adapters.py"}
FILES = [
    *sorted((PACKAGE / "functional").glob("[a-z]*.py")),
    *sorted(file for file in (PACKAGE / "memory").glob("*.py") if file.name not in NO_MEMORIES),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_every_public_function_is_named(path):
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    nameless = [
        function.name
        for function in functions
        if function.name[0] != "_"
        and f"{path.stem}.{function.name}" not in ON_THE_HOST
        and "operation" not in [ast.unparse(decorator) for decorator in function.decorator_list]
    ]
    assert nameless == [], "decorate with memjax.functional.named_operations.operation"
