"""ELLE through `train`: degenerate cases, growth between tasks, recovery, resume, and refusals."""

import copy
import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import (
    ELLE,
    GPT2,
    Adafactor,
    AdaptiveSoftmax,
    Bidirectional,
    BytePairs,
    Classification,
    Config,
    Data,
    Dense,
    EpisodicMemory,
    Evaluation,
    JsonLines,
    KeyValueRecall,
    LabelledFile,
    LanguageModeling,
    Lifelong,
    MaskedLanguageModeling,
    Model,
    ProductKey,
    Replay,
    Schedule,
    Sequential,
    Spalm,
    TaskData,
    Training,
    TransformerXL,
    validate,
)
from memjax.data.documents import ArrayDocuments
from memjax.data.text_chunks import TextPieces
from memjax.lifelong import elle, load_run, train
from memjax.lifelong.elle import GROWTH_LINE, WARM_UP, next_growth
from memjax.lifelong.factory import growth_histories, make_learner_and_stages, make_method
from memjax.lifelong.growth_sources import Growth
from memjax.lifelong.method_interface import TaskInfo
from memjax.lifelong.task_progress import draw_task
from memjax.memory.layer_parts import NORM_WEIGHTS
from memjax.models.transformer import split_collection
from memjax.tasks.interface import Query
from memjax.training import read_metrics
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import checkpoint_extras
from memjax.training.named_arrays import flatten
from memjax.training.runs import config_after_growth
from memjax.training.stages import GROWTH, STREAM, PhaseContext, Position, Stage
from memjax.training.train_state import init_variables, model_variables
from memjax.training.update_functions import make_objective
from tests.training.loop_test import Crash, assert_same_run, crash_at, final_arrays

pytestmark = pytest.mark.laws
MEMORY = EpisodicMemory(capacity=12)
GROWN = ELLE(
    dim_per_task=(10, 12),
    num_layers_per_task=(1, 2),
    memory=MEMORY,
    replay_batch_size=2,
    recovery_steps=2,
    recovery_batch_size=4,
)
CODE = dataclasses.replace(
    GROWN, anneal_norms=True, memory_fraction=0.25, replay_sampling="progress", memory=EpisodicMemory(capacity=16)
)
"""with all options of the published code"""


def config_of(workdir, method, *, tasks=3, **model):
    pairs = {"num_keys": 4, "num_values": 4, "num_documents": 6, "num_pairs": 2}
    source = lambda length: KeyValueRecall(filler_length=length, **pairs)
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 4, "feed_forward": Dense(dim=8, activation="gelu")}
    return Config(
        name="run",
        workdir=str(workdir),
        model=Model(**{**sizes, "attention": GPT2(num_positions=6), "scale_embeddings": False, **model}),
        task=LanguageModeling(fixed_length_examples=True),
        data=Data(source=source(2), batch_size=4, segment_length=6),
        training=Training(
            log_every=1, checkpoint_every=3, schedule=Schedule(learning_rate=1e-2, warmup_steps=0, decay="constant")
        ),
        evaluation=Evaluation(batch_size=4),
        lifelong=Lifelong(
            method=method, tasks=tuple(TaskData(name=f"task {i}", source=source(2 + i)) for i in range(tasks)), epochs=1
        ),
    )


def test_a_piece_asks_for_every_next_token_and_no_token_twice():
    documents = ArrayDocuments([[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]])
    for packed, wanted in ((True, [2, 3, 4, 5, 6, 7, 8, 9, 10]), (False, [2, 3, 4, 5, 7, 9, 10])):
        pieces = TextPieces(documents, None, length=4, packed=packed)
        examples = [pieces.example(index) for index in range(len(pieces))]
        assert [int(t) for one in examples for t in one.targets[one.weights > 0]] == wanted
        assert sum(pieces.num_tokens(index) for index in range(len(pieces))) == 10


