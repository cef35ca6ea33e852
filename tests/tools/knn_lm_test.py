"""What the tables of kNN-LM are made of: texts, parts of stores, tuned settings, pages."""

import dataclasses

import numpy as np
import pytest

from memjax import config as configs
from memjax.datastore.exact import ExactIndex
from memjax.datastore.store import Header
from memjax.datastore.writer import ShardWriter, create_store, finish_store
from memjax.retrieval.interpolation import StoreNeighbors
from memjax.retrieval.keys import make_key_extractor
from memjax.retrieval.tuning import CachedNeighbors, ScoredTargets
from memjax.training.loaded_runs import load_run
from memjax.training.run_start import train
from tools.measurements.knn_lm import experiment, key_positions
from tools.measurements.knn_lm.distances import share
from tools.measurements.knn_lm.novels import as_wikitext, authors, make_documents
from tools.results.ledger import Book


def found(seed=0, count=40, neighbors=4):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 5, count).astype(np.int32)
    values = rng.integers(0, 5, (count, neighbors)).astype(np.int32)
    distances = np.sort(rng.random((count, neighbors)).astype(np.float32), axis=1)
    targets = ScoredTargets(np.arange(count), tokens, np.log(rng.uniform(0.05, 0.5, count)).astype(np.float32))
    return StoreNeighbors(
        targets, CachedNeighbors(distances, values, np.arange(count * neighbors).reshape(values.shape))
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("It's 1,000.5 two-fold -- yes!", " It 's 1 @,@ 000 @.@ 5 two @-@ fold \u2014 yes ! \n"),
        ("\ufeffMr. Fox. \u201cNo\u2026\u201d\n\n_Well_ -", ' Mr. Fox . " No ... " \n Well \u2014 \n'),
        ("'Tis the boys' 'home', can't", " ' Tis the boys ' ' home ' , can 't \n"),
        ("the etc. and Etc.", " the etc. and Etc. \n".replace("etc. and", "etc . and")),
    ],
)
def test_novels_take_the_form_of_wikitext(text, expected):
    assert as_wikitext(text, {"Mr.", "etc.", "Etc."}) == expected


class Words:
    """A tokenizer: one id a word."""

    words = ()

    def encode(self, text):
        return np.array([hash(word) % 97 for word in text.split()], np.int32)


