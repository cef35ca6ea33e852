"""Plans for TPUs that are not here: a tiny model compiled where libtpu is installed, and the sums around it."""

import importlib.util
import os

import jax
import pytest

from memjax.config import (
    Bytes,
    Config,
    Data,
    Evaluation,
    KeyValueRecall,
    Memorizing,
    Model,
    SentencePiece,
    SeqioTask,
    Sharding,
    Spalm,
    Training,
    Words,
)
from memjax.data.opening import vocab_size_from_settings
from memjax.planning import plan_cases as plans
from memjax.planning.advice import advise
from memjax.planning.compile_ahead import out_of_memory
from memjax.planning.plan_cases import Case, assumptions, environment, estimate, plan
from memjax.planning.programs import make_programs
from memjax.planning.topologies import GIB, parse_topology
from memjax.settings.overrides import load_config
from memjax.training.costs import jaxpr_flops
from memjax.training.sharding import Layout, make_mesh

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")


def tiny(**attention) -> Config:
    fields = {
        "layers_with_memory": (-1,),
        "memory_length": 64,
        "num_neighbors": 4,
        "cache_length": 8,
        "retrieval": "approximate",
    }
    return Config(
        name="tiny",
        model=Model(dim=16, num_layers=2, num_heads=2, scan_layers=True, attention=Memorizing(**fields | attention)),
        data=Data(tokenizer=Bytes(), batch_size=4, segment_length=8),
        evaluation=Evaluation(batch_size=4),
    )


@pytest.fixture(scope="module")
def compiled():
    """A train step for four devices, parameters split over two."""
    config = tiny()
    config.sharding = Sharding(fsdp=2)
    (facts,) = plan(Case(config, parse_topology("v5e:2x2")))
    return facts


@pytest.mark.laws
@needs_libtpu
def test_a_tiny_model_compiles(compiled):
    assert compiled["fits"] and compiled["tips"] == []
    assert compiled["mesh"] == {"data": 2, "fsdp": 2, "model": 1}
    assert compiled["tokens"] == 4 * 8
    memory = compiled["memory"]
    assert memory["total"] == (memory["arguments"] + memory["outputs"] - memory["aliased"] + memory["temporaries"])
    assert memory["aliased"] / memory["arguments"] > 0.9  # the state is donated
    assert sum(compiled["parts"].values()) <= memory["arguments"] < compiled["limit"] == 15.75 * GIB


@pytest.mark.laws
@needs_libtpu
def test_parameters_are_split_and_gathered(compiled):
    # Parameters in float32 over two devices; Adam has two moments of them. Scales and biases are whole.
    padding = (384 - 259) * 16  # of the table of bytes, which the count leaves out
    assert compiled["parts"]["parameters"] == pytest.approx((compiled["parameters"] + padding) * 4 / 2, rel=0.1)
    assert compiled["parts"]["optimizer"] == pytest.approx(2 * compiled["parts"]["parameters"], rel=0.01)
    kinds = {part["kind"]: part for part in compiled["collectives"]}
    assert {"all-gather", "all-reduce"} <= set(kinds)
    assert all(0 < part["sent_bytes"] < 2 * part["bytes"] and part["count"] > 0 for part in kinds.values())
    assert any("embedding" in name for name, _, _ in compiled["arguments"])


@pytest.mark.laws
@needs_libtpu
def test_work_is_that_of_the_model(compiled):
    # Without recomputation: 2 FLOPs a parameter and token forward, 4 backward, and attention.
    assert compiled["flops"] == compiled["model_flops"]
    matrices = compiled["parameters"] * compiled["tokens"] * 6
    assert matrices < compiled["flops"] < 4 * matrices
    guess = compiled["estimate"]
    assert guess["step"] == max(guess["compute"], guess["hbm"], guess["ici"]) == guess[guess["bound"]]
    assert 0 < guess["utilization"] < 1


