"""LAMOL through `train`: what is asked for, what is written, what becomes of it, degenerate cases, resume."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from memjax.config import (
    GPT2,
    LAMOL,
    BytePairs,
    Bytes,
    Config,
    Data,
    Dense,
    EpisodicMemory,
    Evaluation,
    Instructions,
    Lifelong,
    MbPA,
    Model,
    Schedule,
    Sequential,
    TaskData,
    ToyInstructions,
    Training,
)
from memjax.data.instructions import InstructionTokenizer, WrittenExamples
from memjax.data.tokenizers import ByteTokenizer
from memjax.inference.decoding import generate
from memjax.inference.sampling import Sampling, sample
from memjax.interop import import_run
from memjax.lifelong import load_run, train
from memjax.lifelong.episodes import EPISODES
from memjax.lifelong.factory import course_of, make_method
from memjax.lifelong.lamol import language_rows, num_samples, split_at_mark, write_samples
from memjax.training import read_metrics
from memjax.training.assembly import make_objective
from memjax.training.experiment import make_experiment
from memjax.training.step import init_variables
from memjax.typing import Batch
from tests.interop import weights
from tests.training.loop_test import Crash, assert_same_run, crash_at, final_arrays

pytestmark = pytest.mark.laws
LENGTH = 24


def config_of(workdir, method, *, changes=("copy", "reverse"), dim=16, epochs=1, examples=32, **training):
    toys = [ToyInstructions(change=change, num_examples=examples) for change in changes]
    return Config(
        name="run",
        workdir=str(workdir),
        model=Model(
            dim=dim,
            num_layers=2,
            num_heads=4,
            scale_embeddings=False,
            attention=GPT2(num_positions=LENGTH),
            feed_forward=Dense(dim=4 * dim, activation="gelu"),
        ),
        task=Instructions(max_tasks=len(changes), max_answer_length=6),
        data=Data(source=toys[0], tokenizer=Bytes(), rows=8, segment_length=LENGTH),
        training=Training(
            log_every=2,
            **{
                "checkpoint_every": 2,
                "schedule": Schedule(learning_rate=3e-3, warmup_steps=0, decay="constant"),
                **training,
            },
        ),
        evaluation=Evaluation(rows=8, answers=8, split="test"),
        lifelong=Lifelong(
            method=method, tasks=tuple(TaskData(name=toy.change, source=toy) for toy in toys), epochs=epochs
        ),
    )


SMALL = LAMOL(capacity=8, rows=2, written_at_once=4)


# What is asked for


def test_a_text_asks_for_everything_and_its_end():
    tokenizer = InstructionTokenizer(ByteTokenizer(), 2)
    prompt, answer = [*tokenizer.encode("abq?").tolist(), tokenizer.answer_id], tokenizer.encode("so").tolist()
    found = WrittenExamples([(prompt, answer), (prompt[:0] + [tokenizer.answer_id], [])], tokenizer, length=10, name="")
    rows = [found.example(index) for index in range(2)]
    pad = lambda row: np.pad(row.inputs, (0, 10 - len(row.inputs)))
    batch = Batch(
        jnp.stack([pad(row) for row in rows] + [jnp.zeros(10, int)]),
        jnp.stack([row.targets for row in rows] + [np.zeros(10, np.int32)]),
        jnp.arange(10)[None] < jnp.array([[7], [1], [0]]),
        jnp.stack([row.weights for row in rows] + [np.zeros(10, np.float32)]),
        jnp.ones(3, bool),
    )
    marks = jnp.array([tokenizer.generate_id, tokenizer.first_task_id, tokenizer.first_task_id])
    texts = language_rows(batch, marks, answer_id=tokenizer.answer_id, answer_weight=5.0)
    assert texts.inputs[0].tolist() == [tokenizer.generate_id, *prompt, *answer, 0, 0]
    assert texts.targets[0, :8].tolist() == [*prompt, *answer, tokenizer.end_id]
    # Context, question, answer, ANS and the end; padding rows ask for nothing.
    assert (texts.weights > 0).sum(axis=1).tolist() == [4 + 2 + 2, 2, 0] and texts.mask.sum(axis=1).tolist() == [
        8,
        2,
        0,
    ]
    assert texts.weights[0].tolist() == [1, 1, 1, 1, 5, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_the_objective_is_the_loss_of_answers_and_a_share_of_that_of_texts(tmp_path, weight):
    config = config_of(tmp_path, dataclasses.replace(SMALL, language_weight=weight))
    experiment = make_experiment(config)
    learner = make_method(config.lifelong.method).learner(experiment, None, make_objective)
    variables = init_variables(experiment.model, jax.random.key(0), LENGTH)
    state = learner.init(variables)
    _, course = course_of(experiment, None, make_objective)
    kind, batch = next(course[0].open(state, None))
    batch = jax.tree.map(jnp.asarray, batch)
    _, sums = learner.observe(state, batch, kind)
    model, tokenizer = experiment.model, experiment.tokenizer

    def nats(rows):
        start = {"start_of_document": rows.start_of_document, "mask": rows.mask}
        hidden = model.apply(variables, rows.inputs, model.init_state(8), **start)[0]
        each = model.apply(variables, hidden, rows.targets, method="token_nll")
        return float((each * rows.weights).sum() / rows.weights.sum())

    rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), batch)
    marks = jnp.full(8, tokenizer.first_task_id)
    texts = language_rows(rows, marks, answer_id=tokenizer.answer_id)
    np.testing.assert_allclose(float(sums["nll"].mean()), nats(rows), rtol=1e-5)
    if weight:
        np.testing.assert_allclose(float(sums["losses/language"].mean()), nats(texts), rtol=1e-5)
        wanted = nats(rows) + weight * nats(texts)
        np.testing.assert_allclose(
            float(sums["nll"].mean() + weight * sums["losses/language"].mean()), wanted, rtol=1e-5
        )
    else:
        assert "losses/language" not in sums


# What is written


def test_as_many_are_written_as_published():
    sizes = {"sst": 6920, "srl": 6414, "woz": 2536, "wikisql": 56355, "squad": 87599}
    for share in (0.0, 0.01, 0.05, 0.2, 1.0):
        for examples in sizes.values():
            for earlier in (1, 2, 3, 4):
                number = num_samples(share, examples, earlier)
                wanted = -(-round(share * examples * 100) // 100)
                assert number % earlier == 0 and 0 <= wanted - number < earlier
    assert [num_samples(0.2, 2536, earlier) for earlier in (1, 2, 3, 4)] == [508, 508, 507, 508]


@pytest.mark.parametrize(
    ("ids", "row"),
    [([1, 2], None), ([1, 9, 2], ([1, 9], [2])), ([9, 1, 2], ([9], [1, 2])), ([1, 9], ([1, 9], [])), ([9, 9], None)],
)
def test_texts_with_exactly_one_mark_are_kept(ids, row):
    assert split_at_mark(ids, 9) == row


@pytest.fixture(scope="module")
def small():
    config = config_of("", SMALL)
    experiment = make_experiment(config)
    variables = init_variables(experiment.model, jax.random.key(3), LENGTH)
    return experiment, variables


def test_written_texts_end_at_the_end_fit_and_are_those_of_their_seed(small):
    experiment, variables = small
    # Scores far apart, so that some texts end early.
    sharp = jax.tree.map(lambda leaf: 30 * leaf, variables)
    tokenizer = experiment.tokenizer
    write = lambda seed, at_once: write_samples(
        experiment.model, sharp, tokenizer, tokenizer.generate_id, 6, length=LENGTH, seed=seed, at_once=at_once
    )
    one, other = write(0, 6), write(1, 6)
    assert len(one.texts) == 6 and one == write(0, 6) and one.texts != other.texts
    for prompt, answer in one.rows:
        assert len(prompt) + len(answer) <= LENGTH - 1 and tokenizer.end_id not in [*prompt, *answer]
        assert not {*prompt[:-1], *answer} & {*tokenizer.reserved}


def test_only_so_many_tokens_are_ever_drawn_as_often_as_they_should():
    logits = 2 * jax.random.normal(jax.random.key(0), (50,))
    keys = jax.random.split(jax.random.key(1), 20_000)
    drawn = np.asarray(sample(keys, jnp.broadcast_to(logits, (20_000, 50)), Sampling(top_k=5)))
    best = np.argsort(-np.asarray(logits))[:5]
    assert {*drawn.tolist()} == {*best.tolist()}
    counts = [int((drawn == one).sum()) for one in best]
    wanted = np.asarray(jax.nn.softmax(logits[best])) * 20_000
    assert stats.chisquare(counts, wanted * sum(counts) / wanted.sum()).pvalue > 1e-3
    greedy = sample(keys[:10], jnp.broadcast_to(logits, (10, 50)), Sampling(top_k=1))
    assert {*np.asarray(greedy).tolist()} == {int(best[0])}


def test_writing_with_a_cache_is_reading_all_of_it_again(small):
    experiment, variables = small
    model, prompts = experiment.model, [[3, 4, 5], [7] * 9]
    named = {"segment_length": LENGTH, "max_tokens": 8, "sampling": Sampling(temperature=0)}
    found = generate(model, variables, prompts, **named)

    @jax.jit
    def read(tokens, mask):
        start = {"start_of_document": jnp.ones(1, bool), "mask": mask}
        hidden = model.apply(variables, tokens, model.init_state(1), **start)[0]
        return model.apply(variables, hidden, method="log_probs")

    for prompt, said in zip(prompts, found, strict=True):
        ids = list(prompt)
        for token in said:
            tokens = np.zeros((1, LENGTH), np.int32)
            tokens[0, : len(ids)] = ids
            scores = read(tokens, np.arange(LENGTH)[None] < len(ids))[0, len(ids) - 1]
            assert float(scores.max() - scores[token]) < 1e-5
            ids.append(token)


# What becomes of it


def test_the_memory_holds_what_was_written_of_earlier_tasks(tmp_path):
    method = dataclasses.replace(SMALL, samples="real", share=0.25, rows=4, capacity=16)
    result = train(config_of(tmp_path, method, changes=("copy", "reverse", "sort")))
    arrays = final_arrays(result.path)[1]
    kept = {name: array for name, array in arrays.items() if EPISODES in name}
    count = next(int(array) for name, array in kept.items() if name.endswith("count"))
    tasks = next(array for name, array in kept.items() if name.endswith("extras/task"))[:count]
    # A quarter of 32, rounded down to a multiple of the two earlier tasks, as many of each.
    assert count == 8 and sorted(tasks.tolist()) == [0] * 4 + [1] * 4
    loaded = load_run(result.path)
    assert loaded.experiment.tokenizer.vocab_size == ByteTokenizer().vocab_size + 2 + 3


def test_too_small_a_memory_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ValueError, match="capacity: given 3, allowed: at least 7"):
        train(config_of(tmp_path, dataclasses.replace(SMALL, capacity=3)))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_without_writing_and_without_the_loss_of_texts_it_is_fine_tuning(tmp_path):
    runs = {}
    for name, method in {
        "plain": Sequential(),
        "none": LAMOL(share=0.0, language_weight=0.0),
        "texts": LAMOL(share=0.0),
    }.items():
        arrays = final_arrays(train(config_of(tmp_path / name, method)).path)[1]
        runs[name] = {key: value for key, value in arrays.items() if key.startswith("params/")}
    for key, value in runs["plain"].items():
        np.testing.assert_array_equal(value, runs["none"][key])
    assert any(bool((value != runs["texts"][key]).any()) for key, value in runs["plain"].items())


@pytest.mark.parametrize(("tokens", "marks"), [("task", [0, 1]), ("shared", None)])
def test_only_marks_of_tasks_need_the_task(tmp_path, tokens, marks):
    config = config_of(tmp_path, dataclasses.replace(SMALL, tokens=tokens))
    make_learner, course = course_of(make_experiment(config), None, make_objective)
    learner = make_learner(())
    state = learner.init(learner.variables())
    batches = [next(stage.open(state, None))[1] for stage in course]
    assert all(("task" in batch.extras) is (marks is not None) for batch in batches)
    if marks:
        assert [int(batch.extras["task"][0, 0]) for batch in batches] == marks


def test_a_model_learns_to_write_what_it_was_taught_and_does_not_forget_it(tmp_path):
    """Copying, then reversing, three letters: fine-tuning forgets the first, LAMOL writes it and keeps it."""
    scores = {}
    for name, method in {"lamol": LAMOL(rows=8), "fine-tuning": Sequential()}.items():
        config = config_of(tmp_path / name, method, dim=64, epochs=14, examples=256, checkpoint_every=0)
        config.data.rows, config.training.log_every, config.evaluation.answers = 32, 0, 32
        lines = read_metrics(train(config).path / "metrics.jsonl")
        scores[name] = [line["score"] for line in lines if line.get("name") == "copy"]
        written = [line for line in lines if line["kind"] == "generated"]
        if written:
            [line] = written
            assert line["kept_0"] >= 0.8 and line["samples"] == 52
            rows = [text.split(" ANS ") for text in line["texts_0"]]
            right = [row[0] == f"{row[1]}copy" for row in rows if len(row) == 2]
            assert sum(right) >= 0.8 * len(rows)
    assert scores["fine-tuning"][0] >= 80 and scores["fine-tuning"][1] <= 30
    assert scores["lamol"][0] >= 80 and scores["lamol"][1] >= 80


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "rate"), [(0, 0.1), (2, 0.0), (2, 0.5)])
def test_mbpa_writes_with_parameters_of_its_own(tmp_path, steps, rate):
    """Without steps, or at rate 0, as the model does; it reads the row again for every token instead of a cache."""
    method = MbPA(
        memory=EpisodicMemory(policy="all", capacity=64),
        every=16,
        rows=4,
        key="prompt",
        num_neighbors=2,
        steps=steps,
        learning_rate=rate,
        penalty=0.0,
    )
    result = train(config_of(tmp_path, method, epochs=2))
    loaded = load_run(result.path)
    split, data = loaded.experiment.documents("test"), loaded.experiment.datasets
    prompts = [split.prompt(index, LENGTH - 6) for index in range(4)]
    task, model = loaded.experiment.task, loaded.experiment.model
    plain = task.write(model, loaded.variables, prompts, data, rows=4)
    own = task.write(model, loaded.variables, prompts, data, rows=4, adapt_rows=loaded.experiment.adapt_rows)
    assert (plain == own) is (not steps or not rate) and len(own) == 4


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 5, 6])
def test_a_run_killed_anywhere_goes_on_bit_for_bit(tmp_path, step):
    """At the border before anything is written, in the first step after it, and later."""
    whole = train(config_of(tmp_path / "whole", SMALL))
    config = config_of(tmp_path / "again", SMALL)
    with pytest.raises(Crash):
        train(config, hooks=[crash_at(step)])
    assert_same_run(train(config).path, whole.path)


@pytest.mark.slow
def test_it_begins_with_published_weights_of_gpt2(tmp_path):
    """Those that `memjax import` has read, whose table has room for the marks."""
    run = tmp_path / "gpt2"
    import_run(weights.gpt2(tmp_path / "weights"), run)
    given = load_run(run).experiment.config
    config = config_of(tmp_path, LAMOL(share=0.4, rows=4, capacity=40, written_at_once=4), changes=("copy", "reverse"))
    config.model = dataclasses.replace(given.model)
    config.data = dataclasses.replace(
        config.data, tokenizer=BytePairs(path=str(run / "tokenizer")), segment_length=given.data.segment_length
    )
    config.training.init_from = str(run)
    result = train(config)
    loaded = load_run(result.path)
    assert loaded.experiment.tokenizer.base.vocab_size == 61
    lines = [line for line in read_metrics(result.path / "metrics.jsonl") if line.get("name") == "reverse"]
    assert len(lines) == 2 and all(np.isfinite(line["nats_per_token"]) for line in lines)
    # Adam moves no number by more than its rate in an update: what was learned began there, and not at random.
    far = lambda one, other: max(
        float(jnp.abs(a - b).max()) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )
    imported, most = load_run(run).variables["params"], result.step * config.training.schedule.learning_rate
    fresh = init_variables(loaded.experiment.model, jax.random.key(0), config.data.segment_length)["params"]
    assert 0 < far(imported, loaded.variables["params"]) <= 1.1 * most < far(imported, fresh) / 2
