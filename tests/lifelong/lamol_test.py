"""LAMOL through `train`: what is asked for, what is written, what becomes of it, degenerate cases, resume."""

import dataclasses
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from memjax.config import (
    GPT2,
    LAMOL,
    SGD,
    Adam,
    BytePairs,
    Bytes,
    Config,
    Data,
    Dense,
    EpisodicMemory,
    Evaluation,
    InstructionLines,
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
from memjax.data.instructions import InstructionTokenizer, PromptExamples
from memjax.data.tokenizers import ByteTokenizer
from memjax.inference.decoding import generate
from memjax.inference.sampling import Sampling, sample
from memjax.interop import import_run
from memjax.lifelong import episodic_memory as episodic
from memjax.lifelong import load_run, policies, train
from memjax.lifelong.factory import make_learner_and_stages
from memjax.lifelong.lamol import language_rows, num_samples, split_at_answer_mark, write_samples
from memjax.lifelong.memory_backends import EPISODES, key_for, replay_key
from memjax.lifelong.metrics import kept_bytes
from memjax.models import interface
from memjax.settings.overrides import load_config
from memjax.training import read_metrics
from memjax.training.experiment import make_experiment
from memjax.training.stages import PhaseContext
from memjax.training.train_state import init_variables, model_variables
from memjax.training.update_functions import make_objective
from memjax.typing import Batch
from tests.interop import weights
from tests.lifelong import learner_cases as cases
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
        data=Data(source=toys[0], tokenizer=Bytes(), batch_size=8, segment_length=LENGTH),
        training=Training(
            log_every=2,
            **{
                "checkpoint_every": 2,
                "schedule": Schedule(learning_rate=3e-3, warmup_steps=0, decay="constant"),
                **training,
            },
        ),
        evaluation=Evaluation(batch_size=8, max_answers=8, split="test"),
        lifelong=Lifelong(
            method=method, tasks=tuple(TaskData(name=toy.change, source=toy) for toy in toys), epochs=epochs
        ),
    )


SMALL = LAMOL(capacity=8, replay_batch_size=2, generation_batch_size=4)


# What is asked for


def test_a_text_asks_for_everything_and_its_end():
    tokenizer = InstructionTokenizer(ByteTokenizer(), 2)
    prompt, answer = [*tokenizer.encode("abq?").tolist(), tokenizer.answer_id], tokenizer.encode("so").tolist()
    found = PromptExamples([(prompt, answer), (prompt[:0] + [tokenizer.answer_id], [])], tokenizer, length=10, name="")
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


SIZES = {"sample_ratio": 0.4, "replay_batch_size": 2, "capacity": 8}
STEPPING = {
    "plain": LAMOL(**SIZES),
    "published": LAMOL.as_published(lm_loss_weight=0.5, generation_token="shared", **SIZES),
}


class Begun(NamedTuple):
    """A stream of three tasks before an update of the third, with rows of the first two in the memory."""

    experiment: Any
    updates: Any
    state: Any
    batch: Any


def begin(method, **training):
    one = Schedule(learning_rate=1.0, warmup_steps=0, decay="constant")
    training = {"optimizer": SGD(), "schedule": one, "clip_norm": 0.0, **training}
    experiment = make_experiment(cases.config_of(method, training=training))
    make_learner, course = make_learner_and_stages(experiment, None, make_objective)
    learner = make_learner(())
    state = jax.jit(learner.init)(learner.make_variables())
    batches = [jax.tree.map(jnp.asarray, next(stage.open_stream(state, None))[1]) for stage in course]
    memory = state.method[EPISODES]
    for batch in batches[:2]:
        rows = jax.tree.map(lambda leaf: leaf[0], batch)
        memory = episodic.write(memory, rows, jax.random.key(0), policies.write_all_policy("drop"))
    state = dataclasses.replace(state, method={**state.method, EPISODES: memory})
    updates = {kind: jax.jit(update) for kind, update in learner.updates.items()}
    return Begun(experiment, updates, state, batches[2])


