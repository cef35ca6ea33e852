"""Readers of questions, on small files of the published forms."""

import json
from typing import Any

import numpy as np
import pytest

from memjax.config import QaSrl, Quac, Squad, TriviaQa
from memjax.data.qa_srl import parse_qa_srl
from memjax.data.quac import parse_quac
from memjax.data.questions import Question, select_questions
from memjax.data.source_readers import read_all_questions, source_notes
from memjax.data.trivia_qa import first_match, parse_trivia_qa

SHARES: Any = {"validation_percent": 0, "test_percent": 0}


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text), "utf-8")


# QuAC


def turn(number, *answers, original=None):
    spans = [{"text": text, "answer_start": start} for text, start in answers]
    first = {"text": original or answers[0][0], "answer_start": answers[0][1]}
    return {"id": f"d_q#{number}", "question": f"q{number}", "answers": spans, "orig_answer": first, "yesno": "x"}


TEXT = "Ada wrote notes. She was first. CANNOTANSWER"
NONE = ("CANNOTANSWER", 32)
TURNS = [
    turn(0, ("Ada", 0)),
    turn(1, NONE),
    turn(2, ("notes", 10), NONE, ("wrote notes", 4)),
    turn(3, ("first", 25), original="CANNOTANSWER"),
]
ANSWERED = [
    Question("q0", "Ada wrote notes. She was first.", (("Ada", 0),)),
    Question("q2", "Ada wrote notes. She was first.", (("notes", 10), ("wrote notes", 4))),
]


def write_quac(folder, name, turns=TURNS):
    paragraph = {"id": "d", "context": TEXT, "qas": turns}
    article = {"title": "Ada", "section_title": "s", "background": "b", "paragraphs": [paragraph]}
    put(folder / name, {"data": [article]})


def test_turns_without_an_answer_are_dropped_and_counted(tmp_path):
    write_quac(tmp_path, "train_v0.2.json")
    write_quac(tmp_path, "val_v0.2.json", TURNS[:2])
    found = parse_quac(Quac(path=str(tmp_path), **SHARES), "train")
    assert found.questions == ANSWERED and found.left_out == {"have no answer in their text": 2}
    notes = source_notes(Quac(path=str(tmp_path)))
    assert notes[0] == "2 questions of the train split have no answer in their text, and are left out"
    assert [line.split()[0] for line in notes] == ["2", "1", "1"]


def test_the_builder_of_quac_has_the_same_turns(monkeypatch):
    def examples(name, *, split, data_dir):
        assert (name, split, data_dir) == ("quac", "validation", None)
        for one in TURNS:
            spans = one["answers"]
            answers = {
                "text": np.array([span["text"].encode() for span in spans], object),
                "answer_start": np.array([span["answer_start"] for span in spans], np.int32),
            }
            original = {"text": one["orig_answer"]["text"].encode(), "answer_start": 0}
            yield {
                "question": one["question"].encode(),
                "context": TEXT.encode(),
                "answers": answers,
                "orig_answer": original,
            }

    monkeypatch.setattr("memjax.data.quac.tfds_examples", examples)
    found = parse_quac(Quac(), "test")
    assert found.questions == ANSWERED and sum(found.left_out.values()) == 2


# TriviaQA


@pytest.mark.parametrize(
    "names, text, found",
    [
        (["Paris"], "in paris, and Paris", ("paris", 3)),
        (["art"], "a party", None),
        (["Rome", "Paris"], "Paris or Rome", ("Paris", 0)),  # the first place, not the first name
        (["New", "New York"], "to New York", ("New York", 3)),  # the longest there
        (["C++"], "in C++ and", ("C++", 3)),  # a name is no pattern
        (["", "  "], "anything", None),
        (["İ"], "İİ İ", ("İ", 3)),  # places are of the text as it is, whatever lower case does
    ],
)
def test_the_first_name_of_an_answer_in_a_text(names, text, found):
    assert first_match(names, text) == found


def trivia(number, *pages, names=("Paris", "City of Light")):
    answer = {"Value": names[0], "Aliases": list(names), "NormalizedAliases": [name.lower() for name in names]}
    named = {"Question": f"q{number}", "QuestionId": f"id_{number}", "Answer": answer}
    return named | {"SearchResults": [], "EntityPages": [{"Filename": page, "Title": page} for page in pages]}


def write_trivia(folder):
    entries = [trivia(0, "nothing.txt", "city.txt"), trivia(1, "nothing.txt"), trivia(2, "late.txt")]
    found = {"SearchResults": [{"Filename": "0/found.txt", "Rank": 1}], "EntityPages": [{"Filename": "city.txt"}]}
    put(folder / "qa/wikipedia-train.json", {"Data": entries, "Domain": "Wikipedia", "Version": 1.0})
    put(folder / "qa/web-train.json", {"Data": [trivia(3) | found, trivia(4)], "Domain": "Web"})
    put(folder / "evidence/wikipedia/city.txt", "The city of light, Paris.")
    put(folder / "evidence/wikipedia/nothing.txt", "Nothing.")
    put(folder / "evidence/wikipedia/late.txt", "one two three four  Paris")
    put(folder / "evidence/web/0/found.txt", "It is PARIS")


