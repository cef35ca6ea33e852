"""Pairs of sentences and relations as examples of Classification: accuracy is that of sentences."""

import dataclasses

import numpy as np
import pytest

from memjax.config import (
    AGEM,
    EMAR,
    EMR,
    OML,
    Classification,
    EpisodicMemory,
    Joint,
    Lifelong,
    RelationExtraction,
    SyntheticRelations,
    TaskData,
    WordPiece,
)
from memjax.data.relation_sentences import RelationSentence
from memjax.data.wordpiece import WordPieceTokenizer
from memjax.lifelong import load_run, train
from memjax.settings.overrides import load_config
from memjax.tasks import LabelledSentences
from memjax.tasks.choices import GroupMeasure
from memjax.tasks.relation import encode_with_markers
from memjax.training.experiment import make_experiment

MEMORY = EpisodicMemory(write_policy="all", capacity=200)


def test_a_group_is_right_where_its_right_one_is_above_all_others_and_only_whole_groups_count():
    groups = np.array([4, 4, 4, 2, 2, 9, 7, 7])
    labels, scores = np.array([1, 0, 0, 0, 1, 1, 1, 0]), np.array([0.3, 0.1, 0.2, 1.0, 1.0, -5.0, 2.0, 1.0])
    measure = GroupMeasure(groups)
    order = np.random.default_rng(0).permutation(7)  # the last one is not read
    for part in np.split(order, 3 * np.arange(1, 3)):
        measure.add(part, scores[part], labels[part])
    # Right; a tie, which is wrong; one without others; not whole.
    assert measure.result()["accuracy"] == 2 / 3 and measure.result()["pair_accuracy"] == 3 / 7
    measure.add(np.array([0]), np.array([np.nan]), np.array([1]))
    assert measure.result()["accuracy"] == 1 / 3


def config_of(method, **fields):
    """Sentences of made relations with a tiny text encoder."""
    config = load_config("bert_glue", "smoke")
    made = SyntheticRelations(num_relations=4, num_train=6)
    tasks = tuple(
        TaskData(name=f"task_{first}", source=dataclasses.replace(made, relations=(first, first + 1)))
        for first in (1, 3)
    )
    config.task, config.lifelong = Classification(), Lifelong(tasks=tasks, method=method, epochs=1)
    config.data = dataclasses.replace(
        config.data, source=made, tokenizer=WordPiece(vocab_size=120), batch_size=4, segment_length=16
    )
    scored = dataclasses.replace(config.evaluation, batch_size=8, split="test", compute_accuracy=True)
    config.evaluation, config.evaluations = scored, (dataclasses.replace(scored, name="whole"),)
    config.training = dataclasses.replace(config.training, evaluate_every=0, checkpoint_every=0)
    return dataclasses.replace(config, **fields)


def test_what_does_not_fit_is_refused():
    config = config_of(Joint(), task=Classification(num_classes=4))
    with pytest.raises(ValueError, match=r"^task.num_classes: given 4, allowed: 2 with pairs of SyntheticRelations$"):
        make_experiment(config)


@pytest.mark.laws
@pytest.mark.parametrize(
    "method",
    [
        OML(memory=MEMORY, inner_steps=2, replay_interval=24, replay_rate=0.2),
        AGEM(memory=MEMORY, reference_batch_size=4, projection_interval=8),
    ],
)
def test_a_text_encoder_learns_pairs_and_is_scored_by_sentences(method, tmp_path):
    config = config_of(method, workdir=str(tmp_path))
    assert config.lifelong is not None
    result = train(config, on_event=lambda event: None)
    experiment = make_experiment(config)
    tasks = [experiment.of_task(task.name).documents("train") for task in config.lifelong.tasks]
    assert len(tasks[0]) < len(tasks[1])  # of the first task fewer candidates are known
    measure = experiment.task.make_measure(experiment.documents("test"))()
    assert isinstance(measure, GroupMeasure)
    run = load_run(result.path)
    values = run.experiment.evaluate(run.variables, config.evaluation).as_dict()
    assert 0 <= values["accuracy"] <= 1 and values["targets"] == 4 * 3 * 4
    assert values["accuracy"] * 12 == pytest.approx(round(values["accuracy"] * 12))  # of twelve sentences


@pytest.mark.laws
@pytest.mark.parametrize(
    "method",
    [EMAR(examples_per_task=4, instances_per_class=2), EMR(examples_per_task=4)],
    ids=lambda one: type(one).__name__,
)
def test_a_text_encoder_learns_relations_with_markers(method, tmp_path):
    similar = {"similarity": "dot", "margin": 0.0} if isinstance(method, EMAR) else {}
    task = RelationExtraction(num_classes=4, relation_vectors="learned", **similar)
    config = config_of(method, workdir=str(tmp_path), task=task)
    found = train(config, on_event=lambda event: None)
    assert found.step > 0 and np.isfinite(load_run(found.path).experiment.evaluate(load_run(found.path).variables).nats)


def test_markers_stand_around_the_two_things_and_nowhere_where_these_are_not_known():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{one}]" for one in range(4)), *"abcd"]
    tokenizer = WordPieceTokenizer(content="\n".join(pieces))
    read = lambda *entities: [
        pieces[one] for one in encode_with_markers(tokenizer, RelationSentence("a b c d", 0, (), entities))
    ]
    zero, one, two, three = pieces[5:9]
    assert read() == ["a", "b", "c", "d"]
    assert read(0, 1, 3, 3) == [zero, "a", "b", one, "c", two, "d", three]
    assert read(2, 2, 0, 1) == [two, "a", "b", three, zero, "c", one, "d"]
    sentences = [RelationSentence("a b c d", 0, (1,), (0, 1, 3, 3)), RelationSentence("a b", 1, (0,))]
    found = LabelledSentences(sentences, tokenizer, length=7, num_classes=2, candidates=True)
    assert [pieces[one] for one in found.example(0).inputs] == ["[CLS]", zero, "a", "b", one, "c", "[SEP]"]
    assert found.unmarked == 1 and found.truncated == 1
