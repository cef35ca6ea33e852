"""What `memjax eval` lets a model answer by generating, after the scores."""

import dataclasses
import importlib.util

import jax
import pytest

from memjax import config as configs
from memjax.tasks import make_task
from memjax.training.experiment import make_experiment
from memjax.training.train_state import init_variables


def experiment_of(tmp_path, **parts):
    sizes = {"dim": 8, "num_heads": 2, "num_layers": 1, "feed_forward": configs.Dense(dim=8)}
    data = configs.Data(batch_size=2, cache_dir=str(tmp_path), **parts.pop("data"))
    model = parts["model"](**sizes, attention=configs.FullAttention())
    evaluation = configs.Evaluation(batch_size=2, max_answers=2)
    return make_experiment(configs.Config(model=model, data=data, evaluation=evaluation))


def variables_of(experiment):
    length = experiment.config.data.segment_length
    return jax.jit(lambda: init_variables(experiment.model, jax.random.key(0), length))()


def hide(monkeypatch, name):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda asked, *rest: None if asked == name else found(asked, *rest)
    )


def test_translations_are_measured_by_bleu_where_it_is_installed(tmp_path, monkeypatch):
    data = {"source": configs.NumberWords(num_documents=16, max_length=64), "tokenizer": configs.Bytes()}
    experiment = experiment_of(tmp_path, model=configs.EncoderDecoder, data={**data, "segment_length": 64})
    variables = variables_of(experiment)
    if importlib.util.find_spec("sacrebleu") is not None:
        result = experiment.evaluate(variables).as_dict()
        assert result["pairs"] == 2 and 0 <= result["bleu"] <= 100 and result["pairs_too_long"] == 0
        assert [line.partition(":")[0] for line in result["notes"]] == ["bleu", "bleu of words"]
    hide(monkeypatch, "sacrebleu")
    result = experiment.evaluate(variables).as_dict()
    assert "bleu" not in result and "pip install 'memjax[eval]'" in result["notes"][0]
    none = dataclasses.replace(experiment.config.evaluation, max_answers=0)
    assert "notes" not in experiment.evaluate(variables, none).as_dict()


def test_dialogues_are_answered_from_a_nucleus_and_greedily(tmp_path, monkeypatch):
    source = configs.TemplateDialogues(num_dialogues=16, document="context", max_utterance_length=8)
    data = {"source": source, "tokenizer": configs.Words(), "segment_length": 64}
    experiment = experiment_of(tmp_path, model=configs.Model, data=data)
    monkeypatch.setattr(type(experiment.task), "max_tokens", 4)
    hide(monkeypatch, "nltk")
    result = experiment.evaluate(variables_of(experiment)).as_dict()
    assert result["utterances"] == 16 and {"nucleus_f1", "greedy_f1"} <= set(result)
    assert "memjax[eval]" in result["notes"][0] and "greedy_meteor" not in result


@pytest.mark.parametrize(
    ("task", "source", "kind"),
    [
        (configs.LanguageModeling(), configs.TextFiles(), "LanguageModeling"),
        (configs.LanguageModeling(), configs.CmuDog(), "DialogueModeling"),
        (configs.LanguageModeling(), configs.ParallelText(), "Translation"),
        (configs.MaskedLanguageModeling(), configs.TextFiles(), "MaskedLanguageModeling"),
        (configs.Classification(), configs.Glue(), "ClassificationTask"),
        (configs.QuestionAnswering(), configs.Squad(), "QuestionAnswering"),
    ],
)
def test_each_configuration_has_one_task(task, source, kind):
    found = make_task(configs.Config(task=task, data=configs.Data(source=source)))
    assert type(found).__name__ == kind
