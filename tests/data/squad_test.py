import json

import numpy as np
import pytest

from memjax.config import Squad
from memjax.data.questions import Question
from memjax.data.squad import parse_squad
from memjax.data.templates import template_questions, template_texts


def write(folder, name, titles):
    qas = [{"question": "q", "id": "1", "answers": [{"text": "b", "answer_start": 2}]}]
    article = lambda title: {"title": title, "paragraphs": [{"context": f"a b {title}", "qas": qas}]}
    (folder / f"{name}.json").write_text(json.dumps({"version": "1.1", "data": [article(t) for t in titles]}))


def read(folder, split, **fields):
    return parse_squad(Squad(path=str(folder), validation_percent=30, test_percent=30, **fields), split).questions


def test_files_and_splits(tmp_path):
    with pytest.raises(ValueError, match=r"has no train-v1\.1\.json or dev-v1\.1\.json"):
        read(tmp_path, "train")
    write(tmp_path, "dev-v1.1", [f"title {i}" for i in range(40)])
    parts = [read(tmp_path, split) for split in ("train", "validation", "test")]
    assert sum(map(len, parts)) == 40 and len({q.context for part in parts for q in part}) == 40 and all(parts)
    write(tmp_path, "train-v1.1", ["one"])
    assert read(tmp_path, "train") == [Question("q", "a b one", (("b", 2),))]
    assert len(read(tmp_path, "validation")) == 40
    assert len(read(tmp_path, "test")) == 40
    (tmp_path / "train-v1.1.json").write_text('{"data": [{"title": "x"}]}')
    with pytest.raises(ValueError, match=r"train-v1\.1\.json has no 'paragraphs', allowed: the JSON of SQuAD 1\.1"):
        read(tmp_path, "train")


def test_groups_of_articles_are_apart_in_every_split(tmp_path):
    write(tmp_path, "dev-v1.1", [f"title {i}" for i in range(80)])
    for split in ("train", "validation", "test"):
        groups = [{one.context for one in read(tmp_path, split, part=part, parts=2)} for part in range(2)]
        assert all(groups) and not groups[0] & groups[1]
        assert groups[0] | groups[1] == {one.context for one in read(tmp_path, split)}


def test_the_builder_of_tfds_has_the_same_questions(monkeypatch):
    def examples(name, *, split, data_dir):
        assert (name, split, data_dir) == ("squad", "validation", None)
        answers = {"text": np.array([b"b", b"b c"], object), "answer_start": np.array([2, 2])}
        yield {"question": b"q", "context": b"a b c", "answers": answers, "title": b"t"}

    monkeypatch.setattr("memjax.data.squad.tfds_examples", examples)
    both = [parse_squad(Squad(part=part, parts=2), "test").questions for part in range(2)]
    found = parse_squad(Squad(), "test").questions
    assert found == [Question("q", "a b c", (("b", 2), ("b c", 2)))] and sorted(both, key=len) == [[], found]


def test_templates_are_true_to_their_labels():
    for example in template_texts(50, seed=1):
        assert (example.texts[1] in example.texts[0]) == bool(example.label)
    for question in template_questions(50, seed=1):
        words, start = question.answers[0]
        assert question.context[start : start + len(words)] == words
        assert f"{question.question.split()[2]} lives in {words}." in question.context
    assert template_texts(5, seed=1) == template_texts(50, seed=1)[:5] != template_texts(5, seed=2)
