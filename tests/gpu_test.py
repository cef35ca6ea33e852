"""Memories on a GPU give the numbers of the CPU, and a training run on a GPU follows the same losses.

Matrix products are computed in full float32 here. By default a GPU rounds their operands to TensorFloat-32.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.attention import attention_with_weights, visibility
from memjax.functional.fused_attention import fused_attention
from tests.contract.cases import CASES
from tests.contract.harness import SEGMENTS, Run, assert_close
from tests.contract.laws import mixed_segments

pytestmark = pytest.mark.gpu
TOLERANCE = 1e-4  # Sums are taken in another order, over several segments and their gradients.
RUNS = ["associative_recall", "memformer_recall", "memorizing_python", "product_key_python", "lifelong_mnist"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_outputs_states_and_gradients_equal_those_of_the_cpu(case):
    results = {}
    for kind in ("cpu", "gpu"):
        with jax.default_device(jax.devices(kind)[0]), jax.default_matmul_precision("highest"):
            run = Run(case)
            # This generator draws the same bits on every platform.
            keys = jax.random.split(jax.random.key(7, impl="threefry2x32"), SEGMENTS)
            segments = dataclasses.replace(mixed_segments(run, state=run.any_state(3)), key=keys)
            result = run.gradients(segments)
            assert {device.platform for leaf in jax.tree.leaves(result) for device in leaf.devices()} == {kind}
            results[kind] = jax.device_get(result)
    assert_close(results["gpu"], results["cpu"], TOLERANCE)


@pytest.mark.parametrize("window", [None, 40], ids=["causal", "window"])
@pytest.mark.parametrize("key_heads", [1, 4])
def test_attention_by_cudnn_is_that_of_float32_on_the_cpu(window, key_heads):
    length, total, random = 65, 301, np.random.default_rng(0)
    draw = lambda *shape: np.asarray(jnp.asarray(random.normal(size=shape), jnp.bfloat16))
    arrays = draw(2, length, 4, 64), draw(2, total, key_heads, 64), draw(2, total, key_heads, 64)
    signs, valid = draw(2, length, 4, 64), random.random((2, total)) < 0.7
    valid[0, : total - length + 2] = False  # the first queries of this row see no key

    def attend(*arrays):
        mask = visibility(length, valid[:, : total - length], valid[:, total - length :], window=window)
        return attention_with_weights(*arrays, mask=mask)[0]

    def differentiate(kind, dtype, attend):
        weigh = lambda *arrays: (lambda output: ((output * signs).astype(jnp.float32).sum(), output))(attend(*arrays))
        with jax.default_device(jax.devices(kind)[0]):
            operands = [jnp.asarray(array, dtype) for array in arrays]
            (_, output), gradients = jax.jit(jax.value_and_grad(weigh, (0, 1, 2), has_aux=True))(*operands)
        return [np.asarray(array, np.float32) for array in (output, *gradients)]

    expected = differentiate("cpu", jnp.float32, attend)
    by_cudnn = differentiate("gpu", jnp.bfloat16, lambda *arrays: fused_attention(*arrays, valid, window=window))
    assert not by_cudnn[0][0, 0].any()
    for computed, wanted in zip(by_cudnn, expected, strict=True):
        np.testing.assert_allclose(computed, wanted, atol=2e-2 * np.abs(wanted).max())  # bfloat16 has eight bits


def train(platform: str, config: str, folder: Path) -> list[float]:
    """The training losses of a small run on one platform, in a process of its own."""
    command = [sys.executable, "-m", "memjax", "train", "--config", config, "--variant", "smoke"]
    options = ["--model.compute-dtype", "float32", "--workdir", str(folder), "--training.log-every", "1"]
    environment = os.environ | {"JAX_PLATFORMS": platform, "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    subprocess.run([*command, *options], env=environment, check=True, capture_output=True, text=True)
    (log,) = folder.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["nats_per_token"] for line in lines if line["kind"] == "train"]


@pytest.mark.parametrize("config", RUNS)
def test_a_run_has_the_losses_of_the_cpu(config, tmp_path):
    on_cpu, on_gpu = (train(platform, config, tmp_path / platform) for platform in ("cpu", "cuda"))
    assert len(on_cpu) > 1
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-3)