@pytest.fixture(scope="module")
def stepping():
    """Name -> what an update begins with."""
    done = {}

    def of(name):
        if name not in done:
            done[name] = begin(STEPPING[name])
        return done[name]

    return of


def whole_texts(rows, marks, tokenizer, answer_weight):
    """Rows as texts after their marks, token by token."""
    made = {name: np.zeros(rows.inputs.shape, np.int32) for name in ("inputs", "targets")}
    mask, weights = np.zeros(rows.inputs.shape, bool), np.zeros(rows.inputs.shape, np.float32)
    for row, mark in enumerate(marks):
        ids = np.asarray(rows.inputs)[row][np.asarray(rows.mask)[row]].tolist()
        place = slice(0, len(ids) + 1)
        made["inputs"][row, place], made["targets"][row, place] = [int(mark), *ids], [*ids, tokenizer.end_id]
        mask[row, place] = True
        weights[row, place] = [answer_weight if one == tokenizer.answer_id else 1 for one in [*ids, -1]]
    made = {name: jnp.asarray(leaf) for name, leaf in {**made, "mask": mask, "weights": weights}.items()}
    return Batch(**made, start_of_document=rows.start_of_document)


def nats(model, params, rows):
    """The mean over all that is asked for."""
    start = {"start_of_document": rows.start_of_document, "mask": rows.mask}
    hidden = model.apply({"params": params}, rows.inputs, model.init_state(len(rows.inputs)), **start)[0]
    each = model.apply({"params": params}, hidden, rows.targets, method="token_nll")
    return (each * rows.weights).sum() / rows.weights.sum()


@pytest.mark.parametrize(("name", "kind"), [("plain", "stream"), ("plain", "projected"), ("published", "projected")])
def test_a_step_goes_down_the_loss_of_answers_and_a_share_of_that_of_texts(stepping, name, kind):
    """One step of SGD at rate 1 is the gradient; rows of the memory have the marks of their own tasks."""
    method, (experiment, updates, state, batch) = STEPPING[name], stepping(name)
    model, tokenizer = experiment.model, experiment.tokenizer
    new, sums = updates[kind](state, batch)

    def both(rows):
        tasks = np.asarray(rows.extras["task"]) if method.generation_token == "task" else None
        marks = [tokenizer.generate_id] * len(rows.inputs) if tasks is None else tokenizer.first_task_id + tasks
        return rows, whole_texts(rows, marks, tokenizer, method.answer_weight)

    read = [both(jax.tree.map(lambda leaf: leaf[0], batch))]
    if kind == "projected":
        drawn = episodic.sample(state.method[EPISODES], replay_key(state), method.replay_batch_size)[0]
        read.append(both(drawn))
        assert method.generation_token == "shared" or {*drawn.extras["task"].tolist()} <= {0, 1}
    # The shares of both are those of the tokens of their answers.
    shares = np.array([float(rows.weights.sum()) for rows, _ in read])
    shares /= shares.sum()

    def objective(params):
        each = [nats(model, params, a) + method.lm_loss_weight * nats(model, params, b) for a, b in read]
        return sum(share * one for share, one in zip(shares, each, strict=True))

    wanted = jax.jit(jax.grad(objective))(state.params)
    for old, now, gradient in zip(*map(jax.tree.leaves, (state.params, new.params, wanted)), strict=True):
        np.testing.assert_allclose(old - now, gradient, rtol=1e-3, atol=3e-6)
    own, texts = (float(nats(model, state.params, rows)) for rows in read[0])
    np.testing.assert_allclose(float(sums["nll"].mean()), own, rtol=1e-5)
    np.testing.assert_allclose(float(sums["losses/language"].mean()), texts, rtol=1e-5)