def test_pages_that_name_the_answer(tmp_path):
    write_trivia(tmp_path)
    read = lambda pages, words: parse_trivia_qa(
        TriviaQa(path=str(tmp_path), pages=pages, max_words=words, **SHARES), "train"
    )
    answers = (("city of light", 4), ("Paris", -1), ("City of Light", -1))
    first = Question("q0", "The city of light, Paris.", answers)
    found = read("wikipedia", 4)
    assert found.questions == [Question("q0", "The city of light,", answers)]
    assert found.left_out == {"have no name of the answer on their pages": 2}
    found = read("wikipedia", 0)
    assert [one.question for one in found.questions] == ["q0", "q2"] and found.questions[0] == first
    assert found.questions[1].answers[0] == ("Paris", 20) and sum(found.left_out.values()) == 1
    web = read("web", 800)
    assert [(one.question, one.answers[0]) for one in web.questions] == [("q3", ("PARIS", 6))]
    assert sum(web.left_out.values()) == 1


def test_the_builder_of_trivia_qa_is_taken_apart(monkeypatch):
    def examples(name, *, split, data_dir):
        assert (name, split, data_dir) == ("trivia_qa/rc", "train", "there")
        answer = {"value": b"Paris", "aliases": np.array([b"Paris", b"City of Light"], object)}
        pages = lambda *texts: np.array(list(texts), object)
        for number, (searched, wiki) in enumerate(
            [(pages(b"in Paris"), pages(b"Paris")), (pages(), pages(b"", b"by Paris"))]
        ):
            named = {"question": f"q{number}".encode(), "answer": answer}
            yield named | {"search_results": {"search_context": searched}, "entity_pages": {"wiki_context": wiki}}

    monkeypatch.setattr("memjax.data.trivia_qa.tfds_examples", examples)
    read = lambda pages: parse_trivia_qa(TriviaQa(pages=pages, data_dir="there"), "train").questions
    assert [(one.question, one.context, one.answers[0]) for one in read("web")] == [("q0", "in Paris", ("Paris", 3))]
    assert [(one.question, one.context) for one in read("wikipedia")] == [("q1", "by Paris")]


# QA-SRL


def write_srl(folder, ranges="0:2~!~3:4"):
    for part, words in (("dev", "The cat saw Ada ."), ("test", "A dog ran .")):
        rows = [f"id:{number},{number},v,What{number}?,{ranges},x" for number in range(20)]
        rows += ["lost,0,v,Who?,0:1,x"]
        put(
            folder / f"gold/wikinews.{part}.gold.csv",
            "\n".join(["qasrl_id,verb_idx,verb,question,answer_range,answer", *rows]),
        )
        named = [f"id:{number},{words},{words}" for number in range(20)]
        put(folder / f"sentences/wikinews.{part}.full.csv", "\n".join(["qasrl_id,tokens,sentence", *named]))


def test_answers_in_a_sentence(tmp_path):
    write_srl(tmp_path)
    read = lambda split: parse_qa_srl(QaSrl(path=str(tmp_path), validation_percent=30), split)
    parts = [read(split) for split in ("train", "validation", "test")]
    assert len(parts[0].questions) + len(parts[1].questions) == 20 == len(parts[2].questions)
    assert parts[0].questions[0].answers == (("The cat", 0), ("Ada", 12)) and parts[1].questions
    assert parts[2].questions[0] == Question("What0?", "A dog ran .", (("A dog", 0), (".", 10)))
    assert parts[2].left_out == {"have no answer in their sentence": 1}
    with pytest.raises(ValueError, match=r"has no gold/wikipedia\.test\.gold\.csv, allowed"):
        parse_qa_srl(QaSrl(path=str(tmp_path), domain="wikipedia"), "test")
    write_srl(tmp_path, ranges="3:9")
    with pytest.raises(
        ValueError, match=r"dev\.gold\.csv, answer_range '3:9' cannot be read .*, allowed: tokens of the sentence"
    ):
        read("train")


# All of them


def test_what_is_kept_does_not_depend_on_what_else_there_is():
    questions = [Question(f"q{number}", "text", (("text", 0),)) for number in range(40)]
    some = select_questions(questions, 8, seed=1)
    assert len(some) == 8 and list(some) == [one for one in questions if one in some]
    others = questions[20:] + questions[:20]
    assert set(select_questions(others, 8, seed=1)) == set(some) != set(select_questions(questions, 8, seed=2))
    assert select_questions(questions, 0) == questions == select_questions(questions, 99)


@pytest.mark.parametrize(
    "source, line",
    [
        (Quac, r"has no train_v0\.2\.json or val_v0\.2\.json"),
        (TriviaQa, r"has no evidence/web, allowed"),
        (Squad, r"has no train-v1\.1\.json or dev"),
        (QaSrl, r"has no gold/wikinews\.dev\.gold\.csv"),
    ],
)
def test_a_folder_without_the_files_is_refused(source, line, tmp_path):
    with pytest.raises(ValueError, match=line):
        read_all_questions(source(path=str(tmp_path)), "train")


def test_files_of_another_form_are_refused(tmp_path):
    put(tmp_path / "train_v0.2.json", {"data": [{"title": "x"}]})
    with pytest.raises(ValueError, match=r"train_v0\.2\.json has no 'paragraphs', allowed: the JSON of QuAC"):
        parse_quac(Quac(path=str(tmp_path), **SHARES), "train")
    put(tmp_path / "qa/web-train.json", "[]")
    put(tmp_path / "evidence/web/x", "")
    with pytest.raises(ValueError, match=r"web-train\.json .*, allowed: the JSON of TriviaQA"):
        parse_trivia_qa(TriviaQa(path=str(tmp_path), max_words=0, **SHARES), "train")
