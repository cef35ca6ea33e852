"""What is planned of a learner: its kinds of update, pieces of them, and the scoring of rows with parameters of their
own; of a memory of any size, since all is shapes.
"""

import importlib.util
import json

import jax
import pytest

from memjax.cli import main
from memjax.config import AGEM, ANML, EAEMR, EMAR, MAML, OML, EpisodicMemory, MbPA, MetaMbPA, Sequential
from memjax.planning.compile_ahead import check_kept, largest_width
from memjax.planning.programs import EpisodicMemoryBytes, make_programs
from memjax.planning.report import comparison, learner_bytes
from memjax.planning.topologies import GIB, parse_topology
from memjax.settings.overrides import load_config
from memjax.training.metrics import count_bytes
from memjax.training.sharding import Layout, make_mesh
from tests.lifelong.learner_cases import DIM, ROWS, config_of
from tests.planning.report_test import facts

MANY = 50_000_000


def programs_of(method, what="train", **fields):
    return make_programs(config_of(method, **fields), what, 0, Layout(make_mesh((1, 1, 1), jax.devices()[:1])))


def test_every_kind_of_update_is_planned_and_its_memory_written_and_searched():
    memory = EpisodicMemory(write_policy="all", capacity=MANY)
    found = programs_of(
        MbPA(
            memory=memory,
            replay_interval=8,
            replay_batch_size=4,
            key_source="first",
            num_neighbors=4,
            adaptation_steps=2,
            adapted_parameters=("head/",),
        )
    )
    assert list(found) == ["stream", "replay", "write", "search", "adapt"]
    state = found["stream"].arguments["state"]
    assert state.method["episodes"].capacity == MANY and state.method["episodes"].keys.shape == (MANY, 5)
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    for name in ("stream", "replay"):
        assert shapes(jax.eval_shape(found[name].function, *found[name].arguments.values())[0]) == shapes(state)
    write, search, adapt = (found[name] for name in ("write", "search", "adapt"))
    assert shapes(jax.eval_shape(write.function, *write.arguments.values())) == shapes(state) and write.donated == (0,)
    support, weights = jax.eval_shape(search.function, *search.arguments.values())
    assert support.inputs.shape == (ROWS, 4, DIM) and weights.shape == (ROWS, 4)
    assert jax.eval_shape(adapt.function, *adapt.arguments.values())[0].nats.shape == (4, 1)
    assert adapt.copies.field == "lifelong.method.adaptation_batch_size"
    assert adapt.copies.bytes == count_bytes(state.params["head"]) < count_bytes(state.params)
    assert adapt.rows_kept.field == "lifelong.method.memory.capacity"
    assert adapt.rows_kept.bytes == count_bytes(state.method["episodes"]) > MANY * 4 * DIM


def test_a_learner_says_what_it_does():
    memory = EpisodicMemory(capacity=12)
    assert list(programs_of(Sequential())) == ["stream"]
    assert list(programs_of(AGEM(memory=memory, reference_batch_size=8, projection_interval=8))) == [
        "stream",
        "projected",
        "write",
    ]
    random = MbPA(memory=memory, replay_interval=0, neighbor_choice="random", adaptation_steps=2)
    assert list(programs_of(random)) == ["stream", "write", "search", "adapt"]
    assert list(programs_of(random, "eval")) == ["adapt"]
    assert list(programs_of(Sequential(), "eval")) == ["eval"]


@pytest.mark.laws
def test_episodes_are_planned_in_their_shapes():
    memory = EpisodicMemory(write_policy="all", capacity=MANY)
    how = {"memory": memory, "replay_interval": 8, "replay_rate": 0.5, "inner_steps": 2}
    for method in (OML(**how), ANML(**how), MAML(**how, first_order=False)):
        found = programs_of(method)
        assert list(found) == ["stream", "replay", "write"]
        assert [found[kind].arguments["batch"].inputs.shape for kind in ("stream", "replay")] == [
            (batches, ROWS, DIM) for batches in (3, 2)
        ]
        state = found["stream"].arguments["state"]
        for name in ("stream", "replay"):
            new = jax.eval_shape(found[name].function, *found[name].arguments.values())[0]
            assert jax.tree.map(lambda leaf: leaf.shape, new) == jax.tree.map(lambda leaf: leaf.shape, state)
    meta = programs_of(
        MetaMbPA(
            memory=memory,
            replay_interval=8,
            replay_batch_size=4,
            num_neighbors=4,
            share_neighborhood=False,
            adaptation_scope="per_example",
        )
    )
    assert list(meta) == ["stream", "replay", "write", "search", "adapt"]


def test_a_memory_that_fits_no_device_is_one_line_with_what_would_fit():
    kept = EpisodicMemoryBytes("lifelong.method.memory.capacity", 1000, 10 * GIB, 6 * GIB)
    with pytest.raises(ValueError, match="^lifelong.method.memory.capacity: given 1,000 rows in all, 10.00 GiB") as no:
        check_kept(kept, parse_topology("v5e:2x4"))
    assert str(no.value).endswith(
        "6.00 GiB of the rest of the state, allowed: at most 975 rows, which fill its 15.75 GiB"
    )
    check_kept(kept, parse_topology("v5p:2x2x1"))
    check_kept(kept._replace(bytes=9 * GIB), parse_topology("v5e:2x4"))
    check_kept(None, parse_topology("v5e:2x4"))


def test_the_largest_width_is_found_in_few_tries():
    for most in (0, 1, 2, 3, 9, 64):
        asked = []

        def total(width, most=most, asked=asked):
            asked.append(width)
            return None if width > most else 7 + 3 * width + width % 2

        assert largest_width(total, 7 + 3 * most + 2) == most
        assert len(asked) <= 14 and len(set(asked)) == len(asked)


