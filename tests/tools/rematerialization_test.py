"""The memory of the segment scan by policy: the model it compiles, and how it tells what the compiler said."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.training.costs import count_flops
from memjax.training.segment_loop import loss_over_segments
from memjax.typing import Batch
from tools.bench import harness
from tools.bench import rematerialization as bench
from tools.bench.slots import SlotModel
from tools.results import backward_tables, pages

TINY = {**bench.SETTINGS, "dim": 16, "layers": 3, "heads": 2, "vocab": 12, "length": 6, "batch": 2, "slots": 3}
TINY |= {"memory_length": 6}


def segments():
    tokens = np.random.default_rng(0).integers(0, 12, (3, 2, 7), np.int32)
    weights = np.zeros((3, 2, 6))
    weights[-1] = 1  # what comes before the last segment matters through the slots only
    starts = np.zeros((3, 2), bool)
    starts[0] = True
    return Batch(tokens[..., :-1], tokens[..., 1:], np.ones((3, 2, 6), bool), weights, starts)


def gradients(policy):
    layers = policy == "segment_nested"
    model = SlotModel(16, 3, 2, num_slots=3, vocab_size=12, dtype=jnp.float64, rematerialize_layers=layers)
    params, memory = model.init(jax.random.key(0)), model.init_state(2)

    def loss(params):
        return loss_over_segments(model, params, memory, segments(), rematerialize=policy)[1].mean()

    return jax.jit(jax.grad(loss))(jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params))


@pytest.mark.laws
def test_gradients_of_the_slot_model_cross_segments_and_are_those_of_plain():
    with jax.enable_x64(True):
        plain, nested = gradients("none"), gradients("segment_nested")
        assert np.abs(plain["writer"]).max() > 1e-6
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), plain, nested)


@pytest.mark.parametrize("model", ["slots", pytest.param("transformer_xl", marks=pytest.mark.laws)])
def test_operations_by_policy(model):
    def flops(policy, segments_per_checkpoint=0):
        gradient, arguments = bench.program(bench.Cell(model, policy, 4, segments_per_checkpoint), TINY)
        return count_flops(gradient, *arguments)

    plain, per_layer, segment, nested = (flops(policy) for policy in bench.POLICIES[:4])
    # A forward pass costs half of its backward pass, or more where the gradient stops at the memory.
    once = plain / 3 if model == "slots" else plain / 2
    assert plain < per_layer < segment <= plain + once
    assert segment < nested <= plain + 2 * once
    assert nested < flops("segment_nested", 2) <= plain + 3 * once


@pytest.mark.laws
def test_operations_of_memformer():
    sizes = {**TINY, "encoder_layers": 1, "decoder_layers": 3, "dtype": "float32"}

    def flops(policy):
        gradient, arguments = bench.program(bench.Cell("memformer", policy, 4), sizes)
        return count_flops(gradient, *arguments)

    plain, segment, mrbp = (flops(policy) for policy in ("none", "segment", "mrbp"))
    # One more forward pass, or that of the encoder alone; a backward pass is a little less than two forward ones, as
    # nothing goes to the inputs of the first layer.
    assert plain < mrbp < segment < 1.35 * plain
    assert mrbp - plain < 0.6 * (segment - plain)


def test_cells_of_a_table():
    assert [cell.policy for cell in bench.cells("memformer", [4])] == [
        "none", "per_layer", "segment", "mrbp", "segment_nested"
    ]  # fmt: skip
    cells = bench.cells("slots", [8, 30])
    assert len(cells) == len(set(cells)) == 5 * 2 + 1
    assert cells[0].policy == "none"
    assert cells[-1] == bench.Cell("slots", "segment_nested", 30, segments_per_checkpoint=5)
    assert len(bench.cells("transformer_xl", [7])) == 5


FRAME = {"commit": "0123", "command": "a command", "versions": {"libtpu": "1", "jax": "2"}, "settings": bench.SETTINGS}


def record(policy, segments, size, flops, per_checkpoint=0, fits=True):
    cell = {"model": "slots", "policy": policy, "segments": segments, "segments_per_checkpoint": per_checkpoint}
    fitting = {"temp_size": size * 2**20, "host_temp_size": 0, "generated_code_size": 1000 + segments}
    memory = fitting if fits else {"wanted": size * 2**20, "limit": 2**30}
    return {**FRAME, **cell, **memory, "flops": flops, "parameters": 10**6, "compile_seconds": 1.0}


RECORDS = [
    record("none", 8, 1000, 100),
    record("none", 32, 4000, 400, fits=False),
    record("segment_nested", 8, 20, 150),
    record("segment_nested", 32, 25, 600),
    record("segment_nested", 32, 30, 800, per_checkpoint=4),
]


def test_ratios_are_to_plain_over_as_many_segments():
    plain, wants, nested, more, chunked = backward_tables.with_ratios(RECORDS)
    assert (plain["memory_ratio"], plain["flops_ratio"], plain["growth"]) == (1, 1, 1)
    assert (wants["memory_ratio"], wants["growth"]) == (1, 4)
    assert (nested["memory_ratio"], nested["flops_ratio"]) == (0.02, 1.5)
    assert (more["memory_ratio"], more["flops_ratio"], more["growth"]) == (25 / 4000, 1.5, 1.25)
    assert (chunked["flops_ratio"], chunked["growth"]) == (2, 1)


def test_the_table_and_its_goal():
    shown = pages.section(bench.measurement("slots", RECORDS))
    rows = [line for line in shown.splitlines() if line.startswith("| ") and "---" not in line]
    assert rows[1] == "| none | 1000 | 1.000 | 1.00 | wants 4000 | 1.000 | 1.00 | 4.00 |"
    assert rows[2] == "| segment_nested | 20 | 0.020 | 1.50 | 25 | 0.006 | 1.50 | 1.25 |"
    assert rows[3] == "| segment_nested, 4 segments per checkpoint | - | - | - | 30 | 0.007 | 2.00 | - |"
    assert "to more of them: at most 1.02 times as much" in shown  # 1032 / 1008
    assert shown.count(": met)") == 3 and "gradient checkpointing 9885 (0.61)" in shown
    assert all(part in shown for part in ("libtpu 1, jax 2", "commit 0123", "`a command`", "fit into 1.00 GiB"))
    offloaded = {**record("offload", 8, 10, 120), "host_temp_size": 7 * 2**20}
    assert "| offload | 10 + 7 host | 0.010 |" in backward_tables.policies(
        backward_tables.with_ratios([RECORDS[0], offloaded])
    )
    worse = [{**r, "flops": 2 * r["flops"]} if r["policy"] != "none" else r for r in RECORDS]
    assert backward_tables.scan_goal(backward_tables.with_ratios(worse)).count("missed") == 1


def test_what_is_in_the_file_is_not_compiled_again(tmp_path, monkeypatch):
    compiled, file = [], tmp_path / "records.jsonl"

    def compile_apart(cell, settings):
        if cell.segments == fails:
            raise harness.BenchError("it failed")
        compiled.append(cell)
        return record(cell.policy, cell.segments, 1, 1)

    monkeypatch.setattr(bench, "compile_apart", compile_apart)
    wanted = bench.cells("slots", [1, 2])[:2]
    fails = 2
    with pytest.raises(harness.BenchError):
        bench.measure(wanted, FRAME, file)
    fails = 0
    assert [bench.cell_of(found) for found in bench.measure(wanted, FRAME, file)] == wanted
    assert compiled == wanted and len(file.read_text().splitlines()) == 2
    bench.measure(wanted, {**FRAME, "versions": {"libtpu": "2", "jax": "2"}}, file)
    assert compiled == [*wanted, *wanted]


def test_bad_arguments(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--segments", "0"])
    assert "--segments: given 0, allowed: at least 1" in capsys.readouterr().err


needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler")


@pytest.mark.slow
@needs_libtpu
def test_compiles_for_a_tpu():
    settings = {**TINY, "dim": 128, "layers": 4, "length": 128, "vocab": 512}

    def compiled(policy):
        return bench.compile_apart(bench.Cell("slots", policy, 8), settings)

    plain, nested = compiled("none"), compiled("segment_nested")
    assert nested["temp_size"] < 0.2 * plain["temp_size"]
    assert 1 < nested["flops"] / plain["flops"] < 1.67


@pytest.mark.slow
@needs_libtpu
def test_a_program_that_does_not_fit_says_what_it_wants():
    large = bench.compile_apart(bench.Cell("slots", "none", 64), {**bench.SETTINGS, "length": 1024})
    assert large["wanted"] > large["limit"] > 90 * 2**30 and "temp_size" not in large


@pytest.mark.slow
@needs_libtpu
def test_a_failure_names_the_cell():
    with pytest.raises(harness.BenchError, match="slots, none, 2 segments: the process ended with code 1: ValueError"):
        bench.compile_apart(bench.Cell("slots", "none", 2), {**TINY, "topology": "v99"})
