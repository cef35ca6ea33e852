"""What a task answers to a user's text is what it answers in an evaluation."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.data.glue import LabelledText
from memjax.data.source_readers import open_source
from memjax.tasks import Query
from memjax.tasks.dialogue import GREEDY, answer_turns
from memjax.tasks.question_answering import exact_match
from memjax.training.experiment import make_experiment
from tests.reference.parameters import params_of
from tools.verbs import make_config, write_data


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """kind of run -> an experiment with random parameters, and its answers."""
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)

    def make(kind, **fields):
        config = make_config(kind)
        for name, value in {"max_segments": 0, "max_answers": 0, **fields}.items():
            setattr(config.evaluation, name, value)
        experiment = make_experiment(config)
        model = experiment.model
        batch = model.example(2, config.data.segment_length)
        filled = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), batch)
        named = {"start_of_document": filled.start_of_document, "mask": filled.mask, "extras": filled.extras}
        params = params_of(model, filled.inputs, model.init_state(2), **named)
        variables = {"params": jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)}
        return experiment, variables, functools.partial(experiment.task.predict, model, variables)

    return make


def test_classes_are_those_of_the_evaluation(ask):
    experiment, variables, predict = ask("Classification")
    given: list[LabelledText] = open_source(experiment.config.data, "validation", wanted="labelled")
    found = predict([Query(*example.texts) for example in given], experiment.datasets)
    right = [one["answer"] == str(example.label) for one, example in zip(found, given, strict=True)]
    assert np.mean(right) == pytest.approx(experiment.evaluate(variables).measures["accuracy"])
    for one in found:
        (ranked,) = one["candidates"]
        assert one["answer"] == ranked[0]["answer"] and sum(c["probability"] for c in ranked) == pytest.approx(1)
    with pytest.raises(ValueError, match="pair: given for some of the texts"):
        predict([Query("a", "b"), Query("a")], experiment.datasets)


def test_masks_are_filled_with_what_the_model_finds_most_probable(ask):
    experiment, variables, predict = ask("MaskedLanguageModeling")
    tokenizer, model = experiment.tokenizer, experiment.model
    texts = ["ada lives in [MASK]", "where [MASK] boole [MASK]"]
    found = predict([Query(text) for text in texts], experiment.datasets, top=3)

    @jax.jit
    def score(variables, ids, extras):
        output = model.apply(variables, ids, model.init_state(1), extras=extras)[0]
        return model.apply(variables, output, method="log_probs")

    for text, one in zip(texts, found, strict=True):
        ids = np.concatenate([[tokenizer.begin_id], tokenizer.encode(text), [tokenizer.end_id]])
        places = np.flatnonzero(ids == tokenizer.mask_id)
        extras = {"token_types": jnp.zeros((1, len(ids)), jnp.int32), "masked_positions": jnp.asarray(places[None])}
        log_probs = np.array(score(variables, jnp.asarray(ids[None]), extras))[0]
        log_probs[:, tokenizer.special_ids] = -np.inf
        assert [len(ranked) for ranked in one["candidates"]] == [3] * len(places)
        for row, ranked in zip(log_probs, one["candidates"], strict=True):
            assert ranked[0]["answer"] == tokenizer.decode([int(row.argmax())])
            assert ranked[0]["probability"] == pytest.approx(np.exp(row.max()), rel=1e-3)
        filled = ids.copy()
        filled[places] = log_probs.argmax(axis=-1)
        assert one["answer"] == tokenizer.decode(filled)
    with pytest.raises(ValueError, match=r"text: given 3 tokens, 0 of them \[MASK\], allowed: up to "):
        predict([Query("where lives ?")], experiment.datasets)


@pytest.mark.slow
def test_spans_are_those_of_the_evaluation(ask):
    experiment, variables, predict = ask("QuestionAnswering")
    given = open_source(experiment.config.data, "validation", wanted="questions")
    found = predict([Query(one.context, one.question) for one in given], experiment.datasets)
    right = [exact_match(one["answer"], q.answers[0][0]) for one, q in zip(found, given, strict=True)]
    assert 100 * np.mean(right) == pytest.approx(experiment.evaluate(variables).measures["exact_match"])
    assert all(one["answer"] in question.context for one, question in zip(found, given, strict=True))
    assert all(0 < one["probability"] <= 1 for one in found if one["answer"])
    with pytest.raises(ValueError, match="question: given none"):
        predict([Query("Ada lives in Rome.")], experiment.datasets)


@pytest.mark.slow
def test_translations_are_those_of_the_evaluation(ask):
    experiment, variables, predict = ask("EncoderDecoder", max_answers=2)
    split, task = experiment.documents("validation"), experiment.task
    english, _ = open_source(experiment.config.data, "validation")
    texts = [english[int(number)] for number in split.kept[:2]]
    found = [one["answer"] for one in predict([Query(text) for text in texts], experiment.datasets)]
    sources = [split.source(index).tolist() for index in range(2)]
    wanted = task.translate(experiment.model, variables, sources, experiment.datasets)
    assert found == [experiment.tokenizer.decode(ids) for ids in wanted]
    how = {"beam_size": 2, "length_penalty": 0.0}
    (ids,) = task.translate(experiment.model, variables, sources[:1], experiment.datasets, **how)
    assert predict([Query(texts[0])], experiment.datasets, **how) == [{"answer": experiment.tokenizer.decode(ids)}]
    if importlib.util.find_spec("sacrebleu"):
        assert experiment.evaluate(variables).measures["pairs"] == 2
    with pytest.raises(ValueError, match="text: given .* tokens .*, allowed: up to "):
        predict([Query("one " * 200)], experiment.datasets)


@pytest.mark.slow
def test_replies_are_those_of_the_evaluation(ask):
    experiment, variables, predict = ask("dialogues")
    (dialogue,) = open_source(experiment.config.data, "validation")
    said = "\n".join(utterance.text for utterance in dialogue.utterances[:3])
    (found,) = predict([Query(said, dialogue.document)], experiment.datasets)
    settings = {"segment_length": experiment.config.data.segment_length, "sampling": GREEDY, "max_tokens": 64}
    answers = list(answer_turns(experiment.model, variables, experiment.documents("validation"), rows=1, **settings))
    assert answers[3].turn.utterance == 3
    assert found["answer"] == experiment.tokenizer.decode(answers[3].tokens)


def test_instructions_are_answered_in_words_whatever_else_is_asked(ask):
    experiment, variables, predict = ask("stream of instructions")
    found = predict([Query("abc", "copy"), Query("a", "copy")], experiment.datasets, top=5)
    assert [[*one] for one in found] == [["answer"]] * 2
    with pytest.raises(ValueError, match="question: given none"):
        predict([Query("abc")], experiment.datasets, top=5)