def test_widths_that_need_nothing_at_first_are_tried_by_strides():
    asked = []

    def total(width):
        asked.append(width)
        return None if width > 50_000 else max(10_000, width)

    assert 50_000 * 63 // 64 <= largest_width(total, 50_000) <= 50_000
    assert len(asked) < 30 and max(asked) < 10**6


def test_the_table_names_the_steps_and_lines_say_what_is_kept():
    kept = {"field": "lifelong.method.memory.capacity", "capacity": 575_000, "bytes": GIB, "beside": GIB}
    stream = {**facts(), "kept": kept, "parts": {"parameters": GIB, "keys": 2 * GIB, "batch": 1}}
    copies = {"field": "lifelong.method.adaptation_batch_size", "bytes": GIB // 2, "at_once": 4}
    adapt = {**facts(), "program": "adapt", "copies": copies}
    header, rows = comparison([stream, adapt])
    assert header[:2] == ["topology", "step"] and [row[1] for row in rows] == ["stream", "adapt"]
    (line,) = learner_bytes(stream)
    assert line.startswith("v5e:2x2: on a device parameters 1.00 GiB, keys 2.00 GiB; 575,000 rows")
    (line,) = learner_bytes(adapt)
    assert "4 x 0.50 GiB = 2.00 GiB on a device (lifelong.method.adaptation_batch_size); see --widest" in line
    (line,) = learner_bytes({**adapt, "copies": {**copies, "widest": 9}})
    assert line.endswith("at most 9 fit side by side")
    assert comparison([facts(), facts()])[0][:2] == ["topology", "chips"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["oml", "anml", "maml", "meta_mbpa"])
def test_learning_to_adapt_is_planned_at_the_published_size(name):
    config = load_config("lifelong_text", f"paper_{name}")
    programs = make_programs(config, "train", 30_522, Layout(make_mesh((1, 1, 1), jax.devices()[:1])))
    state = programs["stream"].arguments["state"]
    capacity = state.method["episodes"].capacity
    assert capacity == (5750 if name == "meta_mbpa" else 575_000)
    assert programs["stream"].arguments["batch"].inputs.shape[0] == (1 if name == "meta_mbpa" else 6)
    assert (count_bytes(state.params) > 800e6) == (name == "anml")


@pytest.mark.laws
@pytest.mark.parametrize("method", [EMAR(examples_per_task=4), EAEMR(examples_per_task=4)])
def test_methods_that_rehearse_relations_are_planned(method):
    config = load_config("lifelong_relations", "smoke")
    config.task.relation_vectors = "learned" if isinstance(method, EMAR) else "names"
    config.lifelong.method = method
    programs = make_programs(config, "train", 50, Layout(make_mesh((1, 1, 1), jax.devices()[:1])))
    aligned = [] if isinstance(method, EMAR) else ["align"]
    assert {*programs} >= {"stream", *aligned}
    constants = programs["stream"].arguments["state"].constants
    assert constants["head"]["seen"].shape == (8,) and ("alignment" in constants["head"]) == bool(aligned)


@pytest.mark.slow
def test_the_published_size_is_planned_without_an_array_of_it():
    config = load_config("lifelong_text", "paper")
    programs = make_programs(config, "train", 30_522, Layout(make_mesh((1, 1, 1), jax.devices()[:1])))
    state = programs["write"].arguments["state"]
    assert list(programs) == ["stream", "replay", "write", "search", "adapt"]
    assert state.method["episodes"].keys.shape == (575_000, 768)
    assert count_bytes(state.method["key_network"]) == count_bytes(state.params) == programs["adapt"].copies.bytes


CONFIG = """
from tests.lifelong.learner_cases import config_of
from memjax.config import EpisodicMemory, MbPA

VARIANTS = {"default": "tiny"}

def get_config(variant="default"):
    memory = EpisodicMemory(write_policy="all", capacity=4096)
    replay = {"memory": memory, "replay_interval": 8, "replay_batch_size": 4, "key_source": "first"}
    method = MbPA(**replay, num_neighbors=4, adaptation_steps=3, adaptation_batch_size=2)
    config = config_of(method)
    config.data.batch_size = config.evaluation.batch_size = 8
    return config
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
def test_a_stream_is_compiled_for_a_slice_without_a_copy_of_its_memory(tmp_path, capsys):
    (tmp_path / "tiny.py").write_text(CONFIG)
    command = ["plan", "--config", str(tmp_path / "tiny.py"), "--topology", "v5e:2x2"]
    command += ["--model.widths", "4096", "512"]
    assert main([*command, "--widest", "--json", "--lifelong.method.memory.capacity", "4194304"]) == 0
    found = {one["program"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(found) == ["stream", "replay", "write", "search", "adapt"]
    kept = found["write"]["kept"]["bytes"]
    for one in found.values():
        assert one["parts"]["episodic memory"] + one["parts"]["keys"] == pytest.approx(kept, rel=1e-3)
        # Neither copied on a device nor gathered from the others.
        assert one["memory"]["temporaries"] < kept / 2
        assert sum(part["bytes"] for part in one["collectives"]) < kept / 2
    for name in ("stream", "replay", "write"):
        assert found[name]["memory"]["aliased"] > kept
    assert found["adapt"]["copies"]["at_once"] == 2 and found["adapt"]["copies"]["widest"] > 2
    assert main([*command, "--lifelong.method.memory.capacity", str(2**31 - 8)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "lifelong.method.memory.capacity: given 2,147,483,640 rows in all" in error