def test_answers_alone_are_asked_for_at_weight_0():
    _, updates, state, batch = begin(LAMOL(**SIZES, lm_loss_weight=0.0))
    assert "losses/language" not in jax.eval_shape(updates["stream"], state, batch)[1]


def test_as_published_the_answer_mark_weighs_5():
    published = LAMOL.as_published(replay_batch_size=3)
    assert published == LAMOL(answer_weight=5.0, replay_batch_size=3) and LAMOL().answer_weight == 1
    assert (published.lm_loss_weight, published.top_k, published.temperature) == (0.25, 20, 1.0)


def test_an_update_that_is_not_finite_keeps_the_state_and_is_counted_once(stepping):
    _, updates, state, batch = stepping("plain")
    first, *others = jax.tree.leaves(state.params)
    bad = jax.tree.unflatten(jax.tree.structure(state.params), [first.at[(0,) * first.ndim].set(jnp.nan), *others])
    state = dataclasses.replace(state, params=bad)
    new, _ = updates["projected"](state, batch)
    assert float(new.totals["skipped"].total) == float(state.totals["skipped"].total) + 1
    cases.assert_equal(*(dataclasses.replace(one, totals={}, restart=()) for one in (state, new)))


def test_frozen_parameters_stay_under_weight_decay():
    _, updates, state, batch = begin(LAMOL(**SIZES), optimizer=Adam(weight_decay=0.5), frozen_parameters=("layers_0/",))
    new, _ = updates["projected"](state, batch)
    moved = {
        jax.tree_util.keystr(path): not np.array_equal(old, now)
        for (path, old), now in zip(
            jax.tree_util.tree_leaves_with_path(state.params), jax.tree.leaves(new.params), strict=True
        )
    }
    assert {name for name, moves in moved.items() if not moves} == {name for name in moved if "layers_0" in name}
    assert any(moved.values()) and not all(moved.values())


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
    assert split_at_answer_mark(ids, 9) == row


@pytest.fixture(scope="module")
def small():
    config = config_of("", SMALL)
    experiment = make_experiment(config)
    variables = init_variables(experiment.model, jax.random.key(3), LENGTH)
    return experiment, variables


def test_written_texts_are_those_of_their_seed(small):
    experiment, variables = small
    tokenizer = experiment.tokenizer
    write = lambda seed: write_samples(
        *(experiment.model, variables, tokenizer, tokenizer.generate_id, 6),
        **{"length": LENGTH, "room": LENGTH, "seed": seed, "at_once": 6},
    )
    one, other = write(0), write(1)
    assert len(one.texts) == 6 and one == write(0) and one.texts != other.texts


class Scripted(interface.Model):
    """Writes in every row what stands in that row of a table; where it must not, `otherwise`."""

    table: tuple[tuple[int, ...], ...]
    otherwise: int
    vocab_size: int

    def init_state(self, rows, dtype=None):
        return ()

    def init_decode_state(self, state, segment_length, rows):
        return jnp.zeros(rows, jnp.int32)

    def decode(self, tokens, places, *, active):
        wanted = jnp.array(self.table)[jnp.arange(len(places)), places]
        return wanted[:, None, None].astype(jnp.float32), places + active

    def log_probs(self, hidden):
        wanted = hidden[..., 0].astype(jnp.int32)
        one_hot = lambda ids: jax.nn.one_hot(ids, self.vocab_size)
        return 1e3 * one_hot(wanted) + 5e2 * one_hot(jnp.full_like(wanted, self.otherwise))