@pytest.mark.parametrize("packed", [True, False])
def test_a_prompt_is_read_and_never_asked_for(packed):
    documents = ArrayDocuments([[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]])
    cut = lambda **fields: TextPieces(documents, None, length=4, packed=packed, **fields)
    plain, none = cut(where="before"), cut(prompt=50, where="before")
    after = cut(prompt=50, where="after_first")
    assert len(plain) == len(none) == len(after)
    for index in range(len(plain)):
        own, before, behind = (one.example(index) for one in (plain, none, after))
        asked = lambda one: one.targets[one.weights > 0].tolist()
        assert asked(own) == asked(before) == asked(behind) and 50 not in asked(before)
        assert before.inputs.tolist() == [50, *own.inputs] and len(before.targets) == 4
        assert behind.inputs.tolist() == [own.inputs[0], 50, *own.inputs[1:]]
        # Every token is asked for where the one before it is read, or behind the first one the prompt.
        for one in (before, behind):
            for place in np.flatnonzero(one.weights):
                read = [token for token in one.inputs[: place + 1] if token != 50]
                assert own.targets[own.weights > 0][len(read) - 1] == one.targets[place]
    assert len({one.fingerprint for one in (plain, none, after, cut())}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "after_first"])
def test_a_prompt_for_each_domain_is_learned_and_can_be_another(tmp_path, where):
    config = config_of(tmp_path, Sequential(), tasks=2)
    config.task = LanguageModeling(fixed_length_examples=True, prompt=where, max_prompts=3)
    result = train(config)
    loaded = load_run(result.path)
    experiment, variables = loaded.experiment, loaded.variables
    size = experiment.model.vocabulary.vocab_size
    assert size == make_experiment(config_of(tmp_path, Sequential(), tasks=2)).model.vocabulary.vocab_size + 3
    read = [{*np.unique(experiment.of_task(f"task {i}").example().inputs).tolist()} for i in range(2)]
    assert [size - 3 + i in ids for i, ids in enumerate(read)] == [True, True] and size - 2 not in read[0]
    evaluation = lambda prompt: dataclasses.replace(config.evaluation, task="task 0", prompt_of_task=prompt)
    nats = [experiment.evaluate(variables, evaluation(prompt)) for prompt in ("", "task 0", "task 1", "none")]
    assert nats[0].nats == nats[1].nats and len({one.nats for one in nats}) == 3
    assert len({one.targets for one in nats}) == 1


@pytest.mark.parametrize(
    "method", [Sequential(), Replay(memory=MEMORY, replay_batch_size=2)], ids=["no_memory", "no_growth"]
)
def test_without_growth_elle_is_replay_and_without_a_memory_plain_training(tmp_path, method):
    own = ELLE(memory=MEMORY, replay_batch_size=0 if isinstance(method, Sequential) else 2)
    plain, elle = (config_of(tmp_path / name, one, tasks=2) for name, one in (("plain", method), ("elle", own)))
    arrays = [final_arrays(train(config).path)[1] for config in (plain, elle)]
    named = [{name: value for name, value in one.items() if name.startswith("params/")} for one in arrays]
    for name, value in named[0].items():
        np.testing.assert_array_equal(value, named[1][name])


@pytest.mark.slow
def test_a_run_grows_recovers_and_is_opened_with_its_lineage(tmp_path):
    result = train(config_of(tmp_path, GROWN))
    lines = read_metrics(result.path / "metrics.jsonl")
    assert any(key.startswith(f"{WARM_UP}/") for line in lines for key in line)
    loaded = load_run(result.path)
    model = loaded.experiment.config.model
    assert (model.dim, model.num_layers, model.num_heads, model.weighted_norms) == (12, 2, 6, True)


@pytest.mark.slow
def test_every_generation_is_opened_as_it_was_and_no_other_model_begins_with_it(tmp_path):
    config = config_of(tmp_path / "run", GROWN)
    config.training.keep_checkpoints = 99
    path = train(config).path
    lines = [line for line in read_metrics(path / "metrics.jsonl") if line.get("name") == "task 0"]
    logged, dims = {line["step"]: line["nats_per_token"] for line in lines}, {}
    extras = checkpoint_extras(path)
    at = {step: Position.read(step, extra["position"], 0).step for step, extra in extras.items()}
    for step in at:
        loaded = load_run(path, step=step)
        updates = at[step]
        if updates in logged:
            evaluation = dataclasses.replace(config.evaluation, task="task 0")
            found = loaded.experiment.evaluate(loaded.variables, evaluation).nats_per_token
            if abs(found - logged[updates]) < 1e-6 * found:
                dims.setdefault(updates, loaded.experiment.config.model.dim)  # before it has grown
    assert [*dims.values()] == [8, 10, 12] and [*dims] == [*logged]
    other = config_of(tmp_path / "other", dataclasses.replace(GROWN, dim_per_task=(12, 14)))
    other.training.init_from = str(path)
    with pytest.raises(ValueError, match=r"init_from: model\..*: given .*, allowed: .*, as in"):
        train(other)


