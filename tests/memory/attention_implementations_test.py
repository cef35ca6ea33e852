"""Every program of an attention computes the same: outputs, states, metrics and gradients, for every memory that it can
compute; and the choice between them.
"""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.block_attention import block_attention
from memjax.memory import attention_implementations as implementations
from memjax.memory.attention_implementations import choose_implementation
from memjax.memory.bucket_projector import BucketProjector
from memjax.memory.compressive import CompressiveAttention
from memjax.memory.memory_tokens_xl import MemoryTokenXLAttention
from memjax.memory.projector import ProjectedAttention
from memjax.memory.rotary import RotaryAttention
from memjax.memory.transformer_xl import TransformerXLAttention
from tests.contract.cases import CASES
from tests.contract.harness import DIM, LENGTH, ROWS, Case, Run

MODULE = importlib.import_module("memjax.functional.block_attention")
SEGMENTS = 3
STARTS = np.array([[True, True, True], [False, True, False], [False, False, True]])
MASKS = np.ones((SEGMENTS, ROWS, LENGTH), bool)
MASKS[0, 0, LENGTH - 1], MASKS[1, 2, LENGTH - 2 :] = False, False
FAST = ("transformer_xl", "rotary", "memorizing")
"""memories of `make test`; `make test-laws` has the others"""


def has_other_programs(case: Case) -> bool:
    """Whether blocks can compute the attention of a memory: a new one is here by existing."""
    module: Any = case.make(jnp.dtype("float32"))
    return isinstance(module, ProjectedAttention) and not module._why_reference


OTHERS = [case for case in CASES if has_other_programs(case)]


def read(run: Run, implementation: str) -> tuple[Any, Any]:
    """Outputs, last state and metrics of some segments, and the gradients of a sum of all outputs and losses."""
    module: Any = run.module.clone(attention_implementation=implementation)
    signs = run.random(3, SEGMENTS, ROWS, LENGTH, DIM)

    def total(params: Any, xs: Any) -> tuple[Any, Any]:
        state, loss, outputs, metrics = run.init_state(), 0.0, [], []
        for x, start, mask, sign in zip(xs, jnp.asarray(STARTS), jnp.asarray(MASKS), signs, strict=True):
            y, state, aux = module.apply({"params": params}, x, state, start_of_document=start, mask=mask)
            loss = loss + (sign * y * mask[..., None]).sum() + sum(map(jnp.sum, jax.tree.leaves(aux.losses)))
            outputs.append(jnp.where(mask[..., None], y, 0))
            metrics.append(aux.metrics)
        return loss, (outputs, state, metrics)

    gradients, results = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(run.variables["params"], run.xs(3))
    return results, gradients


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in FAST else pytest.mark.laws) for case in OTHERS],
)
def test_blocks_compute_what_the_reference_computes(case, monkeypatch):
    monkeypatch.setattr(MODULE, "BLOCK_LENGTHS", (3,))  # several blocks, the last one not whole
    run = Run(case, "float64")
    with run.precision():
        expected, found = read(run, "reference"), read(run, "blocks")
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-11)


def test_blocks_read_the_biases_of_buckets_by_distance(monkeypatch):
    monkeypatch.setattr(MODULE, "BLOCK_LENGTHS", (3,))
    asked: list[bool] = []
    block_attention = implementations.block_attention

    def attend(*arrays: Any, **options: Any) -> Any:
        asked.append(options["bias"] is None and options["distance_bias"] is not None)
        return block_attention(*arrays, **options)

    monkeypatch.setattr(implementations, "block_attention", attend)
    with jax.enable_x64(True):
        options: dict[str, Any] = {"dim": 8, "num_heads": 2, "head_dim": 4, "memory_length": 4, "dtype": jnp.float64}
        module = TransformerXLAttention(**options, projector=BucketProjector(num_buckets=6, max_distance=5))
        x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 7, 8)))
        state = module.init_state(2)
        start = {"start_of_document": jnp.zeros(2, bool)}
        params = module.init(jax.random.key(0), x[0], state, **start)

        def read(implementation: str) -> list[Any]:
            part, now, outputs = module.clone(attention_implementation=implementation), state, []
            for segment in x:
                y, now, _ = part.apply(params, segment, now, **start)
                outputs.append(y)
            return outputs

        for one, other in zip(read("reference"), read("blocks"), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-11)
    assert asked == [True, True]


def test_all_kinds_of_hosts_are_among_them():
    names = {case.name for case in OTHERS}
    assert {"transformer_xl", "transformer_xl_same_length", "memorizing", "rotary"} <= names
    assert not {"compressive", "compressive_most_used"} & names