def test_written_texts_with_one_mark_are_kept_up_to_their_end(small):
    tokenizer = small[0].tokenizer
    mark, end, letters = tokenizer.answer_id, tokenizer.end_id, lambda text: tokenizer.encode(text).tolist()
    full = [*letters("so?"), mark, *letters("w" * (LENGTH - 5))]
    table = {
        "one": ([*letters("ab?"), mark, *letters("yes"), end, mark, *letters("not")], ("ab?", "yes")),
        "no end": (full, ("so?", "w" * (LENGTH - 5))),
        "two": ([*letters("a"), mark, *letters("b"), mark, *letters("c"), end], None),
        "none": ([*letters("abc"), end], None),
        "none and no end": (letters("a" * LENGTH), None),
        "behind the end": ([*letters("abc"), end, mark, *letters("d")], None),
        "first": ([mark, *letters("a"), end], ("", "a")),
        "last": ([*letters("a"), mark, end], ("a", "")),
        "marks of tasks": ([tokenizer.generate_id, mark, tokenizer.first_task_id, end], ("z", "z")),
    }
    pad = lambda ids: tuple([*ids, *[mark] * LENGTH][:LENGTH])
    model = Scripted(tuple(pad(ids) for ids, _ in table.values()), *letters("z"), tokenizer.vocab_size)
    write = lambda number, room=LENGTH: write_samples(
        *(model, {}, tokenizer, tokenizer.first_task_id, number),
        **{"length": LENGTH, "room": room, "seed": 0, "at_once": len(table)},
    )
    found, wanted = write(len(table)), [texts for _, texts in table.values() if texts]
    assert [(tokenizer.decode(prompt), tokenizer.decode(answer)) for prompt, answer in found.rows] == wanted
    assert all(prompt.count(mark) == 1 and prompt[-1] == mark and mark not in answer for prompt, answer in found.rows)
    assert not {id for row in found.rows for part in row for id in part} & {*tokenizer.reserved, end} - {mark}
    assert found.texts[:4] == ["ab? ANS yes", f"so? ANS {'w' * (LENGTH - 5)}", "a ANS b ANS c", "abc"]
    assert write(2).rows == found.rows[:2] and len(write(2).texts) == 2
    # No prompt of a task is longer than `room`.
    assert write(len(table), room=3).rows == [row for row in found.rows if len(row[0]) <= 3] != found.rows
    # One that has not ended fills its row, with the end as the last that is asked for.
    rows = PromptExamples(found.rows, tokenizer, length=LENGTH, name="written")
    sizes = [len(rows.example(index).inputs) for index in range(len(rows))]
    assert max(sizes) == sizes[1] == LENGTH - 1 and rows.example(1).targets[LENGTH - 2] == end


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


@pytest.fixture
def telling(monkeypatch):
    """Instead of a model: texts that differ with its parameters, the mark, the seed and how tokens are drawn; of each
    block the third has no ANS."""
    tokenizer = InstructionTokenizer(ByteTokenizer(), 3)

    def generate(model, variables, prompts, *, seed, sampling, **named):
        del model
        assert named["stop_tokens"] == [tokenizer.end_id]
        number = int(1e6 * float(jax.tree.leaves(variables["params"])[0].sum())) % 2**32
        drawn = np.random.default_rng([seed, prompts[0][0], number, sampling.top_k, int(100 * sampling.temperature)])
        texts = [tokenizer.encode("".join(drawn.choice([*"abcdef"], 9))).tolist() for _ in prompts]
        return [text if row % 3 == 2 else [*text[:5], tokenizer.answer_id, *text[5:]] for row, text in enumerate(texts)]

    monkeypatch.setattr("memjax.lifelong.lamol.generate", generate)


def at_borders(method, *, examples):
    """The state before and after each phase before a task but the first, with the key and the lines of the phase."""
    config = config_of("", method, changes=("copy", "reverse", "sort"), examples=examples)
    experiment = make_experiment(config)
    make_learner, course = make_learner_and_stages(experiment, None, make_objective)
    learner = make_learner(())
    state, found = learner.init(learner.make_variables()), []
    for number, stage in enumerate(course):
        # As if something had been learned.
        state = dataclasses.replace(state, params=jax.tree.map(lambda leaf: leaf + 0.01, state.params))
        key, lines = jax.random.fold_in(jax.random.key(5), number), []
        measure = lambda kind, values, lines=lines: lines.append((kind, values))
        context = PhaseContext(key, lambda: iter(()), (), lambda: None, lambda line: None, None, measure)
        new = stage.before(state, context).state
        if number:
            found.append((state, new, key, lines))
        else:
            assert new is state and not lines
        state = new
    return experiment, found