@pytest.mark.parametrize(
    ("method", "moved"),
    [
        (GROWN, False),
        (ELLE(dim_per_task=(10, 12), memory=MEMORY, replay_batch_size=2, optimizer_moments="mapped"), False),
        (ELLE.as_published(dim_per_task=(10, 12), memory=MEMORY), True),
    ],
)
def test_what_growth_changes_of_what_a_model_computes(tmp_path, method, moved):
    """Nothing where it is exact; the expansion of the paper changes it."""
    config = config_of(tmp_path, method)
    made = make_method(method)
    experiment = make_experiment(config)
    learner = made.learner(experiment, None, make_objective)
    state = learner.init(init_variables(experiment.model, jax.random.key(1), 6))
    task = TaskInfo(1, experiment.of_task("task 1"))
    [first, *_] = made.stages(task, Stage("task 1", lambda state, position: None, 0))
    measured = []
    named = {"measure": lambda kind, values: measured.append((kind, values))}
    context = PhaseContext(jax.random.key(2), lambda: iter(()), (), lambda: None, lambda line: None, None, **named)
    stream = experiment.of_task("task 0").stream(epochs=1)
    state, _ = learner.updates[STREAM](state, jax.tree.map(jnp.asarray, next(stream)))
    change = first.before(state, context)
    # Of the rows that the memory has by now: what growth has cost.
    [(kind, values)] = measured
    assert kind == GROWTH_LINE and bool(abs(values["nats_after"] - values["nats_before"]) > 1e-4) is moved
    big = experiment.with_growth(change.lineage).model
    tokens = jnp.arange(6)[None] % experiment.model.vocabulary.vocab_size
    said = []
    for model, one in ((experiment.model, state), (big, change.state)):
        start = {"start_of_document": jnp.ones(1, bool)}
        output, _, _ = model.apply(model_variables(one), tokens, model.init_state(1), **start)
        said.append(model.apply(model_variables(one), output, method="log_probs"))
    assert bool(jnp.abs(said[0] - said[1]).max() > 1e-4) is moved


def grown_state(config, batch):
    """The state after one update, that of the bigger model with its learner, and what is copied of what."""
    made, small = make_method(config.lifelong.method), make_experiment(config)
    learner = made.learner(small, None, make_objective)
    state = learner.init(init_variables(small.model, jax.random.key(1), 6))
    state, _ = jax.jit(learner.updates[STREAM])(state, batch)
    task = TaskInfo(1, small.of_task("task 1"))
    [first, *_] = made.stages(task, Stage("task 1", lambda state, position: None, 0))
    nothing = lambda *_: None
    change = first.before(state, PhaseContext(jax.random.key(2), lambda: iter(()), (), nothing, nothing, None))
    learner = made.learner(small.with_growth(change.lineage), None, make_objective)
    return state, change.state, learner, Growth.from_json(change.lineage[-1][GROWTH])


def adam_of(state):
    is_adam = lambda node: hasattr(node, "mu")
    return next(node for node in jax.tree.leaves(state.opt_state, is_leaf=is_adam) if is_adam(node))