@needs_libtpu
def test_rows_that_do_not_divide_are_a_mistake():
    config = tiny()
    config.data.batch_size = 6
    with pytest.raises(ValueError, match="^data.batch_size: given 6, allowed: a multiple of 4"):
        plan(Case(config, parse_topology("v5e:2x2")))


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("what", ["eval", "decode"])
def test_other_steps_compile(what):
    (facts,) = plan(Case(tiny(), parse_topology("v5e:2x2"), what))
    assert facts["fits"] and facts["peak"] > 0 and facts["code"] > 0
    assert facts["tokens"] == (4 * 8 if what == "eval" else 4)
    assert set(facts["parts"]) == {"parameters", "memory", "batch"}


@pytest.mark.laws
def test_operations_are_those_of_a_count_by_hand():
    config = load_config("memorizing_scale")
    config.data.batch_size, config.model.attention.memory_length = 4, 8192
    program = make_programs(config, "train", 32_000, Layout(make_mesh((1, 1, 1), jax.devices()[:1])))["stream"]
    flops = jaxpr_flops(jax.make_jaxpr(program.function)(*program.arguments.values()))
    dim, layers, tokens = 1024, 12, 4 * 512
    weights = layers * (4 * dim**2 + 2 * dim * 4096) + 32_000 * dim  # forward 2 operations for each, backward 4
    attention = layers * (512 + 512) * dim  # queries with keys of cache and segment, and what is read: 2 + 4, each
    search = 8192 * dim  # in one layer, and nothing backward
    neighbors = 32 * dim
    by_hand = tokens * (6 * weights + 12 * attention + 2 * search + 12 * neighbors)
    assert program.tokens == tokens
    assert flops == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.parametrize(
    "what", ["train", *(pytest.param(what, marks=pytest.mark.laws) for what in ("eval", "decode"))]
)
def test_memories_at_the_output_are_in_the_program(what):
    config = tiny()
    config.model.output = Spalm(num_neighbors=3)
    config.evaluation.cache.memory_length = 10
    (program,) = make_programs(config, what, 50, Layout(make_mesh((1, 1, 1), jax.devices()[:1]))).values()
    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree_util.tree_flatten_with_path(dict(program.arguments))[0]
    }
    neighbors = {name: shape for name, shape in shapes.items() if name.endswith("neighbor_values")}
    assert list(neighbors.values()) == {"train": [(1, 4, 8, 3)], "eval": [(4, 8, 3)], "decode": []}[what]
    cached = [shape for name, shape in shapes.items() if name.endswith("hidden") and "mixtures" in name]
    assert cached == ([] if what == "train" else [(4, 10, 16)])
    jax.eval_shape(program.function, *program.arguments.values())


