"""Readers of sentences with relations, and of word vectors."""

import json
import lzma

import numpy as np
import pytest

from memjax.config import RelationFiles, Tacred
from memjax.data.relation_sentences import make_synthetic_relations, parse_relation_files, parse_tacred
from memjax.data.sources import SPLITS
from memjax.data.word_vectors import embedding_table, read_word_vectors

NAMES = "///place of birth\n///mountain range\n/people/person/religion\n"
ROW = "{}\t{} \ta sentence , number {} .\t\n"


def folder(path, rows, names=NAMES):
    path.mkdir(exist_ok=True)
    (path / "names.txt").write_text(names)
    with lzma.open(path / "rows.txt.xz", "wt") as file:
        file.write(rows)
    return str(path)


def read(path, **named):
    return parse_relation_files(RelationFiles(path=path, names="names.txt", train=("rows.txt",), **named))


def test_relations_are_numbered_from_their_names_and_no_sentence_is_in_two_splits(tmp_path):
    rows = "".join(ROW.format(1 + i % 3, "3 2 1", i // 2) for i in range(120))
    found = read(folder(tmp_path, rows + ROW.format(1, "1 2", 0)))
    texts = {split: {one.text for one in found.sentences[split]} for split in SPLITS}
    assert sum(map(len, found.sentences.values())) == 120 and found.repeated == 1
    assert not texts["train"] & texts["test"] and not texts["train"] & texts["validation"]
    assert 0.5 < len(texts["train"]) / 60 < 0.9 and texts["test"]
    one = found.sentences["train"][0]
    assert (
        one.label not in one.candidates and set(one.candidates) <= {0, 1, 2} and found.names[1] == "///mountain range"
    )
    own = found.of((2,)).sentences["train"]
    assert {one.label for one in own} == {1}
    with pytest.raises(ValueError, match=r"^data.source.relations: given 4, allowed: 1 to 3, the names of relations$"):
        found.of((4,))


@pytest.mark.parametrize(
    "row, line",
    [
        (ROW.format(4, "4 1", 0), ":1: given relation 4, allowed: 1 to 3, the names of names.txt"),
        (ROW.format(1, "0 1", 0), ":1: given relation 0, allowed: 1 to 3"),
        (ROW.format(1, "2 3", 0), ":1: given candidates without relation 1, allowed: candidates with"),
        (ROW.format("x", "2 3", 0), ":1 cannot be read .*'x'.*, allowed: numbers of relations"),
        ("1\t2 1\n", ":1: given '1.*, allowed: a relation, candidates and a sentence"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path, row, line):
    with pytest.raises(ValueError, match=line):
        read(folder(tmp_path, row))


def tacred(path, **changes):
    path.mkdir(exist_ok=True)
    row = {"id": "a", "relation": "per:title", "token": ["Ada", "is", "Queen"], "subj_start": 0, "subj_end": 0}
    row |= {"obj_start": 2, "obj_end": 2}
    others = [
        {**row, "id": str(i), "relation": name} for i, name in enumerate(("no_relation", "org:founded", "per:age"))
    ]
    for name in ("train", "dev", "test"):
        (path / f"{name}.json").write_text(json.dumps([{**row, **changes}, *others]))
    return str(path)


def test_tacred_without_no_relation_and_with_candidates_that_a_seed_has_drawn(tmp_path):
    path = tacred(tmp_path)
    read_tacred = lambda **fields: parse_tacred(Tacred(path=path, num_candidates=1, **fields))
    found = read_tacred()
    assert found.names == ("org:founded", "per:age", "per:title") and found.without == 3
    assert [one.label for one in found.sentences["train"]] == [2, 0, 1]
    one = found.sentences["train"][0]
    assert one.text == "ada is queen" and one.entities == (0, 0, 2, 2) and len(one.candidates) == 1
    assert found == read_tacred()
    drawn = {read_tacred(seed=s).sentences["train"][0].candidates for s in range(9)}
    assert drawn == {(0,), (1,)}


def test_an_entity_beyond_its_sentence_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a: given an entity from word 2 to 3, allowed: within 0 to 2$"):
        parse_tacred(Tacred(path=tacred(tmp_path, obj_end=3)))


PLACES = "2\t1 2\tAda , queen of  Bath .\tada\t0\tbath\t{}\tQ1\tQ2\n"
TREE = {"P1": [{"tokens": "a sentence , number 7 .".split(), "h": ["", "", [[3, 4]]], "t": ["", "", [[0]]]}]}


def test_the_places_of_things_are_those_of_the_files_that_have_the_sentence(tmp_path):
    rows = "2\t1 2\tada , queen of bath .\n" + "".join(ROW.format(1, "1 2", i) for i in range(9))
    path = folder(tmp_path, rows)
    (tmp_path / "places.txt").write_text(PLACES.replace("  ", " ").format("3 4"))
    (tmp_path / "places.json").write_text(json.dumps(TREE))
    found = read(path, entities=("places.txt", "places.json"))
    placed = {one.text: one.entities for some in found.sentences.values() for one in some if one.entities}
    assert placed == {"ada , queen of bath .": (0, 0, 3, 4), "a sentence , number 7 .": (3, 4, 0, 0)}
    assert not any(one.entities for some in read(path).sentences.values() for one in some)
    (tmp_path / "places.txt").write_text(PLACES.format("5"))  # the places count an empty word
    assert not any(one.entities for some in read(path, entities=("places.txt",)).sentences.values() for one in some)


@pytest.mark.parametrize(
    "text, line",
    [
        (PLACES.replace("  ", " ").format("9"), "1: given an entity from word 9 to 9, allowed: within 0 to 5$"),
        ("2\t1 2\tada is queen\n", "places.txt cannot be read .*, allowed: a file of CFRL with places"),
    ],
)
def test_places_that_do_not_fit_are_refused_in_one_line(tmp_path, text, line):
    (tmp_path / "places.txt").write_text(text)
    with pytest.raises(ValueError, match=line):
        read(folder(tmp_path, ROW.format(1, "1 2", 0)), entities=("places.txt",))


def test_made_sentences_are_the_same_for_ever():
    made = make_synthetic_relations()
    assert made == make_synthetic_relations() != make_synthetic_relations(seed=1)
    assert made.sentences["train"][3].text == make_synthetic_relations(num_train=2).sentences["train"][3].text


def test_word_vectors_by_word_and_the_mean_for_others(tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text("the 1 2\nof 3 4\nthe 9 9\n")
    vectors = read_word_vectors(file)
    assert vectors.words == ("the", "of")
    np.testing.assert_array_equal(embedding_table(vectors, ["of", "<unk>"]), [[3, 4], [2, 3]])
    assert read_word_vectors(file, num_words=1).words == ("the",)


@pytest.mark.parametrize(
    "text, line",
    [
        ("the 1 2\nof 3\n", ":2: given 1 numbers, allowed: 2, as the first line has"),
        ("the 1 2\nof 3 x\n", ":2 cannot be read .*'x'.*, allowed: a word and its numbers"),
        ("the 1 nan\n", "a number that is not finite"),
        ("the\nof 1 2\n", ":1: given 0 numbers, allowed: a word and its numbers"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(tmp_path, text, line):
    (tmp_path / "glove.txt").write_text(text)
    with pytest.raises(ValueError, match=line):
        read_word_vectors(tmp_path / "glove.txt")
    with pytest.raises(ValueError, match=r"^data.tokenizer.path: given '.*', allowed: a file of word vectors$"):
        read_word_vectors(tmp_path / "none.txt")