@pytest.mark.parametrize("moments", ["fresh", "mapped"])
def test_the_optimiser_begins_anew_or_its_moments_are_those_of_the_gradients_of_the_bigger_model(tmp_path, moments):
    method = ELLE(
        dim_per_task=(10, 12),
        num_layers_per_task=(3, 3),
        replay_batch_size=0,
        copy_noise="none",
        optimizer_moments=moments,
    )
    config = config_of(tmp_path, method, num_layers=2)
    config.training.schedule.learning_rate, config.training.clip_norm = 1e-30, 0.0
    batch = jax.tree.map(jnp.asarray, next(make_experiment(config).of_task("task 0").stream(epochs=1)))
    before, state, learner, growth = grown_state(config, batch)
    adam = adam_of(state)
    if moments == "fresh":
        assert int(adam.count) == 0 and not any(jnp.any(leaf) for leaf in jax.tree.leaves((adam.mu, adam.nu)))
        return
    assert int(adam.count) == int(adam_of(before).count) == 1
    # One update of an optimiser that begins: its moments are the gradients, and their squares, of the bigger model.
    learned, _ = jax.jit(learner.updates[STREAM])(learner.init(model_variables(state)), batch)
    found, wanted = (
        {name: split_collection(getattr(adam_of(one), name), learner.model.layer_groups()) for name in ("mu", "nu")}
        for one in (state, learned)
    )
    [copied] = growth.added
    for name in ("mu", "nu"):
        mine, theirs = flatten(found[name]), flatten(wanted[name])
        for path in mine:
            if path == "vocabulary/embedding":  # tied
                continue
            source = path.replace(f"layer_{copied:02d}", f"layer_{copied - 1:02d}")  # of a copy, those of its source
            np.testing.assert_allclose(mine[path], theirs[source], rtol=1e-3, atol=1e-8 if name == "mu" else 1e-12)


def test_two_growths_in_depth_copy_other_layers(tmp_path):
    method = ELLE(num_layers_per_task=(6, 8), memory=MEMORY)
    config = config_of(tmp_path, Sequential(), num_layers=4)
    first, growth = next_growth(method, config, 1, (), jax.random.key(1))
    bigger = config_after_growth(config, [first])
    _, again = next_growth(method, bigger, 2, (first,), jax.random.key(2))
    copied = [{growth.layers[place] for place in growth.added}, {growth.layers[again.layers[i]] for i in again.added}]
    assert copied[0] | copied[1] == {0, 1, 2, 3} and len(copied[0]) == len(copied[1]) == 2


def test_the_preset_of_the_paper_is_all_of_it_at_once_and_what_is_given_comes_first(tmp_path):
    paper = ELLE.as_published(batch=1840, dim_per_task=(10, 12), num_layers_per_task=(1, 2), memory=MEMORY)
    validate(config_of(tmp_path, paper))
    expanded = (paper.norm_expansion, paper.copy_noise, paper.noise_stddev, paper.new_layer_init, paper.copy_rule)
    assert expanded == ("plain", "paper", 0.01, "copy", "random")
    recovers = (
        paper.recovery_steps,
        paper.optimizer_moments,
        paper.anneal_norms,
        paper.replay_sampling,
        paper.recovery_batch_size,
    )
    assert recovers == (5000, "fresh", False, "uniform", 1840 + paper.replay_batch_size)
    assert abs(paper.replay_batch_size / (1840 + paper.replay_batch_size) - 0.1) < 1e-3  # nine to one
    sizes = ("replay_batch_size", "recovery_steps", "recovery_batch_size")
    own = ELLE.as_published(**{name: getattr(GROWN, name) for name in ("memory", *sizes)})
    assert (own.replay_batch_size, own.recovery_steps, own.recovery_batch_size) == (
        GROWN.replay_batch_size,
        GROWN.recovery_steps,
        GROWN.recovery_batch_size,
    )
    unlike = [
        field.name for field in dataclasses.fields(ELLE) if getattr(own, field.name) != getattr(GROWN, field.name)
    ]
    assert unlike == ["dim_per_task", "num_layers_per_task", "norm_expansion", "copy_noise", "new_layer_init"]