def nats_by_hand(model, variables, tokenizer, mark, rows):
    """Nats a token of some rows, each read alone and without padding."""
    total = count = 0
    for prompt, answer in rows:
        tokens = [mark, *prompt, *answer, tokenizer.end_id]
        read, batch = jnp.array([tokens[:-1]]), {"start_of_document": jnp.ones(1, bool), "deterministic": True}
        hidden = model.apply(variables, read, model.init_state(1), **batch)[0]
        scores = model.apply(variables, hidden, method="log_probs")[0]
        total -= sum(float(scores[place, token]) for place, token in enumerate(tokens[1:]))
        count += len(tokens) - 1
    return total / count


@pytest.mark.parametrize("tokens", ["task", "shared"])
def test_what_is_written_at_a_border_is_all_that_the_memory_holds(telling, tokens):
    drawn = {"top_k": 7, "temperature": 0.5}
    method = LAMOL(
        sample_ratio=0.4, replay_batch_size=4, capacity=20, generation_batch_size=4, generation_token=tokens, **drawn
    )
    experiment, borders = at_borders(method, examples=32)
    tokenizer, held = experiment.tokenizer, []
    for earlier, (before, after, key, lines) in enumerate(borders, start=1):
        each = {1: 13, 2: 6}[earlier]  # of 12.8, rounded up, an equal share of each
        seed = int(jax.random.bits(key_for(key, "generate", 0)))
        wanted = []
        for task in range(earlier):
            mark = tokenizer.first_task_id + task if tokens == "task" else tokenizer.generate_id
            how = {"length": LENGTH, "room": LENGTH - 1 - 6, "seed": seed + 1_000_003 * task, "at_once": 4, **drawn}
            written = write_samples(experiment.model, model_variables(before), tokenizer, mark, each, **how)
            assert len(written.texts) == each and 0 < len(written.rows) < each
            wanted += [(task, row) for row in written.rows]
        memory = after.method[EPISODES]
        assert int(memory.count) == len(wanted)
        examples = PromptExamples([row for _, row in wanted], tokenizer, length=LENGTH, name="")
        for place, (task, _) in enumerate(wanted):
            example, row = (
                examples.example(place),
                jax.tree.map(lambda leaf, place=place: leaf[place], memory.rows),
            )
            assert row.inputs[row.mask].tolist() == example.inputs.tolist()
            assert (row.targets.tolist(), row.weights.tolist()) == (example.targets.tolist(), example.weights.tolist())
            told = (int(row.extras["task"]), int(memory.groups[place])) if tokens == "task" else (task, task)
            assert told == (task, task) and ("task" in row.extras) is (tokens == "task")
        held.append({tuple(row.tolist()) for row in memory.rows.inputs[: len(wanted)]})
        [(kind, said)] = lines
        assert (kind, said["samples"]) == ("generated", each * earlier)
        shares = [sum(one == task for one, _ in wanted) / each for task in range(earlier)]
        assert [said[f"kept_{task}"] for task in range(earlier)] == shares
        for task in range(earlier):
            mark = tokenizer.first_task_id + task if tokens == "task" else tokenizer.generate_id
            rows = [row for one, row in wanted if one == task]
            real = experiment.of_task(experiment.config.lifelong.ordered_tasks[task].name).documents("train")
            classes = {answer for one in real.instructions for answer in one.answers}
            of_task = sum(tokenizer.decode(answer) in classes for _, answer in rows)
            assert said[f"of_task_{task}"] == of_task / each and said[f"written_nats_{task}"] == pytest.approx(
                nats_by_hand(experiment.model, model_variables(before), tokenizer, mark, rows), rel=1e-4
            )
            nats = nats_by_hand(experiment.model, model_variables(before), tokenizer, mark, real.rows)
            assert said[f"real_nats_{task}"] == pytest.approx(nats, rel=1e-4)
    assert len(held) == 2 and not held[0] & held[1]


