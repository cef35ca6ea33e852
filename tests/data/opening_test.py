"""Datasets of a configuration: every source becomes documents, and is prepared once."""

import dataclasses
import functools
import gzip
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memjax import config as configs
from memjax.data import corpora, opening
from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import ArrayDocuments
from memjax.data.identifiers import ANNOTATION
from memjax.data.opening import make_datasets, prepare
from memjax.data.python_sources import read_python_sources
from memjax.data.reading_report import UnreadableError
from memjax.data.source_readers import open_source
from memjax.data.sources import Texts

LINES = [f"def function_{i}(value):\n    return value + {i}\n" for i in range(40)]


@pytest.fixture
def data(tmp_path):
    """A configuration that keeps what it prepares in the test's own folder."""
    return configs.Data(tokenizer=configs.Bytes(), cache_dir=str(tmp_path / "cache"))


def make_source(kind, root):
    root.mkdir(parents=True)
    if kind is configs.TextFiles:
        for i, line in enumerate(LINES):
            (root / f"{i}.py").write_text(line)
    elif kind is configs.Directories:
        for i, line in enumerate(LINES):
            (root / f"project_{i}").mkdir()
            (root / f"project_{i}" / "main.py").write_text(line)
    elif kind is configs.JsonLines:
        root = root / "x.jsonl.gz"
        root.write_bytes(gzip.compress("\n".join(json.dumps({"text": line}) for line in LINES).encode()))
    elif kind is configs.WikiText:
        for split in ("train", "valid", "test"):
            (root / f"{split}.txt").write_text(f" \n = {split} = \n \n a text \n")
    elif kind is configs.Novels:
        for i, line in enumerate(LINES):
            (root / f"{i}.txt").write_text(line)
        with tarfile.open(root / "novels.tar", "w") as archive:
            for path in sorted(root.glob("*.txt")):
                archive.add(path, path.name)
        root = root / "novels.tar"
    shares: Any = {"validation_percent": 20, "test_percent": 20}
    has_shares = "test_percent" in {field.name for field in dataclasses.fields(kind)}
    return kind(path=str(root), **(shares if has_shares else {}))


@pytest.mark.parametrize(
    "kind", [configs.TextFiles, configs.Directories, configs.JsonLines, configs.WikiText, configs.Novels]
)
def test_sources_of_files(data, tmp_path, kind):
    data.source = make_source(kind, tmp_path / "source")
    made = make_datasets(data)
    assert (made.vocab_size, made.begin_token) == (259, 1)
    texts = []
    for split in ("train", "validation", "test"):
        documents = made.documents(split)
        texts += [made.tokenizer.decode(documents[i]) for i in range(len(documents))]
        batch = next(DocumentBatches(documents, rows=2, segment_length=4, begin_token=made.begin_token))
        assert batch.extras["target_bytes"].sum() == batch.weights.sum()
        assert (ANNOTATION in batch.extras) == (kind is configs.Directories)
    expected = [f"# main.py\n{line}" for line in LINES] if kind is configs.Directories else LINES
    if kind is not configs.WikiText:
        assert sorted(texts) == sorted(expected)
    assert {path.name.split("-")[0] for path in Path(data.cache_dir).iterdir()} == {kind.__name__}


def test_the_protocol_decides_how_wikitext_is_cut(data, tmp_path):
    data.source = make_source(configs.WikiText, tmp_path / "source")
    for protocol, name in [("separate", "train/00000 train"), ("contiguous", "train")]:
        data.protocol = protocol
        assert make_datasets(data).documents("train").name(0) == name


def test_words_are_those_of_wikitext_however_it_is_cut_and_tokenised(data, tmp_path):
    data.source = make_source(configs.WikiText, tmp_path / "source")
    for data.protocol in ("separate", "contiguous"):
        by_word, by_byte = (
            make_datasets(dataclasses.replace(data, tokenizer=tokenizer))
            for tokenizer in (configs.Words(), data.tokenizer)
        )
        words = by_word.documents("test")
        assert by_byte.words_in_split is not None
        assert by_byte.words_in_split("test") == sum(map(words.num_tokens, range(len(words)))) == 9
        assert by_word.words_in_split is None  # its unknown words are not the text
    data.source = make_source(configs.TextFiles, tmp_path / "other")
    assert make_datasets(data).words_in_split is None


