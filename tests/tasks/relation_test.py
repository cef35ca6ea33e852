"""What a sentence is compared with, and a tie, which is a wrong answer."""

import dataclasses

import numpy as np
import pytest

from memjax.config import BiLSTM, VectorWords
from memjax.data.relation_sentences import RelationSentence
from memjax.data.tokenizers import WordTokenizer
from memjax.settings.overrides import load_config
from memjax.tasks import LabelledSentences, RelationMeasure
from memjax.training.experiment import make_experiment

SENTENCES = [RelationSentence("a b", 2, (0, 3, 1)), RelationSentence("b z", 0, ())]


def examples(**named):
    return LabelledSentences(SENTENCES, WordTokenizer(["a", "b"]), length=4, num_classes=5, **named)


def test_a_sentence_says_what_it_is_compared_with():
    found = examples(candidates=True, seen_only=True, fallback=True)
    context = found.example(0).context
    assert np.flatnonzero(context["classes"]).tolist() == [0, 1, 2, 3] and bool(context["seen_only"])
    assert np.flatnonzero(context["fallback"]).tolist() == [1, 2, 3]
    assert np.flatnonzero(found.example(1).context["classes"]).tolist() == [0]
    assert not examples(candidates=False).example(0).context["classes"].any()  # all relations
    fewer = np.flatnonzero(examples(candidates=True, most=1).example(0).context["classes"])
    assert len(fewer) == 2 and 2 in fewer
    assert found.unknown == 1 and found.words == 4 and found.labels.tolist() == [2, 0]
    assert len({examples(candidates=c, seen_only=s).fingerprint for c in (False, True) for s in (False, True)}) == 4


def test_a_tie_is_wrong_and_a_sentence_alone_is_not_scored():
    measure, none = RelationMeasure(), -np.inf
    scores = [[1.0, 1.0, none], [2.0, 1.0, none], [none, none, 3.0], [none, 1.0, none], [none, none, none]]
    measure.add(np.array(scores), np.array([0, 0, 2, 0, 0]))
    # A tie; right; alone; not to be answered, beside another; not to be answered, and nothing else is.
    assert measure.result() == {"accuracy": 1 / 4, "alone": 1 / 5}


@pytest.mark.parametrize(
    "part, fields, line",
    [
        ("task", {"num_classes": 9}, "data.source.num_relations: given 8, allowed: task.num_classes = 9"),
        ("model", {"dim": 3}, "model.dim: given 3, allowed: 2, the numbers of a vector in the file of words"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, part, fields, line):
    (tmp_path / "glove.txt").write_text("then 1 2\nhere 3 4\n")
    config = load_config("lifelong_relations", "smoke")
    config.model, config.data.tokenizer = BiLSTM(dim=2, hidden=4), VectorWords(path=str(tmp_path / "glove.txt"))
    config = dataclasses.replace(config, **{part: dataclasses.replace(getattr(config, part), **fields)})
    with pytest.raises(ValueError, match=f"^{line}"):
        make_experiment(config)