def test_more_real_examples_than_there_are_are_drawn_more_than_once():
    method = LAMOL(sample_ratio=2.0, sample_source="real", replay_batch_size=16, capacity=16)
    experiment, borders = at_borders(method, examples=8)
    own = [experiment.of_task(name).documents("train") for name in ("copy", "reverse")]
    texts = [{tuple(one.example(index).inputs.tolist()) for index in range(8)} for one in own]
    for (_, after, _, lines), numbers in zip(borders, ([16], [8, 8]), strict=True):
        memory = after.method[EPISODES]
        drawn = [tuple(row[mask].tolist()) for row, mask in zip(memory.rows.inputs, memory.rows.mask, strict=True)]
        assert int(memory.count) == 16 and not lines
        for task, number in enumerate(numbers):
            mine = [text for text, group in zip(drawn, memory.groups.tolist(), strict=True) if group == task]
            assert len(mine) == number and {*mine} <= texts[task]
            assert 1 < len({*mine}) < number


def test_a_checkpoint_has_what_was_written_of_earlier_tasks(telling, tmp_path):
    method = dataclasses.replace(SMALL, sample_ratio=0.25, replay_batch_size=4, capacity=16)
    result = train(config_of(tmp_path, method, changes=("copy", "reverse", "sort")))
    arrays = final_arrays(result.path)[1]
    kept = {name: array for name, array in arrays.items() if EPISODES in name}
    count = next(int(array) for name, array in kept.items() if name.endswith("count"))
    tasks = next(array for name, array in kept.items() if name.endswith("extras/task"))[:count]
    # A quarter of 32, as many of each of the two earlier tasks; of each four texts one has no ANS.
    assert count == 6 and sorted(tasks.tolist()) == [0] * 3 + [1] * 3
    # Inputs, targets, weights and the mask of every place; start, task and number, group and score of every row.
    assert kept_bytes(arrays)["memory"] == 16 * (LENGTH * (4 + 4 + 4 + 1) + 1 + 4 + 4 + 4 + 4)
    loaded = load_run(result.path)
    assert loaded.experiment.tokenizer.vocab_size == ByteTokenizer().vocab_size + 2 + 3
    lines = [line for line in read_metrics(result.path / "metrics.jsonl") if line["kind"] == "evaluation"]
    assert lines and all(0 <= line["class_of_no_task"] <= 100 for line in lines)


def test_too_small_a_memory_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ValueError, match="capacity: given 3, allowed: at least 7"):
        train(config_of(tmp_path, dataclasses.replace(SMALL, capacity=3)))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_without_writing_and_without_the_loss_of_texts_it_is_fine_tuning(tmp_path):
    runs = {}
    for name, method in {
        "plain": Sequential(),
        "none": LAMOL(sample_ratio=0.0, lm_loss_weight=0.0),
        "texts": LAMOL(sample_ratio=0.0),
    }.items():
        arrays = final_arrays(train(config_of(tmp_path / name, method)).path)[1]
        runs[name] = {key: value for key, value in arrays.items() if key.startswith("params/")}
    for key, value in runs["plain"].items():
        np.testing.assert_array_equal(value, runs["none"][key])
    assert any(bool((value != runs["texts"][key]).any()) for key, value in runs["plain"].items())