def test_halves_of_the_training_split_are_cut_at_documents(data, tmp_path):
    """Both together are the split; WikiText is cut at articles also where it is one text; other splits stay whole."""
    data.source = configs.WikiText(path=str(tmp_path / "wikitext"))
    (tmp_path / "wikitext").mkdir()
    for split, count in (("train", 5), ("valid", 1), ("test", 1)):
        texts = [f" \n = {split} {number} = \n \n {'a ' * 9 * number}text \n" for number in range(count)]
        (tmp_path / "wikitext" / f"{split}.txt").write_text("".join(texts))
    tokens = lambda documents: np.concatenate([documents[index] for index in range(len(documents))])
    for protocol in ("separate", "contiguous"):
        data.protocol, data.train_half = protocol, ""
        whole = make_datasets(data)
        sizes, halves = [], []
        for data.train_half in ("first", "second"):
            half = make_datasets(data)
            assert half.documents("validation").fingerprint == whole.documents("validation").fingerprint
            halves.append(half.documents("train"))
            sizes.append(len(halves[-1]))
        assert sizes == [3, 2] and halves[1].name(0) == "train/00003 train 3"
        np.testing.assert_array_equal(np.concatenate([*map(tokens, halves)]), tokens(whole.documents("train")))
        assert len({whole.documents("train").fingerprint, *(half.fingerprint for half in halves)}) == 3
    data.source, data.train_half = make_source(configs.WikiText, tmp_path / "one"), "second"
    with pytest.raises(
        ValueError, match="data.train_half: given 'second', allowed: '' for a training split of 1 document"
    ):
        make_datasets(data).documents("train")


def test_enwik8(data, tmp_path, monkeypatch):
    (tmp_path / "enwik8").write_bytes(b"0123456789")
    monkeypatch.setattr(corpora, "enwik8", functools.partial(corpora.enwik8, sizes=(6, 2, 2)))
    data.source = configs.Enwik8(path=str(tmp_path / "enwik8"))
    made = make_datasets(data)
    assert [made.tokenizer.decode(made.documents(s)[0]) for s in opening.SPLITS] == ["012345", "67", "89"]


def test_the_default_is_the_embedded_corpus_in_subwords(data, monkeypatch):
    whole = read_python_sources()
    few = {name: text for name, text in whole.items() if name[0] in "cj" or name == "datetime"}
    monkeypatch.setattr("memjax.data.python_sources.read_python_sources", lambda root: few)
    assert data.source == configs.PythonLibrary()
    data.tokenizer = configs.SentencePiece(vocab_size=1000)
    steps = []
    counts = prepare(data, progress=lambda *step: steps.append(step))
    assert sum(count["documents"] for count in counts.values()) == len(few)
    assert sum(count["bytes"] for count in counts.values()) == sum(len(text.encode()) for text in few.values())
    assert all(1.5 < count["bytes"] / count["tokens"] < 4 for count in counts.values())
    assert steps[:2] == [("train the tokenizer", 0, 1), ("train the tokenizer", 1, 1)]
    assert steps[-1] == ("tokenise", counts["test"]["documents"], counts["test"]["documents"])
    written = {path: path.stat().st_mtime_ns for path in Path(data.cache_dir).rglob("*.bin")}
    assert prepare(data, progress=lambda *step: pytest.fail("made twice")) == counts
    assert written == {path: path.stat().st_mtime_ns for path in Path(data.cache_dir).rglob("*.bin")}
    made = make_datasets(data)
    documents = made.documents("test")
    batch = next(DocumentBatches(documents, rows=2, segment_length=64, begin_token=made.begin_token))
    assert {ANNOTATION, "target_bytes"} == set(batch.extras)
    index = [documents.name(i) for i in range(len(documents))].index("json")
    assert made.tokenizer.decode(documents[index]) == open_source(data, "test")[index]


def test_tokenizers(data, tmp_path):
    data.source = make_source(configs.TextFiles, tmp_path / "source")
    data.tokenizer = configs.Words()
    words = make_datasets(data).tokenizer
    assert words.words[:3] == ["+", "def", "return"] and make_datasets(data).tokenizer.words == words.words
    data.tokenizer = configs.SentencePiece(vocab_size=300)
    pieces = make_datasets(data).tokenizer
    data.tokenizer = configs.SentencePiece(model=str(pieces.path))
    given = make_datasets(data)
    assert given.tokenizer.fingerprint == pieces.fingerprint
    assert given.tokenizer.decode(given.documents("train")[0]) in LINES
    # A tokenizer that is not the same never reads what the other wrote.
    assert len(list((tmp_path / "cache").glob("TextFiles-train-*"))) == 1
    data.tokenizer = configs.Bytes()
    make_datasets(data).documents("train")
    assert len(list((tmp_path / "cache").glob("TextFiles-train-*"))) == 2


