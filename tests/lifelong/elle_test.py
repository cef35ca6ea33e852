"""ELLE through `train`: degenerate cases, growth between tasks, recovery, resume, and refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import (
    ELLE,
    GPT2,
    Config,
    Data,
    Dense,
    EpisodicMemory,
    Evaluation,
    KeyValueRecall,
    LanguageModeling,
    Lifelong,
    Model,
    Replay,
    Schedule,
    Sequential,
    TaskData,
    Training,
    TransformerXL,
    validate,
)
from memjax.data.documents import ArrayDocuments
from memjax.data.pieces import TextPieces
from memjax.lifelong import load_run, train
from memjax.lifelong.contract import TaskInfo
from memjax.lifelong.elle import GROWTH_LINE, WARM_UP
from memjax.lifelong.factory import make_method
from memjax.training import read_metrics
from memjax.training.assembly import make_objective
from memjax.training.experiment import make_experiment
from memjax.training.stages import STREAM, Context, Stage
from memjax.training.step import init_variables, model_variables
from tests.training.loop_test import Crash, assert_same_run, crash_at, final_arrays

pytestmark = pytest.mark.laws
MEMORY = EpisodicMemory(capacity=12)
GROWN = ELLE(dims=(10, 12), layers=(1, 2), memory=MEMORY, rows=2, warm_up=2, warm_up_rows=4)


def config_of(workdir, method, *, tasks=3, **model):
    pairs = {"num_keys": 4, "num_values": 4, "num_documents": 6, "num_pairs": 2}
    source = lambda length: KeyValueRecall(filler_length=length, **pairs)
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 4, "feed_forward": Dense(dim=8, activation="gelu")}
    return Config(
        name="run",
        workdir=str(workdir),
        model=Model(**{**sizes, "attention": GPT2(num_positions=6), "scale_embeddings": False, **model}),
        task=LanguageModeling(pieces=True),
        data=Data(source=source(2), rows=4, segment_length=6),
        training=Training(
            log_every=1, checkpoint_every=3, schedule=Schedule(learning_rate=1e-2, warmup_steps=0, decay="constant")
        ),
        evaluation=Evaluation(rows=4),
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
    config.task = LanguageModeling(pieces=True, prompt=where, max_prompts=3)
    result = train(config)
    loaded = load_run(result.path)
    experiment, variables = loaded.experiment, loaded.variables
    size = experiment.model.vocabulary.vocab_size
    assert size == make_experiment(config_of(tmp_path, Sequential(), tasks=2)).model.vocabulary.vocab_size + 3
    read = [{*np.unique(experiment.of_task(f"task {i}").example().inputs).tolist()} for i in range(2)]
    assert [size - 3 + i in ids for i, ids in enumerate(read)] == [True, True] and size - 2 not in read[0]
    evaluation = lambda prompt: dataclasses.replace(config.evaluation, task="task 0", prompt=prompt)
    nats = [experiment.evaluate(variables, evaluation(prompt)) for prompt in ("", "task 0", "task 1", "none")]
    assert nats[0].nats == nats[1].nats and len({one.nats for one in nats}) == 3
    assert len({one.targets for one in nats}) == 1


@pytest.mark.parametrize("method", [Sequential(), Replay(memory=MEMORY, rows=2)], ids=["no_memory", "no_growth"])
def test_without_growth_elle_is_replay_and_without_a_memory_plain_training(tmp_path, method):
    own = ELLE(memory=MEMORY, rows=0 if isinstance(method, Sequential) else 2)
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


@pytest.mark.parametrize(
    ("method", "moved"),
    [
        (GROWN, False),
        (ELLE(dims=(10, 12), memory=MEMORY, rows=2, moments="mapped"), False),
        (ELLE.as_published(dims=(10, 12), memory=MEMORY), True),
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
    context = Context(jax.random.key(2), lambda: iter(()), (), lambda: None, lambda line: None, None, **named)
    stream = experiment.of_task("task 0").stream(epochs=1)
    state, _ = learner.observe(state, jax.tree.map(jnp.asarray, next(stream)), STREAM)
    change = first.before(state, context)
    # Of the rows that the memory has by now: what growth has cost.
    [(kind, values)] = measured
    assert kind == GROWTH_LINE and bool(abs(values["nats_after"] - values["nats_before"]) > 1e-4) is moved
    big = experiment.grown(change.lineage).model
    tokens = jnp.arange(6)[None] % experiment.model.vocabulary.vocab_size
    said = []
    for model, one in ((experiment.model, state), (big, change.state)):
        start = {"start_of_document": jnp.ones(1, bool)}
        output, _, _ = model.apply(model_variables(one), tokens, model.init_state(1), **start)
        said.append(model.apply(model_variables(one), output, method="log_probs"))
    assert bool(jnp.abs(said[0] - said[1]).max() > 1e-4) is moved


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_run_killed_anywhere_goes_on_bit_for_bit(tmp_path, step):
    whole = train(config_of(tmp_path / "whole", GROWN))
    config = config_of(tmp_path / "again", GROWN)
    with pytest.raises(Crash):
        train(config, hooks=[crash_at(step)])
    assert_same_run(train(config).path, whole.path)


BAD = {
    "heads": (ELLE(dims=(9, 12)), {}, "dims: given .9, 12., allowed: multiples of 2"),
    "narrower": (ELLE(dims=(6, 12)), {}, "dims: given .6, 12., allowed: at least 8"),
    "deeper": (ELLE(layers=(3, 3)), {}, "layers: given .3, 3., allowed: from 1 to 2"),
    "number": (ELLE(dims=(12,)), {}, "dims: given .12,., allowed: .., or 2 numbers"),
    "attention": (ELLE(dims=(12, 12)), {"attention": TransformerXL(memory_length=4)}, "with TransformerXL"),
    "host": (ELLE(memory=EpisodicMemory(place="host")), {}, "memory.place: given 'host', allowed: 'device'"),
    "warm_up": (ELLE(rows=0, warm_up=3), {}, "warm_up: given 3, allowed: 0 without a memory"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_grow_is_refused_in_one_line(tmp_path, name):
    method, model, line = BAD[name]
    with pytest.raises(ValueError, match=line):
        validate(config_of(tmp_path, method, **model))


@pytest.mark.parametrize("field", ["stride", "memory_length"])
def test_an_evaluation_of_pieces_has_neither_strides_nor_memories(tmp_path, field):
    config = config_of(tmp_path, Sequential())
    setattr(config.evaluation, field, 4)
    with pytest.raises(ValueError, match=rf"evaluation\.{field}: given 4, allowed"):
        validate(config)


PROMPTS = {
    "pieces": ({"prompt": "before"}, "", "task.prompt: given 'before', allowed: 'none' without pieces"),
    "too few": (
        {"pieces": True, "prompt": "before", "max_prompts": 2},
        "",
        "max_prompts: given 2, allowed: at least 3",
    ),
    "domain": ({"pieces": True, "domain": 0}, "", "task.domain: given 0, allowed: -1, or below 0"),
    "none there": ({"pieces": True}, "task 1", "evaluation.prompt: given 'task 1', allowed: '' without task.prompt"),
    "unknown": (
        {"pieces": True, "prompt": "before"},
        "other",
        "evaluation.prompt: given 'other', allowed: '' or one of",
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_that_do_not_fit_are_refused_in_one_line(tmp_path, name):
    fields, prompt, line = PROMPTS[name]
    config = config_of(tmp_path, Sequential())
    task = {"pieces": False, **fields}
    config = dataclasses.replace(config, task=LanguageModeling(**task))
    config.evaluation = dataclasses.replace(config.evaluation, task="task 0", prompt=prompt)
    with pytest.raises(ValueError, match=line):
        validate(config)