def test_dropout_in_blocks_keeps_the_mean_and_drops_as_many_weights():
    queries, values = jnp.zeros((1, 1, 1, 2)), jnp.ones((1, 4096, 1, 1))
    options: dict[str, Any] = {"dropout_rate": 0.25, "dropout_key": jax.random.key(0), "block_length": 512}
    output, sums = block_attention(queries, jnp.zeros((1, 4096, 1, 2)), values, counted=(1024,), **options)
    np.testing.assert_allclose(output.ravel(), 1, atol=0.05)  # of 4,096 weights, standard deviation 0.009
    assert float(output.ravel()[0]) != 1.0
    np.testing.assert_allclose(sums.ravel(), 0.25, rtol=1e-6)  # before dropout


@pytest.mark.parametrize(
    "platform, kind, size, reasons, chosen",
    [
        ("tpu", "TPU v5 lite", 2**20, ("", ""), "fused"),
        ("tpu", "TPU v5 lite", 2**20, ("", "dropout"), "reference"),
        ("tpu", "TPU v5 lite", 2**27, ("", "dropout"), "blocks"),
        ("tpu", "TPU v6 lite", 2**27, ("", "dropout"), "blocks"),
        ("tpu", "TPU v5", 2**27, ("", "dropout"), "reference"),
        ("tpu", "TPU v5", 2**31, ("", "dropout"), "blocks"),
        ("tpu", "TPU v5", 2**31, ("joint", "joint"), "reference"),
        ("gpu", "NVIDIA H100", 2**20, ("", ""), "fused"),
        ("gpu", "NVIDIA H100", 2**31, ("", "float32"), "blocks"),
        ("cpu", "cpu", 2**33, ("", "cpu"), "reference"),
    ],
)
def test_auto_chooses_by_platform_and_size(platform, kind, size, reasons, chosen, monkeypatch):
    monkeypatch.setattr(implementations, "platform", lambda: platform)
    monkeypatch.setattr(implementations, "device_kind", lambda: kind)
    assert choose_implementation("auto", dict(zip(("blocks", "fused"), reasons, strict=True)), size) == chosen


@pytest.mark.parametrize(
    "module, implementation, line",
    [
        (
            functools.partial(RotaryAttention, memory_length=4),
            "fused",
            "a program for 'cpu', allowed: for 'tpu' or 'gpu'",
        ),
        (
            functools.partial(TransformerXLAttention, memory_length=4),
            "fused",
            "TransformerXLProjector, allowed: 'reference' or 'blocks'",
        ),
        (
            functools.partial(RotaryAttention, memory_length=4, sinks=1, window=3),
            "fused",
            "sinks and a window, allowed: one of them, 'reference' or 'blocks'",
        ),
        (
            functools.partial(CompressiveAttention, memory_length=4, compressed_memory_length=2),
            "blocks",
            "CompressiveAttention, allowed: 'reference'",
        ),
        (
            functools.partial(MemoryTokenXLAttention, memory_length=4, num_tokens=1),
            "blocks",
            "MemoryTokenXLAttention, allowed: 'reference'",
        ),
    ],
)
def test_a_program_that_cannot_compute_an_attention_is_refused(module, implementation, line):
    part = module(dim=8, num_heads=2, attention_implementation=implementation)
    arguments = {"start_of_document": jnp.ones(1, bool)}
    with pytest.raises(ValueError, match=f"attention_implementation: given '{implementation}' with {line}; or 'auto'"):
        jax.eval_shape(part.init, jax.random.key(0), jnp.ones((1, 4, 8)), part.init_state(1), **arguments)


def test_an_unknown_program_is_refused():
    with pytest.raises(ValueError, match="attention_implementation: given 'flash', allowed: one of 'auto'"):
        RotaryAttention(dim=8, num_heads=2, memory_length=4, attention_implementation="flash")


def test_weights_that_are_asked_for_are_those_of_the_reference():
    part = RotaryAttention(dim=8, num_heads=2, memory_length=4, attention_implementation="blocks")
    tracking: Any = part.with_attention_tracking()
    arguments = {"start_of_document": jnp.ones(1, bool)}
    state = tracking.init_state(1)
    (_, _, aux), _ = jax.eval_shape(
        tracking.init_with_output, jax.random.key(0), jnp.ones((1, 4, 8)), state, **arguments
    )
    assert aux.arrays["attention/weights"].shape == (1, 2, 4, 8)