def test_beginnings_of_books_have_as_many_tokens_as_were_asked_for(tmp_path):
    names = [f"Author{i}_Title_1900.txt" for i in range(60)]
    for name in names:
        (tmp_path / name).write_text("one two three four five six\n" * 5)
    documents, read = make_documents(tmp_path, "train", Words(), tokens=200)
    assert sum(map(len, (documents[i] for i in range(len(documents))))) == 200
    assert set(read) < set(names) and len(documents) == len(read)
    assert {len(documents[i]) for i in range(len(documents) - 1)} == {-(-200 // len(read))}
    whole, others = make_documents(tmp_path, "test", Words())
    assert len(whole[0]) == 30 and not set(others) & set(read)
    assert authors(["A_b_1.txt", "A_c_2.txt", "B_d_3.txt"]) == {"A", "B"}


def test_a_store_of_the_first_entries(tmp_path):
    keys = np.arange(20, dtype=np.float32).reshape(10, 2)
    create_store(tmp_path / "whole", Header(dim=2, model="m", tokenizer="t", data="d", protocol={}))
    with ShardWriter(tmp_path / "whole") as writer:
        writer.append(keys, np.arange(10))
        writer.finish()
    part = experiment.first_entries(finish_store(tmp_path / "whole"), tmp_path / "part", 4)
    again = experiment.first_entries(finish_store(tmp_path / "whole"), tmp_path / "part", 4)
    assert part.entries == again.entries == 4
    np.testing.assert_array_equal(part.keys(np.arange(4)), keys[:4])
    np.testing.assert_array_equal(part.values(np.arange(4)), np.arange(4))


def test_targets_without_one_token_are_those_that_are_not_it(tmp_path):
    one = found()
    less = experiment.without(one, 3)
    assert 0 < len(less.targets) < len(one.targets) and not (less.targets.tokens == 3).any()
    kept = one.targets.tokens != 3
    np.testing.assert_array_equal(less.neighbors.values, one.neighbors.values[kept])
    row = {"weight": 0.3, "temperature": 1.0}
    parts = [
        experiment.score(StoreNeighbors(dataclasses.replace(one.targets), one.neighbors), row),
        experiment.score(less, row),
    ]
    other = StoreNeighbors(
        ScoredTargets(*(array[~kept] for array in (one.targets.numbers, one.targets.tokens, one.targets.log_probs))),
        CachedNeighbors(
            *(array[~kept] for array in (one.neighbors.distances, one.neighbors.values, one.neighbors.ids))
        ),
    )
    total = parts[1] * kept.sum() + experiment.score(other, row) * (~kept).sum()
    assert parts[0] * len(kept) == pytest.approx(total)
    experiment.save(tmp_path / "a.npz", one)
    np.testing.assert_array_equal(experiment.load(tmp_path / "a.npz").neighbors.ids, one.neighbors.ids)


def test_the_setting_is_the_best_on_validation_and_read_off_on_test():
    validation, test = found(0), found(1)
    row = experiment.tuned(validation, test)
    assert row["test"] == experiment.score(test, row)
    assert row["validation"] == pytest.approx(experiment.score(validation, row))
    assert row["validation"] <= experiment.base({"validation": validation})["validation"]


def test_the_share_of_true_neighbours():
    one = found(neighbors=4)
    ids = one.neighbors.ids.copy()
    ids[:, 0] = -1
    assert share(StoreNeighbors(one.targets, dataclasses.replace(one.neighbors, ids=ids)), one) == pytest.approx(0.75)


def test_a_measurement_has_its_command_and_no_paths(tmp_path, monkeypatch):
    given = ["x", "/home/me/runs/a", "--workdir", "/fast/disk", "--data.source.path", "/data/wikitext-2"]
    monkeypatch.setattr("sys.argv", given)
    row = {"validation": 2.0, "test": 1.0}
    facts = {"rows": {"base model": row, "base + kNN-LM": {**row, "test": 0.5, "weight": 0.25}}}
    experiment.record("memorization", facts, "Title", "Text.", ["/home/me/runs/b"], Book(tmp_path))
    (found,) = Book(tmp_path).measurements()
    assert found.command == "python -m tools.measurements.knn_lm.memorization RUN --data.source.path wikitext-2"
    assert found.name == "a" and found.facts["runs"] == ["a", "b"] and found.facts["rows"] == facts["rows"]
    page = (tmp_path / "tables" / "knn_lm.md").read_text()
    assert page.endswith("| base + kNN-LM | 0.25 | 7.39 | 1.65 | -39.3 % |\n")
    assert "/home/me" not in page + str(found) and "/fast" not in page + str(found)


@pytest.mark.slow
def test_six_positions_are_read_at_once_each_as_a_reader_of_its_own_gives_it(tmp_path):
    source = configs.KeyValueRecall(num_documents=6, filler_length=12, num_pairs=2)
    attention = configs.TransformerXL(memory_length=8, norm="pre")
    config = configs.Config(
        name="tiny",
        workdir=str(tmp_path),
        model=configs.Model(dim=16, num_layers=2, num_heads=2, attention=attention),
        data=configs.Data(source=source, batch_size=2, segment_length=8, protocol="contiguous"),
        training=configs.Training(steps=1, log_every=0),
        evaluation=configs.Evaluation(batch_size=2),
    )
    run = load_run(train(config, on_event=lambda event: None).path)
    targets, keys = key_positions.read(run, run.experiment.documents("train"), 0)
    assert list(keys) == list(key_positions.POSITIONS)
    assert len({array.tobytes() for array in keys.values()}) == 6
    for tap in ("layer_-1/attention_input", "output_normed"):
        read = list(make_key_extractor(run, tap).reader("train"))
        np.testing.assert_allclose(keys[tap], np.concatenate([part.keys for part in read]), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(targets.tokens, np.concatenate([part.targets for part in read]))
    near = key_positions.search(ExactIndex(keys["output"]), targets.tokens, keys["output"][:4])
    np.testing.assert_array_equal(near.ids[:, 0], np.arange(4))
    np.testing.assert_array_equal(near.values[:, 0], targets.tokens[:4])
