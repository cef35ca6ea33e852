"""Learners with several kinds of update, arrays on the host and an adaptation, through `train`."""

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.cli import main
from memjax.config import EpisodicMemory, MbPA, MethodKind, Replay, Sequential, Sharding
from memjax.lifelong import factory
from memjax.lifelong.method_interface import Method
from memjax.training import read_metrics
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.experiment import make_experiment as make_real_experiment
from memjax.training.gradients import compute_gradients
from memjax.training.loop import call_every
from memjax.training.metrics import count_bytes
from memjax.training.plain_learner import make_plain_learner
from memjax.training.run_start import train
from memjax.training.stages import HostArrays, PhaseResult, Stage
from memjax.training.step import apply_gradients
from memjax.training.train_state import model_variables
from memjax.training.update_functions import make_update_functions
from memjax.typing import WeightedSum
from tests.compiling import FAST_FLAGS
from tests.lifelong import stages_test
from tests.lifelong.learner_cases import ALL, config_of, play
from tests.training.loop_test import Crash, assert_same_run, crash_at, final_arrays, make_experiment

KINDS = ("stream", "replay", "pull")
KEPT, REPLAYED, STEPS = 6, 2, 7


class Ring:
    """The rows that were read last, on the host."""

    def __init__(self, example):
        self.rows = jax.tree.map(lambda leaf: np.zeros((KEPT, *leaf.shape[2:]), leaf.dtype), example)
        self.cursor = np.zeros((), np.int64)

    def add(self, batch):
        number = batch.inputs.shape[1]
        places = (int(self.cursor) + np.arange(number)) % KEPT
        for ring, leaf in zip(jax.tree.leaves(self.rows), jax.tree.leaves(batch), strict=True):
            ring[places] = leaf[0]
        self.cursor += number

    def batch(self):
        places = (int(self.cursor) - 1 - 2 * np.arange(REPLAYED)) % KEPT
        batch = jax.tree.map(lambda ring: ring[places][None], self.rows)
        return dataclasses.replace(batch, start_of_document=np.ones((1, REPLAYED), bool))

    def arrays(self):
        return {"cursor": self.cursor, **self.named()}

    def restore(self, arrays):
        self.cursor[...] = arrays["cursor"]
        for name, ring in self.named().items():
            ring[...] = arrays[name]

    def named(self):
        return {f"rows_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(self.rows))}


class Mixed:
    """Of three updates one reads, one repeats a few rows from the ring, one pulls back to what is kept."""

    def __init__(self, stream, ring, done):
        self.stream, self.ring, self.done = stream, ring, done

    @property
    def position(self):
        return {"stream": self.stream.position, "done": self.done}

    def __next__(self):
        kind, self.done = KINDS[self.done % 3], self.done + 1
        if kind == "stream":
            batch = next(self.stream)
            self.ring.add(batch)
            return kind, batch
        return kind, self.ring.batch() if kind == "replay" else None


def replaying(experiment, layout, objective, *, traced=None, kill=()):
    """Two stages of three kinds of update; after each the parameters are kept, and the ring begins elsewhere."""
    traced, calls = Counter() if traced is None else traced, []
    parts = make_update_functions(experiment.config, experiment.model, objective=objective)
    plain = make_plain_learner(
        experiment, layout, objective, method=lambda params: jax.tree.map(jnp.zeros_like, params)
    )
    ring = Ring(plain.batch_shapes["stream"])

    def learn(state, batch):
        traced["stream"] += 1
        return plain.updates["stream"](state, batch)

    def replay(state, batch):
        traced["replay"] += 1
        memory = experiment.model.init_state(REPLAYED)
        state, found = compute_gradients(parts.objective, state, batch, memory=memory)
        return apply_gradients(state, found, parts.optimizer)

    def pull(state, batch):
        traced["pull"] += 1
        params = jax.tree.map(lambda leaf, kept: 0.9 * leaf + 0.1 * kept, state.params, state.method)
        moved = sum(jnp.sum((a - b) ** 2) for a, b in zip(*map(jax.tree.leaves, (params, state.params)), strict=True))
        return dataclasses.replace(state, params=params, step=state.step + 1), {
            "moved": WeightedSum(moved, jnp.ones(()))
        }

    def after(state, context):
        ring.cursor += 1
        calls.append(len(calls) + 1)
        if calls[-1] in kill:
            raise stages_test.Killed
        return PhaseResult(dataclasses.replace(state, method=state.params), context.lineage)

    def open_stream(state, position):
        at = position or {"stream": None, "done": 0}
        held = layout.host_rows(experiment.config.data.batch_size) if layout else None
        return Mixed(experiment.stream(at["stream"], held), ring, at["done"])

    kinds = {"stream": plain.batch_shapes["stream"], "replay": ring.batch(), "pull": None}
    learner = plain._replace(
        updates={"stream": learn, "replay": replay, "pull": pull},
        batch_shapes=kinds,
        host_arrays=HostArrays(ring.arrays, ring.restore),
    )
    return lambda lineage: learner, [Stage(name, open_stream, STEPS, after=after) for name in ("one", "two")]


def run(experiment, hooks=(), **given):
    course = lambda *parts: replaying(*parts, **given)
    return train(experiment.config, experiment=experiment, hooks=hooks, on_event=lambda event: None, course=course)


@pytest.mark.laws
def test_kinds_of_update_and_arrays_of_the_host_go_on_bit_for_bit(tmp_path):
    traced, seen = Counter(), []
    hook = lambda info: seen.append(jax.device_get((info.state.memory, info.state.restart)))
    options = {"steps": 2 * STEPS, "checkpoint_every": 2, "evaluate_every": 0}
    whole = run(make_experiment(tmp_path / "whole", **options), hooks=[call_every(1, hook)], traced=traced)
    assert traced == dict.fromkeys(KINDS, 1)
    # Only `stream` touches the memory of the rows.
    same = [all(map(np.array_equal, *map(jax.tree.leaves, pair))) for pair in zip(seen, seen[1:], strict=False)]
    done = [step % STEPS for step in range(1, 2 * STEPS)]
    assert same == [KINDS[number % 3] != "stream" for number in done]
    lines = [line for line in read_metrics(whole.path / "metrics.jsonl") if line["kind"] == "train"]
    assert all({"tokens", "replay/nll", "replay/tokens", "pull/moved"} <= line.keys() for line in lines)
    assert lines[0]["skipped"] == 0 and lines[0]["replay/nll"] > 0 and "nll" not in lines[0]
    experiment = make_experiment(tmp_path / "again", **options)
    with pytest.raises(Crash):
        run(experiment, hooks=[crash_at(3)])
    with pytest.raises(stages_test.Killed):  # after the ring has begun elsewhere
        run(experiment, kill=(1,))
    with pytest.raises(Crash):
        run(experiment, hooks=[crash_at(STEPS + 6)])
    again = run(experiment)
    assert_same_run(again.path, whole.path)
    arrays = final_arrays(again.path)[1]
    assert arrays["host/cursor"] == 4 * len([d for d in range(2 * STEPS) if d % STEPS % 3 == 0]) + 2
    assert arrays["host/rows_0"].shape[0] == KEPT and any(name.startswith("method/") for name in arrays)


def compare_with_a_mesh(folder):
    """The run on one device, and on all of them, there killed and resumed; as JSON, in a process of its own."""
    results = []
    for name, sharding in (("one", Sharding()), ("mesh", Sharding(data=1, fsdp=jax.device_count()))):
        config = stages_test.config_of(f"{folder}/{name}", steps=2 * STEPS, log_every=STEPS)
        experiment = make_real_experiment(dataclasses.replace(config, sharding=sharding))
        if name == "mesh":
            with pytest.raises(Crash):
                run(experiment, hooks=[crash_at(STEPS + 3)])
        results.append(run(experiment))
    one, mesh = (final_arrays(result.path)[1] for result in results)
    assert one.keys() == mesh.keys()
    print(json.dumps({name: float(np.max(np.abs(np.float64(one[name]) - np.float64(mesh[name])))) for name in one}))


@pytest.mark.slow
def test_the_same_learner_on_two_devices(tmp_path):
    code = f"from tests.lifelong.learners_test import compare_with_a_mesh as f; f({str(tmp_path)!r})"
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {FAST_FLAGS}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    far = json.loads(done.stdout.splitlines()[-1])
    assert max(far.values()) < 1e-4 and {"host/cursor", "totals/replay/nll/total"} <= far.keys()


def adapting(experiment, layout, objective):
    """Its variables are drawn away from those of the state by what it keeps, and by noise."""

    def adapt(state, support, key):
        assert support is None
        variables = model_variables(state)
        noise = lambda leaf: leaf + 0.1 * jax.random.normal(key, leaf.shape)
        params = jax.tree.map(lambda leaf, kept: noise(leaf) + kept, variables["params"], state.method)
        return {**variables, "params": params}

    kept = lambda params: jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.2), params)
    return make_plain_learner(experiment, layout, objective, method=kept)._replace(adapt_variables=adapt)