def test_the_memory_has_a_share_of_every_task_and_norms_end_as_ordinary_ones(tmp_path):
    config = config_of(tmp_path, CODE)
    config.data.protocol = "contiguous"  # joined, every piece asks for something
    result = train(config)
    arrays = final_arrays(result.path)[1]
    found = {name: value for name, value in arrays.items() if "episodes" in name or "progress" in name}
    groups = next(value for name, value in found.items() if name.endswith("groups"))
    count = next(int(value) for name, value in found.items() if name.endswith("count"))
    sizes = [len(make_experiment(config).of_task(f"task {i}").documents("train")) for i in range(3)]
    assert [int((groups[:count] == task).sum()) for task in range(3)] == [-(-size // 4) for size in sizes]
    rows = next(value for name, value in found.items() if name.endswith("rows/inputs"))[:count]
    assert len({(int(group), *row.tolist()) for group, row in zip(groups, rows, strict=False)}) == count
    # Both earlier tasks were replayed, and none that was not there.
    seen = next(value for name, value in found.items() if name.endswith("seen"))
    assert seen[0] > 2 and seen[2] == 0
    norms = [value for name, value in arrays.items() if name.endswith(NORM_WEIGHTS)]
    assert norms and all(np.allclose(one, 1 / 12, rtol=1e-6) for one in norms)
    plain = final_arrays(train(config_of(tmp_path / "plain", GROWN)).path)[1]
    assert any(not np.allclose(value, 1 / 12) for name, value in plain.items() if name.endswith(NORM_WEIGHTS))


def test_rows_are_drawn_of_one_task_by_its_odds():
    groups, count = jnp.array([0, 1, 1, 2, 2, 2, 0]), jnp.int32(6)
    odds, draws = jnp.array([1.0, 3.0, 0.0]), 2000
    draw = lambda key: draw_task(groups, count, odds, key, 4)
    ids = np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(0), draws)))
    tasks = np.asarray(groups)[ids]
    assert (tasks == tasks[:, :1]).all() and (ids < 6).all()
    drawn = np.bincount(tasks[:, 0], minlength=3)
    assert drawn[2] == 0 and abs(drawn[1] / draws - 0.75) < 4 * np.sqrt(0.75 * 0.25 / draws)
    rows = np.bincount(ids[tasks[:, 0] == 1].ravel(), minlength=7)[1:3]
    assert abs(rows[0] / rows.sum() - 0.5) < 0.05
    nothing = draw_task(groups, jnp.int32(0), odds, jax.random.key(1), 4)
    assert nothing.tolist() == [-1] * 4


