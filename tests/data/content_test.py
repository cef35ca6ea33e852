"""Data told by what it holds: files, samples, and the caches that are keyed by them."""

import dataclasses
import os
import shutil

import hypothesis
import pytest
from hypothesis import strategies as st

from memjax import config as configs
from memjax.data.content import SAMPLE, file_sha256, hash_in_order, hash_sample, sample_numbers
from memjax.data.opening import make_datasets
from memjax.data.sources import texts_from_files
from memjax.training.runs import config_from_dict, config_to_dict

OLD = 10**18
"""a time of files, in nanoseconds, long before that of any test"""


def age(path):
    os.utime(path, ns=(OLD, OLD))


@hypothesis.given(st.binary(min_size=1, max_size=64), st.data())
def test_one_changed_byte_is_another_file(tmp_path_factory, content, data):
    path = tmp_path_factory.mktemp("content") / "file"
    path.write_bytes(content)
    before, place = file_sha256(path), data.draw(st.integers(0, len(content) - 1))
    path.write_bytes(content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :])
    assert file_sha256(path) != before
    path.write_bytes(content)
    assert file_sha256(path) == before


def test_size_and_time_only_decide_whether_a_file_is_hashed_again(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("abc")
    age(path)
    before = file_sha256(path)
    monkeypatch.setattr("memjax.data.content._BLOCK", "none")  # reading fails
    assert file_sha256(path) == before
    path.touch()
    with pytest.raises(TypeError):
        file_sha256(path)
    monkeypatch.undo()
    assert file_sha256(path) == before


@hypothesis.given(st.integers(1, 5000))
def test_a_sample_is_seeded_and_ends_with_the_last(count):
    numbers = sample_numbers(count)
    assert numbers == sorted(set(numbers)) == sample_numbers(count)
    assert numbers[-1] == count - 1 and len(numbers) == min(count, SAMPLE + 1)


def test_hashes_of_samples_say_what_they_have_seen(monkeypatch):
    read = lambda number: str(number).encode()
    assert hash_sample(5, read)[1] == "" and hash_sample(5, read) != hash_sample(6, read)
    assert hash_sample(2000, read)[1] == "1,001 of 2,000 examples compared"
    changed = lambda number: b"x" if number == 1999 else read(number)
    assert hash_sample(2000, read)[0] != hash_sample(2000, changed)[0]
    whole = hash_in_order(map(read, range(5)))
    assert whole[1] == "" and whole != hash_in_order(map(read, range(4)))
    monkeypatch.setattr("memjax.data.content.MAX_EXAMPLES", 3)
    first = hash_in_order(map(read, range(5)), 5, b"4")
    assert first[1] == "the first 3 of 5 examples compared"
    assert first != hash_in_order(map(read, range(5)), 5, b"5") and first != hash_in_order(map(read, range(6)), 6, b"4")


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number}\n")
    source = configs.TextFiles(path=str(tmp_path / "texts"))
    return configs.Data(source=source, tokenizer=configs.Bytes(), cache_dir=str(tmp_path / "cache"))


def open_train(data):
    steps = []
    documents = make_datasets(data, progress=lambda *step: steps.append(step)).documents("train")
    return documents, any(what == "tokenise" for what, *_ in steps)


def test_a_touched_or_copied_corpus_is_read_from_the_cache(corpus, tmp_path):
    first, prepared = open_train(corpus)
    assert prepared and not open_train(corpus)[1]
    for file in (tmp_path / "texts").iterdir():
        age(file)
    assert not open_train(corpus)[1]
    shutil.copytree(tmp_path / "texts", tmp_path / "copied")
    copied = dataclasses.replace(corpus, source=configs.TextFiles(path=str(tmp_path / "copied")))
    again, prepared = open_train(copied)
    assert not prepared and again.path == first.path and again.fingerprint == first.fingerprint


def test_other_texts_of_the_same_size_and_time_are_prepared_anew(corpus, tmp_path):
    first, _ = open_train(corpus)
    names = texts_from_files(tmp_path / "texts", split="train").names
    (tmp_path / "texts" / names[0]).write_text("TEXT")
    changed, prepared = open_train(corpus)
    assert prepared and changed.path != first.path and changed.fingerprint != first.fingerprint


def test_a_cache_says_its_age_once(corpus, monkeypatch):
    file, _ = open_train(corpus)
    steps = []
    for _ in range(2):
        make_datasets(corpus, progress=lambda *step: steps.append(step)).documents("train")
    assert steps == []  # what this process has prepared
    monkeypatch.setattr("memjax.data.opening._reported_files", set())
    os.utime(file.path / "done.json", (0, 0))
    for _ in range(2):
        make_datasets(corpus, progress=lambda *step: steps.append(step)).documents("train")
    ((line, _, total),) = steps
    assert total == 0 and f"days ago, read from {file.path}" in line and "--data.cache-dir ''" in line


def test_without_a_cache_nothing_is_left_behind(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    data = dataclasses.replace(corpus, cache_dir="")
    file, prepared = open_train(data)
    assert prepared and not (tmp_path / "user").exists() and not (tmp_path / "cache").exists()
    assert file.fingerprint == open_train(corpus)[0].fingerprint
    open_train(dataclasses.replace(corpus, cache_dir="default"))
    assert (tmp_path / "user" / "memjax" / "data").is_dir()


@pytest.mark.parametrize("cache_dir", ["default", "", "folder"])
def test_saved_settings_of_the_cache_come_back(cache_dir):
    data = configs.Data(cache_dir=cache_dir)
    saved = config_to_dict(data)
    assert config_from_dict(saved) == data
    # Earlier versions wrote '' for the default folder.
    assert config_from_dict({**saved, "cache_dir": ""}).cache_dir == "default"
