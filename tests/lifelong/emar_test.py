"""EMAR, EMR and EA-EMR: prototypes, quotas, degenerate cases, and runs that are killed in stages of their own."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import EAEMR, EMAR, EMR, Sequential
from memjax.lifelong import train
from memjax.lifelong.class_features import HeadFeatures
from memjax.lifelong.ea_emr import alignment_loss, alternate_batches, cycle_batches
from memjax.lifelong.emar import class_sums, draw_instances, final_prototypes, head_vectors, use_prototypes
from memjax.lifelong.factory import make_learner_and_stages
from memjax.lifelong.kept_examples import choose_rehearsal_examples, class_quotas
from memjax.models.heads import ALLOWED, EncodedText
from memjax.models.similarity_head import SimilarityHead
from memjax.training.experiment import make_experiment
from memjax.training.stages import STREAM
from memjax.training.update_functions import make_objective
from tests.lifelong.learner_cases import HEADS, assert_equal, config_of, flat, play
from tests.training.loop_test import Crash, assert_same_run, crash_at


def test_a_prototype_is_the_mean_whatever_the_order_and_the_embedding_alone_without_examples():
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(9, 3)), np.array([0, 2, 2, 0, 2, 0, 0, 2, 2])
    totals, counts = class_sums(features, labels, 4)
    for label in (0, 2):
        np.testing.assert_allclose(totals[label] / counts[label], features[labels == label].mean(axis=0), rtol=1e-12)
    order = random.permutation(9)
    again, same = class_sums(features[order], labels[order], 4)
    np.testing.assert_allclose(again, totals, rtol=1e-12)
    np.testing.assert_array_equal(same, counts)
    relations = random.normal(size=(4, 3))
    found = final_prototypes(relations, totals, counts)
    np.testing.assert_array_equal(found[[1, 3]], relations[[1, 3]])
    by_hand = (relations[0] + features[labels == 0].sum(axis=0)) / (1 + 4)
    np.testing.assert_allclose(found[0], by_hand, rtol=1e-12)


def test_quotas_are_those_of_a_search_through_all_divisions():
    """All of the memory is used; shares are as equal as can be; what matters more has no less, where it can."""
    for importance in itertools.product((0, 1, 3), repeat=3):
        for available in itertools.product((1, 2, 5), repeat=3):
            for size in (1, 2, 4, 5, 7):
                total = min(size, sum(available))
                divisions = [
                    division
                    for division in itertools.product(*(range(count + 1) for count in available))
                    if sum(division) == total
                ]
                # The most equal first: the sum of squares; then the most to what matters most, and stands first.
                ranked = sorted(range(3), key=lambda one: (-importance[one], one))
                best = min(divisions, key=lambda d: (sum(x * x for x in d), [-d[one] for one in ranked]))
                assert class_quotas(importance, available, size) == list(best), (importance, available, size)


@pytest.mark.laws
def test_who_is_kept_is_different_and_of_every_class_as_the_quotas_say():
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), (20, 5, 15)).astype(np.int32)
    read = HeadFeatures(
        (random.normal(size=(40, 4)) + 10 * labels[:, None]).astype(np.float32), labels, 100 + np.arange(40)
    )
    for how in ("two_level", "flat", "random"):
        kept = choose_rehearsal_examples(read, 8, jax.random.key(1), how)
        assert len(set(kept.tolist())) == 8 and kept.min() >= 100 and kept.max() < 140
    counts = np.bincount(labels[choose_rehearsal_examples(read, 8, jax.random.key(1), "two_level") - 100], minlength=3)
    assert counts.min() >= 2 and counts.max() <= 3
    assert len(choose_rehearsal_examples(read, 100, jax.random.key(0), "two_level")) == 40


def test_instances_are_as_many_of_each_class_and_the_same_for_a_name():
    numbers, labels = np.arange(10) + 5, np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
    found = draw_instances(numbers, labels, 2, "a")
    assert np.bincount(labels[found - 5]).tolist() == [2, 2, 2]
    np.testing.assert_array_equal(found, draw_instances(numbers, labels, 2, "a"))
    np.testing.assert_array_equal(draw_instances(numbers, labels, 0, "a"), numbers)


@pytest.mark.laws
def test_no_gradient_reaches_the_prototypes_and_none_the_vectors_of_the_head():
    config = config_of(EMAR(examples_per_task=4))
    experiment = make_experiment(config)
    learner = make_learner_and_stages(experiment, None, make_objective)[0](())
    state = learner.init(learner.make_variables())
    objective = use_prototypes(make_objective(config, experiment.model), experiment.model)
    batch = jax.tree.map(lambda leaf: leaf[0], experiment.example())
    prototypes = jax.random.normal(jax.random.key(0), head_vectors(state.params).shape)

    def loss(params, prototypes):
        variables = {"params": params, "method": {"emar": {"prototypes": prototypes}}}
        return objective.loss(variables, experiment.model.init_state(4), batch, jax.random.key(0))[2].mean()

    of_params, of_prototypes = jax.grad(loss, argnums=(0, 1))(state.params, prototypes)
    assert not np.any(of_prototypes) and not np.any(head_vectors(of_params))
    assert np.any(of_params["layers_0"]["kernel"])
    assert loss(state.params, prototypes) != loss(state.params, 2 * prototypes)


def test_classes_that_were_not_seen_score_minus_infinity_and_separated_ones_are_all_right():
    head = SimilarityHead(3, keeps_seen=True)
    seen = {"head": None, "constants": {"seen": jnp.array([True, False, True])}}
    vectors = jnp.array([[4.0, 0.0], [0.0, 4.0], [-4.0, 0.0]])
    read = jnp.array([[1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]])
    only = {"seen_only": jnp.array([True, True, False])}
    text = EncodedText(read[:, None], read, jnp.ones((3, 1), bool), only)
    variables = {"params": {"vectors": vectors}, "constants": seen["constants"]}
    scores = np.asarray(head.apply(variables, text, True))[:, 0]
    assert np.isneginf(scores[:2, 1]).all() and np.isfinite(scores[2]).all()
    alone = head.clone(keeps_seen=False).apply({"params": {"vectors": vectors}}, text._replace(extras={}), True)
    assert np.argmax(alone[:, 0], axis=1).tolist() == [0, 1, 2]
    assert set(only) < set(ALLOWED)


def test_the_identity_aligns_what_has_not_moved_and_changes_no_score():
    identity = {"kernel": jnp.eye(3), "bias": jnp.zeros(3)}
    rows = jax.random.normal(jax.random.key(0), (5, 3))
    loss, gradient = jax.value_and_grad(alignment_loss)(identity, rows, rows, jnp.ones(5))
    assert loss == 0 and not flat(gradient).any()
    text = EncodedText(rows[:, None], rows, jnp.ones((5, 1), bool), {})
    plain, aligned = SimilarityHead(4, "cosine"), SimilarityHead(4, "cosine", aligned=True)
    params = {"vectors": jax.random.normal(jax.random.key(1), (4, 3))}
    constants = {"alignment": identity}
    scores = aligned.apply({"params": params, "constants": constants}, text, True)
    np.testing.assert_allclose(scores, plain.apply({"params": params}, text, True), rtol=1e-6)


def test_what_comes_in_turn_goes_on_where_it_stood():
    class Numbers:
        def __init__(self, position=0):
            self.position = position

        def __iter__(self):
            return self

        def __next__(self):
            if self.position == 4:
                raise StopIteration
            self.position += 1
            return STREAM, self.position

    between = lambda position=None: alternate_batches(
        "ab", "old", Numbers((position or {"own": 0})["own"]), 4, position
    )
    whole = list(between())
    assert whole == [
        ("old", "a"),
        (STREAM, 1),
        ("old", "b"),
        (STREAM, 2),
        ("old", "a"),
        (STREAM, 3),
        ("old", "b"),
        (STREAM, 4),
    ]
    for stop in range(len(whole)):
        one = between()
        first = [next(one) for _ in range(stop)]
        assert first + list(between(one.position)) == whole
    assert [batch for _, batch in cycle_batches("ab", "align", 2)] == [*"abab"]


def lower_bound(method):
    config = config_of(Sequential())
    return dataclasses.replace(config, task=dataclasses.replace(config.task, **HEADS[type(method)]))


@pytest.mark.laws
@pytest.mark.parametrize(
    "method",
    [EMAR(examples_per_task=0, rounds=0), EMR(examples_per_task=0), EAEMR(examples_per_task=0, alignment_epochs=0)],
    ids=lambda m: type(m).__name__,
)
def test_without_a_memory_and_without_rounds_it_is_plain_training(method):
    played, plain = play(config_of(method)), play(lower_bound(method))
    np.testing.assert_allclose(flat(played.state.params), flat(plain.state.params), rtol=0, atol=1e-6)
    scores = [
        one.learner.evaluators[""](one.learner.evaluation_variables(one.state, 0)).nats for one in (played, plain)
    ]
    np.testing.assert_allclose(*scores, rtol=1e-6)
    if isinstance(method, EMAR):
        assert_equal(played.state.params, plain.state.params)


@pytest.mark.laws
def test_ea_emr_that_stays_the_identity_with_the_selection_of_emr_is_emr():
    aligned, plain = (
        play(config_of(one))
        for one in (
            EAEMR(examples_per_task=4, alignment_epochs=0, example_selection="random"),
            EMR(examples_per_task=4),
        )
    )
    np.testing.assert_allclose(flat(aligned.state.params), flat(plain.state.params), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(aligned.state.method["chosen"], plain.state.method["chosen"])
    moved = play(
        config_of(
            EAEMR(examples_per_task=4, alignment_epochs=2, alignment_learning_rate=0.1, example_selection="random")
        )
    )
    assert not np.allclose(flat(moved.state.params), flat(plain.state.params), atol=1e-6)


@pytest.mark.laws
def test_the_first_pass_of_the_code_reads_what_is_kept_too():
    played = play(config_of(EMAR(examples_per_task=4, rounds=0, first_pass_examples="both")))
    read = [int(np.sum(batch.extras["example"] >= 0)) for kind, batch in played.updates if kind == STREAM]
    assert sum(read) == 10 + (10 + 4) + (10 + 8)


def test_the_first_pass_of_the_code_makes_as_many_updates_as_the_stream_asks_for():
    config = config_of(
        EMAR(examples_per_task=4, rounds=0, first_pass_examples="both"), tasks=3, epochs=2, min_updates_per_task=11
    )
    assert config.lifelong is not None
    config.lifelong.tasks[1].source.num_train = 40
    played = play(config)
    # Batches of four: ten examples four times; forty and four that are kept twice; ten and eight four times.
    assert [kind for kind, _ in played.updates] == [STREAM] * (4 * 3 + 2 * 11 + 4 * 5)


@pytest.mark.laws
@pytest.mark.parametrize(
    "method, steps",
    # In the middle of activation, of reconsolidation, of the batches of a task, of the alignment.
    [
        (EMAR(examples_per_task=4, reconsolidation_batch_size=3, instances_per_class=2), (4, 8)),
        (EAEMR(examples_per_task=4, alignment_epochs=3, alignment_learning_rate=1e-3), (6, 11)),
    ],
    ids=["EMAR", "EA-EMR"],
)
def test_a_run_killed_in_a_stage_of_its_own_goes_on_bit_for_bit(method, steps, tmp_path):
    def config(name):
        return dataclasses.replace(
            config_of(method, tasks=2, training={"checkpoint_every": 1}), workdir=str(tmp_path / name)
        )

    quiet = lambda event: None
    whole = train(config("whole"), on_event=quiet)
    for step in steps:
        with pytest.raises(Crash):
            train(config("killed"), on_event=quiet, hooks=[crash_at(step)])
    again = train(config("killed"), on_event=quiet)
    assert again.step == whole.step
    assert_same_run(again.path, whole.path)


@pytest.mark.parametrize(
    "method, fields, line",
    [
        (EMAR(), {"similarity": ""}, "task.similarity: given '', allowed: 'dot' or 'cosine' with EMAR"),
        (EMAR(), {"similarity": "dot", "margin": 0.5}, "task.margin: given 0.5, allowed: 0 with EMAR"),
        (
            EMAR(prototype_anchor="name"),
            {"similarity": "dot"},
            "lifelong.method.prototype_anchor: given 'name', allowed: 'learned'",
        ),
        (
            EAEMR(examples_per_task=0),
            HEADS[EAEMR],
            "lifelong.method.alignment_epochs: given 20, allowed: 0 without a memory",
        ),
    ],
)
def test_what_is_refused(method, fields, line):
    config = config_of(method)
    plain = {"similarity": "", "margin": 0.0}
    with pytest.raises(ValueError, match=f"^{line}"):
        make_experiment(dataclasses.replace(config, task=dataclasses.replace(config.task, **{**plain, **fields})))