@pytest.mark.laws
def test_a_run_is_evaluated_with_what_its_learner_adapts(tmp_path, monkeypatch, capsys):
    config = stages_test.config_of(tmp_path, Sequential())
    plain, _ = stages_test.run(config)
    assert main(["eval", "--run", str(plain.path), "--json"]) == 0
    monkeypatch.setattr(factory, "make_method", lambda settings, boundaries: Method(adapting))
    result, _ = stages_test.run(dataclasses.replace(config, name="adapted"))
    capsys.readouterr()
    for name, wanted in (("short", result.results["evaluations"]["short"]), ("", result.results["evaluation"])):
        assert main(["eval", "--run", str(result.path), "--json", "--evaluation.task", name]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["nats"] == wanted["nats"] != plain.results["evaluation"]["nats"]


def test_every_kind_of_method_is_made_of_its_settings():
    for kind in get_args(MethodKind):
        assert isinstance(factory.make_method(kind()), Method)
    with pytest.raises(
        ValueError, match="lifelong.method: given int, allowed: Sequential, SingleTask, Joint, Replay, AGEM"
    ):
        factory.make_method(1)


@pytest.mark.laws
def test_an_update_that_writes_and_replays_copies_no_memory():
    """In the compiled update with 100,000 rows."""
    method = Replay(memory=EpisodicMemory(capacity=100_000), replay_batch_size=4)
    learner = factory.make_learner(make_real_experiment(config_of(method)))
    places = CompiledLearner(None, learner)
    size = count_bytes(places.shapes.method["episodes"])
    used = places.compile("stream").lower(places.shapes, learner.batch_shapes["stream"]).compile().memory_analysis()
    assert used.alias_size_in_bytes > size and used.temp_size_in_bytes < 0.2 * size


@pytest.mark.laws
def test_all_rows_of_a_batch_adapt_in_one_call():
    config = config_of(MbPA(memory=ALL, num_neighbors=4, adaptation_steps=2, adaptation_batch_size=16), tasks=1)
    config.evaluation.batch_size = config.data.source.num_test = 64
    played = play(config)
    evaluator, calls = played.learner.evaluators[""], []
    score = evaluator._score
    evaluator._score = lambda *given: calls.append(1) or score(*given)
    assert evaluator(played.learner.evaluation_variables(played.state, 0)).targets == 64
    assert len(calls) == 1 and score._cache_size() == 1