@pytest.mark.parametrize(("tokens", "marks"), [("task", [0, 1]), ("shared", None)])
def test_only_marks_of_tasks_need_the_task(tmp_path, tokens, marks):
    config = config_of(tmp_path, dataclasses.replace(SMALL, generation_token=tokens))
    make_learner, course = make_learner_and_stages(make_experiment(config), None, make_objective)
    learner = make_learner(())
    state = jax.jit(learner.init)(learner.make_variables())
    batches = [next(stage.open_stream(state, None))[1] for stage in course]
    assert all(("task" in batch.extras) is (marks is not None) for batch in batches)
    if marks:
        assert [int(batch.extras["task"][0, 0]) for batch in batches] == marks


def test_a_model_learns_to_write_what_it_was_taught_and_does_not_forget_it(tmp_path):
    """Copying, then reversing, three letters: fine-tuning forgets the first, LAMOL writes it and keeps it."""
    scores = {}
    for name, method in {"lamol": LAMOL(replay_batch_size=8), "fine-tuning": Sequential()}.items():
        config = config_of(tmp_path / name, method, dim=64, epochs=14, examples=256, checkpoint_every=0)
        config.data.batch_size, config.training.log_every, config.evaluation.max_answers = 32, 0, 32
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
        memory=EpisodicMemory(write_policy="all", capacity=64),
        replay_interval=16,
        replay_batch_size=4,
        key_source="prompt",
        num_neighbors=2,
        adaptation_steps=steps,
        adaptation_learning_rate=rate,
        adaptation_l2=0.0,
    )
    result = train(config_of(tmp_path, method, epochs=2))
    loaded = load_run(result.path)
    split, data = loaded.experiment.documents("test"), loaded.experiment.datasets
    prompts = [split.prompt(index) for index in range(4)]
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
def test_a_run_killed_while_it_writes_does_so_again_bit_for_bit(tmp_path, monkeypatch):
    """Between two blocks of texts at a border: both are written again, from the same parameters with the same seeds."""
    whole = train(config_of(tmp_path / "whole", SMALL))
    calls = []

    def killed(model, variables, prompts, *, seed, **named):
        calls.append((seed, jax.device_get(variables["params"])))
        if len(calls) == 2:
            raise Crash
        return generate(model, variables, prompts, seed=seed, **named)

    monkeypatch.setattr("memjax.lifelong.lamol.generate", killed)
    config = config_of(tmp_path / "again", SMALL)
    with pytest.raises(Crash):
        train(config)
    assert len(calls) == 2  # of 7 texts, 4 at once
    again = train(config)
    assert [seed for seed, _ in calls[2:]] == [seed for seed, _ in calls[:2]] and calls[0][0] != calls[1][0]
    for one, other in zip(calls[:2], calls[2:], strict=True):
        cases.assert_equal(one[1], other[1])
    assert_same_run(again.path, whole.path)


@pytest.mark.slow
def test_it_begins_with_published_weights_of_gpt2(tmp_path):
    """Those that `memjax import` has read, whose table has room for the marks."""
    run = tmp_path / "gpt2"
    import_run(weights.gpt2(tmp_path / "weights"), run)
    given = load_run(run).experiment.config
    config = config_of(
        tmp_path,
        LAMOL(sample_ratio=0.4, replay_batch_size=4, capacity=40, generation_batch_size=4),
        changes=("copy", "reverse"),
    )
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


def test_what_does_not_fit_is_said_of_every_task_and_split(tmp_path):
    config = load_config("lifelong_lamol", "smoke")
    config.workdir = str(tmp_path)
    long, fits = {"question": "a" * 30, "answers": "b"}, {"question": "a", "answers": "b"}
    for name, rows in (("train", [fits] * 9), ("validation", [fits]), ("test", [fits, fits, long])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config.lifelong.tasks = (
        config.lifelong.tasks[0],
        TaskData(name="own", source=InstructionLines(path=str(tmp_path))),
    )
    stages = make_learner_and_stages(make_experiment(config), None, make_objective)[1]
    assert [stage.notes for stage in stages if stage.notes] == [
        ["own, test: 1 examples are left out: question or answer are too long for a segment"]
    ]