def test_minimum_length(data, tmp_path):
    data.source = make_source(configs.TextFiles, tmp_path / "source")
    (tmp_path / "source" / "short.py").write_text("x")
    data.min_document_length = 20
    counts = prepare(data)
    assert sum(count["skipped"] for count in counts.values()) == 1
    (tmp_path / "source" / "empty.py").write_text("")
    data.min_document_length = 1
    counts = prepare(data)  # an empty file is skipped when files are looked for
    assert sum(count["skipped"] for count in counts.values()) == 0


def test_recall_is_trained_with_practice_and_scored_without(data):
    data.source = configs.KeyValueRecall(num_documents=16, num_pairs=3)
    made = make_datasets(data)
    assert made.tokenizer is None and made.vocab_size == made.documents("train").vocab_size
    sizes = {split: len(made.documents(split)) for split in opening.SPLITS}
    assert sizes == {"train": 16, "validation": 2, "test": 2}
    assert made.documents("train").annotate(0)["weights"].sum() == 6
    assert made.documents("test").annotate(0)["weights"].sum() == 3
    assert made.documents("test")[0].tolist() != made.documents("validation")[0].tolist()
    assert prepare(data)["train"]["documents"] == 16


def test_a_strict_run_never_reads_tokens_that_were_prepared_leniently(data, monkeypatch):
    """Examples of data sets are skipped while they are tokenised, so what may be skipped belongs to the key."""

    def read(number):
        if number == 7:
            raise UnreadableError("path: example 7 is not UTF-8", "not UTF-8", is_broken=False, size=1)
        return LINES[number]

    monkeypatch.setattr(opening, "open_source", lambda data, split: Texts([*map(str, range(40))], read, "texts"))
    data.source = configs.TfdsBuilder(name="any")
    assert len(make_datasets(data).documents("train")) == 39
    assert [file.name for file in Path(data.cache_dir).iterdir()] == ["TfdsBuilder-train-f71f13c43f40"]  # as before
    data.source = configs.TfdsBuilder(name="any", skip="none")
    for _ in range(2):
        with pytest.raises(ValueError, match="example 7 is not UTF-8"):
            make_datasets(data).documents("train")
    data.source = configs.TfdsBuilder(name="any")
    assert len(make_datasets(data).documents("train")) == 39


@pytest.mark.parametrize("source", [configs.SeqioTask, configs.TfdsBuilder, configs.TextFiles, configs.JsonLines])
def test_what_may_be_skipped_is_in_the_key_of_prepared_tokens(source):
    keys = [opening._skip_key(source(skip=skip)) for skip in ("few", "all", "none")]
    assert keys[0] == () and len({*keys}) == 3


def test_the_key_of_a_seqio_task_knows_what_may_be_skipped(data, monkeypatch):
    paths, tokenizer = [], opening.make_tokenizer(configs.Bytes(), lambda: None, Path())
    documents = ArrayDocuments([tokenizer.encode("b")])
    monkeypatch.setattr(opening, "seqio_tokenizer", lambda *_, **__: tokenizer)
    monkeypatch.setattr(opening, "seqio_content", lambda *_, **__: ("content", ""))
    monkeypatch.setattr(opening, "seqio_documents", lambda name, path, **__: paths.append(path.name) or documents)
    monkeypatch.setattr(opening, "_report_reuse", lambda *_: None)
    for skip in ("few", "all", "none"):
        data.source = configs.SeqioTask(name="any", skip=skip)
        make_datasets(data).documents("train")
    parts = ("any", data.source.feature, tokenizer.fingerprint, str(data.min_document_length), "", "content")
    assert paths[0] == f"SeqioTask-train-{opening._digest(*parts)}" and len({*paths}) == 3


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_without_a_folder_data_lie_in_the_users_cache(monkeypatch, tmp_path, variable):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    folder = tmp_path if variable == "XDG_CACHE_HOME" else tmp_path / ".cache"
    assert opening.cache_folder(configs.Data()) == folder / "memjax" / "data"


def test_wrong_kinds(data):
    with pytest.raises(ValueError, match="data.source: given Glue, allowed: a source of documents"):
        make_datasets(configs.Data(source=configs.Glue()))
    data.source = configs.TextFiles(path="")
    with pytest.raises(ValueError, match="path: not given"):
        make_datasets(data).documents("train")


def test_importing_the_package_is_light():
    heavy = ("tensorflow", "seqio", "tensorflow_datasets", "sentencepiece", "flax")
    program = f"import sys, memjax.data; print([name for name in {heavy} if name in sys.modules])"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_arrays_are_native(data, tmp_path):
    data.source = make_source(configs.Directories, tmp_path / "source")
    documents = make_datasets(data).documents("train")
    tokens, annotations = documents.window(0, 0, 4)
    assert tokens.dtype == np.int32 and {array.dtype for array in annotations.values()} == {np.dtype(np.int32)}
