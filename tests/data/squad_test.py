import json

import numpy as np
import pytest

from memjax.data.squad import Question, squad_questions, tfds_squad_questions
from memjax.data.templates import template_questions, template_texts

SHARES = {"validation": 0.3, "test": 0.3}


def write(folder, name, titles):
    qas = [{"question": "q", "id": "1", "answers": [{"text": "b", "answer_start": 2}]}]
    article = lambda title: {"title": title, "paragraphs": [{"context": f"a b {title}", "qas": qas}]}
    (folder / f"{name}.json").write_text(json.dumps({"version": "1.1", "data": [article(t) for t in titles]}))


def test_files_and_splits(tmp_path):
    with pytest.raises(ValueError, match=r"has no train-v1\.1\.json or dev-v1\.1\.json"):
        squad_questions(str(tmp_path), split="train", **SHARES)
    write(tmp_path, "dev-v1.1", [f"title {i}" for i in range(40)])
    parts = [squad_questions(str(tmp_path), split=split, **SHARES) for split in ("train", "validation", "test")]
    assert sum(map(len, parts)) == 40 and len({q.context for part in parts for q in part}) == 40 and all(parts)
    write(tmp_path, "train-v1.1", ["one"])
    assert squad_questions(str(tmp_path), split="train", **SHARES) == [Question("q", "a b one", (("b", 2),))]
    assert len(squad_questions(str(tmp_path), split="validation", **SHARES)) == 40
    assert len(squad_questions(str(tmp_path), split="test", **SHARES)) == 40
    (tmp_path / "train-v1.1.json").write_text('{"data": [{"title": "x"}]}')
    with pytest.raises(ValueError, match=r"train-v1\.1\.json: not of the form of SQuAD 1\.1"):
        squad_questions(str(tmp_path), split="train", **SHARES)


def test_the_builder_of_tfds_has_the_same_questions(monkeypatch):
    def examples(name, *, split, data_dir):
        assert (name, split, data_dir) == ("squad", "validation", None)
        answers = {"text": np.array([b"b", b"b c"], object), "answer_start": np.array([2, 2])}
        yield {"question": b"q", "context": b"a b c", "answers": answers}

    monkeypatch.setattr("memjax.data.squad.tfds_examples", examples)
    assert tfds_squad_questions(split="test", data_dir="") == [Question("q", "a b c", (("b", 2), ("b c", 2)))]


def test_templates_are_true_to_their_labels():
    for example in template_texts(50, seed=1):
        assert (example.texts[1] in example.texts[0]) == bool(example.label)
    for question in template_questions(50, seed=1):
        words, start = question.answers[0]
        assert question.context[start : start + len(words)] == words
        assert f"{question.question.split()[2]} lives in {words}." in question.context
    assert template_texts(5, seed=1) == template_texts(50, seed=1)[:5] != template_texts(5, seed=2)