def test_without_libtpu_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(plans.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'memjax\[plan\]'") as caught:
        plan(Case(tiny(), parse_topology("v5e:2x2")))
    assert caught.value.name == "libtpu"


def test_only_the_compiling_process_gets_the_environment(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    before = dict(os.environ)
    made = environment("folder")
    assert made["JAX_PLATFORMS"] == "cpu" and made["JAX_ENABLE_COMPILATION_CACHE"] == "0"
    assert made["XLA_FLAGS"].startswith("--mine --xla_dump_to=folder ")
    assert made["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    assert dict(os.environ) == before


def facts_of(**changes) -> dict:
    """Facts of a train step on v5e:2x2 that needs 20 GiB."""
    facts = {
        "what": "train",
        "mesh": {"data": 4, "fsdp": 1, "model": 1},
        "tokens": 32,
        "fits": False,
        "memory": {"total": 20 * GIB},
        "required": 20 * GIB,
        "limit": 16 * GIB,
        "flops": 8e12,
        "model_flops": 6e12,
        "hbm_bytes": 10**9,
        "collectives": [{"sent_bytes": 1e8}, {"sent_bytes": 1e8}],
        "parameters": 1,
        "trained": 1,
        "parts": {"parameters": GIB, "optimizer": 2 * GIB, "memory": 4 * GIB, "batch": 0},
    }
    return facts | changes


def test_the_estimate_is_the_longest_of_three():
    topology = parse_topology("v5e:2x2")
    found = estimate(facts_of(), topology)
    assert found.compute == pytest.approx(8e12 / 4 / 197e12)
    assert found.hbm == pytest.approx(1e9 / 819e9)
    assert found.ici == pytest.approx(2e8 / 200e9)
    assert (found.bound, found.step) == ("compute", found.compute)
    assert found.utilization == pytest.approx(6 / 8)
    assert found.intensity == pytest.approx(2000)
    assert found.balance == pytest.approx(197e12 / 819e9)
    assert "197 TFLOP/s" in assumptions(topology) and "200 GB/s" in assumptions(topology)
    assert found.tokens_per_second == pytest.approx(32 / found.compute)
    assert estimate(facts_of(hbm_bytes=10**12), topology).bound == "hbm"


def saved(tips) -> dict[str, float]:
    return {tip.change.split()[0]: tip.saves / GIB for tip in tips}


def test_advice_says_what_each_change_saves():
    config = tiny()
    config.data.batch_size, config.model.num_layers, config.model.compute_dtype = 32, 12, "bfloat16"
    tips = advise(config, facts_of())
    # 20 GiB: 3 of weights, 1 of gradients, 4 of memory, 12 of activations; 4 too much.
    found = saved(tips)
    assert found["--training.remat"] == pytest.approx(12 * 11 / 12, rel=0.01)
    assert found["--training.num-microbatches"] == pytest.approx(6)
    assert found["--data.batch-size"] == pytest.approx(8)
    assert found["--sharding.fsdp"] == pytest.approx(4 * 3 / 4)
    assert found["--model.memory-dtype"] == pytest.approx(2)
    assert [tip.saves for tip in tips] == sorted((tip.saves for tip in tips), reverse=True)
    assert {tip.change for tip in tips if tip.enough} == {
        "--training.remat per_layer",
        "--training.num-microbatches 2",
        "--data.batch-size 16",
    }


def test_advice_goes_as_far_as_it_must():
    config = tiny()
    config.data.batch_size = 32
    tips = advise(config, facts_of(required=20 * GIB, limit=9 * GIB))  # 11 too much, of 16
    assert "--data.batch-size 8" in [tip.change for tip in tips]


def test_a_memory_of_the_evaluation_has_advice_of_its_own():
    config = tiny()
    config.evaluation.memory_length = 128
    changes = [tip.change for tip in advise(config, facts_of(what="eval"))]
    assert "--evaluation.memory-length 16" in changes and not any("training" in change for change in changes)


def test_exact_search_and_long_horizons_have_advice():
    config = tiny(retrieval="exact", memory_length=2**16)
    config.data.batch_size = 32
    config.training = Training(segments_per_update=8, remat="segment")
    changes = [tip.change for tip in advise(config, facts_of())]
    assert "--model.attention.retrieval approximate" in changes
    assert "--training.remat segment_nested" in changes
    assert "--training.segments-per-update 4" in changes


def test_a_row_alone_on_its_device_can_be_split():
    config = tiny()
    config.data.batch_size = 4
    changes = [tip.change for tip in advise(config, facts_of())]
    assert "--sharding.model 2 --sharding.data 2 --data.batch-size 2" in changes
    config.model.num_heads = 1
    changes = [tip.change for tip in advise(config, facts_of())]
    assert "--sharding.model 2 --sharding.data 2 --sharding.split-memory-by slots --data.batch-size 2" in changes


def test_the_message_about_too_little_memory():
    message = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (62.78G) exceeds available HBM (15.75G). HLO module: jit_loss."
    )
    found = out_of_memory(message)
    assert found is not None
    assert (found.required, found.limit) == (int(62.78 * GIB), int(15.75 * GIB))
    assert out_of_memory("INTERNAL: something else") is None


@pytest.mark.parametrize(
    "data, size",
    [
        (Data(tokenizer=Bytes()), 259),
        (Data(tokenizer=SentencePiece(vocab_size=32000)), 32000),
        (Data(source=KeyValueRecall(num_keys=4, num_values=4, num_pairs=2)), None),
    ],
)
def test_vocabulary_without_data(data, size):
    assert vocab_size_from_settings(data) == size if size else vocab_size_from_settings(data) > 4 * 4


@pytest.mark.parametrize("data", [Data(tokenizer=Words()), Data(source=SeqioTask())])
def test_a_vocabulary_that_only_the_data_knows_must_be_given(data):
    with pytest.raises(ValueError, match="^vocab-size: given none, allowed: a number of ids"):
        vocab_size_from_settings(data)
