"""Token files: what is stored comes back, an interrupted writer is continued, damage is seen."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memjax.data import checked_files
from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import ArrayDocuments, Documents
from memjax.data.reading_report import UnreadableError
from memjax.data.sources import Texts, texts_without_names
from memjax.data.token_files import TokenFile, TokenizedDocument, write_token_file, write_tokens
from memjax.data.tokenizers import ByteTokenizer
from memjax.durable_files import DamagedError
from memjax.settings.reading_rules import ReadingRules

TEXTS = {"a": "hello", "b": "ünï", "c": "x", "d": "last one\n"}
TOKENIZER = ByteTokenizer()


def count(text, ids, lengths):
    """An annotation: the number of the token in its document."""
    assert len(text.encode()) == lengths.sum()
    return np.arange(len(ids))


def write(path, texts=None, **arguments):
    return write_token_file(path, Texts.from_mapping(TEXTS if texts is None else texts), TOKENIZER, **arguments)


def in_memory():
    tokens = [TOKENIZER.encode(text) for text in TEXTS.values()]
    annotations = [{"place": np.arange(len(ids)), "target_bytes": TOKENIZER.token_bytes(ids)} for ids in tokens]
    return ArrayDocuments(tokens, annotations=annotations)


def test_documents_come_back(tmp_path):
    steps = []
    progress = lambda *step: steps.append(step)
    file = write(tmp_path / "new" / "f", annotators={"place": count}, progress=progress)
    assert isinstance(file, Documents) and len(file) == 4
    expected = in_memory()
    for i, (name, text) in enumerate(TEXTS.items()):
        assert (file.name(i), file.num_bytes(i), file.num_tokens(i)) == (name, len(text.encode()), len(text.encode()))
        np.testing.assert_array_equal(file[i], TOKENIZER.encode(text))
        assert file[i].dtype == np.int32
        for key, values in expected.annotate(i).items():
            np.testing.assert_array_equal(file.annotate(i)[key], values)
        tokens, annotations = file.window(i, 1, 3)
        np.testing.assert_array_equal(tokens, file[i][1:3])
        np.testing.assert_array_equal(annotations["place"], np.arange(len(file[i]))[1:3])
    assert (file.total_tokens, file.total_bytes, file.skipped) == (20, 20, 0)
    assert steps == [("tokenise", i, 4) for i in range(1, 5)]
    np.testing.assert_array_equal(file[-1], file[3])
    with pytest.raises(IndexError):
        file[4]


def test_streams_read_it_like_documents_in_memory(tmp_path):
    file = write(tmp_path, annotators={"place": count})
    expected = in_memory()
    for protocol in ("separate", "contiguous"):
        streams = [
            DocumentBatches(d, rows=2, segment_length=3, begin_token=1, epochs=1, protocol=protocol)
            for d in (file, expected)
        ]
        for a, b in zip(*streams, strict=True):
            np.testing.assert_array_equal(a.inputs, b.inputs)
            for name in ("place", "target_bytes"):
                np.testing.assert_array_equal(a.extras[name], b.extras[name])


def test_a_finished_file_is_opened_and_a_changed_source_is_written_anew(tmp_path):
    first = write(tmp_path)
    written = (tmp_path / "tokens.bin").stat().st_mtime_ns
    again = write(tmp_path, progress=lambda *_: pytest.fail("tokenised twice"))
    assert again.fingerprint == first.fingerprint and (tmp_path / "tokens.bin").stat().st_mtime_ns == written
    changed = write(tmp_path, {"a": "other"})
    assert len(changed) == 1 and changed.fingerprint != first.fingerprint
    longer = write(tmp_path, {"a": "other"}, min_tokens=2)
    assert longer.fingerprint == changed.fingerprint, "the same tokens, wherever they come from"


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
@pytest.mark.parametrize("garbage", [0, 1, 5])
def test_an_interrupted_writer_is_continued(tmp_path, stop, garbage):
    def interrupt(_, done, __):
        if done > stop:
            raise Interrupted

    read = []

    class Counting(Texts):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    texts = Counting(list(TEXTS), list(TEXTS.values()).__getitem__, "source")
    arguments = {"annotators": {"place": count}}
    with pytest.raises(Interrupted):
        write_token_file(tmp_path / "f", texts, TOKENIZER, progress=interrupt, **arguments)
    with pytest.raises(ValueError, match="not a finished token file; prepare the data"):
        TokenFile(tmp_path / "f")
    # What a kill in the middle of a document leaves behind.
    for name in ("tokens.bin", "place.bin", "names.txt", "documents.bin"):
        with open(tmp_path / "f" / name, "ab") as file:
            file.write(b"\x07" * garbage)
    read.clear()
    file = write_token_file(tmp_path / "f", texts, TOKENIZER, **arguments)
    assert read == list(range(stop + 1, 4)), "finished documents are not tokenised again"
    whole = write_token_file(tmp_path / "whole", texts, TOKENIZER, **arguments)
    assert file.fingerprint == whole.fingerprint
    for name in ("tokens.bin", "place.bin", "names.txt", "documents.bin", "done.json"):
        assert (tmp_path / "f" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


KILLED = """
import os, sys
from memjax.data.reading_report import UnreadableError
from memjax.data.sources import Texts
from memjax.data.token_files import write_token_file
from memjax.data.tokenizers import ByteTokenizer
from memjax.durable_files import DamagedError
texts = Texts([str(i) for i in range(50)], lambda i: os._exit(9) if i == int(sys.argv[2]) else f"text {i}", "source")
write_token_file(sys.argv[1], texts, ByteTokenizer())
"""


def test_a_killed_process_is_continued(tmp_path):
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "f"), "31"], cwd=root, check=False)
    assert run.returncode == 9
    texts = Texts([str(i) for i in range(50)], lambda i: f"text {i}", "source")
    file = write_token_file(tmp_path / "f", texts, TOKENIZER)
    assert [TOKENIZER.decode(file[i]) for i in range(50)] == list(texts)


def test_pairs_that_can_only_be_iterated(tmp_path):
    def pairs():
        yield from TEXTS.items()

    with pytest.raises(ValueError, match="source: not given"):
        write_token_file(tmp_path / "f", pairs(), TOKENIZER)

    def interrupt(_, done, total):
        assert total is None
        if done == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        write_token_file(tmp_path / "f", pairs(), TOKENIZER, source="pairs", progress=interrupt)
    file = write_token_file(tmp_path / "f", pairs(), TOKENIZER, source="pairs")
    assert [file.name(i) for i in range(4)] == list(TEXTS)
    assert file.fingerprint == write(tmp_path / "g").fingerprint


def test_short_documents(tmp_path):
    file = write(tmp_path / "f", min_tokens=5)
    assert [file.name(i) for i in range(len(file))] == ["a", "b", "d"] and file.skipped == 1
    with pytest.raises(ValueError, match="none of 4 documents has 100 tokens; give a smaller minimum"):
        write(tmp_path / "g", min_tokens=100)
    with pytest.raises(ValueError, match="e has no tokens; remove it, or set min_document_length to 2"):
        write(tmp_path / "h", {**TEXTS, "e": ""})
    assert write(tmp_path / "i", {**TEXTS, "e": ""}, min_tokens=2).skipped == 2


@pytest.mark.parametrize("kind", ["texts", "pairs"])
def test_documents_that_are_empty_or_cannot_be_read_are_skipped_and_counted(tmp_path, kind):
    problem = UnreadableError("path: set 2 is not UTF-8 at byte 3", "not UTF-8", is_broken=False, size=9)
    contents = {"a": "one " * 50, "b": "", "c": problem, "d": "two " * 50}

    def read(index):
        content = list(contents.values())[index]
        if isinstance(content, UnreadableError):
            raise content
        return content

    texts = Texts(list(contents), read, "f") if kind == "texts" else list(contents.items())
    said, rules = [], ReadingRules()
    progress = lambda what, done, total: said.append(what) if total == 0 else None
    options = {"source": "f", "progress": progress}
    file = write_token_file(tmp_path / "train-1", texts, TOKENIZER, rules=rules, **options)
    assert [file.name(number) for number in range(len(file))] == ["a", "d"] and file.skipped == 2
    assert said == ["train-1: 2 of 4 documents skipped: 1 empty, 1 not UTF-8"]
    assert list(texts_without_names(texts)) == [contents["a"], "", contents["d"]]
    with pytest.raises(ValueError, match="b has no tokens; remove it"):
        write_token_file(tmp_path / "none", texts, TOKENIZER, rules=ReadingRules(skip="none"), **options)
    contents["a"] = contents["d"] = "short"
    texts = Texts(list(contents), read, "g") if kind == "texts" else list(contents.items())
    with pytest.raises(ValueError, match="train-2: 2 of 4 documents skipped.*47% of the bytes"):
        write_token_file(tmp_path / "train-2", texts, TOKENIZER, rules=rules, **options)
    assert len(write_token_file(tmp_path / "all", texts, TOKENIZER, rules=ReadingRules(skip="all"), **options)) == 2


def test_ids_choose_their_type(tmp_path):
    def write_ids(path, ids, vocab):
        documents = lambda start: iter([TokenizedDocument("a", np.array(ids), 1)][start:])
        return write_tokens(path, documents, source="s", tokenizer="t", token_bytes=np.ones(vocab))

    small, large = write_ids(tmp_path / "small", [0, 65535], 65536), write_ids(tmp_path / "large", [70000], 70001)
    assert small[0].tolist() == [0, 65535] and large[0].tolist() == [70000]
    assert (tmp_path / "small" / "tokens.bin").stat().st_size == 4 == (tmp_path / "large" / "tokens.bin").stat().st_size
    with pytest.raises(ValueError, match="a has ids 7 to 7; the vocabulary 5"):
        write_ids(tmp_path / "bad", [7], 5)


def test_an_annotation_of_another_length_is_refused(tmp_path):
    with pytest.raises(ValueError, match="place has 1 entries for 5 tokens of a"):
        write(tmp_path, annotators={"place": lambda *_: np.zeros(1)})


def test_folders_that_are_not_token_files_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds thesis.txt and is not a token file; give another folder"):
        write(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="not a finished token file"):
        TokenFile(tmp_path)


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES = {
    "flip": flip,
    "cut": lambda content: content[:-2],
    "empty": lambda content: b"",
    "digit": lambda content: content.translate(bytes.maketrans(b"0123456789", b"1234567890")),
    "delete": None,
}
FILES = (
    *("header.json", "done.json", "blocks.json", "tokens.bin", "place.bin", "documents.bin", "names.txt"),
    "token_bytes.npy",
)


def read_all(file):
    """Returns everything that a token file holds."""
    parts = [(file.name(i), file.num_bytes(i), file[i].tolist(), file.annotate(i)) for i in range(len(file))]
    return [(*rest, {key: values.tolist() for key, values in marks.items()}) for *rest, marks in parts]


def test_the_table_of_files_is_that_of_a_folder(tmp_path):
    write(tmp_path, annotators={"place": count})
    assert {file.name for file in tmp_path.iterdir()} == {*FILES, ".lock"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damage_is_refused_and_then_mended(tmp_path, name, damage):
    folder, lines = tmp_path / "f", []
    again = lambda: write(folder, annotators={"place": count}, progress=lambda *step: lines.append(step))
    expected, file = read_all(again()), folder / name
    content = file.read_bytes()
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(DAMAGES[damage](content))
    if damage == "digit" and file.read_bytes() == content:
        pytest.skip("the file has no digit")
    with pytest.raises(ValueError, match=re.escape(str(folder))) as error:  # at once, or when the block is read
        read_all(TokenFile(folder))
    assert len(str(error.value).splitlines()) == 1
    lines.clear()
    assert read_all(again()) == expected and read_all(TokenFile(folder)) == expected
    if name != "done.json" or damage != "delete":  # which only says that the file is finished
        (line,) = [step[0] for step in lines if step[1:] == (0, 0)]
        assert line.endswith(f"the folder is set aside as {folder}.damaged-1, and prepared again")
        assert {file.name for file in (tmp_path / "f.damaged-1").iterdir()} >= {*FILES} - {name}


def test_a_file_of_another_token_file_is_refused(tmp_path):
    write(tmp_path / "f", {"a": "hello"}), write(tmp_path / "g", {"a": "hellO"})
    for name in ("tokens.bin", "done.json", "blocks.json", "header.json"):
        write(tmp_path / "f", {"a": "hello"})
        (tmp_path / "f" / name).write_bytes((tmp_path / "g" / name).read_bytes())
        with pytest.raises(ValueError, match="is damaged"):
            read_all(TokenFile(tmp_path / "f"))


def test_blocks_are_compared_when_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(checked_files, "BLOCK_BYTES", 8)
    write(tmp_path)
    content = (tmp_path / "tokens.bin").read_bytes()
    (tmp_path / "tokens.bin").write_bytes(content[:-1] + b"?")
    file = TokenFile(tmp_path)
    assert file[0].tolist() == TOKENIZER.encode(TEXTS["a"]).tolist()
    with pytest.raises(DamagedError, match=r"tokens\.bin is damaged \(bytes 32 to 40 are not what was written\)"):
        file[3]
    with pytest.raises(DamagedError):
        file.compare()


def test_a_file_of_an_earlier_version_is_read_and_told(tmp_path):
    expected = read_all(write(tmp_path))
    (tmp_path / "blocks.json").unlink()
    for name in ("header.json", "done.json"):
        value = json.loads((tmp_path / name).read_text())
        kept = {key: part for key, part in value.items() if key not in ("checksum", "header", "blocks")}
        (tmp_path / name).write_text(json.dumps(kept))
    lines = []
    assert read_all(write(tmp_path, progress=lambda *step: lines.append(step))) == expected
    assert lines == [(f"{tmp_path}: an earlier version of memjax wrote it without checksums", 0, 0)]