@pytest.mark.slow
@pytest.mark.parametrize("place", ["recovering", "growing"])
def test_a_run_killed_while_it_recovers_or_grows_goes_on_bit_for_bit(tmp_path, monkeypatch, place):
    """The stages have 3, 2, 5, 2 and 5 updates; a checkpoint stands behind the first of those that recover."""
    method = dataclasses.replace(GROWN, optimizer_moments="mapped")
    whole, again = (config_of(tmp_path / name, method) for name in ("whole", "again"))
    for config in (whole, again):
        config.training.checkpoint_every, config.training.keep_checkpoints = 1, 99
    expected = train(whole).path
    if place == "recovering":
        for step in (5, 12):
            with pytest.raises(Crash):
                train(again, hooks=[crash_at(step)])
            newest = [*checkpoint_extras(tmp_path / "again" / "run").values()][-1]["position"]
            assert (newest["phase"], newest["stream"]) == ("steps", 1)
    else:

        def killed(*_):
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(elle, "mean_nats", killed)  # within growth, of the first of two
            with pytest.raises(Crash):
                train(again)
        newest = [*checkpoint_extras(tmp_path / "again" / "run").values()][-1]
        assert newest["position"]["phase"] == "steps" and "lineage" not in newest
    assert_same_run(train(again).path, expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", [GROWN, CODE], ids=["grown", "code"])
@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_run_killed_anywhere_goes_on_bit_for_bit(tmp_path, step, method):
    whole = train(config_of(tmp_path / "whole", method))
    config = config_of(tmp_path / "again", method)
    with pytest.raises(Crash):
        train(config, hooks=[crash_at(step)])
    assert_same_run(train(config).path, whole.path)


TABLE = ProductKey(dim=8, num_keys=4, num_neighbors=2, key_dim=4)
NARROWING = AdaptiveSoftmax(cutoffs=(4,), div_val=2)
BAD = {
    "heads": (ELLE(dim_per_task=(9, 12)), {}, "dim_per_task: given .9, 12., allowed: multiples of 2"),
    "narrower": (ELLE(dim_per_task=(6, 12)), {}, "dim_per_task: given .6, 12., allowed: at least 8"),
    "deeper": (ELLE(num_layers_per_task=(3, 3)), {}, "num_layers_per_task: given .3, 3., allowed: from 1 to 2"),
    "number": (ELLE(dim_per_task=(12,)), {}, "dim_per_task: given .12,., allowed: .., or 2 numbers"),
    "attention": (ELLE(dim_per_task=(12, 12)), {"attention": TransformerXL(memory_length=4)}, "with TransformerXL"),
    "host": (ELLE(memory=EpisodicMemory(storage="host")), {}, "memory.storage: given 'host', allowed: 'device'"),
    "share": (
        ELLE(replay_batch_size=0, memory_fraction=0.1),
        {},
        "memory_fraction: given 0.1, allowed: 0.0 without a memory",
    ),
    "replayed": (
        ELLE(replay_batch_size=0, replay_sampling="progress"),
        {},
        "replay_sampling: given 'progress', allowed: 'uniform' without",
    ),
    "annealed": (
        dataclasses.replace(GROWN, recovery_steps=0, anneal_norms=True),
        {},
        "anneal_norms: given True, allowed: False",
    ),
    "warm_up": (
        ELLE(replay_batch_size=0, recovery_steps=3),
        {},
        "recovery_steps: given 3, allowed: 0 without a memory",
    ),
    "narrower and back": (ELLE(dim_per_task=(6, 8)), {}, "dim_per_task: given .6, 8., allowed: at least 8 after 8"),
    "fewer layers": (
        ELLE(num_layers_per_task=(1, 2)),
        {"num_layers": 2},
        "num_layers_per_task: given .1, 2., allowed: from 2 to 4 after 2",
    ),
    "deeper later": (
        ELLE(num_layers_per_task=(2, 5)),
        {},
        "num_layers_per_task: given .2, 5., allowed: from 2 to 4 after 2",
    ),
    "memory in a layer": (
        ELLE(dim_per_task=(10, 12)),
        {"feed_forward": TABLE},
        "feed_forward: given 'ProductKey', allowed",
    ),
    "and scanned": (
        ELLE(num_layers_per_task=(7, 8)),
        {"feed_forward": TABLE, "num_layers": 6},
        "feed_forward: given 'ProductKey'",
    ),
    "div_val": (
        ELLE(dim_per_task=(10, 12)),
        {"output": NARROWING},
        "model.output.div_val: given 2, allowed: 1 in a model",
    ),
    "neighbours": (
        ELLE(dim_per_task=(10, 12)),
        {"output": Spalm()},
        "model.output: given 'Spalm', allowed: Softmax in a",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_grow_is_refused_in_one_line(tmp_path, name):
    method, model, line = BAD[name]
    with pytest.raises(ValueError, match=line):
        validate(config_of(tmp_path, method, **model))


@pytest.mark.parametrize(
    "method", [ELLE(dim_per_task=(10, 12), replay_batch_size=0), ELLE(num_layers_per_task=(1, 2), memory=MEMORY)]
)
def test_documents_that_are_read_for_ever_are_refused_where_a_model_grows(tmp_path, method):
    config = config_of(tmp_path, method)
    config.lifelong.epochs, config.training.steps = 0, 6
    with pytest.raises(ValueError, match="lifelong.epochs: given 0, allowed: at least 1, a model that grows"):
        validate(config)


def test_a_model_that_has_grown_is_valid_and_no_run_begins_with_it(tmp_path):
    config = config_of(tmp_path, GROWN)
    found = growth_histories(config)
    for lineage in found:
        validate(config_after_growth(config, lineage))
    with pytest.raises(ValueError, match="lifelong.num_growths: given 1, allowed: 0 where a run begins"):
        train(config_after_growth(config, found[1]))


LATER = {
    "moments": (
        {"optimizer_moments": "mapped"},
        "given an optimiser .*, allowed: fresh moments, in the model for task 1",
    ),
    "size": (
        {"dim_per_task": (10, 200_000)},
        "model.dim: given 200000, needs .*, allowed: .*, in the model for task 2",
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_every_generation_is_looked_at_before_the_first_is_trained(tmp_path, name):
    fields, line = LATER[name]
    config = config_of(tmp_path, dataclasses.replace(GROWN, **fields))
    config.training.optimizer = Adafactor()
    with pytest.raises(ValueError, match=line) as refused:
        train(config, hooks=[crash_at(1)])
    assert len(str(refused.value).splitlines()) == 1 and not (tmp_path / "run").exists()


def test_borders_that_are_not_told_are_refused(tmp_path):
    config = config_of(tmp_path, GROWN)
    config.lifelong.task_boundaries = "sharp"
    with pytest.raises(
        ValueError, match="task_boundaries: given 'sharp', allowed: 'known', ELLE needs to know where tasks"
    ):
        train(config)


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_growth_alone(tmp_path):
    config = config_of(tmp_path / "run", GROWN)
    with pytest.raises(Crash):
        train(config, hooks=[crash_at(6)])
    for name, value in (
        ("dim_per_task", (12, 14)),
        ("num_layers_per_task", (2, 2)),
        ("copy_rule", "cyclic"),
    ):
        other = dataclasses.replace(config, lifelong=copy.copy(config.lifelong))
        other.lifelong.method = dataclasses.replace(GROWN, **{name: value})
        with pytest.raises(ValueError, match=rf"lifelong\.method\.{name}.* there and .* here"):
            train(other)
    # Checkpoints of another run, in its place: of other sizes, of the same with other copies, or of none at all.
    for name, change, line in (
        (
            "wider",
            {"dim_per_task": (12, 14)},
            "lineage: given model.dim = 10, allowed: 12, as the model of this run grows",
        ),
        ("drawn", {}, "lineage: given copies that another run has drawn, allowed: those of this run"),
        (
            "plain",
            {"dim_per_task": (), "num_layers_per_task": ()},
            "lineage: given 1 growths, allowed: up to 0, those of this run",
        ),
    ):
        mine = config_of(tmp_path / name, dataclasses.replace(GROWN, **change))
        mine.training.seed = int(name == "drawn")
        with pytest.raises(Crash):
            train(mine, hooks=[crash_at(1)])
        shutil.rmtree(tmp_path / name / "run" / "checkpoints", ignore_errors=True)
        shutil.copytree(tmp_path / "run" / "run" / "checkpoints", tmp_path / name / "run" / "checkpoints")
        with pytest.raises(ValueError, match=rf"checkpoints: checkpoint \d+: {line}"):
            train(mine)


def test_a_memory_without_room_for_its_shares_is_refused_before_anything_is_trained(tmp_path):
    method = dataclasses.replace(CODE, memory=EpisodicMemory(capacity=3))
    with pytest.raises(
        ValueError, match=r"memory.capacity: given 3, allowed: at least \d+, which 0.25 of all tasks are"
    ):
        train(config_of(tmp_path, method))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "after_first"])
def test_an_encoder_of_byte_pairs_grows_and_has_prompts(tmp_path, where):
    for name, words in (("one", "the cat sat on the mat"), ("two", "a dog ran in the fog")):
        lines = [
            json.dumps({"text": f"{words} {number} times and {words}", "name": str(number)}) for number in range(24)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    source = lambda name: JsonLines(path=str(tmp_path / f"{name}.jsonl"), validation_percent=30)
    method = dataclasses.replace(GROWN, dim_per_task=(12,), num_layers_per_task=())
    config = config_of(tmp_path, method, attention=Bidirectional(num_positions=12), scale_embeddings=True)
    config.task = MaskedLanguageModeling(prompt=where, max_prompts=2)
    config.data = dataclasses.replace(
        config.data, source=source("one"), tokenizer=BytePairs(vocab_size=280), segment_length=12
    )
    config.lifelong = dataclasses.replace(
        config.lifelong, tasks=tuple(TaskData(name=name, source=source(name)) for name in ("one", "two"))
    )
    result = train(config)
    # Weighted norms, embeddings that are not scaled: what the encoder computes stays.
    [line] = [line for line in read_metrics(result.path / "metrics.jsonl") if line["kind"] == GROWTH_LINE]
    assert abs(line["nats_after"] - line["nats_before"]) < 1e-4
    loaded = load_run(result.path)
    experiment = loaded.experiment
    assert experiment.config.model.dim == 12 and experiment.model.vocabulary.vocab_size == 280 + 3 + 2
    evaluation = lambda prompt: dataclasses.replace(config.evaluation, task="one", prompt_of_task=prompt)
    said = [experiment.evaluate(loaded.variables, evaluation(prompt)) for prompt in ("", "one", "two", "none")]
    assert said[0].nats == said[1].nats and len({one.nats for one in said}) == 3
    assert len({one.targets for one in said}) == 1
    [found] = experiment.of_task("one").predict(loaded.variables, [Query("the [MASK] sat")])
    assert len(found["candidates"]) == 1
    if where == "before":
        return
    # A task of the domain begins with it, weights of norms included, and has a head of its own.
    texts = tmp_path / "labelled.tsv"
    texts.write_text("".join(f"the cat sat {number} times\t{'ab'[number % 2]}\n" for number in range(20)))
    labelled = LabelledFile(path=str(texts), classes=("a", "b"), class_ids=(0, 1))
    task = dataclasses.replace(
        config,
        name="task",
        lifelong=None,
        model=experiment.config.model,
        task=Classification(prompt=where, max_prompts=2, prompt_task_index=1),
        data=dataclasses.replace(config.data, source=labelled, protocol="separate"),
        training=dataclasses.replace(config.training, steps=1, init_from=str(result.path)),
    )
    task.data.tokenizer = BytePairs(path=str(result.path / "tokenizer"))
    begun = load_run(train(task).path)
    norms = {name: value for name, value in flatten(begun.variables["constants"]).items() if NORM_WEIGHTS in name}
    theirs = flatten(loaded.variables["constants"])
    assert norms and all((value == theirs[name]).all() for name, value in norms.items())
    second = lambda run: {int(run.experiment.documents("train").example(i).inputs[1]) for i in range(3)}
    assert second(begun) == {280 + 3 + 1}
    # Or without a prompt.
    task.name, task.task = "no_prompt", dataclasses.replace(task.task, prompt_task_index=-1)
    assert max(second(load_run(train(task).path))) < 280 + 3


@pytest.mark.parametrize("field", ["stride", "memory_length"])
def test_an_evaluation_of_pieces_has_neither_strides_nor_memories(tmp_path, field):
    config = config_of(tmp_path, Sequential())
    setattr(config.evaluation, field, 4)
    with pytest.raises(ValueError, match=rf"evaluation\.{field}: given 4, allowed"):
        validate(config)


PROMPTS = {
    "examples": (
        {"prompt": "before"},
        "",
        "task.prompt: given 'before', allowed: 'none' without fixed_length_examples",
    ),
    "too few": (
        {"fixed_length_examples": True, "prompt": "before", "max_prompts": 2},
        "",
        "max_prompts: given 2, allowed: at least 3",
    ),
    "task index": (
        {"fixed_length_examples": True, "prompt_task_index": 0},
        "",
        "task.prompt_task_index: given 0, allowed: -1, or below 0",
    ),
    "none there": (
        {"fixed_length_examples": True},
        "task 1",
        "evaluation.prompt_of_task: given 'task 1', allowed: '' without task.prompt",
    ),
    "unknown": (
        {"fixed_length_examples": True, "prompt": "before"},
        "other",
        "evaluation.prompt_of_task: given 'other', allowed: '' or one of",
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_that_do_not_fit_are_refused_in_one_line(tmp_path, name):
    fields, prompt, line = PROMPTS[name]
    config = config_of(tmp_path, Sequential())
    task = {"fixed_length_examples": False, **fields}
    config = dataclasses.replace(config, task=LanguageModeling(**task))
    config.evaluation = dataclasses.replace(config.evaluation, task="task 0", prompt_of_task=prompt)
    with pytest.raises(ValueError, match=line):
        validate(config)


def test_a_share_of_every_task_is_not_kept_in_the_order_of_the_stream(tmp_path):
    kept = EpisodicMemory(write_policy="all", capacity=8)
    notes = lambda **fields: [
        line
        for stage in make_learner_and_stages(
            make_experiment(config_of(tmp_path, ELLE(memory=kept, **fields))), None, make_objective
        )[1]
        for line in stage.notes
    ]
    assert any("rows that come later are not kept" in line for line in notes())
    assert notes(memory_fraction=0.1) == []
